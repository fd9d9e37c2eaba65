/*
 * core_found.c - pages that a scan of the disk finds: they stand in the tree again, on disk alone.
 * Parents come before their children. Serving goes on meanwhile, so a worker may have claimed or
 * sealed the same page before it was found:
 *
 *     not in the tree     it is put there
 *     claimed, no bytes   the record is its bytes: sealed
 *     sealed anew         the worker's bytes stay; writing them will replace the record
 *
 * The pages of a node (of its ranks and layer groups) come one by one, in any order, among those of
 * other nodes of the same depth. A node that the scan has put into the tree is OPEN until the scan
 * goes on to the next depth: pinned, so that nothing takes it, and held as soon as nothing is
 * missing that has no window. What is not held then goes: its death came between two of its pages.
 * A page of a window may be missing.
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
    if (!page || c->tiers->pages[index - 1].slot != r->spine)
        return RADIX_NONE;
    return page_get(c->pages, page)->node;
}

/* --- open nodes --------------------------------------------------------------------------------
 */

static void node_open(core *c, radix_node node) {
    tiers *t = c->tiers;
    radix_pin(c->tree, node);
    t->open[t->n_open++] = node;
}

/* All records with fewer pages in front of them have been seen. (Where the disk's process died, the
 * scan begins anew, and nodes stay open that it has not come to again.) */
static void depth_begin(core *c, uint32_t depth) {
    tiers *t = c->tiers;
    uint32_t n = 0;
    t->open_depth = depth;
    for (uint32_t i = 0; i < t->n_open; i++) {
        radix_node node = t->open[i];
        if (radix_depth(c->tree, node) > depth) {
            t->open[n++] = node;
            continue;
        }
        radix_unpin(c->tree, node);
        /* If somebody claims it, he fills what is missing. */
        if (!flushed_let_go(c, node) && !radix_is_held(c->tree, node) &&
            !radix_is_busy(c->tree, node))
            node_discard(c, node);
    }
    t->n_open = n;
}

void found_let_go(core *c, radix_node top) {
    tiers *t = c->tiers;
    uint32_t depth = radix_depth(c->tree, top), n = 0;
    for (uint32_t i = 0; t && i < t->n_open; i++) {
        radix_node node = t->open[i], at = node;
        while (radix_depth(c->tree, at) > depth)
            at = radix_parent(c->tree, at);
        if (at == top)
            radix_unpin(c->tree, node);
        else
            t->open[n++] = node;
    }
    if (t)
        t->n_open = n;
}

void found_pins_of(const core *c, uint32_t *pins, uint8_t *claimed) {
    for (uint32_t i = 0; c->tiers && i < c->tiers->n_open; i++) {
        pins[c->tiers->open[i]]++;
        claimed[c->tiers->open[i]] = 1;
    }
}

/* --- one record --------------------------------------------------------------------------------
 */

static void erase_record(core *c, const core_found *found) {
    tiers *t = c->tiers;
    const core_record *r = found->record;
    tier_erase e = {.key = r->key,
                    .serial = r->serial,
                    .depth = r->depth,
                    .slot = r->slot,
                    .bytes = (uint32_t)found->disk_bytes};
    if (erase_push(t, &e))
        t->disk_used += found->disk_bytes;
    else /* it stays, and is found again at the next start */
        t->n_left++;
}

static void remember(core *c, page_handle page, const core_record *record, uint32_t flag) {
    tier_page *at = tier_of(c, page);
    uint32_t *place = found_place(c, &record->key, record->serial);
    at->key = record->key;
    at->serial = record->serial;
    at->record_bytes = record->stored;
    tier_set_flags(c, page, flag, 0);
    if (*place == 0)
        *place = (uint32_t)page + 1;
    tier_placed(c, page);
}

static void seal_found(core *c, const realm *r, radix_node node, page_handle page,
                       const core_found *found) {
    uint32_t realm_slot = (uint32_t)(r - c->realms), slot = found->record->slot;
    if (page_get(c->pages, page)->state == PAGE_FILLING)
        page_move(c->pages, page, PAGE_COPYING);
    page_move(c->pages, page, PAGE_SEALED);
    page_set_sealed(c->pages, page, 0, found->rows);
    tier_sealed(c, page, realm_slot, slot, found->bytes);
    remember(c, page, found->record, TIER_ON_DISK);
    cool_sealed(c, page, realm_slot, slot, found->bytes);
    c->counts.pages_found++;
    c->wake = 1; /* a window's page may be what a node that is held lacked */
    node_settle(c, r, node);
}

