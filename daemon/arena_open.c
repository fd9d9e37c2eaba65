/* arena_open.c - see arena_open.h. */
#include "daemon/arena_open.h"
#include "client/assert.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "kernels/device_cuda.h"
#include "kernels/module.h"
#include "store/frames.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MIN_ARENA_BYTES (UINT64_C(1) << 20)
#define MAX_AUTO_BYTES  (UINT64_C(4) << 30)

/* --- how large ---------------------------------------------------------------------------------
 */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

uint32_t arena_auto_pages(uint64_t data_bytes) {
    uint64_t pages = data_bytes / 4096;
    return (uint32_t)(pages < 1024 ? 1024 : least(pages, 4u << 20));
}

uint64_t arena_auto_bytes(const memory_room *room) {
    uint64_t bytes = least(MAX_AUTO_BYTES, room->file_system / 2);
    bytes = least(bytes, least(room->memory / 4, room->group / 4));
    return bytes - bytes % FRAMES_GRANULE_BYTES;
}

static uint32_t pages_for(const param_values *values, uint64_t data_bytes) {
    return values->max_pages > 0 ? (uint32_t)values->max_pages : arena_auto_pages(data_bytes);
}

static kvt_status plan(const arena_wish *wish, uint64_t data_bytes, arena_have *have) {
    data_bytes -= data_bytes % FRAMES_GRANULE_BYTES;
    have->max_pages = pages_for(wish->values, data_bytes);
    have->header = (kvt_arena_header){.boot_id = wish->boot_id};
    return arena_plan(data_bytes, have->max_pages, &have->header);
}

/* "1.5 GiB", for people. */
static const char *about(uint64_t bytes, char to[32]) {
    if (bytes == UINT64_MAX)
        snprintf(to, 32, "no limit");
    else if (bytes >= UINT64_C(1) << 30)
        snprintf(to, 32, "%.1f GiB", (double)bytes / (double)(UINT64_C(1) << 30));
    else
        snprintf(to, 32, "%.1f MiB", (double)bytes / (double)(UINT64_C(1) << 20));
    return to;
}

static kvt_status no_room(const param_values *values, uint64_t bytes, const memory_room *room,
                          char *why, size_t why_bytes) {
    char a[32], b[32], c[32], d[32];
    snprintf(why, why_bytes,
             "an arena of %s is not to be had (%" PRIu64 " bytes of file): free in %s: %s; "
             "available memory: %s; left by the control group: %s. Set a smaller \"arena\", or "
             "give it more room (a container's /dev/shm: --shm-size)",
             about(bytes, a), bytes, values->arena_dir, about(room->file_system, b),
             about(room->memory, c), about(room->group, d));
    return KVT_EFULL;
}

/* --- where -------------------------------------------------------------------------------------
 */

/* FNV-1a: two daemons in one directory differ by their sockets, two tenants by their names. */
static uint64_t hash_of(const char *instance) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *instance; instance++)
        hash = (hash ^ (unsigned char)*instance) * UINT64_C(1099511628211);
    return hash;
}

/*
 * Has the daemon of this arena ended? It holds a lock on the file from before its header is
 * written, so a file with a header that nobody has locked is nobody's. One without a header is
 * being made.
 */
static int is_abandoned(int dir, const char *name) {
    uint32_t magic = 0;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int result = fd >= 0 && pread(fd, &magic, sizeof magic, 0) == sizeof magic &&
                 magic == KVT_ARENA_MAGIC && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return result;
}

/* Of this instance, whatever they are, since its lock is held; of others, if their daemon has
 * ended: memory that nobody would give back before the machine stops. */
static void remove_leftovers(const char *dir, const char *own_prefix) {
    DIR *entries = opendir(dir);
    struct dirent *entry;
    while (entries && (entry = readdir(entries))) {
        const char *name = entry->d_name;
        size_t n = strlen(name);
        if (n < 8 + 6 || strncmp(name, "kvtrunk-", 8) != 0 || strcmp(name + n - 6, ".arena") != 0)
            continue;
        if (strncmp(name, own_prefix, strlen(own_prefix)) != 0 &&
            !is_abandoned(dirfd(entries), name))
            continue;
        if (unlinkat(dirfd(entries), name, 0) == 0)
            log_write(LOG_INFO, "removed %s/%s, left by a daemon that ended", dir, name);
    }
    if (entries)
        closedir(entries);
}

