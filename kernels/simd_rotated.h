/*
 * simd_rotated.h - w4v, w2v in the words of simd.h. Included by cpu_NAME.c behind them.
 *
 * A row is padded to whole vectors of 16 integers by the format itself. The transform goes through
 * the 16 of each vector, then through vectors at distance 1, 2, 4, as far as the rotation block
 * reaches. Both are exact integers, so their order is free.
 */
#include "kernels/simd.h"

enum { ROW_BLOCK_WVS = KVT_ROW_BLOCK / 16 };

/* One codec; always a constant, and every function that takes one is inlined. */
typedef struct rotated_codec {
    uint32_t bits;
    int32_t sixteenths;
    float scale;
} rotated_codec;

/* -1 where element i of a scale block changes its sign. */
#define SIGN(word, i) ((int16_t) - (int16_t)((word) >> (i)&1u))
#define SIGN8(word, i)                                                                             \
    SIGN(word, i), SIGN(word, i + 1), SIGN(word, i + 2), SIGN(word, i + 3), SIGN(word, i + 4),     \
        SIGN(word, i + 5), SIGN(word, i + 6), SIGN(word, i + 7)
#define SIGN32(word) SIGN8(word, 0), SIGN8(word, 8), SIGN8(word, 16), SIGN8(word, 24)
static const int16_t signs[KVT_ROW_BLOCK] = {SIGN32(0x243f6a88u), SIGN32(0x85a308d3u),
                                             SIGN32(0x13198a2eu), SIGN32(0x03707344u)};

/* Levels of w4v by code, and of w2v. */
static const int8_t levels4[16] = {6,  18,  31,  44,  58,  75,  96,  127,
                                   -6, -18, -31, -44, -58, -75, -96, -127};
static const int8_t levels2[16] = {38, 127, -38, -127};

/* Vectors at a distance of `step` added and subtracted; n of them. */
SIMD void transform_across(wv *y, uint32_t n, uint32_t step) {
    for (uint32_t i = 0; i < n; i += 2 * step) {
        for (uint32_t j = i; j < i + step; j++) {
            wv a = y[j], b = y[j + step];
            y[j] = wv_add(a, b);
            y[j + step] = wv_sub(a, b);
        }
    }
}

