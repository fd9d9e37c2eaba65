/* core_tend.c - SPILL and VERIFY: calls that are answered when the lower tiers are through. */
#include "daemon/core_state.h"

static void reply_tiers(core *c, core_ticket ticket, uint16_t op, uint64_t number) {
    core_counts n;
    core_count(c, &n);
    kvt_tiers_rep rep = {.pages_dirty = c->config.disk_bytes ? n.pages_dirty : 0,
                         .pages_disk = n.pages_disk,
                         .checked = op == KVT_OP_VERIFY ? c->tiers->checked : 0,
                         .corrupt = op == KVT_OP_VERIFY ? c->tiers->corrupt : 0};
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_tiers_rep(&w, &rep);
    reply_finish(c, ticket, op, number, &w);
}

int tend_is_over(const core *c, const waiter *w) {
    return c->draining || (w->op == KVT_OP_SPILL ? spill_is_over(c) : !c->tiers->verify_busy);
}

void reply_tend(core *c, const waiter *w) {
    if (w->op == KVT_OP_VERIFY && c->tiers->verify_busy)
        reply_error(c, w->ticket, w->op, w->number, KVT_ETIMEDOUT,
                    "the records are still being checked");
    else if (w->op == KVT_OP_VERIFY && c->tiers->verify_status != KVT_OK)
        reply_error(c, w->ticket, w->op, w->number, c->tiers->verify_status,
                    "the disk's process ended while it checked");
    else
        reply_tiers(c, w->ticket, w->op, w->number);
}

static void wait_for_tiers(core *c, request *rq, uint32_t wait_ms) {
    if (!waiter_add(c, rq, 0, 0, 0, wait_ms))
        refuse(c, rq, KVT_ELIMIT, "%u calls wait, the most allowed", c->n_waiters);
}

void serve_spill(core *c, request *rq) {
    kvt_tiers_req req;
    if (kvt_wire_get_tiers_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    tiers_pump(c);
    if (spill_is_over(c) || req.wait_ms == 0)
        reply_tiers(c, rq->ticket, rq->header.op, rq->header.number);
    else
        wait_for_tiers(c, rq, req.wait_ms);
}

void serve_verify(core *c, request *rq) {
    kvt_tiers_req req;
    if (kvt_wire_get_tiers_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    if (!c->tiers || !c->config.disk_bytes) {
        refuse(c, rq, KVT_ENOTSUP, "there is no disk tier; set \"disk_dir\"");
        return;
    }
    if (c->tiers->verify_busy) {
        refuse(c, rq, KVT_EBUSY,
               "the records on disk are being checked for another call (kvtrunk verify), and only "
               "one at a time can: ask again when it is through");
        return;
    }
    core_job *job = c->free_waiter ? tier_job(c, CORE_JOB_VERIFY, 0) : NULL;
    if (!job) {
        refuse(c, rq, KVT_EBUSY,
               "%u calls wait and %u copies between the tiers are under way, the most allowed: ask "
               "again in a moment",
               c->n_waiters, c->tiers->n_jobs);
        return;
    }
    c->tiers->verify_busy = 1;
    tier_job_submit(c, job);
    wait_for_tiers(c, rq, req.wait_ms);
}

void verify_done(core *c, const core_job *job) {
    tiers *t = c->tiers;
    t->verify_busy = 0;
    t->verify_status = job->status;
    t->checked = job->checked;
    t->corrupt = job->corrupt;
}
