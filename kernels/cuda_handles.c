/* cuda_handles.c - see cuda_handles.h. */
#include "kernels/cuda_handles.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/assert.h"
#include "kernels/say.h"

struct kvt_cuda_opened {
    kvt_cuda_opened *next;
    uint32_t refs;
    kvt_wire_memory memory;
    int gpu;
    uint8_t *at;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static kvt_cuda_opened *all;

static kvt_status find_gpu(const kvt_wire_memory *memory, char *why, size_t why_bytes,
                           int *ret_gpu) {
    if (memory->magic != KVT_MEMORY_MAGIC || memory->kind != KVT_MEMORY_CUDA ||
        memory->bytes == 0 || !memchr(memory->bus_id, 0, sizeof memory->bus_id))
        return kvt_say(why, why_bytes, KVT_EINVAL, "that describes no memory of a GPU");
    cudaError_t error = cudaDeviceGetByPCIBusId(ret_gpu, memory->bus_id);
    if (error == cudaSuccess)
        error = cudaSetDevice(*ret_gpu);
    return error == cudaSuccess
               ? KVT_OK
               : kvt_say(why, why_bytes, KVT_ENOTSUP, "the GPU %s cannot be used here: %s",
                         memory->bus_id, cudaGetErrorString(error));
}

/* With the mutex held. */
static kvt_status open_new(const kvt_wire_memory *memory, char *why, size_t why_bytes,
                           kvt_cuda_opened **ret_opened) {
    int gpu;
    void *at;
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof handle == sizeof memory->handle, "as CUDA has it");
    kvt_status status = find_gpu(memory, why, why_bytes, &gpu);
    if (status != KVT_OK)
        return status;
    kvt_cuda_opened *opened = calloc(1, sizeof *opened);
    if (!opened)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory");
    memcpy(&handle, memory->handle, sizeof handle);
    cudaError_t error = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
        free(opened);
        return kvt_say(why, why_bytes, KVT_EIO,
                       "the memory of another process on the GPU %s cannot be opened: %s",
                       memory->bus_id, cudaGetErrorString(error));
    }
    *opened = (kvt_cuda_opened){.next = all, .refs = 1, .memory = *memory, .gpu = gpu, .at = at};
    all = opened;
    *ret_opened = opened;
    return KVT_OK;
}

kvt_status kvt_cuda_open_memory(const kvt_wire_memory *memory, char *why, size_t why_bytes,
                                kvt_cuda_opened **ret_opened) {
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&mutex);
    kvt_cuda_opened *opened = all;
    while (opened && memcmp(opened->memory.handle, memory->handle, sizeof memory->handle) != 0)
        opened = opened->next;
    if (!opened) {
        status = open_new(memory, why, why_bytes, ret_opened);
    } else if (memcmp(&opened->memory, memory, sizeof *memory) != 0) {
        status = kvt_say(why, why_bytes, KVT_EINVAL, "one handle, two descriptions");
    } else {
        opened->refs++;
        *ret_opened = opened;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

kvt_status kvt_cuda_close_memory(kvt_cuda_opened *opened) {
    cudaError_t error = cudaSuccess;
    if (!opened)
        return KVT_OK;
    pthread_mutex_lock(&mutex);
    KVT_ASSERT(opened->refs > 0);
    if (--opened->refs == 0) {
        kvt_cuda_opened **at = &all;
        while (*at != opened)
            at = &(*at)->next;
        *at = opened->next;
        cudaSetDevice(opened->gpu);
        error = cudaIpcCloseMemHandle(opened->at);
        free(opened);
    }
    pthread_mutex_unlock(&mutex);
    return error == cudaSuccess ? KVT_OK : KVT_EIO;
}

uint8_t *kvt_cuda_opened_at(const kvt_cuda_opened *opened) {
    return opened->at;
}

uint64_t kvt_cuda_opened_bytes(const kvt_cuda_opened *opened) {
    return opened->memory.bytes;
}

int kvt_cuda_opened_gpu(const kvt_cuda_opened *opened) {
    return opened->gpu;
}

int kvt_cuda_shared_new(uint64_t bytes, void **ret_at) {
    if (bytes > SIZE_MAX / 2)
        return cudaErrorMemoryAllocation;
    size_t more = (size_t)bytes + KVT_CUDA_SHARED_BYTES - 1;
    return (int)cudaMalloc(ret_at, more - more % KVT_CUDA_SHARED_BYTES);
}

kvt_status kvt_cuda_describe(void *allocation, uint64_t bytes, int gpu,
                             kvt_wire_memory *ret_memory) {
    kvt_wire_memory memory = {.magic = KVT_MEMORY_MAGIC, .kind = KVT_MEMORY_CUDA, .bytes = bytes};
    cudaIpcMemHandle_t handle;
    if (cudaSetDevice(gpu) != cudaSuccess ||
        cudaDeviceGetPCIBusId(memory.bus_id, sizeof memory.bus_id, gpu) != cudaSuccess ||
        cudaIpcGetMemHandle(&handle, allocation) != cudaSuccess)
        return KVT_EIO;
    memcpy(memory.handle, &handle, sizeof handle);
    *ret_memory = memory;
    return KVT_OK;
}
