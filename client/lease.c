/* lease.c - acquire, extend, fork, wait, release. */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

enum { WAIT_AGAIN_MS = 100 };

/* --- inside -------------------------------------------------------------------------------------
 */

kvt_status kvt_lease_enter(kvt_lease *lease) {
    if (!lease)
        return kvt_error(KVT_EINVAL, "the lease is NULL");
    kvt_client *c = lease->client;
    kvt_status status = KVT_OK;
    if (kvt_client_forked(c))
        return kvt_error_plain(KVT_EFORK);
    /* As kvt_client_enter, in one go: decoding layer by layer comes here often. */
    pthread_mutex_lock(&c->lock);
    if (c->closing)
        status = KVT_ECLOSED;
    else if (lease->pending && lease->pending != kvt_pending_mine())
        status = KVT_EBUSY;
    else if (lease->lost || lease->epoch != c->session.epoch)
        status = KVT_ESTALE;
    else
        c->n_inside++;
    pthread_mutex_unlock(&c->lock);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

kvt_status kvt_lease_enter_to_wait(kvt_lease *lease) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_ESTALE || kvt_client_enter(lease->client) != KVT_OK)
        return status;
    kvt_device_wait(lease);
    kvt_client_leave(lease->client);
    return kvt_error_plain(status);
}

kvt_status kvt_lease_failed(kvt_lease *lease, kvt_status status) {
    if (status != KVT_ENOENT)
        return status;
    lease->lost = 1;
    return kvt_error(KVT_ESTALE, "the daemon does not know the lease any more: acquire again");
}

static uint32_t page_tokens_of(const kvt_lease *lease) {
    return lease->client->geometry.page_tokens;
}

static uint32_t pages_of(const kvt_lease *lease, size_t n_tokens) {
    uint32_t page_tokens = page_tokens_of(lease);
    return (uint32_t)((n_tokens + page_tokens - 1) / page_tokens);
}

/* Whole pages that are held: their descriptors do not change any more. */
static uint32_t settled_pages(const kvt_lease *lease) {
    return lease->held_tokens / page_tokens_of(lease);
}

/* --- a lease's memory ---------------------------------------------------------------------------
 */

static kvt_status reserve_pages(kvt_lease *lease, size_t n_tokens) {
    uint32_t n = pages_of(lease, n_tokens);
    if (n <= lease->room_pages)
        return KVT_OK;
    kvt_wire_page *pages = kvt_memory_resize(
        lease->pages, (size_t)n * lease->client->geometry.n_groups * sizeof *pages);
    if (!pages)
        return kvt_error_plain(KVT_ENOMEM);
    lease->pages = pages;
    lease->room_pages = n;
    return KVT_OK;
}

/* Gives back everything but the structure itself. closed: kvt_close has taken arenas and staging
 * files already. */
static void lease_strip(kvt_lease *lease, int closed) {
    kvt_client *c = lease->client;
    kvt_device_strip(lease, closed);
    for (uint32_t i = 0; i < lease->n_encoded && !closed; i++)
        kvt_staging_give(c, lease->encoded[i].staging, lease->encoded[i].slot, 0);
    free(lease->pages);
    free(lease->encoded);
    free(lease->spans);
    free(lease->runs);
    lease->spans = NULL;
    lease->runs = NULL;
    lease->n_runs = 0;
    lease->n_spans = 0;
    lease->n_encoded = lease->n_pages = 0;
    lease->pages = NULL;
    lease->encoded = NULL;
    pthread_mutex_lock(&c->lock);
    if (lease->arena && !closed)
        lease->arena->refs--;
    lease->arena = NULL;
    if (!closed)
        kvt_arenas_sweep(c);
    pthread_mutex_unlock(&c->lock);
}

static void lease_free(kvt_lease *lease, int closed) {
    kvt_client *c = lease->client;
    lease_strip(lease, closed);
    free(lease);
    kvt_client_unref(c);
}

/* The lease becomes an entry of what the daemon must still be told to undo. */
static void lease_undo(kvt_lease *lease, uint64_t number) {
    kvt_client *c = lease->client;
    lease_strip(lease, 0);
    kvt_client_undo(c, lease, number);
    kvt_client_unref(c);
}

