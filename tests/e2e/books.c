/*
 * books.c - what the daemon's counts must say whatever workers do: leases that only look, leases
 * that are given back twice or by somebody else, looking twice, the same pages sealed by eight at
 * once, workers that are idle or stopped for long, a daemon that is stopped within a call.
 *
 * Argument: how many times less than in the long run (10).
 */
#include "client/client.h"
#include "tests/e2e/e2e.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { PAGE = E2E_PAGE_TOKENS, TOKENS = 8 * PAGE, GRACE_MS = 100 };

static void make_prompt(uint32_t n, uint32_t *tokens, uint32_t n_tokens) {
    for (uint32_t i = 0; i < n_tokens; i++)
        tokens[i] = n * 1000 + i;
}

static kvt_lease *acquire(e2e_worker *w, const uint32_t *tokens, uint32_t n, uint32_t flags) {
    kvt_lease *lease = NULL;
    kvt_status status = kvt_acquire(w->client, tokens, n, flags, &lease);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), kvt_last_error());
    return lease;
}

static void hold(e2e_worker *w, uint32_t prompt, uint32_t n) {
    uint32_t tokens[E2E_MAX_TOKENS];
    make_prompt(prompt, tokens, n);
    kvt_lease *lease = acquire(w, tokens, n, KVT_CLAIM);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static void nothing_held(const e2e_daemon *d) {
    CHECK_EQ(e2e_count(d, "leases"), 0);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
    CHECK_EQ(e2e_count(d, "pages_filling"), 0);
}

/* --- looking ------------------------------------------------------------------------------------
 */

/* Acquired and never read: no pin stays, and the prefix is as well held as before. */
static void only_looking(const e2e_daemon *d, e2e_worker *w, int rounds) {
    uint32_t tokens[TOKENS];
    kvt_lease_info first, info;
    make_prompt(1, tokens, TOKENS);
    hold(w, 1, TOKENS);
    for (int i = 0; i < rounds; i++) {
        kvt_lease *lease = acquire(w, tokens, TOKENS, i % 2 ? KVT_CLAIM : 0);
        CHECK_EQ(kvt_lease_get(lease, i == 0 ? &first : &info), KVT_OK);
        CHECK(i == 0 || memcmp(&first, &info, sizeof info) == 0);
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    CHECK_EQ(first.held_tokens, TOKENS);
    nothing_held(d);
}

/* A lookup changes nothing that a later one can see: also one that ends inside a page, or misses.
 */
static void looking_twice(e2e_worker *w) {
    uint32_t tokens[TOKENS];
    char *before, *after;
    make_prompt(1, tokens, TOKENS);
    CHECK_EQ(kvt_tree_json(w->client, 0, &before), KVT_OK);
    for (int i = 0; i < 20; i++) {
        uint32_t n = 1 + (uint32_t)i * 6;
        tokens[n - 1] += 500000; /* goes on differently */
        kvt_lease *lease = acquire(w, tokens, n, 0);
        kvt_lease_info info;
        CHECK_EQ(kvt_lease_get(lease, &info), KVT_OK);
        CHECK_EQ(info.held_tokens, n - 1);
        CHECK_EQ(kvt_release(lease), KVT_OK);
        tokens[n - 1] -= 500000;
    }
    CHECK_EQ(kvt_tree_json(w->client, 0, &after), KVT_OK);
    CHECK_MSG(strcmp(before, after) == 0, "%s\n%s", before, after);
    kvt_free(before);
    kvt_free(after);
}

/* --- giving back --------------------------------------------------------------------------------
 */

/* The lease with another's number; what it had itself goes with the session. */
static kvt_status release_as(kvt_lease *lease, uint64_t id) {
    lease->id = id;
    return kvt_release(lease);
}

/* Twice, another's, one that was never given: refused each, and nothing has changed. */
static void wrong_releases(const e2e_daemon *d, e2e_worker *w) {
    uint32_t tokens[TOKENS];
    e2e_worker other;
    make_prompt(1, tokens, TOKENS);
    kvt_lease *kept = acquire(w, tokens, TOKENS, 0);
    uint64_t pinned = e2e_count(d, "pages_pinned");
    e2e_worker_open(&other, d, 9, 20000);
    kvt_lease *lease = acquire(&other, tokens, TOKENS, 0);
    uint64_t id = lease->id;
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(release_as(acquire(&other, tokens, TOKENS, 0), id), KVT_ESTALE);
    CHECK_EQ(release_as(acquire(&other, tokens, TOKENS, 0), kept->id), KVT_ESTALE);
    CHECK_EQ(release_as(acquire(&other, tokens, TOKENS, 0), 0x123456789abcdef), KVT_ESTALE);
    CHECK_EQ(e2e_count(d, "leases"), 4);
    e2e_worker_close(&other);
    e2e_await(d, "sessions", 2);
    CHECK_EQ(e2e_count(d, "leases"), 1);
    CHECK_EQ(e2e_count(d, "pages_pinned"), pinned);
    CHECK_EQ(e2e_read(w, kept, tokens), KVT_OK);
    CHECK_EQ(kvt_release(kept), KVT_OK);
    nothing_held(d);
}

/* --- eight at once ------------------------------------------------------------------------------
 */

enum { SEALERS = 8, SEALED = 4 * PAGE };

typedef struct sealer {
    e2e_worker w;
    pthread_barrier_t *barrier;
    pthread_t thread;
    int rounds;
} sealer;

static void *seal_rounds(void *argument) {
    sealer *s = argument;
    uint32_t tokens[SEALED];
    for (int round = 0; round < s->rounds; round++) {
        make_prompt(5000 + (uint32_t)round, tokens, SEALED);
        kvt_lease *lease = acquire(&s->w, tokens, SEALED, KVT_CLAIM);
        pthread_barrier_wait(s->barrier);
        CHECK_EQ(e2e_fill(&s->w, lease, tokens, SIZE_MAX), KVT_OK);
        kvt_lease_info info;
        CHECK_EQ(kvt_lease_get(lease, &info), KVT_OK);
        CHECK_EQ(info.held_tokens, SEALED);
        CHECK_EQ(e2e_read(&s->w, lease, tokens), KVT_OK);
        CHECK_EQ(kvt_release(lease), KVT_OK);
        pthread_barrier_wait(s->barrier);
    }
    return NULL;
}

/* One copy stays of each page, each call succeeds, each reader gets all. */
static void eight_seal(const e2e_daemon *d, int rounds) {
    static sealer all[SEALERS];
    pthread_barrier_t barrier;
    uint64_t sealed = e2e_count(d, "pages_sealed"), twice = e2e_count(d, "pages_duplicate");
    CHECK(pthread_barrier_init(&barrier, NULL, SEALERS) == 0);
    for (uint64_t i = 0; i < SEALERS; i++) {
        all[i].barrier = &barrier;
        all[i].rounds = rounds;
        e2e_worker_open(&all[i].w, d, 20 + i, 20000);
    }
    for (int i = 0; i < SEALERS; i++)
        CHECK(pthread_create(&all[i].thread, NULL, seal_rounds, &all[i]) == 0);
    for (int i = 0; i < SEALERS; i++) {
        CHECK(pthread_join(all[i].thread, NULL) == 0);
        e2e_worker_close(&all[i].w);
    }
    pthread_barrier_destroy(&barrier);
    e2e_await(d, "sessions", 2);
    nothing_held(d);
    CHECK(e2e_count(d, "pages_duplicate") > twice);
    CHECK_EQ(e2e_count(d, "pages_sealed") - sealed, (uint64_t)rounds * 4);
    CHECK_EQ(e2e_count(d, "frames_used"), e2e_count(d, "pages_evictable"));
}

/* --- long silences ------------------------------------------------------------------------------
 */

/* By the daemon's own clock. */
static void let_pass(const e2e_daemon *d, uint64_t seconds) {
    uint64_t start = e2e_count(d, "uptime_s");
    while (e2e_count(d, "uptime_s") < start + seconds)
        ;
}

/* Idle for many times the grace time, with a connection: everything is as it was. */
static void idle(const e2e_daemon *d, e2e_worker *w) {
    uint32_t tokens[TOKENS];
    make_prompt(1, tokens, TOKENS);
    hold(w, 1, TOKENS);
    kvt_lease *lease = acquire(w, tokens, TOKENS, 0);
    let_pass(d, 2);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* Reads only after it was stopped for long, while others wanted the room. */
static int slow_reader(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[TOKENS];
    make_prompt(1, tokens, TOKENS);
    e2e_worker_open(&w, d, seed, 20000);
    kvt_lease *lease = acquire(&w, tokens, TOKENS, 0);
    kvt_lease_info info;
    CHECK_EQ(kvt_lease_get(lease, &info), KVT_OK);
    CHECK_EQ(info.held_tokens, TOKENS);
    e2e_say('r');
    CHECK_EQ(e2e_hear(), 'g'); /* is heard when it goes on */
    CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    return 0;
}

static void stopped_reader(const e2e_daemon *d, e2e_worker *w) {
    hold(w, 1, TOKENS);
    e2e_child child = e2e_spawn(d, "slow", 3);
    CHECK_EQ(e2e_child_hear(&child), 'r');
    CHECK(kill(child.pid, SIGSTOP) == 0);
    uint64_t evicted = e2e_count(d, "pages_evicted"), max = e2e_count(d, "pages_max");
    for (uint32_t i = 0; e2e_count(d, "pages_evicted") < evicted + 2 * max; i++)
        hold(w, 20000 + i, E2E_MAX_TOKENS);
    let_pass(d, 1);
    CHECK(kill(child.pid, SIGCONT) == 0);
    e2e_child_say(&child, 'g');
    CHECK_EQ(e2e_child_end(&child), 0);
}

/* Stopped between request and reply: the call's time is over, and what is done late is undone. */
static void stopped_daemon(const e2e_daemon *d) {
    e2e_worker w;
    uint32_t tokens[TOKENS];
    make_prompt(1, tokens, TOKENS);
    e2e_worker_open(&w, d, 4, 20000);
    for (int i = 0; i < 3; i++) {
        kvt_lease *lease = NULL;
        CHECK(kill(d->pid, SIGSTOP) == 0);
        w.client->timeout_ms = 300; /* it passes in any case */
        CHECK_EQ(kvt_acquire(w.client, tokens, TOKENS, KVT_CLAIM, &lease), KVT_ETIMEDOUT);
        CHECK(!lease);
        CHECK(kill(d->pid, SIGCONT) == 0);
        w.client->timeout_ms = 20000;
        lease = acquire(&w, tokens, TOKENS, KVT_CLAIM);
        CHECK_EQ(e2e_count(d, "leases"), 1);
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    nothing_held(d);
    CHECK_EQ(e2e_count(d, "duplicates_refused"), 0);
    e2e_worker_close(&w);
}

static const e2e_jobs jobs[] = {{"slow", slow_reader}, {NULL, NULL}};

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    int less = argc > 1 ? atoi(argv[1]) : 10;
    char grace[32];
    snprintf(grace, sizeof grace, "grace_ms=%d", GRACE_MS);
    const char *settings[] = {"arena=16MiB", "max_pages=400", grace, NULL};
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    only_looking(&d, &w, 10000 / less);
    looking_twice(&w);
    wrong_releases(&d, &w);
    idle(&d, &w);
    stopped_reader(&d, &w);
    e2e_worker_close(&w);
    e2e_finish(&d);
    /* A daemon of its own, so that nothing is evicted while it is counted. */
    settings[1] = "max_pages=5000";
    settings[0] = "arena=64MiB";
    d = (e2e_daemon){0};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    eight_seal(&d, 1000 / less);
    e2e_worker_close(&w);
    stopped_daemon(&d);
    e2e_finish(&d);
    return 0;
}
