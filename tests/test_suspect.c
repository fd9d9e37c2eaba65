/*
 * test_suspect.c - SUSPECT: what a worker calls damaged is looked at by a job, once at a time,
 * while its frame stays as it is; only if the job finds so, too, the page is forgotten. The jobs
 * are held back here, and say what the test wants.
 */
#include "daemon/core.h"
#include "store/frames.h"
#include "tests/check.h"

enum {
    MAX_PIPES = 8,
    MAX_FRAMES = 64,
    MAX_QUEUE = 64,
    PAGE_TOKENS = 16,
    PAGE_BYTES = 32 << 10,
    STAGED = 4 * PAGE_BYTES,
    PATH_PAGES = 3,
    PATH_TOKENS = PATH_PAGES * PAGE_TOKENS,
};

typedef struct rig {
    core *core;
    uint64_t number;
    core_job *queue[MAX_QUEUE];
    uint32_t n_queue, realm, n_cut, n_lines;
    uint64_t generations[MAX_FRAMES];
    char line[1024];
    /* the last answer */
    core_ticket ticket;
    kvt_wire_header header;
    uint8_t body[4096];
} rig;

/* --- the core's surroundings --------------------------------------------------------------------
 */

static uint64_t rig_now(void *context) {
    (void)context;
    return 1000;
}

static void rig_random(void *context, void *to, size_t n) {
    rig *r = context;
    memset(to, (int)(7 + r->number), n);
}

static void rig_send(void *context, core_ticket ticket, const void *message, size_t n) {
    rig *r = context;
    const uint8_t *body;
    CHECK_EQ(kvt_wire_open(message, n, &r->header, &body), KVT_OK);
    CHECK(r->header.body_bytes <= sizeof r->body);
    memcpy(r->body, body, r->header.body_bytes);
    r->ticket = ticket;
}

static void rig_submit(void *context, core_job *job) {
    rig *r = context;
    CHECK(r->n_queue < MAX_QUEUE);
    r->queue[r->n_queue++] = job;
}

static void rig_cut(void *context, uint32_t pipe) {
    (void)pipe;
    ((rig *)context)->n_cut++;
}

static void rig_watch(void *context, uint32_t session, core_peer peer) {
    (void)context, (void)session, (void)peer;
}

static void rig_unwatch(void *context, uint32_t session) {
    (void)context, (void)session;
}

static void rig_warn(void *context, const char *line) {
    rig *r = context;
    r->n_lines++;
    snprintf(r->line, sizeof r->line, "%s", line);
}

static size_t rig_report(void *context, const core *c, kvt_op op, uint32_t lines, char *to,
                         size_t room) {
    (void)context, (void)c, (void)op, (void)lines, (void)room;
    memcpy(to, "{}", 2);
    return 2;
}

static void audit(rig *r) {
    char why[256] = "";
    CHECK_MSG(core_audit(r->core, why, sizeof why) == KVT_OK, "%s", why);
}

static uint64_t damaged(const rig *r) {
    core_counts n;
    core_count(r->core, &n);
    return n.pages_damaged;
}

/* The jobs of this kind that there are (0: all but CHECK, until there are no more), with this
 * status for each page. Returns how many there were. */
static uint32_t run_jobs(rig *r, int kind, kvt_status status) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_queue;) {
        core_job *job = r->queue[i];
        if (kind ? (int)job->kind != kind : job->kind == CORE_JOB_CHECK) {
            i++;
            continue;
        }
        memmove(r->queue + i, r->queue + i + 1, (--r->n_queue - i) * sizeof *r->queue);
        n++;
        job->status = KVT_OK;
        job->staging = job->kind == CORE_JOB_STAGE ? 1 : job->staging;
        for (uint32_t k = 0; k < job->n_copies; k++)
            job->copies[k].status = status;
        core_job_done(r->core, job);
        audit(r);
    }
    return n;
}

static core_job *check_job(rig *r) {
    for (uint32_t i = 0; i < r->n_queue; i++)
        if (r->queue[i]->kind == CORE_JOB_CHECK)
            return r->queue[i];
    return NULL;
}

/* --- asking -------------------------------------------------------------------------------------
 */

