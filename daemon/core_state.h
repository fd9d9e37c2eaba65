/*
 * core_state.h - what the core is made of; included by daemon/core*.c alone.
 *
 *   pipe ----> session ----> lease ----> tree node (pinned) ----> page ----> frame
 *              | staging      ^ one list a session       ^ handle      ^ index
 *              | jobs         '-- owner of unsealed pages
 *
 * Everything is an index into an array that core_open sized. Index + 1 is used where 0 means none.
 */
#ifndef KVT_DAEMON_CORE_STATE_H
#define KVT_DAEMON_CORE_STATE_H

#include "client/assert.h"
#include "daemon/core.h"
#include "daemon/core_ladder.h"
#include "daemon/policy_tree.h"
#include "daemon/view_rows.h"
#include "store/frames.h"
#include "store/order.h"
#include "store/page_table.h"

enum {
    NONE = 0,
    COOL_BATCH = 8, /* pages of a job that cools */
};
typedef struct cooling cooling; /* core_cool.c */

typedef struct realm {
    uint32_t number;      /* 0: free */
    uint32_t last_number; /* of the one that had this place: a number is never given out twice */
    radix_node root;
    uint32_t page_tokens;
    uint32_t n_ranks, n_groups;
    uint8_t arenas[KVT_MAX_RANKS];    /* of each rank's pages, + 1; 0: none yet; core_arena.c */
    uint32_t windows[KVT_MAX_GROUPS]; /* of the groups; 0: full attention */
    uint32_t max_window;              /* 0: no group has one */
    uint32_t spine;                   /* slot that the records behind a page hang from */
    uint32_t max_tokens;              /* of a path: its pages of all groups fit a reply */
    kvt_page_shape shapes[KVT_MAX_GROUPS];
    uint32_t n_rungs; /* of its ladder, from its own codec set on; 1: its pages do not cool */
    kvt_page_shape rungs[KVT_MAX_GROUPS][COOL_MAX_RUNGS];
    uint32_t n_jobs; /* that read its shapes */
    uint32_t n_bytes;
    uint8_t canonical[KVT_WIRE_MAX_REALM_BYTES];
    kvt_realm_names names;
    kvt_realm desc;  /* its strings are names' */
    int was_flushed; /* before all of it on disk was found */
} realm;

typedef struct pipe_entry {
    uint32_t pipe;    /* 0: free */
    uint32_t session; /* slot + 1 */
    core_peer peer;
} pipe_entry;

typedef enum session_state {
    SESSION_FREE = 0,
    SESSION_LIVE,   /* has a pipe */
    SESSION_ORPHAN, /* pipe closed; the process may live and read */
    SESSION_ENDING, /* gone; jobs of it are still under way */
} session_state;

typedef struct session {
    uint8_t state; /* session_state */
    uint32_t number;
    uint32_t pipe;
    core_peer peer;
    uint8_t token[KVT_WIRE_TOKEN_BYTES];
    char name[64];
    uint32_t first_lease; /* slot + 1, list by next_of_session */
    uint32_t n_leases;
    uint32_t n_claimed; /* unsealed pages on the paths of its claiming leases */
    uint32_t n_waits;   /* calls that wait */
    uint32_t n_jobs;    /* under way, the two below included */
    uint32_t arena;     /* that its worker reads, + 1; 0: none yet */
    uint32_t realm;     /* number: that it registered last, */
    uint32_t rank;      /* and as which rank */
    int staging;        /* handle, -1: none */
    uint64_t staging_bytes;
    uint64_t orphaned_ms;
    uint64_t newest; /* highest request number seen */
    uint64_t seen;   /* bit i: number newest - i was seen */
    uint64_t requests;
    int staging_busy, unstaging_busy; /* the embedded jobs are under way */
    core_job stage_job, unstage_job;
} session;

typedef enum claim_state { CLAIM_UNTIMED = 0, CLAIM_PROMISED, CLAIM_EXPIRED } claim_state;
typedef struct claim_list {
    uint32_t first, last; /* lease slot + 1 */
} claim_list;

/*
 * A lease pins `tail`, the deepest node of its path, and `partial`, a held page whose leading
 * partial_tokens tokens go on where the held pages of the path end.
 *
 *      root - [held] - [held] - [unsealed] - [unsealed: tail]     claim = 1
 *                         '- [partial]
 */
typedef struct lease {
    uint32_t generation;
    uint32_t session; /* slot + 1; 0: free */
    uint32_t next_of_session, prev_of_session;
    uint32_t realm; /* slot */
    uint32_t rank;
    uint32_t group; /* entry + 1; 0: it asked for itself */
    uint32_t name;  /* of who computes, in the pages that it fills: itself or its group */
    radix_node tail;
    radix_node partial; /* RADIX_NONE: none */
    uint32_t partial_tokens;
    uint32_t n_tokens;  /* asked for */
    uint32_t n_claimed; /* part of the session's */
    uint8_t claim;
    uint8_t leave_one;
    uint64_t number; /* request that gave it */
    /* of the ACQUIRE under way or last answered */
    uint32_t n_asked;   /* tokens of the message */
    uint64_t asked_at;  /* tiers.moves when it came, or when FORK did */
    uint8_t was_absent; /* some of what it asked for was not in the arena */
    uint32_t from_host; /* held tokens that were in no higher tier when they were asked for */
    uint32_t from_disk;
    /* see core_claim.c */
    uint8_t claim_state;             /* enum */
    uint8_t is_cut;                  /* others needed the last pages of what it claimed */
    uint32_t next_claim, prev_claim; /* slot + 1 */
    uint64_t claim_end_ms;
    /* What its worker was told last: it may read the pages of the window groups from there on, so
     * each of those has a reference of the lease. Realms without windows need none of it. */
    uint32_t told_tokens;
    radix_node told_last; /* the page with the last of them */
    /* A view has its pages, and no place in the tree: its tail is the root. See core_view.c. What
     * stands behind is_view is that of view_of: of ranks that asked together, their anchor's. */
    uint8_t is_view;
    uint8_t is_settled;   /* what it has was told: each page is in the arena */
    uint32_t view_tokens; /* end of what it has */
    uint32_t view_end;    /* of its window, when it was asked for */
    uint32_t sinks, window, budget;
    uint32_t first_view_page; /* index + 1 */
} lease;

