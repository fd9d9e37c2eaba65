/*
 * view.c - views: leases that name some rows of a path. What such a lease has, the daemon says
 * once, in the answer to ACQUIRE: runs of tokens, and the pages that hold them.
 */
#include "client/client.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

kvt_status kvt_view_check(const kvt_view *view, uint32_t flags) {
    if (!view)
        return kvt_error(KVT_EINVAL, "kvt_acquire_view needs a view");
    if (flags & KVT_CLAIM)
        return kvt_error(KVT_EINVAL, "a view claims nothing: what is computed over it is not what "
                                     "the whole prompt would give");
    uint64_t sure = (uint64_t)view->sink_tokens + view->window_tokens;
    if (sure == 0)
        return kvt_error(KVT_EINVAL, "sink_tokens and window_tokens are both 0: the view would "
                                     "have no row");
    if (sure > KVT_MAX_REQUEST_TOKENS)
        return kvt_error(KVT_ELIMIT, "%u sinks and a window of %u; a path has at most %d tokens",
                         view->sink_tokens, view->window_tokens, KVT_MAX_REQUEST_TOKENS);
    if (view->budget_tokens && view->budget_tokens < sure)
        return kvt_error(KVT_EINVAL,
                         "budget_tokens is %u; %u sinks and a window of %u alone are more (0: no "
                         "others than those)",
                         view->budget_tokens, view->sink_tokens, view->window_tokens);
    if (view->budget_tokens && view->budget_tokens - sure > KVT_MAX_VIEW_PICKS)
        return kvt_error(KVT_ELIMIT,
                         "budget_tokens is %u, beside %u sinks and a window of %u; at most %d rows "
                         "more than those are possible",
                         view->budget_tokens, view->sink_tokens, view->window_tokens,
                         KVT_MAX_VIEW_PICKS);
    return KVT_OK;
}

/* --- what the daemon said -----------------------------------------------------------------------
 */

/* The next page, from *page on, that holds a token of the runs from *run on; 0: there is none. */
static int next_page(const kvt_run *runs, uint32_t n_runs, uint32_t page_tokens, uint32_t *run,
                     uint32_t *page) {
    while (*run < n_runs &&
           (runs[*run].first_token + runs[*run].n_tokens - 1) / page_tokens < *page)
        ++*run;
    if (*run == n_runs)
        return 0;
    uint32_t first = runs[*run].first_token / page_tokens;
    *page = first > *page ? first : *page;
    return 1;
}

/* A group's list has the pages of the runs, from its first page on, and no others. With pages NULL
 * they are only looked at. */
static kvt_status take_list(kvt_lease *lease, uint32_t group, uint32_t held_tokens,
                            const kvt_run *runs, uint32_t n_runs, const kvt_page_list *list,
                            int take) {
    const kvt_geometry *g = &lease->client->geometry;
    uint32_t run = 0, page = list->first_page, n = 0;
    uint32_t most = kvt_wire_window_first(held_tokens, g->groups[group].window) / g->page_tokens;
    if (list->first_page > most)
        return kvt_client_nonsense(lease->client, "a list of a view's pages");
    for (; next_page(runs, n_runs, g->page_tokens, &run, &page); page++, n++) {
        kvt_wire_page at;
        if (n == list->n_pages)
            return kvt_client_nonsense(lease->client, "a list of a view's pages");
        kvt_wire_get_page(list->pages, n, &at);
        if (!kvt_lease_page_is_good(lease, &at, page, held_tokens))
            return kvt_client_nonsense(lease->client, "the description of a view's page");
        if (take) {
            *kvt_lease_page(lease, page, group) = at;
            lease->foreign_pages += group == 0 && at.sealer != lease->session;
        }
    }
    return n == list->n_pages ? KVT_OK
                              : kvt_client_nonsense(lease->client, "a list of a view's pages");
}

static kvt_status take_lists(kvt_lease *lease, const kvt_lease_rep *rep, const kvt_run *runs,
                             int take) {
    kvt_status status = KVT_OK;
    for (uint32_t group = 0; group < rep->n_lists && status == KVT_OK; group++)
        status =
            take_list(lease, group, rep->held_tokens, runs, rep->n_runs, &rep->lists[group], take);
    return status;
}

kvt_status kvt_view_take(kvt_lease *lease, const kvt_lease_rep *rep) {
    const kvt_geometry *g = &lease->client->geometry;
    uint32_t cover = (rep->held_tokens + g->page_tokens - 1) / g->page_tokens;
    if (cover > lease->room_pages || rep->n_lists != g->n_groups)
        return kvt_client_nonsense(lease->client, "a list of a view's pages");
    kvt_run *runs = kvt_memory_get((rep->n_runs + (size_t)1) * sizeof *runs);
    if (!runs)
        return kvt_error_plain(KVT_ENOMEM);
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < rep->n_runs; i++) {
        kvt_wire_run run;
        kvt_wire_get_run(rep->runs, i, &run);
        runs[i] = (kvt_run){run.first_token, run.n_tokens};
        n_rows += run.n_tokens;
    }
    kvt_status status = take_lists(lease, rep, runs, 0);
    if (status != KVT_OK) {
        free(runs);
        return status;
    }
    memset(lease->pages, 0, (size_t)lease->room_pages * g->n_groups * sizeof *lease->pages);
    lease->foreign_pages = 0;
    take_lists(lease, rep, runs, 1);
    for (uint32_t group = 0; group < g->n_groups; group++)
        lease->first_page[group] = g->groups[group].window ? rep->lists[group].first_page : 0;
    free(lease->runs);
    lease->runs = runs;
    lease->n_runs = rep->n_runs;
    lease->n_rows = n_rows;
    lease->n_pages = cover;
    lease->held_tokens = rep->held_tokens;
    return KVT_OK;
}

