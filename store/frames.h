/*
 * frames.h - frames: places in an arena that hold one page's bytes each.
 *
 *   arena: | granule | granule | granule | granule | ...            4 to 64 KiB each
 *          |<------ slab of class A ---->|<- slab of class B ->| free
 *          | frame | frame | frame | tail|
 *
 * A class is a frame size, made on demand: pages of one realm have one or two sizes. A slab is a
 * run of granules cut into frames of one class; it is made when a class has no free frame and given
 * back to the granules when its last frame is freed, so no class can hold room that another needs
 * forever (frames_victim helps when it is spread thin). The slab size is chosen so that tail and
 * rounding waste stay under 4 % for frames of 4 KiB and up (smaller ones: rounding to
 * FRAMES_ALIGN_BYTES apart, under 4 % too). A slab takes up to some 30 granules for that, so
 * granules are small in small arenas: 4 KiB up to 1 GiB, then 8, 16, 32, and 64 KiB from 16 GiB on.
 * In arenas of more than 256 MiB it takes 16 at least, so that few records of slabs are enough.
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
    FRAMES_GRANULE_BYTES = 64 * 1024, /* the largest granule; an arena is a multiple of it */
    FRAMES_ALIGN_BYTES = 64,          /* of every frame */
    FRAMES_MAX_CLASSES = 1024,        /* frame sizes in use at the same time */
};
#define FRAMES_NONE UINT32_MAX

typedef struct frames frames;

/*
 * max_frames: frame ids, the length of the generation table. arena_bytes: a multiple of
 * FRAMES_GRANULE_BYTES. Takes 10 bytes a frame id and 24 a slab at most (as many as
 * granules, a sixteenth of them in arenas of more than 256 MiB; and never more than ids), a bit and
 * a half a granule, 52 a class.
 *
 * An id stays with its slab until that is emptied. With one size in use, max_frames frames can be
 * had; with several, ids of free frames of one class are missing for another (then frames_alloc
 * says KVT_EFULL and frames_victim helps), so max_frames should be somewhat more than the pages
 * wanted.
 */
size_t frames_bytes(uint64_t arena_bytes, uint32_t max_frames);

/*
 * generations[0 .. max_frames): the table that readers see; taken over as it is, every number is
 * raised by one (so a table that outlived a daemon stays good). Stores to it are atomic, release.
 */
kvt_status frames_init(void *memory, size_t bytes, uint64_t arena_bytes, uint32_t max_frames,
                       uint64_t *generations, frames **ret_frames);

/* A frame of at least `bytes` bytes. KVT_EINVAL: bytes is 0; KVT_EFULL: no free frame of the class
 * and no room for a slab, or no id left; KVT_ELIMIT: larger than the arena or than 1 GiB, or too
 * many classes. */
kvt_status frames_alloc(frames *f, uint64_t bytes, uint32_t *ret_frame);
/* Takes it back: generation changes at once. Asserts that it is in use. */
void frames_free(frames *f, uint32_t frame);

uint64_t frames_offset(const frames *f, uint32_t frame); /* in the arena, of a frame in use */
uint64_t frames_size(const frames *f, uint32_t frame);   /* bytes of its class */
uint64_t frames_asked(const frames *f, uint32_t frame);  /* bytes asked for, of a frame in use */
uint64_t frames_generation(const frames *f, uint32_t frame); /* what a lease is told */
int frames_in_use(const frames *f, uint32_t frame);

/* All that a lease is told of a frame in use, at once. */
typedef struct frame_place {
    uint64_t offset, bytes, generation; /* frames_offset, frames_asked, frames_generation */
} frame_place;
frame_place frames_place(const frames *f, uint32_t frame);

/*
 * Room for another class. When frames_alloc says KVT_EFULL though `idle` frames could be had, the
 * room may be spread over slabs of other classes, and a slab for not_bytes may need several of
 * them, side by side. frames_victim finds the stretch of the arena that can take such a slab and
 * needs the fewest moves to become free, among those where each used frame is movable(context,
 * frame) and no slab is of not_bytes' own class. The used frames of its slabs are written to
 * ret_list, their number to *ret_n: whole slabs only, as many as list_max has room for; what is
 * left of the stretch is named by the next call. The caller frees or moves each (alloc of the same
 * size elsewhere, copy, free) and asks again. It may ask any number of times: nothing is lost if it
 * then does not free them.
 *
 * From then on other classes get frames in these slabs and in that stretch only when there is no
 * other room; frames_in_stretch tells (moving a frame to there is in vain: free it rather).
 *
 * KVT_ENOENT: there is none. KVT_ELIMIT, KVT_EINVAL: as frames_alloc. Cost: looks at the slabs in
 * order of address, from the last stretch on and round, and takes the best among 4,096 ("fewest"
 * holds among these), or looks at all of them if nothing is movable. movable() is asked until it
 * says no, at most twice for a frame.
 */
kvt_status frames_victim(frames *f, uint64_t not_bytes,
                         int (*movable)(void *context, uint32_t frame), void *context,
                         uint32_t *ret_list, uint32_t list_max, uint32_t *ret_n);
int frames_in_stretch(const frames *f, uint32_t frame);

typedef struct frames_counts {
    uint32_t max_frames;
    uint32_t used;          /* frames given out */
    uint32_t free_in_slabs; /* frames of existing slabs that could be given out at once */
    uint32_t classes;
    uint64_t arena_bytes;
    uint64_t slab_bytes;  /* granules in slabs */
    uint64_t used_bytes;  /* sum of the sizes ASKED FOR by the frames in use */
    uint64_t waste_bytes; /* rounding of the frames in use, and tails of slabs */
} frames_counts;
/* The most bytes that are in no slab and lie together. A page that needs more finds no room however
 * many bytes are free in all. Looks at the whole map: for messages. */
uint64_t frames_largest_free(const frames *f);
/* Free frames of this size in the slabs that there are (ids may lack for some). */
uint64_t frames_free_like(const frames *f, uint64_t bytes);
/* Free bytes are of use to a frame of this size where so many lie together: a slab of its kind. */
uint64_t frames_slab_bytes(const frames *f, uint64_t bytes);
/* Was a slab for frames of this size (0: of any size) looked for in vain, with none gone since?
 * Such frames have no room then but in the slabs that there are. Of constant cost. */
int frames_is_cut_up(const frames *f, uint64_t bytes);
void frames_count(const frames *f, frames_counts *ret_counts);

kvt_status frames_audit(const frames *f, char *why, size_t why_bytes);

#endif
