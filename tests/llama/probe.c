/*
 * probe.c - looks at the llama.cpp adapter from beside: each command is a process of its own that
 * prints one JSON object a line. tests/llama/run.py says what they are for.
 */
#include "tests/llama/probe.h"

#include <time.h>

double probe_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

uint32_t probe_n_vocab(const probe *p) {
    return (uint32_t)llama_vocab_n_tokens(p->vocab);
}

struct llama_context *probe_context(probe *p, const char *kv_type) {
    struct llama_context_params params = p->params;
    int found = 0;
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char *name = ggml_type_name((enum ggml_type)type);
        if (name && strcmp(name, kv_type) == 0) {
            params.type_k = params.type_v = (enum ggml_type)type;
            found = 1;
        }
    }
    CHECK_MSG(found, "no type %s", kv_type);
    struct llama_context *ctx = llama_init_from_model(p->model, params);
    CHECK_MSG(ctx, "no context with KV type %s", kv_type);
    p->params.type_k = p->params.type_v = params.type_k;
    return ctx;
}

kvt_llama *probe_open(probe *p) {
    kvt_llama *k;
    kvt_llama_options options = {.context = &p->params,
                                 .model_path = p->model_path,
                                 .codec = p->codec,
                                 .socket = p->socket,
                                 .name = "probe",
                                 .seal_min_tokens = p->seal_min,
                                 .whole_windows = p->whole,
                                 .scratch = -1};
    kvt_status status = kvt_llama_open(p->ctx, &options, &k);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), kvt_llama_last_error());
    return k;
}

void probe_decode(struct llama_context *ctx, const llama_token *tokens, uint32_t at, uint32_t n,
                  int all_logits) {
    struct llama_batch b = llama_batch_init((int32_t)n, 0, 1);
    b.n_tokens = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        b.token[i] = tokens[i];
        b.pos[i] = (llama_pos)(at + i);
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = all_logits || i + 1 == n;
    }
    int code = llama_decode(ctx, b);
    CHECK_MSG(code == 0, "llama_decode gave %d at token %u", code, at);
    llama_batch_free(b);
}

void probe_prefix(probe *p, const llama_token *tokens, uint32_t n) {
    llama_memory_seq_rm(llama_get_memory(p->ctx), 0, -1, -1);
    for (uint32_t at = 0, step; at < n; at += step) {
        uint32_t left = n - at;
        step = left < p->chunk ? left : p->chunk;
        if (left > p->chunk && left < p->chunk + 64 && p->chunk > 128)
            step = left - 100;
        probe_decode(p->ctx, tokens + at, at, step, 0);
    }
}

void probe_prompt(const probe *p, uint32_t i, uint32_t prefix, uint32_t tail, llama_token *to) {
    uint32_t start = i * p->apart, end = start + prefix, from = end + 301;
    CHECK(end < p->n_tokens);
    memcpy(to, p->tokens + start, prefix * sizeof *to);
    for (uint32_t n = 0; n < tail; n++, from++) {
        while (from >= p->n_tokens || (n == 0 && p->tokens[from] == p->tokens[end]))
            from = from + 1 < p->n_tokens ? from + 1 : 1;
        to[prefix + n] = p->tokens[from];
    }
}

static void hear_errors(enum ggml_log_level level, const char *text, void *context) {
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static char *read_all(const char *path, size_t *ret_n) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t room = 0;
    CHECK_MSG(file, "%s cannot be opened", path);
    ssize_t n = getdelim(&text, &room, 0, file);
    CHECK_MSG(n > 0, "%s is empty", path);
    fclose(file);
    *ret_n = (size_t)n;
    return text;
}