/* Each `rotation` (in vectors) of the n vectors. */
SIMD void transform(wv *y, uint32_t n, uint32_t rotation) {
    for (uint32_t i = 0; i < n; i++)
        y[i] = wv_transform(y[i]);
    if (n == ROW_BLOCK_WVS && rotation == ROW_BLOCK_WVS) { /* the loops' bounds are constant */
        transform_across(y, ROW_BLOCK_WVS, 1);
        transform_across(y, ROW_BLOCK_WVS, 2);
        transform_across(y, ROW_BLOCK_WVS, 4);
    } else {
        for (uint32_t step = 1; step < rotation; step *= 2)
            transform_across(y, n, step);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Encoding
 * ---------------------------------------------------------------------------------------------- */

/* Elements of a scale block as bits, with zeros up to whole chunks. */
SIMD void load_block(const uint8_t *from, uint32_t elements, uint32_t n_chunks, wv *x) {
    uint8_t room[CHUNK_BYTES];
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint32_t bytes = 2 * chunk_elements(elements, c);
        const uint8_t *at = padded_source(from + CHUNK_BYTES * c, bytes, CHUNK_BYTES, room);
        x[2 * c] = wv_load(at);
        x[2 * c + 1] = wv_load(at + 32);
    }
}

/* Thresholds of a block from its largest magnitude; n of them, at most 8. The quotient is exact: it
 * is below 2^15, and what is no integer is 1 / 127 from one at least. */
SIMD void rotated_thresholds(rotated_codec codec, int32_t max, int16_t *thresholds) {
    uint32_t n = codec.bits == 4 ? 7 : 1;
    for (uint32_t i = 0; i < n; i++) {
        int32_t border = codec.bits == 4 ? kvt_w4v_border(i) : kvt_w2v_border();
        thresholds[i] = (int16_t)kvt_rotated_threshold(border, codec.sixteenths, max);
    }
}

SIMD wv rotated_codes(rotated_codec codec, wv y, const wv *thresholds) {
    wv magnitude = wv_abs(y);
    wv minus = wv_and(wv_above(wv_set(0), y), wv_set(codec.bits == 4 ? -8 : -2));
    for (uint32_t i = 0; i < (codec.bits == 4 ? 7u : 1u); i++)
        minus = wv_add(minus, wv_above(magnitude, thresholds[i]));
    return wv_sub(wv_set(0), minus);
}

SIMD void store_rotated(rotated_codec codec, uint8_t *to, wv a, wv b) {
    if (codec.bits == 4) {
        wv_store_nibbles(to, a, b);
    } else {
        uint8_t nibbles[CHUNK / 2];
        wv_store_nibbles(nibbles, a, b);
        narrow_nibbles(to, nibbles);
    }
}

/* Codes of a scale block whose magnitudes are up to amax. Returns the largest one of the transform.
 */
SIMD int32_t encode_rotated_block(rotated_codec codec, uint32_t dtype, const uint8_t *from,
                                  uint32_t elements, uint32_t rotation, float amax, uint8_t *to) {
    uint32_t padded = kvt_pad16(elements), n_chunks = (padded + CHUNK - 1) / CHUNK;
    uint8_t room[CHUNK_BYTES], codes[CHUNK];
    wv y[ROW_BLOCK_WVS], max = wv_set(0), thresholds[7];
    fv by = fv_set(kvt_div(255.0f, amax));
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint32_t bytes = 2 * chunk_elements(elements, c);
        chunk x = chunk_of_elements(
            dtype, padded_source(from + CHUNK_BYTES * c, bytes, CHUNK_BYTES, room));
        for (int i = 0; i < CHUNK_FVS; i++)
            x.v[i] = fv_mul(x.v[i], by);
        chunk_round_words(x, &y[2 * c], &y[2 * c + 1]);
        y[2 * c] = wv_negate(y[2 * c], wv_load(signs + CHUNK * c));
        y[2 * c + 1] = wv_negate(y[2 * c + 1], wv_load(signs + CHUNK * c + 16));
    }
    transform(y, padded / 16, rotation / 16);
    for (uint32_t i = 0; i < padded / 16; i++)
        max = wv_max(max, wv_abs(y[i]));
    int32_t largest = wv_largest(max);
    int16_t numbers[7];
    rotated_thresholds(codec, largest, numbers);
    for (uint32_t i = 0; i < (codec.bits == 4 ? 7u : 1u); i++)
        thresholds[i] = wv_set(numbers[i]);
    for (uint32_t c = 0; c < n_chunks; c++) {
        wv a = rotated_codes(codec, y[2 * c], thresholds);
        wv b = rotated_codes(codec, y[2 * c + 1], thresholds);
        uint32_t code_bytes = chunk_elements(padded, c) * codec.bits / 8;
        uint32_t at = CHUNK * c * codec.bits / 8;
        if (code_bytes == CHUNK * codec.bits / 8) {
            store_rotated(codec, to + at, a, b);
        } else {
            store_rotated(codec, codes, a, b);
            copy_few(to + at, codes, code_bytes);
        }
    }
    return largest;
}

/* Largest magnitude of a scale block, as bits. */
SIMD uint16_t rotated_amax(const uint8_t *from, uint32_t elements) {
    uint32_t n_chunks = (elements + CHUNK - 1) / CHUNK;
    wv x[ROW_BLOCK_WVS], largest = wv_set(0);
    load_block(from, elements, n_chunks, x);
    for (uint32_t i = 0; i < 2 * n_chunks; i++)
        largest = wv_max(largest, wv_and(x[i], wv_set(0x7fff)));
    return wv_largest(largest);
}

