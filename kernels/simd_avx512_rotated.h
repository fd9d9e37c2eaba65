/*
 * simd_avx512_rotated.h - w4v of blocks of 128 elements that are rotated as a whole, the commonest
 * ones, in AVX-512.
 *
 * A block is four registers of 32 words. Where an element stands is told by 7 bits: two number the
 * register, r1 and r0, two its part of 128 bits, l1 and l0, and three the word in that, i2, i1, i0.
 * Each holds one bit of the element's number, e6 .. e0. Registers that differ in r1 (or r0) are
 * added and subtracted: that is the step of the transform for the bit which r1 holds. Sum and
 * difference are then interleaved, by which that bit changes places with another one, which has its
 * step next: no step has to move words within a register. The names of the steps say how the bits
 * move.
 */
#ifndef KVT_KERNELS_SIMD_AVX512_ROTATED_H
#define KVT_KERNELS_SIMD_AVX512_ROTATED_H

#include "kernels/simd_avx512.h"

#define KVT_SIMD_BLOCK_128

/* Element 32 c + 16 i2 + 4 l + i is word q = 8 l + 4 i2 + i (i below 4) of register c where a
 * transform begins from elements or has ended with them; here bit q says that it changes its sign.
 */
static const uint32_t avx512_signs[4] = {0x264a38f8u, 0x8058ad33u, 0x183a129eu, 0x07337404u};

SIMD void avx512_step(__m512i *a, __m512i *b) {
    __m512i sum = _mm512_add_epi16(*a, *b);
    *b = _mm512_sub_epi16(*a, *b);
    *a = sum;
}

/* r to i0, i0 to i1, i1 to i2, i2 to r. */
SIMD void avx512_interleave_words(__m512i *a, __m512i *b) {
    __m512i low = _mm512_unpacklo_epi16(*a, *b);
    *b = _mm512_unpackhi_epi16(*a, *b);
    *a = low;
}

SIMD void avx512_step_words(__m512i *a, __m512i *b) {
    avx512_step(a, b);
    avx512_interleave_words(a, b);
}

/* r and i2 change places. */
SIMD void avx512_step_halves(__m512i *a, __m512i *b) {
    avx512_step(a, b);
    __m512i low = _mm512_unpacklo_epi64(*a, *b);
    *b = _mm512_unpackhi_epi64(*a, *b);
    *a = low;
}

/* r to l1, l1 to l0, l0 to r. */
SIMD void avx512_step_parts(__m512i *a, __m512i *b) {
    avx512_step(a, b);
    __m512i even = _mm512_shuffle_i64x2(*a, *b, 0x88);
    *b = _mm512_shuffle_i64x2(*a, *b, 0xdd);
    *a = even;
}

/* ------------------------------------------------------------------------------------------------
 * Encoding
 * ---------------------------------------------------------------------------------------------- */

/* Where `mask` has 1 a, else b. */
SIMD __m512i avx512_select(int16_t mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(mask), a, b, 0xca);
}

/* (a and not b) or c. */
SIMD __m512i avx512_and_not_or(__m512i a, __m512i b, __m512i c) {
    return _mm512_ternarylogic_epi32(a, b, c, 0xba);
}

/* The thresholds of a block, each as a register of words. Quotients of numbers below 2^27, which
 * are integers or at least 1 / 4064 from one: a half of that keeps the rounding of binary64 away.
 */
SIMD void avx512_thresholds(int32_t largest, __m512i *t) {
    const __m512d borders = _mm512_set_pd(0, 223, 171, 133, 102, 75, 49, 24);
    __m512d x = _mm512_mul_pd(borders, _mm512_set1_pd(KVT_W4V_SIXTEENTHS * largest));
    x = _mm512_mul_pd(_mm512_add_pd(x, _mm512_set1_pd(0.5)), _mm512_set1_pd(1.0 / 4064));
    __m256i once = _mm512_cvttpd_epi32(x),
            twice = _mm256_or_si256(once, _mm256_slli_epi32(once, 16));
    for (int i = 0; i < 7; i++)
        t[i] = _mm512_permutexvar_epi32(_mm512_set1_epi32(i), _mm512_castsi256_si512(twice));
}

