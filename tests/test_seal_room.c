/*
 * test_seal_room.c - a page that finds no room in the arena, while a job copies others down: it is
 * to be asked for again where one of those can go when it has been copied, and is refused where
 * nothing can. The jobs are held back, so that both moments can be seen.
 */
#include "daemon/core.h"
#include "store/frames.h"
#include "tests/check.h"

enum {
    PIPE = 1,
    MAX_FRAMES = 64,
    MAX_QUEUE = 32,
    MAX_PATHS = 16,
    PAGE_TOKENS = 16,
    STAGED = 65536,
};

typedef struct rig {
    core *core;
    uint64_t number;
    core_job *queue[MAX_QUEUE];
    uint32_t n_queue, realm;
    uint64_t generations[MAX_FRAMES];
    /* the last answer */
    kvt_wire_header header;
    uint8_t body[4096];
} rig;

static uint64_t rig_now(void *context) {
    (void)context;
    return 1000;
}

static void rig_random(void *context, void *to, size_t n) {
    (void)context;
    memset(to, 7, n);
}

static void rig_send(void *context, core_ticket ticket, const void *message, size_t n) {
    rig *r = context;
    const uint8_t *body;
    (void)ticket;
    CHECK_EQ(kvt_wire_open(message, n, &r->header, &body), KVT_OK);
    CHECK(r->header.body_bytes <= sizeof r->body);
    memcpy(r->body, body, r->header.body_bytes);
}

static void rig_submit(void *context, core_job *job) {
    rig *r = context;
    CHECK(r->n_queue < MAX_QUEUE);
    r->queue[r->n_queue++] = job;
}

static void rig_cut(void *context, uint32_t pipe) {
    (void)context;
    CHECK_MSG(0, "pipe %u was cut", pipe);
}

static void rig_watch(void *context, uint32_t session, core_peer peer) {
    (void)context, (void)session, (void)peer;
}

