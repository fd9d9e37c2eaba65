/*
 * wire.h - messages between workers and the daemon, as client/PROTOCOL.md defines them to the byte.
 * Pure: turns structures into bytes and back, checks every length before it is used, allocates
 * nothing, does no I/O. Used by the library, the daemon, the simulator and the fuzzers alike.
 *
 * A message is a header of 32 bytes and a body. All numbers are little-endian; strings are a u16
 * length and bytes without NUL; nothing is aligned beyond what the order of fields gives. A message
 * must be consumed exactly: bytes left over are KVT_EPROTO, as is a length that points outside.
 */
#ifndef KVT_CLIENT_WIRE_H
#define KVT_CLIENT_WIRE_H

#include "client/kvtrunk.h"

enum {
    KVT_WIRE_VERSION = 2,
    KVT_WIRE_HEADER_BYTES = 32,
    KVT_WIRE_MAX_BYTES = 8 << 20, /* of one message; nng closes a pipe that sends more */
    KVT_WIRE_TOKEN_BYTES = 16,    /* session token */
    KVT_WIRE_MAX_PATH = 255,      /* bytes of a path or name in a message */
    KVT_WIRE_MAX_GPU = 31,        /* of a place on the bus */
    KVT_WIRE_MAX_REALM_BYTES = 2048,
    KVT_WIRE_MAX_RELEASE = 1024,                /* leases of one RELEASE */
    KVT_WIRE_MAX_SPANS = 4096,                  /* of one ACQUIRE */
    KVT_WIRE_MAX_RUNS = KVT_MAX_VIEW_PICKS + 2, /* of one lease: sinks, picks, window */
};
#define KVT_WIRE_MAGIC 0x5754564bu /* "KVTW" */

typedef enum kvt_op {
    KVT_OP_HELLO = 1,   /* who I am; or: I am back, with this session token */
    KVT_OP_STAGE = 2,   /* this is my staging file */
    KVT_OP_REALM = 3,   /* this is what must be equal; gives a number for it */
    KVT_OP_ACQUIRE = 4, /* from a root, or (EXTEND) from a lease */
    KVT_OP_FORK = 5,
    KVT_OP_WAIT = 6,
    KVT_OP_SEAL = 7,
    KVT_OP_RELEASE = 8,
    KVT_OP_CANCEL = 9, /* undo the request with this number, whether it was done or waits */
    KVT_OP_STATUS = 10,
    KVT_OP_TREE = 11,
    KVT_OP_GOODBYE = 12,
    KVT_OP_PING = 13, /* the daemon to itself: proves that the socket still takes connections */
    KVT_OP_PIN = 14,  /* keep a prefix for a while, whoever leases it or not */
    KVT_OP_UNPIN = 15,
    KVT_OP_FLUSH = 16, /* forget the tenant's pages, a realm's, or those that begin with tokens */
    KVT_OP_PINS = 17,  /* reports, as TREE */
    KVT_OP_LEASES = 18,
    KVT_OP_SNAPSHOT = 19,   /* the pages that can be had, in parts; where events are told */
    KVT_OP_SPILL = 20,      /* answered when everything has been written down */
    KVT_OP_VERIFY = 21,     /* answered when every record on disk has been checked */
    KVT_OP_PREFETCH = 22,   /* brings the pages of a prefix up, ahead of an ACQUIRE */
    KVT_OP_IMPORTANCE = 23, /* of rows that a lease has: what a view with a budget picks by */
    KVT_OP_SUSPECT = 24,    /* a page's bytes are damaged, a reader says: look at them */
    KVT_N_OPS
} kvt_op;

enum { KVT_WIRE_REQUEST = 1, KVT_WIRE_REPLY = 2, KVT_WIRE_EVENTS = 3 };