/* A page that a view names, and which rows of it. */
enum { VIEW_WORDS = 2 }; /* of 64 rows */
typedef struct view_page {
    page_handle page;
    uint64_t rows[VIEW_WORDS];
    uint32_t number; /* of the path */
    uint32_t rank, group;
    uint32_t next; /* index + 1: by number, then rank, then group; or the free list */
} view_page;

/* A request of ranks that ask together, see core_group.c. */
enum { ALL_RANKS = UINT32_MAX };
typedef struct group_entry {
    uint64_t group, request; /* 0: free */
    lease anchor;
    uint64_t joined;   /* ranks */
    uint32_t n_leases; /* of ranks that have not let go */
    uint64_t end_ms;   /* if there is none */
    int answered;
    int broken; /* a rank let go before its part was sealed: it completes nothing any more */
    uint32_t held_tokens, computing_tokens, claimed_tokens;
} group_entry;

/* A prefix that is kept, see core_pin.c. */
typedef struct pin {
    uint64_t number; /* 0: free */
    uint32_t realm;  /* slot */
    radix_node tail;
    uint32_t n_tokens; /* the last page may be kept for its leading rows alone */
    uint32_t uid;
    char owner[64]; /* name of the session that made it */
    uint64_t n_bytes, max_bytes;
    uint64_t ttl_ms; /* 0: no end */
    uint64_t end_ms;
    uint64_t hits;
} pin;

/* What the spans in a page stand for, see core_span.c. */
typedef struct page_mark {
    tier_key mark;
    uint16_t first_row; /* of the first span; the page's tokens if there is none */
    uint8_t is_marked;
} page_mark;

typedef struct waiter {
    uint32_t session; /* slot + 1; 0: free */
    uint16_t op;      /* WAIT, ACQUIRE (pages come up), SPILL */
    core_ticket ticket;
    uint64_t number;
    uint64_t lease; /* 0: of SPILL, VERIFY */
    uint32_t held_tokens;
    uint32_t first_page;
    uint64_t due_ms;
    uint32_t next; /* index + 1: list in order of arrival, or the free list */
} waiter;

/*
 * Where the bytes of a sealed page are, besides the arena. By index of the page table.
 *
 *   arena frame   page_entry.frame        in the arena's `clean` if a copy lies below, else in its
 *                                         `dirty`
 *   host frame    tier_page.host_frame    in `host_clean` if the page is also in the arena or on
 *                                         disk, else `host_dirty`; with a disk: clean = on disk
 *   disk record   TIER_ON_DISK
 *
 * A page that has none of them does not exist: a sealed page always has one.
 */
enum {
    TIER_ON_DISK = 1 << 0,
    /* a job is at it: */
    TIER_GOING_DOWN = 1 << 1,
    TIER_GOING_UP = 1 << 2,
    TIER_WRITING = 1 << 3,
    TIER_READING = 1 << 4,
    /* A record with this key and serial is there, found by the scan after a worker had sealed the
     * page anew: its bytes may be others. Writing replaces it, forgetting erases it. */
    TIER_STALE_RECORD = 1 << 5,
    /* Another page has the same key: this one and those behind it are never written. */
    TIER_NO_DISK = 1 << 6,
    TIER_KNOWN = 1 << 7,   /* the page was sealed; without it nothing else here counts */
    TIER_COOLING = 1 << 8, /* a job is at it, too */
    TIER_LEAVING = 1 << 9, /* its record, or the one being written, will be erased: in `leaving` */
    TIER_CHARGED = TIER_ON_DISK | TIER_WRITING | TIER_STALE_RECORD, /* counts in disk_used */
    TIER_BUSY = TIER_GOING_DOWN | TIER_GOING_UP | TIER_WRITING | TIER_READING | TIER_COOLING,
};
typedef struct tier_page {
    tier_key key; /* on disk, if it is there or being written */
    uint64_t serial;
    uint64_t read_at, lifted_at; /* tiers.moves when it came from the disk, and from the host */
    uint32_t host_frame;         /* PAGE_NO_FRAME: none */
    uint32_t bytes;              /* encoded */
    uint32_t record_bytes;       /* stored, of the record; while it is written those of the page */
    uint32_t flags;              /* TIER_... */
    uint32_t realm;              /* slot */
    uint32_t depth;
    uint32_t failed_in; /* tiers.n_reads_fail when it could not be read */
    uint16_t n_tokens;
    uint16_t slot;
} tier_page;

enum { TIER_BATCH = 32, TIER_JOBS = CORE_TIER_JOBS };
enum { DISK_RETRY_MS = 5000 };

typedef struct tier_erase {
    tier_key key;
    uint64_t serial;
    uint32_t depth;
    uint32_t bytes; /* that the record takes */
    uint16_t slot;
} tier_erase;

