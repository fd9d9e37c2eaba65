/*
 * tool_status.c - kvtrunk status and kvtrunk tree: the daemon's own reports, for people or as they
 * came.
 */
#include "client/tool.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_reports(const char *socket, kvt_client **ret_client) {
    kvt_options options = {.socket = socket, .name = "kvtrunk"};
    kvt_status status = kvt_open_reports(&options, ret_client);
    if (status == KVT_OK)
        return TOOL_OK;
    return tool_fail(tool_code(status), "%s", kvt_last_error());
}

/* --- status -------------------------------------------------------------------------------------
 */

/* The text of a number as the daemon wrote it: a double would lose digits of a counter. */
static const char *number_text(const char *json, const char *key) {
    static char text[32];
    char quoted[80];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(json, quoted);
    size_t n = 0;
    if (at) {
        at += strlen(quoted);
        n = strspn(at, "0123456789");
    }
    if (!n || n >= sizeof text)
        return NULL;
    memcpy(text, at, n);
    text[n] = '\0';
    return text;
}

static uint64_t number_of(const char *json, const char *key) {
    const char *text = number_text(json, key);
    return text ? strtoull(text, NULL, 10) : 0;
}

static void print_bar(uint64_t part, uint64_t whole) {
    int n = whole ? (int)(part * 30 / whole) : 0;
    printf("[");
    for (int i = 0; i < 30; i++)
        putchar(i < n ? '#' : '.');
    printf("] %llu %%", (unsigned long long)(whole ? part * 100 / whole : 0));
}

static void print_head(const char *json, const cJSON *root) {
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "version");
    const cJSON *boot = cJSON_GetObjectItemCaseSensitive(root, "boot_id");
    printf("kvtrunkd %s, pid %llu, up %llu s, boot %s\n",
           cJSON_IsString(version) ? version->valuestring : "?",
           (unsigned long long)number_of(json, "pid"),
           (unsigned long long)number_of(json, "uptime_s"),
           cJSON_IsString(boot) ? boot->valuestring : "?");
    uint64_t max = number_of(json, "pages_max"), free_pages = number_of(json, "pages_free");
    printf("pages   ");
    print_bar(max - free_pages, max);
    printf(" of %s: %s filling, %s evictable, %s pinned\n", tool_number(max),
           tool_number(number_of(json, "pages_filling")),
           tool_number(number_of(json, "pages_evictable")),
           tool_number(number_of(json, "pages_pinned")));
    uint64_t arena = number_of(json, "arena_bytes"), used = number_of(json, "arena_used_bytes");
    printf("arena   ");
    print_bar(used, arena);
    printf(" of %s bytes\n", tool_number(arena));
    uint64_t asked = number_of(json, "tokens_asked"), served = number_of(json, "tokens_served");
    printf("tokens  ");
    print_bar(served, asked);
    printf(" served of %s asked\n\n", tool_number(asked));
}

static void print_sessions(const cJSON *root) {
    const cJSON *sessions = cJSON_GetObjectItemCaseSensitive(root, "sessions_open"), *s;
    if (!cJSON_IsArray(sessions))
        sessions = cJSON_GetObjectItemCaseSensitive(root, "session_list");
    if (!cJSON_IsArray(sessions) || cJSON_GetArraySize(sessions) == 0)
        return;
    printf("\nsessions\n");
    cJSON_ArrayForEach(s, sessions) {
        char *line = cJSON_PrintUnformatted(s);
        printf("  %s\n", line ? line : "?");
        cJSON_free(line);
    }
}

static void print_value(const char *json, const cJSON *item) {
    if (cJSON_IsNumber(item)) {
        const char *text = number_text(json, item->string);
        printf("%-24s %20s\n", item->string, text ? tool_number(strtoull(text, NULL, 10)) : "?");
    } else if (cJSON_IsString(item)) {
        printf("%-24s %s\n", item->string, item->valuestring);
    } else if (cJSON_IsBool(item)) {
        printf("%-24s %s\n", item->string, cJSON_IsTrue(item) ? "true" : "false");
    }
}

static int print_status(const char *json) {
    cJSON *root = cJSON_Parse(json);
    const cJSON *item, *inner;
    if (!root)
        return tool_fail(TOOL_FAILED, "the daemon's report is no JSON");
    print_head(json, root);
    cJSON_ArrayForEach(item, root) {
        if (!cJSON_IsObject(item)) {
            print_value(json, item);
            continue;
        }
        printf("\n%s\n", item->string);
        cJSON_ArrayForEach(inner, item) print_value(json, inner);
    }
    print_sessions(root);
    cJSON_Delete(root);
    return TOOL_OK;
}

