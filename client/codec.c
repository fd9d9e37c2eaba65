/* codec.c - pages without a daemon. */
#include "client/error.h"
#include "client/kvtrunk.h"
#include "client/layout.h"
#include "kernels/page.h"

#include <stdlib.h>

static kvt_status no_place(void) {
    return kvt_error(KVT_EINVAL,
                     "there must be a place for the number of bytes: ret_bytes is NULL");
}

/* The shape, with words about what is wrong. */
static kvt_status shape_of(const kvt_geometry *geometry, uint32_t group, const char *codec,
                           kvt_page_shape *ret_shape) {
    char why[256] = "";
    if (!geometry)
        return kvt_error(KVT_EINVAL, "the geometry is NULL");
    kvt_status status = kvt_geometry_check(geometry, why, sizeof why);
    if (status != KVT_OK)
        return kvt_error(status, "geometry: %s", why);
    if (group >= geometry->n_groups)
        return kvt_error(KVT_EINVAL, "layer group %u; the geometry has %u", group,
                         geometry->n_groups);
    status = kvt_page_shape_init(geometry, group, codec, why, sizeof why, ret_shape);
    return status == KVT_OK ? KVT_OK : kvt_error(status, "codec: %s", why);
}

static int is_page_at(const void *at) {
    return at && (uintptr_t)at % KVT_PAGE_ALIGN_BYTES == 0;
}

static kvt_status not_aligned(void) {
    return kvt_error(KVT_EINVAL, "pages must be aligned to %d bytes", KVT_PAGE_ALIGN_BYTES);
}

kvt_status kvt_codec_room(const kvt_geometry *geometry, uint32_t group, const char *codec,
                          size_t *ret_bytes) {
    kvt_page_shape shape;
    kvt_status status = ret_bytes ? shape_of(geometry, group, codec, &shape) : no_place();
    if (status == KVT_OK)
        *ret_bytes = kvt_page_max_bytes(&shape);
    return status;
}

static uint32_t at_most(uint32_t n, uint32_t most) {
    return n < most ? n : most;
}

/* More layers or rows than there are, the page says. */
static kvt_status check_layout(const char *argument, const kvt_layout *layout,
                               const kvt_geometry *geometry, const kvt_page_shape *shape,
                               uint32_t n_layers, uint32_t n_rows) {
    return kvt_layout_check(argument, layout, geometry, at_most(n_layers, shape->n_layers),
                            at_most(n_rows, shape->page_tokens), 0);
}

kvt_status kvt_codec_encode(const kvt_geometry *geometry, uint32_t group, const char *codec,
                            size_t number, uint32_t n_rows, const kvt_layout *from, void *to,
                            size_t to_bytes, size_t *ret_bytes) {
    kvt_page_shape shape;
    kvt_status status = ret_bytes ? shape_of(geometry, group, codec, &shape) : no_place();
    if (status != KVT_OK)
        return status;
    status = check_layout("from", from, geometry, &shape, shape.n_layers, n_rows);
    if (status != KVT_OK)
        return status;
    if (!is_page_at(to))
        return not_aligned();
    status =
        kvt_page_encode_cow(&shape, NULL, 0, 0, n_rows, from, number == 0, to, to_bytes, ret_bytes);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

/* Shape for reading a page (its header names the codecs), and a look at all of it. */
static kvt_status open_page(const kvt_geometry *geometry, uint32_t group, const char *codec,
                            const void *page, size_t page_bytes, kvt_page_shape *ret_shape,
                            uint32_t *ret_rows) {
    kvt_status status = shape_of(geometry, group, codec, ret_shape);
    if (status != KVT_OK)
        return status;
    if (!is_page_at(page))
        return not_aligned();
    status = kvt_page_check(ret_shape, page, page_bytes, 1, ret_rows);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

kvt_status kvt_codec_decode(const kvt_geometry *geometry, uint32_t group, const void *page,
                            size_t page_bytes, uint32_t first_row, uint32_t n_rows,
                            uint32_t first_layer, uint32_t n_layers, const kvt_layout *to) {
    kvt_page_shape shape;
    uint32_t rows;
    kvt_status status = open_page(geometry, group, NULL, page, page_bytes, &shape, &rows);
    if (status != KVT_OK)
        return status;
    status = check_layout("to", to, geometry, &shape, n_layers, n_rows);
    if (status == KVT_OK && n_layers > 0 && n_rows > 0)
        status = kvt_layout_check_parts("to", to);
    if (status != KVT_OK)
        return status;
    status =
        kvt_page_decode(&shape, page, page_bytes, first_row, n_rows, first_layer, n_layers, to);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}

kvt_status kvt_codec_transcode(const kvt_geometry *geometry, uint32_t group, const char *codec,
                               size_t number, const void *page, size_t page_bytes, void *to,
                               size_t to_bytes, size_t *ret_bytes) {
    kvt_page_shape shape;
    uint32_t rows;
    kvt_status status =
        ret_bytes ? open_page(geometry, group, codec, page, page_bytes, &shape, &rows) : no_place();
    if (status != KVT_OK)
        return status;
    if (!is_page_at(to))
        return not_aligned();
    void *elements = kvt_memory_get(kvt_page_elements_bytes(&shape));
    if (!elements)
        return kvt_error_plain(KVT_ENOMEM);
    status = kvt_page_transcode(&shape, page, page_bytes, number == 0, elements, to, to_bytes,
                                ret_bytes);
    free(elements);
    return status == KVT_OK ? KVT_OK : kvt_error_plain(status);
}
