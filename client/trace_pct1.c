/* trace_pct1.c - the lines of PCT1. */
#include <stdlib.h>
#include <string.h>

#include "client/trace_state.h"

/* Words for people: something, without blanks around it, and nothing that a terminal obeys. */
static kvt_status take_source(trace *t, trace_cursor *cursor) {
    size_t n = (size_t)(cursor->end - cursor->at);
    if (n > TRACE_MAX_SOURCE_BYTES) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "source is over %d bytes long",
                          TRACE_MAX_SOURCE_BYTES);
    }
    if (n == 0) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "source is empty: say where the trace is from");
    }
    if (*cursor->at == ' ' || cursor->end[-1] == ' ') {
        return trace_fail(t, KVT_ESYNTAX, cursor, "source begins or ends with a space");
    }
    memcpy(t->info.source, cursor->at, n);
    t->info.source[n] = '\0';
    for (; cursor->at < cursor->end; cursor->at++) {
        unsigned char c = (unsigned char)*cursor->at;
        if (c < ' ' || c == 127) {
            return trace_fail(t, KVT_ESYNTAX, cursor, "byte 0x%02x in source", c);
        }
    }
    return KVT_OK;
}

/* # PCT1 block_tokens=512 requests=12031 source=... */
kvt_status trace_pct1_header(trace *t) {
    trace_cursor cursor = trace_line_start(t);
    uint64_t block_tokens, n_requests;
    kvt_status status = trace_expect(t, &cursor, "# PCT1 block_tokens=");
    if (status != KVT_OK ||
        (status = trace_number(t, &cursor, "block_tokens", TRACE_MAX_BLOCK_TOKENS,
                               &block_tokens)) != KVT_OK) {
        return status;
    }
    if (block_tokens == 0) {
        return trace_fail(t, KVT_ESYNTAX, &cursor, "block_tokens is 0; from 1 to %d",
                          TRACE_MAX_BLOCK_TOKENS);
    }
    if ((status = trace_expect(t, &cursor, " requests=")) != KVT_OK ||
        (status = trace_number(t, &cursor, "requests", UINT32_MAX, &n_requests)) != KVT_OK ||
        (status = trace_expect(t, &cursor, " source=")) != KVT_OK ||
        (status = take_source(t, &cursor)) != KVT_OK) {
        return status;
    }
    t->info.block_tokens = (uint32_t)block_tokens;
    t->info.n_requests = n_requests;
    return KVT_OK;
}

/* One first+count. *n_blocks grows by count. */
static kvt_status read_run(trace *t, trace_cursor *cursor, uint64_t *n_blocks) {
    uint64_t first, n_ids;
    kvt_status status = trace_number(t, cursor, "id", UINT32_MAX, &first);
    if (status != KVT_OK || (status = trace_expect(t, cursor, "+")) != KVT_OK) {
        return status;
    }
    trace_cursor count = *cursor;
    status = trace_number(t, cursor, "count of ids", UINT32_MAX, &n_ids);
    if (status != KVT_OK) {
        return status;
    }
    if (n_ids == 0) {
        return trace_fail(t, KVT_ESYNTAX, &count, "count of ids is 0");
    }
    if (first + n_ids - 1 > UINT32_MAX) {
        return trace_fail(t, KVT_ESYNTAX, &count, "ids go over %u", UINT32_MAX);
    }
    *n_blocks += n_ids;
    if (*n_blocks * t->info.block_tokens > KVT_MAX_REQUEST_TOKENS) {
        return trace_fail(t, KVT_ELIMIT, &count, "a request of more than %d tokens",
                          KVT_MAX_REQUEST_TOKENS);
    }
    trace_pct1_state *s = &t->pct1;
    if (!trace_reserve((void **)&s->runs, &s->runs_room, s->n_runs + 1, sizeof *s->runs)) {
        return trace_fail(t, KVT_ENOMEM, NULL, "no memory for %zu runs", s->n_runs + 1);
    }
    s->runs[s->n_runs++] = (trace_run){.first = (uint32_t)first, .n_ids = (uint32_t)n_ids};
    return KVT_OK;
}

