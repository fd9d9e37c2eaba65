/*
 * test_config.c - what a configuration may say, and that everything else is refused with one line
 * that names the place, the key, the value and what is allowed.
 */
#include "daemon/config.h"
#include "daemon/params_print.h"
#include "tests/check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static config c;
static char why[CONFIG_WHY_BYTES];

static kvt_status parse(const char *text) {
    size_t n = strlen(text);
    char *copy = malloc(n ? n : 1); /* of exactly the size, for the sanitizer */
    CHECK(copy != NULL);
    memcpy(copy, text, n);
    config_init(&c);
    memset(why, 0, sizeof why);
    kvt_status status = config_parse(&c, "f.json", copy, n, why, sizeof why);
    free(copy);
    return status;
}

/* --- the table ---------------------------------------------------------------------------------
 */

static void test_table(void) {
    char text[1024], range[160];
    param_values values;
    params_init(&values);
    for (size_t i = 0; i < params_n; i++) {
        const param *p = &params[i];
        CHECK_MSG(param_find(p->name, strlen(p->name)) == p, "%s stands there twice", p->name);
        CHECK_MSG(strlen(p->text) > 20, "%s is not explained", p->name);
        CHECK_MSG(strlen(param_range(p, range, sizeof range)) > 5, "%s", p->name);
        /* a default is read and printed as it stands in the table */
        CHECK_EQ(param_print(p, &values, text, sizeof text), strlen(p->standard));
        CHECK_MSG(strcmp(text, p->standard) == 0, "%s: %s", p->name, text);
        for (size_t j = 0; j < i; j++)
            CHECK_MSG(params[j].offset != p->offset, "%s and %s", p->name, params[j].name);
    }
    CHECK(param_find("socke", 5) == NULL);
    CHECK(param_find("Socket", 6) == NULL);
}

/* conf/kvtrunkd.json is what --print-config prints, it says the defaults, and it is taken. */
static void test_default_file(void) {
    char path[4096], *printed = NULL;
    size_t n_printed = 0;
    const char *root = getenv("KVT_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/conf/kvtrunkd.json", root ? root : ".");
    FILE *to = open_memstream(&printed, &n_printed), *file = fopen(path, "r");
    CHECK_MSG(file != NULL, "%s", path);
    params_print_config(to);
    fclose(to);
    char *kept = calloc(1, n_printed + 2);
    CHECK(kept != NULL);
    size_t n_kept = fread(kept, 1, n_printed + 1, file);
    CHECK_MSG(n_kept == n_printed && memcmp(kept, printed, n_printed) == 0,
              "%s is out of date: kvtrunkd --print-config > conf/kvtrunkd.json", path);
    param_values defaults;
    params_init(&defaults);
    CHECK_MSG(parse(printed) == KVT_OK, "%s", why);
    for (size_t i = 0; i < params_n; i++) {
        CHECK_MSG(param_equal(&params[i], &c.values, &defaults), "%s", params[i].name);
        CHECK_EQ(c.from[i].source, CONFIG_FILE);
    }
    CHECK_EQ(config_check(&c, 1000, why, sizeof why), KVT_OK);
    fclose(file);
    free(kept);
    free(printed);
}

/* --- what is taken -----------------------------------------------------------------------------
 */

