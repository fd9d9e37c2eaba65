/*
 * geometries.c - each kind of model, through the whole of it: a process fills pages, another reads
 * them; a path turns off inside a page, and grows by a few tokens again and again, over more steps
 * than a page has segments; all goes to disk and comes back from there after a restart. The bytes
 * are those of the payload oracle, and the frames those of the arithmetic.
 */
#include "kernels/page.h"
#include "tests/e2e/model.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { TOKENS = 200, PARTING = 109, STEP = 3, GROWN = PARTING + 15 * STEP };

static const struct shape {
    const char *name;
    kvt_kind kind;
    kvt_dtype dtype;
    uint32_t n_layers, n_kv_heads, head_dim[2], page_tokens;
} shapes[] = {
    {"MHA", KVT_KV, KVT_F16, 3, 8, {64, 64}, 64},
    {"MHA, bf16", KVT_KV, KVT_BF16, 3, 8, {80, 80}, 16},
    {"GQA", KVT_KV, KVT_BF16, 4, 2, {128, 128}, 64},
    {"GQA, pages of 128", KVT_KV, KVT_F16, 2, 4, {96, 96}, 128},
    {"MQA", KVT_KV, KVT_F16, 5, 1, {256, 256}, 32},
    {"MLA", KVT_MLA, KVT_BF16, 3, 1, {512, 64}, 64},
    {"MLA, f16", KVT_MLA, KVT_F16, 2, 1, {512, 64}, 16},
    {"K wider than V", KVT_KV, KVT_BF16, 2, 3, {192, 128}, 64},
    {"V wider than K", KVT_KV, KVT_F16, 2, 2, {64, 100}, 32},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static kvt_geometry geometry_of(const struct shape *shape) {
    kvt_geometry g;
    kvt_geometry_init(&g, shape->n_layers, shape->n_kv_heads, shape->head_dim[0],
                      shape->page_tokens);
    g.kind = shape->kind;
    g.dtype = shape->dtype;
    g.head_dim[1] = shape->head_dim[1];
    return g;
}

/* The same tokens for all models: only the realm keeps them apart. */
static uint32_t tokens[TOKENS], branch[TOKENS];

static void make_tokens(void) {
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = 40 + i * 3;
        branch[i] = i < PARTING ? tokens[i] : 90000 + i;
    }
}

static void release(kvt_lease *lease) {
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* --- one process fills --------------------------------------------------------------------------
 */

static void grow(model *m) {
    kvt_lease *lease = model_acquire(m, branch, PARTING + STEP, KVT_CLAIM, PARTING);
    CHECK_EQ(model_fill(m, lease, branch, SIZE_MAX, 0), KVT_OK);
    for (uint32_t n = PARTING + STEP; n < GROWN; n += STEP) {
        kvt_lease_info info;
        CHECK_EQ(kvt_extend(lease, n, branch + n, STEP, KVT_CLAIM), KVT_OK);
        kvt_lease_get(lease, &info);
        CHECK_EQ(info.held_tokens, n);
        CHECK_EQ(model_fill(m, lease, branch, SIZE_MAX, 0), KVT_OK);
        CHECK_EQ(model_read(m, lease, branch), KVT_OK);
    }
    release(lease);
}

static int filling_job(const e2e_daemon *d, uint64_t seed) {
    model m;
    kvt_geometry g = geometry_of(&shapes[seed]);
    make_tokens();
    if (seed % 3 == 2) /* of each three one by the host, on a GPU too */
        model_open(&m, d, &g, TOKENS, 2);
    else
        model_open_on_gpu(&m, d, &g, TOKENS, 2);
    kvt_lease *lease = model_acquire(&m, tokens, TOKENS, KVT_CLAIM, 0);
    CHECK_EQ(model_fill(&m, lease, tokens, SIZE_MAX, 0), KVT_OK);
    CHECK_EQ(model_read(&m, lease, tokens), KVT_OK);
    release(lease);
    grow(&m);
    model_close(&m);
    return 0;
}

/* --- another reads ------------------------------------------------------------------------------
 */

static uint64_t pages_of(uint64_t n_tokens, uint32_t page_tokens) {
    return (n_tokens + page_tokens - 1) / page_tokens;
}

/* Full pages of the one path, and of the other from the page on in which it turns off. */
static uint64_t frames_of(const struct shape *shape) {
    uint32_t p = shape->page_tokens;
    return pages_of(TOKENS, p) + pages_of(GROWN, p) - PARTING / p;
}

static void read_paths(model *m) {
    release(model_acquire(m, tokens, TOKENS, 0, TOKENS));
    release(model_acquire(m, branch, TOKENS, 0, GROWN));
    release(model_acquire(m, branch, GROWN - 1, 0, GROWN - 1));
    model_close(m);
}

/* By the host, and on a GPU by that as well. */
static void read_all(const e2e_daemon *d, const struct shape *shape) {
    model m;
    kvt_geometry g = geometry_of(shape);
    model_open(&m, d, &g, TOKENS, 1);
    read_paths(&m);
    if (!e2e_on_gpu())
        return;
    model_open_on_gpu(&m, d, &g, TOKENS, 1);
    read_paths(&m);
}

static void fill(const e2e_daemon *d, int i) {
    uint64_t before = e2e_count(d, "frames_used");
    e2e_child child = e2e_spawn(d, "filling", (uint64_t)i);
    CHECK_MSG(e2e_child_end(&child) == 0, "%s", shapes[i].name);
    e2e_await_disk(d); /* what is copied down keeps a frame whose page has grown into another */
    CHECK_MSG(e2e_count(d, "frames_used") == before + frames_of(&shapes[i]),
              "%s: %llu frames more, %llu expected", shapes[i].name,
              (unsigned long long)(e2e_count(d, "frames_used") - before),
              (unsigned long long)frames_of(&shapes[i]));
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
    read_all(d, &shapes[i]);
}

static void spill_all(const e2e_daemon *d) {
    kvt_client *client;
    kvt_options options = {.socket = d->socket, .name = "spill", .timeout_ms = 20000};
    CHECK_EQ(kvt_open_reports(&options, &client), KVT_OK);
    kvt_spill_info info;
    kvt_status status = kvt_spill(client, 60000, &info);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    kvt_close(client);
}

int main(int argc, char **argv) {
    static const e2e_jobs jobs[] = {{"filling", filling_job}, {0}};
    int code = e2e_child_main(argc, argv, jobs);
    if (code >= 0)
        return code;
    e2e_daemon d = {0};
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=64MiB",    "host=16MiB",      disk.setting, "disk=64MiB",
                              "max_pages=4000", "page_tokens=128", NULL};
    make_tokens();
    e2e_start(&d, settings);
    for (int i = 0; i < N_SHAPES; i++)
        fill(&d, i);
    spill_all(&d);
    CHECK(WIFEXITED(e2e_stop(&d, SIGTERM)));
    e2e_start(&d, settings);
    for (int i = 0; i < N_SHAPES; i++)
        read_all(&d, &shapes[i]);
    CHECK(e2e_count(&d, "tokens_from_disk") > 0);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
    printf("geometries: %d models, no wrong byte\n", N_SHAPES);
    return 0;
}
