/*
 * Kernels over whole pages, and the functions that launch them (kernels.h).
 *
 * ENCODING is a chain of launches on one stream, since a grid cannot wait for itself: a segment is
 * coded, and only when all of it is done it is known whether a codec refused an element.
 *
 *     prepare   a warp a page    sizes, the header of a page whose rows are kept, room
 *     copy      some blocks      the kept rows, as encoded bytes
 *     encode    a block a slice  the new segment
 *     settle    a thread a page  refused? then the segment becomes raw16
 *     fallback  some blocks      the new segment once more, where it was refused
 *     sum       some blocks      checksum: sums of blocks
 *     finish    a warp a page    checksum: chain; header; result
 *
 * All blocks have one dimension of KVT_BLOCK_THREADS threads, or are one warp.
 */
#include <cuda_runtime.h>

#include "kernels/kernels.h"
#include "kernels/page_device.cuh"
#include "kernels/unit_encode.cuh"

enum {
    WARP = 32,
    MAX_GRID_Y = 65535,
    UNROLL = 4,      /* rows that a thread loads before it decodes the first: loads under way */
    FEW_BLOCKS = 16, /* a page, of kernels that mostly find nothing to do */
    SUM_BLOCKS = 64, /* a page */
};

/* A page being made. */
typedef struct page_job {
    kvt_cuda_page made; /* first: the checksum kernels take an array of pages with a stride */
    kvt_cuda_page kept; /* of the write's `keep`, if keep_rows > 0 */
    uint64_t room_bytes;
    uint32_t keep_rows;
    uint32_t rows;
    uint32_t refused; /* by the new segment's codecs */
    uint32_t saturated[KVT_PAGE_MAX_SEGMENTS];
    uint32_t segment_bytes[KVT_PAGE_MAX_SEGMENTS];
} page_job;

/* Where the elements of new rows come from: the worker's own KV, or encoded pages. */
typedef struct row_source {
    kvt_layout layout;
    const kvt_cuda_page *pages; /* NULL: layout */
} row_source;

/* Which unit a block works at. */
typedef struct unit_index {
    uint32_t layer;
    uint32_t part;
    uint32_t head;
} unit_index;

