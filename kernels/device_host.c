/*
 * device_host.c - an arena in shared host memory: one file, the head first, the data behind it.
 *
 * The file is reserved whole when it is opened, so no later access can find the file system full,
 * which would be a SIGBUS; and every page of it is touched, since the first touch of fresh shared
 * memory costs some ten times a copy into memory that is there.
 */
#include "kernels/device.h"
#include "client/assert.h"
#include "kernels/say.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A reservation that a signal interrupts is undone by some file systems; in parts, it gets on. */
/* Of a page: still in the second cache when it is checked, and few calls. */
#define PIECE_BYTES (UINT64_C(256) << 10)

typedef struct device_host {
    kvt_device base;
    char *path;
    dev_t file_dev; /* which file is ours: the name may be another's by now */
    ino_t file_ino;
    uint8_t *at;
    uint64_t head_bytes, data_bytes;
} device_host;

/* --- the table ----------------------------------------------------------------------------------
 */

static void host_close(kvt_device *device) {
    device_host *d = (device_host *)device;
    struct stat st;
    if (!d)
        return;
    munmap(d->at, d->head_bytes + d->data_bytes);
    /* Readers keep what they mapped; nobody finds it by name any more. */
    if (lstat(d->path, &st) == 0 && st.st_dev == d->file_dev && st.st_ino == d->file_ino)
        unlink(d->path);
    free(d->path);
    free(d);
}

static void *host_head(kvt_device *device) {
    return ((device_host *)device)->at;
}

static void *host_data(kvt_device *device) {
    device_host *d = (device_host *)device;
    return d->at + d->head_bytes;
}

/* Offsets in the data are the daemon's own, so one outside is a bug. */
static uint8_t *range(kvt_device *device, uint64_t offset, uint64_t bytes) {
    device_host *d = (device_host *)device;
    KVT_ASSERT(offset <= d->data_bytes && bytes <= d->data_bytes - offset);
    return d->at + d->head_bytes + offset;
}

static kvt_status host_write_file(kvt_device *device, uint64_t offset, int fd, uint64_t file_offset,
                                  uint64_t bytes) {
    uint8_t *to = range(device, offset, bytes);
    /* The place in the file is a worker's word: no file is that long. */
    if (file_offset > INT64_MAX || bytes > INT64_MAX - file_offset)
        return KVT_EIO;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)file_offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* 0: the file ends here */
            return KVT_EIO;
        to += n;
        file_offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return KVT_OK;
}

/* Piece by piece, so that each is in the processor's cache when the checksum comes to it. */
static kvt_status host_write_file_page(kvt_device *device, const kvt_page_shape *shape,
                                       uint64_t offset, int fd, uint64_t file_offset,
                                       uint64_t bytes, uint32_t *ret_rows) {
    kvt_page_checking checking;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        kvt_status status = host_write_file(device, offset + at, fd, file_offset + at, n);
        if (status == KVT_OK && at == 0)
            status = kvt_page_check_begin(shape, range(device, offset, bytes), bytes, &checking);
        if (status != KVT_OK)
            return status;
        kvt_page_check_to(&checking, at + n);
    }
    return bytes > 0 ? kvt_page_check_end(&checking, ret_rows) : KVT_ECORRUPT;
}

static kvt_status host_copy(kvt_device *device, uint64_t to_offset, uint64_t from_offset,
                            uint64_t bytes) {
    uint8_t *to = range(device, to_offset, bytes), *from = range(device, from_offset, bytes);
    KVT_ASSERT(bytes <= (to > from ? to_offset - from_offset : from_offset - to_offset));
    memcpy(to, from, bytes);
    return KVT_OK;
}

static kvt_status host_read(kvt_device *device, uint64_t offset, void *to, uint64_t bytes) {
    memcpy(to, range(device, offset, bytes), bytes);
    return KVT_OK;
}

static kvt_status host_check(kvt_device *device, const kvt_page_shape *shape, uint64_t offset,
                             uint64_t bytes, uint32_t *ret_rows) {
    return kvt_page_check(shape, range(device, offset, bytes), bytes, 1, ret_rows);
}

static kvt_status host_write(kvt_device *device, uint64_t offset, const void *from,
                             uint64_t bytes) {
    memcpy(range(device, offset, bytes), from, bytes);
    return KVT_OK;
}

static const kvt_device_ops host_ops = {.name = "host",
                                        .close = host_close,
                                        .head = host_head,
                                        .data = host_data,
                                        .write_file = host_write_file,
                                        .copy = host_copy,
                                        .write = host_write,
                                        .read = host_read,
                                        .check = host_check,
                                        .write_file_page = host_write_file_page};

/* --- opening ------------------------------------------------------------------------------------
 */

