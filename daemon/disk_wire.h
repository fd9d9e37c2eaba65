/*
 * disk_wire.h - what daemon and disk helper say to each other over their socket pair: both are the
 * same program, so a message is a struct, followed by tokens or bytes. Neither believes the other's
 * lengths.
 */
#ifndef KVT_DAEMON_DISK_WIRE_H
#define KVT_DAEMON_DISK_WIRE_H

#include "daemon/disk.h"
#include "store/tier.h"

/* How the helper is started: argv[1]; descriptors that it finds open. */
#define DISK_HELPER_ARGUMENT "--disk-helper"
enum { DISK_HELPER_SOCKET = 3, DISK_HELPER_HOST = 4 };

/* How it ends, when it is not killed. */
enum {
    DISK_EXIT_CLOSED = 0,
    DISK_EXIT_USAGE = 10,
    DISK_EXIT_REFUSED = 11, /* could not open; HELLO said why */
    DISK_EXIT_BROKEN = 12,  /* the file is damaged */
    DISK_EXIT_ORPHAN = 13,  /* the daemon is gone */
};

enum {                        /* daemon -> helper; the kinds of requests are disk_kind */
       DISK_TELL_REALM = 100, /* number = place, then the realm's bytes */
       DISK_TELL_CLOSE,
};

enum {                       /* helper -> daemon */
       DISK_SAY_HELLO = 200, /* disk_hello, then the reason if it is a refusal */
       DISK_SAY_DONE,        /* number = the request's; disk_done, then its items */
       DISK_SAY_REALM,       /* number = place in the scan's list, then the realm's bytes */
       DISK_SAY_FOUND,       /* n disk_wire_item, then their tokens; realm: place in that list */
       DISK_SAY_SCANNED,
       DISK_SAY_USAGE, /* tier_usage; also a sign of life */
       DISK_SAY_WAITS, /* what it waits for before it can open, HELLO comes then; why */
};

typedef struct disk_message {
    uint32_t kind;
    uint32_t number;
    uint32_t realm; /* place in the daemon's table */
    uint32_t n;     /* items, or bytes */
} disk_message;

typedef struct disk_wire_item {
    tier_key key;
    tier_key parent;
    uint64_t serial;
    uint64_t parent_serial;
    uint64_t host_offset;
    uint32_t depth;
    uint32_t bytes;
    uint32_t realm; /* FOUND */
    uint16_t slot;
    uint16_t rows;
    uint16_t n_tokens;
    uint16_t flags;
    uint32_t stored; /* FOUND: bytes in the file */
} disk_wire_item;

typedef struct disk_hello {
    int32_t status;
    uint32_t found; /* tier_found */
    uint64_t last_serial;
    tier_usage usage;
} disk_hello;

typedef struct disk_done {
    int32_t status;
    uint32_t lost_all; /* a DELETE that could only be done by throwing everything away */
    uint64_t deleted;
    uint64_t checked;
    tier_usage usage; /* counters and sums; of room, what was last counted */
} disk_done;

typedef struct disk_done_item {
    uint64_t serial;
    int32_t status;
    uint32_t stored; /* WRITE: bytes in the file */
} disk_done_item;

enum {
    DISK_MAX_MESSAGE = 32 << 10,
    DISK_MAX_WHY = 512,
};
_Static_assert(sizeof(disk_message) +
                       DISK_MAX_ITEMS * (sizeof(disk_wire_item) + 4 * TIER_MAX_TOKENS) <=
                   DISK_MAX_MESSAGE,
               "a request fits");

#endif
