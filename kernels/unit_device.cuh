/*
 * unit_device.cuh - decoding one unit on a GPU, for the kernels here and for engines that attend
 * over encoded pages in place. Everything is a device function, inlined, without launches or state;
 * the numbers come from kernels/unit.h and are, bit for bit, those of the C reference.
 *
 * A lane (thread of a warp) decodes a GROUP at a time: 8 elements of one row, from element 8 *
 * group on. With 8 elements of 16 bits a lane's store is 16 bytes, and a warp's stores are one run.
 *
 *     element   0      7 8     15 16    23          dim - 1
 *               [group 0][group 1][group 2] ...  [last: 1 .. 8 elements]
 *
 * How an engine uses it, one row of one unit by the lanes of a warp:
 *
 *     kvt_lane_unit unit = kvt_lane_unit_of_page(&shape, page, segment, layer, part, head);
 *     kvt_lane_channels channels = kvt_lane_load_channels(&unit, group);   // once for all rows
 *     kvt_lane_codes codes = kvt_lane_load(&unit, row, group);
 *     float v[8];
 *     kvt_lane_decode(&unit, group, &channels, &codes, v);
 *
 * v holds what kvt_page_decode would give before it is rounded to the dtype; kvt_lane_pack rounds.
 * (kvt_lane_unit_of_page is in kernels/page_device.cuh, the checked `page` comes from
 * kvt_cuda_plan; tests/cuda/engine.cu is a whole example.)
 *
 * LANES. For the rotated codecs (w4v, w2v) a rotation block of N elements is decoded by N / 8 lanes
 * together. kvt_lane_decode must then be called by all 32 lanes of the warp at once, and lanes
 * k * N / 8 .. (k + 1) * N / 8 - 1 must hold the groups of one rotation block, in order. That is so
 * if lane i of the warp holds group (first + i) % n_groups with first a multiple of N / 8, where
 * n_groups = kvt_lane_groups(codec, dim) covers the padded row. Lanes without work call it with any
 * codes. All other codecs ask nothing of the lanes.
 *
 * Compile with -fmad=false -ftz=false -prec-div=true. Needs sm_80 or later.
 */
#ifndef KVT_KERNELS_UNIT_DEVICE_CUH
#define KVT_KERNELS_UNIT_DEVICE_CUH

#include "kernels/unit.h"

#define KVT_LANE static __device__ __forceinline__

/* The block's shared memory, all of it dynamic; a loop whose arrays must become registers; an
 * address that came out of memory, of which the compiler cannot know that it is the device's. (In
 * the tests a host compiler takes these sources.) */
#ifdef __CUDACC__
#define KVT_SHARED(name) extern __shared__ __align__(16) uint8_t name[]
#define KVT_UNROLL       _Pragma("unroll")
#define KVT_GLOBAL(at)   __builtin_assume(__isGlobal(at))
#else
#define KVT_SHARED(name) uint8_t *name = (uint8_t *)emu_dynamic_shared()
#define KVT_UNROLL
#define KVT_GLOBAL(at) (void)(at)
#endif

#define KVT_ALL_LANES 0xffffffffu

enum { KVT_GROUP = 8 }; /* elements that a lane decodes at a time */

typedef struct kvt_lane_unit {
    const uint8_t *at;
    uint32_t codec;
    uint32_t dim;
    float scale; /* of fp8s */
    kvt_unit_layout parts;
} kvt_lane_unit;

/* Offset and scale of a group's channels; of i8k, i4k, i2k. */
typedef struct kvt_lane_channels {
    float m[KVT_GROUP];
    float s[KVT_GROUP];
} kvt_lane_channels;

/* A group as it was loaded. */
typedef struct kvt_lane_codes {
    uint4 bits;     /* element i of b bits at bit i * b */
    uint16_t scale; /* binary16, of its row and scale block; 0 where the codec has none */
} kvt_lane_codes;

/* ------------------------------------------------------------------------------------------------
 * Conversions. The device's own instructions; tests/gpu/run compares all inputs with unit.h.
 * ---------------------------------------------------------------------------------------------- */

KVT_LANE float kvt_lane_float_of_half(uint16_t half) {
#ifdef __CUDA_ARCH__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(half));
    return f;
#else
    return kvt_float_of_half(half);
#endif
}

KVT_LANE float kvt_lane_float_of_element(uint32_t dtype, uint16_t element) {
    return dtype == KVT_BF16 ? kvt_float_of_bf16(element) : kvt_lane_float_of_half(element);
}

KVT_LANE uint16_t kvt_lane_half_of_float(float f) {
#ifdef __CUDA_ARCH__
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(f));
    return half;
