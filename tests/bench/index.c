/*
 * index.c - match, evict, memory: what the tree, the page table and the frames cost.
 */
#include "daemon/core.h"
#include "store/frames.h"
#include "store/page_table.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 64, PROMPT_TOKENS = 32768, PROMPT_PAGES = PROMPT_TOKENS / PAGE };

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* --- match ---------------------------------------------------------------------------------------
 */

typedef struct forest {
    void *memory;
    radix *tree;
    radix_node root;
    uint32_t n_prompts, next;
    uint32_t *prompts;                /* [n_prompts][PROMPT_TOKENS] */
    uint32_t *copies;                 /* the same again: what memcmp compares with */
    uint32_t received[PROMPT_TOKENS]; /* one of them, as a message has brought it */
    uint64_t sum;
} forest;

static forest forest_make(uint32_t n_pages) {
    forest f = {.n_prompts = n_pages / PROMPT_PAGES};
    radix_limits limits = {.max_pages = n_pages, .max_roots = 1, .page_tokens = PAGE, .n_slots = 1};
    size_t bytes = radix_bytes(&limits), n = (size_t)f.n_prompts * PROMPT_TOKENS;
    f.memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    f.prompts = malloc(n * 4);
    f.copies = malloc(n * 4);
    KVT_ASSERT(f.memory && f.prompts && f.copies);
    memset(f.memory, 0, bytes);
    KVT_ASSERT(radix_init(f.memory, bytes, &limits, &f.tree) == KVT_OK);
    KVT_ASSERT(radix_root_add(f.tree, PAGE, 1, &f.root) == KVT_OK);
    for (size_t i = 0; i < n; i++)
        f.prompts[i] = f.copies[i] = (uint32_t)mix(i + 1) % 128000;
    for (uint32_t p = 0; p < f.n_prompts; p++) {
        radix_node node = f.root;
        const uint32_t *tokens = f.prompts + (size_t)p * PROMPT_TOKENS;
        for (uint32_t i = 0; i < PROMPT_PAGES; i++) {
            KVT_ASSERT(radix_insert(f.tree, node, tokens + i * PAGE, PAGE, p, &node) == KVT_OK);
            radix_set_held(f.tree, node, 1);
        }
    }
    return f;
}

static void forest_free(forest *f) {
    free(f->memory);
    free(f->prompts);
    free(f->copies);
}

/* The prompts take turns, so that neither side finds its tokens in the nearest cache by habit. */
static uint32_t next_prompt(forest *f) {
    f->next = (f->next + 7) % f->n_prompts;
    return f->next;
}

static void find_one(void *context) {
    forest *f = context;
    radix_match m;
    radix_find(f->tree, f->root, f->prompts + (size_t)next_prompt(f) * PROMPT_TOKENS, PROMPT_TOKENS,
               &m);
    KVT_ASSERT(m.held_pages == PROMPT_PAGES);
}

static void memcmp_one(void *context) {
    forest *f = context;
    size_t at = (size_t)next_prompt(f) * PROMPT_TOKENS;
    /* in pages, as the tree must; a single call is no faster */
    for (uint32_t i = 0; i < PROMPT_PAGES; i++)
        f->sum += (uint64_t)memcmp(f->prompts + at + i * PAGE, f->copies + at + i * PAGE, PAGE * 4);
}

/* The daemon has just been sent the tokens that it looks for: they are in the processor's cache. */
static void receive_one(void *context) {
    forest *f = context;
    memcpy(f->received, f->prompts + (size_t)next_prompt(f) * PROMPT_TOKENS, sizeof f->received);
}

static void find_received(void *context) {
    forest *f = context;
    radix_match m;
    radix_find(f->tree, f->root, f->received, PROMPT_TOKENS, &m);
    KVT_ASSERT(m.held_pages == PROMPT_PAGES);
}