/* The lower tiers; NULL in a core that has none. */
typedef struct tiers {
    frames *host;
    void *host_memory;
    uint64_t *host_generations;
    uint32_t max_pages; /* places below */
    tier_page *pages;   /* [max_pages] */
    order *host_clean, *host_dirty;
    void *order_memory[2];
    /* Of dirty pages, in the order in which they were sealed. Starts above every depth, which is
     * the key of one that has to go before those that wait for it. */
    uint64_t sequence;
    uint64_t moves;    /* pages that came up a tier, ever */
    uint32_t n_absent; /* sealed pages in the tree without an arena frame */
    uint32_t n_host, n_disk;
    uint32_t n_jobs;
    uint32_t *host_page; /* scratch [max_host_frames]: index + 1 */

    tier_erase *erase; /* ring [max_pages] */
    uint64_t n_erased; /* of the ring, ever */
    /* By key, so many records that are to go: those of the ring, and of pages TIER_LEAVING. A page
     * is not written while one with its key is: the write would take over the serial of the record
     * that stands there, and the erasure would then mean the new one. Keys that share a place only
     * wait for each other. */
    uint32_t *leaving;
    uint32_t leaving_mask;
    uint64_t n_started; /* jobs, ever: each has its number */
    uint32_t first_erase, n_erase;
    uint64_t disk_used;     /* by records that are there, being written or not erased yet */
    int disk_up;            /* as core_disk_up said last: nothing else changes it */
    uint32_t n_reads;       /* jobs that it has not answered */
    uint64_t disk_heard_ms; /* when it last answered one, or came or went, or had none yet */
    int is_closed;          /* no job is started any more */
    int disk_full;
    uint64_t disk_limit; /* what disk_used may be: the budget, or what turned out to be all there is
                          * room for, until disk_retry_ms */
    /* What waits for the disk is colder than all that is there, as far as was looked: it may go as
     * soon as the host tier is short, or it would keep all others from going down. */
    int disk_stuck;
    /* Writing or erasing has failed, though a process has the file: it is not tried before
     * disk_retry_ms, and then until it works, or fails again. */
    int disk_fails, disk_is_tried;
    /* Some pages could not be read: they are not asked for before read_retry_ms, and all others
     * are. */
    int reads_fail;
    uint32_t n_reads_fail; /* times that this began */
    uint64_t read_retry_ms;
    /* What is dirty in the host tier can only be written when pages in front of it, which are in
     * the arena alone, have come down: it makes room for them. */
    int host_waits;
    uint64_t freed_bytes;   /* evicted for room since a page was written */
    uint64_t stuck_at;      /* pages sealed then: some more, and it is looked again */
    uint64_t disk_retry_ms; /* when the disk is asked again, though nothing was erased */
    int down_busy, write_busy, erase_busy, verify_busy; /* one job of each kind at a time */
    kvt_status verify_status;                           /* of the last */
    uint64_t checked, corrupt;

    int was_flushed; /* everything, while the scan is under way */
    uint32_t *found; /* by key: page index + 1, while the scan is under way */
    uint32_t found_mask;
    uint64_t n_no_place; /* records for which there is no page any more, and those behind them */
    uint64_t n_left;     /* records that were to go, and stay: too many are on their way already */
    radix_node *open; /* [max_pages] pinned nodes of the depth that the scan is at: core_found.c */
    uint32_t n_open, open_depth;

    core_job *jobs;
    core_copy *copies;
    core_record *records;
    core_job *free_jobs;
} tiers;

/* Frame f of arena a is known everywhere as a * max_frames + f; see core_arena.c. */
typedef struct arena_books {
    char path[KVT_WIRE_MAX_PATH + 1];
    char gpu[32]; /* its place on the bus; "": host memory */
    frames *frames;
    void *memory;
    /* By key. With lower tiers: its pages that have a copy below, and those that have none. Without
     * them, and with several arenas: `dirty` has all. */
    order *clean, *dirty;
    void *order_memory[2];
} arena_books;

/* A FLUSH that is answered when the disk has forgotten, too. */
enum { MAX_FLUSHES = 16 };
typedef struct held_flush {
    int used;
    core_ticket ticket;
    uint64_t number;
    kvt_flush_rep rep;
    uint64_t last_job;     /* jobs up to this one may hold what was flushed */
    int has_target;        /* they have ended: */
    uint64_t erase_target; /* when so many have been erased */
    uint64_t due_ms;
} held_flush;

/* A page that a worker calls damaged, while a job looks at it: core_damage.c. */
typedef struct suspect {
    core_job job;
    core_copy copy;    /* page 0: this place is free */
    radix_node pinned; /* its node, which stays in the tree and the arena; RADIX_NONE: not pinned */
} suspect;

struct core {
    core_config config;
    core_env env;
    uint32_t uids[64], gids[64];
    char tenant[64];
    char staging_dir[KVT_WIRE_MAX_PATH + 1];

    radix *tree;
    policy *policy; /* whose keys the tree's are */
    page_table *pages;
    arena_books arenas[CORE_MAX_ARENAS]; /* [config.n_arenas] */
    void *tree_memory, *policy_memory, *pages_memory;

    realm *realms;
    uint32_t n_realms;

    pipe_entry *pipes; /* open addressing, pipes_mask + 1 places */
    uint32_t pipes_mask, n_pipes;

    session *sessions;
    uint32_t n_sessions; /* not FREE */
    uint32_t next_session_number;

    lease *leases;
    uint32_t *free_leases; /* stack of slots */
    uint32_t n_free_leases;

    group_entry *groups;
    uint32_t max_groups, n_groups;

    waiter *waiters;
    uint32_t max_waiters, free_waiter, first_waiter, last_waiter, n_waiters;
    int wake; /* something that a waiter may wait for has happened */

    view_page *view_pages;    /* [max_pages] */
    uint32_t n_view_pages;    /* in use */
    uint32_t end_view_page;   /* from here on none has ever been used */
    uint32_t free_view_page;  /* index + 1 */
    uint32_t *viewed;         /* [page table]: views that name the page */
    uint32_t n_views;         /* leases */
    uint32_t n_viewed;        /* pages that some view names */
    uint32_t n_host_warnings; /* of realms whose pages are large for the host tier */
    uint64_t *rows;           /* scratch: a set of rows of a path */
    kvt_wire_run *runs;       /* scratch [KVT_WIRE_MAX_RUNS] */
    uint16_t *importance;     /* [max_pages][page_tokens], by node - 1 and row: core_importance.c */
    uint8_t *is_important;    /* [max_pages + 1], by node: some row's is over 0 */
    uint32_t n_important;     /* such nodes */
    uint16_t *path_importance; /* scratch: of a path's rows */

