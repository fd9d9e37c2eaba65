/* tier_lmdb.c - see tier_lmdb.h. */
#include "store/tier_lmdb.h"
#include "client/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FREE_DBI = 0, /* LMDB's own list of free pages */
    MAIN_DBI = 1, /* and of named databases */
    META_PAGES = 2,
};

static const char *const names[LMDB_N_BASES] = {"index", "data", "realms"};

struct lmdb {
    MDB_env *env;
    MDB_dbi bases[LMDB_N_BASES];
    MDB_txn *txn;
    MDB_cursor *cursor;
    uint64_t page_bytes;
    int broken;
    int is_looked_at; /* the list of free pages, since something spoke against it */
};

static kvt_status status_of(lmdb *l, int rc) {
    switch (rc) {
    case MDB_SUCCESS:
        return KVT_OK;
    case MDB_NOTFOUND:
        return KVT_ENOENT;
    case MDB_KEYEXIST:
        return KVT_EEXIST;
    case MDB_MAP_FULL:
    case MDB_TXN_FULL:
    case ENOSPC:
    case EDQUOT:
        return KVT_EFULL;
    case EFBIG: /* a page behind the end of all there may be? */
        l->is_looked_at = 0;
        return KVT_EFULL;
    case ENOMEM:
        return KVT_ENOMEM;
    default:
        if (rc < 0) /* LMDB's own codes: the file, or what it believes of it, is damaged */
            l->broken = 1;
        return KVT_EIO;
    }
}

static MDB_val val(lmdb_bytes bytes) {
    return (MDB_val){.mv_size = bytes.n, .mv_data = (void *)(uintptr_t)bytes.at};
}

static lmdb_bytes bytes_of(MDB_val v) {
    return (lmdb_bytes){v.mv_data, v.mv_size};
}

static void assertion_failed(MDB_env *env, const char *message) {
    (void)env;
    fprintf(stderr, "kvtrunk: the disk tier's file is damaged: %s\n", message);
    abort();
}

/* --- its meta pages ----------------------------------------------------------------------------
 */

/* As LMDB 0.9 lays them out: format version 1, in this machine's words. */
typedef struct meta_page {
    size_t number;
    uint16_t pad, flags, lower, upper;
    uint32_t magic, version;
    void *address;
    size_t map_bytes;
    struct {
        uint32_t page_bytes; /* in that of free pages; the other has no use for it */
        uint16_t flags, depth;
        size_t n_branch, n_leaf, n_overflow, n_entries, root;
    } bases[META_PAGES];
    size_t last_page, txn;
} meta_page;

static int is_meta(const meta_page *m) {
    enum { IS_META = 8, FORMAT = 1 };
    return m->flags & IS_META && m->magic == UINT32_C(0xBEEFC0DE) && m->version == FORMAT;
}

/* LMDB believes the newest meta page: it divides by the page's size, and maps as much as the last
 * page's number asks for, which fails as if the system had no memory. So a flipped bit there must
 * be found before. Whatever else is wrong, LMDB finds. */
static kvt_status check_meta(const char *path, uint64_t page_bytes, uint64_t map_bytes) {
    meta_page m[META_PAGES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), is_whole = fd >= 0;
    for (int i = 0; is_whole && i < META_PAGES; i++)
        is_whole = pread(fd, &m[i], sizeof m[i], (off_t)page_bytes * i) == (ssize_t)sizeof m[i] &&
                   is_meta(&m[i]);
    if (fd >= 0)
        close(fd);
    if (!is_whole) /* none there, a new one, or LMDB says that it is none of its own */
        return KVT_OK;
    const meta_page *newest = &m[m[1].txn > m[0].txn];
    if (m[0].bases[FREE_DBI].page_bytes != page_bytes || /* says where the other is */
        newest->bases[FREE_DBI].page_bytes != page_bytes || newest->last_page < META_PAGES - 1 ||
        newest->last_page >= map_bytes / page_bytes)
        return KVT_ECORRUPT;
    return KVT_OK;
}

/* --- the file ----------------------------------------------------------------------------------
 */

kvt_status lmdb_open(const char *path, uint64_t map_bytes, lmdb **ret_lmdb) {
    MDB_stat stat;
    lmdb *l = calloc(1, sizeof *l);
    if (!l)
        return KVT_ENOMEM;
    l->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    kvt_status status = check_meta(path, l->page_bytes, map_bytes);
    if (status != KVT_OK)
        goto out;
    int rc = mdb_env_create(&l->env);
    if (!rc && !(rc = mdb_env_set_mapsize(l->env, map_bytes)) &&
        !(rc = mdb_env_set_maxdbs(l->env, LMDB_N_BASES)) &&
        !(rc = mdb_env_set_assert(l->env, assertion_failed)))
        rc = mdb_env_open(l->env, path, MDB_NOSUBDIR | MDB_NOSYNC | MDB_NOLOCK, 0600);
    status = status_of(l, rc);
    if (status == KVT_OK && mdb_env_stat(l->env, &stat) == 0 && stat.ms_psize != l->page_bytes)
        status = KVT_ECORRUPT;
    if (l->broken)
        status = KVT_ECORRUPT;
out:
    if (status == KVT_OK)
        *ret_lmdb = l;
    else
        lmdb_close(l);
    return status;
}

