/*
 * frames_parts.h - what the files of frames share: the block's layout and the calls between them.
 *
 *   class --buckets--> slab --frame--> entry -ring-> entry -ring-> ... (all ids that the slab
 * holds)
 *                                        '---slab--> entry --slab--> ... (those of them that are
 * free) region (64 granules: one word of the bitmap) --> slab -> slab ... (those that start in it)
 *
 * A slab begins without ids. It takes one from the pool each time all of those that it holds are in
 * use, for its next slot, and gives them back when it is emptied.
 */
#ifndef KVT_STORE_FRAMES_PARTS_H
#define KVT_STORE_FRAMES_PARTS_H

#include "client/assert.h"
#include "store/frames.h"

enum {
    MIN_GRANULE_BYTES = 4096,
    MAX_GRANULES_BEFORE_GROWTH = 1 << 18, /* with more of them, the granule is doubled, to 64 KiB */
    REGION_GRANULES = 64,
    MAX_SLAB_FRAMES = 1023,  /* ten bits */
    MANY_GRANULES = 1 << 16, /* with more of them, a slab has MANY_SLAB_GRANULES at least: ... */
    MANY_SLAB_GRANULES = 16, /* ... 64 KiB in 1 GiB, 1 MiB from 16 GiB on; but for tiny frames */
};
#define MAX_FRAME_BYTES (UINT64_C(1) << 30)
#define NONE            FRAMES_NONE

enum { ENTRY_POOL = 0, ENTRY_FREE, ENTRY_USED };

typedef struct entry {
    uint32_t slab : 30; /* used: its slab; free: the slab's next free one; in the pool: the next
                           there; the last of those has LAST here, see entry_next */
    uint32_t state : 2;
    uint32_t ring; /* free, used: the next id of the slab */
} entry;

/* The rest of an entry, in an array of its own. */
typedef struct entry_place {
    uint16_t slot : 10;          /* free, used: place in the slab */
    uint16_t rounding_bytes : 6; /* used: size of the class less the bytes asked for */
} entry_place;
_Static_assert(sizeof(entry) + sizeof(entry_place) == 10,
               "private memory per frame id is promised");
_Static_assert(FRAMES_ALIGN_BYTES <= 1 << 6 && MAX_SLAB_FRAMES < 1 << 10, "they fit");

#define LAST ((UINT32_C(1) << 30) - 1)

static inline uint32_t entry_next(const entry *e) {
    return e->slab == LAST ? NONE : e->slab;
}

typedef struct slab {
    uint32_t granule; /* the first one */
    uint32_t next_in_region;
    uint32_t next, prev; /* in its bucket, if it has room; next: in the pool of slabs */
    uint32_t frame;      /* one of its ids: a free one if there is any, then the head of those */
    uint32_t size_class : 11;
    uint32_t n_used : 10;
    uint32_t n_ids : 10;   /* ids that it holds, for slots 0 .. n_ids - 1 */
    uint32_t vacating : 1; /* named by frames_victim, or made in the kept stretch */
} slab;
_Static_assert(sizeof(slab) == 24, "memory per slab is promised");
_Static_assert(FRAMES_MAX_CLASSES <= 1 << 11 && MAX_SLAB_FRAMES < 1 << 10, "they fit");

/*
 * Slabs with room stand in one of the class's buckets, and a frame is taken from the highest that
 * is not empty: the fullest slabs first, so that the others empty; before that none needs a new id.
 */
enum {
    BUCKET_VACATING = 0, /* last of all */
    BUCKET_NO_ID = 1,    /* all ids of its own are in use */
    BUCKET_FIRST = 2,    /* then by sixths of the frames that are used */
    N_BUCKETS = 8,
};

typedef struct size_class {
    uint32_t n_slabs;
    uint16_t n_frames;     /* of a slab */
    uint16_t buckets_used; /* bit b: buckets[b] is not empty */
    uint32_t n_granules;   /* of a slab */
    uint32_t tail_bytes;   /* of a slab */
    uint32_t n_used;       /* frames */
    uint32_t buckets[N_BUCKETS];
} size_class;

