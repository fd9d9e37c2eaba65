/* tier_pack.c - see tier_pack.h. */
#include "store/tier_pack.h"

#include <stdlib.h>

struct tier_packer {
    int unused;
};

kvt_status tier_packer_open(tier_packer **ret_packer) {
    *ret_packer = calloc(1, sizeof **ret_packer);
    return *ret_packer ? KVT_OK : KVT_ENOMEM;
}

void tier_packer_close(tier_packer *p) {
    free(p);
}

size_t tier_pack_room(size_t n) {
    return n;
}

size_t tier_pack(tier_packer *p, const void *from, size_t n, void *to) {
    (void)p, (void)from, (void)n, (void)to;
    return 0;
}

kvt_status tier_unpack(tier_packer *p, const void *from, size_t n_packed, void *to, size_t n) {
    (void)p, (void)from, (void)n_packed, (void)to, (void)n;
    return KVT_ECORRUPT;
}
