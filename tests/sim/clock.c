/*
 * clock.c - the events of a daemon and its tenants, in the order of time; how they come to a core;
 * the daemon's life from its start to the moment when all have gone home.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

/* --- the heap of events -------------------------------------------------------------------------
 */

static int event_before(const sim_event *a, const sim_event *b) {
    return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order);
}

static void heap_swap(sim_daemon *d, size_t a, size_t b) {
    sim_event e = d->events[a];
    d->events[a] = d->events[b];
    d->events[b] = e;
}

/* What the order of messages on a pipe and of jobs in a lane demands of the time. */
static uint64_t *order_of(const sim_event *e) {
    sim_world *w = e->world;
    switch (e->kind) {
    case EVENT_TO_CORE:
    case EVENT_PIPE_UP:
    case EVENT_PIPE_DOWN:
        return &w->pipe_free_ms[0][e->pipe];
    case EVENT_TO_WORKER:
    case EVENT_WORKER_CUT:
        return &w->pipe_free_ms[1][e->pipe];
    case EVENT_JOB_RUN:
    case EVENT_JOB_DONE:
        return &w->lane_free_ms[e->job->lane & 0xffff];
    default:
        return NULL;
    }
}

void sim_push(sim_world *w, sim_event event, uint32_t max_delay_ms) {
    sim_daemon *d = w->d;
    event.world = w;
    event.boot = d->boot;
    event.at_ms = d->now_ms + 1 + sim_below(w, max_delay_ms + 1);
    event.order = d->order++;
    uint64_t *free_ms = order_of(&event);
    if (free_ms) {
        if (event.at_ms <= *free_ms)
            event.at_ms = *free_ms + 1;
        *free_ms = event.at_ms;
    }
    if (d->n_events == d->room_events) {
        d->room_events = d->room_events ? 2 * d->room_events : 256;
        d->events = realloc(d->events, d->room_events * sizeof *d->events);
        CHECK(d->events);
    }
    size_t i = d->n_events++;
    d->events[i] = event;
    while (i > 0 && event_before(&d->events[i], &d->events[(i - 1) / 2])) {
        heap_swap(d, i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
}

static sim_event pop(sim_daemon *d) {
    sim_event top = d->events[0];
    d->events[0] = d->events[--d->n_events];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2; child++)
            if (child < d->n_events && event_before(&d->events[child], &d->events[least]))
                least = child;
        if (least == i)
            return top;
        heap_swap(d, i, least);
        i = least;
    }
}

/* --- events -------------------------------------------------------------------------------------
 */

static const char *event_name(sim_event_kind kind) {
    static const char *names[] = {"to core",    "to worker", "pipe up", "pipe down",
                                  "worker cut", "peer gone", "job run", "job done",
                                  "worker",     "tick",      "scan",    "disk up"};
    return names[kind];
}

sim_world *sim_of_pipe(sim_daemon *d, uint32_t pipe) {
    for (uint32_t i = 0; i < d->n_tenants; i++)
        if (d->worlds[i]->tenant == pipe % SIM_MAX_TENANTS)
            return d->worlds[i];
    return NULL;
}

/* The world that serves it. */
static sim_world *server_of(sim_daemon *d, uint32_t pipe) {
    return d->worlds[core_of_pipe(d->cores, d->n_tenants, pipe)];
}

static void tick(sim_world *w) {
    uint64_t due = core_tick(w->core);
    if (due <= w->d->now_ms)
        sim_fail(w, "core_tick names %llu ms, which is past", (unsigned long long)due);
}

static uint64_t count_flushes(const sim_world *w) {
    core_counts n;
    core_count(w->core, &n);
    return n.flushes;
}

