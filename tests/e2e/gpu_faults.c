/*
 * gpu_faults.c - what only the stand-in for CUDA does when it is told to, or counts: a GPU that
 * fails, one that is full, and the memory that workers give to the daemon, which has to be freed
 * whatever becomes of either.
 *
 * Only with KVT_TEST_DEVICE=cuda. With an argument: without the failures, for the planted bugs.
 */
#include "client/layout.h"
#include "tests/e2e/e2e.h"
#include "tests/e2e/gpu.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* --- areas ---------------------------------------------------------------------------------------
 */

/* Areas that this process has and that were given to the daemon, with one client open. Only the
 * stand-in counts them. */
static unsigned count_areas(const e2e_daemon *d) {
    e2e_worker w;
    unsigned (*exported)(void);
    *(void **)(void *)&exported = gpu_symbol("fake_cuda_exported");
    e2e_worker_open(&w, d, 13, 20000);
    unsigned n = exported();
    e2e_worker_close(&w);
    return n;
}

/* The daemon may be somewhat late in closing the others'. */
static void await_one_area(const e2e_daemon *d) {
    time_t start = time(NULL);
    for (unsigned n; (n = count_areas(d)) != 1;)
        CHECK_MSG(time(NULL) - start < 60, "there are %u areas", n);
}

/* An area is freed when the daemon has closed it: however many clients come and go, there is one.
 */
static void test_areas(const e2e_daemon *d) {
    for (uint32_t round = 0; round < 5; round++) {
        e2e_worker w;
        uint32_t tokens[40];
        e2e_worker_open(&w, d, 13, 20000);
        CHECK_EQ(kvt_release(e2e_filled(&w, tokens, 40, 40000000 + 1000 * round)), KVT_OK);
        e2e_worker_close(&w);
        await_one_area(d);
    }
}

/* A client with a SEAL that is not answered: the daemon, which is stopped, may come to read the
 * area at any time. */
static kvt_client *in_doubt(const e2e_daemon *d, uint32_t first, kvt_lease **ret_lease) {
    kvt_options options = {.socket = d->socket, .timeout_ms = 300};
    kvt_realm realm;
    kvt_client *client;
    kvt_layout from;
    uint32_t tokens[16];
    void *part[2] = {gpu_memory(E2E_PART_BYTES), gpu_memory(E2E_PART_BYTES)},
         *stream = gpu_stream();
    e2e_realm(&realm);
    kvt_layout_token_major(&realm.geometry, 16, part[0], part[1], &from);
    for (uint32_t t = 0; t < 16; t++)
        tokens[t] = first + t;
    for (int p = 0; p < 2; p++)
        gpu_set(part[p], 0, E2E_PART_BYTES, stream);
    kvt_status status;
    do /* the short time is for the seal alone */
        status = kvt_open(&options, &realm, &client);
    while (status == KVT_ETIMEDOUT);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    while ((status = kvt_acquire(client, tokens, 16, KVT_CLAIM, ret_lease)) == KVT_ETIMEDOUT)
        ;
    CHECK_EQ(status, KVT_OK);
    CHECK_EQ(kvt_encode_device(*ret_lease, 0, 1, &from, NULL, stream), KVT_OK);
    CHECK(kill(d->pid, SIGSTOP) == 0);
    CHECK_EQ(kvt_seal(*ret_lease, NULL), KVT_ETIMEDOUT);
    for (int p = 0; p < 2; p++)
        gpu_free(part[p]);
    gpu_stream_free(stream);
    return client;
}

/* Then it is freed as well, and not before the daemon has closed it: when the session ends, and
 * when the daemon dies. */
static void test_areas_in_doubt(void) {
    /* A worker's goodbye to a daemon that is stopped may be lost. */
    static const char *const settings[] = {"arena=4MiB", "grace_ms=100", NULL};
    unsigned (*exported)(void);
    e2e_daemon stopped = {0}, *d = &stopped;
    kvt_lease *lease;
    e2e_start(d, settings);
    *(void **)(void *)&exported = gpu_symbol("fake_cuda_exported");
    for (uint32_t round = 0; round < 3; round++) {
        kvt_client *client = in_doubt(d, 41000000 + 1000 * round, &lease);
        if (round == 1) { /* the daemon has not heard of its end when it closes */
            kvt_close(client);
            kvt_release(lease);
            CHECK_EQ(exported(), 1);
        }
        CHECK(kill(d->pid, SIGCONT) == 0);
        if (round != 1) {
            kvt_release(lease);
            kvt_close(client);
        }
        await_one_area(d);
    }
    kvt_client *client = in_doubt(d, 42000000, &lease);
    CHECK(WIFSIGNALED(e2e_stop(d, SIGKILL)));
    kvt_release(lease);
    kvt_close(client);
    CHECK_EQ(exported(), 0);
    e2e_start(d, settings);
    e2e_finish(d);
}

