/*
 * frames_slab.c - classes and slabs: how a slab is cut, where it is placed, and how one with room
 * is found.
 */
#include "store/frames_parts.h"

#include <string.h>

/* --- how slabs are cut --------------------------------------------------------------------------
 */

/*
 * Is the waste small enough? At worst each frame is asked for with 63 bytes less than its size, and
 * 3.8 % of the slab is just under 4 % of the bytes asked for. In frames of less than 4 KiB that
 * rounding may be more by itself; there only the tail is held small.
 */
static int waste_small(uint64_t slab_bytes, uint64_t n_frames, uint64_t size) {
    uint64_t tail = slab_bytes - n_frames * size;
    uint64_t rounding = n_frames * (FRAMES_ALIGN_BYTES - 1);
    return tail * 50 <= slab_bytes || (size > 4096 && (tail + rounding) * 1000 <= slab_bytes * 38);
}

kvt_status frames_units(const frames *f, uint64_t bytes, uint32_t *ret_units) {
    if (bytes == 0)
        return KVT_EINVAL;
    if (bytes > MAX_FRAME_BYTES || bytes > (uint64_t)f->n_granules * f->granule_bytes)
        return KVT_ELIMIT;
    *ret_units = (uint32_t)((bytes + FRAMES_ALIGN_BYTES - 1) / FRAMES_ALIGN_BYTES);
    return KVT_OK;
}

/* The smallest slab whose waste is small: small slabs empty soon. But not a slab for each few small
 * frames, since each costs a record. */
void frames_plan(const frames *f, uint32_t units, slab_plan *ret_plan) {
    uint64_t size = (uint64_t)units * FRAMES_ALIGN_BYTES;
    uint64_t best_granules = 0, best_frames = 0, best_tail = 0;
    uint64_t least = min_slab_granules(f->n_granules);
    if (least * f->granule_bytes > MAX_SLAB_FRAMES * size)
        least = MAX_SLAB_FRAMES * size / f->granule_bytes;
    uint64_t holds_one = (size + f->granule_bytes - 1) / f->granule_bytes;
    for (uint64_t n = holds_one > least ? holds_one : least; n <= f->n_granules; n++) {
        uint64_t slab_bytes = n * f->granule_bytes;
        uint64_t n_frames = slab_bytes / size;
        n_frames = n_frames < MAX_SLAB_FRAMES ? n_frames : MAX_SLAB_FRAMES;
        uint64_t tail = slab_bytes - n_frames * size;
        /* In an arena too small for the right slab, the one with the least waste. */
        if (!best_granules || tail * best_granules < best_tail * n) {
            best_granules = n;
            best_frames = n_frames;
            best_tail = tail;
        }
        if (waste_small(slab_bytes, n_frames, size) &&
            (n_frames >= 8 || slab_bytes >= FRAMES_GRANULE_BYTES)) {
            best_granules = n;
            best_frames = n_frames;
            best_tail = tail;
            break;
        }
    }
    KVT_ASSERT(best_granules > 0 && best_tail <= UINT32_MAX);
    *ret_plan = (slab_plan){.units = units,
                            .n_granules = (uint32_t)best_granules,
                            .n_frames = (uint32_t)best_frames,
                            .tail_bytes = (uint32_t)best_tail};
}

/* --- granules -----------------------------------------------------------------------------------
 */

static uint32_t next_region_not_full(const frames *f, uint32_t from) {
    for (uint32_t r = from; r < f->n_regions; r = r / 64 * 64 + 64) {
        uint64_t word = ~f->full[r / 64] >> r % 64;
        if (word) {
            r += (uint32_t)__builtin_ctzll(word);
            return r < f->n_regions ? r : f->n_regions;
        }
    }
    return f->n_regions;
}

/* The first free granule at or after `from`, or n_granules. */
static uint32_t next_free(const frames *f, uint32_t from) {
    if (from >= f->n_granules)
        return f->n_granules;
    uint64_t word = ~f->in_slab[from / 64] >> from % 64;
    if (word)
        return from + (uint32_t)__builtin_ctzll(word);
    uint32_t r = next_region_not_full(f, from / 64 + 1);
    return r < f->n_regions ? r * 64 + (uint32_t)__builtin_ctzll(~f->in_slab[r]) : f->n_granules;
}

/* The first granule of [from, end) that is in a slab, or end. */
static uint32_t next_used(const frames *f, uint32_t from, uint32_t end) {
    while (from < end) {
        uint64_t word = f->in_slab[from / 64] >> from % 64;
        if (word) {
            from += (uint32_t)__builtin_ctzll(word);
            return from < end ? from : end;
        }
        from = from / 64 * 64 + 64;
    }
    return end;
}