    pin *pins; /* [max_pins] */
    uint32_t n_pins;
    uint64_t last_pin, pinned_bytes;
    claim_list promised; /* leases whose workers have promised pages */
    claim_list expired;  /* and those who did not keep that */

    char events_path[KVT_WIRE_MAX_PATH + 1];
    kvt_wire_span *spans; /* scratch: of the ACQUIRE that is served */
    uint32_t n_spans;
    page_mark *marks; /* [max_pages + max_realms + 1], by node */
    uint32_t n_marked;

    uint64_t event_sequence, last_announced;
    uint64_t *announced;     /* [max_pages + 1], by node: number of its page; 0: cannot be had */
    uint8_t *announced_tier; /* [max_pages + 1]: the last that was told */
    uint32_t *realm_of_root; /* [max_realms + 1], by root - max_pages: number */

    held_flush flushes[MAX_FLUSHES];
    uint32_t n_flushes;

    uint32_t n_hidden; /* nodes that were flushed and are still held, the topmost of each */

    core_job *jobs; /* seal jobs */
    core_copy *copies;
    core_job *free_jobs;
    uint32_t n_jobs; /* under way, all kinds */

    suspect suspects[CORE_CHECK_JOBS];
    uint32_t n_suspects;     /* that are being looked at */
    uint32_t n_damage_lines; /* that the log has of damaged pages */

    tiers *tiers; /* NULL: the arena is all there is */
    ladder ladder;
    cooling *cooling; /* NULL: no page is put into fewer bits */

    uint32_t n_held; /* sealed pages in the tree */
    int draining;
    core_counts counts;    /* the counters; the rest is filled in when asked for */
    uint64_t freed_bytes;  /* of the arenas' frames that were given up for room, in all */
    uint64_t wanted_bytes; /* of the page of this SEAL that found no room; 0: all did */
    page_handle wanted_page;

    uint32_t *tokens;       /* scratch: the tokens of one acquire */
    const uint32_t *asked;  /* of the ACQUIRE being served: tokens, or where they stand in it */
    radix_node *path;       /* scratch: the nodes of one path, by depth */
    uint8_t *out;           /* scratch: the message being written */
    radix_node *frame_page; /* scratch of evict_slab: [max_frames], which page a frame of the arena
                               that is looked at holds: index + 1 */
};

/* A request being served. */
typedef struct request {
    core_ticket ticket;
    kvt_wire_header header;
    const uint8_t *body;
    size_t n_bytes;
    session *session;
} request;

/* --- core.c: replies --- */
void reply_start(core *c, kvt_writer *w);
void reply_finish(core *c, core_ticket ticket, uint16_t op, uint64_t number, kvt_writer *w);
void reply_error(core *c, core_ticket ticket, uint16_t op, uint64_t number, kvt_status status,
                 const char *format, ...) __attribute__((format(printf, 6, 7)));
#define refuse(c, rq, status, ...)                                                                 \
    reply_error((c), (rq)->ticket, (rq)->header.op, (rq)->header.number, (status), __VA_ARGS__)
/* The peer sent bytes that are not the protocol. */
void nonsense(core *c, uint32_t pipe);

/* At the end of whatever happened to the core: what has become possible by it begins at once, and
 * does not wait for something else to happen, perhaps to somebody else. */
void core_go_on(core *c);

/* --- core_session.c --- */
pipe_entry *pipe_find(core *c, uint32_t pipe);
void serve_hello(core *c, request *rq, pipe_entry *pipe);
void serve_stage(core *c, request *rq);
void serve_goodbye(core *c, request *rq);
void session_end(core *c, session *s);
int session_is_busy(core *c, request *rq);  /* too much is under way: answered */
void session_job_done(core *c, session *s); /* one fewer under way; frees an ENDING one at 0 */
void stage_job_done(core *c, core_job *job);
int session_number_fresh(session *s, uint64_t number); /* and remembers it */
uint64_t sessions_tick(core *c, uint64_t now_ms);
static inline uint32_t session_slot(const core *c, const session *s) {
    return (uint32_t)(s - c->sessions);
}

/* --- core_arena.c --- */
enum { ARENA_NONE = UINT32_MAX };
kvt_status arenas_open(core *c);
void arenas_close(core *c);
static inline uint32_t frame_arena(const core *c, uint32_t frame) {
    return frame / c->config.max_frames;
}
/* As frames.h has them; offsets count on from arena to arena. */
kvt_status frame_take(core *c, uint32_t arena, uint64_t bytes, uint32_t *ret_frame);
void frame_free(core *c, uint32_t frame);
uint64_t frame_offset(const core *c, uint32_t frame);
uint64_t frame_size(const core *c, uint32_t frame);
uint64_t frame_asked(const core *c, uint32_t frame);
int frame_in_use(const core *c, uint32_t frame);
/* A frame as a worker knows it, who maps its arena alone. */
void frame_to_wire(const core *c, uint32_t frame, kvt_wire_page *page);
uint32_t arenas_used(const core *c);  /* frames */
uint32_t arenas_dirty(const core *c); /* pages */
/* Where the pages of the slot's rank stand; ARENA_NONE: no worker of the rank has come yet. */
uint32_t slot_arena(const core *c, const realm *r, uint32_t slot);
/* The session reads the arena of the GPU that the request names, or one that suits, and the rank's
 * pages stand there from now on. */
kvt_status rank_bind(core *c, session *s, realm *r, const kvt_realm_req *req, char *why,
                     size_t why_bytes);
