/* tier_disk.c - see tier_disk.h. */
#include "daemon/tier_disk.h"
#include "client/assert.h"
#include "daemon/trouble.h"
#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum {
    MAX_REQUESTS = 32, /* more than the core has jobs for the disk */
    MAX_REALMS = DISK_MAX_REALMS / 2,
    LOCK_WAIT_MS = 5000,
    WAIT_MS = 7000, /* somewhat more: that another daemon has it ends the start */
    BRIEF_WAIT_MS = 1000,
    LOW_BYTES = 8 << 20, /* twice what the tier leaves free of a budget, at most */
};

typedef struct slot {
    disk_request request;
    disk_item items[DISK_MAX_ITEMS];
    core_job *job;
    struct slot *next;
} slot;

struct tier_disk {
    disk *disk;
    core *core;
    slot slots[MAX_REQUESTS];
    slot *free_slots;
    core_job *refused;           /* the disk did not take them: handed back by the next step */
    uint32_t realms[MAX_REALMS]; /* the last ones that were named to the disk, by number */
    uint32_t next_realm;
    trouble fullness, failures, unread;
    int is_closing; /* what is refused then says nothing of the disk */
    int is_scanned; /* once, at least */
    uint64_t (*now_ms)(void *context);
    int (*is_stopped)(void *context);
    char of[80]; /* before each line of the log: "tenant NAME: ", "" where there is only one */
    char dir[];
};

/* --- what the disk says ------------------------------------------------------------------------
 */

/* Free bytes of the file system, if they are few: then it is that, and not the budget, which is
 * used up as it should be, that refuses pages. UINT64_MAX else. */
static uint64_t few_bytes(const tier_disk *d) {
    struct statvfs fs;
    if (statvfs(d->dir, &fs) != 0)
        return UINT64_MAX;
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return free_bytes <= LOW_BYTES ? free_bytes : UINT64_MAX;
}

static int has_status(const disk_request *request, kvt_status status) {
    uint32_t i = 0;
    while (i < request->n_items && request->items[i].status != status)
        i++;
    return i < request->n_items;
}

/* A file system that others have filled: nothing else would tell why pages are not written. */
static void note_full(tier_disk *d, const disk_request *request) {
    uint64_t free_bytes = has_status(request, KVT_EFULL) ? few_bytes(d) : UINT64_MAX;
    switch (trouble_note(&d->fullness, free_bytes != UINT64_MAX, has_status(request, KVT_OK),
                         d->now_ms(NULL))) {
    case TROUBLE_BEGINS:
        log_write(LOG_WARNING,
                  "%sdisk: the file system of %s has %llu KiB left: pages are not written until "
                  "there is room, or some of the tier's go; asked again every few seconds",
                  d->of, d->dir, (unsigned long long)free_bytes >> 10);
        break;
    case TROUBLE_ENDS:
        log_write(LOG_INFO, "%sdisk: there is room again: for %d s no page was refused", d->of,
                  TROUBLE_CALM_MS / 1000);
        break;
    default:
        break;
    }
}

/* The same of a disk whose device fails, or that is not to have files of this size. What a process
 * takes with it that dies is another matter, of which disk.c speaks. */
static void note_failed(tier_disk *d, const disk_request *request) {
    int fails = has_status(request, KVT_EIO) && disk_up(d->disk);
    switch (trouble_note(&d->failures, fails, has_status(request, KVT_OK), d->now_ms(NULL))) {
    case TROUBLE_BEGINS:
        log_write(LOG_WARNING,
                  "%sdisk: pages cannot be written to %s: an I/O error (of its device, which the "
                  "kernel's log tells, or a limit of file sizes); they stay in memory alone until "
                  "that works; tried again every few seconds",
                  d->of, d->dir);
        break;
    case TROUBLE_ENDS:
        log_write(LOG_INFO, "%sdisk: pages can be written again: for %d s none has failed", d->of,
                  TROUBLE_CALM_MS / 1000);
        break;
    default:
        break;
    }
}

/* What stands on a bad place of the disk is a miss each time that it is asked for, and said once.
 */
static void note_unread(tier_disk *d, const disk_request *request) {
    int fails = has_status(request, KVT_EIO) && disk_up(d->disk);
    switch (trouble_note(&d->unread, fails, has_status(request, KVT_OK), d->now_ms(NULL))) {
    case TROUBLE_BEGINS:
        log_write(
            LOG_WARNING,
            "%sdisk: pages cannot be read from %s: an I/O error (of its device, which the "
            "kernel's log tells); they are misses until that works, and are tried again every "
            "few seconds. \"reads_failed\" counts them",
            d->of, d->dir);
        break;
    case TROUBLE_ENDS:
        log_write(LOG_INFO, "%sdisk: pages can be read again: for %d s none has failed", d->of,
                  TROUBLE_CALM_MS / 1000);
        break;
    default:
        break;
    }
}

