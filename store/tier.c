/*
 * tier.c - the disk tier as a whole: opening what is there, or a new file in its place; its state;
 * realms. See tier.h.
 */
#include "store/tier_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OTHER_FILES_BYTES = 64 << 10, /* lock, stamp, the directory itself */
    ASIDE_SHARE = 4,              /* of the budget a quarter, at most, for what lies aside */
};

const char *tier_found_name(tier_found found) {
    static const char *const names[] = {
        [TIER_FOUND_NONE] = "none",       [TIER_FOUND_CLEAN] = "clean",
        [TIER_FOUND_KILLED] = "killed",   [TIER_FOUND_CRASHED] = "crashed",
        [TIER_FOUND_VERSION] = "version", [TIER_FOUND_BROKEN] = "broken",
        [TIER_FOUND_LARGER] = "larger",
    };
    return (unsigned)found < sizeof names / sizeof names[0] ? names[found] : "?";
}

/* --- the state ---------------------------------------------------------------------------------
 */

static const uint8_t state_number[4] = {0};
static const lmdb_bytes state_key = {state_number, sizeof state_number};

kvt_status tier_commit(tier *t, const tier_state *state) {
    uint8_t bytes[TIER_STATE_BYTES];
    tier_state_write(state, bytes);
    kvt_status status =
        lmdb_put(t->lmdb, LMDB_REALMS, state_key, (lmdb_bytes){bytes, sizeof bytes}, 1);
    if (status != KVT_OK) {
        lmdb_abort(t->lmdb);
        return status;
    }
    status = lmdb_commit(t->lmdb);
    if (status == KVT_OK)
        t->state = *state;
    return status;
}

static kvt_status state_get(tier *t) {
    lmdb_bytes v;
    tier_state state = {.version = TIER_FORMAT_VERSION, .last_serial = t->state.last_serial};
    kvt_status status = lmdb_begin(t->lmdb, 1);
    if (status != KVT_OK)
        return status;
    status = lmdb_get(t->lmdb, LMDB_REALMS, state_key, &v);
    if (status == KVT_ENOENT)
        return tier_commit(t, &state);
    if (status == KVT_OK)
        status = tier_state_read(v.at, v.n, &state);
    lmdb_abort(t->lmdb);
    if (status != KVT_OK)
        return status;
    if (state.last_serial < t->state.last_serial)
        state.last_serial = t->state.last_serial;
    t->state = state;
    return KVT_OK;
}

/* --- opening -----------------------------------------------------------------------------------
 */

static uint64_t between(uint64_t n, uint64_t least, uint64_t most) {
    return n < least ? least : n > most ? most : n;
}

static uint64_t ballast_of(uint64_t budget_bytes) {
    return between(budget_bytes / 64, 128 << 10, 1 << 20);
}

static void plan(tier *t, uint64_t aside_bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t reserve = between(t->budget_bytes / 16, 256 << 10, 4 << 20);
    uint64_t others = ballast_of(t->budget_bytes) + OTHER_FILES_BYTES + aside_bytes;
    t->map_bytes = (t->budget_bytes - others) / page * page;
    t->reserve_bytes = reserve / page * page;
    t->limit_bytes = t->map_bytes - t->reserve_bytes;
    t->counts.aside_bytes = aside_bytes;
}

uint64_t tier_room_bytes(uint64_t budget_bytes) {
    tier t = {.budget_bytes = budget_bytes};
    if (budget_bytes < TIER_MIN_BUDGET_BYTES)
        return 0;
    plan(&t, 0);
    return t.limit_bytes;
}

/* What lies aside never costs the file what it holds. */
static void plan_beside(tier *t) {
    uint64_t bytes = tier_files_aside_bytes(&t->files);
    int fits = bytes <= t->budget_bytes / ASIDE_SHARE;
    if (fits)
        plan(t, bytes);
    if (fits && tier_files_data_bytes(&t->files) <= t->map_bytes)
        return;
    tier_files_drop_aside(&t->files);
    t->counts.aside_removed_bytes += bytes;
    plan(t, 0);
}

static kvt_status move_aside(tier *t, tier_found found) {
    int moved = 0;
    kvt_status status = tier_files_aside(&t->files, found, &moved);
    plan_beside(t);
    t->counts.moved_aside = moved && t->counts.aside_bytes > 0; /* unless it takes too much */
    return status;
}

