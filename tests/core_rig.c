#include "tests/core_rig.h"

enum { BOOT_ID = 42, NOW_MS = 1000 };

/* --- the core's surroundings --------------------------------------------------------------------
 */

static uint64_t env_now(void *context) {
    return ((core_rig *)context)->now_ms;
}

/* One token for all sessions, so that a script can name it: the process tells them apart. */
static void env_random(void *context, void *to, size_t n) {
    (void)context;
    memset(to, 7, n);
}

/* Every answer must be a message that a client would accept. */
static void env_send(void *context, core_ticket ticket, const void *message, size_t n) {
    core_rig *r = context;
    const uint8_t *body;
    CHECK_EQ(kvt_wire_open(message, n, &r->header, &body), KVT_OK);
    CHECK_EQ(r->header.kind, KVT_WIRE_REPLY);
    CHECK(r->header.status < KVT_N_STATUS);
    n = r->header.body_bytes;
    memcpy(r->body, body, n < sizeof r->body ? n : sizeof r->body);
    r->ticket = ticket;
}

static void env_submit(void *context, core_job *job) {
    core_rig *r = context;
    CHECK(r->n_queue < RIG_MAX_QUEUE);
    r->queue[r->n_queue++] = job;
}

static void env_cut(void *context, uint32_t pipe) {
    (void)pipe;
    ((core_rig *)context)->n_cut++;
}

static void env_watch(void *context, uint32_t session, core_peer peer) {
    (void)context, (void)session, (void)peer;
}

static void env_unwatch(void *context, uint32_t session) {
    (void)context, (void)session;
}

static void env_warn(void *context, const char *line) {
    core_rig *r = context;
    r->n_lines++;
    snprintf(r->line, sizeof r->line, "%s", line);
}

static size_t env_report(void *context, const core *c, kvt_op op, uint32_t lines, char *to,
                         size_t room) {
    (void)context, (void)c, (void)op, (void)lines, (void)room;
    memcpy(to, "{}", 2);
    return 2;
}

/* --- around it ----------------------------------------------------------------------------------
 */

core_config rig_config(void) {
    static const uint32_t uids[] = {1};
    return (core_config){.boot_id = BOOT_ID,
                         .tenant = "t",
                         .uids = uids,
                         .n_uids = 1,
                         .staging_dir = "s",
                         .arena_bytes = 32 * FRAMES_GRANULE_BYTES,
                         .max_frames = RIG_MAX_FRAMES,
                         .max_pages = 64,
                         .page_tokens = RIG_PAGE_TOKENS,
                         .max_slots = 1,
                         .max_realms = 1,
                         .max_sessions = RIG_MAX_PIPES,
                         .max_leases = 32,
                         .max_leases_total = 64,
                         .max_claimed_pages = 32,
                         .max_jobs = 4,
                         .grace_ms = 100,
                         .max_wait_ms = 1000};
}

core_config rig_config_tiers(void) {
    core_config config = rig_config();
    config.host_bytes = 64 * FRAMES_GRANULE_BYTES;
    config.max_host_frames = 512;
    config.disk_bytes = 1 << 30;
    config.promote_wait_ms = RIG_WAIT_MS;
    return config;
}

void rig_open(core_rig *r, const core_config *config) {
    const core_arena arena = {RIG_ARENA, "", r->generations};
    core_config g = *config;
    core_env env = {.context = r,
                    .now_ms = env_now,
                    .random = env_random,
                    .send = env_send,
                    .submit = env_submit,
                    .cut = env_cut,
                    .watch = env_watch,
                    .unwatch = env_unwatch,
                    .warn = env_warn,
                    .report = env_report};
    char why[256] = "";
    memset(r, 0, sizeof *r);
    r->now_ms = NOW_MS;
    g.arenas = &arena;
    g.n_arenas = 1;
    CHECK(g.max_frames <= RIG_MAX_FRAMES);
    CHECK_MSG(core_open(&g, &env, why, sizeof why, &r->core) == KVT_OK, "%s", why);
}

void rig_close(core_rig *r) {
    for (uint32_t pipe = 1; pipe <= RIG_MAX_PIPES; pipe++) {
        core_pipe_removed(r->core, pipe);
        core_peer_gone(r->core, pipe); /* sessions are numbered as they came */
    }
    rig_run(r, RIG_ALL, KVT_OK);
    core_close(r->core);
}

void rig_audit(const core_rig *r) {
    char why[256] = "";
    CHECK_MSG(core_audit(r->core, why, sizeof why) == KVT_OK, "%s", why);
}

core_counts rig_counts(const core_rig *r) {
    core_counts n;
    core_count(r->core, &n);
    return n;
}

/* --- jobs ---------------------------------------------------------------------------------------
 */

void rig_end(core_rig *r, uint32_t place, kvt_status status) {
    CHECK(place < r->n_queue);
    core_job *job = r->queue[place];
    memmove(r->queue + place, r->queue + place + 1, (--r->n_queue - place) * sizeof *r->queue);
    job->status = KVT_OK;
    job->staging = job->kind == CORE_JOB_STAGE ? 1 : job->staging;
    for (uint32_t i = 0; i < job->n_copies; i++)
        job->copies[i].status = status;
    core_job_done(r->core, job);
}

