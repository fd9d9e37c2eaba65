/*
 * order.h - which page of a tier goes first: a heap of page indices by key, smallest key first.
 *
 *   heap:  {key, page} {key, page} ...        4 children each, so a step down reads one cache line
 *   place: [page] -> where in the heap, so that any page can be taken out or get another key
 *
 * One writer, no allocation after order_init; lives in a block that the caller hands in.
 */
#ifndef KVT_STORE_ORDER_H
#define KVT_STORE_ORDER_H

#include "client/kvtrunk.h"

typedef struct order order;
#define ORDER_NONE UINT32_MAX

/* pages: indices are below it. room: pages that can be in it at the same time. The memory must be
 * zeroed; what is never used is not touched. */
size_t order_bytes(uint32_t pages, uint32_t room);
kvt_status order_init(void *memory, size_t bytes, uint32_t pages, uint32_t room, order **ret_order);

/* Puts the page in, or gives it another key. Asserts that there is room. O(log n). */
void order_put(order *o, uint32_t page, uint64_t key);
void order_remove(order *o, uint32_t page); /* one that is not in it is left alone */
int order_has(const order *o, uint32_t page);
uint32_t order_count(const order *o);

/* The highest key that any page was ever given. */
uint64_t order_top(const order *o);

/* The page with the smallest key, or ORDER_NONE. */
uint32_t order_first(const order *o, uint64_t *ret_key);
/* The i-th of the heap, i < order_count: the first few are small, in no exact order. */
uint32_t order_at(const order *o, uint32_t i);

kvt_status order_audit(const order *o, char *why, size_t why_bytes);

#endif
