/* start.c - from a configuration to a daemon that could serve, and back. */
#include "client/assert.h"
#include "daemon/arena_open.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/shell.h"
#include "store/frames.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    INBOX_MESSAGES = 1024,
    INBOX_MESSAGE_BYTES = 64 << 20,
    MIN_HOST_BYTES = 64 << 20, /* of the host tier, with a disk below it */
    OTHER_FILES =
        128, /* descriptors besides those of sessions: nng's, connections that come and go */
};

/* --- the socket's path -------------------------------------------------------------------------
 */

static int join(const char *dir, char *to, size_t room) {
    return dir && dir[0] == '/' && (size_t)snprintf(to, room, "%s/kvtrunk.sock", dir) < room;
}

/* What "auto" means; clients look in the same places. */
static int auto_socket(uint32_t own_uid, char *to, size_t room) {
    const char *named = getenv("KVTRUNK_SOCKET");
    if (named && *named)
        return (size_t)snprintf(to, room, "%s", named) < room;
    if (join(getenv("RUNTIME_DIRECTORY"), to, room))
        return 1;
    if (own_uid == 0) {
        mkdir("/run/kvtrunk", 0755); /* if it cannot be made, opening the lock says so */
        return (size_t)snprintf(to, room, "%s", KVT_DEFAULT_SOCKET) < room;
    }
    return join(getenv("XDG_RUNTIME_DIR"), to, room);
}

static int take_socket(shell *sh) {
    char path[PARAM_MAX_TEXT_BYTES + 1], why[512];
    if (sh->config.values.socket[0]) {
        snprintf(path, sizeof path, "%s", sh->config.values.socket);
    } else if (!auto_socket(sh->own_uid, path, sizeof path)) {
        log_write(LOG_ERROR, "there is no place for the socket: $XDG_RUNTIME_DIR is not set. Say "
                             "--socket /some/dir/kvtrunk.sock");
        return EXIT_CODE_SOCKET;
    }
    if (socket_path_take(path, &sh->socket, why, sizeof why) != KVT_OK) {
        log_write(LOG_ERROR, "%s", why);
        return EXIT_CODE_SOCKET;
    }
    sh->has_socket = 1;
    return EXIT_CODE_OK;
}

/* --- the process -------------------------------------------------------------------------------
 */

static void raise_files_limit(const param_values *values) {
    struct rlimit limit;
    uint64_t needed = 3 * values->max_sessions + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < needed)
        log_write(LOG_WARNING,
                  "the limit of open files is %llu, and %llu sessions may need %llu: "
                  "raise it (LimitNOFILE=, ulimit -n) or lower \"max_sessions\"",
                  (unsigned long long)limit.rlim_cur, (unsigned long long)values->max_sessions,
                  (unsigned long long)needed);
}

/* Before any thread is started, so that all inherit the mask and signals reach the loop alone. */
static int open_signals(shell *sh) {
    sigset_t signals;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    sh->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    sh->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = LOOP_TAG_SIGNAL};
    if (sh->signal_fd < 0 || sh->epoll_fd < 0 ||
        epoll_ctl(sh->epoll_fd, EPOLL_CTL_ADD, sh->signal_fd, &event) != 0) {
        log_write(LOG_ERROR, "no descriptors for signals: %s", strerror(errno));
        return EXIT_CODE_FAILED;
    }
    return EXIT_CODE_OK;
}

/* --- the parts ---------------------------------------------------------------------------------
 */

static uint32_t max_pipes(const param_values *values) {
    return 2 * (uint32_t)values->max_sessions + 64;
}

/* Seals, and one opening and one closing of a staging file for each session. */
static uint32_t max_jobs(const param_values *values) {
    return (uint32_t)(values->max_jobs + 2 * values->max_sessions);
}

/* What is in the inbox, has a job, or waits: the core lets four callers of a session wait. */
static uint32_t max_held(const param_values *values) {
    return INBOX_MESSAGES + max_jobs(values) + 4 * (uint32_t)values->max_sessions;
}

static void job_done(void *context, core_job *job) {
    shell *sh = context;
    inbox_put_job_done(sh->inbox, job);
}

static int open_arena(shell *sh) {
    char why[1024];
    arena_have have;
    arena_wish wish = {&sh->config.values, sh->socket.path, sh->boot_id};
    kvt_status status = arena_open(&wish, why, sizeof why, &have);
    if (status != KVT_OK) {
        log_write(LOG_ERROR, "%s", why);
        return status == KVT_EINVAL    ? EXIT_CODE_CONFIG
               : status == KVT_ENOTSUP ? EXIT_CODE_DEVICE
                                       : EXIT_CODE_MEMORY;
    }
    memcpy(sh->arena_path, have.path, sizeof sh->arena_path);
    memcpy(sh->arena_where, have.where, sizeof sh->arena_where);
    sh->arena = have.header;
    sh->max_pages = have.max_pages;
    sh->device = have.device;
    sh->arena_lock = have.lock;
    return EXIT_CODE_OK;
}

