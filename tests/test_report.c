/*
 * test_report.c - reports: every number exact, every text valid JSON whatever a name holds, and
 * nothing cut inside a line when the room ends. The core is a stand-in with the numbers that hurt.
 * Also what an arena takes when it is left to choose.
 */
#include "daemon/arena_open.h"
#include "daemon/json_write.h"
#include "daemon/report.h"
#include "tests/check.h"

#include <cjson/cJSON.h>

#include <sys/stat.h>
#include <unistd.h>

/* --- the stand-in ------------------------------------------------------------------------------
 */

static uint32_t n_sessions, n_runs, n_ranks = 1, n_groups = 1;
static const char *session_name = "worker";

uint64_t core_boot_id(const core *c) {
    (void)c;
    return UINT64_C(0x00c0ffee00000001);
}

void core_count(const core *c, core_counts *ret_counts) {
    uint64_t *counts = (uint64_t *)(void *)ret_counts;
    (void)c;
    for (size_t i = 0; i < sizeof *ret_counts / sizeof *counts; i++)
        counts[i] = UINT64_MAX - i; /* no double holds these */
}

void core_count_arena(const core *c, uint32_t arena, core_arena_counts *ret_counts) {
    (void)c;
    *ret_counts = (core_arena_counts){.arena_bytes = UINT64_MAX, .used_bytes = arena, .ranks = 3};
}

static core_disk disk_state = CORE_DISK_FULL;

core_disk core_disk_state(const core *c) {
    (void)c;
    return disk_state;
}

int core_each_session(const core *c, int (*visit)(void *context, const core_session_info *session),
                      void *context) {
    (void)c;
    for (uint32_t i = 1; i <= n_sessions; i++) {
        core_session_info info = {.session = i,
                                  .name = session_name,
                                  .peer = {4294967294u, 0, 77},
                                  .orphaned = i == 2,
                                  .staging_bytes = UINT64_C(1) << 53 | 1};
        if (visit(context, &info))
            return 1;
    }
    return 0;
}

int core_each_run(const core *c,
                  int (*visit)(void *context, const core_realm_info *realm, const radix_run *run,
                               const uint32_t *first_tokens, uint32_t n_first_tokens),
                  void *context) {
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, UINT32_MAX};
    kvt_realm desc = {.model = "m\"\n\xff\xc3\xa4", .salt = "secret", .codec = "f16"};
    core_realm_info realm = {
        .realm = 3, .desc = &desc, .page_bytes = UINT64_C(1) << 40, .group_pages = {7, 9}};
    (void)c;
    desc.geometry.page_tokens = 64;
    desc.geometry.n_ranks = n_ranks;
    desc.geometry.n_groups = n_groups;
    desc.geometry.groups[0] = (kvt_group){.n_layers = 5, .window = 512};
    desc.geometry.groups[1] = (kvt_group){.n_layers = 1};
    if (visit(context, &realm, NULL, NULL, 0))
        return 1;
    for (uint32_t i = 0; i < n_runs; i++) {
        radix_run run = {.depth = 1, .n_pages = i, .n_tokens = 64 * i, .n_children = 2, .held = 1};
        if (visit(context, &realm, &run, tokens, 10))
            return 1;
    }
    return 0;
}

/* --- the writer --------------------------------------------------------------------------------
 */

static void test_writer(void) {
    static const char expected[] =
        "{\"a\":18446744073709551615,\"b\":[true,0,\"\"],\"c\":{},"
        "\"\\\"\\\\\\u0001\\u000a\xc3\xa4\xef\xbf\xbd\":\"0000000000000abc\"}"
        "\n[]";
    char text[256];
    json_writer w;
    for (size_t room = 0; room <= sizeof text; room++) {
        json_start(&w, text, room);
        json_open(&w, NULL, '{');
        json_put_u64(&w, "a", UINT64_MAX);
        json_open(&w, "b", '[');
        json_put_bool(&w, NULL, 1);
        json_put_u64(&w, NULL, 0);
        json_put_text(&w, NULL, "");
        json_close(&w, ']');
        json_open(&w, "c", '{');
        json_close(&w, '}');
        json_put_hex(&w, "\"\\\001\n\xc3\xa4\xff", 0xabc);
        json_close(&w, '}');
        json_newline(&w);
        json_open(&w, NULL, '[');
        json_close(&w, ']');
        CHECK(w.n_bytes <= room);
        CHECK_EQ(w.full, room < sizeof expected - 1);
        CHECK(memcmp(text, expected, w.n_bytes) == 0);
    }
    CHECK_EQ(w.n_bytes, sizeof expected - 1);
}

