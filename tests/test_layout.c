/*
 * test_layout.c - which layouts of a worker's own KV are refused: those in which two rows meet, by
 * a look at all pairs of rows, and those with elements that are not at multiples of 2 bytes. And
 * that each usual order of things is none of them.
 */
#include "client/layout.h"
#include "tests/kv_kit.h"

static uint64_t seed = 21;
static uint16_t memory[2];

static kvt_geometry geometry_of(uint32_t n_layers, uint32_t n_heads, uint32_t dim0, uint32_t dim1) {
    kvt_geometry g;
    kvt_geometry_init(&g, n_layers, n_heads, dim0, 16);
    g.head_dim[1] = dim1;
    return g;
}

static kvt_layout layout_of(int64_t layer, int64_t head, int64_t token) {
    kvt_layout layout;
    for (int p = 0; p < 2; p++) {
        layout.part[p] = &memory[p];
        layout.layer_stride_bytes[p] = (size_t)layer;
        layout.head_stride_bytes[p] = (size_t)head;
        layout.token_stride_bytes[p] = (size_t)token;
    }
    return layout;
}

/* --- what is sensible ----------------------------------------------------------------------------
 */

static void accept(const kvt_geometry *g, const kvt_layout *layout, size_t n_tokens, int is_paged) {
    CHECK_MSG(kvt_layout_check("to", layout, g, g->n_layers, n_tokens, is_paged) == KVT_OK, "%s",
              kvt_last_error());
}

static void test_usual(void) {
    enum { N = 1000 };
    kvt_geometry g = geometry_of(32, 8, 128, 128), mla = geometry_of(61, 1, 512, 64);
    kvt_geometry one = geometry_of(1, 1, 64, 64);
    const int64_t row = 256, layers = 32, heads = 8, page = 16;
    kvt_layout layout;
    kvt_layout_token_major(&g, N, &memory[0], &memory[1], &layout);
    accept(&g, &layout, N, 0);
    kvt_layout_head_major(&g, N, &memory[0], &memory[1], &layout);
    accept(&g, &layout, N, 0);
    kvt_layout_token_major(&mla, N, &memory[0], &memory[1], &layout);
    accept(&mla, &layout, N, 0);
    const kvt_layout all[] = {
        layout_of(heads * row, row, layers * heads * row),        /* [token][layer][head] */
        layout_of(2 * N * heads * row, row, heads * row),         /* [layer][K, V][token][head] */
        layout_of(2 * N * heads * row, 2 * row, 2 * heads * row), /* [token][head][K, V] */
        layout_of(row, N * layers * row, layers * row),           /* [head][token][layer] */
        layout_of(-(int64_t)N * heads * row, row, heads * row),   /* the last layer first */
        layout_of(N * (heads * row + 18) + 6, row + 2, heads * row + 18), /* gaps */
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        accept(&g, &all[i], N, 0);
    const kvt_layout paged[] = {
        layout_of(N * page * heads * row, row, heads * row), /* [layer][block][token][head] */
        layout_of(N * page * heads * row, page * row, row),  /* [layer][block][head][token] */
        layout_of(page * heads * row, page * row, row),      /* [block][layer][head][token] */
    };
    for (size_t i = 0; i < sizeof paged / sizeof *paged; i++)
        accept(&g, &paged[i], page, 1);
    layout = layout_of(1, 0, 3); /* by which nothing is reached */
    accept(&one, &layout, 1, 0);
    layout = layout_of(0, 0, 0);
    accept(&g, &layout, 0, 0); /* no row at all */
}

/* --- what is not ---------------------------------------------------------------------------------
 */

static void refuse(const kvt_geometry *g, const kvt_layout *layout, size_t n_tokens, int is_paged,
                   const char *words) {
    CHECK_EQ(kvt_layout_check("to", layout, g, g->n_layers, n_tokens, is_paged), KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), words), "%s, and not: %s", kvt_last_error(), words);
}

