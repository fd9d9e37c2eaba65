/* kvt_llama.c - opening and closing: what the context looks like, and the client below. */
#include "client/adapters/llama/adapter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_TOKENS = 64,
    SEAL_MIN_TOKENS = 64, /* llama.cpp's CPU kernels for large batches begin there */
    TIMEOUT_MS = 1000,
    WAIT_MS = 60000,
    PIECE_BYTES = 16 << 20,
};

static _Thread_local char last_error[LLAMA_WHY_BYTES] = "";

const char *kvt_llama_last_error(void) {
    return last_error;
}

kvt_status llama_fail(kvt_status status, const char *format, ...) {
    char text[LLAMA_WHY_BYTES]; /* an argument may be the last error itself */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof text);
    return status;
}

void kvt_llama_context_params(struct llama_context_params *params) {
    params->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params->kv_unified = true;
    params->swa_full = true;
    params->n_seq_max++;
}

kvt_client *kvt_llama_client(kvt_llama *llama) {
    return llama ? llama->client : NULL;
}

const kvt_realm *kvt_llama_realm(const kvt_llama *llama) {
    return &llama->realm.realm;
}

/* --- the context --------------------------------------------------------------------------------
 */

/* One token through the model, and its state looked at. */
static kvt_status learn(kvt_llama *k) {
    struct llama_batch b = llama_batch_init(1, 0, 1);
    char why[LLAMA_WHY_BYTES] = "";
    b.n_tokens = 1;
    b.token[0] = 0;
    b.pos[0] = 0;
    b.n_seq_id[0] = 1;
    b.seq_id[0][0] = k->scratch;
    b.logits[0] = 1;
    llama_memory_seq_rm(k->memory, k->scratch, -1, -1);
    int code = llama_decode(k->ctx, b);
    llama_batch_free(b);
    if (code != 0)
        return llama_fail(KVT_EINTERNAL, "llama_decode of one token failed with %d", code);
    size_t n_bytes = llama_state_seq_get_size(k->ctx, k->scratch);
    kvt_status status = KVT_ENOMEM;
    if (n_bytes && (k->state = malloc(n_bytes))) {
        k->state_room = n_bytes;
        n_bytes = llama_state_seq_get_data(k->ctx, k->state, k->state_room, k->scratch);
        status = state_learn(k->state, n_bytes, why, sizeof why, &k->shape);
    }
    llama_memory_seq_rm(k->memory, k->scratch, -1, -1);
    return status == KVT_OK ? status : llama_fail(status, "%s", why);
}

