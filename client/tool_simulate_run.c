/*
 * tool_simulate_run.c - the daemon's tree and its policy over a trace: what the core does with a
 * request, without payload, sessions or jobs. A page's label in the tree is its number.
 */
#include "client/tool_simulate.h"

#include "client/assert.h"
#include "daemon/policy_tree.h"

#include <stdlib.h>
#include <string.h>

enum { LABEL_TOKENS = 16 }; /* room that the tree has for a label, at the least */

/* A page that can be put into fewer bits, as it was when it was put here. */
typedef struct warm {
    uint64_t key;
    radix_node node;
} warm;

typedef struct run {
    const sim_trace *trace;
    const sim_setting *setting;
    radix *tree;
    policy *policy;
    void *tree_memory, *policy_memory;
    radix_node root;
    uint8_t *rungs; /* [max_pages + 1] which set the node's page is under */
    uint64_t used_bytes;
    uint32_t n_pages;
    sim_result result;
    /* Of a ladder: the coldest on top. Each node that is not on the last rung stands here once; a
     * key that has changed meanwhile is put right when it comes to the top. */
    warm *warms;
    uint8_t *is_warm; /* [max_pages + 1] it stands here, or what had its number before it does */
    warm *aside;      /* pages of the request at hand that came to the top */
    uint32_t n_warms;
} run;

/* --- memory -------------------------------------------------------------------------------------
 */

static void run_close(run *r) {
    free(r->tree_memory);
    free(r->policy_memory);
    free(r->rungs);
    free(r->warms);
    free(r->is_warm);
    free(r->aside);
}

static void *zeroed(size_t bytes) {
    size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded);
    return memory ? memset(memory, 0, rounded) : NULL;
}

static kvt_status run_open(run *r) {
    const sim_setting *s = r->setting;
    uint64_t least = s->full_bytes[0];
    for (uint32_t i = 1; i < s->n_rungs; i++)
        least = s->full_bytes[i] < least ? s->full_bytes[i] : least;
    if (s->capacity_bytes < least)
        return KVT_EINVAL;
    /* Short pages take less than full ones, so there may be more of them. */
    uint64_t most = s->capacity_bytes / (least / r->trace->full_tokens + 1) + 1;
    uint32_t max_pages = most < r->trace->n_pages ? (uint32_t)most : r->trace->n_pages;
    radix_limits limits = {
        .max_pages = max_pages, .max_roots = 1, .page_tokens = LABEL_TOKENS, .n_slots = 1};
    size_t tree_bytes = radix_bytes(&limits), policy_n_bytes = policy_bytes(s->rule, max_pages);
    size_t n = (size_t)max_pages + 1;
    r->tree_memory = zeroed(tree_bytes);
    r->policy_memory = zeroed(policy_n_bytes);
    r->rungs = calloc(n, sizeof *r->rungs);
    r->warms = s->n_rungs > 1 ? malloc(n * sizeof *r->warms) : NULL;
    r->is_warm = s->n_rungs > 1 ? calloc(n, sizeof *r->is_warm) : NULL;
    r->aside = s->n_rungs > 1 ? malloc(n * sizeof *r->aside) : NULL;
    if (!r->tree_memory || !r->policy_memory || !r->rungs ||
        (s->n_rungs > 1 && (!r->warms || !r->is_warm || !r->aside)))
        return KVT_ENOMEM;
    kvt_status status = radix_init(r->tree_memory, tree_bytes, &limits, &r->tree);
    if (status == KVT_OK)
        status = policy_init(r->policy_memory, policy_n_bytes, s->rule, max_pages, &r->policy);
    if (status == KVT_OK)
        status = radix_root_add(r->tree, 1, 1, &r->root);
    return status;
}

/* --- cooling ------------------------------------------------------------------------------------
 */

static int colder(const warm *a, const warm *b) {
    return a->key < b->key;
}

/* Fills the hole at place 0 with w. */
static void warms_settle(run *r, warm w) {
    uint32_t at = 0;
    for (;;) {
        uint64_t below = 2 * (uint64_t)at + 1;
        if (below >= r->n_warms)
            break;
        if (below + 1 < r->n_warms && colder(&r->warms[below + 1], &r->warms[below]))
            below++;
        if (!colder(&r->warms[below], &w))
            break;
        r->warms[at] = r->warms[below];
        at = (uint32_t)below;
    }
    r->warms[at] = w;
}

static void warms_pop(run *r) {
    warm last = r->warms[--r->n_warms];
    if (r->n_warms > 0)
        warms_settle(r, last);
}

