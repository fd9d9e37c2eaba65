/*
 * keep.c - the simulated workers' pins and flushes, and what must be true of them: a pinned prefix
 * can be had as long as the pin is there; of what was flushed nobody gets anything.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

/* --- asking -------------------------------------------------------------------------------------
 */

/* A path that is likely to be there: that of one of the worker's leases, or one like it. */
static uint32_t some_tokens(sim_world *w, const sim_worker *k, uint32_t *tokens) {
    const sim_lease *l = &k->leases[sim_below(w, SIM_MAX_LEASES)];
    if (!l->used || l->n_tokens == 0)
        return sim_make_tokens(w, tokens, 0, 1 + sim_below(w, SIM_MAX_TOKENS));
    memcpy(tokens, l->tokens, sizeof l->tokens);
    return 1 + sim_below(w, l->n_tokens);
}

static void call_pin(sim_world *w, sim_worker *k) {
    outgoing o;
    sim_lease *l = &k->op_path;
    memset(l, 0, sizeof *l);
    l->n_tokens = some_tokens(w, k, l->tokens);
    kvt_pin_req req = {.realm = k->realm,
                       .ttl_ms = sim_below(w, 3) ? 1 + sim_below(w, 3000) : 0,
                       .max_bytes = sim_below(w, 3) ? 0 : 1 + sim_below(w, 20000),
                       .n_tokens = l->n_tokens};
    sim_begin(&o);
    kvt_wire_put_pin_req(&o.w, &req);
    kvt_wire_put_tokens(&o.w, l->tokens, l->n_tokens);
    w->n.pins++;
    sim_call(w, k, &o, KVT_OP_PIN, 0, 0);
}

static void call_unpin(sim_world *w, sim_worker *k, uint64_t number) {
    outgoing o;
    sim_begin(&o);
    kvt_wire_put_u64(&o.w, number);
    sim_call(w, k, &o, KVT_OP_UNPIN, 0, 0);
}

static void call_flush(sim_world *w, sim_worker *k) {
    outgoing o;
    uint32_t tokens[SIM_MAX_TOKENS];
    kvt_flush_req req = {.scope = sim_below(w, 4)};
    req.scope = req.scope > KVT_WIRE_FLUSH_PREFIX ? KVT_WIRE_FLUSH_PREFIX : req.scope;
    req.realm = req.scope == KVT_WIRE_FLUSH_TENANT ? 0 : k->realm;
    req.n_tokens = req.scope == KVT_WIRE_FLUSH_PREFIX ? some_tokens(w, k, tokens) : 0;
    sim_begin(&o);
    kvt_wire_put_flush_req(&o.w, &req);
    kvt_wire_put_tokens(&o.w, tokens, req.n_tokens);
    w->n.flushes++;
    sim_call(w, k, &o, KVT_OP_FLUSH, 0, 0);
}

static int first_pin(void *context, const core_pin_info *pin) {
    *(uint64_t *)context = pin->pin;
    return 1;
}

int sim_keep_home(sim_world *w, sim_worker *k) {
    uint64_t number = 0;
    core_each_pin(w->core, first_pin, &number);
    if (!number)
        return 0;
    call_unpin(w, k, number);
    return 1;
}

int sim_keep(sim_world *w, sim_worker *k) {
    if (sim_below(w, 4) == 0)
        call_flush(w, k);
    else if (sim_below(w, 3) == 0)
        call_unpin(w, k, 1 + sim_below(w, 30));
    else
        call_pin(w, k);
    return 1;
}

/* --- what must be true --------------------------------------------------------------------------
 */

static sim_pin *pin_place(sim_world *w, uint64_t number) {
    for (uint32_t i = 0; i < SIM_MAX_PINS; i++)
        if (w->pins[i].number == number)
            return &w->pins[i];
    return NULL;
}

