/*
 * tier_disk.h - between the core, which thinks in jobs, and the disk (disk.h), which thinks in
 * requests.
 */
#ifndef KVT_DAEMON_TIER_DISK_H
#define KVT_DAEMON_TIER_DISK_H

#include "daemon/core.h"
#include "daemon/disk.h"

typedef struct tier_disk tier_disk;

typedef struct tier_disk_options {
    const char *dir;
    const char *tenant; /* for the log; NULL: there is only one */
    uint64_t budget_bytes;
    int host_fd;
    uint64_t host_bytes;
    uint64_t (*now_ms)(void *context); /* the core's clock */
    int (*is_stopped)(void *context);  /* while it is opened: see disk.h; its context is NULL */
    int is_hanging; /* another tenant's was waited for in vain: this one is not, for so long */
} tier_disk_options;

/* Starts the disk, and waits a few seconds for it: it need not be up then. What it finds is told to
 * the core that tier_disk_serve names. Errors as disk_open. */
kvt_status tier_disk_open(const tier_disk_options *options, char *why, size_t why_bytes,
                          tier_disk **ret_disk);
void tier_disk_serve(tier_disk *d, core *c);
/* Ends it; jobs that it still has are handed back to the core first. NULL is accepted. */
void tier_disk_close(tier_disk *d, uint32_t limit_ms);

int tier_disk_fd(const tier_disk *d); /* readable: tier_disk_step has something to do */
void tier_disk_step(tier_disk *d);
int tier_disk_up(const tier_disk *d);    /* its file is open */
int tier_disk_waits(const tier_disk *d); /* a step is due all the same */
/* A job of kind WRITE, READ or ERASE; core_job_done follows, not from within. */
void tier_disk_submit(tier_disk *d, core_job *job);
void tier_disk_count(const tier_disk *d, disk_stats *ret_stats);

#endif
