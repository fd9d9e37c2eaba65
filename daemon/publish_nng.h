/*
 * publish_nng.h - a socket on which a tenant's events are told: nng's PUB, over ipc. Whoever
 * connects gets all of them, so who may connect is looked at (the peer's uid and gid), and each
 * tenant has a socket of its own. A listener that is too slow misses messages, and nobody waits for
 * it: it can tell by their numbers.
 */
#ifndef KVT_DAEMON_PUBLISH_NNG_H
#define KVT_DAEMON_PUBLISH_NNG_H

#include "daemon/core.h"

typedef struct publisher publisher;

typedef struct publisher_options {
    const char *path;
    uint32_t mode; /* permission bits of the socket */
    /* Any thread of nng's. */
    int (*may_listen)(void *context, core_peer peer);
    void *context;
} publisher_options;

/* Listens. A socket that is left at the path is removed; the caller holds a lock that says that it
 * is nobody else's. KVT_EEXIST (something else is there), KVT_EIO, KVT_ENOMEM. */
kvt_status publisher_open(const publisher_options *options, char *why, size_t why_bytes,
                          publisher **ret_publisher);
void publisher_close(publisher *p); /* NULL is accepted */

uint32_t publisher_listeners(publisher *p);
/* Never blocks. */
void publisher_send(publisher *p, const void *message, size_t n_bytes);

#endif
