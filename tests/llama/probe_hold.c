/*
 * probe_hold.c - a worker that has seen some prompts and would answer them again without computing.
 *
 *   hold   reads --rounds prompts of --prefix tokens each, of the text one after another, and waits
 *          for the end of its input, to be looked at. With --socket kvtrunkd keeps them; without,
 * this process does, as states of llama.cpp. --rounds 0: one is read, and nothing kept
 */
#include "tests/llama/probe.h"

enum { MAX_HELD = 16 };

static size_t keep_state(probe *p, void **ret_state) {
    size_t n_bytes = llama_state_seq_get_size(p->ctx, 0);
    *ret_state = malloc(n_bytes);
    CHECK(*ret_state);
    CHECK(llama_state_seq_get_data(p->ctx, *ret_state, n_bytes, 0) == n_bytes);
    return n_bytes;
}

int probe_hold(probe *p) {
    void *states[MAX_HELD] = {NULL};
    kvt_llama_result result;
    size_t n_bytes = 0, computed = 0;
    p->ctx = probe_context(p, p->kv_type);
    kvt_llama *k = p->socket ? probe_open(p) : NULL;
    CHECK(p->rounds <= MAX_HELD && (p->rounds + 1) * p->prefix <= p->n_tokens);
    for (uint32_t i = 0; i < (p->rounds ? p->rounds : 1); i++) {
        const llama_token *prompt = p->tokens + i * p->prefix;
        if (k) {
            CHECK(kvt_llama_prefill(k, 0, prompt, p->prefix, &result) == KVT_OK);
            CHECK_EQ(result.cache, KVT_OK);
            computed += result.computed_tokens;
            continue;
        }
        probe_prefix(p, prompt, p->prefix);
        computed += p->prefix;
        if (p->rounds)
            n_bytes += keep_state(p, &states[i]);
    }
    printf("{\"computed\": %zu, \"kept_bytes\": %zu}\n", computed, n_bytes);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (uint32_t i = 0; i < MAX_HELD; i++)
        free(states[i]);
    kvt_llama_close(k);
    return 0;
}
