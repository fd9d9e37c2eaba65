/*
 * rows.c - rows of K and V between llama.cpp and pages.
 *
 * llama.cpp hands out and takes whole sequences only. So both ways go through the scratch sequence:
 *
 *     sequence --seq_cp(range)--> scratch --get_data--> state --kvt_encode--> page
 *     page --kvt_decode--> state --set_data--> scratch --seq_cp--> sequence
 *
 * seq_cp copies no rows in a unified cache: a cell is then of two sequences. kvt_decode writes
 * straight into the state that is handed to llama.cpp, kvt_encode reads straight from the one that
 * came, unless its rows lie unevenly: where a page's cells are scattered, or two caches go into one
 * layer group. A window is loaded last and at once, by llama.cpp's state of that cache alone
 * (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY), which takes the place of what the sequence has in it.
 */
#include "client/adapters/llama/adapter.h"

#include <stdlib.h>
#include <string.h>

kvt_status llama_state_room(kvt_llama *k, uint32_t n_cells) {
    const uint32_t both[STATE_MAX_CACHES] = {n_cells, n_cells};
    size_t room = state_bytes(&k->shape, 0, both);
    if (room <= k->state_room)
        return KVT_OK;
    uint8_t *more = realloc(k->state, room);
    if (!more)
        return llama_fail(KVT_ENOMEM, "no memory for %zu bytes of a sequence's state", room);
    k->state = more;
    k->state_room = room;
    return KVT_OK;
}

kvt_status llama_state_take(kvt_llama *k, state_places *ret_places) {
    char why[LLAMA_WHY_BYTES] = "";
    size_t n_bytes = llama_state_seq_get_data(k->ctx, k->state, k->state_room, k->scratch);
    if (n_bytes == 0)
        return llama_fail(KVT_EPROTO,
                          "llama_state_seq_get_data needs more than the %zu bytes that this many "
                          "cells take in the layout that the adapter knows",
                          k->state_room);
    kvt_status status = state_read(&k->shape, k->state, n_bytes, why, sizeof why, ret_places);
    return status == KVT_OK ? status : llama_fail(status, "%s", why);
}

/* Where the rows of cache i from this cell on lie, for kvt_decode and kvt_encode. */
static void layout_of(const kvt_llama *k, const state_cache *cache, uint32_t cell,
                      kvt_layout *ret_layout) {
    for (int part = 0; part < 2; part++) {
        uint64_t row_bytes = k->shape.row_bytes[part];
        ret_layout->part[part] = k->state + cache->rows_at[part] + cell * row_bytes;
        ret_layout->layer_stride_bytes[part] = cache->layer_stride[part];
        ret_layout->head_stride_bytes[part] = 2 * k->realm.realm.geometry.head_dim[part];
        ret_layout->token_stride_bytes[part] = row_bytes;
    }
}

/* --- pages to the sequence ----------------------------------------------------------------------
 */

static kvt_status decode_cache(kvt_llama *k, kvt_lease *lease, uint32_t i, uint32_t first,
                               const state_cache *cache) {
    kvt_layout to;
    if (!cache->n_cells)
        return KVT_OK;
    layout_of(k, cache, 0, &to);
    kvt_status status = kvt_decode(lease, first, cache->n_cells, i ? k->shape.n_layers[0] : 0,
                                   k->shape.n_layers[i], &to);
    return status == KVT_OK ? status : llama_fail(status, "%s", kvt_last_error());
}

/* What the state in k->state says, behind what the sequence holds: by way of the scratch sequence.
 */
static kvt_status join(kvt_llama *k, llama_seq_id sequence, size_t n_bytes,
                       llama_state_seq_flags flags) {
    if (llama_state_seq_set_data_ext(k->ctx, k->state, n_bytes, k->scratch, flags) != n_bytes) {
        llama_memory_seq_rm(k->memory, k->scratch, -1, -1);
        return llama_fail(KVT_EFULL,
                          "llama.cpp did not take %zu bytes of rows: the context is full", n_bytes);
    }
    llama_memory_seq_cp(k->memory, k->scratch, sequence, -1, -1);
    llama_memory_seq_rm(k->memory, k->scratch, -1, -1);
    return KVT_OK;
}

