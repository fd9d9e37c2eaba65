/* kv_kit.h - a worker's own KV for the tests of kernels/: buffers of exactly the bytes that a
 * layout covers, so that a sanitizer sees every access beside them. */
#ifndef KVT_TESTS_KV_KIT_H
#define KVT_TESTS_KV_KIT_H

#include "kernels/page.h"
#include "tests/check.h"

typedef enum kv_style {
    KV_TOKEN_MAJOR,
    KV_HEAD_MAJOR,
    KV_GAPS, /* [token][layer][head], with 6 bytes between rows that nobody may touch */
    KV_N_STYLES
} kv_style;

typedef struct kv_kit {
    kvt_geometry geometry;
    uint32_t n_layers; /* of the buffers, and tokens of them */
    uint32_t n_tokens;
    size_t bytes[2];
    kvt_layout layout;
} kv_kit;

enum { KV_GAP_BYTES = 6 };

/* Buffers for n_layers x heads x n_tokens rows; filled with a pattern that no test writes. */
static inline kv_kit kv_new(const kvt_geometry *geometry, uint32_t n_layers, uint32_t n_tokens,
                            kv_style style) {
    kv_kit kit = {.geometry = *geometry, .n_layers = n_layers, .n_tokens = n_tokens};
    uint32_t heads = geometry->n_kv_heads;
    void *part[2];
    for (int p = 0; p < 2; p++) {
        size_t row = 2 * (size_t)geometry->head_dim[p], rows = (size_t)n_layers * heads * n_tokens;
        kit.bytes[p] = rows * row + (style == KV_GAPS && rows ? (rows - 1) * KV_GAP_BYTES : 0);
        part[p] = malloc(kit.bytes[p] ? kit.bytes[p] : 1);
        CHECK(part[p]);
        memset(part[p], 0xa5, kit.bytes[p]);
    }
    if (style == KV_TOKEN_MAJOR) {
        kvt_layout_token_major(geometry, n_tokens, part[0], part[1], &kit.layout);
    } else if (style == KV_HEAD_MAJOR) {
        kvt_layout_head_major(geometry, n_tokens, part[0], part[1], &kit.layout);
    } else {
        for (int p = 0; p < 2; p++) {
            size_t row = 2 * (size_t)geometry->head_dim[p] + KV_GAP_BYTES;
            kit.layout.part[p] = part[p];
            kit.layout.head_stride_bytes[p] = row;
            kit.layout.layer_stride_bytes[p] = row * heads;
            kit.layout.token_stride_bytes[p] = row * heads * n_layers;
        }
    }
    return kit;
}

static inline void kv_free(kv_kit *kit) {
    free(kit->layout.part[0]);
    free(kit->layout.part[1]);
    memset(kit, 0, sizeof *kit);
}

/* One row of one layer, head and part. */
static inline uint16_t *kv_row(const kv_kit *kit, int part, uint32_t layer, uint32_t head,
                               uint32_t token) {
    return (uint16_t *)(void *)((uint8_t *)kit->layout.part[part] +
                                layer * kit->layout.layer_stride_bytes[part] +
                                head * kit->layout.head_stride_bytes[part] +
                                token * kit->layout.token_stride_bytes[part]);
}

/* Every row; in the same order for every style. */
#define KV_FOR_ROWS(kit, p, l, h, t)                                                               \
    for (int p = 0; p < 2; p++)                                                                    \
        for (uint32_t l = 0; l < (kit)->n_layers; l++)                                             \
            for (uint32_t h = 0; h < (kit)->geometry.n_kv_heads; h++)                              \
                for (uint32_t t = 0; t < (kit)->n_tokens; t++)

static inline void kv_fill_random_bits(kv_kit *kit, uint64_t *seed) {
    KV_FOR_ROWS(kit, p, l, h, t) {
        uint16_t *row = kv_row(kit, p, l, h, t);
        for (uint32_t d = 0; d < kit->geometry.head_dim[p]; d++)
            row[d] = (uint16_t)check_random(seed);
    }
}

/* Do rows a_token .. + n of `a`, layer a_layer + l, and rows b_token .. of b, layer b_layer + l,
 * hold the same bits for l below n_layers? */
static inline int kv_equal(const kv_kit *a, uint32_t a_layer, uint32_t a_token, const kv_kit *b,
                           uint32_t b_layer, uint32_t b_token, uint32_t n_layers,
                           uint32_t n_tokens) {
    for (int p = 0; p < 2; p++)
        for (uint32_t l = 0; l < n_layers; l++)
            for (uint32_t h = 0; h < a->geometry.n_kv_heads; h++)
                for (uint32_t t = 0; t < n_tokens; t++) {
                    if (memcmp(kv_row(a, p, a_layer + l, h, a_token + t),
                               kv_row(b, p, b_layer + l, h, b_token + t),
                               2 * (size_t)a->geometry.head_dim[p]) != 0)
                        return 0;
                }
    return 1;
}

/* Is every byte between the rows still what kv_new wrote? */
static inline int kv_gaps_untouched(const kv_kit *kit) {
    for (int p = 0; p < 2; p++) {
        size_t row = 2 * (size_t)kit->geometry.head_dim[p];
        const uint8_t *at = kit->layout.part[p];
        for (size_t i = row; i < kit->bytes[p]; i += row + KV_GAP_BYTES)
            for (size_t j = 0; j < KV_GAP_BYTES; j++)
                if (at[i + j] != 0xa5)
                    return 0;
    }
    return 1;
}

static inline void *page_new(size_t bytes) {
    void *page = aligned_alloc(KVT_PAGE_ALIGN_BYTES, bytes);
    CHECK(page);
    memset(page, 0x5a, bytes);
    return page;
}

#endif
