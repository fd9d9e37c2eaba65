/*
 * death.c - the daemon is killed under load, again and again. Each worker's call ends with a clear
 * status, nothing that was read meanwhile was wrong, leases of before are stale, and the library
 * works again by itself when the daemon is back.
 *
 * Argument: how many times (10).
 */
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 1000 };

static int expected(int status) {
    return status == KVT_ECONN || status == KVT_ETIMEDOUT || status == KVT_ESTALE ||
           status == KVT_EFULL || status == KVT_ESESSION;
}

static int worker(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    kvt_options options = {.socket = d->socket, .timeout_ms = TIMEOUT_MS};
    kvt_status status;
    e2e_worker_prepare(&w, seed, E2E_MAX_TOKENS);
    do /* the short time is for a daemon that dies, not for one that is slow to begin */
        status = kvt_open(&options, &w.realm, &w.client);
    while (status == KVT_ETIMEDOUT);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    uint64_t was_good = 0;
    e2e_say('r');
    for (;;) {
        uint64_t sealed = w.sealed, served = w.served;
        e2e_request(&w);
        for (int i = 0; i < KVT_N_STATUS; i++)
            CHECK_MSG(expected(i) || w.failed[i] == 0, "%s: %s", kvt_status_name((kvt_status)i),
                      kvt_last_error());
        /* tells each time that requests are served again after a bad time */
        uint64_t bad = 0;
        for (int i = 0; i < KVT_N_STATUS; i++)
            bad += i == KVT_EFULL ? 0 : w.failed[i];
        if (bad == was_good && (w.sealed > sealed || w.served > served))
            e2e_say('g');
        was_good = bad;
        fd_set ready;
        struct timeval now = {0, 0};
        FD_ZERO(&ready);
        FD_SET(4, &ready);
        if (select(5, &ready, NULL, NULL, &now) == 1)
            break;
    }
    e2e_worker_close(&w);
    return 0;
}

static const e2e_jobs jobs[] = {{"worker", worker}, {NULL, NULL}};

/* The pipe holds the 'g' of before; after them comes a 'g' of now only if the worker works. */
static void hear_good(const e2e_child *child, int n) {
    for (int i = 0; i < n; i++)
        CHECK_MSG(e2e_child_hear(child) == 'g', "a worker ended or hangs");
}

static void stale_leases(e2e_daemon *d, const char *const *settings) {
    e2e_worker w;
    uint32_t tokens[100];
    kvt_lease *lease, *other;
    for (uint32_t i = 0; i < 100; i++)
        tokens[i] = 900000 + i;
    e2e_worker_open(&w, d, 99, 20000);
    uint64_t boot = kvt_boot_id(w.client);
    CHECK_EQ(kvt_acquire(w.client, tokens, 100, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(&w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
    CHECK(WIFSIGNALED(e2e_stop(d, SIGKILL)));
    /* Nobody home: the old arena is still mapped and right; a call says so and ends. */
    kvt_status status = e2e_read(&w, lease, tokens);
    CHECK_MSG(status == KVT_OK || status == KVT_ESTALE, "%s", kvt_status_name(status));
    status = kvt_acquire(w.client, tokens, 100, 0, &other);
    CHECK_MSG(status == KVT_ECONN || status == KVT_ETIMEDOUT, "%s", kvt_status_name(status));
    e2e_start(d, settings);
    do
        status = kvt_acquire(w.client, tokens, 100, 0, &other);
    while (status == KVT_ECONN || status == KVT_ETIMEDOUT);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), kvt_last_error());
    CHECK(kvt_boot_id(w.client) != boot);
    CHECK_EQ(kvt_wait(lease, 0, 0), KVT_ESTALE);
    CHECK_EQ(kvt_extend(lease, 0, tokens, 1, 0), KVT_ESTALE);
    CHECK_EQ(kvt_release(lease), KVT_ESTALE);
    CHECK_EQ(kvt_release(other), KVT_OK);
    e2e_worker_close(&w);
}

/* What this process has mapped of arenas: their files, and memory of the GPU's stand-in. */
static uint32_t n_mapped(void) {
    char line[1024];
    uint32_t n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, ".arena") || strstr(line, "fake-cuda");
    fclose(maps);
    return n;
}

static void await_mapped(uint32_t n) {
    time_t start = time(NULL);
    while (n_mapped() > n)
        CHECK_MSG(time(NULL) - start < 30, "%u mapped, and not %u", n_mapped(), n);
}

/* A worker that asks for nothing lets go of a dead daemon's arena, whose memory the next one may
 * need: at once, or with its last lease. */
static void letting_go(e2e_daemon *d, const char *const *settings) {
    for (int round = 0; round < 4; round++) {
        e2e_worker w;
        kvt_lease *lease = NULL;
        uint32_t token = 5;
        e2e_worker_prepare(&w, 2, E2E_MAX_TOKENS);
        kvt_options options = {.socket = d->socket, .timeout_ms = 5000};
        uint32_t before = n_mapped();
        CHECK_EQ(kvt_open(&options, &w.realm, &w.client), KVT_OK);
        uint32_t staging = e2e_on_gpu() && !getenv("KVT_TEST_CUDART"); /* its own area */
        if (round / 2 == 1)
            CHECK_EQ(kvt_acquire(w.client, &token, 1, 0, &lease), KVT_OK);
        CHECK(n_mapped() > before + staging);
        e2e_stop(d, round % 2 ? SIGTERM : SIGKILL);
        if (lease) {
            CHECK(n_mapped() > before + staging);
            kvt_release(lease);
        }
        await_mapped(before + staging);
        e2e_start(d, settings);
        kvt_status status;
        do
            status = kvt_acquire(w.client, &token, 1, 0, &lease);
        while (status == KVT_ECONN || status == KVT_ETIMEDOUT);
        CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
        CHECK_EQ(kvt_release(lease), KVT_OK);
        e2e_worker_close(&w);
    }
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    enum { WORKERS = 3 };
    e2e_daemon d = {0};
    e2e_child workers[WORKERS];
    const char *settings[] = {"arena=2MiB", "max_pages=300", NULL};
    e2e_start(&d, settings);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = e2e_spawn(&d, "worker", 10 + (uint64_t)i);
        CHECK_EQ(e2e_child_hear(&workers[i]), 'r');
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < WORKERS; i++)
            hear_good(&workers[i], 5);
        CHECK(WIFSIGNALED(e2e_stop(&d, SIGKILL)));
        e2e_start(&d, settings);
    }
    /* A pipe holds 65,536 bytes: reading that many more means work after the last start. */
    for (int i = 0; i < WORKERS; i++) {
        hear_good(&workers[i], 20);
        e2e_child_say(&workers[i], 's');
        while (e2e_child_hear(&workers[i]) == 'g')
            continue;
        CHECK_EQ(e2e_child_end(&workers[i]), 0);
    }
    stale_leases(&d, settings);
    letting_go(&d, settings);
    e2e_finish(&d);
    return 0;
}
