/*
 * test_where.c - what where.c says of a test that hangs: each place once, however many threads are
 * there, and last where the test itself is.
 */
#include "tests/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IDLE = 12, ROOM = 1 << 16 };

static int never[2]; /* a pipe that nobody writes to */
static atomic_long threads[IDLE + 1];

static void wait_for_ever(void *argument) {
    char byte;
    atomic_store((atomic_long *)argument, syscall(SYS_gettid));
    ssize_t n = read(never[0], &byte, 1);
    (void)n;
}

static void *idle(void *argument) {
    wait_for_ever(argument);
    return NULL;
}

static void *other(void *argument) {
    wait_for_ever(argument);
    return argument; /* another place to come back to, and so another stack */
}

/* After it has named itself, a thread sleeps nowhere but in read. */
static void await_asleep(atomic_long *thread) {
    char path[64], state = 0;
    while (state != 'S') {
        sched_yield();
        snprintf(path, sizeof path, "/proc/self/task/%ld/stat", atomic_load(thread));
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            state = 0;
        if (file)
            fclose(file);
    }
}

static void hang(int to) {
    pthread_t thread;
    dup2(to, STDERR_FILENO);
    CHECK(pipe(never) == 0);
    for (int i = 0; i <= IDLE; i++)
        CHECK(pthread_create(&thread, NULL, i < IDLE ? idle : other, &threads[i]) == 0);
    for (int i = 0; i <= IDLE; i++)
        await_asleep(&threads[i]);
    raise(SIGALRM);
}

static int count(const char *text, const char *what) {
    int n = 0;
    while ((text = strstr(text, what)) != NULL) {
        text += strlen(what);
        n++;
    }
    return n;
}

int main(void) {
    static char said[ROOM];
    int ends[2], status;
    size_t n = 0;
    ssize_t n_now;
    CHECK_MSG(getenv("KVT_HANG_S"), "KVT_HANG_S has to be set: where.c looks at it");
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        hang(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    while (n < ROOM - 1 && (n_now = read(ends[0], said + n, ROOM - 1 - n)) > 0)
        n += (size_t)n_now;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK_MSG(count(said, "a thread:\n") == 2, "%s", said);
    CHECK_MSG(count(said, "and 11 threads more like it\n") == 1, "%s", said);
    CHECK_MSG(count(said, "more like it") == 1, "%s", said);
    CHECK_MSG(count(said, "say nothing") == 0, "%s", said);
    const char *last = strstr(said, "a test hangs:\n");
    CHECK_MSG(last && count(last, "a thread:\n") == 0, "%s", said);
    return 0;
}
