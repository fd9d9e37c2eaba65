/*
 * Frames by themselves: places, generations, waste, that no class holds what another needs, and
 * that the audit sees damage. Random operations against a model: test_store_model.c.
 */
#include "store/arena.h"
#include "store/frames.h"
#include "store/frames_parts.h"

#include "tests/check.h"
#include "tests/check_abort.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

typedef struct kit {
    void *memory;
    uint64_t *generations;
    frames *f;
} kit;

static kit kit_make(uint64_t arena_bytes, uint32_t max_frames) {
    kit k = {0};
    size_t bytes = frames_bytes(arena_bytes, max_frames);
    k.memory = malloc(bytes);
    k.generations = calloc(max_frames, sizeof(uint64_t));
    CHECK(k.memory && k.generations);
    memset(k.memory, 0xa5, bytes);
    CHECK(frames_init(k.memory, bytes, arena_bytes, max_frames, k.generations, &k.f) == KVT_OK);
    return k;
}

static void kit_free(kit *k) {
    free(k->memory);
    free(k->generations);
}

static void audit(const frames *f) {
    char why[300] = "";
    CHECK_MSG(frames_audit(f, why, sizeof(why)) == KVT_OK, "%s", why);
}

static frames_counts counts_of(const frames *f) {
    frames_counts counts;
    frames_count(f, &counts);
    return counts;
}

static uint32_t take(frames *f, uint64_t bytes) {
    uint32_t frame = 0;
    CHECK_MSG(frames_alloc(f, bytes, &frame) == KVT_OK, "%" PRIu64 " bytes", bytes);
    return frame;
}

/* Takes frames until there is no more; returns how many. */
static uint32_t fill(frames *f, uint64_t bytes, uint32_t *list) {
    uint32_t n = 0, frame;
    kvt_status status;
    while ((status = frames_alloc(f, bytes, &frame)) == KVT_OK)
        list[n++] = frame;
    CHECK(status == KVT_EFULL);
    return n;
}

static int any(void *context, uint32_t frame) {
    (void)context;
    (void)frame;
    return 1;
}

static int not_pinned(void *context, uint32_t frame) {
    return !((const uint8_t *)context)[frame];
}

static void test_init(void) {
    uint64_t generations[4] = {5, 6, 7, UINT64_C(1) << 40};
    size_t bytes = frames_bytes(MIB, 4);
    void *memory = malloc(bytes);
    frames *f = NULL;
    CHECK(frames_init(NULL, bytes, MIB, 4, generations, &f) == KVT_EINVAL);
    CHECK(frames_init(memory, bytes - 1, MIB, 4, generations, &f) == KVT_EINVAL);
    CHECK(frames_init(memory, bytes, MIB + 4 * KIB, 4, generations, &f) == KVT_EINVAL);
    CHECK(frames_init(memory, bytes, 0, 4, generations, &f) == KVT_EINVAL);
    CHECK(frames_init(memory, bytes, MIB, 0, generations, &f) == KVT_EINVAL);
    CHECK(frames_init(memory, bytes, MIB, 4, NULL, &f) == KVT_EINVAL);
    CHECK(f == NULL && generations[0] == 5);
    CHECK(frames_init(memory, bytes, MIB, 4, generations, &f) == KVT_OK);
    CHECK(generations[0] == 6 && generations[3] == (UINT64_C(1) << 40) + 1);
    audit(f);
    free(memory);
}

