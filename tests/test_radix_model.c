/*
 * test_radix_model.c - the tree against an obvious model: an array of pages in which everything is
 * found by looking at all of them. Random operations on few tokens, so that labels share prefixes,
 * equal each other and are prefixes of one another; the tree's audit after each operation.
 *
 *   test_radix_model [SEED [OPERATIONS]]     1 and 1,000,000 if not given
 */
#include "radix/radix.h"
#include "tests/check.h"

enum {
    MAX_PAGES = 120,
    MAX_ROOTS = 3,
    MAX_IDS = MAX_PAGES + MAX_ROOTS + 1,
    MAX_PAGE_TOKENS = 20,
    MAX_SLOTS = 3,
    MAX_QUERY = 400,
    ROUND_OPERATIONS = 5000, /* then a new tree with other limits */
};

typedef struct entry {
    int live;
    int is_root;
    radix_node parent;
    uint32_t depth;
    uint32_t page_tokens;
    uint32_t n_tokens;
    uint32_t tokens[MAX_PAGE_TOKENS];
    int held;
    int hidden;
    uint32_t pins;
    uint64_t key;
    uint32_t handles[MAX_SLOTS];
    /* computed by derive() */
    uint32_t n_children;
    int busy;
} entry;

typedef struct world {
    uint64_t first_seed;
    uint64_t seed;
    uint64_t operation;
    const char *doing;
    radix_limits limits;
    size_t bytes;
    void *memory[2];
    int memory_now;
    radix *tree;
    uint32_t alphabet[3];
    uint32_t n_alphabet;
    uint32_t common_percent; /* how often the first token of the alphabet is taken */
    uint32_t wide_percent;   /* how often a root is taken as a parent: many siblings */
    uint32_t held_percent;
    entry entries[MAX_IDS];
} world;

#define EXPECT(condition)                                                                          \
    CHECK_MSG(condition, "seed %" PRIu64 ", operation %" PRIu64 " (%s)", w->first_seed,            \
              w->operation, w->doing)

static uint32_t below(world *w, uint32_t n) {
    return check_below(&w->seed, n);
}

static int percent(world *w, uint32_t p) {
    return below(w, 100) < p;
}

/* --- the model ----------------------------------------------------------------------------------
 */

static void derive(world *w) {
    for (radix_node i = 1; i < MAX_IDS; i++) {
        w->entries[i].n_children = 0;
        w->entries[i].busy = 0;
    }
    for (radix_node i = 1; i < MAX_IDS; i++) {
        const entry *e = &w->entries[i];
        if (!e->live)
            continue;
        if (!e->is_root)
            w->entries[e->parent].n_children++;
        if (e->pins == 0)
            continue;
        for (radix_node up = i; up != RADIX_NONE; up = w->entries[up].parent)
            w->entries[up].busy = 1;
    }
}

