/*
 * core_view.c - views: leases of some rows of a path.
 *
 *     path     [0]--[1]--[2]--[3]--[4]--[5]--[6]--[7]       tail of an ordinary lease: 7
 *     view      x              x              x    x        sinks, a pick, window
 *
 * An ordinary lease pins the end of its path, and so all in front of it. A view must not: the pages
 * between its rows are to be free to go. So it is a list of pages, each with a reference of the
 * view, and has no place in the tree (its tail is the root, which keeps the realm). While a view
 * names a page, the page's frame stays where it is; the page's node may leave the tree, from the
 * end of the path as always, and then the page is the view's alone. Lower tiers forget it at that
 * moment as they forget every page that goes.
 *
 * What it names is fixed by what is held, in whichever tier, when it is asked for. Pages that are
 * not in the arena are sent for, and ACQUIRE is answered when they have come. Those that have not
 * by then are left out (settle).
 */
#include "daemon/core_state.h"

/* --- requests -----------------------------------------------------------------------------------
 */

int view_check(core *c, request *rq, const kvt_acquire_req *req) {
    uint64_t sure = (uint64_t)req->sinks + req->window;
    if (req->base || req->group || req->flags & KVT_ACQUIRE_CLAIM)
        refuse(c, rq, KVT_EINVAL, "a view has no base and no group, and claims nothing");
    else if (sure == 0)
        refuse(c, rq, KVT_EINVAL, "a view of no sinks and no window has no row");
    else if (sure > KVT_MAX_REQUEST_TOKENS)
        refuse(c, rq, KVT_ELIMIT, "%u sinks and a window of %u: a path has at most %d tokens",
               req->sinks, req->window, KVT_MAX_REQUEST_TOKENS);
    else if (req->budget && req->budget < sure)
        refuse(c, rq, KVT_EINVAL, "a budget of %u rows: %u sinks and a window of %u are more",
               req->budget, req->sinks, req->window);
    else if (req->budget && req->budget - sure > KVT_MAX_VIEW_PICKS)
        refuse(c, rq, KVT_ELIMIT,
               "a budget of %u rows beside %u sinks and a window of %u: at most %d more than those",
               req->budget, req->sinks, req->window, KVT_MAX_VIEW_PICKS);
    else
        return 1;
    return 0;
}

/* --- its pages ----------------------------------------------------------------------------------
 */

static view_page *view_page_new(core *c) {
    uint32_t i = c->free_view_page;
    if (i)
        c->free_view_page = c->view_pages[i - 1].next;
    else if (c->end_view_page < c->config.max_pages)
        i = ++c->end_view_page;
    else
        return NULL;
    c->n_view_pages++;
    return &c->view_pages[i - 1];
}

/* Names the page: nobody takes its frame from now on. */
static void name_page(core *c, page_handle page) {
    page_ref(c->pages, page);
    c->n_viewed += c->viewed[(uint32_t)page]++ == 0;
}

/* Takes it out of the list, at whose place *link it is. */
static void unname_page(core *c, uint32_t *link) {
    uint32_t i = *link;
    page_handle page = c->view_pages[i - 1].page;
    *link = c->view_pages[i - 1].next;
    c->view_pages[i - 1].next = c->free_view_page;
    c->free_view_page = i;
    c->n_view_pages--;
    c->n_viewed -= --c->viewed[(uint32_t)page] == 0;
    page_drop(c, page);
}

void view_drop(core *c, lease *l) {
    while (l->first_view_page)
        unname_page(c, &l->first_view_page);
    c->n_views -= l->is_view;
    l->is_view = 0;
}

static void cut_rows(const uint64_t *rows, uint32_t first, uint32_t n, uint64_t *to) {
    for (uint32_t i = 0; i < VIEW_WORDS; i++)
        to[i] = 0;
    for (uint32_t i = 0; i < n; i++)
        to[i / 64] |= (rows[(first + i) / 64] >> (first + i) % 64 & 1) << i % 64;
}

