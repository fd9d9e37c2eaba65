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

#include "daemon/arena_open.h"
#include "daemon/core.h"
#include "daemon/health.h"
#include "daemon/inbox.h"
#include "daemon/jobs.h"
#include "daemon/options.h"
#include "daemon/probe.h"
#include "daemon/publish_nng.h"
#include "daemon/report.h"
#include "daemon/server_nng.h"
#include "daemon/socket_path.h"
#include "daemon/tier_disk.h"
#include "daemon/tier_host.h"
#include "daemon/watch.h"

/* What an epoll event is about: the upper 32 bits of its data. */
#define LOOP_TAG_INBOX  (UINT64_C(1) << 32)
#define LOOP_TAG_SIGNAL (UINT64_C(2) << 32)
#define LOOP_TAG_PROBE  (UINT64_C(3) << 32)
#define LOOP_TAG_DISK   (UINT64_C(4) << 32)  /* the lower half is the tenant's index */
#define LOOP_TAG_WATCH  (UINT64_C(64) << 32) /* and the tenant's index; the lower half: session */

typedef struct shell shell;

/* A tenant has all that holds anything of its users to itself; the socket, the inbox and the loop
 * serve all. */
typedef struct tenant {
    shell *shell;
    uint32_t index;
    param_values *values;                                        /* in shell.config */
    char instance[SOCKET_PATH_BYTES + PARAM_MAX_TEXT_BYTES + 2]; /* names its arena */
    arena_have arenas[KVT_MAX_DEVICES];
    uint32_t n_arenas;
    kvt_device *device; /* of all arenas */
    uint32_t max_pages;
    tier_host host;
    int is_host_pinned;
    tier_disk *disk; /* NULL: none */
    watch *watch;
    jobs *jobs;
    core *core;
    report_facts facts;
    report_arena reported[KVT_MAX_DEVICES];
    disk_stats disk_stats;

    char events_path[SOCKET_PATH_BYTES]; /* "": nobody tells its events */
    publisher *publisher;
    uint8_t *events; /* a message that is being made: EVENTS_BYTES */
    kvt_writer writer;
    uint32_t n_events;       /* in it */
    uint64_t first_sequence; /* of these, or of the next */
    uint64_t events_due_ms;  /* a message without events, which tells how far they are */
} tenant;

struct shell {
    const options *options;
    config config;
    uint32_t own_uid;

    socket_path socket;
    int has_socket;
    uint64_t boot_id;
    tenant tenants[PARAM_MAX_TENANTS];
    core *cores[PARAM_MAX_TENANTS]; /* theirs, in the same order */
    uint32_t n_tenants;

    int epoll_fd, signal_fd; /* -1: none */
    inbox *inbox;
    server *server;

    /* the loop's own */
    probe probe;
    uint64_t probe_due_ms; /* start of the next one, or end of the one under way */
    health health;         /* of the listener */
    int listen_failed;     /* and was logged */
    uint32_t own_pipes[SERVER_OWN_PIPES];
    uint64_t watchdog_due_ms, status_due_ms;
    int draining, stop_now;
    int is_stopped; /* shell_open has failed because it was to end */
    uint64_t drain_end_ms, idle_since_ms;
};

/* start.c: opens everything; logs what is wrong. Returns an exit code; what was opened is closed by
 * shell_close in every case. */
int shell_open(shell *sh, const options *o, const config *c);
/* Closes what is open. With a job that would not end, leaves the core and its threads to exit;
 * where closing itself does not end, the process ends with `code`. */
void shell_close(shell *sh, int code);

/* start_touch.c: what is asked while much memory is touched. */
typedef struct start_touch {
    const char *what;
    uint64_t due_ms;
} start_touch;
kvt_touching start_touching(start_touch *t, const char *what); /* t is to live as long as it */
/* Is there a signal that ends the daemon, and waits for the loop? */
int start_is_stopped(void *context);

/* start_tiers.c: host and disk, after the arena; logs what is wrong, returns an exit code. And what
 * records on disk may take in all, 0 without a disk. */
int tenant_open_tiers(tenant *t);
uint64_t tenant_disk_room(const tenant *t);
uint32_t tenant_host_frames(const tenant *t); /* pages that its host tier has places for */

/* A tenant to whom nobody was said to belong is that of the daemon's own user. */
void shell_own_user(const shell *sh, param_values *values);

/* loop.c: serves until it is told to stop. Returns an exit code. */
int shell_run(shell *sh);

/* No job of any tenant is under way. */
int shell_is_idle(const shell *sh);

/* tell.c: events, from the core to those who listen. tell_open before the core is opened, which
 * must know where; tell_start after, since it says who may listen. */
kvt_status tell_open(tenant *t, char *why, size_t why_bytes);
kvt_status tell_start(tenant *t, char *why, size_t why_bytes);
void tell_close(tenant *t);
void tell_event(void *context, const core_event *event); /* core_env.event */
/* Sends what there is, and now and then how far it is; when that is due next. */
uint64_t tell_tick(tenant *t, uint64_t now_ms);

/* env.c */
core_env tenant_env(tenant *t);
void shell_random(void *context, void *to, size_t n);
uint64_t shell_now_ms(void *context);

#endif
