/*
 * core_look.c - what reports may see of the core. Changes nothing.
 */
#include "daemon/core_state.h"

#include <string.h>

void core_count(const core *c, core_counts *ret_counts) {
    core_counts n = c->counts;
    radix_counts tree;
    page_counts pages;
    radix_count(c->tree, &tree);
    page_table_count(c->pages, &pages);
    for (uint32_t i = 0; i < c->config.max_sessions; i++) {
        const session *s = &c->sessions[i];
        n.sessions += s->state == SESSION_LIVE || s->state == SESSION_ORPHAN;
        n.orphans += s->state == SESSION_ORPHAN;
        n.leases += s->n_leases * (s->state == SESSION_LIVE || s->state == SESSION_ORPHAN);
    }
    n.groups = c->n_groups;
    n.waiting = c->n_waiters;
    n.jobs = c->n_jobs + !cooling_is_idle(c);
    n.realms = c->n_realms;
    /* A page in the tree that is not sealed is pinned by a claim, so the filling are all busy. One
     * that left the tree while a job copies it is the job's: its node is free already. */
    uint32_t filling = tree.busy + tree.idle - c->n_held;
    n.pages_max = tree.max_pages;
    n.pages_free = tree.free;
    n.pages_filling = filling;
    n.pages_evictable = tree.idle;
    n.pages_pinned = tree.busy - filling;
    for (uint32_t i = 0; i < c->config.n_arenas; i++) {
        core_arena_counts of;
        core_count_arena(c, i, &of);
        n.arena_bytes += of.arena_bytes;
        n.arena_used_bytes += of.used_bytes;
        n.arena_waste_bytes += of.waste_bytes;
        n.frames_used += of.frames_used;
        n.frames_max += c->config.max_frames;
    }
    n.pins = c->n_pins;
    n.pinned_bytes = c->pinned_bytes;
    n.flushed_held = c->n_hidden;
    n.views = c->n_views;
    n.pages_viewed = c->n_viewed;
    n.pages_device = n.frames_used;
    if (c->tiers) {
        const tiers *t = c->tiers;
        frames_counts places;
        frames_count(t->host, &places);
        n.pages_host = t->n_host;
        n.pages_disk = t->n_disk;
        /* Those that a job is at are not there before it has done that. */
        n.pages_dirty = arenas_dirty(c) +
                        tiers_frames_of(c, CORE_JOB_DOWN,
                                        c->config.disk_bytes ? CORE_JOB_WRITE : CORE_JOB_DOWN);
        n.pages_dirty += c->config.disk_bytes ? order_count(t->host_dirty) : 0;
        n.pages_never = c->config.disk_bytes ? dirty_never(c) : 0;
        n.host_bytes = places.arena_bytes;
        n.host_used_bytes = places.used_bytes;
        n.host_frames_max = places.max_frames;
        n.disk_bytes = c->config.disk_bytes;
        n.disk_used_bytes = t->disk_used;
        n.jobs += t->n_jobs;
    }
    *ret_counts = n;
}

typedef struct run_visit {
    const core *c;
    const realm *r;
    core_realm_info info;
    int (*visit)(void *context, const core_realm_info *realm, const radix_run *run,
                 const uint32_t *first_tokens, uint32_t n_first_tokens);
    void *context;
} run_visit;

static int all_ranks_have(const run_visit *v, radix_node node, uint32_t group) {
    uint32_t rank = 0;
    while (rank < v->r->n_ranks && node_has(v->c, node, slot_of(v->r, rank, group)))
        rank++;
    return rank == v->r->n_ranks;
}

static void count_groups(run_visit *v, const radix_run *run) {
    radix_node node = run->last;
    memset(v->info.group_pages, 0, sizeof v->info.group_pages);
    for (uint32_t i = 0; i < run->n_pages; i++, node = radix_parent(v->c->tree, node))
        for (uint32_t group = 0; group < v->r->n_groups; group++)
            v->info.group_pages[group] += (uint32_t)all_ranks_have(v, node, group);
}

