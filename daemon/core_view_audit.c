/* core_view_audit.c - does every view name exactly the pages of its rows, and does all add up? */
#include "daemon/core_state.h"
#include "kernels/say.h"

#include <stdlib.h>

typedef struct views {
    const core *c;
    uint32_t *viewed; /* [page table]: counted anew */
    uint32_t n_view_pages, n_views;
    const char *fault;
} views;

static int has_row(const view_page *v, uint32_t row) {
    return v->rows[row / 64] >> row % 64 & 1;
}

/* Rows of one page: all of the sinks and of the window, none behind the end; counts the others. */
static void audit_rows(views *a, const lease *l, uint32_t number, const view_page *v,
                       uint32_t *n_picks) {
    uint32_t page_tokens = a->c->realms[l->realm].page_tokens;
    for (uint32_t row = 0; row < page_tokens; row++) {
        uint32_t token = number * page_tokens + row;
        int is_sure = token < l->view_tokens &&
                      (token < l->sinks || (uint64_t)token + l->window >= l->view_end);
        int has = v && has_row(v, row);
        if (is_sure && !has)
            a->fault = "a view lacks a row of its sinks or its window";
        if (has && token >= l->view_tokens)
            a->fault = "a view has a row behind its end";
        *n_picks += (uint32_t)(has && !is_sure);
    }
}

/* The page is what it is said to be, as long as it is in the tree; and there, once that was told.
 */
static void audit_page(views *a, const lease *l, const view_page *v) {
    const core *c = a->c;
    const realm *r = &c->realms[l->realm];
    const page_entry *entry = page_get(c->pages, v->page);
    if (!entry || entry->state != PAGE_SEALED)
        a->fault = "a view names a page that is gone";
    else if (l->is_settled && entry->frame == PAGE_NO_FRAME)
        a->fault = "a view was told of a page that has left the arena";
    else if (entry->node != RADIX_NONE &&
             (radix_depth(c->tree, entry->node) != v->number + 1 ||
              node_page(c, entry->node, slot_of(r, v->rank, v->group)) != v->page))
        a->fault = "a view names another page than that of its place";
    a->viewed[(uint32_t)v->page]++;
    a->n_view_pages++;
}

/* One page of each rank and group that needs it, in order; and all numbers that have rows. */
static void audit_view(views *a, const lease *l) {
    const core *c = a->c;
    const realm *r = &c->realms[l->realm];
    uint32_t n_picks = 0, i = l->first_view_page;
    uint32_t n_pages = (l->view_tokens + r->page_tokens - 1) / r->page_tokens;
    for (uint32_t number = 0; number < n_pages && !a->fault; number++) {
        const view_page *first = NULL;
        for (uint32_t slot = 0; slot < r->n_ranks * r->n_groups; slot++) {
            uint32_t rank = slot / r->n_groups, group = slot % r->n_groups;
            if (l->rank != ALL_RANKS && rank != l->rank)
                continue;
            const view_page *v = i ? &c->view_pages[i - 1] : NULL;
            uint32_t from = kvt_wire_window_first(l->view_tokens, r->windows[group]);
            if (!v || v->number != number || v->rank != rank || v->group != group) {
                if (first && number >= from / r->page_tokens)
                    a->fault = "a view has no page of a group that needs it";
                continue;
            }
            if (number < from / r->page_tokens)
                a->fault = "a view has a page of a group that does not need it";
            if (first && (v->rows[0] != first->rows[0] || v->rows[1] != first->rows[1]))
                a->fault = "a view has other rows of one group than of another";
            audit_page(a, l, v);
            first = v;
            i = v->next;
        }
        /* A hybrid model may have no group without a window: then its oldest rows are nobody's. */
        int somebodys = first != NULL;
        for (uint32_t group = 0; group < r->n_groups; group++)
            somebodys |=
                number >= kvt_wire_window_first(l->view_tokens, r->windows[group]) / r->page_tokens;
        if (somebodys)
            audit_rows(a, l, number, first, &n_picks);
    }
    if (i && !a->fault)
        a->fault = "a view's pages are out of order";
    uint64_t sure = (uint64_t)l->sinks + l->window;
    if (n_picks > (l->budget > sure ? l->budget - sure : 0))
        a->fault = "a view has more rows than its budget";
}

static void audit_counts(views *a, uint32_t *refs) {
    const core *c = a->c;
    uint32_t n_pages = c->config.max_pages + page_slack(&c->config), n_viewed = 0;
    for (uint32_t i = 0; i < n_pages; i++) {
        if (a->viewed[i] != c->viewed[i])
            a->fault = "a page is named by more or fewer views than it counts";
        n_viewed += a->viewed[i] > 0;
        refs[i] += a->viewed[i];
    }
    if (n_viewed != c->n_viewed || a->n_view_pages != c->n_view_pages || a->n_views != c->n_views)
        a->fault = "views, and their pages, are counted wrong";
}

kvt_status views_audit(const core *c, uint32_t *refs, char *why, size_t why_bytes) {
    views a = {.c = c};
    a.viewed = calloc((size_t)c->config.max_pages + page_slack(&c->config), sizeof *a.viewed);
    if (!a.viewed)
        return KVT_ENOMEM;
    for (uint32_t i = 0; i < c->config.max_leases_total && !a.fault; i++)
        if (c->leases[i].session && c->leases[i].is_view) {
            a.n_views++;
            if (!c->leases[i].group)
                audit_view(&a, &c->leases[i]);
            else if (c->leases[i].first_view_page || !view_of(c, &c->leases[i])->is_view)
                a.fault = "a view of ranks is not its group's";
        }
    for (uint32_t i = 0; i < c->max_groups && c->n_groups && !a.fault; i++)
        if (c->groups[i].group && c->groups[i].anchor.is_view)
            audit_view(&a, &c->groups[i].anchor);
    if (!a.fault)
        audit_counts(&a, refs);
    free(a.viewed);
    return a.fault ? kvt_say(why, why_bytes, KVT_EINTERNAL, "%s", a.fault) : KVT_OK;
}
