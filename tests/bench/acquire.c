/*
 * acquire.c - a call through the daemon. acquire is compared with an echo of messages of the same
 * sizes: what is left is the daemon's work. Many sessions, each with many leases, are compared with
 * one at the same total rate.
 */
#include "tests/bench/echo.h"

#include <pthread.h>
#include <time.h>

enum { PAGE = 64, MAX_TOKENS = 32768, LEASES = 100 };

static const uint32_t sizes[] = {512, 4096, 32768};

/* --- acquire -------------------------------------------------------------------------------------
 */

static void open_client(const e2e_daemon *d, kvt_realm *realm, kvt_client **ret_client) {
    kvt_geometry geometry;
    kvt_geometry_init(&geometry, 1, 1, 4, PAGE);
    *realm = (kvt_realm){.model = "bench", .geometry = geometry};
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000, .staging_pages = 256};
    CHECK_MSG(kvt_open(&options, realm, ret_client) == KVT_OK, "%s", kvt_last_error());
}

static uint32_t *make_prompt(uint32_t seed) {
    uint32_t *tokens = malloc(MAX_TOKENS * sizeof *tokens);
    uint64_t random = seed;
    CHECK(tokens);
    for (uint32_t i = 0; i < MAX_TOKENS; i++)
        tokens[i] = check_below(&random, 128000);
    return tokens;
}

/* Puts the whole prompt into the trunk. */
static void fill_prompt(kvt_client *client, const kvt_realm *realm, const uint32_t *tokens) {
    static uint16_t zeros[PAGE * 4];
    kvt_lease *lease;
    kvt_layout layout;
    kvt_layout_token_major(&realm->geometry, PAGE, zeros, zeros, &layout);
    CHECK_EQ(kvt_acquire(client, tokens, MAX_TOKENS, KVT_CLAIM, &lease), KVT_OK);
    for (size_t page = 0; page < MAX_TOKENS / PAGE; page++) {
        kvt_status status = kvt_encode(lease, page, &layout);
        if (status == KVT_EFULL) {
            CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
            status = kvt_encode(lease, page, &layout);
        }
        CHECK_EQ(status, KVT_OK);
    }
    CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static double acquire_once(kvt_client *client, const uint32_t *tokens, uint32_t n, uint32_t flags) {
    kvt_lease *lease;
    kvt_lease_info info;
    double start = bench_now();
    kvt_status status = kvt_acquire(client, tokens, n, flags, &lease);
    double seconds = bench_now() - start;
    CHECK_EQ(status, KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.held_tokens, n);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    return seconds;
}

void bench_acquire(void) {
    enum { ROUNDS = 3000 };
    static double a[ROUNDS], b[ROUNDS], claim[ROUNDS];
    e2e_daemon d = {0};
    const char *settings[] = {"audit=false", "arena=64MiB", NULL};
    kvt_client *client;
    kvt_realm realm;
    echo e;
    e2e_start(&d, settings);
    echo_start(&e, d.folder);
    open_client(&d, &realm, &client);
    uint32_t *tokens = make_prompt(1);
    fill_prompt(client, &realm, tokens);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t n = sizes[i];
        /* client/PROTOCOL.md: headers of 32 bytes, ACQUIRE's fixed fields, 4 bytes a token; 32 a
         * page */
        size_t request = 32 + 32 + 4 * (size_t)n;
        uint32_t reply = 32 + 32 + n / PAGE * 32;
        for (int k = -100; k < ROUNDS; k++) {
            double x = acquire_once(client, tokens, n, 0);
            double y = echo_once(&e, request, reply);
            double z = acquire_once(client, tokens, n, KVT_CLAIM);
            if (k >= 0)
                a[k] = x * 1e6, b[k] = y * 1e6, claim[k] = z * 1e6;
        }
        char name[64];
        snprintf(name, sizeof name, "acquire of %u held tokens, median", n);
        double base = bench_percentile(b, ROUNDS, 50), mine = bench_percentile(a, ROUNDS, 50);
        bench_report(&(bench_row){.name = name,
                                  .value = mine,
                                  .unit = "us",
                                  .base = "nng echo of the same sizes",
                                  .base_value = base,
                                  .target = 1.25,
                                  .noise = 50 * (b[ROUNDS * 3 / 4] - b[ROUNDS / 4]) / base});
        snprintf(name, sizeof name, "  with a claim that nobody contests");
        bench_report(&(bench_row){.name = name,
                                  .value = bench_percentile(claim, ROUNDS, 50),
                                  .unit = "us",
                                  .base = "acquire without",
                                  .base_value = mine,
                                  .target = 1.05});
    }
    free(tokens);
    kvt_close(client);
    echo_stop(&e);
    e2e_finish(&d);
}

