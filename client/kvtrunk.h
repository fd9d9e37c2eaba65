/*
 * kvtrunk.h - the C interface of kvtrunk, and its manual.
 *
 * kvtrunkd keeps the KV cache of prompts that several inference workers share: a tree of token
 * prefixes over encoded KV pages in one arena of device or shared host memory. A worker links
 * libkvtrunk, asks for the longest prefix that is held (kvt_acquire), decodes those pages straight
 * from the mapped arena into its own KV cache (kvt_decode), computes what is missing, hands the
 * new pages in (kvt_encode, kvt_seal) and lets go (kvt_release).
 *
 *     kvt_open -> kvt_acquire -> kvt_decode ... -> compute -> kvt_encode, kvt_seal -> kvt_release
 *                      ^                                             |
 *                      '----------------- kvt_extend <---------------'        ... -> kvt_close
 *
 * THE RULE EVERYTHING FOLLOWS FROM: the cache may always forget, but must never lie. Any failure
 * (daemon gone, lease lost, page damaged, time-out) shows as a shorter prefix or as a status that
 * says so; it never shows as wrong bytes with KVT_OK.
 *
 * CONVENTIONS
 * - Every call that can fail returns a kvt_status. Outputs come last, are named ret_..., and are
 *   untouched unless the call returned KVT_OK (a call that breaks this says so).
 * - Destructors (kvt_close, kvt_release) accept NULL.
 * - All sizes are in bytes if the name ends in _bytes, in tokens if it ends in _tokens, in
 *   milliseconds if it ends in _ms. A token is an unsigned 32-bit id.
 * - The library never prints, never installs a signal handler, never calls exit.
 *
 * THREADS
 * - A kvt_client may be used by any number of threads at once; each call blocks only its caller.
 * - One kvt_lease may be used by one thread at a time; different leases are independent.
 * - kvt_close may be called while other threads are inside calls on the same client: they return
 *   KVT_ECLOSED, and kvt_close returns after the last of them has left. None may START after it.
 * - Calls that were begun (kvt_acquire_begin and so on, see CALLS THAT DO NOT BLOCK) are run by
 *   threads of the library, which block all signals and never call back. A kvt_pending may be used
 *   by one thread at a time, but for kvt_cancel.
 * - After fork() the child must not use a client of its parent: every call answers KVT_EFORK.
 *   The child may open one of its own only after exec(): the messaging library survives no fork.
 *
 * TIME
 * - Every call that talks to the daemon ends within the client's timeout_ms (or the wait_ms that
 *   the call itself was given, plus timeout_ms), whatever the daemon does. One that waits for a
 *   GPU's work (see KV in a GPU's memory) counts from when that is done, which has no limit.
 */
#ifndef KVTRUNK_H
#define KVTRUNK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_VERSION_MAJOR 0
#define KVT_VERSION_MINOR 1
#define KVT_VERSION_PATCH 0

/* Where the daemon listens unless it is told otherwise: $XDG_RUNTIME_DIR/kvtrunk.sock for a user,
 * this path for root and for the systemd service. kvt_options.socket NULL looks at the environment
 * variable KVTRUNK_SOCKET first, then at the user's path, then at this one. */
#define KVT_DEFAULT_SOCKET "/run/kvtrunk/kvtrunk.sock"

/* Limits of the interface. A value over one of them is refused with KVT_ELIMIT. */
enum {
    KVT_MAX_LAYERS = 1024,            /* layers of a geometry, all groups together */
    KVT_MAX_HEADS = 1024,             /* KV heads of one rank */
    KVT_MAX_HEAD_DIM = 1024,          /* elements of one row of one part */
    KVT_MAX_GROUPS = 8,               /* layer groups of a geometry */
    KVT_MAX_RANKS = 64,               /* ranks of a geometry */
    KVT_MAX_REQUEST_TOKENS = 1 << 20, /* tokens of one path */
    KVT_MAX_SEAL_PAGES = 1024,        /* pages of one kvt_seal */
    KVT_MAX_NAME_BYTES = 255,         /* each fingerprint, adapter, salt of a realm */
    KVT_MAX_PENDING = 256,            /* calls of one client that were begun and not finished */
};

/* ------------------------------------------------------------------------------------------------
 * Status
 * ---------------------------------------------------------------------------------------------- */

/*
 * What a call answers. The numbers are part of the wire format and never change their meaning.
 * "Cure" says what a caller does about it.
 */
typedef enum kvt_status {
    KVT_OK = 0,
    KVT_EINVAL = 1,     /* an argument makes no sense. Cure: a bug of the caller, mend it */
    KVT_ENOMEM = 2,     /* no memory in this process or in the daemon */
    KVT_ELIMIT = 3,     /* over a stated limit (tokens, pages, leases, bytes). Cure: ask for less */
    KVT_ETIMEDOUT = 4,  /* no answer in time. What was asked may or may not have been done; the
                           library sees to it that it is undone. Cure: go on without the cache */
    KVT_ECONN = 5,      /* no daemon at the socket, or it went away during the call. The library
                           connects again by itself. Cure: go on without the cache */
    KVT_EPROTO = 6,     /* the other side sent something that is not the protocol */
    KVT_EVERSION = 7,   /* the other side speaks another version of it. Cure: update one side */
    KVT_EDENIED = 8,    /* this uid maps to no tenant, or a file is not the caller's own */
    KVT_ESTALE = 9,     /* what the lease named is no longer held, or the daemon is not the one that
                           gave it. What was decoded meanwhile is void. Cure: acquire again */
    KVT_EFULL = 10,     /* no room, and nothing of the tenant's own can go now. Cure: go on
                           without; release leases, or give the daemon more memory */
    KVT_EBUSY = 11,     /* it is being used in a way that excludes this call. Cure: later */
    KVT_ENOENT = 12,    /* no such lease, realm, page or file */
    KVT_EEXIST = 13,    /* it is there already */
    KVT_ECORRUPT = 14,  /* a page's header, checksum or length is wrong. Nothing was stored or
                           handed out; one that was held is forgotten: see kvt_decode */
    KVT_EORDER = 15,    /* a page was sealed before the page in front of it */
    KVT_EGEOMETRY = 16, /* the geometry is absurd, or not the one of the realm */
    KVT_ENOTSUP = 17,   /* known, but not in this build or not for this geometry */
    KVT_EFORK = 18,     /* the client belongs to the parent process of this one */
    KVT_ECLOSED = 19,   /* kvt_close was called meanwhile */
    KVT_EIO = 20,       /* the system or a GPU failed (of a file, errno tells more on the side) */
    KVT_ESESSION = 21,  /* the daemon does not know this connection's session (the library handles
                           this by itself; seen only on the raw wire) */
    KVT_EDUPLICATE = 22, /* a request with this number was done before; it was not done again */
    KVT_ECANCELED = 23,  /* the caller cancelled it */
    KVT_ESYNTAX = 24,    /* a text (configuration, trace, codec set) does not parse */
    KVT_EINTERNAL = 25,  /* a fault of kvtrunk itself. Cure: report it */
    KVT_N_STATUS
} kvt_status;

