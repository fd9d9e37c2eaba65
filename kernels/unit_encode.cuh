/*
 * unit_encode.cuh - encoding one unit on a GPU, by a block of KVT_BLOCK_THREADS threads; the
 * numbers come from kernels/unit.h, in the order of FORMAT.md. For kernels.cu alone.
 *
 * A unit is encoded in slices, one a block. Elements come into shared memory first, as a TILE of
 * 16-byte groups, from the worker's rows or from another page:
 *
 *     per channel (i8k, i4k, i2k)           all other codecs
 *       all rows x 8 groups                   some rows x all groups
 *       +--+--+-                              +--------------+
 *       |  |  |    slice 0, 1, ...            |  slice 0     |
 *       |  |  |                               +--------------+
 *       |  |  |                               |  slice 1     |
 *       +--+--+-                              +- - - - - - - +
 */
#ifndef KVT_KERNELS_UNIT_ENCODE_CUH
#define KVT_KERNELS_UNIT_ENCODE_CUH

#include "kernels/unit_device.cuh"

enum {
    KVT_BLOCK_THREADS = 128,
    KVT_TILE_GROUPS = 1024,  /* 16 KiB */
    KVT_SLICE_CHANNELS = 64, /* of a codec with statistics per channel */
    KVT_SLICE_CHANNEL_GROUPS = KVT_SLICE_CHANNELS / KVT_GROUP,
};

/* The block's shared memory. */
typedef struct kvt_tile {
    uint4 groups[KVT_TILE_GROUPS];
    float m[KVT_SLICE_CHANNELS];
    float inverse[KVT_SLICE_CHANNELS];
} kvt_tile;

/* The part of a unit that a tile holds. */
typedef struct kvt_slice {
    uint32_t first_row, n_rows;
    uint32_t first_group, n_groups; /* of the row that is n_groups wide in the tile */
} kvt_slice;

/* What went wrong or was clamped, as one thread saw it. */
typedef struct kvt_seen {
    uint32_t saturated;
    int refused;
} kvt_seen;

/* ------------------------------------------------------------------------------------------------
 * Slices
 * ---------------------------------------------------------------------------------------------- */

static inline __host__ __device__ uint32_t kvt_groups_of(uint32_t dim) {
    return (dim + KVT_GROUP - 1) / KVT_GROUP;
}

/* Slices that a unit of that many rows needs, whichever its codec. */
static inline __host__ __device__ uint32_t kvt_slices_of(uint32_t dim, uint32_t rows) {
    uint32_t groups = kvt_groups_of(dim);
    uint32_t by_channels = (groups + KVT_SLICE_CHANNEL_GROUPS - 1) / KVT_SLICE_CHANNEL_GROUPS;
    uint32_t tile_rows = KVT_TILE_GROUPS / groups;
    uint32_t by_rows = (rows + tile_rows - 1) / tile_rows;
    return by_channels > by_rows ? by_channels : by_rows;
}

/* Slice number `slice` of n_slices; n_rows or n_groups 0: nothing is left for it. */
KVT_LANE kvt_slice kvt_slice_of(uint32_t codec, uint32_t dim, uint32_t rows, uint32_t slice,
                                uint32_t n_slices) {
    kvt_slice s = {0, rows, 0, kvt_groups_of(dim)};
    if (kvt_has_channel_stats(codec)) {
        s.first_group = slice * KVT_SLICE_CHANNEL_GROUPS;
        uint32_t left = s.first_group < s.n_groups ? s.n_groups - s.first_group : 0;
        s.n_groups = left < KVT_SLICE_CHANNEL_GROUPS ? left : (uint32_t)KVT_SLICE_CHANNEL_GROUPS;
        return s;
    }
    uint32_t each = (rows + n_slices - 1) / n_slices;
    s.first_row = slice * each;
    uint32_t left = s.first_row < rows ? rows - s.first_row : 0;
    s.n_rows = left < each ? left : each;
    return s;
}