static void note_request(tier_disk *d, const disk_request *request) {
    if (request->kind == DISK_READ)
        note_unread(d, request);
    if (request->kind == DISK_WRITE)
        note_full(d, request);
    if (request->kind == DISK_WRITE || request->kind == DISK_DELETE)
        note_failed(d, request);
}

static void on_done(void *context, disk_request *request) {
    tier_disk *d = context;
    slot *s = request->context;
    core_job *job = s->job;
    if (d->core && !disk_up(d->disk)) /* or it would be asked again for what died with it */
        core_disk_up(d->core, 0);
    if (!d->is_closing)
        note_request(d, request);
    for (uint32_t i = 0; i < request->n_items; i++) {
        job->copies[i].status = request->items[i].status;
        job->records[i].serial = request->items[i].serial;
        job->records[i].stored = request->items[i].stored;
    }
    job->status = request->status;
    job->checked = request->checked;
    job->corrupt = request->deleted;
    s->next = d->free_slots;
    d->free_slots = s;
    core_job_done(d->core, job);
}

static int on_is_stopped(void *context) {
    const tier_disk *d = context;
    return d->is_stopped && d->is_stopped(NULL);
}

static uint32_t on_realm(void *context, const void *bytes, size_t n_bytes) {
    tier_disk *d = context;
    /* No core: the start has failed, and the disk is being closed again. */
    uint32_t realm = d->core ? core_found_realm(d->core, bytes, n_bytes) : 0;
    return realm ? realm : DISK_NO_REALM;
}

static void on_found(void *context, const disk_found *found) {
    tier_disk *d = context;
    core_record record = {.key = found->key,
                          .parent = found->parent,
                          .serial = found->serial,
                          .parent_serial = found->parent_serial,
                          .depth = found->depth,
                          .slot = found->slot,
                          .stored = found->stored,
                          .n_tokens = found->n_tokens};
    if (!d->core || found->n_tokens > sizeof record.tokens / sizeof *record.tokens)
        return;
    memcpy(record.tokens, found->tokens, found->n_tokens * sizeof *record.tokens);
    core_found_page(d->core, &(core_found){.realm = found->realm,
                                           .record = &record,
                                           .bytes = found->bytes,
                                           .rows = found->rows,
                                           .disk_bytes = found->disk_bytes});
}

/* What more records than pages can be known has come to. */
static void say_too_many(const tier_disk *d, uint64_t max_pages) {
    uint64_t left = core_found_left(d->core);
    char later[64] = "";
    if (left > 0)
        snprintf(later, sizeof later, ", %llu of them at the next start", (unsigned long long)left);
    log_write(
        LOG_WARNING,
        "%sdisk: %llu pages in %s are deleted%s: with them more than %llu would be known, all "
        "that \"max_pages\" allows; raise it to keep as many",
        d->of, (unsigned long long)core_found_too_many(d->core), d->dir, later,
        (unsigned long long)max_pages);
}

static void on_scan_done(void *context) {
    tier_disk *d = context;
    core_counts n;
    if (!d->core)
        return;
    int is_first = !d->is_scanned;
    d->is_scanned = 1;
    core_found_all(d->core);
    core_count(d->core, &n);
    log_write(LOG_INFO, "%sthe disk holds %llu pages", d->of, (unsigned long long)n.pages_disk);
    if (is_first && core_found_too_many(d->core) > 0)
        say_too_many(d, n.pages_max);
}

static void on_lost_all(void *context) {
    tier_disk *d = context;
    if (d->core)
        core_disk_lost(d->core);
}

static void on_log(void *context, int level, const char *line) {
    const tier_disk *d = context;
    log_write(level == 0   ? LOG_ERROR
              : level == 1 ? LOG_WARNING
                           : LOG_INFO,
              "%sdisk: %s", d->of, line);
}

/* --- open, close -------------------------------------------------------------------------------
 */

kvt_status tier_disk_open(const tier_disk_options *options, char *why, size_t why_bytes,
                          tier_disk **ret_disk) {
    size_t dir_bytes = strlen(options->dir) + 1;
    tier_disk *d = calloc(1, sizeof *d + dir_bytes);
    if (!d)
        return KVT_ENOMEM;
    memcpy(d->dir, options->dir, dir_bytes);
    if (options->tenant)
        snprintf(d->of, sizeof d->of, "tenant %s: ", options->tenant);
    d->now_ms = options->now_ms;
    d->is_stopped = options->is_stopped;
    for (uint32_t i = 0; i < MAX_REQUESTS; i++) {
        d->slots[i].next = d->free_slots;
        d->free_slots = &d->slots[i];
    }
    disk_options wanted = {.dir = options->dir,
                           .budget_bytes = options->budget_bytes,
                           .host_fd = options->host_fd,
                           .host_bytes = options->host_bytes,
                           .max_requests = MAX_REQUESTS,
                           .lock_wait_ms = LOCK_WAIT_MS,
                           .silent_ms = DISK_SILENT_MS,
                           .wait_ms = options->is_hanging ? BRIEF_WAIT_MS : WAIT_MS,
                           .context = d,
                           .is_stopped = on_is_stopped,
                           .done = on_done,
                           .found_realm = on_realm,
                           .found = on_found,
                           .scan_done = on_scan_done,
                           .lost_all = on_lost_all,
                           .log = on_log};
    kvt_status status = disk_open(&wanted, why, why_bytes, &d->disk);
    if (status == KVT_OK)
        *ret_disk = d;
    else
        free(d);
    return status;
}

