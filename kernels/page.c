/* Encoding, checking and decoding whole pages. What the bytes mean is FORMAT.md; how one unit is
 * made is the business of the CPU path in use (cpu.h). */
#include "kernels/page.h"

#include <string.h>

#include "kernels/cpu.h"
#include "kernels/hash.h"
#include "kernels/page_header.h"

/* What is being written, and how far it is. */
typedef struct writer {
    const kvt_page_shape *shape;
    uint8_t *page;
    size_t page_bytes; /* room */
    kvt_page_header header;
    kvt_hash_sum
        sum; /* of the payload's segments but the last, and of that as far as it is written */
} writer;

static void writer_init(writer *w, const kvt_page_shape *shape, void *page, size_t page_bytes) {
    w->shape = shape;
    w->page = page;
    w->page_bytes = page_bytes;
    memset(&w->header, 0, sizeof w->header);
    kvt_hash_begin(&w->sum);
}

static int writer_has_room(const writer *w) {
    return w->page_bytes >= KVT_PAGE_HEADER_BYTES + (size_t)w->header.payload_bytes;
}

/* Zero bytes from the segment's end to the next multiple of 64; its bytes are in the sum. */
static void writer_end_segment(writer *w, const kvt_segment *segment) {
    uint8_t *end = w->page + segment->offset + segment->bytes;
    size_t n = kvt_pad64(segment->bytes) - segment->bytes;
    memset(end, 0, n);
    kvt_hash_add(&w->sum, end, n);
}

static void writer_end(writer *w, size_t *ret_bytes) {
    w->header.payload_hash = kvt_hash_end(&w->sum);
    kvt_page_header_write(w->shape, &w->header, w->page);
    *ret_bytes = KVT_PAGE_HEADER_BYTES + (size_t)w->header.payload_bytes;
}

static kvt_unit unit_of(const kvt_page_shape *shape, const kvt_codec_range *range, int part,
                        uint32_t rows) {
    kvt_unit unit = {
        .codec = range->codec[part],
        .dtype = shape->dtype,
        .dim = shape->head_dim[part],
        .rows = rows,
        .scale = range->scale[part],
    };
    return unit;
}

static int layout_makes_sense(const kvt_layout *layout) {
    return layout->part[0] && layout->part[1] && (uintptr_t)layout->part[0] % 2 == 0 &&
           (uintptr_t)layout->part[1] % 2 == 0;
}

/* First row of the segment, of one layer, head and part, in the worker's own memory. */
static uint8_t *row_at(const kvt_layout *layout, int part, size_t layer, size_t head, size_t row) {
    return (uint8_t *)layout->part[part] + layer * layout->layer_stride_bytes[part] +
           head * layout->head_stride_bytes[part] + row * layout->token_stride_bytes[part];
}

/* ------------------------------------------------------------------------------------------------
 * Encoding
 * ---------------------------------------------------------------------------------------------- */

/* Both parts of one layer at `to`. False: an element is refused. */
static bool encode_layer(writer *w, const kvt_codec_range *range, uint32_t layer,
                         kvt_segment *segment, const kvt_layout *from, uint8_t *to) {
    for (int p = 0; p < 2; p++) {
        kvt_unit unit = unit_of(w->shape, range, p, segment->rows);
        kvt_encode_unit *encode = kvt_cpu_encoder(unit.codec);
        size_t unit_bytes = kvt_unit_layout_of(unit.codec, unit.dim, unit.rows).bytes;
        for (uint32_t h = 0; h < w->shape->n_kv_heads; h++, to += unit_bytes) {
            const uint8_t *rows = row_at(from, p, layer, h, segment->first_row);
            if (!encode(&unit, rows, from->token_stride_bytes[p], to, &segment->saturated))
                return false;
            kvt_hash_add(&w->sum, to, unit_bytes);
        }
    }
    return true;
}

