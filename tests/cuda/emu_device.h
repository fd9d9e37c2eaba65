/*
 * emu_device.h - CUDA's device language for a host compiler, as far as this project uses it. What
 * is not here does not compile, so that nothing runs on a GPU that was never run here.
 *
 * Stricter than CUDA: every thread of a block must come to the same __syncthreads in the source,
 * all lanes of a mask to the same warp operation, and no thread may end while others wait for it.
 * Shared memory is dynamic alone (KVT_SHARED in kernels/unit_device.cuh): __shared__ is not
 * defined.
 */
#ifndef KVT_TESTS_CUDA_EMU_DEVICE_H
#define KVT_TESTS_CUDA_EMU_DEVICE_H

#ifdef __CUDACC__
#error "this is for host compilers; nvcc has NVIDIA's own"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>

#define __global__
#define __device__
#define __constant__
#define __grid_constant__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

/* ------------------------------------------------------------------------------------------------
 * Vectors: aligned as on the device, so that a misaligned access is seen (UBSan, or a fault).
 * ---------------------------------------------------------------------------------------------- */

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {
    }
};

/* ------------------------------------------------------------------------------------------------
 * Who am I. Set by the scheduler whenever a thread goes on.
 * ---------------------------------------------------------------------------------------------- */

struct emu_index {
    unsigned x, y, z;
};
extern __thread emu_index threadIdx, blockIdx, blockDim, gridDim;

/* ------------------------------------------------------------------------------------------------
 * Meeting other threads
 * ---------------------------------------------------------------------------------------------- */

struct emu_site {
    const char *file;
    int line;
};
#define EMU_SITE emu_site site = {__builtin_FILE(), __builtin_LINE()}

enum emu_warp_op {
    EMU_SYNCWARP,
    EMU_SHFL,
    EMU_SHFL_UP,
    EMU_SHFL_DOWN,
    EMU_SHFL_XOR,
    EMU_BALLOT,
    EMU_REDUCE_MAX,
    EMU_REDUCE_MIN,
    EMU_REDUCE_ADD,
    EMU_REDUCE_OR,
};

/* Returns the OR of all threads' predicates. */
int emu_barrier(int predicate, emu_site site);
uint64_t emu_warp(emu_warp_op op, unsigned mask, uint64_t value, int argument, int width,
                  emu_site site);
void *emu_dynamic_shared(void);

static inline void __syncthreads(EMU_SITE) {
    emu_barrier(0, site);
}
static inline int __syncthreads_or(int predicate, EMU_SITE) {
    return emu_barrier(predicate, site);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_SITE) {
    emu_warp(EMU_SYNCWARP, mask, 0, 0, 32, site);
}

template <class T>
static inline T emu_shuffle(emu_warp_op op, unsigned mask, T value, int argument, int width,
                            emu_site site) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "not to be shuffled");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emu_warp(op, mask, bits, argument, width, site);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMU_SITE) {
    return emu_shuffle(EMU_SHFL, mask, value, lane, width, site);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_SITE) {
    return emu_shuffle(EMU_SHFL_UP, mask, value, (int)by, width, site);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_SITE) {
    return emu_shuffle(EMU_SHFL_DOWN, mask, value, (int)by, width, site);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, EMU_SITE) {
    return emu_shuffle(EMU_SHFL_XOR, mask, value, by, width, site);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_SITE) {
    return (unsigned)emu_warp(EMU_BALLOT, mask, predicate != 0, 0, 32, site);
}
static inline int __any_sync(unsigned mask, int predicate, EMU_SITE) {
    return emu_warp(EMU_BALLOT, mask, predicate != 0, 0, 32, site) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, EMU_SITE) {
    return (unsigned)emu_warp(EMU_BALLOT, mask, predicate != 0, 0, 32, site) == mask;
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value, EMU_SITE) {
    return (unsigned)emu_warp(EMU_REDUCE_MAX, mask, value, 0, 32, site);
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned value, EMU_SITE) {
    return (unsigned)emu_warp(EMU_REDUCE_MIN, mask, value, 0, 32, site);
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned value, EMU_SITE) {
    return (unsigned)emu_warp(EMU_REDUCE_ADD, mask, value, 0, 32, site);
}
static inline unsigned __reduce_or_sync(unsigned mask, unsigned value, EMU_SITE) {
    return (unsigned)emu_warp(EMU_REDUCE_OR, mask, value, 0, 32, site);
}

/* ------------------------------------------------------------------------------------------------
 * Atomics: relaxed, as on the device: they order nothing else.
 * ---------------------------------------------------------------------------------------------- */

template <class T> static inline T atomicAdd(T *at, T value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicOr(T *at, T value) {
    return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicMax(T *at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
    return old;
}

/* ------------------------------------------------------------------------------------------------
 * Arithmetic
 * ---------------------------------------------------------------------------------------------- */

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    return (uint64_t)(((unsigned __int128)a * b) >> 64);
}
static inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
/* Byte i of the result is the byte of b:a that nibble i of the selector names. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned nibble = selector >> (4 * i) & 15u;
        unsigned byte = (unsigned)(bytes >> (8 * (nibble & 7u))) & 255u;
        if (nibble & 8u) /* its sign, repeated */
            byte = byte & 128u ? 255u : 0u;
        result |= byte << (8 * i);
    }
    return result;
}

/* Loads and stores with a hint for the caches. */
template <class T> static inline T __ldg(const T *at) {
    return *at;
}
template <class T> static inline T __ldcs(const T *at) {
    return *at;
}
template <class T> static inline void __stcs(T *at, T value) {
    *at = value;
}

/* ------------------------------------------------------------------------------------------------
 * Launching
 * ---------------------------------------------------------------------------------------------- */

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

cudaError_t emu_enqueue(const cudaLaunchConfig_t *config, std::function<void()> thread_main);

/* Arguments are converted to the kernel's parameters and copied, as CUDA does it. */
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A &&...arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "the number of the kernel's arguments");
    std::tuple<P...> parameters(std::forward<A>(arguments)...);
    static_assert(sizeof parameters <= 4096, "more than every device takes");
    return emu_enqueue(config, [kernel, parameters] { std::apply(kernel, parameters); });
}

#endif
