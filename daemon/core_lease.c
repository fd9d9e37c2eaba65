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
                 .name = slot + 1,
                 .number = number,
                 .asked_at = c->tiers ? c->tiers->moves : 0};
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
    lease_tell(c, l, &(held_prefix){0});
    view_drop(c, l);
    if (l->tail != RADIX_NONE)
        lease_drop_path(c, l, l->tail, l->partial);
    group_leave(c, l, l->group);
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

int is_below(const core *c, radix_node node, radix_node top) {
    return path_at(c, node, radix_depth(c->tree, top)) == top;
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
        if (!node_is_ready(c, &c->realms[l->realm], node))
            ready = radix_parent(c->tree, node);
    return ready;
}

static int partial_counts(const core *c, const lease *l, radix_node held) {
    return l->partial != RADIX_NONE && radix_parent(c->tree, l->partial) == held;
}

uint32_t lease_stored_tokens(const core *c, const lease *l) {
    uint32_t n = path_tokens(c, l->tail);
    return partial_counts(c, l, l->tail) ? n + l->partial_tokens : n;
}

/* The path as far as `node`, and the leading rows of the partial page. */
static held_prefix look_at(const core *c, const lease *l, radix_node node, int in_arena,
                           uint32_t most) {
    const realm *r = &c->realms[l->realm];
    radix_node partial = l->partial;
    if (partial != RADIX_NONE && in_arena && !node_is_ready(c, r, partial))
        partial = RADIX_NONE;
    radix_node behind =
        partial != RADIX_NONE && radix_parent(c->tree, partial) == node ? partial : RADIX_NONE;
    held_prefix h = path_held(c, r, node, behind, l->partial_tokens, most, in_arena);
    if (!r->max_window || partial == RADIX_NONE || behind != RADIX_NONE)
        return h;
    /* The path has grown past where it read the leading rows of another page: which still counts if
     * the path's own pages lack what has passed out of a window. */
    radix_node front = radix_parent(c->tree, partial);
    if (radix_depth(c->tree, front) > radix_depth(c->tree, node))
        return h;
    held_prefix other = path_held(c, r, front, partial, l->partial_tokens, most, in_arena);
    return other.tokens > h.tokens ? other : h;
}

held_prefix lease_look(const core *c, const lease *l, uint32_t most) {
    return look_at(c, l, lease_ready(c, l), 1, most);
}

held_prefix lease_whole(const core *c, const lease *l, uint32_t most) {
    return look_at(c, l, lease_held(c, l), 0, most);
}

uint32_t lease_most(const lease *l) {
    return l->leave_one && l->n_tokens ? l->n_tokens - 1 : l->n_tokens;
}

static uint32_t lease_whole_tokens(const core *c, const lease *l) {
    return lease_whole(c, l, UINT32_MAX).tokens;
}

uint32_t lease_held_tokens(const core *c, const lease *l) {
    if (l->is_view)
        return view_of(c, l)->view_tokens;
    return lease_look(c, l, UINT32_MAX).tokens;
}

/* --- who computes what -------------------------------------------------------------------------
 */

static uint32_t filler_name(const core *c, const lease *l) {
    (void)c;
    return l->name;
}

/* Has the lease's rank done its part of the page, which its group fills? */
static int own_part_done(const core *c, const lease *l, radix_node node) {
    return l->group && !c->groups[l->group - 1].broken &&
           node_rank_is_sealed(c, &c->realms[l->realm], node, l->rank);
}

uint32_t lease_computing_end(core *c, const lease *l) {
    /* The run of others' pages that starts at the first one that is not held: walking from the tail
     * up, the last such run that is met. */
    uint32_t end = 0, me = filler_name(c, l);
    /* Nobody, if what comes next has passed out of a window: it is for whoever needs it. */
    if (lease_whole_tokens(c, l) < path_tokens(c, lease_held(c, l)))
        return 0;
    for (radix_node node = l->tail; !is_held(c, node); node = radix_parent(c->tree, node)) {
        uint32_t filler = node_filler(c, node);
        if (filler == NONE || (filler == me && !own_part_done(c, l, node)))
            end = 0;
        else if (end == 0)
            end = path_tokens(c, node);
    }
    return end;
}

