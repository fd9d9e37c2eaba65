/* wire_put.c - bodies, from structures to bytes. The order of the lines is the order on the wire.
 */
#include "client/wire_io.h"

#include <string.h>

void kvt_wire_put_hello_req(kvt_writer *w, const kvt_hello_req *req) {
    kvt_wire_put_bytes(w, req->token, sizeof req->token);
    kvt_wire_put_u32(w, req->pid);
    kvt_wire_put_text(w, &req->name);
}

void kvt_wire_put_hello_rep(kvt_writer *w, const kvt_hello_rep *rep) {
    kvt_wire_put_bytes(w, rep->token, sizeof rep->token);
    kvt_wire_put_u32(w, rep->session);
    kvt_wire_put_u8(w, rep->resumed);
    kvt_wire_put_u32(w, rep->max_bytes);
    kvt_wire_put_u32(w, rep->max_tokens);
    kvt_wire_put_u32(w, rep->max_leases);
    kvt_wire_put_u32(w, rep->max_claimed_pages);
    kvt_wire_put_u32(w, rep->page_tokens);
    kvt_wire_put_u32(w, rep->grace_ms);
    kvt_wire_put_u32(w, rep->n_gpus);
    kvt_wire_put_text(w, &rep->staging_dir);
    kvt_wire_put_text(w, &rep->tenant);
}

void kvt_wire_put_stage_req(kvt_writer *w, const kvt_stage_req *req) {
    kvt_wire_put_u64(w, req->bytes);
    kvt_wire_put_text(w, &req->name);
}

void kvt_wire_put_realm_req(kvt_writer *w, const kvt_realm_req *req) {
    kvt_wire_put_u32(w, req->rank);
    kvt_wire_put_u8(w, req->gpu_named);
    kvt_wire_put_text(w, &req->gpu);
    kvt_wire_put_u32(w, req->n_bytes);
    kvt_wire_put_bytes(w, req->canonical, req->n_bytes);
}

void kvt_wire_put_realm_rep(kvt_writer *w, const kvt_realm_rep *rep) {
    kvt_wire_put_u32(w, rep->realm);
    kvt_wire_put_u64(w, rep->geometry_hash);
    kvt_wire_put_u64(w, rep->page_bytes);
    kvt_wire_put_text(w, &rep->arena_path);
}

void kvt_wire_put_acquire_req(kvt_writer *w, const kvt_acquire_req *req) {
    kvt_wire_put_u32(w, req->realm);
    kvt_wire_put_u32(w, req->rank);
    kvt_wire_put_u32(w, req->flags);
    kvt_wire_put_u64(w, req->base);
    kvt_wire_put_u32(w, req->keep_tokens);
    kvt_wire_put_u32(w, req->first_page);
    kvt_wire_put_u64(w, req->group);
    kvt_wire_put_u64(w, req->request);
    kvt_wire_put_u32(w, req->sinks);
    kvt_wire_put_u32(w, req->window);
    kvt_wire_put_u32(w, req->budget);
    kvt_wire_put_u32(w, req->n_tokens);
}

void kvt_wire_put_tokens(kvt_writer *w, const uint32_t *tokens, size_t n_tokens) {
    kvt_wire_put_bytes(w, tokens, n_tokens * sizeof *tokens);
}

void kvt_wire_put_fork_req(kvt_writer *w, const kvt_fork_req *req) {
    kvt_wire_put_u64(w, req->lease);
    kvt_wire_put_u32(w, req->n_tokens);
}

void kvt_wire_put_wait_req(kvt_writer *w, const kvt_wait_req *req) {
    kvt_wire_put_u64(w, req->lease);
    kvt_wire_put_u32(w, req->held_tokens);
    kvt_wire_put_u32(w, req->wait_ms);
    kvt_wire_put_u32(w, req->first_page);
}

static void put_lists(kvt_writer *w, uint32_t n_lists, const kvt_page_list *lists) {
    kvt_wire_put_u32(w, n_lists);
    for (uint32_t i = 0; i < n_lists; i++) {
        kvt_wire_put_u32(w, lists[i].first_page);
        kvt_wire_put_u32(w, lists[i].n_pages);
    }
}

void kvt_wire_put_lease_rep(kvt_writer *w, const kvt_lease_rep *rep) {
    kvt_wire_put_u64(w, rep->lease);
    kvt_wire_put_u32(w, rep->n_tokens);
    kvt_wire_put_u32(w, rep->held_tokens);
    kvt_wire_put_u32(w, rep->computing_tokens);
    kvt_wire_put_u32(w, rep->claimed_tokens);
    kvt_wire_put_u32(w, rep->n_runs);
    kvt_wire_put_bytes(w, rep->runs, (size_t)rep->n_runs * WIRE_RUN_BYTES);
    put_lists(w, rep->n_lists, rep->lists);
}

void kvt_wire_put_page(kvt_writer *w, const kvt_wire_page *page) {
    /* Hundreds of them a reply: a copy of a constant size is two moves. */
    if (w->failed || w->room - w->n_bytes < WIRE_PAGE_BYTES) {
        w->failed = 1;
        return;
    }
    memcpy(w->at + w->n_bytes, page, WIRE_PAGE_BYTES);
    w->n_bytes += WIRE_PAGE_BYTES;
}

void kvt_wire_put_seal_req(kvt_writer *w, const kvt_seal_req *req) {
    kvt_wire_put_u64(w, req->lease);
    kvt_wire_put_u32(w, req->n_pages);
}

void kvt_wire_put_seal_page(kvt_writer *w, const kvt_seal_page *page) {
    kvt_wire_put_u32(w, page->page);
    kvt_wire_put_u16(w, page->group);
    kvt_wire_put_u16(w, 0);
    kvt_wire_put_u32(w, page->bytes);
    kvt_wire_put_u64(w, page->offset);
}

void kvt_wire_put_seal_rep(kvt_writer *w, const kvt_seal_rep *rep) {
    kvt_wire_put_u32(w, rep->page_status);
    kvt_wire_put_u32(w, rep->held_tokens);
    put_lists(w, rep->n_lists, rep->lists);
}

void kvt_wire_put_text_rep(kvt_writer *w, const char *text, size_t n_bytes) {
    if (n_bytes > KVT_WIRE_MAX_BYTES) {
        w->failed = 1;
        return;
    }
    kvt_wire_put_u32(w, (uint32_t)n_bytes);
    kvt_wire_put_bytes(w, text, n_bytes);
}
