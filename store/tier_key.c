/* tier_key.c - see tier_key.h. */
#include "store/tier_key.h"
#include "client/assert.h"
#include "store/tier_record.h" /* the byte order of what is stored */

#include <string.h>
#include <xxhash.h>

static unsigned kept_bits = 8 * TIER_KEY_BYTES;

void tier_key_debug_bits(unsigned bits) {
    KVT_ASSERT(bits <= 8 * TIER_KEY_BYTES);
    kept_bits = bits;
}

static tier_key finish(XXH128_hash_t hash) {
    tier_key key;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(key.at, canonical.digest, TIER_KEY_BYTES);
    for (unsigned i = 0; i < TIER_KEY_BYTES; i++) {
        unsigned left = kept_bits > 8 * i ? kept_bits - 8 * i : 0;
        if (left < 8)
            key.at[i] = (uint8_t)(key.at[i] & (0xff00u >> left));
    }
    return key;
}

tier_key tier_key_root(const void *realm_bytes, size_t n_bytes) {
    return finish(XXH3_128bits(realm_bytes, n_bytes));
}

tier_key tier_key_child(const tier_key *parent, uint32_t slot, const uint32_t *tokens,
                        uint32_t n_tokens) {
    uint8_t bytes[TIER_KEY_BYTES + 8 + 4 * TIER_MAX_TOKENS];
    KVT_ASSERT(n_tokens <= TIER_MAX_TOKENS);
    memcpy(bytes, parent->at, TIER_KEY_BYTES);
    tier_store_u32(bytes + TIER_KEY_BYTES, slot);
    tier_store_u32(bytes + TIER_KEY_BYTES + 4, n_tokens);
    for (uint32_t i = 0; i < n_tokens; i++)
        tier_store_u32(bytes + TIER_KEY_BYTES + 8 + 4 * i, tokens[i]);
    return finish(XXH3_128bits(bytes, TIER_KEY_BYTES + 8 + 4 * (size_t)n_tokens));
}
