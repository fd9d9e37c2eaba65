/*
 * test_llama_state.c - the reader and writer of llama.cpp's sequence states, without llama.cpp:
 * what is written is read, one byte less or more is refused, and damaged states are refused or lead
 * to places inside the state.
 *
 *     test_llama_state [SEED [ROUNDS]]
 */
#include "client/adapters/llama/state.h"
#include "tests/check.h"

static char why[256];

static state_shape random_shape(uint64_t *seed) {
    state_shape s = {.n_caches = 1 + check_below(seed, 2)};
    for (uint32_t i = 0; i < s.n_caches; i++)
        s.n_layers[i] = 1 + check_below(seed, 5);
    for (int part = 0; part < 2; part++) {
        s.type[part] = 1 + (int32_t)check_below(seed, 30);
        s.row_bytes[part] = 2 * (1 + check_below(seed, 40));
    }
    return s;
}

/* Rows that say where they belong. */
static uint8_t row_byte(uint32_t cache, int part, uint32_t layer, uint32_t cell) {
    return (uint8_t)(cache * 101 + (uint32_t)part * 57 + layer * 13 + cell * 3 + 1);
}

static uint8_t *row_at(const state_shape *s, const state_places *places, uint8_t *state,
                       uint32_t cache, int part, uint32_t layer, uint32_t cell) {
    const state_cache *c = &places->cache[cache];
    return state + c->rows_at[part] + layer * c->layer_stride[part] + cell * s->row_bytes[part];
}

static void fill(const state_shape *s, const state_places *places, uint8_t *state) {
    for (uint32_t cache = 0; cache < s->n_caches; cache++)
        for (int part = 0; part < 2; part++)
            for (uint32_t layer = 0; layer < s->n_layers[cache]; layer++)
                for (uint32_t cell = 0; cell < places->cache[cache].n_cells; cell++)
                    memset(row_at(s, places, state, cache, part, layer, cell),
                           row_byte(cache, part, layer, cell), s->row_bytes[part]);
}

static void check_rows(const state_shape *s, const state_places *places, uint8_t *state) {
    for (uint32_t cache = 0; cache < s->n_caches; cache++)
        for (int part = 0; part < 2; part++)
            for (uint32_t layer = 0; layer < s->n_layers[cache]; layer++)
                for (uint32_t cell = 0; cell < places->cache[cache].n_cells; cell++)
                    for (uint64_t i = 0; i < s->row_bytes[part]; i++)
                        CHECK_EQ(row_at(s, places, state, cache, part, layer, cell)[i],
                                 row_byte(cache, part, layer, cell));
}

/* Everything that a reader was told lies inside the state. */
static void check_inside(const state_shape *s, const state_places *places, size_t n_bytes) {
    for (uint32_t cache = 0; cache < s->n_caches; cache++) {
        const state_cache *c = &places->cache[cache];
        for (int part = 0; part < 2 && c->n_cells; part++)
            CHECK(c->rows_at[part] + (s->n_layers[cache] - 1) * c->layer_stride[part] +
                      c->n_cells * s->row_bytes[part] <=
                  n_bytes);
    }
}

/* The second cache alone is the end of both, behind the same head. */
static void check_partial(const state_shape *s, const uint32_t n_cells[2],
                          const uint32_t first[2]) {
    enum { HEAD = 8 };
    size_t n_bytes = state_bytes(s, 0, n_cells), n_partial = state_bytes(s, 1, n_cells);
    uint8_t *whole = calloc(1, n_bytes), *partial = calloc(1, n_partial + 1);
    state_places places, own;
    CHECK(whole && partial && n_partial < n_bytes);
    partial[n_partial] = 0xee;
    state_write(s, 0, n_cells, first, whole, &places);
    state_write(s, 1, n_cells, first, partial, &own);
    CHECK(memcmp(partial, whole, HEAD) == 0 && partial[n_partial] == 0xee);
    CHECK(memcmp(partial + HEAD, whole + n_bytes - (n_partial - HEAD), n_partial - HEAD) == 0);
    CHECK_EQ(own.cache[0].n_cells, 0);
    for (int part = 0; part < 2; part++)
        CHECK_EQ(places.cache[1].rows_at[part] - own.cache[1].rows_at[part], n_bytes - n_partial);
    free(whole);
    free(partial);
}