kvt_status arena_group_gid(const char *group, uint32_t *ret_gid, char *why, size_t why_bytes) {
    char buffer[4096], *end;
    struct group entry, *found = NULL;
    *ret_gid = UINT32_MAX;
    if (!*group)
        return KVT_OK;
    unsigned long number = strtoul(group, &end, 10);
    if (*group >= '0' && *group <= '9' && *end == 0 && number < UINT32_MAX) {
        *ret_gid = (uint32_t)number;
        return KVT_OK;
    }
    if (getgrnam_r(group, &entry, buffer, sizeof buffer, &found) == 0 && found) {
        *ret_gid = (uint32_t)found->gr_gid;
        return KVT_OK;
    }
    snprintf(why, why_bytes, "\"arena_group\" = \"%s\": this system knows no such group", group);
    return KVT_EINVAL;
}

/* --- opening -----------------------------------------------------------------------------------
 */

/* The daemon's lock on the file says that it lives (is_abandoned, and workers ask, too), and only
 * with the header is it an arena to others. */
static void write_head(arena_have *have, const kvt_wire_memory *memory) {
    char *head = have->device->ops->head(have->device);
    have->lock = open(have->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (have->lock >= 0)
        flock(have->lock, LOCK_EX | LOCK_NB);
    if (memory)
        memcpy(head + KVT_ARENA_MEMORY_OFFSET, memory, sizeof *memory);
    memcpy(head, &have->header, sizeof have->header);
}

static kvt_status try_open(const arena_wish *wish, uint32_t gid, arena_have *have, char *why,
                           size_t why_bytes) {
    kvt_device_host_options options = {.path = have->path,
                                       .mode = (uint32_t)wish->values->arena_mode,
                                       .gid = gid,
                                       .head_bytes = have->header.data_offset,
                                       .data_bytes = have->header.data_bytes,
                                       .touching = wish->touching};
    /* Touching fresh shared memory was seen at 0.6 GB/s; a start that is slower than 0.1 is stuck.
     */
    notify_send("EXTEND_TIMEOUT_USEC=%" PRIu64 "\nSTATUS=touching %" PRIu64 " MiB of arena",
                30000000 + have->header.file_bytes / 100, have->header.file_bytes >> 20);
    kvt_status status = kvt_device_host_open(&options, why, why_bytes, &have->device);
    if (status == KVT_OK)
        write_head(have, NULL);
    return status;
}

static kvt_status open_explicit(const arena_wish *wish, uint32_t gid, const memory_room *room,
                                arena_have *have, char *why, size_t why_bytes) {
    kvt_status status = plan(wish, wish->values->arena, have);
    KVT_ASSERT(status == KVT_OK); /* the range of the parameter sees to it */
    uint64_t bytes = have->header.file_bytes;
    if (bytes > room->file_system || bytes > room->memory || bytes > room->group)
        return no_room(wish->values, bytes, room, why, why_bytes);
    return try_open(wish, gid, have, why, why_bytes);
}

static kvt_status open_auto(const arena_wish *wish, uint32_t gid, const memory_room *room,
                            arena_have *have, char *why, size_t why_bytes) {
    uint64_t first = arena_auto_bytes(room);
    kvt_status status = KVT_EFULL;
    char a[32], b[32];
    for (uint64_t bytes = first; bytes >= MIN_ARENA_BYTES; bytes /= 2) {
        /* The head takes its part of the whole. */
        uint64_t head_bytes =
            2 * FRAMES_GRANULE_BYTES + sizeof(uint64_t) * (uint64_t)pages_for(wish->values, bytes);
        if (head_bytes + FRAMES_GRANULE_BYTES > bytes)
            break;
        status = plan(wish, bytes - head_bytes, have);
        KVT_ASSERT(status == KVT_OK);
        status = try_open(wish, gid, have, why, why_bytes);
        if (status == KVT_OK && bytes < first)
            log_write(LOG_WARNING,
                      "the arena has %s instead of %s: that much was not to be had "
                      "(workers of an earlier start may still hold its arena)",
                      about(bytes, a), about(first, b));
        if (status != KVT_EFULL && status != KVT_ENOMEM)
            return status;
    }
    return no_room(wish->values, MIN_ARENA_BYTES, room, why, why_bytes);
}

/* --- on a GPU ----------------------------------------------------------------------------------
 */

/* An allocation on a GPU is never touched by the host: only the head is in the file. */
static kvt_status open_on_gpu(const kvt_cuda_arena_table *cuda, const arena_wish *wish,
                              uint32_t gid, uint32_t gpu, arena_have *have, char *why,
                              size_t why_bytes, kvt_wire_memory *ret_memory) {
    const param_values *values = wish->values;
    kvt_status status = plan(wish, have->header.data_bytes, have);
    KVT_ASSERT(status == KVT_OK);
    have->header.file_bytes = have->header.data_offset;
    kvt_device_cuda_options options = {.path = have->path,
                                       .mode = (uint32_t)values->arena_mode,
                                       .gid = gid,
                                       .head_bytes = have->header.data_offset,
                                       .data_bytes = have->header.data_bytes,
                                       .gpu = gpu,
                                       .n_movers = (uint32_t)values->job_threads};
    status = cuda->open(&options, why, why_bytes, &have->device);
    if (status != KVT_OK)
        return status;
    status = cuda->describe(have->device, ret_memory);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "CUDA device %u: its memory cannot be shared between processes",
                 options.gpu);
        have->device->ops->close(have->device);
        have->device = NULL;
        return KVT_ENOTSUP;
    }
    return KVT_OK;
}

