/*
 * server_nng.h - messages to and from workers: a REP socket of nng over ipc, with a context for
 * each request that is not answered yet. The only file of the daemon that knows nng.
 *
 *     FREE --> RECEIVING --> HELD --> SENDING --> FREE          a context; one at a time RECEIVING
 *                             '--- its pipe has gone ----^
 *
 * Contexts, because answers come in any order: a caller who waits for pages holds one until
 * another's seal comes in. Any fixed number of them could be held by such callers, so that the seal
 * would never be received; so they are opened as they are needed, up to a number that more waiting
 * callers, jobs and messages than the daemon allows cannot reach. Should it be reached all the
 * same, the oldest request of whoever has the most is given up. A raw socket would need none of
 * this, but takes two more hops between nng's threads for each answer.
 *
 * Order: one receive is under way at a time, and what its callback gets goes to the inbox before
 * the next one is asked for. So messages enter the inbox in the order in which nng handed them out,
 * and each pipe's own in the order in which they were sent.
 *
 * Dead listeners: in nng 1.5.2 a peer that connects and closes at once can end a listener for good
 * (its accept is answered with "closed", which reads as an order to stop); those who connect then
 * wait for ever. server_nng.c keeps that from happening (see sendmsg there). In case it does all
 * the same, or somebody removes the socket's file, loop.c connects to itself now and then, and when
 * no answer comes calls server_listen again, which makes another listener and renames it over the
 * old one's path. Pipes of the old one live on. It is closed once its last pipe has gone, and not
 * before, since that would end them; closing it also ends the connections that it never served.
 */
#ifndef KVT_DAEMON_SERVER_NNG_H
#define KVT_DAEMON_SERVER_NNG_H

#include "daemon/inbox.h"
#include "daemon/socket_path.h"

typedef struct server server;

typedef struct server_options {
    inbox *inbox;
    socket_path *socket;
    uint32_t mode;      /* permission bits of the socket */
    uint32_t max_pipes; /* of other processes; the daemon's own have SERVER_OWN_PIPES more */
    uint32_t max_held;  /* requests that may wait for their answer, the inbox's included */
} server_options;

/* Connections that the daemon may have to itself: places for them in the inbox besides max_pipes.
 */
enum { SERVER_OWN_PIPES = 8 };

/* Does not listen yet. KVT_ENOMEM, KVT_EIO. */
kvt_status server_open(const server_options *options, char *why, size_t why_bytes,
                       server **ret_server);

/* A (new) listener at the socket's path; closes old ones that have no pipes any more. */
kvt_status server_listen(server *s, char *why, size_t why_bytes);
void server_close_idle_listeners(server *s);
uint32_t server_listeners(const server *s); /* made so far */

/* The core thread. A reply to a pipe that has gone is dropped. */
void server_send(server *s, core_ticket ticket, const void *message, size_t n_bytes);
void server_cut(server *s, uint32_t pipe);
void server_resume(server *s);         /* when inbox_take says so */
void server_free_message(void *owner); /* of an inbox item */

/* Ends all pipes; the inbox still gets their ends. NULL is accepted. */
void server_close(server *s);

#endif
