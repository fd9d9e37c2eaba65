/*
 * loop.c - the core thread. Everything that happens to the core happens here, one thing after the
 * other: what the inbox holds, ends of processes, time.
 */
#include "client/assert.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/shell.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BATCH = 64,      /* items taken from the inbox at once */
    MAX_BATCHES = 8, /* before timers and signals get their turn */
    PROBE_EVERY_MS = 1000,
    PROBE_TIMEOUT_MS = 2000, /* nng itself pauses up to 100 ms after a failed accept */
    STATUS_EVERY_MS = 10000,
    LINGER_MS = 20, /* between the last job and the end, for nng to hand on the last replies */
};

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* --- the inbox ---------------------------------------------------------------------------------
 */

static uint32_t *own_pipe(shell *sh, uint32_t pipe) {
    for (size_t i = 0; i < SERVER_OWN_PIPES; i++)
        if (sh->own_pipes[i] == pipe)
            return &sh->own_pipes[i];
    return NULL;
}

static core *core_for_pipe(const shell *sh, uint32_t pipe) {
    return sh->cores[core_of_pipe(sh->cores, sh->n_tenants, pipe)];
}

/* Connections of the daemon to itself are not the core's business: they belong to no tenant, and
 * must not show in its counters. */
static void pipe_added(shell *sh, const inbox_item *item) {
    uint32_t *place = item->peer.pid == (uint32_t)getpid() ? own_pipe(sh, 0) : NULL;
    if (place)
        *place = item->ticket.pipe;
    else
        core_pipe_added(sh->cores[core_of_peer(sh->cores, sh->n_tenants, item->peer)],
                        item->ticket.pipe, item->peer);
}

static void pipe_removed(shell *sh, uint32_t pipe) {
    uint32_t *place = own_pipe(sh, pipe);
    if (place)
        *place = 0;
    else
        core_pipe_removed(core_for_pipe(sh, pipe), pipe);
}

static void message(shell *sh, const inbox_item *item) {
    uint8_t answer[KVT_WIRE_HEADER_BYTES];
    /* By its size, since only a probe's question is so short: the list is not looked through for
     * every message. */
    if (item->n_bytes == KVT_WIRE_HEADER_BYTES && own_pipe(sh, item->ticket.pipe)) {
        size_t n = probe_answer(item->bytes, item->n_bytes, sh->boot_id, answer);
        if (n > 0)
            server_send(sh->server, item->ticket, answer, n);
    } else {
        core_message(core_for_pipe(sh, item->ticket.pipe), item->ticket, item->bytes,
                     item->n_bytes);
    }
    server_free_message(item->owner);
}

/* With "audit" set: does everything still agree, after this? */
static void audit(const shell *sh, const char *after) {
    char why[256] = "";
    /* Without memory for it there is no answer. */
    for (uint32_t i = 0; i < sh->n_tenants && sh->config.values.audit; i++)
        if (core_audit(sh->tenants[i].core, why, sizeof why) == KVT_EINTERNAL) {
            log_write(LOG_ERROR, "audit after %s: %s", after, why);
            abort();
        }
}

static void serve_item(shell *sh, const inbox_item *item) {
    static const char *const names[] = {[INBOX_PIPE_ADDED] = "a connection",
                                        [INBOX_PIPE_REMOVED] = "the end of a connection",
                                        [INBOX_MESSAGE] = "a message",
                                        [INBOX_JOB_DONE] = "a job"};
    switch (item->kind) {
    case INBOX_PIPE_ADDED:
        pipe_added(sh, item);
        break;
    case INBOX_PIPE_REMOVED:
        pipe_removed(sh, item->ticket.pipe);
        break;
    case INBOX_MESSAGE:
        message(sh, item);
        break;
    case INBOX_JOB_DONE:
        core_job_done(((tenant *)item->job->owner)->core, item->job);
        break;
    }
    audit(sh, names[item->kind]);
}

/* Returns whether more is there. */
static int serve_inbox(shell *sh) {
    inbox_item items[BATCH];
    for (int i = 0; i < MAX_BATCHES; i++) {
        int resume;
        uint32_t n = inbox_take(sh->inbox, items, BATCH, &resume);
        for (uint32_t j = 0; j < n; j++)
            serve_item(sh, &items[j]);
        if (resume)
            server_resume(sh->server);
        if (n == 0)
            return 0;
    }
    return 1;
}

/* --- the listener's health ---------------------------------------------------------------------
 */