/* --- status ------------------------------------------------------------------------------------
 */

static param_values values;
static const report_arena arenas[] = {{"/dev/shm/a", "host memory", NULL},
                                      {"/dev/shm/b", "GPU \"1\"", "it burns"}};
static report_facts facts = {.values = &values,
                             .socket = "/run/\"k\".sock",
                             .device = "host",
                             .arenas = arenas,
                             .n_arenas = 1,
                             .config_file = "",
                             .started_ms = 1000};

/* A copy of exactly the room, so that a sanitizer sees a byte too far. */
static char *status_in(size_t room, size_t *ret_n) {
    char *to = malloc(room + 1);
    CHECK(to != NULL);
    *ret_n = report_status(&facts, NULL, 63000, to, room);
    CHECK(*ret_n <= room);
    to[*ret_n] = 0;
    return to;
}

static void test_status(void) {
    size_t n;
    n_sessions = 2;
    session_name = "w\"\xfe";
    char *text = status_in(1 << 20, &n);
    cJSON *root = cJSON_ParseWithOpts(text, NULL, 1);
    CHECK_MSG(root != NULL, "%s", text);
    CHECK(strstr(text, "\"boot_id\":\"00c0ffee00000001\""));
    CHECK(strstr(text, "\"uptime_s\":62,"));
    CHECK(strstr(text,
                 "\"counts\":{\"requests\":18446744073709551615,\"refused\":18446744073709551614"));
    CHECK(strstr(text, "\"disk_used_bytes\":18446744073709551534}")); /* the last of them */
    CHECK(strstr(text, "\"staging_bytes\":9007199254740993"));
    CHECK(strstr(
        text, "\"config\":{\"socket\":\"auto\",\"device\":\"auto\",\"gpu\":0,\"arena\":\"auto\""));
    cJSON *sessions = cJSON_GetObjectItemCaseSensitive(root, "sessions_open");
    CHECK_EQ(cJSON_GetArraySize(sessions), 2);
    cJSON *second = cJSON_GetArrayItem(sessions, 1);
    CHECK(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(second, "orphaned")));
    CHECK(strcmp(cJSON_GetObjectItemCaseSensitive(second, "name")->valuestring,
                 "w\"\xef\xbf\xbd") == 0);
    CHECK(cJSON_GetObjectItemCaseSensitive(root, "truncated") == NULL);
    cJSON_Delete(root);
    free(text);
}

static void test_disk(void) {
    static const char *const heads[] = {
        "\"disk\":{\"state\":\"full\",\"silent_ms\":5000,\"records\":7,",
        "\"disk\":{\"state\":\"silent\",\"silent_ms\":5000,\"records\":7,",
        "\"disk\":{\"state\":\"works\",\"silent_ms\":4999,\"records\":7,"};
    disk_stats stats = {.silent_ms = DISK_SILENT_MS, .records = 7};
    size_t n;
    char *text = status_in(1 << 20, &n);
    CHECK(!strstr(text, "\"disk\":{"));
    free(text);
    facts.on_disk = &stats;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        text = status_in(1 << 20, &n);
        CHECK_MSG(strstr(text, heads[i]), "no %s", heads[i]);
        free(text);
        stats.silent_ms -= i == 1;
        disk_state = CORE_DISK_WORKS;
    }
    facts.on_disk = NULL;
}

