/*
 * unit.h - units: where the parts of one encoded unit are, and the arithmetic on its numbers. The
 * format is kernels/FORMAT.md. One header for C17, C++ and CUDA (host and device): the C reference,
 * the SIMD paths and the GPU kernels all take their numbers from here.
 *
 * Every float operation is one IEEE binary32 operation, rounded to nearest even, subnormals kept:
 * compile C and C++ with -ffp-contract=off and without -ffast-math, CUDA with -ftz=false. On a GPU
 * the operations below are intrinsics that nvcc does not fuse, whatever -fmad says.
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
    KVT_I4S_BLOCK = 32,          /* elements of a row that share a scale */
    KVT_ROW_BLOCK = 128,         /* the same: w4v, w2v, and long rows of fp8t and i8v */
    KVT_ROW_BLOCK_MIN_DIM = 256, /* fp8t, i8v: up to this a row has one scale */
    KVT_MAX_MAGNITUDE = 8192,    /* what a codec other than raw16 takes */
};

/* ------------------------------------------------------------------------------------------------
 * Where things are
 * ---------------------------------------------------------------------------------------------- */

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

/* Elements of a row that share a scale; the last block of a row may be shorter. 0: no scale a row.
 */
KVT_UNIT uint32_t kvt_row_block(uint32_t codec, uint32_t dim) {
    switch (codec) {
    case KVT_CODEC_FP8T:
    case KVT_CODEC_I8V:
        return dim <= KVT_ROW_BLOCK_MIN_DIM ? dim : (uint32_t)KVT_ROW_BLOCK;
    case KVT_CODEC_I4S:
        return KVT_I4S_BLOCK;
    case KVT_CODEC_W4V:
    case KVT_CODEC_W2V:
        return KVT_ROW_BLOCK;
    default:
        return 0;
    }
}

KVT_UNIT uint32_t kvt_row_stats_bytes(uint32_t codec, uint32_t dim) {
    uint32_t block = kvt_row_block(codec, dim);
    return block ? 2 * ((dim + block - 1) / block) : 0;
}

/* 1 if the codec has statistics per channel: m[dim], s[dim], each padded. */
KVT_UNIT int kvt_has_channel_stats(uint32_t codec) {
    return codec == KVT_CODEC_I8K || codec == KVT_CODEC_I4K || codec == KVT_CODEC_I2K;
}

/* codec below KVT_N_CODECS, dim 2 .. KVT_MAX_HEAD_DIM, rows 1 .. 128. */
KVT_UNIT kvt_unit_layout kvt_unit_layout_of(uint32_t codec, uint32_t dim, uint32_t rows) {
    kvt_unit_layout layout;
    layout.row_stats_offset = kvt_has_channel_stats(codec) ? 2 * kvt_pad16(2 * dim) : 0;
    layout.row_stats_bytes = kvt_row_stats_bytes(codec, dim);
    layout.codes_offset = layout.row_stats_offset + kvt_pad16(layout.row_stats_bytes * rows);
    layout.row_code_bytes = kvt_row_code_bytes(codec, dim);
    layout.bytes = layout.codes_offset + kvt_pad16(layout.row_code_bytes * rows);
    return layout;
}

/* ------------------------------------------------------------------------------------------------
 * Single operations
 * ---------------------------------------------------------------------------------------------- */

KVT_UNIT uint32_t kvt_float_bits(float f) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(f);
#else
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
#endif
}

KVT_UNIT float kvt_float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
#endif
}

#ifdef __CUDA_ARCH__
#define KVT_ADD(a, b) __fadd_rn(a, b)
#define KVT_MUL(a, b) __fmul_rn(a, b)
#define KVT_DIV(a, b) __fdiv_rn(a, b)
#else
#define KVT_ADD(a, b) ((a) + (b))
#define KVT_MUL(a, b) ((a) * (b))
#define KVT_DIV(a, b) ((a) / (b))
#endif

KVT_UNIT float kvt_add(float a, float b) {
    return KVT_ADD(a, b);
}
KVT_UNIT float kvt_sub(float a, float b) {
    return KVT_ADD(a, -b);
}
KVT_UNIT float kvt_mul(float a, float b) {
    return KVT_MUL(a, b);
}
KVT_UNIT float kvt_div(float a, float b) {
    return KVT_DIV(a, b);
}

KVT_UNIT float kvt_abs(float f) {
    return kvt_float_of_bits(kvt_float_bits(f) & 0x7fffffffu);
}

/* Nearest integer, ties to even; |f| <= 2^22. Adding 1.5 * 2^23 leaves no bits behind the point. */
KVT_UNIT int32_t kvt_rint(float f) {
    return (int32_t)(kvt_float_bits(KVT_ADD(f, 12582912.0f)) - 0x4b400000u);
}

KVT_UNIT int32_t kvt_clamp(int32_t value, int32_t low, int32_t high) {
    return value < low ? low : value > high ? high : value;
}

