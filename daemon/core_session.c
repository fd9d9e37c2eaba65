/*
 * core_session.c - pipes and sessions: who is there, who is back, who is gone.
 *
 *      hello            pipe closed             hello with the token
 *   ----------> LIVE ---------------> ORPHAN ------------------------> LIVE
 *                 |                     |  process gone, or grace over
 *                 | goodbye, process    v
 *                 '-----------------> ENDING --> FREE      (when its last job is back)
 *
 * A closed connection is not a dead process: its worker may still be reading mapped frames, so an
 * orphan keeps its leases until the process is known to be gone or the grace time is over.
 */
#include "daemon/core_state.h"

#include <stdio.h>
#include <string.h>

/* --- pipes: open addressing; removal shifts the followers back, so there are no tombstones ------
 */

static uint32_t pipe_home(const core *c, uint32_t pipe) {
    return (pipe * UINT32_C(2654435769)) & c->pipes_mask;
}

pipe_entry *pipe_find(core *c, uint32_t pipe) {
    for (uint32_t i = pipe_home(c, pipe); c->pipes[i].pipe; i = (i + 1) & c->pipes_mask)
        if (c->pipes[i].pipe == pipe)
            return &c->pipes[i];
    return NULL;
}

void core_pipe_added(core *c, uint32_t pipe, core_peer peer) {
    if (pipe == 0 || pipe_find(c, pipe))
        return;
    /* At most half full, so that probes stay short; more connections than that are not served. */
    if (c->n_pipes >= (c->pipes_mask + 1) / 2) {
        c->env.cut(c->env.context, pipe);
        return;
    }
    uint32_t i = pipe_home(c, pipe);
    while (c->pipes[i].pipe)
        i = (i + 1) & c->pipes_mask;
    c->pipes[i] = (pipe_entry){.pipe = pipe, .peer = peer};
    c->n_pipes++;
}

static void pipe_remove(core *c, pipe_entry *entry) {
    uint32_t hole = (uint32_t)(entry - c->pipes);
    c->pipes[hole].pipe = 0;
    c->n_pipes--;
    for (uint32_t i = (hole + 1) & c->pipes_mask; c->pipes[i].pipe; i = (i + 1) & c->pipes_mask) {
        uint32_t home = pipe_home(c, c->pipes[i].pipe);
        /* It may move into the hole if its home does not lie between the hole and where it is. */
        if (((i - home) & c->pipes_mask) >= ((i - hole) & c->pipes_mask)) {
            c->pipes[hole] = c->pipes[i];
            c->pipes[i].pipe = 0;
            hole = i;
        }
    }
}

void core_pipe_removed(core *c, uint32_t pipe) {
    pipe_entry *entry = pipe_find(c, pipe);
    if (!entry)
        return;
    uint32_t slot = entry->session;
    pipe_remove(c, entry);
    if (!slot)
        return;
    session *s = &c->sessions[slot - 1];
    waiters_drop(c, s);
    s->state = SESSION_ORPHAN;
    s->pipe = 0;
    s->orphaned_ms = c->env.now_ms(c->env.context);
    core_go_on(c);
}

/* --- sessions ----------------------------------------------------------------------------------
 */

static session *session_of_number(core *c, uint32_t number) {
    for (uint32_t i = 0; i < c->config.max_sessions; i++)
        if (c->sessions[i].state != SESSION_FREE && c->sessions[i].number == number)
            return &c->sessions[i];
    return NULL;
}

int session_number_fresh(session *s, uint64_t number) {
    if (number == 0)
        return 0;
    if (number > s->newest) {
        uint64_t ahead = number - s->newest;
        s->seen = ahead >= 64 ? 0 : s->seen << ahead;
        s->seen |= 1;
        s->newest = number;
        return 1;
    }
    uint64_t behind = s->newest - number;
    if (behind >= 64 || (s->seen >> behind & 1))
        return 0;
    s->seen |= UINT64_C(1) << behind;
    return 1;
}