/*
 * offset size field
 *      0    4 magic
 *      4    1 version
 *      5    1 kind: KVT_WIRE_REQUEST, KVT_WIRE_REPLY, KVT_WIRE_EVENTS
 *      6    2 op (a reply repeats the request's)
 *      8    4 body_bytes
 *     12    4 status (reply: kvt_status; request: 0)
 *     16    8 number: of the request within its session, rising; a reply repeats it; events: of the
 *             first of them
 *     24    8 boot_id (request: of the daemon that the sender knows, 0 in HELLO; reply: of this
 * one)
 */
typedef struct kvt_wire_header {
    uint8_t kind;
    uint16_t op;
    uint32_t body_bytes;
    uint32_t status;
    uint64_t number;
    uint64_t boot_id;
} kvt_wire_header;

/* A string inside a message: not NUL-terminated, points into it. */
typedef struct kvt_wire_str {
    const char *at;
    uint16_t n_bytes;
} kvt_wire_str;

/* --- bodies. Requests are "..._req", replies "..._rep". A reply whose status is not KVT_OK has as
 *     body one string: what went wrong, in words. -----------------------------------------------
 */

typedef struct kvt_hello_req {
    uint8_t token[KVT_WIRE_TOKEN_BYTES]; /* zeros: a new session */
    uint32_t pid;                        /* what getpid() said; the socket's word counts more */
    kvt_wire_str name;
} kvt_hello_req;

typedef struct kvt_hello_rep {
    uint8_t token[KVT_WIRE_TOKEN_BYTES];
    uint32_t session;    /* small number for reports; never reused within a boot */
    uint8_t resumed;     /* 1: the session with that token, its realms, staging and leases are yours
                            again */
    uint32_t max_bytes;  /* of a message */
    uint32_t max_tokens; /* of a path */
    uint32_t max_leases;
    uint32_t max_claimed_pages; /* of the session */
    uint32_t page_tokens;       /* the largest that the daemon was configured for */
    uint32_t grace_ms;
    uint32_t n_gpus; /* that have an arena each; 0: the one that there is, is in host memory */
    kvt_wire_str staging_dir;
    kvt_wire_str tenant;
} kvt_hello_rep;

/* The file staging_dir/name, made by the worker (O_EXCL), owned by its uid, mode 0600 or group
 * readable. The daemon opens it before it answers; the worker unlinks it after that. A second STAGE
 * replaces the first (refused with KVT_EBUSY while a seal is under way). */
typedef struct kvt_stage_req {
    uint64_t bytes;
    kvt_wire_str name; /* no slash, does not start with a dot */
} kvt_stage_req;

/* The realm as canonical bytes: kvt_wire_realm_encode. */
typedef struct kvt_realm_req {
    uint32_t rank;     /* of this worker, below the geometry's n_ranks */
    uint8_t gpu_named; /* 1: it must be that GPU; 0: it may be another if that has no arena */
    kvt_wire_str gpu;  /* that the worker is on: "0000:01:00.0"; "": it does not say */
    const uint8_t *canonical;
    uint32_t n_bytes;
} kvt_realm_req;

typedef struct kvt_realm_rep {
    uint32_t realm; /* 1 .. ; number within the boot, the same for every session of the tenant */
    uint64_t geometry_hash;
    uint64_t page_bytes;     /* encoded, full page */
    kvt_wire_str arena_path; /* of the rank's pages; to be opened read-only. A session has one */
} kvt_realm_rep;

enum {
    KVT_ACQUIRE_CLAIM = 1,     /* as KVT_CLAIM */
    KVT_ACQUIRE_LEAVE_ONE = 2, /* as KVT_LEAVE_ONE */
    KVT_ACQUIRE_VIEW = 4,      /* sinks, window and budget say which rows are wanted */
    KVT_ACQUIRE_SPANS = 8,     /* spans follow the tokens */
};

