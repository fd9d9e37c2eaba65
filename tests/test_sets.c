/* Whole pages under every codec set: sizes, fallback, segments, and that nothing drifts. */
#include <xxhash.h>

#include "kernels/codec_set.h"
#include "kernels/cpu.h"
#include "kernels/page.h"
#include "tests/kv_kit.h"

static uint64_t seed = 5050;

static const char *const kv_sets[] = {
    "f16",
    "fp8",
    "i8",
    "k8v4",
    "i4",
    "i2",
    "i4s",
    "w4v",
    "0:f16;rest:i4",
    "k:i8k,v:w2v",
    "0:fp8;1:k:i4s,v:i2k;rest:i8",
    "k:fp8s_e4m3:0.5,v:fp8s_e5m2:0.125",
};
static const char *const mla_sets[] = {
    "f16", "fp8", "i8", "i4", "i2", "latent:w4v,rope:i8v", "latent:i8k,rope:i8k", "0:i8;rest:i4",
};
enum { N_KV_SETS = sizeof kv_sets / sizeof kv_sets[0] };
enum { N_MLA_SETS = sizeof mla_sets / sizeof mla_sets[0] };

static kvt_geometry mla(uint32_t n_layers, uint32_t page_tokens) {
    kvt_geometry g;
    kvt_geometry_init(&g, n_layers, 1, 512, page_tokens);
    g.kind = KVT_MLA;
    g.head_dim[1] = 64;
    return g;
}

static kvt_page_shape shape_of(const kvt_geometry *g, const char *set) {
    kvt_page_shape shape;
    char why[200] = "";
    CHECK_MSG(kvt_geometry_check(g, why, sizeof why) == KVT_OK, "%s", why);
    CHECK_MSG(kvt_page_shape_init(g, 0, set, why, sizeof why, &shape) == KVT_OK, "%s", why);
    return shape;
}

/* Sums of uniform numbers, some channels large: small enough for every codec. */
static void fill(kv_kit *kit, uint32_t from_token, uint32_t to_token) {
    for (int p = 0; p < 2; p++)
        for (uint32_t l = 0; l < kit->n_layers; l++)
            for (uint32_t h = 0; h < kit->geometry.n_kv_heads; h++)
                for (uint32_t t = from_token; t < to_token; t++) {
                    uint16_t *row = kv_row(kit, p, l, h, t);
                    for (uint32_t d = 0; d < kit->geometry.head_dim[p]; d++) {
                        int32_t sum = (int32_t)check_below(&seed, 2000) - 1000 +
                                      (int32_t)check_below(&seed, 2000) - 1000;
                        float x = (float)sum / 800 + (d % 11 == 4 ? 20.0f : 0);
                        row[d] = kvt_element_of_float(kit->geometry.dtype, x);
                    }
                }
}

static void *encode(const kvt_page_shape *shape, uint32_t rows, const kv_kit *from,
                    size_t *ret_bytes) {
    size_t room = kvt_page_max_bytes(shape);
    void *page = page_new(room);
    CHECK_EQ(kvt_page_encode(shape, rows, &from->layout, page, room, ret_bytes), KVT_OK);
    uint32_t got;
    CHECK_EQ(kvt_page_check(shape, page, *ret_bytes, 1, &got), KVT_OK);
    CHECK_EQ(got, rows);
    return page;
}

static kv_kit decode(const kvt_page_shape *shape, const kvt_geometry *g, const void *page,
                     size_t bytes, uint32_t rows, kv_style style) {
    kv_kit to = kv_new(g, g->n_layers, rows, style);
    CHECK_EQ(kvt_page_decode(shape, page, bytes, 0, rows, 0, g->n_layers, &to.layout), KVT_OK);
    return to;
}

static kvt_page_info info_of(const void *page) {
    kvt_page_info info;
    kvt_page_get(page, &info);
    return info;
}

/* ------------------------------------------------------------------------------------------------
 * One segment
 * ---------------------------------------------------------------------------------------------- */

