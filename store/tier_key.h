/*
 * tier_key.h - the name under which a page lies in a lower tier: a chain of XXH3-128 hashes.
 *
 *     root         = H(canonical bytes of the realm)
 *     key of page  = H(key of its parent (or root), slot, n_tokens, tokens)
 *
 * The parent of the pages of a node, one for each slot (rank, layer group), is the page of the node
 * in front in ONE slot, the realm's spine (TIER_FORMAT.md).
 *
 * A key FINDS a record; it never decides. What decides is a comparison of all that the record says
 * of itself, and of the serial number of the record in front of it (see tier.h): so two paths
 * whose keys are equal are a miss for one of them, not wrong bytes. tier_key_debug_bits makes that
 * happen in a test.
 *
 * Keys are the same in every process and after every restart: fixed seed, fields little-endian.
 */
#ifndef KVT_STORE_TIER_KEY_H
#define KVT_STORE_TIER_KEY_H

#include <stddef.h>
#include <stdint.h>

enum { TIER_KEY_BYTES = 16 };

typedef struct tier_key {
    uint8_t at[TIER_KEY_BYTES];
} tier_key;

tier_key tier_key_root(const void *realm_bytes, size_t n_bytes);

/* slot: which (rank, layer group) of the node; parent: of the spine's page in front, whatever its
 * slot is. */
tier_key tier_key_child(const tier_key *parent, uint32_t slot, const uint32_t *tokens,
                        uint32_t n_tokens);

static inline int tier_key_equal(const tier_key *a, const tier_key *b) {
    return __builtin_memcmp(a->at, b->at, TIER_KEY_BYTES) == 0;
}

/* For tests: keep so many bits of each key from now on (128: all of them, as it is at start). Not
 * for threads that make keys meanwhile. */
void tier_key_debug_bits(unsigned bits);

#endif
