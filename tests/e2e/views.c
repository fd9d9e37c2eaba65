/*
 * views.c - leases of some rows of a long prompt. Sealed by one process and viewed by others: when
 * the pages between have been spilled to lower tiers, and when they have been evicted while the
 * view lasts. Each row is right, the daemon brings up and keeps exactly the pages of the rows, and
 * others read the prompt whole. With a budget it has the rows that workers said matter most.
 */
#include "tests/e2e/e2e.h"
#include "tests/e2e/gpu.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 500, PAGES = (PROMPT + E2E_PAGE_TOKENS - 1) / E2E_PAGE_TOKENS };

static void prompt(uint64_t number, uint32_t *tokens) {
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = (uint32_t)number * 100000 + i;
}

/* Reads the prompt whole, after computing what is missing of it. */
static void fill(e2e_worker *w, uint64_t number) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    prompt(number, tokens);
    CHECK_EQ(kvt_acquire(w->client, tokens, PROMPT, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* Another process seals the prompts of numbers seed % 1000 and on, seed / 1000 of them. */
static int filler(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    e2e_worker_open(&w, d, 2, 20000);
    for (uint64_t i = 0; i < seed / 1000; i++)
        fill(&w, seed % 1000 + i);
    e2e_worker_close(&w);
    return 0;
}

static void run_filler(const e2e_daemon *d, uint64_t first, uint64_t n) {
    e2e_child child = e2e_spawn(d, "filler", n * 1000 + first);
    while (e2e_child_hear(&child))
        continue;
    CHECK_EQ(e2e_child_end(&child), 0);
}

static kvt_lease *take(e2e_worker *w, uint64_t number, kvt_view view) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    prompt(number, tokens);
    kvt_status status = kvt_acquire_view(w->client, tokens, PROMPT, NULL, 0, &view, 0, &lease);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), kvt_last_error());
    return lease;
}

static uint64_t wrong_rows(e2e_worker *w, const uint64_t *hashes, size_t n,
                           const kvt_layout *layout) {
    return oracle_check(&w->oracle, hashes, n, 0, E2E_LAYERS, layout);
}

/* The same into the worker's KV on the GPU, which waits for pages of the view alone. */
static void read_by_gpu(e2e_worker *w, kvt_lease *lease, const kvt_run *run, size_t end,
                        const uint64_t *hashes) {
    kvt_layout to, here;
    kvt_layout_token_major(&w->realm.geometry, run->n_tokens, w->gpu_part[0], w->gpu_part[1], &to);
    kvt_layout_token_major(&w->realm.geometry, run->n_tokens, w->part[0], w->part[1], &here);
    CHECK_EQ(kvt_decode_device(lease, run->first_token, run->n_tokens, 0, E2E_LAYERS, &to, NULL,
                               w->stream),
             KVT_OK);
    CHECK_EQ(kvt_sync(lease), KVT_OK);
    for (int p = 0; p < 2; p++)
        gpu_get(w->part[p], w->gpu_part[p], E2E_PART_BYTES);
    CHECK_EQ(wrong_rows(w, hashes + run->first_token, run->n_tokens, &here), 0);
    if (run->first_token + run->n_tokens < end)
        CHECK_EQ(kvt_decode_device(lease, run->first_token, run->n_tokens + 1, 0, E2E_LAYERS, &to,
                                   NULL, w->stream),
                 KVT_EINVAL);
}

