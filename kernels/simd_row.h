/*
 * simd_row.h - fp8t, i8v, i4s and fp8s in the words of simd.h. Included by cpu_NAME.c behind them.
 *
 * Encoding goes over some rows at a time: the largest magnitude of every block, as an integer (the
 * bits of magnitudes have the order of the magnitudes, and one comparison refuses); then the scale
 * arithmetic of all blocks, a vector at a time; then the codes. Whether any element is clamped is
 * seen at the largest one, because multiplication and rounding are monotonic: hardly any batch has
 * to clamp and count.
 */
#include "kernels/simd.h"

enum {
    BATCH_ROWS = 32,
    BATCH_BLOCKS = BATCH_ROWS * MAX_CHUNKS, /* i4s has a block in each chunk */
};

/* Rows that are gone over together: many, since the scale arithmetic is a long chain, with which
 * only more of it overlaps; but they stay in the nearest cache. */
SIMD uint32_t batch_rows(uint32_t dim) {
    uint32_t fit = 4096 / dim;
    return fit < 8 ? 8 : fit < BATCH_ROWS ? fit : (uint32_t)BATCH_ROWS;
}

/* One codec; always a constant, and every function that takes one is inlined. */
typedef struct row_codec {
    enum { ROW_I8, ROW_I4, ROW_FP8 } kind;
    int mantissa;  /* of fp8 */
    float largest; /* s = f16(amax / largest) */
    float
        clamp_limit; /* from here on a magnitude is clamped; fp8: e4m3 above it, e5m2 from it on */
    enum { EACH_BLOCK, ONE_DIVIDED, ONE_INVERSE } scales; /* of a block; of the unit */
} row_codec;

typedef struct row_batch {
    uint16_t amax[BATCH_BLOCKS];
    uint16_t scale[BATCH_BLOCKS];
    float inverse[BATCH_BLOCKS];
    bool saturates;
} row_batch;

#ifndef KVT_SIMD_MAGNITUDES
/* The largest magnitudes so far of the 32 places of a chunk, as bits. */
typedef struct magnitudes {
    wv a, b;
} magnitudes;

SIMD magnitudes no_magnitudes(void) {
    return (magnitudes){wv_set(0), wv_set(0)};
}
SIMD magnitudes larger_magnitudes(magnitudes m, const uint8_t *at) {
    const wv mask = wv_set(0x7fff);
    m.a = wv_max(m.a, wv_and(wv_load(at), mask));
    m.b = wv_max(m.b, wv_and(wv_load(at + 32), mask));
    return m;
}
SIMD uint16_t largest_magnitude(magnitudes m) {
    return wv_largest(wv_max(m.a, m.b));
}
#endif

/* Largest magnitude of each block of a row, as bits. Returns the number of blocks. */
SIMD uint32_t row_amax(const uint8_t *row, uint32_t dim, uint32_t block, uint16_t *amax) {
    uint8_t room[CHUNK_BYTES];
    uint32_t n = 0, first = 0;
#ifdef KVT_SIMD_FOUR_CHUNKS
    for (; block == CHUNK && first + 4 * CHUNK <= dim; first += 4 * CHUNK, n += 4)
        largest_of_four_chunks(row + 2 * first, amax + n);
#endif
    for (; first < dim; first += block) {
        uint32_t left = dim - first, elements = left < block ? left : block, d = 0;
        magnitudes largest = no_magnitudes();
        for (; d + CHUNK <= elements; d += CHUNK)
            largest = larger_magnitudes(largest, row + 2 * (first + d));
        if (d < elements)
            largest =
                larger_magnitudes(largest, padded_source(row + 2 * (first + d), 2 * (elements - d),
                                                         CHUNK_BYTES, room));
        amax[n++] = largest_magnitude(largest);
    }
    return n;
}

SIMD bool fv_any_clamped(row_codec codec, fv magnitude) {
    fv limit = fv_set(codec.clamp_limit);
    return codec.kind == ROW_FP8 && codec.mantissa == 3 ? fv_count_above(magnitude, limit) != 0
                                                        : fv_count_not_below(magnitude, limit) != 0;
}