/* The name of a status ("KVT_ESTALE"), and one line that says what it means and what to do. Static
 * strings; an unknown number gets "KVT_?" and "unknown status". Never fail, any thread. */
const char *kvt_status_name(kvt_status status);
const char *kvt_status_text(kvt_status status);

/* ------------------------------------------------------------------------------------------------
 * Geometry: what a page looks like
 * ---------------------------------------------------------------------------------------------- */

typedef enum kvt_dtype {
    KVT_F16 = 1,  /* IEEE 754 binary16 */
    KVT_BF16 = 2, /* upper half of IEEE 754 binary32 */
} kvt_dtype;

/* How the two parts of a row are to be read. */
typedef enum kvt_kind {
    KVT_KV = 1,  /* part 0 is K, part 1 is V: MHA, GQA, MQA */
    KVT_MLA = 2, /* part 0 is the latent, part 1 the rotary part; there is no V; n_kv_heads is 1 */
} kvt_kind;

/*
 * LAYER GROUPS. A run of layers that share one rule of what must be held; a hybrid model has
 * several. Layers are numbered over all groups, in the order of the groups. An engine whose layers
 * alternate (5 with a window, 1 without, and so on) numbers them anew: first all layers of one
 * group, then all of the next. Each page has its own bytes for each group.
 *
 * With a window W a token at position p reads the positions p - W + 1 .. p of the group's layers,
 * and no others. (An engine that counts the token itself apart states a window one larger.) So
 * behind n held tokens only the last W - 1 are needed of such a group, and its older pages are
 * freed on their own. A prefix is held as far as EVERY group has what it needs there: where a
 * prompt ends or turns off in the middle of what was freed, less is held than the groups with full
 * attention have, and whoever computes and seals it again leaves the window there for the next.
 */
typedef struct kvt_group {
    uint32_t n_layers;
    uint32_t window; /* sliding window in tokens; 0 = full attention */
} kvt_group;

/*
 * The shape of a model's KV as ONE RANK holds it. A page is page_tokens tokens of a group's layers:
 *     part 0: [n_layers][n_kv_heads][page_tokens][head_dim[0]]     (K, or the latent of MLA)
 *     part 1: [n_layers][n_kv_heads][page_tokens][head_dim[1]]     (V, or the rotary part)
 * as 16-bit elements before it is encoded. Both parts of a layer stand next to each other in the
 * encoded page, layer after layer (kernels/FORMAT.md).
 */
typedef struct kvt_geometry {
    uint32_t kind;        /* kvt_kind */
    uint32_t dtype;       /* kvt_dtype */
    uint32_t n_layers;    /* 1 .. KVT_MAX_LAYERS; the sum over the groups */
    uint32_t n_kv_heads;  /* 1 .. KVT_MAX_HEADS, of one rank */
    uint32_t head_dim[2]; /* 1 .. KVT_MAX_HEAD_DIM each, even */
    uint32_t page_tokens; /* 16, 32, 64 (the recommended one) or 128 */
    uint32_t n_ranks;     /* 1 .. KVT_MAX_RANKS processes that serve the model together */
    uint32_t rank;        /* this one, 0 .. n_ranks - 1 */
    uint32_t n_groups;    /* 1 .. KVT_MAX_GROUPS */
    kvt_group groups[KVT_MAX_GROUPS];
} kvt_geometry;

/* Fills in a geometry of kind KVT_KV, f16, one rank, one group of full attention. Cannot fail; the
 * numbers are checked where the geometry is used. */
void kvt_geometry_init(kvt_geometry *ret_geometry, uint32_t n_layers, uint32_t n_kv_heads,
                       uint32_t head_dim, uint32_t page_tokens);

/* KVT_OK, or KVT_EGEOMETRY / KVT_ELIMIT with a sentence that names the field, the value and the
 * range in why[0 .. why_bytes). why may be NULL. KVT_EINVAL: geometry is. Pure. */
kvt_status kvt_geometry_check(const kvt_geometry *geometry, char *why, size_t why_bytes);

/*
 * Everything that must be equal for two workers to share bytes. Strings are UTF-8 or any bytes but
 * NUL, at most KVT_MAX_NAME_BYTES long; NULL means "". Fields are compared one by one, whole, never
 * through a hash or a concatenation: model "ab" + salt "c" is not model "a" + salt "bc".
 */
typedef struct kvt_realm {
    const char *model;   /* fingerprint of the weights; must not be empty */
    const char *engine;  /* engine, build, kernel path, RoPE settings: whatever changes bytes */
    const char *adapter; /* LoRA or the like */
    const char *adapter_version; /* a new one when its weights change under the same name */
    const char *salt;            /* whatever else must keep two users' prefixes apart */
    const char *codec; /* codec set: "f16" (the default), "i8", "k8v4", "i4", ...; CODEC SETS
                          in kernels/FORMAT.md */
    kvt_geometry geometry;
} kvt_realm;

/* ------------------------------------------------------------------------------------------------
 * Client
 * ---------------------------------------------------------------------------------------------- */

typedef struct kvt_client kvt_client;

typedef struct kvt_options {
    const char *socket;     /* path of the daemon's socket; NULL = see KVT_DEFAULT_SOCKET */
    const char *name;       /* shown in `kvtrunk status`; NULL = the process's name */
    uint32_t timeout_ms;    /* bound of every call; 0 = 5000 */
    uint32_t staging_pages; /* pages that may be encoded and not yet sealed; 0 = 32 */
    uint32_t flags;         /* KVT_OPEN_... */
    const char *gpu;        /* see SEVERAL GPUS; NULL = the one that is current */
} kvt_options;

