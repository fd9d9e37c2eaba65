/* job_cool.c - pages into fewer bits; see job.h. */
#include "client/assert.h"
#include "daemon/job.h"

#include <stdlib.h>

/* Work space, for the largest of a job's pages: elements; and where the data cannot be addressed,
 * the page as it is and as it becomes. */
typedef struct space {
    char *elements, *from, *to;
} space;

static size_t pad64(size_t n) {
    return (n + 63) / 64 * 64;
}

static kvt_status space_open(const core_job *job, int beside, space *s) {
    size_t elements = 0, from = 0, to = 0;
    for (uint32_t i = 0; i < job->n_copies; i++) {
        const core_copy *copy = &job->copies[i];
        size_t n = kvt_page_elements_bytes(copy->shape);
        elements = n > elements ? n : elements;
        from = copy->bytes > from ? copy->bytes : from;
        to = copy->to_bytes > to ? copy->to_bytes : to;
    }
    elements = pad64(elements);
    from = beside ? pad64(from) : 0;
    to = beside ? pad64(to) : 0;
    s->elements = aligned_alloc(64, elements + from + to);
    if (!s->elements)
        return KVT_ENOMEM;
    s->from = s->elements + elements;
    s->to = s->from + from;
    return KVT_OK;
}

/* The header decides: what it says may be another set than the core knows, of a page that was read
 * from disk or grew from a cooled one. */
static kvt_status find_rung(core_copy *copy, const void *page) {
    for (uint8_t rung = 0; rung < copy->n_rungs; rung++) {
        if (!kvt_page_is_under(&copy->shape[rung], page, copy->bytes))
            continue;
        kvt_status status = rung == copy->rung && rung + 1 < copy->n_rungs ? KVT_OK : KVT_EGEOMETRY;
        copy->rung = rung;
        return status;
    }
    copy->rung = (uint8_t)(copy->n_rungs - 1);
    return KVT_EGEOMETRY;
}

/* The page is checked whole: the new one has a checksum of its own, which must not vouch for
 * damage. */
static kvt_status cool_page_at(core_copy *copy, const void *from, void *to, void *elements) {
    uint32_t rows;
    size_t n_bytes;
    if (kvt_page_check(copy->shape, from, copy->bytes, 1, &rows) != KVT_OK || rows != copy->rows)
        return KVT_ECORRUPT;
    kvt_status status = find_rung(copy, from);
    if (status != KVT_OK)
        return status;
    const kvt_page_shape *next = &copy->shape[copy->rung + 1];
    status = kvt_page_transcode(next, from, copy->bytes, copy->is_first, elements, to,
                                copy->to_bytes, &n_bytes);
    return status == KVT_OK && n_bytes != copy->to_bytes ? KVT_ELIMIT : status;
}

static kvt_status cool_beside(core_copy *copy, kvt_device *device, const space *s) {
    kvt_status status = device->ops->read(device, copy->from_offset, s->from, copy->bytes);
    if (status == KVT_OK)
        status = cool_page_at(copy, s->from, s->to, s->elements);
    if (status == KVT_OK)
        status = device->ops->write(device, copy->to_offset, s->to, copy->to_bytes);
    return status;
}

/* A page that is what it should be cools where it stands. For any other the host finds out what is
 * the matter (KVT_ENOTSUP). */
static kvt_status cool_on_device(const core_copy *copy, kvt_device *device) {
    uint8_t header[KVT_PAGE_HEADER_BYTES];
    const kvt_page_shape *shape = &copy->shape[copy->rung];
    if (!device->ops->transcode || copy->rung + 1 >= copy->n_rungs || copy->bytes < sizeof header)
        return KVT_ENOTSUP;
    kvt_status status = device->ops->read(device, copy->from_offset, header, sizeof header);
    if (status != KVT_OK)
        return status;
    if (!kvt_page_is_under(shape, header, copy->bytes))
        return KVT_ENOTSUP;
    kvt_device_cooling cooling = {.from_shape = shape,
                                  .to_shape = shape + 1,
                                  .from_offset = copy->from_offset,
                                  .from_bytes = copy->bytes,
                                  .to_offset = copy->to_offset,
                                  .to_bytes = copy->to_bytes,
                                  .rows = copy->rows,
                                  .is_first = copy->is_first};
    return device->ops->transcode(device, &cooling);
}

void job_run_cool(core_job *job, kvt_device *device, char *host) {
    KVT_ASSERT(job->kind == CORE_JOB_COOL);
    char *data = device->ops->data(device);
    space s = {0};
    job->status = space_open(job, !data, &s);
    for (uint32_t i = 0; i < job->n_copies; i++) {
        core_copy *copy = &job->copies[i];
        char *at = copy->in_host ? host : data;
        if (job->status != KVT_OK)
            copy->status = job->status;
        else if (at)
            copy->status =
                cool_page_at(copy, at + copy->from_offset, at + copy->to_offset, s.elements);
        else if ((copy->status = cool_on_device(copy, device)) == KVT_ENOTSUP)
            copy->status = cool_beside(copy, device, &s);
    }
    if (job->status == KVT_OK)
        free(s.elements);
}
