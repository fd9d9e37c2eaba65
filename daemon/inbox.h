/*
 * inbox.h - the one way into the core thread: what nng's threads and the job threads have for it,
 * in order of arrival.
 *
 *     nng callbacks --. messages, pipes                       .--> inbox_take
 *                      >--------------------> [ ring ] -------+         the core thread, which
 *     job threads ----' completions              |            '-- fd  sleeps in epoll
 *                                                wakes by eventfd
 *
 * Bounded, and allocates nothing after inbox_open. Nothing that must arrive is ever dropped, since
 * there is always room for it:
 * - a job's completion: there are never more than max_jobs of them;
 * - a pipe's end: a pipe whose start was let in keeps a place for its end, and counts until its end
 *   was TAKEN, so that start and end of all pipes let in fit at any time;
 * - messages have the places that are left, and a limit of bytes. At the limit their one producer
 * is told to stop receiving, and inbox_take tells when it may go on. So a flood stops in the peers'
 *   sockets, not here.
 */
#ifndef KVT_DAEMON_INBOX_H
#define KVT_DAEMON_INBOX_H

#include "daemon/core.h"

typedef struct inbox inbox;

typedef enum inbox_kind {
    INBOX_PIPE_ADDED = 1,
    INBOX_PIPE_REMOVED,
    INBOX_MESSAGE,
    INBOX_JOB_DONE,
} inbox_kind;

typedef struct inbox_item {
    inbox_kind kind;
    core_ticket ticket; /* its pipe; request: of a message */
    core_peer peer;     /* of a pipe that was added */
    core_job *job;
    const void *bytes; /* of a message */
    size_t n_bytes;
    void *owner; /* of the bytes: whoever takes the message gives it back where it came from */
} inbox_item;

typedef struct inbox_limits {
    uint32_t max_messages;
    uint64_t max_message_bytes; /* reached with the message that goes over it */
    uint32_t max_pipes;
    uint32_t max_jobs;
} inbox_limits;

kvt_status inbox_open(const inbox_limits *limits, inbox **ret_inbox);
/* Whatever is in it is the caller's to take out before. NULL is accepted. */
void inbox_close(inbox *in);

/* For epoll with EPOLLET: an edge says that something came since inbox_take found nothing. It is
 * never read, which saves a system call a message. */
int inbox_fd(const inbox *in);

/* Producers; any thread. */

/* 0: there are max_pipes already; the pipe must be closed, and its end not be put. */
int inbox_put_pipe_added(inbox *in, uint32_t pipe, core_peer peer);
void inbox_put_pipe_removed(inbox *in, uint32_t pipe);
/* Takes it in every case. 0: this was the last one for now; wait for inbox_take's word. Only one
 * message producer. */
int inbox_put_message(inbox *in, core_ticket ticket, const void *bytes, size_t n_bytes,
                      void *owner);
void inbox_put_job_done(inbox *in, core_job *job);

/* The consumer: takes up to max items; *ret_resume is 1 if the message producer was told to stop
 * and may go on. Only after it returned 0 does the fd tell of what comes next. */
uint32_t inbox_take(inbox *in, inbox_item *ret_items, uint32_t max, int *ret_resume);

#endif
