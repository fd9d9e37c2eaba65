/* simd_avx2.h - the words of simd.h in AVX2 and F16C. */
#ifndef KVT_KERNELS_SIMD_AVX2_H
#define KVT_KERNELS_SIMD_AVX2_H

#include "kernels/simd_x86_words.h"

typedef __m256 fv;
enum { FV_LANES = 8, CHUNK_FVS = CHUNK / FV_LANES };

typedef struct chunk {
    fv v[CHUNK_FVS];
} chunk;

SIMD fv fv_set(float x) {
    return _mm256_set1_ps(x);
}
SIMD fv fv_load(const float *from) {
    return _mm256_loadu_ps(from);
}
SIMD void fv_store(float *to, fv x) {
    _mm256_storeu_ps(to, x);
}
SIMD fv fv_add(fv a, fv b) {
    return _mm256_add_ps(a, b);
}
SIMD fv fv_sub(fv a, fv b) {
    return _mm256_sub_ps(a, b);
}
SIMD fv fv_mul(fv a, fv b) {
    return _mm256_mul_ps(a, b);
}
SIMD fv fv_div(fv a, fv b) {
    return _mm256_div_ps(a, b);
}
/* a < b ? a : b, and a > b ? a : b. */
SIMD fv fv_min(fv a, fv b) {
    return _mm256_min_ps(a, b);
}
SIMD fv fv_max(fv a, fv b) {
    return _mm256_max_ps(a, b);
}
SIMD fv fv_abs(fv a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
/* x > 0 ? value : +0. */
SIMD fv fv_if_positive(fv x, fv value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ), value);
}
/* Lanes where a >= b, where a > b. */
SIMD uint32_t fv_count_not_below(fv a, fv b) {
    return (uint32_t)__builtin_popcount(
        (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
SIMD uint32_t fv_count_above(fv a, fv b) {
    return (uint32_t)__builtin_popcount(
        (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}

SIMD fv fv_of_halves(const void *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(from));
}
SIMD fv fv_of_bf16s(const void *from) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
SIMD void fv_store_halves(void *to, fv x) {
    _mm_storeu_si128(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

/* The 32 bits of each lane rounded to their upper 16; not of NaNs. */
SIMD __m256i avx2_round_bf16(fv x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
}

/* 16 bits of each lane of two vectors, in their order. */
SIMD __m256i avx2_pack_bf16(fv a, fv b) {
    __m256i mixed = _mm256_packus_epi32(avx2_round_bf16(a), avx2_round_bf16(b));
    return _mm256_permute4x64_epi64(mixed, 0xd8);
}

SIMD fv fv_of_elements(uint32_t dtype, const void *from) {
    return dtype == KVT_BF16 ? fv_of_bf16s(from) : fv_of_halves(from);
}

SIMD chunk chunk_of_elements(uint32_t dtype, const uint8_t *from) {
    chunk c;
    for (int i = 0; i < CHUNK_FVS; i++)
        c.v[i] = fv_of_elements(dtype, from + 16 * i);
    return c;
}

SIMD void chunk_store_elements(uint32_t dtype, uint8_t *to, chunk c) {
    if (dtype == KVT_BF16) {
        _mm256_storeu_si256((void *)to, avx2_pack_bf16(c.v[0], c.v[1]));
        _mm256_storeu_si256((void *)(to + 32), avx2_pack_bf16(c.v[2], c.v[3]));
    } else {
        for (int i = 0; i < CHUNK_FVS; i++)
            fv_store_halves(to + 16 * i, c.v[i]);
    }
}

/* Bytes 0 .. 3 of 8 lanes of each of four vectors: bytes of all 32 lanes in their order. The
 * numbers are -128 .. 127. */
SIMD __m256i avx2_pack_bytes(const __m256i q[CHUNK_FVS]) {
    __m256i mixed =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

SIMD __m256i avx2_round_bytes(chunk c) {
    __m256i q[CHUNK_FVS];
    for (int i = 0; i < CHUNK_FVS; i++)
        q[i] = _mm256_cvtps_epi32(c.v[i]);
    return avx2_pack_bytes(q);
}

/* Rounded to nearest even, two's complement of 8 bits; -127 .. 127 after rounding. */
SIMD void chunk_store_i8(uint8_t *to, chunk c) {
    _mm256_storeu_si256((void *)to, avx2_round_bytes(c));
}

/* The same of 4 bits: -8 .. 15 after rounding. */
SIMD void chunk_store_i4(uint8_t *to, chunk c) {
    __m256i bytes = _mm256_and_si256(avx2_round_bytes(c), _mm256_set1_epi8(15));
    __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001));
    _mm_storeu_si128((void *)to, _mm_packus_epi16(_mm256_castsi256_si128(pairs),
                                                  _mm256_extracti128_si256(pairs, 1)));
}

SIMD chunk chunk_of_i8(const uint8_t *from) {
    chunk c;
    for (int i = 0; i < CHUNK_FVS; i++) {
        __m128i bytes = _mm_loadl_epi64((const void *)(from + 8 * i));
        c.v[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
    return c;
}

/* Codes 0 .. 15. */
SIMD chunk chunk_of_u4(const uint8_t *from) {
    __m256i bytes = x86_bytes_of_nibbles(from);
    __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
    chunk c;
    c.v[0] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low));
    c.v[1] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(low, low)));
    c.v[2] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high));
    c.v[3] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(high, high)));
    return c;
}