static void message(sim_world *w, const sim_event *e) {
    sim_world *by = server_of(w->d, e->pipe);
    uint64_t n_flushes = count_flushes(by);
    sim_worker *k = &w->workers[w->pipe_worker[e->pipe]];
    if (k->pipe == e->pipe && k->op_n_bytes == e->n_bytes &&
        memcmp(k->op_bytes, e->bytes, e->n_bytes) == 0)
        sim_mirror_note(w, k);
    core_message(by->core, (core_ticket){.pipe = e->pipe, .request = 1}, e->bytes, e->n_bytes);
    if (count_flushes(by) > n_flushes)
        sim_flush_check(by, e->bytes, e->n_bytes);
}

static void pipe_up(sim_world *w, const sim_event *e) {
    const sim_worker *k = &w->workers[e->worker];
    core_peer peer = {.uid = k->uid, .gid = k->gid, .pid = k->pid};
    core_pipe_added(w->d->cores[core_of_peer(w->d->cores, w->d->n_tenants, peer)], e->pipe, peer);
}

static void happen_core(sim_world *w, sim_event *e) {
    if (e->boot != w->d->boot || !w->core)
        return; /* owed to a daemon that is dead */
    switch (e->kind) {
    case EVENT_TO_CORE:
        if (!w->pipe_dead[e->pipe])
            message(w, e);
        break;
    case EVENT_PIPE_UP:
        pipe_up(w, e);
        break;
    case EVENT_PIPE_DOWN:
        core_pipe_removed(server_of(w->d, e->pipe)->core, e->pipe);
        break;
    case EVENT_PEER_GONE:
        core_peer_gone(w->core, e->session);
        break;
    case EVENT_JOB_RUN:
        sim_job_run(w, e->job);
        sim_push(w, (sim_event){.kind = EVENT_JOB_DONE, .job = e->job}, 20);
        break;
    case EVENT_JOB_DONE:
        core_job_done(w->core, e->job);
        break;
    case EVENT_SCAN:
        sim_disk_scan(w);
        break;
    case EVENT_DISK_UP:
        core_disk_up(w->core, 1);
        break;
    default:
        tick(w);
        sim_push(w, (sim_event){.kind = EVENT_TICK}, 200);
    }
}

static void happen(sim_event *e) {
    sim_world *w = e->world;
    sim_worker *k = &w->workers[e->worker];
    switch (e->kind) {
    case EVENT_TO_WORKER:
        if (k->life == e->life && k->pipe == e->pipe && k->state != WORKER_GONE)
            sim_worker_message(w, k, e->bytes, e->n_bytes);
        break;
    case EVENT_WORKER_CUT:
        if (k->life == e->life && k->pipe == e->pipe && k->state != WORKER_GONE)
            sim_worker_cut(w, k);
        break;
    case EVENT_WORKER:
        if (k->life == e->life && k->state != WORKER_GONE)
            sim_worker_step(w, k);
        else if (k->state == WORKER_GONE && k->life == e->life)
            sim_worker_start(w, k);
        break;
    default:
        happen_core(w, e);
    }
    free(e->bytes);
}

/* Whatever happened, it happened to one tenant: the others are looked at as well. */
static void step(sim_daemon *d) {
    sim_event e = pop(d);
    d->now_ms = e.at_ms;
    d->n_steps++;
    if (d->trace)
        printf("%8llu ms  %-10s tenant %u worker %u pipe %u op %u\n", (unsigned long long)e.at_ms,
               event_name(e.kind), e.world->tenant, e.worker, e.pipe,
               e.n_bytes > 7 ? e.bytes[6] : 0);
    happen(&e);
    for (uint32_t i = 0; i < d->n_tenants; i++)
        sim_world_audit(d->worlds[i]);
}

/* --- a run --------------------------------------------------------------------------------------
 */

static void start(sim_daemon *d) {
    CHECK(d->boot < SIM_MAX_ARENAS);
    d->boot++;
    for (uint32_t i = 0; i < d->n_tenants; i++) {
        sim_core_start(d->worlds[i]);
        d->cores[i] = d->worlds[i]->core;
        sim_push(d->worlds[i], (sim_event){.kind = EVENT_TICK}, 200);
    }
}

