/* hash.h - the hash of FORMAT.md: XXH3, 64 bits, seed 0. Any thread. */
#ifndef KVT_KERNELS_HASH_H
#define KVT_KERNELS_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t kvt_hash(const void *bytes, size_t n);

#endif
