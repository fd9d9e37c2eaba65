/*
 * test_oracle.c - the payload oracle: elements are what oracle.h says, each flipped bit is found as
 * one wrong byte, and rows of another path, realm, layer, head, part or place are wrong. And the
 * count of a trace's own reuse, against one that compares tokens.
 */
#include "client/oracle.h"
#include "client/reuse.h"

#include <math.h>

#include "tests/check.h"

enum { LAYERS = 3, HEADS = 2, TOKENS = 9 };

static kvt_realm realm_of(uint32_t dtype, uint32_t dim0, uint32_t dim1) {
    kvt_realm realm = {.model = "m"};
    realm.geometry = (kvt_geometry){.kind = KVT_KV,
                                    .dtype = dtype,
                                    .n_layers = LAYERS,
                                    .n_kv_heads = HEADS,
                                    .head_dim = {dim0, dim1},
                                    .page_tokens = 16,
                                    .n_ranks = 1,
                                    .n_groups = 1,
                                    .groups = {{.n_layers = LAYERS}}};
    return realm;
}

/* A buffer of each part in either order of head and token, with a gap behind each row. */
typedef struct rows_buffer {
    uint8_t *bytes[2];
    size_t n_bytes[2];
    size_t row_bytes[2];
    kvt_layout layout;
} rows_buffer;

static void buffer_open(const oracle *o, int head_major, rows_buffer *ret) {
    for (uint32_t p = 0; p < 2; p++) {
        size_t row = o->head_dim[p] * 2u, gap = row + 6;
        ret->row_bytes[p] = row;
        ret->n_bytes[p] = LAYERS * HEADS * TOKENS * gap;
        ret->bytes[p] = malloc(ret->n_bytes[p]);
        CHECK(ret->bytes[p] != NULL);
        memset(ret->bytes[p], 0xee, ret->n_bytes[p]);
        ret->layout.part[p] = ret->bytes[p];
        ret->layout.layer_stride_bytes[p] = HEADS * TOKENS * gap;
        ret->layout.head_stride_bytes[p] = head_major ? TOKENS * gap : gap;
        ret->layout.token_stride_bytes[p] = head_major ? gap : HEADS * gap;
    }
}

static void buffer_close(rows_buffer *b) {
    free(b->bytes[0]);
    free(b->bytes[1]);
}

/* Is this byte of the part inside a row, or in the gap behind one? */
static int in_row(const rows_buffer *b, uint32_t part, size_t at) {
    return at % (b->row_bytes[part] + 6) < b->row_bytes[part];
}

static void every_wrong_byte_is_found(uint32_t dtype, uint32_t dim0, uint32_t dim1,
                                      int head_major) {
    kvt_realm realm = realm_of(dtype, dim0, dim1);
    oracle o;
    oracle_init(&realm, &o);
    uint32_t tokens[TOKENS] = {0, 1, 1, UINT32_MAX, 7, 0, 0, 5, 9};
    uint64_t rows[TOKENS];
    oracle_rows(&o, tokens, TOKENS, rows);
    rows_buffer b;
    buffer_open(&o, head_major, &b);
    oracle_fill(&o, rows, TOKENS, 0, LAYERS, &b.layout);
    CHECK_EQ(oracle_check(&o, rows, TOKENS, 0, LAYERS, &b.layout), 0);
    CHECK_EQ(oracle_check_near(&o, rows, TOKENS, 0, LAYERS, &b.layout), 0);
    CHECK_EQ(oracle_check_rough(&o, rows, TOKENS, 0, LAYERS, &b.layout), 0);
    for (uint32_t p = 0; p < 2; p++) {
        for (size_t at = 0; at < b.n_bytes[p]; at++) {
            CHECK(in_row(&b, p, at) || b.bytes[p][at] == 0xee);
            for (unsigned bit = 0; bit < 8; bit++) {
                b.bytes[p][at] ^= (uint8_t)(1u << bit);
                uint64_t wrong = oracle_check(&o, rows, TOKENS, 0, LAYERS, &b.layout);
                CHECK_MSG(wrong == (uint64_t)in_row(&b, p, at), "part %u byte %zu bit %u: %llu", p,
                          at, bit, (unsigned long long)wrong);
                b.bytes[p][at] ^= (uint8_t)(1u << bit);
            }
        }
    }
    /* All of them at once. */
    for (uint32_t p = 0; p < 2; p++) {
        for (size_t at = 0; at < b.n_bytes[p]; at++) {
            b.bytes[p][at] ^= 0xff;
        }
    }
    CHECK_EQ(oracle_check(&o, rows, TOKENS, 0, LAYERS, &b.layout),
             LAYERS * HEADS * TOKENS * (dim0 + dim1) * 2);
    buffer_close(&b);
}

