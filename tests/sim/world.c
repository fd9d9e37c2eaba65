/*
 * world.c - a tenant's world: what it is made of, what must be true of it after each step, and what
 * must be left of it at the end, which is nothing.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

#include <stdarg.h>

uint32_t sim_below(sim_world *w, uint32_t n) {
    return check_below(&w->random, n);
}

int sim_chance(sim_world *w, uint32_t per_mille) {
    return w->d->faults && sim_below(w, 1000) < per_mille;
}

void sim_fail(sim_world *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "seed %llu, event %llu, at %llu ms: ", (unsigned long long)w->d->seed,
            (unsigned long long)w->d->n_steps, (unsigned long long)w->d->now_ms);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nrun it again with: ./run sim %llu\n", (unsigned long long)w->d->seed);
    va_end(args);
    exit(1);
}

void sim_digest(sim_world *w, const void *bytes, size_t n) {
    const uint8_t *at = bytes;
    uint64_t h = w->digest ^ w->d->now_ms;
    if (w->is_home)
        return;
    for (size_t i = 0; i < n; i++)
        h = (h ^ at[i]) * UINT64_C(0x100000001b3);
    w->digest = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* --- how it is made -----------------------------------------------------------------------------
 */

/* In half of the worlds pages cool, in one step or in two. */
static void make_ladder(sim_world *w) {
    static const char *const sets[] = {"f16", "i8", "i4"};
    uint32_t first = w->d->seed % 4 == 1 ? 1 : 0;
    w->n_rungs = w->d->seed % 4 < 2 ? SIM_MAX_RUNGS - first : 1;
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
    uint32_t head_dim = (w->d->seed % 4 < 2 ? 60 : 64) / n_groups;
    kvt_geometry_init(&w->geometry, g[0].n_layers + g[1].n_layers, 1, head_dim, SIM_PAGE_TOKENS);
    w->geometry.n_groups = n_groups;
    w->geometry.n_ranks = w->d->seed % 4 == 3 ? SIM_MAX_RANKS : 1; /* of those that do not cool */
    for (uint32_t i = 0; i < n_groups; i++)
        w->geometry.groups[i] = g[i];
    make_ladder(w);
}

/* Most of the worlds with ranks, and some others, have several. */
static uint32_t gpus_of(uint64_t seed) {
    if (seed % 4 == 3)
        return 1 + (uint32_t)(seed / 4 % SIM_MAX_GPUS);
    return seed % 8 == 2 || seed % 16 == 9 ? 2 : 1;
}

/* All tenants have the same model, so that nothing but the tenant keeps their pages apart. */
static void make_model(sim_world *w) {
    make_geometry(w);
    w->realm_desc.model = "simulated";
    w->realm_desc.geometry = w->geometry;
    CHECK_EQ(
        kvt_wire_realm_encode(&w->realm_desc, w->canonical, sizeof w->canonical, &w->n_canonical),
        KVT_OK);
}

