/* device_cuda.c - an arena in GPU memory. How a call moves bytes: cuda_mover.h. */
#include "kernels/device_cuda.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/assert.h"
#include "kernels/cuda_handles.h"
#include "kernels/cuda_mover.h"
#include "kernels/kernels.h"
#include "kernels/module.h"
#include "kernels/say.h"

enum {
    DEFAULT_MOVERS = 4,
    DEFAULT_BOUNCE_BYTES = 4 << 20,
    MAX_MOVERS = 64,
    SMALL_BYTES = 64 << 10, /* runs up to this mean size: a kernel beats the start of each copy */
    LIMIT_MS = 30000,       /* a call moves some pages: milliseconds, also beside busy workers */
};

typedef struct device_cuda {
    kvt_device base;
    kvt_device *head; /* a host device whose data is our head */
    uint8_t *data;
    uint64_t data_bytes;
    int gpu;
    int is_given;    /* to others, who may have the data open */
    uint8_t *pinned; /* host memory that the GPU reaches, */
    uint64_t pinned_bytes;
    int is_mapped;     /* kernels too, by the host's own addresses */
    int is_registered; /* by this device, among several of one process */
    kvt_cuda_movers movers;
} device_cuda;

/* --- the table ----------------------------------------------------------------------------------
 */

static void cuda_close(kvt_device *device) {
    device_cuda *d = (device_cuda *)device;
    if (!d)
        return;
    cudaSetDevice(d->gpu);
    kvt_cuda_movers_close(&d->movers);
    if (!d->is_given)
        cudaFree(d->data);
    if (d->head)
        d->head->ops->close(d->head);
    free(d);
}

static void *cuda_head(kvt_device *device) {
    device_cuda *d = (device_cuda *)device;
    return d->head->ops->data(d->head);
}

static void *cuda_data(kvt_device *device) {
    (void)device;
    return NULL;
}

/* Offsets in the data are the daemon's own, so one outside is a bug. */
static uint8_t *range(device_cuda *d, uint64_t offset, uint64_t bytes) {
    KVT_ASSERT(offset <= d->data_bytes && bytes <= d->data_bytes - offset);
    return d->data + offset;
}

static int read_file(int fd, uint64_t file_offset, uint8_t *to, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)file_offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* 0: the file ends here */
            return 0;
        to += n;
        file_offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 1;
}

static size_t part_of(const device_cuda *d, uint64_t left) {
    return left < d->movers.half_bytes ? (size_t)left : d->movers.half_bytes;
}

static kvt_status cuda_write_file(kvt_device *device, uint64_t offset, int fd, uint64_t file_offset,
                                  uint64_t bytes) {
    device_cuda *d = (device_cuda *)device;
    uint8_t *to = range(d, offset, bytes);
    /* The place in the file is a worker's word: no file is that long. */
    if (file_offset > INT64_MAX || bytes > INT64_MAX - file_offset)
        return KVT_EIO;
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_status status = KVT_OK;
    for (uint64_t done = 0, i = 0; done < bytes && status == KVT_OK; i++) {
        size_t n = part_of(d, bytes - done);
        uint8_t *half = m->half[i % 2];
        if (cudaEventSynchronize(m->half_free[i % 2]) != cudaSuccess ||
            !read_file(fd, file_offset + done, half, n) ||
            cudaMemcpyAsync(to + done, half, n, cudaMemcpyHostToDevice, m->stream) != cudaSuccess ||
            cudaEventRecord(m->half_free[i % 2], m->stream) != cudaSuccess)
            status = KVT_EIO;
        done += n;
    }
    return kvt_cuda_end(&d->movers, m, status);
}

static kvt_status cuda_copy(kvt_device *device, uint64_t to_offset, uint64_t from_offset,
                            uint64_t bytes) {
    device_cuda *d = (device_cuda *)device;
    uint8_t *to = range(d, to_offset, bytes), *from = range(d, from_offset, bytes);
    KVT_ASSERT(bytes <= (to > from ? to_offset - from_offset : from_offset - to_offset));
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_status status = KVT_OK;
    if (cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, m->stream) != cudaSuccess)
        status = KVT_EIO;
    return kvt_cuda_end(&d->movers, m, status);
}

static int is_pinned(const device_cuda *d, const void *at, uint64_t bytes) {
    uint64_t from = (uint64_t)((uintptr_t)at - (uintptr_t)d->pinned);
    return d->pinned && from <= d->pinned_bytes && bytes <= d->pinned_bytes - from;
}