/*
 * SEVERAL GPUS. A daemon may have an arena on each of several GPUs. All pages of one rank of a
 * realm stand in one of them, and its workers read that one alone; the ranks of a model may be on
 * one GPU each, or share one. `gpu` says which GPU the worker is on: its number as this process
 * counts them ("1"), or its place on the bus ("0000:01:00.0"). NULL: the CUDA device that is
 * current in the thread that calls kvt_open (so set it before; with KVT_OPEN_LAZY rather name it);
 * where the daemon has no arena there, or the process no CUDA, it is that of the rank's other
 * workers, or the daemon's first. A `gpu` that was named and has no arena: KVT_ENOTSUP. A worker
 * whose KV is in host memory may name any. With the arena in host memory, `gpu` means nothing.
 *
 * What stands on one GPU is not read from another: while a worker of the same rank of the same
 * realm is on another GPU, kvt_open answers KVT_EBUSY. Workers that serve one model on a GPU each,
 * without being ranks of it, need a salt each in the realm, or a daemon each. When nobody is there
 * any more, the rank moves to the GPU of the next worker that comes; what of its pages is in no
 * lower tier is forgotten then.
 */

enum {
    /* kvt_open succeeds although no daemon answers now: calls return KVT_ECONN until one does. */
    KVT_OPEN_LAZY = 1 << 0,
    /* kvt_decode verifies the checksum of every page it reads (about the cost of one more read of
     * the bytes). Without it the page's header, shape and generation are checked all the same. */
    KVT_OPEN_VERIFY = 1 << 1,
};

/*
 * Connects, says hello, registers the realm, maps the arena read-only and makes the staging file.
 * options may be NULL. realm is copied.
 *
 * Errors: KVT_EINVAL, KVT_EGEOMETRY, KVT_ELIMIT (realm or options; kvt_last_error tells which
 * field), KVT_ECONN, KVT_ETIMEDOUT, KVT_EVERSION, KVT_EDENIED, KVT_EIO (arena or staging file),
 * KVT_ENOTSUP, KVT_EBUSY (both: see SEVERAL GPUS), KVT_ENOMEM. Cost: a few round trips, and page
 * faults for the staging file. Where the GPU has no room for staging it is KVT_OK, and
 * kvt_last_error says so: kvt_encode goes through host memory, kvt_encode_device asks for it again.
 */
kvt_status kvt_open(const kvt_options *options, const kvt_realm *realm, kvt_client **ret_client);

/* Ends the session: its leases and claims are gone, its files unmapped. Leases of this client that
 * are still there become invalid: each may only be handed to kvt_release, which then frees it. */
void kvt_close(kvt_client *client);

/* The last error of the calling thread in words: what, which value, which limit, what to do.
 * Static per thread, valid until the thread's next call of the library. Never NULL. */
const char *kvt_last_error(void);

/* Changes at each start of a daemon; 0 while none was reached yet. */
uint64_t kvt_boot_id(const kvt_client *client);

/* ------------------------------------------------------------------------------------------------
 * Leases: the right to read a prefix, and to fill what is missing behind it
 * ---------------------------------------------------------------------------------------------- */

typedef struct kvt_lease kvt_lease;

enum {
    /* Claim what is missing: the pages behind the held prefix get a place in the tree, and this
     * worker may seal them. Without it the lease only reads. */
    KVT_CLAIM = 1 << 0,
    /* Never hold all of the tokens: leave at least the last one to be computed, since a model needs
     * one forward pass to give logits. (It shortens what is reported, not what is stored.) */
    KVT_LEAVE_ONE = 1 << 1,
};

typedef enum kvt_tier {
    KVT_TIER_DEVICE = 0, /* the arena, where workers read */
    KVT_TIER_HOST = 1,
    KVT_TIER_DISK = 2,
} kvt_tier;

/*
 * What a lease names, in tokens from the start of the path:
 *
 *     0            held            computing         claimed      n_tokens
 *     |-- decode --|-- another's --|---- yours ------|
 *                  '---- missing: compute and seal --'
 */
typedef struct kvt_lease_info {
    uint32_t n_tokens;         /* length of the path that was asked for */
    uint32_t held_tokens;      /* leading tokens whose pages are sealed: decode these */
    uint32_t computing_tokens; /* of the missing ones, leading tokens that ANOTHER worker claimed
                                  earlier and is expected to seal, or that are on their way from a
                                  lower tier (these cannot be claimed); 0 = neither. One may wait
                                  for them (kvt_wait), or compute and seal those that are claimed
                                  all the same: then one copy stays and both workers have it */
    uint32_t claimed_tokens;   /* end of what this lease may seal; 0: nothing (no KVT_CLAIM, nothing
                                  missing, no room). Under n_tokens when there is no room for all */
    uint32_t page_tokens;
    uint32_t n_pages;       /* pages that cover held_tokens; the last may be used in part */
    uint32_t foreign_pages; /* of these (of the first layer group), that another session sealed */
    uint32_t host_pages;    /* likewise, pages that were not in the arena when the path was asked */
    uint32_t disk_pages;    /* for, but in the host's memory, or on disk alone: brought up for it */
    uint32_t first_token[KVT_MAX_GROUPS]; /* each layer group can be decoded from this token on: 0
                               with full attention; with a window, a page's first token at or
                               before held_tokens - (window - 1) */
    uint32_t n_rows; /* tokens that can be decoded: held_tokens, or as many as the view has */
} kvt_lease_info;

/*
 * Asks for the longest held prefix of tokens[0 .. n_tokens). The match is token-granular: whole
 * pages, then the leading rows of a page that goes on differently.
 *
 * tokens are copied. *ret_lease is the caller's until kvt_release. What it names stays held until
 * then, or, if the connection breaks, until the daemon's grace time ends; kvt_decode tells.
 * n_tokens = 0, a miss and a full hit are all KVT_OK.
 *
 * Errors: KVT_EINVAL, KVT_ELIMIT (over KVT_MAX_REQUEST_TOKENS or the daemon's own limit; over the
 * session's leases), KVT_ECONN, KVT_ETIMEDOUT, KVT_ENOMEM, KVT_ECLOSED, KVT_EFORK.
 * Cost: one round trip; in the daemon a comparison of the tokens.
 */
kvt_status kvt_acquire(kvt_client *client, const uint32_t *tokens, size_t n_tokens, uint32_t flags,
                       kvt_lease **ret_lease);

/*
 * A run of tokens that stands for an image, a sound, a video: the tokens say nothing of it (they
 * are placeholders), its content does. `hash` is a hash of 128 bits of the content and of whatever
 * else changes its KV (the preprocessing). Two paths with equal tokens share pages of a span only
 * if its hash, its length and its place in the page are equal, too; and likewise text behind it.
 */
typedef struct kvt_span {
    uint32_t first_token; /* of the path */
    uint32_t n_tokens;    /* at least 1 */
    uint8_t hash[16];
} kvt_span;

/*
 * As kvt_acquire, with n_spans spans (at most 4,096) that rise, do not overlap and lie in the path.
 * They are copied. A page that has a part of a span is shared whole, or up to its first span. It is
 * kept in memory alone, not on disk, and so are those behind it.
 */