/* Every row of the view, all of them together and run by run; and a token that it has not. */
static void read_view(e2e_worker *w, kvt_lease *lease, uint64_t number) {
    uint32_t tokens[E2E_MAX_TOKENS];
    uint64_t hashes[E2E_MAX_TOKENS], packed[E2E_MAX_TOKENS];
    kvt_lease_info info;
    const kvt_run *runs;
    kvt_layout layout;
    size_t n_runs, n = 0;
    prompt(number, tokens);
    oracle_rows(&w->oracle, tokens, PROMPT, hashes);
    CHECK_EQ(kvt_lease_get(lease, &info), KVT_OK);
    CHECK_EQ(kvt_lease_runs(lease, &runs, &n_runs), KVT_OK);
    for (size_t i = 0; i < n_runs; n += runs[i++].n_tokens)
        memcpy(packed + n, hashes + runs[i].first_token, runs[i].n_tokens * sizeof *packed);
    CHECK_EQ(n, info.n_rows);
    kvt_layout_token_major(&w->realm.geometry, n, w->part[0], w->part[1], &layout);
    CHECK_EQ(kvt_decode_rows(lease, 0, n, 0, E2E_LAYERS, &layout), KVT_OK);
    CHECK_EQ(wrong_rows(w, packed, n, &layout), 0);
    CHECK_EQ(kvt_decode_rows(lease, 3, n - 3, 0, E2E_LAYERS, &layout), KVT_OK);
    CHECK_EQ(wrong_rows(w, packed + 3, n - 3, &layout), 0);
    CHECK_EQ(kvt_decode_rows(lease, 3, n - 2, 0, E2E_LAYERS, &layout), KVT_EINVAL);
    for (size_t i = 0; i < n_runs; i++) {
        uint32_t first = runs[i].first_token, end = first + runs[i].n_tokens;
        CHECK_EQ(kvt_decode(lease, first, runs[i].n_tokens, 0, E2E_LAYERS, &layout), KVT_OK);
        CHECK_EQ(wrong_rows(w, hashes + first, runs[i].n_tokens, &layout), 0);
        if (w->gpu_part[0])
            read_by_gpu(w, lease, &runs[i], info.held_tokens, hashes);
        if (end == info.held_tokens)
            continue;
        CHECK_EQ(kvt_decode(lease, first, runs[i].n_tokens + 1, 0, 1, &layout), KVT_EINVAL);
        CHECK(strstr(kvt_last_error(), "no row of token"));
        CHECK_EQ(kvt_decode(lease, end, 1, 0, 1, &layout), KVT_EINVAL);
    }
}

static void expect_runs(kvt_lease *lease, const kvt_run *expected, size_t n) {
    const kvt_run *runs;
    size_t n_runs;
    CHECK_EQ(kvt_lease_runs(lease, &runs, &n_runs), KVT_OK);
    for (size_t i = 0; i < n && i < n_runs; i++)
        CHECK_MSG(runs[i].first_token == expected[i].first_token &&
                      runs[i].n_tokens == expected[i].n_tokens,
                  "run %zu: token %u and %u on, expected %u and %u", i, runs[i].first_token,
                  runs[i].n_tokens, expected[i].first_token, expected[i].n_tokens);
    CHECK_EQ(n_runs, n);
}

/* 5 sinks are 1 page, the last 40 of 500 tokens lie in 3 (pages 28 to 31). */
static const kvt_view some = {.sink_tokens = 5, .window_tokens = 40};
static const kvt_run some_runs[] = {{0, 5}, {PROMPT - 40, 40}};
enum { SOME_PAGES = 1 + 4 };

/* All of it is in lower tiers: the view brings up its pages alone, and they stay while the arena is
 * filled over and over. */
static void spilled(const e2e_daemon *d, e2e_worker *w) {
    run_filler(d, 1, 12);
    e2e_await(d, "pages_dirty", 0);
    uint64_t before = e2e_count(d, "pages_promoted");
    kvt_lease *lease = take(w, 1, some);
    expect_runs(lease, some_runs, 2);
    CHECK_EQ(e2e_count(d, "pages_promoted"), before + SOME_PAGES);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
    CHECK_EQ(e2e_count(d, "pages_viewed"), SOME_PAGES);
    read_view(w, lease, 1);
    run_filler(d, 20, 12);
    e2e_await(d, "pages_dirty", 0);
    CHECK_EQ(e2e_count(d, "pages_viewed"), SOME_PAGES);
    read_view(w, lease, 1);
    /* The same pages for a second one, and nothing has to come up. */
    before = e2e_count(d, "pages_promoted");
    kvt_lease *other = take(w, 1, some);
    CHECK_EQ(e2e_count(d, "pages_promoted"), before);
    CHECK_EQ(e2e_count(d, "pages_viewed"), SOME_PAGES);
    CHECK_EQ(e2e_count(d, "views"), 2);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    read_view(w, other, 1);
    /* Whole for everybody else: nothing of it is computed again. */
    uint64_t sealed = e2e_count(d, "pages_sealed");
    run_filler(d, 1, 1);
    CHECK_EQ(e2e_count(d, "pages_sealed"), sealed);
    read_view(w, other, 1);
    CHECK_EQ(kvt_release(other), KVT_OK);
    CHECK_EQ(e2e_count(d, "views"), 0);
    CHECK_EQ(e2e_count(d, "pages_viewed"), 0);
}

/* There are no lower tiers: while the view lasts the prompt goes for want of room, and comes back
 * for those who compute it again. */
