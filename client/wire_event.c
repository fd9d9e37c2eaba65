/*
 * wire_event.c - events, alone and as pages of a SNAPSHOT.
 */
#include "client/wire_io.h"

enum { EVENT_BYTES = 1 + 1 + 8 + 4, MAX_TOKENS = 128 };

void kvt_wire_put_event(kvt_writer *w, const kvt_event *event, const uint32_t *tokens) {
    kvt_wire_put_u8(w, event->kind);
    kvt_wire_put_u8(w, event->tier);
    kvt_wire_put_u64(w, event->page);
    kvt_wire_put_u32(w, event->place);
    if (event->kind != KVT_EVENT_ADDED)
        return;
    kvt_wire_put_u64(w, event->parent);
    kvt_wire_put_u32(w, event->realm);
    kvt_wire_put_u64(w, event->n_bytes);
    kvt_wire_put_u16(w, event->n_tokens);
    kvt_wire_put_u16(w, event->n_listed);
    kvt_wire_put_tokens(w, tokens, event->n_listed);
}

kvt_status kvt_wire_next_event(const uint8_t **events, size_t *n_bytes, kvt_event *ret) {
    wire_reader r = {.at = *events, .n_left = *n_bytes};
    kvt_event e = {.kind = kvt_wire_take_u8(&r)};
    e.tier = kvt_wire_take_u8(&r);
    e.page = kvt_wire_take_u64(&r);
    e.place = kvt_wire_take_u32(&r);
    if (e.kind == KVT_EVENT_ADDED) {
        e.parent = kvt_wire_take_u64(&r);
        e.realm = kvt_wire_take_u32(&r);
        e.n_bytes = kvt_wire_take_u64(&r);
        e.n_tokens = kvt_wire_take_u16(&r);
        e.n_listed = kvt_wire_take_u16(&r);
        e.tokens = kvt_wire_take(&r, e.n_listed * sizeof(uint32_t));
    }
    if (r.failed || e.kind < KVT_EVENT_ADDED || e.kind > KVT_EVENT_MOVED || e.tier > 2 ||
        e.page == 0 || e.place == 0 || (e.kind == KVT_EVENT_REMOVED && e.tier) ||
        e.n_tokens > MAX_TOKENS || (e.kind == KVT_EVENT_ADDED && !e.n_tokens) ||
        (e.n_listed && e.n_listed != e.n_tokens))
        return KVT_EPROTO;
    *events = r.at;
    *n_bytes = r.n_left;
    *ret = e;
    return KVT_OK;
}

kvt_status kvt_wire_get_events(const uint8_t *body, size_t n_bytes, uint32_t *ret_n,
                               const uint8_t **ret_events, size_t *ret_n_bytes) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    uint32_t n = kvt_wire_take_u32(&r);
    if (r.failed || n > r.n_left / EVENT_BYTES || (n == 0 && r.n_left))
        return KVT_EPROTO;
    *ret_n = n;
    *ret_events = r.at;
    *ret_n_bytes = r.n_left;
    return KVT_OK;
}

void kvt_wire_put_snapshot_rep(kvt_writer *w, const kvt_snapshot_rep *rep) {
    kvt_wire_put_u64(w, rep->sequence);
    kvt_wire_put_u32(w, rep->first_place);
    kvt_wire_put_u32(w, rep->end_place);
    kvt_wire_put_u32(w, rep->max_place);
    kvt_wire_put_text(w, &rep->events_path);
    kvt_wire_put_u32(w, rep->n_pages);
}

kvt_status kvt_wire_get_snapshot_req(const uint8_t *body, size_t n_bytes, kvt_snapshot_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_snapshot_req req = {.first_place = kvt_wire_take_u32(&r)};
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.first_place == 0)
        return KVT_EPROTO;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_snapshot_rep(const uint8_t *body, size_t n_bytes, kvt_snapshot_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_snapshot_rep rep = {.sequence = kvt_wire_take_u64(&r)};
    rep.first_place = kvt_wire_take_u32(&r);
    rep.end_place = kvt_wire_take_u32(&r);
    rep.max_place = kvt_wire_take_u32(&r);
    rep.events_path = kvt_wire_take_str(&r, KVT_WIRE_MAX_PATH);
    rep.n_pages = kvt_wire_take_u32(&r);
    if (r.failed || rep.n_pages > r.n_left / EVENT_BYTES || (rep.n_pages == 0 && r.n_left) ||
        rep.end_place < rep.first_place)
        return KVT_EPROTO;
    rep.pages = r.at;
    rep.n_page_bytes = r.n_left;
    *ret = rep;
    return KVT_OK;
}
