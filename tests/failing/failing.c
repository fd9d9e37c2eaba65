/*
 * failing.c - every nth allocation and every nth system call of the whole scenario fails, once,
 * until the scenario is through without: of a worker (open, acquire, decode, encode, seal, fork,
 * extend, wait, a call that was begun, release, close) against a real daemon, and of the daemon
 * (start, serve that, stop). shim.c makes them fail.
 *
 * What failed says so and can be done again; whatever is read is right; and in the end nothing is
 * left: no memory, no descriptor, no file, and nothing in the daemon's counts.
 *
 *     failing client|daemon [disk]    disk: the daemon has a disk tier
 *
 * Of what libnng calls only socket, bind, listen and connect are made to fail. The rest is left
 * out, because nng 1.5.2 does not survive it, whatever is done around it: when its first socket is
 * opened, most allocations that fail end in SIGSEGV or in a hang, threads that cannot be started
 * too, and getrandom in its panic (abort). That is before the daemon serves, and before kvt_open
 * returns.
 */
#include "tests/e2e/e2e.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* REPORT_FD: one that nobody has got from elsewhere. */
enum { TOKENS = 72, SHARED = 32, REPORT_FD = 200, HANG_S = 60, MANY = 100000, ONE_FAILED = 42 };

/* shim.c, where it is in front of us */
extern void failing_switch(int on) __attribute__((weak));
extern long failing_outstanding(void) __attribute__((weak));

static void arm(int on) {
    if (failing_switch)
        failing_switch(on);
}

static void make_prompt(uint64_t seed, uint32_t *tokens) {
    for (uint32_t i = 0; i < TOKENS + 16; i++)
        tokens[i] = i < SHARED ? i : (uint32_t)(seed * 1000 + i);
}

/* --- a worker whose own calls fail --------------------------------------------------------------
 */

static int is_failure(kvt_status status) {
    return status == KVT_ENOMEM || status == KVT_EIO || status == KVT_ECONN;
}

/* Fails at most once, and is as if it had not been asked then. */
#define AGAIN(call)                                                                                \
    do {                                                                                           \
        kvt_status status_ = KVT_EINTERNAL;                                                        \
        for (int try_ = 0; try_ < 2 && status_ != KVT_OK; try_++) {                                \
            arm(1);                                                                                \
            status_ = (call);                                                                      \
            arm(0);                                                                                \
            CHECK_MSG(status_ == KVT_OK || (try_ == 0 && is_failure(status_)), "%s: %s",           \
                      kvt_status_name(status_), kvt_last_error());                                 \
        }                                                                                          \
    } while (0)

/* What fails once and is done all the same. */
#define ONCE(call)                                                                                 \
    do {                                                                                           \
        arm(1);                                                                                    \
        kvt_status status_ = (call);                                                               \
        arm(0);                                                                                    \
        CHECK_MSG(status_ == KVT_OK || is_failure(status_), "%s: %s", kvt_status_name(status_),    \
                  kvt_last_error());                                                               \
    } while (0)

static kvt_status fill(e2e_worker *w, kvt_lease *lease, const uint32_t *tokens) {
    kvt_status status = e2e_fill(w, lease, tokens, SIZE_MAX);
    return status;
}

static void expect_held(kvt_lease *lease, uint32_t n) {
    kvt_lease_info info;
    CHECK_EQ(kvt_lease_get(lease, &info), KVT_OK);
    CHECK_EQ(info.held_tokens, n);
}

static void begun(e2e_worker *w, const uint32_t *tokens) {
    kvt_pending *pending = NULL;
    kvt_outcome outcome = {0};
    int fd = -1;
    AGAIN(kvt_pending_fd(w->client, &fd));
    for (int i = 0; !outcome.lease; i++) {
        CHECK(i < 2);
        AGAIN(kvt_acquire_begin(w->client, tokens, TOKENS, 0, NULL, &pending));
        ONCE(kvt_finish(pending, &outcome));
    }
    expect_held(outcome.lease, TOKENS);
    AGAIN(kvt_release_begin(outcome.lease, NULL, &pending));
    ONCE(kvt_finish(pending, NULL));
}

