/*
 * tool_tiers.c - kvtrunk spill, kvtrunk verify, kvtrunk compact: what is on disk, and is it right?
 */
#include "client/tool.h"

#include <cjson/cJSON.h>

#include <string.h>
#include <time.h>

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

/* --- spill --------------------------------------------------------------------------------------
 */

enum { LOOK_MS = 500 }; /* how often the daemon is asked whether its disk takes more */

/* What the daemon's report says of the disk. */
typedef struct disk_view {
    uint64_t never, silent_ms;
    char state[16]; /* "works", "full", "fails", "silent", "away" */
} disk_view;

static int look(const tool_command *self, kvt_client *client, disk_view *ret) {
    cJSON *root = NULL;
    const cJSON *disk;
    int code = disk_report(self, client, &root, &disk);
    if (code == TOOL_OK) {
        const char *state = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(disk, "state"));
        *ret = (disk_view){
            .never = member(cJSON_GetObjectItemCaseSensitive(root, "counts"), "pages_never"),
            .silent_ms = member(disk, "silent_ms")};
        snprintf(ret->state, sizeof ret->state, "%s", state ? state : "works");
    }
    cJSON_Delete(root);
    return code;
}

static int takes_no_more(const disk_view *v) {
    return strcmp(v->state, "full") == 0 || strcmp(v->state, "fails") == 0;
}

/* Sleeps out a round that came back before its time: then nothing more comes, or the disk is away.
 */
static void rest_until(double at_s) {
    double left_s = at_s - tool_now_s();
    struct timespec pause = {.tv_nsec = (long)(left_s * 1e9)};
    if (left_s > 0)
        nanosleep(&pause, NULL);
}

/* Until all is on disk, the time is over, all that waits never will be there, or the disk takes no
 * more: then twice in turn, and as many pages wait as before. */
static int spill(const tool_command *self, kvt_client *client, uint64_t wait_ms,
                 kvt_spill_info *ret_info, disk_view *ret_view) {
    double start_s = tool_now_s(), end_s = start_s + (double)wait_ms / 1e3;
    uint64_t stuck_pages = 0;
    for (;;) {
        double now_s = tool_now_s(), left_ms = (end_s - now_s) * 1e3;
        uint32_t ms = left_ms <= 0 ? 0 : left_ms < LOOK_MS ? (uint32_t)left_ms : LOOK_MS;
        kvt_status status = kvt_spill(client, ms, ret_info);
        if (status != KVT_OK)
            return tool_failed(status);
        int code = look(self, client, ret_view);
        if (code != TOOL_OK || ret_info->dirty_pages == 0)
            return code;
        int is_stuck = takes_no_more(ret_view), was_stuck = stuck_pages == ret_info->dirty_pages;
        if ((is_stuck && was_stuck) || ret_view->never >= ret_info->dirty_pages || ms == 0)
            return is_stuck ? TOOL_STUCK : TOOL_FAILED;
        stuck_pages = is_stuck ? ret_info->dirty_pages : 0;
        rest_until(now_s + ms / 1e3);
    }
}

static void print_why(const kvt_spill_info *info, const disk_view *v) {
    if (strcmp(v->state, "full") == 0)
        printf("no more can be written: \"disk\" is used up, or its file system is (kvtrunk "
               "compact, and the daemon's log, tell which)\n");
    else if (strcmp(v->state, "fails") == 0)
        printf("writing fails with an I/O error: see the daemon's log\n");
    else if (strcmp(v->state, "away") == 0)
        printf("no process has the disk at the moment: see the daemon's log\n");
    else if (v->silent_ms >= 1000)
        printf("the disk has not answered for %s s\n", tool_number(v->silent_ms / 1000));
    if (v->never > 0 && v->never <= info->dirty_pages)
        printf("%s of them never will be: pages_never in kvtrunk(1) says which are so\n",
               tool_number(v->never));
}

static void print_spill(const kvt_spill_info *info, const disk_view *v, int json) {
    if (json) {
        printf("{\"disk_pages\":%llu,\"dirty_pages\":%llu,\"never_pages\":%llu,\"state\":\"%s\","
               "\"silent_ms\":%llu}\n",
               (unsigned long long)info->disk_pages, (unsigned long long)info->dirty_pages,
               (unsigned long long)v->never, v->state, (unsigned long long)v->silent_ms);
        return;
    }
    printf("%s pages are on disk", tool_number(info->disk_pages));
    printf(info->dirty_pages ? ", %s are not\n" : "\n", tool_number(info->dirty_pages));
    if (info->dirty_pages)
        print_why(info, v);
}

static int run_spill(const tool_command *self, int argc, char **argv) {
    kvt_client *client = NULL;
    kvt_spill_info info;
    disk_view view;
    uint64_t wait_ms;
    int json = 0, code = begin(self, argc, argv, "kvtrunk spill", &json, &wait_ms, &client);
    if (code == TOOL_OK)
        code = has_disk(self, client);
    if (code == TOOL_OK) {
        code = spill(self, client, wait_ms, &info, &view);
        if (code == TOOL_OK || code == TOOL_FAILED || code == TOOL_STUCK)
            print_spill(&info, &view, json);
    }
    kvt_close(client);
    return code;
}

/* --- verify and compact -------------------------------------------------------------------------
 */

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
        "The daemon writes sealed pages to disk all the time; this waits until it is through, or\n"
        "the disk takes no more. Exit code 1: some are not written yet after --wait, or never "
        "will\n"
        "be. 4: the daemon has no disk tier. 7: the disk is full, or writing there fails.\n",
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