static kvt_status copy_directly(device_cuda *d, void *to, const void *from, uint64_t bytes) {
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_status status = KVT_OK;
    if (cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, m->stream) != cudaSuccess)
        status = KVT_EIO;
    return kvt_cuda_end(&d->movers, m, status);
}

/* The GPU fills one half while this thread empties the other. */
static kvt_status cuda_write(kvt_device *device, uint64_t offset, const void *from,
                             uint64_t bytes) {
    device_cuda *d = (device_cuda *)device;
    uint8_t *to = range(d, offset, bytes);
    if (is_pinned(d, from, bytes))
        return copy_directly(d, to, from, bytes);
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_status status = KVT_OK;
    for (uint64_t done = 0, i = 0; done < bytes && status == KVT_OK; i++) {
        size_t n = part_of(d, bytes - done);
        uint8_t *half = m->half[i % 2];
        if (cudaEventSynchronize(m->half_free[i % 2]) != cudaSuccess) {
            status = KVT_EIO;
            break;
        }
        memcpy(half, (const uint8_t *)from + done, n);
        if (cudaMemcpyAsync(to + done, half, n, cudaMemcpyHostToDevice, m->stream) != cudaSuccess ||
            cudaEventRecord(m->half_free[i % 2], m->stream) != cudaSuccess)
            status = KVT_EIO;
        done += n;
    }
    return kvt_cuda_end(&d->movers, m, status);
}

static kvt_status cuda_read(kvt_device *device, uint64_t offset, void *to, uint64_t bytes) {
    device_cuda *d = (device_cuda *)device;
    const uint8_t *from = range(d, offset, bytes);
    if (is_pinned(d, to, bytes))
        return copy_directly(d, to, from, bytes);
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_status status = KVT_OK;
    uint64_t asked = 0, done = 0;
    for (uint64_t i = 0; done < bytes && status == KVT_OK; i++) {
        if (asked < bytes) {
            size_t n = part_of(d, bytes - asked);
            if (cudaMemcpyAsync(m->half[i % 2], from + asked, n, cudaMemcpyDeviceToHost,
                                m->stream) != cudaSuccess ||
                cudaEventRecord(m->half_free[i % 2], m->stream) != cudaSuccess)
                status = KVT_EIO;
            asked += n;
        }
        if (i == 0) /* nothing is there yet */
            continue;
        size_t n = part_of(d, bytes - done);
        if (cudaEventSynchronize(m->half_free[(i - 1) % 2]) != cudaSuccess)
            status = KVT_EIO;
        else
            memcpy((uint8_t *)to + done, m->half[(i - 1) % 2], n);
        done += n;
    }
    return kvt_cuda_end(&d->movers, m, status);
}

/* --- memory of the host that the GPU reaches
 * ------------------------------------------------------
 */

static kvt_status cuda_pin(kvt_device *device, void *at, uint64_t bytes, char *why,
                           size_t why_bytes) {
    device_cuda *d = (device_cuda *)device;
    struct cudaPointerAttributes seen = {.devicePointer = NULL};
    cudaSetDevice(d->gpu);
    cudaError_t error =
        cudaHostRegister(at, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    d->is_registered = error == cudaSuccess;
    if (error == cudaErrorHostMemoryAlreadyRegistered) /* by the device of another GPU */
        error = cudaSuccess;
    cudaGetLastError();
    if (error != cudaSuccess)
        return kvt_say(why, why_bytes, KVT_EIO, "CUDA says %s", cudaGetErrorString(error));
    d->is_mapped = cudaPointerGetAttributes(&seen, at) == cudaSuccess && seen.devicePointer == at;
    d->pinned = at;
    d->pinned_bytes = bytes;
    return KVT_OK;
}

static void cuda_unpin(kvt_device *device) {
    device_cuda *d = (device_cuda *)device;
    cudaSetDevice(d->gpu);
    if (d->pinned && d->is_registered)
        cudaHostUnregister(d->pinned);
    d->pinned = NULL;
}

/* Small runs by one kernel, each by some threads of it; large ones by the copy engines. */
static cudaError_t launch_runs(device_cuda *d, kvt_cuda_mover *m, const kvt_device_run *runs,
                               uint32_t n, int to_host) {
    uint64_t all = 0, most = 0, odd = 0;
    kvt_cuda_copy_run *copies = m->card->runs;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *data = range(d, runs[i].offset, runs[i].bytes);
        copies[i] = (kvt_cuda_copy_run){.to = to_host ? runs[i].host : data,
                                        .from = to_host ? data : runs[i].host,
                                        .bytes = runs[i].bytes};
        all += runs[i].bytes;
        most = runs[i].bytes > most ? runs[i].bytes : most;
        odd |= runs[i].offset | runs[i].bytes | (uintptr_t)runs[i].host;
    }
    if (d->is_mapped && odd % 16 == 0 && all <= (uint64_t)n * SMALL_BYTES)
        return (cudaError_t)kvt_cuda_copy(copies, n, most, m->stream);
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < n && error == cudaSuccess; i++)
        error = cudaMemcpyAsync(copies[i].to, copies[i].from, copies[i].bytes, cudaMemcpyDefault,
                                m->stream);
    return error;
}

