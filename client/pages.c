/* pages.c - decoding from the mapped arena, encoding into staging. */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

/* The layout as seen from n_tokens tokens further on. */
static kvt_layout layout_at(const kvt_layout *layout, size_t n_tokens) {
    kvt_layout at = *layout;
    for (int p = 0; p < 2; p++)
        if (at.part[p])
            at.part[p] = (char *)at.part[p] + n_tokens * at.token_stride_bytes[p];
    return at;
}

/* --- decode -------------------------------------------------------------------------------------
 */

typedef struct rows {
    uint32_t first_row, n_rows;
    uint32_t first_layer, n_layers;
} rows;

/*
 * One page, between two looks at the generation of its frame. The bytes may change at any time if
 * the lease was lost without our knowing, so what goes wrong in between only counts if the
 * generation is still the same after it.
 */
static kvt_status decode_page(const kvt_lease *lease, const kvt_wire_page *page, const rows *r,
                              kvt_page_copy *copy, const kvt_layout *to) {
    const kvt_client *c = lease->client;
    const uint8_t *bytes = NULL;
    uint32_t n_rows = 0;
    if (!kvt_arena_is_fresh(lease->arena, page))
        return kvt_error_plain(KVT_ESTALE);
    kvt_status status = kvt_arena_page(lease->arena, page, copy, &bytes);
    if (status != KVT_OK)
        return status;
    status =
        kvt_page_check(&c->shape, bytes, page->bytes, (c->flags & KVT_OPEN_VERIFY) != 0, &n_rows);
    if (status == KVT_OK && n_rows < r->first_row + r->n_rows)
        status = KVT_ECORRUPT;
    if (status == KVT_OK)
        status = kvt_page_decode(&c->shape, bytes, page->bytes, r->first_row, r->n_rows,
                                 r->first_layer, r->n_layers, to);
    if (!kvt_arena_was_fresh(lease->arena, page))
        return kvt_error_plain(KVT_ESTALE);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

static kvt_status decode(const kvt_lease *lease, size_t first_token, size_t n_tokens, rows r,
                         const kvt_layout *to) {
    uint32_t page_tokens = lease->client->geometry.page_tokens;
    kvt_status status = KVT_OK;
    kvt_page_copy copy = {0};
    for (size_t done = 0; done < n_tokens && status == KVT_OK; done += r.n_rows) {
        size_t at = first_token + done, left = n_tokens - done;
        r.first_row = (uint32_t)(at % page_tokens);
        r.n_rows = page_tokens - r.first_row;
        r.n_rows = r.n_rows < left ? r.n_rows : (uint32_t)left;
        kvt_layout here = layout_at(to, done);
        status = decode_page(lease, &lease->pages[at / page_tokens], &r, &copy, &here);
    }
    free(copy.bytes);
    return status;
}

kvt_status kvt_decode(kvt_lease *lease, size_t first_token, size_t n_tokens, uint32_t first_layer,
                      uint32_t n_layers, const kvt_layout *to) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    const kvt_geometry *g = &lease->client->geometry;
    if (!to || !to->part[0] || !to->part[1])
        status = kvt_error(KVT_EINVAL, "kvt_decode needs a layout with two parts");
    else if (first_token > lease->held_tokens || n_tokens > lease->held_tokens - first_token)
        status = kvt_error(KVT_EINVAL, "tokens %zu and %zu on; the lease holds %u", first_token,
                           n_tokens, lease->held_tokens);
    else if (first_layer > g->n_layers || n_layers > g->n_layers - first_layer)
        status = kvt_error(KVT_EINVAL, "layers %u and %u on; the geometry has %u", first_layer,
                           n_layers, g->n_layers);
    rows r = {.first_layer = first_layer, .n_layers = n_layers};
    if (status == KVT_OK && n_layers > 0)
        status = decode(lease, first_token, n_tokens, r, to);
    kvt_client_leave(lease->client);
    return status;
}

/* --- encode -------------------------------------------------------------------------------------
 */

kvt_status kvt_encoded_reserve(kvt_lease *lease, uint32_t n) {
    uint32_t room = lease->room_encoded ? lease->room_encoded : 8;
    while (room < lease->n_encoded + n)
        room *= 2;
    if (room == lease->room_encoded)
        return KVT_OK;
    kvt_encoded *encoded = kvt_memory_resize(lease->encoded, room * sizeof *encoded);
    if (!encoded)
        return kvt_error_plain(KVT_ENOMEM);
    lease->encoded = encoded;
    lease->room_encoded = room;
    return KVT_OK;
}

/* Where the page stands in the list, or would. */
static uint32_t find_encoded(const kvt_lease *lease, uint32_t page) {
    uint32_t i = lease->n_encoded;
    while (i > 0 && lease->encoded[i - 1].page >= page)
        i--;
    return i;
}

