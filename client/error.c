#include "client/error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[512];

kvt_status kvt_error(kvt_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    /* Parts of it may have come from the daemon; it goes to somebody's terminal or log. */
    for (char *at = last_error; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 127)
            *at = '?';
    return status;
}

kvt_status kvt_error_plain(kvt_status status) {
    return kvt_error(status, "%s", kvt_status_text(status));
}

const char *kvt_last_error(void) {
    return last_error;
}

/* --- memory -------------------------------------------------------------------------------------
 */

static atomic_long fail_after;

static int memory_fails(void) {
    /* Loaded first, so that threads do not fight for the counter when nobody tests. */
    return atomic_load_explicit(&fail_after, memory_order_relaxed) > 0 &&
           atomic_fetch_sub(&fail_after, 1) == 1;
}

void kvt_memory_fail_after(long n) {
    atomic_store(&fail_after, n);
}

void *kvt_memory_get(size_t n_bytes) {
    return memory_fails() ? NULL : calloc(1, n_bytes ? n_bytes : 1);
}

void *kvt_memory_resize(void *old, size_t n_bytes) {
    return memory_fails() ? NULL : realloc(old, n_bytes ? n_bytes : 1);
}

char *kvt_memory_text(const char *text) {
    size_t n_bytes = strlen(text) + 1;
    char *copy = kvt_memory_get(n_bytes);
    if (copy)
        memcpy(copy, text, n_bytes);
    return copy;
}

void kvt_free(void *memory) {
    free(memory);
}
