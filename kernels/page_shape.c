/* The shape of a realm's pages, and how large they are. */
#include "kernels/page_shape.h"

#include <string.h>

#include "client/assert.h"
#include "kernels/codec_set.h"
#include "kernels/cpu.h"
#include "kernels/hash.h"
#include "kernels/say.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pages are little-endian, and so are we");

static uint64_t geometry_hash(const kvt_page_shape *shape) {
    const uint32_t canonical[7] = {
        shape->kind,        shape->dtype,       shape->n_layers,    shape->n_kv_heads,
        shape->head_dim[0], shape->head_dim[1], shape->page_tokens,
    };
    return kvt_hash(canonical, sizeof canonical);
}

/* The ranges of the layers [first, first + n) of a set, counted from `first`. */
static void cut_ranges(const kvt_codec_set *set, uint32_t first, uint32_t n,
                       kvt_page_shape *shape) {
    for (uint32_t i = 0; i < set->n_ranges; i++) {
        uint32_t from = set->ranges[i].first_layer, to = from + set->ranges[i].n_layers;
        from = from > first ? from : first;
        to = to < first + n ? to : first + n;
        if (from >= to)
            continue;
        kvt_codec_range *range = &shape->ranges[shape->n_ranges++];
        *range = set->ranges[i];
        range->first_layer = (uint16_t)(from - first);
        range->n_layers = (uint16_t)(to - from);
    }
}

kvt_status kvt_page_shape_init(const kvt_geometry *geometry, uint32_t group, const char *codec,
                               char *why, size_t why_bytes, kvt_page_shape *ret_shape) {
    KVT_ASSERT(group < geometry->n_groups);
    kvt_codec_set set;
    kvt_status status =
        kvt_codec_set_parse(codec, geometry->kind, geometry->n_layers, why, why_bytes, &set);
    if (status != KVT_OK)
        return status;
    kvt_page_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.kind = geometry->kind;
    shape.dtype = geometry->dtype;
    shape.n_layers = geometry->groups[group].n_layers;
    shape.n_kv_heads = geometry->n_kv_heads;
    shape.head_dim[0] = geometry->head_dim[0];
    shape.head_dim[1] = geometry->head_dim[1];
    shape.page_tokens = geometry->page_tokens;
    shape.geometry_hash = geometry_hash(&shape);
    uint32_t first_layer = 0;
    for (uint32_t i = 0; i < group; i++)
        first_layer += geometry->groups[i].n_layers;
    cut_ranges(&set, first_layer, shape.n_layers, &shape);
    for (uint32_t i = 0; i < shape.n_ranges; i++) {
        for (int p = 0; p < 2; p++) {
            if (!kvt_cpu_encoder(shape.ranges[i].codec[p]))
                return kvt_say(why, why_bytes, KVT_ENOTSUP, "codec %s is not in this build",
                               kvt_codec_name(shape.ranges[i].codec[p]));
        }
    }
    *ret_shape = shape;
    return KVT_OK;
}

kvt_range_list kvt_coded_ranges(const kvt_page_shape *shape) {
    kvt_range_list list;
    list.n_ranges = shape->n_ranges;
    memcpy(list.ranges, shape->ranges, sizeof list.ranges);
    return list;
}

kvt_range_list kvt_raw_ranges(const kvt_page_shape *shape) {
    kvt_range_list list;
    memset(&list, 0, sizeof list);
    list.n_ranges = 1;
    list.ranges[0].n_layers = (uint16_t)shape->n_layers;
    list.ranges[0].codec[0] = KVT_CODEC_RAW16;
    list.ranges[0].codec[1] = KVT_CODEC_RAW16;
    return list;
}

size_t kvt_layer_bytes(const kvt_page_shape *shape, const kvt_codec_range *range, uint32_t rows) {
    size_t bytes = 0;
    for (int p = 0; p < 2; p++)
        bytes += kvt_unit_layout_of(range->codec[p], shape->head_dim[p], rows).bytes;
    return bytes * shape->n_kv_heads;
}

size_t kvt_segment_bytes(const kvt_page_shape *shape, const kvt_range_list *list, uint32_t rows) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < list->n_ranges; i++)
        bytes += list->ranges[i].n_layers * kvt_layer_bytes(shape, &list->ranges[i], rows);
    return bytes;
}

size_t kvt_page_bytes(const kvt_page_shape *shape, uint32_t rows) {
    kvt_range_list list = kvt_coded_ranges(shape);
    return KVT_PAGE_HEADER_BYTES + kvt_pad64(kvt_segment_bytes(shape, &list, rows));
}

size_t kvt_page_raw_bytes(const kvt_page_shape *shape, uint32_t rows) {
    kvt_range_list list = kvt_raw_ranges(shape);
    return KVT_PAGE_HEADER_BYTES + kvt_pad64(kvt_segment_bytes(shape, &list, rows));
}

/*
 * Without the padding, a unit's bytes are convex in its rows, whether it is coded or raw: the
 * larger of two straight lines. So the worst division of the rows into segments is the most unequal
 * one: segments of one row each, and one with the rest. Padding is then allowed for in full: three
 * parts of a unit in each segment can lose 15 bytes each to it.
 */
size_t kvt_page_max_bytes(const kvt_page_shape *shape) {
    enum { SHORT = KVT_PAGE_MAX_SEGMENTS - 1, PADDING = KVT_PAGE_MAX_SEGMENTS * 3 * 15 };
    uint32_t rest = shape->page_tokens - SHORT;
    size_t bytes = 0;
    for (uint32_t i = 0; i < shape->n_ranges; i++) {
        size_t layer = 0;
        for (int p = 0; p < 2; p++) {
            uint32_t codec = shape->ranges[i].codec[p], dim = shape->head_dim[p];
            size_t raw_one = kvt_unit_layout_of(KVT_CODEC_RAW16, dim, 1).bytes;
            size_t raw_rest = kvt_unit_layout_of(KVT_CODEC_RAW16, dim, rest).bytes;
            size_t one = kvt_unit_layout_of(codec, dim, 1).bytes;
            size_t most = kvt_unit_layout_of(codec, dim, rest).bytes;
            layer += SHORT * (one > raw_one ? one : raw_one);
            layer += (most > raw_rest ? most : raw_rest) + PADDING;
        }
        bytes += shape->ranges[i].n_layers * layer * shape->n_kv_heads;
    }
    return KVT_PAGE_HEADER_BYTES + kvt_pad64(bytes + KVT_PAGE_MAX_SEGMENTS * 63);
}
