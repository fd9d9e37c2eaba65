/*
 * wire.c - the header of a message, and the writer and reader that the bodies are made of.
 *
 * Numbers are copied as they lie in memory, so this builds for little-endian machines only; the
 * wire, the arena and the pages are little-endian throughout.
 */
#include "client/wire_io.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

/* --- writing ------------------------------------------------------------------------------------
 */

void kvt_wire_start(kvt_writer *w, void *at, size_t room) {
    *w = (kvt_writer){.at = at, .room = room, .n_bytes = KVT_WIRE_HEADER_BYTES};
    w->failed = room < KVT_WIRE_HEADER_BYTES;
}

void kvt_wire_put_bytes(kvt_writer *w, const void *bytes, size_t n_bytes) {
    if (w->failed || n_bytes > w->room - w->n_bytes) {
        w->failed = 1;
        return;
    }
    if (n_bytes)
        memcpy(w->at + w->n_bytes, bytes, n_bytes);
    w->n_bytes += n_bytes;
}

void kvt_wire_put_u8(kvt_writer *w, uint8_t value) {
    kvt_wire_put_bytes(w, &value, sizeof value);
}

void kvt_wire_put_u16(kvt_writer *w, uint16_t value) {
    kvt_wire_put_bytes(w, &value, sizeof value);
}

void kvt_wire_put_u32(kvt_writer *w, uint32_t value) {
    kvt_wire_put_bytes(w, &value, sizeof value);
}

void kvt_wire_put_u64(kvt_writer *w, uint64_t value) {
    kvt_wire_put_bytes(w, &value, sizeof value);
}

void kvt_wire_put_text(kvt_writer *w, const kvt_wire_str *text) {
    kvt_wire_put_u16(w, text->n_bytes);
    kvt_wire_put_bytes(w, text->at, text->n_bytes);
}

void kvt_wire_put_str(kvt_writer *w, const char *text) {
    size_t n_bytes = text ? strlen(text) : 0;
    kvt_wire_str str = {text, n_bytes < UINT16_MAX ? (uint16_t)n_bytes : UINT16_MAX};
    kvt_wire_put_text(w, &str);
}

size_t kvt_wire_finish(kvt_writer *w, kvt_wire_header header) {
    if (w->failed || w->n_bytes > KVT_WIRE_MAX_BYTES)
        return 0;
    kvt_writer head = {.at = w->at, .room = KVT_WIRE_HEADER_BYTES};
    kvt_wire_put_u32(&head, KVT_WIRE_MAGIC);
    kvt_wire_put_u8(&head, KVT_WIRE_VERSION);
    kvt_wire_put_u8(&head, header.kind);
    kvt_wire_put_u16(&head, header.op);
    kvt_wire_put_u32(&head, (uint32_t)(w->n_bytes - KVT_WIRE_HEADER_BYTES));
    kvt_wire_put_u32(&head, header.status);
    kvt_wire_put_u64(&head, header.number);
    kvt_wire_put_u64(&head, header.boot_id);
    return w->n_bytes;
}

/* --- reading ------------------------------------------------------------------------------------
 */

const uint8_t *kvt_wire_take(wire_reader *r, size_t n_bytes) {
    if (r->failed || n_bytes > r->n_left) {
        r->failed = 1;
        return NULL;
    }
    const uint8_t *at = r->at;
    r->at += n_bytes;
    r->n_left -= n_bytes;
    return at;
}

/* The division keeps a hostile count from overflowing. */
const uint8_t *kvt_wire_take_array(wire_reader *r, uint32_t n, size_t element_bytes) {
    if (r->failed || r->n_left / element_bytes != n || r->n_left % element_bytes) {
        r->failed = 1;
        return NULL;
    }
    return kvt_wire_take(r, r->n_left);
}

static void take_into(wire_reader *r, void *to, size_t n_bytes) {
    const uint8_t *at = kvt_wire_take(r, n_bytes);
    if (at)
        memcpy(to, at, n_bytes);
    else
        memset(to, 0, n_bytes);
}

uint8_t kvt_wire_take_u8(wire_reader *r) {
    uint8_t value;
    take_into(r, &value, sizeof value);
    return value;
}

uint16_t kvt_wire_take_u16(wire_reader *r) {
    uint16_t value;
    take_into(r, &value, sizeof value);
    return value;
}

uint32_t kvt_wire_take_u32(wire_reader *r) {
    uint32_t value;
    take_into(r, &value, sizeof value);
    return value;
}

uint64_t kvt_wire_take_u64(wire_reader *r) {
    uint64_t value;
    take_into(r, &value, sizeof value);
    return value;
}

void kvt_wire_take_token(wire_reader *r, uint8_t *to) {
    take_into(r, to, KVT_WIRE_TOKEN_BYTES);
}

kvt_wire_str kvt_wire_take_str(wire_reader *r, size_t max_bytes) {
    kvt_wire_str str = {.n_bytes = kvt_wire_take_u16(r)};
    str.at = (const char *)kvt_wire_take(r, str.n_bytes);
    if (r->failed || str.n_bytes > max_bytes || memchr(str.at, 0, str.n_bytes)) {
        r->failed = 1;
        return (kvt_wire_str){.at = ""};
    }
    return str;
}

kvt_status kvt_wire_end(const wire_reader *r) {
    return r->failed || r->n_left ? KVT_EPROTO : KVT_OK;
}

kvt_status kvt_wire_open(const void *message, size_t n_bytes, kvt_wire_header *ret_header,
                         const uint8_t **ret_body) {
    wire_reader r = {.at = message, .n_left = n_bytes};
    if (n_bytes < KVT_WIRE_HEADER_BYTES || kvt_wire_take_u32(&r) != KVT_WIRE_MAGIC)
        return KVT_EPROTO;
    /* Another version may put anything behind this byte, so nothing of it is looked at. */
    if (kvt_wire_take_u8(&r) != KVT_WIRE_VERSION)
        return KVT_EVERSION;
    kvt_wire_header header;
    header.kind = kvt_wire_take_u8(&r);
    header.op = kvt_wire_take_u16(&r);
    header.body_bytes = kvt_wire_take_u32(&r);
    header.status = kvt_wire_take_u32(&r);
    header.number = kvt_wire_take_u64(&r);
    header.boot_id = kvt_wire_take_u64(&r);
    uint32_t n_status = header.kind == KVT_WIRE_REPLY ? KVT_N_STATUS : 1;
    if (header.kind < KVT_WIRE_REQUEST || header.kind > KVT_WIRE_EVENTS || header.op == 0 ||
        header.op >= KVT_N_OPS || header.status >= n_status || n_bytes > KVT_WIRE_MAX_BYTES ||
        header.body_bytes != r.n_left)
        return KVT_EPROTO;
    *ret_header = header;
    *ret_body = r.at;
    return KVT_OK;
}

/* --- elements of arrays -------------------------------------------------------------------------
 */

uint16_t kvt_wire_get_u16(const uint8_t *array, size_t i) {
    uint16_t value;
    memcpy(&value, array + i * sizeof value, sizeof value);
    return value;
}

uint32_t kvt_wire_get_u32(const uint8_t *array, size_t i) {
    uint32_t value;
    memcpy(&value, array + i * sizeof value, sizeof value);
    return value;
}

uint64_t kvt_wire_get_u64(const uint8_t *array, size_t i) {
    uint64_t value;
    memcpy(&value, array + i * sizeof value, sizeof value);
    return value;
}

void kvt_wire_get_tokens(const uint8_t *tokens, size_t n_tokens, uint32_t *to) {
    if (n_tokens)
        memcpy(to, tokens, n_tokens * sizeof *to);
}
