/*
 * core_pin.c - pins: prefixes that are kept for a while, leased by somebody or not.
 *
 *      root - [page] - [page: base] - [tail]      a pin of 2 pages and some rows: it pins `tail`,
 *                                                 and so all in front of it
 *
 * A pin belongs to an owner (uid and session name), not to a session: it outlives its maker. Its
 * pages cannot be evicted, so their bytes are bounded: each pin's, an owner's, and those of all. A
 * page under two pins counts in both.
 */
#include "daemon/core_state.h"

#include <string.h>

/* --- bytes --------------------------------------------------------------------------------------
 */

uint64_t node_bytes(const core *c, radix_node node) {
    uint64_t n_bytes = 0;
    uint32_t n_slots = radix_slots(c->tree, node);
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        const page_entry *entry = node_entry(c, node, slot);
        if (entry && entry->frame != PAGE_NO_FRAME)
            n_bytes += frame_asked(c, entry->frame);
        else if (entry && c->tiers)
            n_bytes += tier_of(c, node_page(c, node, slot))->bytes;
    }
    return n_bytes;
}

static uint64_t path_bytes(const core *c, radix_node tail) {
    uint64_t n_bytes = 0;
    for (radix_node node = tail; radix_depth(c->tree, node) > 0; node = radix_parent(c->tree, node))
        n_bytes += node_bytes(c, node);
    return n_bytes;
}

/* --- the table ----------------------------------------------------------------------------------
 */

static int same_owner(const pin *p, const session *s) {
    return p->uid == s->peer.uid && strcmp(p->owner, s->name) == 0;
}

static pin *pin_of_number(core *c, uint64_t number) {
    for (uint32_t i = 0; i < c->config.max_pins; i++)
        if (number && c->pins[i].number == number)
            return &c->pins[i];
    return NULL;
}

/* The owner's pin of this very place. */
static pin *pin_of_place(core *c, const session *s, radix_node tail, uint32_t n_tokens) {
    for (uint32_t i = 0; i < c->config.max_pins; i++) {
        pin *p = &c->pins[i];
        if (p->number && p->tail == tail && p->n_tokens == n_tokens && same_owner(p, s))
            return p;
    }
    return NULL;
}

static void pin_end(core *c, pin *p) {
    c->pinned_bytes -= p->n_bytes;
    c->n_pins--;
    p->number = 0;
    node_unpin(c, p->tail);
}

uint32_t pins_end_below(core *c, radix_node top) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->config.max_pins && c->n_pins; i++) {
        pin *p = &c->pins[i];
        if (p->number && is_below(c, p->tail, top)) {
            pin_end(c, p);
            n++;
        }
    }
    return n;
}

int pins_are_below(const core *c, radix_node top) {
    for (uint32_t i = 0; i < c->config.max_pins && c->n_pins; i++)
        if (c->pins[i].number && is_below(c, c->pins[i].tail, top))
            return 1;
    return 0;
}

uint64_t pins_tick(core *c, uint64_t now_ms) {
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < c->config.max_pins && c->n_pins; i++) {
        pin *p = &c->pins[i];
        if (!p->number || !p->ttl_ms)
            continue;
        if (now_ms >= p->end_ms) {
            c->counts.pins_expired++;
            pin_end(c, p);
        } else if (p->end_ms < due) {
            due = p->end_ms;
        }
    }
    return due;
}

/* --- hits ---------------------------------------------------------------------------------------
 */

/* c->path = the held nodes of the lease's path, by depth from 0 for the first page. */
static uint32_t load_held(core *c, const lease *l) {
    radix_node node = lease_held(c, l);
    uint32_t depth = radix_depth(c->tree, node);
    for (uint32_t at = depth; at > 0; at--) {
        c->path[at - 1] = node;
        node = radix_parent(c->tree, node);
    }
    return depth;
}

