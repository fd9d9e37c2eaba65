/*
 * heap.h - the text of a heap of numbers that knows where each of them stands, so that any can be
 * moved or taken out: O(log n). Whoever includes it has defined
 *
 *     heap         a struct with n, members[] (the first to go in front) and places[] of each
 *                  number: 1 + where it stands; 0: it is not in
 *     heap_index   the type of members and places
 *     goes_before  (const heap *, a, b): a goes first
 *
 * and calls heap_put for one that comes in or whose order has changed, heap_drop for one that is
 * in. (Text, since the two heaps that there are differ in the width of their numbers, and a call
 * for each comparison would be what takes the time.)
 */
#include <stdint.h>

static inline void heap_stand(heap *h, uint32_t at, heap_index number) {
    h->members[at] = number;
    h->places[number] = (heap_index)(at + 1);
}

/* Puts the number where it belongs from the hole at place `at`. */
static inline void heap_settle(heap *h, uint32_t at, heap_index number) {
    while (at > 0 && goes_before(h, number, h->members[(at - 1) / 2])) {
        heap_stand(h, at, h->members[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint64_t below = 2 * (uint64_t)at + 1;
        if (below >= h->n)
            break;
        if (below + 1 < h->n && goes_before(h, h->members[below + 1], h->members[below]))
            below++;
        if (!goes_before(h, h->members[below], number))
            break;
        heap_stand(h, at, h->members[below]);
        at = (uint32_t)below;
    }
    heap_stand(h, at, number);
}

static inline void heap_put(heap *h, heap_index number) {
    heap_settle(h, h->places[number] ? h->places[number] - 1u : h->n++, number);
}

static inline void heap_drop(heap *h, heap_index number) {
    uint32_t at = h->places[number] - 1u;
    heap_index last = h->members[--h->n];
    h->places[number] = 0;
    if (last != number)
        heap_settle(h, at, last);
}
