/*
 * json_write.h - writes JSON into a bounded buffer: exact 64-bit numbers (a double is exact to 2^53
 * only), no allocation, and strings of any bytes become valid JSON. Used for reports, which the
 * core thread writes between two requests.
 */
#ifndef KVT_DAEMON_JSON_WRITE_H
#define KVT_DAEMON_JSON_WRITE_H

#include <stddef.h>
#include <stdint.h>

/* Appends to at[0 .. room). Once something did not fit, `full` is set and nothing more is written:
 * a caller that remembers n_bytes can take back the half that stands there. */
typedef struct json_writer {
    char *at;
    size_t room;
    size_t n_bytes;
    int full;
    int comma; /* the next element of the innermost bracket needs one in front */
} json_writer;

void json_start(json_writer *w, char *at, size_t room);

/* key NULL: an element of an array, or the value itself. */
void json_open(json_writer *w, const char *key, char bracket);
void json_close(json_writer *w, char bracket);
void json_put_u64(json_writer *w, const char *key, uint64_t value);
void json_put_hex(json_writer *w, const char *key, uint64_t value); /* "00c0ffee00c0ffee" */
void json_put_bool(json_writer *w, const char *key, int value);
/* Bytes that are no UTF-8 are shown as U+FFFD. */
void json_put_text(json_writer *w, const char *key, const char *text);
void json_put_raw(json_writer *w, const char *key, const char *json); /* is JSON already */
void json_newline(json_writer *w); /* ends a line of JSON lines */

#endif
