/* map_host.c - the arena in shared host memory: mapped for reading alone, so that no worker can
 * write into it by mistake (and the file's mode keeps other users from doing it on purpose). Where
 * the data is in a GPU's memory, the file has the head alone and says where the rest is. */
#include "client/client.h"
#include "kernels/module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Larger arenas are mapped page by page as they are read, so that opening one takes no seconds. */
#define POPULATE_MAX_BYTES (UINT64_C(1) << 32)

enum {
    ARENA_VERSION = 1,
    PAGE_ALIGN_BYTES = KVT_PAGE_ALIGN_BYTES,
};

static int is_inside(uint64_t offset, uint64_t n_bytes, uint64_t room) {
    return offset <= room && n_bytes <= room - offset;
}

/* Is that an arena, and of that daemon? All that is read later is bounded by what is checked here,
 * and copied, so that it stays true. */
static int header_is_good(const kvt_arena_header *h, uint64_t boot_id, uint64_t n_bytes) {
    return h->magic == KVT_ARENA_MAGIC && h->version == ARENA_VERSION && h->boot_id == boot_id &&
           h->file_bytes == n_bytes && h->generations_offset % sizeof(uint64_t) == 0 &&
           h->data_offset % PAGE_ALIGN_BYTES == 0 && h->max_frames <= n_bytes / sizeof(uint64_t) &&
           is_inside(h->generations_offset, h->max_frames * sizeof(uint64_t), n_bytes);
}

/* Where the data is, if not in the file. */
static int is_elsewhere(const kvt_arena *arena, const kvt_arena_header *h,
                        kvt_wire_memory *ret_memory) {
    if (h->data_offset != arena->n_bytes ||
        arena->n_bytes < KVT_ARENA_MEMORY_OFFSET + sizeof *ret_memory)
        return 0;
    memcpy(ret_memory, arena->base + KVT_ARENA_MEMORY_OFFSET, sizeof *ret_memory);
    return ret_memory->magic == KVT_MEMORY_MAGIC && ret_memory->bytes >= h->data_bytes;
}

static kvt_status map_device(kvt_arena *arena, const kvt_wire_memory *memory) {
    char why[384] = "";
    const void *table = NULL;
    kvt_status status = kvt_module_table("kvt_cuda_map_calls", why, sizeof why, &table);
    if (status == KVT_OK) {
        const kvt_cuda_map_table *calls = table;
        status = calls->open(memory, why, sizeof why, &arena->gpu);
        if (status == KVT_OK)
            arena->calls = calls;
    }
    return status == KVT_OK ? KVT_OK
                            : kvt_error(status, "the daemon's arena is in a GPU's memory: %s", why);
}

static kvt_status take_header(kvt_arena *arena, const char *path, uint64_t boot_id) {
    kvt_arena_header h;
    kvt_wire_memory memory;
    memcpy(&h, arena->base, sizeof h);
    int elsewhere = is_elsewhere(arena, &h, &memory);
    if (!header_is_good(&h, boot_id, arena->n_bytes) ||
        (!elsewhere && !is_inside(h.data_offset, h.data_bytes, arena->n_bytes)))
        return kvt_error(KVT_EPROTO, "the file %s is not the arena of the daemon that named it",
                         path);
    arena->boot_id = boot_id;
    arena->generations = (const uint64_t *)(const void *)(arena->base + h.generations_offset);
    arena->max_frames = h.max_frames;
    arena->data_bytes = h.data_bytes;
    if (elsewhere)
        return map_device(arena, &memory);
    arena->data = arena->base + h.data_offset;
    return KVT_OK;
}

