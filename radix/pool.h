/*
 * pool.h - how a tree lies in its block. Private to radix/.
 *
 *   block:  [radix][records][keys][handles of slot 0][of slot 1]...[standing][firsts][tokens]
 *
 * All arrays are indexed by node id and start at a multiple of 64 bytes from the block's start;
 * what is stored is only ever an id or an offset, so a copy of the block at another
 * address is the same tree. Pages have the ids 1 .. max_pages, roots those behind; id 0 is no node,
 * its record stays zero so that "the longest held page below no node" reads as 0 without a branch.
 *
 * Memory per page beyond its tokens, with one slot:
 *   record 32 + key 8 + handle 4 + standing 1/8 + firsts 12/7 = 46 bytes.
 * Records and keys lie apart because a match reads only records and tokens; two records share a
 * cache line and none lies in two. Neither array is touched before an id is given out for the first
 * time, and that of a slot not before a page whose root has so many is: slots that no realm needs
 * cost address space only.
 */
#ifndef KVT_RADIX_POOL_H
#define KVT_RADIX_POOL_H

#include "client/assert.h"
#include "radix/radix.h"

enum {
    RADIX_ALIGN_BYTES = 64,
    RADIX_GROUP = 8,       /* see coldest.c */
    RADIX_MAX_LEVELS = 11, /* 8^11 > 2^30 */
};

enum {
    RADIX_LIVE = 1, /* given out */
    RADIX_HELD = 2,
    RADIX_SLOTS_SHIFT = 2, /* above these: slots of the root's pages, less one */
};

typedef struct radix_record {
    uint32_t child; /* top of the treap of children */
    uint32_t left;  /* treap of siblings: those in front of this one in token order */
    uint32_t right; /* those behind; of a free record: the next free one */
    uint8_t n_tokens;
    uint8_t page_tokens; /* of the root */
    uint8_t flags;
    uint8_t
        best_held; /* most tokens of any held page in the treap below and with this one; 0: none */
    uint32_t up;   /* whatever links here: a sibling, or the parent whose child this is */
    uint32_t busy; /* (pins > 0) + the number of busy children */
    uint32_t pins; /* RADIX_HIDDEN is its highest bit: node_pins, node_is_hidden */
    uint32_t depth;
} radix_record;

#define RADIX_HIDDEN 0x80000000u

_Static_assert(sizeof(radix_record) == 32, "radix_record");
_Static_assert(sizeof(size_t) == 8, "radix_bytes counts to 2^40");

/*
 * Ids of one kind. A fresh id is given out only when none is free, and the free list is last in,
 * first out: a path that is inserted at once lies in ascending ids, and a path that went tail first
 * is given out again in ascending ids.
 */
typedef struct radix_stock {
    uint32_t base;    /* ids are base + 1 .. base + max */
    uint32_t max;     /* how many there are */
    uint32_t n_fresh; /* how many were ever given out */
    uint32_t n_live;
    uint32_t free; /* first of the free list, linked by `right`; n_fresh - n_live of them */
} radix_stock;

struct radix {
    radix_limits limits;
    radix_stock pages;
    radix_stock roots;
    uint32_t n_busy; /* pages */
    uint32_t n_cold; /* pages that may go */
    uint32_t n_levels;
    uint64_t records_at; /* offsets from the block's start in bytes */
    uint64_t keys_at;
    uint64_t handles_at;
    uint64_t standing_at;
    uint64_t first_keys_at[RADIX_MAX_LEVELS]; /* of level 1, 2 .. */
    uint64_t first_pages_at[RADIX_MAX_LEVELS];
    uint64_t tokens_at;
    uint64_t bytes;
};

/* --- arrays: ..._at to read, ..._edit to write --------------------------------------------------
 */

