/*
 * trace.h - reader of request traces: what was asked of a real service, one request after another.
 *
 * Two text formats, gzipped or not, told apart by their first line:
 *
 * PCT1, lines of "t_ms input_tokens output_tokens session runs" behind one header line:
 *     # PCT1 block_tokens=512 requests=2 source=where it comes from
 *     0 1024 500 - 0+2
 *     17 1536 12 u7 0+1,2+2
 *   A run first+count stands for the ids first, first + 1, ...; no runs at all are a "-", as is an
 *   unknown session. An id is a block of block_tokens tokens, and stands for everything in front of
 *   it too. The last block counts as full, or is left out where it is not.
 *
 * Token streams, one JSON object a line, members in this order, i rising from 0 by 1:
 *     {"i":0,"t":0,"s":"u7","out":67,"ref":-1,"common":0,"new":[5,6,7]}
 *     {"i":1,"t":9,"s":"u7","out":12,"ref":0,"common":2,"new":[8]}
 *   The tokens of a request are the first `common` ones of the earlier request `ref` and then
 * `new`. ref is -1 when common is 0. So the second request above is 5, 6, 8.
 *
 * The reader is strict: a number with a leading zero, a space too many, a time that goes back, an
 * id over 32 bits, a request too many or too few, input_tokens that are not those of the blocks are
 * refused, with the line's number (from 1) and what is wrong with it. A gzip file that is cut short
 * or damaged is refused too.
 *
 * It streams: PCT1 takes the memory of one line and one request, a token stream that of all its
 * `new` tokens, since any earlier request may be referred to. A trace is used by one thread.
 */
#ifndef KVT_CLIENT_TRACE_H
#define KVT_CLIENT_TRACE_H

#include "client/kvtrunk.h"

enum {
    TRACE_MAX_LINE_BYTES = 64 << 20,
    TRACE_MAX_BLOCK_TOKENS = 1 << 16,
    TRACE_MAX_SESSION_BYTES = 63,
    TRACE_MAX_SOURCE_BYTES = 255,
    /* The tokens of one request are at most KVT_MAX_REQUEST_TOKENS. */
};

typedef struct trace trace;

typedef enum trace_kind {
    TRACE_PCT1 = 1,
    TRACE_TOKENS = 2,
} trace_kind;

typedef struct trace_info {
    trace_kind kind;
    uint32_t block_tokens; /* of PCT1; 0 for a token stream */
    uint64_t n_requests;   /* that the header of PCT1 promises; 0 for a token stream */
    char source[TRACE_MAX_SOURCE_BYTES + 1];
} trace_info;

/* One request. The pointers are the trace's and are valid until its next call. */
typedef struct trace_request {
    uint64_t number; /* from 0 */
    uint64_t line;   /* from 1 */
    uint64_t t_ms;
    const char *session; /* "" if unknown */
    uint32_t output_tokens;
    uint32_t n_tokens;
    const uint32_t *tokens; /* NULL after trace_skip */
} trace_request;

/*
 * Opens a trace and reads its first line. KVT_ENOENT: no such file; KVT_EDENIED, KVT_EIO: it cannot
 * be read; KVT_ESYNTAX: it is no trace; KVT_ENOMEM. All with a sentence in why (may be NULL).
 */
kvt_status trace_open(const char *path, char *why, size_t why_bytes, trace **ret_trace);

/* NULL is accepted. */
void trace_close(trace *t);

void trace_info_get(const trace *t, trace_info *ret_info);

/*
 * The next request. KVT_ENOENT: that was all, and the file is whole. KVT_ESYNTAX: a broken line;
 * KVT_ELIMIT: a line or request over the limits; KVT_EIO: the file; KVT_ENOMEM; trace_why tells
 * more. After a failure every further call gives the same again.
 */
kvt_status trace_next(trace *t, trace_request *ret_request);

/* The same, checked as strictly, without making the tokens: for a reader that wants every nth. */
kvt_status trace_skip(trace *t, trace_request *ret_request);

/* What was wrong ("line 17, column 9: ..."), or "". Valid until the trace is closed. */
const char *trace_why(const trace *t);

/*
 * Token `position` of the block `id` of PCT1. The first is the id itself, so that two blocks differ
 * at once and no chance match blurs a count; the others are the upper half of splitmix64's mix of
 * id * 2^32 + position.
 */
static inline uint32_t trace_block_token(uint32_t id, uint32_t position) {
    uint64_t z = ((uint64_t)id << 32 | position) + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z = z ^ (z >> 31);
    return position == 0 ? id : (uint32_t)(z >> 32);
}

#endif
