/*
 * gpus.c - a daemon with an arena on each of two GPUs: the ranks of a model on one each, workers
 * that see other GPUs than the daemon or are where they cannot be served, a rank that moves, room
 * that is made in one arena alone; and what becomes of all that when a rank or the daemon is killed
 * or one GPU fails.
 *
 * Only with KVT_TEST_DEVICE=cuda, and with two GPUs: the stand-in has as many as it is told.
 */
#include "tests/e2e/e2e.h"
#include "tests/e2e/gpu.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GPUS = 2, PAGE = E2E_PAGE_TOKENS, TOKENS = 5 * PAGE + 3, EXIT_DEVICE = 6 };

static const char *const two_gpus[] = {"gpu=0,1", "arena=2MiB", "grace_ms=300", NULL};

/* --- a worker on a GPU --------------------------------------------------------------------------
 */

static void set_gpu(int gpu) {
    GPU_CALL("cudaSetDevice", (int), gpu);
}

static void make_tokens(uint32_t prompt, uint32_t *tokens) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = prompt * 1000 + i;
}

/* Its KV is on the thread's GPU. salt: NULL, or what sets it apart from others. */
static kvt_status open_on(e2e_worker *w, const e2e_daemon *d, uint32_t n_ranks, uint32_t rank,
                          const char *salt, const char *gpu) {
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000, .gpu = gpu};
    e2e_worker_prepare(w, 2 * rank + 1, E2E_MAX_TOKENS);
    w->realm.geometry.n_ranks = n_ranks;
    w->realm.geometry.rank = rank;
    w->realm.salt = salt;
    oracle_init(&w->realm, &w->oracle);
    return kvt_open(&options, &w->realm, &w->client);
}

/* Expects to be refused so, with these words. */
static void refused(const e2e_daemon *d, uint32_t rank, const char *gpu, kvt_status expected,
                    const char *words) {
    e2e_worker w;
    kvt_status status = open_on(&w, d, 1, rank, NULL, gpu);
    CHECK_MSG(status == expected, "%s: %s", kvt_status_name(status), kvt_last_error());
    CHECK_MSG(strstr(kvt_last_error(), words), "%s", kvt_last_error());
    e2e_worker_close(&w);
}

/* A lease on a prompt of which so much is held; what is missing is computed if it claims. */
static kvt_lease *have(e2e_worker *w, uint32_t prompt, uint32_t flags, uint32_t held) {
    uint32_t tokens[TOKENS];
    kvt_lease *lease;
    kvt_lease_info info;
    make_tokens(prompt, tokens);
    CHECK_MSG(kvt_acquire(w->client, tokens, TOKENS, flags, &lease) == KVT_OK, "%s",
              kvt_last_error());
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.held_tokens, held);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    if (flags & KVT_CLAIM) {
        CHECK_MSG(e2e_fill(w, lease, tokens, SIZE_MAX) == KVT_OK, "%s", kvt_last_error());
        CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    }
    return lease;
}

/* Of the report: a number of one arena. */
static uint64_t arena_count(const e2e_daemon *d, int arena, const char *name) {
    kvt_options options = {.socket = d->socket, .timeout_ms = 30000};
    kvt_client *client;
    char *json, key[64];
    CHECK_EQ(kvt_open_reports(&options, &client), KVT_OK);
    CHECK_EQ(kvt_status_json(client, &json), KVT_OK);
    snprintf(key, sizeof key, "{\"arena\":%d,", arena);
    const char *at = strstr(json, key);
    CHECK_MSG(at, "no arena %d in %s", arena, json);
    snprintf(key, sizeof key, "\"%s\":", name);
    at = strstr(at, key);
    CHECK(at);
    uint64_t value = strtoull(at + strlen(key), NULL, 10);
    kvt_free(json);
    kvt_close(client);
    return value;
}

/* --- two ranks, a process each -------------------------------------------------------------------
 */

/* Does what it is told, a letter a step, and answers with the number of held pages plus '0': a ask
 * with the next number, claiming; f compute what is missing; s one page of it; r release; n the
 * next prompt; l what is lost with the daemon; k begin to encode, and say so before it is done; q
 * end. */