static kvt_lease *lease_new(kvt_client *c, size_t n_tokens) {
    kvt_lease *lease = kvt_memory_get(sizeof *lease);
    if (!lease)
        return NULL;
    lease->client = c;
    kvt_client_ref(c);
    if (reserve_pages(lease, n_tokens) == KVT_OK)
        return lease;
    lease_free(lease, 0);
    return NULL;
}

/* --- what the daemon said -----------------------------------------------------------------------
 */

int kvt_lease_page_is_good(const kvt_lease *lease, const kvt_wire_page *page, uint32_t i,
                           uint32_t held_tokens) {
    uint32_t page_tokens = page_tokens_of(lease), left = held_tokens - i * page_tokens;
    uint32_t rows = left < page_tokens ? left : page_tokens;
    return page->rows >= rows && page->rows <= page_tokens && kvt_arena_has(lease->arena, page);
}

/* Of the pages of the first group that are there: those that another session sealed, and where
 * they came from. by: 1, or -1 to take them back. */
static void count_pages(kvt_lease *lease, uint32_t first, uint32_t end, int by) {
    for (uint32_t i = first > lease->first_page[0] ? first : lease->first_page[0]; i < end; i++) {
        const kvt_wire_page *page = kvt_lease_page(lease, i, 0);
        if (page->sealer != lease->session)
            lease->foreign_pages += (uint32_t)by;
        lease->tier_pages[page->tier] += (uint32_t)by;
    }
}

/* A list of pages is one of the group, as far as `cover` pages, with all that the group needs. */
static kvt_status check_list(const kvt_lease *lease, uint32_t group, uint32_t held_tokens,
                             uint32_t first_page, const kvt_page_list *list) {
    uint32_t cover = pages_of(lease, held_tokens);
    uint32_t window = lease->client->geometry.groups[group].window;
    uint32_t most = window ? kvt_wire_window_first(held_tokens, window) / page_tokens_of(lease)
                           : lease->n_pages;
    if ((!window && list->first_page != first_page) || list->first_page > most ||
        (cover > list->first_page && list->n_pages < cover - list->first_page))
        return kvt_client_nonsense(lease->client, "a list of pages");
    for (uint32_t i = list->first_page; i < cover; i++) {
        kvt_wire_page page;
        kvt_wire_get_page(list->pages, i - list->first_page, &page);
        if (!kvt_lease_page_is_good(lease, &page, i, held_tokens))
            return kvt_client_nonsense(lease->client, "the description of a page");
    }
    return KVT_OK;
}

kvt_status kvt_lease_take_pages(kvt_lease *lease, uint32_t held_tokens, uint32_t first_page,
                                uint32_t n_lists, const kvt_page_list *lists) {
    const kvt_geometry *g = &lease->client->geometry;
    uint32_t cover = pages_of(lease, held_tokens);
    if (cover > lease->room_pages || n_lists != g->n_groups)
        return kvt_client_nonsense(lease->client, "a list of pages");
    for (uint32_t group = 0; group < n_lists; group++) {
        kvt_status status = check_list(lease, group, held_tokens, first_page, &lists[group]);
        if (status != KVT_OK)
            return status;
    }
    uint32_t kept = g->groups[0].window ? 0 : first_page < cover ? first_page : cover;
    count_pages(lease, kept, lease->n_pages, -1);
    for (uint32_t group = 0; group < n_lists; group++) {
        uint32_t first = lists[group].first_page;
        for (uint32_t i = first; i < cover; i++)
            kvt_wire_get_page(lists[group].pages, i - first, kvt_lease_page(lease, i, group));
        lease->first_page[group] = g->groups[group].window ? first : 0;
    }
    count_pages(lease, kept, cover, 1);
    lease->n_pages = cover;
    lease->held_tokens = held_tokens;
    lease->behind = 0;
    return KVT_OK;
}

