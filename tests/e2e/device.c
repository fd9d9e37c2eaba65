/*
 * device.c - what only a worker with KV on a GPU does: paged caches by block tables, several pages
 * in a launch, copy-on-write between device memories, and the order of things between its stream,
 * the host, the daemon and other processes. And what becomes of daemon and workers when a process
 * is killed with work under way.
 *
 * Only with KVT_TEST_DEVICE=cuda. With an argument: without the deaths and the pressure, for the
 * planted bugs.
 */
#include "kernels/kernels.h"
#include "tests/e2e/e2e.h"
#include "tests/e2e/gpu.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 150, HEADS = 2, ROW_BYTES = 64, MAX_BLOCKS = 64 };

static uint64_t seed = 4;

/* --- paged caches -------------------------------------------------------------------------------
 */

/* A cache of blocks in device memory, whose blocks are [block_tokens][head][dim] or
 * [head][block_tokens][dim], and a table that shuffles them. */
typedef struct paged {
    uint32_t block_tokens, n_blocks;
    int head_major;
    size_t layer_bytes;
    uint8_t *host[2], *device[2];
    uint32_t blocks[MAX_BLOCKS];
    kvt_block_table table;
    kvt_layout layout, host_layout;
} paged;

static void paged_open(paged *c, uint32_t block_tokens, int head_major) {
    c->block_tokens = block_tokens;
    c->head_major = head_major;
    c->n_blocks = (TOKENS + block_tokens - 1) / block_tokens;
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        uint32_t j = check_below(&seed, i + 1);
        c->blocks[i] = c->blocks[j];
        c->blocks[j] = i;
    }
    c->table = (kvt_block_table){c->blocks, c->n_blocks, block_tokens,
                                 head_major ? HEADS * block_tokens : 0};
    c->layer_bytes = (size_t)c->n_blocks * block_tokens * HEADS * ROW_BYTES;
    for (int p = 0; p < 2; p++) {
        c->host[p] = malloc(E2E_LAYERS * c->layer_bytes);
        c->device[p] = gpu_memory(E2E_LAYERS * c->layer_bytes);
        c->layout.part[p] = c->device[p];
        c->layout.layer_stride_bytes[p] = c->layer_bytes;
        c->layout.head_stride_bytes[p] = head_major ? block_tokens * ROW_BYTES : ROW_BYTES;
        c->layout.token_stride_bytes[p] = head_major ? ROW_BYTES : HEADS * ROW_BYTES;
    }
}

static void paged_close(paged *c) {
    for (int p = 0; p < 2; p++) {
        free(c->host[p]);
        gpu_free(c->device[p]);
    }
}

/* The row of a token of the path; written out anew, not taken from the layout. */
static uint8_t *paged_row(const paged *c, int part, uint32_t layer, uint32_t head, uint32_t token) {
    uint32_t block = c->blocks[token / c->block_tokens], in_block = token % c->block_tokens;
    uint32_t row = c->head_major ? (block * HEADS + head) * c->block_tokens + in_block
                                 : (block * c->block_tokens + in_block) * HEADS + head;
    return c->host[part] + layer * c->layer_bytes + (size_t)row * ROW_BYTES;
}

/* Between the cache's host copy and the worker's own plain layout. */
static void paged_move(paged *c, e2e_worker *w, uint32_t n_tokens, int to_cache) {
    for (int p = 0; p < 2; p++)
        for (uint32_t l = 0; l < E2E_LAYERS; l++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t t = 0; t < n_tokens; t++) {
                    uint8_t *plain = (uint8_t *)w->part[p] +
                                     (((size_t)l * n_tokens + t) * HEADS + h) * ROW_BYTES;
                    uint8_t *row = paged_row(c, p, l, h, t);
                    memcpy(to_cache ? row : plain, to_cache ? plain : row, ROW_BYTES);
                }
}

static void paged_put(paged *c) {
    for (int p = 0; p < 2; p++)
        gpu_put(c->device[p], c->host[p], E2E_LAYERS * c->layer_bytes);
}

/* All that is held, read into the cache and checked. Every byte beside it stays as it was. */
static void paged_read(paged *c, e2e_worker *w, kvt_lease *lease, const uint32_t *tokens) {
    kvt_lease_info info;
    kvt_layout plain;
    kvt_lease_get(lease, &info);
    for (int p = 0; p < 2; p++)
        memset(c->host[p], 0x77, E2E_LAYERS * c->layer_bytes);
    paged_put(c);
    kvt_layout to = c->layout;
    for (uint32_t l = 0; l < E2E_LAYERS; l++) {
        CHECK_MSG(kvt_decode_device(lease, 0, info.held_tokens, l, 1, &to, &c->table, w->stream) ==
                      KVT_OK,
                  "%s", kvt_last_error());
        for (int p = 0; p < 2; p++)
            to.part[p] = (char *)to.part[p] + to.layer_stride_bytes[p];
    }
    CHECK_EQ(kvt_sync(lease), KVT_OK);
    for (int p = 0; p < 2; p++)
        gpu_get(c->host[p], c->device[p], E2E_LAYERS * c->layer_bytes);
    for (uint32_t t = info.held_tokens; t < TOKENS; t++)
        for (uint32_t i = 0; i < ROW_BYTES; i++)
            CHECK_EQ(paged_row(c, t % 2, 0, 1, t)[i], 0x77);
    paged_move(c, w, info.held_tokens, 0);
    kvt_layout_token_major(&w->realm.geometry, info.held_tokens, w->part[0], w->part[1], &plain);
    oracle_rows(&w->oracle, tokens, info.held_tokens, w->row_hashes);
    CHECK_EQ(oracle_check(&w->oracle, w->row_hashes, info.held_tokens, 0, E2E_LAYERS, &plain), 0);
}

