/*
 * transport_nng.c - the transport over nng's REQ pattern. Written for nng 1.5.2, the version that
 * Debian has; what it does there was tried, and read where trying did not explain it:
 *
 * - Resending is off. When a pipe breaks, a request that was sent ends with NNG_ECONNRESET. One
 * that waits for a pipe stays in the queue of the socket, which is first in, first out. The dialer
 *   connects again by itself.
 * - With no pipe a send blocks until its time-out, also when there is nobody at the socket. So the
 *   kernel is asked first (nobody_listens), which gives an answer at once; and when the pipe goes,
 *   what is still in the queue is taken back and asked about again.
 * - nng_dial without NNG_FLAG_NONBLOCK takes 10 s against a stopped daemon: it is not used.
 * - A receive that is cancelled or timed out forgets the request; a late reply is dropped.
 * - A pipe that is closed between the head and the body of a message that comes in (by a send that
 *   fails, when many threads are in calls and the daemon dies) is never done closing: the one
 * thread of nng that clears pipes away waits for it for ever, no dialer of the process connects
 * again, and nng_close does not return. Four busy threads met it about once in 100 broken
 * connections.
 *
 * Because of the last one there may be several UPLINKS, each an nng socket with its dialer. The
 * newest is used. If its connection is lost and it makes no other though somebody listens, it is
 * abandoned and a new one made, which needs nothing of the old. So is one that never gets its
 * first: where the clearing hangs, a connection cut in its handshake is not tried again either.
 * nng_close runs in a thread of its own, which may hang there if it must.
 */
#include "client/transport.h"
#include "client/assert.h"
#include "client/error.h"
#include "client/wire.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    RECONNECT_MIN_MS = 10,
    RECONNECT_MAX_MS = 200,
    LOOK_AGAIN_MS = 50, /* while waiting for a connection: is there still somebody? */
    STUCK_MS = 1000,    /* a connection that is not made again for so long: abandon the uplink */
    SLOW_MS = 5000,     /* the first one; doubled for each uplink that never had any */
    CLOSE_MS = 1000,    /* kvt_transport_close does not wait longer for nng */
    NUMBER_AT = 16,     /* in the header of a message */
};

typedef struct uplink uplink;

typedef enum slot_state { SLOT_IDLE, SLOT_SENDING, SLOT_RECEIVING } slot_state;

/* One call at a time uses it. */
typedef struct slot {
    struct slot *next_free;
    struct slot *next; /* of all of the uplink */
    uplink *link;
    uint32_t n_pipes; /* that the uplink had had when the call began */
    nng_ctx ctx;
    nng_aio *aio;
    slot_state state;              /* what the aio may be doing */
    const kvt_cancel_flag *cancel; /* of the call; may be NULL */
    int expired;                   /* its time is over, whatever the clock says */
} slot;

/* All of it under the transport's lock. */
struct uplink {
    uplink *next; /* of the transport's */
    kvt_transport *transport;
    nng_socket socket;
    slot *slots;
    slot *free_slots;
    uint32_t n_calls; /* that use it */
    uint32_t n_pipes; /* that it has had */
    uint64_t lost_ms; /* when it lost the last of them, or was made */
    int connected;
    int closing;
};

struct kvt_transport {
    struct sockaddr_un address;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    uint32_t refs;   /* the client's, and one of each uplink that is not closed yet */
    uplink *links;   /* the newest first */
    uint64_t number; /* of the newest request */
    uint64_t n_expired;
    int stopped;
    void (*ended)(void *context); /* of a connection; NULL: nobody is told */
    void *context;
    uint32_t n_telling; /* threads that are in it */
    int overdue;        /* closed, and nng is still at it: counted in n_overdue */
};

/* Was an uplink abandoned in this process? Then nng's clearing of pipes may hang, and nobody is
 * told any more when a connection breaks. */
static atomic_int abandoned;

/* Transports whose closing was waited for in vain: it is the clearing that hangs, or the machine is
 * slow. As long as there is one, no other's is waited for. */
static atomic_int n_overdue;

static int nng_hangs(void) {
    return atomic_load(&abandoned) || atomic_load(&n_overdue) > 0;
}

