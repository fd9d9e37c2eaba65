/*
 * simd_channel.h - i8k, i4k, i2k in the words of simd.h. Included by cpu_NAME.c behind them.
 *
 * Statistics are gathered over eight rows at a time: each vector of channels takes the rows in
 * their order (the order of the sums is part of the format), and is written back once for the
 * eight. What an encoder refuses is seen in the sums and extremes: a NaN makes the sum one.
 *
 * Where there are registers enough (KVT_SIMD_COLUMNS), columns of many channels go through all rows
 * at once in front of that, and the loops here see to the channels that are left.
 */
#include "kernels/simd.h"

enum { ROWS_AT_ONCE = 8 };

/* One codec; always a constant, and every function that takes one is inlined. */
typedef struct channel_codec {
    uint32_t bits;
    float low, high;               /* codes */
    float clamps_low, clamps_high; /* clamped below the one, from the other on */
} channel_codec;

/* Of a row, and room for what is left behind the last whole chunk. */
typedef struct channel_stats {
    float sum[KVT_MAX_HEAD_DIM];
    float min[KVT_MAX_HEAD_DIM];
    float max[KVT_MAX_HEAD_DIM];
    float m[KVT_MAX_HEAD_DIM];
    float by[KVT_MAX_HEAD_DIM]; /* encoding: inverse of the scale; decoding: the scale */
} channel_stats;

#ifdef KVT_SIMD_COLUMNS
SIMD uint32_t take_all_columns(channel_codec codec, uint32_t dtype, const kvt_unit *unit,
                               const uint8_t *from, size_t stride_bytes, channel_stats *stats) {
    uint32_t d = 0;
    FOR_COLUMNS(unit, dtype, unit->rows, stride_bytes, d,
                take_columns(c, codec.bits == 8, from + 2 * d, stats->sum + d, stats->min + d,
                             stats->max + d));
    return d;
}
SIMD uint32_t code_all_columns(channel_codec codec, uint32_t dtype, const kvt_unit *unit,
                               const uint8_t *from, size_t stride_bytes, const channel_stats *stats,
                               uint8_t *codes, uint32_t row_bytes) {
    uint32_t d = 0;
    FOR_COLUMNS(unit, dtype, unit->rows, stride_bytes, d,
                code_columns(c, codec.bits, from + 2 * d, stats->m + d, stats->by + d,
                             codes + d * codec.bits / 8, row_bytes));
    return d;
}
SIMD uint32_t decode_all_columns(channel_codec codec, uint32_t dtype, const kvt_unit *unit,
                                 const uint8_t *codes, uint32_t row_bytes,
                                 const channel_stats *stats, uint32_t n_rows, uint8_t *to,
                                 size_t stride_bytes) {
    uint32_t d = 0;
    FOR_COLUMNS(unit, dtype, n_rows, stride_bytes, d,
                decode_columns(c, codec.bits, codes + d * codec.bits / 8, row_bytes, stats->m + d,
                               stats->by + d, to + 2 * d));
    return d;
}
#else
#define take_all_columns(codec, ...)   ((void)(codec), 0u)
#define code_all_columns(codec, ...)   0u
#define decode_all_columns(codec, ...) 0u
#endif

/* Channels d .. of up to eight rows, which `at` points to. */
SIMD void take_channels(uint32_t dtype, bool first, const uint8_t *const *at, uint32_t rows,
                        uint32_t offset, uint32_t d, channel_stats *stats) {
    fv x = fv_of_elements(dtype, at[0] + offset);
    fv sum = fv_add(first ? fv_set(0) : fv_load(stats->sum + d), x);
    fv min = first ? x : fv_min(x, fv_load(stats->min + d));
    fv max = first ? x : fv_max(x, fv_load(stats->max + d));
    for (uint32_t r = 1; r < rows; r++) {
        x = fv_of_elements(dtype, at[r] + offset);
        sum = fv_add(sum, x);
        min = fv_min(x, min);
        max = fv_max(x, max);
    }
    fv_store(stats->sum + d, sum);
    fv_store(stats->min + d, min);
    fv_store(stats->max + d, max);
}

