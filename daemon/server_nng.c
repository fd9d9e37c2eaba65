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
    N_SENDS = 64,       /* replies that nng may be taking at the same time */
    HEADER_BYTES = 8,   /* pipe id, request id */
};

typedef struct send_slot {
    server *server;
    nng_aio *aio;
    struct send_slot *next;
} send_slot;

typedef struct listener_slot {
    nng_listener listener; /* id 0: free */
    uint32_t n_pipes;
} listener_slot;

typedef struct pipe_slot {
    uint32_t pipe; /* 0: free */
    int is_own;
} pipe_slot;

struct server {
    server_options options;
    nng_socket socket;
    nng_aio *receive;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t sent;
    send_slot sends[N_SENDS];
    send_slot *free_sends;
    listener_slot listeners[MAX_LISTENERS];
    uint32_t n_listeners_made;
    uint32_t newest; /* slot of the one that stands at the path */
    uint32_t n_others;
    uint32_t n_places;
    pipe_slot pipes[]; /* let into the inbox; looked through only when one comes or goes */
};

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

/* With the lock held. NULL: there are too many. */
static pipe_slot *let_in(server *s, uint32_t pipe, core_peer peer) {
    int is_own = peer.pid == (uint32_t)getpid();
    if (!is_own && s->n_others >= s->options.max_pipes)
        return NULL;
    for (uint32_t i = 0; i < s->n_places; i++) {
        if (s->pipes[i].pipe == 0) {
            if (!inbox_put_pipe_added(s->options.inbox, pipe, peer))
                return NULL;
            s->pipes[i] = (pipe_slot){pipe, is_own};
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

static void pipe_removed(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    server *s = argument;
    uint32_t id = (uint32_t)nng_pipe_id(pipe);
    (void)event;
    pthread_mutex_lock(&s->lock);
    listener_slot *from = listener_of(s, pipe);
    if (from && from->n_pipes > 0)
        from->n_pipes--;
    for (uint32_t i = 0; i < s->n_places; i++) {
        if (s->pipes[i].pipe == id) {
            s->n_others -= !s->pipes[i].is_own;
            s->pipes[i].pipe = 0;
            inbox_put_pipe_removed(s->options.inbox, id);
            break;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- receiving ---------------------------------------------------------------------------------
 */

static uint32_t big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Returns whether to receive another. */
static int take_message(server *s, nng_msg *message) {
    const uint8_t *header = nng_msg_header(message);
    nng_pipe pipe = nng_msg_get_pipe(message);
    /* A longer one has come over other hops, which this protocol does not have. */
    if (nng_msg_header_len(message) != HEADER_BYTES) {
        nng_pipe_close(pipe);
        nng_msg_free(message);
        return 1;
    }
    core_ticket ticket = {big_endian(header), big_endian(header + 4)};
    return inbox_put_message(s->options.inbox, ticket, nng_msg_body(message), nng_msg_len(message),
                             message);
}

static void received(void *argument) {
    server *s = argument;
    int error = nng_aio_result(s->receive);
    if (error == NNG_ECLOSED || error == NNG_ECANCELED)
        return;
    if (error != 0) {
        log_write(LOG_WARNING, "a message could not be received: %s", nng_strerror(error));
        nng_recv_aio(s->socket, s->receive);
        return;
    }
    nng_msg *message = nng_aio_get_msg(s->receive);
    nng_aio_set_msg(s->receive, NULL);
    if (take_message(s, message))
        nng_recv_aio(s->socket, s->receive);
}

void server_resume(server *s) {
    nng_recv_aio(s->socket, s->receive);
}

void server_free_message(void *owner) {
    nng_msg_free(owner);
}

/* --- sending -----------------------------------------------------------------------------------
 */

static void give_back(send_slot *slot) {
    server *s = slot->server;
    pthread_mutex_lock(&s->lock);
    slot->next = s->free_sends;
    s->free_sends = slot;
    pthread_cond_signal(&s->sent);
    pthread_mutex_unlock(&s->lock);
}

static void send_done(void *argument) {
    send_slot *slot = argument;
    if (nng_aio_result(slot->aio) != 0) {
        nng_msg_free(nng_aio_get_msg(slot->aio));
        nng_aio_set_msg(slot->aio, NULL);
    }
    give_back(slot);
}

/* Waiting here is short: nng only hands the message on to the pipe's own queue, or frees it. */
static send_slot *take_slot(server *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->free_sends)
        pthread_cond_wait(&s->sent, &s->lock);
    send_slot *slot = s->free_sends;
    s->free_sends = slot->next;
    pthread_mutex_unlock(&s->lock);
    return slot;
}

void server_send(server *s, core_ticket ticket, const void *message, size_t n_bytes) {
    nng_msg *reply;
    if (nng_msg_alloc(&reply, n_bytes) != 0) {
        log_write(LOG_WARNING, "no memory for a reply of %zu bytes: it is dropped", n_bytes);
        return;
    }
    memcpy(nng_msg_body(reply), message, n_bytes);
    if (nng_msg_header_append_u32(reply, ticket.pipe) != 0 ||
        nng_msg_header_append_u32(reply, ticket.request) != 0) {
        nng_msg_free(reply);
        return;
    }
    send_slot *slot = take_slot(s);
    nng_aio_set_msg(slot->aio, reply);
    nng_send_aio(s->socket, slot->aio);
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

static int open_aios(server *s) {
    int error = nng_aio_alloc(&s->receive, received, s);
    for (uint32_t i = 0; i < N_SENDS && error == 0; i++) {
        s->sends[i].server = s;
        error = nng_aio_alloc(&s->sends[i].aio, send_done, &s->sends[i]);
        if (error == 0)
            give_back(&s->sends[i]);
    }
    return error;
}

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
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->sent, NULL);
    int error = nng_rep0_open_raw(&s->socket);
    /* nng counts the four bytes of the request's id as part of the message. */
    if (error == 0)
        error = nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, KVT_WIRE_MAX_BYTES + 4);
    if (error == 0)
        error = nng_pipe_notify(s->socket, NNG_PIPE_EV_ADD_PRE, pipe_added, s);
    if (error == 0)
        error = nng_pipe_notify(s->socket, NNG_PIPE_EV_REM_POST, pipe_removed, s);
    if (error == 0)
        error = open_aios(s);
    if (error != 0) {
        snprintf(why, why_bytes, "nng cannot open a socket: %s", nng_strerror(error));
        server_close(s);
        return error == NNG_ENOMEM ? KVT_ENOMEM : KVT_EIO;
    }
    nng_recv_aio(s->socket, s->receive);
    *ret_server = s;
    return KVT_OK;
}

void server_close(server *s) {
    if (!s)
        return;
    if (s->socket.id != 0)
        nng_close(s->socket);
    if (s->receive)
        nng_aio_free(s->receive); /* waits for its callback */
    for (uint32_t i = 0; i < N_SENDS; i++)
        if (s->sends[i].aio)
            nng_aio_free(s->sends[i].aio);
    pthread_cond_destroy(&s->sent);
    pthread_mutex_destroy(&s->lock);
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
