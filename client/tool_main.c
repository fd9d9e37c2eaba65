/*
 * tool_main.c - kvtrunk: the program that people type. Its commands, its help, its exit codes.
 */
#include "client/tool.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static const tool_command *const commands[] = {
    &tool_status,  &tool_tree,   &tool_sessions, &tool_leases, &tool_watch,
    &tool_pin,     &tool_unpin,  &tool_flush,    &tool_spill,  &tool_verify,
    &tool_compact, &tool_replay, &tool_simulate, &tool_sizes,  &tool_replay_worker,
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const char head[] =
    "kvtrunk looks at a running kvtrunkd, tries it out with traces of real requests, and says how\n"
    "much room a model's KV takes.\n"
    "\n"
    "kvtrunkd keeps the KV cache of prompts that several inference workers of a machine share:\n"
    "who asks for a prompt gets the pages of its longest prefix that anybody has computed.\n"
    "\n";

static const char tail[] =
    "\n"
    "A first try, with a daemon of its own that is gone afterwards:\n"
    "  kvtrunk replay tests/traces/mooncake_conversation_2500.pct.gz --workers 4\n"
    "\n"
    "A daemon that stays, and a look at it:\n"
    "  kvtrunkd --socket /tmp/kvtrunk.sock &\n"
    "  export KVTRUNK_SOCKET=/tmp/kvtrunk.sock\n"
    "  kvtrunk replay tests/traces/mooncake_conversation_2500.pct.gz --connect $KVTRUNK_SOCKET\n"
    "  kvtrunk status\n"
    "  kvtrunk tree --lines 20\n"
    "\n"
    "Exit codes: 0 it went well; 1 the job came out wrong (wrong bytes, a worker or the daemon\n"
    "died); 2 usage; 3 no daemon answers, or not in time; 4 a file cannot be read or does not "
    "parse,\n"
    "or the daemon has not what was asked for (realm, pin, disk tier); 5 the system failed "
    "(memory,\n"
    "processes, files, permission); 6 not now, another call is at it.\n"
    "\n"
    "`kvtrunk COMMAND --help` says more; so do kvtrunk(1), kvtrunkd(8) and kvtrunk.h.\n";

static void print_help(FILE *to) {
    fputs(head, to);
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i]->summary)
            fprintf(to, "  kvtrunk %-8s %-10s %s\n", commands[i]->name, commands[i]->operands,
                    commands[i]->summary);
    fputs(tail, to);
}

int tool_fail(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("kvtrunk: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

int tool_code(kvt_status status) {
    switch (status) {
    case KVT_OK:
        return TOOL_OK;
    case KVT_ECONN:
    case KVT_ETIMEDOUT:
        return TOOL_NO_DAEMON;
    case KVT_EINVAL:
    case KVT_EGEOMETRY:
    case KVT_ELIMIT:
    case KVT_ENOTSUP:
        return TOOL_USAGE;
    case KVT_ENOENT:
    case KVT_ESYNTAX:
        return TOOL_BAD_INPUT;
    case KVT_ENOMEM:
    case KVT_EIO:
    case KVT_EDENIED:
        return TOOL_SYSTEM;
    case KVT_EBUSY:
        return TOOL_BUSY;
    default:
        return TOOL_FAILED;
    }
}

static int reader_has_gone(void) {
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* What was printed must have arrived: a full disk behind `>` is a failure too. Who reads the first
 * lines only, as head does, knows that there were more. */
static int finish(int code) {
    int bad = fflush(stdout) != 0 || ferror(stdout);
    if (bad && code <= TOOL_OK && reader_has_gone())
        return TOOL_SYSTEM;
    if (bad && code <= TOOL_OK)
        return tool_fail(TOOL_SYSTEM, "standard output cannot be written");
    return code == TOOL_HELPED ? TOOL_OK : code;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return finish(TOOL_OK);
    }
    if (strcmp(name, "--version") == 0) {
        printf("kvtrunk %d.%d.%d\n", KVT_VERSION_MAJOR, KVT_VERSION_MINOR, KVT_VERSION_PATCH);
        return finish(TOOL_OK);
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i]->name) == 0)
            return finish(commands[i]->run(commands[i], argc - 1, argv + 1));
    if (*name)
        return tool_fail(TOOL_USAGE, "%s: there is no such command; see kvtrunk --help", name);
    print_help(stderr);
    return TOOL_USAGE;
}
