/* job.c - see job.h. */
#include "daemon/job.h"

static int is_in_file(const core_copy *copy) {
    return !(copy->from_offset & KVT_STAGED_ON_DEVICE);
}

/* From the staging file, or from the staging area in device memory. The numbers of the staging side
 * came over the wire; those of the arena's are the core's own. */
static kvt_status take_bytes(const core_copy *copy, kvt_device *device, const job_staging *from) {
    uint64_t offset = copy->from_offset & ~KVT_STAGED_ON_DEVICE;
    if (offset > (uint64_t)INT64_MAX - copy->bytes)
        return KVT_EIO;
    if (is_in_file(copy))
        return device->ops->write_file(device, copy->to_offset, from->fd, offset, copy->bytes);
    if (!from->staged)
        return KVT_EINVAL;
    return device->ops->write_staged(device, copy->to_offset, from->staged, offset, copy->bytes);
}

/* Scales of the codec's own fit what they are for. One of the engine's may not, and nobody sees
 * that in what comes back but by this number. */
static uint32_t saturated_of(const core_copy *copy, kvt_device *device) {
    uint8_t header[KVT_PAGE_HEADER_BYTES];
    kvt_page_info info = {0};
    int has_scale = 0;
    for (uint32_t i = 0; i < copy->shape->n_ranges; i++)
        has_scale |= copy->shape->ranges[i].scale[0] > 0 || copy->shape->ranges[i].scale[1] > 0;
    if (has_scale && device->ops->read(device, copy->to_offset, header, sizeof header) == KVT_OK)
        kvt_page_get(header, &info);
    return info.saturated;
}

/* Takes the page and checks it where it stands then: nobody else writes there. */
static kvt_status take_page(const core_copy *copy, kvt_device *device, const job_staging *from,
                            uint32_t *ret_rows) {
    if (device->ops->write_file_page && is_in_file(copy))
        return device->ops->write_file_page(device, copy->shape, copy->to_offset, from->fd,
                                            copy->from_offset, copy->bytes, ret_rows);
    if (take_bytes(copy, device, from) != KVT_OK)
        return KVT_EIO;
    return device->ops->check(device, copy->shape, copy->to_offset, copy->bytes, ret_rows);
}

/* Who hands pages in has said hello and named the realm: a version or a shape that is not ours is a
 * header that was damaged. */
static kvt_status judge(kvt_status status, uint32_t rows, const core_copy *copy) {
    if (status == KVT_EVERSION || status == KVT_EGEOMETRY)
        return KVT_ECORRUPT;
    return status == KVT_OK && rows != copy->rows ? KVT_ECORRUPT : status;
}

static kvt_status copy_page(core_copy *copy, kvt_device *device, const job_staging *from) {
    uint32_t rows = 0;
    kvt_status status = take_page(copy, device, from, &rows);
    status = judge(status, rows, copy);
    if (status == KVT_OK)
        copy->saturated = saturated_of(copy, device);
    return status;
}

void job_run_seal(core_job *job, kvt_device *device, const job_staging *from) {
    for (uint32_t i = 0; i < job->n_copies; i++)
        job->copies[i].status = copy_page(&job->copies[i], device, from);
    job->status = KVT_OK;
}

void job_run_check(core_job *job, kvt_device *device) {
    for (uint32_t i = 0; i < job->n_copies; i++) {
        core_copy *copy = &job->copies[i];
        uint32_t rows = 0;
        kvt_status status =
            device->ops->check(device, copy->shape, copy->from_offset, copy->bytes, &rows);
        copy->status = judge(status, rows, copy);
    }
    job->status = KVT_OK;
}
