/*
 * The hash (hash.h). XXH3_64bits is compiled into the system's library for the oldest machine that
 * it runs on. On x86 the library has the same function a second time, for each vector instruction
 * set, and chooses at the first call: several times faster, the same value. Where a build of the
 * library lacks it, the build leaves KVT_XXH_DISPATCH undefined.
 */
#include "kernels/hash.h"

#define XXH_STATIC_LINKING_ONLY /* the size of XXH3_state_t */
#include <xxhash.h>
#ifdef KVT_XXH_DISPATCH
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#endif

_Static_assert(sizeof(kvt_hash_sum) >= sizeof(XXH3_state_t) &&
                   _Alignof(kvt_hash_sum) >= _Alignof(XXH3_state_t),
               "a kvt_hash_sum is an XXH3_state_t under another name");

static XXH3_state_t *state_of(kvt_hash_sum *sum) {
    return (XXH3_state_t *)(void *)sum->state;
}

uint64_t kvt_hash(const void *bytes, size_t n) {
#ifdef KVT_XXH_DISPATCH
    return XXH3_64bits_dispatch(bytes, n);
#else
    return XXH3_64bits(bytes, n);
#endif
}

void kvt_hash_begin(kvt_hash_sum *ret_sum) {
    XXH3_64bits_reset(state_of(ret_sum));
}

void kvt_hash_add(kvt_hash_sum *sum, const void *bytes, size_t n) {
#ifdef KVT_XXH_DISPATCH
    XXH3_64bits_update_dispatch(state_of(sum), bytes, n);
#else
    XXH3_64bits_update(state_of(sum), bytes, n);
#endif
}

uint64_t kvt_hash_end(const kvt_hash_sum *sum) {
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)sum->state);
}