kvt_status kvt_acquire_spans(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                             const kvt_span *spans, size_t n_spans, uint32_t flags,
                             kvt_lease **ret_lease);

/* As kvt_extend, of any lease; first_token counts from the start of the path, and is at least
 * keep_tokens. Spans of the lease that end in its first keep_tokens tokens stay; kvt_extend keeps
 * them likewise. keep_tokens must not cut a span in two: KVT_EINVAL. */
kvt_status kvt_extend_spans(kvt_lease *lease, size_t keep_tokens, const uint32_t *tokens,
                            size_t n_tokens, const kvt_span *spans, size_t n_spans, uint32_t flags);

/*
 * Goes on from a lease: its first keep_tokens tokens, then tokens[0 .. n_tokens). Only the new
 * tokens travel. keep_tokens is at most what the lease holds or claims (the larger of held_tokens
 * and claimed_tokens): the daemon does not remember tokens beyond that. The lease itself changes:
 * it names the longer (or other) path afterwards; pages that the new path shares stay its own.
 *
 * Errors: as kvt_acquire, and KVT_ESTALE. After KVT_ETIMEDOUT and KVT_ECONN it is not known which
 * path the daemon holds: the lease is lost, every later call on it answers KVT_ESTALE. After any
 * other error it is as it was.
 */
kvt_status kvt_extend(kvt_lease *lease, size_t keep_tokens, const uint32_t *tokens, size_t n_tokens,
                      uint32_t flags);

/*
 * RANKS. A model that several processes serve together (tensor parallel) registers one geometry of
 * n_ranks; each process opens its own client with its own `rank`, and reads and seals its own
 * heads. A page is held when all ranks have sealed theirs, so no rank sees more than another.
 *
 * What is held changes all the time, though, and ranks that asked one after the other would be told
 * different lengths. So they ask together: each calls kvt_acquire_ranks (kvt_extend_ranks) with the
 * same `group`, a number that no other group of the realm uses (random), the same `request`, which
 * rises with each call of the group, and the same tokens. The first call fixes held_tokens,
 * computing_tokens and claimed_tokens for all; what it names is kept for ranks that come later,
 * until every rank that came has let go (one that never comes is waited for as long as the daemon's
 * grace_ms after that). Pages are claimed by the group: KVT_CLAIM of a realm with several ranks is
 * refused without one (KVT_EINVAL).
 *
 * kvt_fork, kvt_wait and kvt_seal tell each rank what is held at that moment. To go on with it,
 * the ranks ask together again: kvt_extend_ranks, with as many tokens as all of them know to be
 * held. When a rank lets go or dies before its part of a claimed page is sealed, nobody can
 * complete it: others who wait for the page are told that nobody computes it, as are the group's.
 *
 * Spans (kvt_span) are not for ranks: KVT_ENOTSUP.
 *
 * Errors: as kvt_acquire and kvt_extend, and KVT_EINVAL (another path than the first one's),
 * KVT_EEXIST (this rank has asked with this number already), KVT_ELIMIT (requests of groups).
 */
kvt_status kvt_acquire_ranks(kvt_client *client, uint64_t group, uint64_t request,
                             const uint32_t *tokens, size_t n_tokens, uint32_t flags,
                             kvt_lease **ret_lease);
kvt_status kvt_extend_ranks(kvt_lease *lease, uint64_t group, uint64_t request, size_t keep_tokens,
                            const uint32_t *tokens, size_t n_tokens, uint32_t flags);

/*
 * Another lease over the first n_tokens of this one (at most its n_tokens), for a sequence that
 * goes on differently from there: parallel samples, beams. Pages are shared, nothing is copied; a
 * page that the two then grow differently is copied on write (kvt_encode does it). The new lease
 * claims nothing: kvt_extend with KVT_CLAIM does.
 *
 * Errors: KVT_EINVAL, KVT_ELIMIT, KVT_ESTALE, and those of the connection.
 */
kvt_status kvt_fork(kvt_lease *lease, size_t n_tokens, kvt_lease **ret_lease);

/*
 * Waits until more than held_tokens tokens of the path are held, or nobody else is computing what
 * comes next (the one who did was served, gave up or died), or wait_ms have passed; then brings the
 * lease up to date. KVT_OK in all these cases: look at kvt_lease_info. wait_ms 0 only looks. A
 * lease without a claim has nothing to wait for: it names what was held when it was given.
 *
 * Errors: KVT_ESTALE and those of the connection.
 */
kvt_status kvt_wait(kvt_lease *lease, size_t held_tokens, uint32_t wait_ms);

/* What the lease names now, as far as this process has been told. No round trip. KVT_EINVAL: an
 * argument is NULL; KVT_EBUSY: a call on it was begun and is not finished. */
kvt_status kvt_lease_get(const kvt_lease *lease, kvt_lease_info *ret_info);

/*
 * Where the pages [first_page, first_page + n_pages) of a layer group were when the path was asked
 * for (kvt_acquire; kvt_extend, of what it did not keep; kvt_fork): a kvt_tier for each. By the
 * time that a lease names a page it is in the arena. No round trip.
 *
 * Errors: KVT_EINVAL (NULL; no such group; pages that the lease does not have of the group, see
 * kvt_lease_info), KVT_EBUSY.
 */
kvt_status kvt_lease_tiers(const kvt_lease *lease, uint32_t group, size_t first_page,
                           size_t n_pages, uint8_t *ret_tiers);

/*
 * Lets go and frees the lease, in every case (NULL, a closed client and a dead daemon included).
 * KVT_OK: the lease held to this moment, so whatever was decoded under it is right. KVT_ESTALE: it
 * was lost before. (Host memory: kvt_decode has told already. Device memory: only this and kvt_sync
 * tell, and KVT_ECORRUPT too.) Waits for the GPU's work of the lease.
 * The one exception: KVT_EBUSY, a call on it was begun and is not finished; it is as it was.
 */
kvt_status kvt_release(kvt_lease *lease);

/* ------------------------------------------------------------------------------------------------
 * Pages: decode what is held, encode and seal what was computed
 * ---------------------------------------------------------------------------------------------- */

/*
 * Where a worker's own KV lies. Element (part p, layer l, head h, token t, dim d), counted from the
 * first layer and the first token OF THE CALL, is at
 *
 *     (char *)part[p] + l * layer_stride_bytes[p] + h * head_stride_bytes[p]
 *                     + t * token_stride_bytes[p] + d * 2
 *
 * Elements of a row are contiguous, 16 bits wide, in the geometry's dtype. Any order of layer, head
 * and token is a choice of strides:
 *     token-major  [layer][token][head][dim]: head = dim * 2,            token = n_heads * dim * 2
 *     head-major   [layer][head][token][dim]: head = n_tokens * dim * 2, token = dim * 2
 * Rows of one part must not overlap, nor both parts be at one place where something is decoded to;
 * part[] and strides are multiples of 2 bytes: else KVT_EINVAL. */