/* The first run of n free granules, outside of the kept stretch unless into_kept. */
static uint32_t find_run(frames *f, uint32_t n, int into_kept) {
    uint32_t kept_n = into_kept ? 0 : f->kept.n;
    if (n >= f->no_run)
        return NONE;
    uint32_t at = next_free(f, f->lowest_free);
    while (f->n_granules - at >= n) {
        uint32_t end = next_used(f, at, at + n);
        if (end - at < n)
            at = next_free(f, end);
        else if (kept_n && at < f->kept.from + kept_n && at + n > f->kept.from)
            at = next_free(f, f->kept.from + kept_n);
        else
            return at;
    }
    if (!kept_n)
        f->no_run = n;
    return NONE;
}

uint64_t frames_largest_free(const frames *f) {
    uint32_t most = 0;
    for (uint32_t at = next_free(f, 0), end; at < f->n_granules; at = next_free(f, end)) {
        end = next_used(f, at, f->n_granules);
        most = end - at > most ? end - at : most;
    }
    return (uint64_t)most * f->granule_bytes;
}

static void mark_run(frames *f, uint32_t at, uint32_t n, int set) {
    for (uint32_t end = at + n; at < end;) {
        uint32_t r = at / 64, bit = at % 64, width = end - at < 64 - bit ? end - at : 64 - bit;
        uint64_t mask = (width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1) << bit;
        KVT_ASSERT((f->in_slab[r] & mask) == (set ? 0 : mask));
        f->in_slab[r] ^= mask;
        if (f->in_slab[r] == UINT64_MAX)
            f->full[r / 64] |= UINT64_C(1) << r % 64;
        else
            f->full[r / 64] &= ~(UINT64_C(1) << r % 64);
        at += width;
    }
}

static void region_in(frames *f, uint32_t at) {
    uint32_t *head = &f->regions[f->slabs[at].granule / REGION_GRANULES];
    f->slabs[at].next_in_region = *head;
    *head = at;
}

static void region_out(frames *f, uint32_t at) {
    uint32_t *link = &f->regions[f->slabs[at].granule / REGION_GRANULES];
    while (*link != at) {
        KVT_ASSERT(*link != NONE);
        link = &f->slabs[*link].next_in_region;
    }
    *link = f->slabs[at].next_in_region;
}

static void walk_region(slab_walk *walk) {
    const frames *f = walk->f;
    walk->granule = walk->next_region * REGION_GRANULES;
    walk->starts = 0;
    for (uint32_t at = f->regions[walk->next_region]; at != NONE;
         at = f->slabs[at].next_in_region) {
        uint32_t bit = f->slabs[at].granule % REGION_GRANULES;
        walk->starts |= UINT64_C(1) << bit;
        walk->slabs[bit] = at;
    }
    walk->next_region++;
}

/* The first one is the first slab that starts at or after `granule`. */
void frames_walk_from(slab_walk *walk, const frames *f, uint32_t granule) {
    walk->f = f;
    walk->next_region = granule / REGION_GRANULES;
    walk_region(walk);
    walk->starts &= UINT64_MAX << granule % REGION_GRANULES;
}

uint32_t frames_walk_next(slab_walk *walk) {
    while (!walk->starts) {
        if (walk->next_region == walk->f->n_regions)
            return NONE;
        walk_region(walk);
    }
    uint32_t bit = (uint32_t)__builtin_ctzll(walk->starts);
    walk->starts &= walk->starts - 1;
    return walk->slabs[bit];
}

/* --- classes ------------------------------------------------------------------------------------
 */

uint32_t frames_class_find(const frames *f, uint32_t units) {
    for (uint32_t c = 0; c < f->n_class_slots; c++) {
        if (f->units[c] == units)
            return c;
    }
    return NONE;
}

static uint32_t class_make(frames *f, const slab_plan *plan) {
    uint32_t c = frames_class_find(f, 0); /* one that ended */
    if (c == NONE) {
        if (f->n_class_slots == f->max_classes)
            return NONE;
        c = f->n_class_slots++;
    }
    size_class *k = &f->classes[c];
    *k = (size_class){.n_frames = (uint16_t)plan->n_frames,
                      .n_granules = plan->n_granules,
                      .tail_bytes = plan->tail_bytes};
    for (int b = 0; b < N_BUCKETS; b++)
        k->buckets[b] = NONE;
    f->units[c] = plan->units;
    f->n_classes++;
    return c;
}