static void test_limits(void) {
    kit k = kit_make(MIB, 4);
    uint32_t frame = 99;
    CHECK(frames_alloc(k.f, 0, &frame) == KVT_EINVAL);
    CHECK(frames_alloc(k.f, MIB + 1, &frame) == KVT_ELIMIT);
    CHECK(frames_alloc(k.f, UINT64_MAX, &frame) == KVT_ELIMIT);
    CHECK(frame == 99);
    frame = take(k.f, MIB); /* the whole arena */
    CHECK(frames_offset(k.f, frame) == 0 && frames_size(k.f, frame) == MIB);
    CHECK(frames_alloc(k.f, 1, &frame) == KVT_EFULL);
    kit_free(&k);
    k = kit_make(4 * GIB, 4);
    take(k.f, GIB);
    CHECK(frames_alloc(k.f, GIB + 1, &frame) == KVT_ELIMIT);
    kit_free(&k);
    /* As many sizes at a time as are promised, one more not; and again when one has gone. */
    k = kit_make(GIB, 2 * FRAMES_MAX_CLASSES);
    uint32_t first = take(k.f, 64);
    for (uint32_t i = 1; i < FRAMES_MAX_CLASSES; i++)
        take(k.f, 64 * (i + 1));
    CHECK(frames_alloc(k.f, 64 * (FRAMES_MAX_CLASSES + 1), &frame) == KVT_ELIMIT);
    audit(k.f);
    frames_free(k.f, first);
    CHECK_EQ(counts_of(k.f).classes, FRAMES_MAX_CLASSES - 1);
    take(k.f, 64 * (FRAMES_MAX_CLASSES + 1));
    audit(k.f);
    kit_free(&k);
}

static void test_places(void) {
    kit k = kit_make(2 * MIB, 100);
    uint32_t a = take(k.f, 5000), b = take(k.f, 5001), c = take(k.f, 4999 + 64);
    CHECK(frames_size(k.f, a) == 5056 && frames_asked(k.f, a) == 5000);
    CHECK(frames_size(k.f, b) == 5056 && frames_asked(k.f, b) == 5001);
    CHECK(frames_size(k.f, c) == 5120 && frames_asked(k.f, c) == 5063);
    CHECK(frames_offset(k.f, a) == 0 && frames_offset(k.f, b) == 5056);
    CHECK(frames_offset(k.f, c) % FRAMES_ALIGN_BYTES == 0 && frames_offset(k.f, c) >= 2 * 5056);
    frames_counts n = counts_of(k.f);
    CHECK(n.used == 3 && n.classes == 2 && n.used_bytes == 5000 + 5001 + 5063);
    CHECK(n.arena_bytes == 2 * MIB && n.max_frames == 100);
    /* Ids come last in, first out; the place too. */
    frames_free(k.f, b);
    CHECK(take(k.f, 5056) == b && frames_offset(k.f, b) == 5056);
    CHECK(frames_asked(k.f, b) == 5056);
    kit_free(&k);
}

/* Half of the arena is free, and no two granules of it lie together; then they do. */
static void test_largest_free(void) {
    enum { PAGE = 64 * KIB - 64 }; /* a slab of it: 16 granules of 4 KiB */
    kit k = kit_make(MIB, 100);
    uint32_t ids[16];
    CHECK_EQ(frames_largest_free(k.f), MIB);
    for (int i = 0; i < 16; i++)
        ids[i] = take(k.f, PAGE);
    CHECK_EQ(frames_largest_free(k.f), 0);
    for (int i = 0; i < 16; i += 2)
        frames_free(k.f, ids[i]);
    CHECK_EQ(frames_largest_free(k.f), 64 * KIB);
    frames_free(k.f, ids[15]);
    CHECK_EQ(frames_largest_free(k.f), 2 * 64 * KIB);
    frames_free(k.f, ids[3]);
    CHECK_EQ(frames_largest_free(k.f), 3 * 64 * KIB);
    for (int i = 1; i < 15; i += 2)
        if (i != 3)
            frames_free(k.f, ids[i]);
    CHECK_EQ(frames_largest_free(k.f), MIB);
    take(k.f, 64);
    CHECK_EQ(frames_largest_free(k.f), MIB - 4 * KIB);
    kit_free(&k);
}

/* Said once a slab was looked for in vain, of what needs no less than that one; not of smaller
 * ones, nor any more when a slab has gone. */
static void test_cut_up(void) {
    enum { PAGE = 64 * KIB - 64, SMALL = 4 * KIB - 64 };
    kit k = kit_make(MIB, 100);
    uint32_t ids[16], frame;
    for (int i = 0; i < 15; i++)
        ids[i] = take(k.f, PAGE);
    take(k.f, SMALL);
    CHECK(!frames_is_cut_up(k.f, PAGE) && !frames_is_cut_up(k.f, 0));
    CHECK_EQ(frames_alloc(k.f, PAGE, &frame), KVT_EFULL);
    CHECK(frames_is_cut_up(k.f, PAGE) && frames_is_cut_up(k.f, 2 * PAGE));
    CHECK(frames_is_cut_up(k.f, 0) && !frames_is_cut_up(k.f, SMALL));
    frames_free(k.f, ids[7]);
    CHECK(!frames_is_cut_up(k.f, PAGE) && !frames_is_cut_up(k.f, 0));
    kit_free(&k);
}

