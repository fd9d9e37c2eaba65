/*
 * job.h - what a job of the core does when it is run: by the daemon's worker threads against real
 * files and a real device, by the simulator against its own.
 */
#ifndef KVT_DAEMON_JOB_H
#define KVT_DAEMON_JOB_H

#include "daemon/core.h"
#include "kernels/device.h"

/* What a worker announced: its file, and its area in the device's memory if it has one there. */
typedef struct job_staging {
    int fd;
    kvt_staged *staged; /* NULL: none */
} job_staging;

/*
 * Copies each page from the staging side into its frame, then checks what stands IN THE FRAME:
 * shape, rows, checksum. What the worker does to its file or its area meanwhile cannot matter after
 * that. When it returns the device has done all of it. Sets each copy's status; stops for nothing.
 * Blocks; touches nothing but the job and the device.
 */
void job_run_seal(core_job *job, kvt_device *device, const job_staging *from);

/* Looks at the pages where they stand. KVT_ECORRUPT, KVT_EIO: nothing is known of them. */
void job_run_check(core_job *job, kvt_device *device);

/* Copies the pages of a CORE_JOB_DOWN or CORE_JOB_UP; host is the data of the host arena. */
void job_run_tier(core_job *job, kvt_device *device, char *host);

/* Encodes the pages of a CORE_JOB_COOL anew, each under the next codec set of its ladder, beside
 * where they lie. KVT_EGEOMETRY: it is not under the set that was said; KVT_ELIMIT: it would take
 * more than was said, since it holds what the codecs refuse; KVT_ECORRUPT, KVT_EIO, KVT_ENOMEM. */
void job_run_cool(core_job *job, kvt_device *device, char *host);

#endif
