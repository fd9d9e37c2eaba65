/*
 * pages_device.c - decoding and encoding by a GPU, on the worker's own stream.
 *
 * WORK of a lease is a batch (map_cuda.h) that the GPU may not have done yet. Until it has, the
 * lease may not be let go of, nor change its path: the daemon would give the frames that are being
 * read to other pages.
 */
#include "client/client.h"
#include "client/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHY_BYTES = 256 };

/* --- work ---------------------------------------------------------------------------------------
 */

static kvt_status add_work(kvt_lease *lease, kvt_device_work **ret_work) {
    kvt_device_work *work = kvt_memory_get(sizeof *work);
    if (!work)
        return kvt_error_plain(KVT_ENOMEM);
    work->calls = lease->arena->calls;
    work->next = lease->work;
    lease->work = work;
    *ret_work = work;
    return KVT_OK;
}

static void remove_work(kvt_lease *lease, kvt_device_work *work) {
    kvt_device_work **at = &lease->work;
    while (*at != work)
        at = &(*at)->next;
    *at = work->next;
    free(work);
}

static void wait_for(kvt_device_work *work) {
    if (!work->done)
        work->status = work->calls->wait(work->batch, work->why, sizeof work->why);
    if (work->status != KVT_OK && !work->why[0])
        snprintf(work->why, sizeof work->why, "%s", kvt_status_text(work->status));
    work->done = 1;
}

/* Are the pages of the lease still what it names? They are looked at here, since the call that
 * waits may be about to change what it names. */
static kvt_status look_at_pages(const kvt_lease *lease) {
    for (uint32_t group = 0; group < lease->client->geometry.n_groups; group++)
        for (uint32_t i = lease->first_page[group]; i < lease->n_pages; i++) {
            const kvt_wire_page *page = kvt_lease_page(lease, i, group);
            /* A view has no page where it has no row. */
            if (page->bytes && !kvt_arena_was_fresh(lease->arena, page))
                return KVT_ESTALE;
        }
    return KVT_OK;
}

static void note(kvt_lease *lease, kvt_status status, const char *why) {
    lease->device_status = status;
    snprintf(lease->device_why, sizeof lease->device_why, "%s", why);
}

/* The GPU says that some page is damaged, not which: the host looks for it. That is slow, and
 * seldom. The pages are the lease's still. */
static void find_damage(const kvt_lease *lease, const kvt_device_work *work) {
    const kvt_client *c = lease->client;
    kvt_page_copy copy = {0};
    const uint8_t *bytes;
    uint32_t n_rows;
    for (uint32_t i = work->first_page; i < work->end_page && i < lease->n_pages; i++) {
        const kvt_wire_page *page = kvt_lease_page(lease, i, 0);
        if (page->bytes && kvt_arena_page(lease->arena, page, &copy, &bytes) == KVT_OK &&
            kvt_page_check(&c->shapes[0], bytes, page->bytes, 1, &n_rows) == KVT_ECORRUPT &&
            kvt_arena_was_fresh(lease->arena, page))
            kvt_suspect(lease, i, 0);
    }
    free(copy.bytes);
}

void kvt_device_wait(kvt_lease *lease) {
    int n_decoded = 0;
    for (kvt_device_work *work = lease->work, *next; work; work = next) {
        next = work->next;
        wait_for(work);
        if (work->n_pages > 0)
            continue; /* encoded pages: their statuses are theirs */
        if (lease->device_status == KVT_OK && work->status != KVT_OK)
            note(lease, work->status, work->why);
        if (work->status == KVT_ECORRUPT && !lease->lost)
            find_damage(lease, work);
        work->calls->drop(work->batch);
        remove_work(lease, work);
        n_decoded++;
    }
    kvt_status fresh = n_decoded ? look_at_pages(lease) : KVT_OK;
    if (fresh != KVT_OK)
        note(lease, fresh, kvt_status_text(fresh));
}

kvt_status kvt_device_said(const kvt_lease *lease) {
    kvt_status status = lease->device_status;
    return status == KVT_OK ? KVT_OK : kvt_error(status, "%s", lease->device_why);
}

