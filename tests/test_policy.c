/*
 * test_policy.c - the policy with the tree, as the core and `kvtrunk simulate` use them: equal to
 * plain LRU where it must be, against a model that recounts everything from the calls, and the
 * pages that must never go.
 *
 *   test_policy [SEED [STEPS]]
 */
#include "daemon/policy_tree.h"
#include "tests/check.h"

enum { LABEL = 16, N_ROOTS = 4 };

typedef struct cache {
    radix *tree;
    policy *policy;
    radix_node root;
    uint32_t max_pages;
    uint64_t evictions;
} cache;

static void *block(size_t bytes) {
    size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded);
    CHECK(memory != NULL);
    return memset(memory, 0, rounded);
}

static cache cache_open(policy_rule rule, uint32_t max_pages) {
    cache c = {.max_pages = max_pages};
    radix_limits limits = {max_pages, N_ROOTS, LABEL, 1};
    size_t bytes = radix_bytes(&limits);
    CHECK_EQ(radix_init(block(bytes), bytes, &limits, &c.tree), KVT_OK);
    bytes = policy_bytes(rule, max_pages);
    CHECK_EQ(policy_init(block(bytes), bytes, rule, max_pages, &c.policy), KVT_OK);
    CHECK_EQ(radix_root_add(c.tree, 1, 1, &c.root), KVT_OK);
    return c;
}

static void cache_close(cache *c) {
    free(c->tree);
    free(c->policy);
}

static void audit(const cache *c) {
    char why[200] = "";
    radix_counts counts;
    policy_look look;
    CHECK_MSG(radix_audit(c->tree, why, sizeof why) == KVT_OK, "%s", why);
    CHECK_MSG(policy_audit(c->policy, why, sizeof why) == KVT_OK, "%s", why);
    radix_count(c->tree, &counts);
    policy_see(c->policy, &look);
    CHECK_EQ(look.live, counts.busy + counts.idle);
}

/* One request; returns the pages found. `gone` (may be NULL) hears of what is evicted. */
static uint32_t ask(cache *c, const uint32_t *pages, uint32_t n, uint64_t page_bytes,
                    void (*gone)(void *context, uint32_t page), void *context) {
    radix_match match;
    radix_find(c->tree, c->root, pages, n, &match);
    radix_pin(c->tree, match.node);
    radix_node cur = match.node, node;
    for (uint32_t i = match.n_pages; i < n; i++) {
        while (policy_tree_insert(c->policy, c->tree, cur, &pages[i], 1, page_bytes, &node) !=
               KVT_OK) {
            uint32_t n_tokens;
            radix_node coldest = radix_coldest(c->tree);
            if (coldest == RADIX_NONE)
                goto out;
            CHECK(radix_is_leaf(c->tree, coldest) && !radix_is_busy(c->tree, coldest));
            if (gone)
                gone(context, *radix_tokens(c->tree, coldest, &n_tokens));
            policy_tree_evicts(c->policy, c->tree, coldest);
            policy_tree_remove(c->policy, c->tree, coldest);
            c->evictions++;
        }
        radix_pin(c->tree, node);
        radix_unpin(c->tree, cur);
        cur = node;
    }
out:
    policy_tree_use(c->policy, c->tree, cur, 0, radix_depth(c->tree, cur) == n);
    radix_unpin(c->tree, cur);
    return match.n_pages;
}

/* --- who must never go --------------------------------------------------------------------------
 */

typedef struct shared_watch {
    uint32_t last_shared;
    uint32_t n_gone;
} shared_watch;

static void watch_shared(void *context, uint32_t page) {
    shared_watch *w = context;
    w->n_gone++;
    CHECK_MSG(page > w->last_shared, "shared page %u was evicted", page);
}

/* 20 clients, each with 2 pages that all share and 30 of its own, in room for 200. */
static void test_shared_stay(policy_rule rule, int goes_on) {
    cache c = cache_open(rule, 200);
    shared_watch watch = {.last_shared = 2};
    uint32_t pages[32] = {1, 2};
    for (uint32_t round = 0; round < 50; round++)
        for (uint32_t client = 0; client < 20; client++) {
            uint32_t n = goes_on ? 2 + (round % 30) + 1 : 32;
            for (uint32_t i = 2; i < 32; i++)
                pages[i] = 1000 + 100 * client + i + (goes_on ? 10000 * (round / 30) : 0);
            uint32_t found = ask(&c, pages, n, 100, watch_shared, &watch);
            CHECK(found >= 2 || (round == 0 && client == 0));
            audit(&c);
        }
    CHECK(watch.n_gone > 1000);
    cache_close(&c);
}

