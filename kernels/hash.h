/* hash.h - the hash of FORMAT.md: XXH3, 64 bits, seed 0. Any thread. */
#ifndef KVT_KERNELS_HASH_H
#define KVT_KERNELS_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint64_t kvt_hash(const void *bytes, size_t n);

/* The same of bytes that come one after the other, while they are in the processor's cache for
 * something else: kvt_hash of all that was added. May be copied, to go back to an earlier state. */
typedef struct kvt_hash_sum {
    uint8_t state[576] __attribute__((aligned(64)));
} kvt_hash_sum;

void kvt_hash_begin(kvt_hash_sum *ret_sum);
void kvt_hash_add(kvt_hash_sum *sum, const void *bytes, size_t n);
uint64_t kvt_hash_end(const kvt_hash_sum *sum);

#ifdef __cplusplus
}
#endif

#endif