#else
    return kvt_half_of_float(f);
#endif
}

/* Two elements of the dtype, the first in the lower half. */
KVT_LANE uint32_t kvt_lane_pack2(uint32_t dtype, float first, float second) {
#ifdef __CUDA_ARCH__
    uint32_t packed;
    if (dtype == KVT_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
#else
    return kvt_element_of_float(dtype, first) | (uint32_t)kvt_element_of_float(dtype, second) << 16;
#endif
}

KVT_LANE uint4 kvt_lane_pack(uint32_t dtype, const float *v) {
    return make_uint4(kvt_lane_pack2(dtype, v[0], v[1]), kvt_lane_pack2(dtype, v[2], v[3]),
                      kvt_lane_pack2(dtype, v[4], v[5]), kvt_lane_pack2(dtype, v[6], v[7]));
}

KVT_LANE uint32_t kvt_lane_word(uint4 bits, uint32_t i) {
    return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
}

KVT_LANE uint16_t kvt_lane_element(uint4 bits, uint32_t i) {
    return (uint16_t)(kvt_lane_word(bits, i / 2) >> (i % 2 * 16));
}

/* Byte i of a word as a float: 2^23 has no bits behind the point, so the byte is its last ones. */
KVT_LANE float kvt_lane_float_of_byte(uint32_t word, uint32_t i) {
    return KVT_ADD(kvt_float_of_bits(__byte_perm(word, 0x4b000000u, 0x7440u + i)), -8388608.0f);
}

/* e4m3 has 4 bits of exponent with bias 7, binary16 has 5 with bias 15: shifted into place, the
 * same bits mean 2^-8 times as much, subnormals included. */
KVT_LANE float kvt_lane_float_of_e4m3(uint32_t code) {
    uint16_t half = (uint16_t)((code & 0x80u) << 8 | (code & 0x7fu) << 7);
    float f = KVT_MUL(kvt_lane_float_of_half(half), 256.0f);
    return (code & 0x7fu) == 0x7fu ? kvt_float_of_e4m3((uint8_t)code) : f;
}

/* ------------------------------------------------------------------------------------------------
 * Loading
 * ---------------------------------------------------------------------------------------------- */

/* Bits of a code; also the bytes of a group. */
KVT_LANE uint32_t kvt_lane_code_bits(uint32_t codec) {
    switch (codec) {
    case KVT_CODEC_RAW16:
        return 16;
    case KVT_CODEC_I4K:
    case KVT_CODEC_I4S:
    case KVT_CODEC_W4V:
        return 4;
    case KVT_CODEC_I2K:
    case KVT_CODEC_W2V:
        return 2;
    default:
        return 8;
    }
}

KVT_LANE int kvt_lane_is_rotated(uint32_t codec) {
    return codec == KVT_CODEC_W4V || codec == KVT_CODEC_W2V;
}

/* Groups of a row; with a rotated codec of the row padded to 16 elements, as it is coded. */
KVT_LANE uint32_t kvt_lane_groups(uint32_t codec, uint32_t dim) {
    return ((kvt_lane_is_rotated(codec) ? kvt_pad16(dim) : dim) + KVT_GROUP - 1) / KVT_GROUP;
}

/* The unit of that many rows at `at`, 16-byte aligned. */
KVT_LANE kvt_lane_unit kvt_lane_unit_at(const uint8_t *at, uint32_t codec, uint32_t dim,
                                        uint32_t rows, float scale) {
    kvt_lane_unit unit;
    KVT_GLOBAL(at);
    unit.at = at;
    unit.codec = codec;
    unit.dim = dim;
    unit.scale = scale;
    unit.parts = kvt_unit_layout_of(codec, dim, rows);
    return unit;
}

/* n bytes, n up to 16, at any alignment. */
KVT_LANE uint4 kvt_lane_load_bytes(const uint8_t *at, uint32_t n) {
    uint64_t low = 0, high = 0;
    for (uint32_t i = 0; i < n && i < 8; i++)
        low |= (uint64_t)at[i] << (8 * i);
    for (uint32_t i = 8; i < n; i++)
        high |= (uint64_t)at[i] << (8 * i - 64);
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

/* The codes of a group. A row whose dim is a multiple of 8 has every group aligned to its size. */
KVT_LANE uint4 kvt_lane_load_codes(const kvt_lane_unit *unit, uint32_t row, uint32_t group) {
    uint32_t bytes = kvt_lane_code_bits(unit->codec), offset = group * bytes;
    uint32_t left = unit->parts.row_code_bytes - offset;
    const uint8_t *at =
        unit->at + unit->parts.codes_offset + row * unit->parts.row_code_bytes + offset;
    if (left < bytes || ((uintptr_t)at & (bytes - 1)) != 0)
        return kvt_lane_load_bytes(at, left < bytes ? left : bytes);
    switch (bytes) {
    case 16:
        return *(const uint4 *)at;
    case 8: {
        uint2 codes = *(const uint2 *)at;
        return make_uint4(codes.x, codes.y, 0, 0);
    }
    case 4:
        return make_uint4(*(const uint32_t *)at, 0, 0, 0);
    default:
        return make_uint4(*(const uint16_t *)at, 0, 0, 0);
    }
}

/* Elements that share a row's scale, in groups; 0: there is none. */
KVT_LANE uint32_t kvt_lane_groups_of_scale(const kvt_lane_unit *unit) {
    return (kvt_row_block(unit->codec, unit->dim) + KVT_GROUP - 1) / KVT_GROUP;
}

/* group < kvt_lane_groups. */
KVT_LANE kvt_lane_codes kvt_lane_load(const kvt_lane_unit *unit, uint32_t row, uint32_t group) {
    kvt_lane_codes codes;
    codes.bits = kvt_lane_load_codes(unit, row, group);
    codes.scale = 0;
    uint32_t shared_by = kvt_lane_groups_of_scale(unit);
    if (shared_by) {
        const uint8_t *at = unit->at + unit->parts.row_stats_offset +
                            row * unit->parts.row_stats_bytes + group / shared_by * 2;
        codes.scale = *(const uint16_t *)at;
    }
    return codes;
}

/* Zeros for a codec without statistics per channel. */
KVT_LANE kvt_lane_channels kvt_lane_load_channels(const kvt_lane_unit *unit, uint32_t group) {
    kvt_lane_channels channels;
    uint4 m = make_uint4(0, 0, 0, 0), s = m;
    if (kvt_has_channel_stats(unit->codec)) {
        const uint8_t *at = unit->at + group * 16;
        m = *(const uint4 *)at;
        s = *(const uint4 *)(at + unit->parts.row_stats_offset / 2);
    }
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        channels.m[i] = kvt_lane_float_of_half(kvt_lane_element(m, i));
        channels.s[i] = kvt_lane_float_of_half(kvt_lane_element(s, i));
    }
    return channels;
}

/* ------------------------------------------------------------------------------------------------
 * Rotation
 * ---------------------------------------------------------------------------------------------- */

/*
 * PAIRS. Elements i and i + 4 of a group, whole numbers of 16 bits, in one number of 32:
 * element i + 65536 * element (i + 4). Sums and differences of pairs are the pairs of the sums and
 * differences, so one addition, and one shuffle, does for two elements; nothing is lost while each
 * of the two stays within 16 bits, as |in[0]| + ... + |in[n - 1]| of a transform does.
 */
enum { KVT_PAIRS = KVT_GROUP / 2 };

/*
 * Walsh-Hadamard transform of blocks of n elements, 8 in each of n / 8 neighbouring lanes, but for
 * the step between the two elements of a pair: the caller takes their sum and difference. All lanes
 * of the warp call it.
 */
KVT_LANE void kvt_lane_walsh_hadamard(uint32_t *pairs, uint32_t n) {
    for (uint32_t step = 1; step < KVT_PAIRS; step *= 2) {
        for (uint32_t i = 0; i < KVT_PAIRS; i++) {
            if (i & step)
                continue;
            uint32_t a = pairs[i], b = pairs[i + step];
            pairs[i] = a + b;
            pairs[i + step] = a - b;
        }
    }
    for (uint32_t step = 1; step < n / KVT_GROUP; step *= 2) {
        uint32_t sign = threadIdx.x & step ? UINT32_MAX : 1; /* the upper lane: other - mine */
        for (uint32_t i = 0; i < KVT_PAIRS; i++)
            pairs[i] = __shfl_xor_sync(KVT_ALL_LANES, pairs[i], (int)step, 32) + sign * pairs[i];
    }
}

/* The elements of a pair as floats: as in kvt_lane_float_of_byte, with 2^15 added before and taken
 * away again, since they have signs. */
KVT_LANE float kvt_lane_float_of_low(uint32_t pair) {
    return KVT_ADD(kvt_float_of_bits(((pair & 0xffffu) ^ 0x8000u) | 0x4b000000u), -8421376.0f);
}
KVT_LANE float kvt_lane_float_of_high(uint32_t pair) {
    uint32_t raised = pair + 0x80008000u; /* 2^15 for it, and what the lower one borrowed */
    return KVT_ADD(kvt_float_of_bits(__byte_perm(raised, 0x4b000000u, 0x7432u)), -8421376.0f);
}

/* Bits 0 .. 7: which elements of the group change their sign. */
KVT_LANE uint32_t kvt_lane_rotation_signs(uint32_t group) {
    uint32_t signs = 0;
    for (uint32_t i = 0; i < KVT_GROUP; i++)
        signs |= kvt_rotation_sign(group * KVT_GROUP + i) << i;
    return signs;
}

/* f, negated where bit i of signs is set. */
KVT_LANE float kvt_lane_negate(float f, uint32_t signs, uint32_t i) {
    return kvt_float_of_bits(kvt_float_bits(f) ^ (signs << (31 - i) & 0x80000000u));
}

/* Four codes of two bits as four nibbles: the level in bits 0 .. 2, the sign in bit 3. */
KVT_LANE uint32_t kvt_lane_nibbles_of_w2v(uint32_t codes) {
    uint32_t spread = (codes & 0xffu) | (codes & 0xf0u) << 4;
    spread = (spread & 0x0303u) | (spread & 0x0c0cu) << 2;
    return (spread & 0x1111u) | (spread & 0x2222u) << 2;
}

/*
 * The levels of a group's codes, with their signs, in pairs. __byte_perm is a table of eight bytes
 * that is asked for four nibbles at a time; a nibble whose upper bit is set gives the sign of the
 * byte, repeated: 0, since levels are below 128. So the positive levels come from the codes, the
 * negative ones from the codes with that bit turned.
 */
KVT_LANE void kvt_lane_levels(uint32_t codec, uint32_t codes, uint32_t *pairs) {
    uint32_t low = (uint32_t)(kvt_w4v_level(0) | kvt_w4v_level(1) << 8 | kvt_w4v_level(2) << 16 |
                              kvt_w4v_level(3) << 24);
    uint32_t high = (uint32_t)(kvt_w4v_level(4) | kvt_w4v_level(5) << 8 | kvt_w4v_level(6) << 16 |
                               kvt_w4v_level(7) << 24);
    uint32_t first = codes & 0xffffu, second = codes >> 16;
    if (codec == KVT_CODEC_W2V) {
        low = (uint32_t)(kvt_w2v_level(0) | kvt_w2v_level(1) << 8);
        first = kvt_lane_nibbles_of_w2v(codes);
        second = kvt_lane_nibbles_of_w2v(codes >> 8);
    }
    uint32_t plus[2] = {__byte_perm(low, high, first), __byte_perm(low, high, second)};
    uint32_t minus[2] = {__byte_perm(low, high, first ^ 0x8888u),
                         __byte_perm(low, high, second ^ 0x8888u)};
    for (uint32_t i = 0; i < KVT_PAIRS; i++) { /* byte i of each: 0, second's, 0, first's */
        uint32_t selector = 0xc480u + i * 0x1111u;
        pairs[i] =
            __byte_perm(plus[0], plus[1], selector) - __byte_perm(minus[0], minus[1], selector);
    }
}

KVT_LANE void kvt_lane_decode_rotated(const kvt_lane_unit *unit, uint32_t group,
                                      const kvt_lane_codes *codes, float *v) {
    uint32_t pairs[KVT_PAIRS];
    kvt_lane_levels(unit->codec, codes->bits.x, pairs);
    kvt_lane_walsh_hadamard(pairs, kvt_rotation_block(unit->dim));
    for (uint32_t i = 0; i < KVT_PAIRS; i++) {
        float a = kvt_lane_float_of_low(pairs[i]), b = kvt_lane_float_of_high(pairs[i]);
        v[i] = KVT_ADD(a, b);
        v[i + KVT_PAIRS] = KVT_ADD(a, -b);
    }
    float scale = KVT_MUL(kvt_lane_float_of_half(codes->scale), KVT_ROTATED_SCALE_DOWN);
    uint32_t signs = kvt_lane_rotation_signs(group);
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        /* -0 * scale would be -0 where the reference, in integers, has 0 * scale = +0. */
        float sum = KVT_ADD(kvt_lane_negate(v[i], signs, i), 0.0f);
        float value = KVT_MUL(sum, scale);
        v[i] = value > KVT_HALF_MAX ? KVT_HALF_MAX : value < -KVT_HALF_MAX ? -KVT_HALF_MAX : value;
    }
}