void sim_world_open(sim_world *w, sim_daemon *d, uint32_t tenant) {
    memset(w, 0, sizeof *w);
    w->d = d;
    w->tenant = tenant;
    w->random = d->seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    w->next_pipe = SIM_MAX_TENANTS + tenant;
    w->next_pid = 100 + tenant * 100000;
    make_model(w);
    w->random += tenant * UINT64_C(0x6a09e667f3bcc909);
    w->n_workers = 2 + sim_below(w, SIM_MAX_WORKERS - 1);
    w->n_workers += w->n_workers % w->geometry.n_ranks;
    w->gpu_shift = (uint32_t)(d->seed / 16);
    if (gpus_of(d->seed) > 1 && d->seed % 5 < 2) /* so that ranks move: nobody else is there */
        w->n_workers = w->geometry.n_ranks;
    snprintf(w->name, sizeof w->name, "tenant-%u", tenant);
    snprintf(w->arena_path, sizeof w->arena_path, "arena-%u.", tenant);
    w->uids[0] = 10 + tenant;
    w->uids[1] = 20 + tenant;
    w->gids[0] = 30 + tenant;
    uint32_t granules = 1 + sim_below(w, 3);
    const char *ladder = w->config.ladder;
    w->config = (core_config){.ladder = ladder,
                              .short_pct = 1 + sim_below(w, sim_below(w, 2) ? 90 : 5),
                              .tenant = w->name,
                              .uids = w->uids,
                              .n_uids = 2,
                              .gids = w->gids,
                              .n_gids = 1,
                              .n_arenas = gpus_of(d->seed),
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
    if (d->seed % 3 == 0)
        return;
    w->config.host_bytes = (1 + sim_below(w, 3)) * UINT64_C(65536);
    w->config.max_host_frames = 8 + sim_below(w, 64);
    w->config.max_pages += sim_below(w, 200);
    w->config.promote_wait_ms = sim_below(w, 3000);
    if (d->seed % 3 == 1)
        w->config.disk_bytes = 20000 + sim_below(w, 2000000);
    tier_key_debug_bits(d->seed % 9 == 1 ? 8 : 128);
}

void sim_world_close(sim_world *w) {
    for (uint32_t i = 0; i < w->n_workers; i++)
        free(w->workers[i].op_bytes);
    for (uint32_t i = 0; i < w->n_stagings; i++)
        free(w->stagings[i].bytes);
    for (uint32_t i = 0; i < w->d->boot; i++) {
        free(w->arenas[i].data);
        free(w->arenas[i].generations);
    }
    core_close(w->core);
    sim_device_close(w);
    free(w->host);
    sim_disk_close(w);
}

/* --- what must be true --------------------------------------------------------------------------
 */

/* (Of claimed pages a session may have more: those that it shares with whoever claimed them.) */
static int check_session(void *context, const core_session_info *session) {
    sim_world *w = context;
    if (session->leases > w->config.max_leases)
        sim_fail(w, "session %u has %u leases, %u are allowed", session->session, session->leases,
                 w->config.max_leases);
    return 0;
}

static void check_quotas(sim_world *w) {
    core_counts n;
    core_count(w->core, &n);
    if (n.arena_used_bytes > w->config.n_arenas * w->config.arena_bytes ||
        n.host_used_bytes > w->config.host_bytes || n.disk_used_bytes > w->config.disk_bytes)
        sim_fail(w, "%llu bytes of the arena are in use, %llu of the host, %llu of the disk",
                 (unsigned long long)n.arena_used_bytes, (unsigned long long)n.host_used_bytes,
                 (unsigned long long)n.disk_used_bytes);
    if (n.pins > w->config.max_pins || n.pinned_bytes > w->config.max_pinned_bytes)
        sim_fail(w, "%llu pins keep %llu bytes; %u and %llu are allowed",
                 (unsigned long long)n.pins, (unsigned long long)n.pinned_bytes, w->config.max_pins,
                 (unsigned long long)w->config.max_pinned_bytes);
    if (n.sessions > w->config.max_sessions || n.leases > w->config.max_leases_total)
        sim_fail(w, "%llu sessions and %llu leases; %u and %u are allowed",
                 (unsigned long long)n.sessions, (unsigned long long)n.leases,
                 w->config.max_sessions, w->config.max_leases_total);
    core_each_session(w->core, check_session, w);
}

void sim_world_audit(sim_world *w) {
    char why[256] = "";
    if (core_audit(w->core, why, sizeof why) != KVT_OK)
        sim_fail(w, "audit: %s", why);
    check_quotas(w);
    sim_disk_check(w);
    sim_keep_check(w);
    sim_mirror_check(w);
}

/* --- at the end ---------------------------------------------------------------------------------
 */

/* Every frame in use is a page's, and every page has one somewhere. */
static void check_frames(sim_world *w, const core_counts *n) {
    uint64_t n_pages = n->pages_evictable + n->pages_pinned;
    uint64_t most = n_pages * w->geometry.n_groups * w->geometry.n_ranks;
    int windows = w->geometry.groups[0].window || w->geometry.groups[1].window;
    if ((!windows && n->frames_used + n->pages_host + n->pages_disk < most) ||
        n->frames_used > most || (!windows && !w->config.host_bytes && n->frames_used != most))
        sim_fail(w, "%llu frames in use for %llu pages", (unsigned long long)n->frames_used,
                 (unsigned long long)n->pages_evictable);
}

void sim_world_home(sim_world *w) {
    core_counts n;
    core_count(w->core, &n);
    if (w->is_home || !core_is_idle(w->core) || n.sessions || n.groups || w->scanning)
        return;
    for (uint32_t i = 0; i < w->n_workers; i++)
        if (!sim_worker_home(&w->workers[i]))
            return;
    /* A PIN may still have been on its way when its worker had ended all that it saw. */
    if (n.leases || (n.pages_pinned && !n.pins) || n.pages_filling || n.waiting || n.jobs ||
        n.flushed_held)
        sim_fail(w, "left behind: %llu leases, %llu pinned and %llu filling pages",
                 (unsigned long long)n.leases, (unsigned long long)n.pages_pinned,
                 (unsigned long long)n.pages_filling);
    check_frames(w, &n);
    w->n.passed += n.pages_passed;
    w->n.cooled += n.pages_cooled;
    w->is_home = 1;
}
