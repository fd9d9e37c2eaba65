/* simd_neon.h - the words of simd.h in NEON (AArch64, where every machine has it). */
#ifndef KVT_KERNELS_SIMD_NEON_H
#define KVT_KERNELS_SIMD_NEON_H

#include <arm_neon.h>

#include "kernels/simd.h"

typedef float32x4_t fv;
enum { FV_LANES = 4, CHUNK_FVS = CHUNK / FV_LANES };

typedef struct chunk {
    fv v[CHUNK_FVS];
} chunk;

SIMD fv fv_set(float x) {
    return vdupq_n_f32(x);
}
SIMD fv fv_load(const float *from) {
    return vld1q_f32(from);
}
SIMD void fv_store(float *to, fv x) {
    vst1q_f32(to, x);
}
SIMD fv fv_add(fv a, fv b) {
    return vaddq_f32(a, b);
}
SIMD fv fv_sub(fv a, fv b) {
    return vsubq_f32(a, b);
}
SIMD fv fv_mul(fv a, fv b) {
    return vmulq_f32(a, b);
}
SIMD fv fv_div(fv a, fv b) {
    return vdivq_f32(a, b);
}
/* a < b ? a : b, and a > b ? a : b. Not the instructions of that name, which order -0 and +0. */
SIMD fv fv_min(fv a, fv b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
SIMD fv fv_max(fv a, fv b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
SIMD fv fv_abs(fv a) {
    return vabsq_f32(a);
}
/* x > 0 ? value : +0. */
SIMD fv fv_if_positive(fv x, fv value) {
    uint32x4_t kept = vandq_u32(vcgtzq_f32(x), vreinterpretq_u32_f32(value));
    return vreinterpretq_f32_u32(kept);
}
/* Lanes where a >= b, where a > b. */
SIMD uint32_t fv_count_not_below(fv a, fv b) {
    return vaddvq_u32(vshrq_n_u32(vcgeq_f32(a, b), 31));
}
SIMD uint32_t fv_count_above(fv a, fv b) {
    return vaddvq_u32(vshrq_n_u32(vcgtq_f32(a, b), 31));
}

/* Four elements at any address. */
SIMD uint16x4_t neon_load4(const void *from) {
    return vreinterpret_u16_u8(vld1_u8(from));
}
SIMD fv fv_of_halves(const void *from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(neon_load4(from)));
}
SIMD fv fv_of_bf16s(const void *from) {
    return vreinterpretq_f32_u32(vshll_n_u16(neon_load4(from), 16));
}
SIMD void fv_store_halves(void *to, fv x) {
    vst1_u8(to, vreinterpret_u8_f16(vcvt_f16_f32(x)));
}

/* Rounded to the upper 16 bits; not of NaNs. */
SIMD uint16x4_t neon_bf16s(fv x) {
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
}

SIMD fv fv_of_elements(uint32_t dtype, const void *from) {
    return dtype == KVT_BF16 ? fv_of_bf16s(from) : fv_of_halves(from);
}

SIMD chunk chunk_of_elements(uint32_t dtype, const uint8_t *from) {
    chunk c;
    for (int i = 0; i < CHUNK_FVS; i++)
        c.v[i] = fv_of_elements(dtype, from + 8 * i);
    return c;
}

SIMD void chunk_store_elements(uint32_t dtype, uint8_t *to, chunk c) {
    for (int i = 0; i < CHUNK_FVS; i++) {
        if (dtype == KVT_BF16)
            vst1_u8(to + 8 * i, vreinterpret_u8_u16(neon_bf16s(c.v[i])));
        else
            fv_store_halves(to + 8 * i, c.v[i]);
    }
}

/* 16 of the chunk's numbers, rounded to nearest even, as bytes; `from` is 0 or 4. */
SIMD int8x16_t neon_round_bytes(chunk c, int from) {
    int16x4_t q[4];
    for (int i = 0; i < 4; i++)
        q[i] = vmovn_s32(vcvtnq_s32_f32(c.v[from + i]));
    return vcombine_s8(vmovn_s16(vcombine_s16(q[0], q[1])), vmovn_s16(vcombine_s16(q[2], q[3])));
}

/* Rounded to nearest even, two's complement of 8 bits; -127 .. 127 after rounding. */
SIMD void chunk_store_i8(uint8_t *to, chunk c) {
    vst1q_u8(to, vreinterpretq_u8_s8(neon_round_bytes(c, 0)));
    vst1q_u8(to + 16, vreinterpretq_u8_s8(neon_round_bytes(c, 4)));
}

/* The lower four bits of 32 bytes, two in a byte. */
SIMD uint8x16_t neon_join_nibbles(uint8x16_t a, uint8x16_t b) {
    return vsliq_n_u8(vuzp1q_u8(a, b), vuzp2q_u8(a, b), 4);
}

/* The same of 4 bits: -8 .. 15 after rounding. */
SIMD void chunk_store_i4(uint8_t *to, chunk c) {
    vst1q_u8(to, neon_join_nibbles(vreinterpretq_u8_s8(neon_round_bytes(c, 0)),
                                   vreinterpretq_u8_s8(neon_round_bytes(c, 4))));
}

/* 8 integers of 16 bits as floats. */
SIMD void neon_floats(int16x8_t x, fv *a, fv *b) {
    *a = vcvtq_f32_s32(vmovl_s16(vget_low_s16(x)));
    *b = vcvtq_f32_s32(vmovl_s16(vget_high_s16(x)));
}

SIMD chunk neon_chunk_of_bytes(int8x16_t x, int8x16_t y) {
    chunk c;
    neon_floats(vmovl_s8(vget_low_s8(x)), &c.v[0], &c.v[1]);
    neon_floats(vmovl_s8(vget_high_s8(x)), &c.v[2], &c.v[3]);
    neon_floats(vmovl_s8(vget_low_s8(y)), &c.v[4], &c.v[5]);
    neon_floats(vmovl_s8(vget_high_s8(y)), &c.v[6], &c.v[7]);
    return c;
}

SIMD chunk chunk_of_i8(const uint8_t *from) {
    return neon_chunk_of_bytes(vreinterpretq_s8_u8(vld1q_u8(from)),
                               vreinterpretq_s8_u8(vld1q_u8(from + 16)));
}

/* 32 codes of four bits as bytes, in their order. */
SIMD void neon_bytes_of_nibbles(const uint8_t *from, uint8x16_t *a, uint8x16_t *b) {
    uint8x16_t both = vld1q_u8(from);
    uint8x16_t even = vandq_u8(both, vdupq_n_u8(15)), odd = vshrq_n_u8(both, 4);
    *a = vzip1q_u8(even, odd);
    *b = vzip2q_u8(even, odd);
}

/* Codes 0 .. 15. */
SIMD chunk chunk_of_u4(const uint8_t *from) {
    uint8x16_t a, b;
    neon_bytes_of_nibbles(from, &a, &b);
    return neon_chunk_of_bytes(vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
}

/* Codes of four bits, two's complement, times the scale, as elements: a table of the 16 results,
 * their lower and their upper bytes. */
SIMD void chunk_decode_i4(uint32_t dtype, uint8_t *to, const uint8_t *from, float scale) {
    static const float values[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    uint16x4_t t[4];
    for (int i = 0; i < 4; i++) {
        fv result = vmulq_n_f32(vld1q_f32(values + 4 * i), scale);
        t[i] = dtype == KVT_BF16 ? neon_bf16s(result) : vreinterpret_u16_f16(vcvt_f16_f32(result));
    }
    uint8x16_t x = vreinterpretq_u8_u16(vcombine_u16(t[0], t[1]));
    uint8x16_t y = vreinterpretq_u8_u16(vcombine_u16(t[2], t[3]));
    uint8x16_t low = vuzp1q_u8(x, y), high = vuzp2q_u8(x, y), codes[2];
    neon_bytes_of_nibbles(from, &codes[0], &codes[1]);
    for (int i = 0; i < 2; i++) {
        uint8x16x2_t bytes = {{vqtbl1q_u8(low, codes[i]), vqtbl1q_u8(high, codes[i])}};
        vst2q_u8(to + 32 * i, bytes);
    }
}

/*
 * To a float of 8 bits with that mantissa (3: e4m3, 2: e5m2), saturating, in byte 0 of each lane.
 * Adding 2^(23 - mantissa) times the number's own power of two (but at least the smallest normal
 * one's) rounds to the bits that are kept; what the sum has gained is the significand.
 */
SIMD uint32x4_t neon_fp8(fv x, int mantissa) {
    const uint32_t min_normal = mantissa == 3 ? 121 : 113, largest = mantissa == 3 ? 0x7e : 0x7b;
    const uint32_t shift = 23 - (uint32_t)mantissa;
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t exponent =
        vmaxq_u32(vandq_u32(bits, vdupq_n_u32(0x7f800000)), vdupq_n_u32(min_normal << 23));
    uint32x4_t big = vaddq_u32(exponent, vdupq_n_u32(shift << 23));
    fv sum = vaddq_f32(fv_abs(x), vreinterpretq_f32_u32(big));
    uint32x4_t significand = vsubq_u32(vreinterpretq_u32_f32(sum), big);
    uint32x4_t field = vshlq_u32(exponent, vdupq_n_s32(-(int32_t)shift));
    field = vsubq_u32(field, vdupq_n_u32(min_normal << mantissa));
    uint32x4_t code = vminq_u32(vaddq_u32(significand, field), vdupq_n_u32(largest));
    return vorrq_u32(code, vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80)));
}

SIMD void chunk_store_fp8(uint8_t *to, chunk c, int mantissa) {
    for (int i = 0; i < CHUNK_FVS; i += 2) {
        uint16x4_t a = vmovn_u32(neon_fp8(c.v[i], mantissa));
        uint16x4_t b = vmovn_u32(neon_fp8(c.v[i + 1], mantissa));
        vst1_u8(to + 4 * i, vmovn_u16(vcombine_u16(a, b)));
    }
}

/* Is there one of the two NaNs of e4m3 among 32 codes? */
SIMD bool chunk_has_e4m3_nan(const uint8_t *from) {
    const uint8x16_t nan = vdupq_n_u8(0x7f);
    uint8x16_t a = vceqq_u8(vandq_u8(vld1q_u8(from), nan), nan);
    uint8x16_t b = vceqq_u8(vandq_u8(vld1q_u8(from + 16), nan), nan);
    return vmaxvq_u8(vorrq_u8(a, b)) != 0;
}

/* The values of e4m3 (not of NaNs) times 2^-8, or those of e5m2: as bits they are binary16. */
SIMD chunk chunk_of_fp8(const uint8_t *from, int mantissa) {
    chunk c;
    for (int i = 0; i < CHUNK_FVS; i += 2) {
        int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(from + 4 * i)));
        uint16x8_t halves = vreinterpretq_u16_s16(wide);
        if (mantissa == 3)
            halves = vandq_u16(vshlq_n_u16(halves, 7), vdupq_n_u16(0xbf80));
        else
            halves = vshlq_n_u16(halves, 8);
        c.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves)));
        c.v[i + 1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)));
    }
    return c;
}

