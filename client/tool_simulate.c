/*
 * tool_simulate.c - kvtrunk simulate: what hit rate a trace would have with so much room, under
 * each policy and codec set. Runs the daemon's own tree and policy; no daemon is asked.
 */
#include "client/tool_simulate.h"
#include "client/tool_sizes.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CAPACITIES = 64, MAX_RULES = 3, WHY_BYTES = 384 };

typedef struct capacity {
    double percent; /* of the bytes that all different pages take with 16 bits an element */
    uint64_t bytes;
} capacity;

/* A row's policy; OPT is none of the daemon's. */
typedef struct rule {
    const char *name;
    policy_rule rule;
    int is_opt;
} rule;

typedef struct codec {
    char name[256]; /* a set, or the sets of a ladder with " > " between them */
    uint32_t n_rungs;
    uint64_t full_bytes[SIM_MAX_RUNGS];
} codec;

typedef struct request {
    const char *path, *capacity, *policy, *codec, *ladder, *model;
    uint64_t page_tokens, n_requests;
    int json;
    sim_trace trace;
    kvt_geometry geometry;
    uint64_t plain_bytes; /* of a page with 16 bits an element */
    capacity capacities[MAX_CAPACITIES];
    rule rules[MAX_RULES];
    codec codecs[SIM_MAX_SETS + 1];
    uint32_t n_capacities, n_rules, n_codecs;
} request;

/* --- what is asked for --------------------------------------------------------------------------
 */

/* The next item of a list with commas, in item[0 .. 256). A comma in front of "v:" or "rope:" is
 * part of a codec set. 0: there is none. */
static int next_item(const char **list, char *item) {
    const char *at = *list;
    size_t n = 0;
    if (!*at)
        return 0;
    while (at[n] && !(at[n] == ',' && strncmp(at + n + 1, "v:", 2) != 0 &&
                      strncmp(at + n + 1, "rope:", 5) != 0))
        n++;
    snprintf(item, 256, "%.*s", (int)(n < 255 ? n : 255), at);
    *list = at[n] ? at + n + 1 : at + n;
    return 1;
}

/* "5%", "4096", "1B", "64GiB". */
static int read_capacity(const request *r, const char *text, capacity *ret) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    const char *end = "?";
    double all = (double)r->plain_bytes * (double)r->trace.n_pages;
    double n = tool_decimal(text, &end), bytes = *end ? -1 : n;
    if (strcmp(end, "%") == 0 && n >= 0 &&
        n <= 1e6) { /* whole pages, as the trace's own count of hits has them; one of a
                     * trace that has but a few */
        double pages = (double)(uint64_t)((double)r->trace.n_pages * n / 100);
        bytes = (n > 0 && pages < 1 ? 1 : pages) * (double)r->plain_bytes;
    }
    for (int i = 0; i < 5; i++, n *= 1024)
        if (strcmp(end, units[i]) == 0)
            bytes = n;
    if (!(bytes >= 0 && bytes < 1e18))
        return tool_fail(TOOL_USAGE,
                         "simulate --capacity %s: a part of what all different pages take with 16 "
                         "bits an element is needed (10%%), or bytes (64GiB)",
                         text);
    *ret = (capacity){.percent = 100 * bytes / all, .bytes = (uint64_t)bytes};
    return TOOL_OK;
}

static int read_capacities(request *r) {
    char item[256];
    for (const char *list = r->capacity; next_item(&list, item);) {
        if (r->n_capacities == MAX_CAPACITIES)
            return tool_fail(TOOL_USAGE, "simulate --capacity: at most %d can be named",
                             MAX_CAPACITIES);
        int code = read_capacity(r, item, &r->capacities[r->n_capacities]);
        if (code != TOOL_OK)
            return code;
        r->n_capacities++;
    }
    return TOOL_OK;
}

static int read_rules(request *r) {
    char item[256];
    for (const char *list = r->policy; next_item(&list, item);) {
        rule one = {.name = "opt", .is_opt = strcmp(item, "opt") == 0};
        if (!one.is_opt && !policy_of_name(item, &one.rule))
            return tool_fail(TOOL_USAGE, "simulate --policy %s: there are worth, lru and opt",
                             item);
        if (!one.is_opt)
            one.name = policy_name(one.rule);
        if (r->n_rules == MAX_RULES)
            return tool_fail(TOOL_USAGE, "simulate --policy: each can be named once");
        r->rules[r->n_rules++] = one;
    }
    return TOOL_OK;
}

