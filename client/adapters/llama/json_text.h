/*
 * json_text.h - a text that comes in pieces, as the inside of a JSON string. Tokens may end inside
 * a character: what has begun waits for the next piece, and is left out if none comes. So what is
 * written is valid UTF-8 at every moment; bytes that are no part of any come out as U+FFFD.
 */
#ifndef KVT_LLAMA_JSON_TEXT_H
#define KVT_LLAMA_JSON_TEXT_H

#include <stdio.h>

/* All 0 at a text's beginning. */
typedef struct json_text {
    unsigned char bytes[4]; /* of a character that has begun */
    unsigned n, n_whole;    /* of them there; that it will have */
} json_text;

void json_text_put(json_text *t, const char *piece, size_t n, FILE *to);

#endif
