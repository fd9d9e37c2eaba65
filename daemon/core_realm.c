/*
 * core_realm.c - realms: what must be equal for bytes to be shared. A realm is found by comparing
 * its canonical bytes, all of them; its number is only a name for the place in the table.
 */
#include "daemon/core_state.h"

#include <stdio.h>
#include <string.h>

realm *realm_get(core *c, uint32_t number) {
    if (number == 0)
        return NULL;
    realm *r = &c->realms[(number - 1) % c->config.max_realms];
    return r->number == number ? r : NULL;
}

uint64_t realm_page_bytes(const realm *r) {
    uint64_t bytes = 0;
    for (uint32_t group = 0; group < r->n_groups; group++)
        bytes += kvt_page_bytes(&r->shapes[group], r->page_tokens);
    return bytes;
}

/* What the geometry says, where it is needed all the time. */
static kvt_status realm_shapes(const core *c, realm *r, char *why, size_t why_bytes) {
    const kvt_geometry *g = &r->desc.geometry;
    r->page_tokens = g->page_tokens;
    r->n_ranks = g->n_ranks;
    r->n_groups = g->n_groups;
    r->max_window = 0;
    /* A reply has all of its pages, and the runs of a view. */
    uint32_t max_pages = (KVT_WIRE_MAX_BYTES - 4096 - KVT_WIRE_MAX_RUNS * 8) / 32 / g->n_groups;
    r->max_tokens = max_pages < KVT_MAX_REQUEST_TOKENS / g->page_tokens
                        ? max_pages * g->page_tokens
                        : (uint32_t)KVT_MAX_REQUEST_TOKENS;
    r->n_jobs = 0;
    for (uint32_t group = 0; group < g->n_groups; group++) {
        kvt_status status =
            kvt_page_shape_init(g, group, r->desc.codec, why, why_bytes, &r->shapes[group]);
        if (status != KVT_OK)
            return status;
        r->windows[group] = g->groups[group].window;
        if (r->windows[group] > r->max_window)
            r->max_window = r->windows[group];
    }
    r->spine = 0;
    for (uint32_t group = 1; group < r->n_groups && r->windows[r->spine]; group++)
        if (!r->windows[group] || r->windows[group] > r->windows[r->spine])
            r->spine = group; /* of rank 0, as a slot */
    realm_ladder(c, r);
    return KVT_OK;
}

static realm *realm_find(core *c, const kvt_realm_req *req) {
    for (uint32_t i = 0; i < c->config.max_realms; i++) {
        realm *r = &c->realms[i];
        if (r->number && r->n_bytes == req->n_bytes &&
            memcmp(r->canonical, req->canonical, req->n_bytes) == 0)
            return r;
    }
    return NULL;
}

/* A free place; if there is none, that of a realm without pages and leases. A worker that still
 * uses the old number is told KVT_ENOENT and registers again. */
static realm *realm_place(core *c) {
    for (uint32_t i = 0; i < c->config.max_realms; i++)
        if (!c->realms[i].number)
            return &c->realms[i];
    for (uint32_t i = 0; i < c->config.max_realms; i++) {
        realm *r = &c->realms[i];
        if (r->n_jobs == 0 && radix_root_remove(c->tree, r->root) == KVT_OK) {
            r->root = RADIX_NONE;
            r->number = 0;
            c->n_realms--;
            return r;
        }
    }
    return NULL;
}

/* Is this geometry one that the daemon can serve? */
static kvt_status realm_check(core *c, const realm *r, char *why, size_t why_bytes) {
    const kvt_geometry *g = &r->desc.geometry;
    if (g->page_tokens > c->config.page_tokens) {
        snprintf(why, why_bytes, "page_tokens %u is over the daemon's %u; raise its page_tokens",
                 g->page_tokens, c->config.page_tokens);
        return KVT_ELIMIT;
    }
    if (r->n_ranks * r->n_groups > c->config.max_slots) {
        snprintf(why, why_bytes,
                 "%u ranks of %u layer groups make %u pages a node, the most allowed are %u; raise "
                 "max_slots",
                 r->n_ranks, r->n_groups, r->n_ranks * r->n_groups, c->config.max_slots);
        return KVT_ELIMIT;
    }
    /* With several arenas, core_arena.c sees to what stands together. */
    uint64_t page_bytes = 0, n_ranks = c->config.n_arenas == 1 ? r->n_ranks : 1;
    for (uint32_t group = 0; group < r->n_groups; group++)
        page_bytes += n_ranks * kvt_page_max_bytes(&r->shapes[group]);
    if (page_bytes > c->config.arena_bytes) {
        snprintf(why, why_bytes,
                 "a page takes %llu bytes with all ranks and groups, the arena has %llu; "
                 "enlarge the arena",
                 (unsigned long long)page_bytes, (unsigned long long)c->config.arena_bytes);
        return KVT_ELIMIT;
    }
    return KVT_OK;
}