/* x as a multiple of the scale. */
SIMD fv fv_scaled(row_codec codec, fv x, fv scale_or_inverse) {
    return codec.scales == ONE_DIVIDED ? fv_div(x, scale_or_inverse) : fv_mul(x, scale_or_inverse);
}

/* From the magnitudes of n blocks their scales; amax has zeros up to a whole vector. */
SIMD void batch_scales(row_codec codec, uint32_t dtype, float scale, uint32_t n, row_batch *batch) {
    batch->saturates = false;
    for (uint32_t i = 0; i < n; i += FV_LANES) {
        fv amax = fv_of_elements(dtype, batch->amax + i), inverse;
        if (codec.scales == EACH_BLOCK) {
            fv s = fv_div(amax, fv_set(codec.largest));
            /* f16() of what is at least 2^-24 is not 0, and below that the format says 2^-24. */
            s = fv_if_positive(s, fv_max(s, fv_set(0x1p-24f)));
            fv_store_halves(batch->scale + i, s);
            s = fv_of_halves(batch->scale + i);
            inverse = fv_if_positive(s, fv_div(fv_set(1), s));
        } else {
            inverse = fv_set(codec.scales == ONE_INVERSE ? 1 / scale : scale);
        }
        fv_store(batch->inverse + i, inverse);
        batch->saturates |= fv_any_clamped(codec, fv_scaled(codec, amax, inverse));
    }
}

SIMD uint32_t chunk_clamp(row_codec codec, chunk *x) {
    uint32_t clamped = 0;
    fv limit = fv_set(codec.clamp_limit);
    for (int i = 0; i < CHUNK_FVS; i++) {
        fv magnitude = fv_abs(x->v[i]);
        if (codec.kind == ROW_FP8) { /* the conversion clamps */
            clamped += codec.mantissa == 3 ? fv_count_above(magnitude, limit)
                                           : fv_count_not_below(magnitude, limit);
        } else {
            clamped += fv_count_not_below(magnitude, limit);
            x->v[i] = fv_min(fv_max(x->v[i], fv_set(-codec.largest)), fv_set(codec.largest));
        }
    }
    return clamped;
}

SIMD void chunk_store_codes(row_codec codec, uint8_t *to, chunk x) {
    if (codec.kind == ROW_FP8)
        chunk_store_fp8(to, x, codec.mantissa);
    else if (codec.kind == ROW_I8)
        chunk_store_i8(to, x);
    else
        chunk_store_i4(to, x);
}

/* Codes of one row. Returns how many elements were clamped. */
SIMD uint32_t row_codes(row_codec codec, uint32_t dtype, bool saturates, const uint8_t *row,
                        uint32_t dim, uint32_t block, const float *inverse, uint8_t *to) {
    const uint32_t shift = codec.kind == ROW_I4 ? 1 : 0;
    uint8_t room[CHUNK_BYTES], codes[CHUNK];
    uint32_t clamped = 0;
    for (uint32_t first = 0; first < dim; first += block, inverse++) {
        uint32_t end = first + block < dim ? first + block : dim;
        fv by = fv_set(*inverse);
        for (uint32_t d = first; d < end; d += CHUNK) {
            uint32_t elements = end - d < CHUNK ? end - d : (uint32_t)CHUNK;
            chunk x = chunk_of_elements(
                dtype, padded_source(row + 2 * d, 2 * elements, CHUNK_BYTES, room));
            for (int i = 0; i < CHUNK_FVS; i++)
                x.v[i] = fv_scaled(codec, x.v[i], by);
            if (saturates)
                clamped += chunk_clamp(codec, &x);
            if (elements == CHUNK) {
                chunk_store_codes(codec, to + (d >> shift), x);
            } else {
                chunk_store_codes(codec, codes, x);
                copy_few(to + (d >> shift), codes, elements >> shift);
            }
        }
    }
    return clamped;
}

