/*
 * Launching kernels over whole pages (kernels.h). The kernels stand in kernels_decode.cuh,
 * kernels_encode.cuh and kernels_sum.cuh; all blocks have one dimension of KVT_BLOCK_THREADS
 * threads, or are one warp.
 */
#include <cuda_runtime.h>

#include "kernels/kernels_encode.cuh"

enum {
    MAX_GRID_Y = 65535,
    FEW_BLOCKS = 16,   /* a page, of kernels that mostly find nothing to do */
    SUM_BLOCKS = 64,   /* a page */
    COPY_BLOCKS = 128, /* a run */
};

/* ------------------------------------------------------------------------------------------------
 * Copying pages
 * ---------------------------------------------------------------------------------------------- */

/* x: share of the run; y: run. */
static __global__ void __launch_bounds__(KVT_BLOCK_THREADS)
    copy_runs_kernel(const kvt_cuda_copy_run *runs) {
    const uint4 *from = (const uint4 *)runs[blockIdx.y].from;
    uint4 *to = (uint4 *)runs[blockIdx.y].to;
    uint64_t n = runs[blockIdx.y].bytes / 16, step = (uint64_t)gridDim.x * KVT_BLOCK_THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * KVT_BLOCK_THREADS + threadIdx.x; i < n;
         i += UNROLL * step) {
        uint4 v[UNROLL];
        KVT_UNROLL
        for (uint32_t j = 0; j < UNROLL; j++) {
            if (i + j * step < n)
                v[j] = __ldcs(from + i + j * step);
        }
        KVT_UNROLL
        for (uint32_t j = 0; j < UNROLL; j++) {
            if (i + j * step < n)
                __stcs(to + i + j * step, v[j]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * Launching. Grids are cut where y would be over its limit.
 * ---------------------------------------------------------------------------------------------- */

static cudaLaunchConfig_t grid_of(dim3 grid, uint32_t threads, size_t shared_bytes, void *stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)stream;
    return config;
}

/* Blocks that a unit is cut into, to decode: so many that each has some hundred groups. */
static uint32_t decode_slices(const kvt_page_shape *shape) {
    uint32_t dim = shape->head_dim[shape->head_dim[1] > shape->head_dim[0]];
    uint32_t groups = kvt_groups_of(dim) * shape->page_tokens;
    return (groups + KVT_TILE_GROUPS - 1) / KVT_TILE_GROUPS;
}

static uint32_t at_most(uint32_t n, uint32_t most) {
    return n < most ? n : most;
}

/* Units of a page's segment. */
static uint32_t units_of(const kvt_page_shape *shape) {
    return shape->n_layers * shape->n_kv_heads * 2;
}

static uint32_t encode_slices(const kvt_page_shape *shape) {
    uint32_t a = kvt_slices_of(shape->head_dim[0], shape->page_tokens);
    uint32_t b = kvt_slices_of(shape->head_dim[1], shape->page_tokens);
    return a > b ? a : b;
}

/* 1 KiB blocks of the largest payload that any page of this geometry can have, whatever its codecs:
 * every unit of each segment at its largest. */
static uint32_t max_sum_blocks(const kvt_page_shape *shape) {
    uint64_t layer = 0;
    for (uint32_t p = 0; p < 2; p++) {
        uint32_t most = 0;
        for (uint32_t codec = 1; codec < KVT_N_CODECS; codec++) {
            uint32_t one = kvt_unit_layout_of(codec, shape->head_dim[p], 1).bytes;
            uint32_t all = kvt_unit_layout_of(codec, shape->head_dim[p], shape->page_tokens).bytes;
            uint32_t bytes = all + KVT_PAGE_MAX_SEGMENTS * one;
            most = bytes > most ? bytes : most;
        }
        layer += most;
    }
    uint64_t bytes = layer * shape->n_layers * shape->n_kv_heads + KVT_PAGE_MAX_SEGMENTS * 64;
    return (uint32_t)((bytes + KVT_XXH3_BLOCK_BYTES - 1) / KVT_XXH3_BLOCK_BYTES);
}

/* The workspace: jobs, then sums. */
typedef struct workspace {
    page_job *jobs;
    uint64_t *sums;
    uint32_t max_blocks;
} workspace;

static uint64_t job_bytes(uint32_t n_pages) {
    return ((uint64_t)n_pages * sizeof(page_job) + 63) / 64 * 64;
}

static workspace workspace_at(const kvt_page_shape *shape, uint32_t n_pages, void *at) {
    workspace w;
    w.jobs = (page_job *)at;
    w.sums = (uint64_t *)((uint8_t *)at + job_bytes(n_pages));
    w.max_blocks = max_sum_blocks(shape);
    return w;
}

extern "C" uint64_t kvt_cuda_workspace_bytes(const kvt_page_shape *shape, uint32_t n_pages) {
    return job_bytes(n_pages) +
           (uint64_t)n_pages * max_sum_blocks(shape) * KVT_XXH3_LANES * sizeof(uint64_t);
}

extern "C" int kvt_cuda_plan(const kvt_page_shape *shape, const kvt_cuda_read *reads,
                             uint32_t n_reads, kvt_cuda_page *ret_pages, uint32_t *ret_status,
                             void *stream) {
    if (n_reads == 0)
        return cudaSuccess;
    cudaLaunchConfig_t config = grid_of(dim3(n_reads), WARP, sizeof(kvt_lane_header), stream);
    return cudaLaunchKernelEx(&config, plan_kernel, *shape, reads, ret_pages, ret_status);
}

extern "C" int kvt_cuda_decode(const kvt_page_shape *shape, const kvt_cuda_page *pages,
                               uint32_t n_pages, uint32_t first_layer, uint32_t n_layers,
                               const kvt_layout *to, void *stream) {
    if (n_layers == 0)
        return cudaSuccess;
    if (first_layer > shape->n_layers || n_layers > shape->n_layers - first_layer)
        return cudaErrorInvalidValue;
    uint32_t n_slices = decode_slices(shape), x = n_layers * shape->n_kv_heads * n_slices;
    int error = cudaSuccess;
    for (uint32_t i = 0; i < n_pages && error == cudaSuccess; i += MAX_GRID_Y) {
        uint32_t n = at_most(n_pages - i, MAX_GRID_Y);
        cudaLaunchConfig_t config = grid_of(dim3(x, n, 2), KVT_BLOCK_THREADS, 0, stream);
        error = cudaLaunchKernelEx(&config, decode_kernel, *shape, pages + i, first_layer, n_slices,
                                   *to);
    }
    return error;
}

/* The sums of pages or jobs. */
static int launch_sums(void *pages, uint32_t stride_bytes, const uint32_t *firsts, uint32_t n_pages,
                       const workspace *w, void *stream) {
    uint32_t warps = KVT_BLOCK_THREADS / WARP, x = (w->max_blocks + warps - 1) / warps;
    cudaLaunchConfig_t config =
        grid_of(dim3(at_most(x, SUM_BLOCKS), n_pages), KVT_BLOCK_THREADS, 0, stream);
    return cudaLaunchKernelEx(&config, sum_kernel, pages, stride_bytes, firsts, w->sums,
                              w->max_blocks);
}

/* Each launch takes the workspace of the one before. */
extern "C" int kvt_cuda_verify(const kvt_page_shape *shape, kvt_cuda_page *pages,
                               const uint32_t *firsts, uint32_t n_pages, uint32_t *ret_status,
                               void *at, void *stream) {
    workspace w = workspace_at(shape, n_pages, at);
    int error = cudaSuccess;
    for (uint32_t i = 0; i < n_pages && error == cudaSuccess; i += MAX_GRID_Y) {
        uint32_t n = at_most(n_pages - i, MAX_GRID_Y);
        kvt_cuda_page *from = firsts ? pages : pages + i;
        const uint32_t *these = firsts ? firsts + i : NULL;
        cudaLaunchConfig_t config = grid_of(dim3(n), WARP, 0, stream);
        error = launch_sums(from, sizeof *pages, these, n, &w, stream);
        if (error == cudaSuccess)
            error = cudaLaunchKernelEx(&config, verify_kernel, from, these, w.sums, w.max_blocks,
                                       ret_status);
    }
    return error;
}

/* The new segments: coded, and raw where they were refused. */
static int launch_new_segments(const kvt_page_shape *shape, uint32_t n, const row_source *source,
                               page_job *jobs, void *stream) {
    uint32_t n_slices = encode_slices(shape), x = shape->n_layers * shape->n_kv_heads * n_slices;
    cudaLaunchConfig_t config = grid_of(dim3(x, n, 2), KVT_BLOCK_THREADS, sizeof(kvt_tile), stream);
    int error = cudaLaunchKernelEx(&config, encode_kernel, *shape, n_slices, *source, jobs);
    if (error != cudaSuccess)
        return error;
    config = grid_of(dim3((n + KVT_BLOCK_THREADS - 1) / KVT_BLOCK_THREADS), KVT_BLOCK_THREADS, 0,
                     stream);
    error = cudaLaunchKernelEx(&config, settle_kernel, *shape, n, jobs);
    if (error != cudaSuccess)
        return error;
    config = grid_of(dim3(at_most(units_of(shape) * n_slices, FEW_BLOCKS), n), KVT_BLOCK_THREADS,
                     sizeof(kvt_tile), stream);
    return cudaLaunchKernelEx(&config, fallback_kernel, *shape, n_slices, *source, jobs);
}

/* One chain for encoding (from a layout) and transcoding (from pages). */
static int launch_chain(const kvt_page_shape *shape, const kvt_cuda_write *writes, uint32_t n,
                        const row_source *source, kvt_cuda_result *ret_results, void *at,
                        void *stream) {
    if (n > MAX_GRID_Y)
        return cudaErrorInvalidValue;
    if (n == 0)
        return cudaSuccess;
    workspace w = workspace_at(shape, n, at);
    cudaLaunchConfig_t config = grid_of(dim3(n), WARP, sizeof(kvt_lane_header), stream);
    int error = cudaLaunchKernelEx(&config, prepare_kernel, *shape, writes, source->pages, w.jobs);
    if (error == cudaSuccess && !source->pages) {
        config =
            grid_of(dim3(at_most(units_of(shape), FEW_BLOCKS), n), KVT_BLOCK_THREADS, 0, stream);
        error = cudaLaunchKernelEx(&config, copy_kernel, *shape, w.jobs);
    }
    if (error == cudaSuccess)
        error = launch_new_segments(shape, n, source, w.jobs, stream);
    if (error == cudaSuccess)
        error = launch_sums(w.jobs, sizeof *w.jobs, NULL, n, &w, stream);
    if (error != cudaSuccess)
        return error;
    config = grid_of(dim3(n), WARP, sizeof(kvt_lane_header), stream);
    return cudaLaunchKernelEx(&config, finish_kernel, *shape, w.jobs, w.sums, w.max_blocks,
                              ret_results);
}

extern "C" int kvt_cuda_encode(const kvt_page_shape *shape, const kvt_cuda_write *writes,
                               uint32_t n_writes, const kvt_layout *from,
                               kvt_cuda_result *ret_results, void *at, void *stream) {
    row_source source = {*from, NULL};
    return launch_chain(shape, writes, n_writes, &source, ret_results, at, stream);
}

extern "C" int kvt_cuda_transcode(const kvt_page_shape *shape, const kvt_cuda_page *pages,
                                  const kvt_cuda_write *writes, uint32_t n_writes,
                                  kvt_cuda_result *ret_results, void *at, void *stream) {
    row_source source = {};
    source.pages = pages;
    return launch_chain(shape, writes, n_writes, &source, ret_results, at, stream);
}

extern "C" int kvt_cuda_copy(const kvt_cuda_copy_run *runs, uint32_t n_runs, uint64_t max_bytes,
                             void *stream) {
    uint64_t at_once = (uint64_t)16 * UNROLL * KVT_BLOCK_THREADS;
    uint64_t blocks = (max_bytes + at_once - 1) / at_once;
    uint32_t x = blocks < COPY_BLOCKS ? (uint32_t)blocks : (uint32_t)COPY_BLOCKS;
    int error = cudaSuccess;
    for (uint32_t i = 0; i < n_runs && error == cudaSuccess; i += MAX_GRID_Y) {
        uint32_t n = at_most(n_runs - i, MAX_GRID_Y);
        cudaLaunchConfig_t config = grid_of(dim3(x ? x : 1, n), KVT_BLOCK_THREADS, 0, stream);
        error = cudaLaunchKernelEx(&config, copy_runs_kernel, runs + i);
    }
    return error;
}

extern "C" const char *kvt_cuda_error_name(int error) {
    return cudaGetErrorName((cudaError_t)error);
}
