/* page_shape.h - sizes of segments and layers; between the files of kernels/ only. */
#ifndef KVT_KERNELS_PAGE_SHAPE_H
#define KVT_KERNELS_PAGE_SHAPE_H

#include "kernels/page.h"
#include "kernels/unit.h"

/* The codecs of one segment, layer range by layer range. */
typedef struct kvt_range_list {
    uint32_t n_ranges;
    kvt_codec_range ranges[KVT_PAGE_MAX_RANGES];
} kvt_range_list;

kvt_range_list kvt_coded_ranges(const kvt_page_shape *shape);
kvt_range_list kvt_raw_ranges(const kvt_page_shape *shape);

/* Of one layer in a range; of all layers. */
size_t kvt_layer_bytes(const kvt_page_shape *shape, const kvt_codec_range *range, uint32_t rows);
size_t kvt_segment_bytes(const kvt_page_shape *shape, const kvt_range_list *list, uint32_t rows);

static inline size_t kvt_pad64(size_t n) {
    return (n + (KVT_PAGE_ALIGN_BYTES - 1)) & ~(size_t)(KVT_PAGE_ALIGN_BYTES - 1);
}

#endif
