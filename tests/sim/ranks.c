/*
 * ranks.c - workers that serve one model together: two ranks are an engine, and ask together. Who
 * of them comes first makes up what is asked for; the other asks for the same, sooner or later, or
 * never, or for something else. As long as both hold what they were given, they were told the same.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

static sim_engine *engine_of(sim_world *w, const sim_worker *k) {
    return &w->engines[k->index / SIM_MAX_RANKS];
}

uint32_t sim_rank(const sim_world *w, const sim_worker *k) {
    return k->index % w->geometry.n_ranks;
}

/* The lease that the worker got for this request, or is about to go on from; -1: it has none. */
static int lease_of(const sim_worker *k, uint64_t request) {
    for (int i = 0; i < SIM_MAX_LEASES; i++)
        if (k->leases[i].used && !k->leases[i].stale && k->leases[i].request == request)
            return i;
    return -1;
}

static uint32_t stored_tokens(const sim_lease *l) {
    return l->held_tokens > l->claimed_tokens ? l->held_tokens : l->claimed_tokens;
}

/* A path of its own, or on from the lease at `from`. */
static void make_up(sim_world *w, sim_worker *k, sim_engine *e, int from) {
    const sim_lease *base = from >= 0 ? &k->leases[from] : NULL;
    uint32_t stored = base ? stored_tokens(base) : 0;
    *e = (sim_engine){.request = e->request + 1, .base = base ? base->request : 0};
    e->keep_tokens = sim_below(w, 3) ? stored : sim_below(w, stored + 1);
    if (base)
        memcpy(e->tokens, base->tokens, sizeof e->tokens);
    uint32_t room = SIM_MAX_TOKENS - e->keep_tokens;
    uint32_t n = sim_below(w, (base ? 40 : SIM_MAX_TOKENS) + 1);
    e->n_tokens = sim_make_tokens(w, e->tokens, e->keep_tokens, n < room ? n : room);
    e->flags =
        (sim_below(w, 8) ? KVT_ACQUIRE_CLAIM : 0u) | (sim_below(w, 8) ? 0u : KVT_ACQUIRE_LEAVE_ONE);
    sim_lease view = {0};
    kvt_acquire_req req = {.flags = e->flags};
    for (int i = 0; i < 2 && !base && !view.is_view; i++) /* more than half */
        sim_view_ask(w, &view, &req);
    e->flags = req.flags;
    e->sinks = req.sinks;
    e->window = req.window;
    e->budget = req.budget;
}

/* What is asked for, or, of a rank that has gone astray, another path or another view. */
static void set_path(sim_world *w, const sim_engine *e, sim_lease *l, kvt_acquire_req *req) {
    memcpy(l->tokens, e->tokens, sizeof l->tokens);
    l->n_tokens = e->n_tokens;
    l->request = e->request;
    l->is_view = (e->flags & KVT_ACQUIRE_VIEW) != 0;
    l->sinks = req->sinks = e->sinks;
    l->window = req->window = e->window;
    l->budget = req->budget = e->budget;
    if (req->n_tokens && sim_chance(w, 20))
        l->tokens[e->keep_tokens + sim_below(w, req->n_tokens)] += 1000;
    if (l->is_view && sim_chance(w, 20))
        l->window = ++req->window;
}

int sim_ranks_due(sim_world *w, const sim_worker *k) {
    return w->geometry.n_ranks > 1 && k->asked < engine_of(w, k)->request;
}

int sim_ranks_acquire(sim_world *w, sim_worker *k, int slot, int base) {
    sim_engine *e = engine_of(w, k);
    sim_lease *l = &k->op_path;
    const sim_worker *other = &w->workers[k->index ^ 1];
    if (k->asked >= e->request && other->asked < e->request && sim_below(w, 8))
        return 0; /* most wait for the other rank */
    if (k->asked >= e->request)
        make_up(w, k, e, base && k->leases[slot].request && !k->leases[slot].is_view ? slot : -1);
    if (!e->base && base)
        return 0; /* it has no place for another lease */
    k->asked = e->request;
    int from = e->base ? lease_of(k, e->base) : -1;
    if (e->base && (from < 0 || stored_tokens(&k->leases[from]) < e->keep_tokens))
        return 0; /* it lost what the others go on from */
    kvt_acquire_req req = {.flags = e->flags,
                           .group = 1 + k->index / SIM_MAX_RANKS,
                           .request = e->request,
                           .keep_tokens = e->keep_tokens,
                           .n_tokens = e->n_tokens - e->keep_tokens};
    if (from >= 0) {
        slot = from;
        *l = k->leases[slot];
        req.base = l->id;
        uint32_t keep = e->keep_tokens < l->held_tokens ? e->keep_tokens : l->held_tokens;
        req.first_page = keep / SIM_PAGE_TOKENS;
    } else {
        memset(l, 0, sizeof *l);
        req.realm = k->realm;
        req.rank = sim_rank(w, k);
        l->arena = k->arena;
        l->gpu = k->gpu;
    }
    l->asked_ms = w->d->now_ms;
    set_path(w, e, l, &req);
    outgoing o;
    sim_begin(&o);
    kvt_wire_put_acquire_req(&o.w, &req);
    kvt_wire_put_tokens(&o.w, l->tokens + req.keep_tokens, req.n_tokens);
    sim_call(w, k, &o, KVT_OP_ACQUIRE, (uint32_t)slot, 0);
    return 1;
}

void sim_ranks_check(sim_world *w, const sim_worker *k, sim_lease *l) {
    l->answer[0] = l->held_tokens;
    l->answer[1] = l->computing_tokens;
    l->answer[2] = l->claimed_tokens;
    const sim_worker *other = &w->workers[k->index ^ 1];
    int at = other->index < w->n_workers && other->boot_id == k->boot_id && other->pipe &&
                     !w->pipe_dead[other->pipe]
                 ? lease_of(other, l->request)
                 : -1;
    if (at < 0)
        return;
    const sim_lease *theirs = &other->leases[at];
    /* Whoever comes so late that the request has been forgotten asks anew. */
    if (w->d->now_ms >= theirs->asked_ms + w->config.grace_ms)
        return;
    w->n.together++;
    if (theirs->n_tokens != l->n_tokens || memcmp(theirs->answer, l->answer, sizeof l->answer) != 0)
        sim_fail(w, "request %llu of an engine: worker %u was told %u/%u/%u, worker %u %u/%u/%u",
                 (unsigned long long)l->request, other->index, theirs->answer[0], theirs->answer[1],
                 theirs->answer[2], k->index, l->answer[0], l->answer[1], l->answer[2]);
    if (!l->is_view)
        return;
    w->n.view_together += l->n_runs > 0;
    if (theirs->n_runs != l->n_runs || theirs->window != l->window ||
        memcmp(theirs->runs, l->runs, l->n_runs * sizeof *l->runs) != 0)
        sim_fail(w, "request %llu of an engine: worker %u has other rows than worker %u",
                 (unsigned long long)l->request, other->index, k->index);
}