static void rig_unwatch(void *context, uint32_t session) {
    (void)context, (void)session;
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

/* The jobs that there are now; those of the lower tiers only if they are let go. Returns how many
 * of these there were. */
static uint32_t run_jobs(rig *r, int lower) {
    uint32_t n_lower = 0, left = r->n_queue;
    for (uint32_t i = 0; left > 0; left--) {
        core_job *job = r->queue[i];
        if (job->kind >= CORE_JOB_DOWN && !lower) {
            i++;
            continue;
        }
        memmove(r->queue + i, r->queue + i + 1, (--r->n_queue - i) * sizeof *r->queue);
        n_lower += job->kind >= CORE_JOB_DOWN;
        job->status = KVT_OK;
        job->staging = job->kind == CORE_JOB_STAGE ? 1 : job->staging;
        for (uint32_t k = 0; k < job->n_copies; k++)
            job->copies[k].status = KVT_OK;
        core_job_done(r->core, job);
        audit(r);
    }
    return n_lower;
}

static kvt_status ask(rig *r, kvt_op op, const kvt_writer *body) {
    uint8_t message[8192];
    kvt_writer w;
    CHECK(body->n_bytes <= body->room);
    kvt_wire_start(&w, message, sizeof message);
    kvt_wire_put_bytes(&w, body->at, body->n_bytes);
    kvt_wire_header header = {.kind = KVT_WIRE_REQUEST,
                              .op = (uint16_t)op,
                              .number = ++r->number,
                              .boot_id = op == KVT_OP_HELLO ? 0 : 42};
    size_t n = kvt_wire_finish(&w, header);
    CHECK(n > 0);
    core_message(r->core, (core_ticket){.pipe = PIPE, .request = 1}, message, n);
    run_jobs(r, 0);
    audit(r);
    CHECK(r->header.number == r->number);
    return (kvt_status)r->header.status;
}

static void enter(rig *r) {
    uint8_t body[KVT_WIRE_MAX_REALM_BYTES + 64], canonical[KVT_WIRE_MAX_REALM_BYTES];
    kvt_writer w = {.at = body, .room = sizeof body};
    size_t n;
    kvt_hello_req hello = {.pid = 1, .name = {"test", 4}};
    kvt_wire_put_hello_req(&w, &hello);
    CHECK_EQ(ask(r, KVT_OP_HELLO, &w), KVT_OK);
    w = (kvt_writer){.at = body, .room = sizeof body};
    kvt_stage_req stage = {.bytes = STAGED, .name = {"s", 1}};
    kvt_wire_put_stage_req(&w, &stage);
    CHECK_EQ(ask(r, KVT_OP_STAGE, &w), KVT_OK);
    kvt_realm realm = {.model = "m"};
    kvt_geometry_init(&realm.geometry, 2, 4, 64, PAGE_TOKENS); /* pages of 32 KiB */
    CHECK_EQ(kvt_wire_realm_encode(&realm, canonical, sizeof canonical, &n), KVT_OK);
    w = (kvt_writer){.at = body, .room = sizeof body};
    kvt_realm_req req = {.canonical = canonical, .n_bytes = (uint32_t)n};
    kvt_wire_put_realm_req(&w, &req);
    CHECK_EQ(ask(r, KVT_OP_REALM, &w), KVT_OK);
    r->realm = kvt_wire_get_u32(r->body, 0);
}

/* An arena for a few pages, and much below it. */
static void rig_open(rig *r) {
    static const uint32_t uids[] = {1};
    const core_arena arena = {"a", "", r->generations};
    core_config config = {.boot_id = 42,
                          .tenant = "t",
                          .uids = uids,
                          .n_uids = 1,
                          .arenas = &arena,
                          .n_arenas = 1,
                          .staging_dir = "s",
                          .arena_bytes = 4 * FRAMES_GRANULE_BYTES,
                          .max_frames = MAX_FRAMES,
                          .max_pages = 64,
                          .page_tokens = PAGE_TOKENS,
                          .max_slots = 1,
                          .max_realms = 1,
                          .max_sessions = 1,
                          .max_leases = 32,
                          .max_leases_total = 32,
                          .max_claimed_pages = 32,
                          .max_jobs = 4,
                          .grace_ms = 100,
                          .max_wait_ms = 1000,
                          .host_bytes = 32 * FRAMES_GRANULE_BYTES,
                          .max_host_frames = 512,
                          .disk_bytes = 1 << 30}; /* all is copied down, at once */
    core_env env = {.context = r,
                    .now_ms = rig_now,
                    .random = rig_random,
                    .send = rig_send,
                    .submit = rig_submit,
                    .cut = rig_cut,
                    .watch = rig_watch,
                    .unwatch = rig_unwatch,
                    .report = rig_report};
    char why[256] = "";
    memset(r, 0, sizeof *r);
    CHECK_MSG(core_open(&config, &env, why, sizeof why, &r->core) == KVT_OK, "%s", why);
    core_pipe_added(r->core, PIPE, (core_peer){.uid = 1, .gid = 1, .pid = 1});
    enter(r);
}

static void rig_close(rig *r) {
    core_pipe_removed(r->core, PIPE);
    core_peer_gone(r->core, 1);
    while (run_jobs(r, 1) > 0)
        continue;
    core_close(r->core);
}

static uint64_t acquire(rig *r, uint32_t path) {
    uint8_t body[512];
    uint32_t tokens[PAGE_TOKENS];
    kvt_lease_rep rep;
    kvt_writer w = {.at = body, .room = sizeof body};
    for (uint32_t i = 0; i < PAGE_TOKENS; i++)
        tokens[i] = path * 100 + i;
    kvt_acquire_req req = {.realm = r->realm, .flags = KVT_ACQUIRE_CLAIM, .n_tokens = PAGE_TOKENS};
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, tokens, PAGE_TOKENS);
    CHECK_EQ(ask(r, KVT_OP_ACQUIRE, &w), KVT_OK);
    CHECK_EQ(kvt_wire_get_lease_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    CHECK_EQ(rep.claimed_tokens, PAGE_TOKENS);
    return rep.lease;
}

static kvt_status seal(rig *r, uint64_t lease) {
    uint8_t body[128];
    kvt_seal_rep rep;
    kvt_writer w = {.at = body, .room = sizeof body};
    kvt_seal_req req = {.lease = lease, .n_pages = 1};
    kvt_seal_page page = {.bytes = 32 << 10};
    kvt_wire_put_seal_req(&w, &req);
    kvt_wire_put_seal_page(&w, &page);
    kvt_status status = ask(r, KVT_OP_SEAL, &w);
    if (status != KVT_OK)
        return status;
    CHECK_EQ(kvt_wire_get_seal_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    return (kvt_status)rep.page_status;
}

static void release(rig *r, uint64_t lease) {
    uint8_t body[64];
    kvt_writer w = {.at = body, .room = sizeof body};
    kvt_wire_put_u32(&w, 1);
    kvt_wire_put_u64(&w, lease);
    CHECK_EQ(ask(r, KVT_OP_RELEASE, &w), KVT_OK);
}

static uint64_t refused(const rig *r) {
    core_counts n;
    core_count(r->core, &n);
    return n.seals_refused_full;
}

/* Pages until there is no room: the first goes down (which is held back), and the others stay
 * leased, the first as well if `keep`. Returns the lease of the page that finds none. */
static uint64_t fill(rig *r, int keep, kvt_status *ret_status) {
    uint64_t lease = acquire(r, 0);
    CHECK_EQ(seal(r, lease), KVT_OK);
    CHECK_EQ(r->n_queue, 1);
    CHECK_EQ(r->queue[0]->kind, CORE_JOB_DOWN);
    if (!keep)
        release(r, lease);
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
    static rig r;
    kvt_status status = KVT_OK;
    rig_open(&r);
    uint64_t lease = fill(&r, 0, &status);
    CHECK_EQ(status, KVT_EBUSY);
    CHECK(memmem(r.body, r.header.body_bytes, "1 are being copied", 18));
    CHECK(memmem(r.body, r.header.body_bytes, "Ask again", 9));
    CHECK_EQ(seal(&r, lease), KVT_EBUSY);
    CHECK_EQ(refused(&r), 0); /* nobody was turned away */
    CHECK(run_jobs(&r, 1) > 0);
    CHECK_EQ(seal(&r, lease), KVT_OK);
    rig_close(&r);
}

/* Nothing can go, copied or not: that is said at once. */
static void test_leased(void) {
    static rig r;
    kvt_status status = KVT_OK;
    rig_open(&r);
    uint64_t lease = fill(&r, 1, &status);
    CHECK_EQ(status, KVT_EFULL);
    CHECK(memmem(r.body, r.header.body_bytes, "Release leases", 14));
    CHECK_EQ(refused(&r), 1);
    run_jobs(&r, 1);
    CHECK_EQ(seal(&r, lease), KVT_EFULL);
    CHECK_EQ(refused(&r), 2);
    rig_close(&r);
}

int main(void) {
    test_on_its_way();
    test_leased();
    return 0;
}