typedef struct kvt_acquire_req {
    uint32_t realm;        /* 0 with a base lease */
    uint32_t rank;         /* whose pages; with a base lease that one's */
    uint32_t flags;        /* KVT_ACQUIRE_... */
    uint64_t base;         /* 0, or the lease to go on from, which then names the new path */
    uint32_t keep_tokens;  /* of the base's path */
    uint32_t first_page;   /* the reply describes pages from this one on */
    uint64_t group;        /* 0, or of ranks: the first of them that sends `request` fixes the */
    uint64_t request;      /* answer for all; 0 without a group */
    uint32_t sinks;        /* of a view: the first tokens; */
    uint32_t window;       /* the last ones; */
    uint32_t budget;       /* so many in all, 0: no more than those */
    uint32_t n_tokens;     /* number of tokens in this message */
    const uint8_t *tokens; /* n_tokens x u32, as they stand in the message, unaligned */
    uint32_t n_spans;      /* read: 0 without the flag */
    const uint8_t *spans;  /* n_spans x 24 bytes: kvt_wire_get_span */
} kvt_acquire_req;

/* Tokens that stand for something else: kvt_span. 24 bytes on the wire. */
typedef struct kvt_wire_span {
    uint32_t first_token; /* of the path */
    uint32_t n_tokens;
    uint8_t hash[16];
} kvt_wire_span;

typedef struct kvt_fork_req {
    uint64_t lease;
    uint32_t n_tokens;
} kvt_fork_req;

typedef struct kvt_wait_req {
    uint64_t lease;
    uint32_t held_tokens; /* answer when more than these are held */
    uint32_t wait_ms;
    uint32_t first_page;
} kvt_wait_req;

/* Where a page's bytes lie. 32 bytes on the wire. */
typedef struct kvt_wire_page {
    uint64_t offset;     /* from the arena's data_offset */
    uint64_t generation; /* of the frame */
    uint32_t frame;      /* index into the generations */
    uint32_t bytes;
    uint32_t sealer;  /* session number that sealed it */
    uint16_t rows;    /* valid rows of the page */
    uint8_t tier;     /* kvt_tier: where it was when the lease asked for it */
    uint8_t reserved; /* 0 */
} kvt_wire_page;

/* The pages of one layer group, up to the one that holds the last held token. Of a view only those
 * in which it has rows, one after the other. */
typedef struct kvt_page_list {
    uint32_t first_page;
    uint32_t n_pages;
    const uint8_t *pages; /* n_pages x 32 bytes: kvt_wire_get_page */
} kvt_page_list;

/* The first token that a layer group needs behind n tokens; 0 without a window. */
static inline uint32_t kvt_wire_window_first(uint32_t n_tokens, uint32_t window) {
    return window && n_tokens >= window ? n_tokens - (window - 1) : 0;
}

/* Tokens whose rows a view has. 8 bytes on the wire. */
typedef struct kvt_wire_run {
    uint32_t first_token;
    uint32_t n_tokens;
} kvt_wire_run;

/* Reply of ACQUIRE, FORK, WAIT. */
typedef struct kvt_lease_rep {
    uint64_t lease;
    uint32_t n_tokens;
    uint32_t held_tokens;
    uint32_t computing_tokens;
    uint32_t claimed_tokens;
    uint32_t n_runs;     /* of a view; 0: all that is held */
    const uint8_t *runs; /* n_runs x 8 bytes: kvt_wire_get_run */
    uint32_t n_lists;    /* layer groups of the realm: 1 .. KVT_MAX_GROUPS */
    kvt_page_list lists[KVT_MAX_GROUPS];
} kvt_lease_rep;

typedef struct kvt_seal_page {
    uint32_t page;   /* number in the path */
    uint16_t group;  /* layer group */
    uint32_t bytes;  /* encoded; 0: the page has passed out of the group's window, there are none */
    uint64_t offset; /* in the staging file */
} kvt_seal_page;

typedef struct kvt_seal_req {
    uint64_t lease;
    uint32_t n_pages;     /* 1 .. KVT_MAX_SEAL_PAGES; by rising page number, then group */
    const uint8_t *pages; /* n_pages x 20 bytes: kvt_wire_get_seal_page */
} kvt_seal_req;

/* The status of the first page that was not sealed (KVT_OK: all were) and the pages from the first
 * of the message on that are held now. */
