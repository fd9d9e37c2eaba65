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
 * Ranks that ask together have one view: their group's anchor (core_group.c) names the pages of all
 * ranks, with the same rows of each, and what is left out is left out for all. Until the last of
 * them has come the anchor also pins the path, so that what it asks for can be compared.
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
    if (req->base || req->flags & KVT_ACQUIRE_CLAIM)
        refuse(c, rq, KVT_EINVAL, "a view has no base, and claims nothing");
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

int view_is_same(const lease *anchor, const kvt_acquire_req *req) {
    return anchor->sinks == req->sinks && anchor->window == req->window &&
           anchor->budget == req->budget;
}

/* --- its pages ----------------------------------------------------------------------------------
 */

const lease *view_of(const core *c, const lease *l) {
    return l->group ? &c->groups[l->group - 1].anchor : l;
}

static lease *own(core *c, lease *l) {
    return l->group ? &c->groups[l->group - 1].anchor : l;
}

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
    c->n_views -= l->is_view && l->session; /* an anchor is nobody's */
    l->is_view = 0;
}

static void cut_rows(const uint64_t *rows, uint32_t first, uint32_t n, uint64_t *to) {
    for (uint32_t i = 0; i < VIEW_WORDS; i++)
        to[i] = 0;
    for (uint32_t i = 0; i < n; i++)
        to[i / 64] |= (rows[(first + i) / 64] >> (first + i) % 64 & 1) << i % 64;
}

/* Puts a page of the path in front of the list, for the rank or for all, and for each group that
 * needs it. */
