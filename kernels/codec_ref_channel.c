/* i8k, i4k, i2k: offset m and scale s of each channel, over all rows of the unit. */
#include "kernels/codec_ref.h"

typedef struct channel_codec {
    uint32_t bits;
    int32_t low, high; /* codes; negative ones are stored in two's complement */
} channel_codec;

static channel_codec channel_codec_of(uint32_t codec) {
    channel_codec i8k = {8, -127, 127}, i4k = {4, 0, 15}, i2k = {2, 0, 3};
    return codec == KVT_CODEC_I8K ? i8k : codec == KVT_CODEC_I4K ? i4k : i2k;
}

/* Of every channel, row after row: the order of the sums is part of the format. */
typedef struct channel_sums {
    float sum[KVT_MAX_HEAD_DIM];
    float min[KVT_MAX_HEAD_DIM];
    float max[KVT_MAX_HEAD_DIM];
} channel_sums;

static bool take_sums(const kvt_unit *unit, const void *from, size_t stride_bytes,
                      channel_sums *sums) {
    float row[KVT_MAX_HEAD_DIM];
    for (uint32_t r = 0; r < unit->rows; r++) {
        if (!kvt_ref_load_row(unit, from, stride_bytes, r, row))
            return false;
        for (uint32_t d = 0; d < unit->dim; d++) {
            sums->sum[d] = kvt_add(r == 0 ? 0.0f : sums->sum[d], row[d]);
            sums->min[d] = r == 0 || row[d] < sums->min[d] ? row[d] : sums->min[d];
            sums->max[d] = r == 0 || row[d] > sums->max[d] ? row[d] : sums->max[d];
        }
    }
    return true;
}

/* |max - m| and |min - m| are the largest of all |x - m|, since subtraction rounds monotonically.
 */
static void i8k_stats(float sum, float rows, float min, float max, uint16_t *m, uint16_t *s) {
    *m = kvt_half_of_float(kvt_div(sum, rows));
    float offset = kvt_float_of_half(*m);
    float above = kvt_abs(kvt_sub(max, offset)), below = kvt_abs(kvt_sub(min, offset));
    *s = kvt_scale_of_float(kvt_div(above > below ? above : below, 127.0f));
}

/* The smallest and the largest value have codes of their own. Adding 0 makes +0 of -0, whichever of
 * the two a minimum happened to find. A bfloat16 can be so small that m lies above max. */
static void i4k_stats(float min, float max, uint16_t *m, uint16_t *s) {
    *m = kvt_half_of_float(kvt_add(min, 0.0f));
    float range = kvt_sub(max, kvt_float_of_half(*m));
    *s = kvt_scale_of_float(range > 0.0f ? kvt_div(range, 15.0f) : 0.0f);
}

/* Four cells of equal width between the smallest and the largest; a code is a cell's middle. (The
 * largest value lies on the upper border of the last cell: that is no clamp.) */
static void i2k_stats(float min, float max, uint16_t *m, uint16_t *s) {
    float range = kvt_sub(max, min);
    *m = kvt_half_of_float(kvt_add(min, kvt_mul(range, 0.125f)));
    *s = kvt_scale_of_float(kvt_mul(range, 0.25f));
}

bool kvt_ref_encode_channel(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                            uint32_t *saturated) {
    channel_sums sums;
    if (!take_sums(unit, from, stride_bytes, &sums))
        return false;
    channel_codec codec = channel_codec_of(unit->codec);
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    uint8_t *out = to, *m_at = out, *s_at = out + at.row_stats_offset / 2;
    float m[KVT_MAX_HEAD_DIM], inverse[KVT_MAX_HEAD_DIM];
    memset(out, 0, at.bytes);
    for (uint32_t d = 0; d < unit->dim; d++) {
        uint16_t m_half, s_half;
        if (unit->codec == KVT_CODEC_I8K)
            i8k_stats(sums.sum[d], (float)(int32_t)unit->rows, sums.min[d], sums.max[d], &m_half,
                      &s_half);
        else if (unit->codec == KVT_CODEC_I4K)
            i4k_stats(sums.min[d], sums.max[d], &m_half, &s_half);
        else
            i2k_stats(sums.min[d], sums.max[d], &m_half, &s_half);
        kvt_put_half(m_at, d, m_half);
        kvt_put_half(s_at, d, s_half);
        m[d] = kvt_float_of_half(m_half);
        inverse[d] = kvt_inverse(kvt_float_of_half(s_half));
    }
    for (uint32_t r = 0; r < unit->rows; r++) {
        float row[KVT_MAX_HEAD_DIM];
        uint8_t codes[KVT_MAX_HEAD_DIM];
        kvt_ref_load_row(unit, from, stride_bytes, r, row);
        for (uint32_t d = 0; d < unit->dim; d++) {
            int32_t code = kvt_rint(kvt_mul(kvt_sub(row[d], m[d]), inverse[d]));
            int32_t clamped = kvt_clamp(code, codec.low, codec.high);
            *saturated += code != clamped && unit->codec != KVT_CODEC_I2K;
            codes[d] = (uint8_t)clamped;
        }
        kvt_ref_pack(codec.bits, codes, unit->dim, out + at.codes_offset + r * at.row_code_bytes);
    }
    return true;
}

void kvt_ref_decode_channel(const kvt_unit *unit, const void *from, uint32_t first_row,
                            uint32_t n_rows, void *to, size_t stride_bytes) {
    channel_codec codec = channel_codec_of(unit->codec);
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    const uint8_t *in = from, *m_at = in, *s_at = in + at.row_stats_offset / 2;
    uint8_t *out = to;
    float m[KVT_MAX_HEAD_DIM], s[KVT_MAX_HEAD_DIM];
    for (uint32_t d = 0; d < unit->dim; d++) {
        m[d] = kvt_get_half(m_at, d);
        s[d] = kvt_get_half(s_at, d);
    }
    for (uint32_t r = first_row; r < first_row + n_rows; r++, out += stride_bytes) {
        uint8_t codes[KVT_MAX_HEAD_DIM];
        float row[KVT_MAX_HEAD_DIM];
        kvt_ref_unpack(codec.bits, in + at.codes_offset + r * at.row_code_bytes, unit->dim, codes);
        for (uint32_t d = 0; d < unit->dim; d++) {
            int32_t code = codec.low < 0 ? kvt_signed_code(codes[d], codec.bits) : codes[d];
            row[d] = kvt_add(kvt_mul((float)code, s[d]), m[d]);
        }
        kvt_ref_store_row(unit, row, out);
    }
}
