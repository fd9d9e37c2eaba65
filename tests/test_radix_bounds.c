/*
 * test_radix_bounds.c - what the tree of prefixes promises about cost, counted in nodes looked at
 * and in bytes, not in time; and that its audit sees damage.
 */
#include "radix/pool.h"
#include "tests/radix_kit.h"

/* --- memory -------------------------------------------------------------------------------------
 */

/* At most 46 bytes a page beyond its tokens, 4 more for each further slot. */
static void test_memory(void) {
    for (uint32_t page_tokens = 16; page_tokens <= 128; page_tokens *= 2) {
        for (uint32_t n_slots = 1; n_slots <= 64; n_slots *= 4) {
            radix_limits one = {1u << 20, 1, page_tokens, n_slots};
            radix_limits two = {1u << 21, 1, page_tokens, n_slots};
            size_t page_bytes = (radix_bytes(&two) - radix_bytes(&one)) >> 20;
            CHECK(page_bytes <= 46 + 4 * (n_slots - 1) + 4 * page_tokens);
        }
    }
}

/* A fresh tree has touched the start of each array of its block, however large that is: of those of
 * a tournament's levels, too, most of which lie in one memory page. */
static void test_untouched(void) {
    radix_limits limits = {100000, 100, PAGE, 1};
    size_t bytes = radix_bytes(&limits);
    unsigned char *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    radix *tree;
    memset(memory, 0xa5, bytes);
    CHECK_EQ(radix_init(memory, bytes, &limits, &tree), KVT_OK);
    radix_node root = add_root(tree);
    add(tree, root, label(1, PAGE, 2), PAGE, 0);
    uint32_t touched = 0;
    for (size_t page = 0; page < bytes; page += 4096) {
        size_t i = page;
        while (i < page + 4096 && i < bytes && memory[i] == 0xa5)
            i++;
        touched += i < page + 4096 && i < bytes;
    }
    CHECK_MSG(touched <= 12, "%u memory pages", touched);
    free(memory);
}

/* The block goes on at another address while the old one is gone. */
static void test_another_address(void) {
    radix *tree = make(1000, 2, 3);
    radix_node root = add_root(tree), node = root;
    for (uint32_t i = 0; i < 500; i++) {
        node = add_held(tree, i % 7 ? node : root, label(i % 5, PAGE, i), PAGE);
        if (i % 11 == 0)
            radix_pin(tree, node);
    }
    radix_limits limits = {1000, 2, PAGE, 3};
    size_t bytes = radix_bytes(&limits);
    radix *moved = aligned_alloc(64, bytes);
    CHECK(moved != NULL);
    memcpy(moved, tree, bytes);
    memset(tree, 0xee, bytes);
    free(tree);
    audit(moved);
    for (uint32_t i = 500; i < 1000; i++)
        node = add_held(moved, i % 7 ? node : root, label(i % 5, PAGE, i), PAGE);
    while (radix_coldest(moved) != RADIX_NONE)
        CHECK_EQ(radix_remove(moved, radix_coldest(moved)), KVT_OK);
    CHECK(count(moved).busy > 0 && count(moved).idle == 0);
    audit(moved);
    free(moved);
}

/* --- cost
 * ----------------------------------------------------------------------------------------- */

