/*
 * test_llama_parts.c - what of the llama.cpp adapter needs no llama.cpp beside its states: how a
 * prompt's rest is cut into micro-batches, and how a generated text comes into JSON.
 */
#include "client/adapters/llama/chunk.h"
#include "client/adapters/llama/json_text.h"
#include "tests/check.h"

/* --- micro-batches ------------------------------------------------------------------------------
 */

/* As prefill.c does it: how many tokens are handed in. */
static uint32_t handed_in(const chunk_sizes *s, uint32_t at, uint32_t n_tokens) {
    uint32_t n = 0;
    int goes_on = 1;
    while (at < n_tokens) {
        uint32_t end = chunk_end(s, at, n_tokens);
        CHECK_MSG(end > at && end <= n_tokens && end - at <= s->chunk_tokens,
                  "[%u, %u) of %u, at most %u", at, end, n_tokens, s->chunk_tokens);
        goes_on = goes_on && end - at >= s->seal_min_tokens;
        if (goes_on && s->window_tokens)
            CHECK_MSG(end - (at - at % s->page_tokens) <= s->window_tokens,
                      "[%u, %u): its first page is out of the window of %u", at, end,
                      s->window_tokens);
        n += goes_on ? end - at : 0;
        at = end;
    }
    return n;
}

/* By trying every way to cut: best[n] of n tokens. */
static void find_best(const chunk_sizes *s, uint32_t n, uint32_t *best) {
    for (uint32_t rest = 0; rest <= n; rest++) {
        best[rest] = 0;
        for (uint32_t first = s->seal_min_tokens; first <= s->chunk_tokens && first <= rest;
             first++) {
            uint32_t all = first + best[rest - first];
            best[rest] = all > best[rest] ? all : best[rest];
        }
    }
}

/* Nothing is left out that could be handed in: 64 tokens a time or more, whatever the batch. */
static void test_chunks(void) {
    static const uint32_t chunks[] = {64, 65, 96, 100, 127, 128, 200, 448, 512}, pages[] = {16, 64};
    enum { MOST = 1100 };
    static uint32_t best[MOST + 1];
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
        for (size_t p = 0; p < 2; p++) {
            chunk_sizes s = {
                .chunk_tokens = chunks[c], .seal_min_tokens = 64, .page_tokens = pages[p]};
            find_best(&s, MOST, best);
            for (uint32_t at = 0; at < 140; at += 7)
                for (uint32_t rest = 1; rest <= MOST; rest++)
                    CHECK_MSG(handed_in(&s, at, at + rest) == best[rest],
                              "batches of %u, %u tokens behind %u: %u are handed in, %u could be",
                              chunks[c], rest, at, handed_in(&s, at, at + rest), best[rest]);
        }
}

/* Where it costs nothing they end with pages, so that these can be had early. */
static void test_even(void) {
    chunk_sizes s = {.chunk_tokens = 500, .seal_min_tokens = 64, .page_tokens = 64};
    CHECK_EQ(chunk_end(&s, 0, 2000), 448);
    CHECK_EQ(chunk_end(&s, 2016, 4000), 2496);
    CHECK_EQ(chunk_end(&s, 0, 500), 500);
    CHECK_EQ(chunk_end(&s, 0, 510), 384);
}

/* A page is handed in while llama.cpp shows all of it. */
static void test_window(void) {
    for (uint32_t window = 128; window <= 512; window += 64) {
        chunk_sizes s = {.chunk_tokens = window < 300 ? window : 300,
                         .seal_min_tokens = 64,
                         .page_tokens = 64,
                         .window_tokens = window};
        for (uint32_t at = 0; at < 130; at++)
            for (uint32_t rest = 64; rest < 1500; rest += 3)
                CHECK(handed_in(&s, at, at + rest) >= 64);
    }
}

/* --- JSON ---------------------------------------------------------------------------------------
 */

/* In pieces of so many bytes. */
static void expect(const char *text, size_t n, size_t step, const char *expected) {
    char *written = NULL;
    size_t n_written = 0;
    FILE *to = open_memstream(&written, &n_written);
    json_text t = {0};
    CHECK(to);
    for (size_t at = 0; at < n; at += step)
        json_text_put(&t, text + at, n - at < step ? n - at : step, to);
    fclose(to);
    CHECK_MSG(strcmp(written, expected) == 0, "'%s' instead of '%s'", written, expected);
    free(written);
}

static void test_text(void) {
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"plain", "plain"},
        {"\"\\\n\x01", "\\u0022\\u005c\\u000a\\u0001"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80.", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80."},
        /* it ends inside a character */
        {"a\xc3", "a"},
        {"a\xe2\x82", "a"},
        {"a\xf0\x9f\x98", "a"},
        /* what begins breaks off; what is no beginning */
        {"\xe2\x82"
         "b",
         "\\ufffd"
         "b"},
        {"\xc3\xe2\x82\xac", "\\ufffd\xe2\x82\xac"},
        {"\x80\xff\xc0\xaf", "\\ufffd\\ufffd\\ufffd\\ufffd"},
        /* longer than need be; a surrogate; over U+10FFFF */
        {"\xe0\x80\x80", "\\ufffd\\ufffd\\ufffd"},
        {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},
        {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step < 4; step++)
            expect(cases[i].text, strlen(cases[i].text), step, cases[i].expected);
    expect("a\0b", 3, 2, "a\\u0000b");
}

int main(void) {
    test_chunks();
    test_even();
    test_window();
    test_text();
    return 0;
}
