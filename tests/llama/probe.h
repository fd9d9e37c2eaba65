/* probe.h - what the parts of the probe share: a model, a context, tokens of a text. */
#ifndef KVT_TESTS_LLAMA_PROBE_H
#define KVT_TESTS_LLAMA_PROBE_H

#include "client/adapters/llama/kvt_llama.h"
#include "tests/check.h"

enum { PROBE_MAX_LIST = 32 };

typedef struct probe {
    const char *model_path, *text_path, *socket, *codec, *kv_type, *out;
    uint32_t list[PROBE_MAX_LIST]; /* --list: prefixes, or tails */
    uint32_t n_list;
    uint32_t prefix, tail, from, chunk, rounds, windows, n_threads, n_ctx, seal_min, apart;
    int window, whole;
    struct llama_model *model;
    const struct llama_vocab *vocab;
    struct llama_context_params params;
    struct llama_context *ctx;
    llama_token *tokens; /* of the whole text, with what the vocabulary puts in front */
    uint32_t n_tokens;
} probe;

double probe_now_ms(void);

/* A context of the probe's parameters, with these KV types. */
struct llama_context *probe_context(probe *p, const char *kv_type);

/* The adapter over p->ctx; its daemon is at p->socket. */
kvt_llama *probe_open(probe *p);

/* One micro-batch of at most n_ubatch: positions at .. at + n - 1 of sequence 0; logits of all of
 * them, or of the last one. */
void probe_decode(struct llama_context *ctx, const llama_token *tokens, uint32_t at, uint32_t n,
                  int all_logits);

/* Sequence 0 anew, tokens[0 .. n) in micro-batches of p->chunk, of which the last one is not small.
 */
void probe_prefix(probe *p, const llama_token *tokens, uint32_t n);

/* Fills to[0 .. prefix + tail): tokens of the text, then others that go on differently. Prompt
 * number i begins i * p->apart tokens behind the text's beginning. */
void probe_prompt(const probe *p, uint32_t i, uint32_t prefix, uint32_t tail, llama_token *to);

uint32_t probe_n_vocab(const probe *p);

/* probe_bits.c */
int probe_seed(probe *p);
int probe_warm(probe *p);
int probe_cold(probe *p);
/* probe_first.c */
int probe_first(probe *p);
/* probe_hold.c */
int probe_hold(probe *p);
/* probe_realm.c */
int probe_realm(probe *p);
/* probe_codecs.c */
int probe_codecs(probe *p);
int probe_pages(probe *p);

#endif