/* The segment that was added to the header last, layer by layer. */
static bool encode_segment(writer *w, const kvt_layout *from) {
    kvt_segment *segment = &w->header.segments[w->header.n_segments - 1];
    kvt_range_list list = kvt_segment_ranges(w->shape, &w->header, segment);
    uint8_t *to = w->page + segment->offset;
    for (uint32_t i = 0; i < list.n_ranges; i++) {
        const kvt_codec_range *range = &list.ranges[i];
        size_t layer_bytes = kvt_layer_bytes(w->shape, range, segment->rows);
        for (uint32_t l = 0; l < range->n_layers; l++, to += layer_bytes) {
            if (!encode_layer(w, range, range->first_layer + l, segment, from, to))
                return false;
        }
    }
    writer_end_segment(w, segment);
    return true;
}

/* Adds a segment of `rows` rows, coded if the codecs take every element, raw if not, or if raw. */
static kvt_status write_segment(writer *w, uint32_t rows, const kvt_layout *from, int raw) {
    kvt_page_header before = w->header;
    kvt_hash_sum sum_before = w->sum;
    if (before.n_segments == KVT_PAGE_MAX_SEGMENTS)
        return KVT_ELIMIT;
    for (; raw < 2; raw++) {
        w->header = before;
        w->sum = sum_before;
        kvt_page_header_add(w->shape, &w->header, rows, raw);
        if (!writer_has_room(w))
            return KVT_ELIMIT;
        if (encode_segment(w, from))
            return KVT_OK;
    }
    return KVT_EINTERNAL; /* raw16 refuses nothing */
}

/* Does some codec lose bits? fp8s does not: its elements are what the engine holds. */
static int loses_bits(const kvt_range_list *list) {
    for (uint32_t i = 0; i < list->n_ranges; i++)
        for (int p = 0; p < 2; p++) {
            uint8_t codec = list->ranges[i].codec[p];
            if (codec != KVT_CODEC_RAW16 && codec != KVT_CODEC_FP8S_E4M3 &&
                codec != KVT_CODEC_FP8S_E5M2)
                return 1;
        }
    return 0;
}

/* All rows up to `rows` that the page does not have yet: of a path's first page those that are
 * missing of its first KVT_PAGE_SINK_ROWS raw, all others coded. */
static kvt_status write_rows(writer *w, uint32_t rows, const kvt_layout *from, int is_first) {
    uint32_t sink = is_first && loses_bits(&w->header.list) ? KVT_PAGE_SINK_ROWS : 0;
    uint32_t raw_end = sink < rows ? sink : rows;
    kvt_status status = KVT_OK;
    if (w->header.rows < raw_end)
        status = write_segment(w, raw_end - w->header.rows, from, 1);
    if (status == KVT_OK && w->header.rows < rows)
        status = write_segment(w, rows - w->header.rows, from, 0);
    return status;
}

static kvt_status encode(const kvt_page_shape *shape, uint32_t rows, const kvt_layout *from,
                         int is_first, void *to, size_t to_bytes, size_t *ret_bytes) {
    if (rows < 1 || rows > shape->page_tokens || !layout_makes_sense(from))
        return KVT_EINVAL;
    writer w;
    writer_init(&w, shape, to, to_bytes);
    w.header.list = kvt_coded_ranges(shape);
    kvt_status status = write_rows(&w, rows, from, is_first);
    if (status == KVT_OK)
        writer_end(&w, ret_bytes);
    return status;
}

kvt_status kvt_page_encode(const kvt_page_shape *shape, uint32_t rows, const kvt_layout *from,
                           void *to, size_t to_bytes, size_t *ret_bytes) {
    return encode(shape, rows, from, 0, to, to_bytes, ret_bytes);
}

kvt_status kvt_page_encode_first(const kvt_page_shape *shape, uint32_t rows, const kvt_layout *from,
                                 void *to, size_t to_bytes, size_t *ret_bytes) {
    return encode(shape, rows, from, 1, to, to_bytes, ret_bytes);
}

