/*
 * tool_sizes.c - kvtrunk sizes: how much room a model's KV takes under each codec set, from its
 * config.json alone. No daemon is asked.
 */
#include "client/tool.h"
#include "client/tool_sizes.h"

static const char *const named_sets[] = {"f16", "fp8", "i8", "k8v4", "i4", "i2"};
enum { N_NAMED_SETS = sizeof named_sets / sizeof *named_sets };

typedef struct request {
    const char *path;
    const char *codec; /* NULL: all named sets */
    uint64_t n_tokens, page_tokens;
    int json;
} request;

typedef struct row {
    const char *codec;
    sizes_plan plan;
} row;

/* A row for each set that this model can have. A set that was asked for by name must be one. */
static int make_rows(const request *r, const kvt_geometry *geometry, row *ret_rows, size_t *ret_n) {
    size_t n_sets = r->codec ? 1 : (size_t)N_NAMED_SETS, n = 0;
    const char *const *sets = r->codec ? &r->codec : named_sets;
    for (size_t i = 0; i < n_sets; i++) {
        char why[256] = "";
        kvt_status status =
            sizes_make_plan(geometry, sets[i], r->n_tokens, why, sizeof why, &ret_rows[n].plan);
        if (status == KVT_OK)
            ret_rows[n++].codec = sets[i];
        else if (r->codec || status != KVT_ENOTSUP)
            return tool_fail(TOOL_USAGE, "sizes --codec: %s", why);
    }
    *ret_n = n;
    return TOOL_OK;
}

/* --- for people ----------------------------------------------------------------------------------
 */

static void print_model(const request *r, const sizes_model *model) {
    const kvt_geometry *g = &model->geometry;
    printf("%s: %u layers, ", r->path, g->n_layers);
    if (g->kind == KVT_MLA)
        printf("MLA with a latent of %u and %u rotary elements", g->head_dim[0], g->head_dim[1]);
    else if (g->head_dim[0] == g->head_dim[1])
        printf("%u KV head%s of %u", g->n_kv_heads, g->n_kv_heads == 1 ? "" : "s", g->head_dim[0]);
    else
        printf("%u KV heads of %u (K) and %u (V)", g->n_kv_heads, g->head_dim[0], g->head_dim[1]);
    printf(", %s\n", g->dtype == KVT_BF16 ? "bfloat16" : "float16");
    for (uint32_t i = 0; i < g->n_groups; i++) {
        printf("group %u: %u layers of ", i, g->groups[i].n_layers);
        if (g->groups[i].window)
            printf("a sliding window of %s tokens\n", tool_number(g->groups[i].window));
        else
            printf("full attention\n");
    }
    for (int i = 0; i < model->n_notes; i++)
        printf("assumed: %s\n", model->notes[i]);
    printf("\nPages of %u tokens; one context of %s tokens:\n", g->page_tokens,
           tool_number(r->n_tokens));
}

static void print_rows(const kvt_geometry *g, const row *rows, size_t n) {
    printf("%-10s %6s %14s %14s %12s %12s %12s\n", "set", "bits", "bytes a token", "bytes a page",
           "pages", "arena", "disk");
    for (const row *w = rows; w < rows + n; w++) {
        printf("%-10s %6.2f %14s %14s %12s %12s %12s\n", w->codec, w->plan.element_bits,
               tool_number((uint64_t)(w->plan.token_bytes + .5)),
               g->n_groups == 1 ? tool_number(w->plan.groups[0].page_bytes) : "",
               tool_number(w->plan.pages), tool_size(w->plan.arena_bytes),
               tool_size(w->plan.disk_bytes));
        for (uint32_t i = 0; i < g->n_groups && g->n_groups > 1; i++)
            printf("  group %-2u %21s %14s %12s\n", i, "",
                   tool_number(w->plan.groups[i].page_bytes), tool_number(w->plan.groups[i].pages));
    }
}

/* --- JSON ----------------------------------------------------------------------------------------
 */

static void print_model_json(const request *r, const sizes_model *model) {
    const kvt_geometry *g = &model->geometry;
    printf("{\"model\":");
    tool_json_text(stdout, r->path);
    printf(",\"kind\":\"%s\",\"dtype\":\"%s\",\"n_layers\":%u,\"n_kv_heads\":%u,"
           "\"head_dim\":[%u,%u],\"page_tokens\":%u,\"tokens\":%llu,\"assumed\":[",
           g->kind == KVT_MLA ? "mla" : "kv", g->dtype == KVT_BF16 ? "bfloat16" : "float16",
           g->n_layers, g->n_kv_heads, g->head_dim[0], g->head_dim[1], g->page_tokens,
           (unsigned long long)r->n_tokens);
    for (int i = 0; i < model->n_notes; i++) {
        printf("%s", i ? "," : "");
        tool_json_text(stdout, model->notes[i]);
    }
    printf("],\"groups\":[");
    for (uint32_t i = 0; i < g->n_groups; i++)
        printf("%s{\"n_layers\":%u,\"window\":%u}", i ? "," : "", g->groups[i].n_layers,
               g->groups[i].window);
    printf("],\"sets\":[");
}

