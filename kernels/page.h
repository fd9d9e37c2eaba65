/*
 * page.h - encoded pages: header, segment table, units. The format is kernels/FORMAT.md; this is
 * its only reader and writer.
 *
 *   page := header (KVT_PAGE_HEADER_BYTES) segment...            at most KVT_PAGE_MAX_SEGMENTS
 *   segment := for each layer: part 0 unit of each head, part 1 unit of each head
 *   unit := [rows][head_dim] elements of one layer, head and part, encoded together
 *
 * A segment holds rows that were encoded together and keeps their statistics. Growing or diverging
 * copies leading rows of segments as encoded bytes (kvt_page_copy_rows) and adds a new one; nothing
 * is decoded and encoded again. Everything here is pure: no allocation, no I/O, any thread.
 */
#ifndef KVT_KERNELS_PAGE_H
#define KVT_KERNELS_PAGE_H

#include "client/kvtrunk.h"
#include "kernels/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVT_PAGE_HEADER_BYTES = 192,
    KVT_PAGE_ALIGN_BYTES = 64, /* of a page, and of each segment in it */
    KVT_PAGE_MAX_SEGMENTS = 4,
    KVT_PAGE_SINK_ROWS = 4,  /* of a path's first page: raw, see kvt_page_encode_first */
    KVT_PAGE_MAX_RANGES = 4, /* layer ranges with codecs of their own */
    KVT_PAGE_VERSION = 1,
    KVT_PAGE_MAX_RAW_BYTES = 1 << 30, /* of a page as 16-bit elements; kvt_geometry_check */
};

/* Unit codecs. The numbers stand in page headers on disk: never reuse one. */
typedef enum kvt_codec {
    KVT_CODEC_RAW16 = 1,
    KVT_CODEC_FP8T = 2,
    KVT_CODEC_FP8S_E4M3 = 3,
    KVT_CODEC_FP8S_E5M2 = 4,
    KVT_CODEC_I8V = 5,
    KVT_CODEC_I8K = 6,
    KVT_CODEC_I4K = 7,
    KVT_CODEC_I2K = 8,
    KVT_CODEC_I4S = 9,
    KVT_CODEC_W4V = 10,
    KVT_CODEC_W2V = 11,
} kvt_codec;

/* Codecs of the layers [first_layer, first_layer + n_layers), one per part (K/V, latent/rope). */
typedef struct kvt_codec_range {
    uint16_t first_layer;
    uint16_t n_layers;
    uint8_t codec[2];
    float scale[2]; /* of fp8s, the engine's own: value = code * scale; 0 for every other codec */
} kvt_codec_range;

/*
 * The shape of the pages of one realm: the layers of one group and one rank's heads. Derived once
 * per realm by kvt_page_shape_init; everything below takes it.
 */
typedef struct kvt_page_shape {
    uint32_t kind;  /* kvt_kind */
    uint32_t dtype; /* kvt_dtype */
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t head_dim[2];
    uint32_t page_tokens;
    uint32_t n_ranges;
    kvt_codec_range ranges[KVT_PAGE_MAX_RANGES];
    uint64_t geometry_hash; /* xxh3 of the shape's canonical bytes, FORMAT.md "Geometry hash" */
} kvt_page_shape;

/*
 * Shape of group `group` of a checked geometry under codec set `codec` (NULL or "" = "f16").
 * KVT_ESYNTAX: the text is no codec set; KVT_ENOTSUP: a codec that this geometry or build cannot;
 * both with a sentence in why (may be NULL).
 */
kvt_status kvt_page_shape_init(const kvt_geometry *geometry, uint32_t group, const char *codec,
                               char *why, size_t why_bytes, kvt_page_shape *ret_shape);

/* Encoded bytes of a one-segment page of `rows` rows (1 .. page_tokens), header included, and the
 * same if it falls back to raw16 (NaN, Inf or a magnitude that the codec refuses). Multiples of
 * KVT_PAGE_ALIGN_BYTES. */
size_t kvt_page_bytes(const kvt_page_shape *shape, uint32_t rows);
size_t kvt_page_raw_bytes(const kvt_page_shape *shape, uint32_t rows);

/* The most bytes that any page of this shape can take: segments, statistics, fallback. */
size_t kvt_page_max_bytes(const kvt_page_shape *shape);

/*
 * Encodes `rows` rows as a new page of one segment at to[0 .. to_bytes), 64-byte aligned. Token 0
 * of `from` is row 0. KVT_ELIMIT: to_bytes is too small.
 */
kvt_status kvt_page_encode(const kvt_page_shape *shape, uint32_t rows, const kvt_layout *from,
                           void *to, size_t to_bytes, size_t *ret_bytes);

/*
 * The same for the first page of a path: where a codec loses bits, its first KVT_PAGE_SINK_ROWS
 * rows become a raw segment of their own. Models attend to the first tokens of a text far more than
 * to others, while their keys are short: a step that is small beside the other rows is not small
 * beside theirs. On real text this took a third (i4) to a half (i8) off the KL divergence of the
 * predictions, for less than a hundredth of the bits of a long path. The calls below take is_first
 * for the same.
 */
kvt_status kvt_page_encode_first(const kvt_page_shape *shape, uint32_t rows, const kvt_layout *from,
                                 void *to, size_t to_bytes, size_t *ret_bytes);
