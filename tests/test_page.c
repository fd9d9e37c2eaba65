/* The container: geometries, codec sets, sizes, headers, segments, and raw16 to the bit. */
#include <xxhash.h>

#include "kernels/page.h"
#include "tests/kv_kit.h"

static uint64_t seed = 20240917;

/* ------------------------------------------------------------------------------------------------
 * Geometry and layouts
 * ---------------------------------------------------------------------------------------------- */

static kvt_geometry mla(uint32_t n_layers, uint32_t page_tokens) {
    kvt_geometry g;
    kvt_geometry_init(&g, n_layers, 1, 512, page_tokens);
    g.kind = KVT_MLA;
    g.head_dim[1] = 64;
    return g;
}

static void expect_geometry(const kvt_geometry *g, kvt_status status, const char *word) {
    char why[200] = "";
    CHECK_MSG(kvt_geometry_check(g, why, sizeof why) == status, "%s: %s", word, why);
    CHECK_EQ(kvt_geometry_check(g, NULL, 0), status);
    CHECK_MSG(status == KVT_OK || strstr(why, word), "'%s' does not name %s", why, word);
    char cut[8];
    memset(cut, 'x', sizeof cut);
    kvt_geometry_check(g, cut, 5);
    CHECK(status == KVT_OK || (cut[4] == '\0' && cut[5] == 'x'));
}

static void test_geometry(void) {
    kvt_geometry good, g;
    kvt_geometry_init(&good, 32, 8, 128, 64);
    expect_geometry(&good, KVT_OK, "");
    g = mla(61, 64);
    expect_geometry(&g, KVT_OK, "");
#define BAD(field, value, status, word)                                                            \
    do {                                                                                           \
        g = good;                                                                                  \
        g.field = value;                                                                           \
        expect_geometry(&g, status, word);                                                         \
    } while (0)
    BAD(kind, 0, KVT_EGEOMETRY, "kind");
    BAD(kind, 3, KVT_EGEOMETRY, "kind");
    BAD(kind, KVT_MLA, KVT_EGEOMETRY, "n_kv_heads");
    BAD(dtype, 0, KVT_EGEOMETRY, "dtype");
    BAD(dtype, 3, KVT_EGEOMETRY, "dtype");
    BAD(n_layers, 0, KVT_EGEOMETRY, "n_layers");
    BAD(n_layers, 31, KVT_EGEOMETRY, "n_layers");
    BAD(n_layers, 33, KVT_EGEOMETRY, "n_layers");
    BAD(n_layers, 1025, KVT_ELIMIT, "n_layers");
    BAD(n_kv_heads, 0, KVT_EGEOMETRY, "n_kv_heads");
    BAD(n_kv_heads, 1025, KVT_ELIMIT, "n_kv_heads");
    BAD(n_kv_heads, UINT32_MAX, KVT_ELIMIT, "n_kv_heads");
    BAD(head_dim[0], 0, KVT_EGEOMETRY, "head_dim[0]");
    BAD(head_dim[1], 127, KVT_EGEOMETRY, "head_dim[1]");
    BAD(head_dim[1], 1026, KVT_ELIMIT, "head_dim[1]");
    BAD(page_tokens, 0, KVT_EGEOMETRY, "page_tokens");
    BAD(page_tokens, 48, KVT_EGEOMETRY, "page_tokens");
    BAD(page_tokens, 256, KVT_EGEOMETRY, "page_tokens");
    BAD(n_ranks, 0, KVT_EGEOMETRY, "n_ranks");
    BAD(n_ranks, 65, KVT_ELIMIT, "n_ranks");
    BAD(rank, 1, KVT_EGEOMETRY, "rank");
    BAD(n_groups, 0, KVT_EGEOMETRY, "n_groups");
    BAD(n_groups, 9, KVT_ELIMIT, "n_groups");
    BAD(n_groups, 2, KVT_EGEOMETRY, "groups[1]");
    BAD(groups[0].n_layers, 33, KVT_EGEOMETRY, "groups[0]");
    good.page_tokens = 128;
    BAD(n_kv_heads, 1024, KVT_ELIMIT, "groups[0]"); /* 2 GiB a page */
    good.page_tokens = 64;
    g = good;
    g.n_kv_heads = 1024; /* 1 GiB */
    expect_geometry(&g, KVT_OK, "");
#undef BAD
    g = good;
    g.n_groups = 2;
    g.groups[0].n_layers = 2;
    g.groups[1].n_layers = 30;
    g.groups[1].window = 4096;
    expect_geometry(&g, KVT_OK, "");
}

static void test_layouts(void) {
    kvt_geometry g = mla(3, 16);
    g.kind = KVT_KV;
    g.n_kv_heads = 5;
    kvt_layout layout;
    char a, b;
    kvt_layout_token_major(&g, 7, &a, &b, &layout);
    CHECK(layout.part[0] == &a && layout.part[1] == &b);
    CHECK_EQ(layout.head_stride_bytes[0], 1024);
    CHECK_EQ(layout.token_stride_bytes[0], 5 * 1024);
    CHECK_EQ(layout.layer_stride_bytes[0], 7 * 5 * 1024);
    CHECK_EQ(layout.token_stride_bytes[1], 5 * 128);
    kvt_layout_head_major(&g, 7, &a, &b, &layout);
    CHECK(layout.part[0] == &a && layout.part[1] == &b);
    CHECK_EQ(layout.token_stride_bytes[1], 128);
    CHECK_EQ(layout.head_stride_bytes[1], 7 * 128);
    CHECK_EQ(layout.layer_stride_bytes[1], 5 * 7 * 128);
    CHECK_EQ(layout.layer_stride_bytes[0], 5 * 7 * 1024);
}

