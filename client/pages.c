/* pages.c - decoding from the mapped arena, encoding into staging. */
#include "client/client.h"
#include "client/layout.h"

#include <stdlib.h>
#include <string.h>

/* --- decode -------------------------------------------------------------------------------------
 */

typedef struct rows {
    uint32_t first_row, n_rows;
    uint32_t first_layer, n_layers; /* of the group */
    uint32_t group;
} rows;

/* Rows of some runs, from the skip-th row of the first one on. */
typedef struct row_walk {
    const kvt_run *runs;
    size_t skip;
    size_t left; /* rows that are still to come */
} row_walk;

/* The next rows that stand together in one page, at the walk's place: their token and number. */
static uint32_t walk_piece(const row_walk *walk, uint32_t page_tokens, size_t *ret_token) {
    size_t token = walk->runs->first_token + walk->skip;
    size_t in_page = page_tokens - token % page_tokens, in_run = walk->runs->n_tokens - walk->skip;
    size_t n = in_page < in_run ? in_page : in_run;
    *ret_token = token;
    return (uint32_t)(n < walk->left ? n : walk->left);
}

static void walk_on(row_walk *walk, uint32_t n) {
    walk->skip += n;
    walk->left -= n;
    if (walk->skip == walk->runs->n_tokens) {
        walk->runs++;
        walk->skip = 0;
    }
}

/* Decodes the walk's rows of one page, and moves it along. *done counts rows of the layout. The
 * first piece of them looks at the page's checksum, if that is asked for. */
static kvt_status decode_rows(const kvt_page_shape *shape, const uint8_t *bytes, size_t n_bytes,
                              int verify, rows r, row_walk *walk, size_t *done,
                              const kvt_layout *to) {
    uint32_t n_rows_there;
    size_t token, page = SIZE_MAX;
    kvt_status status = kvt_page_check(shape, bytes, n_bytes, 0, &n_rows_there);
    while (walk->left > 0 && status == KVT_OK) {
        r.n_rows = walk_piece(walk, shape->page_tokens, &token);
        if (page != SIZE_MAX && token / shape->page_tokens != page)
            break;
        page = token / shape->page_tokens;
        r.first_row = (uint32_t)(token % shape->page_tokens);
        kvt_layout here = kvt_layout_at_token(to, *done);
        if (n_rows_there < r.first_row + r.n_rows)
            return KVT_ECORRUPT;
        if (verify)
            status = kvt_page_decode_verified(shape, bytes, n_bytes, r.first_row, r.n_rows,
                                              r.first_layer, r.n_layers, &here);
        else
            status = kvt_page_decode(shape, bytes, n_bytes, r.first_row, r.n_rows, r.first_layer,
                                     r.n_layers, &here);
        verify = 0;
        walk_on(walk, r.n_rows);
        *done += r.n_rows;
    }
    return status;
}

/*
 * One page, between two looks at the generation of its frame. The bytes may change at any time if
 * the lease was lost without our knowing, so what goes wrong in between only counts if the
 * generation is still the same after it.
 */
