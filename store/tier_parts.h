/* tier_parts.h - what the files of the disk tier share: its state, and the calls between them. */
#ifndef KVT_STORE_TIER_PARTS_H
#define KVT_STORE_TIER_PARTS_H

#include "client/assert.h"
#include "kernels/say.h"
#include "store/tier.h"
#include "store/tier_files.h"
#include "store/tier_lmdb.h"
#include "store/tier_pack.h"
#include "store/tier_record.h"

enum { TIER_MAX_BAD = 256 /* records dropped after one step of a walk */ };

/*
 * Pages of the file, wherever they lie in it:
 *
 *     0              used                  limit       map
 *     |-----------------------------|--------|----------|
 *                                     puts    '- kept for deletes, which need pages before they
 * give any: two or three for each level of a tree
 */
struct tier {
    tier_files files;
    uint64_t budget_bytes;
    uint64_t map_bytes;     /* the file never grows beyond */
    uint64_t reserve_bytes; /* of them, kept for deletes */
    uint64_t limit_bytes; /* what puts may use: map less reserve, or less where the disk is full */
    lmdb *lmdb;           /* NULL: a reset failed */
    tier_state state;     /* as committed */
    int recount;          /* something was dropped whose size is not known: the sums are off */
    tier_packer *packer;
    uint8_t *scratch; /* a packed value */
    size_t scratch_bytes;
    uint64_t busy_bytes; /* written since others were last let on the processor */
    tier_usage counts;   /* only those "since open" */
    uint32_t n_defined;
    uint32_t defined[TIER_MAX_REALMS]; /* realms named since open, a ring: not swept */
    uint8_t bad[TIER_MAX_BAD][TIER_INDEX_KEY_BYTES];
    uint32_t n_bad;
};

/* KVT_ENOENT, KVT_ECORRUPT, KVT_EIO. In a transaction. */
kvt_status tier_header_get(tier *t, uint32_t depth, const tier_key *key, tier_header *ret_header);

/* Deletes what stands under a key in both databases. header NULL: its sizes are not known. In a
 * transaction. */
kvt_status tier_drop(tier *t, const uint8_t at[TIER_INDEX_KEY_BYTES], const tier_header *header,
                     tier_state *state);

/* Commits the transaction with a new state; aborts it where that fails. */
kvt_status tier_commit(tier *t, const tier_state *state);

/* Remembers a damaged record, for tier_drop_bad to drop outside of a transaction. Failing to is no
 * harm: it will be found again. */
void tier_note_bad(tier *t, const tier_header *header);
void tier_drop_bad(tier *t);

/* The bytes of a header's value to `at`, checked. KVT_ECORRUPT, KVT_EIO. In a transaction. */
kvt_status tier_value_get(tier *t, const tier_header *header, void *at);

/* Makes the sums true again, by a walk over the headers. */
kvt_status tier_recount(tier *t);

#endif