void lmdb_close(lmdb *l) {
    if (!l)
        return;
    lmdb_abort(l);
    if (l->env)
        mdb_env_close(l->env);
    free(l);
}

kvt_status lmdb_peek(const char *path, lmdb_base base, lmdb_bytes key, void *to, size_t room,
                     size_t *ret_n) {
    MDB_env *env = NULL;
    MDB_txn *txn = NULL;
    MDB_val k = val(key), v;
    MDB_dbi dbi;
    lmdb unused = {.env = NULL};
    if (check_meta(path, (uint64_t)sysconf(_SC_PAGESIZE), SIZE_MAX) != KVT_OK)
        return KVT_ECORRUPT;
    int rc = mdb_env_create(&env);
    /* The least map: LMDB makes it what the file has, and asks no meta page how large it is. */
    if (!rc && !(rc = mdb_env_set_mapsize(env, 1)) &&
        !(rc = mdb_env_set_maxdbs(env, LMDB_N_BASES)) &&
        !(rc = mdb_env_open(env, path, MDB_NOSUBDIR | MDB_RDONLY | MDB_NOLOCK, 0)) &&
        !(rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn)) &&
        !(rc = mdb_dbi_open(txn, names[base], 0, &dbi)))
        rc = mdb_get(txn, dbi, &k, &v);
    kvt_status status = status_of(&unused, rc);
    if (unused.broken || (status == KVT_OK && v.mv_size > room))
        status = KVT_ECORRUPT;
    if (status == KVT_OK)
        memcpy(to, v.mv_data, *ret_n = v.mv_size);
    if (txn)
        mdb_txn_abort(txn);
    if (env)
        mdb_env_close(env);
    return status;
}

kvt_status lmdb_bases(lmdb *l) {
    kvt_status status = lmdb_begin(l, 1);
    for (int i = 0; status == KVT_OK && i < LMDB_N_BASES; i++)
        status = status_of(l, mdb_dbi_open(l->txn, names[i], MDB_CREATE, &l->bases[i]));
    if (status == KVT_OK)
        return lmdb_commit(l);
    lmdb_abort(l);
    return status;
}

kvt_status lmdb_sync(lmdb *l) {
    return status_of(l, mdb_env_sync(l->env, 1));
}

int lmdb_broken(const lmdb *l) {
    return l->broken;
}

void lmdb_set_broken(lmdb *l) {
    l->broken = 1;
}

int lmdb_fd(const lmdb *l) {
    int fd = -1;
    return mdb_env_get_fd(l->env, &fd) == 0 ? fd : -1;
}

uint64_t lmdb_end(const lmdb *l) {
    MDB_envinfo info;
    mdb_env_info(l->env, &info);
    return ((uint64_t)info.me_last_pgno + 1) * l->page_bytes;
}

kvt_status lmdb_stretch(lmdb *l) {
    int rc = ftruncate(lmdb_fd(l), (off_t)lmdb_end(l)) != 0 ? errno : 0;
    return status_of(l, rc);
}

uint64_t lmdb_page_bytes(const lmdb *l) {
    return l->page_bytes;
}

/* --- transactions ------------------------------------------------------------------------------
 */

kvt_status lmdb_begin(lmdb *l, int writing) {
    KVT_ASSERT(!l->txn);
    if (l->broken) /* found by a record in front of this one */
        return KVT_EIO;
    int rc = mdb_txn_begin(l->env, NULL, writing ? 0 : MDB_RDONLY, &l->txn);
    if (rc)
        l->txn = NULL;
    return status_of(l, rc);
}

static void cursor_end(lmdb *l) {
    if (l->cursor)
        mdb_cursor_close(l->cursor);
    l->cursor = NULL;
}

kvt_status lmdb_commit(lmdb *l) {
    cursor_end(l);
    int rc = mdb_txn_commit(l->txn);
    l->txn = NULL;
    return status_of(l, rc);
}

void lmdb_abort(lmdb *l) {
    cursor_end(l);
    if (l->txn)
        mdb_txn_abort(l->txn);
    l->txn = NULL;
}

kvt_status lmdb_get(lmdb *l, lmdb_base base, lmdb_bytes key, lmdb_bytes *ret_value) {
    MDB_val k = val(key), v;
    int rc = mdb_get(l->txn, l->bases[base], &k, &v);
    if (rc == 0)
        *ret_value = bytes_of(v);
    return status_of(l, rc);
}

kvt_status lmdb_put(lmdb *l, lmdb_base base, lmdb_bytes key, lmdb_bytes value, int replace) {
    MDB_val k = val(key), v = val(value);
    return status_of(l, mdb_put(l->txn, l->bases[base], &k, &v, replace ? 0 : MDB_NOOVERWRITE));
}