static void test_taken(void) {
    CHECK_MSG(parse("{}") == KVT_OK, "%s", why);
    CHECK_EQ(c.values.page_tokens, 64);
    CHECK_EQ(c.values.arena, 0);
    CHECK_EQ(c.values.n_uids, 0);
    CHECK_MSG(
        parse("{ // all kinds\n"
              "  \"socket\": \"/run/\\u00e4 \\\"b\\\\\",\n"
              "  \"arena\": \"64GiB\", \"max_pages\": 67108864, \"page_tokens\": 128,\n"
              "  \"arena_mode\": \"0644\", \"log_level\": \"debug\", \"tree_tokens\": false,\n"
              "  \"arena_group\": \"\", \"uids\": [4294967294, \"root\", 1000]}") == KVT_OK,
        "%s", why);
    CHECK(strcmp(c.values.socket, "/run/\xc3\xa4 \"b\\") == 0);
    CHECK_EQ(c.values.arena, INT64_C(64) << 30);
    CHECK_EQ(c.values.max_pages, 67108864);
    CHECK_EQ(c.values.page_tokens, 128);
    CHECK_EQ(c.values.arena_mode, 0644);
    CHECK_EQ(c.values.log_level, 3);
    CHECK_EQ(c.values.tree_tokens, 0);
    CHECK_EQ(c.values.n_uids, 3);
    CHECK_EQ(c.values.uids[0], 4294967294);
    CHECK_EQ(c.values.uids[1], 0);
    CHECK_EQ(c.values.uids[2], 1000);
    char text[64];
    const param *socket = param_find("socket", 6);
    param_print(socket, &c.values, text, sizeof text);
    CHECK_MSG(strcmp(text, "\"/run/\xc3\xa4 \\\"b\\\\\"") == 0, "%s", text);
}

static void test_sizes(void) {
    static const struct {
        const char *json;
        uint64_t bytes;
    } good[] = {
        {"\"1MiB\"", UINT64_C(1) << 20},
        {"\"1 MiB\"", UINT64_C(1) << 20},
        {"\"1048576\"", UINT64_C(1) << 20},
        {"\"1048577B\"", (UINT64_C(1) << 20) + 1},
        {"\"1024KiB\"", UINT64_C(1) << 20},
        {"1048576", UINT64_C(1) << 20},
        {"\"64TiB\"", UINT64_C(1) << 46},
        {"70368744177664", UINT64_C(1) << 46},
        {"70368744177663", (UINT64_C(1) << 46) - 1}, /* exact, as every whole number */
        {"\"auto\"", 0},
    };
    char text[128];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "{\"arena\": %s}", good[i].json);
        CHECK_MSG(parse(text) == KVT_OK, "%s", why);
        CHECK_MSG(c.values.arena == good[i].bytes, "%s: %llu", text,
                  (unsigned long long)c.values.arena);
    }
}

/* --- what is refused ---------------------------------------------------------------------------
 */

