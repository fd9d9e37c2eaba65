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
#include "store/frames.h"
#include "store/page_table.h"

enum { NONE = 0 };

typedef struct realm {
    uint32_t number;      /* 0: free */
    uint32_t last_number; /* of the one that had this place: a number is never given out twice */
    radix_node root;
    kvt_page_shape shapes[KVT_MAX_GROUPS];
    uint32_t n_bytes;
    uint8_t canonical[KVT_WIRE_MAX_REALM_BYTES];
    kvt_realm_names names;
    kvt_realm desc; /* its strings are names' */
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
    uint32_t n_jobs;    /* under way, the two below included */
    int staging;        /* handle, -1: none */
    uint64_t staging_bytes;
    uint64_t orphaned_ms;
    uint64_t newest; /* highest request number seen */
    uint64_t seen;   /* bit i: number newest - i was seen */
    uint64_t requests;
    int staging_busy, unstaging_busy; /* the embedded jobs are under way */
    core_job stage_job, unstage_job;
} session;

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
    radix_node tail;
    radix_node partial; /* RADIX_NONE: none */
    uint32_t partial_tokens;
    uint32_t n_tokens;  /* asked for */
    uint32_t n_claimed; /* part of the session's */
    uint8_t claim;
    uint8_t leave_one;
    uint64_t number; /* request that gave it */
} lease;

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

typedef struct waiter {
    uint32_t session; /* slot + 1; 0: free */
    core_ticket ticket;
    uint64_t number;
    uint64_t lease;
    uint32_t held_tokens;
    uint32_t first_page;
    uint64_t due_ms;
    uint32_t next; /* index + 1: list in order of arrival, or the free list */
} waiter;

struct core {
    core_config config;
    core_env env;
    uint32_t uids[64];
    char tenant[64];
    char arena_path[KVT_WIRE_MAX_PATH + 1];
    char staging_dir[KVT_WIRE_MAX_PATH + 1];

    radix *tree;
    page_table *pages;
    frames *frames;
    void *tree_memory, *pages_memory, *frames_memory;

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

    waiter *waiters;
    uint32_t max_waiters, free_waiter, first_waiter, last_waiter, n_waiters;
    int wake; /* something that a waiter may wait for has happened */

    pin *pins; /* [max_pins] */
    uint32_t n_pins;
    uint64_t last_pin, pinned_bytes;
    uint32_t n_hidden; /* nodes that were flushed and are still held, the topmost of each */

    core_job *jobs; /* seal jobs */
    core_copy *copies;
    core_job *free_jobs;
    uint32_t n_jobs; /* under way, all kinds */

    uint32_t n_held; /* sealed pages in the tree */
    uint64_t clock;  /* of the policy: rises with every use */
    int draining;
    core_counts counts; /* the counters; the rest is filled in when asked for */

