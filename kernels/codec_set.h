/* codec_set.h - the text that names the codecs of a realm; its syntax is CODEC SETS of FORMAT.md.
 */
#ifndef KVT_KERNELS_CODEC_SET_H
#define KVT_KERNELS_CODEC_SET_H

#include "kernels/page.h"

typedef struct kvt_codec_set {
    uint32_t n_ranges;
    kvt_codec_range ranges[KVT_PAGE_MAX_RANGES]; /* cover 0 .. n_layers - 1 in order */
} kvt_codec_set;

/*
 * Parses text (NULL = "") for a geometry of that many layers in all. KVT_ESYNTAX with a sentence
 * that names the place (from 1); KVT_ENOTSUP where the text is right but not for this geometry.
 */
kvt_status kvt_codec_set_parse(const char *text, uint32_t kind, uint32_t n_layers, char *why,
                               size_t why_bytes, kvt_codec_set *ret_set);

/* The name of a unit codec ("i8k"), or NULL for a number that is none. */
const char *kvt_codec_name(uint32_t codec);

/* May this codec stand for this part, as to what FORMAT.md says of kinds and scales? */
int kvt_codec_fits(uint32_t codec, float scale, uint32_t kind, uint32_t part);

#endif
