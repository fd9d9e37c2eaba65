/* test_order.c - the heap that says which page leaves a tier first, against a plain array. */
#include "store/order.h"
#include "tests/check.h"

enum { PAGES = 200, ROOM = 150, STEPS = 200000 };

typedef struct model {
    int in[PAGES];
    uint64_t key[PAGES];
    uint64_t top;
    uint32_t n;
} model;

static void compare(const order *o, const model *m) {
    uint64_t least = UINT64_MAX, key = 0;
    char why[256] = "";
    CHECK_MSG(order_audit(o, why, sizeof why) == KVT_OK, "%s", why);
    CHECK_EQ(order_count(o), m->n);
    CHECK(order_top(o) == m->top);
    for (uint32_t i = 0; i < PAGES; i++) {
        CHECK_EQ(order_has(o, i), m->in[i]);
        if (m->in[i] && m->key[i] < least)
            least = m->key[i];
    }
    uint32_t first = order_first(o, &key);
    if (m->n == 0) {
        CHECK_EQ(first, ORDER_NONE);
        return;
    }
    CHECK(m->in[first] && m->key[first] == key && key == least);
}

static void run(uint64_t seed) {
    size_t bytes = order_bytes(PAGES, ROOM);
    void *memory = calloc(1, bytes);
    order *o;
    model m = {.n = 0};
    uint64_t random = seed;
    CHECK(memory);
    CHECK_EQ(order_init(memory, bytes - 1, PAGES, ROOM, &o), KVT_EINVAL);
    CHECK_EQ(order_init(memory, bytes, PAGES, ROOM, &o), KVT_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t page = check_below(&random, PAGES);
        if (check_below(&random, 3) && (m.in[page] || m.n < ROOM)) {
            uint64_t key = check_below(&random, step % 1000 < 500 ? 10 : 1000000);
            order_put(o, page, key);
            m.n += !m.in[page];
            m.in[page] = 1;
            m.key[page] = key;
            m.top = key > m.top ? key : m.top;
        } else {
            order_remove(o, page);
            m.n -= (uint32_t)m.in[page];
            m.in[page] = 0;
        }
        if (step % 16 == 0)
            compare(o, &m);
    }
    /* In order to the last. */
    for (uint64_t before = 0, key; m.n > 0; m.n--, before = key) {
        uint32_t page = order_first(o, &key);
        CHECK(key >= before && m.in[page]);
        m.in[page] = 0;
        order_remove(o, page);
    }
    compare(o, &m);
    free(memory);
}

int main(void) {
    for (uint64_t seed = 1; seed <= 3; seed++)
        run(seed);
    return 0;
}
