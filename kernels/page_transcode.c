/* page_transcode.c - a page under other codecs. */
#include "kernels/page.h"

#include <string.h>

#include "kernels/page_header.h"

static size_t part_bytes(const kvt_page_shape *shape, int part) {
    return (size_t)shape->n_layers * shape->n_kv_heads * shape->page_tokens *
           shape->head_dim[part] * sizeof(uint16_t);
}

size_t kvt_page_elements_bytes(const kvt_page_shape *shape) {
    return part_bytes(shape, 0) + part_bytes(shape, 1);
}

/* [layer][head][token][dim], part 1 behind part 0: a unit's rows are one run. */
static kvt_layout layout_of(const kvt_page_shape *shape, void *elements) {
    kvt_layout layout = {.part = {elements, (char *)elements + part_bytes(shape, 0)}};
    for (int p = 0; p < 2; p++) {
        layout.token_stride_bytes[p] = shape->head_dim[p] * sizeof(uint16_t);
        layout.head_stride_bytes[p] = layout.token_stride_bytes[p] * shape->page_tokens;
        layout.layer_stride_bytes[p] = layout.head_stride_bytes[p] * shape->n_kv_heads;
    }
    return layout;
}

kvt_status kvt_page_transcode(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                              int is_first, void *elements, void *to, size_t to_bytes,
                              size_t *ret_bytes) {
    kvt_page_header header;
    kvt_status status = kvt_page_header_read(shape, page, page_bytes, &header);
    if (status != KVT_OK)
        return status;
    kvt_layout layout = layout_of(shape, elements);
    status = kvt_page_decode(shape, page, page_bytes, 0, header.rows, 0, shape->n_layers, &layout);
    if (status != KVT_OK)
        return status;
    return kvt_page_encode_cow(shape, NULL, 0, 0, header.rows, &layout, is_first, to, to_bytes,
                               ret_bytes);
}

static int same_range(const kvt_codec_range *a, const kvt_codec_range *b) {
    return a->first_layer == b->first_layer && a->n_layers == b->n_layers &&
           a->codec[0] == b->codec[0] && a->codec[1] == b->codec[1] &&
           memcmp(a->scale, b->scale, sizeof a->scale) == 0;
}

int kvt_page_is_under(const kvt_page_shape *shape, const void *page, size_t page_bytes) {
    kvt_page_header header;
    if (kvt_page_header_read(shape, page, page_bytes, &header) != KVT_OK ||
        header.list.n_ranges != shape->n_ranges)
        return 0;
    for (uint32_t i = 0; i < shape->n_ranges; i++)
        if (!same_range(&header.list.ranges[i], &shape->ranges[i]))
            return 0;
    return 1;
}
