/*
 * wire_keep.c - the bodies of what keeps pages and of what forgets them: PIN, UNPIN, FLUSH; the
 * spans of an ACQUIRE; IMPORTANCE.
 */
#include "client/wire_io.h"

void kvt_wire_put_pin_req(kvt_writer *w, const kvt_pin_req *req) {
    kvt_wire_put_u32(w, req->realm);
    kvt_wire_put_u32(w, req->ttl_ms);
    kvt_wire_put_u64(w, req->max_bytes);
    kvt_wire_put_u32(w, req->n_tokens);
}

void kvt_wire_put_pin_rep(kvt_writer *w, const kvt_pin_rep *rep) {
    kvt_wire_put_u64(w, rep->pin);
    kvt_wire_put_u32(w, rep->n_tokens);
    kvt_wire_put_u64(w, rep->n_bytes);
}

void kvt_wire_put_flush_req(kvt_writer *w, const kvt_flush_req *req) {
    kvt_wire_put_u32(w, req->scope);
    kvt_wire_put_u32(w, req->realm);
    kvt_wire_put_u32(w, req->n_tokens);
}

void kvt_wire_put_flush_rep(kvt_writer *w, const kvt_flush_rep *rep) {
    kvt_wire_put_u64(w, rep->pages);
    kvt_wire_put_u64(w, rep->n_bytes);
    kvt_wire_put_u64(w, rep->held_pages);
    kvt_wire_put_u64(w, rep->held_bytes);
    kvt_wire_put_u32(w, rep->pins);
}

kvt_status kvt_wire_get_pin_req(const uint8_t *body, size_t n_bytes, kvt_pin_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_pin_req req;
    req.realm = kvt_wire_take_u32(&r);
    req.ttl_ms = kvt_wire_take_u32(&r);
    req.max_bytes = kvt_wire_take_u64(&r);
    req.n_tokens = kvt_wire_take_u32(&r);
    req.tokens = kvt_wire_take_array(&r, req.n_tokens, sizeof(uint32_t));
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.realm == 0 || req.n_tokens == 0)
        return KVT_EPROTO;
    if (req.n_tokens > KVT_MAX_REQUEST_TOKENS)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_pin_rep(const uint8_t *body, size_t n_bytes, kvt_pin_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_pin_rep rep;
    rep.pin = kvt_wire_take_u64(&r);
    rep.n_tokens = kvt_wire_take_u32(&r);
    rep.n_bytes = kvt_wire_take_u64(&r);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = rep;
    return status;
}

