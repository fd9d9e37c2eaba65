/*
 * radix.h - the tree of token prefixes: WHERE a prefix is. A pure data structure: no I/O, no clock,
 * no threads, no allocation. It lives in one block of memory that the caller hands in and holds no
 * raw pointers inside (every link is a 32-bit index), so the block may lie in a mapping that other
 * processes read at another address.
 *
 *   root (one per realm)
 *    |
 *   [page: 64 tokens]-[page]-[page]-+-[page]-[page: 17 tokens]     <- a short page is always a leaf
 *                                   '-[page]-[page]
 *
 * A node is one PAGE: an edge of the radix tree labelled with up to page_tokens tokens. The label
 * is the unit of sharing, so diverging never splits a label: the two pages become siblings, and the
 * second one's leading rows are copied on write by whoever fills it. That is why there is no split
 * operation, why a node's id never changes while it lives (pins, spills and readers may name it),
 * and why no two indexes can disagree about who owns a half. Long runs without branches cost
 * nothing extra: the ids of a path that is inserted at once are consecutive, so a walk reads two
 * arrays in sequence; radix_walk reports such runs as one row.
 *
 * Siblings are kept in a treap ordered by their tokens (lexicographic, a prefix before what it is a
 * prefix of). So the sibling that shares the most leading tokens with a query stands next to the
 * query's own place, and is found by comparing tokens: a hash decides nothing anywhere.
 *
 * Who may go. A node is BUSY if it is pinned or has a busy child; everything else may go, leaves
 * first: only the tail of a path is ever removed. The leaves that are not pinned are ordered by
 * (key, deeper first): the policy sets the keys, radix_coldest gives the first to go.
 * Counts of busy and idle nodes are kept exactly at every step, never estimated.
 *
 * HELD. A node whose bytes are there (in every slot that its realm needs) is marked held by the
 * caller; a match counts held nodes only as far as all in front of them are held as well.
 */
#ifndef KVT_RADIX_RADIX_H
#define KVT_RADIX_RADIX_H

#include "client/kvtrunk.h"

typedef struct radix radix;
typedef uint32_t radix_node;
#define RADIX_NONE 0u /* no node; node ids start at 1 */

typedef struct radix_limits {
    uint32_t max_pages;   /* nodes, 1 .. 2^30; roots do not count */
    uint32_t max_roots;   /* 1 .. 65,536 */
    uint32_t page_tokens; /* most tokens of a node, 16 .. 128: the stride of the token store */
    uint32_t n_slots;     /* most opaque 32-bit handles of a node, 1 .. 64 */
} radix_limits;

/* Bytes that radix_init needs for these limits; 0 if a limit is out of range. */
size_t radix_bytes(const radix_limits *limits);

/*
 * An empty tree in memory[0 .. bytes), aligned to 64, zeroed or not (fresh zeroed mappings stay
 * untouched where the pools are not used yet, so a large limit costs address space only). The block
 * stays the caller's; to end the tree, free the block. KVT_EINVAL: a limit; KVT_ELIMIT: bytes.
 */
kvt_status radix_init(void *memory, size_t bytes, const radix_limits *limits, radix **ret_tree);

/* --- roots ------------------------------------------------------------------------------------ */

/* A root for a realm whose pages have up to page_tokens tokens (<= limits.page_tokens) and n_slots
 * handles each (1 .. limits.n_slots). Roots are nodes without tokens; depth 0. KVT_ELIMIT:
 * max_roots; KVT_EINVAL: page_tokens, n_slots. */
kvt_status radix_root_add(radix *tree, uint32_t page_tokens, uint32_t n_slots,
                          radix_node *ret_root);

/* Takes back an empty root. KVT_EBUSY: it has children or pins. */
kvt_status radix_root_remove(radix *tree, radix_node root);

/* --- match ------------------------------------------------------------------------------------ */

typedef struct radix_match {
    radix_node node;     /* deepest node all of whose path equals the tokens (a full page, held or
                            not); `from` if none */
    uint32_t n_pages;    /* full pages between `from` and node */
    radix_node held;     /* deepest held node on that path (all in front of it are held too);
                            `from` if none */
    uint32_t held_pages; /* full pages between `from` and held */
    radix_node partial;  /* a held child of `held` whose leading partial_tokens tokens go on as the
                            query does; RADIX_NONE if partial_tokens is 0 */
    uint32_t partial_tokens;
    uint32_t visits; /* nodes looked at: what a test bounds instead of time */
} radix_match;

/*
 * The longest match of tokens[0 .. n_tokens) below `from` (a root or a full page that is held).
 * Changes nothing. Full pages are compared whole; `partial` is the best of the held siblings at the
 * end (ties: the longest page), be it a short page or a page that diverges; it may cover the
 * query's last tokens. partial is searched below `held` only. Cost: O(n_tokens) comparison plus
 * O(log siblings) per page; `visits` counts.
 */
void radix_find(const radix *tree, radix_node from, const uint32_t *tokens, size_t n_tokens,
                radix_match *ret_match);

/* The child of parent with exactly these tokens, or RADIX_NONE. */
radix_node radix_child_equal(const radix *tree, radix_node parent, const uint32_t *tokens,
                             uint32_t n_tokens);