/* What an engine would take for a failure of its own. */
static int last_error(void) {
    int (*get)(void);
    *(void **)(void *)&get = gpu_symbol("cudaGetLastError");
    return get();
}

static void set_gpu_bytes(uint64_t bytes) {
    void (*set)(uint64_t);
    *(void **)(void *)&set = gpu_symbol("fake_cuda_set_bytes");
    set(bytes);
}

/* A worker whose GPU is full: it is told, and hands pages in through host memory; the GPU encodes
 * as soon as it has room for that. */
static void test_full_gpu(const e2e_daemon *d) {
    e2e_worker w, on_gpu;
    kvt_lease *lease;
    kvt_layout from;
    uint32_t tokens[40], more[40];
    e2e_worker_prepare(&on_gpu, 1, E2E_MAX_TOKENS); /* for its memory */
    set_gpu_bytes(1);
    e2e_worker_open(&w, d, 14, 20000);
    CHECK_MSG(strstr(kvt_last_error(), "no staging area of"), "%s", kvt_last_error());
    CHECK_EQ(last_error(), 0);
    lease = e2e_filled(&w, tokens, 40, 43000000);
    CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    for (uint32_t t = 0; t < 40; t++)
        more[t] = 43100000 + t;
    kvt_layout_token_major(&w.realm.geometry, 40, on_gpu.gpu_part[0], on_gpu.gpu_part[1], &from);
    for (int p = 0; p < 2; p++)
        gpu_set(on_gpu.gpu_part[p], 0, E2E_PART_BYTES, on_gpu.stream);
    CHECK_EQ(kvt_acquire(w.client, more, 40, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(kvt_encode_device(lease, 0, 3, &from, NULL, on_gpu.stream), KVT_ENOMEM);
    CHECK_MSG(strstr(kvt_last_error(), "fewer staging_pages"), "%s", kvt_last_error());
    kvt_layout host;
    kvt_layout_token_major(&w.realm.geometry, 40, w.part[0], w.part[1], &host);
    CHECK_EQ(kvt_encode(lease, 0, &host), KVT_OK);
    set_gpu_bytes(UINT64_C(4) << 30);
    CHECK_EQ(kvt_encode_device(lease, 1, 2, &from, NULL, on_gpu.stream), KVT_ENOMEM);
    CHECK_MSG(strstr(kvt_last_error(), "seal them"), "%s", kvt_last_error());
    CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kvt_encode_device(lease, 1, 2, &from, NULL, on_gpu.stream), KVT_OK);
    CHECK_MSG(kvt_seal(lease, NULL) == KVT_OK, "%s", kvt_last_error());
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    e2e_worker_close(&on_gpu);
}

/* --- a GPU that fails ---------------------------------------------------------------------------
 */

/* The GPU fails: the daemon says so and ends, to be started anew; workers get errors, and serve
 * again with the next one. (Each process has its own view of the GPU: this one's works on.) */
static void test_failed_gpu(e2e_daemon *d, const char *const *settings) {
    char file[200], command[256];
    e2e_worker w;
    int status;
    snprintf(file, sizeof file, "%s/broken", d->folder);
    CHECK_EQ(e2e_stop(d, SIGTERM), 0);
    setenv("KVT_FAKE_CUDA_BREAK", file, 1);
    e2e_start(d, settings);
    unsetenv("KVT_FAKE_CUDA_BREAK");
    e2e_worker_open(&w, d, 4, 20000);
    e2e_request(&w);
    snprintf(command, sizeof command, ": > '%s'", file);
    CHECK(system(command) == 0);
    uint32_t tokens[64];
    kvt_lease *lease;
    for (uint32_t t = 0; t < 64; t++)
        tokens[t] = 77000000 + t;
    CHECK_EQ(kvt_acquire(w.client, tokens, 64, KVT_CLAIM, &lease), KVT_OK);
    kvt_status filled = e2e_fill(&w, lease, tokens, SIZE_MAX);
    CHECK_MSG(filled == KVT_ECONN || filled == KVT_ETIMEDOUT ||
                  (filled == KVT_EIO && strstr(kvt_last_error(), "the daemon's GPU failed")),
              "%s: %s", kvt_status_name(filled), kvt_last_error());
    kvt_release(lease);
    CHECK(waitpid(d->pid, &status, 0) == d->pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 6, "the daemon's status is %x",
              (unsigned)status);
    e2e_start(d, settings);
    uint64_t failed = w.failed[KVT_ESTALE];
    e2e_request(&w);
    e2e_request(&w);
    CHECK(w.failed[KVT_ESTALE] - failed <= 1);
    CHECK(e2e_count(d, "pages_sealed") > 0);
    e2e_worker_close(&w);
}

/* The GPU fails, and nobody asks for anything but to be let in: who asks is told, and the daemon
 * ends as it does when it meets that in a seal. */
static void test_failed_gpu_at_open(e2e_daemon *d, const char *const *settings) {
    char file[200];
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000};
    kvt_realm realm;
    kvt_client *client;
    int status, fd;
    snprintf(file, sizeof file, "%s/broken at open", d->folder);
    CHECK_EQ(e2e_stop(d, SIGTERM), 0);
    setenv("KVT_FAKE_CUDA_BREAK", file, 1);
    e2e_start(d, settings);
    unsetenv("KVT_FAKE_CUDA_BREAK");
    e2e_realm(&realm);
    fd = open(file, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && close(fd) == 0);
    kvt_status opened = kvt_open(&options, &realm, &client);
    CHECK_MSG((opened == KVT_EIO && strstr(kvt_last_error(), "the daemon's GPU failed")) ||
                  opened == KVT_ECONN,
              "%s: %s", kvt_status_name(opened), kvt_last_error());
    CHECK(waitpid(d->pid, &status, 0) == d->pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 6, "the daemon's status is %x",
              (unsigned)status);
    e2e_start(d, settings);
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_OK);
    kvt_close(client);
}

