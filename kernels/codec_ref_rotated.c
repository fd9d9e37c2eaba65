/* w4v, w2v: each row is spread by random signs and a Walsh-Hadamard transform, so that an outlier
 * becomes a little of everything, and what is coded is close to normally distributed. */
#include "kernels/codec_ref.h"

typedef struct rotated_codec {
    uint32_t bits; /* one for the sign, the others for the level of the magnitude */
    int32_t sixteenths;
    float scale;
} rotated_codec;

static rotated_codec rotated_codec_of(uint32_t codec) {
    rotated_codec w4v = {4, KVT_W4V_SIXTEENTHS, KVT_W4V_SCALE};
    rotated_codec w2v = {2, KVT_W2V_SIXTEENTHS, KVT_W2V_SCALE};
    return codec == KVT_CODEC_W4V ? w4v : w2v;
}

static int32_t level(const rotated_codec *codec, uint32_t i) {
    return codec->bits == 4 ? kvt_w4v_level(i) : kvt_w2v_level(i);
}

static uint8_t quantise(const rotated_codec *codec, const int32_t *thresholds, int32_t y) {
    int32_t magnitude = y < 0 ? -y : y;
    uint32_t sign = 1u << (codec->bits - 1), code = y < 0 ? sign : 0;
    for (uint32_t i = 0; i + 1 < sign; i++)
        code += magnitude > thresholds[i];
    return (uint8_t)code;
}

/* n elements that share a scale, n a multiple of the transform's block; `first` is the first one's
 * place in the row. Returns the scale. */
static uint16_t encode_block(const rotated_codec *codec, const float *x, uint32_t first, uint32_t n,
                             uint32_t rotation, uint8_t *codes) {
    float amax = 0;
    for (uint32_t i = 0; i < n; i++)
        amax = kvt_abs(x[i]) > amax ? kvt_abs(x[i]) : amax;
    if (amax < KVT_ROTATED_MIN) {
        memset(codes, 0, n);
        return 0;
    }
    int16_t y[KVT_ROW_BLOCK];
    float to_integer = kvt_div(255.0f, amax);
    for (uint32_t i = 0; i < n; i++) {
        int32_t r = kvt_rint(kvt_mul(x[i], to_integer));
        y[i] = (int16_t)(kvt_rotation_sign(first + i) ? -r : r);
    }
    int32_t max = 0;
    for (uint32_t i = 0; i < n; i += rotation)
        kvt_walsh_hadamard(y + i, rotation);
    for (uint32_t i = 0; i < n; i++) {
        int32_t magnitude = y[i] < 0 ? -y[i] : y[i];
        max = magnitude > max ? magnitude : max;
    }
    int32_t thresholds[7];
    for (uint32_t i = 0; i + 1 < 1u << (codec->bits - 1); i++) {
        int32_t border = codec->bits == 4 ? kvt_w4v_border(i) : kvt_w2v_border();
        thresholds[i] = kvt_rotated_threshold(border, codec->sixteenths, max);
    }
    for (uint32_t i = 0; i < n; i++)
        codes[i] = quantise(codec, thresholds, y[i]);
    float per_element = kvt_div(codec->scale, (float)(int32_t)rotation);
    return kvt_half_of_float(kvt_mul(kvt_mul((float)max, amax), per_element));
}

bool kvt_ref_encode_rotated(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                            uint32_t *saturated) {
    (void)saturated; /* a level beside the value is no clamp: the scale is chosen so */
    rotated_codec codec = rotated_codec_of(unit->codec);
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint32_t padded = kvt_pad16(unit->dim), rotation = kvt_rotation_block(unit->dim);
    uint8_t *out = to;
    memset(out, 0, at.bytes);
    for (uint32_t r = 0; r < unit->rows; r++) {
        float row[KVT_MAX_HEAD_DIM] = {0};
        uint8_t codes[KVT_MAX_HEAD_DIM];
        if (!kvt_ref_load_row(unit, from, stride_bytes, r, row))
            return false;
        uint8_t *scales = out + at.row_stats_offset + r * at.row_stats_bytes;
        for (uint32_t first = 0; first < padded; first += KVT_ROW_BLOCK) {
            uint32_t n = padded - first < KVT_ROW_BLOCK ? padded - first : (uint32_t)KVT_ROW_BLOCK;
            uint16_t scale = encode_block(&codec, row + first, first, n, rotation, codes + first);
            kvt_put_half(scales, first / KVT_ROW_BLOCK, scale);
        }
        kvt_ref_pack(codec.bits, codes, padded, out + at.codes_offset + r * at.row_code_bytes);
    }
    return true;
}

void kvt_ref_decode_rotated(const kvt_unit *unit, const void *from, uint32_t first_row,
                            uint32_t n_rows, void *to, size_t stride_bytes) {
    rotated_codec codec = rotated_codec_of(unit->codec);
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint32_t padded = kvt_pad16(unit->dim), rotation = kvt_rotation_block(unit->dim);
    uint32_t sign = 1u << (codec.bits - 1);
    const uint8_t *in = from;
    uint8_t *out = to;
    for (uint32_t r = first_row; r < first_row + n_rows; r++, out += stride_bytes) {
        uint8_t codes[KVT_MAX_HEAD_DIM];
        int16_t w[KVT_MAX_HEAD_DIM];
        float row[KVT_MAX_HEAD_DIM];
        const uint8_t *scales = in + at.row_stats_offset + r * at.row_stats_bytes;
        kvt_ref_unpack(codec.bits, in + at.codes_offset + r * at.row_code_bytes, padded, codes);
        for (uint32_t d = 0; d < padded; d++) {
            int32_t magnitude = level(&codec, codes[d] & (sign - 1));
            w[d] = (int16_t)(codes[d] & sign ? -magnitude : magnitude);
        }
        for (uint32_t d = 0; d < padded; d += rotation)
            kvt_walsh_hadamard(w + d, rotation);
        float scale = 0;
        for (uint32_t d = 0; d < unit->dim; d++) {
            if (d % KVT_ROW_BLOCK == 0)
                scale = kvt_mul(kvt_get_half(scales, d / KVT_ROW_BLOCK), KVT_ROTATED_SCALE_DOWN);
            row[d] = kvt_rotated_value(kvt_rotation_sign(d) ? -w[d] : w[d], scale);
        }
        kvt_ref_store_row(unit, row, out);
    }
}
