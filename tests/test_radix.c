/*
 * test_radix.c - every documented answer of the tree of prefixes.
 */
#include "tests/radix_kit.h"

/* --- limits and roots ---------------------------------------------------------------------------
 */

static void test_limits(void) {
    static const radix_limits good = {100, 2, 64, 1};
    static const radix_limits bad[] = {
        {0, 2, 64, 1},   {(1u << 30) + 1, 2, 64, 1}, {100, 0, 64, 1}, {100, 65537, 64, 1},
        {100, 2, 15, 1}, {100, 2, 129, 1},           {100, 2, 64, 0}, {100, 2, 64, 65},
    };
    static const radix_limits edge[] = {{1, 1, 16, 1}, {1u << 30, 65536, 128, 64}};
    size_t bytes = radix_bytes(&good);
    char *memory = aligned_alloc(64, bytes + 64);
    radix *tree = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(radix_bytes(&bad[i]), 0);
        CHECK_EQ(radix_init(memory, bytes, &bad[i], &tree), KVT_EINVAL);
    }
    CHECK(radix_bytes(&edge[0]) > 0);
    CHECK(radix_bytes(&edge[1]) > ((size_t)1 << 39));
    CHECK_EQ(radix_init(memory, bytes - 1, &good, &tree), KVT_ELIMIT);
    CHECK_EQ(radix_init(memory + 8, bytes, &good, &tree), KVT_EINVAL);
    CHECK_EQ(radix_init(NULL, bytes, &good, &tree), KVT_EINVAL);
    CHECK(tree == NULL);
    CHECK_EQ(radix_init(memory, bytes, &good, &tree), KVT_OK);
    CHECK(tree != NULL);
    free(memory);
}

static void test_roots(void) {
    radix *tree = make(10, 2, 1);
    radix_node a = RADIX_NONE, b = RADIX_NONE, c = 77;
    CHECK_EQ(radix_root_add(tree, PAGE + 1, 1, &c), KVT_EINVAL);
    CHECK_EQ(radix_root_add(tree, 0, 1, &c), KVT_EINVAL);
    CHECK_EQ(radix_root_add(tree, PAGE, 1, &a), KVT_OK);
    CHECK_EQ(radix_root_add(tree, 4, 1, &b), KVT_OK);
    CHECK_EQ(radix_root_add(tree, 4, 1, &c), KVT_ELIMIT);
    CHECK_EQ(c, 77);
    CHECK_EQ(radix_page_tokens(tree, a), PAGE);
    CHECK_EQ(radix_page_tokens(tree, b), 4);
    CHECK_EQ(radix_parent(tree, a), RADIX_NONE);
    CHECK_EQ(radix_depth(tree, a), 0);
    CHECK(radix_is_leaf(tree, a));
    CHECK_EQ(radix_next_sibling(tree, a), RADIX_NONE);
    CHECK_EQ(radix_prev_sibling(tree, a), RADIX_NONE);
    uint32_t n = 9;
    CHECK(radix_tokens(tree, a, &n) != NULL && n == 0);
    CHECK_EQ(count(tree).roots, 2);
    CHECK_EQ(count(tree).free, 10);
    CHECK_EQ(radix_coldest(tree), RADIX_NONE);

    /* Pages of one realm are not found from another. */
    radix_node page = add_held(tree, b, label(1, 4, 2), 4);
    CHECK_EQ(radix_page_tokens(tree, page), 4);
    CHECK_EQ(radix_child_equal(tree, a, label(1, 4, 2), 4), RADIX_NONE);
    CHECK_EQ(radix_child_equal(tree, b, label(1, 4, 2), 4), page);
    CHECK_EQ(radix_root_remove(tree, b), KVT_EBUSY);
    CHECK_EQ(radix_remove(tree, page), KVT_OK);
    radix_pin(tree, b);
    CHECK_EQ(radix_root_remove(tree, b), KVT_EBUSY);
    radix_unpin(tree, b);
    audit(tree);
    CHECK_EQ(radix_root_remove(tree, b), KVT_OK);
    CHECK_EQ(radix_root_remove(tree, a), KVT_OK);
    CHECK_EQ(count(tree).roots, 0);
    CHECK_EQ(radix_root_add(tree, PAGE, 1, &a), KVT_OK);
    audit(tree);
    free(tree);
}

