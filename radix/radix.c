/*
 * radix.c - the block, roots, and every change of the tree: insert, remove, pin, touch, held.
 *
 * What always holds between calls, and radix_audit checks:
 *   busy(node) = (pins > 0) + busy children, so a node is busy iff it or something behind it is
 * pinned; a page stands in the tournament iff it has no child and is not busy; the ids of a stock
 * are live or in its free list, never both.
 */
#include <string.h>

#include "radix/pool.h"

enum {
    MAX_PAGES = 1 << 30,
    MAX_ROOTS = 1 << 16,
    MIN_PAGE_TOKENS = 16,
    MAX_PAGE_TOKENS = 128,
    MAX_SLOTS = 64,
};

/* --- the block ----------------------------------------------------------------------------------
 */

/* Gives the next array its place behind *bytes. */
static uint64_t lay(uint64_t *bytes, uint64_t n, uint64_t item_bytes) {
    uint64_t at = *bytes;
    uint64_t end = at + n * item_bytes;
    *bytes = (end + RADIX_ALIGN_BYTES - 1) / RADIX_ALIGN_BYTES * RADIX_ALIGN_BYTES;
    return at;
}

/* Whole groups, up to a level of one. */
static void lay_out_tournament(const radix_limits *limits, uint64_t *bytes, radix *ret_tree) {
    uint64_t n = (uint64_t)1 + limits->max_pages;
    ret_tree->standing_at = lay(bytes, n / RADIX_GROUP + 1, 1);
    do {
        n = (n + RADIX_GROUP - 1) / RADIX_GROUP;
        uint64_t n_whole = (n + RADIX_GROUP - 1) / RADIX_GROUP * RADIX_GROUP;
        uint32_t level = ret_tree->n_levels++;
        ret_tree->first_keys_at[level] = lay(bytes, n_whole, sizeof(uint64_t));
        ret_tree->first_pages_at[level] = lay(bytes, n_whole, sizeof(radix_node));
    } while (n > 1);
}

/* Fills in limits and offsets; 0 if a limit is out of range. */
static int lay_out(const radix_limits *limits, radix *ret_tree) {
    if (limits == NULL || limits->max_pages < 1 || limits->max_pages > MAX_PAGES ||
        limits->max_roots < 1 || limits->max_roots > MAX_ROOTS ||
        limits->page_tokens < MIN_PAGE_TOKENS || limits->page_tokens > MAX_PAGE_TOKENS ||
        limits->n_slots < 1 || limits->n_slots > MAX_SLOTS)
        return 0;
    uint64_t n_nodes = (uint64_t)1 + limits->max_pages + limits->max_roots;
    uint64_t bytes = 0;
    *ret_tree = (radix){.limits = *limits};
    lay(&bytes, 1, sizeof(radix));
    ret_tree->records_at = lay(&bytes, n_nodes, sizeof(radix_record));
    ret_tree->keys_at = lay(&bytes, n_nodes, sizeof(uint64_t));
    ret_tree->handles_at = lay(&bytes, n_nodes, sizeof(uint32_t) * limits->n_slots);
    lay_out_tournament(limits, &bytes, ret_tree);
    ret_tree->tokens_at =
        lay(&bytes, (uint64_t)1 + limits->max_pages, sizeof(uint32_t) * limits->page_tokens);
    ret_tree->bytes = bytes;
    ret_tree->pages = (radix_stock){.base = 0, .max = limits->max_pages};
    ret_tree->roots = (radix_stock){.base = limits->max_pages, .max = limits->max_roots};
    return 1;
}

size_t radix_bytes(const radix_limits *limits) {
    radix tree;
    return lay_out(limits, &tree) ? tree.bytes : 0;
}