static const struct {
    const char *text;
    const char *why;  /* how the message begins */
    const char *more; /* what else must stand in it */
} refused[] = {
    /* not JSON: the scanner's messages, with the file in front */
    {"{\n  \"arena\": 01\n}", "f.json:2:12: a number must not begin with 0", ""},
    {"{\"max_pages\": 1e999}", "f.json:1:15: no number can be", ""},
    {"{\"socket\": \"/a\", \"socket\": \"/b\"}", "f.json:1:18: this key is there already",
     "column 2"},
    {"{} trailing", "f.json:1:4: 't' behind the end", ""},
    /* not a configuration */
    {"[]", "f.json:1:1: a configuration is one object", ""},
    {"\n3", "f.json:2:1: a configuration is one object", ""},
    /* keys */
    {"{\"max_session\": 1}", "f.json:1:2: \"max_session\": this key is not known",
     "did you mean \"max_sessions\"?"},
    {"{\"socket\": \"/a\",\n\t\"Arena\": 1}", "f.json:2:2: \"Arena\": this key is not known",
     "did you mean \"arena\"?"},
    {"{\"aernaa\": 1}", "f.json:1:2: \"aernaa\"", "did you mean \"arena\"?"},
    {"{\"raean\": 1}", "f.json:1:2: \"raean\"", "did you mean \"arena\"?"}, /* two swaps */
    {"{\"grace\": 1}", "f.json:1:2: \"grace\"", "did you mean \"grace_ms\"?"},
    {"{\"zzzzzzzzzzzz\": 1}", "f.json:1:2: \"zzzzzzzzzzzz\"", "kvtrunkd --help names all"},
    {"{\"\": 1}", "f.json:1:2: \"\": this key is not known", ""},
    {"{\"a\\nb\": 1}", "f.json:1:2: \"a?b\": this key is not known", ""},
    {"{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\": 1}",
     "f.json:1:2: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...\": this key is not known", ""},
    /* types */
    {"{\"arena\": true}", "f.json:1:11: \"arena\" = true: it needs a string such as \"64GiB\"",
     "\"1MiB\" .. \"64TiB\", or \"auto\""},
    {"{\"max_pages\": \"5\"}", "f.json:1:15: \"max_pages\" = \"5\": it needs a number", ""},
    {"{\"grace_ms\": null}", "f.json:1:14: \"grace_ms\" = null: it needs a number",
     "milliseconds, 0 .. 3600000"},
    {"{\"socket\": 5}", "f.json:1:12: \"socket\" = 5: it needs a string", "2 .. 106 bytes"},
    {"{\"tree_tokens\": 1}", "f.json:1:17: \"tree_tokens\" = 1: it needs true or false", ""},
    {"{\"uids\": 0}", "f.json:1:10: \"uids\" = 0: it needs a list", ""},
    {"{\"uids\": [1, [2]]}", "f.json:1:14: \"uids\" = [: it needs a list", ""},
    {"{\"uids\": [{\"a\": 1}]}", "f.json:1:11: \"uids\" = {: it needs a list", ""},
    {"{\"log_level\": 1}", "f.json:1:15: \"log_level\" = 1: it needs a string", ""},
    {"{\"arena_mode\": 640}",
     "f.json:1:16: \"arena_mode\" = 640: it needs a string such as \"0640\"", ""},
    {"{\"tenant\": {\"a\": 1}}", "f.json:1:12: \"tenant\" = {: it needs a string", ""},
    /* values */
    {"{\"max_sessions\": 0}", "f.json:1:18: \"max_sessions\" = 0: it is out of range", "1 .. 4096"},
    {"{\"max_sessions\": 4097}", "f.json:1:18: \"max_sessions\" = 4097: it is out of range", ""},
    {"{\"max_sessions\": 18446744073709551617}", "f.json:1:18: \"max_sessions\" = 184467", "range"},
    {"{\"max_sessions\": 99999999999999999999999999}", "f.json:1:18: \"max_sessions\" = 9999",
     "range"},
    {"{\"max_sessions\": -1}", "f.json:1:18: \"max_sessions\" = -1: this is no whole number", ""},
    {"{\"max_sessions\": 2.0}", "f.json:1:18: \"max_sessions\" = 2.0: this is no whole number", ""},
    {"{\"max_sessions\": 1e2}", "f.json:1:18: \"max_sessions\" = 1e2: this is no whole number", ""},
    {"{\"page_tokens\": 48}", "f.json:1:17: \"page_tokens\" = 48: it is no power of two",
     "16 .. 128"},
    {"{\"page_tokens\": 8}", "f.json:1:17: \"page_tokens\" = 8: it is out of range", ""},
    {"{\"arena\": \"1GB\"}", "f.json:1:11: \"arena\" = \"1GB\": \"GB\" is no unit", "GiB"},
    {"{\"arena\": \"1gib\"}", "f.json:1:11: \"arena\" = \"1gib\": \"gib\" is no unit", ""},
    {"{\"arena\": \"1.5GiB\"}", "f.json:1:11: \"arena\" = \"1.5GiB\": \".5GiB\" is no unit", ""},
    {"{\"arena\": \"\"}", "f.json:1:11: \"arena\" = \"\": this is no size", ""},
    {"{\"arena\": \"Auto\"}", "f.json:1:11: \"arena\" = \"Auto\": this is no size", "or \"auto\""},
    {"{\"arena\": \"-1GiB\"}", "f.json:1:11: \"arena\" = \"-1GiB\": this is no size", ""},
    {"{\"arena\": \"1KiB\"}", "f.json:1:11: \"arena\" = \"1KiB\": it is out of range", ""},
    {"{\"arena\": \"65TiB\"}", "f.json:1:11: \"arena\" = \"65TiB\": it is out of range", ""},
    {"{\"arena\": \"16777217TiB\"}", "f.json:1:11: \"arena\" = \"16777217TiB\": it is out of range",
     ""}, /* 2^64 + 1TiB */
    {"{\"arena\": \"99999999999999999999GiB\"}", "f.json:1:11: \"arena\"", "it is out of range"},
    {"{\"arena\": 0}", "f.json:1:11: \"arena\" = 0: it is out of range", ""},
    {"{\"socket\": \"\"}", "f.json:1:12: \"socket\" = \"\": this is no absolute path", ""},
    {"{\"socket\": \"a/b\"}", "f.json:1:12: \"socket\" = \"a/b\": this is no absolute path", ""},
    {"{\"socket\": \"/\\n\"}", "f.json:1:12: \"socket\" = \"/\\n\": it has a control character",
     ""},
    {"{\"socket\": \"/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
     "f.json:1:12: \"socket\" = \"/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...: it has 107 bytes",
     "2 .. 106 bytes"},
    {"{\"tenant\": \"\"}", "f.json:1:12: \"tenant\" = \"\": it has 0 bytes", "1 .. 63 letters"},
    {"{\"tenant\": \"..\"}",
     "f.json:1:12: \"tenant\" = \"..\": it begins with \".\"; it must be 1 .. 63 letters", "\"-\""},
    {"{\"tenant\": \".a\"}", "f.json:1:12: \"tenant\" = \".a\": it begins with \".\"",
     "not begin with \".\""},
    {"{\"tenant\": \"a/b\"}", "f.json:1:12: \"tenant\" = \"a/b\": it has \"/\" in it", "digits"},
    {"{\"tenant\": \"a b\"}", "f.json:1:12: \"tenant\" = \"a b\": it has another character in it",
     "digits"},
    {"{\"tenant\": \"\xc3\xa9\"}",
     "f.json:1:12: \"tenant\" = \"\xc3\xa9\": it has another character in it", "digits"},
    {"{\"arena_mode\": \"0660\"}",
     "f.json:1:16: \"arena_mode\" = \"0660\": only the daemon may write", "\"0640\""},
    {"{\"arena_mode\": \"0440\"}",
     "f.json:1:16: \"arena_mode\" = \"0440\": only the daemon may write", ""},
    {"{\"arena_mode\": \"04640\"}", "f.json:1:16: \"arena_mode\"", "only the daemon may write"},
    {"{\"arena_mode\": \"0x40\"}", "f.json:1:16: \"arena_mode\"", "no permission bits"},
    {"{\"arena_mode\": \"\"}", "f.json:1:16: \"arena_mode\"", "only the daemon may write"},
    {"{\"log_level\": \"loud\"}", "f.json:1:15: \"log_level\" = \"loud\": there is no such choice",
     "\"error\", \"warning\", \"info\" or \"debug\""},
    {"{\"uids\": [0, 4294967295]}", "f.json:1:14: \"uids\" = 4294967295: there is no such user id",
     ""},
    {"{\"uids\": [\"no such user\"]}",
     "f.json:1:11: \"uids\" = \"no such user\": this system knows no such user", ""},
    {"{\"uids\": [\"\"]}", "f.json:1:11: \"uids\" = \"\": this system knows no such user", ""},
    {"{\"uids\": [1.5]}", "f.json:1:11: \"uids\" = 1.5: this system knows no such user", ""},
    {"{\"uids\": [7,\n 8, 7]}", "f.json:2:5: \"uids\" = 7: user 7 stands in the list twice", ""},
};