/* A row: its scales and codes. False: an element is refused. */
SIMD bool encode_rotated_row(rotated_codec codec, uint32_t dtype, const uint8_t *row, uint32_t dim,
                             uint32_t rotation, uint8_t *scales, uint8_t *to) {
    float per_element = kvt_div(codec.scale, (float)(int32_t)rotation);
    for (uint32_t first = 0; first < dim; first += KVT_ROW_BLOCK) {
        uint32_t elements = dim - first < KVT_ROW_BLOCK ? dim - first : (uint32_t)KVT_ROW_BLOCK;
        uint8_t *codes = to + first * codec.bits / 8;
        uint16_t bits = rotated_amax(row + 2 * first, elements), scale = 0;
        if (kvt_is_refused(dtype, bits))
            return false;
        float amax = kvt_float_of_element(dtype, bits);
        if (amax < KVT_ROTATED_MIN) {
            memset(codes, 0, kvt_pad16(elements) * codec.bits / 8);
        } else {
            int32_t max = elements == KVT_ROW_BLOCK && rotation == KVT_ROW_BLOCK
                              ? encode_rotated_block(codec, dtype, row + 2 * first, KVT_ROW_BLOCK,
                                                     KVT_ROW_BLOCK, amax, codes)
                              : encode_rotated_block(codec, dtype, row + 2 * first, elements,
                                                     rotation, amax, codes);
            scale = kvt_half_of_float(kvt_mul(kvt_mul((float)max, amax), per_element));
        }
        kvt_put_half(scales, first / KVT_ROW_BLOCK, scale);
    }
    return true;
}

SIMD bool encode_rotated(rotated_codec codec, const kvt_unit *unit, uint32_t dtype,
                         const uint8_t *from, size_t stride_bytes, uint8_t *out) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint32_t rotation = kvt_rotation_block(unit->dim);
#ifdef KVT_SIMD_BLOCK_128
    if (codec.bits == 4 && unit->dim % KVT_ROW_BLOCK == 0) {
        bool taken = encode_blocks_128(unit, dtype, from, stride_bytes, out + at.row_stats_offset,
                                       out + at.codes_offset);
        if (taken)
            zero_padding(out, &at, unit->rows);
        return taken;
    }
#endif
    for (uint32_t r = 0; r < unit->rows; r++) {
        fetch_row(false, from, stride_bytes, 2 * unit->dim, r + rows_ahead(2 * unit->dim),
                  unit->rows);
        fetch_codes(true, out + at.codes_offset + r * at.row_code_bytes, at.row_code_bytes);
        if (!encode_rotated_row(codec, dtype, from + r * stride_bytes, unit->dim, rotation,
                                out + at.row_stats_offset + r * at.row_stats_bytes,
                                out + at.codes_offset + r * at.row_code_bytes))
            return false;
    }
    zero_padding(out, &at, unit->rows);
    return true;
}

/* ------------------------------------------------------------------------------------------------
 * Decoding
 * ---------------------------------------------------------------------------------------------- */

SIMD void load_levels(rotated_codec codec, const uint8_t *codes, wv *a, wv *b) {
    uint8_t nibbles[CHUNK / 2];
    if (codec.bits == 4) {
        wv_lookup_nibbles(codes, levels4, a, b);
    } else {
        widen_nibbles(nibbles, codes);
        wv_lookup_nibbles(nibbles, levels2, a, b);
    }
}

SIMD void decode_rotated_block(rotated_codec codec, uint32_t dtype, const uint8_t *codes,
                               uint32_t elements, uint32_t rotation, float scale, uint8_t *to) {
    uint32_t padded = kvt_pad16(elements), n_chunks = (padded + CHUNK - 1) / CHUNK;
    uint8_t room[CHUNK_BYTES];
    wv w[ROW_BLOCK_WVS];
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint32_t code_bytes = chunk_elements(padded, c) * codec.bits / 8;
        load_levels(codec,
                    padded_source(codes + CHUNK * c * codec.bits / 8, code_bytes,
                                  CHUNK * codec.bits / 8, room),
                    &w[2 * c], &w[2 * c + 1]);
    }
    transform(w, padded / 16, rotation / 16);
    fv by = fv_set(scale), most = fv_set(KVT_HALF_MAX), least = fv_set(-KVT_HALF_MAX);
    for (uint32_t c = 0; CHUNK * c < elements; c++) {
        uint32_t n = chunk_elements(elements, c);
        chunk x = chunk_of_words(wv_negate(w[2 * c], wv_load(signs + CHUNK * c)),
                                 wv_negate(w[2 * c + 1], wv_load(signs + CHUNK * c + 16)));
        for (int i = 0; i < CHUNK_FVS; i++)
            x.v[i] = fv_max(fv_min(fv_mul(x.v[i], by), most), least);
        if (n == CHUNK) {
            chunk_store_elements(dtype, to + CHUNK_BYTES * c, x);
        } else {
            chunk_store_elements(dtype, room, x);
            copy_few(to + CHUNK_BYTES * c, room, 2 * n);
        }
    }
}