/* A batch: rows done .. done + rows - 1 of the unit. False: an element is refused. */
SIMD bool batch_encode(row_codec codec, const kvt_unit *unit, uint32_t dtype, const uint8_t *from,
                       size_t stride_bytes, uint32_t done, uint32_t rows, uint8_t *stats,
                       uint8_t *codes, uint32_t *clamped) {
    uint32_t ahead = done + batch_rows(unit->dim) + rows_ahead(2 * unit->dim);
    uint32_t block = codec.scales == EACH_BLOCK ? kvt_row_block(unit->codec, unit->dim) : unit->dim;
    uint32_t n = 0, row_code_bytes = kvt_row_code_bytes(unit->codec, unit->dim);
    uint16_t largest = 0;
    row_batch batch;
    for (uint32_t r = 0; r < rows; r++)
        n += row_amax(from + (done + r) * stride_bytes, unit->dim, block, batch.amax + n);
    for (uint32_t i = n; i % FV_LANES; i++)
        batch.amax[i] = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = batch.amax[i] > largest ? batch.amax[i] : largest;
    if (kvt_is_refused(dtype, largest))
        return false;
    batch_scales(codec, dtype, unit->scale, n, &batch);
    if (codec.scales == EACH_BLOCK)
        memcpy(stats, batch.scale, 2 * (size_t)n);
    const float *inverse = batch.inverse;
    for (uint32_t r = 0; r < rows; r++, codes += row_code_bytes, inverse += n / rows) {
        const uint8_t *row = from + (done + r) * stride_bytes;
        fetch_row(false, from, stride_bytes, 2 * unit->dim, ahead + r, unit->rows);
        fetch_codes(true, codes, row_code_bytes);
        if (batch.saturates)
            *clamped += row_codes(codec, dtype, true, row, unit->dim, block, inverse, codes);
        else
            row_codes(codec, dtype, false, row, unit->dim, block, inverse, codes);
    }
    return true;
}

SIMD bool encode_rows(row_codec codec, const kvt_unit *unit, uint32_t dtype, const uint8_t *from,
                      size_t stride_bytes, uint8_t *out, uint32_t *saturated) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint32_t clamped = 0, at_once = batch_rows(unit->dim);
    for (uint32_t r = 0; r < unit->rows; r += at_once) {
        uint32_t rows = unit->rows - r < at_once ? unit->rows - r : at_once;
        if (!batch_encode(codec, unit, dtype, from, stride_bytes, r, rows,
                          out + at.row_stats_offset + r * at.row_stats_bytes,
                          out + at.codes_offset + r * at.row_code_bytes, &clamped))
            return false;
    }
    zero_padding(out, &at, unit->rows);
    *saturated += clamped;
    return true;
}

/* e4m3 with NaNs among the codes: rare, since no encoder writes them. */
static void decode_e4m3_slowly(uint32_t dtype, const uint8_t *codes, float scale, uint8_t *to) {
    for (uint32_t i = 0; i < CHUNK; i++) {
        float x = kvt_mul(kvt_float_of_e4m3(codes[i]), scale);
        kvt_put_half(to, i, kvt_element_of_float(dtype, x));
    }
}

SIMD void chunk_decode(row_codec codec, uint32_t dtype, const uint8_t *codes, float scale,
                       uint8_t *to) {
    if (codec.kind == ROW_I4) {
        chunk_decode_i4(dtype, to, codes, scale);
        return;
    }
    if (codec.kind == ROW_FP8 && codec.mantissa == 3 && chunk_has_e4m3_nan(codes)) {
        decode_e4m3_slowly(dtype, codes, scale, to);
        return;
    }
    chunk x = codec.kind == ROW_I8 ? chunk_of_i8(codes) : chunk_of_fp8(codes, codec.mantissa);
    /* The values of e4m3 come times 2^-8, which is exact. */
    fv by = fv_set(codec.kind == ROW_FP8 && codec.mantissa == 3 ? scale * 256 : scale);
    for (int i = 0; i < CHUNK_FVS; i++)
        x.v[i] = fv_mul(x.v[i], by);
    chunk_store_elements(dtype, to, x);
}

#ifdef KVT_SIMD_FP8_TABLE
/* A table of the elements, if all have the same scale, or else of the values. */
SIMD fp8_table fp8_table_for(row_codec codec, uint32_t dtype, float scale) {
    uint8_t codes[128], words[2 * 128];
    bool own_scales = codec.scales == EACH_BLOCK;
    for (uint32_t i = 0; i < 128; i++)
        codes[i] = (uint8_t)i;
    if (codec.mantissa == 3)
        codes[127] = 0;
    for (uint32_t i = 0; i < 128; i += CHUNK)
        chunk_decode(codec, own_scales ? (uint32_t)KVT_BF16 : dtype, codes + i,
                     own_scales ? 1 : scale, words + 2 * i);
    if (codec.mantissa == 3) /* NaN */
        kvt_put_half(
            words, 127,
            kvt_element_of_float(own_scales ? (uint32_t)KVT_BF16 : dtype, kvt_float_of_e4m3(127)));
    return fp8_table_of(words);
}