/* The whole path stands in the cache as the worker has computed it; what is missing is encoded from
 * there, all of it in one launch, and the cache is overwritten behind it. */
static void paged_fill(paged *c, e2e_worker *w, kvt_lease *lease, const uint32_t *tokens) {
    kvt_lease_info info;
    kvt_layout plain;
    size_t sealed;
    kvt_lease_get(lease, &info);
    oracle_rows(&w->oracle, tokens, info.n_tokens, w->row_hashes);
    kvt_layout_token_major(&w->realm.geometry, info.n_tokens, w->part[0], w->part[1], &plain);
    oracle_fill(&w->oracle, w->row_hashes, info.n_tokens, 0, E2E_LAYERS, &plain);
    paged_move(c, w, info.n_tokens, 1);
    paged_put(c);
    uint32_t first = info.held_tokens / E2E_PAGE_TOKENS;
    uint32_t end = (info.n_tokens + E2E_PAGE_TOKENS - 1) / E2E_PAGE_TOKENS;
    CHECK_MSG(kvt_encode_device(lease, first, end - first, &c->layout, &c->table, w->stream) ==
                  KVT_OK,
              "%s", kvt_last_error());
    for (int p = 0; p < 2; p++)
        gpu_set(c->device[p], 0x11, E2E_LAYERS * c->layer_bytes, w->stream);
    CHECK_MSG(kvt_seal(lease, &sealed) == KVT_OK, "%s", kvt_last_error());
    CHECK_EQ(sealed, info.n_tokens);
    GPU_CALL("cudaStreamSynchronize", (void *), w->stream);
}

/* Prompts that share beginnings, ends inside pages and blocks: written by one worker's GPU, read by
 * the other's. */
static void test_paged(const e2e_daemon *d) {
    static const uint32_t block_tokens[] = {16, 4, 24, 64, 5};
    e2e_worker a, b;
    e2e_worker_open(&a, d, 1, 20000);
    e2e_worker_open(&b, d, 3, 20000);
    for (uint32_t i = 0; i < 2 * sizeof block_tokens / sizeof block_tokens[0]; i++) {
        paged from = {0}, to = {0};
        paged_open(&from, block_tokens[i / 2], i % 2);
        paged_open(&to, block_tokens[(i / 2 + 1) % 5], !(i % 2));
        uint32_t tokens[TOKENS];
        for (uint32_t t = 0; t < TOKENS; t++)
            tokens[t] = 1000 * i + t;
        for (uint32_t n = 7; n <= TOKENS; n += 1 + check_below(&seed, 60)) {
            kvt_lease *lease;
            if (n > 40 && check_below(&seed, 2))
                tokens[check_below(&seed, n)] += 100000;
            CHECK_EQ(kvt_acquire(a.client, tokens, n, KVT_CLAIM, &lease), KVT_OK);
            paged_fill(&from, &a, lease, tokens);
            CHECK_EQ(kvt_release(lease), KVT_OK);
            CHECK_EQ(kvt_acquire(b.client, tokens, n, 0, &lease), KVT_OK);
            paged_read(&to, &b, lease, tokens);
            CHECK_EQ(kvt_release(lease), KVT_OK);
        }
        paged_close(&from);
        paged_close(&to);
    }
    e2e_worker_close(&a);
    e2e_worker_close(&b);
}

/* --- order --------------------------------------------------------------------------------------
 */

static void check_read(e2e_worker *w, const uint32_t *tokens, uint32_t n, const kvt_layout *plain) {
    for (int p = 0; p < 2; p++)
        gpu_get(w->part[p], w->gpu_part[p], E2E_PART_BYTES);
    oracle_rows(&w->oracle, tokens, n, w->row_hashes);
    CHECK_EQ(oracle_check(&w->oracle, w->row_hashes, n, 0, E2E_LAYERS, plain), 0);
}

/* A worker, and where rows of n tokens are to go: in host memory, and likewise on the GPU. */
static void open_two_layouts(e2e_worker *w, const e2e_daemon *d, uint64_t number, uint32_t n,
                             kvt_layout *ret_plain, kvt_layout *ret_to) {
    e2e_worker_open(w, d, number, 20000);
    kvt_layout_token_major(&w->realm.geometry, n, w->part[0], w->part[1], ret_plain);
    kvt_layout_token_major(&w->realm.geometry, n, w->gpu_part[0], w->gpu_part[1], ret_to);
}

/* Waits of this process that took a core, on a GPU. */
static uint64_t spins(void) {
    uint64_t (*n)(void);
    if (getenv("KVT_TEST_CUDART"))
        return 0;
    *(void **)(void *)&n = gpu_symbol("fake_cuda_spins");
    return n();
}

/* Nobody waits for a stream but the calls that say so: behind each of them, what was decoded is
 * there, and the frames could go to others. The bytes are looked at by another stream. */