static kvt_status cuda_move(kvt_device *device, const kvt_device_run *runs, uint32_t n,
                            int to_host) {
    device_cuda *d = (device_cuda *)device;
    KVT_ASSERT(n <= KVT_DEVICE_MAX_RUNS);
    for (uint32_t i = 0; i < n; i++)
        if (!is_pinned(d, runs[i].host, runs[i].bytes))
            return KVT_ENOTSUP;
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    cudaError_t error = launch_runs(d, m, runs, n, to_host);
    return kvt_cuda_end(&d->movers, m, error == cudaSuccess ? KVT_OK : KVT_EIO);
}

/* --- checking, staging ---------------------------------------------------------------------------
 */

/* By the GPU, where the page stands: nothing of it has to come back. */
static kvt_status cuda_check(kvt_device *device, const kvt_page_shape *shape, uint64_t offset,
                             uint64_t bytes, uint32_t *ret_rows) {
    device_cuda *d = (device_cuda *)device;
    const uint8_t *at = range(d, offset, bytes);
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_cuda_card *card = m->card;
    card->read = (kvt_cuda_read){.page = at, .page_bytes = bytes};
    card->status = KVT_OK;
    kvt_status status = kvt_cuda_reserve(m, kvt_cuda_workspace_bytes(shape, 1));
    if (status == KVT_OK &&
        (kvt_cuda_plan(shape, &card->read, 1, &card->page, &card->status, m->stream) != 0 ||
         kvt_cuda_verify(shape, &card->page, NULL, 1, &card->status, m->workspace, m->stream) != 0))
        status = KVT_EIO;
    /* Another call writes on the card as soon as the mover is given back. */
    if (status == KVT_OK && kvt_cuda_wait(m) != cudaSuccess)
        status = KVT_EIO;
    uint32_t rows = card->page.rows;
    if (status == KVT_OK)
        status = (kvt_status)card->status;
    status = kvt_cuda_end(&d->movers, m, status);
    if (status == KVT_OK)
        *ret_rows = rows;
    return status;
}

static int launch_transcode(const kvt_device_cooling *c, kvt_cuda_mover *m) {
    kvt_cuda_card *card = m->card;
    int error = kvt_cuda_plan(c->from_shape, &card->read, 1, &card->page, &card->status, m->stream);
    if (error == cudaSuccess)
        error = kvt_cuda_verify(c->from_shape, &card->page, NULL, 1, &card->status, m->workspace,
                                m->stream);
    if (error == cudaSuccess)
        error = kvt_cuda_transcode(c->to_shape, &card->page, &card->write, 1, &card->result,
                                   m->workspace, m->stream);
    return error;
}

static kvt_status transcoded(const kvt_device_cooling *c, const kvt_cuda_card *card) {
    if (card->status != KVT_OK || card->page.rows != c->rows)
        return KVT_ECORRUPT;
    if (card->result.status != KVT_OK)
        return (kvt_status)card->result.status;
    return card->result.bytes == c->to_bytes ? KVT_OK : KVT_ELIMIT;
}

static kvt_status cuda_transcode(kvt_device *device, const kvt_device_cooling *c) {
    device_cuda *d = (device_cuda *)device;
    const uint8_t *from = range(d, c->from_offset, c->from_bytes);
    uint8_t *to = range(d, c->to_offset, c->to_bytes);
    uint64_t before = kvt_cuda_workspace_bytes(c->from_shape, 1),
             after = kvt_cuda_workspace_bytes(c->to_shape, 1);
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_cuda_card *card = m->card;
    card->read = (kvt_cuda_read){.page = from, .page_bytes = c->from_bytes, .n_rows = c->rows};
    card->write = (kvt_cuda_write){.page = to,
                                   .room_bytes = c->to_bytes,
                                   .rows = c->rows,
                                   .is_first = (uint32_t)(c->is_first != 0)};
    card->status = KVT_OK;
    kvt_status status = kvt_cuda_reserve(m, before > after ? before : after);
    if (status == KVT_OK && launch_transcode(c, m) != 0)
        status = KVT_EIO;
    if (status == KVT_OK && kvt_cuda_wait(m) != cudaSuccess)
        status = KVT_EIO;
    if (status == KVT_OK)
        status = transcoded(c, card);
    return kvt_cuda_end(&d->movers, m, status);
}

