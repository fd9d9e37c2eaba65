/*
 * engine.cu - an engine that attends over encoded pages in place, with what unit_device.cuh and
 * page_device.cuh give it: the scores q . k of every row of K in a page, and the sum of the rows of
 * V weighted by them, without a decoded row ever standing in memory. It is the example for engines,
 * and the test that the functions can be used from outside.
 */
#include <cuda_runtime.h>

#include "kernels/page_device.cuh"
#include "tests/cuda/engine.h"

enum { GROUPS = ENGINE_DIM / KVT_GROUP, ROWS_OF_WARP = 32 / GROUPS };

/* The sum over the lanes that hold one row. */
KVT_LANE float sum_of_row(float x) {
    for (int step = 1; step < GROUPS; step *= 2)
        x += __shfl_xor_sync(KVT_ALL_LANES, x, step, 32);
    return x;
}

/* As kvt_lane_decode, and for raw16 too: the first rows of a path's first page are such a segment.
 */
KVT_LANE void decode(const kvt_lane_unit *unit, uint32_t dtype, uint32_t group,
                     const kvt_lane_channels *channels, const kvt_lane_codes *codes, float *x) {
    uint4 elements = kvt_lane_decode_elements(unit, dtype, group, channels, codes);
    for (uint32_t i = 0; i < KVT_GROUP; i++)
        x[i] = kvt_lane_float_of_element(dtype, kvt_lane_element(elements, i));
}

/*
 * One warp for each head: its 32 lanes hold two rows of 16 groups. That is the order of lanes that
 * rotated codecs ask for, and all lanes call kvt_lane_decode together: a lane whose row is not
 * there goes along with zeros.
 */
static __global__ void __launch_bounds__(32)
    attend_kernel(const __grid_constant__ kvt_page_shape shape, const kvt_cuda_page *page,
                  uint32_t layer, const float *q, float *scores, float *out) {
    uint32_t head = blockIdx.x, lane = threadIdx.x, group = lane % GROUPS;
    float sum[KVT_GROUP] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (uint32_t s = 0; s < page->n_segments; s++) {
        uint32_t rows = page->segments[s].rows, first_row = page->segments[s].first_row;
        kvt_lane_unit k = kvt_lane_unit_of_page(&shape, page, s, layer, 0, head);
        kvt_lane_unit v = kvt_lane_unit_of_page(&shape, page, s, layer, 1, head);
        kvt_lane_channels k_channels = kvt_lane_load_channels(&k, group);
        kvt_lane_channels v_channels = kvt_lane_load_channels(&v, group);
        for (uint32_t base = 0; base < rows; base += ROWS_OF_WARP) {
            uint32_t row = base + lane / GROUPS;
            kvt_lane_codes k_codes = {make_uint4(0, 0, 0, 0), 0}, v_codes = k_codes;
            if (row < rows) {
                k_codes = kvt_lane_load(&k, row, group);
                v_codes = kvt_lane_load(&v, row, group);
            }
            float x[KVT_GROUP], score = 0;
            decode(&k, shape.dtype, group, &k_channels, &k_codes, x);
            for (uint32_t i = 0; i < KVT_GROUP; i++)
                score += x[i] * q[head * ENGINE_DIM + group * KVT_GROUP + i];
            score = sum_of_row(score);
            decode(&v, shape.dtype, group, &v_channels, &v_codes, x);
            if (row >= rows)
                continue;
            if (group == 0)
                scores[head * shape.page_tokens + first_row + row] = score;
            for (uint32_t i = 0; i < KVT_GROUP; i++)
                sum[i] += score * x[i];
        }
    }
    for (uint32_t i = 0; i < KVT_GROUP; i++) { /* the rows of the two halves of the warp */
        sum[i] += __shfl_xor_sync(KVT_ALL_LANES, sum[i], GROUPS, 32);
        if (lane < GROUPS)
            out[head * ENGINE_DIM + group * KVT_GROUP + i] = sum[i];
    }
}

extern "C" int engine_attend(const kvt_page_shape *shape, const kvt_cuda_page *page, uint32_t layer,
                             const float *q, float *scores, float *out, void *stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(shape->n_kv_heads);
    config.blockDim = dim3(32);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, attend_kernel, *shape, page, layer, q, scores, out);
}
