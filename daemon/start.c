/* start.c - from a configuration to a daemon that could serve, and back. */
#include "client/assert.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/shell.h"
#include "kernels/device_many.h"
#include "store/frames.h"

#include <errno.h>
#include <fcntl.h>
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
    CLOSE_DISK_MS = 2000, /* to write the file down and close it, when nothing is under way */
    CLOSE_LIMIT_S = 5,    /* for all that is closed behind the disk */
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

/* Of all tenants together. */
static uint64_t sum_sessions(const shell *sh) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        n += sh->tenants[i].values->max_sessions;
    return n;
}

static void raise_files_limit(const shell *sh) {
    struct rlimit limit;
    uint64_t n_sessions = sum_sessions(sh), needed = 3 * n_sessions + OTHER_FILES;
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
                  (unsigned long long)limit.rlim_cur, (unsigned long long)n_sessions,
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

static uint32_t max_pipes(const shell *sh) {
    return 2 * (uint32_t)sum_sessions(sh) + 64;
}

/* Of a tenant: seals, and one opening and one closing of a staging file for each session. */
static uint32_t max_jobs(const param_values *values) {
    return (uint32_t)(values->max_jobs + 2 * values->max_sessions);
}

static uint32_t sum_jobs(const shell *sh) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        n += max_jobs(sh->tenants[i].values) + CORE_TIER_JOBS + CORE_COOL_JOBS + CORE_CHECK_JOBS;
    return n;
}

/* What is in the inbox, has a job, or waits: the core lets four callers of a session wait. */
static uint32_t max_held(const shell *sh) {
    return INBOX_MESSAGES + sum_jobs(sh) + 4 * (uint32_t)sum_sessions(sh);
}

static void job_done(void *context, core_job *job) {
    const tenant *t = context;
    inbox_put_job_done(t->shell->inbox, job);
}

/* A directory that the configuration names and that cannot be one however often it is tried. */
static int check_dir(const char *key, const char *path) {
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC), error = fd < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EACCES:
        log_write(LOG_ERROR, "\"%s\" = \"%s\": %s", key, path, strerror(error));
        return EXIT_CODE_CONFIG;
    default: /* what else there is, opening what is in it says */
        return EXIT_CODE_OK;
    }
}

static int check_dirs(const tenant *t) {
    int code = check_dir("arena_dir", t->values->arena_dir);
    return code == EXIT_CODE_OK ? check_dir("staging_dir", t->values->staging_dir) : code;
}

static int open_arena(tenant *t) {
    char why[1024];
    start_touch touch;
    arena_wish wish = {t->values, t->instance, t->shell->boot_id, start_touching(&touch, "arena")};
    kvt_device *devices[KVT_MAX_DEVICES];
    kvt_status status = arena_open(&wish, why, sizeof why, t->arenas, &t->n_arenas);
    for (uint32_t i = 0; status == KVT_OK && i < t->n_arenas; i++)
        devices[i] = t->arenas[i].device;
    if (status == KVT_OK && t->n_arenas == 1) {
        t->device = devices[0];
    } else if (status == KVT_OK) {
        status = kvt_device_many_open(devices, t->n_arenas, &t->device);
        snprintf(why, sizeof why, "out of memory");
    }
    if (status == KVT_ECANCELED) {
        log_write(LOG_INFO, "stopping while the arena is touched");
        t->shell->is_stopped = 1;
        return EXIT_CODE_FAILED;
    }
    if (status != KVT_OK) {
        log_write(LOG_ERROR, "%s", why);
        return status == KVT_EINVAL    ? EXIT_CODE_CONFIG
               : status == KVT_ENOTSUP ? EXIT_CODE_DEVICE
                                       : EXIT_CODE_MEMORY;
    }
    /* One tree over all of them; a number that was set is for all together. */
    t->max_pages = t->arenas[0].max_pages * (t->values->max_pages > 0 ? 1 : t->n_arenas);
    return EXIT_CODE_OK;
}

