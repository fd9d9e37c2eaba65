/*
 * Conversations under lossy codecs: in each round a worker reads what is held, adds a few tokens
 * (or goes on differently from somewhere) and seals; another worker, who never computed anything,
 * reads all of it. What a token was read as the first time, every later round and every worker
 * reads, bit for bit, though pages were copied on write a thousand times.
 *
 *     e2e_drift [rounds]     of each codec set; 1,000 by default
 */
#include "tests/e2e/e2e.h"

enum { TOKENS = 160, DIM = 32, HEADS = 2, ROW = HEADS * DIM };

typedef struct talk {
    kvt_client *writer, *reader;
    kvt_realm realm;
    uint64_t random;
    uint32_t tokens[TOKENS];
    uint32_t n; /* that are held, and settled */
    uint16_t settled[2][E2E_LAYERS][TOKENS][ROW];
    uint16_t work[2][E2E_LAYERS][TOKENS][ROW];
} talk;

static kvt_layout layout_at(talk *t, uint16_t (*part)[E2E_LAYERS][TOKENS][ROW], uint32_t token) {
    kvt_layout layout;
    kvt_layout_token_major(&t->realm.geometry, TOKENS, part[0], part[1], &layout);
    for (int p = 0; p < 2; p++)
        layout.part[p] = (char *)layout.part[p] + token * layout.token_stride_bytes[p];
    return layout;
}

/* Reads n tokens into `work` and compares those that are settled. */
static void read_all(talk *t, kvt_lease *lease, uint32_t n, const char *who) {
    kvt_layout to = layout_at(t, t->work, 0);
    CHECK_MSG(kvt_decode(lease, 0, n, 0, E2E_LAYERS, &to) == KVT_OK, "%s", kvt_last_error());
    for (int p = 0; p < 2; p++)
        for (int l = 0; l < E2E_LAYERS; l++)
            for (uint32_t i = 0; i < n && i < t->n; i++)
                CHECK_MSG(memcmp(t->work[p][l][i], t->settled[p][l][i], ROW * 2) == 0,
                          "%s %s: token %u of %u changed", who, t->realm.codec, i, n);
}

static void settle(talk *t, uint32_t n) {
    memcpy(t->settled, t->work, sizeof t->settled);
    t->n = n;
}

/* Random numbers of very different sizes: what is coded twice does not come out twice the same. */
static void compute(talk *t, uint32_t first, uint32_t end) {
    for (int p = 0; p < 2; p++)
        for (int l = 0; l < E2E_LAYERS; l++)
            for (uint32_t i = first; i < end; i++)
                for (int d = 0; d < ROW; d++)
                    t->work[p][l][i][d] = (uint16_t)(0x2c00 + check_below(&t->random, 0x1c00) +
                                                     0x8000 * check_below(&t->random, 2));
}

static void round_of(talk *t) {
    uint32_t keep = t->n, add = 1 + check_below(&t->random, 9);
    kvt_lease *lease;
    kvt_lease_info info;
    if (check_below(&t->random, 6) == 0)
        keep = check_below(&t->random, t->n + 1);
    if (keep + add > TOKENS)
        keep = check_below(&t->random, TOKENS / 2);
    for (uint32_t i = keep; i < keep + add; i++)
        t->tokens[i] = (uint32_t)check_random(&t->random);
    CHECK(kvt_acquire(t->writer, t->tokens, keep + add, KVT_CLAIM, &lease) == KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK(info.held_tokens >= keep && info.claimed_tokens == keep + add);
    read_all(t, lease, keep, "the writer");
    compute(t, keep, keep + add);
    for (uint32_t page = keep / E2E_PAGE_TOKENS; page * E2E_PAGE_TOKENS < keep + add; page++) {
        kvt_layout from = layout_at(t, t->work, page * E2E_PAGE_TOKENS);
        CHECK_MSG(kvt_encode(lease, page, &from) == KVT_OK, "%s", kvt_last_error());
    }
    CHECK_MSG(kvt_seal(lease, NULL) == KVT_OK, "%s", kvt_last_error());
    t->n = keep;
    read_all(t, lease, keep + add, "the writer, after sealing,");
    settle(t, keep + add);
    CHECK(kvt_release(lease) == KVT_OK);
    CHECK(kvt_acquire(t->reader, t->tokens, t->n, 0, &lease) == KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK(info.held_tokens == t->n);
    read_all(t, lease, t->n, "the reader");
    CHECK(kvt_release(lease) == KVT_OK);
}

/* With one scale for all that is too small values are clamped: what is read is what was read first,
 * and the daemon tells how many they are. With scales of a codec's own there are none. */
static void saturated(const e2e_daemon *d) {
    enum { N = 3 * E2E_PAGE_TOKENS - 5, SCALE_INVERSE = 128, CLAMPED_OVER = 464 };
    static talk t;
    kvt_options options = {.socket = d->socket, .flags = KVT_OPEN_VERIFY};
    kvt_lease *lease;
    uint64_t expected = 0;
    CHECK_EQ(e2e_count(d, "values_saturated"), 0);
    t = (talk){.random = 99};
    e2e_realm(&t.realm);
    t.realm.codec = "fp8s_e4m3:0.0078125"; /* 1 / SCALE_INVERSE */
    CHECK_MSG(kvt_open(&options, &t.realm, &t.writer) == KVT_OK, "%s", kvt_last_error());
    compute(&t, 0, N);
    for (int p = 0; p < 2; p++)
        for (int l = 0; l < E2E_LAYERS; l++)
            for (uint32_t i = 0; i < N; i++)
                for (int k = 0; k < ROW; k++) {
                    float x = oracle_float(KVT_F16, t.work[p][l][i][k]) * SCALE_INVERSE;
                    expected += x > CLAMPED_OVER || x < -CLAMPED_OVER;
                }
    CHECK(expected > 0);
    CHECK_EQ(kvt_acquire(t.writer, t.tokens, N, KVT_CLAIM, &lease), KVT_OK);
    for (uint32_t page = 0; page * E2E_PAGE_TOKENS < N; page++) {
        kvt_layout from = layout_at(&t, t.work, page * E2E_PAGE_TOKENS);
        CHECK_MSG(kvt_encode(lease, page, &from) == KVT_OK, "%s", kvt_last_error());
    }
    CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(e2e_count(d, "values_saturated"), expected);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    kvt_close(t.writer);
}

int main(int argc, char **argv) {
    static const char *const codecs[] = {"i8", "k8v4", "i4", "fp8"};
    const char *const settings[] = {"arena=8MiB", NULL};
    int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    e2e_daemon d = {0};
    e2e_start(&d, settings);
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        static talk t;
        kvt_options options = {.socket = d.socket, .flags = KVT_OPEN_VERIFY};
        t = (talk){.random = 77 + c};
        e2e_realm(&t.realm);
        t.realm.codec = codecs[c];
        CHECK_MSG(kvt_open(&options, &t.realm, &t.writer) == KVT_OK, "%s", kvt_last_error());
        CHECK_MSG(kvt_open(&options, &t.realm, &t.reader) == KVT_OK, "%s", kvt_last_error());
        for (int i = 0; i < rounds; i++)
            round_of(&t);
        kvt_close(t.writer);
        kvt_close(t.reader);
    }
    saturated(&d);
    e2e_finish(&d);
    printf("drift: %d rounds of each codec set, every bit as it was read first\n", rounds);
    return 0;
}
