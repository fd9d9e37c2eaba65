/* cuda_mover.c - see cuda_mover.h. */
#include "kernels/cuda_mover.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/say.h"

enum { WAITED_FOR = cudaEventDisableTiming | cudaEventBlockingSync };

/* --- the list of free ones -----------------------------------------------------------------------
 */

static kvt_cuda_mover *take(kvt_cuda_movers *movers) {
    pthread_mutex_lock(&movers->mutex);
    while (!movers->first_free)
        pthread_cond_wait(&movers->came, &movers->mutex);
    kvt_cuda_mover *m = movers->first_free;
    movers->first_free = m->next;
    if (!movers->first_free)
        movers->last_free = &movers->first_free;
    pthread_mutex_unlock(&movers->mutex);
    return m;
}

static void give(kvt_cuda_movers *movers, kvt_cuda_mover *m) {
    m->next = NULL;
    pthread_mutex_lock(&movers->mutex);
    *movers->last_free = m;
    movers->last_free = &m->next;
    pthread_cond_signal(&movers->came);
    pthread_mutex_unlock(&movers->mutex);
}

/* --- failure -------------------------------------------------------------------------------------
 */

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void kvt_cuda_look_for_failure(kvt_cuda_movers *movers) {
    size_t free_bytes, total_bytes;
    cudaSetDevice(movers->gpu);
    cudaGetLastError();
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error == cudaSuccess || cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
        return;
    __atomic_store_n(&movers->failure, cudaGetErrorString(error), __ATOMIC_RELEASE);
}

/* Has a call been at it for too long? */
static void look_for_stuck(kvt_cuda_movers *movers) {
    uint64_t now = now_ms();
    for (uint32_t i = 0; i < movers->n; i++) {
        uint64_t begun = __atomic_load_n(&movers->all[i].begun_ms, __ATOMIC_RELAXED);
        if (begun && now > begun + movers->limit_ms)
            __atomic_store_n(&movers->failure, movers->stuck, __ATOMIC_RELEASE);
    }
}

const char *kvt_cuda_failure(kvt_cuda_movers *movers) {
    if (!__atomic_load_n(&movers->failure, __ATOMIC_ACQUIRE))
        look_for_stuck(movers);
    return __atomic_load_n(&movers->failure, __ATOMIC_ACQUIRE);
}

/* --- a call --------------------------------------------------------------------------------------
 */

/* A thread speaks to device 0 until it says otherwise. */
kvt_cuda_mover *kvt_cuda_begin(kvt_cuda_movers *movers) {
    kvt_cuda_mover *m = take(movers);
    cudaSetDevice(movers->gpu); /* if it fails, so does what follows */
    __atomic_store_n(&m->begun_ms, now_ms(), __ATOMIC_RELAXED);
    return m;
}

cudaError_t kvt_cuda_wait(kvt_cuda_mover *m) {
    cudaError_t error = cudaEventRecord(m->done, m->stream);
    if (error == cudaSuccess)
        error = cudaEventSynchronize(m->done);
    if (error != cudaSuccess) /* all the same: its memory goes to the next call */
        cudaStreamSynchronize(m->stream);
    return error;
}

kvt_status kvt_cuda_end(kvt_cuda_movers *movers, kvt_cuda_mover *m, kvt_status status) {
    cudaError_t error = kvt_cuda_wait(m);
    if (error != cudaSuccess && status == KVT_OK)
        status = KVT_EIO;
    if (error != cudaSuccess || status == KVT_EIO || status == KVT_ENOMEM)
        kvt_cuda_look_for_failure(movers);
    __atomic_store_n(&m->begun_ms, 0, __ATOMIC_RELAXED);
    give(movers, m);
    return status;
}

kvt_status kvt_cuda_reserve(kvt_cuda_mover *m, uint64_t bytes) {
    if (bytes <= m->workspace_bytes)
        return KVT_OK;
    void *fresh;
    if (cudaMalloc(&fresh, bytes) != cudaSuccess)
        return KVT_ENOMEM;
    cudaFree(m->workspace);
    m->workspace = fresh;
    m->workspace_bytes = bytes;
    return KVT_OK;
}

/* --- opening ------------------------------------------------------------------------------------
 */

static int mover_open(kvt_cuda_mover *m, size_t half_bytes) {
    void *pinned;
    if (cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaHostAlloc(&pinned, 2 * half_bytes, cudaHostAllocDefault) != cudaSuccess)
        return 0;
    m->half[0] = pinned;
    m->half[1] = m->half[0] + half_bytes;
    if (cudaHostAlloc(&pinned, sizeof *m->card, cudaHostAllocDefault) != cudaSuccess)
        return 0;
    m->card = pinned;
    for (int i = 0; i < 2; i++) {
        if (cudaEventCreateWithFlags(&m->half_free[i], WAITED_FOR) != cudaSuccess)
            return 0;
    }
    return cudaEventCreateWithFlags(&m->done, WAITED_FOR) == cudaSuccess;
}

static void mover_close(kvt_cuda_mover *m) {
    for (int i = 0; i < 2; i++) {
        if (m->half_free[i])
            cudaEventDestroy(m->half_free[i]);
    }
    if (m->done)
        cudaEventDestroy(m->done);
    cudaFreeHost(m->half[0]);
    cudaFreeHost(m->card);
    cudaFree(m->workspace);
    if (m->stream)
        cudaStreamDestroy(m->stream);
}

kvt_status kvt_cuda_movers_open(kvt_cuda_movers *movers, int gpu, uint32_t n, uint32_t bounce_bytes,
                                uint32_t limit_ms, char *why, size_t why_bytes) {
    movers->gpu = gpu;
    movers->half_bytes = bounce_bytes / 2;
    movers->limit_ms = limit_ms;
    snprintf(movers->stuck, sizeof movers->stuck,
             "a piece of its work did not end in %" PRIu32 " ms", limit_ms);
    pthread_mutex_init(&movers->mutex, NULL);
    pthread_cond_init(&movers->came, NULL);
    movers->last_free = &movers->first_free;
    movers->all = calloc(n, sizeof *movers->all);
    if (!movers->all)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory");
    movers->n = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!mover_open(&movers->all[i], movers->half_bytes))
            return kvt_say(why, why_bytes, KVT_ENOMEM, "no pinned memory: %" PRIu32 " x %zu bytes",
                           n, 2 * movers->half_bytes);
        give(movers, &movers->all[i]);
    }
    return KVT_OK;
}

void kvt_cuda_movers_close(kvt_cuda_movers *movers) {
    if (!movers->last_free)
        return;
    for (uint32_t i = 0; i < movers->n; i++)
        mover_close(&movers->all[i]);
    free(movers->all);
    pthread_cond_destroy(&movers->came);
    pthread_mutex_destroy(&movers->mutex);
}