kvt_status lmdb_reserve(lmdb *l, lmdb_base base, lmdb_bytes key, size_t n, void **ret_to) {
    MDB_val k = val(key), v = {.mv_size = n};
    int rc = mdb_put(l->txn, l->bases[base], &k, &v, MDB_RESERVE);
    if (rc == 0)
        *ret_to = v.mv_data;
    return status_of(l, rc);
}

kvt_status lmdb_del(lmdb *l, lmdb_base base, lmdb_bytes key) {
    MDB_val k = val(key);
    return status_of(l, mdb_del(l->txn, l->bases[base], &k, NULL));
}

/* --- the cursor --------------------------------------------------------------------------------
 */

static kvt_status cursor_get(lmdb *l, MDB_cursor_op op, MDB_val *k, lmdb_bytes *ret_key,
                             lmdb_bytes *ret_value) {
    MDB_val v;
    int rc = mdb_cursor_get(l->cursor, k, &v, op);
    if (rc == 0) {
        *ret_key = bytes_of(*k);
        *ret_value = bytes_of(v);
    }
    return status_of(l, rc);
}

kvt_status lmdb_seek(lmdb *l, lmdb_base base, lmdb_bytes key, int backward, lmdb_bytes *ret_key,
                     lmdb_bytes *ret_value) {
    MDB_val k = val(key);
    cursor_end(l);
    int rc = mdb_cursor_open(l->txn, l->bases[base], &l->cursor);
    if (rc) {
        l->cursor = NULL;
        return status_of(l, rc);
    }
    if (key.n == 0)
        return cursor_get(l, backward ? MDB_LAST : MDB_FIRST, &k, ret_key, ret_value);
    kvt_status status = cursor_get(l, MDB_SET_RANGE, &k, ret_key, ret_value);
    if (backward && (status == KVT_OK || status == KVT_ENOENT))
        return cursor_get(l, status == KVT_ENOENT ? MDB_LAST : MDB_PREV, &k, ret_key, ret_value);
    if (status == KVT_OK && ret_key->n == key.n && memcmp(ret_key->at, key.at, key.n) == 0)
        status = cursor_get(l, MDB_NEXT, &k, ret_key, ret_value);
    return status;
}

kvt_status lmdb_next(lmdb *l, int backward, lmdb_bytes *ret_key, lmdb_bytes *ret_value) {
    MDB_val k = {.mv_size = 0};
    return cursor_get(l, backward ? MDB_PREV : MDB_NEXT, &k, ret_key, ret_value);
}

/* --- counting pages ----------------------------------------------------------------------------
 */

/* One list of free pages: a count, then so many page numbers, which are looked at if `look`. */
static void count_list(MDB_val v, uint64_t n_pages, int look, uint64_t *seen, uint64_t *ret_free,
                       uint64_t *wrong) {
    size_t n = 0, number;
    if (v.mv_size >= sizeof n)
        memcpy(&n, v.mv_data, sizeof n);
    if (v.mv_size / sizeof n == 0 || n > v.mv_size / sizeof n - 1) {
        ++*wrong;
        return;
    }
    *ret_free += n;
    for (size_t i = 1; look && i <= n; i++) {
        memcpy(&number, (const char *)v.mv_data + i * sizeof n, sizeof n);
        if (number < META_PAGES || number >= n_pages ||
            (seen && seen[number / 64] >> number % 64 & 1))
            ++*wrong;
        else if (seen)
            seen[number / 64] |= UINT64_C(1) << number % 64;
    }
}

kvt_status lmdb_count_pages(lmdb *l, uint64_t *ret_used, uint64_t *ret_free, uint64_t *ret_twice) {
    MDB_dbi all[2 + LMDB_N_BASES] = {FREE_DBI, MAIN_DBI};
    MDB_cursor *cursor = NULL;
    MDB_val k, v;
    uint64_t n_pages = lmdb_end(l) / l->page_bytes, used = META_PAGES, n_free = 0, wrong = 0;
    uint64_t *seen = NULL;
    int rc = 0;
    memcpy(all + 2, l->bases, sizeof l->bases);
    for (int i = 0; i < 2 + LMDB_N_BASES && !rc; i++) {
        MDB_stat stat;
        rc = mdb_stat(l->txn, all[i], &stat);
        if (!rc)
            used += stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
    }
    if (!rc && ret_twice && !(seen = calloc(n_pages / 64 + 1, sizeof *seen)))
        rc = ENOMEM;
    if (!rc)
        rc = mdb_cursor_open(l->txn, FREE_DBI, &cursor);
    while (!rc && (rc = mdb_cursor_get(cursor, &k, &v, MDB_NEXT)) == 0)
        count_list(v, n_pages, ret_twice || !l->is_looked_at, seen, &n_free, &wrong);
    if (cursor)
        mdb_cursor_close(cursor);
    free(seen);
    if (rc != MDB_NOTFOUND)
        return status_of(l, rc);
    /* LMDB would write to such a page wherever it is, however far behind the map's end. */
    if (wrong > 0 && !ret_twice) {
        l->broken = 1;
        return KVT_EIO;
    }
    l->is_looked_at = 1;
    *ret_used = used;
    *ret_free = n_free;
    if (ret_twice)
        *ret_twice = wrong;
    return KVT_OK;
}
