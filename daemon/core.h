/*
 * core.h - the daemon's state machine: the one place where prefix and page meet.
 *
 *        messages, pipes, completions, ticks                 replies, jobs
 *   ---------------------------------------------> core ------------------------>
 *                  (core_message ...)                |        (core_env)
 *                                                    v
 *              sessions - leases - realms - radix tree - page table - frames
 *
 * It reads no clock, does no I/O, starts no thread and knows no socket: what it needs from outside
 * comes through core_env. So the same core runs in production and, seeded, in the simulator, where
 * a run is a function of its seed. One thread owns it; none of these calls may run at the same time
 * as another on the same core. Everything is sized by core_open; nothing is allocated after that.
 */
#ifndef KVT_DAEMON_CORE_H
#define KVT_DAEMON_CORE_H

#include "client/kvtrunk.h"
#include "client/wire.h"
#include "daemon/policy.h"
#include "kernels/device.h"
#include "kernels/page.h"
#include "radix/radix.h"
#include "store/tier_key.h"

typedef struct core core;

/* --- what it needs from outside ------------------------------------------------------------------
 */

/* Where a reply goes: given with a message, handed back with its reply. Opaque to the core. */
typedef struct core_ticket {
    uint32_t pipe;
    uint32_t request;
} core_ticket;

/* Who is at the other end of a pipe, as the kernel says. pid 0: not known. */
typedef struct core_peer {
    uint32_t uid;
    uint32_t gid;
    uint32_t pid;
} core_peer;

typedef enum core_job_kind {
    CORE_JOB_STAGE = 1, /* open a worker's staging file */
    CORE_JOB_UNSTAGE,   /* close it */
    CORE_JOB_SEAL,      /* copy pages from staging into frames, and check them */
    CORE_JOB_CHECK,     /* check a page where it stands in the arena */
    CORE_JOB_DOWN,      /* copy pages from the arena into host frames */
    CORE_JOB_UP,        /* copy pages from host frames into the arena, and check them */
    CORE_JOB_COOL,      /* put pages into fewer bits, in the arena or in the host tier */
    CORE_JOB_WRITE,     /* host frames to records on disk */
    CORE_JOB_READ,      /* records on disk to host frames */
    CORE_JOB_ERASE,     /* drop records on disk */
    CORE_JOB_VERIFY,    /* read and check all records on disk */
} core_job_kind;

/* One page of a job. */
typedef struct core_copy {
    uint64_t from_offset; /* SEAL: in the staging file; CHECK, DOWN: in the arena's data; UP, WRITE:
                             in the host arena; COOL: in either, as in_host says */
    uint64_t to_offset;   /* SEAL, UP: in the arena's data; DOWN, READ: in the host arena; COOL: in
                             the same as from_offset */
    uint32_t bytes;
    uint32_t rows;               /* that the page must say it has */
    const kvt_page_shape *shape; /* SEAL, CHECK, UP; COOL: [n_rungs], of the ladder */
    uint32_t to_bytes;           /* COOL: that it must have under the rung behind this one: */
    uint8_t rung; /* COOL: which its codecs are of; KVT_EGEOMETRY: this is the right one */
    uint8_t n_rungs, is_first, in_host; /* COOL; is_first: of a path */
    kvt_status status;  /* out: KVT_OK, KVT_EIO, KVT_ECORRUPT, KVT_EGEOMETRY, KVT_EVERSION; of the
                           disk: KVT_ENOENT, KVT_EFULL, KVT_EEXIST, KVT_EORDER */
    uint32_t saturated; /* SEAL: out: values that a scale of the engine's own clamped */
    /* the core's own */
    uint32_t frame;
    uint64_t page;
    radix_node node;
    uint32_t slot;
} core_copy;

/* What a page is called on disk (store/tier_key.h), beside its place in CORE_JOB_WRITE, READ and
 * ERASE. A serial of 0 is given by the disk; that of the parent is known when the child is written,
 * since a parent is written in an earlier job or earlier in this one. */
