/*
 * staging.c - the file through which encoded pages reach the daemon, cut into slots of one page.
 *
 * A slot is FREE, USED (a lease encodes into it, or has) or UNSAFE: a SEAL that named it was not
 * answered, so the daemon may be reading it, now or a little later. An unsafe slot is never written
 * again. The daemon checks the copy that it made, not the slot, so a slot that changed under it
 * could not poison the cache with bytes that fail their checksum; but it could well seal the next
 * page's bytes, valid in themselves, as the page of the SEAL before. That would be a lie, and
 * nothing would show it.
 *
 * Unsafe slots come back with a new file: when nothing of the current one is used any more, the
 * next encode makes another, and the next seal announces it. The daemon works on the files of a
 * session in the order of its requests, so whatever still reads the old file reads bytes that stand
 * still. Were the file replaced while slots of it are used, what other leases have encoded there
 * would be lost.
 *
 * Files belong to an epoch: a new session knows nothing of the file of the old.
 */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    LET_GO_MS = 100
}; /* for an area that the daemon closes; after that the next call frees it */

struct kvt_staging {
    kvt_staging *next; /* of all that are mapped */
    uint64_t epoch;
    uint8_t *bytes;
    size_t n_bytes;
    size_t slot_bytes;
    uint32_t n_slots;
    uint32_t n_used;
    uint32_t n_unsafe;
    uint32_t n_free;
    int linked; /* the name is still there: the daemon has not opened it */
    int file;   /* of a file with an area, to learn when the daemon has closed that; else -1 */
    const kvt_cuda_map_table *calls;
    kvt_cuda_area *area; /* as large as the slots, on the arena's GPU; NULL: none */
    kvt_wire_memory memory;
    char path[KVT_WIRE_MAX_PATH + 64];
    const char *name; /* in path */
    uint32_t free_slots[];
};

/* --- files --------------------------------------------------------------------------------------
 */

/* A name that nobody can foresee and the kernel refuses if it is there: the directory is one that
 * others may write to. */