static void worker_scenario(e2e_worker *w, const kvt_options *options, uint64_t seed) {
    uint32_t tokens[TOKENS + 16];
    kvt_lease *lease = NULL, *branch = NULL;
    char *json = NULL;
    make_prompt(seed, tokens);
    AGAIN(kvt_open(options, &w->realm, &w->client));
    AGAIN(kvt_acquire(w->client, tokens, TOKENS, KVT_CLAIM, &lease));
    AGAIN(e2e_read(w, lease, tokens));
    AGAIN(fill(w, lease, tokens));
    expect_held(lease, TOKENS);
    AGAIN(e2e_read(w, lease, tokens));
    AGAIN(kvt_fork(lease, TOKENS - 4, &branch));
    AGAIN(kvt_extend(branch, TOKENS - 4, tokens + TOKENS, 16, KVT_CLAIM));
    memmove(tokens + TOKENS - 4, tokens + TOKENS, 16 * sizeof *tokens);
    AGAIN(fill(w, branch, tokens)); /* copy-on-write */
    expect_held(branch, TOKENS + 12);
    AGAIN(e2e_read(w, branch, tokens));
    AGAIN(kvt_wait(branch, 0, 0));
    AGAIN(kvt_status_json(w->client, &json));
    kvt_free(json);
    make_prompt(seed, tokens);
    begun(w, tokens);
    ONCE(kvt_release(lease));
    ONCE(kvt_release(branch));
    arm(1);
    kvt_close(w->client);
    arm(0);
    w->client = NULL;
}

static int count_files(int *ret_sockets) {
    char link[64];
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    *ret_sockets = 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        ssize_t len = readlinkat(dirfd(dir), entry->d_name, link, sizeof link - 1);
        n += len > 0; /* not closed meanwhile */
        *ret_sockets += len > 7 && memcmp(link, "socket:", 7) == 0;
    }
    closedir(dir);
    return n;
}

/* Until the connections are closed, which nng does in a thread of its own. */
static int files_without_sockets(void) {
    time_t start = time(NULL);
    int n, n_sockets;
    while ((n = count_files(&n_sockets)) > 0 && n_sockets > 0)
        CHECK_MSG(time(NULL) - start < HANG_S, "%d sockets stay open", n_sockets);
    return n;
}

static int worker(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000, .staging_pages = 4};
    /* What nng and the C library set up once, and keep. */
    e2e_worker_open(&w, d, seed, 20000);
    kvt_close(w.client);
    int n_files = files_without_sockets();
    long n_memory = failing_outstanding ? failing_outstanding() : 0;
    worker_scenario(&w, &options, seed);
    CHECK_EQ(files_without_sockets(), n_files);
    long n_now = failing_outstanding ? failing_outstanding() : 0;
    CHECK_MSG(n_now == n_memory, "%ld allocations are left, %ld were", n_now, n_memory);
    e2e_worker_close(&w);
    return 0;
}

/* --- a worker of a daemon whose calls fail ------------------------------------------------------
 */

static kvt_status client_round(e2e_worker *w, const kvt_options *options, const uint32_t *tokens) {
    kvt_lease *lease = NULL;
    kvt_status status = w->client ? KVT_OK : kvt_open(options, &w->realm, &w->client);
    if (status == KVT_OK)
        status = kvt_acquire(w->client, tokens, TOKENS, KVT_CLAIM, &lease);
    if (status == KVT_OK)
        status = e2e_read(w, lease, tokens);
    if (status == KVT_OK)
        status = fill(w, lease, tokens);
    if (status == KVT_OK)
        status = e2e_read(w, lease, tokens);
    if (status == KVT_OK)
        expect_held(lease, TOKENS);
    kvt_status end = kvt_release(lease);
    return status == KVT_OK ? end : status;
}

