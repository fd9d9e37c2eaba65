/*
 * fuzz_wire.c - hostile messages against a live core. The input is a script: a list of
 * [u8 what][u16 length][bytes]. What is sent has a good header, so that the bodies are reached; one
 * kind is sent as it stands. The core must answer or cut, and its audit must hold after each.
 *
 *     what  bit 7         of pipe 1, or of pipe 2
 *           bits 0 .. 5   below CONTROL: the op of a request; from there on: what else happens
 */
#include "tests/core_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Numbers that the corpus is written in: far behind the last op, so that ops can be added. */
enum {
    CONTROL = 0x38,
    PEER_GONE = 0x39,
    TICK = 0x3a,
    PIPE_ADDED = 0x3b,
    PIPE_REMOVED = 0x3c,
    JOBS_END = 0x3d,
    AS_IT_STANDS = 0x3e,
};
_Static_assert((int)KVT_N_OPS <= (int)CONTROL, "ops meet the numbers of what else happens");

/* Jobs succeed: the frames hold nothing that anybody reads here. */
static void run_jobs(core_rig *r) {
    while (r->n_queue) {
        const core_job *job = r->queue[0];
        int is_bad = job->kind == CORE_JOB_CHECK && job->number & 1; /* every second one */
        rig_end(r, 0, is_bad ? KVT_ECORRUPT : KVT_OK);
    }
}

/* Whoever comes again and again may be refused, or cut. */
static void enter(core_rig *r, uint32_t pipe) {
    kvt_realm realm = {.model = "m"};
    kvt_geometry_init(&realm.geometry, 1, 1, 4, RIG_PAGE_TOKENS);
    run_jobs(r);
    (void)rig_come(r, pipe, &realm, 65536);
}

static void open_tiny(core_rig *r) {
    core_config config = rig_config();
    config.arena_bytes = FRAMES_GRANULE_BYTES;
    config.max_frames = 32;
    config.max_pages = 24;
    config.max_slots = 8;
    config.max_realms = 3;
    config.max_sessions = 4;
    config.max_leases = 8;
    config.max_leases_total = 16;
    config.max_claimed_pages = 16;
    rig_open(r, &config);
    enter(r, 1);
    enter(r, 2);
}

static void one(core_rig *r, uint8_t what, const uint8_t *bytes, size_t n) {
    uint32_t pipe = 1 + (what >> 7);
    uint8_t kind = what & 0x3f;
    if (kind < KVT_N_OPS)
        rig_message(r, pipe, kind, bytes, n);
    else if (kind == AS_IT_STANDS)
        core_message(r->core, (core_ticket){.pipe = pipe, .request = 1}, bytes, n);
    else if (kind == JOBS_END)
        run_jobs(r);
    else if (kind == PIPE_REMOVED)
        core_pipe_removed(r->core, pipe);
    else if (kind == PIPE_ADDED)
        enter(r, pipe);
    else if (kind == TICK) {
        r->now_ms += n ? bytes[0] * 10u : 1;
        core_tick(r->core);
    } else if (kind == PEER_GONE) {
        core_peer_gone(r->core, n ? bytes[0] % 8u : 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static core_rig r;
    open_tiny(&r);
    for (int steps = 0; size >= 3 && steps < 64; steps++) {
        uint8_t what = data[0];
        size_t n = (size_t)data[1] | (size_t)data[2] << 8;
        data += 3;
        size -= 3;
        n = n < size ? n : size;
        n = n < 4096 ? n : 4096;
        if (r.n_queue > RIG_MAX_QUEUE / 2)
            run_jobs(&r);
        one(&r, what, data, n);
        data += n;
        size -= n;
        rig_audit(&r);
    }
    run_jobs(&r);
    core_close(r.core);
    return 0;
}
