/*
 * test_cooled.c - what a replay says of pages that the daemon has put into fewer bits: those that
 * the ladder gives are right to the byte; what grew from one, or is read in part, is near; a page
 * of another path, of another ladder or of no ladder, and each wrong byte of what was decoded, is
 * wrong.
 */
#include "client/cooled.h"
#include "kernels/page.h"
#include "tests/check.h"

enum {
    PAGE_TOKENS = 64,
    PATH_TOKENS = 2 * PAGE_TOKENS + 1,
    LAYERS = 2,
    HEADS = 2,
    MAX_DIM = 64,
    ROOM = 1 << 17
};

typedef struct bench {
    kvt_realm realm;
    oracle o;
    cooled *c;
    uint64_t rows[PATH_TOKENS];
    size_t n_bytes; /* of page */
} bench;

static _Alignas(64) uint8_t page[ROOM], other[ROOM];
static uint16_t elements[2][LAYERS * HEADS * PAGE_TOKENS * MAX_DIM];
static uint16_t work[2 * LAYERS * HEADS * PAGE_TOKENS * MAX_DIM];

static kvt_layout layout_of(const bench *b) {
    kvt_layout layout;
    kvt_layout_head_major(&b->realm.geometry, PAGE_TOKENS, elements[0], elements[1], &layout);
    return layout;
}

static void open_bench(bench *b, const char *codec, const char *ladder, uint32_t dim,
                       uint32_t path) {
    uint32_t tokens[PATH_TOKENS];
    *b = (bench){.realm = {.model = "m", .codec = codec}};
    kvt_geometry_init(&b->realm.geometry, LAYERS, HEADS, dim, PAGE_TOKENS);
    oracle_init(&b->realm, &b->o);
    for (uint32_t i = 0; i < PATH_TOKENS; i++)
        tokens[i] = path * 1000 + i;
    oracle_rows(&b->o, tokens, PATH_TOKENS, b->rows);
    CHECK_EQ(cooled_open(&b->realm, ladder, &b->c), KVT_OK);
}

static kvt_page_shape shape_of(const bench *b, const char *codec) {
    kvt_page_shape shape;
    char why[256] = "";
    CHECK_MSG(kvt_page_shape_init(&b->realm.geometry, 0, codec, why, sizeof why, &shape) == KVT_OK,
              "%s", why);
    return shape;
}

/* As a worker seals it. */
static void seal(bench *b, const char *codec, uint32_t number, uint32_t n_rows) {
    kvt_page_shape shape = shape_of(b, codec);
    kvt_layout layout = layout_of(b);
    oracle_fill(&b->o, b->rows + number * PAGE_TOKENS, n_rows, 0, LAYERS, &layout);
    CHECK_EQ(kvt_page_encode_cow(&shape, NULL, 0, 0, n_rows, &layout, number == 0, page, ROOM,
                                 &b->n_bytes),
             KVT_OK);
}

/* As the daemon cools it. */
static void cool(bench *b, const char *codec, uint32_t number) {
    kvt_page_shape shape = shape_of(b, codec);
    CHECK_EQ(
        kvt_page_transcode(&shape, page, b->n_bytes, number == 0, work, other, ROOM, &b->n_bytes),
        KVT_OK);
    memcpy(page, other, b->n_bytes);
}

static kvt_layout decode(const bench *b, uint32_t n_rows) {
    kvt_page_shape shape = shape_of(b, "f16");
    kvt_layout layout = layout_of(b);
    memset(elements, 0xee, sizeof elements);
    CHECK_EQ(kvt_page_decode(&shape, page, b->n_bytes, 0, n_rows, 0, LAYERS, &layout), KVT_OK);
    return layout;
}

static uint64_t check(bench *b, uint32_t number, uint32_t n_rows, int *ret_exact) {
    kvt_layout layout = decode(b, n_rows);
    return cooled_check(b->c, &b->o, b->rows + number * PAGE_TOKENS, n_rows, number, page,
                        b->n_bytes, &layout, ret_exact);
}

