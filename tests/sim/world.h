/*
 * world.h - the simulator: the real core, workers that speak the real wire format, and between them
 * a network, a clock and jobs that a seed decides. A run is a function of its seed.
 *
 * A daemon has one tenant, or two or three in every fifth run. Each has a world of its own: a core,
 * quotas, an arena, lower tiers, workers, a listener, and the random numbers for all of that. What
 * they share is the daemon's life, its clock, and the way by which a connection comes to a core.
 *
 *   workers --request--> [pipe: delay, order kept]  --> core --job--> [lane: delay, order kept] --.
 *      ^                                                 | ^                                     |
 *      '------------reply <-- [pipe: delay, order kept] -' '--------------- done <---------------'
 *
 * FAULT MODEL. What may happen, at any point and in any order:
 *   - a message is delayed by any time; messages of different pipes overtake each other; a request
 *     is sent twice (same number)
 *   - a connection is cut with messages in flight on it, in both directions, which are lost; the
 *     worker lives on, goes on reading what it mapped, and connects again, with its session token
 *   - a worker is killed: idle with leases, while a call is under way, while its pages are copied;
 *     its connection closes and its end is seen some time later, in either order
 *   - a worker stops for long in the middle of reading a page
 *   - a worker hands in pages that are damaged, too short, of the wrong length, out of order or
 *     outside its staging file; it cuts its staging file short while it is read
 *   - a copy fails
 *   - a worker releases what it does not have, twice, or of another; cancels calls; sends nonsense
 *   - ranks ask together, in any order, at any distance, or only some of them; one asks for another
 * path than the others, dies, or goes home between two pages of a prefix
 *   - a worker pins prefixes, ends pins (of others, of none), flushes all, a realm, a prefix
 *   - the daemon dies, with everything it knew, and starts anew; old mappings stay
 *   - a copy in the host tier or on disk is damaged; a record is gone; the disk is full, says an
 *     error, does not answer for a while, or has lost everything; after a daemon's death it has
 * what was written, and is found again while workers ask already; keys are so short that different
 *     pages have the same one
 *   - a bit of a page in the arena flips; a worker calls a page damaged that is not
 *   - pages cool, in half of the worlds; encoding them anew fails, or some element cannot be
 *   - a worker of a uid that belongs to no tenant says hello; one names a staging file of another
 *     tenant; one has the uid of one tenant and the gid of the next
 * What is not modelled: a message that arrives damaged (a local stream does not), other memory
 * that changes by itself, two workers of one session.
 *
 * WHAT IS CHECKED
 *   - core_audit after every event
 *   - every byte that a worker reads under a lease, if the generation was the same before and after
 *     it read: against the payload oracle, a function of the tenant, the token path, the rank and
 *     the layer group (all tenants have the same model and the same documents)
 *   - a page that has cooled is what was sealed, encoded anew step by step (a lossy one whose last
 *     rows the worker does not know has rows that are near)
 *   - ranks that hold a lease of the same request were told the same, of a view every row
 *   - importance is a function of the token path, too, and 0 of every other row: a view picks none
 *     of those
 *   - a view has the rows that it must have, no others, and their pages stay although all between
 *     may go
 *   - what of a path with windows is held: against trying every length (core_audit)
 *   - only a page that was damaged reads as wrong; whoever has been told that it is forgotten does
 *     not get it any more
 *   - a lease of a session that was never cut is never stale
 *   - a mirror that is kept by events alone is what the core says can be had, after every event,
 *     and events are numbered without a gap; it knows where the pages of a lease came from
 *   - what is pinned can be had, at every moment; what was flushed cannot, from that moment on
 *   - a tenant is served as if it were alone: every message, event and job of its core, to the byte
 *     and to the millisecond, is the same when the others of the run are not there
 *   - what a tenant's quotas and a session's limits allow is never exceeded; a tenant is told that
 *     it is full only when nothing of its own can go
 *   - at the end, with faults off: every request is answered, and when all is let go no lease, pin,
 *     claim, job or session is left
 */
