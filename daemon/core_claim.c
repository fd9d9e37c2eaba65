/*
 * core_claim.c - claims expire, leases do not. Who computes pages has promised to seal one within
 * claim_ms of the last. When he has not, they are anybody's: the first who waits for them takes
 * over (core_wait.c), or the next who asks. He himself may seal them all the same.
 *
 *     oldest promise ---> lease <-> lease <-> lease <--- newest       all wait equally long, so the
 *                                                                     first to end is the oldest
 *
 * Until somebody else needs their places: where nothing that is held can go, the last page of an
 * expired claim that nobody computes does, one by one from the end of the path. The lease then
 * claims a shorter path, and what its worker seals behind that is refused (KVT_EFULL). A page that
 * several claim goes when the time of all of them has passed; ranks that asked together lose it
 * together.
 */
#include "daemon/core_state.h"

static claim_list *list_of(core *c, const lease *l) {
    return l->claim_state == CLAIM_EXPIRED ? &c->expired : &c->promised;
}

static void unlink_claim(core *c, lease *l) {
    if (l->claim_state == CLAIM_UNTIMED)
        return;
    claim_list *list = list_of(c, l);
    if (l->prev_claim)
        c->leases[l->prev_claim - 1].next_claim = l->next_claim;
    else
        list->first = l->next_claim;
    if (l->next_claim)
        c->leases[l->next_claim - 1].prev_claim = l->prev_claim;
    else
        list->last = l->prev_claim;
    l->claim_state = CLAIM_UNTIMED;
    l->prev_claim = l->next_claim = NONE;
}

static void link_claim(core *c, lease *l, claim_state state) {
    uint32_t name = (uint32_t)(l - c->leases + 1);
    unlink_claim(c, l);
    l->claim_state = (uint8_t)state;
    claim_list *list = list_of(c, l);
    l->prev_claim = list->last;
    if (list->last)
        c->leases[list->last - 1].next_claim = name;
    else
        list->first = name;
    list->last = name;
}

void claim_promise(core *c, lease *l) {
    if (c->config.claim_ms == 0)
        return;
    l->claim_end_ms = c->env.now_ms(c->env.context) + c->config.claim_ms;
    link_claim(c, l, CLAIM_PROMISED);
}

void claim_kept(core *c, lease *l) {
    if (l->claim_state == CLAIM_PROMISED)
        claim_promise(c, l);
}

void claim_end(core *c, lease *l) {
    unlink_claim(c, l);
}

uint64_t claims_tick(core *c, uint64_t now_ms) {
    while (c->promised.first) {
        lease *l = &c->leases[c->promised.first - 1];
        if (now_ms < l->claim_end_ms)
            return l->claim_end_ms;
        uint32_t n = lease_disown(c, l);
        if (is_held(c, l->tail))
            claim_end(c, l); /* it has kept its promise */
        else
            link_claim(c, l, CLAIM_EXPIRED);
        c->counts.claims_expired += n > 0;
        c->wake |= n > 0;
    }
    return UINT64_MAX;
}

/* --- places of expired claims -------------------------------------------------------------------
 */

/* Is the last page of its path one that nobody computes, nor copies just now? */
static int tail_is_idle(const core *c, const lease *l) {
    if (!l->claim || is_held(c, l->tail) || node_filler(c, l->tail) != NONE)
        return 0;
    for (uint32_t slot = 0, n = radix_slots(c->tree, l->tail); slot < n; slot++) {
        const page_entry *entry = node_entry(c, l->tail, slot);
        if (entry && entry->state == PAGE_COPYING)
            return 0;
    }
    return 1;
}

static void shorten(core *c, lease *l) {
    radix_node gone = l->tail;
    l->tail = radix_parent(c->tree, gone);
    radix_pin(c->tree, l->tail);
    radix_unpin(c->tree, gone);
}

static int is_anchor_at(const group_entry *g, radix_node node) {
    return g->group && g->anchor.claim && g->anchor.tail == node;
}

/* How many of those that pin the node have let their time pass? */
static uint32_t expired_at(const core *c, radix_node node) {
    uint32_t n = 0;
    for (uint32_t at = c->expired.first; at; at = c->leases[at - 1].next_claim)
        n += c->leases[at - 1].tail == node;
    for (uint32_t i = 0; i < c->max_groups && c->n_groups; i++)
        n += (uint32_t)is_anchor_at(&c->groups[i], node);
    return n;
}

/* The paths of all who end with the page end in front of it. */
static void cut(core *c, radix_node node) {
    for (uint32_t at = c->expired.first; at; at = c->leases[at - 1].next_claim) {
        lease *l = &c->leases[at - 1];
        if (l->tail != node)
            continue;
        shorten(c, l);
        l->is_cut = 1;
        lease_recount(c, l);
    }
    for (uint32_t i = 0; i < c->max_groups && c->n_groups; i++)
        if (is_anchor_at(&c->groups[i], node)) {
            shorten(c, &c->groups[i].anchor);
            c->groups[i].broken = 1; /* ranks that come later are told of the page, too */
        }
    c->counts.claims_cut++;
    node_discard(c, node);
}

int claims_make_room(core *c) {
    /* Each lease that shares its last page costs a walk over all: so many are looked at. */
    uint32_t patience = 64;
    for (uint32_t at = c->expired.first; at && patience; at = c->leases[at - 1].next_claim) {
        const lease *l = &c->leases[at - 1];
        if (!tail_is_idle(c, l) || !radix_is_leaf(c->tree, l->tail))
            continue;
        uint32_t n_pins = radix_pins(c->tree, l->tail);
        patience -= n_pins > 1;
        if (n_pins == 1 || expired_at(c, l->tail) == n_pins) {
            cut(c, l->tail);
            return 1;
        }
    }
    return 0;
}
