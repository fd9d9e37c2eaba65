/* cuda_handles.c - see cuda_handles.h. */
#include "kernels/cuda_handles.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/assert.h"
#include "kernels/say.h"

struct kvt_cuda_opened {
    kvt_cuda_opened *next;
    uint32_t refs;
    kvt_wire_memory memory;
    int gpu;
    uint8_t *at;
};

/* --- the current GPU ----------------------------------------------------------------------------
 */

enum { MAX_GPUS = 64, DRIVER_VERSION = 12000 };

/* Of the driver: the runtime can set a thread's device, but not set back that it has none. */
typedef struct driver_calls {
    int (*get)(int *ret_device, int ordinal);
    int (*retain)(void **ret_context, int device);
    int (*push)(void *context);
    int (*pop)(void **ret_context);
} driver_calls;

static pthread_mutex_t contexts_mutex = PTHREAD_MUTEX_INITIALIZER;
static driver_calls driver;
static void
    *contexts[MAX_GPUS]; /* NULL: not used yet. They stay: areas do, in the daemon's hands */
static _Thread_local enum cudaStreamCaptureMode other_mode = cudaStreamCaptureModeRelaxed;
static _Thread_local int n_entered;
/* Engines look at the thread's last error behind a launch of theirs: one of ours, which our callers
 * hear of as a status, must not be there; theirs must, if they have not looked yet. */
static _Thread_local int was_clean;

static cudaError_t find_driver(driver_calls *ret_calls) {
    driver_calls calls;
    const struct {
        const char *name;
        void *place;
    } wanted[] = {{"cuDeviceGet", &calls.get},
                  {"cuDevicePrimaryCtxRetain", &calls.retain},
                  {"cuCtxPushCurrent", &calls.push},
                  {"cuCtxPopCurrent", &calls.pop}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        enum cudaDriverEntryPointQueryResult found;
        void *function;
        cudaError_t error = cudaGetDriverEntryPointByVersion(
            wanted[i].name, &function, DRIVER_VERSION, cudaEnableDefault, &found);
        if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
            return error != cudaSuccess ? error : cudaErrorNotSupported;
        memcpy(wanted[i].place, &function, sizeof function);
    }
    *ret_calls = calls;
    return cudaSuccess;
}

/* The one that the runtime uses, too. */
static cudaError_t find_context(int gpu, void **ret_context) {
    int device;
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&contexts_mutex);
    if (!driver.pop)
        error = find_driver(&driver);
    if (error == cudaSuccess && !contexts[gpu] &&
        (driver.get(&device, gpu) != 0 || driver.retain(&contexts[gpu], device) != 0)) {
        contexts[gpu] = NULL;
        error = cudaErrorDeviceUninitialized;
    }
    *ret_context = contexts[gpu];
    pthread_mutex_unlock(&contexts_mutex);
    return error;
}

int kvt_cuda_enter(int gpu) {
    void *context = NULL;
    cudaError_t error = gpu >= 0 && gpu < MAX_GPUS ? cudaSuccess : cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        error = find_context(gpu, &context);
    if (error == cudaSuccess && driver.push(context) != 0)
        error = cudaErrorDeviceUninitialized;
    if (error == cudaSuccess && n_entered++ == 0) {
        cudaThreadExchangeStreamCaptureMode(&other_mode);
        was_clean = cudaPeekAtLastError() == cudaSuccess;
    }
    return (int)error;
}

void kvt_cuda_leave(int entered) {
    void *context;
    if (entered != cudaSuccess)
        return;
    if (--n_entered == 0) {
        cudaThreadExchangeStreamCaptureMode(&other_mode);
        if (was_clean)
            cudaGetLastError();
    }
    driver.pop(&context);
}

/* --- memory of others ---------------------------------------------------------------------------
 */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static kvt_cuda_opened *all;

static kvt_status find_gpu(const kvt_wire_memory *memory, char *why, size_t why_bytes,
                           int *ret_gpu) {
    if (memory->magic != KVT_MEMORY_MAGIC || memory->kind != KVT_MEMORY_CUDA ||
        memory->bytes == 0 || !memchr(memory->bus_id, 0, sizeof memory->bus_id))
        return kvt_say(why, why_bytes, KVT_EINVAL, "that describes no memory of a GPU");
    cudaError_t error = cudaDeviceGetByPCIBusId(ret_gpu, memory->bus_id);
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
    int entered = kvt_cuda_enter(gpu);
    cudaError_t error = (cudaError_t)entered;
    if (error == cudaSuccess)
        error = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
    kvt_cuda_leave(entered);
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
    } else if (opened->memory.nonce != memory->nonce) {
        /* CUDA would give what is open, which is the dead process's. */
        status = kvt_say(why, why_bytes, KVT_EBUSY,
                         "memory of a process that ended, whose number another has now, is still "
                         "open: what uses it has to be let go of first");
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
    if (opened->refs == 1) {
        int entered = kvt_cuda_enter(opened->gpu);
        error = (cudaError_t)entered;
        if (error == cudaSuccess)
            error = cudaIpcCloseMemHandle(opened->at);
        kvt_cuda_leave(entered);
    }
    if (error == cudaSuccess && --opened->refs == 0) {
        kvt_cuda_opened **at = &all;
        while (*at != opened)
            at = &(*at)->next;
        *at = opened->next;
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

const char *kvt_cuda_opened_place(const kvt_cuda_opened *opened) {
    return opened->memory.bus_id;
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
    int entered = kvt_cuda_enter(gpu);
    int failed = entered != cudaSuccess ||
                 cudaDeviceGetPCIBusId(memory.bus_id, sizeof memory.bus_id, gpu) != cudaSuccess ||
                 cudaIpcGetMemHandle(&handle, allocation) != cudaSuccess;
    kvt_cuda_leave(entered);
    if (failed || getrandom(&memory.nonce, sizeof memory.nonce, 0) != sizeof memory.nonce)
        return KVT_EIO;
    memcpy(memory.handle, &handle, sizeof handle);
    *ret_memory = memory;
    return KVT_OK;
}
