/*
 * test_suspect.c - SUSPECT: what a worker calls damaged is looked at by a job, once at a time,
 * while its frame stays as it is; only if the job finds so, too, the page is forgotten. The jobs
 * are held back here, and say what the test wants.
 */
#include "tests/core_rig.h"

enum {
    PATH_PAGES = 3,
    PATH_TOKENS = PATH_PAGES * RIG_PAGE_TOKENS,
    CHECKS = RIG_KIND(CORE_JOB_CHECK),
    OTHERS = ~CHECKS & 0xffff,
};

/* All pipes have a worker. Without a host tier there is room for all pages. */
static void open_all(core_rig *r, int has_host) {
    core_config config = rig_config();
    config.max_pins = 4;
    config.max_pinned_bytes = config.max_owner_pinned_bytes = 1 << 30;
    config.promote_wait_ms = 500;
    if (has_host) {
        config.arena_bytes = 8 * FRAMES_GRANULE_BYTES;
        config.host_bytes = 32 * FRAMES_GRANULE_BYTES;
        config.max_host_frames = 512;
    }
    rig_open(r, &config);
    for (uint32_t pipe = 1; pipe <= RIG_MAX_PIPES; pipe++)
        CHECK_EQ(rig_enter(r, pipe), KVT_OK);
}

static uint64_t damaged(const core_rig *r) {
    return rig_counts(r).pages_damaged;
}

static kvt_lease_rep acquire(core_rig *r, uint32_t pipe, uint32_t path) {
    return rig_acquire(r, pipe, path, PATH_TOKENS);
}

static kvt_status seal(core_rig *r, uint32_t pipe, uint64_t lease, uint32_t first) {
    return rig_seal(r, pipe, lease, first, PATH_PAGES);
}

/* A lease over a path that is held, all of it. */
static uint64_t filled(core_rig *r, uint32_t pipe, uint32_t path) {
    kvt_lease_rep rep = acquire(r, pipe, path);
    CHECK_EQ(rep.claimed_tokens, PATH_TOKENS);
    CHECK_EQ(seal(r, pipe, rep.lease, 0), KVT_OK);
    return rep.lease;
}

static uint32_t held(const core_rig *r, uint32_t path) {
    return core_would_hold(r->core, r->realm, rig_tokens(path), PATH_TOKENS);
}

