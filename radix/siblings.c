/*
 * siblings.c - the children of one node: a treap, ordered by tokens, with the higher priority
 * above.
 *
 *         parent
 *           | child
 *         [ 30.. ]            `up` leads back along every link, so a page is taken out, held or not
 *   left /        \ right     held, and its neighbours are found, without comparing tokens: only
 *    [ 10.. ]    [ 70.. ]     match and insert come down from the top.
 *
 * Each record also carries the longest held page of its treap (best_held). So the nearest held
 * neighbour of a place, and the longest of those that share a prefix, are found in O(log siblings)
 * however many pages that are not held stand between.
 */
#include "radix/pool.h"

/* Makes *link, which is one of above's, lead to node (RADIX_NONE: nowhere). */
static void hang(radix *tree, radix_node above, uint32_t *link, radix_node node) {
    *link = node;
    if (node != RADIX_NONE)
        record_edit(tree, node)->up = above;
}

uint8_t radix_best_held(const radix *tree, radix_node page) {
    const radix_record *record = record_at(tree, page);
    uint8_t left = record_at(tree, record->left)->best_held;
    uint8_t right = record_at(tree, record->right)->best_held;
    uint8_t own = node_is_held(record) ? record->n_tokens : 0;
    uint8_t below = left > right ? left : right;
    return own > below ? own : below;
}

/* Mends best_held from node upward, as far as `stop`, which is not mended: all of these may have
 * got other pages below them. */
static void mend_to(radix *tree, radix_node node, radix_node stop) {
    for (; node != stop; node = record_at(tree, node)->up)
        record_edit(tree, node)->best_held = radix_best_held(tree, node);
}

/* Mends node and, as long as that changes something, what is above it in the treap. */
static void mend(radix *tree, radix_node node) {
    for (;;) {
        radix_record *record = record_edit(tree, node);
        uint8_t best = radix_best_held(tree, node);
        if (best == record->best_held)
            return;
        record->best_held = best;
        if (node_is_top(tree, node))
            return;
        node = record->up;
    }
}

void radix_siblings_add(radix *tree, radix_node parent, radix_node node) {
    radix_record *record = record_edit(tree, node);
    seek s = seek_of(tree, node);

    /* Down to the first that must stand below node ... */
    radix_node above = parent;
    uint32_t *link = &record_edit(tree, parent)->child;
    while (*link != RADIX_NONE && node_priority(*link) > node_priority(node)) {
        above = *link;
        radix_record *higher = record_edit(tree, above);
        link = seek_side(tree, &s, above) < 0 ? &higher->left : &higher->right;
    }
    radix_node rest = *link;
    hang(tree, above, link, node);

    /* ... and what is below there is split into what stands in front of node and behind it. */
    radix_node left_above = node, right_above = node;
    uint32_t *left = &record->left, *right = &record->right;
    while (rest != RADIX_NONE) {
        radix_node next = rest;
        radix_record *lower = record_edit(tree, next);
        if (seek_side(tree, &s, next) < 0) {
            rest = lower->left;
            hang(tree, right_above, right, next);
            right_above = next;
            right = &lower->left;
        } else {
            rest = lower->right;
            hang(tree, left_above, left, next);
            left_above = next;
            left = &lower->right;
        }
    }
    *left = RADIX_NONE;
    *right = RADIX_NONE;
    mend_to(tree, left_above, node);
    mend_to(tree, right_above, node);
    /* node itself is not held, so nothing changes for what is above it. */
    record->best_held = radix_best_held(tree, node);
}

void radix_siblings_remove(radix *tree, radix_node node) {
    const radix_record *record = record_at(tree, node);
    radix_node up = record->up;
    radix_record *higher = record_edit(tree, up);
    int was_top = higher->child == node;
    uint32_t *link = was_top                ? &higher->child
                     : higher->left == node ? &higher->left
                                            : &higher->right;

    /* The two treaps below node are merged into its place. What becomes the top of both has the
     * better best_held of both, so nothing below it need be looked at for that. */
    radix_node above = up, left = record->left, right = record->right;
    uint8_t best = record_at(tree, left)->best_held, best_right = record_at(tree, right)->best_held;
    best = best > best_right ? best : best_right;
    while (left != RADIX_NONE && right != RADIX_NONE) {
        int take_left = node_priority(left) > node_priority(right);
        radix_node top = take_left ? left : right, other = take_left ? right : left;
        radix_record *taken = record_edit(tree, top);
        if (taken->best_held < record_at(tree, other)->best_held)
            taken->best_held = record_at(tree, other)->best_held;
        hang(tree, above, link, top);
        above = top;
        link = take_left ? &taken->right : &taken->left;
        left = take_left ? *link : left;
        right = take_left ? right : *link;
    }
    hang(tree, above, link, left != RADIX_NONE ? left : right);
    if (!was_top && best != record->best_held)
        mend(tree, up);
}

void radix_siblings_hold(radix *tree, radix_node node, int held) {
    radix_record *record = record_edit(tree, node);
    record->flags = (uint8_t)(held ? record->flags | RADIX_HELD : record->flags & ~RADIX_HELD);
    mend(tree, node);
}

/* --- in token order -----------------------------------------------------------------------------
 */

/* The first (last) page of the treap below top. */
static radix_node outermost(const radix *tree, radix_node top, int last) {
    for (;;) {
        const radix_record *record = record_at(tree, top);
        radix_node out = last ? record->right : record->left;
        if (out == RADIX_NONE)
            return top;
        top = out;
    }
}

/* The next page (behind != 0) or the one before. */
static radix_node neighbour(const radix *tree, radix_node page, int behind) {
    const radix_record *record = record_at(tree, page);
    radix_node below = behind ? record->right : record->left;
    if (below != RADIX_NONE)
        return outermost(tree, below, !behind);
    /* The first above that stands on that side of the way up. */
    while (!node_is_top(tree, page)) {
        radix_node up = record_at(tree, page)->up;
        const radix_record *higher = record_at(tree, up);
        if ((behind ? higher->left : higher->right) == page)
            return up;
        page = up;
    }
    return RADIX_NONE;
}

radix_node radix_first_child(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    radix_node top = record_at(tree, node)->child;
    return top == RADIX_NONE ? RADIX_NONE : outermost(tree, top, 0);
}

radix_node radix_next_sibling(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return node_is_root(tree, node) ? RADIX_NONE : neighbour(tree, node, 1);
}

radix_node radix_prev_sibling(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return node_is_root(tree, node) ? RADIX_NONE : neighbour(tree, node, 0);
}
