/*
 * server_nng.h - messages to and from workers: a raw REP socket of nng over ipc. The only file of
 * the daemon that knows nng.
 *
 * Raw, because with REP contexts callers that wait hold all of them, and the seal that they wait
 * for is never received. A received message has in its header the pipe's id and the request's id,
 * four bytes each; both go into the core_ticket, and the reply's header is made from it again.
 *
 * Order: one receive is under way at a time, and what its callback gets goes to the inbox before
 * the next one is asked for. So messages enter the inbox in the order in which nng handed them out,
 * and each pipe's own in the order in which they were sent.
 *
 * Dead listeners: in nng 1.5.2 a peer that connects and closes at once can end a listener for good
 * (its accept is answered with "closed", which reads as an order to stop); those who connect then
 * wait for ever. server_nng.c keeps that from happening (see sendmsg there). In case it does all the
 * same, or somebody removes the socket's file, loop.c connects to itself now and then, and when no
 * answer comes calls server_listen again, which makes another listener and renames it over the old
 * one's path. Pipes of the old one live on. It is closed once its last pipe has gone, and not before,
 * since that would end them; closing it also ends the connections that it never served.
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

/* The core thread. */
void server_send(server *s, core_ticket ticket, const void *message, size_t n_bytes);
void server_cut(server *s, uint32_t pipe);
void server_resume(server *s);         /* when inbox_take says so */
void server_free_message(void *owner); /* of an inbox item */

/* Ends all pipes; the inbox still gets their ends. NULL is accepted. */
void server_close(server *s);

#endif
