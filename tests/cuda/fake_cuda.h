/*
 * fake_cuda.h - what a test may say to, and ask of, the fake CUDA runtime. To processes that it
 * starts it speaks through the environment:
 *
 *     KVT_FAKE_CUDA_DELAY_US=N   see fake_cuda_set_delay
 *     KVT_FAKE_CUDA_DEVICES=N    see fake_cuda_set_devices
 *     KVT_FAKE_CUDA_FIRST=N      this process's device 0 is number N on the bus: as if only devices
 *                                from N on were visible to it
 *     KVT_FAKE_CUDA_BREAK_DEVICE=N   KVT_FAKE_CUDA_BREAK means this one on the bus alone
 *     KVT_FAKE_CUDA_BREAK=FILE   from the moment that there is such a file the GPU is lost: every
 *                                call fails, for good
 *     KVT_FAKE_CUDA_BYTES=N      see fake_cuda_set_bytes
 *     KVT_FAKE_CUDA_PINS=0       no host memory can be registered
 *     KVT_FAKE_CUDA_ACCOUNT=FILE   of the module: a process that ends adds a line to the file: what
 *                                it has of the GPU, and how much of that others may have open
 *     KVT_FAKE_CUDA_LEAKS=FILE   of the module: a process that ends with something that it should
 *                                have given back adds a line to the file
 */
#ifndef KVT_TESTS_CUDA_FAKE_CUDA_H
#define KVT_TESTS_CUDA_FAKE_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * How late the "GPU" begins with a piece of work that nobody waits for: a time drawn from
 * 0 .. max_delay_us, from the seed. Work that somebody waits for is done at once. The default is
 * 20,000; the environment variable KVT_FAKE_CUDA_DELAY_US changes it.
 */
void fake_cuda_set_delay(unsigned max_delay_us, uint64_t seed);

/* Call number n from now on (1 = the next) fails, whichever it is; those that free and ask never
 * do. 0 = none. */
void fake_cuda_fail_call(uint64_t n);

/* From call number n on the GPU is lost: that call fails and all that follow, also those that free
 * and ask. 0: it is there again, which no GPU ever is. Counts anew, as fake_cuda_fail_call. */
void fake_cuda_lose_at(uint64_t n);

/* From now on the GPU does nothing, until it is told otherwise: whoever waits for it waits. */
void fake_cuda_hang(int hangs);

/* Waits of the host that would have taken a core on a GPU: for a stream, for a device, or for an
 * event without cudaEventBlockingSync. */
uint64_t fake_cuda_spins(void);

/* Bit i: the process has a context on device i. Any call but those that only ask for devices makes
 * one on the device that the thread is on, cudaSetDevice among them. */
unsigned fake_cuda_contexts(void);

/* Calls that could have been made to fail, since the last fake_cuda_fail_call or _lose_at. */
uint64_t fake_cuda_calls(void);

/* What the process has: device memory, mappings, pinned memory, streams, events. */
unsigned fake_cuda_live(void);

/* How much of that is device memory whose handle was asked for: nobody may free that. */
unsigned fake_cuda_exported(void);

/* Device memory that the process may have in all; 4 GiB from the start. */
void fake_cuda_set_bytes(uint64_t bytes);

/* The number of devices; 1 from the start. */
void fake_cuda_set_devices(int n_devices);

#ifdef __cplusplus
}
#endif

#endif