typedef struct kvt_layout {
    void *part[2];
    size_t layer_stride_bytes[2];
    size_t head_stride_bytes[2];
    size_t token_stride_bytes[2];
} kvt_layout;

/* Fills in the strides of a [n_layers][n_tokens][n_kv_heads][head_dim] (token-major) or
 * [n_layers][n_kv_heads][n_tokens][head_dim] (head-major) buffer for each part; part[] is set to
 * the two pointers. Pure, cannot fail. */
void kvt_layout_token_major(const kvt_geometry *geometry, size_t n_tokens, void *part0, void *part1,
                            kvt_layout *ret_layout);
void kvt_layout_head_major(const kvt_geometry *geometry, size_t n_tokens, void *part0, void *part1,
                           kvt_layout *ret_layout);

/*
 * Decodes tokens [first_token, first_token + n_tokens) of layers [first_layer, first_layer +
 * n_layers) of the lease into `to`, reading the mapped arena. A worker that wants to overlap
 * loading with computing calls it layer by layer. No round trip (but for one if layer groups have
 * windows and the lease's last kvt_wait or kvt_seal got no answer).
 *
 * KVT_OK: the bytes are what was sealed. The generation of each page's frame was compared before
 * and after. Otherwise the contents of `to` are void: KVT_ESTALE (the lease was lost: a cut
 * connection and the grace time over, or another daemon), KVT_EINVAL (a range outside held_tokens
 * or the layers, or in front of kvt_lease_info.first_token of a layer group that it touches: of a
 * hybrid model decode each group by itself, from its own first token on; a token that the view has
 * no row of), KVT_ECORRUPT (header or, with KVT_OPEN_VERIFY, checksum: memory has failed. The
 * daemon is told, which takes a round trip; it looks itself, and forgets the page with all behind
 * it. Cure: release the lease, which goes on naming it, and acquire again).
 */
kvt_status kvt_decode(kvt_lease *lease, size_t first_token, size_t n_tokens, uint32_t first_layer,
                      uint32_t n_layers, const kvt_layout *to);

/*
 * Encodes one page of the claimed part into staging memory: page number `page` of the path (its
 * first token is page * page_tokens), its rows up to n_tokens of the path or the end of the page.
 * `from` is the worker's own KV of all layers for the WHOLE page: token 0 of the layout is the
 * page's first token. If the leading rows of the page are held (a shared page that goes on
 * differently), they are copied as encoded bytes from there and `from` is read only for the rest:
 * copy-on-write. Under a codec set that loses bits the first 4 tokens of a path are kept as they
 * are: models attend to them more than to any others.
 *
 * Pages may be encoded in any order, by several threads for several leases; nothing is visible to
 * anybody before kvt_seal. An encoded page that is not sealed is dropped with the lease.
 *
 * Errors: KVT_EINVAL (not a claimed page), KVT_EFULL (staging_pages are encoded and not yet
 * sealed. Cure: seal), KVT_ESTALE, KVT_ECORRUPT (the leading rows).
 */
kvt_status kvt_encode(kvt_lease *lease, size_t page, const kvt_layout *from);

/*
 * As kvt_encode, but one layer group of the page alone: layer 0 of `from` is the group's first
 * layer. For engines that keep the groups of a hybrid model in different places. kvt_encode is the
 * same as this for each group.
 *
 * A page becomes visible once all groups of it are sealed. A group with a window may be left out if
 * the page ends at or before claimed_tokens - window: kvt_seal then tells the daemon that it has
 * passed out of the window. (An engine that hands in a prompt when all of it is computed has no
 * older rows of such a group. The prefix is then held at its end, and not in the middle.)
 */
kvt_status kvt_encode_group(kvt_lease *lease, size_t page, uint32_t group, const kvt_layout *from);

/*
 * Hands in every page that was encoded for this lease since the last kvt_seal, in the order of the
 * path, in as few messages as it takes. The daemon copies, checks and only then shows them. On
 * return the staging memory is free again, and *ret_sealed_tokens (may be NULL; set in any case) is
 * the number of leading tokens of the path that are held now.
 *
 * A page that somebody else sealed meanwhile counts as sealed. KVT_OK: all are. Otherwise the
 * status of the first that is not: KVT_EORDER (a page in front is missing), KVT_EFULL, KVT_EBUSY
 * (up to the time-out room was only on its way), KVT_ECORRUPT, KVT_ESTALE, the connection's. Those
 * before it are sealed. When no page of a claim is sealed for the daemon's claim_ms, others may
 * compute its pages, and where their claims find no room, they take its places from the end of the
 * path on: sealing such a page is KVT_EFULL, and kvt_wait brings claimed_tokens up to date.
 */
kvt_status kvt_seal(kvt_lease *lease, size_t *ret_sealed_tokens);

/* ------------------------------------------------------------------------------------------------
 * The same for KV in a GPU's memory
 * ---------------------------------------------------------------------------------------------- */