/* Granules [from, from + n): kept for a slab of the class of `units`; n = 0: none. */
typedef struct stretch {
    uint32_t from, n, units;
} stretch;

struct frames {
    uint32_t max_frames;
    uint32_t granule_bytes;
    uint32_t n_granules;
    uint32_t n_regions;
    uint32_t max_slabs;
    uint32_t max_classes;
    uint64_t *generations; /* readers' */
    uint64_t *in_slab;     /* [n_regions] bit per granule; bits past the end are set */
    uint64_t *full;        /* bit per region: no granule is free */
    uint32_t *regions;     /* [n_regions] first slab */
    uint32_t *units;       /* [max_classes] size / FRAMES_ALIGN_BYTES; 0: unused */
    size_class *classes;   /* [max_classes] */
    slab *slabs;           /* [max_slabs] */
    entry *entries;        /* [max_frames] */
    entry_place *places;   /* [max_frames] */

    uint32_t pool, n_pool; /* ids that no slab holds: last in, first out */
    uint32_t slab_pool;
    uint32_t lowest_free;   /* no granule below it is free */
    uint32_t no_run;        /* no run of so many granules is free */
    uint32_t n_class_slots; /* classes beyond were never used */
    uint32_t n_classes;
    uint32_t n_used;       /* frames */
    uint32_t n_free;       /* ids that slabs hold and that are not in use */
    uint64_t n_without_id; /* slots without an id */
    uint64_t slab_granules;
    uint64_t used_bytes;     /* asked for */
    uint64_t rounding_bytes; /* of the frames in use */
    uint64_t tail_bytes;     /* of the slabs */
    stretch kept;
};

/* Granules of a slab at least. Only slabs of more frames than fit one are smaller. */
static inline uint32_t min_slab_granules(uint64_t n_granules) {
    return n_granules > MANY_GRANULES ? MANY_SLAB_GRANULES : 1;
}

/* How slabs of a frame size are cut. */
typedef struct slab_plan {
    uint32_t units;
    uint32_t n_granules;
    uint32_t n_frames;
    uint32_t tail_bytes;
} slab_plan;

/* A frame's size in FRAMES_ALIGN_BYTES. KVT_EINVAL: 0 bytes; KVT_ELIMIT: too large. */
kvt_status frames_units(const frames *f, uint64_t bytes, uint32_t *ret_units);
void frames_plan(const frames *f, uint32_t units, slab_plan *ret_plan);
uint32_t frames_class_find(const frames *f, uint32_t units); /* NONE: there is none */

/* A slab of the class (made if need be) with all frames free, the first of which is to be taken at
 * once. KVT_EFULL: no run of granules, not even in the kept stretch, or no more slabs. KVT_ELIMIT:
 * no class. The caller has seen that there is an id in the pool. */
kvt_status frames_slab_make(frames *f, const slab_plan *plan, int into_kept, uint32_t *ret_slab);
/* Of an empty slab that stands in no bucket. */
void frames_slab_end(frames *f, uint32_t at);

/* Put it into, take it out of the bucket that its counts ask for. A full slab is in none. */
void frames_bucket_in(frames *f, uint32_t at);
void frames_bucket_out(frames *f, uint32_t at);
uint32_t frames_bucket_of(const frames *f, const slab *s);

/* The slabs in order of address. */
typedef struct slab_walk {
    const frames *f;
    uint32_t next_region;
    uint32_t granule; /* the first one of the region at hand */
    uint64_t starts;  /* bit g: slabs[g] starts at granule + g and is yet to come */
    uint32_t slabs[REGION_GRANULES];
} slab_walk;
void frames_walk_from(slab_walk *walk, const frames *f, uint32_t granule);
uint32_t frames_walk_next(slab_walk *walk); /* NONE: no more */

static inline const size_class *class_of(const frames *f, const slab *s) {
    return &f->classes[s->size_class];
}

static inline uint32_t slab_end(const frames *f, const slab *s) {
    return s->granule + class_of(f, s)->n_granules;
}

static inline int granule_free(const frames *f, uint32_t granule) {
    return !(f->in_slab[granule / 64] >> granule % 64 & 1);
}

#endif
