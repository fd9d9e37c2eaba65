/*
 * test_wire_keep.c - as test_wire.c, of what keeps pages, forgets them, tells of them, and moves
 * them between tiers.
 */
#include "tests/wire_kit.h"

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

static kvt_status rewrite_prefetch_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_prefetch_req message;
    kvt_status status = kvt_wire_get_prefetch_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_u32(w, message.realm);
    kvt_wire_put_u32(w, message.n_tokens);
    put_tokens(w, message.tokens, message.n_tokens);
    return status;
}

static void test_tiers(void) {
    static const uint8_t tiers[] = {5, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0,
                                    7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x80};
    kvt_tiers_rep rep = {.pages_dirty = UINT64_C(0x0100000000000005),
                         .pages_disk = 256,
                         .checked = 7,
                         .corrupt = UINT64_C(0x8000000000000002)};
    START(w);
    kvt_wire_put_tiers_rep(&w, &rep);
    check_written("SPILL, VERIFY", &w, tiers, sizeof tiers);
    check_body("SPILL, VERIFY", rewrite_tiers_rep, tiers, sizeof tiers);
    check_body("SPILL, VERIFY request", rewrite_tiers_req, B(0xe8, 3, 0, 0));

    static const uint8_t ahead[] = {0, 1, 0, 0, 64, 0, 0, 0};
    kvt_prefetch_rep held = {.held_tokens = 256, .ready_tokens = 64};
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_prefetch_rep(&w, &held);
    check_written("PREFETCH", &w, ahead, sizeof ahead);
    check_body("PREFETCH", rewrite_prefetch_rep, ahead, sizeof ahead);
    check_body("PREFETCH request", rewrite_prefetch_req,
               B(3, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff));
    check_body("PREFETCH of nothing", rewrite_prefetch_req, B(3, 0, 0, 0, 0, 0, 0, 0));
}

static kvt_status rewrite_importance_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_importance_req message;
    kvt_status status = kvt_wire_get_importance_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_importance_req(w, &message);
    for (uint32_t i = 0; i < message.n_rows; i++)
        kvt_wire_put_u16(w, kvt_wire_get_u16(message.importance, i));
    return status;
}

static void test_importance(void) {
    static const uint8_t body[] = {8, 7, 6, 5,    4,    3,   2, 1, /* lease */
                                   0, 1, 0, 0,    3,    0,   0, 0, /* first_row, n_rows */
                                   0, 0, 0, 0x7f, 0xff, 0xfe};     /* 0, 1, the highest */
    kvt_importance_req req = {.lease = UINT64_C(0x0102030405060708), .first_row = 256, .n_rows = 3};
    START(w);
    kvt_wire_put_importance_req(&w, &req);
    kvt_wire_put_u16(&w, kvt_wire_importance(0));
    kvt_wire_put_u16(&w, kvt_wire_importance(1));
    kvt_wire_put_u16(&w, kvt_wire_importance(3.4028234e38f));
    check_written("IMPORTANCE", &w, body, sizeof body);
    check_body("IMPORTANCE", rewrite_importance_req, body, sizeof body);
    check_body("importance", rewrite_importance_rep, B(3, 1, 0, 0));
    refuse_body("IMPORTANCE of no row", rewrite_importance_req,
                B(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    refuse_body("an importance that is infinite", rewrite_importance_req,
                B(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0xff));
    /* The order of numbers is that of what is sent. */
    CHECK_EQ(kvt_wire_importance(-0.0f), 0);
    for (float small = 1e-38f, large; small < 1e38f; small = large) {
        large = small * 1.01f;
        CHECK(kvt_wire_importance(small) < kvt_wire_importance(large));
        CHECK(kvt_wire_importance(small) <= kvt_wire_importance(small * 1.0001f));
    }
    uint32_t most = KVT_MAX_REQUEST_TOKENS + 1;
    uint8_t *big = calloc(1, 16 + 2 * (size_t)most);
    CHECK(big);
    memcpy(big + 12, &most, 4);
    CHECK_EQ(kvt_wire_get_importance_req(big, 16 + 2 * (size_t)most, &req), KVT_ELIMIT);
    free(big);
}

static void test_suspect(void) {
    static const uint8_t body[] = {8, 7, 6, 5, 4, 3, 2, 1, 2, 1, 0, 0, 3, 0, 0, 0};
    kvt_suspect_req req = {.lease = UINT64_C(0x0102030405060708), .page = 258, .group = 3};
    kvt_suspect_rep rep = {.forgotten = 1};
    START(w);
    kvt_wire_put_suspect_req(&w, &req);
    check_written("SUSPECT", &w, body, sizeof body);
    check_body("SUSPECT", rewrite_suspect_req, body, sizeof body);
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_suspect_rep(&w, &rep);
    check_written("suspect", &w, B(1, 0, 0, 0));
    check_body("suspect", rewrite_suspect_rep, B(1, 0, 0, 0));
    check_body("suspect that is right", rewrite_suspect_rep, B(0, 0, 0, 0));
    refuse_body("suspect, more than forgotten", rewrite_suspect_rep, B(2, 0, 0, 0));
}

int main(void) {
    test_spans();
    test_keep();
    test_events();
    test_tiers();
    test_importance();
    test_suspect();
    printf("wire: all messages as written\n");
    return 0;
}