/* A part of the layers and tokens gives what the whole gives there. */
static void a_part_is_a_part_of_the_whole(void) {
    kvt_realm realm = realm_of(KVT_F16, 8, 6);
    oracle o;
    oracle_init(&realm, &o);
    uint32_t tokens[TOKENS] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    uint64_t rows[TOKENS];
    oracle_rows(&o, tokens, TOKENS, rows);
    rows_buffer b;
    buffer_open(&o, 0, &b);
    oracle_fill(&o, rows, TOKENS, 0, LAYERS, &b.layout);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (size_t token = 0; token < TOKENS; token++) {
            kvt_layout part = b.layout;
            for (uint32_t p = 0; p < 2; p++) {
                part.part[p] = (char *)part.part[p] + layer * part.layer_stride_bytes[p] +
                               token * part.token_stride_bytes[p];
            }
            uint32_t n_layers = LAYERS - layer;
            size_t n = TOKENS - token;
            CHECK_EQ(oracle_check(&o, rows + token, n, layer, n_layers, &part), 0);
            if (layer > 0) {
                CHECK(oracle_check(&o, rows + token, n, layer - 1, n_layers, &part) > 0);
            }
            if (token > 0) {
                CHECK(oracle_check(&o, rows + token - 1, n, layer, n_layers, &part) > 0);
            }
        }
    }
    buffer_close(&b);
}

/* Nearly all bytes of rows that belong to something else are wrong, and most rows are not near. */
static void is_another(const oracle *o, const uint64_t *rows, const oracle *other,
                       const uint64_t *other_rows) {
    rows_buffer b;
    buffer_open(o, 1, &b);
    oracle_fill(other, other_rows, TOKENS, 0, LAYERS, &b.layout);
    uint64_t n_bytes = LAYERS * HEADS * TOKENS * 2ull * (o->head_dim[0] + o->head_dim[1]);
    CHECK(oracle_check(o, rows, TOKENS, 0, LAYERS, &b.layout) > n_bytes * 85 / 100);
    CHECK(oracle_check_near(o, rows, TOKENS, 0, LAYERS, &b.layout) > n_bytes * 90 / 100);
    CHECK_EQ(oracle_check_rough(o, rows, TOKENS, 0, LAYERS, &b.layout),
             n_bytes / 2 < ORACLE_ROUGH_ELEMENTS ? 0 : n_bytes);
    buffer_close(&b);
}

static void another_realm_has_other_bytes(void) {
    uint32_t tokens[TOKENS] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    kvt_realm base = realm_of(KVT_F16, 32, 32), others[14];
    for (int i = 0; i < 14; i++) {
        others[i] = base;
    }
    base.engine = base.adapter = base.adapter_version = base.salt = base.codec = "";
    others[0].model = "n";
    others[1].engine = "x";
    others[2].adapter = "x";
    others[3].adapter_version = "x";
    others[4].salt = "x";
    others[5].codec = "x";
    others[6].model = "mx"; /* a name that swallows another */
    others[7].geometry.page_tokens = 32;
    others[8].geometry.rank = 1;
    others[9].geometry.n_ranks = 2;
    others[10].geometry.n_layers = 4;
    others[11].geometry.groups[0].window = 5;
    others[12].geometry.kind = KVT_MLA;
    others[13].geometry.groups[0].n_layers = 4;
    oracle o, other;
    uint64_t rows[TOKENS], other_rows[TOKENS];
    oracle_init(&base, &o);
    oracle_rows(&o, tokens, TOKENS, rows);
    for (int i = 0; i < 14; i++) {
        oracle_init(&others[i], &other);
        oracle_rows(&other, tokens, TOKENS, other_rows);
        is_another(&o, rows, &other, other_rows);
    }
    kvt_realm null_names = realm_of(KVT_F16, 32, 32); /* NULL is "" */
    oracle_init(&null_names, &other);
    CHECK(other.root == o.root);
}

