/*
 * tool_worker.c - a worker of a replay: a process of its own that asks for every nth prompt of the
 * trace, checks all that it reads, fills what is missing, and lets go. kvtrunk replay starts it and
 * hears it through a pipe (tool_replay.h).
 */
#include "client/client.h"
#include "client/cooled.h"
#include "client/layout.h"
#include "client/oracle.h"
#include "client/tool_replay.h"
#include "client/trace.h"

#include <cjson/cJSON.h>

#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* Bounds of memory for large geometries; tiny ones are bounded by pages. */
    CHUNK_BYTES = 16 << 20, /* decoded and checked at once */
    CHUNK_PAGES = 64,
    SAY_MS = 100,   /* between two words of progress */
    AWAY_MS = 20,   /* an engine would compute while the daemon is away; a replay waits instead */
    GIVE_UP_S = 30, /* this long without an answer: there is no daemon any more */
};

typedef struct worker {
    replay_options options;
    uint64_t index;
    kvt_realm realm;
    oracle oracle;
    uint64_t token_bytes; /* of all layers, as 16-bit elements */
    uint32_t chunk_tokens;
    kvt_client *client;
    replay_counts counts;
    const trace_request *request; /* the one at hand */
    uint64_t *rows;               /* [KVT_MAX_REQUEST_TOKENS]: the oracle's, of the request */
    void *part[2];                /* [chunk_tokens] */
    cooled *cooled;               /* what the daemon's ladder makes of pages */
    void *page;                   /* [page_room] as it is encoded */
    size_t page_room;
    double *latencies_us;
    size_t n_latencies, latencies_room;
    double said_s;     /* when progress was last told */
    double answered_s; /* when a call last had an answer */
    int noted_error, noted_wrong;
} worker;

/* --- saying -------------------------------------------------------------------------------------
 */

static void write_all(const void *bytes, size_t n) {
    for (const char *at = bytes; n;) {
        ssize_t wrote = write(REPLAY_FD, at, n);
        if (wrote <= 0)
            exit(TOOL_SYSTEM); /* the tool is gone */
        at += wrote;
        n -= (size_t)wrote;
    }
}

static void say(replay_kind kind, const void *bytes, size_t n) {
    replay_head head = {.kind = (uint32_t)kind, .n_bytes = (uint32_t)n};
    write_all(&head, sizeof head);
    write_all(bytes, n);
}