static uint64_t bytes_of(const bench *b, uint32_t n_rows) {
    return 2ull * n_rows * LAYERS * HEADS * 2 * b->realm.geometry.head_dim[0];
}

/* --- ladders ------------------------------------------------------------------------------------
 */

static void test_ladders(void) {
    static const struct {
        const char *codec, *ladder;
        uint32_t n_rungs;
    } cases[] = {{"f16", "", 1},
                 {"f16", "i8 > i4", 1},
                 {"", "f16 > i8 > i4", 3},
                 {"f16", "f16>i8>i4>i2", 4},
                 {"i8", " f16 >  i8 >i4 ", 2},
                 {"i4", "i8 > i4", 1},
                 {"i4", "i4 > i2", 2},
                 {"i8", "i8 > nothing > i4", 1},
                 {"i8", "i8", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        open_bench(&b, cases[i].codec, cases[i].ladder, 64, 1);
        CHECK_MSG(cooled_rungs(b.c) == cases[i].n_rungs, "\"%s\" on \"%s\": %u", cases[i].codec,
                  cases[i].ladder, cooled_rungs(b.c));
        cooled_close(b.c);
    }
    cooled_close(NULL);
}

/* --- what is right, and each byte that is not --------------------------------------------------
 */

static void test_right(const char *codec, const char *const *sets, const char *ladder, uint32_t dim,
                       uint32_t number, uint32_t n_rows) {
    bench b;
    int is_exact;
    open_bench(&b, codec, ladder, dim, 1);
    seal(&b, codec, number, n_rows);
    CHECK_EQ(cooled_rung(b.c, page, b.n_bytes), 0);
    for (int rung = 1; sets[rung - 1]; rung++) {
        cool(&b, sets[rung - 1], number);
        CHECK_EQ(cooled_rung(b.c, page, b.n_bytes), rung);
        CHECK_EQ(check(&b, number, n_rows, &is_exact), 0);
        CHECK(is_exact);
        /* A byte of what was decoded is another one: of the first element, of the last. */
        kvt_layout layout = decode(&b, n_rows);
        elements[0][0] ^= 1;
        char *last = (char *)elements[1] + (LAYERS - 1) * layout.layer_stride_bytes[1] +
                     (HEADS - 1) * layout.head_stride_bytes[1] +
                     (n_rows - 1) * layout.token_stride_bytes[1] + 2 * dim - 1;
        *last ^= 0x40;
        CHECK_EQ(cooled_check(b.c, &b.o, b.rows + number * PAGE_TOKENS, n_rows, number, page,
                              b.n_bytes, &layout, &is_exact),
                 2);
        /* The rows of its neighbour, of another path, and of none. */
        CHECK(cooled_check(b.c, &b.o, b.rows + (1 - number) * PAGE_TOKENS, n_rows, 1 - number, page,
                           b.n_bytes, &layout, &is_exact) > bytes_of(&b, n_rows) / 2);
        CHECK(!is_exact);
        CHECK(cooled_check(b.c, &b.o, b.rows + number * PAGE_TOKENS + 1, n_rows, number, page,
                           b.n_bytes, &layout, &is_exact) > bytes_of(&b, n_rows) / 2);
        CHECK(!is_exact);
        page[KVT_PAGE_HEADER_BYTES + 1] ^= 1; /* damage that the checksum tells */
        CHECK_EQ(check(&b, number, n_rows, &is_exact), bytes_of(&b, n_rows));
        page[KVT_PAGE_HEADER_BYTES + 1] ^= 1;
    }
    cooled_close(b.c);
}

static void test_all_right(void) {
    const char *const long_way[] = {"i8", "i4", "i2", NULL}, *const two[] = {"i2", NULL};
    const char *const i4[] = {"i4", NULL};
    for (uint32_t number = 0; number < 2; number++)
        for (uint32_t n_rows = PAGE_TOKENS; n_rows > 32; n_rows -= 13)
            for (uint32_t dim = 8; dim <= MAX_DIM; dim *= 2) {
                test_right("f16", long_way, "f16 > i8 > i4 > i2", dim, number, n_rows);
                test_right("i4", two, "i4 > i2", dim, number, n_rows);
                test_right("i8", i4, "i8 > i4", dim, number, n_rows);
            }
}

/* --- what cannot be made again ------------------------------------------------------------------
 */

/* Only its first rows are read: what stands behind them is another path's. */
static void test_in_part(const char *codec, const char *set, const char *ladder) {
    enum { READ = 40 };
    bench b, stranger;
    int is_exact;
    open_bench(&b, codec, ladder, 32, 1);
    seal(&b, codec, 1, PAGE_TOKENS);
    cool(&b, set, 1);
    CHECK_EQ(check(&b, 1, READ, &is_exact), 0);
    CHECK(!is_exact);
    open_bench(&stranger, codec, ladder, 32, 2);
    stranger.n_bytes = b.n_bytes;
    CHECK(check(&stranger, 1, READ, &is_exact) > bytes_of(&b, READ) / 2);
    CHECK(!is_exact);
    cooled_close(stranger.c);
    cooled_close(b.c);
}

/* A page that had cooled, and grew: its first rows are what they were, the others new. */
static void test_grown(const char *codec, const char *set, const char *ladder) {
    enum { OLD = 30 };
    bench b;
    int is_exact;
    open_bench(&b, codec, ladder, 32, 1);
    kvt_page_shape shape = shape_of(&b, codec);
    kvt_layout layout = layout_of(&b);
    seal(&b, codec, 1, OLD);
    cool(&b, set, 1);
    oracle_fill(&b.o, b.rows + PAGE_TOKENS, PAGE_TOKENS, 0, LAYERS, &layout);
    size_t n_bytes;
    CHECK_EQ(kvt_page_encode_cow(&shape, page, b.n_bytes, OLD, PAGE_TOKENS, &layout, 0, other, ROOM,
                                 &n_bytes),
             KVT_OK);
    memcpy(page, other, n_bytes);
    b.n_bytes = n_bytes;
    CHECK(cooled_rung(b.c, page, b.n_bytes) > 0);
    CHECK_EQ(check(&b, 1, PAGE_TOKENS, &is_exact), 0);
    CHECK(!is_exact);
    layout = decode(&b, PAGE_TOKENS);
    uint64_t rows[PAGE_TOKENS];
    memcpy(rows, b.rows, sizeof rows);
    CHECK(cooled_check(b.c, &b.o, rows, PAGE_TOKENS, 1, page, b.n_bytes, &layout, &is_exact) >
          bytes_of(&b, PAGE_TOKENS) / 2);
    cooled_close(b.c);
}

/* A page that says it is under a set that the ladder has not, or that did not cool at all, is not
 * for this check: whoever asks is told so, and that nothing of it is right. */
static void test_not_cooled(void) {
    bench b;
    int is_exact;
    open_bench(&b, "f16", "f16 > i8 > i4", 32, 1);
    seal(&b, "fp8", 1, PAGE_TOKENS);
    CHECK_EQ(cooled_rung(b.c, page, b.n_bytes), -1);
    CHECK_EQ(check(&b, 1, PAGE_TOKENS, &is_exact), bytes_of(&b, PAGE_TOKENS));
    seal(&b, "f16", 1, PAGE_TOKENS);
    CHECK_EQ(cooled_rung(b.c, page, b.n_bytes), 0);
    CHECK_EQ(check(&b, 1, PAGE_TOKENS, &is_exact), bytes_of(&b, PAGE_TOKENS));
    CHECK_EQ(cooled_rung(b.c, page, KVT_PAGE_HEADER_BYTES - 1), -1);
    memset(page, 0, 4);
    CHECK_EQ(cooled_rung(b.c, page, b.n_bytes), -1);
    cooled_close(b.c);
}

int main(void) {
    test_ladders();
    test_all_right();
    test_in_part("f16", "i8", "f16 > i8 > i4");
    test_in_part("i8", "i4", "i8 > i4");
    test_in_part("i4", "i2", "i4 > i2");
    test_grown("f16", "i8", "f16 > i8");
    test_grown("i8", "i4", "i8 > i4");
    test_grown("i4", "i2", "i4 > i2");
    test_not_cooled();
    return 0;
}
