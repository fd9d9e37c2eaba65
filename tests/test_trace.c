/*
 * test_trace.c - the trace reader: small traces of both formats, written by hand, plain and
 * gzipped, give exactly these requests; every kind of broken line is refused with its number.
 */
#include "client/trace.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/check.h"

static char folder[] = "/tmp/test_trace.XXXXXX";

static const char *path_of(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_plain(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(path_of(name), "wb");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, n, file), n);
    CHECK_EQ(fclose(file), 0);
}

static void write_gz(const char *name, const void *bytes, size_t n) {
    gzFile file = gzopen(path_of(name), "wb");
    CHECK(file != NULL);
    if (n > 0) {
        CHECK_EQ(gzwrite(file, bytes, (unsigned)n), n);
    }
    CHECK_EQ(gzclose(file), Z_OK);
}

static trace *open_good(const char *name) {
    trace *t = NULL;
    char why[320] = "";
    kvt_status status = trace_open(path_of(name), why, sizeof why, &t);
    CHECK_MSG(status == KVT_OK, "%s: %s", name, why);
    return t;
}

/* --- what is right -------------------------------------------------------------------------------
 */

static const char pct1[] = "# PCT1 block_tokens=4 requests=4 source=by hand, for this test\n"
                           "0 7 500 - 0+1,4294967295+1\n"
                           "0 0 0 u7 -\n"
                           "12 9 1 0348 0+1,3+2\n"
                           "1000000000000000 4 4294967295 - 3+1\n";

static void check_block(const uint32_t *tokens, uint32_t id) {
    CHECK_EQ(tokens[0], id);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(tokens[i], trace_block_token(id, i));
    }
}

static void pct1_reads(const char *name) {
    trace *t = open_good(name);
    trace_info info;
    trace_info_get(t, &info);
    CHECK_EQ(info.kind, TRACE_PCT1);
    CHECK_EQ(info.block_tokens, 4);
    CHECK_EQ(info.n_requests, 4);
    CHECK(strcmp(info.source, "by hand, for this test") == 0);

    trace_request r;
    CHECK_EQ(trace_next(t, &r), KVT_OK);
    CHECK(r.number == 0 && r.line == 2 && r.t_ms == 0 && r.output_tokens == 500);
    CHECK(strcmp(r.session, "") == 0);
    CHECK_EQ(r.n_tokens, 8);
    check_block(r.tokens, 0);
    check_block(r.tokens + 4, UINT32_MAX);
    CHECK_EQ(trace_next(t, &r), KVT_OK);
    CHECK(r.number == 1 && r.line == 3 && r.n_tokens == 0 && r.tokens != NULL);
    CHECK(strcmp(r.session, "u7") == 0);
    CHECK_EQ(trace_next(t, &r), KVT_OK);
    CHECK(r.t_ms == 12 && r.n_tokens == 12 && strcmp(r.session, "0348") == 0);
    check_block(r.tokens, 0);
    check_block(r.tokens + 4, 3);
    check_block(r.tokens + 8, 4);
    CHECK_EQ(trace_skip(t, &r), KVT_OK);
    CHECK(r.number == 3 && r.line == 5 && r.t_ms == UINT64_C(1000000000000000));
    CHECK(r.n_tokens == 4 && r.tokens == NULL && r.output_tokens == UINT32_MAX);
    CHECK_EQ(trace_next(t, &r), KVT_ENOENT);
    CHECK_EQ(trace_next(t, &r), KVT_ENOENT);
    trace_close(t);
}

/* Made by another program from the words of trace.h. */
static void block_tokens_are_the_documented_ones(void) {
    CHECK_EQ(trace_block_token(0, 0), 0);
    CHECK_EQ(trace_block_token(7, 0), 7);
    CHECK_EQ(trace_block_token(UINT32_MAX, 0), UINT32_MAX);
    CHECK_EQ(trace_block_token(0, 1), 2433363436u);
    CHECK_EQ(trace_block_token(7, 511), 2107561061u);
    CHECK_EQ(trace_block_token(UINT32_MAX, 2), 4168015569u);
}

