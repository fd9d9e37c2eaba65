/* engine.h - the example of an engine that reads encoded pages in place (engine.cu). */
#ifndef KVT_TESTS_CUDA_ENGINE_H
#define KVT_TESTS_CUDA_ENGINE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ENGINE_DIM = 128 }; /* head_dim of both parts */

/*
 * Of one layer of one planned page: scores[head][page_tokens] = q[head] . k, for the page's rows,
 * and out[head][dim] = the sum over the rows of score * v. Device memory; returns a cudaError_t.
 */
int engine_attend(const kvt_page_shape *shape, const kvt_cuda_page *page, uint32_t layer,
                  const float *q, float *scores, float *out, void *stream);

#ifdef __cplusplus
}
#endif

#endif
