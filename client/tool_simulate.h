/*
 * tool_simulate.h - between the parts of `kvtrunk simulate`:
 *
 *   tool_simulate.c         reads the options, runs what is asked for, prints it
 *   tool_simulate_trace.c   a trace as the numbers of its pages
 *   tool_simulate_run.c     the daemon's tree and policy over these, without payload
 *   tool_simulate_opt.c     the best that could be done by one who knows the future
 */
#ifndef KVT_CLIENT_TOOL_SIMULATE_H
#define KVT_CLIENT_TOOL_SIMULATE_H

#include "client/tool.h"
#include "daemon/policy.h"

enum { SIM_MAX_RUNGS = 4, SIM_MAX_SETS = 16 };

/*
 * A trace as pages. A page is numbered from 0 in the order of appearance and stands for everything
 * in front of it too. Of a trace of blocks that are larger than a page, one number stands for all
 * pages of a block, unless the pages were asked for: a block is found whole or not at all.
 */
typedef struct sim_trace {
    uint32_t *pages;    /* of one request after another, [n_asked] */
    uint64_t *starts;   /* of each request in pages, [n_requests + 1] */
    uint32_t *n_tokens; /* of each different page, [n_pages] */
    uint64_t n_asked;
    uint32_t n_requests;
    uint32_t n_pages;
    uint64_t tokens_asked;
    uint32_t full_tokens; /* of a full one of these */
    uint32_t page_tokens; /* of the pages that its bytes are counted in */
    double hours;         /* from the first request to the last */
} sim_trace;

/* page_tokens 0: as the trace suggests. n_requests 0: all. Fails with a message and an exit code.
 */
int sim_trace_read(const char *path, uint32_t page_tokens, uint64_t n_requests,
                   sim_trace *ret_trace);
void sim_trace_free(sim_trace *t);

/* What a page of so many tokens takes: bytes of a full one, in proportion. */
static inline uint64_t sim_bytes(uint64_t full_bytes, uint32_t n_tokens, uint32_t full_tokens) {
    return n_tokens == full_tokens ? full_bytes
                                   : (full_bytes * n_tokens + full_tokens - 1) / full_tokens;
}

typedef struct sim_setting {
    uint64_t capacity_bytes;
    policy_rule rule;
    uint32_t n_rungs;                   /* 1: one codec set; more: a ladder */
    uint64_t full_bytes[SIM_MAX_RUNGS]; /* of a page under each */
} sim_setting;

typedef struct sim_result {
    uint64_t tokens_found;
    uint64_t evictions;  /* pages */
    uint64_t cooled;     /* pages that were put into fewer bits */
    uint64_t pages_most; /* that were kept at the same time */
} sim_result;

/* KVT_ENOMEM; KVT_EINVAL: not even one page fits. */
kvt_status sim_run(const sim_trace *t, const sim_setting *setting, sim_result *ret_result);
kvt_status sim_run_opt(const sim_trace *t, const sim_setting *setting, sim_result *ret_result);

#endif
