/*
 * tool_replay_crew.c - the workers of a replay as the tool sees them: processes that talk through a
 * pipe each. The tool itself never opens a client before they are started, since the messaging
 * library does not survive a fork.
 */
#include "client/tool_replay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_NOTES = 4 };

typedef struct member {
    pid_t pid;
    int fd;    /* -1: it said its last */
    int ended; /* said REPLAY_END */
    replay_counts counts;
} member;

typedef struct crew {
    const replay_options *options;
    const reuse_counts *possible;
    uint64_t n;
    member members[REPLAY_MAX_WORKERS];
    replay_result result;
    char notes[MAX_NOTES][REPLAY_MAX_TEXT_BYTES];
    int n_notes;
    int tty;
    double shown_s; /* when progress was last shown */
    int no_memory;
} crew;

/* --- starting -----------------------------------------------------------------------------------
 */

static _Noreturn void become(const replay_options *o, uint64_t index, int fd, pid_t parent) {
    const char *fixed[] = {"kvtrunk", "replay-worker", "--trace", o->trace,  "--connect",
                           o->socket, "--codec",       o->codec,  "--dtype", o->dtype};
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"index", index},
                   {"workers", o->n_workers},
                   {"requests", o->n_requests},
                   {"layers", o->layers},
                   {"heads", o->heads},
                   {"head-dim", o->head_dim},
                   {"page-tokens", o->page_tokens},
                   {"wait", o->wait_ms},
                   {"timeout", o->timeout_ms}};
    enum { N_FIXED = sizeof fixed / sizeof *fixed, N_NUMBERS = sizeof numbers / sizeof *numbers };
    char args[N_NUMBERS][48], *argv[N_FIXED + N_NUMBERS + 1];
    int n = 0;
    for (int i = 0; i < N_FIXED; i++)
        argv[n++] = (char *)(uintptr_t)fixed[i];
    for (int i = 0; i < N_NUMBERS; i++) {
        snprintf(args[i], sizeof args[i], "--%s=%llu", numbers[i].name,
                 (unsigned long long)numbers[i].value);
        argv[n++] = args[i];
    }
    argv[n] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(TOOL_SYSTEM);
    if (fd == REPLAY_FD)
        fcntl(fd, F_SETFD, 0);
    else
        dup2(fd, REPLAY_FD);
    execv("/proc/self/exe", argv);
    tool_fail(TOOL_SYSTEM, "/proc/self/exe: %s", strerror(errno));
    _exit(TOOL_SYSTEM);
}

static int start_member(crew *c, uint64_t index) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return tool_fail(TOOL_SYSTEM, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become(c->options, index, fds[1], parent);
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return tool_fail(TOOL_SYSTEM, "fork: %s", strerror(errno));
    }
    c->members[index] = (member){.pid = pid, .fd = fds[0]};
    c->n++;
    return TOOL_OK;
}

/* --- hearing ------------------------------------------------------------------------------------
 */

static int read_all(int fd, void *to, size_t n) {
    for (char *at = to; n;) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR && !tool_stopping())
            continue;
        if (got <= 0)
            return 0;
        at += got;
        n -= (size_t)got;
    }
    return 1;
}

/* Workers meet the same trouble at the same time: each sentence is told once. */
static int hear_note(crew *c, const member *m, const replay_head *head) {
    char text[REPLAY_MAX_TEXT_BYTES];
    if (head->n_bytes >= sizeof text || !read_all(m->fd, text, head->n_bytes))
        return 0;
    text[head->n_bytes] = '\0';
    for (int i = 0; i < c->n_notes; i++)
        if (strcmp(c->notes[i], text) == 0)
            return 1;
    if (c->n_notes == MAX_NOTES)
        return 1;
    strcpy(c->notes[c->n_notes++], text);
    if (c->tty)
        fputs("\r\033[K", stderr);
    tool_fail(TOOL_FAILED, "%s", text);
    return 1;
}

static int hear_latencies(crew *c, const member *m, const replay_head *head) {
    replay_result *r = &c->result;
    size_t n = head->n_bytes / sizeof *r->latencies_us;
    double *more = realloc(r->latencies_us, (r->n_latencies + n + 1) * sizeof *more);
    if (!more) {
        c->no_memory = 1;
        return 0;
    }
    r->latencies_us = more;
    if (!read_all(m->fd, more + r->n_latencies, n * sizeof *more))
        return 0;
    r->n_latencies += n;
    return 1;
}

/* Takes one message; 0: there will be no more. */
static int hear(crew *c, member *m) {
    replay_head head;
    if (!read_all(m->fd, &head, sizeof head))
        return 0;
    switch (head.kind) {
    case REPLAY_NOTE:
    case REPLAY_GAVE_UP:
        return hear_note(c, m, &head);
    case REPLAY_LATENCIES:
        return hear_latencies(c, m, &head);
    default:
        m->ended = head.kind == REPLAY_END;
        return head.n_bytes == sizeof m->counts && read_all(m->fd, &m->counts, sizeof m->counts);
    }
}