static uint32_t shared_tokens(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b) {
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

static int token_order(const entry *a, const entry *b) {
    if (a->hidden || b->hidden) /* behind all others, in the order of their ids */
        return a->hidden && b->hidden ? (a > b) - (a < b) : a->hidden - b->hidden;
    uint32_t n = shared_tokens(a->tokens, a->n_tokens, b->tokens, b->n_tokens);
    if (n == a->n_tokens || n == b->n_tokens)
        return (a->n_tokens > b->n_tokens) - (a->n_tokens < b->n_tokens);
    return a->tokens[n] < b->tokens[n] ? -1 : 1;
}

static radix_node model_child(const world *w, radix_node parent, const uint32_t *tokens,
                              uint32_t n_tokens) {
    for (radix_node i = 1; i < MAX_IDS; i++) {
        const entry *e = &w->entries[i];
        if (e->live && !e->is_root && !e->hidden && e->parent == parent &&
            e->n_tokens == n_tokens &&
            shared_tokens(e->tokens, n_tokens, tokens, n_tokens) == n_tokens)
            return i;
    }
    return RADIX_NONE;
}

/* The child of parent that stands next behind `from` (RADIX_NONE: the first) in token order. */
static radix_node model_next(const world *w, radix_node parent, radix_node from) {
    radix_node best = RADIX_NONE;
    for (radix_node i = 1; i < MAX_IDS; i++) {
        const entry *e = &w->entries[i];
        if (e->live && !e->is_root && e->parent == parent &&
            (from == RADIX_NONE || token_order(e, &w->entries[from]) > 0) &&
            (best == RADIX_NONE || token_order(e, &w->entries[best]) < 0))
            best = i;
    }
    return best;
}

static int model_may_have_children(const world *w, radix_node node) {
    const entry *e = &w->entries[node];
    return e->is_root || e->n_tokens == e->page_tokens;
}

/* A random live node for which the filter (NULL: any) holds; RADIX_NONE if there is none. */
static radix_node pick(world *w, int (*filter)(const entry *e)) {
    uint32_t n = 0;
    radix_node picked = RADIX_NONE;
    for (radix_node i = 1; i < MAX_IDS; i++) {
        if (w->entries[i].live && (filter == NULL || filter(&w->entries[i])) && below(w, ++n) == 0)
            picked = i;
    }
    return picked;
}

static int is_page(const entry *e) {
    return !e->is_root;
}
static int is_root(const entry *e) {
    return e->is_root;
}
static int is_pinned(const entry *e) {
    return e->pins > 0;
}

static uint32_t count_live(const world *w, int (*filter)(const entry *e)) {
    uint32_t n = 0;
    for (radix_node i = 1; i < MAX_IDS; i++)
        n += w->entries[i].live && filter(&w->entries[i]);
    return n;
}

static radix_node pick_parent(world *w) {
    return pick(w, percent(w, w->wide_percent) ? is_root : NULL);
}

/* --- the tree against it ------------------------------------------------------------------------
 */

/* What is compared after each operation. */
static void check_counts(world *w) {
    char why[200] = "";
    kvt_status audit = radix_audit(w->tree, why, sizeof why);
    CHECK_MSG(audit == KVT_OK, "%s: seed %" PRIu64 ", operation %" PRIu64 " (%s)", why,
              w->first_seed, w->operation, w->doing);
    derive(w);
    uint32_t n_pages = count_live(w, is_page), n_busy = 0, n_leaves = 0;
    const entry *coldest = NULL;
    for (radix_node i = 1; i < MAX_IDS; i++) {
        const entry *e = &w->entries[i];
        if (!e->live || e->is_root)
            continue;
        n_busy += (uint32_t)e->busy;
        if (e->busy || e->n_children > 0)
            continue;
        n_leaves++;
        if (coldest == NULL || e->key < coldest->key ||
            (e->key == coldest->key && e->depth > coldest->depth))
            coldest = e;
    }
    radix_counts counts;
    radix_count(w->tree, &counts);
    EXPECT(counts.max_pages == w->limits.max_pages);
    EXPECT(counts.free == w->limits.max_pages - n_pages);
    EXPECT(counts.busy == n_busy);
    EXPECT(counts.idle == n_pages - n_busy);
    EXPECT(counts.leaves == n_leaves);
    EXPECT(counts.roots == count_live(w, is_root));
    radix_node node = radix_coldest(w->tree);
    EXPECT((node == RADIX_NONE) == (coldest == NULL));
    if (coldest != NULL) {
        const entry *e = &w->entries[node];
        EXPECT(e->live && !e->is_root && !e->busy && e->n_children == 0);
        EXPECT(e->key == coldest->key && e->depth == coldest->depth);
    }
}

static void check_node(world *w, radix_node node) {
    const radix *tree = w->tree;
    const entry *e = &w->entries[node];
    uint32_t n_tokens;
    const uint32_t *tokens = radix_tokens(tree, node, &n_tokens);
    EXPECT(radix_parent(tree, node) == e->parent);
    EXPECT(radix_depth(tree, node) == e->depth);
    EXPECT(n_tokens == e->n_tokens);
    EXPECT(n_tokens == 0 || memcmp(tokens, e->tokens, n_tokens * sizeof *tokens) == 0);
    for (uint32_t slot = 0; slot < w->limits.n_slots; slot++)
        EXPECT(radix_handle(tree, node, slot) == e->handles[slot]);
    EXPECT(radix_key(tree, node) == e->key);
    EXPECT(radix_pins(tree, node) == e->pins);
    EXPECT(radix_is_held(tree, node) == e->held);
    EXPECT(radix_is_hidden(tree, node) == e->hidden);
    EXPECT(radix_is_busy(tree, node) == e->busy);
    EXPECT(radix_is_leaf(tree, node) == (e->n_children == 0));
    EXPECT(radix_page_tokens(tree, node) == e->page_tokens);
    radix_node before = RADIX_NONE, child = radix_first_child(tree, node);
    for (; child != RADIX_NONE; child = radix_next_sibling(tree, child)) {
        EXPECT(child == model_next(w, node, before));
        EXPECT(radix_prev_sibling(tree, child) == before);
        before = child;
    }
    EXPECT(model_next(w, node, before) == RADIX_NONE);
}

typedef struct walked {
    world *w;
    radix_node pages[MAX_PAGES];
    uint32_t n_pages;
} walked;

static int walk_row(void *context, const radix_run *run) {
    walked *seen = context;
    world *w = seen->w;
    uint32_t n_tokens = 0;
    radix_node node = run->first;
    EXPECT(run->depth == w->entries[node].depth);
    for (uint32_t i = 0; i < run->n_pages; i++) {
        const entry *e = &w->entries[node];
        EXPECT(e->live && seen->n_pages < MAX_PAGES);
        seen->pages[seen->n_pages++] = node;
        n_tokens += e->n_tokens;
        EXPECT(e->held == run->held && e->busy == run->busy);
        EXPECT(e->hidden == (run->hidden && i == 0));
        if (i + 1 == run->n_pages)
            break;
        EXPECT(e->n_children == 1 && e->pins == 0);
        node = model_next(w, node, RADIX_NONE);
    }
    EXPECT(node == run->last && n_tokens == run->n_tokens);
    EXPECT(run->n_children == w->entries[node].n_children && run->pins == w->entries[node].pins);
    return 0;
}

/* All pages below root, depth first in token order, each once. */
static void check_walk(world *w, radix_node root) {
    walked seen = {.w = w};
    EXPECT(radix_walk(w->tree, root, walk_row, &seen) == 0);
    uint32_t i = 0;
    radix_node node = model_next(w, root, RADIX_NONE);
    while (node != RADIX_NONE) {
        EXPECT(i < seen.n_pages && seen.pages[i] == node);
        i++;
        radix_node next = model_next(w, node, RADIX_NONE);
        for (radix_node up = node; next == RADIX_NONE && up != root; up = w->entries[up].parent)
            next = model_next(w, w->entries[up].parent, up);
        node = next;
    }
    EXPECT(i == seen.n_pages);
}

static void check_all(world *w) {
    for (radix_node i = 1; i < MAX_IDS; i++) {
        if (!w->entries[i].live)
            continue;
        check_node(w, i);
        if (w->entries[i].is_root)
            check_walk(w, i);
    }
}

/* --- operations ---------------------------------------------------------------------------------
 */

static uint32_t any_token(world *w) {
    return w->alphabet[percent(w, w->common_percent) ? 0 : below(w, w->n_alphabet)];
}

/* Few, so that many are equal; some that differ in their upper half alone, and some in their
 * lower. */
static uint64_t any_key(world *w) {
    if (percent(w, 60))
        return below(w, 6);
    if (percent(w, 5))
        return UINT64_MAX - below(w, 2);
    return percent(w, 50) ? (uint64_t)below(w, 3) << 33 | 3 : UINT64_C(1) << 40 | below(w, 6);
}

/* A label of 0 .. page_tokens + 1 tokens: new, or one that is there with something changed. */
static uint32_t any_label(world *w, uint32_t page_tokens, uint32_t *ret_tokens) {
    for (uint32_t i = 0; i <= page_tokens; i++)
        ret_tokens[i] = any_token(w);
    radix_node like = percent(w, 60) ? pick(w, is_page) : RADIX_NONE;
    if (like != RADIX_NONE) {
        const entry *e = &w->entries[like];
        for (uint32_t i = 0; i < e->n_tokens && i < page_tokens; i++)
            ret_tokens[i] = e->tokens[i];
        if (percent(w, 50))
            ret_tokens[below(w, page_tokens)] = any_token(w);
    }
    if (percent(w, 60))
        return page_tokens;
    return below(w, page_tokens + 2);
}

static void do_root(world *w) {
    radix_node node;
    if (percent(w, 60)) {
        w->doing = "root add";
        uint32_t page_tokens = below(w, w->limits.page_tokens + 2);
        uint32_t n_roots = count_live(w, is_root);
        kvt_status status = radix_root_add(w->tree, page_tokens, w->limits.n_slots, &node);
        if (page_tokens < 1 || page_tokens > w->limits.page_tokens) {
            EXPECT(status == KVT_EINVAL);
        } else if (n_roots == w->limits.max_roots) {
            EXPECT(status == KVT_ELIMIT);
        } else {
            EXPECT(status == KVT_OK && node < MAX_IDS && !w->entries[node].live);
            w->entries[node] = (entry){.live = 1, .is_root = 1, .page_tokens = page_tokens};
        }
        return;
    }
    w->doing = "root remove";
    node = pick(w, is_root);
    if (node == RADIX_NONE)
        return;
    entry *e = &w->entries[node];
    int removable = e->n_children == 0 && e->pins == 0;
    EXPECT(radix_root_remove(w->tree, node) == (removable ? KVT_OK : KVT_EBUSY));
    e->live = !removable;
}

static void do_insert(world *w) {
    w->doing = "insert";
    radix_node parent = pick_parent(w);
    if (parent == RADIX_NONE)
        return;
    const entry *p = &w->entries[parent];
    uint32_t tokens[MAX_PAGE_TOKENS + 1];
    uint32_t n_tokens = any_label(w, p->page_tokens, tokens);
    uint64_t key = any_key(w);
    uint32_t n_pages = count_live(w, is_page);
    radix_node node = 12345;
    kvt_status status = radix_insert(w->tree, parent, tokens, n_tokens, key, &node);
    radix_node there = model_child(w, parent, tokens, n_tokens);
    if (!model_may_have_children(w, parent) || n_tokens < 1 || n_tokens > p->page_tokens) {
        EXPECT(status == KVT_EINVAL && node == 12345);
    } else if (there != RADIX_NONE) {
        EXPECT(status == KVT_EEXIST && node == there);
    } else if (n_pages == w->limits.max_pages) {
        EXPECT(status == KVT_EFULL && node == 12345);
    } else {
        EXPECT(status == KVT_OK && node < MAX_IDS && !w->entries[node].live);
        entry *e = &w->entries[node];
        *e = (entry){.live = 1, .parent = parent, .depth = p->depth + 1, .key = key};
        e->page_tokens = p->page_tokens;
        e->n_tokens = n_tokens;
        memcpy(e->tokens, tokens, n_tokens * sizeof *tokens);
    }
}

static void do_remove(world *w) {
    radix_node node = percent(w, 50) ? radix_coldest(w->tree) : pick(w, is_page);
    w->doing = "remove";
    if (node == RADIX_NONE)
        return;
    entry *e = &w->entries[node];
    int removable = e->n_children == 0 && e->pins == 0;
    EXPECT(radix_remove(w->tree, node) == (removable ? KVT_OK : KVT_EBUSY));
    e->live = !removable;
}

static void do_pin(world *w) {
    int more = percent(w, 47);
    radix_node node = pick(w, more ? NULL : is_pinned);
    w->doing = more ? "pin" : "unpin";
    if (node == RADIX_NONE)
        return;
    if (more)
        radix_pin(w->tree, node);
    else
        radix_unpin(w->tree, node);
    w->entries[node].pins += more ? 1 : UINT32_MAX;
}

static void do_key(world *w) {
    radix_node node = pick(w, NULL);
    if (node == RADIX_NONE)
        return;
    uint64_t key = any_key(w);
    if (percent(w, 50)) {
        w->doing = "set key";
        radix_set_key(w->tree, node, key);
        w->entries[node].key = key;
        return;
    }
    w->doing = "touch";
    radix_touch(w->tree, node, key);
    for (; node != RADIX_NONE; node = w->entries[node].parent)
        w->entries[node].key = key;
}

static void do_set(world *w) {
    radix_node node = pick(w, is_page);
    if (node == RADIX_NONE)
        return;
    if (percent(w, 20)) {
        w->doing = "set handle";
        uint32_t slot = below(w, w->limits.n_slots);
        w->entries[node].handles[slot] = (uint32_t)check_random(&w->seed);
        radix_set_handle(w->tree, node, slot, w->entries[node].handles[slot]);
        return;
    }
    if (percent(w, 20)) {
        w->doing = "hide";
        w->entries[node].hidden = 1;
        radix_hide(w->tree, node);
        return;
    }
    w->doing = "set held";
    w->entries[node].held = percent(w, w->held_percent);
    radix_set_held(w->tree, node, w->entries[node].held ? 1 + (int)below(w, 3) : 0);
}

/* The tokens between `from` and a page below it, changed a little, cut, and with more behind. */
static uint32_t any_query(world *w, radix_node from, uint32_t *ret_tokens) {
    radix_node path[MAX_PAGES];
    uint32_t n_path = 0, n = 0;
    for (radix_node up = pick(w, NULL); up != RADIX_NONE; up = w->entries[up].parent) {
        if (up == from)
            break;
        path[n_path++] = up;
    }
    while (n_path > 0) {
        const entry *e = &w->entries[path[--n_path]];
        for (uint32_t i = 0; i < e->n_tokens && n < MAX_QUERY; i++)
            ret_tokens[n++] = e->tokens[i];
    }
    for (uint32_t more = below(w, 2 * w->entries[from].page_tokens + 1); more > 0; more--) {
        if (n < MAX_QUERY)
            ret_tokens[n++] = any_token(w);
    }
    if (n > 0 && percent(w, 40))
        ret_tokens[below(w, n)] = any_token(w);
    return percent(w, 40) ? below(w, n + 1) : n;
}

static void do_find(world *w) {
    w->doing = "find";
    radix_node from = pick_parent(w);
    if (from == RADIX_NONE || !model_may_have_children(w, from))
        return;
    uint32_t tokens[MAX_QUERY];
    uint32_t n_tokens = any_query(w, from, tokens);
    uint32_t page_tokens = w->entries[from].page_tokens;
    radix_match match;
    radix_find(w->tree, from, n_tokens > 0 ? tokens : NULL, n_tokens, &match);

    int from_held = w->entries[from].is_root || w->entries[from].held;
    int all_held = from_held;
    radix_node node = from, held = from;
    uint32_t n_pages = 0, held_pages = 0;
    while (n_tokens - n_pages * page_tokens >= page_tokens) {
        radix_node child = model_child(w, node, tokens + n_pages * page_tokens, page_tokens);
        if (child == RADIX_NONE)
            break;
        node = child;
        n_pages++;
        all_held = all_held && w->entries[node].held;
        held = all_held ? node : held;
        held_pages += (uint32_t)all_held;
    }
    EXPECT(match.node == node && match.n_pages == n_pages);
    EXPECT(match.held == held && match.held_pages == held_pages);

    const uint32_t *rest = tokens + held_pages * page_tokens;
    uint32_t n_rest = n_tokens - held_pages * page_tokens;
    uint32_t best = 0, longest = 0;
    for (radix_node i = 1; i < MAX_IDS; i++) {
        const entry *e = &w->entries[i];
        if (!e->live || e->is_root || e->parent != held || !e->held || e->hidden || !from_held)
            continue;
        uint32_t shared = shared_tokens(e->tokens, e->n_tokens, rest, n_rest);
        if (shared > best || (shared == best && e->n_tokens > longest))
            longest = e->n_tokens;
        if (shared > best)
            best = shared;
    }
    EXPECT(match.partial_tokens == best);
    EXPECT((match.partial == RADIX_NONE) == (best == 0));
    if (best > 0) {
        const entry *e = &w->entries[match.partial];
        EXPECT(e->live && e->parent == held && e->held && e->n_tokens == longest);
        EXPECT(shared_tokens(e->tokens, e->n_tokens, rest, n_rest) == best);
    }
}

static void do_child_equal(world *w) {
    w->doing = "child equal";
    radix_node parent = pick_parent(w);
    if (parent == RADIX_NONE)
        return;
    uint32_t tokens[MAX_PAGE_TOKENS + 1];
    uint32_t n_tokens = any_label(w, w->entries[parent].page_tokens, tokens);
    EXPECT(radix_child_equal(w->tree, parent, tokens, n_tokens) ==
           model_child(w, parent, tokens, n_tokens));
}

/* The block goes on at another address. */
static void do_move(world *w) {
    w->doing = "move";
    void *from = w->memory[w->memory_now], *to = w->memory[!w->memory_now];
    memcpy(to, from, w->bytes);
    memset(from, 0xdd, w->bytes);
    w->tree = (radix *)(void *)((char *)to + ((char *)w->tree - (char *)from));
    w->memory_now = !w->memory_now;
}

/* --- rounds -------------------------------------------------------------------------------------
 */

static void open_world(world *w) {
    static const uint32_t sizes[] = {1, 3, 20, 64, MAX_PAGES, MAX_PAGES};
    memset(w->entries, 0, sizeof w->entries);
    w->limits = (radix_limits){
        .max_pages = sizes[below(w, 6)],
        .max_roots = 1 + below(w, MAX_ROOTS),
        .page_tokens = 16 + below(w, MAX_PAGE_TOKENS - 16 + 1),
        .n_slots = 1 + below(w, MAX_SLOTS),
    };
    w->bytes = radix_bytes(&w->limits);
    w->doing = "init";
    EXPECT(w->bytes > 0);
    for (int i = 0; i < 2; i++) {
        w->memory[i] = aligned_alloc(64, w->bytes); /* a multiple of 64 */
        EXPECT(w->memory[i] != NULL);
        memset(w->memory[i], percent(w, 50) ? 0 : 0xa5, w->bytes);
    }
    w->memory_now = 0;
    EXPECT(radix_init(w->memory[0], w->bytes, &w->limits, &w->tree) == KVT_OK);
    /* Values whose order as bytes is another than as numbers. */
    static const uint32_t values[] = {0, 1, 0x100, 0xff, 0x01000000, UINT32_MAX};
    w->n_alphabet = 2 + below(w, 2);
    for (uint32_t i = 0; i < w->n_alphabet; i++)
        w->alphabet[i] = values[2 * i + below(w, 2)];
    w->common_percent = below(w, 90);
    w->wide_percent = percent(w, 50) ? 95 : below(w, 40);
    w->held_percent = percent(w, 50) ? 80 : 15;

    radix_node root;
    static const uint32_t page_tokens[] = {4, 3, 16, 0};
    uint32_t n = page_tokens[below(w, 4)];
    n = n == 0 ? w->limits.page_tokens : n;
    EXPECT(radix_root_add(w->tree, n, w->limits.n_slots, &root) == KVT_OK && root < MAX_IDS);
    w->entries[root] = (entry){.live = 1, .is_root = 1, .page_tokens = n};
}

static void step(world *w, uint32_t insert_percent) {
    static const struct {
        uint32_t weight;
        void (*run)(world *w);
    } others[] = {
        {20, do_find}, {10, do_set},        {12, do_remove}, {13, do_pin},
        {6, do_key},   {4, do_child_equal}, {1, do_root},    {1, do_move},
    };
    uint32_t at = below(w, 67);
    if (percent(w, insert_percent)) {
        do_insert(w);
    } else {
        uint32_t i = 0;
        while (at >= others[i].weight)
            at -= others[i++].weight;
        others[i].run(w);
    }
    check_counts(w);
    if (below(w, 16) == 0)
        check_all(w);
    w->operation++;
}

int main(int argc, char **argv) {
    static world the_world;
    world *w = &the_world;
    w->first_seed = w->seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000000;
    while (w->operation < n) {
        open_world(w);
        uint32_t insert_percent = 15 + below(w, 45);
        for (uint32_t i = 0; i < ROUND_OPERATIONS && w->operation < n; i++)
            step(w, insert_percent);
        free(w->memory[0]);
        free(w->memory[1]);
    }
    printf("%" PRIu64 " operations, seed %" PRIu64 "\n", n, w->first_seed);
    return 0;
}