uint32_t rig_run(core_rig *r, uint32_t kinds, kvt_status status) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_queue;) {
        if (!(kinds & RIG_KIND(r->queue[i]->kind))) {
            i++;
            continue;
        }
        rig_end(r, i, status);
        rig_audit(r);
        n++;
    }
    return n;
}

core_job *rig_job(const core_rig *r, uint32_t kinds) {
    for (uint32_t i = 0; i < r->n_queue; i++)
        if (kinds & RIG_KIND(r->queue[i]->kind))
            return r->queue[i];
    return NULL;
}

uint32_t rig_n_jobs(const core_rig *r, uint32_t kinds) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_queue; i++)
        n += (kinds & RIG_KIND(r->queue[i]->kind)) != 0;
    return n;
}

/* --- asking -------------------------------------------------------------------------------------
 */

kvt_writer rig_body(void) {
    static uint8_t room[KVT_WIRE_MAX_REALM_BYTES + 64];
    return (kvt_writer){.at = room, .room = sizeof room};
}

void rig_message(core_rig *r, uint32_t pipe, uint16_t op, const void *body, size_t n) {
    uint8_t message[8192];
    kvt_writer w;
    kvt_wire_start(&w, message, sizeof message);
    kvt_wire_put_bytes(&w, body, n);
    kvt_wire_header header = {.kind = KVT_WIRE_REQUEST,
                              .op = op,
                              .number = ++r->number,
                              .boot_id = op == KVT_OP_HELLO ? 0 : BOOT_ID};
    n = kvt_wire_finish(&w, header);
    CHECK(n > 0);
    core_message(r->core, (core_ticket){.pipe = pipe, .request = 1}, message, n);
}

void rig_send(core_rig *r, uint32_t pipe, kvt_op op, const kvt_writer *body) {
    CHECK(!body->failed && body->n_bytes <= body->room);
    rig_message(r, pipe, (uint16_t)op, body->at, body->n_bytes);
    rig_audit(r);
}

int rig_is_answered(const core_rig *r, uint32_t pipe) {
    return r->header.number == r->number && r->ticket.pipe == pipe;
}

kvt_status rig_ask(core_rig *r, uint32_t pipe, kvt_op op, const kvt_writer *body) {
    uint32_t n_cut = r->n_cut;
    rig_send(r, pipe, op, body);
    CHECK_MSG(r->n_cut == n_cut, "pipe %u was cut", pipe);
    rig_run(r, RIG_OF_WORKERS, KVT_OK);
    CHECK(rig_is_answered(r, pipe));
    CHECK(r->header.body_bytes <= sizeof r->body);
    return (kvt_status)r->header.status;
}

/* As rig_send, of somebody who may be refused, or cut. */
static kvt_status say(core_rig *r, uint32_t pipe, kvt_op op, const kvt_writer *body) {
    rig_send(r, pipe, op, body);
    rig_run(r, RIG_STAGING, KVT_OK);
    return rig_is_answered(r, pipe) ? (kvt_status)r->header.status : KVT_EINTERNAL;
}

kvt_status rig_come(core_rig *r, uint32_t pipe, const kvt_realm *realm, uint64_t staged_bytes) {
    uint8_t canonical[KVT_WIRE_MAX_REALM_BYTES];
    kvt_status of[3];
    size_t n;
    core_pipe_added(r->core, pipe, (core_peer){.uid = 1, .gid = 1, .pid = pipe});
    kvt_writer w = rig_body();
    kvt_hello_req hello = {.pid = pipe, .name = {"test", 4}};
    kvt_wire_put_hello_req(&w, &hello);
    of[0] = say(r, pipe, KVT_OP_HELLO, &w);
    w = rig_body();
    kvt_stage_req stage = {.bytes = staged_bytes, .name = {"s", 1}};
    kvt_wire_put_stage_req(&w, &stage);
    of[1] = say(r, pipe, KVT_OP_STAGE, &w);
    CHECK_EQ(kvt_wire_realm_encode(realm, canonical, sizeof canonical, &n), KVT_OK);
    w = rig_body();
    kvt_realm_req req = {.canonical = canonical, .n_bytes = (uint32_t)n};
    kvt_wire_put_realm_req(&w, &req);
    of[2] = say(r, pipe, KVT_OP_REALM, &w);
    return of[0] != KVT_OK ? of[0] : of[1] != KVT_OK ? of[1] : of[2];
}

kvt_status rig_enter(core_rig *r, uint32_t pipe) {
    kvt_realm realm = {.model = "m"};
    kvt_geometry_init(&realm.geometry, 2, 4, 64, RIG_PAGE_TOKENS);
    kvt_status status = rig_come(r, pipe, &realm, RIG_STAGED_BYTES);
    if (status == KVT_OK)
        r->realm = kvt_wire_get_u32(r->body, 0);
    return status;
}

