/*
 * codec_ggml.c - q8_0 and q4_0 as llama.cpp's own library computes them, beside ours. It is loaded
 * from the folder that KVT_GGML names (./run bench: where ./run llama has built it); without it one
 * line says so. It takes and gives floats: the conversion of rows of 16 bits, by the same library,
 * is part of the work, as it is of ours.
 */
#include "tests/bench/bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 128, ROW_BYTES = 2 * DIM };

typedef void quantise(const float *from, void *to, int64_t n);
typedef void dequantise(const void *from, float *to, int64_t n);

typedef struct ggml {
    void (*widen)(const uint16_t *from, float *to, int64_t n);
    void (*narrow)(const float *from, uint16_t *to, int64_t n);
    quantise *quantise[2]; /* q8_0, q4_0 */
    dequantise *dequantise[2];
} ggml;

static const struct {
    const char *name;
    size_t row_bytes; /* blocks of 32: a scale, and codes */
} codecs[2] = {{"q8_0", DIM / 32 * 34}, {"q4_0", DIM / 32 * 18}};

typedef struct ggml_work {
    const ggml *library;
    int codec;
    uint8_t *kv, *coded, *copy;
    size_t bytes;
    int repeats;
} ggml_work;

/* ISO C has no conversion between pointers to objects and to functions. */
static int find(void *library, const char *name, void *ret_function) {
    void *found = dlsym(library, name);
    memcpy(ret_function, &found, sizeof found);
    return found != NULL;
}

static int open_library(ggml *library) {
    const char *folder = getenv("KVT_GGML");
    char path[4096];
    void (*start)(void);
    if (!folder || !folder[0])
        return 0;
    snprintf(path, sizeof path, "%s/libggml-base.so", folder);
    void *base = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    snprintf(path, sizeof path, "%s/libggml-cpu.so", folder);
    void *cpu = base ? dlopen(path, RTLD_NOW) : NULL;
    if (!cpu || !find(cpu, "ggml_cpu_init", &start) ||
        !find(cpu, "ggml_cpu_fp16_to_fp32", &library->widen) ||
        !find(cpu, "ggml_cpu_fp32_to_fp16", &library->narrow))
        return 0;
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "quantize_row_%s", codecs[i].name);
        int found = find(cpu, name, &library->quantise[i]);
        snprintf(name, sizeof name, "dequantize_row_%s", codecs[i].name);
        if (!found || !find(base, name, &library->dequantise[i]))
            return 0;
    }
    start();
    return 1;
}

static void encode_rows(void *context) {
    const ggml_work *w = context;
    float row[DIM];
    for (int i = 0; i < w->repeats; i++) {
        uint8_t *to = w->coded;
        for (size_t at = 0; at < w->bytes; at += ROW_BYTES, to += codecs[w->codec].row_bytes) {
            w->library->widen((const void *)(w->kv + at), row, DIM);
            w->library->quantise[w->codec](row, to, DIM);
        }
    }
}

static void decode_rows(void *context) {
    const ggml_work *w = context;
    float row[DIM];
    for (int i = 0; i < w->repeats; i++) {
        const uint8_t *from = w->coded;
        for (size_t at = 0; at < w->bytes; at += ROW_BYTES, from += codecs[w->codec].row_bytes) {
            w->library->dequantise[w->codec](from, row, DIM);
            w->library->narrow(row, (void *)(w->kv + at), DIM);
        }
    }
}

static void copy_all(void *context) {
    const ggml_work *w = context;
    for (int i = 0; i < w->repeats; i++) {
        memcpy(w->copy, w->kv, w->bytes);
        __asm__ volatile("" ::"r"(w->copy) : "memory");
    }
}

static void report(const ggml_work *w, const char *what, const char *size, bench_pair pair) {
    char name[64];
    double speed = (double)w->bytes * w->repeats / pair.a / 1e9;
    snprintf(name, sizeof name, "llama.cpp's %s %s, %s", codecs[w->codec].name, what, size);
    bench_report(&(bench_row){.name = name,
                              .value = speed,
                              .unit = "GB/s",
                              .base = "memcpy",
                              .base_value = speed * pair.ratio,
                              .noise = pair.noise});
}

void bench_codec_ggml(uint8_t *kv, uint8_t *coded, uint8_t *copy, size_t bytes, int repeats,
                      int rounds, const char *size) {
    ggml library;
    if (!open_library(&library)) {
        bench_report(&(bench_row){.name = "llama.cpp's q8_0, q4_0: not at hand (./run llama)",
                                  .value = 0,
                                  .unit = "rows"});
        return;
    }
    for (int i = 0; i < 2; i++) {
        ggml_work w = {&library, i, kv, coded, copy, bytes, repeats};
        bench_pair pair = bench_turns_alone(encode_rows, copy_all, &w, rounds);
        report(&w, "encode", size, pair);
        pair = bench_turns_alone(decode_rows, copy_all, &w, rounds);
        report(&w, "decode", size, pair);
    }
}