#ifndef KVT_TESTS_SIM_WORLD_H
#define KVT_TESTS_SIM_WORLD_H

#include "daemon/core.h"
#include "daemon/job.h"
#include "kernels/device_many.h"
#include "store/arena.h"

enum {
    SIM_MAX_WORKERS = 8,
    SIM_MAX_LEASES = 6,   /* of a worker */
    SIM_MAX_TOKENS = 192, /* of a path */
    SIM_PAGE_TOKENS = 16,
    SIM_MAX_PAGES = SIM_MAX_TOKENS / SIM_PAGE_TOKENS,
    SIM_MAX_STAGINGS = 4096,
    SIM_STAGING_SLOTS = 4,
    SIM_MAX_ARENAS = 64,
    SIM_MAX_PINS = 64, /* that the simulator watches at the same time */
    SIM_MAX_DAMAGES = 256,
    SIM_MAX_PLACES = 320, /* pages of a core */
    SIM_MAX_RECORDS = 512,
    SIM_MAX_GROUPS = 2,
    SIM_MAX_RANKS = 2,
    SIM_MAX_LAYERS = 2, /* of a group */
    SIM_MAX_RUNGS = 3,
    SIM_MAX_TENANTS = 3,
    SIM_MAX_PIPES = 65536,
};

typedef enum sim_event_kind {
    EVENT_TO_CORE,
    EVENT_TO_WORKER,
    EVENT_PIPE_UP,
    EVENT_PIPE_DOWN,  /* the core sees it */
    EVENT_WORKER_CUT, /* the worker sees it */
    EVENT_PEER_GONE,
    EVENT_JOB_RUN,
    EVENT_JOB_DONE,
    EVENT_WORKER, /* a worker does its next thing */
    EVENT_TICK,
    EVENT_SCAN,    /* the disk finds some more of what it has */
    EVENT_DISK_UP, /* it answers again */
} sim_event_kind;

typedef struct sim_world sim_world;

typedef struct sim_event {
    uint64_t at_ms, order;
    sim_event_kind kind;
    sim_world *world;
    uint32_t boot; /* of the core it is for: what a dead one was owed is dropped */
    uint32_t pipe;
    uint32_t worker; /* index */
    uint32_t life;   /* of the worker: a dead one does nothing more */
    uint32_t session;
    core_job *job;
    uint8_t *bytes;
    size_t n_bytes;
} sim_event;

/* Of one daemon, with the parts of each GPU one behind the other. */
enum {
    SIM_MAX_GPUS = 3,
    SIM_SILENT_MS = 15000, /* a disk, at most: three times as long as the core goes without it */
};
typedef struct sim_arena {
    uint8_t *data;
    uint64_t *generations;
} sim_arena;

typedef struct sim_staging {
    char name[32];
    uint8_t *bytes;
    uint64_t n_bytes; /* what the file has now; a worker may cut it */
    uint32_t uid;
    int open;
} sim_staging;

/* What is on disk; outlives daemons. */
typedef struct sim_record {
    int used;
    core_record name; /* serial and parent_serial as they are */
    uint32_t n_bytes, rows;
    int damaged;
    uint8_t *bytes;
    uint32_t n_realm_bytes;
    uint8_t realm_bytes[KVT_WIRE_MAX_REALM_BYTES];
} sim_record;

typedef struct sim_lease {
    uint64_t id;
    int used;
    int stale;          /* its session was lost */
    uint32_t arena;     /* index: which daemon's */
    uint32_t gpu;       /* and which part */
    uint64_t request;   /* of ranks that asked together; 0: it asked alone */
    uint32_t answer[3]; /* and what they were told: held, computing, claimed tokens */
    uint64_t asked_ms;  /* a request of ranks; sooner than grace_ms later nobody forgets it */
    uint32_t n_tokens, held_tokens, computing_tokens, claimed_tokens;
    uint32_t tokens[SIM_MAX_TOKENS];
    uint32_t n_pages;
    uint32_t first_page[SIM_MAX_GROUPS];
    kvt_wire_page pages[SIM_MAX_GROUPS][SIM_MAX_PAGES + 1];
    int is_view; /* pages in which it has no row are zeros */
    uint32_t sinks, window, budget;
    uint32_t n_runs;
    kvt_wire_run runs[SIM_MAX_TOKENS];
} sim_lease;

