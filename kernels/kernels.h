/*
 * kernels.h - pages on a GPU: encoded from and decoded into a worker's own KV in device memory,
 * many pages a launch. The bytes are those of kernels/page.h, to the bit: a page may be encoded
 * here and decoded there. Built with -DKVT_CUDA=ON; the functions that one lane runs are in
 * unit_device.cuh.
 *
 * WHO READS THE HEADER. The host cannot see a page in device memory without a copy and a wait. So
 * the device reads it, once: kvt_cuda_plan checks every field and the header's checksum and leaves
 * what it found in a kvt_cuda_page; all other kernels take sizes, codecs and places from there and
 * never look at the header again. Bytes that change meanwhile (a frame that was given to another
 * page) decode to garbage, which the lease's end tells, but no kernel leaves the page for it.
 *
 *     reads[] --kvt_cuda_plan--> pages[] --kvt_cuda_decode (once for each range of layers)--> KV
 *                                    '----kvt_cuda_transcode--> pages of another codec set
 *     writes[] + KV --kvt_cuda_encode--> pages, results[]
 *
 * CONVENTIONS
 * - All calls only put work into `stream` (a cudaStream_t) and return; none waits, allocates or
 *   copies behind the caller's back. Arrays must stay as they are until that work is done.
 * - Arrays of the caller and results are read and written by the device: device memory, or pinned
 *   host memory (cudaHostAlloc). Pages and KV are device memory.
 * - They return a cudaError_t (0 = cudaSuccess): what the launch said. What a page has to say is a
 *   kvt_status in the results.
 * - A call with n = 0 does nothing and returns 0; _encode and _transcode take up to 65,535 pages at
 *   a time (cudaErrorInvalidValue).
 */
#ifndef KVT_KERNELS_KERNELS_H
#define KVT_KERNELS_KERNELS_H

#include "kernels/page.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of one page, and where in a kvt_layout they belong. */
typedef struct kvt_cuda_read {
    const void *page;    /* 16-byte aligned */
    uint64_t page_bytes; /* that may be read there */
    uint32_t first_row;
    uint32_t n_rows;
    uint64_t token; /* first_row is token number `token` of the layout, the next one token + 1.
                       Any number: the pages of a paged KV cache need not follow each other */
} kvt_cuda_read;

typedef struct kvt_cuda_segment {
    uint32_t first_row;
    uint32_t rows;
    uint32_t
        layers_at[KVT_PAGE_MAX_RANGES]; /* offset in the page of the first layer of each range */
} kvt_cuda_segment;

/*
 * What a page's header says, checked: everything that a kernel needs to find any unit of it. For
 * engines too. A segment that fell back has raw16 for all layers: kvt_lane_codec_of gives it.
 */
typedef struct kvt_cuda_page {
    const uint8_t *page;
    uint64_t token; /* of the read, as are first_row and n_rows */
    uint32_t first_row;
    uint32_t n_rows; /* 0 unless status is KVT_OK */
    uint32_t status; /* kvt_status */
    uint32_t rows;   /* of the page */
    uint32_t n_segments;
    uint32_t n_ranges;
    kvt_codec_range ranges[KVT_PAGE_MAX_RANGES];
    kvt_cuda_segment segments[KVT_PAGE_MAX_SEGMENTS];
    uint32_t raw_segments; /* bit i: segment i fell back to raw16 */
    uint32_t payload_bytes;
    uint64_t payload_hash; /* as the header says */
} kvt_cuda_page;

/*
 * Checks the header of each read's page as kvt_page_check does (not the payload's checksum: see
 * kvt_cuda_verify), and the read's rows. ret_pages[i].status is KVT_OK, KVT_ECORRUPT, KVT_EVERSION,
 * KVT_EGEOMETRY, or KVT_EINVAL (rows outside the page); a page that is not KVT_OK is skipped by
 * all that follows. *ret_status (may be NULL) becomes that of one of them that is not KVT_OK, if
 * there is one; otherwise it stays as it is: set it to KVT_OK before.
 */
int kvt_cuda_plan(const kvt_page_shape *shape, const kvt_cuda_read *reads, uint32_t n_reads,
                  kvt_cuda_page *ret_pages, uint32_t *ret_status, void *stream);

/*
 * Compares the payload's checksum of each page with its header's; a page that differs gets status
 * KVT_ECORRUPT and no rows. Where rows of one page were read one by one it is looked at once:
 * pages[firsts[i] .. firsts[i + 1]) are of page i of n_pages, and the first of them is looked at
 * (not if its status is not KVT_OK). firsts: n_pages + 1 numbers in memory of the device, or
 * pinned; NULL: each is a page. `workspace` is device memory of kvt_cuda_workspace_bytes.
 */
