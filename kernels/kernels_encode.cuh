/*
 * kernels_encode.cuh - kernels that make pages. Part of kernels.cu.
 *
 * A page is made by a chain of launches on one stream, since a grid cannot wait for itself: a
 * segment is coded, and only when all of it is done it is known whether a codec refused an element.
 *
 *     prepare   a warp a page    sizes, the header of a page whose rows are kept, room
 *     copy      some blocks      the kept rows, as encoded bytes
 *     encode    a block a slice  the new segments: of a path's first page a raw one, then the coded
 *     settle    a thread a page  refused? then the coded segment becomes raw16
 *     fallback  some blocks      that segment once more, where it was refused
 *     sum       some blocks      checksum: sums of blocks (kernels_sum.cuh)
 *     finish    a warp a page    checksum: chain; header; result
 */
#ifndef KVT_KERNELS_KERNELS_ENCODE_CUH
#define KVT_KERNELS_KERNELS_ENCODE_CUH

#include "kernels/kernels_sum.cuh"

/* A page being made. */
typedef struct page_job {
    kvt_cuda_page made; /* first: the checksum kernels take an array of pages with a stride */
    kvt_cuda_page kept; /* of the write's `keep`, if keep_rows > 0 */
    uint64_t room_bytes;
    uint32_t keep_rows;
    uint32_t rows;
    uint32_t first_new; /* segments from here on are encoded, those in front of it copied */
    uint32_t refused;   /* by the codecs of the last one: the others are raw */
    uint32_t block_rows;
    const uint64_t *blocks; /* of the write */
    uint32_t saturated[KVT_PAGE_MAX_SEGMENTS];
    uint32_t segment_bytes[KVT_PAGE_MAX_SEGMENTS];
} page_job;

/* Where the elements of new rows come from: the worker's own KV, or encoded pages. */
typedef struct row_source {
    kvt_layout layout;
    const kvt_cuda_page *pages; /* NULL: layout */
} row_source;

/* ------------------------------------------------------------------------------------------------
 * Prepare
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

/* As loses_bits in page.c. */
KVT_LANE int loses_bits(const kvt_cuda_page *made) {
    for (uint32_t i = 0; i < made->n_ranges; i++) {
        for (uint32_t p = 0; p < 2; p++) {
            uint32_t codec = made->ranges[i].codec[p];
            if (codec != KVT_CODEC_RAW16 && codec != KVT_CODEC_FP8S_E4M3 &&
                codec != KVT_CODEC_FP8S_E5M2)
                return 1;
        }
    }
    return 0;
}

/* Adds segments for all rows that the page does not have yet, as write_rows in page.c. */
KVT_LANE uint32_t add_new_segments(const kvt_page_shape *shape, const kvt_cuda_write *write,
                                   page_job *job) {
    kvt_cuda_page *made = &job->made;
    uint32_t sink = write->is_first && loses_bits(made) ? KVT_PAGE_SINK_ROWS : 0;
    uint32_t raw_end = sink < write->rows ? sink : write->rows;
    while (made->rows < write->rows) {
        int raw = made->rows < raw_end;
        if (made->n_segments == KVT_PAGE_MAX_SEGMENTS && write->or_raw) {
            made->rows = made->n_segments = made->raw_segments = made->payload_bytes = 0;
            job->first_new = job->keep_rows = 0;
            return add_segment(shape, job, write->rows, 1) ? KVT_OK : KVT_ELIMIT;
        }
        if (made->n_segments == KVT_PAGE_MAX_SEGMENTS ||
            !add_segment(shape, job, (raw ? raw_end : write->rows) - made->rows, raw))
            return KVT_ELIMIT;
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
    job->first_new = job->refused = 0;
    job->block_rows = write->block_rows;
    job->blocks = write->blocks;
    if (write->rows < 1 || write->rows > shape->page_tokens || write->keep_rows > write->rows)
        return KVT_EINVAL;
    uint32_t status = source ? check_source(source, write) : (uint32_t)KVT_OK;
    if (status == KVT_OK && write->keep_rows > 0)
        status = keep_status == KVT_OK ? keep_segments(shape, job, header) : keep_status;
    job->first_new = made->n_segments;
    return status == KVT_OK ? add_new_segments(shape, write, job) : status;
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
 * Copying kept rows
 * ---------------------------------------------------------------------------------------------- */

/* The first `bytes` bytes of `from`, then zeros up to a multiple of 16; by the block. */
KVT_LANE void copy_padded(const uint8_t *from, uint32_t bytes, uint8_t *to) {
    KVT_GLOBAL(from);
    KVT_GLOBAL(to);
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
 * The new segments
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

/* Where a row of the page stands in the worker's layout. */
KVT_LANE uint64_t token_of(const page_job *job, uint32_t row) {
    uint64_t token = job->made.token + row;
    if (!job->blocks)
        return token;
    return job->blocks[token / job->block_rows] + token % job->block_rows;
}

/* From the worker's rows; first_row is the slice's first, counted in the page. */
KVT_LANE void load_tile(const kvt_page_shape *shape, const kvt_layout *layout, unit_index u,
                        const page_job *job, uint32_t first_row, const kvt_lane_unit *unit,
                        const kvt_slice *slice, kvt_tile *tile, kvt_seen *seen) {
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
                    row_at(layout, u, token_of(job, first_row + row)) + 2 * KVT_GROUP * group, n);
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

/* One slice of one unit of segment s. */
KVT_LANE void encode_unit_slice(const kvt_page_shape *shape, const page_job *job, uint32_t s,
                                const row_source *source, unit_index u, uint32_t slice_number,
                                uint32_t n_slices, kvt_tile *tile, kvt_seen *seen) {
    uint32_t rows = job->made.segments[s].rows;
    kvt_lane_unit unit = kvt_lane_unit_of_page(shape, &job->made, s, u.layer, u.part, u.head);
    kvt_slice slice = kvt_slice_of(unit.codec, unit.dim, rows, slice_number, n_slices);
    if (slice.n_rows == 0 || slice.n_groups == 0)
        return;
    uint32_t first_row = job->made.segments[s].first_row + slice.first_row;
    if (source->pages) {
        const kvt_cuda_page *page = &source->pages[blockIdx.y];
        load_tile_of_page(shape, page, u, page->first_row + first_row, &unit, &slice, tile, seen);
    } else {
        load_tile(shape, &source->layout, u, job, first_row, &unit, &slice, tile, seen);
    }
    __syncthreads();
    uint8_t *to = (uint8_t *)unit.at;
    KVT_GLOBAL(to);
    kvt_encode_slice(&unit, shape->dtype, rows, tile, &slice, to, seen);
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
    for (uint32_t s = job->first_new; s < job->made.n_segments; s++) {
        if (s > job->first_new)
            __syncthreads(); /* the tile of the segment before is done with */
        encode_unit_slice(&shape, job, s, &source, u, blockIdx.x % n_slices, n_slices,
                          (kvt_tile *)shared, &seen);
    }
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
        encode_unit_slice(&shape, job, job->made.n_segments - 1, &source, u, i % n_slices, n_slices,
                          (kvt_tile *)shared, &seen);
        __syncthreads(); /* the tile is free again */
    }
}

/* ------------------------------------------------------------------------------------------------
 * Finish
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

#endif
