/* disk_process.c - the life of the disk helper: started, watched, ended, started again. */
#include "client/assert.h"
#include "daemon/disk_state.h"
#include "kernels/say.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    FIRST_PAUSE_MS = 20,
    LAST_PAUSE_MS = 10000,
    FIRST_FREE_FD = 10, /* above those that the helper is given */
    LAST_OPEN_MS = 3600 * 1000,
};

extern char **environ;

uint64_t disk_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void disk_log(const disk *d, int level, const char *format, ...) {
    char line[1024];
    va_list arguments;
    if (!d->options.log)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    d->options.log(d->options.context, level, line);
}

/* --- starting ----------------------------------------------------------------------------------
 */

static int spawn_actions(posix_spawn_file_actions_t *actions, int socket, int host) {
    int error = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);
    if (!error)
        error = posix_spawn_file_actions_addopen(actions, 1, "/dev/null", O_WRONLY, 0);
    if (!error)
        error = posix_spawn_file_actions_adddup2(actions, socket, DISK_HELPER_SOCKET);
    if (!error)
        error = posix_spawn_file_actions_adddup2(actions, host, DISK_HELPER_HOST);
    return error;
}

/* The daemon blocks signals and ignores some; the helper starts without. */
static int spawn_attributes(posix_spawnattr_t *attributes) {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawnattr_setsigmask(attributes, &none);
    if (!error)
        error = posix_spawnattr_setsigdefault(attributes, &all);
    if (!error)
        error =
            posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return error;
}

static int spawn(disk *d, int socket, int host) {
    char budget[32], host_bytes[32], lock_wait[16], flags[16], parent[16];
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)d->options.budget_bytes);
    snprintf(host_bytes, sizeof host_bytes, "%llu", (unsigned long long)d->options.host_bytes);
    snprintf(lock_wait, sizeof lock_wait, "%u", d->options.lock_wait_ms);
    snprintf(flags, sizeof flags, "%u", d->flags);
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    char *arguments[] = {(char *)(uintptr_t) "kvtrunkd-disk",
                         (char *)(uintptr_t)DISK_HELPER_ARGUMENT,
                         (char *)(uintptr_t)d->options.dir,
                         budget,
                         host_bytes,
                         lock_wait,
                         flags,
                         parent,
                         NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int error = posix_spawn_file_actions_init(&actions);
    if (error)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (!error) {
        error = spawn_actions(&actions, socket, host);
        if (!error)
            error = spawn_attributes(&attributes);
        if (!error)
            error =
                posix_spawn(&d->pid, "/proc/self/exe", &actions, &attributes, arguments, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    if (error)
        d->pid = 0;
    return error;
}

static void fresh_life(disk *d) {
    d->phase = DISK_OPENING;
    d->life_flags = d->flags;
    d->killed = d->stalled = d->useful = d->waiting_to_send = 0;
    d->scanned = 0;
    d->n_scan_numbers = 0;
    d->last_heard_ms = disk_now_ms();
    d->n_starts++;
    for (uint32_t i = 0; i < DISK_MAX_REALMS; i++)
        d->realms[i].told = 0;
}

/* Its socket and its end. If they cannot be watched (a kernel before 5.3, or no memory), it ends.
 */
static int watch_helper(disk *d, int socket) {
    struct epoll_event on_socket = {.events = EPOLLIN}, on_end = {.events = EPOLLIN};
    d->pidfd = (int)syscall(SYS_pidfd_open, d->pid, 0);
    if (d->pidfd >= 0 && epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, socket, &on_socket) == 0 &&
        epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->pidfd, &on_end) == 0)
        return 0;
    int error = errno;
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    d->pid = 0;
    if (d->pidfd >= 0)
        close(d->pidfd);
    d->pidfd = -1;
    return error;
}