static void test_refused(void) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        kvt_status status = parse(refused[i].text);
        CHECK_MSG(status != KVT_OK, "taken: %s", refused[i].text);
        CHECK_MSG(strncmp(why, refused[i].why, strlen(refused[i].why)) == 0,
                  "%s\n   says: %s\n  needs: %s", refused[i].text, why, refused[i].why);
        CHECK_MSG(strstr(why, refused[i].more), "%s\n says: %s\nneeds: %s", refused[i].text, why,
                  refused[i].more);
        for (const char *at = why; *at; at++)
            CHECK_MSG((unsigned char)*at >= 0x20, "more than a line: %s", why);
    }
}

static void test_too_many_uids(void) {
    char text[1024];
    int n = snprintf(text, sizeof text, "{\"uids\": [");
    for (int i = 0; i <= PARAM_MAX_UIDS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%d", i ? "," : "", 1000 + i);
    snprintf(text + n, sizeof text - (size_t)n, "]}");
    CHECK_EQ(parse(text), KVT_EINVAL);
    CHECK_MSG(strstr(why, "these are too many; it must be a list of at most 64"), "%s", why);
}

static void test_absurd_texts(void) {
    /* a million deep */
    char *deep = malloc(1000001);
    CHECK(deep != NULL);
    memset(deep, '[', 1000000);
    deep[1000000] = 0;
    CHECK_EQ(parse(deep), KVT_ELIMIT);
    CHECK_MSG(strcmp(why, "f.json:1:33: nested deeper than 32") == 0, "%s", why);
    free(deep);
    /* a string of 50 MB, on the way of a buffer */
    size_t n = 50u << 20;
    char *text = malloc(n);
    CHECK(text != NULL);
    memset(text, 'a', n);
    memcpy(text, "{\"socket\": \"/", 13);
    config_init(&c);
    CHECK_EQ(config_parse(&c, "f.json", text, n, why, sizeof why), KVT_ELIMIT);
    CHECK_MSG(strcmp(why, "f.json:1:1: it has 52428800 bytes; at most 1048576 are read") == 0, "%s",
              why);
    free(text);
}

/* --- files -------------------------------------------------------------------------------------
 */

static void write_file(const char *path, const char *text, off_t n_bytes) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(n_bytes == 0 || ftruncate(fd, n_bytes) == 0);
    close(fd);
}