kvt_status kvt_device_finish(kvt_lease *lease, kvt_encoded *encoded) {
    kvt_device_work *work = encoded->work;
    if (!work)
        return KVT_OK;
    wait_for(work);
    kvt_status status = work->status;
    const char *why = work->why;
    if (status == KVT_OK) {
        status = work->calls->result(work->batch, encoded->number, &encoded->bytes[0]);
        why = kvt_status_text(status);
    }
    if (status == KVT_ECORRUPT && !lease->lost && encoded->page < lease->n_pages)
        kvt_suspect(lease, encoded->page, 0); /* whose leading rows are kept */
    return status == KVT_OK ? KVT_OK
                            : kvt_error(status, "page %u could not be encoded by the GPU: %s",
                                        encoded->page, why);
}

void kvt_device_forget(kvt_lease *lease, kvt_encoded *encoded) {
    kvt_device_work *work = encoded->work;
    encoded->work = NULL;
    if (!work || --work->n_pages > 0)
        return;
    work->calls->drop(work->batch);
    remove_work(lease, work);
}

void kvt_device_strip(kvt_lease *lease, int closed) {
    while (lease->work) {
        kvt_device_work *work = lease->work;
        if (!closed) {
            /* The daemon has been told by now that the frames are free. */
            KVT_ASSERT(work->done);
            work->calls->drop(work->batch);
        }
        lease->work = work->next;
        free(work);
    }
    for (uint32_t i = 0; i < lease->n_encoded; i++)
        lease->encoded[i].work = NULL;
}

/* --- what both take -----------------------------------------------------------------------------
 */

static kvt_status check_arena(const kvt_lease *lease) {
    uint32_t n_groups = lease->client->geometry.n_groups;
    if (!lease->arena->gpu)
        return kvt_error(KVT_ENOTSUP, "the daemon's arena is in host memory: only kvt_decode and "
                                      "kvt_encode read and write it");
    if (n_groups > 1)
        return kvt_error(KVT_ENOTSUP,
                         "a realm of %u layer groups is read and written by kvt_decode "
                         "and kvt_encode only",
                         n_groups);
    return KVT_OK;
}

static kvt_status check_call(const kvt_lease *lease, const char *argument, const kvt_layout *layout,
                             uint32_t n_layers, size_t n_tokens, const kvt_block_table *blocks,
                             void *stream) {
    char why[WHY_BYTES] = "";
    const kvt_geometry *g = &lease->client->geometry;
    if (blocks && (!blocks->blocks || blocks->block_tokens == 0))
        return kvt_error(KVT_EINVAL, "a block table needs blocks, and block_tokens over 0");
    if (blocks && n_tokens > blocks->block_tokens)
        n_tokens = blocks->block_tokens;
    kvt_status status = kvt_layout_check(argument, layout, g, n_layers, n_tokens, blocks != NULL);
    if (status != KVT_OK)
        return status;
    status =
        lease->arena->calls->check_layout(lease->arena->gpu, argument, layout, why, sizeof why);
    if (status == KVT_OK)
        status = lease->arena->calls->check_stream(lease->arena->gpu, stream, 0, why, sizeof why);
    return status == KVT_OK ? KVT_OK : kvt_error(status, "%s", why);
}

/* --- decode -------------------------------------------------------------------------------------
 */

/* A run of tokens ends with its page, with its block, or with the call. */
static uint32_t run_of(size_t token, size_t end_token, uint32_t page_tokens,
                       const kvt_block_table *blocks) {
    size_t n = page_tokens - token % page_tokens;
    if (blocks && blocks->block_tokens - token % blocks->block_tokens < n)
        n = blocks->block_tokens - token % blocks->block_tokens;
    return (uint32_t)(n < end_token - token ? n : end_token - token);
}

static uint32_t count_runs(size_t token, size_t end_token, uint32_t page_tokens,
                           const kvt_block_table *blocks) {
    uint32_t n = 0;
    for (; token < end_token; n++)
        token += run_of(token, end_token, page_tokens, blocks);
    return n;
}