/* ------------------------------------------------------------------------------------------------
 * Codec sets
 * ---------------------------------------------------------------------------------------------- */

static void expect_set(const kvt_geometry *g, const char *text, kvt_status status) {
    kvt_page_shape shape, before;
    memset(&shape, 0x77, sizeof shape);
    before = shape;
    char why[200] = "";
    kvt_status got = kvt_page_shape_init(g, 0, text, why, sizeof why, &shape);
    CHECK_MSG(got == status, "\"%s\" gives %d (%s), not %d", text ? text : "NULL", got, why,
              status);
    CHECK_EQ(kvt_page_shape_init(g, 0, text, NULL, 0, &shape), status);
    CHECK_MSG(status == KVT_OK || why[0], "\"%s\"", text ? text : "NULL");
    CHECK(status == KVT_OK || memcmp(&shape, &before, sizeof shape) == 0);
}

static void test_sets(void) {
    kvt_geometry g, m = mla(4, 64);
    kvt_geometry_init(&g, 4, 2, 128, 64);
    const char *const good[] = {NULL,
                                "",
                                "f16",
                                "raw16",
                                "rest:f16",
                                "0-3:f16",
                                "0:f16;1-3:f16",
                                "k:raw16,v:raw16",
                                "0:f16;rest:raw16"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        expect_set(&g, good[i], KVT_OK);
    const char *const bad[] = {
        "f",
        "F16",
        "f16 ",
        " f16",
        "f16;",
        "f16;f16",
        "0-3:",
        "0-3",
        "0-3:f16;",
        "1-3:f16",
        "0-1:f16;3:f16",
        "0-2:f16;2-3:f16",
        "2-1:f16",
        "0-:f16",
        "-1:f16",
        "k:raw16",
        "k:raw16,",
        "v:raw16,k:raw16",
        "k:raw16;v:raw16",
        "k:f16,v:f16",
        "raw16:1",
        "0:f16;1:f16;2:f16;3:f16;rest:f16",
        "4294967296-3:f16",
        "0-4294967299:f16",
        "latent:raw16,rope:raw16",
        "restf16",
        "fp8s_e4m3",
        "fp8s_e4m3:",
        "fp8s_e4m3:0",
        "fp8s_e4m3:-1",
        "fp8s_e4m3:nan",
        "fp8s_e4m3:1e",
        "fp8s_e4m3:1e9",
        "fp8s_e4m3:0x1",
        "fp8s_e4m3:1.2.3",
        "fp8s_e4m3:1,5",
        "fp8s_e4m3:1.000000000000000",
        "fp8s_e4m3:1e-23",
        "fp8s_e4m3:1e99999999999",
        "i8k:1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_set(&g, bad[i], KVT_ESYNTAX);
    const char *const other[] = {"0-4:f16", "0-2:f16", "0-3:f16;rest:f16"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        expect_set(&g, other[i], KVT_ENOTSUP);
    expect_set(&m, "latent:raw16,rope:raw16", KVT_OK);
    expect_set(&m, "k:raw16,v:raw16", KVT_ESYNTAX);
    const char *const not_mla[] = {"k8v4", "latent:raw16,rope:w4v", "latent:raw16,rope:i4s", "w4v"};
    for (size_t i = 0; i < sizeof not_mla / sizeof not_mla[0]; i++)
        expect_set(&m, not_mla[i], KVT_ENOTSUP);
}

/* Layer numbers of a set are those of the whole geometry; a shape's are those of its group. */
static void test_set_of_groups(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 10, 2, 128, 64);
    g.n_groups = 2;
    g.groups[0].n_layers = 4;
    g.groups[1].n_layers = 6;
    kvt_page_shape shape;
    CHECK_EQ(kvt_page_shape_init(&g, 0, "0-1:f16;2-6:raw16;rest:f16", NULL, 0, &shape), KVT_OK);
    CHECK_EQ(shape.n_layers, 4);
    CHECK_EQ(shape.n_ranges, 2);
    CHECK_EQ(shape.ranges[1].first_layer, 2);
    CHECK_EQ(shape.ranges[1].n_layers, 2);
    CHECK_EQ(kvt_page_shape_init(&g, 1, "0-1:f16;2-6:raw16;rest:f16", NULL, 0, &shape), KVT_OK);
    CHECK_EQ(shape.n_layers, 6);
    CHECK_EQ(shape.n_ranges, 2);
    CHECK_EQ(shape.ranges[0].first_layer, 0);
    CHECK_EQ(shape.ranges[0].n_layers, 3);
    CHECK_EQ(shape.ranges[1].first_layer, 3);
    CHECK_EQ(shape.ranges[1].n_layers, 3);
}

/* ------------------------------------------------------------------------------------------------
 * Round trips
 * ---------------------------------------------------------------------------------------------- */

static kvt_page_shape shape_of(const kvt_geometry *g) {
    kvt_page_shape shape;
    char why[200] = "";
    CHECK_MSG(kvt_geometry_check(g, why, sizeof why) == KVT_OK, "%s", why);
    CHECK_MSG(kvt_page_shape_init(g, 0, "f16", why, sizeof why, &shape) == KVT_OK, "%s", why);
    return shape;
}

static size_t pad(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* FORMAT.md, once more and by itself: the bytes of a one-segment page of raw16. */
static size_t raw_page_bytes(const kvt_geometry *g, uint32_t rows) {
    size_t layer = 0;
    for (int p = 0; p < 2; p++)
        layer += g->n_kv_heads * pad((size_t)rows * g->head_dim[p] * 2, 16);
    return 192 + pad(layer * g->n_layers, 64);
}

/* The element bits of a page of one raw segment stand where FORMAT.md says. */
static void check_raw_bytes(const kv_kit *from, const uint8_t *page, uint32_t rows) {
    const uint8_t *at = page + 192;
    for (uint32_t l = 0; l < from->n_layers; l++) {
        for (int p = 0; p < 2; p++) {
            size_t row_bytes = 2 * (size_t)from->geometry.head_dim[p];
            for (uint32_t h = 0; h < from->geometry.n_kv_heads; h++) {
                for (uint32_t t = 0; t < rows; t++, at += row_bytes)
                    CHECK(memcmp(at, kv_row(from, p, l, h, t), row_bytes) == 0);
                for (; (at - page) % 16 != 0; at++)
                    CHECK_EQ(*at, 0);
            }
        }
    }
    for (; (at - page) % 64 != 0; at++)
        CHECK_EQ(*at, 0);
}

static void decode_and_compare(const kvt_page_shape *shape, const kv_kit *from, const void *page,
                               size_t bytes, uint32_t rows) {
    uint32_t first = check_below(&seed, rows), n = 1 + check_below(&seed, rows - first);
    uint32_t layer = check_below(&seed, shape->n_layers);
    uint32_t n_layers = 1 + check_below(&seed, shape->n_layers - layer);
    kv_style style = (kv_style)check_below(&seed, KV_N_STYLES);
    kv_kit to = kv_new(&from->geometry, n_layers, n, style);
    CHECK_EQ(kvt_page_decode(shape, page, bytes, first, n, layer, n_layers, &to.layout), KVT_OK);
    CHECK(kv_equal(&to, 0, 0, from, layer, first, n_layers, n));
    CHECK(style != KV_GAPS || kv_gaps_untouched(&to));
    kv_free(&to);
    to = kv_new(&from->geometry, n_layers, n, style);
    CHECK_EQ(kvt_page_decode_verified(shape, page, bytes, first, n, layer, n_layers, &to.layout),
             KVT_OK);
    CHECK(kv_equal(&to, 0, 0, from, layer, first, n_layers, n));
    CHECK(style != KV_GAPS || kv_gaps_untouched(&to));
    kv_free(&to);
}

/* kvt_page_check, in pieces of any lengths. */
static kvt_status check_in_pieces(const kvt_page_shape *shape, const void *page, size_t bytes,
                                  uint32_t *ret_rows) {
    kvt_page_checking checking;
    kvt_status status = kvt_page_check_begin(shape, page, bytes, &checking);
    for (size_t at = 0; status == KVT_OK && at < bytes;) {
        at += check_below(&seed, (uint32_t)bytes);
        kvt_page_check_to(&checking, at);
    }
    return status == KVT_OK ? kvt_page_check_end(&checking, ret_rows) : status;
}

static void round_trip(const kvt_geometry *g, uint32_t rows, kv_style style) {
    kvt_page_shape shape = shape_of(g);
    kv_kit from = kv_new(g, g->n_layers, g->page_tokens, style);
    kv_fill_random_bits(&from, &seed);
    size_t want = raw_page_bytes(g, rows), bytes = 0;
    CHECK_EQ(kvt_page_bytes(&shape, rows), want);
    CHECK_EQ(kvt_page_raw_bytes(&shape, rows), want);
    CHECK(kvt_page_max_bytes(&shape) >= raw_page_bytes(g, g->page_tokens));
    void *page = page_new(want); /* nothing may be written behind it */
    CHECK_EQ(kvt_page_encode(&shape, rows, &from.layout, page, want - 1, &bytes), KVT_ELIMIT);
    CHECK_EQ(bytes, 0);
    CHECK_EQ(kvt_page_encode(&shape, rows, &from.layout, page, want, &bytes), KVT_OK);
    CHECK_EQ(bytes, want);
    check_raw_bytes(&from, page, rows);
    uint32_t got_rows = 0;
    CHECK_EQ(kvt_page_check(&shape, page, bytes, 1, &got_rows), KVT_OK);
    CHECK_EQ(got_rows, rows);
    got_rows = 0;
    CHECK_EQ(check_in_pieces(&shape, page, bytes, &got_rows), KVT_OK);
    CHECK_EQ(got_rows, rows);
    kvt_page_info info;
    kvt_page_get(page, &info);
    CHECK_EQ(info.rows, rows);
    CHECK_EQ(info.n_segments, 1);
    CHECK_EQ(info.segment_rows[0], rows);
    CHECK_EQ(info.saturated, 0);
    CHECK_EQ(info.raw, 0);
    CHECK(info.payload_hash == XXH3_64bits((uint8_t *)page + 192, bytes - 192));
    for (int i = 0; i < 4; i++)
        decode_and_compare(&shape, &from, page, bytes, rows);
    free(page);
    kv_free(&from);
}

static void test_round_trips(void) {
    const uint32_t dims[] = {64, 80, 96, 100, 112, 128, 192, 256, 2, 1024};
    for (uint32_t tokens = 16; tokens <= 128; tokens *= 2) {
        for (size_t i = 0; i <= sizeof dims / sizeof dims[0]; i++) {
            kvt_geometry g = mla(2, tokens);
            if (i < sizeof dims / sizeof dims[0]) {
                kvt_geometry_init(&g, 1 + check_below(&seed, 3), 1 + check_below(&seed, 3), dims[i],
                                  tokens);
                g.head_dim[1] = check_below(&seed, 2) ? dims[i] : 128;
            }
            g.dtype = check_below(&seed, 2) ? KVT_F16 : KVT_BF16;
            uint32_t rows[] = {1, 1 + check_below(&seed, tokens), tokens};
            for (int r = 0; r < 3; r++)
                round_trip(&g, rows[r], (kv_style)((i + (size_t)r) % KV_N_STYLES));
        }
    }
}

static void test_wrong_arguments(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 3, 2, 64, 16);
    kvt_page_shape shape = shape_of(&g);
    kv_kit kv = kv_new(&g, 3, 16, KV_TOKEN_MAJOR);
    kv_fill_random_bits(&kv, &seed);
    size_t room = kvt_page_max_bytes(&shape), bytes = 0;
    void *page = page_new(room);
    CHECK_EQ(kvt_page_encode(&shape, 0, &kv.layout, page, room, &bytes), KVT_EINVAL);
    CHECK_EQ(kvt_page_encode(&shape, 17, &kv.layout, page, room, &bytes), KVT_EINVAL);
    kvt_layout odd = kv.layout;
    odd.part[1] = (char *)odd.part[1] + 1;
    CHECK_EQ(kvt_page_encode(&shape, 1, &odd, page, room, &bytes), KVT_EINVAL);
    odd.part[1] = NULL;
    CHECK_EQ(kvt_page_encode(&shape, 1, &odd, page, room, &bytes), KVT_EINVAL);
    CHECK_EQ(bytes, 0);
    CHECK_EQ(kvt_page_encode(&shape, 10, &kv.layout, page, room, &bytes), KVT_OK);
    const uint32_t ranges[][4] = {{0, 11, 0, 3}, {10, 1, 0, 3},         {11, 0, 0, 3},
                                  {0, 1, 0, 4},  {0, 1, 3, 1},          {UINT32_MAX, 2, 0, 3},
                                  {0, 1, 4, 0},  {0, 1, UINT32_MAX, 2}, {1, UINT32_MAX, 0, 3}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        CHECK_EQ(kvt_page_decode(&shape, page, bytes, ranges[i][0], ranges[i][1], ranges[i][2],
                                 ranges[i][3], &kv.layout),
                 KVT_EINVAL);
    CHECK_EQ(kvt_page_decode(&shape, page, bytes, 10, 0, 0, 3, &kv.layout), KVT_OK);
    CHECK_EQ(kvt_page_decode(&shape, page, bytes, 0, 10, 3, 0, &kv.layout), KVT_OK);
    free(page);
    kv_free(&kv);
}

/* ------------------------------------------------------------------------------------------------
 * Segments
 * ---------------------------------------------------------------------------------------------- */

/* Grows a page to four segments, cuts it everywhere, and sees the fifth refused. */
static void cow_chain(const kvt_geometry *g, kv_style style) {
    kvt_page_shape shape = shape_of(g);
    uint32_t tokens = g->page_tokens, ends[4] = {3, 4, 9, tokens - 1};
    kv_kit from = kv_new(g, g->n_layers, tokens, style);
    kv_fill_random_bits(&from, &seed);
    size_t room = kvt_page_max_bytes(&shape), bytes = 0;
    void *page = page_new(room), *next = page_new(room);
    CHECK_EQ(kvt_page_encode_cow(&shape, NULL, 0, 0, ends[0], &from.layout, 0, page, room, &bytes),
             KVT_OK);
    for (uint32_t s = 1; s < 4; s++) {
        CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, ends[s - 1], ends[s], &from.layout, 0,
                                     next, room, &bytes),
                 KVT_OK);
        void *swap = page;
        page = next;
        next = swap;
        uint32_t rows;
        CHECK_EQ(kvt_page_check(&shape, page, bytes, 1, &rows), KVT_OK);
        CHECK_EQ(rows, ends[s]);
        kvt_page_info info;
        kvt_page_get(page, &info);
        CHECK_EQ(info.n_segments, s + 1);
        CHECK_EQ(info.segment_rows[s], ends[s] - ends[s - 1]);
        for (int i = 0; i < 8; i++)
            decode_and_compare(&shape, &from, page, bytes, rows);
    }
    size_t before = bytes, cut_bytes;
    CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, ends[3], tokens, &from.layout, 0, next, room,
                                 &bytes),
             KVT_ELIMIT);
    CHECK_EQ(bytes, before);
    for (uint32_t keep = 1; keep <= ends[3]; keep++) {
        CHECK_EQ(
            kvt_page_encode_cow(&shape, page, bytes, keep, keep, NULL, 0, next, room, &cut_bytes),
            KVT_OK);
        uint32_t rows;
        CHECK_EQ(kvt_page_check(&shape, next, cut_bytes, 1, &rows), KVT_OK);
        CHECK_EQ(rows, keep);
        decode_and_compare(&shape, &from, next, cut_bytes, keep);
    }
    CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, 5, 5, NULL, 0, next, room, &cut_bytes),
             KVT_OK);
    size_t five_bytes = cut_bytes;
    CHECK_EQ(
        kvt_page_encode_cow(&shape, page, bytes, 5, 5, NULL, 0, next, five_bytes - 1, &cut_bytes),
        KVT_ELIMIT);
    CHECK_EQ(cut_bytes, five_bytes);
    CHECK_EQ(
        kvt_page_encode_cow(&shape, page, bytes, 5, 4, &from.layout, 0, next, room, &cut_bytes),
        KVT_EINVAL);
    CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, tokens, tokens, &from.layout, 0, next, room,
                                 &cut_bytes),
             KVT_EINVAL);
    CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, 2, tokens + 1, &from.layout, 0, next, room,
                                 &cut_bytes),
             KVT_EINVAL);
    free(page);
    free(next);
    kv_free(&from);
}

