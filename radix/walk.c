/*
 * walk.c - what can be looked at: one node, and the runs of a whole tree.
 */
#include "radix/pool.h"

/* --- one node -----------------------------------------------------------------------------------
 */

radix_node radix_parent(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return node_parent(tree, node);
}

uint32_t radix_depth(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return record_at(tree, node)->depth;
}

const uint32_t *radix_tokens(const radix *tree, radix_node node, uint32_t *ret_n_tokens) {
    KVT_ASSERT(node_is_live(tree, node));
    *ret_n_tokens = record_at(tree, node)->n_tokens;
    return tokens_at(tree, node_is_root(tree, node) ? RADIX_NONE : node);
}

uint32_t radix_handle(const radix *tree, radix_node node, uint32_t slot) {
    KVT_ASSERT(node_is_live(tree, node) && slot < node_slots(record_at(tree, node)));
    return *handle_at(tree, node, slot);
}

uint32_t radix_slots(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return node_slots(record_at(tree, node));
}

uint64_t radix_key(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return *key_at(tree, node);
}

uint32_t radix_pins(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return node_pins(record_at(tree, node));
}

int radix_is_held(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return (record_at(tree, node)->flags & RADIX_HELD) != 0;
}

int radix_is_hidden(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return node_is_hidden(record_at(tree, node));
}

int radix_is_busy(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return record_at(tree, node)->busy > 0;
}

int radix_is_leaf(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return record_at(tree, node)->child == RADIX_NONE;
}

uint32_t radix_page_tokens(const radix *tree, radix_node node) {
    KVT_ASSERT(node_is_live(tree, node));
    return record_at(tree, node)->page_tokens;
}

/* --- runs ---------------------------------------------------------------------------------------
 */

static radix_node only_child(const radix *tree, radix_node node) {
    radix_node child = record_at(tree, node)->child;
    const radix_record *record = record_at(tree, child);
    return record->left == RADIX_NONE && record->right == RADIX_NONE ? child : RADIX_NONE;
}

static uint32_t count_children(const radix *tree, radix_node node) {
    uint32_t n = 0;
    for (radix_node child = radix_first_child(tree, node); child != RADIX_NONE;
         child = radix_next_sibling(tree, child))
        n++;
    return n;
}

/*
 * The run that starts at first. A pinned page ends its run, so that no pin is hidden: `pins` of the
 * rows are all the pins there are. Hence busy is the same all along: of pages without a pin of
 * their own and with one child each, all are busy through the last, or none is.
 */
static radix_run run_from(const radix *tree, radix_node first) {
    const radix_record *record = record_at(tree, first);
    radix_run run = {
        .first = first,
        .last = first,
        .depth = record->depth,
        .n_pages = 1,
        .n_tokens = record->n_tokens,
        .held = (record->flags & RADIX_HELD) != 0,
        .hidden = node_is_hidden(record),
        .busy = record->busy > 0,
    };
    while (node_pins(record) == 0) {
        radix_node next = only_child(tree, run.last);
        record = record_at(tree, next);
        if (next == RADIX_NONE || ((record->flags & RADIX_HELD) != 0) != run.held ||
            node_is_hidden(record))
            break;
        run.last = next;
        run.n_pages++;
        run.n_tokens += record->n_tokens;
    }
    run.pins = node_pins(record_at(tree, run.last));
    run.n_children = count_children(tree, run.last);
    return run;
}

int radix_walk(const radix *tree, radix_node root, int (*row)(void *context, const radix_run *run),
               void *context) {
    KVT_ASSERT(node_is_live(tree, root));
    radix_node node = radix_first_child(tree, root);
    while (node != RADIX_NONE) {
        radix_run run = run_from(tree, node);
        int answer = row(context, &run);
        if (answer != 0)
            return answer;
        node = radix_first_child(tree, run.last);
        /* At a leaf: the next sibling of the nearest page on the way up that has one. */
        for (radix_node up = run.last; node == RADIX_NONE && up != root; up = node_parent(tree, up))
            node = radix_next_sibling(tree, up);
    }
    return 0;
}
