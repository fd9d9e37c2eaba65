/*
 * page_device.cuh - a page's header on a GPU: the second reader and writer of what page_header.c
 * reads and writes, field by field the same (tests/cuda flips and forges every byte before both),
 * and the way from a checked page to its units.
 */
#ifndef KVT_KERNELS_PAGE_DEVICE_CUH
#define KVT_KERNELS_PAGE_DEVICE_CUH

#include "kernels/kernels.h"
#include "kernels/unit_device.cuh"
#include "kernels/xxh3.cuh"

/* The header as it lies in memory (FORMAT.md, Header); 192 bytes without gaps. */
typedef struct kvt_lane_header {
    uint32_t magic;
    uint16_t version;
    uint16_t header_bytes;
    uint64_t geometry_hash;
    uint64_t payload_hash;
    uint64_t header_hash;
    uint32_t payload_bytes;
    uint16_t page_tokens;
    uint16_t rows;
    uint8_t kind;
    uint8_t dtype;
    uint8_t n_ranges;
    uint8_t n_segments;
    uint16_t n_layers;
    uint16_t n_kv_heads;
    uint16_t head_dim[2];
    uint32_t zero[3];
    struct {
        uint16_t first_layer;
        uint16_t n_layers;
        uint8_t codec[2];
        uint16_t zero;
        uint32_t scale_bits[2];
    } ranges[KVT_PAGE_MAX_RANGES];
    struct {
        uint32_t offset;
        uint32_t bytes;
        uint32_t saturated;
        uint8_t first_row;
        uint8_t rows;
        uint8_t flags;
        uint8_t zero;
    } segments[KVT_PAGE_MAX_SEGMENTS];
} kvt_lane_header;
static_assert(sizeof(kvt_lane_header) == KVT_PAGE_HEADER_BYTES, "as FORMAT.md says");

enum {
    KVT_LANE_MAGIC = 0x5054564b, /* "KVTP" */
    KVT_LANE_SEGMENT_RAW = 1,
    KVT_LANE_HEADER_VECTORS = KVT_PAGE_HEADER_BYTES / 16,
    KVT_LANE_HEADER_HASH_WORD = 3, /* the header's 64-bit word that holds its own hash */
};

KVT_LANE uint64_t kvt_lane_pad64(uint64_t n) {
    return (n + (KVT_PAGE_ALIGN_BYTES - 1)) & ~(uint64_t)(KVT_PAGE_ALIGN_BYTES - 1);
}

/* ------------------------------------------------------------------------------------------------
 * Sizes
 * ---------------------------------------------------------------------------------------------- */

/* The codec of a part in a segment: the range's, or raw16 where the segment fell back. */
KVT_LANE uint32_t kvt_lane_codec_of(const kvt_codec_range *range, int raw, uint32_t part) {
    return raw ? (uint32_t)KVT_CODEC_RAW16 : range->codec[part];
}

KVT_LANE uint32_t kvt_lane_unit_bytes(const kvt_page_shape *shape, const kvt_codec_range *range,
                                      int raw, uint32_t part, uint32_t rows) {
    return kvt_unit_layout_of(kvt_lane_codec_of(range, raw, part), shape->head_dim[part], rows)
        .bytes;
}

KVT_LANE uint32_t kvt_lane_layer_bytes(const kvt_page_shape *shape, const kvt_codec_range *range,
                                       int raw, uint32_t rows) {
    return shape->n_kv_heads * (kvt_lane_unit_bytes(shape, range, raw, 0, rows) +
                                kvt_lane_unit_bytes(shape, range, raw, 1, rows));
}

/* Fills in where a segment that begins at `offset` has its ranges; returns the segment's bytes. */
KVT_LANE uint64_t kvt_lane_place_segment(const kvt_page_shape *shape, const kvt_codec_range *ranges,
                                         uint32_t n_ranges, int raw, uint32_t offset,
                                         kvt_cuda_segment *segment) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_ranges; i++) {
        segment->layers_at[i] = offset + (uint32_t)bytes;
        bytes += (uint64_t)ranges[i].n_layers *
                 kvt_lane_layer_bytes(shape, &ranges[i], raw, segment->rows);
    }
    return bytes;
}

/* The number of the range that holds the layer. */
KVT_LANE uint32_t kvt_lane_range_of(const kvt_codec_range *ranges, uint32_t n_ranges,
                                    uint32_t layer) {
    uint32_t i = 0;
    while (i + 1 < n_ranges && layer >= (uint32_t)ranges[i].first_layer + ranges[i].n_layers)
        i++;
    return i;
}