static kvt_status map_file(kvt_arena *arena, const char *path, int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return kvt_error(KVT_EIO, "the arena %s is not a regular file", path);
    if ((uint64_t)info.st_size < sizeof(kvt_arena_header))
        return kvt_error(KVT_EPROTO, "the arena %s has %llu bytes, no header fits", path,
                         (unsigned long long)info.st_size);
    arena->n_bytes = (size_t)info.st_size;
    int flags = MAP_SHARED | (arena->n_bytes <= POPULATE_MAX_BYTES ? MAP_POPULATE : 0);
    void *base = mmap(NULL, arena->n_bytes, PROT_READ, flags, fd, 0);
    if (base == MAP_FAILED)
        return kvt_error(KVT_EIO, "the arena %s of %zu bytes cannot be mapped: %s", path,
                         arena->n_bytes, strerror(errno));
    arena->base = base;
    return KVT_OK;
}

/* Locked for sharing, so that those who ask do not take each other for the daemon. */
static int is_locked(int fd) {
    if (flock(fd, LOCK_SH | LOCK_NB) != 0)
        return 1;
    flock(fd, LOCK_UN);
    return 0;
}

int kvt_arena_is_over(const kvt_arena *arena) {
    return arena->file >= 0 && !is_locked(arena->file);
}

kvt_status kvt_arena_map(const char *path, uint64_t boot_id, kvt_arena **ret_arena) {
    int fd = -1;
    kvt_status status = KVT_OK;
    kvt_arena *arena = kvt_memory_get(sizeof *arena);
    if (!arena)
        return kvt_error_plain(KVT_ENOMEM);
    arena->file = -1;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        status = kvt_error(errno == EACCES ? KVT_EDENIED : KVT_EIO,
                           "the arena %s cannot be opened: %s", path, strerror(errno));
        goto out;
    }
    status = map_file(arena, path, fd);
    if (status == KVT_OK)
        status = take_header(arena, path, boot_id);
    if (status == KVT_OK && is_locked(fd)) {
        arena->file = fd;
        fd = -1;
    } else if (status == KVT_OK && arena->gpu) {
        /* What was opened may be memory of a process that has the daemon's number now. */
        status = kvt_error(KVT_ECONN, "the daemon ended while its arena was being opened");
    }
out:
    if (fd >= 0)
        close(fd);
    if (status == KVT_OK)
        *ret_arena = arena;
    else
        kvt_arena_unmap(arena);
    return status;
}

void kvt_arena_unmap(kvt_arena *arena) {
    if (arena->gpu)
        arena->calls->close(arena->gpu);
    if (arena->base)
        munmap((void *)(uintptr_t)arena->base, arena->n_bytes);
    if (arena->file >= 0)
        close(arena->file);
    free(arena);
}

int kvt_arena_has(const kvt_arena *arena, const kvt_wire_page *page) {
    return page->frame < arena->max_frames && page->offset % PAGE_ALIGN_BYTES == 0 &&
           page->bytes >= KVT_PAGE_HEADER_BYTES &&
           is_inside(page->offset, page->bytes, arena->data_bytes);
}

kvt_status kvt_arena_page(const kvt_arena *arena, const kvt_wire_page *page, kvt_page_copy *copy,
                          const uint8_t **ret_bytes) {
    if (!arena->gpu) {
        *ret_bytes = arena->data + page->offset;
        return KVT_OK;
    }
    if (copy->room < page->bytes) {
        void *fresh = kvt_memory_resize(copy->bytes, page->bytes);
        if (!fresh)
            return kvt_error_plain(KVT_ENOMEM);
        copy->bytes = fresh;
        copy->room = page->bytes;
    }
    char why[KVT_DEVICE_WHY_BYTES] = "";
    kvt_status status =
        arena->calls->read(arena->gpu, page->offset, copy->bytes, page->bytes, why, sizeof why);
    if (status != KVT_OK)
        return kvt_error(status, "%s", why);
    *ret_bytes = copy->bytes;
    return KVT_OK;
}

int kvt_arena_is_fresh(const kvt_arena *arena, const kvt_wire_page *page) {
    return __atomic_load_n(&arena->generations[page->frame], __ATOMIC_ACQUIRE) == page->generation;
}

int kvt_arena_was_fresh(const kvt_arena *arena, const kvt_wire_page *page) {
    /* What was read before must have been read before the generation is looked at again. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&arena->generations[page->frame], __ATOMIC_RELAXED) == page->generation;
}
