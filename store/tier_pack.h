/*
 * tier_pack.h - 16-bit elements stored smaller, without loss.
 *
 * The two bytes of an element know nothing of each other: the low one is nearly random, the high
 * one (sign, exponent, leading bits) takes few values. So the high bytes are laid out together and
 * given to the library, the low ones are stored as they are.
 */
#ifndef KVT_STORE_TIER_PACK_H
#define KVT_STORE_TIER_PACK_H

#include "client/kvtrunk.h"

typedef struct tier_packer tier_packer;
kvt_status tier_packer_open(tier_packer **ret_packer);
void tier_packer_close(tier_packer *p); /* NULL is accepted */

/* Room that tier_pack needs for n bytes. */
size_t tier_pack_room(size_t n);
/* Returns the packed length, always less than n; 0: it is not worth it, store it as it is. */
size_t tier_pack(tier_packer *p, const void *from, size_t n, void *to);
/* Exactly n bytes at to. Reads any bytes. KVT_ECORRUPT. */
kvt_status tier_unpack(tier_packer *p, const void *from, size_t n_packed, void *to, size_t n);

#endif