static void another_path_has_other_bytes(void) {
    kvt_realm realm = realm_of(KVT_BF16, 32, 32);
    oracle o;
    oracle_init(&realm, &o);
    uint32_t tokens[TOKENS] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    uint64_t rows[TOKENS], other_rows[TOKENS];
    oracle_rows(&o, tokens, TOKENS, rows);
    for (unsigned bit = 0; bit < 32; bit++) {
        tokens[0] ^= 1u << bit;
        oracle_rows(&o, tokens, TOKENS, other_rows);
        is_another(&o, rows, &o, other_rows);
        tokens[0] ^= 1u << bit;
    }
    /* A change shows from its own row on, and not before. */
    tokens[4] ^= 1;
    oracle_rows(&o, tokens, TOKENS, other_rows);
    for (size_t i = 0; i < TOKENS; i++) {
        CHECK((rows[i] == other_rows[i]) == (i < 4));
    }
    tokens[4] ^= 1;
    tokens[0] = 1; /* the order counts */
    tokens[1] = 3;
    oracle_rows(&o, tokens, TOKENS, other_rows);
    for (size_t i = 0; i < TOKENS; i++) {
        CHECK(rows[i] != other_rows[i]);
    }
}

static void elements_are_moderate(uint32_t dtype) {
    kvt_realm realm = realm_of(dtype, 1024, 2);
    oracle o;
    oracle_init(&realm, &o);
    static uint16_t row[LAYERS * HEADS * 1024], rest[LAYERS * HEADS * 2];
    const kvt_layout layout = {.part = {row, rest},
                               .layer_stride_bytes = {HEADS * 2048, HEADS * 4},
                               .head_stride_bytes = {2048, 4},
                               .token_stride_bytes = {2048, 4}};
    unsigned n_negative = 0, seen[8] = {0};
    for (uint32_t token = 0; token < 50; token++) {
        uint64_t hash;
        oracle_rows(&o, &token, 1, &hash);
        oracle_fill(&o, &hash, 1, 0, LAYERS, &layout);
        for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
            float x = oracle_float(dtype, row[i]), size = fabsf(x);
            CHECK_MSG(size >= 0x1p-6f && size < 4, "%04x is %g", row[i], (double)x);
            n_negative += x < 0;
            seen[ilogbf(size) + 6]++;
        }
    }
    const unsigned n = 50 * LAYERS * HEADS * 1024;
    CHECK(n_negative > n * 49 / 100 && n_negative < n * 51 / 100);
    for (int i = 0; i < 8; i++) {
        CHECK(seen[i] > n * 11 / 100 && seen[i] < n * 14 / 100);
    }
}

static void floats_are_read_right(void) {
    CHECK(oracle_float(KVT_F16, 0x3c00) == 1.0f && oracle_float(KVT_F16, 0xc000) == -2.0f);
    CHECK(oracle_float(KVT_F16, 0x7bff) == 65504.0f && oracle_float(KVT_F16, 0x0001) == 0x1p-24f);
    CHECK(oracle_float(KVT_F16, 0x0400) == 0x1p-14f && oracle_float(KVT_F16, 0x8000) == 0.0f);
    CHECK(isinf(oracle_float(KVT_F16, 0xfc00)) && isnan(oracle_float(KVT_F16, 0x7c01)));
    CHECK(oracle_float(KVT_BF16, 0x3f80) == 1.0f && oracle_float(KVT_BF16, 0xc000) == -2.0f);
    CHECK(isinf(oracle_float(KVT_BF16, 0x7f80)) && isnan(oracle_float(KVT_BF16, 0x7fc0)));
}

/* Four bits a value, from the least to the greatest of each row, are near; NaN never is. */
static void four_bits_are_near(void) {
    kvt_realm realm = realm_of(KVT_BF16, 64, 64);
    oracle o;
    oracle_init(&realm, &o);
    rows_buffer b;
    buffer_open(&o, 0, &b);
    for (uint32_t token = 0; token < 200; token++) {
        uint32_t tokens[TOKENS] = {token};
        uint64_t rows[TOKENS];
        oracle_rows(&o, tokens, TOKENS, rows);
        oracle_fill(&o, rows, TOKENS, 0, LAYERS, &b.layout);
        for (size_t i = 0; i < b.n_bytes[0]; i += b.row_bytes[0] + 6) {
            uint16_t *row = (uint16_t *)(void *)(b.bytes[0] + i);
            for (int d = 0; d < 64; d++) {
                float step = 8.0f / 15, x = oracle_float(KVT_BF16, row[d]);
                x = rintf((x + 4) / step) * step - 4;
                uint32_t bits;
                memcpy(&bits, &x, sizeof bits);
                row[d] = (uint16_t)(bits >> 16);
            }
        }
        CHECK(oracle_check(&o, rows, TOKENS, 0, LAYERS, &b.layout) > 0);
        CHECK_EQ(oracle_check_near(&o, rows, TOKENS, 0, LAYERS, &b.layout), 0);
        CHECK_EQ(oracle_check_rough(&o, rows, TOKENS, 0, LAYERS, &b.layout), 0);
        ((uint16_t *)(void *)b.bytes[0])[5] = 0x7fc0;
        CHECK_EQ(oracle_check_near(&o, rows, TOKENS, 0, LAYERS, &b.layout), b.row_bytes[0]);
        CHECK_EQ(oracle_check_rough(&o, rows, TOKENS, 0, LAYERS, &b.layout),
                 2 * ORACLE_ROUGH_ELEMENTS); /* the rows that it stands with */
    }
    buffer_close(&b);
}