static void test_waits(const e2e_daemon *d) {
    enum { N = 90 };
    e2e_worker w;
    uint32_t tokens[N];
    kvt_layout plain, to;
    open_two_layouts(&w, d, 5, N, &plain, &to);
    for (int way = 0; way < 4; way++) {
        kvt_lease *lease = e2e_filled(&w, tokens, N, 7000000 + 1000 * (uint32_t)way);
        uint32_t more = 1;
        for (int p = 0; p < 2; p++)
            gpu_put(w.gpu_part[p], w.part[p], E2E_PART_BYTES);
        for (uint32_t first = 0; first < N; first += 45) { /* parts are plans of their own */
            kvt_layout part = to;
            for (int p = 0; p < 2; p++)
                part.part[p] = (char *)to.part[p] + first * to.token_stride_bytes[p];
            CHECK_EQ(kvt_decode_device(lease, first, 45, 0, E2E_LAYERS, &part, NULL, w.stream),
                     KVT_OK);
        }
        uint64_t before = spins();
        if (way == 0)
            CHECK_EQ(kvt_sync(lease), KVT_OK);
        if (way == 1)
            CHECK_EQ(kvt_extend(lease, 10, &more, 1, 0), KVT_OK);
        if (way == 2)
            CHECK_EQ(kvt_wait(lease, 0, 0), KVT_OK);
        if (way == 3)
            CHECK_EQ(kvt_release(lease), KVT_OK);
        CHECK_EQ(spins(), before);
        check_read(&w, tokens, N, &plain);
        before = spins();
        if (way == 0)
            CHECK_EQ(kvt_decode(lease, 0, N, 0, E2E_LAYERS, &plain), KVT_OK);
        CHECK_EQ(spins(), before);
        if (way != 3)
            CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    e2e_worker_close(&w);
}

/* With kvt_close, too; the lease is given back afterwards. */
static void test_close(const e2e_daemon *d) {
    enum { N = 50 };
    e2e_worker w;
    uint32_t tokens[N];
    kvt_layout plain, to;
    open_two_layouts(&w, d, 9, N, &plain, &to);
    kvt_lease *lease = e2e_filled(&w, tokens, N, 8000000);
    CHECK_EQ(kvt_decode_device(lease, 0, N, 0, E2E_LAYERS, &to, NULL, w.stream), KVT_OK);
    kvt_close(w.client);
    check_read(&w, tokens, N, &plain);
    CHECK_EQ(kvt_release(lease), KVT_ECLOSED);
    w.client = NULL;
    e2e_worker_close(&w);
}

/* Layer 1, in a thread whose own stream is another than that of layer 0. */
typedef struct one_layer {
    kvt_lease *lease;
    kvt_layout to;
    void *stream;
    kvt_status status;
} one_layer;

static void *decode_layer(void *argument) {
    one_layer *l = argument;
    for (int p = 0; p < 2; p++)
        gpu_set((char *)l->to.part[p] + l->to.layer_stride_bytes[p], 0x33,
                l->to.layer_stride_bytes[p], l->stream);
    for (int p = 0; p < 2; p++)
        l->to.part[p] = (char *)l->to.part[p] + l->to.layer_stride_bytes[p];
    l->status = kvt_decode_device(l->lease, 0, 90, 1, 1, &l->to, NULL, l->stream);
    return NULL;
}

/* The names of CUDA's default streams mean those of the thread that calls: what that thread has put
 * there comes before. */
static void test_default_streams(const e2e_daemon *d) {
    enum { N = 90 };
    void *const streams[] = {NULL, GPU_LEGACY, GPU_PER_THREAD};
    e2e_worker w;
    uint32_t tokens[N];
    kvt_layout plain, to;
    open_two_layouts(&w, d, 15, N, &plain, &to);
    for (uint32_t i = 0; i < 9; i++) {
        kvt_lease *lease = e2e_filled(&w, tokens, N, 44000000 + 1000 * i);
        one_layer other = {lease, to, streams[i % 3], KVT_EINVAL};
        pthread_t thread;
        kvt_device_pages pages;
        for (int p = 0; p < 2; p++)
            gpu_set(to.part[p], 0x22, to.layer_stride_bytes[p], streams[i % 3]);
        CHECK_EQ(kvt_decode_device(lease, 0, N, 0, 1, &to, NULL, streams[i % 3]), KVT_OK);
        CHECK(pthread_create(&thread, NULL, decode_layer, &other) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK_MSG(other.status == KVT_OK, "%s", kvt_status_name(other.status));
        CHECK_EQ(kvt_pages_device(lease, 0, N, streams[i % 3], &pages),
                 i % 3 == 2 ? KVT_EINVAL : KVT_OK);
        CHECK_EQ(kvt_sync(lease), KVT_OK);
        check_read(&w, tokens, N, &plain);
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    e2e_worker_close(&w);
}

static void refused_capture(kvt_status status) {
    CHECK_EQ(status, KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), "captured"), "%s", kvt_last_error());
}

/* No call is part of a graph; and none disturbs one that another stream's work is captured in, with
 * all that allocates and waits. */
static void test_capture(const e2e_daemon *d) {
    enum { N = 200 };
    e2e_worker w;
    uint32_t tokens[N];
    kvt_device_pages pages;
    void *graph, *other = gpu_stream();
    kvt_layout plain, to;
    open_two_layouts(&w, d, 17, N, &plain, &to);
    kvt_lease *lease = e2e_filled(&w, tokens, N, 45000000);
    GPU_CALL("cudaStreamBeginCapture", (void *, int), other, 0);
    refused_capture(kvt_decode_device(lease, 0, N, 0, 1, &to, NULL, other));
    refused_capture(kvt_encode_device(lease, 0, 1, &to, NULL, other));
    refused_capture(kvt_pages_device(lease, 0, N, other, &pages));
    for (uint32_t first = 0; first < N; first += 10) { /* ever more plans: memory is allocated */
        kvt_layout part = to;
        for (int p = 0; p < 2; p++)
            part.part[p] = (char *)to.part[p] + first * to.token_stride_bytes[p];
        CHECK_MSG(kvt_decode_device(lease, first, 10, 0, E2E_LAYERS, &part, NULL, w.stream) ==
                      KVT_OK,
                  "%s", kvt_last_error());
    }
    CHECK_EQ(kvt_decode_device(lease, 0, 10, 0, 1, &to, NULL, NULL), KVT_OK);
    CHECK_EQ(kvt_sync(lease), KVT_OK);
    GPU_CALL("cudaStreamEndCapture", (void *, void **), other, &graph);
    check_read(&w, tokens, N, &plain);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    gpu_stream_free(other);
}

static void refused_beside(kvt_status status) {
    CHECK_EQ(status, KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), "not the default one while others are captured"), "%s",
              kvt_last_error());
    int (*last_error)(void); /* which the engine would take for its own */
    *(void **)(void *)&last_error = gpu_symbol("cudaPeekAtLastError");
    CHECK_EQ(last_error(), 0);
}