KVT_LANE uint8_t *row_at(const kvt_layout *layout, unit_index u, uint64_t token) {
    return (uint8_t *)layout->part[u.part] + u.layer * layout->layer_stride_bytes[u.part] +
           u.head * layout->head_stride_bytes[u.part] + token * layout->token_stride_bytes[u.part];
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

/* ------------------------------------------------------------------------------------------------
 * Encode: prepare
 * ---------------------------------------------------------------------------------------------- */

/* Adds a segment behind those that are there. False: no room. */
KVT_LANE int add_segment(const kvt_page_shape *shape, page_job *job, uint32_t rows, int raw) {
    kvt_cuda_page *made = &job->made;
    uint32_t i = made->n_segments++, offset = KVT_PAGE_HEADER_BYTES + made->payload_bytes;
    kvt_cuda_segment *segment = &made->segments[i];
    segment->first_row = made->rows;
    segment->rows = rows;
    uint64_t bytes =
        kvt_lane_place_segment(shape, made->ranges, made->n_ranges, raw, offset, segment);
    job->segment_bytes[i] = (uint32_t)bytes;
    job->saturated[i] = 0;
    made->raw_segments |= (uint32_t)raw << i;
    made->rows += rows;
    made->payload_bytes += (uint32_t)kvt_lane_pad64(bytes);
    return KVT_PAGE_HEADER_BYTES + (uint64_t)made->payload_bytes <= job->room_bytes;
}

/* The kept rows' segments, cut to keep_rows. */
KVT_LANE uint32_t keep_segments(const kvt_page_shape *shape, page_job *job,
                                const kvt_lane_header *header) {
    const kvt_cuda_page *kept = &job->kept;
    if (job->keep_rows > kept->rows)
        return KVT_EINVAL;
    for (uint32_t i = 0; i < KVT_PAGE_MAX_RANGES; i++)
        job->made.ranges[i] = kept->ranges[i];
    job->made.n_ranges = kept->n_ranges;
    for (uint32_t i = 0; job->made.rows < job->keep_rows; i++) {
        uint32_t wanted = job->keep_rows - job->made.rows, rows = kept->segments[i].rows;
        if (!add_segment(shape, job, wanted < rows ? wanted : rows, kept->raw_segments >> i & 1))
            return KVT_ELIMIT;
        job->saturated[i] = header->segments[i].saturated;
    }
    return KVT_OK;
}

/* May this page be encoded anew? */
KVT_LANE uint32_t check_source(const kvt_cuda_page *source, const kvt_cuda_write *write) {
    if (source->status != KVT_OK)
        return source->status;
    if (write->keep_rows != 0 || write->rows != source->n_rows)
        return KVT_EINVAL;
    for (uint32_t i = 0; i < source->n_ranges; i++) {
        for (uint32_t p = 0; p < 2; p++) {
            uint32_t codec = source->ranges[i].codec[p];
            if (codec != KVT_CODEC_RAW16 && codec != KVT_CODEC_I8K && codec != KVT_CODEC_I8V)
                return KVT_ENOTSUP;
        }
    }
    return KVT_OK;
}

KVT_LANE uint32_t prepare(const kvt_page_shape *shape, const kvt_cuda_write *write,
                          const kvt_cuda_page *source, const kvt_lane_header *header,
                          uint32_t keep_status, page_job *job) {
    kvt_cuda_page *made = &job->made;
    made->page = (const uint8_t *)write->page;
    made->token = write->token;
    made->rows = made->n_segments = made->raw_segments = made->payload_bytes = 0;
    made->n_ranges = shape->n_ranges;
    for (uint32_t i = 0; i < KVT_PAGE_MAX_RANGES; i++)
        made->ranges[i] = shape->ranges[i];
    job->room_bytes = write->room_bytes;
    job->keep_rows = write->keep_rows;
    job->rows = write->rows;
    job->refused = 0;
    if (write->rows < 1 || write->rows > shape->page_tokens || write->keep_rows > write->rows)
        return KVT_EINVAL;
    uint32_t status = source ? check_source(source, write) : (uint32_t)KVT_OK;
    if (status == KVT_OK && write->keep_rows > 0)
        status = keep_status == KVT_OK ? keep_segments(shape, job, header) : keep_status;
    if (status != KVT_OK || write->rows == write->keep_rows)
        return status;
    if (made->n_segments == KVT_PAGE_MAX_SEGMENTS)
        return KVT_ELIMIT;
    return add_segment(shape, job, write->rows - write->keep_rows, 0) ? KVT_OK : KVT_ELIMIT;
}

/* Zero bytes from a segment's end to the next multiple of 64; sizes of segments are multiples
 * of 16. */
KVT_LANE void write_segment_padding(const page_job *job, uint32_t i) {
    uint64_t bytes = job->segment_bytes[i];
    uint8_t *at = (uint8_t *)job->made.page + job->made.segments[i].layers_at[0];
    for (uint64_t b = bytes; b < kvt_lane_pad64(bytes); b += 16)
        *(uint4 *)(at + b) = make_uint4(0, 0, 0, 0);
}

/* One warp a page. */
static __global__ void __launch_bounds__(WARP)
    prepare_kernel(const __grid_constant__ kvt_page_shape shape, const kvt_cuda_write *writes,
                   const kvt_cuda_page *sources, page_job *jobs) {
    KVT_SHARED(shared);
    kvt_lane_header *header = (kvt_lane_header *)shared;
    const kvt_cuda_write *write = &writes[blockIdx.x];
    page_job *job = &jobs[blockIdx.x];
    uint32_t keep_status = KVT_OK;
    if (write->keep_rows > 0)
        keep_status =
            kvt_lane_open_page(&shape, write->keep, write->keep_bytes, header, &job->kept);
    if (threadIdx.x != 0)
        return;
    job->kept.page = (const uint8_t *)write->keep;
    job->made.status =
        prepare(&shape, write, sources ? &sources[blockIdx.x] : NULL, header, keep_status, job);
    for (uint32_t i = 0; i < job->made.n_segments && job->made.status == KVT_OK; i++)
        write_segment_padding(job, i);
}

/* ------------------------------------------------------------------------------------------------
 * Encode: copying kept rows
 * ---------------------------------------------------------------------------------------------- */

/* The first `bytes` bytes of `from`, then zeros up to a multiple of 16; by the block. */
KVT_LANE void copy_padded(const uint8_t *from, uint32_t bytes, uint8_t *to) {
    for (uint32_t at = 16 * threadIdx.x; at < bytes; at += 16 * KVT_BLOCK_THREADS) {
        uint4 v = *(const uint4 *)(from + at);
        uint32_t left = bytes - at;
        uint32_t word[4] = {v.x, v.y, v.z, v.w};
        for (uint32_t i = 0; i < 4 && left < 16; i++) {
            uint32_t keep = left > 4 * i ? left - 4 * i : 0;
            word[i] = keep >= 4 ? word[i] : word[i] & ((1u << 8 * keep) - 1);
        }
        *(uint4 *)(to + at) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* The leading rows of a unit: statistics of the channels and of these rows, then these codes. */
KVT_LANE void cut_unit(const kvt_lane_unit *from, const kvt_lane_unit *to, uint32_t rows) {
    const kvt_unit_layout *parts = &to->parts;
    copy_padded(from->at, parts->row_stats_offset + parts->row_stats_bytes * rows,
                (uint8_t *)to->at);
    copy_padded(from->at + from->parts.codes_offset, parts->row_code_bytes * rows,
                (uint8_t *)to->at + parts->codes_offset);
}

/* x: share of the page's units; y: page. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    copy_kernel(const __grid_constant__ kvt_page_shape shape, const page_job *jobs) {
    const page_job *job = &jobs[blockIdx.y];
    if (job->made.status != KVT_OK || job->keep_rows == 0)
        return;
    uint32_t heads = shape.n_kv_heads, n_units = shape.n_layers * 2 * heads;
    for (uint32_t s = 0; job->made.segments[s].first_row < job->keep_rows; s++) {
        for (uint32_t i = blockIdx.x; i < n_units; i += gridDim.x) {
            uint32_t layer = i / (2 * heads), part = i / heads % 2, head = i % heads;
            kvt_lane_unit from = kvt_lane_unit_of_page(&shape, &job->kept, s, layer, part, head);
            kvt_lane_unit to = kvt_lane_unit_of_page(&shape, &job->made, s, layer, part, head);
            cut_unit(&from, &to, job->made.segments[s].rows);
        }
        if (s + 1 == job->made.n_segments)
            break;
    }
}

/* ------------------------------------------------------------------------------------------------
 * Encode: the new segment
 * ---------------------------------------------------------------------------------------------- */

/* A group of the tile: row r of the slice. What a codec would refuse becomes 0, and is noted. */
KVT_LANE void put_tile(kvt_tile *tile, const kvt_slice *slice, uint32_t row, uint32_t in_slice,
                       uint4 elements, const kvt_lane_unit *unit, uint32_t dtype, kvt_seen *seen) {
    if (unit->codec != KVT_CODEC_RAW16 && kvt_group_refused(dtype, elements)) {
        seen->refused = 1;
        elements = make_uint4(0, 0, 0, 0);
    }
    tile->groups[row * slice->n_groups + in_slice] = elements;
}

/* From the worker's rows; `token` is the slice's first row. */
KVT_LANE void load_tile(const kvt_page_shape *shape, const kvt_layout *layout, unit_index u,
                        uint64_t token, const kvt_lane_unit *unit, const kvt_slice *slice,
                        kvt_tile *tile, kvt_seen *seen) {
    uint32_t rows_at_once = KVT_BLOCK_THREADS / slice->n_groups;
    uint32_t my_row = threadIdx.x / slice->n_groups, in_slice = threadIdx.x % slice->n_groups;
    uint32_t group = slice->first_group + in_slice, n = kvt_group_elements(unit->dim, group);
    if (my_row >= rows_at_once)
        return;
    for (uint32_t base = my_row; base < slice->n_rows; base += UNROLL * rows_at_once) {
        uint4 elements[UNROLL];
        KVT_UNROLL
        for (uint32_t i = 0; i < UNROLL; i++) {
            uint32_t row = base + i * rows_at_once;
            if (row < slice->n_rows)
                elements[i] = kvt_lane_load_elements(
                    row_at(layout, u, token + row) + 2 * KVT_GROUP * group, n);
        }
        KVT_UNROLL
        for (uint32_t i = 0; i < UNROLL; i++) {
            uint32_t row = base + i * rows_at_once;
            if (row < slice->n_rows)
                put_tile(tile, slice, row, in_slice, elements[i], unit, shape->dtype, seen);
        }
    }
}

/* From a page's rows; first_row is the slice's first, counted in the page. */
KVT_LANE void load_tile_of_page(const kvt_page_shape *shape, const kvt_cuda_page *page,
                                unit_index u, uint32_t first_row, const kvt_lane_unit *unit,
                                const kvt_slice *slice, kvt_tile *tile, kvt_seen *seen) {
    for (uint32_t s = 0; s < page->n_segments; s++) {
        const kvt_cuda_segment *segment = &page->segments[s];
        uint32_t segment_end = segment->first_row + segment->rows, end = first_row + slice->n_rows;
        uint32_t first = first_row > segment->first_row ? first_row : segment->first_row;
        end = end < segment_end ? end : segment_end;
        if (first >= end)
            continue;
        kvt_lane_unit from = kvt_lane_unit_of_page(shape, page, s, u.layer, u.part, u.head);
        for (uint32_t i = threadIdx.x; i < (end - first) * slice->n_groups;
             i += KVT_BLOCK_THREADS) {
            uint32_t row = first + i / slice->n_groups, in_slice = i % slice->n_groups;
            uint32_t group = slice->first_group + in_slice;
            kvt_lane_codes codes = kvt_lane_load(&from, row - segment->first_row, group);
            kvt_lane_channels channels = kvt_lane_load_channels(&from, group);
            uint4 elements =
                kvt_lane_decode_elements(&from, shape->dtype, group, &channels, &codes);
            uint32_t n = kvt_group_elements(from.dim, group), word[4];
            for (uint32_t w = 0; w < 4; w++) /* what lies beyond the row is no element */
                word[w] = 2 * w < n ? kvt_lane_word(elements, w) : 0;
            put_tile(tile, slice, row - first_row, in_slice,
                     make_uint4(word[0], word[1], word[2], word[3]), unit, shape->dtype, seen);
        }
    }
}

/* One slice of one unit of the page's last segment. */
KVT_LANE void encode_unit_slice(const kvt_page_shape *shape, const page_job *job,
                                const row_source *source, unit_index u, uint32_t slice_number,
                                uint32_t n_slices, kvt_tile *tile, kvt_seen *seen) {
    uint32_t s = job->made.n_segments - 1, rows = job->made.segments[s].rows;
    kvt_lane_unit unit = kvt_lane_unit_of_page(shape, &job->made, s, u.layer, u.part, u.head);
    kvt_slice slice = kvt_slice_of(unit.codec, unit.dim, rows, slice_number, n_slices);
    if (slice.n_rows == 0 || slice.n_groups == 0)
        return;
    uint32_t first_row = job->made.segments[s].first_row + slice.first_row;
    if (source->pages) {
        const kvt_cuda_page *page = &source->pages[blockIdx.y];
        load_tile_of_page(shape, page, u, page->first_row + first_row, &unit, &slice, tile, seen);
    } else {
        load_tile(shape, &source->layout, u, job->made.token + first_row, &unit, &slice, tile,
                  seen);
    }
    __syncthreads();
    kvt_encode_slice(&unit, shape->dtype, rows, tile, &slice, (uint8_t *)unit.at, seen);
}

/* x: slice of a unit of a layer and head; y: page; z: part. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    encode_kernel(const __grid_constant__ kvt_page_shape shape, uint32_t n_slices,
                  const __grid_constant__ row_source source, page_job *jobs) {
    KVT_SHARED(shared);
    page_job *job = &jobs[blockIdx.y];
    if (job->made.status != KVT_OK || job->rows == job->keep_rows)
        return;
    uint32_t unit_number = blockIdx.x / n_slices;
    unit_index u = {unit_number / shape.n_kv_heads, blockIdx.z, unit_number % shape.n_kv_heads};
    kvt_seen seen = {0, 0};
    encode_unit_slice(&shape, job, &source, u, blockIdx.x % n_slices, n_slices, (kvt_tile *)shared,
                      &seen);
    uint32_t saturated = __reduce_add_sync(KVT_ALL_LANES, seen.saturated);
    int refused = __any_sync(KVT_ALL_LANES, seen.refused);
    if (threadIdx.x % WARP != 0)
        return;
    if (saturated)
        atomicAdd(&job->saturated[job->made.n_segments - 1], saturated);
    if (refused)
        atomicOr(&job->refused, 1u);
}

/* One thread a page: a refused segment is placed anew, raw. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    settle_kernel(const __grid_constant__ kvt_page_shape shape, uint32_t n_jobs, page_job *jobs) {
    uint32_t i = blockIdx.x * KVT_BLOCK_THREADS + threadIdx.x;
    if (i >= n_jobs || jobs[i].made.status != KVT_OK || !jobs[i].refused)
        return;
    page_job *job = &jobs[i];
    uint32_t s = --job->made.n_segments, rows = job->made.segments[s].rows;
    job->made.rows -= rows;
    job->made.payload_bytes -= (uint32_t)kvt_lane_pad64(job->segment_bytes[s]);
    if (!add_segment(&shape, job, rows, 1))
        job->made.status = KVT_ELIMIT;
    else
        write_segment_padding(job, s);
}

/* x: share of the page's slices; y: page. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    fallback_kernel(const __grid_constant__ kvt_page_shape shape, uint32_t n_slices,
                    const __grid_constant__ row_source source, const page_job *jobs) {
    KVT_SHARED(shared);
    const page_job *job = &jobs[blockIdx.y];
    if (job->made.status != KVT_OK || !job->refused)
        return;
    uint32_t heads = shape.n_kv_heads, n_units = shape.n_layers * 2 * heads;
    for (uint32_t i = blockIdx.x; i < n_units * n_slices; i += gridDim.x) {
        uint32_t number = i / n_slices;
        unit_index u = {number / (2 * heads), number / heads % 2, number % heads};
        kvt_seen seen = {0, 0};
        encode_unit_slice(&shape, job, &source, u, i % n_slices, n_slices, (kvt_tile *)shared,
                          &seen);
        __syncthreads(); /* the tile is free again */
    }
}

/* ------------------------------------------------------------------------------------------------
 * Checksums
 * ---------------------------------------------------------------------------------------------- */

/* Element i of an array of pages, or of jobs, which begin with one. */
KVT_LANE kvt_cuda_page *page_of(void *pages, uint32_t stride_bytes, uint32_t i) {
    return (kvt_cuda_page *)((uint8_t *)pages + (uint64_t)i * stride_bytes);
}

/* x: share of the page's 1 KiB blocks, one a warp; y: page. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    sum_kernel(void *pages, uint32_t stride_bytes, uint64_t *sums, uint32_t max_blocks) {
    const kvt_cuda_page *page = page_of(pages, stride_bytes, blockIdx.y);
    uint32_t bytes = page->payload_bytes, n_blocks = kvt_xxh3_blocks(bytes);
    if (page->status != KVT_OK || bytes <= KVT_XXH3_SHORT_BYTES)
        return;
    const uint8_t *payload = page->page + KVT_PAGE_HEADER_BYTES;
    uint32_t warps = KVT_BLOCK_THREADS / WARP, lane = threadIdx.x % WARP;
    for (uint32_t b = blockIdx.x * warps + threadIdx.x / WARP; b < n_blocks;
         b += gridDim.x * warps) {
        uint64_t sum[2];
        kvt_xxh3_block_sum(payload, bytes, b, sum);
        uint64_t *to = sums + ((uint64_t)blockIdx.y * max_blocks + b) * KVT_XXH3_LANES + 2 * lane;
        if (lane < KVT_XXH3_LANES / 2)
            *(uint4 *)to = make_uint4((uint32_t)sum[0], (uint32_t)(sum[0] >> 32), (uint32_t)sum[1],
                                      (uint32_t)(sum[1] >> 32));
    }
}

/* By a warp; all its lanes return the hash. */
KVT_LANE uint64_t payload_hash(const kvt_cuda_page *page, const uint64_t *sums) {
    const uint8_t *payload = page->page + KVT_PAGE_HEADER_BYTES;
    return page->payload_bytes <= KVT_XXH3_SHORT_BYTES
               ? kvt_xxh3_short((const uint64_t *)payload, page->payload_bytes)
               : kvt_xxh3_chain(payload, page->payload_bytes, sums);
}

static __global__ void __launch_bounds__(WARP)
    verify_kernel(kvt_cuda_page *pages, const uint64_t *sums, uint32_t max_blocks,
                  uint32_t *ret_status) {
    kvt_cuda_page *page = &pages[blockIdx.x];
    if (page->status != KVT_OK)
        return;
    uint64_t hash = payload_hash(page, sums + (uint64_t)blockIdx.x * max_blocks * KVT_XXH3_LANES);
    __syncwarp(); /* every lane has looked at the status */
    if (threadIdx.x != 0 || hash == page->payload_hash)
        return;
    page->status = KVT_ECORRUPT;
    page->n_rows = 0;
    if (ret_status)
        atomicMax(ret_status, (uint32_t)KVT_ECORRUPT);
}

/* ------------------------------------------------------------------------------------------------
 * Encode: finish
 * ---------------------------------------------------------------------------------------------- */

KVT_LANE void fill_header(const kvt_page_shape *shape, const page_job *job, uint64_t hash,
                          kvt_lane_header *header) {
    const kvt_cuda_page *made = &job->made;
    for (uint32_t i = 0; i < KVT_PAGE_HEADER_BYTES / 8; i++)
        ((uint64_t *)header)[i] = 0;
    header->magic = KVT_LANE_MAGIC;
    header->version = KVT_PAGE_VERSION;
    header->header_bytes = KVT_PAGE_HEADER_BYTES;
    header->geometry_hash = shape->geometry_hash;
    header->payload_hash = hash;
    header->payload_bytes = made->payload_bytes;
    header->page_tokens = (uint16_t)shape->page_tokens;
    header->rows = (uint16_t)made->rows;
    header->kind = (uint8_t)shape->kind;
    header->dtype = (uint8_t)shape->dtype;
    header->n_ranges = (uint8_t)made->n_ranges;
    header->n_segments = (uint8_t)made->n_segments;
    header->n_layers = (uint16_t)shape->n_layers;
    header->n_kv_heads = (uint16_t)shape->n_kv_heads;
    for (uint32_t p = 0; p < 2; p++)
        header->head_dim[p] = (uint16_t)shape->head_dim[p];
    for (uint32_t i = 0; i < made->n_ranges; i++) {
        header->ranges[i].first_layer = made->ranges[i].first_layer;
        header->ranges[i].n_layers = made->ranges[i].n_layers;
        for (uint32_t p = 0; p < 2; p++) {
            header->ranges[i].codec[p] = made->ranges[i].codec[p];
            header->ranges[i].scale_bits[p] = kvt_float_bits(made->ranges[i].scale[p]);
        }
    }
    for (uint32_t i = 0; i < made->n_segments; i++) {
        header->segments[i].offset = made->segments[i].layers_at[0];
        header->segments[i].bytes = job->segment_bytes[i];
        header->segments[i].saturated = job->saturated[i];
        header->segments[i].first_row = (uint8_t)made->segments[i].first_row;
        header->segments[i].rows = (uint8_t)made->segments[i].rows;
        header->segments[i].flags = made->raw_segments >> i & 1 ? KVT_LANE_SEGMENT_RAW : 0;
    }
    header->header_hash = kvt_lane_header_hash(header);
}

/* One warp a page. */
static __global__ void __launch_bounds__(WARP)
    finish_kernel(const __grid_constant__ kvt_page_shape shape, const page_job *jobs,
                  const uint64_t *sums, uint32_t max_blocks, kvt_cuda_result *ret_results) {
    KVT_SHARED(shared);
    kvt_lane_header *header = (kvt_lane_header *)shared;
    const page_job *job = &jobs[blockIdx.x];
    uint32_t status = job->made.status;
    if (status == KVT_OK) {
        uint64_t hash =
            payload_hash(&job->made, sums + (uint64_t)blockIdx.x * max_blocks * KVT_XXH3_LANES);
        if (threadIdx.x == 0)
            fill_header(&shape, job, hash, header);
        __syncwarp();
        if (threadIdx.x < KVT_LANE_HEADER_VECTORS)
            ((uint4 *)job->made.page)[threadIdx.x] = ((const uint4 *)header)[threadIdx.x];
    }
    if (threadIdx.x == 0) {
        ret_results[blockIdx.x].status = status;
        ret_results[blockIdx.x].bytes =
            status == KVT_OK ? KVT_PAGE_HEADER_BYTES + job->made.payload_bytes : 0;
    }
}

/* ------------------------------------------------------------------------------------------------
 * Copying pages
 * ---------------------------------------------------------------------------------------------- */

/* x: share of the run; y: run. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    copy_runs_kernel(const kvt_cuda_copy_run *runs) {
    const uint4 *from = (const uint4 *)runs[blockIdx.y].from;
    uint4 *to = (uint4 *)runs[blockIdx.y].to;
    uint64_t n = runs[blockIdx.y].bytes / 16, step = (uint64_t)gridDim.x * KVT_BLOCK_THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * KVT_BLOCK_THREADS + threadIdx.x; i < n;
         i += UNROLL * step) {
        uint4 v[UNROLL];
        KVT_UNROLL
        for (uint32_t j = 0; j < UNROLL; j++) {
            if (i + j * step < n)
                v[j] = __ldcs(from + i + j * step);
        }
        KVT_UNROLL
        for (uint32_t j = 0; j < UNROLL; j++) {
            if (i + j * step < n)
                __stcs(to + i + j * step, v[j]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * Launching. Grids are cut where y would be over its limit.
 * ---------------------------------------------------------------------------------------------- */

static cudaLaunchConfig_t grid_of(dim3 grid, uint32_t threads, size_t shared_bytes, void *stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)stream;
    return config;
}

