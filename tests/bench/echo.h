/*
 * echo.h - what a call costs at the least: a blocking REQ/REP echo of nng with messages of given
 * sizes, served by a process of its own.
 */
#ifndef KVT_TESTS_BENCH_ECHO_H
#define KVT_TESTS_BENCH_ECHO_H

#include "tests/bench/bench.h"
#include "tests/e2e/e2e.h"

#include <nng/nng.h>

typedef struct echo {
    pid_t pid;
    nng_socket socket;
    uint8_t *bytes;
} echo;

/* In the folder of a daemon. */
void echo_start(echo *e, const char *folder);
void echo_stop(echo *e);

/* Seconds; sizes in bytes, at least 4 and at most a MiB. */
double echo_once(echo *e, size_t request, uint32_t reply);

#endif
