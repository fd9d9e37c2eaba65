/* say.h - a status together with the sentence that says why. */
#ifndef KVT_KERNELS_SAY_H
#define KVT_KERNELS_SAY_H

#include "client/kvtrunk.h"

/* Writes the sentence to why[0 .. why_bytes) (why may be NULL; cut to fit) and returns status. */
kvt_status kvt_say(char *why, size_t why_bytes, kvt_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
