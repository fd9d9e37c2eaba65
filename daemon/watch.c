/* watch.c - see watch.h. */
#include "daemon/watch.h"
#include "daemon/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct watched {
    uint32_t session; /* 0: free */
    int fd;
    int gone;
} watched;

struct watch {
    int epoll_fd;
    uint64_t tag;
    uint32_t n_gone;
    uint32_t max;
    watched of[];
};

kvt_status watch_open(int epoll_fd, uint64_t tag, uint32_t max_sessions, watch **ret_watch) {
    watch *w = calloc(1, sizeof *w + max_sessions * sizeof(watched));
    if (!w)
        return KVT_ENOMEM;
    w->epoll_fd = epoll_fd;
    w->tag = tag;
    w->max = max_sessions;
    *ret_watch = w;
    return KVT_OK;
}

static watched *find(watch *w, uint32_t session) {
    for (uint32_t i = 0; i < w->max; i++)
        if (w->of[i].session == session)
            return &w->of[i];
    return NULL;
}

static void forget(watch *w, watched *entry) {
    w->n_gone -= (uint32_t)entry->gone;
    if (entry->fd >= 0)
        close(entry->fd); /* which takes it out of the epoll too */
    *entry = (watched){0};
}

void watch_close(watch *w) {
    for (uint32_t i = 0; w && i < w->max; i++)
        if (w->of[i].session)
            forget(w, &w->of[i]);
    free(w);
}

void watch_add(watch *w, uint32_t session, uint32_t pid) {
    watched *entry = find(w, 0);
    if (!entry || session == 0 || pid == 0 || pid > INT32_MAX)
        return;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0u);
    if (fd < 0 && errno != ESRCH) {
        log_write(LOG_WARNING,
                  "process %u of session %u cannot be watched (%s): if it dies, its "
                  "leases are kept for grace_ms",
                  pid, session, strerror(errno));
        return;
    }
    *entry = (watched){.session = session, .fd = fd, .gone = fd < 0};
    w->n_gone += fd < 0;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = w->tag | session};
    if (fd >= 0 && epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        log_write(LOG_WARNING, "process %u of session %u cannot be watched: %s", pid, session,
                  strerror(errno));
        forget(w, entry);
    }
}

void watch_remove(watch *w, uint32_t session) {
    watched *entry = session ? find(w, session) : NULL;
    if (entry)
        forget(w, entry);
}

void watch_ended(watch *w, uint32_t session) {
    watched *entry = session ? find(w, session) : NULL;
    if (!entry || entry->gone)
        return;
    entry->gone = 1;
    w->n_gone++;
}

uint32_t watch_next_gone(watch *w) {
    for (uint32_t i = 0; w->n_gone > 0 && i < w->max; i++) {
        uint32_t session = w->of[i].session;
        if (w->of[i].gone) {
            forget(w, &w->of[i]);
            return session;
        }
    }
    return 0;
}
