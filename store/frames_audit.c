/*
 * frames_audit.c - walks everything and counts again. Each id is in the pool or in the ring of one
 * slab; each granule is free or in one slab; each slab with room is in the bucket that it belongs
 * to.
 */
#include "store/frames_parts.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/say.h"

typedef struct tally {
    uint32_t n_slabs, n_used, n_free, n_ids, n_bucketed;
    uint64_t n_without_id, granules, used_bytes, rounding_bytes, tail_bytes;
} tally;

#define BROKEN(...) kvt_say(why, why_bytes, KVT_EINTERNAL, __VA_ARGS__)

/* The ring of one slab: n_ids different ids with slots 0 .. n_ids - 1, as many of them in use as
 * counted, the others chained from `frame`. */
static kvt_status audit_ring(const frames *f, uint32_t at, tally *t, char *why, size_t why_bytes) {
    const slab *s = &f->slabs[at];
    uint64_t slots[(MAX_SLAB_FRAMES + 63) / 64] = {0};
    uint32_t n_used = 0, id = s->frame;
    for (uint32_t n = 0; n < s->n_ids; n++) {
        const entry *e = id < f->max_frames ? &f->entries[id] : NULL;
        uint32_t slot = e ? f->places[id].slot : 0;
        if (!e || e->state == ENTRY_POOL || slot >= s->n_ids || slots[slot / 64] >> slot % 64 & 1)
            return BROKEN("slab %" PRIu32 ": id %" PRIu32 " does not belong to its ring", at, id);
        slots[slot / 64] |= UINT64_C(1) << slot % 64;
        if (e->state == ENTRY_USED) {
            if (e->slab != at)
                return BROKEN("frame %" PRIu32 " names slab %" PRIu32 ", not %" PRIu32, id, e->slab,
                              at);
            n_used++;
            t->used_bytes += frames_asked(f, id);
            t->rounding_bytes += f->places[id].rounding_bytes;
        }
        id = e->ring;
    }
    if (s->n_used == 0 || n_used != s->n_used || id != s->frame)
        return BROKEN("slab %" PRIu32 ": %" PRIu32 " used, counted are %" PRIu32, at, n_used,
                      (uint32_t)s->n_used);
    uint32_t n_free = 0;
    if (f->entries[s->frame].state == ENTRY_FREE) {
        for (id = s->frame; id != NONE && n_free <= s->n_ids; id = entry_next(&f->entries[id])) {
            if (id >= f->max_frames || f->entries[id].state != ENTRY_FREE)
                break;
            n_free++;
        }
    }
    if (n_free + s->n_used != s->n_ids)
        return BROKEN("slab %" PRIu32 ": %" PRIu32 " of %" PRIu32 " free ids are chained", at,
                      n_free, (uint32_t)s->n_ids - s->n_used);
    t->n_used += n_used;
    t->n_free += n_free;
    t->n_ids += s->n_ids;
    return KVT_OK;
}

/* Slabs in order of address: none overlap, and the bitmap says just what they cover. */
static kvt_status audit_slabs(const frames *f, tally *t, char *why, size_t why_bytes) {
    slab_walk walk;
    uint32_t end = 0, at;
    frames_walk_from(&walk, f, 0);
    while ((at = frames_walk_next(&walk)) != NONE) {
        const slab *s = &f->slabs[at];
        if (s->size_class >= f->n_class_slots || !f->units[s->size_class])
            return BROKEN("slab %" PRIu32 " is of no class", at);
        if (s->granule < end || slab_end(f, s) > f->n_granules)
            return BROKEN("slab %" PRIu32 " overlaps another or the end", at);
        for (; end < slab_end(f, s); end++) {
            if (granule_free(f, end) != (end < s->granule))
                return BROKEN("granule %" PRIu32 ": wrong in the bitmap", end);
        }
        const size_class *k = class_of(f, s);
        kvt_status status = audit_ring(f, at, t, why, why_bytes);
        if (status != KVT_OK)
            return status;
        t->n_slabs++;
        t->granules += k->n_granules;
        t->tail_bytes += k->tail_bytes;
        t->n_without_id += k->n_frames - s->n_ids;
        t->n_bucketed += s->n_used < k->n_frames;
    }
    for (; end < f->n_regions * REGION_GRANULES; end++) {
        if (granule_free(f, end) != (end < f->n_granules))
            return BROKEN("granule %" PRIu32 ": wrong in the bitmap", end);
    }
    return KVT_OK;
}

/* What the search for free granules relies on. */
static kvt_status audit_search(const frames *f, char *why, size_t why_bytes) {
    uint32_t run = 0;
    for (uint32_t at = 0; at < f->n_granules; at++) {
        run = granule_free(f, at) ? run + 1 : 0;
        if (run > 0 && at < f->lowest_free)
            return BROKEN("granule %" PRIu32 " is free, below the lowest free one", at);
        if (run >= f->no_run)
            return BROKEN("%" PRIu32 " granules up to %" PRIu32 " are free; no run of %" PRIu32
                          " is said to be",
                          run, at, f->no_run);
    }
    for (uint32_t r = 0; r < f->n_regions; r++) {
        if ((f->full[r / 64] >> r % 64 & 1) != (f->in_slab[r] == UINT64_MAX))
            return BROKEN("region %" PRIu32 ": full or not is wrong", r);
    }
    return KVT_OK;
}

