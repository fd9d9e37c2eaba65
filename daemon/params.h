/*
 * params.h - the one table of parameters. From it come the checks of a configuration, the values
 * that the daemon runs with, `kvtrunkd --help`, kvtrunkd.conf(5), conf/kvtrunkd.json and the
 * "config" part of a status report. A parameter is added by adding a row, and nowhere else.
 *
 * Pure but for user names, which are looked up in the system's user database.
 */
#ifndef KVT_DAEMON_PARAMS_H
#define KVT_DAEMON_PARAMS_H

#include "client/kvtrunk.h"

enum {
    PARAM_MAX_TEXT_BYTES = 255, /* of a string; paths go over the wire, which allows that many */
    PARAM_MAX_UIDS = 64,
    PARAM_MAX_CHOICES = 4,
    PARAM_MAX_TENANTS = 16,
    PARAM_MAX_GPUS = 16,
};

typedef enum param_type {
    PARAM_SIZE,  /* bytes: "64GiB", "512MiB", "4096", or a plain number */
    PARAM_COUNT, /* a whole number */
    PARAM_MS,    /* a duration in milliseconds, a whole number */
    PARAM_TEXT,
    PARAM_MODE, /* permission bits as a string of octal digits: "0640" */
    PARAM_BOOL,
    PARAM_UIDS,    /* a list of user ids and user names */
    PARAM_GIDS,    /* a list of group ids and group names */
    PARAM_TENANTS, /* a list of objects, in a file alone: see config.h */
    PARAM_ENUM,    /* one of a few words */
    PARAM_GPUS,    /* a number, or a string: "0,1", "all"; a bit for each */
} param_type;

enum {
    PARAM_RELOADS = 1 << 0,   /* SIGHUP takes a new value */
    PARAM_AUTO = 1 << 1,      /* "auto" is allowed, and stands as 0 or "" */
    PARAM_PATH = 1 << 2,      /* an absolute path */
    PARAM_POWER = 1 << 3,     /* a power of two */
    PARAM_EMPTY = 1 << 4,     /* the empty string is allowed */
    PARAM_OF_TENANT = 1 << 5, /* may stand in an element of "tenants" too */
    PARAM_NAME = 1 << 6,      /* of a folder, too: no text that leads out of one, or hides it */
};

enum { PARAM_DEVICE_AUTO, PARAM_DEVICE_CUDA, PARAM_DEVICE_HOST };
#define PARAM_ALL_GPUS UINT64_MAX

/* What a configuration says. Every number is 64 bits wide; the ranges in the table say what fits.
 */
typedef struct param_values {
    char socket[PARAM_MAX_TEXT_BYTES + 1]; /* "": auto */
    uint64_t device;                       /* index into its choices: PARAM_DEVICE_... */
    uint64_t gpus;                         /* bit i: GPU i; PARAM_ALL_GPUS */
    uint64_t arena;                        /* bytes; 0: auto */
    char arena_dir[PARAM_MAX_TEXT_BYTES + 1];
    uint64_t arena_mode;
    char arena_group[PARAM_MAX_TEXT_BYTES + 1]; /* "": leave it */
    char staging_dir[PARAM_MAX_TEXT_BYTES + 1];
    char tenant[PARAM_MAX_TEXT_BYTES + 1];
    uint32_t uids[PARAM_MAX_UIDS];
    uint64_t n_uids; /* 0 and no gids: the daemon's own */
    uint32_t gids[PARAM_MAX_UIDS];
    uint64_t n_gids;
    uint64_t tenants; /* 0: none; else it changes with what the list says */
    uint64_t page_tokens;
    uint64_t max_pages; /* 0: from the arena */
    uint64_t max_slots;
    uint64_t max_realms;
    uint64_t max_sessions;
    uint64_t max_leases;
    uint64_t max_leases_total;
    uint64_t max_claimed_pages;
    uint64_t max_requests;
    uint64_t claim_ms;
    uint64_t event_tokens;
    uint64_t max_pins;
    uint64_t max_pinned;       /* bytes; 0: half of the arena */
    uint64_t max_pinned_owner; /* bytes; 0: as max_pinned */
    uint64_t max_jobs;
    uint64_t job_threads;
    uint64_t policy; /* index into its choices, which are policy_rule's */
    uint64_t grace_ms;
    uint64_t max_wait_ms;
    uint64_t host;                           /* bytes of the host tier; 0: none */
    char disk_dir[PARAM_MAX_TEXT_BYTES + 1]; /* "": no disk tier */
    char ladder[PARAM_MAX_TEXT_BYTES + 1];   /* "": pages do not cool */
    uint64_t disk;                           /* bytes */
    uint64_t promote_wait_ms;
    uint64_t drain_ms;
    uint64_t log_level; /* index into its choices: error, warning, info, debug */
    uint64_t tree_tokens;
    uint64_t audit;
} param_values;

typedef struct param {
    const char *name;
    param_type type;
    uint32_t flags;
    size_t offset;                              /* of its value in param_values */
    uint64_t low, high;                         /* of a number; of a string's length in bytes */
    const char *choices[PARAM_MAX_CHOICES + 1]; /* of PARAM_ENUM, ended by NULL */
    const char *standard;                       /* the default as it stands in a configuration */
    const char *text;                           /* a paragraph; parts of it in `` are literal */
} param;

extern const param params[];
extern const size_t params_n;

/* The row with this name, exact to the case, or NULL. */
const param *param_find(const char *name, size_t n_bytes);

/* The row whose name takes the fewest edits (insert, delete, replace, swap neighbours), or NULL if
 * that is more than half of the name. */
const param *param_nearest(const char *name, size_t n_bytes);
/* The same among the rows that have all of these flags. */
const param *param_nearest_of(const char *name, size_t n_bytes, uint32_t flags);

/* Sets every default. */
void params_init(param_values *ret_values);

/*
 * Sets one parameter from a text without JSON's quotes ("1GiB", "4096", "true", "1000,alice").
 * KVT_ESYNTAX or KVT_EINVAL with a sentence in why: what is wrong with the value, and the range.
 */
kvt_status param_set(const param *p, const char *text, size_t n_bytes, param_values *values,
                     char *why, size_t why_bytes);
/* Empties a list of ids; one more element of it. */
void param_no_ids(const param *p, param_values *values);
kvt_status param_add_id(const param *p, const char *text, size_t n_bytes, param_values *values,
                        char *why, size_t why_bytes);

/* "bytes, 1MiB .. 64TiB, or \"auto\"": what is allowed, in words. Returns to. */
const char *param_range(const param *p, char *to, size_t room);
/* The value as it would stand in a configuration. Returns its length, at most room - 1. */
size_t param_print(const param *p, const param_values *values, char *to, size_t room);
int param_equal(const param *p, const param_values *a, const param_values *b);
/* Of any parameter but a list: a number or a string. */
void param_copy(const param *p, const param_values *from, param_values *to);

#endif