int core_has_uid(const core *c, uint32_t uid) {
    for (uint32_t i = 0; i < c->config.n_uids; i++)
        if (c->uids[i] == uid)
            return 1;
    return 0;
}

int core_has_gid(const core *c, uint32_t gid) {
    for (uint32_t i = 0; i < c->config.n_gids; i++)
        if (c->gids[i] == gid)
            return 1;
    return 0;
}

int core_has_pipe(core *c, uint32_t pipe) {
    return pipe_find(c, pipe) != NULL;
}

uint32_t core_of_peer(core *const *cores, uint32_t n, core_peer peer) {
    for (uint32_t i = 0; i < n; i++)
        if (core_has_uid(cores[i], peer.uid))
            return i;
    for (uint32_t i = 0; i < n; i++)
        if (core_has_gid(cores[i], peer.gid))
            return i;
    return 0;
}

uint32_t core_of_pipe(core *const *cores, uint32_t n, uint32_t pipe) {
    for (uint32_t i = 1; i < n; i++)
        if (core_has_pipe(cores[i], pipe))
            return i;
    return 0;
}

/* The session that a returning worker means: token, uid and (where both are known) pid agree. */
static session *session_of_token(core *c, const uint8_t *token, core_peer peer) {
    static const uint8_t none[KVT_WIRE_TOKEN_BYTES];
    if (memcmp(token, none, sizeof none) == 0)
        return NULL;
    for (uint32_t i = 0; i < c->config.max_sessions; i++) {
        session *s = &c->sessions[i];
        if ((s->state == SESSION_LIVE || s->state == SESSION_ORPHAN) &&
            memcmp(s->token, token, sizeof s->token) == 0 && s->peer.uid == peer.uid &&
            (s->peer.pid == peer.pid || !s->peer.pid || !peer.pid))
            return s;
    }
    return NULL;
}

static session *session_new(core *c, core_peer peer, const kvt_wire_str *name) {
    session *s = NULL;
    for (uint32_t i = 0; i < c->config.max_sessions && !s; i++)
        if (c->sessions[i].state == SESSION_FREE)
            s = &c->sessions[i];
    if (!s)
        return NULL;
    memset(s, 0, sizeof *s);
    s->state = SESSION_LIVE;
    s->number = ++c->next_session_number;
    s->peer = peer;
    s->staging = -1;
    /* The name goes into reports and logs: printable ASCII only. */
    for (size_t i = 0; i < name->n_bytes && i + 1 < sizeof s->name; i++)
        s->name[i] = name->at[i] >= ' ' && name->at[i] <= '~' ? name->at[i] : '?';
    c->env.random(c->env.context, s->token, sizeof s->token);
    c->env.watch(c->env.context, s->number, peer);
    c->n_sessions++;
    c->counts.sessions_opened++;
    return s;
}

static void reply_hello(core *c, request *rq, const session *s, int resumed) {
    kvt_hello_rep rep = {
        .session = s->number,
        .resumed = (uint8_t)resumed,
        .max_bytes = KVT_WIRE_MAX_BYTES,
        .max_tokens = KVT_MAX_REQUEST_TOKENS,
        .max_leases = c->config.max_leases,
        .max_claimed_pages = c->config.max_claimed_pages,
        .page_tokens = c->config.page_tokens,
        .grace_ms = c->config.grace_ms,
        .n_gpus = c->arenas[0].gpu[0] ? c->config.n_arenas : 0,
        .staging_dir = {c->staging_dir, (uint16_t)strlen(c->staging_dir)},
        .tenant = {c->tenant, (uint16_t)strlen(c->tenant)},
    };
    memcpy(rep.token, s->token, sizeof rep.token);
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_hello_rep(&w, &rep);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}

