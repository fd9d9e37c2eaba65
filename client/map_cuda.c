/* map_cuda.c - see map_cuda.h: the map and its batches. This file and those that are named after it
 * are the ones of this room that call CUDA. */
#include "client/map_cuda_parts.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/assert.h"
#include "kernels/module.h"

enum {
    BOUNCE_BYTES = 1 << 20,
    MIN_PAGES = 64,
    MIN_BLOCKS = 512,
    WAITED_FOR = cudaEventDisableTiming | cudaEventBlockingSync, /* the host sleeps meanwhile */
};

struct kvt_cuda_batch {
    kvt_cuda_batch *next; /* of the map's */
    kvt_cuda_map *map;
    int in_use; /* by a caller; under the map's mutex */
    cudaEvent_t done;
    cudaStream_t stream;
    uint64_t thread; /* that planned it: cudaStreamPerThread is another stream in each */
    kvt_page_shape shape;
    uint32_t n, room; /* pages */
    uint32_t block_room;
    uint64_t workspace_bytes;
    int is_encoded;
    /* The caller's own kernels read the pages, which no event of ours follows: until the stream has
     * been waited for. */
    int is_open;
    /* pinned, one allocation that begins with the status */
    uint32_t *status;
    kvt_cuda_read *reads; /* of what is decoded, or kept */
    kvt_cuda_write *writes;
    kvt_cuda_result *results;
    uint32_t *firsts; /* of the reads of each page: its first, and behind all pages their number */
    uint64_t *blocks;
    /* device */
    uint64_t *device_blocks; /* a copy of `blocks`; one allocation with the pages */
    kvt_cuda_page *pages;
    void *workspace;
};

/* --- batches ------------------------------------------------------------------------------------
 */

static size_t pad(size_t n) {
    return (n + 63) & ~(size_t)63;
}

typedef struct batch_size {
    uint32_t pages;
    uint32_t blocks;
    uint64_t workspace_bytes;
} batch_size;

/* The status has 64 bytes to itself, so that what follows is aligned. */
static int batch_allocate(kvt_cuda_batch *b, const batch_size *size) {
    size_t reads = pad(size->pages * sizeof *b->reads),
           writes = pad(size->pages * sizeof *b->writes);
    size_t results = pad(size->pages * sizeof *b->results);
    size_t firsts = pad((size->pages + (size_t)1) * sizeof *b->firsts);
    size_t blocks = pad(size->blocks * sizeof *b->blocks);
    void *pinned, *device;
    if (cudaHostAlloc(&pinned, 64 + reads + writes + results + firsts + blocks,
                      cudaHostAllocDefault) != cudaSuccess)
        return 0;
    uint8_t *at = (uint8_t *)pinned + 64;
    b->status = pinned;
    b->reads = (kvt_cuda_read *)(void *)at;
    b->writes = (kvt_cuda_write *)(void *)(at + reads);
    b->results = (kvt_cuda_result *)(void *)(at + reads + writes);
    b->firsts = (uint32_t *)(void *)(at + reads + writes + results);
    b->blocks = (uint64_t *)(void *)(at + reads + writes + results + firsts);
    if (cudaMalloc(&device, blocks + size->pages * sizeof *b->pages) != cudaSuccess)
        return 0;
    b->device_blocks = device;
    b->pages = (kvt_cuda_page *)(void *)((uint8_t *)device + blocks);
    b->room = size->pages;
    b->block_room = size->blocks;
    if (size->workspace_bytes && cudaMalloc(&b->workspace, size->workspace_bytes) != cudaSuccess)
        return 0;
    b->workspace_bytes = size->workspace_bytes;
    return cudaEventCreateWithFlags(&b->done, WAITED_FOR) == cudaSuccess;
}

/* No work of it may be under way. */
static void batch_free(kvt_cuda_batch *b) {
    if (b->done)
        cudaEventDestroy(b->done);
    cudaFree(b->workspace);
    cudaFree(b->device_blocks);
    cudaFreeHost(b->status);
    free(b);
}

/* One that nobody uses, whose work is done, and that is large enough; or NULL. Of one that is open
 * and in nobody's use that cannot be told: it waits for the map's end. */
static kvt_cuda_batch *find_batch(kvt_cuda_map *map, const batch_size *size) {
    pthread_mutex_lock(&map->mutex);
    kvt_cuda_batch *b = map->batches;
    while (b &&
           (b->in_use || b->is_open || b->room < size->pages || b->block_room < size->blocks ||
            b->workspace_bytes < size->workspace_bytes || cudaEventQuery(b->done) != cudaSuccess))
        b = b->next;
    if (b)
        b->in_use = 1;
    pthread_mutex_unlock(&map->mutex);
    return b;
}

