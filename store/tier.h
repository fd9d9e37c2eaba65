/*
 * tier.h - the disk tier: pages in one LMDB file, format in store/TIER_FORMAT.md.
 *
 * A synchronous library for one thread of one process (the daemon's disk helper): a damaged file
 * is a SIGBUS, a SIGSEGV or an endless loop inside LMDB, and whoever calls this must be able to
 * die of it.
 *
 *     dir/data.mdb    the records; never larger than the budget
 *     dir/lock        flock, and one of dir itself: one process at a time
 *     dir/stamp       format version, boot id of the system, closed in order or not
 *     dir/ballast     room that deleting may take when the disk is full
 *     dir/aside/      what was moved aside (the last one of each kind): counts in the budget, and
 *                     goes where it takes more than a quarter of it, or room that the file has
 *
 * Identity. A record's key is a hash, so every record has a serial number too, never used twice in
 * one file, and names the serial of the record in front of it. A record is what was asked for only
 * if key, serial, serial of the parent, parent's key, realm (compared as bytes when it was
 * defined), slot, depth, tokens, lengths and checksum are equal; nothing is decided by a hash.
 *
 * A parent is written no later than its child: a put whose parent is not there (in the file, or
 * earlier in the batch) is refused with KVT_EORDER. The caller deletes tails before what is in
 * front of them; a record whose parent went all the same is an orphan: the scan drops it.
 *
 * Durability. No call waits for the disk. What a call has committed survives the death of the
 * process at any point; it survives the death of the SYSTEM only if the tier was closed in order
 * before. tier_open sees which it was.
 */
#ifndef KVT_STORE_TIER_H
#define KVT_STORE_TIER_H

#include "client/kvtrunk.h"
#include "store/tier_key.h"

enum {
    TIER_MAX_TOKENS = 128,         /* of a page */
    TIER_MAX_REALM_BYTES = 4096,   /* canonical bytes */
    TIER_MAX_REALMS = 4096,        /* in one file */
    TIER_MAX_BATCH = 64,           /* records of one put or del */
    TIER_MAX_PAGE_BYTES = 1 << 30, /* of a page's encoded bytes */
    TIER_MAX_BOOT_ID_BYTES = 64,
};
#define TIER_MIN_BUDGET_BYTES (UINT64_C(4) << 20)

typedef struct tier tier;

/* What the file of such a budget may grow to, with nothing aside; tier_usage has what it may now.
 * 0: less than TIER_MIN_BUDGET_BYTES. */
uint64_t tier_room_bytes(uint64_t budget_bytes);

/* How the file was found. */
typedef enum tier_found {
    TIER_FOUND_NONE = 0, /* there was none */
    TIER_FOUND_CLEAN,    /* closed in order */
    TIER_FOUND_KILLED,   /* its process died, the system did not: used as it is */
    TIER_FOUND_CRASHED,  /* the system died: thrown away */
    TIER_FOUND_VERSION,  /* of another version of the format: moved aside */
    TIER_FOUND_BROKEN,   /* not what it says it is: moved aside */
    TIER_FOUND_LARGER,   /* larger than the budget is now: thrown away */
} tier_found;
const char *tier_found_name(tier_found found);
/* Where such a file is moved, in the directory; NULL: it is removed. */
const char *tier_aside_name(tier_found found);

enum {
    TIER_CHECK = 1 << 0,   /* the last process died of the file: walk it before it is used */
    TIER_DISCARD = 1 << 1, /* do not use what is there: move it aside */
};

typedef struct tier_options {
    const char *dir;       /* made if it is not there; mode 0700 */
    uint64_t budget_bytes; /* of all files; hard */
    const char *boot_id;   /* of the system; "" = not known: only a file closed in order is used */
    uint32_t lock_wait_ms; /* another process may be about to let go */
    uint32_t flags;
} tier_options;

/*
 * KVT_EBUSY: another process has the directory. KVT_EINVAL: the budget is too small, or the name no
 * directory's. KVT_ENOENT: nor is there one to make it in. KVT_EIO, KVT_EDENIED, KVT_EFULL. With
 * path and reason in why.
 */
kvt_status tier_open(const tier_options *options, char *why, size_t why_bytes, tier **ret_tier);
/* Writes everything down and leaves the stamp of an orderly end. NULL is accepted. */
void tier_close(tier *t);

/* After KVT_EIO with this nonzero, the file cannot be used any more: close it and open it again
 * with TIER_DISCARD (or TIER_CHECK). */
int tier_broken(const tier *t);

/* --- realms ------------------------------------------------------------------------------------
 */

/* The file's number of a realm, made if need be. KVT_EFULL, KVT_ELIMIT, KVT_EIO. */
kvt_status tier_realm_define(tier *t, const void *bytes, size_t n_bytes, uint32_t *ret_realm);
/* The bytes of a number (at least TIER_MAX_REALM_BYTES of room). KVT_ENOENT, KVT_ECORRUPT. */
kvt_status tier_realm_bytes(tier *t, uint32_t realm, void *to, size_t *ret_n_bytes);

/* --- records -----------------------------------------------------------------------------------
 */

enum {
    TIER_RAW16 = 1 << 0, /* bytes are 16-bit elements: may be stored smaller, without loss */
};

