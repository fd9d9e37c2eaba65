/*
 * test_sizes.c - the arithmetic of `kvtrunk sizes`: the pages that tokens take, and that an arena
 * of the size it names holds them all, asked of the allocator itself.
 *
 *   test_sizes [SEED [GEOMETRIES]]
 */
#include "client/tool_sizes.h"
#include "store/frames.h"
#include "tests/check.h"

static const char *const sets[] = {"f16", "fp8", "i8", "k8v4", "i4", "i2"};
enum { N_SETS = sizeof sets / sizeof *sets, MAX_PAGES = 30000 };

static sizes_plan plan_of(const kvt_geometry *geometry, const char *codec, uint64_t n_tokens) {
    sizes_plan plan;
    char why[256] = "";
    kvt_status status = sizes_make_plan(geometry, codec, n_tokens, why, sizeof why, &plan);
    CHECK_MSG(status == KVT_OK, "%s: %s", codec, why);
    return plan;
}

/* --- pages --------------------------------------------------------------------------------------
 */

static kvt_geometry two_groups(uint32_t window) {
    kvt_geometry g;
    kvt_geometry_init(&g, 12, 4, 64, 64);
    g.n_groups = 2;
    g.groups[0] = (kvt_group){.n_layers = 2};
    g.groups[1] = (kvt_group){.n_layers = 10, .window = window};
    return g;
}

static void test_pages(void) {
    static const struct {
        uint64_t tokens, window, full, sliding;
    } cases[] = {
        {1, 1024, 1, 1},          {64, 1024, 1, 1},         {65, 1024, 2, 2},
        {1024, 1024, 16, 16},     {1025, 1024, 17, 17}, /* token 1 stands in the first page */
        {1087, 1024, 17, 17},     {1088, 1024, 17, 16},     {1100, 1024, 18, 17},
        {131072, 1024, 2048, 16}, {131073, 1024, 2049, 17}, {1000, 1, 16, 1},
        {1024, 1, 16, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvt_geometry g = two_groups((uint32_t)cases[i].window);
        sizes_plan plan = plan_of(&g, "f16", cases[i].tokens);
        CHECK_EQ(plan.groups[0].pages, cases[i].full);
        CHECK_EQ(plan.groups[1].pages, cases[i].sliding);
        CHECK_EQ(plan.pages, cases[i].full + cases[i].sliding);
    }
}

static void test_refused(void) {
    kvt_geometry mla;
    sizes_plan plan, before;
    char why[256] = "";
    kvt_geometry_init(&mla, 3, 1, 512, 64);
    mla.kind = KVT_MLA;
    mla.head_dim[1] = 64;
    memset(&plan, 0x5a, sizeof plan);
    before = plan;
    CHECK_EQ(sizes_make_plan(&mla, "k8v4", 100, why, sizeof why, &plan), KVT_ENOTSUP);
    CHECK_EQ(sizes_make_plan(&mla, "i9", 100, why, sizeof why, &plan), KVT_ESYNTAX);
    CHECK(why[0]);
    CHECK(memcmp(&plan, &before, sizeof plan) == 0);
}

/* --- the arena ----------------------------------------------------------------------------------
 */

/* Do the pages of a plan fit into an arena of the size that it names? Groups take turns, as pages
 * of one prompt come. */
static int fits(const kvt_geometry *g, const sizes_plan *plan) {
    uint32_t max_frames = (uint32_t)plan->pages + 4, frame;
    size_t bytes = frames_bytes(plan->arena_bytes, max_frames);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    uint64_t *generations = calloc(max_frames, sizeof *generations);
    frames *f;
    int ok = 1;
    CHECK(memory && generations);
    CHECK_EQ(frames_init(memory, bytes, plan->arena_bytes, max_frames, generations, &f), KVT_OK);
    for (uint64_t i = 0; i < plan->pages && ok; i++)
        for (uint32_t k = 0; k < g->n_groups && ok; k++)
            if (i < plan->groups[k].pages)
                ok = frames_alloc(f, plan->groups[k].page_bytes, &frame) == KVT_OK;
    free(memory);
    free(generations);
    return ok;
}

static kvt_geometry random_geometry(uint64_t *random) {
    static const uint32_t page_tokens[] = {16, 32, 64, 128};
    kvt_geometry g;
    uint32_t dim = 2 * (1 + check_below(random, 128));
    kvt_geometry_init(&g, 1 + check_below(random, check_below(random, 4) ? 8 : 100),
                      1 + check_below(random, 16), dim, page_tokens[check_below(random, 4)]);
    uint32_t left = g.n_layers;
    for (g.n_groups = 0; left && g.n_groups < 3; g.n_groups++) {
        uint32_t n = g.n_groups == 2 ? left : 1 + check_below(random, left);
        uint32_t window = check_below(random, 2) ? 0 : 1 + check_below(random, 8192);
        g.groups[g.n_groups] = (kvt_group){.n_layers = n, .window = window};
        left -= n;
    }
    return g;
}

static void test_arena(uint64_t seed, uint32_t n_geometries) {
    static const uint64_t tokens[] = {1, 100, 1000, 20000, 131072, 1000000, 4000000};
    uint64_t random = seed, n_tried = 0;
    for (uint32_t i = 0; i < n_geometries; i++) {
        kvt_geometry g = random_geometry(&random);
        uint64_t n = 1 + check_random(&random) % tokens[check_below(&random, 7)];
        sizes_plan plan = plan_of(&g, sets[check_below(&random, N_SETS)], n);
        if (plan.pages > MAX_PAGES)
            continue;
        CHECK_MSG(fits(&g, &plan), "seed %llu, geometry %u: %llu pages in %llu bytes",
                  (unsigned long long)seed, i, (unsigned long long)plan.pages,
                  (unsigned long long)plan.arena_bytes);
        n_tried++;
    }
    CHECK(n_tried > n_geometries / 2);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 3000;
    test_pages();
    test_refused();
    test_arena(seed, n);
    return 0;
}
