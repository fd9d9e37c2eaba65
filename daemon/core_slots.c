/*
 * core_slots.c - the pages of a node. A node of the tree is a run of tokens; its bytes are one page
 * for each rank and layer group of its realm, in slots:
 *
 *     slot = rank * n_groups + group
 *
 *     node:  [rank 0: group 0 | group 1] [rank 1: group 0 | group 1] ...
 *
 * A node is held when every slot has been sealed, so ranks can never disagree about what is there,
 * and it leaves the tree with all its slots at once. Whoever computes a node computes all of it:
 * its filler stands in each slot that is not sealed yet.
 */
#include "daemon/core_state.h"

page_handle node_page(const core *c, radix_node node, uint32_t slot) {
    return radix_handle(c->tree, node, slot);
}

const page_entry *node_entry(const core *c, radix_node node, uint32_t slot) {
    return page_get(c->pages, radix_handle(c->tree, node, slot));
}

/* The first slot that is not sealed; the number of slots if all are. */
static uint32_t first_unsealed(const core *c, radix_node node) {
    uint32_t n_slots = radix_slots(c->tree, node), slot = 0;
    while (slot < n_slots && entry_is_sealed(node_entry(c, node, slot)))
        slot++;
    return slot;
}

int node_is_sealed(const core *c, radix_node node) {
    return first_unsealed(c, node) == radix_slots(c->tree, node);
}

uint32_t node_filler(const core *c, radix_node node) {
    uint32_t slot = first_unsealed(c, node);
    KVT_ASSERT(slot < radix_slots(c->tree, node));
    return node_entry(c, node, slot)->sealer;
}

void node_set_filler(core *c, radix_node node, uint32_t filler) {
    uint32_t n_slots = radix_slots(c->tree, node);
    for (uint32_t slot = 0; slot < n_slots; slot++)
        if (!entry_is_sealed(node_entry(c, node, slot)))
            page_set_filler(c->pages, node_page(c, node, slot), filler);
}

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
        radix_set_handle(c->tree, node, slot, page);
    }
    return KVT_OK;
}

uint32_t node_tier(const core *c, radix_node node) {
    uint32_t tier = 0;
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++) {
        const page_entry *entry = node_entry(c, node, slot);
        uint32_t at = entry->frame != PAGE_NO_FRAME || !c->tiers                          ? 0
                      : tier_of(c, node_page(c, node, slot))->host_frame != PAGE_NO_FRAME ? 1
                                                                                          : 2;
        tier = at > tier ? at : tier;
    }
    return tier;
}

void node_drop_pages(core *c, radix_node node) {
    uint32_t n_slots = radix_slots(c->tree, node);
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        page_handle page = node_page(c, node, slot);
        tier_unlist(c, page);
        /* A job that still copies it finds out by this that the page is wanted no more. */
        page_set_node(c->pages, page, RADIX_NONE);
        page_drop(c, page);
    }
}