static void test_words(void) {
    kvt_geometry g = geometry_of(3, 2, 32, 32);
    const kvt_layout good = layout_of(1280, 64, 128);
    accept(&g, &good, 10, 0);
    refuse(&g, NULL, 10, 0, "to is NULL");
    kvt_layout bad = good;
    bad.part[1] = NULL;
    refuse(&g, &bad, 10, 0, "to->part[1] is NULL");
    bad = good;
    bad.part[1] = (char *)bad.part[1] + 1;
    refuse(&g, &bad, 10, 0, "to->part[1] is 0x");
    refuse(&g, &bad, 0, 0, "must be a multiple of the 2 bytes");
    bad = good;
    bad.token_stride_bytes[1] = 129;
    refuse(&g, &bad, 10, 0, "to->token_stride_bytes[1] is 129: it must be a multiple of the 2");
    refuse(&g, &bad, 1, 1, "to->token_stride_bytes[1] is 129");
    accept(&g, &bad, 1, 0);
    bad = good;
    bad.head_stride_bytes[0] = 0;
    refuse(&g, &bad, 10, 0,
           "to->head_stride_bytes[0] is 0: rows of 64 bytes would overlap, and "
           "there are 2");
    bad = good;
    bad.layer_stride_bytes[0] = (size_t)-62;
    refuse(&g, &bad, 10, 0, "to->layer_stride_bytes[0] is -62: rows of 64 bytes");
    bad = good;
    bad.layer_stride_bytes[1] = (size_t)1 << 62;
    refuse(&g, &bad, 10, 0, "beyond all memory");
    bad.layer_stride_bytes[1] = (size_t)1 << 63;
    refuse(&g, &bad, 10, 0, "beyond all memory");
    bad = layout_of(1280, 64, 64); /* token 1 of head 0 is token 0 of head 1 */
    refuse(&g, &bad, 10, 0,
           "rows of to->part[0] would overlap: 64 bytes each, layers 1280 bytes "
           "apart, heads 64, tokens 64 (layout.*_stride_bytes[0]; 3, 2, 10");
}

/* --- against all pairs ---------------------------------------------------------------------------
 */

enum { MOST_LAYERS = 4, MOST_HEADS = 4, MOST_TOKENS = 6, HALF = 4096 };

static int any_rows_meet(int64_t layer, int64_t head, int64_t token, const size_t n[3],
                         int64_t row_bytes) {
    static uint8_t taken[2 * HALF];
    memset(taken, 0, sizeof taken);
    for (size_t l = 0; l < n[0]; l++)
        for (size_t h = 0; h < n[1]; h++)
            for (size_t t = 0; t < n[2]; t++)
                for (int64_t i = 0; i < row_bytes; i++) {
                    int64_t at =
                        HALF + (int64_t)l * layer + (int64_t)h * head + (int64_t)t * token + i;
                    CHECK(at >= 0 && at < 2 * HALF);
                    if (taken[at]++)
                        return 1;
                }
    return 0;
}

static void test_random(void) {
    uint32_t n_meet = 0, n_scattered = 0;
    for (uint32_t round = 0; round < 200000; round++) {
        const size_t n[] = {1 + check_below(&seed, MOST_LAYERS), 1 + check_below(&seed, MOST_HEADS),
                            1 + check_below(&seed, MOST_TOKENS)};
        uint32_t dim = 2 * (1 + check_below(&seed, 3)), most = check_below(&seed, 2) ? 20 : 150;
        int64_t s[3];
        for (int i = 0; i < 3; i++)
            s[i] = 2 * ((int64_t)check_below(&seed, 2 * most) - (int64_t)most);
        kvt_geometry g = geometry_of((uint32_t)n[0], (uint32_t)n[1], dim, dim);
        kvt_layout layout = layout_of(s[0], s[1], s[2]);
        int meet = any_rows_meet(s[0], s[1], s[2], n, 2 * dim);
        kvt_status status = kvt_layout_check("to", &layout, &g, n[0], n[2], 0);
        CHECK_MSG((status == KVT_EINVAL) == meet,
                  "%zu layers %" PRId64 " apart, %zu heads %" PRId64 ", %zu tokens %" PRId64
                  ", rows of %u: %s",
                  n[0], s[0], n[1], s[1], n[2], s[2], 2 * dim, kvt_status_name(status));
        n_meet += (uint32_t)meet;
        n_scattered += n[0] > 1 && n[1] > 1 && n[2] > 1 && !meet;
    }
    CHECK(n_meet > 20000 && n_scattered > 10000);
}

/* --- blocks --------------------------------------------------------------------------------------
 */

/* As a decode asks: of the tokens of a path from first_token on. */
static kvt_status check_table(const kvt_geometry *g, const kvt_layout *layout,
                              const kvt_block_table *table, size_t first_token, size_t n_tokens) {
    const kvt_layout_blocks blocks = {table, first_token, first_token + n_tokens};
    size_t rows = n_tokens < table->block_tokens ? n_tokens : table->block_tokens;
    kvt_layout_spread spread;
    kvt_status status = kvt_layout_check("to", layout, g, g->n_layers, rows, 1);
    if (status == KVT_OK)
        status = kvt_layout_check_table("to", layout, &blocks);
    if (status == KVT_OK)
        status = kvt_layout_spread_of(&blocks, &spread);
    if (status == KVT_OK)
        status = kvt_layout_check_blocks("to", layout, g, g->n_layers, &blocks, &spread);
    return status;
}

static void accept_table(const kvt_geometry *g, kvt_layout layout, const kvt_block_table *table) {
    size_t n = table->n_blocks * table->block_tokens;
    CHECK_MSG(check_table(g, &layout, table, 0, n) == KVT_OK, "%s", kvt_last_error());
}

