/*
 * audit.c - checks every invariant of a tree, and says which is broken.
 *
 * It allocates nothing and never recurses; what it must trust to go on, it has checked before:
 * first all links of all nodes, one at a time (so that every way down a treap falls in priority,
 * every way up in depth, and both end), then what follows links.
 */
#include <stdarg.h>

#include "radix/pool.h"

typedef struct audit {
    const radix *tree;
    char *why;
    size_t why_bytes;
} audit;

__attribute__((format(printf, 2, 3))) static kvt_status broken(const audit *a, const char *format,
                                                               ...) {
    if (a->why != NULL && a->why_bytes > 0) {
        va_list values;
        va_start(values, format);
        vsnprintf(a->why, a->why_bytes, format, values);
        va_end(values);
    }
    return KVT_EINTERNAL;
}

/* --- ids ----------------------------------------------------------------------------------------
 */

/* Live and free ids are disjoint and together all that were given out. */
static kvt_status audit_stock(const audit *a, const radix_stock *stock, const char *name) {
    uint32_t n_live = 0, n_free = 0;
    if (stock->n_fresh > stock->max)
        return broken(a, "%s: %u given out of %u", name, stock->n_fresh, stock->max);
    for (uint32_t i = 1; i <= stock->n_fresh; i++)
        n_live += record_at(a->tree, stock->base + i)->flags & RADIX_LIVE;
    if (n_live != stock->n_live)
        return broken(a, "%s: %u live, counted as %u", name, n_live, stock->n_live);
    for (radix_node node = stock->free; node != RADIX_NONE;
         node = record_at(a->tree, node)->right) {
        if (node <= stock->base || node - stock->base > stock->n_fresh)
            return broken(a, "%s: %u in the free list was never given out", name, node);
        if (record_at(a->tree, node)->flags & RADIX_LIVE)
            return broken(a, "%s: %u is in the free list and live", name, node);
        if (++n_free > stock->n_fresh)
            return broken(a, "%s: the free list is a circle", name);
    }
    if (n_live + n_free != stock->n_fresh)
        return broken(a, "%s: %u live + %u free != %u given out", name, n_live, n_free,
                      stock->n_fresh);
    return KVT_OK;
}

static int is_live_page(const audit *a, radix_node node) {
    return !node_is_root(a->tree, node) && stock_has(a->tree, &a->tree->pages, node);
}

/* --- links, one at a time -----------------------------------------------------------------------
 */

/* A link down to a sibling. */
static kvt_status audit_sibling(const audit *a, radix_node node, radix_node below) {
    if (below == RADIX_NONE)
        return KVT_OK;
    if (!is_live_page(a, below))
        return broken(a, "page %u links to sibling %u, which is no live page", node, below);
    if (record_at(a->tree, below)->up != node)
        return broken(a, "page %u links to sibling %u, which hangs from %u", node, below,
                      record_at(a->tree, below)->up);
    if (node_priority(below) >= node_priority(node))
        return broken(a, "page %u stands above %u, which has the higher priority", node, below);
    return KVT_OK;
}

static kvt_status audit_root(const audit *a, radix_node root) {
    const radix *tree = a->tree;
    const radix_record *record = record_at(tree, root);
    if (record->up != RADIX_NONE || record->left != RADIX_NONE || record->right != RADIX_NONE ||
        record->n_tokens != 0 || record->best_held != 0 ||
        (record->flags & (RADIX_LIVE | RADIX_HELD)) != RADIX_LIVE || record->depth != 0 ||
        record->page_tokens < 1 || record->page_tokens > tree->limits.page_tokens)
        return broken(a, "root %u has what only a page may have", root);
    return KVT_OK;
}