typedef struct core_record {
    tier_key key, parent;
    uint64_t serial;        /* WRITE: out */
    uint64_t parent_serial; /* 0: depth 0, or the parent is `parent_in_job` */
    uint32_t parent_in_job; /* index + 1 of the parent in this job, 0: not in it */
    uint32_t depth;
    uint32_t stored; /* bytes in the file. WRITE: out */
    uint16_t slot, n_tokens;
    uint32_t tokens[128];
} core_record;

/*
 * Work that takes time. It belongs to the core's pool; env.submit takes it, somebody runs it (a
 * worker thread through job_run, or the simulator), fills in the outs and hands the same pointer to
 * core_job_done. Jobs of one lane must be run and handed back in the order of their submission.
 */
typedef struct core_job {
    core_job_kind kind;
    uint32_t lane;     /* the session's number */
    kvt_status status; /* out: of the whole job */
    /* CORE_JOB_STAGE */
    char name[KVT_WIRE_MAX_PATH + 1];
    uint32_t uid;           /* that must own the file */
    uint64_t staging_bytes; /* that it must have */
    int staging;            /* STAGE: out, a handle >= 0; SEAL, UNSTAGE: in */
    int area_refused;       /* STAGE: out: the file is good, its area in the device's memory not */
    const char *device_failure; /* STAGE: out: what is wrong with the device for good; static */
    /* all others */
    uint32_t n_copies;
    core_copy *copies;
    uint64_t checked, corrupt; /* VERIFY: out */
    /* WRITE, READ, ERASE */
    core_record *records; /* [n_copies] */
    uint32_t realm;       /* number; all records of a job are of one realm; SEAL: the core's own */
    int quiet;            /* READ: nobody has asked for these pages, the core's own */
    int raw16;            /* WRITE: pages of 16-bit elements, which the disk may store smaller */
    const uint8_t *realm_bytes;
    uint32_t n_realm_bytes; /* canonical; valid while it is submitted */
    void *owner;            /* whoever submitted it for the core; the core leaves it alone */
    /* the core's own */
    core_ticket ticket;
    uint64_t number;
    uint64_t lease;
    uint32_t session;
    uint32_t rank;
    uint32_t first_page;
    kvt_status refused; /* SEAL: why the pages behind these were not taken */
    struct core_job *next;
} core_job;

/* --- events: the pages that can be had, see core_event.c ----------------------------------------
 */

typedef enum core_event_kind {
    CORE_EVENT_ADDED = 1, /* as KVT_EVENT_... on the wire */
    CORE_EVENT_REMOVED,
    CORE_EVENT_MOVED, /* to another tier: the uppermost that has it */
} core_event_kind;

typedef struct core_event {
    core_event_kind kind;
    uint64_t sequence; /* of events: 1, 2, 3 ... */
    uint64_t page;     /* its number; never 0, never used twice within a boot */
    uint32_t place;    /* 1 .. max_pages: one page at a time is there */
    uint32_t tier;     /* not of REMOVED: 0 device, 1 host, 2 disk */
    /* ADDED alone */
    uint64_t parent; /* page; 0: none is in front of it */
    uint32_t realm;
    uint64_t n_bytes;
    uint32_t n_tokens;
    const uint32_t *tokens; /* valid during the call */
} core_event;

typedef struct core_env {
    void *context;

    /* A clock that never goes back. */
    uint64_t (*now_ms)(void *context);

    /* n bytes that nobody can guess (session tokens). */
    void (*random)(void *context, void *to, size_t n);

    /* Sends message[0 .. n) to where the ticket's request came from; drops it if that is gone. The
     * bytes are the core's and are only valid during the call. */
    void (*send)(void *context, core_ticket ticket, const void *message, size_t n);

    /* Takes a job. Must not call back into the core from within. */
    void (*submit)(void *context, core_job *job);

    /* The peer sent nonsense: cut the pipe. core_pipe_removed follows (not from within). */
    void (*cut)(void *context, uint32_t pipe);

    /* Tell core_peer_gone(session) when this process ends; unwatch: no longer. A process that
     * cannot be watched (pid 0, gone already, another namespace) is left to the grace time; `watch`
     * of one that is gone already may lead to core_peer_gone soon, but not from within. */
    void (*watch)(void *context, uint32_t session, core_peer peer);
    void (*unwatch)(void *context, uint32_t session);

    /* A line that whoever runs the daemon is to read. May be NULL. */
    void (*warn)(void *context, const char *line);

    /* May be NULL. Must not call back into the core from within. */
    void (*event)(void *context, const core_event *event);

    /* Writes the text of a STATUS (lines = 0) or TREE report at to[0 .. room); returns its length,
     * at most room. */
    size_t (*report)(void *context, const core *c, kvt_op op, uint32_t lines, char *to,
                     size_t room);
} core_env;