SIMD void take_rows(uint32_t dtype, bool first, const uint8_t *from, size_t stride_bytes,
                    uint32_t rows, uint32_t first_channel, uint32_t dim, channel_stats *stats) {
    uint8_t room[ROWS_AT_ONCE][CHUNK_BYTES];
    const uint8_t *at[ROWS_AT_ONCE];
    uint32_t whole = dim / FV_LANES * FV_LANES;
    for (uint32_t r = 0; r < ROWS_AT_ONCE; r++)
        at[r] = from + (r < rows ? r : 0) * stride_bytes;
    if (rows == ROWS_AT_ONCE) {
        for (uint32_t d = first_channel; d < whole; d += FV_LANES)
            take_channels(dtype, first, at, ROWS_AT_ONCE, 2 * d, d, stats);
    } else {
        for (uint32_t d = first_channel; d < whole; d += FV_LANES)
            take_channels(dtype, first, at, rows, 2 * d, d, stats);
    }
    if (whole < dim) {
        for (uint32_t r = 0; r < rows; r++)
            at[r] = padded_source(at[r] + 2 * whole, 2 * (dim - whole), CHUNK_BYTES, room[r]);
        take_channels(dtype, first, at, rows, 0, whole, stats);
    }
}

/* False: an element is refused. The bounds of the sum are reached by no rounding: 128 * 8192. */
SIMD bool take_all_rows(channel_codec codec, uint32_t dtype, const kvt_unit *unit,
                        const uint8_t *from, size_t stride_bytes, channel_stats *stats) {
    const float most = KVT_MAX_MAGNITUDE, most_sum = 128.0f * KVT_MAX_MAGNITUDE;
    uint32_t done = take_all_columns(codec, dtype, unit, from, stride_bytes, stats);
    for (uint32_t r = 0; r < unit->rows && done < unit->dim; r += ROWS_AT_ONCE) {
        uint32_t rows = unit->rows - r < ROWS_AT_ONCE ? unit->rows - r : (uint32_t)ROWS_AT_ONCE;
        /* The rows are gone through twice: the next ones, half of them in each pass, are those of
         * another unit. */
        for (uint32_t i = 0; i < rows; i += 2)
            fetch_row(false, from, stride_bytes, 2 * unit->dim, unit->rows + (r + i) / 2,
                      unit->rows);
        take_rows(dtype, r == 0, from + r * stride_bytes, stride_bytes, rows, done, unit->dim,
                  stats);
    }
    int taken = 1;
    for (uint32_t d = 0; d < unit->dim; d++)
        taken &= (kvt_abs(stats->sum[d]) <= most_sum) & (stats->min[d] >= -most) &
                 (stats->max[d] <= most);
    return taken;
}

SIMD void store_scale(uint16_t *to, fv s) {
    fv_store_halves(to, fv_if_positive(s, fv_max(s, fv_set(0x1p-24f))));
}

/* m and s of FV_LANES channels; codec_ref_channel.c says why. */
SIMD void channel_scales(channel_codec codec, float rows, uint32_t d, const channel_stats *stats,
                         uint16_t *m, uint16_t *s) {
    fv min = fv_load(stats->min + d), max = fv_load(stats->max + d);
    if (codec.bits == 8) {
        fv_store_halves(m, fv_div(fv_load(stats->sum + d), fv_set(rows)));
        fv offset = fv_of_halves(m);
        fv above = fv_abs(fv_sub(max, offset)), below = fv_abs(fv_sub(min, offset));
        store_scale(s, fv_div(fv_max(above, below), fv_set(127)));
    } else if (codec.bits == 4) {
        fv_store_halves(m, fv_add(min, fv_set(0)));
        store_scale(s, fv_div(fv_sub(max, fv_of_halves(m)), fv_set(15)));
    } else {
        fv range = fv_sub(max, min);
        fv_store_halves(m, fv_add(min, fv_mul(range, fv_set(0.125f))));
        store_scale(s, fv_mul(range, fv_set(0.25f)));
    }
}

/* Writes the channels' statistics. Returns whether any element is clamped: then the smallest or the
 * largest of its channel is. */
SIMD bool write_channels(channel_codec codec, const kvt_unit *unit, uint8_t *out,
                         channel_stats *stats) {
    uint32_t dim = unit->dim, half_bytes = kvt_pad16(2 * dim);
    uint16_t m[FV_LANES], s[FV_LANES];
    bool saturates = false;
    memset(out, 0, 2 * (size_t)half_bytes);
    for (uint32_t d = 0; d < dim; d += FV_LANES) {
        channel_scales(codec, (float)(int32_t)unit->rows, d, stats, m, s);
        fv offset = fv_of_halves(m), scale = fv_of_halves(s);
        fv inverse = fv_if_positive(scale, fv_div(fv_set(1), scale));
        fv low = fv_mul(fv_sub(fv_load(stats->min + d), offset), inverse);
        fv high = fv_mul(fv_sub(fv_load(stats->max + d), offset), inverse);
        saturates |= fv_count_above(fv_set(codec.clamps_low), low) != 0;
        saturates |= fv_count_not_below(high, fv_set(codec.clamps_high)) != 0;
        fv_store(stats->m + d, offset);
        fv_store(stats->by + d, inverse);
        uint32_t n = dim - d < FV_LANES ? dim - d : (uint32_t)FV_LANES;
        memcpy(out + 2 * d, m, 2 * (size_t)n);
        memcpy(out + half_bytes + 2 * d, s, 2 * (size_t)n);
    }
    for (uint32_t d = dim; d % CHUNK; d++)
        stats->m[d] = stats->by[d] = 0;
    return saturates;
}

