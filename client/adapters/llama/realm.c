/* realm.c - what must be equal for two llama.cpp processes to share bytes. */
#include "client/adapters/llama/adapter.h"

#include <xxhash.h>

#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 20, HASH_TEXT = 33 };

/* --- hashes -------------------------------------------------------------------------------------
 */

static void hash_text(XXH128_hash_t hash, char ret_text[HASH_TEXT]) {
    snprintf(ret_text, HASH_TEXT, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

static kvt_status hash_open_file(FILE *file, XXH3_state_t *state, char ret_text[HASH_TEXT]) {
    uint8_t *block = malloc(BLOCK_BYTES);
    if (!block)
        return KVT_ENOMEM;
    XXH3_128bits_reset(state);
    for (size_t n; (n = fread(block, 1, BLOCK_BYTES, file)) > 0;)
        XXH3_128bits_update(state, block, n);
    free(block);
    if (ferror(file))
        return KVT_EIO;
    hash_text(XXH3_128bits_digest(state), ret_text);
    return KVT_OK;
}

static kvt_status hash_file(const char *path, char ret_text[HASH_TEXT]) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return llama_fail(KVT_EIO, "%s: %s", path, strerror(errno));
    XXH3_state_t *state = XXH3_createState();
    kvt_status status = state ? hash_open_file(file, state, ret_text) : KVT_ENOMEM;
    XXH3_freeState(state);
    fclose(file);
    return status == KVT_OK ? status : llama_fail(status, "%s cannot be read and hashed", path);
}

/* --- the engine ---------------------------------------------------------------------------------
 */

/* A text of any length, of which only the hash goes into the realm. */
typedef struct long_text {
    char bytes[16384];
    size_t n;
} long_text;

static void say(long_text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(long_text *to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(to->bytes + to->n, sizeof to->bytes - to->n, format, args);
    va_end(args);
    if (n > 0)
        to->n = (size_t)n < sizeof to->bytes - to->n ? to->n + (size_t)n : sizeof to->bytes - 1;
}

typedef struct libraries {
    long_text *text;
    kvt_status status;
    int n_found;
} libraries;

/* Versions do not tell what a library was built with; its file does. */
static int say_library(struct dl_phdr_info *info, size_t size, void *context) {
    libraries *found = context;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : info->dlpi_name;
    char hash[HASH_TEXT];
    (void)size;
    if (strncmp(name, "libllama", 8) != 0 && strncmp(name, "libggml", 7) != 0)
        return 0;
    found->n_found++;
    found->status = hash_file(info->dlpi_name, hash);
    if (found->status == KVT_OK)
        say(found->text, "%.*s %s\n", (int)strcspn(name, "."), name, hash);
    return found->status != KVT_OK;
}

static kvt_status say_libraries(long_text *text) {
    libraries found = {.text = text};
    char hash[HASH_TEXT];
    dl_iterate_phdr(say_library, &found);
    if (found.status != KVT_OK || found.n_found)
        return found.status;
    kvt_status status = hash_file("/proc/self/exe", hash); /* linked statically */
    say(text, "program %s\n", status == KVT_OK ? hash : "");
    return status;
}

static void say_context(long_text *text, const struct llama_context_params *p) {
    const char *rotation = getenv("LLAMA_ATTN_ROT_DISABLE"); /* rotates quantised K and V or not */
    say(text, "K %d V %d flash %d attention %d swa_full %d\n", (int)p->type_k, (int)p->type_v,
        (int)p->flash_attn_type, (int)p->attention_type, p->swa_full);
    say(text, "rope %d %.9g %.9g yarn %.9g %.9g %.9g %.9g %u\n", (int)p->rope_scaling_type,
        (double)p->rope_freq_base, (double)p->rope_freq_scale, (double)p->yarn_ext_factor,
        (double)p->yarn_attn_factor, (double)p->yarn_beta_fast, (double)p->yarn_beta_slow,
        p->yarn_orig_ctx);
    say(text, "kqv %d op %d rotation %s\n", p->offload_kqv, p->op_offload,
        rotation ? rotation : "");
}

static void say_model(long_text *text, const struct llama_model_params *p) {
    say(text, "gpu %d split %d main %d extra %d no_host %d\n", p->n_gpu_layers, (int)p->split_mode,
        p->main_gpu, p->use_extra_bufts, p->no_host);
    const struct llama_model_kv_override *o = p->kv_overrides;
    for (; o && o->key[0]; o++) {
        unsigned long long value = 0; /* the union is as wide as its text; numbers take 8 bytes */
        memcpy(&value, &o->val_i64, sizeof value);
        if (o->tag == LLAMA_KV_OVERRIDE_TYPE_STR)
            say(text, "override %s %s\n", o->key, o->val_str);
        else
            say(text, "override %s %llx\n", o->key,
                o->tag == LLAMA_KV_OVERRIDE_TYPE_BOOL ? (unsigned long long)o->val_bool : value);
    }
}

static kvt_status engine_fingerprint(const kvt_llama *k, const kvt_llama_options *o,
                                     char ret_engine[KVT_MAX_NAME_BYTES + 1]) {
    struct llama_model_params usual = llama_model_default_params();
    long_text *text = calloc(1, sizeof *text);
    char hash[HASH_TEXT];
    if (!text)
        return llama_fail(KVT_ENOMEM, "no memory");
    kvt_status status = say_libraries(text);
    if (status == KVT_OK) {
        say(text, "%s\n", llama_print_system_info());
        say_context(text, o->context);
        say_model(text, o->model ? o->model : &usual);
        say(text, "rows %u\nextra %s\n", k->seal_min_tokens, o->extra ? o->extra : "");
        hash_text(XXH3_128bits(text->bytes, text->n), hash);
        snprintf(ret_engine, KVT_MAX_NAME_BYTES + 1, "llama.cpp %.40s, K %s, V %s, %s",
                 llama_version(), ggml_type_name(o->context->type_k),
                 ggml_type_name(o->context->type_v), hash);
    }
    if (text->n + 1 >= sizeof text->bytes)
        status = llama_fail(KVT_ELIMIT, "options.extra or the model's overrides are too long");
    free(text);
    return status;
}

/* --- the geometry -------------------------------------------------------------------------------
 */

static int is_half(int32_t type) {
    return type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static int divides(const uint64_t row_bytes[2], uint32_t n_heads) {
    for (int part = 0; part < 2; part++)
        if (row_bytes[part] % (4 * (uint64_t)n_heads) != 0 ||
            row_bytes[part] / n_heads > 2 * KVT_MAX_HEAD_DIM)
            return 0;
    return 1;
}

/*
 * Rows of 16-bit numbers are what they are. Rows of any other type are taken as 16-bit elements
 * whose bits come back as they were (codec f16), cut into as many equal runs as there are heads, or
 * into whatever number is possible where the heads' bytes are no even number of elements.
 */
static kvt_status geometry_fill(kvt_llama *k, const char *codec) {
    const state_shape *s = &k->shape;
    const struct llama_model *model = llama_get_model(k->ctx);
    uint32_t n_heads = (uint32_t)llama_model_n_head_kv(model);
    int halves = s->type[0] == s->type[1] && is_half(s->type[0]);
    if (!halves && strcmp(codec, "f16") != 0)
        return llama_fail(KVT_ENOTSUP,
                          "codec %s needs f16 or bf16 as KV types; under K %s and V %s only f16, "
                          "which keeps the bits, is possible",
                          codec, ggml_type_name((enum ggml_type)s->type[0]),
                          ggml_type_name((enum ggml_type)s->type[1]));
    if (!divides(s->row_bytes, n_heads)) {
        if (halves && strcmp(codec, "f16") != 0)
            return llama_fail(KVT_ENOTSUP, "%u heads do not share %llu bytes of K and %llu of V",
                              n_heads, (unsigned long long)s->row_bytes[0],
                              (unsigned long long)s->row_bytes[1]);
        for (n_heads = 1; n_heads <= KVT_MAX_HEADS && !divides(s->row_bytes, n_heads);)
            n_heads++;
    }
    if (n_heads > KVT_MAX_HEADS)
        return llama_fail(KVT_ENOTSUP, "rows of %llu bytes of K and %llu of V cannot be shared",
                          (unsigned long long)s->row_bytes[0], (unsigned long long)s->row_bytes[1]);
    kvt_geometry *g = &k->realm.realm.geometry;
    kvt_geometry_init(g, s->n_layers[0] + s->n_layers[1], n_heads,
                      (uint32_t)(s->row_bytes[0] / 2 / n_heads), k->page_tokens);
    g->head_dim[1] = (uint32_t)(s->row_bytes[1] / 2 / n_heads);
    if (s->type[0] == GGML_TYPE_BF16 && halves)
        g->dtype = KVT_BF16;
    g->n_groups = k->has_groups ? s->n_caches : 1;
    for (uint32_t i = 0; i < g->n_groups && g->n_groups > 1; i++)
        g->groups[i] = (kvt_group){s->n_layers[i], i ? k->window_tokens : 0};
    char why[LLAMA_WHY_BYTES] = "";
    kvt_status status = kvt_geometry_check(g, why, sizeof why);
    return status == KVT_OK ? status : llama_fail(KVT_ENOTSUP, "%s", why);
}

/* --- all of it ----------------------------------------------------------------------------------
 */

static int copy_name(const char *from, char to[KVT_MAX_NAME_BYTES + 1], const char **ret_name) {
    *ret_name = to;
    return snprintf(to, KVT_MAX_NAME_BYTES + 1, "%s", from ? from : "") <= KVT_MAX_NAME_BYTES;
}

static kvt_status model_fingerprint(const kvt_llama_options *o, llama_realm *r) {
    char hash[HASH_TEXT];
    if (o->model_name && *o->model_name)
        return copy_name(o->model_name, r->model, &r->realm.model)
                   ? KVT_OK
                   : llama_fail(KVT_ELIMIT, "options.model_name has over %d bytes",
                                KVT_MAX_NAME_BYTES);
    if (!o->model_path)
        return llama_fail(KVT_EINVAL, "options.model_path or options.model_name is needed");
    size_t n = strlen(o->model_path);
    unsigned part, parts;
    /* NAME-00001-of-00003.gguf: the others would not be in the hash. */
    if (n > 20 && sscanf(o->model_path + n - 20, "-%5u-of-%5u.gguf", &part, &parts) == 2)
        return llama_fail(KVT_EINVAL,
                          "%s is one of %u files of weights: they need a name of their own "
                          "(options.model_name)",
                          o->model_path, parts);
    kvt_status status = hash_file(o->model_path, hash);
    if (status == KVT_OK) {
        snprintf(r->model, sizeof r->model, "xxh3-128 %s", hash);
        r->realm.model = r->model;
    }
    return status;
}

kvt_status llama_realm_fill(kvt_llama *k, const kvt_llama_options *o) {
    llama_realm *r = &k->realm;
    kvt_realm *realm = &r->realm;
    kvt_status status = geometry_fill(k, o->codec && *o->codec ? o->codec : "f16");
    if (status == KVT_OK)
        status = model_fingerprint(o, r);
    if (status == KVT_OK)
        status = engine_fingerprint(k, o, r->engine);
    if (status != KVT_OK)
        return status;
    realm->engine = r->engine;
    if (!copy_name(o->adapter, r->adapter, &realm->adapter) ||
        !copy_name(o->adapter_version, r->adapter_version, &realm->adapter_version) ||
        !copy_name(o->salt, r->salt, &realm->salt) ||
        !copy_name(o->codec && *o->codec ? o->codec : "f16", r->codec, &realm->codec))
        return llama_fail(KVT_ELIMIT, "a name in the options has over %d bytes",
                          KVT_MAX_NAME_BYTES);
    return KVT_OK;
}