/* Blocks that a unit is cut into, to decode: so many that each has some hundred groups. */
static uint32_t decode_slices(const kvt_page_shape *shape) {
    uint32_t dim = shape->head_dim[shape->head_dim[1] > shape->head_dim[0]];
    uint32_t groups = kvt_groups_of(dim) * shape->page_tokens;
    return (groups + KVT_TILE_GROUPS - 1) / KVT_TILE_GROUPS;
}

static uint32_t at_most(uint32_t n, uint32_t most) {
    return n < most ? n : most;
}

/* Units of a page's segment. */
static uint32_t units_of(const kvt_page_shape *shape) {
    return shape->n_layers * shape->n_kv_heads * 2;
}

static uint32_t encode_slices(const kvt_page_shape *shape) {
    uint32_t a = kvt_slices_of(shape->head_dim[0], shape->page_tokens);
    uint32_t b = kvt_slices_of(shape->head_dim[1], shape->page_tokens);
    return a > b ? a : b;
}

/* 1 KiB blocks of the largest payload that any page of this geometry can have, whatever its codecs:
 * every unit of each segment at its largest. */
static uint32_t max_sum_blocks(const kvt_page_shape *shape) {
    uint64_t layer = 0;
    for (uint32_t p = 0; p < 2; p++) {
        uint32_t most = 0;
        for (uint32_t codec = 1; codec < KVT_N_CODECS; codec++) {
            uint32_t one = kvt_unit_layout_of(codec, shape->head_dim[p], 1).bytes;
            uint32_t all = kvt_unit_layout_of(codec, shape->head_dim[p], shape->page_tokens).bytes;
            uint32_t bytes = all + KVT_PAGE_MAX_SEGMENTS * one;
            most = bytes > most ? bytes : most;
        }
        layer += most;
    }
    uint64_t bytes = layer * shape->n_layers * shape->n_kv_heads + KVT_PAGE_MAX_SEGMENTS * 64;
    return (uint32_t)((bytes + KVT_XXH3_BLOCK_BYTES - 1) / KVT_XXH3_BLOCK_BYTES);
}

