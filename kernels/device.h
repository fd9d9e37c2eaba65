/*
 * device.h - the table through which the daemon reaches an arena's memory. One table per kind of
 * memory: device_host (POSIX shared memory), device_cuda (GPU memory, shared by IPC handles).
 *
 * An arena is opened once at start, with all of its memory reserved and touched: from then on no
 * call fails for want of memory, and no access to it can raise SIGBUS. It is never resized or freed
 * while anybody maps it.
 */
#ifndef KVT_KERNELS_DEVICE_H
#define KVT_KERNELS_DEVICE_H

#include "client/wire.h"
#include "kernels/page.h"
#include "kernels/touch.h"

/* Several devices as one (device_many.h): the data of number i begins at offset i * the stride. */
enum { KVT_MAX_DEVICES = 16 };
#define KVT_DEVICE_STRIDE (UINT64_C(1) << 50)

typedef struct kvt_staged kvt_staged; /* a worker's staging area in device memory */
typedef struct kvt_device kvt_device; /* the first member is the table */

/* Bytes of the data, and where in host memory they come from or go to. */
enum { KVT_DEVICE_MAX_RUNS = 64 };
typedef struct kvt_device_run {
    uint64_t offset;
    void *host;
    uint64_t bytes;
} kvt_device_run;

/* A page of the data that is to be put under other codecs, beside where it is. */
typedef struct kvt_device_cooling {
    const kvt_page_shape *from_shape, *to_shape;
    uint64_t from_offset, from_bytes;
    uint64_t to_offset, to_bytes; /* that it will have */
    uint32_t rows;                /* that it must have */
    int is_first;                 /* of its path */
} kvt_device_cooling;

typedef struct kvt_device_ops {
    const char *name; /* "host", "cuda" */

    /* Frees the device's memory for this process; a file that readers map is unlinked, what they
     * mapped stays valid for them. NULL is accepted. */
    void (*close)(kvt_device *device);

    /* The head of the arena (header and generations) as this process may write it. */
    void *(*head)(kvt_device *device);

    /* The data as this process may address it, or NULL where it cannot (a GPU). */
    void *(*data)(kvt_device *device);

    /* Copies `bytes` of a worker's staging file, from `file_offset` on, into the data at `offset`.
     * The file is read with pread, never mapped: a worker that cuts it short gives KVT_EIO, not a
     * signal. KVT_EIO: short file or failed read; what stands at `offset` then is void. */
    kvt_status (*write_file)(kvt_device *device, uint64_t offset, int fd, uint64_t file_offset,
                             uint64_t bytes);

    /* Copies within the data; the two ranges do not overlap. */
    kvt_status (*copy)(kvt_device *device, uint64_t to_offset, uint64_t from_offset,
                       uint64_t bytes);

    /* Copies this process's memory into the data. */
    kvt_status (*write)(kvt_device *device, uint64_t offset, const void *from, uint64_t bytes);

    /* Copies out of the data into this process's memory. */
    kvt_status (*read)(kvt_device *device, uint64_t offset, void *to, uint64_t bytes);

    /* Is data[offset .. offset + bytes) a page of this shape? As kvt_page_check with `verify`; and
     * KVT_EIO: it cannot be told, KVT_ENOMEM. */
    kvt_status (*check)(kvt_device *device, const kvt_page_shape *shape, uint64_t offset,
                        uint64_t bytes, uint32_t *ret_rows);

    /* write_file and check in one pass over the bytes; what is checked is what stands in the data.
     * NULL where there is no such pass. */
    kvt_status (*write_file_page)(kvt_device *device, const kvt_page_shape *shape, uint64_t offset,
                                  int fd, uint64_t file_offset, uint64_t bytes, uint32_t *ret_rows);

    /* What follows is NULL where the data is host memory. */

    /* Opens a worker's staging area in this device's memory (KVT_EINVAL: in another's), copies out
     * of it as write_file does, and closes it again (no write_staged may be under way; NULL is
     * accepted). The description is a worker's word. Errors as kvt_cuda_open_memory; write_staged:
     * KVT_EIO; unstage: KVT_EIO, and the area stays open until this process ends, so nobody may
     * free it (staged itself is gone either way). */
    kvt_status (*stage)(kvt_device *device, const kvt_wire_memory *memory, kvt_staged **ret_staged);
    kvt_status (*unstage)(kvt_device *device, kvt_staged *staged);
    kvt_status (*write_staged)(kvt_device *device, uint64_t offset, const kvt_staged *staged,
                               uint64_t from_offset, uint64_t bytes);

    /* Host memory that much will be copied from and to: the device can then reach it by itself. If
     * it cannot, with a sentence in why, copies work all the same. `unpin` before the memory goes.
     * One such memory at a time. */
    kvt_status (*pin)(kvt_device *device, void *at, uint64_t bytes, char *why, size_t why_bytes);
    void (*unpin)(kvt_device *device);

    /* Copies up to KVT_DEVICE_MAX_RUNS runs in one go, out of the data (to_host) or into it. On
     * failure all of them are void. KVT_ENOTSUP, and nothing was done: not all is in pinned memory.
     */
    kvt_status (*move)(kvt_device *device, const kvt_device_run *runs, uint32_t n, int to_host);

    /* kvt_page_check with `verify`, and kvt_page_transcode, where the page stands. KVT_ECORRUPT;
     * KVT_ELIMIT: it would not have to_bytes; KVT_ENOTSUP: not from its codecs. What is at
     * to_offset is void unless KVT_OK. */
    kvt_status (*transcode)(kvt_device *device, const kvt_device_cooling *cooling);

    /* NULL while the device works; else what is wrong with it, for good: every call fails from then
     * on until the process has been started anew. Any thread; static. */
    const char *(*failure)(kvt_device *device);
} kvt_device_ops;

struct kvt_device {
    const kvt_device_ops *ops;
};

typedef struct kvt_device_host_options {
    const char *path;    /* the file, usually under /dev/shm; must not exist */
    uint32_t mode;       /* permission bits, e.g. 0640 */
    uint32_t gid;        /* group of the file; UINT32_MAX = leave it */
    uint64_t head_bytes; /* header and generations */
    uint64_t data_bytes;
    kvt_touching touching; /* who wants to know how far it is */
} kvt_device_host_options;

/*
 * Makes the file (O_EXCL, O_NOFOLLOW), reserves all of it (posix_fallocate: "no space" is an answer
 * now, not a SIGBUS later), maps and touches it. Everything is zero. KVT_EFULL: the file system (or
 * RLIMIT_FSIZE) has less room than asked, with the figures in why; KVT_EEXIST: also a symbolic
 * link; KVT_EINVAL: no path, an absurd size, a mode by which others could write; KVT_EIO;
 * KVT_ENOMEM; KVT_ECANCELED: touching said so. Where it fails, no file is left behind and none that
 * was there is touched.
 */
kvt_status kvt_device_host_open(const kvt_device_host_options *options, char *why, size_t why_bytes,
                                kvt_device **ret_device);

#endif
