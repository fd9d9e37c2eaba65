/*
 * tier_walk.c - going through the records: scan, verify, deleting a realm, audit, sums.
 */
#include "store/tier_parts.h"

#include <stdlib.h>
#include <string.h>

/* --- steps -------------------------------------------------------------------------------------
 */

typedef struct walk {
    uint32_t left; /* records to look at */
    int backward;
    /* KVT_OK: go on; KVT_ECANCELED: end here, in front of this record; others: fail. h is NULL if
     * the header is damaged. */
    kvt_status (*visit)(tier *t, struct walk *w, const tier_header *h);
    void *context;
    void (*found)(void *context, const tier_record *record);
    uint64_t left_bytes;
    uint64_t checked;
    uint32_t realm;
} walk;

/* One record: notes it if it is damaged, and shows it. */
static kvt_status walk_at(tier *t, walk *w, const uint8_t at[TIER_INDEX_KEY_BYTES], lmdb_bytes v) {
    tier_header h;
    int good = tier_header_read(at, TIER_INDEX_KEY_BYTES, v.at, v.n, &h) == KVT_OK;
    if (!good) {
        memcpy(t->bad[t->n_bad++], at, TIER_INDEX_KEY_BYTES);
        t->counts.corrupt++;
    }
    return w->visit(t, w, good ? &h : NULL);
}

/* A damaged tree may go round in circles: keys must rise (fall). */
static int in_order(const uint8_t *last, int any, int backward, lmdb_bytes key) {
    if (key.n != TIER_INDEX_KEY_BYTES)
        return 0;
    int order = any ? memcmp(key.at, last, key.n) : backward ? -1 : 1;
    return backward ? order < 0 : order > 0;
}

static kvt_status walk_records(tier *t, walk *w, tier_place *place) {
    uint8_t last[TIER_INDEX_KEY_BYTES];
    lmdb_bytes k = {last, place->started ? sizeof last : 0}, v;
    int any = place->started;
    tier_index_key(place->depth, &place->key, last);
    kvt_status status = lmdb_seek(t->lmdb, LMDB_INDEX, k, w->backward, &k, &v);
    while (status == KVT_OK && w->left > 0 && t->n_bad < TIER_MAX_BAD) {
        if (!in_order(last, any, w->backward, k)) {
            lmdb_set_broken(t->lmdb);
            return KVT_EIO;
        }
        memcpy(last, k.at, sizeof last);
        any = 1;
        status = walk_at(t, w, last, v);
        if (status != KVT_OK)
            return status;
        tier_index_key_read(last, &place->depth, &place->key);
        place->started = 1;
        w->left--;
        status = lmdb_next(t->lmdb, w->backward, &k, &v);
    }
    place->done = status == KVT_ENOENT;
    return status == KVT_ENOENT ? KVT_OK : status;
}

/* A step of a walk over the index, in a reading transaction; what was noted as bad is dropped at
 * its end. */
static kvt_status walk_step(tier *t, walk *w, tier_place *place) {
    kvt_status status = lmdb_begin(t->lmdb, 0);
    if (status == KVT_OK)
        status = walk_records(t, w, place);
    lmdb_abort(t->lmdb);
    tier_drop_bad(t);
    if (place->done && t->recount && !tier_broken(t))
        tier_recount(t);
    return status == KVT_ECANCELED ? KVT_OK : status;
}

/* --- scan --------------------------------------------------------------------------------------
 */

/* Is the record in front of it there? KVT_EORDER: no. */
static kvt_status parent_there(tier *t, const tier_header *h) {
    uint8_t at[TIER_INDEX_KEY_BYTES];
    lmdb_bytes v;
    if (h->depth == 0)
        return KVT_OK;
    tier_index_key(h->depth - 1, &h->parent, at);
    kvt_status status = lmdb_get(t->lmdb, LMDB_INDEX, (lmdb_bytes){at, sizeof at}, &v);
    if (status == KVT_OK && tier_header_serial(v.at, v.n) == h->parent_serial)
        return KVT_OK;
    return status == KVT_OK || status == KVT_ENOENT ? KVT_EORDER : status;
}

static kvt_status scan_visit(tier *t, walk *w, const tier_header *h) {
    if (!h)
        return KVT_OK;
    kvt_status status = parent_there(t, h);
    if (status == KVT_EORDER) {
        t->counts.orphans++;
        tier_note_bad(t, h);
        return KVT_OK;
    }
    if (status != KVT_OK)
        return status;
    tier_record r = {.key = h->key,
                     .parent = h->parent,
                     .serial = h->serial,
                     .parent_serial = h->parent_serial,
                     .realm = h->realm,
                     .depth = h->depth,
                     .slot = h->slot,
                     .rows = h->rows,
                     .n_tokens = h->n_tokens,
                     .bytes = h->bytes,
                     .stored = h->stored,
                     .tokens = h->tokens};
    w->found(w->context, &r);
    return KVT_OK;
}

