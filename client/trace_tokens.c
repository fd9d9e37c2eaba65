/*
 * trace_tokens.c - the lines of a token stream. They are JSON, but of one fixed shape, which is
 * read as such: whoever reads a request with 100,000 tokens should not build 100,000 objects first.
 */
#include <stdlib.h>
#include <string.h>

#include "client/trace_state.h"

/* Steps over `"name":`, with what JSON allows between: spaces. first: behind `{`, not behind `,`.
 */
static void skip_spaces(trace_cursor *cursor) {
    while (cursor->at < cursor->end && (*cursor->at == ' ' || *cursor->at == '\t')) {
        cursor->at++;
    }
}

static kvt_status expect_mark(trace *t, trace_cursor *cursor, const char *mark) {
    skip_spaces(cursor);
    kvt_status status = trace_expect(t, cursor, mark);
    skip_spaces(cursor);
    return status;
}

static kvt_status expect_name(trace *t, trace_cursor *cursor, const char *before,
                              const char *name) {
    kvt_status status = expect_mark(t, cursor, before);
    if (status != KVT_OK || (status = trace_expect(t, cursor, name)) != KVT_OK) {
        return status;
    }
    return expect_mark(t, cursor, ":");
}

static kvt_status read_number(trace *t, trace_cursor *cursor, const char *name, uint64_t max,
                              uint64_t *ret_value) {
    char quoted[16];
    size_t n = strlen(name);
    quoted[0] = '"';
    memcpy(quoted + 1, name, n);
    memcpy(quoted + 1 + n, "\"", 2);
    kvt_status status = expect_name(t, cursor, strcmp(name, "i") == 0 ? "{" : ",", quoted);
    return status != KVT_OK ? status : trace_number(t, cursor, name, max, ret_value);
}

/* A session has no use for escapes, and one that holds them is refused: then its bytes are itself.
 */
static kvt_status read_session(trace *t, trace_cursor *cursor) {
    kvt_status status = expect_name(t, cursor, ",", "\"s\"");
    if (status != KVT_OK || (status = trace_expect(t, cursor, "\"")) != KVT_OK) {
        return status;
    }
    size_t left = (size_t)(cursor->end - cursor->at);
    const char *quote = memchr(cursor->at, '"', left);
    if (quote == NULL) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "the session has no closing quote");
    }
    size_t n = (size_t)(quote - cursor->at);
    if (memchr(cursor->at, '\\', n) != NULL) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "a backslash in a session");
    }
    status = trace_take_session(t, cursor, n);
    return status != KVT_OK ? status : trace_expect(t, cursor, "\"");
}

/* "ref" and "common", which must agree with each other and with the request they name. */
static kvt_status read_reference(trace *t, trace_cursor *cursor, trace_kept *ret_kept) {
    const trace_tokens_state *s = &t->stream;
    uint64_t ref = 0, common;
    kvt_status status = expect_name(t, cursor, ",", "\"ref\"");
    if (status != KVT_OK) {
        return status;
    }
    trace_cursor place = *cursor;
    bool none = cursor->at < cursor->end && *cursor->at == '-';
    status =
        none ? trace_expect(t, cursor, "-1") : trace_number(t, cursor, "ref", UINT32_MAX, &ref);
    if (status != KVT_OK) {
        return status;
    }
    if (!none && ref >= s->n_requests) {
        return trace_fail(t, KVT_ESYNTAX, &place, "ref %llu is no earlier request",
                          (unsigned long long)ref);
    }
    if ((status = expect_name(t, cursor, ",", "\"common\"")) != KVT_OK) {
        return status;
    }
    place = *cursor;
    status = trace_number(t, cursor, "common", UINT32_MAX, &common);
    if (status != KVT_OK) {
        return status;
    }
    if (none != (common == 0)) {
        return trace_fail(t, KVT_ESYNTAX, &place, "ref is -1 exactly when common is 0");
    }
    if (!none && common > s->requests[ref].common + s->requests[ref].n_new) {
        return trace_fail(t, KVT_ESYNTAX, &place, "common is %llu, but request %llu has %u tokens",
                          (unsigned long long)common, (unsigned long long)ref,
                          s->requests[ref].common + s->requests[ref].n_new);
    }
    ret_kept->ref = (uint32_t)ref;
    ret_kept->common = (uint32_t)common;
    return KVT_OK;
}