/* A page that was damaged where it stood: as long as its frame has this generation. */
typedef struct sim_damage {
    uint64_t generation; /* 0: none */
    uint32_t arena, gpu, frame;
} sim_damage;

/* What the ranks of an engine ask for next. */
typedef struct sim_engine {
    uint64_t request, base; /* base: the request that it goes on from, 0: none */
    uint32_t flags, keep_tokens, n_tokens;
    uint32_t sinks, window, budget; /* of a view */
    uint32_t tokens[SIM_MAX_TOKENS];
} sim_engine;

/* What a pin was given for. */
typedef struct sim_pin {
    uint64_t number; /* 0: free */
    uint32_t realm;
    uint32_t n_tokens;
    uint32_t tokens[SIM_MAX_TOKENS];
} sim_pin;

/* What a listener knows of a page. */
typedef struct sim_mirrored {
    uint64_t page, parent; /* page 0: nothing is there */
    uint32_t realm, tier, n_tokens;
    uint32_t tokens[SIM_PAGE_TOKENS];
} sim_mirrored;

typedef enum worker_state {
    WORKER_DOWN, /* no connection */
    WORKER_HELLO,
    WORKER_STAGE,
    WORKER_REALM,
    WORKER_READY,
    WORKER_GONE, /* killed; another takes its place */
} worker_state;

typedef struct sim_worker {
    uint32_t index, life, pid, uid, gid;
    int is_stranger; /* belongs to no tenant */
    worker_state state;
    uint32_t pipe; /* 0: none */
    int cut_once;  /* since its session began: its leases may be stale */
    uint8_t token[KVT_WIRE_TOKEN_BYTES];
    uint32_t session;
    uint64_t boot_id, number;
    sim_world *arena_of; /* whose arena it was shown */
    uint32_t arena, realm;
    uint32_t gpu;      /* whose part of the arena it reads, */
    uint32_t gpu_boot; /* and of which daemon */
    int any_gpu;       /* it names none: another was refused */
    int is_thief;      /* the file that it names is another tenant's */
    int staging;       /* index into world's, -1 */
    uint64_t asked;    /* the newest request of its engine that it asked, or left out */
    sim_lease leases[SIM_MAX_LEASES];
    /* the call under way */
    uint16_t op; /* 0: none */
    uint64_t op_number, op_due_ms;
    uint32_t op_lease;      /* index; the one that it is about or is to become */
    uint32_t op_first_page; /* SEAL: of the message */
    sim_damage suspect;     /* SUSPECT: the page, */
    int suspect_is_damaged; /* whether it is, */
    int suspect_is_whole;   /* and all its rows are held */
    sim_damage forgotten;   /* the last that it was told is */
    sim_lease op_path;      /* ACQUIRE: tokens as they will be */
    uint64_t noted_number;  /* and what of them could be had where, when the core was asked: */
    struct {
        uint64_t page; /* 0: not to be had */
        uint32_t place, tier;
    } noted[SIM_MAX_PAGES];
    uint8_t *op_bytes; /* for sending it twice */
    size_t op_n_bytes;
    /* to be undone, since the reply was lost */
    uint64_t cancel[16], release[16];
    uint32_t n_cancel, n_release;
    /* a slow read under way: lease, page, what was read first */
    int reading;
    uint32_t read_lease, read_group, read_page;
    uint8_t read_bytes[8192];
    size_t read_half;
} sim_worker;