/* The rows that are kept are not read again: they may be anything in `from`. */
static void test_cow_keeps(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 3, 100, 32);
    kvt_page_shape shape = shape_of(&g);
    kv_kit old = kv_new(&g, 2, 32, KV_GAPS), new = kv_new(&g, 2, 32, KV_TOKEN_MAJOR);
    kv_kit to = kv_new(&g, 2, 32, KV_HEAD_MAJOR);
    kv_fill_random_bits(&old, &seed);
    kv_fill_random_bits(&new, &seed);
    size_t room = kvt_page_max_bytes(&shape), bytes, cow_bytes;
    void *page = page_new(room), *cow = page_new(room);
    CHECK_EQ(kvt_page_encode(&shape, 32, &old.layout, page, room, &bytes), KVT_OK);
    CHECK_EQ(
        kvt_page_encode_cow(&shape, page, bytes, 11, 30, &new.layout, 0, cow, room, &cow_bytes),
        KVT_OK);
    CHECK_EQ(kvt_page_decode(&shape, cow, cow_bytes, 0, 30, 0, 2, &to.layout), KVT_OK);
    CHECK(kv_equal(&to, 0, 0, &old, 0, 0, 2, 11));
    CHECK(kv_equal(&to, 0, 11, &new, 0, 11, 2, 19));
    /* A page of raw bits that is cut short is the page that its rows would have made. */
    CHECK_EQ(kvt_page_encode(&shape, 7, &old.layout, cow, room, &cow_bytes), KVT_OK);
    uint8_t *seven = page_new(room);
    CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, 7, 7, NULL, 0, seven, room, &bytes), KVT_OK);
    CHECK_EQ(bytes, cow_bytes);
    CHECK(memcmp(seven, cow, bytes) == 0);
    free(seven);
    free(page);
    free(cow);
    kv_free(&old);
    kv_free(&new);
    kv_free(&to);
}

