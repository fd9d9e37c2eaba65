/* The codecs of kvtrunk.h, without a daemon: what they say of bad arguments, and that a page which
 * was transcoded is the page that decoding and encoding give. */
#include "client/kvtrunk.h"
#include "kernels/page.h"
#include "tests/kv_kit.h"

static uint64_t seed = 9;

static void fill(kv_kit *kit) {
    KV_FOR_ROWS(kit, p, l, h, t) {
        uint16_t *row = kv_row(kit, p, l, h, t);
        for (uint32_t d = 0; d < kit->geometry.head_dim[p]; d++) /* 1/32 .. 16, either sign */
            row[d] = (uint16_t)(0x2800 + check_below(&seed, 0x2400) + 0x8000 * (d % 2));
    }
}

static void test_round(const kvt_geometry *g, uint32_t group) {
    uint32_t n_layers = g->groups[group].n_layers, rows = g->page_tokens - 3;
    kv_kit from = kv_new(g, n_layers, rows, KV_TOKEN_MAJOR),
           a = kv_new(g, n_layers, rows, KV_HEAD_MAJOR), b = kv_new(g, n_layers, rows, KV_GAPS);
    size_t room, n_i8, n_i4, n_direct;
    fill(&from);
    CHECK_EQ(kvt_codec_room(g, group, "i8", &room), KVT_OK);
    void *i8 = page_new(room), *i4 = page_new(room), *direct = page_new(room);
    CHECK_EQ(kvt_codec_encode(g, group, "i8", 1, rows, &from.layout, i8, room, &n_i8), KVT_OK);
    CHECK_EQ(kvt_codec_transcode(g, group, "i4", 1, i8, n_i8, i4, room, &n_i4), KVT_OK);
    CHECK(n_i4 < n_i8 * 2 / 3);
    CHECK_EQ(kvt_codec_decode(g, group, i8, n_i8, 0, rows, 0, n_layers, &a.layout), KVT_OK);
    CHECK_EQ(kvt_codec_encode(g, group, "i4", 1, rows, &a.layout, direct, room, &n_direct), KVT_OK);
    CHECK(n_direct == n_i4 && memcmp(direct, i4, n_i4) == 0);
    CHECK_EQ(kvt_codec_decode(g, group, i4, n_i4, 0, rows, 0, n_layers, &a.layout), KVT_OK);
    CHECK_EQ(kvt_codec_decode(g, group, direct, n_direct, 0, rows, 0, n_layers, &b.layout), KVT_OK);
    CHECK(kv_equal(&a, 0, 0, &b, 0, 0, n_layers, rows));
    /* A path's first page keeps its first rows, under i4 too. */
    CHECK_EQ(kvt_codec_encode(g, group, "i8", 0, rows, &from.layout, i8, room, &n_i8), KVT_OK);
    CHECK_EQ(kvt_codec_transcode(g, group, "i4", 0, i8, n_i8, i4, room, &n_i4), KVT_OK);
    CHECK_EQ(kvt_codec_decode(g, group, i4, n_i4, 0, rows, 0, n_layers, &a.layout), KVT_OK);
    CHECK(kv_equal(&a, 0, 0, &from, 0, 0, n_layers, 4));
    CHECK(!kv_equal(&a, 0, 4, &from, 0, 4, n_layers, rows - 4));
    /* Damage is seen by each. */
    ((uint8_t *)i8)[n_i8 / 2] ^= 4;
    CHECK_EQ(kvt_codec_transcode(g, group, "i4", 1, i8, n_i8, i4, room, &n_i4), KVT_ECORRUPT);
    CHECK_EQ(kvt_codec_decode(g, group, i8, n_i8, 0, 1, 0, 1, &a.layout), KVT_ECORRUPT);
    free(i8);
    free(i4);
    free(direct);
    kv_free(&from);
    kv_free(&a);
    kv_free(&b);
}

static void test_refused(const kvt_geometry *g) {
    kvt_geometry bad = *g;
    kv_kit from = kv_new(g, g->groups[0].n_layers, g->page_tokens, KV_TOKEN_MAJOR);
    size_t room, n;
    bad.page_tokens = 17;
    fill(&from);
    CHECK_EQ(kvt_codec_room(NULL, 0, "i8", &room), KVT_EINVAL);
    CHECK_EQ(kvt_codec_room(&bad, 0, "i8", &room), KVT_EGEOMETRY);
    CHECK_EQ(kvt_codec_room(g, 0, "i8", NULL), KVT_EINVAL);
    CHECK_EQ(kvt_codec_room(g, g->n_groups, "i8", &room), KVT_EINVAL);
    CHECK_EQ(kvt_codec_room(g, 0, "i9", &room), KVT_ESYNTAX);
    CHECK(strstr(kvt_last_error(), "codec"));
    CHECK_EQ(kvt_codec_room(g, 0, NULL, &room), KVT_OK);
    uint8_t *page = page_new(room);
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", 1, 0, &from.layout, page, room, &n), KVT_EINVAL);
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", 1, 1, NULL, page, room, &n), KVT_EINVAL);
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", 1, 1, &from.layout, page, room, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_codec_transcode(g, 0, "i4", 1, page, room, page, room, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", 1, 1, &from.layout, page + 16, room, &n), KVT_EINVAL);
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", 1, 1, &from.layout, page, 64, &n), KVT_ELIMIT);
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", 1, 5, &from.layout, page, room, &n), KVT_OK);
    CHECK_EQ(kvt_codec_decode(g, 0, page, n, 4, 2, 0, 1, &from.layout), KVT_EINVAL);
    CHECK_EQ(kvt_codec_decode(g, 0, page, n - 1, 0, 1, 0, 1, &from.layout), KVT_ECORRUPT);
    CHECK_EQ(kvt_codec_decode(g, 0, page, n, 0, 1, 0, 1, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_codec_transcode(g, 0, "i4", 1, page, n, NULL, room, &n), KVT_EINVAL);
    kvt_layout odd = from.layout;
    odd.token_stride_bytes[1]++;
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", 1, 5, &odd, page, room, &n), KVT_EINVAL);
    CHECK(strstr(kvt_last_error(), "from->token_stride_bytes[1]"));
    CHECK_EQ(kvt_codec_decode(g, 0, page, n, 0, 5, 0, 1, &odd), KVT_EINVAL);
    CHECK(strstr(kvt_last_error(), "to->token_stride_bytes[1]"));
    CHECK_EQ(kvt_codec_decode(g, 0, page, n, 0, UINT32_MAX, 0, UINT32_MAX, &from.layout),
             KVT_EINVAL);
    free(page);
    kv_free(&from);
}

int main(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 5, 2, 80, 32);
    g.n_groups = 2;
    g.groups[0].n_layers = 2;
    g.groups[1] = (kvt_group){.n_layers = 3, .window = 64};
    test_round(&g, 0);
    test_round(&g, 1);
    g.dtype = KVT_BF16;
    test_refused(&g);
    return 0;
}