/* One is told of at the head as well; of several the list tells. */
static void test_arenas(void) {
    size_t n;
    n_sessions = 1;
    char *text = status_in(1 << 20, &n);
    CHECK(strstr(text, "\"arena_path\":\"/dev/shm/a\""));
    CHECK(strstr(text, "\"arenas\":[{\"arena\":0,\"where\":\"host memory\",\"bytes\":"
                       "18446744073709551615,\"used_bytes\":0,"));
    free(text);
    facts.n_arenas = 2;
    text = status_in(1 << 20, &n);
    facts.n_arenas = 1;
    CHECK(!strstr(text, "\"arena_path\""));
    CHECK(strstr(text, "{\"arena\":1,\"where\":\"GPU \\\"1\\\"\",\"bytes\":"
                       "18446744073709551615,\"used_bytes\":1,"));
    CHECK(strstr(text, "\"state\":\"works\",\"path\":\"/dev/shm/a\"}"));
    CHECK(strstr(text, "\"state\":\"it burns\",\"path\":\"/dev/shm/b\"}]"));
    free(text);
}

/* In any room it is one whole object; as many sessions as fit are in it. */
static void test_status_in_little_room(void) {
    size_t n, most = 0;
    n_sessions = 20;
    for (size_t room = 64; room < 8000; room += 7) {
        char *text = status_in(room, &n);
        cJSON *root = cJSON_ParseWithOpts(text, NULL, 1);
        CHECK_MSG(root != NULL, "room %zu: %s", room, text);
        size_t fit =
            (size_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "sessions_open"));
        CHECK_EQ(cJSON_GetObjectItemCaseSensitive(root, "truncated") != NULL, fit < 20);
        CHECK(fit >= most);
        most = fit;
        cJSON_Delete(root);
        free(text);
    }
    CHECK_EQ(most, 20);
}

/* --- tree --------------------------------------------------------------------------------------
 */

static size_t check_lines(char *text, int *ret_truncated) {
    size_t n_lines = 0;
    *ret_truncated = 0;
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        CHECK_MSG(end != NULL, "a line is cut: %s", line);
        *end = 0;
        cJSON *root = cJSON_ParseWithOpts(line, NULL, 1);
        CHECK_MSG(root != NULL, "%s", line);
        CHECK_MSG(!*ret_truncated, "behind the last line: %s", line);
        *ret_truncated = cJSON_GetObjectItemCaseSensitive(root, "truncated") != NULL;
        n_lines += !*ret_truncated;
        cJSON_Delete(root);
    }
    return n_lines;
}

static size_t tree_lines(uint32_t max_lines, size_t room, int *ret_truncated) {
    char *text = malloc(room + 1);
    CHECK(text != NULL);
    size_t n = report_tree(&facts, NULL, max_lines, text, room);
    CHECK(n <= room);
    text[n] = 0;
    n = check_lines(text, ret_truncated);
    free(text);
    return n;
}

static void test_tree(void) {
    char text[4096];
    int truncated;
    n_runs = 1;
    values.tree_tokens = 1;
    text[report_tree(&facts, NULL, 100, text, sizeof text)] = 0;
    CHECK_MSG(strcmp(text,
                     "{\"realm\":3,\"model\":\"m\\\"\\u000a\xef\xbf\xbd\xc3\xa4\",\"engine\":\"\","
                     "\"adapter\":\"\",\"adapter_version\":\"\",\"salted\":true,\"codec\":\"f16\","
                     "\"page_tokens\":64,\"page_bytes\":1099511627776}\n"
                     "{\"realm\":3,\"depth\":1,\"pages\":0,\"tokens\":0,\"children\":2,\"pins\":0,"
                     "\"held\":true,\"busy\":false,\"first_tokens\":[1,2,3,4,5,6,7,8]}\n") == 0,
              "%s", text);
    CHECK(strstr(text, "secret") == NULL);
    values.tree_tokens = 0;
    text[report_tree(&facts, NULL, 100, text, sizeof text)] = 0;
    CHECK(strstr(text, "first_tokens") == NULL);
    n_ranks = 4;
    n_groups = 2;
    text[report_tree(&facts, NULL, 100, text, sizeof text)] = 0;
    CHECK(strstr(text, ",\"page_bytes\":1099511627776,\"ranks\":4,\"groups\":[{\"layers\":5,"
                       "\"window\":512},{\"layers\":1,\"window\":0}]}\n"));
    CHECK(strstr(text, "\"busy\":false,\"group_pages\":[7,9]}\n"));
    n_ranks = n_groups = 1;
    values.tree_tokens = 1;
    n_runs = 30;
    CHECK_EQ(tree_lines(31, 1 << 20, &truncated), 31);
    CHECK_EQ(truncated, 0);
    CHECK_EQ(tree_lines(30, 1 << 20, &truncated), 30);
    CHECK_EQ(truncated, 1);
    CHECK_EQ(tree_lines(1, 1 << 20, &truncated), 1);
    CHECK_EQ(truncated, 1);
    size_t most = 0;
    for (size_t room = 64; room < 8000; room += 7) {
        size_t n = tree_lines(1000, room, &truncated);
        CHECK(n >= most);
        CHECK_EQ(truncated, n < 31);
        most = n;
    }
    CHECK_EQ(most, 31);
}

