/*
 * test_json_scan.c - the strict scanner: what it refuses, where it says that is, and that whatever
 * it lets pass the parser behind it reads the same way.
 */
#include "daemon/json_scan.h"
#include "tests/check.h"

#include <cjson/cJSON.h>

static json_scan scan; /* large */

static kvt_status scan_bytes(const char *text, size_t n_bytes, char **ret_blanked) {
    /* Copies of exactly the size, so that a sanitizer sees a byte too far. */
    char *copy = malloc(n_bytes ? n_bytes : 1), *blanked = malloc(n_bytes ? n_bytes : 1);
    CHECK(copy && blanked);
    memcpy(copy, text, n_bytes);
    memset(&scan, 0x55, sizeof scan);
    kvt_status status = json_scan_text(copy, n_bytes, blanked, &scan);
    free(copy);
    if (ret_blanked)
        *ret_blanked = blanked;
    else
        free(blanked);
    return status;
}

/* --- what is refused, and where ----------------------------------------------------------------
 */

static const struct {
    const char *text;
    uint32_t line, column;
    const char *why; /* a part of it */
} refused[] = {
    {"", 1, 1, "empty"},
    {" \n // only a comment", 2, 19, "empty"},
    {"{", 1, 1, "this { is never closed"},
    {"{\n  \"a\": [1, 2\n}", 3, 1, "a comma or ]"},
    {"{\n  \"a\": [1, 2", 2, 8, "this [ is never closed"},
    {"{\"a\": 1} x", 1, 10, "behind the end"},
    {"{\"a\": 1}}", 1, 9, "behind the end"},
    {"{\"a\": 1}\n\n{\"a\": 1}", 3, 1, "behind the end"},
    {"1 2", 1, 3, "behind the end"},
    {"{\"a\": 1,}", 1, 9, "a comma in front of }"},
    {"[1,]", 1, 4, "a comma in front of ]"},
    {"[,1]", 1, 2, "',' where a value"},
    {"{,}", 1, 2, "',' where a key"},
    {"[1 2]", 1, 4, "'2' where a comma or ]"},
    {"[1}", 1, 3, "'}' where a comma or ]"},
    {"{\"a\":1]", 1, 7, "']' where a comma or }"},
    {"{\"a\" 1}", 1, 6, "a colon is needed"},
    {"{\"a\"}", 1, 5, "a colon is needed"},
    {"{\"a\":}", 1, 6, "'}' where a value"},
    {"{a: 1}", 1, 2, "'a' where a key in double quotes"},
    {"{'a': 1}", 1, 2, "where a key in double quotes"},
    {"['a']", 1, 2, "where a value"},
    {"[True]", 1, 2, "'T' where a value"},
    {"[nul]", 1, 2, "'n' where a value"},
    {"[NaN]", 1, 2, "'N' where a value"},
    {"[truefalse]", 1, 6, "'f' where a comma"},
    /* numbers */
    {"[01]", 1, 2, "must not begin with 0"},
    {"[-01]", 1, 2, "must not begin with 0"},
    {"[00]", 1, 2, "must not begin with 0"},
    {"[1e999]", 1, 2, "as large or as small"},
    {"[-1e999]", 1, 2, "as large or as small"},
    {"[1e-999]", 1, 2, "as large or as small"},
    {"[-]", 1, 2, "a digit behind its minus"},
    {"[+1]", 1, 2, "'+' where a value"},
    {"[.5]", 1, 2, "'.' where a value"},
    {"[1.]", 1, 2, "a digit behind its point"},
    {"[1e]", 1, 2, "a digit in its exponent"},
    {"[1e+]", 1, 2, "a digit in its exponent"},
    {"[0x10]", 1, 3, "'x' where a comma"},
    /* strings */
    {"[\"abc]", 1, 2, "does not end"},
    {"[\"a\nb\"]", 1, 4, "a line ends within a string"},
    {"[\"a\rb\"]", 1, 4, "a line ends within a string"},
    {"[\"a\tb\"]", 1, 4, "byte 0x09"},
    {"[\"a\x1f\"]", 1, 4, "byte 0x1f"},
    {"[\"\\q\"]", 1, 3, "this escape is not known"},
    {"[\"\\", 1, 3, "this escape is not known"},
    {"[\"\\u12\"]", 1, 3, "four hexadecimal digits"},
    {"[\"\\u12g4\"]", 1, 3, "four hexadecimal digits"},
    {"[\"\\u0000\"]", 1, 3, "\\u0000"},
    {"[\"x\\u0000y\"]", 1, 4, "\\u0000"},
    {"[\"\\ud800\"]", 1, 3, "half of a surrogate pair"},
    {"[\"\\ud800x\"]", 1, 3, "half of a surrogate pair"},
    {"[\"\\ud800\\u0041\"]", 1, 3, "half of a surrogate pair"},
    {"[\"\\udc00\\ud800\"]", 1, 3, "half of a surrogate pair"},
    /* bytes */
    {"\xef\xbb\xbf{}", 1, 1, "byte order mark"},
    {"[\"\xff\"]", 1, 3, "no UTF-8"},
    {"[\"\xc3\"]", 1, 3, "no UTF-8"},             /* cut short */
    {"[\"\xc0\xaf\"]", 1, 3, "no UTF-8"},         /* overlong */
    {"[\"\xe0\x80\xaf\"]", 1, 3, "no UTF-8"},     /* overlong */
    {"[\"\xed\xa0\x80\"]", 1, 3, "no UTF-8"},     /* surrogate */
    {"[\"\xf4\x90\x80\x80\"]", 1, 3, "no UTF-8"}, /* beyond U+10FFFF */
    {"[\"\xf0\x8f\x80\x80\"]", 1, 3, "no UTF-8"}, /* overlong */
    {"[\xc3\xa4]", 1, 2, "byte 0xc3 where a value"},
    /* a column is a character: the two umlauts are one each */
    {"[\"\xc3\xa4\xc3\xb6\", x]", 1, 8, "'x' where a value"},
    {"/* \xc3\xa4 */ x", 1, 9, "'x' where a value"},
    /* comments */
    {"{} /* never", 1, 4, "does not end"},
    {"{} /*/", 1, 4, "does not end"},
    {"{} /", 1, 4, "'/' behind the end"},
    {"[1, / 2]", 1, 5, "'/' where a value"},
    {"{} // \xff", 1, 7, "no UTF-8"},
    {"{} # no", 1, 4, "'#' behind the end"},
    /* keys */
    {"{\"a\": 1,\n \"b\": 2,\n \"a\": 3}", 3, 2, "line 1, column 2"},
    {"{\"a\": 1, \"\\u0061\": 3}", 1, 10, "is there already"},
    {"{\"\xc3\xa4\": 1, \"\\u00e4\": 3}", 1, 10, "is there already"},
    {"{\"\\ud83d\\ude00\": 1, \"\xf0\x9f\x98\x80\": 3}", 1, 21, "is there already"},
    {"{\"x\": {\"a\": 1, \"a\": 2}}", 1, 16, "is there already"},
    {"{\"x\": {\"a\": 1}, \"y\": {\"b\": [{\"c\": 1, \"c\": 2}]}}", 1, 38, "is there already"},
    {"{\"\": 1, \"\": 2}", 1, 9, "is there already"},
};

