/*
 * heap.c - the pages that may go now (leaves without pins), in the order in which the policy wants
 * them gone: smallest key first, the deeper one of equals.
 *
 * A heap of four children per slot: half the levels of a binary one. The top stands in slot 3, so
 * that the children of slot s are 4s - 8 .. 4s - 5, and lie side by side in a cache line:
 *
 *   slot  0 1 2 | 3 | 4 5 6 7 | 8 .. 11 | 12 .. 15 | ...
 *       (unused) top  its four  those of 4, of 5 ...
 *
 * Slot 0 is therefore free to mean "not in the heap".
 *
 * An item has a rough key beside its page's id, so four children are compared within 32 bytes of
 * one cache line, and the 16 below them, which lie in two, are asked for meanwhile. (Two levels
 * ahead, eight lines, did worse on a busy machine.) Keys themselves and depths, each at another
 * place, are read only where rough keys are equal.
 */
#include "radix/pool.h"

/* The first 27 bits, and before them how many follow: the order is kept, but for equals. */
uint32_t radix_heap_rough(uint64_t key) {
    enum { BITS = 27 };
    if (key < UINT64_C(1) << BITS)
        return (uint32_t)key;
    uint32_t n_more = 64u - BITS - (uint32_t)__builtin_clzll(key);
    return (n_more << (BITS - 1)) + (uint32_t)(key >> n_more);
}

int radix_heap_before(const radix *tree, radix_node a, radix_node b) {
    uint64_t a_key = *key_at(tree, a), b_key = *key_at(tree, b);
    return a_key < b_key ||
           (a_key == b_key && record_at(tree, a)->depth > record_at(tree, b)->depth);
}

static int item_before(const radix *tree, radix_heap_item a, radix_heap_item b) {
    return a.rough < b.rough || (a.rough == b.rough && radix_heap_before(tree, a.page, b.page));
}

static radix_heap_item item_of(const radix *tree, radix_node page) {
    return (radix_heap_item){radix_heap_rough(*key_at(tree, page)), page};
}

static void put(radix *tree, uint32_t slot, radix_heap_item item) {
    *heap_edit(tree, slot) = item;
    record_edit(tree, item.page)->busy = RADIX_IN_HEAP | slot;
}

/* Fills the hole at slot with item after moving the hole up to where item may stand. */
static void rise(radix *tree, uint32_t slot, radix_heap_item item) {
    while (slot > RADIX_HEAP_TOP) {
        radix_heap_item above = *heap_at(tree, heap_slot_above(slot));
        if (!item_before(tree, item, above))
            break;
        put(tree, slot, above);
        slot = heap_slot_above(slot);
    }
    put(tree, slot, item);
}

/* Of the n slots from `first` on, the first of those that go before all others. Four without equals
 * are compared without a branch: which one it is cannot be foretold. */
static uint32_t least_of(const radix *tree, uint32_t first, uint32_t n) {
    const radix_heap_item *items = heap_at(tree, first);
    if (n == 4) {
        uint32_t left = items[1].rough < items[0].rough;
        uint32_t right = 2 + (items[3].rough < items[2].rough);
        uint32_t a = items[left].rough, b = items[right].rough;
        uint32_t rough = b < a ? b : a;
        int n_equal = (items[0].rough == rough) + (items[1].rough == rough) +
                      (items[2].rough == rough) + (items[3].rough == rough);
        if (n_equal == 1)
            return first + (b < a ? right : left);
    }
    uint32_t least = 0;
    for (uint32_t i = 1; i < n; i++)
        if (item_before(tree, items[i], items[least]))
            least = i;
    return first + least;
}

/* The same, down. */
static void sink(radix *tree, uint32_t slot, radix_heap_item item) {
    uint64_t end = (uint64_t)RADIX_HEAP_TOP + tree->n_heap; /* the slot behind the last */
    for (;;) {
        uint64_t first = 4 * (uint64_t)slot - 8;
        if (first >= end)
            break;
        /* As a number: it may lie behind the block, where fetching does nothing. */
        uintptr_t below = (uintptr_t)heap_at(tree, 0) + (4 * first - 8) * sizeof item;
        __builtin_prefetch((const void *)below);
        __builtin_prefetch((const void *)(below + 64));
        uint32_t n = first + 4 < end ? 4 : (uint32_t)(end - first);
        uint32_t at = least_of(tree, (uint32_t)first, n);
        radix_heap_item least = *heap_at(tree, at);
        if (!item_before(tree, least, item))
            break;
        put(tree, slot, least);
        slot = at;
    }
    put(tree, slot, item);
}

static void settle(radix *tree, uint32_t slot, radix_heap_item item) {
    if (slot > RADIX_HEAP_TOP && item_before(tree, item, *heap_at(tree, heap_slot_above(slot))))
        rise(tree, slot, item);
    else
        sink(tree, slot, item);
}

void radix_heap_add(radix *tree, radix_node page) {
    KVT_ASSERT(record_at(tree, page)->busy == 0);
    rise(tree, RADIX_HEAP_TOP + tree->n_heap++, item_of(tree, page));
}

/* Takes the page's slot away from it; a hole is left. */
static uint32_t leave(radix *tree, radix_node page) {
    uint32_t slot = node_slot(record_at(tree, page));
    KVT_ASSERT(slot != 0);
    record_edit(tree, page)->busy = 0;
    return slot;
}

void radix_heap_remove(radix *tree, radix_node page) {
    uint32_t slot = leave(tree, page);
    radix_heap_item last = *heap_at(tree, RADIX_HEAP_TOP + --tree->n_heap);
    if (last.page != page)
        settle(tree, slot, last);
}

void radix_heap_replace(radix *tree, radix_node old, radix_node page) {
    KVT_ASSERT(record_at(tree, page)->busy == 0);
    settle(tree, leave(tree, old), item_of(tree, page));
}

void radix_heap_moved(radix *tree, radix_node page) {
    settle(tree, node_slot(record_at(tree, page)), item_of(tree, page));
}

radix_node radix_coldest(const radix *tree) {
    return tree->n_heap ? heap_at(tree, RADIX_HEAP_TOP)->page : RADIX_NONE;
}

void radix_heap_fetch_next(const radix *tree) {
    for (uint32_t i = 0; i < tree->n_heap && i <= 4; i++) {
        const radix_record *soon = record_at(tree, heap_at(tree, RADIX_HEAP_TOP + i)->page);
        __builtin_prefetch(record_at(tree, soon->left), 1);
        __builtin_prefetch(record_at(tree, soon->right), 1);
        __builtin_prefetch(record_at(tree, soon->up), 1);
    }
}