static kvt_status read_file(const char *path) {
    config_init(&c);
    memset(why, 0, sizeof why);
    return config_read(&c, path, why, sizeof why);
}

static void test_files(void) {
    char dir[] = "/tmp/test_config.XXXXXX", path[64], expected[256];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/kvtrunkd.json", dir);
    CHECK_EQ(read_file(path), KVT_ENOENT);
    CHECK_MSG(strstr(why, path) && strstr(why, "No such file"), "%s", why);
    CHECK_EQ(read_file(dir), KVT_EIO);
    CHECK_MSG(strstr(why, "this is a directory"), "%s", why);
    write_file(path, "{\n    \"max_jobs\": 7\n}\n", 0);
    CHECK_MSG(read_file(path) == KVT_OK, "%s", why);
    CHECK_EQ(c.values.max_jobs, 7);
    write_file(path, "{\n    \"max_jobs\": 7,\n    \"job_thread\": 1\n}\n", 0);
    CHECK_EQ(read_file(path), KVT_EINVAL);
    snprintf(expected, sizeof expected,
             "%s:3:5: \"job_thread\": this key is not known; did you mean "
             "\"job_threads\"?",
             path);
    CHECK_MSG(strcmp(why, expected) == 0, "%s", why);
    write_file(path, "{", 50 << 20);
    CHECK_EQ(read_file(path), KVT_ELIMIT);
    snprintf(expected, sizeof expected, "%s:1:1: it has 52428800 bytes; at most 1048576 are read",
             path);
    CHECK_MSG(strcmp(why, expected) == 0, "%s", why);
    CHECK_EQ(read_file("/dev/zero"), KVT_ELIMIT); /* does not end, and is not read to the end */
    CHECK_EQ(read_file("/dev/null"), KVT_ESYNTAX);
    unlink(path);
    rmdir(dir);
}

/* --- the command line --------------------------------------------------------------------------
 */

static kvt_status set(const char *text) {
    memset(why, 0, sizeof why);
    return config_set(&c, "--set", text, why, sizeof why);
}

