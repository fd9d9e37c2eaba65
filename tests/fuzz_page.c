/*
 * fuzz_page.c - any bytes as an encoded page. The first byte picks a shape; the rest is the page,
 * or, if the byte's highest bit is set, changes [u16 offset][u8 xor] to a good page whose hashes
 * are then made right again: so the checks behind the hashes are reached as well. A page that
 * passes the check must decode, and copying its leading rows must give a page that passes too;
 * nothing may be read or written out of bounds whatever the bytes say.
 */
#include "client/assert.h"
#include "kernels/page.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
    const char *codec;
    uint32_t head_dim, page_tokens;
} shapes[] = {{"f16", 4, 16}, {"f16", 64, 16}, {"i8", 64, 16}, {"k8v4", 64, 32}, {"i4", 96, 16}};

static void decode(const kvt_page_shape *shape, const void *page, size_t n, uint32_t rows) {
    size_t row = (size_t)shape->head_dim[0] * 2;
    uint8_t *part[2] = {malloc(row * rows), malloc(row * rows)};
    KVT_ASSERT(part[0] && part[1]);
    kvt_layout layout = {.part = {part[0], part[1]},
                         .layer_stride_bytes = {row * rows, row * rows},
                         .head_stride_bytes = {row * rows, row * rows},
                         .token_stride_bytes = {row, row}};
    (void)kvt_page_decode(shape, page, n, 0, rows, 0, 1, &layout);
    free(part[0]);
    free(part[1]);
}

enum { PAYLOAD_HASH_AT = 16, HEADER_HASH_AT = 24 }; /* kernels/FORMAT.md "Header" */

static void make_hashes_right(uint8_t *page, size_t n) {
    uint64_t hash = XXH3_64bits(page + KVT_PAGE_HEADER_BYTES, n - KVT_PAGE_HEADER_BYTES);
    memcpy(page + PAYLOAD_HASH_AT, &hash, 8);
    memset(page + HEADER_HASH_AT, 0, 8);
    hash = XXH3_64bits(page, KVT_PAGE_HEADER_BYTES);
    memcpy(page + HEADER_HASH_AT, &hash, 8);
}

/* A good page of all rows, changed as the input says. */
static uint8_t *changed_page(const kvt_page_shape *shape, const uint8_t *data, size_t size,
                             size_t *ret_n) {
    static uint16_t elements[128 * 1024];
    size_t row = (size_t)shape->head_dim[0] * 2, room = kvt_page_max_bytes(shape), n;
    for (size_t i = 0; i < sizeof elements / 2; i++)
        elements[i] = (uint16_t)(0x3000 + i % 2000);
    kvt_layout layout = {.part = {elements, elements}, .token_stride_bytes = {row, row}};
    uint8_t *page = aligned_alloc(64, room);
    KVT_ASSERT(page);
    KVT_ASSERT(kvt_page_encode(shape, shape->page_tokens, &layout, page, room, &n) == KVT_OK);
    for (; size >= 3; data += 3, size -= 3)
        page[((size_t)data[0] | (size_t)data[1] << 8) % n] ^= data[2];
    make_hashes_right(page, n);
    *ret_n = n;
    return page;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    size_t pick = data[0] % (sizeof shapes / sizeof *shapes);
    kvt_geometry geometry;
    kvt_page_shape shape;
    kvt_geometry_init(&geometry, 1, 1, shapes[pick].head_dim, shapes[pick].page_tokens);
    KVT_ASSERT(kvt_page_shape_init(&geometry, 0, shapes[pick].codec, NULL, 0, &shape) == KVT_OK);
    size_t n = size - 1;
    uint8_t *page;
    if (data[0] & 0x80) {
        page = changed_page(&shape, data + 1, n, &n);
    } else {
        page = aligned_alloc(64, (n + 127) / 64 * 64);
        KVT_ASSERT(page);
        memcpy(page, data + 1, n);
    }
    uint32_t rows = 0;
    decode(&shape, page, n, 1); /* bytes may change after a check: decode trusts nothing */
    if (kvt_page_check(&shape, page, n, (int)(n & 1), &rows) == KVT_OK) {
        KVT_ASSERT(rows >= 1 && rows <= shape.page_tokens);
        decode(&shape, page, n, rows);
        size_t room = kvt_page_max_bytes(&shape), n_copy;
        uint8_t *copy = aligned_alloc(64, room);
        KVT_ASSERT(copy);
        uint32_t keep = 1 + rows / 2;
        keep = keep < rows ? keep : rows;
        if (kvt_page_encode_cow(&shape, page, n, keep, keep, NULL, 0, copy, room, &n_copy) ==
            KVT_OK)
            KVT_ASSERT(kvt_page_check(&shape, copy, n_copy, 1, &rows) == KVT_OK && rows == keep);
        free(copy);
    }
    free(page);
    return 0;
}
