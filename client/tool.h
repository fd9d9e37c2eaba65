/*
 * tool.h - between the files of the program `kvtrunk` (client/tool_*.c): its commands, how they
 * read their options and explain themselves, how they fail, how they write numbers.
 */
#ifndef KVT_CLIENT_TOOL_H
#define KVT_CLIENT_TOOL_H

#include "client/kvtrunk.h"

#include <stdio.h>
#include <sys/types.h>

/* Exit codes, documented in kvtrunk(1). */
enum {
    TOOL_OK = 0,
    TOOL_FAILED = 1,    /* the job was done and came out wrong */
    TOOL_USAGE = 2,     /* arguments */
    TOOL_NO_DAEMON = 3, /* nobody answers */
    TOOL_BAD_INPUT =
        4, /* a file cannot be read or does not parse; the daemon has not what is asked for */
    TOOL_SYSTEM = 5,  /* the system failed (memory, a process, a folder) */
    TOOL_BUSY = 6,    /* not now: another call is at it */
    TOOL_STUCK = 7,   /* the disk takes no more */
    TOOL_HELPED = -1, /* help was asked for and given: the command has nothing more to do */
};

/* --- commands -----------------------------------------------------------------------------------
 */

typedef struct tool_command {
    const char *name;
    const char *operands; /* as the usage line has them, "" for none */
    const char *summary;  /* a line; NULL: not shown to people */
    const char *about;    /* paragraphs, laid out */
    const char *examples; /* lines of a shell, with # comments */
    int (*run)(const struct tool_command *self, int argc, char **argv);
} tool_command;

extern const tool_command tool_status, tool_tree, tool_sessions, tool_leases, tool_watch, tool_pin,
    tool_unpin, tool_flush, tool_spill, tool_verify, tool_compact, tool_replay, tool_simulate,
    tool_sizes;
extern const tool_command tool_replay_worker; /* what replay starts */

/*
 * An option of a command: "--name value" or "--name=value"; a flag has no value. Exactly one of
 * text, number, flag is set, and takes what is given; the last of several counts.
 */
typedef struct tool_option {
    const char *name;
    const char *value; /* what stands for the value in the help: "N"; NULL for a flag */
    const char *help;  /* a paragraph, not laid out */
    const char **text;
    uint64_t *number;
    uint64_t low, high; /* of number */
    int *flag;
} tool_option;

/*
 * Reads argv[1 ..] by a table that ends with a row without a name. Arguments that are no options
 * are operands, at most max_operands. "--help" prints the command's help, made from both tables,
 * and gives TOOL_HELPED. TOOL_USAGE after a message.
 */
int tool_options(const tool_command *command, int argc, char **argv, const tool_option *options,
                 const char **operands, int max_operands, int *ret_n_operands);

/* "kvtrunk: ..." on standard error; returns the code, so that one can `return tool_fail(...)`. */
int tool_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The exit code for a status of the library. */
int tool_code(kvt_status status);

/* --- numbers and texts --------------------------------------------------------------------------
 */

/* Each in one of eight static buffers that take turns. "1,234,567"; "1.2 MiB" or "832 bytes". */
const char *tool_number(uint64_t n);
const char *tool_size(uint64_t n_bytes);

/* The number at the beginning of the text: digits, and a point with digits if it has a fraction;
 * *ret_end is what stands behind it. -1 if there is none (strtod would take 0x10, 1e3, nan). */
double tool_decimal(const char *text, const char **ret_end);

/* Writes a JSON string, quotes included. */
void tool_json_text(FILE *to, const char *text);

double tool_now_s(void); /* a clock that never goes back */

/* --- a daemon that runs -------------------------------------------------------------------------
 */

#define TOOL_SOCKET_HELP                                                                           \
    "of the daemon; otherwise $KVTRUNK_SOCKET, else kvtrunk.sock in $XDG_RUNTIME_DIR, "            \
    "else " KVT_DEFAULT_SOCKET

/* A client that asks for reports, pins and flushes. Fails with a message and an exit code. */
int tool_connect(const char *socket, const char *name, kvt_client **ret_client);
/* The message and the exit code for a call that failed. */
int tool_failed(kvt_status status);

/* Prints an array of objects with the same members as a table with a line each. */
struct cJSON;
void tool_rows(const struct cJSON *rows);
/* A report of one object a line, as it is or as a table; nothing: what to say then. */
int tool_lines(char *lines, int json, const char *nothing);

/* --- a daemon of the tool's own -----------------------------------------------------------------
 */

typedef struct tool_daemon {
    pid_t pid; /* 0: none runs */
    int lock;  /* on the folder */
    char folder[128];
    char socket[160];
    char config[160];
} tool_daemon;

/*
 * Starts kvtrunkd in a new folder with room for so many pages and this policy, and returns when it
 * is ready. Looked for in $KVTRUNKD, then beside this program (build tree, then installed places),
 * then in $PATH. Fails with a message and an exit code other than TOOL_OK; nothing is left behind
 * then.
 */
int tool_daemon_start(uint64_t max_pages, uint64_t arena_bytes, uint32_t page_tokens,
                      const char *policy, tool_daemon *ret_daemon);

/* Has it ended by itself? Then says so, forgets it, and returns TOOL_FAILED. */
int tool_daemon_look(tool_daemon *d);

/* SIGTERM; waits; removes the folder. TOOL_FAILED with a message if it did not end well. */
int tool_daemon_stop(tool_daemon *d);

/* The signal (SIGINT, SIGTERM, SIGHUP) that asked this program to stop, or 0. From the first call
 * on these signals no longer end the program at once, so that it can clean up. */
int tool_stopping(void);

#endif