/* As many codes of a block as there are whole tables of. Returns how many. */
SIMD uint32_t fp8_decode_by_table(row_codec codec, uint32_t dtype, const fp8_table *table,
                                  const uint8_t *codes, uint32_t n, float scale, uint8_t *to) {
    uint32_t d = 0;
    for (; d + TABLE_CODES <= n; d += TABLE_CODES) {
        if (codec.scales == EACH_BLOCK)
            fp8_table_decode_scaled(table, dtype, to + 2 * d, codes + d, scale);
        else
            fp8_table_decode(table, to + 2 * d, codes + d);
    }
    return d;
}
#else
typedef struct fp8_table {
    char none;
} fp8_table;
#define fp8_decode_by_table(codec, dtype, table, codes, n, scale, to) ((void)(table), 0u)
#endif

SIMD void row_decode(row_codec codec, uint32_t dtype, const fp8_table *table, const uint8_t *codes,
                     uint32_t dim, uint32_t block, const float *scales, uint8_t *to) {
    const uint32_t shift = codec.kind == ROW_I4 ? 1 : 0;
    uint8_t room[CHUNK], elements_room[CHUNK_BYTES];
    for (uint32_t first = 0; first < dim; first += block, scales++) {
        uint32_t end = first + block < dim ? first + block : dim, d = first;
        if (codec.kind == ROW_FP8)
            d += fp8_decode_by_table(codec, dtype, table, codes + first, end - first, *scales,
                                     to + 2 * first);
        for (; d < end; d += CHUNK) {
            uint32_t elements = end - d < CHUNK ? end - d : (uint32_t)CHUNK;
            const uint8_t *at = codes + (d >> shift);
            if (elements == CHUNK) {
                chunk_decode(codec, dtype, at, *scales, to + 2 * d);
            } else {
                at = padded_source(at, elements >> shift, CHUNK >> shift, room);
                chunk_decode(codec, dtype, at, *scales, elements_room);
                copy_few(to + 2 * d, elements_room, 2 * elements);
            }
        }
    }
}

SIMD void decode_rows(row_codec codec, const kvt_unit *unit, uint32_t dtype, const uint8_t *in,
                      uint32_t first_row, uint32_t n_rows, uint8_t *to, size_t stride_bytes) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    bool own_scales = codec.scales == EACH_BLOCK;
    uint32_t block = own_scales ? kvt_row_block(unit->codec, unit->dim) : unit->dim;
    const uint8_t *stats = in + at.row_stats_offset + (size_t)first_row * at.row_stats_bytes;
    const uint8_t *codes = in + at.codes_offset + (size_t)first_row * at.row_code_bytes;
    uint16_t halves[BATCH_BLOCKS] = {0};
    float scales[BATCH_BLOCKS];
    fp8_table table = {0};
    bool asks_ahead = true;
#ifdef KVT_SIMD_FP8_TABLE
    if (codec.kind == ROW_FP8)
        table = fp8_table_for(codec, dtype, unit->scale);
    /* What is only looked up goes as fast as a copy: asking ahead is in the way there. */
    asks_ahead = codec.kind != ROW_FP8 || own_scales;
#endif
    for (uint32_t done = 0; done < n_rows; done += BATCH_ROWS) {
        uint32_t rows = n_rows - done < BATCH_ROWS ? n_rows - done : (uint32_t)BATCH_ROWS;
        uint32_t n_blocks = at.row_stats_bytes / 2;
        if (own_scales) {
            memcpy(halves, stats, (size_t)rows * at.row_stats_bytes);
            for (uint32_t i = 0; i < rows * n_blocks; i += FV_LANES)
                fv_store(scales + i, fv_of_halves(halves + i));
        }
        for (uint32_t r = 0; r < rows; r++, codes += at.row_code_bytes) {
            if (asks_ahead) {
                fetch_codes(false, codes, at.row_code_bytes);
                fetch_row(true, to, stride_bytes, 2 * unit->dim,
                          done + r + rows_ahead(2 * unit->dim), n_rows);
            }
            row_decode(codec, dtype, &table, codes, unit->dim, block,
                       own_scales ? scales + r * n_blocks : &unit->scale,
                       to + (done + r) * stride_bytes);
        }
        stats += rows * at.row_stats_bytes;
    }
}