/* ------------------------------------------------------------------------------------------------
 * Conversions
 * ---------------------------------------------------------------------------------------------- */

/*
 * The magnitude of a float as a narrower one with `mantissa` bits and that exponent bias, rounded
 * to nearest even, subnormals kept. What is too large goes on as if there were more exponents: the
 * caller clamps. `magnitude` is not a NaN's.
 */
KVT_UNIT uint32_t kvt_narrow(uint32_t magnitude, uint32_t mantissa, uint32_t bias) {
    uint32_t shift = 23 - mantissa, min_normal = 128 - bias; /* the latter a binary32 exponent */
    if (magnitude >= min_normal << 23) {
        uint32_t odd = (magnitude >> shift) & 1;
        return ((magnitude + (1u << (shift - 1)) - 1 + odd) >> shift) - ((127 - bias) << mantissa);
    }
    uint32_t exponent = magnitude >> 23;
    shift += min_normal - exponent;
    if (exponent == 0 || shift > 24)
        return 0; /* under half of the smallest */
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    uint32_t kept = significand >> shift;
    return kept + (rest > half || (rest == half && (kept & 1)));
}

/* binary32 -> binary16; overflow gives an infinity, a NaN stays one (quiet, upper payload kept). */
KVT_UNIT uint16_t kvt_half_of_float(float f) {
    uint32_t bits = kvt_float_bits(f), magnitude = bits & 0x7fffffffu,
             sign = (bits >> 16) & 0x8000u;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    uint32_t half = kvt_narrow(magnitude, 10, 15);
    return (uint16_t)(sign | (half < 0x7c00u ? half : 0x7c00u));
}

KVT_UNIT float kvt_float_of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 31)
        return kvt_float_of_bits(sign | 0x7f800000u | (mantissa ? 0x400000u : 0) | mantissa << 13);
    if (exponent == 0) { /* mantissa * 2^-24, exactly */
        float f = KVT_MUL((float)(int32_t)mantissa, 5.9604644775390625e-8f);
        return kvt_float_of_bits(sign | kvt_float_bits(f));
    }
    return kvt_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

KVT_UNIT uint16_t kvt_bf16_of_float(float f) {
    uint32_t bits = kvt_float_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

KVT_UNIT float kvt_float_of_bf16(uint16_t bf16) {
    return kvt_float_of_bits((uint32_t)bf16 << 16);
}

/* binary32 -> e4m3fn, saturating at 448; a NaN gives 0x7f. */
KVT_UNIT uint8_t kvt_e4m3_of_float(float f) {
    uint32_t bits = kvt_float_bits(f), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0x7f;
    uint32_t code = kvt_narrow(magnitude, 3, 7);
    return (uint8_t)((bits >> 24 & 0x80u) | (code < 0x7eu ? code : 0x7eu));
}

KVT_UNIT float kvt_float_of_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
    if (magnitude == 0x7f)
        return kvt_float_of_bits(sign | 0x7fc00000u);
    if (magnitude < 8) { /* magnitude * 2^-9, exactly */
        float f = KVT_MUL((float)(int32_t)magnitude, 0.001953125f);
        return kvt_float_of_bits(sign | kvt_float_bits(f));
    }
    return kvt_float_of_bits(sign | ((magnitude << 20) + (120u << 23)));
}

/* binary32 -> e5m2, saturating at 57344; a NaN gives 0x7f. */
KVT_UNIT uint8_t kvt_e5m2_of_float(float f) {
    uint32_t bits = kvt_float_bits(f), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0x7f;
    uint32_t code = kvt_narrow(magnitude, 2, 15);
    return (uint8_t)((bits >> 24 & 0x80u) | (code < 0x7bu ? code : 0x7bu));
}

/* The upper byte of a binary16. */
KVT_UNIT float kvt_float_of_e5m2(uint8_t code) {
    return kvt_float_of_half((uint16_t)(code << 8));
}

/* Does the conversion clamp? (Rounding down to the largest value does not.) */
KVT_UNIT int kvt_e4m3_saturates(float f) {
    return kvt_abs(f) > 464.0f;
}
KVT_UNIT int kvt_e5m2_saturates(float f) {
    return kvt_abs(f) >= 61440.0f;
}

/* Elements outside: binary16 or bfloat16. */
KVT_UNIT float kvt_float_of_element(uint32_t dtype, uint16_t element) {
    return dtype == KVT_BF16 ? kvt_float_of_bf16(element) : kvt_float_of_half(element);
}
KVT_UNIT uint16_t kvt_element_of_float(uint32_t dtype, float f) {
    return dtype == KVT_BF16 ? kvt_bf16_of_float(f) : kvt_half_of_float(f);
}

/* The bits of the largest magnitude that a codec takes; infinities and NaNs lie above it too. */
KVT_UNIT uint16_t kvt_max_element(uint32_t dtype) {
    return dtype == KVT_BF16 ? 0x4600 : 0x7000;
}
KVT_UNIT int kvt_is_refused(uint32_t dtype, uint16_t element) {
    return (element & 0x7fff) > kvt_max_element(dtype);
}

