/*
 * gpu.h - a worker's own memory and streams on a GPU, for end-to-end tests. CUDA's runtime is found
 * at run time: in the module on the stand-in (tests/cuda), or, on a machine with a GPU, in the
 * library that KVT_TEST_CUDART names.
 */
#ifndef KVT_TESTS_E2E_GPU_H
#define KVT_TESTS_E2E_GPU_H

#include "tests/check.h"

#include <dlfcn.h>

/* A call of the runtime by name; as in its header, the first argument lists its types. */
#define GPU_CALL(name, types, ...)                                                                 \
    do {                                                                                           \
        int(*call) types;                                                                          \
        *(void **)(void *)&call = gpu_symbol(name);                                                \
        int error = call(__VA_ARGS__);                                                             \
        CHECK_MSG(error == 0, "%s: error %d", name, error);                                        \
    } while (0)

/* Names of streams. */
#define GPU_LEGACY     ((void *)(uintptr_t)1)
#define GPU_PER_THREAD ((void *)(uintptr_t)2)

enum { GPU_TO_DEVICE = 1, GPU_TO_HOST = 2, GPU_NON_BLOCKING = 1 };

static inline void *gpu_symbol(const char *name) {
    static void *runtime;
    if (!runtime) {
        const char *path = getenv("KVT_TEST_CUDART");
        path = path ? path : getenv("KVTRUNK_CUDA");
        runtime = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        CHECK_MSG(runtime, "%s", dlerror());
    }
    void *symbol = dlsym(runtime, name);
    CHECK_MSG(symbol, "%s", dlerror());
    return symbol;
}

static inline void *gpu_memory(size_t bytes) {
    void *memory;
    GPU_CALL("cudaMalloc", (void **, size_t), &memory, bytes);
    return memory;
}

static inline void gpu_free(void *memory) {
    GPU_CALL("cudaFree", (void *), memory);
}

static inline void *gpu_pinned(size_t bytes) {
    void *memory;
    GPU_CALL("cudaHostAlloc", (void **, size_t, unsigned), &memory, bytes, 0);
    return memory;
}

static inline void *gpu_stream(void) {
    void *stream;
    GPU_CALL("cudaStreamCreateWithFlags", (void **, unsigned), &stream, GPU_NON_BLOCKING);
    return stream;
}

static inline void gpu_stream_free(void *stream) {
    GPU_CALL("cudaStreamDestroy", (void *), stream);
}

/* Both wait for themselves, and for no other stream. */
static inline void gpu_put(void *device, const void *host, size_t bytes) {
    GPU_CALL("cudaMemcpy", (void *, const void *, size_t, int), device, host, bytes, GPU_TO_DEVICE);
}
/* By a stream of its own: by the default one it would come behind what was put there by mistake. */
static inline void gpu_get(void *host, const void *device, size_t bytes) {
    void *stream = gpu_stream(), *pinned;
    GPU_CALL("cudaHostAlloc", (void **, size_t, unsigned), &pinned, bytes, 0);
    GPU_CALL("cudaMemcpyAsync", (void *, const void *, size_t, int, void *), pinned, device, bytes,
             GPU_TO_HOST, stream);
    GPU_CALL("cudaStreamSynchronize", (void *), stream);
    memcpy(host, pinned, bytes);
    GPU_CALL("cudaFreeHost", (void *), pinned);
    gpu_stream_free(stream);
}

/* Work that comes late in the stream: what is behind it must wait for it. */
static inline void gpu_set(void *device, int byte, size_t bytes, void *stream) {
    GPU_CALL("cudaMemsetAsync", (void *, int, size_t, void *), device, byte, bytes, stream);
}

#endif