static kvt_status open_inbox(shell *sh, char *why, size_t why_bytes) {
    inbox_limits limits = {.max_messages = INBOX_MESSAGES,
                           .max_message_bytes = INBOX_MESSAGE_BYTES,
                           .max_pipes = max_pipes(sh) + SERVER_OWN_PIPES,
                           .max_jobs = sum_jobs(sh)};
    kvt_status status = inbox_open(&limits, &sh->inbox);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "no memory for %llu sessions",
                 (unsigned long long)sum_sessions(sh));
        return status;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = LOOP_TAG_INBOX};
    if (epoll_ctl(sh->epoll_fd, EPOLL_CTL_ADD, inbox_fd(sh->inbox), &event) != 0) {
        snprintf(why, why_bytes, "the inbox cannot be watched: %s", strerror(errno));
        return KVT_EIO;
    }
    return KVT_OK;
}

/* Each tenant has threads of its own, so that nobody waits behind another's copies. */
static kvt_status open_threads(tenant *t, char *why, size_t why_bytes) {
    const param_values *values = t->values;
    kvt_status status = watch_open(t->shell->epoll_fd, LOOP_TAG_WATCH + ((uint64_t)t->index << 32),
                                   (uint32_t)values->max_sessions, &t->watch);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "no memory for %llu sessions",
                 (unsigned long long)values->max_sessions);
        return status;
    }
    jobs_options wanted = {.staging_dir = values->staging_dir,
                           .device = t->device,
                           .host = t->host.data,
                           .n_threads = (uint32_t)values->job_threads,
                           .max_jobs = max_jobs(values) + CORE_TIER_JOBS + CORE_COOL_JOBS,
                           .max_staging = 2 * (uint32_t)values->max_sessions,
                           .done = job_done,
                           .context = t};
    return jobs_open(&wanted, why, why_bytes, &t->jobs);
}

/* 0: as many as the longest path has, and never more than half of all, which leaves others room. */
static uint32_t claimed_pages(uint64_t wanted, uint32_t max_pages) {
    enum { LONGEST = 16384 };
    uint32_t half = max_pages > 1 ? max_pages / 2 : 1;
    if (wanted == 0)
        return half < LONGEST ? half : LONGEST;
    return wanted < max_pages ? (uint32_t)wanted : max_pages;
}

static kvt_status open_core(tenant *t, char *why, size_t why_bytes) {
    const param_values *v = t->values;
    const kvt_arena_header *header = &t->arenas[0].header;
    core_arena arenas[KVT_MAX_DEVICES];
    for (uint32_t i = 0; i < t->n_arenas; i++) {
        const arena_have *a = &t->arenas[i];
        char *head = a->device->ops->head(a->device);
        arenas[i] = (core_arena){a->path, a->gpu,
                                 (uint64_t *)(void *)(head + a->header.generations_offset)};
    }
    core_env env = tenant_env(t);
    core_config wanted = {
        .boot_id = t->shell->boot_id,
        .tenant = v->tenant,
        .uids = v->uids,
        .n_uids = (uint32_t)v->n_uids,
        .gids = v->gids,
        .n_gids = (uint32_t)v->n_gids,
        .arenas = arenas,
        .n_arenas = t->n_arenas,
        .events_path = t->events_path,
        .staging_dir = v->staging_dir,
        .arena_bytes = header->data_bytes,
        .max_frames = (uint32_t)header->max_frames,
        .max_pages = t->max_pages,
        .page_tokens = (uint32_t)v->page_tokens,
        .max_slots = (uint32_t)v->max_slots,
        .max_realms = (uint32_t)v->max_realms,
        .max_sessions = (uint32_t)v->max_sessions,
        .max_leases = (uint32_t)v->max_leases,
        .max_leases_total = (uint32_t)v->max_leases_total,
        .max_claimed_pages = claimed_pages(v->max_claimed_pages, t->max_pages),
        .max_jobs = (uint32_t)v->max_jobs,
        .policy = (policy_rule)v->policy,
        .grace_ms = (uint32_t)v->grace_ms,
        .max_wait_ms = (uint32_t)v->max_wait_ms,
        .max_pins = (uint32_t)v->max_pins,
        .max_requests = (uint32_t)v->max_requests,
        .claim_ms = (uint32_t)v->claim_ms,
        .event_tokens = v->event_tokens != 0,
        .max_pinned_bytes = v->max_pinned ? v->max_pinned : t->n_arenas * header->data_bytes / 2,
        .host_bytes = t->host.bytes,
        .max_host_frames = tenant_host_frames(t),
        .disk_bytes = tenant_disk_room(t),
        .promote_wait_ms = (uint32_t)v->promote_wait_ms,
        .ladder = v->ladder,
    };
    wanted.max_owner_pinned_bytes =
        v->max_pinned_owner ? v->max_pinned_owner : wanted.max_pinned_bytes;
    return core_open(&wanted, &env, why, why_bytes, &t->core);
}

