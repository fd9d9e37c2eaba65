/*
 * wire_get.c - bodies, from bytes to structures. What comes in may be anything: each function first
 * takes every field, then sees that nothing is left, then looks at the values.
 */
#include "client/wire_io.h"

#include <string.h>

kvt_status kvt_wire_get_hello_req(const uint8_t *body, size_t n_bytes, kvt_hello_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_hello_req req;
    kvt_wire_take_token(&r, req.token);
    req.pid = kvt_wire_take_u32(&r);
    req.name = kvt_wire_take_str(&r, KVT_WIRE_MAX_PATH);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

kvt_status kvt_wire_get_hello_rep(const uint8_t *body, size_t n_bytes, kvt_hello_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_hello_rep rep;
    kvt_wire_take_token(&r, rep.token);
    rep.session = kvt_wire_take_u32(&r);
    rep.resumed = kvt_wire_take_u8(&r);
    rep.max_bytes = kvt_wire_take_u32(&r);
    rep.max_tokens = kvt_wire_take_u32(&r);
    rep.max_leases = kvt_wire_take_u32(&r);
    rep.max_claimed_pages = kvt_wire_take_u32(&r);
    rep.page_tokens = kvt_wire_take_u32(&r);
    rep.grace_ms = kvt_wire_take_u32(&r);
    rep.n_gpus = kvt_wire_take_u32(&r);
    rep.staging_dir = kvt_wire_take_str(&r, KVT_WIRE_MAX_PATH);
    rep.tenant = kvt_wire_take_str(&r, KVT_WIRE_MAX_PATH);
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || rep.resumed > 1)
        return KVT_EPROTO;
    *ret = rep;
    return KVT_OK;
}

kvt_status kvt_wire_get_stage_req(const uint8_t *body, size_t n_bytes, kvt_stage_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_stage_req req;
    req.bytes = kvt_wire_take_u64(&r);
    req.name = kvt_wire_take_str(&r, KVT_WIRE_MAX_PATH);
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.name.n_bytes == 0 || req.name.at[0] == '.' ||
        memchr(req.name.at, '/', req.name.n_bytes))
        return KVT_EPROTO;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_realm_req(const uint8_t *body, size_t n_bytes, kvt_realm_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_realm_req req;
    req.rank = kvt_wire_take_u32(&r);
    req.gpu_named = kvt_wire_take_u8(&r);
    req.gpu = kvt_wire_take_str(&r, KVT_WIRE_MAX_GPU);
    req.n_bytes = kvt_wire_take_u32(&r);
    req.canonical = kvt_wire_take_array(&r, req.n_bytes, 1);
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.rank >= KVT_MAX_RANKS || req.gpu_named > 1 ||
        (req.gpu_named && req.gpu.n_bytes == 0))
        return KVT_EPROTO;
    if (req.n_bytes > KVT_WIRE_MAX_REALM_BYTES)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_realm_rep(const uint8_t *body, size_t n_bytes, kvt_realm_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_realm_rep rep;
    rep.realm = kvt_wire_take_u32(&r);
    rep.geometry_hash = kvt_wire_take_u64(&r);
    rep.page_bytes = kvt_wire_take_u64(&r);
    rep.arena_path = kvt_wire_take_str(&r, KVT_WIRE_MAX_PATH);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = rep;
    return status;
}