size_t kvt_page_first_bytes(const kvt_page_shape *shape, uint32_t rows) {
    uint32_t raw_rows = rows < KVT_PAGE_SINK_ROWS ? rows : KVT_PAGE_SINK_ROWS;
    kvt_range_list list = kvt_coded_ranges(shape);
    if (!loses_bits(&list))
        return kvt_page_bytes(shape, rows);
    size_t bytes = kvt_page_raw_bytes(shape, raw_rows);
    return rows > raw_rows ? bytes + kvt_page_bytes(shape, rows - raw_rows) - KVT_PAGE_HEADER_BYTES
                           : bytes;
}

/* ------------------------------------------------------------------------------------------------
 * Copy-on-write
 * ---------------------------------------------------------------------------------------------- */

/* The leading to_rows rows of a unit as they are: statistics of the channels, then of the rows,
 * then codes, each padded anew. */
static void cut_unit(uint32_t codec, uint32_t dim, uint32_t from_rows, uint32_t to_rows,
                     const uint8_t *from, uint8_t *to) {
    kvt_unit_layout before = kvt_unit_layout_of(codec, dim, from_rows);
    kvt_unit_layout after = kvt_unit_layout_of(codec, dim, to_rows);
    uint32_t stats = after.row_stats_offset + after.row_stats_bytes * to_rows;
    uint32_t codes = after.row_code_bytes * to_rows;
    memcpy(to, from, stats);
    memset(to + stats, 0, after.codes_offset - stats);
    memcpy(to + after.codes_offset, from + before.codes_offset, codes);
    memset(to + after.codes_offset + codes, 0, after.bytes - after.codes_offset - codes);
}

static void cut_segment(writer *w, const kvt_segment *from_segment, const uint8_t *from) {
    const kvt_segment *segment = &w->header.segments[w->header.n_segments - 1];
    kvt_range_list list = kvt_segment_ranges(w->shape, &w->header, segment);
    uint8_t *to = w->page + segment->offset;
    for (uint32_t i = 0; i < list.n_ranges; i++) {
        const kvt_codec_range *range = &list.ranges[i];
        for (uint32_t l = 0; l < range->n_layers; l++) {
            for (int p = 0; p < 2; p++) {
                uint32_t codec = range->codec[p], dim = w->shape->head_dim[p];
                size_t from_bytes = kvt_unit_layout_of(codec, dim, from_segment->rows).bytes;
                size_t to_bytes = kvt_unit_layout_of(codec, dim, segment->rows).bytes;
                for (uint32_t h = 0; h < w->shape->n_kv_heads; h++) {
                    cut_unit(codec, dim, from_segment->rows, segment->rows, from, to);
                    from += from_bytes;
                    to += to_bytes;
                }
            }
        }
    }
}

/* Copies the leading `rows` rows of a segment as encoded bytes. */
static kvt_status copy_segment(writer *w, const uint8_t *page, const kvt_segment *from,
                               uint32_t rows) {
    kvt_page_header_add(w->shape, &w->header, rows, from->raw);
    if (!writer_has_room(w))
        return KVT_ELIMIT;
    kvt_segment *segment = &w->header.segments[w->header.n_segments - 1];
    segment->saturated = from->saturated;
    if (rows == from->rows)
        memcpy(w->page + segment->offset, page + from->offset, segment->bytes);
    else
        cut_segment(w, from, page + from->offset);
    kvt_hash_add(&w->sum, w->page + segment->offset, segment->bytes);
    writer_end_segment(w, segment);
    return KVT_OK;
}

