/*
 * tool_replay.c - kvtrunk replay: reads the trace once to know what was possible, starts a daemon
 * if none was named, lets worker processes do the requests, and tells how it went.
 */
#include "client/oracle.h"
#include "client/tool_replay.h"
#include "client/trace.h"
#include "daemon/policy.h"
#include "kernels/page.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WHY_BYTES = 384,
    STAGING_BYTES = 64 << 20,
    STAGING_PAGES = 256,
};

kvt_status replay_realm(const replay_options *o, char *why, size_t why_bytes, kvt_realm *ret_realm,
                        uint64_t *ret_page_bytes) {
    kvt_geometry g;
    kvt_page_shape shape;
    kvt_geometry_init(&g, (uint32_t)o->layers, (uint32_t)o->heads, (uint32_t)o->head_dim,
                      (uint32_t)o->page_tokens);
    g.dtype = strcmp(o->dtype, "bf16") == 0 ? KVT_BF16 : KVT_F16;
    kvt_status status = kvt_geometry_check(&g, why, why_bytes);
    if (status == KVT_OK)
        status = kvt_page_shape_init(&g, 0, o->codec, why, why_bytes, &shape);
    if (status != KVT_OK)
        return status;
    for (uint32_t i = 0; i < shape.n_ranges; i++) {
        const uint8_t *codec = shape.ranges[i].codec;
        if (codec[0] == KVT_CODEC_I2K || codec[0] == KVT_CODEC_W2V || codec[1] == KVT_CODEC_I2K ||
            codec[1] == KVT_CODEC_W2V) {
            snprintf(why, why_bytes,
                     "codec set \"%s\": two bits lose more than a replay can tell from an error",
                     o->codec);
            return KVT_ENOTSUP;
        }
    }
    *ret_realm =
        (kvt_realm){.model = "replay", .engine = "oracle", .codec = o->codec, .geometry = g};
    if (ret_page_bytes)
        *ret_page_bytes = kvt_page_max_bytes(&shape);
    return KVT_OK;
}

uint32_t replay_staging_pages(uint64_t page_bytes) {
    uint64_t n = 2 + STAGING_BYTES / page_bytes;
    return n < STAGING_PAGES ? (uint32_t)n : STAGING_PAGES;
}

int replay_is_exact(const replay_options *options) {
    return strcmp(options->codec, "f16") == 0;
}

/* --- what the trace has to offer ----------------------------------------------------------------
 */

static kvt_status count_requests(const replay_options *options, trace *t, reuse *counter,
                                 const oracle *o, uint64_t *rows) {
    trace_request request;
    kvt_status status = KVT_OK;
    for (uint64_t i = 0; !options->n_requests || i < options->n_requests; i++) {
        status = trace_next(t, &request);
        if (status != KVT_OK)
            break;
        oracle_rows(o, request.tokens, request.n_tokens, rows);
        status = reuse_add(counter, rows, request.n_tokens);
        if (status != KVT_OK)
            break;
        if (tool_stopping())
            return KVT_ECANCELED;
    }
    return status == KVT_ENOENT ? KVT_OK : status;
}

static kvt_status count_trace(const replay_options *options, trace *t, const trace_info *info,
                              const oracle *o, reuse_counts *ret_possible) {
    reuse *counter = NULL;
    uint32_t step = info->kind == TRACE_PCT1 ? info->block_tokens : 1;
    uint64_t *rows = malloc(KVT_MAX_REQUEST_TOKENS * sizeof *rows);
    kvt_status status =
        rows ? reuse_open(step, (uint32_t)options->page_tokens, &counter) : KVT_ENOMEM;
    if (status == KVT_OK)
        status = count_requests(options, t, counter, o, rows);
    if (status == KVT_OK)
        reuse_get(counter, ret_possible);
    reuse_close(counter);
    free(rows);
    return status;
}

