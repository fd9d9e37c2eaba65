/*
 * client.h - what the files of the worker library share. Private.
 *
 *   client.c    open, close, who is inside        lease.c   acquire, extend, fork, wait, release
 *   session.c   hello, resuming, realm            pages.c   decode, encode
 *   call.c      one request and its reply,        pages_device.c   the same by a GPU
 *               undoing what nobody answered      seal.c    seal
 *   map_host.c  the mapped arena                  report.c  status, tree
 *   map_cuda.c  its data on a GPU (the module)    staging.c the staging file and its slots
 *   transport_nng.c  messages                     error.c   words and memory
 *   async.c     calls that do not block           view.c    leases of some rows
 *   layout.c    where a caller's KV lies         suspect.c pages that are damaged
 *
 * THREADS. `lock` covers what is marked so; nothing that blocks is done under it. Bringing a
 * session up takes several round trips and belongs to one thread at a time: whoever holds the GATE
 * (`gate`, under `lock`, others wait for `changed`). Fields of the session are written by the
 * holder of the gate, under the lock, and read under the lock.
 *
 * EPOCHS. Each new session is an epoch. Leases, staging files and undo entries belong to the epoch
 * they were made in; of an older one they are worthless, because the daemon has forgotten them.
 */
#ifndef KVT_CLIENT_CLIENT_H
#define KVT_CLIENT_CLIENT_H

#include <pthread.h>

#include "client/assert.h"
#include "client/error.h"
#include "client/kvtrunk.h"
#include "client/layout.h"
#include "client/map_cuda.h"
#include "client/transport.h"
#include "client/wire.h"
#include "kernels/page.h"

/* A mapped arena. It stays mapped until the last lease that was made under it is gone. */
typedef struct kvt_arena {
    struct kvt_arena *next; /* of the client's; under its lock */
    uint32_t refs;          /* leases, and the client for the current one; under its lock */
    const uint8_t *base;
    size_t n_bytes;
    uint64_t boot_id;
    const uint64_t *generations;
    uint64_t max_frames;
    int file;            /* that the daemon holds a lock on as long as it lives; -1: not known */
    const uint8_t *data; /* NULL: in a GPU's memory */
    uint64_t data_bytes;
    const kvt_cuda_map_table *calls; /* where it is */
    kvt_cuda_map *gpu;
} kvt_arena;

typedef struct kvt_staging kvt_staging; /* staging.c */

/* What the daemon said, and what has been set up since. A copy of it goes with every request. */
typedef struct kvt_session {
    int up;              /* HELLO was said on the connection that is there now */
    uint64_t connection; /* counts HELLOs: tells whether somebody else has said it meanwhile */
    uint64_t epoch;      /* counts new sessions; 0: none yet */
    uint64_t boot_id;
    uint8_t token[KVT_WIRE_TOKEN_BYTES];
    uint32_t number;
    uint32_t realm;     /* 0: not registered in this epoch */
    int staged;         /* the daemon knows the current staging file */
    uint32_t max_bytes; /* of a message */
    uint32_t n_gpus;    /* of the daemon that have an arena each */
} kvt_session;

enum { KVT_DEVICE_WHY_BYTES = 160 }; /* what CUDA says of which GPU, and of what */

/* Work of a GPU for a lease: it may neither be let go of nor change its path before that is done.
 */
typedef struct kvt_device_work {
    struct kvt_device_work *next; /* of the lease's */
    kvt_cuda_batch *batch;
    const kvt_cuda_map_table *calls;
    int done; /* and `status` says how it went, `why` in words where it is not KVT_OK */
    kvt_status status;
    char why[KVT_DEVICE_WHY_BYTES];
    uint32_t n_pages;              /* encoded by it, and not yet sealed or dropped */
    uint32_t first_page, end_page; /* decoded by it */
    kvt_layout_spread spread;      /* of the block table that it was planned with */
} kvt_device_work;

/* A page that was encoded for a lease and not yet sealed: its groups lie in one slot. */
typedef struct kvt_encoded {
    uint32_t page;
    uint32_t slot;
    uint32_t bytes[KVT_MAX_GROUPS]; /* 0: this group was not encoded */
    kvt_staging *staging;
    kvt_device_work *work; /* NULL: done by the CPU; else bytes are known once that is done */
    uint32_t number;       /* of the page in it */
} kvt_encoded;

struct kvt_lease {
    kvt_client *client;
    kvt_lease *next_undo; /* under the client's lock, once it is an undo entry */
    uint64_t undo_number; /* 0: RELEASE id; else CANCEL this request */