/* --- host memory that the GPU does not reach
 * ------------------------------------------------------
 */

/* The host tier works all the same. */
static void test_unpinned(void) {
    static const char *const settings[] = {"arena=1MiB", "host=8MiB", NULL};
    e2e_daemon d = {0};
    e2e_worker w;
    uint32_t tokens[400];
    setenv("KVT_FAKE_CUDA_PINS", "0", 1);
    e2e_start(&d, settings);
    unsetenv("KVT_FAKE_CUDA_PINS");
    e2e_worker_open(&w, &d, 21, 20000);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t prompt = 0; prompt < 10; prompt++) {
            kvt_lease *lease;
            for (uint32_t t = 0; t < 400; t++)
                tokens[t] = 50000000 + 1000 * prompt + t;
            CHECK_EQ(kvt_acquire(w.client, tokens, 400, KVT_CLAIM, &lease), KVT_OK);
            CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
            CHECK_EQ(e2e_fill(&w, lease, tokens, SIZE_MAX), KVT_OK);
            CHECK_EQ(kvt_release(lease), KVT_OK);
        }
    CHECK(e2e_count(&d, "pages_promoted") > 0);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

/* --- calls that fail
 * ------------------------------------------------------------------------------
 */

/* Pages of one byte each, encoded on a stream of their own. */
typedef struct plain {
    kvt_lease *lease;
    void *part[2], *stream;
    kvt_layout layout;
} plain;

enum { PLAIN_TOKENS = 4 * E2E_PAGE_TOKENS };

static void plain_open(plain *p, kvt_client *client, const kvt_realm *realm, uint32_t first,
                       int byte) {
    uint32_t tokens[PLAIN_TOKENS];
    for (uint32_t t = 0; t < PLAIN_TOKENS; t++)
        tokens[t] = first + t;
    CHECK_EQ(kvt_acquire(client, tokens, PLAIN_TOKENS, KVT_CLAIM, &p->lease), KVT_OK);
    p->stream = gpu_stream();
    for (int i = 0; i < 2; i++) {
        p->part[i] = gpu_memory(E2E_PART_BYTES);
        gpu_set(p->part[i], byte, E2E_PART_BYTES, p->stream);
    }
    GPU_CALL("cudaStreamSynchronize", (void *), p->stream);
    kvt_layout_token_major(&realm->geometry, PLAIN_TOKENS, p->part[0], p->part[1], &p->layout);
}

static void plain_close(plain *p) {
    CHECK_EQ(kvt_release(p->lease), KVT_OK);
    for (int i = 0; i < 2; i++)
        gpu_free(p->part[i]);
    gpu_stream_free(p->stream);
}