static void check_round(uint64_t *seed) {
    state_shape s = random_shape(seed), learnt;
    uint32_t n_cells[2] = {1 + check_below(seed, 9), 1 + check_below(seed, 9)};
    uint32_t first[2] = {check_below(seed, 5000), check_below(seed, 5000)};
    state_places places, found;
    size_t n_bytes = state_bytes(&s, 0, n_cells);
    uint8_t *state = malloc(n_bytes + 1);
    CHECK(state);
    memset(state, 0xee, n_bytes + 1);
    state_write(&s, 0, n_cells, first, state, &places);
    check_inside(&s, &places, n_bytes);
    if (s.n_caches == 2)
        check_partial(&s, n_cells, first);
    fill(&s, &places, state);
    CHECK_EQ(state[n_bytes], 0xee);
    CHECK_MSG(state_learn(state, n_bytes, why, sizeof why, &learnt) == KVT_OK, "%s", why);
    CHECK(memcmp(&learnt, &s, sizeof s) == 0);
    CHECK_MSG(state_read(&s, state, n_bytes, why, sizeof why, &found) == KVT_OK, "%s", why);
    CHECK(memcmp(&found, &places, sizeof found) == 0);
    check_rows(&s, &found, state);
    for (uint32_t i = 0; i < s.n_caches; i++) {
        for (uint32_t cell = 0; cell < n_cells[i]; cell++)
            CHECK_EQ(state_find(&found.cache[i], state, first[i] + cell, check_below(seed, 12)),
                     cell);
        CHECK_EQ(state_find(&found.cache[i], state, first[i] + n_cells[i], 0), -1);
    }
    /* Not a byte less, not a byte more. */
    CHECK(state_read(&s, state, n_bytes - 1, why, sizeof why, &found) == KVT_EPROTO);
    CHECK(state_read(&s, state, n_bytes + 1, why, sizeof why, &found) == KVT_EPROTO);
    CHECK(state_read(&s, state, check_below(seed, (uint32_t)n_bytes), why, sizeof why, &found) ==
          KVT_EPROTO);
    /* Damage, in the heads as well as in rows, where nobody can see it. */
    for (int i = 0; i < 40; i++) {
        uint8_t *at = state + check_below(seed, (uint32_t)n_bytes), kept = *at;
        *at ^= (uint8_t)(1u << check_below(seed, 8));
        if (state_read(&s, state, n_bytes, why, sizeof why, &found) == KVT_OK)
            check_inside(&s, &found, n_bytes);
        if (state_learn(state, n_bytes, why, sizeof why, &learnt) == KVT_OK)
            CHECK(learnt.n_caches == s.n_caches);
        *at = kept;
    }
    free(state);
}

/* One state of each kind that is refused, with the reason in words. */
static void check_refusals(void) {
    const state_shape s = {.n_caches = 1, .n_layers = {2}, .type = {1, 1}, .row_bytes = {8, 8}};
    const uint32_t n_cells[2] = {2, 0}, first[2] = {0, 0};
    const struct {
        size_t at;
        uint8_t value;
        kvt_status status;
        const char *word;
    } cases[] = {
        {0, 0, KVT_EPROTO, "begins with"},       {8, 4, KVT_ENOTSUP, "kv_unified"},
        {8, 0, KVT_EPROTO, "streams"},           {20, 2, KVT_EPROTO, "sequences"},
        {40, 1, KVT_ENOTSUP, "flash attention"}, {40, 2, KVT_EPROTO, "version"},
        {44, 0, KVT_EPROTO, "0 layers"},         {48 + 28, 2, KVT_ENOTSUP, "differ"},
        {48 + 28 + 4, 7, KVT_ENOTSUP, "differ"}, {48 + 28 + 8, 1, KVT_EPROTO, "layout"},
        {44, 3, KVT_EPROTO, "is of another"},
    };
    uint8_t state[256];
    state_places places;
    state_shape learnt;
    size_t n_bytes = state_bytes(&s, 0, n_cells);
    CHECK(n_bytes <= sizeof state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(state, 0, sizeof state);
        state_write(&s, 0, n_cells, first, state, &places);
        CHECK(state_learn(state, n_bytes, why, sizeof why, &learnt) == KVT_OK);
        CHECK(state[cases[i].at] != cases[i].value);
        state[cases[i].at] = cases[i].value;
        kvt_status status = state_learn(state, n_bytes, why, sizeof why, &learnt);
        CHECK_MSG(status == cases[i].status && strstr(why, cases[i].word), "case %zu: %d, %s", i,
                  (int)status, why);
    }
    /* Three caches are one too many. */
    uint8_t *many = calloc(1, n_bytes * 4);
    CHECK(many);
    state_write(&s, 0, n_cells, first, many, &places);
    for (int i = 1; i < 3; i++)
        memcpy(many + n_bytes + (size_t)(i - 1) * (n_bytes - 8), many + 8, n_bytes - 8);
    CHECK(state_learn(many, n_bytes + (n_bytes - 8), why, sizeof why, &learnt) == KVT_OK);
    CHECK_EQ(learnt.n_caches, 2);
    CHECK(state_learn(many, n_bytes + 2 * (n_bytes - 8), why, sizeof why, &learnt) == KVT_EPROTO);
    free(many);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 0) : 400;
    check_refusals();
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t seed = first + i;
        check_round(&seed);
    }
    printf("%llu states from seed %llu\n", (unsigned long long)rounds, (unsigned long long)first);
    return 0;
}
