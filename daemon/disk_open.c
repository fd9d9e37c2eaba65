/* disk_open.c - the beginning and the end of a disk tier, which alone may wait. See disk.h. */
#include "daemon/disk_state.h"
#include "kernels/say.h"
#include "store/tier.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    OPEN_ATTEMPTS = 4, /* as it is, looked through, a new file if it died of it; one for luck */
    DEFAULT_LOCK_WAIT_MS = 5000,
    DEFAULT_STALL_MS = 30000,
    DEFAULT_OPEN_MS = 120000, /* with a walk over a file that is in doubt */
    DEFAULT_SILENT_MS = 5000,
    REAP_LIMIT_MS = 2000, /* for a process that was sent SIGKILL */
    STOP_LOOK_MS = 100,   /* how often it is asked whether disk_open is to go on */
};

static void disk_free(disk *d) {
    disk_socket_end(d);
    if (d->pidfd >= 0)
        close(d->pidfd);
    if (d->timer_fd >= 0)
        close(d->timer_fd);
    if (d->epoll_fd >= 0)
        close(d->epoll_fd);
    for (uint32_t i = 0; i < DISK_MAX_REALMS; i++)
        free(d->realms[i].bytes);
    free(d->slots);
    free(d->free_slots);
    free((void *)(uintptr_t)d->options.dir);
    free(d);
}

static disk *disk_new(const disk_options *options) {
    disk *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->options = *options;
    d->options.dir = strdup(options->dir);
    if (!d->options.lock_wait_ms)
        d->options.lock_wait_ms = DEFAULT_LOCK_WAIT_MS;
    if (!d->options.stall_ms)
        d->options.stall_ms = DEFAULT_STALL_MS;
    if (!d->options.silent_ms)
        d->options.silent_ms = DEFAULT_SILENT_MS;
    d->open_ms = options->open_ms ? options->open_ms : DEFAULT_OPEN_MS;
    d->quiet_from_ms = disk_now_ms();
    d->stats.budget_bytes = options->budget_bytes;
    d->stats.map_bytes = tier_room_bytes(options->budget_bytes); /* until the helper says */
    d->socket = d->pidfd = -1;
    d->last = &d->first;
    d->n_free = options->max_requests;
    d->slots = calloc(options->max_requests, sizeof *d->slots);
    d->free_slots = calloc(options->max_requests, sizeof *d->free_slots);
    d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (!d->options.dir || !d->slots || !d->free_slots || d->timer_fd < 0 || d->epoll_fd < 0 ||
        epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->timer_fd, &event) != 0) {
        disk_free(d);
        return NULL;
    }
    for (uint32_t i = 0; i < options->max_requests; i++)
        d->free_slots[i] = options->max_requests - 1 - i;
    return d;
}

/* Until there is something for disk_step, or the time has come. */
static void wait_until(disk *d, uint64_t end_ms) {
    struct pollfd any = {.fd = d->epoll_fd, .events = POLLIN};
    uint64_t now = disk_now_ms();
    poll(&any, 1, end_ms > now ? (int)(end_ms - now < 1000 ? end_ms - now : 1000) : 0);
}

/* A process that waits within the kernel for a disk that does not answer ends when that does: it is
 * not waited for longer than this. */
static void end_helper(disk *d) {
    uint64_t end_ms = disk_now_ms() + REAP_LIMIT_MS;
    d->closing = 1;
    disk_kill(d);
    while (d->pid && disk_now_ms() < end_ms) {
        wait_until(d, end_ms);
        disk_step(d);
    }
}

/* That has been long enough: what comes is for disk_step. */
static int is_late(disk *d) {
    if (!d->options.wait_ms || disk_silence_ms(d) < d->options.wait_ms)
        return 0;
    d->silent_from_ms = d->quiet_from_ms;
    disk_log(d, 1,
             "%s is not open yet after %llu s: its disk does not answer, or a large file is looked "
             "through; until it is open the daemon serves without what is there, and writes "
             "nothing there",
             d->options.dir, (unsigned long long)disk_silence_ms(d) / 1000);
    return 1;
}

/* A file that its helper dies of is looked through by the next one, and moved aside by the third;
 * not so one whose disk does not answer. */
static kvt_status open_first(disk *d, char *why, size_t why_bytes) {
    kvt_status status = disk_spawn(d, why, why_bytes);
    while (status == KVT_OK && d->phase != DISK_UP && !is_late(d)) {
        wait_until(d, disk_now_ms() + STOP_LOOK_MS);
        if (d->options.is_stopped && d->options.is_stopped(d->options.context)) {
            end_helper(d);
            return kvt_say(why, why_bytes, KVT_ECANCELED, "%s: stopped before it was open",
                           d->options.dir);
        }
        disk_clear_timer(d);
        disk_receive(d);
        disk_watch(d);
        if (!disk_take_end(d))
            continue;
        if (d->refused != KVT_OK)
            return kvt_say(why, why_bytes, d->refused, "%s", d->why);
        if (d->n_starts == OPEN_ATTEMPTS)
            return kvt_say(why, why_bytes, KVT_EIO,
                           d->stalled ? "%s: the disk did not answer, %d times, while the file was "
                                        "opened, which is left as it is"
                                      : "%s: the disk helper died %d times of opening it",
                           d->options.dir, OPEN_ATTEMPTS);
        status = disk_spawn(d, why, why_bytes);
    }
    return status;
}

kvt_status disk_open(const disk_options *options, char *why, size_t why_bytes, disk **ret_disk) {
    if (!options->dir || !options->dir[0] || !options->done || options->max_requests == 0 ||
        options->host_bytes == 0)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "a disk tier needs a directory, a host arena and room for requests");
    disk *d = disk_new(options);
    if (!d)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory or descriptors");
    d->opening_first = 1;
    kvt_status status = open_first(d, why, why_bytes);
    d->opening_first = 0;
    if (status != KVT_OK) {
        disk_free(d);
        return status;
    }
    *ret_disk = d;
    return KVT_OK;
}

void disk_close(disk *d, uint32_t limit_ms) {
    const disk_message goodbye = {.kind = DISK_TELL_CLOSE};
    if (!d)
        return;
    uint64_t end_ms = disk_now_ms() + limit_ms;
    d->closing = 1;
    disk_step(d);
    while (d->phase == DISK_UP && disk_under_way(d) > 0 && disk_now_ms() < end_ms) {
        wait_until(d, end_ms);
        disk_step(d);
    }
    int told = d->phase == DISK_UP && disk_under_way(d) == 0 && disk_tell(d, &goodbye, NULL, 0);
    while (told && d->pid && disk_now_ms() < end_ms) {
        wait_until(d, end_ms);
        disk_step(d);
    }
    end_helper(d);
    disk_fail_all(d);
    disk_free(d);
}
