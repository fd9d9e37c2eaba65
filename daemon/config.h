/*
 * config.h - a configuration: the table's defaults, then a file, then what the command line says;
 * checked as a whole before anything is started.
 *
 * Every message is one line, ready for the log:
 *     /etc/kvtrunk/kvtrunkd.json:12:5: "max_session": this key is not known; did you mean ...
 */
#ifndef KVT_DAEMON_CONFIG_H
#define KVT_DAEMON_CONFIG_H

#include "daemon/json_scan.h"
#include "daemon/params.h"

enum {
    CONFIG_WHY_BYTES = 1024,
    CONFIG_MAX_PARAMS = 64,
};

/* Where a value came from, for messages about values that contradict each other. */
typedef enum config_source {
    CONFIG_STANDARD = 0, /* the table's default */
    CONFIG_FILE,
    CONFIG_SET, /* --set, --socket */
} config_source;

/* One of "tenants": what it says itself, and, once settled, what it takes from beside the list. */
typedef struct config_tenant {
    param_values values;
    uint64_t is_set; /* bit i: row i of the table stands in it */
    json_place place;
} config_tenant;

typedef struct config {
    param_values values;
    char file[PARAM_MAX_TEXT_BYTES + 1]; /* name of the file for messages, "": none */
    struct {
        config_source source;
        json_place place;
    } from[CONFIG_MAX_PARAMS]; /* by row of the table */
    uint32_t n_tenants;        /* 0: `values` describe the only one */
    config_tenant tenants[PARAM_MAX_TENANTS];
} config;

void config_init(config *ret_config);

/* Takes what text[0 .. n_bytes) says; `file` is its name in messages. Callable on any bytes.
 * KVT_ESYNTAX, KVT_EINVAL, KVT_ELIMIT, KVT_ENOMEM with a line in why; c is void then. */
kvt_status config_parse(config *c, const char *file, const char *text, size_t n_bytes, char *why,
                        size_t why_bytes);

/* The same with the bytes of a file. KVT_EIO, KVT_ENOENT too. */
kvt_status config_read(config *c, const char *file, char *why, size_t why_bytes);

/* "key=value" of the command line; `option` is what it is called in messages. */
kvt_status config_set(config *c, const char *option, const char *text, char *why, size_t why_bytes);

/* Completes the tenants from the values beside them, when all has been read and set: each has a
 * name and somebody who belongs to it, nobody belongs to two. KVT_EINVAL. */
kvt_status config_settle(config *c, char *why, size_t why_bytes);

/* Do the values contradict each other? `own_uid` is the daemon's. KVT_EINVAL. */
kvt_status config_check(const config *c, uint32_t own_uid, char *why, size_t why_bytes);

#endif