/* What it gives, if the codecs take every element. */
size_t kvt_page_first_bytes(const kvt_page_shape *shape, uint32_t rows);

/*
 * Copy-on-write. Writes at `to` a page whose first `keep_rows` rows are those of `page` (copied as
 * encoded bytes, segments and their statistics kept, cut to keep_rows) and whose rows
 * keep_rows .. rows - 1 are encoded from `from` as one more segment, of a path's first page as two
 * where fewer than KVT_PAGE_SINK_ROWS are kept (token 0 of `from` is row 0 of the PAGE; rows before
 * keep_rows are not read). keep_rows = rows only copies. `page` must have
 * passed kvt_page_check. KVT_ELIMIT: more than KVT_PAGE_MAX_SEGMENTS segments would be needed, or
 * to_bytes is too small; the caller then encodes the page whole, by the next call.
 */
kvt_status kvt_page_encode_cow(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                               uint32_t keep_rows, uint32_t rows, const kvt_layout *from,
                               int is_first, void *to, size_t to_bytes, size_t *ret_bytes);

/*
 * What takes the place of a page in too many segments: all `rows` rows of `from` in one raw
 * segment, under the codecs that `page` names. Rows that were kept keep their bits, if `from` has
 * them as they were decoded; to code them again would lose once more. `page` as above, KVT_ELIMIT:
 * to_bytes is too small.
 */
kvt_status kvt_page_encode_raw(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                               uint32_t rows, const kvt_layout *from, void *to, size_t to_bytes,
                               size_t *ret_bytes);

/*
 * Is page[0 .. page_bytes) a page of this shape? Bounds of every field before it is used, geometry
 * hash, segment table, header checksum; with verify also the payload's checksum. KVT_ECORRUPT,
 * KVT_EVERSION, KVT_EGEOMETRY. Reads only page[0 .. page_bytes); the bytes may be hostile and may
 * change meanwhile (a stale frame): no out-of-bounds access whatever they hold.
 */
kvt_status kvt_page_check(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                          int verify, uint32_t *ret_rows);

/*
 * kvt_page_check with `verify`, piece by piece, for whoever copies the page at the same time: each
 * piece is in the processor's cache then. begin reads the header; to takes in what stands in front
 * of page + end; end says whether all of it was right. Errors as kvt_page_check.
 */
typedef struct kvt_page_checking {
    kvt_hash_sum sum;
    const uint8_t *page;
    size_t summed, payload_end; /* from the start of the page */
    uint64_t payload_hash;
    uint32_t rows;
} kvt_page_checking;
kvt_status kvt_page_check_begin(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                                kvt_page_checking *ret_checking);
void kvt_page_check_to(kvt_page_checking *checking, size_t end);
kvt_status kvt_page_check_end(kvt_page_checking *checking, uint32_t *ret_rows);

/*
 * Decodes rows [first_row, first_row + n_rows) of layers [first_layer, first_layer + n_layers) into
 * `to` (token 0 = first_row, layer 0 = first_layer). Checks what it uses of the header again, so
 * that bytes which change under it give garbage or an error, never an access out of bounds.
 */
kvt_status kvt_page_decode(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                           uint32_t first_row, uint32_t n_rows, uint32_t first_layer,
                           uint32_t n_layers, const kvt_layout *to);

/* The same, and the payload's checksum on the way: cheaper than kvt_page_check with `verify` in
 * front of it, since the bytes are read once. KVT_ECORRUPT: what stands in `to` is void. */
kvt_status kvt_page_decode_verified(const kvt_page_shape *shape, const void *page,
                                    size_t page_bytes, uint32_t first_row, uint32_t n_rows,
                                    uint32_t first_layer, uint32_t n_layers, const kvt_layout *to);

/*
 * The rows of `page` under the codecs of `shape`, which has the same geometry and may have any
 * codec set: kvt_page_decode of all of it, and kvt_page_encode (or _first) of what comes out.
 * So a page cools, from i8 to i4 say, and stays a page of its realm, since the header decides the
 * decoding. Codes of few bits that are coded once more lose twice: i8 to i4 costs nothing that can
 * be measured over i4 at once, other steps between lossy codecs do.
 *
 * `elements` is work space of kvt_page_elements_bytes, aligned to 2. `page` must have passed
 * kvt_page_check with `verify`: the new page has a checksum of its own, which must not vouch for
 * damage. KVT_ELIMIT: to_bytes is too small.
 */
kvt_status kvt_page_transcode(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                              int is_first, void *elements, void *to, size_t to_bytes,
                              size_t *ret_bytes);
size_t kvt_page_elements_bytes(const kvt_page_shape *shape);

/* Is the page, which has this geometry, encoded under the codecs of this shape? (Segments may have
 * fallen back to raw16.) A page that is damaged is not. */
int kvt_page_is_under(const kvt_page_shape *shape, const void *page, size_t page_bytes);

/* What a header says, for reports; of a page that passed kvt_page_check. */
typedef struct kvt_page_info {
    uint32_t rows;
    uint32_t n_segments;
    uint32_t segment_rows[KVT_PAGE_MAX_SEGMENTS];
    uint32_t saturated; /* values that a codec had to clamp */
    int raw;            /* every segment fell back to raw16 */
    uint64_t payload_hash;
} kvt_page_info;
void kvt_page_get(const void *page, kvt_page_info *ret_info);

#ifdef __cplusplus
}
#endif

#endif
