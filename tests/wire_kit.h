/*
 * wire_kit.h - what the tests of the wire format share: bytes written out by hand, and the checks
 * of a body against them.
 */
#ifndef KVT_TESTS_WIRE_KIT_H
#define KVT_TESTS_WIRE_KIT_H

#include "client/wire.h"
#include "tests/check.h"

#define B(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

static uint64_t random_state = 20240229;

/* Bodies are read from a heap block of exactly their size, so that a sanitizer sees an overrun. */
static uint8_t *copy_of(const void *bytes, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    CHECK(copy);
    if (n)
        memcpy(copy, bytes, n);
    return copy;
}

static void check_bytes(const char *what, const uint8_t *actual, size_t n_actual,
                        const uint8_t *expected, size_t n_expected) {
    for (size_t i = 0; i < n_actual && i < n_expected; i++)
        CHECK_MSG(actual[i] == expected[i], "%s: byte %zu is %02x, expected %02x", what, i,
                  actual[i], expected[i]);
    CHECK_MSG(n_actual == n_expected, "%s: %zu bytes, expected %zu", what, n_actual, n_expected);
}

/* --- bodies: each kind has a function that reads a body and writes it again --------------------
 */

typedef kvt_status (*rewrite_body)(const uint8_t *body, size_t n, kvt_writer *w);

#define REWRITE(name)                                                                              \
    static inline kvt_status rewrite_##name(const uint8_t *body, size_t n, kvt_writer *w) {        \
        kvt_##name message;                                                                        \
        kvt_status status = kvt_wire_get_##name(body, n, &message);                                \
        if (status == KVT_OK)                                                                      \
            kvt_wire_put_##name(w, &message);                                                      \
        return status;                                                                             \
    }

/* Of a message that is one number. */
#define REWRITE_NUMBER(name, type, field)                                                          \
    static inline kvt_status rewrite_##name(const uint8_t *body, size_t n, kvt_writer *w) {        \
        kvt_##name message;                                                                        \
        kvt_status status = kvt_wire_get_##name(body, n, &message);                                \
        if (status == KVT_OK)                                                                      \
            kvt_wire_put_##type(w, message.field);                                                 \
        return status;                                                                             \
    }

/* Of a message that ends with tokens. */
#define REWRITE_TOKENS(name)                                                                       \
    static inline kvt_status rewrite_##name(const uint8_t *body, size_t n, kvt_writer *w) {        \
        kvt_##name message;                                                                        \
        kvt_status status = kvt_wire_get_##name(body, n, &message);                                \
        if (status != KVT_OK)                                                                      \
            return status;                                                                         \
        kvt_wire_put_##name(w, &message);                                                          \
        put_tokens(w, message.tokens, message.n_tokens);                                           \
        return status;                                                                             \
    }

static inline void put_tokens(kvt_writer *w, const uint8_t *tokens, uint32_t n_tokens) {
    uint32_t copy[16];
    CHECK(n_tokens <= 16);
    if (n_tokens)
        kvt_wire_get_tokens(tokens, n_tokens, copy);
    kvt_wire_put_tokens(w, copy, n_tokens);
}

REWRITE(hello_req)
REWRITE(hello_rep)
REWRITE(stage_req)
REWRITE(realm_req)
REWRITE(realm_rep)
REWRITE(fork_req)
REWRITE(wait_req)
REWRITE(pin_rep)
REWRITE(flush_rep)
REWRITE(tiers_rep)
REWRITE(prefetch_rep)
REWRITE(importance_rep)
REWRITE(suspect_req)
REWRITE(suspect_rep)
REWRITE_TOKENS(pin_req)
REWRITE_TOKENS(flush_req)
REWRITE_NUMBER(cancel_req, u64, number)
REWRITE_NUMBER(tree_req, u32, max_lines)
REWRITE_NUMBER(unpin_req, u64, pin)
REWRITE_NUMBER(snapshot_req, u32, first_place)
REWRITE_NUMBER(tiers_req, u32, wait_ms)

static inline kvt_status rewrite_acquire_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_acquire_req message;
    kvt_status status = kvt_wire_get_acquire_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_acquire_req(w, &message);
    put_tokens(w, message.tokens, message.n_tokens);
    for (uint32_t i = 0; i < message.n_spans; i++) {
        kvt_wire_span span;
        kvt_wire_get_span(message.spans, i, &span);
        kvt_wire_put_span(w, &span);
    }
    return status;
}

/* Reads body[0 .. n) from a block of its own; if it is accepted, it must be written the same. */
static kvt_status round_trip(const char *what, rewrite_body rewrite, const uint8_t *body,
                             size_t n) {
    static uint8_t out[4096];
    uint8_t *copy = copy_of(body, n);
    kvt_writer w;
    kvt_wire_start(&w, out, sizeof out);
    kvt_status status = rewrite(copy, n, &w);
    if (status == KVT_OK) {
        CHECK(!w.failed);
        check_bytes(what, out + KVT_WIRE_HEADER_BYTES, w.n_bytes - KVT_WIRE_HEADER_BYTES, body, n);
    } else {
        CHECK_MSG(status == KVT_EPROTO || status == KVT_ELIMIT, "%s: %s", what,
                  kvt_status_name(status));
    }
    free(copy);
    return status;
}

static void check_body(const char *what, rewrite_body rewrite, const uint8_t *body, size_t n) {
    CHECK_MSG(round_trip(what, rewrite, body, n) == KVT_OK, "%s is refused", what);
    for (size_t cut = 0; cut < n; cut++)
        CHECK_MSG(round_trip(what, rewrite, body, cut) == KVT_EPROTO,
                  "%s cut to %zu of %zu bytes is accepted", what, cut, n);
    uint8_t *changed = malloc(n + 1);
    CHECK(changed);
    memcpy(changed, body, n);
    changed[n] = 0;
    CHECK_MSG(round_trip(what, rewrite, changed, n + 1) == KVT_EPROTO,
              "%s with a byte more is accepted", what);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        changed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        round_trip(what, rewrite, changed, n);
        changed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (int i = 0; i < 2000; i++) {
        memcpy(changed, body, n);
        for (uint32_t flips = 1 + check_below(&random_state, 4); flips; flips--)
            changed[check_below(&random_state, (uint32_t)n)] = (uint8_t)check_random(&random_state);
        round_trip(what, rewrite, changed, n);
    }
    free(changed);
}

static void refuse_body(const char *what, rewrite_body rewrite, const uint8_t *body, size_t n) {
    CHECK_MSG(round_trip(what, rewrite, body, n) == KVT_EPROTO, "%s is accepted", what);
}

/* What the library wrote into w must be these bytes. */
static inline void check_written(const char *what, const kvt_writer *w, const uint8_t *body,
                                 size_t n) {
    CHECK_MSG(!w->failed, "%s does not fit", what);
    check_bytes(what, w->at + KVT_WIRE_HEADER_BYTES, w->n_bytes - KVT_WIRE_HEADER_BYTES, body, n);
}

static uint8_t scratch[4096];
#define START(w)                                                                                   \
    kvt_writer w;                                                                                  \
    kvt_wire_start(&w, scratch, sizeof scratch)

#endif
