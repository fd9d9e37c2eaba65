/*
 * frames.c - giving frames out and taking them back.
 */
#include "store/frames_parts.h"

#include <string.h>

static uint32_t granule_bytes_for(uint64_t arena_bytes) {
    uint32_t bytes = MIN_GRANULE_BYTES;
    while (bytes < FRAMES_GRANULE_BYTES && arena_bytes / bytes > MAX_GRANULES_BEFORE_GROWTH)
        bytes *= 2;
    return bytes;
}

/* --- the block: this struct, then the arrays, each at a multiple of 64
 * ---------------------------- */

typedef struct block_plan {
    uint64_t n_granules, n_regions, max_slabs, max_classes;
    size_t in_slab, full, regions, units, classes, slabs, entries, places; /* offsets */
    size_t bytes;
} block_plan;

static uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static size_t place(size_t *at, uint64_t n, size_t each) {
    size_t here = *at;
    *at = (here + n * each + 63) / 64 * 64;
    return here;
}

static void plan_block(uint64_t arena_bytes, uint32_t max_frames, block_plan *p) {
    p->n_granules = arena_bytes / granule_bytes_for(arena_bytes);
    p->n_regions = (p->n_granules + REGION_GRANULES - 1) / REGION_GRANULES;
    p->max_slabs = min_u64(p->n_granules / min_slab_granules(p->n_granules), max_frames);
    p->max_classes = min_u64(p->max_slabs, FRAMES_MAX_CLASSES);
    size_t at = 0;
    place(&at, 1, sizeof(frames));
    p->in_slab = place(&at, p->n_regions, sizeof(uint64_t));
    p->full = place(&at, (p->n_regions + 63) / 64, sizeof(uint64_t));
    p->regions = place(&at, p->n_regions, sizeof(uint32_t));
    p->units = place(&at, p->max_classes, sizeof(uint32_t));
    p->classes = place(&at, p->max_classes, sizeof(size_class));
    p->slabs = place(&at, p->max_slabs, sizeof(slab));
    p->entries = place(&at, max_frames, sizeof(entry));
    p->places = place(&at, max_frames, sizeof(entry_place));
    p->bytes = at;
}

size_t frames_bytes(uint64_t arena_bytes, uint32_t max_frames) {
    block_plan p;
    plan_block(arena_bytes, max_frames, &p);
    return p.bytes;
}

/* --- generations --------------------------------------------------------------------------------
 */

/* Readers look at the number before and after they read the frame. The fence keeps bytes that are
 * written to the frame later from being seen before the number has changed. */
