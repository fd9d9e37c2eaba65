/* simd_avx512.h - the words of simd.h in AVX-512 (F, BW, DQ, VL, VBMI): floats in registers of 512
 * bits, integers of the transform in 256 bits as in AVX2. */
#ifndef KVT_KERNELS_SIMD_AVX512_H
#define KVT_KERNELS_SIMD_AVX512_H

#include "kernels/simd_x86_words.h"

typedef __m512 fv;
enum { FV_LANES = 16, CHUNK_FVS = CHUNK / FV_LANES };

typedef struct chunk {
    fv v[CHUNK_FVS];
} chunk;

SIMD fv fv_set(float x) {
    return _mm512_set1_ps(x);
}
SIMD fv fv_load(const float *from) {
    return _mm512_loadu_ps(from);
}
SIMD void fv_store(float *to, fv x) {
    _mm512_storeu_ps(to, x);
}
SIMD fv fv_add(fv a, fv b) {
    return _mm512_add_ps(a, b);
}
SIMD fv fv_sub(fv a, fv b) {
    return _mm512_sub_ps(a, b);
}
SIMD fv fv_mul(fv a, fv b) {
    return _mm512_mul_ps(a, b);
}
SIMD fv fv_div(fv a, fv b) {
    return _mm512_div_ps(a, b);
}
/* a < b ? a : b, and a > b ? a : b. */
SIMD fv fv_min(fv a, fv b) {
    return _mm512_min_ps(a, b);
}
SIMD fv fv_max(fv a, fv b) {
    return _mm512_max_ps(a, b);
}
SIMD fv fv_abs(fv a) {
    return _mm512_abs_ps(a);
}
/* x > 0 ? value : +0. */
SIMD fv fv_if_positive(fv x, fv value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), value);
}
/* Lanes where a >= b, where a > b. */
SIMD uint32_t fv_count_not_below(fv a, fv b) {
    return (uint32_t)__builtin_popcount(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ));
}
SIMD uint32_t fv_count_above(fv a, fv b) {
    return (uint32_t)__builtin_popcount(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ));
}

SIMD fv fv_of_halves(const void *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(from));
}
SIMD fv fv_of_bf16s(const void *from) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
SIMD void fv_store_halves(void *to, fv x) {
    _mm256_storeu_si256(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

/* Rounded so that the result stands in the upper 16 bits; not of NaNs. */
SIMD __m512i avx512_round_bf16(fv x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

SIMD __m256i avx512_bf16s(fv x) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(avx512_round_bf16(x), 16));
}

SIMD fv fv_of_elements(uint32_t dtype, const void *from) {
    return dtype == KVT_BF16 ? fv_of_bf16s(from) : fv_of_halves(from);
}

SIMD chunk chunk_of_elements(uint32_t dtype, const uint8_t *from) {
    chunk c;
    c.v[0] = fv_of_elements(dtype, from);
    c.v[1] = fv_of_elements(dtype, from + 32);
    return c;
}

/* The odd numbers: the upper half of each lane of two vectors. */
SIMD __m512i avx512_odd_words(void) {
    __m512i index = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                                     15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi16(_mm512_add_epi16(index, index), _mm512_set1_epi16(1));
}

SIMD void chunk_store_elements(uint32_t dtype, uint8_t *to, chunk c) {
    if (dtype == KVT_BF16) {
        __m512i a = avx512_round_bf16(c.v[0]), b = avx512_round_bf16(c.v[1]);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, avx512_odd_words(), b));
    } else {
        fv_store_halves(to, c.v[0]);
        fv_store_halves(to + 32, c.v[1]);
    }
}

/* The lanes of two vectors as bytes, in their order; they are -32768 .. 32767. (To pack and to
 * permute costs less than to permute two registers.) */
SIMD __m256i avx512_low_bytes(__m512i a, __m512i b) {
    const __m512i index =
        _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x3e3c3a38, 0x2e2c2a28, 0x1e1c1a18, 0x0e0c0a08,
                         0x36343230, 0x26242220, 0x16141210, 0x06040200);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi8(index, _mm512_packs_epi32(a, b)));
}

/* Rounded to nearest even, two's complement of 8 bits; -127 .. 127 after rounding. */
SIMD void chunk_store_i8(uint8_t *to, chunk c) {
    __m256i bytes = avx512_low_bytes(_mm512_cvtps_epi32(c.v[0]), _mm512_cvtps_epi32(c.v[1]));
    _mm256_storeu_si256((void *)to, bytes);
}

/* The same of 4 bits: -8 .. 15 after rounding. */
SIMD void chunk_store_i4(uint8_t *to, chunk c) {
    const __m512i index = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3c382c28,
                                           0x1c180c08, 0x34302420, 0x14100400);
    __m512i words = _mm512_packs_epi32(_mm512_cvtps_epi32(c.v[0]), _mm512_cvtps_epi32(c.v[1]));
    /* The low nibbles of two words in byte 0. 0xca: where the first has 1 the second, else the
     * third. */
    words =
        _mm512_ternarylogic_epi32(_mm512_set1_epi32(15), words, _mm512_srli_epi32(words, 12), 0xca);
    _mm_storeu_si128((void *)to, _mm512_castsi512_si128(_mm512_permutexvar_epi8(index, words)));
}

