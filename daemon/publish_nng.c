/* publish_nng.c - see publish_nng.h. */
#include "daemon/publish_nng.h"

#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    QUEUED_MESSAGES = 1024, /* that a listener may be behind */
    MAX_LISTENERS = 64,
};

struct publisher {
    publisher_options options;
    char path[128];
    nng_socket socket;
    int is_open;
    pthread_mutex_t lock;
    uint32_t n_listeners; /* under the lock, with their pipes */
    uint32_t pipes[MAX_LISTENERS];
};

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

/* Before it is used: a pipe that is closed here gets nothing. */
static void pipe_comes(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    publisher *p = argument;
    core_peer peer;
    (void)event;
    if (!peer_of(pipe, &peer) || !p->options.may_listen(p->options.context, peer))
        nng_pipe_close(pipe);
}

static void pipe_is_there(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    publisher *p = argument;
    uint32_t id = (uint32_t)nng_pipe_id(pipe), at = 0;
    int too_many = 0;
    pthread_mutex_lock(&p->lock);
    if (event == NNG_PIPE_EV_ADD_POST) {
        too_many = p->n_listeners == MAX_LISTENERS;
        if (!too_many)
            p->pipes[p->n_listeners++] = id;
    } else {
        /* One that was turned away ends without having begun. */
        while (at < p->n_listeners && p->pipes[at] != id)
            at++;
        if (at < p->n_listeners)
            p->pipes[at] = p->pipes[--p->n_listeners];
    }
    pthread_mutex_unlock(&p->lock);
    if (too_many)
        nng_pipe_close(pipe);
}

static kvt_status clear(const char *path, char *why, size_t why_bytes) {
    struct stat info;
    if (lstat(path, &info) != 0)
        return KVT_OK;
    if (!S_ISSOCK(info.st_mode)) {
        snprintf(why, why_bytes, "%s is in the way, and no socket: remove it", path);
        return KVT_EEXIST;
    }
    unlink(path);
    return KVT_OK;
}

static int start(publisher *p) {
    char url[160];
    nng_listener listener;
    snprintf(url, sizeof url, "ipc://%s", p->path);
    int error = nng_pub0_open(&p->socket);
    if (error != 0)
        return error;
    p->is_open = 1;
    nng_socket_set_int(p->socket, NNG_OPT_SENDBUF, QUEUED_MESSAGES);
    if ((error = nng_pipe_notify(p->socket, NNG_PIPE_EV_ADD_PRE, pipe_comes, p)) != 0 ||
        (error = nng_pipe_notify(p->socket, NNG_PIPE_EV_ADD_POST, pipe_is_there, p)) != 0 ||
        (error = nng_pipe_notify(p->socket, NNG_PIPE_EV_REM_POST, pipe_is_there, p)) != 0 ||
        (error = nng_listener_create(&listener, p->socket, url)) != 0)
        return error;
    error = nng_listener_set_int(listener, NNG_OPT_IPC_PERMISSIONS, (int)p->options.mode);
    return error != 0 ? error : nng_listener_start(listener, 0);
}

kvt_status publisher_open(const publisher_options *options, char *why, size_t why_bytes,
                          publisher **ret_publisher) {
    kvt_status status = clear(options->path, why, why_bytes);
    if (status != KVT_OK)
        return status;
    publisher *p = calloc(1, sizeof *p);
    if (!p)
        return KVT_ENOMEM;
    p->options = *options;
    snprintf(p->path, sizeof p->path, "%s", options->path);
    pthread_mutex_init(&p->lock, NULL);
    int error = start(p);
    if (error != 0) {
        snprintf(why, why_bytes, "cannot listen at %s: %s", p->path, nng_strerror(error));
        publisher_close(p);
        return error == NNG_ENOMEM ? KVT_ENOMEM : KVT_EIO;
    }
    *ret_publisher = p;
    return KVT_OK;
}

void publisher_close(publisher *p) {
    if (!p)
        return;
    if (p->is_open)
        nng_close(p->socket); /* removes the socket's file */
    pthread_mutex_destroy(&p->lock);
    free(p);
}

uint32_t publisher_listeners(publisher *p) {
    pthread_mutex_lock(&p->lock);
    uint32_t n = p->n_listeners;
    pthread_mutex_unlock(&p->lock);
    return n;
}

void publisher_send(publisher *p, const void *message, size_t n_bytes) {
    nng_msg *copy;
    if (publisher_listeners(p) == 0 || nng_msg_alloc(&copy, n_bytes) != 0)
        return; /* listeners see the gap */
    memcpy(nng_msg_body(copy), message, n_bytes);
    if (nng_sendmsg(p->socket, copy, NNG_FLAG_NONBLOCK) != 0)
        nng_msg_free(copy);
}