/* Numbers from .125 to 2, of both signs: every codec takes them. */
static void fill_numbers(kv_kit *kit) {
    KV_FOR_ROWS(kit, p, l, h, t) {
        uint16_t *row = kv_row(kit, p, l, h, t);
        for (uint32_t d = 0; d < kit->geometry.head_dim[p]; d++)
            row[d] =
                (uint16_t)((0x3000 + check_below(&seed, 0x1000)) | check_below(&seed, 2) << 15);
    }
}

/* A first page of which n rows are kept goes on raw up to row 4, and coded behind it. */
static void check_first_grows(const kvt_page_shape *shape, const kv_kit *from, uint32_t n,
                              const void *page, size_t bytes) {
    size_t room = kvt_page_max_bytes(shape), next_bytes;
    uint32_t raw = n < 4 ? 4 : n, rows = shape->page_tokens;
    kv_kit to = kv_new(&from->geometry, 2, rows, KV_HEAD_MAJOR),
           before = kv_new(&from->geometry, 2, rows, KV_HEAD_MAJOR);
    void *next = page_new(room);
    kvt_page_info info;
    CHECK_EQ(
        kvt_page_encode_cow(shape, page, bytes, n, rows, &from->layout, 1, next, room, &next_bytes),
        KVT_OK);
    CHECK_EQ(kvt_page_check(shape, next, next_bytes, 1, &rows), KVT_OK);
    kvt_page_get(next, &info);
    CHECK(rows == shape->page_tokens && info.n_segments == (n == 4 ? 2 : 3));
    CHECK_EQ(kvt_page_decode(shape, page, bytes, 0, n, 0, 2, &before.layout), KVT_OK);
    CHECK_EQ(kvt_page_decode(shape, next, next_bytes, 0, rows, 0, 2, &to.layout), KVT_OK);
    CHECK(kv_equal(&to, 0, 0, &before, 0, 0, 2, n));
    CHECK(kv_equal(&to, 0, 0, from, 0, 0, 2, 4));
    CHECK(!kv_equal(&to, 0, raw, from, 0, raw, 2, rows - raw));
    free(next);
    kv_free(&to);
    kv_free(&before);
}

