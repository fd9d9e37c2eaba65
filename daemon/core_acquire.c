/*
 * core_acquire.c - ACQUIRE: the longest held prefix, and a claim on what is missing.
 *
 * Claiming puts the missing pages into the tree at once, unsealed: so the next worker that asks for
 * them meets them there and is told that somebody computes them. It may claim them as well (whoever
 * seals first wins); the one who came first is their filler until it lets go.
 */
#include "daemon/core_state.h"

/* Where the new path starts, and the tokens behind that: c->asked. */
typedef struct start {
    uint32_t realm; /* slot */
    radix_node from;
    uint32_t n_tokens;
    uint32_t before; /* tokens in front of `from` */
    radix_node kept; /* the base's own page behind `from` whose first tokens are kept, or NONE */
    uint32_t kept_tokens;
} start;

/* A long prompt is not copied where it can be read in place. (Spans write into it.) */
static void take_tokens(core *c, const kvt_acquire_req *req) {
    const void *at = req->tokens;
    if (req->n_spans == 0 && req->n_tokens > 0 && (uintptr_t)at % sizeof *c->asked == 0) {
        c->asked = at;
        return;
    }
    kvt_wire_get_tokens(req->tokens, req->n_tokens, c->tokens);
    c->asked = c->tokens;
}

static int start_at_root(core *c, request *rq, const kvt_acquire_req *req, start *ret) {
    realm *r = realm_get(c, req->realm);
    if (!r) {
        refuse(c, rq, KVT_ENOENT, "realm %u is not known (any more); register it", req->realm);
        return 0;
    }
    if (req->rank >= r->n_ranks) {
        refuse(c, rq, KVT_EINVAL, "rank %u of a realm of %u ranks", req->rank, r->n_ranks);
        return 0;
    }
    if (!rank_is_near(c, rq->session, r, req->rank)) {
        refuse(c, rq, KVT_ENOENT,
               "the pages of rank %u are not in the arena that this session reads (any more); "
               "register the realm",
               req->rank);
        return 0;
    }
    take_tokens(c, req);
    *ret = (start){.realm = (uint32_t)(r - c->realms), .from = r->root, .n_tokens = req->n_tokens};
    return 1;
}

/* Keeps whole pages of the base's path; the tokens of a page that is kept in part come in front of
 * the new ones. */
static int start_at_lease(core *c, request *rq, const kvt_acquire_req *req, lease *base,
                          start *ret) {
    uint32_t stored = lease_stored_tokens(c, base);
    uint32_t page_tokens = c->realms[base->realm].page_tokens;
    if (base->is_view) {
        refuse(c, rq, KVT_EINVAL, "the base is a view, which nothing goes on from");
        return 0;
    }
    if (req->keep_tokens > stored) {
        refuse(c, rq, KVT_EINVAL, "keep_tokens %u is over the %u that the lease holds or claims",
               req->keep_tokens, stored);
        return 0;
    }
    uint32_t full = req->keep_tokens / page_tokens, rest = req->keep_tokens % page_tokens;
    radix_node at = RADIX_NONE;
    if (rest) {
        uint32_t n;
        at = radix_depth(c->tree, base->tail) > full ? path_at(c, base->tail, full + 1)
                                                     : base->partial;
        const uint32_t *tokens = radix_tokens(c->tree, at, &n);
        KVT_ASSERT(rest <= n);
        for (uint32_t i = 0; i < rest; i++)
            c->tokens[i] = tokens[i];
    }
    kvt_wire_get_tokens(req->tokens, req->n_tokens, c->tokens + rest);
    c->asked = c->tokens;
    *ret = (start){.realm = base->realm,
                   .from = path_at(c, base->tail, full),
                   .n_tokens = rest + req->n_tokens,
                   .before = full * page_tokens,
                   .kept = at,
                   .kept_tokens = rest};
    return 1;
}

/* Puts the missing pages behind `cur`, which is pinned; the pin moves along. Ends early when there
 * is no room or the session claims too much; returns the last node. */