int tool_status(int argc, char **argv) {
    const char *socket = NULL;
    int json = 0, n;
    const tool_option options[] = {
        {.name = "socket", .text = &socket}, {.name = "json", .flag = &json}, {0}};
    int code = tool_options(argc, argv, options, NULL, 0, &n);
    kvt_client *client;
    if (code == TOOL_OK)
        code = open_reports(socket, &client);
    if (code != TOOL_OK)
        return code;
    char *text;
    kvt_status status = kvt_status_json(client, &text);
    if (status != KVT_OK) {
        code = tool_fail(tool_code(status), "%s", kvt_last_error());
    } else {
        if (json)
            printf("%s\n", text);
        else
            code = print_status(text);
        kvt_free(text);
    }
    kvt_close(client);
    return code;
}

/* --- tree ---------------------------------------------------------------------------------------
 */

static int integer(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valueint : 0;
}

static void print_realm(const cJSON *row) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(row, "model");
    const cJSON *codec = cJSON_GetObjectItemCaseSensitive(row, "codec");
    printf("realm %d: model %s, codec %s, %d tokens and %d bytes a page\n", integer(row, "realm"),
           cJSON_IsString(model) ? model->valuestring : "?",
           cJSON_IsString(codec) && codec->valuestring[0] ? codec->valuestring : "f16",
           integer(row, "page_tokens"), integer(row, "page_bytes"));
}

/* One step to the right for each run above: `edges` holds the depth of the first page of each. */
static void print_run(const cJSON *row, int *edges, int *n_edges) {
    int depth = integer(row, "depth"), pages = integer(row, "pages");
    while (*n_edges > 0 && edges[*n_edges - 1] >= depth)
        --*n_edges;
    for (int i = 0; i < *n_edges; i++)
        printf("  ");
    printf("+- %d page%s, %d tokens", pages, pages == 1 ? "" : "s", integer(row, "tokens"));
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(row, "first_tokens"), *token;
    int n = 0;
    cJSON_ArrayForEach(token, tokens) {
        if (n == 4)
            break;
        printf("%s%.0f", n++ ? " " : " [", token->valuedouble);
    }
    if (n)
        printf(" ...]");
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, "held")))
        printf(" filling");
    if (integer(row, "pins"))
        printf(" pinned by %d", integer(row, "pins"));
    if (integer(row, "children") > 1)
        printf(" -> %d ways", integer(row, "children"));
    printf("\n");
    if (*n_edges < 256)
        edges[(*n_edges)++] = depth;
}

static int print_tree(char *lines) {
    int edges[256], n_edges = 0, n = 0;
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
        cJSON *row = cJSON_Parse(line);
        if (!row)
            return tool_fail(TOOL_FAILED, "the daemon's report is no JSON: %.60s", line);
        if (cJSON_GetObjectItemCaseSensitive(row, "truncated")) {
            printf("... and more; --lines N shows it\n");
        } else if (cJSON_GetObjectItemCaseSensitive(row, "depth")) {
            print_run(row, edges, &n_edges);
            n++;
        } else {
            n_edges = 0;
            print_realm(row);
        }
        cJSON_Delete(row);
    }
    if (n == 0)
        printf("no pages are held\n");
    return TOOL_OK;
}

int tool_tree(int argc, char **argv) {
    const char *socket = NULL;
    uint64_t lines = 1000;
    int json = 0, n;
    const tool_option options[] = {{.name = "socket", .text = &socket},
                                   {.name = "lines", .number = &lines, .low = 1, .high = 1000000},
                                   {.name = "json", .flag = &json},
                                   {0}};
    int code = tool_options(argc, argv, options, NULL, 0, &n);
    kvt_client *client;
    if (code == TOOL_OK)
        code = open_reports(socket, &client);
    if (code != TOOL_OK)
        return code;
    char *text;
    kvt_status status = kvt_tree_json(client, (uint32_t)lines, &text);
    if (status != KVT_OK) {
        code = tool_fail(tool_code(status), "%s", kvt_last_error());
    } else {
        if (json)
            fputs(text, stdout);
        else
            code = print_tree(text);
        kvt_free(text);
    }
    kvt_close(client);
    return code;
}
