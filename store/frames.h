/*
 * frames.h - frames: places in an arena that hold one page's bytes each.
 *
 *   arena: | granule | granule | granule | granule | ...            64 KiB each (FRAMES_GRANULE_BYTES)
 *          |<------ slab of class A ---->|<- slab of class B ->| free
 *          | frame | frame | frame | tail|
 *
 * A class is a frame size, made on demand: pages of one realm have one or two sizes. A slab is a run
 * of granules cut into frames of one class; it is made when a class has no free frame and given back
 * to the granules when its last frame is freed, so no class can hold room that another needs forever
 * (frames_victim helps when it is spread thin). The slab size is chosen so that tail and rounding
 * waste stay under 4 % for frames of 4 KiB and up.
 *
 * This file counts and places; it never touches the arena's bytes. It knows the arena by its size
 * alone, and lives in a block that the caller hands in. The generation table is the exception: it
 * lies in memory that readers map (see arena.h), one 64-bit number per frame id, changed each time
 * a frame is given out or taken back and never repeated: a reader that finds the number of its
 * lease before and after it read has read what the lease named.
 *
 * One writer, no lock, no allocation after frames_init. Deterministic: the same calls give the same
 * places.
 */
#ifndef KVT_STORE_FRAMES_H
#define KVT_STORE_FRAMES_H

#include "client/kvtrunk.h"

enum {
    FRAMES_GRANULE_BYTES = 64 * 1024,
    FRAMES_ALIGN_BYTES = 64,  /* of every frame */
    FRAMES_MAX_CLASSES = 256, /* frame sizes in use at the same time */
};
#define FRAMES_NONE UINT32_MAX

typedef struct frames frames;

/* max_frames: frame ids, the length of the generation table. arena_bytes: a multiple of the granule. */
size_t frames_bytes(uint64_t arena_bytes, uint32_t max_frames);

/*
 * generations[0 .. max_frames): the table that readers see; taken over as it is, every number is
 * raised by one (so a table that outlived a daemon stays good). Stores to it are atomic, release.
 */
kvt_status frames_init(void *memory, size_t bytes, uint64_t arena_bytes, uint32_t max_frames,
                       uint64_t *generations, frames **ret_frames);

/* A frame of at least `bytes` bytes. KVT_EFULL: no free frame of the class and no room for a slab,
 * or no id left; KVT_ELIMIT: larger than the arena or than 1 GiB, or too many classes. */
kvt_status frames_alloc(frames *f, uint64_t bytes, uint32_t *ret_frame);
/* Takes it back: generation changes at once. Asserts that it is in use. */
void frames_free(frames *f, uint32_t frame);

uint64_t frames_offset(const frames *f, uint32_t frame);     /* in the arena, of a frame in use */
uint64_t frames_size(const frames *f, uint32_t frame);       /* bytes of its class */
uint64_t frames_asked(const frames *f, uint32_t frame);      /* bytes asked for, of a frame in use */
uint64_t frames_generation(const frames *f, uint32_t frame); /* what a lease is told */
int frames_in_use(const frames *f, uint32_t frame);

/*
 * Room for another class. When frames_alloc says KVT_EFULL though `idle` frames could be had, the
 * room may be spread over slabs of other classes. frames_victim names the slab that needs the fewest
 * moves to become empty, among those whose used frames are all movable(context, frame): its frames
 * are written to ret_list (at most list_max), their number to *ret_n. The caller frees or moves each
 * (alloc of the same size elsewhere, copy, free). It never names slabs of `not_bytes`' own class.
 * KVT_ENOENT: there is none.
 */
kvt_status frames_victim(const frames *f, uint64_t not_bytes,
                         int (*movable)(void *context, uint32_t frame), void *context,
                         uint32_t *ret_list, uint32_t list_max, uint32_t *ret_n);

typedef struct frames_counts {
    uint32_t max_frames;
    uint32_t used;         /* frames given out */
    uint32_t free_in_slabs; /* frames of existing slabs that could be given out at once */
    uint32_t classes;
    uint64_t arena_bytes;
    uint64_t slab_bytes;  /* granules in slabs */
    uint64_t used_bytes;  /* sum of the sizes ASKED FOR by the frames in use */
    uint64_t waste_bytes; /* rounding of the frames in use, and tails of slabs */
} frames_counts;
void frames_count(const frames *f, frames_counts *ret_counts);

kvt_status frames_audit(const frames *f, char *why, size_t why_bytes);

#endif