static int rank_job(const e2e_daemon *d, uint64_t rank) {
    e2e_worker w;
    kvt_lease *lease = NULL;
    kvt_lease_info info = {0};
    uint32_t tokens[TOKENS], prompt = 1;
    uint64_t request = 0;
    set_gpu((int)rank);
    CHECK_MSG(open_on(&w, d, GPUS, (uint32_t)rank, NULL, NULL) == KVT_OK, "%s", kvt_last_error());
    e2e_say('!');
    for (char what; (what = e2e_hear()) != 0 && what != 'q';) {
        make_tokens(prompt, tokens);
        if (what == 'a') {
            CHECK_MSG(kvt_acquire_ranks(w.client, 7, ++request, tokens, TOKENS, KVT_CLAIM,
                                        &lease) == KVT_OK,
                      "%s", kvt_last_error());
        } else if (what == 'f' || what == 's') {
            CHECK_EQ(kvt_wait(lease, 0, 0), KVT_OK);
            CHECK_MSG(e2e_fill(&w, lease, tokens, what == 's' ? 1 : SIZE_MAX) == KVT_OK, "%s",
                      kvt_last_error());
        } else if (what == 'r') {
            CHECK_EQ(kvt_release(lease), KVT_OK);
            lease = NULL;
        } else if (what == 'n') {
            prompt++;
        } else if (what == 'l') {
            kvt_status status = e2e_read(&w, lease, tokens);
            CHECK(status != KVT_OK || kvt_release(lease) != KVT_OK);
            if (status != KVT_OK)
                kvt_release(lease);
            lease = NULL;
            request = 0;
        } else if (what == 'k') {
            kvt_layout from;
            kvt_layout_token_major(&w.realm.geometry, TOKENS, w.gpu_part[0], w.gpu_part[1], &from);
            CHECK_EQ(kvt_encode_device(lease, 0, 2, &from, NULL, w.stream), KVT_OK);
        }
        memset(&info, 0, sizeof info);
        if (lease) {
            CHECK_EQ(kvt_wait(lease, 0, 0), KVT_OK);
            kvt_lease_get(lease, &info);
            CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
        }
        e2e_say((char)('0' + (info.held_tokens + PAGE - 1) / PAGE));
    }
    kvt_release(lease);
    e2e_worker_close(&w);
    return 0;
}

static e2e_child ranks[GPUS];

static char tell(uint32_t rank, char what) {
    return e2e_child_ask(&ranks[rank], what);
}

static void tell_both(char what, char expected) {
    for (uint32_t rank = 0; rank < GPUS; rank++)
        CHECK_EQ(tell(rank, what), expected);
}

static void start_rank(const e2e_daemon *d, uint32_t rank) {
    ranks[rank] = e2e_spawn(d, "rank", rank);
    CHECK_EQ(e2e_child_hear(&ranks[rank]), '!');
}

static void both_compute(void) {
    tell_both('a', '0');
    CHECK_EQ(tell(0, 'f'), '0'); /* not held before the other has it, too */
    CHECK_EQ(tell(1, 'f'), '6');
    tell_both('r', '0');
}

/* People are shown each. */
static void see_status(const e2e_daemon *d) {
    const char *build = getenv("KVT_BUILD_DIR");
    char command[512], text[16384];
    snprintf(command, sizeof command, "%s/client/kvtrunk status --socket '%s'",
             build ? build : "build", d->socket);
    FILE *tool = popen(command, "r");
    CHECK(tool);
    text[fread(text, 1, sizeof text - 1, tool)] = 0;
    CHECK_EQ(pclose(tool), 0);
    CHECK_MSG(strstr(text, "of 2.0 MiB in the memory of GPU 0 (0000:01:00.0)\narena 1"), "%s",
              text);
    CHECK_MSG(strstr(text, "of 2.0 MiB in the memory of GPU 1 (0000:02:00.0)\n"), "%s", text);
    CHECK_MSG(strstr(text, "\narenas (2)\n"), "%s", text);
}