kvt_status kvt_page_encode_cow(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                               uint32_t keep_rows, uint32_t rows, const kvt_layout *from,
                               int is_first, void *to, size_t to_bytes, size_t *ret_bytes) {
    if (keep_rows == 0)
        return encode(shape, rows, from, is_first, to, to_bytes, ret_bytes);
    if (rows < keep_rows || rows > shape->page_tokens ||
        (rows > keep_rows && !layout_makes_sense(from)))
        return KVT_EINVAL;
    kvt_page_header header;
    kvt_status status = kvt_page_header_read(shape, page, page_bytes, &header);
    if (status != KVT_OK)
        return status;
    if (keep_rows > header.rows)
        return KVT_EINVAL;
    writer w;
    writer_init(&w, shape, to, to_bytes);
    w.header.list = header.list; /* one page, one set of codecs: that of the rows that are kept */
    for (uint32_t i = 0; w.header.rows < keep_rows; i++) {
        const kvt_segment *segment = &header.segments[i];
        uint32_t wanted = keep_rows - w.header.rows;
        status = copy_segment(&w, page, segment, wanted < segment->rows ? wanted : segment->rows);
        if (status != KVT_OK)
            return status;
    }
    status = write_rows(&w, rows, from, is_first);
    if (status == KVT_OK)
        writer_end(&w, ret_bytes);
    return status;
}