/* The workspace: jobs, then sums. */
typedef struct workspace {
    page_job *jobs;
    uint64_t *sums;
    uint32_t max_blocks;
} workspace;

static uint64_t job_bytes(uint32_t n_pages) {
    return ((uint64_t)n_pages * sizeof(page_job) + 63) / 64 * 64;
}

static workspace workspace_at(const kvt_page_shape *shape, uint32_t n_pages, void *at) {
    workspace w;
    w.jobs = (page_job *)at;
    w.sums = (uint64_t *)((uint8_t *)at + job_bytes(n_pages));
    w.max_blocks = max_sum_blocks(shape);
    return w;
}

extern "C" uint64_t kvt_cuda_workspace_bytes(const kvt_page_shape *shape, uint32_t n_pages) {
    return job_bytes(n_pages) +
           (uint64_t)n_pages * max_sum_blocks(shape) * KVT_XXH3_LANES * sizeof(uint64_t);
}

extern "C" int kvt_cuda_plan(const kvt_page_shape *shape, const kvt_cuda_read *reads,
                             uint32_t n_reads, kvt_cuda_page *ret_pages, uint32_t *ret_status,
                             void *stream) {
    if (n_reads == 0)
        return cudaSuccess;
    cudaLaunchConfig_t config = grid_of(dim3(n_reads), WARP, sizeof(kvt_lane_header), stream);
    return cudaLaunchKernelEx(&config, plan_kernel, *shape, reads, ret_pages, ret_status);
}

