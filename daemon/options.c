/* options.c - see options.h. */
#include "daemon/options.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvt_status add_set(options *o, const char *option, const char *key, const char *text,
                          char *why, size_t why_bytes) {
    if (o->n_sets == OPTIONS_MAX_SETS) {
        snprintf(why, why_bytes, "%s: at most %d of these are taken; use a file", option,
                 OPTIONS_MAX_SETS);
        return KVT_EINVAL;
    }
    if (!key && !strchr(text, '=')) {
        snprintf(why, why_bytes, "%s %.64s: it needs KEY=VALUE", option, text);
        return KVT_EINVAL;
    }
    o->sets[o->n_sets].option = option;
    o->sets[o->n_sets].key = key;
    o->sets[o->n_sets++].text = text;
    return KVT_OK;
}

static kvt_status set_ready_fd(options *o, const char *text, char *why, size_t why_bytes) {
    char *end;
    long fd = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || fd > 1 << 20 || fcntl((int)fd, F_GETFD) < 0) {
        snprintf(why, why_bytes, "--ready-fd %s: this is no open file descriptor", text);
        return KVT_EINVAL;
    }
    o->ready_fd = (int)fd;
    return KVT_OK;
}

kvt_status options_read(int argc, char **argv, options *ret_options, char *why, size_t why_bytes) {
    static const struct option names[] = {
        {"config", required_argument, NULL, 'c'}, {"socket", required_argument, NULL, 's'},
        {"set", required_argument, NULL, 'S'},    {"ready-fd", required_argument, NULL, 'r'},
        {"check-config", no_argument, NULL, 'k'}, {"print-config", no_argument, NULL, 'p'},
        {"print-man", no_argument, NULL, 'm'},    {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},      {0},
    };
    options o = {.ready_fd = -1};
    kvt_status status = KVT_OK;
    int name;
    opterr = 0;
    optind = 1;
    while (status == KVT_OK && (name = getopt_long(argc, argv, ":", names, NULL)) != -1) {
        switch (name) {
        case 'c':
            o.config_file = optarg;
            break;
        case 's':
            status = add_set(&o, "--socket", "socket", optarg, why, why_bytes);
            break;
        case 'S':
            status = add_set(&o, "--set", NULL, optarg, why, why_bytes);
            break;
        case 'r':
            status = set_ready_fd(&o, optarg, why, why_bytes);
            break;
        case 'k':
            o.task = TASK_CHECK_CONFIG;
            break;
        case 'p':
            o.task = TASK_PRINT_CONFIG;
            break;
        case 'm':
            o.task = TASK_PRINT_MAN;
            break;
        case 'h':
            o.task = TASK_HELP;
            break;
        case 'V':
            o.task = TASK_VERSION;
            break;
        default:
            snprintf(why, why_bytes, name == ':' ? "%s needs a value" : "%s is no option",
                     argv[optind - 1]);
            status = KVT_EINVAL;
        }
    }
    if (status == KVT_OK && optind < argc) {
        snprintf(why, why_bytes, "\"%s\": there are options only, and this is none", argv[optind]);
        status = KVT_EINVAL;
    }
    if (status == KVT_OK)
        *ret_options = o;
    return status;
}

kvt_status options_config(const options *o, uint32_t own_uid, config *ret_config, char *why,
                          size_t why_bytes) {
    char text[2 * PARAM_MAX_TEXT_BYTES];
    kvt_status status = KVT_OK;
    config_init(ret_config);
    if (o->config_file)
        status = config_read(ret_config, o->config_file, why, why_bytes);
    for (size_t i = 0; i < o->n_sets && status == KVT_OK; i++) {
        const char *set = o->sets[i].text;
        if (o->sets[i].key) {
            snprintf(text, sizeof text, "%s=%s", o->sets[i].key, set);
            set = text;
        }
        status = config_set(ret_config, o->sets[i].option, set, why, why_bytes);
    }
    if (status == KVT_OK)
        status = config_settle(ret_config, why, why_bytes);
    if (status == KVT_OK)
        status = config_check(ret_config, own_uid, why, why_bytes);
    return status;
}
