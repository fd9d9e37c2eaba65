/* job.c - see job.h. */
#include "daemon/job.h"

/* From the staging file, or from the staging area in device memory. The numbers of the staging side
 * came over the wire; those of the arena's are the core's own. */
static kvt_status take_bytes(const core_copy *copy, kvt_device *device, const job_staging *from) {
    uint64_t offset = copy->from_offset & ~KVT_STAGED_ON_DEVICE;
    if (offset > (uint64_t)INT64_MAX - copy->bytes)
        return KVT_EIO;
    if (!(copy->from_offset & KVT_STAGED_ON_DEVICE))
        return device->ops->write_file(device, copy->to_offset, from->fd, offset, copy->bytes);
    if (!from->staged)
        return KVT_EINVAL;
    return device->ops->write_staged(device, copy->to_offset, from->staged, offset, copy->bytes);
}

static kvt_status copy_page(core_copy *copy, kvt_device *device, const job_staging *from) {
    uint32_t rows;
    if (take_bytes(copy, device, from) != KVT_OK)
        return KVT_EIO;
    kvt_status status =
        device->ops->check(device, copy->shape, copy->to_offset, copy->bytes, &rows);
    if (status == KVT_OK && rows != copy->rows)
        return KVT_ECORRUPT;
    return status;
}

void job_run_seal(core_job *job, kvt_device *device, const job_staging *from) {
    for (uint32_t i = 0; i < job->n_copies; i++)
        job->copies[i].status = copy_page(&job->copies[i], device, from);
    job->status = KVT_OK;
}