/* --- change ----------------------------------------------------------------------------------- */

/*
 * Adds a child with these tokens (1 .. page_tokens of its root; parent is a root or a full page).
 * It is not held, not pinned, its handles are 0, its key is `key`. KVT_EEXIST: such a child is
 * there (*ret_node is set to it in this case too); KVT_EFULL: no free node; KVT_EINVAL: the parent
 * is a short page or n_tokens is out of range.
 */
kvt_status radix_insert(radix *tree, radix_node parent, const uint32_t *tokens, uint32_t n_tokens,
                        uint64_t key, radix_node *ret_node);

/* Removes a leaf that is not pinned; its id may be given out again. KVT_EBUSY: pinned or not a
 * leaf (asked for by a caller that must not know better, e.g. a test). */
kvt_status radix_remove(radix *tree, radix_node node);

/* A pin keeps the node, and so all in front of it. Counted; a root may be pinned. Cost: O(depth)
 * the first time, O(1) where a node below or here is pinned already. */
void radix_pin(radix *tree, radix_node node);
void radix_unpin(radix *tree, radix_node node); /* asserts that it was pinned */

/* Sets the key of the node and of every node in front of it to `key` (policy: time of last use). */
void radix_touch(radix *tree, radix_node node, uint64_t key);
/* Sets the key of this node alone. */
void radix_set_key(radix *tree, radix_node node, uint64_t key);

void radix_set_held(radix *tree, radix_node node, int held);
void radix_set_handle(radix *tree, radix_node node, uint32_t slot, uint32_t handle);

/*
 * No match finds this page from now on, nor what is below it, and its tokens are free for another
 * page: for what must not be used any more while somebody still reads it. Pins, handles, held,
 * parent and children stay as they are; it goes as every page does. There is no way back. Hidden
 * pages stand behind their siblings. (A match that starts below one finds what is there.)
 */
void radix_hide(radix *tree, radix_node node);

/* The leaf without pins that has the smallest key (the deeper one of equals), or RADIX_NONE. Cost:
 * O(1). */
radix_node radix_coldest(const radix *tree);

/* --- look ------------------------------------------------------------------------------------- */

/* RADIX_NONE for a root. O(1) for an only child, else O(log siblings). */
radix_node radix_parent(const radix *tree, radix_node node);
uint32_t radix_depth(const radix *tree, radix_node node); /* pages from the root; root = 0 */
const uint32_t *radix_tokens(const radix *tree, radix_node node, uint32_t *ret_n_tokens);
uint32_t radix_handle(const radix *tree, radix_node node, uint32_t slot);
uint32_t radix_slots(const radix *tree, radix_node node); /* of its root's pages */
uint64_t radix_key(const radix *tree, radix_node node);
uint32_t radix_pins(const radix *tree, radix_node node);
int radix_is_held(const radix *tree, radix_node node);
int radix_is_busy(const radix *tree, radix_node node);
int radix_is_hidden(const radix *tree, radix_node node); /* itself, not through what is in front */
int radix_is_leaf(const radix *tree, radix_node node);
uint32_t radix_page_tokens(const radix *tree, radix_node node); /* of its root: a full page */

/* Children in token order: first, then next until RADIX_NONE. prev/next among siblings. O(log). */
radix_node radix_first_child(const radix *tree, radix_node node);
radix_node radix_next_sibling(const radix *tree, radix_node node);
radix_node radix_prev_sibling(const radix *tree, radix_node node);

typedef struct radix_counts {
    uint32_t max_pages;
    uint32_t free;   /* free + busy + idle == max_pages, always */
    uint32_t busy;   /* pinned, or in front of a pinned one */
    uint32_t idle;   /* may go, tails first */
    uint32_t leaves; /* idle leaves: one of them is the coldest */
    uint32_t roots;
} radix_counts;
void radix_count(const radix *tree, radix_counts *ret_counts);

/*
 * A row of the dump: a run of pages without branches (each but the last has exactly one child, all
 * have the same held and busy state, and a page with pins of its own is the last).
 */
typedef struct radix_run {
    radix_node first, last;
    uint32_t depth; /* of first, root's children = 1 */
    uint32_t n_pages;
    uint32_t n_tokens;
    uint32_t n_children; /* of last */
    uint32_t pins;       /* of last */
    int held;
    int busy;
    int hidden; /* first is */
} radix_run;
/* Calls row() for each run below root, depth first in token order, until it returns nonzero (which
 * is returned; else 0). No recursion, no allocation. The tree must not change meanwhile. */
int radix_walk(const radix *tree, radix_node root, int (*row)(void *context, const radix_run *run),
               void *context);

/*
 * Walks the whole structure and checks every invariant that is stated here: links both ways, order
 * of siblings, treap priorities, depths, busy counts recomputed from pins, who may go and who of
 * them goes first, free list disjoint from the live nodes, counts. KVT_EINTERNAL with a sentence in
 * why (may be NULL). For tests: O(pages), allocates nothing.
 */
kvt_status radix_audit(const radix *tree, char *why, size_t why_bytes);

#endif