/* Puts a page of the path in front of the list, for each group that needs it. */
static kvt_status add_node(core *c, lease *l, radix_node node, uint32_t number,
                           const uint64_t *rows) {
    const realm *r = &c->realms[l->realm];
    for (uint32_t group = r->n_groups; group-- > 0;) {
        uint32_t first = kvt_wire_window_first(l->view_tokens, r->windows[group]);
        if (number < first / r->page_tokens)
            continue;
        view_page *v = view_page_new(c);
        if (!v)
            return KVT_ELIMIT;
        *v = (view_page){.page = node_page(c, node, slot_of(r, l->rank, group)),
                         .rows = {rows[0], rows[1]},
                         .number = number,
                         .group = group,
                         .next = l->first_view_page};
        name_page(c, v->page);
        l->first_view_page = (uint32_t)(v - c->view_pages) + 1;
    }
    radix_set_key(c->tree, node, policy_use(c->policy, node, 0));
    return KVT_OK;
}

/* The rows in c->rows of a path that ends with h->last. */
static kvt_status add_path(core *c, lease *l, const held_prefix *h) {
    uint32_t page_tokens = c->realms[l->realm].page_tokens, end = h->tokens;
    radix_node node = h->last;
    policy_request(c->policy);
    for (uint32_t number = h->pages; number-- > 0; node = radix_parent(c->tree, node)) {
        uint64_t rows[VIEW_WORDS];
        cut_rows(c->rows, number * page_tokens, end - number * page_tokens, rows);
        end = number * page_tokens;
        if ((rows[0] | rows[1]) && add_node(c, l, node, number, rows) != KVT_OK)
            return KVT_ELIMIT;
    }
    return KVT_OK;
}

kvt_status view_take(core *c, lease *l, const kvt_acquire_req *req) {
    held_prefix h = lease_whole(c, l, lease_most(l));
    radix_node tail = l->tail, partial = l->partial;
    l->is_view = 1;
    c->n_views++;
    l->view_tokens = l->view_end = h.tokens;
    l->sinks = req->sinks;
    l->window = req->window;
    l->budget = req->budget;
    if (req->budget)
        importance_gather(c, &c->realms[l->realm], &h, c->path_importance);
    view_rows_choose(req->budget ? c->path_importance : NULL, h.tokens, req->sinks, req->window,
                     req->budget, c->rows);
    kvt_status status = add_path(c, l, &h);
    l->tail = c->realms[l->realm].root;
    l->partial = RADIX_NONE;
    l->partial_tokens = 0;
    radix_pin(c->tree, l->tail);
    lease_drop_path(c, l, tail, partial);
    return status;
}

/* --- what has come up ---------------------------------------------------------------------------
 */

int view_page_is_sure(const core *c, const lease *l, const view_page *v) {
    uint32_t first = v->number * c->realms[l->realm].page_tokens;
    uint32_t end = first + c->realms[l->realm].page_tokens;
    return first < l->sinks || (uint64_t)end + l->window > l->view_end;
}

static uint32_t n_rows_of(const view_page *v) {
    return (uint32_t)(__builtin_popcountll(v->rows[0]) + __builtin_popcountll(v->rows[1]));
}

static int is_there(const core *c, const view_page *v) {
    return page_get(c->pages, v->page)->frame != PAGE_NO_FRAME;
}

/* Are all pages of this number there? *ret_behind: the first entry of the next one. */
static int all_there(const core *c, uint32_t i, uint32_t *ret_behind) {
    uint32_t number = c->view_pages[i - 1].number;
    int there = 1;
    for (; i && c->view_pages[i - 1].number == number; i = c->view_pages[i - 1].next) {
        there = there && is_there(c, &c->view_pages[i - 1]);
        *ret_behind = c->view_pages[i - 1].next;
    }
    return there;
}

/* What is missing is left out: a pick by itself, what is sure with all behind it. Groups with
 * windows would need others there, in front of a view that ends earlier: it has nothing. */
