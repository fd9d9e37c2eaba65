/*
 * core_lease.c - leases: what they pin, what of their path is held, how they end.
 */
#include "daemon/core_state.h"

#include <string.h>

/* --- ids ---------------------------------------------------------------------------------------
 */

uint64_t lease_id(const core *c, const lease *l) {
    return (uint64_t)l->generation << 32 | (uint32_t)(l - c->leases + 1);
}

lease *lease_get(core *c, const session *s, uint64_t id) {
    uint32_t slot = (uint32_t)id;
    if (slot == 0 || slot > c->config.max_leases_total)
        return NULL;
    lease *l = &c->leases[slot - 1];
    if (l->generation != id >> 32 || l->session != session_slot(c, s) + 1)
        return NULL;
    return l;
}

lease *lease_new(core *c, session *s, uint32_t realm_slot, uint64_t number) {
    if (s->n_leases >= c->config.max_leases || c->n_free_leases == 0)
        return NULL;
    uint32_t slot = c->free_leases[--c->n_free_leases];
    lease *l = &c->leases[slot];
    uint32_t generation = l->generation + 1;
    *l = (lease){.generation = generation ? generation : 1,
                 .session = session_slot(c, s) + 1,
                 .next_of_session = s->first_lease,
                 .realm = realm_slot,
                 .number = number};
    if (s->first_lease)
        c->leases[s->first_lease - 1].prev_of_session = slot + 1;
    s->first_lease = slot + 1;
    s->n_leases++;
    return l;
}

void lease_free(core *c, lease *l) {
    session *s = &c->sessions[l->session - 1];
    uint32_t slot = (uint32_t)(l - c->leases);
    s->n_claimed -= l->n_claimed;
    if (l->tail != RADIX_NONE)
        lease_drop_path(c, l, l->tail, l->partial);
    if (l->prev_of_session)
        c->leases[l->prev_of_session - 1].next_of_session = l->next_of_session;
    else
        s->first_lease = l->next_of_session;
    if (l->next_of_session)
        c->leases[l->next_of_session - 1].prev_of_session = l->prev_of_session;
    s->n_leases--;
    l->session = NONE;
    c->free_leases[c->n_free_leases++] = slot;
}

/* --- the path ----------------------------------------------------------------------------------
 */

int is_held(const core *c, radix_node node) {
    return radix_depth(c->tree, node) == 0 || radix_is_held(c->tree, node);
}

uint32_t path_tokens(const core *c, radix_node node) {
    uint32_t depth = radix_depth(c->tree, node), n_tokens = 0;
    if (depth == 0)
        return 0;
    radix_tokens(c->tree, node, &n_tokens);
    return (depth - 1) * radix_page_tokens(c->tree, node) + n_tokens;
}

radix_node path_at(const core *c, radix_node tail, uint32_t depth) {
    radix_node node = tail;
    for (uint32_t at = radix_depth(c->tree, tail); at > depth; at--)
        node = radix_parent(c->tree, node);
    return node;
}

radix_node lease_held(const core *c, const lease *l) {
    radix_node node = l->tail;
    while (!is_held(c, node))
        node = radix_parent(c->tree, node);
    return node;
}

radix_node lease_ready(const core *c, const lease *l) {
    radix_node held = lease_held(c, l), ready = held;
    if (!c->tiers || c->tiers->n_absent == 0)
        return held;
    for (radix_node node = held; radix_depth(c->tree, node) > 0; node = radix_parent(c->tree, node))
        if (!is_resident(c, node))
            ready = radix_parent(c->tree, node);
    return ready;
}

static int partial_counts(const core *c, const lease *l, radix_node held) {
    return l->partial != RADIX_NONE && radix_parent(c->tree, l->partial) == held;
}

static int partial_ready(const core *c, const lease *l, radix_node ready) {
    return partial_counts(c, l, ready) && is_resident(c, l->partial);
}

uint32_t lease_stored_tokens(const core *c, const lease *l) {
    uint32_t n = path_tokens(c, l->tail);
    return partial_counts(c, l, l->tail) ? n + l->partial_tokens : n;
}

uint32_t lease_held_tokens(const core *c, const lease *l) {
    radix_node ready = lease_ready(c, l);
    uint32_t n = path_tokens(c, ready);
    return partial_ready(c, l, ready) ? n + l->partial_tokens : n;
}

/* --- who computes what -------------------------------------------------------------------------
 */

static uint32_t filler_name(const core *c, const lease *l) {
    return (uint32_t)(l - c->leases + 1);
}