static kvt_status append_token(trace *t, const trace_cursor *place, trace_kept *kept,
                               uint64_t token) {
    trace_tokens_state *s = &t->stream;
    if (kept->common + kept->n_new == KVT_MAX_REQUEST_TOKENS) {
        return trace_fail(t, KVT_ELIMIT, place, "a request of more than %d tokens",
                          KVT_MAX_REQUEST_TOKENS);
    }
    if (!trace_reserve((void **)&s->kept, &s->kept_room, s->n_kept + 1, sizeof *s->kept)) {
        return trace_fail(t, KVT_ENOMEM, NULL, "no memory for %zu tokens", s->n_kept + 1);
    }
    s->kept[s->n_kept++] = (uint32_t)token;
    kept->n_new++;
    return KVT_OK;
}

static kvt_status read_new(trace *t, trace_cursor *cursor, trace_kept *kept) {
    kvt_status status = expect_name(t, cursor, ",", "\"new\"");
    if (status != KVT_OK || (status = expect_mark(t, cursor, "[")) != KVT_OK) {
        return status;
    }
    if (cursor->at < cursor->end && *cursor->at == ']') {
        return expect_mark(t, cursor, "]");
    }
    for (;;) {
        trace_cursor place = *cursor;
        uint64_t token;
        status = trace_number(t, cursor, "token", UINT32_MAX, &token);
        if (status != KVT_OK || (status = append_token(t, &place, kept, token)) != KVT_OK) {
            return status;
        }
        skip_spaces(cursor);
        if (cursor->at < cursor->end && *cursor->at == ']') {
            return expect_mark(t, cursor, "]");
        }
        if ((status = expect_mark(t, cursor, ",")) != KVT_OK) {
            return status;
        }
    }
}

static kvt_status keep(trace *t, const trace_kept *kept) {
    trace_tokens_state *s = &t->stream;
    if (!trace_reserve((void **)&s->requests, &s->requests_room, s->n_requests + 1,
                       sizeof *s->requests)) {
        return trace_fail(t, KVT_ENOMEM, NULL, "no memory for %zu requests", s->n_requests + 1);
    }
    s->requests[s->n_requests++] = *kept;
    return KVT_OK;
}

/* {"i":0,"t":2146,"s":"18","out":67,"ref":-1,"common":0,"new":[0,1,2]} */
kvt_status trace_tokens_line(trace *t, trace_request *request) {
    trace_cursor cursor = trace_line_start(t);
    uint64_t i, t_ms, output_tokens;
    trace_kept kept = {.new_at = t->stream.n_kept};
    kvt_status status = read_number(t, &cursor, "i", UINT32_MAX - 1, &i);
    if (status != KVT_OK) {
        return status;
    }
    if (i != t->n_requests) {
        return trace_fail(t, KVT_ESYNTAX, &cursor, "i is %llu, expected %llu",
                          (unsigned long long)i, (unsigned long long)t->n_requests);
    }
    if ((status = read_number(t, &cursor, "t", TRACE_MAX_T_MS, &t_ms)) != KVT_OK ||
        (status = trace_take_time(t, &cursor, t_ms)) != KVT_OK ||
        (status = read_session(t, &cursor)) != KVT_OK ||
        (status = read_number(t, &cursor, "out", UINT32_MAX, &output_tokens)) != KVT_OK ||
        (status = read_reference(t, &cursor, &kept)) != KVT_OK ||
        (status = read_new(t, &cursor, &kept)) != KVT_OK ||
        (status = expect_mark(t, &cursor, "}")) != KVT_OK) {
        return status;
    }
    if (cursor.at != cursor.end) {
        return trace_fail(t, KVT_ESYNTAX, &cursor, "something behind the closing brace");
    }
    request->t_ms = t_ms;
    request->output_tokens = (uint32_t)output_tokens;
    request->n_tokens = kept.common + kept.n_new;
    return keep(t, &kept);
}

/*
 * The last request's tokens. Each request on the chain of references gives the part between where
 * its own common part ends and where the one that refers to it stops:
 *
 *     last      |......common......|== new ==|
 *     its ref   |..common..|== new ==|           gives [common, last's common)
 *     its ref   |== new ==========|              gives [0, common)
 */
void trace_tokens_expand(const trace *t, uint32_t *to) {
    const trace_tokens_state *s = &t->stream;
    const trace_kept *kept = &s->requests[s->n_requests - 1];
    uint32_t end = kept->common + kept->n_new;
    for (;;) {
        if (end > kept->common) {
            memcpy(to + kept->common, s->kept + kept->new_at, (end - kept->common) * sizeof *to);
            end = kept->common;
        }
        if (end == 0) {
            return;
        }
        kept = &s->requests[kept->ref];
    }
}

void trace_tokens_free(trace *t) {
    free(t->stream.requests);
    free(t->stream.kept);
}