static int visit_run(void *context, const radix_run *run) {
    run_visit *v = context;
    uint32_t n;
    count_groups(v, run);
    const uint32_t *tokens = radix_tokens(v->c->tree, run->first, &n);
    return v->visit(v->context, &v->info, run, tokens, n);
}

int core_each_run(const core *c,
                  int (*visit)(void *context, const core_realm_info *realm, const radix_run *run,
                               const uint32_t *first_tokens, uint32_t n_first_tokens),
                  void *context) {
    for (uint32_t i = 0; i < c->config.max_realms; i++) {
        const realm *r = &c->realms[i];
        if (!r->number)
            continue;
        run_visit v = {
            .c = c,
            .r = r,
            .info = {.realm = r->number, .desc = &r->desc, .page_bytes = realm_page_bytes(r)},
            .visit = visit,
            .context = context};
        int stop = visit(context, &v.info, NULL, NULL, 0);
        if (!stop)
            stop = radix_walk(c->tree, r->root, visit_run, &v);
        if (stop)
            return stop;
    }
    return 0;
}

int core_each_session(const core *c, int (*visit)(void *context, const core_session_info *session),
                      void *context) {
    for (uint32_t i = 0; i < c->config.max_sessions; i++) {
        const session *s = &c->sessions[i];
        if (s->state != SESSION_LIVE && s->state != SESSION_ORPHAN)
            continue;
        core_session_info info = {.session = s->number,
                                  .name = s->name,
                                  .peer = s->peer,
                                  .orphaned = s->state == SESSION_ORPHAN,
                                  .arena = s->arena,
                                  .leases = s->n_leases,
                                  .claimed_pages = s->n_claimed,
                                  .staging_bytes = s->staging >= 0 ? s->staging_bytes : 0,
                                  .requests = s->requests};
        int stop = visit(context, &info);
        if (stop)
            return stop;
    }
    return 0;
}

static int each_lease_of(const core *c, const session *s,
                         int (*visit)(void *context, const core_lease_info *lease), void *context) {
    for (uint32_t at = s->first_lease; at; at = c->leases[at - 1].next_of_session) {
        const lease *l = &c->leases[at - 1];
        core_lease_info info = {.session = s->number,
                                .name = s->name,
                                .request = l->number,
                                .realm = c->realms[l->realm].number,
                                .rank = l->rank,
                                .n_tokens = l->n_tokens,
                                .held_tokens = lease_held_tokens(c, l),
                                .host_tokens = l->from_host,
                                .disk_tokens = l->from_disk,
                                .claimed_pages = l->n_claimed,
                                .view = l->is_view,
                                .flushed = is_flushed(c, l->tail) ||
                                           (l->partial != RADIX_NONE && is_flushed(c, l->partial))};
        int stop = visit(context, &info);
        if (stop)
            return stop;
    }
    return 0;
}

int core_each_lease(const core *c, int (*visit)(void *context, const core_lease_info *lease),
                    void *context) {
    int stop = 0;
    for (uint32_t i = 0; i < c->config.max_sessions && !stop; i++) {
        const session *s = &c->sessions[i];
        if (s->state == SESSION_LIVE || s->state == SESSION_ORPHAN)
            stop = each_lease_of(c, s, visit, context);
    }
    return stop;
}

uint32_t core_would_hold(const core *c, uint32_t number, const uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < c->config.max_realms; i++) {
        const realm *r = &c->realms[i];
        radix_match m;
        if (!number || r->number != number)
            continue;
        radix_find(c->tree, r->root, tokens, n, &m);
        return path_tokens(c, m.held) + m.partial_tokens;
    }
    return 0;
}

core_disk core_disk_state(const core *c) {
    const tiers *t = c->tiers;
    if (!t || !c->config.disk_bytes)
        return CORE_DISK_WORKS;
    if (!t->disk_up)
        return CORE_DISK_AWAY;
    if (t->disk_fails)
        return CORE_DISK_FAILS;
    return spill_is_stuck(c) ? CORE_DISK_FULL : CORE_DISK_WORKS;
}