/* Elements of a group that exist. */
KVT_LANE uint32_t kvt_group_elements(uint32_t dim, uint32_t group) {
    uint32_t left = dim - group * KVT_GROUP;
    return left < KVT_GROUP ? left : (uint32_t)KVT_GROUP;
}

KVT_LANE int kvt_group_refused(uint32_t dtype, uint4 elements) {
    int refused = 0;
    for (uint32_t i = 0; i < KVT_GROUP; i++)
        refused |= kvt_is_refused(dtype, kvt_lane_element(elements, i));
    return refused;
}

/* ------------------------------------------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------------------------------------- */

/* The first n bytes of bits, n up to `bytes`, which is 16, 8, 4 or 2. */
KVT_LANE void kvt_lane_store_codes(uint8_t *at, uint4 bits, uint32_t bytes, uint32_t n) {
    if (n < bytes || ((uintptr_t)at & (bytes - 1)) != 0) {
        for (uint32_t i = 0; i < n; i++)
            at[i] = (uint8_t)(kvt_lane_word(bits, i / 4) >> (i % 4 * 8));
        return;
    }
    switch (bytes) {
    case 16:
        *(uint4 *)at = bits;
        break;
    case 8:
        *(uint2 *)at = make_uint2(bits.x, bits.y);
        break;
    case 4:
        *(uint32_t *)at = bits.x;
        break;
    default:
        *(uint16_t *)at = (uint16_t)bits.x;
    }
}

/* Bytes [from, to) become 0; at most 16 of them. */
KVT_LANE void kvt_zero_bytes(uint8_t *at, uint32_t from, uint32_t to) {
    if (from + threadIdx.x < to)
        at[from + threadIdx.x] = 0;
}

/* The padding behind each part of a unit; by the block. */
KVT_LANE void kvt_write_padding(const kvt_lane_unit *unit, uint32_t rows, uint8_t *to) {
    const kvt_unit_layout *parts = &unit->parts;
    if (kvt_has_channel_stats(unit->codec)) {
        uint32_t half = parts->row_stats_offset / 2;
        kvt_zero_bytes(to, 2 * unit->dim, half);
        kvt_zero_bytes(to, half + 2 * unit->dim, 2 * half);
    }
    kvt_zero_bytes(to, parts->row_stats_offset + parts->row_stats_bytes * rows,
                   parts->codes_offset);
    kvt_zero_bytes(to, parts->codes_offset + parts->row_code_bytes * rows, parts->bytes);
}

/* ------------------------------------------------------------------------------------------------
 * Quantising a group
 * ---------------------------------------------------------------------------------------------- */

/* Code i of `bits` bits into a group's codes. */
KVT_LANE void kvt_put_code(uint4 *codes, uint32_t bits, uint32_t i, uint32_t code) {
    uint32_t at = i * bits, value = code << at % 32;
    if (at < 32)
        codes->x |= value;
    else
        codes->y |= value;
}

/* rint(x), forced into low .. high, in `bits` bits. */
KVT_LANE void kvt_put_integer(uint4 *codes, uint32_t bits, uint32_t i, float x, int32_t low,
                              int32_t high, uint32_t *saturated) {
    int32_t code = kvt_rint(x), clamped = kvt_clamp(code, low, high);
    *saturated += code != clamped;
    kvt_put_code(codes, bits, i, (uint32_t)clamped & ((1u << bits) - 1));
}

/* As kvt_scale_of_float. */
KVT_LANE uint16_t kvt_lane_scale_of_float(float f) {
    uint16_t half = kvt_lane_half_of_float(f);
    return half == 0 && f > 0.0f ? 1 : half;
}

KVT_LANE uint32_t kvt_lane_e4m3_of_float(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
    return pair & 0xffu;
#else
    return kvt_e4m3_of_float(f);
#endif
}