/* A copy that lost its end, or a file that was cut: reading there would be a SIGBUS. What is
 * missing becomes zeros, and the caller looks through everything. */
static kvt_status file_complete(tier *t, int *ret_was_short) {
    uint64_t end = lmdb_end(t->lmdb);
    if (end > t->map_bytes || end < lmdb_page_bytes(t->lmdb))
        return KVT_ECORRUPT;
    if (tier_files_data_bytes(&t->files) >= end)
        return KVT_OK;
    *ret_was_short = 1;
    return lmdb_stretch(t->lmdb);
}

static kvt_status file_open(tier *t, int check, char *why, size_t why_bytes) {
    char path[sizeof t->files.name + 16];
    int was_short = 0, is_new = tier_files_data_bytes(&t->files) == 0;
    snprintf(path, sizeof path, "%s/%s", t->files.name, TIER_DATA_NAME);
    t->recount = 0;
    kvt_status status = lmdb_open(path, t->map_bytes, &t->lmdb);
    if (status == KVT_OK && !is_new)
        status = file_complete(t, &was_short);
    if (status == KVT_OK)
        status = lmdb_bases(t->lmdb);
    if (status == KVT_OK)
        status = state_get(t);
    if (status != KVT_OK)
        kvt_say(why, why_bytes, status, "%s cannot be used: %s", path,
                status == KVT_EVERSION                                        ? "another version"
                : status == KVT_ECORRUPT || (t->lmdb && lmdb_broken(t->lmdb)) ? "it is damaged"
                                                                              : strerror(errno));
    if (status == KVT_OK && (check || was_short)) {
        t->recount = 1; /* the sums may be off, all else not */
        status = tier_audit(t, why, why_bytes);
        if (status == KVT_OK)
            status = tier_recount(t);
    }
    if (status == KVT_OK)
        return KVT_OK;
    /* Is it the file, so that a new one would do better? */
    if (status != KVT_EVERSION && t->lmdb && lmdb_broken(t->lmdb))
        status = KVT_ECORRUPT;
    lmdb_close(t->lmdb);
    t->lmdb = NULL;
    return status;
}

/* What is to become of the file that was found? */
static tier_found judge(const tier *t, uint32_t flags) {
    tier_found found = tier_files_found(&t->files);
    if (found != TIER_FOUND_CLEAN && found != TIER_FOUND_KILLED)
        return found;
    if (flags & TIER_DISCARD)
        return TIER_FOUND_BROKEN;
    return tier_files_data_bytes(&t->files) > t->map_bytes ? TIER_FOUND_LARGER : found;
}

/* Where the file system is full, the ballast makes room for it. */
static kvt_status stamp(tier *t, int clean) {
    kvt_status status = tier_files_stamp(&t->files, clean);
    if (status != KVT_EFULL)
        return status;
    tier_files_drop_ballast(&t->files);
    return tier_files_stamp(&t->files, clean);
}

static kvt_status open_found(tier *t, uint32_t flags, char *why, size_t why_bytes) {
    kvt_status status = KVT_OK;
    plan_beside(t);
    t->counts.found_bytes = tier_files_data_bytes(&t->files);
    tier_found found = judge(t, flags);
    int used = found == TIER_FOUND_CLEAN || found == TIER_FOUND_KILLED;
    if (!used)
        status = move_aside(t, found);
    if (status == KVT_OK)
        status = stamp(t, 0);
    if (status != KVT_OK)
        return kvt_say(why, why_bytes, status, "%s: %s", t->files.name, strerror(errno));
    tier_files_take_ballast(&t->files);
    status = file_open(t, (flags & TIER_CHECK) != 0, why, why_bytes);
    if (used && (status == KVT_ECORRUPT || status == KVT_EVERSION)) {
        found = status == KVT_EVERSION ? TIER_FOUND_VERSION : TIER_FOUND_BROKEN;
        status = move_aside(t, found);
        if (status == KVT_OK)
            status = file_open(t, 0, why, why_bytes);
    }
    t->counts.found = found;
    return status;
}

