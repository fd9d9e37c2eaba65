/*
 * tier_page.c - pages into the file, out of it, and away. Each change of the index is a change of
 * the data in the same transaction.
 */
#include "kernels/copy.h"
#include "kernels/hash.h"
#include "store/tier_parts.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { ASIDE_BYTES = 256 << 10 };

/* --- records in a transaction ------------------------------------------------------------------
 */

kvt_status tier_header_get(tier *t, uint32_t depth, const tier_key *key, tier_header *ret_header) {
    uint8_t at[TIER_INDEX_KEY_BYTES];
    lmdb_bytes v;
    tier_index_key(depth, key, at);
    kvt_status status = lmdb_get(t->lmdb, LMDB_INDEX, (lmdb_bytes){at, sizeof at}, &v);
    return status == KVT_OK ? tier_header_read(at, sizeof at, v.at, v.n, ret_header) : status;
}

kvt_status tier_drop(tier *t, const uint8_t at[TIER_INDEX_KEY_BYTES], const tier_header *header,
                     tier_state *state) {
    lmdb_bytes key = {at, TIER_INDEX_KEY_BYTES};
    kvt_status in_index = lmdb_del(t->lmdb, LMDB_INDEX, key);
    if (in_index != KVT_OK && in_index != KVT_ENOENT)
        return in_index;
    kvt_status status = lmdb_del(t->lmdb, LMDB_DATA, key);
    if (status != KVT_OK && status != KVT_ENOENT)
        return status;
    if (in_index == KVT_ENOENT)
        return KVT_OK;
    state->records -= state->records > 0;
    if (header && state->page_bytes >= header->bytes && state->stored_bytes >= header->stored) {
        state->page_bytes -= header->bytes;
        state->stored_bytes -= header->stored;
    } else {
        t->recount = 1;
    }
    return KVT_OK;
}

static void header_of(const tier_record *r, tier_header *ret_header) {
    *ret_header = (tier_header){.key = r->key,
                                .parent = r->parent,
                                .serial = r->serial,
                                .parent_serial = r->parent_serial,
                                .realm = r->realm,
                                .depth = r->depth,
                                .bytes = r->bytes,
                                .stored = r->bytes,
                                .slot = r->slot,
                                .rows = r->rows,
                                .n_tokens = r->n_tokens};
    memcpy(ret_header->tokens, r->tokens, 4 * (size_t)r->n_tokens);
}

/* Is it the same place: the same tokens of the same realm behind the same name? */
static int same_place(const tier_header *a, const tier_header *b) {
    return tier_key_equal(&a->key, &b->key) && tier_key_equal(&a->parent, &b->parent) &&
           a->realm == b->realm && a->depth == b->depth && a->slot == b->slot &&
           a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, 4 * (size_t)a->n_tokens) == 0;
}

/* And the same page: behind the same record? */
static int same_page(const tier_header *a, const tier_header *b) {
    return same_place(a, b) && a->parent_serial == b->parent_serial;
}

static void all_status(tier_record *records, uint32_t n, kvt_status status) {
    for (uint32_t i = 0; i < n; i++)
        records[i].status = status;
}

/* --- put ---------------------------------------------------------------------------------------
 */

static kvt_status parent_check(tier *t, const tier_header *h) {
    tier_header parent;
    if (h->depth == 0)
        return h->parent_serial == 0 ? KVT_OK : KVT_EORDER;
    kvt_status status = tier_header_get(t, h->depth - 1, &h->parent, &parent);
    if (status != KVT_OK)
        return status == KVT_ENOENT || status == KVT_ECORRUPT ? KVT_EORDER : status;
    return parent.serial == h->parent_serial && parent.realm == h->realm ? KVT_OK : KVT_EORDER;
}

/* May the record be written? What stands in its place is dropped then. */
static kvt_status put_check(tier *t, tier_record *r, tier_header *h, tier_state *state) {
    tier_header old;
    uint8_t at[TIER_INDEX_KEY_BYTES], number[4];
    lmdb_bytes v;
    if (r->realm == 0)
        return KVT_ENOENT;
    tier_store_u32(number, r->realm);
    kvt_status status = lmdb_get(t->lmdb, LMDB_REALMS, (lmdb_bytes){number, sizeof number}, &v);
    if (status == KVT_OK)
        status = parent_check(t, h);
    if (status != KVT_OK)
        return status;
    status = tier_header_get(t, h->depth, &h->key, &old);
    if (status == KVT_ENOENT)
        return KVT_OK;
    tier_index_key(h->depth, &h->key, at);
    if (status == KVT_ECORRUPT) {
        t->counts.corrupt++;
        return tier_drop(t, at, NULL, state);
    }
    if (status != KVT_OK)
        return status;
    if (!same_place(h, &old))
        return KVT_EEXIST;
    /* What is in front of it was written anew since: the record is an orphan, which nobody reads
     * and the next scan would drop. (Its new serial makes orphans of those behind it, too.) */
    if (!same_page(h, &old))
        t->counts.orphans++;
    else
        h->serial = r->serial = old.serial;
    return tier_drop(t, at, &old, state);
}

