/* server_nng.c - see server_nng.h. */
#include "daemon/server_nng.h"
#include "client/assert.h"
#include "daemon/log.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MAX_LISTENERS = 64, /* alive at the same time; old ones that still have pipes included */
    MAX_SENDING = 64,   /* replies that a peer may have and not read */
    SPARE_HELD = 1024,  /* contexts beyond what may be held, for replies that are being sent */
};

typedef enum context_state {
    CONTEXT_FREE = 0,
    CONTEXT_RECEIVING,
    CONTEXT_HELD,    /* its request is in the inbox or with the core */
    CONTEXT_SENDING, /* its reply is with nng */
} context_state;

typedef struct context {
    server *server;
    nng_ctx ctx;
    nng_aio *send;
    context_state state;
    uint32_t pipe;  /* that its request came from */
    uint32_t place; /* in the table of pipes, while the pipe is there */
    uint32_t use;   /* of this context: a late answer to an earlier one is for nobody */
    uint64_t since; /* order in which requests came */
    struct context *next_free;
} context;

typedef struct listener_slot {
    nng_listener listener; /* id 0: free */
    uint32_t n_pipes;
} listener_slot;

typedef struct pipe_slot {
    uint32_t pipe; /* 0: free */
    int is_own;
    int is_cut;          /* for not reading its replies */
    uint32_t n_contexts; /* HELD or SENDING for it */
    uint32_t n_sending;
} pipe_slot;

struct server {
    server_options options;
    nng_socket socket;
    nng_aio *receive;
    pthread_mutex_t lock; /* of all that follows */
    context *contexts;    /* max_contexts, of which n_contexts are open */
    context *free_contexts;
    context *receiving; /* NULL: none */
    uint32_t n_contexts, max_contexts;
    int paused;   /* by the inbox */
    int starving; /* no context was free */
    int has_stolen;
    uint64_t clock;
    int closing;
    listener_slot listeners[MAX_LISTENERS];
    uint32_t n_listeners_made;
    uint32_t newest; /* slot of the one that stands at the path */
    uint32_t n_others;
    uint32_t n_places;
    pipe_slot pipes[]; /* let into the inbox; looked through only when one comes or goes */
};

static void receive_next(server *s);

/* --- pipes; nng's threads ----------------------------------------------------------------------
 */

static int peer_of(nng_pipe pipe, core_peer *ret_peer) {
    uint64_t uid, gid, pid;
    if (nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_UID, &uid) != 0 ||
        nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_GID, &gid) != 0)
        return 0;
    if (nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_PID, &pid) != 0)
        pid = 0;
    *ret_peer = (core_peer){(uint32_t)uid, (uint32_t)gid, (uint32_t)pid};
    return 1;
}

static listener_slot *listener_of(server *s, nng_pipe pipe) {
    int id = nng_listener_id(nng_pipe_listener(pipe));
    for (uint32_t i = 0; i < MAX_LISTENERS; i++)
        if (id > 0 && nng_listener_id(s->listeners[i].listener) == id)
            return &s->listeners[i];
    return NULL;
}

/* With the lock held. */
static pipe_slot *find_pipe(server *s, uint32_t pipe) {
    for (uint32_t i = 0; i < s->n_places; i++)
        if (s->pipes[i].pipe == pipe)
            return &s->pipes[i];
    return NULL;
}

/* With the lock held. NULL: there are too many. */
static pipe_slot *let_in(server *s, uint32_t pipe, core_peer peer) {
    int is_own = peer.pid == (uint32_t)getpid();
    if (!is_own && s->n_others >= s->options.max_pipes)
        return NULL;
    for (uint32_t i = 0; i < s->n_places; i++) {
        if (s->pipes[i].pipe == 0) {
            if (!inbox_put_pipe_added(s->options.inbox, pipe, peer))
                return NULL;
            s->pipes[i] = (pipe_slot){.pipe = pipe, .is_own = is_own};
            s->n_others += !is_own;
            return &s->pipes[i];
        }
    }
    return NULL;
}