/* --- match --------------------------------------------------------------------------------------
 */

static void test_empty(void) {
    radix *tree = make(10, 1, 1);
    radix_node root = add_root(tree);
    check_match(find(tree, root, NULL, 0), root, 0, root, 0, RADIX_NONE, 0);
    check_match(find(tree, root, label(1, 5, 1), 5), root, 0, root, 0, RADIX_NONE, 0);
    check_match(find(tree, root, label(1, PAGE, 1), PAGE), root, 0, root, 0, RADIX_NONE, 0);
    CHECK_EQ(radix_child_equal(tree, root, label(1, PAGE, 1), PAGE), RADIX_NONE);
    CHECK_EQ(radix_first_child(tree, root), RADIX_NONE);
    radix_audit(tree, NULL, 0);
    audit(tree);
    free(tree);
}

/* A prompt that is shorter than a page, against full pages and short ones. */
static void test_shorter_than_a_page(void) {
    radix *tree = make(10, 1, 1);
    radix_node root = add_root(tree);
    radix_node page = add(tree, root, label(1, PAGE, 2), PAGE, 0);
    check_match(find(tree, root, label(1, 5, 1), 5), root, 0, root, 0, RADIX_NONE, 0);
    radix_set_held(tree, page, 1);
    check_match(find(tree, root, label(1, 5, 1), 5), root, 0, root, 0, page, 5);
    check_match(find(tree, root, label(1, 5, 9), 5), root, 0, root, 0, page, 4);
    check_match(find(tree, root, label(3, 5, 1), 5), root, 0, root, 0, RADIX_NONE, 0);
    check_match(find(tree, root, label(1, 1, 1), 1), root, 0, root, 0, page, 1);
    check_match(find(tree, root, label(1, 1, 1), 0), root, 0, root, 0, RADIX_NONE, 0);
    /* All of a short page's tokens, and the short page is the only one that has them all. */
    radix_node brief = add_held(tree, root, label(1, 5, 9), 5);
    check_match(find(tree, root, label(1, 5, 9), 5), root, 0, root, 0, brief, 5);
    audit(tree);
    free(tree);
}

/* The path that tests of matches use: pages of 16 tokens 100.., 101.., ... */
static void path_tokens(uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = 100 + i / PAGE * 7 + i % 3;
}

static void test_full_hit(void) {
    radix *tree = make(10, 1, 1);
    radix_node root = add_root(tree), nodes[5] = {root};
    uint32_t tokens[5 * PAGE];
    path_tokens(tokens, 5 * PAGE);
    for (uint32_t i = 0; i < 4; i++)
        nodes[i + 1] = add_held(tree, nodes[i], tokens + i * PAGE, PAGE);
    for (uint32_t n = 0; n <= 4; n++)
        check_match(find(tree, root, tokens, n * PAGE), nodes[n], n, nodes[n], n, RADIX_NONE, 0);
    CHECK_EQ(find(tree, root, tokens, 4 * PAGE).visits, 4);
    /* One token more, one less, and from a page in between. */
    check_match(find(tree, root, tokens, 4 * PAGE + 1), nodes[4], 4, nodes[4], 4, RADIX_NONE, 0);
    check_match(find(tree, root, tokens, 4 * PAGE - 1), nodes[3], 3, nodes[3], 3, nodes[4],
                PAGE - 1);
    check_match(find(tree, nodes[2], tokens + 2 * PAGE, 2 * PAGE), nodes[4], 2, nodes[4], 2,
                RADIX_NONE, 0);
    check_match(find(tree, nodes[4], tokens, PAGE), nodes[4], 0, nodes[4], 0, RADIX_NONE, 0);
    audit(tree);
    free(tree);
}