/* The number changes when a frame is given out and when it is taken back, at once, and never
 * repeats. */
static void test_generations(void) {
    kit k = kit_make(MIB, 2);
    uint64_t last[2] = {k.generations[0], k.generations[1]};
    for (int i = 0; i < 1000; i++) {
        uint32_t frame = take(k.f, 4 * KIB + (uint64_t)(i % 3) * 64);
        CHECK(k.generations[frame] > last[frame]);
        CHECK(frames_generation(k.f, frame) == k.generations[frame]);
        last[frame] = k.generations[frame];
        frames_free(k.f, frame);
        CHECK(k.generations[frame] > last[frame]);
        last[frame] = k.generations[frame];
        CHECK(k.generations[1 - frame] == last[1 - frame]);
    }
    kit_free(&k);
}

/* --- waste --------------------------------------------------------------------------------------
 */

/* Fills whole slabs and returns the waste in 1/10,000 of the bytes asked for, and by how many
 * granules a slab is longer than one frame needs. */
static uint32_t waste_of(uint64_t arena_bytes, uint64_t bytes, uint32_t *ret_extra) {
    kit k = kit_make(arena_bytes, 4096);
    uint32_t n = 0;
    do {
        take(k.f, bytes);
        n++;
    } while (counts_of(k.f).free_in_slabs > 0);
    frames_counts c = counts_of(k.f);
    CHECK(c.used == n && c.used_bytes == n * bytes);
    CHECK_MSG(c.slab_bytes == c.used_bytes + c.waste_bytes,
              "%" PRIu64 " bytes: slabs %" PRIu64 ", used %" PRIu64 ", waste %" PRIu64, bytes,
              c.slab_bytes, c.used_bytes, c.waste_bytes);
    *ret_extra = class_of(k.f, &k.f->slabs[0])->n_granules - 1 -
                 (uint32_t)((bytes - 1) / k.f->granule_bytes);
    kit_free(&k);
    return (uint32_t)((c.slab_bytes - c.used_bytes) * 10000 / c.used_bytes);
}

/* Pages as they are: a power of two of payload and a header of 192 bytes; MLA; other sizes. */
static const uint64_t typical[20] = {
    4096,        4097,          4096 + 192,    8192 + 192,    16384 + 192,
    32768 + 192, 65536 + 192,   131072 + 192,  262144 + 192,  524288 + 192,
    MIB + 192,   2 * MIB + 192, 4 * MIB + 192, 8 * MIB + 192, 8 * MIB,
    16 * MIB,    73728 + 192,   2249280,       4501696,       64 * 1152 + 192,
};

static void test_waste(void) {
    static const uint64_t arenas[] = {32 * MIB, 64 * MIB, 4 * GIB, 256 * GIB};
    uint64_t seed = 1;
    uint32_t worst = 0, most = 0, extra;
    for (size_t a = 0; a < sizeof(arenas) / sizeof(*arenas); a++) {
        for (int i = 0; i < 1500; i++) {
            uint64_t low = UINT64_C(4096) << check_below(&seed, 12); /* evenly over the octaves */
            uint64_t bytes = i < 20 ? typical[i] : low + check_random(&seed) % (low + 1);
            uint32_t waste = waste_of(arenas[a], bytes, &extra);
            CHECK_MSG(waste < 400, "arena %" PRIu64 ", frames of %" PRIu64 ": waste %u.%02u %%",
                      arenas[a], bytes, waste / 100, waste % 100);
            worst = waste > worst ? waste : worst;
            most = extra > most ? extra : most;
        }
    }
    printf(
        "6000 frame sizes, 4 KiB to 16 MiB: waste at most %u.%02u %%, slabs at most one frame and "
        "%u granules\n",
        worst / 100, worst % 100, most);
    CHECK(most <= 30);
    /* Small frames: after rounding to FRAMES_ALIGN_BYTES, the tail alone. */
    worst = 0;
    for (uint64_t bytes = 64; bytes < 4096; bytes += 64) {
        uint32_t waste = waste_of(32 * MIB, bytes, &extra);
        worst = waste > worst ? waste : worst;
    }
    printf("frames under 4 KiB, multiples of 64 bytes: waste at most %u.%02u %%\n", worst / 100,
           worst % 100);
    CHECK(worst < 400);
}