/* All that is held of it is its byte. */
static uint32_t plain_check(plain *p, int byte, uint32_t n_call) {
    static uint8_t bytes[E2E_PART_BYTES];
    kvt_lease_info info;
    kvt_lease_get(p->lease, &info);
    for (int i = 0; i < 2; i++)
        gpu_set(p->part[i], byte, E2E_PART_BYTES, p->stream);
    CHECK_EQ(kvt_decode_device(p->lease, 0, info.held_tokens, 0, E2E_LAYERS, &p->layout, NULL,
                               p->stream),
             KVT_OK);
    CHECK_EQ(kvt_sync(p->lease), KVT_OK);
    for (int i = 0; i < 2; i++) {
        gpu_get(bytes, p->part[i], E2E_PART_BYTES);
        for (size_t at = 0; at < E2E_PART_BYTES; at++)
            CHECK_MSG(bytes[at] == byte, "behind failed call %u: byte %zu is %d, not %d", n_call,
                      at, bytes[at], byte);
    }
    return info.held_tokens;
}

/* A call of the worker's own GPU fails, once, as it encodes, seals or releases, with its work under
 * way on a slow GPU: the memory of that work goes to no other before it is done. */
static void test_failed_calls(const e2e_daemon *d) {
    enum { CALLS = 16, WAYS = 3, SLOW_US = 100000, USUAL_US = 20000 };
    kvt_options options = {.socket = d->socket, .staging_pages = 4};
    kvt_realm realm;
    kvt_client *client;
    uint32_t n_held = 0;
    void (*fail_call)(uint64_t), (*set_delay)(unsigned, uint64_t);
    *(void **)(void *)&fail_call = gpu_symbol("fake_cuda_fail_call");
    *(void **)(void *)&set_delay = gpu_symbol("fake_cuda_set_delay");
    e2e_realm(&realm);
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_OK);
    for (uint32_t n = 0; n < CALLS * WAYS; n++) {
        uint32_t way = n % WAYS, n_call = 1 + n / WAYS;
        plain a, b;
        plain_open(&a, client, &realm, 60000000 + 1000 * n, 0x11);
        plain_open(&b, client, &realm, 70000000 + 1000 * n, 0x22);
        set_delay(SLOW_US, n + 1);
        if (way == 0)
            fail_call(n_call);
        kvt_encode_device(a.lease, 0, 4, &a.layout, NULL, a.stream);
        if (way > 0)
            fail_call(n_call);
        if (way == 1)
            kvt_seal(a.lease, NULL);
        if (way == 2)
            kvt_release(a.lease);
        fail_call(0);
        CHECK_EQ(last_error(), 0);
        kvt_status status = kvt_encode_device(b.lease, 0, 4, &b.layout, NULL, b.stream);
        GPU_CALL("cudaStreamSynchronize", (void *), b.stream);
        GPU_CALL("cudaStreamSynchronize", (void *), a.stream);
        if (status == KVT_OK)
            kvt_seal(b.lease, NULL);
        set_delay(0, 1);
        n_held += plain_check(&b, 0x22, n_call) > 0;
        if (way == 2)
            a.lease = NULL;
        plain_close(&a);
        plain_close(&b);
    }
    set_delay(USUAL_US, 1);
    CHECK(n_held > CALLS * WAYS / 3); /* there is room where A has given its own back */
    kvt_close(client);
}

/* --- other threads ------------------------------------------------------------------------------
 */

typedef struct layer_job {
    plain *p;
    uint32_t layer;
} layer_job;

static void *decode_layer(void *context) {
    const layer_job *job = context;
    kvt_layout to = kvt_layout_at_layer(&job->p->layout, job->layer);
    CHECK_EQ(
        kvt_decode_device(job->p->lease, 0, PLAIN_TOKENS, job->layer, 1, &to, NULL, GPU_PER_THREAD),
        KVT_OK);
    return NULL;
}

static void *encode_all(void *context) {
    const plain *p = context;
    CHECK_EQ(kvt_encode_device(p->lease, 0, 4, &p->layout, NULL, GPU_PER_THREAD), KVT_OK);
    return NULL;
}

