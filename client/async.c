/*
 * async.c - calls that do not block: a call that was begun is the blocking call, run by a thread of
 * the library. So there is one set of rules, and one piece of code that keeps them.
 *
 * There are as many threads as calls that were under way at once, started when they are needed and
 * kept until the client is closed: no call waits behind another that is waiting for something. An
 * inference worker has few calls under way; an idle thread costs a stack that nobody has touched.
 *
 *     begin -> begun -(a thread takes it, runs it)-> ended -(next, or finish)-> finish -> freed
 */
#include "client/client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STACK_BYTES = 256 * 1024 };

typedef enum pending_call {
    CALL_ACQUIRE,
    CALL_VIEW,
    CALL_EXTEND,
    CALL_FORK,
    CALL_WAIT,
    CALL_SEAL,
    CALL_RELEASE,
} pending_call;

typedef enum pending_state {
    PENDING_BEGUN, /* up to its end */
    PENDING_ENDED, /* in the list of those */
    PENDING_NAMED, /* and not in it any more */
} pending_state;

struct kvt_pending {
    kvt_client *client;
    kvt_pending *next;
    pending_state state; /* under the client's lock */
    kvt_cancel_flag cancel;
    /* what is to be called; set at the beginning */
    pending_call call;
    kvt_lease *lease;
    uint32_t *tokens;
    size_t n_tokens;
    size_t from_tokens; /* keep_tokens of extend, held_tokens of wait */
    uint32_t flags;
    uint32_t wait_ms;
    kvt_span *spans; /* of a view */
    size_t n_spans;
    kvt_view view;
    /* what came of it; written before it has ended, read after */
    kvt_status status;
    kvt_outcome outcome;
    char error[256];
};

/* --- who runs what ------------------------------------------------------------------------------
 */

static _Thread_local kvt_pending *mine;

const kvt_pending *kvt_pending_mine(void) {
    return mine;
}

const kvt_cancel_flag *kvt_cancel_mine(void) {
    return mine ? &mine->cancel : NULL;
}

int kvt_canceled(void) {
    return mine && atomic_load(&mine->cancel.set);
}

static kvt_status call_now(kvt_pending *p) {
    switch (p->call) {
    case CALL_ACQUIRE:
        return kvt_acquire(p->client, p->tokens, p->n_tokens, p->flags, &p->outcome.lease);
    case CALL_VIEW:
        return kvt_acquire_view(p->client, p->tokens, p->n_tokens, p->spans, p->n_spans, &p->view,
                                p->flags, &p->outcome.lease);
    case CALL_EXTEND:
        return kvt_extend(p->lease, p->from_tokens, p->tokens, p->n_tokens, p->flags);
    case CALL_FORK:
        return kvt_fork(p->lease, p->n_tokens, &p->outcome.lease);
    case CALL_WAIT:
        return kvt_wait(p->lease, p->from_tokens, p->wait_ms);
    case CALL_SEAL:
        return kvt_seal(p->lease, &p->outcome.sealed_tokens);
    case CALL_RELEASE:
        break;
    }
    return kvt_release(p->lease);
}

/* Readable as long as the list of what has ended is not empty. With the lock held. */
static void show_ended(kvt_crew *crew) {
    uint64_t one = 1;
    if (crew->fd < 0)
        return;
    ssize_t n = crew->ended ? write(crew->fd, &one, sizeof one) : read(crew->fd, &one, sizeof one);
    (void)n; /* EAGAIN: it shows that already */
}

/* With the lock held. */
static void ended_append(kvt_crew *crew, kvt_pending *p) {
    p->state = PENDING_ENDED;
    p->next = NULL;
    *crew->last_ended = p;
    crew->last_ended = &p->next;
    if (crew->ended == p)
        show_ended(crew);
    pthread_cond_broadcast(&crew->done);
}

/* With the lock held. */
static void ended_remove(kvt_crew *crew, kvt_pending *p) {
    kvt_pending **at = &crew->ended;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (!*at)
        crew->last_ended = at;
    p->state = PENDING_NAMED;
    if (!crew->ended)
        show_ended(crew);
}

static void run(kvt_client *c, kvt_pending *p) {
    mine = p;
    p->status = call_now(p);
    mine = NULL;
    snprintf(p->error, sizeof p->error, "%s", p->status == KVT_OK ? "" : kvt_last_error());
    int canceled = atomic_load(&p->cancel.set);
    pthread_mutex_lock(&c->lock);
    ended_append(&c->crew, p); /* from here on it may be gone */
    pthread_mutex_unlock(&c->lock);
    if (canceled)
        kvt_client_tidy(c);
    kvt_client_leave(c); /* it has been inside since it was begun */
}