    uint64_t id;
    uint64_t epoch;
    uint32_t session; /* number of the session, to tell others' pages from our own */
    int lost;         /* the daemon does not know it, or nobody knows what path it names */
    int behind;       /* a reply that would have told what it names now has not come */
    const kvt_pending *pending; /* the call that was begun on it and is not finished */
    kvt_arena *arena;           /* of its epoch */
    uint32_t n_tokens;
    uint32_t held_tokens;
    uint32_t computing_tokens;
    uint32_t claimed_tokens;
    uint32_t foreign_pages;
    uint32_t tier_pages[KVT_TIER_DISK + 1]; /* of the first group, by where they were */
    uint32_t n_pages;                       /* that cover held_tokens */
    uint32_t first_page[KVT_MAX_GROUPS];    /* that the group has; it has all behind it */
    uint32_t room_pages;
    kvt_wire_page *pages; /* [room_pages][n_groups], kvt_lease_page; checked against the arena */
    uint32_t n_spans;     /* of the path, rising */
    kvt_span *spans;
    int is_view;     /* pages that it has no row of are zeros */
    uint32_t n_rows; /* of a view */
    uint32_t n_runs;
    kvt_run *runs;      /* of a view */
    kvt_run whole_run;  /* of any other lease: all that it holds */
    uint32_t n_encoded; /* by rising page number */
    uint32_t room_encoded;
    kvt_encoded *encoded;
    kvt_device_work *work;                 /* the last first; belongs to `arena` */
    kvt_status device_status;              /* the first failure of the decoding that was done, */
    char device_why[KVT_DEVICE_WHY_BYTES]; /* and in words */
};

/* The threads that run calls which were begun, and those calls. Under the client's lock. */
typedef struct kvt_crew {
    kvt_pending *begun, **last_begun; /* that no thread has taken yet, in order */
    kvt_pending *ended, **last_ended; /* that nobody has asked for yet, in order */
    pthread_cond_t work;              /* something was begun, or the end */
    pthread_cond_t done;              /* something has ended */
    uint32_t n_begun;                 /* in the list */
    uint32_t n_pending;               /* not finished yet */
    uint32_t n_threads;
    uint32_t n_idle; /* of them */
    int stop;
    int fd; /* -1: nobody has asked for one; else an eventfd, not 0 while something has ended */
    pthread_t threads[KVT_MAX_PENDING];
} kvt_crew;

struct kvt_client {
    /* Set by kvt_open, then constant. */
    char *socket;
    char *name;
    char *gpu; /* that was named; NULL: none */
    uint32_t timeout_ms;
    uint32_t staging_pages;
    uint32_t flags;
    int reports_only;
    uint32_t forks; /* kvt_client_forks of the process that opened it */
    kvt_geometry geometry;
    kvt_page_shape shapes[KVT_MAX_GROUPS];
    uint32_t group_offset[KVT_MAX_GROUPS + 1]; /* in a staging slot; the last: its size */
    size_t n_canonical;
    uint8_t canonical[KVT_WIRE_MAX_REALM_BYTES];
    kvt_transport *transport;

    pthread_mutex_t lock; /* of all below, but for staging */
    pthread_cond_t changed;
    uint32_t refs;     /* the caller's own, and one of each lease */
    uint32_t n_inside; /* threads in calls */
    int closing;
    int gate;
    kvt_session session;
    char arena_path[KVT_WIRE_MAX_PATH + 1];
    char gpu_place[KVT_WIRE_MAX_GPU + 1]; /* on the bus: of the one that was named, or that the
                                             first thread that came to it was on; "": not known */
    char staging_dir[KVT_WIRE_MAX_PATH + 1];
    kvt_arena *arena;      /* the session's; NULL: not mapped yet */
    kvt_arena *arenas;     /* all that are mapped */
    kvt_lease *undo;       /* what the daemon must still be told to let go of */
    int undoing;           /* a thread is telling it */
    uint64_t deaf_boot_id; /* of a daemon that cut the connection when it was told of damage */
    kvt_crew crew;

    pthread_mutex_t staging_lock; /* of the staging files and their slots; taken before `lock` */
    kvt_staging *staging;         /* the current one */
    kvt_staging *stagings;        /* all that are mapped */
};

/* --- client.c -----------------------------------------------------------------------------------
 */

/* Every public call is between these two. KVT_ECLOSED, KVT_EFORK. */
kvt_status kvt_client_enter(kvt_client *c);
void kvt_client_leave(kvt_client *c);
int kvt_client_forked(const kvt_client *c);
void kvt_client_ref(kvt_client *c);
void kvt_client_unref(kvt_client *c);