/* Only when there is one on each GPU, since what others may have open cannot be freed any more. */
static void show_arenas(const kvt_cuda_arena_table *cuda, arena_have *haves,
                        const kvt_wire_memory *memories, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        cuda->given(haves[i].device);
        write_head(&haves[i], &memories[i]);
    }
}

/* Their numbers, rising. */
static uint32_t list_gpus(uint64_t gpus, uint32_t n_there, uint32_t *ret_gpus) {
    uint32_t n = 0;
    for (uint32_t gpu = 0; gpu < 64 && n < KVT_MAX_DEVICES; gpu++)
        if (gpus >> gpu & 1 && (gpus != PARAM_ALL_GPUS || gpu < n_there))
            ret_gpus[n++] = gpu;
    return n;
}

/* What each of the GPUs has, and the size of an arena that fits on all. */
static kvt_status look_at_gpus(const kvt_cuda_arena_table *cuda, const param_values *values,
                               const uint32_t *gpus, uint32_t n, kvt_cuda_room *rooms, char *why,
                               size_t why_bytes, uint64_t *ret_bytes) {
    uint64_t bytes = values->arena > 0 ? values->arena : UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        kvt_status status = cuda->room(gpus[i], why, why_bytes, &rooms[i]);
        if (status != KVT_OK)
            return status;
        if (values->arena == 0)
            bytes = least(bytes, rooms[i].free_bytes / 4);
        if (bytes < MIN_ARENA_BYTES) {
            snprintf(why, why_bytes,
                     "CUDA device %u has %" PRIu64 " bytes free, too few for an arena", gpus[i],
                     rooms[i].free_bytes);
            return KVT_EFULL;
        }
    }
    *ret_bytes = bytes - bytes % FRAMES_GRANULE_BYTES;
    return KVT_OK;
}

