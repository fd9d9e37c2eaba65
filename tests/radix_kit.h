/*
 * radix_kit.h - what the tests of the tree share: a small tree, labels, and a look at its answers.
 */
#ifndef KVT_TESTS_RADIX_KIT_H
#define KVT_TESTS_RADIX_KIT_H

#include "radix/radix.h"
#include "tests/check.h"

enum { PAGE = 16 };

static inline radix *make(uint32_t max_pages, uint32_t max_roots, uint32_t n_slots) {
    radix_limits limits = {max_pages, max_roots, PAGE, n_slots};
    size_t bytes = radix_bytes(&limits);
    void *memory = aligned_alloc(64, bytes);
    CHECK(memory != NULL);
    memset(memory, 0xa5, bytes); /* nothing may depend on zeroed memory */
    radix *tree;
    CHECK_EQ(radix_init(memory, bytes, &limits, &tree), KVT_OK);
    return tree;
}

static inline void audit(const radix *tree) {
    char why[200] = "";
    kvt_status status = radix_audit(tree, why, sizeof why);
    CHECK_MSG(status == KVT_OK, "%s", why);
}

static inline radix_node add_root(radix *tree) {
    radix_node root = RADIX_NONE;
    CHECK_EQ(radix_root_add(tree, PAGE, 1, &root), KVT_OK);
    return root;
}

/* n tokens that all are `value`, but the last is `last`. */
static inline const uint32_t *label(uint32_t value, uint32_t n, uint32_t last) {
    static uint32_t tokens[PAGE];
    CHECK(n >= 1 && n <= PAGE);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = value;
    tokens[n - 1] = last;
    return tokens;
}

static inline radix_node add(radix *tree, radix_node parent, const uint32_t *tokens,
                             uint32_t n_tokens, uint64_t key) {
    radix_node node = RADIX_NONE;
    CHECK_EQ(radix_insert(tree, parent, tokens, n_tokens, key, &node), KVT_OK);
    return node;
}

static inline radix_node add_held(radix *tree, radix_node parent, const uint32_t *tokens,
                                  uint32_t n_tokens) {
    radix_node node = add(tree, parent, tokens, n_tokens, 0);
    radix_set_held(tree, node, 1);
    return node;
}

static inline radix_match find(const radix *tree, radix_node from, const uint32_t *tokens,
                               size_t n) {
    radix_match match;
    radix_find(tree, from, tokens, n, &match);
    return match;
}

/* node, n_pages, held, held_pages, partial, partial_tokens */
static inline void check_match(radix_match match, radix_node node, uint32_t n_pages,
                               radix_node held, uint32_t held_pages, radix_node partial,
                               uint32_t partial_tokens) {
    CHECK_EQ(match.node, node);
    CHECK_EQ(match.n_pages, n_pages);
    CHECK_EQ(match.held, held);
    CHECK_EQ(match.held_pages, held_pages);
    CHECK_EQ(match.partial, partial);
    CHECK_EQ(match.partial_tokens, partial_tokens);
}

static inline radix_counts count(const radix *tree) {
    radix_counts counts;
    radix_count(tree, &counts);
    CHECK_EQ(counts.free + counts.busy + counts.idle, counts.max_pages);
    return counts;
}

#endif
