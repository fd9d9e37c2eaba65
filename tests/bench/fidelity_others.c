/*
 * fidelity_others.c - formats of others, written anew from their definitions.
 *
 * - q8_0, q4_0: llama.cpp, ggml/src/ggml-quants.c, quantize_row_q8_0_ref and quantize_row_q4_0_ref.
 * - e4m3, e2m1: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0.
 * - fp8, scale 1: vLLM, kv_cache_dtype fp8_e4m3 without calibrated scales.
 * - fp8/int4: the usual "k8v4": keys in e4m3, values with minimum and step of each token. Keys with
 *   scale 1; and, harder to beat, with a scale for each token.
 * - NVFP4: NVIDIA TensorRT and ModelOpt: e2m1 in blocks of 16 with a scale in e4m3 each, and a
 *   binary32 scale of the tensor, amax / (6 * 448).
 * - KIVI: Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024: K per
 *   channel in groups of tokens, V per token in groups of channels, minimum and step of each group.
 *   Its window of recent tokens in 16 bits is left out here, as it would be of any codec.
 *
 * Steps, minima and scales are rounded to binary16 where the format stores them so.
 */
#include "tests/bench/fidelity.h"

#include "kernels/unit.h"

#include <math.h>

static float half(float x) {
    return kvt_float_of_half(kvt_half_of_float(x));
}

static float clamp(float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
}

static float largest_magnitude(const float *x, int n) {
    float amax = 0;
    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

/* fn for each block of n elements along the rows. */
static void in_blocks(fid_head x, int n, void (*code)(float *block, int n)) {
    for (int t = 0; t < FID_TOKENS; t++)
        for (int d = 0; d < FID_DIM; d += n)
            code(&x[t][d], n);
}

/* --- llama.cpp ----------------------------------------------------------------------------------
 */

static void code_q8_0(float *block, int n) {
    float d = largest_magnitude(block, n) / 127, inverse = d > 0 ? 1 / d : 0, stored = half(d);
    for (int i = 0; i < n; i++)
        block[i] = roundf(block[i] * inverse) * stored;
}

/* The element of the largest magnitude gets code -8, whatever its sign: the scale may be negative.
 */
static void code_q4_0(float *block, int n) {
    float extreme = 0;
    for (int i = 0; i < n; i++)
        extreme = fabsf(block[i]) > fabsf(extreme) ? block[i] : extreme;
    float d = extreme / -8, inverse = fabsf(d) > 0 ? 1 / d : 0, stored = half(d);
    for (int i = 0; i < n; i++)
        block[i] = (fminf(15, truncf(block[i] * inverse + 8.5f)) - 8) * stored;
}

static void q8_0(fid_head x) {
    in_blocks(x, 32, code_q8_0);
}
static void q4_0(fid_head x) {
    in_blocks(x, 32, code_q4_0);
}

/* --- floating point -----------------------------------------------------------------------------
 */

static float e4m3(float x) {
    return kvt_float_of_e4m3(kvt_e4m3_of_float(x));
}

/* 0, .5, 1, 1.5, 2, 3, 4, 6: nearest, ties to the even code, saturating. */
static float e2m1(float x) {
    float a = fabsf(x), step = a < 2 ? .5f : a < 4 ? 1 : 2;
    return copysignf(fminf(rintf(a / step) * step, 6), x);
}

static void code_fp8(float *block, int n) {
    for (int i = 0; i < n; i++)
        block[i] = e4m3(block[i]);
}

static void code_fp8_scaled(float *block, int n) {
    float scale = half(largest_magnitude(block, n) / 448);
    for (int i = 0; i < n; i++)
        block[i] = scale > 0 ? e4m3(block[i] / scale) * scale : 0;
}

static void fp8(fid_head x) {
    in_blocks(x, FID_DIM, code_fp8);
}
static void fp8_per_token(fid_head x) {
    in_blocks(x, FID_DIM, code_fp8_scaled);
}

/* A head is a tensor. */
static void nvfp4(fid_head x) {
    float tensor = largest_magnitude(&x[0][0], FID_TOKENS * FID_DIM) / (6 * 448);
    for (int t = 0; t < FID_TOKENS; t++) {
        for (int d = 0; d < FID_DIM; d += 16) {
            float *block = &x[t][d];
            float scale = e4m3(largest_magnitude(block, 16) / 6 / tensor) * tensor;
            for (int i = 0; i < 16; i++)
                block[i] = scale > 0 ? e2m1(block[i] / scale) * scale : 0;
        }
    }
}

/* --- minimum and step of a group ----------------------------------------------------------------
 */

/* n elements, `stride` apart. */
static void code_asymmetric(float *x, int n, int stride, int bits) {
    float low = x[0], high = x[0], most = (float)((1 << bits) - 1);
    for (int i = 0; i < n; i++) {
        low = fminf(low, x[i * stride]);
        high = fmaxf(high, x[i * stride]);
    }
    float minimum = half(low), step = half((high - low) / most);
    for (int i = 0; i < n; i++) {
        float code = step > 0 ? clamp(rintf((x[i * stride] - minimum) / step), 0, most) : 0;
        x[i * stride] = code * step + minimum;
    }
}

static void per_channel(fid_head x, int group, int bits) {
    for (int t = 0; t < FID_TOKENS; t += group)
        for (int d = 0; d < FID_DIM; d++)
            code_asymmetric(&x[t][d], group, FID_DIM, bits);
}

static void per_token(fid_head x, int group, int bits) {
    for (int t = 0; t < FID_TOKENS; t++)
        for (int d = 0; d < FID_DIM; d += group)
            code_asymmetric(&x[t][d], group, 1, bits);
}

static void int4_per_token(fid_head x) {
    per_token(x, FID_DIM, 4);
}
static void kivi4_k(fid_head x) {
    per_channel(x, 64, 4);
}
static void kivi4_v(fid_head x) {
    per_token(x, 64, 4);
}
static void kivi2_k(fid_head x) {
    per_channel(x, 32, 2);
}
static void kivi2_v(fid_head x) {
    per_token(x, 32, 2);
}

const fid_other fid_others[] = {
    {"q8_0", 8 + 16. / 32, q8_0, q8_0},
    {"fp8, scale 1", 8, fp8, fp8},
    {"fp8, scale 1/int4 per token", (8 + (4 + 32. / 128)) / 2, fp8, int4_per_token},
    {"fp8 per token/int4 per token", ((8 + 16. / 128) + (4 + 32. / 128)) / 2, fp8_per_token,
     int4_per_token},
    {"q4_0", 4 + 16. / 32, q4_0, q4_0},
    {"NVFP4", 4 + 8. / 16, nvfp4, nvfp4},
    {"KIVI-4, groups of 64", 4 + 32. / 64, kivi4_k, kivi4_v},
    {"KIVI-2, groups of 32", 2 + 32. / 32, kivi2_k, kivi2_v},
    {0},
};