typedef struct kvt_seal_rep {
    uint32_t page_status;
    uint32_t held_tokens;
    uint32_t n_lists;
    kvt_page_list lists[KVT_MAX_GROUPS];
} kvt_seal_rep;

typedef struct kvt_release_req {
    uint32_t n_leases;
    const uint8_t *leases; /* n_leases x u64: kvt_wire_get_u64 */
} kvt_release_req;

typedef struct kvt_release_rep {
    uint32_t n_leases;
    const uint8_t *statuses; /* n_leases x u32: kvt_wire_get_u32. KVT_OK, KVT_ESTALE, KVT_ENOENT */
} kvt_release_rep;

typedef struct kvt_cancel_req {
    uint64_t number;
} kvt_cancel_req;

typedef struct kvt_tree_req {
    uint32_t max_lines;
} kvt_tree_req;

typedef struct kvt_pin_req {
    uint32_t realm;
    uint32_t ttl_ms;       /* from the last hit on; 0: until UNPIN */
    uint64_t max_bytes;    /* of pages; 0: no bound of its own */
    uint32_t n_tokens;     /* at least 1 */
    const uint8_t *tokens; /* n_tokens x u32, unaligned */
} kvt_pin_req;

typedef struct kvt_pin_rep {
    uint64_t pin;
    uint32_t n_tokens; /* leading tokens that are pinned */
    uint64_t n_bytes;  /* of their pages */
} kvt_pin_rep;

typedef struct kvt_unpin_req {
    uint64_t pin;
} kvt_unpin_req;

enum { KVT_WIRE_FLUSH_TENANT = 0, KVT_WIRE_FLUSH_REALM = 1, KVT_WIRE_FLUSH_PREFIX = 2 };

typedef struct kvt_flush_req {
    uint32_t scope;    /* KVT_WIRE_FLUSH_... */
    uint32_t realm;    /* 0 with FLUSH_TENANT */
    uint32_t n_tokens; /* at least 1 with FLUSH_PREFIX, else 0 */
    const uint8_t *tokens;
} kvt_flush_req;

typedef struct kvt_flush_rep {
    uint64_t pages; /* that are gone */
    uint64_t n_bytes;
    uint64_t held_pages; /* that somebody still leases: found no more, and gone when let go */
    uint64_t held_bytes;
    uint32_t pins; /* that were ended */
} kvt_flush_rep;

/* SPILL, VERIFY. */
typedef struct kvt_tiers_req {
    uint32_t wait_ms;
} kvt_tiers_req;

typedef struct kvt_tiers_rep {
    uint64_t pages_dirty; /* that wait to be copied down */
    uint64_t pages_disk;
    uint64_t checked; /* VERIFY: records; 0 with SPILL */
    uint64_t corrupt; /* of these, damaged and dropped */
} kvt_tiers_rep;

/* PREFETCH: as ACQUIRE from a root. */
typedef struct kvt_prefetch_req {
    uint32_t realm;
    uint32_t n_tokens;
    const uint8_t *tokens;
} kvt_prefetch_req;

typedef struct kvt_prefetch_rep {
    uint32_t held_tokens;  /* in whichever tier */
    uint32_t ready_tokens; /* of these, in the arena now; the rest is on its way if there is room */
} kvt_prefetch_rep;

/* Importance of rows, counted as the lease has them. */
typedef struct kvt_importance_req {
    uint64_t lease;
    uint32_t first_row;
    uint32_t n_rows;           /* at least 1 */
    const uint8_t *importance; /* n_rows x u16: kvt_wire_get_u16 */
} kvt_importance_req;

typedef struct kvt_importance_rep {
    uint32_t n_rows; /* of these, whose pages can be had: it was noted of them */
} kvt_importance_rep;

/* A page of a lease, whose bytes are not right as the worker has read them in the arena. */
typedef struct kvt_suspect_req {
    uint64_t lease;
    uint32_t page;  /* number in the path */
    uint32_t group; /* layer group */
} kvt_suspect_req;

