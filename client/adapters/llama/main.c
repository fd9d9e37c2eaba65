/* main.c - kvtrunk-llama: a llama.cpp worker that shares its prompts' KV. --help is its manual. */
#include "client/adapters/llama/json_text.h"
#include "client/adapters/llama/kvt_llama.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, BAD_USAGE = 2, FAILED = 1, MAX_PIECE_BYTES = 256 };

typedef struct options {
    const char *model, *model_name, *socket, *prefix_file, *codec, *name, *kv_type;
    unsigned n_ctx, n_batch, n_threads, n_predict, wait_ms;
    int plain, window, whole, json, verbose;
} options;

typedef struct worker {
    options o;
    struct llama_model *model;
    const struct llama_vocab *vocab;
    struct llama_context *ctx;
    kvt_llama *cache; /* NULL: llama.cpp alone */
    char *prefix;
    llama_token *tokens;
    size_t n_tokens;
    json_text text; /* of the prompt that is being completed */
} worker;

static const char help[] =
    "kvtrunk-llama --model FILE.gguf [options] [PROMPT-FILE ...]\n"
    "\n"
    "Completes prompts with llama.cpp. What kvtrunkd holds of a prompt is loaded instead of\n"
    "computed, what another worker is computing is waited for, and the rest is computed and "
    "handed\n"
    "in. Each file is a prompt; without files each line of standard input is one (in it \\n "
    "stands\n"
    "for a new line, \\\\ for a backslash). The texts go to standard output, a line for each "
    "prompt\n"
    "to standard error:\n"
    "\n"
    "    first token after 52.1 ms; 2016 tokens: 2000 loaded, 16 computed, 0.0 ms waited\n"
    "\n"
    "Without a daemon it works as llama.cpp alone does. What is loaded has the bits that "
    "computing\n"
    "up to the same token gives; where a prompt is cut rounds llama.cpp's sums, so a text may\n"
    "differ from that of --no-cache, which cuts after --batch tokens only.\n"
    "\n"
    "A prompt that cannot be served is said and left out. Exit codes: 0 all were, 1 one was not,\n"
    "or nothing could be begun, 2 command line.\n"
    "\n"
    "  --model FILE      weights, GGUF\n"
    "  --model-name NAME instead of a hash of the file; another one for other weights. Needed for\n"
    "                    weights in several files\n"
    "  --socket PATH     of kvtrunkd (default: KVTRUNK_SOCKET, or where it listens by default)\n"
    "  --prefix FILE     a text that is put in front of every prompt\n"
    "  --predict N       tokens to generate for each (default 32; 0: only the prompt)\n"
    "  --ctx N           tokens of context (default 4096)\n"
    "  --batch N         tokens computed at a time (default 512)\n"
    "  --threads N       (default 2)\n"
    "  --kv TYPE         of K and V: f16 (default), bf16, f32, q8_0, q5_1, q5_0, q4_1, q4_0, "
    "iq4_nl\n"
    "  --codec SET       how pages are kept (default f16: the same bits)\n"
    "  --wait MS         for another worker that gets on (default 60000; 0: never)\n"
    "  --window          keep only the window of sliding-window layers here: less memory\n"
    "  --whole           keep all of such layers in kvtrunkd: more memory, every prefix is found\n"
    "  --no-cache        llama.cpp alone\n"
    "  --name NAME       shown in kvtrunk status\n"
    "  --json            a JSON object for each prompt on standard output, text and figures\n"
    "  --verbose         llama.cpp's own messages\n";

static char complaint[1024]; /* the last one */

static int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(complaint, sizeof complaint, format, args);
    va_end(args);
    fprintf(stderr, "kvtrunk-llama: %s\n", complaint);
    return FAILED;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* --- options ------------------------------------------------------------------------------------
 */

static int take_number(const char *name, const char *text, unsigned low, unsigned high,
                       unsigned *ret_number) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || n < low || n > high) {
        complain("--%s %s: a number from %u to %u is needed", name, text, low, high);
        return BAD_USAGE;
    }
    *ret_number = (unsigned)n;
    return OK;
}

static const struct option long_options[] = {
    {"model", 1, NULL, 'm'},   {"socket", 1, NULL, 's'}, {"prefix", 1, NULL, 'x'},
    {"predict", 1, NULL, 'n'}, {"ctx", 1, NULL, 'c'},    {"batch", 1, NULL, 'b'},
    {"threads", 1, NULL, 't'}, {"kv", 1, NULL, 'k'},     {"codec", 1, NULL, 'e'},
    {"wait", 1, NULL, 'w'},    {"window", 0, NULL, 'W'}, {"no-cache", 0, NULL, 'p'},
    {"name", 1, NULL, 'N'},    {"json", 0, NULL, 'j'},   {"verbose", 0, NULL, 'v'},
    {"help", 0, NULL, 'h'},    {"whole", 0, NULL, 'A'},  {"model-name", 1, NULL, 'M'},
    {NULL, 0, NULL, 0},
};