static kvt_status cuda_stage(kvt_device *device, const kvt_wire_memory *memory,
                             kvt_staged **ret_staged) {
    device_cuda *d = (device_cuda *)device;
    char bus_id[sizeof memory->bus_id];
    kvt_cuda_opened *opened;
    kvt_status status = KVT_EIO;
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, d->gpu) == cudaSuccess)
        status = strncmp(bus_id, memory->bus_id, sizeof bus_id) == 0
                     ? kvt_cuda_open_memory(memory, NULL, 0, &opened)
                     : KVT_EINVAL;
    if (status == KVT_OK)
        *ret_staged = (kvt_staged *)opened;
    else if (status != KVT_EINVAL) /* nothing else may ever be asked of a GPU that is lost */
        kvt_cuda_look_for_failure(&d->movers);
    return status;
}

static kvt_status cuda_unstage(kvt_device *device, kvt_staged *staged) {
    kvt_status status = kvt_cuda_close_memory((kvt_cuda_opened *)staged);
    if (status != KVT_OK)
        kvt_cuda_look_for_failure(&((device_cuda *)device)->movers);
    return status;
}

/* The size that the worker named may be a lie: CUDA knows the true one, and refuses to copy what
 * lies beyond. */
static kvt_status cuda_write_staged(kvt_device *device, uint64_t offset, const kvt_staged *staged,
                                    uint64_t from_offset, uint64_t bytes) {
    device_cuda *d = (device_cuda *)device;
    const kvt_cuda_opened *from = (const kvt_cuda_opened *)staged;
    uint8_t *to = range(d, offset, bytes);
    uint64_t room = kvt_cuda_opened_bytes(from);
    if (from_offset > room || bytes > room - from_offset)
        return KVT_EIO;
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_status status = KVT_OK;
    if (cudaMemcpyAsync(to, kvt_cuda_opened_at(from) + from_offset, bytes, cudaMemcpyDeviceToDevice,
                        m->stream) != cudaSuccess)
        status = KVT_EIO;
    return kvt_cuda_end(&d->movers, m, status);
}

static const char *cuda_failure(kvt_device *device) {
    return kvt_cuda_failure(&((device_cuda *)device)->movers);
}

static const kvt_device_ops cuda_ops = {.name = "cuda",
                                        .close = cuda_close,
                                        .head = cuda_head,
                                        .data = cuda_data,
                                        .write_file = cuda_write_file,
                                        .copy = cuda_copy,
                                        .write = cuda_write,
                                        .read = cuda_read,
                                        .check = cuda_check,
                                        .stage = cuda_stage,
                                        .unstage = cuda_unstage,
                                        .write_staged = cuda_write_staged,
                                        .pin = cuda_pin,
                                        .unpin = cuda_unpin,
                                        .move = cuda_move,
                                        .transcode = cuda_transcode,
                                        .failure = cuda_failure};

/* --- opening ------------------------------------------------------------------------------------
 */

static kvt_status choose_gpu(uint32_t gpu, uint32_t *ret_n_gpus, char *why, size_t why_bytes) {
    int n_gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&n_gpus);
    if (error != cudaSuccess)
        return kvt_say(why, why_bytes, KVT_ENOTSUP, "no CUDA device can be used: %s",
                       cudaGetErrorString(error));
    if (gpu >= (uint32_t)n_gpus)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "there is no CUDA device %" PRIu32 ", but %d, and \"gpu\" counts from 0",
                       gpu, n_gpus);
    *ret_n_gpus = (uint32_t)n_gpus;
    error = cudaSetDevice((int)gpu);
    return error == cudaSuccess
               ? KVT_OK
               : kvt_say(why, why_bytes, KVT_ENOTSUP, "CUDA device %" PRIu32 ": %s", gpu,
                         cudaGetErrorString(error));
}

kvt_status kvt_device_cuda_room(uint32_t gpu, char *why, size_t why_bytes,
                                kvt_cuda_room *ret_room) {
    kvt_cuda_room room = {0};
    size_t free_bytes = 0, total_bytes = 0;
    kvt_status status = choose_gpu(gpu, &room.n_gpus, why, why_bytes);
    if (status != KVT_OK)
        return status;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error == cudaSuccess)
        error = cudaDeviceGetPCIBusId(room.bus_id, sizeof room.bus_id, (int)gpu);
    if (error != cudaSuccess)
        return kvt_say(why, why_bytes, KVT_ENOTSUP, "CUDA device %" PRIu32 ": %s", gpu,
                       cudaGetErrorString(error));
    room.free_bytes = free_bytes;
    room.total_bytes = total_bytes;
    *ret_room = room;
    return KVT_OK;
}