/* KVT_ESTALE: the lease is lost already. */
static kvt_status fill_pieces(const kvt_lease *lease, size_t first_token, size_t end_token,
                              const kvt_block_table *blocks, kvt_cuda_piece *pieces) {
    uint32_t page_tokens = lease->client->geometry.page_tokens, n;
    for (size_t token = first_token; token < end_token; token += n, pieces++) {
        const kvt_wire_page *page = kvt_lease_page(lease, (uint32_t)(token / page_tokens), 0);
        n = run_of(token, end_token, page_tokens, blocks);
        if (!kvt_arena_is_fresh(lease->arena, page))
            return kvt_error_plain(KVT_ESTALE);
        *pieces = (kvt_cuda_piece){.offset = page->offset,
                                   .bytes = page->bytes,
                                   .first_row = (uint32_t)(token % page_tokens),
                                   .n_rows = n,
                                   .token = token - first_token};
        if (blocks)
            pieces->token = kvt_layout_block(blocks, token / blocks->block_tokens) +
                            token % blocks->block_tokens;
    }
    return KVT_OK;
}

/* Of an earlier layer, or NULL. */
static kvt_device_work *find_plan(const kvt_lease *lease, const kvt_cuda_piece *pieces,
                                  uint32_t n_pieces, void *stream) {
    kvt_device_work *work = lease->work;
    while (work && (work->done || !work->calls->is_plan(work->batch, pieces, n_pieces, stream)))
        work = work->next;
    return work;
}

static kvt_status make_plan(kvt_lease *lease, const kvt_cuda_piece *pieces, uint32_t n_pieces,
                            void *stream, kvt_device_work **ret_work) {
    char why[WHY_BYTES] = "";
    const kvt_client *c = lease->client;
    kvt_device_work *work = NULL;
    kvt_status status = add_work(lease, &work);
    if (status != KVT_OK)
        return status;
    status =
        work->calls->plan(lease->arena->gpu, &c->shapes[0], pieces, n_pieces,
                          (c->flags & KVT_OPEN_VERIFY) != 0, stream, why, sizeof why, &work->batch);
    if (status != KVT_OK) {
        remove_work(lease, work);
        return kvt_error(status, "%s", why);
    }
    *ret_work = work;
    return KVT_OK;
}

/* May these layers be written where the blocks are? What was found of the blocks stays with the
 * plan, for the layers to come: of the same pieces the same is true, whatever table they are by. */
static kvt_status check_blocks(const kvt_lease *lease, const kvt_layout *to, uint32_t n_layers,
                               const kvt_layout_blocks *blocks, kvt_layout_spread *spread) {
    kvt_status status = KVT_OK;
    if (spread->block_tokens == 0)
        status = kvt_layout_spread_of(blocks, spread);
    return status == KVT_OK ? kvt_layout_check_blocks("to", to, &lease->client->geometry, n_layers,
                                                      blocks, spread)
                            : status;
}

/* The plan of an earlier layer, or a new one. to: NULL where nothing is decoded. */
static kvt_status plan_tokens(kvt_lease *lease, size_t first_token, size_t n_tokens,
                              const kvt_layout *to, uint32_t n_layers, const kvt_block_table *table,
                              void *stream, uint32_t *ret_n, kvt_device_work **ret_work) {
    size_t end_token = first_token + n_tokens;
    uint32_t n = count_runs(first_token, end_token, lease->client->geometry.page_tokens, table);
    kvt_cuda_piece *pieces = kvt_memory_get(n * sizeof *pieces);
    if (!pieces)
        return kvt_error_plain(KVT_ENOMEM);
    kvt_status status = fill_pieces(lease, first_token, end_token, table, pieces);
    kvt_device_work *work = status == KVT_OK ? find_plan(lease, pieces, n, stream) : NULL;
    kvt_layout_spread spread = work ? work->spread : (kvt_layout_spread){0};
    const kvt_layout_blocks blocks = {table, first_token, end_token};
    if (status == KVT_OK && to && table)
        status = check_blocks(lease, to, n_layers, &blocks, &spread);
    if (status == KVT_OK && !work)
        status = make_plan(lease, pieces, n, stream, &work);
    free(pieces);
    if (status == KVT_OK) {
        work->spread = spread;
        work->first_page = (uint32_t)(first_token / lease->client->geometry.page_tokens);
        work->end_page = (uint32_t)((end_token - 1) / lease->client->geometry.page_tokens) + 1;
        *ret_work = work;
        *ret_n = n;
    }
    return status;
}

