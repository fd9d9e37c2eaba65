/*
 * watch.h - events of the pages that can be had, in an order from which a mirror can be kept: first
 * what there is, then what changes; and from the start again whenever something was missed. For the
 * tool and the tests. Not for several threads.
 */
#ifndef KVT_CLIENT_WATCH_H
#define KVT_CLIENT_WATCH_H

#include "client/kvtrunk.h"
#include "client/wire.h"

typedef struct kvt_watch kvt_watch;

enum {
    /* Beside KVT_EVENT_ADDED ... : forget all; what there is follows as ADDED. */
    KVT_WATCH_RESTART = 100,
    /* All that there was at the start has been given; what follows are changes. */
    KVT_WATCH_LIVE = 101,
};

typedef struct kvt_watched {
    uint8_t kind;
    uint64_t sequence; /* of an event; 0 of what comes from a snapshot */
    kvt_event event;   /* its tokens point into memory that is good until the next call */
} kvt_watched;

/* Errors: as kvt_status_json; KVT_ENOTSUP: the daemon tells no events. */
kvt_status kvt_watch_open(kvt_client *client, kvt_watch **ret_watch);
void kvt_watch_close(kvt_watch *w); /* NULL is accepted; before the client is closed */

/*
 * The next one, within timeout_ms: KVT_ETIMEDOUT if there is none. A daemon that went away and came
 * back is a RESTART; while it is away: KVT_ECONN, KVT_ETIMEDOUT.
 */
kvt_status kvt_watch_next(kvt_watch *w, uint32_t timeout_ms, kvt_watched *ret);

#endif