SIMD void decode_whole_block(rotated_codec codec, uint32_t dtype, const uint8_t *codes, float scale,
                             uint8_t *to) {
#ifdef KVT_SIMD_BLOCK_128
    if (codec.bits == 4 && block_128_fits(scale)) {
        decode_block_128(dtype, codes, scale, to);
        return;
    }
#endif
    decode_rotated_block(codec, dtype, codes, KVT_ROW_BLOCK, KVT_ROW_BLOCK, scale, to);
}

SIMD void decode_rotated(rotated_codec codec, const kvt_unit *unit, uint32_t dtype,
                         const uint8_t *in, uint32_t first_row, uint32_t n_rows, uint8_t *to,
                         size_t stride_bytes) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint32_t rotation = kvt_rotation_block(unit->dim);
    const uint8_t *first_to = to;
    for (uint32_t r = first_row; r < first_row + n_rows; r++, to += stride_bytes) {
        const uint8_t *scales = in + at.row_stats_offset + r * at.row_stats_bytes;
        const uint8_t *codes = in + at.codes_offset + r * at.row_code_bytes;
        fetch_codes(false, codes, at.row_code_bytes);
        fetch_row(true, first_to, stride_bytes, 2 * unit->dim,
                  r - first_row + rows_ahead(2 * unit->dim), n_rows);
        for (uint32_t first = 0; first < unit->dim; first += KVT_ROW_BLOCK) {
            uint32_t left = unit->dim - first;
            const uint8_t *block = codes + first * codec.bits / 8;
            float scale =
                kvt_mul(kvt_get_half(scales, first / KVT_ROW_BLOCK), KVT_ROTATED_SCALE_DOWN);
            if (left >= KVT_ROW_BLOCK && rotation == KVT_ROW_BLOCK)
                decode_whole_block(codec, dtype, block, scale, to + 2 * first);
            else
                decode_rotated_block(codec, dtype, block,
                                     left < KVT_ROW_BLOCK ? left : (uint32_t)KVT_ROW_BLOCK,
                                     rotation, scale, to + 2 * first);
        }
    }
}

#define ROTATED_CODEC(name, number, ...)                                                           \
    static bool encode_##name(const kvt_unit *unit, const void *from, size_t stride_bytes,         \
                              void *to, uint32_t *saturated) {                                     \
        const rotated_codec codec = {__VA_ARGS__};                                                 \
        bool taken;                                                                                \
        (void)saturated;                                                                           \
        FOR_KNOWN_UNIT(unit, number,                                                               \
                       taken =                                                                     \
                           encode_rotated(codec, &known, known.dtype, from, stride_bytes, to));    \
        return taken;                                                                              \
    }                                                                                              \
    static void decode_##name(const kvt_unit *unit, const void *from, uint32_t first_row,          \
                              uint32_t n_rows, void *to, size_t stride_bytes) {                    \
        const rotated_codec codec = {__VA_ARGS__};                                                 \
        FOR_KNOWN_UNIT(unit, number,                                                               \
                       decode_rotated(codec, &known, known.dtype, from, first_row, n_rows, to,     \
                                      stride_bytes));                                              \
    }

ROTATED_CODEC(w4v, KVT_CODEC_W4V, 4, KVT_W4V_SIXTEENTHS, KVT_W4V_SCALE)
ROTATED_CODEC(w2v, KVT_CODEC_W2V, 2, KVT_W2V_SIXTEENTHS, KVT_W2V_SCALE)