static radix_node claim_pages(core *c, const session *s, radix_node cur, const uint32_t *tokens,
                              uint32_t n_tokens, uint64_t page_bytes) {
    uint32_t page_tokens = radix_page_tokens(c->tree, cur), n_claimed = s->n_claimed;
    for (uint32_t at = 0; at < n_tokens; at += page_tokens) {
        uint32_t n = n_tokens - at < page_tokens ? n_tokens - at : page_tokens;
        radix_node node;
        if (n_claimed >= c->config.max_claimed_pages)
            break;
        kvt_status status = node_alloc(c, cur, tokens + at, n, page_bytes, &node);
        if (status != KVT_OK && status != KVT_EEXIST)
            break;
        if (status == KVT_OK)
            node_mark(c, node);
        else if (!node_has_mark(c, node))
            break; /* the place is taken by other contents, as one in 2^32 may be */
        n_claimed++;
        /* A page is pinned as soon as it is there: making room for the next must not take it. */
        radix_pin(c->tree, node);
        radix_unpin(c->tree, cur);
        cur = node;
    }
    return cur;
}

/* The base was flushed: the lease goes on to hold what it held of the path, and gets and claims
 * nothing more. */
static void lease_keep_flushed(core *c, lease *l, const start *at) {
    l->tail = at->from;
    while (!is_held(c, l->tail))
        l->tail = radix_parent(c->tree, l->tail);
    l->claim = 0;
    l->partial = RADIX_NONE;
    l->partial_tokens = 0;
    radix_pin(c->tree, l->tail);
    if (l->tail == at->from && at->kept != RADIX_NONE && is_held(c, at->kept)) {
        l->partial = at->kept;
        l->partial_tokens = at->kept_tokens;
        radix_pin(c->tree, l->partial);
    }
}

/* Is any of it, be it the page that is kept in part? */
static int keeps_flushed(const core *c, const start *at) {
    return is_flushed(c, at->from) || (at->kept_tokens > 0 && is_flushed(c, at->kept));
}

/* Sets the lease's path, with its pins. */
static void lease_set_path(core *c, session *s, lease *l, const start *at, int claim) {
    if (keeps_flushed(c, at)) {
        lease_keep_flushed(c, l, at);
        return;
    }
    radix_match m;
    radix_find(c->tree, at->from, c->asked, at->n_tokens, &m);
    c->counts.find_visits += m.visits;
    spans_check_match(c, at->from, &m);
    uint32_t page_tokens = radix_page_tokens(c->tree, at->from);
    int held = is_held(c, at->from) && m.held == m.node;
    l->partial = RADIX_NONE;
    l->partial_tokens = 0;
    l->tail = claim || held ? m.node : m.held;
    if (!claim)
        while (!is_held(c, l->tail))
            l->tail = radix_parent(c->tree, l->tail);
    radix_pin(c->tree, l->tail);
    if (m.partial != RADIX_NONE && m.partial_tokens && is_held(c, at->from)) {
        l->partial = m.partial;
        l->partial_tokens = m.partial_tokens;
        radix_pin(c->tree, l->partial);
    }
    uint32_t matched = m.n_pages * page_tokens;
    int missing = matched < at->n_tokens &&
                  !(held && m.partial != RADIX_NONE && matched + m.partial_tokens == at->n_tokens);
    l->claim = (uint8_t)claim;
    if (claim && missing)
        l->tail = claim_pages(c, s, l->tail, c->asked + matched, at->n_tokens - matched,
                              realm_page_bytes(&c->realms[l->realm]));
}

/* The first n_again pages the lease had before. */
static void touch(core *c, const lease *l, uint32_t n_again) {
    policy_tree_use(c->policy, c->tree, l->tail, n_again, path_tokens(c, l->tail) >= l->n_tokens);
    if (l->partial != RADIX_NONE)
        radix_set_key(c->tree, l->partial, policy_use(c->policy, l->partial, 0));
}

static void count_acquire(core *c, const lease *l) {
    uint32_t n_asked = l->n_asked, n_before = l->n_tokens - l->n_asked;
    uint32_t held = lease_held_tokens(c, l);
    uint32_t served = held > n_before ? held - n_before : 0;
    served = served < n_asked ? served : n_asked;
    c->counts.acquires++;
    c->counts.tokens_asked += n_asked;
    c->counts.tokens_served += served;
    c->counts.full_hits += n_asked > 0 && served == n_asked;
    c->counts.misses += n_asked > 0 && served == 0;
    c->counts.partial_hits += l->partial != RADIX_NONE;
}

void reply_acquire(core *c, core_ticket ticket, uint64_t number, lease *l, uint32_t first_page) {
    /* A page that did not come up is missing now: somebody computes it. */
    lease_take_over(c, l);
    lease_recount(c, l);
    lease_count_tiers(c, l);
    count_acquire(c, l);
    reply_lease(c, ticket, KVT_OP_ACQUIRE, number, l, first_page);
}

