/*
 * map_cuda_parts.h - what the files of the worker's side of a GPU share (map_cuda.h): the map with
 * its batches, staging areas, and a look at what callers hand in. Private to them.
 */
#ifndef KVT_CLIENT_MAP_CUDA_PARTS_H
#define KVT_CLIENT_MAP_CUDA_PARTS_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "client/map_cuda.h"
#include "kernels/cuda_handles.h"
#include "kernels/kernels.h"
#include "kernels/say.h"

struct kvt_cuda_map {
    kvt_cuda_opened *arena;
    int gpu;
    pthread_mutex_t mutex; /* of the list */
    kvt_cuda_batch *batches;
    pthread_mutex_t reading; /* of what follows */
    cudaStream_t stream;
    cudaEvent_t read_done;
    uint8_t *bounce;
};

/* Memory that was given to the daemon: map_cuda_areas.c. */
struct kvt_cuda_area {
    kvt_cuda_area *next;
    kvt_wire_memory memory;
    int gpu;
    int file; /* of the staging file */
    uint8_t *at;
};

/* KVT_ENOMEM, or KVT_EIO, with what was tried, the GPU and CUDA's word. */
static inline kvt_status kvt_cuda_says(const kvt_cuda_map *map, int error, const char *what,
                                       char *why, size_t why_bytes) {
    return kvt_say(why, why_bytes, error == cudaErrorMemoryAllocation ? KVT_ENOMEM : KVT_EIO,
                   "%s, on the GPU %s: CUDA says %s", what, kvt_cuda_opened_place(map->arena),
                   kvt_cuda_error_name(error));
}

/* A stream that no work goes into: KVT_EINVAL. */
static inline kvt_status kvt_cuda_says_stream(const kvt_cuda_map *map, int error, char *why,
                                              size_t why_bytes) {
    return kvt_say(why, why_bytes, KVT_EINVAL,
                   "the stream cannot be used: CUDA says %s. It must be one of the GPU that the "
                   "pages are on, %d, and not the default one while others are captured",
                   kvt_cuda_error_name(error), map->gpu);
}

/* map_cuda_areas.c; as in kvt_cuda_map_table. */
kvt_status kvt_cuda_area_open(kvt_cuda_map *map, uint64_t bytes, char *why, size_t why_bytes,
                              kvt_wire_memory *ret_memory, kvt_cuda_area **ret_area);
void kvt_cuda_area_close(kvt_cuda_area *area, int file);
void kvt_cuda_areas_tidy(uint32_t wait_ms);

/* map_cuda_check.c; as in kvt_cuda_map_table. */
kvt_status kvt_cuda_check_layout(kvt_cuda_map *map, const char *argument, const kvt_layout *layout,
                                 char *why, size_t why_bytes);
kvt_status kvt_cuda_check_stream(kvt_cuda_map *map, void *stream, int is_kept, char *why,
                                 size_t why_bytes);

#endif
