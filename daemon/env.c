/* env.c - what the core needs from outside, as the real world gives it. */
#include "client/assert.h"
#include "daemon/log.h"
#include "daemon/shell.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

uint64_t shell_now_ms(void *context) {
    struct timespec now;
    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void shell_random(void *context, void *to, size_t n) {
    (void)context;
    for (size_t done = 0; done < n;) {
        ssize_t got = getrandom((char *)to + done, n - done, 0);
        KVT_ASSERT(got > 0 || errno == EINTR); /* there is no going on with tokens one can guess */
        done += got > 0 ? (size_t)got : 0;
    }
}

static void env_send(void *context, core_ticket ticket, const void *message, size_t n) {
    tenant *t = context;
    server_send(t->shell->server, ticket, message, n);
}

static void env_submit(void *context, core_job *job) {
    tenant *t = context;
    job->owner = t;
    if (job->kind >= CORE_JOB_WRITE)
        tier_disk_submit(t->disk, job);
    else
        jobs_submit(t->jobs, job);
}

static void env_cut(void *context, uint32_t pipe) {
    tenant *t = context;
    server_cut(t->shell->server, pipe);
}

static void env_watch(void *context, uint32_t session, core_peer peer) {
    tenant *t = context;
    watch_add(t->watch, session, peer.pid);
}

static void env_unwatch(void *context, uint32_t session) {
    tenant *t = context;
    watch_remove(t->watch, session);
}

static size_t env_report(void *context, const core *c, kvt_op op, uint32_t lines, char *to,
                         size_t room) {
    tenant *t = context;
    uint32_t n_made = server_listeners(t->shell->server);
    if (t->disk) {
        tier_disk_count(t->disk, &t->disk_stats);
        t->facts.on_disk = &t->disk_stats;
    }
    for (uint32_t i = 0; i < t->n_arenas; i++) {
        kvt_device *device = t->arenas[i].device;
        t->reported[i].failure = device->ops->failure ? device->ops->failure(device) : NULL;
    }
    t->facts.listeners_replaced = n_made > 0 ? n_made - 1 : 0;
    if (op == KVT_OP_PINS)
        return report_pins(c, lines, to, room);
    if (op == KVT_OP_LEASES)
        return report_leases(c, lines, to, room);
    if (op == KVT_OP_TREE)
        return report_tree(&t->facts, c, lines, to, room);
    return report_status(&t->facts, c, shell_now_ms(NULL), to, room);
}

static void env_warn(void *context, const char *line) {
    const tenant *t = context;
    if (t->shell->n_tenants > 1)
        log_write(LOG_WARNING, "tenant %s: %s", t->values->tenant, line);
    else
        log_write(LOG_WARNING, "%s", line);
}

core_env tenant_env(tenant *t) {
    return (core_env){.context = t,
                      .now_ms = shell_now_ms,
                      .random = shell_random,
                      .send = env_send,
                      .submit = env_submit,
                      .cut = env_cut,
                      .watch = env_watch,
                      .unwatch = env_unwatch,
                      .warn = env_warn,
                      .event = tell_event,
                      .report = env_report};
}