/* Offset in the page of a unit of a placed segment. */
KVT_LANE uint32_t kvt_lane_unit_offset(const kvt_page_shape *shape, const kvt_codec_range *ranges,
                                       uint32_t range, const kvt_cuda_segment *segment, int raw,
                                       uint32_t layer, uint32_t part, uint32_t head) {
    const kvt_codec_range *r = &ranges[range];
    uint32_t first = kvt_lane_unit_bytes(shape, r, raw, 0, segment->rows);
    uint32_t second = kvt_lane_unit_bytes(shape, r, raw, 1, segment->rows);
    uint32_t offset =
        segment->layers_at[range] + (layer - r->first_layer) * shape->n_kv_heads * (first + second);
    return offset + (part ? shape->n_kv_heads * first + head * second : head * first);
}

/* One unit of a page that kvt_cuda_plan found right. layer counts from the page's first. */
KVT_LANE kvt_lane_unit kvt_lane_unit_of_page(const kvt_page_shape *shape, const kvt_cuda_page *page,
                                             uint32_t segment, uint32_t layer, uint32_t part,
                                             uint32_t head) {
    const kvt_cuda_segment *s = &page->segments[segment];
    int raw = page->raw_segments >> segment & 1;
    uint32_t range = kvt_lane_range_of(page->ranges, page->n_ranges, layer);
    uint32_t offset = kvt_lane_unit_offset(shape, page->ranges, range, s, raw, layer, part, head);
    return kvt_lane_unit_at(page->page + offset, kvt_lane_codec_of(&page->ranges[range], raw, part),
                            shape->head_dim[part], s->rows, page->ranges[range].scale[part]);
}

/* ------------------------------------------------------------------------------------------------
 * Reading a header, by one lane, from a copy that nobody changes
 * ---------------------------------------------------------------------------------------------- */

/* The header's hash, with the field that holds it taken as zero. */
KVT_LANE uint64_t kvt_lane_header_hash(kvt_lane_header *header) {
    uint64_t stored = header->header_hash;
    header->header_hash = 0;
    uint64_t hash = kvt_xxh3_short((const uint64_t *)header, KVT_PAGE_HEADER_BYTES);
    header->header_hash = stored;
    return hash;
}

KVT_LANE int kvt_lane_same_shape(const kvt_page_shape *shape, const kvt_lane_header *header) {
    return header->geometry_hash == shape->geometry_hash && header->kind == shape->kind &&
           header->dtype == shape->dtype && header->n_layers == shape->n_layers &&
           header->n_kv_heads == shape->n_kv_heads && header->head_dim[0] == shape->head_dim[0] &&
           header->head_dim[1] == shape->head_dim[1] && header->page_tokens == shape->page_tokens;
}

/* As kvt_codec_fits. */
KVT_LANE int kvt_lane_codec_fits(uint32_t codec, uint32_t scale_bits, uint32_t kind,
                                 uint32_t part) {
    if (codec < 1 || codec >= KVT_N_CODECS)
        return 0;
    if (kind == KVT_MLA && part == 1 && kvt_lane_code_bits(codec) < 8)
        return 0;
    if (codec == KVT_CODEC_FP8S_E4M3 || codec == KVT_CODEC_FP8S_E5M2)
        return scale_bits >= 0x33800000u && scale_bits <= 0x4b800000u; /* 2^-24 .. 2^24 */
    return scale_bits == 0;
}

KVT_LANE int kvt_lane_read_ranges(const kvt_page_shape *shape, const kvt_lane_header *header,
                                  kvt_cuda_page *page) {
    if (header->n_ranges < 1 || header->n_ranges > KVT_PAGE_MAX_RANGES)
        return 0;
    uint32_t next_layer = 0;
    for (uint32_t i = 0; i < KVT_PAGE_MAX_RANGES; i++) {
        uint32_t layers = header->ranges[i].n_layers, zero = header->ranges[i].zero;
        kvt_codec_range *range = &page->ranges[i];
        range->first_layer = header->ranges[i].first_layer;
        range->n_layers = (uint16_t)layers;
        for (uint32_t p = 0; p < 2; p++) {
            uint32_t codec = header->ranges[i].codec[p];
            uint32_t scale_bits = header->ranges[i].scale_bits[p];
            range->codec[p] = (uint8_t)codec;
            range->scale[p] = kvt_float_of_bits(scale_bits);
            if (i < header->n_ranges && !kvt_lane_codec_fits(codec, scale_bits, shape->kind, p))
                return 0;
            zero |= i < header->n_ranges ? 0 : codec | scale_bits;
        }
        if (i >= header->n_ranges)
            zero |= layers | range->first_layer;
        else if (range->first_layer != next_layer || layers == 0)
            return 0;
        if (zero != 0)
            return 0;
        next_layer += layers;
    }
    page->n_ranges = header->n_ranges;
    return next_layer == shape->n_layers;
}