extern "C" int kvt_cuda_decode(const kvt_page_shape *shape, const kvt_cuda_page *pages,
                               uint32_t n_pages, uint32_t first_layer, uint32_t n_layers,
                               const kvt_layout *to, void *stream) {
    if (n_layers == 0)
        return cudaSuccess;
    if (first_layer > shape->n_layers || n_layers > shape->n_layers - first_layer)
        return cudaErrorInvalidValue;
    uint32_t n_slices = decode_slices(shape), x = n_layers * shape->n_kv_heads * n_slices;
    int error = cudaSuccess;
    for (uint32_t i = 0; i < n_pages && error == cudaSuccess; i += MAX_GRID_Y) {
        uint32_t n = at_most(n_pages - i, MAX_GRID_Y);
        cudaLaunchConfig_t config = grid_of(dim3(x, n, 2), KVT_BLOCK_THREADS, 0, stream);
        error = cudaLaunchKernelEx(&config, decode_kernel, *shape, pages + i, first_layer, n_slices,
                                   *to);
    }
    return error;
}

/* The sums of pages or jobs. */
static int launch_sums(void *pages, uint32_t stride_bytes, uint32_t n_pages, const workspace *w,
                       void *stream) {
    uint32_t warps = KVT_BLOCK_THREADS / WARP, x = (w->max_blocks + warps - 1) / warps;
    cudaLaunchConfig_t config =
        grid_of(dim3(at_most(x, SUM_BLOCKS), n_pages), KVT_BLOCK_THREADS, 0, stream);
    return cudaLaunchKernelEx(&config, sum_kernel, pages, stride_bytes, w->sums, w->max_blocks);
}