/* --- messages: a kvt_message is an nng_msg under another name -----------------------------------
 */

static nng_msg *msg_of(kvt_message *message) {
    return (nng_msg *)(void *)message;
}

kvt_message *kvt_message_new(size_t n_bytes) {
    nng_msg *msg = NULL;
    return nng_msg_alloc(&msg, n_bytes) == 0 ? (kvt_message *)(void *)msg : NULL;
}

void *kvt_message_bytes(kvt_message *message, size_t *ret_n_bytes) {
    *ret_n_bytes = nng_msg_len(msg_of(message));
    return nng_msg_body(msg_of(message));
}

void kvt_message_cut(kvt_message *message, size_t n_bytes) {
    size_t n = nng_msg_len(msg_of(message));
    KVT_ASSERT(n_bytes <= n);
    nng_msg_chop(msg_of(message), n - n_bytes);
}

void kvt_message_free(kvt_message *message) {
    if (message)
        nng_msg_free(msg_of(message));
}

/* --- time ---------------------------------------------------------------------------------------
 */

uint64_t kvt_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* At least 1: to nng, 0 means that the operation must not wait at all. */
static nng_duration left_ms(uint64_t deadline_ms, uint32_t most_ms) {
    uint64_t now_ms = kvt_now_ms();
    uint64_t left = deadline_ms > now_ms ? deadline_ms - now_ms : 1;
    return (nng_duration)(left < most_ms ? left : most_ms);
}

/* With the lock held. */
static void wait_until(kvt_transport *t, uint64_t until_ms) {
    struct timespec until = {.tv_sec = (time_t)(until_ms / 1000),
                             .tv_nsec = (long)(until_ms % 1000 * 1000000)};
    pthread_cond_timedwait(&t->changed, &t->lock, &until);
}

/* --- the end of a link --------------------------------------------------------------------------
 */

