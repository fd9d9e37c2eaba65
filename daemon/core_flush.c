/*
 * core_flush.c - FLUSH: pages are forgotten, in every tier, at once.
 *
 *     root -+- [a] - [b] - [c]          flush a; b is leased
 *           '- (a) - (b)                c is gone; a is hidden (radix_hide), and b with it
 *
 * What nobody leases leaves the tree. What somebody leases cannot: it stays for him, hidden, where
 * no match finds it and its tokens are free for others, and leaves when the last lease lets it go
 * (node_unpin). So below a hidden page all are busy, always.
 */
#include "daemon/core_state.h"

#include <string.h>

/* --- what was flushed and is still held ---------------------------------------------------------
 */

/* Of what was flushed, the part next to the root: a prefix may be flushed, and then a shorter one.
 */
static radix_node flushed_top(const core *c, radix_node node) {
    radix_node top = RADIX_NONE;
    if (c->n_hidden == 0)
        return RADIX_NONE;
    for (; radix_depth(c->tree, node) > 0; node = radix_parent(c->tree, node))
        if (radix_is_hidden(c->tree, node))
            top = node;
    return top;
}

int is_flushed(const core *c, radix_node node) {
    return flushed_top(c, node) != RADIX_NONE;
}

int flushed_let_go(core *c, radix_node node) {
    radix_node top = flushed_top(c, node);
    if (top == RADIX_NONE)
        return 0;
    /* Until somebody else holds it, or something behind it. */
    while (radix_is_leaf(c->tree, node) && !radix_is_busy(c->tree, node)) {
        radix_node parent = radix_parent(c->tree, node);
        int last = node == top;
        node_discard(c, node);
        if (last)
            break;
        node = parent;
    }
    return 1;
}

void node_unpin(core *c, radix_node node) {
    radix_unpin(c->tree, node);
    flushed_let_go(c, node);
}

/* --- a subtree ----------------------------------------------------------------------------------
 */

static radix_node deepest_first(const core *c, radix_node node) {
    for (radix_node child; (child = radix_first_child(c->tree, node)) != RADIX_NONE;)
        node = child;
    return node;
}

/* One node of the subtree, when all behind it has been seen to. */
static void flush_node(core *c, radix_node node, kvt_flush_rep *rep) {
    int held = radix_is_held(c->tree, node);
    uint64_t n_bytes = held ? node_bytes(c, node) : 0, n_pages = held ? node_pages(c, node) : 0;
    if (radix_is_busy(c->tree, node)) {
        event_removed(c, node);
        tier_withdraw(c, node);
        rep->held_pages += n_pages;
        rep->held_bytes += n_bytes;
        return;
    }
    /* A view keeps the bytes alone, wherever the node is. */
    int viewed = 0;
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++)
        viewed |= page_is_viewed(c, node_page(c, node, slot));
    *(viewed ? &rep->held_pages : &rep->pages) += n_pages;
    *(viewed ? &rep->held_bytes : &rep->n_bytes) += n_bytes;
    node_discard(c, node);
}

static void flush_subtree(core *c, radix_node top, kvt_flush_rep *rep) {
    rep->pins += pins_end_below(c, top);
    for (radix_node node = deepest_first(c, top);;) {
        /* Where to go on must be known before the node is gone. */
        int last = node == top;
        radix_node next = last ? RADIX_NONE : radix_next_sibling(c->tree, node);
        radix_node parent = last ? RADIX_NONE : radix_parent(c->tree, node);
        int stays = radix_is_busy(c->tree, node);
        flush_node(c, node, rep);
        if (last) {
            if (stays && !radix_is_hidden(c->tree, top)) {
                radix_hide(c->tree, top);
                c->n_hidden++;
            }
            return;
        }
        node = next == RADIX_NONE ? parent : deepest_first(c, next);
    }
}

/*
 * The children of a node that begin with these tokens. Those that were flushed before and are still
 * held stand behind all others, as do those that this flush hides: so the old ones come first.
 */
static void flush_children(core *c, radix_node parent, const uint32_t *tokens, uint32_t n_tokens,
                           kvt_flush_rep *rep) {
    for (int hidden = 1; hidden >= 0; hidden--) {
        radix_node child = radix_first_child(c->tree, parent);
        while (child != RADIX_NONE) {
            uint32_t n;
            radix_node next = radix_next_sibling(c->tree, child);
            const uint32_t *begin = radix_tokens(c->tree, child, &n);
            if (!hidden && radix_is_hidden(c->tree, child))
                break;
            if (radix_is_hidden(c->tree, child) == hidden && n >= n_tokens &&
                (n_tokens == 0 || memcmp(begin, tokens, n_tokens * sizeof *tokens) == 0))
                flush_subtree(c, child, rep);
            child = next;
        }
    }
}

int is_on_disk_alone(const core *c, page_handle page) {
    const page_entry *entry = page_get(c->pages, page);
    const tier_page *at = tier_of(c, page);
    return entry->node != RADIX_NONE && entry_is_absent(entry) && at->host_frame == PAGE_NO_FRAME &&
           !(at->flags & TIER_BUSY);
}

/*
 * What lies on disk alone does not stay for those who lease it: they were told of none of it. Its
 * record, which could not be erased as long as it is all there is of the page, would be found after
 * a restart, and would keep the same tokens, sealed anew, from being written.
 */
static void let_go_on_disk(core *c) {
    for (uint32_t i = 0; c->tiers && c->n_hidden > 0 && i < c->tiers->max_pages; i++) {
        page_handle page = page_at(c->pages, i);
        if (page && is_on_disk_alone(c, page) && is_flushed(c, page_get(c->pages, page)->node))
            page_let_go(c, page);
    }
}

/* --- requests -----------------------------------------------------------------------------------
 */