/* Bytes of a full page, or of the pages that make up a block that is kept as one. */
static int page_bytes(const request *r, const char *set, uint64_t *ret_bytes) {
    char why[WHY_BYTES] = "";
    sizes_plan plan;
    kvt_status status = sizes_make_plan(&r->geometry, set, 1, why, sizeof why, &plan);
    if (status != KVT_OK)
        return tool_fail(TOOL_USAGE, "simulate: %s", why);
    *ret_bytes = 0;
    for (uint32_t i = 0; i < r->geometry.n_groups; i++)
        *ret_bytes += plan.groups[i].page_bytes;
    *ret_bytes = sim_bytes(*ret_bytes, r->trace.full_tokens, r->trace.page_tokens);
    return TOOL_OK;
}

static int add_rung(const request *r, codec *c, const char *set) {
    size_t n = strlen(c->name);
    if (c->n_rungs == SIM_MAX_RUNGS)
        return tool_fail(TOOL_USAGE, "simulate --ladder: at most %d sets", SIM_MAX_RUNGS);
    snprintf(c->name + n, sizeof c->name - n, "%s%s", n ? " > " : "", set);
    int code = page_bytes(r, set, &c->full_bytes[c->n_rungs++]);
    if (code == TOOL_OK && c->n_rungs > 1 &&
        c->full_bytes[c->n_rungs - 1] >= c->full_bytes[c->n_rungs - 2])
        return tool_fail(TOOL_USAGE, "simulate --ladder: %s takes no less than what it comes from",
                         set);
    return code;
}

static int read_codecs(request *r) {
    char item[256];
    int code = TOOL_OK;
    const char *list = r->codec ? r->codec : r->ladder ? "" : "f16";
    while (code == TOOL_OK && next_item(&list, item)) {
        if (r->n_codecs == SIM_MAX_SETS)
            return tool_fail(TOOL_USAGE, "simulate --codec: at most %d sets", SIM_MAX_SETS);
        code = add_rung(r, &r->codecs[r->n_codecs++], item);
    }
    if (code != TOOL_OK || !r->ladder)
        return code;
    codec *ladder = &r->codecs[r->n_codecs++];
    for (list = r->ladder; code == TOOL_OK && next_item(&list, item);)
        code = add_rung(r, ladder, item);
    if (code == TOOL_OK && ladder->n_rungs < 2)
        return tool_fail(TOOL_USAGE, "simulate --ladder %s: two sets or more are needed: i8,i4",
                         r->ladder);
    return code;
}

static int read_geometry(request *r) {
    sizes_model model;
    if (r->model) {
        int code = sizes_read_model(r->model, r->trace.page_tokens, &model);
        if (code == TOOL_OK)
            r->geometry = model.geometry;
        return code;
    }
    kvt_geometry_init(&r->geometry, 32, 8, 128, r->trace.page_tokens); /* Llama-3-8B's */
    return TOOL_OK;
}

/* --- rows ---------------------------------------------------------------------------------------
 */

static void print_head(const request *r) {
    const sim_trace *t = &r->trace;
    printf("%s: %s requests in %.1f hours, %s tokens in %s pages", r->path,
           tool_number(t->n_requests), t->hours, tool_number(t->tokens_asked),
           tool_number(t->n_asked));
    printf(" of %u tokens, %s of them different\n", t->full_tokens, tool_number(t->n_pages));
    printf("all of them with 16 bits an element: %s\n\n", tool_size(r->plain_bytes * t->n_pages));
    printf("%9s %11s  %-6s %-12s %11s %7s %12s\n", "capacity", "", "policy", "codec", "pages kept",
           "hits", "evictions");
}