typedef struct kvt_suspect_rep {
    uint32_t forgotten; /* 1: no ACQUIRE gets it any more; 0: the daemon finds it right */
} kvt_suspect_rep;

/* An importance (0 or more, finite) as 16 bits: its order is kept, and 8 bits of precision. */
enum { KVT_WIRE_MAX_IMPORTANCE = 0xfeff };
static inline uint16_t kvt_wire_importance(float importance) {
    union {
        float f;
        uint32_t u;
    } bits = {importance};
    return (uint16_t)(bits.u >> 15 & 0xffff); /* without the sign: -0 is 0 */
}

enum { KVT_EVENT_ADDED = 1, KVT_EVENT_REMOVED = 2, KVT_EVENT_MOVED = 3 };

/* What happened to a page. A message of kind KVT_WIRE_EVENTS (op SNAPSHOT) has a u32 number of
 * them, and they follow each other. */
typedef struct kvt_event {
    uint8_t kind; /* KVT_EVENT_... */
    uint8_t tier; /* ADDED, MOVED: 0 device, 1 host, 2 disk */
    uint64_t page;
    uint32_t place; /* one page at a time is there: what parts of a snapshot are made of */
    /* ADDED alone */
    uint64_t parent; /* page in front; 0: it is the first of its realm */
    uint32_t realm;
    uint64_t n_bytes;
    uint16_t n_tokens;
    uint16_t n_listed;     /* n_tokens, or 0 where the daemon keeps them to itself */
    const uint8_t *tokens; /* read: n_listed x u32, unaligned */
} kvt_event;

typedef struct kvt_snapshot_req {
    uint32_t first_place; /* 1 .. */
} kvt_snapshot_req;

/* Places first_place .. end_place - 1 as of the event `sequence`. The last part has end_place over
 * max_place. The pages follow as ADDED events. */
typedef struct kvt_snapshot_rep {
    uint64_t sequence;
    uint32_t first_place, end_place, max_place;
    uint32_t n_pages;
    kvt_wire_str events_path; /* "": nobody tells events */
    const uint8_t *pages;     /* read: kvt_wire_next_event */
    size_t n_page_bytes;
} kvt_snapshot_rep;

/* STATUS, TREE, PINS and LEASES answer with text: a u32 length and the bytes. */
typedef struct kvt_text_rep {
    uint32_t n_bytes;
    const char *text;
} kvt_text_rep;

/* --- the arena's head, as it lies in memory (not a message). 128 bytes, little-endian -----------
 */
#define KVT_ARENA_MAGIC 0x4154564bu /* "KVTA" */
typedef struct kvt_arena_header {
    uint32_t magic;
    uint32_t version; /* 1 */
    uint64_t boot_id;
    uint64_t generations_offset;
    uint64_t max_frames;
    uint64_t data_offset;
    uint64_t data_bytes;
    uint64_t file_bytes;
    uint64_t reserved[9];
} kvt_arena_header;

/*
 * Device memory that another process may open. Of an arena: at KVT_ARENA_MEMORY_OFFSET in the file,
 * where all is zero if the data is in the file itself; data_offset is then the file's size. Of a
 * staging area: behind the bytes that STAGE announces, in the staging file; absent if the area is
 * the file alone. 128 bytes, little-endian.
 */
#define KVT_MEMORY_MAGIC 0x4d54564bu /* "KVTM" */
enum { KVT_ARENA_MEMORY_OFFSET = 128, KVT_MEMORY_CUDA = 1 };
typedef struct kvt_wire_memory {
    uint32_t magic;
    uint32_t kind;      /* KVT_MEMORY_CUDA */
    uint64_t bytes;     /* of the allocation */
    char bus_id[32];    /* of the GPU, "0000:01:00.0"; NUL-terminated */
    uint8_t handle[64]; /* for cudaIpcOpenMemHandle */
    uint64_t nonce;     /* of this allocation: the handle may be equal to a dead process's */
    uint64_t reserved;  /* 0 */
} kvt_wire_memory;

/* In kvt_seal_page.offset: the page lies at the offset without this bit, in the staging area's
 * device memory. */
