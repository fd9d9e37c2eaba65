/*
 * tool_watch.c - kvtrunk watch: what becomes of the pages of one's tenant, as it happens.
 */
#include "client/tool.h"
#include "client/watch.h"

static const char *const tiers[] = {"device", "host", "disk"};

static void print_json(const kvt_watched *e) {
    static const char *const kinds[] = {"", "added", "removed", "moved"};
    if (e->kind == KVT_WATCH_RESTART || e->kind == KVT_WATCH_LIVE) {
        printf("{\"event\":\"%s\"}\n", e->kind == KVT_WATCH_LIVE ? "live" : "restart");
        return;
    }
    printf("{\"event\":\"%s\",\"sequence\":%llu,\"page\":%llu", kinds[e->kind],
           (unsigned long long)e->sequence, (unsigned long long)e->event.page);
    if (e->kind != KVT_EVENT_REMOVED)
        printf(",\"tier\":\"%s\"", tiers[e->event.tier]);
    if (e->kind == KVT_EVENT_ADDED) {
        printf(",\"parent\":%llu,\"realm\":%u,\"bytes\":%llu,\"n_tokens\":%u",
               (unsigned long long)e->event.parent, e->event.realm,
               (unsigned long long)e->event.n_bytes, e->event.n_tokens);
        for (uint32_t i = 0; i < e->event.n_listed; i++)
            printf("%s%u%s", i ? "," : ",\"tokens\":[", kvt_wire_get_u32(e->event.tokens, i),
                   i + 1 == e->event.n_listed ? "]" : "");
    }
    printf("}\n");
}

static void print_line(const kvt_watched *e) {
    unsigned long long page = e->event.page;
    if (e->kind == KVT_WATCH_RESTART)
        printf("--- what there is\n");
    else if (e->kind == KVT_WATCH_LIVE)
        printf("--- what changes\n");
    else if (e->kind == KVT_EVENT_REMOVED)
        printf("removed  page %llu\n", page);
    else if (e->kind == KVT_EVENT_MOVED)
        printf("moved    page %llu to the %s\n", page, tiers[e->event.tier]);
    else {
        printf("added    page %llu", page);
        if (e->event.parent)
            printf(" behind %llu", (unsigned long long)e->event.parent);
        else
            printf(" first of realm %u", e->event.realm);
        printf(": %u tokens, %s, %s", e->event.n_tokens, tool_size(e->event.n_bytes),
               tiers[e->event.tier]);
        for (uint32_t i = 0; i < e->event.n_listed && i < 6; i++)
            printf("%s%u", i ? " " : "  [", kvt_wire_get_u32(e->event.tokens, i));
        printf(e->event.n_listed ? " ...]\n" : "\n");
    }
}

static int watch(kvt_client *client, int json, uint64_t limit, int until_live) {
    enum { LOOK_MS = 200 };
    kvt_watch *w;
    kvt_watched event;
    int code = TOOL_OK, is_away = 0;
    kvt_status status = kvt_watch_open(client, &w);
    if (status != KVT_OK)
        return tool_failed(status);
    for (uint64_t n = 0; !tool_stopping() && (!limit || n < limit);) {
        status = kvt_watch_next(w, LOOK_MS, &event);
        if (status == KVT_OK) {
            (json ? print_json : print_line)(&event);
            n += event.kind < KVT_WATCH_RESTART;
            is_away = 0;
            if (until_live && event.kind == KVT_WATCH_LIVE)
                break;
        } else if (status == KVT_ECONN || (status == KVT_ETIMEDOUT && is_away)) {
            is_away = 1;
        } else if (status != KVT_ETIMEDOUT) {
            code = tool_failed(status);
            break;
        }
        if (status == KVT_ETIMEDOUT || event.kind == KVT_WATCH_LIVE)
            fflush(stdout);
    }
    kvt_watch_close(w);
    return code;
}

static int run(const tool_command *self, int argc, char **argv) {
    const char *socket = NULL;
    uint64_t limit = 0;
    int json = 0, until_live = 0, n;
    const tool_option options[] = {
        {.name = "json", .flag = &json, .help = "one JSON object a line"},
        {.name = "events",
         .value = "N",
         .number = &limit,
         .low = 1,
         .high = UINT64_MAX,
         .help = "end after so many pages and changes"},
        {.name = "dump", .flag = &until_live, .help = "end when all that there is was said"},
        {.name = "socket", .value = "PATH", .text = &socket, .help = TOOL_SOCKET_HELP},
        {0}};
    kvt_client *client;
    int code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code == TOOL_OK)
        code = tool_connect(socket, "kvtrunk watch", &client);
    if (code != TOOL_OK)
        return code;
    code = watch(client, json, limit, until_live);
    kvt_close(client);
    return code;
}

const tool_command tool_watch = {
    .name = "watch",
    .operands = "",
    .summary = "pages that are added, removed and moved, as it happens",
    .about =
        "First all pages that can be had, then what changes: a page that can be had from now\n"
        "on, with the page in front of it; one that cannot any more; one that is in another\n"
        "tier now. Who keeps a list of pages by these lines alone has what the daemon has:\n"
        "when something was missed, or the daemon was started anew, it begins from the start.\n",
    .examples =
        "  kvtrunk watch\n"
        "  kvtrunk watch --json --dump | jq -s 'map(select(.event == \"added\")) | length'\n",
    .run = run,
};