SIMD uint32_t channel_clamp(channel_codec codec, chunk *x) {
    uint32_t clamped = 0;
    for (int i = 0; i < CHUNK_FVS; i++) {
        clamped += fv_count_above(fv_set(codec.clamps_low), x->v[i]);
        clamped += fv_count_not_below(x->v[i], fv_set(codec.clamps_high));
        x->v[i] = fv_min(fv_max(x->v[i], fv_set(codec.low)), fv_set(codec.high));
    }
    return clamped;
}

SIMD void channel_store_codes(channel_codec codec, uint8_t *to, chunk x) {
    uint8_t nibbles[CHUNK / 2];
    if (codec.bits == 8) {
        chunk_store_i8(to, x);
    } else if (codec.bits == 4) {
        chunk_store_i4(to, x);
    } else {
        chunk_store_i4(nibbles, x);
        narrow_nibbles(to, nibbles);
    }
}

SIMD uint32_t channel_row_codes(channel_codec codec, uint32_t dtype, bool saturates,
                                const uint8_t *row, uint32_t first, uint32_t dim,
                                const channel_stats *stats, uint8_t *to) {
    uint8_t room[CHUNK_BYTES], codes[CHUNK];
    uint32_t clamped = 0;
    for (uint32_t d = first; d < dim; d += CHUNK) {
        uint32_t elements = dim - d < CHUNK ? dim - d : (uint32_t)CHUNK;
        chunk x =
            chunk_of_elements(dtype, padded_source(row + 2 * d, 2 * elements, CHUNK_BYTES, room));
        for (int i = 0; i < CHUNK_FVS; i++) {
            uint32_t at = d + (uint32_t)i * FV_LANES;
            x.v[i] = fv_mul(fv_sub(x.v[i], fv_load(stats->m + at)), fv_load(stats->by + at));
        }
        if (saturates)
            clamped += channel_clamp(codec, &x);
        if (elements == CHUNK) {
            channel_store_codes(codec, to + d * codec.bits / 8, x);
        } else {
            channel_store_codes(codec, codes, x);
            copy_few(to + d * codec.bits / 8, codes, (elements * codec.bits + 7) / 8);
        }
    }
    return clamped;
}

SIMD bool encode_channels(channel_codec codec, const kvt_unit *unit, uint32_t dtype,
                          const uint8_t *from, size_t stride_bytes, uint8_t *out,
                          uint32_t *saturated) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    channel_stats stats;
    if (!take_all_rows(codec, dtype, unit, from, stride_bytes, &stats))
        return false;
    uint8_t *codes = out + at.codes_offset;
    uint32_t clamped = 0, done = 0;
    bool saturates = write_channels(codec, unit, out, &stats);
    /* Columns do not count what they clamp; of two bits nobody asks. */
    if (!saturates || codec.bits == 2)
        done = code_all_columns(codec, dtype, unit, from, stride_bytes, &stats, codes,
                                at.row_code_bytes);
    for (uint32_t r = 0; r < unit->rows && done < unit->dim; r++) {
        const uint8_t *row = from + r * stride_bytes;
        uint8_t *to = codes + r * at.row_code_bytes;
        if (r % 2 == 0)
            fetch_row(false, from, stride_bytes, 2 * unit->dim, unit->rows + (unit->rows + r) / 2,
                      unit->rows);
        fetch_codes(true, to, at.row_code_bytes);
        if (saturates)
            clamped += channel_row_codes(codec, dtype, true, row, done, unit->dim, &stats, to);
        else
            channel_row_codes(codec, dtype, false, row, done, unit->dim, &stats, to);
    }
    zero_padding(out, &at, unit->rows);
    *saturated += codec.bits == 2 ? 0 : clamped;
    return true;
}

SIMD chunk channel_values(channel_codec codec, const uint8_t *codes) {
    uint8_t nibbles[CHUNK / 2];
    if (codec.bits == 8)
        return chunk_of_i8(codes);
    if (codec.bits == 4)
        return chunk_of_u4(codes);
    widen_nibbles(nibbles, codes);
    return chunk_of_u4(nibbles);
}