#define KVT_STAGED_ON_DEVICE (UINT64_C(1) << 63)

/* --- writing ------------------------------------------------------------------------------------
 */

/* Appends to at[0 .. room); once something did not fit, `failed` is set and nothing more is
 * written. */
typedef struct kvt_writer {
    uint8_t *at;
    size_t room;
    size_t n_bytes;
    int failed;
} kvt_writer;

/* Starts a message: leaves room for the header. kvt_wire_finish writes it; returns the message's
 * size, or 0 if it did not fit or is over KVT_WIRE_MAX_BYTES. */
void kvt_wire_start(kvt_writer *w, void *at, size_t room);
size_t kvt_wire_finish(kvt_writer *w, kvt_wire_header header);

void kvt_wire_put_u8(kvt_writer *w, uint8_t value);
void kvt_wire_put_u16(kvt_writer *w, uint16_t value);
void kvt_wire_put_u32(kvt_writer *w, uint32_t value);
void kvt_wire_put_u64(kvt_writer *w, uint64_t value);
void kvt_wire_put_bytes(kvt_writer *w, const void *bytes, size_t n_bytes);
void kvt_wire_put_str(kvt_writer *w, const char *text); /* cut at 65,535 bytes */

void kvt_wire_put_hello_req(kvt_writer *w, const kvt_hello_req *req);
void kvt_wire_put_hello_rep(kvt_writer *w, const kvt_hello_rep *rep);
void kvt_wire_put_stage_req(kvt_writer *w, const kvt_stage_req *req);
void kvt_wire_put_realm_req(kvt_writer *w, const kvt_realm_req *req);
void kvt_wire_put_realm_rep(kvt_writer *w, const kvt_realm_rep *rep);
void kvt_wire_put_acquire_req(kvt_writer *w, const kvt_acquire_req *req); /* without the tokens: */
void kvt_wire_put_tokens(kvt_writer *w, const uint32_t *tokens, size_t n_tokens); /* next, these */
void kvt_wire_put_span(kvt_writer *w, const kvt_wire_span *span); /* and then these */
void kvt_wire_put_fork_req(kvt_writer *w, const kvt_fork_req *req);
void kvt_wire_put_wait_req(kvt_writer *w, const kvt_wait_req *req);
void kvt_wire_put_lease_rep(kvt_writer *w, const kvt_lease_rep *rep); /* without the pages, */
void kvt_wire_put_page(kvt_writer *w, const kvt_wire_page *page);   /* which follow list by list */
void kvt_wire_put_seal_req(kvt_writer *w, const kvt_seal_req *req); /* without pages */
void kvt_wire_put_seal_page(kvt_writer *w, const kvt_seal_page *page);
void kvt_wire_put_seal_rep(kvt_writer *w, const kvt_seal_rep *rep); /* without pages */
void kvt_wire_put_pin_req(kvt_writer *w, const kvt_pin_req *req);   /* without the tokens */
void kvt_wire_put_pin_rep(kvt_writer *w, const kvt_pin_rep *rep);
void kvt_wire_put_flush_req(kvt_writer *w, const kvt_flush_req *req); /* without the tokens */
void kvt_wire_put_flush_rep(kvt_writer *w, const kvt_flush_rep *rep);
void kvt_wire_put_tiers_rep(kvt_writer *w, const kvt_tiers_rep *rep);
void kvt_wire_put_prefetch_rep(kvt_writer *w, const kvt_prefetch_rep *rep);
void kvt_wire_put_importance_req(kvt_writer *w, const kvt_importance_req *req); /* without them */
void kvt_wire_put_importance_rep(kvt_writer *w, const kvt_importance_rep *rep);
void kvt_wire_put_suspect_req(kvt_writer *w, const kvt_suspect_req *req);
void kvt_wire_put_suspect_rep(kvt_writer *w, const kvt_suspect_rep *rep);
void kvt_wire_put_event(kvt_writer *w, const kvt_event *event, const uint32_t *tokens);
void kvt_wire_put_snapshot_rep(kvt_writer *w, const kvt_snapshot_rep *rep); /* without pages */
void kvt_wire_put_text_rep(kvt_writer *w, const char *text, size_t n_bytes);