/* KVT_OK: it is being looked at, and nobody has answered; or KVT_EEXIST: answered, as forgotten. */
static kvt_status suspect(core_rig *r, uint32_t pipe, uint64_t lease, uint32_t page,
                          uint32_t group) {
    kvt_suspect_req req = {.lease = lease, .page = page, .group = group};
    kvt_suspect_rep rep;
    uint32_t n = r->n_queue;
    kvt_writer w = rig_body();
    kvt_wire_put_suspect_req(&w, &req);
    rig_send(r, pipe, KVT_OP_SUSPECT, &w);
    if (r->n_queue > n) {
        CHECK(r->header.number != r->number);
        return KVT_OK;
    }
    CHECK(r->header.number == r->number);
    if (r->header.status != KVT_OK)
        return (kvt_status)r->header.status;
    CHECK_EQ(kvt_wire_get_suspect_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    CHECK_EQ(rep.forgotten, 1);
    return KVT_EEXIST;
}

/* The verdict, and whether the answer to the pipe says that it is forgotten. */
static uint32_t verdict(core_rig *r, uint32_t pipe, kvt_status status) {
    kvt_suspect_rep rep;
    CHECK_EQ(rig_run(r, CHECKS, status), 1);
    CHECK(r->ticket.pipe == pipe && r->header.op == KVT_OP_SUSPECT);
    CHECK_EQ(r->header.status, KVT_OK);
    CHECK_EQ(kvt_wire_get_suspect_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    return rep.forgotten;
}

static kvt_wire_page page_at(const kvt_lease_rep *rep, uint32_t page) {
    kvt_wire_page at;
    kvt_wire_get_page(rep->lists[0].pages, page, &at);
    return at;
}

/* --- tests --------------------------------------------------------------------------------------
 */

/* A worker that lies changes nothing, however often. */
static void test_lie(void) {
    static core_rig r;
    open_all(&r, 0);
    uint64_t lease = filled(&r, 1, 0);
    for (uint32_t page = 0; page < PATH_PAGES; page++) {
        CHECK_EQ(suspect(&r, 1, lease, page, 0), KVT_OK);
        CHECK_EQ(verdict(&r, 1, KVT_OK), 0);
        CHECK_EQ(suspect(&r, 1, lease, page, 0), KVT_OK); /* it could not be looked at */
        CHECK_EQ(rig_run(&r, CHECKS, KVT_EIO), 1);
        CHECK_EQ(r.header.status, KVT_EIO);
        CHECK_EQ(held(&r, 0), PATH_TOKENS);
    }
    CHECK_EQ(damaged(&r), 0);
    CHECK_EQ(r.n_lines, 0);
    rig_close(&r);
}

static void test_forgotten(void) {
    static core_rig r;
    open_all(&r, 0);
    uint64_t first = filled(&r, 1, 0);
    kvt_lease_rep rep = acquire(&r, 2, 0);
    kvt_wire_page page = page_at(&rep, 1), behind = page_at(&rep, 2);
    uint64_t second = rep.lease;
    kvt_writer w = rig_body();
    kvt_pin_req pin = {.realm = r.realm, .n_tokens = PATH_TOKENS};
    kvt_wire_put_pin_req(&w, &pin);
    kvt_wire_put_tokens(&w, rig_tokens(0), PATH_TOKENS);
    CHECK_EQ(rig_ask(&r, 1, KVT_OP_PIN, &w), KVT_OK);

    CHECK_EQ(suspect(&r, 2, second, 1, 0), KVT_OK);
    const core_job *job = rig_job(&r, CHECKS);
    CHECK_EQ(job->n_copies, 1);
    CHECK_EQ(job->copies[0].from_offset, page.offset);
    CHECK_EQ(job->copies[0].bytes, page.bytes);
    CHECK_EQ(job->copies[0].rows, RIG_PAGE_TOKENS);
    CHECK_EQ(verdict(&r, 2, KVT_ECORRUPT), 1);
    CHECK_EQ(held(&r, 0), RIG_PAGE_TOKENS);
    CHECK_EQ(damaged(&r), 1);
    core_counts n = rig_counts(&r);
    CHECK_EQ(n.pins, 0);
    CHECK_EQ(r.n_lines, 1);
    char place[64];
    snprintf(place, sizeof place, "%u bytes at byte %llu", page.bytes,
             (unsigned long long)page.offset);
    CHECK_MSG(strstr(r.line, RIG_ARENA) && strstr(r.line, place) && strstr(r.line, "page 1"), "%s",
              r.line);

    /* Whoever leases it keeps it, and is told again that it is gone, for nothing. */
    CHECK_EQ(r.generations[page.frame], page.generation);
    CHECK_EQ(r.generations[behind.frame], behind.generation);
    CHECK_EQ(suspect(&r, 1, first, 1, 0), KVT_EEXIST);
    CHECK_EQ(damaged(&r), 1);
    CHECK_EQ(r.n_lines, 1);

    /* It is computed again meanwhile. */
    rep = acquire(&r, 3, 0);
    CHECK_EQ(rep.held_tokens, RIG_PAGE_TOKENS);
    CHECK_EQ(rep.claimed_tokens, PATH_TOKENS);
    CHECK_EQ(seal(&r, 3, rep.lease, 1), KVT_OK);
    CHECK_EQ(held(&r, 0), PATH_TOKENS);
    CHECK_EQ(r.generations[page.frame], page.generation);
    rig_release(&r, 1, first);
    CHECK_EQ(r.generations[page.frame], page.generation);
    rig_release(&r, 2, second);
    CHECK(r.generations[page.frame] != page.generation);
    CHECK(r.generations[behind.frame] != behind.generation);
    CHECK_EQ(held(&r, 0), PATH_TOKENS);
    rig_close(&r);
}

/* One check of a page at a time, one of a session, and few in all. */
static void test_bounds(void) {
    static core_rig r;
    uint64_t leases[RIG_MAX_PIPES + 1];
    open_all(&r, 0);
    leases[1] = filled(&r, 1, 0);
    leases[2] = acquire(&r, 2, 0).lease;
    CHECK_EQ(suspect(&r, 1, leases[1], 0, 0), KVT_OK);
    CHECK_EQ(suspect(&r, 1, leases[1], 0, 0), KVT_EBUSY);
    CHECK_EQ(suspect(&r, 1, leases[1], 1, 0), KVT_EBUSY); /* its session has one */
    CHECK_EQ(suspect(&r, 2, leases[2], 0, 0), KVT_EBUSY); /* the page has one */
    CHECK_EQ(verdict(&r, 1, KVT_OK), 0);
    for (uint32_t pipe = 3; pipe <= RIG_MAX_PIPES; pipe++)
        leases[pipe] = filled(&r, pipe, pipe);
    uint32_t n = 0;
    for (uint32_t pipe = 3; pipe <= RIG_MAX_PIPES; pipe++, n++)
        CHECK_EQ(suspect(&r, pipe, leases[pipe], 2, 0), n < CORE_CHECK_JOBS ? KVT_OK : KVT_EBUSY);
    CHECK(n > CORE_CHECK_JOBS);
    CHECK_EQ(rig_run(&r, CHECKS, KVT_ECORRUPT), CORE_CHECK_JOBS);
    CHECK_EQ(damaged(&r), CORE_CHECK_JOBS);
    CHECK_EQ(r.n_lines, CORE_CHECK_JOBS);
    for (uint32_t pipe = 3; pipe <= RIG_MAX_PIPES; pipe++)
        CHECK_EQ(held(&r, pipe), pipe < 3 + CORE_CHECK_JOBS ? 2 * RIG_PAGE_TOKENS : PATH_TOKENS);
    rig_close(&r);
}

static void test_nonsense(void) {
    static core_rig r;
    open_all(&r, 0);
    uint64_t lease = filled(&r, 1, 0);
    CHECK_EQ(suspect(&r, 2, lease, 0, 0), KVT_ENOENT); /* another's */
    CHECK_EQ(suspect(&r, 1, lease + 1, 0, 0), KVT_ENOENT);
    CHECK_EQ(suspect(&r, 1, lease, PATH_PAGES, 0), KVT_EINVAL);
    CHECK_EQ(suspect(&r, 1, lease, UINT32_MAX, 0), KVT_EINVAL);
    CHECK_EQ(suspect(&r, 1, lease, 0, 1), KVT_EINVAL);
    CHECK_EQ(suspect(&r, 1, lease, 0, UINT32_MAX), KVT_EINVAL);
    kvt_lease_rep rep = acquire(&r, 1, 1); /* claimed, and not there yet */
    CHECK_EQ(suspect(&r, 1, rep.lease, 0, 0), KVT_EINVAL);
    CHECK(!rig_job(&r, CHECKS));
    CHECK_EQ(r.n_cut, 0);
    kvt_writer w = rig_body();
    kvt_wire_put_u64(&w, lease);
    rig_send(&r, 1, KVT_OP_SUSPECT, &w);
    CHECK_EQ(r.n_cut, 1);
    rig_close(&r);
}

/* While it is looked at, everything else may happen to it. */
static void test_meanwhile(void) {
    enum { RELEASE, FLUSH, DIE, ROOM, N_CASES };
    for (int what = 0; what < N_CASES; what++)
        for (int is_bad = 0; is_bad < 2; is_bad++) {
            static core_rig r;
            open_all(&r, what == ROOM);
            uint64_t lease = filled(&r, 1, 0);
            kvt_lease_rep rep = acquire(&r, 1, 0);
            kvt_wire_page page = page_at(&rep, 1);
            rig_release(&r, 1, rep.lease);
            if (what == ROOM)
                rig_run(&r, OTHERS, KVT_OK);
            CHECK_EQ(suspect(&r, 1, lease, 1, 0), KVT_OK);
            if (what != DIE)
                rig_release(&r, 1, lease);
            if (what == FLUSH) {
                kvt_writer w = rig_body();
                kvt_flush_req flush = {.scope = KVT_WIRE_FLUSH_TENANT};
                kvt_wire_put_flush_req(&w, &flush);
                CHECK_EQ(rig_ask(&r, 2, KVT_OP_FLUSH, &w), KVT_OK);
            } else if (what == DIE) {
                core_pipe_removed(r.core, 1);
                core_peer_gone(r.core, 1);
            } else if (what == ROOM) {
                /* Others want its place, again and again. */
                for (uint32_t path = 1; path < 40; path++) {
                    rep = acquire(&r, 2, path);
                    while (seal(&r, 2, rep.lease, 0) == KVT_EBUSY)
                        rig_run(&r, OTHERS, KVT_OK);
                    rig_release(&r, 2, rep.lease);
                    rig_run(&r, OTHERS, KVT_OK);
                }
                core_counts n = rig_counts(&r);
                CHECK(n.pages_vacated + n.pages_evicted > 0);
            }
            rig_audit(&r);
            CHECK_EQ(r.generations[page.frame], page.generation); /* not until it was looked at */
            CHECK_EQ(rig_run(&r, CHECKS, is_bad ? KVT_ECORRUPT : KVT_OK), 1);
            CHECK_EQ(damaged(&r), is_bad && what != FLUSH);
            if (is_bad || what == FLUSH)
                CHECK(r.generations[page.frame] != page.generation);
            if (what == RELEASE)
                CHECK_EQ(held(&r, 0), is_bad ? RIG_PAGE_TOKENS : PATH_TOKENS);
            rig_close(&r);
        }
}

/* A copy in the host tier that is damaged when it is to come up is counted, and said, too. */
static void test_host_copy(void) {
    static core_rig r;
    uint32_t n_paths = 0;
    open_all(&r, 1);
    core_counts n = {0};
    for (; n.pages_vacated < PATH_PAGES && n_paths < 40; n_paths++) {
        rig_release(&r, 1, filled(&r, 1, n_paths));
        rig_run(&r, OTHERS, KVT_OK);
        n = rig_counts(&r);
    }
    CHECK(n_paths < 40);
    uint32_t path = 0, n_up = 0;
    for (; path < n_paths && n_up == 0; path++) {
        rig_send_acquire(&r, 1, path, PATH_TOKENS, 0);
        n_up = rig_run(&r, RIG_KIND(CORE_JOB_UP), KVT_ECORRUPT);
    }
    CHECK(n_up > 0);
    CHECK(damaged(&r) > 0);
    CHECK_EQ(r.n_lines, damaged(&r));
    CHECK_MSG(strstr(r.line, "in the host tier"), "%s", r.line);
    rig_close(&r);
}

/* A view's page is looked at, and one in front of it, which came down, is lost: it goes with that.
 */
static void test_lost_in_front(void) {
    static core_rig r;
    open_all(&r, 1);
    filled(&r, 1, 0);
    kvt_lease_rep rep = acquire(&r, 1, 0);
    kvt_wire_page front = page_at(&rep, 0), last = page_at(&rep, PATH_PAGES - 1);
    kvt_writer w = rig_body();
    kvt_acquire_req req = {.realm = r.realm,
                           .flags = KVT_ACQUIRE_VIEW,
                           .window = RIG_PAGE_TOKENS,
                           .n_tokens = PATH_TOKENS};
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, rig_tokens(0), PATH_TOKENS);
    CHECK_EQ(rig_ask(&r, 3, KVT_OP_ACQUIRE, &w), KVT_OK);
    uint64_t view = rig_lease(&r).lease;
    core_peer_gone(r.core, 1);
    for (uint32_t path = 1; r.generations[front.frame] == front.generation; path++) {
        CHECK(path < 40);
        rig_release(&r, 2, filled(&r, 2, path));
        rig_run(&r, OTHERS, KVT_OK);
    }
    CHECK_EQ(held(&r, 0), PATH_TOKENS);
    CHECK_EQ(suspect(&r, 3, view, PATH_PAGES - 1, 0), KVT_OK);
    rig_send_acquire(&r, 2, 0, PATH_TOKENS, 0);
    CHECK(rig_run(&r, RIG_KIND(CORE_JOB_UP), KVT_ECORRUPT) > 0);
    CHECK_EQ(held(&r, 0), 0);
    CHECK_EQ(r.generations[last.frame], last.generation);
    uint64_t before = damaged(&r);
    CHECK_EQ(verdict(&r, 3, KVT_ECORRUPT), 1);
    CHECK_EQ(damaged(&r), before); /* it was forgotten already */
    CHECK_EQ(r.generations[last.frame], last.generation);
    rig_release(&r, 3, view);
    CHECK(r.generations[last.frame] != last.generation);
    rig_close(&r);
}

int main(void) {
    test_lie();
    test_forgotten();
    test_bounds();
    test_nonsense();
    test_meanwhile();
    test_host_copy();
    test_lost_in_front();
    return 0;
}