static kvt_status check_context(kvt_llama *k, const kvt_llama_options *o) {
    const struct llama_context_params *p = o->context;
    k->n_ctx = llama_n_ctx(k->ctx);
    k->n_seq_max = llama_n_seq_max(k->ctx);
    k->memory = llama_get_memory(k->ctx);
    k->scratch = o->scratch == -1 ? (llama_seq_id)k->n_seq_max - 1 : o->scratch;
    if (k->scratch < 0 || (uint32_t)k->scratch >= k->n_seq_max)
        return llama_fail(KVT_EINVAL, "options.scratch is %d; 0 to %u are possible", o->scratch,
                          k->n_seq_max - 1);
    if (!k->memory)
        return llama_fail(KVT_ENOTSUP, "this model keeps no KV cache");
    if (k->n_seq_max < 2)
        return llama_fail(KVT_ENOTSUP, "the context has one sequence and none to spare: make it "
                                       "with n_seq_max of 2 or more");
    if (p->flash_attn_type != LLAMA_FLASH_ATTN_TYPE_ENABLED)
        return llama_fail(KVT_ENOTSUP,
                          "the context was not made with flash attention explicitly enabled: "
                          "processes that decide for themselves may decide differently");
    if (!p->kv_unified)
        return llama_fail(KVT_ENOTSUP, "the context was not made with kv_unified");
    return KVT_OK;
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static kvt_status choose_sizes(kvt_llama *k, const kvt_llama_options *o) {
    uint32_t n_swa = (uint32_t)llama_model_n_swa(llama_get_model(k->ctx));
    k->page_tokens = o->page_tokens ? o->page_tokens : PAGE_TOKENS;
    k->seal_min_tokens = o->seal_min_tokens ? o->seal_min_tokens : SEAL_MIN_TOKENS;
    k->wait_ms = o->wait_ms ? o->wait_ms : WAIT_MS;
    k->chunk_tokens = least(llama_n_ubatch(k->ctx), llama_n_batch(k->ctx));
    if (k->shape.n_caches == 2) {
        if (n_swa == 0)
            return llama_fail(KVT_ENOTSUP, "two caches, and no sliding window: not known");
        k->chunk_tokens = least(k->chunk_tokens, n_swa);
        k->has_groups = !o->whole_windows;
        k->window_tokens = k->has_groups || !o->context->swa_full ? n_swa : 0;
    }
    if (k->chunk_tokens < k->page_tokens || k->chunk_tokens < k->seal_min_tokens)
        return llama_fail(KVT_EINVAL,
                          "micro-batches of %u tokens (window %u) hold no page of %u, or not the "
                          "%u that are handed in at a time",
                          llama_n_ubatch(k->ctx), n_swa, k->page_tokens, k->seal_min_tokens);
    const uint32_t one[STATE_MAX_CACHES] = {1, 1};
    size_t pages = PIECE_BYTES / (state_bytes(&k->shape, 0, one) * k->page_tokens);
    k->piece_tokens = least((pages ? (uint32_t)pages : 1) * k->page_tokens,
                            k->chunk_tokens - k->chunk_tokens % k->page_tokens);
    return KVT_OK;
}

static kvt_status make_buffers(kvt_llama *k) {
    uint64_t rows = (uint64_t)k->realm.realm.geometry.n_layers * k->page_tokens;
    for (int part = 0; part < 2; part++)
        if (!(k->page[part] = calloc(rows, k->shape.row_bytes[part])))
            return llama_fail(KVT_ENOMEM, "no memory for a page");
    k->batch = llama_batch_init((int32_t)k->chunk_tokens, 0, 1);
    return k->batch.token ? llama_state_room(k, k->piece_tokens)
                          : llama_fail(KVT_ENOMEM, "no memory for a batch");
}

/* --- open and close -----------------------------------------------------------------------------
 */

static kvt_status connect_client(kvt_llama *k, const kvt_llama_options *o) {
    kvt_options options = {.socket = o->socket,
                           .name = o->name,
                           .timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS,
                           .staging_pages = k->chunk_tokens / k->page_tokens + 2,
                           .flags = KVT_OPEN_LAZY};
    kvt_status status = kvt_open(&options, &k->realm.realm, &k->client);
    return status == KVT_OK ? status : llama_fail(status, "%s", kvt_last_error());
}

kvt_status kvt_llama_open(struct llama_context *ctx, const kvt_llama_options *options,
                          kvt_llama **ret_llama) {
    if (!ctx || !options || !options->context)
        return llama_fail(KVT_EINVAL, "a context and options.context are needed");
    kvt_llama *k = calloc(1, sizeof *k);
    if (!k)
        return llama_fail(KVT_ENOMEM, "no memory");
    k->ctx = ctx;
    kvt_status status = check_context(k, options);
    if (status == KVT_OK)
        status = learn(k);
    if (status == KVT_OK)
        status = choose_sizes(k, options);
    if (status == KVT_OK)
        status = llama_realm_fill(k, options);
    if (status == KVT_OK)
        status = make_buffers(k);
    if (status == KVT_OK)
        status = connect_client(k, options);
    if (status == KVT_OK)
        *ret_llama = k;
    else
        kvt_llama_close(k);
    return status;
}

void kvt_llama_close(kvt_llama *k) {
    if (!k)
        return;
    kvt_close(k->client);
    if (k->batch.token)
        llama_batch_free(k->batch);
    free(k->page[0]);
    free(k->page[1]);
    free(k->state);
    free(k);
}
