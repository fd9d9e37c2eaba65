/*
 * test_seal_room.c - a page that finds no room in the arena, while a job copies others down, or
 * seals others: it is to be asked for again where one of those can go when the job has ended, or is
 * the page itself, and is refused where nothing can. The jobs are held back, so that both moments
 * can be seen.
 */
#include "tests/core_rig.h"

enum {
    PIPE = 1,
    OTHER = 2,
    THIRD = 3,
    FOURTH = 4,
    MAX_PATHS = 16,
    N_STAGED = RIG_STAGED_BYTES / RIG_PAGE_BYTES,
    DOWN = RIG_KIND(CORE_JOB_DOWN),
    SEAL = RIG_KIND(CORE_JOB_SEAL),
};

/* An arena for a few pages, and much below it: all is copied down, at once. */
static void open_small(core_rig *r, uint32_t max_frames) {
    core_config config = rig_config_tiers();
    config.max_frames = max_frames;
    config.arena_bytes = 4 * FRAMES_GRANULE_BYTES;
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

/* --- seals under way ----------------------------------------------------------------------------
 */

/* Four workers, and nothing below the arena. */
static void open_for_seals(core_rig *r, uint32_t max_frames, uint32_t n_granules) {
    core_config config = rig_config();
    config.max_frames = max_frames;
    config.arena_bytes = n_granules * FRAMES_GRANULE_BYTES;
    rig_open(r, &config);
    for (uint32_t pipe = PIPE; pipe <= FOURTH; pipe++)
        CHECK_EQ(rig_enter(r, pipe), KVT_OK);
}

/* Of so many pages of the path, whoever else computes them. */
static uint64_t lease_of(core_rig *r, uint32_t pipe, uint32_t path, uint32_t n_pages) {
    return rig_acquire(r, pipe, path, n_pages * RIG_PAGE_TOKENS).lease;
}

/* It is under way. */
static uint64_t begin_seal(core_rig *r, uint32_t pipe, uint32_t path, uint32_t n_pages) {
    uint64_t lease = lease_of(r, pipe, path, n_pages);
    uint32_t n = rig_n_jobs(r, SEAL);
    rig_send_seal(r, pipe, lease, 0, n_pages);
    CHECK(!rig_is_answered(r, pipe));
    CHECK_EQ(rig_n_jobs(r, SEAL), n + 1);
    return lease;
}

/* While those under way are. */
static kvt_status try_seal(core_rig *r, uint32_t pipe, uint64_t lease) {
    rig_send_seal(r, pipe, lease, 0, 1);
    CHECK(rig_is_answered(r, pipe));
    return (kvt_status)r->header.status;
}

/* The very page is being sealed by somebody else: asked again, it is there, and needs no room. */
static void test_sealed_by_another(uint32_t max_frames, uint32_t n_granules, const char *cure) {
    static core_rig r;
    open_for_seals(&r, max_frames, n_granules);
    begin_seal(&r, PIPE, 0, N_STAGED);
    CHECK(rig_job(&r, SEAL)->n_copies < N_STAGED);
    uint64_t lease = lease_of(&r, OTHER, 0, 1);
    CHECK_EQ(try_seal(&r, OTHER, lease), KVT_EBUSY);
    CHECK(memmem(r.body, r.header.body_bytes, cure, strlen(cure)));
    CHECK_EQ(refused(&r), 1); /* of the first seal, a part; and nobody else */
    rig_run(&r, SEAL, KVT_OK);
    CHECK_EQ(rig_seal(&r, OTHER, lease, 0, 1), KVT_OK);
    CHECK_EQ(rig_counts(&r).pages_duplicate, 1);
    rig_close(&r);
}

/* Two seal the same page: one of its two places comes back, for whatever page, and once. */
static void test_sealed_twice(void) {
    static core_rig r;
    open_for_seals(&r, 3, 4);
    begin_seal(&r, PIPE, 0, 1);
    begin_seal(&r, OTHER, 0, 1);
    begin_seal(&r, THIRD, 1, 1);
    uint64_t lease = lease_of(&r, FOURTH, 2, 1);
    CHECK_EQ(try_seal(&r, FOURTH, lease), KVT_EBUSY);
    CHECK(memmem(r.body, r.header.body_bytes, "0 are being copied, 3 sealed, and 0 can go", 42));
    rig_end(&r, 0, KVT_OK); /* the second is of a page that is sealed now */
    CHECK_EQ(try_seal(&r, FOURTH, lease), KVT_EBUSY);
    CHECK_EQ(refused(&r), 0);
    rig_run(&r, SEAL, KVT_OK);
    CHECK_EQ(rig_seal(&r, FOURTH, lease, 0, 1), KVT_OK);
    CHECK_EQ(try_seal(&r, PIPE, lease_of(&r, PIPE, 3, 1)), KVT_EFULL);
    rig_close(&r);
}

/* Nobody wants the page any more that is being sealed. */
static void test_sealed_for_nobody(void) {
    static core_rig r;
    open_for_seals(&r, 1, 4);
    uint64_t gone = begin_seal(&r, PIPE, 0, 1), lease = lease_of(&r, OTHER, 1, 1);
    CHECK_EQ(try_seal(&r, OTHER, lease), KVT_EFULL);
    kvt_writer w = rig_body();
    kvt_wire_put_u32(&w, 1);
    kvt_wire_put_u64(&w, gone);
    rig_send(&r, PIPE, KVT_OP_RELEASE, &w);
    CHECK_EQ(try_seal(&r, OTHER, lease), KVT_EBUSY);
    rig_run(&r, SEAL, KVT_OK);
    CHECK_EQ(rig_seal(&r, OTHER, lease, 0, 1), KVT_OK);
    rig_close(&r);
}

/* What is being sealed stays, since it is leased: that is said at once. */
static void test_sealed_and_leased(void) {
    static core_rig r;
    open_for_seals(&r, 2, 4);
    begin_seal(&r, PIPE, 0, 2);
    uint64_t lease = lease_of(&r, OTHER, 1, 1);
    CHECK_EQ(try_seal(&r, OTHER, lease), KVT_EFULL);
    CHECK_EQ(refused(&r), 1);
    rig_run(&r, SEAL, KVT_OK);
    CHECK_EQ(try_seal(&r, OTHER, lease), KVT_EFULL);
    CHECK(memmem(r.body, r.header.body_bytes, "unpin, or raise max_pages", 25));
    CHECK_EQ(refused(&r), 2);
    rig_close(&r);
}

int main(void) {
    test_sealed_by_another(2, 4, "ask again, or raise max_pages");
    test_sealed_by_another(RIG_MAX_FRAMES, 1, "ask again, or enlarge its arena");
    test_sealed_twice();
    test_sealed_for_nobody();
    test_sealed_and_leased();
    test_places();
    test_on_its_way();
    test_leased();
    return 0;
}
