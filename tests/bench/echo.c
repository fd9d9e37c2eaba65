/* echo.c - a process that answers, and whoever asks it. */
#include "tests/bench/echo.h"

#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Answers each message with one of the size that its first four bytes name. */
static int echo_serve(const char *url) {
    nng_socket socket;
    static uint8_t answer[1 << 20];
    if (nng_rep0_open(&socket) != 0 ||
        nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, 8 << 20) != 0 ||
        nng_listen(socket, url, NULL, 0) != 0)
        return 1;
    if (write(STDOUT_FILENO, "R", 1) != 1)
        return 1;
    for (;;) {
        nng_msg *message;
        uint32_t n;
        if (nng_recvmsg(socket, &message, 0) != 0)
            return 1;
        memcpy(&n, nng_msg_body(message), 4);
        nng_msg_clear(message);
        if (nng_msg_append(message, answer, n) != 0 || nng_sendmsg(socket, message, 0) != 0)
            return 1;
    }
}

int bench_child(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--echo") == 0)
        return echo_serve(argv[2]);
    return -1;
}

void echo_start(echo *e, const char *folder) {
    char url[256], ready;
    int fds[2];
    snprintf(url, sizeof url, "ipc://%s/echo", folder);
    CHECK(pipe(fds) == 0);
    e->pid = fork();
    if (e->pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execl("/proc/self/exe", "bench", "--echo", url, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    CHECK(read(fds[0], &ready, 1) == 1);
    close(fds[0]);
    CHECK(nng_req0_open(&e->socket) == 0);
    CHECK(nng_socket_set_size(e->socket, NNG_OPT_RECVMAXSZ, 8 << 20) == 0);
    CHECK(nng_dial(e->socket, url, NULL, 0) == 0);
    e->bytes = calloc(1, 1 << 20);
}

void echo_stop(echo *e) {
    nng_close(e->socket);
    kill(e->pid, SIGKILL);
    waitpid(e->pid, NULL, 0);
    free(e->bytes);
}

double echo_once(echo *e, size_t request, uint32_t reply) {
    nng_msg *message;
    double start = bench_now();
    memcpy(e->bytes, &reply, 4);
    CHECK(nng_msg_alloc(&message, 0) == 0);
    CHECK(nng_msg_append(message, e->bytes, request) == 0);
    CHECK(nng_sendmsg(e->socket, message, 0) == 0);
    CHECK(nng_recvmsg(e->socket, &message, 0) == 0);
    double seconds = bench_now() - start;
    CHECK_EQ(nng_msg_len(message), reply);
    nng_msg_free(message);
    return seconds;
}