static void send_op(rig *r, uint32_t pipe, kvt_op op, const kvt_writer *body) {
    uint8_t message[8192];
    kvt_writer w;
    CHECK(!body->failed);
    kvt_wire_start(&w, message, sizeof message);
    kvt_wire_put_bytes(&w, body->at, body->n_bytes);
    kvt_wire_header header = {.kind = KVT_WIRE_REQUEST,
                              .op = (uint16_t)op,
                              .number = ++r->number,
                              .boot_id = op == KVT_OP_HELLO ? 0 : 42};
    size_t n = kvt_wire_finish(&w, header);
    CHECK(n > 0);
    core_message(r->core, (core_ticket){.pipe = pipe, .request = 1}, message, n);
    audit(r);
}

/* Its answer, which may take jobs, but none that checks. */
static kvt_status ask(rig *r, uint32_t pipe, kvt_op op, const kvt_writer *body) {
    send_op(r, pipe, op, body);
    run_jobs(r, CORE_JOB_STAGE, KVT_OK);
    run_jobs(r, CORE_JOB_SEAL, KVT_OK);
    CHECK(r->header.number == r->number && r->ticket.pipe == pipe);
    return (kvt_status)r->header.status;
}

static uint8_t scratch[KVT_WIRE_MAX_REALM_BYTES + 64];
static kvt_writer start(void) {
    return (kvt_writer){.at = scratch, .room = sizeof scratch};
}

static void enter(rig *r, uint32_t pipe) {
    uint8_t canonical[KVT_WIRE_MAX_REALM_BYTES];
    size_t n;
    core_pipe_added(r->core, pipe, (core_peer){.uid = 1, .gid = 1, .pid = pipe});
    kvt_writer w = start();
    kvt_hello_req hello = {.pid = pipe, .name = {"test", 4}};
    kvt_wire_put_hello_req(&w, &hello);
    CHECK_EQ(ask(r, pipe, KVT_OP_HELLO, &w), KVT_OK);
    w = start();
    kvt_stage_req stage = {.bytes = STAGED, .name = {"s", 1}};
    kvt_wire_put_stage_req(&w, &stage);
    CHECK_EQ(ask(r, pipe, KVT_OP_STAGE, &w), KVT_OK);
    kvt_realm realm = {.model = "m"};
    kvt_geometry_init(&realm.geometry, 2, 4, 64, PAGE_TOKENS); /* pages of 32 KiB */
    CHECK_EQ(kvt_wire_realm_encode(&realm, canonical, sizeof canonical, &n), KVT_OK);
    w = start();
    kvt_realm_req req = {.canonical = canonical, .n_bytes = (uint32_t)n};
    kvt_wire_put_realm_req(&w, &req);
    CHECK_EQ(ask(r, pipe, KVT_OP_REALM, &w), KVT_OK);
    r->realm = kvt_wire_get_u32(r->body, 0);
}

static void rig_open(rig *r, int has_host) {
    static const uint32_t uids[] = {1};
    const core_arena arena = {"the-arena", "", r->generations};
    core_config config = {.boot_id = 42,
                          .tenant = "t",
                          .uids = uids,
                          .n_uids = 1,
                          .arenas = &arena,
                          .n_arenas = 1,
                          .staging_dir = "s",
                          .arena_bytes = (has_host ? 8 : 32) * FRAMES_GRANULE_BYTES,
                          .max_frames = MAX_FRAMES,
                          .max_pages = 64,
                          .page_tokens = PAGE_TOKENS,
                          .max_slots = 1,
                          .max_realms = 1,
                          .max_sessions = MAX_PIPES,
                          .max_leases = 32,
                          .max_leases_total = 64,
                          .max_claimed_pages = 32,
                          .max_jobs = 4,
                          .grace_ms = 100,
                          .max_wait_ms = 1000,
                          .max_pins = 4,
                          .max_pinned_bytes = 1 << 30,
                          .max_owner_pinned_bytes = 1 << 30,
                          .host_bytes = has_host ? 32 * FRAMES_GRANULE_BYTES : 0,
                          .max_host_frames = has_host ? 512 : 0,
                          .promote_wait_ms = 500};
    core_env env = {.context = r,
                    .now_ms = rig_now,
                    .random = rig_random,
                    .send = rig_send,
                    .submit = rig_submit,
                    .cut = rig_cut,
                    .watch = rig_watch,
                    .unwatch = rig_unwatch,
                    .warn = rig_warn,
                    .report = rig_report};
    char why[256] = "";
    memset(r, 0, sizeof *r);
    CHECK_MSG(core_open(&config, &env, why, sizeof why, &r->core) == KVT_OK, "%s", why);
    for (uint32_t pipe = 1; pipe <= MAX_PIPES; pipe++)
        enter(r, pipe);
}

