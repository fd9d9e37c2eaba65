/*
 * call.c - a request and its reply; and undoing what was asked for and never answered.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SENDS = 4 }; /* of one request that the daemon says it did nothing about */

/* --- one message there and back -----------------------------------------------------------------
 */

static kvt_status make_message(const kvt_session *s, const kvt_request *request,
                               kvt_message **ret_message) {
    size_t n_bytes = KVT_WIRE_HEADER_BYTES + request->body_bytes;
    size_t max_bytes = s->max_bytes < KVT_WIRE_MAX_BYTES ? s->max_bytes : KVT_WIRE_MAX_BYTES;
    if (n_bytes > max_bytes)
        return kvt_error(KVT_ELIMIT, "the request would have %zu bytes; the daemon takes %zu",
                         n_bytes, max_bytes);
    kvt_message *message = kvt_message_new(n_bytes);
    if (!message)
        return kvt_error_plain(KVT_ENOMEM);
    kvt_writer w;
    kvt_wire_start(&w, kvt_message_bytes(message, &n_bytes), n_bytes);
    if (request->put)
        request->put(&w, s, request->context);
    kvt_wire_header header = {.kind = KVT_WIRE_REQUEST, .op = request->op, .boot_id = s->boot_id};
    n_bytes = kvt_wire_finish(&w, header);
    KVT_ASSERT(n_bytes > 0); /* body_bytes was enough */
    kvt_message_cut(message, n_bytes);
    *ret_message = message;
    return KVT_OK;
}

kvt_status kvt_client_nonsense(kvt_client *c, const char *what) {
    kvt_transport_reset(c->transport);
    return kvt_error(KVT_EPROTO, "the daemon at %s does not speak the protocol: %s is wrong",
                     c->socket, what);
}

/* The daemon says why not. */
static kvt_status refused(const kvt_wire_header *header, const uint8_t *body) {
    kvt_wire_str text;
    if (kvt_wire_get_error(body, header->body_bytes, &text) != KVT_OK || text.n_bytes == 0)
        return kvt_error_plain((kvt_status)header->status);
    return kvt_error((kvt_status)header->status, "%.*s", (int)text.n_bytes, text.at);
}

static kvt_status read_reply(kvt_client *c, const kvt_request *request, kvt_reply *reply) {
    size_t n_bytes;
    kvt_wire_header header;
    const void *bytes = kvt_message_bytes(reply->message, &n_bytes);
    kvt_status status = kvt_wire_open(bytes, n_bytes, &header, &reply->body);
    if (status == KVT_EVERSION)
        return kvt_error(status,
                         "the daemon at %s speaks another version of the protocol than %d: "
                         "update one side",
                         c->socket, KVT_WIRE_VERSION);
    if (status != KVT_OK || header.kind != KVT_WIRE_REPLY || header.op != request->op ||
        header.number != reply->number) {
        reply->unanswered = 1;
        return kvt_client_nonsense(c, "the header of a reply");
    }
    reply->n_body = header.body_bytes;
    if (header.status == KVT_ESTALE && header.boot_id != reply->session.boot_id) {
        /* Another daemon than the one that this session is with; it has done nothing. */
        kvt_transport_reset(c->transport);
        return kvt_error_plain(KVT_ESESSION);
    }
    reply->session.boot_id = header.boot_id;
    return header.status == KVT_OK ? KVT_OK : refused(&header, reply->body);
}

kvt_status kvt_client_exchange(kvt_client *c, const kvt_session *s, const kvt_request *request,
                               uint64_t deadline_ms, kvt_reply *ret_reply) {
    kvt_message *message = NULL;
    *ret_reply = (kvt_reply){.session = *s};
    kvt_status status = make_message(s, request, &message);
    if (status != KVT_OK)
        return status;
    status = kvt_transport_call(c->transport, message, deadline_ms, kvt_cancel_mine(),
                                &ret_reply->number, &ret_reply->message);
    ret_reply->unanswered = status != KVT_OK && ret_reply->number != 0;
    if (status == KVT_OK)
        status = read_reply(c, request, ret_reply);
    if (status != KVT_OK)
        kvt_reply_free(ret_reply);
    return status;
}

void kvt_reply_free(kvt_reply *reply) {
    kvt_message_free(reply->message);
    reply->message = NULL;
    reply->body = NULL;
}

/* --- undoing ------------------------------------------------------------------------------------
 */

void kvt_client_undo(kvt_client *c, kvt_lease *lease, uint64_t number) {
    pthread_mutex_lock(&c->lock);
    lease->undo_number = number;
    lease->next_undo = c->undo;
    c->undo = lease;
    pthread_mutex_unlock(&c->lock);
}

static void put_cancel(kvt_writer *w, const kvt_session *s, const void *context) {
    const kvt_lease *lease = context;
    (void)s;
    kvt_wire_put_u64(w, lease->undo_number);
}

static void put_releases(kvt_writer *w, const kvt_session *s, const void *context) {
    uint32_t n = 0;
    (void)s;
    for (const kvt_lease *l = context; l; l = l->next_undo)
        n++;
    kvt_wire_put_u32(w, n);
    for (const kvt_lease *l = context; l; l = l->next_undo)
        kvt_wire_put_u64(w, l->id);
}

