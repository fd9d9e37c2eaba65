/* layout.h - where the rows of a caller's layout are, and may they be read and written? Private. */
#ifndef KVT_CLIENT_LAYOUT_H
#define KVT_CLIENT_LAYOUT_H

#include "client/kvtrunk.h"

/*
 * KVT_OK, or KVT_EINVAL with a sentence: a part or a stride that is no multiple of an element's 2
 * bytes, rows that overlap. A stride that no row is reached by may be anything. is_paged: n_tokens
 * is of a block alone, and the blocks are a number of token strides apart. `argument` is what the
 * caller calls the layout. Pure; a few comparisons for all layouts that are arrays.
 */
kvt_status kvt_layout_check(const char *argument, const kvt_layout *layout,
                            const kvt_geometry *geometry, size_t n_layers, size_t n_tokens,
                            int is_paged);

/* The layout as seen from n_tokens tokens further on. */
static inline kvt_layout kvt_layout_at_token(const kvt_layout *layout, size_t n_tokens) {
    kvt_layout at = *layout;
    for (int p = 0; p < 2; p++)
        if (at.part[p])
            at.part[p] = (char *)at.part[p] + n_tokens * at.token_stride_bytes[p];
    return at;
}

/* And as seen from n_layers layers further on. */
static inline kvt_layout kvt_layout_at_layer(const kvt_layout *layout, uint32_t n_layers) {
    kvt_layout at = *layout;
    for (int p = 0; p < 2; p++)
        at.part[p] = (char *)at.part[p] + n_layers * at.layer_stride_bytes[p];
    return at;
}

#endif
