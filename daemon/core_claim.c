/*
 * core_claim.c - claims expire, leases do not. Who computes pages has promised to seal one within
 * claim_ms of the last. When he has not, they are anybody's: the first who waits for them takes
 * over (core_wait.c), or the next who asks. He himself may seal them all the same.
 *
 *     oldest promise ---> lease <-> lease <-> lease <--- newest       all wait equally long, so the
 *                                                                     first to end is the oldest
 */
#include "daemon/core_state.h"

static void unlink_claim(core *c, lease *l) {
    if (!l->is_timed)
        return;
    if (l->prev_claim)
        c->leases[l->prev_claim - 1].next_claim = l->next_claim;
    else
        c->first_claim = l->next_claim;
    if (l->next_claim)
        c->leases[l->next_claim - 1].prev_claim = l->prev_claim;
    else
        c->last_claim = l->prev_claim;
    l->is_timed = 0;
    l->prev_claim = l->next_claim = NONE;
}

void claim_promise(core *c, lease *l) {
    uint32_t name = (uint32_t)(l - c->leases + 1);
    if (c->config.claim_ms == 0)
        return;
    unlink_claim(c, l);
    l->is_timed = 1;
    l->claim_end_ms = c->env.now_ms(c->env.context) + c->config.claim_ms;
    l->prev_claim = c->last_claim;
    if (c->last_claim)
        c->leases[c->last_claim - 1].next_claim = name;
    else
        c->first_claim = name;
    c->last_claim = name;
}

void claim_kept(core *c, lease *l) {
    if (l->is_timed)
        claim_promise(c, l);
}

void claim_end(core *c, lease *l) {
    unlink_claim(c, l);
}

uint64_t claims_tick(core *c, uint64_t now_ms) {
    while (c->first_claim) {
        lease *l = &c->leases[c->first_claim - 1];
        if (now_ms < l->claim_end_ms)
            return l->claim_end_ms;
        claim_end(c, l);
        uint32_t n = lease_disown(c, l);
        c->counts.claims_expired += n > 0;
        c->wake |= n > 0;
    }
    return UINT64_MAX;
}
