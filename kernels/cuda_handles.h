/*
 * cuda_handles.h - memory of other processes, opened through CUDA IPC handles. CUDA lets a process
 * open a handle once; whoever asks for it again here gets the same address, and it is closed when
 * the last of them lets go. Any thread.
 */
#ifndef KVT_KERNELS_CUDA_HANDLES_H
#define KVT_KERNELS_CUDA_HANDLES_H

#include "client/wire.h"

typedef struct kvt_cuda_opened kvt_cuda_opened;

/*
 * For as long as a call takes: the calling thread is on this GPU, and then where it was before, on
 * none if it was on none. (To set a thread's device back makes a context on it, some hundred MiB of
 * a GPU that nobody asked for.) Returns CUDA's error, which is handed to leave; calls may lie
 * within calls. A capture by another thread is not disturbed by what is done between the two: CUDA
 * then forbids allocations and queries to all who do not say that they have nothing to do with it.
 */
int kvt_cuda_enter(int gpu);
void kvt_cuda_leave(int entered);

/*
 * KVT_ENOTSUP: this process has no such GPU; KVT_EIO: CUDA refuses, for instance because the
 * process that gave the handle is dead; KVT_EBUSY: a dead process's memory is open under the same
 * handle; KVT_EINVAL: it is no handle; KVT_ENOMEM. With a sentence in why.
 */
kvt_status kvt_cuda_open_memory(const kvt_wire_memory *memory, char *why, size_t why_bytes,
                                kvt_cuda_opened **ret_opened);
/* No work that uses the memory may be under way. NULL is accepted. KVT_EIO: CUDA refuses, and it is
 * still open and held, to be closed once more or never. */
kvt_status kvt_cuda_close_memory(kvt_cuda_opened *opened);

uint8_t *kvt_cuda_opened_at(const kvt_cuda_opened *opened);
uint64_t kvt_cuda_opened_bytes(const kvt_cuda_opened *opened);
int kvt_cuda_opened_gpu(const kvt_cuda_opened *opened);           /* its number in this process */
const char *kvt_cuda_opened_place(const kvt_cuda_opened *opened); /* on the bus */

/*
 * Memory on the current GPU that others may be given: at least so many bytes, to a whole multiple
 * of KVT_CUDA_SHARED_BYTES. CUDA puts smaller allocations together in blocks of that size, and a
 * handle opens the whole block to the other process, with all that lies beside. Returns CUDA's
 * error, 0 = none; cudaFree frees it.
 */
enum { KVT_CUDA_SHARED_BYTES = 2 << 20 };
int kvt_cuda_shared_new(uint64_t bytes, void **ret_at);

/* Describes such an allocation of this process, for others. */
kvt_status kvt_cuda_describe(void *allocation, uint64_t bytes, int gpu,
                             kvt_wire_memory *ret_memory);

#endif
