/* trace.c - a file, gzipped or not, cut into lines; and what both formats need. */
#include "client/trace.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "client/trace_state.h"

enum { CHUNK_BYTES = 1 << 16, FIRST_LINE_BYTES = 1 << 12 };

/* --- helpers of both formats ---------------------------------------------------------------------
 */

kvt_status trace_fail(trace *t, kvt_status status, const trace_cursor *cursor, const char *format,
                      ...) {
    int n = cursor == NULL
                ? snprintf(t->why, sizeof t->why, "line %llu: ", (unsigned long long)t->line_number)
                : snprintf(t->why, sizeof t->why,
                           "line %llu, column %zu: ", (unsigned long long)t->line_number,
                           (size_t)(cursor->at - cursor->start) + 1);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->why + n, sizeof t->why - (size_t)n, format, arguments);
    va_end(arguments);
    return status;
}

trace_cursor trace_line_start(const trace *t) {
    return (trace_cursor){.start = t->line, .at = t->line, .end = t->line + t->line_bytes};
}

/* What stands at the cursor, for a message: a character, its code, or that the line ends. */
static const char *what_is_here(const trace_cursor *cursor, char *room, size_t room_bytes) {
    if (cursor->at == cursor->end) {
        return "the end of the line";
    }
    unsigned char c = (unsigned char)*cursor->at;
    snprintf(room, room_bytes, c > ' ' && c < 127 ? "'%c'" : "byte 0x%02x", c);
    return c == ' ' ? "a space" : room;
}

kvt_status trace_expect(trace *t, trace_cursor *cursor, const char *text) {
    char here[16];
    size_t n = strlen(text);
    if ((size_t)(cursor->end - cursor->at) < n || memcmp(cursor->at, text, n) != 0) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "expected '%s', found %s", text,
                          what_is_here(cursor, here, sizeof here));
    }
    cursor->at += n;
    return KVT_OK;
}

kvt_status trace_number(trace *t, trace_cursor *cursor, const char *name, uint64_t max,
                        uint64_t *ret_value) {
    char here[16];
    const char *at = cursor->at;
    uint64_t value = 0;
    while (at < cursor->end && *at >= '0' && *at <= '9') {
        unsigned digit = (unsigned)(*at - '0');
        if (value > (max - digit) / 10) { /* max is at least 9 everywhere */
            return trace_fail(t, KVT_ESYNTAX, cursor, "%s is over %llu", name,
                              (unsigned long long)max);
        }
        value = value * 10 + digit;
        at++;
    }
    if (at == cursor->at) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "expected a number (%s), found %s", name,
                          what_is_here(cursor, here, sizeof here));
    }
    if (*cursor->at == '0' && at - cursor->at > 1) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "%s has a leading zero", name);
    }
    cursor->at = at;
    *ret_value = value;
    return KVT_OK;
}

kvt_status trace_take_session(trace *t, trace_cursor *cursor, size_t n_bytes) {
    if (n_bytes > TRACE_MAX_SESSION_BYTES) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "session is %zu bytes long; at most %d", n_bytes,
                          TRACE_MAX_SESSION_BYTES);
    }
    char here[16];
    for (size_t i = 0; i < n_bytes; i++, cursor->at++) {
        if (*cursor->at <= ' ' || *cursor->at > '~') {
            return trace_fail(t, KVT_ESYNTAX, cursor, "%s in a session",
                              what_is_here(cursor, here, sizeof here));
        }
        t->session[i] = *cursor->at;
    }
    t->session[n_bytes] = '\0';
    return KVT_OK;
}

kvt_status trace_take_time(trace *t, const trace_cursor *cursor, uint64_t t_ms) {
    if (t_ms < t->last_t_ms) {
        return trace_fail(t, KVT_ESYNTAX, cursor, "time %llu goes back behind %llu",
                          (unsigned long long)t_ms, (unsigned long long)t->last_t_ms);
    }
    t->last_t_ms = t_ms;
    return KVT_OK;
}

