/*
 * check_abort.h - CHECK_ABORTS: misuse must end the process by SIGABRT, which is what KVT_ASSERT
 * does. The call runs in a forked child, silently.
 */
#ifndef KVT_TESTS_CHECK_ABORT_H
#define KVT_TESTS_CHECK_ABORT_H

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

static inline pid_t check_abort_fork(void) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (null >= 0)
            dup2(null, STDERR_FILENO);
    }
    return pid;
}

static inline int check_abort_seen(pid_t pid) {
    int state = 0;
    CHECK(waitpid(pid, &state, 0) == pid);
    return WIFSIGNALED(state) && WTERMSIG(state) == SIGABRT;
}

#define CHECK_ABORTS(call)                                                                         \
    do {                                                                                           \
        pid_t child_ = check_abort_fork();                                                         \
        if (child_ == 0) {                                                                         \
            (void)(call);                                                                          \
            _exit(0);                                                                              \
        }                                                                                          \
        CHECK_MSG(check_abort_seen(child_), "%s did not abort", #call);                            \
    } while (0)

#endif
