/*
 * wire_tiers.c - the bodies of what moves pages between tiers: SPILL, VERIFY, PREFETCH. A request
 * of the first two is one u32 (kvt_wire_put_u32); that of PREFETCH ends with its tokens.
 */
#include "client/wire_io.h"

void kvt_wire_put_tiers_rep(kvt_writer *w, const kvt_tiers_rep *rep) {
    kvt_wire_put_u64(w, rep->pages_dirty);
    kvt_wire_put_u64(w, rep->pages_disk);
    kvt_wire_put_u64(w, rep->checked);
    kvt_wire_put_u64(w, rep->corrupt);
}

void kvt_wire_put_prefetch_rep(kvt_writer *w, const kvt_prefetch_rep *rep) {
    kvt_wire_put_u32(w, rep->held_tokens);
    kvt_wire_put_u32(w, rep->ready_tokens);
}

kvt_status kvt_wire_get_tiers_req(const uint8_t *body, size_t n_bytes, kvt_tiers_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_tiers_req req = {.wait_ms = kvt_wire_take_u32(&r)};
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

kvt_status kvt_wire_get_tiers_rep(const uint8_t *body, size_t n_bytes, kvt_tiers_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_tiers_rep rep;
    rep.pages_dirty = kvt_wire_take_u64(&r);
    rep.pages_disk = kvt_wire_take_u64(&r);
    rep.checked = kvt_wire_take_u64(&r);
    rep.corrupt = kvt_wire_take_u64(&r);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = rep;
    return status;
}

kvt_status kvt_wire_get_prefetch_req(const uint8_t *body, size_t n_bytes, kvt_prefetch_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_prefetch_req req;
    req.realm = kvt_wire_take_u32(&r);
    req.n_tokens = kvt_wire_take_u32(&r);
    req.tokens = kvt_wire_take_array(&r, req.n_tokens, sizeof(uint32_t));
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK)
        return status;
    if (req.n_tokens > KVT_MAX_REQUEST_TOKENS)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_prefetch_rep(const uint8_t *body, size_t n_bytes, kvt_prefetch_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_prefetch_rep rep;
    rep.held_tokens = kvt_wire_take_u32(&r);
    rep.ready_tokens = kvt_wire_take_u32(&r);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = rep;
    return status;
}