static void warms_push(run *r, warm w) {
    uint32_t at = r->n_warms++;
    while (at > 0 && colder(&w, &r->warms[(at - 1) / 2])) {
        r->warms[at] = r->warms[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    r->warms[at] = w;
}

static void note_warm(run *r, radix_node node) {
    if (r->setting->n_rungs < 2 || r->is_warm[node])
        return;
    r->is_warm[node] = 1;
    warms_push(r, (warm){radix_key(r->tree, node), node});
}

static uint64_t bytes_of(const run *r, uint32_t page, uint32_t rung) {
    return sim_bytes(r->setting->full_bytes[rung], r->trace->n_tokens[page], r->trace->full_tokens);
}

static uint32_t page_of(const run *r, radix_node node) {
    uint32_t n;
    return *radix_tokens(r->tree, node, &n);
}

/* Puts the page one rung down. Returns whether there is a further one. */
static int cool(run *r, radix_node node) {
    uint32_t page = page_of(r, node);
    r->used_bytes -= bytes_of(r, page, r->rungs[node]);
    r->used_bytes += bytes_of(r, page, ++r->rungs[node]);
    r->result.cooled++;
    return r->rungs[node] + 1u < r->setting->n_rungs;
}

/* A node that has left the tree stays in the heap until it comes to the top; its number may have
 * been given out again by then. */
static int has_left(const run *r, radix_node node) {
    return r->rungs[node] == UINT8_MAX;
}

/* Puts the coldest page that nobody reads one rung down; 0: there is none. */
static int cool_coldest(run *r) {
    uint32_t n_aside = 0;
    int done = 0;
    while (!done && r->n_warms > 0) {
        warm top = r->warms[0];
        if (has_left(r, top.node) || r->rungs[top.node] + 1u >= r->setting->n_rungs) {
            warms_pop(r);
            r->is_warm[top.node] = 0;
        } else if (radix_key(r->tree, top.node) != top.key) {
            top.key = radix_key(r->tree, top.node);
            warms_settle(r, top);
        } else if (radix_is_busy(r->tree, top.node)) {
            warms_pop(r);
            r->aside[n_aside++] = top;
        } else {
            done = 1;
            if (!cool(r, top.node)) {
                warms_pop(r);
                r->is_warm[top.node] = 0;
            }
        }
    }
    while (n_aside > 0)
        warms_push(r, r->aside[--n_aside]);
    return done;
}

/* --- requests -----------------------------------------------------------------------------------
 */

static int evict_coldest(run *r) {
    radix_node node = radix_coldest(r->tree);
    if (node == RADIX_NONE)
        return 0;
    r->used_bytes -= bytes_of(r, page_of(r, node), r->rungs[node]);
    r->rungs[node] = UINT8_MAX;
    r->n_pages--;
    r->result.evictions++;
    policy_tree_evicts(r->policy, r->tree, node);
    policy_tree_remove(r->policy, r->tree, node);
    return 1;
}

static int make_room(run *r, uint64_t bytes) {
    while (bytes > r->setting->capacity_bytes - r->used_bytes)
        if (!cool_coldest(r) && !evict_coldest(r))
            return 0;
    return 1;
}

/* Puts the pages behind cur, which is pinned, into the tree; the pin moves along. */
static radix_node put_in(run *r, radix_node cur, const uint32_t *pages, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t bytes = bytes_of(r, pages[i], 0);
        radix_node node;
        if (!make_room(r, bytes))
            break;
        while (policy_tree_insert(r->policy, r->tree, cur, &pages[i], 1, bytes, &node) != KVT_OK)
            if (!evict_coldest(r))
                return cur;
        r->rungs[node] = 0;
        r->used_bytes += bytes;
        r->n_pages++;
        radix_pin(r->tree, node);
        radix_unpin(r->tree, cur);
        cur = node;
    }
    r->result.pages_most = r->n_pages > r->result.pages_most ? r->n_pages : r->result.pages_most;
    return cur;
}

static void request(run *r, const uint32_t *pages, uint64_t n) {
    radix_match match;
    radix_find(r->tree, r->root, pages, n, &match);
    for (uint32_t i = 0; i < match.n_pages; i++)
        r->result.tokens_found += r->trace->n_tokens[pages[i]];
    radix_pin(r->tree, match.node);
    radix_node tail = put_in(r, match.node, pages + match.n_pages, n - match.n_pages);
    policy_tree_use(r->policy, r->tree, tail, 0, radix_depth(r->tree, tail) == n);
    if (r->setting->n_rungs > 1)
        for (radix_node node = tail; radix_depth(r->tree, node) > match.n_pages;
             node = radix_parent(r->tree, node))
            note_warm(r, node);
    radix_unpin(r->tree, tail);
}

kvt_status sim_run(const sim_trace *t, const sim_setting *setting, sim_result *ret_result) {
    run r = {.trace = t, .setting = setting};
    kvt_status status = run_open(&r);
    for (uint32_t i = 0; status == KVT_OK && i < t->n_requests; i++)
        request(&r, t->pages + t->starts[i], t->starts[i + 1] - t->starts[i]);
    if (status == KVT_OK) {
        KVT_ASSERT(r.used_bytes <= setting->capacity_bytes);
        *ret_result = r.result;
    }
    run_close(&r);
    return status;
}
