/* params_print.c - the table of parameters for people. */
#include "daemon/params_print.h"

#include <string.h>

/* Prints `text` wrapped before `width` columns, each line behind `prefix`; its `` are left out. */
static void print_wrapped(FILE *to, const char *prefix, const char *text, size_t width) {
    size_t column = 0;
    while (*text) {
        size_t n = strcspn(text, " "), n_shown = 0;
        for (size_t i = 0; i < n; i++)
            n_shown += text[i] != '`';
        if (column > 0 && column + 1 + n_shown > width) {
            fputc('\n', to);
            column = 0;
        }
        if (column == 0)
            column = (size_t)fprintf(to, "%s", prefix);
        else
            column += (size_t)fprintf(to, " ");
        for (size_t i = 0; i < n; i++)
            if (text[i] != '`')
                fputc(text[i], to);
        column += n_shown;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', to);
}

static const char *reload_text(const param *p) {
    return p->flags & PARAM_RELOADS ? "SIGHUP takes a new value" : "needs a new start";
}

/* The name of a tenant is called otherwise there. */
static const char *tenant_text(const param *p) {
    return p->flags & PARAM_OF_TENANT && !(p->flags & PARAM_NAME) ? "; also in tenants" : "";
}

void params_print_help(FILE *to) {
    char range[160];
    fputs("Parameters (in the configuration file, or with --set KEY=VALUE):\n", to);
    for (size_t i = 0; i < params_n; i++) {
        fprintf(to, "\n  %s = %s\n", params[i].name, params[i].standard);
        print_wrapped(to, "      ", params[i].text, 90);
        fprintf(to, "      (%s; %s%s)\n", param_range(&params[i], range, sizeof range),
                reload_text(&params[i]), tenant_text(&params[i]));
    }
}

/* Text for roff: what stands in `` is set bold; backslashes, and dots that would start a request,
 * are made harmless. */
static void print_roff(FILE *to, const char *text) {
    int bold = 0;
    for (; *text; text++) {
        if (*text == '`')
            fputs((bold = !bold) ? "\\fB" : "\\fR", to);
        else if (*text == '\\')
            fputs("\\e", to);
        else if (*text == '-')
            fputs("\\-", to);
        else if (*text == '"')
            fputs("\\(dq", to);
        else
            fputc(*text, to);
    }
    fputc('\n', to);
}

static const char man_head[] =
    ".TH KVTRUNKD.CONF 5 \"\" \"kvtrunk\" \"File formats\"\n"
    ".SH NAME\n"
    "kvtrunkd.conf \\- configuration of kvtrunkd\n"
    ".SH SYNOPSIS\n"
    "\\fBkvtrunkd \\-\\-config\\fR \\fI/etc/kvtrunk/kvtrunkd.json\\fR\n"
    ".SH DESCRIPTION\n"
    "The configuration is one JSON object whose members are the parameters below. Every one may "
    "be\n"
    "left out; without any configuration the daemon runs on the defaults. Comments are allowed,\n"
    "both as \\fB// ...\\fR and as \\fB/* ... */\\fR. The file has at most 1 MiB.\n"
    ".PP\n"
    "It is read strictly: keys that are not known or stand there twice, numbers such as "
    "\\fB01\\fR,\n"
    "commas before a closing bracket, text behind the end, and parameters that contradict each\n"
    "other are refused before anything is started, with file, line, column, the key, the value,\n"
    "what is allowed, and the known key that is nearest. \\fBkvtrunkd \\-\\-check\\-config\\fR "
    "only\n"
    "checks. \\fBkvtrunkd \\-\\-print\\-config\\fR prints a file with every default and these "
    "texts.\n"
    ".PP\n"
    "Sizes are strings with a unit (\\fB\\(dq64GiB\\(dq\\fR, \\fB\\(dq512MiB\\(dq\\fR), or plain "
    "numbers of\n"
    "bytes. Durations are whole numbers of milliseconds.\n"
    ".PP\n"
    "On \\fBSIGHUP\\fR the daemon reads the file again, takes what it can, and says in its log "
    "what\n"
    "needs a new start.\n"
    ".SH PARAMETERS\n";

static const char man_tail[] = ".SH EXAMPLE\n"
                               ".nf\n"
                               "{\n"
                               "    // for the workers of two users, in 64 GiB\n"
                               "    \\(dqarena\\(dq: \\(dq64GiB\\(dq,\n"
                               "    \\(dqarena_group\\(dq: \\(dqkvtrunk\\(dq,\n"
                               "    \\(dquids\\(dq: [\\(dqvllm\\(dq, \\(dqsglang\\(dq]\n"
                               "}\n"
                               ".fi\n"
                               ".SH SEE ALSO\n"
                               ".BR kvtrunkd (8),\n"
                               ".BR kvtrunk (1)\n";

void params_print_man(FILE *to) {
    char range[160];
    fputs(man_head, to);
    for (size_t i = 0; i < params_n; i++) {
        fprintf(to, ".TP\n\\fB%s\\fR = ", params[i].name);
        print_roff(to, params[i].standard);
        print_roff(to, params[i].text);
        fputs(".br\nAllowed: ", to);
        print_roff(to, param_range(&params[i], range, sizeof range));
        fprintf(to, ".br\nA change %s%s.\n",
                params[i].flags & PARAM_RELOADS ? "is taken on SIGHUP" : "needs a new start",
                tenant_text(&params[i]));
    }
    fputs(man_tail, to);
}

void params_print_config(FILE *to) {
    char range[160];
    fputs("// Configuration of kvtrunkd with all of its defaults; see kvtrunkd.conf(5). Every\n"
          "// parameter may be left out. kvtrunkd --check-config --config FILE checks a file.\n"
          "{\n",
          to);
    for (size_t i = 0; i < params_n; i++) {
        if (i > 0)
            fputc('\n', to);
        print_wrapped(to, "    // ", params[i].text, 96);
        fprintf(to, "    // %s; %s%s\n", param_range(&params[i], range, sizeof range),
                reload_text(&params[i]), tenant_text(&params[i]));
        fprintf(to, "    \"%s\": %s%s\n", params[i].name, params[i].standard,
                i + 1 < params_n ? "," : "");
    }
    fputs("}\n", to);
}