static const char stream[] =
    "{\"i\":0,\"t\":5,\"s\":\"u7\",\"out\":67,\"ref\":-1,\"common\":0,\"new\":[5,6,7,4294967295]}\n"
    "{\"i\":1,\"t\":5,\"s\":\"\",\"out\":0,\"ref\":0,\"common\":3,\"new\":[8,9]}\n"
    "{ \"i\" : 2 , \"t\":\t6, \"s\": \"x\", \"out\": 1, \"ref\": 1, \"common\": 5, \"new\": [ ] } "
    "\n"
    "{\"i\":3,\"t\":7,\"s\":\"x\",\"out\":1,\"ref\":2,\"common\":4,\"new\":[0]}\n"
    "{\"i\":4,\"t\":8,\"s\":\"x\",\"out\":1,\"ref\":3,\"common\":2,\"new\":[ 1 , 2 ]}";

static void next_is(trace *t, uint64_t line, const uint32_t *tokens, uint32_t n) {
    trace_request r;
    kvt_status status = trace_next(t, &r);
    CHECK_MSG(status == KVT_OK, "%s", trace_why(t));
    CHECK_EQ(r.line, line);
    CHECK_EQ(r.n_tokens, n);
    CHECK(memcmp(r.tokens, tokens, n * sizeof *tokens) == 0);
}

static void stream_reads(const char *name) {
    trace *t = open_good(name);
    trace_info info;
    trace_info_get(t, &info);
    CHECK(info.kind == TRACE_TOKENS && info.block_tokens == 0 && info.n_requests == 0);
    next_is(t, 1, (uint32_t[]){5, 6, 7, UINT32_MAX}, 4);
    next_is(t, 2, (uint32_t[]){5, 6, 7, 8, 9}, 5);
    next_is(t, 3, (uint32_t[]){5, 6, 7, 8, 9}, 5);
    trace_request r;
    CHECK_EQ(trace_skip(t, &r), KVT_OK);
    CHECK(r.number == 3 && r.n_tokens == 5 && r.t_ms == 7 && strcmp(r.session, "x") == 0);
    next_is(t, 5, (uint32_t[]){5, 6, 1, 2}, 4);
    CHECK_EQ(trace_next(t, &r), KVT_ENOENT);
    trace_close(t);
}

/* A chain of a thousand references, each request longer by one, over more than one inflated chunk.
 */
static void long_chain_reads(void) {
    char *text = malloc(1 << 20);
    CHECK(text != NULL);
    size_t n = 0;
    for (int i = 0; i < 1000; i++) {
        n += (size_t)sprintf(text + n,
                             "{\"i\":%d,\"t\":%d,\"s\":\"s\",\"out\":1,\"ref\":%d,\"common\":%d,"
                             "\"new\":[%d]}\n",
                             i, i, i - 1, i, i * 3);
    }
    write_gz("chain", text, n);
    free(text);
    trace *t = open_good("chain");
    for (uint32_t i = 0; i < 1000; i++) {
        trace_request r;
        CHECK_EQ(i % 3 == 2 ? trace_next(t, &r) : trace_skip(t, &r), KVT_OK);
        CHECK_EQ(r.n_tokens, i + 1);
        for (uint32_t k = 0; r.tokens != NULL && k <= i; k++) {
            CHECK_EQ(r.tokens[k], k * 3);
        }
    }
    trace_close(t);
}

/* --- what is broken ------------------------------------------------------------------------------
 */

#define HEAD "# PCT1 block_tokens=4 requests=2 source=s\n"
#define BIG  "# PCT1 block_tokens=65536 requests=2 source=s\n"
#define S0   "{\"i\":0,\"t\":5,\"s\":\"a\",\"out\":6,\"ref\":-1,\"common\":0,\"new\":[5,6]}\n"
#define S1(T, S, OUT, REF, COMMON, NEW)                                                            \
    S0 "{\"i\":1,\"t\":" T ",\"s\":" S ",\"out\":" OUT ",\"ref\":" REF ",\"common\":" COMMON       \
       ",\"new\":" NEW "}\n"

typedef struct broken {
    const char *text;
    kvt_status status;
    unsigned line;
    const char *says; /* must stand in the message */
} broken;