/* ------------------------------------------------------------------------------------------------
 * wv: 16 integers of 16 bits in two registers
 * ---------------------------------------------------------------------------------------------- */

typedef struct wv {
    int16x8_t a, b;
} wv;

SIMD wv wv_set(int16_t x) {
    return (wv){vdupq_n_s16(x), vdupq_n_s16(x)};
}
SIMD wv wv_load(const void *from) {
    const uint8_t *at = from;
    return (wv){vreinterpretq_s16_u8(vld1q_u8(at)), vreinterpretq_s16_u8(vld1q_u8(at + 16))};
}
SIMD wv wv_add(wv x, wv y) {
    return (wv){vaddq_s16(x.a, y.a), vaddq_s16(x.b, y.b)};
}
SIMD wv wv_sub(wv x, wv y) {
    return (wv){vsubq_s16(x.a, y.a), vsubq_s16(x.b, y.b)};
}
SIMD wv wv_and(wv x, wv y) {
    return (wv){vandq_s16(x.a, y.a), vandq_s16(x.b, y.b)};
}
SIMD wv wv_abs(wv x) {
    return (wv){vabsq_s16(x.a), vabsq_s16(x.b)};
}
SIMD wv wv_max(wv x, wv y) {
    return (wv){vmaxq_s16(x.a, y.a), vmaxq_s16(x.b, y.b)};
}
/* -1 where x > y, else 0. */
SIMD wv wv_above(wv x, wv y) {
    return (wv){vreinterpretq_s16_u16(vcgtq_s16(x.a, y.a)),
                vreinterpretq_s16_u16(vcgtq_s16(x.b, y.b))};
}
/* Negated where the mask is -1; the mask is -1 or 0. */
SIMD wv wv_negate(wv x, wv mask) {
    return (wv){vsubq_s16(veorq_s16(x.a, mask.a), mask.a),
                vsubq_s16(veorq_s16(x.b, mask.b), mask.b)};
}
/* The largest of 16 numbers that are not negative. */
SIMD uint16_t wv_largest(wv x) {
    return (uint16_t)vmaxvq_s16(vmaxq_s16(x.a, x.b));
}

