/*
 * simd_avx512_channel.h - the channel codecs' inner loops in AVX-512: so many columns at a time
 * that all that belongs to their channels stays in registers while the rows go by.
 *
 * The smallest and the largest element are found among the 16-bit elements as integers, without
 * making floats of them. Their order is that of sign and magnitude: who has no sign is the larger
 * the larger he is as a number; who has one, the smaller. So if there is any with a sign, the
 * largest of all as unsigned numbers is the smallest element; if there is any without one, the
 * largest as signed numbers is the largest element; and where one of the two is missing, the
 * smallest as an unsigned number takes its place. Of the two zeros either may come out: no
 * statistic depends on which. NaNs are at the ends, and refused there.
 */
#ifndef KVT_KERNELS_SIMD_AVX512_CHANNEL_H
#define KVT_KERNELS_SIMD_AVX512_CHANNEL_H

#include "kernels/simd_avx512.h"

#define KVT_SIMD_COLUMNS

/* Chunks of a row that are columns together; 32 registers hold no more. */
enum { MAX_COLUMN_CHUNKS = 4 };

/* Some columns of a unit's rows. */
typedef struct columns {
    uint32_t dtype;
    uint32_t chunks; /* a constant: 2 or 4 */
    uint32_t rows;
    uint32_t row_bytes; /* of whole rows */
    size_t stride_bytes;
} columns;

/* `call` with `c`, the columns from channel d on, for all that are there in twos; in front of the
 * others d is left. */
#define FOR_COLUMNS(unit, the_dtype, the_rows, the_stride_bytes, d, call)                          \
    do {                                                                                           \
        for (; d + 4 * CHUNK <= (unit)->dim; d += 4 * CHUNK) {                                     \
            const columns c = {the_dtype, 4, the_rows, 2 * (unit)->dim, the_stride_bytes};         \
            call;                                                                                  \
        }                                                                                          \
        for (; d + 2 * CHUNK <= (unit)->dim; d += 2 * CHUNK) {                                     \
            const columns c = {the_dtype, 2, the_rows, 2 * (unit)->dim, the_stride_bytes};         \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

/* Each of the two passes of encoding fetches half of the unit that is probably next. */
SIMD void fetch_next_columns(columns c, const uint8_t *first, uint32_t r, bool second_pass) {
    if (r % 2 == 0)
        fetch(false,
              fetched_row(first, c.stride_bytes, c.row_bytes,
                          c.rows + ((second_pass ? c.rows : 0) + r) / 2, c.rows),
              CHUNK_BYTES * c.chunks);
}

typedef struct column_extremes {
    __m512i high, far, near; /* largest signed, largest unsigned, smallest unsigned */
} column_extremes;

SIMD void take_extremes(column_extremes *e, __m512i x) {
    e->high = _mm512_max_epi16(e->high, x);
    e->far = _mm512_max_epu16(e->far, x);
    e->near = _mm512_min_epu16(e->near, x);
}

SIMD void store_extremes(uint32_t dtype, const column_extremes *e, float *min, float *max) {
    uint8_t room[CHUNK_BYTES];
    __mmask32 all_minus = _mm512_movepi16_mask(e->high), any_minus = _mm512_movepi16_mask(e->far);
    _mm512_storeu_si512(room, _mm512_mask_mov_epi16(e->near, any_minus, e->far));
    chunk x = chunk_of_elements(dtype, room);
    fv_store(min, x.v[0]);
    fv_store(min + FV_LANES, x.v[1]);
    _mm512_storeu_si512(room, _mm512_mask_mov_epi16(e->high, all_minus, e->near));
    x = chunk_of_elements(dtype, room);
    fv_store(max, x.v[0]);
    fv_store(max + FV_LANES, x.v[1]);
}

/*
 * The sum in a multiplication, and an operand that the compiler does not see through. Processors
 * have other units for products than for sums and conversions, of which there are many here; and
 * who loads a register five times, once for each use, has no loads left.
 */
SIMD void opaque(__m512i *x) {
    __asm__("" : "+v"(*x));
}
SIMD fv fv_opaque(float x) {
    fv v = fv_set(x);
    __asm__("" : "+v"(v));
    return v;
}

/* Statistics of columns. Without `with_sums` the sums are 0. */
SIMD void take_columns(columns c, bool with_sums, const uint8_t *first, float *sum, float *min,
                       float *max) {
    const uint8_t *from = first;
    column_extremes e[MAX_COLUMN_CHUNKS];
    fv sums[CHUNK_FVS * MAX_COLUMN_CHUNKS];
    for (uint32_t i = 0; i < c.chunks; i++) {
        e[i].high = e[i].far = e[i].near = _mm512_loadu_si512(from + CHUNK_BYTES * i);
        sums[2 * i] = sums[2 * i + 1] = fv_set(0);
    }
    const fv one = fv_opaque(1);
    for (uint32_t r = 0; r < c.rows; r++, from += c.stride_bytes) {
        fetch_next_columns(c, first, r, false);
        for (uint32_t i = 0; i < c.chunks; i++) {
            __m512i words = _mm512_loadu_si512(from + CHUNK_BYTES * i);
            opaque(&words);
            take_extremes(&e[i], words);
            if (!with_sums)
                continue;
            chunk x = chunk_of_elements(c.dtype, from + CHUNK_BYTES * i);
            sums[2 * i] = _mm512_fmadd_ps(x.v[0], one, sums[2 * i]);
            sums[2 * i + 1] = _mm512_fmadd_ps(x.v[1], one, sums[2 * i + 1]);
        }
    }
    for (uint32_t i = 0; i < c.chunks; i++) {
        store_extremes(c.dtype, &e[i], min + CHUNK * i, max + CHUNK * i);
        fv_store(sum + CHUNK * i, sums[2 * i]);
        fv_store(sum + CHUNK * i + FV_LANES, sums[2 * i + 1]);
    }
}

/* 64 integers as bytes; every four that are neighbours stand side by side, in another order. */
SIMD __m512i avx512_bytes_of(const fv *x) {
    __m512i a = _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]));
    __m512i b = _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]));
    return _mm512_packs_epi16(a, b);
}