    uint32_t *tokens; /* scratch: the tokens of one acquire */
    radix_node *path; /* scratch: the nodes of one path, by depth */
    uint8_t *out;     /* scratch: the message being written */
    radix_node
        *frame_node; /* scratch of evict_slab: [max_frames], which node's page a frame holds */
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

/* --- core_session.c --- */
pipe_entry *pipe_find(core *c, uint32_t pipe);
session *session_of_number(core *c, uint32_t number);
void serve_hello(core *c, request *rq, pipe_entry *pipe);
void serve_stage(core *c, request *rq);
void serve_goodbye(core *c, request *rq);
void session_end(core *c, session *s);
void session_job_done(core *c, session *s); /* one fewer under way; frees an ENDING one at 0 */
void stage_job_done(core *c, core_job *job);
int session_number_fresh(session *s, uint64_t number); /* and remembers it */
uint64_t sessions_tick(core *c, uint64_t now_ms);
static inline uint32_t session_slot(const core *c, const session *s) {
    return (uint32_t)(s - c->sessions);
}

/* --- core_realm.c --- */
void serve_realm(core *c, request *rq);
realm *realm_get(core *c, uint32_t number);
uint64_t realm_page_bytes(const realm *r); /* encoded, of all groups of a rank, full */

/* --- core_slots.c: the pages of a node, radix_slots(c->tree, node) of them --- */
page_handle node_page(const core *c, radix_node node, uint32_t slot);
const page_entry *node_entry(const core *c, radix_node node, uint32_t slot);
int node_is_sealed(const core *c, radix_node node); /* all of them */
/* Wherever its bytes are. */
static inline int entry_is_sealed(const page_entry *entry) {
    return entry->state != PAGE_FILLING && entry->state != PAGE_COPYING;
}
/* Who computes it, of a node that is not held. */
uint32_t node_filler(const core *c, radix_node node);
void node_set_filler(core *c, radix_node node, uint32_t filler);
kvt_status node_claim_pages(core *c, radix_node node); /* KVT_EFULL: none was */
void node_drop_pages(core *c, radix_node node);

/* --- core_lease.c --- */
uint64_t lease_id(const core *c, const lease *l);
lease *lease_get(core *c, const session *s, uint64_t id);
lease *lease_new(core *c, session *s, uint32_t realm_slot, uint64_t number);
void lease_free(core *c,
                lease *l); /* with its pins, and the unsealed pages that nobody else claims */
/* Lets go of a path that a lease had: unpins, drops what nobody else claims, disowns the rest. */
void lease_drop_path(core *c, lease *l, radix_node tail, radix_node partial);
void lease_recount(core *c, lease *l); /* n_claimed, after its path or the pages on it changed */
radix_node lease_held(const core *c, const lease *l);        /* deepest held node of the path */
uint32_t lease_stored_tokens(const core *c, const lease *l); /* tokens of the path that are known */
uint32_t lease_held_tokens(const core *c, const lease *l);   /* without leave_one */
uint32_t lease_computing_end(core *c, const lease *l);       /* token; 0: nobody else is at it */
int lease_take_over(core *c, lease *l); /* owns what nobody owns; returns how many pages */
void reply_lease(core *c, core_ticket ticket, uint16_t op, uint64_t number, lease *l,
                 uint32_t first_page);
void put_held_pages(core *c, kvt_writer *w, const lease *l, uint32_t first_page, uint32_t n_pages);
uint32_t lease_held_pages(const core *c, const lease *l);
/* Tokens from the root to the end of the node. */
uint32_t path_tokens(const core *c, radix_node node);
/* The node of the path at this depth (1 ..), or the root at 0. */
radix_node path_at(const core *c, radix_node tail, uint32_t depth);
int is_held(const core *c, radix_node node); /* roots are */
void serve_fork(core *c, request *rq);
void serve_release(core *c, request *rq);
void serve_cancel(core *c, request *rq);

/* --- core_acquire.c --- */
void serve_acquire(core *c, request *rq);

/* --- core_seal.c --- */
void serve_seal(core *c, request *rq);
void seal_job_done(core *c, core_job *job);

/* --- core_wait.c --- */
void serve_wait(core *c, request *rq);
void waiters_wake(core *c);             /* answers those whose wait is over */
void waiters_drop(core *c, session *s); /* without an answer */
int waiter_cancel(core *c, session *s, uint64_t number);
uint64_t waiters_tick(core *c, uint64_t now_ms);

/* --- core_pin.c --- */
void serve_pin(core *c, request *rq);
void serve_unpin(core *c, request *rq);
void pins_hit(core *c, const lease *l);           /* it was asked for just now */
uint32_t pins_end_below(core *c, radix_node top); /* with top itself; returns their number */
uint64_t pins_tick(core *c, uint64_t now_ms);
uint64_t node_bytes(const core *c, radix_node node); /* of all its pages, encoded */

/* --- core_flush.c --- */
void serve_flush(core *c, request *rq);
int is_flushed(const core *c, radix_node node); /* itself, or something in front of it */
/* The way to unpin: what was flushed meanwhile goes with its last pin. */
void node_unpin(core *c, radix_node node);
/* After a pin was taken off: drops what was flushed and nobody holds any more, from node up.
 * Returns whether the node was flushed. */
int flushed_let_go(core *c, radix_node node);

/* --- core_evict.c --- */
int evict_coldest(core *c);                                           /* 0: nothing may go */
kvt_status frame_alloc(core *c, uint64_t bytes, uint32_t *ret_frame); /* evicts for it */
kvt_status node_alloc(core *c, radix_node parent, const uint32_t *tokens, uint32_t n_tokens,
                      radix_node *ret_node); /* evicts for it; KVT_EEXIST as radix_insert */
void node_discard(core *c, radix_node node); /* leaf, no pins: the tree's reference is dropped */
void page_drop(core *c, page_handle page);   /* a reference; frees the frame with the last one */

#endif
