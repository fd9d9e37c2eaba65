/*
 * probe_codecs.c - what codecs do to a model's predictions, on real text.
 *
 *   codecs   --windows of 1,024 tokens, from number --from on. The first half is prefilled, and
 * its K and V are passed through encoding and decoding; then the second half is read, and each
 * next-token distribution is compared with the one behind untouched K and V. Beside ours: "half
 * TYPE": llama.cpp's own types, applied to the first half as ours are (rotated as llama.cpp
 * rotates, unless LLAMA_ATTN_ROT_DISABLE says no); "all TYPE": as its users have them, for every
 * token pages    writes some pages of the text's K and V to OUT, as raw f16
 */
#include "client/adapters/llama/state.h"
#include "kernels/page.h"
#include "tests/llama/probe.h"
#include "tests/llama/scores.h"

#include <math.h>

enum {
    WINDOW = 1024,
    HALF = 512,
    STEP = 128,
    PAGE = 64,
    MAX_VARIANTS = 32,
    MAX_ROW = 8192,
    SINK = 4
};

typedef enum way { CODEC, HALF_TYPE, ALL_TYPE } way;

typedef struct variant {
    way how;
    const char *name;
    int centred;    /* each channel of K less its mean over a page */
    uint32_t n_raw; /* leading tokens that are left as they are */
    double bits;
    enum ggml_type type;
    struct llama_context *ctx; /* of its own, for ALL_TYPE */
    kvt_page_shape shapes[STATE_MAX_CACHES];
    double divergence, squared, surprise; /* sums; squared over windows' means */
    uint64_t same_best;
} variant;

typedef struct bench {
    probe *p;
    kvt_geometry geometry;
    state_shape shape;
    size_t n_bytes;
    uint8_t *state, *passed;
    state_places places;
    float *logits; /* [HALF][n_vocab], behind untouched K and V */
    double log_sum[HALF];
    variant variants[MAX_VARIANTS];
    uint32_t n_variants;
    double surprise;
} bench;

/* --- codecs -------------------------------------------------------------------------------------
 */

static void layout_of(const bench *b, uint8_t *state, uint32_t cache, uint32_t token,
                      kvt_layout *ret_layout) {
    const state_cache *c = &b->places.cache[cache];
    for (int part = 0; part < 2; part++) {
        uint64_t row_bytes = b->shape.row_bytes[part];
        ret_layout->part[part] = state + c->rows_at[part] + token * row_bytes;
        ret_layout->layer_stride_bytes[part] = c->layer_stride[part];
        ret_layout->head_stride_bytes[part] = 2 * b->geometry.head_dim[part];
        ret_layout->token_stride_bytes[part] = row_bytes;
    }
}

static void pass_codec(const bench *b, const variant *v) {
    kvt_layout layout;
    for (uint32_t cache = 0; cache < b->shape.n_caches; cache++) {
        const kvt_page_shape *shape = &v->shapes[cache];
        size_t room = kvt_page_max_bytes(shape), n_bytes;
        void *page = aligned_alloc(KVT_PAGE_ALIGN_BYTES, room);
        CHECK(page);
        for (uint32_t token = 0; token < HALF; token += PAGE) {
            layout_of(b, b->passed, cache, token, &layout);
            /* As kvt_encode does. */
            CHECK((token ? kvt_page_encode : kvt_page_encode_first)(shape, PAGE, &layout, page,
                                                                    room, &n_bytes) == KVT_OK);
            CHECK(kvt_page_decode(shape, page, n_bytes, 0, PAGE, 0, shape->n_layers, &layout) ==
                  KVT_OK);
        }
        free(page);
    }
}

/* --- keys less their page's mean -----------------------------------------------------------------
 */

/* Adds sign * mean to K, or with sign -1 finds the means first. means: [cache][layer][page][row].
 */
static void shift_page(const bench *b, uint32_t cache, uint32_t layer, uint32_t page,
                       uint32_t n_raw, float sign, float *means) {
    const state_cache *c = &b->places.cache[cache];
    uint64_t row_bytes = b->shape.row_bytes[0];
    uint32_t n = (uint32_t)(row_bytes / 2), first = page ? 0 : n_raw;
    uint8_t *rows =
        b->passed + c->rows_at[0] + layer * c->layer_stride[0] + page * PAGE * row_bytes;
    for (uint32_t d = 0; d < n; d++) {
        float sum = 0;
        for (uint32_t t = first; t < PAGE && sign < 0; t++)
            sum += ggml_fp16_to_fp32(((ggml_fp16_t *)(void *)(rows + t * row_bytes))[d]);
        if (sign < 0)
            means[d] = ggml_fp16_to_fp32(ggml_fp32_to_fp16(sum / (float)(PAGE - first)));
        for (uint32_t t = first; t < PAGE; t++) {
            ggml_fp16_t *x = (ggml_fp16_t *)(void *)(rows + t * row_bytes) + d;
            *x = ggml_fp32_to_fp16(ggml_fp16_to_fp32(*x) + sign * means[d]);
        }
    }
}

