/* job.c - see job.h. */
#include "daemon/job.h"
#include "client/assert.h"

static kvt_status copy_page(const core_job *job, core_copy *copy, kvt_device *device, int fd) {
    uint32_t rows;
    /* The numbers of the staging side came over the wire; those of the arena's are the core's own.
     */
    if (copy->from_offset > (uint64_t)INT64_MAX - copy->bytes)
        return KVT_EIO;
    kvt_status status =
        device->ops->write_file(device, copy->to_offset, fd, copy->from_offset, copy->bytes);
    if (status != KVT_OK)
        return KVT_EIO;
    const char *data = device->ops->data(device);
    KVT_ASSERT(data != NULL);
    status = kvt_page_check(job->shape, data + copy->to_offset, copy->bytes, 1, &rows);
    if (status == KVT_OK && rows != copy->rows)
        return KVT_ECORRUPT;
    return status;
}

void job_run_seal(core_job *job, kvt_device *device, int fd) {
    for (uint32_t i = 0; i < job->n_copies; i++)
        job->copies[i].status = copy_page(job, &job->copies[i], device, fd);
    job->status = KVT_OK;
}