/* The bytes as they are to be stored: the record's own, or packed in the scratch memory. */
static const void *pack(tier *t, const tier_record *r, tier_header *h) {
    if (!(r->flags & TIER_RAW16))
        return r->at;
    if (t->scratch_bytes < tier_pack_room(r->bytes)) {
        free(t->scratch);
        t->scratch_bytes = tier_pack_room(r->bytes);
        t->scratch = malloc(t->scratch_bytes);
        if (!t->scratch)
            t->scratch_bytes = 0;
    }
    size_t packed = t->scratch ? tier_pack(t->packer, r->at, r->bytes, t->scratch) : 0;
    if (packed == 0)
        return r->at;
    h->stored = (uint32_t)packed;
    h->packing = TIER_PLANES;
    return t->scratch;
}

static kvt_status value_put(tier *t, const tier_record *r, tier_header *h) {
    uint8_t key[TIER_INDEX_KEY_BYTES], record[TIER_MAX_HEADER_BYTES];
    void *to;
    const void *bytes = pack(t, r, h);
    tier_index_key(h->depth, &h->key, key);
    kvt_status status = lmdb_reserve(t->lmdb, LMDB_DATA, (lmdb_bytes){key, sizeof key},
                                     (size_t)TIER_VALUE_HEADER_BYTES + h->stored, &to);
    if (status != KVT_OK)
        return status;
    uint8_t *copy = (uint8_t *)to + TIER_VALUE_HEADER_BYTES;
    tier_value_write(h, kvt_copy_hashed(copy, bytes, h->stored), to);
    lmdb_bytes v = {record, tier_header_write(h, record)};
    status = lmdb_put(t->lmdb, LMDB_INDEX, (lmdb_bytes){key, sizeof key}, v, 0);
    return status == KVT_EEXIST ? KVT_EIO : status; /* it was dropped just before */
}

/* One record in the open transaction; its own refusals are not the transaction's. */
static kvt_status put_one(tier *t, tier_record *r, tier_state *state, uint32_t *written) {
    tier_header h;
    header_of(r, &h);
    r->status = put_check(t, r, &h, state);
    if (r->status == KVT_EEXIST || r->status == KVT_EORDER || r->status == KVT_ENOENT)
        return KVT_OK;
    if (r->status == KVT_OK)
        r->status = value_put(t, r, &h);
    if (r->status != KVT_OK)
        return r->status;
    r->stored = h.stored;
    state->records++;
    state->page_bytes += h.bytes;
    state->stored_bytes += h.stored;
    if (state->last_serial < h.serial)
        state->last_serial = h.serial;
    ++*written;
    return KVT_OK;
}

/* Is there room for the records, and then enough left to delete them again? LMDB itself would use
 * up its last page, and after that could not even delete. */
static kvt_status room_check(tier *t, const tier_record *records, uint32_t n) {
    uint64_t used, n_free, page = lmdb_page_bytes(t->lmdb), needed = 0;
    for (uint32_t i = 0; i < n; i++)
        needed += tier_record_room(records[i].bytes, records[i].n_tokens);
    if (t->limit_bytes < t->map_bytes - t->reserve_bytes &&
        tier_files_disk_free(&t->files) > needed + 2 * t->reserve_bytes)
        t->limit_bytes = t->map_bytes - t->reserve_bytes; /* the disk has room again */
    if (lmdb_end(t->lmdb) + needed <= t->limit_bytes)
        return KVT_OK; /* even without what is free in the file */
    kvt_status status = lmdb_begin(t->lmdb, 0);
    if (status == KVT_OK)
        status = lmdb_count_pages(t->lmdb, &used, &n_free, NULL);
    lmdb_abort(t->lmdb);
    if (status != KVT_OK)
        return status;
    return used * page + needed > t->limit_bytes ? KVT_EFULL : KVT_OK;
}

