/*
 * hybrid.c - a model with 5 layers of a sliding window of 512 tokens to 1 with full attention. Over
 * 8,192 tokens it holds what the arithmetic says and no more: all pages of the full layers, and
 * those of the last 512 tokens of the others. All bytes are right, after a release, and again;
 * where a prompt ends or parts from another in the middle, what was let go comes back with the next
 * one that computes it.
 */
#include "kernels/page.h"
#include "tests/e2e/model.h"

#include <signal.h>
#include <sys/wait.h>

enum { TOKENS = 8192, WINDOW = 512, PAGE = 64, WINDOW_LAYERS = 10, FULL_LAYERS = 2 };

static kvt_page_shape shapes[2];

static kvt_geometry hybrid(void) {
    kvt_geometry g;
    kvt_geometry_init(&g, WINDOW_LAYERS + FULL_LAYERS, 2, 32, PAGE);
    g.n_groups = 2;
    g.groups[0] = (kvt_group){.n_layers = WINDOW_LAYERS, .window = WINDOW};
    g.groups[1] = (kvt_group){.n_layers = FULL_LAYERS};
    for (uint32_t group = 0; group < 2; group++)
        CHECK_EQ(kvt_page_shape_init(&g, group, NULL, NULL, 0, &shapes[group]), KVT_OK);
    return g;
}

/* Full pages of the two groups are in the arena, and nothing else. */
static void expect_frames(const e2e_daemon *d, uint64_t n_window, uint64_t n_full) {
    CHECK_EQ(e2e_count(d, "frames_used"), n_window + n_full);
    CHECK_EQ(e2e_count(d, "arena_used_bytes"), n_window * kvt_page_bytes(&shapes[0], PAGE) +
                                                   n_full * kvt_page_bytes(&shapes[1], PAGE));
}

static uint32_t tokens[TOKENS + 1];

static void make_tokens(uint32_t prompt) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = prompt * 1000000 + i * 7;
}

static void release(kvt_lease *lease) {
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static void expect_first(kvt_lease *lease, uint32_t first_token) {
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.first_token[0], first_token);
    CHECK_EQ(info.first_token[1], 0);
}

/* The tree says so, too. */
static void expect_tree(model *m) {
    char expected[160], *report;
    CHECK_EQ(kvt_tree_json(m->client, 10, &report), KVT_OK);
    snprintf(expected, sizeof expected,
             "\"groups\":[{\"layers\":%d,\"window\":%d},{\"layers\":%d,\"window\":0}]}\n",
             WINDOW_LAYERS, WINDOW, FULL_LAYERS);
    CHECK_MSG(strstr(report, expected), "%s", report);
    snprintf(expected, sizeof expected, "\"pages\":%d,\"tokens\":%d,", TOKENS / PAGE, TOKENS);
    CHECK_MSG(strstr(report, expected), "%s", report);
    snprintf(expected, sizeof expected, "\"group_pages\":[%d,%d]", WINDOW / PAGE, TOKENS / PAGE);
    CHECK_MSG(strstr(report, expected), "%s", report);
    kvt_free(report);
}

