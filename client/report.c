/* report.c - what the daemon tells about itself. */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

static void put_lines(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_u32(w, *(const uint32_t *)context);
}

static kvt_status take_text(kvt_client *c, const kvt_reply *reply, char **ret_text) {
    kvt_text_rep rep;
    if (kvt_wire_get_text_rep(reply->body, reply->n_body, &rep) != KVT_OK)
        return kvt_client_nonsense(c, "a report");
    char *text = kvt_memory_get((size_t)rep.n_bytes + 1);
    if (!text)
        return kvt_error_plain(KVT_ENOMEM);
    memcpy(text, rep.text, rep.n_bytes);
    *ret_text = text;
    return KVT_OK;
}

static kvt_status ask(kvt_client *c, const kvt_request *request, char **ret_text) {
    kvt_reply reply;
    if (!c || !ret_text)
        return kvt_error(KVT_EINVAL, "a report needs a client and a place for it");
    kvt_status status = kvt_client_enter(c);
    if (status != KVT_OK)
        return status;
    status = kvt_client_call(c, request, kvt_client_deadline(c), &reply);
    if (status == KVT_OK)
        status = take_text(c, &reply, ret_text);
    kvt_reply_free(&reply);
    kvt_client_leave(c);
    return status;
}

kvt_status kvt_status_json(kvt_client *client, char **ret_json) {
    kvt_request request = {.op = KVT_OP_STATUS};
    return ask(client, &request, ret_json);
}

static kvt_status ask_lines(kvt_client *client, uint16_t op, uint32_t max_lines, char **ret_lines) {
    kvt_request request = {.op = op, .body_bytes = 4, .put = put_lines, .context = &max_lines};
    return ask(client, &request, ret_lines);
}

kvt_status kvt_tree_json(kvt_client *client, uint32_t max_lines, char **ret_lines) {
    return ask_lines(client, KVT_OP_TREE, max_lines, ret_lines);
}

kvt_status kvt_pins_json(kvt_client *client, uint32_t max_lines, char **ret_lines) {
    return ask_lines(client, KVT_OP_PINS, max_lines, ret_lines);
}

kvt_status kvt_leases_json(kvt_client *client, uint32_t max_lines, char **ret_lines) {
    return ask_lines(client, KVT_OP_LEASES, max_lines, ret_lines);
}