static void test_refused(void) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *text = refused[i].text;
        kvt_status status = scan_bytes(text, strlen(text), NULL);
        CHECK_MSG(status == KVT_ESYNTAX, "%s: status %d", text, (int)status);
        CHECK_MSG(scan.place.line == refused[i].line && scan.place.column == refused[i].column,
                  "%s: place %u:%u, expected %u:%u (%s)", text, scan.place.line, scan.place.column,
                  refused[i].line, refused[i].column, scan.why);
        CHECK_MSG(strstr(scan.why, refused[i].why), "%s: %s", text, scan.why);
        CHECK_MSG(!strchr(scan.why, '\n'), "%s: %s", text, scan.why);
    }
    CHECK_EQ(scan_bytes("[\0]", 3, NULL), KVT_ESYNTAX); /* NUL is no end of anything */
    CHECK_EQ(scan.place.column, 2);
    CHECK_EQ(scan_bytes("[\"\0\"]", 5, NULL), KVT_ESYNTAX);
    CHECK_EQ(scan.place.column, 3);
    CHECK_EQ(scan_bytes("[1]\0", 4, NULL), KVT_ESYNTAX);
    CHECK_EQ(scan.place.column, 4);
}

/* --- what passes -------------------------------------------------------------------------------
 */

static const char *const accepted[] = {
    "{}",
    "[]",
    "0",
    "-0",
    "-1.5e+3",
    "1E-2",
    "null",
    "\"\"",
    " \t\r\n[ true , false ,null ]\n",
    "{\"a\":{\"a\":{\"a\":1}},\"b\":[{\"a\":1},{\"a\":1}],\"A\":2}",
    ("// first\n{ /* in */ \"a\" /**/ : // behind\n 1 /* *//* **/ , "
     "\"b\": \"// no, /* not */\" } // end"),
    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\\ud83d\\ude00\"]",
    "[\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"]",
    "{\"a\": {\"b\": 1}, \"b\": 2}", /* another object may have the key */
    "{\"ab\": 1, \"a\": 2, \"abc\": 3, \"\": 4}",
};