/* --- LRU is LRU ---------------------------------------------------------------------------------
 */

/* Pages with the number of the request that asked last; a page is 1 + its index. */
enum { MODEL_PAGES = 400 };
typedef struct lru_model {
    uint64_t asked[MODEL_PAGES]; /* 0: not kept */
    uint32_t parent[MODEL_PAGES];
    uint32_t depth[MODEL_PAGES];
} lru_model;

static void model_expects(void *context, uint32_t page) {
    lru_model *m = context;
    uint32_t coldest = 0;
    for (uint32_t i = 1; i < MODEL_PAGES; i++) {
        int is_leaf = m->asked[i] != 0 && m->asked[i] != UINT64_MAX;
        for (uint32_t j = 1; j < MODEL_PAGES && is_leaf; j++)
            is_leaf = !(m->asked[j] && m->parent[j] == i);
        if (is_leaf && (!coldest || m->asked[i] < m->asked[coldest] ||
                        (m->asked[i] == m->asked[coldest] && m->depth[i] > m->depth[coldest])))
            coldest = i;
    }
    CHECK(m->asked[page] != 0 && m->asked[page] == m->asked[coldest] &&
          m->depth[page] == m->depth[coldest]);
    m->asked[page] = 0;
}

/* A path in a tree of MODEL_PAGES pages: parent(i) = i / 3. */
static uint32_t random_path(uint64_t *random, uint32_t *pages) {
    uint32_t n = 0, at = 1 + check_below(random, MODEL_PAGES - 1), path[16];
    for (; at > 0; at /= 3)
        path[n++] = at;
    for (uint32_t i = 0; i < n; i++)
        pages[i] = path[n - 1 - i];
    return n;
}

static void test_lru(uint64_t seed) {
    static lru_model m;
    cache c = cache_open(POLICY_LRU, 60);
    uint64_t random = seed;
    uint32_t pages[16];
    memset(&m, 0, sizeof m);
    for (uint32_t i = 1; i < MODEL_PAGES; i++) {
        m.parent[i] = i / 3;
        m.depth[i] = m.parent[i] ? m.depth[m.parent[i]] + 1 : 1;
    }
    for (uint64_t step = 1; step <= 3000; step++) {
        uint32_t n = random_path(&random, pages);
        for (uint32_t i = 0; i < n; i++)
            if (m.asked[pages[i]])
                m.asked[pages[i]] = UINT64_MAX; /* pinned */
        /* What is being put in is a tail of the request, so the model need not know it yet. */
        ask(&c, pages, n, 100, model_expects, &m);
        for (uint32_t i = 0; i < n; i++)
            m.asked[pages[i]] = step;
        audit(&c);
    }
    CHECK(c.evictions > 1000);
    cache_close(&c);
}

/* If all pages come to the same, worth evicts what LRU evicts: with prompts that are each asked for
 * once, nothing is known of any kind but that it does not come back. */
typedef struct sequence {
    uint32_t pages[4000];
    uint32_t n;
} sequence;

static void record(void *context, uint32_t page) {
    sequence *s = context;
    if (s->n < 4000)
        s->pages[s->n++] = page;
}

static void test_alike(void) {
    static sequence of[2];
    for (int rule = 0; rule < 2; rule++) {
        cache c = cache_open((policy_rule)rule, 100);
        of[rule].n = 0;
        for (uint32_t i = 0; i < 5000; i++) {
            uint32_t page = 1 + i;
            ask(&c, &page, 1, 100, record, &of[rule]);
        }
        cache_close(&c);
    }
    CHECK(of[0].n == 4000 && of[1].n == 4000);
    CHECK(memcmp(of[0].pages, of[1].pages, sizeof of[0].pages) == 0);
}

/* --- what is learned ----------------------------------------------------------------------------
 */

/*
 * Among prompts of three pages that never come back, one in eight comes back when twice the room
 * has gone by: too late under LRU at the first time, but not unnoticed. Those that came back go on
 * coming back. So prompts that are asked for a second time are worth more than the others.
 */
