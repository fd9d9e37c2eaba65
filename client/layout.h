/* layout.h - where the rows of a caller's layout are, and may they be read and written? Private. */
#ifndef KVT_CLIENT_LAYOUT_H
#define KVT_CLIENT_LAYOUT_H

#include "client/kvtrunk.h"

/* Any sum of a few of them is still a number; no memory is as large. */
#define KVT_LAYOUT_MOST_BYTES (INT64_C(1) << 60)

/*
 * KVT_OK, or KVT_EINVAL with a sentence: a part or a stride that is no multiple of an element's 2
 * bytes, rows that overlap. A stride that no row is reached by may be anything. is_paged: n_tokens
 * is of a block alone, and the blocks are a number of token strides apart. `argument` is what the
 * caller calls the layout. Pure; a few comparisons for all layouts that are arrays.
 */
kvt_status kvt_layout_check(const char *argument, const kvt_layout *layout,
                            const kvt_geometry *geometry, size_t n_layers, size_t n_tokens,
                            int is_paged);

/* What is decoded into one part may not be written over by the other: KVT_EINVAL where both are at
 * one place. (Encoding may read a part twice.) */
kvt_status kvt_layout_check_parts(const char *argument, const kvt_layout *layout);

/* n things, neighbours `size` bytes apart. */
typedef struct kvt_layout_steps {
    uint64_t n;
    int64_t size;
} kvt_layout_steps;

/* Does each direction's step go over all that the shorter ones reach? Then no two rows meet. Sorts
 * them. n and size of each are at least 0, n * size at most 1 << 60. */
int kvt_layout_nests(kvt_layout_steps *steps, int n_directions, uint32_t row_bytes);

/* The part of a block table that tokens [first_token, end_token) of a path are in. */
typedef struct kvt_layout_blocks {
    const kvt_block_table *table;
    size_t first_token, end_token;
} kvt_layout_blocks;

/* What a look at all those blocks tells: where they begin are multiples of step_tokens behind the
 * first of them, up to n_steps. The same for all layers of a call. */
typedef struct kvt_layout_spread {
    uint32_t block_tokens; /* of the table; 0: nobody has looked */
    int names_once;        /* no two begin at one place */
    uint64_t step_tokens, n_steps;
} kvt_layout_spread;

/* The token of the layout at which the block in entry i begins. */
static inline uint64_t kvt_layout_block(const kvt_block_table *table, size_t i) {
    return table->blocks[i] *
           (table->block_stride_tokens ? table->block_stride_tokens : table->block_tokens);
}

/* Does the table go as far, and do its blocks lie in any memory? KVT_EINVAL. */
kvt_status kvt_layout_check_table(const char *argument, const kvt_layout *layout,
                                  const kvt_layout_blocks *blocks);

/* The look. In order of n log n where the blocks do not rise. At least one token. KVT_ENOMEM. */
kvt_status kvt_layout_spread_of(const kvt_layout_blocks *blocks, kvt_layout_spread *ret_spread);

/*
 * May rows be written there: does none of one block meet one of another? KVT_EINVAL, with both
 * blocks. Exact. kvt_layout_check and _check_table have said KVT_OK. A few comparisons for caches
 * that are arrays in which no block is named twice; for others n log n, and n for each two layers
 * and heads whose rows come as near as those of two blocks. KVT_ENOMEM.
 */
kvt_status kvt_layout_check_blocks(const char *argument, const kvt_layout *layout,
                                   const kvt_geometry *geometry, size_t n_layers,
                                   const kvt_layout_blocks *blocks,
                                   const kvt_layout_spread *spread);

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
