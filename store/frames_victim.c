/*
 * frames_victim.c - which slabs to empty, so that a slab of another class finds room.
 *
 *   | slab 3 used | free | slab 1 used |  free  | slab, not movable | ...
 *                 '------- window -----'
 *
 * A window is as many granules as the new slab needs. One pass in order of address slides it from
 * slab to slab: it starts where a slab ends, since any other could be moved down to there and would
 * touch no more slabs.
 */
#include "store/frames_parts.h"

enum { ENOUGH_SLABS = 4096 }; /* seen, before the best window so far is good enough */

typedef struct ask {
    uint32_t units; /* the class that needs room */
    uint32_t n_granules;
    int (*movable)(void *context, uint32_t frame);
    void *context;
    uint32_t list_max;
} ask;

typedef struct window {
    uint32_t from;
    uint32_t n_moves; /* NONE: no window yet */
    uint32_t n_seen;  /* slabs, until now */
} window;

/* Moves that empty a slab; 0 if it must stay, or if no window with it could be the best one. */
static uint32_t slab_moves(const frames *f, const ask *a, const slab *s, const window *best) {
    if (f->units[s->size_class] == a->units || s->n_used > a->list_max ||
        s->n_used >= best->n_moves)
        return 0;
    uint32_t id = s->frame;
    for (uint32_t n = s->n_ids; n > 0; n--, id = f->entries[id].ring) {
        if (f->entries[id].state == ENTRY_USED && !a->movable(a->context, id))
            return 0;
    }
    return s->n_used;
}

static void search(const frames *f, const ask *a, uint32_t granule, window *best) {
    slab_walk ahead, behind; /* the window's slabs: those that only ahead has passed */
    frames_walk_from(&ahead, f, granule);
    behind = ahead;
    uint32_t at = frames_walk_next(&ahead), n_moves = 0;
    uint32_t start = at == NONE ? f->n_granules : f->slabs[at].granule;
    uint32_t from = granule_free(f, granule) ? granule : start;
    for (;;) {
        while (start - from >= a->n_granules) {
            if (n_moves == 0) { /* nothing in it: on, until it meets the next slab */
                from = start - (a->n_granules - 1);
                break;
            }
            if (n_moves < best->n_moves) {
                best->from = from;
                best->n_moves = n_moves;
            }
            const slab *first = &f->slabs[frames_walk_next(&behind)];
            n_moves -= first->n_used;
            from = slab_end(f, first);
        }
        if (at == NONE || (++best->n_seen > ENOUGH_SLABS && best->n_moves != NONE))
            return;
        const slab *s = &f->slabs[at];
        uint32_t moves = slab_moves(f, a, s, best);
        n_moves += moves;
        if (!moves) {
            behind = ahead;
            n_moves = 0;
            from = slab_end(f, s);
        }
        at = frames_walk_next(&ahead);
        start = at == NONE ? f->n_granules : f->slabs[at].granule;
    }
}

/* Lists the used frames of the kept stretch's slabs; these are given out last from now on. */
static uint32_t list_stretch(frames *f, uint32_t *list, uint32_t list_max) {
    uint32_t n_listed = 0, end = f->kept.from + f->kept.n;
    slab_walk walk;
    frames_walk_from(&walk, f, f->kept.from);
    for (uint32_t at; (at = frames_walk_next(&walk)) != NONE && f->slabs[at].granule < end;) {
        slab *s = &f->slabs[at];
        if (!s->vacating) {
            frames_bucket_out(f, at);
            s->vacating = 1;
            frames_bucket_in(f, at);
        }
        if (s->n_used > list_max - n_listed)
            continue;
        uint32_t id = s->frame;
        for (uint32_t n = s->n_ids; n > 0; n--, id = f->entries[id].ring) {
            if (f->entries[id].state == ENTRY_USED)
                list[n_listed++] = id;
        }
    }
    return n_listed;
}

kvt_status frames_victim(frames *f, uint64_t not_bytes,
                         int (*movable)(void *context, uint32_t frame), void *context,
                         uint32_t *ret_list, uint32_t list_max, uint32_t *ret_n) {
    uint32_t units;
    kvt_status status = frames_units(f, not_bytes, &units);
    if (status != KVT_OK)
        return status;
    slab_plan plan;
    frames_plan(f, units, &plan);
    ask a = {.units = plan.units,
             .n_granules = f->n_pool ? plan.n_granules : 1, /* without an id: any slab, for its */
             .movable = movable,
             .context = context,
             .list_max = list_max};
    window best = {.n_moves = NONE};
    search(f, &a, f->kept.from, &best);
    if (f->kept.from > 0 && (best.n_moves == NONE || best.n_seen < ENOUGH_SLABS))
        search(f, &a, 0, &best);
    if (best.n_moves == NONE)
        return KVT_ENOENT;
    f->kept = (stretch){.from = best.from, .n = a.n_granules, .units = a.units};
    *ret_n = list_stretch(f, ret_list, list_max);
    KVT_ASSERT(*ret_n > 0);
    return KVT_OK;
}