KVT_LANE int kvt_lane_read_segments(const kvt_page_shape *shape, const kvt_lane_header *header,
                                    kvt_cuda_page *page) {
    if (header->n_segments < 1 || header->n_segments > KVT_PAGE_MAX_SEGMENTS)
        return 0;
    uint32_t rows = 0, payload_bytes = 0;
    page->raw_segments = 0;
    for (uint32_t i = 0; i < KVT_PAGE_MAX_SEGMENTS; i++) {
        uint32_t offset = header->segments[i].offset, bytes = header->segments[i].bytes;
        uint32_t segment_rows = header->segments[i].rows, flags = header->segments[i].flags;
        uint32_t first_row = header->segments[i].first_row;
        if (header->segments[i].zero != 0)
            return 0;
        if (i >= header->n_segments) {
            if ((offset | bytes | header->segments[i].saturated | segment_rows | flags |
                 first_row) != 0)
                return 0;
            continue;
        }
        if (segment_rows < 1 || segment_rows > shape->page_tokens - rows || first_row != rows ||
            (flags & ~(uint32_t)KVT_LANE_SEGMENT_RAW) != 0)
            return 0;
        kvt_cuda_segment *segment = &page->segments[i];
        segment->first_row = first_row;
        segment->rows = segment_rows;
        int raw = flags & KVT_LANE_SEGMENT_RAW;
        uint32_t at = KVT_PAGE_HEADER_BYTES + payload_bytes;
        uint64_t should_be =
            kvt_lane_place_segment(shape, page->ranges, page->n_ranges, raw, at, segment);
        if (offset != at || bytes != (uint32_t)should_be)
            return 0;
        page->raw_segments |= (uint32_t)raw << i;
        rows += segment_rows;
        payload_bytes += (uint32_t)kvt_lane_pad64(should_be);
    }
    page->n_segments = header->n_segments;
    page->rows = rows;
    page->payload_bytes = payload_bytes;
    page->payload_hash = header->payload_hash;
    return header->rows == rows && header->payload_bytes == payload_bytes;
}

/* The same answer as kvt_page_header_read, in the same order of checks. `header` is a copy; fills
 * in *page apart from the read's own fields. Memory is in bounds, whatever the header holds. */
KVT_LANE uint32_t kvt_lane_read_header(const kvt_page_shape *shape, kvt_lane_header *header,
                                       uint64_t page_bytes, kvt_cuda_page *page) {
    if (header->magic != KVT_LANE_MAGIC)
        return KVT_ECORRUPT;
    if (header->version != KVT_PAGE_VERSION)
        return KVT_EVERSION;
    if (header->header_bytes != KVT_PAGE_HEADER_BYTES ||
        header->header_hash != kvt_lane_header_hash(header))
        return KVT_ECORRUPT;
    if (!kvt_lane_same_shape(shape, header))
        return KVT_EGEOMETRY;
    if ((header->zero[0] | header->zero[1] | header->zero[2]) != 0 ||
        !kvt_lane_read_ranges(shape, header, page) || !kvt_lane_read_segments(shape, header, page))
        return KVT_ECORRUPT;
    return page_bytes - KVT_PAGE_HEADER_BYTES < page->payload_bytes ? KVT_ECORRUPT : KVT_OK;
}

/*
 * The same from a page, by a warp: its first lanes copy the header to `header` (shared memory of
 * the warp), lane 0 reads. Only lane 0 returns the status.
 */
KVT_LANE uint32_t kvt_lane_open_page(const kvt_page_shape *shape, const void *at,
                                     uint64_t page_bytes, kvt_lane_header *header,
                                     kvt_cuda_page *page) {
    uint32_t lane = threadIdx.x % 32;
    if (page_bytes < KVT_PAGE_HEADER_BYTES)
        return KVT_ECORRUPT;
    if (lane < KVT_LANE_HEADER_VECTORS)
        ((uint4 *)header)[lane] = ((const uint4 *)at)[lane];
    __syncwarp();
    return lane == 0 ? kvt_lane_read_header(shape, header, page_bytes, page) : (uint32_t)KVT_OK;
}

#endif
