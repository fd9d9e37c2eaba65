/*
 * What pages are counted with on disk: who goes by tier_record_bytes, and lets the oldest go where
 * the count would exceed the map, is seldom refused, however long that goes on; and the count is
 * near what is used. The files never exceed the budget meanwhile.
 */
#include "tests/tier_kit.h"

enum { BUDGET = 12 << 20, BUDGETS = 3, RING = 16384, BATCH = 32 };

static struct {
    const char *dir;
    tier *t;
    uint32_t realm, page_bytes;
    tier_key root;
    uint8_t *bytes;
    uint32_t names[RING]; /* of the pages that are there, each of one token */
    uint32_t head, tail, refused, tried;
} u;

static tier_key key_of(const uint32_t *name) {
    return tier_key_child(&u.root, 0, name, 1);
}

static void oldest_go(void) {
    tier_record batch[BATCH];
    for (uint32_t i = 0; i < BATCH; i++)
        batch[i] = (tier_record){.key = key_of(&u.names[(u.tail + i) % RING])};
    CHECK_EQ(tier_del(u.t, batch, BATCH), KVT_OK);
    u.tail += BATCH;
}

/* Those that are refused are the last. 0: some were. */
static int write_some(void) {
    tier_record batch[BATCH];
    uint32_t n = 0;
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t *name = &u.names[(u.head + i) % RING];
        *name = u.tried++;
        batch[i] = (tier_record){.realm = u.realm,
                                 .key = key_of(name),
                                 .parent = u.root,
                                 .serial = u.tried,
                                 .rows = 1,
                                 .n_tokens = 1,
                                 .bytes = u.page_bytes,
                                 .tokens = name,
                                 .at = u.bytes};
    }
    tier_put(u.t, batch, BATCH);
    for (uint32_t i = 0; i < BATCH; i++) {
        CHECK(batch[i].status == KVT_OK || batch[i].status == KVT_EFULL);
        n += batch[i].status == KVT_OK;
    }
    u.head += n;
    u.refused += BATCH - n;
    CHECK(u.head - u.tail <= RING - BATCH);
    CHECK(kit_dir_bytes(u.dir) <= BUDGET);
    return n == BATCH;
}

static void test_counting(uint32_t page_bytes) {
    tier_usage usage;
    char why[256] = "";
    uint64_t each = tier_record_bytes(page_bytes, 1);
    u.head = u.tail = u.refused = u.tried = 0;
    u.page_bytes = page_bytes;
    u.dir = kit_dir("counting");
    u.t = kit_tier_open(u.dir, BUDGET, "boot-1", 0);
    u.realm = kit_realm(u.t, "r");
    u.root = tier_key_root("r", 1);
    u.bytes = calloc(1, page_bytes);
    CHECK(u.bytes && tier_use(u.t, &usage) == KVT_OK);
    while ((uint64_t)u.head * page_bytes < (uint64_t)BUDGETS * BUDGET) {
        while ((u.head - u.tail + BATCH) * each > usage.map_bytes)
            oldest_go();
        if (!write_some())
            oldest_go();
    }
    CHECK_EQ(tier_use(u.t, &usage), KVT_OK);
    double of_used = (double)((u.head - u.tail) * each) / (double)usage.used_bytes;
    printf("test_tier_count: pages of %u bytes: %u of %u refused, counted %.2f of what is used\n",
           page_bytes, u.refused, u.tried, of_used);
    CHECK(u.refused < u.tried / 10);
    CHECK(of_used < 1.6);
    CHECK_MSG(tier_audit(u.t, why, sizeof why) == KVT_OK, "%s", why);
    free(u.bytes);
    tier_close(u.t);
    kit_remove(u.dir);
}

int main(void) {
    test_counting(200);
    test_counting(500);
    test_counting(1000);
    test_counting(8704);
    return 0;
}