static void test_memory(void) {
    const uint32_t n = 1000000;
    for (uint64_t bytes = 4 * KIB; bytes <= MIB; bytes *= 4) {
        uint64_t arena = (n * bytes + 65535) / 65536 * 65536;
        size_t all = frames_bytes(arena, n);
        printf("%" PRIu64 " KiB a frame: %.1f bytes of private memory each\n", bytes / KIB,
               (double)all / n);
        CHECK(all <= (bytes <= 64 * KIB ? 12 : 38) * (size_t)n);
    }
}

/* --- sharing between classes --------------------------------------------------------------------
 */

static void test_slab_returned(void) {
    kit k = kit_make(MIB, 1000);
    uint32_t *list = malloc(1000 * sizeof(*list));
    for (uint64_t bytes = 2 * KIB; bytes <= MIB; bytes = bytes * 3 / 2) {
        uint32_t n = fill(k.f, bytes, list);
        CHECK(n > 0);
        audit(k.f);
        while (n > 0)
            frames_free(k.f, list[--n]);
        frames_counts c = counts_of(k.f);
        CHECK(c.slab_bytes == 0 && c.classes == 0 && c.free_in_slabs == 0 && c.waste_bytes == 0);
        audit(k.f);
    }
    free(list);
    kit_free(&k);
}

/* Of two slabs with room, the fuller one gives the frame. */
static void test_fullest_first(void) {
    kit k = kit_make(MIB, 100);
    uint32_t list[100];
    uint32_t n = 0;
    do {
        list[n++] = take(k.f, 4 * KIB);
    } while (counts_of(k.f).slab_bytes < 3 * 8 * 4 * KIB || counts_of(k.f).free_in_slabs);
    CHECK_EQ(n, 24); /* three slabs of eight */
    for (uint32_t i = 0; i < 6; i++)
        frames_free(k.f, list[8 + i]); /* two are left */
    frames_free(k.f, list[0]);
    frames_free(k.f, list[1]); /* six are left */
    for (uint32_t i = 16; i < 20; i++)
        frames_free(k.f, list[i]); /* four are left */
    uint32_t a = take(k.f, 4 * KIB), b = take(k.f, 4 * KIB), c = take(k.f, 4 * KIB);
    CHECK(frames_offset(k.f, a) < 8 * 4 * KIB && frames_offset(k.f, b) < 8 * 4 * KIB);
    CHECK(frames_offset(k.f, c) >= 16 * 4 * KIB);
    audit(k.f);
    kit_free(&k);
}

/* Calcification: one class fills the arena, is thinned out, and the other finds no slab although
 * most bytes are free. After each victim's frames are freed, it does. */
static void test_victim_free(uint64_t a_bytes, uint64_t b_bytes) {
    enum { MAX = 30000 };
    kit k = kit_make(16 * MIB, MAX);
    uint32_t *list = malloc(MAX * sizeof(*list)), victims[64], n_victims, frame;
    uint64_t seed = 7;
    for (int turn = 0; turn < 6; turn++) {
        uint64_t mine = turn % 2 ? b_bytes : a_bytes, other = turn % 2 ? a_bytes : b_bytes;
        uint32_t n = fill(k.f, mine, list), n_moved = 0;
        CHECK(counts_of(k.f).free_in_slabs == 0);
        uint64_t last = UINT64_MAX;
        for (uint32_t i = 0; i < n; i++) { /* leave a few, spread thin */
            uint64_t part = frames_offset(k.f, list[i]) / (512 * KIB);
            if (part != last || check_below(&seed, 100) == 0)
                last = part;
            else
                frames_free(k.f, list[i]);
        }
        uint32_t before = counts_of(k.f).used;
        kvt_status status;
        for (uint32_t got = 0; got < 3; got++) {
            while ((status = frames_alloc(k.f, other, &frame)) == KVT_EFULL) {
                CHECK(frames_victim(k.f, other, any, NULL, victims, 64, &n_victims) == KVT_OK);
                n_moved += n_victims;
                while (n_victims > 0) {
                    CHECK(frames_size(k.f, victims[--n_victims]) == (mine + 63) / 64 * 64);
                    frames_free(k.f, victims[n_victims]);
                }
                audit(k.f);
            }
            CHECK(status == KVT_OK);
        }
        CHECK_MSG(n_moved <= before, "%u of %u", n_moved, before);
        for (uint32_t i = 0; i < k.f->max_frames; i++)
            if (frames_in_use(k.f, i))
                frames_free(k.f, i);
        CHECK(counts_of(k.f).slab_bytes == 0);
    }
    free(list);
    kit_free(&k);
}

