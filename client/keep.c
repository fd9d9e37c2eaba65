/*
 * keep.c - keeping and forgetting: pins, and flush.
 */
#include "client/client.h"

#include <stdlib.h>

static uint32_t realm_of(uint32_t realm, const kvt_session *s) {
    return realm ? realm : s->realm;
}

kvt_status kvt_call_in_realm(kvt_client *c, const kvt_request *request, uint32_t realm,
                             kvt_reply *ret_reply) {
    uint64_t deadline_ms = kvt_client_deadline(c);
    kvt_status status = kvt_client_call(c, request, deadline_ms, ret_reply);
    if (status == KVT_ENOENT && realm == 0 && ret_reply->session.realm != 0) {
        kvt_session_forget_realm(c, &ret_reply->session);
        status = kvt_client_call(c, request, deadline_ms, ret_reply);
    }
    return status;
}

static kvt_status check_tokens(const uint32_t *tokens, size_t n_tokens) {
    if (n_tokens == 0 || !tokens)
        return kvt_error(KVT_EINVAL, "a prefix has at least one token");
    if (n_tokens > KVT_MAX_REQUEST_TOKENS)
        return kvt_error(KVT_ELIMIT, "the prefix has %zu tokens; at most %d are possible", n_tokens,
                         KVT_MAX_REQUEST_TOKENS);
    return KVT_OK;
}

static kvt_status check_realm(const kvt_client *c, uint32_t realm) {
    if (realm == 0 && c->reports_only)
        return kvt_error(KVT_EINVAL, "this client has no realm of its own: name one by its number");
    return KVT_OK;
}

/* --- pins ---------------------------------------------------------------------------------------
 */

typedef struct pin_args {
    uint32_t realm, ttl_ms;
    uint64_t max_bytes;
    const uint32_t *tokens;
    size_t n_tokens;
} pin_args;

static void put_pin(kvt_writer *w, const kvt_session *s, const void *context) {
    const pin_args *a = context;
    kvt_pin_req req = {.realm = realm_of(a->realm, s),
                       .ttl_ms = a->ttl_ms,
                       .max_bytes = a->max_bytes,
                       .n_tokens = (uint32_t)a->n_tokens};
    kvt_wire_put_pin_req(w, &req);
    kvt_wire_put_tokens(w, a->tokens, a->n_tokens);
}

static kvt_status pin(kvt_client *c, const pin_args *args, kvt_pin_info *ret_info) {
    kvt_request request = {.op = KVT_OP_PIN,
                           .body_bytes = 20 + args->n_tokens * sizeof(uint32_t),
                           .put = put_pin,
                           .context = args};
    kvt_reply reply;
    kvt_pin_rep rep;
    kvt_status status = kvt_call_in_realm(c, &request, args->realm, &reply);
    if (status != KVT_OK)
        return status;
    if (kvt_wire_get_pin_rep(reply.body, reply.n_body, &rep) != KVT_OK || rep.pin == 0 ||
        rep.n_tokens > args->n_tokens)
        status = kvt_client_nonsense(c, "its answer to PIN");
    else
        *ret_info = (kvt_pin_info){
            .pin = rep.pin, .pinned_tokens = rep.n_tokens, .pinned_bytes = rep.n_bytes};
    kvt_reply_free(&reply);
    return status;
}

kvt_status kvt_pin_spans(kvt_client *client, uint32_t realm, const uint32_t *tokens,
                         size_t n_tokens, const kvt_span *spans, size_t n_spans, uint32_t ttl_ms,
                         uint64_t max_bytes, kvt_pin_info *ret_info) {
    pin_args args = {realm, ttl_ms, max_bytes, tokens, n_tokens};
    uint32_t *words = NULL;
    if (!client || !ret_info)
        return kvt_error(KVT_EINVAL, "kvt_pin needs a client and ret_info");
    kvt_status status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    status = check_tokens(tokens, n_tokens);
    if (status == KVT_OK)
        status = check_realm(client, realm);
    if (status == KVT_OK && n_spans) {
        status = kvt_spans_words(tokens, n_tokens, spans, n_spans, &words);
        args.tokens = words;
    }
    if (status == KVT_OK)
        status = pin(client, &args, ret_info);
    free(words);
    kvt_client_leave(client);
    return status;
}

kvt_status kvt_pin(kvt_client *client, uint32_t realm, const uint32_t *tokens, size_t n_tokens,
                   uint32_t ttl_ms, uint64_t max_bytes, kvt_pin_info *ret_info) {
    return kvt_pin_spans(client, realm, tokens, n_tokens, NULL, 0, ttl_ms, max_bytes, ret_info);
}

static void put_unpin(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_u64(w, *(const uint64_t *)context);
}

