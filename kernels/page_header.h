/* page_header.h - reading and writing a page's 192 header bytes; between the files of kernels/
 * only. */
#ifndef KVT_KERNELS_PAGE_HEADER_H
#define KVT_KERNELS_PAGE_HEADER_H

#include "kernels/page_shape.h"

typedef struct kvt_segment {
    uint32_t offset; /* from the start of the page */
    uint32_t bytes;
    uint32_t saturated;
    uint32_t first_row;
    uint32_t rows;
    int raw; /* fell back: every layer and part is raw16 */
} kvt_segment;

typedef struct kvt_page_header {
    uint64_t payload_hash;
    uint32_t payload_bytes;
    uint32_t rows;
    kvt_range_list list;
    uint32_t n_segments;
    kvt_segment segments[KVT_PAGE_MAX_SEGMENTS];
} kvt_page_header;

/*
 * Reads the header ONCE into memory of its own and checks every field of that copy: what
 * *ret_header says lies inside page[0 .. page_bytes) and inside the shape, whoever wrote the page
 * and whatever he does to it now. Errors as kvt_page_check.
 */
kvt_status kvt_page_header_read(const kvt_page_shape *shape, const void *page, size_t page_bytes,
                                kvt_page_header *ret_header);

/* Writes the header, hash included. The fields must be right. */
void kvt_page_header_write(const kvt_page_shape *shape, const kvt_page_header *header, void *page);

/* The codecs of a segment: the page's, or raw16 throughout. */
kvt_range_list kvt_segment_ranges(const kvt_page_shape *shape, const kvt_page_header *header,
                                  const kvt_segment *segment);

/* Adds a segment behind those that are there: its offset, bytes and first row follow from them. */
void kvt_page_header_add(const kvt_page_shape *shape, kvt_page_header *header, uint32_t rows,
                         int raw);

#endif
