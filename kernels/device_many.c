/* device_many.c - see device_many.h. */
#include "kernels/device_many.h"

#include <stdlib.h>

#include "client/assert.h"

typedef struct device_many {
    kvt_device base;
    kvt_device_ops ops;
    uint32_t n;
    kvt_device *devices[KVT_MAX_DEVICES];
} device_many;

struct kvt_staged {
    kvt_device *device; /* whose it is */
    kvt_staged *staged;
};

/* Where one of them has the offset. */
static kvt_device *at(kvt_device *device, uint64_t *offset) {
    const device_many *m = (const device_many *)device;
    uint64_t i = *offset / KVT_DEVICE_STRIDE;
    KVT_ASSERT(i < m->n);
    *offset %= KVT_DEVICE_STRIDE;
    return m->devices[i];
}

static void many_close(kvt_device *device) {
    device_many *m = (device_many *)device;
    for (uint32_t i = 0; m && i < m->n; i++)
        m->devices[i]->ops->close(m->devices[i]);
    free(m);
}

static void *many_nowhere(kvt_device *device) {
    (void)device;
    return NULL;
}

static kvt_status many_write_file(kvt_device *device, uint64_t offset, int fd, uint64_t file_offset,
                                  uint64_t bytes) {
    kvt_device *d = at(device, &offset);
    return d->ops->write_file(d, offset, fd, file_offset, bytes);
}

/* Nothing is copied from one device to another: a page's rank is on one. */
static kvt_status many_copy(kvt_device *device, uint64_t to_offset, uint64_t from_offset,
                            uint64_t bytes) {
    kvt_device *to = at(device, &to_offset), *from = at(device, &from_offset);
    KVT_ASSERT(to == from);
    return to->ops->copy(to, to_offset, from_offset, bytes);
}

static kvt_status many_write(kvt_device *device, uint64_t offset, const void *from,
                             uint64_t bytes) {
    kvt_device *d = at(device, &offset);
    return d->ops->write(d, offset, from, bytes);
}

static kvt_status many_read(kvt_device *device, uint64_t offset, void *to, uint64_t bytes) {
    kvt_device *d = at(device, &offset);
    return d->ops->read(d, offset, to, bytes);
}

static kvt_status many_check(kvt_device *device, const kvt_page_shape *shape, uint64_t offset,
                             uint64_t bytes, uint32_t *ret_rows) {
    kvt_device *d = at(device, &offset);
    return d->ops->check(d, shape, offset, bytes, ret_rows);
}

static kvt_status many_write_file_page(kvt_device *device, const kvt_page_shape *shape,
                                       uint64_t offset, int fd, uint64_t file_offset,
                                       uint64_t bytes, uint32_t *ret_rows) {
    kvt_device *d = at(device, &offset);
    return d->ops->write_file_page(d, shape, offset, fd, file_offset, bytes, ret_rows);
}

/* --- staging areas ------------------------------------------------------------------------------
 */

static kvt_status many_stage(kvt_device *device, const kvt_wire_memory *memory,
                             kvt_staged **ret_staged) {
    const device_many *m = (const device_many *)device;
    kvt_status status = KVT_EINVAL;
    kvt_staged *staged = malloc(sizeof *staged);
    if (!staged)
        return KVT_ENOMEM;
    for (uint32_t i = 0; i < m->n && status == KVT_EINVAL; i++) {
        kvt_device *d = m->devices[i];
        staged->device = d;
        status = d->ops->stage(d, memory, &staged->staged);
    }
    if (status == KVT_OK)
        *ret_staged = staged;
    else
        free(staged);
    return status;
}

static kvt_status many_unstage(kvt_device *device, kvt_staged *staged) {
    (void)device;
    if (!staged)
        return KVT_OK;
    kvt_status status = staged->device->ops->unstage(staged->device, staged->staged);
    free(staged);
    return status;
}

static kvt_status many_write_staged(kvt_device *device, uint64_t offset, const kvt_staged *staged,
                                    uint64_t from_offset, uint64_t bytes) {
    kvt_device *d = at(device, &offset);
    if (d != staged->device)
        return KVT_EIO;
    return d->ops->write_staged(d, offset, staged->staged, from_offset, bytes);
}

