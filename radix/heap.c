/*
 * heap.c - the pages that may go now (leaves without pins), in the order in which the policy wants
 * them gone: smallest key first, the deeper one of equals.
 *
 * A heap of four children per slot: half the levels of a binary one, and the four children's ids
 * lie in one 16-byte line. The top stands in slot 3, so that the children of slot s are
 * 4s - 8 .. 4s - 5:
 *
 *   slot  0 1 2 | 3 | 4 5 6 7 | 8 .. 11 | 12 .. 15 | ...
 *       (unused) top  its four  those of 4, of 5 ...
 *
 * Slot 0 is therefore free to mean "not in the heap". A comparison reads ranks only; they hold
 * nothing else.
 */
#include "radix/pool.h"

static radix_node *heap_edit(radix *tree) {
    return (radix_node *)(void *)((char *)tree + tree->heap_at);
}

radix_node radix_heap_at(const radix *tree, uint32_t slot) {
    return ((const radix_node *)(const void *)((const char *)tree + tree->heap_at))[slot];
}

static int rank_before(const radix_rank *a, const radix_rank *b) {
    return a->key < b->key || (a->key == b->key && a->depth > b->depth);
}

int radix_heap_before(const radix *tree, radix_node a, radix_node b) {
    return rank_before(rank_at(tree, a), rank_at(tree, b));
}

static void put(radix *tree, uint32_t slot, radix_node page) {
    heap_edit(tree)[slot] = page;
    rank_edit(tree, page)->slot = slot;
}

/* Fills the hole at slot with page after moving the hole up to where page may stand. */
static void rise(radix *tree, uint32_t slot, radix_node page) {
    const radix_node *heap = heap_edit(tree);
    while (slot > RADIX_HEAP_TOP && radix_heap_before(tree, page, heap[heap_slot_above(slot)])) {
        put(tree, slot, heap[heap_slot_above(slot)]);
        slot = heap_slot_above(slot);
    }
    put(tree, slot, page);
}

/* The same, down. */
static void sink(radix *tree, uint32_t slot, radix_node page) {
    const radix_node *heap = heap_edit(tree);
    const radix_rank *ranks = rank_at(tree, 0);
    uint64_t end = (uint64_t)RADIX_HEAP_TOP + tree->n_heap; /* the slot behind the last */
    for (;;) {
        uint64_t first = 4 * (uint64_t)slot - 8;
        uint64_t last = first + 4 < end ? first + 4 : end;
        radix_node least = page;
        uint64_t at = 0;
        for (uint64_t i = first; i < last; i++) {
            if (rank_before(&ranks[heap[i]], &ranks[least])) {
                least = heap[i];
                at = i;
            }
        }
        if (at == 0)
            break;
        put(tree, slot, least);
        slot = (uint32_t)at;
    }
    put(tree, slot, page);
}

static void settle(radix *tree, uint32_t slot, radix_node page) {
    if (slot > RADIX_HEAP_TOP &&
        radix_heap_before(tree, page, radix_heap_at(tree, heap_slot_above(slot))))
        rise(tree, slot, page);
    else
        sink(tree, slot, page);
}

void radix_heap_add(radix *tree, radix_node page) {
    KVT_ASSERT(rank_at(tree, page)->slot == 0);
    rise(tree, RADIX_HEAP_TOP + tree->n_heap++, page);
}

void radix_heap_remove(radix *tree, radix_node page) {
    uint32_t slot = rank_at(tree, page)->slot;
    KVT_ASSERT(slot != 0);
    rank_edit(tree, page)->slot = 0;
    radix_node last = radix_heap_at(tree, RADIX_HEAP_TOP + --tree->n_heap);
    if (last != page)
        settle(tree, slot, last);
}

void radix_heap_replace(radix *tree, radix_node old, radix_node page) {
    uint32_t slot = rank_at(tree, old)->slot;
    KVT_ASSERT(slot != 0 && rank_at(tree, page)->slot == 0);
    rank_edit(tree, old)->slot = 0;
    settle(tree, slot, page);
}

void radix_heap_moved(radix *tree, radix_node page) {
    settle(tree, rank_at(tree, page)->slot, page);
}

radix_node radix_coldest(const radix *tree) {
    return tree->n_heap ? radix_heap_at(tree, RADIX_HEAP_TOP) : RADIX_NONE;
}
