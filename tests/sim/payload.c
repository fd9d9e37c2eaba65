/*
 * payload.c - the oracle: each 16-bit element is a function of (all tokens up to its own, part,
 * dim). So a page under a wrong prefix, a shifted row or a single flipped byte shows.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

enum { PART_ELEMENTS = SIM_PAGE_TOKENS * 64 };

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

static void fill(const sim_world *w, const uint32_t *tokens, uint32_t page, uint32_t rows,
                 uint16_t part[2][PART_ELEMENTS]) {
    uint64_t h = 0x6b767472756e6bu;
    uint32_t dim = w->shape.head_dim[0];
    uint32_t first = page * SIM_PAGE_TOKENS;
    for (uint32_t t = 0; t < first + rows; t++) {
        h = mix(h, tokens[t]);
        for (uint32_t p = 0; p < 2 && t >= first; p++)
            for (uint32_t d = 0; d < dim; d++) {
                uint64_t x = mix(h, p << 16 | d);
                /* finite, positive or negative, never the same for two places by design */
                part[p][(t - first) * dim + d] =
                    (uint16_t)((x >> 32 & 0x8000) | 0x3000 | (x & 0x0fff));
            }
    }
}

static kvt_layout layout_of(const sim_world *w, uint16_t part[2][PART_ELEMENTS]) {
    size_t row = w->shape.head_dim[0] * 2;
    kvt_layout layout = {.part = {part[0], part[1]}};
    for (int p = 0; p < 2; p++) {
        layout.token_stride_bytes[p] = row;
        layout.head_stride_bytes[p] = row * SIM_PAGE_TOKENS;
        layout.layer_stride_bytes[p] = row * SIM_PAGE_TOKENS;
    }
    return layout;
}

void sim_payload_encode(const sim_world *w, const uint32_t *tokens, uint32_t page, uint32_t rows,
                        uint8_t *to, size_t room, size_t *ret_bytes) {
    uint16_t part[2][PART_ELEMENTS];
    fill(w, tokens, page, rows, part);
    kvt_layout layout = layout_of(w, part);
    CHECK_EQ(kvt_page_encode(&w->shape, rows, &layout, to, room, ret_bytes), KVT_OK);
}

uint64_t sim_payload_wrong(const sim_world *w, const uint32_t *tokens, uint32_t page, uint32_t rows,
                           const uint8_t *bytes, size_t n_bytes) {
    uint16_t expected[2][PART_ELEMENTS], actual[2][PART_ELEMENTS];
    uint32_t page_rows;
    memset(actual, 0, sizeof actual);
    fill(w, tokens, page, rows, expected);
    kvt_layout layout = layout_of(w, actual);
    if (kvt_page_check(&w->shape, bytes, n_bytes, 1, &page_rows) != KVT_OK || page_rows < rows ||
        kvt_page_decode(&w->shape, bytes, n_bytes, 0, rows, 0, 1, &layout) != KVT_OK)
        return UINT64_MAX;
    uint64_t wrong = 0;
    size_t n = rows * w->shape.head_dim[0];
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < n; i++)
            wrong += (expected[p][i] ^ actual[p][i]) != 0;
    return wrong;
}
