/*
 * touch.h - the memory that a file stands for, reserved and touched a piece at a time. Fresh shared
 * memory comes at a GB a second or so: much of it takes minutes, in which somebody may want to know
 * how far it is, or that it ends. Any thread.
 */
#ifndef KVT_KERNELS_TOUCH_H
#define KVT_KERNELS_TOUCH_H

#include <stdint.h>

typedef struct kvt_touching {
    /* After each piece: so many bytes of all are done of "reserving", then of "touching", which is
     * the longer part, since the system clears them then. Not 0: stop. NULL: nobody wants to know.
     */
    int (*step)(void *context, const char *doing, uint64_t done_bytes, uint64_t all_bytes);
    void *context;
} kvt_touching;

/* Both return 0, or what errno would be. ECANCELED: step said so; what was reserved stays. */

/* posix_fallocate: that there is no space is an answer now, and no SIGBUS later. */
int kvt_touch_reserve(int fd, uint64_t bytes, const kvt_touching *touching);
/* Maps the file for reading and writing, shared, with no first access left that would be slow. */
int kvt_touch_map(int fd, uint64_t bytes, const kvt_touching *touching, void **ret_at);

#endif
