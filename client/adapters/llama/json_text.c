/* json_text.c - see json_text.h. */
#include "client/adapters/llama/json_text.h"

static void put_ascii(unsigned char c, FILE *to) {
    if (c == '"' || c == '\\' || c < 0x20)
        fprintf(to, "\\u%04x", c);
    else
        putc(c, to);
}

/* 0: no character begins so. */
static unsigned bytes_of(unsigned char first) {
    return first < 0x80   ? 1
           : first < 0xc2 ? 0
           : first < 0xe0 ? 2
           : first < 0xf0 ? 3
           : first < 0xf5 ? 4
                          : 0;
}

/* May this be a character's second byte? (Of no surrogate, none over U+10FFFF, none that is written
 * longer than need be.) */
static int may_follow(unsigned char first, unsigned char second) {
    unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return second >= low && second <= high;
}

static void put_byte(json_text *t, unsigned char c, FILE *to) {
    if (t->n && (t->n == 1 ? may_follow(t->bytes[0], c) : (c & 0xc0) == 0x80)) {
        t->bytes[t->n++] = c;
        if (t->n == t->n_whole) {
            fwrite(t->bytes, 1, t->n, to);
            t->n = 0;
        }
        return;
    }
    if (t->n)
        fputs("\\ufffd", to); /* it breaks off */
    t->n = 0;
    t->n_whole = bytes_of(c);
    if (t->n_whole == 0)
        fputs("\\ufffd", to);
    else if (t->n_whole == 1)
        put_ascii(c, to);
    else
        t->bytes[t->n++] = c;
}

void json_text_put(json_text *t, const char *piece, size_t n, FILE *to) {
    for (size_t i = 0; i < n; i++)
        put_byte(t, (unsigned char)piece[i], to);
}
