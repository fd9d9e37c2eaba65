/* main.c - kvtrunkd: what the command line asks for. */
#include "daemon/disk_helper.h"
#include "daemon/arena_open.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/params_print.h"
#include "daemon/shell.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char help[] =
    "kvtrunkd keeps the KV cache of prompts that the inference workers of this machine share.\n"
    "\n"
    "Usage: kvtrunkd [OPTION]...\n"
    "\n"
    "  --config FILE      read the configuration from FILE; without, all defaults hold\n"
    "  --set KEY=VALUE    set a parameter; counts more than the file; may be repeated\n"
    "  --socket PATH      the same as --set socket=PATH\n"
    "  --ready-fd N       write \"READY\\n\" to file descriptor N when workers can connect, close "
    "it\n"
    "  --check-config     check the configuration and end\n"
    "  --print-config     print a configuration with every default and what it means\n"
    "  --print-man        print kvtrunkd.conf(5)\n"
    "  --version          print the version\n"
    "  --help             print this\n"
    "\n"
    "Without any option it serves the user who started it, in the memory of a GPU if there is one\n"
    "that works, else in shared host memory.\n"
    "SIGTERM and SIGINT end it in order, SIGHUP reads the configuration again.\n"
    "Exit codes: 0 ended in order, 1 failed, 2 command line, 3 configuration, 4 socket's path,\n"
    "5 memory, 6 a GPU failed.\n"
    "\n"
    "Try:  kvtrunkd --socket /tmp/kvtrunk.sock &\n"
    "      KVTRUNK_SOCKET=/tmp/kvtrunk.sock kvtrunk status\n"
    "\n";

/* Messages about bad input look like a compiler's: "kvtrunkd: FILE:LINE:COLUMN: what". */
static int refuse(int code, const char *why) {
    log_write(LOG_ERROR, "%s", why);
    return code;
}

static int printed(void) {
    /* "--help | head" must not look like success when nothing could be written */
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

static int serve(const options *o, const config *c) {
    static shell sh; /* large, and alive for as long as the process */
    log_set_level((log_level)c->values.log_level);
    notify_open();
    int code = shell_open(&sh, o, c);
    if (code == EXIT_CODE_OK)
        code = shell_run(&sh);
    else if (sh.is_stopped)
        code = EXIT_CODE_OK;
    shell_close(&sh, code);
    if (code == EXIT_CODE_OK)
        log_write(LOG_INFO, "stopped");
    return code;
}

/* Is the ladder one, and are there the groups that arenas are to be given to? Not a matter of the
 * file alone, so the configuration's own check does not ask. */
static kvt_status values_check(const config *c, char *why, size_t why_bytes) {
    uint32_t gid;
    kvt_status status = core_ladder_check(c->values.ladder, why, why_bytes);
    if (status == KVT_OK)
        status = arena_group_gid(c->values.arena_group, &gid, why, why_bytes);
    for (uint32_t i = 0; i < c->n_tenants && status == KVT_OK; i++)
        status = arena_group_gid(c->tenants[i].values.arena_group, &gid, why, why_bytes);
    return status;
}

int main(int argc, char **argv) {
    char why[CONFIG_WHY_BYTES];
    static options o;
    static config c;
    disk_helper_main(argc, argv);
    log_open();
    if (options_read(argc, argv, &o, why, sizeof why) != KVT_OK) {
        refuse(EXIT_CODE_USAGE, why);
        fputs("Try kvtrunkd --help\n", stderr);
        return EXIT_CODE_USAGE;
    }
    switch (o.task) {
    case TASK_HELP:
        fputs(help, stdout);
        params_print_help(stdout);
        return printed();
    case TASK_PRINT_CONFIG:
        params_print_config(stdout);
        return printed();
    case TASK_PRINT_MAN:
        params_print_man(stdout);
        return printed();
    case TASK_VERSION:
        printf("kvtrunkd %d.%d.%d\n", KVT_VERSION_MAJOR, KVT_VERSION_MINOR, KVT_VERSION_PATCH);
        return printed();
    case TASK_SERVE:
    case TASK_CHECK_CONFIG:
        break;
    }
    if (options_config(&o, (uint32_t)geteuid(), &c, why, sizeof why) != KVT_OK)
        return refuse(EXIT_CODE_CONFIG, why);
    if (values_check(&c, why, sizeof why) != KVT_OK)
        return refuse(EXIT_CODE_CONFIG, why);
    if (o.task == TASK_CHECK_CONFIG) {
        printf("the configuration is good\n");
        return printed();
    }
    return serve(&o, &c);
}