int kvt_cuda_verify(const kvt_page_shape *shape, kvt_cuda_page *pages, const uint32_t *firsts,
                    uint32_t n_pages, uint32_t *ret_status, void *workspace, void *stream);

/*
 * Decodes the rows of all reads, layers [first_layer, first_layer + n_layers), into `to` (layer 0 =
 * first_layer) in one launch. `to` may have any strides; where rows are 16-byte aligned they are
 * written 16 bytes at a time.
 */
int kvt_cuda_decode(const kvt_page_shape *shape, const kvt_cuda_page *pages, uint32_t n_pages,
                    uint32_t first_layer, uint32_t n_layers, const kvt_layout *to, void *stream);

/* A page to be made. */
typedef struct kvt_cuda_write {
    void *page;          /* 64-byte aligned */
    uint64_t room_bytes; /* kvt_page_max_bytes is always enough */
    uint64_t token;      /* row 0 of the page is this token of the layout */
    uint32_t rows;       /* of the finished page */
    uint32_t keep_rows;  /* leading rows that are copied from `keep` as encoded bytes */
    const void *keep;    /* a page, 16-byte aligned; not looked at if keep_rows is 0 */
    uint64_t keep_bytes;
    uint32_t or_raw; /* 1: where kept and new rows would be too many segments, all rows come from
                        the layout, in one raw segment, instead of KVT_ELIMIT. So kept rows keep
                        their bits, if the layout has them as they were decoded */
    uint32_t block_rows;    /* of a paged KV cache, */
    const uint64_t *blocks; /* whose block table this is: what counts as token t here is token
                               blocks[t / block_rows] + t % block_rows of the layout. In device
                               memory. NULL: t itself */
    uint32_t is_first;      /* 1: the first page of a path, see kvt_page_encode_first */
} kvt_cuda_write;

typedef struct kvt_cuda_result {
    uint32_t status; /* kvt_status: as kvt_page_encode_cow */
    uint32_t bytes;  /* of the page, if KVT_OK */
} kvt_cuda_result;

/* Device memory that kvt_cuda_verify, _encode and _transcode need for n_pages pages. */
uint64_t kvt_cuda_workspace_bytes(const kvt_page_shape *shape, uint32_t n_pages);

/*
 * Encodes pages whole, header and checksums included, as kvt_page_encode (keep_rows = 0),
 * kvt_page_encode_first and kvt_page_encode_cow do: the new rows from `from`, a segment that a
 * codec refuses as raw16. What stands in a page whose status is not KVT_OK is void.
 */
int kvt_cuda_encode(const kvt_page_shape *shape, const kvt_cuda_write *writes, uint32_t n_writes,
                    const kvt_layout *from, kvt_cuda_result *ret_results, void *workspace,
                    void *stream);

/*
 * Encodes the rows of pages[i], as a page of its own, under the codecs of `shape` (same geometry)
 * as writes[i] says: kvt_page_decode and kvt_page_encode without the 16-bit elements between them.
 * writes[i].rows must be pages[i].n_rows, keep_rows 0 (KVT_EINVAL). For pages of raw16, i8k and i8v
 * alone, as they cool to fewer bits: KVT_ENOTSUP for others, since codes of few bits coded once
 * more lose twice. Who wants that all the same calls kvt_cuda_decode into a layout of its own and
 * kvt_cuda_encode from it. Either way the bytes are those of kvt_page_transcode.
 */
int kvt_cuda_transcode(const kvt_page_shape *shape, const kvt_cuda_page *pages,
                       const kvt_cuda_write *writes, uint32_t n_writes,
                       kvt_cuda_result *ret_results, void *workspace, void *stream);

/* One run of bytes to be copied; addresses and size are multiples of 16, runs do not overlap. */
typedef struct kvt_cuda_copy_run {
    void *to;
    const void *from;
    uint64_t bytes;
} kvt_cuda_copy_run;

/* Copies many pages in one launch. max_bytes: of the longest run, which decides how many threads
 * take each; a longer one is copied all the same. */
int kvt_cuda_copy(const kvt_cuda_copy_run *runs, uint32_t n_runs, uint64_t max_bytes, void *stream);

/* The name of an error that these calls returned, for messages. Static. */
const char *kvt_cuda_error_name(int error);

#ifdef __cplusplus
}
#endif

#endif
