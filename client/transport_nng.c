/*
 * transport_nng.c - the transport over nng's REQ pattern (written for and tried with nng 1.5.2).
 *
 * What REQ does there, and what is made of it:
 * - The dialer connects again by itself. Resending is off: when a pipe breaks, a request that was
 *   sent ends with NNG_ECONNRESET, and one that waits for a pipe stays in the queue of the socket,
 *   which is first in, first out across contexts.
 * - With no pipe a send blocks until its time-out, also when there is nobody at the socket. Asking
 *   the kernel first (somebody_listens) turns that into an answer at once.
 * - nng_dial without NNG_FLAG_NONBLOCK takes 10 s against a stopped daemon: so it is not used.
 * - A receive that is cancelled or timed out forgets the request; a late reply is dropped.
 */
#include "client/transport.h"
#include "client/assert.h"
#include "client/error.h"
#include "client/wire.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
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
    NUMBER_AT = 16,     /* in the header of a message */
};

/* One call at a time uses it. */
typedef struct slot {
    struct slot *next_free;
    struct slot *next; /* of all */
    nng_ctx ctx;
    nng_aio *aio;
    int busy; /* an operation of aio may be under way */
} slot;

struct kvt_transport {
    struct sockaddr_un address;
    nng_socket socket;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t connected;
    slot *slots;
    slot *free_slots;
    uint64_t number; /* of the newest request */
    uint32_t n_pipes;
    nng_pipe pipe; /* the newest */
    int stopped;
};

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
static nng_duration left_ms(uint64_t deadline_ms) {
    uint64_t now_ms = kvt_now_ms();
    uint64_t left = deadline_ms > now_ms ? deadline_ms - now_ms : 1;
    return left < INT32_MAX ? (nng_duration)left : INT32_MAX;
}

/* --- the connection -----------------------------------------------------------------------------
 */

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

static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    kvt_transport *t = argument;
    pthread_mutex_lock(&t->lock);
    if (event == NNG_PIPE_EV_ADD_POST) {
        t->n_pipes++;
        t->pipe = pipe;
        pthread_cond_broadcast(&t->connected);
    } else {
        t->n_pipes--;
    }
    pthread_mutex_unlock(&t->lock);
}

static kvt_status no_connection(const kvt_transport *t, int error) {
    return kvt_error(error == EACCES ? KVT_EDENIED : KVT_ECONN,
                     "no daemon at %s: %s. Is kvtrunkd running, and is this its socket?",
                     t->address.sun_path, strerror(error));
}

/* Waits, with the lock held, until there is a connection. */
static kvt_status wait_connected(kvt_transport *t, uint64_t deadline_ms) {
    while (!t->stopped && t->n_pipes == 0) {
        int error = nobody_listens(t);
        if (error)
            return no_connection(t, error);
        uint64_t now_ms = kvt_now_ms();
        if (now_ms >= deadline_ms)
            return kvt_error(KVT_ECONN, "the daemon at %s does not take connections in time",
                             t->address.sun_path);
        uint64_t until_ms =
            deadline_ms - now_ms < LOOK_AGAIN_MS ? deadline_ms : now_ms + LOOK_AGAIN_MS;
        struct timespec until = {.tv_sec = (time_t)(until_ms / 1000),
                                 .tv_nsec = (long)(until_ms % 1000 * 1000000)};
        pthread_cond_timedwait(&t->connected, &t->lock, &until);
    }
    return t->stopped ? kvt_error_plain(KVT_ECLOSED) : KVT_OK;
}

int kvt_transport_connected(kvt_transport *t) {
    pthread_mutex_lock(&t->lock);
    int connected = t->n_pipes > 0;
    pthread_mutex_unlock(&t->lock);
    return connected;
}

void kvt_transport_reset(kvt_transport *t) {
    pthread_mutex_lock(&t->lock);
    nng_pipe pipe = t->pipe;
    int there = t->n_pipes > 0;
    pthread_mutex_unlock(&t->lock);
    if (there)
        nng_pipe_close(pipe);
}

/* --- opening and closing ------------------------------------------------------------------------
 */

static int dial(kvt_transport *t) {
    char url[sizeof t->address.sun_path + 8] = "ipc://";
    strcat(url, t->address.sun_path);
    nng_dialer dialer;
    int error = nng_socket_set_ms(t->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (!error)
        error = nng_socket_set_size(t->socket, NNG_OPT_RECVMAXSZ, KVT_WIRE_MAX_BYTES);
    if (!error)
        error = nng_pipe_notify(t->socket, NNG_PIPE_EV_ADD_POST, on_pipe, t);
    if (!error)
        error = nng_pipe_notify(t->socket, NNG_PIPE_EV_REM_POST, on_pipe, t);
    if (!error)
        error = nng_dialer_create(&dialer, t->socket, url);
    if (!error)
        error = nng_dialer_set_ms(dialer, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS);
    if (!error)
        error = nng_dialer_set_ms(dialer, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS);
    if (!error)
        error = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    return error;
}

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
    int error = nng_req0_open(&t->socket);
    if (error) {
        free(t);
        return kvt_error(KVT_ENOMEM, "nng cannot open a socket: %s", nng_strerror(error));
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->connected, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&t->lock, NULL);
    error = dial(t);
    if (error) {
        kvt_transport_close(t);
        return kvt_error(error == NNG_ENOMEM ? KVT_ENOMEM : KVT_EINVAL, "cannot dial %s: %s", path,
                         nng_strerror(error));
    }
    *ret_transport = t;
    return KVT_OK;
}

