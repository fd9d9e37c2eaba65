/* tool_text.c - numbers and texts as people and JSON read them; the clock. */
#include "client/tool.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static char *next_buffer(void) {
    static char buffers[8][40];
    static unsigned turn;
    return buffers[turn++ % 8];
}

const char *tool_number(uint64_t n) {
    char digits[24], *to = next_buffer(), *at = to;
    int n_digits = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    for (int i = 0; i < n_digits; i++) {
        if (i > 0 && (n_digits - i) % 3 == 0)
            *at++ = ',';
        *at++ = digits[i];
    }
    *at = '\0';
    return to;
}

const char *tool_size(uint64_t n_bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    char *to = next_buffer();
    double n = (double)n_bytes;
    int unit = 0;
    while (n >= 1024 && unit < 6) {
        n /= 1024;
        unit++;
    }
    snprintf(to, 40, unit == 0 ? "%.0f %s" : "%.1f %s", n, units[unit]);
    return to;
}

double tool_decimal(const char *text, const char **ret_end) {
    size_t n = strspn(text, "0123456789"), more = 0;
    if (n > 0 && text[n] == '.')
        more = strspn(text + n + 1, "0123456789");
    *ret_end = text + n + (more > 0 ? 1 + more : 0);
    return n > 0 ? strtod(text, NULL) : -1;
}

void tool_json_text(FILE *to, const char *text) {
    fputc('"', to);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(to, "\\%c", *c);
        else if ((unsigned char)*c < ' ')
            fprintf(to, "\\u%04x", (unsigned)*c);
        else
            fputc(*c, to);
    }
    fputc('"', to);
}

double tool_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
