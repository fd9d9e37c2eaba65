/* The names, numbers and sizes that include/cuda_runtime_api.h repeats from NVIDIA's. Compiled
 * against the former with the tests, against the latter by nvcc.py: both must pass. */
#include <cuda_runtime_api.h>

#define SAME(name, number) _Static_assert((name) == (number), #name)

SAME(cudaSuccess, 0);
SAME(cudaErrorInvalidValue, 1);
SAME(cudaErrorMemoryAllocation, 2);
SAME(cudaErrorInitializationError, 3);
SAME(cudaErrorInvalidConfiguration, 9);
SAME(cudaErrorInvalidDevicePointer, 17);
SAME(cudaErrorInvalidMemcpyDirection, 21);
SAME(cudaErrorInsufficientDriver, 35);
SAME(cudaErrorNoDevice, 100);
SAME(cudaErrorInvalidDevice, 101);
SAME(cudaErrorDeviceUninitialized, 201);
SAME(cudaErrorMapBufferObjectFailed, 205);
SAME(cudaErrorInvalidResourceHandle, 400);
SAME(cudaErrorNotReady, 600);
SAME(cudaErrorHostMemoryAlreadyRegistered, 712);
SAME(cudaErrorHostMemoryNotRegistered, 713);
SAME(cudaErrorLaunchFailure, 719);
SAME(cudaErrorNotSupported, 801);
SAME(cudaErrorStreamCaptureUnsupported, 900);
SAME(cudaErrorStreamCaptureInvalidated, 901);
SAME(cudaErrorStreamCaptureImplicit, 906);
SAME(cudaErrorUnknown, 999);
SAME(cudaStreamCaptureStatusNone, 0);
SAME(cudaStreamCaptureModeGlobal, 0);
SAME(cudaStreamCaptureModeRelaxed, 2);

SAME(cudaMemcpyHostToHost, 0);
SAME(cudaMemcpyHostToDevice, 1);
SAME(cudaMemcpyDeviceToHost, 2);
SAME(cudaMemcpyDeviceToDevice, 3);
SAME(cudaMemcpyDefault, 4);
SAME(cudaMemoryTypeUnregistered, 0);
SAME(cudaMemoryTypeHost, 1);
SAME(cudaMemoryTypeDevice, 2);
SAME(cudaMemoryTypeManaged, 3);
SAME(cudaDevAttrMultiProcessorCount, 16);
SAME(cudaDevAttrComputeCapabilityMajor, 75);
SAME(cudaDevAttrComputeCapabilityMinor, 76);
SAME(cudaDevAttrIpcEventSupport, 125);

SAME(cudaHostAllocDefault, 0);
SAME(cudaHostAllocPortable, 1);
SAME(cudaHostAllocMapped, 2);
SAME(cudaHostRegisterDefault, 0);
SAME(cudaHostRegisterPortable, 1);
SAME(cudaHostRegisterMapped, 2);
SAME(cudaStreamDefault, 0);
SAME(cudaStreamNonBlocking, 1);
SAME(cudaEventDefault, 0);
SAME(cudaEventBlockingSync, 1);
SAME(cudaEventDisableTiming, 2);
SAME(cudaEventInterprocess, 4);
SAME(cudaIpcMemLazyEnablePeerAccess, 1);

SAME(sizeof(cudaIpcMemHandle_t), 64);
SAME(sizeof(cudaIpcEventHandle_t), 64);
SAME(sizeof(cudaStream_t), sizeof(void *));
SAME(sizeof(cudaEvent_t), sizeof(void *));
