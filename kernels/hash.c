/*
 * The hash (hash.h). XXH3_64bits is compiled into the system's library for the oldest machine that
 * it runs on. On x86 the library has the same function a second time, for each vector instruction
 * set, and chooses at the first call: several times faster, the same value. Where a build of the
 * library lacks it, the build leaves KVT_XXH_DISPATCH undefined.
 */
#include "kernels/hash.h"

#ifdef KVT_XXH_DISPATCH
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>

uint64_t kvt_hash(const void *bytes, size_t n) {
    return XXH3_64bits_dispatch(bytes, n);
}
#else
#include <xxhash.h>

uint64_t kvt_hash(const void *bytes, size_t n) {
    return XXH3_64bits(bytes, n);
}
#endif