/* Does the session read the arena of the rank's pages? */
int rank_is_near(const core *c, const session *s, const realm *r, uint32_t rank);
kvt_status arenas_audit(const core *c, char *why, size_t why_bytes);
/* What is wrong with where the page of this slot has its frame, or NULL. */
const char *arena_fault(const core *c, const realm *r, uint32_t slot, const page_entry *entry);

/* --- core_realm.c --- */
void serve_realm(core *c, request *rq);
realm *realm_get(core *c, uint32_t number);
/* The one with these canonical bytes, made if need be. */
kvt_status realm_open(core *c, const kvt_realm_req *req, char *why, size_t why_bytes,
                      realm **ret_realm);
uint64_t realm_page_bytes(const realm *r); /* encoded, of all groups of a rank, full */

/* --- core_slots.c: the pages of a node, radix_slots(c->tree, node) of them --- */
page_handle node_page(const core *c, radix_node node, uint32_t slot); /* 0: there is none */
void node_set_page(core *c, radix_node node, uint32_t slot, page_handle page);
const page_entry *node_entry(const core *c, radix_node node, uint32_t slot);
static inline uint32_t slot_of(const realm *r, uint32_t rank, uint32_t group) {
    return rank * r->n_groups + group;
}
int node_is_sealed(const core *c, radix_node node); /* all of them, but for what passed over */
int node_rank_is_sealed(const core *c, const realm *r, radix_node node, uint32_t rank);
/* Its bytes can be read. */
int node_has(const core *c, radix_node node, uint32_t slot);
uint32_t node_pages(const core *c, radix_node node); /* that it has, as counters count them */
/* Marks it held if it is sealed and the one in front is held; then those behind it. */
void node_settle(core *c, const realm *r, radix_node node);
/* The slot's page goes; KVT_EFULL: no page for a slot that is empty. */
void slot_empty(core *c, radix_node node, uint32_t slot);
kvt_status slot_refill(core *c, radix_node node, uint32_t slot);
/* Wherever its bytes are. */
static inline int entry_is_sealed(const page_entry *entry) {
    return entry->state != PAGE_FILLING && entry->state != PAGE_COPYING;
}
/* Its bytes are in a lower tier alone. An empty slot has none. */
static inline int entry_is_absent(const page_entry *entry) {
    return entry && entry_is_sealed(entry) && entry->frame == PAGE_NO_FRAME;
}
/* Who computes it, of a node that is not held; FILLED: it waits for the one in front. */
enum { FILLED = UINT32_MAX };
uint32_t node_filler(const core *c, radix_node node);
void node_set_filler(core *c, radix_node node, uint32_t filler);
kvt_status node_claim_pages(core *c, radix_node node); /* KVT_EFULL: none was */
void node_drop_pages(core *c, radix_node node);
uint32_t node_tier(const core *c, radix_node node); /* uppermost that has all of it, from 0 */

/* --- core_window.c: what of a path is held, when groups have windows --- */
typedef struct held_prefix {
    uint32_t tokens;
    uint32_t pages;  /* that cover them */
    radix_node last; /* of these; RADIX_NONE: none */
} held_prefix;
/* Of a path that ends with the held node, or the leading rows of `partial` behind it: the most
 * tokens, `most` of them at most, for which every group has what it needs; in_arena: in the arena,
 * where the pages of groups without windows are known to be. */
held_prefix path_held(const core *c, const realm *r, radix_node node, radix_node partial,
                      uint32_t partial_tokens, uint32_t most, int in_arena);
/* A root, or the pages of its groups without windows are in the arena, of all ranks. */
int node_is_ready(const core *c, const realm *r, radix_node node);
/* Is the slot's page of a node at this depth needed behind so many tokens? */
int slot_is_needed(const realm *r, uint32_t slot, uint32_t depth, uint32_t n_tokens);
/* Pages that a node which has just become held pushes out of the windows are let go. */
void windows_pass(core *c, const realm *r, radix_node node);
void windows_pass_all(core *c); /* the same for all nodes that there are */
/* The realm's page in this slot, which a job is done with, may have passed out of its window
 * meanwhile. It may be gone by now. */
void window_job_ended(core *c, const realm *r, uint32_t slot, page_handle page);
/* The same for a tier's job, which gives back its reference to the page. */
void tier_job_drop(core *c, page_handle page);
int slot_is_wanted(const core *c, const realm *r, radix_node node, uint32_t group, uint32_t end);
/* The lease's worker is being told that it may read this; 0 tokens: nothing any more. */
void lease_tell(core *c, lease *l, const held_prefix *now);

/* --- core_lease.c --- */
uint64_t lease_id(const core *c, const lease *l);
lease *lease_get(core *c, const session *s, uint64_t id);
lease *lease_new(core *c, session *s, uint32_t realm_slot, uint64_t number);
void lease_free(core *c,
                lease *l); /* with its pins, and the unsealed pages that nobody else claims */
/* Lets go of a path that a lease had: unpins, drops what nobody else claims, disowns the rest. */
void lease_drop_path(core *c, lease *l, radix_node tail, radix_node partial);
void lease_recount(core *c, lease *l); /* n_claimed, after its path or the pages on it changed */
radix_node lease_held(const core *c, const lease *l); /* deepest held node of the path */
held_prefix lease_whole(const core *c, const lease *l, uint32_t most); /* in whichever tier */
uint32_t lease_stored_tokens(const core *c, const lease *l); /* tokens of the path that are known */
/* Deepest node to which all is readable, but for windows. */
radix_node lease_ready(const core *c, const lease *l);
held_prefix lease_look(const core *c, const lease *l, uint32_t most); /* what is readable */
uint32_t lease_most(const lease *l);                       /* tokens that it is to be told of */
uint32_t lease_held_tokens(const core *c, const lease *l); /* readable; without leave_one */
uint32_t lease_computing_end(core *c, const lease *l);     /* token; 0: nobody else is at it */
int lease_take_over(core *c, lease *l);   /* owns what nobody owns; returns how many pages */
uint32_t lease_disown(core *c, lease *l); /* owns nothing any more; returns how many pages */
void reply_lease(core *c, core_ticket ticket, uint16_t op, uint64_t number, lease *l,
                 uint32_t first_page);