static void take_pin(sim_world *w, sim_worker *k, const kvt_pin_rep *rep) {
    const sim_lease *asked = &k->op_path;
    if (rep->pin == 0 || rep->n_tokens == 0 || rep->n_tokens > asked->n_tokens)
        sim_fail(w, "worker %u: pin %llu of %u tokens, %u asked for", k->index,
                 (unsigned long long)rep->pin, rep->n_tokens, asked->n_tokens);
    sim_pin *p = pin_place(w, rep->pin);
    p = p ? p : pin_place(w, 0);
    if (!p || k->boot_id != core_boot_id(w->core))
        return;
    *p = (sim_pin){.number = rep->pin, .realm = k->realm, .n_tokens = rep->n_tokens};
    memcpy(p->tokens, asked->tokens, sizeof p->tokens);
}

void sim_keep_reply(sim_world *w, sim_worker *k, uint16_t op, const uint8_t *body, size_t n) {
    kvt_pin_rep pin;
    kvt_flush_rep flush;
    if (op == KVT_OP_PIN) {
        CHECK_EQ(kvt_wire_get_pin_rep(body, n, &pin), KVT_OK);
        take_pin(w, k, &pin);
    } else {
        CHECK_EQ(kvt_wire_get_flush_rep(body, n, &flush), KVT_OK);
        w->n.flushed += flush.pages;
        w->n.flushed_held += flush.held_pages;
    }
}

static int mark_pin(void *context, const core_pin_info *pin) {
    sim_world *w = context;
    sim_pin *p = pin_place(w, pin->pin);
    if (p)
        p->number |= UINT64_C(1) << 63;
    return 0;
}

void sim_keep_check(sim_world *w) {
    core_each_pin(w->core, mark_pin, w);
    for (uint32_t i = 0; i < SIM_MAX_PINS; i++) {
        sim_pin *p = &w->pins[i];
        int lives = p->number >> 63 != 0;
        p->number = lives ? p->number & ~(UINT64_C(1) << 63) : 0;
        if (lives && core_would_hold(w->core, p->realm, p->tokens, p->n_tokens) < p->n_tokens)
            sim_fail(w, "pin %llu: of its %u tokens %u can be had", (unsigned long long)p->number,
                     p->n_tokens, core_would_hold(w->core, p->realm, p->tokens, p->n_tokens));
    }
}

typedef struct reach {
    uint32_t realm;        /* 0: any */
    uint32_t hidden_depth; /* what lies deeper hangs below a hidden page; 0: nothing does */
    uint64_t n_held;
} reach;

static int reach_run(void *context, const core_realm_info *realm, const radix_run *run,
                     const uint32_t *tokens, uint32_t n_tokens) {
    reach *r = context;
    (void)tokens, (void)n_tokens;
    if (!run || (r->realm && r->realm != realm->realm)) {
        r->hidden_depth = 0;
        return 0;
    }
    if (r->hidden_depth && run->depth > r->hidden_depth)
        return 0;
    r->hidden_depth = run->hidden ? run->depth : 0;
    r->n_held += !run->hidden && run->held ? run->n_pages : 0;
    return 0;
}

void sim_flush_check(sim_world *w, const uint8_t *bytes, size_t n) {
    kvt_wire_header header;
    const uint8_t *body;
    kvt_flush_req req;
    uint32_t tokens[SIM_MAX_TOKENS];
    CHECK_EQ(kvt_wire_open(bytes, n, &header, &body), KVT_OK);
    CHECK_EQ(kvt_wire_get_flush_req(body, header.body_bytes, &req), KVT_OK);
    if (req.scope == KVT_WIRE_FLUSH_PREFIX) {
        kvt_wire_get_tokens(req.tokens, req.n_tokens, tokens);
        uint32_t held = core_would_hold(w->core, req.realm, tokens, req.n_tokens);
        if (held >= req.n_tokens)
            sim_fail(w, "a prefix of %u tokens was flushed and can be had", req.n_tokens);
        return;
    }
    reach r = {.realm = req.realm};
    core_each_run(w->core, reach_run, &r);
    if (r.n_held)
        sim_fail(w, "all was flushed and %llu pages can be had", (unsigned long long)r.n_held);
}