/* 100,000 children of one node: each is found, and each partial match, by looking at few. */
static void test_many_siblings(void) {
    enum { N = 100000 };
    radix *tree = make(N, 1, 1);
    radix_node root = add_root(tree);
    uint32_t tokens[PAGE];
    uint64_t sum = 0;
    uint32_t most = 0, most_partial = 0;
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < PAGE; k++)
            tokens[k] = k < 8 ? 1 : i * 2;
        radix_node node = add(tree, root, tokens, PAGE, i);
        /* Few are held, so that runs of thousands that are not stand between. */
        if (i % 9973 == 0)
            radix_set_held(tree, node, 1);
    }
    audit(tree);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < PAGE; k++)
            tokens[k] = k < 8 ? 1 : i * 2;
        radix_match match = find(tree, root, tokens, PAGE);
        CHECK_EQ(match.n_pages, 1);
        most = match.visits > most ? match.visits : most;
        sum += match.visits;
        tokens[8]++; /* between two siblings */
        match = find(tree, root, tokens, PAGE);
        CHECK_EQ(match.n_pages, 0);
        CHECK_EQ(match.partial_tokens, 8);
        CHECK(radix_is_held(tree, match.partial));
        most_partial = match.visits > most_partial ? match.visits : most_partial;
    }
    /* Twice the natural logarithm on the average, and its usual multiple at worst. */
    CHECK_MSG(sum / N <= 60, "%u visits on the average", (uint32_t)(sum / N));
    CHECK_MSG(most <= 150, "%u visits", most);
    CHECK_MSG(most_partial <= 250, "%u visits for a partial match", most_partial);
    /* Gone from the front, the back and the middle, and still in order. */
    for (uint32_t i = 0; i < N; i++) {
        CHECK_EQ(radix_remove(tree, radix_coldest(tree)), KVT_OK);
        if (i % 20000 == 0)
            audit(tree);
    }
    CHECK_EQ(count(tree).free, N);
    audit(tree);
    free(tree);
}

static int sum_pages(void *context, const radix_run *run) {
    *(uint32_t *)context += run->n_pages;
    return 0;
}

/* 65,536 pages deep: nothing recurses. */
static void test_deep(void) {
    enum { N = 65536 };
    radix *tree = make(N, 1, 1);
    radix_node root = add_root(tree), node = root;
    uint32_t *tokens = malloc(sizeof *tokens * N * PAGE);
    CHECK(tokens != NULL);
    for (uint32_t i = 0; i < N * PAGE; i++)
        tokens[i] = i / 5;
    for (uint32_t i = 0; i < N; i++)
        node = add_held(tree, node, tokens + i * PAGE, PAGE);
    CHECK_EQ(radix_depth(tree, node), N);
    radix_match match = find(tree, root, tokens, N * PAGE);
    check_match(match, node, N, node, N, RADIX_NONE, 0);
    CHECK_EQ(match.visits, N);
    radix_pin(tree, node);
    CHECK_EQ(count(tree).busy, N);
    audit(tree);
    radix_touch(tree, node, 3);
    uint32_t n_pages = 0;
    CHECK_EQ(radix_walk(tree, root, sum_pages, &n_pages), 0);
    CHECK_EQ(n_pages, N);
    radix_unpin(tree, node);
    CHECK_EQ(count(tree).idle, N);
    while (count(tree).idle > 0)
        CHECK_EQ(radix_remove(tree, radix_coldest(tree)), KVT_OK);
    audit(tree);
    free(tokens);
    free(tree);
}

/* --- the audit sees damage ----------------------------------------------------------------------
 */

static radix *damaged(void) {
    radix *tree = make(64, 2, 1);
    radix_node root = add_root(tree), node = root;
    for (uint32_t i = 0; i < 40; i++) {
        node = add_held(tree, i % 5 ? node : root, label(i % 3, PAGE, i), PAGE);
        radix_set_key(tree, node, 1000 - i);
        if (i % 13 == 0)
            radix_pin(tree, node);
    }
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(radix_remove(tree, radix_coldest(tree)), KVT_OK);
    audit(tree);
    return tree;
}

static uint32_t seen_damage;

/* Takes the tree, which was changed since damaged(). */
static void check_seen(radix *tree, const char *part_of_why) {
    char why[200] = "";
    CHECK_MSG(radix_audit(tree, why, sizeof why) == KVT_EINTERNAL, "not seen: %s", part_of_why);
    CHECK_MSG(strstr(why, part_of_why) != NULL, "said \"%s\", not \"%s\"", why, part_of_why);
    CHECK_EQ(radix_audit(tree, NULL, 0), KVT_EINTERNAL);
    CHECK_EQ(radix_audit(tree, why, 1), KVT_EINTERNAL);
    CHECK_EQ(why[0], '\0');
    free(tree);
    seen_damage++;
}

/* What stands in several records or the header is broken one field at a time. */
#define DAMAGE(part_of_why, statement)                                                             \
    do {                                                                                           \
        radix *tree = damaged();                                                                   \
        radix_node root = tree->limits.max_pages + 1, top = record_at(tree, root)->child;          \
        radix_node cold = radix_coldest(tree), up = node_parent(tree, cold);                       \
        (void)root, (void)top, (void)cold, (void)up;                                               \
        statement;                                                                                 \
        check_seen(tree, part_of_why);                                                             \
    } while (0)