/* --- sessions ------------------------------------------------------------------------------------
 */

enum { SESSIONS = 64, RATE = 1000, SECONDS = 4, SAMPLES = RATE * SECONDS };

typedef struct caller {
    pthread_t thread;
    const e2e_daemon *daemon;
    const uint32_t *tokens;
    uint32_t n_calls, first, stride; /* its calls are due at (first + i * stride) / RATE s */
    pthread_barrier_t *ready;        /* all have connected and hold their leases */
    double *start;                   /* then set by the first of them */
    double *us;                      /* [n_calls] */
} caller;

static void sleep_until(double when) {
    double left = when - bench_now();
    if (left > 0) {
        struct timespec t = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&t, NULL);
    }
}

static void *call_at_rate(void *context) {
    caller *k = context;
    kvt_client *client;
    kvt_realm realm;
    kvt_lease *leases[LEASES];
    open_client(k->daemon, &realm, &client);
    for (uint32_t i = 0; i < LEASES; i++)
        CHECK_EQ(kvt_acquire(client, k->tokens, 64 * (i + 1), 0, &leases[i]), KVT_OK);
    pthread_barrier_wait(k->ready);
    if (k->first == 0)
        *k->start = bench_now() + .01;
    pthread_barrier_wait(k->ready);
    sleep_until(*k->start);
    for (uint32_t i = 0; i < k->n_calls; i++) {
        /* Timed from when it was due: one session that waits for an answer asks nothing meanwhile,
         * so that its own figures would leave out the calls that met the same delay. */
        double due = *k->start + (double)(k->first + i * k->stride) / RATE;
        sleep_until(due);
        double late = bench_now() - due;
        k->us[i] = (late + acquire_once(client, k->tokens, 4096, 0)) * 1e6;
    }
    for (uint32_t i = 0; i < LEASES; i++)
        CHECK_EQ(kvt_release(leases[i]), KVT_OK);
    kvt_close(client);
    return NULL;
}

static double p99_of(const e2e_daemon *d, const uint32_t *tokens, uint32_t n_sessions) {
    static double us[SAMPLES];
    static caller callers[SESSIONS];
    uint32_t each = SAMPLES / n_sessions;
    double start = 0;
    pthread_barrier_t ready;
    CHECK(pthread_barrier_init(&ready, NULL, n_sessions) == 0);
    for (uint32_t i = 0; i < n_sessions; i++) {
        callers[i] = (caller){.daemon = d,
                              .tokens = tokens,
                              .n_calls = each,
                              .first = i,
                              .stride = n_sessions,
                              .ready = &ready,
                              .start = &start,
                              .us = us + (size_t)i * each};
        CHECK(pthread_create(&callers[i].thread, NULL, call_at_rate, &callers[i]) == 0);
    }
    for (uint32_t i = 0; i < n_sessions; i++)
        pthread_join(callers[i].thread, NULL);
    pthread_barrier_destroy(&ready);
    return bench_percentile(us, (size_t)each * n_sessions, 99);
}

void bench_sessions(void) {
    enum { ROUNDS = 3 };
    double one[ROUNDS], many[ROUNDS];
    e2e_daemon d = {0};
    const char *settings[] = {"audit=false", "arena=64MiB", NULL};
    kvt_client *client;
    kvt_realm realm;
    e2e_start(&d, settings);
    open_client(&d, &realm, &client);
    uint32_t *tokens = make_prompt(1);
    fill_prompt(client, &realm, tokens);
    for (int i = 0; i < ROUNDS; i++) {
        one[i] = p99_of(&d, tokens, 1);
        many[i] = p99_of(&d, tokens, SESSIONS);
    }
    bench_report(&(bench_row){.name = "64 sessions of 100 leases: acquire since due, 99 %",
                              .value = bench_percentile(many, ROUNDS, 50),
                              .unit = "us",
                              .base = "one session of 100 leases, same rate",
                              .base_value = bench_percentile(one, ROUNDS, 50),
                              .target = 3});
    free(tokens);
    kvt_close(client);
    e2e_finish(&d);
}
