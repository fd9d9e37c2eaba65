/*
 * disk.h - the daemon's side of the disk tier: requests to the helper process that has the file.
 *
 *     core thread                                        helper process (disk_helper.c)
 *     disk_submit --> queue --> socket pair ---------->  tier_put, tier_get, ...
 * (store/tier.h) done, found <-- disk_step <---- socket pair <---- host arena (memfd, mapped
 * by both): page bytes travel here alone
 *
 * The helper may die at any time, of a signal or of a damaged file: every request that it had then
 * ends with KVT_EIO, the file is used as it is (SIGKILL), checked or moved aside (anything else),
 * and a new helper is started. The daemon never reads the file.
 *
 * The helper is the daemon's own program started anew (posix_spawn of /proc/self/exe), so main must
 * call disk_helper_main first (see disk_helper.h). Why not a fork: in a process with threads only
 * exec is safe after it, and a process forked early, kept to fork others from, would have to be
 * watched and restarted itself. An exec needs nothing kept, and gives the helper a small address
 * space without the arena. /proc/self/exe stays the same program when the file is replaced.
 *
 * One thread calls all of this (the core's); nothing here blocks but disk_open and disk_close.
 */
#ifndef KVT_DAEMON_DISK_H
#define KVT_DAEMON_DISK_H

#include "client/kvtrunk.h"
#include "store/tier_key.h"

typedef struct disk disk;

enum {
    DISK_MAX_ITEMS = 32, /* of a request */
    DISK_MAX_REALMS = 4096,
};
#define DISK_NO_REALM UINT32_MAX

typedef enum disk_kind {
    DISK_WRITE = 1,
    DISK_READ,
    DISK_DELETE,
    DISK_FLUSH_ALL,   /* throw everything away */
    DISK_FLUSH_REALM, /* all of `realm` */
    DISK_VERIFY,      /* read and check every record, beside other requests */
    DISK_USAGE,       /* only brings the usage in disk_stats up to date */
} disk_kind;

typedef struct disk_item {
    tier_key key;
    tier_key parent;
    uint64_t serial;        /* WRITE: 0 = disk_submit gives the next one; see below */
    uint64_t parent_serial; /* 0 = depth 0 */
    uint32_t depth;         /* pages in front of it; children have one more than their parent */
    uint16_t slot;
    uint16_t rows;
    uint16_t n_tokens;
    uint16_t raw16;  /* WRITE: the bytes are 16-bit elements (codec f16): may be stored smaller */
    uint32_t bytes;  /* encoded */
    uint32_t stored; /* WRITE: out, bytes in the file */
    const uint32_t *tokens; /* the caller's, until the request is done */
    uint64_t host_offset;   /* of the bytes, in the host arena's file */
    kvt_status status;      /* out */
} disk_item;

/*
 * A request is the caller's memory until done gets it.
 *
 * WRITE: a transaction or several, in order. An item's parent is in the file, or earlier in this
 * request, or in a request submitted before: its serial is known at once, since disk_submit fills
 * it in (and, for one earlier in the same request, the child's parent_serial too). KVT_OK: `serial`
 * is the record's (another than was given if the page was there already, which happens while the
 * scan is under way). KVT_EEXIST: another page has this key; its children cannot be written either.
 * KVT_EORDER: its parent is not there. KVT_EFULL, KVT_EIO; KVT_ENOENT: the realm was forgotten.
 *
 * READ: KVT_OK: the bytes stand in the host arena and everything was compared. KVT_ENOENT,
 * KVT_ECORRUPT (dropped), KVT_EIO: the bytes there are void. Reads overtake writes.
 *
 * DELETE: KVT_OK, KVT_ENOENT. Tails before what is in front of them.
 *
 * Writes, deletes and flushes are done in the order of their submission.
 */
typedef struct disk_request {
    disk_kind kind;
    uint32_t realm; /* the daemon's number, defined before; WRITE, READ, FLUSH_REALM */
    uint32_t n_items;
    disk_item *items;
    void *context;     /* the caller's own */
    kvt_status status; /* out: of the whole; an item's own counts */
    uint64_t deleted;  /* out, FLUSH_...: records; VERIFY: found corrupt and dropped */
    uint64_t checked;  /* out, VERIFY: records */
    /* the disk's own */
    struct disk_request *next;
} disk_request;

/* One record that the start-up scan found; parents come before their children. */
typedef struct disk_found {
    uint32_t realm; /* the daemon's number */
    tier_key key;
    tier_key parent;
    uint64_t serial;
    uint64_t parent_serial; /* 0 = depth 0 */
    uint32_t depth;
    uint16_t slot;
    uint16_t rows;
    uint16_t n_tokens;
    uint32_t bytes;
    uint32_t stored;        /* bytes in the file */
    uint64_t disk_bytes;    /* that it takes: tier_record_bytes */
    const uint32_t *tokens; /* valid during the call */
} disk_found;