static void whole(const e2e_daemon *d, model *m) {
    make_tokens(1);
    kvt_lease *lease = model_acquire(m, tokens, TOKENS, KVT_CLAIM, 0);
    CHECK_EQ(model_fill(m, lease, tokens, SIZE_MAX, 0), KVT_OK);
    expect_frames(d, WINDOW / PAGE, TOKENS / PAGE);
    CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
    expect_first(lease, TOKENS - WINDOW);
    /* In front of that there is nothing to be had of the window layers, and the caller is told. */
    kvt_layout layout;
    kvt_layout_token_major(&m->realm.geometry, TOKENS, m->part[0], m->part[1], &layout);
    CHECK_EQ(kvt_decode(lease, TOKENS - WINDOW - 1, 1, WINDOW_LAYERS - 1, 2, &layout), KVT_EINVAL);
    CHECK(strstr(kvt_last_error(), "group 0"));
    CHECK_EQ(kvt_decode(lease, 0, TOKENS, WINDOW_LAYERS, FULL_LAYERS, &layout), KVT_OK);
    release(lease);
    expect_frames(d, WINDOW / PAGE, TOKENS / PAGE);
    for (int again = 0; again < 2; again++) {
        lease = model_acquire(m, tokens, TOKENS, KVT_CLAIM, TOKENS);
        expect_first(lease, TOKENS - WINDOW);
        release(lease);
        lease = model_acquire(m, tokens, TOKENS, KVT_CLAIM | KVT_LEAVE_ONE, TOKENS - 1);
        expect_first(lease, TOKENS - WINDOW);
        release(lease);
    }
    expect_frames(d, WINDOW / PAGE, TOKENS / PAGE);
    expect_tree(m);
}

/* It goes on where it ended: the window moves along. */
static void grow(const e2e_daemon *d, model *m) {
    kvt_lease *lease = model_acquire(m, tokens, TOKENS - 1000, 0, 0);
    release(lease);
    make_tokens(2);
    lease = model_acquire(m, tokens, 1024, KVT_CLAIM, 0);
    CHECK_EQ(model_fill(m, lease, tokens, SIZE_MAX, 0), KVT_OK);
    for (uint32_t n = 1024; n < 2048; n += 64) {
        CHECK_EQ(kvt_extend(lease, n, tokens + n, 64, KVT_CLAIM), KVT_OK);
        CHECK_EQ(model_fill(m, lease, tokens, SIZE_MAX, 0), KVT_OK);
        expect_first(lease, n + 64 - WINDOW);
        CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
    }
    release(lease);
    expect_frames(d, 2 * (WINDOW / PAGE), TOKENS / PAGE + 2048 / PAGE);
}

/* A prompt that ends in the middle of a longer one: computed once more, and found from then on. */
static void come_back(const e2e_daemon *d, model *m) {
    enum { SHORT = 4096 };
    make_tokens(1);
    uint64_t before = e2e_count(d, "frames_used");
    kvt_lease *lease = model_acquire(m, tokens, SHORT, KVT_CLAIM, 0);
    CHECK_EQ(model_fill(m, lease, tokens, SIZE_MAX, 0), KVT_OK);
    CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
    expect_first(lease, SHORT - WINDOW);
    release(lease);
    CHECK_EQ(e2e_count(d, "frames_used"), before + WINDOW / PAGE);
    release(model_acquire(m, tokens, SHORT, 0, SHORT));
    release(model_acquire(m, tokens, TOKENS, 0, TOKENS));
    release(
        model_acquire(m, tokens, SHORT + 100, 0, SHORT)); /* the longest that has all it needs */
}

/* Two prompts that part in the middle share what is in front, from the second time on. */
static void part(model *m) {
    enum { COMMON = 1024 };
    make_tokens(3);
    kvt_lease *lease = model_acquire(m, tokens, 4096, KVT_CLAIM, 0);
    CHECK_EQ(model_fill(m, lease, tokens, SIZE_MAX, 0), KVT_OK);
    release(lease);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = COMMON; i < 4096; i++)
            tokens[i] = (4 + round) * 1000000 + i;
        lease = model_acquire(m, tokens, 4096, KVT_CLAIM, round ? COMMON : 0);
        CHECK_EQ(model_fill(m, lease, tokens, SIZE_MAX, 0), KVT_OK);
        CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
        release(lease);
        release(model_acquire(m, tokens, 4096, 0, 4096));
    }
}