/* A path's first page keeps its first rows, and codes the others as if they were alone. */
static void test_first_page(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 3, 64, 32);
    kvt_page_shape shape;
    CHECK_EQ(kvt_page_shape_init(&g, 0, "i4", NULL, 0, &shape), KVT_OK);
    kv_kit from = kv_new(&g, 2, 32, KV_GAPS), to = kv_new(&g, 2, 32, KV_TOKEN_MAJOR);
    kv_kit rest = kv_new(&g, 2, 32, KV_TOKEN_MAJOR);
    size_t room = kvt_page_max_bytes(&shape), bytes, rest_bytes;
    void *page = page_new(room);
    const uint32_t counts[] = {1, 3, 4, 5, 31, 32};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint32_t n = counts[i], raw = n < 4 ? n : 4, rows;
        kvt_page_info info;
        fill_numbers(&from);
        CHECK_EQ(kvt_page_encode_first(&shape, n, &from.layout, page, room, &bytes), KVT_OK);
        CHECK_EQ(kvt_page_check(&shape, page, bytes, 1, &rows), KVT_OK);
        kvt_page_get(page, &info);
        CHECK(rows == n && info.n_segments == (n > 4 ? 2 : 1) && info.segment_rows[0] == raw);
        CHECK_EQ(kvt_page_decode(&shape, page, bytes, 0, n, 0, 2, &to.layout), KVT_OK);
        CHECK(kv_equal(&to, 0, 0, &from, 0, 0, 2, raw));
        if (n < 32)
            check_first_grows(&shape, &from, n, page, bytes);
        if (n <= 4)
            continue;
        kvt_layout behind = from.layout;
        for (int p = 0; p < 2; p++)
            behind.part[p] = (uint8_t *)behind.part[p] + 4 * behind.token_stride_bytes[p];
        CHECK_EQ(kvt_page_encode(&shape, n - 4, &behind, page, room, &rest_bytes), KVT_OK);
        CHECK_EQ(kvt_page_decode(&shape, page, rest_bytes, 0, n - 4, 0, 2, &rest.layout), KVT_OK);
        CHECK(kv_equal(&to, 0, 4, &rest, 0, 0, 2, n - 4));
        CHECK(!kv_equal(&to, 0, 4, &from, 0, 4, 2, n - 4));
        CHECK_EQ(kvt_page_encode_first(&shape, n, &from.layout, page, rest_bytes, &bytes),
                 KVT_ELIMIT);
    }
    free(page);
    kv_free(&from);
    kv_free(&to);
    kv_free(&rest);
}