static void test_set(void) {
    CHECK_EQ(parse("{\"gpu\": \"1,2\"}"), KVT_OK);
    CHECK_EQ(c.values.gpus, 6);
    CHECK_EQ(parse("{\"gpu\": 3}"), KVT_OK);
    CHECK_EQ(c.values.gpus, 8);
    CHECK_EQ(parse("{\"gpu\": [0, 1]}"), KVT_EINVAL);
    CHECK_EQ(parse("{\"max_jobs\": 7, \"grace_ms\": 5}"), KVT_OK);
    CHECK_EQ(set("max_jobs=8"), KVT_OK);
    CHECK_EQ(c.values.max_jobs, 8);
    CHECK_EQ(c.values.grace_ms, 5);
    CHECK_EQ(set("arena=1GiB"), KVT_OK);
    CHECK_EQ(c.values.arena, 1 << 30);
    CHECK_EQ(set("socket=/a=b"), KVT_OK);
    CHECK(strcmp(c.values.socket, "/a=b") == 0);
    CHECK_EQ(set("uids=5,root"), KVT_OK);
    CHECK_EQ(c.values.n_uids, 2);
    CHECK_EQ(set("uids="), KVT_OK);
    CHECK_EQ(c.values.n_uids, 0);
    static const struct {
        const char *text, *shown;
        uint64_t gpus;
    } gpus[] = {{"gpu=0", "0", 1},
                {"gpu=62", "62", UINT64_C(1) << 62},
                {"gpu=3,0", "\"0,3\"", 9},
                {"gpu=all", "\"all\"", PARAM_ALL_GPUS},
                {"gpu=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,62",
                 "\"0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,62\"", 0x7fff | UINT64_C(1) << 62}};
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        char shown[128];
        CHECK_MSG(set(gpus[i].text) == KVT_OK, "%s", why);
        CHECK_EQ(c.values.gpus, gpus[i].gpus);
        param_print(param_find("gpu", 3), &c.values, shown, sizeof shown);
        CHECK_MSG(strcmp(shown, gpus[i].shown) == 0, "%s", shown);
    }
    static const char *const no_gpus[] = {"gpu=",
                                          "gpu=63",
                                          "gpu=0,",
                                          "gpu=,0",
                                          "gpu=0;1",
                                          "gpu=ALL",
                                          "gpu=1,1",
                                          "gpu=-1",
                                          "gpu=99999999999999999999",
                                          "gpu=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
    for (size_t i = 0; i < sizeof no_gpus / sizeof *no_gpus; i++)
        CHECK_MSG(set(no_gpus[i]) == KVT_EINVAL, "%s", no_gpus[i]);
    CHECK_EQ(set("tree_tokens=false"), KVT_OK);
    CHECK_EQ(c.values.tree_tokens, 0);
    CHECK_EQ(set("arena"), KVT_ESYNTAX);
    CHECK_MSG(strcmp(why, "--set arena: it needs KEY=VALUE") == 0, "%s", why);
    CHECK_EQ(set("aren=1"), KVT_EINVAL);
    CHECK_MSG(strstr(why, "--set: \"aren\": this key is not known; did you mean \"arena\"?"), "%s",
              why);
    CHECK_EQ(set("max_jobs=x"), KVT_EINVAL);
    CHECK_MSG(strstr(why, "--set: \"max_jobs\" = x: this is no whole number; it must be"), "%s",
              why);
    CHECK_EQ(set("socket=/\xff"), KVT_EINVAL);
    CHECK_MSG(strstr(why, "no UTF-8"), "%s", why);
    CHECK_EQ(set("uids=5,,6"), KVT_EINVAL);
    CHECK_EQ(set("=1"), KVT_EINVAL);
}

/* --- contradictions ----------------------------------------------------------------------------
 */

static void check_contradiction(const char *text, const char *expected) {
    CHECK_MSG(parse(text) == KVT_OK, "%s", why);
    CHECK_MSG(config_check(&c, 1000, why, sizeof why) == KVT_EINVAL, "taken: %s", text);
    CHECK_MSG(strncmp(why, expected, strlen(expected)) == 0, "%s\n   says: %s\n  needs: %s", text,
              why, expected);
}