static kvt_status add_node(core *c, lease *l, radix_node node, uint32_t number,
                           const uint64_t *rows) {
    const realm *r = &c->realms[l->realm];
    for (uint32_t slot = r->n_ranks * r->n_groups; slot-- > 0;) {
        uint32_t rank = slot / r->n_groups, group = slot % r->n_groups;
        uint32_t first = kvt_wire_window_first(l->view_tokens, r->windows[group]);
        if ((l->rank != ALL_RANKS && rank != l->rank) || number < first / r->page_tokens)
            continue;
        view_page *v = view_page_new(c);
        if (!v)
            return KVT_ELIMIT;
        *v = (view_page){.page = node_page(c, node, slot_of(r, rank, group)),
                         .rows = {rows[0], rows[1]},
                         .number = number,
                         .rank = rank,
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

/* It has no place in the tree any more. */
static void leave_path(core *c, lease *l) {
    radix_node tail = l->tail, partial = l->partial;
    l->tail = c->realms[l->realm].root;
    l->partial = RADIX_NONE;
    l->partial_tokens = 0;
    radix_pin(c->tree, l->tail);
    lease_drop_path(c, l, tail, partial);
}

/* `to` is the lease itself, or its group's anchor. */
static kvt_status choose(core *c, lease *to, const lease *l, const kvt_acquire_req *req) {
    held_prefix h = lease_whole(c, l, lease_most(l));
    to->is_view = 1;
    to->view_tokens = to->view_end = h.tokens;
    to->sinks = req->sinks;
    to->window = req->window;
    to->budget = req->budget;
    if (req->budget)
        importance_gather(c, &c->realms[l->realm], &h, c->path_importance);
    view_rows_choose(req->budget ? c->path_importance : NULL, h.tokens, req->sinks, req->window,
                     req->budget, c->rows);
    return add_path(c, to, &h);
}

kvt_status view_take(core *c, lease *l, const kvt_acquire_req *req) {
    lease *to = own(c, l);
    kvt_status status = to->is_view ? KVT_OK : choose(c, to, l, req);
    l->is_view = 1;
    c->n_views++;
    leave_path(c, l);
    if (l->group && group_is_whole(c, l, status != KVT_OK))
        leave_path(c, to);
    return status;
}

/* --- what has come up ---------------------------------------------------------------------------
 */

/* Has the page rows of the sinks or of the window? */
static int is_sure(const core *c, const lease *l, uint32_t number) {
    uint32_t first = number * c->realms[l->realm].page_tokens;
    uint32_t end = first + c->realms[l->realm].page_tokens;
    return first < l->sinks || (uint64_t)end + l->window > l->view_end;
}

int view_page_is_sure(const core *c, const lease *l, const view_page *v) {
    return is_sure(c, l, v->number);
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

/* May the view end in front of the page `end`? A group with a window reads other pages then, in
 * front of those that the view names: it may if the view has no row in them. */
static int may_end(const core *c, const lease *l, uint32_t end) {
    const realm *r = &c->realms[l->realm];
    for (uint32_t group = 0; group < r->n_groups; group++) {
        uint32_t window = r->windows[group];
        uint32_t first = kvt_wire_window_first(end * r->page_tokens, window) / r->page_tokens;
        uint32_t named = kvt_wire_window_first(l->view_end, window) / r->page_tokens;
        named = named < end ? named : end;
        for (uint32_t number = first; number < named; number++)
            if (is_sure(c, l, number))
                return 0;
        for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next)
            if (c->view_pages[i - 1].number >= first && c->view_pages[i - 1].number < named)
                return 0;
    }
    return 1;
}

/* What is missing is left out: a pick by itself, what is sure with all behind it. A view that may
 * not end there has nothing. */
static void settle(core *c, lease *l) {
    const realm *r = &c->realms[l->realm];
    l->is_settled = 1;
    c->wake = 1; /* other ranks may wait for what is left out now */
    for (uint32_t *link = &l->first_view_page, behind = NONE; *link;) {
        const view_page *v = &c->view_pages[*link - 1];
        if (all_there(c, *link, &behind)) {
            while (*link != behind)
                link = &c->view_pages[*link - 1].next;
            continue;
        }
        if (view_page_is_sure(c, l, v)) {
            int ends = may_end(c, l, v->number);
            l->view_tokens = ends ? v->number * r->page_tokens : 0;
            link = ends ? link : &l->first_view_page;
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

static void count_pages(const core *c, const lease *l, uint32_t rank, kvt_lease_rep *rep) {
    const realm *r = &c->realms[l->realm];
    rep->n_lists = r->n_groups;
    for (uint32_t group = 0; group < r->n_groups; group++)
        rep->lists[group].first_page =
            kvt_wire_window_first(l->view_tokens, r->windows[group]) / r->page_tokens;
    for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next)
        rep->lists[c->view_pages[i - 1].group].n_pages += c->view_pages[i - 1].rank == rank;
}

void reply_view(core *c, core_ticket ticket, uint16_t op, uint64_t number, lease *l) {
    lease *of = own(c, l);
    if (!of->is_settled)
        settle(c, of);
    kvt_lease_rep rep = {.lease = lease_id(c, l),
                         .n_tokens = l->n_tokens,
                         .held_tokens = of->view_tokens,
                         .n_runs = make_runs(c, of),
                         .runs = (const uint8_t *)c->runs};
    count_pages(c, of, l->rank, &rep);
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_lease_rep(&w, &rep);
    for (uint32_t group = 0; group < rep.n_lists; group++)
        for (uint32_t i = of->first_view_page; i; i = c->view_pages[i - 1].next)
            if (c->view_pages[i - 1].group == group && c->view_pages[i - 1].rank == l->rank)
                write_page(c, &w, l, c->view_pages[i - 1].page);
    reply_finish(c, ticket, op, number, &w);
}

/* --- reports ------------------------------------------------------------------------------------
 */

uint32_t view_n_rows(const core *c, const lease *l) {
    uint32_t n = 0, last_number = UINT32_MAX;
    for (uint32_t i = view_of(c, l)->first_view_page; i; i = c->view_pages[i - 1].next) {
        const view_page *v = &c->view_pages[i - 1];
        if (v->number != last_number)
            n += n_rows_of(v);
        last_number = v->number;
    }
    return n;
}

int view_is_absent(const core *c, const lease *l) {
    uint32_t i = view_of(c, l)->first_view_page;
    while (i && is_there(c, &c->view_pages[i - 1]))
        i = c->view_pages[i - 1].next;
    return i != NONE;
}

void view_count_tiers(const core *c, const lease *l, uint32_t *n) {
    uint32_t last_number = UINT32_MAX;
    for (uint32_t i = view_of(c, l)->first_view_page; i; i = c->view_pages[i - 1].next) {
        const view_page *v = &c->view_pages[i - 1];
        if (v->rank != l->rank || v->number == last_number || !is_there(c, v))
            continue;
        last_number = v->number;
        n[lease_page_tier(c, l, v->page)] += n_rows_of(v);
    }
}
