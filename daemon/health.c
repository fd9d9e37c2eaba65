/* health.c - see health.h. */
#include "daemon/health.h"

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

void health_init(health *h) {
    *h = (health){.silent_most = HEALTH_SILENT};
}

/*
 * nng never frees the connections that a dead listener had taken and not served, their descriptors
 * included. So somebody who kills listeners on purpose costs a few descriptors each time: the pause
 * between two replacements doubles while they follow each other.
 */
static int may_replace(health *h, uint64_t now_ms) {
    if (now_ms < h->replace_due_ms)
        return 0;
    if (now_ms >= h->replace_due_ms + HEALTH_CALM_MS)
        h->replace_pause_ms = 0;
    h->replace_due_ms = now_ms + h->replace_pause_ms;
    h->replace_pause_ms =
        earlier(2 * h->replace_pause_ms + HEALTH_PAUSE_STEP_MS, HEALTH_PAUSE_MOST_MS);
    return 1;
}

/* Is it dead, as far as its answers tell? */
static int is_dead(health *h, probe_state ended) {
    h->probes_busy = ended == PROBE_BUSY ? h->probes_busy + 1 : 0;
    h->probes_silent = ended == PROBE_SILENT ? h->probes_silent + 1 : 0;
    switch (ended) {
    case PROBE_ANSWERED:
        h->silent_most = HEALTH_SILENT;
        return 0;
    case PROBE_SILENT:
        return h->probes_silent >= h->silent_most;
    case PROBE_BUSY:
        return h->probes_busy >= HEALTH_BUSY;
    default:
        return 1;
    }
}

const char *health_judge(health *h, probe_state ended, uint64_t now_ms) {
    if (!is_dead(h, ended))
        return NULL;
    h->probes_busy = 0;
    h->probes_silent = 0;
    /* A machine on which nobody gets to answer gains nothing by ever new listeners: who is just
     * connecting would have to begin anew each time. */
    if (ended != PROBE_NO_SOCKET)
        h->silent_most = (uint32_t)earlier(2 * h->silent_most, HEALTH_SILENT_MOST);
    if (!may_replace(h, now_ms))
        return NULL;
    return ended == PROBE_NO_SOCKET ? "nobody listens there any more"
                                    : "the listener does not answer";
}
