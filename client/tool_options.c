/* tool_options.c - options of a command, and its help, both from one table. */
#include "client/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 22, HELP_WIDTH = 92 };

/* Lays a paragraph out behind what stands in the line already. */
static void print_paragraph(const char *text) {
    int column = HELP_COLUMN;
    for (const char *space = ""; *text; space = " ") {
        int n = (int)strcspn(text, " ");
        if (column + 1 + n > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
            space = "";
        }
        column += printf("%s%.*s", space, n, text);
        text += n + (text[n] == ' ');
    }
    putchar('\n');
}

static void print_option(const char *name, const char *value, const char *help) {
    char left[64];
    snprintf(left, sizeof left, "  --%s%s%s", name, value ? " " : "", value ? value : "");
    int n = printf("%-*s", HELP_COLUMN, left);
    if (n > HELP_COLUMN)
        printf("\n%*s", HELP_COLUMN, "");
    print_paragraph(help);
}

static int print_help(const tool_command *command, const tool_option *options) {
    printf("kvtrunk %s%s%s [options]: %s\n\n%s\nOptions:\n", command->name,
           *command->operands ? " " : "", command->operands,
           command->summary ? command->summary : "not for people",
           command->about ? command->about : "");
    for (const tool_option *o = options; o->name; o++)
        if (o->help)
            print_option(o->name, o->value, o->help);
    print_option("help", NULL, "this text");
    if (command->examples)
        printf("\nExamples:\n%s", command->examples);
    return TOOL_HELPED;
}

static int take_number(const tool_command *command, const tool_option *o, const char *value) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || n < o->low || n > o->high)
        return tool_fail(TOOL_USAGE, "%s --%s %s: a number from %llu to %llu is needed",
                         command->name, o->name, value, (unsigned long long)o->low,
                         (unsigned long long)o->high);
    *o->number = n;
    return TOOL_OK;
}

static const tool_option *find_option(const tool_option *options, const char *name, size_t n) {
    const tool_option *o = options;
    while (o->name && (strlen(o->name) != n || strncmp(o->name, name, n) != 0))
        o++;
    return o->name ? o : NULL;
}

/* Takes the option at argv[*at]; moves *at over its value. */
static int take_option(const tool_command *command, int argc, char **argv, int *at,
                       const tool_option *options) {
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    if (!equals && strcmp(name, "help") == 0)
        return print_help(command, options);
    const tool_option *o = find_option(options, name, n);
    if (!o)
        return tool_fail(TOOL_USAGE, "%s --%.*s: there is no such option (see kvtrunk %s --help)",
                         command->name, (int)n, name, command->name);
    if (o->flag) {
        if (equals)
            return tool_fail(TOOL_USAGE, "%s --%s: takes no value", command->name, o->name);
        *o->flag = 1;
        return TOOL_OK;
    }
    const char *value = equals ? equals + 1 : NULL;
    if (!value && *at + 1 < argc)
        value = argv[++*at];
    if (!value || !*value)
        return tool_fail(TOOL_USAGE, "%s --%s: a value is needed: --%s %s", command->name, o->name,
                         o->name, o->value ? o->value : "VALUE");
    if (o->number)
        return take_number(command, o, value);
    *o->text = value;
    return TOOL_OK;
}

int tool_options(const tool_command *command, int argc, char **argv, const tool_option *options,
                 const char **operands, int max_operands, int *ret_n_operands) {
    int n = 0, only_operands = 0;
    for (int i = 1; i < argc; i++) {
        if (!only_operands && strcmp(argv[i], "-h") == 0)
            return print_help(command, options);
        if (!only_operands && strcmp(argv[i], "--") == 0) {
            only_operands = 1;
        } else if (!only_operands && argv[i][0] == '-' && argv[i][1]) {
            int code = argv[i][1] == '-' ? take_option(command, argc, argv, &i, options)
                                         : tool_fail(TOOL_USAGE,
                                                     "%s %s: options have two dashes (see kvtrunk "
                                                     "%s --help)",
                                                     command->name, argv[i], command->name);
            if (code != TOOL_OK)
                return code;
        } else if (n < max_operands) {
            operands[n++] = argv[i];
        } else {
            return tool_fail(TOOL_USAGE,
                             "%s: '%s' is one argument too many (see kvtrunk %s --help)",
                             command->name, argv[i], command->name);
        }
    }
    *ret_n_operands = n;
    return TOOL_OK;
}
