/* oracle.c - see oracle.h. Four elements are made of one 64-bit word at a time. */
#include "client/oracle.h"

#include <math.h>
#include <string.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* splitmix64's finisher: every bit of the result hangs on every bit of z. */
static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* One step of a path. It is on the critical path of every token, so it is one multiplication and a
 * fold; the row seeds and elements are mixed from it once more. A bijection of the hash for each
 * token, and of the token for each hash: two paths that differ in one token never meet at it. */
static inline uint64_t step(uint64_t hash, uint32_t token) {
    uint64_t z = (hash ^ token) * UINT64_C(0xd6e8feb86659fd93);
    return z ^ (z >> 32);
}

static uint64_t take(uint64_t hash, uint64_t value) {
    return mix(hash + GOLDEN + mix(value));
}

/* With its length, so that "ab" + "c" is not "a" + "bc". */
static uint64_t take_name(uint64_t hash, const char *name) {
    size_t n = name == NULL ? 0 : strlen(name);
    hash = take(hash, n);
    for (size_t i = 0; i < n; i++) {
        hash = take(hash, (unsigned char)name[i]);
    }
    return hash;
}

void oracle_init(const kvt_realm *realm, oracle *ret_oracle) {
    const kvt_geometry *g = &realm->geometry;
    uint64_t hash = take_name(0, realm->model);
    hash = take_name(hash, realm->engine);
    hash = take_name(hash, realm->adapter);
    hash = take_name(hash, realm->adapter_version);
    hash = take_name(hash, realm->salt);
    hash = take_name(hash, realm->codec);
    const uint32_t fields[] = {g->kind,        g->dtype,       g->n_layers,    g->n_kv_heads,
                               g->head_dim[0], g->head_dim[1], g->page_tokens, g->n_ranks,
                               g->rank,        g->n_groups};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        hash = take(hash, fields[i]);
    }
    for (uint32_t i = 0; i < g->n_groups && i < KVT_MAX_GROUPS; i++) {
        hash = take(take(hash, g->groups[i].n_layers), g->groups[i].window);
    }
    *ret_oracle = (oracle){.root = hash,
                           .dtype = g->dtype,
                           .n_layers = g->n_layers,
                           .n_kv_heads = g->n_kv_heads,
                           .head_dim = {g->head_dim[0], g->head_dim[1]}};
}

void oracle_rows(const oracle *o, const uint32_t *tokens, size_t n, uint64_t *ret_rows) {
    uint64_t hash = o->root;
    for (size_t i = 0; i < n; i++) {
        hash = step(hash, tokens[i]);
        ret_rows[i] = hash;
    }
}

static inline uint64_t row_seed(uint64_t hash, uint32_t layer, uint32_t head, uint32_t part) {
    return mix(hash + GOLDEN * (1 + (((uint64_t)layer * KVT_MAX_HEADS + head) * 2 + part)));
}

/*
 * Elements 4 * word .. 4 * word + 3 of a row, the first in the low bits.
 *
 *     f16   s eeeee mmmmmmmmmm     3 bits of exponent from the mix, + 9:   2^-6 .. 2^1
 *     bf16  s eeeeeeee mmmmmmm     3 bits of exponent from the mix, + 121: 2^-6 .. 2^1
 *
 * The sums stay within their 16 bits, so the four are made at once.
 */
static inline uint64_t four_elements(uint32_t dtype, uint64_t seed, uint32_t word) {
    uint64_t z = mix(seed + GOLDEN * (word + 1));
    return dtype == KVT_F16 ? (z & UINT64_C(0x9fff9fff9fff9fff)) + UINT64_C(0x2400240024002400)
                            : (z & UINT64_C(0x83ff83ff83ff83ff)) + UINT64_C(0x3c803c803c803c80);
}

static void fill_row(uint32_t dtype, uint64_t seed, uint32_t dim, uint16_t *to) {
    uint32_t word = 0;
    for (; word < dim / 4; word++) {
        uint64_t four = four_elements(dtype, seed, word);
        memcpy(to + (size_t)word * 4, &four, sizeof four);
    }
    if (dim % 4 != 0) {
        uint64_t four = four_elements(dtype, seed, word);
        memcpy(to + (size_t)word * 4, &four, dim % 4 * sizeof *to);
    }
}

static uint64_t wrong_bytes(uint64_t difference) {
    uint64_t n = 0;
    for (; difference != 0; difference >>= 8) {
        n += (difference & 0xff) != 0;
    }
    return n;
}

static uint64_t check_row(uint32_t dtype, uint64_t seed, uint32_t dim, const uint16_t *from) {
    uint64_t n = 0, found;
    uint32_t word = 0;
    for (; word < dim / 4; word++) {
        memcpy(&found, from + (size_t)word * 4, sizeof found);
        uint64_t difference = found ^ four_elements(dtype, seed, word);
        if (difference != 0) {
            n += wrong_bytes(difference);
        }
    }
    if (dim % 4 != 0) {
        uint64_t expected = four_elements(dtype, seed, word);
        found = expected; /* what lies behind the row is not looked at */
        memcpy(&found, from + (size_t)word * 4, dim % 4 * sizeof *from);
        n += wrong_bytes(found ^ expected);
    }
    return n;
}