static void rig_close(rig *r) {
    for (uint32_t pipe = 1; pipe <= MAX_PIPES; pipe++) {
        core_pipe_removed(r->core, pipe);
        core_peer_gone(r->core, pipe);
    }
    while (run_jobs(r, 0, KVT_OK) + run_jobs(r, CORE_JOB_CHECK, KVT_OK) > 0)
        continue;
    core_close(r->core);
}

static const uint32_t *path_of(uint32_t path) {
    static uint32_t tokens[PATH_TOKENS];
    for (uint32_t i = 0; i < PATH_TOKENS; i++)
        tokens[i] = path * 100 + i;
    return tokens;
}

static kvt_lease_rep acquire(rig *r, uint32_t pipe, uint32_t path) {
    kvt_lease_rep rep;
    kvt_writer w = start();
    kvt_acquire_req req = {.realm = r->realm, .flags = KVT_ACQUIRE_CLAIM, .n_tokens = PATH_TOKENS};
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, path_of(path), PATH_TOKENS);
    CHECK_EQ(ask(r, pipe, KVT_OP_ACQUIRE, &w), KVT_OK);
    CHECK_EQ(kvt_wire_get_lease_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    return rep;
}

static kvt_status seal(rig *r, uint32_t pipe, uint64_t lease, uint32_t first) {
    kvt_seal_rep rep;
    kvt_writer w = start();
    kvt_seal_req req = {.lease = lease, .n_pages = PATH_PAGES - first};
    kvt_wire_put_seal_req(&w, &req);
    for (uint32_t i = first; i < PATH_PAGES; i++) {
        kvt_seal_page page = {.page = i, .bytes = PAGE_BYTES, .offset = (uint64_t)i * PAGE_BYTES};
        kvt_wire_put_seal_page(&w, &page);
    }
    kvt_status status = ask(r, pipe, KVT_OP_SEAL, &w);
    if (status != KVT_OK)
        return status;
    CHECK_EQ(kvt_wire_get_seal_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    return (kvt_status)rep.page_status;
}

static void release(rig *r, uint32_t pipe, uint64_t lease) {
    kvt_writer w = start();
    kvt_wire_put_u32(&w, 1);
    kvt_wire_put_u64(&w, lease);
    CHECK_EQ(ask(r, pipe, KVT_OP_RELEASE, &w), KVT_OK);
}

/* A lease over a path that is held, all of it. */
static uint64_t filled(rig *r, uint32_t pipe, uint32_t path) {
    kvt_lease_rep rep = acquire(r, pipe, path);
    CHECK_EQ(rep.claimed_tokens, PATH_TOKENS);
    CHECK_EQ(seal(r, pipe, rep.lease, 0), KVT_OK);
    return rep.lease;
}

static uint32_t held(const rig *r, uint32_t path) {
    return core_would_hold(r->core, r->realm, path_of(path), PATH_TOKENS);
}

/* KVT_OK: it is being looked at, and nobody has answered; or KVT_EEXIST: answered, as forgotten. */
static kvt_status suspect(rig *r, uint32_t pipe, uint64_t lease, uint32_t page, uint32_t group) {
    kvt_suspect_req req = {.lease = lease, .page = page, .group = group};
    kvt_suspect_rep rep;
    uint32_t n = r->n_queue;
    kvt_writer w = start();
    kvt_wire_put_suspect_req(&w, &req);
    send_op(r, pipe, KVT_OP_SUSPECT, &w);
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
static uint32_t verdict(rig *r, uint32_t pipe, kvt_status status) {
    kvt_suspect_rep rep;
    CHECK_EQ(run_jobs(r, CORE_JOB_CHECK, status), 1);
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
    static rig r;
    rig_open(&r, 0);
    uint64_t lease = filled(&r, 1, 0);
    for (uint32_t page = 0; page < PATH_PAGES; page++) {
        CHECK_EQ(suspect(&r, 1, lease, page, 0), KVT_OK);
        CHECK_EQ(verdict(&r, 1, KVT_OK), 0);
        CHECK_EQ(suspect(&r, 1, lease, page, 0), KVT_OK); /* it could not be looked at */
        CHECK_EQ(run_jobs(&r, CORE_JOB_CHECK, KVT_EIO), 1);
        CHECK_EQ(r.header.status, KVT_EIO);
        CHECK_EQ(held(&r, 0), PATH_TOKENS);
    }
    CHECK_EQ(damaged(&r), 0);
    CHECK_EQ(r.n_lines, 0);
    rig_close(&r);
}

static void test_forgotten(void) {
    static rig r;
    rig_open(&r, 0);
    uint64_t first = filled(&r, 1, 0);
    kvt_lease_rep rep = acquire(&r, 2, 0);
    kvt_wire_page page = page_at(&rep, 1), behind = page_at(&rep, 2);
    uint64_t second = rep.lease;
    kvt_writer w = start();
    kvt_pin_req pin = {.realm = r.realm, .n_tokens = PATH_TOKENS};
    kvt_wire_put_pin_req(&w, &pin);
    kvt_wire_put_tokens(&w, path_of(0), PATH_TOKENS);
    CHECK_EQ(ask(&r, 1, KVT_OP_PIN, &w), KVT_OK);

    CHECK_EQ(suspect(&r, 2, second, 1, 0), KVT_OK);
    const core_job *job = check_job(&r);
    CHECK_EQ(job->n_copies, 1);
    CHECK_EQ(job->copies[0].from_offset, page.offset);
    CHECK_EQ(job->copies[0].bytes, page.bytes);
    CHECK_EQ(job->copies[0].rows, PAGE_TOKENS);
    CHECK_EQ(verdict(&r, 2, KVT_ECORRUPT), 1);
    CHECK_EQ(held(&r, 0), PAGE_TOKENS);
    CHECK_EQ(damaged(&r), 1);
    core_counts n;
    core_count(r.core, &n);
    CHECK_EQ(n.pins, 0);
    CHECK_EQ(r.n_lines, 1);
    char place[64];
    snprintf(place, sizeof place, "%u bytes at byte %llu", page.bytes,
             (unsigned long long)page.offset);
    CHECK_MSG(strstr(r.line, "the-arena") && strstr(r.line, place) && strstr(r.line, "page 1"),
              "%s", r.line);

    /* Whoever leases it keeps it, and is told again that it is gone, for nothing. */
    CHECK_EQ(r.generations[page.frame], page.generation);
    CHECK_EQ(r.generations[behind.frame], behind.generation);
    CHECK_EQ(suspect(&r, 1, first, 1, 0), KVT_EEXIST);
    CHECK_EQ(damaged(&r), 1);
    CHECK_EQ(r.n_lines, 1);

    /* It is computed again meanwhile. */
    rep = acquire(&r, 3, 0);
    CHECK_EQ(rep.held_tokens, PAGE_TOKENS);
    CHECK_EQ(rep.claimed_tokens, PATH_TOKENS);
    CHECK_EQ(seal(&r, 3, rep.lease, 1), KVT_OK);
    CHECK_EQ(held(&r, 0), PATH_TOKENS);
    CHECK_EQ(r.generations[page.frame], page.generation);
    release(&r, 1, first);
    CHECK_EQ(r.generations[page.frame], page.generation);
    release(&r, 2, second);
    CHECK(r.generations[page.frame] != page.generation);
    CHECK(r.generations[behind.frame] != behind.generation);
    CHECK_EQ(held(&r, 0), PATH_TOKENS);
    rig_close(&r);
}

/* One check of a page at a time, one of a session, and few in all. */
static void test_bounds(void) {
    static rig r;
    uint64_t leases[MAX_PIPES + 1];
    rig_open(&r, 0);
    leases[1] = filled(&r, 1, 0);
    leases[2] = acquire(&r, 2, 0).lease;
    CHECK_EQ(suspect(&r, 1, leases[1], 0, 0), KVT_OK);
    CHECK_EQ(suspect(&r, 1, leases[1], 0, 0), KVT_EBUSY);
    CHECK_EQ(suspect(&r, 1, leases[1], 1, 0), KVT_EBUSY); /* its session has one */
    CHECK_EQ(suspect(&r, 2, leases[2], 0, 0), KVT_EBUSY); /* the page has one */
    CHECK_EQ(verdict(&r, 1, KVT_OK), 0);
    for (uint32_t pipe = 3; pipe <= MAX_PIPES; pipe++)
        leases[pipe] = filled(&r, pipe, pipe);
    uint32_t n = 0;
    for (uint32_t pipe = 3; pipe <= MAX_PIPES; pipe++, n++)
        CHECK_EQ(suspect(&r, pipe, leases[pipe], 2, 0), n < CORE_CHECK_JOBS ? KVT_OK : KVT_EBUSY);
    CHECK(n > CORE_CHECK_JOBS);
    CHECK_EQ(run_jobs(&r, CORE_JOB_CHECK, KVT_ECORRUPT), CORE_CHECK_JOBS);
    CHECK_EQ(damaged(&r), CORE_CHECK_JOBS);
    CHECK_EQ(r.n_lines, CORE_CHECK_JOBS);
    for (uint32_t pipe = 3; pipe <= MAX_PIPES; pipe++)
        CHECK_EQ(held(&r, pipe), pipe < 3 + CORE_CHECK_JOBS ? 2 * PAGE_TOKENS : PATH_TOKENS);
    rig_close(&r);
}

static void test_nonsense(void) {
    static rig r;
    rig_open(&r, 0);
    uint64_t lease = filled(&r, 1, 0);
    CHECK_EQ(suspect(&r, 2, lease, 0, 0), KVT_ENOENT); /* another's */
    CHECK_EQ(suspect(&r, 1, lease + 1, 0, 0), KVT_ENOENT);
    CHECK_EQ(suspect(&r, 1, lease, PATH_PAGES, 0), KVT_EINVAL);
    CHECK_EQ(suspect(&r, 1, lease, UINT32_MAX, 0), KVT_EINVAL);
    CHECK_EQ(suspect(&r, 1, lease, 0, 1), KVT_EINVAL);
    CHECK_EQ(suspect(&r, 1, lease, 0, UINT32_MAX), KVT_EINVAL);
    kvt_lease_rep rep = acquire(&r, 1, 1); /* claimed, and not there yet */
    CHECK_EQ(suspect(&r, 1, rep.lease, 0, 0), KVT_EINVAL);
    CHECK(!check_job(&r));
    CHECK_EQ(r.n_cut, 0);
    kvt_writer w = start();
    kvt_wire_put_u64(&w, lease);
    send_op(&r, 1, KVT_OP_SUSPECT, &w);
    CHECK_EQ(r.n_cut, 1);
    rig_close(&r);
}

/* While it is looked at, everything else may happen to it. */
static void test_meanwhile(void) {
    enum { RELEASE, FLUSH, DIE, ROOM, N_CASES };
    for (int what = 0; what < N_CASES; what++)
        for (int is_bad = 0; is_bad < 2; is_bad++) {
            static rig r;
            rig_open(&r, what == ROOM);
            uint64_t lease = filled(&r, 1, 0);
            kvt_lease_rep rep = acquire(&r, 1, 0);
            kvt_wire_page page = page_at(&rep, 1);
            release(&r, 1, rep.lease);
            if (what == ROOM)
                run_jobs(&r, 0, KVT_OK);
            CHECK_EQ(suspect(&r, 1, lease, 1, 0), KVT_OK);
            if (what != DIE)
                release(&r, 1, lease);
            if (what == FLUSH) {
                kvt_writer w = start();
                kvt_flush_req flush = {.scope = KVT_WIRE_FLUSH_TENANT};
                kvt_wire_put_flush_req(&w, &flush);
                CHECK_EQ(ask(&r, 2, KVT_OP_FLUSH, &w), KVT_OK);
            } else if (what == DIE) {
                core_pipe_removed(r.core, 1);
                core_peer_gone(r.core, 1);
            } else if (what == ROOM) {
                /* Others want its place, again and again. */
                for (uint32_t path = 1; path < 40; path++) {
                    rep = acquire(&r, 2, path);
                    while (seal(&r, 2, rep.lease, 0) == KVT_EBUSY)
                        run_jobs(&r, 0, KVT_OK);
                    release(&r, 2, rep.lease);
                    run_jobs(&r, 0, KVT_OK);
                }
                core_counts n;
                core_count(r.core, &n);
                CHECK(n.pages_vacated + n.pages_evicted > 0);
            }
            audit(&r);
            CHECK_EQ(r.generations[page.frame], page.generation); /* not until it was looked at */
            CHECK_EQ(run_jobs(&r, CORE_JOB_CHECK, is_bad ? KVT_ECORRUPT : KVT_OK), 1);
            CHECK_EQ(damaged(&r), is_bad && what != FLUSH);
            if (is_bad || what == FLUSH)
                CHECK(r.generations[page.frame] != page.generation);
            if (what == RELEASE)
                CHECK_EQ(held(&r, 0), is_bad ? PAGE_TOKENS : PATH_TOKENS);
            rig_close(&r);
        }
}

/* A copy in the host tier that is damaged when it is to come up is counted, and said, too. */
static void test_host_copy(void) {
    static rig r;
    uint32_t n_paths = 0;
    rig_open(&r, 1);
    core_counts n = {0};
    for (; n.pages_vacated < PATH_PAGES && n_paths < 40; n_paths++) {
        release(&r, 1, filled(&r, 1, n_paths));
        run_jobs(&r, 0, KVT_OK);
        core_count(r.core, &n);
    }
    CHECK(n_paths < 40);
    uint32_t path = 0, n_up = 0;
    for (; path < n_paths && n_up == 0; path++) {
        kvt_writer w = start();
        kvt_acquire_req req = {.realm = r.realm, .n_tokens = PATH_TOKENS};
        kvt_wire_put_acquire_req(&w, &req);
        kvt_wire_put_tokens(&w, path_of(path), PATH_TOKENS);
        send_op(&r, 1, KVT_OP_ACQUIRE, &w);
        n_up = run_jobs(&r, CORE_JOB_UP, KVT_ECORRUPT);
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
    static rig r;
    rig_open(&r, 1);
    filled(&r, 1, 0);
    kvt_lease_rep rep = acquire(&r, 1, 0);
    kvt_wire_page front = page_at(&rep, 0), last = page_at(&rep, PATH_PAGES - 1);
    kvt_writer w = start();
    kvt_acquire_req req = {.realm = r.realm,
                           .flags = KVT_ACQUIRE_VIEW,
                           .window = PAGE_TOKENS,
                           .n_tokens = PATH_TOKENS};
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, path_of(0), PATH_TOKENS);
    CHECK_EQ(ask(&r, 3, KVT_OP_ACQUIRE, &w), KVT_OK);
    CHECK_EQ(kvt_wire_get_lease_rep(r.body, r.header.body_bytes, &rep), KVT_OK);
    uint64_t view = rep.lease;
    core_peer_gone(r.core, 1);
    for (uint32_t path = 1; r.generations[front.frame] == front.generation; path++) {
        CHECK(path < 40);
        release(&r, 2, filled(&r, 2, path));
        run_jobs(&r, 0, KVT_OK);
    }
    CHECK_EQ(held(&r, 0), PATH_TOKENS);
    CHECK_EQ(suspect(&r, 3, view, PATH_PAGES - 1, 0), KVT_OK);
    req.flags = 0;
    req.window = 0;
    w = start();
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, path_of(0), PATH_TOKENS);
    send_op(&r, 2, KVT_OP_ACQUIRE, &w);
    CHECK(run_jobs(&r, CORE_JOB_UP, KVT_ECORRUPT) > 0);
    CHECK_EQ(held(&r, 0), 0);
    CHECK_EQ(r.generations[last.frame], last.generation);
    uint64_t before = damaged(&r);
    CHECK_EQ(verdict(&r, 3, KVT_ECORRUPT), 1);
    CHECK_EQ(damaged(&r), before); /* it was forgotten already */
    CHECK_EQ(r.generations[last.frame], last.generation);
    release(&r, 3, view);
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