/*
 * Takes a batch out of the list, with the lock held: one request that is to be cancelled, or up to
 * KVT_WIRE_MAX_RELEASE leases that are to be released. Entries of older epochs are dropped, those
 * of newer ones (s was copied before they came) are left. NULL: nothing to do.
 */
static kvt_lease *take_undo(kvt_client *c, uint64_t epoch, uint32_t *ret_n) {
    kvt_lease *taken = NULL;
    uint32_t n = 0;
    for (kvt_lease **at = &c->undo; *at && n < KVT_WIRE_MAX_RELEASE;) {
        kvt_lease *lease = *at;
        int fits = !taken || (!lease->undo_number && !taken->undo_number);
        if (lease->epoch > epoch || (lease->epoch == epoch && !fits)) {
            at = &lease->next_undo;
            continue;
        }
        *at = lease->next_undo;
        if (lease->epoch < epoch) {
            free(lease);
            continue;
        }
        lease->next_undo = taken;
        taken = lease;
        n++;
    }
    *ret_n = n;
    return taken;
}

/* Tells the daemon of one batch. Refusals are as good as success: there is nothing left to undo. */
static kvt_status undo_batch(kvt_client *c, const kvt_session *s, const kvt_lease *batch,
                             uint32_t n, uint64_t deadline_ms) {
    kvt_request request = {
        .op = KVT_OP_CANCEL, .body_bytes = 8, .put = put_cancel, .context = batch};
    if (!batch->undo_number) {
        request.op = KVT_OP_RELEASE;
        request.body_bytes = 4 + (size_t)n * 8;
        request.put = put_releases;
    }
    kvt_reply reply;
    kvt_status status = kvt_client_exchange(c, s, &request, deadline_ms, &reply);
    if (status == KVT_OK)
        kvt_reply_free(&reply);
    int refused_it = status != KVT_OK && reply.number != 0 && !reply.unanswered;
    if (refused_it && status != KVT_ESESSION && status != KVT_EVERSION)
        status = KVT_OK;
    return status;
}

/* With the lock held, and left with it held. 0: there is nothing (more) to do. */
static int undo_some(kvt_client *c, const kvt_session *s, uint64_t deadline_ms,
                     kvt_status *ret_status) {
    uint32_t n;
    kvt_lease *batch = take_undo(c, s->epoch, &n);
    if (!batch)
        return 0;
    pthread_mutex_unlock(&c->lock);
    kvt_status status = undo_batch(c, s, batch, n, deadline_ms);
    pthread_mutex_lock(&c->lock);
    while (batch) {
        kvt_lease *lease = batch;
        batch = lease->next_undo;
        if (status == KVT_OK) {
            free(lease);
        } else {
            lease->next_undo = c->undo;
            c->undo = lease;
        }
    }
    *ret_status = status;
    return status == KVT_OK;
}

/*
 * Tells the daemon of everything that is to be undone, before anything else is asked. One thread
 * does it; others do not wait for it, since no request depends on another's being undone.
 */
static kvt_status undo_all(kvt_client *c, const kvt_session *s, uint64_t deadline_ms) {
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&c->lock);
    if (c->undo && !c->undoing) {
        c->undoing = 1;
        while (undo_some(c, s, deadline_ms, &status))
            ;
        c->undoing = 0;
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

void kvt_client_tidy(kvt_client *c) {
    pthread_mutex_lock(&c->lock);
    kvt_session s = c->session;
    int wanted = s.up && !c->closing && c->undo;
    pthread_mutex_unlock(&c->lock);
    if (wanted)
        undo_all(c, &s, kvt_client_deadline(c));
}

/* --- calls --------------------------------------------------------------------------------------
 */

/* One try: the session, what is to be undone, the request. */
static kvt_status try_call(kvt_client *c, const kvt_request *request, uint64_t deadline_ms,
                           kvt_reply *reply) {
    kvt_session s;
    *reply = (kvt_reply){0};
    kvt_status status = kvt_session_up(c, request->needs, deadline_ms, &s);
    if (status == KVT_OK && request->epoch && request->epoch != s.epoch)
        status = kvt_error_plain(KVT_ESTALE);
    if (status == KVT_OK)
        status = undo_all(c, &s, deadline_ms);
    if (status == KVT_OK)
        status = kvt_client_exchange(c, &s, request, deadline_ms + request->wait_ms, reply);
    reply->session = s;
    if (status == KVT_ECONN || status == KVT_ESESSION)
        kvt_session_down(c, &s);
    return status;
}

uint64_t kvt_client_deadline(const kvt_client *c) {
    return kvt_now_ms() + c->timeout_ms;
}

kvt_status kvt_client_call(kvt_client *c, const kvt_request *request, uint64_t deadline_ms,
                           kvt_reply *ret_reply) {
    for (int sends = 0; sends < MAX_SENDS; sends++) {
        kvt_status status = try_call(c, request, deadline_ms, ret_reply);
        if (status != KVT_ESESSION)
            return status;
    }
    return kvt_error(KVT_EPROTO, "the daemon at %s forgets each session right after HELLO",
                     c->socket);
}