void serve_hello(core *c, request *rq, pipe_entry *pipe) {
    kvt_hello_req req;
    if (kvt_wire_get_hello_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    if (!core_has_uid(c, pipe->peer.uid) && !core_has_gid(c, pipe->peer.gid)) {
        c->counts.uids_refused++;
        refuse(c, rq, KVT_EDENIED, "uid %u belongs to no tenant; add it to \"uids\"",
               pipe->peer.uid);
        return;
    }
    if (pipe->session) {
        refuse(c, rq, KVT_EEXIST, "this connection has said hello already");
        return;
    }
    session *s = session_of_token(c, req.token, pipe->peer);
    int resumed = s != NULL;
    if (s && s->state == SESSION_LIVE) {
        /* Back before the loss of the old pipe was noticed: the old one is worth nothing now. */
        pipe_entry *old = pipe_find(c, s->pipe);
        old->session = NONE;
        c->env.cut(c->env.context, s->pipe);
        waiters_drop(c, s);
    }
    if (!s && c->draining) {
        refuse(c, rq, KVT_EBUSY, "the daemon is stopping");
        return;
    }
    if (!s)
        s = session_new(c, pipe->peer, &req.name);
    if (!s) {
        refuse(c, rq, KVT_ELIMIT, "%u sessions are open, the most allowed; raise max_sessions",
               c->n_sessions);
        return;
    }
    s->state = SESSION_LIVE;
    s->pipe = pipe->pipe;
    pipe->session = session_slot(c, s) + 1;
    c->counts.sessions_resumed += (uint64_t)resumed;
    reply_hello(c, rq, s, resumed);
}

/* Frees the slot once nothing of the session is under way. */
static void session_settle(core *c, session *s) {
    if (s->state == SESSION_ENDING && s->n_jobs == 0) {
        s->state = SESSION_FREE;
        c->n_sessions--;
    }
}

static void session_unstage(core *c, session *s, int staging) {
    KVT_ASSERT(!s->unstaging_busy);
    s->unstage_job = (core_job){.kind = CORE_JOB_UNSTAGE,
                                .lane = s->number,
                                .staging = staging,
                                .session = session_slot(c, s) + 1};
    s->unstaging_busy = 1;
    s->n_jobs++;
    c->n_jobs++;
    c->env.submit(c->env.context, &s->unstage_job);
}

void session_end(core *c, session *s) {
    KVT_ASSERT(s->state == SESSION_LIVE || s->state == SESSION_ORPHAN);
    waiters_drop(c, s);
    while (s->first_lease)
        lease_free(c, &c->leases[s->first_lease - 1]);
    c->env.unwatch(c->env.context, s->number);
    pipe_entry *pipe = s->pipe ? pipe_find(c, s->pipe) : NULL;
    if (pipe)
        pipe->session = NONE;
    s->pipe = 0;
    s->state = SESSION_ENDING;
    /* A staging file that is being opened, or an older one being closed, is seen to when that job
     * comes back (stage_job_done). */
    if (s->staging >= 0 && !s->unstaging_busy) {
        session_unstage(c, s, s->staging);
        s->staging = -1;
    }
    c->counts.sessions_ended++;
    session_settle(c, s);
}

int session_is_busy(core *c, request *rq) {
    const session *s = rq->session;
    uint32_t n = s->n_jobs + s->n_waits;
    if (c->config.max_requests == 0 || n < c->config.max_requests)
        return 0;
    refuse(c, rq, KVT_EBUSY, "%u requests of this session are under way, the most allowed", n);
    return 1;
}

void session_job_done(core *c, session *s) {
    KVT_ASSERT(s->n_jobs > 0);
    s->n_jobs--;
    session_settle(c, s);
}

void core_peer_gone(core *c, uint32_t number) {
    session *s = session_of_number(c, number);
    if (!s || s->state == SESSION_ENDING)
        return;
    c->counts.sessions_died++;
    session_end(c, s);
    core_go_on(c);
}

uint64_t sessions_tick(core *c, uint64_t now_ms) {
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < c->config.max_sessions; i++) {
        session *s = &c->sessions[i];
        if (s->state != SESSION_ORPHAN)
            continue;
        uint64_t end_ms = s->orphaned_ms + c->config.grace_ms;
        if (now_ms >= end_ms) {
            c->counts.sessions_expired++;
            session_end(c, s);
        } else if (end_ms < due) {
            due = end_ms;
        }
    }
    return due;
}

