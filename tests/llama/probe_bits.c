/*
 * probe_bits.c - logits behind a prefix that is loaded, and behind one that is computed.
 *
 *   seed   hands in --prefix tokens of the text
 *   warm   for each prefix of --list: that much of the text, then --tail other tokens; writes the
 *          last one's logits to OUT/PREFIX.logits
 *   cold   the same without a daemon, computed and cut at the same place
 */
#include "tests/llama/probe.h"

static void write_logits(const probe *p, uint32_t prefix) {
    char path[4096];
    const float *logits = llama_get_logits_ith(p->ctx, -1);
    CHECK(logits);
    snprintf(path, sizeof path, "%s/%u.logits", p->out, prefix);
    FILE *file = fopen(path, "wb");
    CHECK_MSG(file, "%s cannot be written", path);
    CHECK(fwrite(logits, sizeof *logits, probe_n_vocab(p), file) == probe_n_vocab(p));
    CHECK(fclose(file) == 0);
}

static void tell(uint32_t prefix, const kvt_llama_result *r) {
    printf("{\"prefix\": %u, \"tokens\": %u, \"loaded\": %u, \"computed\": %u, \"sealed\": %u, "
           "\"cache\": \"%s\"}\n",
           prefix, r->n_tokens, r->loaded_tokens, r->computed_tokens, r->sealed_tokens,
           kvt_status_name(r->cache));
    fflush(stdout);
}

int probe_seed(probe *p) {
    kvt_llama_result result;
    p->ctx = probe_context(p, p->kv_type);
    kvt_llama *k = probe_open(p);
    CHECK(p->prefix <= p->n_tokens);
    CHECK(kvt_llama_prefill(k, 0, p->tokens, p->prefix, &result) == KVT_OK);
    tell(p->prefix, &result);
    kvt_llama_close(k);
    return 0;
}

int probe_warm(probe *p) {
    kvt_llama_result result;
    llama_token *prompt = malloc((p->n_ctx + p->tail) * sizeof *prompt);
    p->ctx = probe_context(p, p->kv_type);
    kvt_llama *k = probe_open(p);
    for (uint32_t i = 0; i < p->n_list; i++) {
        probe_prompt(p, p->list[i], p->tail, prompt);
        CHECK(kvt_llama_prefill(k, 0, prompt, p->list[i] + p->tail, &result) == KVT_OK);
        tell(p->list[i], &result);
        if (p->out)
            write_logits(p, p->list[i]);
    }
    kvt_llama_close(k);
    free(prompt);
    return 0;
}

int probe_cold(probe *p) {
    llama_token *prompt = malloc((p->n_ctx + p->tail) * sizeof *prompt);
    p->ctx = probe_context(p, p->kv_type);
    for (uint32_t i = 0; i < p->n_list; i++) {
        uint32_t prefix = p->list[i];
        probe_prompt(p, prefix, p->tail, prompt);
        probe_prefix(p, prompt, prefix);
        probe_decode(p->ctx, prompt + prefix, prefix, p->tail, 0);
        write_logits(p, prefix);
    }
    free(prompt);
    return 0;
}
