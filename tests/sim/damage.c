/*
 * damage.c - bits of the arena that change by themselves, and the workers who find out, or lie. The
 * world remembers what it has damaged: only of that may a reader find that it is wrong.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

static sim_damage damage_of(const sim_lease *l, const kvt_wire_page *page) {
    return (sim_damage){page->generation, l->arena, l->gpu, page->frame};
}

static int is_same(const sim_damage *a, const sim_damage *b) {
    return a->generation == b->generation && a->arena == b->arena && a->gpu == b->gpu &&
           a->frame == b->frame;
}

int sim_is_damaged(const sim_world *w, const sim_lease *l, const kvt_wire_page *page) {
    const sim_damage at = damage_of(l, page);
    for (uint32_t i = 0; i < w->n_damages; i++)
        if (is_same(&w->damages[i], &at))
            return 1;
    return 0;
}

void sim_suspect(sim_world *w, sim_worker *k, uint32_t slot, uint32_t group, uint32_t page) {
    outgoing o;
    const sim_lease *l = &k->leases[slot];
    kvt_suspect_req req = {.lease = l->id, .page = page, .group = group};
    k->suspect = damage_of(l, &l->pages[group][page]);
    k->suspect_is_damaged = sim_is_damaged(w, l, &l->pages[group][page]);
    /* The lease may have come to another page since, if it had some rows of this one. */
    k->suspect_is_whole = (page + 1) * SIM_PAGE_TOKENS <= l->held_tokens;
    sim_begin(&o);
    kvt_wire_put_suspect_req(&o.w, &req);
    sim_call(w, k, &o, KVT_OP_SUSPECT, slot, 0);
}

/* Some page of the lease that has bytes; 0: it has none. */
static int some_page(sim_world *w, const sim_lease *l, uint32_t *ret_group, uint32_t *ret_page) {
    uint32_t group = sim_below(w, w->geometry.n_groups);
    if (l->n_pages <= l->first_page[group])
        return 0;
    *ret_group = group;
    *ret_page = l->first_page[group] + sim_below(w, l->n_pages - l->first_page[group]);
    return l->pages[group][*ret_page].bytes > 0;
}

void sim_hurt(sim_world *w, sim_worker *k, uint32_t slot) {
    uint32_t group, number;
    const sim_lease *l = &k->leases[slot];
    if (!some_page(w, l, &group, &number))
        return;
    const kvt_wire_page *page = &l->pages[group][number];
    sim_arena *arena = &w->arenas[l->arena];
    /* A third of them lies: what they call damaged is right. */
    if (sim_below(w, 3) && w->n_damages < SIM_MAX_DAMAGES && k->arena_of == w &&
        l->arena == w->d->boot - 1 &&
        arena->generations[l->gpu * w->config.max_frames + page->frame] == page->generation) {
        arena->data[l->gpu * w->config.arena_bytes + page->offset + sim_below(w, page->bytes)] ^=
            (uint8_t)(1 << sim_below(w, 8));
        w->damages[w->n_damages++] = damage_of(l, page);
        w->n.damages++;
        return;
    }
    w->n.lies += !sim_is_damaged(w, l, page);
    sim_suspect(w, k, slot, group, number);
}

/* From now on no ACQUIRE of its own gets it. */
void sim_suspect_reply(sim_world *w, sim_worker *k, const uint8_t *body, size_t n) {
    kvt_suspect_rep rep;
    CHECK_EQ(kvt_wire_get_suspect_rep(body, n, &rep), KVT_OK);
    if (!rep.forgotten && k->suspect_is_damaged && k->suspect_is_whole)
        sim_fail(w, "worker %u: a page that is damaged is called right", k->index);
    if (rep.forgotten && k->suspect_is_damaged) {
        w->n.forgotten++;
        k->forgotten = k->suspect;
    }
}

void sim_forgotten_check(sim_world *w, const sim_worker *k, const sim_lease *l) {
    for (uint32_t group = 0; group < w->geometry.n_groups; group++)
        for (uint32_t i = l->first_page[group]; i < l->n_pages; i++) {
            const sim_damage at = damage_of(l, &l->pages[group][i]);
            if (k->forgotten.generation && l->pages[group][i].bytes && is_same(&at, &k->forgotten))
                sim_fail(w, "worker %u: page %u was forgotten as damaged, and is given out again",
                         k->index, i);
        }
}
