#include "kernels/say.h"

#include <stdarg.h>
#include <stdio.h>

kvt_status kvt_say(char *why, size_t why_bytes, kvt_status status, const char *format, ...) {
    if (why && why_bytes > 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(why, why_bytes, format, arguments);
        va_end(arguments);
    }
    return status;
}