kvt_status kvt_wire_get_unpin_req(const uint8_t *body, size_t n_bytes, kvt_unpin_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_unpin_req req = {.pin = kvt_wire_take_u64(&r)};
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

kvt_status kvt_wire_get_flush_req(const uint8_t *body, size_t n_bytes, kvt_flush_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_flush_req req;
    req.scope = kvt_wire_take_u32(&r);
    req.realm = kvt_wire_take_u32(&r);
    req.n_tokens = kvt_wire_take_u32(&r);
    req.tokens = kvt_wire_take_array(&r, req.n_tokens, sizeof(uint32_t));
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.scope > KVT_WIRE_FLUSH_PREFIX ||
        (req.scope == KVT_WIRE_FLUSH_TENANT) != (req.realm == 0) ||
        (req.scope == KVT_WIRE_FLUSH_PREFIX) != (req.n_tokens > 0))
        return KVT_EPROTO;
    if (req.n_tokens > KVT_MAX_REQUEST_TOKENS)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_flush_rep(const uint8_t *body, size_t n_bytes, kvt_flush_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_flush_rep rep;
    rep.pages = kvt_wire_take_u64(&r);
    rep.n_bytes = kvt_wire_take_u64(&r);
    rep.held_pages = kvt_wire_take_u64(&r);
    rep.held_bytes = kvt_wire_take_u64(&r);
    rep.pins = kvt_wire_take_u32(&r);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = rep;
    return status;
}

/* --- spans --------------------------------------------------------------------------------------
 */

enum { SPAN_BYTES = 24 };

void kvt_wire_put_span(kvt_writer *w, const kvt_wire_span *span) {
    kvt_wire_put_u32(w, span->first_token);
    kvt_wire_put_u32(w, span->n_tokens);
    kvt_wire_put_bytes(w, span->hash, sizeof span->hash);
}

void kvt_wire_get_span(const uint8_t *spans, size_t i, kvt_wire_span *ret) {
    wire_reader r = {.at = spans + i * SPAN_BYTES, .n_left = SPAN_BYTES};
    ret->first_token = kvt_wire_take_u32(&r);
    ret->n_tokens = kvt_wire_take_u32(&r);
    kvt_wire_take_token(&r, ret->hash); /* as many bytes as a session's token has */
}

void kvt_wire_take_spans(wire_reader *r, kvt_acquire_req *req) {
    if (r->failed || req->n_tokens > r->n_left / sizeof(uint32_t)) {
        r->failed = 1;
        return;
    }
    req->tokens = kvt_wire_take(r, req->n_tokens * sizeof(uint32_t));
    req->n_spans = (uint32_t)(r->n_left / SPAN_BYTES);
    req->spans = kvt_wire_take_array(r, req->n_spans, SPAN_BYTES);
    if (req->n_spans == 0) /* the flag would say nothing */
        r->failed = 1;
}

void kvt_wire_put_importance_req(kvt_writer *w, const kvt_importance_req *req) {
    kvt_wire_put_u64(w, req->lease);
    kvt_wire_put_u32(w, req->first_row);
    kvt_wire_put_u32(w, req->n_rows);
}

void kvt_wire_put_importance_rep(kvt_writer *w, const kvt_importance_rep *rep) {
    kvt_wire_put_u32(w, rep->n_rows);
}

kvt_status kvt_wire_get_importance_req(const uint8_t *body, size_t n_bytes,
                                       kvt_importance_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_importance_req req;
    req.lease = kvt_wire_take_u64(&r);
    req.first_row = kvt_wire_take_u32(&r);
    req.n_rows = kvt_wire_take_u32(&r);
    req.importance = kvt_wire_take_array(&r, req.n_rows, sizeof(uint16_t));
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.n_rows == 0)
        return KVT_EPROTO;
    for (uint32_t i = 0; i < req.n_rows; i++)
        if (kvt_wire_get_u16(req.importance, i) > KVT_WIRE_MAX_IMPORTANCE)
            return KVT_EPROTO;
    if (req.n_rows > KVT_MAX_REQUEST_TOKENS)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_importance_rep(const uint8_t *body, size_t n_bytes,
                                       kvt_importance_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_importance_rep rep = {.n_rows = kvt_wire_take_u32(&r)};
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = rep;
    return status;
}

/* --- suspect ------------------------------------------------------------------------------------
 */

void kvt_wire_put_suspect_req(kvt_writer *w, const kvt_suspect_req *req) {
    kvt_wire_put_u64(w, req->lease);
    kvt_wire_put_u32(w, req->page);
    kvt_wire_put_u32(w, req->group);
}

void kvt_wire_put_suspect_rep(kvt_writer *w, const kvt_suspect_rep *rep) {
    kvt_wire_put_u32(w, rep->forgotten);
}

kvt_status kvt_wire_get_suspect_req(const uint8_t *body, size_t n_bytes, kvt_suspect_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_suspect_req req;
    req.lease = kvt_wire_take_u64(&r);
    req.page = kvt_wire_take_u32(&r);
    req.group = kvt_wire_take_u32(&r);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

kvt_status kvt_wire_get_suspect_rep(const uint8_t *body, size_t n_bytes, kvt_suspect_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_suspect_rep rep = {.forgotten = kvt_wire_take_u32(&r)};
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || rep.forgotten > 1)
        return KVT_EPROTO;
    *ret = rep;
    return KVT_OK;
}