static void shift_keys(const bench *b, const variant *v, float sign) {
    static float *means;
    uint32_t n = (uint32_t)(b->shape.row_bytes[0] / 2), pages = HALF / PAGE;
    if (!means)
        means = malloc((size_t)(b->shape.n_layers[0] + b->shape.n_layers[1]) * pages * n *
                       sizeof *means);
    CHECK(means);
    float *at = means;
    for (uint32_t cache = 0; cache < b->shape.n_caches; cache++)
        for (uint32_t layer = 0; layer < b->shape.n_layers[cache]; layer++)
            for (uint32_t page = 0; page < pages; page++, at += n)
                shift_page(b, cache, layer, page, v->n_raw, sign, at);
}

/* --- llama.cpp's types --------------------------------------------------------------------------
 */

/* An orthonormal Walsh-Hadamard transform, its own inverse, of runs of n. */
static void rotate(float *x, uint32_t n_all, uint32_t n) {
    float scale = 1 / sqrtf((float)n);
    for (uint32_t at = 0; at < n_all; at += n)
        for (uint32_t half = 1; half < n; half *= 2)
            for (uint32_t i = at; i < at + n; i++)
                if (!((i - at) & half)) {
                    float a = x[i], c = x[i + half];
                    x[i] = a + c;
                    x[i + half] = a - c;
                }
    for (uint32_t i = 0; i < n_all; i++)
        x[i] *= scale;
}

/* llama.cpp rotates K in the longest runs that divide a head, V in runs of 64. */
static uint32_t rotation_of(const bench *b, int part) {
    const char *no = getenv("LLAMA_ATTN_ROT_DISABLE");
    uint32_t dim = b->geometry.head_dim[part], n = 64;
    if (dim % 64 || (no && atoi(no)))
        return 1;
    while (part == 0 && dim % (2 * n) == 0)
        n *= 2;
    return n;
}

static void pass_row(enum ggml_type type, uint32_t rotation, uint8_t *row, uint32_t n) {
    float x[MAX_ROW];
    uint8_t coded[4 * MAX_ROW];
    CHECK(n <= MAX_ROW);
    ggml_fp16_to_fp32_row((const ggml_fp16_t *)(const void *)row, x, n);
    if (rotation > 1)
        rotate(x, n, rotation);
    ggml_quantize_chunk(type, x, coded, 0, 1, n, NULL);
    ggml_get_type_traits(type)->to_float(coded, x, n);
    if (rotation > 1)
        rotate(x, n, rotation);
    ggml_fp32_to_fp16_row(x, (ggml_fp16_t *)(void *)row, n);
}

static void pass_type(const bench *b, const variant *v) {
    for (uint32_t cache = 0; cache < b->shape.n_caches; cache++)
        for (int part = 0; part < 2; part++) {
            const state_cache *c = &b->places.cache[cache];
            uint64_t row_bytes = b->shape.row_bytes[part];
            uint32_t rotation = rotation_of(b, part);
            for (uint32_t layer = 0; layer < b->shape.n_layers[cache]; layer++)
                for (uint32_t token = v->n_raw; token < HALF; token++)
                    pass_row(v->type, rotation,
                             b->passed + c->rows_at[part] + layer * c->layer_stride[part] +
                                 token * row_bytes,
                             (uint32_t)(row_bytes / 2));
        }
}

/* --- windows ------------------------------------------------------------------------------------
 */

static void prefill_half(struct llama_context *ctx, const llama_token *tokens) {
    llama_memory_clear(llama_get_memory(ctx), false);
    probe_decode(ctx, tokens, 0, HALF, 0);
}

/* Reads the second half; scores it, or keeps it to be scored against. */
static void read_half(bench *b, struct llama_context *ctx, const llama_token *tokens, variant *v) {
    size_t n_vocab = probe_n_vocab(b->p);
    double divergence = 0;
    for (uint32_t at = 0; at < HALF; at += STEP) {
        probe_decode(ctx, tokens + HALF + at, HALF + at, STEP, 1);
        for (uint32_t i = at; i < at + STEP; i++) {
            const float *found = llama_get_logits_ith(ctx, (int32_t)(i - at));
            float *kept = b->logits + i * n_vocab;
            double log_sum = score_log_sum(found, n_vocab);
            /* Behind the last token of a window there is none. */
            double surprise = i + 1 < HALF ? log_sum - (double)found[tokens[HALF + i + 1]] : 0;
            if (!v) {
                memcpy(kept, found, n_vocab * sizeof *kept);
                b->log_sum[i] = log_sum;
                b->surprise += surprise;
                continue;
            }
            divergence += score_divergence(kept, b->log_sum[i], found, log_sum, n_vocab);
            v->surprise += surprise;
            v->same_best += score_best(kept, n_vocab) == score_best(found, n_vocab);
        }
    }
    if (v) {
        v->divergence += divergence / HALF;
        v->squared += divergence / HALF * (divergence / HALF);
    }
}

