/*
 * payload.c - the oracle: each 16-bit element is a function of (tenant, all tokens up to its own,
 * part, dim). So a page under a wrong prefix, a shifted row or a single flipped byte shows.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

#include <math.h>

enum { PART_ELEMENTS = SIM_MAX_LAYERS * SIM_PAGE_TOKENS * 64 };

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

static const kvt_page_shape *shape_of(const sim_world *w, uint32_t slot) {
    return &w->shapes[slot % w->geometry.n_groups];
}

static void fill(const sim_world *w, uint32_t slot, const uint32_t *tokens, uint32_t page,
                 uint32_t rows, uint16_t part[2][PART_ELEMENTS]) {
    uint64_t h = UINT64_C(0x6b767472756e6b) + w->tenant;
    const kvt_page_shape *shape = shape_of(w, slot);
    uint32_t dim = shape->head_dim[0], n = shape->n_layers * dim;
    uint32_t first = page * SIM_PAGE_TOKENS;
    for (uint32_t t = 0; t < first + rows; t++) {
        h = mix(h, tokens[t]);
        for (uint32_t p = 0; p < 2 && t >= first; p++)
            for (uint32_t i = 0; i < n; i++) {
                uint64_t x = mix(h, slot << 20 | p << 16 | i);
                uint32_t row = i / dim * SIM_PAGE_TOKENS + t - first;
                /* finite, positive or negative, never the same for two places by design */
                part[p][row * dim + i % dim] =
                    (uint16_t)((x >> 32 & 0x8000) | 0x3000 | (x & 0x0fff));
                if (x >> 48 == 0) /* one that lossy codecs refuse */
                    part[p][row * dim + i % dim] = 0x7bff;
            }
    }
}

static kvt_layout layout_of(const kvt_page_shape *shape, uint16_t part[2][PART_ELEMENTS]) {
    size_t row = shape->head_dim[0] * 2;
    kvt_layout layout = {.part = {part[0], part[1]}};
    for (int p = 0; p < 2; p++) {
        layout.token_stride_bytes[p] = row;
        layout.head_stride_bytes[p] = row * SIM_PAGE_TOKENS;
        layout.layer_stride_bytes[p] = row * SIM_PAGE_TOKENS;
    }
    return layout;
}

typedef kvt_status encoder(const kvt_page_shape *shape, uint32_t rows, const kvt_layout *from,
                           void *to, size_t to_bytes, size_t *ret_bytes);

void sim_payload_encode(const sim_world *w, uint32_t slot, const uint32_t *tokens, uint32_t page,
                        uint32_t rows, uint8_t *to, size_t room, size_t *ret_bytes) {
    uint16_t part[2][PART_ELEMENTS];
    const kvt_page_shape *shape = shape_of(w, slot);
    encoder *encode = page == 0 ? kvt_page_encode_first : kvt_page_encode;
    fill(w, slot, tokens, page, rows, part);
    kvt_layout layout = layout_of(shape, part);
    CHECK_EQ(encode(shape, rows, &layout, to, room, ret_bytes), KVT_OK);
}

/* --- pages that have cooled ---------------------------------------------------------------------
 */

/* Which set of the ladder the page is under. */
static uint32_t rung_of(const sim_world *w, uint32_t slot, const uint8_t *bytes, size_t n_bytes) {
    const kvt_page_shape *rungs = w->rungs[slot % w->geometry.n_groups];
    uint32_t rung = 0;
    while (rung < w->n_rungs && !kvt_page_is_under(&rungs[rung], bytes, n_bytes))
        rung++;
    return rung;
}

/* Is it what was sealed, byte for byte, after so many steps of the ladder? */
static int same_bytes(const sim_world *w, uint32_t slot, const uint32_t *tokens, uint32_t page,
                      uint32_t rows, uint32_t rung, const uint8_t *bytes, size_t n_bytes) {
    static _Alignas(64) uint8_t pages[2][16384];
    static uint16_t elements[2 * PART_ELEMENTS];
    const kvt_page_shape *rungs = w->rungs[slot % w->geometry.n_groups];
    size_t n;
    sim_payload_encode(w, slot, tokens, page, rows, pages[0], sizeof pages[0], &n);
    for (uint32_t i = 1; i <= rung; i++) {
        CHECK_EQ(kvt_page_transcode(&rungs[i], pages[(i - 1) % 2], n, page == 0, elements,
                                    pages[i % 2], sizeof pages[0], &n),
                 KVT_OK);
    }
    return n == n_bytes && memcmp(pages[rung % 2], bytes, n) == 0;
}

static float value_of(uint16_t element) {
    float f = ldexpf((float)(element & 0x3ff) + (element & 0x7c00 ? 1024.0f : 0.0f),
                     (int)(element >> 10 & 31) - 25 + !(element & 0x7c00));
    return element & 0x8000 ? -f : f;
}

static int row_is_near(const uint16_t *expected, const uint16_t *actual, uint32_t dim) {
    float sum = 0;
    for (uint32_t i = 0; i < dim; i++)
        sum += fabsf(value_of(expected[i]) - value_of(actual[i]));
    return sum < 0.35f * (float)dim; /* of other values, which are .125 to 2, it is near 1.2 */
}

uint64_t sim_payload_wrong(sim_world *w, uint32_t slot, const uint32_t *tokens, uint32_t page,
                           uint32_t rows, const uint8_t *bytes, size_t n_bytes) {
    uint16_t expected[2][PART_ELEMENTS], actual[2][PART_ELEMENTS];
    const kvt_page_shape *shape = shape_of(w, slot);
    uint32_t page_rows, dim = shape->head_dim[0], rung = rung_of(w, slot, bytes, n_bytes);
    memset(actual, 0, sizeof actual);
    fill(w, slot, tokens, page, rows, expected);
    kvt_layout layout = layout_of(shape, actual);
    if (rung == w->n_rungs || kvt_page_check(shape, bytes, n_bytes, 1, &page_rows) != KVT_OK ||
        page_rows < rows ||
        kvt_page_decode(shape, bytes, n_bytes, 0, rows, 0, shape->n_layers, &layout) != KVT_OK)
        return UINT64_MAX;
    w->n.cooled_reads += rung > 0;
    if (page_rows == rows)
        return !same_bytes(w, slot, tokens, page, rows, rung, bytes, n_bytes);
    int exact = rung == 0 && !w->realm_desc.codec[0];
    uint64_t wrong = 0;
    for (int p = 0; p < 2; p++)
        for (uint32_t layer = 0; layer < shape->n_layers; layer++)
            for (uint32_t row = 0; row < rows; row++) {
                uint32_t at = (layer * SIM_PAGE_TOKENS + row) * dim;
                wrong += exact ? memcmp(&expected[p][at], &actual[p][at], dim * 2) != 0
                               : !row_is_near(&expected[p][at], &actual[p][at], dim);
            }
    return wrong;
}