/* Tokens [first, first + n) into k->state: of the caches from first_cache to end_cache. */
static kvt_status decode_piece(kvt_llama *k, kvt_lease *lease, uint32_t first_cache,
                               uint32_t end_cache, uint32_t first, uint32_t n,
                               size_t *ret_n_bytes) {
    const uint32_t first_of[STATE_MAX_CACHES] = {first, first};
    const uint32_t n_cells[STATE_MAX_CACHES] = {n, end_cache == STATE_MAX_CACHES ? n : 0};
    state_places places;
    kvt_status status = llama_state_room(k, n);
    if (status == KVT_OK)
        state_write(&k->shape, first_cache, n_cells, first_of, k->state, &places);
    for (uint32_t i = first_cache; i < k->shape.n_caches && status == KVT_OK; i++)
        status = decode_cache(k, lease, i, first, &places.cache[i]);
    *ret_n_bytes = state_bytes(&k->shape, first_cache, n_cells);
    return status;
}

static kvt_status load_rows(kvt_llama *k, kvt_lease *lease, llama_seq_id sequence, uint32_t first,
                            uint32_t end) {
    uint32_t end_cache = k->window_tokens ? 1 : STATE_MAX_CACHES;
    kvt_status status = KVT_OK;
    for (uint32_t at = first, n; at < end && status == KVT_OK; at += n) {
        size_t n_bytes;
        n = end - at < k->piece_tokens ? end - at : k->piece_tokens;
        status = decode_piece(k, lease, 0, end_cache, at, n, &n_bytes);
        if (status == KVT_OK)
            status = join(k, sequence, n_bytes, LLAMA_STATE_SEQ_FLAGS_NONE);
    }
    return status;
}

/*
 * The window's layers, as a token behind `end` sees them, in place of what the sequence has of
 * them: then *left_tokens is 0 until all of it is there. It begins with a page although the window
 * may not: llama.cpp adds up over tiles of 64 cells, so a row has to lie in the tile where it would
 * lie in a cache that holds everything.
 */
