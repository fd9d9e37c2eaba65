/*
 * kill.c - workers die under load: as soon as they are known, idle with leases, in the middle of
 * filling, in the middle of a call. Their leases and claims come back, the daemon's own audit holds
 * at every step, it keeps nothing of theirs open or mapped, and the workers beside them notice
 * nothing.
 *
 * Argument: how many to kill in each of the four ways (25).
 */
#include "tests/e2e/e2e.h"

#include <dirent.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { HANG_S = 60 };

/* Works until told to stop; any failed call but "no room" is the death of the test. */
static int bystander(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    e2e_worker_open(&w, d, seed, 20000);
    e2e_say('r');
    for (uint32_t n = 0;; n++) {
        e2e_request(&w);
        for (int i = 0; i < KVT_N_STATUS; i++)
            CHECK_MSG(i == KVT_EFULL || w.failed[i] == 0, "%s: %s", kvt_status_name((kvt_status)i),
                      kvt_last_error());
        fd_set ready;
        struct timeval now = {0, 0};
        FD_ZERO(&ready);
        FD_SET(4, &ready);
        if (select(5, &ready, NULL, NULL, &now) == 1)
            break;
    }
    CHECK(w.served > 0);
    e2e_worker_close(&w);
    return 0;
}

static int victim_new(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    e2e_worker_open(&w, d, seed, 20000);
    e2e_say('r');
    e2e_hear();
    return 0;
}

static int victim_idle(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    e2e_worker_open(&w, d, seed, 20000);
    for (int i = 0; i < 4; i++) {
        kvt_lease *lease;
        size_t n = e2e_prompt(&w.random, tokens);
        CHECK_EQ(kvt_acquire(w.client, tokens, n, i & 1 ? KVT_CLAIM : 0, &lease), KVT_OK);
    }
    e2e_say('r');
    e2e_hear();
    return 0;
}

static int victim_filling(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    e2e_worker_open(&w, d, seed, 20000);
    for (int i = 0; i < 300; i++)
        tokens[i] = (uint32_t)(seed * 1000 + (uint64_t)i);
    CHECK_EQ(kvt_acquire(w.client, tokens, 300, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(&w, lease, tokens, 1 + seed % 5), KVT_OK);
    e2e_say('r');
    e2e_hear();
    return 0;
}

static _Noreturn int victim_calling(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    e2e_worker_open(&w, d, seed, 20000);
    for (;;) {
        e2e_request(&w);
        e2e_say('c');
    }
}

static const e2e_jobs jobs[] = {{"bystander", bystander},    {"new", victim_new},
                                {"idle", victim_idle},       {"filling", victim_filling},
                                {"calling", victim_calling}, {NULL, NULL}};

static void kill_one(const e2e_daemon *d, const char *how, uint64_t seed, uint64_t others) {
    e2e_child child = e2e_spawn(d, how, seed);
    uint32_t heard = strcmp(how, "calling") == 0 ? 1 + (uint32_t)(seed % 7) : 1;
    for (uint32_t i = 0; i < heard; i++)
        CHECK(e2e_child_hear(&child) != 0);
    CHECK(kill(child.pid, SIGKILL) == 0);
    CHECK_EQ(e2e_child_end(&child), -SIGKILL);
    /* one session more: the one that asks */
    e2e_await(d, "sessions", others + 1);
}

/* Descriptors that the daemon has open, and mappings of what others gave it: connections, staging
 * files, memory of the GPU's stand-in. */
static uint32_t things_open(const e2e_daemon *d) {
    char path[64], line[1024];
    uint32_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", d->pid);
    DIR *fds = opendir(path);
    CHECK(fds);
    while (readdir(fds))
        n++;
    closedir(fds);
    snprintf(path, sizeof path, "/proc/%d/maps", d->pid);
    FILE *maps = fopen(path, "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "kvtrunk-") || strstr(line, "fake-cuda");
    fclose(maps);
    return n;
}

/* What ended a moment ago is closed a moment later. */
static void await_things(const e2e_daemon *d, uint32_t n) {
    time_t start = time(NULL);
    while (things_open(d) > n)
        CHECK_MSG(time(NULL) - start < HANG_S, "the daemon has %u things open, and had %u",
                  things_open(d), n);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    uint64_t each = argc > 1 ? strtoull(argv[1], NULL, 10) : 25;
    enum { OTHERS = 3 };
    e2e_daemon d = {0};
    e2e_child others[OTHERS];
    /* Room for some 250 pages, so that everybody also evicts. */
    const char *settings[] = {"arena=4MiB", "max_pages=400", "grace_ms=60000", NULL};
    e2e_start(&d, settings);
    for (int i = 0; i < OTHERS; i++) {
        others[i] = e2e_spawn(&d, "bystander", 1000 + (uint64_t)i);
        CHECK_EQ(e2e_child_hear(&others[i]), 'r');
    }
    static const char *const ways[] = {"new", "idle", "filling", "calling"};
    enum { WAYS = sizeof ways / sizeof *ways };
    uint32_t baseline = 0;
    for (uint64_t i = 0; i < each; i++) {
        for (uint64_t way = 0; way < WAYS; way++)
            kill_one(&d, ways[way], 100 * way + i, OTHERS);
        if (i == 0)
            baseline = things_open(&d);
    }
    await_things(&d, baseline);
    for (int i = 0; i < OTHERS; i++) {
        e2e_child_say(&others[i], 's');
        CHECK_EQ(e2e_child_end(&others[i]), 0);
    }
    e2e_await(&d, "sessions", 1);
    e2e_await(&d, "leases", 0);
    CHECK_EQ(e2e_count(&d, "pages_pinned"), 0);
    CHECK_EQ(e2e_count(&d, "pages_filling"), 0);
    CHECK_EQ(e2e_count(&d, "sessions_died"), WAYS * each);
    CHECK_EQ(e2e_count(&d, "frames_used"), e2e_count(&d, "pages_evictable"));
    e2e_finish(&d);
    return 0;
}