/* One call may fail; the next round must be served. Twice, so that there is something to read. */
static int client(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[TOKENS + 16];
    kvt_options options = {.socket = d->socket, .timeout_ms = 5000, .staging_pages = 4};
    e2e_worker_prepare(&w, seed, E2E_MAX_TOKENS);
    int n_failed = 0;
    for (uint64_t i = 0; i < 3; i++) {
        make_prompt(seed + i / 2, tokens);
        kvt_status status = client_round(&w, &options, tokens);
        if (status == KVT_OK)
            continue;
        n_failed++;
        CHECK_MSG(n_failed < 2, "round %d: %s: %s", (int)i, kvt_status_name(status),
                  kvt_last_error());
        CHECK_MSG(status != KVT_ETIMEDOUT, "round %d: %s", (int)i, kvt_last_error());
        i--;
    }
    e2e_worker_close(&w);
    return n_failed ? ONE_FAILED : 0;
}

static const e2e_jobs jobs[] = {{"worker", worker}, {"client", client}, {NULL, NULL}};

/* --- the test -----------------------------------------------------------------------------------
 */

typedef struct plan {
    const char *kind; /* memory, calls or sockets */
    long n;
    int disk;        /* the daemon has a disk tier */
    const char *off; /* ":off": not before the program says so */
} plan;

/* In a child, before exec: the shim, and where it tells what failed. */
static void put_in_front(const plan *p, int report) {
    char said[64], path[512];
    const char *build = getenv("KVT_BUILD_DIR");
    snprintf(path, sizeof path, "%s/tests/libkvt_failing.so", build ? build : "build");
    snprintf(said, sizeof said, "%s:%ld:%d%s", p->kind, p->n, REPORT_FD, p->off);
    dup2(report, REPORT_FD);
    setenv("LD_PRELOAD", path, 1);
    setenv("KVT_FAIL", said, 1);
}

static pid_t start(const char *program, char *const *argv, const plan *p, int report,
                   const char *log) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 2);
    if (p)
        put_in_front(p, report);
    execv(program, argv);
    _exit(127);
}

static void show(const char *log) {
    char line[512];
    FILE *file = fopen(log, "r");
    while (file && fgets(line, sizeof line, file))
        fprintf(stderr, "    %s", line);
    if (file)
        fclose(file);
}

/* Names of the files there; what was there before a run has to be there after it, and nothing else.
 */
static void list(const char *folder, const char *prefix, char *to, size_t room) {
    struct dirent **names;
    int n = scandir(folder, &names, NULL, alphasort);
    size_t at = 0;
    CHECK(n >= 0);
    to[0] = 0;
    for (int i = 0; i < n; i++) {
        if (strncmp(names[i]->d_name, prefix, strlen(prefix)) == 0 && at < room)
            at += (size_t)snprintf(to + at, room - at, "%s ", names[i]->d_name);
        free(names[i]);
    }
    free(names);
}

/* What failed; "" if the scenario came to its end before. */
static void read_report(int fd, char *to, size_t room) {
    ssize_t n = read(fd, to, room - 1);
    to[n > 0 ? n : 0] = 0;
    close(fd);
}

static void check_daemon(const e2e_daemon *d) {
    static const char *const counts[] = {"leases",       "waiting", "pages_filling",
                                         "pages_pinned", "jobs",    "orphans"};
    e2e_await(d, "sessions", 1); /* the one that asks */
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        e2e_await(d, counts[i], 0);
}