bool trace_reserve(void **array, size_t *room, size_t n, size_t element_bytes) {
    if (n <= *room) {
        return true;
    }
    size_t more = *room < 64 ? 64 : *room;
    while (more < n && more <= SIZE_MAX / 4 / element_bytes) {
        more *= 2;
    }
    void *grown = more < n ? NULL : realloc(*array, more * element_bytes);
    if (grown == NULL) {
        return false;
    }
    *array = grown;
    *room = more;
    return true;
}

/* --- lines
 * ---------------------------------------------------------------------------------------- */

/* Inflates the next chunk. KVT_ENOENT: the file is over, and was whole. */
static kvt_status fill_chunk(trace *t) {
    errno = 0;
    int n = gzread(t->file, t->chunk, CHUNK_BYTES);
    t->chunk_at = 0;
    t->chunk_end = n > 0 ? (size_t)n : 0;
    if (n > 0) {
        return KVT_OK;
    }
    /* A file that ends inside a gzip stream reads as a short file and an error on the side. */
    int code = Z_OK;
    const char *text = gzerror(t->file, &code);
    if (n == 0 && (code == Z_OK || code == Z_STREAM_END)) {
        return KVT_ENOENT;
    }
    t->line_number++;
    if (code == Z_MEM_ERROR) {
        return trace_fail(t, KVT_ENOMEM, NULL, "no memory to inflate the file");
    }
    if (code == Z_ERRNO) {
        return trace_fail(t, KVT_EIO, NULL, "the file cannot be read: %s", strerror(errno));
    }
    return trace_fail(t, KVT_EIO, NULL, "the compressed file %s (%s)",
                      code == Z_BUF_ERROR ? "is cut short" : "is damaged", text);
}

static kvt_status append_to_line(trace *t, const char *from, size_t n_bytes) {
    if (t->line_bytes + n_bytes > TRACE_MAX_LINE_BYTES) {
        t->line_number++;
        return trace_fail(t, KVT_ELIMIT, NULL, "longer than %d bytes", TRACE_MAX_LINE_BYTES);
    }
    if (!trace_reserve((void **)&t->line, &t->line_room, t->line_bytes + n_bytes, 1)) {
        t->line_number++;
        return trace_fail(t, KVT_ENOMEM, NULL, "no memory for a line of %zu bytes",
                          t->line_bytes + n_bytes);
    }
    memcpy(t->line + t->line_bytes, from, n_bytes);
    t->line_bytes += n_bytes;
    return KVT_OK;
}

/* The next line, without its newline; the last one may lack it. KVT_ENOENT: no more. */
static kvt_status read_line(trace *t) {
    if (t->line_waits) {
        t->line_waits = false;
        return KVT_OK;
    }
    t->line_bytes = 0;
    for (bool any = false;; any = true) {
        if (t->chunk_at == t->chunk_end) {
            kvt_status status = fill_chunk(t);
            if (status == KVT_ENOENT && any) {
                break;
            }
            if (status != KVT_OK) {
                return status;
            }
        }
        const char *from = t->chunk + t->chunk_at;
        size_t left = t->chunk_end - t->chunk_at;
        const char *newline = memchr(from, '\n', left);
        size_t n = newline == NULL ? left : (size_t)(newline - from);
        kvt_status status = append_to_line(t, from, n);
        if (status != KVT_OK) {
            return status;
        }
        t->chunk_at += newline == NULL ? n : n + 1;
        if (newline != NULL) {
            break;
        }
    }
    t->line_number++;
    return KVT_OK;
}

/* --- the trace
 * ------------------------------------------------------------------------------------ */

static kvt_status read_format(trace *t) {
    kvt_status status = read_line(t);
    if (status == KVT_ENOENT) {
        t->line_number = 1;
        return trace_fail(t, KVT_ESYNTAX, NULL, "the file is empty");
    }
    if (status != KVT_OK) {
        return status;
    }
    if (t->line_bytes > 0 && t->line[0] == '{') {
        t->info.kind = TRACE_TOKENS;
        t->line_waits = true;
        return KVT_OK;
    }
    if (t->line_bytes > 0 && t->line[0] == '#') {
        t->info.kind = TRACE_PCT1;
        return trace_pct1_header(t);
    }
    return trace_fail(t, KVT_ESYNTAX, NULL,
                      "no trace: neither '# PCT1 ...' nor a token stream '{\"i\":0, ...'");
}

