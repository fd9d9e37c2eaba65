/*
 * tool_tiers.c - kvtrunk spill, kvtrunk verify, kvtrunk compact: what is on disk, and is it right?
 */
#include "client/tool.h"

#include <cjson/cJSON.h>

#define WAIT_OPTION(to)                                                                            \
    {                                                                                              \
        .name = "wait", .value = "MS", .number = (to), .low = 0, .high = 3600 * 1000,              \
        .help = "give up after so long (600000)"                                                   \
    }

/* Of the daemon's report, the part that is about the disk; *ret_root is the caller's. Without a
 * disk tier none of these commands has anything to look at. */
static int disk_report(const tool_command *self, kvt_client *client, cJSON **ret_root,
                       const cJSON **ret_disk) {
    char *text = NULL;
    kvt_status status = kvt_status_json(client, &text);
    if (status != KVT_OK)
        return tool_failed(status);
    cJSON *root = cJSON_Parse(text);
    const cJSON *disk = cJSON_GetObjectItemCaseSensitive(root, "disk");
    int code = TOOL_OK;
    if (!root)
        code = tool_fail(TOOL_FAILED, "the daemon's report is no JSON: %.60s", text);
    else if (!disk)
        code = tool_fail(TOOL_BAD_INPUT,
                         "%s: the daemon has no disk tier: set \"disk_dir\" in its configuration "
                         "(kvtrunkd.conf(5)) and start it anew",
                         self->name);
    kvt_free(text);
    if (code != TOOL_OK) {
        cJSON_Delete(root);
        return code;
    }
    *ret_root = root;
    *ret_disk = disk;
    return TOOL_OK;
}

static int has_disk(const tool_command *self, kvt_client *client) {
    cJSON *root = NULL;
    const cJSON *disk;
    int code = disk_report(self, client, &root, &disk);
    cJSON_Delete(root);
    return code;
}

/* Reads the options that these commands share, and connects. ret_wait_ms NULL: nothing waits. */
static int begin(const tool_command *self, int argc, char **argv, const char *name, int *ret_json,
                 uint64_t *ret_wait_ms, kvt_client **ret_client) {
    const char *socket = NULL;
    int n;
    const tool_option options[] = {
        WAIT_OPTION(ret_wait_ms),
        {.name = "json", .flag = ret_json, .help = "one JSON object"},
        {.name = "socket", .value = "PATH", .text = &socket, .help = TOOL_SOCKET_HELP},
        {0}};
    if (ret_wait_ms)
        *ret_wait_ms = 600000;
    int code = tool_options(self, argc, argv, ret_wait_ms ? options : options + 1, NULL, 0, &n);
    return code == TOOL_OK ? tool_connect(socket, name, ret_client) : code;
}

static uint64_t member(const cJSON *in, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(in, name);
    return cJSON_IsNumber(item) ? (uint64_t)item->valuedouble : 0;
}

static void print_never(kvt_client *client) {
    char *text = NULL;
    cJSON *root = kvt_status_json(client, &text) == KVT_OK ? cJSON_Parse(text) : NULL;
    uint64_t n = member(cJSON_GetObjectItemCaseSensitive(root, "counts"), "pages_never");
    if (n > 0)
        printf("%s of them never will be: see pages_never in kvtrunk(1), and the daemon's log\n",
               tool_number(n));
    cJSON_Delete(root);
    kvt_free(text);
}

static void print_spill(kvt_client *client, const kvt_spill_info *info, int json) {
    if (json) {
        printf("{\"disk_pages\":%llu,\"dirty_pages\":%llu}\n", (unsigned long long)info->disk_pages,
               (unsigned long long)info->dirty_pages);
        return;
    }
    printf("%s pages are on disk", tool_number(info->disk_pages));
    printf(info->dirty_pages ? ", %s are not yet\n" : "\n", tool_number(info->dirty_pages));
    if (info->dirty_pages)
        print_never(client);
}

static int run_spill(const tool_command *self, int argc, char **argv) {
    kvt_client *client = NULL;
    kvt_spill_info info;
    uint64_t wait_ms;
    int json = 0, code = begin(self, argc, argv, "kvtrunk spill", &json, &wait_ms, &client);
    if (code == TOOL_OK)
        code = has_disk(self, client);
    if (code == TOOL_OK) {
        kvt_status status = kvt_spill(client, (uint32_t)wait_ms, &info);
        if (status == KVT_OK)
            print_spill(client, &info, json);
        code = status != KVT_OK ? tool_failed(status) : info.dirty_pages ? TOOL_FAILED : TOOL_OK;
    }
    kvt_close(client);
    return code;
}