static void take_state(bench *b) {
    char why[256] = "";
    b->n_bytes = llama_state_seq_get_size(b->p->ctx, 0);
    if (!b->state) {
        b->state = malloc(b->n_bytes);
        b->passed = malloc(b->n_bytes);
        CHECK(b->state && b->passed);
    }
    CHECK(llama_state_seq_get_data(b->p->ctx, b->state, b->n_bytes, 0) == b->n_bytes);
    if (!b->shape.n_caches)
        CHECK_MSG(state_learn(b->state, b->n_bytes, why, sizeof why, &b->shape) == KVT_OK, "%s",
                  why);
    CHECK_MSG(state_read(&b->shape, b->state, b->n_bytes, why, sizeof why, &b->places) == KVT_OK,
              "%s", why);
    CHECK_EQ(b->places.cache[0].n_cells, HALF);
}

static void try_variant(bench *b, variant *v, const llama_token *tokens) {
    if (v->how == ALL_TYPE) {
        prefill_half(v->ctx, tokens);
        read_half(b, v->ctx, tokens, v);
        return;
    }
    memcpy(b->passed, b->state, b->n_bytes);
    if (v->centred)
        shift_keys(b, v, -1);
    if (v->how == CODEC)
        pass_codec(b, v);
    else
        pass_type(b, v);
    if (v->centred)
        shift_keys(b, v, 1);
    llama_memory_clear(llama_get_memory(b->p->ctx), false);
    CHECK(llama_state_seq_set_data(b->p->ctx, b->passed, b->n_bytes, 0) == b->n_bytes);
    read_half(b, b->p->ctx, tokens, v);
}

/* The text in windows; each begins as the vocabulary begins a text. */
static void window_tokens(const probe *p, uint32_t window, llama_token to[WINDOW]) {
    uint32_t own = llama_vocab_get_add_bos(p->vocab) ? 1 : 0;
    uint32_t from = own + window * (WINDOW - own);
    CHECK_MSG(from + WINDOW - own <= p->n_tokens, "the text has %u tokens: %u windows at most",
              p->n_tokens, (p->n_tokens - own) / (WINDOW - own));
    if (own)
        to[0] = llama_vocab_bos(p->vocab);
    memcpy(to + own, p->tokens + from, (WINDOW - own) * sizeof *to);
}

/* --- variants -----------------------------------------------------------------------------------
 */

static variant *add(bench *b, way how, const char *name) {
    CHECK(b->n_variants < MAX_VARIANTS);
    variant *v = &b->variants[b->n_variants++];
    v->how = how;
    v->name = name;
    return v;
}

static void add_codec(bench *b, const char *name) {
    variant *v = add(b, CODEC, name);
    char why[256] = "";
    double bytes = 0, elements = 0;
    for (uint32_t cache = 0; cache < b->shape.n_caches; cache++) {
        kvt_geometry g = b->geometry;
        g.n_layers = g.groups[0].n_layers = b->shape.n_layers[cache];
        CHECK_MSG(kvt_page_shape_init(&g, 0, name, why, sizeof why, &v->shapes[cache]) == KVT_OK,
                  "%s: %s", name, why);
        bytes += (double)kvt_page_bytes(&v->shapes[cache], PAGE);
        elements += (double)g.n_layers * g.n_kv_heads * (g.head_dim[0] + g.head_dim[1]) * PAGE;
    }
    v->bits = 8 * bytes / elements;
}

static void add_type(bench *b, way how, const char *name) {
    variant *v = add(b, how, name);
    v->type = GGML_TYPE_COUNT;
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char *known = ggml_type_name((enum ggml_type)type);
        if (known && strcmp(known, name) == 0)
            v->type = (enum ggml_type)type;
    }
    CHECK_MSG(v->type != GGML_TYPE_COUNT, "no type %s", name);
    v->bits = 8.0 * (double)ggml_row_size(v->type, 256) / 256;
    if (how == ALL_TYPE)
        v->ctx = probe_context(b->p, name);
}

static void open_bench(bench *b, probe *p) {
    static llama_token tokens[WINDOW];
    b->p = p;
    p->params.n_ctx = WINDOW + 256;
    p->params.n_outputs_max = STEP;
    p->ctx = probe_context(p, "f16");
    p->socket = "/nowhere";
    kvt_llama *k = probe_open(p);
    b->geometry = kvt_llama_realm(k)->geometry;
    kvt_llama_close(k);
    b->logits = malloc((size_t)HALF * probe_n_vocab(p) * sizeof *b->logits);
    CHECK(b->logits);
    window_tokens(p, 0, tokens);
    prefill_half(p->ctx, tokens);
    take_state(b);
}