/* --- reading ------------------------------------------------------------------------------------
 */

/* Checks magic, version, kind, op and that body_bytes is what follows. KVT_EPROTO, KVT_EVERSION.
 * *ret_body points into the message. */
kvt_status kvt_wire_open(const void *message, size_t n_bytes, kvt_wire_header *ret_header,
                         const uint8_t **ret_body);

/* Each checks the whole body; KVT_EPROTO, or KVT_ELIMIT for a count over its limit. What is
 * returned points into the body. */
kvt_status kvt_wire_get_hello_req(const uint8_t *body, size_t n_bytes, kvt_hello_req *ret);
kvt_status kvt_wire_get_hello_rep(const uint8_t *body, size_t n_bytes, kvt_hello_rep *ret);
kvt_status kvt_wire_get_stage_req(const uint8_t *body, size_t n_bytes, kvt_stage_req *ret);
kvt_status kvt_wire_get_realm_req(const uint8_t *body, size_t n_bytes, kvt_realm_req *ret);
kvt_status kvt_wire_get_realm_rep(const uint8_t *body, size_t n_bytes, kvt_realm_rep *ret);
kvt_status kvt_wire_get_acquire_req(const uint8_t *body, size_t n_bytes, kvt_acquire_req *ret);
kvt_status kvt_wire_get_fork_req(const uint8_t *body, size_t n_bytes, kvt_fork_req *ret);
kvt_status kvt_wire_get_wait_req(const uint8_t *body, size_t n_bytes, kvt_wait_req *ret);
kvt_status kvt_wire_get_lease_rep(const uint8_t *body, size_t n_bytes, kvt_lease_rep *ret);
kvt_status kvt_wire_get_seal_req(const uint8_t *body, size_t n_bytes, kvt_seal_req *ret);
kvt_status kvt_wire_get_seal_rep(const uint8_t *body, size_t n_bytes, kvt_seal_rep *ret);
kvt_status kvt_wire_get_release_req(const uint8_t *body, size_t n_bytes, kvt_release_req *ret);
kvt_status kvt_wire_get_release_rep(const uint8_t *body, size_t n_bytes, kvt_release_rep *ret);
kvt_status kvt_wire_get_cancel_req(const uint8_t *body, size_t n_bytes, kvt_cancel_req *ret);
kvt_status kvt_wire_get_tree_req(const uint8_t *body, size_t n_bytes, kvt_tree_req *ret);
kvt_status kvt_wire_get_pin_req(const uint8_t *body, size_t n_bytes, kvt_pin_req *ret);
kvt_status kvt_wire_get_pin_rep(const uint8_t *body, size_t n_bytes, kvt_pin_rep *ret);
kvt_status kvt_wire_get_unpin_req(const uint8_t *body, size_t n_bytes, kvt_unpin_req *ret);
kvt_status kvt_wire_get_flush_req(const uint8_t *body, size_t n_bytes, kvt_flush_req *ret);
kvt_status kvt_wire_get_flush_rep(const uint8_t *body, size_t n_bytes, kvt_flush_rep *ret);
kvt_status kvt_wire_get_tiers_req(const uint8_t *body, size_t n_bytes, kvt_tiers_req *ret);
kvt_status kvt_wire_get_tiers_rep(const uint8_t *body, size_t n_bytes, kvt_tiers_rep *ret);
kvt_status kvt_wire_get_prefetch_req(const uint8_t *body, size_t n_bytes, kvt_prefetch_req *ret);
kvt_status kvt_wire_get_prefetch_rep(const uint8_t *body, size_t n_bytes, kvt_prefetch_rep *ret);
kvt_status kvt_wire_get_importance_req(const uint8_t *body, size_t n_bytes,
                                       kvt_importance_req *ret);
