/*
 * cuda_runtime_api.h - the part of CUDA's runtime that this project calls, for builds that run on
 * no GPU. Stands in for NVIDIA's header of the same name: folders of tests/cuda/include come first
 * on the include path of emulated code, so the product's sources need no #if. Behind it stands the
 * fake runtime (tests/cuda/fake_*.cpp); README.md says where that is stricter than CUDA.
 *
 * Names, numbers and sizes are NVIDIA's; test_api_numbers compares them where NVIDIA's header is.
 */
#ifndef KVT_FAKE_CUDA_RUNTIME_API_H
#define KVT_FAKE_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorMapBufferObjectFailed = 205,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorUnknown = 999,
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4,
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3,
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer;
    void *hostPointer;
    long reserved[8];
};

enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrIpcEventSupport = 125,
};

#define cudaHostAllocDefault           0x00u
#define cudaHostAllocPortable          0x01u
#define cudaHostAllocMapped            0x02u
#define cudaHostRegisterDefault        0x00u
#define cudaHostRegisterPortable       0x01u
#define cudaHostRegisterMapped         0x02u
#define cudaStreamDefault              0x00u
#define cudaStreamNonBlocking          0x01u
#define cudaEventDefault               0x00u
#define cudaEventBlockingSync          0x01u
#define cudaEventDisableTiming         0x02u
#define cudaEventInterprocess          0x04u
#define cudaIpcMemLazyEnablePeerAccess 0x01u

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;

/* Names that stand for the default stream, and for one that each thread has of its own. */
#define cudaStreamLegacy    ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2,
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2,
};

#define CUDA_IPC_HANDLE_SIZE 64
typedef struct cudaIpcMemHandle_st {
    char reserved[CUDA_IPC_HANDLE_SIZE];
} cudaIpcMemHandle_t;
typedef struct cudaIpcEventHandle_st {
    char reserved[CUDA_IPC_HANDLE_SIZE];
} cudaIpcEventHandle_t;

cudaError_t cudaGetDeviceCount(int *ret_count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *ret_device);
cudaError_t cudaDeviceGetPCIBusId(char *ret_id, int room, int device);
cudaError_t cudaDeviceGetByPCIBusId(int *ret_device, const char *id);
cudaError_t cudaDeviceGetAttribute(int *ret_value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

/* Of the driver there are cuDeviceGet, cuDevicePrimaryCtxRetain, cuCtxPushCurrent, cuCtxPopCurrent.
 */
#define cudaEnableDefault 0x0
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
};
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **ret_function,
                                             unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *ret_found);

cudaError_t cudaMalloc(void **ret_memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMemGetInfo(size_t *ret_free_bytes, size_t *ret_total_bytes);
cudaError_t cudaHostAlloc(void **ret_memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *ret_attributes, const void *at);

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret_stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
/* A capture here only says what is forbidden meanwhile: it makes no graph. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret_graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *ret_status);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret_event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *ret_handle, void *memory);
cudaError_t cudaIpcOpenMemHandle(void **ret_memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *memory);
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *ret_handle, cudaEvent_t event);
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *ret_event, cudaIpcEventHandle_t handle);

#ifdef __cplusplus
}
#endif

#endif