typedef struct disk_options {
    const char *dir;
    uint64_t budget_bytes; /* hard limit of all files */
    int host_fd;           /* the host arena's file (memfd); stays the caller's */
    uint64_t host_bytes;
    uint32_t max_requests; /* handed in and not done */
    uint32_t lock_wait_ms; /* for a helper of an earlier daemon that is about to end; 0 = 5000 */
    uint32_t stall_ms;     /* a helper that says nothing for so long with work to do is killed;
                              0 = 30000 */
    uint32_t open_ms;      /* the same of one that opens the file, at first; 0 = 120000 */
    uint32_t silent_ms;    /* after so long the log says that the disk is silent; 0 = 5000 */
    uint32_t wait_ms;      /* disk_open waits no longer than this; 0 = until it is open */

    void *context;
    /* Asked while disk_open waits: nonzero, and it ends with KVT_ECANCELED, the helper with
     * SIGKILL. May be NULL. */
    int (*is_stopped)(void *context);
    /* Called by disk_step, disk_close alone. May submit. */
    void (*done)(void *context, disk_request *request);
    /* A realm that the file knows: returns the daemon's number for it (calling disk_realm with it
     * is not needed), or DISK_NO_REALM: its records are passed over and stay. */
    uint32_t (*found_realm)(void *context, const void *bytes, size_t n_bytes);
    void (*found)(void *context, const disk_found *record);
    /* Everything that was there has been found. Once for each start of a helper: after one died, it
     * is not known what of its last writes and deletes was done, so the file is scanned again, and
     * found is called for what the daemon knows already, too. */
    void (*scan_done)(void *context);
    /* No record that was said to be there is there any more: the file could not be used, or had to
     * be made anew. (Not for DISK_FLUSH_ALL, and not within disk_open.) */
    void (*lost_all)(void *context);
    /* A line for the log; may be NULL. level: 0 error, 1 warning, 2 info. */
    void (*log)(void *context, int level, const char *line);
} disk_options;

/*
 * Starts the helper and waits until it has the directory and the file's usage is known; the scan
 * then runs beside requests. Before any other thread is a good time, but any will do. KVT_EBUSY:
 * another daemon has the directory. KVT_ECANCELED: is_stopped. Others: with a sentence in why.
 *
 * Where that takes longer than wait_ms, KVT_OK all the same: the disk is not up, what it has room
 * for (map_bytes) is what its budget allows, and what would have been an error is logged, and tried
 * again. One that only a helper has that was killed with its daemon is waited for.
 */
kvt_status disk_open(const disk_options *options, char *why, size_t why_bytes, disk **ret_disk);

/* Lets the helper finish what was handed in, at most for limit_ms; done is called for all of it
 * (KVT_EIO for what did not get its turn). The file is left closed in order if there was time. */
void disk_close(disk *d, uint32_t limit_ms);

/* For epoll: readable when disk_step has something to do. The same descriptor for life. */
int disk_fd(const disk *d);
/* Takes what the helper said (bounded work per call), ends what is overdue, starts a new helper.
 * Never blocks; calling it too often does no harm. */
void disk_step(disk *d);

/* Names a realm of the daemon's (bytes are copied); before a request names it. Again with the same
 * bytes: nothing. Other bytes under a number: the old realm's records stay in the file and are not
 * reached by this number any more. KVT_ELIMIT: too many, too long. */
kvt_status disk_realm(disk *d, uint32_t realm, const void *bytes, size_t n_bytes);
/* Its number may be used for another from now on. */
void disk_realm_forget(disk *d, uint32_t realm);

/* Never blocks. KVT_EBUSY: max_requests are under way, or the helper is down and waits to be
 * started again: the caller goes on without. KVT_EINVAL: items. */
kvt_status disk_submit(disk *d, disk_request *request);

int disk_up(const disk *d);      /* a helper has the file */
int disk_scanned(const disk *d); /* scan_done was called */
uint32_t disk_under_way(const disk *d);

typedef struct disk_stats {
    /* now; as the helper last said */
    uint64_t records;
    uint64_t bytes;       /* used of the map; counts what free room cannot be used for now */
    uint64_t file_bytes;  /* of data.mdb */
    uint64_t map_bytes;   /* what `bytes` may rise to */
    uint64_t aside_bytes; /* of files that could not be used, in aside/ */
    uint64_t budget_bytes;
    uint64_t page_bytes;   /* of the pages as the arena has them */
    uint64_t stored_bytes; /* of the same in the file */
    /* counters */
    uint64_t writes, reads, deletes; /* pages done with KVT_OK */
    uint64_t write_bytes, read_bytes;
    uint64_t full;       /* writes refused for want of room */
    uint64_t corrupt;    /* records found damaged, and dropped */
    uint64_t foreign;    /* another page's record under the key asked for */
    uint64_t orphans;    /* dropped by the scan */
    uint64_t dropped;    /* requests that ended with KVT_EIO */
    uint64_t collisions; /* writes refused with KVT_EEXIST */
    uint64_t restarts;
    uint64_t files_lost;  /* an empty one took the place of one that could not be used, or was
                             removed by somebody */
    uint64_t moved_aside; /* of these, kept in aside/ */
    /* now */
    uint64_t silent_ms; /* for so long it has had something to answer, and has not; 0: it has not */
} disk_stats;
void disk_count(const disk *d, disk_stats *ret_stats);
/* The helper's pid (tests), 0 if there is none. */
int disk_pid(const disk *d);

#endif
