/*
 * tool_tree.c - kvtrunk tree: what the daemon holds, for people or as it came. A report is one JSON
 * object a line: a realm, then the runs of pages below it, depth first; a run is a stretch of pages
 * without a branch.
 */
#include "client/tool.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 256, SHOWN_TOKENS = 6 };

static int64_t integer(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < 0x1p53
               ? (int64_t)item->valuedouble
               : 0;
}

static int is_true(const cJSON *object, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static const char *text(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* The runs that lie above the one that is printed, by the depth of their first page. */
typedef struct nesting {
    int64_t depth[MAX_NESTING];
    int n;
    int64_t realms, runs, pages;
} nesting;

/* Of a realm that has several layer groups. */
static void print_groups(const cJSON *groups) {
    const cJSON *group;
    const char *between = "; layer groups: ";
    cJSON_ArrayForEach(group, groups) {
        printf("%s%lld layers", between, (long long)integer(group, "layers"));
        if (integer(group, "window"))
            printf(" with a window of %s", tool_number((uint64_t)integer(group, "window")));
        between = ", ";
    }
}

/* What a run still has, where a window has passed over some of it. */
static void print_group_pages(const cJSON *counts, int64_t pages) {
    const cJSON *count;
    int some_went = 0, n = 0;
    cJSON_ArrayForEach(count, counts) some_went |= count->valuedouble < (double)pages;
    if (!some_went)
        return;
    cJSON_ArrayForEach(count, counts) printf(
        "%s%s", n++ ? ", " : "  pages by group: ", tool_number((uint64_t)count->valuedouble));
}

static void print_realm(const cJSON *row, nesting *nest) {
    static const char *const names[] = {"engine", "adapter", "adapter_version"};
    printf("%srealm %lld: model \"%s\"", nest->realms++ ? "\n" : "",
           (long long)integer(row, "realm"), text(row, "model"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*text(row, names[i]))
            printf(", %s \"%s\"", names[i], text(row, names[i]));
    printf("%s, codec set %s, %lld tokens", is_true(row, "salted") ? ", with a salt" : "",
           *text(row, "codec") ? text(row, "codec") : "f16",
           (long long)integer(row, "page_tokens"));
    if (integer(row, "page_bytes"))
        printf(" and %s", tool_size((uint64_t)integer(row, "page_bytes")));
    printf(" a page");
    if (integer(row, "ranks") > 1)
        printf(", %lld ranks", (long long)integer(row, "ranks"));
    print_groups(cJSON_GetObjectItemCaseSensitive(row, "groups"));
    printf("\n");
    nest->n = 0;
}

static void print_tokens(const cJSON *tokens) {
    int n = cJSON_GetArraySize(tokens);
    if (n == 0)
        return;
    printf("  [");
    for (int i = 0; i < n && i < SHOWN_TOKENS; i++)
        printf("%s%.0f", i ? " " : "", cJSON_GetArrayItem(tokens, i)->valuedouble);
    printf(" ...]");
}

/*
 * A step to the right for each run above. The first page of a run lies deeper than all pages of the
 * runs above it, so those that do not start higher are not above it.
 */
static void print_run(const cJSON *row, nesting *nest) {
    int64_t depth = integer(row, "depth"), pages = integer(row, "pages");
    while (nest->n > 0 && nest->depth[nest->n - 1] >= depth)
        nest->n--;
    printf("%*s- %s page%s, %s tokens", 2 * nest->n + 2, "", tool_number((uint64_t)pages),
           pages == 1 ? "" : "s", tool_number((uint64_t)integer(row, "tokens")));
    print_tokens(cJSON_GetObjectItemCaseSensitive(row, "first_tokens"));
    if (!is_true(row, "held"))
        printf("  not sealed yet");
    if (integer(row, "pins"))
        printf("  leased %lld time%s", (long long)integer(row, "pins"),
               integer(row, "pins") == 1 ? "" : "s");
    print_group_pages(cJSON_GetObjectItemCaseSensitive(row, "group_pages"), pages);
    if (integer(row, "children") > 1)
        printf("  goes on in %lld ways", (long long)integer(row, "children"));
    printf("\n");
    if (nest->n < MAX_NESTING)
        nest->depth[nest->n++] = depth;
    nest->runs++;
    nest->pages += pages;
}

static int print_line(const char *line, nesting *nest) {
    cJSON *row = cJSON_Parse(line);
    if (!cJSON_IsObject(row)) {
        cJSON_Delete(row);
        return tool_fail(TOOL_FAILED, "the daemon's report is no JSON: %.60s", line);
    }
    if (cJSON_GetObjectItemCaseSensitive(row, "truncated"))
        printf("... there is more: --lines N shows up to N lines\n");
    else if (cJSON_GetObjectItemCaseSensitive(row, "depth"))
        print_run(row, nest);
    else
        print_realm(row, nest);
    cJSON_Delete(row);
    return TOOL_OK;
}

static int print_tree(char *lines) {
    static nesting nest;
    char *rest = NULL;
    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        int code = print_line(line, &nest);
        if (code != TOOL_OK)
            return code;
    }
    if (nest.realms == 0)
        printf("nobody has registered a realm yet, so nothing is held\n");
    else
        printf("\n%s page%s in %s run%s\n", tool_number((uint64_t)nest.pages),
               nest.pages == 1 ? "" : "s", tool_number((uint64_t)nest.runs),
               nest.runs == 1 ? "" : "s");
    return TOOL_OK;
}

static int run(const tool_command *self, int argc, char **argv) {
    const char *socket = NULL;
    uint64_t lines = 1000;
    int json = 0, n;
    const tool_option options[] = {
        {.name = "json", .flag = &json, .help = "the daemon's report as it is, one object a line"},
        {.name = "lines",
         .value = "N",
         .number = &lines,
         .low = 1,
         .high = 1000000,
         .help = "at most so many realms and runs (1000)"},
        {.name = "socket",
         .value = "PATH",
         .text = &socket,
         .help = "of the daemon; otherwise $KVTRUNK_SOCKET, else kvtrunk.sock in "
                 "$XDG_RUNTIME_DIR, else " KVT_DEFAULT_SOCKET},
        {0}};
    int code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code != TOOL_OK)
        return code;
    kvt_client *client;
    kvt_status status =
        kvt_open_reports(&(kvt_options){.socket = socket, .name = "kvtrunk tree"}, &client);
    if (status != KVT_OK)
        return tool_fail(tool_code(status), "%s", kvt_last_error());
    char *report;
    status = kvt_tree_json(client, (uint32_t)lines, &report);
    if (status != KVT_OK) {
        code = tool_fail(tool_code(status), "%s", kvt_last_error());
    } else {
        code = json ? (fputs(report, stdout), TOOL_OK) : print_tree(report);
        kvt_free(report);
    }
    kvt_close(client);
    return code;
}

const tool_command tool_tree = {
    .name = "tree",
    .operands = "",
    .summary = "the prefixes that it holds, as a tree",
    .about =
        "A line is a run: pages without a branch between them. Runs that stand further to the\n"
        "right go on where the one above them ends:\n"
        "\n"
        "  realm 1: model \"llama\", codec set f16, 64 tokens and 8.0 MiB a page\n"
        "    - 90 pages, 5,760 tokens  [1 733 12 ...]  goes on in 2 ways\n"
        "      - 2 pages, 100 tokens  [17 4 9 ...]\n"
        "      - 7 pages, 448 tokens  [17 5 2 ...]  leased 1 time\n"
        "\n"
        "The first tokens of a run are parts of prompts; a daemon with tree_tokens off leaves\n"
        "them out.\n",
    .examples = "  kvtrunk tree --lines 20\n"
                "  kvtrunk tree --json --lines 1000000 | jq -s 'map(.pages // 0) | add'\n",
    .run = run,
};