/* An engine that hands in its pages when the whole prompt is computed. */
static void late(const e2e_daemon *d, model *m) {
    uint64_t frames = e2e_count(d, "frames_used");
    make_tokens(20);
    kvt_lease *lease = model_acquire(m, tokens, TOKENS - 30, KVT_CLAIM, 0);
    CHECK_EQ(model_fill(m, lease, tokens, SIZE_MAX, 1), KVT_OK);
    CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
    /* The window reaches into one page more, since it does not end with a page. */
    CHECK_EQ(e2e_count(d, "frames_used"), frames + TOKENS / PAGE + WINDOW / PAGE + 1);
    release(lease);
    release(model_acquire(m, tokens, TOKENS - 30, 0, TOKENS - 30));
    release(model_acquire(m, tokens, 1024, 0, 0));
}

/* A view of more than the window: each group has those of its rows that lie in its own. */
static void viewed(const e2e_daemon *d, model *m) {
    enum { SINKS = 70, LAST = 600, PICK = 3000 };
    static float importance[TOKENS];
    kvt_view view = {SINKS, LAST, SINKS + LAST + 1};
    const kvt_run *runs;
    size_t n_runs, n = 0;
    kvt_layout layout;
    kvt_lease *lease;
    make_tokens(1);
    importance[PICK] = 3;
    lease = model_acquire(m, tokens, TOKENS, 0, TOKENS);
    CHECK_EQ(kvt_importance(lease, 0, TOKENS, importance), KVT_OK);
    release(lease);
    uint64_t pinned = e2e_count(d, "pages_pinned");
    CHECK_EQ(kvt_acquire_view(m->client, tokens, TOKENS, NULL, 0, &view, 0, &lease), KVT_OK);
    CHECK_EQ(e2e_count(d, "pages_pinned"), pinned);
    CHECK_EQ(e2e_count(d, "pages_viewed"), WINDOW / PAGE + 2 + 1 + (LAST + PAGE - 1) / PAGE);
    expect_first(lease, TOKENS - WINDOW);
    CHECK_EQ(kvt_lease_runs(lease, &runs, &n_runs), KVT_OK);
    CHECK(n_runs == 3 && runs[0].n_tokens == SINKS && runs[1].first_token == PICK &&
          runs[1].n_tokens == 1 && runs[2].first_token == TOKENS - LAST);
    oracle_rows(&m->oracle, tokens, TOKENS, m->rows);
    kvt_layout_token_major(&m->realm.geometry, TOKENS, m->part[0], m->part[1], &layout);
    for (size_t i = 0; i < n_runs; n += runs[i++].n_tokens) {
        CHECK_EQ(kvt_decode_rows(lease, n, runs[i].n_tokens, WINDOW_LAYERS, FULL_LAYERS, &layout),
                 KVT_OK);
        CHECK_EQ(oracle_check(&m->oracle, m->rows + runs[i].first_token, runs[i].n_tokens,
                              WINDOW_LAYERS, FULL_LAYERS, &layout),
                 0);
    }
    CHECK_EQ(kvt_decode(lease, TOKENS - WINDOW, WINDOW, 0, WINDOW_LAYERS, &layout), KVT_OK);
    CHECK_EQ(oracle_check(&m->oracle, m->rows + TOKENS - WINDOW, WINDOW, 0, WINDOW_LAYERS, &layout),
             0);
    CHECK_EQ(kvt_decode(lease, TOKENS - LAST, LAST, 0, WINDOW_LAYERS, &layout), KVT_EINVAL);
    CHECK_EQ(kvt_decode_rows(lease, 0, n, 0, WINDOW_LAYERS, &layout), KVT_EINVAL);
    release(lease);
    CHECK_EQ(e2e_count(d, "pages_viewed"), 0);
}

