/* kernels_decode.cuh - kernels that read pages: plan and decode. Part of kernels.cu. */
#ifndef KVT_KERNELS_KERNELS_DECODE_CUH
#define KVT_KERNELS_KERNELS_DECODE_CUH

#include "kernels/page_device.cuh"
#include "kernels/unit_encode.cuh"

enum {
    WARP = 32,
    UNROLL = 4, /* rows that a thread loads before it works at the first: loads under way */
};

/* Which unit a block works at. */
typedef struct unit_index {
    uint32_t layer;
    uint32_t part;
    uint32_t head;
} unit_index;

KVT_LANE uint8_t *row_at(const kvt_layout *layout, unit_index u, uint64_t token) {
    uint8_t *at = (uint8_t *)layout->part[u.part] + u.layer * layout->layer_stride_bytes[u.part] +
                  u.head * layout->head_stride_bytes[u.part] +
                  token * layout->token_stride_bytes[u.part];
    KVT_GLOBAL(at);
    return at;
}

/* ------------------------------------------------------------------------------------------------
 * Plan
 * ---------------------------------------------------------------------------------------------- */

/* One warp a read. */
static __global__ void __launch_bounds__(WARP)
    plan_kernel(const __grid_constant__ kvt_page_shape shape, const kvt_cuda_read *reads,
                kvt_cuda_page *ret_pages, uint32_t *ret_status) {
    KVT_SHARED(shared);
    kvt_lane_header *header = (kvt_lane_header *)shared;
    const kvt_cuda_read *read = &reads[blockIdx.x];
    kvt_cuda_page *page = &ret_pages[blockIdx.x];
    uint32_t status = kvt_lane_open_page(&shape, read->page, read->page_bytes, header, page);
    if (threadIdx.x != 0)
        return;
    if (status == KVT_OK &&
        (read->first_row > page->rows || read->n_rows > page->rows - read->first_row))
        status = KVT_EINVAL;
    page->page = (const uint8_t *)read->page;
    page->token = read->token;
    page->first_row = read->first_row;
    page->n_rows = status == KVT_OK ? read->n_rows : 0;
    page->status = status;
    if (status != KVT_OK && ret_status)
        atomicMax(ret_status, status);
}

/* ------------------------------------------------------------------------------------------------
 * Decode
 * ---------------------------------------------------------------------------------------------- */

/* Rows of a unit from first_row on, by the block, to rows of the layout from `token` on. */
KVT_LANE void decode_rows(const kvt_lane_unit *unit, uint32_t dtype, uint32_t first_row,
                          uint32_t n_rows, const kvt_layout *to, unit_index u, uint64_t token) {
    uint32_t groups = kvt_lane_groups(unit->codec, unit->dim);
    uint32_t rows_at_once = KVT_BLOCK_THREADS / groups;
    uint32_t my_row = threadIdx.x / groups, group = threadIdx.x % groups;
    int idle = my_row >= rows_at_once;
    uint32_t n_elements =
        group < kvt_groups_of(unit->dim) ? kvt_group_elements(unit->dim, group) : 0;
    kvt_lane_channels channels = kvt_lane_load_channels(unit, group);
    for (uint32_t base = 0; base < n_rows; base += UNROLL * rows_at_once) {
        kvt_lane_codes codes[UNROLL];
        KVT_UNROLL
        for (uint32_t i = 0; i < UNROLL; i++) {
            uint32_t row = base + i * rows_at_once + my_row;
            codes[i].bits = make_uint4(0, 0, 0, 0);
            codes[i].scale = 0;
            if (!idle && row < n_rows)
                codes[i] = kvt_lane_load(unit, first_row + row, group);
        }
        KVT_UNROLL
        for (uint32_t i = 0; i < UNROLL; i++) {
            uint32_t row = base + i * rows_at_once + my_row;
            /* Every lane: a rotation is done by several together. */
            uint4 elements = kvt_lane_decode_elements(unit, dtype, group, &channels, &codes[i]);
            if (!idle && row < n_rows)
                kvt_lane_store(row_at(to, u, token + row) + 2 * KVT_GROUP * group, elements,
                               n_elements);
        }
    }
}

/* x: slice of a unit of a layer and head; y: page; z: part. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    decode_kernel(const __grid_constant__ kvt_page_shape shape, const kvt_cuda_page *pages,
                  uint32_t first_layer, uint32_t n_slices, const __grid_constant__ kvt_layout to) {
    const kvt_cuda_page *page = &pages[blockIdx.y];
    uint32_t slice = blockIdx.x % n_slices, unit_number = blockIdx.x / n_slices;
    unit_index u = {unit_number / shape.n_kv_heads, blockIdx.z, unit_number % shape.n_kv_heads};
    uint32_t each = (page->n_rows + n_slices - 1) / n_slices;
    uint32_t begin = page->first_row + slice * each, end = begin + each;
    uint32_t page_end = page->first_row + page->n_rows;
    end = end < page_end ? end : page_end;
    for (uint32_t s = 0; s < page->n_segments && begin < end; s++) {
        const kvt_cuda_segment *segment = &page->segments[s];
        uint32_t segment_end = segment->first_row + segment->rows;
        uint32_t first = begin > segment->first_row ? begin : segment->first_row;
        uint32_t last = end < segment_end ? end : segment_end;
        if (first >= last)
            continue;
        kvt_lane_unit unit =
            kvt_lane_unit_of_page(&shape, page, s, first_layer + u.layer, u.part, u.head);
        decode_rows(&unit, shape.dtype, first - segment->first_row, last - first, &to, u,
                    page->token + (first - page->first_row));
    }
}

#endif
