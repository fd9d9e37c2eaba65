/* layout.h - may these rows of a caller's layout be read and written? Private. */
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

#endif