/* ------------------------------------------------------------------------------------------------
 * Decoding
 * ---------------------------------------------------------------------------------------------- */

/* The code of element i as a number: two's complement for i8v, i8k, i4s, unsigned for i4k, i2k. */
KVT_LANE float kvt_lane_integer(uint32_t codec, uint4 bits, uint32_t i) {
    switch (codec) {
    case KVT_CODEC_I8V:
    case KVT_CODEC_I8K:
        return KVT_ADD(kvt_lane_float_of_byte((i < 4 ? bits.x : bits.y) ^ 0x80808080u, i % 4),
                       -128.0f);
    case KVT_CODEC_I4S:
        return KVT_ADD(
            kvt_lane_float_of_byte((bits.x ^ 0x88888888u) >> (i % 2 * 4) & 0x0f0f0f0fu, i / 2),
            -8.0f);
    case KVT_CODEC_I4K:
        return kvt_lane_float_of_byte(bits.x >> (i % 2 * 4) & 0x0f0f0f0fu, i / 2);
    default:
        return kvt_lane_float_of_byte(bits.x >> (i % 4 * 2) & 0x03030303u, i / 4);
    }
}

/* The group's elements before they are rounded to the dtype; those beyond dim mean nothing. Not for
 * raw16, whose codes are the elements. `channels`: of the same group. See LANES above. */
