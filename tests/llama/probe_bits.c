/*
 * probe_bits.c - logits behind a prefix that is loaded, and behind one that is computed.
 *
 *   seed   hands in the prefixes of --list
 *   warm   for each prefix of --list: that much of the text, then --tail other tokens; writes the
 *          last one's logits to OUT/PREFIX.logits
 *   cold   the same without a daemon, computed and cut at the same place
 */
#include "kernels/page.h"
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

/* What a page takes, full, and with the rows of the path's last one: of each layer group. */
static void tell_pages(uint32_t n_tokens, const kvt_realm *realm) {
    const kvt_geometry *g = &realm->geometry;
    uint32_t last = n_tokens % g->page_tokens;
    kvt_page_shape shape;
    printf(", \"groups\": [");
    for (uint32_t i = 0; i < g->n_groups; i++) {
        CHECK(kvt_page_shape_init(g, i, realm->codec, NULL, 0, &shape) == KVT_OK);
        printf("%s{\"window\": %u, \"page_bytes\": %zu, \"last_bytes\": %zu}", i ? ", " : "",
               g->groups[i].window, kvt_page_bytes(&shape, g->page_tokens),
               kvt_page_bytes(&shape, last ? last : g->page_tokens));
    }
    putchar(']');
}

static void tell(uint32_t prefix, const kvt_llama_result *r, const kvt_realm *realm) {
    printf("{\"prefix\": %u, \"tokens\": %u, \"loaded\": %u, \"computed\": %u, \"sealed\": %u, "
           "\"cache\": \"%s\"",
           prefix, r->n_tokens, r->loaded_tokens, r->computed_tokens, r->sealed_tokens,
           kvt_status_name(r->cache));
    tell_pages(prefix, realm);
    puts("}");
    fflush(stdout);
}

int probe_seed(probe *p) {
    kvt_llama_result result;
    llama_token *prompt = malloc(p->n_ctx * sizeof *prompt);
    p->ctx = probe_context(p, p->kv_type);
    kvt_llama *k = probe_open(p);
    for (uint32_t i = 0; i < p->n_list; i++) {
        probe_prompt(p, i, p->list[i], 0, prompt);
        CHECK(kvt_llama_prefill(k, 0, prompt, p->list[i], &result) == KVT_OK);
        tell(p->list[i], &result, kvt_llama_realm(k));
    }
    kvt_llama_close(k);
    free(prompt);
    return 0;
}

int probe_warm(probe *p) {
    kvt_llama_result result;
    llama_token *prompt = malloc((p->n_ctx + p->tail) * sizeof *prompt);
    p->ctx = probe_context(p, p->kv_type);
    kvt_llama *k = probe_open(p);
    for (uint32_t i = 0; i < p->n_list; i++) {
        probe_prompt(p, i, p->list[i], p->tail, prompt);
        CHECK(kvt_llama_prefill(k, 0, prompt, p->list[i] + p->tail, &result) == KVT_OK);
        tell(p->list[i], &result, kvt_llama_realm(k));
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
        probe_prompt(p, i, prefix, p->tail, prompt);
        probe_prefix(p, prompt, prefix);
        probe_decode(p->ctx, prompt + prefix, prefix, p->tail, 0);
        write_logits(p, prefix);
    }
    free(prompt);
    return 0;
}