/* LMDB had no room though it should: its free pages lie in pieces, or the disk is full. In that
 * case what is used now, less what deletes need, is the limit until the disk has room again. */
static void learn_limit(tier *t) {
    uint64_t end = lmdb_end(t->lmdb), kept = end / 8;
    if (end + t->reserve_bytes < t->map_bytes && end < t->limit_bytes + t->reserve_bytes &&
        tier_files_disk_free(&t->files) < 2 * t->reserve_bytes)
        t->limit_bytes = end - (kept < t->reserve_bytes ? kept : t->reserve_bytes);
}

/* LMDB calls a write that was done in part, which is how a disk becomes full, an I/O error. */
static kvt_status full_or_failed(tier *t, kvt_status status) {
    return status == KVT_EIO && !tier_broken(t) &&
                   tier_files_disk_free(&t->files) < t->reserve_bytes
               ? KVT_EFULL
               : status;
}

/*
 * Writing behind can wait; who answers a worker cannot. A processor is taken from a thread that is
 * at work at the next tick of the clock only, and by then it has written megabytes: acquire beside
 * spilling took 2.4 times its time (99 % of the calls, two processors); 1.1 to 1.2 times with
 * places to stand aside. Not for each small page: where all processors are busy, it is a while
 * until this one has its turn again, and pages go that were not written in time.
 */
static void stand_aside(tier *t, uint32_t bytes) {
    t->busy_bytes += bytes;
    if (t->busy_bytes < ASIDE_BYTES)
        return;
    t->busy_bytes = 0;
    sched_yield();
}

/* One transaction. Anything but KVT_OK: nothing was written. */
static kvt_status put_batch(tier *t, tier_record *records, uint32_t n) {
    uint32_t written = 0;
    tier_state state = t->state;
    kvt_status status = room_check(t, records, n);
    if (status != KVT_OK)
        return status;
    status = lmdb_begin(t->lmdb, 1);
    for (uint32_t i = 0; i < n && status == KVT_OK; i++) {
        stand_aside(t, records[i].bytes);
        status = put_one(t, &records[i], &state, &written);
    }
    if (status == KVT_OK && written > 0)
        status = tier_commit(t, &state);
    lmdb_abort(t->lmdb);
    status = full_or_failed(t, status);
    if (status == KVT_OK)
        t->counts.puts += written;
    else if (status == KVT_EFULL)
        learn_limit(t);
    return status;
}

kvt_status tier_put(tier *t, tier_record *records, uint32_t n) {
    KVT_ASSERT(n >= 1 && n <= TIER_MAX_BATCH);
    for (uint32_t i = 0; i < n; i++)
        KVT_ASSERT(records[i].serial && records[i].bytes && records[i].n_tokens &&
                   records[i].bytes <= TIER_MAX_PAGE_BYTES &&
                   records[i].n_tokens <= TIER_MAX_TOKENS);
    kvt_status status = put_batch(t, records, n);
    if (status != KVT_EFULL || n == 1) {
        if (status != KVT_OK)
            all_status(records, n, status);
        return status;
    }
    for (uint32_t i = 0; i < n; i++) {
        status = put_batch(t, &records[i], 1);
        if (status == KVT_OK)
            continue;
        all_status(&records[i], n - i, status);
        return i == 0 ? status : KVT_OK;
    }
    return KVT_OK;
}

/* --- get ---------------------------------------------------------------------------------------
 */

void tier_note_bad(tier *t, const tier_header *h) {
    if (t->n_bad < TIER_MAX_BAD)
        tier_index_key(h->depth, &h->key, t->bad[t->n_bad++]);
}

void tier_drop_bad(tier *t) {
    uint32_t n = t->n_bad;
    t->n_bad = 0;
    if (n == 0 || tier_broken(t))
        return;
    tier_state state = t->state;
    kvt_status status = lmdb_begin(t->lmdb, 1);
    for (uint32_t i = 0; i < n && status == KVT_OK; i++) {
        tier_header h;
        uint32_t depth;
        tier_key key;
        tier_index_key_read(t->bad[i], &depth, &key);
        status = tier_header_get(t, depth, &key, &h);
        if (status == KVT_OK || status == KVT_ENOENT || status == KVT_ECORRUPT)
            status = tier_drop(t, t->bad[i], status == KVT_OK ? &h : NULL, &state);
    }
    if (status == KVT_OK)
        tier_commit(t, &state);
    lmdb_abort(t->lmdb);
}

