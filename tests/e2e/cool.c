/*
 * cool.c - pages that cool from i8 to i4: in the arena; then in a host tier and on disk, over a
 * restart. What is served is what was sealed, or that encoded anew, to the bit.
 */
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_TOKENS = 16,
    PAGES = 10,
    TOKENS = PAGES * PAGE_TOKENS,
    LAYERS = 2,
    HEADS = 2,
    DIM = 32
};
enum { PART = LAYERS * TOKENS * HEADS * DIM, PAGE_ROOM = 16384 };

typedef struct worker {
    kvt_client *client;
    kvt_realm realm;
    oracle oracle;
    uint64_t rows[TOKENS];
    uint16_t part[2][PART], expected[2][PART];
    uint64_t served, cooled; /* pages */
} worker;

static void worker_open(worker *w, const e2e_daemon *d) {
    kvt_options options = {.socket = d->socket,
                           .name = "cool",
                           .timeout_ms = 60000,
                           .staging_pages = PAGES,
                           .flags = KVT_OPEN_VERIFY};
    memset(w, 0, sizeof *w);
    w->realm = (kvt_realm){.model = "a model that cools", .codec = "i8"};
    kvt_geometry_init(&w->realm.geometry, LAYERS, HEADS, DIM, PAGE_TOKENS);
    kvt_status status = kvt_open(&options, &w->realm, &w->client);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    oracle_init(&w->realm, &w->oracle);
}

static kvt_layout layout_of(const worker *w, uint16_t part[2][PART]) {
    kvt_layout layout;
    kvt_layout_token_major(&w->realm.geometry, TOKENS, part[0], part[1], &layout);
    return layout;
}

/* The same from this token on. */
static kvt_layout from_token(kvt_layout layout, size_t token) {
    for (int p = 0; p < 2; p++)
        layout.part[p] = (char *)layout.part[p] + token * layout.token_stride_bytes[p];
    return layout;
}

static void prompt(uint32_t number, uint32_t *tokens) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = number * 1000 + i;
}

/* Page `page` as it must be after so many steps, decoded at its place in w->expected. */
static void expect_page(worker *w, size_t page, int steps) {
    static _Alignas(64) uint8_t sealed[PAGE_ROOM], cooled[PAGE_ROOM];
    const kvt_geometry *g = &w->realm.geometry;
    size_t n_bytes, at = page * PAGE_TOKENS;
    kvt_layout layout = from_token(layout_of(w, w->expected), at);
    oracle_fill(&w->oracle, w->rows + at, PAGE_TOKENS, 0, LAYERS, &layout);
    CHECK_EQ(kvt_codec_encode(g, 0, "i8", page, PAGE_TOKENS, &layout, sealed, PAGE_ROOM, &n_bytes),
             KVT_OK);
    if (steps)
        CHECK_EQ(
            kvt_codec_transcode(g, 0, "i4", page, sealed, n_bytes, cooled, PAGE_ROOM, &n_bytes),
            KVT_OK);
    CHECK_EQ(kvt_codec_decode(g, 0, steps ? cooled : sealed, n_bytes, 0, PAGE_TOKENS, 0, LAYERS,
                              &layout),
             KVT_OK);
}

static int page_is(const worker *w, size_t page) {
    const kvt_layout a = layout_of(w, (uint16_t(*)[PART])w->part);
    for (int p = 0; p < 2; p++)
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t token = page * PAGE_TOKENS; token < (page + 1) * PAGE_TOKENS; token++) {
                size_t at = layer * a.layer_stride_bytes[p] + token * a.token_stride_bytes[p];
                if (memcmp((const char *)w->part[p] + at, (const char *)w->expected[p] + at,
                           HEADS * DIM * sizeof(uint16_t)) != 0)
                    return 0;
            }
    return 1;
}

static void check_page(worker *w, size_t page) {
    expect_page(w, page, 0);
    int sealed = page_is(w, page);
    if (!sealed)
        expect_page(w, page, 1);
    CHECK_MSG(sealed || page_is(w, page), "page %zu is neither", page);
    w->served++;
    w->cooled += !sealed;
}

static void read_all(worker *w, kvt_lease *lease, const uint32_t *tokens) {
    kvt_lease_info info;
    kvt_layout layout = layout_of(w, w->part);
    kvt_lease_get(lease, &info);
    oracle_rows(&w->oracle, tokens, TOKENS, w->rows);
    CHECK_EQ(kvt_decode(lease, 0, info.held_tokens, 0, LAYERS, &layout), KVT_OK);
    CHECK_EQ(oracle_check_near(&w->oracle, w->rows, info.held_tokens, 0, LAYERS, &layout), 0);
    for (size_t page = 0; page < info.held_tokens / PAGE_TOKENS; page++)
        check_page(w, page);
}

static kvt_lease *ask(worker *w, uint32_t number, uint32_t flags) {
    uint32_t tokens[TOKENS];
    kvt_lease *lease;
    prompt(number, tokens);
    kvt_status status = kvt_acquire(w->client, tokens, TOKENS, flags, &lease);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    read_all(w, lease, tokens);
    return lease;
}