static void *crew_thread(void *argument) {
    kvt_client *c = argument;
    kvt_crew *crew = &c->crew;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        crew->n_idle++;
        while (!crew->begun && !crew->stop)
            pthread_cond_wait(&crew->work, &c->lock);
        crew->n_idle--;
        kvt_pending *p = crew->begun;
        if (!p)
            break;
        crew->begun = p->next;
        crew->n_begun--;
        if (!crew->begun)
            crew->last_begun = &crew->begun;
        pthread_mutex_unlock(&c->lock);
        run(c, p);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* --- the crew -----------------------------------------------------------------------------------
 */

void kvt_crew_init(kvt_crew *crew) {
    crew->last_begun = &crew->begun;
    crew->last_ended = &crew->ended;
    crew->fd = -1;
    pthread_cond_init(&crew->work, NULL);
    pthread_cond_init(&crew->done, NULL);
}

void kvt_crew_stop(kvt_client *c) {
    pthread_mutex_lock(&c->lock);
    c->crew.stop = 1;
    pthread_cond_broadcast(&c->crew.work);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->crew.n_threads; i++)
        pthread_join(c->crew.threads[i], NULL);
    c->crew.n_threads = 0;
}

void kvt_crew_close(kvt_crew *crew) {
    if (crew->fd >= 0)
        close(crew->fd);
    pthread_cond_destroy(&crew->work);
    pthread_cond_destroy(&crew->done);
}

/* A thread for each call that is under way. The process's signals are not its business. With the
 * lock held, which the new thread waits for. */
static kvt_status hire(kvt_client *c) {
    kvt_crew *crew = &c->crew;
    pthread_attr_t attributes;
    sigset_t all, before;
    if (crew->n_begun < crew->n_idle)
        return KVT_OK;
    if (crew->n_threads == KVT_MAX_PENDING)
        return KVT_OK; /* one has just ended a call and is on its way back */
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&crew->threads[crew->n_threads], &attributes, crew_thread, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error)
        return kvt_error(KVT_ENOMEM, "no thread for the call: %s", strerror(error));
    crew->n_threads++;
    return KVT_OK;
}

/* --- begin --------------------------------------------------------------------------------------
 */

static void pending_free(kvt_pending *p) {
    if (p) {
        free(p->tokens);
        free(p->spans);
    }
    free(p);
}

static kvt_pending *pending_new(kvt_client *c, pending_call call, void *user,
                                const uint32_t *tokens, size_t n_tokens) {
    kvt_pending *p = kvt_memory_get(sizeof *p);
    if (!p)
        return NULL;
    p->client = c;
    p->call = call;
    p->outcome.user = user;
    p->n_tokens = n_tokens;
    if (!tokens || n_tokens == 0)
        return p;
    p->tokens = kvt_memory_get(n_tokens * sizeof *tokens);
    if (!p->tokens) {
        pending_free(p);
        return NULL;
    }
    memcpy(p->tokens, tokens, n_tokens * sizeof *tokens);
    return p;
}

