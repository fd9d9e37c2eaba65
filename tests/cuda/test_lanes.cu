/*
 * What a lane computes with instructions or tricks of its own (unit_device.cuh, unit_encode.cuh)
 * against unit.h: every input where a GPU runs it, every 65,521st float where a CPU does (there the
 * conversions are unit.h's own; the tricks are not).
 *
 *     test_lanes [--all]
 */
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/unit_encode.cuh"

enum { N_CHECKS = 10, THREADS = 128 };

static const char *const names[N_CHECKS] = {
    "binary16 -> binary32",
    "e4m3 -> binary32",
    "byte -> binary32",
    "integer codes",
    "levels of w4v and w2v",
    "binary32 -> binary16",
    "binary32 -> pairs",
    "binary32 -> e4m3",
    "scales",
    "pairs",
};

/* What the checks found: how many differ, and one input that does. */
typedef struct findings {
    uint32_t n_wrong[N_CHECKS];
    uint32_t example[N_CHECKS];
} findings;

KVT_LANE void expect(findings *f, uint32_t check, uint32_t input, uint32_t got, uint32_t expected) {
    if (got == expected)
        return;
    atomicAdd(&f->n_wrong[check], 1u);
    atomicMax(&f->example[check], input);
}

/* NaNs need not keep their payload: no page has them. */
KVT_LANE uint32_t same_nan(float f) {
    return f != f ? 0x7fc00000u : kvt_float_bits(f);
}
KVT_LANE uint32_t same_nan16(uint32_t dtype, uint32_t element) {
    uint32_t infinity = dtype == KVT_BF16 ? 0x7f80u : 0x7c00u;
    return (element & 0x7fffu) > infinity ? 0x7fffu : element;
}

KVT_LANE float element_of(const uint32_t *pairs, uint32_t i) {
    return i < KVT_PAIRS ? kvt_lane_float_of_low(pairs[i]) : kvt_lane_float_of_high(pairs[i - 4]);
}

/* Inputs of 16 bits and less. */
KVT_LANE void check_short(uint32_t i, findings *f) {
    expect(f, 0, i, same_nan(kvt_lane_float_of_half((uint16_t)i)),
           same_nan(kvt_float_of_half((uint16_t)i)));
    for (uint32_t at = 0; at < 4 && i < 256; at++)
        expect(f, 2, i,
               kvt_float_bits(kvt_lane_float_of_byte(i << (8 * at) | ~(0xffu << (8 * at)), at)),
               kvt_float_bits((float)i));
    if (i < 256)
        expect(f, 1, i, same_nan(kvt_lane_float_of_e4m3(i)),
               same_nan(kvt_float_of_e4m3((uint8_t)i)));
    for (uint32_t at = 0; at < KVT_GROUP; at++) {
        uint32_t code = i >> (at % 4 * 4) & 0xf, word = at < 4 ? i : i << 16;
        uint4 bits = make_uint4(word, word ^ 0x5a5a5a5au, 0, 0);
        uint32_t byte = kvt_lane_word(bits, at / 4) >> (at % 4 * 8) & 0xff;
        expect(f, 3, i, kvt_float_bits(kvt_lane_integer(KVT_CODEC_I8K, bits, at)),
               kvt_float_bits((float)kvt_signed_code(byte, 8)));
        expect(f, 3, i, kvt_float_bits(kvt_lane_integer(KVT_CODEC_I4S, bits, at)),
               kvt_float_bits((float)kvt_signed_code(word >> (4 * at) & 0xf, 4)));
        expect(f, 3, i, kvt_float_bits(kvt_lane_integer(KVT_CODEC_I4K, bits, at)),
               kvt_float_bits((float)(word >> (4 * at) & 0xf)));
        expect(f, 3, i, kvt_float_bits(kvt_lane_integer(KVT_CODEC_I2K, bits, at)),
               kvt_float_bits((float)(word >> (2 * at) & 3)));
        /* Both elements of a pair, and the borrow between them. */
        uint32_t pairs[KVT_PAIRS];
        uint32_t eight = i | (i << 16 ^ 0x9e370000u);
        kvt_lane_levels(KVT_CODEC_W4V, eight, pairs);
        code = eight >> (4 * at) & 0xf;
        int32_t level = kvt_w4v_level(code & 7);
        expect(f, 4, i, kvt_float_bits(element_of(pairs, at)),
               kvt_float_bits((float)(code & 8 ? -level : level)));
        kvt_lane_levels(KVT_CODEC_W2V, i, pairs);
        uint32_t two = i >> (2 * at) & 3;
        level = kvt_w2v_level(two & 1);
        expect(f, 4, i, kvt_float_bits(element_of(pairs, at)),
               kvt_float_bits((float)(two & 2 ? -level : level)));
        uint32_t pair =
            i + (i * 40503u << 16); /* element i, as 16 bits with a sign, is the lower one */
        expect(f, 9, i, kvt_float_bits(kvt_lane_float_of_low(pair)),
               kvt_float_bits((float)(int16_t)pair));
        expect(f, 9, i, kvt_float_bits(kvt_lane_float_of_high(pair)),
               kvt_float_bits((float)(int16_t)((pair - (uint32_t)(int16_t)pair) >> 16)));
    }
}