static uint64_t ask_often_again(cache *c, uint64_t seed) {
    uint64_t random = seed, found = 0;
    for (uint32_t i = 0; i < 6000; i++) {
        uint32_t number = i % 8 ? 100 + i : 1 + check_below(&random, 25);
        uint32_t pages[3] = {3 * number, 3 * number + 1, 3 * number + 2};
        found += ask(c, pages, 3, 100, NULL, NULL);
    }
    return found;
}

static void test_learns(uint64_t seed) {
    policy_look look;
    uint64_t found[2] = {0, 0};
    for (int rule = 0; rule < 2; rule++) {
        cache c = cache_open((policy_rule)rule, 300);
        found[rule] = ask_often_again(&c, seed);
        audit(&c);
        policy_see(c.policy, &look);
        if (rule == POLICY_WORTH) {
            CHECK(look.worth[0] < 0.5);  /* asked for once */
            CHECK(look.worth[10] > 1.5); /* 32 times and more */
            CHECK(look.trust > 0.5);
        }
        cache_close(&c);
    }
    CHECK_MSG(found[0] > found[1] + found[1] / 4, "worth found %llu, lru %llu",
              (unsigned long long)found[0], (unsigned long long)found[1]);
}

/* Single pages (ends of requests) come back within the room, again and again, and prompts of seven
 * never do: LRU finds all that there is to find. */
enum { ROOM = 300, LOOP = 120, LATE = 90 };
static uint64_t ask_loop_and_new(cache *c, uint32_t steps) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t loop = 2000000 + i % LOOP, pages[2] = {3000000 + 2 * i, 3000001 + 2 * i};
        found += ask(c, &loop, 1, 100, NULL, NULL);
        if (i % 2)
            found += ask(c, pages, 2, 100, NULL, NULL);
    }
    return found;
}

/* What is thought before anything is known would be wrong: that ends do not come back. */
static void test_believes_nothing(void) {
    uint64_t found[2] = {0, 0};
    for (int rule = 0; rule < 2; rule++) {
        cache c = cache_open((policy_rule)rule, ROOM);
        found[rule] = ask_loop_and_new(&c, 3000);
        CHECK(c.evictions > 1000);
        audit(&c);
        cache_close(&c);
    }
    CHECK(found[1] == 3000 - LOOP);
    CHECK_MSG(found[0] == found[1], "worth found %llu, lru %llu", (unsigned long long)found[0],
              (unsigned long long)found[1]);
}

/* Each page comes back once, when 90 others like it, 90 that never do and 90 that came back have
 * been asked for. */
static uint64_t ask_once_more(cache *c, uint32_t steps) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t page = 4000000 + i, old = page - LATE, other = 5000000 + i;
        found += ask(c, &page, 1, 100, NULL, NULL);
        found += ask(c, &other, 1, 100, NULL, NULL);
        if (i >= LATE)
            found += ask(c, &old, 1, 100, NULL, NULL);
    }
    return found;
}

/*
 * What was learned does not hold any more: prompts that came back often never do again, and others
 * come back just within the room. Who keeps what was popular loses them; that must be noticed.
 */
static void test_misled(uint64_t seed) {
    uint64_t found[2] = {0, 0};
    policy_look before, after;
    for (int rule = 0; rule < 2; rule++) {
        cache c = cache_open((policy_rule)rule, ROOM);
        ask_often_again(&c, seed);
        policy_see(c.policy, &before);
        found[rule] = ask_once_more(&c, 3000);
        policy_see(c.policy, &after);
        CHECK(rule == POLICY_LRU || (before.trust > 0.5 && after.trust < 0.1));
        audit(&c);
        cache_close(&c);
    }
    CHECK_MSG(found[0] + ROOM >= found[1], "worth found %llu, lru %llu",
              (unsigned long long)found[0], (unsigned long long)found[1]);
}

/* Of two kinds that are alike in all else the smaller pages stay longer. */
static void test_bytes(void) {
    cache c = cache_open(POLICY_WORTH, 200);
    uint32_t n_large = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t page = 1 + i;
        ask(&c, &page, 1, i % 2 ? 400 : 100, NULL, NULL);
    }
    for (radix_node at = radix_first_child(c.tree, c.root); at != RADIX_NONE;
         at = radix_next_sibling(c.tree, at)) {
        uint32_t n;
        n_large += *radix_tokens(c.tree, at, &n) % 2 == 0;
    }
    CHECK_MSG(n_large < 90, "%u of 200 pages are large", n_large);
    cache_close(&c);
}