int lease_take_over(core *c, lease *l) {
    int taken = 0;
    if (!l->claim || (l->group && c->groups[l->group - 1].broken))
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
        !radix_is_held(c->tree, next) || radix_is_hidden(c->tree, next) ||
        !nodes_marked_alike(c, node, next))
        return;
    const uint32_t *longer = radix_tokens(c->tree, next, &n_next);
    if (n_next > n_tokens && memcmp(tokens, longer, n_tokens * sizeof *tokens) == 0) {
        c->counts.pages_replaced++;
        importance_leave(c, node, next);
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
        } else if (node_filler(c, node) == me && !own_part_done(c, l, node)) {
            node_set_filler(c, node, NONE);
            c->wake = 1;
            if (l->group)
                c->groups[l->group - 1].broken = 1;
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

void write_page(core *c, kvt_writer *w, const lease *l, page_handle handle) {
    const page_entry *entry = page_get(c->pages, handle);
    KVT_ASSERT(entry && entry->frame != PAGE_NO_FRAME);
    const session *s = &c->sessions[l->session - 1];
    kvt_wire_page page = {.sealer = entry->sealer,
                          .rows = entry->rows,
                          .tier = (uint8_t)lease_page_tier(c, l, handle)};
    KVT_ASSERT(c->config.n_arenas == 1 || s->arena == frame_arena(c, entry->frame) + 1);
    frame_to_wire(c, entry->frame, &page);
    kvt_wire_put_page(w, &page);
}

uint32_t make_lists(const core *c, const lease *l, const held_prefix *h, uint32_t first_page,
                    kvt_page_list *lists) {
    const realm *r = &c->realms[l->realm];
    for (uint32_t group = 0; group < r->n_groups; group++) {
        uint32_t window = r->windows[group];
        uint32_t first =
            window ? kvt_wire_window_first(h->tokens, window) / r->page_tokens : first_page;
        lists[group] = (kvt_page_list){.first_page = first,
                                       .n_pages = h->pages > first ? h->pages - first : 0};
    }
    return r->n_groups;
}

void put_list_pages(core *c, kvt_writer *w, const lease *l, const held_prefix *h,
                    const kvt_page_list *lists) {
    const realm *r = &c->realms[l->realm];
    uint32_t first = h->pages;
    for (uint32_t group = 0; group < r->n_groups; group++)
        if (lists[group].n_pages && lists[group].first_page < first)
            first = lists[group].first_page;
    radix_node node = h->last;
    for (uint32_t page = h->pages; page > first; page--) {
        c->path[page - 1 - first] = node;
        node = radix_parent(c->tree, node);
    }
    for (uint32_t group = 0; group < r->n_groups; group++)
        for (uint32_t i = 0; i < lists[group].n_pages; i++)
            write_page(c, w, l,
                       node_page(c, c->path[lists[group].first_page + i - first],
                                 slot_of(r, l->rank, group)));
}

void reply_lease(core *c, core_ticket ticket, uint16_t op, uint64_t number, lease *l,
                 uint32_t first_page) {
    if (l->is_view) {
        reply_view(c, ticket, op, number, l);
        return;
    }
    held_prefix h = lease_look(c, l, lease_most(l));
    uint32_t end = lease_computing_end(c, l), stored = path_tokens(c, l->tail);
    uint32_t lifted = lease_lifting_end(c, l);
    end = end > lifted ? end : lifted;
    int missing = !is_held(c, l->tail) || lease_whole_tokens(c, l) < stored;
    kvt_lease_rep rep = {.lease = lease_id(c, l),
                         .n_tokens = l->n_tokens,
                         .held_tokens = h.tokens,
                         .computing_tokens = end > h.tokens ? end - h.tokens : 0,
                         .claimed_tokens = l->claim && missing ? stored : 0};
    if (l->group && op == KVT_OP_ACQUIRE)
        group_answer(c, l, &rep, &h);
    rep.n_lists = make_lists(c, l, &h, first_page, rep.lists);
    lease_tell(c, l, &h);
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_lease_rep(&w, &rep);
    put_list_pages(c, &w, l, &h, rep.lists);
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
    if (from->is_view) {
        refuse(c, rq, KVT_EINVAL, "the lease is a view: acquire another one");
        return;
    }
    uint32_t stored = lease_stored_tokens(c, from);
    if (req.n_tokens > stored && req.n_tokens > from->n_tokens) {
        refuse(c, rq, KVT_EINVAL, "fork at token %u of a lease of %u", req.n_tokens,
               from->n_tokens);
        return;
    }
    lease *l = lease_new(c, rq->session, from->realm, rq->header.number);
    if (l)
        l->rank = from->rank;
    if (!l) {
        refuse(c, rq, KVT_ELIMIT, "%u leases are open; the most are %u a session, %u in all",
               rq->session->n_leases, c->config.max_leases, c->config.max_leases_total);
        return;
    }
    /* What of the first n tokens is held: whole pages, then the leading rows of the page there. */
    uint32_t page_tokens = c->realms[from->realm].page_tokens;
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