/* Only what is held, and has held pages in front of it alone, is counted as held. */
static void test_held(void) {
    radix *tree = make(10, 1, 1);
    radix_node root = add_root(tree), nodes[5] = {root};
    uint32_t tokens[4 * PAGE];
    path_tokens(tokens, 4 * PAGE);
    for (uint32_t i = 0; i < 4; i++)
        nodes[i + 1] = add_held(tree, nodes[i], tokens + i * PAGE, PAGE);
    radix_set_held(tree, nodes[3], 0);
    CHECK(!radix_is_held(tree, nodes[3]) && radix_is_held(tree, nodes[4]));
    check_match(find(tree, root, tokens, 4 * PAGE), nodes[4], 4, nodes[2], 2, RADIX_NONE, 0);
    /* A held sibling of the page that is not helps out. */
    uint32_t other[PAGE];
    memcpy(other, tokens + 2 * PAGE, sizeof other);
    other[9]++;
    radix_node sibling = add_held(tree, nodes[2], other, PAGE);
    check_match(find(tree, root, tokens, 4 * PAGE), nodes[4], 4, nodes[2], 2, sibling, 9);
    radix_set_held(tree, nodes[1], 0);
    check_match(find(tree, root, tokens, 4 * PAGE), nodes[4], 4, root, 0, RADIX_NONE, 0);
    /* From a page that is not held nothing is. */
    check_match(find(tree, nodes[1], tokens + PAGE, PAGE), nodes[2], 1, nodes[1], 0, RADIX_NONE, 0);
    audit(tree);
    free(tree);
}

/* The first r tokens of a page that diverges; of several the one that shares most, then the
 * longest. */
static void test_sub_page_match(void) {
    radix *tree = make(64, 1, 1);
    radix_node root = add_root(tree);
    uint32_t tokens[PAGE], query[PAGE];
    radix_node nodes[PAGE];
    for (uint32_t i = 0; i < PAGE; i++)
        query[i] = 50;
    /* nodes[i] shares i tokens, and stands in front of the query or behind it. */
    for (uint32_t i = 0; i < PAGE; i++) {
        memcpy(tokens, query, sizeof tokens);
        tokens[i] = i % 2 ? 10 : 90;
        nodes[i] = add_held(tree, root, tokens, PAGE);
    }
    for (uint32_t i = PAGE; i-- > 0;) {
        check_match(find(tree, root, query, PAGE), root, 0, root, 0, i > 0 ? nodes[i] : RADIX_NONE,
                    i);
        radix_set_held(tree, nodes[i], 0);
        audit(tree);
    }
    /* Four that share five tokens, of 6, 16, 9 and 7 tokens, on both sides. */
    static const uint32_t n_tokens[] = {6, 16, 9, 7};
    static const uint32_t differ[] = {20, 30, 70, 80};
    radix_node four[4];
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(tokens, query, sizeof tokens);
        tokens[5] = differ[i];
        four[i] = add_held(tree, root, tokens, n_tokens[i]);
    }
    check_match(find(tree, root, query, PAGE), root, 0, root, 0, four[1], 5);
    radix_set_held(tree, four[1], 0);
    check_match(find(tree, root, query, PAGE), root, 0, root, 0, four[2], 5);
    radix_set_held(tree, four[2], 0);
    check_match(find(tree, root, query, PAGE), root, 0, root, 0, four[3], 5);
    radix_set_held(tree, four[3], 0);
    check_match(find(tree, root, query, PAGE), root, 0, root, 0, four[0], 5);
    audit(tree);
    free(tree);
}