SIMD void channel_row_decode(channel_codec codec, uint32_t dtype, const uint8_t *codes,
                             uint32_t first, uint32_t dim, const channel_stats *stats,
                             uint8_t *to) {
    uint8_t room[CHUNK], elements_room[CHUNK_BYTES];
    for (uint32_t d = first; d < dim; d += CHUNK) {
        uint32_t elements = dim - d < CHUNK ? dim - d : (uint32_t)CHUNK;
        chunk x = channel_values(codec, padded_source(codes + d * codec.bits / 8,
                                                      (elements * codec.bits + 7) / 8,
                                                      CHUNK * codec.bits / 8, room));
        for (int i = 0; i < CHUNK_FVS; i++) {
            uint32_t at = d + (uint32_t)i * FV_LANES;
            x.v[i] = fv_add(fv_mul(x.v[i], fv_load(stats->by + at)), fv_load(stats->m + at));
        }
        if (elements == CHUNK) {
            chunk_store_elements(dtype, to + 2 * d, x);
        } else {
            chunk_store_elements(dtype, elements_room, x);
            copy_few(to + 2 * d, elements_room, 2 * elements);
        }
    }
}

SIMD void decode_channels(channel_codec codec, const kvt_unit *unit, uint32_t dtype,
                          const uint8_t *in, uint32_t first_row, uint32_t n_rows, uint8_t *to,
                          size_t stride_bytes) {
    kvt_unit_layout at = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows);
    channel_stats stats;
    uint8_t room[CHUNK_BYTES];
    for (uint32_t d = 0; d < unit->dim; d += CHUNK) {
        uint32_t bytes = 2 * chunk_elements(unit->dim, d / CHUNK);
        const uint8_t *m = padded_source(in + 2 * d, bytes, CHUNK_BYTES, room);
        for (int i = 0; i < CHUNK_FVS; i++)
            fv_store(stats.m + d + i * FV_LANES, fv_of_halves(m + 2 * FV_LANES * i));
        const uint8_t *s =
            padded_source(in + at.row_stats_offset / 2 + 2 * d, bytes, CHUNK_BYTES, room);
        for (int i = 0; i < CHUNK_FVS; i++)
            fv_store(stats.by + d + i * FV_LANES, fv_of_halves(s + 2 * FV_LANES * i));
    }
    const uint8_t *codes = in + at.codes_offset + (size_t)first_row * at.row_code_bytes;
    uint32_t done = decode_all_columns(codec, dtype, unit, codes, at.row_code_bytes, &stats, n_rows,
                                       to, stride_bytes);
    for (uint32_t r = 0; r < n_rows && done < unit->dim; r++, codes += at.row_code_bytes) {
        fetch_codes(false, codes, at.row_code_bytes);
        fetch_row(true, to, stride_bytes, 2 * unit->dim, r + rows_ahead(2 * unit->dim), n_rows);
        channel_row_decode(codec, dtype, codes, done, unit->dim, &stats, to + r * stride_bytes);
    }
}

#define CHANNEL_CODEC(name, number, ...)                                                           \
    static bool encode_##name(const kvt_unit *unit, const void *from, size_t stride_bytes,         \
                              void *to, uint32_t *saturated) {                                     \
        const channel_codec codec = {__VA_ARGS__};                                                 \
        bool taken;                                                                                \
                                                                                                   \
        FOR_KNOWN_UNIT(unit, number,                                                               \
                       taken = encode_channels(codec, &known, known.dtype, from, stride_bytes, to, \
                                               saturated));                                        \
        return taken;                                                                              \
    }                                                                                              \
    static void decode_##name(const kvt_unit *unit, const void *from, uint32_t first_row,          \
                              uint32_t n_rows, void *to, size_t stride_bytes) {                    \
        const channel_codec codec = {__VA_ARGS__};                                                 \
        FOR_KNOWN_UNIT(unit, number,                                                               \
                       decode_channels(codec, &known, known.dtype, from, first_row, n_rows, to,    \
                                       stride_bytes));                                             \
    }

/* Half-way cases round to even: 127.5 to 128 and -127.5 to -128, which are clamped, but -0.5 to 0.
 * The first lower limit is the float above -127.5. */
CHANNEL_CODEC(i8k, KVT_CODEC_I8K, 8, -127, 127, -0x1.fdfffep+6f, 127.5f)
CHANNEL_CODEC(i4k, KVT_CODEC_I4K, 4, 0, 15, -0.5f, 15.5f)
CHANNEL_CODEC(i2k, KVT_CODEC_I2K, 2, 0, 3, -0.5f, 3.5f)