static kvt_cuda_batch *make_batch(kvt_cuda_map *map, batch_size size) {
    kvt_cuda_batch *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    size.pages = size.pages < MIN_PAGES ? MIN_PAGES : size.pages;
    size.blocks = size.blocks < MIN_BLOCKS ? MIN_BLOCKS : size.blocks;
    if (!batch_allocate(b, &size)) {
        batch_free(b);
        return NULL;
    }
    b->map = map;
    b->in_use = 1;
    pthread_mutex_lock(&map->mutex);
    b->next = map->batches;
    map->batches = b;
    pthread_mutex_unlock(&map->mutex);
    return b;
}

/* Never another thread's again, as a pthread_t is once its thread has ended. */
static uint64_t this_thread(void) {
    static atomic_uint_least64_t last;
    static _Thread_local uint64_t number;
    if (number == 0)
        number = atomic_fetch_add(&last, 1) + 1;
    return number;
}

static kvt_status take_batch(kvt_cuda_map *map, const kvt_page_shape *shape, batch_size size,
                             void *stream, char *why, size_t why_bytes,
                             kvt_cuda_batch **ret_batch) {
    kvt_cuda_batch *b = find_batch(map, &size);
    if (!b)
        b = make_batch(map, size);
    if (!b)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "no memory for work on %u pages", size.pages);
    b->stream = (cudaStream_t)stream;
    b->thread = this_thread();
    b->shape = *shape;
    b->n = size.pages;
    b->is_open = 0;
    *b->status = KVT_OK;
    *ret_batch = b;
    return KVT_OK;
}

static void drop(kvt_cuda_batch *b) {
    if (!b)
        return;
    kvt_cuda_map *map = b->map;
    pthread_mutex_lock(&map->mutex);
    b->in_use = 0;
    pthread_mutex_unlock(&map->mutex);
}

static const uint8_t *arena_at(const kvt_cuda_map *map, uint64_t offset) {
    return kvt_cuda_opened_at(map->arena) + offset;
}

/* The event does not say when the work is done: it must be, before the memory that it reads and
 * writes can go to other work. If even this fails, three times in other ways, the GPU is lost to
 * the process, and nothing runs on it any more. (cudaStreamPerThread is another stream here than in
 * the thread that put the work into it.) */
static int wait_without_event(const kvt_cuda_batch *b) {
    return (b->stream != cudaStreamPerThread && cudaStreamSynchronize(b->stream) == cudaSuccess) ||
           cudaDeviceSynchronize() == cudaSuccess || cudaDeviceSynchronize() == cudaSuccess;
}

/* Ends a call that put work into the stream. Also after an error: what was launched is under way,
 * and whoever hears of the error takes its memory to be free. No question about a stream tells
 * which GPU's it is before CUDA 12.8: kernels and events of this one are what it does not take. */
static kvt_status end_launch(kvt_cuda_batch *b, int error, const char *what, char *why,
                             size_t why_bytes) {
    int event_error = (int)cudaEventRecord(b->done, b->stream);
    if (error == cudaSuccess)
        error = event_error;
    if (error != cudaSuccess)
        wait_without_event(b);
    if (error == cudaErrorInvalidResourceHandle)
        return kvt_cuda_says_stream(b->map, error, why, why_bytes);
    return error == cudaSuccess ? KVT_OK : kvt_cuda_says(b->map, error, what, why, why_bytes);
}

/* Pieces of one page follow each other. */
static int begins_page(const kvt_cuda_piece *pieces, uint32_t i) {
    return i == 0 || pieces[i].offset != pieces[i - 1].offset ||
           pieces[i].bytes != pieces[i - 1].bytes;
}

static uint32_t count_pages(const kvt_cuda_piece *pieces, uint32_t n_pieces) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_pieces; i++)
        n += (uint32_t)begins_page(pieces, i);
    return n;
}

static void read_orders(kvt_cuda_batch *b, const kvt_cuda_piece *pieces, uint32_t n_pieces) {
    uint32_t n_pages = 0;
    for (uint32_t i = 0; i < n_pieces; i++) {
        b->reads[i] = (kvt_cuda_read){.page = arena_at(b->map, pieces[i].offset),
                                      .page_bytes = pieces[i].bytes,
                                      .first_row = pieces[i].first_row,
                                      .n_rows = pieces[i].n_rows,
                                      .token = pieces[i].token};
        if (begins_page(pieces, i))
            b->firsts[n_pages++] = i;
    }
    b->firsts[n_pages] = n_pieces;
}