kvt_status radix_init(void *memory, size_t bytes, const radix_limits *limits, radix **ret_tree) {
    radix tree;
    if (memory == NULL || (uintptr_t)memory % RADIX_ALIGN_BYTES != 0 || !lay_out(limits, &tree))
        return KVT_EINVAL;
    if (bytes < tree.bytes)
        return KVT_ELIMIT;
    radix *placed = memory;
    *placed = tree;
    *record_edit(placed, RADIX_NONE) = (radix_record){0};
    *key_edit(placed, RADIX_NONE) = 0;
    *ret_tree = placed;
    return KVT_OK;
}

/* --- ids ----------------------------------------------------------------------------------------
 */

/* A node of its own, without children; RADIX_NONE if there is none left. */
static radix_node take(radix *tree, radix_stock *stock, uint32_t n_slots) {
    radix_node node = stock->free;
    if (node != RADIX_NONE)
        stock->free = record_at(tree, node)->right;
    else if (stock->n_fresh == stock->max)
        return RADIX_NONE;
    else if ((node = stock->base + ++stock->n_fresh) <= tree->limits.max_pages)
        radix_cold_fresh(tree, node);
    stock->n_live++;
    *record_edit(tree, node) =
        (radix_record){.flags = (uint8_t)(RADIX_LIVE | (n_slots - 1) << RADIX_SLOTS_SHIFT)};
    *key_edit(tree, node) = 0;
    for (uint32_t slot = 0; slot < n_slots; slot++)
        *handle_edit(tree, node, slot) = 0;
    return node;
}

static void give_back(radix *tree, radix_stock *stock, radix_node node) {
    *record_edit(tree, node) = (radix_record){.right = stock->free};
    stock->free = node;
    stock->n_live--;
}

kvt_status radix_root_add(radix *tree, uint32_t page_tokens, uint32_t n_slots,
                          radix_node *ret_root) {
    if (page_tokens < 1 || page_tokens > tree->limits.page_tokens || n_slots < 1 ||
        n_slots > tree->limits.n_slots)
        return KVT_EINVAL;
    radix_node root = take(tree, &tree->roots, n_slots);
    if (root == RADIX_NONE)
        return KVT_ELIMIT;
    record_edit(tree, root)->page_tokens = (uint8_t)page_tokens;
    *ret_root = root;
    return KVT_OK;
}

kvt_status radix_root_remove(radix *tree, radix_node root) {
    KVT_ASSERT(node_is_live(tree, root) && node_is_root(tree, root));
    const radix_record *record = record_at(tree, root);
    if (record->child != RADIX_NONE || node_pins(record) > 0)
        return KVT_EBUSY;
    give_back(tree, &tree->roots, root);
    return KVT_OK;
}

/* --- pages --------------------------------------------------------------------------------------
 */

kvt_status radix_insert(radix *tree, radix_node parent, const uint32_t *tokens, uint32_t n_tokens,
                        uint64_t key, radix_node *ret_node) {
    KVT_ASSERT(node_is_live(tree, parent));
    uint8_t page_tokens = record_at(tree, parent)->page_tokens;
    if (!node_may_have_children(tree, parent) || n_tokens < 1 || n_tokens > page_tokens)
        return KVT_EINVAL;
    radix_node node = radix_child_equal(tree, parent, tokens, n_tokens);
    if (node != RADIX_NONE) {
        *ret_node = node;
        return KVT_EEXIST;
    }
    node = take(tree, &tree->pages, node_slots(record_at(tree, parent)));
    if (node == RADIX_NONE)
        return KVT_EFULL;
    if (node_may_go(tree, parent)) {
        radix_cold_remove(tree, parent); /* it gets a child */
    }
    radix_record *record = record_edit(tree, node);
    record->page_tokens = page_tokens;
    record->n_tokens = (uint8_t)n_tokens;
    memcpy(tokens_edit(tree, node), tokens, n_tokens * sizeof *tokens);
    record->depth = record_at(tree, parent)->depth + 1;
    *key_edit(tree, node) = key;
    radix_siblings_add(tree, parent, node);
    radix_cold_add(tree, node);
    *ret_node = node;
    return KVT_OK;
}

