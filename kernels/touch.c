/* touch.c - see touch.h. */
#include "kernels/touch.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Each is some tenths of a second on a slow machine. */
#define RESERVE_BYTES (UINT64_C(64) << 20)
#define MAP_BYTES     (UINT64_C(128) << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static int is_to_stop(const kvt_touching *touching, const char *doing, uint64_t done_bytes,
                      uint64_t all_bytes) {
    return touching && touching->step &&
           touching->step(touching->context, doing, done_bytes, all_bytes);
}

int kvt_touch_reserve(int fd, uint64_t bytes, const kvt_touching *touching) {
    for (uint64_t at = 0; at < bytes;) {
        uint64_t n = bytes - at < RESERVE_BYTES ? bytes - at : RESERVE_BYTES;
        int error = posix_fallocate(fd, (off_t)at, (off_t)n);
        if (error && error != EINTR)
            return error;
        if (!error)
            at += n;
        if (is_to_stop(touching, "reserving", at, bytes))
            return ECANCELED;
    }
    return 0;
}

/* What the kernel cannot do at once is done page by page. */
static void touch_pages(char *at, uint64_t bytes) {
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t i = 0; i < bytes; i += page_bytes) {
        volatile char *byte = at + i;
        *byte = *byte;
    }
}

int kvt_touch_map(int fd, uint64_t bytes, const kvt_touching *touching, void **ret_at) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return errno;
    for (uint64_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < MAP_BYTES ? bytes - done : MAP_BYTES;
        if (madvise(at + done, n, MADV_POPULATE_WRITE) != 0)
            touch_pages(at + done, n);
        if (is_to_stop(touching, "touching", done + n, bytes)) {
            munmap(at, bytes);
            return ECANCELED;
        }
    }
    *ret_at = at;
    return 0;
}
