/* json_write.c - see json_write.h. */
#include "daemon/json_write.h"
#include "daemon/json_scan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void json_start(json_writer *w, char *at, size_t room) {
    *w = (json_writer){.at = at, .room = room};
}

static void put(json_writer *w, const char *bytes, size_t n_bytes) {
    if (w->full || n_bytes > w->room - w->n_bytes) {
        w->full = 1;
        return;
    }
    memcpy(w->at + w->n_bytes, bytes, n_bytes);
    w->n_bytes += n_bytes;
}

static void put_string(json_writer *w, const char *text) {
    char escape[8];
    size_t left = strlen(text);
    put(w, "\"", 1);
    while (left > 0 && !w->full) {
        size_t n = utf8_length(text, left);
        if (n == 0) {
            put(w, "\xef\xbf\xbd", 3); /* U+FFFD */
            n = 1;
        } else if ((unsigned char)*text < 0x20) {
            put(w, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", *text));
        } else {
            if (*text == '"' || *text == '\\')
                put(w, "\\", 1);
            put(w, text, n);
        }
        text += n;
        left -= n;
    }
    put(w, "\"", 1);
}

/* Comma, and the key: what stands in front of every value. */
static void begin(json_writer *w, const char *key) {
    if (w->comma)
        put(w, ",", 1);
    w->comma = 1;
    if (key) {
        put_string(w, key);
        put(w, ":", 1);
    }
}

void json_open(json_writer *w, const char *key, char bracket) {
    begin(w, key);
    put(w, &bracket, 1);
    w->comma = 0;
}

void json_close(json_writer *w, char bracket) {
    put(w, &bracket, 1);
    w->comma = 1;
}

void json_put_raw(json_writer *w, const char *key, const char *json) {
    begin(w, key);
    put(w, json, strlen(json));
}

void json_put_u64(json_writer *w, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    json_put_raw(w, key, text);
}

void json_put_hex(json_writer *w, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "\"%016" PRIx64 "\"", value);
    json_put_raw(w, key, text);
}

void json_put_bool(json_writer *w, const char *key, int value) {
    json_put_raw(w, key, value ? "true" : "false");
}

void json_put_text(json_writer *w, const char *key, const char *text) {
    begin(w, key);
    put_string(w, text);
}

void json_newline(json_writer *w) {
    put(w, "\n", 1);
    w->comma = 0;
}
