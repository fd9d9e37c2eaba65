/*
 * device_host.c - an arena in shared host memory: one file, the head first, the data behind it.
 *
 * The file is reserved whole when it is opened, so no later access can find the file system full,
 * which would be a SIGBUS; and every page of it is touched, since the first touch of fresh shared
 * memory costs some ten times a copy into memory that is there.
 */
#include "kernels/device.h"
#include "kernels/say.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct device_host {
    kvt_device base;
    char *path;
    uint8_t *at;
    uint64_t head_bytes, bytes;
} device_host;

static void host_close(kvt_device *device) {
    device_host *d = (device_host *)device;
    if (!d)
        return;
    if (d->at)
        munmap(d->at, d->bytes);
    /* Readers keep what they mapped; nobody finds it by name any more. */
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

static kvt_status host_write_file(kvt_device *device, uint64_t offset, int fd, uint64_t file_offset,
                                  uint64_t bytes) {
    uint8_t *to = (uint8_t *)host_data(device) + offset;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)file_offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return KVT_EIO;
        to += n;
        file_offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return KVT_OK;
}

static kvt_status host_copy(kvt_device *device, uint64_t to_offset, uint64_t from_offset,
                            uint64_t bytes) {
    uint8_t *data = host_data(device);
    memcpy(data + to_offset, data + from_offset, bytes);
    return KVT_OK;
}

static kvt_status host_read(kvt_device *device, uint64_t offset, void *to, uint64_t bytes) {
    memcpy(to, (uint8_t *)host_data(device) + offset, bytes);
    return KVT_OK;
}

static const kvt_device_ops host_ops = {.name = "host",
                                        .close = host_close,
                                        .head = host_head,
                                        .data = host_data,
                                        .write_file = host_write_file,
                                        .copy = host_copy,
                                        .read = host_read};

/* Is there room? Asked before any of it is taken, so that a request that cannot be met does not
 * fill the file system first. */
static kvt_status room_check(int fd, uint64_t bytes, const char *path, char *why,
                             size_t why_bytes) {
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: %s", path, strerror(errno));
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    /* A file system that does not count (size=0) says it has no blocks at all. */
    if (fs.f_blocks != 0 && bytes > room)
        return kvt_say(why, why_bytes, KVT_EFULL,
                       "%s: %llu bytes were asked for, the file system has %llu free; ask for a "
                       "smaller arena or enlarge it (a container: --shm-size)",
                       path, (unsigned long long)bytes, (unsigned long long)room);
    return KVT_OK;
}

static kvt_status file_reserve(int fd, const kvt_device_host_options *options, uint64_t bytes,
                               char *why, size_t why_bytes) {
    kvt_status status = room_check(fd, bytes, options->path, why, why_bytes);
    if (status != KVT_OK)
        return status;
    /* As asked, whatever the umask is. */
    if (options->gid != UINT32_MAX && fchown(fd, (uid_t)-1, options->gid) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: cannot give it to group %u: %s", options->path,
                       options->gid, strerror(errno));
    if (fchmod(fd, options->mode & 0777) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: %s", options->path, strerror(errno));
    int error;
    do
        error = posix_fallocate(fd, 0, (off_t)bytes);
    while (error == EINTR);
    if (error)
        return kvt_say(why, why_bytes, error == ENOSPC ? KVT_EFULL : KVT_EIO,
                       "%s: %llu bytes cannot be reserved: %s", options->path,
                       (unsigned long long)bytes, strerror(error));
    return KVT_OK;
}

static kvt_status file_map(int fd, const kvt_device_host_options *options, device_host *d,
                           char *why, size_t why_bytes) {
    d->head_bytes = options->head_bytes;
    d->bytes = options->head_bytes + options->data_bytes;
    kvt_status status = file_reserve(fd, options, d->bytes, why, why_bytes);
    if (status != KVT_OK)
        return status;
    void *at = mmap(NULL, d->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "%s: %llu bytes cannot be mapped: %s",
                       options->path, (unsigned long long)d->bytes, strerror(errno));
    d->at = at;
    return KVT_OK;
}

kvt_status kvt_device_host_open(const kvt_device_host_options *options, char *why, size_t why_bytes,
                                kvt_device **ret_device) {
    kvt_status status = KVT_ENOMEM;
    int fd = -1;
    device_host *d = calloc(1, sizeof *d);
    char *path = strdup(options->path);
    if (!d || !path)
        goto out;
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