static kvt_status check_tokens(const kvt_lease *lease, size_t first_token, size_t n_tokens) {
    size_t from = (size_t)lease->first_page[0] * lease->client->geometry.page_tokens;
    if (n_tokens > 0 && first_token < from)
        return kvt_error(KVT_EINVAL, "token %zu: the window is held from token %zu on", first_token,
                         from);
    if (first_token <= lease->held_tokens && n_tokens <= lease->held_tokens - first_token)
        return kvt_view_has(lease, first_token, n_tokens);
    return kvt_error(KVT_EINVAL, "tokens %zu and %zu on; the lease holds %u", first_token, n_tokens,
                     lease->held_tokens);
}

kvt_status kvt_decode_device(kvt_lease *lease, size_t first_token, size_t n_tokens,
                             uint32_t first_layer, uint32_t n_layers, const kvt_layout *to,
                             const kvt_block_table *blocks, void *stream) {
    char why[WHY_BYTES] = "";
    uint32_t n;
    kvt_device_work *work = NULL;
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    uint32_t layers = lease->client->geometry.n_layers;
    status = kvt_lease_catch_up(lease);
    if (status == KVT_OK)
        status = check_arena(lease);
    if (status == KVT_OK)
        status = check_tokens(lease, first_token, n_tokens);
    if (status == KVT_OK && (first_layer > layers || n_layers > layers - first_layer))
        status = kvt_error(KVT_EINVAL, "layers %u and %u on; the geometry has %u", first_layer,
                           n_layers, layers);
    if (status == KVT_OK)
        status = check_call(lease, "to", to, n_layers, n_tokens, blocks, stream);
    if (status == KVT_OK && n_tokens > 0 && n_layers > 0)
        status = kvt_layout_check_parts("to", to);
    if (status == KVT_OK && blocks)
        status = kvt_layout_check_table(
            "to", to, &(kvt_layout_blocks){blocks, first_token, first_token + n_tokens});
    if (status == KVT_OK && n_tokens > 0 && n_layers > 0)
        status = plan_tokens(lease, first_token, n_tokens, to, n_layers, blocks, stream, &n, &work);
    if (work) {
        status = work->calls->decode(work->batch, first_layer, n_layers, to, why, sizeof why);
        if (status != KVT_OK)
            kvt_error(status, "%s", why);
    }
    kvt_client_leave(lease->client);
    return status;
}

kvt_status kvt_pages_device(kvt_lease *lease, size_t first_token, size_t n_tokens, void *stream,
                            kvt_device_pages *ret_pages) {
    kvt_device_pages pages = {0};
    kvt_device_work *work = NULL;
    if (!ret_pages)
        return kvt_error(KVT_EINVAL, "ret_pages is NULL");
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    status = kvt_lease_catch_up(lease);
    if (status == KVT_OK)
        status = check_arena(lease);
    if (status == KVT_OK) {
        char why[WHY_BYTES] = "";
        status = lease->arena->calls->check_stream(lease->arena->gpu, stream, 1, why, sizeof why);
        if (status != KVT_OK)
            kvt_error(status, "%s", why);
    }
    if (status == KVT_OK)
        status = check_tokens(lease, first_token, n_tokens);
    if (status == KVT_OK && n_tokens > 0)
        status =
            plan_tokens(lease, first_token, n_tokens, NULL, 0, NULL, stream, &pages.n_pages, &work);
    if (work)
        pages.pages = work->calls->pages(work->batch);
    pages.shape = &lease->client->shapes[0];
    if (status == KVT_OK)
        *ret_pages = pages;
    kvt_client_leave(lease->client);
    return status;
}