/* ------------------------------------------------------------------------------------------------
 * Scales: what all scaled codecs have in common
 * ---------------------------------------------------------------------------------------------- */

/* A scale as it is stored: binary16, and the smallest positive one where rounding would give 0. So
 * binary16 subnormals, which are multiples of that, come back as they were. (Not for w4v, w2v.) */
KVT_UNIT uint16_t kvt_scale_of_float(float f) {
    uint16_t half = kvt_half_of_float(f);
    return half == 0 && f > 0.0f ? 1 : half;
}

/* 1 / scale, 0 for 0. */
KVT_UNIT float kvt_inverse(float scale) {
    return scale > 0.0f ? KVT_DIV(1.0f, scale) : 0.0f;
}

/* A two's complement code of that many bits as a number. */
KVT_UNIT int32_t kvt_signed_code(uint32_t code, uint32_t bits) {
    uint32_t sign = 1u << (bits - 1);
    return (int32_t)((code & ((sign << 1) - 1)) ^ sign) - (int32_t)sign;
}

/* ------------------------------------------------------------------------------------------------
 * Rotated codecs: w4v, w2v
 * ---------------------------------------------------------------------------------------------- */

/* The largest power of two, at most 128, that divides dim padded to 16. */
KVT_UNIT uint32_t kvt_rotation_block(uint32_t dim) {
    uint32_t padded = kvt_pad16(dim), low = padded & (0u - padded);
    return low < KVT_ROW_BLOCK ? low : (uint32_t)KVT_ROW_BLOCK;
}

/* 1 where element i of a row changes its sign before the transform and after the inverse one: the
 * first 128 bits behind the point of pi. */
KVT_UNIT uint32_t kvt_rotation_sign(uint32_t i) {
    uint32_t word = (i >> 5 & 3) == 0   ? 0x243f6a88u
                    : (i >> 5 & 3) == 1 ? 0x85a308d3u
                    : (i >> 5 & 3) == 2 ? 0x13198a2eu
                                        : 0x03707344u;
    return word >> (i & 31) & 1;
}

/*
 * Walsh-Hadamard transform in natural order, in place: out[k] = sum of in[i] * (-1)^popcount(i &
 * k). n is a power of two. Exact in any order while sums of n inputs fit 16 bits.
 */
KVT_UNIT void kvt_walsh_hadamard(int16_t *y, uint32_t n) {
    for (uint32_t step = 1; step < n; step *= 2) {
        for (uint32_t i = 0; i < n; i += 2 * step) {
            for (uint32_t j = i; j < i + step; j++) {
                int16_t a = y[j], b = y[j + step];
                y[j] = (int16_t)(a + b);
                y[j + step] = (int16_t)(a - b);
            }
        }
    }
}

/* Level i of a codec's magnitudes, in units of 1/127 of the range; 8 and 2 of them. */
KVT_UNIT int32_t kvt_w4v_level(uint32_t i) {
    return (int32_t)(UINT64_C(0x7f604b3a2c1f1206) >> (8 * i) & 0x7f);
}
KVT_UNIT int32_t kvt_w2v_level(uint32_t i) {
    return i ? 127 : 38;
}

/* Sum of levels i and i + 1: twice the border between them. */
KVT_UNIT int32_t kvt_w4v_border(uint32_t i) {
    return kvt_w4v_level(i) + kvt_w4v_level(i + 1);
}
KVT_UNIT int32_t kvt_w2v_border(void) {
    return 38 + 127;
}

/* A magnitude above this has a level above the border. `max` is the largest magnitude of the block;
 * the codec's range is max * sixteenths / 16. */
KVT_UNIT int32_t kvt_rotated_threshold(int32_t border, int32_t sixteenths, int32_t max) {
    return border * sixteenths * max / (2 * 127 * 16);
}

enum { KVT_W4V_SIXTEENTHS = 15, KVT_W2V_SIXTEENTHS = 9 };

/* 1024 * sixteenths / 16 / (255 * 127), rounded to binary32. */
#define KVT_W4V_SCALE 0.0296433531f
#define KVT_W2V_SCALE 0.017786013f

/* The stored scale is 1024 times the one that values are multiplied with: small values would
 * otherwise have scales that binary16 holds only as subnormals. */
#define KVT_ROTATED_SCALE_DOWN 0.0009765625f

/* Below this a block counts as zero: its scale would be, and 255 / amax must not overflow. */
#define KVT_ROTATED_MIN 9.094947017729282e-13f /* 2^-40 */
#define KVT_HALF_MAX    65504.0f

/* An element of the inverse transform as a value. */
KVT_UNIT float kvt_rotated_value(int32_t sum, float scale_down) {
    float value = KVT_MUL((float)sum, scale_down);
    return value > KVT_HALF_MAX ? KVT_HALF_MAX : value < -KVT_HALF_MAX ? -KVT_HALF_MAX : value;
}

#endif