static void refuse_table(const kvt_geometry *g, kvt_layout layout, const kvt_block_table *table,
                         const char *words) {
    size_t n = table->n_blocks * table->block_tokens;
    CHECK_EQ(check_table(g, &layout, table, 0, n), KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), words), "%s, and not: %s", kvt_last_error(), words);
}

/* Each usual paged cache, its blocks in any order. */
static void test_usual_tables(void) {
    enum { N = 1000, PAGE = 16, LAYERS = 32, HEADS = 8, ROW = 256 };
    static uint32_t slots[N];
    kvt_geometry g = geometry_of(LAYERS, HEADS, ROW / 2, ROW / 2);
    const int64_t token = HEADS * ROW, pool = (int64_t)N * PAGE * token;
    uint32_t blocks[] = {7, 3, 4, 999, 0};
    kvt_block_table table = {blocks, 5, PAGE, 0};
    accept_table(&g, layout_of(pool, ROW, token), &table); /* [layer][block][token][head] */
    accept_table(&g, layout_of(-pool, ROW, -token), &table);
    accept_table(&g, layout_of(2 * pool, N * PAGE * ROW, ROW), &table); /* [head][block][token] */
    accept_table(&g, layout_of(token, ROW, LAYERS * token), &table);    /* [token][layer][head] */
    table.block_stride_tokens = HEADS * PAGE;
    accept_table(&g, layout_of(pool, PAGE * ROW, ROW), &table); /* [block][head][token] */
    table.block_stride_tokens = LAYERS * HEADS * PAGE;
    accept_table(&g, layout_of(PAGE * token, PAGE * ROW, ROW), &table); /* [block][layer][head] */
    table.block_stride_tokens = 2 * LAYERS * PAGE; /* [block][layer][K, V][token][head] */
    accept_table(&g, layout_of(2 * PAGE * token, ROW, token), &table);
    for (uint32_t i = 0; i < N; i++)
        slots[i] = (i * 7919) % 1009;
    table = (kvt_block_table){slots, N, 1, 1};
    accept_table(&g, layout_of(pool, ROW, token), &table);
    uint32_t begins[] = {HEADS * PAGE * 5 + 3, 3, HEADS * PAGE * 9 + 5, HEADS * PAGE * 2 + 7};
    table = (kvt_block_table){begins, 4, PAGE, 1}; /* where blocks of [head][token] begin */
    accept_table(&g, layout_of(pool, PAGE * ROW, ROW), &table);
}

static void test_table_words(void) {
    kvt_geometry g = geometry_of(3, 2, 32, 32);
    const kvt_layout by_token = layout_of(1 << 20, 64, 128), by_head = layout_of(1 << 20, 1024, 64);
    uint32_t blocks[] = {7, 3, 4, 3}, near[] = {0, 40, 55}, far[] = {0, UINT32_MAX - 1};
    kvt_block_table twice = {blocks, 4, 16, 0}, stride = {blocks, 3, 16, 0};
    refuse_table(&g, by_token, &twice,
                 "rows of to->part[0] would overlap: those of blocks->blocks[1], which is 3, and "
                 "blocks->blocks[3], which is 3, are the same tokens of the layout (block_tokens "
                 "16, block_stride_tokens 16;");
    accept_table(&g, by_token, &stride);
    refuse_table(&g, by_head, &stride,
                 "blocks->blocks[1], which is 3, and blocks->blocks[2], which is 4, of different "
                 "heads or layers. A block of [head][block_tokens][dim] is n_kv_heads * "
                 "block_tokens");
    kvt_block_table slots = {near, 3, 16, 1};
    refuse_table(&g, by_token, &slots,
                 "blocks->blocks[1], which is 40, and blocks->blocks[2], which is 55, are the");
    kvt_block_table one_by_one = {near, 3, 1, 1};
    refuse_table(&g, layout_of(1 << 20, 64, 4), &one_by_one, "are less than a row apart");
    refuse_table(&g, layout_of(1 << 20, 64, 0), &one_by_one, "are less than a row apart");
    refuse_table(&g, layout_of(50 * 128, 64, 128), &slots, "are the same tokens");
    near[2] = 60;
    refuse_table(&g, layout_of(50 * 128, 64, 128), &slots, "of different heads or layers");
    kvt_block_table beyond = {far, 2, 16, UINT64_MAX / 2};
    refuse_table(&g, by_token, &beyond, "blocks->blocks[1] is 4294967294: so many times");
    beyond.block_stride_tokens = UINT32_MAX;
    refuse_table(&g, by_token, &beyond, "(to->token_stride_bytes[0]) go beyond all memory");
    CHECK_EQ(check_table(&g, &by_token, &stride, 40, 9), KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), "token 48 is beyond the block table of 3 blocks of 16"),
              "%s", kvt_last_error());
    /* As engines pad their tables: of an entry that the call does not need it does no harm. */
    far[1] = UINT32_MAX;
    kvt_block_table padded = {far, 2, 16, 1};
    refuse_table(&g, by_token, &padded, "blocks->blocks[1] is -1, which engines");
    CHECK_EQ(check_table(&g, &by_token, &padded, 0, 16), KVT_OK);
    /* Of a block that is named twice other tokens are written each time. */
    CHECK_EQ(check_table(&g, &by_token, &twice, 24, 32), KVT_OK);
    CHECK_EQ(check_table(&g, &by_token, &twice, 24, 33), KVT_EINVAL);
}

