/*
 * tool_daemon.c - a daemon of the tool's own: found, configured, started, watched, stopped.
 */
#include "client/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    START_S = 60, /* and a second more for each START_BYTES_S of the arena, which it touches */
    START_BYTES_S = 200 << 20,
    STOP_S = 60,
    LOOK_MS = 50, /* between two looks at a process that is to end */
};

/* --- signals that ask this program to stop ------------------------------------------------------
 */

static volatile sig_atomic_t stopping;

static void stop_later(int signal_number) {
    stopping = signal_number;
}

int tool_stopping(void) {
    static int installed;
    if (!installed) {
        /* Without SA_RESTART: a call that waits comes back, and the one who made it looks here. */
        struct sigaction action = {.sa_handler = stop_later};
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGHUP, &action, NULL);
        installed = 1;
    }
    return stopping;
}

/* --- start --------------------------------------------------------------------------------------
 */

/* A program at this place, seen from the folder of this one. */
static int beside(const char *place, char *to, size_t room) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 0;
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    n = snprintf(to, room, "%s/%s", self, place);
    return n > 0 && (size_t)n < room && access(to, X_OK) == 0;
}

/* $KVTRUNKD, the build tree, the installed places, $PATH: in this order. */
static void find(char *to, size_t room) {
    const char *named = getenv("KVTRUNKD");
    if (named && *named)
        snprintf(to, room, "%s", named);
    else if (!beside("../daemon/kvtrunkd", to, room) && !beside("../sbin/kvtrunkd", to, room) &&
             !beside("kvtrunkd", to, room))
        snprintf(to, room, "kvtrunkd");
}

static int write_config(const tool_daemon *d, uint64_t max_pages, uint64_t arena_bytes,
                        uint32_t page_tokens, const char *policy) {
    FILE *file = fopen(d->config, "we");
    if (!file)
        return tool_fail(TOOL_SYSTEM, "%s: %s", d->config, strerror(errno));
    const struct {
        const char *key, *value;
    } paths[] = {{"socket", d->socket}, {"arena_dir", d->folder}, {"staging_dir", d->folder}};
    fputc('{', file);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        fprintf(file, "\n  \"%s\": ", paths[i].key);
        tool_json_text(file, paths[i].value);
        fputc(',', file);
    }
    fprintf(
        file,
        "\n  \"arena\": %llu,\n  \"max_pages\": %llu,\n  \"page_tokens\": %u,\n"
        "  \"max_claimed_pages\": %llu,\n  \"policy\": \"%s\",\n  \"log_level\": \"warning\"\n}\n",
        (unsigned long long)arena_bytes, (unsigned long long)max_pages, page_tokens,
        (unsigned long long)max_pages, policy);
    int bad = ferror(file);
    if (fclose(file) != 0 || bad)
        return tool_fail(TOOL_SYSTEM, "%s: %s", d->config, strerror(errno));
    return TOOL_OK;
}

