/*
 * test_lift_short.c - an ACQUIRE of pages that lie below, while there is no job for them or no
 * place in the host tier: that passes when one of the jobs under way ends, so it waits for that,
 * within its bound, and is not told of a shorter prefix at once. The jobs are held back.
 */
#include "tests/core_rig.h"

enum {
    PATH_PAGES = 3,
    PATH_TOKENS = PATH_PAGES * RIG_PAGE_TOKENS,
    OTHERS = 16, /* paths 0 .. 15; what is asked for is the last */
    WANTED = OTHERS,
    READ = RIG_KIND(CORE_JOB_READ),
    UP = RIG_KIND(CORE_JOB_UP),
};

/* What there is none of. */
typedef enum lack {
    LACK_READS,         /* the half of the jobs that reads may take */
    LACK_JOBS,          /* all jobs: the page is in the host tier, so it needs none that reads */
    LACK_ROOM,          /* in the host tier, which pages take that are being read */
    LACK_READS_OF_VIEW, /* as the first, asked for as a view */
    N_LACKS
} lack;

/* --- what lies below ----------------------------------------------------------------------------
 */

static void open_on_disk(core_rig *r, uint64_t arena_granules, uint64_t host_granules) {
    core_config config = rig_config_tiers();
    config.arena_bytes = arena_granules * FRAMES_GRANULE_BYTES;
    config.host_bytes = host_granules * FRAMES_GRANULE_BYTES;
    rig_open_on_disk(r, &config, OTHERS + 1, PATH_PAGES);
}

/* The first page of the path that is asked for stands in the arena, and stays: it is leased. */
static void lift_first(core_rig *r) {
    rig_send_acquire(r, 2, WANTED, RIG_PAGE_TOKENS, 0);
    rig_run(r, READ | UP, KVT_OK);
    CHECK(rig_is_answered(r, 2));
    CHECK_EQ(rig_lease(r).held_tokens, RIG_PAGE_TOKENS);
}

/* The others have been read, and no further: whoever asked for them waits no more. */
static void lift_rest_to_host(core_rig *r) {
    kvt_writer w = rig_body();
    kvt_wire_put_u32(&w, r->realm);
    kvt_wire_put_u32(&w, PATH_TOKENS);
    kvt_wire_put_tokens(&w, rig_tokens(WANTED), PATH_TOKENS);
    CHECK_EQ(rig_ask(r, 2, KVT_OP_PREFETCH, &w), KVT_OK);
    CHECK_EQ(rig_run(r, READ, KVT_OK), 1);
    CHECK_EQ(rig_run(r, UP, KVT_EIO), 1);
    CHECK_EQ(r->n_queue, 0);
    CHECK_EQ(rig_counts(r).pages_host, PATH_PAGES);
    CHECK_EQ(rig_counts(r).pages_device, 1);
}

/* --- what takes all there is --------------------------------------------------------------------
 */

static void others_read(core_rig *r, uint32_t first, uint32_t n) {
    for (uint32_t path = first; path < first + n; path++) {
        rig_send_acquire(r, 1, path, PATH_TOKENS, 0);
        CHECK(!rig_is_answered(r, 1));
    }
}

static void take_all(core_rig *r, lack what) {
    const uint32_t half = CORE_TIER_JOBS / 2;
    open_on_disk(r, 32, what == LACK_ROOM ? 4 : 64);
    lift_first(r);
    if (what == LACK_JOBS) {
        lift_rest_to_host(r);
        others_read(r, 0, half);
        CHECK_EQ(rig_run(r, READ, KVT_OK), half);
        CHECK_EQ(rig_n_jobs(r, UP), half);
    }
    others_read(r, half, what == LACK_ROOM ? half - 1 : half);
    if (what == LACK_ROOM) /* it is not the jobs */
        CHECK(r->n_queue < half);
    else
        CHECK_EQ(rig_n_jobs(r, READ), half);
    CHECK_EQ(r->n_queue, what == LACK_JOBS ? CORE_TIER_JOBS : rig_n_jobs(r, READ));
}

