/* simd_x86_words.h - wv: 16 integers of 16 bits in one AVX2 register; for both x86 paths. */
#ifndef KVT_KERNELS_SIMD_X86_WORDS_H
#define KVT_KERNELS_SIMD_X86_WORDS_H

#include <immintrin.h>

#include "kernels/simd.h"

typedef __m256i wv;

SIMD wv wv_set(int16_t x) {
    return _mm256_set1_epi16(x);
}
SIMD wv wv_load(const void *from) {
    return _mm256_loadu_si256(from);
}
SIMD void wv_store(void *to, wv x) {
    _mm256_storeu_si256(to, x);
}
SIMD wv wv_add(wv a, wv b) {
    return _mm256_add_epi16(a, b);
}
SIMD wv wv_sub(wv a, wv b) {
    return _mm256_sub_epi16(a, b);
}
SIMD wv wv_and(wv a, wv b) {
    return _mm256_and_si256(a, b);
}
SIMD wv wv_abs(wv a) {
    return _mm256_abs_epi16(a);
}
/* Of what is not negative; magnitudes of elements are not either. */
SIMD wv wv_max(wv a, wv b) {
    return _mm256_max_epi16(a, b);
}
/* -1 where a > b, else 0. */
SIMD wv wv_above(wv a, wv b) {
    return _mm256_cmpgt_epi16(a, b);
}
/* Negated where the mask is -1; the mask is -1 or 0. */
SIMD wv wv_negate(wv a, wv mask) {
    return _mm256_sub_epi16(_mm256_xor_si256(a, mask), mask);
}

/* The largest of 16 numbers that are not negative. */
SIMD uint16_t wv_largest(wv a) {
    __m128i x = _mm_max_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    /* The instruction finds the smallest. */
    x = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1)));
    return (uint16_t)~_mm_cvtsi128_si32(x);
}

/* The Walsh-Hadamard transform of the 16 numbers: each step adds the neighbour at its distance, or
 * subtracts itself from it. */
SIMD wv wv_transform(wv x) {
    const __m256i by1 = _mm256_set1_epi32(0x0302 | 0x0100 << 16);
    const __m256i base = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404,
                                           0x08080808, 0x0c0c0c0c);
    const __m256i sign1 = _mm256_set1_epi32((int)0xffff0001);
    const __m256i sign2 = _mm256_setr_epi32(0x10001, -1, 0x10001, -1, 0x10001, -1, 0x10001, -1);
    const __m256i sign4 = _mm256_setr_epi32(0x10001, 0x10001, -1, -1, 0x10001, 0x10001, -1, -1);
    const __m256i sign8 = _mm256_setr_epi32(0x10001, 0x10001, 0x10001, 0x10001, -1, -1, -1, -1);
    __m256i swapped = _mm256_shuffle_epi8(x, _mm256_add_epi8(by1, base));
    x = _mm256_add_epi16(swapped, _mm256_sign_epi16(x, sign1));
    swapped = _mm256_shuffle_epi32(x, 0xb1);
    x = _mm256_add_epi16(swapped, _mm256_sign_epi16(x, sign2));
    swapped = _mm256_shuffle_epi32(x, 0x4e);
    x = _mm256_add_epi16(swapped, _mm256_sign_epi16(x, sign4));
    swapped = _mm256_permute2x128_si256(x, x, 1);
    return _mm256_add_epi16(swapped, _mm256_sign_epi16(x, sign8));
}

/* 32 numbers below 16 in 16 bytes, two a byte. */
SIMD void wv_store_nibbles(uint8_t *to, wv a, wv b) {
    __m256i bytes = _mm256_packus_epi16(a, b); /* lanes: a0 b0 a1 b1 */
    bytes = _mm256_permute4x64_epi64(bytes, 0xd8);
    __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001));
    _mm_storeu_si128((void *)to, _mm_packus_epi16(_mm256_castsi256_si128(pairs),
                                                  _mm256_extracti128_si256(pairs, 1)));
}

/* 32 codes of four bits as bytes, in their order. */
SIMD __m256i x86_bytes_of_nibbles(const uint8_t *from) {
    const __m128i mask = _mm_set1_epi8(15);
    __m128i both = _mm_loadu_si128((const void *)from);
    __m128i even = _mm_and_si128(both, mask), odd = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
    return _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
}

/* 32 codes of four bits, each replaced by the signed byte that the table of 16 has for it. */
SIMD void wv_lookup_nibbles(const uint8_t *from, const int8_t *table, wv *a, wv *b) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    values = _mm256_shuffle_epi8(values, x86_bytes_of_nibbles(from));
    *a = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(values));
    *b = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(values, 1));
}

#endif
