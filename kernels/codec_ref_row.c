/* fp8t, i8v, i4s: one scale for each block of a row. fp8s: one scale for all, from the engine. */
#include "kernels/codec_ref.h"

/*
 * What tells these codecs apart: x is coded as quantise(x / s), and means value(code) * s. The two
 * functions that take a scaled_codec are inlined where it is a constant, and so are the calls
 * through it.
 */
typedef struct scaled_codec {
    float largest; /* s = f16(amax / largest) */
    uint32_t bits;
    uint8_t (*quantise)(float x, uint32_t *saturated);
    float (*value)(uint8_t code);
} scaled_codec;

static uint8_t quantise_e4m3(float x, uint32_t *saturated) {
    *saturated += kvt_e4m3_saturates(x) ? 1 : 0;
    return kvt_e4m3_of_float(x);
}

static uint8_t quantise_e5m2(float x, uint32_t *saturated) {
    *saturated += kvt_e5m2_saturates(x) ? 1 : 0;
    return kvt_e5m2_of_float(x);
}

static inline uint8_t quantise_integer(float x, int32_t largest, uint32_t *saturated) {
    int32_t code = kvt_rint(x), clamped = kvt_clamp(code, -largest, largest);
    *saturated += code != clamped;
    return (uint8_t)clamped;
}

static uint8_t quantise_i8(float x, uint32_t *saturated) {
    return quantise_integer(x, 127, saturated);
}

static uint8_t quantise_i4(float x, uint32_t *saturated) {
    return quantise_integer(x, 7, saturated);
}

static float value_i8(uint8_t code) {
    return (float)kvt_signed_code(code, 8);
}

static float value_i4(uint8_t code) {
    return (float)kvt_signed_code(code, 4);
}

static const scaled_codec fp8t = {448, 8, quantise_e4m3, kvt_float_of_e4m3};
static const scaled_codec i8v = {127, 8, quantise_i8, value_i8};
static const scaled_codec i4s = {7, 4, quantise_i4, value_i4};

#define INLINED static inline __attribute__((always_inline))

/* One row: a scale for each block, and codes. */
INLINED void encode_row(const scaled_codec *codec, const float *x, uint32_t dim, uint32_t block,
                        uint8_t *scales, uint8_t *codes_at, uint32_t *saturated) {
    uint8_t codes[KVT_MAX_HEAD_DIM];
    for (uint32_t first = 0; first < dim; first += block) {
        uint32_t end = first + block < dim ? first + block : dim;
        float amax = 0;
        for (uint32_t d = first; d < end; d++)
            amax = kvt_abs(x[d]) > amax ? kvt_abs(x[d]) : amax;
        uint16_t scale = kvt_scale_of_float(kvt_div(amax, codec->largest));
        kvt_put_half(scales, first / block, scale);
        float inverse = kvt_inverse(kvt_float_of_half(scale));
        for (uint32_t d = first; d < end; d++)
            codes[d] = codec->quantise(kvt_mul(x[d], inverse), saturated);
    }
    kvt_ref_pack(codec->bits, codes, dim, codes_at);
}

INLINED bool encode_scaled(const scaled_codec *codec, const kvt_unit *unit, const void *from,
                           size_t stride_bytes, void *to, uint32_t *saturated) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint32_t block = kvt_row_block(unit->codec, unit->dim), clamped = 0;
    uint8_t *out = to;
    memset(out, 0, at.bytes);
    for (uint32_t r = 0; r < unit->rows; r++) {
        float row[KVT_MAX_HEAD_DIM];
        if (!kvt_ref_load_row(unit, from, stride_bytes, r, row))
            return false;
        encode_row(codec, row, unit->dim, block, out + at.row_stats_offset + r * at.row_stats_bytes,
                   out + at.codes_offset + r * at.row_code_bytes, &clamped);
    }
    *saturated += clamped;
    return true;
}