/* A GPU neither reads nor writes such a model by itself, wherever the arena is: the host does. */
static void by_host_only(model *m) {
    kvt_layout layout;
    make_tokens(1);
    kvt_layout_token_major(&m->realm.geometry, TOKENS, m->part[0], m->part[1], &layout);
    kvt_lease *lease = model_acquire(m, tokens, TOKENS, 0, TOKENS);
    const char *why = e2e_on_gpu() ? "a realm of 2 layer groups" : "is in host memory";
    CHECK_EQ(kvt_decode_device(lease, TOKENS - 1, 1, 0, 1, &layout, NULL, NULL), KVT_ENOTSUP);
    CHECK_MSG(strstr(kvt_last_error(), why), "%s", kvt_last_error());
    CHECK_EQ(kvt_encode_device(lease, 0, 1, &layout, NULL, NULL), KVT_ENOTSUP);
    CHECK_MSG(strstr(kvt_last_error(), why), "%s", kvt_last_error());
    CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
    release(lease);
}

/* Where prompts part their windows are there after a restart, too: those that were computed once
 * and those that came back. */
static void restart(void) {
    enum { COMMON = 1024, LONG = 4096 };
    e2e_daemon d = {0};
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=64MiB", "max_pages=2000",        "host=64MiB", disk.setting,
                              "disk=256MiB", "promote_wait_ms=60000", NULL};
    kvt_geometry geometry = hybrid();
    model m;
    e2e_start(&d, settings);
    model_open(&m, &d, &geometry, LONG, 16);
    for (uint32_t round = 0; round < 5; round++) {
        make_tokens(3);
        for (uint32_t i = COMMON; i < LONG; i++)
            tokens[i] = (4 + round) * 1000000 + i;
        kvt_lease *lease = model_acquire(&m, tokens, LONG, KVT_CLAIM, round > 1 ? COMMON : 0);
        CHECK_EQ(model_fill(&m, lease, tokens, SIZE_MAX, 0), KVT_OK);
        release(lease);
        if (round == 1 || round == 3)
            continue;
        e2e_await_disk(&d);
        uint64_t on_disk = e2e_count(&d, "pages_disk");
        if (round == 0) { /* what a job moved when it passed out of the window has gone, too */
            expect_frames(&d, WINDOW / PAGE, LONG / PAGE);
            CHECK_EQ(on_disk, (WINDOW + LONG) / PAGE);
            continue;
        }
        model_close(&m);
        if (round % 4)
            CHECK_EQ(e2e_stop(&d, SIGTERM), 0);
        else
            CHECK(WIFSIGNALED(e2e_stop(&d, SIGKILL)));
        e2e_start(&d, settings);
        model_open(&m, &d, &geometry, LONG, 16);
        e2e_await(&d, "pages_found", on_disk);
        release(model_acquire(&m, tokens, LONG, 0, LONG));
    }
    model_close(&m);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

/* More pages a node than the daemon was configured for. */
static void refused(const e2e_daemon *d) {
    kvt_client *client = NULL;
    kvt_realm realm = {.model = "many groups"};
    kvt_options options = {.socket = d->socket};
    kvt_geometry_init(&realm.geometry, 8, 2, 32, PAGE);
    realm.geometry.n_groups = 3;
    realm.geometry.n_ranks = 3;
    realm.geometry.groups[0] = realm.geometry.groups[1] = (kvt_group){.n_layers = 2};
    realm.geometry.groups[2] = (kvt_group){.n_layers = 4};
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_ELIMIT);
    CHECK(strstr(kvt_last_error(), "3 ranks of 3 layer groups make 9 pages a node") &&
          strstr(kvt_last_error(), "max_slots"));
}

int main(void) {
    e2e_daemon d = {0};
    model m;
    kvt_geometry geometry = hybrid();
    const char *settings[] = {"arena=64MiB", "max_pages=2000", NULL};
    e2e_start(&d, settings);
    model_open(&m, &d, &geometry, TOKENS, 16);
    whole(&d, &m);
    viewed(&d, &m);
    by_host_only(&m);
    grow(&d, &m);
    come_back(&d, &m);
    part(&m);
    late(&d, &m);
    refused(&d);
    model_close(&m);
    CHECK_EQ(e2e_count(&d, "pages_pinned"), 0);
    e2e_finish(&d);
    restart();
    return 0;
}