static void load(probe *p) {
    size_t n;
    llama_log_set(hear_errors, NULL);
    llama_backend_init();
    p->model = llama_model_load_from_file(p->model_path, llama_model_default_params());
    CHECK_MSG(p->model, "%s cannot be loaded", p->model_path);
    p->vocab = llama_model_get_vocab(p->model);
    char *text = read_all(p->text_path, &n);
    p->tokens = malloc((n + 8) * sizeof *p->tokens);
    CHECK(p->tokens);
    int32_t got =
        llama_tokenize(p->vocab, text, (int32_t)n, p->tokens, (int32_t)n + 8, true, false);
    CHECK(got > 0);
    p->n_tokens = (uint32_t)got;
    free(text);
    p->params = llama_context_default_params();
    p->params.n_ctx = p->n_ctx;
    p->params.n_batch = p->params.n_ubatch = 512;
    p->params.n_threads = p->params.n_threads_batch = (int32_t)p->n_threads;
    kvt_llama_context_params(&p->params);
    p->params.swa_full = !p->window;
}

static void take_list(probe *p, const char *text) {
    for (char *end; *text && p->n_list < PROBE_MAX_LIST; text = *end ? end + 1 : end)
        p->list[p->n_list++] = (uint32_t)strtoul(text, &end, 10);
}

static uint32_t *number_of(probe *p, const char *name) {
    const struct {
        const char *name;
        uint32_t *number;
    } numbers[] = {
        {"prefix", &p->prefix}, {"tail", &p->tail},       {"chunk", &p->chunk},
        {"rounds", &p->rounds}, {"windows", &p->windows}, {"threads", &p->n_threads},
        {"ctx", &p->n_ctx},     {"from", &p->from},       {"seal-min", &p->seal_min},
        {"apart", &p->apart},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0)
            return numbers[i].number;
    return NULL;
}

static const char **text_of(probe *p, const char *name) {
    const struct {
        const char *name, **text;
    } texts[] = {
        {"model", &p->model_path}, {"text", &p->text_path}, {"socket", &p->socket},
        {"codec", &p->codec},      {"kv", &p->kv_type},     {"out", &p->out},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(name, texts[i].name) == 0)
            return texts[i].text;
    return NULL;
}

static void take_options(probe *p, int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i] + 2;
        CHECK_MSG(strncmp(argv[i], "--", 2) == 0, "what is %s?", argv[i]);
        if (strcmp(name, "window") == 0 || strcmp(name, "whole") == 0) {
            *(name[1] == 'i' ? &p->window : &p->whole) = 1;
            continue;
        }
        CHECK_MSG(i + 1 < argc, "%s needs a value", argv[i]);
        uint32_t *number = number_of(p, name);
        const char **text = text_of(p, name);
        i++;
        if (number)
            *number = (uint32_t)strtoul(argv[i], NULL, 10);
        else if (text)
            *text = argv[i];
        else if (strcmp(name, "list") == 0)
            take_list(p, argv[i]);
        else
            CHECK_MSG(0, "what is --%s?", name);
    }
    CHECK_MSG(p->model_path && p->text_path, "--model and --text are needed");
}

/* The model with weights of another type: convert --model FROM --out TO --kv TYPE --text - */
static int convert(const probe *p) {
    struct llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype =
        strcmp(p->kv_type, "q8_0") == 0 ? LLAMA_FTYPE_MOSTLY_Q8_0 : LLAMA_FTYPE_MOSTLY_F16;
    params.allow_requantize = true;
    params.nthread = (int32_t)p->n_threads;
    llama_log_set(hear_errors, NULL);
    return llama_model_quantize(p->model_path, p->out, &params) != 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(probe *p);
    } commands[] = {
        {"seed", probe_seed},   {"warm", probe_warm},   {"cold", probe_cold},
        {"realm", probe_realm}, {"first", probe_first}, {"codecs", probe_codecs},
        {"pages", probe_pages}, {"hold", probe_hold},
    };
    probe p = {.kv_type = "f16",
               .chunk = 512,
               .tail = 16,
               .prefix = 2000,
               .rounds = 3,
               .windows = 1,
               .n_threads = 1,
               .n_ctx = 2816};
    CHECK_MSG(argc > 1, "probe COMMAND --model FILE --text FILE ...");
    take_options(&p, argc, argv);
    if (strcmp(argv[1], "convert") == 0)
        return convert(&p);
    load(&p);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(&p);
    CHECK_MSG(0, "there is no command %s", argv[1]);
    return 2;
}
