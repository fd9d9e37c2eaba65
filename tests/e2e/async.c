/*
 * async.c - calls that do not block, against the real daemon: a wait that another worker's seal
 * ends, calls that are cancelled on their way, many sequences in one thread, closing under calls.
 * Every byte that is read is checked, and afterwards the daemon holds nothing for anybody.
 *
 * Argument: rounds of each sequence (30).
 */
#include "tests/e2e/e2e.h"

#include <poll.h>
#include <signal.h>

enum { TOKENS = 128, SEQUENCES = 16 };

static void make_prompt(uint32_t n, uint32_t *tokens) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = n * 1000 + i;
}

static kvt_pending *next(kvt_client *client) {
    struct pollfd fd = {.events = POLLIN};
    kvt_pending *pending = NULL;
    CHECK_EQ(kvt_pending_fd(client, &fd.fd), KVT_OK);
    CHECK(poll(&fd, 1, -1) == 1);
    CHECK_EQ(kvt_pending_next(client, &pending), KVT_OK);
    return pending;
}

static void nothing_left(const e2e_daemon *d) {
    static const char *const counts[] = {"leases", "waiting", "pages_filling", "pages_pinned"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        e2e_await(d, counts[i], 0);
    e2e_await(d, "sessions", 1); /* the one that asks */
}

/* One worker computes, the other has begun to wait for it and is cancelled once; then it waits to
 * the end. */
static void wait_for_another(const e2e_daemon *d) {
    e2e_worker maker, reader;
    uint32_t tokens[TOKENS];
    kvt_lease *made, *read;
    kvt_pending *pending;
    kvt_lease_info info;
    make_prompt(1, tokens);
    e2e_worker_open(&maker, d, 1, 20000);
    e2e_worker_open(&reader, d, 2, 20000);
    CHECK_EQ(kvt_acquire(maker.client, tokens, TOKENS, KVT_CLAIM, &made), KVT_OK);
    CHECK_EQ(kvt_acquire(reader.client, tokens, TOKENS, KVT_CLAIM, &read), KVT_OK);
    CHECK_EQ(kvt_lease_get(read, &info), KVT_OK);
    CHECK_EQ(info.computing_tokens, TOKENS);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(kvt_wait_begin(read, TOKENS - 1, 600000, NULL, &pending), KVT_OK);
        if (i % 2)
            e2e_await(d, "waiting", 1);
        kvt_cancel(pending);
        CHECK_EQ(kvt_finish(pending, NULL), KVT_ECANCELED);
        e2e_await(d, "waiting", 0);
    }
    CHECK_EQ(kvt_wait_begin(read, TOKENS - 1, 600000, NULL, &pending), KVT_OK);
    e2e_await(d, "waiting", 1);
    CHECK_EQ(e2e_fill(&maker, made, tokens, SIZE_MAX), KVT_OK);
    CHECK(next(reader.client) == pending);
    CHECK_EQ(kvt_finish(pending, NULL), KVT_OK);
    CHECK_EQ(kvt_lease_get(read, &info), KVT_OK);
    CHECK_EQ(info.held_tokens, TOKENS);
    CHECK_EQ(e2e_read(&reader, read, tokens), KVT_OK);
    CHECK_EQ(kvt_release(read), KVT_OK);
    CHECK_EQ(kvt_release(made), KVT_OK);
    e2e_worker_close(&maker);
    e2e_worker_close(&reader);
    nothing_left(d);
}

/* Cancelled at once: some never leave, some are done and undone, some are too late. */
static void cancel_at_once(const e2e_daemon *d) {
    enum { AT_ONCE = 32 };
    e2e_worker w;
    uint32_t tokens[TOKENS];
    uint32_t n_given = 0, n_canceled = 0;
    e2e_worker_open(&w, d, 3, 20000);
    for (uint32_t round = 0; round < 20; round++) {
        kvt_pending *pending[AT_ONCE];
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            make_prompt(round * AT_ONCE + i, tokens);
            CHECK_EQ(kvt_acquire_begin(w.client, tokens, TOKENS, KVT_CLAIM, NULL, &pending[i]),
                     KVT_OK);
        }
        for (uint32_t i = 0; i < AT_ONCE; i++)
            kvt_cancel(pending[i]);
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            kvt_outcome outcome;
            kvt_status status = kvt_finish(pending[i], &outcome);
            CHECK_MSG(status == KVT_OK || status == KVT_ECANCELED, "%s: %s",
                      kvt_status_name(status), kvt_last_error());
            n_given += status == KVT_OK;
            n_canceled += status == KVT_ECANCELED;
            if (status == KVT_OK)
                CHECK_EQ(kvt_release(outcome.lease), KVT_OK);
        }
        e2e_await(d, "leases", 0);
    }
    CHECK_MSG(n_canceled > 0, "none of %u calls was cancelled", n_given);
    e2e_worker_close(&w);
    nothing_left(d);
}