static inline const radix_record *record_at(const radix *tree, radix_node node) {
    return (const radix_record *)(const void *)((const char *)tree + tree->records_at) + node;
}
static inline radix_record *record_edit(radix *tree, radix_node node) {
    return (radix_record *)(void *)((char *)tree + tree->records_at) + node;
}
static inline const uint64_t *key_at(const radix *tree, radix_node node) {
    return (const uint64_t *)(const void *)((const char *)tree + tree->keys_at) + node;
}
static inline uint64_t *key_edit(radix *tree, radix_node node) {
    return (uint64_t *)(void *)((char *)tree + tree->keys_at) + node;
}
/* A bit for each of a group of ids: it may go. */
static inline const uint8_t *standing_at(const radix *tree, uint32_t group) {
    return (const uint8_t *)tree + tree->standing_at + group;
}
static inline uint8_t *standing_edit(radix *tree, uint32_t group) {
    return (uint8_t *)tree + tree->standing_at + group;
}
/* Who is first of a group of the level below (level 1: of ids). */
static inline const uint64_t *first_key_at(const radix *tree, uint32_t level, uint32_t group) {
    return (const uint64_t *)(const void *)((const char *)tree + tree->first_keys_at[level - 1]) +
           group;
}
static inline uint64_t *first_key_edit(radix *tree, uint32_t level, uint32_t group) {
    return (uint64_t *)(void *)((char *)tree + tree->first_keys_at[level - 1]) + group;
}
static inline const radix_node *first_page_at(const radix *tree, uint32_t level, uint32_t group) {
    return (const radix_node *)(const void *)((const char *)tree +
                                              tree->first_pages_at[level - 1]) +
           group;
}
static inline radix_node *first_page_edit(radix *tree, uint32_t level, uint32_t group) {
    return (radix_node *)(void *)((char *)tree + tree->first_pages_at[level - 1]) + group;
}
static inline size_t handle_index(const radix *tree, radix_node node, uint32_t slot) {
    return ((size_t)1 + tree->limits.max_pages + tree->limits.max_roots) * slot + node;
}
static inline const uint32_t *handle_at(const radix *tree, radix_node node, uint32_t slot) {
    return (const uint32_t *)(const void *)((const char *)tree + tree->handles_at) +
           handle_index(tree, node, slot);
}
static inline uint32_t *handle_edit(radix *tree, radix_node node, uint32_t slot) {
    return (uint32_t *)(void *)((char *)tree + tree->handles_at) + handle_index(tree, node, slot);
}
/* Of a page; roots have none. */
static inline const uint32_t *tokens_at(const radix *tree, radix_node page) {
    return (const uint32_t *)(const void *)((const char *)tree + tree->tokens_at) +
           (size_t)page * tree->limits.page_tokens;
}
static inline uint32_t *tokens_edit(radix *tree, radix_node page) {
    return (uint32_t *)(void *)((char *)tree + tree->tokens_at) +
           (size_t)page * tree->limits.page_tokens;
}

/* --- nodes --------------------------------------------------------------------------------------
 */

static inline int node_is_root(const radix *tree, radix_node node) {
    return node > tree->limits.max_pages;
}

static inline int stock_has(const radix *tree, const radix_stock *stock, radix_node node) {
    return node > stock->base && node - stock->base <= stock->n_fresh &&
           (record_at(tree, node)->flags & RADIX_LIVE);
}

/* An id that this tree gave out and did not take back. Anything else is a bug of the caller. */
static inline int node_is_live(const radix *tree, radix_node node) {
    return stock_has(tree, node_is_root(tree, node) ? &tree->roots : &tree->pages, node);
}

static inline int node_is_hidden(const radix_record *record) {
    return (record->pins & RADIX_HIDDEN) != 0;
}
static inline uint32_t node_pins(const radix_record *record) {
    return record->pins & ~RADIX_HIDDEN;
}

/* As a match sees it: what is hidden is never found. */
static inline int node_is_held(const radix_record *record) {
    return (record->flags & RADIX_HELD) && !node_is_hidden(record);
}

static inline uint32_t node_slots(const radix_record *record) {
    return (record->flags >> RADIX_SLOTS_SHIFT) + 1u;
}

/*
 * A page without siblings hangs from its parent. One with siblings stands in their treap, of which
 * the top hangs from the parent: the parent is at most O(log siblings) links away.
 */
static inline int node_is_top(const radix *tree, radix_node page) {
    return record_at(tree, record_at(tree, page)->up)->child == page;
}
static inline radix_node node_parent(const radix *tree, radix_node node) {
    if (node_is_root(tree, node))
        return RADIX_NONE;
    while (!node_is_top(tree, node))
        node = record_at(tree, node)->up;
    return record_at(tree, node)->up;
}

/* Children may stand below a root and below a full page. */
static inline int node_may_have_children(const radix *tree, radix_node node) {
    const radix_record *record = record_at(tree, node);
    return node_is_root(tree, node) || record->n_tokens == record->page_tokens;
}

