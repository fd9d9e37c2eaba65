/*
 * world.c - the event loop of the simulator, and its command line:
 *
 *   sim [--seed S] [--count N] [--steps N] [--trace]
 *
 * runs the seeds S, S + 1 ... S + N - 1. A failing seed says so and how to run it again.
 */
#include "tests/sim/world.h"
#include "tests/check.h"

#include <stdarg.h>

uint32_t sim_below(sim_world *w, uint32_t n) {
    return check_below(&w->random, n);
}

int sim_chance(sim_world *w, uint32_t per_mille) {
    return w->faults && sim_below(w, 1000) < per_mille;
}

void sim_fail(sim_world *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "seed %llu, event %llu, at %llu ms: ", (unsigned long long)w->seed,
            (unsigned long long)w->n_steps, (unsigned long long)w->now_ms);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nrun it again with: ./run sim %llu\n", (unsigned long long)w->seed);
    va_end(args);
    exit(1);
}

/* --- the heap of events -------------------------------------------------------------------------
 */

static int event_before(const sim_event *a, const sim_event *b) {
    return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order);
}

static void heap_swap(sim_world *w, size_t a, size_t b) {
    sim_event e = w->events[a];
    w->events[a] = w->events[b];
    w->events[b] = e;
}

/* What the order of messages on a pipe and of jobs in a lane demands of the time. */
static uint64_t *order_of(sim_world *w, const sim_event *e) {
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
    event.at_ms = w->now_ms + 1 + sim_below(w, max_delay_ms + 1);
    event.order = w->order++;
    uint64_t *free_ms = order_of(w, &event);
    if (free_ms) {
        if (event.at_ms <= *free_ms)
            event.at_ms = *free_ms + 1;
        *free_ms = event.at_ms;
    }
    if (w->n_events == w->room_events) {
        w->room_events = w->room_events ? 2 * w->room_events : 256;
        w->events = realloc(w->events, w->room_events * sizeof *w->events);
        CHECK(w->events);
    }
    size_t i = w->n_events++;
    w->events[i] = event;
    while (i > 0 && event_before(&w->events[i], &w->events[(i - 1) / 2])) {
        heap_swap(w, i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
}

static sim_event pop(sim_world *w) {
    sim_event top = w->events[0];
    w->events[0] = w->events[--w->n_events];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2; child++)
            if (child < w->n_events && event_before(&w->events[child], &w->events[least]))
                least = child;
        if (least == i)
            return top;
        heap_swap(w, i, least);
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

static void tick(sim_world *w) {
    uint64_t due = core_tick(w->core);
    if (due <= w->now_ms)
        sim_fail(w, "core_tick names %llu ms, which is past", (unsigned long long)due);
}

static uint64_t count_flushes(const sim_world *w) {
    core_counts n;
    core_count(w->core, &n);
    return n.flushes;
}

static void message(sim_world *w, const sim_event *e) {
    uint64_t n_flushes = count_flushes(w);
    sim_worker *k = &w->workers[w->pipe_worker[e->pipe]];
    if (k->pipe == e->pipe && k->op_n_bytes == e->n_bytes &&
        memcmp(k->op_bytes, e->bytes, e->n_bytes) == 0)
        sim_mirror_note(w, k);
    core_message(w->core, (core_ticket){.pipe = e->pipe, .request = 1}, e->bytes, e->n_bytes);
    if (count_flushes(w) > n_flushes)
        sim_flush_check(w, e->bytes, e->n_bytes);
}

static void happen_core(sim_world *w, sim_event *e) {
    if (e->boot != w->boot || !w->core)
        return; /* owed to a daemon that is dead */
    switch (e->kind) {
    case EVENT_TO_CORE:
        if (!w->pipe_dead[e->pipe])
            message(w, e);
        break;
    case EVENT_PIPE_UP: {
        const sim_worker *k = &w->workers[e->worker];
        core_pipe_added(w->core, e->pipe, (core_peer){.uid = 1, .gid = 1, .pid = k->pid});
        break;
    }
    case EVENT_PIPE_DOWN:
        core_pipe_removed(w->core, e->pipe);
        break;
    case EVENT_PEER_GONE:
        core_peer_gone(w->core, e->session);
        break;
    case EVENT_JOB_RUN:
        sim_job_run(w, e->job);
        sim_push(w, (sim_event){.kind = EVENT_JOB_DONE, .job = e->job, .boot = w->boot}, 20);
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
        sim_push(w, (sim_event){.kind = EVENT_TICK, .boot = w->boot}, 200);
    }
}

static void happen(sim_world *w, sim_event *e) {
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

static void audit(sim_world *w) {
    char why[256] = "";
    if (w->core && core_audit(w->core, why, sizeof why) != KVT_OK)
        sim_fail(w, "audit: %s", why);
    if (w->core) {
        sim_keep_check(w);
        sim_mirror_check(w);
    }
}

static void step(sim_world *w) {
    sim_event e = pop(w);
    w->now_ms = e.at_ms;
    w->n_steps++;
    if (w->trace)
        printf("%8llu ms  %-10s worker %u pipe %u op %u\n", (unsigned long long)e.at_ms,
               event_name(e.kind), e.worker, e.pipe, e.n_bytes > 7 ? e.bytes[6] : 0);
    happen(w, &e);
    audit(w);
}

/* --- a run --------------------------------------------------------------------------------------
 */

/* In half of the worlds pages cool, in one step or in two. */
static void make_ladder(sim_world *w) {
    static const char *const sets[] = {"f16", "i8", "i4"};
    uint32_t first = w->seed % 4 == 1 ? 1 : 0;
    w->n_rungs = w->seed % 4 < 2 ? SIM_MAX_RUNGS - first : 1;
    w->realm_desc.codec = first ? sets[first] : "";
    w->config.ladder = w->n_rungs > 1 ? "f16 > i8 > i4" : NULL;
    for (uint32_t i = 0; i < w->geometry.n_groups; i++) {
        for (uint32_t k = 0; k < w->n_rungs; k++)
            CHECK_EQ(
                kvt_page_shape_init(&w->geometry, i, sets[first + k], NULL, 0, &w->rungs[i][k]),
                KVT_OK);
        w->shapes[i] = w->rungs[i][0];
    }
}

/* Half of the worlds have models with layer groups and windows. */
static void make_geometry(sim_world *w) {
    static const kvt_group groups[][SIM_MAX_GROUPS] = {
        {{1, 0}, {0, 0}},  {{1, 0}, {0, 0}},   {{1, 0}, {2, 24}},
        {{2, 40}, {1, 0}}, {{1, 17}, {1, 60}}, {{1, 32}, {0, 0}},
    };
    const kvt_group *g = groups[sim_below(w, sizeof groups / sizeof *groups)];
    uint32_t n_groups = g[1].n_layers ? 2 : 1;
    /* Pages that cool are small slabs each, so that an arena of a few has room for other sizes. */
    uint32_t head_dim = (w->seed % 4 < 2 ? 60 : 64) / n_groups;
    kvt_geometry_init(&w->geometry, g[0].n_layers + g[1].n_layers, 1, head_dim, SIM_PAGE_TOKENS);
    w->geometry.n_groups = n_groups;
    w->geometry.n_ranks = w->seed % 4 == 3 ? SIM_MAX_RANKS : 1; /* of those that do not cool */
    for (uint32_t i = 0; i < n_groups; i++)
        w->geometry.groups[i] = g[i];
    make_ladder(w);
}

static void world_open(sim_world *w, uint64_t seed, int trace) {
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->random = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    w->trace = trace;
    w->next_pipe = 1;
    w->next_pid = 100;
    w->faults = 1;
    w->n_workers = 2 + sim_below(w, SIM_MAX_WORKERS - 1);
    make_geometry(w);
    w->n_workers += w->n_workers % w->geometry.n_ranks;
    w->realm_desc.model = "simulated";
    w->realm_desc.geometry = w->geometry;
    CHECK_EQ(
        kvt_wire_realm_encode(&w->realm_desc, w->canonical, sizeof w->canonical, &w->n_canonical),
        KVT_OK);
    static const uint32_t uids[] = {1};
    uint32_t granules = 1 + sim_below(w, 3);
    const char *ladder = w->config.ladder;
    w->config = (core_config){.ladder = ladder,
                              .short_pct = 1 + sim_below(w, sim_below(w, 2) ? 90 : 5),
                              .tenant = "sim",
                              .uids = uids,
                              .n_uids = 1,
                              .arena_path = "arena",
                              .staging_dir = "staging",
                              .arena_bytes = granules * UINT64_C(65536),
                              .max_frames = 8 + sim_below(w, 64),
                              .max_pages = 8 + sim_below(w, 60),
                              .page_tokens = SIM_PAGE_TOKENS,
                              .max_slots = 8,
                              .max_realms = 4,
                              .max_sessions = 2 + sim_below(w, 16),
                              .max_leases = 2 + sim_below(w, SIM_MAX_LEASES),
                              .max_leases_total = 4 + sim_below(w, 40),
                              .max_claimed_pages = 1 + sim_below(w, 40),
                              .max_jobs = 1 + sim_below(w, 8),
                              .grace_ms = 200 + sim_below(w, 3000),
                              .max_wait_ms = 5000,
                              .claim_ms = sim_below(w, 3) ? 100 + sim_below(w, 3000) : 0,
                              .max_requests = sim_below(w, 3) ? 0 : 1 + sim_below(w, 4),
                              .event_tokens = 1,
                              .max_pins = sim_below(w, 6),
                              .max_pinned_bytes = sim_below(w, 100000),
                              .max_owner_pinned_bytes = sim_below(w, 100000)};
    if (seed % 3 == 0)
        return;
    w->config.host_bytes = (1 + sim_below(w, 3)) * UINT64_C(65536);
    w->config.max_host_frames = 8 + sim_below(w, 64);
    w->config.max_pages += sim_below(w, 200);
    w->config.promote_wait_ms = sim_below(w, 3000);
    if (seed % 3 == 1)
        w->config.disk_bytes = 20000 + sim_below(w, 2000000);
    tier_key_debug_bits(seed % 9 == 1 ? 8 : 128);
}

static void world_close(sim_world *w) {
    for (size_t i = 0; i < w->n_events; i++)
        free(w->events[i].bytes);
    free(w->events);
    for (uint32_t i = 0; i < w->n_workers; i++)
        free(w->workers[i].op_bytes);
    for (uint32_t i = 0; i < w->n_stagings; i++)
        free(w->stagings[i].bytes);
    for (uint32_t i = 0; i < w->boot; i++) {
        free(w->arenas[i].data);
        free(w->arenas[i].generations);
    }
    core_close(w->core);
    free(w->host);
    sim_disk_close(w);
}

/* With faults off everybody lets go of everything and says goodbye; then nothing may be left. */
static void go_home(sim_world *w) {
    w->faults = 0;
    w->stopping = 1;
    for (uint64_t limit = w->n_steps + 20000;;) {
        int home = core_is_idle(w->core);
        for (uint32_t i = 0; i < w->n_workers; i++)
            home = home && sim_worker_home(&w->workers[i]);
        core_counts n;
        core_count(w->core, &n);
        if (home && n.sessions == 0 && n.groups == 0) {
            /* A PIN may still have been on its way when its worker had ended all that it saw. */
            if (n.leases || (n.pages_pinned && !n.pins) || n.pages_filling || n.waiting || n.jobs ||
                n.flushed_held)
                sim_fail(w, "left behind: %llu leases, %llu pinned and %llu filling pages",
                         (unsigned long long)n.leases, (unsigned long long)n.pages_pinned,
                         (unsigned long long)n.pages_filling);
            uint64_t n_pages = n.pages_evictable + n.pages_pinned;
            uint64_t most = n_pages * w->geometry.n_groups * w->geometry.n_ranks;
            int windows = w->geometry.groups[0].window || w->geometry.groups[1].window;
            w->n_passed += n.pages_passed;
            w->n_cooled += n.pages_cooled;
            if ((!windows && n.frames_used + n.pages_host + n.pages_disk < most) ||
                n.frames_used > most ||
                (!windows && !w->config.host_bytes && n.frames_used != most))
                sim_fail(w, "%llu frames in use for %llu pages", (unsigned long long)n.frames_used,
                         (unsigned long long)n.pages_evictable);
            return;
        }
        if (w->n_steps > limit || w->n_events == 0)
            sim_fail(w, "with faults off it does not come to rest: %llu sessions, %llu jobs",
                     (unsigned long long)n.sessions, (unsigned long long)n.jobs);
        step(w);
    }
}

void sim_run(sim_world *w, uint64_t seed, uint32_t n_steps, int trace) {
    world_open(w, seed, trace);
    sim_daemon_start(w);
    sim_push(w, (sim_event){.kind = EVENT_TICK, .boot = w->boot}, 200);
    for (uint32_t i = 0; i < w->n_workers; i++) {
        w->workers[i].index = i;
        sim_worker_start(w, &w->workers[i]);
    }
    while (w->n_steps < n_steps) {
        if (sim_chance(w, 1) && w->boot + 1 < SIM_MAX_ARENAS) {
            sim_daemon_kill(w);
            sim_daemon_start(w);
            sim_push(w, (sim_event){.kind = EVENT_TICK, .boot = w->boot}, 200);
        }
        step(w);
    }
    go_home(w);
    world_close(w);
}

int main(int argc, char **argv) {
    uint64_t seed = 1, count = 100;
    uint32_t n_steps = 2000;
    int trace = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--count") == 0)
            count = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--steps") == 0)
            n_steps = (uint32_t)strtoul(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--trace") == 0)
            trace = 1;
        else {
            fprintf(stderr, "usage: sim [--seed S] [--count N] [--steps N] [--trace]\n");
            return 2;
        }
    }
    sim_world *w = malloc(sizeof *w);
    CHECK(w);
    uint64_t steps = 0, reads = 0, stale = 0, hits = 0, seals = 0, kills = 0, cuts = 0,
             restarts = 0, waits = 0, pins = 0, flushes = 0, flushed = 0, flushed_held = 0,
             told = 0, expired = 0, together = 0, lifted = 0, cooled = 0, cooled_reads = 0,
             down = 0, up = 0, written = 0, read = 0, found = 0, lost = 0, views = 0, rows = 0,
             picks = 0, alone = 0;
    for (uint64_t i = 0; i < count; i++) {
        sim_run(w, seed + i, n_steps, trace);
        steps += w->n_steps, reads += w->n_reads, stale += w->n_stale_reads, hits += w->n_hits;
        seals += w->n_seals, kills += w->n_kills, cuts += w->n_cuts, restarts += w->n_restarts;
        waits += w->n_waits, pins += w->n_pins, flushes += w->n_flushes;
        flushed += w->n_flushed, flushed_held += w->n_flushed_held;
        lifted += w->n_lifted, cooled += w->n_cooled, cooled_reads += w->n_cooled_reads;
        down += w->n_down, up += w->n_up, written += w->n_disk_writes;
        read += w->n_disk_reads, found += w->n_found, lost += w->n_lost;
        told += w->n_events_told, expired += w->n_expired, together += w->n_together;
        views += w->n_views, rows += w->n_view_rows, picks += w->n_view_picks;
        alone += w->n_view_alone;
    }
    free(w);
    printf("%llu seeds from %llu: %llu events, %llu pages read (%llu stale, told so), %llu hits, "
           "%llu seals, %llu waits, %llu pins, %llu flushes (%llu pages gone, %llu held), "
           "%llu workers killed, %llu connections cut, %llu restarts: nothing wrong\n",
           (unsigned long long)count, (unsigned long long)seed, (unsigned long long)steps,
           (unsigned long long)reads, (unsigned long long)stale, (unsigned long long)hits,
           (unsigned long long)seals, (unsigned long long)waits, (unsigned long long)pins,
           (unsigned long long)flushes, (unsigned long long)flushed,
           (unsigned long long)flushed_held, (unsigned long long)kills, (unsigned long long)cuts,
           (unsigned long long)restarts);
    printf("%llu pages announced or taken back, %llu claims expired, %llu answers to ranks\n",
           (unsigned long long)told, (unsigned long long)expired, (unsigned long long)together);
    printf("%llu views asked for, %llu rows told, %llu views with picks, %llu pages read when "
           "their path was gone\n",
           (unsigned long long)views, (unsigned long long)rows, (unsigned long long)picks,
           (unsigned long long)alone);
    printf("%llu pages copied down, %llu up, %llu written to disk, %llu read, %llu found again, "
           "%llu disks lost, %llu pages cooled, %llu such read\n",
           (unsigned long long)down, (unsigned long long)up, (unsigned long long)written,
           (unsigned long long)read, (unsigned long long)found, (unsigned long long)lost,
           (unsigned long long)cooled, (unsigned long long)cooled_reads);
    /* A simulation in which nothing happens finds nothing. */
    CHECK(count < 20 || (reads && hits && seals && kills && cuts && waits && pins && flushes &&
                         flushed && flushed_held && told && expired && together && views && rows));
    CHECK(count < 200 || (lifted && cooled && cooled_reads && alone && picks && down && up &&
                          written && read && found && lost));
    return 0;
}
