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

void policy_tree_use(policy *p, radix *tree, radix_node tail, uint32_t n_again, int is_whole) {
    enum { AHEAD = 8 };
    policy_request(p);
    unsigned last = is_whole ? POLICY_LAST : 0;
    uint32_t depth = radix_depth(tree, tail), n_ahead = 0;
    radix_node ahead = tail;
    for (radix_node node = tail; depth > 0; node = radix_parent(tree, node), depth--) {
        /* What is known of prefixes lies about by their hashes: asked for some pages early. */
        for (; n_ahead < AHEAD && n_ahead < depth; n_ahead++) {
            policy_fetch(p, ahead);
            ahead = radix_parent(tree, ahead);
        }
        n_ahead--;
        unsigned again = depth <= n_again ? POLICY_AGAIN : 0;
        radix_set_key(tree, node, policy_use(p, node, again | last));
        last = 0;
    }
}