static void test_ranks(void) {
    e2e_daemon d = {0};
    e2e_start(&d, two_gpus);
    for (uint32_t rank = 0; rank < GPUS; rank++)
        start_rank(&d, rank);
    both_compute();
    for (int gpu = 0; gpu < GPUS; gpu++) {
        CHECK_EQ(arena_count(&d, gpu, "frames_used"), 6);
        CHECK_EQ(arena_count(&d, gpu, "ranks"), 1);
        CHECK_EQ(arena_count(&d, gpu, "bytes"), 2 << 20);
    }
    see_status(&d);
    tell_both('a', '6');
    tell_both('r', '0');
    /* A rank is killed while it encodes; its prompt is nobody's then, and the next asks anew. */
    tell_both('n', '0');
    tell_both('a', '0');
    CHECK_EQ(tell(0, 's'), '0');
    tell(1, 'k');
    CHECK(kill(ranks[1].pid, SIGKILL) == 0);
    CHECK_EQ(e2e_child_end(&ranks[1]), -SIGKILL);
    e2e_await(&d, "sessions_died", 1);
    CHECK_EQ(tell(0, 'r'), '0');
    CHECK_EQ(tell(0, 'q'), 0);
    CHECK_EQ(e2e_child_end(&ranks[0]), 0);
    e2e_await(&d, "groups", 0);
    for (uint32_t rank = 0; rank < GPUS; rank++)
        start_rank(&d, rank);
    tell_both('a', '6'); /* the first prompt is there for those who come anew */
    /* The daemon is killed: what was held is void, and all begins again with the next. */
    CHECK(WIFSIGNALED(e2e_stop(&d, SIGKILL)));
    e2e_start(&d, two_gpus);
    tell_both('l', '0');
    both_compute();
    tell_both('a', '6');
    for (int gpu = 0; gpu < GPUS; gpu++)
        CHECK_EQ(arena_count(&d, gpu, "frames_used"), 6);
    tell_both('r', '0');
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        CHECK_EQ(tell(rank, 'q'), 0);
        CHECK_EQ(e2e_child_end(&ranks[rank]), 0);
    }
    CHECK_EQ(e2e_count(&d, "pages_pinned"), 0);
    e2e_finish(&d);
}

/* --- who may be where ---------------------------------------------------------------------------
 */

/* Sees the second GPU alone, and counts it as its first. */
static int narrow_job(const e2e_daemon *d, uint64_t prompt) {
    e2e_worker w;
    CHECK_EQ(open_on(&w, d, 1, 0, "narrow", prompt % 2 ? NULL : "0"), KVT_OK);
    CHECK_EQ(kvt_release(have(&w, (uint32_t)prompt, KVT_CLAIM, 0)), KVT_OK);
    e2e_worker_close(&w);
    return 0;
}

/* Names the second GPU, and has its KV in host memory: then it has nothing on the first, nor in a
 * thread that was never there. */
static void *one_request(void *worker) {
    e2e_request(worker);
    return NULL;
}

static int named_job(const e2e_daemon *d, uint64_t number) {
    e2e_worker w;
    pthread_t thread;
    unsigned (*contexts)(void);
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000, .gpu = "1"};
    *(void **)(void *)&contexts = gpu_symbol("fake_cuda_contexts");
    e2e_worker_prepare(&w, number, E2E_MAX_TOKENS);
    w.realm.salt = "named";
    oracle_init(&w.realm, &w.oracle);
    CHECK_MSG(kvt_open(&options, &w.realm, &w.client) == KVT_OK, "%s", kvt_last_error());
    CHECK_EQ(contexts(), 2);
    e2e_request(&w);
    CHECK(pthread_create(&thread, NULL, one_request, &w) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(w.sealed > 0);
    e2e_worker_close(&w);
    CHECK_EQ(contexts(), 2);
    int gpu;
    GPU_CALL("cudaGetDevice", (int *), &gpu);
    CHECK_EQ(gpu, 0);
    return 0;
}

static void run_narrow(const e2e_daemon *d, uint64_t prompt) {
    setenv("KVT_FAKE_CUDA_FIRST", "1", 1);
    setenv("KVT_FAKE_CUDA_DEVICES", "1", 1);
    e2e_child child = e2e_spawn(d, "narrow", prompt);
    setenv("KVT_FAKE_CUDA_DEVICES", "2", 1);
    unsetenv("KVT_FAKE_CUDA_FIRST");
    CHECK_EQ(e2e_child_end(&child), 0);
}

