/*
 * report.h - the texts of STATUS, TREE, PINS and LEASES: JSON, bounded by the room that a message
 * has.
 *
 * STATUS is one object, the others are one object a line. TREE: first each realm, then the runs of
 * pages below it, depth first; a report that was cut short by the room or the number of lines ends
 * with
 * {"truncated":true}. Nothing is ever cut inside a line or a number.
 */
#ifndef KVT_DAEMON_REPORT_H
#define KVT_DAEMON_REPORT_H

#include "daemon/core.h"
#include "daemon/disk.h"
#include "daemon/params.h"

typedef struct report_arena {
    const char *path;
    const char *where;   /* in words */
    const char *failure; /* of its GPU; NULL: it works */
} report_arena;

/* What a report says beside what the core knows. */
typedef struct report_facts {
    const param_values *values; /* configuration in force */
    const char *socket;
    const char *device;         /* "host", "cuda" */
    const report_arena *arenas; /* as the core counts them */
    uint32_t n_arenas;
    const char *config_file; /* "": none */
    uint64_t started_ms;     /* on the clock of now_ms */
    uint64_t listeners_replaced;
    const disk_stats *on_disk; /* NULL: there is none */
} report_facts;

/* Each returns the length, at most room (>= 64). */
size_t report_status(const report_facts *facts, const core *c, uint64_t now_ms, char *to,
                     size_t room);
size_t report_tree(const report_facts *facts, const core *c, uint32_t max_lines, char *to,
                   size_t room);
size_t report_pins(const core *c, uint32_t max_lines, char *to, size_t room);
size_t report_leases(const core *c, uint32_t max_lines, char *to, size_t room);

#endif