static void fill(worker *w, uint32_t number) {
    kvt_lease *lease = ask(w, number, KVT_CLAIM);
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    kvt_layout layout = layout_of(w, w->part);
    oracle_fill(&w->oracle, w->rows, TOKENS, 0, LAYERS, &layout);
    for (size_t page = info.held_tokens / PAGE_TOKENS; page * PAGE_TOKENS < info.claimed_tokens;
         page++) {
        kvt_layout here = from_token(layout, page * PAGE_TOKENS);
        CHECK_EQ(kvt_encode(lease, page, &here), KVT_OK);
    }
    kvt_status status = kvt_seal(lease, NULL);
    CHECK_MSG(status == KVT_OK || status == KVT_EFULL, "%s", kvt_last_error());
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* A prompt that goes on in the middle of a page that has cooled: that page's rows are copied as
 * they are. Returns whether there was one. */
static int turn_off(worker *w, uint32_t number) {
    enum { KEPT = 2 * PAGE_TOKENS + 5 };
    uint32_t tokens[TOKENS];
    kvt_lease *lease, *again;
    kvt_lease_info info;
    prompt(number, tokens);
    for (uint32_t i = KEPT; i < TOKENS; i++)
        tokens[i] += 500;
    CHECK_EQ(kvt_acquire(w->client, tokens, 3 * PAGE_TOKENS, KVT_CLAIM, &lease), KVT_OK);
    kvt_lease_get(lease, &info);
    if (info.held_tokens == KEPT && info.claimed_tokens == 3 * PAGE_TOKENS) {
        kvt_layout layout = layout_of(w, w->part), here = from_token(layout, 2 * PAGE_TOKENS);
        oracle_rows(&w->oracle, tokens, TOKENS, w->rows);
        oracle_fill(&w->oracle, w->rows, 3 * PAGE_TOKENS, 0, LAYERS, &layout);
        CHECK_EQ(kvt_encode(lease, 2, &here), KVT_OK);
        CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
        CHECK_EQ(kvt_fork(lease, 3 * PAGE_TOKENS, &again), KVT_OK);
        CHECK_EQ(kvt_decode(again, 0, 3 * PAGE_TOKENS, 0, LAYERS, &layout), KVT_OK);
        CHECK_EQ(oracle_check_near(&w->oracle, w->rows, 3 * PAGE_TOKENS, 0, LAYERS, &layout), 0);
        CHECK_EQ(kvt_release(again), KVT_OK);
    }
    CHECK_EQ(kvt_release(lease), KVT_OK);
    return info.held_tokens == KEPT;
}

/* How many pages of these prompts are there. */
static uint64_t count(worker *w, uint32_t n_prompts) {
    w->served = w->cooled = 0;
    for (uint32_t i = 0; i < n_prompts; i++)
        CHECK_EQ(kvt_release(ask(w, i, 0)), KVT_OK);
    return w->served;
}

static uint64_t in_arena(const char *ladder) {
    enum { PROMPTS = 100 };
    e2e_daemon d = {0};
    worker *w = malloc(sizeof *w);
    CHECK(w);
    const char *settings[] = {"arena=3MiB", "max_pages=3000", "policy=lru", ladder, NULL};
    e2e_start(&d, settings);
    worker_open(w, &d);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        fill(w, i);
        e2e_await(&d, "jobs", 0);
    }
    uint64_t n = count(w, PROMPTS), n_cooled = e2e_count(&d, "pages_cooled");
    CHECK((n_cooled > 0) == (strcmp(ladder, "ladder=") != 0) && (w->cooled > 0) == (n_cooled > 0));
    CHECK((e2e_count(&d, "bytes_cooled") > 0) == (n_cooled > 0));
    uint32_t turned = 0;
    for (uint32_t i = 0; i < PROMPTS; i++)
        turned += (uint32_t)turn_off(w, i);
    CHECK(turned > 0);
    kvt_close(w->client);
    e2e_finish(&d);
    free(w);
    return n;
}

static void on_disk(void) {
    enum { PROMPTS = 180, MORE = 40 };
    e2e_daemon d = {0};
    worker *w = malloc(sizeof *w);
    e2e_disk disk;
    CHECK(w);
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=1MiB",     "host=2MiB",      disk.setting,
                              "disk=16MiB",     "max_pages=6000", "policy=lru",
                              "ladder=i8 > i4", "drain_ms=60000", NULL};
    e2e_start(&d, settings);
    worker_open(w, &d);
    for (uint32_t i = 0; i < PROMPTS; i++)
        fill(w, i);
    CHECK_EQ(kvt_spill(w->client, 60000, NULL), KVT_OK);
    e2e_await(&d, "jobs", 0);
    CHECK(e2e_count(&d, "pages_cooled") > 0);
    CHECK(e2e_count(&d, "disk_used_bytes") <= e2e_count(&d, "disk_bytes"));
    count(w, PROMPTS);
    CHECK(w->cooled > 0);
    CHECK_EQ(kvt_spill(w->client, 60000, NULL), KVT_OK);
    kvt_close(w->client);
    CHECK_EQ(e2e_count(&d, "pages_lost"), 0);
    CHECK_EQ(e2e_stop(&d, SIGTERM), 0);
    e2e_start(&d, settings);
    worker_open(w, &d);
    /* The scan may go on meanwhile: what is there by then is right. */
    count(w, PROMPTS);
    for (uint32_t i = PROMPTS; i < PROMPTS + MORE; i++)
        fill(w, i);
    CHECK_EQ(kvt_spill(w->client, 60000, NULL), KVT_OK);
    CHECK(count(w, PROMPTS + MORE) > 0 && w->cooled > 0);
    kvt_verify_info verify;
    CHECK_EQ(kvt_verify(w->client, 60000, &verify), KVT_OK);
    CHECK_EQ(verify.corrupt_pages, 0);
    CHECK_EQ(e2e_count(&d, "pages_lost"), 0);
    kvt_close(w->client);
    e2e_finish(&d);
    free(w);
    e2e_disk_remove(&disk);
}

int main(void) {
    uint64_t plain = in_arena("ladder="), cooled = in_arena("ladder=i8 > i4");
    CHECK_MSG(cooled > plain + plain / 4, "%llu pages are there, without cooling %llu",
              (unsigned long long)cooled, (unsigned long long)plain);
    on_disk();
    return 0;
}