static void replace_listener(shell *sh, const char *what) {
    char why[512];
    kvt_status status = server_listen(sh->server, why, sizeof why);
    if (status == KVT_OK) {
        log_write(LOG_WARNING, "%s: %s; another listener was put there", sh->socket.path, what);
        sh->listen_failed = 0;
    } else if (!sh->listen_failed) {
        log_write(LOG_ERROR,
                  "%s: %s, and no other can be put there: %s. Connected workers are still served",
                  sh->socket.path, what, why);
        sh->listen_failed = 1;
    }
}

/*
 * Somebody removed the arena's file: whoever has mapped it keeps it, and those who come find it
 * among the daemon's descriptors, as far as the system lets them look there (the same user, root).
 */
static void look_for_arena(tenant *t, uint32_t arena) {
    arena_have *a = &t->arenas[arena];
    struct stat named, ours;
    char path[64];
    if (a->is_gone || a->lock < 0 || fstat(a->lock, &ours) != 0)
        return;
    int is_there = lstat(a->path, &named) == 0;
    if (is_there ? named.st_ino == ours.st_ino && named.st_dev == ours.st_dev : errno != ENOENT)
        return;
    a->is_gone = 1;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), a->lock);
    core_move_arena(t->core, arena, path);
    log_write(LOG_ERROR,
              "%s was removed by somebody. Workers that connect from now on map it as %s, which "
              "those of other users cannot: start the daemon again",
              a->path, path);
}

static void probe_ended(shell *sh, uint64_t now_ms) {
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        for (uint32_t k = 0; k < sh->tenants[i].n_arenas; k++)
            look_for_arena(&sh->tenants[i], k); /* as often as for the socket */
    const char *dead = health_judge(&sh->health, sh->probe.state, now_ms);
    if (dead)
        replace_listener(sh, dead);
    if (sh->probe.state == PROBE_ANSWERED) {
        sh->listen_failed = 0;
        server_close_idle_listeners(sh->server);
    }
    sh->probe.state = PROBE_IDLE;
    sh->probe_due_ms = now_ms + PROBE_EVERY_MS;
}

static void probe_tick(shell *sh, uint64_t now_ms) {
    if (sh->probe.state == PROBE_IDLE && now_ms >= sh->probe_due_ms) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = LOOP_TAG_PROBE};
        probe_start(&sh->probe, sh->socket.path);
        sh->probe_due_ms = now_ms + PROBE_TIMEOUT_MS;
        if (sh->probe.fd >= 0)
            epoll_ctl(sh->epoll_fd, EPOLL_CTL_ADD, sh->probe.fd, &event);
    }
    if (sh->probe.state == PROBE_WAITING && now_ms >= sh->probe_due_ms) {
        probe_stop(&sh->probe);
        sh->probe.state = PROBE_SILENT;
    }
    if (sh->probe.state != PROBE_IDLE && sh->probe.state != PROBE_WAITING)
        probe_ended(sh, now_ms);
}

/* --- signals -----------------------------------------------------------------------------------
 */

