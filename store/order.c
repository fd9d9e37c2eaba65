/* order.c - see order.h. */
#include "store/order.h"
#include "client/assert.h"
#include "kernels/say.h"

enum { ARITY = 4 };

typedef struct item {
    uint64_t key;
    uint32_t page;
    uint32_t reserved;
} item;

struct order {
    uint32_t pages, room, n;
    uint64_t top;
    uint32_t *place; /* [pages]: index + 1; 0: not in it */
    item *heap;      /* [room] */
};

size_t order_bytes(uint32_t pages, uint32_t room) {
    return sizeof(order) + (size_t)room * sizeof(item) + (size_t)pages * sizeof(uint32_t);
}

kvt_status order_init(void *memory, size_t bytes, uint32_t pages, uint32_t room,
                      order **ret_order) {
    if (!memory || (uintptr_t)memory % _Alignof(item) || pages == 0 || room == 0 ||
        bytes < order_bytes(pages, room))
        return KVT_EINVAL;
    order *o = memory;
    *o = (order){.pages = pages, .room = room, .heap = (item *)(void *)(o + 1)};
    o->place = (uint32_t *)(void *)(o->heap + room);
    *ret_order = o;
    return KVT_OK;
}

static void set(order *o, uint32_t at, item it) {
    o->heap[at] = it;
    o->place[it.page] = at + 1;
}

static uint32_t rise(order *o, uint32_t at, item it) {
    while (at > 0 && o->heap[(at - 1) / ARITY].key > it.key) {
        set(o, at, o->heap[(at - 1) / ARITY]);
        at = (at - 1) / ARITY;
    }
    return at;
}

static uint32_t sink(order *o, uint32_t at, item it) {
    for (;;) {
        uint32_t first = at * ARITY + 1, least = at;
        uint64_t key = it.key;
        for (uint32_t i = first; i < first + ARITY && i < o->n; i++)
            if (o->heap[i].key < key) {
                key = o->heap[i].key;
                least = i;
            }
        if (least == at)
            return at;
        set(o, at, o->heap[least]);
        at = least;
    }
}

void order_put(order *o, uint32_t page, uint64_t key) {
    KVT_ASSERT(page < o->pages);
    item it = {.key = key, .page = page};
    o->top = key > o->top ? key : o->top;
    uint32_t at = o->place[page];
    if (at == 0) {
        KVT_ASSERT(o->n < o->room);
        at = ++o->n;
    }
    set(o, sink(o, rise(o, at - 1, it), it), it);
}

void order_remove(order *o, uint32_t page) {
    KVT_ASSERT(page < o->pages);
    uint32_t at = o->place[page];
    if (at == 0)
        return;
    item last = o->heap[--o->n];
    o->place[page] = 0;
    if (last.page != page)
        set(o, sink(o, rise(o, at - 1, last), last), last);
}

int order_has(const order *o, uint32_t page) {
    KVT_ASSERT(page < o->pages);
    return o->place[page] != 0;
}

uint32_t order_count(const order *o) {
    return o->n;
}

uint64_t order_top(const order *o) {
    return o->top;
}

uint32_t order_first(const order *o, uint64_t *ret_key) {
    if (o->n == 0)
        return ORDER_NONE;
    *ret_key = o->heap[0].key;
    return o->heap[0].page;
}

uint32_t order_at(const order *o, uint32_t i) {
    KVT_ASSERT(i < o->n);
    return o->heap[i].page;
}

kvt_status order_audit(const order *o, char *why, size_t why_bytes) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        if (i > 0 && o->heap[(i - 1) / ARITY].key > o->heap[i].key)
            return kvt_say(why, why_bytes, KVT_EINTERNAL, "order: place %u is before its parent",
                           i);
        if (o->heap[i].page >= o->pages || o->place[o->heap[i].page] != i + 1)
            return kvt_say(why, why_bytes, KVT_EINTERNAL, "order: place %u and its page disagree",
                           i);
    }
    for (uint32_t i = 0; i < o->pages; i++)
        n += o->place[i] != 0;
    if (n != o->n)
        return kvt_say(why, why_bytes, KVT_EINTERNAL, "order: %u pages have a place, %u are in it",
                       n, o->n);
    return KVT_OK;
}