static void settle(core *c, lease *l) {
    const realm *r = &c->realms[l->realm];
    l->is_settled = 1;
    for (uint32_t *link = &l->first_view_page, behind = NONE; *link;) {
        const view_page *v = &c->view_pages[*link - 1];
        if (all_there(c, *link, &behind)) {
            while (*link != behind)
                link = &c->view_pages[*link - 1].next;
            continue;
        }
        if (view_page_is_sure(c, l, v)) {
            l->view_tokens = r->max_window ? 0 : v->number * r->page_tokens;
            link = r->max_window ? &l->first_view_page : link;
            behind = NONE;
        }
        while (*link != behind)
            unname_page(c, link);
    }
}

/* --- replies ------------------------------------------------------------------------------------
 */

/* Of the pages of one group, which has all rows; returns how many runs there are in c->runs. */
static uint32_t make_runs(core *c, const lease *l) {
    uint32_t page_tokens = c->realms[l->realm].page_tokens, n = 0, last_number = UINT32_MAX;
    for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next) {
        const view_page *v = &c->view_pages[i - 1];
        uint32_t first, n_rows, at = 0;
        if (v->number == last_number)
            continue;
        last_number = v->number;
        for (; (n_rows = view_rows_run(v->rows, page_tokens, at, &first)) > 0;
             at = first + n_rows) {
            uint32_t token = v->number * page_tokens + first;
            if (n > 0 && c->runs[n - 1].first_token + c->runs[n - 1].n_tokens == token)
                c->runs[n - 1].n_tokens += n_rows;
            else
                c->runs[n++] = (kvt_wire_run){token, n_rows};
        }
    }
    return n;
}

static void count_pages(const core *c, const lease *l, kvt_lease_rep *rep) {
    const realm *r = &c->realms[l->realm];
    rep->n_lists = r->n_groups;
    for (uint32_t group = 0; group < r->n_groups; group++)
        rep->lists[group].first_page =
            kvt_wire_window_first(l->view_tokens, r->windows[group]) / r->page_tokens;
    for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next)
        rep->lists[c->view_pages[i - 1].group].n_pages++;
}

void reply_view(core *c, core_ticket ticket, uint16_t op, uint64_t number, lease *l) {
    if (!l->is_settled)
        settle(c, l);
    kvt_lease_rep rep = {.lease = lease_id(c, l),
                         .n_tokens = l->n_tokens,
                         .held_tokens = l->view_tokens,
                         .n_runs = make_runs(c, l),
                         .runs = (const uint8_t *)c->runs};
    count_pages(c, l, &rep);
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_lease_rep(&w, &rep);
    for (uint32_t group = 0; group < rep.n_lists; group++)
        for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next)
            if (c->view_pages[i - 1].group == group)
                write_page(c, &w, l, c->view_pages[i - 1].page);
    reply_finish(c, ticket, op, number, &w);
}

/* --- reports ------------------------------------------------------------------------------------
 */

uint32_t view_n_rows(const core *c, const lease *l) {
    uint32_t n = 0, last_number = UINT32_MAX;
    for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next) {
        const view_page *v = &c->view_pages[i - 1];
        if (v->number != last_number)
            n += n_rows_of(v);
        last_number = v->number;
    }
    return n;
}

int view_is_absent(const core *c, const lease *l) {
    uint32_t i = l->first_view_page;
    while (i && is_there(c, &c->view_pages[i - 1]))
        i = c->view_pages[i - 1].next;
    return i != NONE;
}

void view_count_tiers(const core *c, const lease *l, uint32_t *n) {
    uint32_t last_number = UINT32_MAX;
    for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next) {
        const view_page *v = &c->view_pages[i - 1];
        if (v->number == last_number || !is_there(c, v))
            continue;
        last_number = v->number;
        n[lease_page_tier(c, l, v->page)] += n_rows_of(v);
    }
}
