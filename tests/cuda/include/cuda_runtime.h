/* cuda_runtime.h - what a .cu file gets where no nvcc compiles it: the runtime's calls and, for
 * C++, the device language (emulated, see tests/cuda/README.md). */
#ifndef KVT_FAKE_CUDA_RUNTIME_H
#define KVT_FAKE_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include "tests/cuda/emu_device.h"
#endif

#endif