/*
 * With the daemon's arena in a GPU's memory pages go into a worker's own KV there, and back, past
 * the host. The calls below put work into a stream; it becomes true in the order of the stream:
 *
 *     kvt_decode_device(..., layer 0, stream)   attention of layer 0 behind it in the stream
 *     kvt_decode_device(..., layer 1, stream)   and so on; nothing waits on the host
 *     kvt_encode_device(..., stream)            behind the kernels that compute the KV
 *     kvt_seal                                  waits for the encoding, then asks the daemon
 *     kvt_release                               waits for what is left of the lease's work
 *
 * Calls that may change what a lease names (kvt_extend, kvt_wait, kvt_seal, kvt_release) and
 * kvt_sync wait first for the GPU's work of that lease, asleep; kvt_close for all there is. It is
 * behind the worker's own work in the stream, so there is no limit. (The daemon's own work has one:
 * what its GPU has not done in 30 s, it never will, and the daemon ends, to be started anew.)
 *
 * `stream` is a cudaStream_t of the arena's GPU (NULL, cudaStreamLegacy: the default stream;
 * cudaStreamPerThread: the calling thread's, but not for kvt_pages_device). It must not be
 * destroyed before one of those calls has waited for what the lease has in it. part[] of layouts
 * are device pointers; `from` stays as it is until the work is done. For KV in host memory
 * kvt_decode and kvt_encode read and write such an arena, too, and realms of several layer groups
 * know only those (KVT_ENOTSUP).
 *
 * CUDA GRAPHS. No call may be captured (KVT_EINVAL): a graph would read the pages at each replay,
 * when nobody holds them. Capture what computes on the KV, and put these calls into the stream
 * before the graph is launched. None of them disturbs a capture in another stream; while one that
 * was not made with cudaStreamNonBlocking captures, the default stream takes none (KVT_EINVAL).
 *
 * WHAT COUNTS AS READ. The host cannot see what a GPU finds before it is done. So what was decoded
 * is right only if kvt_sync, or kvt_release, says KVT_OK afterwards (else KVT_ESTALE,
 * KVT_ECORRUPT): before that a worker may compute with it, but hand nothing out.
 *
 * A PAGED KV CACHE is named by a block table beside the layout (NULL: token t of the call is token
 * t of the layout). It counts tokens from the start of the path: token t of the path is in block
 * blocks[t / block_tokens], and that block begins at token blocks[...] * block_stride_tokens of the
 * layout, so that layout addresses mean: part + (block * block_stride_tokens + t % block_tokens) *
 * token_stride_bytes. block_stride_tokens 0 stands for block_tokens. A cache whose blocks are
 * [head][block_tokens][dim] has token_stride_bytes = dim * 2, head_stride_bytes =
 * block_tokens * dim * 2 and block_stride_tokens = n_kv_heads * block_tokens.
 * Blocks that are decoded to must not overlap, nor be named twice, nor be -1 (KVT_EINVAL). To look
 * costs n log n of the call's blocks, once for all its layers, and n a layer; where they are strewn
 * so that one lies between another's heads, n log n a layer, and n for each two layers and heads.
 *
 * Errors of all: KVT_ENOTSUP (the arena is in host memory), KVT_EIO (CUDA refuses: kvt_last_error
 * says what), KVT_ENOMEM, KVT_EINVAL (part[] is not this GPU's), KVT_ESTALE, and the host calls'.
 */
typedef struct kvt_block_table {
    const uint32_t *blocks; /* host memory; only read during the call */
    size_t n_blocks;
    uint32_t block_tokens;
    uint64_t block_stride_tokens;
} kvt_block_table;

/* As kvt_decode. Calls for the same tokens on one stream share one look at the pages' headers and,
 * with KVT_OPEN_VERIFY, at their checksums. */
kvt_status kvt_decode_device(kvt_lease *lease, size_t first_token, size_t n_tokens,
                             uint32_t first_layer, uint32_t n_layers, const kvt_layout *to,
                             const kvt_block_table *blocks, void *stream);

/* As kvt_encode, for pages first_page .. first_page + n_pages - 1 in one launch. Without a block
 * table, token 0 of `from` is the first token of first_page. Leading rows of that page that are
 * held must be in `from` as they were decoded. */
kvt_status kvt_encode_device(kvt_lease *lease, size_t first_page, size_t n_pages,
                             const kvt_layout *from, const kvt_block_table *blocks, void *stream);

/* For engines that attend over encoded pages in place: what kernels need to read the pages of
 * tokens [first_token, first_token + n_tokens) where they stand in the arena. Their headers are
 * looked at on the stream; the caller's own kernels, behind that in the same stream, use the device
 * functions of kernels/page_device.cuh and unit_device.cuh, which are installed under
 * include/kvtrunk and decode a group of elements of any codec. tests/cuda/engine.cu is an example.
 *
 * What is returned stays until the next call on the lease that waits for its work; that waits for
 * all that is in the stream by then, so the stream must live that long, and not be captured then
 * (KVT_EIO). As with kvt_decode_device, what the kernels computed counts once kvt_sync or
 * kvt_release has said KVT_OK; a page that is not right has status != 0 and no rows. */
typedef struct kvt_device_pages {
    const void *pages; /* kvt_cuda_page[n_pages], device memory, in the order of the path */
    uint32_t n_pages;
    const void *shape; /* kvt_page_shape, host memory; lives as long as the client */
} kvt_device_pages;
kvt_status kvt_pages_device(kvt_lease *lease, size_t first_token, size_t n_tokens, void *stream,
                            kvt_device_pages *ret_pages);

/* Waits until the GPU has done what was asked of it for the lease, and says whether all that was
 * decoded up to now is right. KVT_OK where there was nothing. */
kvt_status kvt_sync(kvt_lease *lease);

/* ------------------------------------------------------------------------------------------------
 * Pages without a daemon: the codecs by themselves
 * ---------------------------------------------------------------------------------------------- */

/*
 * What kvt_encode and kvt_decode do, on pages in the caller's own memory: for engines with a store
 * of their own, and to see what a codec set does to a model's KV. `group` is the layer group whose
 * layers the page has; layers are counted from the group's first. `number` is that of the page in
 * its path, from 0: as with kvt_encode, the first tokens of page 0 are kept as they are under a
 * codec set that loses bits. Pages are 64-byte aligned.
 * All four are pure, but for work space that kvt_codec_transcode allocates; any thread.
 *
 * Errors: KVT_EGEOMETRY, KVT_ELIMIT (also: to_bytes is too small), KVT_ESYNTAX (codec),
 * KVT_ENOTSUP, KVT_EINVAL, KVT_ENOMEM; of what is read also KVT_ECORRUPT (the checksum is always
 * looked at) and KVT_EVERSION.
 */

/* The most bytes that a page of the codec set can take. */
kvt_status kvt_codec_room(const kvt_geometry *geometry, uint32_t group, const char *codec,
                          size_t *ret_bytes);

/* Encodes n_rows rows (1 .. page_tokens; token 0 of `from` is row 0) of all layers of the group. */
kvt_status kvt_codec_encode(const kvt_geometry *geometry, uint32_t group, const char *codec,
                            size_t number, uint32_t n_rows, const kvt_layout *from, void *to,
                            size_t to_bytes, size_t *ret_bytes);

/* Decodes rows [first_row, first_row + n_rows) of layers [first_layer, first_layer + n_layers), of
 * a page of any codec set: the page says which. */
kvt_status kvt_codec_decode(const kvt_geometry *geometry, uint32_t group, const void *page,
                            size_t page_bytes, uint32_t first_row, uint32_t n_rows,
                            uint32_t first_layer, uint32_t n_layers, const kvt_layout *to);

/*
 * The page under another codec set: decoded, and encoded anew. The result is a page of the same
 * geometry, so whoever reads the one can read the other. From i8 to i4 this costs nothing that can
 * be measured over i4 at once; other steps from few bits to few bits lose twice.
 */