/* --- its rows -----------------------------------------------------------------------------------
 */

uint32_t kvt_lease_spread(kvt_lease *lease, const kvt_run **ret_runs) {
    if (lease->is_view) {
        *ret_runs = lease->runs;
        return lease->n_runs;
    }
    lease->whole_run = (kvt_run){0, lease->held_tokens};
    *ret_runs = &lease->whole_run;
    return lease->held_tokens > 0;
}

kvt_status kvt_lease_runs(kvt_lease *lease, const kvt_run **ret_runs, size_t *ret_n) {
    if (!lease || !ret_runs || !ret_n)
        return kvt_error(KVT_EINVAL, "kvt_lease_runs needs a lease, ret_runs and ret_n");
    if (lease->pending && lease->pending != kvt_pending_mine())
        return kvt_error(KVT_EBUSY, "a call on the lease was begun: kvt_finish it first");
    *ret_n = kvt_lease_spread(lease, ret_runs);
    return KVT_OK;
}

/* The last run that begins at or before the token; n_runs if there is none. */
static uint32_t run_at(const kvt_lease *lease, size_t token) {
    uint32_t low = 0, high = lease->n_runs;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (lease->runs[middle].first_token <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? low - 1 : lease->n_runs;
}

kvt_status kvt_view_has(const kvt_lease *lease, size_t first_token, size_t n_tokens) {
    if (!lease->is_view || n_tokens == 0)
        return KVT_OK;
    uint32_t i = run_at(lease, first_token);
    size_t end = i < lease->n_runs ? (size_t)lease->runs[i].first_token + lease->runs[i].n_tokens
                                   : first_token;
    end = end > first_token ? end : first_token;
    if (first_token + n_tokens <= end)
        return KVT_OK;
    return kvt_error(
        KVT_EINVAL,
        "tokens %zu and %zu on: the view has no row of token %zu (kvt_lease_runs tells "
        "which it has)",
        first_token, n_tokens, end);
}

/* --- importance ---------------------------------------------------------------------------------
 */

typedef struct importance_args {
    uint64_t lease;
    uint32_t first_row, n_rows;
    const float *importance;
} importance_args;

static void put_importance(kvt_writer *w, const kvt_session *s, const void *context) {
    const importance_args *a = context;
    (void)s;
    kvt_importance_req req = {.lease = a->lease, .first_row = a->first_row, .n_rows = a->n_rows};
    kvt_wire_put_importance_req(w, &req);
    for (uint32_t i = 0; i < a->n_rows; i++)
        kvt_wire_put_u16(w, kvt_wire_importance(a->importance[i]));
}

static kvt_status call_importance(kvt_lease *lease, const importance_args *args) {
    kvt_request request = {.op = KVT_OP_IMPORTANCE,
                           .epoch = lease->epoch,
                           .body_bytes = 16 + (size_t)args->n_rows * sizeof(uint16_t),
                           .put = put_importance,
                           .context = args};
    kvt_reply reply;
    kvt_importance_rep rep;
    kvt_status status =
        kvt_client_call(lease->client, &request, kvt_client_deadline(lease->client), &reply);
    if (status != KVT_OK)
        status = kvt_lease_failed(lease, status);
    else if (kvt_wire_get_importance_rep(reply.body, reply.n_body, &rep) != KVT_OK)
        status = kvt_client_nonsense(lease->client, "its answer to IMPORTANCE");
    kvt_reply_free(&reply);
    return status;
}

static kvt_status check_importance(const kvt_lease *lease, size_t first_row, size_t n_rows,
                                   const float *importance) {
    size_t there = lease->is_view ? lease->n_rows : lease->held_tokens;
    if (first_row > there || n_rows > there - first_row)
        return kvt_error(KVT_EINVAL, "importance of rows %zu and %zu on; the lease has %zu",
                         first_row, n_rows, there);
    if (n_rows && !importance)
        return kvt_error(KVT_EINVAL, "importance is NULL, n_rows is %zu", n_rows);
    for (size_t i = 0; i < n_rows; i++)
        if (!isfinite(importance[i]) || importance[i] < 0)
            return kvt_error(KVT_EINVAL, "importance[%zu] is %g; it must be 0 or more, and finite",
                             i, (double)importance[i]);
    return KVT_OK;
}

kvt_status kvt_importance(kvt_lease *lease, size_t first_row, size_t n_rows,
                          const float *importance) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    status = check_importance(lease, first_row, n_rows, importance);
    importance_args args = {lease->id, (uint32_t)first_row, (uint32_t)n_rows, importance};
    if (status == KVT_OK && n_rows > 0)
        status = call_importance(lease, &args);
    kvt_client_leave(lease->client);
    return status;
}