kvt_status kvt_unpin(kvt_client *client, uint64_t number) {
    kvt_request request = {
        .op = KVT_OP_UNPIN, .body_bytes = 8, .put = put_unpin, .context = &number};
    kvt_reply reply;
    if (!client)
        return kvt_error(KVT_EINVAL, "kvt_unpin needs a client");
    kvt_status status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    status = kvt_client_call(client, &request, kvt_client_deadline(client), &reply);
    kvt_reply_free(&reply);
    kvt_client_leave(client);
    return status;
}

/* --- flush --------------------------------------------------------------------------------------
 */

typedef struct flush_args {
    kvt_flush_scope scope;
    uint32_t realm;
    const uint32_t *tokens;
    size_t n_tokens;
} flush_args;

static void put_flush(kvt_writer *w, const kvt_session *s, const void *context) {
    const flush_args *a = context;
    kvt_flush_req req = {.scope = (uint32_t)a->scope,
                         .realm = a->scope == KVT_FLUSH_TENANT ? 0 : realm_of(a->realm, s),
                         .n_tokens = (uint32_t)a->n_tokens};
    kvt_wire_put_flush_req(w, &req);
    kvt_wire_put_tokens(w, a->tokens, a->n_tokens);
}

static kvt_status flush(kvt_client *c, const flush_args *args, kvt_flush_info *ret_info) {
    kvt_request request = {.op = KVT_OP_FLUSH,
                           .body_bytes = 12 + args->n_tokens * sizeof(uint32_t),
                           .put = put_flush,
                           .context = args};
    kvt_reply reply;
    kvt_flush_rep rep;
    kvt_status status = kvt_call_in_realm(c, &request, args->realm, &reply);
    if (status != KVT_OK)
        return status;
    if (kvt_wire_get_flush_rep(reply.body, reply.n_body, &rep) != KVT_OK)
        status = kvt_client_nonsense(c, "its answer to FLUSH");
    else
        *ret_info = (kvt_flush_info){.pages = rep.pages,
                                     .n_bytes = rep.n_bytes,
                                     .held_pages = rep.held_pages,
                                     .held_bytes = rep.held_bytes,
                                     .pins = rep.pins};
    kvt_reply_free(&reply);
    return status;
}

static kvt_status check_flush(const kvt_client *c, const flush_args *a) {
    if (a->scope != KVT_FLUSH_TENANT && a->scope != KVT_FLUSH_REALM && a->scope != KVT_FLUSH_PREFIX)
        return kvt_error(KVT_EINVAL, "scope %d is none of kvt_flush_scope", (int)a->scope);
    if (a->scope != KVT_FLUSH_PREFIX && a->n_tokens > 0)
        return kvt_error(KVT_EINVAL, "only KVT_FLUSH_PREFIX takes tokens");
    if (a->scope == KVT_FLUSH_TENANT)
        return a->realm ? kvt_error(KVT_EINVAL, "KVT_FLUSH_TENANT takes no realm") : KVT_OK;
    kvt_status status = check_realm(c, a->realm);
    if (status == KVT_OK && a->scope == KVT_FLUSH_PREFIX)
        status = check_tokens(a->tokens, a->n_tokens);
    return status;
}

static kvt_status flush_prefix(kvt_client *client, flush_args *args, const kvt_span *spans,
                               size_t n_spans, kvt_flush_info *ret_info) {
    uint32_t *words = NULL;
    if (!client || !ret_info)
        return kvt_error(KVT_EINVAL, "kvt_flush needs a client and ret_info");
    kvt_status status = kvt_client_enter(client);
    if (status != KVT_OK)
        return status;
    status = check_flush(client, args);
    if (status == KVT_OK && n_spans) {
        status = kvt_spans_words(args->tokens, args->n_tokens, spans, n_spans, &words);
        args->tokens = words;
    }
    if (status == KVT_OK)
        status = flush(client, args, ret_info);
    free(words);
    kvt_client_leave(client);
    return status;
}

kvt_status kvt_flush(kvt_client *client, kvt_flush_scope scope, uint32_t realm,
                     const uint32_t *tokens, size_t n_tokens, kvt_flush_info *ret_info) {
    flush_args args = {scope, realm, tokens, n_tokens};
    return flush_prefix(client, &args, NULL, 0, ret_info);
}

kvt_status kvt_flush_spans(kvt_client *client, uint32_t realm, const uint32_t *tokens,
                           size_t n_tokens, const kvt_span *spans, size_t n_spans,
                           kvt_flush_info *ret_info) {
    flush_args args = {KVT_FLUSH_PREFIX, realm, tokens, n_tokens};
    return flush_prefix(client, &args, spans, n_spans, ret_info);
}
