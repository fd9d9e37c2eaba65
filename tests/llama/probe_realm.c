/*
 * probe_realm.c - contexts that cannot be shared are refused in words; and what changes bytes
 * changes the realm, what does not does not.
 *
 *   realm    needs no daemon
 */
#include "tests/llama/probe.h"

typedef void (*change)(struct llama_context_params *params, kvt_llama_options *options);

/* Status of opening with this change; the engine's name in to where it worked. */
static kvt_status open_with(const probe *p, change what, char to[KVT_MAX_NAME_BYTES + 1]) {
    struct llama_context_params params = p->params;
    kvt_llama_options options = {.context = &params,
                                 .model_path = p->model_path,
                                 .socket = "/nowhere/kvtrunk.sock",
                                 .scratch = -1};
    kvt_llama *k;
    if (what)
        what(&params, &options);
    struct llama_context *ctx = llama_init_from_model(p->model, params);
    CHECK(ctx);
    kvt_status status = kvt_llama_open(ctx, &options, &k);
    if (status == KVT_OK) {
        const kvt_realm *realm = kvt_llama_realm(k);
        snprintf(to, KVT_MAX_NAME_BYTES + 1, "%s", realm->engine);
        CHECK(strncmp(realm->model, options.model_name ? "mine" : "xxh3-128 ", 4) == 0);
        kvt_llama_close(k);
    }
    llama_free(ctx);
    return status;
}

static void no_flash(struct llama_context_params *params, kvt_llama_options *options) {
    (void)options;
    params->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
}

static void auto_flash(struct llama_context_params *params, kvt_llama_options *options) {
    (void)options;
    params->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
}

static void one_sequence(struct llama_context_params *params, kvt_llama_options *options) {
    (void)options;
    params->n_seq_max = 1;
}

static void own_streams(struct llama_context_params *params, kvt_llama_options *options) {
    (void)options;
    params->kv_unified = false;
}

static void small_batches(struct llama_context_params *params, kvt_llama_options *options) {
    (void)options;
    params->n_batch = params->n_ubatch = 32;
}

static void quantised_and_i8(struct llama_context_params *params, kvt_llama_options *options) {
    params->type_k = params->type_v = GGML_TYPE_Q8_0;
    options->codec = "i8";
}

static void no_such_codec(struct llama_context_params *params, kvt_llama_options *options) {
    (void)params;
    options->codec = "i9";
}

static void no_such_file(struct llama_context_params *params, kvt_llama_options *options) {
    (void)params;
    options->model_path = "/nowhere/model.gguf";
}

static void quantised(struct llama_context_params *params, kvt_llama_options *options) {
    (void)options;
    params->type_k = params->type_v = GGML_TYPE_Q8_0;
}

static void other_rope(struct llama_context_params *params, kvt_llama_options *options) {
    (void)options;
    params->rope_freq_base = 20000;
}

static void other_rows(struct llama_context_params *params, kvt_llama_options *options) {
    (void)params;
    options->seal_min_tokens = 1;
}

static void own_word(struct llama_context_params *params, kvt_llama_options *options) {
    (void)params;
    options->extra = "control vector 1";
}

static void other_size(struct llama_context_params *params, kvt_llama_options *options) {
    params->n_ctx += 512;
    params->n_threads = params->n_threads_batch = 2;
    options->model_name = "mine";
    options->name = "somebody";
}

int probe_realm(probe *p) {
    static const struct {
        change what;
        kvt_status status;
        const char *word;
    } refused[] = {
        {no_flash, KVT_ENOTSUP, "flash attention"}, {auto_flash, KVT_ENOTSUP, "flash attention"},
        {one_sequence, KVT_ENOTSUP, "n_seq_max"},   {own_streams, KVT_ENOTSUP, "kv_unified"},
        {small_batches, KVT_EINVAL, "micro-batch"}, {quantised_and_i8, KVT_ENOTSUP, "codec i8"},
        {no_such_codec, KVT_ESYNTAX, "i9"},         {no_such_file, KVT_EIO, "/nowhere/model"},
    };
    static const change differ[] = {quantised, other_rope, other_rows, own_word};
    char usual[KVT_MAX_NAME_BYTES + 1] = "", other[KVT_MAX_NAME_BYTES + 1] = "";
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        kvt_status status = open_with(p, refused[i].what, other);
        CHECK_MSG(status == refused[i].status && strstr(kvt_llama_last_error(), refused[i].word),
                  "case %zu: %s, %s", i, kvt_status_name(status), kvt_llama_last_error());
    }
    CHECK(open_with(p, NULL, usual) == KVT_OK);
    CHECK(open_with(p, other_size, other) == KVT_OK);
    CHECK_MSG(strcmp(usual, other) == 0, "%s\n%s", usual, other);
    for (size_t i = 0; i < sizeof differ / sizeof *differ; i++) {
        CHECK(open_with(p, differ[i], other) == KVT_OK);
        CHECK_MSG(strcmp(usual, other) != 0, "case %zu: %s", i, other);
    }
    printf("{\"engine\": \"%s\"}\n", usual);
    return 0;
}