/* Waits for `changed` with the lock held. 0: deadline_ms has passed. */
int kvt_client_wait(kvt_client *c, uint64_t deadline_ms);

/* Sleeps a little before something is tried again; ends early with KVT_ECLOSED, KVT_ECANCELED or,
 * at the deadline, with KVT_EBUSY. */
kvt_status kvt_client_pause(kvt_client *c, uint32_t pause_ms, uint64_t deadline_ms);

/* --- session.c ----------------------------------------------------------------------------------
 */

enum { KVT_UP_STAGED = 1 }; /* the current staging file must be known to the daemon, too */

/* Sees to it that there is a session with everything set up, and copies it out. */
kvt_status kvt_session_up(kvt_client *c, int needs, uint64_t deadline_ms, kvt_session *ret_session);

/* The connection that `seen` was on is gone, or does not know its session. */
void kvt_session_down(kvt_client *c, const kvt_session *seen);

/* A connection ended. If the daemon did, too, its arena is unmapped: now, or with the last lease.
 * Memory that somebody has mapped is not free for the next daemon. */
void kvt_session_ended(void *client);

/* Unmaps what neither the session nor a lease uses. With the lock held. */
void kvt_arenas_sweep(kvt_client *c);

/* The daemon does not know the realm's number of `seen` any more. */
void kvt_session_forget_realm(kvt_client *c, const kvt_session *seen);

/* --- call.c -------------------------------------------------------------------------------------
 */

typedef struct kvt_request {
    uint16_t op;
    int needs;         /* KVT_UP_... */
    uint64_t epoch;    /* that it must go to; 0: any. Another one: KVT_ESTALE */
    uint32_t wait_ms;  /* that the daemon was asked to wait, beyond the client's time-out */
    size_t body_bytes; /* at most */
    /* Writes the body; called once for each time it is sent. NULL: an empty body. */
    void (*put)(kvt_writer *w, const kvt_session *s, const void *context);
    const void *context;
} kvt_request;

typedef struct kvt_reply {
    kvt_message *message; /* the body lies in it; kvt_reply_free */
    const uint8_t *body;
    size_t n_body;
    kvt_session session; /* that it was sent in */
    uint64_t number;     /* of the request; 0: it was never sent */
    int unanswered;      /* it was sent and no reply came: done or not, nobody knows */
} kvt_reply;

/* When a call that begins now has to end. */
uint64_t kvt_client_deadline(const kvt_client *c);

/*
 * One request and its reply, until deadline_ms and the request's wait_ms. *ret_reply is set in any
 * case (number, unanswered, session); message only with KVT_OK. Resumes the session or makes a new
 * one as needed, and sends the request again if the daemon says that it has done nothing.
 */
kvt_status kvt_client_call(kvt_client *c, const kvt_request *request, uint64_t deadline_ms,
                           kvt_reply *ret_reply);

/* As kvt_client_call, for a request that names a realm by number (0: the client's own). The number
 * may have gone to another while the realm had no pages: then it is registered again. */
kvt_status kvt_call_in_realm(kvt_client *c, const kvt_request *request, uint32_t realm,
                             kvt_reply *ret_reply);

/* One message there and back in the session s; nothing is repeated. */
kvt_status kvt_client_exchange(kvt_client *c, const kvt_session *s, const kvt_request *request,
                               uint64_t deadline_ms, kvt_reply *ret_reply);
void kvt_reply_free(kvt_reply *reply);

/* Says what the daemon's nonsense was, cuts the connection, returns KVT_EPROTO. */
kvt_status kvt_client_nonsense(kvt_client *c, const char *what);

/* Takes over a lease that holds nothing of its own any more: the daemon is told with the next call,
 * if the lease's epoch still is then. number: of the ACQUIRE or FORK to cancel; 0: RELEASE its id.
 */
void kvt_client_undo(kvt_client *c, kvt_lease *lease, uint64_t number);

/* Tells the daemon of all that is to be undone, if there is a session. For after a call that was
 * cancelled: nobody may call again for long. */
void kvt_client_tidy(kvt_client *c);

/* --- async.c ------------------------------------------------------------------------------------
 */

void kvt_crew_init(kvt_crew *crew);
/* Nobody is inside any more, and nobody will be: ends the threads. */
void kvt_crew_stop(kvt_client *c);
void kvt_crew_close(kvt_crew *crew);