void serve_goodbye(core *c, request *rq) {
    kvt_writer w;
    reply_start(c, &w);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
    session_end(c, rq->session);
}

/* --- staging files -----------------------------------------------------------------------------
 */

void serve_stage(core *c, request *rq) {
    kvt_stage_req req;
    session *s = rq->session;
    if (kvt_wire_get_stage_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    if (s->staging_busy || s->unstaging_busy) {
        refuse(c, rq, KVT_EBUSY, "an earlier staging file is still being opened or closed");
        return;
    }
    core_job *job = &s->stage_job;
    *job = (core_job){.kind = CORE_JOB_STAGE,
                      .lane = s->number,
                      .uid = s->peer.uid,
                      .staging_bytes = req.bytes,
                      .staging = -1,
                      .ticket = rq->ticket,
                      .number = rq->header.number,
                      .session = session_slot(c, s) + 1};
    snprintf(job->name, sizeof job->name, "%.*s", (int)req.name.n_bytes, req.name.at);
    s->staging_busy = 1;
    s->n_jobs++;
    c->n_jobs++;
    c->env.submit(c->env.context, job);
}

/* A worker's memory on the GPU, and what it is told of the GPU before the daemon ends. */
static void refuse_area(core *c, const core_job *job) {
    if (job->device_failure)
        reply_error(c, job->ticket, KVT_OP_STAGE, job->number, KVT_EIO,
                    "the daemon's GPU failed (%s): the daemon ends, and has to be started anew",
                    job->device_failure);
    else
        reply_error(
            c, job->ticket, KVT_OP_STAGE, job->number, job->status,
            "the daemon cannot open the staging area of %s in the GPU's memory, %llu bytes: "
            "it must be on the GPU of the arena, of a process that shares its devices and "
            "process numbers with the daemon (one container, or --ipc=host --pid=host)",
            job->name, (unsigned long long)job->staging_bytes);
}

static void reply_stage(core *c, const core_job *job) {
    if (job->status != KVT_OK && job->area_refused) {
        refuse_area(c, job);
        return;
    }
    if (job->status != KVT_OK) {
        reply_error(c, job->ticket, KVT_OP_STAGE, job->number, job->status,
                    "staging file %s of %llu bytes in %s was not accepted: it must be a regular "
                    "file of that size owned by uid %u",
                    job->name, (unsigned long long)job->staging_bytes, c->staging_dir, job->uid);
        return;
    }
    kvt_writer w;
    reply_start(c, &w);
    reply_finish(c, job->ticket, KVT_OP_STAGE, job->number, &w);
}

void stage_job_done(core *c, core_job *job) {
    session *s = &c->sessions[job->session - 1];
    if (job->kind == CORE_JOB_STAGE) {
        int old = s->staging;
        s->staging_busy = 0;
        if (job->status == KVT_OK) {
            s->staging = job->staging;
            s->staging_bytes = job->staging_bytes;
            /* Jobs of a lane run in order: seals that read the old file are done before it closes.
             */
            if (old >= 0)
                session_unstage(c, s, old);
        }
        if (s->state != SESSION_ENDING)
            reply_stage(c, job);
    } else {
        s->unstaging_busy = 0;
    }
    if (s->state == SESSION_ENDING && s->staging >= 0 && !s->unstaging_busy) {
        session_unstage(c, s, s->staging);
        s->staging = -1;
    }
    session_job_done(c, s);
}