/* Serving goes on without the tiers below; but nothing else would tell why they stay empty. A
 * client that registers realm after realm does not fill the log. */
static void realm_fits_host(core *c, const realm *r) {
    enum { MAX_WARNINGS = 64 };
    uint64_t page_bytes = 0, host_bytes = c->config.host_bytes, batch = TIER_BATCH;
    char line[768];
    for (uint32_t group = 0; group < r->n_groups; group++) {
        uint64_t bytes = kvt_page_bytes(&r->shapes[group], r->page_tokens);
        page_bytes = bytes > page_bytes ? bytes : page_bytes;
    }
    if (!c->tiers || !c->env.warn || c->n_host_warnings == MAX_WARNINGS ||
        page_bytes * batch <= host_bytes || (!c->config.disk_bytes && page_bytes <= host_bytes))
        return;
    c->n_host_warnings++;
    const char *what = page_bytes > host_bytes
                           ? "no such page is ever copied out of the arena, or written to disk"
                           : "pages go to disk and come back a few at a time, and wait for it";
    snprintf(line, sizeof line,
             "realm %u (model %s): a page takes %llu bytes, \"host\" has %llu: %s; set \"host\" to "
             "at least %llu KiB, room for %llu pages",
             r->number, r->names.model, (unsigned long long)page_bytes,
             (unsigned long long)host_bytes, what,
             (unsigned long long)((page_bytes * batch + 1023) >> 10), (unsigned long long)batch);
    c->env.warn(c->env.context, line);
}

static kvt_status realm_new(core *c, const kvt_realm_req *req, char *why, size_t why_bytes,
                            realm **ret_realm) {
    realm *r = realm_place(c);
    if (!r) {
        snprintf(why, why_bytes, "%u realms hold pages, the most allowed; raise max_realms",
                 c->n_realms);
        return KVT_ELIMIT;
    }
    kvt_status status = kvt_wire_realm_decode(req->canonical, req->n_bytes, &r->names, &r->desc);
    if (status != KVT_OK)
        snprintf(why, why_bytes, "the realm's bytes are not canonical");
    if (status == KVT_OK)
        status = kvt_geometry_check(&r->desc.geometry, why, why_bytes);
    if (status == KVT_OK)
        status = realm_shapes(c, r, why, why_bytes);
    if (status == KVT_OK)
        status = realm_check(c, r, why, why_bytes);
    if (status == KVT_OK)
        status = radix_root_add(c->tree, r->page_tokens, r->n_ranks * r->n_groups, &r->root);
    if (status != KVT_OK)
        return status;
    memcpy(r->canonical, req->canonical, req->n_bytes);
    r->n_bytes = req->n_bytes;
    uint32_t slot = (uint32_t)(r - c->realms);
    r->number = r->last_number ? r->last_number + c->config.max_realms : slot + 1;
    r->last_number = r->number;
    r->was_flushed = 0;
    memset(r->arenas, 0, sizeof r->arenas);
    c->realm_of_root[r->root - c->config.max_pages] = r->number;
    c->n_realms++;
    realm_fits_host(c, r);
    *ret_realm = r;
    return KVT_OK;
}

kvt_status realm_open(core *c, const kvt_realm_req *req, char *why, size_t why_bytes,
                      realm **ret_realm) {
    realm *r = realm_find(c, req);
    if (!r)
        return realm_new(c, req, why, why_bytes, ret_realm);
    *ret_realm = r;
    return KVT_OK;
}

void serve_realm(core *c, request *rq) {
    kvt_realm_req req;
    realm *r;
    char why[384] = "";
    if (kvt_wire_get_realm_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    uint64_t hashes[KVT_MAX_GROUPS];
    kvt_status status = realm_open(c, &req, why, sizeof why, &r);
    if (status == KVT_OK && req.rank >= r->n_ranks) {
        refuse(c, rq, KVT_EINVAL, "rank %u of a realm of %u ranks", req.rank, r->n_ranks);
        return;
    }
    if (status == KVT_OK)
        status = rank_bind(c, rq->session, r, &req, why, sizeof why);
    if (status != KVT_OK) {
        refuse(c, rq, status, "%s", why[0] ? why : kvt_status_text(status));
        return;
    }
    for (uint32_t group = 0; group < r->n_groups; group++)
        hashes[group] = r->shapes[group].geometry_hash;
    const char *path = c->arenas[rq->session->arena - 1].path;
    kvt_realm_rep rep = {.realm = r->number,
                         .geometry_hash = kvt_wire_geometry_hash(r->n_groups, hashes),
                         .page_bytes = realm_page_bytes(r),
                         .arena_path = {path, (uint16_t)strlen(path)}};
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_realm_rep(&w, &rep);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}