uint32_t lease_computing_end(core *c, const lease *l) {
    /* The run of others' pages that starts at the first one that is not held: walking from the tail
     * up, the last such run that is met. */
    uint32_t end = 0, me = filler_name(c, l);
    for (radix_node node = l->tail; !is_held(c, node); node = radix_parent(c->tree, node)) {
        uint32_t filler = node_filler(c, node);
        if (filler == NONE || filler == me)
            end = 0;
        else if (end == 0)
            end = path_tokens(c, node);
    }
    return end;
}

int lease_take_over(core *c, lease *l) {
    int taken = 0;
    if (!l->claim)
        return 0;
    for (radix_node node = l->tail; !is_held(c, node); node = radix_parent(c->tree, node))
        if (node_filler(c, node) == NONE) {
            node_set_filler(c, node, filler_name(c, l));
            taken++;
        }
    if (taken)
        claim_promise(c, l);
    return taken;
}

uint32_t lease_disown(core *c, lease *l) {
    uint32_t n = 0, me = filler_name(c, l);
    for (radix_node node = l->tail; !is_held(c, node); node = radix_parent(c->tree, node))
        if (node_filler(c, node) == me) {
            node_set_filler(c, node, NONE);
            n++;
        }
    return n;
}

void lease_recount(core *c, lease *l) {
    session *s = &c->sessions[l->session - 1];
    uint32_t n = 0;
    if (l->claim)
        for (radix_node node = l->tail; !is_held(c, node); node = radix_parent(c->tree, node))
            n++;
    s->n_claimed = s->n_claimed - l->n_claimed + n;
    l->n_claimed = n;
}

/* A short page that a longer held one covers serves nobody any more. */
static void drop_covered(core *c, radix_node node) {
    uint32_t n_tokens, n_next;
    if (node == RADIX_NONE || radix_depth(c->tree, node) == 0 || radix_is_busy(c->tree, node))
        return;
    const uint32_t *tokens = radix_tokens(c->tree, node, &n_tokens);
    radix_node next = radix_next_sibling(c->tree, node);
    if (n_tokens == radix_page_tokens(c->tree, node) || next == RADIX_NONE ||
        !radix_is_held(c->tree, next) || radix_is_hidden(c->tree, next))
        return;
    const uint32_t *longer = radix_tokens(c->tree, next, &n_next);
    if (n_next > n_tokens && memcmp(tokens, longer, n_tokens * sizeof *tokens) == 0) {
        c->counts.pages_replaced++;
        node_discard(c, node);
    }
}

void lease_drop_path(core *c, lease *l, radix_node tail, radix_node partial) {
    uint32_t me = filler_name(c, l);
    radix_node node = tail;
    claim_end(c, l);
    radix_unpin(c->tree, tail);
    while (!is_held(c, node)) {
        radix_node parent = radix_parent(c->tree, node);
        if (radix_is_leaf(c->tree, node) && radix_pins(c->tree, node) == 0) {
            node_discard(c, node);
        } else if (node_filler(c, node) == me) {
            node_set_filler(c, node, NONE);
            c->wake = 1;
        }
        node = parent;
    }
    if (!flushed_let_go(c, node) && node == tail)
        drop_covered(c, tail);
    if (partial != RADIX_NONE) {
        radix_unpin(c->tree, partial);
        if (!flushed_let_go(c, partial))
            drop_covered(c, partial);
    }
}

/* --- replies -----------------------------------------------------------------------------------
 */

uint32_t lease_held_pages(const core *c, const lease *l) {
    radix_node ready = lease_ready(c, l);
    return radix_depth(c->tree, ready) + (partial_ready(c, l, ready) ? 1 : 0);
}

static void put_page(core *c, kvt_writer *w, radix_node node) {
    const page_entry *entry = node_entry(c, node, 0);
    KVT_ASSERT(entry && entry->frame != PAGE_NO_FRAME);
    kvt_wire_page page = {.offset = frames_offset(c->frames, entry->frame),
                          .generation = frames_generation(c->frames, entry->frame),
                          .frame = entry->frame,
                          .bytes = (uint32_t)frames_asked(c->frames, entry->frame),
                          .sealer = entry->sealer,
                          .rows = entry->rows};
    kvt_wire_put_page(w, &page);
}

