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

static void copy_each(core_job *job, uint32_t first, uint32_t n, kvt_device *device, char *host) {
    for (uint32_t i = first; i < first + n; i++) {
        core_copy *copy = &job->copies[i];
        copy->status =
            job->kind == CORE_JOB_UP
                ? copy_up(copy, device, host)
                : device->ops->read(device, copy->from_offset, host + copy->to_offset, copy->bytes);
    }
}

/* Pages that go in one go, and how far each has been checked that goes up. */
typedef struct batch {
    uint32_t n;
    core_copy *copies[KVT_DEVICE_MAX_RUNS];
    kvt_device_run runs[KVT_DEVICE_MAX_RUNS];
    kvt_page_checking checking[KVT_DEVICE_MAX_RUNS];
} batch;

static void add_page(batch *b, core_copy *copy, int is_up, char *host) {
    char *at = host + (is_up ? copy->from_offset : copy->to_offset);
    copy->status =
        is_up ? kvt_page_check_begin(copy->shape, at, copy->bytes, &b->checking[b->n]) : KVT_OK;
    if (copy->status != KVT_OK) {
        copy->status = KVT_ECORRUPT;
        return;
    }
    b->copies[b->n] = copy;
    b->runs[b->n++] = (kvt_device_run){
        .offset = is_up ? copy->to_offset : copy->from_offset, .host = at, .bytes = copy->bytes};
}

static kvt_status end_check(kvt_page_checking *checking, const core_copy *copy) {
    uint32_t rows;
    kvt_page_check_to(checking, copy->bytes);
    kvt_status status = kvt_page_check_end(checking, &rows);
    return status == KVT_OK && rows != copy->rows ? KVT_ECORRUPT : status;
}

/* 0: nothing was done. */
static int copy_at_once(core_job *job, uint32_t first, uint32_t n, kvt_device *device, char *host) {
    int is_up = job->kind == CORE_JOB_UP;
    batch b;
    b.n = 0;
    for (uint32_t i = first; i < first + n; i++)
        add_page(&b, &job->copies[i], is_up, host);
    kvt_status status = b.n > 0 ? device->ops->move(device, b.runs, b.n, !is_up) : KVT_OK;
    if (status == KVT_ENOTSUP)
        return 0;
    for (uint32_t i = 0; i < b.n; i++)
        b.copies[i]->status =
            status == KVT_OK && is_up ? end_check(&b.checking[i], b.copies[i]) : status;
    return 1;
}

void job_run_tier(core_job *job, kvt_device *device, char *host) {
    KVT_ASSERT(job->kind == CORE_JOB_DOWN || job->kind == CORE_JOB_UP);
    for (uint32_t first = 0, n; first < job->n_copies; first += n) {
        n = job->n_copies - first;
        n = n < KVT_DEVICE_MAX_RUNS ? n : KVT_DEVICE_MAX_RUNS;
        if (n == 1 || !device->ops->move || !copy_at_once(job, first, n, device, host))
            copy_each(job, first, n, device, host);
    }
    job->status = KVT_OK;
}