static void print_row(const request *r, const capacity *c, const rule *p, const codec *set,
                      const sim_result *result, int is_first) {
    double hits = 100 * (double)result->tokens_found / (double)r->trace.tokens_asked;
    if (!r->json) {
        printf("%7.2f %% %11s  %-6s %-12s %11s %6.2f%% %12s\n", c->percent, tool_size(c->bytes),
               p->name, set->name, tool_number(result->pages_most), hits,
               tool_number(result->evictions));
        return;
    }
    printf("%s{\"capacity_pct\":%.6g,\"capacity_bytes\":%llu,\"policy\":\"%s\",\"codec\":",
           is_first ? "[" : ",\n ", c->percent, (unsigned long long)c->bytes, p->name);
    tool_json_text(stdout, set->name);
    printf(",\"hit_pct\":%.4f,\"evictions\":%llu,\"cooled\":%llu,\"pages_kept\":%llu}", hits,
           (unsigned long long)result->evictions, (unsigned long long)result->cooled,
           (unsigned long long)result->pages_most);
}

static int run_row(const request *r, const capacity *c, const rule *p, const codec *set,
                   int is_first) {
    sim_setting setting = {.capacity_bytes = c->bytes, .rule = p->rule, .n_rungs = set->n_rungs};
    sim_result result = {0};
    memcpy(setting.full_bytes, set->full_bytes, sizeof setting.full_bytes);
    kvt_status status = p->is_opt ? sim_run_opt(&r->trace, &setting, &result)
                                  : sim_run(&r->trace, &setting, &result);
    if (status != KVT_OK)
        return tool_fail(TOOL_SYSTEM, "simulate: no memory for a run with %s", tool_size(c->bytes));
    print_row(r, c, p, set, &result, is_first);
    fflush(stdout);
    return TOOL_OK;
}

static int takes(const rule *p, const codec *set) {
    return !p->is_opt || set->n_rungs == 1; /* opt has no ladder */
}

/* Before the first row, so that what is printed is whole. */
static int check_rows(const request *r) {
    int n = 0;
    for (uint32_t k = 0; k < r->n_codecs; k++) {
        const codec *set = &r->codecs[k];
        uint64_t least = set->full_bytes[0];
        for (uint32_t i = 1; i < set->n_rungs; i++)
            least = set->full_bytes[i] < least ? set->full_bytes[i] : least;
        for (uint32_t c = 0; c < r->n_capacities; c++)
            if (r->capacities[c].bytes < least)
                return tool_fail(TOOL_USAGE,
                                 "simulate: a capacity of %.4g %%, %s, is less than a page of %s "
                                 "takes; name larger ones (--capacity)",
                                 r->capacities[c].percent, tool_size(r->capacities[c].bytes),
                                 set->name);
        for (uint32_t p = 0; p < r->n_rules; p++)
            n += takes(&r->rules[p], set);
    }
    return n > 0
               ? TOOL_OK
               : tool_fail(TOOL_USAGE, "simulate: opt has no ladder: name worth or lru (--policy), "
                                       "or codec sets beside it (--codec)");
}

static int run_rows(const request *r) {
    int code = check_rows(r), n = 0;
    if (code != TOOL_OK)
        return code;
    if (!r->json)
        print_head(r);
    for (uint32_t c = 0; c < r->n_capacities; c++)
        for (uint32_t k = 0; k < r->n_codecs; k++)
            for (uint32_t p = 0; p < r->n_rules && code == TOOL_OK; p++)
                if (takes(&r->rules[p], &r->codecs[k])) {
                    code = run_row(r, &r->capacities[c], &r->rules[p], &r->codecs[k], n == 0);
                    n += code == TOOL_OK;
                }
    if (r->json)
        puts(n ? "]" : "[]");
    return code;
}

/* --- the command --------------------------------------------------------------------------------
 */

static int simulate(request *r) {
    int code = sim_trace_read(r->path, (uint32_t)r->page_tokens, r->n_requests, &r->trace);
    if (code == TOOL_OK)
        code = read_geometry(r);
    if (code == TOOL_OK)
        code = page_bytes(r, "f16", &r->plain_bytes);
    if (code == TOOL_OK)
        code = read_capacities(r);
    if (code == TOOL_OK)
        code = read_codecs(r);
    return code == TOOL_OK ? run_rows(r) : code;
}