static const broken cases[] = {
    {"", KVT_ESYNTAX, 1, "empty"},
    {"\n", KVT_ESYNTAX, 1, "no trace"},
    {"0 7 500 - 0+1\n", KVT_ESYNTAX, 1, "no trace"},
    {"# PCT2 block_tokens=4 requests=1 source=s\n", KVT_ESYNTAX, 1, "# PCT1"},
    {"# PCT1 block_tokens=0 requests=1 source=s\n", KVT_ESYNTAX, 1, "block_tokens is 0"},
    {"# PCT1 block_tokens=04 requests=1 source=s\n", KVT_ESYNTAX, 1, "leading zero"},
    {"# PCT1 block_tokens=65537 requests=1 source=s\n", KVT_ESYNTAX, 1, "over 65536"},
    {"# PCT1 block_tokens=4 source=s\n", KVT_ESYNTAX, 1, "requests="},
    {"# PCT1 block_tokens=4 requests=4294967296 source=s\n", KVT_ESYNTAX, 1, "over 4294967295"},
    {"# PCT1 block_tokens=4 requests=1\n", KVT_ESYNTAX, 1, "source="},
    {"# PCT1 block_tokens=4 requests=1 source=\n0 4 1 - 0+1\n", KVT_ESYNTAX, 1, "source is empty"},
    {"# PCT1 block_tokens=4 requests=1 source= s\n", KVT_ESYNTAX, 1, "a space"},
    {"# PCT1 block_tokens=4 requests=1 source=s \n", KVT_ESYNTAX, 1, "a space"},
    {"# PCT1 block_tokens=4 requests=1 source=s\r\n0 4 1 - 0+1\n", KVT_ESYNTAX, 1, "byte 0x0d"},
    {"# PCT1 block_tokens=4 requests=1 source=a\x1b[2Jb\n", KVT_ESYNTAX, 1, "byte 0x1b"},
    {"# PCT1 block_tokens=4  requests=1 source=s\n", KVT_ESYNTAX, 1, "requests="},
    {"# PCT1 block_tokens=4 requests=1 source=s requests=1\n0 4 1 - 0+2\n", KVT_ESYNTAX, 2,
     "2 blocks of 4"},
    /* PCT1, the fields of a line */
    {HEAD "0 7 5 - 0+1\n\n", KVT_ESYNTAX, 3, "t_ms"},
    {HEAD "x 7 5 - 0+1\n", KVT_ESYNTAX, 2, "'x'"},
    {HEAD "-1 7 5 - 0+1\n", KVT_ESYNTAX, 2, "'-'"},
    {HEAD "01 7 5 - 0+1\n", KVT_ESYNTAX, 2, "leading zero"},
    {HEAD "1000000000000001 7 5 - 0+1\n", KVT_ESYNTAX, 2, "t_ms is over"},
    {HEAD "99999999999999999999999 7 5 - 0+1\n", KVT_ESYNTAX, 2, "t_ms is over"},
    {HEAD "9 7 5 - 0+1\n8 7 5 - 0+1\n", KVT_ESYNTAX, 3, "goes back"},
    {HEAD "0  7 5 - 0+1\n", KVT_ESYNTAX, 2, "input_tokens"},
    {HEAD "0 7\t5 - 0+1\n", KVT_ESYNTAX, 2, "byte 0x09"},
    {HEAD "0 4294967296 5 - 0+1\n", KVT_ESYNTAX, 2, "input_tokens is over"},
    {HEAD "0 7 4294967296 - 0+1\n", KVT_ESYNTAX, 2, "output_tokens is over"},
    {HEAD "0 7 5  0+1\n", KVT_ESYNTAX, 2, "session"},
    {HEAD "0 7 5 u\x01 0+1\n", KVT_ESYNTAX, 2, "byte 0x01"},
    {HEAD "0 7 5 0123456789012345678901234567890123456789012345678901234567890123 0+1\n",
     KVT_ESYNTAX, 2, "at most 63"},
    {HEAD "0 7 5 -\n", KVT_ESYNTAX, 2, "end of the line"},
    {HEAD "0 7 5 - \n", KVT_ESYNTAX, 2, "end of the line"},
    /* PCT1, runs */
    {HEAD "0 7 5 - 0\n", KVT_ESYNTAX, 2, "'+'"},
    {HEAD "0 7 5 - 0+\n", KVT_ESYNTAX, 2, "count of ids"},
    {HEAD "0 7 5 - 0+0\n", KVT_ESYNTAX, 2, "count of ids is 0"},
    {HEAD "0 7 5 - 0+1,\n", KVT_ESYNTAX, 2, "expected a number (id)"},
    {HEAD "0 7 5 - 0+1;1+1\n", KVT_ESYNTAX, 2, "';'"},
    {HEAD "0 7 5 - -,1+1\n", KVT_ESYNTAX, 2, "'-'"},
    {HEAD "0 7 5 - 4294967296+1\n", KVT_ESYNTAX, 2, "id is over 4294967295"},
    {HEAD "0 7 5 - 4294967295+2\n", KVT_ESYNTAX, 2, "ids go over"},
    {HEAD "0 7 5 - 0+1\r\n", KVT_ESYNTAX, 2, "byte 0x0d"},
    {HEAD "0 7 5 - 0+1 \n", KVT_ESYNTAX, 2, "a space"},
    {HEAD "0 7 5 - 0+262145\n", KVT_ELIMIT, 2, "1048576"},
    {HEAD "0 7 5 - 0+262144,1+1\n", KVT_ELIMIT, 2, "1048576"},
    {BIG "0 7 5 - 0+4294967295\n", KVT_ELIMIT, 2, "1048576"},
    /* PCT1, tokens and blocks: 7 tokens are one full block, or two */
    {HEAD "0 7 5 - 0+3\n", KVT_ESYNTAX, 2, "column 3: input_tokens is 7, but 3 blocks of 4 tokens"},
    {HEAD "0 7 5 - -\n", KVT_ESYNTAX, 2, "0 blocks"},
    {HEAD "0 8 5 - 0+2\n0 8 5 - 0+3\n", KVT_ESYNTAX, 3, "3 blocks"},
    {HEAD "0 8 5 - 0+1\n", KVT_ESYNTAX, 2, "1 blocks"},
    {HEAD "0 0 5 - 0+1\n", KVT_ESYNTAX, 2, "1 blocks"},
    /* PCT1, the number of requests */
    {HEAD "0 7 5 - 0+1\n", KVT_ESYNTAX, 2, "1 requests, but its header says 2"},
    {HEAD, KVT_ESYNTAX, 1, "0 requests, but its header says 2"},
    {HEAD "0 7 5 - 0+1\n1 7 5 - 0+1\n1 7 5 - 0+1\n", KVT_ESYNTAX, 4, "more than the 2"},
    /* token streams */
    {"{}\n", KVT_ESYNTAX, 1, "\"i\""},
    {S0 "\n", KVT_ESYNTAX, 2, "'{'"},
    {S0 S0, KVT_ESYNTAX, 2, "i is 0, expected 1"},
    {S0 "{\"t\":5,\"i\":1,\"s\":\"a\",\"out\":6,\"ref\":-1,\"common\":0,\"new\":[5,6]}\n",
     KVT_ESYNTAX, 2, "\"i\""},
    {S0 "{\"i\":1,\"t\":5,\"s\":\"a\",\"ref\":-1,\"common\":0,\"new\":[5,6]}\n", KVT_ESYNTAX, 2,
     "\"out\""},
    {S1("4", "\"a\"", "6", "-1", "0", "[5]"), KVT_ESYNTAX, 2, "goes back"},
    {S1("05", "\"a\"", "6", "-1", "0", "[5]"), KVT_ESYNTAX, 2, "leading zero"},
    {S1("5.5", "\"a\"", "6", "-1", "0", "[5]"), KVT_ESYNTAX, 2, "'.'"},
    {S1("5e1", "\"a\"", "6", "-1", "0", "[5]"), KVT_ESYNTAX, 2, "'e'"},
    {S1("5", "a", "6", "-1", "0", "[5]"), KVT_ESYNTAX, 2, "'a'"},
    {S1("5", "\"\\u0041\"", "6", "-1", "0", "[5]"), KVT_ESYNTAX, 2, "backslash"},
    {S1("5", "\"a", "6", "-1", "0", "[5]"), KVT_ESYNTAX, 2, ""},
    {S0 "{\"i\":1,\"t\":5,\"s\":\"abc", KVT_ESYNTAX, 2, "closing quote"},
    {S1("5", "\"a\"", "4294967296", "-1", "0", "[5]"), KVT_ESYNTAX, 2, "out is over"},
    {S1("5", "\"a\"", "6", "1", "1", "[5]"), KVT_ESYNTAX, 2, "no earlier request"},
    {S1("5", "\"a\"", "6", "-2", "0", "[5]"), KVT_ESYNTAX, 2, "-1"},
    {S1("5", "\"a\"", "6", "-1", "1", "[5]"), KVT_ESYNTAX, 2, "exactly when"},
    {S1("5", "\"a\"", "6", "0", "0", "[5]"), KVT_ESYNTAX, 2, "exactly when"},
    {S1("5", "\"a\"", "6", "0", "3", "[5]"), KVT_ESYNTAX, 2, "request 0 has 2 tokens"},
    {S1("5", "\"a\"", "6", "0", "2", "5"), KVT_ESYNTAX, 2, "'['"},
    {S1("5", "\"a\"", "6", "0", "2", "[5"), KVT_ESYNTAX, 2, "','"},
    {S1("5", "\"a\"", "6", "0", "2", "[5,]"), KVT_ESYNTAX, 2, "token"},
    {S1("5", "\"a\"", "6", "0", "2", "[,5]"), KVT_ESYNTAX, 2, "token"},
    {S1("5", "\"a\"", "6", "0", "2", "[-5]"), KVT_ESYNTAX, 2, "token"},
    {S1("5", "\"a\"", "6", "0", "2", "[4294967296]"), KVT_ESYNTAX, 2, "token is over"},
    {S1("5", "\"a\"", "6", "0", "2", "[5],\"new\":[6]"), KVT_ESYNTAX, 2, "'}'"},
    {S1("5", "\"a\"", "6", "0", "2", "[5]}"), KVT_ESYNTAX, 2, "behind the closing brace"},
};