static void restart(sim_daemon *d) {
    d->killed_ms[d->n_killed++] = d->now_ms;
    for (uint32_t i = 0; i < d->n_tenants; i++)
        sim_core_kill(d->worlds[i]);
    start(d);
}

/* Between two moments, so that it is the same with fewer tenants. */
static int is_between(const sim_daemon *d) {
    return d->n_events > 0 && d->events[0].at_ms > d->now_ms;
}

static void run_first(sim_daemon *d, uint32_t n_steps) {
    while (d->n_steps < n_steps || !is_between(d)) {
        if (is_between(d) && check_below(&d->random, 1000) == 0 && d->boot + 1 < SIM_MAX_ARENAS)
            restart(d);
        step(d);
    }
}

static void run_again(sim_daemon *d, const sim_daemon *before) {
    for (;;) {
        uint64_t end_ms =
            d->n_killed < before->n_killed ? before->killed_ms[d->n_killed] : before->home_ms;
        while (d->n_events > 0 && d->events[0].at_ms <= end_ms)
            step(d);
        d->now_ms = end_ms;
        if (d->n_killed == before->n_killed)
            return;
        restart(d);
    }
}

/* With faults off everybody lets go of everything and says goodbye; then nothing may be left. */
static void go_home(sim_daemon *d) {
    d->faults = 0;
    d->stopping = 1;
    d->home_ms = d->now_ms;
    for (uint64_t limit = d->n_steps + 20000 * d->n_tenants;;) {
        uint32_t n_home = 0;
        for (uint32_t i = 0; i < d->n_tenants; i++) {
            sim_world_home(d->worlds[i]);
            n_home += (uint32_t)d->worlds[i]->is_home;
        }
        if (n_home == d->n_tenants)
            return;
        if (d->n_steps > limit || d->n_events == 0)
            sim_fail(d->worlds[0], "with faults off %u of %u tenants do not come to rest",
                     d->n_tenants - n_home, d->n_tenants);
        step(d);
    }
}

uint32_t sim_tenants(uint64_t seed) {
    return seed % 5 ? 1 : 2 + (uint32_t)(seed / 5 % (SIM_MAX_TENANTS - 1));
}

/* Was the tenant that is alone in `d` served as it was beside the others? */
static void compare(const sim_daemon *d, const sim_daemon *before) {
    sim_world *w = d->worlds[0];
    if (w->digest != before->worlds[w->tenant]->digest)
        sim_fail(w, "beside other tenants this one was served in another way than alone");
    w->n.alone++;
}

void sim_run(sim_daemon *d, uint64_t seed, uint32_t n_steps, uint32_t tenant,
             const sim_daemon *before) {
    sim_world *worlds[SIM_MAX_TENANTS];
    memcpy(worlds, d->worlds, sizeof worlds);
    *d = (sim_daemon){.seed = seed, .random = seed + 1, .faults = 1, .trace = d->trace};
    memcpy(d->worlds, worlds, sizeof worlds);
    d->n_tenants = before ? 1 : sim_tenants(seed);
    for (uint32_t i = 0; i < d->n_tenants; i++)
        sim_world_open(d->worlds[i], d, before ? tenant : i);
    start(d);
    for (uint32_t i = 0; i < d->n_tenants; i++)
        for (uint32_t k = 0; k < d->worlds[i]->n_workers; k++) {
            d->worlds[i]->workers[k].index = k;
            sim_worker_start(d->worlds[i], &d->worlds[i]->workers[k]);
        }
    if (before)
        run_again(d, before);
    else
        run_first(d, n_steps * d->n_tenants);
    go_home(d);
    if (before)
        compare(d, before);
    for (uint32_t i = 0; i < d->n_tenants; i++) /* one that is home may ask a full disk again */
        sim_jobs_end(d->worlds[i]);
    for (size_t i = 0; i < d->n_events; i++)
        free(d->events[i].bytes);
    free(d->events);
    for (uint32_t i = 0; i < d->n_tenants; i++)
        sim_world_close(d->worlds[i]);
}