static kvt_status options_check(const kvt_device_host_options *o, char *why, size_t why_bytes) {
    if (!o->path || !*o->path)
        return kvt_say(why, why_bytes, KVT_EINVAL, "an arena needs a path");
    if (o->data_bytes == 0 || o->head_bytes > INT64_MAX ||
        o->data_bytes > INT64_MAX - o->head_bytes)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "%s: %" PRIu64 " + %" PRIu64 " bytes is no size of an arena", o->path,
                       o->head_bytes, o->data_bytes);
    if (o->mode & ~(uint32_t)0777 || o->mode & (S_IWGRP | S_IWOTH))
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "%s: mode %04o would let others write into the arena; give 0640 or less",
                       o->path, o->mode);
    return KVT_OK;
}

/* Is there room? Asked before any of it is taken, so that a request that cannot be met does not
 * fill the file system first. */
static kvt_status room_check(int fd, uint64_t bytes, const char *path, char *why,
                             size_t why_bytes) {
    struct statvfs fs;
    struct rlimit limit;
    if (fstatvfs(fd, &fs) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: %s", path, strerror(errno));
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    /* A file system that does not count (size=0) says it has no blocks at all. */
    if (fs.f_blocks != 0 && bytes > room)
        return kvt_say(why, why_bytes, KVT_EFULL,
                       "%s: %" PRIu64 " bytes were asked for, the file system has %" PRIu64
                       " free; ask for a smaller arena or enlarge it (a container: --shm-size)",
                       path, bytes, room);
    /* A file over this limit is answered by a signal. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        bytes > limit.rlim_cur)
        return kvt_say(why, why_bytes, KVT_EFULL,
                       "%s: %" PRIu64
                       " bytes were asked for, files of this process may have %" PRIu64
                       "; ask for a smaller arena or raise the limit (ulimit -f, LimitFSIZE=)",
                       path, bytes, (uint64_t)limit.rlim_cur);
    return KVT_OK;
}

static kvt_status stopped(const kvt_device_host_options *options, char *why, size_t why_bytes) {
    return kvt_say(why, why_bytes, KVT_ECANCELED, "%s: stopped before all of it was touched",
                   options->path);
}

static kvt_status file_reserve(int fd, const kvt_device_host_options *options, uint64_t bytes,
                               char *why, size_t why_bytes) {
    const char *path = options->path;
    kvt_status status = room_check(fd, bytes, path, why, why_bytes);
    if (status != KVT_OK)
        return status;
    /* The group first: nobody gets to read who then may not. And the mode as asked, whatever the
     * umask is. */
    if (options->gid != UINT32_MAX && fchown(fd, (uid_t)-1, options->gid) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: cannot give it to group %" PRIu32 ": %s", path,
                       options->gid, strerror(errno));
    if (fchmod(fd, options->mode) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: cannot set mode %04o: %s", path, options->mode,
                       strerror(errno));
    int error = kvt_touch_reserve(fd, bytes, &options->touching);
    if (error == ECANCELED)
        return stopped(options, why, why_bytes);
    if (error) {
        status = error == ENOSPC || error == EDQUOT ? KVT_EFULL
                 : error == ENOMEM                  ? KVT_ENOMEM
                                                    : KVT_EIO;
        return kvt_say(why, why_bytes, status,
                       "%s: %" PRIu64 " bytes cannot be reserved: %s; ask for a smaller arena",
                       path, bytes, strerror(error));
    }
    return KVT_OK;
}

static kvt_status file_map(int fd, const kvt_device_host_options *options, device_host *d,
                           char *why, size_t why_bytes) {
    struct stat st;
    d->head_bytes = options->head_bytes;
    d->data_bytes = options->data_bytes;
    uint64_t bytes = d->head_bytes + d->data_bytes;
    kvt_status status = file_reserve(fd, options, bytes, why, why_bytes);
    if (status != KVT_OK)
        return status;
    if (fstat(fd, &st) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: %s", options->path, strerror(errno));
    d->file_dev = st.st_dev;
    d->file_ino = st.st_ino;
    void *at;
    int error = kvt_touch_map(fd, bytes, &options->touching, &at);
    if (error == ECANCELED)
        return stopped(options, why, why_bytes);
    if (error)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "%s: %" PRIu64 " bytes cannot be mapped: %s",
                       options->path, bytes, strerror(error));
    d->at = at;
    return KVT_OK;
}

kvt_status kvt_device_host_open(const kvt_device_host_options *options, char *why, size_t why_bytes,
                                kvt_device **ret_device) {
    kvt_status status = options_check(options, why, why_bytes);
    if (status != KVT_OK)
        return status;
    int fd = -1;
    device_host *d = calloc(1, sizeof *d);
    char *path = strdup(options->path);
    if (!d || !path) {
        status = kvt_say(why, why_bytes, KVT_ENOMEM, "%s: out of memory", options->path);
        goto out;
    }
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        status = kvt_say(why, why_bytes, errno == EEXIST ? KVT_EEXIST : KVT_EIO, "%s: %s", path,
                         strerror(errno));
        goto out;
    }
    status = file_map(fd, options, d, why, why_bytes);
    if (status != KVT_OK) {
        unlink(path);
        goto out;
    }
    d->base.ops = &host_ops;
    d->path = path;
    path = NULL;
    *ret_device = &d->base;
    d = NULL;
out:
    if (fd >= 0)
        close(fd);
    free(path);
    free(d);
    return status;
}
