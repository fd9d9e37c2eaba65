/*
 * cuda_mover.h - what calls of an arena in GPU memory move bytes with. Private to device_cuda.c.
 *
 * A MOVER is what one call needs to move bytes without waiting for another: a stream, and two
 * halves of pinned memory. While the GPU copies one half, the other is filled or emptied:
 *
 *     file --pread--> half 0 --GPU--> data        read: the other way round
 *     file --pread--> half 1 --GPU--> data
 *
 * Whoever waits for the GPU sleeps meanwhile: all waits are for events made for that, since waiting
 * for a stream takes a core. A wait has no limit of its own, for CUDA has none, and what the GPU
 * may yet write to cannot be given to another call. But who asks for the device's failure looks how
 * long each call has been at it: a GPU that does not get on has failed.
 */
#ifndef KVT_KERNELS_CUDA_MOVER_H
#define KVT_KERNELS_CUDA_MOVER_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "kernels/device.h"
#include "kernels/kernels.h"

/* What the GPU is told about a page to be checked, and what it answers, or about runs to be copied;
 * pinned. */
typedef struct kvt_cuda_card {
    kvt_cuda_read read;
    kvt_cuda_page page;
    uint32_t status;
    kvt_cuda_write write; /* of one that is encoded anew */
    kvt_cuda_result result;
    kvt_cuda_copy_run runs[KVT_DEVICE_MAX_RUNS];
} kvt_cuda_card;

typedef struct kvt_cuda_mover {
    cudaStream_t stream;
    kvt_cuda_card *card;
    void *workspace; /* of the check; grows with the pages */
    uint64_t workspace_bytes;
    uint8_t *half[2];            /* pinned; one allocation, in half[0] */
    cudaEvent_t half_free[2];    /* the GPU is done with it */
    cudaEvent_t done;            /* and with all that it was given */
    uint64_t begun_ms;           /* by a call that is at it; 0: by none; atomic */
    struct kvt_cuda_mover *next; /* in the list of free ones */
} kvt_cuda_mover;

/* All of one device, and whether that has failed. */
typedef struct kvt_cuda_movers {
    int gpu;
    size_t half_bytes;
    uint32_t limit_ms;
    const char *failure; /* atomic */
    char stuck[64];      /* a failure in words */
    uint32_t n;
    kvt_cuda_mover *all;
    pthread_mutex_t mutex; /* of the list */
    pthread_cond_t came;
    kvt_cuda_mover *first_free, **last_free; /* the one that has been free longest is taken */
} kvt_cuda_movers;

/* On the current GPU, which is number `gpu`. bounce_bytes: both halves together. KVT_ENOMEM, with a
 * sentence; close is to be called in any case. */
kvt_status kvt_cuda_movers_open(kvt_cuda_movers *movers, int gpu, uint32_t n, uint32_t bounce_bytes,
                                uint32_t limit_ms, char *why, size_t why_bytes);
/* No call may be under way. All zeros, of which nothing was opened, are accepted. */
void kvt_cuda_movers_close(kvt_cuda_movers *movers);

/* What a call does its work with; the calling thread is on the device's GPU from then on. */
kvt_cuda_mover *kvt_cuda_begin(kvt_cuda_movers *movers);
/* Waits until the GPU has done all that the mover was given. */
cudaError_t kvt_cuda_wait(kvt_cuda_mover *m);
/* The end of the call, which had this status: waits, failed or not, since the next call gets the
 * mover's memory, and looks whether the device has failed. Returns what became of the call. */
kvt_status kvt_cuda_end(kvt_cuda_movers *movers, kvt_cuda_mover *m, kvt_status status);
/* So much memory at m->workspace. KVT_ENOMEM. */
kvt_status kvt_cuda_reserve(kvt_cuda_mover *m, uint64_t bytes);

/* After an error: is it one that every later call reports too? Then the device is lost to this
 * process. */
void kvt_cuda_look_for_failure(kvt_cuda_movers *movers);
/* NULL, or what is wrong for good. Looks for calls that do not end. */
const char *kvt_cuda_failure(kvt_cuda_movers *movers);

#endif