const uint32_t *rig_tokens(uint32_t path) {
    static uint32_t tokens[RIG_MAX_TOKENS];
    for (uint32_t i = 0; i < RIG_MAX_TOKENS; i++)
        tokens[i] = path * 1000 + i;
    return tokens;
}

void rig_send_acquire(core_rig *r, uint32_t pipe, uint32_t path, uint32_t n_tokens,
                      uint32_t flags) {
    kvt_writer w = rig_body();
    kvt_acquire_req req = {.realm = r->realm, .flags = flags, .n_tokens = n_tokens};
    CHECK(n_tokens <= RIG_MAX_TOKENS);
    kvt_wire_put_acquire_req(&w, &req);
    kvt_wire_put_tokens(&w, rig_tokens(path), n_tokens);
    rig_send(r, pipe, KVT_OP_ACQUIRE, &w);
}

kvt_lease_rep rig_lease(const core_rig *r) {
    kvt_lease_rep rep;
    CHECK_EQ(r->header.op, KVT_OP_ACQUIRE);
    CHECK_EQ(r->header.status, KVT_OK);
    CHECK_EQ(kvt_wire_get_lease_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    return rep;
}

kvt_lease_rep rig_acquire(core_rig *r, uint32_t pipe, uint32_t path, uint32_t n_tokens) {
    rig_send_acquire(r, pipe, path, n_tokens, KVT_ACQUIRE_CLAIM);
    CHECK(rig_is_answered(r, pipe));
    return rig_lease(r);
}

static kvt_writer seal_body(uint64_t lease, uint32_t first, uint32_t end) {
    kvt_writer w = rig_body();
    kvt_seal_req req = {.lease = lease, .n_pages = end - first};
    kvt_wire_put_seal_req(&w, &req);
    for (uint32_t i = first; i < end; i++) {
        kvt_seal_page page = {
            .page = i, .bytes = RIG_PAGE_BYTES, .offset = (uint64_t)(i - first) * RIG_PAGE_BYTES};
        kvt_wire_put_seal_page(&w, &page);
    }
    return w;
}

void rig_send_seal(core_rig *r, uint32_t pipe, uint64_t lease, uint32_t first, uint32_t end) {
    kvt_writer w = seal_body(lease, first, end);
    rig_send(r, pipe, KVT_OP_SEAL, &w);
}

kvt_status rig_seal(core_rig *r, uint32_t pipe, uint64_t lease, uint32_t first, uint32_t end) {
    kvt_seal_rep rep;
    kvt_writer w = seal_body(lease, first, end);
    kvt_status status = rig_ask(r, pipe, KVT_OP_SEAL, &w);
    if (status != KVT_OK)
        return status;
    CHECK_EQ(kvt_wire_get_seal_rep(r->body, r->header.body_bytes, &rep), KVT_OK);
    return (kvt_status)rep.page_status;
}

void rig_release(core_rig *r, uint32_t pipe, uint64_t lease) {
    kvt_writer w = rig_body();
    kvt_wire_put_u32(&w, 1);
    kvt_wire_put_u64(&w, lease);
    CHECK_EQ(rig_ask(r, pipe, KVT_OP_RELEASE, &w), KVT_OK);
}

/* --- what a disk has ----------------------------------------------------------------------------
 */

void rig_find_on_disk(core_rig *r, uint32_t path, uint32_t depth) {
    core_record record = {.serial = path + 1,
                          .parent_serial = depth ? path + 1 : 0,
                          .depth = depth,
                          .stored = RIG_PAGE_BYTES,
                          .n_tokens = RIG_PAGE_TOKENS};
    const uint32_t *tokens = rig_tokens(path);
    tier_key parent = tier_key_root("m", 1);
    for (uint32_t i = 0; i <= depth; i++) {
        record.parent = i ? record.key : parent;
        record.key =
            tier_key_child(&record.parent, 0, tokens + i * RIG_PAGE_TOKENS, RIG_PAGE_TOKENS);
    }
    memcpy(record.tokens, tokens + depth * RIG_PAGE_TOKENS, RIG_PAGE_TOKENS * sizeof *tokens);
    core_found found = {.realm = r->realm,
                        .record = &record,
                        .bytes = RIG_PAGE_BYTES,
                        .rows = RIG_PAGE_TOKENS,
                        .disk_bytes = RIG_PAGE_BYTES};
    core_found_page(r->core, &found);
    rig_audit(r);
}

void rig_open_on_disk(core_rig *r, const core_config *config, uint32_t n_paths, uint32_t n_pages) {
    rig_open(r, config);
    for (uint32_t pipe = 1; pipe <= 2; pipe++)
        CHECK_EQ(rig_enter(r, pipe), KVT_OK);
    for (uint32_t depth = 0; depth < n_pages; depth++)
        for (uint32_t path = 0; path < n_paths; path++)
            rig_find_on_disk(r, path, depth);
    core_found_all(r->core);
    CHECK_EQ(rig_counts(r).pages_disk, n_paths * n_pages);
    CHECK_EQ(rig_counts(r).pages_device, 0);
}
