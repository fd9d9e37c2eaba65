/*
 * core_window.c - groups of layers with a sliding window: what of a path is held then, and which
 * pages are let go.
 *
 * A token at position p of a layer with window W reads the positions p - W + 1 .. p. So behind n
 * held tokens such a group needs the last W - 1 of them, and the pages in front may be missing:
 *
 *     page        0    1    2    3    4    5    6    7        n = 8 pages, W = 2 pages
 *     full       [x]--[x]--[x]--[x]--[x]--[x]--[x]--[x]
 *     window      .    .    .    .    .    .   [x]  [x]
 *
 * LETTING GO. When a page becomes held, the one that it pushes out of the window (wholly before the
 * last W tokens: one token more than is needed, so that a worker that leaves the last token to be
 * computed finds its window too) is let go, unless something may still end near it: a leaf, a
 * branch, a page that is being computed or one that a lease or a pin ends with stands within a
 * window behind it, or a lease has been told of it. A page that a job moves just then goes when the
 * job has ended. So what stays are the windows of the places where paths end or part; a path that
 * was computed in one go keeps those of its end.
 *
 * COMING BACK. Where two prompts part in the middle of what was let go, the second one finds less
 * held than is stored for the groups with full attention (path_held is exact about it), computes
 * the pages again, and seals them: now the paths part there, and the window stays. Whoever ends
 * there next finds it.
 *
 * LOWER TIERS. A page of a window goes down and comes up as all others do, but a lease has it
 * brought up only if it is in the window behind what the lease holds. Of a model all of whose
 * groups have windows one group's pages stay, of rank 0, where there is a disk: the records of all
 * others hang from theirs (realm.spine). They lie below as soon as room is short.
 */
#include "daemon/core_state.h"

/* --- what is held ------------------------------------------------------------------------------
 */

static int all_ranks_have(const core *c, const realm *r, radix_node node, uint32_t group,
                          int in_arena) {
    for (uint32_t rank = 0; rank < r->n_ranks; rank++) {
        uint32_t slot = slot_of(r, rank, group);
        if (!node_has(c, node, slot) ||
            (in_arena && node_entry(c, node, slot)->frame == PAGE_NO_FRAME))
            return 0;
    }
    return 1;
}

int node_is_ready(const core *c, const realm *r, radix_node node) {
    for (uint32_t group = 0; radix_depth(c->tree, node) > 0 && group < r->n_groups; group++)
        if (!r->windows[group] && !all_ranks_have(c, r, node, group, 1))
            return 0;
    return 1;
}

int slot_is_needed(const realm *r, uint32_t slot, uint32_t depth, uint32_t n_tokens) {
    return depth * r->page_tokens > kvt_wire_window_first(n_tokens, r->windows[slot % r->n_groups]);
}

/* Does the page, which ends at page_end, lack something that is needed behind n tokens? */
static int page_lacks(const core *c, const realm *r, radix_node node, uint32_t page_end,
                      uint32_t n_tokens, int in_arena) {
    for (uint32_t group = 0; group < r->n_groups; group++)
        if (r->windows[group] && page_end > kvt_wire_window_first(n_tokens, r->windows[group]) &&
            !all_ranks_have(c, r, node, group, in_arena))
            return 1;
    return 0;
}

held_prefix path_held(const core *c, const realm *r, radix_node node, radix_node partial,
                      uint32_t partial_tokens, uint32_t most, int in_arena) {
    held_prefix h = {.tokens = path_tokens(c, node), .last = node};
    if (partial != RADIX_NONE) {
        h.tokens += partial_tokens;
        h.last = partial;
    }
    h.tokens = h.tokens < most ? h.tokens : most;
    h.pages = (h.tokens + r->page_tokens - 1) / r->page_tokens;
    while (radix_depth(c->tree, h.last) > h.pages)
        h.last = radix_parent(c->tree, h.last);
    /* From the end to the front: a page that lacks something ends what is held in front of it, and
     * from there on the pages in front are looked at. */
    radix_node at = h.last;
    for (uint32_t page = h.pages; r->max_window && page > 0; page--) {
        uint32_t page_end = page * r->page_tokens;
        if (page_end <= kvt_wire_window_first(h.tokens, r->max_window))
            break;
        radix_node front = radix_parent(c->tree, at);
        if (page_lacks(c, r, at, page_end, h.tokens, in_arena))
            h = (held_prefix){
                .tokens = page_end - r->page_tokens, .pages = page - 1, .last = front};
        at = front;
    }
    if (h.pages == 0)
        h.last = RADIX_NONE;
    return h;
}

/* --- letting go --------------------------------------------------------------------------------
 */

/* May a path end, or another begin, so near behind this page that its window reaches back to it? */
static int is_near_end(const core *c, radix_node node, uint32_t window) {
    uint32_t page_end = path_tokens(c, node);
    for (radix_node at = node;;) {
        if (path_tokens(c, at) >= page_end + window)
            return 0;
        radix_node child = radix_first_child(c->tree, at);
        if (radix_pins(c->tree, at) > 0 || child == RADIX_NONE || !radix_is_held(c->tree, child) ||
            radix_next_sibling(c->tree, child) != RADIX_NONE)
            return 1;
        at = child;
    }
}