/* Any layout in, any layout, rows and layers out: the same bits. */
static void test_round_trip(const kvt_geometry *g, const char *set, uint32_t rows) {
    kvt_page_shape shape = shape_of(g, set);
    kv_kit from = kv_new(g, g->n_layers, rows, KV_TOKEN_MAJOR),
           gaps = kv_new(g, g->n_layers, rows, KV_GAPS);
    fill(&from, 0, rows);
    KV_FOR_ROWS(&from, p, l, h, t)
    memcpy(kv_row(&gaps, p, l, h, t), kv_row(&from, p, l, h, t), 2 * (size_t)g->head_dim[p]);
    size_t bytes, same_bytes;
    void *page = encode(&shape, rows, &from, &bytes),
         *same = encode(&shape, rows, &gaps, &same_bytes);
    CHECK_EQ(bytes, kvt_page_bytes(&shape, rows));
    CHECK(same_bytes == bytes && memcmp(page, same, bytes) == 0);
    CHECK_EQ(info_of(page).raw, 0);
    kv_kit whole = decode(&shape, g, page, bytes, rows, KV_HEAD_MAJOR);
    for (int i = 0; i < 6; i++) {
        uint32_t first = check_below(&seed, rows), n = 1 + check_below(&seed, rows - first);
        uint32_t layer = check_below(&seed, g->n_layers);
        uint32_t n_layers = 1 + check_below(&seed, g->n_layers - layer);
        kv_kit part = kv_new(g, n_layers, n, (kv_style)(i % KV_N_STYLES));
        CHECK_EQ(kvt_page_decode(&shape, page, bytes, first, n, layer, n_layers, &part.layout),
                 KVT_OK);
        CHECK(kv_equal(&part, 0, 0, &whole, layer, first, n_layers, n));
        CHECK(i % KV_N_STYLES != KV_GAPS || kv_gaps_untouched(&part));
        kv_free(&part);
    }
    free(page);
    free(same);
    kv_free(&from);
    kv_free(&gaps);
    kv_free(&whole);
}

static void test_round_trips(void) {
    const uint32_t dims[] = {64, 80, 96, 100, 112, 128, 192, 256};
    for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        for (uint32_t s = 0; s < N_KV_SETS; s++) {
            kvt_geometry g;
            kvt_geometry_init(&g, 3, 2, dims[i], 16u << (i + s) % 4);
            g.dtype = (i + s) % 2 ? KVT_BF16 : KVT_F16;
            test_round_trip(&g, kv_sets[s], 1 + check_below(&seed, g.page_tokens));
        }
    }
    for (uint32_t s = 0; s < N_MLA_SETS; s++) {
        kvt_geometry g = mla(2, 16u << s % 4);
        g.dtype = s % 2 ? KVT_F16 : KVT_BF16;
        test_round_trip(&g, mla_sets[s], 1 + check_below(&seed, g.page_tokens));
        test_round_trip(&g, mla_sets[s], g.page_tokens);
    }
}

/* A page decodes as its units do, each by itself: nothing is mixed up between parts, heads, layers.
 */
static void test_units(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 3, 2, 64, 16);
    g.head_dim[1] = 96;
    kvt_page_shape shape = shape_of(&g, "0:fp8;1:k:i4s,v:i2k;rest:k8v4");
    kv_kit from = kv_new(&g, 3, 11, KV_HEAD_MAJOR);
    fill(&from, 0, 11);
    size_t bytes;
    void *page = encode(&shape, 11, &from, &bytes);
    kv_kit got = decode(&shape, &g, page, bytes, 11, KV_HEAD_MAJOR);
    const uint32_t codecs[3][2] = {{KVT_CODEC_FP8T, KVT_CODEC_FP8T},
                                   {KVT_CODEC_I4S, KVT_CODEC_I2K},
                                   {KVT_CODEC_I8K, KVT_CODEC_W4V}};
    for (uint32_t l = 0; l < 3; l++)
        for (int p = 0; p < 2; p++)
            for (uint32_t h = 0; h < 2; h++) {
                kvt_unit unit = {
                    .codec = codecs[l][p], .dtype = KVT_F16, .dim = g.head_dim[p], .rows = 11};
                uint8_t encoded[11 * 96 * 2];
                uint16_t want[11 * 96];
                uint32_t saturated = 0;
                CHECK(kvt_cpu_encoder(unit.codec)(&unit, kv_row(&from, p, l, h, 0),
                                                  2 * (size_t)unit.dim, encoded, &saturated));
                kvt_cpu_decoder(unit.codec)(&unit, encoded, 0, 11, want, 2 * (size_t)unit.dim);
                CHECK(memcmp(want, kv_row(&got, p, l, h, 0), 2 * 11 * (size_t)unit.dim) == 0);
            }
    free(page);
    kv_free(&from);
    kv_free(&got);
}