/* The largest page that is allowed, is no more than the recommended one, and in which the trace's
 * blocks end where pages end. */
static uint64_t default_page_tokens(const trace_info *info) {
    uint64_t n = 64;
    while (info->kind == TRACE_PCT1 && n > 16 && info->block_tokens % n != 0)
        n /= 2;
    return n;
}

static int look_at_trace(replay_options *options, reuse_counts *ret_possible) {
    char why[WHY_BYTES] = "";
    trace *t;
    trace_info info;
    kvt_realm realm;
    oracle o;
    kvt_status status = trace_open(options->trace, why, sizeof why, &t);
    if (status != KVT_OK)
        return tool_fail(status == KVT_ENOMEM ? TOOL_SYSTEM : TOOL_BAD_INPUT, "%s: %s",
                         options->trace, why);
    trace_info_get(t, &info);
    if (!options->page_tokens)
        options->page_tokens = default_page_tokens(&info);
    int code = TOOL_OK;
    status = replay_realm(options, why, sizeof why, &realm, NULL);
    if (status != KVT_OK) {
        code = tool_fail(TOOL_USAGE, "%s", why);
        goto out;
    }
    oracle_init(&realm, &o);
    status = count_trace(options, t, &info, &o, ret_possible);
    if (status == KVT_ECANCELED)
        code = TOOL_FAILED;
    else if (status == KVT_ENOMEM)
        code = tool_fail(TOOL_SYSTEM, "%s: no memory", options->trace);
    else if (status != KVT_OK)
        code = tool_fail(TOOL_BAD_INPUT, "%s: %s", options->trace, trace_why(t));
out:
    trace_close(t);
    return code;
}

/* --- the private daemon -------------------------------------------------------------------------
 */

static int take_capacity(const char *text, uint64_t unique_pages, uint64_t *ret_max_pages) {
    const char *end;
    double n = tool_decimal(text, &end);
    int percent = strcmp(end, "%") == 0;
    if ((*end && !percent) || !(n > 0) || n > (percent ? 1000 : 1 << 26) ||
        (!percent && n != (double)(uint64_t)n))
        return tool_fail(TOOL_USAGE,
                         "replay --capacity %s: a number of pages is needed, or a part of the "
                         "trace's different pages such as 10%%",
                         text);
    *ret_max_pages = percent ? (uint64_t)(n / 100 * (double)unique_pages + .5) : (uint64_t)n;
    if (*ret_max_pages < 1)
        *ret_max_pages = 1;
    return TOOL_OK;
}

static int start_daemon(replay_options *options, const reuse_counts *possible, tool_daemon *d,
                        uint64_t *ret_max_pages) {
    kvt_realm realm;
    char why[WHY_BYTES] = "";
    uint64_t page_bytes, max_pages = 0, mib = 1 << 20;
    int code = TOOL_OK;
    if (options->capacity)
        code = take_capacity(options->capacity, possible->unique_pages, &max_pages);
    if (code != TOOL_OK)
        return code;
    kvt_status status = replay_realm(options, why, sizeof why, &realm, &page_bytes);
    if (status != KVT_OK)
        return tool_fail(TOOL_USAGE, "%s", why);
    /* Room for all is somewhat more than the trace has: each worker may be sealing pages that
     * another one has just sealed. */
    if (!options->capacity)
        max_pages = possible->unique_pages + possible->unique_pages / 64 + 64 +
                    options->n_workers * replay_staging_pages(page_bytes);
    /* Frames must never be what is short, since pages are what --capacity counts: 6 % for what
     * slabs waste, and some for sizes that only short pages have. */
    uint64_t arena = (max_pages * page_bytes / 100 * 106 / mib + 8) * mib;
    code = tool_daemon_start(max_pages, arena, (uint32_t)options->page_tokens, options->policy, d);
    if (code != TOOL_OK && !tool_stopping() && arena > (uint64_t)1 << 30)
        tool_fail(code,
                  "room for %s pages of up to %s was asked for, %s of shared memory in all; "
                  "--capacity or --requests makes that less",
                  tool_number(max_pages), tool_size(page_bytes), tool_size(arena));
    options->socket = d->socket;
    *ret_max_pages = max_pages;
    return code;
}