static void test_short_pages(void) {
    radix *tree = make(10, 1, 1);
    radix_node root = add_root(tree), node = 77;
    radix_node brief = add_held(tree, root, label(1, 5, 1), 5);
    CHECK_EQ(radix_insert(tree, brief, label(1, 5, 1), 5, 0, &node), KVT_EINVAL);
    CHECK_EQ(radix_insert(tree, root, label(1, 5, 1), 0, 0, &node), KVT_EINVAL);
    CHECK_EQ(radix_insert(tree, root, label(1, PAGE, 1), PAGE + 1, 0, &node), KVT_EINVAL);
    CHECK_EQ(node, 77);
    CHECK_EQ(radix_insert(tree, root, label(1, 5, 1), 5, 0, &node), KVT_EEXIST);
    CHECK_EQ(node, brief);
    /* A short page is no full page of a match, even where the query goes on as it does. */
    check_match(find(tree, root, label(1, PAGE, 1), PAGE), root, 0, root, 0, brief, 5);
    check_match(find(tree, root, label(1, 5, 1), 5), root, 0, root, 0, brief, 5);
    check_match(find(tree, root, label(1, 3, 1), 3), root, 0, root, 0, brief, 3);
    /* A realm whose pages are short: a page of 4 tokens is full there and may have children. */
    CHECK_EQ(radix_remove(tree, brief), KVT_OK);
    CHECK_EQ(radix_root_remove(tree, root), KVT_OK);
    CHECK_EQ(radix_root_add(tree, 4, 1, &root), KVT_OK);
    CHECK_EQ(radix_insert(tree, root, label(1, 5, 1), 5, 0, &node), KVT_EINVAL);
    radix_node one = add_held(tree, root, label(1, 4, 1), 4);
    radix_node two = add_held(tree, one, label(2, 4, 2), 4);
    static const uint32_t tokens[] = {1, 1, 1, 1, 2, 2, 2, 2, 3};
    check_match(find(tree, root, tokens, 9), two, 2, two, 2, RADIX_NONE, 0);
    check_match(find(tree, root, tokens, 7), one, 1, one, 1, two, 3);
    audit(tree);
    free(tree);
}

/* Labels that are prefixes of each other are siblings, the shorter in front. */
static void test_prefix_siblings(void) {
    radix *tree = make(64, 1, 1);
    radix_node root = add_root(tree), nodes[PAGE + 1];
    static const uint32_t order[] = {9, 3, 16, 1, 12, 5, 2, 15, 7, 4, 14, 6, 8, 13, 10, 11};
    for (uint32_t i = 0; i < PAGE; i++)
        nodes[order[i]] = add_held(tree, root, label(4, order[i], 4), order[i]);
    radix_node before = add(tree, root, label(3, PAGE, 3), PAGE, 0);
    radix_node after = add(tree, root, label(4, 9, 5), 9, 0);
    CHECK_EQ(radix_first_child(tree, root), before);
    CHECK_EQ(radix_next_sibling(tree, before), nodes[1]);
    for (uint32_t n = 1; n <= PAGE; n++) {
        CHECK_EQ(radix_child_equal(tree, root, label(4, n, 4), n), nodes[n]);
        CHECK_EQ(radix_prev_sibling(tree, nodes[n]), n > 1 ? nodes[n - 1] : before);
        CHECK_EQ(radix_next_sibling(tree, nodes[n]), n < PAGE ? nodes[n + 1] : after);
        /* n tokens are shared with all that are at least as long: the longest it is. */
        if (n < PAGE)
            check_match(find(tree, root, label(4, n, 4), n), root, 0, root, 0, nodes[PAGE], n);
    }
    check_match(find(tree, root, label(4, PAGE, 4), PAGE), nodes[PAGE], 1, nodes[PAGE], 1,
                RADIX_NONE, 0);
    CHECK_EQ(radix_next_sibling(tree, after), RADIX_NONE);
    CHECK_EQ(radix_prev_sibling(tree, before), RADIX_NONE);
    audit(tree);
    free(tree);
}

