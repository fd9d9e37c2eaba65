/*
 * watch.h - tells when the process of a session has ended: a pidfd each, in the loop's epoll. A
 * process that cannot be watched is left to the session's grace time.
 */
#ifndef KVT_DAEMON_WATCH_H
#define KVT_DAEMON_WATCH_H

#include "client/kvtrunk.h"

typedef struct watch watch;

/* Descriptors go into epoll_fd with `tag | session` as their data; tag leaves the low 32 bits free.
 */
kvt_status watch_open(int epoll_fd, uint64_t tag, uint32_t max_sessions, watch **ret_watch);
void watch_close(watch *w); /* NULL is accepted */

void watch_add(watch *w, uint32_t session, uint32_t pid);
void watch_remove(watch *w, uint32_t session);

/* An event with this session's data came. */
void watch_ended(watch *w, uint32_t session);

/* A session whose process is known to have ended, each once; 0: no more. (Some had ended before
 * they were watched, so this is where the loop hears of all.) */
uint32_t watch_next_gone(watch *w);

#endif