/* The functions of the path: one for each codec, with all that is constant known. */
#define ROW_ENCODER(name, number, ...)                                                             \
    static bool encode_##name(const kvt_unit *unit, const void *from, size_t stride_bytes,         \
                              void *to, uint32_t *saturated) {                                     \
        const row_codec codec = {__VA_ARGS__};                                                     \
        bool taken;                                                                                \
                                                                                                   \
        FOR_KNOWN_UNIT(                                                                            \
            unit, number,                                                                          \
            taken = encode_rows(codec, &known, known.dtype, from, stride_bytes, to, saturated));   \
        return taken;                                                                              \
    }
#define ROW_DECODER(name, number, ...)                                                             \
    static void decode_##name(const kvt_unit *unit, const void *from, uint32_t first_row,          \
                              uint32_t n_rows, void *to, size_t stride_bytes) {                    \
        const row_codec codec = {__VA_ARGS__};                                                     \
        FOR_KNOWN_UNIT(                                                                            \
            unit, number,                                                                          \
            decode_rows(codec, &known, known.dtype, from, first_row, n_rows, to, stride_bytes));   \
    }

ROW_ENCODER(i8v, KVT_CODEC_I8V, ROW_I8, 0, 127, 127.5f, EACH_BLOCK)
ROW_DECODER(i8v, KVT_CODEC_I8V, ROW_I8, 0, 127, 127.5f, EACH_BLOCK)
ROW_ENCODER(i4s, KVT_CODEC_I4S, ROW_I4, 0, 7, 7.5f, EACH_BLOCK)
ROW_DECODER(i4s, KVT_CODEC_I4S, ROW_I4, 0, 7, 7.5f, EACH_BLOCK)
ROW_ENCODER(fp8t, KVT_CODEC_FP8T, ROW_FP8, 3, 448, 464, EACH_BLOCK)
ROW_DECODER(fp8t, KVT_CODEC_FP8T, ROW_FP8, 3, 448, 464, EACH_BLOCK)
ROW_ENCODER(e4m3_divided, KVT_CODEC_FP8S_E4M3, ROW_FP8, 3, 448, 464, ONE_DIVIDED)
ROW_ENCODER(e4m3_inverse, KVT_CODEC_FP8S_E4M3, ROW_FP8, 3, 448, 464, ONE_INVERSE)
ROW_DECODER(e4m3, KVT_CODEC_FP8S_E4M3, ROW_FP8, 3, 448, 464, ONE_DIVIDED)
ROW_ENCODER(e5m2_divided, KVT_CODEC_FP8S_E5M2, ROW_FP8, 2, 57344, 61440, ONE_DIVIDED)
ROW_ENCODER(e5m2_inverse, KVT_CODEC_FP8S_E5M2, ROW_FP8, 2, 57344, 61440, ONE_INVERSE)
ROW_DECODER(e5m2, KVT_CODEC_FP8S_E5M2, ROW_FP8, 2, 57344, 61440, ONE_DIVIDED)

/* The format divides by the scale of fp8s. By a power of two that is a multiplication, exactly. */
static bool is_power_of_two(float scale) {
    return (kvt_float_bits(scale) & 0x7fffffu) == 0;
}

static bool encode_e4m3(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                        uint32_t *saturated) {
    return is_power_of_two(unit->scale)
               ? encode_e4m3_inverse(unit, from, stride_bytes, to, saturated)
               : encode_e4m3_divided(unit, from, stride_bytes, to, saturated);
}

static bool encode_e5m2(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                        uint32_t *saturated) {
    return is_power_of_two(unit->scale)
               ? encode_e5m2_inverse(unit, from, stride_bytes, to, saturated)
               : encode_e5m2_divided(unit, from, stride_bytes, to, saturated);
}