void serve_acquire(core *c, request *rq) {
    kvt_acquire_req req;
    kvt_status status = kvt_wire_get_acquire_req(rq->body, rq->n_bytes, &req);
    if (status == KVT_ELIMIT ||
        (status == KVT_OK && req.base && req.keep_tokens > KVT_MAX_REQUEST_TOKENS - req.n_tokens)) {
        refuse(c, rq, KVT_ELIMIT, "a path has at most %d tokens", KVT_MAX_REQUEST_TOKENS);
        return;
    }
    if (status != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    if (req.flags & KVT_ACQUIRE_VIEW && !view_check(c, rq, &req))
        return;
    session *s = rq->session;
    lease *l = req.base ? lease_get(c, s, req.base) : NULL;
    if (req.base && !l) {
        refuse(c, rq, KVT_ENOENT, "no such lease of this session");
        return;
    }
    start at = {0};
    if (!(l ? start_at_lease(c, rq, &req, l, &at) : start_at_root(c, rq, &req, &at)))
        return;
    const realm *r = &c->realms[at.realm];
    if (at.before + at.n_tokens > r->max_tokens) {
        refuse(c, rq, KVT_ELIMIT, "a path of %u layer groups has at most %u tokens", r->n_groups,
               r->max_tokens);
        return;
    }
    if (!spans_take(c, &req, at.before, at.n_tokens, at.kept_tokens)) {
        refuse(
            c, rq, KVT_EINVAL,
            "spans must rise, not overlap, and lie in the path from the page on in which the new "
            "tokens begin");
        return;
    }
    if (req.flags & KVT_ACQUIRE_CLAIM && !c->draining)
        forget_out_of_reach(c, r, at.from, at.n_tokens);
    group_entry *g;
    if (!group_check(c, rq, &req, at.realm, l ? l->rank : req.rank, at.from, at.n_tokens, &g))
        return;
    if (!l)
        l = lease_new(c, s, at.realm, rq->header.number);
    if (!l) {
        refuse(c, rq, KVT_ELIMIT, "%u leases are open; the most are %u a session, %u in all",
               s->n_leases, c->config.max_leases, c->config.max_leases_total);
        return;
    }
    if (!req.base)
        l->rank = req.rank;
    claim_end(c, l); /* while its path changes, nothing of it goes to make room */
    l->is_cut = 0;
    radix_node old_tail = l->tail, old_partial = l->partial;
    uint32_t n_again = radix_depth(c->tree, at.from);
    lease_tell(c, l, &(held_prefix){0});
    int claim = (req.flags & KVT_ACQUIRE_CLAIM) && !c->draining;
    l->leave_one = (req.flags & KVT_ACQUIRE_LEAVE_ONE) != 0;
    l->n_tokens = at.before + at.n_tokens;
    if (g)
        group_follow(c, l, g);
    else
        lease_set_path(c, s, l, &at, claim);
    /* The old path is let go after the new one is pinned, so that what they share stays. */
    if (old_tail != RADIX_NONE)
        lease_drop_path(c, l, old_tail, old_partial);
    uint32_t old_group = l->group;
    l->group = NONE;
    l->name = (uint32_t)(l - c->leases) + 1;
    if (req.group)
        group_enter(c, l, &req, g);
    group_leave(c, l, old_group);
    /* Who comes behind somebody else has as long as he: else nobody would end what both leave. */
    if (lease_take_over(c, l) == 0 && l->claim && !is_held(c, l->tail))
        claim_promise(c, l);
    lease_recount(c, l);
    pins_hit(c, l);
    l->n_asked = req.n_tokens;
    if (!(req.flags & KVT_ACQUIRE_VIEW)) {
        touch(c, l, n_again);
    } else if (view_take(c, l, &req) != KVT_OK) {
        lease_free(c, l);
        refuse(c, rq, KVT_ELIMIT, "views name %u pages already, and can name %u in all",
               c->n_view_pages, c->config.max_pages);
        return;
    }
    lease_note_tiers(c, l);
    if (!c->draining && promote_lease(c, l) &&
        waiter_add(c, rq, lease_id(c, l), 0, req.first_page, c->config.promote_wait_ms))
        return;
    reply_acquire(c, rq->ticket, rq->header.number, l, req.first_page);
}