/* From the reply of ACQUIRE, FORK or WAIT. On failure the lease is as it was. */
static kvt_status take_reply(kvt_lease *lease, const kvt_reply *reply, size_t n_tokens,
                             uint32_t first_page) {
    kvt_lease_rep rep;
    if (kvt_wire_get_lease_rep(reply->body, reply->n_body, &rep) != KVT_OK || rep.lease == 0 ||
        (lease->id && rep.lease != lease->id) || rep.n_tokens != n_tokens ||
        rep.held_tokens > rep.n_tokens || rep.claimed_tokens > rep.n_tokens ||
        rep.computing_tokens > rep.n_tokens - rep.held_tokens)
        return kvt_client_nonsense(lease->client, "the description of a lease");
    if (rep.n_runs && !lease->is_view)
        return kvt_client_nonsense(lease->client, "a view that nobody asked for");
    kvt_status status = lease->is_view ? kvt_view_take(lease, &rep)
                                       : kvt_lease_take_pages(lease, rep.held_tokens, first_page,
                                                              rep.n_lists, rep.lists);
    if (status != KVT_OK)
        return status;
    lease->id = rep.lease;
    lease->n_tokens = rep.n_tokens;
    lease->computing_tokens = rep.computing_tokens;
    lease->claimed_tokens = rep.claimed_tokens;
    return KVT_OK;
}

/* A new lease belongs to the session that it was asked for in, as long as that is there. */
static kvt_status join_epoch(kvt_lease *lease, const kvt_reply *reply) {
    kvt_client *c = lease->client;
    pthread_mutex_lock(&c->lock);
    int same = c->session.epoch == reply->session.epoch && c->arena;
    lease->epoch = c->session.epoch;
    lease->session = c->session.number;
    if (same) {
        lease->arena = c->arena;
        lease->arena->refs++;
    }
    pthread_mutex_unlock(&c->lock);
    /* Another thread has come to a new session meanwhile. Which of the two gave the lease is not
     * known; cancelling the number in the new one is right in both cases. */
    return same ? KVT_OK : kvt_error(KVT_ECONN, "the session was lost during the call");
}

/* The end of a call that should give a new lease: the lease, or nothing and no trace of it. */
static kvt_status end_new(kvt_lease *lease, kvt_status status, const kvt_reply *reply,
                          size_t n_tokens, kvt_lease **ret_lease) {
    int given = status == KVT_OK;
    if (given)
        status = join_epoch(lease, reply);
    else
        lease->epoch = reply->session.epoch;
    if (status == KVT_OK)
        status = take_reply(lease, reply, n_tokens, 0);
    if (status == KVT_OK)
        *ret_lease = lease;
    else if (given || reply->unanswered)
        lease_undo(lease, reply->number);
    else
        lease_free(lease, 0);
    return status;
}

/* --- acquire ------------------------------------------------------------------------------------
 */

typedef struct acquire_args {
    uint64_t base;
    uint64_t group, request; /* 0: it is asked for by one alone */
    uint32_t rank;
    uint32_t flags;
    uint32_t keep_tokens;
    uint32_t first_page;
    const uint32_t *tokens;
    size_t n_tokens;
    const kvt_span *spans;
    size_t n_spans;
    const kvt_view *view; /* NULL: it is none */
} acquire_args;

static void put_acquire(kvt_writer *w, const kvt_session *s, const void *context) {
    const acquire_args *a = context;
    kvt_acquire_req req = {.realm = a->base ? 0 : s->realm,
                           .rank = a->base ? 0 : a->rank,
                           .flags = ((a->flags & KVT_CLAIM) ? KVT_ACQUIRE_CLAIM : 0) |
                                    ((a->flags & KVT_LEAVE_ONE) ? KVT_ACQUIRE_LEAVE_ONE : 0) |
                                    (a->n_spans ? KVT_ACQUIRE_SPANS : 0) |
                                    (a->view ? KVT_ACQUIRE_VIEW : 0),
                           .base = a->base,
                           .keep_tokens = a->keep_tokens,
                           .first_page = a->first_page,
                           .group = a->group,
                           .request = a->request,
                           .n_tokens = (uint32_t)a->n_tokens};
    if (a->view) {
        req.sinks = a->view->sink_tokens;
        req.window = a->view->window_tokens;
        req.budget = a->view->budget_tokens;
    }
    kvt_wire_put_acquire_req(w, &req);
    kvt_wire_put_tokens(w, a->tokens, a->n_tokens);
    for (size_t i = 0; i < a->n_spans; i++) {
        kvt_wire_span span = {a->spans[i].first_token, a->spans[i].n_tokens, {0}};
        memcpy(span.hash, a->spans[i].hash, sizeof span.hash);
        kvt_wire_put_span(w, &span);
    }
}

