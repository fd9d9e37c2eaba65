/*
 * core_slots.c - the pages of a node. A node of the tree is a run of tokens; its bytes are one page
 * for each rank and layer group of its realm, in slots:
 *
 *     slot = rank * n_groups + group
 *
 *     node:  [rank 0: group 0 | group 1] [rank 1: group 0 | group 1] ...
 *
 * A node is held when every slot has been sealed, so ranks can never disagree about what is there,
 * and it leaves the tree with all its slots at once. Only the page of a group with a window may go
 * before that, or never come: once its tokens have passed out of the window its slot is EMPTY
 * (handle 0), and the node stays for the groups that need it (core_window.c). Whoever computes a
 * node computes all of it: its filler stands in each slot that is not sealed yet.
 */
#include "daemon/core_state.h"

/*
 * The tree names a page by its index in the page table and one more. That does not go stale, since
 * the tree has a reference of each page that it names; and the page says which node names it.
 */
page_handle node_page(const core *c, radix_node node, uint32_t slot) {
    uint32_t name = radix_handle(c->tree, node, slot);
    if (name == 0)
        return 0;
    page_handle page = page_at(c->pages, name - 1);
    KVT_ASSERT(page && page_get(c->pages, page)->node == node);
    return page;
}

void node_set_page(core *c, radix_node node, uint32_t slot, page_handle page) {
    radix_set_handle(c->tree, node, slot, page ? (uint32_t)page + 1 : 0);
}

const page_entry *node_entry(const core *c, radix_node node, uint32_t slot) {
    return page_get(c->pages, node_page(c, node, slot));
}

static int is_unsealed(const core *c, radix_node node, uint32_t slot) {
    const page_entry *entry = node_entry(c, node, slot);
    return entry && !entry_is_sealed(entry);
}

int node_has(const core *c, radix_node node, uint32_t slot) {
    const page_entry *entry = node_entry(c, node, slot);
    return entry && entry_is_sealed(entry);
}

uint32_t node_pages(const core *c, radix_node node) {
    uint32_t n = 0;
    for (uint32_t slot = 0, n_slots = radix_slots(c->tree, node); slot < n_slots; slot++)
        n += (uint32_t)node_has(c, node, slot);
    return n;
}

/* The first slot that is not sealed; the number of slots if there is none. */
static uint32_t first_unsealed(const core *c, radix_node node) {
    uint32_t n_slots = radix_slots(c->tree, node), slot = 0;
    while (slot < n_slots && !is_unsealed(c, node, slot))
        slot++;
    return slot;
}

int node_is_sealed(const core *c, radix_node node) {
    return first_unsealed(c, node) == radix_slots(c->tree, node);
}

int node_rank_is_sealed(const core *c, const realm *r, radix_node node, uint32_t rank) {
    uint32_t n_groups = radix_depth(c->tree, node) ? r->n_groups : 0;
    for (uint32_t group = 0; group < n_groups; group++)
        if (is_unsealed(c, node, slot_of(r, rank, group)))
            return 0;
    return 1;
}

uint32_t node_filler(const core *c, radix_node node) {
    uint32_t slot = first_unsealed(c, node);
    return slot < radix_slots(c->tree, node) ? node_entry(c, node, slot)->sealer : FILLED;
}

void node_set_filler(core *c, radix_node node, uint32_t filler) {
    uint32_t n_slots = radix_slots(c->tree, node);
    for (uint32_t slot = 0; slot < n_slots; slot++)
        if (is_unsealed(c, node, slot))
            page_set_filler(c->pages, node_page(c, node, slot), filler);
}

/* --- coming and going --------------------------------------------------------------------------
 */

kvt_status node_claim_pages(core *c, radix_node node) {
    uint32_t n_slots = radix_slots(c->tree, node);
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        page_handle page;
        kvt_status status = page_claim(c->pages, node, &page);
        if (status != KVT_OK) {
            while (slot > 0)
                page_drop(c, node_page(c, node, --slot));
            return status;
        }
        node_set_page(c, node, slot, page);
    }
    return KVT_OK;
}

void slot_empty(core *c, radix_node node, uint32_t slot) {
    page_handle page = node_page(c, node, slot);
    tier_unlist(c, page);
    cool_unlist(c, page);
    /* A job that still copies it finds out by this that the page is wanted no more. */
    page_set_node(c->pages, page, RADIX_NONE);
    node_set_page(c, node, slot, 0);
    page_drop(c, page);
    event_moved(c, node);
}

uint32_t node_tier(const core *c, radix_node node) {
    uint32_t tier = 0;
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++) {
        if (!c->tiers || !entry_is_absent(node_entry(c, node, slot)))
            continue;
        uint32_t at = tier_of(c, node_page(c, node, slot))->host_frame != PAGE_NO_FRAME ? 1 : 2;
        tier = at > tier ? at : tier;
    }
    return tier;
}

void node_drop_pages(core *c, radix_node node) {
    uint32_t n_slots = radix_slots(c->tree, node);
    for (uint32_t slot = 0; slot < n_slots; slot++)
        if (node_page(c, node, slot))
            slot_empty(c, node, slot);
}

kvt_status slot_refill(core *c, radix_node node, uint32_t slot) {
    page_handle page;
    kvt_status status;
    do
        status = page_claim(c->pages, node, &page);
    while (status == KVT_EFULL && evict_coldest(c));
    if (status == KVT_OK)
        node_set_page(c, node, slot, page);
    return status;
}

/* --- becoming held -----------------------------------------------------------------------------
 */

static int may_be_held(const core *c, radix_node node) {
    return !radix_is_held(c->tree, node) && node_is_sealed(c, node);
}

static radix_node child_to_hold(const core *c, radix_node node) {
    radix_node child = radix_first_child(c->tree, node);
    while (child != RADIX_NONE && !may_be_held(c, child))
        child = radix_next_sibling(c->tree, child);
    return child;
}

void node_settle(core *c, const realm *r, radix_node node) {
    if (!may_be_held(c, node) || !is_held(c, radix_parent(c->tree, node)))
        return;
    /* Pages behind it may have been complete before, if another rank was slower with this one: down
     * the first way that is open, and back up when there is none. */
    uint32_t top = radix_depth(c->tree, node);
    while (radix_depth(c->tree, node) >= top) {
        if (!radix_is_held(c->tree, node)) {
            radix_set_held(c->tree, node, 1);
            c->n_held++;
            event_added(c, node);
            tier_held(c, node);
            replace_short(c, node);
            windows_pass(c, r, node);
        }
        radix_node child = child_to_hold(c, node);
        node = child != RADIX_NONE ? child : radix_parent(c->tree, node);
    }
}