/* --- what an arena takes -----------------------------------------------------------------------
 */

static void test_auto_arena(void) {
    const uint64_t gib = UINT64_C(1) << 30, none = UINT64_MAX;
    CHECK_EQ(arena_auto_bytes(&(memory_room){100 * gib, 100 * gib, none}), 4 * gib);
    CHECK_EQ(arena_auto_bytes(&(memory_room){64 << 20, 100 * gib, none}), 32 << 20);
    CHECK_EQ(arena_auto_bytes(&(memory_room){100 * gib, 2 * gib, none}), gib / 2);
    CHECK_EQ(arena_auto_bytes(&(memory_room){100 * gib, 100 * gib, gib}), gib / 4);
    CHECK_EQ(arena_auto_bytes(&(memory_room){none, none, none}), 4 * gib);
    CHECK_EQ(arena_auto_bytes(&(memory_room){200000, gib, none}), 65536); /* whole granules */
    CHECK_EQ(arena_auto_bytes(&(memory_room){0, gib, none}), 0);
    CHECK_EQ(arena_auto_pages(1 << 20), 1024);
    CHECK_EQ(arena_auto_pages(8 << 20), 2048);
    CHECK_EQ(arena_auto_pages(4 * gib), 1 << 20);
    CHECK_EQ(arena_auto_pages(1024 * gib), 4 << 20);
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void test_control_group(void) {
    char dir[] = "/tmp/test_report.XXXXXX", path[128];
    CHECK(mkdtemp(dir) != NULL);
    CHECK(memory_room_of_group(dir, "max", "now") == UINT64_MAX); /* no such group */
    write_file(dir, "max", "max\n");
    CHECK(memory_room_of_group(dir, "max", "now") == UINT64_MAX);
    write_file(dir, "max", "9223372036854771712\n"); /* the first hierarchy's "max" */
    CHECK(memory_room_of_group(dir, "max", "now") == UINT64_MAX);
    write_file(dir, "max", "1000000\n");
    CHECK_EQ(memory_room_of_group(dir, "max", "now"), 1000000);
    write_file(dir, "now", "300000\n");
    CHECK_EQ(memory_room_of_group(dir, "max", "now"), 700000);
    /* cached files are given up when memory is needed */
    write_file(dir, "memory.stat",
               "anon 100000\ninactive_file 50000\nactive_file 20000\nshmem 5\n");
    CHECK_EQ(memory_room_of_group(dir, "max", "now"), 770000);
    write_file(dir, "memory.stat", "inactive_file 5\ntotal_inactive_file 90000\n");
    CHECK_EQ(memory_room_of_group(dir, "max", "now"), 790000);
    write_file(dir, "now", "2000000\n");
    CHECK_EQ(memory_room_of_group(dir, "max", "now"), 0);
    const char *names[] = {"max", "now", "memory.stat"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    CHECK_EQ(rmdir(dir), 0);
    memory_room room;
    memory_room_get("/dev/shm", &room);
    CHECK(room.file_system > 0 && room.memory > 0 && room.memory != UINT64_MAX);
}

int main(void) {
    params_init(&values);
    test_writer();
    test_status();
    test_disk();
    test_arenas();
    test_status_in_little_room();
    test_tree();
    test_auto_arena();
    test_control_group();
    return 0;
}