KVT_LANE uint4 kvt_quantise_e4m3(const float *x, uint32_t n, uint32_t *saturated) {
    uint4 codes = make_uint4(0, 0, 0, 0);
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        *saturated += i < n && kvt_e4m3_saturates(x[i]);
        kvt_put_code(&codes, 8, i, kvt_lane_e4m3_of_float(x[i]));
    }
    return codes;
}

KVT_LANE uint4 kvt_quantise_e5m2(const float *x, uint32_t n, uint32_t *saturated) {
    uint4 codes = make_uint4(0, 0, 0, 0);
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        *saturated += i < n && kvt_e5m2_saturates(x[i]);
        kvt_put_code(&codes, 8, i, kvt_e5m2_of_float(x[i]));
    }
    return codes;
}

/* ------------------------------------------------------------------------------------------------
 * Codecs with a scale for each row and block, or without any
 * ---------------------------------------------------------------------------------------------- */

/* The largest value among `width` neighbouring lanes; values are not negative. */
KVT_LANE float kvt_lanes_max(float value, uint32_t width) {
    for (uint32_t step = 1; step < width; step *= 2) {
        float other = __shfl_xor_sync(KVT_ALL_LANES, value, (int)step, 32);
        value = other > value ? other : value;
    }
    return value;
}

/* The rotated group as whole numbers; x: the values, to_integer: what makes them so. */
KVT_LANE void kvt_rotate_group(uint32_t dim, uint32_t group, const float *x, float to_integer,
                               int32_t *ret_y) {
    uint32_t signs = kvt_lane_rotation_signs(group), pairs[KVT_PAIRS];
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        int32_t r = kvt_rint(kvt_mul(x[i], to_integer));
        ret_y[i] = signs >> i & 1 ? -r : r;
    }
    for (uint32_t i = 0; i < KVT_PAIRS; i++)
        pairs[i] = (uint32_t)ret_y[i] + ((uint32_t)ret_y[i + KVT_PAIRS] << 16);
    kvt_lane_walsh_hadamard(pairs, kvt_rotation_block(dim));
    for (uint32_t i = 0; i < KVT_PAIRS; i++) {
        int32_t a = (int16_t)pairs[i], b = (int16_t)((pairs[i] + 0x8000u) >> 16);
        ret_y[i] = a + b;
        ret_y[i + KVT_PAIRS] = a - b;
    }
}

/* w4v, w2v: x becomes codes; amax is the scale block's, which `width` lanes hold. Returns the
 * scale. */
KVT_LANE uint16_t kvt_quantise_rotated(const kvt_lane_unit *unit, uint32_t group, const float *x,
                                       float amax, uint32_t width, uint4 *codes) {
    int four = unit->codec == KVT_CODEC_W4V, zero = amax < KVT_ROTATED_MIN;
    int32_t y[KVT_GROUP], max = 0;
    kvt_rotate_group(unit->dim, group, x, zero ? 0.0f : kvt_div(255.0f, amax), y);
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        int32_t magnitude = y[i] < 0 ? -y[i] : y[i];
        max = magnitude > max ? magnitude : max;
    }
    for (uint32_t step = 1; step < width; step *= 2) {
        int32_t other = __shfl_xor_sync(KVT_ALL_LANES, max, (int)step, 32);
        max = other > max ? other : max;
    }
    *codes = make_uint4(0, 0, 0, 0);
    if (zero)
        return 0;
    int32_t sixteenths = four ? KVT_W4V_SIXTEENTHS : KVT_W2V_SIXTEENTHS, thresholds[7];
    for (uint32_t j = 0; j < 7; j++)
        thresholds[j] =
            kvt_rotated_threshold(four ? kvt_w4v_border(j) : kvt_w2v_border(), sixteenths, max);
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        int32_t magnitude = y[i] < 0 ? -y[i] : y[i];
        uint32_t code = 0;
        for (uint32_t j = 0; j < 7; j++)
            code += (four || j == 0) && magnitude > thresholds[j];
        code |= y[i] < 0 ? (four ? 8u : 2u) : 0;
        kvt_put_code(codes, four ? 4 : 2, i, code);
    }
    float per_element = kvt_div(four ? KVT_W4V_SCALE : KVT_W2V_SCALE,
                                (float)(int32_t)kvt_rotation_block(unit->dim));
    return kvt_lane_half_of_float(kvt_mul(kvt_mul((float)max, amax), per_element));
}