/* What happened, for the summary. */
#define SIM_COUNTS(X)                                                                              \
    X(reads)                                                                                       \
    X(stale_reads)                                                                                 \
    X(hits)                                                                                        \
    X(seals)                                                                                       \
    X(waits)                                                                                       \
    X(pins)                                                                                        \
    X(flushes)                                                                                     \
    X(flushed)                                                                                     \
    X(flushed_held)                                                                                \
    X(kills)                                                                                       \
    X(cuts)                                                                                        \
    X(restarts)                                                                                    \
    X(events_told)                                                                                 \
    X(late_seals)                                                                                  \
    X(cut_claims)                                                                                  \
    X(expired)                                                                                     \
    X(together) /* answers to ranks, compared */                                                   \
    X(passed)   /* pages that windows let go */                                                    \
    X(views)                                                                                       \
    X(view_rows)                                                                                   \
    X(view_picks)                                                                                  \
    X(view_together) /* answers to ranks that were views */                                        \
    X(view_alone)    /* pages read by views whose path was gone */                                 \
    X(cooled)        /* pages that were put into fewer bits */                                     \
    X(cooled_reads)  /* and read after that */                                                     \
    X(gpu_refused)   /* workers that named one where they could not be */                          \
    X(moved)         /* workers that came to another GPU within a boot */                          \
    X(lifted)        /* pages that a lease said were not in the arena */                           \
    X(down)                                                                                        \
    X(up)                                                                                          \
    X(disk_writes)                                                                                 \
    X(disk_reads)                                                                                  \
    X(silent) /* steps while the disk alone has something, and has long been silent */             \
    X(found)                                                                                       \
    X(parts_found) /* of these, those of other ranks and layer groups than the first */            \
    X(ranks_back)  /* pages read, of the second rank, that a daemon now dead had written */        \
    X(lost)                                                                                        \
    X(full)      /* refusals, since nothing could go */                                            \
    X(strangers) /* and thieves, turned away */                                                    \
    X(damages)   /* bits of the arena that flipped */                                              \
    X(damaged)   /* reads that found one */                                                        \
    X(lies)      /* pages called damaged that were not */                                          \
    X(forgotten) /* damaged pages that a worker was told are */                                    \
    X(alone)     /* tenants that were served again, alone */
typedef struct sim_counts {
#define X(name) uint64_t name;
    SIM_COUNTS(X)
#undef X
} sim_counts;

typedef struct sim_daemon sim_daemon;

/* A tenant's. */
struct sim_world {
    sim_daemon *d;
    uint32_t tenant;
    uint64_t random;
    uint64_t digest; /* of all that its core has said and done until it came to rest */
    int is_home;
    core *core;
    core_config config;
    char name[16], arena_path[16];
    uint32_t uids[2], gids[1];
    core_env env;
    struct sim_device {
        kvt_device base;
        sim_world *world;
        uint32_t gpu;
    } devices[SIM_MAX_GPUS];
    kvt_device *device; /* of all */
    uint32_t gpu_shift; /* of ranks over GPUs */
    sim_arena arenas[SIM_MAX_ARENAS];
    uint8_t *host; /* of the running daemon */
    sim_record records[SIM_MAX_RECORDS];
    uint64_t last_serial, old_serial; /* ever; and before this daemon */
    int disk_is_as_checked;           /* since then nothing was done to it */
    uint64_t lost_serial;             /* the last before the disk lost all */
    uint32_t scan_depth, scan_at;     /* where the scan is */
    int scanning;
    kvt_page_shape shapes[SIM_MAX_GROUPS];
    uint32_t n_rungs; /* of the ladder that its pages go through; 1: none */
    kvt_page_shape rungs[SIM_MAX_GROUPS][SIM_MAX_RUNGS];
    kvt_geometry geometry;
    kvt_realm realm_desc;
    uint8_t canonical[KVT_WIRE_MAX_REALM_BYTES];
    size_t n_canonical;
    uint32_t n_workers, next_pipe, next_pid;
    uint64_t pipe_free_ms[2][SIM_MAX_PIPES]; /* when the pipe's last message is through, each way */
    uint64_t lane_free_ms[65536];
    uint32_t pipe_worker[SIM_MAX_PIPES], pipe_life[SIM_MAX_PIPES];
    uint8_t pipe_dead[SIM_MAX_PIPES];
    sim_worker workers[SIM_MAX_WORKERS];
    sim_engine engines[SIM_MAX_WORKERS / SIM_MAX_RANKS];
    sim_staging stagings[SIM_MAX_STAGINGS];
    uint32_t n_stagings;
    sim_mirrored mirror[SIM_MAX_PLACES];
    uint64_t mirror_sequence;
    uint32_t n_compared;
    sim_pin pins[SIM_MAX_PINS]; /* of the daemon that lives */
    sim_damage damages[SIM_MAX_DAMAGES];
    uint32_t n_damages;
    sim_counts n;
};