/* A request that goes on is no further request for what it had. */
static void test_again(void) {
    cache c = cache_open(POLICY_WORTH, 300);
    ask_often_again(&c, 1);
    uint32_t page = 1000000;
    ask(&c, &page, 1, 100, NULL, NULL);
    radix_match match;
    radix_find(c.tree, c.root, &page, 1, &match);
    CHECK_EQ(match.n_pages, 1);
    uint64_t once = policy_use(c.policy, match.node, POLICY_AGAIN);
    for (uint32_t i = 0; i < 100; i++)
        policy_tree_use(c.policy, c.tree, match.node, 1, 0);
    /* The first factor of a key is when the page is due; that did not move. */
    CHECK_EQ(policy_use(c.policy, match.node, POLICY_AGAIN) >> 24, once >> 24);
    for (uint32_t i = 0; i < 100; i++)
        policy_tree_use(c.policy, c.tree, match.node, 0, 0);
    CHECK(policy_use(c.policy, match.node, POLICY_AGAIN) >> 24 > once >> 24);
    audit(&c);
    cache_close(&c);
}

/* --- at random ----------------------------------------------------------------------------------
 */

static void fold(void *context, uint32_t page) {
    uint64_t *sum = context;
    *sum = (*sum ^ page) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Any requests in any room: the audits hold, and the same calls give the same evictions. */
static uint64_t test_random(uint64_t seed, uint32_t steps) {
    uint64_t random = seed, sum = 0;
    uint32_t room = 1 + check_below(&random, 3000), kinds = 1 + check_below(&random, 400);
    uint32_t longest = 1 + check_below(&random, 60), pages[64];
    cache c = cache_open(POLICY_WORTH, room);
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t n = 1 + check_below(&random, longest), prompt = check_below(&random, kinds);
        uint32_t own = check_below(&random, n + 1);
        for (uint32_t j = 0; j < n; j++)
            pages[j] = 1 + (j < own ? prompt * 64 + j : 100000 + i * 64 + j);
        ask(&c, pages, n, 1 + check_below(&random, 1 << 20), fold, &sum);
        if (i % (steps / 16 + 1) == 0)
            audit(&c);
    }
    audit(&c);
    cache_close(&c);
    return sum;
}

static void test_limits(void) {
    policy *p;
    void *memory = block(policy_bytes(POLICY_WORTH, 10));
    CHECK_EQ(policy_bytes(POLICY_WORTH, 0), 0);
    CHECK_EQ(policy_bytes(POLICY_WORTH, (1u << 30) + 1), 0);
    CHECK_EQ(policy_init(memory, 1000, POLICY_WORTH, 0, &p), KVT_EINVAL);
    CHECK_EQ(policy_init(memory, 1000, POLICY_WORTH, 10, &p), KVT_ELIMIT);
    size_t one = policy_bytes(POLICY_WORTH, 1 << 20), two = policy_bytes(POLICY_WORTH, 2 << 20);
    CHECK(two - one <= (size_t)16 << 20);
    CHECK(policy_bytes(POLICY_LRU, 1 << 20) < one - ((size_t)8 << 20));
    policy_rule rule;
    CHECK(policy_of_name("lru", &rule) && rule == POLICY_LRU);
    CHECK(policy_of_name("worth", &rule) && rule == POLICY_WORTH);
    CHECK(!policy_of_name("opt", &rule));
    free(memory);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint32_t steps = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1500;
    test_limits();
    for (int rule = 0; rule < 2; rule++) {
        test_shared_stay((policy_rule)rule, 0);
        test_shared_stay((policy_rule)rule, 1);
    }
    test_alike();
    test_again();
    test_believes_nothing();
    test_misled(seed);
    test_bytes();
    for (uint64_t i = 0; i < 10; i++) {
        printf("seed %llu\n", (unsigned long long)(seed + i));
        test_lru(seed + i);
        test_learns(seed + i);
        uint64_t sum = test_random(seed + i, steps);
        CHECK_EQ(test_random(seed + i, steps), sum);
    }
    return 0;
}
