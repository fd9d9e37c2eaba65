/* env.c - what the core needs from outside, as the real world gives it. */
#include "client/assert.h"
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

static void env_random(void *context, void *to, size_t n) {
    (void)context;
    for (size_t done = 0; done < n;) {
        ssize_t got = getrandom((char *)to + done, n - done, 0);
        KVT_ASSERT(got > 0 || errno == EINTR); /* there is no going on with tokens one can guess */
        done += got > 0 ? (size_t)got : 0;
    }
}

static void env_send(void *context, core_ticket ticket, const void *message, size_t n) {
    shell *sh = context;
    server_send(sh->server, ticket, message, n);
}

static void env_submit(void *context, core_job *job) {
    shell *sh = context;
    jobs_submit(sh->jobs, job);
}

static void env_cut(void *context, uint32_t pipe) {
    shell *sh = context;
    server_cut(sh->server, pipe);
}

static void env_watch(void *context, uint32_t session, core_peer peer) {
    shell *sh = context;
    watch_add(sh->watch, session, peer.pid);
}

static void env_unwatch(void *context, uint32_t session) {
    shell *sh = context;
    watch_remove(sh->watch, session);
}

static size_t env_report(void *context, const core *c, kvt_op op, uint32_t lines, char *to,
                         size_t room) {
    shell *sh = context;
    uint32_t n_made = server_listeners(sh->server);
    sh->facts.listeners_replaced = n_made > 0 ? n_made - 1 : 0;
    if (op == KVT_OP_PINS)
        return report_pins(c, lines, to, room);
    if (op == KVT_OP_LEASES)
        return report_leases(c, lines, to, room);
    if (op == KVT_OP_TREE)
        return report_tree(&sh->facts, c, lines, to, room);
    return report_status(&sh->facts, c, shell_now_ms(NULL), to, room);
}

core_env shell_env(shell *sh) {
    return (core_env){.context = sh,
                      .now_ms = shell_now_ms,
                      .random = env_random,
                      .send = env_send,
                      .submit = env_submit,
                      .cut = env_cut,
                      .watch = env_watch,
                      .unwatch = env_unwatch,
                      .report = env_report};
}