static void raise_generation(frames *f, uint32_t frame) {
    __atomic_store_n(&f->generations[frame], f->generations[frame] + 1, __ATOMIC_RELEASE);
#ifndef __SANITIZE_THREAD__ /* which knows no fences; on a strong machine this one costs nothing   \
                             */
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

/* --- start --------------------------------------------------------------------------------------
 */

static void fill_pools(frames *f) {
    for (uint32_t i = 0; i < f->max_frames; i++) {
        uint32_t next = i + 1 < f->max_frames ? i + 1 : LAST;
        f->entries[i] = (entry){.slab = next & LAST, .ring = NONE, .state = ENTRY_POOL};
        f->places[i] = (entry_place){0};
        raise_generation(f, i);
    }
    f->n_pool = f->max_frames;
    for (uint32_t i = 0; i < f->max_slabs; i++)
        f->slabs[i].next = i + 1 < f->max_slabs ? i + 1 : NONE;
    memset(f->in_slab, 0, f->n_regions * sizeof(*f->in_slab));
    if (f->n_granules % 64)
        f->in_slab[f->n_regions - 1] = UINT64_MAX << f->n_granules % 64;
    memset(f->full, 0, (f->n_regions + 63) / 64 * sizeof(*f->full));
    for (uint32_t i = 0; i < f->n_regions; i++)
        f->regions[i] = NONE;
    f->no_run = NONE;
    memset(f->units, 0, f->max_classes * sizeof(*f->units));
}

kvt_status frames_init(void *memory, size_t bytes, uint64_t arena_bytes, uint32_t max_frames,
                       uint64_t *generations, frames **ret_frames) {
    block_plan p;
    if (!memory || (uintptr_t)memory % _Alignof(frames) || !generations || max_frames == 0 ||
        max_frames >= LAST || arena_bytes == 0 || arena_bytes % FRAMES_GRANULE_BYTES ||
        arena_bytes / FRAMES_GRANULE_BYTES > UINT32_MAX / 2) {
        return KVT_EINVAL;
    }
    plan_block(arena_bytes, max_frames, &p);
    if (bytes < p.bytes)
        return KVT_EINVAL;
    char *at = memory;
    frames *f = memory;
    memset(f, 0, sizeof(*f));
    f->max_frames = max_frames;
    f->granule_bytes = granule_bytes_for(arena_bytes);
    f->n_granules = (uint32_t)p.n_granules;
    f->n_regions = (uint32_t)p.n_regions;
    f->max_slabs = (uint32_t)p.max_slabs;
    f->max_classes = (uint32_t)p.max_classes;
    f->generations = generations;
    f->in_slab = (uint64_t *)(void *)(at + p.in_slab);
    f->full = (uint64_t *)(void *)(at + p.full);
    f->regions = (uint32_t *)(void *)(at + p.regions);
    f->units = (uint32_t *)(void *)(at + p.units);
    f->classes = (size_class *)(void *)(at + p.classes);
    f->slabs = (slab *)(void *)(at + p.slabs);
    f->entries = (entry *)(void *)(at + p.entries);
    f->places = (entry_place *)(void *)(at + p.places);
    fill_pools(f);
    *ret_frames = f;
    return KVT_OK;
}

/* --- alloc --------------------------------------------------------------------------------------
 */

/* A slab with room for one more that is not being vacated, or NONE. */
static uint32_t pick_open(const frames *f, uint32_t c) {
    uint32_t with_room = c == NONE ? 0 : f->classes[c].buckets_used;
    with_room &= ~(1u << BUCKET_VACATING);
    if (!f->n_pool)
        with_room &= ~(1u << BUCKET_NO_ID);
    return with_room ? f->classes[c].buckets[31 - __builtin_clz(with_room)] : NONE;
}

static uint32_t pick_vacating(const frames *f, uint32_t c) {
    uint32_t at = c == NONE ? NONE : f->classes[c].buckets[BUCKET_VACATING];
    while (at != NONE && !f->n_pool && f->slabs[at].n_used == f->slabs[at].n_ids)
        at = f->slabs[at].next;
    return at;
}

/* In this order: a slab that is there; a new one; one that is being vacated; a new one in the place
 * that is kept for another class. So a stretch that is being emptied fills again only when there is
 * nothing else. */
static kvt_status find_room(frames *f, uint32_t units, uint32_t *ret_slab) {
    uint32_t c = frames_class_find(f, units);
    uint32_t at = pick_open(f, c);
    if (at == NONE && f->n_pool) {
        slab_plan plan;
        frames_plan(f, units, &plan);
        kvt_status status = frames_slab_make(f, &plan, 0, &at);
        if (status == KVT_EFULL && (at = pick_vacating(f, c)) == NONE)
            status = frames_slab_make(f, &plan, 1, &at);
        if (status != KVT_OK && status != KVT_EFULL)
            return status;
    } else if (at == NONE) {
        at = pick_vacating(f, c);
    }
    *ret_slab = at;
    return at == NONE ? KVT_EFULL : KVT_OK;
}

/* The next slot gets an id from the pool, which joins the ring as a free frame. */
static void add_id(frames *f, slab *s) {
    uint32_t id = f->pool;
    KVT_ASSERT(id != NONE && f->n_pool > 0 && s->n_ids < class_of(f, s)->n_frames);
    entry *e = &f->entries[id];
    KVT_ASSERT(e->state == ENTRY_POOL);
    f->pool = entry_next(e);
    f->n_pool--;
    *e = (entry){.slab = LAST, .ring = id, .state = ENTRY_FREE};
    f->places[id].slot = s->n_ids;
    if (s->n_ids) {
        e->ring = f->entries[s->frame].ring;
        f->entries[s->frame].ring = id;
    }
    s->frame = id;
    s->n_ids++;
    f->n_free++;
    f->n_without_id--;
}

kvt_status frames_alloc(frames *f, uint64_t bytes, uint32_t *ret_frame) {
    uint32_t units, at;
    kvt_status status = frames_units(f, bytes, &units);
    if (status == KVT_OK)
        status = find_room(f, units, &at);
    if (status != KVT_OK)
        return status;
    slab *s = &f->slabs[at];
    frames_bucket_out(f, at);
    if (s->n_used == s->n_ids)
        add_id(f, s);
    uint32_t id = s->frame;
    entry *e = &f->entries[id];
    KVT_ASSERT(e->state == ENTRY_FREE);
    if (entry_next(e) != NONE)
        s->frame = entry_next(e);
    e->slab = at & LAST;
    e->state = ENTRY_USED;
    f->places[id].rounding_bytes = ((uint64_t)units * FRAMES_ALIGN_BYTES - bytes) & 63;
    s->n_used++;
    f->classes[s->size_class].n_used++;
    frames_bucket_in(f, at);
    f->n_free--;
    f->n_used++;
    f->used_bytes += bytes;
    f->rounding_bytes += f->places[id].rounding_bytes;
    raise_generation(f, id);
    *ret_frame = id;
    return KVT_OK;
}

/* --- free ---------------------------------------------------------------------------------------
 */

static inline const entry *used(const frames *f, uint32_t frame) {
    KVT_ASSERT(frames_in_use(f, frame));
    return &f->entries[frame];
}

void frames_free(frames *f, uint32_t frame) {
    uint32_t at = used(f, frame)->slab;
    entry *e = &f->entries[frame];
    slab *s = &f->slabs[at];
    raise_generation(f, frame);
    f->used_bytes -= frames_asked(f, frame);
    f->rounding_bytes -= f->places[frame].rounding_bytes;
    f->n_used--;
    f->n_free++;
    frames_bucket_out(f, at);
    e->state = ENTRY_FREE;
    int is_behind = f->entries[s->frame].state == ENTRY_FREE && s->frame != frame;
    e->slab = (is_behind ? s->frame : LAST) & LAST;
    s->frame = frame;
    s->n_used--;
    f->classes[s->size_class].n_used--;
    if (s->n_used == 0)
        frames_slab_end(f, at);
    else
        frames_bucket_in(f, at);
}

/* --- look ---------------------------------------------------------------------------------------
 */

int frames_in_use(const frames *f, uint32_t frame) {
    return frame < f->max_frames && f->entries[frame].state == ENTRY_USED;
}

uint64_t frames_size(const frames *f, uint32_t frame) {
    const slab *s = &f->slabs[used(f, frame)->slab];
    return (uint64_t)f->units[s->size_class] * FRAMES_ALIGN_BYTES;
}

uint64_t frames_asked(const frames *f, uint32_t frame) {
    return frames_size(f, frame) - f->places[frame].rounding_bytes;
}

uint64_t frames_offset(const frames *f, uint32_t frame) {
    const slab *s = &f->slabs[used(f, frame)->slab];
    return (uint64_t)s->granule * f->granule_bytes + f->places[frame].slot * frames_size(f, frame);
}

frame_place frames_place(const frames *f, uint32_t frame) {
    const entry_place *place = &f->places[frame];
    const slab *s = &f->slabs[used(f, frame)->slab];
    uint64_t bytes = (uint64_t)f->units[s->size_class] * FRAMES_ALIGN_BYTES;
    return (frame_place){.offset = (uint64_t)s->granule * f->granule_bytes + place->slot * bytes,
                         .bytes = bytes - place->rounding_bytes,
                         .generation = f->generations[frame]};
}

uint64_t frames_generation(const frames *f, uint32_t frame) {
    KVT_ASSERT(frame < f->max_frames);
    return f->generations[frame];
}

int frames_in_stretch(const frames *f, uint32_t frame) {
    return f->slabs[used(f, frame)->slab].vacating;
}

uint64_t frames_free_like(const frames *f, uint64_t bytes) {
    uint32_t units;
    uint32_t c = frames_units(f, bytes, &units) == KVT_OK ? frames_class_find(f, units) : NONE;
    return c == NONE
               ? 0
               : (uint64_t)f->classes[c].n_slabs * f->classes[c].n_frames - f->classes[c].n_used;
}

uint64_t frames_slab_bytes(const frames *f, uint64_t bytes) {
    uint32_t units;
    slab_plan plan;
    if (frames_units(f, bytes, &units) != KVT_OK)
        return 0;
    frames_plan(f, units, &plan);
    return (uint64_t)plan.n_granules * f->granule_bytes;
}

int frames_is_cut_up(const frames *f, uint64_t bytes) {
    uint32_t units;
    slab_plan plan = {.n_granules = NONE - 1};
    if (bytes && frames_units(f, bytes, &units) == KVT_OK)
        frames_plan(f, units, &plan);
    return plan.n_granules >= f->no_run;
}

void frames_count(const frames *f, frames_counts *ret_counts) {
    *ret_counts = (frames_counts){
        .max_frames = f->max_frames,
        .used = f->n_used,
        .free_in_slabs = f->n_free + (uint32_t)min_u64(f->n_without_id, f->n_pool),
        .classes = f->n_classes,
        .arena_bytes = (uint64_t)f->n_granules * f->granule_bytes,
        .slab_bytes = f->slab_granules * f->granule_bytes,
        .used_bytes = f->used_bytes,
        .waste_bytes = f->rounding_bytes + f->tail_bytes,
    };
}