static void test_contradictions(void) {
    check_contradiction("{\"max_leases\": 10,\n \"max_leases_total\": 9, \"max_sessions\": 1}",
                        "f.json:1:2: \"max_leases\" = 10 contradicts \"max_leases_total\" = 9 "
                        "(f.json:2:2): one worker");
    /* a default is never blamed: the place is that of what was set */
    check_contradiction("{\"max_leases_total\": 300}",
                        "f.json:1:2: \"max_leases_total\" = 300 contradicts \"max_leases\" = 4096 "
                        "(default)");
    check_contradiction("{\"max_pages\": 100, \"max_claimed_pages\": 101}",
                        "f.json:1:20: \"max_claimed_pages\" = 101 contradicts \"max_pages\" = 100");
    check_contradiction("{\"max_pinned\": \"1MiB\", \"max_pinned_owner\": \"2MiB\"}",
                        "f.json:1:24: \"max_pinned_owner\" = \"2MiB\" contradicts \"max_pinned\" = "
                        "\"1MiB\" (f.json:1:2): one owner");
    check_contradiction("{\"arena\": \"1MiB\", \"max_pages\": 4097}",
                        "f.json:1:19: \"max_pages\" = 4097 contradicts \"arena\" = \"1MiB\" "
                        "(f.json:1:2): max_pages asks for places for 4097 pages, and arena has "
                        "room for 4096 at most, since a page takes 256 bytes at the least: lower "
                        "max_pages to that, or raise arena to 2MiB");
    check_contradiction(
        "{\"arena\": \"1MiB\", \"host\": \"1MiB\", \"max_pages\": 8193}",
        "f.json:1:35: \"max_pages\" = 8193 contradicts \"arena\" = \"1MiB\" "
        "(f.json:1:2): max_pages asks for places for 8193 pages, and arena and host "
        "have room for 8192 at most");
    check_contradiction("{\"max_leases\": 1, \"max_leases_total\": 255}",
                        "f.json:1:19: \"max_leases_total\" = 255 contradicts \"max_sessions\"");
    check_contradiction(
        "{\"uids\": [1000, 0, 1001], \"arena_mode\": \"0600\"}",
        "f.json:1:27: \"arena_mode\" = \"0600\" contradicts \"uids\" = [1000, 0, 1001]");
    CHECK_EQ(set("max_leases=300"), KVT_OK);
    CHECK_EQ(set("max_leases_total=299"), KVT_OK);
    CHECK_EQ(config_check(&c, 1000, why, sizeof why), KVT_EINVAL);
    CHECK_MSG(strncmp(why, "command line: \"max_leases\" = 300", 32) == 0, "%s", why);
    /* what only looks like one */
    CHECK_EQ(parse("{\"max_pages\": 100}"), KVT_OK); /* the default of max_claimed_pages is half */
    CHECK_EQ(config_check(&c, 1000, why, sizeof why), KVT_OK);
    CHECK_EQ(parse("{\"uids\": [1000, 0], \"arena_mode\": \"0600\"}"), KVT_OK);
    CHECK_EQ(config_check(&c, 1000, why, sizeof why), KVT_OK);
    CHECK_EQ(parse("{\"uids\": [7], \"arena_mode\": \"0604\"}"), KVT_OK);
    CHECK_EQ(config_check(&c, 1000, why, sizeof why), KVT_OK);
}

/* --- tenants -----------------------------------------------------------------------------------
 */

static kvt_status parse_all(const char *text) {
    kvt_status status = parse(text);
    if (status == KVT_OK)
        status = config_settle(&c, why, sizeof why);
    return status == KVT_OK ? config_check(&c, 0, why, sizeof why) : status;
}

