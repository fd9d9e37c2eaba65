/*
 * start_touch.c - while the arena or the host tier is touched, which takes minutes where it is
 * large: how far it is, for the log and for systemd, and whether the daemon is to end.
 */
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/shell.h"

#include <signal.h>

enum {
    TELL_EVERY_MS = 5000,
    EXTEND_US = 60000000, /* from each time that it is told on */
};

/* SIGTERM and SIGINT are blocked, and wait for the loop to take them. */
int start_is_stopped(void *context) {
    sigset_t waiting;
    (void)context;
    return sigpending(&waiting) == 0 &&
           (sigismember(&waiting, SIGTERM) > 0 || sigismember(&waiting, SIGINT) > 0);
}

static int step(void *context, const char *doing, uint64_t done_bytes, uint64_t all_bytes) {
    start_touch *t = context;
    uint64_t now_ms = shell_now_ms(NULL);
    if (now_ms >= t->due_ms) {
        unsigned long long done = done_bytes >> 20, all = all_bytes >> 20;
        log_write(LOG_INFO, "%s the %s: %llu of %llu MiB", doing, t->what, done, all);
        notify_send("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s the %s: %llu of %llu MiB", EXTEND_US, doing,
                    t->what, done, all);
        t->due_ms = now_ms + TELL_EVERY_MS;
    }
    return start_is_stopped(NULL);
}

kvt_touching start_touching(start_touch *t, const char *what) {
    *t = (start_touch){.what = what, .due_ms = shell_now_ms(NULL) + TELL_EVERY_MS};
    return (kvt_touching){step, t};
}
