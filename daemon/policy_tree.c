/* policy_tree.c - the tree's keys are the policy's. */
#include "daemon/policy_tree.h"

#include "client/assert.h"

kvt_status policy_tree_insert(policy *p, radix *tree, radix_node parent, const uint32_t *tokens,
                              uint32_t n_tokens, uint64_t n_bytes, radix_node *ret_node) {
    kvt_status status = radix_insert(tree, parent, tokens, n_tokens, 0, ret_node);
    if (status == KVT_OK)
        radix_set_key(tree, *ret_node, policy_new(p, *ret_node, parent, tokens, n_tokens, n_bytes));
    return status;
}

void policy_tree_evicts(policy *p, const radix *tree, radix_node node) {
    policy_evicts(p, radix_key(tree, node));
}

void policy_tree_remove(policy *p, radix *tree, radix_node node) {
    kvt_status status = radix_remove(tree, node);
    KVT_ASSERT(status == KVT_OK);
    policy_gone(p, node);
}

/* What is known of prefixes lies about by their hashes, so it is asked for some pages early: those
 * between `tail` and where that is are in a ring, since the way up is the longer part of the work.
 */
void policy_tree_use(policy *p, radix *tree, radix_node tail, uint32_t n_again, int is_whole) {
    enum { AHEAD = 8 };
    radix_node ring[AHEAD], up = tail;
    uint32_t depth = radix_depth(tree, tail), n = depth < AHEAD ? depth : AHEAD;
    unsigned last = is_whole ? POLICY_LAST : 0;
    policy_request(p);
    for (uint32_t i = 0; i < n; i++, up = radix_parent(tree, up)) {
        ring[i] = up;
        policy_fetch(p, up);
    }
    for (uint32_t i = 0; depth > 0; depth--, i = (i + 1) % AHEAD) {
        radix_node node = ring[i];
        if (depth > AHEAD) {
            ring[i] = up;
            policy_fetch(p, up);
            up = radix_parent(tree, up);
        }
        unsigned again = depth <= n_again ? POLICY_AGAIN : 0;
        radix_set_key(tree, node, policy_use(p, node, again | last));
        last = 0;
    }
}
