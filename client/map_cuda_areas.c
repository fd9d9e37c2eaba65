/*
 * map_cuda_areas.c - staging areas in the memory of a GPU.
 *
 * Memory that was given to another process must not be freed while that has it open, and CUDA does
 * not say when it has not. The daemon does: it holds a lock on the staging file until it has closed
 * the area, and loses it when it dies. So an area that is done with waits here until its file can
 * be locked.
 */
#include "client/map_cuda_parts.h"

#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t areas_mutex = PTHREAD_MUTEX_INITIALIZER;
static kvt_cuda_area *done_areas;

static int is_let_go(const kvt_cuda_area *area) {
    return flock(area->file, LOCK_EX | LOCK_NB) == 0;
}

static void area_free(kvt_cuda_area *area) {
    int entered = kvt_cuda_enter(area->gpu);
    cudaFree(area->at);
    kvt_cuda_leave(entered);
    if (area->file >= 0)
        close(area->file);
    free(area);
}

/* Frees those that the daemon has let go of; returns whether there are others. */
static int sweep_areas(void) {
    pthread_mutex_lock(&areas_mutex);
    for (kvt_cuda_area **at = &done_areas; *at;) {
        kvt_cuda_area *area = *at;
        if (is_let_go(area)) {
            *at = area->next;
            area_free(area);
        } else {
            at = &area->next;
        }
    }
    int more = done_areas != NULL;
    pthread_mutex_unlock(&areas_mutex);
    return more;
}

void kvt_cuda_areas_tidy(uint32_t wait_ms) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    while (sweep_areas() && wait_ms-- > 0)
        nanosleep(&pause, NULL);
}

static kvt_status make_area(const kvt_cuda_map *map, uint64_t bytes, char *why, size_t why_bytes,
                            kvt_cuda_area **ret_area) {
    void *at = NULL;
    int gpu = map->gpu;
    kvt_cuda_area *area = calloc(1, sizeof *area);
    if (!area)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory");
    int error = kvt_cuda_shared_new(bytes, &at);
    if (error == cudaSuccess && kvt_cuda_describe(at, bytes, gpu, &area->memory) != KVT_OK) {
        cudaFree(at);
        error = cudaErrorNotSupported;
    }
    if (error != cudaSuccess) {
        free(area);
        return kvt_cuda_says(map, error, "a staging area", why, why_bytes);
    }
    area->gpu = gpu;
    area->at = at;
    *ret_area = area;
    return KVT_OK;
}

kvt_status kvt_cuda_area_open(kvt_cuda_map *map, uint64_t bytes, char *why, size_t why_bytes,
                              kvt_wire_memory *ret_memory, kvt_cuda_area **ret_area) {
    sweep_areas();
    int entered = kvt_cuda_enter(map->gpu);
    kvt_status status = make_area(map, bytes, why, why_bytes, ret_area);
    kvt_cuda_leave(entered);
    if (status == KVT_OK)
        *ret_memory = (*ret_area)->memory;
    return status;
}

void kvt_cuda_area_close(kvt_cuda_area *area, int file) {
    if (!area)
        return;
    area->file = file;
    if (file < 0) { /* nobody was told of it */
        area_free(area);
        return;
    }
    pthread_mutex_lock(&areas_mutex);
    area->next = done_areas;
    done_areas = area;
    pthread_mutex_unlock(&areas_mutex);
    sweep_areas();
}
