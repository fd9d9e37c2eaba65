/*
 * unit.h - units: what the bytes of one encoded unit are, and the arithmetic on them. The format is
 * kernels/FORMAT.md. One header for C17, C++ and CUDA (host and device): the C reference, the SIMD
 * paths and the GPU kernels all take their numbers from here.
 */
#ifndef KVT_KERNELS_UNIT_H
#define KVT_KERNELS_UNIT_H

#include <stdint.h>
#include <string.h>

#include "kernels/page.h"

#ifdef __CUDACC__
#define KVT_UNIT static __host__ __device__ __forceinline__
#else
#define KVT_UNIT static inline
#endif

enum {
    KVT_N_CODECS = 12,           /* codec numbers are below this; 0 is none */
    KVT_UNIT_ALIGN_BYTES = 16,   /* of a unit, and of each part in it */
    KVT_I4S_GROUP = 32,          /* elements that share a scale */
    KVT_ROW_BLOCK = 128,         /* elements that share a scale: rotated codecs, and long rows */
    KVT_ROW_BLOCK_MIN_DIM = 256, /* fp8t, i8v: up to this a row has one scale */
};

KVT_UNIT uint32_t kvt_pad16(uint32_t n) {
    return (n + 15u) & ~15u;
}

/* Where the parts of a unit are:   channel statistics | row statistics | codes */
typedef struct kvt_unit_layout {
    uint32_t row_stats_offset; /* = bytes of the channel statistics */
    uint32_t row_stats_bytes;  /* of one row */
    uint32_t codes_offset;
    uint32_t row_code_bytes;
    uint32_t bytes; /* of the unit, a multiple of KVT_UNIT_ALIGN_BYTES */
} kvt_unit_layout;

KVT_UNIT uint32_t kvt_row_code_bytes(uint32_t codec, uint32_t dim) {
    switch (codec) {
    case KVT_CODEC_RAW16:
        return 2 * dim;
    case KVT_CODEC_I4K:
    case KVT_CODEC_I4S:
        return dim / 2;
    case KVT_CODEC_I2K:
        return (dim + 3) / 4;
    case KVT_CODEC_W4V:
        return kvt_pad16(dim) / 2;
    case KVT_CODEC_W2V:
        return kvt_pad16(dim) / 4;
    default:
        return dim;
    }
}

KVT_UNIT uint32_t kvt_row_stats_bytes(uint32_t codec, uint32_t dim) {
    switch (codec) {
    case KVT_CODEC_FP8T:
    case KVT_CODEC_I8V:
        return dim <= KVT_ROW_BLOCK_MIN_DIM ? 2 : 2 * ((dim + KVT_ROW_BLOCK - 1) / KVT_ROW_BLOCK);
    case KVT_CODEC_I4S:
        return 2 * ((dim + KVT_I4S_GROUP - 1) / KVT_I4S_GROUP);
    case KVT_CODEC_W4V:
    case KVT_CODEC_W2V:
        return 2 * ((kvt_pad16(dim) + KVT_ROW_BLOCK - 1) / KVT_ROW_BLOCK);
    default:
        return 0;
    }
}

/* codec below KVT_N_CODECS, dim 2 .. KVT_MAX_HEAD_DIM, rows 1 .. 128. */
KVT_UNIT kvt_unit_layout kvt_unit_layout_of(uint32_t codec, uint32_t dim, uint32_t rows) {
    kvt_unit_layout layout;
    int per_channel = codec == KVT_CODEC_I8K || codec == KVT_CODEC_I4K || codec == KVT_CODEC_I2K;
    layout.row_stats_offset = per_channel ? 2 * kvt_pad16(2 * dim) : 0;
    layout.row_stats_bytes = kvt_row_stats_bytes(codec, dim);
    layout.codes_offset = layout.row_stats_offset + kvt_pad16(layout.row_stats_bytes * rows);
    layout.row_code_bytes = kvt_row_code_bytes(codec, dim);
    layout.bytes = layout.codes_offset + kvt_pad16(layout.row_code_bytes * rows);
    return layout;
}

#endif