static int make_file(kvt_staging *s, const char *folder) {
    for (int tries = 0; tries < 16; tries++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return -1;
        snprintf(s->path, sizeof s->path, "%s/kvtrunk-%ld-%016" PRIx64, folder, (long)getpid(),
                 random);
        /* Readable for the group, since the daemon may be another user of it. */
        int fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Room first, then the mapping: a store into memory that the file system cannot give is SIGBUS. */
static kvt_status fill_file(kvt_staging *s, int fd) {
    size_t n_tail = s->area ? sizeof s->memory : 0;
    int error = posix_fallocate(fd, 0, (off_t)(s->n_bytes + n_tail));
    if (!error && n_tail && pwrite(fd, &s->memory, n_tail, (off_t)s->n_bytes) != (ssize_t)n_tail)
        error = EIO;
    if (error)
        return kvt_error(KVT_EIO,
                         "no room for a staging file of %zu bytes at %s: %s. Free some, or "
                         "set fewer staging_pages",
                         s->n_bytes, s->path, strerror(error));
    void *bytes = mmap(NULL, s->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (bytes == MAP_FAILED)
        return kvt_error(KVT_EIO, "the staging file %s of %zu bytes cannot be mapped: %s", s->path,
                         s->n_bytes, strerror(errno));
    s->bytes = bytes;
    return KVT_OK;
}

/* If it fails, it is tried again when the file is given up. */
static void staging_unlink(kvt_staging *s) {
    if (s->linked && (unlink(s->path) == 0 || errno == ENOENT))
        s->linked = 0;
}

static void staging_free(kvt_staging *s) {
    staging_unlink(s);
    if (s->bytes)
        munmap(s->bytes, s->n_bytes);
    if (s->area)
        s->calls->area_close(s->area, s->file);
    free(s);
}

/* Where the arena is on a GPU, encoded pages can stay there as well. The arena of the session is
 * there before its first staging file is. */
static kvt_status open_area(kvt_client *c, kvt_staging *s) {
    char why[256] = "";
    pthread_mutex_lock(&c->lock);
    kvt_arena *arena = c->arena && c->arena->gpu ? c->arena : NULL;
    if (arena)
        arena->refs++;
    pthread_mutex_unlock(&c->lock);
    if (!arena)
        return KVT_OK;
    s->calls = arena->calls;
    kvt_status status =
        s->calls->area_open(arena->gpu, s->n_bytes, why, sizeof why, &s->memory, &s->area);
    pthread_mutex_lock(&c->lock);
    arena->refs--;
    pthread_mutex_unlock(&c->lock);
    if (status != KVT_OK)
        kvt_error(status,
                  "no staging area of %zu bytes in the GPU's memory (%s): pages go to the daemon "
                  "through host memory, by kvt_encode. Give the GPU room, or set fewer "
                  "staging_pages, for kvt_encode_device",
                  s->n_bytes, why);
    return status;
}

/* needs_area: without one there is none. Otherwise the file does as well, and what the GPU said is
 * left for kvt_last_error. */
static kvt_status staging_new(kvt_client *c, uint64_t epoch, int needs_area,
                              kvt_staging **ret_staging) {
    char folder[KVT_WIRE_MAX_PATH + 1];
    uint32_t n_slots = c->staging_pages;
    kvt_staging *s = kvt_memory_get(sizeof *s + n_slots * sizeof s->free_slots[0]);
    if (!s)
        return kvt_error_plain(KVT_ENOMEM);
    pthread_mutex_lock(&c->lock);
    memcpy(folder, c->staging_dir, sizeof folder);
    pthread_mutex_unlock(&c->lock);
    s->epoch = epoch;
    s->file = -1;
    s->slot_bytes = c->group_offset[c->geometry.n_groups];
    s->n_bytes = s->slot_bytes * n_slots;
    s->n_slots = s->n_free = n_slots;
    for (uint32_t i = 0; i < n_slots; i++)
        s->free_slots[i] = n_slots - 1 - i;
    kvt_status status = open_area(c, s);
    if (!needs_area)
        status = KVT_OK;
    int fd = status == KVT_OK ? make_file(s, folder) : -1;
    if (status != KVT_OK) {
        /* no file */
    } else if (fd < 0) {
        status = kvt_error(errno == EACCES || errno == EPERM ? KVT_EDENIED : KVT_EIO,
                           "no staging file can be made in %s: %s", folder, strerror(errno));
    } else {
        s->linked = 1;
        s->name = strrchr(s->path, '/') + 1;
        status = fill_file(s, fd);
        if (s->area)
            s->file = fd;
        else
            close(fd);
    }
    if (status == KVT_OK)
        *ret_staging = s;
    else
        staging_free(s);
    return status;
}

/* --- the current file, with the staging lock held -----------------------------------------------
 */

/* Unmaps files that are not current and that no lease uses. */
static void sweep(kvt_client *c) {
    for (kvt_staging **at = &c->stagings; *at;) {
        kvt_staging *s = *at;
        if (s != c->staging && s->n_used == 0) {
            *at = s->next;
            staging_free(s);
        } else {
            at = &s->next;
        }
    }
}

static kvt_status replace(kvt_client *c, uint64_t epoch, int needs_area) {
    kvt_staging *s;
    kvt_status status = staging_new(c, epoch, needs_area, &s);
    if (status != KVT_OK)
        return status;
    s->next = c->stagings;
    c->stagings = s;
    c->staging = s;
    sweep(c);
    pthread_mutex_lock(&c->lock);
    c->session.staged = 0;
    pthread_mutex_unlock(&c->lock);
    return KVT_OK;
}

static kvt_status current(kvt_client *c, uint64_t epoch) {
    if (c->staging && c->staging->epoch > epoch)
        return kvt_error_plain(KVT_ESTALE);
    return c->staging && c->staging->epoch == epoch ? KVT_OK : replace(c, epoch, 0);
}

/* --- slots --------------------------------------------------------------------------------------
 */

kvt_status kvt_staging_take(kvt_client *c, uint64_t epoch, kvt_staging **ret_staging,
                            uint32_t *ret_slot) {
    pthread_mutex_lock(&c->staging_lock);
    kvt_status status = current(c, epoch);
    if (status == KVT_OK && c->staging->n_unsafe && c->staging->n_used == 0)
        status = replace(c, epoch, 0);
    if (status == KVT_OK && c->staging->n_free == 0)
        status = kvt_error(KVT_EFULL,
                           "%u pages are encoded and not yet sealed, the most that staging_pages "
                           "allows: seal them",
                           c->staging->n_used);
    if (status == KVT_OK) {
        kvt_staging *s = c->staging;
        *ret_slot = s->free_slots[--s->n_free];
        *ret_staging = s;
        s->n_used++;
    }
    pthread_mutex_unlock(&c->staging_lock);
    return status;
}

void kvt_staging_give(kvt_client *c, kvt_staging *staging, uint32_t slot, int unsafe) {
    pthread_mutex_lock(&c->staging_lock);
    KVT_ASSERT(staging->n_used > 0 && slot < staging->n_slots);
    staging->n_used--;
    if (unsafe)
        staging->n_unsafe++;
    else
        staging->free_slots[staging->n_free++] = slot;
    sweep(c);
    pthread_mutex_unlock(&c->staging_lock);
}

void *kvt_staging_at(const kvt_staging *staging, uint32_t slot, size_t *ret_bytes) {
    *ret_bytes = staging->slot_bytes;
    return staging->bytes + kvt_staging_offset(staging, slot);
}

uint64_t kvt_staging_offset(const kvt_staging *staging, uint32_t slot) {
    return (uint64_t)slot * staging->slot_bytes;
}

/* The GPU may have room by now. Pages that others have in the file without an area keep it. */
kvt_status kvt_staging_need_area(kvt_client *c, uint64_t epoch) {
    pthread_mutex_lock(&c->staging_lock);
    kvt_status status = current(c, epoch);
    if (status == KVT_OK && !c->staging->area && c->staging->n_used == 0)
        status = replace(c, epoch, 1);
    else if (status == KVT_OK && !c->staging->area)
        status = kvt_error(KVT_ENOMEM,
                           "there was no room for a staging area in the GPU's memory, and %u pages "
                           "are encoded in host memory: seal them, and try again",
                           c->staging->n_used);
    pthread_mutex_unlock(&c->staging_lock);
    return status;
}

kvt_cuda_area *kvt_staging_area(const kvt_staging *staging) {
    return staging->area;
}

/* --- announcing ---------------------------------------------------------------------------------
 */

kvt_status kvt_staging_announce(kvt_client *c, uint64_t epoch, char *name, uint64_t *ret_bytes) {
    pthread_mutex_lock(&c->staging_lock);
    kvt_status status = current(c, epoch);
    if (status == KVT_OK) {
        KVT_ASSERT(c->staging->linked); /* until it is known, and then it is not announced */
        snprintf(name, KVT_WIRE_MAX_PATH + 1, "%s", c->staging->name);
        *ret_bytes = c->staging->n_bytes;
    }
    pthread_mutex_unlock(&c->staging_lock);
    return status;
}

void kvt_staging_known(kvt_client *c, const char *name) {
    pthread_mutex_lock(&c->staging_lock);
    if (c->staging && strcmp(c->staging->name, name) == 0) {
        staging_unlink(c->staging);
        pthread_mutex_lock(&c->lock);
        c->session.staged = 1;
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&c->staging_lock);
}

void kvt_staging_close(kvt_client *c) {
    const kvt_cuda_map_table *calls = c->staging && c->staging->area ? c->staging->calls : NULL;
    while (c->stagings) {
        kvt_staging *s = c->stagings;
        c->stagings = s->next;
        staging_free(s);
    }
    c->staging = NULL;
    if (calls) /* the daemon has been told that the session is over */
        calls->areas_tidy(LET_GO_MS);
}
