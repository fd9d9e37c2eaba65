/*
 * error.h - what went wrong, in words, for kvt_last_error: one text per thread.
 */
#ifndef KVT_CLIENT_ERROR_H
#define KVT_CLIENT_ERROR_H

#include "client/kvtrunk.h"

/* Sets the calling thread's text and returns status, so that a failure is one line. */
kvt_status kvt_error(kvt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same with the general words of the status. */
kvt_status kvt_error_plain(kvt_status status);

/*
 * The library's memory. Everything it allocates comes from here, so that a test can let any one
 * allocation fail: after kvt_memory_fail_after(n), the n-th of the process from then on (1 is the
 * next) returns NULL; 0 switches that off. Not exported.
 */
void *kvt_memory_get(size_t n_bytes); /* zeroed; NULL: no memory. Freed with free() */
void *kvt_memory_resize(void *old, size_t n_bytes);
char *kvt_memory_text(const char *text); /* a copy */
void kvt_memory_fail_after(long n);

#endif
