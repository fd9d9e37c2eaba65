/*
 * jobs.h - the threads that do what takes time: opening and closing staging files, copying sealed
 * pages into their frames and checking them there. Jobs of one lane (a session) go to one thread,
 * so they are done and handed back in their order.
 */
#ifndef KVT_DAEMON_JOBS_H
#define KVT_DAEMON_JOBS_H

#include "daemon/core.h"
#include "kernels/device.h"

typedef struct jobs jobs;

typedef struct jobs_options {
    const char *staging_dir;
    kvt_device *device;
    char *host; /* data of the host tier; NULL: there is none */
    uint32_t n_threads;
    uint32_t max_jobs;                          /* under way at the same time, all kinds together */
    uint32_t max_staging;                       /* staging files open at the same time */
    void (*done)(void *context, core_job *job); /* called on a job thread; must not block */
    void *context;
} jobs_options;

/* KVT_EIO: staging_dir cannot be opened or a thread not be started, with a sentence in why. */
kvt_status jobs_open(const jobs_options *options, char *why, size_t why_bytes, jobs **ret_jobs);

/* The core thread; never blocks for long. The job is the callee's until done gets it. */
void jobs_submit(jobs *j, core_job *job);

/* Does what was submitted, hands it back, ends the threads, closes the files (but for those whose
 * area the device cannot close: the end of the process does). NULL is accepted. */
void jobs_close(jobs *j);

#endif