/* --- the command --------------------------------------------------------------------------------
 */

static int read_options(const tool_command *self, int argc, char **argv, replay_options *o) {
    const tool_option options[] = {
        {.name = "workers",
         .value = "N",
         .number = &o->n_workers,
         .low = 1,
         .high = REPLAY_MAX_WORKERS,
         .help = "processes that share the requests: the first takes the first, the second the "
                 "second, and so on in turns (1)"},
        {.name = "requests",
         .value = "N",
         .number = &o->n_requests,
         .low = 1,
         .high = UINT32_MAX,
         .help = "only the first N requests of the trace"},
        {.name = "connect",
         .value = "PATH",
         .text = &o->socket,
         .help = "use the daemon at this socket; without it, one is started for the replay in a "
                 "folder of its own, and stopped after it"},
        {.name = "capacity",
         .value = "X",
         .text = &o->capacity,
         .help = "pages that the started daemon has room for: a number, or a part of the trace's "
                 "different pages such as 10% (room for all)"},
        {.name = "policy",
         .value = "NAME",
         .text = &o->policy,
         .help =
             "which pages go first in the started daemon when room is needed: worth or lru, see "
             "kvtrunkd.conf(5) (worth)"},
        {.name = "wait",
         .value = "MS",
         .number = &o->wait_ms,
         .high = 3600000,
         .help = "wait so long for pages that another worker is computing, instead of computing "
                 "them as well (0)"},
        {.name = "timeout",
         .value = "MS",
         .number = &o->timeout_ms,
         .low = 1,
         .high = 3600000,
         .help = "bound of each call to the daemon (20000)"},
        {.name = "layers",
         .value = "N",
         .number = &o->layers,
         .low = 1,
         .high = KVT_MAX_LAYERS,
         .help = "layers of a page (1)"},
        {.name = "heads",
         .value = "N",
         .number = &o->heads,
         .low = 1,
         .high = KVT_MAX_HEADS,
         .help = "KV heads of a layer (1)"},
        {.name = "head-dim",
         .value = "N",
         .number = &o->head_dim,
         .low = 2,
         .high = KVT_MAX_HEAD_DIM,
         .help = "elements of a head, even (4)"},
        {.name = "page-tokens",
         .value = "N",
         .number = &o->page_tokens,
         .low = 16,
         .high = 128,
         .help = "tokens of a page: 16, 32, 64, 128 (64, or the trace's block if that is less)"},
        {.name = "dtype", .value = "TYPE", .text = &o->dtype, .help = "f16 or bf16 (f16)"},
        {.name = "codec",
         .value = "SET",
         .text = &o->codec,
         .help = "codec set of the pages (f16). With f16 every byte that is read must be the one "
                 "that was written; with a set that loses something, every row must be near it"},
        {.name = "json", .flag = &o->json, .help = "one JSON object at the end, nothing before"},
        {0}};
    policy_rule rule;
    int n = 0, code = tool_options(self, argc, argv, options, &o->trace, 1, &n);
    if (code != TOOL_OK)
        return code;
    if (n == 0)
        return tool_fail(TOOL_USAGE, "replay: the name of a trace is needed (see kvtrunk replay "
                                     "--help)");
    if (o->capacity && o->socket)
        return tool_fail(TOOL_USAGE,
                         "replay --capacity: is for a daemon that replay starts itself; "
                         "one that --connect names has its own");
    if (!policy_of_name(o->policy, &rule))
        return tool_fail(TOOL_USAGE, "replay --policy %s: worth or lru is needed", o->policy);
    if (strcmp(o->dtype, "f16") != 0 && strcmp(o->dtype, "bf16") != 0)
        return tool_fail(TOOL_USAGE, "replay --dtype %s: f16 or bf16 is needed", o->dtype);
    return TOOL_OK;
}