/* A capture in a stream that blocks with the default one: that can take nothing meanwhile, nor be
 * waited for, and a call that tried would spoil the capture. */
static void test_capture_beside_default(const e2e_daemon *d) {
    enum { N = 50 };
    e2e_worker w;
    uint32_t tokens[N];
    kvt_device_pages pages;
    void *graph, *blocking;
    GPU_CALL("cudaStreamCreateWithFlags", (void **, unsigned), &blocking, 0);
    e2e_worker_open(&w, d, 19, 20000);
    kvt_layout to;
    kvt_layout_token_major(&w.realm.geometry, N, w.gpu_part[0], w.gpu_part[1], &to);
    for (int way = 0; way < 3; way++) {
        void *stream = way == 1 ? GPU_LEGACY : NULL;
        kvt_lease *lease = e2e_filled(&w, tokens, N, 46000000 + 1000 * (uint32_t)way);
        if (way == 2)
            CHECK_EQ(kvt_pages_device(lease, 0, N, stream, &pages), KVT_OK);
        GPU_CALL("cudaStreamBeginCapture", (void *, int), blocking, 0);
        refused_beside(kvt_decode_device(lease, 0, N, 0, 1, &to, NULL, stream));
        refused_beside(kvt_encode_device(lease, 0, 1, &to, NULL, stream));
        refused_beside(kvt_pages_device(lease, 0, N, stream, &pages));
        CHECK_EQ(kvt_decode_device(lease, 0, N, 0, E2E_LAYERS, &to, NULL, w.stream), KVT_OK);
        CHECK_EQ(kvt_sync(lease), way == 2 ? KVT_EIO : KVT_OK);
        if (way == 2)
            CHECK_MSG(strstr(kvt_last_error(), "cannot be waited for"), "%s", kvt_last_error());
        GPU_CALL("cudaStreamEndCapture", (void *, void **), blocking, &graph);
        CHECK_EQ(kvt_release(lease), way == 2 ? KVT_EIO : KVT_OK);
    }
    e2e_worker_close(&w);
    gpu_stream_free(blocking);
}

/* Frames are so few that each goes to another page as soon as it is let go of. What was decoded is
 * looked at only after the lease was given back with KVT_OK: then it has to be right. */
static int squeezed(const e2e_daemon *d, uint64_t number) {
    enum { N = 5 * E2E_PAGE_TOKENS, ROUNDS = 40 };
    e2e_worker w;
    uint32_t tokens[N];
    int n_right = 0;
    kvt_layout plain, to;
    open_two_layouts(&w, d, number, N, &plain, &to);
    for (int round = 0; round < ROUNDS; round++) {
        kvt_lease *lease;
        kvt_lease_info info;
        for (uint32_t t = 0; t < N; t++)
            tokens[t] = (uint32_t)(number * 100000 + (uint64_t)round * 1000) + t;
        CHECK_EQ(kvt_acquire(w.client, tokens, N, KVT_CLAIM, &lease), KVT_OK);
        kvt_status status = e2e_fill(&w, lease, tokens, SIZE_MAX);
        CHECK(status == KVT_OK || status == KVT_EFULL);
        kvt_lease_get(lease, &info);
        uint32_t n = info.held_tokens;
        for (int p = 0; p < 2; p++)
            gpu_put(w.gpu_part[p], w.part[p], E2E_PART_BYTES);
        CHECK_EQ(kvt_decode_device(lease, 0, n, 0, E2E_LAYERS, &to, NULL, w.stream), KVT_OK);
        CHECK_EQ(kvt_release(lease), KVT_OK);
        check_read(&w, tokens, n, &plain);
        n_right += n > 0;
    }
    CHECK(n_right > ROUNDS / 4);
    e2e_worker_close(&w);
    return 0;
}

static void test_squeeze(void) {
    enum { WORKERS = 3 };
    const char *const settings[] = {"arena=1MiB", "max_pages=14", NULL};
    e2e_daemon d = {0};
    e2e_child children[WORKERS];
    e2e_start(&d, settings);
    for (uint64_t i = 0; i < WORKERS; i++)
        children[i] = e2e_spawn(&d, "squeezed", 2 * i + 1);
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQ(e2e_child_end(&children[i]), 0);
    CHECK(e2e_count(&d, "pages_evicted") > 100);
    e2e_finish(&d);
}