/* ------------------------------------------------------------------------------------------------
 * Sizes
 * ---------------------------------------------------------------------------------------------- */

static void expect_bits(const char *set, double bits) {
    kvt_geometry g;
    kvt_geometry_init(&g, 4, 8, 128, 64);
    kvt_page_shape shape = shape_of(&g, set);
    double got = (double)(kvt_page_bytes(&shape, 64) - 192) * 8 / (4 * 8 * 128 * 64 * 2);
    CHECK_MSG(got == bits, "%s takes %g bits an element, not %g", set, got, bits);
}

static void expect_mla_bytes(const char *set, size_t bytes) {
    kvt_geometry g = mla(1, 64);
    kvt_page_shape shape = shape_of(&g, set);
    CHECK_EQ(kvt_page_bytes(&shape, 64) - 192, 64 * bytes);
}

static void test_sizes(void) {
    expect_bits("f16", 16);
    expect_bits("fp8", 8.125);
    expect_bits("i8", 8.3125);
    expect_bits("k8v4", 6.3125);
    expect_bits("i4", 4.3125);
    expect_bits("i2", 2.3125);
    expect_bits("i4s", 4.5);
    expect_bits("fp8s_e4m3:1", 8);
    expect_mla_bytes("f16", 1152);
    expect_mla_bytes("fp8", 520 + 128);
    expect_mla_bytes("i8", 586); /* 512 + 4 scales, 64 + 1 scale */
    expect_mla_bytes("i4", 392);
    expect_mla_bytes("latent:w4v,rope:i8v", 330);
}

/* Random divisions into segments, some of them fallen back to raw: none is larger than promised. */
static void test_max_bytes(const kvt_geometry *g, const char *set) {
    kvt_page_shape shape = shape_of(g, set);
    size_t room = kvt_page_max_bytes(&shape), most = 0;
    void *page = page_new(room), *next = page_new(room);
    for (int round = 0; round < 30; round++) {
        uint32_t rows = 0, tokens = g->page_tokens;
        size_t bytes = 0;
        for (uint32_t s = 0; s < 4 && rows < tokens; s++) {
            uint32_t end = s == 3      ? tokens
                           : round % 2 ? rows + 1
                                       : rows + 1 + check_below(&seed, tokens - rows);
            kv_kit from = kv_new(g, g->n_layers, tokens, KV_TOKEN_MAJOR);
            fill(&from, rows, end);
            if (check_below(&seed, 2))
                kv_row(&from, 1, 0, 0, rows)[1] = 0x7fff;
            CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, rows, end, &from.layout, 0, next,
                                         room, &bytes),
                     KVT_OK);
            kv_free(&from);
            void *swap = page;
            page = next;
            next = swap;
            rows = end;
            most = bytes > most ? bytes : most;
        }
    }
    CHECK(most <= room && kvt_page_raw_bytes(&shape, g->page_tokens) <= room);
    free(page);
    free(next);
}

/* ------------------------------------------------------------------------------------------------
 * Fallback and saturation
 * ---------------------------------------------------------------------------------------------- */

