/*
 * core_group.c - ranks that ask together. Each process of a model that several serve sends its own
 * ACQUIRE with the same group and request number; the first of them fixes the answer for all: what
 * is held, what somebody else computes, what is theirs to compute. So they never disagree, whatever
 * is sealed, evicted or given up between the first and the last of them.
 *
 *     rank 0 --ACQUIRE (7, 1)--> the path is looked up; its answer is kept, an anchor pins it
 *     rank 2 --ACQUIRE (7, 1)--> the same path? the same answer
 *     rank 1 --ACQUIRE (7, 1)--> the same
 *     all release               the anchor goes
 *
 * The anchor is a lease of nobody's: it has the path's pins, and the pages of its windows for all
 * ranks, or those of its view. It goes when the last lease of the request is gone and all ranks
 * have come; a rank that never comes is waited for no longer than grace_ms after that.
 *
 * The group computes as one: its name stands in the pages that it fills. A rank that lets go before
 * its own part of them is sealed (it died, perhaps) gives them up for all, since without its part
 * they never become held; whoever waits for them is told.
 */
#include "daemon/core_state.h"

#include <string.h>

static uint32_t entry_name(const core *c, const group_entry *g) {
    return c->config.max_leases_total + (uint32_t)(g - c->groups) + 1;
}

const lease *filler_of_name(const core *c, uint32_t name) {
    return name <= c->config.max_leases_total
               ? &c->leases[name - 1]
               : &c->groups[name - c->config.max_leases_total - 1].anchor;
}

static group_entry *group_find(core *c, uint32_t realm_slot, const kvt_acquire_req *req) {
    for (uint32_t i = 0; i < c->max_groups; i++) {
        group_entry *g = &c->groups[i];
        if (g->group == req->group && g->request == req->request && g->anchor.realm == realm_slot)
            return g;
    }
    return NULL;
}

static group_entry *group_place(core *c) {
    for (uint32_t i = 0; i < c->max_groups && c->n_groups < c->max_groups; i++)
        if (!c->groups[i].group)
            return &c->groups[i];
    return NULL;
}

/* Do these tokens lead along the anchor's path, as far as that is known? */
static int same_path(const core *c, const lease *anchor, radix_node from, const uint32_t *tokens,
                     uint32_t n_tokens) {
    uint32_t depth = radix_depth(c->tree, from), n, at;
    radix_node node = anchor->tail;
    uint32_t before = path_tokens(c, from);
    if (depth > radix_depth(c->tree, node) || path_at(c, node, depth) != from ||
        before + n_tokens != anchor->n_tokens)
        return 0;
    if (anchor->partial != RADIX_NONE) {
        const uint32_t *label = radix_tokens(c->tree, anchor->partial, &n);
        at = path_tokens(c, radix_parent(c->tree, anchor->partial));
        for (uint32_t i = 0; i < anchor->partial_tokens && at + i >= before; i++)
            if (at + i - before >= n_tokens || label[i] != tokens[at + i - before])
                return 0;
    }
    for (; node != from; node = radix_parent(c->tree, node)) {
        const uint32_t *label = radix_tokens(c->tree, node, &n);
        at = path_tokens(c, radix_parent(c->tree, node)) - before;
        if (at + n > n_tokens || memcmp(label, tokens + at, n * sizeof *label) != 0)
            return 0;
    }
    return 1;
}

int group_check(core *c, request *rq, const kvt_acquire_req *req, uint32_t realm_slot,
                uint32_t rank, radix_node from, uint32_t n_tokens, group_entry **ret_entry) {
    const realm *r = &c->realms[realm_slot];
    int is_view = (req->flags & KVT_ACQUIRE_VIEW) != 0;
    *ret_entry = NULL;
    if (!req->group) {
        if (r->n_ranks == 1 || !(req->flags & KVT_ACQUIRE_CLAIM))
            return 1;
        /* Each for itself would compute other pages than the others, and wait for them. */
        refuse(c, rq, KVT_EINVAL, "%u ranks claim together: the request needs a group", r->n_ranks);
        return 0;
    }
    if (req->flags & KVT_ACQUIRE_SPANS) {
        refuse(c, rq, KVT_ENOTSUP, "a request of ranks has no spans");
        return 0;
    }
    group_entry *g = group_find(c, realm_slot, req);
    if (!g && !group_place(c)) {
        refuse(c, rq, KVT_ELIMIT, "%u requests of groups are open, the most allowed", c->n_groups);
        return 0;
    }
    if (g && g->joined >> rank & 1) {
        refuse(c, rq, KVT_EEXIST, "rank %u has asked for request %llu of its group already", rank,
               (unsigned long long)req->request);
        return 0;
    }
    if (g && !same_path(c, &g->anchor, from, c->asked, n_tokens)) {
        refuse(c, rq, KVT_EINVAL, "request %llu of the group was for another path",
               (unsigned long long)req->request);
        return 0;
    }
    if (g && (g->anchor.is_view != is_view || (is_view && !view_is_same(&g->anchor, req)))) {
        refuse(c, rq, KVT_EINVAL, "request %llu of the group was for another view of the path",
               (unsigned long long)req->request);
        return 0;
    }
    *ret_entry = g;
    return 1;
}