static kvt_status audit_links(const audit *a, radix_node node) {
    const radix *tree = a->tree;
    const radix_record *record = record_at(tree, node);
    if (record->child != RADIX_NONE) {
        if (!is_live_page(a, record->child))
            return broken(a, "node %u links to child %u, which is no live page", node,
                          record->child);
        if (record_at(tree, record->child)->up != node)
            return broken(a, "child %u of node %u hangs from %u", record->child, node,
                          record_at(tree, record->child)->up);
    }
    if (node_is_root(tree, node))
        return audit_root(a, node);
    if (!node_is_live(tree, record->up))
        return broken(a, "page %u hangs from %u, which is not live", node, record->up);
    const radix_record *up = record_at(tree, record->up);
    if ((up->child == node) + (up->left == node) + (up->right == node) != 1)
        return broken(a, "page %u hangs from %u, which does not link to it once", node, record->up);
    kvt_status status = audit_sibling(a, node, record->left);
    return status != KVT_OK ? status : audit_sibling(a, node, record->right);
}

/* --- what follows links -------------------------------------------------------------------------
 */

/* What a page has from its parent: so every way up ends at a root. */
static kvt_status audit_parent(const audit *a, radix_node node) {
    const radix *tree = a->tree;
    const radix_record *record = record_at(tree, node);
    radix_node parent = node_parent(tree, node);
    if (record->depth != record_at(tree, parent)->depth + 1)
        return broken(a, "page %u at depth %u, its parent at %u", node, record->depth,
                      record_at(tree, parent)->depth);
    if (!node_may_have_children(tree, parent))
        return broken(a, "page %u is the child of a short page", node);
    if (record->page_tokens != record_at(tree, parent)->page_tokens || record->n_tokens < 1 ||
        record->n_tokens > record->page_tokens)
        return broken(a, "page %u: %u tokens of %u", node, record->n_tokens, record->page_tokens);
    return KVT_OK;
}

static kvt_status audit_order(const audit *a, radix_node node) {
    const radix *tree = a->tree;
    radix_node next = radix_next_sibling(tree, node);
    seek s = seek_of(tree, node);
    if (next != RADIX_NONE && seek_side(tree, &s, next) >= 0)
        return broken(a, "page %u does not stand in front of its next sibling %u", node, next);
    if (record_at(tree, node)->best_held != radix_best_held(tree, node))
        return broken(a, "page %u: longest held in its treap has %u tokens, noted as %u", node,
                      radix_best_held(tree, node), record_at(tree, node)->best_held);
    return KVT_OK;
}

static kvt_status audit_busy(const audit *a, radix_node node) {
    const radix *tree = a->tree;
    const radix_record *record = record_at(tree, node);
    uint32_t busy = node_pins(record) > 0;
    for (radix_node child = radix_first_child(tree, node); child != RADIX_NONE;
         child = radix_next_sibling(tree, child))
        busy += record_at(tree, child)->busy > 0;
    if (busy != record->busy)
        return broken(a, "node %u: pins and busy children make %u, noted as %u", node, busy,
                      record->busy);
    return KVT_OK;
}

static kvt_status audit_standing(const audit *a, radix_node page) {
    const radix *tree = a->tree;
    if (radix_cold_stands(tree, page) != node_may_go(tree, page))
        return broken(a, "page %u %s go, but %s for going", page,
                      node_may_go(tree, page) ? "may" : "may not",
                      node_may_go(tree, page) ? "does not stand" : "stands");
    return KVT_OK;
}

/* One of those that group `group` of a level is made of: RADIX_NONE or one that stands. */
static kvt_status audit_first(const audit *a, uint32_t level, uint32_t group, radix_node page) {
    const radix *tree = a->tree;
    radix_node first = *first_page_at(tree, level, group);
    if (page == RADIX_NONE || page == first)
        return KVT_OK;
    if (first == RADIX_NONE || radix_cold_before(tree, page, first))
        return broken(a, "page %u goes before page %u, which is first of group %u on level %u",
                      page, first, group, level);
    return KVT_OK;
}

