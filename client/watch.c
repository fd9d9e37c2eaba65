/*
 * watch.c - see watch.h.
 *
 * The listener connects first and asks for the snapshot then, part by part. Each part says up to
 * which event it holds: for the places of that part, events up to there are passed over, and all
 * later ones applied. What was told before the connection stood, or was lost on the way, shows as a
 * gap in the numbers (the daemon says now and then how far it is): then all begins anew.
 */
#include "client/watch.h"
#include "client/client.h"
#include "client/listen.h"

#include <stdlib.h>
#include <string.h>

typedef enum watch_state {
    WATCH_LOST = 0, /* nothing is connected */
    WATCH_PARTS,    /* the snapshot is being given */
    WATCH_EVENTS,
} watch_state;

/* Places up to `end` are as of event `sequence`. */
typedef struct watch_part {
    uint32_t end;
    uint64_t sequence;
} watch_part;

struct kvt_watch {
    kvt_client *client;
    watch_state state;
    kvt_listener *listener;
    char path[KVT_WIRE_MAX_PATH + 1];
    uint64_t boot_id;
    int is_live; /* said so */
    /* the snapshot */
    watch_part *parts;
    uint32_t n_parts, room_parts;
    uint32_t next_place;
    int has_all;
    kvt_reply reply; /* the part that is given; its pages lie in it */
    const uint8_t *at;
    size_t n_left;
    uint32_t n_pages;
    /* events */
    uint64_t expected; /* number of the next one */
    uint64_t number;   /* of the first that is left of the message */
    const uint8_t *event_at;
    size_t n_event_left;
    uint32_t n_events;
};

static void put_place(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_u32(w, *(const uint32_t *)context);
}

static void drop_reply(kvt_watch *w) {
    kvt_reply_free(&w->reply);
    w->reply = (kvt_reply){0};
    w->n_pages = 0;
}

static void lose(kvt_watch *w) {
    kvt_listener_close(w->listener);
    drop_reply(w);
    w->listener = NULL;
    w->state = WATCH_LOST;
    w->n_events = 0;
}

/* --- the snapshot -------------------------------------------------------------------------------
 */

static kvt_status keep_part(kvt_watch *w, uint32_t end, uint64_t sequence) {
    if (w->n_parts == w->room_parts) {
        uint32_t room = w->room_parts ? 2 * w->room_parts : 16;
        watch_part *parts = realloc(w->parts, room * sizeof *parts);
        if (!parts)
            return kvt_error_plain(KVT_ENOMEM);
        w->parts = parts;
        w->room_parts = room;
    }
    w->parts[w->n_parts++] = (watch_part){end, sequence};
    return KVT_OK;
}

static kvt_status ask_part(kvt_watch *w, kvt_snapshot_rep *ret) {
    kvt_request request = {
        .op = KVT_OP_SNAPSHOT, .body_bytes = 4, .put = put_place, .context = &w->next_place};
    kvt_client *c = w->client;
    drop_reply(w);
    kvt_status status = kvt_client_enter(c);
    if (status != KVT_OK)
        return status;
    status = kvt_client_call(c, &request, kvt_client_deadline(c), &w->reply);
    if (status == KVT_OK &&
        (kvt_wire_get_snapshot_rep(w->reply.body, w->reply.n_body, ret) != KVT_OK ||
         ret->first_place != w->next_place || ret->end_place <= ret->first_place))
        status = kvt_client_nonsense(c, "a snapshot");
    kvt_client_leave(c);
    return status;
}

/* The first part tells where to listen: only what is asked for after that counts. */
static kvt_status begin(kvt_watch *w) {
    kvt_snapshot_rep rep;
    w->next_place = 1;
    kvt_status status = ask_part(w, &rep);
    if (status != KVT_OK)
        return status;
    if (rep.events_path.n_bytes == 0)
        return kvt_error(KVT_ENOTSUP, "this daemon tells no events");
    memcpy(w->path, rep.events_path.at, rep.events_path.n_bytes);
    w->path[rep.events_path.n_bytes] = 0;
    drop_reply(w);
    status = kvt_listener_open(w->path, &w->listener);
    if (status != KVT_OK)
        return status;
    w->state = WATCH_PARTS;
    w->n_parts = 0;
    w->has_all = 0;
    w->is_live = 0;
    w->boot_id = 0;
    return KVT_OK;
}

static kvt_status next_part(kvt_watch *w) {
    kvt_snapshot_rep rep;
    kvt_status status = ask_part(w, &rep);
    if (status != KVT_OK)
        return status;
    uint64_t boot_id = w->reply.session.boot_id;
    if (w->n_parts > 0 && boot_id != w->boot_id)
        return KVT_ESTALE; /* another daemon meanwhile */
    w->boot_id = boot_id;
    if (w->n_parts == 0)
        w->expected = rep.sequence + 1;
    status = keep_part(w, rep.end_place, rep.sequence);
    w->next_place = rep.end_place;
    w->has_all = rep.end_place > rep.max_place;
    w->at = rep.pages;
    w->n_left = rep.n_page_bytes;
    w->n_pages = rep.n_pages;
    return status;
}

/* --- events -------------------------------------------------------------------------------------
 */