/*
 * The code of each word, in its upper four bits; below them is anything. The sign of t - |y| says
 * whether the threshold t is passed, and who passes one passes those below it. Of the number of
 * thresholds that are passed, bit 2 is whether the fourth is, bit 1 whether the second is but not
 * the fourth, or the sixth, and bit 0 whether the last one passed is the first, third, fifth or
 * seventh.
 */
SIMD __m512i avx512_rotated_codes(__m512i y, __m512i magnitude, const __m512i *t) {
    __m512i d[7];
    for (int i = 0; i < 7; i++)
        d[i] = _mm512_sub_epi16(t[i], magnitude);
    __m512i bit1 = avx512_and_not_or(d[1], d[3], d[5]);
    __m512i bit0 = avx512_and_not_or(d[0], d[1], d[2]);
    bit0 = avx512_and_not_or(avx512_and_not_or(bit0, d[3], d[4]), d[5], d[6]);
    __m512i high = avx512_select(INT16_MIN, y, _mm512_srli_epi16(d[3], 1));
    __m512i low = avx512_select(INT16_MIN, bit1, _mm512_srli_epi16(bit0, 1));
    return avx512_select((int16_t)0xc000, high, _mm512_srli_epi16(low, 2));
}

SIMD __m512i avx512_round_block(uint32_t dtype, const uint8_t *from, uint32_t c, fv by) {
    chunk x = chunk_of_elements(dtype, from + CHUNK_BYTES * c);
    __m512i a = _mm512_cvtps_epi32(fv_mul(x.v[0], by)), b = _mm512_cvtps_epi32(fv_mul(x.v[1], by));
    __m512i y = _mm512_packs_epi32(a, b); /* in i2 is which of the two */
    return _mm512_mask_sub_epi16(y, avx512_signs[c], _mm512_setzero_si512(), y);
}

/* The block transformed. Behind it l1 and l0 hold e2 and e5, i2 .. i0 e6, e4, e1, the registers'
 * bits e0 and e3. Returns the largest magnitude. */
SIMD int32_t avx512_transform_block(uint32_t dtype, const uint8_t *from, float by, __m512i *y) {
    for (uint32_t c = 0; c < 4; c++)
        y[c] = avx512_round_block(dtype, from, c, fv_set(by));
    for (uint32_t r0 = 0; r0 < 2; r0++) {
        avx512_step_words(&y[r0], &y[r0 + 2]); /* e6; i0 .. i2: e6, e0, e1 */
        avx512_step_words(&y[r0], &y[r0 + 2]); /* e4; e4, e6, e0 */
        avx512_step_words(&y[r0], &y[r0 + 2]); /* e1; e1, e4, e6 */
    }
    for (uint32_t r1 = 0; r1 < 4; r1 += 2) {
        avx512_step_parts(&y[r1], &y[r1 + 1]); /* e5; l0, l1: e3, e5 */
        avx512_step_parts(&y[r1], &y[r1 + 1]); /* e2; e5, e2 */
        avx512_step(&y[r1], &y[r1 + 1]);       /* e3 */
    }
    for (uint32_t r0 = 0; r0 < 2; r0++)
        avx512_step(&y[r0], &y[r0 + 2]); /* e0 */
    __m512i a = _mm512_max_epi16(_mm512_abs_epi16(y[0]), _mm512_abs_epi16(y[1]));
    __m512i b = _mm512_max_epi16(_mm512_abs_epi16(y[2]), _mm512_abs_epi16(y[3]));
    return largest_magnitude(_mm512_max_epi16(a, b));
}

