/*
 * flight.c - single flight: a worker computes a prompt and seals it page by page, others wait for
 * each page. What is measured is how long after the seal's return they know of it.
 */
#include "tests/bench/echo.h"

#include <pthread.h>
#include <time.h>

enum { PAGE = 64, PAGES = 64, ROUNDS = 9, COMPUTE_US = 2000 };

typedef struct flight {
    const e2e_daemon *daemon;
    uint32_t tokens[PAGES * PAGE];
    pthread_barrier_t begun; /* the claim stands; the others may ask */
    double sealed[PAGES];    /* when the seal of a page had returned */
} flight;

typedef struct waiter {
    pthread_t thread;
    flight *f;
    double known[PAGES]; /* when it knew that a page is held */
} waiter;

static kvt_client *open_client(const e2e_daemon *d, kvt_realm *realm) {
    kvt_client *client;
    kvt_geometry geometry;
    kvt_geometry_init(&geometry, 1, 1, 4, PAGE);
    *realm = (kvt_realm){.model = "bench", .geometry = geometry};
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000, .staging_pages = 4};
    CHECK_MSG(kvt_open(&options, realm, &client) == KVT_OK, "%s", kvt_last_error());
    return client;
}

static void *wait_for_pages(void *context) {
    waiter *k = context;
    kvt_realm realm;
    kvt_lease *lease;
    kvt_lease_info info;
    kvt_client *client = open_client(k->f->daemon, &realm);
    pthread_barrier_wait(&k->f->begun);
    CHECK_EQ(kvt_acquire(client, k->f->tokens, PAGES * PAGE, KVT_CLAIM, &lease), KVT_OK);
    for (uint32_t held = 0; held < PAGES;) {
        CHECK_EQ(kvt_wait(lease, held * PAGE, 10000), KVT_OK);
        kvt_lease_get(lease, &info);
        double now = bench_now();
        for (; held < info.held_tokens / PAGE; held++)
            k->known[held] = now;
    }
    CHECK_EQ(kvt_release(lease), KVT_OK);
    kvt_close(client);
    return NULL;
}

static void compute(void) {
    struct timespec t = {.tv_nsec = COMPUTE_US * 1000};
    nanosleep(&t, NULL);
}

static void compute_pages(flight *f, kvt_client *client, const kvt_realm *realm) {
    static uint16_t zeros[PAGE * 4];
    kvt_lease *lease;
    kvt_layout layout;
    kvt_layout_token_major(&realm->geometry, PAGE, zeros, zeros, &layout);
    CHECK_EQ(kvt_acquire(client, f->tokens, PAGES * PAGE, KVT_CLAIM, &lease), KVT_OK);
    pthread_barrier_wait(&f->begun);
    for (size_t page = 0; page < PAGES; page++) {
        compute();
        CHECK_EQ(kvt_encode(lease, page, &layout), KVT_OK);
        CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
        f->sealed[page] = bench_now();
    }
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* The median delay of a round, in microseconds, over all pages and waiting workers. */
static double fly(flight *f, kvt_client *client, const kvt_realm *realm, uint32_t n_waiters) {
    static waiter waiters[8];
    static double us[8 * PAGES];
    size_t n = 0;
    for (uint32_t i = 0; i < PAGES * PAGE; i++)
        f->tokens[i] += 100000; /* a prompt that nobody has */
    CHECK(pthread_barrier_init(&f->begun, NULL, n_waiters + 1) == 0);
    for (uint32_t i = 0; i < n_waiters; i++) {
        waiters[i].f = f;
        CHECK(pthread_create(&waiters[i].thread, NULL, wait_for_pages, &waiters[i]) == 0);
    }
    compute_pages(f, client, realm);
    for (uint32_t i = 0; i < n_waiters; i++) {
        pthread_join(waiters[i].thread, NULL);
        for (int page = 0; page < PAGES; page++)
            us[n++] = (waiters[i].known[page] - f->sealed[page]) * 1e6;
    }
    pthread_barrier_destroy(&f->begun);
    return bench_percentile(us, n, 50);
}

static void report(flight *f, kvt_client *client, const kvt_realm *realm, echo *e,
                   uint32_t n_waiters) {
    double delay[ROUNDS], trip[ROUNDS * 20];
    char name[64];
    for (int round = -1; round < ROUNDS; round++) {
        double us = fly(f, client, realm, n_waiters);
        for (int i = 0; i < 20 && round >= 0; i++)
            trip[round * 20 + i] = echo_once(e, 64, 128) * 1e6;
        if (round >= 0)
            delay[round] = us;
    }
    snprintf(name, sizeof name, "%u waiting: known so long after the seal, median", n_waiters);
    double base = bench_percentile(trip, ROUNDS * 20, 50), us = bench_percentile(delay, ROUNDS, 50);
    bench_report(&(bench_row){.name = name,
                              .value = us,
                              .unit = "us",
                              .base = "an nng round trip",
                              .base_value = base,
                              .target = 2,
                              .noise = 50 * (delay[ROUNDS * 3 / 4] - delay[ROUNDS / 4]) / us});
}

void bench_flight(void) {
    static flight f;
    e2e_daemon d = {0};
    const char *settings[] = {"audit=false", "arena=64MiB", NULL};
    kvt_realm realm;
    echo e;
    e2e_start(&d, settings);
    echo_start(&e, d.folder);
    f.daemon = &d;
    for (uint32_t i = 0; i < PAGES * PAGE; i++)
        f.tokens[i] = i % 999;
    kvt_client *client = open_client(&d, &realm);
    report(&f, client, &realm, &e, 1);
    report(&f, client, &realm, &e, 7);
    kvt_close(client);
    echo_stop(&e);
    e2e_finish(&d);
}
