/*
 * tier_record.c - see tier_record.h. Each kind of record begins with (or, a value's head, ends
 * with) a hash over the key and everything else that it says: LMDB has no checksums of its own.
 */
#include "store/tier_record.h"
#include "client/assert.h"
#include "kernels/hash.h"

#define VALUE_MAGIC UINT32_C(0x5654564b) /* "KVTV" */
#define STATE_MAGIC UINT32_C(0x5354564b) /* "KVTS" */

void tier_index_key(uint32_t depth, const tier_key *key, uint8_t to[TIER_INDEX_KEY_BYTES]) {
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(depth >> (24 - 8 * i));
    memcpy(to + 4, key->at, TIER_KEY_BYTES);
}

void tier_index_key_read(const uint8_t at[TIER_INDEX_KEY_BYTES], uint32_t *ret_depth,
                         tier_key *ret_key) {
    *ret_depth =
        (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
    memcpy(ret_key->at, at + 4, TIER_KEY_BYTES);
}

/* --- index records ------------------------------------------------------------------------------
 */

static uint64_t header_hash(const uint8_t *key, const uint8_t *record, size_t n_bytes) {
    uint8_t all[TIER_INDEX_KEY_BYTES + TIER_MAX_HEADER_BYTES];
    memcpy(all, key, TIER_INDEX_KEY_BYTES);
    memcpy(all + TIER_INDEX_KEY_BYTES, record + 8, n_bytes - 8);
    return kvt_hash(all, TIER_INDEX_KEY_BYTES + n_bytes - 8);
}

size_t tier_header_write(const tier_header *h, uint8_t to[TIER_MAX_HEADER_BYTES]) {
    uint8_t key[TIER_INDEX_KEY_BYTES];
    size_t n_bytes = TIER_HEADER_BYTES + 4 * (size_t)h->n_tokens;
    KVT_ASSERT(h->n_tokens >= 1 && h->n_tokens <= TIER_MAX_TOKENS);
    memset(to, 0, TIER_HEADER_BYTES);
    tier_store_u64(to + 8, h->serial);
    tier_store_u64(to + 16, h->parent_serial);
    memcpy(to + 24, h->parent.at, TIER_KEY_BYTES);
    tier_store_u32(to + 40, h->realm);
    tier_store_u32(to + 44, h->bytes);
    tier_store_u32(to + 48, h->stored);
    tier_store_u32(to + 52, h->slot | (uint32_t)h->rows << 16);
    tier_store_u32(to + 56, h->n_tokens | (uint32_t)h->packing << 16);
    for (uint32_t i = 0; i < h->n_tokens; i++)
        tier_store_u32(to + TIER_HEADER_BYTES + 4 * i, h->tokens[i]);
    tier_index_key(h->depth, &h->key, key);
    tier_store_u64(to, header_hash(key, to, n_bytes));
    return n_bytes;
}

static int header_in_range(const tier_header *h) {
    return h->serial != 0 && h->n_tokens >= 1 && h->n_tokens <= TIER_MAX_TOKENS &&
           (h->depth == 0) == (h->parent_serial == 0) && h->bytes >= 1 &&
           h->bytes <= TIER_MAX_PAGE_BYTES && h->stored >= 1 && h->stored <= h->bytes &&
           (h->packing == TIER_PLANES || (h->packing == TIER_PLAIN && h->stored == h->bytes));
}

kvt_status tier_header_read(const void *key, size_t key_bytes, const void *at, size_t n_bytes,
                            tier_header *ret_header) {
    uint8_t key_copy[TIER_INDEX_KEY_BYTES], record[TIER_MAX_HEADER_BYTES];
    tier_header h;
    if (key_bytes != sizeof key_copy || n_bytes < TIER_HEADER_BYTES || n_bytes > sizeof record)
        return KVT_ECORRUPT;
    memcpy(key_copy, key, sizeof key_copy);
    memcpy(record, at, n_bytes);
    tier_index_key_read(key_copy, &h.depth, &h.key);
    h.serial = tier_load_u64(record + 8);
    h.parent_serial = tier_load_u64(record + 16);
    memcpy(h.parent.at, record + 24, TIER_KEY_BYTES);
    h.realm = tier_load_u32(record + 40);
    h.bytes = tier_load_u32(record + 44);
    h.stored = tier_load_u32(record + 48);
    h.slot = (uint16_t)tier_load_u32(record + 52);
    h.rows = (uint16_t)(tier_load_u32(record + 52) >> 16);
    h.n_tokens = (uint16_t)tier_load_u32(record + 56);
    h.packing = (uint16_t)(tier_load_u32(record + 56) >> 16);
    if (!header_in_range(&h) || n_bytes != TIER_HEADER_BYTES + 4 * (size_t)h.n_tokens ||
        tier_load_u32(record + 60) != 0 ||
        tier_load_u64(record) != header_hash(key_copy, record, n_bytes))
        return KVT_ECORRUPT;
    memset(h.tokens, 0, sizeof h.tokens);
    for (uint32_t i = 0; i < h.n_tokens; i++)
        h.tokens[i] = tier_load_u32(record + TIER_HEADER_BYTES + 4 * i);
    *ret_header = h;
    return KVT_OK;
}

uint64_t tier_header_serial(const void *at, size_t n_bytes) {
    uint8_t serial[8];
    if (n_bytes < TIER_HEADER_BYTES)
        return 0;
    memcpy(serial, (const uint8_t *)at + 8, sizeof serial);
    return tier_load_u64(serial);
}

/* --- values -------------------------------------------------------------------------------------
 */

void tier_value_write(const tier_header *h, uint64_t bytes_hash,
                      uint8_t to[TIER_VALUE_HEADER_BYTES]) {
    memset(to, 0, TIER_VALUE_HEADER_BYTES);
    tier_store_u32(to, VALUE_MAGIC);
    tier_store_u32(to + 4, h->stored);
    tier_store_u64(to + 8, h->serial);
    memcpy(to + 16, h->key.at, TIER_KEY_BYTES);
    tier_store_u32(to + 32, h->depth);
    tier_store_u32(to + 36, h->bytes);
    tier_store_u64(to + 40, bytes_hash);
    tier_store_u64(to + 56, kvt_hash(to, 56));
}

kvt_status tier_value_read(const tier_header *h, const void *at, size_t n_bytes,
                           uint64_t *ret_bytes_hash) {
    uint8_t expected[TIER_VALUE_HEADER_BYTES], found[TIER_VALUE_HEADER_BYTES];
    if (n_bytes < sizeof found || n_bytes - sizeof found != h->stored)
        return KVT_ECORRUPT;
    memcpy(found, at, sizeof found);
    uint64_t bytes_hash = tier_load_u64(found + 40);
    tier_value_write(h, bytes_hash, expected);
    if (memcmp(found, expected, sizeof found) != 0)
        return KVT_ECORRUPT;
    *ret_bytes_hash = bytes_hash;
    return KVT_OK;
}

/* --- the file's own ------------------------------------------------------------------------------
 */

void tier_state_write(const tier_state *s, uint8_t to[TIER_STATE_BYTES]) {
    memset(to, 0, TIER_STATE_BYTES);
    tier_store_u32(to, STATE_MAGIC);
    tier_store_u32(to + 4, s->version);
    tier_store_u64(to + 8, s->last_serial);
    tier_store_u64(to + 16, s->records);
    tier_store_u64(to + 24, s->page_bytes);
    tier_store_u64(to + 32, s->stored_bytes);
    tier_store_u32(to + 40, s->last_realm);
    tier_store_u64(to + 56, kvt_hash(to, 56));
}

kvt_status tier_state_read(const void *at, size_t n_bytes, tier_state *ret_state) {
    uint8_t b[TIER_STATE_BYTES];
    if (n_bytes < 8)
        return KVT_ECORRUPT;
    memcpy(b, at, 8);
    if (tier_load_u32(b) != STATE_MAGIC)
        return KVT_ECORRUPT;
    if (tier_load_u32(b + 4) != TIER_FORMAT_VERSION)
        return KVT_EVERSION;
    if (n_bytes != sizeof b)
        return KVT_ECORRUPT;
    memcpy(b, at, sizeof b);
    if (tier_load_u64(b + 56) != kvt_hash(b, 56))
        return KVT_ECORRUPT;
    *ret_state = (tier_state){.version = TIER_FORMAT_VERSION,
                              .last_serial = tier_load_u64(b + 8),
                              .records = tier_load_u64(b + 16),
                              .page_bytes = tier_load_u64(b + 24),
                              .stored_bytes = tier_load_u64(b + 32),
                              .last_realm = tier_load_u32(b + 40)};
    return KVT_OK;
}

static uint64_t realm_hash(uint32_t realm, const uint8_t *bytes, size_t n_bytes) {
    uint8_t all[4 + TIER_MAX_REALM_BYTES];
    tier_store_u32(all, realm);
    memcpy(all + 4, bytes, n_bytes);
    return kvt_hash(all, 4 + n_bytes);
}

size_t tier_realm_write(uint32_t realm, const void *bytes, size_t n_bytes,
                        uint8_t to[TIER_REALM_HEADER_BYTES + TIER_MAX_REALM_BYTES]) {
    KVT_ASSERT(n_bytes <= TIER_MAX_REALM_BYTES);
    memcpy(to + TIER_REALM_HEADER_BYTES, bytes, n_bytes);
    tier_store_u64(to, realm_hash(realm, to + TIER_REALM_HEADER_BYTES, n_bytes));
    return TIER_REALM_HEADER_BYTES + n_bytes;
}

kvt_status tier_realm_read(uint32_t realm, const void *at, size_t n_bytes,
                           const uint8_t **ret_bytes, size_t *ret_n_bytes) {
    uint8_t hash[TIER_REALM_HEADER_BYTES];
    if (n_bytes <= sizeof hash || n_bytes > sizeof hash + TIER_MAX_REALM_BYTES)
        return KVT_ECORRUPT;
    memcpy(hash, at, sizeof hash);
    const uint8_t *bytes = (const uint8_t *)at + sizeof hash;
    if (tier_load_u64(hash) != realm_hash(realm, bytes, n_bytes - sizeof hash))
        return KVT_ECORRUPT;
    *ret_bytes = bytes;
    *ret_n_bytes = n_bytes - sizeof hash;
    return KVT_OK;
}

/* --- room --------------------------------------------------------------------------------------
 */

enum { PAGE = 4096, PAGE_HEAD = 16, NODE = 8 + TIER_INDEX_KEY_BYTES + 8 };

uint64_t tier_record_room(uint32_t bytes, uint32_t n_tokens) {
    uint64_t pages = ((uint64_t)PAGE_HEAD + TIER_VALUE_HEADER_BYTES + bytes + PAGE - 1) / PAGE;
    /* Leaves are two thirds full where keys come in no order; and there are branches above. */
    uint64_t small = NODE + NODE + TIER_HEADER_BYTES + 4 * (uint64_t)n_tokens;
    return pages * PAGE + small * 7 / 4;
}

/*
 * A value of less than half a page stands in a leaf with others. LMDB joins leaves only when they
 * are less than a quarter full, so where records come and go they end at some 45 % of what a leaf
 * could have. Counted so, of random writes and deletes at the limit up to 3 of 100 are refused
 * (values of 500 bytes); counted by what a new file takes, a third of them (1,000 bytes).
 */
uint64_t tier_record_bytes(uint32_t stored, uint32_t n_tokens) {
    enum { NODE_MOST = (PAGE - PAGE_HEAD) / 2 - 2, POINTER = 2 };
    uint64_t room = tier_record_room(stored, n_tokens);
    uint64_t node = NODE - 8 + TIER_VALUE_HEADER_BYTES + (uint64_t)stored + 1;
    if (node > NODE_MOST)
        return room;
    uint64_t of_leaf = PAGE * 9 / 4 / ((PAGE - PAGE_HEAD) / (node + POINTER));
    return of_leaf < PAGE ? room - PAGE + of_leaf : room;
}