static void say_text(replay_kind kind, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void say_text(replay_kind kind, const char *format, ...) {
    char text[REPLAY_MAX_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say(kind, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static int give_up(int code, const char *why) {
    say_text(REPLAY_GAVE_UP, "%s", why);
    return code;
}

static void say_progress(worker *w) {
    double now = tool_now_s();
    if (now - w->said_s < SAY_MS / 1e3)
        return;
    w->said_s = now;
    say(REPLAY_PROGRESS, &w->counts, sizeof w->counts);
}

/* Counts what a call gave, tells the first failure in words, and returns the status. */
static kvt_status took(worker *w, const char *call, kvt_status status) {
    if (status == KVT_OK || (status != KVT_ECONN && status != KVT_ETIMEDOUT))
        w->answered_s = tool_now_s();
    if (status == KVT_OK)
        return status;
    w->counts.errors[status]++;
    if (!w->noted_error)
        say_text(REPLAY_NOTE, "%s gave %s: %s; such calls are counted, and the replay goes on",
                 call, kvt_status_name(status), kvt_last_error());
    w->noted_error = 1;
    return status;
}

/* --- reading what is held -----------------------------------------------------------------------
 */

/* Every second worker keeps its KV head by head, the others token by token. */
static void layout_of(const worker *w, size_t n_tokens, kvt_layout *ret_layout) {
    const kvt_geometry *g = &w->realm.geometry;
    if (w->index % 2)
        kvt_layout_head_major(g, n_tokens, w->part[0], w->part[1], ret_layout);
    else
        kvt_layout_token_major(g, n_tokens, w->part[0], w->part[1], ret_layout);
}

/* What was sealed, to the byte, or near it where the codec set loses something. */
static uint64_t check_rows(const worker *w, uint32_t from, uint32_t n, const kvt_layout *layout) {
    uint32_t n_layers = w->realm.geometry.n_layers;
    return replay_is_exact(&w->options)
               ? oracle_check(&w->oracle, w->rows + from, n, 0, n_layers, layout)
               : oracle_check_near(&w->oracle, w->rows + from, n, 0, n_layers, layout);
}

/* One page, which may have cooled: then it holds what the ladder makes of what was sealed. The
 * lease keeps it as it was when it was decoded. */
static uint64_t check_page(worker *w, const kvt_lease *lease, uint32_t from, uint32_t n,
                           const kvt_layout *layout) {
    uint32_t number = from / w->realm.geometry.page_tokens;
    size_t n_bytes = 0;
    int is_exact = 0;
    if (kvt_lease_copy_page(lease, number, 0, w->page, w->page_room, &n_bytes) != KVT_OK ||
        cooled_rung(w->cooled, w->page, n_bytes) < 1)
        return check_rows(w, from, n, layout);
    uint64_t wrong = cooled_check(w->cooled, &w->oracle, w->rows + from, n, number, w->page,
                                  n_bytes, layout, &is_exact);
    w->counts.pages_recompressed++;
    w->counts.pages_as_laddered += (uint64_t)is_exact;
    return wrong;
}

static void check(worker *w, const kvt_lease *lease, uint32_t from, uint32_t n,
                  const kvt_layout *layout) {
    uint32_t page_tokens = w->realm.geometry.page_tokens;
    uint64_t wrong = 0;
    if (cooled_rungs(w->cooled) == 1)
        wrong = check_rows(w, from, n, layout);
    for (uint32_t at = 0, m; cooled_rungs(w->cooled) > 1 && at < n; at += m) {
        kvt_layout here = kvt_layout_at_token(layout, at);
        m = n - at < page_tokens ? n - at : page_tokens;
        wrong += check_page(w, lease, from + at, m, &here);
    }
    w->counts.bytes_read += n * w->token_bytes;
    w->counts.wrong_bytes += wrong;
    if (wrong && !w->noted_wrong) {
        say_text(REPLAY_NOTE,
                 "WRONG BYTES: %llu of the %llu of tokens %u to %u; request %llu, line %llu, of %u "
                 "tokens",
                 (unsigned long long)wrong, (unsigned long long)(n * w->token_bytes), from,
                 from + n - 1, (unsigned long long)w->request->number,
                 (unsigned long long)w->request->line, w->request->n_tokens);
        w->noted_wrong = 1;
    }
}

/* Decodes and checks tokens 0 .. end - 1 of the lease. */
static kvt_status read_held(worker *w, kvt_lease *lease, uint32_t end) {
    for (uint32_t from = 0, n; from < end; from += n) {
        n = end - from < w->chunk_tokens ? end - from : w->chunk_tokens;
        kvt_layout layout;
        layout_of(w, n, &layout);
        kvt_status status = took(
            w, "kvt_decode", kvt_decode(lease, from, n, 0, w->realm.geometry.n_layers, &layout));
        if (status != KVT_OK)
            return status;
        check(w, lease, from, n, &layout);
    }
    return KVT_OK;
}

/* As long as others compute what comes next, and the options allow. */
static kvt_status wait_for_others(worker *w, kvt_lease *lease, kvt_lease_info *info) {
    double end_s = tool_now_s() + (double)w->options.wait_ms / 1e3;
    for (double left_s; info->computing_tokens > 0 && (left_s = end_s - tool_now_s()) > 0;) {
        kvt_status status =
            took(w, "kvt_wait", kvt_wait(lease, info->held_tokens, (uint32_t)(left_s * 1e3) + 1));
        if (status != KVT_OK)
            return status;
        kvt_lease_get(lease, info);
    }
    return KVT_OK;
}

/* --- filling what is missing --------------------------------------------------------------------
 */

/* Encodes pages from *page on until all that are claimed are, or staging is full. */
static kvt_status encode_pages(worker *w, kvt_lease *lease, const kvt_lease_info *info,
                               uint32_t *page) {
    const kvt_geometry *g = &w->realm.geometry;
    uint32_t page_tokens = g->page_tokens, first = *page;
    kvt_layout layout;
    layout_of(w, page_tokens, &layout);
    for (; *page * page_tokens < info->claimed_tokens; ++*page) {
        uint32_t at = *page * page_tokens, n = info->claimed_tokens - at;
        n = n < page_tokens ? n : page_tokens;
        oracle_fill(&w->oracle, w->rows + at, n, 0, g->n_layers, &layout);
        kvt_status status = kvt_encode(lease, *page, &layout);
        if (status == KVT_EFULL && *page > first)
            return KVT_OK;
        if (took(w, "kvt_encode", status) != KVT_OK)
            return status;
    }
    return KVT_OK;
}

static kvt_status fill_claimed(worker *w, kvt_lease *lease, const kvt_lease_info *info) {
    uint32_t page_tokens = w->realm.geometry.page_tokens;
    for (uint32_t page = info->held_tokens / page_tokens, first = page;
         page * page_tokens < info->claimed_tokens; first = page) {
        size_t sealed_tokens = 0;
        kvt_status status = encode_pages(w, lease, info, &page);
        if (status != KVT_OK)
            return status;
        status = took(w, "kvt_seal", kvt_seal(lease, &sealed_tokens));
        uint32_t end =
            page * page_tokens < info->claimed_tokens ? page * page_tokens : info->claimed_tokens;
        if (sealed_tokens >= end)
            w->counts.pages_sealed += page - first;
        else if (sealed_tokens > (size_t)first * page_tokens)
            w->counts.pages_sealed += sealed_tokens / page_tokens - first;
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

/* The daemon bounds what one worker may have claimed at the same time, so a long path is claimed
 * and filled in stretches. When a stretch is not longer than the one before, there is no room. */
static kvt_status fill_missing(worker *w, kvt_lease *lease) {
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    uint32_t n_tokens = w->request->n_tokens;
    while (info.held_tokens < info.claimed_tokens) {
        uint32_t end = info.claimed_tokens;
        kvt_status status = fill_claimed(w, lease, &info);
        if (status != KVT_OK || end >= n_tokens)
            return status;
        status = took(w, "kvt_extend",
                      kvt_extend(lease, end, w->request->tokens + end, n_tokens - end, KVT_CLAIM));
        if (status != KVT_OK)
            return status;
        kvt_lease_get(lease, &info);
        if (info.claimed_tokens <= end)
            break;
    }
    return KVT_OK;
}

/* --- requests -----------------------------------------------------------------------------------
 */

static void serve_lease(worker *w, kvt_lease *lease) {
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    if (wait_for_others(w, lease, &info) != KVT_OK)
        return;
    if (read_held(w, lease, info.held_tokens) != KVT_OK)
        return;
    w->counts.tokens_served += info.held_tokens;
    w->counts.pages_shared += info.foreign_pages;
    w->counts.pages_host += info.host_pages;
    w->counts.pages_disk += info.disk_pages;
    fill_missing(w, lease);
}

static int note_latency(worker *w, double us) {
    if (w->n_latencies == w->latencies_room) {
        size_t room = w->latencies_room ? 2 * w->latencies_room : 1024;
        double *more = realloc(w->latencies_us, room * sizeof *more);
        if (!more)
            return 0;
        w->latencies_us = more;
        w->latencies_room = room;
    }
    w->latencies_us[w->n_latencies++] = us;
    return 1;
}

static int serve_request(worker *w, const trace_request *request) {
    kvt_lease *lease;
    w->request = request;
    w->counts.requests++;
    w->counts.tokens_asked += request->n_tokens;
    oracle_rows(&w->oracle, request->tokens, request->n_tokens, w->rows);
    double start_s = tool_now_s();
    kvt_status status =
        kvt_acquire(w->client, request->tokens, request->n_tokens, KVT_CLAIM, &lease);
    double end_s = tool_now_s();
    if (took(w, "kvt_acquire", status) == KVT_OK) {
        if (!note_latency(w, (end_s - start_s) * 1e6))
            return give_up(TOOL_SYSTEM, "no memory");
        serve_lease(w, lease);
        took(w, "kvt_release", kvt_release(lease));
    } else if (status == KVT_ECONN) {
        poll(NULL, 0, AWAY_MS);
    }
    if (tool_now_s() - w->answered_s > GIVE_UP_S + (double)w->options.timeout_ms / 1e3)
        return give_up(TOOL_NO_DAEMON, "the daemon is gone and does not come back");
    say_progress(w);
    return TOOL_OK;
}

static int replay_trace(worker *w) {
    char why[REPLAY_MAX_TEXT_BYTES] = "";
    trace *t;
    trace_request request;
    kvt_status status = trace_open(w->options.trace, why, sizeof why, &t);
    if (status != KVT_OK)
        return give_up(TOOL_BAD_INPUT, why);
    int code = TOOL_OK;
    for (uint64_t i = 0; code == TOOL_OK; i++) {
        if (w->options.n_requests && i >= w->options.n_requests)
            break;
        int mine = i % w->options.n_workers == w->index;
        status = mine ? trace_next(t, &request) : trace_skip(t, &request);
        if (status != KVT_OK)
            break;
        if (mine)
            code = serve_request(w, &request);
    }
    if (status != KVT_OK && status != KVT_ENOENT)
        code = give_up(TOOL_BAD_INPUT, trace_why(t));
    trace_close(t);
    return code;
}

/* --- start and end ------------------------------------------------------------------------------
 */

static uint64_t at_most(uint64_t n, uint64_t most) {
    return n < most ? n : most;
}

/* The daemon says in its report whether pages cool, and how. */
static int open_cooled(worker *w, uint64_t page_bytes) {
    char *text = NULL;
    kvt_status status = kvt_status_json(w->client, &text);
    if (status != KVT_OK)
        return give_up(tool_code(status), kvt_last_error());
    cJSON *report = cJSON_Parse(text);
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(report, "config");
    const cJSON *ladder = cJSON_GetObjectItemCaseSensitive(config, "ladder");
    status = cooled_open(&w->realm, cJSON_IsString(ladder) ? ladder->valuestring : "", &w->cooled);
    cJSON_Delete(report);
    kvt_free(text);
    w->page_room = (page_bytes + 63) / 64 * 64;
    w->page = aligned_alloc(64, w->page_room);
    return status == KVT_OK && w->page ? TOOL_OK : give_up(TOOL_SYSTEM, "no memory");
}

static int worker_open(worker *w) {
    char why[REPLAY_MAX_TEXT_BYTES] = "", name[32];
    uint64_t page_bytes;
    kvt_status status = replay_realm(&w->options, why, sizeof why, &w->realm, &page_bytes);
    if (status != KVT_OK)
        return give_up(tool_code(status), why);
    oracle_init(&w->realm, &w->oracle);
    const kvt_geometry *g = &w->realm.geometry;
    uint64_t row_heads = (uint64_t)g->n_layers * g->n_kv_heads;
    w->token_bytes = 2 * row_heads * (g->head_dim[0] + g->head_dim[1]);
    w->chunk_tokens =
        (uint32_t)at_most(1 + CHUNK_BYTES / (w->token_bytes * g->page_tokens), CHUNK_PAGES) *
        g->page_tokens;
    w->rows = malloc(KVT_MAX_REQUEST_TOKENS * sizeof *w->rows);
    for (int p = 0; p < 2; p++)
        w->part[p] = calloc(w->chunk_tokens * row_heads, 2ull * g->head_dim[p]);
    if (!w->rows || !w->part[0] || !w->part[1])
        return give_up(TOOL_SYSTEM, "no memory");
    snprintf(name, sizeof name, "replay %llu", (unsigned long long)w->index);
    kvt_options options = {.socket = w->options.socket,
                           .name = name,
                           .timeout_ms = (uint32_t)w->options.timeout_ms,
                           .staging_pages = replay_staging_pages(page_bytes)};
    status = kvt_open(&options, &w->realm, &w->client);
    if (status != KVT_OK)
        return give_up(tool_code(status), kvt_last_error());
    w->answered_s = tool_now_s();
    return open_cooled(w, page_bytes);
}

static int run(const tool_command *self, int argc, char **argv) {
    static worker w;
    replay_options *o = &w.options;
    const tool_option options[] = {
        {.name = "trace", .text = &o->trace},
        {.name = "connect", .text = &o->socket},
        {.name = "codec", .text = &o->codec},
        {.name = "dtype", .text = &o->dtype},
        {.name = "index", .number = &w.index, .high = UINT64_MAX},
        {.name = "workers", .number = &o->n_workers, .low = 1, .high = REPLAY_MAX_WORKERS},
        {.name = "requests", .number = &o->n_requests, .high = UINT64_MAX},
        {.name = "layers", .number = &o->layers, .high = UINT32_MAX},
        {.name = "heads", .number = &o->heads, .high = UINT32_MAX},
        {.name = "head-dim", .number = &o->head_dim, .high = UINT32_MAX},
        {.name = "page-tokens", .number = &o->page_tokens, .high = UINT32_MAX},
        {.name = "wait", .number = &o->wait_ms, .high = UINT32_MAX},
        {.name = "timeout", .number = &o->timeout_ms, .high = UINT32_MAX},
        {0}};
    int n, code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code == TOOL_OK && (!o->trace || !o->socket || !o->codec || !o->dtype || !o->n_workers))
        code = tool_fail(TOOL_USAGE, "replay-worker: is started by kvtrunk replay");
    if (code != TOOL_OK)
        return code;
    code = worker_open(&w);
    if (code == TOOL_OK)
        code = replay_trace(&w);
    kvt_close(w.client);
    if (code == TOOL_OK) {
        say(REPLAY_LATENCIES, w.latencies_us, w.n_latencies * sizeof *w.latencies_us);
        say(REPLAY_END, &w.counts, sizeof w.counts);
    }
    free(w.latencies_us);
    free(w.rows);
    free(w.part[0]);
    free(w.part[1]);
    free(w.page);
    cooled_close(w.cooled);
    return code;
}

const tool_command tool_replay_worker = {
    .name = "replay-worker",
    .operands = "",
    .run = run,
};
