/*
 * tool_sizes_model.c - a model's config.json, as Hugging Face's transformers writes it, as a
 * geometry. What such a file leaves to a default of the model's own code is asked for rather than
 * guessed, unless all families agree on it.
 */
#include "client/tool.h"
#include "client/tool_sizes.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20 };

/* A config.json that is being read. The first failure is said at once and stays. */
typedef struct config {
    const char *path;
    const cJSON *root;
    const cJSON *text; /* text_config of a multimodal model, else the root */
    int code;
    sizes_model *model;
} config;

/* --- members -------------------------------------------------------------------------------------
 */

static void fail(config *c, const char *key, const char *what) {
    if (c->code == TOOL_OK)
        c->code = tool_fail(TOOL_BAD_INPUT, "%s: \"%s\": %s", c->path, key, what);
}

/* NULL if it is missing or null, which mean the same. */
static const cJSON *member(const config *c, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(c->text, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

/* A number 1 .. most, or `absent` without the key; absent 0: the key must be there. */
static uint32_t number(config *c, const char *key, uint32_t most, uint32_t absent) {
    const cJSON *item = member(c, key);
    char what[96];
    if (!item) {
        if (!absent)
            fail(c, key, "is missing");
        return absent;
    }
    double n = item->valuedouble;
    if (!cJSON_IsNumber(item) || !(n >= 1 && n <= most) || n != (double)(uint32_t)n) {
        snprintf(what, sizeof what, "a whole number from 1 to %u is needed", most);
        fail(c, key, what);
        return 1;
    }
    return (uint32_t)n;
}

static const char *text(const config *c, const char *key) {
    const cJSON *item = member(c, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static int starts_with(const char *s, const char *head) {
    return strncmp(s, head, strlen(head)) == 0;
}

static void note(config *c, const char *what) {
    if (c->model->n_notes < SIZES_MAX_NOTES)
        c->model->notes[c->model->n_notes++] = what;
}

/* --- dtype and rows ------------------------------------------------------------------------------
 */

static uint32_t read_dtype(config *c) {
    const cJSON *item = NULL;
    const cJSON *const objects[] = {c->text, c->root};
    for (int i = 0; i < 4 && !cJSON_IsString(item); i++)
        item = cJSON_GetObjectItemCaseSensitive(objects[i / 2], i % 2 ? "dtype" : "torch_dtype");
    const char *name = cJSON_IsString(item) ? item->valuestring : "";
    if (starts_with(name, "torch."))
        name += strlen("torch.");
    if (strcmp(name, "bfloat16") == 0)
        return KVT_BF16;
    if (strcmp(name, "float16") == 0)
        return KVT_F16;
    if (*name && strcmp(name, "float32") != 0)
        fail(c, "torch_dtype", "bfloat16, float16 and float32 are known");
    note(c, "KV of 16 bits (torch_dtype is float32 or missing)");
    return KVT_F16;
}

static void read_heads(config *c, kvt_geometry *g) {
    uint32_t heads = 0;
    if (member(c, "num_key_value_heads")) {
        g->n_kv_heads = number(c, "num_key_value_heads", KVT_MAX_HEADS, 0);
    } else {
        g->n_kv_heads = heads = number(c, "num_attention_heads", KVT_MAX_HEADS, 0);
        note(c, "as many KV heads as attention heads (num_key_value_heads is missing)");
    }
    if (member(c, "head_dim")) {
        g->head_dim[0] = number(c, "head_dim", KVT_MAX_HEAD_DIM, 0);
    } else if (starts_with(text(c, "model_type"), "gemma")) {
        fail(c, "head_dim",
             "is missing, and with Gemma it is not hidden_size / "
             "num_attention_heads; add it to the file");
    } else {
        uint32_t hidden = number(c, "hidden_size", UINT32_C(1) << 24, 0);
        heads = number(c, "num_attention_heads", KVT_MAX_HEADS, 0);
        if (c->code == TOOL_OK && hidden % heads != 0)
            fail(c, "hidden_size",
                 "is no multiple of num_attention_heads, and head_dim is missing");
        g->head_dim[0] = c->code == TOOL_OK ? hidden / heads : 1;
    }
    g->head_dim[1] = number(c, "v_head_dim", KVT_MAX_HEAD_DIM, g->head_dim[0]);
    if (member(c, "global_head_dim") || member(c, "num_global_key_value_heads"))
        fail(c, member(c, "global_head_dim") ? "global_head_dim" : "num_global_key_value_heads",
             "layers of different shapes in one model are not supported");
}

static void read_rows(config *c, kvt_geometry *g) {
    if (!member(c, "kv_lora_rank")) {
        g->kind = KVT_KV;
        read_heads(c, g);
        return;
    }
    g->kind = KVT_MLA;
    g->n_kv_heads = 1;
    g->head_dim[0] = number(c, "kv_lora_rank", KVT_MAX_HEAD_DIM, 0);
    g->head_dim[1] = number(c, "qk_rope_head_dim", KVT_MAX_HEAD_DIM, 0);
}

/* --- layers --------------------------------------------------------------------------------------
 */

/* Of the first n_layers entries of "layer_types", how many are sliding_attention. */
static uint32_t count_sliding_types(config *c, const cJSON *types, uint32_t n_layers) {
    uint32_t n = 0;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) < (int)n_layers) {
        fail(c, "layer_types", "a list with an entry for each layer is needed");
        return 0;
    }
    const cJSON *item = types->child;
    for (uint32_t i = 0; i < n_layers; i++, item = item->next) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "";
        if (strcmp(type, "sliding_attention") == 0)
            n++;
        else if (strcmp(type, "full_attention") != 0)
            fail(c, "layer_types", "full_attention and sliding_attention are supported");
    }
    return n;
}

/* Layers with a sliding window, by whatever of the ways to say it the file uses. */
static uint32_t count_sliding(config *c, uint32_t n_layers) {
    const char *type = text(c, "model_type");
    if (member(c, "layer_types"))
        return count_sliding_types(c, member(c, "layer_types"), n_layers);
    if (!member(c, "sliding_window") || cJSON_IsFalse(member(c, "use_sliding_window")))
        return 0;
    if (cJSON_IsTrue(member(c, "use_sliding_window"))) { /* Qwen: full below max_window_layers */
        uint32_t full = number(c, "max_window_layers", KVT_MAX_LAYERS, 0);
        return full < n_layers ? n_layers - full : 0;
    }
    /* Every pattern-th layer is full. */
    const char *key =
        member(c, "_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
    if (member(c, key))
        return n_layers - n_layers / number(c, key, KVT_MAX_LAYERS, 0);
    if (starts_with(type, "gemma3")) {
        note(c, "each sixth layer has full attention (Gemma 3; sliding_window_pattern is missing)");
        return n_layers - n_layers / 6;
    }
    if (starts_with(type, "gemma2")) {
        note(c, "each second layer has full attention (Gemma 2)");
        return n_layers - n_layers / 2;
    }
    return n_layers;
}

/* Layers without KV, or with more than KV: pages do not hold what such a model needs. */
static void refuse_other_kinds(config *c) {
    static const char *const keys[] = {
        "attention_chunk_size",    "attn_layer_indices", "attn_layer_period",
        "cross_attention_layers",  "compress_ratios",    "full_attention_interval",
        "hybrid_override_pattern", "index_head_dim",     "linear_attn_config",
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (member(c, keys[i]))
            fail(c, keys[i],
                 "models with other kinds of layers beside attention, or whose "
                 "attention keeps more than K and V, are not supported");
}

static void read_layers(config *c, kvt_geometry *g) {
    refuse_other_kinds(c);
    g->n_layers = number(c, "num_hidden_layers", KVT_MAX_LAYERS, 0);
    const cJSON *shared = member(c, "num_kv_shared_layers");
    if (shared && !(cJSON_IsNumber(shared) && fpclassify(shared->valuedouble) == FP_ZERO)) {
        uint32_t n = number(c, "num_kv_shared_layers", KVT_MAX_LAYERS, 0);
        if (c->code == TOOL_OK && n >= g->n_layers)
            fail(c, "num_kv_shared_layers", "is not below num_hidden_layers");
        else if (c->code == TOOL_OK) /* the last ones use the KV of layers before them */
            g->n_layers -= n;
    }
    if (c->code != TOOL_OK)
        return;
    uint32_t sliding = count_sliding(c, g->n_layers);
    if (c->code != TOOL_OK)
        return;
    if (sliding < g->n_layers)
        g->groups[g->n_groups++] = (kvt_group){.n_layers = g->n_layers - sliding};
    if (sliding)
        g->groups[g->n_groups++] = (kvt_group){
            .n_layers = sliding, .window = number(c, "sliding_window", UINT32_C(1) << 30, 0)};
}

/* --- the file ------------------------------------------------------------------------------------
 */

/* The whole file and a NUL, or NULL after a message. */
static char *read_file(const char *path, int *ret_code) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        *ret_code = tool_fail(TOOL_BAD_INPUT, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *bytes = malloc(MAX_FILE_BYTES + 2);
    size_t n = bytes ? fread(bytes, 1, MAX_FILE_BYTES + 1, file) : 0;
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (!bytes)
        *ret_code = tool_fail(TOOL_SYSTEM, "no memory");
    else if (error)
        *ret_code = tool_fail(TOOL_BAD_INPUT, "%s: %s", path, strerror(error));
    else if (n > MAX_FILE_BYTES)
        *ret_code =
            tool_fail(TOOL_BAD_INPUT, "%s: over 1 MiB; a model's config.json is small", path);
    else if (memchr(bytes, '\0', n))
        *ret_code = tool_fail(TOOL_BAD_INPUT, "%s: is no JSON: it has a NUL byte", path);
    else
        return bytes[n] = '\0', bytes;
    free(bytes);
    return NULL;
}

static unsigned line_of(const char *bytes, const char *at) {
    unsigned line = 1;
    for (const char *c = bytes; c < at; c++)
        line += *c == '\n';
    return line;
}

static int parse(const char *path, const char *bytes, cJSON **ret_root) {
    const char *at = NULL;
    cJSON *root = cJSON_ParseWithOpts(bytes, &at, 1);
    if (!root)
        return tool_fail(TOOL_BAD_INPUT, "%s:%u: is no JSON from here on", path,
                         at ? line_of(bytes, at) : 1);
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return tool_fail(TOOL_BAD_INPUT, "%s: a JSON object is needed, as in config.json", path);
    }
    *ret_root = root;
    return TOOL_OK;
}

static int read_config(config *c, uint32_t page_tokens) {
    kvt_geometry *g = &c->model->geometry;
    char why[256] = "";
    *g = (kvt_geometry){.page_tokens = page_tokens, .n_ranks = 1};
    read_layers(c, g);
    if (c->code == TOOL_OK)
        read_rows(c, g);
    if (c->code == TOOL_OK)
        g->dtype = read_dtype(c);
    if (c->code == TOOL_OK && kvt_geometry_check(g, why, sizeof why) != KVT_OK)
        c->code =
            tool_fail(TOOL_BAD_INPUT, "%s: no geometry that pages can have: %s", c->path, why);
    return c->code;
}

int sizes_read_model(const char *path, uint32_t page_tokens, sizes_model *ret_model) {
    sizes_model model;
    cJSON *root = NULL;
    int code = TOOL_OK;
    memset(&model, 0, sizeof model);
    char *bytes = read_file(path, &code);
    if (!bytes)
        return code;
    code = parse(path, bytes, &root);
    free(bytes);
    if (code != TOOL_OK)
        return code;
    const cJSON *nested = cJSON_GetObjectItemCaseSensitive(root, "text_config");
    config c = {.path = path,
                .root = root,
                .text = cJSON_IsObject(nested) ? nested : root,
                .code = TOOL_OK,
                .model = &model};
    code = read_config(&c, page_tokens);
    cJSON_Delete(root);
    if (code == TOOL_OK)
        *ret_model = model;
    return code;
}
