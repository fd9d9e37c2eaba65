/*
 * find.c - the longest match: page by page through the children that equal the query, then the held
 * sibling that goes on longest.
 *
 *   query   [....P....][....P....][....P....][..rest..]
 *   path    [ child   ][ child   ] no child equals ->  best held child of the last held page
 *
 * A long path whose ids follow each other is two arrays read in sequence. The processor fetches the
 * records ahead by itself, but not enough of the tokens, so those are asked for some pages early.
 */
#include <string.h>

#include "radix/pool.h"

/* --- equal --------------------------------------------------------------------------------------
 */

static int page_equal(const radix *tree, radix_node page, const uint32_t *tokens,
                      uint32_t n_tokens) {
    const radix_record *record = record_at(tree, page);
    return record->n_tokens == n_tokens && !node_is_hidden(record) &&
           memcmp(tokens_at(tree, page), tokens, n_tokens * sizeof *tokens) == 0;
}

/* In the treap below top; adds the nodes looked at to *visits. */
static radix_node find_equal(const radix *tree, radix_node top, const uint32_t *tokens,
                             uint32_t n_tokens, uint32_t *visits) {
    seek s = {tokens, n_tokens, 0, 0, RADIX_NONE};
    while (top != RADIX_NONE) {
        int side = seek_side(tree, &s, top);
        ++*visits;
        if (side == 0)
            return top;
        top = side < 0 ? record_at(tree, top)->left : record_at(tree, top)->right;
    }
    return RADIX_NONE;
}

radix_node radix_child_equal(const radix *tree, radix_node parent, const uint32_t *tokens,
                             uint32_t n_tokens) {
    KVT_ASSERT(node_is_live(tree, parent));
    uint32_t visits = 0;
    return find_equal(tree, record_at(tree, parent)->child, tokens, n_tokens, &visits);
}

/* --- partial ------------------------------------------------------------------------------------
 */

static uint32_t shared_with(const radix *tree, radix_node page, const uint32_t *tokens,
                            uint32_t n_tokens) {
    uint32_t limit = record_at(tree, page)->n_tokens;
    if (node_is_hidden(record_at(tree, page)))
        return 0;
    return tokens_shared(tokens, tokens_at(tree, page), 0, limit < n_tokens ? limit : n_tokens);
}

/* The first (last) held page of a treap that has one. */
static radix_node outermost_held(const radix *tree, radix_node top, int last, uint32_t *visits) {
    for (;;) {
        const radix_record *record = record_at(tree, top);
        radix_node out = last ? record->right : record->left;
        radix_node in = last ? record->left : record->right;
        ++*visits;
        if (record_at(tree, out)->best_held > 0)
            top = out;
        else if (node_is_held(record))
            return top;
        else
            top = in;
    }
}

typedef struct held_pair {
    radix_node before; /* the last held page that stands in front of the query or equals it */
    radix_node after;  /* the first held one behind it */
} held_pair;

static held_pair held_neighbours(const radix *tree, radix_node top, const uint32_t *tokens,
                                 uint32_t n_tokens, uint32_t *visits) {
    seek s = {tokens, n_tokens, 0, 0, RADIX_NONE};
    /* The deepest turns at which the page or the treap left behind holds something. */
    held_pair turn = {RADIX_NONE, RADIX_NONE};
    while (record_at(tree, top)->best_held > 0) {
        const radix_record *record = record_at(tree, top);
        ++*visits;
        if (seek_side(tree, &s, top) < 0) {
            if (node_is_held(record) || record_at(tree, record->right)->best_held > 0)
                turn.after = top;
            top = record->left;
        } else {
            if (node_is_held(record) || record_at(tree, record->left)->best_held > 0)
                turn.before = top;
            top = record->right;
        }
    }
    if (turn.before != RADIX_NONE && !node_is_held(record_at(tree, turn.before)))
        turn.before = outermost_held(tree, record_at(tree, turn.before)->left, 1, visits);
    if (turn.after != RADIX_NONE && !node_is_held(record_at(tree, turn.after)))
        turn.after = outermost_held(tree, record_at(tree, turn.after)->right, 0, visits);
    return turn;
}

/* The best so far: a page, or the treap below it that has one. */
typedef struct longest {
    radix_node top;
    uint32_t n_tokens;
    int whole_treap;
} longest;

static void longest_of_page(const radix *tree, radix_node page, longest *best) {
    const radix_record *record = record_at(tree, page);
    if (node_is_held(record) && record->n_tokens > best->n_tokens)
        *best = (longest){page, record->n_tokens, 0};
}

static void longest_of_treap(const radix *tree, radix_node top, longest *best) {
    if (record_at(tree, top)->best_held > best->n_tokens)
        *best = (longest){top, record_at(tree, top)->best_held, 1};
}

/*
 * The longest held page of those that start with the prefix; at least one does. They stand next to
 * each other, so below the topmost of them each step inward takes in a whole treap.
 */