/* What takes the place of a fifth segment: one raw one, of a page that stays in its codecs. */
static void test_fifth_segment(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 3, 64, 32);
    kvt_page_shape shape;
    CHECK_EQ(kvt_page_shape_init(&g, 0, "0-0:i8;rest:i4", NULL, 0, &shape), KVT_OK);
    kv_kit from = kv_new(&g, 2, 32, KV_GAPS), to = kv_new(&g, 2, 32, KV_TOKEN_MAJOR);
    size_t room = kvt_page_max_bytes(&shape), bytes, next_bytes;
    void *page = page_new(room), *next = page_new(room);
    kvt_page_info info;
    uint32_t rows;
    fill_numbers(&from);
    CHECK_EQ(kvt_page_encode(&shape, 5, &from.layout, page, room, &bytes), KVT_OK);
    CHECK_EQ(kvt_page_encode_raw(&shape, page, bytes, 33, &from.layout, next, room, &next_bytes),
             KVT_EINVAL);
    CHECK_EQ(kvt_page_encode_raw(&shape, page, bytes - 1, 9, &from.layout, next, room, &next_bytes),
             KVT_ECORRUPT);
    size_t raw_bytes = kvt_page_raw_bytes(&shape, 20);
    CHECK_EQ(kvt_page_encode_raw(&shape, page, bytes, 20, &from.layout, next, raw_bytes - 1,
                                 &next_bytes),
             KVT_ELIMIT);
    CHECK_EQ(
        kvt_page_encode_raw(&shape, page, bytes, 20, &from.layout, next, raw_bytes, &next_bytes),
        KVT_OK);
    CHECK_EQ(next_bytes, raw_bytes);
    CHECK(kvt_page_is_under(&shape, next, next_bytes));
    kvt_page_get(next, &info);
    CHECK(info.rows == 20 && info.n_segments == 1 && info.raw && info.saturated == 0);
    CHECK_EQ(
        kvt_page_encode_cow(&shape, next, next_bytes, 20, 32, &from.layout, 0, page, room, &bytes),
        KVT_OK);
    CHECK_EQ(kvt_page_check(&shape, page, bytes, 1, &rows), KVT_OK);
    CHECK_EQ(kvt_page_decode(&shape, page, bytes, 0, 32, 0, 2, &to.layout), KVT_OK);
    CHECK(kv_equal(&to, 0, 0, &from, 0, 0, 2, 20));
    CHECK(!kv_equal(&to, 0, 20, &from, 0, 20, 2, 12));
    kvt_page_get(page, &info);
    CHECK(info.n_segments == 2 && !info.raw);
    free(page);
    free(next);
    kv_free(&from);
    kv_free(&to);
}

/* ------------------------------------------------------------------------------------------------
 * Hostile bytes
 * ---------------------------------------------------------------------------------------------- */

enum { HEADER_HASH_OFFSET = 24 };

static void rehash(uint8_t *page) {
    memset(page + HEADER_HASH_OFFSET, 0, 8);
    uint64_t hash = XXH3_64bits(page, 192);
    memcpy(page + HEADER_HASH_OFFSET, &hash, 8);
}