/* --- memory of the host --------------------------------------------------------------------------
 */

/* To each of them: what one has registered the next only notes. */
static kvt_status many_pin(kvt_device *device, void *at, uint64_t bytes, char *why,
                           size_t why_bytes) {
    const device_many *m = (const device_many *)device;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < m->n && status == KVT_OK; i++)
        status = m->devices[i]->ops->pin(m->devices[i], at, bytes, why, why_bytes);
    return status;
}

static void many_unpin(kvt_device *device) {
    const device_many *m = (const device_many *)device;
    for (uint32_t i = m->n; i-- > 0;) /* the first has registered it */
        m->devices[i]->ops->unpin(m->devices[i]);
}

static kvt_status many_move(kvt_device *device, const kvt_device_run *runs, uint32_t n,
                            int to_host) {
    const device_many *m = (const device_many *)device;
    kvt_status status = KVT_OK;
    for (uint32_t k = 0; k < m->n && status == KVT_OK; k++) {
        kvt_device_run own[KVT_DEVICE_MAX_RUNS];
        uint32_t n_own = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (runs[i].offset / KVT_DEVICE_STRIDE != k)
                continue;
            own[n_own] = runs[i];
            own[n_own++].offset %= KVT_DEVICE_STRIDE;
        }
        if (n_own > 0)
            status = m->devices[k]->ops->move(m->devices[k], own, n_own, to_host);
    }
    return status;
}

static kvt_status many_transcode(kvt_device *device, const kvt_device_cooling *cooling) {
    kvt_device_cooling own = *cooling;
    kvt_device *d = at(device, &own.from_offset), *to = at(device, &own.to_offset);
    KVT_ASSERT(d == to);
    return d->ops->transcode(d, &own);
}

static const char *many_failure(kvt_device *device) {
    const device_many *m = (const device_many *)device;
    const char *failure = NULL;
    for (uint32_t i = 0; i < m->n && !failure; i++)
        failure = m->devices[i]->ops->failure(m->devices[i]);
    return failure;
}

/* --- opening ------------------------------------------------------------------------------------
 */

static const kvt_device_ops all_ops = {.close = many_close,
                                       .head = many_nowhere,
                                       .data = many_nowhere,
                                       .write_file = many_write_file,
                                       .copy = many_copy,
                                       .write = many_write,
                                       .read = many_read,
                                       .check = many_check,
                                       .write_file_page = many_write_file_page,
                                       .stage = many_stage,
                                       .unstage = many_unstage,
                                       .write_staged = many_write_staged,
                                       .pin = many_pin,
                                       .unpin = many_unpin,
                                       .move = many_move,
                                       .transcode = many_transcode,
                                       .failure = many_failure};

/* What each of them lacks, all together lack. */
static kvt_device_ops ops_of(const kvt_device_ops *each) {
    kvt_device_ops ops = all_ops;
    ops.name = each->name;
    if (!each->write_file_page)
        ops.write_file_page = NULL;
    if (!each->stage) {
        ops.stage = NULL;
        ops.unstage = NULL;
        ops.write_staged = NULL;
    }
    if (!each->pin) {
        ops.pin = NULL;
        ops.unpin = NULL;
        ops.move = NULL;
        ops.transcode = NULL;
    }
    if (!each->failure)
        ops.failure = NULL;
    return ops;
}

kvt_status kvt_device_many_open(kvt_device *const *devices, uint32_t n, kvt_device **ret_device) {
    KVT_ASSERT(n > 0 && n <= KVT_MAX_DEVICES);
    device_many *m = calloc(1, sizeof *m);
    if (!m)
        return KVT_ENOMEM;
    m->ops = ops_of(devices[0]->ops);
    m->base.ops = &m->ops;
    m->n = n;
    for (uint32_t i = 0; i < n; i++) {
        KVT_ASSERT(devices[i]->ops == devices[0]->ops);
        m->devices[i] = devices[i];
    }
    *ret_device = &m->base;
    return KVT_OK;
}
