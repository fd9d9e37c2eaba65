/*
 * shell.h - all that stands around the core in the daemon: what start.c opens, loop.c runs and
 * env.c lends to the core.
 *
 *     workers ~~ nng ~~> server --> inbox --> loop: core_message ... --> core
 *        ^                            ^         |                         |
 *        '------- server_send --------|---------|------- env.send --------|
 *                      job threads <--'---------|------ env.submit -------'
 */
#ifndef KVT_DAEMON_SHELL_H
#define KVT_DAEMON_SHELL_H

#include "daemon/core.h"
#include "daemon/inbox.h"
#include "daemon/jobs.h"
#include "daemon/options.h"
#include "daemon/probe.h"
#include "daemon/report.h"
#include "daemon/server_nng.h"
#include "daemon/socket_path.h"
#include "daemon/tier_host.h"
#include "daemon/watch.h"

/* What an epoll event is about: the upper 32 bits of its data. */
#define LOOP_TAG_INBOX  (UINT64_C(1) << 32)
#define LOOP_TAG_SIGNAL (UINT64_C(2) << 32)
#define LOOP_TAG_PROBE  (UINT64_C(3) << 32)
#define LOOP_TAG_WATCH  (UINT64_C(4) << 32) /* the lower half is the session */

typedef struct shell {
    const options *options;
    config config;
    uint32_t own_uid;
    uint32_t uids[PARAM_MAX_UIDS];
    uint32_t n_uids;

    socket_path socket;
    int has_socket;
    uint64_t boot_id;
    char arena_path[PARAM_MAX_TEXT_BYTES + 1];
    kvt_arena_header arena;
    kvt_device *device;
    char arena_where[96];
    int arena_lock; /* -1: none */
    uint32_t max_pages;
    tier_host host;

    int epoll_fd, signal_fd; /* -1: none */
    watch *watch;
    inbox *inbox;
    jobs *jobs;
    server *server;
    core *core;
    report_facts facts;

    /* the loop's own */
    probe probe;
    uint64_t probe_due_ms; /* start of the next one, or end of the one under way */
    uint32_t probes_busy;  /* in a row */
    int listen_failed;     /* and was logged */
    uint64_t replace_due_ms, replace_pause_ms; /* of listeners */
    uint32_t own_pipes[SERVER_OWN_PIPES];
    uint64_t watchdog_due_ms, status_due_ms;
    int draining, stop_now;
    uint64_t drain_end_ms, idle_since_ms;
} shell;

/* start.c: opens everything; logs what is wrong. Returns an exit code; what was opened is closed by
 * shell_close in every case. */
int shell_open(shell *sh, const options *o, const config *c);
/* Closes what is open. With a job that would not end, leaves the core and its threads to exit. */
void shell_close(shell *sh);

/* loop.c: serves until it is told to stop. Returns an exit code. */
int shell_run(shell *sh);

/* env.c */
core_env shell_env(shell *sh);
uint64_t shell_now_ms(void *context);

#endif
