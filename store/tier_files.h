/*
 * tier_files.h - the files of the disk tier around LMDB's own: lock, stamp, ballast, what is moved
 * aside. See tier.h for the directory.
 */
#ifndef KVT_STORE_TIER_FILES_H
#define KVT_STORE_TIER_FILES_H

#include "client/kvtrunk.h"
#include "store/tier.h"

typedef struct tier_files {
    int dir;  /* descriptor */
    int lock; /* -1: none */
    uint64_t ballast_bytes;
    char name[1024]; /* of the directory */
    char boot_id[TIER_MAX_BOOT_ID_BYTES + 1];
} tier_files;

#define TIER_DATA_NAME "data.mdb"

/* Makes the directory if need be and takes the lock. KVT_EBUSY; KVT_EIO; KVT_EDENIED: also where
 * others than the caller may write, or own what is there, and where data.mdb is no tier's: then
 * nothing is touched. */
kvt_status tier_files_open(const tier_options *options, uint64_t ballast_bytes, char *why,
                           size_t why_bytes, tier_files *ret_files);
void tier_files_close(tier_files *f);

/* How data.mdb was left, as the stamp says. */
tier_found tier_files_found(const tier_files *f);

/* The stamp from now on: in use (clean = 0), or closed in order. Reaches the disk before it
 * returns.
 */
kvt_status tier_files_stamp(const tier_files *f, int clean);

/* Moves data.mdb to aside/, over the last one of that kind; of a broken one only the first MiB is
 * kept, to be looked at, since it would count twice against the disk. One that is merely too large,
 * or of a system that crashed, is removed, and so is any if aside/ is a link, or has a directory of
 * that name. */
kvt_status tier_files_aside(const tier_files *f, tier_found kind, int *ret_moved);
/* Sizes of all that was ever moved there, and its removal. */
uint64_t tier_files_aside_bytes(const tier_files *f);
void tier_files_drop_aside(const tier_files *f);

/* Size of data.mdb; 0 if there is none. */
uint64_t tier_files_data_bytes(const tier_files *f);

/* Is data.mdb the file behind this descriptor? Not if somebody has removed or replaced it. */
int tier_files_is_data(const tier_files *f, int fd);

/* Room that the file system has for us. UINT64_MAX: it does not say. */
uint64_t tier_files_disk_free(const tier_files *f);

/* Gives the ballast's room to the file system, takes it again. Neither failing matters. */
void tier_files_drop_ballast(const tier_files *f);
void tier_files_take_ballast(const tier_files *f);

#endif