static int take_option(options *o, int which, const char *value, const char *name) {
    switch (which) {
    case 'm':
        o->model = value;
        return OK;
    case 'M':
        o->model_name = value;
        return OK;
    case 's':
        o->socket = value;
        return OK;
    case 'x':
        o->prefix_file = value;
        return OK;
    case 'e':
        o->codec = value;
        return OK;
    case 'N':
        o->name = value;
        return OK;
    case 'k':
        o->kv_type = value;
        return OK;
    case 'W':
        o->window = 1;
        return OK;
    case 'A':
        o->whole = 1;
        return OK;
    case 'p':
        o->plain = 1;
        return OK;
    case 'j':
        o->json = 1;
        return OK;
    case 'v':
        o->verbose = 1;
        return OK;
    case 'n':
        return take_number(name, value, 0, 1 << 20, &o->n_predict);
    case 'c':
        return take_number(name, value, 256, 1 << 20, &o->n_ctx);
    case 'b':
        return take_number(name, value, 64, 1 << 16, &o->n_batch);
    case 't':
        return take_number(name, value, 1, 512, &o->n_threads);
    case 'w':
        return take_number(name, value, 0, 3600000, &o->wait_ms);
    case 'h':
        fputs(help, stdout);
        exit(OK);
    default:
        fputs("kvtrunk-llama --help lists the options\n", stderr);
        return BAD_USAGE;
    }
}

static int take_options(int argc, char **argv, options *o) {
    int which, index = 0, code = OK;
    *o = (options){.n_ctx = 4096,
                   .n_batch = 512,
                   .n_threads = 2,
                   .n_predict = 32,
                   .wait_ms = 60000,
                   .kv_type = "f16"};
    while (code == OK && (which = getopt_long(argc, argv, "h", long_options, &index)) != -1)
        code = take_option(o, which, optarg, which == '?' ? "" : long_options[index].name);
    if (code == OK && !o->model) {
        complain("--model is needed; --help tells the rest");
        code = BAD_USAGE;
    }
    return code;
}

/* --- start --------------------------------------------------------------------------------------
 */

static void hear_errors(enum ggml_log_level level, const char *text, void *context) {
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* Those that llama.cpp can keep K and V in: it ends the process at others. */
static int find_type(const char *name, enum ggml_type *ret_type) {
    static const enum ggml_type known[] = {GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_F32,
                                           GGML_TYPE_Q8_0, GGML_TYPE_Q5_1, GGML_TYPE_Q5_0,
                                           GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(ggml_type_name(known[i]), name) == 0) {
            *ret_type = known[i];
            return OK;
        }
    }
    complain("--kv %s: there are f16, bf16, f32, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl", name);
    return BAD_USAGE;
}

static int open_cache(worker *w, const struct llama_context_params *params) {
    const options *o = &w->o;
    kvt_llama_options cache = {.context = params,
                               .model_path = o->model,
                               .model_name = o->model_name,
                               .codec = o->codec,
                               .socket = o->socket,
                               .name = o->name ? o->name : "kvtrunk-llama",
                               .whole_windows = o->whole,
                               .wait_ms = o->wait_ms ? o->wait_ms : KVT_LLAMA_NO_WAIT,
                               .scratch = -1};
    kvt_status status = kvt_llama_open(w->ctx, &cache, &w->cache);
    if (status == KVT_OK)
        return OK;
    complain("%s: %s", kvt_status_name(status), kvt_llama_last_error());
    if (status == KVT_EINVAL || status == KVT_ESYNTAX || o->codec)
        return FAILED;
    fputs("kvtrunk-llama: going on with llama.cpp alone\n", stderr);
    return OK;
}

static int start(worker *w) {
    const options *o = &w->o;
    struct llama_model_params model_params = llama_model_default_params();
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = o->n_ctx;
    params.n_batch = params.n_ubatch = o->n_batch;
    params.n_threads = params.n_threads_batch = (int32_t)o->n_threads;
    kvt_llama_context_params(&params);
    params.swa_full = !o->window;
    int code = find_type(o->kv_type, &params.type_k);
    if (code != OK)
        return code;
    params.type_v = params.type_k;
    if (!o->verbose)
        llama_log_set(hear_errors, NULL);
    llama_backend_init();
    w->model = llama_model_load_from_file(o->model, model_params);
    if (!w->model)
        return complain("%s: llama.cpp cannot load it", o->model);
    w->vocab = llama_model_get_vocab(w->model);
    w->ctx = llama_init_from_model(w->model, params);
    if (!w->ctx)
        return complain("llama.cpp cannot make a context of %u tokens", o->n_ctx);
    return o->plain ? OK : open_cache(w, &params);
}