kvt_status tier_scan(tier *t, tier_place *place, uint32_t max,
                     void (*visit)(void *context, const tier_record *record), void *context) {
    walk w = {.left = max, .visit = scan_visit, .found = visit, .context = context};
    return walk_step(t, &w, place);
}

/* --- verify ------------------------------------------------------------------------------------
 */

static kvt_status verify_visit(tier *t, walk *w, const tier_header *h) {
    if (!h)
        return KVT_OK;
    if (w->checked > 0 && h->bytes > w->left_bytes)
        return KVT_ECANCELED;
    w->left_bytes -= h->bytes < w->left_bytes ? h->bytes : w->left_bytes;
    w->checked++;
    uint8_t *bytes = malloc(h->bytes);
    if (!bytes)
        return KVT_ENOMEM;
    kvt_status status = tier_value_get(t, h, bytes);
    free(bytes);
    if (status != KVT_ECORRUPT)
        return status;
    t->counts.corrupt++;
    tier_note_bad(t, h);
    return KVT_OK;
}

kvt_status tier_verify(tier *t, tier_place *place, uint64_t max_bytes, uint64_t *ret_checked) {
    walk w = {.left = UINT32_MAX, .visit = verify_visit, .left_bytes = max_bytes};
    kvt_status status = walk_step(t, &w, place);
    if (status == KVT_OK)
        *ret_checked = w.checked;
    return status;
}

/* --- deleting a realm --------------------------------------------------------------------------
 */

typedef struct doomed {
    tier_record records[TIER_MAX_BATCH];
    uint32_t n;
} doomed;

static kvt_status doom_visit(tier *t, walk *w, const tier_header *h) {
    doomed *d = w->context;
    (void)t;
    if (!h || h->realm != w->realm)
        return KVT_OK;
    if (d->n == TIER_MAX_BATCH)
        return KVT_ECANCELED;
    d->records[d->n++] = (tier_record){.key = h->key, .depth = h->depth, .serial = h->serial};
    return KVT_OK;
}

kvt_status tier_del_realm(tier *t, uint32_t realm, tier_place *place, uint32_t max,
                          uint32_t *ret_n) {
    doomed d = {.n = 0};
    walk w = {.left = max, .backward = 1, .visit = doom_visit, .context = &d, .realm = realm};
    kvt_status status = walk_step(t, &w, place);
    if (status == KVT_OK && d.n > 0)
        status = tier_del(t, d.records, d.n);
    if (status == KVT_OK)
        *ret_n = d.n;
    return status;
}

/* --- room and sums -----------------------------------------------------------------------------
 */

kvt_status tier_use(tier *t, tier_usage *ret_usage) {
    uint64_t used, n_free;
    /* What is written to a file that has been removed is for nobody. */
    if (!tier_files_is_data(&t->files, lmdb_fd(t->lmdb))) {
        lmdb_set_broken(t->lmdb);
        return KVT_EIO;
    }
    kvt_status status = lmdb_begin(t->lmdb, 0);
    if (status == KVT_OK)
        status = lmdb_count_pages(t->lmdb, &used, &n_free, NULL);
    lmdb_abort(t->lmdb);
    if (status != KVT_OK)
        return status;
    tier_usage u = t->counts;
    u.records = t->state.records;
    u.page_bytes = t->state.page_bytes;
    u.stored_bytes = t->state.stored_bytes;
    u.budget_bytes = t->budget_bytes;
    u.map_bytes = t->limit_bytes;
    u.used_bytes = used * lmdb_page_bytes(t->lmdb);
    u.free_bytes = u.used_bytes < u.map_bytes ? u.map_bytes - u.used_bytes : 0;
    u.file_bytes = tier_files_data_bytes(&t->files);
    u.realms = t->state.last_realm;
    *ret_usage = u;
    return KVT_OK;
}

static kvt_status sum_headers(tier *t, tier_state *state) {
    lmdb_bytes k = {NULL, 0}, v;
    state->records = state->page_bytes = state->stored_bytes = 0;
    kvt_status status = lmdb_seek(t->lmdb, LMDB_INDEX, k, 0, &k, &v);
    for (; status == KVT_OK; status = lmdb_next(t->lmdb, 0, &k, &v)) {
        tier_header h;
        state->records++;
        if (tier_header_read(k.at, k.n, v.at, v.n, &h) != KVT_OK)
            continue;
        state->page_bytes += h.bytes;
        state->stored_bytes += h.stored;
        if (state->last_serial < h.serial)
            state->last_serial = h.serial;
    }
    return status == KVT_ENOENT ? KVT_OK : status;
}