static _Noreturn void become(const char *program, const char *config, int ready_fd, pid_t parent) {
    char ready[16];
    /* It must not outlive the tool, however that ends. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(TOOL_SYSTEM);
    fcntl(ready_fd, F_SETFD, 0);
    snprintf(ready, sizeof ready, "%d", ready_fd);
    execlp(program, "kvtrunkd", "--config", config, "--ready-fd", ready, (char *)NULL);
    tool_fail(TOOL_SYSTEM, "%s: %s; $KVTRUNKD can name the daemon", program, strerror(errno));
    _exit(127);
}

/* Waits for "READY\n". 0: it ended, or the time is over, or this program is to stop. */
static int wait_ready(int fd, uint64_t arena_bytes) {
    char line[8] = "";
    double end = tool_now_s() + START_S + (double)arena_bytes / START_BYTES_S;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    for (size_t n = 0; n < 6;) {
        if (tool_stopping() || tool_now_s() > end)
            return 0;
        if (poll(&one, 1, 200) <= 0)
            continue;
        ssize_t got = read(fd, line + n, 6 - n);
        if (got <= 0)
            return 0;
        n += (size_t)got;
    }
    return strcmp(line, "READY\n") == 0;
}

static int run(tool_daemon *d, uint64_t arena_bytes) {
    char program[PATH_MAX];
    int fds[2];
    find(program, sizeof program);
    if (pipe2(fds, O_CLOEXEC) != 0)
        return tool_fail(TOOL_SYSTEM, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t parent = getpid();
    d->pid = fork();
    if (d->pid == 0)
        become(program, d->config, fds[1], parent);
    close(fds[1]);
    int ready = d->pid > 0 && wait_ready(fds[0], arena_bytes);
    close(fds[0]);
    if (ready)
        return TOOL_OK;
    if (d->pid < 0) {
        d->pid = 0;
        return tool_fail(TOOL_SYSTEM, "fork: %s", strerror(errno));
    }
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    d->pid = 0;
    return tool_fail(TOOL_SYSTEM, "the daemon did not start (%s)", program);
}

/* With all that is in it: a daemon that was killed leaves its arena, a worker its staging file. */
static void remove_all(const char *path) {
    DIR *folder = opendir(path);
    if (folder) {
        for (struct dirent *entry; (entry = readdir(folder));)
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                unlinkat(dirfd(folder), entry->d_name, 0);
        closedir(folder);
    }
    rmdir(path);
}

static void remove_folder(tool_daemon *d) {
    remove_all(d->folder);
    close(d->lock);
}

/* Locks a folder of ours; -1: somebody else has it, or it is not ours, or not there. The lock
 * ends with this process, as its daemon and its workers do. */
static int lock_folder(const char *path) {
    struct stat st, named;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        lstat(path, &named) == 0 && named.st_ino == st.st_ino)
        return fd;
    close(fd);
    return -1;
}

/* Of runs that were killed: nobody else would remove what they left in memory. */
static void remove_leftovers(const char *place) {
    DIR *folder = opendir(place);
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[PATH_MAX];
        if (strncmp(entry->d_name, "kvtrunk-replay-", 15) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", place, entry->d_name);
        int lock = lock_folder(path);
        if (lock < 0)
            continue;
        remove_all(path);
        close(lock);
    }
    closedir(folder);
}

/* In memory, where the arena should be; else where temporary files go. */
static int make_folder(tool_daemon *d) {
    const char *tmp = getenv("TMPDIR");
    const char *places[] = {"/dev/shm", tmp && *tmp ? tmp : "/tmp", "/tmp"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        /* A socket's address holds 107 bytes. */
        int n = snprintf(d->folder, sizeof d->folder, "%s/kvtrunk-replay-XXXXXX", places[i]);
        if (n >= 80)
            continue;
        remove_leftovers(places[i]);
        if (!mkdtemp(d->folder))
            continue;
        /* Another run may take a new folder for a leftover, up to here. */
        d->lock = lock_folder(d->folder);
        if (d->lock >= 0)
            return TOOL_OK;
        rmdir(d->folder);
    }
    return tool_fail(TOOL_SYSTEM, "a folder in /tmp cannot be made: %s", strerror(errno));
}

int tool_daemon_start(uint64_t max_pages, uint64_t arena_bytes, uint32_t page_tokens,
                      const char *policy, tool_daemon *ret_daemon) {
    tool_daemon d = {0};
    tool_stopping();
    if (make_folder(&d) != TOOL_OK)
        return TOOL_SYSTEM;
    snprintf(d.socket, sizeof d.socket, "%s/kvtrunk.sock", d.folder);
    snprintf(d.config, sizeof d.config, "%s/kvtrunkd.json", d.folder);
    int code = write_config(&d, max_pages, arena_bytes, page_tokens, policy);
    if (code == TOOL_OK)
        code = run(&d, arena_bytes);
    if (code != TOOL_OK) {
        remove_folder(&d);
        return code;
    }
    *ret_daemon = d;
    return TOOL_OK;
}

/* --- end ----------------------------------------------------------------------------------------
 */

static int judge(int status) {
    if (WIFSIGNALED(status))
        return tool_fail(TOOL_FAILED, "kvtrunkd was ended by signal %d (%s)", WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) != 0)
        return tool_fail(TOOL_FAILED, "kvtrunkd ended with exit code %d", WEXITSTATUS(status));
    return TOOL_OK;
}

int tool_daemon_look(tool_daemon *d) {
    int status;
    if (d->pid <= 0 || waitpid(d->pid, &status, WNOHANG) != d->pid)
        return TOOL_OK;
    d->pid = 0;
    judge(status);
    return tool_fail(TOOL_FAILED, "kvtrunkd ended before the replay did");
}

int tool_daemon_stop(tool_daemon *d) {
    int status = 0, code = TOOL_OK;
    if (d->pid > 0) {
        double end = tool_now_s() + STOP_S;
        kill(d->pid, SIGTERM);
        while (waitpid(d->pid, &status, WNOHANG) == 0) {
            if (tool_now_s() > end) {
                code =
                    tool_fail(TOOL_FAILED, "kvtrunkd did not end within %d s of SIGTERM", STOP_S);
                kill(d->pid, SIGKILL);
                waitpid(d->pid, &status, 0);
                break;
            }
            poll(NULL, 0, LOOK_MS);
        }
        d->pid = 0;
        if (code == TOOL_OK)
            code = judge(status);
    }
    remove_folder(d);
    return code;
}