kvt_status tier_open(const tier_options *options, char *why, size_t why_bytes, tier **ret_tier) {
    if (options->budget_bytes < TIER_MIN_BUDGET_BYTES)
        return kvt_say(why, why_bytes, KVT_EINVAL, "a disk tier needs at least %llu bytes",
                       (unsigned long long)TIER_MIN_BUDGET_BYTES);
    tier *t = calloc(1, sizeof *t);
    if (!t)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory");
    t->files.dir = t->files.lock = -1;
    t->budget_bytes = options->budget_bytes;
    kvt_status status = tier_packer_open(&t->packer);
    if (status != KVT_OK)
        kvt_say(why, why_bytes, status, "out of memory");
    if (status == KVT_OK)
        status = tier_files_open(options, ballast_of(t->budget_bytes), why, why_bytes, &t->files);
    if (status == KVT_OK)
        status = open_found(t, options->flags, why, why_bytes);
    if (status != KVT_OK) {
        tier_files_close(&t->files);
        tier_packer_close(t->packer);
        free(t);
        return status;
    }
    *ret_tier = t;
    return KVT_OK;
}

void tier_close(tier *t) {
    if (!t)
        return;
    if (t->recount && !tier_broken(t))
        tier_recount(t);
    int written = !tier_broken(t) && lmdb_sync(t->lmdb) == KVT_OK;
    lmdb_close(t->lmdb);
    if (written)
        stamp(t, 1);
    tier_files_close(&t->files);
    tier_packer_close(t->packer);
    free(t->scratch);
    free(t);
}

int tier_broken(const tier *t) {
    return !t->lmdb || lmdb_broken(t->lmdb);
}

kvt_status tier_reset(tier *t, char *why, size_t why_bytes) {
    lmdb_close(t->lmdb);
    t->lmdb = NULL;
    int moved;
    kvt_status status = tier_files_aside(&t->files, TIER_FOUND_LARGER, &moved); /* removes it */
    if (status != KVT_OK)
        return kvt_say(why, why_bytes, status, "%s: %s", t->files.name, strerror(errno));
    t->state = (tier_state){.version = TIER_FORMAT_VERSION, .last_serial = t->state.last_serial};
    t->n_defined = 0;
    return file_open(t, 0, why, why_bytes);
}

uint64_t tier_last_serial(const tier *t) {
    return t->state.last_serial;
}

/* --- realms ------------------------------------------------------------------------------------
 */

static int is_defined(const tier *t, uint32_t realm) {
    for (uint32_t i = 0; i < t->n_defined && i < TIER_MAX_REALMS; i++)
        if (t->defined[i] == realm)
            return 1;
    return 0;
}

/* The number of a realm's record, 0 for what is not one. */
static uint32_t realm_number(lmdb_bytes key) {
    uint8_t number[4];
    if (key.n != sizeof number)
        return 0;
    memcpy(number, key.at, sizeof number);
    return tier_load_u32(number);
}

/* Looks for the bytes among all realms: equality is of the bytes. *ret_n: how many there are. */
static kvt_status realm_find(tier *t, const void *bytes, size_t n_bytes, uint32_t *ret_realm,
                             uint32_t *ret_n) {
    lmdb_bytes k = {NULL, 0}, v;
    *ret_realm = *ret_n = 0;
    kvt_status status = lmdb_seek(t->lmdb, LMDB_REALMS, k, 0, &k, &v);
    for (; status == KVT_OK; status = lmdb_next(t->lmdb, 0, &k, &v)) {
        const uint8_t *at;
        size_t n;
        uint32_t realm = realm_number(k);
        *ret_n += realm != 0;
        if (realm && tier_realm_read(realm, v.at, v.n, &at, &n) == KVT_OK && n == n_bytes &&
            memcmp(at, bytes, n) == 0)
            *ret_realm = realm;
    }
    return status == KVT_ENOENT ? KVT_OK : status;
}

static int has_records(const uint32_t *realms, uint32_t n, uint32_t realm) {
    for (uint32_t i = 0; i < n; i++)
        if (realms[i] == realm)
            return 1;
    return 0;
}