static void test_tenants(void) {
    CHECK_MSG(parse_all("{\"tenants\": [\n"
                        "  {\"name\": \"red\", \"uids\": [7, 8], \"arena\": \"2MiB\"},\n"
                        "  {\"name\": \"blue\", \"gids\": [9], \"max_pins\": 3, // after its own\n"
                        "   \"tree_tokens\": false}],\n"
                        " \"arena\": \"1MiB\", \"max_sessions\": 11}") == KVT_OK,
              "%s", why);
    CHECK_EQ(c.n_tenants, 2);
    const param_values *red = &c.tenants[0].values, *blue = &c.tenants[1].values;
    CHECK(strcmp(red->tenant, "red") == 0 && strcmp(blue->tenant, "blue") == 0);
    CHECK(red->n_uids == 2 && red->uids[1] == 8 && red->n_gids == 0);
    CHECK(blue->n_uids == 0 && blue->n_gids == 1 && blue->gids[0] == 9);
    CHECK(red->arena == 2 << 20 && blue->arena == 1 << 20); /* its own, and what stands beside */
    CHECK(red->max_sessions == 11 && red->max_pins == 1024 && blue->max_pins == 3);
    CHECK(red->tree_tokens == 1 && blue->tree_tokens == 0);
    static const struct {
        const char *text, *why, *more;
    } bad[] = {
        {"{\"tenants\": [{\"name\": \"../b\"}]}", "f.json:1:23: \"tenant\" = \"../b\": it begins",
         ""},
        {"{\"tenants\": [{\"name\": \"a/../b\"}]}",
         "f.json:1:23: \"tenant\" = \"a/../b\": it has \"/\" in it", ""},
        {"{\"tenants\": 1}", "f.json:1:13: \"tenants\" = 1: it needs a list of objects", ""},
        {"{\"tenants\": [1]}", "f.json:1:14: \"tenants\" = 1: it needs a list of objects", ""},
        {"{\"tenants\": [{\"nam\": 1}]}", "f.json:1:15: \"nam\": this key is not known",
         "did you mean \"name\"?"},
        {"{\"tenants\": [{\"uid\": 1}]}", "f.json:1:15: \"uid\"", "did you mean \"uids\"?"},
        {"{\"tenants\": [{\"name\": \"a\"},\n{\"tenant\": \"b\"}]}", "f.json:2:2: \"tenant\"",
         "stands beside"},
        {"{\"tenants\": [{\"socket\": \"/a\"}]}", "f.json:1:15: \"socket\"",
         "this stands beside \"tenants\""},
        {"{\"tenants\": [{\"name\": \"a\", \"arena\": \"1GB\"}]}",
         "f.json:1:37: \"arena\" = \"1GB\": \"GB\" is no unit", ""},
        {"{\"tenants\": [{\"name\": \"a\", \"uids\": [1, \"nobody of this name\"]}]}",
         "f.json:1:40: \"uids\"", "no such user"},
        {"{\"tenants\": [\n {\"uids\": [1]}]}", "f.json:2:2: tenant without a name: it needs", ""},
        {"{\"tenants\": [{\"name\": \"a\"}]}", "f.json:1:14: tenant a: nobody belongs to it", ""},
        {"{\"tenants\": [{\"name\": \"a\", \"uids\": [1]}, {\"name\": \"a\", \"uids\": [2]}]}",
         "f.json:1:42: tenant a: there are two of this name", ""},
        {"{\"tenants\": [{\"name\": \"a\", \"uids\": [1]}, {\"name\": \"b\", \"uids\": [2, 1]}]}",
         "f.json:1:42: tenant b: user 1 belongs to tenant a already", ""},
        {"{\"tenants\": [{\"name\": \"a\", \"gids\": [1]}, {\"name\": \"b\", \"gids\": [1]}]}",
         "f.json:1:42: tenant b: group 1 belongs to tenant a already", ""},
        {"{\"uids\": [1], \"tenants\": [{\"name\": \"a\", \"uids\": [1]}]}",
         "f.json:1:2: \"uids\" = [1] contradicts \"tenants\"", "in each of them"},
        {"{\"tenants\": [{\"name\": \"a\", \"uids\": [1], \"arena_mode\": \"0644\"}]}",
         "f.json:1:14: tenant a: \"arena_mode\" = \"0644\" would let every other tenant", ""},
        {"{\"tenants\": [{\"name\": \"a\", \"uids\": [1], \"max_leases_total\": 1}]}",
         "f.json:1:14: tenant a: ", "contradicts"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_MSG(parse_all(bad[i].text) != KVT_OK, "%s", bad[i].text);
        CHECK_MSG(strncmp(why, bad[i].why, strlen(bad[i].why)) == 0 && strstr(why, bad[i].more),
                  "%s: %s", bad[i].text, why);
    }
    config_init(&c);
    CHECK_EQ(config_set(&c, "--set", "tenants=a", why, sizeof why), KVT_EINVAL);
    CHECK_MSG(strstr(why, "a file alone can say it"), "%s", why);
}

int main(void) {
    test_tenants();
    test_table();
    test_default_file();
    test_taken();
    test_sizes();
    test_refused();
    test_too_many_uids();
    test_absurd_texts();
    test_files();
    test_set();
    test_contradictions();
    return 0;
}