/* Acquire, read, fill, release in one thread for many prompts at once. */
typedef struct sequence {
    uint32_t tokens[E2E_MAX_TOKENS];
    size_t n_tokens;
    int rounds;
    int acquiring;
} sequence;

static void begin_acquire(e2e_worker *w, sequence *q) {
    kvt_pending *pending;
    q->n_tokens = e2e_prompt(&w->random, q->tokens);
    q->acquiring = 1;
    CHECK_EQ(kvt_acquire_begin(w->client, q->tokens, q->n_tokens, KVT_CLAIM, q, &pending), KVT_OK);
}

static void read_and_fill(e2e_worker *w, sequence *q, kvt_lease *lease) {
    kvt_pending *pending;
    CHECK_EQ(e2e_read(w, lease, q->tokens), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, q->tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(w, lease, q->tokens), KVT_OK);
    q->acquiring = 0;
    CHECK_EQ(kvt_release_begin(lease, q, &pending), KVT_OK);
}

static void many_sequences(const e2e_daemon *d, int rounds) {
    static sequence all[SEQUENCES];
    e2e_worker w;
    int n_left = SEQUENCES;
    e2e_worker_open(&w, d, 7, 20000);
    for (int i = 0; i < SEQUENCES; i++) {
        all[i].rounds = rounds;
        begin_acquire(&w, &all[i]);
    }
    while (n_left > 0) {
        kvt_outcome outcome;
        CHECK_EQ(kvt_finish(next(w.client), &outcome), KVT_OK);
        sequence *q = outcome.user;
        if (q->acquiring)
            read_and_fill(&w, q, outcome.lease);
        else if (--q->rounds > 0)
            begin_acquire(&w, q);
        else
            n_left--;
    }
    CHECK(w.served > 0 && w.wrong_bytes == 0);
    e2e_worker_close(&w);
    nothing_left(d);
}

static void close_under_calls(const e2e_daemon *d) {
    enum { CALLS = 8 };
    uint32_t tokens[TOKENS];
    make_prompt(77777, tokens);
    for (int round = 0; round < 20; round++) {
        e2e_worker maker, w;
        kvt_lease *made, *waiting[CALLS];
        kvt_pending *pending[CALLS];
        e2e_worker_open(&maker, d, 5, 20000);
        e2e_worker_open(&w, d, 6, 20000);
        CHECK_EQ(kvt_acquire(maker.client, tokens, TOKENS, KVT_CLAIM, &made), KVT_OK);
        for (int i = 0; i < CALLS; i++) {
            CHECK_EQ(kvt_acquire(w.client, tokens, TOKENS, KVT_CLAIM, &waiting[i]), KVT_OK);
            CHECK_EQ(kvt_wait_begin(waiting[i], 0, 600000, NULL, &pending[i]), KVT_OK);
        }
        if (round % 2)
            e2e_await(d, "waiting", CALLS);
        kvt_close(w.client);
        w.client = NULL;
        for (int i = 0; i < CALLS; i++) {
            CHECK_EQ(kvt_finish(pending[i], NULL), KVT_ECLOSED);
            CHECK_EQ(kvt_release(waiting[i]), KVT_ECLOSED);
        }
        CHECK_EQ(kvt_release(made), KVT_OK);
        e2e_worker_close(&w);
        e2e_worker_close(&maker);
        nothing_left(d);
    }
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 30;
    e2e_daemon d = {0};
    const char *settings[] = {"arena=16MiB", "max_pages=2000", NULL};
    e2e_start(&d, settings);
    wait_for_another(&d);
    cancel_at_once(&d);
    many_sequences(&d, rounds);
    close_under_calls(&d);
    e2e_finish(&d);
    return 0;
}
