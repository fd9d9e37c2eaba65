/* adapter.h - what the files of the llama.cpp adapter share. */
#ifndef KVT_LLAMA_ADAPTER_H
#define KVT_LLAMA_ADAPTER_H

#include "client/adapters/llama/kvt_llama.h"
#include "client/adapters/llama/state.h"

enum { LLAMA_WHY_BYTES = 512 };

/* The strings of a realm, with room of their own. */
typedef struct llama_realm {
    kvt_realm realm;
    char model[KVT_MAX_NAME_BYTES + 1];
    char engine[KVT_MAX_NAME_BYTES + 1];
    char adapter[KVT_MAX_NAME_BYTES + 1];
    char adapter_version[KVT_MAX_NAME_BYTES + 1];
    char salt[KVT_MAX_NAME_BYTES + 1];
    char codec[KVT_MAX_NAME_BYTES + 1];
} llama_realm;

struct kvt_llama {
    struct llama_context *ctx;
    llama_memory_t memory;
    llama_seq_id scratch;
    uint32_t n_ctx, n_seq_max;
    state_shape shape;
    llama_realm realm;
    uint32_t page_tokens, seal_min_tokens;
    uint32_t chunk_tokens;  /* computed at a time, at most: chunk.h */
    uint32_t piece_tokens;  /* moved at a time: a multiple of page_tokens, at most chunk_tokens */
    uint32_t window_tokens; /* of the second cache so many last tokens are loaded; 0 = all */
    int has_groups;         /* and so many are kept by the daemon: a layer group for each cache */
    uint32_t wait_ms;
    kvt_client *client;
    struct llama_batch batch; /* room for chunk_tokens */
    uint8_t *state;           /* one state, of state_room bytes */
    size_t state_room;
    uint8_t *page[2]; /* K, V of one page, all layers, where a state's rows do not lie evenly */
};

/* Notes what kvt_llama_last_error says, and returns status. */
kvt_status llama_fail(kvt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* realm.c: geometry, fingerprints and names from the context and the options. k->shape is known. */
kvt_status llama_realm_fill(kvt_llama *k, const kvt_llama_options *options);

/* rows.c: between llama.cpp and pages. */

/* Room for a state with so many cells in each cache. */
kvt_status llama_state_room(kvt_llama *k, uint32_t n_cells);
/* The state of the scratch sequence into k->state. */
kvt_status llama_state_take(kvt_llama *k, state_places *ret_places);
/* Appends held tokens [*done_tokens, end) to the sequence, which holds those before; of a cache
 * with a window only what a token behind `end` can see. On success *done_tokens is end. On failure
 * the sequence is as it was, or it is empty and *done_tokens is 0. */
kvt_status llama_load(kvt_llama *k, kvt_lease *lease, llama_seq_id sequence, uint32_t end,
                      uint32_t *done_tokens);
/* Encodes pages [page, end_page) of the path, whose rows up to end_token the sequence holds. */
kvt_status llama_encode_pages(kvt_llama *k, kvt_lease *lease, llama_seq_id sequence, uint32_t page,
                              uint32_t end_page, uint32_t end_token);

#endif
