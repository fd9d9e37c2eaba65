/*
 * device_cuda.h - an arena in GPU memory (device.h). Its head (header and generations) stands in
 * shared host memory, so that readers can compare generations without asking the GPU; its data is
 * one cudaMalloc, which workers open through a CUDA IPC handle. Stands in the module (module.h):
 * who is no part of that calls it through the table at the end.
 *
 * Read-only is a promise here, not a wall: who has opened the handle can write. One tenant's
 * workers trust each other; two tenants never share an arena.
 *
 * ORDER BETWEEN PROCESSES. A worker waits on the host for the event behind its encoding, and then
 * sends the SEAL; the daemon waits for the event behind its own copy, and then lets the page be
 * seen; a frame goes to another page when its readers' GPUs have passed the events behind their
 * reading, and the leases are back. No event goes from one process to the other, though CUDA has
 * handles for that, because the worker's host has to wait anyway: the SEAL says how many bytes each
 * page has, which the GPU finds out (a segment that a codec refuses stays as it is), and the daemon
 * looks for frames of that size. An event of a worker would only add that the daemon's streams wait
 * for the kernels of each worker, without a limit, since a wait in a stream cannot be ended, and
 * for ever for those of a worker that hangs. What the wait costs is the thread that calls kvt_seal,
 * asleep, and kvt_seal_begin has another for that; the worker's stream goes on.
 *
 * The table's calls may come from several threads at once, on ranges that do not meet. Each waits
 * until its own work is done; none waits for another's. One that waits for longer than limit_ms is
 * stuck, and `failure` says so, which then is for its caller to act on: it may never return.
 */
#ifndef KVT_KERNELS_DEVICE_CUDA_H
#define KVT_KERNELS_DEVICE_CUDA_H

#include "kernels/device.h"

typedef struct kvt_device_cuda_options {
    const char *path; /* the head's file, usually under /dev/shm; must not exist */
    uint32_t mode;    /* permission bits, e.g. 0640 */
    uint32_t gid;     /* group of the file; UINT32_MAX = leave it */
    uint64_t head_bytes;
    uint64_t data_bytes;
    uint32_t gpu;          /* number of the device */
    uint32_t n_movers;     /* calls that run at the same time; a further one waits. 0 = 4 */
    uint32_t limit_ms;     /* a call that takes longer is a failure of the device; 0 = 30,000 */
    uint32_t bounce_bytes; /* pinned memory of a mover, for files and reads; 0 = 4 MiB */
} kvt_device_cuda_options;

/*
 * Takes the memory and zeroes it. KVT_ENOTSUP: no device works, or no driver; KVT_EINVAL: there is
 * none of this number; KVT_EFULL: it has less free memory than asked, with the figures in why; for
 * the head as kvt_device_host_open. Where it fails, nothing is left behind.
 */
kvt_status kvt_device_cuda_open(const kvt_device_cuda_options *options, char *why, size_t why_bytes,
                                kvt_device **ret_device);

/*
 * What another process needs to open the data. CUDA says that memory must not be freed while
 * somebody has it open, and does not say who has: once that was given out (`given`, before anybody
 * can have it), close leaves the data to the end of the process, and what readers opened stays
 * valid until then.
 */
kvt_status kvt_device_cuda_describe(kvt_device *device, kvt_wire_memory *ret_memory);
void kvt_device_cuda_given(kvt_device *device);

/* What a GPU has. KVT_ENOTSUP, KVT_EINVAL as kvt_device_cuda_open. */
typedef struct kvt_cuda_room {
    uint32_t n_gpus;
    uint64_t free_bytes;
    uint64_t total_bytes;
    char bus_id[32];
} kvt_cuda_room;
kvt_status kvt_device_cuda_room(uint32_t gpu, char *why, size_t why_bytes, kvt_cuda_room *ret_room);

/* All of it as the module shows them, by the name of "kvt_cuda_arena". */
typedef struct kvt_cuda_arena_table {
    uint32_t version; /* KVT_MODULE_VERSION */
    kvt_status (*room)(uint32_t gpu, char *why, size_t why_bytes, kvt_cuda_room *ret_room);
    kvt_status (*open)(const kvt_device_cuda_options *options, char *why, size_t why_bytes,
                       kvt_device **ret_device);
    kvt_status (*describe)(kvt_device *device, kvt_wire_memory *ret_memory);
    void (*given)(kvt_device *device);
} kvt_cuda_arena_table;

#endif