/* Does the lease hold all that the pin keeps? depth: of c->path. */
static int pin_is_hit(const core *c, const pin *p, const lease *l, uint32_t depth) {
    uint32_t page_tokens = radix_page_tokens(c->tree, p->tail), n;
    uint32_t full = p->n_tokens / page_tokens, rest = p->n_tokens % page_tokens;
    radix_node end = rest ? radix_parent(c->tree, p->tail) : p->tail;
    if (full > depth || (full > 0 && c->path[full - 1] != end))
        return 0;
    if (rest == 0)
        return 1;
    /* Another page may have the same leading rows. */
    radix_node at = depth > full ? c->path[full] : l->partial;
    if (at == RADIX_NONE || radix_parent(c->tree, at) != end ||
        (depth == full && l->partial_tokens < rest))
        return 0;
    return memcmp(radix_tokens(c->tree, at, &n), radix_tokens(c->tree, p->tail, &n),
                  rest * sizeof(uint32_t)) == 0;
}

void pins_hit(core *c, const lease *l) {
    uint32_t depth = UINT32_MAX;
    if (c->n_pins == 0)
        return;
    uint64_t now_ms = c->env.now_ms(c->env.context);
    for (uint32_t i = 0; i < c->config.max_pins; i++) {
        pin *p = &c->pins[i];
        if (!p->number || p->realm != l->realm)
            continue;
        if (depth == UINT32_MAX) /* only now, since most realms have no pins */
            depth = load_held(c, l);
        if (pin_is_hit(c, p, l, depth)) {
            p->hits++;
            p->end_ms = now_ms + p->ttl_ms;
            c->counts.pin_hits++;
        }
    }
}

/* --- requests -----------------------------------------------------------------------------------
 */

/* What is held of the path, and what it takes. */
typedef struct place {
    uint32_t realm; /* slot */
    radix_node tail;
    uint32_t n_tokens;
    uint64_t n_bytes;
} place;

/* The longest held prefix of c->tokens[0 .. n) that takes at most max_bytes. */
static place place_find(core *c, const realm *r, uint32_t n, uint64_t max_bytes) {
    radix_match m;
    radix_find(c->tree, r->root, c->tokens, n, &m);
    c->counts.find_visits += m.visits;
    place at = {.realm = (uint32_t)(r - c->realms), .tail = m.held};
    at.n_bytes = path_bytes(c, at.tail);
    while (at.n_bytes > max_bytes) {
        at.n_bytes -= node_bytes(c, at.tail);
        at.tail = radix_parent(c->tree, at.tail);
    }
    at.n_tokens = path_tokens(c, at.tail);
    if (at.tail == m.held && m.partial != RADIX_NONE &&
        node_bytes(c, m.partial) <= max_bytes - at.n_bytes) {
        at.tail = m.partial;
        at.n_tokens += m.partial_tokens;
        at.n_bytes += node_bytes(c, m.partial);
    }
    return at;
}

/* Answers and returns 0 if the pin (old: the one that it renews, or NULL) would go over a limit. */
static int place_fits(core *c, request *rq, const place *at, const pin *old) {
    const session *s = rq->session;
    uint64_t all = c->pinned_bytes - (old ? old->n_bytes : 0), own = 0;
    for (uint32_t i = 0; i < c->config.max_pins; i++)
        if (c->pins[i].number && &c->pins[i] != old && same_owner(&c->pins[i], s))
            own += c->pins[i].n_bytes;
    uint64_t limit = c->config.max_pinned_bytes, owner_limit = c->config.max_owner_pinned_bytes;
    if (at->n_bytes > limit - (all < limit ? all : limit)) {
        refuse(
            c, rq, KVT_ELIMIT,
            "it takes %llu bytes, and %llu are pinned of the %llu that tenant %s may pin; unpin, "
            "or raise max_pinned",
            (unsigned long long)at->n_bytes, (unsigned long long)all, (unsigned long long)limit,
            c->tenant);
        return 0;
    }
    if (at->n_bytes > owner_limit - (own < owner_limit ? own : owner_limit)) {
        refuse(c, rq, KVT_ELIMIT,
               "it takes %llu bytes, and uid %u as \"%s\" has pinned %llu of the %llu that one "
               "owner may; unpin, or raise max_pinned_owner",
               (unsigned long long)at->n_bytes, s->peer.uid, s->name, (unsigned long long)own,
               (unsigned long long)owner_limit);
        return 0;
    }
    return 1;
}