/* The call that this thread of the library runs for somebody; NULL in every other thread. */
const kvt_pending *kvt_pending_mine(void);
/* Of that call; NULL in every other thread. */
const kvt_cancel_flag *kvt_cancel_mine(void);
/* Was it cancelled? */
int kvt_canceled(void);

/* --- map_host.c ---------------------------------------------------------------------------------
 */

/* Maps the arena read-only. KVT_EIO, KVT_EDENIED, KVT_EPROTO (it is not the daemon's arena). */
kvt_status kvt_arena_map(const char *path, uint64_t boot_id, kvt_arena **ret_arena);
void kvt_arena_unmap(kvt_arena *arena);
/* Has the daemon ended whose arena it is? 0: no, or it cannot be told. */
int kvt_arena_is_over(const kvt_arena *arena);

/* Does the page lie inside? */
int kvt_arena_has(const kvt_arena *arena, const kvt_wire_page *page);

/* The page's bytes, in the arena or, if that is a GPU's, copied: then *copy is memory for it, made
 * larger as needed (NULL at first; the caller frees it). KVT_EIO, KVT_ENOMEM. */
typedef struct kvt_page_copy {
    uint8_t *bytes;
    size_t room;
} kvt_page_copy;
kvt_status kvt_arena_page(const kvt_arena *arena, const kvt_wire_page *page, kvt_page_copy *copy,
                          const uint8_t **ret_bytes);

/* Has it still the generation of the lease? First before, then after reading. */
int kvt_arena_is_fresh(const kvt_arena *arena, const kvt_wire_page *page);
int kvt_arena_was_fresh(const kvt_arena *arena, const kvt_wire_page *page);

/* --- staging.c ----------------------------------------------------------------------------------
 */

/* A slot for one page of a lease of that epoch. KVT_EFULL, KVT_EIO, KVT_ENOMEM, KVT_ESTALE. */
kvt_status kvt_staging_take(kvt_client *c, uint64_t epoch, kvt_staging **ret_staging,
                            uint32_t *ret_slot);

/* Gives it back. unsafe: the daemon may still be reading it. */
void kvt_staging_give(kvt_client *c, kvt_staging *staging, uint32_t slot, int unsafe);

void *kvt_staging_at(const kvt_staging *staging, uint32_t slot, size_t *ret_bytes);
uint64_t kvt_staging_offset(const kvt_staging *staging, uint32_t slot);
/* Sees to it that there is an area on the arena's GPU. KVT_ENOMEM, KVT_EIO: there is no room. */
kvt_status kvt_staging_need_area(kvt_client *c, uint64_t epoch);
/* The area on the arena's GPU, where each slot has a place, too; NULL: none. */
kvt_cuda_area *kvt_staging_area(const kvt_staging *staging);

/* The current file of the epoch, made if there is none, for a STAGE: its name (of up to
 * KVT_WIRE_MAX_PATH bytes, with its zero) and size. KVT_EIO, KVT_ENOMEM. */
kvt_status kvt_staging_announce(kvt_client *c, uint64_t epoch, char *name, uint64_t *ret_bytes);
/* The daemon has opened the file of that name. */
void kvt_staging_known(kvt_client *c, const char *name);

void kvt_staging_close(kvt_client *c);

/* --- pages_device.c -----------------------------------------------------------------------------
 */

/* Waits for all the GPU's work of the lease, and notes how it went. */
void kvt_device_wait(kvt_lease *lease);
/* How all of it went, up to the last wait, with words. */
kvt_status kvt_device_said(const kvt_lease *lease);
/* The page needs the work no more. */
void kvt_device_forget(kvt_lease *lease, kvt_encoded *encoded);
/* Waits for the page, and learns its size. */
kvt_status kvt_device_finish(kvt_lease *lease, kvt_encoded *encoded);
/* Lets go of all work, which has been waited for. closed: its arena is unmapped already. */
void kvt_device_strip(kvt_lease *lease, int closed);

/* --- pages.c ------------------------------------------------------------------------------------
 */

/* Is page `page` one that the lease may hand in? *ret_n_rows is its number of rows, 0 if all of it
 * is held already. */
kvt_status kvt_lease_may_encode(const kvt_lease *lease, size_t page, uint32_t *ret_n_rows);
/* Room for n more encoded pages; then each can be noted. One of the same number is replaced. */
kvt_status kvt_encoded_reserve(kvt_lease *lease, uint32_t n);
void kvt_encoded_insert(kvt_lease *lease, const kvt_encoded *encoded);

/* --- suspect.c ----------------------------------------------------------------------------------
 */