static void test_fallback(const kvt_geometry *g, const char *set, int falls) {
    const uint16_t bad[2][5] = {{0x7001, 0xf001, 0x7c00, 0xfc00, 0x7e01},
                                {0x4601, 0xc601, 0x7f80, 0xff80, 0xffc1}};
    kvt_page_shape shape = shape_of(g, set);
    for (int i = 0; i < 5; i++) {
        uint32_t rows = 1 + check_below(&seed, g->page_tokens);
        kv_kit from = kv_new(g, g->n_layers, rows, KV_TOKEN_MAJOR);
        fill(&from, 0, rows);
        uint32_t p = check_below(&seed, 2), l = g->n_layers - 1 - check_below(&seed, 2);
        uint16_t *row =
            kv_row(&from, (int)p, l, check_below(&seed, g->n_kv_heads), check_below(&seed, rows));
        row[check_below(&seed, g->head_dim[p])] = bad[g->dtype == KVT_BF16][i];
        size_t bytes;
        void *page = encode(&shape, rows, &from, &bytes);
        CHECK_EQ(info_of(page).raw, falls);
        CHECK_EQ(info_of(page).saturated, 0);
        CHECK_EQ(bytes, kvt_page_raw_bytes(&shape, rows));
        kv_kit to = decode(&shape, g, page, bytes, rows, KV_GAPS);
        CHECK(kv_equal(&to, 0, 0, &from, 0, 0, g->n_layers, rows));
        kv_free(&to);
        if (falls) { /* no room for raw: an answer, not a page */
            size_t got = 0, coded = kvt_page_bytes(&shape, rows);
            CHECK(coded >= bytes ||
                  kvt_page_encode(&shape, rows, &from.layout, page, coded, &got) == KVT_ELIMIT);
            CHECK_EQ(got, 0);
        }
        free(page);
        kv_free(&from);
    }
}

/* Coded rows, then rows that fall back, then coded ones: each segment for itself. */
static void test_mixed_fallback(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 2, 64, 32);
    kvt_page_shape shape = shape_of(&g, "i4");
    kv_kit from = kv_new(&g, 2, 32, KV_TOKEN_MAJOR);
    fill(&from, 0, 32);
    kv_row(&from, 0, 1, 1, 12)[63] = 0xfc00;
    size_t room = kvt_page_max_bytes(&shape), bytes, next_bytes, last_bytes;
    void *page = page_new(room), *next = page_new(room), *last = page_new(room);
    CHECK_EQ(kvt_page_encode(&shape, 10, &from.layout, page, room, &bytes), KVT_OK);
    CHECK_EQ(
        kvt_page_encode_cow(&shape, page, bytes, 10, 20, &from.layout, 0, next, room, &next_bytes),
        KVT_OK);
    CHECK_EQ(kvt_page_encode_cow(&shape, next, next_bytes, 15, 32, &from.layout, 0, last, room,
                                 &last_bytes),
             KVT_OK);
    CHECK(!info_of(page).raw && !info_of(next).raw && !info_of(last).raw);
    kv_kit first = decode(&shape, &g, page, bytes, 10, KV_TOKEN_MAJOR);
    kv_kit all = decode(&shape, &g, last, last_bytes, 32, KV_TOKEN_MAJOR);
    CHECK(kv_equal(&all, 0, 0, &first, 0, 0, 2, 10));
    CHECK(kv_equal(&all, 0, 10, &from, 0, 10, 2, 5));
    CHECK(!kv_equal(&all, 0, 15, &from, 0, 15, 2, 17));
    free(page);
    free(next);
    free(last);
    kv_free(&from);
    kv_free(&first);
    kv_free(&all);
}