static void test_parts(void) {
    kvt_layout layout = layout_of(1280, 64, 128);
    CHECK_EQ(kvt_layout_check_parts("to", &layout), KVT_OK);
    layout.part[1] = layout.part[0];
    CHECK_EQ(kvt_layout_check_parts("to", &layout), KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), "to->part[0] and to->part[1] are both 0x"), "%s",
              kvt_last_error());
}

enum { MOST_BLOCKS = 5 };

static int any_blocks_meet(const int64_t s[3], const size_t n[2], const kvt_block_table *table,
                           size_t first_token, size_t n_tokens, int64_t row_bytes) {
    static uint8_t taken[16 * HALF];
    const int64_t half = 8 * HALF;
    memset(taken, 0, sizeof taken);
    for (size_t l = 0; l < n[0]; l++)
        for (size_t h = 0; h < n[1]; h++)
            for (size_t t = first_token; t < first_token + n_tokens; t++)
                for (int64_t i = 0; i < row_bytes; i++) {
                    uint64_t stride = table->block_stride_tokens ? table->block_stride_tokens
                                                                 : table->block_tokens;
                    uint64_t token =
                        table->blocks[t / table->block_tokens] * stride + t % table->block_tokens;
                    int64_t at =
                        half + (int64_t)l * s[0] + (int64_t)h * s[1] + (int64_t)token * s[2] + i;
                    CHECK(at >= 0 && at < 2 * half);
                    if (taken[at]++)
                        return 1;
                }
    return 0;
}

/* Those whose rows do not meet within a block. */
static void test_random_tables(void) {
    uint32_t n_seen = 0, n_meet = 0;
    for (uint32_t round = 0; round < 100000; round++) {
        const size_t n[] = {1 + check_below(&seed, 3), 1 + check_below(&seed, 3)};
        uint32_t dim = 2 * (1 + check_below(&seed, 3)), blocks[MOST_BLOCKS];
        uint32_t most = check_below(&seed, 2) ? 20 : 150, stride = check_below(&seed, 7);
        const kvt_block_table table = {blocks, MOST_BLOCKS, 1 + check_below(&seed, 4), stride};
        size_t first = check_below(&seed, 2 * table.block_tokens);
        size_t n_tokens =
            1 + check_below(&seed, MOST_BLOCKS * table.block_tokens - (uint32_t)first);
        for (uint32_t i = 0; i < MOST_BLOCKS; i++)
            blocks[i] = check_below(&seed, 12);
        int64_t s[3];
        for (int i = 0; i < 3; i++)
            s[i] = 2 * ((int64_t)check_below(&seed, 2 * most) - (int64_t)most);
        kvt_geometry g = geometry_of((uint32_t)n[0], (uint32_t)n[1], dim, dim);
        kvt_layout layout = layout_of(s[0], s[1], s[2]);
        size_t rows = n_tokens < table.block_tokens ? n_tokens : table.block_tokens;
        if (kvt_layout_check("to", &layout, &g, n[0], rows, 1) != KVT_OK)
            continue;
        int meet = any_blocks_meet(s, n, &table, first, n_tokens, 2 * dim);
        kvt_status status = check_table(&g, &layout, &table, first, n_tokens);
        CHECK_MSG((status == KVT_EINVAL) == meet,
                  "%zu layers %" PRId64 " apart, %zu heads %" PRId64 ", tokens %" PRId64
                  ", rows of %u, blocks of %u tokens %u apart, tokens %zu and %zu on: %s",
                  n[0], s[0], n[1], s[1], s[2], 2 * dim, table.block_tokens, stride, first,
                  n_tokens, status == KVT_OK ? "accepted" : kvt_last_error());
        n_seen++;
        n_meet += (uint32_t)meet;
    }
    CHECK_MSG(n_meet > 10000 && n_seen - n_meet > 10000, "%u of %u", n_meet, n_seen);
}

int main(void) {
    test_usual_tables();
    test_table_words();
    test_parts();
    test_random_tables();
    test_usual();
    test_words();
    test_random();
    return 0;
}
