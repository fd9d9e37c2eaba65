/*
 * assert.h - KVT_ASSERT: a bug of ours, never an operating error. Always on, in every build: a
 * daemon that goes on with a broken invariant could lie, one that stops is restarted.
 */
#ifndef KVT_CLIENT_ASSERT_H
#define KVT_CLIENT_ASSERT_H

#include <stdio.h>
#include <stdlib.h>

#define KVT_ASSERT(condition)                                                                      \
    ((condition) ? (void)0 : kvt_assert_failed(#condition, __FILE__, __LINE__))

static inline _Noreturn void kvt_assert_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "kvtrunk: %s:%d: broken invariant: %s\n", file, line, condition);
    fflush(stderr);
    abort();
}

#endif