/* fp8t, i8v, i4s. Returns the scale. */
KVT_LANE uint16_t kvt_quantise_scaled(uint32_t codec, float *x, uint32_t n, float amax,
                                      uint32_t *saturated, uint4 *codes) {
    float largest = codec == KVT_CODEC_FP8T ? 448.0f : codec == KVT_CODEC_I8V ? 127.0f : 7.0f;
    uint16_t scale = kvt_lane_scale_of_float(kvt_div(amax, largest));
    float inverse = kvt_inverse(kvt_lane_float_of_half(scale));
    for (uint32_t i = 0; i < KVT_GROUP; i++)
        x[i] = kvt_mul(x[i], inverse);
    *codes = make_uint4(0, 0, 0, 0);
    if (codec == KVT_CODEC_FP8T)
        *codes = kvt_quantise_e4m3(x, n, saturated);
    for (uint32_t i = 0; i < KVT_GROUP && codec == KVT_CODEC_I8V; i++)
        kvt_put_integer(codes, 8, i, x[i], -127, 127, saturated);
    for (uint32_t i = 0; i < KVT_GROUP && codec == KVT_CODEC_I4S; i++)
        kvt_put_integer(codes, 4, i, x[i], -7, 7, saturated);
    return scale;
}

/* raw16, fp8s: each element for itself. */
KVT_LANE uint4 kvt_quantise_plain(const kvt_lane_unit *unit, uint4 elements, float *x, uint32_t n,
                                  uint32_t *saturated) {
    if (unit->codec == KVT_CODEC_RAW16)
        return elements;
    for (uint32_t i = 0; i < KVT_GROUP; i++)
        x[i] = kvt_div(x[i], unit->scale);
    return unit->codec == KVT_CODEC_FP8S_E4M3 ? kvt_quantise_e4m3(x, n, saturated)
                                              : kvt_quantise_e5m2(x, n, saturated);
}

/* Lanes that hold a scale block: the power of two that its groups need; 1 for none. */
KVT_LANE uint32_t kvt_scale_lanes(uint32_t groups) {
    uint32_t width = 1;
    while (width < groups)
        width *= 2;
    return width;
}

/*
 * One slice's rows from the tile to the unit at `to`. The lanes of a warp hold scale blocks side by
 * side, each padded to a power of two, so that maxima are taken by shuffles alone:
 *
 *     lane 0 ...  width - 1 | width ...
 *          block 0 of row 0 | block 1 of row 0 | ... | block 0 of row 1 | ...
 */
