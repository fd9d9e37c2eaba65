/*
 * tool_worker.c - a worker of a replay: a process of its own that asks for every nth prompt of the
 * trace, checks all that it reads, fills what is missing, and lets go. It talks to the tool through
 * a pipe at REPLAY_FD; kvtrunk replay starts it.
 */
#include "client/oracle.h"
#include "client/tool.h"
#include "client/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_PAGES = 64 };

typedef struct worker {
    replay_options options;
    uint64_t index;
    kvt_realm realm;
    oracle oracle;
    kvt_client *client;
    replay_counts counts;
    uint64_t *rows; /* [KVT_MAX_REQUEST_TOKENS] */
    uint8_t *part[2];
    double *latencies; /* us */
    size_t n_latencies, room_latencies;
    double said; /* when progress was last told */
} worker;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void say(uint32_t kind, const void *bytes, size_t n) {
    uint32_t head[2] = {kind, (uint32_t)n};
    const char *at = (const char *)head;
    for (size_t left = sizeof head; left;) {
        ssize_t wrote = write(REPLAY_FD, at, left);
        if (wrote <= 0)
            exit(TOOL_SYSTEM); /* the tool is gone */
        at += wrote;
        left -= (size_t)wrote;
    }
    for (at = bytes; n;) {
        ssize_t wrote = write(REPLAY_FD, at, n);
        if (wrote <= 0)
            exit(TOOL_SYSTEM);
        at += wrote;
        n -= (size_t)wrote;
    }
}

static uint64_t token_bytes(const worker *w) {
    const kvt_geometry *g = &w->realm.geometry;
    return 2ull * g->n_layers * g->n_kv_heads * (g->head_dim[0] + g->head_dim[1]);
}

/* Decodes and checks tokens from..end of the lease. */
static kvt_status read_range(worker *w, kvt_lease *lease, uint32_t from, uint32_t end) {
    const kvt_geometry *g = &w->realm.geometry;
    int exact = strcmp(w->options.codec, "f16") == 0;
    while (from < end) {
        uint32_t n = CHUNK_PAGES * g->page_tokens;
        n = n < end - from ? n : end - from;
        kvt_layout layout;
        kvt_layout_token_major(g, n, w->part[0], w->part[1], &layout);
        kvt_status status = kvt_decode(lease, from, n, 0, g->n_layers, &layout);
        if (status != KVT_OK)
            return status;
        w->counts.wrong_bytes +=
            exact ? oracle_check(&w->oracle, w->rows + from, n, 0, g->n_layers, &layout)
                  : oracle_check_near(&w->oracle, w->rows + from, n, 0, g->n_layers, &layout);
        w->counts.bytes_read += n * token_bytes(w);
        from += n;
    }
    return KVT_OK;
}

static kvt_status fill(worker *w, kvt_lease *lease, const kvt_lease_info *info) {
    const kvt_geometry *g = &w->realm.geometry;
    kvt_layout layout;
    kvt_layout_token_major(g, g->page_tokens, w->part[0], w->part[1], &layout);
    uint32_t n_sealed = 0;
    for (uint32_t at = info->held_tokens / g->page_tokens * g->page_tokens;
         at < info->claimed_tokens; at += g->page_tokens) {
        uint32_t n = info->claimed_tokens - at;
        n = n < g->page_tokens ? n : g->page_tokens;
        oracle_fill(&w->oracle, w->rows + at, n, 0, g->n_layers, &layout);
        kvt_status status = kvt_encode(lease, at / g->page_tokens, &layout);
        if (status == KVT_EFULL) {
            status = kvt_seal(lease, NULL);
            if (status == KVT_OK)
                status = kvt_encode(lease, at / g->page_tokens, &layout);
        }
        if (status != KVT_OK)
            return status;
        n_sealed++;
    }
    kvt_status status = kvt_seal(lease, NULL);
    if (status == KVT_OK)
        w->counts.pages_sealed += n_sealed;
    return status;
}

