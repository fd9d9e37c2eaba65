/*
 * json_scan.h - a strict look at a JSON text before a parser gets it. The parser behind it (cJSON)
 * is lenient: it takes 01, 1e999, duplicate keys and raw newlines in strings, cuts strings at
 * \u0000, and recurses. What passes here is JSON as RFC 8259 has it, with comments, and with
 * limits.
 *
 * Refused, with the place: comments that do not end, bytes that are no UTF-8, control characters
 * and raw newlines in strings, \u0000 and halves of surrogate pairs, unknown escapes, numbers with
 * leading zeros or too large, trailing commas, text behind the end, the same key twice in an object
 * (as it reads once its escapes are resolved), nesting deeper than JSON_MAX_DEPTH, more than
 * JSON_MAX_VALUES values, more than JSON_MAX_BYTES bytes.
 *
 * Pure; no recursion; allocates nothing.
 */
#ifndef KVT_DAEMON_JSON_SCAN_H
#define KVT_DAEMON_JSON_SCAN_H

#include "client/kvtrunk.h"

enum {
    JSON_MAX_BYTES = 1 << 20,
    JSON_MAX_DEPTH = 32,
    JSON_MAX_VALUES = 4096,
};

/* A place in a text, both from 1. A column is a character, not a byte. */
typedef struct json_place {
    uint32_t line;
    uint32_t column;
} json_place;

/* A value, in the order in which values begin (an object before its members). */
typedef struct json_value {
    uint32_t at;       /* offset of its first byte */
    uint32_t n_bytes;  /* of a number, a string (quotes included) or a word; 1 for { and [ */
    uint32_t key_at;   /* offset of its key's opening quote; UINT32_MAX: has none */
    uint32_t key_hash; /* of the key once its escapes are resolved */
    uint32_t depth;    /* 0: the text's own value */
} json_value;

typedef struct json_scan {
    uint32_t n_values;
    json_value values[JSON_MAX_VALUES];
    json_place place; /* of the error */
    char why[200];    /* the error in one line: what, and what to do about it */
} json_scan;

/*
 * Scans text[0 .. n_bytes) and writes the same text with its comments blanked to spaces to
 * ret_blanked[0 .. n_bytes), so that every byte keeps its place. KVT_OK: ret_blanked is fit for a
 * parser, ret_scan->values are set. KVT_ESYNTAX or KVT_ELIMIT: place and why are.
 */
kvt_status json_scan_text(const char *text, size_t n_bytes, char *ret_blanked, json_scan *ret_scan);

json_place json_place_of(const char *text, size_t n_bytes, size_t at);

/* Resolves the escapes of the string at text[at] (its opening quote), which has passed
 * json_scan_text. Returns its length; what does not fit into room is left out. to is not
 * NUL-terminated. */
size_t json_unescape(const char *text, size_t at, char *to, size_t room);

/* Length of the UTF-8 character at text[0 .. n_bytes), 1 .. 4; 0 if it is none. */
size_t utf8_length(const char *text, size_t n_bytes);

#endif