static kvt_status decode_page(const kvt_lease *lease, uint32_t number, const rows *r,
                              kvt_page_copy *copy, row_walk *walk, size_t *done,
                              const kvt_layout *to) {
    const kvt_client *c = lease->client;
    const kvt_wire_page *page = kvt_lease_page(lease, number, r->group);
    const kvt_page_shape *shape = &c->shapes[r->group];
    const uint8_t *bytes = NULL;
    if (!kvt_arena_is_fresh(lease->arena, page))
        return kvt_error_plain(KVT_ESTALE);
    kvt_status status = kvt_arena_page(lease->arena, page, copy, &bytes);
    if (status != KVT_OK)
        return status;
    status = decode_rows(shape, bytes, page->bytes, (c->flags & KVT_OPEN_VERIFY) != 0, *r, walk,
                         done, to);
    if (!kvt_arena_was_fresh(lease->arena, page))
        return kvt_error_plain(KVT_ESTALE);
    if (status == KVT_ECORRUPT)
        kvt_suspect(lease, number, r->group);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

/* Rows of some layers of one group. */
static kvt_status decode(const kvt_lease *lease, row_walk walk, rows r, const kvt_layout *to) {
    uint32_t page_tokens = lease->client->geometry.page_tokens;
    kvt_status status = KVT_OK;
    kvt_page_copy copy = {0};
    size_t done = 0;
    while (walk.left > 0 && status == KVT_OK) {
        size_t token = walk.runs->first_token + walk.skip;
        status = decode_page(lease, (uint32_t)(token / page_tokens), &r, &copy, &walk, &done, to);
    }
    free(copy.bytes);
    return status;
}

typedef struct layer_range {
    uint32_t first, n;
} layer_range;

/* What of a range of all layers belongs to the group, counted from its own first one; n = 0:
 * nothing. *ret_before: layers of the range that belong to groups in front. */
static layer_range layers_of(const kvt_geometry *g, uint32_t group, layer_range all,
                             uint32_t *ret_before) {
    uint32_t begin = 0;
    for (uint32_t i = 0; i < group; i++)
        begin += g->groups[i].n_layers;
    uint32_t end = begin + g->groups[group].n_layers;
    uint32_t first = all.first > begin ? all.first : begin;
    uint32_t last = all.first + all.n < end ? all.first + all.n : end;
    if (first >= last)
        return (layer_range){0, 0};
    *ret_before = first - all.first;
    return (layer_range){first - begin, last - first};
}

static kvt_status check_groups(const kvt_lease *lease, size_t first_token, layer_range all) {
    const kvt_geometry *g = &lease->client->geometry;
    for (uint32_t group = 0; group < g->n_groups; group++) {
        uint32_t before, from = lease->first_page[group] * g->page_tokens;
        if (layers_of(g, group, all, &before).n > 0 && first_token < from)
            return kvt_error(KVT_EINVAL,
                             "token %zu: layer group %u, with a window of %u tokens, is held from "
                             "token %u on (kvt_lease_info.first_token)",
                             first_token, group, g->groups[group].window, from);
    }
    return KVT_OK;
}

static kvt_status decode_groups(const kvt_lease *lease, row_walk walk, layer_range all,
                                const kvt_layout *to) {
    const kvt_geometry *g = &lease->client->geometry;
    kvt_status status = check_groups(lease, walk.runs->first_token + walk.skip, all);
    for (uint32_t group = 0; group < g->n_groups && status == KVT_OK; group++) {
        uint32_t before = 0;
        layer_range own = layers_of(g, group, all, &before);
        rows r = {.first_layer = own.first, .n_layers = own.n, .group = group};
        kvt_layout here = kvt_layout_at_layer(to, before);
        if (own.n > 0)
            status = decode(lease, walk, r, &here);
    }
    return status;
}

/* KVT_OK: the caller is inside of the client, and leaves it. */
static kvt_status decode_begin(kvt_lease *lease) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    status = kvt_lease_catch_up(lease);
    if (status != KVT_OK)
        kvt_client_leave(lease->client);
    return status;
}

/* The layers of a call, and where n_tokens rows of each are to go. */
static kvt_status check_call(const kvt_lease *lease, layer_range layers, size_t n_tokens,
                             const kvt_layout *to) {
    const kvt_geometry *g = &lease->client->geometry;
    if (layers.first > g->n_layers || layers.n > g->n_layers - layers.first)
        return kvt_error(KVT_EINVAL, "layers %u and %u on; the geometry has %u", layers.first,
                         layers.n, g->n_layers);
    kvt_status status = kvt_layout_check("to", to, g, layers.n, n_tokens, 0);
    return status == KVT_OK && layers.n > 0 && n_tokens > 0 ? kvt_layout_check_parts("to", to)
                                                            : status;
}

kvt_status kvt_decode(kvt_lease *lease, size_t first_token, size_t n_tokens, uint32_t first_layer,
                      uint32_t n_layers, const kvt_layout *to) {
    layer_range layers = {first_layer, n_layers};
    kvt_status status = decode_begin(lease);
    if (status != KVT_OK)
        return status;
    if (first_token > lease->held_tokens || n_tokens > lease->held_tokens - first_token)
        status = kvt_error(KVT_EINVAL, "tokens %zu and %zu on; the lease holds %u", first_token,
                           n_tokens, lease->held_tokens);
    else
        status = kvt_view_has(lease, first_token, n_tokens);
    if (status == KVT_OK)
        status = check_call(lease, layers, n_tokens, to);
    if (status == KVT_OK && n_layers > 0 && n_tokens > 0) {
        kvt_run run = {(uint32_t)first_token, (uint32_t)n_tokens};
        status = decode_groups(lease, (row_walk){&run, 0, n_tokens}, layers, to);
    }
    kvt_client_leave(lease->client);
    return status;
}