static int is_news(const kvt_watch *w, uint64_t sequence, uint32_t place) {
    for (uint32_t i = 0; i < w->n_parts; i++)
        if (place < w->parts[i].end)
            return sequence > w->parts[i].sequence;
    return 1;
}

/* KVT_ESTALE: something was missed. */
static kvt_status next_message(kvt_watch *w, uint32_t timeout_ms) {
    const void *bytes;
    const uint8_t *body;
    size_t n_bytes;
    kvt_wire_header header;
    kvt_status status = kvt_listener_next(w->listener, timeout_ms, &bytes, &n_bytes);
    if (status != KVT_OK)
        return status;
    if (kvt_wire_open(bytes, n_bytes, &header, &body) != KVT_OK || header.kind != KVT_WIRE_EVENTS ||
        kvt_wire_get_events(body, header.body_bytes, &w->n_events, &w->event_at,
                            &w->n_event_left) != KVT_OK)
        return kvt_error(KVT_EPROTO, "what is told at %s are no events", w->path);
    w->number = header.number;
    return header.boot_id != w->boot_id || header.number > w->expected ? KVT_ESTALE : KVT_OK;
}

/* The next event that says something new. KVT_EAGAIN is not among the statuses: 0 in *ret_is_there
 * is it. */
static kvt_status next_event(kvt_watch *w, kvt_watched *ret, int *ret_is_there) {
    *ret_is_there = 0;
    while (w->n_events > 0) {
        kvt_event event;
        if (kvt_wire_next_event(&w->event_at, &w->n_event_left, &event) != KVT_OK)
            return kvt_error(KVT_EPROTO, "what is told at %s are no events", w->path);
        w->n_events--;
        uint64_t sequence = w->number++;
        if (sequence < w->expected)
            continue;
        w->expected = sequence + 1;
        if (!is_news(w, sequence, event.place))
            continue;
        *ret = (kvt_watched){.kind = event.kind, .sequence = sequence, .event = event};
        *ret_is_there = 1;
        return KVT_OK;
    }
    return KVT_OK;
}

/* --- the way through ----------------------------------------------------------------------------
 */

static kvt_status step_parts(kvt_watch *w, kvt_watched *ret, int *ret_is_there) {
    *ret_is_there = 0;
    if (w->n_pages == 0 && w->has_all) {
        drop_reply(w);
        w->state = WATCH_EVENTS;
        *ret = (kvt_watched){.kind = KVT_WATCH_LIVE};
        *ret_is_there = 1;
        return KVT_OK;
    }
    if (w->n_pages == 0)
        return next_part(w);
    kvt_event event;
    if (kvt_wire_next_event(&w->at, &w->n_left, &event) != KVT_OK || event.kind != KVT_EVENT_ADDED)
        return kvt_client_nonsense(w->client, "a snapshot");
    w->n_pages--;
    *ret = (kvt_watched){.kind = KVT_EVENT_ADDED, .event = event};
    *ret_is_there = 1;
    return KVT_OK;
}

static kvt_status step(kvt_watch *w, uint32_t timeout_ms, kvt_watched *ret, int *ret_is_there) {
    *ret_is_there = 0;
    if (w->state == WATCH_LOST) {
        kvt_status status = begin(w);
        if (status != KVT_OK)
            return status;
        *ret = (kvt_watched){.kind = KVT_WATCH_RESTART};
        *ret_is_there = 1;
        return KVT_OK;
    }
    if (w->state == WATCH_PARTS)
        return step_parts(w, ret, ret_is_there);
    kvt_status status = next_event(w, ret, ret_is_there);
    if (status == KVT_OK && !*ret_is_there)
        status = next_message(w, timeout_ms);
    return status;
}

kvt_status kvt_watch_next(kvt_watch *w, uint32_t timeout_ms, kvt_watched *ret) {
    uint64_t end_ms = kvt_now_ms() + timeout_ms;
    for (;;) {
        int is_there;
        uint64_t now_ms = kvt_now_ms();
        kvt_status status =
            step(w, now_ms < end_ms ? (uint32_t)(end_ms - now_ms) : 0, ret, &is_there);
        if (status == KVT_OK && is_there)
            return KVT_OK;
        if (status == KVT_OK)
            continue;
        if (status == KVT_ETIMEDOUT && w->state == WATCH_EVENTS)
            return status;
        lose(w); /* the next step begins anew */
        if (status != KVT_ESTALE && status != KVT_ECONN)
            return status;
        if (kvt_now_ms() >= end_ms)
            return kvt_error(KVT_ETIMEDOUT, "the daemon is away");
        if (status == KVT_ECONN && kvt_client_pause(w->client, 20, end_ms) == KVT_ECLOSED)
            return KVT_ECLOSED;
    }
}

kvt_status kvt_watch_open(kvt_client *client, kvt_watch **ret_watch) {
    kvt_watch *w = kvt_memory_get(sizeof *w);
    if (!w)
        return kvt_error_plain(KVT_ENOMEM);
    w->client = client;
    *ret_watch = w;
    return KVT_OK;
}

void kvt_watch_close(kvt_watch *w) {
    if (!w)
        return;
    lose(w);
    free(w->parts);
    free(w);
}