/* The same with moves: nothing is lost, and each frame that is moved lands outside. */
static void test_victim_move(void) {
    kit k = kit_make(MIB, 300);
    uint32_t list[300], victims[64], n_victims, frame, n = fill(k.f, 4 * KIB, list);
    CHECK_EQ(n, 256); /* 32 slabs of eight */
    for (uint32_t i = 0; i < n; i++)
        if (i % 8 >= 3 + i / 8 % 2) /* three and four are left, in turn */
            frames_free(k.f, list[i]);
    uint32_t used = counts_of(k.f).used;
    CHECK(frames_alloc(k.f, 100 * KIB, &frame) == KVT_EFULL);
    uint32_t n_moves = 0;
    while (frames_alloc(k.f, 100 * KIB, &frame) == KVT_EFULL) {
        CHECK(frames_victim(k.f, 100 * KIB, any, NULL, victims, 64, &n_victims) == KVT_OK);
        for (uint32_t i = 0; i < n_victims; i++) {
            CHECK(frames_in_stretch(k.f, victims[i]));
            uint32_t to = take(k.f, 4 * KIB);
            CHECK(!frames_in_stretch(k.f, to));
            frames_free(k.f, victims[i]);
            n_moves++;
        }
        audit(k.f);
    }
    CHECK_EQ(counts_of(k.f).used, used + 1);
    CHECK_MSG(n_moves <= 4 * 4 && n_moves >= 3, "%u moves", n_moves);
    kit_free(&k);
}

/* (Frames of 4 and of 3 KiB have slabs of eight, 32 and 24 KiB long.) */

/* The stretch with the fewest moves is named; what is pinned or of the same size never is; no more
 * than the list has room for. */
static void test_victim_choice(void) {
    kit k = kit_make(MIB, 300);
    uint32_t list[300], victims[8], n_victims = 77, frame;
    uint8_t pinned[300] = {0};
    CHECK_EQ(fill(k.f, 4 * KIB, list), 256);
    for (uint32_t i = 0; i < 256; i++) /* one slab with two, one with three, the others full */
        if ((i / 8 == 10 && i % 8 >= 2) || (i / 8 == 20 && i % 8 >= 3))
            frames_free(k.f, list[i]);
    CHECK(frames_victim(k.f, 3 * KIB, not_pinned, pinned, victims, 8, &n_victims) == KVT_OK);
    CHECK_EQ(n_victims, 2);
    CHECK(frames_offset(k.f, victims[0]) / (32 * KIB) == 10);
    pinned[victims[1]] = 1;
    CHECK(frames_victim(k.f, 3 * KIB, not_pinned, pinned, victims, 8, &n_victims) == KVT_OK);
    CHECK_EQ(n_victims, 3);
    CHECK(frames_offset(k.f, victims[0]) / (32 * KIB) == 20);
    CHECK(frames_victim(k.f, 3 * KIB, not_pinned, pinned, victims, 2, &n_victims) == KVT_ENOENT);
    CHECK(frames_victim(k.f, 4 * KIB, not_pinned, pinned, victims, 8, &n_victims) == KVT_ENOENT);
    CHECK(frames_victim(k.f, 0, not_pinned, pinned, victims, 8, &n_victims) == KVT_EINVAL);
    CHECK(frames_victim(k.f, 2 * MIB, not_pinned, pinned, victims, 8, &n_victims) == KVT_ELIMIT);
    CHECK_EQ(n_victims, 3);
    memset(pinned, 1, sizeof(pinned));
    CHECK(frames_victim(k.f, 3 * KIB, not_pinned, pinned, victims, 8, &n_victims) == KVT_ENOENT);
    /* A large one needs slabs side by side; a short list names them in turns. */
    memset(pinned, 0, sizeof(pinned));
    uint32_t calls = 0;
    while (frames_alloc(k.f, 128 * KIB, &frame) == KVT_EFULL) {
        CHECK(frames_victim(k.f, 128 * KIB, not_pinned, pinned, victims, 8, &n_victims) == KVT_OK);
        CHECK(n_victims > 0 && n_victims <= 8);
        while (n_victims > 0)
            frames_free(k.f, victims[--n_victims]);
        CHECK(++calls <= 4);
    }
    audit(k.f);
    kit_free(&k);
}

