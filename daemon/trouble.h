/*
 * trouble.h - when the log says that a trouble of the disk has begun (it is full, or it fails), and
 * when that it has ended. No clock, no I/O.
 *
 * A full one takes a page now and then: where one of the tier's own has gone, where another program
 * has deleted something. So the trouble has ended only when it has refused nothing for a while.
 */
#ifndef KVT_DAEMON_TROUBLE_H
#define KVT_DAEMON_TROUBLE_H

#include <stdint.h>

enum { TROUBLE_CALM_MS = 10000 }; /* twice the time after which it is asked again */

typedef struct trouble { /* all zero: nothing was said yet */
    int has_begun;       /* was said last */
    uint64_t refused_ms; /* when it refused last */
} trouble;

typedef enum trouble_news {
    TROUBLE_NOTHING = 0,
    TROUBLE_BEGINS,
    TROUBLE_ENDS,
} trouble_news;

/* After a request: has the disk refused a page, and was one written, or read? What is to be said.
 */
trouble_news trouble_note(trouble *f, int refused, int written, uint64_t now_ms);

#endif
