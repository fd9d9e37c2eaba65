/*
 * arena_open.h - the arena at start, or one on each GPU: how large, where, and what earlier starts
 * have left there.
 */
#ifndef KVT_DAEMON_ARENA_OPEN_H
#define KVT_DAEMON_ARENA_OPEN_H

#include "daemon/memory_room.h"
#include "daemon/params.h"
#include "kernels/device.h"
#include "store/arena.h"

typedef struct arena_wish {
    const param_values *values;
    const char *instance; /* names it, among all that share its directory */
    uint64_t boot_id;
    kvt_touching touching;
} arena_wish;

typedef struct arena_have {
    char path[PARAM_MAX_TEXT_BYTES + 1];
    kvt_arena_header header; /* as it stands in the arena */
    uint32_t max_pages;      /* for this arena */
    kvt_device *device;
    char where[96]; /* "host memory", "the memory of GPU 0 (0000:01:00.0)" */
    char gpu[32];   /* its place on the bus; "": host memory */
    int lock;       /* to be kept open while the daemon lives; -1: none */
    int is_gone;    /* its name is */
} arena_have;

/*
 * ret_arenas[KVT_MAX_DEVICES], of which *ret_n are: equally large. Chooses the device, reserves,
 * maps and touches the arena, and writes its header. An explicit size is taken whole or refused;
 * "auto" takes less and less until it succeeds. Removes the arena files of earlier starts of this
 * instance first, and those of others whose daemon has ended (whoever maps one keeps it): only to
 * be called with the lock of the socket, whose path is part of `instance`. KVT_EFULL, KVT_EINVAL,
 * KVT_EIO, KVT_ENOMEM, KVT_ENOTSUP (no GPU), KVT_ECANCELED with a sentence in why.
 */
kvt_status arena_open(const arena_wish *wish, char *why, size_t why_bytes, arena_have *ret_arenas,
                      uint32_t *ret_n);
/* Closes them; those who map one keep it. */
void arena_close(arena_have *arenas, uint32_t n);

/* The number of a group by name, or by its number; UINT32_MAX for "". KVT_EINVAL: this system knows
 * no such group. */
kvt_status arena_group_gid(const char *group, uint32_t *ret_gid, char *why, size_t why_bytes);

/* Pages for so many bytes of data, as max_pages = 0 has it. Pure. */
uint32_t arena_auto_pages(uint64_t data_bytes);
/* Bytes of the file that "auto" takes of this room. Pure. */
uint64_t arena_auto_bytes(const memory_room *room);

#endif