/* Who does not answer any more has been told of elsewhere. */
static int is_on_gpu(const replay_options *o) {
    kvt_options options = {.socket = o->socket, .name = "kvtrunk replay", .timeout_ms = 2000};
    kvt_client *client;
    char *json;
    int on_gpu = 0;
    if (kvt_open_reports(&options, &client) != KVT_OK)
        return 0;
    if (kvt_status_json(client, &json) == KVT_OK) {
        on_gpu = strstr(json, "\"device\":\"cuda\"") != NULL;
        kvt_free(json);
    }
    kvt_close(client);
    return on_gpu;
}

static int run(const tool_command *self, int argc, char **argv) {
    replay_options options = {.n_workers = 1,
                              .layers = 1,
                              .heads = 1,
                              .head_dim = 4,
                              .codec = "f16",
                              .dtype = "f16",
                              .policy = "worth",
                              .timeout_ms = 20000};
    reuse_counts possible = {0};
    replay_result result = {0};
    tool_daemon d = {0};
    uint64_t max_pages = 0;
    int code = read_options(self, argc, argv, &options);
    int own_daemon = options.socket == NULL;
    if (code == TOOL_OK)
        code = look_at_trace(&options, &possible);
    if (code == TOOL_OK && own_daemon)
        code = start_daemon(&options, &possible, &d, &max_pages);
    if (code != TOOL_OK)
        return code;
    code = replay_crew(&options, &possible, own_daemon ? &d : NULL, &result);
    result.on_gpu = code == TOOL_OK && is_on_gpu(&options);
    if (own_daemon) {
        int end = tool_daemon_stop(&d);
        code = code == TOOL_OK ? end : code;
    }
    if (code == TOOL_OK || result.counts.wrong_bytes > 0) {
        replay_report(&options, &possible, max_pages, &result);
        code = result.counts.wrong_bytes > 0 ? TOOL_FAILED : code;
    }
    free(result.latencies_us);
    return code;
}

const tool_command tool_replay = {
    .name = "replay",
    .operands = "TRACE",
    .summary = "ask for the prompts of a trace, and check every byte that is served",
    .about =
        "Worker processes ask for one prompt of the trace after another. Each decodes the prefix\n"
        "that is held and compares all of its bytes with what they must be; it fills the pages "
        "that\n"
        "are missing with bytes that are a function of the realm and of all tokens up to each "
        "row,\n"
        "seals them, and lets go. So a page that was mixed up, stale or damaged is seen.\n"
        "\n"
        "TRACE is a PCT1 file (prompts as runs of block ids) or a token stream (.tokens.jsonl),\n"
        "gzipped or not; client/trace.h and kvtrunk(1) describe both. Times in it are not kept "
        "to.\n"
        "\n"
        "tokens_best is what the trace alone allows, counted apart from the daemon: with room for\n"
        "all and one worker, tokens_served equals it. Several workers compute some prefixes "
        "twice,\n"
        "since they ask at the same time.\n",
    .examples =
        "  # is a hit always right, and how much is reused? (a daemon of its own)\n"
        "  kvtrunk replay tests/traces/mooncake_conversation_2500.pct.gz --workers 4\n"
        "  # what if there is room for a tenth of it only?\n"
        "  kvtrunk replay tests/traces/mooncake_conversation.pct.gz --capacity 10%\n"
        "  # against a daemon that runs, with pages like those of Llama-3-8B\n"
        "  kvtrunk replay tests/traces/taubench_airline.tokens.jsonl.gz --connect /run/k.sock \\\n"
        "      --layers 32 --heads 8 --head-dim 128 --requests 50 --json\n",
    .run = run,
};