static void pipe_added(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    server *s = argument;
    core_peer peer;
    uint32_t id = (uint32_t)nng_pipe_id(pipe);
    (void)event;
    pthread_mutex_lock(&s->lock);
    listener_slot *from = listener_of(s, pipe);
    if (from)
        from->n_pipes++;
    int is_in = peer_of(pipe, &peer) && let_in(s, id, peer);
    pthread_mutex_unlock(&s->lock);
    if (!is_in)
        nng_pipe_close(pipe);
}

/* --- contexts ----------------------------------------------------------------------------------
 */

/* With the lock held: its request was answered, or cannot be any more. */
static void context_free(server *s, context *c) {
    pipe_slot *place = &s->pipes[c->place];
    if (c->state != CONTEXT_RECEIVING && place->pipe == c->pipe) {
        place->n_contexts--;
        place->n_sending -= c->state == CONTEXT_SENDING;
    }
    c->state = CONTEXT_FREE;
    c->next_free = s->free_contexts;
    s->free_contexts = c;
}

static void sent(void *argument) {
    context *c = argument;
    server *s = c->server;
    if (nng_aio_result(c->send) != 0) {
        nng_msg_free(nng_aio_get_msg(c->send));
        nng_aio_set_msg(c->send, NULL);
    }
    pthread_mutex_lock(&s->lock);
    context_free(s, c);
    int starving = s->starving;
    pthread_mutex_unlock(&s->lock);
    if (starving)
        receive_next(s);
}

static int context_open(server *s, context *c) {
    c->server = s;
    if (nng_aio_alloc(&c->send, sent, c) != 0)
        return 0;
    if (nng_ctx_open(&c->ctx, s->socket) == 0)
        return 1;
    nng_aio_free(c->send);
    c->send = NULL;
    return 0;
}

/* With the lock held. NULL: all are in use. */
static context *context_take(server *s) {
    context *c = s->free_contexts;
    if (c) {
        s->free_contexts = c->next_free;
        return c;
    }
    c = s->n_contexts < s->max_contexts ? &s->contexts[s->n_contexts] : NULL;
    if (!c || !context_open(s, c))
        return NULL;
    s->n_contexts++;
    return c;
}

/* With the lock held: the pipe that holds the most contexts. */
static uint32_t greediest(const server *s) {
    const pipe_slot *most = &s->pipes[0];
    for (uint32_t i = 1; i < s->n_places; i++)
        if (s->pipes[i].pipe && s->pipes[i].n_contexts > most->n_contexts)
            most = &s->pipes[i];
    return most->pipe;
}

/*
 * With the lock held: gives up the oldest unanswered request of the pipe that has the most of them;
 * its caller's time will run out. The pipe itself is left alone: nng 1.5.2 may never come to the
 * end of closing one that has a message which nobody has taken, and then closes no other pipe
 * either. NULL: all contexts are sending.
 */
static context *context_steal(server *s) {
    uint32_t pipe = greediest(s);
    context *oldest = NULL;
    for (uint32_t i = 0; i < s->n_contexts; i++) {
        context *c = &s->contexts[i];
        if (c->state == CONTEXT_HELD && c->pipe == pipe && (!oldest || c->since < oldest->since))
            oldest = c;
    }
    if (!oldest)
        return NULL;
    context_free(s, oldest);
    return context_take(s);
}

/* Receives, unless that is under way, or the inbox is full, or every context sends. */
static void receive_next(server *s) {
    int stolen = 0;
    context *c = NULL;
    pthread_mutex_lock(&s->lock);
    if (!s->receiving && !s->paused && !s->closing) {
        c = context_take(s);
        if (!c) {
            c = context_steal(s);
            stolen = c && !s->has_stolen;
            s->has_stolen |= stolen;
        }
        s->starving = !c;
    }
    if (c) {
        c->state = CONTEXT_RECEIVING;
        s->receiving = c;
    }
    pthread_mutex_unlock(&s->lock);
    if (stolen)
        log_write(LOG_WARNING, "too many requests wait: the oldest of the connection with the "
                               "most are given up (said once)");
    if (c)
        nng_ctx_recv(c->ctx, s->receive);
}