/* A leaf without pins. */
static inline int node_may_go(const radix *tree, radix_node node) {
    const radix_record *record = record_at(tree, node);
    return !node_is_root(tree, node) && record->child == RADIX_NONE && record->busy == 0;
}

/* --- siblings.c: the children of one node, ordered by their tokens -------------------------------
 */

/*
 * A search for a place among siblings. All siblings between the nearest two that were looked at
 * share min(before, after) leading tokens with the query, so a comparison starts there: a whole
 * descent compares O(tokens + siblings looked at) tokens.
 */
typedef struct seek {
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t before;   /* leading tokens shared with the last one that stands in front */
    uint32_t after;    /* with the last one that stands behind */
    radix_node hidden; /* the place is that of this hidden page; RADIX_NONE: of the tokens */
} seek;

/* Tokens that a and b share from `shared` on, of which they are known to share the first `shared`;
 * limit is the length of the shorter one. */
static inline uint32_t tokens_shared(const uint32_t *a, const uint32_t *b, uint32_t shared,
                                     uint32_t limit) {
    while (shared < limit && a[shared] == b[shared])
        shared++;
    return shared;
}

/* Hidden pages stand behind all others, by their ids: so no tokens ever lead to one, and its tokens
 * are free for another page. */
static inline int seek_side_hidden(const radix *tree, seek *s, radix_node node) {
    int side = !node_is_hidden(record_at(tree, node)) ? 1 : (s->hidden > node) - (s->hidden < node);
    if (s->hidden == RADIX_NONE || side < 0)
        s->after = 0;
    else
        s->before = 0;
    return s->hidden == RADIX_NONE ? -1 : side;
}

/* Where the query stands: < 0 in front of node, 0 has its very tokens, > 0 behind. */
static inline int seek_side(const radix *tree, seek *s, radix_node node) {
    if (s->hidden != RADIX_NONE || node_is_hidden(record_at(tree, node)))
        return seek_side_hidden(tree, s, node);
    const uint32_t *tokens = tokens_at(tree, node);
    uint32_t n_tokens = record_at(tree, node)->n_tokens;
    uint32_t limit = n_tokens < s->n_tokens ? n_tokens : s->n_tokens;
    uint32_t known = s->before < s->after ? s->before : s->after;
    uint32_t shared = tokens_shared(s->tokens, tokens, known, limit);
    int side = shared < limit ? (s->tokens[shared] < tokens[shared] ? -1 : 1)
                              : (s->n_tokens > n_tokens) - (s->n_tokens < n_tokens);
    if (side < 0)
        s->after = shared;
    else
        s->before = shared;
    return side;
}

static inline seek seek_of(const radix *tree, radix_node page) {
    const radix_record *record = record_at(tree, page);
    return (seek){tokens_at(tree, page), record->n_tokens, 0, 0,
                  node_is_hidden(record) ? page : RADIX_NONE};
}

/*
 * Treap priority: the higher one stands above. A bijection of the id (no ties) that is stored
 * nowhere; neighbouring ids differ in all bits.
 */
static inline uint32_t node_priority(radix_node node) {
    node = (node ^ (node >> 16)) * 0x7feb352du;
    node = (node ^ (node >> 15)) * 0x846ca68bu;
    return node ^ (node >> 16);
}

/* node has its tokens set, is hidden or not held, and is in no treap; no child of parent that is
 * not hidden has its tokens. */
void radix_siblings_add(radix *tree, radix_node parent, radix_node node);
void radix_siblings_remove(radix *tree, radix_node node);
void radix_siblings_hold(radix *tree, radix_node node, int held);
uint8_t radix_best_held(const radix *tree,
                        radix_node page); /* computed, of the links and noted ones */

/* --- coldest.c: pages that may go, and the first of them -----------------------------------------
 */

/* The id is given out for the first time. */
void radix_cold_fresh(radix *tree, radix_node page);
/* Asks the processor for what removing the first one will look at, and for the neighbours of those
 * that may come next: who makes room mostly needs more than one page. */
void radix_cold_fetch_next(const radix *tree);
void radix_cold_add(radix *tree, radix_node page);
void radix_cold_remove(radix *tree, radix_node page);
/* The key of a page that stands there has changed. */
void radix_cold_moved(radix *tree, radix_node page);
/* a goes before b: smaller key, or the deeper one of equals. */
int radix_cold_before(const radix *tree, radix_node a, radix_node b);
int radix_cold_stands(const radix *tree, radix_node page);

#endif