void write_page(core *c, kvt_writer *w, const lease *l, page_handle page);
/* The heads of the lists of pages, from first_page on, that a lease of these tokens has; and the
 * pages. */
uint32_t make_lists(const core *c, const lease *l, const held_prefix *h, uint32_t first_page,
                    kvt_page_list *lists);
void put_list_pages(core *c, kvt_writer *w, const lease *l, const held_prefix *h,
                    const kvt_page_list *lists);
/* Tokens from the root to the end of the node. */
uint32_t path_tokens(const core *c, radix_node node);
/* The node of the path at this depth (1 ..), or the root at 0. */
radix_node path_at(const core *c, radix_node tail, uint32_t depth);
int is_held(const core *c, radix_node node);                  /* roots are */
int is_below(const core *c, radix_node node, radix_node top); /* or top itself */
void serve_fork(core *c, request *rq);
void serve_release(core *c, request *rq);
void serve_cancel(core *c, request *rq);

/* --- core_group.c --- */
const lease *filler_of_name(const core *c, uint32_t name); /* the lease, or the group's anchor */
/* May it be asked for? 0: refused. *ret_entry: what others of the group have asked for, or NULL. */
int group_check(core *c, request *rq, const kvt_acquire_req *req, uint32_t realm_slot,
                uint32_t rank, radix_node from, uint32_t n_tokens, group_entry **ret_entry);
void group_follow(core *c, lease *l, const group_entry *g);
void group_enter(core *c, lease *l, const kvt_acquire_req *req,
                 group_entry *g); /* NULL: a new one */
void group_leave(core *c, lease *l, uint32_t of);
/* Have all ranks of the lease's request come? at_once: none is waited for any more. */
int group_is_whole(core *c, const lease *l, int at_once);
void group_answer(core *c, const lease *l, kvt_lease_rep *rep, held_prefix *h);
uint64_t groups_tick(core *c, uint64_t now_ms);

/* --- core_acquire.c --- */
void serve_acquire(core *c, request *rq);
void reply_acquire(core *c, core_ticket ticket, uint64_t number, lease *l, uint32_t first_page);

/* --- core_view.c --- */
int view_check(core *c, request *rq, const kvt_acquire_req *req); /* 0: refused */
/* Whose pages the view has: its own, or those that it has with the other ranks of its request. */
const lease *view_of(const core *c, const lease *l);
int view_is_same(const lease *anchor, const kvt_acquire_req *req); /* as the first rank asked for */
/* The lease, whose path is found, becomes a view of it. KVT_ELIMIT: views name too many pages. */
kvt_status view_take(core *c, lease *l, const kvt_acquire_req *req);
void view_drop(core *c, lease *l); /* nothing to do if it is none */
void reply_view(core *c, core_ticket ticket, uint16_t op, uint64_t number, lease *l);
/* Has it rows of the sinks or the window? */
int view_page_is_sure(const core *c, const lease *l, const view_page *v);
int view_is_absent(const core *c, const lease *l); /* some of it is not in the arena */
/* Its rows that are, by where they were: n[tier]. */
void view_count_tiers(const core *c, const lease *l, uint32_t *n);
static inline int page_is_viewed(const core *c, page_handle page) {
    return c->viewed[(uint32_t)page] > 0;
}

uint32_t view_n_rows(const core *c, const lease *l);

/* --- core_importance.c --- */
void serve_importance(core *c, request *rq);
const uint16_t *importance_of(const core *c, radix_node node);  /* by row; NULL: nothing is known */
void importance_gone(core *c, radix_node node);                 /* before it goes */
void importance_leave(core *c, radix_node from, radix_node to); /* a longer one covers it */
/* Of all rows of a path. */
void importance_gather(const core *c, const realm *r, const held_prefix *h, uint16_t *to);

/* --- core_damage.c --- */
void serve_suspect(core *c, request *rq);
void suspect_job_done(core *c, core_job *job);
void suspects_let_go(core *c, radix_node top); /* their pins below it, with itself */
/* Of their jobs, added to refs[page index] and pins[node]. */
void suspects_refs_of(const core *c, uint32_t *refs, uint32_t *pins);
/* A copy of the page is damaged and dropped: counted, and said. `where`: of what is not in the
 * arena. */
void damage_note(core *c, page_handle page, const char *where);

/* --- core_view_audit.c --- */
/* Adds the references of views to refs [page table]. */
kvt_status views_audit(const core *c, uint32_t *refs, char *why, size_t why_bytes);

/* --- core_seal.c --- */
void serve_seal(core *c, request *rq);
void seal_job_done(core *c, core_job *job);

/* --- core_wait.c --- */
void serve_wait(core *c, request *rq);
void waiters_wake(core *c);             /* answers those whose wait is over */
void waiters_drop(core *c, session *s); /* without an answer */
/* Answers later: when it is over, or at the latest after wait_ms. 0: no place, nothing was done. */
int waiter_add(core *c, const request *rq, uint64_t of_lease, uint32_t held_tokens,
               uint32_t first_page, uint64_t wait_ms);
int waiter_cancel(core *c, session *s, uint64_t number);
uint64_t waiters_tick(core *c, uint64_t now_ms);

/* --- core_pin.c --- */
void serve_pin(core *c, request *rq);
void serve_unpin(core *c, request *rq);
void pins_hit(core *c, const lease *l);           /* it was asked for just now */
uint32_t pins_end_below(core *c, radix_node top); /* with top itself; returns their number */
int pins_are_below(const core *c, radix_node top);
uint64_t pins_tick(core *c, uint64_t now_ms);
uint64_t node_bytes(const core *c, radix_node node); /* of all its pages, encoded */

