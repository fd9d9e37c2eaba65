/*
 * tool_lists.c - kvtrunk sessions, kvtrunk leases: who is there and what is held; and what the
 * commands that talk to a running daemon share.
 */
#include "client/tool.h"

#include <cjson/cJSON.h>
#include <string.h>

int tool_connect(const char *socket, const char *name, kvt_client **ret_client) {
    kvt_status status =
        kvt_open_reports(&(kvt_options){.socket = socket, .name = name}, ret_client);
    return status == KVT_OK ? TOOL_OK : tool_failed(status);
}

int tool_failed(kvt_status status) {
    return tool_fail(tool_code(status), "%s", kvt_last_error());
}

int tool_lines(char *lines, int json, const char *nothing) {
    char *rest = NULL;
    int code = TOOL_OK, truncated = 0;
    if (json) {
        fputs(lines, stdout);
        return TOOL_OK;
    }
    cJSON *rows = cJSON_CreateArray();
    for (char *line = strtok_r(lines, "\n", &rest); line && code == TOOL_OK;
         line = strtok_r(NULL, "\n", &rest)) {
        cJSON *row = cJSON_Parse(line);
        if (!cJSON_IsObject(row))
            code = tool_fail(TOOL_FAILED, "the daemon's report is no JSON: %.60s", line);
        truncated |= cJSON_GetObjectItemCaseSensitive(row, "truncated") != NULL;
        if (code != TOOL_OK || truncated || !cJSON_AddItemToArray(rows, row))
            cJSON_Delete(row);
    }
    if (code == TOOL_OK && cJSON_GetArraySize(rows) == 0)
        printf("%s\n", nothing);
    else if (code == TOOL_OK)
        tool_rows(rows);
    if (truncated)
        printf("... there is more: --lines N shows up to N lines\n");
    cJSON_Delete(rows);
    return code;
}

/* --- leases -------------------------------------------------------------------------------------
 */

static int run_leases(const tool_command *self, int argc, char **argv) {
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
         .help = "at most so many leases (1000)"},
        {.name = "socket", .value = "PATH", .text = &socket, .help = TOOL_SOCKET_HELP},
        {0}};
    kvt_client *client;
    char *text;
    int code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code == TOOL_OK)
        code = tool_connect(socket, "kvtrunk leases", &client);
    if (code != TOOL_OK)
        return code;
    kvt_status status = kvt_leases_json(client, (uint32_t)lines, &text);
    if (status != KVT_OK) {
        code = tool_failed(status);
    } else {
        code = tool_lines(text, json, "nobody holds a lease");
        kvt_free(text);
    }
    kvt_close(client);
    return code;
}

const tool_command tool_leases = {
    .name = "leases",
    .operands = "",
    .summary = "who holds which prefixes",
    .about =
        "A line for each lease: the session that holds it and its name, the request that gave\n"
        "it, the realm and the rank, the tokens that were asked for and those that are held, how "
        "many\n"
        "of these had to be brought up from the host's memory and from the disk when they were "
        "asked\n"
        "for, pages that it claims and has not sealed, and whether some of it was flushed since:\n"
        "then nobody else gets that any more, and it goes when the lease does. A view\n"
        "has some rows of what is held.\n",
    .examples = "  kvtrunk leases\n"
                "  kvtrunk leases --json | jq -s 'map(select(.flushed)) | length'\n",
    .run = run_leases,
};

/* --- sessions -----------------------------------------------------------------------------------
 */

static int print_sessions(const char *report, int json) {
    cJSON *root = cJSON_Parse(report);
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(root, "sessions_open"), *row;
    int code = TOOL_OK;
    if (!cJSON_IsArray(rows))
        code = tool_fail(TOOL_FAILED, "the daemon's report has no sessions: %.60s", report);
    else if (!json)
        tool_rows(rows);
    else
        cJSON_ArrayForEach(row, rows) {
            char *text = cJSON_PrintUnformatted(row);
            puts(text ? text : "{}");
            cJSON_free(text);
        }
    cJSON_Delete(root);
    return code;
}

static int run_sessions(const tool_command *self, int argc, char **argv) {
    const char *socket = NULL;
    int json = 0, n;
    const tool_option options[] = {
        {.name = "json", .flag = &json, .help = "one JSON object a line"},
        {.name = "socket", .value = "PATH", .text = &socket, .help = TOOL_SOCKET_HELP},
        {0}};
    kvt_client *client;
    char *text;
    int code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code == TOOL_OK)
        code = tool_connect(socket, "kvtrunk sessions", &client);
    if (code != TOOL_OK)
        return code;
    kvt_status status = kvt_status_json(client, &text);
    if (status != KVT_OK) {
        code = tool_failed(status);
    } else {
        code = print_sessions(text, json);
        kvt_free(text);
    }
    kvt_close(client);
    return code;
}

const tool_command tool_sessions = {
    .name = "sessions",
    .operands = "",
    .summary = "the workers that are connected",
    .about =
        "A line for each worker of the caller's tenant, this program included: number, name,\n"
        "process, user, whether its connection broke (orphaned), leases, claimed pages, bytes\n"
        "of its staging file, requests.\n",
    .examples = "  kvtrunk sessions\n"
                "  kvtrunk sessions --json | jq .leases\n",
    .run = run_sessions,
};
