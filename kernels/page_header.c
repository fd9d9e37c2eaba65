/* The 192 bytes in front of a page (FORMAT.md, Header). */
#include "kernels/page_header.h"

#include <stddef.h>
#include <string.h>

#include "client/assert.h"
#include "kernels/codec_set.h"
#include "kernels/hash.h"

/* The header as it lies in memory: every field is aligned, there are no gaps. */
typedef struct raw_range {
    uint16_t first_layer;
    uint16_t n_layers;
    uint8_t codec[2];
    uint16_t zero;
    float scale[2];
} raw_range;

typedef struct raw_segment {
    uint32_t offset;
    uint32_t bytes;
    uint32_t saturated;
    uint8_t first_row;
    uint8_t rows;
    uint8_t flags;
    uint8_t zero;
} raw_segment;

typedef struct raw_header {
    uint8_t magic[4];
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
    uint8_t zero[12];
    raw_range ranges[KVT_PAGE_MAX_RANGES];
    raw_segment segments[KVT_PAGE_MAX_SEGMENTS];
} raw_header;

_Static_assert(sizeof(raw_header) == KVT_PAGE_HEADER_BYTES, "the header has no gaps");
_Static_assert(offsetof(raw_header, ranges) == 64, "as FORMAT.md says");
_Static_assert(offsetof(raw_header, segments) == 128, "as FORMAT.md says");

enum { SEGMENT_RAW = 1 << 0 };

static const uint8_t magic[4] = {'K', 'V', 'T', 'P'};

static uint64_t header_hash(const raw_header *raw) {
    raw_header copy = *raw;
    copy.header_hash = 0;
    return kvt_hash(&copy, sizeof copy);
}

static int all_zero(const void *bytes, size_t n) {
    const uint8_t *b = bytes;
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++)
        any |= b[i];
    return any == 0;
}

kvt_range_list kvt_segment_ranges(const kvt_page_shape *shape, const kvt_page_header *header,
                                  const kvt_segment *segment) {
    return segment->raw ? kvt_raw_ranges(shape) : header->list;
}

void kvt_page_header_add(const kvt_page_shape *shape, kvt_page_header *header, uint32_t rows,
                         int raw) {
    KVT_ASSERT(header->n_segments < KVT_PAGE_MAX_SEGMENTS);
    kvt_segment *segment = &header->segments[header->n_segments++];
    segment->raw = raw;
    segment->rows = rows;
    segment->first_row = header->rows;
    segment->saturated = 0;
    segment->offset = KVT_PAGE_HEADER_BYTES + header->payload_bytes;
    kvt_range_list list = kvt_segment_ranges(shape, header, segment);
    segment->bytes = (uint32_t)kvt_segment_bytes(shape, &list, rows);
    header->rows += rows;
    header->payload_bytes += (uint32_t)kvt_pad64(segment->bytes);
}

/* Ranges in order, without gap or overlap, of codecs that may stand there; nothing behind them. */
static int read_ranges(const kvt_page_shape *shape, const raw_header *raw, kvt_range_list *list) {
    memset(list, 0, sizeof *list);
    if (raw->n_ranges < 1 || raw->n_ranges > KVT_PAGE_MAX_RANGES)
        return 0;
    uint32_t next_layer = 0;
    for (uint32_t i = 0; i < raw->n_ranges; i++) {
        const raw_range *from = &raw->ranges[i];
        if (from->first_layer != next_layer || from->n_layers == 0 || from->zero != 0)
            return 0;
        next_layer += from->n_layers;
        for (uint32_t p = 0; p < 2; p++) {
            if (!kvt_codec_fits(from->codec[p], from->scale[p], shape->kind, p))
                return 0;
        }
        kvt_codec_range *range = &list->ranges[i];
        range->first_layer = from->first_layer;
        range->n_layers = from->n_layers;
        memcpy(range->codec, from->codec, sizeof range->codec);
        memcpy(range->scale, from->scale, sizeof range->scale);
    }
    list->n_ranges = raw->n_ranges;
    return next_layer == shape->n_layers &&
           all_zero(&raw->ranges[raw->n_ranges],
                    (KVT_PAGE_MAX_RANGES - raw->n_ranges) * sizeof raw->ranges[0]);
}

/* The table is computed anew from rows and flags, and must say the same. */
static int read_segments(const kvt_page_shape *shape, const raw_header *raw,
                         kvt_page_header *header) {
    if (raw->n_segments < 1 || raw->n_segments > KVT_PAGE_MAX_SEGMENTS)
        return 0;
    for (uint32_t i = 0; i < raw->n_segments; i++) {
        const raw_segment *from = &raw->segments[i];
        if (from->rows < 1 || from->rows > shape->page_tokens - header->rows)
            return 0;
        if ((from->flags & ~SEGMENT_RAW) != 0 || from->zero != 0)
            return 0;
        kvt_page_header_add(shape, header, from->rows, from->flags & SEGMENT_RAW);
        kvt_segment *segment = &header->segments[i];
        segment->saturated = from->saturated;
        if (from->offset != segment->offset || from->bytes != segment->bytes ||
            from->first_row != segment->first_row)
            return 0;
    }
    return raw->rows == header->rows && raw->payload_bytes == header->payload_bytes &&
           all_zero(&raw->segments[raw->n_segments],
                    (KVT_PAGE_MAX_SEGMENTS - raw->n_segments) * sizeof raw->segments[0]);
}