float oracle_float(uint32_t dtype, uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, wide;
    float value;
    if (dtype == KVT_BF16) {
        wide = (uint32_t)bits << 16;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    /* Exponent and mantissa in their new places; the product moves the bias from 15 to 127, and
     * makes normal numbers of the subnormal ones. Exact. */
    wide = (uint32_t)(bits & 0x7fff) << 13;
    memcpy(&value, &wide, sizeof value);
    value *= 0x1p112f;
    memcpy(&wide, &value, sizeof wide);
    wide |= sign | ((bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0);
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint64_t check_row_near(uint32_t dtype, uint64_t seed, uint32_t dim, const uint16_t *from) {
    uint16_t expected[KVT_MAX_HEAD_DIM];
    fill_row(dtype, seed, dim, expected);
    float size = 0, error = 0;
    for (uint32_t d = 0; d < dim; d++) {
        float x = oracle_float(dtype, expected[d]), e = x - oracle_float(dtype, from[d]);
        size += x * x;
        error += e * e;
    }
    /* Written so that a NaN is wrong. */
    int near = sqrtf(error) <= 0.45f * sqrtf(size) + 0.3f * sqrtf((float)dim);
    return near ? 0 : (uint64_t)dim * sizeof *from;
}

/* The row's place; the two loops below run over the same places. */
static inline uint16_t *row_at(const kvt_layout *layout, uint32_t part, uint32_t layer,
                               uint32_t head, size_t row) {
    return (uint16_t *)((char *)layout->part[part] + layer * layout->layer_stride_bytes[part] +
                        head * layout->head_stride_bytes[part] +
                        row * layout->token_stride_bytes[part]);
}

void oracle_fill(const oracle *o, const uint64_t *rows, size_t n_rows, uint32_t first_layer,
                 uint32_t n_layers, const kvt_layout *to) {
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        for (uint32_t part = 0; part < 2; part++) {
            for (uint32_t head = 0; head < o->n_kv_heads; head++) {
                for (size_t row = 0; row < n_rows; row++) {
                    fill_row(o->dtype, row_seed(rows[row], first_layer + layer, head, part),
                             o->head_dim[part], row_at(to, part, layer, head, row));
                }
            }
        }
    }
}

typedef uint64_t row_checker(uint32_t dtype, uint64_t seed, uint32_t dim, const uint16_t *from);

static inline uint64_t check_all(const oracle *o, const uint64_t *rows, size_t n_rows,
                                 uint32_t first_layer, uint32_t n_layers, const kvt_layout *from,
                                 row_checker *check) {
    uint64_t n = 0;
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        for (uint32_t part = 0; part < 2; part++) {
            for (uint32_t head = 0; head < o->n_kv_heads; head++) {
                for (size_t row = 0; row < n_rows; row++) {
                    n += check(o->dtype, row_seed(rows[row], first_layer + layer, head, part),
                               o->head_dim[part], row_at(from, part, layer, head, row));
                }
            }
        }
    }
    return n;
}

uint64_t oracle_check(const oracle *o, const uint64_t *rows, size_t n_rows, uint32_t first_layer,
                      uint32_t n_layers, const kvt_layout *from) {
    return check_all(o, rows, n_rows, first_layer, n_layers, from, check_row);
}

uint64_t oracle_check_near(const oracle *o, const uint64_t *rows, size_t n_rows,
                           uint32_t first_layer, uint32_t n_layers, const kvt_layout *from) {
    return check_all(o, rows, n_rows, first_layer, n_layers, from, check_row_near);
}

/* Rows that are looked at together. */
typedef struct rough {
    double size, error; /* sums of squares */
    uint64_t n_elements, n_wrong;
    uint64_t n_left; /* elements that are still to come: the last rows go with those before */
} rough;

static void take_row(rough *r, uint32_t dtype, uint64_t seed, uint32_t dim, const uint16_t *from) {
    uint16_t expected[KVT_MAX_HEAD_DIM];
    fill_row(dtype, seed, dim, expected);
    for (uint32_t d = 0; d < dim; d++) {
        float x = oracle_float(dtype, expected[d]), e = x - oracle_float(dtype, from[d]);
        r->size += (double)(x * x);
        r->error += (double)(e * e);
    }
    r->n_elements += dim;
    r->n_left -= dim;
    if (r->n_elements < ORACLE_ROUGH_ELEMENTS ||
        (r->n_left > 0 && r->n_left < ORACLE_ROUGH_ELEMENTS)) {
        return;
    }
    /* Written so that a NaN is wrong. */
    if (!(r->error <= 0.7 * r->size)) {
        r->n_wrong += r->n_elements * sizeof *from;
    }
    r->size = r->error = 0;
    r->n_elements = 0;
}

uint64_t oracle_check_rough(const oracle *o, const uint64_t *rows, size_t n_rows,
                            uint32_t first_layer, uint32_t n_layers, const kvt_layout *from) {
    rough r = {.n_left =
                   (uint64_t)n_layers * o->n_kv_heads * n_rows * (o->head_dim[0] + o->head_dim[1])};
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        for (uint32_t part = 0; part < 2; part++) {
            for (uint32_t head = 0; head < o->n_kv_heads; head++) {
                for (size_t row = 0; row < n_rows; row++) {
                    take_row(&r, o->dtype, row_seed(rows[row], first_layer + layer, head, part),
                             o->head_dim[part], row_at(from, part, layer, head, row));
                }
            }
        }
    }
    return r.n_wrong;
}
