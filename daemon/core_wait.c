/*
 * core_wait.c - WAIT: a reply that comes when others have sealed what this worker wants, or have
 * stopped computing it. Those who wait are looked at in the order in which they came, so when the
 * one computing gives up, the first of them takes over and the others go on waiting for it.
 */
#include "daemon/core_state.h"

static int wait_is_over(core *c, lease *l, uint32_t held_tokens) {
    /* Whoever is told that nobody computes what comes next must be the one who does from now on,
     * whatever it is that ends its wait; else all who wait are told so, and all compute. */
    c->counts.claims_taken_over += (uint64_t)lease_take_over(c, l);
    if (c->draining || lease_held_tokens(c, l) > held_tokens)
        return 1;
    if (promote_lease(c, l))
        return 0;
    return !l->claim || lease_computing_end(c, l) == 0;
}

/* An ACQUIRE waits for pages that are on their way up, and for nothing else. */
static int lift_is_over(core *c, const lease *l) {
    return c->draining || !promote_lease(c, l);
}

int waiter_add(core *c, const request *rq, uint64_t of_lease, uint32_t held_tokens,
               uint32_t first_page, uint64_t wait_ms) {
    if (!c->free_waiter)
        return 0;
    uint32_t slot = c->free_waiter;
    waiter *w = &c->waiters[slot - 1];
    c->free_waiter = w->next;
    *w = (waiter){.session = session_slot(c, rq->session) + 1,
                  .op = rq->header.op,
                  .ticket = rq->ticket,
                  .number = rq->header.number,
                  .lease = of_lease,
                  .held_tokens = held_tokens,
                  .first_page = first_page,
                  .due_ms = c->env.now_ms(c->env.context) + wait_ms};
    if (c->last_waiter)
        c->waiters[c->last_waiter - 1].next = slot;
    else
        c->first_waiter = slot;
    c->last_waiter = slot;
    c->n_waiters++;
    rq->session->n_waits++;
    return 1;
}

void serve_wait(core *c, request *rq) {
    kvt_wait_req req;
    if (kvt_wire_get_wait_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    lease *l = lease_get(c, rq->session, req.lease);
    if (!l) {
        refuse(c, rq, KVT_ENOENT, "no such lease of this session");
        return;
    }
    c->counts.waits++;
    uint32_t wait_ms = req.wait_ms < c->config.max_wait_ms ? req.wait_ms : c->config.max_wait_ms;
    if (wait_is_over(c, l, req.held_tokens) || wait_ms == 0) {
        reply_lease(c, rq->ticket, rq->header.op, rq->header.number, l, req.first_page);
        return;
    }
    if (session_is_busy(c, rq))
        return;
    if (!waiter_add(c, rq, req.lease, req.held_tokens, req.first_page, wait_ms))
        refuse(c, rq, KVT_ELIMIT, "%u calls wait, the most allowed", c->n_waiters);
}

/* Takes the waiter out of the list; `before` is the one in front of it (0: it is the first). */
static void waiter_unlink(core *c, uint32_t before, uint32_t slot) {
    waiter *w = &c->waiters[slot - 1];
    if (before)
        c->waiters[before - 1].next = w->next;
    else
        c->first_waiter = w->next;
    if (c->last_waiter == slot)
        c->last_waiter = before;
    c->sessions[w->session - 1].n_waits--;
    w->session = NONE;
    w->next = c->free_waiter;
    c->free_waiter = slot;
    c->n_waiters--;
}

static void waiter_answer(core *c, const waiter *w) {
    session *s = &c->sessions[w->session - 1];
    if (w->lease == 0) {
        reply_tend(c, w);
        return;
    }
    lease *l = lease_get(c, s, w->lease);
    if (l && w->op == KVT_OP_ACQUIRE)
        reply_acquire(c, w->ticket, w->number, l, w->first_page);
    else if (l)
        reply_lease(c, w->ticket, w->op, w->number, l, w->first_page);
    else
        reply_error(c, w->ticket, w->op, w->number, KVT_ESTALE,
                    "the lease was released while a call waited on it");
}

/* Answers each waiter for whom over() says so. */
static void waiters_answer(core *c, int (*over)(core *c, const waiter *w, uint64_t now_ms),
                           uint64_t now_ms) {
    for (uint32_t before = 0, slot = c->first_waiter; slot;) {
        waiter w = c->waiters[slot - 1];
        uint32_t next = w.next;
        if (over(c, &w, now_ms)) {
            waiter_unlink(c, before, slot);
            waiter_answer(c, &w);
        } else {
            before = slot;
        }
        slot = next;
    }
}

static int over_by_event(core *c, const waiter *w, uint64_t now_ms) {
    (void)now_ms;
    if (w->lease == 0)
        return tend_is_over(c, w);
    lease *l = lease_get(c, &c->sessions[w->session - 1], w->lease);
    if (!l)
        return 1;
    return w->op == KVT_OP_ACQUIRE ? lift_is_over(c, l) : wait_is_over(c, l, w->held_tokens);
}

static int over_by_time(core *c, const waiter *w, uint64_t now_ms) {
    (void)c;
    return now_ms >= w->due_ms;
}

void waiters_wake(core *c) {
    if (!c->wake)
        return;
    c->wake = 0;
    waiters_answer(c, over_by_event, 0);
}

uint64_t waiters_tick(core *c, uint64_t now_ms) {
    waiters_answer(c, over_by_time, now_ms);
    uint64_t due = UINT64_MAX;
    for (uint32_t slot = c->first_waiter; slot; slot = c->waiters[slot - 1].next)
        if (c->waiters[slot - 1].due_ms < due)
            due = c->waiters[slot - 1].due_ms;
    return due;
}

void waiters_drop(core *c, session *s) {
    uint32_t mine = session_slot(c, s) + 1;
    for (uint32_t before = 0, slot = c->first_waiter; slot;) {
        uint32_t next = c->waiters[slot - 1].next;
        if (c->waiters[slot - 1].session == mine)
            waiter_unlink(c, before, slot);
        else
            before = slot;
        slot = next;
    }
}

int waiter_cancel(core *c, session *s, uint64_t number) {
    uint32_t mine = session_slot(c, s) + 1;
    for (uint32_t before = 0, slot = c->first_waiter; slot; slot = c->waiters[slot - 1].next) {
        waiter w = c->waiters[slot - 1];
        if (w.session == mine && w.number == number) {
            waiter_unlink(c, before, slot);
            reply_error(c, w.ticket, w.op, number, KVT_ECANCELED, "cancelled");
            return 1;
        }
        before = slot;
    }
    return 0;
}
