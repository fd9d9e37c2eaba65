/*
 * tier_host.h - memory of the host tier: a file without a name, so that the disk's process can map
 * it too. Only the daemon and that process ever do.
 */
#ifndef KVT_DAEMON_TIER_HOST_H
#define KVT_DAEMON_TIER_HOST_H

#include "client/kvtrunk.h"
#include "kernels/touch.h"

typedef struct tier_host {
    char *data; /* NULL: not open */
    uint64_t bytes;
    int fd;
} tier_host;

/* Reserves, maps and touches it. KVT_EFULL: that much memory is not to be had, with the figures;
 * KVT_ECANCELED: touching said so. */
kvt_status tier_host_open(uint64_t bytes, const kvt_touching *touching, char *why, size_t why_bytes,
                          tier_host *ret_host);
void tier_host_close(tier_host *host);

#endif
