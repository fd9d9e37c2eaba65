/*
 * realms.c - who may share a page. Workers whose realms differ in one thing ask for the same
 * tokens: by none of the calls does one get what another has sealed, out of no tier, and not after
 * a restart; of its own each gets everything, every byte of it.
 */
#include "client/client.h"
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <sys/wait.h>

enum { PAGE = E2E_PAGE_TOKENS, N = 6 * PAGE + 5, N_PAGES = 7, ROW = 2 * 32 };

/* One with an even number and the next one are alike in all but one thing. */
static const struct variant {
    const char *model, *engine, *adapter, *adapter_version, *salt, *codec;
    uint32_t dtype, n_kv_heads;
} variants[] = {
    {.model = "a model"},
    {.model = "another of its shape"},
    {.model = "a model", .adapter = "X"}, /* the same word in two fields */
    {.model = "a model", .salt = "X"},
    {.model = "a model", .engine = "X"},
    {.model = "a modelX"},
    {.model = "a model", .adapter = "ab", .salt = "c"}, /* another border between them */
    {.model = "a model", .adapter = "a", .salt = "bc"},
    {.model = "a model", .adapter = "Y", .adapter_version = "1"}, /* loaded anew */
    {.model = "a model", .adapter = "Y", .adapter_version = "2"},
    {.model = "a model", .salt = "one user"},
    {.model = "a model", .salt = "another"},
    {.model = "b", .dtype = KVT_F16}, /* the same bits of another kind */
    {.model = "b", .dtype = KVT_BF16},
    {.model = "c", .n_kv_heads = 2}, /* as many bytes in another shape */
    {.model = "c", .n_kv_heads = 1},
    {.model = "d", .codec = "fp8"}, /* eight bits each: how, and with which scales */
    {.model = "d", .codec = "fp8s_e4m3:1"},
    {.model = "e", .codec = "fp8s_e4m3:1"},
    {.model = "e", .codec = "fp8s_e4m3:2"},
    {.model = "f", .codec = "fp8s_e4m3:1"},
    {.model = "f", .codec = "fp8s_e5m2:1"},
    {.model = "g", .codec = "f16"},
    {.model = "g", .codec = "i8"},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static uint32_t tokens[N];

typedef struct sharer {
    kvt_client *client;
    kvt_realm realm;
    oracle oracle;
} sharer;

static sharer all[VARIANTS];

static uint16_t part[2][E2E_LAYERS * N_PAGES * PAGE * ROW];
static uint64_t rows[N_PAGES * PAGE];

static void open_all(const e2e_daemon *d) {
    for (int i = 0; i < VARIANTS; i++) {
        const struct variant *v = &variants[i];
        kvt_options options = {.socket = d->socket,
                               .timeout_ms = 20000,
                               .staging_pages = N_PAGES,
                               .flags = KVT_OPEN_VERIFY};
        kvt_realm *realm = &all[i].realm;
        *realm = (kvt_realm){.model = v->model,
                             .engine = v->engine,
                             .adapter = v->adapter,
                             .adapter_version = v->adapter_version,
                             .salt = v->salt,
                             .codec = v->codec};
        uint32_t heads = v->n_kv_heads ? v->n_kv_heads : 2;
        kvt_geometry_init(&realm->geometry, E2E_LAYERS, heads, ROW / heads, PAGE);
        if (v->dtype)
            realm->geometry.dtype = v->dtype;
        oracle_init(realm, &all[i].oracle);
        kvt_status status = kvt_open(&options, realm, &all[i].client);
        CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    }
}

static void close_all(void) {
    for (int i = 0; i < VARIANTS; i++)
        kvt_close(all[i].client);
}

/* --- its own ------------------------------------------------------------------------------------
 */

static kvt_layout layout_of(const sharer *s, size_t n_tokens) {
    kvt_layout layout;
    kvt_layout_token_major(&s->realm.geometry, n_tokens, part[0], part[1], &layout);
    return layout;
}

static void fill(sharer *s) {
    kvt_lease *lease;
    kvt_layout layout = layout_of(s, PAGE);
    CHECK_EQ(kvt_acquire(s->client, tokens, N, KVT_CLAIM, &lease), KVT_OK);
    oracle_rows(&s->oracle, tokens, N, rows);
    for (size_t page = 0; page < N_PAGES; page++) {
        size_t at = page * PAGE;
        oracle_fill(&s->oracle, rows + at, N - at < PAGE ? N - at : PAGE, 0, E2E_LAYERS, &layout);
        CHECK_MSG(kvt_encode(lease, page, &layout) == KVT_OK, "%s", kvt_last_error());
    }
    CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* What is told to be held is what is held, and right. */
static void has_all(int i) {
    sharer *s = &all[i];
    kvt_lease *lease;
    kvt_lease_info info;
    kvt_prefetch_info ahead;
    kvt_layout layout = layout_of(s, N);
    CHECK_EQ(kvt_prefetch(s->client, tokens, N, &ahead), KVT_OK);
    CHECK_MSG(ahead.held_tokens == N, "realm %d: %u tokens", i, ahead.held_tokens);
    CHECK_EQ(kvt_acquire(s->client, tokens, N, 0, &lease), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_MSG(info.held_tokens == N, "realm %d: %u tokens", i, info.held_tokens);
    CHECK_EQ(kvt_decode(lease, 0, N, 0, E2E_LAYERS, &layout), KVT_OK);
    oracle_rows(&s->oracle, tokens, N, rows);
    int loses = s->realm.codec && strcmp(s->realm.codec, "f16") != 0;
    uint64_t wrong =
        (loses ? oracle_check_near : oracle_check)(&s->oracle, rows, N, 0, E2E_LAYERS, &layout);
    CHECK_MSG(wrong == 0, "realm %d: %llu wrong bytes", i, (unsigned long long)wrong);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* --- another's ----------------------------------------------------------------------------------
 */

/* A lease on all tokens that nobody holds anything of, nor is about to. */
static void expect_nothing(int i, kvt_lease *lease) {
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.n_tokens, N);
    CHECK_MSG(info.held_tokens == 0 && info.computing_tokens == 0, "realm %d gets %u tokens", i,
              info.held_tokens);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static void ask_by_begun_call(int i) {
    kvt_pending *pending;
    kvt_outcome outcome;
    CHECK_EQ(kvt_acquire_begin(all[i].client, tokens, N, 0, NULL, &pending), KVT_OK);
    CHECK_EQ(kvt_finish(pending, &outcome), KVT_OK);
    expect_nothing(i, outcome.lease);
}

static void has_nothing(const e2e_daemon *d, int i) {
    kvt_client *client = all[i].client;
    kvt_lease *lease, *fork;
    kvt_prefetch_info ahead;
    kvt_pin_info pin;
    kvt_flush_info flushed;
    CHECK_EQ(kvt_acquire(client, tokens, N, 0, &lease), KVT_OK);
    CHECK_EQ(kvt_fork(lease, 0, &fork), KVT_OK);
    expect_nothing(i, lease);
    CHECK_EQ(kvt_extend(fork, 0, tokens, N, KVT_CLAIM), KVT_OK);
    expect_nothing(i, fork);
    CHECK_EQ(kvt_acquire(client, tokens, N, KVT_CLAIM, &lease), KVT_OK);
    expect_nothing(i, lease);
    CHECK_EQ(kvt_acquire_spans(client, tokens, N, NULL, 0, 0, &lease), KVT_OK);
    expect_nothing(i, lease);
    CHECK_EQ(kvt_acquire_ranks(client, 900 + (uint64_t)i, 1, tokens, N, 0, &lease), KVT_OK);
    expect_nothing(i, lease);
    ask_by_begun_call(i);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0); /* each release has found what was acquired */
    CHECK_EQ(kvt_prefetch(client, tokens, N, &ahead), KVT_OK);
    CHECK_EQ(ahead.held_tokens, 0);
    CHECK_EQ(kvt_pin(client, 0, tokens, N, 0, 0, &pin), KVT_ENOENT);
    CHECK_EQ(kvt_flush(client, KVT_FLUSH_PREFIX, 0, tokens, 1, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages + flushed.held_pages, 0);
    CHECK_EQ(kvt_flush(client, KVT_FLUSH_REALM, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages + flushed.held_pages, 0);
    for (int other = 0; other < i; other++) /* what every message on the wire has in it */
        CHECK(client->session.realm != all[other].client->session.realm);
}

/* --- flush, down to the disk ---------------------------------------------------------------------
 */

static void start_anew(e2e_daemon *d, const char *const *settings, int signal_number,
                       uint64_t n_pages) {
    close_all();
    e2e_stop(d, signal_number);
    e2e_start(d, settings);
    open_all(d);
    e2e_await(d, "pages_found", n_pages);
}

/* The daemon is killed as soon as the call has returned. */
static void flush(e2e_daemon *d, const char *const *settings) {
    enum { GONE = 3 };
    kvt_flush_info flushed;
    kvt_verify_info verify;
    CHECK_EQ(kvt_flush(all[GONE].client, KVT_FLUSH_REALM, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages, N_PAGES);
    has_nothing(d, GONE);
    start_anew(d, settings, SIGKILL, (VARIANTS - 1) * N_PAGES);
    has_nothing(d, GONE);
    for (int i = 0; i < VARIANTS; i++)
        if (i != GONE)
            has_all(i);
    CHECK_EQ(kvt_flush(all[0].client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages, (VARIANTS - 1) * N_PAGES);
    start_anew(d, settings, SIGKILL, 0);
    CHECK_EQ(kvt_verify(all[0].client, 20000, &verify), KVT_OK);
    CHECK_EQ(verify.checked_pages, 0);
    for (int i = 0; i < VARIANTS; i++)
        has_nothing(d, i);
}

int main(void) {
    e2e_daemon d = {0};
    e2e_disk disk;
    kvt_spill_info spill;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=4MiB",     "host=4MiB",
                              disk.setting,     "disk=64MiB",
                              "max_pages=800",  "promote_wait_ms=60000",
                              "max_realms=100", NULL};
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = 11 + i;
    e2e_start(&d, settings);
    open_all(&d);
    for (int i = 0; i < VARIANTS; i += 2) {
        has_nothing(&d, i);
        fill(&all[i]);
    }
    for (int i = 0; i < VARIANTS; i++)
        if (i % 2 == 0)
            has_all(i);
        else
            has_nothing(&d, i);
    CHECK_EQ(kvt_spill(all[0].client, 30000, &spill), KVT_OK);
    start_anew(&d, settings, SIGTERM, VARIANTS / 2 * N_PAGES);
    for (int i = 1; i < VARIANTS; i += 2) {
        has_nothing(&d, i);
        has_all(i - 1);
        fill(&all[i]);
    }
    CHECK(e2e_count(&d, "tokens_from_disk") > 0);
    for (int i = 0; i < VARIANTS; i++)
        has_all(i);
    CHECK_EQ(kvt_spill(all[0].client, 30000, &spill), KVT_OK);
    CHECK_EQ(spill.disk_pages, VARIANTS * N_PAGES);
    flush(&d, settings);
    close_all();
    e2e_finish(&d);
    e2e_disk_remove(&disk);
    printf("%d realms share tokens and no page\n", VARIANTS);
    return 0;
}