/* The lease gets the path that the first of the group got. */
void group_follow(core *c, lease *l, const group_entry *g) {
    l->tail = g->anchor.tail;
    l->partial = g->anchor.partial;
    l->partial_tokens = g->anchor.partial_tokens;
    l->claim = g->anchor.claim;
    radix_pin(c->tree, l->tail);
    if (l->partial != RADIX_NONE)
        radix_pin(c->tree, l->partial);
}

void group_enter(core *c, lease *l, const kvt_acquire_req *req, group_entry *g) {
    if (!g) {
        g = group_place(c);
        *g = (group_entry){.group = req->group,
                           .request = req->request,
                           .anchor = {.realm = l->realm,
                                      .rank = ALL_RANKS,
                                      .tail = l->tail,
                                      .partial = l->partial,
                                      .partial_tokens = l->partial_tokens,
                                      .n_tokens = l->n_tokens,
                                      .claim = l->claim,
                                      .name = entry_name(c, g)}};
        radix_pin(c->tree, l->tail);
        if (l->partial != RADIX_NONE)
            radix_pin(c->tree, l->partial);
        c->n_groups++;
    }
    g->joined |= UINT64_C(1) << l->rank;
    g->n_leases++;
    l->group = (uint32_t)(g - c->groups) + 1;
    l->name = g->anchor.name;
}

static void group_end(core *c, group_entry *g) {
    lease *anchor = &g->anchor;
    lease_tell(c, anchor, &(held_prefix){0});
    view_drop(c, anchor);
    lease_drop_path(c, anchor, anchor->tail, anchor->partial);
    g->group = 0;
    c->n_groups--;
    c->wake = 1;
}

static uint64_t all_ranks(const core *c, const lease *l) {
    uint32_t n = c->realms[l->realm].n_ranks;
    return n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

int group_is_whole(core *c, const lease *l, int at_once) {
    group_entry *g = &c->groups[l->group - 1];
    if (at_once)
        g->joined = all_ranks(c, l);
    return g->joined == all_ranks(c, l);
}

void group_leave(core *c, lease *l, uint32_t of) {
    if (!of)
        return;
    group_entry *g = &c->groups[of - 1];
    g->n_leases--;
    g->end_ms = c->env.now_ms(c->env.context) + c->config.grace_ms;
    if (g->n_leases == 0 && g->joined == all_ranks(c, l))
        group_end(c, g);
}

uint64_t groups_tick(core *c, uint64_t now_ms) {
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < c->max_groups && c->n_groups; i++) {
        group_entry *g = &c->groups[i];
        if (!g->group || g->n_leases)
            continue;
        if (now_ms >= g->end_ms)
            group_end(c, g);
        else if (g->end_ms < due)
            due = g->end_ms;
    }
    return due;
}

/* The answer of the first becomes that of all; *h is what it says is held. */
void group_answer(core *c, const lease *l, kvt_lease_rep *rep, held_prefix *h) {
    group_entry *g = &c->groups[l->group - 1];
    if (!g->answered) {
        g->answered = 1;
        g->held_tokens = rep->held_tokens;
        g->computing_tokens = rep->computing_tokens;
        g->claimed_tokens = rep->claimed_tokens;
        lease_tell(c, &g->anchor, h);
        return;
    }
    *h = lease_look(c, l, g->held_tokens);
    KVT_ASSERT(h->tokens == g->held_tokens); /* the anchor keeps it */
    rep->held_tokens = g->held_tokens;
    rep->computing_tokens = g->computing_tokens;
    rep->claimed_tokens = g->claimed_tokens;
}