static void test_places(void) {
    e2e_daemon d = {0};
    e2e_worker a, b, c;
    e2e_start(&d, two_gpus);
    set_gpu(0);
    CHECK_EQ(open_on(&a, &d, 1, 0, NULL, NULL), KVT_OK);
    CHECK_EQ(kvt_release(have(&a, 1, KVT_CLAIM, 0)), KVT_OK);
    refused(&d, 0, "1", KVT_EBUSY, "another salt");
    refused(&d, 0, "0000:02:00.0", KVT_EBUSY, "another salt");
    refused(&d, 0, "7", KVT_ENOTSUP, "2 CUDA devices");
    refused(&d, 0, "0000:0A:00.0", KVT_ENOTSUP, "0000:01:00.0, 0000:02:00.0");
    static const char *const no_names[] = {"", " 0", "-1", "0x1", "gpu:0"};
    for (size_t i = 0; i < sizeof no_names / sizeof *no_names; i++)
        refused(&d, 0, no_names[i], KVT_EINVAL, "options.gpu is");
    /* With a salt of its own a worker may be anywhere; on the same GPU it shares. */
    set_gpu(1);
    CHECK_EQ(open_on(&b, &d, 1, 0, "b", NULL), KVT_OK);
    CHECK_EQ(kvt_release(have(&b, 1, KVT_CLAIM, 0)), KVT_OK);
    CHECK_EQ(open_on(&c, &d, 1, 0, "b", "0000:02:00.0"), KVT_OK);
    CHECK_EQ(kvt_release(have(&c, 1, 0, TOKENS)), KVT_OK);
    for (int gpu = 0; gpu < GPUS; gpu++)
        CHECK_EQ(arena_count(&d, gpu, "frames_used"), 6);
    run_narrow(&d, 5);
    run_narrow(&d, 6);
    CHECK_EQ(arena_count(&d, 0, "frames_used"), 6);
    CHECK_EQ(arena_count(&d, 1, "frames_used"), 18);
    uint64_t used = arena_count(&d, 0, "frames_used");
    e2e_child named = e2e_spawn(&d, "named", 2);
    CHECK_EQ(e2e_child_end(&named), 0);
    CHECK_EQ(arena_count(&d, 0, "frames_used"), used);
    e2e_worker_close(&b);
    e2e_worker_close(&c);
    set_gpu(0);
    e2e_worker_close(&a);
    e2e_finish(&d);
}

/* While its thread is on another GPU. */
static void read_from_afar(e2e_worker *w, kvt_lease *lease, const uint32_t *tokens, int its_gpu) {
    kvt_layout plain, to;
    int gpu;
    kvt_layout_token_major(&w->realm.geometry, TOKENS, w->part[0], w->part[1], &plain);
    to = plain;
    to.part[0] = w->gpu_part[0];
    to.part[1] = w->gpu_part[1];
    set_gpu(!its_gpu);
    CHECK_MSG(kvt_decode_device(lease, 0, TOKENS, 0, E2E_LAYERS, &to, NULL, w->stream) == KVT_OK,
              "%s", kvt_last_error());
    CHECK_EQ(kvt_sync(lease), KVT_OK);
    GPU_CALL("cudaGetDevice", (int *), &gpu);
    CHECK_EQ(gpu, !its_gpu);
    set_gpu(its_gpu);
    for (int p = 0; p < 2; p++)
        gpu_get(w->part[p], w->gpu_part[p], w->part_bytes);
    oracle_rows(&w->oracle, tokens, TOKENS, w->row_hashes);
    CHECK_EQ(oracle_check(&w->oracle, w->row_hashes, TOKENS, 0, E2E_LAYERS, &plain), 0);
}

/* Pages that are read in place, in the default stream of their GPU; the thread that waits for it is
 * on the other one, whose default stream is another. */
static void sync_from_afar(kvt_lease *lease, int its_gpu) {
    kvt_device_pages pages;
    int gpu;
    set_gpu(its_gpu);
    CHECK_MSG(kvt_pages_device(lease, 0, TOKENS, NULL, &pages) == KVT_OK, "%s", kvt_last_error());
    CHECK_EQ(pages.n_pages, 6);
    set_gpu(!its_gpu);
    CHECK_MSG(kvt_sync(lease) == KVT_OK, "%s", kvt_last_error());
    GPU_CALL("cudaGetDevice", (int *), &gpu);
    CHECK_EQ(gpu, !its_gpu);
    set_gpu(its_gpu);
}

