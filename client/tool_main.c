/*
 * tool_main.c - kvtrunk: what people type. Its commands, their common options, its exit codes.
 */
#include "client/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "kvtrunk - look at a running kvtrunkd, and try it with real request traces\n"
    "\n"
    "  kvtrunk status [--json] [--socket PATH]\n"
    "        counters, memory, sessions of the daemon\n"
    "  kvtrunk tree [--json] [--lines N] [--socket PATH]\n"
    "        the prefixes that it holds, as a tree of runs of pages\n"
    "  kvtrunk replay TRACE [options]\n"
    "        let worker processes ask for the prompts of a trace, fill the pages that are\n"
    "        missing, and check every byte that they read\n"
    "\n"
    "  Options of replay:\n"
    "    --workers N         processes that share the requests (1)\n"
    "    --requests N        only the first N requests of the trace\n"
    "    --connect PATH      use the daemon at this socket; without it, one is started for the\n"
    "                        replay and stopped after it\n"
    "    --capacity X        pages that the started daemon has room for: a number, or a part of\n"
    "                        the trace's different pages such as 10% (room for all)\n"
    "    --wait MS           wait so long for pages that another worker is computing (0)\n"
    "    --timeout MS        bound of each call (20000)\n"
    "    --layers N --heads N --head-dim N --page-tokens N --dtype f16|bf16 --codec SET\n"
    "                        what a page looks like (1, 1, 4, 64 or the trace's block, f16, f16)\n"
    "    --json              one JSON object at the end\n"
    "\n"
    "  Traces are PCT1 files or token streams (.tokens.jsonl), gzipped or not.\n"
    "  The socket, unless it is named: $KVTRUNK_SOCKET, $XDG_RUNTIME_DIR/kvtrunk.sock,\n"
    "  " KVT_DEFAULT_SOCKET ".\n"
    "\n"
    "  Try:\n"
    "    kvtrunk replay tests/traces/mooncake_conversation_2500.pct.gz --workers 4\n"
    "    kvtrunkd --socket /tmp/k.sock &  kvtrunk status --socket /tmp/k.sock\n"
    "\n"
    "  Exit codes: 0 well; 1 the job came out wrong (wrong bytes, a worker died); 2 usage;\n"
    "  3 no daemon answers; 4 a file cannot be read or does not parse; 5 the system failed.\n";

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"status", tool_status},
    {"tree", tool_tree},
    {"replay", tool_replay},
    {"replay-worker", tool_replay_worker},
};

int tool_fail(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
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
        return TOOL_SYSTEM;
    default:
        return TOOL_FAILED;
    }
}

const char *tool_number(uint64_t n) {
    static char buffers[8][32];
    static unsigned turn;
    char digits[24], *to = buffers[turn++ % 8];
    int n_digits = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *at = to;
    for (int i = 0; i < n_digits; i++) {
        if (i > 0 && (n_digits - i) % 3 == 0)
            *at++ = ',';
        *at++ = digits[i];
    }
    *at = '\0';
    return to;
}

int tool_beside(const char *name, char *to, size_t room) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 0;
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    return snprintf(to, room, "%s/%s", self, name) < (int)room && access(to, X_OK) == 0;
}

/* --- options ------------------------------------------------------------------------------------
 */

static int take_number(const tool_option *o, const char *value) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || n < o->low || n > o->high)
        return tool_fail(TOOL_USAGE, "--%s %s: a number from %llu to %llu is needed", o->name,
                         value, (unsigned long long)o->low, (unsigned long long)o->high);
    *o->number = n;
    return TOOL_OK;
}

/* Takes the option at argv[*at]; moves *at over its value. */
static int take_option(int argc, char **argv, int *at, const tool_option *options) {
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    const tool_option *o = options;
    while (o->name && (strlen(o->name) != n || strncmp(o->name, name, n) != 0))
        o++;
    if (!o->name)
        return tool_fail(TOOL_USAGE, "--%.*s: there is no such option; see kvtrunk --help", (int)n,
                         name);
    if (o->flag) {
        if (equals)
            return tool_fail(TOOL_USAGE, "--%s takes no value", o->name);
        *o->flag = 1;
        return TOOL_OK;
    }
    const char *value = equals ? equals + 1 : NULL;
    if (!value && *at + 1 < argc)
        value = argv[++*at];
    if (!value)
        return tool_fail(TOOL_USAGE, "--%s needs a value", o->name);
    if (o->number)
        return take_number(o, value);
    *o->text = value;
    return TOOL_OK;
}

int tool_options(int argc, char **argv, const tool_option *options, const char **operands,
                 int max_operands, int *ret_n_operands) {
    int n = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            int code = take_option(argc, argv, &i, options);
            if (code != TOOL_OK)
                return code;
        } else if (n < max_operands) {
            operands[n++] = argv[i];
        } else {
            return tool_fail(TOOL_USAGE, "%s: one argument too many; see kvtrunk --help", argv[i]);
        }
    }
    *ret_n_operands = n;
    return TOOL_OK;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            name = "--help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "help") == 0) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("kvtrunk %d.%d.%d\n", KVT_VERSION_MAJOR, KVT_VERSION_MINOR, KVT_VERSION_PATCH);
        return TOOL_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (*name)
        return tool_fail(TOOL_USAGE,
                         "%s: there is no such command; there are status, tree, replay (see "
                         "kvtrunk --help)",
                         name);
    fputs(help, stderr);
    return TOOL_USAGE;
}