static void add_up(crew *c) {
    replay_counts sum = {0};
    for (uint64_t i = 0; i < c->n; i++) {
        const replay_counts *one = &c->members[i].counts;
        sum.requests += one->requests;
        sum.tokens_asked += one->tokens_asked;
        sum.tokens_served += one->tokens_served;
        sum.wrong_bytes += one->wrong_bytes;
        sum.pages_recompressed += one->pages_recompressed;
        sum.pages_as_laddered += one->pages_as_laddered;
        sum.bytes_read += one->bytes_read;
        sum.pages_sealed += one->pages_sealed;
        sum.pages_shared += one->pages_shared;
        sum.pages_host += one->pages_host;
        sum.pages_disk += one->pages_disk;
        for (int k = 0; k < KVT_N_STATUS; k++)
            sum.errors[k] += one->errors[k];
    }
    c->result.counts = sum;
}

/* In place on a terminal, else a line every few seconds. */
static void show_progress(crew *c) {
    double now = tool_now_s();
    if (c->options->json || now - c->shown_s < (c->tty ? .2 : 5))
        return;
    c->shown_s = now;
    add_up(c);
    const replay_counts *sum = &c->result.counts;
    fprintf(stderr, "%s%s of %s requests, %s tokens asked for, %s served, %s wrong bytes%s",
            c->tty ? "\r\033[K" : "", tool_number(sum->requests),
            tool_number(c->possible->requests), tool_number(sum->tokens_asked),
            tool_number(sum->tokens_served), tool_number(sum->wrong_bytes), c->tty ? "" : "\n");
    fflush(stderr);
}

/* Until every worker has closed its pipe, or this program is to stop, or the daemon has died. */
static int hear_all(crew *c, tool_daemon *daemon) {
    struct pollfd fds[REPLAY_MAX_WORKERS];
    uint64_t n_open = c->n;
    for (uint64_t i = 0; i < c->n; i++)
        fds[i] = (struct pollfd){.fd = c->members[i].fd, .events = POLLIN};
    while (n_open > 0) {
        if (tool_stopping())
            return TOOL_FAILED;
        if (daemon && tool_daemon_look(daemon) != TOOL_OK)
            return TOOL_FAILED;
        if (poll(fds, (nfds_t)c->n, 200) < 0)
            continue;
        for (uint64_t i = 0; i < c->n; i++)
            if (fds[i].fd >= 0 && fds[i].revents && !hear(c, &c->members[i])) {
                fds[i].fd = -1;
                n_open--;
            }
        show_progress(c);
    }
    return TOOL_OK;
}

/* --- ending -------------------------------------------------------------------------------------
 */

/* The worst of the workers' exit codes; one that gave up has said why. */
static int reap(crew *c, int must_end) {
    int code = TOOL_OK;
    for (uint64_t i = 0; i < c->n; i++) {
        int status = 0;
        member *m = &c->members[i];
        close(m->fd);
        if (must_end)
            kill(m->pid, SIGKILL);
        while (waitpid(m->pid, &status, 0) < 0 && errno == EINTR)
            continue;
        if (must_end)
            continue;
        if (WIFSIGNALED(status))
            code = tool_fail(TOOL_FAILED, "worker %llu was ended by signal %d (%s)",
                             (unsigned long long)i, WTERMSIG(status), strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) != 0)
            code = code == TOOL_OK ? WEXITSTATUS(status) : code;
        else if (!m->ended)
            code =
                tool_fail(TOOL_FAILED, "worker %llu ended without a result", (unsigned long long)i);
    }
    return code;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int replay_crew(const replay_options *options, const reuse_counts *possible, tool_daemon *daemon,
                replay_result *ret_result) {
    static crew c;
    c = (crew){.options = options, .possible = possible, .tty = isatty(STDERR_FILENO)};
    double start_s = c.shown_s = tool_now_s();
    int code = TOOL_OK;
    tool_stopping();
    for (uint64_t i = 0; i < options->n_workers && code == TOOL_OK; i++)
        code = start_member(&c, i);
    if (code == TOOL_OK)
        code = hear_all(&c, daemon);
    if (c.tty && !options->json)
        fputs("\r\033[K", stderr);
    int end = reap(&c, code != TOOL_OK);
    code = code == TOOL_OK ? end : code;
    if (c.no_memory)
        code = tool_fail(TOOL_SYSTEM, "no memory for the times of all requests");
    if (tool_stopping())
        code = tool_fail(TOOL_FAILED, "stopped by signal %d (%s)", tool_stopping(),
                         strsignal(tool_stopping()));
    add_up(&c);
    c.result.seconds = tool_now_s() - start_s;
    if (c.result.n_latencies)
        qsort(c.result.latencies_us, c.result.n_latencies, sizeof(double), compare);
    *ret_result = c.result;
    return code;
}
