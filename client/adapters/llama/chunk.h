/*
 * chunk.h - into which micro-batches the rest of a prompt is cut. Rows of fewer than
 * seal_min_tokens come from other code, and are not handed in, nor is what stands behind them; so
 * as many as can be stand in micro-batches that are no smaller. Needs no llama.cpp.
 */
#ifndef KVT_LLAMA_CHUNK_H
#define KVT_LLAMA_CHUNK_H

#include <stdint.h>

typedef struct chunk_sizes {
    uint32_t chunk_tokens; /* the most; >= seal_min_tokens >= 1 */
    uint32_t seal_min_tokens;
    uint32_t page_tokens;
    uint32_t window_tokens; /* of what llama.cpp shows of a sequence; 0: all */
} chunk_sizes;

/* How many of so many tokens can be handed in, at best. */
static inline uint32_t chunk_most(const chunk_sizes *s, uint32_t n_tokens) {
    uint64_t most = (uint64_t)(n_tokens / s->seal_min_tokens) * s->chunk_tokens;
    return most < n_tokens ? (uint32_t)most : n_tokens;
}

/* Where the micro-batch from `at` on ends, of a prompt of n_tokens > at: so that no more is left
 * out than must be, and at the end of a page if that is possible, too. */
static inline uint32_t chunk_end(const chunk_sizes *s, uint32_t at, uint32_t n_tokens) {
    enum { EVEN = 1, BEST = 2 };
    static const int wishes[] = {EVEN | BEST, BEST, EVEN};
    uint32_t rest = n_tokens - at, most = rest < s->chunk_tokens ? rest : s->chunk_tokens;
    for (int i = 0; i < 3; i++)
        for (uint32_t n = most; n >= s->seal_min_tokens; n--) {
            int is_even = n == rest || (at + n) % s->page_tokens == 0;
            int is_best = n + chunk_most(s, rest - n) == chunk_most(s, rest);
            /* Of the page that it begins in the first rows must be in sight still. */
            int is_seen = !s->window_tokens || at % s->page_tokens + n <= s->window_tokens;
            if (is_seen && (is_even || !(wishes[i] & EVEN)) && (is_best || !(wishes[i] & BEST)))
                return at + n;
        }
    return at + most;
}

#endif