/* With the engine's scale too small, values are clamped; the page tells how many. */
static void test_saturation(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 2, 64, 16);
    kvt_page_shape shape = shape_of(&g, "fp8s_e4m3:1e-2");
    kv_kit from = kv_new(&g, 2, 16, KV_TOKEN_MAJOR);
    uint32_t want = 0, kept = 0;
    fill(&from, 0, 16);
    KV_FOR_ROWS(&from, p, l, h, t) {
        for (uint32_t d = 0; d < 64; d++) {
            float x = kvt_float_of_half(kv_row(&from, p, l, h, t)[d]);
            uint32_t clamped = x / 0.01f > 464 || x / 0.01f < -464;
            want += clamped;
            kept += clamped && t < 9;
        }
    }
    CHECK(want > 500);
    size_t room = kvt_page_max_bytes(&shape), bytes;
    void *page = page_new(room), *next = page_new(room);
    CHECK_EQ(kvt_page_encode(&shape, 9, &from.layout, page, room, &bytes), KVT_OK);
    CHECK_EQ(info_of(page).saturated, kept);
    CHECK_EQ(kvt_page_encode_cow(&shape, page, bytes, 9, 16, &from.layout, 0, next, room, &bytes),
             KVT_OK);
    CHECK_EQ(info_of(next).saturated, want);
    CHECK_EQ(kvt_page_encode_cow(&shape, next, bytes, 4, 4, NULL, 0, page, room, &bytes), KVT_OK);
    CHECK_EQ(info_of(page).saturated, kept); /* of the segment that it was cut from */
    free(page);
    free(next);
    kv_free(&from);
}

/* ------------------------------------------------------------------------------------------------
 * Copy-on-write
 * ---------------------------------------------------------------------------------------------- */

/* What every row of a page decodes to is settled when it is encoded, and never changes after. */
typedef struct growth {
    const kvt_geometry *g;
    kvt_page_shape shape, raw_shape;
    size_t room, bytes;
    void *page, *next;
    uint32_t rows;
    kv_kit settled;
} growth;

static void copy_rows(const kv_kit *from, kv_kit *to, uint32_t first, uint32_t end) {
    KV_FOR_ROWS(from, p, l, h, t) {
        if (t >= first && t < end)
            memcpy(kv_row(to, p, l, h, t), kv_row(from, p, l, h, t),
                   2 * (size_t)from->geometry.head_dim[p]);
    }
}

/* Keeps keep rows, gives new ones up to rows. */
static void grow(growth *w, uint32_t keep, uint32_t rows) {
    kv_kit from =
        kv_new(w->g, w->g->n_layers, w->g->page_tokens, (kv_style)check_below(&seed, KV_N_STYLES));
    fill(&from, keep, rows);
    if (check_below(&seed, 8) == 0 && rows > keep)
        kv_row(&from, 0, 0, 0, keep)[0] = 0x7fff; /* NaN in either dtype */
    kvt_status status = kvt_page_encode_cow(&w->shape, w->page, w->bytes, keep, rows, &from.layout,
                                            0, w->next, w->room, &w->bytes);
    if (status == KVT_ELIMIT) { /* five segments: the page is made anew, of raw bits */
        copy_rows(&w->settled, &from, 0, keep);
        status = kvt_page_encode(&w->raw_shape, rows, &from.layout, w->next, w->room, &w->bytes);
    }
    CHECK_EQ(status, KVT_OK);
    void *swap = w->page;
    w->page = w->next;
    w->next = swap;
    w->rows = rows;
    uint32_t checked;
    CHECK_EQ(kvt_page_check(&w->shape, w->page, w->bytes, 1, &checked), KVT_OK);
    CHECK_EQ(checked, rows);
    kv_free(&from);
    kv_kit now = decode(&w->shape, w->g, w->page, w->bytes, rows, KV_TOKEN_MAJOR);
    CHECK(kv_equal(&now, 0, 0, &w->settled, 0, 0, w->g->n_layers, keep));
    copy_rows(&now, &w->settled, keep, rows);
    kv_free(&now);
}