static void test_audit(void) {
    DAMAGE("given out of", tree->pages.n_fresh = 65);
    DAMAGE("live, counted as", tree->pages.n_live++);
    DAMAGE("was never given out", tree->pages.free = 63);
    DAMAGE("in the free list and live", tree->pages.free = cold);
    DAMAGE("is a circle", record_edit(tree, tree->pages.free)->right = tree->pages.free);
    DAMAGE("given out", tree->pages.free = RADIX_NONE);
    DAMAGE("no live page", record_edit(tree, top)->left = tree->pages.free);
    DAMAGE("no live page", record_edit(tree, root)->child = tree->pages.free);
    DAMAGE("hangs from", record_edit(tree, up)->child = top);
    DAMAGE("hangs from", record_edit(tree, top)->left = cold);
    DAMAGE("not live", {
        record_edit(tree, up)->child = RADIX_NONE;
        record_edit(tree, cold)->up = tree->pages.free;
    });
    DAMAGE("does not link to it once", record_edit(tree, up)->child = RADIX_NONE);
    DAMAGE("at depth", record_edit(tree, cold)->depth++);
    DAMAGE("tokens of", record_edit(tree, cold)->n_tokens = 0);
    DAMAGE("tokens of", record_edit(tree, cold)->page_tokens = 3);
    DAMAGE("child of a short page", record_edit(tree, up)->n_tokens--);
    DAMAGE("only a page may have", record_edit(tree, root)->n_tokens = 1);
    DAMAGE("does not stand in front",
           tokens_edit(tree, radix_first_child(tree, root))[0] = UINT32_MAX);
    DAMAGE("longest held", record_edit(tree, cold)->best_held--);
    DAMAGE("longest held", record_edit(tree, top)->best_held--);
    DAMAGE("pins and busy children", record_edit(tree, cold)->busy = 1);
    DAMAGE("pins and busy children", record_edit(tree, cold)->pins++);
    DAMAGE("pins and busy children", record_edit(tree, root)->busy++);
    DAMAGE("may go, but does not stand", *standing_edit(tree, cold / 8) = 0);
    DAMAGE("may not go, but stands", *standing_edit(tree, 1 / 8) |= 1u << 1 % 8);
    DAMAGE("goes before", *first_page_edit(tree, 1, cold / 8) = RADIX_NONE);
    DAMAGE("goes before", *first_page_edit(tree, tree->n_levels, 0) = RADIX_NONE);
    DAMAGE("another key than", *key_edit(tree, cold) = UINT64_MAX);
    DAMAGE("and not below", *first_page_edit(tree, 1, (cold / 8 + 1) % 5) = cold);
    DAMAGE("another key than", ++*first_key_edit(tree, 1, cold / 8));
    DAMAGE("another key than", ++*first_key_edit(tree, tree->n_levels, 0));
    DAMAGE("another key than", *first_key_edit(tree, 1, 5) = 5);
    DAMAGE("may go, counted as", tree->n_cold++);
    DAMAGE("busy, counted as", tree->n_busy++);
    CHECK_EQ(seen_damage, 34);

    /* The priority of an id is fixed, so two linked siblings change places. */
    radix *tree = make(4, 1, 1);
    radix_node root = add_root(tree);
    radix_node a = add(tree, root, label(1, PAGE, 1), PAGE, 0);
    radix_node b = add(tree, root, label(2, PAGE, 1), PAGE, 0);
    radix_node top = record_at(tree, root)->child, low = top == a ? b : a;
    record_edit(tree, root)->child = low;
    record_edit(tree, low)->up = root;
    *(low == a ? &record_edit(tree, low)->right : &record_edit(tree, low)->left) = top;
    *(low == a ? &record_edit(tree, top)->left : &record_edit(tree, top)->right) = RADIX_NONE;
    record_edit(tree, top)->up = low;
    check_seen(tree, "higher priority");
}

int main(void) {
    test_memory();
    test_untouched();
    test_another_address();
    test_many_siblings();
    test_deep();
    test_audit();
    return 0;
}