typedef struct tier_record {
    tier_key key;
    tier_key parent;        /* of depth 0: the realm's root key */
    uint64_t serial;        /* not 0 */
    uint64_t parent_serial; /* of depth 0: 0 */
    uint32_t realm;         /* the file's number */
    uint32_t depth;         /* pages in front of it */
    uint16_t slot;
    uint16_t rows;
    uint16_t n_tokens; /* 1 .. TIER_MAX_TOKENS */
    uint16_t flags;    /* put: TIER_RAW16 or 0 */
    uint32_t bytes;    /* encoded, as the arena has them */
    uint32_t stored;   /* out: bytes of the value in the file */
    const uint32_t *tokens;
    void *at;          /* put: the bytes; get: where to; scan, del: unused */
    kvt_status status; /* out */
} tier_record;

/* The largest serial that the file has ever seen; new ones must be larger. */
uint64_t tier_last_serial(const tier *t);

/*
 * One transaction; each record gets a status:
 *   KVT_OK      it is there. If the same page (same parent serial, realm, slot, tokens) was there
 *               already, its bytes are replaced and `serial` is set to the one it has.
 *               The same behind a parent that is not there any more is an orphan: it is dropped.
 *   KVT_EEXIST  another page has this key: not written
 *   KVT_EORDER  its parent is not there
 *   KVT_ENOENT  its realm is not in the file: define it again
 *   KVT_EFULL   no room: the budget, or the disk
 * Where there is not room for all, the first of them are written, each in a transaction of its own.
 * Returns KVT_OK if something was committed, or there was nothing to commit; KVT_EFULL, KVT_EIO:
 * nothing was, and every status says so. Cost: a copy into LMDB's memory, a hash, a write into the
 * page cache.
 */
kvt_status tier_put(tier *t, tier_record *records, uint32_t n);

/*
 * Reads one page into record->at and compares everything. KVT_ENOENT: none under this key, or
 * another page's (counted as foreign; it stays). KVT_ECORRUPT: what is stored is not what was
 * written, and was dropped. KVT_EIO. Unless KVT_OK, what stands at `at` is void.
 */
kvt_status tier_get(tier *t, tier_record *record);

/* One transaction or several: where the map or the disk is full, fewer at a time. By key, depth and
 * serial; a status each: KVT_OK, KVT_ENOENT. Returns KVT_EFULL if not even one could be deleted for
 * want of room: then tier_reset. */
kvt_status tier_del(tier *t, tier_record *records, uint32_t n);

/* Throws everything away: a new, empty file. Serials go on. */
kvt_status tier_reset(tier *t, char *why, size_t why_bytes);

/* --- walking -----------------------------------------------------------------------------------
 */

/* A place between two records, in order of (depth, key); valid across any change. All zero: the
 * start. */
typedef struct tier_place {
    uint32_t depth;
    tier_key key;
    uint8_t started, done;
} tier_place;

/*
 * Calls visit for at most max records from the place on, parents before their children, without
 * reading any page: about a second for 100,000. Orphans and broken headers are dropped and counted.
 * tokens are valid during the call. place->done is set after the last.
 */
kvt_status tier_scan(tier *t, tier_place *place, uint32_t max,
                     void (*visit)(void *context, const tier_record *record), void *context);

/* Looks at no more than max records from the place on, from the tails to the roots, and deletes
 * those of the realm; *ret_n tells how many. KVT_EFULL as tier_del. */
kvt_status tier_del_realm(tier *t, uint32_t realm, tier_place *place, uint32_t max,
                          uint32_t *ret_n);

/* Reads and checks the bytes of at most max_bytes' worth of pages (one at least); what is wrong is
 * dropped and counted in usage.corrupt. */
kvt_status tier_verify(tier *t, tier_place *place, uint64_t max_bytes, uint64_t *ret_checked);

/* --- room --------------------------------------------------------------------------------------
 */

/* What a page that is stored in so many bytes takes of the file, where others come and go: what a
 * caller counts with. A put may still be refused, when free room lies in pieces. */
uint64_t tier_record_bytes(uint32_t stored, uint32_t n_tokens);
/* What writing it may take at worst: a put asks for as much, whatever the callers count. */
uint64_t tier_record_room(uint32_t bytes, uint32_t n_tokens);

typedef struct tier_usage {
    /* now */
    uint64_t records;
    uint64_t page_bytes;   /* of the pages as the arena has them */
    uint64_t stored_bytes; /* of their values */
    uint64_t budget_bytes;
    uint64_t map_bytes;   /* what records may take: less where the disk is smaller */
    uint64_t used_bytes;  /* of the map */
    uint64_t free_bytes;  /* the rest of it: beyond the file's end, and free in it */
    uint64_t file_bytes;  /* of data.mdb */
    uint64_t aside_bytes; /* of the files in aside/ */
    uint32_t realms;
    /* since open */
    uint64_t puts, gets, dels;
    uint64_t corrupt;             /* dropped */
    uint64_t foreign;             /* another page's under the key that was asked for */
    uint64_t orphans;             /* dropped */
    uint64_t aside_removed_bytes; /* of files in aside/ that did not fit */
    uint64_t found_bytes;         /* of data.mdb, as it was found */
    tier_found found;
    int moved_aside; /* is that file in aside/ now? */
} tier_usage;
/* Walks the list of free pages: some microseconds for each thousand. Sees whether data.mdb has been
 * removed: tier_broken then, and KVT_EIO. */
kvt_status tier_use(tier *t, tier_usage *ret_usage);

/* Walks all of the file but the pages' bytes, and checks that it agrees: every page of the file is
 * in use or free, once; headers and values belong to each other; sums. KVT_ECORRUPT with a sentence
 * in why. */
kvt_status tier_audit(tier *t, char *why, size_t why_bytes);

#endif
