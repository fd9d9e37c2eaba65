/*
 * state.h - the bytes in which llama.cpp hands over one sequence's KV (llama_state_seq_get_data):
 * the only reader and writer of them. llama.cpp promises nothing about this layout between its
 * versions and checks next to nothing when it takes such bytes back, so they are read strictly
 * here, and a layout that differs in anything is refused.
 *
 *   u32 magic 0xaf143cd8 | i32 sequence (ignored)
 *   a cache, or two: the layers with full attention, then those with a sliding window
 *
 *   cache := u32 n_stream = 1 | u32 n_cells
 *            n_cells x { i32 position | u32 n_sequences = 1 | i32 sequence (ignored) }
 *            u32 v_transposed = 0 | u32 n_layers
 *            n_layers x { i32 type | u64 row_bytes | K[n_cells][row_bytes] }
 *            n_layers x { i32 type | u64 row_bytes | V[n_cells][row_bytes] }
 *   (with n_cells = 0 a cache ends behind n_cells)
 *
 * All little-endian, nothing padded. A row is one token's K (or V) of all heads of a layer.
 *
 * Pure: no allocation, no llama.cpp, any thread. The bytes may be hostile.
 */
#ifndef KVT_LLAMA_STATE_H
#define KVT_LLAMA_STATE_H

#include "client/kvtrunk.h"

enum { STATE_MAX_CACHES = 2 };

/* What is the same in every state of one context. */
typedef struct state_shape {
    uint32_t n_caches;
    uint32_t n_layers[STATE_MAX_CACHES];
    int32_t type[2]; /* ggml_type of K and V */
    uint64_t row_bytes[2];
} state_shape;

/* Where things lie in one cache of a state. */
typedef struct state_cache {
    uint32_t n_cells;
    size_t cells_at;        /* the first cell's record */
    size_t rows_at[2];      /* the first layer's rows, of K and V */
    size_t layer_stride[2]; /* from one layer's rows to the next one's */
} state_cache;

typedef struct state_places {
    state_cache cache[STATE_MAX_CACHES];
} state_places;

/* Learns the shape from a state that holds at least one cell in each cache. KVT_EPROTO: not this
 * layout; KVT_ENOTSUP: a layout that is known but cannot be shared. Both with a sentence in why. */
kvt_status state_learn(const uint8_t *bytes, size_t n_bytes, char *why, size_t why_bytes,
                       state_shape *ret_shape);

/* Finds everything in a state that must be of this shape, to its last byte. KVT_EPROTO. */
kvt_status state_read(const state_shape *shape, const uint8_t *bytes, size_t n_bytes, char *why,
                      size_t why_bytes, state_places *ret_places);

/* Bytes of a state with n_cells[i] cells in cache i, of which caches in front of first_cache are
 * left out: with 1 it is what llama.cpp takes under LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY. */
size_t state_bytes(const state_shape *shape, uint32_t first_cache,
                   const uint32_t n_cells[STATE_MAX_CACHES]);

/*
 * Writes everything but the rows: a state whose cache i has the positions first_position[i] .. in
 * order. to has room for state_bytes().
 */
void state_write(const state_shape *shape, uint32_t first_cache,
                 const uint32_t n_cells[STATE_MAX_CACHES],
                 const uint32_t first_position[STATE_MAX_CACHES], uint8_t *to,
                 state_places *ret_places);

/* The cell of this position, or -1. Cost: a look at every cell, hint first. */
int64_t state_find(const state_cache *cache, const uint8_t *bytes, uint32_t position,
                   uint32_t hint);

#endif