/* What all tenants share. */
struct sim_daemon {
    uint64_t seed, random;
    uint64_t now_ms, order;
    int faults; /* 0: only delays, and everybody goes home */
    int stopping;
    int trace;         /* print each event */
    uint32_t boot;     /* counts the daemons */
    sim_event *events; /* heap */
    size_t n_events, room_events;
    uint64_t n_steps;
    uint32_t n_tenants;
    sim_world *worlds[SIM_MAX_TENANTS];
    core *cores[SIM_MAX_TENANTS]; /* of these */
    /* when it was killed, and when all went home: to be done again with one tenant alone */
    uint32_t n_killed;
    uint64_t killed_ms[SIM_MAX_ARENAS], home_ms;
};

/* clock.c: events, and the daemon's life */
void sim_push(sim_world *w, sim_event event, uint32_t max_delay_ms);
/* The world that a pipe is of. */
sim_world *sim_of_pipe(sim_daemon *d, uint32_t pipe);
/* Runs a seed, with all tenants, or (tenant: its number) once more with this one alone, which must
 * be served as in `before`. */
enum { SIM_ALL = SIM_MAX_TENANTS };
void sim_run(sim_daemon *d, uint64_t seed, uint32_t n_steps, uint32_t tenant,
             const sim_daemon *before);
uint32_t sim_tenants(uint64_t seed); /* that it has */

