/* cooled.c - see cooled.h. */
#include "client/cooled.h"
#include "kernels/page.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RUNGS = 8 };

struct cooled {
    kvt_geometry geometry;
    kvt_page_shape shapes[MAX_RUNGS];
    uint8_t two_bits[MAX_RUNGS]; /* a codec of the set keeps two bits of an element */
    uint32_t n_rungs;
    size_t page_room;
    void *pages[2]; /* [page_room]: one is made of the other */
    void *elements; /* of a page; of a transcoding, and of what is compared with */
};

/* --- the ladder ---------------------------------------------------------------------------------
 */

/* The set at *at, without the blanks around it; moves *at behind it. 0: there is none. */
static int next_set(const char **at, char *to, size_t room) {
    size_t n = strcspn(*at, ">");
    const char *from = *at, *end = *at + n;
    if (!**at)
        return 0;
    *at = end + (*end != 0);
    while (from < end && *from == ' ')
        from++;
    while (end > from && end[-1] == ' ')
        end--;
    if (from == end || (size_t)(end - from) >= room)
        return 0;
    memcpy(to, from, (size_t)(end - from));
    to[end - from] = 0;
    return 1;
}

static uint8_t has_two_bits(const kvt_page_shape *shape) {
    uint8_t found = 0;
    for (uint32_t i = 0; i < shape->n_ranges; i++)
        for (int p = 0; p < 2; p++)
            found |= shape->ranges[i].codec[p] == KVT_CODEC_I2K ||
                     shape->ranges[i].codec[p] == KVT_CODEC_W2V;
    return found;
}

/* A set that the geometry cannot have ends the ladder, in the daemon, too. */
static int add_rung(cooled *c, const char *set) {
    kvt_page_shape *shape = &c->shapes[c->n_rungs];
    if (c->n_rungs == MAX_RUNGS ||
        kvt_page_shape_init(&c->geometry, 0, set, NULL, 0, shape) != KVT_OK)
        return 0;
    size_t room = kvt_page_max_bytes(shape);
    c->page_room = room > c->page_room ? room : c->page_room;
    c->two_bits[c->n_rungs++] = has_two_bits(shape);
    return 1;
}

static void read_ladder(cooled *c, const char *own, const char *ladder) {
    char set[KVT_MAX_NAME_BYTES + 1];
    int is_on_it = 0;
    add_rung(c, own);
    while (next_set(&ladder, set, sizeof set)) {
        if (is_on_it && !add_rung(c, set))
            return;
        is_on_it |= strcmp(set, own) == 0;
    }
}

kvt_status cooled_open(const kvt_realm *realm, const char *ladder, cooled **ret_cooled) {
    cooled *c = calloc(1, sizeof *c);
    if (!c)
        return KVT_ENOMEM;
    c->geometry = realm->geometry;
    read_ladder(c, realm->codec && realm->codec[0] ? realm->codec : "f16", ladder);
    c->page_room =
        (c->page_room + KVT_PAGE_ALIGN_BYTES - 1) / KVT_PAGE_ALIGN_BYTES * KVT_PAGE_ALIGN_BYTES;
    for (int i = 0; i < 2; i++)
        c->pages[i] = aligned_alloc(KVT_PAGE_ALIGN_BYTES, c->page_room);
    c->elements = calloc(1, kvt_page_elements_bytes(&c->shapes[0]));
    if (!c->pages[0] || !c->pages[1] || !c->elements) {
        cooled_close(c);
        return KVT_ENOMEM;
    }
    *ret_cooled = c;
    return KVT_OK;
}

void cooled_close(cooled *c) {
    if (!c)
        return;
    free(c->pages[0]);
    free(c->pages[1]);
    free(c->elements);
    free(c);
}

uint32_t cooled_rungs(const cooled *c) {
    return c->n_rungs;
}

int cooled_rung(const cooled *c, const void *page, size_t page_bytes) {
    for (uint32_t rung = 0; rung < c->n_rungs; rung++)
        if (kvt_page_is_under(&c->shapes[rung], page, page_bytes))
            return (int)rung;
    return -1;
}

/* --- the check ----------------------------------------------------------------------------------
 */