static pin *pin_new(core *c, const session *s, const place *at) {
    pin *p = c->pins;
    while (p->number)
        p++; /* the caller has seen that one is free */
    *p = (pin){.number = ++c->last_pin,
               .realm = at->realm,
               .tail = at->tail,
               .n_tokens = at->n_tokens,
               .uid = s->peer.uid};
    memcpy(p->owner, s->name, sizeof p->owner);
    radix_pin(c->tree, p->tail);
    c->n_pins++;
    return p;
}

void serve_pin(core *c, request *rq) {
    kvt_pin_req req;
    kvt_status status = kvt_wire_get_pin_req(rq->body, rq->n_bytes, &req);
    if (status == KVT_ELIMIT) {
        refuse(c, rq, KVT_ELIMIT, "a path has at most %d tokens", KVT_MAX_REQUEST_TOKENS);
        return;
    }
    if (status != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    const realm *r = realm_get(c, req.realm);
    if (!r) {
        refuse(c, rq, KVT_ENOENT, "realm %u is not known (any more)", req.realm);
        return;
    }
    kvt_wire_get_tokens(req.tokens, req.n_tokens, c->tokens);
    place at = place_find(c, r, req.n_tokens, req.max_bytes ? req.max_bytes : UINT64_MAX);
    if (at.n_tokens == 0) {
        refuse(c, rq, KVT_ENOENT, "nothing of these tokens is held%s",
               req.max_bytes ? " that takes so few bytes" : "");
        return;
    }
    pin *p = pin_of_place(c, rq->session, at.tail, at.n_tokens);
    if (!p && c->n_pins == c->config.max_pins) {
        refuse(c, rq, KVT_ELIMIT, "there are %u pins, the most allowed; unpin, or raise max_pins",
               c->n_pins);
        return;
    }
    if (!place_fits(c, rq, &at, p))
        return;
    if (!p)
        p = pin_new(c, rq->session, &at);
    c->pinned_bytes += at.n_bytes - p->n_bytes;
    p->n_bytes = at.n_bytes;
    p->max_bytes = req.max_bytes;
    p->ttl_ms = req.ttl_ms;
    p->end_ms = c->env.now_ms(c->env.context) + req.ttl_ms;
    kvt_pin_rep rep = {.pin = p->number, .n_tokens = p->n_tokens, .n_bytes = p->n_bytes};
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_pin_rep(&w, &rep);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}

void serve_unpin(core *c, request *rq) {
    kvt_unpin_req req;
    if (kvt_wire_get_unpin_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    pin *p = pin_of_number(c, req.pin);
    if (!p) {
        refuse(c, rq, KVT_ENOENT, "there is no pin %llu (any more)", (unsigned long long)req.pin);
        return;
    }
    pin_end(c, p);
    kvt_writer w;
    reply_start(c, &w);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}

int core_each_pin(const core *c, int (*visit)(void *context, const core_pin_info *pin),
                  void *context) {
    uint64_t now_ms = c->env.now_ms(c->env.context);
    for (uint32_t i = 0; i < c->config.max_pins && c->n_pins; i++) {
        const pin *p = &c->pins[i];
        if (!p->number)
            continue;
        core_pin_info info = {.pin = p->number,
                              .realm = c->realms[p->realm].number,
                              .uid = p->uid,
                              .owner = p->owner,
                              .n_tokens = p->n_tokens,
                              .n_bytes = p->n_bytes,
                              .max_bytes = p->max_bytes,
                              .ttl_ms = p->ttl_ms,
                              .left_ms = !p->ttl_ms || now_ms >= p->end_ms ? 0 : p->end_ms - now_ms,
                              .hits = p->hits};
        int stop = visit(context, &info);
        if (stop)
            return stop;
    }
    return 0;
}