/* --- encode -------------------------------------------------------------------------------------
 */

typedef struct encode_call {
    kvt_lease *lease;
    uint32_t first_page, n; /* pages that are encoded; others are held already */
    kvt_encoded *encoded;
    kvt_cuda_order *orders;
    uint64_t *blocks; /* the blocks of the call's tokens, as tokens of the layout */
} encode_call;

/* The pages of the call that are not held, in order, each with a slot. */
static kvt_status take_slots(encode_call *e, size_t n_pages) {
    kvt_lease *lease = e->lease;
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < n_pages && status == KVT_OK; i++) {
        uint32_t n_rows;
        kvt_encoded *encoded = &e->encoded[e->n];
        status = kvt_lease_may_encode(lease, e->first_page + i, &n_rows);
        if (status != KVT_OK || n_rows == 0)
            continue;
        if (e->n == 0)
            status = kvt_staging_need_area(lease->client, lease->epoch);
        if (status == KVT_OK)
            status =
                kvt_staging_take(lease->client, lease->epoch, &encoded->staging, &encoded->slot);
        if (status != KVT_OK)
            continue;
        encoded->page = e->first_page + (uint32_t)i;
        e->orders[e->n++].rows = n_rows;
        if (!kvt_staging_area(encoded->staging) || encoded->staging != e->encoded[0].staging)
            status = kvt_error_plain(KVT_ESTALE); /* the session ended during the call */
    }
    return status;
}

/* first_token: of the layout or, in terms of the path, of the block table's part. */
static kvt_status fill_orders(encode_call *e, size_t first_token) {
    const kvt_lease *lease = e->lease;
    uint32_t page_tokens = lease->client->geometry.page_tokens;
    for (uint32_t i = 0; i < e->n; i++) {
        kvt_cuda_order *o = &e->orders[i];
        const kvt_encoded *encoded = &e->encoded[i];
        size_t at = (size_t)encoded->page * page_tokens;
        o->to_offset = kvt_staging_offset(encoded->staging, encoded->slot);
        o->token = at - first_token;
        o->is_first = encoded->page == 0;
        if (lease->held_tokens <= at)
            continue;
        const kvt_wire_page *page = kvt_lease_page(lease, encoded->page, 0);
        uint32_t held = lease->held_tokens - (uint32_t)at;
        if (!kvt_arena_is_fresh(lease->arena, page))
            return kvt_error_plain(KVT_ESTALE);
        o->keep_rows = held < o->rows ? held : o->rows;
        o->keep_offset = page->offset;
        o->keep_bytes = page->bytes;
    }
    return KVT_OK;
}

/* The part of the block table that the call's tokens are in. */
static kvt_cuda_blocks part_of(encode_call *e, const kvt_block_table *table, size_t first_token,
                               size_t end_token) {
    size_t first = first_token / table->block_tokens;
    size_t end = (end_token + table->block_tokens - 1) / table->block_tokens;
    for (size_t i = first; i < end; i++)
        e->blocks[i - first] = kvt_layout_block(table, i);
    return (kvt_cuda_blocks){
        .n = (uint32_t)(end - first), .block_rows = table->block_tokens, .tokens = e->blocks};
}

static kvt_status launch(encode_call *e, const kvt_layout *from, const kvt_block_table *table,
                         void *stream) {
    char why[WHY_BYTES] = "";
    kvt_lease *lease = e->lease;
    kvt_device_work *work = NULL;
    kvt_cuda_blocks blocks;
    size_t page_tokens = lease->client->geometry.page_tokens;
    size_t first_token = e->first_page * page_tokens;
    if (table) {
        const kvt_encoded *last = &e->encoded[e->n - 1];
        size_t end_token = last->page * page_tokens + e->orders[e->n - 1].rows;
        kvt_status status = kvt_layout_check_table(
            "from", from, &(kvt_layout_blocks){table, first_token, end_token});
        if (status != KVT_OK)
            return status;
        blocks = part_of(e, table, first_token, end_token);
        first_token -= first_token % table->block_tokens;
    }
    kvt_status status = fill_orders(e, first_token);
    if (status == KVT_OK)
        status = add_work(lease, &work);
    if (status != KVT_OK)
        return status;
    status = work->calls->encode(lease->arena->gpu, &lease->client->shapes[0], e->orders, e->n,
                                 table ? &blocks : NULL, kvt_staging_area(e->encoded[0].staging),
                                 from, stream, why, sizeof why, &work->batch);
    if (status != KVT_OK) {
        remove_work(lease, work);
        return kvt_error(status, "%s", why);
    }
    work->n_pages = e->n;
    for (uint32_t i = 0; i < e->n; i++) {
        e->encoded[i].work = work;
        e->encoded[i].number = i;
    }
    return KVT_OK;
}