/* The lower tiers. Pages that they hold are known beside those of the arena. */
static int open_tiers(shell *sh) {
    const param_values *v = &sh->config.values;
    char why[1024];
    uint64_t bytes = v->host;
    if (v->disk_dir[0] && bytes < MIN_HOST_BYTES)
        bytes = MIN_HOST_BYTES;
    if (bytes == 0)
        return EXIT_CODE_OK;
    bytes = (bytes + FRAMES_GRANULE_BYTES - 1) / FRAMES_GRANULE_BYTES * FRAMES_GRANULE_BYTES;
    notify_send("STATUS=touching %llu MiB of host tier", (unsigned long long)bytes >> 20);
    if (tier_host_open(bytes, why, sizeof why, &sh->host) != KVT_OK) {
        log_write(LOG_ERROR, "%s", why);
        return EXIT_CODE_MEMORY;
    }
    if (v->max_pages == 0)
        sh->max_pages =
            arena_auto_pages(sh->arena.data_bytes + bytes + (v->disk_dir[0] ? v->disk : 0));
    return EXIT_CODE_OK;
}

static kvt_status open_threads(shell *sh, char *why, size_t why_bytes) {
    const param_values *values = &sh->config.values;
    inbox_limits limits = {.max_messages = INBOX_MESSAGES,
                           .max_message_bytes = INBOX_MESSAGE_BYTES,
                           .max_pipes = max_pipes(values) + SERVER_OWN_PIPES,
                           .max_jobs = max_jobs(values) + CORE_TIER_JOBS};
    kvt_status status = inbox_open(&limits, &sh->inbox);
    if (status == KVT_OK)
        status =
            watch_open(sh->epoll_fd, LOOP_TAG_WATCH, (uint32_t)values->max_sessions, &sh->watch);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "no memory for %llu sessions",
                 (unsigned long long)values->max_sessions);
        return status;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = LOOP_TAG_INBOX};
    if (epoll_ctl(sh->epoll_fd, EPOLL_CTL_ADD, inbox_fd(sh->inbox), &event) != 0) {
        snprintf(why, why_bytes, "the inbox cannot be watched: %s", strerror(errno));
        return KVT_EIO;
    }
    jobs_options wanted = {.staging_dir = values->staging_dir,
                           .device = sh->device,
                           .host = sh->host.data,
                           .n_threads = (uint32_t)values->job_threads,
                           .max_jobs = max_jobs(values) + CORE_TIER_JOBS,
                           .max_staging = 2 * (uint32_t)values->max_sessions,
                           .done = job_done,
                           .context = sh};
    return jobs_open(&wanted, why, why_bytes, &sh->jobs);
}

static kvt_status open_core(shell *sh, char *why, size_t why_bytes) {
    const param_values *v = &sh->config.values;
    char *head = sh->device->ops->head(sh->device);
    core_env env = shell_env(sh);
    core_config wanted = {
        .boot_id = sh->boot_id,
        .tenant = v->tenant,
        .uids = sh->uids,
        .n_uids = sh->n_uids,
        .arena_path = sh->arena_path,
        .staging_dir = v->staging_dir,
        .arena_file_bytes = sh->arena.file_bytes,
        .arena_bytes = sh->arena.data_bytes,
        .generations = (uint64_t *)(void *)(head + sh->arena.generations_offset),
        .max_frames = (uint32_t)sh->arena.max_frames,
        .max_pages = sh->max_pages,
        .page_tokens = (uint32_t)v->page_tokens,
        .max_realms = (uint32_t)v->max_realms,
        .max_sessions = (uint32_t)v->max_sessions,
        .max_leases = (uint32_t)v->max_leases,
        .max_leases_total = (uint32_t)v->max_leases_total,
        .max_claimed_pages =
            v->max_claimed_pages < sh->max_pages ? (uint32_t)v->max_claimed_pages : sh->max_pages,
        .max_jobs = (uint32_t)v->max_jobs,
        .grace_ms = (uint32_t)v->grace_ms,
        .max_wait_ms = (uint32_t)v->max_wait_ms,
        .max_pins = (uint32_t)v->max_pins,
        .max_pinned_bytes = v->max_pinned ? v->max_pinned : sh->arena.data_bytes / 2,
        .host_bytes = sh->host.bytes,
        .max_host_frames = arena_auto_pages(sh->host.bytes),
        .promote_wait_ms = (uint32_t)v->promote_wait_ms,
    };
    wanted.max_owner_pinned_bytes =
        v->max_pinned_owner ? v->max_pinned_owner : wanted.max_pinned_bytes;
    return core_open(&wanted, &env, why, why_bytes, &sh->core);
}