static void memcmp_received(void *context) {
    forest *f = context;
    const uint32_t *copy = f->copies + (size_t)f->next * PROMPT_TOKENS;
    for (uint32_t i = 0; i < PROMPT_TOKENS; i += PAGE)
        f->sum += (uint64_t)memcmp(f->received + i, copy + i, PAGE * 4);
}

void bench_match(void) {
    forest f = forest_make(100000);
    bench_pair pair = bench_turns(find_one, memcmp_one, &f, 2000);
    bench_report(&(bench_row){.name = "match, 32768 tokens among 100000 pages",
                              .value = pair.a * 1e6,
                              .unit = "us",
                              .base = "memcmp of the same tokens",
                              .base_value = pair.b * 1e6,
                              .target = 2,
                              .noise = pair.noise});
    forest_free(&f);
    forest small = forest_make(10240);
    pair = bench_turns(find_one, memcmp_one, &small, 2000);
    double small_ns = pair.a * 1e9 / PROMPT_TOKENS;
    double small_memcmp_ns = pair.b * 1e9 / PROMPT_TOKENS;
    forest_free(&small);
    forest large = forest_make(1000448);
    pair = bench_turns(find_one, memcmp_one, &large, 2000);
    bench_report(&(bench_row){.name = "match per token among 1000000 pages",
                              .value = pair.a * 1e9 / PROMPT_TOKENS,
                              .unit = "ns",
                              .base = "match per token among 10000 pages",
                              .base_value = small_ns,
                              .target = 1.5,
                              .noise = pair.noise});
    /* What of it is the machine's: that many tokens do not fit its caches. */
    bench_report(&(bench_row){.name = "  the same for memcmp",
                              .value = pair.b * 1e9 / PROMPT_TOKENS,
                              .unit = "ns",
                              .base = "memcmp per token among 10000 pages",
                              .base_value = small_memcmp_ns,
                              .noise = pair.noise});
    bench_report(&(bench_row){.name = "match, 32768 tokens among 1000000 pages",
                              .value = pair.a * 1e6,
                              .unit = "us",
                              .base = "memcmp of the same tokens",
                              .base_value = pair.b * 1e6,
                              .noise = pair.noise});
    pair = bench_turns_after(receive_one, find_received, memcmp_received, &large, 2000);
    bench_report(&(bench_row){.name = "  of tokens that were just received",
                              .value = pair.a * 1e6,
                              .unit = "us",
                              .base = "memcmp of them",
                              .base_value = pair.b * 1e6,
                              .noise = pair.noise});
    forest_free(&large);
}

/* --- evict ---------------------------------------------------------------------------------------
 */

typedef struct bush {
    void *memory;
    radix *tree;
    radix_node root;
    uint64_t next;
} bush;

static void bush_grow(bush *b) {
    uint32_t tokens[PAGE];
    uint64_t seed = mix(++b->next);
    radix_node node;
    for (uint32_t i = 0; i < PAGE; i++)
        tokens[i] = (uint32_t)mix(seed + i) % 128000;
    KVT_ASSERT(radix_insert(b->tree, b->root, tokens, PAGE, mix(seed) >> 20, &node) == KVT_OK);
    radix_set_held(b->tree, node, 1);
}

static bush bush_make(uint32_t n_nodes) {
    bush b = {0};
    radix_limits limits = {.max_pages = n_nodes, .max_roots = 1, .page_tokens = PAGE, .n_slots = 1};
    size_t bytes = radix_bytes(&limits);
    b.memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    KVT_ASSERT(b.memory);
    memset(b.memory, 0, bytes);
    KVT_ASSERT(radix_init(b.memory, bytes, &limits, &b.tree) == KVT_OK);
    KVT_ASSERT(radix_root_add(b.tree, PAGE, 1, &b.root) == KVT_OK);
    for (uint32_t i = 0; i < n_nodes; i++)
        bush_grow(&b);
    return b;
}