static void test_drift(const kvt_geometry *g, const char *set, int rounds) {
    growth w = {.g = g, .shape = shape_of(g, set), .raw_shape = shape_of(g, "f16")};
    CHECK(w.shape.geometry_hash == w.raw_shape.geometry_hash);
    w.room = kvt_page_max_bytes(&w.shape);
    w.page = page_new(w.room);
    w.next = page_new(w.room);
    w.settled = kv_new(g, g->n_layers, g->page_tokens, KV_TOKEN_MAJOR);
    for (int round = 0; round < rounds; round++) {
        uint32_t keep = w.rows == g->page_tokens || check_below(&seed, 4) == 0
                            ? check_below(&seed, w.rows + 1)
                            : w.rows;
        uint32_t rows = keep + check_below(&seed, g->page_tokens - keep + 1);
        if (rows == 0)
            continue;
        grow(&w, keep, rows);
    }
    free(w.page);
    free(w.next);
    kv_free(&w.settled);
}

/* ------------------------------------------------------------------------------------------------
 * Other codecs in the same realm
 * ---------------------------------------------------------------------------------------------- */

/* The header decides: a page that was transcoded to fewer bits passes and decodes under the shape
 * of its realm, and what grows from it goes on in its own codecs. */
static void test_transcoded(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 2, 128, 64);
    kvt_page_shape i8 = shape_of(&g, "i8"), i4 = shape_of(&g, "i4");
    kv_kit from = kv_new(&g, 2, 64, KV_TOKEN_MAJOR);
    fill(&from, 0, 64);
    size_t bytes, room = kvt_page_max_bytes(&i8);
    void *page = encode(&i4, 40, &from, &bytes), *grown = page_new(room);
    uint32_t rows;
    CHECK_EQ(kvt_page_check(&i8, page, bytes, 1, &rows), KVT_OK);
    kv_kit a = decode(&i4, &g, page, bytes, 40, KV_TOKEN_MAJOR),
           b = decode(&i8, &g, page, bytes, 40, KV_HEAD_MAJOR);
    CHECK(kv_equal(&a, 0, 0, &b, 0, 0, 2, 40));
    CHECK_EQ(kvt_page_encode_cow(&i8, page, bytes, 40, 64, &from.layout, 0, grown, room, &bytes),
             KVT_OK);
    CHECK_EQ(kvt_page_check(&i4, grown, bytes, 1, &rows), KVT_OK);
    CHECK(bytes < kvt_page_bytes(&i8, 64));
    free(page);
    free(grown);
    kv_free(&a);
    kv_free(&b);
    kv_free(&from);
}

/* From every set to every set, from a page of several segments: decoding and encoding, no more and
 * no less, and the same bytes on every path that the machine can run. */