static void transport_unref(kvt_transport *t) {
    pthread_mutex_lock(&t->lock);
    uint32_t refs = --t->refs;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (refs > 0)
        return;
    if (t->overdue)
        atomic_fetch_sub(&n_overdue, 1);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static void *link_close(void *argument) {
    uplink *l = argument;
    kvt_transport *t = l->transport;
    while (l->slots) {
        slot *s = l->slots;
        l->slots = s->next;
        KVT_ASSERT(s->state == SLOT_IDLE);
        nng_ctx_close(s->ctx);
        nng_aio_free(s->aio);
        free(s);
    }
    nng_close(l->socket);
    free(l);
    transport_unref(t);
    return NULL;
}

/* Nobody uses it any more. With the lock held. */
static void link_bury(uplink *l) {
    pthread_attr_t detached;
    pthread_t thread;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int error = pthread_create(&thread, &detached, link_close, l);
    pthread_attr_destroy(&detached);
    if (error) {
        /* No thread to be had: then here, at the risk of the hang that the thread is for. */
        kvt_transport *t = l->transport;
        pthread_mutex_unlock(&t->lock);
        link_close(l);
        pthread_mutex_lock(&t->lock);
    }
}

/* A call lets go of it. With the lock held. */
static void link_leave(uplink *l) {
    if (--l->n_calls == 0 && l->closing)
        link_bury(l);
}

/* Ends operations that are under way: all, or only those that wait for a connection. Operations are
 * begun under the lock, after a look at what led to this, so none is missed. With the lock held. */
static void link_cancel(uplink *l, int all) {
    for (slot *s = l->slots; s; s = s->next)
        if (s->state == SLOT_SENDING || (all && s->state == SLOT_RECEIVING))
            nng_aio_cancel(s->aio);
}

/* It is to be closed as soon as nobody uses it. With the lock held. */
static void link_retire(uplink *l) {
    uplink **at = &l->transport->links;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    l->closing = 1;
    l->connected = 0;
    link_cancel(l, 1);
    if (l->n_calls == 0)
        link_bury(l);
}

/* Its connection is gone. With the lock held. */
static void link_lost(uplink *l) {
    if (!l->connected)
        return;
    l->connected = 0;
    l->lost_ms = kvt_now_ms();
    link_cancel(l, 0);
}

/* --- its beginning ------------------------------------------------------------------------------
 */

static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    (void)pipe;
    uplink *l = argument;
    kvt_transport *t = l->transport;
    /* t's own may be gone when this is called: kvt_transport_close takes it away, and waits. */
    void (*ended)(void *context) = NULL;
    pthread_mutex_lock(&t->lock);
    if (l->closing) {
        /* nothing of it counts any more */
    } else if (event == NNG_PIPE_EV_REM_POST) {
        link_lost(l);
        ended = l == t->links ? t->ended : NULL;
        t->n_telling += ended != NULL;
    } else if (l == t->links) {
        l->n_pipes++;
        l->connected = 1;
        pthread_cond_broadcast(&t->changed);
    } else {
        link_retire(l); /* an abandoned one recovers: too late, but it can be closed now */
    }
    pthread_mutex_unlock(&t->lock);
    if (!ended)
        return;
    ended(t->context);
    pthread_mutex_lock(&t->lock);
    t->n_telling--;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static int link_dial(uplink *l) {
    char url[sizeof l->transport->address.sun_path + 8] = "ipc://";
    strcat(url, l->transport->address.sun_path);
    nng_dialer dialer;
    int error = nng_socket_set_ms(l->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (!error)
        error = nng_socket_set_size(l->socket, NNG_OPT_RECVMAXSZ, KVT_WIRE_MAX_BYTES);
    if (!error)
        error = nng_pipe_notify(l->socket, NNG_PIPE_EV_ADD_POST, on_pipe, l);
    if (!error)
        error = nng_pipe_notify(l->socket, NNG_PIPE_EV_REM_POST, on_pipe, l);
    if (!error)
        error = nng_dialer_create(&dialer, l->socket, url);
    if (!error)
        error = nng_dialer_set_ms(dialer, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS);
    if (!error)
        error = nng_dialer_set_ms(dialer, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS);
    if (!error)
        error = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    return error;
}

/* With the lock held; given up meanwhile, since nng calls on_pipe from within. */
static kvt_status link_new(kvt_transport *t) {
    uplink *l = kvt_memory_get(sizeof *l);
    if (!l)
        return kvt_error_plain(KVT_ENOMEM);
    int error = nng_req0_open(&l->socket);
    if (error) {
        free(l);
        return kvt_error(KVT_ENOMEM, "nng cannot open a socket: %s", nng_strerror(error));
    }
    l->transport = t;
    l->n_calls = 1; /* this one, until it is dialling */
    l->lost_ms = kvt_now_ms();
    l->next = t->links;
    t->links = l;
    t->refs++;
    pthread_mutex_unlock(&t->lock);
    error = link_dial(l);
    pthread_mutex_lock(&t->lock);
    if (error && !l->closing)
        link_retire(l);
    link_leave(l);
    return error ? kvt_error(error == NNG_ENOMEM ? KVT_ENOMEM : KVT_ECONN, "cannot dial %s: %s",
                             t->address.sun_path, nng_strerror(error))
                 : KVT_OK;
}

/*
 * Is a socket bound at the path? Connecting to a stream socket with a datagram socket fails in
 * every case, and the kernel says why: EPROTOTYPE means that somebody is there. Unlike a connection
 * made for the question and closed again, it reaches nobody: a listener of nng 1.5.2 does not
 * survive that. Returns an errno, 0 if there is somebody or nobody can tell.
 */
static int nobody_listens(const kvt_transport *t) {
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    int error = 0;
    if (connect(fd, (const struct sockaddr *)&t->address, sizeof t->address) != 0)
        error = errno;
    close(fd);
    return error == ENOENT || error == ENOTDIR || error == ECONNREFUSED || error == EACCES ? error
                                                                                           : 0;
}

static kvt_status no_connection(const kvt_transport *t, int error) {
    if (error == EACCES)
        return kvt_error(KVT_EDENIED,
                         "%s: permission denied. This user may not use the daemon there: be the "
                         "user whom it serves, or add this uid to its \"uids\"",
                         t->address.sun_path);
    return kvt_error(KVT_ECONN, "no daemon at %s: %s. Is kvtrunkd running, and is this its socket?",
                     t->address.sun_path, strerror(error));
}

/* How long the newest uplink may take. Where nng hangs, none is ever connected again. One that
 * never was may only have met a daemon that is slow or stopped, which should not find ever more of
 * them when it goes on. */
static uint64_t patience_ms(const uplink *newest) {
    int hangs = nng_hangs();
    if (newest->n_pipes > 0)
        return hangs ? RECONNECT_MAX_MS : STUCK_MS;
    uint64_t patience = hangs ? STUCK_MS : SLOW_MS;
    for (const uplink *l = newest->next; l; l = l->next)
        if (l->n_pipes == 0 && patience < 16 * SLOW_MS)
            patience *= 2;
    return patience;
}

/* Has it no connection, for so long that it will never make one? */
static int is_stuck(const uplink *newest) {
    return !newest->connected && kvt_now_ms() - newest->lost_ms >= patience_ms(newest);
}

static int is_canceled(const kvt_cancel_flag *cancel) {
    return cancel && atomic_load(&cancel->set);
}

/* Waits, with the lock held, until there is a connection; makes an uplink if there is none. */
static kvt_status wait_connected(kvt_transport *t, uint64_t deadline_ms,
                                 const kvt_cancel_flag *cancel) {
    kvt_status status = KVT_OK;
    uint64_t n_expired = t->n_expired;
    while (status == KVT_OK && !t->stopped && !is_canceled(cancel) &&
           !(t->links && t->links->connected)) {
        uint64_t now_ms = kvt_now_ms();
        int error = nobody_listens(t);
        if (error)
            return no_connection(t, error);
        if (now_ms >= deadline_ms || n_expired != t->n_expired)
            return kvt_error(KVT_ECONN, "the daemon at %s does not take connections in time",
                             t->address.sun_path);
        int stuck = t->links && is_stuck(t->links);
        if (stuck && t->links->n_pipes > 0)
            atomic_store(&abandoned, 1);
        if (!t->links || stuck)
            status = link_new(t);
        else
            wait_until(t,
                       deadline_ms - now_ms < LOOK_AGAIN_MS ? deadline_ms : now_ms + LOOK_AGAIN_MS);
    }
    if (t->stopped)
        return kvt_error_plain(KVT_ECLOSED);
    return is_canceled(cancel) ? kvt_error_plain(KVT_ECANCELED) : status;
}

/* --- opening and closing ------------------------------------------------------------------------
 */

kvt_status kvt_transport_open(const char *path, kvt_transport **ret_transport) {
    size_t n = strlen(path);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (n == 0 || n >= sizeof address.sun_path)
        return kvt_error(KVT_EINVAL, "the socket's path has %zu bytes; it must have 1 .. %zu", n,
                         sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, n);
    kvt_transport *t = kvt_memory_get(sizeof *t);
    if (!t)
        return kvt_error_plain(KVT_ENOMEM);
    t->address = address;
    t->refs = 1;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&t->lock, NULL);
    *ret_transport = t;
    return KVT_OK;
}

void kvt_transport_on_end(kvt_transport *t, void (*ended)(void *context), void *context) {
    t->ended = ended;
    t->context = context;
}

void kvt_transport_close(kvt_transport *t) {
    if (!t)
        return;
    uint64_t until_ms = kvt_now_ms() + (atomic_load(&n_overdue) > 0 ? 0 : CLOSE_MS);
    pthread_mutex_lock(&t->lock);
    t->stopped = 1;
    t->ended = NULL;
    while (t->links)
        link_retire(t->links);
    while (t->n_telling > 0)
        pthread_cond_wait(&t->changed, &t->lock);
    while (t->refs > 1 && kvt_now_ms() < until_ms)
        wait_until(t, until_ms);
    if (t->refs > 1) {
        t->overdue = 1;
        atomic_fetch_add(&n_overdue, 1);
    }
    pthread_mutex_unlock(&t->lock);
    transport_unref(t);
}

void kvt_transport_stop(kvt_transport *t, int stop) {
    pthread_mutex_lock(&t->lock);
    t->stopped = stop;
    for (uplink *l = stop ? t->links : NULL; l; l = l->next)
        link_cancel(l, 1);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

int kvt_transport_connected(kvt_transport *t) {
    pthread_mutex_lock(&t->lock);
    int connected = t->links && t->links->connected;
    pthread_mutex_unlock(&t->lock);
    return connected;
}

/*
 * With its socket, not the pipe alone: nng would make another pipe at once, whether or not anybody
 * wants one, and a socket of nng 1.5.2 that is closed meanwhile leaks that pipe and its descriptor.
 * Not on the way out: a connection that is made and closed at once is what a listener of nng 1.5.2
 * stumbles over.
 */
void kvt_transport_reset(kvt_transport *t) {
    pthread_mutex_lock(&t->lock);
    if (t->links && t->links->connected && !t->stopped)
        link_retire(t->links);
    pthread_mutex_unlock(&t->lock);
}

/* --- calls --------------------------------------------------------------------------------------
 */

/* A slot of its own for this call, with the lock held. */
static slot *slot_take(uplink *l) {
    slot *s = l->free_slots;
    if (s) {
        l->free_slots = s->next_free;
    } else {
        s = kvt_memory_get(sizeof *s);
        if (!s)
            return NULL;
        if (nng_ctx_open(&s->ctx, l->socket) != 0) {
            free(s);
            return NULL;
        }
        if (nng_aio_alloc(&s->aio, NULL, NULL) != 0) {
            nng_ctx_close(s->ctx);
            free(s);
            return NULL;
        }
        s->link = l;
        s->next = l->slots;
        l->slots = s;
    }
    l->n_calls++;
    s->n_pipes = l->n_pipes;
    return s;
}

/* lost: what was learned says that the connection which the call began with is gone. Returns
 * whether the call had expired. */
static int slot_give(kvt_transport *t, slot *s, int lost) {
    uplink *l = s->link;
    pthread_mutex_lock(&t->lock);
    int expired = s->expired;
    s->state = SLOT_IDLE;
    s->cancel = NULL;
    s->expired = 0;
    s->next_free = l->free_slots;
    l->free_slots = s;
    if (lost && !l->closing && l->n_pipes == s->n_pipes)
        link_lost(l);
    link_leave(l);
    pthread_mutex_unlock(&t->lock);
    return expired;
}

/* Waits for what was begun. */
static int finish(slot *s) {
    nng_aio_wait(s->aio);
    return nng_aio_result(s->aio);
}

/* How long a send may wait for a pipe to take it: as long as the call, since a daemon that is busy
 * takes it when it goes on. Unless nobody would tell that the pipe is gone. */
static nng_duration send_ms(uint64_t deadline_ms) {
    return left_ms(deadline_ms, nng_hangs() ? STUCK_MS : INT32_MAX);
}

/* Hands the message to nng, in the order of the numbers: the queue behind nng_ctx_send is first in,
 * first out, and the lock covers the number and the entry. */
static kvt_status begin_send(kvt_transport *t, nng_msg *msg, uint64_t deadline_ms,
                             const kvt_cancel_flag *cancel, slot **ret_slot, uint64_t *ret_number) {
    pthread_mutex_lock(&t->lock);
    kvt_status status = wait_connected(t, deadline_ms, cancel);
    slot *s = status == KVT_OK ? slot_take(t->links) : NULL;
    if (status == KVT_OK && !s)
        status = kvt_error_plain(KVT_ENOMEM);
    if (s) {
        *ret_number = ++t->number;
        memcpy((uint8_t *)nng_msg_body(msg) + NUMBER_AT, ret_number, sizeof *ret_number);
        s->cancel = cancel;
        nng_aio_set_msg(s->aio, msg);
        nng_aio_set_timeout(s->aio, send_ms(deadline_ms));
        s->state = SLOT_SENDING;
        nng_ctx_send(s->ctx, s->aio);
        *ret_slot = s;
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

static kvt_status timed_out(const kvt_transport *t) {
    return kvt_error(KVT_ETIMEDOUT, "the daemon at %s did not answer in time", t->address.sun_path);
}

/* Until the request is on its way, or cannot be. The message is consumed. */
static kvt_status send_request(kvt_transport *t, nng_msg *msg, uint64_t deadline_ms,
                               const kvt_cancel_flag *cancel, slot **ret_slot,
                               uint64_t *ret_number) {
    for (;;) {
        slot *s = NULL;
        kvt_status status = begin_send(t, msg, deadline_ms, cancel, &s, ret_number);
        if (status != KVT_OK) {
            nng_msg_free(msg);
            return status;
        }
        int error = finish(s);
        if (!error) {
            *ret_slot = s;
            return KVT_OK;
        }
        /* It never left the queue: the message is ours again, and may go by another pipe. */
        int late = kvt_now_ms() >= deadline_ms;
        msg = nng_aio_get_msg(s->aio);
        late |= slot_give(t, s, error != NNG_ECANCELED && !(error == NNG_ETIMEDOUT && late));
        if (late || error == NNG_ENOMEM) {
            nng_msg_free(msg);
            return late ? timed_out(t) : kvt_error_plain(KVT_ENOMEM);
        }
    }
}

static int begin_receive(kvt_transport *t, slot *s, uint64_t deadline_ms) {
    pthread_mutex_lock(&t->lock);
    int there = !t->stopped && !s->link->closing && !s->expired && !is_canceled(s->cancel);
    if (there) {
        s->state = SLOT_RECEIVING;
        nng_aio_set_timeout(s->aio, left_ms(deadline_ms, INT32_MAX));
        nng_ctx_recv(s->ctx, s->aio);
    }
    pthread_mutex_unlock(&t->lock);
    return there;
}

/* What ended the wait for a reply. */
static kvt_status not_received(kvt_transport *t, int error, int expired,
                               const kvt_cancel_flag *cancel) {
    pthread_mutex_lock(&t->lock);
    int stopped = t->stopped;
    pthread_mutex_unlock(&t->lock);
    if (stopped)
        return kvt_error_plain(KVT_ECLOSED);
    if (error == NNG_ETIMEDOUT || (error == NNG_ECANCELED && expired))
        return timed_out(t);
    if (error == NNG_ECANCELED && is_canceled(cancel))
        return kvt_error_plain(KVT_ECANCELED);
    return kvt_error(KVT_ECONN, "the connection to the daemon at %s broke during the call",
                     t->address.sun_path);
}

void kvt_transport_expire(kvt_transport *t) {
    pthread_mutex_lock(&t->lock);
    t->n_expired++;
    for (uplink *l = t->links; l; l = l->next) {
        for (slot *s = l->slots; s; s = s->next)
            s->expired = s->state != SLOT_IDLE;
        link_cancel(l, 1);
    }
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void kvt_transport_cancel(kvt_transport *t, kvt_cancel_flag *cancel) {
    pthread_mutex_lock(&t->lock);
    atomic_store(&cancel->set, 1);
    for (uplink *l = t->links; l; l = l->next)
        for (slot *s = l->slots; s; s = s->next)
            if (s->cancel == cancel && s->state != SLOT_IDLE)
                nng_aio_cancel(s->aio);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

kvt_status kvt_transport_call(kvt_transport *t, kvt_message *request, uint64_t deadline_ms,
                              const kvt_cancel_flag *cancel, uint64_t *ret_number,
                              kvt_message **ret_reply) {
    slot *s = NULL;
    uint64_t number = 0;
    *ret_number = 0;
    *ret_reply = NULL;
    kvt_status status = send_request(t, msg_of(request), deadline_ms, cancel, &s, &number);
    if (status != KVT_OK)
        return status;
    *ret_number = number;
    int error = begin_receive(t, s, deadline_ms) ? finish(s) : NNG_ECANCELED;
    if (!error)
        *ret_reply = (kvt_message *)(void *)nng_aio_get_msg(s->aio);
    int expired = slot_give(t, s, error && error != NNG_ETIMEDOUT && error != NNG_ECANCELED);
    return error ? not_received(t, error, expired, cancel) : KVT_OK;
}