KVT_LANE void kvt_lane_decode(const kvt_lane_unit *unit, uint32_t group,
                              const kvt_lane_channels *channels, const kvt_lane_codes *codes,
                              float *v) {
    float scale = kvt_lane_float_of_half(codes->scale);
    switch (unit->codec) {
    case KVT_CODEC_FP8T:
    case KVT_CODEC_FP8S_E4M3:
        scale = unit->codec == KVT_CODEC_FP8T ? scale : unit->scale;
        for (uint32_t i = 0; i < KVT_GROUP; i++) {
            uint32_t code = (i < 4 ? codes->bits.x : codes->bits.y) >> (i % 4 * 8) & 0xffu;
            v[i] = KVT_MUL(kvt_lane_float_of_e4m3(code), scale);
        }
        break;
    case KVT_CODEC_FP8S_E5M2:
        for (uint32_t i = 0; i < KVT_GROUP; i++) {
            uint32_t code = (i < 4 ? codes->bits.x : codes->bits.y) >> (i % 4 * 8) & 0xffu;
            v[i] = KVT_MUL(kvt_lane_float_of_half((uint16_t)(code << 8)), unit->scale);
        }
        break;
    case KVT_CODEC_I8V:
    case KVT_CODEC_I4S:
        for (uint32_t i = 0; i < KVT_GROUP; i++)
            v[i] = KVT_MUL(kvt_lane_integer(unit->codec, codes->bits, i), scale);
        break;
    case KVT_CODEC_I8K:
    case KVT_CODEC_I4K:
    case KVT_CODEC_I2K:
        for (uint32_t i = 0; i < KVT_GROUP; i++)
            v[i] = KVT_ADD(KVT_MUL(kvt_lane_integer(unit->codec, codes->bits, i), channels->s[i]),
                           channels->m[i]);
        break;
    case KVT_CODEC_W4V:
    case KVT_CODEC_W2V:
        kvt_lane_decode_rotated(unit, group, codes, v);
        break;
    default: /* a number that no checked page holds */
        for (uint32_t i = 0; i < KVT_GROUP; i++)
            v[i] = 0.0f;
    }
}