/* world.c */
uint32_t sim_below(sim_world *w, uint32_t n);
int sim_chance(sim_world *w, uint32_t per_mille); /* only while faults are on */
void sim_fail(sim_world *w, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
void sim_digest(sim_world *w, const void *bytes, size_t n); /* of what its core says or does now */
void sim_world_open(sim_world *w, sim_daemon *d, uint32_t tenant);
void sim_world_close(sim_world *w);
void sim_world_audit(sim_world *w); /* after each step */
void sim_world_home(sim_world *w);  /* has it come to rest? Then nothing may be left */

/* daemon.c: the core's env, its jobs, its end and its start */
void sim_device_close(sim_world *w);
void sim_core_start(sim_world *w);
void sim_core_kill(sim_world *w);
void sim_jobs_end(sim_world *w); /* those under way, and what follows from them */
void sim_job_run(sim_world *w, core_job *job);

/* disk.c: the lower tiers */
void sim_disk_check(sim_world *w);
void sim_disk_run(sim_world *w, core_job *job);
void sim_disk_start(sim_world *w); /* of a daemon: the scan begins */
void sim_disk_scan(sim_world *w);
void sim_disk_close(sim_world *w);

/* worker.c */
void sim_worker_start(sim_world *w, sim_worker *k);
void sim_worker_step(sim_world *w, sim_worker *k);
void sim_worker_message(sim_world *w, sim_worker *k, const uint8_t *bytes, size_t n);
void sim_worker_cut(sim_world *w, sim_worker *k);
void sim_worker_kill(sim_world *w, sim_worker *k);
int sim_worker_home(const sim_worker *k); /* nothing held, nothing under way, said goodbye */

typedef struct outgoing {
    kvt_writer w;
    uint8_t bytes[16384];
} outgoing;
void sim_begin(outgoing *o);
void sim_call(sim_world *w, sim_worker *k, outgoing *o, uint16_t op, uint32_t lease,
              uint32_t wait_ms);
uint32_t sim_make_tokens(sim_world *w, uint32_t *tokens, uint32_t at, uint32_t n);

/* ranks.c: engines of several ranks */
uint32_t sim_rank(const sim_world *w, const sim_worker *k);
int sim_ranks_due(sim_world *w, const sim_worker *k); /* has the other one asked already? */
/* Asks for what the worker's engine asks for; base: it has no place for another lease. 0: nothing
 * was sent. */
int sim_ranks_acquire(sim_world *w, sim_worker *k, int slot, int base);
/* An answer to that came, and is in l: is it that of the other ranks? */
void sim_ranks_check(sim_world *w, const sim_worker *k, sim_lease *l);

/* mirror.c: a listener */
void sim_mirror_event(void *context, const core_event *event); /* core_env.event */
void sim_mirror_check(sim_world *w);                           /* after each step */
/* Where the pages are that the worker's ACQUIRE asks for, and whether its reply says so. */
void sim_mirror_note(sim_world *w, sim_worker *k);
void sim_mirror_compare(sim_world *w, const sim_worker *k, const kvt_lease_rep *rep);

/* keep.c: pins and flush */
int sim_keep(sim_world *w, sim_worker *k);      /* does one of these; 0: nothing to do */
int sim_keep_home(sim_world *w, sim_worker *k); /* ends a pin; 0: there is none */
void sim_keep_reply(sim_world *w, sim_worker *k, uint16_t op, const uint8_t *body, size_t n);
void sim_keep_check(sim_world *w); /* after each step */
/* After the core has served this FLUSH. */
void sim_flush_check(sim_world *w, const uint8_t *bytes, size_t n);

/* view.c: leases of some rows */
void sim_view_ask(sim_world *w, sim_lease *l, kvt_acquire_req *req); /* perhaps */
/* The lease has its held_tokens; if it is a view it gets its runs and pages, and all is checked. */
void sim_view_take(sim_world *w, const sim_worker *k, sim_lease *l, const kvt_lease_rep *rep);
void sim_importance(sim_world *w, sim_worker *k, uint32_t slot); /* hands it in */
/* Has the view a row of the page? *ret_rows: up to its last one. */
int sim_view_has(const sim_lease *l, uint32_t page, uint32_t *ret_rows);

/* damage.c: pages that are damaged in the arena */
int sim_is_damaged(const sim_world *w, const sim_lease *l, const kvt_wire_page *page);
/* Damages a page of the lease, or says that a good one is. */
void sim_hurt(sim_world *w, sim_worker *k, uint32_t slot);
void sim_suspect(sim_world *w, sim_worker *k, uint32_t slot, uint32_t group, uint32_t page);
void sim_suspect_reply(sim_world *w, sim_worker *k, const uint8_t *body, size_t n);
/* The lease is new, and has its pages. */
void sim_forgotten_check(sim_world *w, const sim_worker *k, const sim_lease *l);

/* payload.c: what the bytes of a page must be, for a slot (rank and layer group) */
void sim_payload_encode(const sim_world *w, uint32_t slot, const uint32_t *tokens, uint32_t page,
                        uint32_t rows, uint8_t *to, size_t room, size_t *ret_bytes);
/* Number of wrong elements, or rows of a lossy page, in rows 0 .. rows - 1 of an encoded page of
 * this path. */
uint64_t sim_payload_wrong(sim_world *w, uint32_t slot, const uint32_t *tokens, uint32_t page,
                           uint32_t rows, const uint8_t *bytes, size_t n_bytes);

#endif
