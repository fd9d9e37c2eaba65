/*
 * test_wire_keep.c - as test_wire.c, of what keeps pages, forgets them, and tells of them.
 */
#include "tests/wire_kit.h"

REWRITE(pin_rep)
REWRITE(flush_rep)

static kvt_status rewrite_pin_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_pin_req message;
    kvt_status status = kvt_wire_get_pin_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    uint32_t tokens[16];
    CHECK(message.n_tokens <= 16);
    kvt_wire_get_tokens(message.tokens, message.n_tokens, tokens);
    kvt_wire_put_pin_req(w, &message);
    kvt_wire_put_tokens(w, tokens, message.n_tokens);
    return status;
}

static kvt_status rewrite_unpin_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_unpin_req message;
    kvt_status status = kvt_wire_get_unpin_req(body, n, &message);
    if (status == KVT_OK)
        kvt_wire_put_u64(w, message.pin);
    return status;
}

static kvt_status rewrite_flush_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_flush_req message;
    kvt_status status = kvt_wire_get_flush_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    uint32_t tokens[16];
    CHECK(message.n_tokens <= 16);
    kvt_wire_get_tokens(message.tokens, message.n_tokens, tokens);
    kvt_wire_put_flush_req(w, &message);
    kvt_wire_put_tokens(w, tokens, message.n_tokens);
    return status;
}

static void test_keep(void) {
    check_body("PIN", rewrite_pin_req,
               B(3, 0, 0, 0, 0x10, 0x27, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0xff,
                 0xff, 0xff, 0xff));
    refuse_body("PIN in no realm", rewrite_pin_req,
                B(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0));
    refuse_body("PIN of nothing", rewrite_pin_req,
                B(3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    check_body("pin", rewrite_pin_rep,
               B(9, 0, 0, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0));
    check_body("UNPIN", rewrite_unpin_req, B(9, 0, 0, 0, 0, 0, 0, 1));
    check_body("FLUSH all", rewrite_flush_req, B(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    check_body("FLUSH realm", rewrite_flush_req, B(1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0));
    check_body("FLUSH prefix", rewrite_flush_req,
               B(2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0));
    refuse_body("FLUSH 3", rewrite_flush_req, B(3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0));
    refuse_body("FLUSH all of a realm", rewrite_flush_req, B(0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0));
    refuse_body("FLUSH no realm", rewrite_flush_req, B(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    refuse_body("FLUSH realm with tokens", rewrite_flush_req,
                B(1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0));
    refuse_body("FLUSH prefix without", rewrite_flush_req, B(2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0));
    check_body("flushed", rewrite_flush_rep,
               B(1, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x40,
                 0, 0, 0, 0, 0, 0, 4, 0, 0, 0));
}

static void put_event(const kvt_event *event, kvt_writer *w) {
    uint32_t tokens[16];
    CHECK(event->n_listed <= 16);
    if (event->n_listed)
        kvt_wire_get_tokens(event->tokens, event->n_listed, tokens);
    kvt_wire_put_event(w, event, tokens);
}

static kvt_status rewrite_list(uint32_t n, const uint8_t *at, size_t n_left, kvt_writer *w) {
    for (uint32_t i = 0; i < n; i++) {
        kvt_event event;
        if (kvt_wire_next_event(&at, &n_left, &event) != KVT_OK)
            return KVT_EPROTO;
        put_event(&event, w);
    }
    return n_left ? KVT_EPROTO : KVT_OK;
}

static kvt_status rewrite_events(const uint8_t *body, size_t n, kvt_writer *w) {
    uint32_t n_events;
    const uint8_t *at;
    size_t n_left;
    kvt_status status = kvt_wire_get_events(body, n, &n_events, &at, &n_left);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_u32(w, n_events);
    return rewrite_list(n_events, at, n_left, w);
}

static kvt_status rewrite_snapshot_rep(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_snapshot_rep message;
    kvt_status status = kvt_wire_get_snapshot_rep(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_snapshot_rep(w, &message);
    return rewrite_list(message.n_pages, message.pages, message.n_page_bytes, w);
}

static kvt_status rewrite_snapshot_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_snapshot_req message;
    kvt_status status = kvt_wire_get_snapshot_req(body, n, &message);
    if (status == KVT_OK)
        kvt_wire_put_u32(w, message.first_place);
    return status;
}

#define ADDED                                                                                      \
    1, 2, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 0, 0,   \
        0, 0, 0, 0, 2, 0, 2, 0, 5, 0, 0, 0, 6, 0, 0, 0

static void test_events(void) {
    check_body("events", rewrite_events,
               B(3, 0, 0, 0, ADDED, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 3, 1, 9, 0, 0, 0, 0,
                 0, 0, 0, 3, 0, 0, 0));
    check_body("no events", rewrite_events, B(0, 0, 0, 0));
    refuse_body("event 4", rewrite_events, B(1, 0, 0, 0, 4, 0, 7, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0));
    refuse_body("event of no page", rewrite_events,
                B(1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0));
    refuse_body("tier 3", rewrite_events, B(1, 0, 0, 0, 3, 3, 7, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0));
    check_body("SNAPSHOT", rewrite_snapshot_req, B(1, 0, 0, 0));
    refuse_body("SNAPSHOT from 0", rewrite_snapshot_req, B(0, 0, 0, 0));
    check_body("snapshot", rewrite_snapshot_rep,
               B(0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 100, 0, 0, 0, 2, 0, '/', 'e', 1,
                 0, 0, 0, ADDED));
}

static kvt_status rewrite_acquire_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_acquire_req message;
    kvt_status status = kvt_wire_get_acquire_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    uint32_t tokens[16];
    CHECK(message.n_tokens <= 16);
    if (message.n_tokens)
        kvt_wire_get_tokens(message.tokens, message.n_tokens, tokens);
    kvt_wire_put_acquire_req(w, &message);
    kvt_wire_put_tokens(w, tokens, message.n_tokens);
    for (uint32_t i = 0; i < message.n_spans; i++) {
        kvt_wire_span span;
        kvt_wire_get_span(message.spans, i, &span);
        kvt_wire_put_span(w, &span);
    }
    return status;
}

/* The spans follow the tokens, as many as fit exactly. */
static void test_spans(void) {
    static uint8_t body[256];
    static const uint32_t tokens[2] = {5, 6};
    kvt_wire_span span = {.first_token = 1, .n_tokens = 1, .hash = {7, 8}};
    kvt_acquire_req req = {.realm = 1, .flags = KVT_ACQUIRE_SPANS, .n_tokens = 2};
    kvt_writer w = {.at = body, .room = sizeof body};
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, tokens, 2);
    refuse_body("ACQUIRE without its spans", rewrite_acquire_req, body, w.n_bytes);
    kvt_wire_put_span(&w, &span);
    CHECK_EQ(rewrite_acquire_req(body, w.n_bytes, &(kvt_writer){.room = 0}), KVT_OK);
    check_body("ACQUIRE with a span", rewrite_acquire_req, body, w.n_bytes);
    kvt_wire_put_u8(&w, 0);
    refuse_body("ACQUIRE with a part of a span", rewrite_acquire_req, body, w.n_bytes);
}

int main(void) {
    test_spans();
    test_keep();
    test_events();
    printf("wire: all messages as written\n");
    return 0;
}