/* With the second part of the layout there. */
static void refuse_memory(kvt_lease *lease, const kvt_layout *layout, void *part, const char *words,
                          void *stream) {
    kvt_layout wrong = *layout;
    wrong.part[1] = part;
    CHECK_EQ(kvt_decode_device(lease, 0, 1, 0, 1, &wrong, NULL, stream), KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), "to->part[1]") && strstr(kvt_last_error(), words) &&
                  strstr(kvt_last_error(), "kvt_decode and kvt_encode are for"),
              "%s", kvt_last_error());
    CHECK_EQ(kvt_encode_device(lease, 0, 1, &wrong, NULL, stream), KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), "from->part[1]"), "%s", kvt_last_error());
}

/* A kernel would take the process's GPU down at the first element that is not at a multiple of 2
 * bytes; and rows that overlap are nobody's. By decoding, and by encoding if it `claims`. */
static void refuse_layouts(kvt_lease *lease, const kvt_layout *good, int claims, void *stream) {
    static const char *const words[] = {"->part[1] is 0x",
                                        "->token_stride_bytes[1] is 129",
                                        "->token_stride_bytes[1] is 0",
                                        "->head_stride_bytes[1] is 62",
                                        "->layer_stride_bytes[1] is 1",
                                        "->part[1] would overlap",
                                        "->token_stride_bytes[1] is 129"};
    uint32_t numbers[] = {3, 1, 2, 0};
    kvt_block_table table = {numbers, 4, 16, 0}, tiny = {numbers, 4, 1, 0};
    for (int wrong = 0; wrong < 7; wrong++) {
        kvt_layout bad = *good;
        const kvt_block_table *blocks = wrong % 2 ? &table : NULL;
        if (wrong == 0)
            bad.part[1] = (char *)bad.part[1] + 1;
        if (wrong == 1 || wrong == 2 || wrong == 6)
            bad.token_stride_bytes[1] = wrong == 2 ? 0 : 129;
        if (wrong == 3)
            bad.head_stride_bytes[1] = 62;
        if (wrong == 4)
            bad.layer_stride_bytes[1] = 1;
        if (wrong == 5)
            bad.token_stride_bytes[1] = bad.head_stride_bytes[1];
        if (wrong == 6)
            blocks = &tiny;
        kvt_status status = claims ? kvt_encode_device(lease, 0, 1, &bad, blocks, stream)
                                   : kvt_decode_device(lease, 0, wrong == 6 ? 1 : 32, 0, E2E_LAYERS,
                                                       &bad, blocks, stream);
        CHECK_EQ(status, KVT_EINVAL);
        CHECK_MSG(strstr(kvt_last_error(), words[wrong]), "%s", kvt_last_error());
    }
}

static void test_arguments(const e2e_daemon *d) {
    e2e_worker w;
    uint32_t tokens[40];
    e2e_worker_open(&w, d, 11, 20000);
    kvt_lease *lease = e2e_filled(&w, tokens, 40, 9000000);
    kvt_layout to;
    kvt_layout_token_major(&w.realm.geometry, 40, w.gpu_part[0], w.gpu_part[1], &to);
    uint32_t blocks[4] = {0, 1, 2, 3};
    kvt_block_table table = {blocks, 2, 16, 0}, none = {blocks, 4, 0, 0};
    CHECK_EQ(kvt_decode_device(NULL, 0, 1, 0, 1, &to, NULL, w.stream), KVT_EINVAL);
    CHECK_EQ(kvt_decode_device(lease, 0, 1, 0, 1, NULL, NULL, w.stream), KVT_EINVAL);
    CHECK_EQ(kvt_decode_device(lease, 0, 41, 0, 1, &to, NULL, w.stream), KVT_EINVAL);
    CHECK_EQ(kvt_decode_device(lease, 0, 40, 1, 2, &to, NULL, w.stream), KVT_EINVAL);
    CHECK_EQ(kvt_decode_device(lease, 0, 40, 0, 1, &to, &table, w.stream), KVT_EINVAL);
    CHECK_EQ(kvt_decode_device(lease, 0, 32, 0, 1, &to, &table, w.stream), KVT_OK);
    CHECK_EQ(kvt_decode_device(lease, 0, 32, 0, 1, &to, &none, w.stream), KVT_EINVAL);
    CHECK_EQ(kvt_decode_device(lease, 0, 0, 0, 1, &to, NULL, w.stream), KVT_OK);
    CHECK_EQ(kvt_decode_device(lease, 0, 40, 0, 0, &to, NULL, w.stream), KVT_OK);
    CHECK_EQ(kvt_encode_device(lease, 0, 4, &to, NULL, w.stream), KVT_EINVAL); /* has 3 */
    CHECK_EQ(kvt_encode_device(lease, SIZE_MAX, 1, &to, NULL, w.stream), KVT_EINVAL);
    CHECK_EQ(kvt_encode_device(lease, 0, 0, &to, NULL, w.stream), KVT_OK);
    void *pinned = gpu_pinned(E2E_PART_BYTES);
    refuse_memory(lease, &to, w.part[1], "is host memory", w.stream);
    refuse_memory(lease, &to, pinned, "is pinned host memory", w.stream);
    refuse_memory(lease, &to, (void *)(uintptr_t)4096, "no memory at all", w.stream);
    GPU_CALL("cudaFreeHost", (void *), pinned);
    refuse_layouts(lease, &to, 0, w.stream);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    for (uint32_t t = 0; t < 40; t++)
        tokens[t] += 1000;
    CHECK_EQ(kvt_acquire(w.client, tokens, 40, KVT_CLAIM, &lease), KVT_OK);
    refuse_layouts(lease, &to, 1, w.stream);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
}