static kvt_request acquire_request(const acquire_args *args, uint64_t epoch) {
    return (kvt_request){.op = KVT_OP_ACQUIRE,
                         .epoch = epoch,
                         .body_bytes = 60 + args->n_tokens * sizeof(uint32_t) + args->n_spans * 24,
                         .put = put_acquire,
                         .context = args};
}

kvt_status kvt_tokens_check(size_t n_before, const uint32_t *tokens, size_t n_tokens,
                            uint32_t flags) {
    if (n_tokens && !tokens)
        return kvt_error(KVT_EINVAL, "tokens is NULL, n_tokens is %zu", n_tokens);
    if (flags & ~(uint32_t)(KVT_CLAIM | KVT_LEAVE_ONE))
        return kvt_error(KVT_EINVAL, "flags 0x%x has unknown bits", flags);
    if (n_tokens > KVT_MAX_REQUEST_TOKENS - n_before)
        return kvt_error(KVT_ELIMIT,
                         "%zu tokens behind %zu: a path has at most %d; shorten the prompt",
                         n_tokens, n_before, KVT_MAX_REQUEST_TOKENS);
    return KVT_OK;
}

/* The realm's number may have gone to another while this one had no pages: register again. */
static kvt_status call_acquire(kvt_client *c, const kvt_request *request, kvt_reply *ret_reply) {
    uint64_t deadline_ms = kvt_client_deadline(c);
    kvt_status status = kvt_client_call(c, request, deadline_ms, ret_reply);
    if (status == KVT_ENOENT) {
        kvt_session_forget_realm(c, &ret_reply->session);
        status = kvt_client_call(c, request, deadline_ms, ret_reply);
    }
    return status;
}

static kvt_status acquire(kvt_client *c, const acquire_args *args, kvt_lease **ret_lease) {
    kvt_reply reply;
    kvt_span *spans;
    uint32_t n_spans;
    kvt_lease *lease = lease_new(c, args->n_tokens);
    if (!lease)
        return kvt_error_plain(KVT_ENOMEM);
    if (kvt_spans_join(lease, 0, args->spans, args->n_spans, &spans, &n_spans) != KVT_OK) {
        lease_free(lease, 0);
        return kvt_error_plain(KVT_ENOMEM);
    }
    kvt_spans_set(lease, spans, n_spans);
    lease->is_view = args->view != NULL;
    kvt_request request = acquire_request(args, 0);
    kvt_status status = call_acquire(c, &request, &reply);
    status = end_new(lease, status, &reply, args->n_tokens, ret_lease);
    kvt_reply_free(&reply);
    return status;
}

static kvt_status acquire_checked(kvt_client *client, uint64_t group, uint64_t request,
                                  const uint32_t *tokens, size_t n_tokens, const kvt_span *spans,
                                  size_t n_spans, const kvt_view *view, uint32_t flags,
                                  kvt_lease **ret_lease) {
    if (!client || !ret_lease || client->reports_only)
        return kvt_error(KVT_EINVAL, "kvt_acquire needs a client of kvt_open and ret_lease");
    kvt_status status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    status = kvt_tokens_check(0, tokens, n_tokens, flags);
    if (status == KVT_OK)
        status = kvt_spans_check(spans, n_spans, 0, n_tokens);
    acquire_args args = {.group = group,
                         .request = request,
                         .rank = client->geometry.rank,
                         .flags = flags,
                         .tokens = tokens,
                         .n_tokens = n_tokens,
                         .spans = spans,
                         .n_spans = n_spans,
                         .view = view};
    if (status == KVT_OK)
        status = acquire(client, &args, ret_lease);
    kvt_client_leave(client);
    return status;
}

kvt_status kvt_acquire(kvt_client *client, const uint32_t *tokens, size_t n_tokens, uint32_t flags,
                       kvt_lease **ret_lease) {
    return acquire_checked(client, 0, 0, tokens, n_tokens, NULL, 0, NULL, flags, ret_lease);
}