KVT_LANE void kvt_encode_rows(const kvt_lane_unit *unit, uint32_t dtype, const kvt_tile *tile,
                              const kvt_slice *slice, uint8_t *to, kvt_seen *seen) {
    uint32_t groups = kvt_lane_groups(unit->codec, unit->dim);
    uint32_t block_groups = kvt_lane_groups_of_scale(unit);
    block_groups = block_groups ? (block_groups < groups ? block_groups : groups) : 1;
    uint32_t width = kvt_scale_lanes(block_groups);
    uint32_t n_blocks = (groups + block_groups - 1) / block_groups;
    uint32_t n_lanes = slice->n_rows * n_blocks * width,
             code_bytes = kvt_lane_code_bits(unit->codec);
    for (uint32_t base = 0; base < n_lanes; base += KVT_BLOCK_THREADS) {
        uint32_t i = base + threadIdx.x, lane = i % width, block = i / width % n_blocks;
        uint32_t row = i / width / n_blocks, group = block * block_groups + lane;
        int active = i < n_lanes && lane < block_groups && group < groups;
        uint4 elements = make_uint4(0, 0, 0, 0), codes = elements;
        if (active && group < slice->n_groups)
            elements = tile->groups[row * slice->n_groups + group];
        float x[KVT_GROUP], amax = 0;
        for (uint32_t j = 0; j < KVT_GROUP; j++) {
            x[j] = kvt_lane_float_of_element(dtype, kvt_lane_element(elements, j));
            amax = kvt_abs(x[j]) > amax ? kvt_abs(x[j]) : amax;
        }
        uint32_t n = active && group < slice->n_groups ? kvt_group_elements(unit->dim, group) : 0;
        uint16_t scale = 0;
        uint32_t saturated = 0;
        if (unit->codec == KVT_CODEC_W4V || unit->codec == KVT_CODEC_W2V)
            scale = kvt_quantise_rotated(unit, group, x, kvt_lanes_max(amax, width), width, &codes);
        else if (kvt_row_block(unit->codec, unit->dim))
            scale = kvt_quantise_scaled(unit->codec, x, n, kvt_lanes_max(amax, width), &saturated,
                                        &codes);
        else
            codes = kvt_quantise_plain(unit, elements, x, n, &saturated);
        if (!active)
            continue;
        seen->saturated += saturated;
        uint32_t offset = group * code_bytes, left = unit->parts.row_code_bytes - offset;
        uint32_t page_row = slice->first_row + row;
        kvt_lane_store_codes(to + unit->parts.codes_offset + page_row * unit->parts.row_code_bytes +
                                 offset,
                             codes, code_bytes, left < code_bytes ? left : code_bytes);
        if (lane == 0 && unit->parts.row_stats_bytes)
            *(uint16_t *)(to + unit->parts.row_stats_offset +
                          page_row * unit->parts.row_stats_bytes + 2 * block) = scale;
    }
}

/* ------------------------------------------------------------------------------------------------
 * Codecs with statistics per channel
 * ---------------------------------------------------------------------------------------------- */

/* m and s of one channel. The formulas and their reasons stand in codec_ref_channel.c. */
KVT_LANE void kvt_channel_stats(uint32_t codec, float sum, float rows, float min, float max,
                                uint16_t *ret_m, uint16_t *ret_s) {
    if (codec == KVT_CODEC_I8K) {
        *ret_m = kvt_lane_half_of_float(kvt_div(sum, rows));
        float offset = kvt_lane_float_of_half(*ret_m);
        float above = kvt_abs(kvt_sub(max, offset)), below = kvt_abs(kvt_sub(min, offset));
        *ret_s = kvt_lane_scale_of_float(kvt_div(above > below ? above : below, 127.0f));
    } else if (codec == KVT_CODEC_I4K) {
        *ret_m = kvt_lane_half_of_float(kvt_add(min, 0.0f));
        float range = kvt_sub(max, kvt_lane_float_of_half(*ret_m));
        *ret_s = kvt_lane_scale_of_float(range > 0.0f ? kvt_div(range, 15.0f) : 0.0f);
    } else {
        float range = kvt_sub(max, min);
        *ret_m = kvt_lane_half_of_float(kvt_add(min, kvt_mul(range, 0.125f)));
        *ret_s = kvt_lane_scale_of_float(kvt_mul(range, 0.25f));
    }
}

/* Thread c takes channel c of the slice, row after row: the order of the sum is part of the format.
 */
