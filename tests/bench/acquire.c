/*
 * acquire.c - a call through the daemon. acquire is compared with a blocking REQ/REP echo of nng
 * with messages of the same sizes, served by a process of its own: what is left is the daemon's
 * work. Many sessions are compared with one at the same total rate.
 */
#include "tests/bench/bench.h"
#include "tests/e2e/e2e.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 64, MAX_TOKENS = 32768 };

static const uint32_t sizes[] = {512, 4096, 32768};

/* --- the echo ------------------------------------------------------------------------------------
 */

/* Answers each message with one of the size that its first four bytes name. */
static int echo_serve(const char *url) {
    nng_socket socket;
    static uint8_t answer[1 << 20];
    if (nng_rep0_open(&socket) != 0 ||
        nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, 8 << 20) != 0 ||
        nng_listen(socket, url, NULL, 0) != 0)
        return 1;
    if (write(STDOUT_FILENO, "R", 1) != 1)
        return 1;
    for (;;) {
        nng_msg *message;
        uint32_t n;
        if (nng_recvmsg(socket, &message, 0) != 0)
            return 1;
        memcpy(&n, nng_msg_body(message), 4);
        nng_msg_clear(message);
        if (nng_msg_append(message, answer, n) != 0 || nng_sendmsg(socket, message, 0) != 0)
            return 1;
    }
}

int bench_child(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--echo") == 0)
        return echo_serve(argv[2]);
    return -1;
}

typedef struct echo {
    pid_t pid;
    nng_socket socket;
    uint8_t *bytes;
} echo;

static void echo_start(echo *e, const char *folder) {
    char url[256], ready;
    int fds[2];
    snprintf(url, sizeof url, "ipc://%s/echo", folder);
    CHECK(pipe(fds) == 0);
    e->pid = fork();
    if (e->pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execl("/proc/self/exe", "bench", "--echo", url, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    CHECK(read(fds[0], &ready, 1) == 1);
    close(fds[0]);
    CHECK(nng_req0_open(&e->socket) == 0);
    CHECK(nng_socket_set_size(e->socket, NNG_OPT_RECVMAXSZ, 8 << 20) == 0);
    CHECK(nng_dial(e->socket, url, NULL, 0) == 0);
    e->bytes = calloc(1, 1 << 20);
}

static void echo_stop(echo *e) {
    nng_close(e->socket);
    kill(e->pid, SIGKILL);
    waitpid(e->pid, NULL, 0);
    free(e->bytes);
}

static double echo_once(echo *e, size_t request, uint32_t reply) {
    nng_msg *message;
    double start = bench_now();
    memcpy(e->bytes, &reply, 4);
    CHECK(nng_msg_alloc(&message, 0) == 0);
    CHECK(nng_msg_append(message, e->bytes, request) == 0);
    CHECK(nng_sendmsg(e->socket, message, 0) == 0);
    CHECK(nng_recvmsg(e->socket, &message, 0) == 0);
    double seconds = bench_now() - start;
    CHECK_EQ(nng_msg_len(message), reply);
    nng_msg_free(message);
    return seconds;
}

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
    double start;
    double *us; /* [n_calls] */
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
    open_client(k->daemon, &realm, &client);
    sleep_until(k->start);
    for (uint32_t i = 0; i < k->n_calls; i++) {
        sleep_until(k->start + (double)(k->first + i * k->stride) / RATE);
        k->us[i] = acquire_once(client, k->tokens, 4096, 0) * 1e6;
    }
    kvt_close(client);
    return NULL;
}

static double p99_of(const e2e_daemon *d, const uint32_t *tokens, uint32_t n_sessions) {
    static double us[SAMPLES];
    static caller callers[SESSIONS];
    uint32_t each = SAMPLES / n_sessions;
    double start = bench_now() + .5; /* all of them have connected by then */
    for (uint32_t i = 0; i < n_sessions; i++) {
        callers[i] = (caller){.daemon = d,
                              .tokens = tokens,
                              .n_calls = each,
                              .first = i,
                              .stride = n_sessions,
                              .start = start,
                              .us = us + (size_t)i * each};
        CHECK(pthread_create(&callers[i].thread, NULL, call_at_rate, &callers[i]) == 0);
    }
    for (uint32_t i = 0; i < n_sessions; i++)
        pthread_join(callers[i].thread, NULL);
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
    bench_report(&(bench_row){.name = "acquire with 64 sessions, 99th percentile",
                              .value = bench_percentile(many, ROUNDS, 50),
                              .unit = "us",
                              .base = "one session at the same rate",
                              .base_value = bench_percentile(one, ROUNDS, 50),
                              .target = 3});
    free(tokens);
    kvt_close(client);
    e2e_finish(&d);
}
