/* state.c - reading and writing a sequence's state (state.h). */
#include "client/adapters/llama/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    HEAD_BYTES = 8,        /* magic, sequence */
    CACHE_HEAD_BYTES = 8,  /* n_stream, n_cells */
    CELL_BYTES = 12,       /* position, n_sequences, sequence */
    LAYERS_HEAD_BYTES = 8, /* v_transposed, n_layers */
    LAYER_HEAD_BYTES = 12, /* type, row_bytes */
    MAX_CELLS = KVT_MAX_REQUEST_TOKENS,
    MAX_ROW_BYTES = 2 * KVT_MAX_HEADS * KVT_MAX_HEAD_DIM,
};

static const uint32_t magic = 0xaf143cd8;

/* A cursor that stops at the end: reading beyond it gives 0 and is remembered. */
typedef struct reader {
    const uint8_t *bytes;
    size_t n_bytes, at;
    int over;
    char *why;
    size_t why_bytes;
} reader;

static kvt_status refuse(reader *r, kvt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static kvt_status refuse(reader *r, kvt_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (r->why_bytes)
        vsnprintf(r->why, r->why_bytes, format, args);
    va_end(args);
    return status;
}

static int skip(reader *r, size_t n) {
    r->over |= n > r->n_bytes - r->at;
    r->at = r->over ? r->n_bytes : r->at + n;
    return !r->over;
}

static uint64_t take(reader *r, unsigned n) {
    uint64_t value = 0;
    size_t at = r->at;
    if (skip(r, n))
        for (unsigned i = 0; i < n; i++)
            value |= (uint64_t)r->bytes[at + i] << 8 * i;
    return value;
}

static uint32_t take_u32(reader *r) {
    return (uint32_t)take(r, 4);
}

static void put(uint8_t **at, uint64_t value, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        *(*at)++ = (uint8_t)(value >> 8 * i);
}

/* --- reading ------------------------------------------------------------------------------------
 */

static const char *const part_name[2] = {"K", "V"};

/* The rows of one part of all layers; the first layer met in a state that is learnt sets the shape.
 */
static kvt_status read_part(reader *r, state_shape *shape, int part, uint32_t n_layers,
                            state_cache *cache) {
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        int32_t type = (int32_t)take_u32(r);
        uint64_t row_bytes = take(r, 8);
        if (!layer)
            cache->rows_at[part] = r->at;
        if (r->over || row_bytes == 0 || row_bytes > MAX_ROW_BYTES)
            return refuse(r, KVT_EPROTO,
                          "the state of a sequence ends, or is of another layout, at %s of layer "
                          "%u: this llama.cpp is of a version that the adapter does not know, or "
                          "its model keeps no %s",
                          part_name[part], layer, part_name[part]);
        if (!shape->row_bytes[part]) {
            shape->row_bytes[part] = row_bytes;
            shape->type[part] = type;
        }
        if (row_bytes != shape->row_bytes[part] || type != shape->type[part])
            return refuse(r, KVT_ENOTSUP,
                          "layer %u keeps %s in %llu bytes a token of type %d, the first one in "
                          "%llu of type %d: layers that differ cannot be shared",
                          layer, part_name[part], (unsigned long long)row_bytes, type,
                          (unsigned long long)shape->row_bytes[part], shape->type[part]);
        skip(r, cache->n_cells * row_bytes);
    }
    cache->layer_stride[part] = LAYER_HEAD_BYTES + cache->n_cells * shape->row_bytes[part];
    return r->over
               ? refuse(r, KVT_EPROTO, "the state of a sequence ends inside %s", part_name[part])
               : KVT_OK;
}

static kvt_status read_cells(reader *r, state_cache *cache) {
    cache->cells_at = r->at;
    for (uint32_t cell = 0; cell < cache->n_cells && !r->over; cell++) {
        take_u32(r);
        uint32_t n_sequences = take_u32(r);
        take_u32(r);
        if (n_sequences != 1)
            return refuse(r, KVT_EPROTO,
                          "cell %u of a sequence's state names %u sequences, not 1: this llama.cpp "
                          "is of a version that the adapter does not know, or its model needs more "
                          "than a position a token",
                          cell, n_sequences);
    }
    return KVT_OK;
}

/* n_layers 0 in the shape: not learnt yet. */
static kvt_status read_cache(reader *r, state_shape *shape, uint32_t i, state_cache *cache) {
    memset(cache, 0, sizeof *cache);
    uint32_t n_stream = take_u32(r);
    cache->n_cells = take_u32(r);
    if (r->over || n_stream != 1)
        return refuse(r, n_stream > 1 ? KVT_ENOTSUP : KVT_EPROTO,
                      "the state of a sequence has %u streams, not 1: make the context with "
                      "kv_unified",
                      n_stream);
    if (cache->n_cells > MAX_CELLS)
        return refuse(r, KVT_EPROTO, "the state of a sequence claims %u cells", cache->n_cells);
    if (cache->n_cells == 0)
        return KVT_OK;
    kvt_status status = read_cells(r, cache);
    if (status != KVT_OK)
        return status;
    uint32_t transposed = take_u32(r), n_layers = take_u32(r);
    if (r->over || transposed > 1 || n_layers == 0 || n_layers > KVT_MAX_LAYERS)
        return refuse(r, KVT_EPROTO,
                      "the state of a sequence claims %u layers: this llama.cpp is of a version "
                      "that the adapter does not know",
                      n_layers);
    if (transposed)
        return refuse(r, KVT_ENOTSUP,
                      "V is kept transposed: make the context with flash attention enabled");
    if (!shape->n_layers[i])
        shape->n_layers[i] = n_layers;
    if (n_layers != shape->n_layers[i])
        return refuse(r, KVT_EPROTO, "the state of a sequence has %u layers where it had %u",
                      n_layers, shape->n_layers[i]);
    for (int part = 0; part < 2 && status == KVT_OK; part++)
        status = read_part(r, shape, part, n_layers, cache);
    return status;
}

