/*
 * fuzz_wire.c - hostile messages against a live core. The input is a script: a list of
 * [u8 what][u16 length][bytes]. What is sent has a good header, so that the bodies are reached; one
 * kind is sent as it stands. The core must answer or cut, and its audit must hold after each.
 */
#include "client/assert.h"
#include "daemon/core.h"
#include "store/frames.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_FRAMES = 32, MAX_QUEUE = 64 };

typedef struct rig {
    core *core;
    uint64_t now_ms, number;
    int n_cut, n_sent;
    core_job *queue[MAX_QUEUE];
    uint32_t n_queue;
    uint64_t generations[MAX_FRAMES];
} rig;

static uint64_t rig_now(void *context) {
    return ((rig *)context)->now_ms;
}

static void rig_random(void *context, void *to, size_t n) {
    (void)context;
    memset(to, 7, n);
}

/* Every reply must be a message that a client would accept. */
static void rig_send(void *context, core_ticket ticket, const void *message, size_t n) {
    kvt_wire_header header;
    const uint8_t *body;
    (void)ticket;
    KVT_ASSERT(kvt_wire_open(message, n, &header, &body) == KVT_OK);
    KVT_ASSERT(header.kind == KVT_WIRE_REPLY && header.status < KVT_N_STATUS);
    ((rig *)context)->n_sent++;
}

static void rig_submit(void *context, core_job *job) {
    rig *r = context;
    KVT_ASSERT(r->n_queue < MAX_QUEUE);
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

static size_t rig_report(void *context, const core *c, kvt_op op, uint32_t lines, char *to,
                         size_t room) {
    (void)context, (void)c, (void)op, (void)lines, (void)room;
    memcpy(to, "{}", 2);
    return 2;
}

/* Jobs succeed: the frames hold nothing that anybody reads here. */
static void run_jobs(rig *r) {
    while (r->n_queue) {
        core_job *job = r->queue[0];
        memmove(r->queue, r->queue + 1, --r->n_queue * sizeof *r->queue);
        job->status = KVT_OK;
        job->staging = job->kind == CORE_JOB_STAGE ? 1 : job->staging;
        for (uint32_t i = 0; job->kind == CORE_JOB_SEAL && i < job->n_copies; i++)
            job->copies[i].status = KVT_OK;
        if (job->kind == CORE_JOB_CHECK) /* every second one is damaged */
            job->copies[0].status = job->number & 1 ? KVT_ECORRUPT : KVT_OK;
        core_job_done(r->core, job);
    }
}

static void send_op(rig *r, uint32_t pipe, uint16_t op, const uint8_t *body, size_t n) {
    uint8_t message[4096 + KVT_WIRE_HEADER_BYTES];
    kvt_writer w;
    kvt_wire_start(&w, message, sizeof message);
    kvt_wire_put_bytes(&w, body, n);
    kvt_wire_header header = {.kind = KVT_WIRE_REQUEST,
                              .op = op,
                              .number = ++r->number,
                              .boot_id = op == KVT_OP_HELLO ? 0 : 42};
    size_t size = kvt_wire_finish(&w, header);
    KVT_ASSERT(size > 0);
    core_message(r->core, (core_ticket){.pipe = pipe, .request = 1}, message, size);
}

static void say_hello(rig *r, uint32_t pipe) {
    uint8_t body[64];
    kvt_writer w = {.at = body, .room = sizeof body};
    kvt_hello_req req = {.pid = 1, .name = {"fuzz", 4}};
    kvt_wire_put_hello_req(&w, &req);
    send_op(r, pipe, KVT_OP_HELLO, body, w.n_bytes);
}

static void say_stage_and_realm(rig *r, uint32_t pipe) {
    uint8_t body[KVT_WIRE_MAX_REALM_BYTES + 64], canonical[KVT_WIRE_MAX_REALM_BYTES];
    kvt_writer w = {.at = body, .room = sizeof body};
    kvt_stage_req stage = {.bytes = 65536, .name = {"s", 1}};
    kvt_wire_put_stage_req(&w, &stage);
    send_op(r, pipe, KVT_OP_STAGE, body, w.n_bytes);
    run_jobs(r);
    kvt_realm realm = {.model = "m"};
    kvt_geometry_init(&realm.geometry, 1, 1, 4, 16);
    size_t n;
    KVT_ASSERT(kvt_wire_realm_encode(&realm, canonical, sizeof canonical, &n) == KVT_OK);
    w = (kvt_writer){.at = body, .room = sizeof body};
    kvt_realm_req req = {.canonical = canonical, .n_bytes = (uint32_t)n};
    kvt_wire_put_realm_req(&w, &req);
    send_op(r, pipe, KVT_OP_REALM, body, w.n_bytes);
}

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
                          .arena_bytes = FRAMES_GRANULE_BYTES,
                          .max_frames = MAX_FRAMES,
                          .max_pages = 24,
                          .page_tokens = 16,
                          .max_slots = 8,
                          .max_realms = 3,
                          .max_sessions = 4,
                          .max_leases = 8,
                          .max_leases_total = 16,
                          .max_claimed_pages = 16,
                          .max_jobs = 4,
                          .grace_ms = 100,
                          .max_wait_ms = 1000};
    core_env env = {.context = r,
                    .now_ms = rig_now,
                    .random = rig_random,
                    .send = rig_send,
                    .submit = rig_submit,
                    .cut = rig_cut,
                    .watch = rig_watch,
                    .unwatch = rig_unwatch,
                    .report = rig_report};
    KVT_ASSERT(core_open(&config, &env, NULL, 0, &r->core) == KVT_OK);
    for (uint32_t pipe = 1; pipe <= 2; pipe++) {
        core_pipe_added(r->core, pipe, (core_peer){.uid = 1, .gid = 1, .pid = pipe});
        say_hello(r, pipe);
        say_stage_and_realm(r, pipe);
    }
}