/* --- reuse
 * ---------------------------------------------------------------------------------------- */

enum { REQUESTS = 60, LONGEST = 24 };

/* Requests from a tiny alphabet, compared with each other token by token. */
static void reuse_is_what_tokens_say(uint64_t seed, uint32_t step) {
    static uint32_t tokens[REQUESTS][LONGEST], n_tokens[REQUESTS];
    uint64_t random = seed, best = 0, asked = 0, pages = 0;
    const uint32_t page = 4;
    kvt_realm realm = realm_of(KVT_F16, 4, 4);
    oracle o;
    reuse *r = NULL;
    oracle_init(&realm, &o);
    CHECK_EQ(reuse_open(step, page, &r), KVT_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t rows[LONGEST];
        n_tokens[i] = check_below(&random, LONGEST / step + 1) * step;
        for (uint32_t k = 0; k < n_tokens[i]; k++) {
            tokens[i][k] = check_below(&random, 2);
        }
        uint32_t longest = 0;
        for (uint32_t j = 0; j < i; j++) {
            uint32_t k = 0;
            while (k < n_tokens[i] && k < n_tokens[j] && tokens[i][k] == tokens[j][k]) {
                k++;
            }
            longest = k > longest ? k : longest;
        }
        best += longest / step * step;
        asked += n_tokens[i];
        for (uint32_t start = 0; start < n_tokens[i]; start += page) {
            uint32_t end = start + page < n_tokens[i] ? start + page : n_tokens[i];
            int is_new = 1;
            for (uint32_t j = 0; j < i; j++) {
                if ((end % page == 0 ? n_tokens[j] >= end : n_tokens[j] == end) &&
                    memcmp(tokens[j], tokens[i], end * sizeof tokens[i][0]) == 0) {
                    is_new = 0;
                }
            }
            pages += (uint64_t)is_new;
        }
        oracle_rows(&o, tokens[i], n_tokens[i], rows);
        CHECK_EQ(reuse_add(r, rows, n_tokens[i]), KVT_OK);
    }
    reuse_counts counts;
    reuse_get(r, &counts);
    CHECK_MSG(counts.tokens_best == best && counts.tokens == asked && counts.requests == REQUESTS,
              "seed %llu step %u", (unsigned long long)seed, step);
    CHECK_MSG(counts.unique_pages == pages, "seed %llu: %llu pages, not %llu",
              (unsigned long long)seed, (unsigned long long)counts.unique_pages,
              (unsigned long long)pages);
    reuse_close(r);
}

/* Enough to make the sets grow. */
static void reuse_grows(void) {
    reuse *r = NULL;
    reuse_counts counts;
    uint64_t random = 1;
    static uint64_t rows[50000];
    for (size_t i = 0; i < 50000; i++) {
        rows[i] = check_random(&random);
    }
    rows[7] = 0;
    CHECK_EQ(reuse_open(1, 1, &r), KVT_OK);
    for (int round = 1; round <= 2; round++) {
        CHECK_EQ(reuse_add(r, rows, 50000), KVT_OK);
        reuse_get(r, &counts);
        CHECK_EQ(counts.tokens_best, round == 1 ? 0 : 50000);
        CHECK_EQ(counts.unique_pages, 50000);
    }
    reuse_close(r);
    reuse_close(NULL);
    CHECK_EQ(reuse_open(0, 1, &r), KVT_EINVAL);
    CHECK_EQ(reuse_open(1, 0, &r), KVT_EINVAL);
}

int main(void) {
    floats_are_read_right();
    elements_are_moderate(KVT_F16);
    elements_are_moderate(KVT_BF16);
    every_wrong_byte_is_found(KVT_F16, 4, 4, 0);
    every_wrong_byte_is_found(KVT_F16, 10, 2, 1);
    every_wrong_byte_is_found(KVT_BF16, 6, 8, 0);
    a_part_is_a_part_of_the_whole();
    another_realm_has_other_bytes();
    another_path_has_other_bytes();
    four_bits_are_near();
    for (uint64_t seed = 1; seed <= 100; seed++) {
        reuse_is_what_tokens_say(seed, 1);
        reuse_is_what_tokens_say(seed, 2);
        reuse_is_what_tokens_say(seed, 4);
    }
    reuse_grows();
    return 0;
}
