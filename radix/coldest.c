/*
 * coldest.c - the pages that may go now (leaves without pins), and which of them goes first: the
 * one with the smallest key, the deeper one of equals.
 *
 * A tournament. The ids are grouped by eights; each group's first to go plays for it among the
 * eight groups beside it, and so on up to one:
 *
 *   level 2                          [ (key, page) ]                 the first of all
 *                       __________________|________ ...
 *   level 1   [ (key, page) | (key, page) | ...  8 ]                 the first of each group
 *              ______|_____   ____|_____
 *   pages     [0 1 2 ... 7]  [8 ... 15]                              their keys; a bit each: stands
 *
 * A page has its place by its id and never moves, so nothing says where it is, and a change reads
 * one line of eight keys a level, as far up as it changes who is first there. All of these lines
 * are known beforehand: they are asked for together. (A heap would write into the record of each
 * page that it moves, all over the memory.)
 *
 * The first of a group without any is page RADIX_NONE with the largest key. Lines are filled when
 * the first id of theirs is given out.
 */
#include "radix/pool.h"

typedef struct contender {
    uint64_t key;
    radix_node page; /* RADIX_NONE: nobody */
} contender;

enum { GROUP = RADIX_GROUP };

int radix_cold_before(const radix *tree, radix_node a, radix_node b) {
    uint64_t a_key = *key_at(tree, a), b_key = *key_at(tree, b);
    return a_key < b_key ||
           (a_key == b_key && record_at(tree, a)->depth > record_at(tree, b)->depth);
}

/* The one of both that goes first; RADIX_NONE is nobody. */
static radix_node first_of_two(const radix *tree, radix_node a, radix_node b) {
    if (a == RADIX_NONE || b == RADIX_NONE)
        return a != RADIX_NONE ? a : b;
    return radix_cold_before(tree, b, a) ? b : a;
}

/* Which of two keys is the smaller one. */
static inline contender less(contender a, contender b) {
    int is_b = b.key < a.key;
    return (contender){is_b ? b.key : a.key, is_b ? b.page : a.page};
}

/* The key, or the largest one if the i-th bit says that it does not count. */
static inline uint64_t counted(const uint64_t *keys, uint32_t bits, uint32_t i) {
    return keys[i] | ((uint64_t)(bits >> i & 1) - 1);
}

/* Which of eight keys is the smallest of those that bits name; its place instead of a page.
 * *ret_n_equal: how many are. Without a branch: which one it is cannot be foretold. */
static inline contender least_of(const uint64_t *keys, uint32_t bits, uint32_t *ret_n_equal) {
    uint64_t k0 = counted(keys, bits, 0), k1 = counted(keys, bits, 1), k2 = counted(keys, bits, 2),
             k3 = counted(keys, bits, 3), k4 = counted(keys, bits, 4), k5 = counted(keys, bits, 5),
             k6 = counted(keys, bits, 6), k7 = counted(keys, bits, 7);
    contender a = less((contender){k0, 0}, (contender){k1, 1});
    contender b = less((contender){k2, 2}, (contender){k3, 3});
    contender c = less((contender){k4, 4}, (contender){k5, 5});
    contender d = less((contender){k6, 6}, (contender){k7, 7});
    contender least = less(less(a, b), less(c, d));
    uint64_t k = least.key;
    *ret_n_equal = (uint32_t)((k0 == k) + (k1 == k) + (k2 == k) + (k3 == k) + (k4 == k) +
                              (k5 == k) + (k6 == k) + (k7 == k));
    return least;
}

/* The first of a group of pages. */
static contender first_of_pages(const radix *tree, uint32_t group) {
    uint32_t standing = *standing_at(tree, group), n_equal = 0;
    if (standing == 0)
        return (contender){UINT64_MAX, RADIX_NONE};
    contender least = least_of(key_at(tree, group * GROUP), standing, &n_equal);
    if (n_equal == 1)
        return (contender){least.key, group * GROUP + least.page};
    radix_node first = RADIX_NONE;
    for (uint32_t i = 0; i < GROUP; i++)
        first = first_of_two(tree, first, standing >> i & 1 ? group * GROUP + i : RADIX_NONE);
    return (contender){least.key, first};
}