INLINED void decode_scaled(const scaled_codec *codec, const kvt_unit *unit, const void *from,
                           uint32_t first_row, uint32_t n_rows, void *to, size_t stride_bytes) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint32_t block = kvt_row_block(unit->codec, unit->dim);
    const uint8_t *in = from;
    uint8_t *out = to;
    for (uint32_t r = first_row; r < first_row + n_rows; r++, out += stride_bytes) {
        uint8_t codes[KVT_MAX_HEAD_DIM];
        float row[KVT_MAX_HEAD_DIM];
        const uint8_t *scales = in + at.row_stats_offset + r * at.row_stats_bytes;
        kvt_ref_unpack(codec->bits, in + at.codes_offset + r * at.row_code_bytes, unit->dim, codes);
        for (uint32_t b = 0; b * block < unit->dim; b++) {
            float scale = kvt_get_half(scales, b);
            uint32_t first = b * block, end = first + block < unit->dim ? first + block : unit->dim;
            for (uint32_t d = first; d < end; d++)
                row[d] = kvt_mul(codec->value(codes[d]), scale);
        }
        kvt_ref_store_row(unit, row, out);
    }
}

bool kvt_ref_encode_fp8t(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                         uint32_t *saturated) {
    return encode_scaled(&fp8t, unit, from, stride_bytes, to, saturated);
}

void kvt_ref_decode_fp8t(const kvt_unit *unit, const void *from, uint32_t first_row,
                         uint32_t n_rows, void *to, size_t stride_bytes) {
    decode_scaled(&fp8t, unit, from, first_row, n_rows, to, stride_bytes);
}

bool kvt_ref_encode_i8v(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                        uint32_t *saturated) {
    return encode_scaled(&i8v, unit, from, stride_bytes, to, saturated);
}

void kvt_ref_decode_i8v(const kvt_unit *unit, const void *from, uint32_t first_row, uint32_t n_rows,
                        void *to, size_t stride_bytes) {
    decode_scaled(&i8v, unit, from, first_row, n_rows, to, stride_bytes);
}

bool kvt_ref_encode_i4s(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                        uint32_t *saturated) {
    return encode_scaled(&i4s, unit, from, stride_bytes, to, saturated);
}

void kvt_ref_decode_i4s(const kvt_unit *unit, const void *from, uint32_t first_row, uint32_t n_rows,
                        void *to, size_t stride_bytes) {
    decode_scaled(&i4s, unit, from, first_row, n_rows, to, stride_bytes);
}

bool kvt_ref_encode_fp8s(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                         uint32_t *saturated) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    int e4m3 = unit->codec == KVT_CODEC_FP8S_E4M3;
    uint32_t clamped = 0;
    uint8_t *out = to;
    memset(out, 0, at.bytes);
    for (uint32_t r = 0; r < unit->rows; r++, out += at.row_code_bytes) {
        float row[KVT_MAX_HEAD_DIM];
        if (!kvt_ref_load_row(unit, from, stride_bytes, r, row))
            return false;
        for (uint32_t d = 0; d < unit->dim; d++) {
            float x = kvt_div(row[d], unit->scale);
            out[d] = e4m3 ? quantise_e4m3(x, &clamped) : quantise_e5m2(x, &clamped);
        }
    }
    *saturated += clamped;
    return true;
}

void kvt_ref_decode_fp8s(const kvt_unit *unit, const void *from, uint32_t first_row,
                         uint32_t n_rows, void *to, size_t stride_bytes) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    int e4m3 = unit->codec == KVT_CODEC_FP8S_E4M3;
    const uint8_t *in = (const uint8_t *)from + (size_t)first_row * at.row_code_bytes;
    uint8_t *out = to;
    for (uint32_t r = 0; r < n_rows; r++, in += at.row_code_bytes, out += stride_bytes) {
        float row[KVT_MAX_HEAD_DIM];
        for (uint32_t d = 0; d < unit->dim; d++) {
            float value = e4m3 ? kvt_float_of_e4m3(in[d]) : kvt_float_of_e5m2(in[d]);
            row[d] = kvt_mul(value, unit->scale);
        }
        kvt_ref_store_row(unit, row, out);
    }
}