static void tell(const bench *b, uint32_t n_windows) {
    double n = n_windows, n_scored = n * HALF, n_next = n * (HALF - 1);
    printf("{\"windows\": %u, \"tokens\": %u, \"perplexity\": %.5f, \"variants\": [", n_windows,
           n_windows * WINDOW, exp(b->surprise / n_next));
    for (uint32_t i = 0; i < b->n_variants; i++) {
        const variant *v = &b->variants[i];
        double mean = v->divergence / n, spread = v->squared / n - mean * mean;
        printf("%s{\"name\": \"%s\", \"bits\": %.3f, \"kl\": %.4e, "
               "\"kl_error\": %.1e, \"perplexity\": %.5f, \"same_best\": %.5f}",
               i ? ", " : "", v->name, v->bits, mean,
               sqrt(spread > 0 && n > 1 ? spread / (n - 1) : 0), exp(v->surprise / n_next),
               (double)v->same_best / n_scored);
    }
    puts("]}");
    fflush(stdout);
}

static int takes(char **name, const char *word) {
    size_t n = strlen(word);
    int found = strncmp(*name, word, n) == 0;
    *name += found ? n : 0;
    return found;
}

/* A list of names, with blanks between: "i8", "k:i8k,v:w4v", "half:q4_0", "all:q8_0". In front of
 * these: "sink:" leaves the first tokens raw for a half too, "centred:" takes each channel's mean
 * over a page out of K, and puts it back. */
static void add_variants(bench *b, const char *names) {
    char *copy = strdup(names), *rest = copy;
    CHECK(copy);
    for (char *name; (name = strsep(&rest, " "));) {
        const char *whole = name;
        int sink = takes(&name, "sink:"), centred = takes(&name, "centred:");
        if (takes(&name, "half:"))
            add_type(b, HALF_TYPE, name);
        else if (takes(&name, "all:"))
            add_type(b, ALL_TYPE, name);
        else
            add_codec(b, name);
        variant *v = &b->variants[b->n_variants - 1];
        v->name = whole;
        v->n_raw = sink || v->how == CODEC ? SINK : 0;
        v->centred = centred;
        if (centred) /* a mean for each channel of K */
            v->bits += 16.0 / PAGE / 2;
    }
}

int probe_codecs(probe *p) {
    static const char all[] = "i8 fp8 k8v4 i4 i2 half:q8_0 half:q5_0 half:q4_0 all:q8_0 all:q4_0";
    static llama_token tokens[WINDOW];
    static bench b;
    const char *names = p->codec ? p->codec : all;
    p->codec = NULL;
    open_bench(&b, p);
    add_variants(&b, names);
    for (uint32_t window = p->from; window < p->from + p->windows; window++) {
        window_tokens(p, window, tokens);
        prefill_half(p->ctx, tokens);
        take_state(&b);
        read_half(&b, p->ctx, tokens, NULL);
        for (uint32_t i = 0; i < b.n_variants; i++)
            try_variant(&b, &b.variants[i], tokens);
        tell(&b, window + 1 - p->from);
    }
    return 0;
}

/* --- pages --------------------------------------------------------------------------------------
 */

/* Of a few layers, of the first and the last page of the half: [K, V][head][token][dim], with a
 * line of text in front that says what it is. */
int probe_pages(probe *p) {
    static bench b;
    open_bench(&b, p);
    FILE *file = fopen(p->out, "wb");
    CHECK_MSG(file, "%s cannot be written", p->out);
    const kvt_geometry *g = &b.geometry;
    fprintf(file, "KV %u %u %u %u %u\n", p->n_list, g->n_kv_heads, PAGE, g->head_dim[0],
            g->head_dim[1]);
    for (uint32_t i = 0; i < p->n_list; i++) {
        uint32_t cache = p->list[i] >= b.shape.n_layers[0];
        uint32_t layer = p->list[i] - (cache ? b.shape.n_layers[0] : 0);
        kvt_layout at;
        CHECK(layer < b.shape.n_layers[cache]);
        layout_of(&b, b.state, cache, HALF - PAGE, &at);
        for (int part = 0; part < 2; part++)
            for (uint32_t head = 0; head < g->n_kv_heads; head++)
                for (uint32_t token = 0; token < PAGE; token++)
                    fwrite((uint8_t *)at.part[part] + layer * at.layer_stride_bytes[part] +
                               head * at.head_stride_bytes[part] +
                               token * at.token_stride_bytes[part],
                           2, g->head_dim[part], file);
    }
    CHECK(fclose(file) == 0);
    return 0;
}