static void one_prompt(e2e_worker *w, uint32_t prompt) {
    kvt_lease *leases[GPUS];
    uint32_t tokens[TOKENS];
    make_tokens(prompt, tokens);
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        set_gpu((int)rank);
        CHECK_EQ(
            kvt_acquire_ranks(w[rank].client, 1, prompt, tokens, TOKENS, KVT_CLAIM, &leases[rank]),
            KVT_OK);
        CHECK_MSG(e2e_fill(&w[rank], leases[rank], tokens, SIZE_MAX) == KVT_OK, "%s",
                  kvt_last_error());
    }
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        kvt_lease_info info;
        set_gpu((int)rank);
        CHECK_EQ(kvt_wait(leases[rank], 0, 0), KVT_OK);
        kvt_lease_get(leases[rank], &info);
        CHECK_EQ(info.held_tokens, TOKENS);
        CHECK_EQ(e2e_read(&w[rank], leases[rank], tokens), KVT_OK);
        read_from_afar(&w[rank], leases[rank], tokens, (int)rank);
        sync_from_afar(leases[rank], (int)rank);
        CHECK_EQ(kvt_release(leases[rank]), KVT_OK);
    }
}

/* Memory of the other GPU is not for the pages of this one, though both are this process's. */
static void refuse_other_gpu(e2e_worker *w, uint32_t prompt) {
    uint32_t tokens[TOKENS];
    kvt_lease *lease;
    kvt_layout to;
    make_tokens(prompt, tokens);
    CHECK_EQ(kvt_acquire_ranks(w[0].client, 1, 1000 + prompt, tokens, TOKENS, 0, &lease), KVT_OK);
    kvt_layout_token_major(&w->realm.geometry, TOKENS, w[0].gpu_part[0], w[1].gpu_part[1], &to);
    CHECK_EQ(kvt_decode_device(lease, 0, TOKENS, 0, 1, &to, NULL, w[0].stream), KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), "to->part[1] is memory of CUDA device 1, and the pages are "
                                       "on 0: bring the KV there"),
              "%s", kvt_last_error());
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static void refused_stream(kvt_status status) {
    int (*last_error)(void);
    CHECK_MSG(status == KVT_EINVAL &&
                  strstr(kvt_last_error(), "must be one of the GPU that the pages are on, 0"),
              "%s: %s", kvt_status_name(status), kvt_last_error());
    *(void **)(void *)&last_error = gpu_symbol("cudaGetLastError");
    CHECK_EQ(last_error(), 0);
}