kvt_status kvt_acquire_spans(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                             const kvt_span *spans, size_t n_spans, uint32_t flags,
                             kvt_lease **ret_lease) {
    return acquire_checked(client, 0, 0, tokens, n_tokens, spans, n_spans, NULL, flags, ret_lease);
}

kvt_status kvt_acquire_view(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                            const kvt_span *spans, size_t n_spans, const kvt_view *view,
                            uint32_t flags, kvt_lease **ret_lease) {
    kvt_status status = kvt_view_check(view, flags);
    if (status == KVT_OK)
        status =
            acquire_checked(client, 0, 0, tokens, n_tokens, spans, n_spans, view, flags, ret_lease);
    return status;
}

static kvt_status check_group(uint64_t group, uint64_t request) {
    return group && request ? KVT_OK : kvt_error(KVT_EINVAL, "group and request must not be 0");
}

kvt_status kvt_acquire_ranks(kvt_client *client, uint64_t group, uint64_t request,
                             const uint32_t *tokens, size_t n_tokens, uint32_t flags,
                             kvt_lease **ret_lease) {
    kvt_status status = check_group(group, request);
    if (status == KVT_OK)
        status = acquire_checked(client, group, request, tokens, n_tokens, NULL, 0, NULL, flags,
                                 ret_lease);
    return status;
}

kvt_status kvt_acquire_view_ranks(kvt_client *client, uint64_t group, uint64_t request,
                                  const uint32_t *tokens, size_t n_tokens, const kvt_view *view,
                                  uint32_t flags, kvt_lease **ret_lease) {
    kvt_status status = check_group(group, request);
    if (status == KVT_OK)
        status = kvt_view_check(view, flags);
    if (status == KVT_OK)
        status = acquire_checked(client, group, request, tokens, n_tokens, NULL, 0, view, flags,
                                 ret_lease);
    return status;
}

/* --- extend -------------------------------------------------------------------------------------
 */

/* Pages that were encoded and are not, or not as they are, part of the new path. */
static void drop_encoded(kvt_lease *lease, size_t keep_tokens) {
    while (lease->n_encoded) {
        kvt_encoded *last = &lease->encoded[lease->n_encoded - 1];
        if (((size_t)last->page + 1) * page_tokens_of(lease) <= keep_tokens)
            break;
        kvt_device_forget(lease, last);
        kvt_staging_give(lease->client, last->staging, last->slot, 0);
        lease->n_encoded--;
    }
}

/* spans: all of the new path. */
static kvt_status extend(kvt_lease *lease, uint64_t group, uint64_t request_number,
                         size_t keep_tokens, const uint32_t *tokens, size_t n_tokens,
                         const kvt_span *spans, uint32_t n_spans, uint32_t flags) {
    kvt_client *c = lease->client;
    kvt_reply reply;
    size_t n_path = keep_tokens + n_tokens;
    kvt_status status = reserve_pages(lease, n_path);
    if (status != KVT_OK)
        return status;
    size_t kept_pages = keep_tokens / page_tokens_of(lease), settled = settled_pages(lease);
    acquire_args args = {.base = lease->id,
                         .group = group,
                         .request = request_number,
                         .flags = flags,
                         .keep_tokens = (uint32_t)keep_tokens,
                         .first_page = (uint32_t)(kept_pages < settled ? kept_pages : settled),
                         .tokens = tokens,
                         .n_tokens = n_tokens};
    /* Those of the page in which the new tokens begin are said again: its content is theirs, too.
     */
    size_t passed = kvt_spans_in_front(spans, n_spans, kept_pages * page_tokens_of(lease));
    args.spans = n_spans ? spans + passed : NULL;
    args.n_spans = n_spans - passed;
    kvt_request request = acquire_request(&args, lease->epoch);
    status = kvt_client_call(c, &request, kvt_client_deadline(c), &reply);
    int answered_well = status == KVT_OK;
    if (answered_well)
        status = take_reply(lease, &reply, n_path, args.first_page);
    else
        status = kvt_lease_failed(lease, status);
    kvt_reply_free(&reply);
    if (status == KVT_OK) {
        drop_encoded(lease, keep_tokens);
    } else if (answered_well || reply.unanswered) {
        /* It names the old path or the new; nobody can tell. */
        lease->lost = 1;
    }
    return status;
}

