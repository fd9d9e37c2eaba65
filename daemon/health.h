/*
 * health.h - is the listener at the socket's path to be replaced? Judged from one probe's end after
 * the other. No clock, no I/O.
 */
#ifndef KVT_DAEMON_HEALTH_H
#define KVT_DAEMON_HEALTH_H

#include "daemon/probe.h"

enum {
    HEALTH_BUSY = 8,             /* in a row, until a full queue counts as a dead listener */
    HEALTH_SILENT = 2,           /* in a row: a loaded machine may leave one without an answer */
    HEALTH_SILENT_MOST = 64,     /* doubled each time that another listener did not help */
    HEALTH_PAUSE_STEP_MS = 1000, /* between two replacements; doubled as they follow each other */
    HEALTH_PAUSE_MOST_MS = 8000, /* the longest */
    HEALTH_CALM_MS = 60000,      /* after so long without one, the next is at once */
};

typedef struct health {
    uint32_t probes_busy;                /* in a row */
    uint32_t probes_silent, silent_most; /* in a row without an answer; how many replace it */
    uint64_t replace_due_ms, replace_pause_ms;
} health;

void health_init(health *h);
/* After a probe ended so: NULL, or why another listener is to be put there, now. */
const char *health_judge(health *h, probe_state ended, uint64_t now_ms);

#endif