static kvt_status encode(encode_call *e, size_t n_pages, const kvt_layout *from,
                         const kvt_block_table *table, void *stream) {
    kvt_status status = take_slots(e, n_pages);
    if (status == KVT_OK)
        status = kvt_encoded_reserve(e->lease, e->n);
    if (status == KVT_OK && e->n > 0)
        status = launch(e, from, table, stream);
    for (uint32_t i = 0; i < e->n; i++) {
        if (status == KVT_OK)
            kvt_encoded_insert(e->lease, &e->encoded[i]);
        else
            kvt_staging_give(e->lease->client, e->encoded[i].staging, e->encoded[i].slot, 0);
    }
    return status;
}

static kvt_status encode_pages(kvt_lease *lease, size_t first_page, size_t n_pages,
                               const kvt_layout *from, const kvt_block_table *table, void *stream) {
    size_t page_tokens = lease->client->geometry.page_tokens;
    size_t n_blocks = table ? (n_pages * page_tokens) / table->block_tokens + 2 : 0;
    encode_call e = {.lease = lease, .first_page = (uint32_t)first_page};
    e.encoded = kvt_memory_get(n_pages * sizeof *e.encoded);
    e.orders = kvt_memory_get(n_pages * sizeof *e.orders);
    e.blocks = kvt_memory_get(n_blocks * sizeof *e.blocks);
    kvt_status status = KVT_ENOMEM;
    if (e.encoded && e.orders && e.blocks)
        status = encode(&e, n_pages, from, table, stream);
    else
        status = kvt_error_plain(status);
    free(e.encoded);
    free(e.orders);
    free(e.blocks);
    return status;
}

/* Of the pages; of those that the path does not have, none. */
static size_t tokens_of(const kvt_lease *lease, size_t first_page, size_t n_pages) {
    size_t page_tokens = lease->client->geometry.page_tokens;
    size_t first = first_page * page_tokens, end = (first_page + n_pages) * page_tokens;
    end = end < lease->n_tokens ? end : lease->n_tokens;
    return end > first ? end - first : 0;
}

kvt_status kvt_encode_device(kvt_lease *lease, size_t first_page, size_t n_pages,
                             const kvt_layout *from, const kvt_block_table *blocks, void *stream) {
    kvt_status status = kvt_lease_enter(lease);
    if (status != KVT_OK)
        return status;
    status = check_arena(lease);
    if (status == KVT_OK &&
        (first_page > KVT_MAX_REQUEST_TOKENS || n_pages > KVT_MAX_REQUEST_TOKENS))
        status =
            kvt_error(KVT_EINVAL, "pages %zu and %zu on: no path is so long", first_page, n_pages);
    if (status == KVT_OK)
        status = check_call(lease, "from", from, lease->client->geometry.n_layers,
                            tokens_of(lease, first_page, n_pages), blocks, stream);
    if (status == KVT_OK && n_pages > 0)
        status = encode_pages(lease, first_page, n_pages, from, blocks, stream);
    kvt_client_leave(lease->client);
    return status;
}

/* --- what came of it ----------------------------------------------------------------------------
 */

kvt_status kvt_sync(kvt_lease *lease) {
    kvt_status status = kvt_lease_enter_to_wait(lease);
    if (status != KVT_OK)
        return status;
    kvt_device_wait(lease);
    status = kvt_device_said(lease);
    kvt_client_leave(lease->client);
    return status;
}