/* While a stretch is being emptied, its class gets frames there only when there is nothing else. */
static void test_stretch_is_last(void) {
    kit k = kit_make(MIB, 300);
    uint32_t list[300], victims[8], n_victims, frame;
    CHECK_EQ(fill(k.f, 4 * KIB, list), 256);
    frames_free(k.f, list[0]);
    for (uint32_t i = 8; i < 15; i++)
        frames_free(k.f, list[i]);
    CHECK(frames_victim(k.f, 3 * KIB, any, NULL, victims, 8, &n_victims) == KVT_OK);
    CHECK(n_victims == 1 && victims[0] == list[15]);
    frame = take(k.f, 4 * KIB);
    CHECK(!frames_in_stretch(k.f, frame) && frames_offset(k.f, frame) == 0);
    frame = take(k.f, 4 * KIB);
    CHECK(frames_in_stretch(k.f, frame)); /* rather than refused */
    frames_free(k.f, frame);
    frames_free(k.f, list[15]); /* emptied: now it is a hole that is kept */
    frame = take(k.f, 3 * KIB);
    CHECK(frames_offset(k.f, frame) == 32 * KIB);
    audit(k.f);
    kit_free(&k);
    /* Likewise holes in the stretch: a new slab of another class goes elsewhere while it can. */
    k = kit_make(MIB, 300);
    CHECK_EQ(fill(k.f, 4 * KIB, list), 256);
    for (uint32_t i = 0; i < 7; i++)
        frames_free(k.f, list[i]);
    for (uint32_t i = 8; i < 16; i++)
        frames_free(k.f, list[i]);
    for (uint32_t i = 128; i < 136; i++)
        frames_free(k.f, list[i]);
    CHECK(frames_victim(k.f, 64 * KIB, any, NULL, victims, 8, &n_victims) == KVT_OK);
    CHECK(n_victims == 1 && victims[0] == list[7]);
    frame = take(k.f, 3 * KIB);
    CHECK(!frames_in_stretch(k.f, frame) && frames_offset(k.f, frame) >= 16 * 32 * KIB);
    frames_free(k.f, list[7]);
    frame = take(k.f, 64 * KIB);
    CHECK(frames_offset(k.f, frame) == 0);
    audit(k.f);
    kit_free(&k);
}

/* Fewer ids than places: an id that a slab holds comes back when it is emptied. */
static void test_few_ids(void) {
    kit k = kit_make(MIB, 10);
    uint32_t list[10], victims[8], n_victims, frame;
    CHECK_EQ(fill(k.f, 4 * KIB, list), 10);
    frames_free(k.f, list[3]);
    CHECK_EQ(counts_of(k.f).free_in_slabs, 1);
    CHECK(frames_alloc(k.f, 8 * KIB, &frame) == KVT_EFULL);
    CHECK(frames_victim(k.f, 8 * KIB, any, NULL, victims, 8, &n_victims) == KVT_OK);
    CHECK_EQ(n_victims, 2); /* the second slab, of which two places were used */
    CHECK(frames_in_use(k.f, victims[0]) && frames_in_use(k.f, victims[1]));
    frames_free(k.f, victims[0]);
    frames_free(k.f, victims[1]);
    take(k.f, 8 * KIB);
    take(k.f, 8 * KIB);
    CHECK(frames_alloc(k.f, 8 * KIB, &frame) == KVT_EFULL);
    audit(k.f);
    kit_free(&k);
}

