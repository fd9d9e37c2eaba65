/*
 * test_silence.c - a disk that does not answer, seen by the core alone: up to which moment it is
 * waited for, what is forgotten then, and for whom; and that an answer which comes after all does
 * no harm. The jobs are held back, so it is silent for as long as the test wants.
 */
#include "tests/core_rig.h"

enum {
    PATH_PAGES = 3,
    PATH_TOKENS = PATH_PAGES * RIG_PAGE_TOKENS,
    SILENT_MS = 5000, /* as kvtrunkd.conf(5) says; DISK_SILENT_MS must be that */
    READ = RIG_KIND(CORE_JOB_READ),
    UP = RIG_KIND(CORE_JOB_UP),
};

static int is_up; /* some process has the disk */

static void set_up(core_rig *r, int up) {
    is_up = up;
    core_disk_up(r->core, up);
}

/* Two paths on disk alone, and two workers. */
static void open_on_disk(core_rig *r) {
    core_config config = rig_config_tiers();
    config.max_pins = 1;
    config.max_pinned_bytes = config.max_owner_pinned_bytes = 1 << 30;
    rig_open_on_disk(r, &config, 2, PATH_PAGES);
    set_up(r, 1);
}

/* As daemons do, the core is told all the while whether there is a process: no news. */
static void wait(core_rig *r, uint64_t ms) {
    for (uint64_t left = ms, step; left > 0; left -= step) {
        step = left < 100 ? left : 100;
        r->now_ms += step;
        core_disk_up(r->core, is_up);
    }
    core_tick(r->core);
    rig_audit(r);
}

/* What a claim of the path is told, when it is. */
static kvt_lease_rep claim(core_rig *r, uint32_t path) {
    rig_send_acquire(r, 2, path, PATH_TOKENS, KVT_ACQUIRE_CLAIM);
    if (!rig_is_answered(r, 2))
        wait(r, RIG_WAIT_MS);
    CHECK(rig_is_answered(r, 2));
    return rig_lease(r);
}

static void check_waited_for(core_rig *r, uint32_t path) {
    kvt_lease_rep rep = claim(r, path);
    CHECK_EQ(rep.held_tokens + rep.claimed_tokens, 0);
    CHECK_EQ(rig_counts(r).pages_disk, 2 * PATH_PAGES);
    rig_release(r, 2, rep.lease);
}

/* It was forgotten, and is computed. */
static kvt_lease_rep check_computed(core_rig *r, uint32_t path, uint32_t n_left) {
    kvt_lease_rep rep = claim(r, path);
    CHECK_EQ(rep.held_tokens, 0);
    CHECK_EQ(rep.claimed_tokens, PATH_TOKENS);
    CHECK_EQ(rig_counts(r).pages_disk, n_left);
    return rep;
}

/* --- tests --------------------------------------------------------------------------------------
 */

/* A read hangs. To the millisecond; and of what is claimed alone. */
static void test_hangs(void) {
    static core_rig r;
    open_on_disk(&r);
    rig_send_acquire(&r, 1, 0, PATH_TOKENS, 0);
    CHECK(rig_n_jobs(&r, READ) > 0);
    wait(&r, SILENT_MS - RIG_WAIT_MS - 1);
    check_waited_for(&r, 0);
    wait(&r, 1);
    rig_send_acquire(&r, 1, 1, PATH_TOKENS, 0); /* asked for, not claimed: nothing goes */
    CHECK(rig_is_answered(&r, 1));
    CHECK_EQ(rig_counts(&r).pages_disk, 2 * PATH_PAGES);
    kvt_lease_rep rep = check_computed(&r, 1, PATH_PAGES);
    CHECK_EQ(rig_seal(&r, 2, rep.lease, 0, PATH_PAGES), KVT_OK);
    CHECK_EQ(rig_counts(&r).pages_device, PATH_PAGES);
    rig_close(&r);
}

/* What hangs was asked for what is forgotten meanwhile: when it comes it is nobody's, and the page
 * that was computed stays. */
static void test_answers_late(kvt_status status) {
    static core_rig r;
    open_on_disk(&r);
    rig_send_acquire(&r, 1, 0, PATH_TOKENS, 0);
    wait(&r, SILENT_MS);
    kvt_lease_rep rep = check_computed(&r, 0, 2 * PATH_PAGES); /* read, they cannot go yet */
    CHECK_EQ(rig_seal(&r, 2, rep.lease, 0, 1), KVT_OK);
    rig_run(&r, READ | UP, status);
    CHECK_EQ(rig_counts(&r).pages_disk, PATH_PAGES);
    CHECK_EQ(rig_seal(&r, 2, rep.lease, 1, PATH_PAGES), KVT_OK);
    CHECK_EQ(rig_counts(&r).pages_device, PATH_PAGES);
    rig_release(&r, 2, rep.lease);
    /* It answers again: what it alone has comes up as ever. */
    rig_send_acquire(&r, 1, 1, PATH_TOKENS, 0);
    rig_run(&r, RIG_ALL, KVT_OK);
    CHECK(rig_is_answered(&r, 1));
    CHECK_EQ(rig_lease(&r).held_tokens, PATH_TOKENS);
    rig_close(&r);
}

