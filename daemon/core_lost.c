/*
 * core_lost.c - a page that a lower tier did not give back as it was, or must not give back any
 * more: forgotten, with all that hangs below it.
 *
 *     root - [held] - [lost] - [held] - [held, pinned by a lease]
 *                        |        '---- idle ones leave the tree
 *                        '------------- those that leases pin become missing again
 *
 * No lease was told of any of these pages: the lost one was not in the arena, and a lease names
 * pages only as far as all in front of them are. A lease that claims fills the gap as it would any
 * other; one that only reads ends in front of it.
 *
 * A page of a group with a window goes by itself, as if it had passed out of the window: leases may
 * have been told of what is behind.
 */
#include "daemon/core_state.h"

/* Leases let go of what will leave. */
static void shorten(core *c, lease *l, radix_node top) {
    if (l->partial != RADIX_NONE && is_below(c, l->partial, top)) {
        radix_unpin(c->tree, l->partial);
        l->partial = RADIX_NONE;
        l->partial_tokens = 0;
    }
    if (l->claim || !is_below(c, l->tail, top))
        return;
    radix_node old = l->tail;
    l->tail = radix_parent(c->tree, top);
    radix_pin(c->tree, l->tail);
    radix_unpin(c->tree, old);
}

/* The node stays, since somebody claims it or what is below, with new pages that wait to be filled.
 */
static void node_empty(core *c, radix_node node) {
    event_removed(c, node);
    c->n_held -= (uint32_t)radix_is_held(c->tree, node);
    radix_set_held(c->tree, node, 0);
    node_drop_pages(c, node);
    /* The table has places for pages that only jobs still hold. */
    kvt_status status = node_claim_pages(c, node);
    KVT_ASSERT(status == KVT_OK);
}

static radix_node deepest(const core *c, radix_node node) {
    while (!radix_is_leaf(c->tree, node))
        node = radix_first_child(c->tree, node);
    return node;
}

/* Children before their parents. Returns how many pages that was. */
static uint32_t subtree_forget(core *c, radix_node top) {
    uint32_t n_pages = 0;
    for (radix_node node = deepest(c, top);;) {
        int last = node == top;
        radix_node next = RADIX_NONE, parent = radix_parent(c->tree, node);
        if (!last)
            next = radix_next_sibling(c->tree, node);
        n_pages += node_pages(c, node);
        if (radix_is_busy(c->tree, node))
            node_empty(c, node);
        else
            node_discard(c, node);
        if (last)
            return n_pages;
        node = next != RADIX_NONE ? deepest(c, next) : parent;
    }
}

void page_lost(core *c, page_handle page) {
    c->counts.pages_lost += page_let_go(c, page);
}

uint32_t page_let_go(core *c, page_handle page) {
    radix_node top = page_get(c->pages, page)->node;
    KVT_ASSERT(top != RADIX_NONE);
    const tier_page *at = tier_of(c, page);
    const realm *r = &c->realms[at->realm];
    c->wake = 1;
    if (r->windows[at->slot % r->n_groups] && radix_is_held(c->tree, top)) {
        slot_empty(c, top, at->slot);
        return 1;
    }
    for (uint32_t i = 0; i < c->config.max_leases_total; i++)
        if (c->leases[i].session)
            shorten(c, &c->leases[i], top);
    for (uint32_t i = 0; i < c->max_groups && c->n_groups; i++)
        if (c->groups[i].group)
            shorten(c, &c->groups[i].anchor, top);
    pins_end_below(c, top);
    found_let_go(c, top);
    suspects_let_go(c, top);
    radix_node parent = radix_parent(c->tree, top);
    uint32_t n_pages = subtree_forget(c, top);
    flushed_let_go(c, parent);
    for (uint32_t i = 0; i < c->config.max_leases_total; i++)
        if (c->leases[i].session && c->leases[i].claim)
            lease_recount(c, &c->leases[i]);
    return n_pages;
}

void core_disk_lost(core *c) {
    tiers *t = c->tiers;
    if (!t || !c->config.disk_bytes)
        return;
    while (t->n_erase > 0)
        erase_pop(t);
    t->disk_full = t->disk_stuck = t->disk_fails = 0;
    t->disk_limit = c->config.disk_bytes;
    for (uint32_t i = 0; i < t->max_pages; i++) {
        page_handle page = page_at(c->pages, i);
        if (!page || !(t->pages[i].flags & (TIER_ON_DISK | TIER_STALE_RECORD | TIER_NO_DISK)))
            continue;
        const page_entry *entry = page_get(c->pages, page);
        int never = entry->node != RADIX_NONE && is_flushed(c, entry->node);
        tier_set_flags(c, page, 0,
                       TIER_ON_DISK | TIER_STALE_RECORD | (never ? 0u : (uint32_t)TIER_NO_DISK));
        if (entry->node == RADIX_NONE)
            continue;
        if (entry->frame == PAGE_NO_FRAME && t->pages[i].host_frame == PAGE_NO_FRAME)
            page_lost(c, page);
        else
            tier_placed(c, page);
    }
    core_go_on(c);
}