kvt_status kvt_decode_rows(kvt_lease *lease, size_t first_row, size_t n_rows, uint32_t first_layer,
                           uint32_t n_layers, const kvt_layout *to) {
    layer_range layers = {first_layer, n_layers};
    row_walk walk = {.skip = first_row, .left = n_rows};
    kvt_status status = decode_begin(lease);
    if (status != KVT_OK)
        return status;
    uint32_t n_runs = kvt_lease_spread(lease, &walk.runs);
    size_t there = lease->is_view ? lease->n_rows : lease->held_tokens;
    if (first_row > there || n_rows > there - first_row)
        status = kvt_error(KVT_EINVAL, "rows %zu and %zu on; the lease has %zu", first_row, n_rows,
                           there);
    if (status == KVT_OK)
        status = check_call(lease, layers, n_rows, to);
    for (; status == KVT_OK && n_runs > 0 && walk.skip >= walk.runs->n_tokens; n_runs--)
        walk.skip -= walk.runs++->n_tokens;
    if (status == KVT_OK && n_layers > 0 && n_rows > 0)
        status = decode_groups(lease, walk, layers, to);
    kvt_client_leave(lease->client);
    return status;
}

kvt_status kvt_lease_copy_page(const kvt_lease *lease, uint32_t page, uint32_t group, void *to,
                               size_t room, size_t *ret_bytes) {
    const kvt_wire_page *at = kvt_lease_page(lease, page, group);
    const uint8_t *bytes = NULL;
    kvt_page_copy copy = {0};
    if (at->bytes > room)
        return kvt_error(KVT_ELIMIT, "page %u has %u bytes; there is room for %zu", page, at->bytes,
                         room);
    if (!kvt_arena_is_fresh(lease->arena, at))
        return kvt_error_plain(KVT_ESTALE);
    kvt_status status = kvt_arena_page(lease->arena, at, &copy, &bytes);
    if (status == KVT_OK)
        memcpy(to, bytes, at->bytes);
    free(copy.bytes);
    if (status == KVT_OK && !kvt_arena_was_fresh(lease->arena, at))
        return kvt_error_plain(KVT_ESTALE);
    if (status == KVT_OK)
        *ret_bytes = at->bytes;
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

/* The page's entry, made with a slot if there is none. What was encoded and not handed in is read
 * by nobody else: encoding it a second time writes over it. */
static kvt_status take_encoded(kvt_lease *lease, uint32_t page, kvt_encoded **ret_encoded) {
    uint32_t i = find_encoded(lease, page);
    if (i < lease->n_encoded && lease->encoded[i].page == page && lease->encoded[i].work) {
        kvt_device_finish(lease, &lease->encoded[i]); /* nobody writes into its slot any more */
        kvt_device_forget(lease, &lease->encoded[i]);
        memset(lease->encoded[i].bytes, 0, sizeof lease->encoded[i].bytes);
    }
    if (i == lease->n_encoded || lease->encoded[i].page != page) {
        kvt_encoded encoded = {.page = page};
        kvt_status status = kvt_encoded_reserve(lease, 1);
        if (status == KVT_OK)
            status = kvt_staging_take(lease->client, lease->epoch, &encoded.staging, &encoded.slot);
        if (status != KVT_OK)
            return status;
        memmove(&lease->encoded[i + 1], &lease->encoded[i],
                (lease->n_encoded - i) * sizeof encoded);
        lease->n_encoded++;
        lease->encoded[i] = encoded;
    }
    *ret_encoded = &lease->encoded[i];
    return KVT_OK;
}

/* Drops the entry if nothing is left of it. */
static void prune_encoded(kvt_lease *lease, kvt_encoded *encoded) {
    uint32_t i = (uint32_t)(encoded - lease->encoded);
    for (uint32_t group = 0; group < lease->client->geometry.n_groups; group++)
        if (encoded->bytes[group])
            return;
    kvt_staging_give(lease->client, encoded->staging, encoded->slot, 0);
    lease->n_encoded--;
    memmove(&lease->encoded[i], &lease->encoded[i + 1],
            (lease->n_encoded - i) * sizeof *lease->encoded);
}

/*
 * Copy-on-write: the rows that are held come from the arena, encoded as they are. The whole page is
 * verified first, always: its bytes get a new checksum here, which must not vouch for damage.
 */
static kvt_status encode_cow(const kvt_lease *lease, uint32_t number, uint32_t group,
                             uint32_t keep_rows, uint32_t n_rows, const kvt_layout *from, void *to,
                             size_t room, size_t *ret_bytes) {
    const kvt_page_shape *shape = &lease->client->shapes[group];
    const kvt_wire_page *page = kvt_lease_page(lease, number, group);
    const uint8_t *bytes = NULL;
    kvt_page_copy copy = {0};
    uint32_t rows_there = 0;
    if (!kvt_arena_is_fresh(lease->arena, page))
        return kvt_error_plain(KVT_ESTALE);
    kvt_status status = kvt_arena_page(lease->arena, page, &copy, &bytes);
    if (status != KVT_OK)
        goto out;
    status = kvt_page_check(shape, bytes, page->bytes, 1, &rows_there);
    if (status == KVT_OK && rows_there < keep_rows)
        status = KVT_ECORRUPT;
    if (status == KVT_OK)
        status = kvt_page_encode_cow(shape, bytes, page->bytes, keep_rows, n_rows, from,
                                     number == 0, to, room, ret_bytes);
    /* In too many pieces: the worker has the rows that are held as they were decoded. */
    if (status == KVT_ELIMIT)
        status = kvt_page_encode_raw(shape, bytes, page->bytes, n_rows, from, to, room, ret_bytes);
    if (!kvt_arena_was_fresh(lease->arena, page))
        status = KVT_ESTALE;
    if (status == KVT_ECORRUPT)
        kvt_suspect(lease, number, group);
    if (status != KVT_OK)
        kvt_error_plain(status);
out:
    free(copy.bytes);
    return status;
}

static kvt_status encode_into(const kvt_lease *lease, uint32_t page, uint32_t group,
                              uint32_t n_rows, const kvt_layout *from, void *to, size_t room,
                              size_t *ret_bytes) {
    const kvt_page_shape *shape = &lease->client->shapes[group];
    uint32_t first_token = page * shape->page_tokens;
    int is_first = page == 0;
    kvt_status status;
    if (lease->held_tokens > first_token) {
        uint32_t keep_rows = lease->held_tokens - first_token;
        return encode_cow(lease, page, group, keep_rows < n_rows ? keep_rows : n_rows, n_rows, from,
                          to, room, ret_bytes);
    } else if (is_first) {
        status = kvt_page_encode_first(shape, n_rows, from, to, room, ret_bytes);
    } else {
        status = kvt_page_encode(shape, n_rows, from, to, room, ret_bytes);
    }
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

/* The groups [first, end) of a page; `from` starts with the first layer of the first of them. */
static kvt_status encode(kvt_lease *lease, uint32_t page, uint32_t first, uint32_t end,
                         uint32_t n_rows, const kvt_layout *from) {
    const kvt_client *c = lease->client;
    kvt_encoded *encoded;
    size_t room;
    uint32_t n_layers = 0;
    kvt_status status = take_encoded(lease, page, &encoded);
    if (status != KVT_OK)
        return status;
    uint8_t *slot = kvt_staging_at(encoded->staging, encoded->slot, &room);
    for (uint32_t group = first; group < end && status == KVT_OK; group++) {
        kvt_layout here = kvt_layout_at_layer(from, n_layers);
        size_t n_bytes = 0;
        encoded->bytes[group] = 0;
        status = encode_into(lease, page, group, n_rows, &here, slot + c->group_offset[group],
                             c->group_offset[group + 1] - c->group_offset[group], &n_bytes);
        encoded->bytes[group] = status == KVT_OK ? (uint32_t)n_bytes : 0;
        n_layers += c->geometry.groups[group].n_layers;
    }
    if (status != KVT_OK)
        prune_encoded(lease, encoded);
    return status;
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

static kvt_status encode_groups(kvt_lease *lease, size_t page, uint32_t first_group,
                                uint32_t end_group, const kvt_layout *from) {
    const kvt_geometry *g = &lease->client->geometry;
    uint32_t n_rows = 0, n_layers = 0;
    for (uint32_t group = first_group; group < end_group; group++)
        n_layers += g->groups[group].n_layers;
    kvt_status status = kvt_lease_catch_up(lease);
    if (status == KVT_OK)
        status = kvt_lease_may_encode(lease, page, &n_rows);
    if (status == KVT_OK)
        status = kvt_layout_check("from", from, g, n_layers, n_rows, 0);
    if (status == KVT_OK && n_rows > 0)
        status = encode(lease, (uint32_t)page, first_group, end_group, n_rows, from);
    return status;
}

kvt_status kvt_encode(kvt_lease *lease, size_t page, const kvt_layout *from) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    status = encode_groups(lease, page, 0, lease->client->geometry.n_groups, from);
    kvt_client_leave(lease->client);
    return status;
}

kvt_status kvt_encode_group(kvt_lease *lease, size_t page, uint32_t group, const kvt_layout *from) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    if (group >= lease->client->geometry.n_groups)
        status = kvt_error(KVT_EINVAL, "group %u; the geometry has %u", group,
                           lease->client->geometry.n_groups);
    else
        status = encode_groups(lease, page, group, group + 1, from);
    kvt_client_leave(lease->client);
    return status;
}