KVT_LANE void check_float(uint32_t bits, findings *f) {
    float x = kvt_float_of_bits(bits), other = kvt_float_of_bits(bits * 2654435761u);
    expect(f, 5, bits, same_nan16(KVT_F16, kvt_lane_half_of_float(x)),
           same_nan16(KVT_F16, kvt_half_of_float(x)));
    for (uint32_t dtype = KVT_F16; dtype <= KVT_BF16; dtype++) {
        uint32_t pair = kvt_lane_pack2(dtype, x, other);
        expect(f, 6, bits, same_nan16(dtype, pair & 0xffff),
               same_nan16(dtype, kvt_element_of_float(dtype, x)));
        expect(f, 6, bits, same_nan16(dtype, pair >> 16),
               same_nan16(dtype, kvt_element_of_float(dtype, other)));
    }
    expect(f, 7, bits, kvt_lane_e4m3_of_float(x) & (x != x ? 0x7fu : 0xffu), kvt_e4m3_of_float(x));
    if (x == x)
        expect(f, 8, bits, kvt_lane_scale_of_float(x), kvt_scale_of_float(x));
}

/* Thread i takes floats first + i * step; the first 65,536 threads of all the shorter inputs. */
static __global__ void __launch_bounds__(THREADS)
    check_kernel(uint32_t first, uint32_t step, uint32_t n_each, findings *f) {
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (first == 0 && i < 65536)
        check_short(i, f);
    for (uint32_t j = 0; j < n_each; j++)
        check_float(first + (i * n_each + j) * step, f);
}

static void check(int error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "test_lanes: %s: %s\n", what, cudaGetErrorName((cudaError_t)error));
        exit(1);
    }
}

static void launch(uint32_t first, uint32_t step, uint32_t n_each, findings *device) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(65536 / THREADS);
    config.blockDim = dim3(THREADS);
    check(cudaLaunchKernelEx(&config, check_kernel, first, step, n_each, device), "launch");
}

int main(int argc, char **argv) {
    int all = argc > 1 && strcmp(argv[1], "--all") == 0;
    findings host, *device;
    void *memory;
    check(cudaMalloc(&memory, sizeof host), "cudaMalloc");
    device = (findings *)memory;
    check(cudaMemset(device, 0, sizeof host), "cudaMemset");
    if (all) {
        for (uint32_t i = 0; i < 16; i++) /* 2^28 floats each */
            launch(i << 28, 1, 4096, device);
    } else {
        launch(0, 65521, 1, device);
    }
    check(cudaDeviceSynchronize(), "the kernels");
    check(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < N_CHECKS; i++) {
        n_wrong += host.n_wrong[i];
        if (host.n_wrong[i])
            printf("%s: %u differ, among them 0x%08x\n", names[i], host.n_wrong[i],
                   host.example[i]);
    }
    check(cudaFree(device), "cudaFree");
    printf("%s inputs: %s\n", all ? "all" : "some", n_wrong ? "DIFFERENT" : "equal");
    return n_wrong != 0;
}