enum {
    CORE_TIER_JOBS = 16,
    CORE_COOL_JOBS = 1,
    CORE_CHECK_JOBS = 4, /* of these a session has one at most */
    CORE_MAX_ARENAS = KVT_MAX_DEVICES,
};

/* One of the arenas, all of which are equally large. */
typedef struct core_arena {
    const char *path;
    const char *gpu;       /* its place on the bus; "": host memory */
    uint64_t *generations; /* [max_frames], in the arena's head */
} core_arena;

typedef struct core_config {
    uint64_t boot_id;     /* not 0, another at each start */
    const char *tenant;   /* name of the tenant; copied, as are the strings below */
    const uint32_t *uids; /* uids that belong to it; others are refused */
    uint32_t n_uids;      /* 0 .. 64 */
    const uint32_t *gids; /* and those whose process has one of these */
    uint32_t n_gids;      /* 0 .. 64; with n_uids at least 1 */
    const char *staging_dir;
    const core_arena *arenas; /* [n_arenas]; offsets of a job count on from one to the next by
                                 KVT_DEVICE_STRIDE */
    uint32_t n_arenas;        /* 1 .. CORE_MAX_ARENAS */
    uint64_t arena_bytes;     /* data of each: multiple of FRAMES_GRANULE_BYTES */
    uint32_t max_frames;      /* of each */
    uint32_t max_pages;
    uint32_t page_tokens; /* largest of any realm */
    uint32_t max_slots;   /* pages of a node: ranks x layer groups of any realm */
    uint32_t max_realms;
    uint32_t max_sessions;
    uint32_t max_leases;             /* of a session */
    uint32_t max_leases_total;       /* of all */
    uint32_t max_claimed_pages;      /* of a session, unsealed */
    uint32_t max_jobs;               /* under way at once; beside: CORE_TIER_JOBS and so on */
    policy_rule policy;              /* who goes first when room is needed */
    uint32_t grace_ms;               /* an orphaned session is kept so long */
    uint32_t max_wait_ms;            /* bound of WAIT */
    uint32_t max_pins;               /* 0: none can be made */
    uint64_t max_pinned_bytes;       /* of all pins */
    uint64_t max_owner_pinned_bytes; /* of those of one owner */
    uint32_t claim_ms;               /* to seal a page, from the last one on; 0: for ever */
    uint32_t max_requests;           /* of a session, that wait or copy; 0: no bound of its own */
    const char *events_path;         /* where events are told; NULL: nowhere */
    int event_tokens;                /* whether they come with tokens */
    /* lower tiers; host_bytes 0: none, disk_bytes needs host_bytes */
    uint64_t host_bytes; /* data of the host arena: multiple of FRAMES_GRANULE_BYTES */
    uint32_t max_host_frames;
    uint64_t disk_bytes;      /* that records may take in all */
    uint32_t promote_wait_ms; /* ACQUIRE waits so long for pages that come up */
    uint32_t short_pct;       /* 1 .. 100 of a tier in use: its pages cool; 0: as is good */
    const char *ladder; /* "i8 > i4": sets that pages go through as they cool; NULL, "": none */
} core_config;

/* Is it a ladder ("" is none)? KVT_EINVAL, with words; KVT_ENOMEM. core_open asks, too. */
kvt_status core_ladder_check(const char *ladder, char *why, size_t why_bytes);

/* KVT_EINVAL: a limit is out of range, with a sentence in why. KVT_ENOMEM. */
kvt_status core_open(const core_config *config, const core_env *env, char *why, size_t why_bytes,
                     core **ret_core);