/* Only the evictions are timed; what they removed is put back in between. */
static double evict_seconds(bush *b, int n) {
    double start = bench_now();
    for (int i = 0; i < n; i++) {
        radix_node node = radix_coldest(b->tree);
        KVT_ASSERT(radix_remove(b->tree, node) == KVT_OK);
    }
    double seconds = bench_now() - start;
    for (int i = 0; i < n; i++)
        bush_grow(b);
    return seconds / n;
}

void bench_evict(void) {
    enum { ROUNDS = 400, EACH = 100 };
    static double small[ROUNDS], large[ROUNDS], ratio[ROUNDS];
    bush s = bush_make(1000), l = bush_make(100000);
    for (int i = 0; i < ROUNDS; i++) {
        small[i] = evict_seconds(&s, EACH);
        large[i] = evict_seconds(&l, EACH);
        ratio[i] = large[i] / small[i];
    }
    double median = bench_percentile(ratio, ROUNDS, 50);
    bench_report(&(bench_row){.name = "one eviction at 100000 nodes",
                              .value = bench_percentile(large, ROUNDS, 50) * 1e9,
                              .unit = "ns",
                              .base = "one eviction at 1000 nodes",
                              .base_value = bench_percentile(small, ROUNDS, 50) * 1e9,
                              .target = 2,
                              .noise = 50 * (ratio[ROUNDS * 3 / 4] - ratio[ROUNDS / 4]) / median});
    free(s.memory);
    free(l.memory);
}

/* --- memory --------------------------------------------------------------------------------------
 */

void bench_memory(void) {
    enum { PAGES = 1000000 };
    radix_limits limits = {.max_pages = PAGES, .max_roots = 1, .page_tokens = PAGE, .n_slots = 1};
    double tree = (double)radix_bytes(&limits) / PAGES - PAGE * 4;
    double pages = (double)page_table_bytes(PAGES) / PAGES;
    double places = (double)frames_bytes((uint64_t)PAGES * 65536, PAGES) / PAGES + 8;
    bench_report(&(bench_row){.name = "index memory beyond the tokens",
                              .value = tree + pages + places,
                              .unit = "B/page",
                              .target = 96});
    bench_report(&(bench_row){.name = "  of that the tree", .value = tree, .unit = "B/page"});
    bench_report(&(bench_row){.name = "  the page table", .value = pages, .unit = "B/page"});
    bench_report(&(bench_row){
        .name = "  the frames and their generations", .value = places, .unit = "B/page"});
    /* Waste over full pages: an arena filled to the brim with pages of one size. */
    double worst = 0, sum = 0;
    int n = 0;
    enum { FRAMES = 65536 };
    static uint64_t generations[FRAMES];
    size_t bytes = frames_bytes(UINT64_C(1) << 30, FRAMES);
    void *memory = malloc(bytes);
    KVT_ASSERT(memory);
    for (double size = 16384; size < 16 << 20; size *= 1.013) {
        frames *f;
        uint32_t frame;
        uint64_t asked = 0;
        frames_counts counts;
        KVT_ASSERT(frames_init(memory, bytes, UINT64_C(1) << 30, FRAMES, generations, &f) ==
                   KVT_OK);
        while (asked + (uint64_t)size < UINT64_C(1) << 29) {
            KVT_ASSERT(frames_alloc(f, (uint64_t)size, &frame) == KVT_OK);
            asked += (uint64_t)size;
        }
        frames_count(f, &counts);
        double waste = 100.0 * (double)counts.waste_bytes / (double)counts.slab_bytes;
        worst = waste > worst ? waste : worst;
        sum += waste;
        n++;
    }
    free(memory);
    bench_report(&(bench_row){.name = "frame waste, worst of sizes 16 KiB .. 16 MiB",
                              .value = worst,
                              .unit = "%",
                              .target = 4});
    bench_report(&(bench_row){.name = "frame waste, mean of them", .value = sum / n, .unit = "%"});
}
