/* copy.h - copying of much that is in no cache, as tiers do. Any thread; no overlap. */
#ifndef KVT_KERNELS_COPY_H
#define KVT_KERNELS_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Copies, and returns kvt_hash of the copy. For what is read again at once, to memory that was in
 * use just before. */
uint64_t kvt_copy_hashed(void *to, const void *from, size_t n);

/* Copies past the caches: for what is not soon read again on this processor. Saves the reading of
 * what is overwritten. Others see it when they see what this thread writes afterwards. */
void kvt_copy_past(void *to, const void *from, size_t n);

#endif
