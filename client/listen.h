/*
 * listen.h - messages that a daemon tells to whoever listens: nng's SUB, over ipc. What is behind
 * it is known to listen_nng.c alone. Not for several threads.
 */
#ifndef KVT_CLIENT_LISTEN_H
#define KVT_CLIENT_LISTEN_H

#include "client/kvtrunk.h"

typedef struct kvt_listener kvt_listener;

/* Connects and waits until that has been done. KVT_ECONN (nobody is there, or does not let us),
 * KVT_ENOMEM. */
kvt_status kvt_listener_open(const char *path, kvt_listener **ret_listener);
void kvt_listener_close(kvt_listener *l); /* NULL is accepted */

/* The next message; its bytes are good until the next call. KVT_ETIMEDOUT; KVT_ECONN: the
 * connection is gone, and is not made again. */
kvt_status kvt_listener_next(kvt_listener *l, uint32_t timeout_ms, const void **ret_bytes,
                             size_t *ret_n_bytes);

#endif