/* A large arena is searched in parts, a part with nothing movable is passed over, and a search that
 * found something goes on there. */
static void test_victim_large(void) {
    const uint32_t n = 20000;
    kit k = kit_make(n * 64 * KIB, n);
    uint32_t *list = malloc(n * sizeof(*list)), victims[4], n_victims;
    uint8_t *pinned = malloc(n);
    memset(pinned, 1, n);
    CHECK_EQ(fill(k.f, 64 * KIB, list), n);
    pinned[list[n - 6]] = pinned[list[n - 5]] = 0; /* a slab's */
    CHECK(frames_victim(k.f, 32 * KIB, not_pinned, pinned, victims, 4, &n_victims) == KVT_OK);
    CHECK(n_victims == 2 && victims[0] + victims[1] == list[n - 6] + list[n - 5]);
    pinned[list[n - 6]] = pinned[list[n - 5]] = 1;
    pinned[list[2]] = pinned[list[3]] = 0; /* behind it: found on the way round */
    CHECK(frames_victim(k.f, 32 * KIB, not_pinned, pinned, victims, 4, &n_victims) == KVT_OK);
    CHECK(n_victims == 2 && victims[0] + victims[1] == list[2] + list[3]);
    audit(k.f);
    free(pinned);
    free(list);
    kit_free(&k);
}

/* In a large arena, more runs of granules than slabs: tiny frames, of which a slab cannot have as
 * many as would fill the smallest slab of others. Then it is full, as without a run. */
static void test_few_slabs(void) {
    const uint32_t n = 9000000;
    kit k = kit_make(512 * MIB, n);
    uint32_t frame, victims[1100], n_victims;
    kvt_status status;
    while ((status = frames_alloc(k.f, 64, &frame)) == KVT_OK) {
    }
    frames_counts c = counts_of(k.f);
    CHECK_EQ(status, KVT_EFULL);
    CHECK(c.used < n && c.slab_bytes < c.arena_bytes - MIB);
    CHECK(frames_alloc(k.f, 32 * KIB, &frame) == KVT_EFULL);
    CHECK(frames_victim(k.f, 32 * KIB, any, NULL, victims, 1100, &n_victims) == KVT_OK);
    while (n_victims > 0)
        frames_free(k.f, victims[--n_victims]);
    take(k.f, 32 * KIB);
    audit(k.f);
    kit_free(&k);
}

/* --- misuse and damage --------------------------------------------------------------------------
 */

static void test_misuse(void) {
    kit k = kit_make(MIB, 10);
    uint32_t a = take(k.f, 5000), b = take(k.f, 5000);
    frames_free(k.f, b);
    CHECK(!frames_in_use(k.f, b) && frames_in_use(k.f, a) && !frames_in_use(k.f, 10));
    CHECK_ABORTS((frames_free(k.f, b), 0));
    CHECK_ABORTS((frames_free(k.f, 9), 0));
    CHECK_ABORTS((frames_free(k.f, 10), 0));
    CHECK_ABORTS((frames_free(k.f, FRAMES_NONE), 0));
    CHECK_ABORTS(frames_offset(k.f, b));
    CHECK_ABORTS(frames_size(k.f, b));
    CHECK_ABORTS(frames_asked(k.f, b));
    CHECK_ABORTS(frames_in_stretch(k.f, b));
    CHECK_ABORTS(frames_generation(k.f, 10));
    kit_free(&k);
}