/* Order is that of numbers, not of bytes. */
static void test_token_order(void) {
    static const uint32_t values[] = {0, 1, 0xff, 0x100, 0x1ff, 0x01000000, 0x7fffffff, UINT32_MAX};
    radix *tree = make(10, 1, 1);
    radix_node root = add_root(tree);
    for (uint32_t i = 8; i-- > 0;)
        add(tree, root, label(5, 3, values[i * 5 % 8]), 3, 0);
    radix_node node = radix_first_child(tree, root);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t n;
        CHECK_EQ(radix_tokens(tree, node, &n)[2], values[i]);
        node = radix_next_sibling(tree, node);
    }
    CHECK_EQ(node, RADIX_NONE);
    audit(tree);
    free(tree);
}

/* --- ids and slots ------------------------------------------------------------------------------
 */

static void test_full_pool(void) {
    radix *tree = make(3, 1, 1);
    radix_node root = add_root(tree), node = 77;
    radix_node a = add(tree, root, label(1, PAGE, 1), PAGE, 5);
    radix_node b = add(tree, a, label(2, PAGE, 2), PAGE, 5);
    add(tree, b, label(3, PAGE, 3), PAGE, 5);
    CHECK_EQ(radix_insert(tree, b, label(4, PAGE, 3), PAGE, 0, &node), KVT_EFULL);
    CHECK_EQ(node, 77);
    CHECK_EQ(radix_insert(tree, root, label(1, PAGE, 1), PAGE, 0, &node), KVT_EEXIST);
    CHECK_EQ(node, a);
    CHECK_EQ(radix_key(tree, a), 5);
    CHECK_EQ(count(tree).free, 0);
    CHECK_EQ(count(tree).leaves, 1);
    audit(tree);
    CHECK_EQ(radix_remove(tree, radix_coldest(tree)), KVT_OK);
    CHECK_EQ(radix_insert(tree, b, label(4, PAGE, 3), PAGE, 0, &node), KVT_OK);
    audit(tree);
    free(tree);
}

/* A path inserted at once has ids in sequence; so has one that takes the place of another. */
static void test_ids_in_sequence(void) {
    radix *tree = make(64, 1, 1);
    radix_node root = add_root(tree), first[2] = {RADIX_NONE, RADIX_NONE};
    for (uint32_t round = 0; round < 2; round++) {
        radix_node node = root;
        for (uint32_t i = 0; i < 64; i++) {
            radix_node next = add(tree, node, label(i + 7 * round, PAGE, 0), PAGE, 0);
            CHECK(i == 0 || next == node + 1);
            node = next;
            if (i == 0)
                first[round] = next;
        }
        while (count(tree).idle > 0)
            CHECK_EQ(radix_remove(tree, radix_coldest(tree)), KVT_OK);
    }
    CHECK_EQ(first[0], first[1]);
    audit(tree);
    free(tree);
}

static void test_slots(void) {
    radix *tree = make(4, 2, 64);
    radix_node root = RADIX_NONE, plain = add_root(tree);
    CHECK_EQ(radix_root_add(tree, PAGE, 0, &root), KVT_EINVAL);
    CHECK_EQ(radix_root_add(tree, PAGE, 65, &root), KVT_EINVAL);
    CHECK_EQ(radix_root_add(tree, PAGE, 64, &root), KVT_OK);
    CHECK_EQ(radix_slots(tree, plain), 1);
    CHECK_EQ(radix_slots(tree, add(tree, plain, label(1, PAGE, 1), PAGE, 0)), 1);
    CHECK_EQ(radix_remove(tree, radix_coldest(tree)), KVT_OK);
    radix_node a = add(tree, root, label(1, PAGE, 1), PAGE, 0);
    radix_node b = add(tree, root, label(2, PAGE, 1), PAGE, 0);
    for (uint32_t slot = 0; slot < 64; slot++) {
        CHECK_EQ(radix_handle(tree, a, slot), 0);
        radix_set_handle(tree, a, slot, UINT32_MAX - slot);
        radix_set_handle(tree, b, slot, slot);
    }
    for (uint32_t slot = 0; slot < 64; slot++) {
        CHECK(radix_handle(tree, a, slot) == UINT32_MAX - slot);
        CHECK(radix_handle(tree, b, slot) == slot);
    }
    /* What an id had before is not there when it is given out again. */
    radix_set_held(tree, a, 1);
    radix_set_key(tree, a, 9);
    CHECK_EQ(radix_remove(tree, a), KVT_OK);
    radix_node c = add(tree, b, label(3, 5, 1), 5, 4);
    CHECK_EQ(c, a);
    CHECK_EQ(radix_slots(tree, c), 64);
    CHECK(!radix_is_held(tree, c) && !radix_is_busy(tree, c) && radix_is_leaf(tree, c));
    CHECK_EQ(radix_key(tree, c), 4);
    CHECK_EQ(radix_depth(tree, c), 2);
    for (uint32_t slot = 0; slot < 64; slot++)
        CHECK_EQ(radix_handle(tree, c, slot), 0);
    audit(tree);
    free(tree);
}

