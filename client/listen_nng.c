/* listen_nng.c - see listen.h. */
#include "client/listen.h"
#include "client/error.h"

#include <nng/nng.h>
#include <nng/protocol/pubsub0/sub.h>

#include <stdio.h>
#include <stdlib.h>

enum { QUEUED_MESSAGES = 4096 /* while the listener is busy; more are lost, which it can tell */ };

struct kvt_listener {
    nng_socket socket;
    nng_msg *message;
    int is_gone; /* written by nng's thread */
};

static void pipe_gone(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    kvt_listener *l = argument;
    (void)pipe, (void)event;
    __atomic_store_n(&l->is_gone, 1, __ATOMIC_RELEASE);
}

static int start(kvt_listener *l, const char *path) {
    char url[256];
    int error = nng_sub0_open(&l->socket);
    if (error != 0)
        return error;
    nng_setopt(l->socket, NNG_OPT_SUB_SUBSCRIBE, "", 0);
    nng_socket_set_int(l->socket, NNG_OPT_RECVBUF, QUEUED_MESSAGES);
    nng_socket_set_size(l->socket, NNG_OPT_RECVMAXSZ, 1 << 20);
    snprintf(url, sizeof url, "ipc://%s", path);
    error = nng_pipe_notify(l->socket, NNG_PIPE_EV_REM_POST, pipe_gone, l);
    if (error == 0)
        error = nng_dial(l->socket, url, NULL, 0);
    if (error != 0)
        nng_close(l->socket);
    return error;
}

kvt_status kvt_listener_open(const char *path, kvt_listener **ret_listener) {
    kvt_listener *l = kvt_memory_get(sizeof *l);
    if (!l)
        return kvt_error_plain(KVT_ENOMEM);
    int error = start(l, path);
    if (error != 0) {
        free(l);
        return kvt_error(error == NNG_ENOMEM ? KVT_ENOMEM : KVT_ECONN, "%s: %s", path,
                         nng_strerror(error));
    }
    *ret_listener = l;
    return KVT_OK;
}

void kvt_listener_close(kvt_listener *l) {
    if (!l)
        return;
    nng_close(l->socket);
    if (l->message)
        nng_msg_free(l->message);
    free(l);
}

kvt_status kvt_listener_next(kvt_listener *l, uint32_t timeout_ms, const void **ret_bytes,
                             size_t *ret_n_bytes) {
    if (l->message)
        nng_msg_free(l->message);
    l->message = NULL;
    /* What came before the connection ended is still to be had. */
    int is_gone = __atomic_load_n(&l->is_gone, __ATOMIC_ACQUIRE);
    nng_socket_set_ms(l->socket, NNG_OPT_RECVTIMEO, is_gone ? 0 : (nng_duration)timeout_ms);
    int error = nng_recvmsg(l->socket, &l->message, 0);
    if (error != 0) {
        l->message = NULL;
        if (is_gone || (error != NNG_ETIMEDOUT && error != NNG_EAGAIN))
            return kvt_error(KVT_ECONN, "the daemon does not tell events any more");
        return kvt_error(KVT_ETIMEDOUT, "no event came");
    }
    *ret_bytes = nng_msg_body(l->message);
    *ret_n_bytes = nng_msg_len(l->message);
    return KVT_OK;
}