int slot_is_wanted(const core *c, const realm *r, radix_node node, uint32_t group, uint32_t end) {
    uint32_t window = r->windows[group];
    return window == 0 || path_tokens(c, node) + window > end || is_near_end(c, node, window);
}

/* Its record carries those of the pages behind it. */
static int is_spine(const core *c, const realm *r, uint32_t slot) {
    return c->config.disk_bytes && slot == r->spine;
}

/* Lets go of a group's page of all ranks, if nobody can want it: what one rank has all have. While
 * the disk is being read nobody knows yet where paths part. */
static void pass_over(core *c, const realm *r, radix_node node, uint32_t group) {
    if (c->tiers && c->tiers->found)
        return;
    for (uint32_t rank = 0; rank < r->n_ranks; rank++) {
        const page_entry *entry = node_entry(c, node, slot_of(r, rank, group));
        /* A reference beside the tree's: a lease reads it, or a job moves it. */
        if (entry && (entry->refs > 1 || entry->state != PAGE_SEALED))
            return;
    }
    if (is_near_end(c, node, r->windows[group]))
        return;
    for (uint32_t rank = 0; rank < r->n_ranks; rank++) {
        uint32_t slot = slot_of(r, rank, group);
        if (node_page(c, node, slot) && !is_spine(c, r, slot)) {
            c->counts.pages_passed++;
            slot_empty(c, node, slot);
        }
    }
}

void windows_pass(core *c, const realm *r, radix_node node) {
    uint32_t end = path_tokens(c, node);
    for (uint32_t group = 0; r->max_window && group < r->n_groups; group++) {
        uint32_t window = r->windows[group];
        uint32_t depth = window && end > window ? (end - window) / r->page_tokens : 0;
        if (depth > 0)
            pass_over(c, r, path_at(c, node, depth), group);
    }
}

void window_job_ended(core *c, const realm *r, uint32_t slot, page_handle page) {
    const page_entry *entry = page_get(c->pages, page);
    if (!entry || entry->node == RADIX_NONE || !radix_is_held(c->tree, entry->node))
        return;
    if (r->windows[slot % r->n_groups])
        pass_over(c, r, entry->node, slot % r->n_groups);
}

typedef struct pass_walk {
    core *c;
    const realm *r;
} pass_walk;

static int pass_run(void *context, const radix_run *run) {
    const pass_walk *w = context;
    radix_node node = run->last;
    for (uint32_t i = 0; i < run->n_pages; i++, node = radix_parent(w->c->tree, node))
        if (radix_is_held(w->c->tree, node))
            windows_pass(w->c, w->r, node);
    return 0;
}

void windows_pass_all(core *c) {
    for (uint32_t i = 0; i < c->config.max_realms; i++) {
        pass_walk w = {c, &c->realms[i]};
        if (w.r->number && w.r->max_window)
            radix_walk(c->tree, w.r->root, pass_run, &w);
    }
}

/* --- what leases were told ---------------------------------------------------------------------
 */

static void refer_page(core *c, const realm *r, uint32_t rank, radix_node node, uint32_t group,
                       int take) {
    uint32_t first = rank == ALL_RANKS ? 0 : rank, end = rank == ALL_RANKS ? r->n_ranks : rank + 1;
    for (uint32_t i = first; i < end; i++) {
        page_handle page = node_page(c, node, slot_of(r, i, group));
        if (take)
            page_ref(c->pages, page);
        else
            page_drop(c, page);
    }
}

/* Takes (or gives back) references to the pages of the rank in the windows of its groups. */
static void refer(core *c, const realm *r, uint32_t rank, uint32_t n_tokens, radix_node last,
                  int take) {
    for (uint32_t group = 0; n_tokens && group < r->n_groups; group++) {
        if (!r->windows[group])
            continue;
        uint32_t first = kvt_wire_window_first(n_tokens, r->windows[group]) / r->page_tokens;
        radix_node at = last;
        for (uint32_t depth = radix_depth(c->tree, last); depth > first; depth--) {
            refer_page(c, r, rank, at, group, take);
            at = radix_parent(c->tree, at);
        }
    }
}

/* Pages that have left the lease's windows since it was told the last time; while it had its
 * references they stayed. */
static void pass_behind(core *c, const realm *r, uint32_t before, const held_prefix *now) {
    for (uint32_t group = 0; group < r->n_groups; group++) {
        uint32_t window = r->windows[group];
        if (!window || now->tokens <= window)
            continue;
        uint32_t depth = (now->tokens - window) / r->page_tokens;
        uint32_t stop = before > window ? (before - window) / r->page_tokens : 0;
        radix_node at = now->last;
        for (uint32_t page = now->pages; page > stop; page--) {
            if (page <= depth)
                pass_over(c, r, at, group);
            at = radix_parent(c->tree, at);
        }
    }
}

void lease_tell(core *c, lease *l, const held_prefix *now) {
    const realm *r = &c->realms[l->realm];
    if (!r->max_window)
        return;
    uint32_t before = l->told_tokens;
    refer(c, r, l->rank, now->tokens, now->last, 1);
    refer(c, r, l->rank, before, l->told_last, 0);
    l->told_tokens = now->tokens;
    l->told_last = now->last;
    if (before && now->tokens > before)
        pass_behind(c, r, before, now);
}