kvt_status tier_value_get(tier *t, const tier_header *h, void *at) {
    uint8_t key[TIER_INDEX_KEY_BYTES];
    uint64_t bytes_hash;
    lmdb_bytes v;
    tier_index_key(h->depth, &h->key, key);
    kvt_status status = lmdb_get(t->lmdb, LMDB_DATA, (lmdb_bytes){key, sizeof key}, &v);
    if (status == KVT_OK)
        status = tier_value_read(h, v.at, v.n, &bytes_hash);
    if (status != KVT_OK)
        return status == KVT_ENOENT ? KVT_ECORRUPT : status;
    const uint8_t *from = (const uint8_t *)v.at + TIER_VALUE_HEADER_BYTES;
    if (kvt_hash(from, h->stored) != bytes_hash)
        return KVT_ECORRUPT;
    if (h->packing != TIER_PLAIN)
        return tier_unpack(t->packer, from, h->stored, at, h->bytes);
    /* The copy is for the daemon, who compares it with the checksum that the page itself has. */
    kvt_copy_past(at, from, h->bytes);
    return KVT_OK;
}

kvt_status tier_get(tier *t, tier_record *r) {
    tier_header asked, h;
    header_of(r, &asked);
    kvt_status status = lmdb_begin(t->lmdb, 0);
    if (status != KVT_OK)
        return r->status = status;
    status = tier_header_get(t, r->depth, &r->key, &h);
    if (status == KVT_OK && (!same_page(&h, &asked) || h.serial != r->serial ||
                             h.bytes != r->bytes || h.rows != r->rows)) {
        t->counts.foreign++;
        status = KVT_ENOENT;
    }
    if (status == KVT_OK)
        status = tier_value_get(t, &h, r->at);
    lmdb_abort(t->lmdb);
    if (status == KVT_OK)
        t->counts.gets++;
    if (status == KVT_ECORRUPT) {
        t->counts.corrupt++;
        tier_note_bad(t, &asked);
        tier_drop_bad(t);
    }
    return r->status = status;
}

/* --- del ---------------------------------------------------------------------------------------
 */

static kvt_status del_one(tier *t, tier_record *r, tier_state *state, uint32_t *deleted) {
    tier_header h;
    uint8_t at[TIER_INDEX_KEY_BYTES];
    r->status = tier_header_get(t, r->depth, &r->key, &h);
    if (r->status == KVT_OK && r->serial && h.serial != r->serial)
        r->status = KVT_ENOENT;
    if (r->status == KVT_ENOENT)
        return KVT_OK;
    if (r->status != KVT_OK && r->status != KVT_ECORRUPT)
        return r->status;
    tier_index_key(r->depth, &r->key, at);
    r->status = tier_drop(t, at, r->status == KVT_OK ? &h : NULL, state);
    *deleted += r->status == KVT_OK;
    return r->status;
}

/* One transaction. */
static kvt_status del_batch(tier *t, tier_record *records, uint32_t n) {
    uint32_t deleted = 0;
    tier_state state = t->state;
    kvt_status status = lmdb_begin(t->lmdb, 1);
    for (uint32_t i = 0; i < n && status == KVT_OK; i++)
        status = del_one(t, &records[i], &state, &deleted);
    if (status == KVT_OK && deleted > 0)
        status = tier_commit(t, &state);
    lmdb_abort(t->lmdb);
    status = full_or_failed(t, status);
    if (status == KVT_OK)
        t->counts.dels += deleted;
    return status;
}

/* Where the disk has no room for the pages that deleting needs, the ballast makes some; and it goes
 * a few records at a time. */
static kvt_status del_cramped(tier *t, tier_record *records, uint32_t n) {
    uint32_t at_once = n;
    kvt_status status = KVT_OK;
    tier_files_drop_ballast(&t->files);
    for (uint32_t i = 0; i < n && status == KVT_OK;) {
        uint32_t some = n - i < at_once ? n - i : at_once;
        status = del_batch(t, records + i, some);
        if (status == KVT_OK) {
            i += some;
        } else if (status == KVT_EFULL && at_once > 1) {
            at_once /= 2;
            status = KVT_OK;
        } else {
            all_status(records + i, n - i, status);
        }
    }
    tier_files_take_ballast(&t->files);
    return status;
}

kvt_status tier_del(tier *t, tier_record *records, uint32_t n) {
    KVT_ASSERT(n >= 1 && n <= TIER_MAX_BATCH);
    kvt_status status = del_batch(t, records, n);
    if (status == KVT_EFULL)
        return del_cramped(t, records, n);
    if (status != KVT_OK)
        all_status(records, n, status);
    return status;
}