/* The Walsh-Hadamard transform of the 16 numbers. What stands beside each other is separated into
 * two registers, added and subtracted, and put back. */
SIMD wv wv_transform(wv x) {
    int16x8_t even = vtrn1q_s16(x.a, x.b), odd = vtrn2q_s16(x.a, x.b);
    int16x8_t sum = vaddq_s16(even, odd), difference = vsubq_s16(even, odd);
    int32x4_t a = vreinterpretq_s32_s16(vtrn1q_s16(sum, difference));
    int32x4_t b = vreinterpretq_s32_s16(vtrn2q_s16(sum, difference));
    even = vreinterpretq_s16_s32(vtrn1q_s32(a, b));
    odd = vreinterpretq_s16_s32(vtrn2q_s32(a, b));
    a = vreinterpretq_s32_s16(vaddq_s16(even, odd));
    b = vreinterpretq_s32_s16(vsubq_s16(even, odd));
    int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(a, b));
    int64x2_t d = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
    even = vreinterpretq_s16_s64(vtrn1q_s64(c, d));
    odd = vreinterpretq_s16_s64(vtrn2q_s64(c, d));
    c = vreinterpretq_s64_s16(vaddq_s16(even, odd));
    d = vreinterpretq_s64_s16(vsubq_s16(even, odd));
    even = vreinterpretq_s16_s64(vtrn1q_s64(c, d));
    odd = vreinterpretq_s16_s64(vtrn2q_s64(c, d));
    return (wv){vaddq_s16(even, odd), vsubq_s16(even, odd)};
}