void kvt_encoded_insert(kvt_lease *lease, const kvt_encoded *encoded) {
    uint32_t i = find_encoded(lease, encoded->page);
    if (i < lease->n_encoded && lease->encoded[i].page == encoded->page) {
        /* Encoded a second time: the new one counts. */
        kvt_device_finish(lease, &lease->encoded[i]); /* nobody writes into its slot any more */
        kvt_device_forget(lease, &lease->encoded[i]);
        kvt_staging_give(lease->client, lease->encoded[i].staging, lease->encoded[i].slot, 0);
    } else {
        memmove(&lease->encoded[i + 1], &lease->encoded[i],
                (lease->n_encoded - i) * sizeof *encoded);
        lease->n_encoded++;
    }
    lease->encoded[i] = *encoded;
}

/*
 * Copy-on-write: the rows that are held come from the arena, encoded as they are. The whole page is
 * verified first, always: its bytes get a new checksum here, which must not vouch for damage.
 */
static kvt_status encode_cow(const kvt_lease *lease, const kvt_wire_page *page, uint32_t keep_rows,
                             uint32_t n_rows, const kvt_layout *from, void *to, size_t room,
                             size_t *ret_bytes) {
    const kvt_page_shape *shape = &lease->client->shape;
    const uint8_t *bytes = NULL;
    kvt_page_copy copy = {0};
    uint32_t rows_there = 0;
    if (!kvt_arena_is_fresh(lease->arena, page))
        return KVT_ESTALE;
    kvt_status status = kvt_arena_page(lease->arena, page, &copy, &bytes);
    if (status == KVT_OK)
        status = kvt_page_check(shape, bytes, page->bytes, 1, &rows_there);
    if (status == KVT_OK && rows_there < keep_rows)
        status = KVT_ECORRUPT;
    if (status == KVT_OK)
        status = kvt_page_encode_cow(shape, bytes, page->bytes, keep_rows, n_rows, from, to, room,
                                     ret_bytes);
    free(copy.bytes);
    return kvt_arena_was_fresh(lease->arena, page) ? status : KVT_ESTALE;
}

static kvt_status encode_into(const kvt_lease *lease, uint32_t page, uint32_t n_rows,
                              const kvt_layout *from, void *to, size_t room, size_t *ret_bytes) {
    const kvt_page_shape *shape = &lease->client->shape;
    uint32_t first_token = page * shape->page_tokens;
    kvt_status status = KVT_ELIMIT;
    int keeps = lease->held_tokens > first_token;
    if (keeps) {
        uint32_t keep_rows = lease->held_tokens - first_token;
        status = encode_cow(lease, &lease->pages[page], keep_rows < n_rows ? keep_rows : n_rows,
                            n_rows, from, to, room, ret_bytes);
    }
    /* Nothing to keep: all of it from the worker. Or it is in too many pieces already: then too,
     * but raw, since the worker has the rows that are held as they were decoded, and to encode them
     * again would lose once more. */
    if (status == KVT_ELIMIT)
        status = kvt_page_encode(keeps ? &lease->client->raw_shape : shape, n_rows, from, to, room,
                                 ret_bytes);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

static kvt_status encode(kvt_lease *lease, uint32_t page, uint32_t n_rows, const kvt_layout *from) {
    kvt_client *c = lease->client;
    kvt_encoded encoded = {.page = page};
    size_t room, n_bytes = 0;
    kvt_status status = kvt_encoded_reserve(lease, 1);
    if (status == KVT_OK)
        status = kvt_staging_take(c, lease->epoch, &encoded.staging, &encoded.slot);
    if (status != KVT_OK)
        return status;
    void *to = kvt_staging_at(encoded.staging, encoded.slot, &room);
    status = encode_into(lease, page, n_rows, from, to, room, &n_bytes);
    if (status != KVT_OK) {
        kvt_staging_give(c, encoded.staging, encoded.slot, 0);
        return status;
    }
    encoded.bytes = (uint32_t)n_bytes;
    kvt_encoded_insert(lease, &encoded);
    return KVT_OK;
}

kvt_status kvt_lease_may_encode(const kvt_lease *lease, size_t page, uint32_t *ret_n_rows) {
    size_t page_tokens = lease->client->geometry.page_tokens;
    size_t n_pages = (lease->n_tokens + page_tokens - 1) / page_tokens;
    size_t first = page < n_pages ? page * page_tokens : lease->n_tokens;
    size_t end = first + page_tokens < lease->n_tokens ? first + page_tokens : lease->n_tokens;
    if (page >= n_pages || end > lease->claimed_tokens)
        return kvt_error(KVT_EINVAL, "page %zu ends at token %zu; the lease claims tokens up to %u",
                         page, end, lease->claimed_tokens);
    /* If it is held, by another's sealing perhaps, there is nothing to hand in. */
    *ret_n_rows = end > lease->held_tokens ? (uint32_t)(end - first) : 0;
    return KVT_OK;
}

kvt_status kvt_encode(kvt_lease *lease, size_t page, const kvt_layout *from) {
    kvt_status status = kvt_lease_enter(lease);
    uint32_t n_rows = 0;
    if (status != KVT_OK)
        return status;
    if (!from || !from->part[0] || !from->part[1])
        status = kvt_error(KVT_EINVAL, "kvt_encode needs a layout with two parts");
    else
        status = kvt_lease_may_encode(lease, page, &n_rows);
    if (status == KVT_OK && n_rows > 0)
        status = encode(lease, (uint32_t)page, n_rows, from);
    kvt_client_leave(lease->client);
    return status;
}
