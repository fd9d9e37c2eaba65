/* tell.c - events on their way from a tenant's core to its listeners: gathered while the loop works
 * through what has come in, then sent as one message. */
#include "daemon/log.h"
#include "daemon/shell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EVENTS_BYTES = 64 << 10, /* of a message */
    EVENT_MOST_BYTES = 1024, /* of an event with 128 tokens, and more */
    TELL_EVERY_MS = 1000,
};

static void start(tenant *t) {
    kvt_wire_start(&t->writer, t->events, EVENTS_BYTES);
    kvt_writer head = t->writer;
    kvt_wire_put_u32(&head, 0); /* the number of events, once it is known */
    t->writer = head;
    t->n_events = 0;
}

static void finish(tenant *t) {
    kvt_writer head = t->writer;
    head.n_bytes = KVT_WIRE_HEADER_BYTES;
    kvt_wire_put_u32(&head, t->n_events);
    kvt_wire_header header = {.kind = KVT_WIRE_EVENTS,
                              .op = KVT_OP_SNAPSHOT,
                              .number = t->first_sequence,
                              .boot_id = t->shell->boot_id};
    size_t n = kvt_wire_finish(&t->writer, header);
    publisher_send(t->publisher, t->events, n);
    t->first_sequence += t->n_events;
    start(t);
}

void tell_event(void *context, const core_event *event) {
    tenant *t = context;
    if (!t->publisher)
        return;
    if (publisher_listeners(t->publisher) == 0) {
        /* Whoever comes begins with a snapshot; those before him had all that is gathered. */
        if (t->n_events)
            start(t);
        t->first_sequence = event->sequence + 1;
        return;
    }
    kvt_event wire;
    if (t->n_events == 0)
        t->first_sequence = event->sequence;
    core_event_to_wire(t->core, event, &wire);
    kvt_wire_put_event(&t->writer, &wire, event->tokens);
    t->n_events++;
    if (t->writer.n_bytes > EVENTS_BYTES - EVENT_MOST_BYTES)
        finish(t);
}

uint64_t tell_tick(tenant *t, uint64_t now_ms) {
    if (!t->publisher)
        return UINT64_MAX;
    if (t->n_events || now_ms >= t->events_due_ms) {
        t->first_sequence = core_sequence(t->core) + 1 - t->n_events;
        finish(t);
        t->events_due_ms = now_ms + TELL_EVERY_MS;
    }
    return t->events_due_ms;
}

static int may_listen(void *context, core_peer peer) {
    const tenant *t = context;
    return core_has_uid(t->core, peer.uid) || core_has_gid(t->core, peer.gid);
}

/* Everybody may connect to the file when others than the daemon's own user belong to the tenant;
 * who it is, the kernel says. */
static uint32_t events_mode(const tenant *t) {
    const param_values *v = t->values;
    for (uint64_t i = 0; i < v->n_uids; i++)
        if (v->uids[i] != t->shell->own_uid)
            return 0666;
    return v->n_gids ? 0666 : 0600;
}

kvt_status tell_open(tenant *t, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "no memory for events");
    /* The socket's lock covers this name as well. */
    int n = t->index == 0 ? snprintf(t->events_path, sizeof t->events_path, "%s.events",
                                     t->shell->socket.path)
                          : snprintf(t->events_path, sizeof t->events_path, "%s.events.%u",
                                     t->shell->socket.path, t->index);
    if (n < 0 || (size_t)n >= sizeof t->events_path) {
        t->events_path[0] = 0;
        log_write(LOG_WARNING,
                  "tenant %s: the socket's path is so long that there is none for its events: "
                  "nobody can listen to them",
                  t->values->tenant);
        return KVT_OK;
    }
    t->events = malloc(EVENTS_BYTES);
    if (!t->events)
        return KVT_ENOMEM;
    t->first_sequence = 1;
    start(t);
    return KVT_OK;
}

kvt_status tell_start(tenant *t, char *why, size_t why_bytes) {
    if (!t->events)
        return KVT_OK;
    publisher_options wanted = {
        .path = t->events_path, .mode = events_mode(t), .may_listen = may_listen, .context = t};
    return publisher_open(&wanted, why, why_bytes, &t->publisher);
}

void tell_close(tenant *t) {
    publisher_close(t->publisher);
    free(t->events);
    t->publisher = NULL;
    t->events = NULL;
}