/* Everybody may connect when others than the daemon's own user belong to the tenant, since a file's
 * mode cannot name them; who it is, the kernel says. */
static uint32_t socket_mode(const shell *sh) {
    for (uint32_t i = 0; i < sh->n_uids; i++)
        if (sh->uids[i] != sh->own_uid)
            return 0666;
    return 0600;
}

static kvt_status open_server(shell *sh, char *why, size_t why_bytes) {
    server_options wanted = {.inbox = sh->inbox,
                             .socket = &sh->socket,
                             .mode = socket_mode(sh),
                             .max_pipes = max_pipes(&sh->config.values),
                             .max_held = max_held(&sh->config.values)};
    kvt_status status = server_open(&wanted, why, why_bytes, &sh->server);
    if (status == KVT_OK)
        status = server_listen(sh->server, why, why_bytes);
    return status;
}

/* --- all of it ---------------------------------------------------------------------------------
 */

static void set_uids(shell *sh) {
    const param_values *values = &sh->config.values;
    sh->n_uids = (uint32_t)values->n_uids;
    memcpy(sh->uids, values->uids, sizeof sh->uids);
    if (sh->n_uids == 0)
        sh->uids[sh->n_uids++] = sh->own_uid;
}

static void set_facts(shell *sh) {
    sh->facts = (report_facts){.values = &sh->config.values,
                               .socket = sh->socket.path,
                               .arena_path = sh->arena_path,
                               .device = sh->device->ops->name,
                               .arena_where = sh->arena_where,
                               .config_file = sh->config.file,
                               .started_ms = shell_now_ms(NULL)};
}

int shell_open(shell *sh, const options *o, const config *c) {
    char why[1024] = "";
    *sh = (shell){.options = o, .config = *c, .arena_lock = -1, .epoll_fd = -1, .signal_fd = -1};
    probe_init(&sh->probe);
    sh->own_uid = (uint32_t)geteuid();
    umask(0077); /* what others may have is given by name: the arena and the socket */
    set_uids(sh);
    core_env env = shell_env(sh);
    while (sh->boot_id == 0)
        env.random(sh, &sh->boot_id, sizeof sh->boot_id);
    int code = open_signals(sh);
    raise_files_limit(&sh->config.values);
    if (code == EXIT_CODE_OK)
        code = take_socket(sh);
    if (code == EXIT_CODE_OK)
        code = open_arena(sh);
    if (code == EXIT_CODE_OK)
        code = open_tiers(sh);
    if (code != EXIT_CODE_OK)
        return code;
    kvt_status status = open_threads(sh, why, sizeof why);
    if (status == KVT_OK)
        status = open_core(sh, why, sizeof why);
    set_facts(sh);
    if (status == KVT_OK)
        status = open_server(sh, why, sizeof why);
    if (status != KVT_OK) {
        log_write(LOG_ERROR, "%s", why[0] ? why : kvt_status_text(status));
        return status == KVT_EEXIST   ? EXIT_CODE_SOCKET
               : status == KVT_ENOMEM ? EXIT_CODE_MEMORY
                                      : EXIT_CODE_FAILED;
    }
    log_write(LOG_INFO, "serving at %s: arena of %llu MiB in %s, at %s, up to %u pages",
              sh->socket.path, (unsigned long long)sh->arena.data_bytes >> 20, sh->arena_where,
              sh->arena_path, sh->max_pages);
    return EXIT_CODE_OK;
}

/* What came in after the loop ended: messages go back to nng, the rest is void. */
static void empty_inbox(shell *sh) {
    inbox_item items[16];
    int resume;
    uint32_t n;
    while ((n = inbox_take(sh->inbox, items, 16, &resume)) > 0)
        for (uint32_t i = 0; i < n; i++)
            if (items[i].kind == INBOX_MESSAGE)
                server_free_message(items[i].owner);
}

void shell_close(shell *sh) {
    /* With a job that does not end, its thread cannot be waited for, and the core not be closed. */
    int is_idle = !sh->core || core_is_idle(sh->core);
    probe_stop(&sh->probe);
    if (is_idle)
        jobs_close(sh->jobs);
    server_close(sh->server);
    if (sh->inbox)
        empty_inbox(sh);
    if (is_idle) {
        core_close(sh->core);
        inbox_close(sh->inbox);
        if (sh->device)
            sh->device->ops->close(sh->device);
        tier_host_close(&sh->host);
    } else {
        unlink(sh->arena_path);
    }
    watch_close(sh->watch);
    if (sh->arena_lock >= 0)
        close(sh->arena_lock);
    if (sh->epoll_fd >= 0)
        close(sh->epoll_fd);
    if (sh->signal_fd >= 0)
        close(sh->signal_fd);
    if (sh->has_socket)
        socket_path_release(&sh->socket);
}