/* --- pins and order of going --------------------------------------------------------------------
 */

/*   root - a - b - c        d, e below b;  f below root
 *              |- d
 *              '- e
 */
static void test_pins(void) {
    radix *tree = make(10, 1, 1);
    radix_node root = add_root(tree);
    radix_node a = add(tree, root, label(1, PAGE, 1), PAGE, 0);
    radix_node b = add(tree, a, label(1, PAGE, 1), PAGE, 0);
    radix_node c = add(tree, b, label(1, PAGE, 1), PAGE, 0);
    radix_node d = add(tree, b, label(2, PAGE, 1), PAGE, 0);
    radix_pin(tree, d);
    /* Below a pinned page and beside it a new one is idle. */
    radix_node e = add(tree, b, label(3, PAGE, 1), PAGE, 0);
    radix_node f = add(tree, d, label(3, PAGE, 1), PAGE, 0);
    CHECK(radix_is_busy(tree, a) && radix_is_busy(tree, b) && radix_is_busy(tree, d));
    CHECK(!radix_is_busy(tree, c) && !radix_is_busy(tree, e) && !radix_is_busy(tree, f));
    CHECK(radix_is_busy(tree, root));
    CHECK_EQ(count(tree).busy, 3);
    CHECK_EQ(count(tree).idle, 3);
    CHECK_EQ(count(tree).leaves, 3);
    CHECK_EQ(radix_remove(tree, d), KVT_EBUSY);
    CHECK_EQ(radix_remove(tree, f), KVT_OK);
    CHECK_EQ(radix_remove(tree, d), KVT_EBUSY);
    CHECK_EQ(radix_remove(tree, b), KVT_EBUSY);
    audit(tree);

    radix_pin(tree, d);
    radix_pin(tree, c);
    CHECK_EQ(radix_pins(tree, d), 2);
    CHECK_EQ(radix_pins(tree, b), 0);
    radix_unpin(tree, d);
    CHECK(radix_is_busy(tree, d));
    radix_unpin(tree, d);
    CHECK(!radix_is_busy(tree, d) && radix_is_busy(tree, b));
    CHECK_EQ(count(tree).busy, 3);
    radix_unpin(tree, c);
    CHECK_EQ(count(tree).busy, 0);
    CHECK(!radix_is_busy(tree, root));
    audit(tree);

    /* A pinned root keeps nothing below it. */
    radix_pin(tree, root);
    CHECK_EQ(count(tree).busy, 0);
    radix_unpin(tree, root);
    for (uint32_t n = 5; n > 0; n--)
        CHECK_EQ(radix_remove(tree, radix_coldest(tree)), KVT_OK);
    CHECK_EQ(radix_coldest(tree), RADIX_NONE);
    CHECK_EQ(count(tree).free, 10);
    audit(tree);
    free(tree);
}