/* --- pipes that end ----------------------------------------------------------------------------
 */

/* With the lock held. Those SENDING are given back by nng; those HELD, nobody else would. The core
 * may still answer them: server_send sees that they are no longer its. */
static void pipe_forget(server *s, uint32_t place) {
    uint32_t pipe = s->pipes[place].pipe;
    for (uint32_t i = 0; i < s->n_contexts && s->pipes[place].n_contexts > 0; i++)
        if (s->contexts[i].state == CONTEXT_HELD && s->contexts[i].pipe == pipe)
            context_free(s, &s->contexts[i]);
    s->n_others -= !s->pipes[place].is_own;
    s->pipes[place].pipe = 0;
    inbox_put_pipe_removed(s->options.inbox, pipe);
}

static void pipe_removed(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    server *s = argument;
    (void)event;
    pthread_mutex_lock(&s->lock);
    listener_slot *from = listener_of(s, pipe);
    if (from && from->n_pipes > 0)
        from->n_pipes--;
    pipe_slot *place = find_pipe(s, (uint32_t)nng_pipe_id(pipe));
    if (place)
        pipe_forget(s, (uint32_t)(place - s->pipes));
    int starving = s->starving;
    pthread_mutex_unlock(&s->lock);
    if (starving)
        receive_next(s);
}

/* --- receiving ---------------------------------------------------------------------------------
 */

/* With the lock held, so that a pipe's end never comes into the inbox before its messages. */
static void take_message(server *s, context *c, nng_msg *message) {
    c->pipe = (uint32_t)nng_pipe_id(nng_msg_get_pipe(message));
    pipe_slot *place = find_pipe(s, c->pipe);
    if (!place) {
        context_free(s, c);
        nng_msg_free(message);
        return;
    }
    c->state = CONTEXT_HELD;
    c->place = (uint32_t)(place - s->pipes);
    place->n_contexts++;
    c->since = ++s->clock;
    c->use = (c->use + 1) % (UINT32_MAX / s->max_contexts);
    core_ticket ticket = {c->pipe, c->use * s->max_contexts + (uint32_t)(c - s->contexts)};
    s->paused = !inbox_put_message(s->options.inbox, ticket, nng_msg_body(message),
                                   nng_msg_len(message), message);
}

static void received(void *argument) {
    server *s = argument;
    int error = nng_aio_result(s->receive);
    nng_msg *message = error == 0 ? nng_aio_get_msg(s->receive) : NULL;
    nng_aio_set_msg(s->receive, NULL);
    pthread_mutex_lock(&s->lock);
    context *c = s->receiving;
    s->receiving = NULL;
    if (message)
        take_message(s, c, message);
    else
        context_free(s, c);
    pthread_mutex_unlock(&s->lock);
    if (error == NNG_ECLOSED || error == NNG_ECANCELED)
        return;
    if (error != 0)
        log_write(LOG_WARNING, "a message could not be received: %s", nng_strerror(error));
    receive_next(s);
}

void server_resume(server *s) {
    pthread_mutex_lock(&s->lock);
    s->paused = 0;
    pthread_mutex_unlock(&s->lock);
    receive_next(s);
}

void server_free_message(void *owner) {
    nng_msg_free(owner);
}

/* --- sending -----------------------------------------------------------------------------------
 */

/* The context that waits for this reply, which then is SENDING; NULL: its pipe has gone, or must go
 * now, since it does not read its replies. */