void put_held_pages(core *c, kvt_writer *w, const lease *l, uint32_t first_page, uint32_t n_pages) {
    radix_node ready = lease_ready(c, l);
    uint32_t depth = radix_depth(c->tree, ready), n = 0;
    /* Walking up gives them in reverse. */
    for (radix_node node = ready; depth - n > first_page; node = radix_parent(c->tree, node))
        c->path[n++] = node;
    uint32_t put = 0;
    while (n > 0 && put < n_pages) {
        put_page(c, w, c->path[--n]);
        put++;
    }
    if (put < n_pages && partial_ready(c, l, ready))
        put_page(c, w, l->partial);
}

void reply_lease(core *c, core_ticket ticket, uint16_t op, uint64_t number, lease *l,
                 uint32_t first_page) {
    uint32_t held = lease_held_tokens(c, l), end = lease_computing_end(c, l);
    uint32_t lifted = lease_lifting_end(c, l);
    end = end > lifted ? end : lifted;
    uint32_t n_pages = lease_held_pages(c, l);
    uint32_t page_tokens = c->realms[l->realm].shapes[0].page_tokens;
    if (held > l->n_tokens)
        held = l->n_tokens;
    if (l->leave_one && l->n_tokens && held >= l->n_tokens) {
        held = l->n_tokens - 1;
        uint32_t cover = (held + page_tokens - 1) / page_tokens;
        n_pages = n_pages < cover ? n_pages : cover;
    }
    kvt_lease_rep rep = {.lease = lease_id(c, l),
                         .n_tokens = l->n_tokens,
                         .held_tokens = held,
                         .computing_tokens = end > held ? end - held : 0,
                         .claimed_tokens =
                             l->claim && !is_held(c, l->tail) ? path_tokens(c, l->tail) : 0,
                         .first_page = first_page,
                         .n_pages = n_pages > first_page ? n_pages - first_page : 0};
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_lease_rep(&w, &rep);
    put_held_pages(c, &w, l, first_page, rep.n_pages);
    reply_finish(c, ticket, op, number, &w);
}

/* --- requests ----------------------------------------------------------------------------------
 */

void serve_fork(core *c, request *rq) {
    kvt_fork_req req;
    if (kvt_wire_get_fork_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    lease *from = lease_get(c, rq->session, req.lease);
    if (!from) {
        refuse(c, rq, KVT_ENOENT, "no such lease of this session");
        return;
    }
    uint32_t stored = lease_stored_tokens(c, from);
    if (req.n_tokens > stored && req.n_tokens > from->n_tokens) {
        refuse(c, rq, KVT_EINVAL, "fork at token %u of a lease of %u", req.n_tokens,
               from->n_tokens);
        return;
    }
    lease *l = lease_new(c, rq->session, from->realm, rq->header.number);
    if (!l) {
        refuse(c, rq, KVT_ELIMIT, "%u leases are open; the most are %u a session, %u in all",
               rq->session->n_leases, c->config.max_leases, c->config.max_leases_total);
        return;
    }
    /* What of the first n tokens is held: whole pages, then the leading rows of the page there. */
    uint32_t page_tokens = c->realms[from->realm].shapes[0].page_tokens;
    uint32_t n = req.n_tokens, n_held = lease_held_tokens(c, from);
    n_held = n < n_held ? n : n_held;
    radix_node held = lease_ready(c, from);
    uint32_t full = n_held / page_tokens, rest = n_held % page_tokens;
    l->tail =
        path_at(c, held, full < radix_depth(c->tree, held) ? full : radix_depth(c->tree, held));
    if (rest) {
        radix_node at =
            radix_depth(c->tree, held) > full ? path_at(c, held, full + 1) : from->partial;
        l->partial = at;
        l->partial_tokens = rest;
        radix_pin(c->tree, at);
    }
    l->n_tokens = n;
    radix_pin(c->tree, l->tail);
    reply_lease(c, rq->ticket, rq->header.op, rq->header.number, l, 0);
}

void serve_release(core *c, request *rq) {
    kvt_release_req req;
    if (kvt_wire_get_release_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_u32(&w, req.n_leases);
    for (uint32_t i = 0; i < req.n_leases; i++) {
        lease *l = lease_get(c, rq->session, kvt_wire_get_u64(req.leases, i));
        if (l)
            lease_free(c, l);
        kvt_wire_put_u32(&w, l ? KVT_OK : KVT_ENOENT);
    }
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}

void serve_cancel(core *c, request *rq) {
    kvt_cancel_req req;
    if (kvt_wire_get_cancel_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    waiter_cancel(c, rq->session, req.number);
    for (uint32_t at = rq->session->first_lease; at;) {
        lease *l = &c->leases[at - 1];
        at = l->next_of_session;
        if (l->number == req.number)
            lease_free(c, l);
    }
    kvt_writer w;
    reply_start(c, &w);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}