static void test_accepted(void) {
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        char *blanked;
        size_t n = strlen(accepted[i]);
        kvt_status status = scan_bytes(accepted[i], n, &blanked);
        CHECK_MSG(status == KVT_OK, "%s: %u:%u %s", accepted[i], scan.place.line, scan.place.column,
                  scan.why);
        cJSON *root = cJSON_ParseWithLength(blanked, n);
        CHECK_MSG(root != NULL, "%s", accepted[i]);
        cJSON_Delete(root);
        free(blanked);
    }
}

static void test_comments_keep_places(void) {
    static const char text[] = "{ /* \xc3\xa4 \n\n */ \"a\": 1 // x\n}";
    static const char expected[] = "{       \n\n    \"a\": 1     \n}";
    char *blanked;
    CHECK_EQ(scan_bytes(text, sizeof text - 1, &blanked), KVT_OK);
    CHECK_EQ(sizeof text, sizeof expected);
    CHECK_MSG(memcmp(blanked, expected, sizeof text - 1) == 0, "%.*s", (int)sizeof text - 1,
              blanked);
    free(blanked);
}

static void test_values(void) {
    static const char text[] = "{\"a\": [1, 22], \"b\": {\"c\": \"x\"}, \"d\": false}";
    static const struct {
        uint32_t at, n_bytes, key_at, depth;
    } expected[] = {
        {0, 1, UINT32_MAX, 0}, {6, 1, 1, 1},   {7, 1, UINT32_MAX, 2}, {10, 2, UINT32_MAX, 2},
        {20, 1, 15, 1},        {26, 3, 21, 2}, {37, 5, 32, 1},
    };
    CHECK_EQ(scan_bytes(text, sizeof text - 1, NULL), KVT_OK);
    CHECK_EQ(scan.n_values, 7);
    for (uint32_t i = 0; i < scan.n_values; i++) {
        CHECK_EQ(scan.values[i].at, expected[i].at);
        CHECK_EQ(scan.values[i].n_bytes, expected[i].n_bytes);
        CHECK_EQ(scan.values[i].key_at, expected[i].key_at);
        CHECK_EQ(scan.values[i].depth, expected[i].depth);
    }
}

static void test_unescape(void) {
    static const char text[] = "\"a\\n\\u00e4\\ud83d\\ude00\\/\"";
    char to[16];
    CHECK_EQ(json_unescape(text, 0, to, sizeof to), 9);
    CHECK(memcmp(to, "a\n\xc3\xa4\xf0\x9f\x98\x80/", 9) == 0);
    CHECK_EQ(json_unescape(text, 0, to, 3), 9); /* the length is told even if there is no room */
}

/* --- limits ------------------------------------------------------------------------------------
 */

static char *repeated(const char *unit, size_t times) {
    size_t n = strlen(unit);
    char *text = malloc(n * times + 1);
    CHECK(text != NULL);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * n, unit, n);
    text[n * times] = 0;
    return text;
}