/* The first of a group of those that are first on a level. */
static contender first_of_firsts(const radix *tree, uint32_t level, uint32_t group) {
    const radix_node *pages = first_page_at(tree, level, group * GROUP);
    uint32_t n_equal = 0;
    contender least = least_of(first_key_at(tree, level, group * GROUP), UINT32_MAX, &n_equal);
    if (n_equal == 1)
        return (contender){least.key, pages[least.page]};
    radix_node first = RADIX_NONE;
    for (uint32_t i = 0; i < GROUP; i++)
        first = first_of_two(tree, first, pages[i]);
    return (contender){least.key, first};
}

/* The page has come in or got a smaller key: it is first as far up as it goes before who was. */
static void play_up(radix *tree, radix_node page) {
    uint64_t key = *key_at(tree, page);
    uint32_t at = page;
    for (uint32_t level = 1; level <= tree->n_levels; level++) {
        at /= GROUP;
        uint64_t *first = first_key_edit(tree, level, at);
        radix_node *there = first_page_edit(tree, level, at);
        if (*first < key ||
            (*first == key && *there != page && first_of_two(tree, *there, page) != page))
            return;
        *there = page;
        *first = key;
    }
}

/* The page has gone or got a larger key: where it was first, that is played again. */
static void play_again(radix *tree, radix_node page) {
    uint32_t at = page;
    for (uint32_t level = 1; level <= tree->n_levels; level++) {
        at /= GROUP;
        radix_node *there = first_page_edit(tree, level, at);
        if (*there != page)
            return;
        contender first =
            level == 1 ? first_of_pages(tree, at) : first_of_firsts(tree, level - 1, at);
        *there = first.page;
        *first_key_edit(tree, level, at) = first.key;
        __builtin_prefetch(record_at(tree, first.page), 1);
    }
}

void radix_cold_fresh(radix *tree, radix_node page) {
    uint32_t at = page;
    if (page % GROUP == 0 || page == 1)
        *standing_edit(tree, page / GROUP) = 0;
    for (uint32_t level = 1; level <= tree->n_levels; level++) {
        if (at % GROUP != 0 && page != 1)
            return;
        at /= GROUP;
        if (at % GROUP != 0 && page != 1)
            return;
        for (uint32_t i = 0; i < GROUP; i++) {
            *first_key_edit(tree, level, at + i) = UINT64_MAX;
            *first_page_edit(tree, level, at + i) = RADIX_NONE;
        }
    }
}

void radix_cold_fetch_next(const radix *tree) {
    uint32_t at = radix_coldest(tree) / GROUP, top = tree->n_levels > 1 ? tree->n_levels - 1 : 1;
    for (uint32_t i = 0; i < GROUP / 2; i++) {
        const radix_record *soon = record_at(tree, *first_page_at(tree, top, i));
        __builtin_prefetch(record_at(tree, soon->left), 1);
        __builtin_prefetch(record_at(tree, soon->right), 1);
        __builtin_prefetch(record_at(tree, soon->up), 1);
    }
    __builtin_prefetch(standing_at(tree, at), 1);
    __builtin_prefetch(key_at(tree, at * GROUP));
    for (uint32_t level = 1; level < tree->n_levels; level++) {
        __builtin_prefetch(first_key_at(tree, level, at), 1);
        __builtin_prefetch(first_page_at(tree, level, at), 1);
        at /= GROUP;
    }
}

void radix_cold_add(radix *tree, radix_node page) {
    uint8_t *standing = standing_edit(tree, page / GROUP);
    KVT_ASSERT(!(*standing >> page % GROUP & 1));
    *standing = (uint8_t)(*standing | 1u << page % GROUP);
    tree->n_cold++;
    play_up(tree, page);
}

void radix_cold_remove(radix *tree, radix_node page) {
    uint8_t *standing = standing_edit(tree, page / GROUP);
    KVT_ASSERT(*standing >> page % GROUP & 1);
    *standing = (uint8_t)(*standing & ~(1u << page % GROUP));
    tree->n_cold--;
    play_again(tree, page);
}

void radix_cold_moved(radix *tree, radix_node page) {
    play_again(tree, page);
    play_up(tree, page);
}

int radix_cold_stands(const radix *tree, radix_node page) {
    return *standing_at(tree, page / GROUP) >> page % GROUP & 1;
}

radix_node radix_coldest(const radix *tree) {
    return tree->n_cold ? *first_page_at(tree, tree->n_levels, 0) : RADIX_NONE;
}
