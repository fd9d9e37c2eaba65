/*
 * map_cuda.h - the worker's side of an arena in a GPU's memory: the arena itself, a staging area
 * there, and the work that a worker gives to the GPU. Stands in the module (kernels/module.h) and
 * is called through the table at the end.
 *
 * A BATCH is work on some pages: decoding them, or encoding them. It keeps what the GPU reads and
 * writes beside pages and KV (orders, plans, results), and an event behind its last launch. Nothing
 * waits for the GPU but what says so. Memory of batches is kept and used again; when all that there
 * is still belongs to work under way, more is allocated, and that may make CUDA wait for the GPU.
 *
 * A map and an area may be used by several threads at once, a batch by one at a time. Every call
 * leaves the thread's current GPU as it was.
 */
#ifndef KVT_CLIENT_MAP_CUDA_H
#define KVT_CLIENT_MAP_CUDA_H

#include "client/wire.h"
#include "kernels/page.h"

typedef struct kvt_cuda_map kvt_cuda_map;
typedef struct kvt_cuda_area kvt_cuda_area;
typedef struct kvt_cuda_batch kvt_cuda_batch;

/* Rows of a page in the arena, and the number of their first in the caller's layout. */
typedef struct kvt_cuda_piece {
    uint64_t offset;
    uint32_t bytes;
    uint32_t first_row;
    uint32_t n_rows;
    uint64_t token;
} kvt_cuda_piece;

/* The blocks of a paged KV cache that hold the tokens of a call: what counts as token t is token
 * tokens[t / block_rows] + t % block_rows of the layout. */
typedef struct kvt_cuda_blocks {
    uint32_t n;
    uint32_t block_rows;
    const uint64_t *tokens; /* copied */
} kvt_cuda_blocks;

/* A page to be made in the area: kvt_cuda_write, with offsets. */
typedef struct kvt_cuda_order {
    uint64_t to_offset;
    uint64_t token; /* of row 0; as it counts with the blocks, if there are any */
    uint32_t rows;
    uint32_t keep_rows; /* copied from a page in the arena, whose checksum is looked at */
    uint64_t keep_offset;
    uint32_t keep_bytes;
    uint32_t is_first; /* the first page of a path */
} kvt_cuda_order;

/* Statuses come with a sentence in why where there is one: KVT_ENOTSUP (no such GPU here), KVT_EIO
 * (CUDA says no), KVT_ENOMEM. */
typedef struct kvt_cuda_map_table {
    uint32_t version; /* KVT_MODULE_VERSION */

    /* Where a GPU is on the bus: that of this number, or, with NULL, the thread's current one. */
    kvt_status (*place)(const char *number, char *why, size_t why_bytes,
                        char ret_place[KVT_WIRE_MAX_GPU + 1]);

    kvt_status (*open)(const kvt_wire_memory *memory, char *why, size_t why_bytes,
                       kvt_cuda_map **ret_map);
    /* Waits for all work of its batches, and frees them. If a capture forbids the wait (see
     * `wait`), all of it stays until the process ends. */
    void (*close)(kvt_cuda_map *map);
    /* Copies out of the arena into host memory. Waits. */
    kvt_status (*read)(kvt_cuda_map *map, uint64_t offset, void *to, uint64_t bytes, char *why,
                       size_t why_bytes);

    /* A staging area on the map's GPU; it may outlive the map. */
    kvt_status (*area_open)(kvt_cuda_map *map, uint64_t bytes, char *why, size_t why_bytes,
                            kvt_wire_memory *ret_memory, kvt_cuda_area **ret_area);
    /* `file` is the staging file that names it, which becomes the area's: the daemon holds a lock
     * on that as long as it may read the area, which is freed once that is over. -1: nobody was
     * told of the area. */
    void (*area_close)(kvt_cuda_area *area, int file);
    /* Frees what the daemon has let go of, and waits so long for what it has not. */
    void (*areas_tidy)(uint32_t wait_ms);

    /* Is the layout in memory that the map's GPU may read and write? KVT_EINVAL. `argument` is what
     * the caller calls it. KVT_EIO. */
    kvt_status (*check_layout)(kvt_cuda_map *map, const char *argument, const kvt_layout *layout,
                               char *why, size_t why_bytes);

    /* May work be put into it? KVT_EINVAL: it captures, or is none of this GPU; KVT_EIO. is_kept:
     * other threads will wait for all that is in it, so it may not be one that each thread has of
     * its own. */
    kvt_status (*check_stream)(kvt_cuda_map *map, void *stream, int is_kept, char *why,
                               size_t why_bytes);

    /* Looks at the pages (verify: at their checksums too), on the stream. */
    kvt_status (*plan)(kvt_cuda_map *map, const kvt_page_shape *shape, const kvt_cuda_piece *pieces,
                       uint32_t n_pieces, int verify, void *stream, char *why, size_t why_bytes,
                       kvt_cuda_batch **ret_batch);
    /* Is that the plan of these pieces, on this stream? */
    int (*is_plan)(const kvt_cuda_batch *batch, const kvt_cuda_piece *pieces, uint32_t n_pieces,
                   const void *stream);
    /* Decodes layers of a plan, on its stream. Pages that are not right are skipped. */
    kvt_status (*decode)(kvt_cuda_batch *batch, uint32_t first_layer, uint32_t n_layers,
                         const kvt_layout *to, char *why, size_t why_bytes);

    /* The plan as kernels read it, kvt_cuda_page[n] in device memory, for kernels of the caller's
     * own on the plan's stream: from now on `wait` and `close` wait for all that is in the stream.
     */
    const void *(*pages)(kvt_cuda_batch *batch);

    /* Encodes pages into the area, on the stream. blocks: NULL where the layout has tokens one
     * after the other. */
    kvt_status (*encode)(kvt_cuda_map *map, const kvt_page_shape *shape,
                         const kvt_cuda_order *orders, uint32_t n_orders,
                         const kvt_cuda_blocks *blocks, kvt_cuda_area *area, const kvt_layout *from,
                         void *stream, char *why, size_t why_bytes, kvt_cuda_batch **ret_batch);

    /* Waits until the batch's work is done. KVT_OK, what a page had to say (with no words), or
     * KVT_EIO: also for one whose pages were given out, while its stream, or one that blocks with
     * it, captures. */
    kvt_status (*wait)(kvt_cuda_batch *batch, char *why, size_t why_bytes);
    /* Page i of an encoded batch, after wait. */
    kvt_status (*result)(const kvt_cuda_batch *batch, uint32_t i, uint32_t *ret_bytes);
    /* The caller is done with it; the GPU may not be. NULL is accepted. */
    void (*drop)(kvt_cuda_batch *batch);
} kvt_cuda_map_table; /* by the name of "kvt_cuda_map_calls" */

#endif
