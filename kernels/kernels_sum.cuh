/* kernels_sum.cuh - kernels that take and compare checksums. Part of kernels.cu. */
#ifndef KVT_KERNELS_KERNELS_SUM_CUH
#define KVT_KERNELS_KERNELS_SUM_CUH

#include "kernels/kernels_decode.cuh"

/* Element i of an array of pages, or of jobs, which begin with one. */
KVT_LANE kvt_cuda_page *page_of(void *pages, uint32_t stride_bytes, uint32_t i) {
    return (kvt_cuda_page *)((uint8_t *)pages + (uint64_t)i * stride_bytes);
}

/* The pages are firsts[0], firsts[1], ..., or all (NULL). */
KVT_LANE uint32_t nth(const uint32_t *firsts, uint32_t n) {
    return firsts ? firsts[n] : n;
}

/* x: share of the page's 1 KiB blocks, one a warp; y: page. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    sum_kernel(void *pages, uint32_t stride_bytes, const uint32_t *firsts, uint64_t *sums,
               uint32_t max_blocks) {
    const kvt_cuda_page *page = page_of(pages, stride_bytes, nth(firsts, blockIdx.y));
    uint32_t bytes = page->payload_bytes, n_blocks = kvt_xxh3_blocks(bytes);
    if (page->status != KVT_OK || bytes <= KVT_XXH3_SHORT_BYTES)
        return;
    const uint8_t *payload = page->page + KVT_PAGE_HEADER_BYTES;
    uint32_t warps = KVT_BLOCK_THREADS / WARP, lane = threadIdx.x % WARP;
    for (uint32_t b = blockIdx.x * warps + threadIdx.x / WARP; b < n_blocks;
         b += gridDim.x * warps) {
        uint64_t sum[2];
        kvt_xxh3_block_sum(payload, bytes, b, sum);
        uint4 *to = (uint4 *)(sums + ((uint64_t)blockIdx.y * max_blocks + b) * KVT_XXH3_LANES);
        if (lane < KVT_XXH3_LANES / 2)
            to[lane] = make_uint4((uint32_t)sum[0], (uint32_t)(sum[0] >> 32), (uint32_t)sum[1],
                                  (uint32_t)(sum[1] >> 32));
    }
}

/* By a warp; all its lanes return the hash. */
KVT_LANE uint64_t payload_hash(const kvt_cuda_page *page, const uint64_t *sums) {
    const uint8_t *payload = page->page + KVT_PAGE_HEADER_BYTES;
    return page->payload_bytes <= KVT_XXH3_SHORT_BYTES
               ? kvt_xxh3_short((const uint64_t *)payload, page->payload_bytes)
               : kvt_xxh3_chain(payload, page->payload_bytes, sums);
}

/* x: page. Those behind it, up to the next one, are other rows of the same. */
static __global__ void __launch_bounds__(WARP)
    verify_kernel(kvt_cuda_page *pages, const uint32_t *firsts, const uint64_t *sums,
                  uint32_t max_blocks, uint32_t *ret_status) {
    uint32_t first = nth(firsts, blockIdx.x), end = nth(firsts, blockIdx.x + 1);
    kvt_cuda_page *page = &pages[first];
    if (page->status != KVT_OK)
        return;
    uint64_t hash = payload_hash(page, sums + (uint64_t)blockIdx.x * max_blocks * KVT_XXH3_LANES);
    __syncwarp(); /* every lane has looked at the status */
    if (hash == page->payload_hash)
        return;
    for (uint32_t i = first + threadIdx.x; i < end; i += WARP) {
        pages[i].status = KVT_ECORRUPT;
        pages[i].n_rows = 0;
    }
    if (threadIdx.x == 0 && ret_status)
        atomicMax(ret_status, (uint32_t)KVT_ECORRUPT);
}

#endif