static kvt_status plan(kvt_cuda_map *map, const kvt_page_shape *shape, const kvt_cuda_piece *pieces,
                       uint32_t n_pieces, int verify, void *stream, char *why, size_t why_bytes,
                       kvt_cuda_batch **ret_batch) {
    kvt_cuda_batch *b = NULL;
    int entered = kvt_cuda_enter(map->gpu);
    uint32_t n_pages = count_pages(pieces, n_pieces);
    batch_size size = {n_pieces, 0, verify ? kvt_cuda_workspace_bytes(shape, n_pages) : 0};
    kvt_status status = take_batch(map, shape, size, stream, why, why_bytes, &b);
    if (status != KVT_OK) {
        kvt_cuda_leave(entered);
        return status;
    }
    b->is_encoded = 0;
    read_orders(b, pieces, n_pieces);
    int error = kvt_cuda_plan(shape, b->reads, n_pieces, b->pages, b->status, stream);
    if (error == cudaSuccess && verify)
        error =
            kvt_cuda_verify(shape, b->pages, b->firsts, n_pages, b->status, b->workspace, stream);
    status = end_launch(b, error, "looking at pages", why, why_bytes);
    kvt_cuda_leave(entered);
    if (status == KVT_OK)
        *ret_batch = b;
    else
        drop(b);
    return status;
}

static int is_plan(const kvt_cuda_batch *b, const kvt_cuda_piece *pieces, uint32_t n_pieces,
                   const void *stream) {
    if (b->is_encoded || b->n != n_pieces || b->stream != (cudaStream_t)(uintptr_t)stream)
        return 0;
    if (b->stream == cudaStreamPerThread && b->thread != this_thread())
        return 0;
    for (uint32_t i = 0; i < n_pieces; i++) {
        const kvt_cuda_read *r = &b->reads[i];
        if (r->page != arena_at(b->map, pieces[i].offset) || r->page_bytes != pieces[i].bytes ||
            r->first_row != pieces[i].first_row || r->n_rows != pieces[i].n_rows ||
            r->token != pieces[i].token)
            return 0;
    }
    return 1;
}

static kvt_status decode(kvt_cuda_batch *b, uint32_t first_layer, uint32_t n_layers,
                         const kvt_layout *to, char *why, size_t why_bytes) {
    int entered = kvt_cuda_enter(b->map->gpu);
    int error = kvt_cuda_decode(&b->shape, b->pages, b->n, first_layer, n_layers, to, b->stream);
    kvt_status status = end_launch(b, error, "decoding", why, why_bytes);
    kvt_cuda_leave(entered);
    return status;
}

/* --- encoding -----------------------------------------------------------------------------------
 */

/* The orders as the kernels take them; the pages whose rows are kept are planned as well, so that
 * their checksums can be looked at: the new page's own must not vouch for damage. Returns how many
 * there are. */
static uint32_t write_orders(kvt_cuda_batch *b, const kvt_cuda_order *orders, uint32_t n_orders,
                             const kvt_cuda_blocks *blocks, const kvt_cuda_area *area) {
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n_orders; i++) {
        const kvt_cuda_order *o = &orders[i];
        b->writes[i] = (kvt_cuda_write){.page = area->at + o->to_offset,
                                        .room_bytes = kvt_page_max_bytes(&b->shape),
                                        .token = o->token,
                                        .rows = o->rows,
                                        .keep_rows = o->keep_rows,
                                        .or_raw = 1,
                                        .is_first = o->is_first,
                                        .block_rows = blocks ? blocks->block_rows : 0,
                                        .blocks = blocks ? b->device_blocks : NULL};
        if (o->keep_rows == 0)
            continue;
        b->writes[i].keep = arena_at(b->map, o->keep_offset);
        b->writes[i].keep_bytes = o->keep_bytes;
        b->reads[n_kept++] = (kvt_cuda_read){
            .page = b->writes[i].keep, .page_bytes = o->keep_bytes, .n_rows = o->keep_rows};
    }
    return n_kept;
}

/* So that no row's address has to be asked for across the bus. */
static int upload_blocks(kvt_cuda_batch *b, const kvt_cuda_blocks *blocks) {
    size_t bytes = blocks->n * sizeof *blocks->tokens;
    /* A stream of another GPU takes a copy, but no event. */
    cudaError_t error = cudaEventRecord(b->done, b->stream);
    if (error != cudaSuccess)
        return (int)error;
    memcpy(b->blocks, blocks->tokens, bytes);
    return (int)cudaMemcpyAsync(b->device_blocks, b->blocks, bytes, cudaMemcpyHostToDevice,
                                b->stream);
}