kvt_status tier_recount(tier *t) {
    tier_state state = t->state;
    kvt_status status = lmdb_begin(t->lmdb, 1);
    if (status == KVT_OK)
        status = sum_headers(t, &state);
    if (status == KVT_OK)
        status = tier_commit(t, &state);
    lmdb_abort(t->lmdb);
    if (status == KVT_OK)
        t->recount = 0;
    return status;
}

/* --- audit -------------------------------------------------------------------------------------
 */

static kvt_status audit_pages(tier *t, char *why, size_t why_bytes) {
    uint64_t used, n_free, twice, all = lmdb_end(t->lmdb) / lmdb_page_bytes(t->lmdb);
    kvt_status status = lmdb_count_pages(t->lmdb, &used, &n_free, &twice);
    if (status != KVT_OK)
        return kvt_say(why, why_bytes, status, "the list of free pages cannot be read");
    if (twice || used + n_free != all)
        return kvt_say(why, why_bytes, KVT_ECORRUPT,
                       "%llu pages are used and %llu free (%llu of them wrongly), of %llu",
                       (unsigned long long)used, (unsigned long long)n_free,
                       (unsigned long long)twice, (unsigned long long)all);
    return KVT_OK;
}

/* Every header has its value. The keys are listed, since there is one cursor. */
static kvt_status audit_values(tier *t, uint64_t n_records, char *why, size_t why_bytes) {
    lmdb_bytes k = {NULL, 0}, v;
    uint64_t n = 0;
    kvt_status status = lmdb_seek(t->lmdb, LMDB_DATA, k, 0, &k, &v);
    for (; status == KVT_OK; status = lmdb_next(t->lmdb, 0, &k, &v)) {
        uint8_t at[TIER_INDEX_KEY_BYTES];
        tier_header h;
        uint32_t depth;
        tier_key key;
        uint64_t hash;
        if (k.n != sizeof at || n++ > n_records)
            return kvt_say(why, why_bytes, KVT_ECORRUPT, "the data's keys make no sense");
        memcpy(at, k.at, sizeof at);
        tier_index_key_read(at, &depth, &key);
        if (tier_header_get(t, depth, &key, &h) != KVT_OK ||
            tier_value_read(&h, v.at, v.n, &hash) != KVT_OK)
            return kvt_say(why, why_bytes, KVT_ECORRUPT, "a header and its value do not agree");
    }
    if (status != KVT_ENOENT)
        return kvt_say(why, why_bytes, status, "the data cannot be read");
    if (n != n_records)
        return kvt_say(why, why_bytes, KVT_ECORRUPT, "%llu values belong to %llu headers",
                       (unsigned long long)n, (unsigned long long)n_records);
    return KVT_OK;
}

static kvt_status audit_headers(tier *t, tier_state *ret_sums, char *why, size_t why_bytes) {
    uint8_t last[TIER_INDEX_KEY_BYTES];
    lmdb_bytes k = {NULL, 0}, v;
    int any = 0;
    kvt_status status = lmdb_seek(t->lmdb, LMDB_INDEX, k, 0, &k, &v);
    for (; status == KVT_OK; status = lmdb_next(t->lmdb, 0, &k, &v)) {
        tier_header h;
        if (!in_order(last, any, 0, k))
            return kvt_say(why, why_bytes, KVT_ECORRUPT, "the index is not in order");
        memcpy(last, k.at, sizeof last);
        any = 1;
        if (tier_header_read(k.at, k.n, v.at, v.n, &h) != KVT_OK)
            return kvt_say(why, why_bytes, KVT_ECORRUPT, "a header is damaged");
        ret_sums->records++;
        ret_sums->page_bytes += h.bytes;
        ret_sums->stored_bytes += h.stored;
    }
    return status == KVT_ENOENT ? KVT_OK
                                : kvt_say(why, why_bytes, status, "the index cannot be read");
}

kvt_status tier_audit(tier *t, char *why, size_t why_bytes) {
    tier_state sums = {.records = 0};
    kvt_status status = lmdb_begin(t->lmdb, 0);
    if (status != KVT_OK)
        return kvt_say(why, why_bytes, status, "the file cannot be read");
    status = audit_pages(t, why, why_bytes);
    if (status == KVT_OK)
        status = audit_headers(t, &sums, why, why_bytes);
    if (status == KVT_OK)
        status = audit_values(t, sums.records, why, why_bytes);
    lmdb_abort(t->lmdb);
    if (status == KVT_OK && !t->recount &&
        (sums.records != t->state.records || sums.page_bytes != t->state.page_bytes ||
         sums.stored_bytes != t->state.stored_bytes))
        status = kvt_say(why, why_bytes, KVT_ECORRUPT, "the sums are not those of the headers");
    return status;
}