extern "C" int kvt_cuda_verify(const kvt_page_shape *shape, kvt_cuda_page *pages, uint32_t n_pages,
                               uint32_t *ret_status, void *at, void *stream) {
    if (n_pages > MAX_GRID_Y)
        return cudaErrorInvalidValue;
    if (n_pages == 0)
        return cudaSuccess;
    workspace w = workspace_at(shape, n_pages, at);
    int error = launch_sums(pages, sizeof *pages, n_pages, &w, stream);
    if (error != cudaSuccess)
        return error;
    cudaLaunchConfig_t config = grid_of(dim3(n_pages), WARP, 0, stream);
    return cudaLaunchKernelEx(&config, verify_kernel, pages, w.sums, w.max_blocks, ret_status);
}

/* The new segments: coded, and raw where they were refused. */
static int launch_new_segments(const kvt_page_shape *shape, uint32_t n, const row_source *source,
                               page_job *jobs, void *stream) {
    uint32_t n_slices = encode_slices(shape), x = shape->n_layers * shape->n_kv_heads * n_slices;
    cudaLaunchConfig_t config = grid_of(dim3(x, n, 2), KVT_BLOCK_THREADS, sizeof(kvt_tile), stream);
    int error = cudaLaunchKernelEx(&config, encode_kernel, *shape, n_slices, *source, jobs);
    if (error != cudaSuccess)
        return error;
    config = grid_of(dim3((n + KVT_BLOCK_THREADS - 1) / KVT_BLOCK_THREADS), KVT_BLOCK_THREADS, 0,
                     stream);
    error = cudaLaunchKernelEx(&config, settle_kernel, *shape, n, jobs);
    if (error != cudaSuccess)
        return error;
    config = grid_of(dim3(at_most(units_of(shape) * n_slices, FEW_BLOCKS), n), KVT_BLOCK_THREADS,
                     sizeof(kvt_tile), stream);
    return cudaLaunchKernelEx(&config, fallback_kernel, *shape, n_slices, *source, jobs);
}