/* The codes of a transformed block. */
SIMD void avx512_store_block(const __m512i *y, int32_t largest, uint8_t *to) {
    /* Byte e3, e1, e4, e6, e5, e2 (from the lowest bit up) to e1, e2 .. e6. */
    const __m512i order = _mm512_set_epi64(
        0x3f3d1f1d3e3c1e1c, 0x3b391b193a381a18, 0x2f2d0f0d2e2c0e0c, 0x2b290b092a280a08,
        0x3735171536341614, 0x3331131132301210, 0x2725070526240604, 0x2321030122200200);
    __m512i t[7], codes[4];
    avx512_thresholds(largest, t);
    for (int i = 0; i < 4; i++)
        codes[i] = avx512_rotated_codes(y[i], _mm512_abs_epi16(y[i]), t);
    /* e0 chooses the nibble, e3 the byte of a word. */
    __m512i low = avx512_select((int16_t)0xf000, codes[2], _mm512_srli_epi16(codes[0], 4));
    __m512i high = avx512_select((int16_t)0xf000, codes[3], _mm512_srli_epi16(codes[1], 4));
    __m512i bytes = avx512_select((int16_t)0xff00, high, _mm512_srli_epi16(low, 8));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi8(order, bytes));
}

/* Blocks that are encoded together. From an element to its code it is a long way; where many blocks
 * go each part of it together, they overlap. */
enum { BLOCKS_AT_ONCE = FV_LANES };

/* n blocks; `next` are those that are wanted soon. False: an element is refused. A block of zeros
 * needs no case of its own. */
SIMD bool avx512_encode_blocks(uint32_t dtype, const uint8_t *const *from, const uintptr_t *next,
                               uint32_t n, uint8_t *scales, uint8_t *codes) {
    __m512i y[BLOCKS_AT_ONCE][4];
    uint16_t bits[BLOCKS_AT_ONCE] = {0}, halves[BLOCKS_AT_ONCE];
    float by[BLOCKS_AT_ONCE], largest[BLOCKS_AT_ONCE] = {0};
    for (uint32_t i = 0; i < n; i++) {
        magnitudes m = no_magnitudes();
        for (uint32_t c = 0; c < 4; c++)
            m = larger_magnitudes(m, from[i] + CHUNK_BYTES * c);
        bits[i] = largest_magnitude(m);
    }
    if (kvt_is_refused(dtype, wv_largest(wv_load(bits))))
        return false;
    fv amax = fv_of_elements(dtype, bits);
    __mmask16 counts = _mm512_cmp_ps_mask(amax, fv_set(KVT_ROTATED_MIN), _CMP_GE_OQ);
    fv_store(by, _mm512_maskz_div_ps(counts, fv_set(255), amax));
    for (uint32_t i = 0; i < n; i++) {
        fetch(false, next[i], 2 * KVT_ROW_BLOCK);
        fetch_codes(true, codes + KVT_ROW_BLOCK / 2 * i, KVT_ROW_BLOCK / 2);
        largest[i] = (float)avx512_transform_block(dtype, from[i], by[i], y[i]);
    }
    fv per_element = fv_set(kvt_div(KVT_W4V_SCALE, KVT_ROW_BLOCK));
    fv_store_halves(halves, fv_mul(fv_mul(fv_load(largest), amax), per_element));
    memcpy(scales, halves, 2 * (size_t)n);
    for (uint32_t i = 0; i < n; i++)
        avx512_store_block(y[i], (int32_t)largest[i], codes + KVT_ROW_BLOCK / 2 * i);
    return true;
}