SIMD chunk chunk_of_i8(const uint8_t *from) {
    chunk c;
    c.v[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
    c.v[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(from + 16))));
    return c;
}

/* 16 codes of 8 bytes, each in the lower four bits of a lane of 32; above them is anything. */
SIMD __m512i avx512_spread_nibbles(const uint8_t *from) {
    __m512i x = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const void *)from));
    return _mm512_or_si512(x, _mm512_slli_epi64(x, 28));
}

/* Codes 0 .. 15, by a table of their values. */
SIMD chunk chunk_of_u4(const uint8_t *from) {
    const __m512 values = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    chunk c;
    c.v[0] = _mm512_permutexvar_ps(avx512_spread_nibbles(from), values);
    c.v[1] = _mm512_permutexvar_ps(avx512_spread_nibbles(from + 8), values);
    return c;
}

/* Codes of four bits, two's complement, times the scale, as elements: a table of the 16 results. It
 * stands there twice, because five bits of an index count. */
SIMD void chunk_decode_i4(uint32_t dtype, uint8_t *to, const uint8_t *from, float scale) {
    const __m512 values = _mm512_set_ps(-1, -2, -3, -4, -5, -6, -7, -8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512 results = _mm512_mul_ps(values, _mm512_set1_ps(scale));
    __m256i half = dtype == KVT_BF16 ? avx512_bf16s(results)
                                     : _mm512_cvtps_ph(results, _MM_FROUND_TO_NEAREST_INT);
    __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)from));
    __m512i codes = _mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 12));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(codes, _mm512_broadcast_i64x4(half)));
}

/*
 * The magnitude, at most the largest one, as a float of 8 bits with that mantissa. As in avx2_fp8 a
 * sum with a power of two rounds; its exponent then stands beside the significand, from where it is
 * added to it. The code is byte 0 of each lane, too large by avx512_fp8_excess.
 */
SIMD __m512i avx512_fp8(fv x, int mantissa) {
    const int min_normal = mantissa == 3 ? 121 : 113;
    const float largest = mantissa == 3 ? 448 : 57344;
    /* 0x0a: the smaller magnitude, without a sign */
    fv magnitude = _mm512_range_ps(x, _mm512_set1_ps(largest), 0x0a);
    __m512i exponent =
        _mm512_and_si512(_mm512_castps_si512(magnitude), _mm512_set1_epi32(0x7f800000));
    exponent = _mm512_max_epi32(exponent, _mm512_set1_epi32(min_normal << 23));
    __m512i big = _mm512_add_epi32(exponent, _mm512_set1_epi32((23 - mantissa) << 23));
    __m512i sum = _mm512_castps_si512(_mm512_add_ps(magnitude, _mm512_castsi512_ps(big)));
    return _mm512_add_epi32(sum, _mm512_srli_epi32(sum, (unsigned)(23 - mantissa)));
}

SIMD __m256i avx512_fp8_excess(int mantissa) {
    const int min_normal = mantissa == 3 ? 121 : 113;
    return _mm256_set1_epi8((char)((min_normal + 23 - mantissa) << mantissa));
}

SIMD void chunk_store_fp8(uint8_t *to, chunk c, int mantissa) {
    const __m512i index =
        _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x7c787470, 0x6c686460, 0x5c585450, 0x4c484440,
                         0x3c383430, 0x2c282420, 0x1c181410, 0x0c080400);
    __m512i both =
        _mm512_permutex2var_epi8(avx512_fp8(c.v[0], mantissa), index, avx512_fp8(c.v[1], mantissa));
    __m256i codes = _mm256_sub_epi8(_mm512_castsi512_si256(both), avx512_fp8_excess(mantissa));
    __mmask32 minus = _mm512_kunpackw(_mm512_movepi32_mask(_mm512_castps_si512(c.v[1])),
                                      _mm512_movepi32_mask(_mm512_castps_si512(c.v[0])));
    codes = _mm256_mask_add_epi8(codes, minus, codes, _mm256_set1_epi8((char)0x80));
    _mm256_storeu_si256((void *)to, codes);
}

/* Is there one of the two NaNs of e4m3 among 32 codes? */
SIMD bool chunk_has_e4m3_nan(const uint8_t *from) {
    const __m256i nan = _mm256_set1_epi8(0x7f);
    __m256i codes = _mm256_loadu_si256((const void *)from);
    return _mm256_cmpeq_epi8_mask(_mm256_and_si256(codes, nan), nan) != 0;
}

/* The values of e4m3 (not of NaNs) times 2^-8, or those of e5m2: as bits they are binary16. */
SIMD chunk chunk_of_fp8(const uint8_t *from, int mantissa) {
    __m512i halves = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)from));
    if (mantissa == 3)
        halves = _mm512_and_si512(_mm512_slli_epi16(halves, 7), _mm512_set1_epi16((short)0xbf80));
    else
        halves = _mm512_slli_epi16(halves, 8);
    chunk c;
    c.v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    c.v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    return c;
}