uint32_t frames_bucket_of(const frames *f, const slab *s) {
    uint32_t n_frames = class_of(f, s)->n_frames;
    if (s->n_used == n_frames)
        return NONE;
    if (s->vacating)
        return BUCKET_VACATING;
    if (s->n_used == s->n_ids)
        return BUCKET_NO_ID;
    return BUCKET_FIRST + s->n_used * (N_BUCKETS - BUCKET_FIRST) / n_frames;
}

void frames_bucket_in(frames *f, uint32_t at) {
    slab *s = &f->slabs[at];
    uint32_t b = frames_bucket_of(f, s);
    if (b == NONE)
        return;
    size_class *k = &f->classes[s->size_class];
    s->next = k->buckets[b];
    s->prev = NONE;
    if (s->next != NONE)
        f->slabs[s->next].prev = at;
    k->buckets[b] = at;
    k->buckets_used = (uint16_t)(k->buckets_used | 1u << b);
}

void frames_bucket_out(frames *f, uint32_t at) {
    slab *s = &f->slabs[at];
    uint32_t b = frames_bucket_of(f, s);
    if (b == NONE)
        return;
    size_class *k = &f->classes[s->size_class];
    if (s->next != NONE)
        f->slabs[s->next].prev = s->prev;
    if (s->prev != NONE)
        f->slabs[s->prev].next = s->next;
    else
        k->buckets[b] = s->next;
    if (k->buckets[b] == NONE)
        k->buckets_used = (uint16_t)(k->buckets_used & ~(1u << b));
}

/* --- slabs --------------------------------------------------------------------------------------
 */

kvt_status frames_slab_make(frames *f, const slab_plan *plan, int into_kept, uint32_t *ret_slab) {
    int own_kept = plan->units == f->kept.units;
    uint32_t granule = find_run(f, plan->n_granules, into_kept || own_kept);
    if (granule == NONE)
        return KVT_EFULL;
    uint32_t at = f->slab_pool;
    KVT_ASSERT(f->n_pool > 0);
    if (at == NONE) /* there are many of tiny frames: else there would be one for each run */
        return KVT_EFULL;
    uint32_t c = frames_class_find(f, plan->units);
    if (c == NONE)
        c = class_make(f, plan);
    if (c == NONE)
        return KVT_ELIMIT;
    slab *s = &f->slabs[at];
    f->slab_pool = s->next;
    *s = (slab){.granule = granule, .frame = NONE};
    s->size_class = c & 0x7ff;
    if (own_kept)
        f->kept = (stretch){.from = f->kept.from}; /* where the next search begins */
    else if (f->kept.n && granule < f->kept.from + f->kept.n &&
             granule + plan->n_granules > f->kept.from)
        s->vacating = 1;
    mark_run(f, granule, plan->n_granules, 1);
    if (granule == f->lowest_free)
        f->lowest_free = granule + plan->n_granules;
    region_in(f, at);
    f->classes[c].n_slabs++;
    f->n_without_id += plan->n_frames;
    f->slab_granules += plan->n_granules;
    f->tail_bytes += plan->tail_bytes;
    frames_bucket_in(f, at);
    *ret_slab = at;
    return KVT_OK;
}

/* All ids of the ring go back to the pool. */
static void pool_ring(frames *f, const slab *s) {
    uint32_t first = s->frame;
    for (uint32_t n = s->n_ids, id = first; n > 0; n--) {
        entry *e = &f->entries[id];
        uint32_t next = e->ring;
        KVT_ASSERT(e->state == ENTRY_FREE);
        *e = (entry){.slab = f->pool & LAST, .ring = NONE, .state = ENTRY_POOL};
        f->pool = id;
        id = next;
        KVT_ASSERT((n == 1) == (id == first));
    }
    f->n_pool += s->n_ids;
    f->n_free -= s->n_ids;
}

void frames_slab_end(frames *f, uint32_t at) {
    slab *s = &f->slabs[at];
    size_class *k = &f->classes[s->size_class];
    KVT_ASSERT(s->n_used == 0);
    region_out(f, at);
    pool_ring(f, s);
    mark_run(f, s->granule, k->n_granules, 0);
    if (s->granule < f->lowest_free)
        f->lowest_free = s->granule;
    f->no_run = NONE;
    f->n_without_id -= (uint32_t)k->n_frames - s->n_ids;
    f->slab_granules -= k->n_granules;
    f->tail_bytes -= k->tail_bytes;
    if (--k->n_slabs == 0) {
        f->units[s->size_class] = 0;
        f->n_classes--;
    }
    s->next = f->slab_pool;
    f->slab_pool = at;
}