static void print_verify(const kvt_verify_info *info, int json) {
    if (json) {
        printf("{\"checked_pages\":%llu,\"corrupt_pages\":%llu}\n",
               (unsigned long long)info->checked_pages, (unsigned long long)info->corrupt_pages);
        return;
    }
    printf("%s pages were read from disk and checked", tool_number(info->checked_pages));
    printf(info->corrupt_pages ? "; %s were damaged and were dropped\n" : ": all are right\n",
           tool_number(info->corrupt_pages));
}

static int run_verify(const tool_command *self, int argc, char **argv) {
    kvt_client *client = NULL;
    kvt_verify_info info;
    uint64_t wait_ms;
    int json = 0, code = begin(self, argc, argv, "kvtrunk verify", &json, &wait_ms, &client);
    if (code == TOOL_OK)
        code = has_disk(self, client);
    if (code == TOOL_OK) {
        kvt_status status = kvt_verify(client, (uint32_t)wait_ms, &info);
        if (status == KVT_OK)
            print_verify(&info, json);
        code = status != KVT_OK ? tool_failed(status) : info.corrupt_pages ? TOOL_FAILED : TOOL_OK;
    }
    kvt_close(client);
    return code;
}

static void print_use(const cJSON *disk) {
    uint64_t used = member(disk, "file_used_bytes"), size = member(disk, "file_bytes");
    uint64_t pages = member(disk, "page_bytes"), stored = member(disk, "stored_bytes");
    printf("records   %s\n", tool_number(member(disk, "records")));
    printf("pages     %s as the arena has them\n", tool_size(pages));
    printf("stored    %s", tool_size(stored));
    printf(pages ? ", %.1f %% of that\n" : "\n",
           pages ? 100.0 * (double)stored / (double)pages : 0);
    printf("used      %s of the file", tool_size(used));
    printf(used ? ", %.1f %% of it pages\n" : "\n",
           used ? 100.0 * (double)stored / (double)used : 0);
    printf("file      %s", tool_size(size));
    printf(", at most %s\n", tool_size(member(disk, "budget_bytes")));
    printf("free      %s in the file, used again before it grows\n",
           tool_size(size > used ? size - used : 0));
    if (member(disk, "aside_bytes") > 0)
        printf("aside     %s in disk_dir/aside, of files that could not be used\n",
               tool_size(member(disk, "aside_bytes")));
    if (member(disk, "full") > 0)
        printf("refused   %s writes since the daemon's start, for want of room\n",
               tool_number(member(disk, "full")));
}

static int run_compact(const tool_command *self, int argc, char **argv) {
    kvt_client *client = NULL;
    cJSON *root = NULL;
    const cJSON *disk = NULL;
    int json = 0, code = begin(self, argc, argv, "kvtrunk compact", &json, NULL, &client);
    if (code == TOOL_OK)
        code = disk_report(self, client, &root, &disk);
    char *line = disk && json ? cJSON_PrintUnformatted(disk) : NULL;
    if (line)
        printf("%s\n", line);
    else if (disk && json)
        code = tool_fail(TOOL_SYSTEM, "%s: no memory", self->name);
    else if (disk)
        print_use(disk);
    cJSON_free(line);
    cJSON_Delete(root);
    kvt_close(client);
    return code;
}

const tool_command tool_spill = {
    .name = "spill",
    .operands = "",
    .summary = "wait until every page is on disk",
    .about =
        "The daemon writes sealed pages to disk all the time; this waits until it is through.\n"
        "Exit code 1: some are not written yet. 4: the daemon has no disk tier.\n",
    .examples = "  kvtrunk spill\n"
                "  kvtrunk spill --wait 10000 --json\n",
    .run = run_spill,
};

const tool_command tool_verify = {
    .name = "verify",
    .operands = "",
    .summary = "read and check every page on disk",
    .about =
        "Beside serving. Pages that are damaged are dropped. Exit code 1: there were some. 3: it\n"
        "is not through after --wait, and goes on. 4: the daemon has no disk tier. 6: another "
        "call\n"
        "checks already.\n",
    .examples = "  kvtrunk verify\n"
                "  kvtrunk verify --json\n",
    .run = run_verify,
};

const tool_command tool_compact = {
    .name = "compact",
    .operands = "",
    .summary = "how well the file on disk is used",
    .about =
        "Room of pages that went is used again inside the file, which never grows beyond its\n"
        "budget; so there is nothing to be done, and this only reports. Exit code 4: the daemon\n"
        "has no disk tier.\n",
    .examples = "  kvtrunk compact\n"
                "  kvtrunk compact --json\n",
    .run = run_compact,
};
