/* Geometries: filling in, checking, and the usual layouts of a worker's own KV. Pure. */
#include <string.h>

#include "kernels/page.h"
#include "kernels/say.h"

void kvt_geometry_init(kvt_geometry *ret_geometry, uint32_t n_layers, uint32_t n_kv_heads,
                       uint32_t head_dim, uint32_t page_tokens) {
    memset(ret_geometry, 0, sizeof *ret_geometry);
    ret_geometry->kind = KVT_KV;
    ret_geometry->dtype = KVT_F16;
    ret_geometry->n_layers = n_layers;
    ret_geometry->n_kv_heads = n_kv_heads;
    ret_geometry->head_dim[0] = head_dim;
    ret_geometry->head_dim[1] = head_dim;
    ret_geometry->page_tokens = page_tokens;
    ret_geometry->n_ranks = 1;
    ret_geometry->n_groups = 1;
    ret_geometry->groups[0].n_layers = n_layers;
}

typedef struct field_check {
    const char *name;
    uint32_t value;
    uint32_t max;
} field_check;

/* Every counted field: at least 1 (0 makes no sense), at most its limit. */
static kvt_status check_counts(const kvt_geometry *g, char *why, size_t why_bytes) {
    const field_check checks[] = {
        {"n_layers", g->n_layers, KVT_MAX_LAYERS},
        {"n_kv_heads", g->n_kv_heads, KVT_MAX_HEADS},
        {"head_dim[0]", g->head_dim[0], KVT_MAX_HEAD_DIM},
        {"head_dim[1]", g->head_dim[1], KVT_MAX_HEAD_DIM},
        {"n_ranks", g->n_ranks, KVT_MAX_RANKS},
        {"n_groups", g->n_groups, KVT_MAX_GROUPS},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        const field_check *c = &checks[i];
        if (c->value == 0)
            return kvt_say(why, why_bytes, KVT_EGEOMETRY, "%s is 0; 1 to %u is possible", c->name,
                           c->max);
        if (c->value > c->max)
            return kvt_say(why, why_bytes, KVT_ELIMIT, "%s is %u; 1 to %u is possible", c->name,
                           c->value, c->max);
    }
    return KVT_OK;
}

static kvt_status check_choices(const kvt_geometry *g, char *why, size_t why_bytes) {
    if (g->kind != KVT_KV && g->kind != KVT_MLA)
        return kvt_say(why, why_bytes, KVT_EGEOMETRY, "kind is %u; KVT_KV (1) or KVT_MLA (2)",
                       g->kind);
    if (g->dtype != KVT_F16 && g->dtype != KVT_BF16)
        return kvt_say(why, why_bytes, KVT_EGEOMETRY, "dtype is %u; KVT_F16 (1) or KVT_BF16 (2)",
                       g->dtype);
    if (g->kind == KVT_MLA && g->n_kv_heads != 1)
        return kvt_say(why, why_bytes, KVT_EGEOMETRY, "n_kv_heads is %u; 1 with KVT_MLA",
                       g->n_kv_heads);
    for (int p = 0; p < 2; p++) {
        if (g->head_dim[p] % 2 != 0)
            return kvt_say(why, why_bytes, KVT_EGEOMETRY, "head_dim[%d] is %u; it must be even", p,
                           g->head_dim[p]);
    }
    if (g->page_tokens != 16 && g->page_tokens != 32 && g->page_tokens != 64 &&
        g->page_tokens != 128)
        return kvt_say(why, why_bytes, KVT_EGEOMETRY,
                       "page_tokens is %u; 16, 32, 64 or 128 is possible", g->page_tokens);
    if (g->rank >= g->n_ranks)
        return kvt_say(why, why_bytes, KVT_EGEOMETRY, "rank is %u; 0 to %u is possible", g->rank,
                       g->n_ranks - 1);
    return KVT_OK;
}

static kvt_status check_groups(const kvt_geometry *g, char *why, size_t why_bytes) {
    uint64_t n_layers = 0;
    for (uint32_t i = 0; i < g->n_groups; i++) {
        uint32_t n = g->groups[i].n_layers;
        if (n == 0 || n > g->n_layers)
            return kvt_say(why, why_bytes, KVT_EGEOMETRY,
                           "groups[%u].n_layers is %u; 1 to %u (n_layers) is possible", i, n,
                           g->n_layers);
        uint64_t bytes =
            UINT64_C(2) * n * g->n_kv_heads * g->page_tokens * (g->head_dim[0] + g->head_dim[1]);
        if (bytes > KVT_PAGE_MAX_RAW_BYTES)
            return kvt_say(why, why_bytes, KVT_ELIMIT,
                           "a page of groups[%u] is %llu bytes; up to %llu is possible", i,
                           (unsigned long long)bytes, (unsigned long long)KVT_PAGE_MAX_RAW_BYTES);
        n_layers += n;
    }
    if (n_layers != g->n_layers)
        return kvt_say(why, why_bytes, KVT_EGEOMETRY, "n_layers is %u, but the groups have %llu",
                       g->n_layers, (unsigned long long)n_layers);
    return KVT_OK;
}

kvt_status kvt_geometry_check(const kvt_geometry *geometry, char *why, size_t why_bytes) {
    if (!geometry)
        return kvt_say(why, why_bytes, KVT_EINVAL, "the geometry is NULL");
    kvt_status status = check_counts(geometry, why, why_bytes);
    if (status == KVT_OK)
        status = check_choices(geometry, why, why_bytes);
    if (status == KVT_OK)
        status = check_groups(geometry, why, why_bytes);
    return status;
}

void kvt_layout_token_major(const kvt_geometry *geometry, size_t n_tokens, void *part0, void *part1,
                            kvt_layout *ret_layout) {
    for (int p = 0; p < 2; p++) {
        size_t row_bytes = 2 * (size_t)geometry->head_dim[p];
        ret_layout->part[p] = p == 0 ? part0 : part1;
        ret_layout->head_stride_bytes[p] = row_bytes;
        ret_layout->token_stride_bytes[p] = row_bytes * geometry->n_kv_heads;
        ret_layout->layer_stride_bytes[p] = ret_layout->token_stride_bytes[p] * n_tokens;
    }
}

void kvt_layout_head_major(const kvt_geometry *geometry, size_t n_tokens, void *part0, void *part1,
                           kvt_layout *ret_layout) {
    for (int p = 0; p < 2; p++) {
        size_t row_bytes = 2 * (size_t)geometry->head_dim[p];
        ret_layout->part[p] = p == 0 ? part0 : part1;
        ret_layout->token_stride_bytes[p] = row_bytes;
        ret_layout->head_stride_bytes[p] = row_bytes * n_tokens;
        ret_layout->layer_stride_bytes[p] = ret_layout->head_stride_bytes[p] * geometry->n_kv_heads;
    }
}