static kvt_status load_window(kvt_llama *k, kvt_lease *lease, llama_seq_id sequence, uint32_t end,
                              uint32_t *left_tokens) {
    uint32_t seen = k->window_tokens - 1, first = end > seen ? end - seen : 0;
    kvt_status status = KVT_OK;
    first -= first % k->page_tokens;
    for (uint32_t at = first, n; at < end && status == KVT_OK; at += n) {
        size_t n_bytes;
        n = end - at < k->piece_tokens ? end - at : k->piece_tokens;
        status = decode_piece(k, lease, 1, STATE_MAX_CACHES, at, n, &n_bytes);
        if (status != KVT_OK)
            break;
        *left_tokens = 0;
        if (at > first)
            status = join(k, sequence, n_bytes, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        else if (llama_state_seq_set_data_ext(k->ctx, k->state, n_bytes, sequence,
                                              LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != n_bytes)
            status = llama_fail(KVT_EFULL, "llama.cpp did not take a window: the context is full");
    }
    return status;
}

kvt_status llama_load(kvt_llama *k, kvt_lease *lease, llama_seq_id sequence, uint32_t end,
                      uint32_t *done_tokens) {
    uint32_t left = *done_tokens;
    kvt_status status = load_rows(k, lease, sequence, left, end);
    if (status == KVT_OK && k->window_tokens)
        status = load_window(k, lease, sequence, end, &left);
    *done_tokens = status == KVT_OK ? end : left;
    if (status != KVT_OK)
        llama_memory_seq_rm(k->memory, sequence, (llama_pos)left, -1);
    return status;
}

/* --- the sequence to pages ----------------------------------------------------------------------
 */

/* The cell from which on the rows of these positions follow each other, or -1. */
static int64_t even_run(const kvt_llama *k, const state_cache *cache, uint32_t position, uint32_t n,
                        uint32_t hint) {
    int64_t first = state_find(cache, k->state, position, hint);
    for (uint32_t i = 1; i < n && first >= 0; i++)
        if (state_find(cache, k->state, position + i, (uint32_t)first + i) != first + i)
            return -1;
    return first;
}

/* Copies the rows of one position, all layers of cache i, to row `row` of the page buffers. */
static void gather_row(kvt_llama *k, uint32_t i, const state_cache *cache, uint32_t cell,
                       uint32_t row) {
    uint32_t first_layer = i ? k->shape.n_layers[0] : 0;
    for (int part = 0; part < 2; part++) {
        uint64_t row_bytes = k->shape.row_bytes[part];
        const uint8_t *from = k->state + cache->rows_at[part] + cell * row_bytes;
        uint8_t *to = k->page[part] + (first_layer * (uint64_t)k->page_tokens + row) * row_bytes;
        for (uint32_t layer = 0; layer < k->shape.n_layers[i]; layer++)
            memcpy(to + layer * k->page_tokens * row_bytes,
                   from + layer * cache->layer_stride[part], row_bytes);
    }
}

static kvt_status gather_page(kvt_llama *k, const state_places *places, uint32_t position,
                              uint32_t n, uint32_t hint, kvt_layout *ret_from) {
    for (uint32_t i = 0; i < k->shape.n_caches; i++)
        for (uint32_t row = 0; row < n; row++) {
            int64_t cell = state_find(&places->cache[i], k->state, position + row, hint + row);
            if (cell < 0)
                return llama_fail(KVT_ENOENT, "llama.cpp no longer holds position %u",
                                  position + row);
            gather_row(k, i, &places->cache[i], (uint32_t)cell, row);
        }
    kvt_layout_token_major(&k->realm.realm.geometry, k->page_tokens, k->page[0], k->page[1],
                           ret_from);
    return KVT_OK;
}

/* Straight from the state, a layer group for each cache: 1 if the rows of all of them lie evenly.
 */
static int encode_evenly(kvt_llama *k, kvt_lease *lease, const state_places *places, uint32_t page,
                         uint32_t n, uint32_t hint, kvt_status *ret_status) {
    kvt_layout from[STATE_MAX_CACHES];
    if (k->shape.n_caches != k->realm.realm.geometry.n_groups)
        return 0;
    for (uint32_t i = 0; i < k->shape.n_caches; i++) {
        int64_t cell = even_run(k, &places->cache[i], page * k->page_tokens, n, hint);
        if (cell < 0)
            return 0;
        layout_of(k, &places->cache[i], (uint32_t)cell, &from[i]);
    }
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < k->shape.n_caches && status == KVT_OK; i++)
        status = kvt_encode_group(lease, page, i, &from[i]);
    *ret_status = status;
    return 1;
}

static kvt_status encode_page(kvt_llama *k, kvt_lease *lease, const state_places *places,
                              uint32_t page, uint32_t hint, uint32_t end_token) {
    uint32_t position = page * k->page_tokens, n = end_token - position;
    n = n < k->page_tokens ? n : k->page_tokens;
    kvt_layout from;
    kvt_status status;
    if (!encode_evenly(k, lease, places, page, n, hint, &status)) {
        status = gather_page(k, places, position, n, hint, &from);
        if (status != KVT_OK)
            return status;
        status = kvt_encode(lease, page, &from);
    }
    return status == KVT_OK ? status : llama_fail(status, "%s", kvt_last_error());
}

kvt_status llama_encode_pages(kvt_llama *k, kvt_lease *lease, llama_seq_id sequence, uint32_t page,
                              uint32_t end_page, uint32_t end_token) {
    uint32_t first = page * k->page_tokens, end = end_page * k->page_tokens;
    end = end < end_token ? end : end_token;
    state_places places;
    kvt_status status = llama_state_room(k, end - first);
    if (status != KVT_OK)
        return status;
    llama_memory_seq_cp(k->memory, sequence, k->scratch, (llama_pos)first, (llama_pos)end);
    status = llama_state_take(k, &places);
    llama_memory_seq_rm(k->memory, k->scratch, -1, -1);
    for (uint32_t at = page; at < end_page && status == KVT_OK; at++)
        status = encode_page(k, lease, &places, at, (at - page) * k->page_tokens, end_token);
    return status;
}