static void run_in_thread(void *(*run)(void *), void *context) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, context) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* What was decoded is there when kvt_sync says so. */
static void plain_is_there(const plain *p, int byte, uint32_t round) {
    static uint8_t bytes[E2E_PART_BYTES];
    size_t n = (size_t)(E2E_LAYERS * p->layout.layer_stride_bytes[0]);
    for (int i = 0; i < 2; i++) {
        gpu_get(bytes, p->part[i], n);
        for (size_t at = 0; at < n; at++)
            CHECK_MSG(bytes[at] == byte, "round %u: byte %zu is %d, not %d", round, at, bytes[at],
                      byte);
    }
}

/* cudaStreamPerThread is another stream in each thread, also in one that was started when the last
 * had ended and has its pthread_t, and in the one that waits: also if a call of that one fails. */
static void test_threads(const e2e_daemon *d) {
    enum { ROUNDS = 6, SLOW_US = 50000, USUAL_US = 20000 };
    kvt_options options = {.socket = d->socket, .staging_pages = 4};
    kvt_realm realm;
    kvt_client *client;
    void (*fail_call)(uint64_t), (*set_delay)(unsigned, uint64_t);
    *(void **)(void *)&fail_call = gpu_symbol("fake_cuda_fail_call");
    *(void **)(void *)&set_delay = gpu_symbol("fake_cuda_set_delay");
    e2e_realm(&realm);
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_OK);
    for (uint32_t n = 0; n < ROUNDS; n++) {
        plain p;
        int byte = 0x31 + (int)n;
        plain_open(&p, client, &realm, 65000000 + 1000 * n, byte);
        set_delay(n ? SLOW_US : 0, n + 1);
        run_in_thread(encode_all, &p);
        fail_call(n % 2);
        CHECK_EQ(kvt_seal(p.lease, NULL), KVT_OK);
        fail_call(0);
        for (int i = 0; i < 2; i++)
            gpu_set(p.part[i], 0xee, E2E_PART_BYTES, p.stream);
        GPU_CALL("cudaStreamSynchronize", (void *), p.stream);
        for (uint32_t layer = 0; layer < E2E_LAYERS; layer++)
            run_in_thread(decode_layer, &(layer_job){&p, layer});
        fail_call(n % 2);
        CHECK_EQ(kvt_sync(p.lease), KVT_OK);
        fail_call(0);
        plain_is_there(&p, byte, n);
        set_delay(0, 1);
        plain_close(&p);
    }
    set_delay(USUAL_US, 1);
    kvt_close(client);
}

/* --- a lease that is lost -----------------------------------------------------------------------
 */

static void (*gpu_hang)(int);
static atomic_int goes_on;

/* Late enough for a call that does not wait to be back: then it is seen. */
static void *go_on_late(void *context) {
    (void)context;
    poll(NULL, 0, 200);
    atomic_store(&goes_on, 1);
    gpu_hang(0);
    return NULL;
}

/* The daemon is another: the lease is lost, and its work is still under way. Whoever hears so gives
 * the memory to other sequences: not before the work is done. */
static void test_lost_lease(void) {
    static const char *const settings[] = {"arena=4MiB", "max_pages=400", "grace_ms=200", NULL};
    kvt_options options = {.timeout_ms = 20000};
    kvt_realm realm;
    kvt_client *client;
    kvt_lease *lease;
    e2e_daemon d = {0};
    uint32_t tokens[16];
    pthread_t thread;
    *(void **)(void *)&gpu_hang = gpu_symbol("fake_cuda_hang");
    e2e_start(&d, settings);
    options.socket = d.socket;
    e2e_realm(&realm);
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_OK);
    for (uint32_t way = 0; way < 4; way++) {
        plain p;
        plain_open(&p, client, &realm, 66000000 + 1000 * way, 0x44);
        CHECK_EQ(kvt_encode_device(p.lease, 0, 4, &p.layout, NULL, p.stream), KVT_OK);
        CHECK_EQ(kvt_seal(p.lease, NULL), KVT_OK);
        gpu_hang(1);
        CHECK_EQ(
            kvt_decode_device(p.lease, 0, PLAIN_TOKENS, 0, E2E_LAYERS, &p.layout, NULL, p.stream),
            KVT_OK);
        CHECK(WIFSIGNALED(e2e_stop(&d, SIGKILL)));
        e2e_start(&d, settings);
        for (uint32_t t = 0; t < 16; t++)
            tokens[t] = 67000000 + t;
        kvt_status status;
        while ((status = kvt_acquire(client, tokens, 16, 0, &lease)) == KVT_ECONN)
            ;
        CHECK_EQ(status, KVT_OK);
        CHECK_EQ(kvt_release(lease), KVT_OK);
        atomic_store(&goes_on, 0);
        CHECK(pthread_create(&thread, NULL, go_on_late, NULL) == 0);
        status = way == 0   ? kvt_sync(p.lease)
                 : way == 1 ? kvt_seal(p.lease, NULL)
                 : way == 2 ? kvt_wait(p.lease, 0, 0)
                            : kvt_extend(p.lease, 16, tokens, 1, 0);
        CHECK_EQ(status, KVT_ESTALE);
        CHECK_MSG(atomic_load(&goes_on), "way %u did not wait", way);
        GPU_CALL("cudaStreamQuery", (void *), p.stream);
        CHECK(pthread_join(thread, NULL) == 0);
        kvt_release(p.lease);
        for (int i = 0; i < 2; i++)
            gpu_free(p.part[i]);
        gpu_stream_free(p.stream);
    }
    kvt_close(client);
    e2e_finish(&d);
}