/* --- core_claim.c --- */
void claim_promise(core *c, lease *l); /* it computes what nobody else does, from now on */
void claim_kept(core *c, lease *l);    /* a page was sealed */
void claim_end(core *c, lease *l);     /* it computes nothing any more */
uint64_t claims_tick(core *c, uint64_t now_ms);
int claims_make_room(core *c); /* a node, from the end of an expired claim; 0: there is none */

/* --- core_event.c --- */
void event_added(core *c, radix_node node);   /* it is held from now on */
void event_removed(core *c, radix_node node); /* before it goes; nothing if it was not announced */
void event_moved(core *c, radix_node node);   /* node_tier may have changed */
void serve_snapshot(core *c, request *rq);

/* --- core_span.c --- */
/* The spans of a request whose c->tokens[0 .. n_tokens) go on from token `before` of the path; the
 * first n_kept of them are the tree's. 0: they are nonsense. */
int spans_take(core *c, const kvt_acquire_req *req, uint32_t before, uint32_t n_tokens,
               uint32_t n_kept);
/* Page number `page` of the path, as the request's spans have it. */
void mark_of_page(const core *c, uint32_t page, uint32_t page_tokens, page_mark *ret);
void node_mark(core *c, radix_node node);          /* a new one, of the request's path */
int node_has_mark(const core *c, radix_node node); /* that which the request's path has there */
void node_unmark(core *c, radix_node node);        /* before it goes */
int node_is_marked(const core *c, radix_node node);
int nodes_marked_alike(const core *c, radix_node a, radix_node b);
/* Cuts the match where contents differ although tokens do not. */
void spans_check_match(const core *c, radix_node from, radix_match *m);

/* --- core_flush.c --- */
void serve_flush(core *c, request *rq);
uint64_t flushes_tick(core *c, uint64_t now_ms); /* answers those that are done */
/* As if the path up to this node had been flushed; nothing waits for the disk to forget. */
void flush_from(core *c, realm *r, radix_node top);
int is_flushed(const core *c, radix_node node);        /* itself, or something in front of it */
int is_on_disk_alone(const core *c, page_handle page); /* and no job is at it */
/* The way to unpin: what was flushed meanwhile goes with its last pin. */
void node_unpin(core *c, radix_node node);
/* After a pin was taken off: drops what was flushed and nobody holds any more, from node up.
 * Returns whether the node was flushed. */
int flushed_let_go(core *c, radix_node node);
/* --- core_tier.c: where pages are --- */
kvt_status tiers_open(core *c);                 /* nothing to do without host_bytes */
void tiers_close(tiers *t);                     /* NULL is accepted */
uint32_t page_slack(const core_config *config); /* pages that only jobs and views may hold */
tier_page *tier_of(const core *c, page_handle page);
void tier_sealed(core *c, page_handle page, uint32_t realm_slot, uint32_t slot, uint32_t bytes);
void tier_placed(core *c, page_handle page);  /* a copy came or went: list it anew */
void tier_held(core *c, radix_node node);     /* from now on */
void tier_unlist(core *c, page_handle page);  /* it leaves the tree */
void tier_withdraw(core *c, radix_node node); /* from the disk, now and for good */
/* The record is to be erased; 0: there is no place for that. Until it has been, nothing is written
 * under its key. */
int erase_push(tiers *t, const tier_erase *e);
void erase_pop(tiers *t); /* the first */
int key_is_leaving(const tiers *t, const tier_key *key);
void tier_forget(core *c, uint32_t index); /* it is gone, and so are its copies */
void tier_set_host(core *c, page_handle page, uint32_t frame);
void tier_drop_host(core *c, page_handle page);
void tier_set_flags(core *c, page_handle page, uint32_t set, uint32_t clear);

kvt_status tiers_audit(const core *c, char *why, size_t why_bytes);
/* Frames that jobs of these two kinds have and no page has yet. */
void tiers_refs_of(const core *c, uint32_t *refs); /* of its jobs, added to refs[page index] */
uint32_t tiers_frames_of(const core *c, core_job_kind kind, core_job_kind other);

/* --- core_room.c: who has to go in a tier --- */
uint64_t key_now(const core *c);     /* what a page in use counts as */
#define KEY_HALF (UINT64_C(1) << 63) /* keys of nodes, as orders have them, are below */
uint64_t key_of_entry(const core *c, const page_entry *entry); /* of its node */
/* The host tier's copies of pages that stand in the arena, too, go first, the most used of them in
 * front: they would be missed the latest. */
uint64_t host_key_of_entry(const core *c, const page_entry *entry);
uint64_t page_key(const core *c, page_handle page); /* of its node, or that if it is busy */
/* The page of the order that goes first and is not in use, or ORDER_NONE. */
uint32_t order_coldest(core *c, order *in, uint64_t (*key_of)(const core *, page_handle),
                       int (*is_in_use)(const core *, page_handle));
int page_is_in_use(const core *c, page_handle page); /* as a reader may see it now */
int room_device(core *c, uint32_t arena);            /* one frame of it is free; 0: none could be */
/* Can pages leave it that stay only as long as a job reads them? */
int room_is_coming(const core *c, uint32_t arena);
int room_device_page(core *c, page_handle page); /* that of this page */
/* A host frame, for a page of this key; UINT64_MAX: for one on its way up. */
kvt_status room_host(core *c, uint64_t bytes, uint64_t for_key, uint32_t *ret_frame);
void tier_never(core *c, page_handle page);
uint64_t tier_charge(const tier_page *at); /* what its record takes of the disk's budget */
/* Does the disk take nothing for now? Then what is cold and in memory alone makes room there. */
int disk_takes_none(const tiers *t);
/* For a record. 0: not now, but perhaps when records are erased; disk_stuck: not even then. */
int room_disk(core *c, uint64_t bytes);

