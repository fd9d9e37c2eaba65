#include "tests/e2e/model.h"
#include "tests/e2e/gpu.h"

static size_t row_bytes(const model *m, int part) {
    const kvt_geometry *g = &m->realm.geometry;
    return (size_t)g->n_layers * g->n_kv_heads * g->head_dim[part] * sizeof *m->part[part];
}

void model_open(model *m, const e2e_daemon *d, const kvt_geometry *geometry, size_t max_tokens,
                uint32_t staging_pages) {
    kvt_options options = {.socket = d->socket,
                           .name = "model",
                           .timeout_ms = 20000,
                           .staging_pages = staging_pages,
                           .flags = KVT_OPEN_VERIFY};
    *m = (model){.realm = {.model = "a model", .geometry = *geometry}, .max_tokens = max_tokens};
    kvt_status status = kvt_open(&options, &m->realm, &m->client);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    oracle_init(&m->realm, &m->oracle);
    m->rows = calloc(max_tokens, sizeof *m->rows);
    CHECK(m->rows);
    for (int p = 0; p < 2; p++) {
        m->part[p] = calloc(max_tokens, row_bytes(m, p));
        CHECK(m->part[p]);
    }
}

void model_open_on_gpu(model *m, const e2e_daemon *d, const kvt_geometry *geometry,
                       size_t max_tokens, uint32_t staging_pages) {
    model_open(m, d, geometry, max_tokens, staging_pages);
    if (!e2e_on_gpu() || geometry->n_groups > 1)
        return;
    for (int p = 0; p < 2; p++)
        m->gpu_part[p] = gpu_memory(max_tokens * row_bytes(m, p));
    m->stream = gpu_stream();
}

void model_close(model *m) {
    kvt_close(m->client);
    free(m->rows);
    for (int p = 0; p < 2; p++) {
        free(m->part[p]);
        if (m->stream)
            gpu_free(m->gpu_part[p]);
    }
    if (m->stream)
        gpu_stream_free(m->stream);
}

static kvt_layout on_gpu(const model *m, const kvt_layout *layout) {
    kvt_layout moved = *layout;
    for (int p = 0; p < 2; p++)
        moved.part[p] = m->gpu_part[p];
    return moved;
}

/* What was on the GPU before is overwritten first: only what is decoded is right. */
static kvt_status decode_by_gpu(model *m, kvt_lease *lease, uint32_t first, size_t n,
                                const kvt_layout *layout) {
    kvt_layout to = on_gpu(m, layout);
    for (int p = 0; p < 2 && n > 0; p++)
        gpu_set(m->gpu_part[p], 0x5a, n * row_bytes(m, p), m->stream);
    kvt_status status =
        kvt_decode_device(lease, first, n, 0, m->realm.geometry.n_layers, &to, NULL, m->stream);
    if (status == KVT_OK)
        status = kvt_sync(lease);
    else
        GPU_CALL("cudaStreamSynchronize", (void *), m->stream);
    for (int p = 0; p < 2 && n > 0 && status == KVT_OK; p++)
        gpu_get(m->part[p], m->gpu_part[p], n * row_bytes(m, p));
    return status;
}

static kvt_status decode(model *m, kvt_lease *lease, uint32_t first, size_t n, uint32_t layer,
                         uint32_t n_layers, const kvt_layout *layout) {
    return m->stream ? decode_by_gpu(m, lease, first, n, layout)
                     : kvt_decode(lease, first, n, layer, n_layers, layout);
}