/* Encoded and never sealed; encoded twice; more than there is room for. */
static void test_unsealed(const e2e_daemon *d) {
    kvt_options options = {.socket = d->socket, .staging_pages = 3};
    kvt_realm realm;
    kvt_client *client;
    kvt_lease *lease;
    uint32_t tokens[80];
    void *part[2] = {gpu_memory(E2E_PART_BYTES), gpu_memory(E2E_PART_BYTES)},
         *stream = gpu_stream();
    kvt_layout from;
    e2e_realm(&realm);
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_OK);
    kvt_layout_token_major(&realm.geometry, 80, part[0], part[1], &from);
    for (int p = 0; p < 2; p++)
        gpu_set(part[p], 0, E2E_PART_BYTES, stream);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t t = 0; t < 80; t++)
            tokens[t] = 10000000 + 1000 * round + t;
        CHECK_EQ(kvt_acquire(client, tokens, 80, KVT_CLAIM, &lease), KVT_OK);
        CHECK_EQ(kvt_encode_device(lease, 0, 5, &from, NULL, stream), KVT_EFULL);
        CHECK_EQ(kvt_encode_device(lease, 0, 2, &from, NULL, stream), KVT_OK);
        CHECK_EQ(kvt_encode_device(lease, 1, 1, &from, NULL, stream), KVT_OK);
        CHECK_EQ(kvt_encode_device(lease, 2, 1, &from, NULL, stream), KVT_OK);
        CHECK_EQ(kvt_encode_device(lease, 3, 1, &from, NULL, stream), KVT_EFULL);
        if (round == 1) {
            size_t sealed;
            CHECK_EQ(kvt_seal(lease, &sealed), KVT_OK);
            CHECK_EQ(sealed, 48);
            CHECK_EQ(kvt_encode_device(lease, 0, 5, &from, NULL, stream), KVT_OK); /* two of them */
        }
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    kvt_close(client);
    gpu_free(part[0]);
    gpu_free(part[1]);
    gpu_stream_free(stream);
}

/* --- a path's first tokens -----------------------------------------------------------------------
 */

enum { FIRST_DIM = 96, FIRST_N = 2 * E2E_PAGE_TOKENS + 5, FIRST_ELEMENTS = FIRST_N * FIRST_DIM };

/* Seals the rows of a path by the host or by the GPU, the first `head` of them by themselves, and
 * reads what became of them. from[0] is host memory, from[1] the same on the GPU. */
static void seal_and_read(kvt_client *client, uint32_t token, uint32_t head,
                          const kvt_layout from[2], void *stream,
                          uint16_t (*ret_rows)[FIRST_ELEMENTS], const kvt_geometry *geometry) {
    uint32_t tokens[FIRST_N], ends[2] = {head, FIRST_N};
    kvt_lease *lease;
    kvt_layout to;
    for (uint32_t t = 0; t < FIRST_N; t++)
        tokens[t] = token + t;
    for (int i = head > 0 ? 0 : 1; i < 2; i++) {
        size_t n_pages = (ends[i] + E2E_PAGE_TOKENS - 1) / E2E_PAGE_TOKENS;
        CHECK_EQ(kvt_acquire(client, tokens, ends[i], KVT_CLAIM, &lease), KVT_OK);
        if (stream)
            CHECK_EQ(kvt_encode_device(lease, 0, n_pages, &from[1], NULL, stream), KVT_OK);
        for (size_t page = 0; page < n_pages && !stream; page++) {
            kvt_layout here = from[0];
            for (int p = 0; p < 2; p++)
                here.part[p] =
                    (char *)here.part[p] + page * E2E_PAGE_TOKENS * here.token_stride_bytes[p];
            CHECK_EQ(kvt_encode(lease, page, &here), KVT_OK);
        }
        CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
        if (i == 1) {
            kvt_layout_token_major(geometry, FIRST_N, ret_rows[0], ret_rows[1], &to);
            CHECK_EQ(kvt_decode(lease, 0, FIRST_N, 0, 1, &to), KVT_OK);
        }
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
}

/* They stay as they are under a codec that loses bits, whoever encodes them, at once or in pieces;
 * and no others do. */
static void test_first_tokens(const e2e_daemon *d) {
    static uint16_t host[2][FIRST_ELEMENTS], got[2][2][FIRST_ELEMENTS];
    const uint32_t heads[] = {0, 1, 3, 4, 6};
    kvt_options options = {.socket = d->socket};
    kvt_realm realm;
    kvt_client *client;
    kvt_layout from[2];
    void *stream = gpu_stream(), *device[2];
    e2e_realm(&realm);
    kvt_geometry_init(&realm.geometry, 1, 1, FIRST_DIM, E2E_PAGE_TOKENS);
    realm.codec = "i4";
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_OK);
    for (int p = 0; p < 2; p++) {
        for (uint32_t i = 0; i < FIRST_ELEMENTS; i++)
            host[p][i] = (uint16_t)(0x3000 + check_below(&seed, 0x1000) + 0x8000 * (i % 2));
        device[p] = gpu_memory(sizeof host[p]);
        gpu_put(device[p], host[p], sizeof host[p]);
    }
    kvt_layout_token_major(&realm.geometry, FIRST_N, host[0], host[1], &from[0]);
    kvt_layout_token_major(&realm.geometry, FIRST_N, device[0], device[1], &from[1]);
    for (uint32_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        for (uint32_t by_gpu = 0; by_gpu < 2; by_gpu++)
            seal_and_read(client, 30000000 + 1000 * (2 * i + by_gpu), heads[i], from,
                          by_gpu ? stream : NULL, got[by_gpu], &realm.geometry);
        CHECK_MSG(memcmp(got[0], got[1], sizeof got[0]) == 0, "%u tokens before the others",
                  heads[i]);
        for (int p = 0; p < 2; p++)
            for (uint32_t t = 0; t < FIRST_N; t++) {
                size_t at = t * FIRST_DIM;
                int same = memcmp(&got[1][p][at], &host[p][at], 2 * FIRST_DIM) == 0;
                CHECK_MSG(same == (t < 4), "part %d, token %u is kept: %d", p, t, same);
            }
    }
    kvt_close(client);
    for (int p = 0; p < 2; p++)
        gpu_free(device[p]);
    gpu_stream_free(stream);
}