static kvt_status audit_buckets(const frames *f, uint32_t c, uint32_t *n_bucketed, char *why,
                                size_t why_bytes) {
    const size_class *k = &f->classes[c];
    for (uint32_t b = 0; b < N_BUCKETS; b++) {
        uint32_t prev = NONE;
        if ((k->buckets[b] != NONE) != (k->buckets_used >> b & 1))
            return BROKEN("class %" PRIu32 ": bucket %" PRIu32 " and its bit differ", c, b);
        for (uint32_t at = k->buckets[b]; at != NONE; at = f->slabs[at].next) {
            const slab *s = &f->slabs[at];
            if (s->size_class != c || s->prev != prev || frames_bucket_of(f, s) != b ||
                ++*n_bucketed > f->max_slabs)
                return BROKEN("slab %" PRIu32 " is in bucket %" PRIu32 " of class %" PRIu32, at, b,
                              c);
            prev = at;
        }
    }
    return KVT_OK;
}

static kvt_status audit_classes(const frames *f, const tally *t, char *why, size_t why_bytes) {
    uint32_t n_classes = 0, n_slabs = 0, n_bucketed = 0;
    for (uint32_t c = 0; c < f->n_class_slots; c++) {
        if (!f->units[c])
            continue;
        if (f->classes[c].n_slabs == 0 || frames_class_find(f, f->units[c]) != c)
            return BROKEN("class %" PRIu32 " is empty or there twice", c);
        kvt_status status = audit_buckets(f, c, &n_bucketed, why, why_bytes);
        if (status != KVT_OK)
            return status;
        n_classes++;
        n_slabs += f->classes[c].n_slabs;
    }
    if (n_classes != f->n_classes || n_slabs != t->n_slabs || n_bucketed != t->n_bucketed)
        return BROKEN("%" PRIu32 " classes, %" PRIu32 " slabs, %" PRIu32
                      " with room; counted: %" PRIu32 ", %" PRIu32 ", %" PRIu32,
                      n_classes, n_slabs, n_bucketed, f->n_classes, t->n_slabs, t->n_bucketed);
    return KVT_OK;
}

static kvt_status audit_pools(const frames *f, const tally *t, char *why, size_t why_bytes) {
    uint32_t n_pool = 0, n_slabs = 0;
    for (uint32_t id = f->pool; id != NONE; id = entry_next(&f->entries[id])) {
        if (id >= f->max_frames || f->entries[id].state != ENTRY_POOL || ++n_pool > f->n_pool)
            return BROKEN("the pool of ids is broken at %" PRIu32, id);
    }
    for (uint32_t at = f->slab_pool; at != NONE; at = f->slabs[at].next) {
        if (at >= f->max_slabs || ++n_slabs > f->max_slabs)
            return BROKEN("the pool of slabs is broken at %" PRIu32, at);
    }
    if (n_pool != f->n_pool || n_pool + t->n_ids != f->max_frames ||
        n_slabs + t->n_slabs != f->max_slabs)
        return BROKEN("%" PRIu32 " ids in the pool + %" PRIu32 " in slabs, of %" PRIu32 "; %" PRIu32
                      " slabs free + %" PRIu32 " in use, of %" PRIu32,
                      n_pool, t->n_ids, f->max_frames, n_slabs, t->n_slabs, f->max_slabs);
    return KVT_OK;
}

kvt_status frames_audit(const frames *f, char *why, size_t why_bytes) {
    tally t = {0};
    kvt_status status = audit_slabs(f, &t, why, why_bytes);
    if (status == KVT_OK)
        status = audit_search(f, why, why_bytes);
    if (status == KVT_OK)
        status = audit_classes(f, &t, why, why_bytes);
    if (status == KVT_OK)
        status = audit_pools(f, &t, why, why_bytes);
    if (status != KVT_OK)
        return status;
    if (t.n_used != f->n_used || t.n_free != f->n_free || t.n_without_id != f->n_without_id)
        return BROKEN("frames used %" PRIu32 ", free %" PRIu32 ", without id %" PRIu64
                      "; counted: %" PRIu32 ", %" PRIu32 ", %" PRIu64,
                      t.n_used, t.n_free, t.n_without_id, f->n_used, f->n_free, f->n_without_id);
    if (t.granules != f->slab_granules || t.used_bytes != f->used_bytes ||
        t.rounding_bytes != f->rounding_bytes || t.tail_bytes != f->tail_bytes)
        return BROKEN("granules %" PRIu64 ", bytes used %" PRIu64 ", rounding %" PRIu64
                      ", tails %" PRIu64 "; counted: %" PRIu64 ", %" PRIu64 ", %" PRIu64
                      ", %" PRIu64,
                      t.granules, t.used_bytes, t.rounding_bytes, t.tail_bytes, f->slab_granules,
                      f->used_bytes, f->rounding_bytes, f->tail_bytes);
    return KVT_OK;
}