static kvt_status encode(kvt_cuda_map *map, const kvt_page_shape *shape,
                         const kvt_cuda_order *orders, uint32_t n_orders,
                         const kvt_cuda_blocks *blocks, kvt_cuda_area *area, const kvt_layout *from,
                         void *stream, char *why, size_t why_bytes, kvt_cuda_batch **ret_batch) {
    kvt_cuda_batch *b = NULL;
    int entered = kvt_cuda_enter(map->gpu);
    batch_size size = {n_orders, blocks ? blocks->n : 0, kvt_cuda_workspace_bytes(shape, n_orders)};
    kvt_status status = take_batch(map, shape, size, stream, why, why_bytes, &b);
    if (status != KVT_OK) {
        kvt_cuda_leave(entered);
        return status;
    }
    b->is_encoded = 1;
    uint32_t n_kept = write_orders(b, orders, n_orders, blocks, area);
    int error = blocks ? upload_blocks(b, blocks) : cudaSuccess;
    if (error == cudaSuccess)
        error = kvt_cuda_plan(shape, b->reads, n_kept, b->pages, b->status, stream);
    if (error == cudaSuccess)
        error = kvt_cuda_verify(shape, b->pages, NULL, n_kept, b->status, b->workspace, stream);
    if (error == cudaSuccess)
        error = kvt_cuda_encode(shape, b->writes, n_orders, from, b->results, b->workspace, stream);
    status = end_launch(b, error, "encoding", why, why_bytes);
    kvt_cuda_leave(entered);
    if (status == KVT_OK)
        *ret_batch = b;
    else
        drop(b);
    return status;
}

static const void *pages(kvt_cuda_batch *b) {
    b->is_open = 1;
    return b->pages;
}

/* Nothing may be put into its stream now, and asking for its end would spoil the capture. */
static int is_captured(const kvt_cuda_batch *b) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(b->stream, &capture);
    return error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone;
}

/* In any thread: the default stream is that of the GPU which is current. */
static kvt_status wait_for(kvt_cuda_batch *b, char *why, size_t why_bytes) {
    int entered = kvt_cuda_enter(b->map->gpu);
    if (b->is_open && is_captured(b)) {
        kvt_cuda_leave(entered);
        return kvt_say(why, why_bytes, KVT_EIO,
                       "what reads the pages of kvt_pages_device cannot be waited for: its stream "
                       "is being captured, or is the default one while another is");
    }
    cudaError_t error = b->is_open ? cudaEventRecord(b->done, b->stream) : cudaSuccess;
    if (error == cudaSuccess)
        error = cudaEventSynchronize(b->done);
    int is_done = error == cudaSuccess || wait_without_event(b);
    kvt_cuda_leave(entered);
    if (!is_done)
        return kvt_cuda_says(b->map, (int)error, "the work of a lease", why, why_bytes);
    b->is_open = 0;
    return (kvt_status)*b->status;
}

static kvt_status result(const kvt_cuda_batch *b, uint32_t i, uint32_t *ret_bytes) {
    KVT_ASSERT(b->is_encoded && i < b->n);
    if (b->results[i].status == KVT_OK)
        *ret_bytes = b->results[i].bytes;
    return (kvt_status)b->results[i].status;
}

/* --- the map ------------------------------------------------------------------------------------
 */

/* 0: of one it cannot be known, and the GPU may be reading the arena for it. */
static int wait_for_all(kvt_cuda_map *map) {
    int all_are_over = 1;
    for (kvt_cuda_batch *b = map->batches; b; b = b->next) {
        if (b->in_use || b->is_open)
            wait_for(b, NULL, 0);
        else if (cudaEventSynchronize(b->done) != cudaSuccess)
            wait_without_event(b);
        all_are_over &= !(b->is_open && is_captured(b));
    }
    return all_are_over;
}

static void map_close(kvt_cuda_map *map) {
    if (!map)
        return;
    /* One that was not opened has nothing, on no GPU. */
    int entered = map->arena ? kvt_cuda_enter(map->gpu) : -1;
    if (!wait_for_all(map)) { /* it stays until the process ends */
        kvt_cuda_leave(entered);
        return;
    }
    while (map->batches) {
        kvt_cuda_batch *b = map->batches;
        map->batches = b->next;
        batch_free(b);
    }
    if (map->read_done)
        cudaEventDestroy(map->read_done);
    if (map->stream)
        cudaStreamDestroy(map->stream);
    if (map->bounce)
        cudaFreeHost(map->bounce);
    kvt_cuda_close_memory(map->arena);
    kvt_cuda_leave(entered);
    pthread_mutex_destroy(&map->reading);
    pthread_mutex_destroy(&map->mutex);
    free(map);
}