static radix_node longest_with_prefix(const radix *tree, radix_node top, const uint32_t *prefix,
                                      uint32_t n_prefix, uint32_t *visits) {
    seek s = {prefix, n_prefix, 0, 0, RADIX_NONE};
    for (;;) {
        int side = seek_side(tree, &s, top);
        ++*visits;
        if ((side < 0 ? s.after : s.before) == n_prefix)
            break;
        top = side < 0 ? record_at(tree, top)->left : record_at(tree, top)->right;
    }
    longest best = {RADIX_NONE, 0, 0};
    longest_of_page(tree, top, &best);
    for (int last = 0; last <= 1; last++) {
        radix_node at = last ? record_at(tree, top)->right : record_at(tree, top)->left;
        while (at != RADIX_NONE) {
            radix_node out = last ? record_at(tree, at)->right : record_at(tree, at)->left;
            radix_node in = last ? record_at(tree, at)->left : record_at(tree, at)->right;
            ++*visits;
            if (shared_with(tree, at, prefix, n_prefix) == n_prefix) {
                longest_of_page(tree, at, &best);
                longest_of_treap(tree, in, &best);
                at = out;
            } else {
                at = in;
            }
        }
    }
    while (best.whole_treap) {
        const radix_record *record = record_at(tree, best.top);
        ++*visits;
        if (node_is_held(record) && record->n_tokens == best.n_tokens)
            break;
        best.top = record_at(tree, record->left)->best_held == best.n_tokens ? record->left
                                                                             : record->right;
    }
    return best.top;
}

/*
 * The held child of match->held that shares most tokens with the query, of equals the longest. The
 * more two siblings share, the closer they stand, so the most is shared by a held neighbour of the
 * query's own place.
 */
static void find_partial(const radix *tree, const uint32_t *tokens, uint32_t n_tokens,
                         radix_match *match) {
    radix_node top = record_at(tree, match->held)->child;
    held_pair pair = held_neighbours(tree, top, tokens, n_tokens, &match->visits);
    uint32_t before = 0, after = 0;
    if (pair.before != RADIX_NONE)
        before = shared_with(tree, pair.before, tokens, n_tokens);
    if (pair.after != RADIX_NONE)
        after = shared_with(tree, pair.after, tokens, n_tokens);
    match->partial_tokens = before > after ? before : after;
    if (match->partial_tokens == 0)
        return;
    match->partial = before > after ? pair.before : pair.after;
    if (record_at(tree, match->partial)->n_tokens < record_at(tree, match->partial)->page_tokens)
        match->partial =
            longest_with_prefix(tree, top, tokens, match->partial_tokens, &match->visits);
}

/*
 * Asks for the tokens AHEAD_BYTES behind the page's: what will be compared soon if the ids follow
 * each other, a few instructions lost if not. 4 KiB did better than 2 and than 8; and into the
 * second cache better than into the first, which can wait for a few lines only at a time.
 */
enum { AHEAD_BYTES = 4096, CACHE_LINE_BYTES = 64 };

static void fetch_ahead(const radix *tree, radix_node page, uint32_t page_tokens) {
    /* As a number: it may lie behind the block, where fetching does nothing. */
    uintptr_t ahead = (uintptr_t)tokens_at(tree, page) + AHEAD_BYTES;
    for (uintptr_t i = 0; i < page_tokens * sizeof(uint32_t); i += CACHE_LINE_BYTES)
        __builtin_prefetch((const void *)(ahead + i), 0, 2);
}

/* --- find ---------------------------------------------------------------------------------------
 */

void radix_find(const radix *tree, radix_node from, const uint32_t *tokens, size_t n_tokens,
                radix_match *ret_match) {
    KVT_ASSERT(node_is_live(tree, from) && node_may_have_children(tree, from));
    const uint32_t page_tokens = record_at(tree, from)->page_tokens;
    radix_match match = {.node = from, .held = from};
    /* Below a page that is not held nothing counts as held: the caller forgets, but does not lie.
     */
    int from_held = node_is_root(tree, from) || radix_is_held(tree, from);
    int all_held = from_held;
    size_t rest = n_tokens;

    for (; rest >= page_tokens; rest -= page_tokens) {
        radix_node child = record_at(tree, match.node)->child;
        const radix_record *record = record_at(tree, child);
        const uint32_t *page = tokens + (n_tokens - rest);
        if (child == RADIX_NONE)
            break;
        fetch_ahead(tree, child, page_tokens);
        if (record->left == RADIX_NONE && record->right == RADIX_NONE) {
            match.visits++;
            if (!page_equal(tree, child, page, page_tokens))
                break;
        } else {
            child = find_equal(tree, child, page, page_tokens, &match.visits);
            if (child == RADIX_NONE)
                break;
            record = record_at(tree, child);
        }
        match.node = child;
        match.n_pages++;
        all_held = all_held && node_is_held(record);
        if (all_held) {
            match.held = child;
            match.held_pages++;
        }
    }

    size_t held_tokens = (size_t)match.held_pages * page_tokens;
    size_t left = n_tokens - held_tokens;
    if (left > 0 && from_held)
        find_partial(tree, tokens + held_tokens, left < page_tokens ? (uint32_t)left : page_tokens,
                     &match);
    *ret_match = match;
}