static kvt_status enlist(kvt_client *c, kvt_pending *p) {
    kvt_crew *crew = &c->crew;
    pthread_mutex_lock(&c->lock);
    kvt_status status = KVT_OK;
    if (crew->n_pending == KVT_MAX_PENDING)
        status = kvt_error(KVT_ELIMIT, "%d calls are begun and not finished, the most possible",
                           KVT_MAX_PENDING);
    else
        status = hire(c);
    if (status == KVT_OK) {
        *crew->last_begun = p;
        crew->last_begun = &p->next;
        crew->n_begun++;
        crew->n_pending++;
        c->refs++;
        if (p->lease)
            p->lease->pending = p;
        pthread_cond_signal(&crew->work);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* Inside; stays inside, on behalf of the call, if it was begun. Consumes the call. p NULL: there
 * was no memory for it. */
static kvt_status begin(kvt_client *c, kvt_pending *p, kvt_pending **ret_pending) {
    kvt_status status = p ? enlist(c, p) : kvt_error_plain(KVT_ENOMEM);
    if (status == KVT_OK) {
        *ret_pending = p;
    } else {
        pending_free(p);
        kvt_client_leave(c);
    }
    return status;
}

static kvt_status no_outputs(const char *call) {
    return kvt_error(KVT_EINVAL, "%s needs ret_pending", call);
}

kvt_status kvt_acquire_begin(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                             uint32_t flags, void *user, kvt_pending **ret_pending) {
    if (!client || !ret_pending || client->reports_only)
        return kvt_error(KVT_EINVAL,
                         "kvt_acquire_begin needs a client of kvt_open and ret_pending");
    kvt_status status = kvt_tokens_check(0, tokens, n_tokens, flags);
    if (status == KVT_OK)
        status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    kvt_pending *p = pending_new(client, CALL_ACQUIRE, user, tokens, n_tokens);
    if (p)
        p->flags = flags;
    return begin(client, p, ret_pending);
}

kvt_status kvt_acquire_view_begin(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                                  const kvt_span *spans, size_t n_spans, const kvt_view *view,
                                  uint32_t flags, void *user, kvt_pending **ret_pending) {
    if (!client || !ret_pending || client->reports_only)
        return kvt_error(KVT_EINVAL,
                         "kvt_acquire_view_begin needs a client of kvt_open and ret_pending");
    kvt_status status = kvt_view_check(view, flags);
    if (status == KVT_OK)
        status = kvt_tokens_check(0, tokens, n_tokens, flags);
    if (status == KVT_OK)
        status = kvt_spans_check(spans, n_spans, 0, n_tokens);
    if (status == KVT_OK)
        status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    kvt_pending *p = pending_new(client, CALL_VIEW, user, tokens, n_tokens);
    if (p) {
        p->flags = flags;
        p->view = *view;
        p->n_spans = n_spans;
        p->spans = n_spans ? kvt_memory_get(n_spans * sizeof *spans) : NULL;
    }
    if (p && p->spans) {
        memcpy(p->spans, spans, n_spans * sizeof *spans);
    } else if (p && n_spans) {
        pending_free(p);
        p = NULL;
    }
    return begin(client, p, ret_pending);
}

/* Of all calls on a lease; what is particular to the call is in `as`. */
static kvt_status begin_on(kvt_lease *lease, const char *name, const kvt_pending *as,
                           const uint32_t *tokens, kvt_pending **ret_pending) {
    if (!ret_pending)
        return no_outputs(name);
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    kvt_client *c = lease->client;
    kvt_pending *p = pending_new(c, as->call, as->outcome.user, tokens, as->n_tokens);
    if (p) {
        p->lease = lease;
        p->from_tokens = as->from_tokens;
        p->flags = as->flags;
        p->wait_ms = as->wait_ms;
    }
    return begin(c, p, ret_pending);
}

kvt_status kvt_extend_begin(kvt_lease *lease, size_t keep_tokens, const uint32_t *tokens,
                            size_t n_tokens, uint32_t flags, void *user,
                            kvt_pending **ret_pending) {
    if (keep_tokens > KVT_MAX_REQUEST_TOKENS)
        return kvt_error(KVT_EINVAL, "keep_tokens is %zu; no lease has as many", keep_tokens);
    kvt_status status = kvt_tokens_check(keep_tokens, tokens, n_tokens, flags);
    if (status != KVT_OK)
        return status;
    kvt_pending as = {.call = CALL_EXTEND,
                      .from_tokens = keep_tokens,
                      .n_tokens = n_tokens,
                      .flags = flags,
                      .outcome.user = user};
    return begin_on(lease, "kvt_extend_begin", &as, tokens, ret_pending);
}

kvt_status kvt_fork_begin(kvt_lease *lease, size_t n_tokens, void *user,
                          kvt_pending **ret_pending) {
    kvt_pending as = {.call = CALL_FORK, .n_tokens = n_tokens, .outcome.user = user};
    return begin_on(lease, "kvt_fork_begin", &as, NULL, ret_pending);
}

kvt_status kvt_wait_begin(kvt_lease *lease, size_t held_tokens, uint32_t wait_ms, void *user,
                          kvt_pending **ret_pending) {
    kvt_pending as = {
        .call = CALL_WAIT, .from_tokens = held_tokens, .wait_ms = wait_ms, .outcome.user = user};
    return begin_on(lease, "kvt_wait_begin", &as, NULL, ret_pending);
}

kvt_status kvt_seal_begin(kvt_lease *lease, void *user, kvt_pending **ret_pending) {
    kvt_pending as = {.call = CALL_SEAL, .outcome.user = user};
    return begin_on(lease, "kvt_seal_begin", &as, NULL, ret_pending);
}

/* A lost lease can be released too, so this does not go through begin_on. */
kvt_status kvt_release_begin(kvt_lease *lease, void *user, kvt_pending **ret_pending) {
    if (!lease || !ret_pending)
        return kvt_error(KVT_EINVAL, "kvt_release_begin needs a lease and ret_pending");
    kvt_client *c = lease->client;
    kvt_status status = kvt_client_enter(c);
    if (status != KVT_OK)
        return status;
    if (lease->pending) {
        kvt_client_leave(c);
        return kvt_error(KVT_EBUSY, "another call on the lease was begun: kvt_finish it first");
    }
    kvt_pending *p = pending_new(c, CALL_RELEASE, user, NULL, 0);
    if (p)
        p->lease = lease;
    return begin(c, p, ret_pending);
}

/* --- poll ---------------------------------------------------------------------------------------
 */

kvt_status kvt_pending_fd(kvt_client *client, int *ret_fd) {
    if (!client || !ret_fd)
        return kvt_error(KVT_EINVAL, "kvt_pending_fd needs a client and ret_fd");
    kvt_status status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    kvt_crew *crew = &client->crew;
    pthread_mutex_lock(&client->lock);
    if (crew->fd < 0) {
        crew->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (crew->fd < 0)
            status = kvt_error(KVT_EIO, "no descriptor to poll: %s", strerror(errno));
        else if (crew->ended)
            show_ended(crew);
    }
    if (status == KVT_OK)
        *ret_fd = crew->fd;
    pthread_mutex_unlock(&client->lock);
    kvt_client_leave(client);
    return status;
}

kvt_status kvt_pending_next(kvt_client *client, kvt_pending **ret_pending) {
    if (!client || !ret_pending)
        return kvt_error(KVT_EINVAL, "kvt_pending_next needs a client and ret_pending");
    kvt_status status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    pthread_mutex_lock(&client->lock);
    kvt_pending *p = client->crew.ended;
    if (p)
        ended_remove(&client->crew, p);
    pthread_mutex_unlock(&client->lock);
    kvt_client_leave(client);
    if (!p)
        return kvt_error(KVT_ENOENT, "no call that was begun has ended");
    *ret_pending = p;
    return KVT_OK;
}

/* --- finish -------------------------------------------------------------------------------------
 */

static int gives_lease(const kvt_pending *p) {
    return p->call == CALL_ACQUIRE || p->call == CALL_VIEW || p->call == CALL_FORK;
}

/* Until it has ended; it is in no list then. */
static void await(kvt_client *c, kvt_pending *p) {
    pthread_mutex_lock(&c->lock);
    while (p->state == PENDING_BEGUN)
        pthread_cond_wait(&c->crew.done, &c->lock);
    if (p->state == PENDING_ENDED)
        ended_remove(&c->crew, p);
    c->crew.n_pending--;
    if (p->lease && p->call != CALL_RELEASE)
        p->lease->pending = NULL;
    pthread_mutex_unlock(&c->lock);
}

kvt_status kvt_finish(kvt_pending *pending, kvt_outcome *ret_outcome) {
    kvt_pending *p = pending;
    if (!p || (!ret_outcome && gives_lease(p)))
        return kvt_error(KVT_EINVAL, "kvt_finish needs a call, and ret_outcome if it may give a "
                                     "lease");
    kvt_client *c = p->client;
    kvt_status status;
    if (kvt_client_forked(c)) {
        /* No lock may be touched: whoever held it may not be there. */
        if (ret_outcome)
            *ret_outcome = (kvt_outcome){.user = p->outcome.user};
        pending_free(p);
        return kvt_error_plain(KVT_EFORK);
    }
    await(c, p);
    if (ret_outcome)
        *ret_outcome = p->outcome;
    status = p->status == KVT_OK ? KVT_OK : kvt_error(p->status, "%s", p->error);
    pending_free(p);
    kvt_client_unref(c);
    return status;
}

void kvt_cancel(kvt_pending *pending) {
    if (!pending || kvt_client_forked(pending->client))
        return;
    kvt_client *c = pending->client;
    kvt_status status = kvt_client_enter(c);
    if (status != KVT_OK)
        return; /* closing ends it */
    kvt_transport_cancel(c->transport, &pending->cancel);
    pthread_mutex_lock(&c->lock);
    pthread_cond_broadcast(&c->changed); /* it may wait for the session to come up, or pause */
    pthread_mutex_unlock(&c->lock);
    kvt_client_leave(c);
}
