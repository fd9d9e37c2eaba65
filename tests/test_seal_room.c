/*
 * test_seal_room.c - a page that finds no room in the arena, while a job copies others down: it is
 * to be asked for again where one of those can go when it has been copied, and is refused where
 * nothing can. The jobs are held back, so that both moments can be seen.
 */
#include "tests/core_rig.h"

enum { PIPE = 1, MAX_PATHS = 16, DOWN = RIG_KIND(CORE_JOB_DOWN) };

/* An arena for a few pages, and much below it: all is copied down, at once. */
static void open_small(core_rig *r, uint32_t max_frames) {
    core_config config = rig_config();
    config.max_frames = max_frames;
    config.arena_bytes = 4 * FRAMES_GRANULE_BYTES;
    config.host_bytes = 32 * FRAMES_GRANULE_BYTES;
    config.max_host_frames = 512;
    config.disk_bytes = 1 << 30;
    rig_open(r, &config);
    CHECK_EQ(rig_enter(r, PIPE), KVT_OK);
}

static uint64_t acquire(core_rig *r, uint32_t path) {
    kvt_lease_rep rep = rig_acquire(r, PIPE, path, RIG_PAGE_TOKENS);
    CHECK_EQ(rep.claimed_tokens, RIG_PAGE_TOKENS);
    return rep.lease;
}

static kvt_status seal(core_rig *r, uint64_t lease) {
    return rig_seal(r, PIPE, lease, 0, 1);
}

static uint64_t refused(const core_rig *r) {
    return rig_counts(r).seals_refused_full;
}

/* Pages until there is no room: the first goes down (which is held back), and the others stay
 * leased, the first as well if `keep`. Returns the lease of the page that finds none. */
static uint64_t fill(core_rig *r, int keep, kvt_status *ret_status) {
    uint64_t lease = acquire(r, 0);
    CHECK_EQ(seal(r, lease), KVT_OK);
    CHECK_EQ(r->n_queue, 1);
    CHECK_EQ(r->queue[0]->kind, CORE_JOB_DOWN);
    if (!keep)
        rig_release(r, PIPE, lease);
    for (uint32_t path = 1; path < MAX_PATHS; path++) {
        lease = acquire(r, path);
        *ret_status = seal(r, lease);
        if (*ret_status != KVT_OK) {
            CHECK(path > 2);
            return lease;
        }
    }
    CHECK_MSG(0, "%u pages are not too many for the arena", MAX_PATHS);
    return 0;
}

/* The page that is being copied can go then: asked again, there is room. */
static void test_on_its_way(void) {
    static core_rig r;
    kvt_status status = KVT_OK;
    open_small(&r, RIG_MAX_FRAMES);
    uint64_t lease = fill(&r, 0, &status);
    CHECK_EQ(status, KVT_EBUSY);
    CHECK(memmem(r.body, r.header.body_bytes, "1 are being copied", 18));
    CHECK(memmem(r.body, r.header.body_bytes, "ask again, or enlarge its arena", 31));
    CHECK_EQ(seal(&r, lease), KVT_EBUSY);
    CHECK_EQ(refused(&r), 0); /* nobody was turned away */
    CHECK(rig_run(&r, DOWN, KVT_OK) > 0);
    CHECK_EQ(seal(&r, lease), KVT_OK);
    rig_close(&r);
}

/* Nothing can go, copied or not: that is said at once. */
static void test_leased(void) {
    static core_rig r;
    kvt_status status = KVT_OK;
    open_small(&r, RIG_MAX_FRAMES);
    uint64_t lease = fill(&r, 1, &status);
    CHECK_EQ(status, KVT_EFULL);
    CHECK(memmem(r.body, r.header.body_bytes, "release leases, unpin, or enlarge its arena", 43));
    CHECK_EQ(refused(&r), 1);
    rig_run(&r, DOWN, KVT_OK);
    CHECK_EQ(seal(&r, lease), KVT_EFULL);
    CHECK_EQ(refused(&r), 2);
    rig_close(&r);
}

/* The arena has room, and no place: what is to be raised is max_pages. */
static void test_places(void) {
    enum { PLACES = 3 };
    static core_rig r;
    kvt_status status = KVT_OK;
    open_small(&r, PLACES);
    fill(&r, 1, &status);
    CHECK_EQ(status, KVT_EFULL);
    CHECK(memmem(r.body, r.header.body_bytes, "no place: the arena has 3 (see max_pages).", 41));
    CHECK(memmem(r.body, r.header.body_bytes, "unpin, or raise max_pages", 25));
    CHECK(!memmem(r.body, r.header.body_bytes, "enlarge", 7));
    rig_close(&r);
}

int main(void) {
    test_places();
    test_on_its_way();
    test_leased();
    return 0;
}
