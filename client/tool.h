/*
 * tool.h - between the files of the tool `kvtrunk` (client/tool_*.c): its commands, how they read
 * their options, and how they fail.
 */
#ifndef KVT_CLIENT_TOOL_H
#define KVT_CLIENT_TOOL_H

#include "client/kvtrunk.h"

#include <sys/types.h>

/* Exit codes, documented in kvtrunk(1). */
enum {
    TOOL_OK = 0,
    TOOL_FAILED = 1,    /* the job was done and came out wrong */
    TOOL_USAGE = 2,     /* arguments */
    TOOL_NO_DAEMON = 3, /* nobody answers */
    TOOL_BAD_INPUT = 4, /* a file cannot be read or does not parse */
    TOOL_SYSTEM = 5,    /* the system failed (memory, a process, a folder) */
};

int tool_status(int argc, char **argv);
int tool_tree(int argc, char **argv);
int tool_replay(int argc, char **argv);
int tool_replay_worker(int argc, char **argv); /* hidden: what replay starts */

/* "kvtrunk: ..." on standard error; returns the code, so that one can `return tool_fail(...)`. */
int tool_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The exit code for a status of the library. */
int tool_code(kvt_status status);

/*
 * Options of a command: "--name value", "--name=value" or, for a flag, "--name". What is none is an
 * operand.
 */
typedef struct tool_option {
    const char *name;
    const char **text; /* takes the value; */
    uint64_t *number;  /* or takes it as a number from low to high; */
    uint64_t low, high;
    int *flag; /* or is a flag */
} tool_option;
/* Fills in at most max_operands operands. TOOL_OK, or TOOL_USAGE after a message. */
int tool_options(int argc, char **argv, const tool_option *options, const char **operands,
                 int max_operands, int *ret_n_operands);

/* "1,234,567" in a static buffer of eight that take turns. */
const char *tool_number(uint64_t n);

/* --- replay: options, workers, the private daemon ------------------------------------------------
 */

typedef struct replay_options {
    const char *trace;
    const char *socket;   /* --connect, or the private daemon's */
    const char *capacity; /* NULL: room for all */
    const char *codec, *dtype;
    uint64_t n_workers, n_requests; /* 0: all */
    uint64_t layers, heads, head_dim, page_tokens;
    uint64_t wait_ms, timeout_ms;
    int json;
} replay_options;

/* The realm of a replay. The strings live as long as the options. */
kvt_status replay_realm(const replay_options *options, char *why, size_t why_bytes,
                        kvt_realm *ret_realm);

/* What a worker counts, and what the workers' counts add up to. */
typedef struct replay_counts {
    uint64_t requests, tokens_asked, tokens_served;
    uint64_t wrong_bytes, bytes_read, pages_sealed, pages_shared;
    uint64_t errors[KVT_N_STATUS];
} replay_counts;

/* Messages of a worker to the tool, over fd REPLAY_FD: a u32 kind, a u32 size, the bytes. */
enum { REPLAY_FD = 3 };
enum { REPLAY_PROGRESS = 1, REPLAY_LATENCY = 2, REPLAY_END = 3, REPLAY_BROKEN = 4 };

/* A daemon of the tool's own, in a folder of its own. */
typedef struct tool_daemon {
    pid_t pid;
    char folder[128];
    char socket[160];
    char config[160];
} tool_daemon;

/* Starts kvtrunkd (beside this program, in $KVTRUNKD or in $PATH) with room for so many pages, and
 * returns when it is ready. Fails with a message and an exit code other than TOOL_OK. */
int tool_daemon_start(uint64_t max_pages, uint64_t arena_bytes, uint32_t page_tokens,
                      tool_daemon *ret_daemon);
/* SIGTERM; waits; removes the folder. TOOL_FAILED with a message if it did not end well. */
int tool_daemon_stop(tool_daemon *d);

/* The page size of this program's binary path: "<folder of the tool>/<name>" into to. */
int tool_beside(const char *name, char *to, size_t room);

#endif