kvt_status kvt_codec_transcode(const kvt_geometry *geometry, uint32_t group, const char *codec,
                               size_t number, const void *page, size_t page_bytes, void *to,
                               size_t to_bytes, size_t *ret_bytes);

/* ------------------------------------------------------------------------------------------------
 * CALLS THAT DO NOT BLOCK: begin, poll, finish
 *
 * For a worker that has other things to do meanwhile (a scheduler with many sequences in one
 * thread). Each call that talks to the daemon about leases can be begun instead; it returns at
 * once. A descriptor becomes readable when such a call has ended:
 *
 *     kvt_acquire_begin(client, tokens, n, KVT_CLAIM, sequence, &pending);
 *     kvt_pending_fd(client, &fd);
 *     ... poll(fd for POLLIN) along with everything else ...
 *     while (kvt_pending_next(client, &pending) == KVT_OK) {
 *         status = kvt_finish(pending, &outcome);
 *         use(outcome.user, status, outcome.lease);
 *     }
 *
 * A call that was begun is the blocking call, run by a thread of the library: the same checks, the
 * same time-outs (counted from its beginning), the same statuses and effects, which kvt_finish
 * tells. Calls on different leases overlap, also with blocking calls; they are done in any order.
 *
 * A lease on which a call was begun belongs to that call until it is finished: every other call on
 * it answers KVT_EBUSY, kvt_release too. (To read a prefix while waiting for more of it: kvt_fork.)
 *
 * kvt_close ends calls that were begun as it ends those that block, with KVT_ECLOSED. Afterwards
 * each kvt_pending must still be handed to kvt_finish, and to nothing else.
 * ---------------------------------------------------------------------------------------------- */

typedef struct kvt_pending kvt_pending;

/*
 * What a finished call gives. Members that its status does not speak of are NULL or 0.
 */
typedef struct kvt_outcome {
    void *user;           /* as it was handed in at the beginning; set with every status */
    kvt_lease *lease;     /* KVT_OK of acquire and fork: the new lease, the caller's */
    size_t sealed_tokens; /* of seal, set with every status: see kvt_seal */
} kvt_outcome;

/*
 * As the calls of the same names. *ret_pending is the caller's until kvt_finish. tokens are copied.
 * user is handed back by kvt_finish; the library does not look at it.
 *
 * kvt_release_begin: once it has returned KVT_OK the lease is gone for the caller, whatever
 * kvt_finish says. If it fails, the lease is as it was.
 *
 * Errors at the beginning, with nothing begun: KVT_EINVAL (NULL), KVT_ELIMIT (too many tokens;
 * KVT_MAX_PENDING calls are begun and not finished. Cure: finish some), KVT_EBUSY (another call on
 * the lease was begun and is not finished), KVT_ESTALE, KVT_ENOMEM (no memory, or no thread),
 * KVT_ECLOSED, KVT_EFORK. All others come from kvt_finish.
 */
kvt_status kvt_acquire_begin(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                             uint32_t flags, void *user, kvt_pending **ret_pending);
kvt_status kvt_extend_begin(kvt_lease *lease, size_t keep_tokens, const uint32_t *tokens,
                            size_t n_tokens, uint32_t flags, void *user, kvt_pending **ret_pending);
kvt_status kvt_fork_begin(kvt_lease *lease, size_t n_tokens, void *user, kvt_pending **ret_pending);
kvt_status kvt_wait_begin(kvt_lease *lease, size_t held_tokens, uint32_t wait_ms, void *user,
                          kvt_pending **ret_pending);
kvt_status kvt_seal_begin(kvt_lease *lease, void *user, kvt_pending **ret_pending);
kvt_status kvt_release_begin(kvt_lease *lease, void *user, kvt_pending **ret_pending);

/*
 * A descriptor to poll for POLLIN, and for nothing else: it is readable as long as kvt_pending_next
 * has something to give. The client's own, the same at each call; it stays open until kvt_close was
 * called and the last kvt_pending and kvt_lease of the client are gone.
 *
 * Errors: KVT_EINVAL, KVT_EIO (no descriptor to be had), KVT_ECLOSED, KVT_EFORK.
 */
kvt_status kvt_pending_fd(kvt_client *client, int *ret_fd);

/*
 * A call that has ended and was not given by this before, in the order in which they ended. It is
 * to be handed to kvt_finish, which does not block then. Never blocks.
 *
 * Errors: KVT_ENOENT (none has ended), KVT_EINVAL, KVT_ECLOSED, KVT_EFORK.
 */
kvt_status kvt_pending_next(kvt_client *client, kvt_pending **ret_pending);

/*
 * The status and the outcome of a call that was begun; frees it. Waits for its end if need be.
 * *ret_outcome is set in any case but KVT_EINVAL; NULL is possible for calls that give no lease.
 *
 * Errors: KVT_EINVAL (pending is NULL, or it may give a lease and ret_outcome is NULL: then it is
 * as it was), and those of the call. In a child of the process: KVT_EFORK, and it is freed.
 */
kvt_status kvt_finish(kvt_pending *pending, kvt_outcome *ret_outcome);

/*
 * Asks a call that was begun to end soon. It still has to be finished, and ends with KVT_ECANCELED,
 * or as it would have if it was that far. What KVT_ECANCELED leaves is what KVT_ETIMEDOUT leaves:
 * acquire and fork give no lease and what the daemon did is undone, extend loses the lease if the
 * daemon was asked already, wait leaves it as it was, seal may have sealed some, release is done by
 * the library later. What waits for the GPU (a seal, a release) ends when that has come to it, not
 * before. Any thread, until kvt_finish is called. NULL is accepted. */
void kvt_cancel(kvt_pending *pending);

/* ------------------------------------------------------------------------------------------------
 * Keeping and forgetting
 * ---------------------------------------------------------------------------------------------- */

typedef struct kvt_pin_info {
    uint64_t pin;           /* its number, for kvt_unpin; never 0, never used twice within a boot */
    uint32_t pinned_tokens; /* leading tokens that are kept */
    uint64_t pinned_bytes;  /* of their pages */
} kvt_pin_info;

/*
 * Keeps what is held of tokens[0 .. n_tokens) (a system prompt, say), leased by somebody or not:
 * leading pages up to max_bytes of them (0: all), until ttl_ms have passed since the last time that
 * all of it was asked for (kvt_acquire, kvt_extend), or since this call; 0: until kvt_unpin. A pin
 * outlives the client; it ends with the daemon. Its owner is the caller's uid with the client's
 * name; the same owner pinning the same place again renews the pin and gets the same number. What
 * is not held now is not kept when it comes: pin again then.
 *
 * realm: a realm's number as reports show it; 0 = the client's own.
 *
 * Errors: KVT_ENOENT (nothing of it is held, or no such realm), KVT_ELIMIT (the daemon's limits of
 * pins, of pinned bytes, of the owner's: kvt_last_error has the figures), KVT_EINVAL, and those of
 * the connection. After KVT_ETIMEDOUT and KVT_ECONN it may or may not be pinned: pin again.
 */
