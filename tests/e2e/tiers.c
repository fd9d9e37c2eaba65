/*
 * tiers.c - an arena that is far too small, a host tier, a disk: eight workers ask for thousands of
 * prompts, and every byte is checked, whichever tier it came from. The disk's process is killed
 * now and then. Then the daemon is stopped and started: what was on disk is there.
 *
 * Argument: requests in all (8,000).
 */
#include "tests/e2e/e2e.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

enum { WORKERS = 8, PROMPTS = 3000, FAMILIES = 50, SHARED_TOKENS = 32 };

/* Prompt p: the beginning of its family, then tokens of its own. */
static size_t prompt(uint32_t p, uint32_t *tokens) {
    size_t n = SHARED_TOKENS + 16 + p % 33;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i < SHARED_TOKENS ? (p % FAMILIES) * 100 + i : p * 1000 + i;
    return n;
}

static void ask(e2e_worker *w, uint32_t p) {
    uint32_t tokens[E2E_MAX_TOKENS];
    size_t n = prompt(p, tokens);
    kvt_lease *lease;
    kvt_status status = kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), kvt_last_error());
    status = e2e_read(w, lease, tokens);
    if (status == KVT_OK)
        status = e2e_fill(w, lease, tokens, SIZE_MAX);
    if (status == KVT_OK)
        status = e2e_read(w, lease, tokens);
    CHECK_MSG(status == KVT_OK || status == KVT_EFULL, "%s: %s", kvt_status_name(status),
              kvt_last_error());
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* Few are asked for often, most seldom. seed: the worker's number in the upper half, its number of
 * requests in the lower. */
static int worker(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    e2e_worker_open(&w, d, seed >> 32, 30000);
    for (uint32_t i = 0; i < (uint32_t)seed; i++) {
        uint32_t p = check_below(&w.random, PROMPTS);
        for (uint32_t k = check_below(&w.random, 3); k > 0; k--)
            p = check_below(&w.random, p + 1);
        ask(&w, p);
        if (i % 64 == 0)
            e2e_say('g');
    }
    e2e_worker_close(&w);
    return 0;
}

static const e2e_jobs jobs[] = {{"worker", worker}, {NULL, NULL}};

/* The disk's process is the daemon's only child. */
static pid_t helper_of(const e2e_daemon *d) {
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", d->pid, d->pid);
    FILE *file = fopen(path, "re");
    CHECK(file);
    char *got = fgets(line, sizeof line, file);
    fclose(file);
    return got ? atoi(line) : 0;
}

/* Works on while the disk's process dies; the counters say that it is back. */
static void kill_helper(const e2e_daemon *d) {
    uint64_t before = e2e_count(d, "restarts");
    pid_t pid = helper_of(d);
    if (pid <= 0)
        return; /* it is being started anew */
    CHECK(kill(pid, SIGKILL) == 0);
    e2e_await(d, "restarts", before + 1);
}

static void all_again(const e2e_daemon *d) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    uint64_t served = 0;
    e2e_worker_open(&w, d, 1, 30000);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        size_t n = prompt(p, tokens);
        kvt_lease_info info;
        CHECK_EQ(kvt_acquire(w.client, tokens, n, 0, &lease), KVT_OK);
        CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
        kvt_lease_get(lease, &info);
        served += info.held_tokens;
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    CHECK(served > PROMPTS * SHARED_TOKENS / 2);
    CHECK_EQ(e2e_count(d, "pages_sealed"), 0);
    CHECK(e2e_count(d, "tokens_from_disk") > 0);
    e2e_worker_close(&w);
}

/* All is down, every record is right, and what is asked for ahead is there without waiting. */
static void tend(const e2e_daemon *d, uint64_t on_disk) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_spill_info spill;
    kvt_verify_info verify;
    kvt_prefetch_info ahead;
    e2e_worker_open(&w, d, 1, 30000);
    CHECK_EQ(kvt_spill(w.client, 30000, &spill), KVT_OK);
    CHECK(spill.dirty_pages == 0 && spill.disk_pages == on_disk);
    CHECK_EQ(kvt_verify(w.client, 60000, &verify), KVT_OK);
    CHECK(verify.checked_pages == on_disk && verify.corrupt_pages == 0);
    for (uint32_t p = 0; p < 20; p++) {
        size_t n = prompt(p, tokens);
        uint64_t asks = 0;
        do
            CHECK_EQ(kvt_prefetch(w.client, tokens, n, &ahead), KVT_OK);
        while (ahead.ready_tokens < ahead.held_tokens && ++asks < 1000000);
        CHECK_EQ(ahead.ready_tokens, ahead.held_tokens);
        uint64_t before = e2e_count(d, "tokens_from_disk") + e2e_count(d, "tokens_from_host");
        ask(&w, p);
        CHECK_EQ(e2e_count(d, "tokens_from_disk") + e2e_count(d, "tokens_from_host"), before);
    }
    CHECK_EQ(kvt_prefetch(w.client, NULL, 0, NULL), KVT_OK);
    e2e_worker_close(&w);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    uint64_t requests = argc > 1 ? strtoull(argv[1], NULL, 10) : 8000;
    e2e_daemon d = {0};
    e2e_child workers[WORKERS];
    e2e_disk disk;
    e2e_disk_make(&disk);
    /* Room for some 110 pages, 450 and 4,000; there are more than 6,000. */
    const char *settings[] = {"arena=1MiB",     "host=4MiB",      disk.setting, "disk=64MiB",
                              "max_pages=8000", "drain_ms=60000", NULL};
    e2e_start(&d, settings);
    for (uint64_t i = 0; i < WORKERS; i++)
        workers[i] = e2e_spawn(&d, "worker", (i + 1) << 32 | requests / WORKERS);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(e2e_child_hear(&workers[i]), 'g');
        kill_helper(&d);
    }
    for (int i = 0; i < WORKERS; i++) {
        while (e2e_child_hear(&workers[i]) == 'g')
            continue;
        CHECK_EQ(e2e_child_end(&workers[i]), 0);
    }
    e2e_await(&d, "sessions", 1);
    e2e_await(&d, "pages_dirty", 0);
    CHECK_EQ(e2e_count(&d, "pages_pinned"), 0);
    const char *const used[] = {"pages_demoted", "pages_promoted",   "pages_written",
                                "pages_read",    "tokens_from_host", "tokens_from_disk"};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        CHECK_MSG(e2e_count(&d, used[i]) > 0, "%s is 0", used[i]);
    CHECK_EQ(e2e_count(&d, "corrupt"), 0);
    uint64_t on_disk = e2e_count(&d, "pages_disk");
    tend(&d, on_disk);
    /* It filled in what had not been asked for before. */
    e2e_await_disk(&d);
    on_disk = e2e_count(&d, "pages_disk");
    CHECK(e2e_count(&d, "disk_used_bytes") <= 64u << 20);
    /* As they are stored, some 7,700 each; of the arena's size it would be 10,400. */
    CHECK(e2e_count(&d, "disk_used_bytes") < on_disk * 9000);
    CHECK_EQ(e2e_stop(&d, SIGTERM), 0);
    e2e_start(&d, settings);
    e2e_await(&d, "pages_found", on_disk);
    CHECK_EQ(e2e_count(&d, "pages_disk"), on_disk);
    CHECK(e2e_count(&d, "disk_used_bytes") < on_disk * 9000);
    all_again(&d);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
    return 0;
}
