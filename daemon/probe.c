/* probe.c - see probe.h. */
#include "daemon/probe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void probe_init(probe *p) {
    *p = (probe){.fd = -1};
}

void probe_stop(probe *p) {
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

static void end(probe *p, probe_state state) {
    probe_stop(p);
    p->state = state;
}

/* nng's greeting for REQ version 0; then one message: a byte 1, its length, its id, the request. */
static size_t write_question(uint8_t to[PROBE_BYTES]) {
    static const uint8_t head[PROBE_HANDSHAKE_BYTES + PROBE_FRAME_BYTES] = {
        0,    'S', 'P', 0, 0, 0x30, 0, 0,                            /* greeting */
        1,    0,   0,   0, 0, 0,    0, 0, 4 + KVT_WIRE_HEADER_BYTES, /* frame */
        0x80, 0,   0,   1, /* id: its first bit ends the header */
    };
    kvt_writer w;
    memcpy(to, head, sizeof head);
    kvt_wire_start(&w, to + sizeof head, KVT_WIRE_HEADER_BYTES);
    size_t n = kvt_wire_finish(&w, (kvt_wire_header){.kind = KVT_WIRE_REQUEST, .op = KVT_OP_PING});
    return sizeof head + n;
}

void probe_start(probe *p, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint8_t question[PROBE_BYTES];
    probe_stop(p);
    p->n_bytes = 0;
    p->state = PROBE_WAITING;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    p->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->fd < 0) {
        end(p, PROBE_BUSY);
        return;
    }
    if (connect(p->fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        end(p, errno == EAGAIN ? PROBE_BUSY : PROBE_NO_SOCKET);
        return;
    }
    size_t n_bytes = write_question(question);
    if (send(p->fd, question, n_bytes, MSG_NOSIGNAL) != (ssize_t)n_bytes)
        end(p, PROBE_FAILED);
}

/* The greeting of REP, then a frame with the answer. */
static int is_answer(const uint8_t bytes[PROBE_BYTES]) {
    static const uint8_t greeting[PROBE_HANDSHAKE_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    kvt_wire_header header;
    const uint8_t *body, *frame = bytes + sizeof greeting;
    return memcmp(bytes, greeting, sizeof greeting) == 0 && frame[0] == 1 &&
           kvt_wire_open(frame + PROBE_FRAME_BYTES, KVT_WIRE_HEADER_BYTES, &header, &body) ==
               KVT_OK &&
           header.kind == KVT_WIRE_REPLY && header.op == KVT_OP_PING;
}

void probe_step(probe *p) {
    while (p->state == PROBE_WAITING) {
        ssize_t n = recv(p->fd, p->bytes + p->n_bytes, sizeof p->bytes - p->n_bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            end(p, PROBE_FAILED);
            return;
        }
        p->n_bytes += (size_t)n;
        if (p->n_bytes == sizeof p->bytes)
            end(p, is_answer(p->bytes) ? PROBE_ANSWERED : PROBE_FAILED);
    }
}

size_t probe_answer(const void *message, size_t n_bytes, uint64_t boot_id,
                    uint8_t to[KVT_WIRE_HEADER_BYTES]) {
    kvt_wire_header header;
    const uint8_t *body;
    kvt_writer w;
    if (kvt_wire_open(message, n_bytes, &header, &body) != KVT_OK ||
        header.kind != KVT_WIRE_REQUEST || header.op != KVT_OP_PING)
        return 0;
    kvt_wire_start(&w, to, KVT_WIRE_HEADER_BYTES);
    return kvt_wire_finish(&w, (kvt_wire_header){.kind = KVT_WIRE_REPLY,
                                                 .op = KVT_OP_PING,
                                                 .number = header.number,
                                                 .boot_id = boot_id});
}