/* Nor is a stream of the other GPU; the lease and what else is put into its own go on. */
static void refuse_other_stream(e2e_worker *w, uint32_t prompt) {
    uint32_t tokens[TOKENS];
    kvt_lease *lease;
    kvt_layout to;
    kvt_device_pages pages;
    uint32_t blocks[] = {0, 1, 2, 3, 4, 5};
    kvt_block_table table = {blocks, 6, 16, 0};
    kvt_layout_token_major(&w->realm.geometry, 96, w[0].gpu_part[0], w[0].gpu_part[1], &to);
    make_tokens(prompt, tokens);
    CHECK_EQ(kvt_acquire_ranks(w[0].client, 1, 2000 + prompt, tokens, TOKENS, 0, &lease), KVT_OK);
    refused_stream(kvt_decode_device(lease, 0, TOKENS, 0, 1, &to, NULL, w[1].stream));
    refused_stream(kvt_pages_device(lease, 0, TOKENS, w[1].stream, &pages));
    CHECK_EQ(kvt_decode_device(lease, 0, TOKENS, 0, 1, &to, NULL, w[0].stream), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    make_tokens(prompt + 1000, tokens);
    CHECK_EQ(kvt_acquire_ranks(w[0].client, 1, 3000 + prompt, tokens, TOKENS, KVT_CLAIM, &lease),
             KVT_OK);
    refused_stream(kvt_encode_device(lease, 0, 1, &to, NULL, w[1].stream));
    refused_stream(kvt_encode_device(lease, 0, 1, &to, &table, w[1].stream));
    CHECK_EQ(kvt_encode_device(lease, 0, 1, &to, &table, w[0].stream), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* Two ranks of one process, too: a client each, by their names. The daemon has one thread for the
 * copies on both GPUs. */
static void test_one_process(void) {
    static const char *const settings[] = {"gpu=0,1", "arena=2MiB", "job_threads=1", NULL};
    e2e_daemon d = {0};
    e2e_worker w[GPUS];
    e2e_start(&d, settings);
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        set_gpu((int)rank);
        CHECK_EQ(open_on(&w[rank], &d, GPUS, rank, NULL, rank ? "1" : "0"), KVT_OK);
    }
    for (uint32_t prompt = 1; prompt < 4; prompt++)
        one_prompt(w, prompt);
    set_gpu(0);
    refuse_other_gpu(w, 1);
    refuse_other_stream(w, 1);
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        set_gpu((int)rank);
        e2e_worker_close(&w[rank]);
    }
    set_gpu(0);
    e2e_finish(&d);
}

/* --- a rank that moves --------------------------------------------------------------------------
 */

/* What is in a lower tier comes up on the other GPU; without one it is forgotten. */
static void test_move(const char *const *settings, uint32_t held) {
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_start(&d, settings);
    set_gpu(0);
    CHECK_EQ(open_on(&w, &d, 1, 0, NULL, NULL), KVT_OK);
    CHECK_EQ(kvt_release(have(&w, 1, KVT_CLAIM, 0)), KVT_OK);
    if (held)
        CHECK_EQ(kvt_spill(w.client, 20000, NULL), KVT_OK);
    CHECK_EQ(arena_count(&d, 0, "frames_used"), 6);
    e2e_worker_close(&w);
    e2e_await(&d, "sessions", 1); /* that which asks */
    set_gpu(1);
    CHECK_EQ(open_on(&w, &d, 1, 0, NULL, NULL), KVT_OK);
    CHECK_EQ(arena_count(&d, 0, "frames_used"), 0);
    CHECK_EQ(kvt_release(have(&w, 1, KVT_CLAIM, held)), KVT_OK);
    CHECK_EQ(arena_count(&d, 0, "frames_used"), 0);
    CHECK_EQ(arena_count(&d, 1, "frames_used"), 6);
    e2e_worker_close(&w);
    set_gpu(0);
    e2e_finish(&d);
}

static void test_moves(void) {
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *const with_disk[] = {"gpu=0,1",    "arena=2MiB", "host=4MiB",
                                     disk.setting, "disk=64MiB", NULL};
    test_move(two_gpus, 0);
    test_move(with_disk, TOKENS);
    e2e_disk_remove(&disk);
}

/* --- room ---------------------------------------------------------------------------------------
 */

/* Room is made in the arena that is short, and nothing of the other goes for it. */
static void test_room(const char *const *settings) {
    e2e_daemon d = {0};
    e2e_worker a, b;
    e2e_start(&d, settings);
    set_gpu(0);
    CHECK_EQ(open_on(&a, &d, 1, 0, "a", NULL), KVT_OK);
    CHECK_EQ(kvt_release(have(&a, 1, KVT_CLAIM, 0)), KVT_OK);
    set_gpu(1);
    CHECK_EQ(open_on(&b, &d, 1, 0, "b", NULL), KVT_OK);
    for (uint32_t prompt = 1; prompt < 40; prompt++) /* 240 pages of 8 KiB, 1 MiB of arena */
        CHECK_EQ(kvt_release(have(&b, prompt, KVT_CLAIM, 0)), KVT_OK);
    CHECK(e2e_count(&d, "bytes_evicted") > 0);
    CHECK_EQ(arena_count(&d, 0, "frames_used"), 6);
    CHECK_EQ(kvt_release(have(&b, 39, 0, TOKENS)), KVT_OK);
    e2e_worker_close(&b);
    set_gpu(0);
    CHECK_EQ(kvt_release(have(&a, 1, 0, TOKENS)), KVT_OK);
    e2e_worker_close(&a);
    e2e_finish(&d);
}

/* --- no room on one of them ----------------------------------------------------------------------
 */

/* Then the arena is in host memory, and nothing stays behind on the GPU that had room: not for as
 * long as the daemon lives. */
static void test_fallback(void) {
    static const char *const settings[] = {"device=auto", "gpu=0,1", "arena=3MiB", NULL};
    e2e_daemon d = {0};
    e2e_worker w;
    char file[64], expected[64], line[128] = "";
    snprintf(file, sizeof file, "/tmp/kvtrunk-gpus-account-%d", (int)getpid());
    setenv("KVT_FAKE_CUDA_ACCOUNT", file, 1);
    setenv("KVT_FAKE_CUDA_BYTES", "6000000", 1);
    e2e_start(&d, settings);
    unsetenv("KVT_FAKE_CUDA_ACCOUNT");
    unsetenv("KVT_FAKE_CUDA_BYTES");
    e2e_worker_open(&w, &d, 2, 20000);
    e2e_request(&w);
    CHECK(w.sealed > 0);
    e2e_worker_close(&w);
    snprintf(expected, sizeof expected, "process %d ends with 0 things of 0\n", (int)d.pid);
    e2e_finish(&d);
    FILE *account = fopen(file, "r");
    CHECK(account && fgets(line, sizeof line, account));
    fclose(account);
    CHECK_MSG(strcmp(line, expected) == 0, "%s", line);
    CHECK(unlink(file) == 0);
}

/* --- a GPU fails --------------------------------------------------------------------------------
 */

/* The daemon ends, to be started anew, and says which it was; what workers then read is void. */
static void test_failure(void) {
    e2e_daemon d = {0};
    char file[192], command[256];
    e2e_worker a, b;
    uint32_t tokens[TOKENS];
    kvt_lease *lease;
    snprintf(file, sizeof file, "/tmp/kvtrunk-gpus-broken-%d", (int)getpid());
    setenv("KVT_FAKE_CUDA_BREAK", file, 1);
    setenv("KVT_FAKE_CUDA_BREAK_DEVICE", "1", 1);
    e2e_start(&d, two_gpus);
    unsetenv("KVT_FAKE_CUDA_BREAK");
    set_gpu(0);
    CHECK_EQ(open_on(&a, &d, 1, 0, "a", NULL), KVT_OK);
    CHECK_EQ(kvt_release(have(&a, 1, KVT_CLAIM, 0)), KVT_OK);
    set_gpu(1);
    CHECK_EQ(open_on(&b, &d, 1, 0, "b", NULL), KVT_OK);
    CHECK_EQ(kvt_release(have(&b, 1, KVT_CLAIM, 0)), KVT_OK);
    FILE *made = fopen(file, "w");
    CHECK(made && fclose(made) == 0);
    set_gpu(0);
    CHECK_EQ(kvt_release(have(&a, 2, KVT_CLAIM, 0)), KVT_OK); /* the other is not touched */
    set_gpu(1);
    make_tokens(2, tokens);
    CHECK_EQ(kvt_acquire(b.client, tokens, TOKENS, KVT_CLAIM, &lease), KVT_OK);
    CHECK(e2e_fill(&b, lease, tokens, SIZE_MAX) != KVT_OK);
    int status;
    CHECK(waitpid(d.pid, &status, 0) == d.pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_DEVICE);
    kvt_release(lease);
    CHECK(unlink(file) == 0);
    e2e_start(&d, two_gpus);
    CHECK_EQ(kvt_release(have(&b, 2, KVT_CLAIM, 0)), KVT_OK);
    e2e_worker_close(&b);
    set_gpu(0);
    CHECK_EQ(kvt_release(have(&a, 1, KVT_CLAIM, 0)), KVT_OK);
    e2e_worker_close(&a);
    snprintf(command, sizeof command, "rm -f '%s/leaks'", d.folder); /* of the lost GPU's daemon */
    CHECK(system(command) == 0);
    e2e_finish(&d);
}

int main(int argc, char **argv) {
    static const e2e_jobs jobs[] = {
        {"rank", rank_job}, {"narrow", narrow_job}, {"named", named_job}, {NULL, NULL}};
    static const char *const small[] = {"gpu=0,1", "arena=1MiB", NULL};
    static const char *const small_host[] = {"gpu=all", "arena=1MiB", "host=1MiB", NULL};
    int code = e2e_child_main(argc, argv, jobs);
    if (code >= 0)
        return code;
    if (!e2e_on_gpu() || getenv("KVT_TEST_CUDART")) {
        printf("skipped: this needs the stand-in for CUDA, with two GPUs\n");
        return 77;
    }
    setenv("KVT_FAKE_CUDA_DEVICES", "2", 1);
    test_ranks();
    test_places();
    test_one_process();
    test_moves();
    test_room(small);
    test_room(small_host);
    test_fallback();
    if (argc == 1)
        test_failure();
    return 0;
}