/* While the disk is still being read, what is on it and was not found yet cannot be looked at: all
 * of the realm's (NULL: of everybody's) is forgotten. */
static void flush_unfound(core *c, realm *r) {
    if (!c->tiers || !c->tiers->found)
        return;
    if (r)
        r->was_flushed = 1;
    else
        c->tiers->was_flushed = 1;
}

void flush_from(core *c, realm *r, radix_node top) {
    kvt_flush_rep rep = {0};
    flush_unfound(c, r);
    flush_subtree(c, top, &rep);
    let_go_on_disk(c);
    c->wake = 1;
}

static void flush_realm(core *c, const realm *r, kvt_flush_rep *rep) {
    flush_children(c, r->root, NULL, 0, rep);
}

static void flush_prefix(core *c, const realm *r, const uint32_t *tokens, uint32_t n_tokens,
                         kvt_flush_rep *rep) {
    /* The page that holds the last token, and its siblings that begin like it. */
    uint32_t page_tokens = radix_page_tokens(c->tree, r->root);
    radix_node parent = r->root;
    for (; n_tokens > page_tokens; n_tokens -= page_tokens, tokens += page_tokens) {
        parent = radix_child_equal(c->tree, parent, tokens, page_tokens);
        if (parent == RADIX_NONE)
            return;
    }
    flush_children(c, parent, tokens, n_tokens, rep);
}

static void reply_flush(core *c, core_ticket ticket, uint64_t number, const kvt_flush_rep *rep) {
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_flush_rep(&w, rep);
    reply_finish(c, ticket, KVT_OP_FLUSH, number, &w);
}

/* Has every job ended that was under way, up to this one? */
static int jobs_have_ended(const tiers *t, uint64_t last_job) {
    for (uint32_t i = 0; i < TIER_JOBS; i++) {
        const core_job *job = &t->jobs[i], *f = t->free_jobs;
        while (f && f != job)
            f = f->next;
        if (!f && job->number <= last_job)
            return 0;
    }
    return 1;
}

/* What was flushed would be there again after a restart as long as the disk has a record of it. */
static int disk_has_forgotten(const core *c, held_flush *f) {
    const tiers *t = c->tiers;
    if (t->found || !jobs_have_ended(t, f->last_job) || !cooling_has_ended(c, f->last_job))
        return 0;
    if (!f->has_target) {
        f->has_target = 1;
        f->erase_target = t->n_erased + t->n_erase;
    }
    return t->n_erased >= f->erase_target;
}

uint64_t flushes_tick(core *c, uint64_t now_ms) {
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < MAX_FLUSHES && c->n_flushes; i++) {
        held_flush *f = &c->flushes[i];
        if (!f->used)
            continue;
        int done = disk_has_forgotten(c, f);
        if (done)
            reply_flush(c, f->ticket, f->number, &f->rep);
        else if (now_ms >= f->due_ms)
            reply_error(c, f->ticket, KVT_OP_FLUSH, f->number, KVT_EIO,
                        "nobody gets these pages any more, but the disk has not forgotten all of "
                        "them yet: a restart now could bring some back. Flush again");
        else if (f->due_ms < due)
            due = f->due_ms;
        if (done || now_ms >= f->due_ms) {
            f->used = 0;
            c->n_flushes--;
        }
    }
    return due;
}

/* Answers when nothing on disk could bring back what was flushed. */
static void flush_end(core *c, const request *rq, const kvt_flush_rep *rep) {
    enum { WAIT_MS = 4000 /* within a client's usual time */ };
    if (!c->tiers || !c->config.disk_bytes) {
        reply_flush(c, rq->ticket, rq->header.number, rep);
        return;
    }
    held_flush *f = c->flushes;
    while (f->used)
        f++; /* serve_flush has seen that one is free */
    uint64_t now_ms = c->env.now_ms(c->env.context);
    *f = (held_flush){.used = 1,
                      .ticket = rq->ticket,
                      .number = rq->header.number,
                      .rep = *rep,
                      .last_job = c->tiers->n_started,
                      .due_ms = now_ms + WAIT_MS};
    c->n_flushes++;
    flushes_tick(c, now_ms);
    tiers_pump(c);
}

void serve_flush(core *c, request *rq) {
    kvt_flush_req req;
    kvt_flush_rep rep = {0};
    kvt_status status = kvt_wire_get_flush_req(rq->body, rq->n_bytes, &req);
    if (status == KVT_ELIMIT) {
        refuse(c, rq, KVT_ELIMIT, "a path has at most %d tokens", KVT_MAX_REQUEST_TOKENS);
        return;
    }
    if (status != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    const realm *r = req.realm ? realm_get(c, req.realm) : NULL;
    if (req.realm && !r) {
        refuse(c, rq, KVT_ENOENT, "realm %u is not known (any more)", req.realm);
        return;
    }
    if (c->n_flushes == MAX_FLUSHES) {
        refuse(c, rq, KVT_EBUSY, "%u flushes wait for the disk; again later", c->n_flushes);
        return;
    }
    flush_unfound(c, r ? &c->realms[r - c->realms] : NULL);
    if (req.scope == KVT_WIRE_FLUSH_PREFIX) {
        kvt_wire_get_tokens(req.tokens, req.n_tokens, c->tokens);
        flush_prefix(c, r, c->tokens, req.n_tokens, &rep);
    } else {
        for (uint32_t i = 0; i < c->config.max_realms; i++)
            if (c->realms[i].number && (!r || r == &c->realms[i]))
                flush_realm(c, &c->realms[i], &rep);
    }
    let_go_on_disk(c);
    c->counts.flushes++;
    c->counts.pages_flushed += rep.pages;
    c->wake = 1;
    flush_end(c, rq, &rep);
}
