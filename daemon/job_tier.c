/* job_tier.c - copying between the arena and the host tier; see job.h. */
#include "client/assert.h"
#include "daemon/job.h"

static kvt_status copy_up(const core_copy *copy, kvt_device *device, const char *host) {
    uint32_t rows;
    /* Checked before it is copied: what stands in the arena is only shown if this is right, and a
     * damaged copy is found while there may be another one below. */
    kvt_status status =
        kvt_page_check(copy->shape, host + copy->from_offset, copy->bytes, 1, &rows);
    if (status != KVT_OK || rows != copy->rows)
        return KVT_ECORRUPT;
    return device->ops->write(device, copy->to_offset, host + copy->from_offset, copy->bytes);
}

void job_run_tier(core_job *job, kvt_device *device, char *host) {
    KVT_ASSERT(job->kind == CORE_JOB_DOWN || job->kind == CORE_JOB_UP);
    for (uint32_t i = 0; i < job->n_copies; i++) {
        core_copy *copy = &job->copies[i];
        copy->status =
            job->kind == CORE_JOB_UP
                ? copy_up(copy, device, host)
                : device->ops->read(device, copy->from_offset, host + copy->to_offset, copy->bytes);
    }
    job->status = KVT_OK;
}