/* Whoever is inside has read a page of the lease, and it was damaged though the lease held. Changes
 * no status; the words of the last error are void after it. */
void kvt_suspect(const kvt_lease *lease, uint32_t page, uint32_t group);

/* --- spans.c ------------------------------------------------------------------------------------
 */

/* Do they rise, not overlap, and lie in tokens first .. end? */
kvt_status kvt_spans_check(const kvt_span *spans, size_t n_spans, size_t first, size_t end);
/* The lease's that lie in its first keep_tokens tokens, and these behind them: a new list, NULL if
 * it is empty. KVT_EINVAL: one would be cut in two. */
kvt_status kvt_spans_join(const kvt_lease *lease, size_t keep_tokens, const kvt_span *spans,
                          size_t n_spans, kvt_span **ret_spans, uint32_t *ret_n);
/* How many of them end at this token or in front of it. */
size_t kvt_spans_in_front(const kvt_span *spans, size_t n_spans, size_t token);
/* The list is the lease's from now on. */
void kvt_spans_set(kvt_lease *lease, kvt_span *spans, uint32_t n);
/* *ret_words: the caller's; what stands in the tree for these tokens. */
kvt_status kvt_spans_words(const uint32_t *tokens, size_t n_tokens, const kvt_span *spans,
                           size_t n_spans, uint32_t **ret_words);

/* --- view.c -------------------------------------------------------------------------------------
 */

/* Makes sense as a view? KVT_EINVAL, KVT_ELIMIT. */
kvt_status kvt_view_check(const kvt_view *view, uint32_t flags);
/* What the lease has according to the reply, whose counts make sense; on failure it is as it was.
 */
kvt_status kvt_view_take(kvt_lease *lease, const kvt_lease_rep *rep);
/* The tokens whose rows it has. */
uint32_t kvt_lease_spread(kvt_lease *lease, const kvt_run **ret_runs);
/* Has a view each of these tokens? KVT_EINVAL with the first that it has not. */
kvt_status kvt_view_has(const kvt_lease *lease, size_t first_token, size_t n_tokens);

/* --- lease.c ------------------------------------------------------------------------------------
 */

/* Is it a page of the lease's arena, with as many rows as held_tokens need of it? */
int kvt_lease_page_is_good(const kvt_lease *lease, const kvt_wire_page *page, uint32_t i,
                           uint32_t held_tokens);

/* As kvt_client_enter, and KVT_ESTALE if the lease is lost or of an older epoch, KVT_EBUSY if
 * another call was begun on it. */
kvt_status kvt_lease_enter(kvt_lease *lease);
/* The same for calls that wait for the GPU's work: also for that of a lease which is lost, since
 * whoever hears so gives the memory to other work. */
kvt_status kvt_lease_enter_to_wait(kvt_lease *lease);

/* The path and pages of `lease` are brought up to date from lists that start at first_page (those
 * of groups with windows start where they must). KVT_EPROTO: they are nonsense; the lease is as it
 * was.
 */
kvt_status kvt_lease_take_pages(kvt_lease *lease, uint32_t held_tokens, uint32_t first_page,
                                uint32_t n_lists, const kvt_page_list *lists);

/* A page of what is held, as it is encoded, for who wants to know what it says of itself. No call
 * of another thread on the client may be closing it. KVT_ELIMIT, KVT_ESTALE. */
kvt_status kvt_lease_copy_page(const kvt_lease *lease, uint32_t page, uint32_t group, void *to,
                               size_t room, size_t *ret_bytes);
static inline kvt_wire_page *kvt_lease_page(const kvt_lease *lease, uint32_t page, uint32_t group) {
    return &lease->pages[(size_t)page * lease->client->geometry.n_groups + group];
}

/* Asks for what is held now (WAIT without waiting), until deadline_ms. */
kvt_status kvt_lease_refresh(kvt_lease *lease, uint64_t deadline_ms);

/* Is that a path, together with the n_before tokens in front of it? KVT_EINVAL, KVT_ELIMIT. */
kvt_status kvt_tokens_check(size_t n_before, const uint32_t *tokens, size_t n_tokens,
                            uint32_t flags);
/* The same, if a reply was missed and layer groups with windows make it matter: pages that have
 * passed out of one are the lease's only until the daemon has said so. */
kvt_status kvt_lease_catch_up(kvt_lease *lease);

/* Notes what an error answer means for the lease: one that the daemon does not know is lost. */
kvt_status kvt_lease_failed(kvt_lease *lease, kvt_status status);

#endif