/* The group as 16-bit elements of the dtype. */
KVT_LANE uint4 kvt_lane_decode_elements(const kvt_lane_unit *unit, uint32_t dtype, uint32_t group,
                                        const kvt_lane_channels *channels,
                                        const kvt_lane_codes *codes) {
    if (unit->codec == KVT_CODEC_RAW16)
        return codes->bits;
    float v[KVT_GROUP];
    kvt_lane_decode(unit, group, channels, codes, v);
    return kvt_lane_pack(dtype, v);
}

/* Stores the first n elements of a group, n up to 8, at 2-byte alignment or better. */
KVT_LANE void kvt_lane_store(uint8_t *at, uint4 elements, uint32_t n) {
    if (n == KVT_GROUP && ((uintptr_t)at & 15u) == 0) {
        *(uint4 *)at = elements;
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        ((uint16_t *)at)[i] = kvt_lane_element(elements, i);
}

/* Loads them; the others are 0. */
KVT_LANE uint4 kvt_lane_load_elements(const uint8_t *at, uint32_t n) {
    if (n == KVT_GROUP && ((uintptr_t)at & 15u) == 0)
        return *(const uint4 *)at;
    uint32_t word[4] = {0, 0, 0, 0};
    for (uint32_t i = 0; i < KVT_GROUP; i++) {
        if (i < n)
            word[i / 2] |= (uint32_t)((const uint16_t *)at)[i] << (i % 2 * 16);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

#endif
