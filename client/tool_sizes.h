/*
 * tool_sizes.h - between the files of `kvtrunk sizes`: a model's config.json as a geometry, and
 * what its pages take under one codec set.
 */
#ifndef KVT_CLIENT_TOOL_SIZES_H
#define KVT_CLIENT_TOOL_SIZES_H

#include "client/kvtrunk.h"

enum { SIZES_MAX_NOTES = 4 };

/* What a config.json says of the KV cache. Groups: layers of full attention first, then those with
 * a sliding window; a group that has no layers is left out. */
typedef struct sizes_model {
    kvt_geometry geometry;              /* of one rank that holds the whole model */
    const char *notes[SIZES_MAX_NOTES]; /* what was assumed because the file does not say it */
    int n_notes;
} sizes_model;

/* Reads the file. Fails with a message and an exit code other than TOOL_OK. */
int sizes_read_model(const char *path, uint32_t page_tokens, sizes_model *ret_model);

/* --- what it takes ------------------------------------------------------------------------------
 */

typedef struct sizes_group {
    uint64_t page_bytes; /* of a full page */
    uint64_t pages;      /* that must be held */
} sizes_group;

/* All layers under one codec set, and one context of n_tokens. */
typedef struct sizes_plan {
    double token_bytes;  /* of a token of a full page, the page's header included */
    double element_bits; /* the same */
    sizes_group groups[KVT_MAX_GROUPS];
    uint64_t pages;
    uint64_t arena_bytes; /* a size for "arena" that holds them */
    uint64_t disk_bytes;  /* about */
} sizes_plan;

/* n_tokens up to SIZES_MAX_TOKENS. Statuses and sentence of kvt_page_shape_init. Pure. */
#define SIZES_MAX_TOKENS UINT64_C(1000000000000)
kvt_status sizes_make_plan(const kvt_geometry *geometry, const char *codec, uint64_t n_tokens,
                           char *why, size_t why_bytes, sizes_plan *ret_plan);

#endif
