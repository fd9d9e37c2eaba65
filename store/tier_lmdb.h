/*
 * tier_lmdb.h - what the disk tier needs of LMDB: three databases in one file, one transaction at a
 * time, answers as kvt_status. tier_lmdb.c is the one file that knows LMDB.
 *
 * How it is run, and why. No WRITEMAP: a stray write of this process would reach the file, and a
 * full disk would be a SIGBUS. NOSYNC: waiting for the disk protects only against the system's
 * death, after which the file is thrown away; and it would cost most of the speed (128 MB in 128
 * transactions on ext4: .3 to .5 s without, 1.4 to 1.6 s with NOMETASYNC, 2.3 s with neither).
 * NOLOCK: one process, one thread, no read transaction open while one writes, so there is no reader
 * table that dead readers could fill and nothing that keeps freed pages from being used again.
 *
 * KVT_EFULL: the map or the disk has no room. KVT_EIO with lmdb_broken: the file, or what LMDB
 * believes of it, is damaged; only lmdb_close is allowed then. KVT_EIO without: the system failed.
 * After any failure within a writing transaction but KVT_ENOENT and KVT_EEXIST, lmdb_abort must
 * follow. What is read is valid until the transaction ends, or the next write in it.
 */
#ifndef KVT_STORE_TIER_LMDB_H
#define KVT_STORE_TIER_LMDB_H

#include "client/kvtrunk.h"

typedef struct lmdb lmdb;

typedef enum lmdb_base {
    LMDB_INDEX, /* small headers, by (depth, key) */
    LMDB_DATA,  /* the pages' bytes, by the same */
    LMDB_REALMS,
    LMDB_N_BASES
} lmdb_base;

typedef struct lmdb_bytes {
    const void *at;
    size_t n;
} lmdb_bytes;

/* The file may grow to map_bytes. KVT_ECORRUPT: not LMDB's file, or one for other pages, or it says
 * of itself that it is larger. */
kvt_status lmdb_open(const char *path, uint64_t map_bytes, lmdb **ret_lmdb);
/* One record of a file that may be anybody's, without writing: nothing is made, mended or locked.
 * KVT_ENOENT: the file has no such database or record; KVT_ECORRUPT: it is none of LMDB's, or the
 * record takes more than the room; KVT_EIO. */
kvt_status lmdb_peek(const char *path, lmdb_base base, lmdb_bytes key, void *to, size_t room,
                     size_t *ret_n);
void lmdb_close(lmdb *l); /* NULL is accepted */
/* Makes the databases, or finds them. */
kvt_status lmdb_bases(lmdb *l);
/* All that was committed reaches the disk. */
kvt_status lmdb_sync(lmdb *l);
int lmdb_broken(const lmdb *l);
void lmdb_set_broken(lmdb *l);
int lmdb_fd(const lmdb *l); /* of the file */

uint64_t lmdb_end(const lmdb *l);        /* of the last page in use or free, in bytes */
kvt_status lmdb_stretch(lmdb *l);        /* makes the file as long as that, with zeros */
uint64_t lmdb_page_bytes(const lmdb *l); /* of LMDB's pages */

kvt_status lmdb_begin(lmdb *l, int writing); /* KVT_EIO also if it is broken */
kvt_status lmdb_commit(lmdb *l);
void lmdb_abort(lmdb *l);

kvt_status lmdb_get(lmdb *l, lmdb_base base, lmdb_bytes key, lmdb_bytes *ret_value);
/* KVT_EEXIST unless replace. */
kvt_status lmdb_put(lmdb *l, lmdb_base base, lmdb_bytes key, lmdb_bytes value, int replace);
/* Room for n bytes under the key, to be filled in before the next call. */
kvt_status lmdb_reserve(lmdb *l, lmdb_base base, lmdb_bytes key, size_t n, void **ret_to);
kvt_status lmdb_del(lmdb *l, lmdb_base base, lmdb_bytes key);

/* One cursor, of the open transaction; ends with it. key n = 0: the first record, or the last one
 * if backward; else the first behind the key, in front of it. KVT_ENOENT: none. */
kvt_status lmdb_seek(lmdb *l, lmdb_base base, lmdb_bytes key, int backward, lmdb_bytes *ret_key,
                     lmdb_bytes *ret_value);
kvt_status lmdb_next(lmdb *l, int backward, lmdb_bytes *ret_key, lmdb_bytes *ret_value);

/* Pages of the databases, LMDB's own included, and those on its list of free ones, in a reading
 * transaction. Together they are all of lmdb_end. *ret_twice: pages that stand on the list twice or
 * lie outside; if NULL, those outside are looked for once, and after a write that was too far out;
 * one of them breaks the file. */
kvt_status lmdb_count_pages(lmdb *l, uint64_t *ret_used, uint64_t *ret_free, uint64_t *ret_twice);

#endif