static kvt_status open_file(trace *t, const char *path) {
    errno = 0;
    t->file = gzopen(path, "rbe");
    if (t->file == NULL) {
        kvt_status status = errno == ENOENT || errno == ENOTDIR ? KVT_ENOENT
                            : errno == EACCES                   ? KVT_EDENIED
                            : errno == 0 || errno == ENOMEM     ? KVT_ENOMEM
                                                                : KVT_EIO;
        snprintf(t->why, sizeof t->why, "cannot be opened: %s",
                 errno == 0 ? "no memory" : strerror(errno));
        return status;
    }
    gzbuffer(t->file, CHUNK_BYTES);
    return KVT_OK;
}

kvt_status trace_open(const char *path, char *why, size_t why_bytes, trace **ret_trace) {
    kvt_status status = KVT_ENOMEM;
    trace *t = calloc(1, sizeof *t);
    if (t == NULL) {
        goto out;
    }
    if (!trace_reserve((void **)&t->line, &t->line_room, FIRST_LINE_BYTES, 1) ||
        (t->chunk = malloc(CHUNK_BYTES)) == NULL) {
        goto out;
    }
    status = open_file(t, path);
    if (status == KVT_OK) {
        status = read_format(t);
    }
out:
    if (status == KVT_OK) {
        *ret_trace = t;
        return KVT_OK;
    }
    if (why != NULL && why_bytes > 0) {
        snprintf(why, why_bytes, "%s", t == NULL || t->why[0] == '\0' ? "no memory" : t->why);
    }
    trace_close(t);
    return status;
}

void trace_close(trace *t) {
    if (t == NULL) {
        return;
    }
    if (t->file != NULL) {
        gzclose_r(t->file);
    }
    trace_pct1_free(t);
    trace_tokens_free(t);
    free(t->line);
    free(t->chunk);
    free(t->tokens);
    free(t);
}

void trace_info_get(const trace *t, trace_info *ret_info) {
    *ret_info = t->info;
}

const char *trace_why(const trace *t) {
    return t->why;
}

static kvt_status check_end(trace *t) {
    if (t->info.kind == TRACE_PCT1 && t->n_requests != t->info.n_requests) {
        return trace_fail(
            t, KVT_ESYNTAX, NULL, "the file ends here with %llu requests, but its header says %llu",
            (unsigned long long)t->n_requests, (unsigned long long)t->info.n_requests);
    }
    return KVT_ENOENT;
}

static kvt_status read_request(trace *t, bool expand, trace_request *ret_request) {
    trace_request request = {.number = t->n_requests};
    kvt_status status = read_line(t);
    if (status != KVT_OK) {
        return status == KVT_ENOENT ? check_end(t) : status;
    }
    request.line = t->line_number;
    status =
        t->info.kind == TRACE_PCT1 ? trace_pct1_line(t, &request) : trace_tokens_line(t, &request);
    if (status != KVT_OK) {
        return status;
    }
    if (expand) {
        /* One element too many, so that an empty request has a pointer as well. */
        if (!trace_reserve((void **)&t->tokens, &t->tokens_room, (size_t)request.n_tokens + 1,
                           sizeof *t->tokens)) {
            return trace_fail(t, KVT_ENOMEM, NULL, "no memory for %u tokens", request.n_tokens);
        }
        if (t->info.kind == TRACE_PCT1) {
            trace_pct1_expand(t, t->tokens);
        } else {
            trace_tokens_expand(t, t->tokens);
        }
        request.tokens = t->tokens;
    }
    request.session = t->session;
    t->n_requests++;
    *ret_request = request;
    return KVT_OK;
}

kvt_status trace_next(trace *t, trace_request *ret_request) {
    if (t->broken == KVT_OK) {
        t->broken = read_request(t, true, ret_request);
    }
    return t->broken;
}

kvt_status trace_skip(trace *t, trace_request *ret_request) {
    if (t->broken == KVT_OK) {
        t->broken = read_request(t, false, ret_request);
    }
    return t->broken;
}