/* --- prompts ------------------------------------------------------------------------------------
 */

static int tokenize(worker *w, const char *text) {
    size_t n = strlen(text), room = n + 8;
    free(w->tokens);
    w->tokens = malloc(room * sizeof *w->tokens);
    if (!w->tokens || n > INT32_MAX / 2)
        return complain("no memory for a prompt of %zu bytes", n);
    int32_t n_tokens =
        llama_tokenize(w->vocab, text, (int32_t)n, w->tokens, (int32_t)room, true, true);
    if (n_tokens <= 0)
        return complain("a prompt of %zu bytes gives no tokens", n);
    w->n_tokens = (size_t)n_tokens;
    return OK;
}

static int prefill_alone(worker *w, kvt_llama_result *ret_result) {
    double start_ms = now_ms();
    size_t room = llama_n_ctx(w->ctx), n_batch = llama_n_batch(w->ctx); /* as llama.cpp has it */
    if (w->n_tokens > room)
        return complain("%zu tokens: the context has room for %zu (--ctx)", w->n_tokens, room);
    llama_memory_clear(llama_get_memory(w->ctx), false);
    for (size_t at = 0, n; at < w->n_tokens; at += n) {
        n = w->n_tokens - at < n_batch ? w->n_tokens - at : n_batch;
        int code = llama_decode(w->ctx, llama_batch_get_one(w->tokens + at, (int32_t)n));
        if (code != 0)
            return complain("llama_decode gave %d: is the context too small? (--ctx)", code);
    }
    *ret_result = (kvt_llama_result){.n_tokens = (uint32_t)w->n_tokens,
                                     .computed_tokens = (uint32_t)w->n_tokens,
                                     .computing_ms = now_ms() - start_ms};
    return OK;
}

static int prefill_prompt(worker *w, kvt_llama_result *ret_result) {
    if (!w->cache)
        return prefill_alone(w, ret_result);
    if (kvt_llama_prefill(w->cache, 0, w->tokens, w->n_tokens, ret_result) != KVT_OK)
        return complain("%s", kvt_llama_last_error());
    return OK;
}

