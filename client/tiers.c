/* tiers.c - calls about the lower tiers: written down, checked, brought up ahead of use. */
#include "client/client.h"

/* --- spill, verify ------------------------------------------------------------------------------
 */

static void put_wait(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_u32(w, *(const uint32_t *)context);
}

static kvt_status ask(kvt_client *c, uint16_t op, uint32_t wait_ms, kvt_tiers_rep *ret_rep) {
    kvt_request request = {.op = op, .body_bytes = 4, .put = put_wait, .context = &wait_ms};
    kvt_reply reply;
    if (!c)
        return kvt_error(KVT_EINVAL, "this call needs a client");
    kvt_status status = kvt_client_enter(c);
    if (status != KVT_OK)
        return status;
    status = kvt_client_call(c, &request, kvt_client_deadline(c) + wait_ms, &reply);
    if (status == KVT_OK && kvt_wire_get_tiers_rep(reply.body, reply.n_body, ret_rep) != KVT_OK)
        status = kvt_client_nonsense(c, "its answer about the tiers");
    kvt_reply_free(&reply);
    kvt_client_leave(c);
    return status;
}

kvt_status kvt_spill(kvt_client *client, uint32_t wait_ms, kvt_spill_info *ret_info) {
    kvt_tiers_rep rep;
    kvt_status status = ask(client, KVT_OP_SPILL, wait_ms, &rep);
    if (status == KVT_OK && ret_info)
        *ret_info = (kvt_spill_info){.dirty_pages = rep.pages_dirty, .disk_pages = rep.pages_disk};
    return status;
}

kvt_status kvt_verify(kvt_client *client, uint32_t wait_ms, kvt_verify_info *ret_info) {
    kvt_tiers_rep rep;
    kvt_status status = ask(client, KVT_OP_VERIFY, wait_ms, &rep);
    if (status == KVT_OK && ret_info)
        *ret_info = (kvt_verify_info){.checked_pages = rep.checked, .corrupt_pages = rep.corrupt};
    return status;
}

/* --- prefetch -----------------------------------------------------------------------------------
 */

typedef struct prefetch_args {
    const uint32_t *tokens;
    size_t n_tokens;
} prefetch_args;

static void put_prefetch(kvt_writer *w, const kvt_session *s, const void *context) {
    const prefetch_args *a = context;
    kvt_wire_put_u32(w, s->realm);
    kvt_wire_put_u32(w, (uint32_t)a->n_tokens);
    kvt_wire_put_tokens(w, a->tokens, a->n_tokens);
}

static kvt_status prefetch(kvt_client *c, const prefetch_args *args, kvt_prefetch_info *ret_info) {
    kvt_request request = {.op = KVT_OP_PREFETCH,
                           .body_bytes = 8 + args->n_tokens * sizeof(uint32_t),
                           .put = put_prefetch,
                           .context = args};
    kvt_reply reply;
    kvt_prefetch_rep rep;
    kvt_status status = kvt_call_in_realm(c, &request, 0, &reply);
    if (status == KVT_OK && kvt_wire_get_prefetch_rep(reply.body, reply.n_body, &rep) != KVT_OK)
        status = kvt_client_nonsense(c, "its answer to PREFETCH");
    if (status == KVT_OK && ret_info)
        *ret_info =
            (kvt_prefetch_info){.held_tokens = rep.held_tokens, .ready_tokens = rep.ready_tokens};
    kvt_reply_free(&reply);
    return status;
}

kvt_status kvt_prefetch(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                        kvt_prefetch_info *ret_info) {
    prefetch_args args = {tokens, n_tokens};
    if (!client || (n_tokens > 0 && !tokens))
        return kvt_error(KVT_EINVAL, "kvt_prefetch needs a client and tokens");
    if (client->reports_only)
        return kvt_error(KVT_EINVAL, "this client has no realm");
    if (n_tokens > KVT_MAX_REQUEST_TOKENS)
        return kvt_error(KVT_ELIMIT, "%zu tokens; a path has at most %d", n_tokens,
                         KVT_MAX_REQUEST_TOKENS);
    kvt_status status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    status = prefetch(client, &args, ret_info);
    kvt_client_leave(client);
    return status;
}

/* --- where pages were ---------------------------------------------------------------------------
 */

kvt_status kvt_lease_tiers(const kvt_lease *lease, uint32_t group, size_t first_page,
                           size_t n_pages, uint8_t *ret_tiers) {
    if (!lease || !ret_tiers || group >= lease->client->geometry.n_groups)
        return kvt_error(KVT_EINVAL, "kvt_lease_tiers needs a lease, a layer group that its "
                                     "geometry has, and ret_tiers");
    if (lease->pending && lease->pending != kvt_pending_mine())
        return kvt_error(KVT_EBUSY, "a call on the lease was begun: kvt_finish it first");
    if (first_page < lease->first_page[group] || first_page > lease->n_pages ||
        n_pages > lease->n_pages - first_page)
        return kvt_error(KVT_EINVAL,
                         "pages %zu and %zu on; of layer group %u the lease has pages %u to %u",
                         first_page, n_pages, group, lease->first_page[group], lease->n_pages);
    for (size_t i = 0; i < n_pages; i++)
        ret_tiers[i] = kvt_lease_page(lease, (uint32_t)(first_page + i), group)->tier;
    return KVT_OK;
}