static int run_child(const e2e_daemon *d, const char *job, long n, const plan *p, int report,
                     const char *log) {
    char number[32];
    int status;
    snprintf(number, sizeof number, "%ld", n);
    char *argv[] = {
        (char *)"failing", (char *)"--child", (char *)job, (char *)d->socket, number, NULL};
    pid_t pid = start("/proc/self/exe", argv, p, report, log);
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Returns 0 when the nth was not reached. */
static int client_run(const e2e_daemon *d, const plan *p, char name[64]) {
    char log[160];
    int report[2];
    CHECK(pipe2(report, O_CLOEXEC) == 0);
    snprintf(log, sizeof log, "%s/log", d->folder);
    int code = run_child(d, "worker", p->n, p, report[1], log);
    close(report[1]);
    read_report(report[0], name, 64);
    if (code != 0) {
        show(log);
        CHECK_MSG(0, "with %s no. %ld (%s) failing, the worker ended with %d", p->kind, p->n, name,
                  code);
    }
    check_daemon(d);
    return name[0] != 0;
}

static void client_runs(const e2e_daemon *d, const char *memory, const char *kind, long min_n) {
    char before[4096], after[4096], name[64];
    long n = 1, n_failed = 0;
    list(memory, "", before, sizeof before);
    for (plan p = {.kind = kind, .n = n, .off = ":off"}; n < MANY; n++) {
        p.n = n;
        if (!client_run(d, &p, name))
            break;
        n_failed++;
        list(memory, "", after, sizeof after);
        CHECK_MSG(strcmp(before, after) == 0,
                  "%s no. %ld (%s) failing left files: %s instead of %s", kind, n, name, after,
                  before);
    }
    CHECK_MSG(n_failed >= min_n && n < MANY, "%ld %s failed", n_failed, kind);
    printf("worker: %ld times %s failed\n", n_failed, kind);
}

/* --- the daemon ---------------------------------------------------------------------------------
 */

/* It audits itself after each event, but not where the memory for that is what would fail. */
static void daemon_start(e2e_daemon *d, const plan *p, int report, int ready, const char *log) {
    char program[512], ready_fd[16], arena[256], staging[256], place[256], *disk = NULL;
    const char *build = getenv("KVT_BUILD_DIR");
    snprintf(program, sizeof program, "%s/daemon/kvtrunkd", build ? build : "build");
    snprintf(ready_fd, sizeof ready_fd, "%d", ready);
    snprintf(arena, sizeof arena, "arena_dir=%s", d->folder);
    snprintf(staging, sizeof staging, "staging_dir=%s", d->folder);
    snprintf(place, sizeof place, "disk_dir=%s.disk", d->folder);
    if (p->disk)
        disk = place;
    char *argv[] = {program,
                    (char *)"--socket",
                    d->socket,
                    (char *)"--ready-fd",
                    ready_fd,
                    (char *)"--set",
                    (char *)(strcmp(p->kind, "calls") == 0 ? "audit=true" : "audit=false"),
                    (char *)"--set",
                    (char *)"arena=4MiB",
                    (char *)"--set",
                    (char *)"max_pages=200",
                    (char *)"--set",
                    (char *)"max_sessions=8",
                    (char *)"--set",
                    (char *)"job_threads=1",
                    (char *)"--set",
                    arena,
                    (char *)"--set",
                    staging,
                    disk ? (char *)"--set" : NULL,
                    disk,
                    NULL};
    fcntl(ready, F_SETFD, 0);
    d->pid = start(program, argv, p, report, log);
    fcntl(ready, F_SETFD, FD_CLOEXEC);
}

static int daemon_end(e2e_daemon *d) {
    int status;
    CHECK(waitpid(d->pid, &status, 0) == d->pid);
    d->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int has_error_line(const char *log) {
    char line[1024];
    int found = 0;
    FILE *file = fopen(log, "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        found |= strncmp(line, "kvtrunkd: ", 10) == 0 && !strstr(line, ": info:");
    fclose(file);
    return found;
}

/* Serves, with one failure on the way; *ret_code: of the worker. */
static int serve_run(e2e_daemon *d, const plan *p, const char *log, int *ret_code) {
    char own[160];
    snprintf(own, sizeof own, "%s/worker.log", d->folder);
    *ret_code = run_child(d, "client", p->n, NULL, -1, own);
    int good = *ret_code == 0 || *ret_code == ONE_FAILED;
    if (!good) {
        show(own);
        show(log);
    }
    CHECK_MSG(good, "with %s no. %ld failing the worker ended with %d", p->kind, p->n, *ret_code);
    check_daemon(d);
    kill(d->pid, SIGTERM);
    return daemon_end(d);
}

static int daemon_run(e2e_daemon *d, const plan *p, long *ret_refused) {
    char log[160], own[160], name[64], line[8] = "", files[1024];
    int report[2], ready[2], worker_code = 0;
    CHECK(pipe2(report, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
    snprintf(log, sizeof log, "%s/log", d->folder);
    snprintf(own, sizeof own, "%s/worker.log", d->folder);
    daemon_start(d, p, report[1], ready[1], log);
    close(report[1]);
    close(ready[1]);
    ssize_t n = read(ready[0], line, sizeof line - 1);
    close(ready[0]);
    int serves = n > 0, code;
    *ret_refused += !serves;
    code = serves ? serve_run(d, p, log, &worker_code) : daemon_end(d);
    read_report(report[0], name, sizeof name);
    int good = serves ? code == 0 : code >= 1 && code <= 5 && has_error_line(log);
    if (!good)
        show(log);
    CHECK_MSG(good, "with %s no. %ld (%s) failing, the daemon %s and ended with %d", p->kind, p->n,
              name, serves ? "served" : "did not start", code);
    if (!good)
        printf("    %s no. %ld (%s of nng): the daemon ended with %d\n", p->kind, p->n, name, code);
    unlink(log);
    unlink(own);
    list(d->folder, "", files, sizeof files);
    /* What could not be removed is removed by the next one's start, which the next run looks at. */
    int must_be_clean = good && strcmp(name, "lstat") != 0 && strcmp(name, "unlink") != 0;
    CHECK_MSG(!must_be_clean || strcmp(files, ". .. socket.lock ") == 0 ||
                  strcmp(files, ". .. ") == 0,
              "with %s no. %ld (%s) failing, files are left: %s", p->kind, p->n, name, files);
    return name[0] != 0;
}

static void daemon_runs(e2e_daemon *d, const char *kind, int disk, long min_n) {
    long n = 1, n_failed = 0, n_refused = 0;
    for (plan p = {.kind = kind, .disk = disk, .off = ""}; n < MANY; n++) {
        p.n = n;
        if (!daemon_run(d, &p, &n_refused))
            break;
        n_failed++;
    }
    CHECK_MSG(n_failed >= min_n && n < MANY, "%ld %s failed", n_failed, kind);
    printf("daemon: %ld times %s failed, %ld of them before it served\n", n_failed, kind,
           n_refused);
}

static void daemon_folder(e2e_daemon *d) {
    snprintf(d->folder, sizeof d->folder, "/tmp/kvtrunk-failing-XXXXXX");
    CHECK(mkdtemp(d->folder));
    snprintf(d->socket, sizeof d->socket, "%s/socket", d->folder);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    CHECK_MSG(argc >= 2, "failing client|daemon [disk]");
    e2e_daemon d = {0};
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(argv[1], "client") == 0) {
        char memory[64] = "/dev/shm/kvtrunk-failing-XXXXXX", arena[96], staging[96];
        CHECK(mkdtemp(memory));
        snprintf(arena, sizeof arena, "arena_dir=%s", memory);
        snprintf(staging, sizeof staging, "staging_dir=%s", memory);
        const char *settings[] = {"arena=16MiB", "max_pages=1000", arena, staging, NULL};
        e2e_start(&d, settings);
        client_runs(&d, memory, "memory", 15);
        client_runs(&d, memory, "calls", 12);
        client_runs(&d, memory, "sockets", 1);
        e2e_finish(&d);
        CHECK(rmdir(memory) == 0);
    } else {
        char command[512];
        daemon_folder(&d);
        int disk = argc > 2;
        daemon_runs(&d, "memory", disk, 15);
        daemon_runs(&d, "calls", disk, 50);
        daemon_runs(&d, "sockets", disk, 3);
        snprintf(command, sizeof command, "rm -rf '%s' '%s.disk'", d.folder, d.folder);
        CHECK(system(command) == 0);
    }
    return 0;
}