void kvt_transport_close(kvt_transport *t) {
    if (!t)
        return;
    while (t->slots) {
        slot *s = t->slots;
        t->slots = s->next;
        KVT_ASSERT(!s->busy);
        nng_ctx_close(s->ctx);
        nng_aio_free(s->aio);
        free(s);
    }
    nng_close(t->socket);
    pthread_cond_destroy(&t->connected);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void kvt_transport_stop(kvt_transport *t, int stop) {
    pthread_mutex_lock(&t->lock);
    t->stopped = stop;
    /* Operations are begun under the lock and after a look at `stopped`, so none is missed. */
    for (slot *s = stop ? t->slots : NULL; s; s = s->next)
        if (s->busy)
            nng_aio_cancel(s->aio);
    pthread_cond_broadcast(&t->connected);
    pthread_mutex_unlock(&t->lock);
}

/* --- calls --------------------------------------------------------------------------------------
 */

/* A slot of its own for this call, with the lock held. */
static slot *slot_take(kvt_transport *t) {
    slot *s = t->free_slots;
    if (s) {
        t->free_slots = s->next_free;
        return s;
    }
    s = kvt_memory_get(sizeof *s);
    if (!s)
        return NULL;
    if (nng_ctx_open(&s->ctx, t->socket) != 0) {
        free(s);
        return NULL;
    }
    if (nng_aio_alloc(&s->aio, NULL, NULL) != 0) {
        nng_ctx_close(s->ctx);
        free(s);
        return NULL;
    }
    s->next = t->slots;
    t->slots = s;
    return s;
}

static void slot_give(kvt_transport *t, slot *s) {
    pthread_mutex_lock(&t->lock);
    s->busy = 0;
    s->next_free = t->free_slots;
    t->free_slots = s;
    pthread_mutex_unlock(&t->lock);
}

static kvt_status failed(const kvt_transport *t, int error) {
    switch (error) {
    case NNG_ETIMEDOUT:
        return kvt_error(KVT_ETIMEDOUT, "the daemon at %s did not answer in time",
                         t->address.sun_path);
    case NNG_ECANCELED: /* nobody but kvt_transport_stop cancels */
    case NNG_ECLOSED:
        return kvt_error_plain(KVT_ECLOSED);
    case NNG_ENOMEM:
        return kvt_error_plain(KVT_ENOMEM);
    default:
        return kvt_error(KVT_ECONN, "the connection to the daemon at %s broke: %s",
                         t->address.sun_path, nng_strerror(error));
    }
}

/* Waits for what was begun. The error stays in the aio. */
static int finish(slot *s) {
    nng_aio_wait(s->aio);
    return nng_aio_result(s->aio);
}

/* Hands the message to nng, in the order of the numbers: the queue behind nng_ctx_send is first in,
 * first out, and the lock covers the number and the entry. */
static kvt_status begin_send(kvt_transport *t, nng_msg *msg, uint64_t deadline_ms, slot **ret_slot,
                             uint64_t *ret_number) {
    pthread_mutex_lock(&t->lock);
    kvt_status status = wait_connected(t, deadline_ms);
    slot *s = status == KVT_OK ? slot_take(t) : NULL;
    if (status == KVT_OK && !s)
        status = kvt_error_plain(KVT_ENOMEM);
    if (s) {
        *ret_number = ++t->number;
        memcpy((uint8_t *)nng_msg_body(msg) + NUMBER_AT, ret_number, sizeof *ret_number);
        nng_aio_set_msg(s->aio, msg);
        nng_aio_set_timeout(s->aio, left_ms(deadline_ms));
        s->busy = 1;
        nng_ctx_send(s->ctx, s->aio);
        *ret_slot = s;
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

static int begin_receive(kvt_transport *t, slot *s, uint64_t deadline_ms) {
    pthread_mutex_lock(&t->lock);
    int stopped = t->stopped;
    if (!stopped) {
        nng_aio_set_timeout(s->aio, left_ms(deadline_ms));
        nng_ctx_recv(s->ctx, s->aio);
    }
    pthread_mutex_unlock(&t->lock);
    return !stopped;
}

kvt_status kvt_transport_call(kvt_transport *t, kvt_message *request, uint64_t deadline_ms,
                              uint64_t *ret_number, kvt_message **ret_reply) {
    slot *s = NULL;
    uint64_t number = 0;
    *ret_number = 0;
    *ret_reply = NULL;
    kvt_status status = begin_send(t, msg_of(request), deadline_ms, &s, &number);
    if (status != KVT_OK) {
        kvt_message_free(request);
        return status;
    }
    int error = finish(s);
    if (error) {
        /* It never left the queue: the message is ours again. */
        nng_msg_free(nng_aio_get_msg(s->aio));
        slot_give(t, s);
        return failed(t, error);
    }
    *ret_number = number;
    error = begin_receive(t, s, deadline_ms) ? finish(s) : NNG_ECLOSED;
    if (!error)
        *ret_reply = (kvt_message *)(void *)nng_aio_get_msg(s->aio);
    slot_give(t, s);
    return error ? failed(t, error) : KVT_OK;
}