/* --- in place -----------------------------------------------------------------------------------
 */

/* The scores q . k of all rows, from rows that were decoded; within what rounding them costs. */
static void check_scores(const uint16_t *k, const float *q, const float *scores, uint32_t rows) {
    enum { DIM = 128 };
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t t = 0; t < rows; t++) {
            float score = 0, size = 0;
            for (uint32_t i = 0; i < DIM; i++) {
                float part = q[h * DIM + i] * oracle_float(KVT_F16, k[(t * HEADS + h) * DIM + i]);
                score += part;
                size += part < 0 ? -part : part;
            }
            float error = score - scores[h * E2E_PAGE_TOKENS + t];
            CHECK_MSG((error < 0 ? -error : error) <= size * 2e-3f, "row %u: %g, not %g", t,
                      (double)scores[h * E2E_PAGE_TOKENS + t], (double)score);
        }
}

/* An engine that attends over the encoded pages where they stand in the arena
 * (tests/cuda/engine.cu, which is part of the module on the stand-in). */
static void test_in_place(const e2e_daemon *d) {
    enum { DIM = 128, N = 44, ELEMENTS = N * HEADS * DIM };
    kvt_options options = {.socket = d->socket};
    kvt_realm realm;
    kvt_client *client;
    kvt_lease *lease;
    kvt_layout layout;
    kvt_device_pages pages;
    static uint16_t host[2][ELEMENTS];
    float q[HEADS * DIM], scores[3][HEADS * E2E_PAGE_TOKENS];
    uint32_t tokens[N];
    int (*attend)(const void *, const void *, uint32_t, const void *, void *, void *, void *);
    *(void **)(void *)&attend = gpu_symbol("engine_attend");
    e2e_realm(&realm);
    kvt_geometry_init(&realm.geometry, 1, HEADS, DIM, E2E_PAGE_TOKENS);
    realm.codec = "k8v4";
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_OK);
    kvt_layout_token_major(&realm.geometry, N, host[0], host[1], &layout);
    for (int i = 0; i < ELEMENTS; i++)
        host[0][i] = host[1][i] =
            (uint16_t)(0x3000 + check_below(&seed, 0x1000) + 0x8000 * (uint32_t)(i % 2));
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = 20000000 + i;
    for (int i = 0; i < HEADS * DIM; i++)
        q[i] = (float)check_below(&seed, 2001) / 1000 - 1;
    CHECK_EQ(kvt_acquire(client, tokens, N, KVT_CLAIM, &lease), KVT_OK);
    for (size_t page = 0; page < 3; page++) {
        kvt_layout from = layout;
        for (int p = 0; p < 2; p++)
            from.part[p] = (char *)from.part[p] + page * E2E_PAGE_TOKENS * HEADS * DIM * 2;
        CHECK_EQ(kvt_encode(lease, page, &from), KVT_OK);
    }
    CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kvt_decode(lease, 0, N, 0, 1, &layout), KVT_OK);
    void *stream = gpu_stream(), *device_q = gpu_memory(sizeof q);
    void *device_scores = gpu_memory(sizeof scores), *out = gpu_memory(sizeof q);
    gpu_put(device_q, q, sizeof q);
    CHECK_EQ(kvt_pages_device(lease, 0, N, stream, &pages), KVT_OK);
    CHECK_EQ(pages.n_pages, 3);
    size_t page_bytes = sizeof(kvt_cuda_page);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(attend(pages.shape, (const char *)pages.pages + i * page_bytes, 0, device_q,
                        (char *)device_scores + i * sizeof scores[0], out, stream),
                 0);
    CHECK_EQ(kvt_release(lease), KVT_OK); /* waits for the engine's kernels, too */
    gpu_get(scores, device_scores, sizeof scores);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t rows = i < 2 ? E2E_PAGE_TOKENS : N - 2 * E2E_PAGE_TOKENS;
        check_scores(host[0] + i * E2E_PAGE_TOKENS * HEADS * DIM, q, scores[i], rows);
    }
    kvt_close(client);
    gpu_free(device_q);
    gpu_free(device_scores);
    gpu_free(out);
    gpu_stream_free(stream);
}