static kvt_status audit_group(const audit *a, uint32_t level, uint32_t group) {
    const radix *tree = a->tree;
    radix_node first = *first_page_at(tree, level, group);
    uint64_t key = first == RADIX_NONE ? UINT64_MAX : *key_at(tree, first);
    int is_below = first == RADIX_NONE;
    for (uint32_t i = group * RADIX_GROUP; i < (group + 1) * RADIX_GROUP; i++) {
        radix_node page = level > 1                    ? *first_page_at(tree, level - 1, i)
                          : radix_cold_stands(tree, i) ? i
                                                       : RADIX_NONE;
        kvt_status status = audit_first(a, level, group, page);
        if (status != KVT_OK)
            return status;
        is_below |= page == first;
    }
    if (!is_below)
        return broken(a, "page %u is first of group %u on level %u, and not below", first, group,
                      level);
    if (*first_key_at(tree, level, group) != key)
        return broken(a, "group %u on level %u has another key than its first", group, level);
    return KVT_OK;
}

/* From the pages up: what a level is made of has been checked. */
static kvt_status audit_tournament(const audit *a) {
    uint32_t n = a->tree->pages.n_fresh ? a->tree->pages.n_fresh + 1 : 0;
    for (uint32_t level = 1; level <= a->tree->n_levels; level++) {
        n = (n + RADIX_GROUP - 1) / RADIX_GROUP;
        for (uint32_t group = 0; group < n; group++) {
            kvt_status status = audit_group(a, level, group);
            if (status != KVT_OK)
                return status;
        }
    }
    return KVT_OK;
}

static kvt_status audit_each(const audit *a, const radix_stock *stock,
                             kvt_status (*check)(const audit *a, radix_node node)) {
    for (uint32_t i = 1; i <= stock->n_fresh; i++) {
        kvt_status status = KVT_OK;
        if (record_at(a->tree, stock->base + i)->flags & RADIX_LIVE)
            status = check(a, stock->base + i);
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

static kvt_status audit_counts(const audit *a) {
    const radix *tree = a->tree;
    uint32_t n_busy = 0, n_cold = 0;
    for (uint32_t i = 1; i <= tree->pages.n_fresh; i++) {
        if (!is_live_page(a, i))
            continue;
        n_busy += record_at(tree, i)->busy > 0;
        n_cold += (uint32_t)radix_cold_stands(tree, i);
    }
    if (n_busy != tree->n_busy)
        return broken(a, "%u pages are busy, counted as %u", n_busy, tree->n_busy);
    if (n_cold != tree->n_cold)
        return broken(a, "%u pages may go, counted as %u", n_cold, tree->n_cold);
    radix_counts counts;
    radix_count(tree, &counts);
    if ((uint64_t)counts.free + counts.busy + counts.idle != counts.max_pages)
        return broken(a, "free %u + busy %u + idle %u != %u", counts.free, counts.busy, counts.idle,
                      counts.max_pages);
    return KVT_OK;
}

kvt_status radix_audit(const radix *tree, char *why, size_t why_bytes) {
    const audit a = {tree, why, why_bytes};
    const radix_stock *pages = &tree->pages, *roots = &tree->roots;
    kvt_status status;
    if ((status = audit_stock(&a, pages, "pages")) != KVT_OK ||
        (status = audit_stock(&a, roots, "roots")) != KVT_OK ||
        (status = audit_each(&a, roots, audit_links)) != KVT_OK ||
        (status = audit_each(&a, pages, audit_links)) != KVT_OK ||
        (status = audit_each(&a, pages, audit_parent)) != KVT_OK ||
        (status = audit_each(&a, pages, audit_order)) != KVT_OK ||
        (status = audit_each(&a, roots, audit_busy)) != KVT_OK ||
        (status = audit_each(&a, pages, audit_busy)) != KVT_OK ||
        (status = audit_each(&a, pages, audit_standing)) != KVT_OK ||
        (status = audit_tournament(&a)) != KVT_OK || (status = audit_counts(&a)) != KVT_OK)
        return status;
    return KVT_OK;
}