void tier_disk_serve(tier_disk *d, core *c) {
    d->core = c;
}

/* Handed back as if the disk had failed; what it makes the core submit is taken next time. */
static void refuse_all(tier_disk *d) {
    core_job *job = d->refused;
    d->refused = NULL;
    while (job) {
        core_job *next = job->next;
        for (uint32_t i = 0; i < job->n_copies; i++)
            job->copies[i].status = KVT_EIO;
        job->status = KVT_EIO;
        core_job_done(d->core, job);
        job = next;
    }
}

void tier_disk_close(tier_disk *d, uint32_t limit_ms) {
    if (!d)
        return;
    d->is_closing = 1;
    if (d->core) {
        core_tiers_end(d->core);
        core_disk_up(d->core, 0);
    }
    disk_close(d->disk, limit_ms);
    d->disk = NULL;
    while (d->refused)
        refuse_all(d);
    free(d);
}

/* --- requests ----------------------------------------------------------------------------------
 */

int tier_disk_fd(const tier_disk *d) {
    return disk_fd(d->disk);
}

void tier_disk_step(tier_disk *d) {
    disk_step(d->disk);
    refuse_all(d);
    core_disk_up(d->core, disk_up(d->disk));
}

int tier_disk_up(const tier_disk *d) {
    return disk_up(d->disk);
}

int tier_disk_waits(const tier_disk *d) {
    return d->refused != NULL;
}

static void item_of(const core_job *job, uint32_t i, disk_item *ret_item) {
    const core_record *r = &job->records[i];
    const core_copy *copy = &job->copies[i];
    *ret_item =
        (disk_item){.key = r->key,
                    .parent = r->parent,
                    .serial = r->serial,
                    .parent_serial = r->parent_serial,
                    .depth = r->depth,
                    .slot = r->slot,
                    .rows = (uint16_t)copy->rows,
                    .n_tokens = r->n_tokens,
                    .raw16 = (uint16_t)(job->raw16 != 0),
                    .bytes = copy->bytes,
                    .tokens = r->tokens,
                    .host_offset = job->kind == CORE_JOB_READ ? copy->to_offset : copy->from_offset,
                    .status = KVT_EIO};
}

/* Names the realm to the disk if it is not one of the last that were; the oldest of these makes
 * room. (A job's realm is in use: it is among them until the job is done.) */
static kvt_status name_realm(tier_disk *d, const core_job *job) {
    for (uint32_t i = 0; i < MAX_REALMS; i++)
        if (d->realms[i] == job->realm)
            return KVT_OK;
    uint32_t *place = &d->realms[d->next_realm % MAX_REALMS];
    if (*place)
        disk_realm_forget(d->disk, *place);
    *place = 0;
    kvt_status status = disk_realm(d->disk, job->realm, job->realm_bytes, job->n_realm_bytes);
    if (status == KVT_OK) {
        *place = job->realm;
        d->next_realm++;
    }
    return status;
}

static int has_realm(const core_job *job) {
    return job->kind == CORE_JOB_WRITE || job->kind == CORE_JOB_READ;
}

static kvt_status try_submit(tier_disk *d, core_job *job) {
    slot *s = d->free_slots;
    if (!s || !d->disk)
        return KVT_EBUSY;
    if (has_realm(job)) {
        kvt_status status = name_realm(d, job);
        if (status != KVT_OK)
            return status;
    }
    for (uint32_t i = 0; i < job->n_copies; i++)
        item_of(job, i, &s->items[i]);
    s->job = job;
    s->request = (disk_request){.kind = job->kind == CORE_JOB_WRITE   ? DISK_WRITE
                                        : job->kind == CORE_JOB_READ  ? DISK_READ
                                        : job->kind == CORE_JOB_ERASE ? DISK_DELETE
                                                                      : DISK_VERIFY,
                                .realm = has_realm(job) ? job->realm : DISK_NO_REALM,
                                .n_items = job->n_copies,
                                .items = s->items,
                                .context = s};
    kvt_status status = disk_submit(d->disk, &s->request);
    if (status == KVT_OK)
        d->free_slots = s->next;
    return status;
}

void tier_disk_submit(tier_disk *d, core_job *job) {
    if (try_submit(d, job) == KVT_OK)
        return;
    job->next = d->refused;
    d->refused = job;
}

void tier_disk_count(const tier_disk *d, disk_stats *ret_stats) {
    disk_count(d->disk, ret_stats);
}
