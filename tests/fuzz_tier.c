/*
 * fuzz_tier.c - any bytes as what stands in the disk tier's file. The first byte says as what: an
 * index record (20 bytes of key first), a value's head, the state, a realm, a packed value. If its
 * highest bit is set, the hash is made right first, so that the checks behind it are reached. What
 * a reader takes must be what the writer writes of it.
 */
#include "client/assert.h"
#include "kernels/hash.h"
#include "store/tier_pack.h"
#include "store/tier_record.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hash_to(uint8_t *to, const uint8_t *at, size_t n) {
    tier_store_u64(to, kvt_hash(at, n));
}

static void header(uint8_t *at, size_t n, int mend) {
    uint8_t again[TIER_MAX_HEADER_BYTES], all[TIER_INDEX_KEY_BYTES + TIER_MAX_HEADER_BYTES];
    tier_header h;
    if (n < TIER_INDEX_KEY_BYTES)
        return;
    uint8_t *record = at + TIER_INDEX_KEY_BYTES;
    size_t n_record = n - TIER_INDEX_KEY_BYTES;
    if (mend && n_record >= 8 && n_record <= TIER_MAX_HEADER_BYTES) {
        memcpy(all, at, TIER_INDEX_KEY_BYTES);
        memcpy(all + TIER_INDEX_KEY_BYTES, record + 8, n_record - 8);
        hash_to(record, all, n - 8);
    }
    (void)tier_header_serial(record, n_record);
    if (tier_header_read(at, TIER_INDEX_KEY_BYTES, record, n_record, &h) != KVT_OK)
        return;
    KVT_ASSERT(tier_header_serial(record, n_record) == h.serial);
    KVT_ASSERT(tier_header_write(&h, again) == n_record && memcmp(again, record, n_record) == 0);
    KVT_ASSERT(tier_record_bytes(h.bytes, h.n_tokens) >= h.bytes);
}

static void value(uint8_t *at, size_t n, int mend) {
    uint64_t hash;
    tier_header h = {.serial = 1, .bytes = 1};
    if (mend && n >= TIER_VALUE_HEADER_BYTES) { /* what it says of itself is what is expected */
        h = (tier_header){.stored = (uint32_t)(n - TIER_VALUE_HEADER_BYTES),
                          .serial = tier_load_u64(at + 8),
                          .depth = tier_load_u32(at + 32),
                          .bytes = tier_load_u32(at + 36)};
        memcpy(h.key.at, at + 16, TIER_KEY_BYTES);
        hash_to(at + 56, at, 56);
    }
    if (tier_value_read(&h, at, n, &hash) == KVT_OK)
        KVT_ASSERT(hash == tier_load_u64(at + 40) &&
                   n == TIER_VALUE_HEADER_BYTES + (size_t)h.stored);
}

static void state(uint8_t *at, size_t n, int mend) {
    uint8_t again[TIER_STATE_BYTES];
    tier_state s;
    if (mend && n == TIER_STATE_BYTES)
        hash_to(at + 56, at, 56);
    if (tier_state_read(at, n, &s) != KVT_OK)
        return;
    tier_state_write(&s, again);
    KVT_ASSERT(memcmp(again, at, 44) == 0);
}

static void realm(const uint8_t *at, size_t n) {
    const uint8_t *bytes;
    size_t n_bytes;
    if (tier_realm_read(7, at, n, &bytes, &n_bytes) == KVT_OK)
        KVT_ASSERT(bytes == at + TIER_REALM_HEADER_BYTES && n_bytes + TIER_REALM_HEADER_BYTES == n);
}

static void packed(const uint8_t *at, size_t n) {
    tier_packer *p;
    size_t n_page = n < 2 ? 0 : ((size_t)at[0] | (size_t)at[1] << 8);
    if (n_page == 0)
        return;
    uint8_t *page = malloc(n_page), *room = malloc(tier_pack_room(n_page));
    KVT_ASSERT(page && room && tier_packer_open(&p) == KVT_OK);
    if (tier_unpack(p, at + 2, n - 2, page, n_page) == KVT_OK) {
        size_t n_packed = tier_pack(p, page, n_page, room);
        uint8_t *again = malloc(n_page);
        KVT_ASSERT(again && n_packed < n_page);
        if (n_packed)
            KVT_ASSERT(tier_unpack(p, room, n_packed, again, n_page) == KVT_OK &&
                       memcmp(again, page, n_page) == 0);
        free(again);
    }
    tier_packer_close(p);
    free(page);
    free(room);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    size_t n = size - 1;
    uint8_t *at = malloc(n ? n : 1); /* exactly so long, and not aligned more than malloc does */
    KVT_ASSERT(at);
    memcpy(at, data + 1, n);
    int mend = data[0] >> 7;
    switch (data[0] & 0x7f) {
    case 0:
        header(at, n, mend);
        break;
    case 1:
        value(at, n, mend);
        break;
    case 2:
        state(at, n, mend);
        break;
    case 3:
        realm(at, n);
        break;
    case 4:
        packed(at, n);
        break;
    default:
        break;
    }
    free(at);
    return 0;
}