/* All jobs must have been handed back. NULL is accepted. */
void core_close(core *c);

/* --- what goes in --------------------------------------------------------------------------------
 */

/* Does the peer belong to the core's tenant by its uid, or by its gid? Reads what never changes:
 * any thread. */
int core_has_uid(const core *c, uint32_t uid);
int core_has_gid(const core *c, uint32_t gid);

int core_has_pipe(core *c, uint32_t pipe);

/* What keeps pages from going to disk, if something does. */
typedef enum core_disk {
    CORE_DISK_WORKS = 0, /* or there is none */
    CORE_DISK_FULL,      /* what waits finds no room, and nothing that is there is colder */
    CORE_DISK_FAILS,     /* the last write failed; it is tried again every few seconds */
    CORE_DISK_AWAY,      /* no process has it */
} core_disk;
core_disk core_disk_state(const core *c);
enum { DISK_SILENT_MS = 5000 }; /* that it has not answered: nobody waits for its reads any more */

/* Which of the tenants' cores a connection is for: index in cores[0 .. n), n at least 1. By the
 * peer's uid, else by its gid; a stranger's is the first, which refuses whoever says hello and
 * tells why. A pipe that none knows is the first's, too, which knows what to do with it. */
uint32_t core_of_peer(core *const *cores, uint32_t n, core_peer peer);
uint32_t core_of_pipe(core *const *cores, uint32_t n, uint32_t pipe);

void core_pipe_added(core *c, uint32_t pipe, core_peer peer);
void core_pipe_removed(core *c, uint32_t pipe);

/* A message from a pipe; the bytes are only valid during the call. From a pipe that is not known it
 * is dropped. Bad bytes: the pipe is cut. */
void core_message(core *c, core_ticket ticket, const void *message, size_t n);

void core_job_done(core *c, core_job *job);

/*
 * What a scan of the disk finds, parents first: the page stands in the tree again, on disk alone.
 * One whose parent is not known, that is there already or has no room is erased. Returns the
 * realm's number, for core_found_realm, or 0 if it cannot be served any more (another geometry, no
 * room).
 */
typedef struct core_found {
    uint32_t realm;
    const core_record *record;
    uint32_t bytes;
    uint16_t rows;
    uint64_t disk_bytes; /* that it takes there */
} core_found;
uint32_t core_found_realm(core *c, const void *canonical, size_t n_bytes);
void core_found_page(core *c, const core_found *found);
void core_found_all(core *c); /* the scan has ended */
/* Records that were deleted since max_pages has no place for them. */
uint64_t core_found_too_many(const core *c);
/* Of these, and of those that nobody can be served, what only the next start deletes. */
uint64_t core_found_left(const core *c);

/* Nothing that was on disk is there any more. */
void core_disk_lost(core *c);
/* No process has the disk (0), or one does again (1): until then nothing is asked of it. To be said
 * before the jobs that died with it are handed back. */
void core_disk_up(core *c, int up);
/* No job is started any more: all is about to be closed. */
void core_tiers_end(core *c);

/* The process of this session has ended. Unknown sessions are ignored. */
void core_peer_gone(core *c, uint32_t session);

/* Does what is due (grace times, waits); returns the time of the next thing due, UINT64_MAX for
 * none. To be called at that time or earlier; more often does no harm. */
uint64_t core_tick(core *c);

/* From now on: no new session, no claim; waits end. For an orderly stop. */
void core_drain(core *c);
int core_is_idle(const core *c); /* no job under way, and nothing that a drain has yet to write */

/* --- what can be looked at
 * ------------------------------------------------------------------------ */