/* Reads to the first failure; the message must name the line and hold the words. */
static void is_refused(const char *name, const broken *expected) {
    char why[320] = "", line[32];
    trace *t = NULL;
    trace_request r;
    kvt_status status = trace_open(path_of(name), why, sizeof why, &t);
    if (status == KVT_OK) {
        for (unsigned i = 0; status == KVT_OK; i++) {
            status = i % 2 == 0 ? trace_next(t, &r) : trace_skip(t, &r);
        }
        CHECK_EQ(trace_next(t, &r), status);
        snprintf(why, sizeof why, "%s", trace_why(t));
    } else {
        CHECK(t == NULL);
    }
    snprintf(line, sizeof line, "line %u", expected->line);
    size_t n = strlen(line);
    CHECK_MSG(status == expected->status, "status %d, %s:\n%s", status, why, expected->text);
    CHECK_MSG(strncmp(why, line, n) == 0 && (why[n] == ',' || why[n] == ':'), "not %s: %s:\n%s",
              line, why, expected->text);
    CHECK_MSG(strstr(why, expected->says) != NULL, "not '%s': %s:\n%s", expected->says, why,
              expected->text);
    trace_close(t);
}

static void broken_lines_are_refused(void) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_plain("broken", cases[i].text, strlen(cases[i].text));
        is_refused("broken", &cases[i]);
        write_gz("broken.gz", cases[i].text, strlen(cases[i].text));
        is_refused("broken.gz", &cases[i]);
    }
    static const char zero[] = HEAD "0 7 5 - 0+1\0001\n";
    write_plain("broken", zero, sizeof zero - 1);
    is_refused("broken", &(broken){zero, KVT_ESYNTAX, 2, "byte 0x00"});
}

