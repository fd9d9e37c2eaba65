/* jobs.c - see jobs.h. */
#include "daemon/jobs.h"
#include "client/assert.h"
#include "daemon/job.h"
#include "daemon/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct worker {
    jobs *jobs;
    pthread_t thread;
    pthread_cond_t more;
    core_job **queue; /* ring of max_jobs places */
    uint32_t first, n_queued;
} worker;

struct jobs {
    pthread_mutex_t lock; /* of the queues and of the table of files */
    jobs_options options;
    int staging_dir;
    int closing;
    atomic_int has_stuck; /* an area that could not be closed, and it was logged */
    job_staging *files;   /* by handle; fd -1: free */
    uint32_t n_workers;
    worker *workers;
};

/* --- staging files -----------------------------------------------------------------------------
 */

/* What is wrong with a file that a worker offers, or KVT_OK. The name comes from the wire; the
 * directory is one that others can write to. */
static kvt_status open_staging(const jobs *j, const core_job *job, int *ret_fd) {
    struct stat info;
    if (job->name[0] == 0 || job->name[0] == '.' || strchr(job->name, '/'))
        return KVT_EINVAL;
    /* O_NONBLOCK: a FIFO must not hold this thread. */
    int fd = openat(j->staging_dir, job->name,
                    O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return errno == ENOENT                      ? KVT_ENOENT
               : errno == EACCES || errno == ELOOP  ? KVT_EDENIED
               : errno == EMFILE || errno == ENFILE ? KVT_ELIMIT
               : errno == ENOMEM                    ? KVT_ENOMEM
                                                    : KVT_EIO;
    kvt_status status = KVT_OK;
    /* Held until the area in it is closed, too: the worker frees that when it gets the lock. If it
     * has it already, it has given up on this file. */
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        status = KVT_ENOENT;
    else if (fstat(fd, &info) != 0)
        status = KVT_EIO;
    else if (!S_ISREG(info.st_mode) || info.st_uid != job->uid)
        status = KVT_EDENIED;
    else if (info.st_size < 0 || (uint64_t)info.st_size < job->staging_bytes)
        status = KVT_EINVAL;
    if (status != KVT_OK) {
        close(fd);
        return status;
    }
    *ret_fd = fd;
    return KVT_OK;
}

/* What a worker with an area in the device's memory has written behind the announced bytes. */
static kvt_status open_area(const jobs *j, const core_job *job, int fd, kvt_staged **ret_staged) {
    const kvt_device_ops *ops = j->options.device->ops;
    kvt_wire_memory memory;
    *ret_staged = NULL;
    if (!ops->stage || job->staging_bytes > INT64_MAX ||
        pread(fd, &memory, sizeof memory, (off_t)job->staging_bytes) != (ssize_t)sizeof memory ||
        memory.magic != KVT_MEMORY_MAGIC)
        return KVT_OK;
    if (memory.bytes < job->staging_bytes)
        return KVT_EINVAL;
    return ops->stage(j->options.device, &memory, ret_staged);
}

/* Where the device cannot let go of the area, the file stays open, with its lock, for as long as
 * this process: its worker would free memory that is still mapped here, and the GPU give it to
 * others. */
static void close_staging(jobs *j, const job_staging *staging) {
    const kvt_device_ops *ops = j->options.device->ops;
    if (!staging->staged || ops->unstage(j->options.device, staging->staged) == KVT_OK) {
        close(staging->fd);
        return;
    }
    if (!atomic_exchange(&j->has_stuck, 1))
        log_write(LOG_WARNING,
                  "the GPU cannot close a worker's staging area: the memory of that one, and of "
                  "others that follow, is the workers' again when this daemon ends");
}

static void stage(jobs *j, core_job *job) {
    job_staging staging = {.fd = -1};
    job->status = open_staging(j, job, &staging.fd);
    if (job->status != KVT_OK)
        return;
    job->status = open_area(j, job, staging.fd, &staging.staged);
    if (job->status != KVT_OK) {
        kvt_device *device = j->options.device;
        job->area_refused = 1;
        job->device_failure = device->ops->failure ? device->ops->failure(device) : NULL;
        close(staging.fd);
        return;
    }
    pthread_mutex_lock(&j->lock);
    uint32_t handle = 0;
    while (handle < j->options.max_staging && j->files[handle].fd >= 0)
        handle++;
    if (handle < j->options.max_staging) {
        j->files[handle] = staging;
        job->staging = (int)handle;
    } else {
        job->status = KVT_ELIMIT;
    }
    pthread_mutex_unlock(&j->lock);
    if (job->status != KVT_OK)
        close_staging(j, &staging);
}

static job_staging file_of(jobs *j, int handle) {
    KVT_ASSERT(handle >= 0 && (uint32_t)handle < j->options.max_staging);
    pthread_mutex_lock(&j->lock);
    job_staging staging = j->files[handle];
    pthread_mutex_unlock(&j->lock);
    KVT_ASSERT(staging.fd >= 0);
    return staging;
}

static void unstage(jobs *j, core_job *job) {
    job_staging staging = file_of(j, job->staging);
    pthread_mutex_lock(&j->lock);
    j->files[job->staging].fd = -1;
    pthread_mutex_unlock(&j->lock);
    close_staging(j, &staging);
    job->status = KVT_OK;
}

/* --- threads -----------------------------------------------------------------------------------
 */

static void run_job(jobs *j, core_job *job) {
    switch (job->kind) {
    case CORE_JOB_STAGE:
        stage(j, job);
        return;
    case CORE_JOB_UNSTAGE:
        unstage(j, job);
        return;
    case CORE_JOB_SEAL: {
        job_staging staging = file_of(j, job->staging);
        job_run_seal(job, j->options.device, &staging);
        return;
    }
    case CORE_JOB_CHECK:
        job_run_check(job, j->options.device);
        return;
    case CORE_JOB_DOWN:
    case CORE_JOB_UP:
        job_run_tier(job, j->options.device, j->options.host);
        return;
    case CORE_JOB_COOL:
        job_run_cool(job, j->options.device, j->options.host);
        return;
    case CORE_JOB_WRITE:
    case CORE_JOB_READ:
    case CORE_JOB_ERASE:
    case CORE_JOB_VERIFY:
        break;
    }
    KVT_ASSERT(0); /* a job for the disk, or none at all */
}

static void *worker_main(void *argument) {
    worker *w = argument;
    jobs *j = w->jobs;
    pthread_mutex_lock(&j->lock);
    for (;;) {
        while (w->n_queued == 0 && !j->closing)
            pthread_cond_wait(&w->more, &j->lock);
        if (w->n_queued == 0)
            break;
        core_job *job = w->queue[w->first];
        w->first = (w->first + 1) % j->options.max_jobs;
        w->n_queued--;
        pthread_mutex_unlock(&j->lock);
        run_job(j, job);
        j->options.done(j->options.context, job);
        pthread_mutex_lock(&j->lock);
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

void jobs_submit(jobs *j, core_job *job) {
    worker *w = &j->workers[job->lane % j->n_workers];
    pthread_mutex_lock(&j->lock);
    KVT_ASSERT(w->n_queued < j->options.max_jobs);
    w->queue[(w->first + w->n_queued++) % j->options.max_jobs] = job;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&j->lock);
}

static kvt_status start_workers(jobs *j, char *why, size_t why_bytes) {
    for (uint32_t i = 0; i < j->options.n_threads; i++) {
        worker *w = &j->workers[i];
        w->jobs = j;
        w->queue = calloc(j->options.max_jobs, sizeof *w->queue);
        if (!w->queue) {
            snprintf(why, why_bytes, "no memory for the queues of %u job threads",
                     j->options.n_threads);
            return KVT_ENOMEM;
        }
        pthread_cond_init(&w->more, NULL);
        int error = pthread_create(&w->thread, NULL, worker_main, w);
        if (error != 0) {
            pthread_cond_destroy(&w->more);
            free(w->queue);
            snprintf(why, why_bytes, "job thread %u of %u cannot be started: %s", i + 1,
                     j->options.n_threads, strerror(error));
            return KVT_EIO;
        }
        j->n_workers++;
    }
    return KVT_OK;
}

kvt_status jobs_open(const jobs_options *options, char *why, size_t why_bytes, jobs **ret_jobs) {
    kvt_status status = KVT_ENOMEM;
    KVT_ASSERT(options->n_threads > 0 && options->max_jobs > 0);
    jobs *j = calloc(1, sizeof *j);
    if (!j)
        goto no_memory;
    j->options = *options;
    pthread_mutex_init(&j->lock, NULL);
    j->staging_dir = -1;
    j->workers = calloc(options->n_threads, sizeof *j->workers);
    j->files = calloc(options->max_staging, sizeof *j->files);
    if (!j->workers || !j->files)
        goto no_memory;
    for (uint32_t i = 0; i < options->max_staging; i++)
        j->files[i].fd = -1;
    j->staging_dir = open(options->staging_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (j->staging_dir < 0) {
        snprintf(why, why_bytes, "staging_dir %s cannot be opened: %s", options->staging_dir,
                 strerror(errno));
        status = KVT_EIO;
        goto out;
    }
    status = start_workers(j, why, why_bytes);
    goto out;
no_memory:
    snprintf(why, why_bytes, "no memory for %u staging files", options->max_staging);
out:
    if (status == KVT_OK)
        *ret_jobs = j;
    else
        jobs_close(j);
    return status;
}

void jobs_close(jobs *j) {
    if (!j)
        return;
    pthread_mutex_lock(&j->lock);
    j->closing = 1;
    for (uint32_t i = 0; i < j->n_workers; i++)
        pthread_cond_signal(&j->workers[i].more);
    pthread_mutex_unlock(&j->lock);
    for (uint32_t i = 0; i < j->n_workers; i++) {
        pthread_join(j->workers[i].thread, NULL);
        pthread_cond_destroy(&j->workers[i].more);
        free(j->workers[i].queue);
    }
    for (uint32_t i = 0; j->files && i < j->options.max_staging; i++)
        if (j->files[i].fd >= 0)
            close_staging(j, &j->files[i]);
    if (j->staging_dir >= 0)
        close(j->staging_dir);
    pthread_mutex_destroy(&j->lock);
    free(j->workers);
    free(j->files);
    free(j);
}