/* 32 numbers below 16 in 16 bytes, two a byte. */
SIMD void wv_store_nibbles(uint8_t *to, wv x, wv y) {
    int8x16_t a = vcombine_s8(vmovn_s16(x.a), vmovn_s16(x.b));
    int8x16_t b = vcombine_s8(vmovn_s16(y.a), vmovn_s16(y.b));
    vst1q_u8(to, neon_join_nibbles(vreinterpretq_u8_s8(a), vreinterpretq_u8_s8(b)));
}

/* 32 codes of four bits, each replaced by the signed byte that the table of 16 has for it. */
SIMD void wv_lookup_nibbles(const uint8_t *from, const int8_t *table, wv *x, wv *y) {
    uint8x16_t a, b;
    int8x16_t values = vld1q_s8(table);
    neon_bytes_of_nibbles(from, &a, &b);
    int8x16_t p = vqtbl1q_s8(values, a), q = vqtbl1q_s8(values, b);
    *x = (wv){vmovl_s8(vget_low_s8(p)), vmovl_s8(vget_high_s8(p))};
    *y = (wv){vmovl_s8(vget_low_s8(q)), vmovl_s8(vget_high_s8(q))};
}

/* Rounded to nearest even, as 32 integers of 16 bits. */
SIMD void chunk_round_words(chunk c, wv *x, wv *y) {
    int16x4_t q[CHUNK_FVS];
    for (int i = 0; i < CHUNK_FVS; i++)
        q[i] = vmovn_s32(vcvtnq_s32_f32(c.v[i]));
    *x = (wv){vcombine_s16(q[0], q[1]), vcombine_s16(q[2], q[3])};
    *y = (wv){vcombine_s16(q[4], q[5]), vcombine_s16(q[6], q[7])};
}

SIMD chunk chunk_of_words(wv x, wv y) {
    chunk c;
    neon_floats(x.a, &c.v[0], &c.v[1]);
    neon_floats(x.b, &c.v[2], &c.v[3]);
    neon_floats(y.a, &c.v[4], &c.v[5]);
    neon_floats(y.b, &c.v[6], &c.v[7]);
    return c;
}

#endif
