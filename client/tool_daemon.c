/*
 * tool_daemon.c - a daemon of the tool's own: found, configured, started, stopped.
 */
#include "client/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* $KVTRUNKD, the build tree, the installed places, $PATH: in this order. */
static void daemon_find(char *to, size_t room) {
    const char *named = getenv("KVTRUNKD");
    if (named && *named)
        snprintf(to, room, "%s", named);
    else if (!tool_beside("../daemon/kvtrunkd", to, room) &&
             !tool_beside("../sbin/kvtrunkd", to, room) && !tool_beside("kvtrunkd", to, room))
        snprintf(to, room, "kvtrunkd");
}

static int config_write(tool_daemon *d, uint64_t max_pages, uint64_t arena_bytes,
                        uint32_t page_tokens) {
    FILE *file = fopen(d->config, "w");
    if (!file)
        return tool_fail(TOOL_SYSTEM, "%s: %s", d->config, strerror(errno));
    fprintf(file,
            "{\n  \"socket\": \"%s\",\n  \"arena\": %llu,\n  \"max_pages\": %llu,\n"
            "  \"page_tokens\": %u,\n  \"max_claimed_pages\": %llu,\n"
            "  \"log_level\": \"warning\"\n}\n",
            d->socket, (unsigned long long)arena_bytes, (unsigned long long)max_pages, page_tokens,
            (unsigned long long)max_pages);
    if (fclose(file) != 0)
        return tool_fail(TOOL_SYSTEM, "%s: %s", d->config, strerror(errno));
    return TOOL_OK;
}

static int daemon_run(tool_daemon *d) {
    char program[PATH_MAX], ready[16], line[16] = "";
    int fds[2];
    daemon_find(program, sizeof program);
    if (pipe(fds) != 0)
        return tool_fail(TOOL_SYSTEM, "pipe: %s", strerror(errno));
    snprintf(ready, sizeof ready, "%d", fds[1]);
    d->pid = fork();
    if (d->pid == 0) {
        close(fds[0]);
        execlp(program, "kvtrunkd", "--config", d->config, "--ready-fd", ready, (char *)NULL);
        tool_fail(TOOL_SYSTEM, "%s: %s; name it with $KVTRUNKD", program, strerror(errno));
        _exit(127);
    }
    close(fds[1]);
    ssize_t n = d->pid > 0 ? read(fds[0], line, sizeof line - 1) : -1;
    close(fds[0]);
    if (n >= 5 && strncmp(line, "READY", 5) == 0)
        return TOOL_OK;
    if (d->pid > 0)
        waitpid(d->pid, NULL, 0);
    d->pid = 0;
    return tool_fail(TOOL_SYSTEM, "%s did not start", program);
}

int tool_daemon_start(uint64_t max_pages, uint64_t arena_bytes, uint32_t page_tokens,
                      tool_daemon *ret_daemon) {
    const char *tmp = getenv("TMPDIR");
    tool_daemon d = {0};
    snprintf(d.folder, sizeof d.folder, "%.90s/kvtrunk-replay-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(d.folder))
        return tool_fail(TOOL_SYSTEM, "%s: %s", d.folder, strerror(errno));
    snprintf(d.socket, sizeof d.socket, "%s/kvtrunk.sock", d.folder);
    snprintf(d.config, sizeof d.config, "%s/kvtrunkd.json", d.folder);
    int code = config_write(&d, max_pages, arena_bytes, page_tokens);
    if (code == TOOL_OK)
        code = daemon_run(&d);
    if (code != TOOL_OK) {
        tool_daemon_stop(&d);
        return code;
    }
    *ret_daemon = d;
    return TOOL_OK;
}

int tool_daemon_stop(tool_daemon *d) {
    int status = 0, code = TOOL_OK;
    char lock[192];
    if (d->pid > 0) {
        kill(d->pid, SIGTERM);
        while (waitpid(d->pid, &status, 0) < 0 && errno == EINTR)
            continue;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            code = tool_fail(TOOL_FAILED, "kvtrunkd ended with %s %d",
                             WIFEXITED(status) ? "exit code" : "signal",
                             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    snprintf(lock, sizeof lock, "%s.lock", d->socket);
    unlink(lock);
    unlink(d->socket);
    unlink(d->config);
    rmdir(d->folder);
    return code;
}