/* A page of two segments at exactly its bytes. */
static uint8_t *two_segments(const kvt_geometry *g, const kvt_page_shape *shape, size_t *bytes) {
    kv_kit kv = kv_new(g, g->n_layers, g->page_tokens, KV_TOKEN_MAJOR);
    kv_fill_random_bits(&kv, &seed);
    size_t room = kvt_page_max_bytes(shape), one;
    void *first = page_new(room), *both = page_new(room);
    CHECK_EQ(kvt_page_encode(shape, 5, &kv.layout, first, room, &one), KVT_OK);
    CHECK_EQ(kvt_page_encode_cow(shape, first, one, 5, 12, &kv.layout, 0, both, room, bytes),
             KVT_OK);
    uint8_t *page = page_new(*bytes);
    memcpy(page, both, *bytes);
    free(first);
    free(both);
    kv_free(&kv);
    return page;
}

/* Whatever the page holds, nothing outside it or outside `to` is touched (the sanitizer sees). */
static void use_all(const kvt_geometry *g, const kvt_page_shape *shape, const void *page,
                    size_t bytes) {
    kv_kit to = kv_new(g, g->n_layers, g->page_tokens, KV_HEAD_MAJOR);
    size_t room = kvt_page_max_bytes(shape), got;
    void *cow = page_new(room);
    uint32_t rows = g->page_tokens;
    kvt_status checked = kvt_page_check(shape, page, bytes, 0, &rows);
    kvt_status decoded = kvt_page_decode(shape, page, bytes, 0, rows, 0, g->n_layers, &to.layout);
    CHECK(checked != KVT_OK || decoded == KVT_OK);
    kvt_page_encode_cow(shape, page, bytes, 7, 16, &to.layout, 0, cow, room, &got);
    kvt_page_info info;
    if (bytes >= KVT_PAGE_HEADER_BYTES)
        kvt_page_get(page, &info);
    free(cow);
    kv_free(&to);
}

static void test_flipped_bytes(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 1, 64, 16);
    kvt_page_shape shape = shape_of(&g);
    size_t bytes;
    uint8_t *page = two_segments(&g, &shape, &bytes);
    uint32_t rows = 99;
    kv_kit to = kv_new(&g, g.n_layers, g.page_tokens, KV_HEAD_MAJOR);
    for (size_t i = 0; i < bytes; i++) {
        for (int bit = 0; bit < 8; bit++) {
            page[i] ^= (uint8_t)(1 << bit);
            kvt_status quick = kvt_page_check(&shape, page, bytes, 0, &rows);
            CHECK_MSG((quick == KVT_OK) == (i >= 192), "byte %zu, bit %d: %d", i, bit, quick);
            kvt_status whole = kvt_page_check(&shape, page, bytes, 1, &rows);
            CHECK_MSG(whole != KVT_OK, "byte %zu", i);
            CHECK_MSG(check_in_pieces(&shape, page, bytes, &rows) == whole, "byte %zu", i);
            uint32_t first = check_below(&seed, 12), layer = check_below(&seed, 2);
            CHECK_MSG(kvt_page_decode_verified(&shape, page, bytes, first,
                                               check_below(&seed, 13 - first), layer,
                                               check_below(&seed, 3 - layer), &to.layout) == whole,
                      "byte %zu", i);
            if (i == 4 || i == 5)
                CHECK_EQ(quick, KVT_EVERSION);
            page[i] ^= (uint8_t)(1 << bit);
        }
    }
    for (size_t n = 0; n < bytes; n++) {
        uint8_t *cut = malloc(n ? n : 1);
        CHECK(cut);
        memcpy(cut, page, n);
        CHECK_EQ(kvt_page_check(&shape, cut, n, 1, &rows), KVT_ECORRUPT);
        use_all(&g, &shape, cut, n);
        free(cut);
    }
    CHECK_EQ(kvt_page_check(&shape, page, bytes, 1, &rows), KVT_OK);
    CHECK_EQ(rows, 12);
    kv_free(&to);
    free(page);
}

/* Four ranges and four segments: both tables are full. */
static uint8_t *full_tables(const kvt_geometry *g, const kvt_page_shape *shape, size_t *bytes) {
    kv_kit kv = kv_new(g, g->n_layers, g->page_tokens, KV_TOKEN_MAJOR);
    kv_fill_random_bits(&kv, &seed);
    size_t room = kvt_page_max_bytes(shape);
    uint8_t *page = NULL;
    *bytes = 0;
    for (uint32_t rows = 1; rows <= 16; rows += 5) {
        void *next = page_new(room);
        CHECK_EQ(kvt_page_encode_cow(shape, page, *bytes, rows == 1 ? 0 : rows - 5, rows,
                                     &kv.layout, 0, next, room, bytes),
                 KVT_OK);
        free(page);
        page = page_new(*bytes);
        memcpy(page, next, *bytes);
        free(next);
    }
    kv_free(&kv);
    return page;
}

/* A writer who means harm computes the header's hash too. Every field's every byte, to every value:
 * what contradicts the rest is refused. */