static kvt_layout elements_layout(const cooled *c) {
    const kvt_geometry *g = &c->geometry;
    size_t part = (size_t)g->n_layers * g->n_kv_heads * g->page_tokens * g->head_dim[0] * 2;
    kvt_layout layout;
    kvt_layout_head_major(g, g->page_tokens, c->elements, (char *)c->elements + part, &layout);
    return layout;
}

/* What the ladder makes of these rows, in *ret_page: all that the page has. */
static kvt_status make_page(cooled *c, const oracle *o, const uint64_t *rows, uint32_t n_rows,
                            uint32_t number, uint32_t rung, const void **ret_page,
                            size_t *ret_bytes) {
    kvt_layout layout = elements_layout(c);
    int is_first = number == 0;
    size_t n_bytes = 0;
    oracle_fill(o, rows, n_rows, 0, c->geometry.n_layers, &layout);
    kvt_status status = kvt_page_encode_cow(&c->shapes[0], NULL, 0, 0, n_rows, &layout, is_first,
                                            c->pages[0], c->page_room, &n_bytes);
    for (uint32_t i = 1; status == KVT_OK && i <= rung; i++)
        status = kvt_page_transcode(&c->shapes[i], c->pages[(i - 1) % 2], n_bytes, is_first,
                                    c->elements, c->pages[i % 2], c->page_room, &n_bytes);
    *ret_page = c->pages[rung % 2];
    *ret_bytes = n_bytes;
    return status;
}

static const uint8_t *row_at(const kvt_layout *l, uint32_t part, uint32_t layer, uint32_t head,
                             uint32_t row) {
    return (const uint8_t *)l->part[part] + layer * l->layer_stride_bytes[part] +
           head * l->head_stride_bytes[part] + row * l->token_stride_bytes[part];
}

/* Bytes in which two copies of some rows differ. */
static uint64_t differing(const kvt_geometry *g, uint32_t n_rows, const kvt_layout *a,
                          const kvt_layout *b) {
    uint64_t n = 0;
    for (uint32_t part = 0; part < 2; part++)
        for (uint32_t layer = 0; layer < g->n_layers; layer++)
            for (uint32_t head = 0; head < g->n_kv_heads; head++)
                for (uint32_t row = 0; row < n_rows; row++) {
                    const uint8_t *x = row_at(a, part, layer, head, row);
                    const uint8_t *y = row_at(b, part, layer, head, row);
                    for (uint32_t i = 0; i < 2 * g->head_dim[part]; i++)
                        n += x[i] != y[i];
                }
    return n;
}

/* Decoded once more, from a page that is known to be right. */
static uint64_t check_decoded(cooled *c, const void *page, size_t page_bytes, uint32_t n_rows,
                              const kvt_layout *decoded) {
    kvt_layout expected = elements_layout(c);
    if (kvt_page_decode(&c->shapes[0], page, page_bytes, 0, n_rows, 0, c->geometry.n_layers,
                        &expected) != KVT_OK)
        return UINT64_MAX;
    return differing(&c->geometry, n_rows, &expected, decoded);
}

uint64_t cooled_check(cooled *c, const oracle *o, const uint64_t *rows, uint32_t n_rows,
                      uint32_t number, const void *page, size_t page_bytes,
                      const kvt_layout *decoded, int *ret_exact) {
    const kvt_geometry *g = &c->geometry;
    uint64_t all_bytes =
        2ull * n_rows * g->n_layers * g->n_kv_heads * (g->head_dim[0] + g->head_dim[1]);
    int rung = cooled_rung(c, page, page_bytes);
    uint32_t there = 0;
    size_t n_bytes = 0;
    const void *expected = NULL;
    *ret_exact = 0;
    if (rung < 1 || kvt_page_check(&c->shapes[0], page, page_bytes, 1, &there) != KVT_OK ||
        there < n_rows)
        return all_bytes;
    if (there == n_rows &&
        make_page(c, o, rows, n_rows, number, (uint32_t)rung, &expected, &n_bytes) == KVT_OK)
        *ret_exact = n_bytes == page_bytes && memcmp(expected, page, n_bytes) == 0;
    if (!*ret_exact)
        return (c->two_bits[rung] ? oracle_check_rough : oracle_check_near)(o, rows, n_rows, 0,
                                                                            g->n_layers, decoded);
    uint64_t wrong = check_decoded(c, expected, n_bytes, n_rows, decoded);
    return wrong < all_bytes ? wrong : all_bytes;
}
