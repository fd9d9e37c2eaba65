/* kit.h - what the tests of kernels share: device memory, and KV of every kind of numbers in it. */
#ifndef KVT_TESTS_CUDA_KIT_H
#define KVT_TESTS_CUDA_KIT_H

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"
#include "tests/kv_kit.h"

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        int error_ = (int)(call);                                                                  \
        if (error_ != 0) {                                                                         \
            fprintf(stderr, "%s:%d: %s gives %s\n", __FILE__, __LINE__, #call,                     \
                    cudaGetErrorName((cudaError_t)error_));                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline void *device_new(size_t bytes) {
    void *memory;
    CUDA(cudaMalloc(&memory, bytes));
    return memory;
}

static inline void *device_copy_of(const void *host, size_t bytes) {
    void *memory = device_new(bytes);
    CUDA(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
    return memory;
}

static inline void device_read(void *host, const void *device, size_t bytes) {
    CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

/* Pinned host memory, as the arrays that a worker hands to kernels. */
static inline void *pinned_new(size_t bytes) {
    void *memory;
    CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
    return memory;
}

/* The same KV on the device: same strides, other pointers. */
static inline kvt_layout device_kv_of(const kv_kit *kit) {
    kvt_layout layout = kit->layout;
    for (int p = 0; p < 2; p++)
        layout.part[p] = device_copy_of(kit->layout.part[p], kit->bytes[p]);
    return layout;
}

/* Back into the host's buffers; frees the device's. */
static inline void device_kv_read(const kvt_layout *layout, kv_kit *kit) {
    for (int p = 0; p < 2; p++) {
        device_read(kit->layout.part[p], layout->part[p], kit->bytes[p]);
        CUDA(cudaFree(layout->part[p]));
    }
}

static inline void device_kv_free(const kvt_layout *layout) {
    for (int p = 0; p < 2; p++)
        CUDA(cudaFree(layout->part[p]));
}

/* ------------------------------------------------------------------------------------------------
 * Numbers
 * ---------------------------------------------------------------------------------------------- */

typedef enum kit_data {
    KIT_CHANNELS, /* a magnitude for each channel, some of them far out, as keys have them */
    KIT_BITS,     /* any bits that a codec takes: subnormals, zeros of both signs, up to 8192 */
    KIT_FLAT,     /* rows and channels of one value, zeros, and one element that stands out */
    KIT_REFUSED,  /* as KIT_CHANNELS, with one element that no codec takes */
    KIT_N_DATA
} kit_data;

/* Sign, exponent and mantissa of the dtype, from a number of quarter powers of two. */
static inline uint16_t kit_element(uint32_t dtype, uint64_t random, int exponent) {
    uint32_t mantissa = (uint32_t)random, sign = (uint32_t)(random >> 32 & 1);
    if (dtype == KVT_BF16)
        return (uint16_t)(sign << 15 | (uint32_t)(exponent + 127) << 7 | (mantissa & 0x7f));
    return (uint16_t)(sign << 15 | (uint32_t)(exponent + 15) << 10 | (mantissa & 0x3ff));
}

static inline uint16_t kit_any_element(uint32_t dtype, uint64_t random) {
    uint32_t limit = dtype == KVT_BF16 ? 0x4600 : 0x7000; /* 8192 */
    return (uint16_t)((uint32_t)(random % (limit + 1)) | (uint32_t)(random >> 63) << 15);
}

static inline void kit_fill_row(uint32_t dtype, kit_data data, uint64_t *seed, uint32_t t,
                                uint32_t dim, uint16_t *row) {
    for (uint32_t d = 0; d < dim; d++) {
        uint64_t random = check_random(seed);
        int channel = (int)(d * 2654435761u >> 28); /* 0 .. 15 */
        int exponent = (channel == 3 ? 5 : channel % 3 - 2) - (int)(random >> 40 & 3);
        row[d] = kit_element(dtype, random, exponent);
        if (data == KIT_BITS)
            row[d] = kit_any_element(dtype, random);
        if (data == KIT_FLAT)
            row[d] = t % 3 == 0 ? 0 : kit_element(dtype, d % 5, (int)(d % 5));
    }
    if (data == KIT_FLAT && t == 1)
        row[dim / 2] = kit_element(dtype, 77, 12);
}

static inline void kit_fill(kv_kit *kit, kit_data data, uint64_t *seed) {
    static const uint16_t refused[2][3] = {{0x7001, 0x7c00, 0xfe00}, {0x4601, 0x7f80, 0xffc0}};
    KV_FOR_ROWS(kit, p, l, h, t) {
        kit_fill_row(kit->geometry.dtype, data, seed, t, kit->geometry.head_dim[p],
                     kv_row(kit, p, l, h, t));
    }
    if (data != KIT_REFUSED)
        return;
    int p = (int)check_below(seed, 2);
    uint16_t *row =
        kv_row(kit, p, check_below(seed, kit->n_layers),
               check_below(seed, kit->geometry.n_kv_heads), check_below(seed, kit->n_tokens));
    row[check_below(seed, kit->geometry.head_dim[p])] =
        refused[kit->geometry.dtype == KVT_BF16][check_below(seed, 3)];
}

#endif