kvt_status kvt_wire_get_importance_rep(const uint8_t *body, size_t n_bytes,
                                       kvt_importance_rep *ret);
kvt_status kvt_wire_get_suspect_req(const uint8_t *body, size_t n_bytes, kvt_suspect_req *ret);
kvt_status kvt_wire_get_suspect_rep(const uint8_t *body, size_t n_bytes, kvt_suspect_rep *ret);
kvt_status kvt_wire_get_snapshot_req(const uint8_t *body, size_t n_bytes, kvt_snapshot_req *ret);
/* Without a look at its pages: kvt_wire_next_event has that. */
kvt_status kvt_wire_get_snapshot_rep(const uint8_t *body, size_t n_bytes, kvt_snapshot_rep *ret);
/* The body of events: their number, and the bytes of the first. */
kvt_status kvt_wire_get_events(const uint8_t *body, size_t n_bytes, uint32_t *ret_n,
                               const uint8_t **ret_events, size_t *ret_n_bytes);
/* Takes one event off events[0 .. n_bytes); moves both. */
kvt_status kvt_wire_next_event(const uint8_t **events, size_t *n_bytes, kvt_event *ret);
kvt_status kvt_wire_get_text_rep(const uint8_t *body, size_t n_bytes, kvt_text_rep *ret);
kvt_status kvt_wire_get_error(const uint8_t *body, size_t n_bytes, kvt_wire_str *ret);

/* Element i of the arrays above (the caller keeps i in range). */
uint16_t kvt_wire_get_u16(const uint8_t *array, size_t i);
uint32_t kvt_wire_get_u32(const uint8_t *array, size_t i);
uint64_t kvt_wire_get_u64(const uint8_t *array, size_t i);
void kvt_wire_get_page(const uint8_t *pages, size_t i, kvt_wire_page *ret);
void kvt_wire_get_span(const uint8_t *spans, size_t i, kvt_wire_span *ret);
/* What stands in the tree for the token of a span, `at` tokens from its begin. */
uint32_t kvt_wire_span_word(const kvt_wire_span *span, uint32_t at, uint32_t token);
void kvt_wire_get_run(const uint8_t *runs, size_t i, kvt_wire_run *ret);
void kvt_wire_get_seal_page(const uint8_t *pages, size_t i, kvt_seal_page *ret);
/* Copies n_tokens tokens out of a message. */
void kvt_wire_get_tokens(const uint8_t *tokens, size_t n_tokens, uint32_t *to);

/* --- realms -------------------------------------------------------------------------------------
 */

/*
 * The canonical bytes of a realm: fields in a fixed order, each a u8 tag, a u16 length and its
 * bytes, so that no two realms have the same bytes (PROTOCOL.md "Realm"). The rank is not part of
 * it, since the ranks of a model share one realm. KVT_ELIMIT: a name too long; KVT_EINVAL: no
 * model.
 */
kvt_status kvt_wire_realm_encode(const kvt_realm *realm, uint8_t *to, size_t room,
                                 size_t *ret_n_bytes);

/* The geometry hash that REALM answers: that of the only layer group's pages, or of several groups
 * h = h * 0x9e3779b97f4a7c15 + hash of each next one, modulo 2^64. */
uint64_t kvt_wire_geometry_hash(uint32_t n_groups, const uint64_t *hashes);

/* The way back. Strings are written to `names`, which must live as long as the result. Refuses
 * whatever the encoder would not have written. */
typedef struct kvt_realm_names {
    char model[KVT_MAX_NAME_BYTES + 1], engine[KVT_MAX_NAME_BYTES + 1],
        adapter[KVT_MAX_NAME_BYTES + 1], adapter_version[KVT_MAX_NAME_BYTES + 1],
        salt[KVT_MAX_NAME_BYTES + 1], codec[KVT_MAX_NAME_BYTES + 1];
} kvt_realm_names;
kvt_status kvt_wire_realm_decode(const uint8_t *bytes, size_t n_bytes, kvt_realm_names *names,
                                 kvt_realm *ret_realm);

#endif