/* Codes of four bits, two's complement, times the scale, as elements. There are only 16 results:
 * they are made once, and each byte of them is looked up. */
SIMD void chunk_decode_i4(uint32_t dtype, uint8_t *to, const uint8_t *from, float scale) {
    fv s = _mm256_set1_ps(scale);
    fv first = _mm256_mul_ps(_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), s);
    fv second = _mm256_mul_ps(_mm256_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1), s);
    __m128i a, b;
    if (dtype == KVT_BF16) {
        __m256i both = avx2_pack_bf16(first, second);
        a = _mm256_castsi256_si128(both);
        b = _mm256_extracti128_si256(both, 1);
    } else {
        a = _mm256_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT);
        b = _mm256_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT);
    }
    const __m128i low_byte = _mm_set1_epi16(0xff);
    __m128i low = _mm_packus_epi16(_mm_and_si128(a, low_byte), _mm_and_si128(b, low_byte));
    __m128i high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    __m256i codes = x86_bytes_of_nibbles(from);
    __m256i lows = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(low), codes);
    __m256i highs = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(high), codes);
    __m256i x = _mm256_unpacklo_epi8(lows, highs), y = _mm256_unpackhi_epi8(lows, highs);
    _mm256_storeu_si256((void *)to, _mm256_permute2x128_si256(x, y, 0x20));
    _mm256_storeu_si256((void *)(to + 32), _mm256_permute2x128_si256(x, y, 0x31));
}

/*
 * To a float of 8 bits with that mantissa (3: e4m3, 2: e5m2), saturating. Adding 2^(23 - mantissa)
 * times the number's own power of two (but at least the smallest normal one's) rounds to the bits
 * that are kept; what the sum has gained is the significand.
 */
SIMD __m256i avx2_fp8(fv x, int mantissa) {
    const int min_normal = mantissa == 3 ? 121 : 113, largest = mantissa == 3 ? 0x7e : 0x7b;
    __m256i bits = _mm256_castps_si256(x);
    __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000));
    exponent = _mm256_max_epi32(exponent, _mm256_set1_epi32(min_normal << 23));
    __m256i big = _mm256_add_epi32(exponent, _mm256_set1_epi32((23 - mantissa) << 23));
    fv sum = _mm256_add_ps(fv_abs(x), _mm256_castsi256_ps(big));
    __m256i significand = _mm256_sub_epi32(_mm256_castps_si256(sum), big);
    __m256i field = _mm256_srli_epi32(exponent, 23 - mantissa);
    field = _mm256_sub_epi32(field, _mm256_set1_epi32(min_normal << mantissa));
    __m256i code =
        _mm256_min_epi32(_mm256_add_epi32(significand, field), _mm256_set1_epi32(largest));
    __m256i sign = _mm256_and_si256(_mm256_srai_epi32(bits, 24), _mm256_set1_epi32(~0x7f));
    return _mm256_or_si256(code, sign); /* -128 .. 127 */
}

SIMD void chunk_store_fp8(uint8_t *to, chunk c, int mantissa) {
    __m256i q[CHUNK_FVS];
    for (int i = 0; i < CHUNK_FVS; i++)
        q[i] = avx2_fp8(c.v[i], mantissa);
    _mm256_storeu_si256((void *)to, avx2_pack_bytes(q));
}

/* Is there one of the two NaNs of e4m3 among 32 codes? */
SIMD bool chunk_has_e4m3_nan(const uint8_t *from) {
    const __m256i nan = _mm256_set1_epi8(0x7f);
    __m256i codes = _mm256_loadu_si256((const void *)from);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(codes, nan), nan)) != 0;
}

/* The values of e4m3 (not of NaNs) times 2^-8, or those of e5m2: as bits they are binary16. */
SIMD chunk chunk_of_fp8(const uint8_t *from, int mantissa) {
    chunk c;
    for (int i = 0; i < CHUNK_FVS; i++) {
        __m128i bytes = _mm_loadl_epi64((const void *)(from + 8 * i)), halves;
        if (mantissa == 3)
            halves = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7),
                                   _mm_set1_epi16((short)0xbf80));
        else
            halves = _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
        c.v[i] = _mm256_cvtph_ps(halves);
    }
    return c;
}

/* Rounded to nearest even, as 32 integers of 16 bits. */
SIMD void chunk_round_words(chunk c, wv *a, wv *b) {
    __m256i q[CHUNK_FVS];
    for (int i = 0; i < CHUNK_FVS; i++)
        q[i] = _mm256_cvtps_epi32(c.v[i]);
    *a = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0xd8);
    *b = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2], q[3]), 0xd8);
}

SIMD chunk chunk_of_words(wv a, wv b) {
    chunk c;
    c.v[0] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(a)));
    c.v[1] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(a, 1)));
    c.v[2] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(b)));
    c.v[3] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(b, 1)));
    return c;
}

#endif