static void print_rows_json(const kvt_geometry *g, const row *rows, size_t n) {
    for (const row *w = rows; w < rows + n; w++) {
        printf("%s{\"codec\":", w == rows ? "" : ",");
        tool_json_text(stdout, w->codec);
        printf(",\"element_bits\":%.4f,\"token_bytes\":%.4f,\"pages\":%llu,\"arena_bytes\":%llu,"
               "\"disk_bytes\":%llu,\"groups\":[",
               w->plan.element_bits, w->plan.token_bytes, (unsigned long long)w->plan.pages,
               (unsigned long long)w->plan.arena_bytes, (unsigned long long)w->plan.disk_bytes);
        for (uint32_t i = 0; i < g->n_groups; i++)
            printf("%s{\"page_bytes\":%llu,\"pages\":%llu}", i ? "," : "",
                   (unsigned long long)w->plan.groups[i].page_bytes,
                   (unsigned long long)w->plan.groups[i].pages);
        printf("]}");
    }
    printf("]}\n");
}

/* --- the command ---------------------------------------------------------------------------------
 */

static int show_sizes(const request *r) {
    sizes_model model;
    row rows[N_NAMED_SETS];
    size_t n = 0;
    int code = sizes_read_model(r->path, (uint32_t)r->page_tokens, &model);
    if (code == TOOL_OK)
        code = make_rows(r, &model.geometry, rows, &n);
    if (code != TOOL_OK)
        return code;
    if (r->json) {
        print_model_json(r, &model);
        print_rows_json(&model.geometry, rows, n);
    } else {
        print_model(r, &model);
        print_rows(&model.geometry, rows, n);
    }
    return TOOL_OK;
}

static int run(const tool_command *self, int argc, char **argv) {
    request r = {.n_tokens = 1000000, .page_tokens = 64};
    int n;
    const tool_option options[] = {
        {.name = "codec",
         .value = "SET",
         .text = &r.codec,
         .help = "one codec set, as a realm names it; otherwise f16, fp8, i8, k8v4, i4 and i2"},
        {.name = "json", .flag = &r.json, .help = "one JSON object, in bytes"},
        {.name = "page-tokens",
         .value = "N",
         .number = &r.page_tokens,
         .low = 16,
         .high = 128,
         .help = "tokens of a page: 16, 32, 64 or 128 (64)"},
        {.name = "tokens",
         .value = "N",
         .number = &r.n_tokens,
         .low = 1,
         .high = SIZES_MAX_TOKENS,
         .help = "tokens to be held, as one context (1000000)"},
        {0}};
    int code = tool_options(self, argc, argv, options, &r.path, 1, &n);
    if (code != TOOL_OK)
        return code;
    if (n == 0)
        return tool_fail(TOOL_USAGE, "sizes: which model? kvtrunk sizes MODEL.json");
    if (r.page_tokens & (r.page_tokens - 1))
        return tool_fail(TOOL_USAGE, "sizes --page-tokens %llu: 16, 32, 64 or 128 is possible",
                         (unsigned long long)r.page_tokens);
    return show_sizes(&r);
}

const tool_command tool_sizes = {
    .name = "sizes",
    .operands = "MODEL.json",
    .summary = "the room that a model's KV takes, by codec set",
    .about =
        "MODEL.json is the config.json of a model in the form of Hugging Face's transformers:\n"
        "num_hidden_layers, num_key_value_heads and head_dim (or hidden_size and\n"
        "num_attention_heads); kv_lora_rank and qk_rope_head_dim for MLA; sliding_window with\n"
        "layer_types or sliding_window_pattern; all of it in text_config if there is one. What\n"
        "had to be assumed is said.\n"
        "\n"
        "  bits           of one element, scales and headers included\n"
        "  bytes a token  of all layers, in a full page, its header included\n"
        "  pages          that the tokens take. Layers with a sliding window are pages of their\n"
        "                 own, and of these only the last window is needed\n"
        "  arena          a size for kvtrunkd's \"arena\" that holds them: 5 % and 1 MiB more "
        "than\n"
        "                 their bytes, for what frames lose\n"
        "  disk           about; tokens and keys included, in whole blocks of 4 KiB\n"
        "\n"
        "These are for one process that holds the whole model. Each of n tensor-parallel ranks\n"
        "holds its share of the KV heads. In layer ranges of a codec set the layers of full\n"
        "attention come first, then those with a window.\n",
    .examples = "  kvtrunk sizes config.json --tokens 131072\n"
                "  kvtrunk sizes config.json --codec '0-1:f16;rest:i4' --json | jq .sets[0]\n",
    .run = run,
};
