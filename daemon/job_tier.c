/* job_tier.c - copying between the arena and the host tier; see job.h. */
#include "client/assert.h"
#include "daemon/job.h"

enum { PIECE_BYTES = 65536 }; /* still in the second cache when it has been copied */

/* What is taken is checked on the way, and only shown if all of it was right. */
static kvt_status copy_up(const core_copy *copy, kvt_device *device, const char *host) {
    const char *page = host + copy->from_offset;
    kvt_page_checking checking;
    uint32_t rows;
    if (kvt_page_check_begin(copy->shape, page, copy->bytes, &checking) != KVT_OK)
        return KVT_ECORRUPT;
    kvt_status status = KVT_OK;
    for (uint64_t at = 0, n; at < copy->bytes && status == KVT_OK; at += n) {
        n = copy->bytes - at;
        if (device->ops->data(device) && n > PIECE_BYTES)
            n = PIECE_BYTES;
        status = device->ops->write(device, copy->to_offset + at, page + at, n);
        kvt_page_check_to(&checking, at + n);
    }
    if (status == KVT_OK)
        status = kvt_page_check_end(&checking, &rows);
    return status == KVT_OK && rows != copy->rows ? KVT_ECORRUPT : status;
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
