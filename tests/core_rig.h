/*
 * core_rig.h - a real core with a test for its surroundings: messages go straight in, answers are
 * kept for the test to look at, the clock stands until the test moves it, and jobs are held back
 * until the test ends them, with the status that it wants. So every moment between two events can
 * be seen. Nothing is copied: a frame's bytes do not matter here, what is known of it does.
 *
 *     core_config config = rig_config();     whatever the test wants otherwise
 *     rig_open(&r, &config);
 *     CHECK_EQ(rig_enter(&r, 1), KVT_OK);     a worker, on pipe 1
 *     ... rig_acquire, rig_seal, rig_run ...
 *     rig_close(&r);
 *
 * The core is audited after each message and each job.
 */
#ifndef KVT_TESTS_CORE_RIG_H
#define KVT_TESTS_CORE_RIG_H

#include "daemon/core.h"
#include "store/frames.h"
#include "tests/check.h"

enum {
    RIG_MAX_PIPES = 8,
    RIG_MAX_FRAMES = 64,
    RIG_MAX_QUEUE = 64,
    RIG_PAGE_TOKENS = 16,
    RIG_PAGE_BYTES = 32 << 10, /* of the pages of rig_enter's realm */
    RIG_STAGED_BYTES = 4 * RIG_PAGE_BYTES,
    RIG_MAX_TOKENS = 128, /* of a path of rig_tokens */
    RIG_WAIT_MS = 500,    /* promote_wait_ms of rig_config_tiers */
};

/* What is where the core calls it by name, in warnings. */
#define RIG_ARENA "the-arena"

typedef struct core_rig {
    core *core;
    uint64_t now_ms, number; /* of the last message */
    core_job *queue[RIG_MAX_QUEUE];
    uint32_t n_queue;
    uint32_t realm; /* of rig_enter */
    uint32_t n_cut, n_lines;
    uint64_t generations[RIG_MAX_FRAMES];
    char line[1024]; /* the last warning */
    /* the last answer, whoever's */
    core_ticket ticket;
    kvt_wire_header header;
    uint8_t body[4096]; /* as much of it as there is room for */
} core_rig;

/* --- around it ----------------------------------------------------------------------------------
 */

/* A small core of one tenant, one realm of one rank, and no lower tier. rig_open adds the arena. */
core_config rig_config(void);

/* The same with a host tier and a disk, each with much more room than the arena. */
core_config rig_config_tiers(void);

/* Anew, whatever was there before. */
void rig_open(core_rig *r, const core_config *config);

/* All workers go, all jobs end well. */
void rig_close(core_rig *r);

void rig_audit(const core_rig *r);
core_counts rig_counts(const core_rig *r);

/* --- jobs ---------------------------------------------------------------------------------------
 */

/* Sets of kinds: RIG_KIND(CORE_JOB_UP) | RIG_KIND(CORE_JOB_DOWN). */
#define RIG_KIND(kind) (UINT32_C(1) << (kind))
#define RIG_STAGING    (RIG_KIND(CORE_JOB_STAGE) | RIG_KIND(CORE_JOB_UNSTAGE))
#define RIG_OF_WORKERS (RIG_STAGING | RIG_KIND(CORE_JOB_SEAL))
#define RIG_ALL        UINT32_MAX

/* Ends the one at this place of the queue; each of its pages has this status. No audit. */
void rig_end(core_rig *r, uint32_t place, kvt_status status);

/* Ends those of these kinds, in the order they came in, until there are no more. Returns how many.
 */
uint32_t rig_run(core_rig *r, uint32_t kinds, kvt_status status);

/* The first of these kinds; NULL: none. */
core_job *rig_job(const core_rig *r, uint32_t kinds);
uint32_t rig_n_jobs(const core_rig *r, uint32_t kinds);

/* --- what a disk has ----------------------------------------------------------------------------
 */

/* As a scan at a start finds it: the path's page of this depth is on disk, and there alone. Those
 * in front of it first; core_found_all when that was all. */
void rig_find_on_disk(core_rig *r, uint32_t path, uint32_t depth);

/* As rig_open, with workers on pipes 1 and 2; and of each of the paths 0 .. n_paths - 1 so many
 * pages are on disk, and there alone. */
void rig_open_on_disk(core_rig *r, const core_config *config, uint32_t n_paths, uint32_t n_pages);

/* --- asking -------------------------------------------------------------------------------------
 */

/* Whoever wants to write a body: there is one place for it. */
kvt_writer rig_body(void);

/* Any message with a good header. No audit; what comes of it is not looked at. */
void rig_message(core_rig *r, uint32_t pipe, uint16_t op, const void *body, size_t n);

/* What is asked, which may be answered later: see rig_is_answered. */
void rig_send(core_rig *r, uint32_t pipe, kvt_op op, const kvt_writer *body);
int rig_is_answered(const core_rig *r, uint32_t pipe);

/* Its status; the answer must come at once, or when the workers' own jobs have ended. */
kvt_status rig_ask(core_rig *r, uint32_t pipe, kvt_op op, const kvt_writer *body);

/* A worker connects, stages, and registers a realm; each message is sent whatever became of the one
 * before. The first status that is not KVT_OK; KVT_EINTERNAL: there was no answer. */
kvt_status rig_come(core_rig *r, uint32_t pipe, const kvt_realm *realm, uint64_t staged_bytes);

/* With pages of RIG_PAGE_BYTES; sets r->realm. */
kvt_status rig_enter(core_rig *r, uint32_t pipe);

/* The first tokens of path 0, 1, 2 ...: no two paths share a page. At most RIG_MAX_TOKENS. */
const uint32_t *rig_tokens(uint32_t path);

/* Sends an ACQUIRE of n tokens of the path. */
void rig_send_acquire(core_rig *r, uint32_t pipe, uint32_t path, uint32_t n_tokens, uint32_t flags);

/* The answer to an ACQUIRE that was just given. Its lists lie in r->body. */
kvt_lease_rep rig_lease(const core_rig *r);

/* Of n tokens of the path, with a claim; must be answered at once. */
kvt_lease_rep rig_acquire(core_rig *r, uint32_t pipe, uint32_t path, uint32_t n_tokens);

/* SEAL of the path's whole pages [first, end), which is answered when its job has ended, if at all
 * there is one. */
void rig_send_seal(core_rig *r, uint32_t pipe, uint64_t lease, uint32_t first, uint32_t end);

/* The same, and its job ends; the status of the pages, or of the call. */
kvt_status rig_seal(core_rig *r, uint32_t pipe, uint64_t lease, uint32_t first, uint32_t end);

void rig_release(core_rig *r, uint32_t pipe, uint64_t lease);

#endif
