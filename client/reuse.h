/*
 * reuse.h - what a trace has to offer: how many tokens of each request an earlier one had in front,
 * and how many different pages all requests have. It is counted from the trace alone, with a hash
 * set, so that it can be held against what the daemon served: with room for all and one request
 * after another the two are equal to the token.
 *
 * Prefixes are compared by 64-bit hashes (oracle_rows). That is good enough for a report: among ten
 * million prefixes two collide in one run out of some 370,000. The daemon compares tokens.
 */
#ifndef KVT_CLIENT_REUSE_H
#define KVT_CLIENT_REUSE_H

#include "client/kvtrunk.h"

typedef struct reuse reuse;

/*
 * step_tokens: the grain of the count of reuse. 1 for a token stream; the block of a trace of
 * blocks, whose requests can part nowhere else. page_tokens: the grain of the count of pages.
 */
kvt_status reuse_open(uint32_t step_tokens, uint32_t page_tokens, reuse **ret_reuse);
void reuse_close(reuse *r); /* NULL is accepted */

/* Takes in the next request by the hashes of its rows (a multiple of step_tokens). KVT_ENOMEM: it
 * may be counted in part, and the object is only good for reuse_close. */
kvt_status reuse_add(reuse *r, const uint64_t *rows, size_t n_rows);

typedef struct reuse_counts {
    uint64_t requests;
    uint64_t tokens;
    uint64_t tokens_best;  /* of these, in front of an earlier request too */
    uint64_t unique_pages; /* different prefixes that end at a page's end or at a request's */
} reuse_counts;
void reuse_get(const reuse *r, reuse_counts *ret_counts);

#endif