/* Everybody may connect when others than the daemon's own user belong to a tenant, since a file's
 * mode cannot name them; who it is, the kernel says. */
static uint32_t socket_mode(const shell *sh) {
    for (uint32_t i = 0; i < sh->n_tenants; i++) {
        const param_values *v = sh->tenants[i].values;
        for (uint64_t j = 0; j < v->n_uids; j++)
            if (v->uids[j] != sh->own_uid)
                return 0666;
        if (v->n_gids > 0)
            return 0666;
    }
    return 0600;
}

static kvt_status open_server(shell *sh, char *why, size_t why_bytes) {
    server_options wanted = {.inbox = sh->inbox,
                             .socket = &sh->socket,
                             .mode = socket_mode(sh),
                             .max_pipes = max_pipes(sh),
                             .max_held = max_held(sh)};
    kvt_status status = server_open(&wanted, why, why_bytes, &sh->server);
    if (status == KVT_OK)
        status = server_listen(sh->server, why, why_bytes);
    return status;
}

/* --- all of it ---------------------------------------------------------------------------------
 */

void shell_own_user(const shell *sh, param_values *values) {
    if (values->n_uids + values->n_gids == 0)
        values->uids[values->n_uids++] = sh->own_uid;
}

/* Of the configuration's tenants, or of the only one that there is without any. */
static void set_tenants(shell *sh) {
    config *c = &sh->config;
    sh->n_tenants = c->n_tenants ? c->n_tenants : 1;
    for (uint32_t i = 0; i < sh->n_tenants; i++) {
        tenant *t = &sh->tenants[i];
        *t = (tenant){.shell = sh, .index = i};
        t->values = c->n_tenants ? &c->tenants[i].values : &c->values;
        shell_own_user(sh, t->values);
    }
}

static void set_instance(tenant *t) {
    const shell *sh = t->shell;
    if (sh->config.n_tenants)
        snprintf(t->instance, sizeof t->instance, "%s\n%s", sh->socket.path, t->values->tenant);
    else
        snprintf(t->instance, sizeof t->instance, "%s", sh->socket.path);
}

static void set_facts(tenant *t) {
    for (uint32_t i = 0; i < t->n_arenas; i++)
        t->reported[i] = (report_arena){.path = t->arenas[i].path, .where = t->arenas[i].where};
    t->facts = (report_facts){.values = t->values,
                              .socket = t->shell->socket.path,
                              .device = t->device->ops->name,
                              .arenas = t->reported,
                              .n_arenas = t->n_arenas,
                              .config_file = t->shell->config.file,
                              .started_ms = shell_now_ms(NULL)};
}

static int open_tenant(tenant *t, char *why, size_t why_bytes, kvt_status *ret_status) {
    set_instance(t);
    int code = check_dirs(t);
    if (code == EXIT_CODE_OK)
        code = open_arena(t);
    if (code == EXIT_CODE_OK)
        code = tenant_open_tiers(t);
    if (code != EXIT_CODE_OK)
        return code;
    kvt_status status = open_threads(t, why, why_bytes);
    if (status == KVT_OK)
        status = tell_open(t, why, why_bytes);
    if (status == KVT_OK)
        status = open_core(t, why, why_bytes);
    if (status == KVT_OK && t->disk)
        tier_disk_serve(t->disk, t->core);
    if (status == KVT_OK)
        status = tell_start(t, why, why_bytes);
    t->shell->cores[t->index] = t->core;
    set_facts(t);
    *ret_status = status;
    return EXIT_CODE_OK;
}

static void say_serving_of(const shell *sh, const tenant *t) {
    for (uint32_t i = 0; i < t->n_arenas; i++) {
        const arena_have *a = &t->arenas[i];
        log_write(LOG_INFO, "serving%s%s at %s: arena of %llu MiB in %s, at %s, up to %u pages%s",
                  sh->n_tenants > 1 ? " tenant " : "", sh->n_tenants > 1 ? t->values->tenant : "",
                  sh->socket.path, (unsigned long long)a->header.data_bytes >> 20, a->where,
                  a->path, t->max_pages, t->n_arenas > 1 ? " in all arenas" : "");
    }
}

static void say_serving(const shell *sh) {
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        say_serving_of(sh, &sh->tenants[i]);
}