static void forge_every_byte(const kvt_geometry *g, const kvt_page_shape *shape, uint8_t *page,
                             size_t bytes) {
    uint32_t rows;
    for (uint32_t i = 0; i < 192; i++) {
        uint8_t was = page[i];
        int in_segment = page[43] > (i - 128) / 16 && i >= 128;
        int free_field = (i >= 16 && i < 32) /* the hashes */ ||
                         (in_segment && i % 16 >= 8 && i % 16 < 12) /* saturation counts */;
        for (int value = 0; value < 256; value++) {
            page[i] = (uint8_t)value;
            rehash(page);
            int raw_flag = in_segment && i % 16 == 14 && value <= 1; /* same bytes, same decoding */
            kvt_status status = kvt_page_check(shape, page, bytes, 0, &rows);
            CHECK_MSG(status != KVT_OK || page[i] == was || free_field || raw_flag,
                      "byte %u = %d passed", i, value);
            use_all(g, shape, page, bytes);
        }
        page[i] = was;
    }
    rehash(page);
    CHECK_EQ(kvt_page_check(shape, page, bytes, 1, &rows), KVT_OK);
}

static void test_forged_headers(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 4, 1, 64, 16);
    kvt_page_shape shape;
    CHECK_EQ(kvt_page_shape_init(&g, 0, "0:f16;1:f16;2:f16;3:f16", NULL, 0, &shape), KVT_OK);
    size_t bytes;
    uint8_t *page = full_tables(&g, &shape, &bytes);
    forge_every_byte(&g, &shape, page, bytes);
    /* A fifth range, which would stand where the segments are. */
    const uint8_t fifth[16] = {4, 0, 1, 0, KVT_CODEC_RAW16, KVT_CODEC_RAW16};
    memcpy(page + 128, fifth, sizeof fifth);
    page[42] = 5;
    rehash(page);
    uint32_t rows;
    CHECK_EQ(kvt_page_check(&shape, page, bytes, 0, &rows), KVT_ECORRUPT);
    free(page);
    shape = shape_of(&g);
    page = two_segments(&g, &shape, &bytes);
    forge_every_byte(&g, &shape, page, bytes);
    free(page);
}

/* A page that is right in itself, but has more rows than the shape's page has tokens. */
static void test_too_many_rows(void) {
    kvt_geometry g, longer;
    kvt_geometry_init(&g, 2, 1, 64, 16);
    kvt_geometry_init(&longer, 2, 1, 64, 32);
    kvt_page_shape shape = shape_of(&g), longer_shape = shape_of(&longer);
    kv_kit kv = kv_new(&longer, 2, 32, KV_TOKEN_MAJOR);
    size_t room = kvt_page_max_bytes(&longer_shape), bytes;
    uint8_t *page = page_new(room);
    for (uint32_t n = 16; n <= 17; n++) {
        CHECK_EQ(kvt_page_encode(&longer_shape, n, &kv.layout, page, room, &bytes), KVT_OK);
        memcpy(page + 8, &shape.geometry_hash, 8);
        page[36] = 16;
        rehash(page);
        uint32_t rows;
        CHECK_EQ(kvt_page_check(&shape, page, bytes, 0, &rows), n == 16 ? KVT_OK : KVT_ECORRUPT);
    }
    free(page);
    kv_free(&kv);
}

static void test_random_headers(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 4, 2, 80, 16);
    kvt_page_shape shape;
    CHECK_EQ(kvt_page_shape_init(&g, 0, "0:f16;1:f16;2:f16;3:f16", NULL, 0, &shape), KVT_OK);
    size_t bytes;
    uint8_t *good = full_tables(&g, &shape, &bytes), *page = page_new(bytes);
    for (int round = 0; round < 10000; round++) {
        memcpy(page, good, bytes);
        for (uint32_t n = 1 + check_below(&seed, 6); n > 0; n--) {
            uint32_t at = 36 + check_below(&seed, 156);
            page[at] = check_below(&seed, 2) ? (uint8_t)check_below(&seed, 16)
                                             : (uint8_t)check_random(&seed);
        }
        rehash(page);
        use_all(&g, &shape, page, bytes);
    }
    free(good);
    free(page);
}

static void test_other_shape(void) {
    kvt_geometry g, other;
    kvt_geometry_init(&g, 2, 2, 64, 16);
    kvt_page_shape shape = shape_of(&g), other_shape;
    size_t bytes;
    uint8_t *page = two_segments(&g, &shape, &bytes);
    uint32_t rows;
    for (int i = 0; i < 6; i++) {
        other = g;
        uint32_t *field[] = {&other.dtype,       &other.n_layers,    &other.n_kv_heads,
                             &other.head_dim[0], &other.head_dim[1], &other.page_tokens};
        *field[i] *= 2;
        other.groups[0].n_layers = other.n_layers;
        other_shape = shape_of(&other);
        CHECK_EQ(kvt_page_check(&other_shape, page, bytes, 1, &rows), KVT_EGEOMETRY);
        other_shape = shape;
        other_shape.geometry_hash ^= 1;
        CHECK_EQ(kvt_page_check(&other_shape, page, bytes, 1, &rows), KVT_EGEOMETRY);
    }
    free(page);
}

int main(void) {
    test_geometry();
    test_layouts();
    test_sets();
    test_set_of_groups();
    test_round_trips();
    test_wrong_arguments();
    for (uint32_t i = 0; i < KV_N_STYLES; i++) {
        kvt_geometry g;
        kvt_geometry_init(&g, 2, 3, i == 0 ? 100 : 128, i == 1 ? 16 : 64);
        cow_chain(&g, (kv_style)i);
        g = mla(2, 32);
        cow_chain(&g, (kv_style)i);
    }
    test_cow_keeps();
    test_first_page();
    test_fifth_segment();
    test_flipped_bytes();
    test_forged_headers();
    test_too_many_rows();
    test_random_headers();
    test_other_shape();
    return 0;
}