static void take_coldest(radix *tree, radix_node expected) {
    CHECK_EQ(radix_coldest(tree), expected);
    CHECK_EQ(radix_remove(tree, expected), KVT_OK);
    audit(tree);
}

/* Smallest key first, of equals the deeper, tails only, pinned ones never. */
static void test_order_of_going(void) {
    radix *tree = make(20, 1, 1);
    radix_node root = add_root(tree);
    radix_node a1 = add(tree, root, label(1, PAGE, 1), PAGE, 5);
    radix_node a2 = add(tree, a1, label(1, PAGE, 1), PAGE, 5);
    radix_node a3 = add(tree, a2, label(1, PAGE, 1), PAGE, 9);
    radix_node b1 = add(tree, root, label(2, PAGE, 1), PAGE, 5);
    radix_node c1 = add(tree, root, label(3, PAGE, 1), PAGE, 7);
    radix_node d1 = add(tree, root, label(4, PAGE, 1), PAGE, UINT64_MAX);
    radix_node e1 = add(tree, root, label(5, PAGE, 1), PAGE, 1);
    radix_node e2 = add(tree, e1, label(5, PAGE, 1), PAGE, 8);
    radix_pin(tree, e2);
    take_coldest(tree, b1);
    /* e1 has the smallest key, but its tail is pinned; a1's and a2's are small, but a3 stays. */
    take_coldest(tree, c1);
    radix_unpin(tree, e2);
    take_coldest(tree, e2);
    take_coldest(tree, e1);
    /* A key may fall and rise. */
    radix_set_key(tree, d1, 2);
    CHECK_EQ(radix_coldest(tree), d1);
    radix_set_key(tree, d1, 10);
    CHECK_EQ(radix_coldest(tree), a3);
    /* Touching the tail touches all in front of it, and nothing beside. */
    radix_touch(tree, a3, 10);
    CHECK_EQ(radix_key(tree, a1), 10);
    CHECK_EQ(radix_key(tree, a2), 10);
    CHECK_EQ(radix_key(tree, a3), 10);
    radix_touch(tree, a1, 11);
    CHECK_EQ(radix_key(tree, a2), 10);
    /* Equal keys: a3 is deeper than d1, and a2 too. */
    take_coldest(tree, a3);
    take_coldest(tree, a2);
    take_coldest(tree, d1);
    take_coldest(tree, a1);
    CHECK_EQ(radix_coldest(tree), RADIX_NONE);
    free(tree);
}

/* --- walk ---------------------------------------------------------------------------------------
 */

typedef struct rows {
    radix_run run[16];
    int n;
    int stop_at;
} rows;

static int add_row(void *context, const radix_run *run) {
    rows *seen = context;
    CHECK(seen->n < 16);
    seen->run[seen->n++] = *run;
    return seen->n == seen->stop_at ? 42 : 0;
}