static void evicted(const e2e_daemon *d, e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease, *whole;
    kvt_lease_info info;
    prompt(1, tokens);
    run_filler(d, 1, 1);
    lease = take(w, 1, some);
    expect_runs(lease, some_runs, 2);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
    run_filler(d, 2, 8);
    CHECK_EQ(kvt_acquire(w->client, tokens, PROMPT, 0, &whole), KVT_OK);
    CHECK_EQ(kvt_lease_get(whole, &info), KVT_OK);
    CHECK_EQ(kvt_release(whole), KVT_OK);
    CHECK_EQ(info.held_tokens, 0);
    CHECK_EQ(e2e_count(d, "pages_viewed"), SOME_PAGES);
    read_view(w, lease, 1);
    run_filler(d, 1, 1);
    read_view(w, lease, 1);
    /* The pages that were computed again are others than those of the view. */
    kvt_lease *other = take(w, 1, some);
    CHECK_EQ(e2e_count(d, "pages_viewed"), 2 * SOME_PAGES);
    read_view(w, other, 1);
    kvt_flush_info flushed;
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.held_pages, SOME_PAGES);
    read_view(w, other, 1);
    read_view(w, lease, 1);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(kvt_release(other), KVT_OK);
    CHECK_EQ(e2e_count(d, "frames_used"), 0);
}

/* --- importance ---------------------------------------------------------------------------------
 */

/* Rows 100, 200, 201 and 300 matter most, in this order; 400 and on a little, all alike. */
static void make_importance(float *importance) {
    for (uint32_t i = 0; i < PROMPT; i++)
        importance[i] = i >= 400 ? 0.25f : 0;
    importance[100] = 1000;
    importance[200] = importance[201] = 2.5f;
    importance[300] = 1.5e-3f;
}

static kvt_lease *whole(e2e_worker *w, uint64_t number) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    kvt_lease_info info;
    prompt(number, tokens);
    CHECK_EQ(kvt_acquire(w->client, tokens, PROMPT, 0, &lease), KVT_OK);
    CHECK_EQ(kvt_lease_get(lease, &info), KVT_OK);
    CHECK(info.held_tokens == PROMPT && info.n_rows == PROMPT);
    return lease;
}