static void damage(frames *f, int kind, uint32_t used, uint32_t idle) {
    slab *s = &f->slabs[f->entries[used].slab];
    switch (kind) {
    case 0:
        f->entries[used].state = ENTRY_FREE;
        break;
    case 1:
        f->entries[idle].state = ENTRY_USED;
        break;
    case 2:
        f->places[used].slot++;
        break;
    case 3:
        f->entries[used].slab++;
        break;
    case 4:
        f->entries[idle].slab = idle & LAST; /* the chain of free ids runs in a circle */
        break;
    case 5:
        f->entries[used].ring = used;
        break;
    case 6:
        f->places[used].rounding_bytes++;
        break;
    case 7:
        f->in_slab[0] ^= UINT64_C(1) << 63;
        break;
    case 8:
        s->n_used++;
        break;
    case 9:
        s->vacating = 1;
        break;
    case 10:
        s->granule++;
        break;
    case 11:
        f->pool = entry_next(&f->entries[f->pool]);
        break;
    case 12:
        f->used_bytes++;
        break;
    case 13:
        f->tail_bytes++;
        break;
    case 14:
        f->n_used++;
        break;
    case 15:
        f->slab_pool = f->slabs[f->slab_pool].next;
        break;
    case 16:
        f->classes[s->size_class].buckets_used = 0;
        break;
    case 17:
        f->n_classes++;
        break;
    case 18:
        f->lowest_free++;
        break;
    case 19:
        f->n_without_id--;
        break;
    case 20:
        f->full[0] ^= 1;
        break;
    case 21:
        f->no_run = 1;
        break;
    default:
        f->regions[0] = f->slabs[f->regions[0]].next_in_region; /* a slab is lost */
        break;
    }
}

static void test_audit(void) {
    for (int kind = 0; kind <= 22; kind++) {
        kit k = kit_make(MIB, 30);
        uint32_t used = take(k.f, 5000), idle = take(k.f, 5000);
        take(k.f, 5000);
        take(k.f, 9000);
        frames_free(k.f, idle);
        audit(k.f);
        damage(k.f, kind, used, idle);
        char why[300] = "";
        CHECK_MSG(frames_audit(k.f, why, sizeof(why)) == KVT_EINTERNAL && why[0],
                  "damage %d was not seen", kind);
        kit_free(&k);
    }
}

/* --- the arena's layout -------------------------------------------------------------------------
 */

static void test_arena(void) {
    kvt_arena_header h = {.boot_id = 42};
    memset(h.reserved, 1, sizeof(h.reserved));
    CHECK(arena_plan(0, 10, &h) == KVT_EINVAL);
    CHECK(arena_plan(65536 + 4096, 10, &h) == KVT_EINVAL);
    CHECK(arena_plan(UINT64_MAX / 65536 * 65536, 10, &h) == KVT_EINVAL);
    CHECK(arena_plan(65536, 0, &h) == KVT_EINVAL);
    CHECK(h.magic == 0);
    /* 7,680 numbers and the header's page fill the first granule exactly. */
    static const uint32_t numbers[] = {1, 2, 1000, 7679, 7680, 7681, 15872, 15873, 1000000};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        uint32_t n = numbers[i];
        CHECK(arena_plan(5 * 65536, n, &h) == KVT_OK);
        CHECK(h.magic == KVT_ARENA_MAGIC && h.version == 1 && h.boot_id == 42 &&
              h.max_frames == n && h.data_bytes == 5 * 65536 && h.reserved[8] == 0);
        CHECK(h.generations_offset >= sizeof(h) && h.generations_offset % 4096 == 0);
        CHECK(h.data_offset >= h.generations_offset + n * sizeof(uint64_t));
        CHECK(h.data_offset % FRAMES_GRANULE_BYTES == 0);
        CHECK(h.data_offset - h.generations_offset - n * sizeof(uint64_t) < FRAMES_GRANULE_BYTES);
        CHECK(h.file_bytes == h.data_offset + h.data_bytes);
    }
}

int main(void) {
    test_init();
    test_limits();
    test_places();
    test_largest_free();
    test_cut_up();
    test_generations();
    test_waste();
    test_memory();
    test_slab_returned();
    test_fullest_first();
    test_victim_free(4 * KIB, 64 * KIB + 192);
    test_victim_free(5 * KIB, 4 * MIB);
    test_victim_free(100 * KIB, 36 * KIB);
    test_victim_free(700, 16 * KIB + 192);
    test_victim_move();
    test_victim_choice();
    test_stretch_is_last();
    test_few_ids();
    test_victim_large();
    test_few_slabs();
    test_misuse();
    test_audit();
    test_arena();
    return 0;
}