static void a_request_may_have_the_most_tokens(void) {
    static const char most[] =
        "# PCT1 block_tokens=65536 requests=1 source=s\n0 1048576 5 - 9+16\n";
    write_plain("most", most, sizeof most - 1);
    trace *t = open_good("most");
    trace_request r;
    CHECK_EQ(trace_next(t, &r), KVT_OK);
    CHECK_EQ(r.n_tokens, KVT_MAX_REQUEST_TOKENS);
    CHECK_EQ(r.tokens[KVT_MAX_REQUEST_TOKENS - 65536], 24);
    trace_close(t);
}

/* One token over the limit, brought together by a reference. */
static void a_stream_may_have_the_most_tokens(void) {
    const size_t room = 2 * KVT_MAX_REQUEST_TOKENS + 4096;
    char *text = malloc(room);
    CHECK(text != NULL);
    size_t n =
        (size_t)sprintf(text, "{\"i\":0,\"t\":5,\"s\":\"a\",\"out\":6,\"ref\":-1,\"common\":0,"
                              "\"new\":[7");
    for (size_t i = 1; i < KVT_MAX_REQUEST_TOKENS; i++) {
        text[n++] = ',';
        text[n++] = '7';
    }
    n += (size_t)sprintf(text + n, "]}\n{\"i\":1,\"t\":5,\"s\":\"a\",\"out\":6,\"ref\":0,"
                                   "\"common\":1048575,\"new\":[7,7]}\n");
    write_gz("long", text, n);
    free(text);
    is_refused("long", &(broken){"long", KVT_ELIMIT, 2, "1048576"});
}

