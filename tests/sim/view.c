/*
 * view.c - the simulated workers' views: what they ask for, and what they must be told. The bytes
 * of each page in which a view has rows are read as those of any other lease (worker.c).
 */
#include "tests/check.h"
#include "tests/sim/world.h"

void sim_view_ask(sim_world *w, sim_lease *l, kvt_acquire_req *req) {
    l->is_view = sim_below(w, 3) == 0;
    if (!l->is_view)
        return;
    req->flags = KVT_ACQUIRE_VIEW | (sim_below(w, 4) ? 0u : KVT_ACQUIRE_LEAVE_ONE);
    req->sinks = sim_below(w, 3) ? sim_below(w, 24) : 0;
    req->window = sim_below(w, 5) ? 1 + sim_below(w, 60) : 0;
    req->window += req->sinks + req->window == 0;
    if (sim_below(w, 2))
        req->budget = req->sinks + req->window + sim_below(w, 40);
    if (sim_chance(w, 20))
        req->budget = 1; /* often nonsense, which is refused */
    l->sinks = req->sinks;
    l->window = req->window;
    l->budget = req->budget;
    w->n.views++;
}

/* What every worker says of a row: of half of them nothing. */
static uint16_t importance_of(const uint32_t *tokens, uint32_t row) {
    uint64_t h = 99;
    for (uint32_t t = 0; t <= row; t++)
        h = (h ^ tokens[t]) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 31;
    return (uint16_t)(h >> 40 & 1 ? 1 + (h & 0x3ff) : 0);
}

void sim_importance(sim_world *w, sim_worker *k, uint32_t slot) {
    outgoing o;
    const sim_lease *l = &k->leases[slot];
    uint16_t rows[SIM_MAX_TOKENS];
    kvt_wire_run whole = {0, l->held_tokens};
    const kvt_wire_run *runs = l->is_view ? l->runs : &whole;
    uint32_t n = 0;
    for (uint32_t i = 0; i < (l->is_view ? l->n_runs : 1); i++)
        for (uint32_t t = 0; t < runs[i].n_tokens; t++)
            rows[n++] = importance_of(l->tokens, runs[i].first_token + t);
    kvt_importance_req req = {.lease = l->id, .first_row = n ? sim_below(w, n) : 0};
    req.n_rows = n ? 1 + sim_below(w, n - req.first_row) : 1; /* of no row: refused */
    sim_begin(&o);
    kvt_wire_put_importance_req(&o.w, &req);
    for (uint32_t i = 0; i < req.n_rows; i++)
        kvt_wire_put_u16(&o.w, n ? rows[req.first_row + i] : 0);
    sim_call(w, k, &o, KVT_OP_IMPORTANCE, slot, 0);
}

/* Has it exactly the rows of its sinks and its window, as far as it reaches, and no more others
 * than it may? A view that ends early has a shorter window: as long as its end is not known. */
static void check_rows(sim_world *w, const sim_worker *k, const sim_lease *l) {
    uint32_t n_rows = 0, n_sure = 0, window_first = UINT32_MAX;
    uint8_t has[SIM_MAX_TOKENS + 1] = {0};
    for (uint32_t i = 0; i < l->n_runs; i++)
        for (uint32_t t = 0; t < l->runs[i].n_tokens; t++)
            has[l->runs[i].first_token + t] = 1;
    for (uint32_t t = l->held_tokens; t-- > 0 && has[t];)
        window_first = t;
    for (uint32_t t = 0; t < l->held_tokens; t++) {
        int sink = t < l->sinks, window = t >= window_first && t + l->window >= l->held_tokens;
        n_rows += has[t];
        n_sure += sink || window;
        if (has[t] && !sink && !window && importance_of(l->tokens, t) == 0)
            sim_fail(w, "worker %u: a view picks token %u, of which nobody has said anything",
                     k->index, t);
        if (sink && !has[t] && !w->geometry.groups[0].window)
            sim_fail(w, "worker %u: a view lacks token %u of %u sinks", k->index, t, l->sinks);
    }
    uint32_t sure = l->sinks + l->window;
    if (n_rows > n_sure + (l->budget > sure ? l->budget - sure : 0))
        sim_fail(w, "worker %u: a view of %u sinks, window %u, budget %u has %u rows", k->index,
                 l->sinks, l->window, l->budget, n_rows);
    w->n.view_rows += n_rows;
    w->n.view_picks += n_rows > n_sure;
}

int sim_view_has(const sim_lease *l, uint32_t page, uint32_t *ret_rows) {
    uint32_t first = page * SIM_PAGE_TOKENS, end = first + SIM_PAGE_TOKENS, last = 0;
    for (uint32_t i = 0; i < l->n_runs; i++) {
        uint32_t run_end = l->runs[i].first_token + l->runs[i].n_tokens;
        if (run_end > first && l->runs[i].first_token < end)
            last = run_end < end ? run_end : end;
    }
    *ret_rows = last > first ? last - first : 0;
    return last > first;
}

static void take_list(sim_world *w, const sim_worker *k, sim_lease *l, uint32_t group,
                      const kvt_page_list *list) {
    uint32_t n = 0, rows;
    memset(l->pages[group], 0, sizeof l->pages[group]);
    l->first_page[group] = list->first_page;
    if (list->first_page * SIM_PAGE_TOKENS >
        kvt_wire_window_first(l->held_tokens, w->geometry.groups[group].window))
        sim_fail(w, "worker %u: a view of %u tokens has group %u from page %u on", k->index,
                 l->held_tokens, group, list->first_page);
    for (uint32_t page = list->first_page; page < l->n_pages; page++) {
        if (!sim_view_has(l, page, &rows))
            continue;
        if (n == list->n_pages)
            sim_fail(w, "worker %u: a view has a row of page %u, and no page", k->index, page);
        kvt_wire_page *at = &l->pages[group][page];
        kvt_wire_get_page(list->pages, n++, at);
        if (at->rows < rows || at->frame >= w->config.max_frames ||
            at->offset + at->bytes > w->config.arena_bytes)
            sim_fail(w, "worker %u: page %u of a view has %u rows, not %u", k->index, page,
                     at->rows, rows);
    }
    if (n != list->n_pages)
        sim_fail(w, "worker %u: a view comes with %u pages, and has rows in %u", k->index,
                 list->n_pages, n);
}

void sim_view_take(sim_world *w, const sim_worker *k, sim_lease *l, const kvt_lease_rep *rep) {
    if (!l->is_view) {
        CHECK_EQ(rep->n_runs, 0);
        return;
    }
    CHECK(rep->n_runs <= SIM_MAX_TOKENS && rep->n_lists == w->geometry.n_groups);
    if (rep->claimed_tokens || rep->computing_tokens)
        sim_fail(w, "worker %u: a view claims", k->index);
    l->n_runs = rep->n_runs;
    for (uint32_t i = 0; i < rep->n_runs; i++)
        kvt_wire_get_run(rep->runs, i, &l->runs[i]);
    l->n_pages = (l->held_tokens + SIM_PAGE_TOKENS - 1) / SIM_PAGE_TOKENS;
    check_rows(w, k, l);
    for (uint32_t group = 0; group < rep->n_lists; group++)
        take_list(w, k, l, group, &rep->lists[group]);
}
