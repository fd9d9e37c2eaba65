/*
 * fullness.h - when the log says that the disk's file system is full, and when that it has room
 * again. No clock, no I/O.
 *
 * A full one takes a page now and then: where one of the tier's own has gone, where another program
 * has deleted something. So it has room again only when it has refused nothing for a while.
 */
#ifndef KVT_DAEMON_FULLNESS_H
#define KVT_DAEMON_FULLNESS_H

#include <stdint.h>

enum { FULLNESS_CALM_MS = 10000 }; /* twice the time after which it is asked again */

typedef struct fullness { /* all zero: nothing was said yet */
    int is_full;          /* was said last */
    uint64_t refused_ms;  /* when it refused last */
} fullness;

typedef enum fullness_news {
    FULLNESS_NOTHING = 0,
    FULLNESS_FULL,
    FULLNESS_ROOM,
} fullness_news;

/* After a request to write: has the file system refused a page, and was one written? What is to be
 * said. */
fullness_news fullness_note(fullness *f, int refused, int written, uint64_t now_ms);

#endif
