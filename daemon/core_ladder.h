/*
 * core_ladder.h - the codec sets that pages are put into, one after the other, as they cool
 * (core_cool.c), each of fewer bits than the one in front of it.
 */
#ifndef KVT_DAEMON_CORE_LADDER_H
#define KVT_DAEMON_CORE_LADDER_H

#include "client/kvtrunk.h"

#include <stddef.h>
#include <stdint.h>

enum { COOL_MAX_RUNGS = 4 }; /* sets of a ladder */

typedef struct ladder {
    char names[COOL_MAX_RUNGS][KVT_MAX_NAME_BYTES + 1];
    uint32_t n_names; /* 0: nothing cools */
} ladder;

/* Of a configuration: "i8 > i4". l is of zeros before, and not to be used if this fails:
 * KVT_EINVAL, and why says what to write (why may be NULL). */
kvt_status ladder_read(ladder *l, const char *text, char *why, size_t why_bytes);

#endif