/* haves[0] has the path of the first; each further one's file has its number behind the name. */
static kvt_status open_cuda(const arena_wish *wish, uint32_t gid, arena_have *haves, char *why,
                            size_t why_bytes, uint32_t *ret_n) {
    const void *table;
    kvt_cuda_room rooms[KVT_MAX_DEVICES];
    kvt_wire_memory memories[KVT_MAX_DEVICES];
    uint32_t gpus[KVT_MAX_DEVICES], n = 0;
    uint64_t bytes = 0, wanted = wish->values->gpus;
    int name_bytes = (int)strlen(haves[0].path) - (int)strlen(".arena");
    kvt_status status = kvt_module_table("kvt_cuda_arena", why, why_bytes, &table);
    const kvt_cuda_arena_table *cuda = table;
    if (status == KVT_OK && wanted == PARAM_ALL_GPUS)
        status = cuda->room(0, why, why_bytes, &rooms[0]);
    if (status == KVT_OK)
        n = list_gpus(wanted, wanted == PARAM_ALL_GPUS ? rooms[0].n_gpus : 64, gpus);
    if (status == KVT_OK)
        status = look_at_gpus(cuda, wish->values, gpus, n, rooms, why, why_bytes, &bytes);
    for (uint32_t i = 0; i < n && status == KVT_OK; i++) {
        arena_have *have = &haves[i];
        if (i > 0) {
            *have = (arena_have){.lock = -1};
            snprintf(have->path, sizeof have->path, "%.*s-%u.arena", name_bytes, haves[0].path, i);
        }
        have->header.data_bytes = bytes;
        status = open_on_gpu(cuda, wish, gid, gpus[i], have, why, why_bytes, &memories[i]);
        if (status != KVT_OK) {
            arena_close(haves, i);
            break;
        }
        snprintf(have->gpu, sizeof have->gpu, "%.31s", rooms[i].bus_id);
        snprintf(have->where, sizeof have->where, "the memory of GPU %u (%.31s)", gpus[i],
                 rooms[i].bus_id);
    }
    if (status == KVT_OK) {
        show_arenas(cuda, haves, memories, n);
        *ret_n = n;
    }
    return status;
}

static kvt_status open_host(const arena_wish *wish, uint32_t gid, arena_have *have, char *why,
                            size_t why_bytes, uint32_t *ret_n) {
    memory_room room;
    *ret_n = 1;
    memory_room_get(wish->values->arena_dir, &room);
    snprintf(have->where, sizeof have->where, "host memory");
    return wish->values->arena > 0 ? open_explicit(wish, gid, &room, have, why, why_bytes)
                                   : open_auto(wish, gid, &room, have, why, why_bytes);
}

/* "auto" says what it took, and why. */
static kvt_status open_somewhere(const arena_wish *wish, uint32_t gid, arena_have *haves, char *why,
                                 size_t why_bytes, uint32_t *ret_n) {
    uint64_t wanted = wish->values->device;
    arena_have on_host = haves[0];
    if (wanted == PARAM_DEVICE_HOST)
        return open_host(wish, gid, haves, why, why_bytes, ret_n);
    kvt_status status = open_cuda(wish, gid, haves, why, why_bytes, ret_n);
    if (wanted == PARAM_DEVICE_CUDA)
        return status;
    if (status == KVT_OK) {
        for (uint32_t i = 0; i < *ret_n; i++)
            log_write(LOG_INFO,
                      "\"device\" is \"auto\": there is a GPU that works, the arena is in %s",
                      haves[i].where);
        return KVT_OK;
    }
    log_write(LOG_INFO, "\"device\" is \"auto\": the arena is in host memory, because %s", why);
    haves[0] = on_host;
    return open_host(wish, gid, haves, why, why_bytes, ret_n);
}

/* --- all of it ---------------------------------------------------------------------------------
 */

void arena_close(arena_have *arenas, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        arenas[i].device->ops->close(arenas[i].device);
        if (arenas[i].lock >= 0)
            close(arenas[i].lock);
    }
}

kvt_status arena_open(const arena_wish *wish, char *why, size_t why_bytes, arena_have *ret_arenas,
                      uint32_t *ret_n) {
    arena_have haves[KVT_MAX_DEVICES];
    uint32_t n = 0;
    uint32_t gid;
    char prefix[40];
    kvt_status status = arena_group_gid(wish->values->arena_group, &gid, why, why_bytes);
    if (status != KVT_OK)
        return status;
    snprintf(prefix, sizeof prefix, "kvtrunk-%016" PRIx64 "-", hash_of(wish->instance));
    remove_leftovers(wish->values->arena_dir, prefix);
    haves[0] = (arena_have){.lock = -1};
    snprintf(haves[0].path, sizeof haves[0].path, "%.160s/%s%016" PRIx64 ".arena",
             wish->values->arena_dir, prefix, wish->boot_id);
    status = open_somewhere(wish, gid, haves, why, why_bytes, &n);
    if (status != KVT_OK)
        return status;
    memcpy(ret_arenas, haves, n * sizeof haves[0]);
    *ret_n = n;
    return KVT_OK;
}