static void reload(shell *sh) {
    char why[CONFIG_WHY_BYTES], before[1024], after[1024];
    config fresh;
    if (options_config(sh->options, sh->own_uid, &fresh, why, sizeof why) != KVT_OK) {
        log_write(LOG_ERROR, "%s", why);
        log_write(LOG_ERROR, "the configuration was not reloaded: the old one stays in force");
        return;
    }
    if (fresh.n_tenants == 0)
        shell_own_user(sh, &fresh.values); /* as at the start */
    notify_send("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)shell_now_ms(NULL) * 1000);
    param_values *old = &sh->config.values;
    uint32_t n_changed = 0;
    /* The change of the level itself is told at the more talkative of the two. */
    if (fresh.values.log_level > old->log_level)
        log_set_level((log_level)fresh.values.log_level);
    for (size_t i = 0; i < params_n; i++) {
        if (param_equal(&params[i], old, &fresh.values))
            continue;
        n_changed++;
        param_print(&params[i], old, before, sizeof before);
        param_print(&params[i], &fresh.values, after, sizeof after);
        log_write(params[i].flags & PARAM_RELOADS ? LOG_INFO : LOG_WARNING, "\"%s\": %s %s %s",
                  params[i].name, before,
                  params[i].flags & PARAM_RELOADS ? "is now" : "stays until the next start, then",
                  after);
        if (params[i].flags & PARAM_RELOADS) {
            param_copy(&params[i], &fresh.values, old);
            for (uint32_t k = 0; k < sh->config.n_tenants; k++)
                if (!(sh->config.tenants[k].is_set >> i & 1))
                    param_copy(&params[i], &fresh.values, &sh->config.tenants[k].values);
        }
    }
    log_set_level((log_level)old->log_level);
    log_write(LOG_INFO, "configuration reloaded: %u parameters differ", n_changed);
    notify_send("READY=1");
}

static void drain(shell *sh, uint64_t now_ms) {
    if (sh->draining) {
        sh->stop_now = 1;
        return;
    }
    sh->draining = 1;
    probe_stop(&sh->probe); /* a listener that dies now is not replaced */
    sh->probe.state = PROBE_IDLE;
    sh->probe_due_ms = UINT64_MAX;
    sh->drain_end_ms = now_ms + sh->config.values.drain_ms;
    log_write(LOG_INFO, "stopping: nothing new is taken; what is under way has %llu ms",
              (unsigned long long)sh->config.values.drain_ms);
    notify_send("STOPPING=1\nSTATUS=draining");
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        core_drain(sh->tenants[i].core);
}

static void serve_signals(shell *sh) {
    struct signalfd_siginfo info;
    while (read(sh->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP)
            reload(sh);
        else
            drain(sh, shell_now_ms(NULL));
    }
}

/* --- the device --------------------------------------------------------------------------------
 */

static int arena_failed(const arena_have *a) {
    const char *what = a->device->ops->failure ? a->device->ops->failure(a->device) : NULL;
    if (!what)
        return 0;
    log_write(LOG_ERROR,
              "the GPU failed (%s in %s): ending, to be started anew. Nothing that was read since "
              "counts: no lease is confirmed any more",
              what, a->where);
    return 1;
}

/* A GPU that failed is lost to this process: every seal and every read from now on would fail; and
 * what CUDA then says of this process's other GPUs is not to be relied on. Workers go on without
 * the cache until the next start; what they hold here is void. */
static int device_failed(const shell *sh) {
    int failed = 0;
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        for (uint32_t k = 0; k < sh->tenants[i].n_arenas; k++)
            failed |= arena_failed(&sh->tenants[i].arenas[k]);
    return failed;
}

/* --- time --------------------------------------------------------------------------------------
 */

static void add_counts(core_counts *sum, const core *c) {
    core_counts n;
    core_count(c, &n);
    sum->sessions += n.sessions;
    sum->leases += n.leases;
    sum->pages_free += n.pages_free;
    sum->pages_max += n.pages_max;
}

static void notify_tick(shell *sh, uint64_t now_ms) {
    if (now_ms >= sh->watchdog_due_ms) {
        notify_send("WATCHDOG=1");
        sh->watchdog_due_ms = now_ms + notify_watchdog_ms();
    }
    if (now_ms >= sh->status_due_ms && !sh->draining) {
        core_counts counts = {0};
        for (uint32_t i = 0; i < sh->n_tenants; i++)
            add_counts(&counts, sh->tenants[i].core);
        notify_send("STATUS=%llu sessions, %llu leases, %llu of %llu pages free",
                    (unsigned long long)counts.sessions, (unsigned long long)counts.leases,
                    (unsigned long long)counts.pages_free, (unsigned long long)counts.pages_max);
        sh->status_due_ms = now_ms + STATUS_EVERY_MS;
    }
}

/* What epoll may wait for: the first of everything due. */
static int wait_ms(const shell *sh, uint64_t core_due_ms, uint64_t now_ms) {
    uint64_t due = earlier(core_due_ms, sh->probe_due_ms);
    due = earlier(due, earlier(sh->watchdog_due_ms, sh->status_due_ms));
    if (sh->draining)
        due = earlier(due, earlier(sh->drain_end_ms, now_ms + LINGER_MS));
    return due <= now_ms ? 0 : (int)earlier(due - now_ms, 60000);
}

static int drained(shell *sh, uint64_t now_ms) {
    if (!sh->draining)
        return 0;
    if (!shell_is_idle(sh))
        sh->idle_since_ms = 0;
    else if (sh->idle_since_ms == 0)
        sh->idle_since_ms = now_ms;
    if (sh->idle_since_ms != 0 && now_ms >= sh->idle_since_ms + LINGER_MS)
        return 1;
    return sh->stop_now || now_ms >= sh->drain_end_ms;
}

/* --- the loop ----------------------------------------------------------------------------------
 */

static void serve_event(shell *sh, uint64_t data) {
    switch (data & ~(uint64_t)UINT32_MAX) {
    case LOOP_TAG_SIGNAL:
        serve_signals(sh);
        break;
    case LOOP_TAG_PROBE:
        probe_step(&sh->probe);
        break;
    case LOOP_TAG_DISK:
        tier_disk_step(sh->tenants[(uint32_t)data].disk);
        audit(sh, "what the disk said");
        break;
    default: /* the inbox is looked into after every wait */
        if (data >= LOOP_TAG_WATCH)
            watch_ended(sh->tenants[(data - LOOP_TAG_WATCH) >> 32].watch, (uint32_t)data);
        break;
    }
}

static void say_ready(shell *sh) {
    notify_send("READY=1\nSTATUS=serving at %s", sh->socket.path);
    if (sh->options->ready_fd >= 0) {
        if (write(sh->options->ready_fd, "READY\n", 6) != 6)
            log_write(LOG_WARNING, "--ready-fd %d cannot be written: %s", sh->options->ready_fd,
                      strerror(errno));
        close(sh->options->ready_fd);
    }
}

/* When the next thing of any of them is due. */
static uint64_t tenants_tick(shell *sh) {
    uint64_t due_ms = UINT64_MAX;
    for (uint32_t i = 0; i < sh->n_tenants; i++) {
        tenant *t = &sh->tenants[i];
        for (uint32_t gone; (gone = watch_next_gone(t->watch)) != 0;)
            core_peer_gone(t->core, gone);
        due_ms = earlier(due_ms, core_tick(t->core));
        if (t->disk && tier_disk_waits(t->disk)) {
            tier_disk_step(t->disk);
            due_ms = tier_disk_waits(t->disk) ? 0 : due_ms;
        }
        due_ms = earlier(due_ms, tell_tick(t, shell_now_ms(NULL)));
    }
    return due_ms;
}

/* Why pages are not on disk when the time is over. */
static void why_unwritten(const shell *sh, const tenant *t, const core_counts *n, char *to,
                          size_t room) {
    disk_stats stats;
    core_disk state = core_disk_state(t->core);
    tier_disk_count(t->disk, &stats);
    if (stats.silent_ms > 0 && stats.silent_ms >= earlier(sh->config.values.drain_ms, 1000))
        snprintf(to, room, "it has not answered for %llu ms", (unsigned long long)stats.silent_ms);
    else if (state == CORE_DISK_AWAY)
        snprintf(to, room, "its process has ended, and there was no time for another");
    else if (state == CORE_DISK_FAILS)
        snprintf(to, room, "writing there failed");
    else if (state == CORE_DISK_FULL)
        snprintf(to, room, "it is full, and has %llu", (unsigned long long)n->pages_disk);
    else if (n->pages_never == n->pages_dirty)
        snprintf(to, room, "they never go there (see pages_never in kvtrunk(1))");
    else
        snprintf(to, room,
                 sh->stop_now ? "a second signal left no time for them"
                              : "\"drain_ms\" (%llu) is too short for them",
                 (unsigned long long)sh->config.values.drain_ms);
}

/* What a restart will not find. */
static void say_unwritten(const shell *sh) {
    char why[128];
    for (uint32_t i = 0; i < sh->n_tenants; i++) {
        core_counts n;
        core_count(sh->tenants[i].core, &n);
        if (n.disk_bytes == 0 || n.pages_dirty == 0)
            continue;
        why_unwritten(sh, &sh->tenants[i], &n, why, sizeof why);
        log_write(LOG_WARNING, "tenant %s: %llu pages were not written to disk, and are lost: %s",
                  sh->tenants[i].values->tenant, (unsigned long long)n.pages_dirty, why);
    }
}

int shell_run(shell *sh) {
    struct epoll_event events[BATCH];
    uint64_t now_ms = shell_now_ms(NULL), core_due_ms = now_ms;
    int more = 0;
    sh->probe_due_ms = now_ms + PROBE_EVERY_MS;
    health_init(&sh->health);
    sh->watchdog_due_ms = notify_watchdog_ms() > 0 ? now_ms : UINT64_MAX;
    sh->status_due_ms = now_ms + STATUS_EVERY_MS;
    say_ready(sh);
    while (!drained(sh, now_ms)) {
        int timeout_ms = more ? 0 : wait_ms(sh, core_due_ms, now_ms);
        int n = epoll_wait(sh->epoll_fd, events, BATCH, timeout_ms);
        KVT_ASSERT(n >= 0 || errno == EINTR);
        for (int i = 0; i < n; i++)
            serve_event(sh, events[i].data.u64);
        more = serve_inbox(sh);
        if (device_failed(sh)) {
            usleep(LINGER_MS * 1000); /* who asked is told what became of it */
            return EXIT_CODE_DEVICE;
        }
        core_due_ms = tenants_tick(sh);
        audit(sh, "the end of a process, or time");
        now_ms = shell_now_ms(NULL);
        probe_tick(sh, now_ms);
        notify_tick(sh, now_ms);
    }
    if (!shell_is_idle(sh))
        log_write(LOG_WARNING, "stopped with jobs under way: they did not end within drain_ms");
    say_unwritten(sh);
    return EXIT_CODE_OK;
}