static void test_transcode(const kvt_geometry *g, const char *from_set, const char *to_set) {
    static const char *const paths[] = {"portable", "avx2", "avx512", "neon"};
    kvt_page_shape from = shape_of(g, from_set), to = shape_of(g, to_set);
    uint32_t rows = g->page_tokens - check_below(&seed, 5), cut = rows / 2 + 1;
    int is_first = (int)check_below(&seed, 2);
    kv_kit kit = kv_new(g, g->n_layers, rows, KV_TOKEN_MAJOR);
    fill(&kit, 0, rows);
    size_t first_bytes, bytes, want_bytes, got_bytes, room = kvt_page_max_bytes(&to);
    void *first = encode(&from, cut, &kit, &first_bytes);
    void *page = page_new(kvt_page_max_bytes(&from)), *want = page_new(room), *got = page_new(room);
    void *elements = malloc(kvt_page_elements_bytes(&from));
    CHECK(elements);
    CHECK_EQ(kvt_page_encode_cow(&from, first, first_bytes, cut, rows, &kit.layout, 0, page,
                                 kvt_page_max_bytes(&from), &bytes),
             KVT_OK);
    kv_kit middle = decode(&from, g, page, bytes, rows, KV_TOKEN_MAJOR);
    CHECK_EQ((is_first ? kvt_page_encode_first : kvt_page_encode)(&to, rows, &middle.layout, want,
                                                                  room, &want_bytes),
             KVT_OK);
    CHECK_EQ(want_bytes, is_first ? kvt_page_first_bytes(&to, rows) : kvt_page_bytes(&to, rows));
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        const kvt_cpu_path *path = kvt_cpu_find(paths[i]);
        if (!path)
            continue;
        kvt_cpu_use(path);
        CHECK_EQ(kvt_page_transcode(&to, page, bytes, is_first, elements, got, room, &got_bytes),
                 KVT_OK);
        CHECK(kvt_page_is_under(&to, got, got_bytes) && kvt_page_is_under(&from, page, bytes));
        CHECK_EQ(kvt_page_is_under(&from, got, got_bytes), strcmp(from_set, to_set) == 0);
        CHECK_MSG(got_bytes == want_bytes && memcmp(got, want, want_bytes) == 0, "%s to %s by %s",
                  from_set, to_set, path->name);
        kv_kit a = decode(&from, g, got, got_bytes, rows, KV_GAPS),
               b = decode(&to, g, want, want_bytes, rows, KV_TOKEN_MAJOR);
        CHECK(kv_equal(&a, 0, 0, &b, 0, 0, g->n_layers, rows));
        kv_free(&a);
        kv_free(&b);
        kvt_cpu_use(NULL);
    }
    CHECK_EQ(
        kvt_page_transcode(&to, page, bytes, is_first, elements, got, want_bytes - 1, &got_bytes),
        KVT_ELIMIT);
    ((uint8_t *)page)[40] ^= 1; /* a header that is not one */
    CHECK_EQ(kvt_page_transcode(&to, page, bytes, is_first, elements, got, room, &got_bytes),
             KVT_ECORRUPT);
    CHECK(!kvt_page_is_under(&from, page, bytes));
    free(elements);
    free(first);
    free(page);
    free(want);
    free(got);
    kv_free(&kit);
    kv_free(&middle);
}

static void test_transcodes(void) {
    kvt_geometry g, m = mla(2, 16);
    kvt_geometry_init(&g, 3, 2, 64, 32);
    for (uint32_t a = 0; a < N_KV_SETS; a++)
        for (uint32_t b = 0; b < N_KV_SETS; b++)
            if (strncmp(kv_sets[a], "k:fp8s", 6) != 0) /* may hold what its scale cannot */
                test_transcode(&g, kv_sets[a], kv_sets[b]);
    for (uint32_t a = 0; a < N_MLA_SETS; a++)
        for (uint32_t b = 0; b < N_MLA_SETS; b++)
            test_transcode(&m, mla_sets[a], mla_sets[b]);
}

/* Payload of any bytes under a right header: garbage comes out, and nothing else is touched. */
static void test_garbage(const kvt_geometry *g, const char *set) {
    kvt_page_shape shape = shape_of(g, set);
    kv_kit from = kv_new(g, g->n_layers, g->page_tokens, KV_TOKEN_MAJOR);
    fill(&from, 0, g->page_tokens);
    size_t bytes;
    void *whole = encode(&shape, g->page_tokens, &from, &bytes);
    uint8_t *page = page_new(bytes);
    memcpy(page, whole, bytes);
    for (size_t i = 192; i < bytes; i++)
        page[i] = (uint8_t)check_random(&seed);
    uint32_t rows;
    CHECK_EQ(kvt_page_check(&shape, page, bytes, 0, &rows), KVT_OK);
    CHECK_EQ(kvt_page_check(&shape, page, bytes, 1, &rows), KVT_ECORRUPT);
    kv_kit to = decode(&shape, g, page, bytes, g->page_tokens, KV_GAPS);
    CHECK(kv_gaps_untouched(&to));
    free(page);
    free(whole);
    kv_free(&to);
    kv_free(&from);
}

static void expect_codecs(const kvt_geometry *g, const char *set, uint32_t layer, uint32_t codec0,
                          uint32_t codec1) {
    kvt_page_shape shape = shape_of(g, set);
    for (uint32_t i = 0; i < shape.n_ranges; i++) {
        const kvt_codec_range *r = &shape.ranges[i];
        if (layer >= r->first_layer && layer < (uint32_t)r->first_layer + r->n_layers) {
            CHECK_MSG(r->codec[0] == codec0 && r->codec[1] == codec1, "%s: %u, %u", set,
                      r->codec[0], r->codec[1]);
            return;
        }
    }
    CHECK_MSG(0, "%s has no layer %u", set, layer);
}