KVT_LANE void kvt_take_channels(const kvt_lane_unit *unit, uint32_t dtype, kvt_tile *tile,
                                const kvt_slice *slice, uint8_t *to) {
    uint32_t c = threadIdx.x, channel = slice->first_group * KVT_GROUP + c;
    if (c >= slice->n_groups * KVT_GROUP || channel >= unit->dim)
        return;
    const uint16_t *elements = (const uint16_t *)tile->groups + c;
    uint32_t pitch = slice->n_groups * KVT_GROUP;
    float sum = 0, min = 0, max = 0;
    for (uint32_t r = 0; r < slice->n_rows; r++) {
        float x = kvt_lane_float_of_element(dtype, elements[r * pitch]);
        sum = kvt_add(sum, x);
        min = r == 0 || x < min ? x : min;
        max = r == 0 || x > max ? x : max;
    }
    uint16_t m, s;
    kvt_channel_stats(unit->codec, sum, (float)(int32_t)slice->n_rows, min, max, &m, &s);
    ((uint16_t *)to)[channel] = m;
    ((uint16_t *)(to + unit->parts.row_stats_offset / 2))[channel] = s;
    tile->m[c] = kvt_lane_float_of_half(m);
    tile->inverse[c] = kvt_inverse(kvt_lane_float_of_half(s));
}

/* A thread stays with one group, whose statistics it keeps. */
KVT_LANE void kvt_quantise_channels(const kvt_lane_unit *unit, uint32_t dtype, const kvt_tile *tile,
                                    const kvt_slice *slice, uint8_t *to, kvt_seen *seen) {
    uint32_t in_slice = threadIdx.x % KVT_SLICE_CHANNEL_GROUPS;
    if (in_slice >= slice->n_groups)
        return;
    uint32_t group = slice->first_group + in_slice, n = kvt_group_elements(unit->dim, group);
    uint32_t bits = kvt_lane_code_bits(unit->codec), offset = group * bits;
    uint32_t left = unit->parts.row_code_bytes - offset;
    int32_t low = unit->codec == KVT_CODEC_I8K ? -127 : 0;
    int32_t high = unit->codec == KVT_CODEC_I8K ? 127 : unit->codec == KVT_CODEC_I4K ? 15 : 3;
    float m[KVT_GROUP], inverse[KVT_GROUP];
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        m[i] = i < n ? tile->m[in_slice * KVT_GROUP + i] : 0.0f;
        inverse[i] = i < n ? tile->inverse[in_slice * KVT_GROUP + i] : 0.0f;
    }
    for (uint32_t r = threadIdx.x / KVT_SLICE_CHANNEL_GROUPS; r < slice->n_rows;
         r += KVT_BLOCK_THREADS / KVT_SLICE_CHANNEL_GROUPS) {
        uint4 elements = tile->groups[r * slice->n_groups + in_slice];
        uint4 codes = make_uint4(0, 0, 0, 0);
        uint32_t saturated = 0;
        for (uint32_t i = 0; i < KVT_GROUP; i++) {
            float x = kvt_lane_float_of_element(dtype, kvt_lane_element(elements, i));
            kvt_put_integer(&codes, bits, i, kvt_mul(kvt_sub(x, m[i]), inverse[i]), low, high,
                            &saturated);
        }
        /* i2k: the largest value lies on the border of the last cell; that is no clamp. */
        seen->saturated += unit->codec == KVT_CODEC_I2K ? 0 : saturated;
        kvt_lane_store_codes(to + unit->parts.codes_offset + r * unit->parts.row_code_bytes +
                                 offset,
                             codes, bits, left < bits ? left : bits);
    }
}

/* ------------------------------------------------------------------------------------------------
 * A slice
 * ---------------------------------------------------------------------------------------------- */

/* From a loaded tile (the caller's barrier lies between) to the unit at `to`. The first slice
 * writes the padding. All threads of the block call it. */
KVT_LANE void kvt_encode_slice(const kvt_lane_unit *unit, uint32_t dtype, uint32_t rows,
                               kvt_tile *tile, const kvt_slice *slice, uint8_t *to,
                               kvt_seen *seen) {
    if (slice->first_row == 0 && slice->first_group == 0)
        kvt_write_padding(unit, rows, to);
    if (!kvt_has_channel_stats(unit->codec)) {
        kvt_encode_rows(unit, dtype, tile, slice, to, seen);
        return;
    }
    kvt_take_channels(unit, dtype, tile, slice, to);
    __syncthreads();
    kvt_quantise_channels(unit, dtype, tile, slice, to, seen);
}

#endif