/* One chain for encoding (from a layout) and transcoding (from pages). */
static int launch_chain(const kvt_page_shape *shape, const kvt_cuda_write *writes, uint32_t n,
                        const row_source *source, kvt_cuda_result *ret_results, void *at,
                        void *stream) {
    if (n > MAX_GRID_Y)
        return cudaErrorInvalidValue;
    if (n == 0)
        return cudaSuccess;
    workspace w = workspace_at(shape, n, at);
    cudaLaunchConfig_t config = grid_of(dim3(n), WARP, sizeof(kvt_lane_header), stream);
    int error = cudaLaunchKernelEx(&config, prepare_kernel, *shape, writes, source->pages, w.jobs);
    if (error == cudaSuccess && !source->pages) {
        config =
            grid_of(dim3(at_most(units_of(shape), FEW_BLOCKS), n), KVT_BLOCK_THREADS, 0, stream);
        error = cudaLaunchKernelEx(&config, copy_kernel, *shape, w.jobs);
    }
    if (error == cudaSuccess)
        error = launch_new_segments(shape, n, source, w.jobs, stream);
    if (error == cudaSuccess)
        error = launch_sums(w.jobs, sizeof *w.jobs, n, &w, stream);
    if (error != cudaSuccess)
        return error;
    config = grid_of(dim3(n), WARP, sizeof(kvt_lane_header), stream);
    return cudaLaunchKernelEx(&config, finish_kernel, *shape, w.jobs, w.sums, w.max_blocks,
                              ret_results);
}