static kvt_status extend_checked(kvt_lease *lease, uint64_t group, uint64_t request,
                                 size_t keep_tokens, const uint32_t *tokens, size_t n_tokens,
                                 const kvt_span *spans, size_t n_spans, uint32_t flags) {
    kvt_span *all = NULL;
    uint32_t n_all = 0;
    kvt_status status = kvt_lease_enter_to_wait(lease);
    if (status != KVT_OK)
        return status;
    uint32_t known =
        lease->held_tokens > lease->claimed_tokens ? lease->held_tokens : lease->claimed_tokens;
    if (lease->is_view)
        status = kvt_error(KVT_EINVAL, "the lease is a view, which nothing goes on from: acquire");
    else if (keep_tokens > known)
        status = kvt_error(KVT_EINVAL, "keep_tokens is %zu; the lease holds or claims %u",
                           keep_tokens, known);
    else
        status = kvt_tokens_check(keep_tokens, tokens, n_tokens, flags);
    if (status == KVT_OK)
        status = kvt_spans_check(spans, n_spans, keep_tokens, keep_tokens + n_tokens);
    if (status == KVT_OK)
        status = kvt_spans_join(lease, keep_tokens, spans, n_spans, &all, &n_all);
    if (status == KVT_OK)
        kvt_device_wait(lease); /* the new path may let go of pages that the GPU is reading */
    if (status == KVT_OK)
        status = extend(lease, group, request, keep_tokens, tokens, n_tokens, all, n_all, flags);
    if (status == KVT_OK)
        kvt_spans_set(lease, all, n_all);
    else
        free(all);
    kvt_client_leave(lease->client);
    return status;
}

kvt_status kvt_extend(kvt_lease *lease, size_t keep_tokens, const uint32_t *tokens, size_t n_tokens,
                      uint32_t flags) {
    return extend_checked(lease, 0, 0, keep_tokens, tokens, n_tokens, NULL, 0, flags);
}

kvt_status kvt_extend_spans(kvt_lease *lease, size_t keep_tokens, const uint32_t *tokens,
                            size_t n_tokens, const kvt_span *spans, size_t n_spans,
                            uint32_t flags) {
    return extend_checked(lease, 0, 0, keep_tokens, tokens, n_tokens, spans, n_spans, flags);
}

kvt_status kvt_extend_ranks(kvt_lease *lease, uint64_t group, uint64_t request, size_t keep_tokens,
                            const uint32_t *tokens, size_t n_tokens, uint32_t flags) {
    kvt_status status = check_group(group, request);
    if (status == KVT_OK)
        status =
            extend_checked(lease, group, request, keep_tokens, tokens, n_tokens, NULL, 0, flags);
    return status;
}

/* --- fork, wait ---------------------------------------------------------------------------------
 */

static void put_fork(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_fork_req(w, context);
}

static kvt_status fork_lease(kvt_lease *from, size_t n_tokens, kvt_lease **ret_lease) {
    kvt_client *c = from->client;
    kvt_reply reply;
    kvt_span *spans;
    uint32_t n_spans;
    kvt_status status = kvt_spans_join(from, n_tokens, NULL, 0, &spans, &n_spans);
    if (status != KVT_OK)
        return status;
    kvt_lease *lease = lease_new(c, n_tokens);
    if (!lease) {
        free(spans);
        return kvt_error_plain(KVT_ENOMEM);
    }
    kvt_spans_set(lease, spans, n_spans);
    kvt_fork_req req = {.lease = from->id, .n_tokens = (uint32_t)n_tokens};
    kvt_request request = {.op = KVT_OP_FORK,
                           .epoch = from->epoch,
                           .body_bytes = 12,
                           .put = put_fork,
                           .context = &req};
    status = kvt_client_call(c, &request, kvt_client_deadline(c), &reply);
    if (status != KVT_OK)
        status = kvt_lease_failed(from, status);
    status = end_new(lease, status, &reply, n_tokens, ret_lease);
    kvt_reply_free(&reply);
    return status;
}