static kvt_status place(const char *number, char *why, size_t why_bytes,
                        char ret_place[KVT_WIRE_MAX_GPU + 1]) {
    char found[KVT_WIRE_MAX_GPU + 1] = "";
    int gpu = 0, n_gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&n_gpus);
    if (error == cudaSuccess && !number)
        error = cudaGetDevice(&gpu);
    if (number) {
        unsigned long said = strtoul(number, NULL, 10);
        if (error == cudaSuccess && said >= (unsigned long)n_gpus)
            return kvt_say(why, why_bytes, KVT_ENOTSUP, "this process has %d CUDA devices", n_gpus);
        gpu = (int)said;
    }
    if (error == cudaSuccess)
        error = cudaDeviceGetPCIBusId(found, sizeof found, gpu);
    if (error != cudaSuccess)
        return kvt_say(why, why_bytes, KVT_EIO, "which GPU this process is on: CUDA says %s",
                       kvt_cuda_error_name((int)error));
    memcpy(ret_place, found, sizeof found);
    return KVT_OK;
}

static kvt_status map_open(const kvt_wire_memory *memory, char *why, size_t why_bytes,
                           kvt_cuda_map **ret_map) {
    void *bounce = NULL;
    kvt_cuda_map *map = calloc(1, sizeof *map);
    if (!map)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory");
    pthread_mutex_init(&map->mutex, NULL);
    pthread_mutex_init(&map->reading, NULL);
    kvt_status status = kvt_cuda_open_memory(memory, why, why_bytes, &map->arena);
    if (status == KVT_OK) {
        map->gpu = kvt_cuda_opened_gpu(map->arena);
        int entered = kvt_cuda_enter(map->gpu);
        cudaError_t error = cudaStreamCreateWithFlags(&map->stream, cudaStreamNonBlocking);
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&map->read_done, WAITED_FOR);
        if (error == cudaSuccess)
            error = cudaHostAlloc(&bounce, BOUNCE_BYTES, cudaHostAllocDefault);
        map->bounce = bounce;
        if (error != cudaSuccess)
            status = kvt_cuda_says(map, (int)error, "a stream and pinned memory", why, why_bytes);
        kvt_cuda_leave(entered);
    }
    if (status == KVT_OK)
        *ret_map = map;
    else
        map_close(map);
    return status;
}

static kvt_status map_read(kvt_cuda_map *map, uint64_t offset, void *to, uint64_t bytes, char *why,
                           size_t why_bytes) {
    int entered = kvt_cuda_enter(map->gpu);
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&map->reading);
    for (uint64_t done = 0; done < bytes && error == cudaSuccess;) {
        size_t n = bytes - done < BOUNCE_BYTES ? (size_t)(bytes - done) : (size_t)BOUNCE_BYTES;
        error = cudaMemcpyAsync(map->bounce, arena_at(map, offset + done), n,
                                cudaMemcpyDeviceToHost, map->stream);
        if (error == cudaSuccess)
            error = cudaEventRecord(map->read_done, map->stream);
        if (error == cudaSuccess)
            error = cudaEventSynchronize(map->read_done);
        if (error == cudaSuccess)
            memcpy((uint8_t *)to + done, map->bounce, n);
        done += n;
    }
    pthread_mutex_unlock(&map->reading);
    kvt_cuda_leave(entered);
    return error == cudaSuccess
               ? KVT_OK
               : kvt_cuda_says(map, (int)error, "copying a page out of the arena", why, why_bytes);
}

extern const kvt_cuda_map_table kvt_cuda_map_calls;
const kvt_cuda_map_table kvt_cuda_map_calls = {.version = KVT_MODULE_VERSION,
                                               .place = place,
                                               .open = map_open,
                                               .close = map_close,
                                               .read = map_read,
                                               .area_open = kvt_cuda_area_open,
                                               .area_close = kvt_cuda_area_close,
                                               .areas_tidy = kvt_cuda_areas_tidy,
                                               .check_layout = kvt_cuda_check_layout,
                                               .check_stream = kvt_cuda_check_stream,
                                               .plan = plan,
                                               .is_plan = is_plan,
                                               .decode = decode,
                                               .pages = pages,
                                               .encode = encode,
                                               .wait = wait_for,
                                               .result = result,
                                               .drop = drop};
