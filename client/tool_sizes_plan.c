/* tool_sizes_plan.c - the arithmetic of `kvtrunk sizes`. */
#include "client/tool_sizes.h"

#include "kernels/page.h"

#include <string.h>

enum {
    DISK_PAGE_BYTES = 4096,  /* LMDB keeps a large value in whole pages of its own */
    DISK_RECORD_BYTES = 512, /* of a page on disk beside tokens and payload: keys, realm, checksums,
                                and its share of the index */
    ARENA_STEP_BYTES = 1 << 20,
};

static uint64_t round_up(uint64_t n, uint64_t step) {
    return (n + step - 1) / step * step;
}

/* Pages that hold the last `window` of n_tokens tokens; all of them with window 0. */
static uint64_t pages_of_window(uint64_t n_tokens, uint32_t window, uint32_t page_tokens) {
    uint64_t end = (n_tokens + page_tokens - 1) / page_tokens;
    uint64_t first = window && n_tokens > window ? (n_tokens - window) / page_tokens : 0;
    return end - first;
}

/*
 * Frames of a size are cut from slabs, whose tails and rounding waste less than 4 % of the bytes;
 * the last slab of each size may have few frames in use: under a hundredth of a large arena, under
 * a MiB in a small one.
 */
static uint64_t arena_for(uint64_t bytes) {
    return round_up(bytes + bytes / 20 + ARENA_STEP_BYTES, ARENA_STEP_BYTES);
}

static uint64_t elements_of_token(const kvt_page_shape *shape) {
    return (uint64_t)shape->n_layers * shape->n_kv_heads *
           (shape->head_dim[0] + shape->head_dim[1]);
}

kvt_status sizes_make_plan(const kvt_geometry *geometry, const char *codec, uint64_t n_tokens,
                           char *why, size_t why_bytes, sizes_plan *ret_plan) {
    sizes_plan plan;
    uint64_t rows_bytes = 0, elements = 0, bytes = 0;
    uint32_t rows = geometry->page_tokens;
    memset(&plan, 0, sizeof plan);
    for (uint32_t i = 0; i < geometry->n_groups; i++) {
        kvt_page_shape shape;
        kvt_status status = kvt_page_shape_init(geometry, i, codec, why, why_bytes, &shape);
        if (status != KVT_OK)
            return status;
        sizes_group *group = &plan.groups[i];
        group->page_bytes = kvt_page_bytes(&shape, rows);
        group->pages = pages_of_window(n_tokens, geometry->groups[i].window, rows);
        rows_bytes += group->page_bytes;
        elements += elements_of_token(&shape);
        bytes += group->pages * group->page_bytes;
        plan.pages += group->pages;
        plan.disk_bytes +=
            group->pages *
            round_up(group->page_bytes + 4 * (uint64_t)rows + DISK_RECORD_BYTES, DISK_PAGE_BYTES);
    }
    plan.token_bytes = (double)rows_bytes / rows;
    plan.element_bits = 8 * plan.token_bytes / (double)elements;
    plan.arena_bytes = arena_for(bytes);
    *ret_plan = plan;
    return KVT_OK;
}