kvt_status model_read(model *m, kvt_lease *lease, const uint32_t *tokens) {
    const kvt_geometry *g = &m->realm.geometry;
    kvt_lease_info info;
    uint32_t layer = 0;
    kvt_lease_get(lease, &info);
    oracle_rows(&m->oracle, tokens, info.held_tokens, m->rows);
    for (uint32_t group = 0; group < g->n_groups; group++) {
        uint32_t first = info.first_token[group], n_layers = g->groups[group].n_layers;
        size_t n = info.held_tokens - first;
        kvt_layout layout;
        CHECK(g->groups[group].window || first == 0);
        kvt_layout_token_major(g, n, m->part[0], m->part[1], &layout);
        kvt_status status = decode(m, lease, first, n, layer, n_layers, &layout);
        if (status != KVT_OK)
            return status;
        uint64_t wrong = oracle_check(&m->oracle, m->rows + first, n, layer, n_layers, &layout);
        CHECK_MSG(wrong == 0, "%llu wrong bytes in group %u", (unsigned long long)wrong, group);
        layer += n_layers;
    }
    return KVT_OK;
}

/* The page's KV stands on the GPU only in the stream's order, and is gone behind the encoding. */
static kvt_status encode_by_gpu(model *m, kvt_lease *lease, size_t page, const kvt_layout *layout) {
    kvt_layout from = on_gpu(m, layout);
    uint32_t n = m->realm.geometry.page_tokens;
    for (int p = 0; p < 2; p++)
        gpu_put(m->gpu_part[p], m->part[p], n * row_bytes(m, p));
    kvt_status status = kvt_encode_device(lease, page, 1, &from, NULL, m->stream);
    for (int p = 0; p < 2 && status == KVT_OK; p++)
        gpu_set(m->gpu_part[p], 0x5a, n * row_bytes(m, p), m->stream);
    GPU_CALL("cudaStreamSynchronize", (void *), m->stream);
    return status;
}

static kvt_status encode_page(model *m, kvt_lease *lease, size_t page, uint32_t claimed, int late) {
    const kvt_geometry *g = &m->realm.geometry;
    size_t at = page * g->page_tokens, left = claimed - at;
    size_t n = left < g->page_tokens ? left : g->page_tokens;
    kvt_layout layout;
    kvt_layout_head_major(g, g->page_tokens, m->part[0], m->part[1], &layout);
    if (!late) {
        oracle_fill(&m->oracle, m->rows + at, n, 0, g->n_layers, &layout);
        return m->stream ? encode_by_gpu(m, lease, page, &layout)
                         : kvt_encode(lease, page, &layout);
    }
    kvt_status status = KVT_OK;
    uint32_t layer = 0;
    for (uint32_t group = 0; group < g->n_groups && status == KVT_OK; group++) {
        uint32_t window = g->groups[group].window, n_layers = g->groups[group].n_layers;
        oracle_fill(&m->oracle, m->rows + at, n, layer, n_layers, &layout);
        if (!window || at + g->page_tokens + window > claimed)
            status = kvt_encode_group(lease, page, group, &layout);
        layer += n_layers;
    }
    return status;
}

kvt_status model_fill(model *m, kvt_lease *lease, const uint32_t *tokens, size_t max_pages,
                      int late) {
    uint32_t page_tokens = m->realm.geometry.page_tokens;
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    oracle_rows(&m->oracle, tokens, info.claimed_tokens, m->rows);
    size_t page = info.held_tokens / page_tokens;
    for (; page * page_tokens < info.claimed_tokens && max_pages > 0; page++, max_pages--) {
        kvt_status status = encode_page(m, lease, page, info.claimed_tokens, late);
        if (status == KVT_EFULL) {
            status = kvt_seal(lease, NULL);
            if (status == KVT_OK)
                status = encode_page(m, lease, page, info.claimed_tokens, late);
        }
        if (status != KVT_OK)
            return status;
    }
    return kvt_seal(lease, NULL);
}

kvt_lease *model_acquire(model *m, const uint32_t *tokens, size_t n_tokens, uint32_t flags,
                         size_t held_tokens) {
    kvt_lease *lease;
    kvt_lease_info info;
    kvt_status status = kvt_acquire(m->client, tokens, n_tokens, flags, &lease);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.held_tokens, held_tokens);
    CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
    return lease;
}
