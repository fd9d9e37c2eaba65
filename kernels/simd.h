/*
 * simd.h - what the vector codecs (simd_row.h, simd_channel.h, simd_rotated.h) are written in. They
 * are written once; each instruction set has a header that gives the words a meaning
 * (simd_avx2.h, simd_avx512.h, simd_neon.h), and cpu_NAME.c includes that header, then the codecs.
 *
 *   fv      a vector of FV_LANES floats                       fv_...
 *   chunk   32 elements as CHUNK_FVS vectors of floats        chunk_...
 *   wv      16 integers of 16 bits (one register or two)      wv_...
 *
 * A row is cut into chunks; what is left at its end is copied into a chunk of zeros, so that
 * nothing is read or written beside the row. Every scale block starts with a chunk.
 *
 * All float operations are those of unit.h, one rounding each, so the bits are those of the
 * reference. The default rounding mode is a condition, as it is there.
 */
#ifndef KVT_KERNELS_SIMD_H
#define KVT_KERNELS_SIMD_H

#include "kernels/codec_ref.h"

#define SIMD static inline __attribute__((always_inline))

enum {
    CHUNK = 32, /* elements */
    CHUNK_BYTES = 2 * CHUNK,
    MAX_CHUNKS = KVT_MAX_HEAD_DIM / CHUNK,
};

/*
 * A unit of which the compiler knows all but rows and scale, for the commonest head_dim; the others
 * go through the same functions with loops of unknown length and rests.
 */
enum { COMMON_DIM = 128 };

SIMD kvt_unit known_unit(const kvt_unit *unit, uint32_t codec, uint32_t dtype, uint32_t dim) {
    kvt_unit known = {codec, dtype, dim, unit->rows, unit->scale};
    return known;
}

/* `call` with `known` for a unit as it is; the four cases are compiled apart. */
#define FOR_KNOWN_UNIT(unit, codec, call)                                                          \
    do {                                                                                           \
        if ((unit)->dtype == KVT_BF16 && (unit)->dim == COMMON_DIM) {                              \
            kvt_unit known = known_unit(unit, codec, KVT_BF16, COMMON_DIM);                        \
            call;                                                                                  \
        } else if ((unit)->dtype == KVT_BF16) {                                                    \
            kvt_unit known = known_unit(unit, codec, KVT_BF16, (unit)->dim);                       \
            call;                                                                                  \
        } else if ((unit)->dim == COMMON_DIM) {                                                    \
            kvt_unit known = known_unit(unit, codec, KVT_F16, COMMON_DIM);                         \
            call;                                                                                  \
        } else {                                                                                   \
            kvt_unit known = known_unit(unit, codec, KVT_F16, (unit)->dim);                        \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

/* Elements in chunk c of a row. */
SIMD uint32_t chunk_elements(uint32_t dim, uint32_t c) {
    return dim - c * CHUNK < CHUNK ? dim - c * CHUNK : (uint32_t)CHUNK;
}

/*
 * While codes are made of rows that are in the cache the memory has nothing to do. So row r of the
 * n that are read or written is asked for ahead of its time; behind the last one come the first
 * ones of the unit that is probably next, which lie behind this unit if its rows are side by side,
 * and else behind each row (the next head of the token). A wrong guess does no harm: nothing is
 * accessed.
 */
SIMD void fetch(bool to_write, uintptr_t at, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 64) {
        if (to_write)
            __builtin_prefetch((const void *)(at + i), 1, 3);
        else
            __builtin_prefetch((const void *)(at + i), 0, 3);
    }
}

SIMD uintptr_t fetched_row(const uint8_t *first, size_t stride_bytes, uint32_t row_bytes,
                           uint32_t r, uint32_t n) {
    uintptr_t at = (uintptr_t)first + r * stride_bytes;
    return r >= n && stride_bytes != row_bytes ? at + row_bytes - n * stride_bytes : at;
}

SIMD void fetch_row(bool to_write, const uint8_t *first, size_t stride_bytes, uint32_t row_bytes,
                    uint32_t r, uint32_t n) {
    fetch(to_write, fetched_row(first, stride_bytes, row_bytes, r, n), row_bytes);
}

/* How many rows ahead: enough for the memory's latency, little beside the cache. */
SIMD uint32_t rows_ahead(uint32_t row_bytes) {
    return (4096 + row_bytes - 1) / row_bytes;
}

/* The same of a row's codes: those that stand so far behind them. */
SIMD void fetch_codes(bool to_write, const uint8_t *codes, uint32_t row_bytes) {
    fetch(to_write, (uintptr_t)codes + (size_t)row_bytes * rows_ahead(row_bytes), row_bytes);
}

/* n < 64 bytes. Not memcpy: a call for a few bytes in each row costs more than the row. */
SIMD void copy_few(uint8_t *to, const uint8_t *from, uint32_t n) {
    uint32_t at = 0;
    if (n & 32) {
        memcpy(to, from, 32);
        at += 32;
    }
    if (n & 16) {
        memcpy(to + at, from + at, 16);
        at += 16;
    }
    if (n & 8) {
        memcpy(to + at, from + at, 8);
        at += 8;
    }
    if (n & 4) {
        memcpy(to + at, from + at, 4);
        at += 4;
    }
    if (n & 2) {
        memcpy(to + at, from + at, 2);
        at += 2;
    }
    if (n & 1)
        to[at] = from[at];
}

/* `bytes` bytes of a row, with zeros up to room_bytes: where they stand if they are as many, or a
 * copy in `room`. */
SIMD const uint8_t *padded_source(const uint8_t *row, uint32_t bytes, uint32_t room_bytes,
                                  uint8_t *room) {
    if (bytes == room_bytes)
        return row;
    memset(room, 0, room_bytes);
    copy_few(room, row, bytes);
    return room;
}

/* What follows the row statistics and the codes. */
SIMD void zero_padding(uint8_t *out, const kvt_unit_layout *at, uint32_t rows) {
    uint32_t stats_end = at->row_stats_offset + at->row_stats_bytes * rows;
    uint32_t codes_end = at->codes_offset + at->row_code_bytes * rows;
    memset(out + stats_end, 0, at->codes_offset - stats_end);
    memset(out + codes_end, 0, at->bytes - codes_end);
}

/* Neighbouring codes of two bits, each in a nibble (32 of them), moved together, and back. */
SIMD void narrow_nibbles(uint8_t *to, const uint8_t *nibbles) {
    for (int i = 0; i < 2; i++) {
        uint64_t x;
        memcpy(&x, nibbles + 8 * i, 8);
        x = (x | x >> 2) & UINT64_C(0x0f0f0f0f0f0f0f0f);
        x = (x | x >> 4) & UINT64_C(0x00ff00ff00ff00ff);
        x = (x | x >> 8) & UINT64_C(0x0000ffff0000ffff);
        uint32_t narrow = (uint32_t)(x | x >> 16);
        memcpy(to + 4 * i, &narrow, 4);
    }
}

SIMD void widen_nibbles(uint8_t *nibbles, const uint8_t *from) {
    for (int i = 0; i < 2; i++) {
        uint32_t narrow;
        memcpy(&narrow, from + 4 * i, 4);
        uint64_t x = narrow;
        x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
        x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
        x = (x | x << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
        x = (x | x << 2) & UINT64_C(0x3333333333333333);
        memcpy(nibbles + 8 * i, &x, 8);
    }
}

#endif