kvt_status kvt_pin(kvt_client *client, uint32_t realm, const uint32_t *tokens, size_t n_tokens,
                   uint32_t ttl_ms, uint64_t max_bytes, kvt_pin_info *ret_info);

/* The same of a prompt with spans (kvt_acquire_spans). A span may go on behind the tokens. */
kvt_status kvt_pin_spans(kvt_client *client, uint32_t realm, const uint32_t *tokens,
                         size_t n_tokens, const kvt_span *spans, size_t n_spans, uint32_t ttl_ms,
                         uint64_t max_bytes, kvt_pin_info *ret_info);

/* Ends a pin of the caller's tenant, whoever made it. Its pages then go as all others do.
 * KVT_ENOENT: there is none of this number (any more). */
kvt_status kvt_unpin(kvt_client *client, uint64_t pin);

typedef enum kvt_flush_scope {
    KVT_FLUSH_TENANT = 0, /* everything of the caller's tenant */
    KVT_FLUSH_REALM = 1,  /* everything of a realm */
    KVT_FLUSH_PREFIX = 2, /* of a realm, all that begins with these tokens: the page that holds the
                             last of them, its siblings that begin alike, and what is behind */
} kvt_flush_scope;

typedef struct kvt_flush_info {
    uint64_t pages; /* that are gone, from every tier */
    uint64_t n_bytes;
    uint64_t held_pages; /* that leases hold still: nobody gets them any more, and each goes with
                            its last lease. Flushed earlier and still held: counted again */
    uint64_t held_bytes;
    uint32_t pins; /* that ended with it */
} kvt_flush_info;

/*
 * Forgets pages. When it returns KVT_OK no kvt_acquire gets any of them, whatever tier they were
 * in. A lease goes on to hold what it holds; kvt_extend on it keeps that, and finds and claims
 * nothing more, and what it seals goes when it is let go. realm, tokens: as kvt_pin; with
 * KVT_FLUSH_TENANT realm must be 0, and only KVT_FLUSH_PREFIX takes tokens.
 *
 * With a disk tier it returns when the disk has forgotten them, too, so that no restart brings them
 * back. KVT_EIO: nobody gets them, but the disk has not in time: flush again.
 *
 * Errors: KVT_ENOENT (no such realm), KVT_EINVAL, KVT_EIO, KVT_EBUSY (many wait), the connection's.
 */
kvt_status kvt_flush(kvt_client *client, kvt_flush_scope scope, uint32_t realm,
                     const uint32_t *tokens, size_t n_tokens, kvt_flush_info *ret_info);

/* As kvt_flush with KVT_FLUSH_PREFIX, of a prompt with spans, which may go on behind the tokens.
 * Token lists of reports and events have the numbers that stand for spans in the tree: kvt_flush
 * and kvt_pin take such a list as it is. */
kvt_status kvt_flush_spans(kvt_client *client, uint32_t realm, const uint32_t *tokens,
                           size_t n_tokens, const kvt_span *spans, size_t n_spans,
                           kvt_flush_info *ret_info);

/* ------------------------------------------------------------------------------------------------
 * Tiers: the arena, the host's memory, the disk
 * ---------------------------------------------------------------------------------------------- */

typedef struct kvt_prefetch_info {
    uint32_t held_tokens;  /* leading tokens that are held, in whichever tier */
    uint32_t ready_tokens; /* of these, leading tokens whose pages are in the arena now */
} kvt_prefetch_info;

/*
 * Says that tokens[0 .. n_tokens) will be asked for soon: what of them is held in lower tiers is
 * brought up into the arena, as far as there is room, and counts as used now. Does not wait, pins
 * nothing: what was brought up may have to go again before it is asked for. ret_info may be NULL.
 *
 * Errors: as kvt_acquire.
 */
kvt_status kvt_prefetch(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                        kvt_prefetch_info *ret_info);

typedef struct kvt_spill_info {
    uint64_t dirty_pages; /* that wait for it, or never will be there and have no other copy */
    uint64_t disk_pages;  /* that are */
} kvt_spill_info;

/* Waits until every page of the tenant is on disk, at most for wait_ms: KVT_OK in both cases. The
 * daemon writes all the time; this only waits. ret_info may be NULL. Errors: the connection's. */
kvt_status kvt_spill(kvt_client *client, uint32_t wait_ms, kvt_spill_info *ret_info);

typedef struct kvt_verify_info {
    uint64_t checked_pages; /* records on disk that were read and checked */
    uint64_t corrupt_pages; /* of these, damaged: dropped, and forgotten when they are asked for */
} kvt_verify_info;

/* Reads and checks every record on disk, beside serving; at most for wait_ms. KVT_ETIMEDOUT: it
 * goes on. KVT_ENOTSUP: there is no disk; KVT_EBUSY: another call checks already; KVT_EIO: the
 * disk's process ended meanwhile. ret_info may be NULL. */
kvt_status kvt_verify(kvt_client *client, uint32_t wait_ms, kvt_verify_info *ret_info);

/* ------------------------------------------------------------------------------------------------
 * Reports
 * ---------------------------------------------------------------------------------------------- */

/* The daemon's counters and settings as one JSON object in *ret_json, NUL-terminated; the caller
 * frees it with kvt_free. Counters are exact 64-bit integers; their names are in kvtrunk(1). */
kvt_status kvt_status_json(kvt_client *client, char **ret_json);

/* The tree of the caller's tenant, one JSON object a line: runs of pages in depth-first order, at
 * most max_lines of them (0 = 1000). Freed with kvt_free. */
kvt_status kvt_tree_json(kvt_client *client, uint32_t max_lines, char **ret_lines);

/* The pins, and the leases, of the caller's tenant, one JSON object a line, at most max_lines (0 =
 * 1000). Freed with kvt_free. */
kvt_status kvt_pins_json(kvt_client *client, uint32_t max_lines, char **ret_lines);
kvt_status kvt_leases_json(kvt_client *client, uint32_t max_lines, char **ret_lines);

void kvt_free(void *memory);

/* Opens a client that can ask for reports, pin and flush alone: no realm, no arena, no staging. */
kvt_status kvt_open_reports(const kvt_options *options, kvt_client **ret_client);

#ifdef __cplusplus
}
#endif

#include "kvtrunk_view.h" /* leases of some rows of a prompt */

#endif