kvt_status kvt_page_encode_raw(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                               uint32_t rows, const kvt_layout *from, void *to, size_t to_bytes,
                               size_t *ret_bytes) {
    if (rows < 1 || rows > shape->page_tokens || !layout_makes_sense(from))
        return KVT_EINVAL;
    kvt_page_header header;
    kvt_status status = kvt_page_header_read(shape, page, page_bytes, &header);
    if (status != KVT_OK)
        return status;
    writer w;
    writer_init(&w, shape, to, to_bytes);
    w.header.list = header.list;
    status = write_segment(&w, rows, from, 1);
    if (status == KVT_OK)
        writer_end(&w, ret_bytes);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * Checking and decoding
 * ---------------------------------------------------------------------------------------------- */

kvt_status kvt_page_check_begin(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                                kvt_page_checking *ret_checking) {
    kvt_page_header header;
    kvt_status status = kvt_page_header_read(shape, page, page_bytes, &header);
    if (status != KVT_OK)
        return status;
    ret_checking->page = page;
    ret_checking->summed = KVT_PAGE_HEADER_BYTES;
    ret_checking->payload_end = KVT_PAGE_HEADER_BYTES + (size_t)header.payload_bytes;
    ret_checking->payload_hash = header.payload_hash;
    ret_checking->rows = header.rows;
    kvt_hash_begin(&ret_checking->sum);
    return KVT_OK;
}

void kvt_page_check_to(kvt_page_checking *c, size_t end) {
    end = end < c->payload_end ? end : c->payload_end;
    if (end <= c->summed)
        return;
    kvt_hash_add(&c->sum, c->page + c->summed, end - c->summed);
    c->summed = end;
}

kvt_status kvt_page_check_end(kvt_page_checking *c, uint32_t *ret_rows) {
    kvt_page_check_to(c, c->payload_end);
    if (kvt_hash_end(&c->sum) != c->payload_hash)
        return KVT_ECORRUPT;
    *ret_rows = c->rows;
    return KVT_OK;
}

kvt_status kvt_page_check(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                          int verify, uint32_t *ret_rows) {
    kvt_page_header header;
    kvt_status status = kvt_page_header_read(shape, page, page_bytes, &header);
    if (status != KVT_OK)
        return status;
    const uint8_t *payload = (const uint8_t *)page + KVT_PAGE_HEADER_BYTES;
    if (verify && kvt_hash(payload, header.payload_bytes) != header.payload_hash)
        return KVT_ECORRUPT;
    *ret_rows = header.rows;
    return KVT_OK;
}

/* The rows that are wanted, and where they go. */
typedef struct reader {
    const kvt_page_shape *shape;
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t first_layer;
    uint32_t n_layers;
    const kvt_layout *to;
    kvt_page_checking *checking; /* NULL: the checksum is not looked at */
} reader;

/* One layer's units of a segment, at `from`: rows first .. first + n - 1 of the page. */
static void decode_layer(const reader *r, const kvt_codec_range *range, uint32_t layer,
                         const kvt_segment *segment, const uint8_t *from) {
    uint32_t segment_end = segment->first_row + segment->rows, end = r->first_row + r->n_rows;
    uint32_t first = segment->first_row > r->first_row ? segment->first_row : r->first_row;
    uint32_t n = (segment_end < end ? segment_end : end) - first;
    for (int p = 0; p < 2; p++) {
        kvt_unit unit = unit_of(r->shape, range, p, segment->rows);
        kvt_decode_unit *decode = kvt_cpu_decoder(unit.codec);
        size_t unit_bytes = kvt_unit_layout_of(unit.codec, unit.dim, unit.rows).bytes;
        for (uint32_t h = 0; h < r->shape->n_kv_heads; h++, from += unit_bytes) {
            uint8_t *to = row_at(r->to, p, layer - r->first_layer, h, first - r->first_row);
            decode(&unit, from, first - segment->first_row, n, to, r->to->token_stride_bytes[p]);
        }
    }
}

static void decode_segment(const reader *r, const kvt_range_list *list, const kvt_segment *segment,
                           const uint8_t *from) {
    uint32_t end = r->first_layer + r->n_layers;
    for (uint32_t i = 0; i < list->n_ranges; i++) {
        const kvt_codec_range *range = &list->ranges[i];
        size_t layer_bytes = kvt_layer_bytes(r->shape, range, segment->rows);
        for (uint32_t l = range->first_layer; l < (uint32_t)range->first_layer + range->n_layers;
             l++, from += layer_bytes) {
            if (l >= r->first_layer && l < end)
                decode_layer(r, range, l, segment, from);
            if (r->checking)
                kvt_page_check_to(r->checking, (size_t)(from + layer_bytes - r->checking->page));
        }
    }
}

static kvt_status decode(const reader *r, const uint8_t *page, size_t page_bytes) {
    uint32_t end = r->first_row + r->n_rows;
    kvt_page_header header;
    kvt_status status = kvt_page_header_read(r->shape, page, page_bytes, &header);
    if (status != KVT_OK)
        return status;
    if ((uint64_t)r->first_row + r->n_rows > header.rows ||
        (uint64_t)r->first_layer + r->n_layers > r->shape->n_layers || !layout_makes_sense(r->to))
        return KVT_EINVAL;
    for (uint32_t i = 0; i < header.n_segments; i++) {
        const kvt_segment *segment = &header.segments[i];
        if (segment->first_row >= end || segment->first_row + segment->rows <= r->first_row)
            continue;
        kvt_range_list list = kvt_segment_ranges(r->shape, &header, segment);
        decode_segment(r, &list, segment, page + segment->offset);
    }
    return KVT_OK;
}

kvt_status kvt_page_decode(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                           uint32_t first_row, uint32_t n_rows, uint32_t first_layer,
                           uint32_t n_layers, const kvt_layout *to) {
    reader r = {shape, first_row, n_rows, first_layer, n_layers, to, NULL};
    return decode(&r, page, page_bytes);
}

kvt_status kvt_page_decode_verified(const kvt_page_shape *shape, const void *page,
                                    size_t page_bytes, uint32_t first_row, uint32_t n_rows,
                                    uint32_t first_layer, uint32_t n_layers, const kvt_layout *to) {
    kvt_page_checking checking;
    uint32_t rows;
    kvt_status status = kvt_page_check_begin(shape, page, page_bytes, &checking);
    if (status != KVT_OK)
        return status;
    reader r = {shape, first_row, n_rows, first_layer, n_layers, to, &checking};
    status = decode(&r, page, page_bytes);
    return status == KVT_OK ? kvt_page_check_end(&checking, &rows) : status;
}