/* The realms of all records, each once, in ret_realms[0 .. TIER_MAX_REALMS). */
static kvt_status realms_in_use(tier *t, uint32_t *ret_realms, uint32_t *ret_n) {
    lmdb_bytes k = {NULL, 0}, v;
    *ret_n = 0;
    kvt_status status = lmdb_seek(t->lmdb, LMDB_INDEX, k, 0, &k, &v);
    for (; status == KVT_OK; status = lmdb_next(t->lmdb, 0, &k, &v)) {
        tier_header h;
        if (tier_header_read(k.at, k.n, v.at, v.n, &h) == KVT_OK && *ret_n < TIER_MAX_REALMS &&
            !has_records(ret_realms, *ret_n, h.realm))
            ret_realms[(*ret_n)++] = h.realm;
    }
    return status == KVT_ENOENT ? KVT_OK : status;
}

/* Makes room for one realm: the first that nobody has named since open and that has no records. */
static kvt_status realm_sweep(tier *t) {
    static uint32_t used[TIER_MAX_REALMS]; /* one thread */
    uint32_t n_used, found = 0;
    lmdb_bytes k = {NULL, 0}, v;
    kvt_status status = realms_in_use(t, used, &n_used);
    if (status != KVT_OK)
        return status;
    status = lmdb_seek(t->lmdb, LMDB_REALMS, k, 0, &k, &v);
    for (; status == KVT_OK && !found; status = lmdb_next(t->lmdb, 0, &k, &v)) {
        uint32_t realm = realm_number(k);
        if (realm && !is_defined(t, realm) && !has_records(used, n_used, realm))
            found = realm;
    }
    if (!found)
        return status == KVT_OK || status == KVT_ENOENT ? KVT_ELIMIT : status;
    uint8_t number[4];
    tier_store_u32(number, found);
    return lmdb_del(t->lmdb, LMDB_REALMS, (lmdb_bytes){number, sizeof number});
}

static kvt_status realm_add(tier *t, const void *bytes, size_t n_bytes, tier_state *state) {
    uint8_t number[4], record[TIER_REALM_HEADER_BYTES + TIER_MAX_REALM_BYTES];
    uint32_t realm = ++state->last_realm;
    tier_store_u32(number, realm);
    lmdb_bytes v = {record, tier_realm_write(realm, bytes, n_bytes, record)};
    return lmdb_put(t->lmdb, LMDB_REALMS, (lmdb_bytes){number, sizeof number}, v, 0);
}

kvt_status tier_realm_define(tier *t, const void *bytes, size_t n_bytes, uint32_t *ret_realm) {
    uint32_t realm = 0, n;
    if (n_bytes == 0 || n_bytes > TIER_MAX_REALM_BYTES)
        return KVT_ELIMIT;
    kvt_status status = lmdb_begin(t->lmdb, 1);
    if (status != KVT_OK)
        return status;
    tier_state state = t->state;
    status = realm_find(t, bytes, n_bytes, &realm, &n);
    if (status == KVT_OK && !realm) {
        if (n >= TIER_MAX_REALMS)
            status = realm_sweep(t);
        if (status == KVT_OK)
            status = realm_add(t, bytes, n_bytes, &state);
        if (status == KVT_OK)
            status = tier_commit(t, &state);
        realm = state.last_realm;
    }
    lmdb_abort(t->lmdb);
    if (status != KVT_OK)
        return status;
    if (!is_defined(t, realm))
        t->defined[t->n_defined++ % TIER_MAX_REALMS] = realm;
    *ret_realm = realm;
    return KVT_OK;
}

kvt_status tier_realm_bytes(tier *t, uint32_t realm, void *to, size_t *ret_n_bytes) {
    uint8_t number[4];
    const uint8_t *bytes;
    size_t n = 0;
    lmdb_bytes v;
    if (realm == 0)
        return KVT_ENOENT;
    tier_store_u32(number, realm);
    kvt_status status = lmdb_begin(t->lmdb, 0);
    if (status != KVT_OK)
        return status;
    status = lmdb_get(t->lmdb, LMDB_REALMS, (lmdb_bytes){number, sizeof number}, &v);
    if (status == KVT_OK)
        status = tier_realm_read(realm, v.at, v.n, &bytes, &n);
    if (status == KVT_OK) {
        memcpy(to, bytes, n);
        *ret_n_bytes = n;
    }
    lmdb_abort(t->lmdb);
    return status;
}