static void one(rig *r, uint8_t what, const uint8_t *bytes, size_t n) {
    uint32_t pipe = 1 + (what >> 7);
    uint8_t kind = what & 0x1f;
    if (kind < KVT_N_OPS)
        send_op(r, pipe, kind, bytes, n);
    else if (kind == 0x1e)
        core_message(r->core, (core_ticket){.pipe = pipe, .request = 1}, bytes, n);
    else if (kind == 0x1d)
        run_jobs(r);
    else if (kind == 0x1c)
        core_pipe_removed(r->core, pipe);
    else if (kind == 0x1b) {
        core_pipe_added(r->core, pipe, (core_peer){.uid = 1, .gid = 1, .pid = pipe});
        say_hello(r, pipe);
        say_stage_and_realm(r, pipe);
    } else if (kind == 0x1a) {
        r->now_ms += n ? bytes[0] * 10u : 1;
        core_tick(r->core);
    } else if (kind == 0x19) {
        core_peer_gone(r->core, n ? bytes[0] % 8u : 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rig *r = calloc(1, sizeof *r);
    char why[256] = "";
    KVT_ASSERT(r);
    rig_open(r);
    for (int steps = 0; size >= 3 && steps < 64; steps++) {
        uint8_t what = data[0];
        size_t n = (size_t)data[1] | (size_t)data[2] << 8;
        data += 3;
        size -= 3;
        n = n < size ? n : size;
        n = n < 4096 ? n : 4096;
        if (r->n_queue > MAX_QUEUE / 2)
            run_jobs(r);
        one(r, what, data, n);
        data += n;
        size -= n;
        if (core_audit(r->core, why, sizeof why) != KVT_OK) {
            fprintf(stderr, "audit: %s\n", why);
            abort();
        }
    }
    run_jobs(r);
    core_close(r->core);
    free(r);
    return 0;
}