/* Codes of two chunks; those of two bits are clamped. Groups of four codes are brought into their
 * order: the one that stands as number 4 l + i is number 4 i + l. */
SIMD void avx512_store_column_codes(uint32_t bits, uint8_t *to, const fv *x) {
    __m512i bytes = avx512_bytes_of(x);
    if (bits == 8) {
        const __m512i order =
            _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
    } else if (bits == 4) {
        const __m512i order =
            _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x3e3c2e2c, 0x1e1c0e0c, 0x3a382a28, 0x1a180a08,
                             0x36342624, 0x16140604, 0x32302220, 0x12100200);
        __m512i pairs = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001));
        _mm256_storeu_si256((void *)to,
                            _mm512_castsi512_si256(_mm512_permutexvar_epi8(order, pairs)));
    } else {
        const __m512i order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3c2c1c0c,
                                               0x38281808, 0x34241404, 0x30201000);
        bytes = _mm512_max_epi8(bytes, _mm512_setzero_si512());
        bytes = _mm512_min_epi8(bytes, _mm512_set1_epi8(3));
        __m512i pairs = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x0401));
        __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
        _mm_storeu_si128((void *)to, _mm512_castsi512_si128(_mm512_permutexvar_epi8(order, fours)));
    }
}

/* Codes of columns, none of which needs clamping, or of two bits. `m` and `by` as in channel_stats.
 */
SIMD void code_columns(columns c, uint32_t bits, const uint8_t *first, const float *m,
                       const float *by, uint8_t *to, uint32_t code_stride_bytes) {
    const uint8_t *from = first;
    fv offset[CHUNK_FVS * MAX_COLUMN_CHUNKS], inverse[CHUNK_FVS * MAX_COLUMN_CHUNKS];
    for (uint32_t i = 0; i < CHUNK_FVS * c.chunks; i++) {
        offset[i] = fv_load(m + FV_LANES * i);
        inverse[i] = fv_load(by + FV_LANES * i);
    }
    const fv one = fv_opaque(1);
    for (uint32_t r = 0; r < c.rows; r++, from += c.stride_bytes, to += code_stride_bytes) {
        fetch_next_columns(c, first, r, true);
        fetch(true, (uintptr_t)to + (size_t)code_stride_bytes * rows_ahead(code_stride_bytes),
              CHUNK * bits / 8 * c.chunks);
        for (uint32_t i = 0; i < c.chunks; i += 2) {
            fv x[4];
            for (uint32_t j = 0; j < 4; j++) {
                x[j] = fv_of_elements(c.dtype, from + CHUNK_BYTES * i + 2 * FV_LANES * j);
                x[j] = _mm512_fmsub_ps(x[j], one, offset[2 * i + j]);
                x[j] = fv_mul(x[j], inverse[2 * i + j]);
            }
            avx512_store_column_codes(bits, to + CHUNK * bits / 8 * i, x);
        }
    }
}

/* 16 codes as floats. Of few bits: each is brought to the lower end of a lane, with anything above
 * it, and chooses among the values, which stand there as often as they fit. */
SIMD fv avx512_column_values(uint32_t bits, const uint8_t *from) {
    if (bits == 8)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
    int64_t codes = 0;
    memcpy(&codes, from, FV_LANES * bits / 8);
    const __m512i shifts =
        bits == 4 ? _mm512_set_epi32(60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0)
                  : _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const fv values = bits == 4
                          ? _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
                          : _mm512_set_ps(3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0);
    __m512i index = _mm512_multishift_epi64_epi8(shifts, _mm512_set1_epi64(codes));
    return _mm512_permutexvar_ps(index, values);
}

/* Decodes columns: the product is exact, so it may be one operation with the sum. */
SIMD void decode_columns(columns c, uint32_t bits, const uint8_t *codes, uint32_t code_stride_bytes,
                         const float *m, const float *by, uint8_t *first) {
    uint8_t *to = first;
    fv offset[CHUNK_FVS * MAX_COLUMN_CHUNKS], scale[CHUNK_FVS * MAX_COLUMN_CHUNKS];
    for (uint32_t i = 0; i < CHUNK_FVS * c.chunks; i++) {
        offset[i] = fv_load(m + FV_LANES * i);
        scale[i] = fv_load(by + FV_LANES * i);
    }
    for (uint32_t r = 0; r < c.rows; r++, to += c.stride_bytes, codes += code_stride_bytes) {
        fetch(false, (uintptr_t)codes + (size_t)code_stride_bytes * rows_ahead(code_stride_bytes),
              CHUNK * bits / 8 * c.chunks);
        fetch(true,
              fetched_row(first, c.stride_bytes, c.row_bytes, r + rows_ahead(c.row_bytes), c.rows),
              CHUNK_BYTES * c.chunks);
        for (uint32_t i = 0; i < c.chunks; i++) {
            chunk x;
            for (uint32_t j = 0; j < CHUNK_FVS; j++) {
                uint32_t at = 2 * i + j;
                fv value = avx512_column_values(bits, codes + FV_LANES * bits / 8 * at);
                x.v[j] = _mm512_fmadd_ps(value, scale[at], offset[at]);
            }
            chunk_store_elements(c.dtype, to + CHUNK_BYTES * i, x);
        }
    }
}

#endif