static llama_token best_token(const worker *w) {
    const float *logits = llama_get_logits_ith(w->ctx, -1);
    int32_t n = llama_vocab_n_tokens(w->vocab), best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* FNV-1a of the logits: two workers that give the same one computed the same bits. */
static uint64_t logits_hash(const worker *w) {
    const unsigned char *bytes = (const void *)llama_get_logits_ith(w->ctx, -1);
    size_t n = (size_t)llama_vocab_n_tokens(w->vocab) * sizeof(float);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void print_piece(worker *w, llama_token token) {
    char piece[MAX_PIECE_BYTES];
    int32_t n = llama_token_to_piece(w->vocab, token, piece, sizeof piece, 0, false);
    if (n <= 0)
        return;
    if (w->o.json)
        json_text_put(&w->text, piece, (size_t)n, stdout);
    else
        fwrite(piece, 1, (size_t)n, stdout);
}

/* Greedy. */
static int generate(worker *w, llama_token token) {
    for (unsigned i = 0; i < w->o.n_predict && !llama_vocab_is_eog(w->vocab, token); i++) {
        print_piece(w, token);
        if (i + 1 == w->o.n_predict || w->n_tokens + i + 1 >= llama_n_ctx(w->ctx))
            break;
        if (llama_decode(w->ctx, llama_batch_get_one(&token, 1)) != 0)
            return complain("llama_decode failed after %u tokens", i);
        token = best_token(w);
    }
    return OK;
}

static void tell(const worker *w, const kvt_llama_result *r, double first_ms) {
    if (w->o.json) {
        printf("\", \"first_token_ms\": %.3f, \"tokens\": %u, \"loaded\": %u, \"computed\": %u, "
               "\"sealed\": %u, \"waited_ms\": %.3f, \"loading_ms\": %.3f, \"computing_ms\": %.3f, "
               "\"sealing_ms\": %.3f, \"cache\": \"%s\"}\n",
               first_ms, r->n_tokens, r->loaded_tokens, r->computed_tokens, r->sealed_tokens,
               r->waited_ms, r->loading_ms, r->computing_ms, r->sealing_ms,
               w->cache ? kvt_status_name(r->cache) : "none");
    } else {
        putchar('\n');
        fprintf(stderr,
                "first token after %.1f ms; %u tokens: %u loaded, %u computed, %.1f ms waited\n",
                first_ms, r->n_tokens, r->loaded_tokens, r->computed_tokens, r->waited_ms);
        if (r->cache != KVT_OK)
            fprintf(stderr, "went on alone: %s: %s\n", kvt_status_name(r->cache),
                    kvt_llama_last_error());
    }
    fflush(stdout);
}

/* What came of a prompt that was not served, for who counts objects. */
static int tell_failed(const worker *w, const char *prompt_name) {
    json_text text = {0};
    fprintf(stderr, "kvtrunk-llama: %s was left out\n", prompt_name);
    if (w->o.json) {
        fputs("{\"error\": \"", stdout);
        json_text_put(&text, complaint, strlen(complaint), stdout);
        fputs("\"}\n", stdout);
        fflush(stdout);
    }
    return FAILED;
}

static int complete(worker *w, const char *prompt, const char *prompt_name) {
    kvt_llama_result result;
    size_t n_prefix = w->prefix ? strlen(w->prefix) : 0, n_prompt = strlen(prompt);
    double start_ms = now_ms();
    char *text = malloc(n_prefix + n_prompt + 1);
    if (!text)
        return complain("no memory");
    memcpy(text, w->prefix ? w->prefix : "", n_prefix);
    memcpy(text + n_prefix, prompt, n_prompt + 1);
    int code = tokenize(w, text);
    free(text);
    if (code == OK)
        code = prefill_prompt(w, &result);
    if (code != OK)
        return tell_failed(w, prompt_name);
    llama_token first = best_token(w);
    double first_ms = now_ms() - start_ms;
    w->text = (json_text){0};
    if (w->o.json)
        printf("{\"logits\": \"%016llx\", \"text\": \"", (unsigned long long)logits_hash(w));
    code = generate(w, first);
    tell(w, &result, first_ms);
    return code;
}

/* --- files --------------------------------------------------------------------------------------
 */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t room = 0;
    ssize_t n = file ? getdelim(&text, &room, 0, file) : -1;
    if (n < 0)
        complain("%s: %s", path, file && !ferror(file) ? "is empty" : strerror(errno));
    else if (text[n - 1] == 0)
        complain("%s: holds a NUL byte, at %zd: a text is needed", path, n - 1);
    if (n < 0 || text[n - 1] == 0) {
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

static int serve_files(worker *w, int n, char **paths) {
    int code = OK;
    for (int i = 0; i < n; i++) {
        char *text = read_text(paths[i]);
        int one = text ? complete(w, text, paths[i]) : tell_failed(w, paths[i]);
        code = one == OK ? code : one;
        free(text);
    }
    return code;
}

static void unescape(char *line) {
    char *to = line;
    for (const char *from = line; *from && *from != '\n'; from++) {
        if (*from == '\\' && (from[1] == 'n' || from[1] == '\\'))
            *to++ = *++from == 'n' ? '\n' : '\\';
        else
            *to++ = *from;
    }
    *to = 0;
}

static int serve_lines(worker *w) {
    char *line = NULL, name[32];
    size_t room = 0;
    int code = OK;
    errno = 0;
    for (ssize_t n, number = 1; (n = getline(&line, &room, stdin)) > 0; number++) {
        int one = OK;
        snprintf(name, sizeof name, "line %zd", number);
        if (memchr(line, 0, (size_t)n)) {
            complain("%s holds a NUL byte: a text is needed", name);
            one = tell_failed(w, name);
        } else {
            unescape(line);
            if (*line)
                one = complete(w, line, name);
        }
        code = one == OK ? code : one;
    }
    if (ferror(stdin))
        code = complain("standard input: %s", strerror(errno));
    free(line);
    return code;
}

int main(int argc, char **argv) {
    worker w = {0};
    int code = take_options(argc, argv, &w.o);
    if (code == OK && w.o.prefix_file && !(w.prefix = read_text(w.o.prefix_file)))
        code = FAILED;
    if (code == OK)
        code = start(&w);
    if (code == OK)
        code = optind < argc ? serve_files(&w, argc - optind, argv + optind) : serve_lines(&w);
    if (fflush(stdout) != 0 || ferror(stdout))
        code = complain("standard output: %s", strerror(errno));
    kvt_llama_close(w.cache);
    if (w.ctx)
        llama_free(w.ctx);
    if (w.model)
        llama_model_free(w.model);
    free(w.tokens);
    free(w.prefix);
    return code;
}