static int same_shape(const kvt_page_shape *shape, const raw_header *raw) {
    return raw->geometry_hash == shape->geometry_hash && raw->kind == shape->kind &&
           raw->dtype == shape->dtype && raw->n_layers == shape->n_layers &&
           raw->n_kv_heads == shape->n_kv_heads && raw->head_dim[0] == shape->head_dim[0] &&
           raw->head_dim[1] == shape->head_dim[1] && raw->page_tokens == shape->page_tokens;
}

kvt_status kvt_page_header_read(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                                kvt_page_header *ret_header) {
    raw_header raw;
    if (page_bytes < sizeof raw)
        return KVT_ECORRUPT;
    memcpy(&raw, page, sizeof raw);
    if (memcmp(raw.magic, magic, sizeof magic) != 0)
        return KVT_ECORRUPT;
    if (raw.version != KVT_PAGE_VERSION) /* another version may hash another way */
        return KVT_EVERSION;
    if (raw.header_bytes != sizeof raw || raw.header_hash != header_hash(&raw))
        return KVT_ECORRUPT;
    if (!same_shape(shape, &raw))
        return KVT_EGEOMETRY;
    kvt_page_header header;
    memset(&header, 0, sizeof header);
    if (!all_zero(raw.zero, sizeof raw.zero) || !read_ranges(shape, &raw, &header.list) ||
        !read_segments(shape, &raw, &header))
        return KVT_ECORRUPT;
    if (page_bytes - sizeof raw < header.payload_bytes)
        return KVT_ECORRUPT;
    header.payload_hash = raw.payload_hash;
    *ret_header = header;
    return KVT_OK;
}

void kvt_page_header_write(const kvt_page_shape *shape, const kvt_page_header *header, void *page) {
    raw_header raw;
    memset(&raw, 0, sizeof raw);
    memcpy(raw.magic, magic, sizeof magic);
    raw.version = KVT_PAGE_VERSION;
    raw.header_bytes = sizeof raw;
    raw.geometry_hash = shape->geometry_hash;
    raw.payload_hash = header->payload_hash;
    raw.payload_bytes = header->payload_bytes;
    raw.page_tokens = (uint16_t)shape->page_tokens;
    raw.rows = (uint16_t)header->rows;
    raw.kind = (uint8_t)shape->kind;
    raw.dtype = (uint8_t)shape->dtype;
    raw.n_ranges = (uint8_t)header->list.n_ranges;
    raw.n_segments = (uint8_t)header->n_segments;
    raw.n_layers = (uint16_t)shape->n_layers;
    raw.n_kv_heads = (uint16_t)shape->n_kv_heads;
    for (int p = 0; p < 2; p++)
        raw.head_dim[p] = (uint16_t)shape->head_dim[p];
    for (uint32_t i = 0; i < header->list.n_ranges; i++) {
        const kvt_codec_range *range = &header->list.ranges[i];
        raw.ranges[i].first_layer = range->first_layer;
        raw.ranges[i].n_layers = range->n_layers;
        memcpy(raw.ranges[i].codec, range->codec, sizeof range->codec);
        memcpy(raw.ranges[i].scale, range->scale, sizeof range->scale);
    }
    for (uint32_t i = 0; i < header->n_segments; i++) {
        const kvt_segment *segment = &header->segments[i];
        raw.segments[i].offset = segment->offset;
        raw.segments[i].bytes = segment->bytes;
        raw.segments[i].saturated = segment->saturated;
        raw.segments[i].first_row = (uint8_t)segment->first_row;
        raw.segments[i].rows = (uint8_t)segment->rows;
        raw.segments[i].flags = segment->raw ? SEGMENT_RAW : 0;
    }
    raw.header_hash = header_hash(&raw);
    memcpy(page, &raw, sizeof raw);
}

void kvt_page_get(const void *page, kvt_page_info *ret_info) {
    raw_header raw;
    memcpy(&raw, page, sizeof raw);
    memset(ret_info, 0, sizeof *ret_info);
    ret_info->rows = raw.rows;
    ret_info->n_segments =
        raw.n_segments < KVT_PAGE_MAX_SEGMENTS ? raw.n_segments : KVT_PAGE_MAX_SEGMENTS;
    ret_info->raw = 1;
    uint64_t saturated = 0;
    for (uint32_t i = 0; i < ret_info->n_segments; i++) {
        ret_info->segment_rows[i] = raw.segments[i].rows;
        saturated += raw.segments[i].saturated;
        ret_info->raw &= raw.segments[i].flags & SEGMENT_RAW;
    }
    ret_info->saturated = saturated > UINT32_MAX ? UINT32_MAX : (uint32_t)saturated;
    ret_info->payload_hash = raw.payload_hash;
}
