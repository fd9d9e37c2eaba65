/*
 * trace_state.h - what the parts of the trace reader share: trace.c cuts a file into lines,
 * trace_pct1.c and trace_tokens.c each read the lines of one format.
 */
#ifndef KVT_CLIENT_TRACE_STATE_H
#define KVT_CLIENT_TRACE_STATE_H

#include <stdbool.h>

#include "client/trace.h"

/* Where a line is being read. */
typedef struct trace_cursor {
    const char *start;
    const char *at;
    const char *end;
} trace_cursor;

typedef struct trace_run {
    uint32_t first;
    uint32_t n_ids;
} trace_run;

/* What is kept of a request of a token stream: its new tokens are kept[new_at .. new_at + n_new).
 */
typedef struct trace_kept {
    uint32_t ref;
    uint32_t common; /* leading tokens that are ref's; 0: ref means nothing */
    uint32_t n_new;
    size_t new_at;
} trace_kept;

typedef struct trace_pct1_state {
    trace_run *runs;
    size_t n_runs;
    size_t runs_room;
} trace_pct1_state;

typedef struct trace_tokens_state {
    trace_kept *requests;
    size_t n_requests;
    size_t requests_room;
    uint32_t *kept;
    size_t n_kept;
    size_t kept_room;
} trace_tokens_state;

struct trace {
    trace_info info;
    struct gzFile_s *file;
    char *line; /* the line being read, without its end */
    size_t line_bytes;
    size_t line_room;
    uint64_t line_number; /* of it, from 1 */
    bool line_waits;      /* it was read to find out the format, and is to be read again */
    char *chunk;          /* what was inflated: chunk[chunk_at .. chunk_end) is still to be cut */
    size_t chunk_at;
    size_t chunk_end;
    uint64_t n_requests; /* read so far */
    uint64_t last_t_ms;
    uint32_t *tokens; /* of the last request */
    size_t tokens_room;
    kvt_status broken; /* the first failure; every later call repeats it */
    char session[TRACE_MAX_SESSION_BYTES + 1];
    char why[320];
    trace_pct1_state pct1;
    trace_tokens_state stream;
};

/* Each checks the whole line and fills in all of *request but its tokens; they are made by the
 * second, into t->tokens, which has room for them by then. */
kvt_status trace_pct1_header(trace *t);
kvt_status trace_pct1_line(trace *t, trace_request *request);
void trace_pct1_expand(const trace *t, uint32_t *to);
void trace_pct1_free(trace *t);

kvt_status trace_tokens_line(trace *t, trace_request *request);
void trace_tokens_expand(const trace *t, uint32_t *to);
void trace_tokens_free(trace *t);

/* --- helpers of both -----------------------------------------------------------------------------
 */

/* Writes "line N, column C: " and the message to t->why, and returns status. cursor NULL: no
 * column. */
kvt_status trace_fail(trace *t, kvt_status status, const trace_cursor *cursor, const char *format,
                      ...) __attribute__((format(printf, 4, 5)));

/* A cursor over the whole of the current line. */
trace_cursor trace_line_start(const trace *t);

/* Steps over exactly this text, or refuses. */
kvt_status trace_expect(trace *t, trace_cursor *cursor, const char *text);

/* Reads a decimal number of at most max: digits only, no leading zero. name is for the message. */
kvt_status trace_number(trace *t, trace_cursor *cursor, const char *name, uint64_t max,
                        uint64_t *ret_value);

/* Takes n bytes from the cursor as the session: printable ASCII, at most TRACE_MAX_SESSION_BYTES.
 */
kvt_status trace_take_session(trace *t, trace_cursor *cursor, size_t n_bytes);

/* Refuses a time that lies before that of the request in front. */
kvt_status trace_take_time(trace *t, const trace_cursor *cursor, uint64_t t_ms);

/* Makes room for n elements, at least doubling. False: no memory; *array is as it was. */
bool trace_reserve(void **array, size_t *room, size_t n, size_t element_bytes);

#define TRACE_MAX_T_MS UINT64_C(1000000000000000) /* 31,000 years */

#endif