static void test_limits(void) {
    /* depth: JSON_MAX_DEPTH passes, one more does not, a million (that fits the size) neither */
    char nested[2 * JSON_MAX_DEPTH + 3];
    memset(nested, '[', sizeof nested);
    memset(nested + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    CHECK_EQ(scan_bytes(nested, 2 * JSON_MAX_DEPTH, NULL), KVT_OK);
    memset(nested, '[', JSON_MAX_DEPTH + 1);
    memset(nested + JSON_MAX_DEPTH + 1, ']', JSON_MAX_DEPTH + 1);
    CHECK_EQ(scan_bytes(nested, 2 * JSON_MAX_DEPTH + 2, NULL), KVT_ELIMIT);
    CHECK_EQ(scan.place.column, JSON_MAX_DEPTH + 1);
    CHECK(strstr(scan.why, "nested deeper than 32"));
    char *deep = repeated("[", 1000000), *objects = repeated("{\"a\":", 200000);
    CHECK_EQ(scan_bytes(deep, 1000000, NULL), KVT_ELIMIT);
    CHECK_EQ(scan.place.column, JSON_MAX_DEPTH + 1);
    CHECK_EQ(scan_bytes(objects, 1000000, NULL), KVT_ELIMIT);
    CHECK(strstr(scan.why, "nested deeper than 32"));
    free(deep);
    free(objects);
    /* values */
    char *list = repeated("1,", JSON_MAX_VALUES + 1);
    list[0] = '[', list[1] = ' ';
    list[2 * JSON_MAX_VALUES - 1] = ']';
    CHECK_EQ(scan_bytes(list, 2 * JSON_MAX_VALUES, NULL), KVT_OK);
    CHECK_EQ(scan.n_values, JSON_MAX_VALUES);
    list[2 * JSON_MAX_VALUES - 1] = ',';
    list[2 * JSON_MAX_VALUES + 1] = ']';
    CHECK_EQ(scan_bytes(list, 2 * JSON_MAX_VALUES + 2, NULL), KVT_ELIMIT);
    CHECK(strstr(scan.why, "more than 4096 values"));
    free(list);
    /* bytes: exactly the limit passes */
    char *spaces = repeated(" ", JSON_MAX_BYTES + 1);
    spaces[0] = '1';
    CHECK_EQ(scan_bytes(spaces, JSON_MAX_BYTES, NULL), KVT_OK);
    CHECK_EQ(json_scan_text(spaces, JSON_MAX_BYTES + 1, spaces, &scan), KVT_ELIMIT);
    CHECK(strstr(scan.why, "at most 1048576"));
    free(spaces);
    /* digits: a number that a double can hold, written as long as it gets, and one too long */
    char *digits = repeated("1", 500);
    CHECK_EQ(scan_bytes(digits, 300, NULL), KVT_OK);
    CHECK_EQ(scan_bytes(digits, 320, NULL), KVT_ESYNTAX);
    CHECK_EQ(scan_bytes(digits, 500, NULL), KVT_ESYNTAX);
    free(digits);
}

/* --- against the parser ------------------------------------------------------------------------
 */

static uint32_t count_items(const cJSON *item) {
    uint32_t n = 0;
    for (; item; item = item->next)
        n += 1 + count_items(item->child);
    return n;
}

/* Mutations of good texts: what passes is read by the parser, with as many values. */
static void test_against_parser(uint64_t seed) {
    uint64_t random = seed;
    uint32_t n_passed = 0;
    for (uint32_t i = 0; i < 200000; i++) {
        char text[256], *blanked;
        const char *from = accepted[check_below(&random, sizeof accepted / sizeof *accepted)];
        size_t n = strlen(from);
        memcpy(text, from, n);
        for (uint32_t j = check_below(&random, 3); j < 3 && n > 1; j++) {
            size_t at = check_below(&random, (uint32_t)n);
            if (check_below(&random, 3) == 0) {
                memmove(text + at, text + at + 1, n - at - 1);
                n--;
            } else {
                text[at] = "{}[]\",:/*\n \\u0e1tfn-."[check_below(&random, 21)];
            }
        }
        if (scan_bytes(text, n, &blanked) == KVT_OK) {
            cJSON *root = cJSON_ParseWithLength(blanked, n);
            CHECK_MSG(root != NULL, "seed %llu: passed and not parsed: %.*s",
                      (unsigned long long)seed, (int)n, text);
            CHECK_MSG(count_items(root) == scan.n_values, "seed %llu: %.*s",
                      (unsigned long long)seed, (int)n, text);
            cJSON_Delete(root);
            n_passed++;
        }
        free(blanked);
    }
    CHECK_MSG(n_passed > 1000, "only %u mutations passed: this tests nothing", n_passed);
}

int main(void) {
    test_refused();
    test_accepted();
    test_comments_keep_places();
    test_values();
    test_unescape();
    test_limits();
    test_against_parser(20240501);
    return 0;
}
