/*
 * suspect.c - telling the daemon of a page that is damaged where it stands. It looks itself, and
 * answers when nobody gets the page any more; what it answers changes nothing for whoever has read
 * it, so nothing that goes wrong here is the caller's business.
 */
#include "client/client.h"

static void put_suspect(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_suspect_req(w, context);
}

/* A daemon that does not know the message may cut the connection for it: once is enough. */
static int is_deaf(kvt_client *c, uint64_t boot_id, int now) {
    pthread_mutex_lock(&c->lock);
    if (now)
        c->deaf_boot_id = boot_id;
    int deaf = c->deaf_boot_id != 0 && c->deaf_boot_id == c->session.boot_id;
    pthread_mutex_unlock(&c->lock);
    return deaf;
}

void kvt_suspect(const kvt_lease *lease, uint32_t page, uint32_t group) {
    kvt_client *c = lease->client;
    kvt_suspect_req req = {.lease = lease->id, .page = page, .group = group};
    kvt_request request = {.op = KVT_OP_SUSPECT,
                           .epoch = lease->epoch,
                           .body_bytes = 16,
                           .put = put_suspect,
                           .context = &req};
    kvt_reply reply;
    if (is_deaf(c, 0, 0))
        return;
    kvt_status status = kvt_client_call(c, &request, kvt_client_deadline(c), &reply);
    if (status == KVT_ECONN && reply.unanswered)
        is_deaf(c, reply.session.boot_id, 1);
    kvt_reply_free(&reply);
}
