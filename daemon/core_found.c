/*
 * core_found.c - pages that a scan of the disk finds: they stand in the tree again, on disk alone.
 * Parents come before their children. Serving goes on meanwhile, so a worker may have claimed or
 * sealed the same page before it was found:
 *
 *     not in the tree     it is put there
 *     claimed, no bytes   the record is its bytes: sealed
 *     sealed anew         the worker's bytes stay; writing them will replace the record
 */
#include "daemon/core_state.h"

#include <stdlib.h>
#include <string.h>

/* --- key -> page, while the scan is under way --------------------------------------------------
 */

static uint32_t *found_place(const core *c, const tier_key *key, uint64_t serial) {
    tiers *t = c->tiers;
    uint64_t hash;
    memcpy(&hash, key->at, sizeof hash);
    for (uint32_t at = (uint32_t)(hash + serial * UINT64_C(0x9e3779b97f4a7c15));; at++) {
        uint32_t *place = &t->found[at & t->found_mask];
        if (*place == 0)
            return place;
        const tier_page *page = &t->pages[*place - 1];
        if (page->serial == serial && tier_key_equal(&page->key, key))
            return place;
    }
}

/* The node in front of the record, or RADIX_NONE. */
static radix_node parent_node(const core *c, const realm *r, const core_record *record) {
    if (record->depth == 0)
        return r->root;
    uint32_t index = *found_place(c, &record->parent, record->parent_serial);
    if (index == 0)
        return RADIX_NONE;
    page_handle page = page_at(c->pages, index - 1);
    if (!page || c->tiers->pages[index - 1].slot != record->slot)
        return RADIX_NONE;
    return page_get(c->pages, page)->node;
}

/* --- one record --------------------------------------------------------------------------------
 */

static void erase_record(core *c, const core_found *found) {
    tiers *t = c->tiers;
    const core_record *r = found->record;
    if (t->n_erase == t->max_pages)
        return; /* it stays, and is found again at the next start */
    t->disk_used += found->disk_bytes;
    t->erase[(t->first_erase + t->n_erase++) % t->max_pages] =
        (tier_erase){.key = r->key,
                     .serial = r->serial,
                     .depth = r->depth,
                     .slot = r->slot,
                     .bytes = (uint32_t)found->disk_bytes};
}

static void remember(core *c, page_handle page, const core_record *record, uint32_t bytes,
                     uint32_t flag) {
    tier_page *at = tier_of(c, page);
    uint32_t *place = found_place(c, &record->key, record->serial);
    at->key = record->key;
    at->serial = record->serial;
    at->record_bytes = bytes;
    tier_set_flags(c, page, flag, 0);
    if (*place == 0)
        *place = (uint32_t)page + 1;
    tier_placed(c, page);
}

static void seal_found(core *c, radix_node node, page_handle page, uint32_t realm_slot,
                       const core_found *found) {
    if (page_get(c->pages, page)->state == PAGE_FILLING)
        page_move(c->pages, page, PAGE_COPYING);
    page_move(c->pages, page, PAGE_SEALED);
    page_set_sealed(c->pages, page, 0, found->rows);
    tier_sealed(c, page, realm_slot, found->record->slot, found->bytes);
    remember(c, page, found->record, found->bytes, TIER_ON_DISK);
    cool_sealed(c, page, realm_slot, found->record->slot, found->bytes);
    c->counts.pages_found++;
    if (node_is_sealed(c, node) && is_held(c, radix_parent(c->tree, node))) {
        radix_set_held(c->tree, node, 1);
        c->n_held++;
        event_added(c, node);
        c->wake = 1;
    }
}

void core_found_page(core *c, const core_found *found) {
    const core_record *record = found->record;
    realm *r = realm_get(c, found->realm);
    if (!c->tiers || !c->tiers->found || !r) /* after the first scan all is known */
        return;
    uint32_t realm_slot = (uint32_t)(r - c->realms), page_tokens = r->page_tokens;
    radix_node parent = parent_node(c, r, record), node;
    if (parent == RADIX_NONE || !is_held(c, parent) || radix_slots(c->tree, parent) > 1 ||
        record->n_tokens > page_tokens || found->rows != record->n_tokens ||
        record->slot >= radix_slots(c->tree, parent)) {
        erase_record(c, found);
        return;
    }
    /* What was flushed since the start is not found after it. */
    if ((c->tiers->was_flushed || r->was_flushed) &&
        radix_child_equal(c->tree, parent, record->tokens, record->n_tokens) == RADIX_NONE) {
        erase_record(c, found);
        return;
    }
    kvt_status status = policy_tree_insert(c->policy, c->tree, parent, record->tokens,
                                           record->n_tokens, found->bytes, &node);
    if (status == KVT_OK && node_claim_pages(c, node) != KVT_OK) {
        policy_tree_remove(c->policy, c->tree, node);
        status = KVT_EFULL;
    }
    if (status != KVT_OK && status != KVT_EEXIST) {
        erase_record(c, found);
        return;
    }
    page_handle page = node_page(c, node, record->slot);
    if (!entry_is_sealed(page_get(c->pages, page)))
        seal_found(c, node, page, realm_slot, found);
    else if (!(tier_of(c, page)->flags & TIER_CHARGED))
        remember(c, page, record, found->bytes, TIER_STALE_RECORD);
}

uint32_t core_found_realm(core *c, const void *canonical, size_t n_bytes) {
    char why[256];
    realm *r;
    if (n_bytes > KVT_WIRE_MAX_REALM_BYTES)
        return 0;
    kvt_realm_req req = {.canonical = canonical, .n_bytes = (uint32_t)n_bytes};
    return realm_open(c, &req, why, sizeof why, &r) == KVT_OK ? r->number : 0;
}

void core_found_all(core *c) {
    tiers *t = c->tiers;
    if (!t || !t->found)
        return;
    free(t->found);
    t->found = NULL;
    waiters_wake(c);
    tiers_pump(c);
}
