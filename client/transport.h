/*
 * transport.h - messages to the daemon and back. What is behind it is known to transport_nng.c
 * alone.
 *
 * One transport is one connection that makes itself again whenever it breaks. Any number of threads
 * may be in kvt_transport_call at once; replies find their caller.
 */
#ifndef KVT_CLIENT_TRANSPORT_H
#define KVT_CLIENT_TRANSPORT_H

#include "client/kvtrunk.h"

#include <stdatomic.h>

typedef struct kvt_transport kvt_transport;

/* A message of n bytes, not yet written to. NULL: no memory. */
typedef struct kvt_message kvt_message;
kvt_message *kvt_message_new(size_t n_bytes);
void *kvt_message_bytes(kvt_message *message, size_t *ret_n_bytes);
void kvt_message_cut(kvt_message *message, size_t n_bytes); /* to its first n_bytes */
void kvt_message_free(kvt_message *message);                /* NULL is accepted */

/* Set once, by kvt_transport_cancel: the call that was given this has to end. */
typedef struct kvt_cancel_flag {
    atomic_int set;
} kvt_cancel_flag;

/* A clock that never goes back. */
uint64_t kvt_now_ms(void);

/* Begins to connect, and does not wait for it. KVT_EINVAL: the path is too long for a socket;
 * KVT_ENOMEM. */
kvt_status kvt_transport_open(const char *path, kvt_transport **ret_transport);

/* Called each time a connection ended, by a thread of nng's, with no lock held; not after
 * kvt_transport_close, nor when it is not told either. Set before the first call. */
void kvt_transport_on_end(kvt_transport *t, void (*ended)(void *context), void *context);

/* No call may be inside. NULL is accepted. */
void kvt_transport_close(kvt_transport *t);

/*
 * Sends a request and waits for its reply, until deadline_ms at most. The message is consumed. Its
 * number (PROTOCOL.md "Header") is filled in here, where the order in which requests of several
 * threads go out is settled; *ret_number is it, and 0 as long as nothing was sent. Both outputs are
 * set in any case.
 *
 * KVT_ECONN: there is nobody at the socket (told at once), or the connection broke; KVT_ETIMEDOUT;
 * KVT_ECLOSED: kvt_transport_stop; KVT_ECANCELED: kvt_transport_cancel of `cancel` (may be NULL);
 * KVT_ENOMEM. After any of them with *ret_number != 0 the daemon may have done it or not.
 */
kvt_status kvt_transport_call(kvt_transport *t, kvt_message *request, uint64_t deadline_ms,
                              const kvt_cancel_flag *cancel, uint64_t *ret_number,
                              kvt_message **ret_reply);

/* Sets the flag; a call with it, of now or later, ends with KVT_ECANCELED unless it has its reply.
 */
void kvt_transport_cancel(kvt_transport *t, kvt_cancel_flag *cancel);

/* For tests: as if the time of every call that is under way were over. */
void kvt_transport_expire(kvt_transport *t);

/* Is there a connection at the moment? */
int kvt_transport_connected(kvt_transport *t);

/* Cuts the connection; the next call makes a new one. For when nobody knows any more what the other
 * side thinks of this one. */
void kvt_transport_reset(kvt_transport *t);

/* stop = 1: every call, of now and later, ends with KVT_ECLOSED at once. 0: calls are served again.
 */
void kvt_transport_stop(kvt_transport *t, int stop);

#endif
