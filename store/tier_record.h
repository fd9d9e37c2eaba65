/*
 * tier_record.h - the bytes of what stands in the disk tier's file (TIER_FORMAT.md), written and
 * read. Pure; reads any bytes. A reader copies before it looks: the file may lie in a mapping that
 * is not aligned.
 */
#ifndef KVT_STORE_TIER_RECORD_H
#define KVT_STORE_TIER_RECORD_H

#include "client/kvtrunk.h"
#include "store/tier.h"

#include <string.h>

enum {
    TIER_FORMAT_VERSION = 1,
    TIER_INDEX_KEY_BYTES = 4 + TIER_KEY_BYTES, /* depth, big-endian: the order of a scan */
    TIER_HEADER_BYTES = 64,                    /* of an index record, before its tokens */
    TIER_MAX_HEADER_BYTES = TIER_HEADER_BYTES + 4 * TIER_MAX_TOKENS,
    TIER_VALUE_HEADER_BYTES = 64,
    TIER_STATE_BYTES = 64,
    TIER_REALM_HEADER_BYTES = 8,
};

enum { /* how the bytes of a value are stored */
       TIER_PLAIN = 0,
       TIER_PLANES = 1, /* tier_pack.h */
};

static inline void tier_store_u32(uint8_t *to, uint32_t v) {
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

static inline uint32_t tier_load_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void tier_store_u64(uint8_t *to, uint64_t v) {
    tier_store_u32(to, (uint32_t)v);
    tier_store_u32(to + 4, (uint32_t)(v >> 32));
}

static inline uint64_t tier_load_u64(const uint8_t *at) {
    return tier_load_u32(at) | (uint64_t)tier_load_u32(at + 4) << 32;
}

/* --- keys of both databases --------------------------------------------------------------------
 */

void tier_index_key(uint32_t depth, const tier_key *key, uint8_t to[TIER_INDEX_KEY_BYTES]);
void tier_index_key_read(const uint8_t at[TIER_INDEX_KEY_BYTES], uint32_t *ret_depth,
                         tier_key *ret_key);

/* --- index records ------------------------------------------------------------------------------
 */

typedef struct tier_header {
    tier_key key;
    tier_key parent;
    uint64_t serial;
    uint64_t parent_serial;
    uint32_t realm;
    uint32_t depth;
    uint32_t bytes;
    uint32_t stored;
    uint16_t slot;
    uint16_t rows;
    uint16_t n_tokens;
    uint16_t packing;
    uint32_t tokens[TIER_MAX_TOKENS];
} tier_header;

/* Returns the length. The header is the caller's own, and in range. */
size_t tier_header_write(const tier_header *header, uint8_t to[TIER_MAX_HEADER_BYTES]);
/* KVT_ECORRUPT: not what tier_header_write wrote under this key. */
kvt_status tier_header_read(const void *key, size_t key_bytes, const void *at, size_t n_bytes,
                            tier_header *ret_header);
/* Of a record that tier_header_read would take: its serial, without looking at the rest; 0: none.
 */
uint64_t tier_header_serial(const void *at, size_t n_bytes);

/* --- values -------------------------------------------------------------------------------------
 */

void tier_value_write(const tier_header *header, uint64_t bytes_hash,
                      uint8_t to[TIER_VALUE_HEADER_BYTES]);
/* Is this the head of the header's value, all n_bytes of it? Then *ret_bytes_hash is what
 * kvt_hash() of the stored bytes behind it must be. KVT_ECORRUPT. */
kvt_status tier_value_read(const tier_header *header, const void *at, size_t n_bytes,
                           uint64_t *ret_bytes_hash);

/* --- the file's own ------------------------------------------------------------------------------
 */

typedef struct tier_state {
    uint32_t version;
    uint32_t last_realm;
    uint64_t last_serial;
    uint64_t records;
    uint64_t page_bytes;
    uint64_t stored_bytes;
} tier_state;

void tier_state_write(const tier_state *state, uint8_t to[TIER_STATE_BYTES]);
/* KVT_ECORRUPT, KVT_EVERSION. */
kvt_status tier_state_read(const void *at, size_t n_bytes, tier_state *ret_state);

/* A realm: a hash of number and bytes in front of the bytes. Returns the length. */
size_t tier_realm_write(uint32_t realm, const void *bytes, size_t n_bytes,
                        uint8_t to[TIER_REALM_HEADER_BYTES + TIER_MAX_REALM_BYTES]);
kvt_status tier_realm_read(uint32_t realm, const void *at, size_t n_bytes,
                           const uint8_t **ret_bytes, size_t *ret_n_bytes);

#endif