/* --- ends ---------------------------------------------------------------------------------------
 */

/* Goes as far as `seed` says, tells so, and waits to be killed with that under way. */
static int victim(const e2e_daemon *d, uint64_t step) {
    enum { N = 120 };
    e2e_worker w;
    uint32_t tokens[N];
    kvt_lease *lease;
    kvt_layout layout;
    e2e_worker_open(&w, d, 2 * (uint64_t)getpid() + 1, 20000);
    for (uint32_t t = 0; t < N; t++)
        tokens[t] = (uint32_t)getpid() * 1000 + t;
    kvt_layout_token_major(&w.realm.geometry, N, w.gpu_part[0], w.gpu_part[1], &layout);
    if (step >= 1)
        CHECK_EQ(kvt_acquire(w.client, tokens, N, KVT_CLAIM, &lease), KVT_OK);
    if (step >= 2)
        CHECK_EQ(kvt_encode_device(lease, 0, 8, &layout, NULL, w.stream), KVT_OK);
    if (step >= 3)
        CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
    if (step >= 4)
        CHECK_EQ(kvt_decode_device(lease, 0, N, 0, 1, &layout, NULL, w.stream), KVT_OK);
    e2e_say('r');
    if (step == 5)
        CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_hear();
    return 0;
}

/* Works as long as it is let, whatever becomes of the daemon meanwhile. */
static int survivor(const e2e_daemon *d, uint64_t number) {
    e2e_worker w;
    e2e_worker_open(&w, d, number, 20000);
    do {
        e2e_request(&w);
        e2e_say('c');
    } while (e2e_hear() == 'g');
    e2e_worker_close(&w);
    return 0;
}

static const e2e_jobs jobs[] = {
    {"victim", victim}, {"survivor", survivor}, {"squeezed", squeezed}, {NULL, NULL}};

static void test_dead_workers(const e2e_daemon *d) {
    uint64_t sessions = e2e_count(d, "sessions"), died = e2e_count(d, "sessions_died");
    for (uint64_t step = 0; step <= 5; step++) {
        for (int i = 0; i < 3; i++) {
            e2e_child child = e2e_spawn(d, "victim", step);
            CHECK_EQ(e2e_child_hear(&child), 'r');
            CHECK(kill(child.pid, SIGKILL) == 0);
            CHECK_EQ(e2e_child_end(&child), -SIGKILL);
            e2e_await(d, "sessions", sessions);
        }
    }
    CHECK_EQ(e2e_count(d, "sessions_died") - died, 18);
    e2e_await(d, "leases", 0);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
}

/* The daemon is killed; workers keep the arena that they have open, and find the next one. */
static void test_dead_daemon(e2e_daemon *d, const char *const *settings) {
    enum { N = 3 };
    e2e_child children[N];
    for (int i = 0; i < N; i++) {
        children[i] = e2e_spawn(d, "survivor", 2 * (uint64_t)i + 1);
        CHECK_EQ(e2e_child_hear(&children[i]), 'c');
    }
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < N; i++)
            e2e_child_say(&children[i], 'g');
        CHECK(WIFSIGNALED(e2e_stop(d, SIGKILL)));
        e2e_start(d, settings);
        for (int i = 0; i < N; i++)
            CHECK_EQ(e2e_child_hear(&children[i]), 'c');
    }
    for (int i = 0; i < N; i++) {
        e2e_child_say(&children[i], 's');
        CHECK_EQ(e2e_child_end(&children[i]), 0);
    }
}

/* A daemon with its arena in host memory: the device calls say that they are not for it. */
static void test_host_arena(void) {
    const char *const settings[] = {"arena=2MiB", "device=host", NULL};
    e2e_daemon d = {0};
    e2e_worker w;
    uint32_t token = 1;
    kvt_lease *lease;
    kvt_layout layout;
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 2, 20000);
    CHECK_EQ(kvt_acquire(w.client, &token, 1, KVT_CLAIM, &lease), KVT_OK);
    kvt_layout_token_major(&w.realm.geometry, 1, w.part[0], w.part[1], &layout);
    CHECK_EQ(kvt_decode_device(lease, 0, 0, 0, 1, &layout, NULL, NULL), KVT_ENOTSUP);
    CHECK_EQ(kvt_encode_device(lease, 0, 1, &layout, NULL, NULL), KVT_ENOTSUP);
    CHECK_EQ(kvt_sync(lease), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    const char *const settings[] = {"arena=4MiB", "max_pages=400", "grace_ms=60000", NULL};
    e2e_daemon d = {0};
    if (!e2e_on_gpu()) {
        printf("skipped: only with KVT_TEST_DEVICE=cuda\n");
        return 77;
    }
    e2e_start(&d, settings);
    test_arguments(&d);
    test_waits(&d);
    test_default_streams(&d);
    test_capture(&d);
    test_capture_beside_default(&d);
    test_close(&d);
    test_unsealed(&d);
    test_paged(&d);
    test_first_tokens(&d);
    if (argc > 1) {
        e2e_finish(&d);
        return 0;
    }
    if (!getenv("KVT_TEST_CUDART"))
        test_in_place(&d);
    test_dead_workers(&d);
    test_dead_daemon(&d, settings);
    e2e_finish(&d);
    test_squeeze();
    test_host_arena();
    return 0;
}