kvt_status kvt_fork(kvt_lease *lease, size_t n_tokens, kvt_lease **ret_lease) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    if (lease->is_view)
        status = kvt_error(KVT_EINVAL, "the lease is a view: acquire another one");
    else if (!ret_lease)
        status =
            kvt_error(KVT_EINVAL, "there must be a place for the new lease: ret_lease is NULL");
    else if (n_tokens > lease->n_tokens)
        status = kvt_error(KVT_EINVAL, "kvt_fork at token %zu of %u", n_tokens, lease->n_tokens);
    else
        status = fork_lease(lease, n_tokens, ret_lease);
    kvt_client_leave(lease->client);
    return status;
}

static void put_wait(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_wait_req(w, context);
}

/* A WAIT that the caller has cancelled: the daemon need not keep a place for it. If there is no
 * memory to remember it by, the place is free when the daemon's own bound has passed. */
static void stop_waiting(kvt_lease *lease, uint64_t number) {
    kvt_lease *entry = kvt_memory_get(sizeof *entry);
    if (!entry)
        return;
    entry->epoch = lease->epoch;
    kvt_client_undo(lease->client, entry, number);
}

static kvt_status wait_once(kvt_lease *lease, uint32_t held_tokens, uint32_t wait_ms,
                            uint64_t deadline_ms) {
    kvt_wait_req req = {.lease = lease->id,
                        .held_tokens = held_tokens,
                        .wait_ms = wait_ms,
                        .first_page = settled_pages(lease)};
    kvt_request request = {.op = KVT_OP_WAIT,
                           .epoch = lease->epoch,
                           .wait_ms = wait_ms,
                           .body_bytes = 20,
                           .put = put_wait,
                           .context = &req};
    kvt_reply reply;
    kvt_status status = kvt_client_call(lease->client, &request, deadline_ms, &reply);
    lease->behind |= reply.unanswered;
    if (status == KVT_OK)
        status = take_reply(lease, &reply, lease->n_tokens, req.first_page);
    else
        status = kvt_lease_failed(lease, status);
    if (status == KVT_ECANCELED && reply.unanswered)
        stop_waiting(lease, reply.number);
    kvt_reply_free(&reply);
    return status;
}

kvt_status kvt_lease_refresh(kvt_lease *lease, uint64_t deadline_ms) {
    kvt_device_wait(lease); /* it may name other pages afterwards */
    return wait_once(lease, 0, 0, deadline_ms);
}

kvt_status kvt_lease_catch_up(kvt_lease *lease) {
    const kvt_geometry *g = &lease->client->geometry;
    for (uint32_t group = 0; group < g->n_groups && lease->behind; group++)
        if (g->groups[group].window)
            return kvt_lease_refresh(lease, kvt_client_deadline(lease->client));
    return KVT_OK;
}

/* The daemon answers early at its own max_wait_ms: then ask again. If it answers at once although
 * somebody computes (it is stopping), believe it. */
static kvt_status wait_for(kvt_lease *lease, uint32_t held_tokens, uint32_t wait_ms) {
    uint64_t end_ms = kvt_now_ms() + wait_ms;
    for (;;) {
        uint64_t before_ms = kvt_now_ms();
        uint32_t left_ms = before_ms < end_ms ? (uint32_t)(end_ms - before_ms) : 0;
        uint64_t deadline_ms = end_ms - left_ms + lease->client->timeout_ms;
        kvt_status status = wait_once(lease, held_tokens, left_ms, deadline_ms);
        uint64_t now_ms = kvt_now_ms();
        if (status != KVT_OK || lease->held_tokens > held_tokens || !lease->computing_tokens ||
            now_ms >= end_ms || now_ms - before_ms < WAIT_AGAIN_MS)
            return status;
    }
}

kvt_status kvt_wait(kvt_lease *lease, size_t held_tokens, uint32_t wait_ms) {
    kvt_status status = kvt_lease_enter_to_wait(lease);
    if (status != KVT_OK)
        return status;
    if (lease->is_view) { /* it names what it names: nothing can come */
        kvt_client_leave(lease->client);
        return KVT_OK;
    }
    kvt_device_wait(lease);
    /* More than that cannot be held: it is a wait for nobody to be computing. */
    uint32_t held = held_tokens < KVT_MAX_REQUEST_TOKENS ? (uint32_t)held_tokens
                                                         : (uint32_t)KVT_MAX_REQUEST_TOKENS;
    status = wait_for(lease, held, wait_ms);
    kvt_client_leave(lease->client);
    return status;
}

