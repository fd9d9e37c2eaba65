/*
 * options.h - the command line, and the configuration that it makes together with the file that it
 * names. Kept for as long as the daemon runs, since SIGHUP makes the configuration again.
 */
#ifndef KVT_DAEMON_OPTIONS_H
#define KVT_DAEMON_OPTIONS_H

#include "daemon/config.h"

/* Exit codes; kvtrunkd(8) lists them. A broken invariant ends with SIGABRT. */
enum {
    EXIT_CODE_OK = 0,
    EXIT_CODE_FAILED = 1, /* anything else */
    EXIT_CODE_USAGE = 2,  /* the command line makes no sense */
    EXIT_CODE_CONFIG = 3, /* the configuration is refused, or names what is not there */
    EXIT_CODE_SOCKET = 4, /* the socket's path is taken, too long, or not to be had */
    EXIT_CODE_MEMORY = 5, /* the arena is not to be had at the size asked for */
    EXIT_CODE_DEVICE = 6, /* the GPU is not to be had, or failed */
};

typedef enum options_task {
    TASK_SERVE = 0,
    TASK_CHECK_CONFIG,
    TASK_PRINT_CONFIG,
    TASK_PRINT_MAN,
    TASK_HELP,
    TASK_VERSION,
} options_task;

enum { OPTIONS_MAX_SETS = 64 };

/* The strings are argv's. */
typedef struct options {
    options_task task;
    const char *config_file; /* NULL: none */
    struct {
        const char *option; /* "--set", "--socket": as it is called in messages */
        const char *key;    /* NULL: the text says it */
        const char *text;
    } sets[OPTIONS_MAX_SETS];
    size_t n_sets;
    int ready_fd; /* -1: none */
} options;

/* KVT_EINVAL with a sentence in why. */
kvt_status options_read(int argc, char **argv, options *ret_options, char *why, size_t why_bytes);

/* Defaults, file, command line, in this order, and the check of the whole. */
kvt_status options_config(const options *o, uint32_t own_uid, config *ret_config, char *why,
                          size_t why_bytes);

#endif
