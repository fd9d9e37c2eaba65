/*
 * policy_tree.h - policy and tree together: every change of the tree that the policy must hear of.
 * The core and `kvtrunk simulate` go through these, so that both evict the same pages.
 */
#ifndef KVT_DAEMON_POLICY_TREE_H
#define KVT_DAEMON_POLICY_TREE_H

#include "daemon/policy.h"
#include "radix/radix.h"

/* radix_insert, with the policy's key. n_bytes: what the page will take. */
kvt_status policy_tree_insert(policy *p, radix *tree, radix_node parent, const uint32_t *tokens,
                              uint32_t n_tokens, uint64_t n_bytes, radix_node *ret_node);

/* radix_remove of a leaf without pins. If it goes for want of room, policy_tree_evicts first. */
void policy_tree_remove(policy *p, radix *tree, radix_node node);
void policy_tree_evicts(policy *p, const radix *tree, radix_node node);

/*
 * The path to tail was asked for by one request, whose last page tail is, or not (is_whole). Of the
 * first n_again pages it is a request that goes on, and had them before. Cost: O(depth).
 */
void policy_tree_use(policy *p, radix *tree, radix_node tail, uint32_t n_again, int is_whole);

#endif