static int run(const tool_command *self, int argc, char **argv) {
    request r = {.capacity = "5%,10%,25%,50%", .policy = "worth"};
    int n;
    const tool_option options[] = {
        {.name = "capacity",
         .value = "LIST",
         .text = &r.capacity,
         .help = "room for pages: parts of what all different pages of the trace take with 16 bits "
                 "an element (10%), or bytes (64GiB), with commas between them (5%,10%,25%,50%)"},
        {.name = "policy",
         .value = "LIST",
         .text = &r.policy,
         .help = "worth or lru, the daemon's; opt, which knows the future (worth)"},
        {.name = "codec",
         .value = "LIST",
         .text = &r.codec,
         .help = "codec sets, as realms name them, with commas between them (f16)"},
        {.name = "ladder",
         .value = "LIST",
         .text = &r.ladder,
         .help = "codec sets that a page goes through as it cools, before it is evicted: i8,i4"},
        {.name = "model",
         .value = "FILE",
         .text = &r.model,
         .help = "config.json of the model that has the pages (Llama-3-8B)"},
        {.name = "page-tokens",
         .value = "N",
         .number = &r.page_tokens,
         .low = 16,
         .high = 128,
         .help = "simulate pages of so many tokens: 16, 32, 64 or 128 (whole blocks of a trace of "
                 "blocks; 64 of a token stream)"},
        {.name = "requests",
         .value = "N",
         .number = &r.n_requests,
         .low = 1,
         .high = UINT32_MAX,
         .help = "only the first N requests of the trace"},
        {.name = "json", .flag = &r.json, .help = "a list of objects, one a row"},
        {0}};
    int code = tool_options(self, argc, argv, options, &r.path, 1, &n);
    if (code != TOOL_OK)
        return code;
    if (n == 0)
        return tool_fail(TOOL_USAGE, "simulate: which trace? kvtrunk simulate TRACE");
    if (r.page_tokens & (r.page_tokens - 1))
        return tool_fail(TOOL_USAGE, "simulate --page-tokens %llu: 16, 32, 64 or 128 is possible",
                         (unsigned long long)r.page_tokens);
    code = read_rules(&r);
    if (code == TOOL_OK)
        code = simulate(&r);
    sim_trace_free(&r.trace);
    return code;
}

const tool_command tool_simulate = {
    .name = "simulate",
    .operands = "TRACE",
    .summary = "the hit rate of a trace with so much room, under each policy and codec set",
    .about =
        "Runs the daemon's own tree and eviction policy over the requests of a trace, one after\n"
        "another and without payload: some hundred times faster than the requests came. A row for\n"
        "each capacity, codec set and policy:\n"
        "\n"
        "  capacity    room for pages, of all tiers together. Per cent are of what the trace's\n"
        "              different pages take with 16 bits an element, so a row with a smaller\n"
        "              codec set has the same bytes and room for more pages\n"
        "  policy      worth, lru: as in kvtrunkd.conf(5). opt keeps what is asked for soonest\n"
        "              and does not put in what is not: with pages of one size (any trace of\n"
        "              blocks) no policy finds more\n"
        "  codec       of the pages; \"i8 > i4\": the coldest are put into fewer bits when room "
        "is\n"
        "              needed, and evicted when none is left that could be\n"
        "  pages kept  most at the same time\n"
        "  hits        tokens found, in per cent of those asked for\n"
        "  evictions   pages\n"
        "\n"
        "TRACE is a PCT1 file (prompts as runs of block ids) or a token stream (.tokens.jsonl),\n"
        "gzipped or not; kvtrunk(1) describes both. A block, which may be several pages, is found\n"
        "as a whole or not at all, unless --page-tokens is given; the last page of a token "
        "stream's\n"
        "request is found as a whole, too, while the daemon finds parts of pages.\n",
    .examples =
        "  # is there enough room, and is the policy any good here?\n"
        "  kvtrunk simulate tests/traces/mooncake_conversation.pct.gz --policy lru,worth,opt\n"
        "  # the same memory with 4 bits an element, and with pages that cool from 8 bits to 4\n"
        "  kvtrunk simulate tests/traces/mooncake_conversation.pct.gz --capacity 5% \\\n"
        "      --codec f16,i4 --ladder i8,i4\n"
        "  # how large must the machine be for this model?\n"
        "  kvtrunk simulate trace.pct.gz --model config.json --codec i4 \\\n"
        "      --capacity 16GiB,64GiB,256GiB --json | jq '.[] | [.capacity_bytes, .hit_pct]'\n",
    .run = run,
};