static void ask(core_rig *r, lack what) {
    int is_view = what == LACK_READS_OF_VIEW;
    kvt_acquire_req req = {.realm = r->realm,
                           .flags = is_view ? KVT_ACQUIRE_VIEW : KVT_ACQUIRE_CLAIM,
                           .window = is_view ? PATH_TOKENS - RIG_PAGE_TOKENS : 0,
                           .n_tokens = PATH_TOKENS};
    uint32_t n_jobs = r->n_queue;
    kvt_writer w = rig_body();
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, rig_tokens(WANTED), PATH_TOKENS);
    rig_send(r, 2, KVT_OP_ACQUIRE, &w);
    CHECK_EQ(r->n_queue, n_jobs);
}

/* --- tests --------------------------------------------------------------------------------------
 */

/* The jobs end: it is told of all. */
static void test_it_passes(lack what) {
    static core_rig r;
    take_all(&r, what);
    ask(&r, what);
    CHECK_MSG(!rig_is_answered(&r, 2), "lack %d: told of %u tokens at once", (int)what,
              rig_lease(&r).held_tokens);
    while (!rig_is_answered(&r, 2)) {
        CHECK(r.n_queue > 0);
        rig_end(&r, 0, KVT_OK);
        rig_audit(&r);
    }
    CHECK_EQ(rig_lease(&r).held_tokens, PATH_TOKENS);
    rig_close(&r);
}

/* They do not: when its time is over, it is told of what there is. The
 * rest is there, so it cannot be claimed; and it is not on its way, so nobody is said to bring it.
 */
static void test_it_stays(lack what) {
    static core_rig r;
    take_all(&r, what);
    uint64_t asked_ms = r.now_ms;
    ask(&r, what);
    r.now_ms = asked_ms + RIG_WAIT_MS - 1;
    CHECK(core_tick(r.core) <= asked_ms + RIG_WAIT_MS);
    CHECK(!rig_is_answered(&r, 2));
    r.now_ms++;
    core_tick(r.core);
    rig_audit(&r);
    CHECK(rig_is_answered(&r, 2));
    kvt_lease_rep rep = rig_lease(&r);
    CHECK_EQ(rep.held_tokens, RIG_PAGE_TOKENS);
    CHECK_EQ(rep.claimed_tokens, 0);
    CHECK_EQ(rep.computing_tokens, 0);
    rig_close(&r);
}

/* Everything in the arena is leased. What is under way does not make room there: no waiting for it
 * would help. */
static void test_nothing_comes(void) {
    static core_rig r;
    open_on_disk(&r, 8, 64);
    lift_first(&r);
    uint32_t path = 0;
    for (; path < OTHERS; path++) {
        rig_send_acquire(&r, 1, path, PATH_TOKENS, 0);
        rig_run(&r, READ | UP, KVT_OK);
        CHECK(rig_is_answered(&r, 1));
        if (rig_lease(&r).held_tokens < PATH_TOKENS)
            break;
    }
    CHECK_MSG(path + 1 < OTHERS, "%u paths are not too many for the arena", OTHERS);
    rig_send_acquire(&r, 2, WANTED, PATH_TOKENS, 0);
    rig_run(&r, READ, KVT_OK); /* as far as the host tier it comes */
    CHECK(rig_is_answered(&r, 2));
    CHECK_EQ(rig_lease(&r).held_tokens, RIG_PAGE_TOKENS);
    others_read(&r, path + 1, 1); /* the disk is at work */
    rig_send_acquire(&r, 2, WANTED, PATH_TOKENS, 0);
    CHECK(rig_is_answered(&r, 2));
    CHECK_EQ(rig_lease(&r).held_tokens, RIG_PAGE_TOKENS);
    CHECK_EQ(rig_n_jobs(&r, READ), 1);
    rig_close(&r);
}

int main(void) {
    for (lack what = 0; what < N_LACKS; what++) {
        test_it_passes(what);
        test_it_stays(what);
    }
    test_nothing_comes();
    return 0;
}
