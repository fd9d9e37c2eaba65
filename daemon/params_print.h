/*
 * params_print.h - what people read about the parameters, made from the table: the second half of
 * --help, kvtrunkd.conf(5), and a configuration file with every default in it.
 */
#ifndef KVT_DAEMON_PARAMS_PRINT_H
#define KVT_DAEMON_PARAMS_PRINT_H

#include "daemon/params.h"

#include <stdio.h>

void params_print_help(FILE *to);   /* --help */
void params_print_man(FILE *to);    /* --print-man */
void params_print_config(FILE *to); /* --print-config */

#endif