extern "C" int kvt_cuda_encode(const kvt_page_shape *shape, const kvt_cuda_write *writes,
                               uint32_t n_writes, const kvt_layout *from,
                               kvt_cuda_result *ret_results, void *at, void *stream) {
    row_source source = {*from, NULL};
    return launch_chain(shape, writes, n_writes, &source, ret_results, at, stream);
}

extern "C" int kvt_cuda_transcode(const kvt_page_shape *shape, const kvt_cuda_page *pages,
                                  const kvt_cuda_write *writes, uint32_t n_writes,
                                  kvt_cuda_result *ret_results, void *at, void *stream) {
    row_source source = {};
    source.pages = pages;
    return launch_chain(shape, writes, n_writes, &source, ret_results, at, stream);
}

extern "C" int kvt_cuda_copy(const kvt_cuda_copy_run *runs, uint32_t n_runs, void *stream) {
    int error = cudaSuccess;
    for (uint32_t i = 0; i < n_runs && error == cudaSuccess; i += MAX_GRID_Y) {
        uint32_t n = at_most(n_runs - i, MAX_GRID_Y);
        cudaLaunchConfig_t config = grid_of(dim3(SUM_BLOCKS, n), KVT_BLOCK_THREADS, 0, stream);
        error = cudaLaunchKernelEx(&config, copy_runs_kernel, runs + i);
    }
    return error;
}

extern "C" const char *kvt_cuda_error_name(int error) {
    return cudaGetErrorName((cudaError_t)error);
}
