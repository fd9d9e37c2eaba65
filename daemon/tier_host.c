/* tier_host.c - see tier_host.h. */
#include "daemon/tier_host.h"
#include "daemon/memory_room.h"
#include "kernels/say.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

kvt_status tier_host_open(uint64_t bytes, const kvt_touching *touching, char *why, size_t why_bytes,
                          tier_host *ret_host) {
    tier_host host = {.bytes = bytes, .fd = -1};
    memory_room room;
    memory_room_get("/dev/shm", &room);
    if (bytes > room.memory && room.group == UINT64_MAX)
        return kvt_say(why, why_bytes, KVT_EFULL,
                       "a host tier of %" PRIu64 " MiB is not to be had: %" PRIu64
                       " MiB of memory are available. Set a smaller \"host\"",
                       bytes >> 20, room.memory >> 20);
    if (bytes > room.memory || bytes > room.group)
        return kvt_say(why, why_bytes, KVT_EFULL,
                       "a host tier of %" PRIu64 " MiB is not to be had: %" PRIu64
                       " MiB of memory are available, the control group leaves %" PRIu64
                       " MiB. Set a smaller \"host\"",
                       bytes >> 20, room.memory >> 20, room.group >> 20);
    host.fd = memfd_create("kvtrunk-host", MFD_CLOEXEC);
    if (host.fd < 0 || ftruncate(host.fd, (off_t)bytes) != 0)
        goto failed;
    void *at = NULL;
    errno = kvt_touch_reserve(host.fd, bytes, touching);
    if (errno == 0)
        errno = kvt_touch_map(host.fd, bytes, touching, &at);
    if (errno != 0)
        goto failed;
    host.data = at;
    *ret_host = host;
    return KVT_OK;
failed:;
    int is_stopped = errno == ECANCELED;
    kvt_say(why, why_bytes, KVT_EFULL,
            "a host tier of %" PRIu64 " MiB cannot be made: %s. Set a smaller \"host\"",
            bytes >> 20, strerror(errno));
    tier_host_close(&host);
    return is_stopped ? KVT_ECANCELED : KVT_EFULL;
}

void tier_host_close(tier_host *host) {
    if (host->data)
        munmap(host->data, host->bytes);
    if (host->fd > 0)
        close(host->fd);
    *host = (tier_host){.fd = -1};
}