/* As encode_rotated, where a row is whole blocks: their scales and codes are side by side. */
SIMD bool encode_blocks_128(const kvt_unit *unit, uint32_t dtype, const uint8_t *from,
                            size_t stride_bytes, uint8_t *scales, uint8_t *codes) {
    uint32_t blocks = unit->dim / KVT_ROW_BLOCK, n = unit->rows * blocks;
    const uint8_t *at[BLOCKS_AT_ONCE];
    uintptr_t next[BLOCKS_AT_ONCE];
    for (uint32_t done = 0; done < n; done += BLOCKS_AT_ONCE) {
        uint32_t now = n - done < BLOCKS_AT_ONCE ? n - done : (uint32_t)BLOCKS_AT_ONCE;
        for (uint32_t i = 0; i < now; i++) {
            uint32_t row = (done + i) / blocks, block = (done + i) % blocks;
            at[i] = from + row * stride_bytes + 2 * KVT_ROW_BLOCK * block;
            next[i] = fetched_row(from, stride_bytes, 2 * unit->dim,
                                  row + 2 * rows_ahead(2 * unit->dim), unit->rows) +
                      2 * KVT_ROW_BLOCK * block;
        }
        if (!avx512_encode_blocks(dtype, at, next, now, scales + 2 * done,
                                  codes + KVT_ROW_BLOCK / 2 * done))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------
 * Decoding
 * ---------------------------------------------------------------------------------------------- */

/* Words as numbers times the scale; K * by is exact (9 and 11 bits), and so is the fused product
 * before it is rounded. */
SIMD chunk avx512_scale_words(__m512i y, fv by, fv offset) {
    const __m512i exponent = _mm512_set1_epi16(0x4b00); /* of 2^23, where the last bit counts 1 */
    chunk x;
    x.v[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(y, exponent));
    x.v[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(y, exponent));
    for (int i = 0; i < 2; i++)
        x.v[i] = _mm512_fmsub_ps(x.v[i], by, offset);
    return x;
}

/* Can decode_block_128 do it? Not a scale of 0, whose zeros have signs, nor one by which numbers
 * become too large for binary16. */
SIMD bool block_128_fits(float scale) {
    return scale > 0 && scale * (127.0f * KVT_ROW_BLOCK) <= KVT_HALF_MAX;
}

/* As decode_rotated_block. */
SIMD void decode_block_128(uint32_t dtype, const uint8_t *codes, float scale, uint8_t *to) {
    /* Levels + 128, so that they are unsigned. What the 128 of all elements add up to is in element
     * 0: it is 2^14, and the steps before it may overflow. */
    const __m512i levels = _mm512_broadcast_i32x4(
        _mm_setr_epi8((char)134, (char)146, (char)159, (char)172, (char)186, (char)203, (char)224,
                      (char)255, 122, 110, 97, 84, 70, 53, 32, 1));
    const __m512i nibble = _mm512_set1_epi8(15), half = _mm512_set1_epi16(INT16_MIN);
    const __m512i plus = _mm512_set1_epi16(0x0101), minus = _mm512_set1_epi16((short)0xff01);
    __m512i packed = _mm512_loadu_si512(codes), y[4];
    for (uint32_t r0 = 0; r0 < 2; r0++) { /* e0; neighbouring bytes: e1, whose step this is */
        __m512i index = _mm512_and_si512(r0 ? _mm512_srli_epi16(packed, 4) : packed, nibble);
        __m512i level = _mm512_shuffle_epi8(levels, index);
        y[r0] = _mm512_maddubs_epi16(level, plus);
        y[r0 + 2] = _mm512_maddubs_epi16(level, minus);
        avx512_interleave_words(&y[r0], &y[r0 + 2]); /* i0 .. i2: e1, e2, e3; r1: e4 */
    }
    for (uint32_t r1 = 0; r1 < 4; r1 += 2)
        avx512_step_words(&y[r1], &y[r1 + 1]); /* e0; i0 .. i2: e0, e1, e2; r0: e3 */
    for (uint32_t r0 = 0; r0 < 2; r0++) {
        avx512_step_halves(&y[r0], &y[r0 + 2]); /* e4; i2: e4 */
        avx512_step_parts(&y[r0], &y[r0 + 2]);  /* e2; l0, l1: e6, e2 */
        avx512_step(&y[r0], &y[r0 + 2]);        /* e5 */
    }
    fv by = fv_set(scale), offset = fv_mul(fv_set(0x1p23f + 0x1p15f), by);
    for (uint32_t r1 = 0; r1 < 4; r1 += 2) {
        avx512_step_parts(&y[r1], &y[r1 + 1]); /* e3; l0, l1: e2, e3 */
        avx512_step(&y[r1], &y[r1 + 1]);       /* e6 */
    }
    for (uint32_t c = 0; c < 4; c++) {
        __m512i w = y[c / 2 + c % 2 * 2];
        __m512i zero = c == 0 ? _mm512_mask_mov_epi16(half, 1, _mm512_set1_epi16(0x4000)) : half;
        w = _mm512_mask_sub_epi16(_mm512_add_epi16(w, zero), avx512_signs[c], half, w);
        chunk_store_elements(dtype, to + CHUNK_BYTES * c, avx512_scale_words(w, by, offset));
    }
}

#endif