static void check_lost(kvt_status status) {
    CHECK_EQ(status, KVT_EIO);
    CHECK_MSG(strstr(kvt_last_error(), "the GPU 0000:01:00.0") &&
                  strstr(kvt_last_error(), "CUDA says cudaErrorLaunchFailure"),
              "%s", kvt_last_error());
}

/* The worker's own GPU is lost, with work under way: whatever it calls says so, and of which GPU.
 */
static void test_lost_gpu(const e2e_daemon *d) {
    e2e_worker w;
    uint32_t tokens[40], more[40];
    kvt_layout layout, host;
    kvt_device_pages pages;
    kvt_lease *written;
    void (*lose)(uint64_t);
    *(void **)(void *)&lose = gpu_symbol("fake_cuda_lose_at");
    e2e_worker_open(&w, d, 17, 20000);
    kvt_layout_token_major(&w.realm.geometry, 40, w.gpu_part[0], w.gpu_part[1], &layout);
    kvt_layout_token_major(&w.realm.geometry, 40, w.part[0], w.part[1], &host);
    kvt_lease *lease = e2e_filled(&w, tokens, 40, 80000000);
    for (uint32_t t = 0; t < 40; t++)
        more[t] = t < 20 ? tokens[t] : 81000000 + t;
    for (int way = 0; way < 2; way++) {
        CHECK_EQ(kvt_acquire(w.client, more, 40, KVT_CLAIM, &written), KVT_OK);
        CHECK_MSG(kvt_encode_device(written, 2, 1, &layout, NULL, w.stream) == KVT_OK, "%s",
                  kvt_last_error());
        CHECK_EQ(kvt_decode_device(lease, 0, 40, 0, E2E_LAYERS, &layout, NULL, w.stream), KVT_OK);
        lose(1);
        if (way == 0) {
            check_lost(kvt_decode_device(lease, 0, 40, 0, E2E_LAYERS, &layout, NULL, w.stream));
            check_lost(kvt_encode_device(written, 1, 1, &layout, NULL, w.stream));
            check_lost(kvt_pages_device(lease, 0, 40, w.stream, &pages));
            check_lost(kvt_decode(lease, 0, 40, 0, E2E_LAYERS, &host));
            check_lost(kvt_encode(written, 1, &host)); /* its first rows are held */
            check_lost(kvt_seal(written, NULL));
            check_lost(kvt_sync(lease));
            check_lost(kvt_sync(lease));
        }
        check_lost(kvt_release(lease));
        lose(0);
        CHECK_EQ(kvt_release(written), KVT_OK); /* it has decoded nothing */
        CHECK_EQ(kvt_acquire(w.client, tokens, 40, 0, &lease), KVT_OK);
    }
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
}

int main(int argc, char **argv) {
    const char *const settings[] = {"arena=4MiB", "max_pages=400", "grace_ms=60000", NULL};
    e2e_daemon d = {0};
    (void)argv;
    if (!e2e_on_gpu() || getenv("KVT_TEST_CUDART")) {
        printf("skipped: this needs the stand-in for CUDA\n");
        return 77;
    }
    e2e_start(&d, settings);
    test_areas(&d);
    test_full_gpu(&d);
    if (argc == 1) {
        test_failed_calls(&d);
        test_threads(&d);
        test_lost_gpu(&d);
        test_failed_gpu(&d, settings);
        test_failed_gpu_at_open(&d, settings);
    }
    e2e_finish(&d);
    test_areas_in_doubt();
    test_unpinned();
    test_lost_lease();
    return 0;
}