static kvt_status open_head(const kvt_device_cuda_options *o, device_cuda *d, char *why,
                            size_t why_bytes) {
    kvt_device_host_options options = {.path = o->path,
                                       .mode = o->mode,
                                       .gid = o->gid,
                                       .head_bytes = 0,
                                       .data_bytes = o->head_bytes};
    return kvt_device_host_open(&options, why, why_bytes, &d->head);
}

static kvt_status open_data(const kvt_device_cuda_options *o, device_cuda *d, char *why,
                            size_t why_bytes) {
    size_t free_bytes = 0, total_bytes = 0;
    void *data;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        return kvt_say(why, why_bytes, KVT_EIO, "CUDA device %" PRIu32 " does not answer", o->gpu);
    if (kvt_cuda_shared_new(o->data_bytes, &data) != cudaSuccess)
        return kvt_say(why, why_bytes, KVT_EFULL,
                       "%" PRIu64 " bytes were asked for, CUDA device %" PRIu32
                       " has %zu of %zu free; ask for a smaller arena",
                       o->data_bytes, o->gpu, free_bytes, total_bytes);
    d->data = data;
    d->data_bytes = o->data_bytes;
    return KVT_OK;
}

static kvt_status open_movers(const kvt_device_cuda_options *o, device_cuda *d, char *why,
                              size_t why_bytes) {
    return kvt_cuda_movers_open(&d->movers, d->gpu, o->n_movers ? o->n_movers : DEFAULT_MOVERS,
                                o->bounce_bytes ? o->bounce_bytes : DEFAULT_BOUNCE_BYTES,
                                o->limit_ms ? o->limit_ms : LIMIT_MS, why, why_bytes);
}

/* So that no byte of another process's memory is ever read as a page. */
static kvt_status zero_data(device_cuda *d, char *why, size_t why_bytes) {
    kvt_cuda_mover *m = kvt_cuda_begin(&d->movers);
    kvt_status status = KVT_OK;
    if (cudaMemsetAsync(d->data, 0, d->data_bytes, m->stream) != cudaSuccess)
        status = KVT_EIO;
    status = kvt_cuda_end(&d->movers, m, status);
    return status == KVT_OK ? KVT_OK : kvt_say(why, why_bytes, status, "zeroing the arena failed");
}

kvt_status kvt_device_cuda_open(const kvt_device_cuda_options *options, char *why, size_t why_bytes,
                                kvt_device **ret_device) {
    if (options->data_bytes == 0 || options->head_bytes == 0 || options->n_movers > MAX_MOVERS ||
        (options->bounce_bytes && options->bounce_bytes < 2))
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "%" PRIu64 " + %" PRIu64 " bytes, %" PRIu32 " movers of %" PRIu32
                       " bytes make no arena",
                       options->head_bytes, options->data_bytes, options->n_movers,
                       options->bounce_bytes);
    uint32_t n_gpus;
    kvt_status status = choose_gpu(options->gpu, &n_gpus, why, why_bytes);
    if (status != KVT_OK)
        return status;
    device_cuda *d = calloc(1, sizeof *d);
    if (!d)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory");
    d->base.ops = &cuda_ops;
    d->gpu = (int)options->gpu;
    status = open_head(options, d, why, why_bytes);
    if (status == KVT_OK)
        status = open_data(options, d, why, why_bytes);
    if (status == KVT_OK)
        status = open_movers(options, d, why, why_bytes);
    if (status == KVT_OK)
        status = zero_data(d, why, why_bytes);
    if (status != KVT_OK)
        cuda_close(&d->base);
    else
        *ret_device = &d->base;
    return status;
}

kvt_status kvt_device_cuda_describe(kvt_device *device, kvt_wire_memory *ret_memory) {
    const device_cuda *d = (const device_cuda *)device;
    return kvt_cuda_describe(d->data, d->data_bytes, d->gpu, ret_memory);
}

void kvt_device_cuda_given(kvt_device *device) {
    ((device_cuda *)device)->is_given = 1;
}

extern const kvt_cuda_arena_table kvt_cuda_arena;
const kvt_cuda_arena_table kvt_cuda_arena = {.version = KVT_MODULE_VERSION,
                                             .room = kvt_device_cuda_room,
                                             .open = kvt_device_cuda_open,
                                             .describe = kvt_device_cuda_describe,
                                             .given = kvt_device_cuda_given};