static kvt_status read_head(reader *r) {
    uint32_t found = take_u32(r);
    take_u32(r);
    if (r->over || found != magic)
        return refuse(r, KVT_EPROTO,
                      "the state of a sequence begins with %08x, not %08x: this llama.cpp is of a "
                      "version that the adapter does not know",
                      found, magic);
    return KVT_OK;
}

kvt_status state_learn(const uint8_t *bytes, size_t n_bytes, char *why, size_t why_bytes,
                       state_shape *ret_shape) {
    reader r = {.bytes = bytes, .n_bytes = n_bytes, .why = why, .why_bytes = why_bytes};
    state_shape shape = {0};
    state_cache cache;
    kvt_status status = read_head(&r);
    while (status == KVT_OK && (r.at < n_bytes || shape.n_caches == 0)) {
        if (shape.n_caches == STATE_MAX_CACHES)
            return refuse(&r, KVT_EPROTO, "%zu bytes follow behind the state of a sequence",
                          n_bytes - r.at);
        status = read_cache(&r, &shape, shape.n_caches, &cache);
        if (status == KVT_OK && cache.n_cells == 0)
            return refuse(&r, KVT_EPROTO, "a cache of the state holds no cell");
        shape.n_caches++;
    }
    if (status == KVT_OK)
        *ret_shape = shape;
    return status;
}

kvt_status state_read(const state_shape *shape, const uint8_t *bytes, size_t n_bytes, char *why,
                      size_t why_bytes, state_places *ret_places) {
    reader r = {.bytes = bytes, .n_bytes = n_bytes, .why = why, .why_bytes = why_bytes};
    state_shape same = *shape;
    state_places places = {0};
    kvt_status status = read_head(&r);
    for (uint32_t i = 0; i < shape->n_caches && status == KVT_OK; i++)
        status = read_cache(&r, &same, i, &places.cache[i]);
    if (status != KVT_OK)
        return status;
    if (r.at != n_bytes)
        return refuse(&r, KVT_EPROTO, "%zu bytes follow behind the state of a sequence",
                      n_bytes - r.at);
    *ret_places = places;
    return KVT_OK;
}

int64_t state_find(const state_cache *cache, const uint8_t *bytes, uint32_t position,
                   uint32_t hint) {
    for (uint32_t i = 0; i < cache->n_cells; i++) {
        uint32_t cell = hint < cache->n_cells ? (hint + i) % cache->n_cells : i;
        const uint8_t *p = bytes + cache->cells_at + (size_t)cell * CELL_BYTES;
        uint32_t found =
            (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        if (found == position)
            return cell;
    }
    return -1;
}

/* --- writing ------------------------------------------------------------------------------------
 */

size_t state_bytes(const state_shape *shape, uint32_t first_cache,
                   const uint32_t n_cells[STATE_MAX_CACHES]) {
    size_t total = HEAD_BYTES;
    for (uint32_t i = first_cache; i < shape->n_caches; i++) {
        total += CACHE_HEAD_BYTES;
        if (!n_cells[i])
            continue;
        total += (size_t)n_cells[i] * CELL_BYTES + LAYERS_HEAD_BYTES;
        for (int part = 0; part < 2; part++)
            total += shape->n_layers[i] * (LAYER_HEAD_BYTES + n_cells[i] * shape->row_bytes[part]);
    }
    return total;
}

static void write_cache(const state_shape *shape, uint32_t i, uint32_t first_position,
                        const uint8_t *start, uint8_t **at, state_cache *cache) {
    put(at, 1, 4);
    put(at, cache->n_cells, 4);
    if (!cache->n_cells)
        return;
    cache->cells_at = (size_t)(*at - start);
    for (uint32_t cell = 0; cell < cache->n_cells; cell++) {
        put(at, first_position + cell, 4);
        put(at, 1, 4);
        put(at, 0, 4);
    }
    put(at, 0, 4);
    put(at, shape->n_layers[i], 4);
    for (int part = 0; part < 2; part++) {
        size_t rows_bytes = cache->n_cells * shape->row_bytes[part];
        cache->rows_at[part] = (size_t)(*at - start) + LAYER_HEAD_BYTES;
        cache->layer_stride[part] = LAYER_HEAD_BYTES + rows_bytes;
        for (uint32_t layer = 0; layer < shape->n_layers[i]; layer++) {
            put(at, (uint32_t)shape->type[part], 4);
            put(at, shape->row_bytes[part], 8);
            *at += rows_bytes;
        }
    }
}

void state_write(const state_shape *shape, uint32_t first_cache,
                 const uint32_t n_cells[STATE_MAX_CACHES],
                 const uint32_t first_position[STATE_MAX_CACHES], uint8_t *to,
                 state_places *ret_places) {
    uint8_t *at = to;
    memset(ret_places, 0, sizeof *ret_places);
    put(&at, magic, 4);
    put(&at, 0, 4);
    for (uint32_t i = first_cache; i < shape->n_caches; i++) {
        ret_places->cache[i].n_cells = n_cells[i];
        write_cache(shape, i, first_position[i], to, &at, &ret_places->cache[i]);
    }
}