/* Counters rise from 0 at each start and are exact; the others are as of now. */
typedef struct core_counts {
    /* counters */
    uint64_t requests;
    uint64_t refused;  /* answered with an error */
    uint64_t nonsense; /* pipes cut for bad bytes */
    uint64_t acquires;
    uint64_t tokens_asked;  /* by ACQUIRE without a base, and new ones with one */
    uint64_t tokens_served; /* of these, held */
    uint64_t full_hits;
    uint64_t partial_hits; /* that ended inside a page */
    uint64_t misses;       /* nothing held */
    uint64_t pages_sealed;
    uint64_t pages_duplicate;  /* sealed by two; one copy stayed */
    uint64_t pages_corrupt;    /* refused: header, checksum, length */
    uint64_t values_saturated; /* of sealed pages: clamped, since the engine's one scale for all was
                                  too small for them */
    uint64_t pages_replaced;   /* short pages that a longer one took the place of */
    uint64_t pages_passed;     /* out of a group's window: let go while their node stayed */
    uint64_t pages_evicted;    /* forgotten, in every tier, to make room */
    uint64_t bytes_evicted;    /* of these, encoded */
    uint64_t pages_vacated;    /* that left the arena, since a lower tier has them */
    uint64_t bytes_vacated;
    uint64_t seals_refused_full;
    uint64_t claims_taken_over; /* pages: the one computing gave up or died; who waited took them */
    uint64_t claims_expired;    /* the one computing sealed nothing for too long */
    uint64_t claims_cut;        /* pages of such, whose places others needed */
    uint64_t waits;
    uint64_t sessions_opened;
    uint64_t sessions_resumed;
    uint64_t sessions_ended;
    uint64_t sessions_died;    /* process gone without GOODBYE */
    uint64_t sessions_expired; /* grace time over */
    uint64_t uids_refused;
    uint64_t duplicates_refused; /* request numbers seen before */
    uint64_t find_visits;        /* nodes looked at by all matches */
    uint64_t pin_hits;           /* a pinned prefix was asked for */
    uint64_t pins_expired;       /* their time to live was over */
    uint64_t flushes;
    uint64_t pages_flushed;    /* that went at once */
    uint64_t pages_demoted;    /* copied to the host tier */
    uint64_t pages_written;    /* to disk */
    uint64_t pages_read;       /* from disk */
    uint64_t pages_promoted;   /* copied up from the host tier */
    uint64_t pages_lost;       /* a lower tier did not give them back right, or one in front of
                                  them: forgotten */
    uint64_t pages_damaged;    /* copies of sealed pages, in the arena, in host memory or on disk,
                                  that turned out to be damaged, and were dropped */
    uint64_t tier_errors;      /* copies, reads and writes that failed */
    uint64_t reads_failed;     /* pages that could not be read from the disk, and are still there */
    uint64_t pages_found;      /* on disk, at start */
    uint64_t pages_cooled;     /* put into fewer bits */
    uint64_t bytes_cooled;     /* that this has saved */
    uint64_t tokens_from_host; /* of tokens_served: were in no higher tier */
    uint64_t tokens_from_disk;
    uint64_t rows_important; /* whose importance was handed in */
    /* now */
    uint64_t sessions;
    uint64_t orphans;
    uint64_t leases;
    uint64_t groups; /* requests of ranks that are open */
    uint64_t waiting;
    uint64_t jobs;
    uint64_t realms;
    uint64_t pages_max; /* free + filling + evictable + pinned == max, always */
    uint64_t pages_free;
    uint64_t pages_filling;
    uint64_t pages_evictable;
    uint64_t pages_pinned;
    uint64_t arena_bytes; /* of all arenas, as what follows */
    uint64_t arena_used_bytes;
    uint64_t arena_waste_bytes;
    uint64_t frames_used, frames_max; /* places for pages, however small these are */
    uint64_t pins;
    uint64_t pinned_bytes; /* by pins; a page under two of them counts twice */
    uint64_t flushed_held; /* subtrees that were flushed and are still leased */
    uint64_t views;        /* of the leases */
    uint64_t pages_viewed; /* that views name: they stay in the arena */
    uint64_t pages_device, pages_host, pages_disk; /* copies of sealed pages in each tier */
    uint64_t pages_dirty; /* wait for being copied to a lower tier that there is, or are being */
    uint64_t pages_never; /* of these, what will never be on disk */
    uint64_t host_bytes, host_used_bytes, host_frames_max;
    uint64_t disk_bytes, disk_used_bytes;
} core_counts;
void core_count(const core *c, core_counts *ret_counts);