/* Another process, which has seen other things of prompt 1: 200 less, 300 more, 7 too. */
static int rater(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    float importance[300] = {[0] = 0.5f, [193] = 0.1f, [293] = 70};
    e2e_worker_open(&w, d, seed, 20000);
    kvt_lease *lease = whole(&w, 1);
    CHECK_EQ(kvt_importance(lease, 7, 300, importance), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    return 0;
}

static void expect_picks(e2e_worker *w, uint32_t budget, const kvt_run *expected, size_t n) {
    kvt_view view = {.sink_tokens = 4, .window_tokens = 10, .budget_tokens = budget};
    kvt_lease *lease = take(w, 1, view);
    expect_runs(lease, expected, n);
    read_view(w, lease, 1);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static void picked(const e2e_daemon *d, e2e_worker *w) {
    float importance[PROMPT];
    (void)d;
    fill(w, 1);
    /* Nothing is known: nothing is picked. */
    expect_picks(w, 100, (kvt_run[]){{0, 4}, {490, 10}}, 2);
    kvt_lease *lease = whole(w, 1);
    make_importance(importance);
    CHECK_EQ(kvt_importance(lease, 0, PROMPT, importance), KVT_OK);
    expect_picks(w, 14, (kvt_run[]){{0, 4}, {490, 10}}, 2);
    expect_picks(w, 15, (kvt_run[]){{0, 4}, {100, 1}, {490, 10}}, 3);
    /* Of equals the later one. */
    expect_picks(w, 16, (kvt_run[]){{0, 4}, {100, 1}, {201, 1}, {490, 10}}, 4);
    expect_picks(w, 17, (kvt_run[]){{0, 4}, {100, 1}, {200, 2}, {490, 10}}, 4);
    expect_picks(w, 19, (kvt_run[]){{0, 4}, {100, 1}, {200, 2}, {488, 12}}, 4);
    /* Room for more than there are: those of which nothing is known are left out. */
    expect_picks(w, 400, (kvt_run[]){{0, 4}, {100, 1}, {200, 2}, {300, 1}, {400, 100}}, 5);
    /* What another process has seen counts where it is more. */
    e2e_child child = e2e_spawn(d, "rater", 4);
    CHECK_EQ(e2e_child_end(&child), 0);
    expect_picks(w, 17, (kvt_run[]){{0, 4}, {100, 1}, {201, 1}, {300, 1}, {490, 10}}, 5);
    expect_picks(w, 19, (kvt_run[]){{0, 4}, {7, 1}, {100, 1}, {200, 2}, {300, 1}, {490, 10}}, 6);
    /* A view says of its own rows alone, counted as it has them: the 5th is token 7. */
    kvt_view view = {.sink_tokens = 4, .window_tokens = 10, .budget_tokens = 19};
    kvt_lease *mine = take(w, 1, view);
    CHECK_EQ(kvt_importance(mine, 4, 1, (float[]){5000}), KVT_OK);
    CHECK_EQ(kvt_importance(mine, 19, 1, importance), KVT_EINVAL);
    CHECK(strstr(kvt_last_error(), "the lease has 19"));
    CHECK_EQ(kvt_release(mine), KVT_OK);
    expect_picks(w, 15, (kvt_run[]){{0, 4}, {7, 1}, {490, 10}}, 3);
    /* Nonsense is said to be that. */
    CHECK_EQ(kvt_importance(lease, 0, PROMPT + 1, importance), KVT_EINVAL);
    CHECK_EQ(kvt_importance(lease, PROMPT, 1, importance), KVT_EINVAL);
    CHECK_EQ(kvt_importance(lease, 0, 1, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_importance(lease, PROMPT, 0, NULL), KVT_OK);
    const float wrong[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(kvt_importance(lease, 0, 2, (float[]){1, wrong[i]}), KVT_EINVAL);
        CHECK(strstr(kvt_last_error(), "importance[1] is"));
    }
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* A short page that a longer one takes the place of leaves it what was known of its rows. */
static void outgrown(e2e_worker *w) {
    enum { SHORT = 40 };
    uint32_t tokens[E2E_MAX_TOKENS];
    float importance[SHORT] = {[37] = 1};
    kvt_lease *lease;
    prompt(7, tokens);
    CHECK_EQ(kvt_acquire(w->client, tokens, SHORT, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(kvt_importance(lease, 0, SHORT, importance), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    fill(w, 7);
    kvt_view view = {.window_tokens = 10, .budget_tokens = 20};
    lease = take(w, 7, view);
    expect_runs(lease, (kvt_run[]){{37, 1}, {490, 10}}, 2);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* Of pages in lower tiers only those of the picks come up, too. */
static void picked_below(const e2e_daemon *d, e2e_worker *w) {
    float importance[PROMPT];
    fill(w, 40);
    kvt_lease *lease = whole(w, 40);
    make_importance(importance);
    CHECK_EQ(kvt_importance(lease, 0, PROMPT, importance), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    run_filler(d, 41, 12);
    e2e_await(d, "pages_dirty", 0);
    uint64_t before = e2e_count(d, "pages_promoted");
    kvt_view view = {.sink_tokens = 5, .window_tokens = 40, .budget_tokens = 48};
    lease = take(w, 40, view);
    expect_runs(lease, (kvt_run[]){{0, 5}, {100, 1}, {200, 2}, {460, 40}}, 4);
    CHECK_EQ(e2e_count(d, "pages_promoted"), before + SOME_PAGES + 2);
    read_view(w, lease, 40);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* --- what is refused ----------------------------------------------------------------------------
 */

static void expect_refused(e2e_worker *w, kvt_view view, uint32_t flags, kvt_status expected,
                           const char *word) {
    kvt_lease *lease = NULL;
    kvt_status status =
        kvt_acquire_view(w->client, &(uint32_t){1}, 1, NULL, 0, &view, flags, &lease);
    CHECK_MSG(status == expected && strstr(kvt_last_error(), word), "%s: %s",
              kvt_status_name(status), kvt_last_error());
    CHECK(!lease);
}

static void refused(e2e_worker *w) {
    kvt_lease *lease = NULL, *other = NULL;
    enum { MOST = KVT_MAX_REQUEST_TOKENS };
    expect_refused(w, (kvt_view){0}, 0, KVT_EINVAL, "both 0");
    expect_refused(w, (kvt_view){4, 8, 11}, 0, KVT_EINVAL, "budget_tokens is 11");
    expect_refused(w, (kvt_view){MOST, 1, 0}, 0, KVT_ELIMIT, "at most");
    expect_refused(w, (kvt_view){UINT32_MAX, 2, 0}, 0, KVT_ELIMIT, "at most");
    expect_refused(w, (kvt_view){4, 4, 9 + KVT_MAX_VIEW_PICKS}, 0, KVT_ELIMIT, "budget_tokens");
    expect_refused(w, some, KVT_CLAIM, KVT_EINVAL, "claims nothing");
    expect_refused(w, some, 1 << 7, KVT_EINVAL, "flags");
    CHECK_EQ(kvt_acquire_view(w->client, NULL, 0, NULL, 0, NULL, 0, &lease), KVT_EINVAL);
    fill(w, 1);
    lease = take(w, 1, some);
    CHECK_EQ(kvt_extend(lease, 0, NULL, 0, 0), KVT_EINVAL);
    CHECK_EQ(kvt_fork(lease, 1, &other), KVT_EINVAL);
    CHECK_EQ(kvt_wait(lease, 0, 1000), KVT_OK);
    kvt_layout layout;
    kvt_layout_token_major(&w->realm.geometry, 16, w->part[0], w->part[1], &layout);
    CHECK_EQ(kvt_encode(lease, 31, &layout), KVT_EINVAL);
    read_view(w, lease, 1);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    /* Everything is in its window. */
    lease = take(w, 1, (kvt_view){.window_tokens = 2 * PROMPT});
    expect_runs(lease, &(kvt_run){0, PROMPT}, 1);
    read_view(w, lease, 1);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    uint32_t tokens[E2E_MAX_TOKENS];
    prompt(1, tokens);
    CHECK_EQ(kvt_acquire_view(w->client, tokens, PROMPT, NULL, 0, &some, KVT_LEAVE_ONE, &lease),
             KVT_OK);
    expect_runs(lease, (kvt_run[]){{0, 5}, {PROMPT - 41, 40}}, 2);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    prompt(99, tokens);
    CHECK_EQ(kvt_acquire_view(w->client, tokens, PROMPT, NULL, 0, &some, 0, &lease), KVT_OK);
    expect_runs(lease, NULL, 0);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* As many pages as there can be, and no more; then there is room again. */
static void too_many(const e2e_daemon *d, e2e_worker *w) {
    enum { MAX_PAGES = 1024, MOST = MAX_PAGES / PAGES };
    kvt_lease *leases[MOST], *other = NULL;
    kvt_view all = {.window_tokens = PROMPT};
    uint32_t tokens[E2E_MAX_TOKENS];
    prompt(1, tokens);
    fill(w, 1);
    for (int i = 0; i < MOST; i++)
        leases[i] = take(w, 1, all);
    CHECK_EQ(e2e_count(d, "views"), MOST);
    CHECK_EQ(e2e_count(d, "pages_viewed"), PAGES);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(kvt_acquire_view(w->client, tokens, PROMPT, NULL, 0, &all, 0, &other), KVT_ELIMIT);
        CHECK(strstr(kvt_last_error(), "views name 1024 pages already"));
    }
    CHECK_EQ(e2e_count(d, "views"), MOST);
    CHECK_EQ(kvt_release(leases[0]), KVT_OK);
    leases[0] = take(w, 1, all);
    for (int i = 0; i < MOST; i++) {
        read_view(w, leases[i], 1);
        CHECK_EQ(kvt_release(leases[i]), KVT_OK);
    }
    CHECK_EQ(e2e_count(d, "pages_viewed"), 0);
}

/* Holds a view until it is killed. */
static int holder(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    e2e_worker_open(&w, d, seed, 20000);
    read_view(&w, take(&w, 1, some), 1);
    e2e_say('h');
    e2e_hear();
    return 0;
}

static void killed(const e2e_daemon *d, e2e_worker *w) {
    fill(w, 1);
    e2e_child child = e2e_spawn(d, "holder", 2);
    CHECK_EQ(e2e_child_hear(&child), 'h');
    CHECK_EQ(e2e_count(d, "views"), 1);
    CHECK(kill(child.pid, SIGKILL) == 0);
    e2e_await(d, "views", 0);
    CHECK_EQ(e2e_count(d, "pages_viewed"), 0);
    CHECK_EQ(e2e_child_end(&child), -SIGKILL);
}

static const e2e_jobs jobs[] = {
    {"filler", filler}, {"holder", holder}, {"rater", rater}, {NULL, NULL}};

static void below(const e2e_daemon *d, e2e_worker *w) {
    spilled(d, w);
    picked_below(d, w);
}

static void above(const e2e_daemon *d, e2e_worker *w) {
    evicted(d, w);
    refused(w);
    too_many(d, w);
    killed(d, w);
    picked(d, w);
    outgrown(w);
}

static void with_daemon(const char *const *settings,
                        void (*part)(const e2e_daemon *d, e2e_worker *w)) {
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 3, 20000); /* where the arena is on a GPU, its KV is, too */
    part(&d, &w);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    e2e_disk disk;
    e2e_disk_make(&disk);
    /* Room for some 120 pages in the arena, and 120 in the host tier: less than four prompts. */
    const char *tiers[] = {"arena=1MiB", "host=1MiB",      disk.setting,
                           "disk=64MiB", "max_pages=4000", NULL};
    const char *alone[] = {"arena=1MiB", NULL};
    with_daemon(tiers, below);
    with_daemon(alone, above);
    e2e_disk_remove(&disk);
    return 0;
}