int shell_open(shell *sh, const options *o, const config *c) {
    char why[1024] = "";
    *sh = (shell){.options = o, .epoll_fd = -1, .signal_fd = -1};
    sh->config = *c;
    probe_init(&sh->probe);
    sh->own_uid = (uint32_t)geteuid();
    umask(0077); /* what others may have is given by name: the arena and the socket */
    set_tenants(sh);
    while (sh->boot_id == 0)
        shell_random(NULL, &sh->boot_id, sizeof sh->boot_id);
    int code = open_signals(sh);
    raise_files_limit(sh);
    if (code == EXIT_CODE_OK)
        code = take_socket(sh);
    if (code != EXIT_CODE_OK)
        return code;
    kvt_status status = open_inbox(sh, why, sizeof why);
    for (uint32_t i = 0; i < sh->n_tenants && status == KVT_OK; i++) {
        code = open_tenant(&sh->tenants[i], why, sizeof why, &status);
        if (code != EXIT_CODE_OK)
            return code;
    }
    if (status == KVT_OK)
        status = open_server(sh, why, sizeof why);
    if (status != KVT_OK) {
        log_write(LOG_ERROR, "%s", why[0] ? why : kvt_status_text(status));
        return status == KVT_EEXIST   ? EXIT_CODE_SOCKET
               : status == KVT_ENOMEM ? EXIT_CODE_MEMORY
                                      : EXIT_CODE_FAILED;
    }
    say_serving(sh);
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

int shell_is_idle(const shell *sh) {
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        if (sh->tenants[i].core && !core_is_idle(sh->tenants[i].core))
            return 0;
    return 1;
}

static void close_tenant(tenant *t, int is_idle) {
    tell_close(t);
    if (is_idle) {
        core_close(t->core);
        if (t->is_host_pinned)
            t->device->ops->unpin(t->device);
        if (t->device)
            t->device->ops->close(t->device);
        tier_host_close(&t->host);
    } else {
        for (uint32_t i = 0; i < t->n_arenas; i++)
            unlink(t->arenas[i].path);
    }
    watch_close(t->watch);
}

/* With their locks: workers look whether the arena is still somebody's when their connection ends.
 */
static void give_up_arenas(tenant *t) {
    for (uint32_t i = 0; i < t->n_arenas; i++) {
        if (t->arenas[i].lock >= 0)
            close(t->arenas[i].lock);
        t->arenas[i].lock = -1;
    }
}

static volatile sig_atomic_t code_at_limit;

static void on_close_limit(int signal_number) {
    static const char text[] = "kvtrunkd: warning: the sockets do not close: ending without\n";
    (void)signal_number;
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(code_at_limit);
}

/* nng_close has been seen to wait for ever for a connection's end. All that counts is on disk by
 * then, and the kernel gives back what else there is: whoever waits for this process, to start it
 * anew, is not kept waiting. */
static void limit_close(int code) {
    const struct sigaction action = {.sa_handler = on_close_limit};
    code_at_limit = code;
    sigaction(SIGALRM, &action, NULL);
    alarm(CLOSE_LIMIT_S);
}

void shell_close(shell *sh, int code) {
    /* With a job that does not end, its thread cannot be waited for, and the core not be closed. */
    int is_idle = shell_is_idle(sh);
    probe_stop(&sh->probe);
    for (uint32_t i = 0; i < sh->n_tenants; i++) {
        /* What did not end while the daemon drained has had its time. */
        tier_disk_close(sh->tenants[i].disk, is_idle ? CLOSE_DISK_MS : 0);
        sh->tenants[i].disk = NULL;
    }
    limit_close(code);
    for (uint32_t i = 0; i < sh->n_tenants && is_idle; i++)
        jobs_close(sh->tenants[i].jobs);
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        give_up_arenas(&sh->tenants[i]);
    server_close(sh->server);
    if (sh->inbox)
        empty_inbox(sh);
    for (uint32_t i = 0; i < sh->n_tenants; i++)
        close_tenant(&sh->tenants[i], is_idle);
    if (is_idle)
        inbox_close(sh->inbox);
    if (sh->epoll_fd >= 0)
        close(sh->epoll_fd);
    if (sh->signal_fd >= 0)
        close(sh->signal_fd);
    if (sh->has_socket)
        socket_path_release(&sh->socket);
    alarm(0);
}