kvt_status radix_remove(radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node) && !node_is_root(tree, node));
    if (!node_may_go(tree, node))
        return KVT_EBUSY;
    int was_top = node_is_top(tree, node);
    radix_node up = record_at(tree, node)->up; /* the parent, if it was the top */
    radix_siblings_remove(tree, node);
    /* The parent first: as a rule it has the same key and does not change who is first. */
    if (was_top && node_may_go(tree, up))
        radix_cold_add(tree, up);
    radix_cold_remove(tree, node);
    give_back(tree, &tree->pages, node);
    radix_cold_fetch_next(tree);
    return KVT_OK;
}

/* --- pins ---------------------------------------------------------------------------------------
 */

/* Adds to busy of the node and of all in front of it that were idle. */
static void busy_more(radix *tree, radix_node node) {
    while (node != RADIX_NONE) {
        radix_record *record = record_edit(tree, node);
        if (node_may_go(tree, node))
            radix_cold_remove(tree, node);
        if (record->busy++ > 0)
            return;
        tree->n_busy += !node_is_root(tree, node);
        node = node_parent(tree, node);
    }
}

static void busy_less(radix *tree, radix_node node) {
    while (node != RADIX_NONE) {
        radix_record *record = record_edit(tree, node);
        KVT_ASSERT(record->busy > 0);
        if (--record->busy > 0)
            return;
        tree->n_busy -= !node_is_root(tree, node);
        if (node_may_go(tree, node))
            radix_cold_add(tree, node);
        node = node_parent(tree, node);
    }
}

void radix_pin(radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    radix_record *record = record_edit(tree, node);
    KVT_ASSERT(node_pins(record) < RADIX_HIDDEN - 1);
    if (node_pins(record) == 0)
        busy_more(tree, node);
    record->pins++;
}

void radix_unpin(radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    radix_record *record = record_edit(tree, node);
    KVT_ASSERT(node_pins(record) > 0);
    record->pins--;
    if (node_pins(record) == 0)
        busy_less(tree, node);
}

/* --- keys, held, handles ------------------------------------------------------------------------
 */

void radix_set_key(radix *tree, radix_node node, uint64_t key) {
    KVT_ASSERT(node_is_live(tree, node));
    *key_edit(tree, node) = key;
    if (node_may_go(tree, node))
        radix_cold_moved(tree, node);
}

void radix_touch(radix *tree, radix_node node, uint64_t key) {
    radix_set_key(tree, node, key);
    /* What is in front of a node has a child, so it does not stand in the tournament. */
    while ((node = node_parent(tree, node)) != RADIX_NONE)
        *key_edit(tree, node) = key;
}

void radix_set_held(radix *tree, radix_node node, int held) {
    KVT_ASSERT(node_is_live(tree, node) && !node_is_root(tree, node));
    if (radix_is_held(tree, node) != (held != 0))
        radix_siblings_hold(tree, node, held);
}

void radix_hide(radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node) && !node_is_root(tree, node));
    if (node_is_hidden(record_at(tree, node)))
        return;
    radix_node parent = node_parent(tree, node);
    radix_siblings_remove(tree, node);
    record_edit(tree, node)->pins |= RADIX_HIDDEN;
    radix_siblings_add(tree, parent, node);
}

void radix_set_handle(radix *tree, radix_node node, uint32_t slot, uint32_t handle) {
    KVT_ASSERT(node_is_live(tree, node) && slot < node_slots(record_at(tree, node)));
    *handle_edit(tree, node, slot) = handle;
}

void radix_count(const radix *tree, radix_counts *ret_counts) {
    *ret_counts = (radix_counts){
        .max_pages = tree->limits.max_pages,
        .free = tree->limits.max_pages - tree->pages.n_live,
        .busy = tree->n_busy,
        .idle = tree->pages.n_live - tree->n_busy,
        .leaves = tree->n_cold,
        .roots = tree->roots.n_live,
    };
}