/* Of one arena, as of now. */
typedef struct core_arena_counts {
    uint64_t arena_bytes, used_bytes, waste_bytes, frames_used;
    uint64_t ranks; /* of realms, whose pages are there */
} core_arena_counts;
void core_count_arena(const core *c, uint32_t arena, core_arena_counts *ret_counts);

/* For reports: calls visit for each realm, and for each run of pages below it (radix_walk), until
 * it returns nonzero. A realm comes with run == NULL first. */
typedef struct core_realm_info {
    uint32_t realm;
    const kvt_realm *desc;
    uint64_t page_bytes;
    /* Of a run: how many of its pages each layer group still has, on all ranks. */
    uint32_t group_pages[KVT_MAX_GROUPS];
} core_realm_info;
int core_each_run(const core *c,
                  int (*visit)(void *context, const core_realm_info *realm, const radix_run *run,
                               const uint32_t *first_tokens, uint32_t n_first_tokens),
                  void *context);

/* For reports: each session. */
typedef struct core_session_info {
    uint32_t session;
    const char *name;
    core_peer peer;
    int orphaned;
    uint32_t arena; /* that its worker reads, + 1; 0: none yet */
    uint32_t leases;
    uint32_t claimed_pages;
    uint64_t staging_bytes;
    uint64_t requests;
} core_session_info;
int core_each_session(const core *c, int (*visit)(void *context, const core_session_info *session),
                      void *context);

/* For reports: each pin, and each lease. */
typedef struct core_pin_info {
    uint64_t pin;
    uint32_t realm;
    uint32_t uid;
    const char *owner;
    uint32_t n_tokens;
    uint64_t n_bytes, max_bytes;
    uint64_t ttl_ms, left_ms; /* 0: no end */
    uint64_t hits;
} core_pin_info;
int core_each_pin(const core *c, int (*visit)(void *context, const core_pin_info *pin),
                  void *context);

typedef struct core_lease_info {
    uint32_t session;
    const char *name; /* of the session */
    uint64_t request; /* number of the request that gave it */
    uint32_t realm;
    uint32_t rank;
    uint32_t n_tokens;
    uint32_t held_tokens;
    uint32_t host_tokens; /* of the held ones: were there when they were asked for last */
    uint32_t disk_tokens;
    uint32_t claimed_pages; /* not sealed yet */
    int flushed;            /* some of what it holds nobody else gets any more */
    int view;               /* it has some rows of what is held */
} core_lease_info;
int core_each_lease(const core *c, int (*visit)(void *context, const core_lease_info *lease),
                    void *context);

/* For listeners: the pages that can be had, as ADDED events, from first_place on, at most max of
 * them, until visit returns nonzero. Returns the place to go on from (over max_pages: that was
 * all).
 */
uint32_t core_each_page(const core *c, uint32_t first_place, uint32_t max,
                        int (*visit)(void *context, const core_event *page), void *context);
uint64_t core_sequence(const core *c); /* of the last event */
/* For those who send events; its tokens are left where they are. */
void core_event_to_wire(const core *c, const core_event *event, kvt_event *ret);

/* Leading tokens of tokens[0 .. n) that an ACQUIRE would get now, 0 for an unknown realm. For
 * tests. */
uint32_t core_would_hold(const core *c, uint32_t realm, const uint32_t *tokens, uint32_t n);

uint64_t core_boot_id(const core *c);

/* The arena's file is to be found there from now on; told to those who come. */
void core_move_arena(core *c, uint32_t arena, const char *path);

/*
 * Walks everything and checks that it agrees: the audits of tree, page table and frames; each
 * node's page and each page's node; held nodes have sealed pages with a frame of their own, and all
 * frames in use belong to a sealed page or a job; the tree's pins are those of the leases; nothing
 * is filling without a lease that claims it; sums per session and in all. KVT_EINTERNAL, with a
 * sentence in why (may be NULL).
 */
kvt_status core_audit(const core *c, char *why, size_t why_bytes);

#endif