/* root - a - b - c - d(short);  e, f below c too;  g below root */
static void test_walk(void) {
    radix *tree = make(20, 1, 1);
    radix_node root = add_root(tree);
    rows seen = {.n = 0};
    CHECK_EQ(radix_walk(tree, root, add_row, &seen), 0);
    CHECK_EQ(seen.n, 0);
    radix_node g = add_held(tree, root, label(9, PAGE, 9), PAGE);
    radix_node a = add_held(tree, root, label(1, PAGE, 1), PAGE);
    radix_node b = add_held(tree, a, label(1, PAGE, 1), PAGE);
    radix_node c = add_held(tree, b, label(1, PAGE, 1), PAGE);
    radix_node f = add_held(tree, c, label(3, PAGE, 1), PAGE);
    radix_node d = add_held(tree, c, label(1, 5, 1), 5);
    radix_node e = add(tree, c, label(2, PAGE, 1), PAGE, 0);
    const radix_run expected[] = {
        {a, c, 1, 3, 3 * PAGE, 3, 0, 1, 0, 0}, {d, d, 4, 1, 5, 0, 0, 1, 0, 0},
        {e, e, 4, 1, PAGE, 0, 0, 0, 0, 0},     {f, f, 4, 1, PAGE, 0, 0, 1, 0, 0},
        {g, g, 1, 1, PAGE, 0, 0, 1, 0, 0},
    };
    CHECK_EQ(radix_walk(tree, root, add_row, &seen), 0);
    CHECK_EQ(seen.n, 5);
    for (int i = 0; i < 5; i++)
        CHECK_MSG(memcmp(&seen.run[i], &expected[i], sizeof(radix_run)) == 0, "row %d", i);
    seen = (rows){.stop_at = 2};
    CHECK_EQ(radix_walk(tree, root, add_row, &seen), 42);
    CHECK_EQ(seen.n, 2);

    /* A pin ends its run, and so does what is held, or busy, no longer. */
    radix_pin(tree, b);
    radix_pin(tree, b);
    seen = (rows){.n = 0};
    CHECK_EQ(radix_walk(tree, root, add_row, &seen), 0);
    CHECK_EQ(seen.n, 6);
    const radix_run pinned = {a, b, 1, 2, 2 * PAGE, 1, 2, 1, 1, 0};
    CHECK(memcmp(&seen.run[0], &pinned, sizeof pinned) == 0);
    CHECK_EQ(seen.run[1].first, c);
    radix_set_held(tree, b, 0);
    seen = (rows){.n = 0};
    CHECK_EQ(radix_walk(tree, root, add_row, &seen), 0);
    CHECK_EQ(seen.n, 7);
    free(tree);
}

/* What is hidden stays as it is, but nothing finds it, and its tokens are another's to use. */
static void test_hide(void) {
    radix *tree = make(20, 1, 1);
    radix_node root = add_root(tree);
    radix_node a = add_held(tree, root, label(1, PAGE, 1), PAGE);
    radix_node b = add_held(tree, a, label(2, PAGE, 1), PAGE);
    radix_node next = add_held(tree, root, label(5, PAGE, 1), PAGE);
    uint32_t query[2 * PAGE];
    memcpy(query, label(1, PAGE, 1), sizeof query / 2);
    memcpy(query + PAGE, label(2, PAGE, 1), sizeof query / 2);
    radix_pin(tree, b);
    radix_hide(tree, a);
    audit(tree);
    check_match(find(tree, root, query, 2 * PAGE), root, 0, root, 0, RADIX_NONE, 0);
    check_match(find(tree, root, query, 7), root, 0, root, 0, RADIX_NONE, 0);
    CHECK(radix_is_hidden(tree, a) && !radix_is_hidden(tree, b) && radix_is_held(tree, a));
    CHECK_EQ(radix_parent(tree, b), a);
    CHECK_EQ(radix_next_sibling(tree, next), a);
    /* The same tokens again, and hidden again. */
    radix_node again = add_held(tree, root, label(1, PAGE, 1), PAGE);
    CHECK(again != a);
    check_match(find(tree, root, query, 2 * PAGE), again, 1, again, 1, RADIX_NONE, 0);
    radix_hide(tree, again);
    radix_hide(tree, again);
    audit(tree);
    CHECK_EQ(find(tree, root, query, 2 * PAGE).n_pages, 0);
    CHECK_EQ(radix_remove(tree, again), KVT_OK);
    radix_unpin(tree, b);
    CHECK_EQ(radix_remove(tree, b), KVT_OK);
    CHECK_EQ(radix_remove(tree, a), KVT_OK);
    audit(tree);
    free(tree);
}

int main(void) {
    test_limits();
    test_roots();
    test_empty();
    test_shorter_than_a_page();
    test_full_hit();
    test_held();
    test_sub_page_match();
    test_short_pages();
    test_prefix_siblings();
    test_token_order();
    test_full_pool();
    test_ids_in_sequence();
    test_slots();
    test_pins();
    test_order_of_going();
    test_walk();
    test_hide();
    return 0;
}