static void test_names(void) {
    kvt_geometry g, m = mla(4, 64);
    kvt_geometry_init(&g, 4, 2, 128, 64);
    expect_codecs(&g, "f16", 0, KVT_CODEC_RAW16, KVT_CODEC_RAW16);
    expect_codecs(&g, "fp8", 0, KVT_CODEC_FP8T, KVT_CODEC_FP8T);
    expect_codecs(&g, "i8", 3, KVT_CODEC_I8K, KVT_CODEC_I8V);
    expect_codecs(&g, "k8v4", 0, KVT_CODEC_I8K, KVT_CODEC_W4V);
    expect_codecs(&g, "i4", 0, KVT_CODEC_I4K, KVT_CODEC_W4V);
    expect_codecs(&g, "i2", 0, KVT_CODEC_I2K, KVT_CODEC_W2V);
    expect_codecs(&g, "i8v", 0, KVT_CODEC_I8V, KVT_CODEC_I8V);
    expect_codecs(&g, "0-1:f16;2:k:i4s,v:w2v;rest:i4", 2, KVT_CODEC_I4S, KVT_CODEC_W2V);
    expect_codecs(&g, "0-1:f16;2:k:i4s,v:w2v;rest:i4", 3, KVT_CODEC_I4K, KVT_CODEC_W4V);
    expect_codecs(&m, "fp8", 0, KVT_CODEC_FP8T, KVT_CODEC_RAW16);
    expect_codecs(&m, "i8", 0, KVT_CODEC_I8V, KVT_CODEC_I8V);
    expect_codecs(&m, "i4", 0, KVT_CODEC_W4V, KVT_CODEC_RAW16);
    expect_codecs(&m, "i2", 0, KVT_CODEC_W2V, KVT_CODEC_RAW16);
    const char *const texts[] = {"0.5",      "1",    "3.25e-2", "0.1",           ".5",
                                 "16777216", "1e-7", "00.50",   "123456.789e-3", "2.5e+1"};
    const float scales[] = {0.5f, 1, 0.0325f, 0.1f, 0.5f, 16777216, 1e-7f, 0.5f, 123.456789f, 25};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        char set[64];
        snprintf(set, sizeof set, "fp8s_e5m2:%s", texts[i]);
        kvt_page_shape shape = shape_of(&g, set);
        CHECK_MSG(shape.ranges[0].scale[0] == scales[i] && shape.ranges[0].scale[1] == scales[i],
                  "%s", set);
    }
}

int main(void) {
    test_names();
    test_round_trips();
    test_units();
    test_sizes();
    for (uint32_t s = 0; s < N_KV_SETS; s++) {
        kvt_geometry g;
        kvt_geometry_init(&g, 3, 2, s % 2 ? 80 : 64, s % 3 ? 16 : 64);
        g.dtype = s % 2 ? KVT_BF16 : KVT_F16;
        test_max_bytes(&g, kv_sets[s]);
        test_garbage(&g, kv_sets[s]);
        test_drift(&g, kv_sets[s], 100);
        test_fallback(&g, kv_sets[s], s != 0);
    }
    for (uint32_t s = 0; s < N_MLA_SETS; s++) {
        kvt_geometry g = mla(2, 16);
        g.dtype = s % 2 ? KVT_F16 : KVT_BF16;
        test_max_bytes(&g, mla_sets[s]);
        test_garbage(&g, mla_sets[s]);
        test_drift(&g, mla_sets[s], 50);
    }
    kvt_geometry g;
    kvt_geometry_init(&g, 1, 1, 100, 64);
    test_drift(&g, "i4", 1000);
    test_drift(&g, "k8v4", 1000);
    test_mixed_fallback();
    test_saturation();
    test_transcoded();
    test_transcodes();
    return 0;
}