static context *context_of(server *s, core_ticket ticket, int *ret_cut) {
    context *c = &s->contexts[ticket.request % s->max_contexts];
    pthread_mutex_lock(&s->lock);
    if (c->state != CONTEXT_HELD || c->pipe != ticket.pipe ||
        c->use != ticket.request / s->max_contexts) {
        c = NULL;
    } else if (s->pipes[c->place].n_sending == MAX_SENDING) {
        *ret_cut = !s->pipes[c->place].is_cut;
        s->pipes[c->place].is_cut = 1;
        context_free(s, c);
        c = NULL;
    } else {
        c->state = CONTEXT_SENDING;
        s->pipes[c->place].n_sending++;
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

void server_send(server *s, core_ticket ticket, const void *message, size_t n_bytes) {
    nng_msg *reply;
    int cut = 0;
    context *c = context_of(s, ticket, &cut);
    if (cut) {
        log_write(LOG_WARNING, "a connection with %d replies that are not read is cut",
                  MAX_SENDING);
        nng_pipe_close((nng_pipe){ticket.pipe});
    }
    if (!c)
        return;
    if (nng_msg_alloc(&reply, n_bytes) != 0) {
        /* Without a reply the caller would wait until its time is over; this tells at once. */
        log_write(LOG_WARNING, "no memory for a reply of %zu bytes: its connection is cut",
                  n_bytes);
        nng_pipe_close((nng_pipe){ticket.pipe});
        pthread_mutex_lock(&s->lock);
        context_free(s, c);
        pthread_mutex_unlock(&s->lock);
        return;
    }
    memcpy(nng_msg_body(reply), message, n_bytes);
    nng_aio_set_msg(c->send, reply);
    nng_ctx_send(c->ctx, c->send);
}

void server_cut(server *s, uint32_t pipe) {
    (void)s;
    nng_pipe_close((nng_pipe){pipe});
}

/* --- listeners ---------------------------------------------------------------------------------
 */

static kvt_status start_listener(server *s, nng_listener *ret_listener, char *why,
                                 size_t why_bytes) {
    char url[SOCKET_PATH_BYTES + 8];
    nng_listener listener;
    snprintf(url, sizeof url, "ipc://%s", s->options.socket->spare);
    int error = nng_listener_create(&listener, s->socket, url);
    if (error == 0)
        error = nng_listener_set_int(listener, NNG_OPT_IPC_PERMISSIONS, (int)s->options.mode);
    if (error == 0) {
        /* Before it starts, so that the first pipe finds it. */
        pthread_mutex_lock(&s->lock);
        s->listeners[s->newest] = (listener_slot){.listener = listener};
        pthread_mutex_unlock(&s->lock);
        error = nng_listener_start(listener, 0);
        if (error != 0)
            nng_listener_close(listener);
    }
    if (error != 0) {
        snprintf(why, why_bytes, "cannot listen at %s: %s", s->options.socket->spare,
                 nng_strerror(error));
        return error == NNG_ENOMEM ? KVT_ENOMEM : KVT_EIO;
    }
    *ret_listener = listener;
    return KVT_OK;
}

void server_close_idle_listeners(server *s) {
    for (uint32_t i = 0; i < MAX_LISTENERS; i++) {
        nng_listener idle = {0};
        pthread_mutex_lock(&s->lock);
        if (i != s->newest && s->listeners[i].listener.id != 0 && s->listeners[i].n_pipes == 0) {
            idle = s->listeners[i].listener;
            s->listeners[i].listener.id = 0;
        }
        pthread_mutex_unlock(&s->lock);
        if (idle.id != 0)
            nng_listener_close(idle);
    }
}

kvt_status server_listen(server *s, char *why, size_t why_bytes) {
    nng_listener listener;
    uint32_t before = s->newest, slot = 0;
    server_close_idle_listeners(s);
    while (slot < MAX_LISTENERS && s->listeners[slot].listener.id != 0)
        slot++;
    if (slot == MAX_LISTENERS) {
        snprintf(why, why_bytes, "%d listeners have been replaced and still have workers",
                 MAX_LISTENERS - 1);
        return KVT_ELIMIT;
    }
    kvt_status status = socket_path_clear_spare(s->options.socket, why, why_bytes);
    if (status != KVT_OK)
        return status;
    s->newest = slot;
    status = start_listener(s, &listener, why, why_bytes);
    if (status == KVT_OK) {
        status = socket_path_show(s->options.socket, why, why_bytes);
        if (status != KVT_OK)
            nng_listener_close(listener);
    }
    if (status != KVT_OK) {
        s->listeners[slot].listener.id = 0;
        s->newest = before;
        return status;
    }
    s->n_listeners_made++;
    return KVT_OK;
}

uint32_t server_listeners(const server *s) {
    return s->n_listeners_made;
}

/*
 * In place of libc's, for libnng alone (nothing else here calls it): a peer that connects and
 * closes at once gives EPIPE when nng greets it, which nng 1.5.2 calls NNG_ECLOSED and takes for
 * the order to stop accepting. ECONNRESET is as true, and nng goes on to the next peer. Where this
 * is not picked up (a static nng), the listener dies and is replaced.
 */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    long n = syscall(SYS_sendmsg, fd, message, flags);
    if (n < 0 && errno == EPIPE)
        errno = ECONNRESET;
    return (ssize_t)n;
}

/* --- open, close -------------------------------------------------------------------------------
 */

kvt_status server_open(const server_options *options, char *why, size_t why_bytes,
                       server **ret_server) {
    uint32_t n_places = options->max_pipes + SERVER_OWN_PIPES;
    server *s = calloc(1, sizeof *s + n_places * sizeof(pipe_slot));
    if (!s) {
        snprintf(why, why_bytes, "no memory for %u connections", options->max_pipes);
        return KVT_ENOMEM;
    }
    s->options = *options;
    s->n_places = n_places;
    s->max_contexts = options->max_held + SPARE_HELD;
    s->contexts = calloc(s->max_contexts, sizeof *s->contexts);
    pthread_mutex_init(&s->lock, NULL);
    int error = s->contexts ? nng_rep0_open(&s->socket) : NNG_ENOMEM;
    /* nng counts the four bytes of the request's id as part of the message. */
    if (error == 0)
        error = nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, KVT_WIRE_MAX_BYTES + 4);
    if (error == 0)
        error = nng_pipe_notify(s->socket, NNG_PIPE_EV_ADD_PRE, pipe_added, s);
    if (error == 0)
        error = nng_pipe_notify(s->socket, NNG_PIPE_EV_REM_POST, pipe_removed, s);
    if (error == 0)
        error = nng_aio_alloc(&s->receive, received, s);
    if (error != 0) {
        snprintf(why, why_bytes, "nng cannot open a socket: %s", nng_strerror(error));
        server_close(s);
        return error == NNG_ENOMEM ? KVT_ENOMEM : KVT_EIO;
    }
    receive_next(s);
    *ret_server = s;
    return KVT_OK;
}

void server_close(server *s) {
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = 1;
    pthread_mutex_unlock(&s->lock);
    if (s->socket.id != 0)
        nng_close(s->socket);
    if (s->receive)
        nng_aio_free(s->receive); /* waits for its callback */
    for (uint32_t i = 0; i < s->n_contexts; i++)
        nng_aio_free(s->contexts[i].send);
    pthread_mutex_destroy(&s->lock);
    free(s->contexts);
    free(s);
}

/*
 * What nng 1.5.2 loses by itself, and a leak checker would report at the end: a reply that it was
 * about to send when its pipe closed (it stays in the pipe's aio, which is freed without it), and
 * the connections of a dead listener that were never served.
 */
#if defined(__SANITIZE_ADDRESS__)
#define HAS_LEAK_CHECKER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_LEAK_CHECKER 1
#endif
#endif
#ifdef HAS_LEAK_CHECKER
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libnng\n";
}
#endif