/* A new node's pages of windows are only there if they are found. */
static kvt_status node_make(core *c, const realm *r, radix_node parent, const core_found *found,
                            radix_node *ret_node) {
    const core_record *record = found->record;
    uint32_t n_slots = radix_slots(c->tree, parent);
    uint64_t bytes = n_slots > 1 ? realm_page_bytes(r) : found->bytes;
    kvt_status status = policy_tree_insert(c->policy, c->tree, parent, record->tokens,
                                           record->n_tokens, bytes, ret_node);
    if (status != KVT_OK)
        return status;
    status = node_claim_pages(c, *ret_node);
    if (status != KVT_OK) {
        policy_tree_remove(c->policy, c->tree, *ret_node);
        return status;
    }
    for (uint32_t slot = 0; slot < n_slots; slot++)
        if (r->windows[slot % r->n_groups] && slot != record->slot && slot != r->spine)
            slot_empty(c, *ret_node, slot);
    if (n_slots > 1)
        node_open(c, *ret_node);
    return KVT_OK;
}

/* The page that the record is to be of: filling, or sealed. 0: there is no place for it. */
static page_handle page_for(core *c, const realm *r, radix_node parent, const core_found *found) {
    const core_record *record = found->record;
    radix_node node = radix_child_equal(c->tree, parent, record->tokens, record->n_tokens);
    page_handle page = node != RADIX_NONE ? node_page(c, node, record->slot) : 0;
    int is_sealed = page && entry_is_sealed(page_get(c->pages, page));
    /* What was flushed since the start is not found after it. */
    if ((c->tiers->was_flushed || r->was_flushed) && !is_sealed)
        return 0;
    if (node == RADIX_NONE && node_make(c, r, parent, found, &node) != KVT_OK)
        return 0;
    page = node_page(c, node, record->slot);
    if (!page && page_claim(c->pages, node, &page) == KVT_OK)
        node_set_page(c, node, record->slot, page);
    return page;
}

static void found_page(core *c, const core_found *found) {
    const core_record *record = found->record;
    tiers *t = c->tiers;
    realm *r = realm_get(c, found->realm);
    if (!t || !t->found || !r) /* after the first scan all is known */
        return;
    if (record->depth != t->open_depth)
        depth_begin(c, record->depth);
    radix_node parent = parent_node(c, r, record);
    if (parent == RADIX_NONE || !is_held(c, parent) || record->n_tokens > r->page_tokens ||
        found->rows != record->n_tokens || record->slot >= radix_slots(c->tree, parent)) {
        t->n_no_place += t->n_no_place > 0 && parent == RADIX_NONE;
        erase_record(c, found);
        return;
    }
    page_handle page = page_for(c, r, parent, found);
    if (!page) {
        t->n_no_place += !(t->was_flushed || r->was_flushed);
        erase_record(c, found);
    } else if (!entry_is_sealed(page_get(c->pages, page)))
        seal_found(c, r, page_get(c->pages, page)->node, page, found);
    else if (!(tier_of(c, page)->flags & TIER_CHARGED))
        remember(c, page, record, TIER_STALE_RECORD);
}

void core_found_page(core *c, const core_found *found) {
    found_page(c, found);
    core_go_on(c);
}

uint32_t core_found_realm(core *c, const void *canonical, size_t n_bytes) {
    char why[256];
    realm *r;
    if (n_bytes > KVT_WIRE_MAX_REALM_BYTES)
        return 0;
    kvt_realm_req req = {.canonical = canonical, .n_bytes = (uint32_t)n_bytes};
    return realm_open(c, &req, why, sizeof why, &r) == KVT_OK ? r->number : 0;
}

uint64_t core_found_too_many(const core *c) {
    return c->tiers ? c->tiers->n_no_place : 0;
}

uint64_t core_found_left(const core *c) {
    return c->tiers ? c->tiers->n_left : 0;
}

void core_found_all(core *c) {
    tiers *t = c->tiers;
    if (!t || !t->found)
        return;
    depth_begin(c, UINT32_MAX);
    free(t->found);
    free(t->open);
    t->found = NULL;
    t->open = NULL;
    windows_pass_all(c);
    core_go_on(c);
}