kvt_status kvt_wire_get_acquire_req(const uint8_t *body, size_t n_bytes, kvt_acquire_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_acquire_req req;
    req.realm = kvt_wire_take_u32(&r);
    req.rank = kvt_wire_take_u32(&r);
    req.flags = kvt_wire_take_u32(&r);
    req.base = kvt_wire_take_u64(&r);
    req.keep_tokens = kvt_wire_take_u32(&r);
    req.first_page = kvt_wire_take_u32(&r);
    req.group = kvt_wire_take_u64(&r);
    req.request = kvt_wire_take_u64(&r);
    req.sinks = kvt_wire_take_u32(&r);
    req.window = kvt_wire_take_u32(&r);
    req.budget = kvt_wire_take_u32(&r);
    req.n_tokens = kvt_wire_take_u32(&r);
    req.n_spans = 0;
    req.spans = NULL;
    if (req.flags & KVT_ACQUIRE_SPANS)
        kvt_wire_take_spans(&r, &req);
    else
        req.tokens = kvt_wire_take_array(&r, req.n_tokens, sizeof(uint32_t));
    kvt_status status = kvt_wire_end(&r);
    uint32_t known =
        KVT_ACQUIRE_CLAIM | KVT_ACQUIRE_LEAVE_ONE | KVT_ACQUIRE_VIEW | KVT_ACQUIRE_SPANS;
    if (status != KVT_OK || (req.flags & ~known) || req.rank >= KVT_MAX_RANKS)
        return KVT_EPROTO;
    if (req.base ? req.realm != 0 || req.rank != 0 : req.keep_tokens != 0)
        return KVT_EPROTO;
    if (!req.group != !req.request)
        return KVT_EPROTO;
    if (!(req.flags & KVT_ACQUIRE_VIEW) && (req.sinks || req.window || req.budget))
        return KVT_EPROTO;
    if (req.n_tokens > KVT_MAX_REQUEST_TOKENS || req.n_spans > KVT_WIRE_MAX_SPANS)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_fork_req(const uint8_t *body, size_t n_bytes, kvt_fork_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_fork_req req;
    req.lease = kvt_wire_take_u64(&r);
    req.n_tokens = kvt_wire_take_u32(&r);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

kvt_status kvt_wire_get_wait_req(const uint8_t *body, size_t n_bytes, kvt_wait_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_wait_req req;
    req.lease = kvt_wire_take_u64(&r);
    req.held_tokens = kvt_wire_take_u32(&r);
    req.wait_ms = kvt_wire_take_u32(&r);
    req.first_page = kvt_wire_take_u32(&r);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

static int pages_are_sane(const uint8_t *pages, uint32_t n_pages) {
    for (uint32_t i = 0; i < n_pages; i++) {
        kvt_wire_page page;
        kvt_wire_get_page(pages, i, &page);
        if (page.reserved || page.tier > KVT_TIER_DISK)
            return 0;
    }
    return 1;
}

/* What is left of the body: the heads of the lists, then their pages one after the other. */
static kvt_status take_lists(wire_reader *r, uint32_t *ret_n_lists, kvt_page_list *lists) {
    uint32_t n_lists = kvt_wire_take_u32(r);
    if (r->failed || n_lists == 0 || n_lists > KVT_MAX_GROUPS)
        return KVT_EPROTO;
    for (uint32_t i = 0; i < n_lists; i++) {
        lists[i].first_page = kvt_wire_take_u32(r);
        lists[i].n_pages = kvt_wire_take_u32(r);
    }
    for (uint32_t i = 0; i < n_lists; i++) {
        size_t n = lists[i].n_pages;
        lists[i].pages =
            n <= r->n_left / WIRE_PAGE_BYTES ? kvt_wire_take(r, n * WIRE_PAGE_BYTES) : NULL;
        if (r->failed || !lists[i].pages || !pages_are_sane(lists[i].pages, (uint32_t)n))
            return KVT_EPROTO;
    }
    if (kvt_wire_end(r) != KVT_OK)
        return KVT_EPROTO;
    for (uint32_t i = 0; i < n_lists; i++)
        if (lists[i].n_pages > WIRE_MAX_PAGES)
            return KVT_ELIMIT;
    *ret_n_lists = n_lists;
    return KVT_OK;
}

/* They rise, do not touch, and lie in what is held. */
static int runs_are_good(const kvt_lease_rep *rep) {
    uint32_t before = 0; /* no run may begin in front of this */
    for (uint32_t i = 0; i < rep->n_runs; i++) {
        kvt_wire_run run;
        kvt_wire_get_run(rep->runs, i, &run);
        if (run.n_tokens == 0 || run.first_token < before || run.first_token > rep->held_tokens ||
            run.n_tokens > rep->held_tokens - run.first_token)
            return 0;
        before = run.first_token + run.n_tokens + 1;
    }
    return 1;
}

static kvt_status take_runs(wire_reader *r, kvt_lease_rep *rep) {
    rep->n_runs = kvt_wire_take_u32(r);
    if (r->failed || rep->n_runs > r->n_left / WIRE_RUN_BYTES)
        return KVT_EPROTO;
    rep->runs = kvt_wire_take(r, (size_t)rep->n_runs * WIRE_RUN_BYTES);
    return runs_are_good(rep) ? KVT_OK : KVT_EPROTO;
}

kvt_status kvt_wire_get_lease_rep(const uint8_t *body, size_t n_bytes, kvt_lease_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_lease_rep rep;
    rep.lease = kvt_wire_take_u64(&r);
    rep.n_tokens = kvt_wire_take_u32(&r);
    rep.held_tokens = kvt_wire_take_u32(&r);
    rep.computing_tokens = kvt_wire_take_u32(&r);
    rep.claimed_tokens = kvt_wire_take_u32(&r);
    kvt_status status = take_runs(&r, &rep);
    if (status == KVT_OK)
        status = take_lists(&r, &rep.n_lists, rep.lists);
    if (status == KVT_OK && rep.n_runs > KVT_WIRE_MAX_RUNS)
        status = KVT_ELIMIT;
    if (status == KVT_OK)
        *ret = rep;
    return status;
}

static int no_bytes_at(const uint8_t *reserved) {
    return reserved[0] == 0 && reserved[1] == 0;
}

/* By page, then group; and nothing where nothing is meant. */
static int pages_rise(const uint8_t *pages, uint32_t n_pages) {
    for (uint32_t i = 0; i < n_pages; i++) {
        kvt_seal_page before, page;
        kvt_wire_get_seal_page(pages, i, &page);
        if (page.group >= KVT_MAX_GROUPS || !no_bytes_at(pages + i * WIRE_SEAL_PAGE_BYTES + 6))
            return 0;
        if (i == 0)
            continue;
        kvt_wire_get_seal_page(pages, i - 1, &before);
        if (page.page < before.page || (page.page == before.page && page.group <= before.group))
            return 0;
    }
    return 1;
}

kvt_status kvt_wire_get_seal_req(const uint8_t *body, size_t n_bytes, kvt_seal_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_seal_req req;
    req.lease = kvt_wire_take_u64(&r);
    req.n_pages = kvt_wire_take_u32(&r);
    req.pages = kvt_wire_take_array(&r, req.n_pages, WIRE_SEAL_PAGE_BYTES);
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.n_pages == 0 || !pages_rise(req.pages, req.n_pages))
        return KVT_EPROTO;
    if (req.n_pages > KVT_MAX_SEAL_PAGES)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_seal_rep(const uint8_t *body, size_t n_bytes, kvt_seal_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_seal_rep rep;
    rep.page_status = kvt_wire_take_u32(&r);
    rep.held_tokens = kvt_wire_take_u32(&r);
    kvt_status status = take_lists(&r, &rep.n_lists, rep.lists);
    if (status != KVT_OK)
        return status;
    if (rep.page_status >= KVT_N_STATUS)
        return KVT_EPROTO;
    *ret = rep;
    return KVT_OK;
}

kvt_status kvt_wire_get_release_req(const uint8_t *body, size_t n_bytes, kvt_release_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_release_req req;
    req.n_leases = kvt_wire_take_u32(&r);
    req.leases = kvt_wire_take_array(&r, req.n_leases, sizeof(uint64_t));
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK || req.n_leases == 0)
        return KVT_EPROTO;
    if (req.n_leases > KVT_WIRE_MAX_RELEASE)
        return KVT_ELIMIT;
    *ret = req;
    return KVT_OK;
}

kvt_status kvt_wire_get_release_rep(const uint8_t *body, size_t n_bytes, kvt_release_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_release_rep rep;
    rep.n_leases = kvt_wire_take_u32(&r);
    rep.statuses = kvt_wire_take_array(&r, rep.n_leases, sizeof(uint32_t));
    kvt_status status = kvt_wire_end(&r);
    if (status != KVT_OK)
        return status;
    for (uint32_t i = 0; i < rep.n_leases; i++)
        if (kvt_wire_get_u32(rep.statuses, i) >= KVT_N_STATUS)
            return KVT_EPROTO;
    if (rep.n_leases > KVT_WIRE_MAX_RELEASE)
        return KVT_ELIMIT;
    *ret = rep;
    return KVT_OK;
}

kvt_status kvt_wire_get_cancel_req(const uint8_t *body, size_t n_bytes, kvt_cancel_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_cancel_req req = {.number = kvt_wire_take_u64(&r)};
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

kvt_status kvt_wire_get_tree_req(const uint8_t *body, size_t n_bytes, kvt_tree_req *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_tree_req req = {.max_lines = kvt_wire_take_u32(&r)};
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = req;
    return status;
}

kvt_status kvt_wire_get_text_rep(const uint8_t *body, size_t n_bytes, kvt_text_rep *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_text_rep rep;
    rep.n_bytes = kvt_wire_take_u32(&r);
    rep.text = (const char *)kvt_wire_take_array(&r, rep.n_bytes, 1);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = rep;
    return status;
}

kvt_status kvt_wire_get_error(const uint8_t *body, size_t n_bytes, kvt_wire_str *ret) {
    wire_reader r = {.at = body, .n_left = n_bytes};
    kvt_wire_str text = kvt_wire_take_str(&r, UINT16_MAX);
    kvt_status status = kvt_wire_end(&r);
    if (status == KVT_OK)
        *ret = text;
    return status;
}

void kvt_wire_get_page(const uint8_t *pages, size_t i, kvt_wire_page *ret) {
    memcpy(ret, pages + i * WIRE_PAGE_BYTES, WIRE_PAGE_BYTES);
}

void kvt_wire_get_run(const uint8_t *runs, size_t i, kvt_wire_run *ret) {
    wire_reader r = {.at = runs + i * WIRE_RUN_BYTES, .n_left = WIRE_RUN_BYTES};
    ret->first_token = kvt_wire_take_u32(&r);
    ret->n_tokens = kvt_wire_take_u32(&r);
}

void kvt_wire_get_seal_page(const uint8_t *pages, size_t i, kvt_seal_page *ret) {
    wire_reader r = {.at = pages + i * WIRE_SEAL_PAGE_BYTES, .n_left = WIRE_SEAL_PAGE_BYTES};
    ret->page = kvt_wire_take_u32(&r);
    ret->group = kvt_wire_take_u16(&r);
    kvt_wire_take_u16(&r);
    ret->bytes = kvt_wire_take_u32(&r);
    ret->offset = kvt_wire_take_u64(&r);
}

static uint32_t mix32(uint64_t h) {
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)(h ^ (h >> 32));
}

uint32_t kvt_wire_span_word(const kvt_wire_span *span, uint32_t at, uint32_t token) {
    uint64_t half[2];
    memcpy(half, span->hash, sizeof half);
    half[0] ^= (uint64_t)span->n_tokens << 32 | token;
    return mix32(half[0] ^ ((half[1] + at) * UINT64_C(0x9e3779b97f4a7c15)));
}