kvt_status disk_spawn(disk *d, char *why, size_t why_bytes) {
    int ends[2], ours = -1, theirs = -1, host = -1, error = 0;
    KVT_ASSERT(d->pid == 0 && d->socket < 0);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "no socket: %s", strerror(errno));
    ours = ends[0];
    theirs = fcntl(ends[1], F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    host = fcntl(d->options.host_fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    if (theirs < 0 || host < 0 || fcntl(ours, F_SETFL, O_NONBLOCK) != 0)
        error = errno;
    if (!error)
        error = spawn(d, theirs, host);
    if (!error)
        error = watch_helper(d, ours);
    close(ends[1]);
    if (theirs >= 0)
        close(theirs);
    if (host >= 0)
        close(host);
    if (error) {
        close(ours);
        return kvt_say(why, why_bytes, error == ENOMEM ? KVT_ENOMEM : KVT_EIO,
                       "the disk helper cannot be started: %s", strerror(error));
    }
    d->socket = ours;
    fresh_life(d);
    return KVT_OK;
}

/* --- ending ------------------------------------------------------------------------------------
 */

void disk_socket_end(disk *d) {
    if (d->socket >= 0)
        close(d->socket); /* takes it out of epoll too: nobody else has it */
    d->socket = -1;
}

void disk_kill(disk *d) {
    if (d->pid == 0 || d->killed)
        return;
    d->killed = 1;
    kill(d->pid, SIGKILL);
}

/* Does it compute, and waits for no disk? */
static int computes(pid_t pid) {
    char path[32], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    if (file)
        fclose(file);
    return state == 'R';
}

/*
 * What does its end say about the file? Killed from outside: nothing. By a signal of its own, by us
 * for nonsense, or with the file in doubt: the next one looks through it before it uses it; and if
 * that one comes to such an end too, a new file is made. Where it has only not answered, as on a
 * disk that hangs, or has a walk to do that takes its time, the next one looks through it, too, but
 * that is never a reason for a new file.
 */
static uint32_t next_flags(const disk *d, int status) {
    int in_doubt = WIFEXITED(status)
                       ? WEXITSTATUS(status) != DISK_EXIT_CLOSED &&
                             WEXITSTATUS(status) != DISK_EXIT_ORPHAN &&
                             WEXITSTATUS(status) != DISK_EXIT_REFUSED
                       : d->killed || (WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGTERM);
    if (in_doubt && d->stalled)
        return d->life_flags ? d->life_flags : TIER_CHECK;
    if (in_doubt)
        return d->life_flags ? TIER_DISCARD : TIER_CHECK;
    return d->phase == DISK_OPENING ? d->life_flags : 0;
}

static void describe(const disk *d, int status) {
    char how[64];
    if (WIFEXITED(status))
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
    else
        snprintf(how, sizeof how, "was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    disk_log(d, d->closing ? 2 : 1, "the disk helper %s%s%s", how,
             d->killed ? " since it did not answer" : "",
             d->stalled ? "; the file is left as it is, and the next one looks through it" : "");
}

int disk_reap(disk *d) {
    int status;
    if (d->pid == 0 || waitpid(d->pid, &status, WNOHANG) != d->pid)
        return 0;
    int is_told = WIFEXITED(status) && (WEXITSTATUS(status) == DISK_EXIT_CLOSED ||
                                        (WEXITSTATUS(status) == DISK_EXIT_REFUSED && d->why[0]));
    if (!is_told)
        describe(d, status);
    d->flags = next_flags(d, status);
    d->pid = 0;
    close(d->pidfd);
    d->pidfd = -1;
    disk_socket_end(d);
    if (d->phase == DISK_UP && !d->silent_from_ms) /* it has answered with its end */
        d->quiet_from_ms = disk_now_ms();
    d->phase = DISK_DOWN;
    d->scanned = 0;
    d->before.corrupt += d->seen.corrupt;
    d->before.foreign += d->seen.foreign;
    d->before.orphans += d->seen.orphans;
    d->seen = (tier_usage){.records = 0};
    if (d->useful)
        d->pause_ms = 0;
    else
        d->pause_ms = d->pause_ms == 0                  ? FIRST_PAUSE_MS
                      : d->pause_ms * 2 < LAST_PAUSE_MS ? d->pause_ms * 2
                                                        : LAST_PAUSE_MS;
    d->restart_due_ms = disk_now_ms() + d->pause_ms;
    return 1;
}

/* --- watching ----------------------------------------------------------------------------------
 */

static uint64_t due_ms(const disk *d) {
    if (d->phase == DISK_DOWN)
        return d->closing ? 0 : d->restart_due_ms;
    if (d->phase == DISK_OPENING)
        return d->last_heard_ms + d->options.lock_wait_ms + d->open_ms;
    return d->n_sent > 0 || !d->scanned ? d->last_heard_ms + d->options.stall_ms : 0;
}

/* It computes for ever: that is not its disk, so the file is in doubt. Not while it is opened: the
 * walk over it has an end. */
static void end_stalled(disk *d) {
    if (d->killed)
        return;
    d->stalled = d->phase == DISK_OPENING || !computes(d->pid);
    if (d->phase == DISK_OPENING && d->open_ms < LAST_OPEN_MS)
        d->open_ms *= 2;
    disk_kill(d);
}

static int has_to_answer(const disk *d) {
    return d->phase != DISK_UP || d->n_sent > 0;
}

uint64_t disk_silence_ms(const disk *d) {
    return has_to_answer(d) ? disk_now_ms() - d->quiet_from_ms : 0;
}

/* When that is to be said; 0: not, or it was. While the daemon starts and ends, others say it. */
static uint64_t silence_due_ms(const disk *d) {
    return d->silent_from_ms || d->opening_first || d->closing || !has_to_answer(d)
               ? 0
               : d->quiet_from_ms + d->options.silent_ms;
}

void disk_note_silence(disk *d) {
    uint64_t now = disk_now_ms(), due = silence_due_ms(d);
    if (due && due <= now) {
        d->silent_from_ms = d->quiet_from_ms;
        disk_log(d, 1,
                 d->phase == DISK_UP
                     ? "%s has not answered for %llu s: nothing is read from there or written "
                       "until it does, and what it alone has is computed again"
                     : "%s is not open again after %llu s: until it is, nothing is read from there "
                       "or written, and what it alone has is computed again",
                 d->options.dir, (unsigned long long)(now - d->quiet_from_ms) / 1000);
    } else if (d->silent_from_ms && d->phase == DISK_UP && d->quiet_from_ms > d->silent_from_ms) {
        disk_log(d, 2, "%s answers again, after %llu s", d->options.dir,
                 (unsigned long long)(d->quiet_from_ms - d->silent_from_ms) / 1000);
        d->silent_from_ms = 0;
    }
}

void disk_watch(disk *d) {
    uint64_t limit = due_ms(d), said = silence_due_ms(d), now = disk_now_ms();
    uint64_t due = limit && said ? (limit < said ? limit : said) : limit + said;
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(due / 1000), .tv_nsec = (long)(due % 1000) * 1000000}};
    timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &at, NULL); /* 0: never */
    if (limit && limit <= now && d->phase != DISK_DOWN)
        end_stalled(d);
    int wanted = d->first != NULL && d->phase == DISK_UP;
    if (d->socket >= 0 && wanted != d->waiting_to_send) {
        struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0u)};
        epoll_ctl(d->epoll_fd, EPOLL_CTL_MOD, d->socket, &event);
        d->waiting_to_send = wanted;
    }
}