kvt_status kvt_lease_get(const kvt_lease *lease, kvt_lease_info *ret_info) {
    if (!lease || !ret_info)
        return kvt_error(KVT_EINVAL, "kvt_lease_get needs a lease and ret_info");
    if (lease->pending && lease->pending != kvt_pending_mine())
        return kvt_error(KVT_EBUSY, "a call on the lease was begun: kvt_finish it first");
    *ret_info = (kvt_lease_info){.n_tokens = lease->n_tokens,
                                 .held_tokens = lease->held_tokens,
                                 .computing_tokens = lease->computing_tokens,
                                 .claimed_tokens = lease->claimed_tokens,
                                 .page_tokens = page_tokens_of(lease),
                                 .n_pages = lease->n_pages,
                                 .foreign_pages = lease->foreign_pages,
                                 .n_rows = lease->is_view ? lease->n_rows : lease->held_tokens,
                                 .host_pages = lease->tier_pages[KVT_TIER_HOST],
                                 .disk_pages = lease->tier_pages[KVT_TIER_DISK]};
    for (uint32_t group = 0; group < lease->client->geometry.n_groups; group++)
        ret_info->first_token[group] = lease->first_page[group] * page_tokens_of(lease);
    return KVT_OK;
}

/* --- release ------------------------------------------------------------------------------------
 */

static void put_release(kvt_writer *w, const kvt_session *s, const void *context) {
    const kvt_lease *lease = context;
    (void)s;
    kvt_wire_put_u32(w, 1);
    kvt_wire_put_u64(w, lease->id);
}

static kvt_status call_release(kvt_lease *lease) {
    kvt_client *c = lease->client;
    kvt_request request = {.op = KVT_OP_RELEASE,
                           .epoch = lease->epoch,
                           .body_bytes = 12,
                           .put = put_release,
                           .context = lease};
    kvt_reply reply;
    kvt_release_rep rep;
    kvt_status status = kvt_client_call(c, &request, kvt_client_deadline(c), &reply);
    if (status != KVT_OK)
        return status;
    if (kvt_wire_get_release_rep(reply.body, reply.n_body, &rep) != KVT_OK || rep.n_leases != 1)
        status = kvt_client_nonsense(c, "its answer to RELEASE");
    else if (kvt_wire_get_u32(rep.statuses, 0) != KVT_OK)
        status = kvt_error_plain(KVT_ESTALE);
    kvt_reply_free(&reply);
    return status;
}

/* Of a child of the process that it belongs to: no lock may be touched. */
static kvt_status release_forked(kvt_lease *lease) {
    kvt_device_strip(lease, 1);
    free(lease->pages);
    free(lease->encoded);
    free(lease->spans);
    free(lease->runs);
    free(lease);
    return kvt_error_plain(KVT_EFORK);
}

kvt_status kvt_release(kvt_lease *lease) {
    if (!lease)
        return KVT_OK;
    kvt_client *c = lease->client;
    if (kvt_client_forked(c))
        return release_forked(lease);
    if (lease->pending && lease->pending != kvt_pending_mine())
        return kvt_error(KVT_EBUSY, "a call on the lease was begun: kvt_finish it first");
    kvt_status status = kvt_client_enter(c);
    if (status != KVT_OK) {
        lease_free(lease, 1);
        return status;
    }
    /* The client must outlast its leaving of it, whoever else lets go meanwhile. */
    kvt_client_ref(c);
    kvt_device_wait(lease);
    int lost = lease->lost;
    char device_why[KVT_DEVICE_WHY_BYTES];
    kvt_status device_status = lease->device_status;
    memcpy(device_why, lease->device_why, sizeof device_why);
    status = call_release(lease);
    if (status == KVT_OK || status == KVT_ESTALE)
        lease_free(lease, 0);
    else
        lease_undo(lease, 0);
    kvt_client_leave(c);
    kvt_client_unref(c);
    if (status == KVT_OK && lost)
        status = kvt_error_plain(KVT_ESTALE);
    /* What the GPU found only counts if the lease held: otherwise it is no wonder. */
    return status == KVT_OK && device_status != KVT_OK ? kvt_error(device_status, "%s", device_why)
                                                       : status;
}
