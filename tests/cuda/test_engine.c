/* The example of an engine (engine.cu) against pages that the reference encodes and decodes: that
 * what unit_device.cuh gives can be used from outside, and gives what kvt_page_decode gives. */
#include <math.h>

#include "kernels/unit.h"
#include "tests/cuda/engine.h"
#include "tests/cuda/kit.h"

enum { TOKENS = 64, LAYERS = 2 };

static float element(const kvt_geometry *g, uint16_t bits) {
    return kvt_float_of_element(g->dtype, bits);
}

/* In binary64, from decoded rows; what the kernel says may differ by the roundings of its sums, and
 * of the elements to 16 bits, which it does not do. */
static void expect_attention(const kv_kit *decoded, uint32_t layer, uint32_t head, uint32_t rows,
                             const float *q, const float *scores, const float *out) {
    double expected[ENGINE_DIM] = {0}, size[ENGINE_DIM] = {0};
    for (uint32_t t = 0; t < rows; t++) {
        const uint16_t *k = kv_row(decoded, 0, layer, head, t);
        const uint16_t *v = kv_row(decoded, 1, layer, head, t);
        double score = 0, score_size = 0;
        for (uint32_t d = 0; d < ENGINE_DIM; d++) {
            double part =
                (double)q[head * ENGINE_DIM + d] * (double)element(&decoded->geometry, k[d]);
            score += part;
            score_size += fabs(part);
        }
        CHECK_MSG(fabs(score - (double)scores[head * TOKENS + t]) <= score_size * 2e-3,
                  "layer %u, head %u, row %u: score %g, not %g", layer, head, t,
                  (double)scores[head * TOKENS + t], score);
        for (uint32_t d = 0; d < ENGINE_DIM; d++) {
            double part = score * (double)element(&decoded->geometry, v[d]);
            expected[d] += part;
            size[d] +=
                fabs(part) + score_size * 2e-3 * fabs((double)element(&decoded->geometry, v[d]));
        }
    }
    for (uint32_t d = 0; d < ENGINE_DIM; d++)
        CHECK_MSG(fabs(expected[d] - (double)out[head * ENGINE_DIM + d]) <= size[d] * 4e-3 + 1e-3,
                  "layer %u, head %u, dim %u: %g, not %g", layer, head, d,
                  (double)out[head * ENGINE_DIM + d], expected[d]);
}

static void test_set(const char *codec, uint32_t rows, uint64_t seed) {
    enum { HEADS = 2 };
    kvt_geometry g;
    kvt_geometry_init(&g, LAYERS, HEADS, ENGINE_DIM, TOKENS);
    kvt_page_shape shape;
    CHECK(kvt_page_shape_init(&g, 0, codec, NULL, 0, &shape) == KVT_OK);
    kv_kit kit = kv_new(&g, LAYERS, TOKENS, KV_TOKEN_MAJOR);
    kv_kit decoded = kv_new(&g, LAYERS, TOKENS, KV_TOKEN_MAJOR);
    kit_fill(&kit, KIT_CHANNELS, &seed);
    size_t room = kvt_page_max_bytes(&shape), n_bytes;
    void *first = page_new(room), *page = page_new(room);
    uint32_t keep = rows / 3; /* two segments */
    CHECK(kvt_page_encode(&shape, keep, &kit.layout, first, room, &n_bytes) == KVT_OK);
    CHECK(kvt_page_encode_cow(&shape, first, n_bytes, keep, rows, &kit.layout, 0, page, room,
                              &n_bytes) == KVT_OK);
    CHECK(kvt_page_decode(&shape, page, n_bytes, 0, rows, 0, LAYERS, &decoded.layout) == KVT_OK);
    float q[HEADS * ENGINE_DIM], scores[HEADS * TOKENS], out[HEADS * ENGINE_DIM];
    for (uint32_t i = 0; i < HEADS * ENGINE_DIM; i++)
        q[i] = (float)(int32_t)check_below(&seed, 2001) / 1000.0f - 1.0f;
    kvt_cuda_read *read = pinned_new(sizeof *read);
    void *device_page = device_copy_of(page, n_bytes);
    read->page = device_page;
    read->page_bytes = n_bytes;
    read->first_row = 0;
    read->n_rows = rows;
    read->token = 0;
    kvt_cuda_page *plan = device_new(sizeof *plan);
    float *device_q = device_copy_of(q, sizeof q);
    float *device_scores = device_new(sizeof scores);
    float *device_out = device_new(sizeof out);
    CUDA(kvt_cuda_plan(&shape, read, 1, plan, NULL, NULL));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        CUDA(engine_attend(&shape, plan, layer, device_q, device_scores, device_out, NULL));
        CUDA(cudaDeviceSynchronize());
        device_read(scores, device_scores, sizeof scores);
        device_read(out, device_out, sizeof out);
        for (uint32_t head = 0; head < HEADS; head++)
            expect_attention(&decoded, layer, head, rows, q, scores, out);
    }
    CUDA(cudaFree(device_page));
    CUDA(cudaFreeHost(read));
    CUDA(cudaFree(plan));
    CUDA(cudaFree(device_q));
    CUDA(cudaFree(device_scores));
    CUDA(cudaFree(device_out));
    free(first);
    free(page);
    kv_free(&kit);
    kv_free(&decoded);
}

int main(void) {
    const char *const sets[] = {"i8", "k8v4", "i4", "fp8", "k:i4s,v:w2v"};
    for (uint32_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        test_set(sets[i], i % 2 ? TOKENS : TOKENS - 3, 5 + i);
    return 0;
}