static void a_line_has_a_limit(void) {
    size_t n = (size_t)TRACE_MAX_LINE_BYTES + 100;
    char *text = malloc(n);
    CHECK(text != NULL);
    memset(text, ' ', n);
    memcpy(text, S0, sizeof S0 - 1);
    text[sizeof S0 - 1] = '{';
    write_plain("wide", text, n);
    free(text);
    is_refused("wide", &(broken){"wide", KVT_ELIMIT, 2, "longer than 67108864"});
}

/* A gzip file cut at any byte behind its head, or with a bit flipped anywhere, gives an error or,
 * where the flip hits a byte that means nothing, the same requests. */
static void damaged_gzip_is_refused(void) {
    write_gz("whole", pct1, sizeof pct1 - 1);
    static uint8_t bytes[4096];
    FILE *file = fopen(path_of("whole"), "rb");
    CHECK(file != NULL);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    CHECK(n > 20 && n < sizeof bytes);
    for (size_t cut = 11; cut < n; cut++) {
        write_plain("cut", bytes, cut);
        trace *t = NULL;
        trace_request r;
        kvt_status status = trace_open(path_of("cut"), NULL, 0, &t);
        while (status == KVT_OK) {
            status = trace_next(t, &r);
        }
        CHECK_MSG(status == KVT_EIO, "cut at %zu: status %d", cut, status);
        CHECK(t == NULL || strstr(trace_why(t), "cut short") != NULL);
        trace_close(t);
    }
    unsigned n_harmless = 0;
    for (size_t at = 0; at < n; at++) {
        bytes[at] ^= 0x10;
        write_plain("flip", bytes, n);
        bytes[at] ^= 0x10;
        trace *t = NULL;
        trace_request r;
        kvt_status status = trace_open(path_of("flip"), NULL, 0, &t);
        while (status == KVT_OK) {
            status = trace_next(t, &r);
        }
        trace_close(t);
        if (status == KVT_ENOENT) { /* time, system, padding */
            pct1_reads("flip");
            n_harmless++;
        }
    }
    CHECK(n_harmless < 12);
}

static void unreadable_files_are_refused(void) {
    char why[320] = "";
    trace *t = NULL;
    CHECK_EQ(trace_open(path_of("nothing"), why, sizeof why, &t), KVT_ENOENT);
    CHECK(strstr(why, "cannot be opened") != NULL);
    CHECK_EQ(trace_open(folder, why, sizeof why, &t), KVT_EIO);
    CHECK_MSG(strstr(why, "cannot be read") != NULL, "%s", why);
    CHECK(t == NULL);
    trace_close(NULL);
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    block_tokens_are_the_documented_ones();
    write_plain("pct1", pct1, sizeof pct1 - 1);
    pct1_reads("pct1");
    write_gz("pct1.gz", pct1, sizeof pct1 - 1);
    pct1_reads("pct1.gz");
    write_plain("stream", stream, sizeof stream - 1);
    stream_reads("stream");
    write_gz("stream.gz", stream, sizeof stream - 1);
    stream_reads("stream.gz");
    long_chain_reads();
    broken_lines_are_refused();
    a_request_may_have_the_most_tokens();
    a_stream_may_have_the_most_tokens();
    a_line_has_a_limit();
    damaged_gzip_is_refused();
    unreadable_files_are_refused();
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_EQ(system(command), 0);
    return 0;
}