/* Waits for what others compute, as long as the options allow, and reads what comes. */
static kvt_status wait_for_others(worker *w, kvt_lease *lease, kvt_lease_info *info) {
    double end = now_us() + (double)w->options.wait_ms * 1e3;
    while (info->computing_tokens > 0 && now_us() < end) {
        uint32_t before = info->held_tokens;
        kvt_status status = kvt_wait(lease, before, (uint32_t)((end - now_us()) / 1e3) + 1);
        kvt_lease_get(lease, info);
        if (status == KVT_OK)
            status = read_range(w, lease, before, info->held_tokens);
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

static kvt_status serve_lease(worker *w, kvt_lease *lease) {
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    kvt_status status = read_range(w, lease, 0, info.held_tokens);
    if (status == KVT_OK)
        status = wait_for_others(w, lease, &info);
    if (status != KVT_OK)
        return status;
    w->counts.tokens_served += info.held_tokens;
    w->counts.pages_shared += info.foreign_pages;
    if (info.held_tokens < info.claimed_tokens)
        status = fill(w, lease, &info);
    return status;
}

static void note_latency(worker *w, double us) {
    if (w->n_latencies == w->room_latencies) {
        w->room_latencies = w->room_latencies ? 2 * w->room_latencies : 1024;
        w->latencies = realloc(w->latencies, w->room_latencies * sizeof *w->latencies);
        if (!w->latencies)
            exit(tool_fail(TOOL_SYSTEM, "out of memory"));
    }
    w->latencies[w->n_latencies++] = us;
}

static void serve_request(worker *w, const trace_request *request) {
    kvt_lease *lease;
    w->counts.requests++;
    w->counts.tokens_asked += request->n_tokens;
    oracle_rows(&w->oracle, request->tokens, request->n_tokens, w->rows);
    double start = now_us();
    kvt_status status =
        kvt_acquire(w->client, request->tokens, request->n_tokens, KVT_CLAIM, &lease);
    note_latency(w, now_us() - start);
    if (status == KVT_OK) {
        status = serve_lease(w, lease);
        kvt_status end = kvt_release(lease);
        status = status == KVT_OK ? end : status;
    }
    if (status != KVT_OK)
        w->counts.errors[status]++;
    if (now_us() - w->said > 100e3) {
        w->said = now_us();
        say(REPLAY_PROGRESS, &w->counts, sizeof w->counts);
    }
}

static int replay_trace(worker *w) {
    char why[256] = "";
    trace *t;
    trace_request request;
    kvt_status status = trace_open(w->options.trace, why, sizeof why, &t);
    if (status != KVT_OK)
        return tool_fail(TOOL_BAD_INPUT, "%s", why);
    for (uint64_t i = 0; status == KVT_OK; i++) {
        if (w->options.n_requests && i >= w->options.n_requests)
            break;
        if (i % w->options.n_workers != w->index) {
            status = trace_skip(t, &request);
            continue;
        }
        status = trace_next(t, &request);
        if (status == KVT_OK)
            serve_request(w, &request);
    }
    if (status != KVT_OK && status != KVT_ENOENT)
        tool_fail(TOOL_BAD_INPUT, "%s: %s", w->options.trace, trace_why(t));
    trace_close(t);
    return status == KVT_OK || status == KVT_ENOENT ? TOOL_OK : TOOL_BAD_INPUT;
}

static int worker_open(worker *w) {
    char why[256] = "", name[32];
    kvt_status status = replay_realm(&w->options, why, sizeof why, &w->realm);
    if (status != KVT_OK)
        return tool_fail(tool_code(status), "%s", why);
    oracle_init(&w->realm, &w->oracle);
    const kvt_geometry *g = &w->realm.geometry;
    w->rows = malloc(KVT_MAX_REQUEST_TOKENS * sizeof *w->rows);
    for (int p = 0; p < 2; p++)
        w->part[p] = calloc((size_t)CHUNK_PAGES * g->page_tokens * g->n_layers * g->n_kv_heads,
                            2ull * g->head_dim[p]);
    if (!w->rows || !w->part[0] || !w->part[1])
        return tool_fail(TOOL_SYSTEM, "out of memory");
    snprintf(name, sizeof name, "replay %llu", (unsigned long long)w->index);
    kvt_options options = {.socket = w->options.socket,
                           .name = name,
                           .timeout_ms = (uint32_t)w->options.timeout_ms,
                           .staging_pages = 256};
    status = kvt_open(&options, &w->realm, &w->client);
    if (status != KVT_OK)
        return tool_fail(tool_code(status), "%s", kvt_last_error());
    return TOOL_OK;
}

int tool_replay_worker(int argc, char **argv) {
    static worker w;
    replay_options *o = &w.options;
    const tool_option options[] = {
        {.name = "trace", .text = &o->trace},
        {.name = "connect", .text = &o->socket},
        {.name = "codec", .text = &o->codec},
        {.name = "dtype", .text = &o->dtype},
        {.name = "index", .number = &w.index, .high = UINT64_MAX},
        {.name = "workers", .number = &o->n_workers, .low = 1, .high = 4096},
        {.name = "requests", .number = &o->n_requests, .high = UINT64_MAX},
        {.name = "layers", .number = &o->layers, .high = UINT32_MAX},
        {.name = "heads", .number = &o->heads, .high = UINT32_MAX},
        {.name = "head-dim", .number = &o->head_dim, .high = UINT32_MAX},
        {.name = "page-tokens", .number = &o->page_tokens, .high = UINT32_MAX},
        {.name = "wait", .number = &o->wait_ms, .high = UINT32_MAX},
        {.name = "timeout", .number = &o->timeout_ms, .high = UINT32_MAX},
        {0}};
    int n, code = tool_options(argc, argv, options, NULL, 0, &n);
    if (code == TOOL_OK && (!o->trace || !o->socket || !o->codec || !o->dtype || !o->n_workers))
        code = tool_fail(TOOL_USAGE, "replay-worker is started by kvtrunk replay");
    if (code == TOOL_OK)
        code = worker_open(&w);
    if (code == TOOL_OK)
        code = replay_trace(&w);
    if (code != TOOL_OK)
        return code;
    kvt_close(w.client);
    say(REPLAY_LATENCY, w.latencies, w.n_latencies * sizeof *w.latencies);
    say(REPLAY_END, &w.counts, sizeof w.counts);
    free(w.latencies);
    free(w.rows);
    free(w.part[0]);
    free(w.part[1]);
    return TOOL_OK;
}