static kvt_status read_runs(trace *t, trace_cursor *cursor, uint32_t *ret_tokens) {
    uint64_t n_blocks = 0;
    t->pct1.n_runs = 0;
    if (cursor->end - cursor->at == 1 && *cursor->at == '-') {
        *ret_tokens = 0;
        return KVT_OK;
    }
    for (;;) {
        kvt_status status = read_run(t, cursor, &n_blocks);
        if (status != KVT_OK) {
            return status;
        }
        if (cursor->at == cursor->end) {
            break;
        }
        if ((status = trace_expect(t, cursor, ",")) != KVT_OK) {
            return status;
        }
    }
    *ret_tokens = (uint32_t)(n_blocks * t->info.block_tokens);
    return KVT_OK;
}

static kvt_status read_session(trace *t, trace_cursor *cursor) {
    const char *space = memchr(cursor->at, ' ', (size_t)(cursor->end - cursor->at));
    size_t n = (size_t)((space == NULL ? cursor->end : space) - cursor->at);
    if (n == 0) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "expected a session, or - if it is not known");
    }
    kvt_status status = trace_take_session(t, cursor, n);
    if (status == KVT_OK && strcmp(t->session, "-") == 0) {
        t->session[0] = '\0';
    }
    return status;
}

/* The last block may have been left out where it is not full. Anything else is a header of another
 * trace, and every figure would be off. */
static kvt_status check_blocks(trace *t, const trace_cursor *place, uint64_t input_tokens,
                               uint32_t n_tokens) {
    uint64_t block_tokens = t->info.block_tokens, n_blocks = n_tokens / block_tokens;
    uint64_t full = input_tokens / block_tokens;
    if (n_blocks == full || (n_blocks == full + 1 && input_tokens % block_tokens != 0)) {
        return KVT_OK;
    }
    return trace_fail(t, KVT_ESYNTAX, place,
                      "input_tokens is %llu, but %llu blocks of %llu tokens are named: is "
                      "block_tokens of the header right?",
                      (unsigned long long)input_tokens, (unsigned long long)n_blocks,
                      (unsigned long long)block_tokens);
}

/* t_ms input_tokens output_tokens session runs */
kvt_status trace_pct1_line(trace *t, trace_request *request) {
    trace_cursor cursor = trace_line_start(t), time = cursor;
    uint64_t t_ms, input_tokens, output_tokens;
    if (t->n_requests == t->info.n_requests) {
        return trace_fail(t, KVT_ESYNTAX, NULL, "a request more than the %llu of the header",
                          (unsigned long long)t->info.n_requests);
    }
    kvt_status status = trace_number(t, &cursor, "t_ms", TRACE_MAX_T_MS, &t_ms);
    if (status != KVT_OK || (status = trace_take_time(t, &time, t_ms)) != KVT_OK ||
        (status = trace_expect(t, &cursor, " ")) != KVT_OK) {
        return status;
    }
    trace_cursor input = cursor;
    if ((status = trace_number(t, &cursor, "input_tokens", UINT32_MAX, &input_tokens)) != KVT_OK ||
        (status = trace_expect(t, &cursor, " ")) != KVT_OK ||
        (status = trace_number(t, &cursor, "output_tokens", UINT32_MAX, &output_tokens)) !=
            KVT_OK ||
        (status = trace_expect(t, &cursor, " ")) != KVT_OK ||
        (status = read_session(t, &cursor)) != KVT_OK ||
        (status = trace_expect(t, &cursor, " ")) != KVT_OK ||
        (status = read_runs(t, &cursor, &request->n_tokens)) != KVT_OK ||
        (status = check_blocks(t, &input, input_tokens, request->n_tokens)) != KVT_OK) {
        return status;
    }
    request->t_ms = t_ms;
    request->output_tokens = (uint32_t)output_tokens;
    return KVT_OK;
}

void trace_pct1_expand(const trace *t, uint32_t *to) {
    uint32_t block_tokens = t->info.block_tokens;
    for (size_t r = 0; r < t->pct1.n_runs; r++) {
        const trace_run *run = &t->pct1.runs[r];
        for (uint32_t i = 0; i < run->n_ids; i++) {
            for (uint32_t position = 0; position < block_tokens; position++) {
                *to++ = trace_block_token(run->first + i, position);
            }
        }
    }
}

void trace_pct1_free(trace *t) {
    free(t->pct1.runs);
}