/* --- core_spill.c: downwards --- */
/* A full disk may be asked again when it is time to; when that is next, or UINT64_MAX. */
uint64_t disk_tick(core *c, uint64_t now_ms);
void tiers_pump(core *c); /* starts what should be copied down, as far as jobs are free */
void tier_job_done(core *c, core_job *job);
core_job *tier_job(core *c, core_job_kind kind, uint32_t realm_slot); /* NULL: all are busy */
core_copy *tier_job_add(core *c, core_job *job, page_handle page, uint32_t flag);
void tier_job_submit(core *c, core_job *job);
void tier_job_free(core *c, core_job *job);
void record_of(core *c, page_handle page, core_record *ret_record);
/* Is the page in front of it neither on disk nor in the host tier? */
int waits_for_arena(const core *c, page_handle page);
int spill_is_over(const core *c);
uint32_t dirty_never(const core *c); /* of what is dirty in the arenas */
/* Nothing is under way, since the disk is full: it may have room again when it is asked the next
 * time. */
int spill_is_stuck(const core *c);

/* --- core_tend.c: SPILL, VERIFY --- */
void serve_spill(core *c, request *rq);
void serve_verify(core *c, request *rq);
void verify_done(core *c, const core_job *job);
int tend_is_over(const core *c, const waiter *w);
void reply_tend(core *c, const waiter *w);

/* --- core_found.c --- */
void found_let_go(core *c, radix_node top); /* the scan's pins below it, with itself */
void found_pins_of(const core *c, uint32_t *pins, uint8_t *claimed); /* adds its own, by node */

/* --- core_promote.c: upwards --- */
/* Starts what brings up the pages that the lease needs of its path, or of its view; returns whether
 * any is on its way. The path must be pinned. */
int promote_lease(core *c, const lease *l);
void promote_done(core *c, core_job *job);
/* Adds the page to a job that reads it from disk for nobody (NULL: a new one); not if it cannot be.
 * Returns the job, NULL if there is none. */
core_job *promote_for_cooling(core *c, core_job *job, page_handle page);
void lease_note_tiers(core *c, lease *l); /* it asks for its pages now */
uint32_t lease_page_tier(const core *c, const lease *l, page_handle page); /* where it was then */
void lease_count_tiers(core *c, lease *l);                                 /* when it is answered */
/* End of the held path, if what is missing of it in the arena is on its way up; else 0. */
uint32_t lease_lifting_end(const core *c, const lease *l);
void serve_prefetch(core *c, request *rq);
/* The first slot from this one on whose page is needed behind so many tokens and is not in the
 * arena; the number of slots if there is none. */
uint32_t next_absent(const core *c, const realm *r, radix_node node, uint32_t n_tokens,
                     uint32_t slot);

/* --- core_silence.c: what a disk does not give --- */
/* Has the disk been away, or answered no read, for so long that what it alone has is out of reach?
 */
int disk_is_silent(const core *c);
/* Of the path that is asked for, c->asked behind `from`: forgets the first page that is out of
 * reach, and what hangs on it, so that it can be computed again. What is pinned stays; behind a
 * base (from is no root), also what is leased. */
void forget_out_of_reach(core *c, const realm *r, radix_node from, uint32_t n_tokens);
int disk_may_read(core *c, page_handle page);  /* may it be asked for it now? */
void disk_read_failed(core *c, tier_page *at); /* it could not, and has it still */

/* --- core_lost.c --- */
void page_lost(core *c, page_handle page); /* no tier has it */
/* The same on purpose: it is not in the arena. Returns how many pages went, it and those behind. */
uint32_t page_let_go(core *c, page_handle page);

/* --- core_cool.c --- */
kvt_status cooling_open(core *c, char *why, size_t why_bytes); /* nothing to do without a ladder */
void cooling_close(cooling *k);                                /* NULL is accepted */
void realm_ladder(const core *c, realm *r); /* its shapes are known; core_ladder.c */
void cool_sealed(core *c, page_handle page, uint32_t realm_slot, uint32_t slot, uint32_t bytes);
void cool_unlist(core *c, page_handle page);  /* it leaves the tree */
void cool_fetched(core *c, page_handle page); /* it has been read from disk, or not */
void cool_fetch_ended(core *c);
void cool_pump(core *c);
void cool_job_done(core *c, core_job *job);
int page_is_cooling(const core *c, page_handle page); /* a job reads its bytes */
int cooling_is_idle(const core *c);
int cooling_has_ended(const core *c, uint64_t last_job);
/* Frames that its job has and no page has yet; the job's pages are added to refs (may be NULL). */
uint32_t cooling_refs_of(const core *c, uint32_t *refs, int in_host);
page_handle cooling_page(const core *c, uint32_t i); /* of the job that cools; 0: no more */
const char *cooling_fault(const core *c, uint32_t index);

/* --- core_evict.c --- */
/* Makes room for a slab of such frames; 0: no. */
int room_device_slab(core *c, uint32_t arena, uint64_t bytes);
void evict_subtree(core *c, radix_node top); /* an idle node and all below it */
int evict_coldest(core *c);                  /* 0: nothing may go */
kvt_status frame_alloc(core *c, uint32_t arena, uint64_t bytes,
                       uint32_t *ret_frame); /* evicts for it */
/* Short held pages whose tokens begin this one are covered by it from now on. */
void replace_short(core *c, radix_node node);
kvt_status node_alloc(core *c, radix_node parent, const uint32_t *tokens, uint32_t n_tokens,
                      uint64_t n_bytes,
                      radix_node *ret_node); /* evicts for it; KVT_EEXIST as radix_insert */
void node_discard(core *c, radix_node node); /* leaf, no pins: the tree's reference is dropped */
void page_drop(core *c, page_handle page);   /* a reference; frees the frame with the last one */

#endif
