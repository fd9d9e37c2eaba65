/*
 * probe.h - the daemon as its own client: connects to its socket, asks KVT_OP_PING and waits for
 * the answer. A plain socket that speaks just enough of nng's ipc framing, never blocking, so that
 * the core thread can drive it between two requests. What it proves: the path leads to a listener
 * that takes connections, and what comes in is answered by the loop that answers workers.
 */
#ifndef KVT_DAEMON_PROBE_H
#define KVT_DAEMON_PROBE_H

#include "client/wire.h"

enum {
    PROBE_HANDSHAKE_BYTES = 8,
    PROBE_FRAME_BYTES = 9 + 4, /* kind and length; nng's id of the request */
    PROBE_BYTES = PROBE_HANDSHAKE_BYTES + PROBE_FRAME_BYTES + KVT_WIRE_HEADER_BYTES,
};

typedef enum probe_state {
    PROBE_IDLE = 0,
    PROBE_WAITING,
    PROBE_ANSWERED,
    PROBE_NO_SOCKET, /* nothing at the path, or nobody listens there */
    PROBE_BUSY,      /* the listener's queue is full, or no descriptor was to be had */
    PROBE_FAILED,    /* the connection was closed, or answered with something else */
    PROBE_SILENT,    /* no answer in time; set by who keeps the time */
} probe_state;

typedef struct probe {
    int fd; /* -1: none */
    probe_state state;
    size_t n_bytes; /* received */
    uint8_t bytes[PROBE_BYTES];
} probe;

void probe_init(probe *p);
/* Connects and sends. The fd is to be watched for reading while the state is PROBE_WAITING. */
void probe_start(probe *p, const char *path);
/* When the fd is readable. */
void probe_step(probe *p);
/* Closes the connection; the state stays. */
void probe_stop(probe *p);

/* Is this message a probe's question? Then its answer is written to `to`, and its size returned; 0
 * otherwise. */
size_t probe_answer(const void *message, size_t n_bytes, uint64_t boot_id,
                    uint8_t to[KVT_WIRE_HEADER_BYTES]);

#endif
