/*
 * wire_io.h - how wire*.c read a body: a window that moves forward. Once something was not there,
 * `failed` stays set and every further value is 0; kvt_wire_end says so once, at the end.
 */
#ifndef KVT_CLIENT_WIRE_IO_H
#define KVT_CLIENT_WIRE_IO_H

#include "client/wire.h"

enum {
    WIRE_PAGE_BYTES = 32,
    WIRE_SEAL_PAGE_BYTES = 20,
    WIRE_RUN_BYTES = 8,
    /* Pages of 16 tokens, and one more that is held in part. */
    WIRE_MAX_PAGES = KVT_MAX_REQUEST_TOKENS / 16 + 1,
};

/* A lease has hundreds of pages: in memory they are laid out as on the wire. */
_Static_assert(sizeof(kvt_wire_page) == WIRE_PAGE_BYTES &&
                   offsetof(kvt_wire_page, generation) == 8 &&
                   offsetof(kvt_wire_page, frame) == 16 && offsetof(kvt_wire_page, bytes) == 20 &&
                   offsetof(kvt_wire_page, sealer) == 24 && offsetof(kvt_wire_page, rows) == 28 &&
                   offsetof(kvt_wire_page, tier) == 30 && offsetof(kvt_wire_page, reserved) == 31,
               "as PROTOCOL.md says");

typedef struct wire_reader {
    const uint8_t *at;
    size_t n_left;
    int failed;
} wire_reader;

/* n_bytes bytes of the body, or NULL. */
const uint8_t *kvt_wire_take(wire_reader *r, size_t n_bytes);
uint8_t kvt_wire_take_u8(wire_reader *r);
uint16_t kvt_wire_take_u16(wire_reader *r);
uint32_t kvt_wire_take_u32(wire_reader *r);
uint64_t kvt_wire_take_u64(wire_reader *r);
void kvt_wire_take_token(wire_reader *r, uint8_t *to);
/* n elements that must fill the rest of the body exactly; NULL if they do not. */
const uint8_t *kvt_wire_take_array(wire_reader *r, uint32_t n, size_t element_bytes);
/* Tokens, then the spans that fill the rest of the body. */
void kvt_wire_take_spans(wire_reader *r, kvt_acquire_req *req);
/* A string of at most max_bytes without NUL. */
kvt_wire_str kvt_wire_take_str(wire_reader *r, size_t max_bytes);
/* KVT_EPROTO if something was missing or is left over. */
kvt_status kvt_wire_end(const wire_reader *r);

void kvt_wire_put_text(kvt_writer *w, const kvt_wire_str *text);

#endif