/*
 * What each of the 128 codes of 8 bits without a sign stands for, as 16 bits, lower bytes and upper
 * ones apart: two registers are a table of 128 bytes, from which 64 are taken at once.
 */
#define KVT_SIMD_FP8_TABLE
enum { TABLE_CODES = 64 }; /* that are looked up together */

typedef struct fp8_table {
    __m512i low[2], high[2];
} fp8_table;

SIMD fp8_table fp8_table_of(const uint8_t *words) {
    const __m512i even = _mm512_set_epi64(
        0x7e7c7a7876747270, 0x6e6c6a6866646260, 0x5e5c5a5856545250, 0x4e4c4a4846444240,
        0x3e3c3a3836343230, 0x2e2c2a2826242220, 0x1e1c1a1816141210, 0x0e0c0a0806040200);
    fp8_table t;
    for (int i = 0; i < 2; i++) {
        __m512i a = _mm512_loadu_si512(words + 128 * i);
        __m512i b = _mm512_loadu_si512(words + 128 * i + 64);
        t.low[i] = _mm512_permutex2var_epi8(a, even, b);
        t.high[i] = _mm512_permutex2var_epi8(a, _mm512_add_epi8(even, _mm512_set1_epi8(1)), b);
    }
    return t;
}

/* Those of 64 codes, with their signs; what stands in the halves of each part of 128 bits becomes a
 * part of *a and one of *b. */
SIMD void fp8_table_words(const fp8_table *t, __m512i codes, __m512i *a, __m512i *b) {
    __m512i low = _mm512_permutex2var_epi8(t->low[0], codes, t->low[1]);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], codes, t->high[1]);
    /* 0xf8: the first, or both others */
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xf8);
    *a = _mm512_unpacklo_epi8(low, high);
    *b = _mm512_unpackhi_epi8(low, high);
}

/* 64 codes as the elements that the table has for them. */
SIMD void fp8_table_decode(const fp8_table *t, uint8_t *to, const uint8_t *from) {
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    __m512i a, b;
    fp8_table_words(t, _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from)), &a, &b);
    _mm512_storeu_si512(to, a);
    _mm512_storeu_si512(to + 64, b);
}

/* 64 codes times the scale; the table has them as bfloat16, which is the upper half of a float. */
SIMD void fp8_table_decode_scaled(const fp8_table *t, uint32_t dtype, uint8_t *to,
                                  const uint8_t *from, float scale) {
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i zero = _mm512_setzero_si512();
    __m512i words[2];
    fp8_table_words(t, _mm512_permutexvar_epi32(order, _mm512_loadu_si512(from)), &words[0],
                    &words[1]);
    for (int i = 0; i < 2; i++) {
        chunk x;
        x.v[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words[i]));
        x.v[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words[i]));
        x.v[0] = fv_mul(x.v[0], fv_set(scale));
        x.v[1] = fv_mul(x.v[1], fv_set(scale));
        chunk_store_elements(dtype, to + CHUNK_BYTES * i, x);
    }
}

/* As in simd_row.h, in one register. */
#define KVT_SIMD_MAGNITUDES
typedef __m512i magnitudes;

SIMD magnitudes no_magnitudes(void) {
    return _mm512_setzero_si512();
}
SIMD magnitudes larger_magnitudes(magnitudes m, const uint8_t *at) {
    __m512i x = _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi16(0x7fff));
    return _mm512_max_epi16(m, x);
}
SIMD uint16_t largest_magnitude(magnitudes m) {
    return wv_largest(_mm256_max_epi16(_mm512_castsi512_si256(m), _mm512_extracti64x4_epi64(m, 1)));
}

/* The largest magnitude of each of four chunks, which stand side by side. Two chunks are folded
 * into one register, of which each keeps a half, two of these into one, and then that into itself.
 */
#define KVT_SIMD_FOUR_CHUNKS
SIMD __m512i avx512_chunk_magnitudes(const uint8_t *at) {
    return _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi16(0x7fff));
}
SIMD __m512i avx512_fold_words(const uint8_t *at) {
    __m512i a = avx512_chunk_magnitudes(at), b = avx512_chunk_magnitudes(at + CHUNK_BYTES);
    return _mm512_max_epi16(_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
}
SIMD void largest_of_four_chunks(const uint8_t *at, uint16_t *amax) {
    __m512i a = avx512_fold_words(at), b = avx512_fold_words(at + 2 * CHUNK_BYTES);
    a = _mm512_max_epi16(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m256i c = _mm256_max_epi16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i d = _mm_max_epi16(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
    _mm_storel_epi64((void *)amax, _mm_max_epi16(d, _mm_unpackhi_epi64(d, d)));
}

/* Rounded to nearest even, as 32 integers of 16 bits. */
SIMD void chunk_round_words(chunk c, wv *a, wv *b) {
    *a = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(c.v[0]));
    *b = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(c.v[1]));
}

SIMD chunk chunk_of_words(wv a, wv b) {
    chunk c;
    c.v[0] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(a));
    c.v[1] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(b));
    return c;
}

#endif