/* No process has it. One that comes in time changes nothing. */
static void test_away(int comes_back) {
    static core_rig r;
    open_on_disk(&r);
    set_up(&r, 0);
    uint64_t start_ms = r.now_ms;
    wait(&r, SILENT_MS - 1);
    check_waited_for(&r, 0); /* at once: nobody waits for a disk that is away */
    CHECK_EQ(r.now_ms, start_ms + SILENT_MS - 1);
    if (comes_back) {
        set_up(&r, 1);
        rig_send_acquire(&r, 1, 0, PATH_TOKENS, KVT_ACQUIRE_CLAIM);
        rig_run(&r, READ | UP, KVT_OK);
        CHECK(rig_is_answered(&r, 1));
        CHECK_EQ(rig_lease(&r).held_tokens, PATH_TOKENS);
    } else {
        wait(&r, 1);
        check_computed(&r, 0, PATH_PAGES);
    }
    rig_close(&r);
}

/* It has been silent, and is killed for that: its end is no answer, nor are the tries to have
 * another one. */
static void test_killed(void) {
    static core_rig r;
    open_on_disk(&r);
    rig_send_acquire(&r, 1, 0, PATH_TOKENS, 0);
    wait(&r, SILENT_MS);
    set_up(&r, 0);
    rig_run(&r, READ, KVT_EIO);
    kvt_lease_rep rep = check_computed(&r, 1, PATH_PAGES);
    CHECK_EQ(rig_seal(&r, 2, rep.lease, 0, PATH_PAGES), KVT_OK);
    wait(&r, 10 * SILENT_MS);
    check_computed(&r, 0, 0);
    rig_close(&r);
}

/* It has nothing to do: it may be silent as long as it likes. */
static void test_idle(void) {
    static core_rig r;
    open_on_disk(&r);
    wait(&r, 100 * SILENT_MS);
    rig_send_acquire(&r, 2, 0, PATH_TOKENS, KVT_ACQUIRE_CLAIM);
    CHECK(!rig_is_answered(&r, 2));
    rig_run(&r, READ | UP, KVT_OK);
    CHECK(rig_is_answered(&r, 2));
    CHECK_EQ(rig_lease(&r).held_tokens, PATH_TOKENS);
    rig_close(&r);
}

/* The first page is in the arena, and leased: it stays. One who asked for all, was told of that
 * page alone, and keeps his lease, keeps nobody from computing the rest. */
static void test_leased(uint32_t flags) {
    static core_rig r;
    open_on_disk(&r);
    rig_send_acquire(&r, 1, 0, RIG_PAGE_TOKENS, 0);
    rig_run(&r, READ | UP, KVT_OK);
    CHECK_EQ(rig_lease(&r).held_tokens, RIG_PAGE_TOKENS);
    rig_send_acquire(&r, 1, 0, PATH_TOKENS, flags);
    wait(&r, SILENT_MS);
    CHECK(rig_is_answered(&r, 1));
    CHECK_EQ(rig_lease(&r).held_tokens, RIG_PAGE_TOKENS);
    kvt_lease_rep rep = claim(&r, 0);
    CHECK_EQ(rep.held_tokens, RIG_PAGE_TOKENS);
    CHECK_EQ(rep.claimed_tokens, PATH_TOKENS);
    CHECK_EQ(rig_seal(&r, 2, rep.lease, 1, PATH_PAGES), KVT_OK);
    CHECK_EQ(rig_counts(&r).pages_device, PATH_PAGES);
    rig_close(&r);
}

/* What is pinned stays, and waits for the disk: a pin ends by its time alone, or who made it. */
static void test_pinned(void) {
    static core_rig r;
    open_on_disk(&r);
    kvt_pin_req pin = {.realm = r.realm, .n_tokens = PATH_TOKENS};
    kvt_writer w = rig_body();
    kvt_wire_put_pin_req(&w, &pin);
    kvt_wire_put_tokens(&w, rig_tokens(0), PATH_TOKENS);
    CHECK_EQ(rig_ask(&r, 1, KVT_OP_PIN, &w), KVT_OK);
    rig_send_acquire(&r, 1, 0, PATH_TOKENS, 0);
    wait(&r, SILENT_MS);
    check_waited_for(&r, 0);
    CHECK_EQ(rig_counts(&r).pins, 1);
    rig_close(&r);
}

int main(void) {
    test_hangs();
    test_answers_late(KVT_OK);
    test_answers_late(KVT_EIO);
    test_answers_late(KVT_ENOENT);
    test_away(0);
    test_away(1);
    test_killed();
    test_idle();
    test_leased(0);
    test_leased(KVT_ACQUIRE_CLAIM);
    test_pinned();
    return 0;
}
