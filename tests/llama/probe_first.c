/*
 * probe_first.c - time to the first token's logits, in turns within one process: computed cold;
 * loaded through the adapter; and with what llama.cpp's users have: a slot's file, and the state in
 * this process's memory (which is also the least that copying can take). Another process has handed
 * the prefix in before (probe seed). The tails of --list rise: a longer one may hold a shorter one.
 */
#include "tests/llama/probe.h"

enum { COLD, WARM, SLOT, MEMORY, N_WAYS, MAX_ROUNDS = 64 };

static const char *const names[N_WAYS] = {"cold", "warm", "slot", "memory"};

typedef struct saved {
    char path[4096];
    uint8_t *state;
    size_t n_bytes;
    double save_file_ms, save_memory_ms;
} saved;

static void save(probe *p, const llama_token *prompt, saved *s) {
    snprintf(s->path, sizeof s->path, "%s/slot.state", p->out);
    probe_prefix(p, prompt, p->prefix);
    double start_ms = probe_now_ms();
    CHECK(llama_state_seq_save_file(p->ctx, s->path, 0, prompt, p->prefix) > 0);
    s->save_file_ms = probe_now_ms() - start_ms;
    s->n_bytes = llama_state_seq_get_size(p->ctx, 0);
    s->state = malloc(s->n_bytes);
    CHECK(s->state);
    memset(s->state, 1, s->n_bytes);
    start_ms = probe_now_ms();
    CHECK(llama_state_seq_get_data(p->ctx, s->state, s->n_bytes, 0) == s->n_bytes);
    s->save_memory_ms = probe_now_ms() - start_ms;
}

static void restore_slot(probe *p, const saved *s, llama_token *room) {
    size_t n;
    CHECK(llama_state_seq_load_file(p->ctx, s->path, 0, room, p->prefix, &n) > 0);
    CHECK_EQ(n, p->prefix);
}

static double one(probe *p, kvt_llama *k, int way, const llama_token *prompt, uint32_t tail,
                  const saved *s, llama_token *room) {
    kvt_llama_result result;
    uint32_t n = p->prefix + tail;
    llama_memory_seq_rm(llama_get_memory(p->ctx), 0, -1, -1);
    double start_ms = probe_now_ms();
    if (way == COLD) {
        probe_prefix(p, prompt, n);
    } else if (way == WARM) {
        CHECK(kvt_llama_prefill(k, 0, prompt, n, &result) == KVT_OK);
        CHECK_EQ(result.loaded_tokens, p->prefix);
    } else {
        if (way == SLOT)
            restore_slot(p, s, room);
        else
            CHECK(llama_state_seq_set_data(p->ctx, s->state, s->n_bytes, 0) == s->n_bytes);
        probe_decode(p->ctx, prompt + p->prefix, p->prefix, tail, 0);
    }
    CHECK(llama_get_logits_ith(p->ctx, -1));
    return probe_now_ms() - start_ms;
}

/* Another question each time: a tail that is long enough is handed in, and would be found again. */
static void turn_off(const probe *p, llama_token *prompt) {
    prompt[p->prefix] = (llama_token)(((uint32_t)prompt[p->prefix] + 1) % probe_n_vocab(p));
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int probe_first(probe *p) {
    saved s = {.state = NULL};
    double times[N_WAYS][MAX_ROUNDS];
    llama_token *prompt = malloc(p->n_ctx * sizeof *prompt),
                *room = malloc(p->n_ctx * sizeof *room);
    p->ctx = probe_context(p, p->kv_type);
    kvt_llama *k = probe_open(p);
    CHECK(p->rounds > 0 && p->rounds <= MAX_ROUNDS);
    probe_prompt(p, 0, p->prefix, 1, prompt);
    save(p, prompt, &s);
    for (uint32_t i = 0; i < p->n_list; i++) {
        uint32_t tail = p->list[i];
        probe_prompt(p, 0, p->prefix, tail, prompt);
        for (int way = WARM; way < N_WAYS; way++) /* the first join is slower than any other */
            one(p, k, way, prompt, tail, &s, room);
        for (uint32_t round = 0; round < p->rounds; round++) {
            turn_off(p, prompt);
            for (int way = 0; way < N_WAYS; way++)
                times[way][round] = one(p, k, way, prompt, tail, &s, room);
        }
        printf("{\"prefix\": %u, \"tail\": %u, \"rounds\": %u, \"state_bytes\": %zu, "
               "\"save_file_ms\": %.2f, \"save_memory_ms\": %.2f",
               p->prefix, tail, p->rounds, s.n_bytes, s.save_file_ms, s.save_memory_ms);
        for (int way = 0; way < N_WAYS; way++)
            printf(", \"%s_ms\": %.2f", names[way], median(times[way], p->rounds));
        puts("}");
        fflush(stdout);
    }
    kvt_llama_close(k);
    remove(s.path);
    free(s.state);
    free(prompt);
    free(room);
    return 0;
}
