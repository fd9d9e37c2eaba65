/*
 * core.c - opening, closing, and the way of a message through the core. What each message does
 * stands in core_session.c, core_realm.c, core_acquire.c, core_lease.c, core_seal.c, core_wait.c,
 * core_pin.c, core_flush.c, core_view.c; where pages stand in core_arena.c;
 * who has to go for whom in core_evict.c.
 */
#include "daemon/core_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- open, close -------------------------------------------------------------------------------
 */

static kvt_status check_range(const char *name, uint64_t value, uint64_t low, uint64_t high,
                              char *why, size_t why_bytes) {
    if (value >= low && value <= high)
        return KVT_OK;
    if (why)
        snprintf(why, why_bytes, "%s is %llu; it must be %llu .. %llu", name,
                 (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
    return KVT_EINVAL;
}

static kvt_status config_check(const core_config *g, char *why, size_t why_bytes) {
    const struct {
        const char *name;
        uint64_t value, low, high;
    } ranges[] = {
        {"boot_id", g->boot_id, 1, UINT64_MAX},
        {"uids", g->n_uids, 0, 64},
        {"gids", g->n_gids, 0, 64},
        {"uids and gids", (uint64_t)g->n_uids + g->n_gids, 1, 128},
        {"arena_bytes", g->arena_bytes, FRAMES_GRANULE_BYTES, UINT64_C(1) << 50},
        {"n_arenas", g->n_arenas, 1, CORE_MAX_ARENAS},
        {"max_frames", g->max_frames, 1, UINT32_C(1) << 30},
        {"frames of all arenas", (uint64_t)g->max_frames * g->n_arenas, 1, UINT32_MAX},
        {"max_pages", g->max_pages, 1, UINT32_C(1) << 30},
        {"page_tokens", g->page_tokens, 16, 128},
        {"max_slots", g->max_slots, 1, 64},
        {"max_realms", g->max_realms, 1, 65536},
        {"max_sessions", g->max_sessions, 1, 4096},
        {"max_leases", g->max_leases, 1, 1u << 20},
        {"max_leases_total", g->max_leases_total, 1, 1u << 24},
        {"max_claimed_pages", g->max_claimed_pages, 1, UINT32_C(1) << 30},
        {"max_jobs", g->max_jobs, 1, 4096},
        {"max_pins", g->max_pins, 0, 65536},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        kvt_status status = check_range(ranges[i].name, ranges[i].value, ranges[i].low,
                                        ranges[i].high, why, why_bytes);
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

static void *block(size_t bytes) {
    /* 64-byte aligned and zero; untouched pages of a large block cost no memory. */
    char *memory = calloc(1, bytes + 64 + sizeof(void *));
    if (!memory)
        return NULL;
    uintptr_t at = ((uintptr_t)memory + sizeof(void *) + 63) & ~(uintptr_t)63;
    memcpy((char *)at - sizeof(void *), &memory, sizeof memory);
    return (void *)at;
}

static void block_free(void *at) {
    if (!at)
        return;
    void *memory;
    memcpy(&memory, (char *)at - sizeof memory, sizeof memory);
    free(memory);
}

static kvt_status open_stores(core *c) {
    const core_config *g = &c->config;
    radix_limits limits = {.max_pages = g->max_pages,
                           .max_roots = g->max_realms,
                           .page_tokens = g->page_tokens,
                           .n_slots = g->max_slots};
    uint32_t n_pages = g->max_pages + page_slack(g);
    size_t tree_bytes = radix_bytes(&limits), pages_bytes = page_table_bytes(n_pages),
           policy_n_bytes = policy_bytes(g->policy, g->max_pages);
    c->tree_memory = block(tree_bytes);
    c->pages_memory = block(pages_bytes);
    c->policy_memory = block(policy_n_bytes);
    if (!c->tree_memory || !c->pages_memory || !c->policy_memory)
        return KVT_ENOMEM;
    kvt_status status = radix_init(c->tree_memory, tree_bytes, &limits, &c->tree);
    if (status == KVT_OK)
        status = policy_init(c->policy_memory, policy_n_bytes, g->policy, g->max_pages, &c->policy);
    if (status == KVT_OK)
        status = page_table_init(c->pages_memory, pages_bytes, n_pages, &c->pages);
    if (status == KVT_OK)
        status = arenas_open(c);
    return status;
}

static kvt_status open_pools(core *c) {
    const core_config *g = &c->config;
    uint32_t n_places = 64;
    while (n_places < 4 * g->max_sessions)
        n_places *= 2;
    c->pipes_mask = n_places - 1;
    c->max_waiters = 4 * g->max_sessions;
    c->pipes = calloc(n_places, sizeof *c->pipes);
    c->realms = calloc(g->max_realms, sizeof *c->realms);
    c->sessions = calloc(g->max_sessions, sizeof *c->sessions);
    c->leases = calloc(g->max_leases_total, sizeof *c->leases);
    c->free_leases = calloc(g->max_leases_total, sizeof *c->free_leases);
    c->waiters = calloc(c->max_waiters, sizeof *c->waiters);
    c->max_groups = 16 * g->max_sessions;
    c->groups = calloc(c->max_groups, sizeof *c->groups);
    c->announced = calloc((size_t)g->max_pages + 1, sizeof *c->announced);
    c->announced_tier = calloc((size_t)g->max_pages + 1, sizeof *c->announced_tier);
    c->spans = malloc(KVT_WIRE_MAX_SPANS * sizeof *c->spans);
    c->marks = calloc((size_t)g->max_pages + g->max_realms + 1, sizeof *c->marks);
    c->realm_of_root = calloc((size_t)g->max_realms + 1, sizeof *c->realm_of_root);
    c->pins = calloc(g->max_pins ? g->max_pins : 1, sizeof *c->pins);
    c->view_pages = calloc(g->max_pages, sizeof *c->view_pages);
    c->importance = calloc((size_t)g->max_pages * g->page_tokens, sizeof *c->importance);
    c->is_important = calloc((size_t)g->max_pages + 1, 1);
    c->viewed = calloc((size_t)g->max_pages + page_slack(g), sizeof *c->viewed);
    c->jobs = calloc(g->max_jobs, sizeof *c->jobs);
    c->copies = calloc((size_t)g->max_jobs * KVT_MAX_SEAL_PAGES, sizeof *c->copies);
    /* Scratch is written before it is read: no need to touch it now. */
    c->tokens = malloc(KVT_MAX_REQUEST_TOKENS * sizeof *c->tokens);
    c->path = malloc((KVT_MAX_REQUEST_TOKENS / 16 + 2) * sizeof *c->path);
    c->out = malloc(KVT_WIRE_MAX_BYTES);
    c->rows = malloc(view_words(KVT_MAX_REQUEST_TOKENS) * sizeof *c->rows);
    c->path_importance = malloc(KVT_MAX_REQUEST_TOKENS * sizeof *c->path_importance);
    c->runs = malloc(KVT_WIRE_MAX_RUNS * sizeof *c->runs);
    c->frame_page = calloc(g->max_frames, sizeof *c->frame_page);
    if (!c->pipes || !c->realms || !c->sessions || !c->leases || !c->free_leases || !c->waiters ||
        !c->groups || !c->announced || !c->announced_tier || !c->spans || !c->marks ||
        !c->realm_of_root || !c->pins || !c->jobs || !c->copies || !c->tokens || !c->path ||
        !c->out || !c->frame_page || !c->view_pages || !c->viewed || !c->rows || !c->runs ||
        !c->importance || !c->is_important || !c->path_importance)
        return KVT_ENOMEM;
    for (uint32_t i = g->max_leases_total; i > 0; i--)
        c->free_leases[c->n_free_leases++] = i - 1;
    for (uint32_t i = c->max_waiters; i > 0; i--) {
        c->waiters[i - 1].next = c->free_waiter;
        c->free_waiter = i;
    }
    for (uint32_t i = g->max_jobs; i > 0; i--) {
        c->jobs[i - 1].copies = c->copies + (size_t)(i - 1) * KVT_MAX_SEAL_PAGES;
        c->jobs[i - 1].next = c->free_jobs;
        c->free_jobs = &c->jobs[i - 1];
    }
    return KVT_OK;
}

kvt_status core_open(const core_config *config, const core_env *env, char *why, size_t why_bytes,
                     core **ret_core) {
    kvt_status status = config_check(config, why, why_bytes);
    if (status != KVT_OK)
        return status;
    core *c = calloc(1, sizeof *c);
    if (!c)
        return KVT_ENOMEM;
    c->config = *config;
    c->env = *env;
    for (uint32_t i = 0; i < config->n_uids; i++)
        c->uids[i] = config->uids[i];
    for (uint32_t i = 0; i < config->n_gids; i++)
        c->gids[i] = config->gids[i];
    c->config.uids = c->uids;
    c->config.gids = c->gids;
    snprintf(c->tenant, sizeof c->tenant, "%s", config->tenant);
    snprintf(c->events_path, sizeof c->events_path, "%s",
             config->events_path ? config->events_path : "");
    snprintf(c->staging_dir, sizeof c->staging_dir, "%s", config->staging_dir);
    char bad[256] = "";
    status = open_stores(c);
    if (status == KVT_OK)
        status = open_pools(c);
    if (status == KVT_OK)
        status = tiers_open(c);
    if (status == KVT_OK)
        status = cooling_open(c, bad, sizeof bad);
    if (status != KVT_OK) {
        if (why && bad[0])
            snprintf(why, why_bytes, "%s", bad);
        else if (why)
            snprintf(why, why_bytes, "%s for %u pages and %llu arena bytes: lower max_pages",
                     kvt_status_text(status), config->max_pages,
                     (unsigned long long)config->arena_bytes);
        core_close(c);
        return status;
    }
    *ret_core = c;
    return KVT_OK;
}

void core_close(core *c) {
    if (!c)
        return;
    KVT_ASSERT(c->n_jobs == 0 && (!c->tiers || c->tiers->n_jobs == 0) && cooling_is_idle(c));
    tiers_close(c->tiers);
    cooling_close(c->cooling);
    block_free(c->tree_memory);
    block_free(c->pages_memory);
    arenas_close(c);
    block_free(c->policy_memory);
    free(c->pipes);
    free(c->realms);
    free(c->sessions);
    free(c->leases);
    free(c->free_leases);
    free(c->waiters);
    free(c->groups);
    free(c->announced);
    free(c->spans);
    free(c->marks);
    free(c->announced_tier);
    free(c->realm_of_root);
    free(c->pins);
    free(c->view_pages);
    free(c->viewed);
    free(c->importance);
    free(c->is_important);
    free(c->path_importance);
    free(c->rows);
    free(c->runs);
    free(c->jobs);
    free(c->copies);
    free(c->tokens);
    free(c->path);
    free(c->out);
    free(c->frame_page);
    free(c);
}

/* --- replies -----------------------------------------------------------------------------------
 */

void reply_start(core *c, kvt_writer *w) {
    kvt_wire_start(w, c->out, KVT_WIRE_MAX_BYTES);
}

static void reply_send(core *c, core_ticket ticket, uint16_t op, uint64_t number, uint32_t status,
                       kvt_writer *w) {
    kvt_wire_header header = {.kind = KVT_WIRE_REPLY,
                              .op = op,
                              .status = status,
                              .number = number,
                              .boot_id = c->config.boot_id};
    size_t n = kvt_wire_finish(w, header);
    KVT_ASSERT(n > 0); /* every reply is bounded by the limits, which fit the message */
    c->env.send(c->env.context, ticket, c->out, n);
}

void reply_finish(core *c, core_ticket ticket, uint16_t op, uint64_t number, kvt_writer *w) {
    reply_send(c, ticket, op, number, KVT_OK, w);
}

void reply_error(core *c, core_ticket ticket, uint16_t op, uint64_t number, kvt_status status,
                 const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_str(&w, text);
    c->counts.refused++;
    reply_send(c, ticket, op, number, (uint32_t)status, &w);
}

void nonsense(core *c, uint32_t pipe) {
    c->counts.nonsense++;
    c->env.cut(c->env.context, pipe);
}

/* --- the way of a message ----------------------------------------------------------------------
 */

static void serve_report(core *c, request *rq) {
    uint32_t lines = 0;
    if (rq->header.op != KVT_OP_STATUS) {
        kvt_tree_req req;
        if (kvt_wire_get_tree_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
            nonsense(c, rq->ticket.pipe);
            return;
        }
        lines = req.max_lines ? req.max_lines : 1000;
    }
    /* The text is written where it stands in the message: a u32 length, then the bytes. */
    kvt_writer w;
    reply_start(c, &w);
    uint8_t *text = c->out + KVT_WIRE_HEADER_BYTES + 4;
    size_t room = KVT_WIRE_MAX_BYTES - KVT_WIRE_HEADER_BYTES - 4;
    size_t n = c->env.report(c->env.context, c, (kvt_op)rq->header.op, lines, (char *)text, room);
    KVT_ASSERT(n <= room);
    kvt_wire_put_u32(&w, (uint32_t)n);
    w.n_bytes += n;
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}

static void serve(core *c, request *rq) {
    switch (rq->header.op) {
    case KVT_OP_STAGE:
        serve_stage(c, rq);
        break;
    case KVT_OP_REALM:
        serve_realm(c, rq);
        break;
    case KVT_OP_ACQUIRE:
        serve_acquire(c, rq);
        break;
    case KVT_OP_FORK:
        serve_fork(c, rq);
        break;
    case KVT_OP_WAIT:
        serve_wait(c, rq);
        break;
    case KVT_OP_SEAL:
        serve_seal(c, rq);
        break;
    case KVT_OP_RELEASE:
        serve_release(c, rq);
        break;
    case KVT_OP_CANCEL:
        serve_cancel(c, rq);
        break;
    case KVT_OP_PIN:
        serve_pin(c, rq);
        break;
    case KVT_OP_UNPIN:
        serve_unpin(c, rq);
        break;
    case KVT_OP_SNAPSHOT:
        serve_snapshot(c, rq);
        break;
    case KVT_OP_FLUSH:
        serve_flush(c, rq);
        break;
    case KVT_OP_SPILL:
        serve_spill(c, rq);
        break;
    case KVT_OP_VERIFY:
        serve_verify(c, rq);
        break;
    case KVT_OP_PREFETCH:
        serve_prefetch(c, rq);
        break;
    case KVT_OP_IMPORTANCE:
        serve_importance(c, rq);
        break;
    case KVT_OP_SUSPECT:
        serve_suspect(c, rq);
        break;
    case KVT_OP_STATUS:
    case KVT_OP_TREE:
    case KVT_OP_PINS:
    case KVT_OP_LEASES:
        serve_report(c, rq);
        break;
    case KVT_OP_GOODBYE:
        serve_goodbye(c, rq);
        break;
    default:
        refuse(c, rq, KVT_EPROTO, "op %u is no request", rq->header.op);
    }
}

static void serve_ping(core *c, request *rq) {
    kvt_writer w;
    reply_start(c, &w);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}

static void serve_session(core *c, request *rq, pipe_entry *pipe) {
    if (!pipe->session) {
        refuse(c, rq, KVT_ESESSION, "say hello first: this connection has no session");
        return;
    }
    rq->session = &c->sessions[pipe->session - 1];
    if (rq->header.boot_id != c->config.boot_id) {
        refuse(c, rq, KVT_ESTALE, "the request is for another start of the daemon");
        return;
    }
    if (!session_number_fresh(rq->session, rq->header.number)) {
        c->counts.duplicates_refused++;
        refuse(c, rq, KVT_EDUPLICATE, "request %llu was seen before; nothing was done",
               (unsigned long long)rq->header.number);
        return;
    }
    rq->session->requests++;
    serve(c, rq);
}

void core_go_on(core *c) {
    if (c->tiers && c->tiers->is_closed) /* nobody would wait for a job's end */
        return;
    waiters_wake(c);
    tiers_pump(c);
    cool_pump(c);
}

void core_message(core *c, core_ticket ticket, const void *message, size_t n) {
    pipe_entry *pipe = pipe_find(c, ticket.pipe);
    if (!pipe)
        return;
    request rq = {.ticket = ticket};
    kvt_status status = kvt_wire_open(message, n, &rq.header, &rq.body);
    if (status == KVT_EVERSION) {
        refuse(c, &rq, status, "this daemon speaks version %d of the protocol", KVT_WIRE_VERSION);
        return;
    }
    if (status != KVT_OK || rq.header.kind != KVT_WIRE_REQUEST) {
        nonsense(c, ticket.pipe);
        return;
    }
    rq.n_bytes = rq.header.body_bytes;
    int has_session = pipe->session != 0;
    c->counts.requests++;
    if (rq.header.op == KVT_OP_PING)
        serve_ping(c, &rq);
    else if (rq.header.op == KVT_OP_HELLO)
        serve_hello(c, &rq, pipe);
    else
        serve_session(c, &rq, pipe);
    /* A stranger's message changes nothing, and nobody works for it. */
    pipe = pipe_find(c, ticket.pipe);
    if (has_session || (pipe && pipe->session))
        core_go_on(c);
}

void core_job_done(core *c, core_job *job) {
    if (job->kind == CORE_JOB_COOL) {
        cool_job_done(c, job);
    } else if (job->kind >= CORE_JOB_DOWN) {
        tier_job_done(c, job);
    } else {
        KVT_ASSERT(c->n_jobs > 0);
        c->n_jobs--;
        if (job->kind == CORE_JOB_SEAL)
            seal_job_done(c, job);
        else if (job->kind == CORE_JOB_CHECK)
            suspect_job_done(c, job);
        else
            stage_job_done(c, job);
    }
    waiters_wake(c);
    if (c->n_flushes)
        flushes_tick(c, c->env.now_ms(c->env.context));
    core_go_on(c);
}

uint64_t core_tick(core *c) {
    uint64_t now_ms = c->env.now_ms(c->env.context);
    uint64_t sessions_due = sessions_tick(c, now_ms);
    uint64_t waiters_due = waiters_tick(c, now_ms);
    uint64_t pins_due = pins_tick(c, now_ms), claims_due = claims_tick(c, now_ms);
    uint64_t groups_due = groups_tick(c, now_ms);
    uint64_t due = sessions_due < waiters_due ? sessions_due : waiters_due;
    uint64_t disk_due = disk_tick(c, now_ms);
    due = groups_due < due ? groups_due : due;
    due = disk_due < due ? disk_due : due;
    due = due < pins_due ? due : pins_due;
    uint64_t flushes_due = flushes_tick(c, now_ms);
    due = due < flushes_due ? due : flushes_due;
    core_go_on(c);
    return due < claims_due ? due : claims_due;
}

void core_drain(core *c) {
    c->draining = 1;
    c->wake = 1;
    waiters_wake(c);
}

int core_is_idle(const core *c) {
    return c->n_jobs == 0 && (!c->tiers || c->tiers->n_jobs == 0) && cooling_is_idle(c) &&
           (!c->draining || spill_is_over(c) || spill_is_stuck(c));
}

void core_move_arena(core *c, uint32_t arena, const char *path) {
    snprintf(c->arenas[arena].path, sizeof c->arenas[arena].path, "%s", path);
}

uint64_t core_boot_id(const core *c) {
    return c->config.boot_id;
}
