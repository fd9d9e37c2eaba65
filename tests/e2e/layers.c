/*
 * layers.c - models whose pages are several for each run of tokens, of layer groups and of ranks,
 * in an arena that is far too small, with a host tier and a disk: every byte that comes up is
 * right, all that had been written is held after the daemon was killed and started again, for all
 * ranks the same, and no more is read than the windows of the groups need.
 *
 * Argument: how often each model's daemon is killed (3).
 */
#include "kernels/page.h"
#include "tests/e2e/model.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 16, TOKENS = 320, SETTLED = 6, UNDER_WAY = 40, MAX_RANKS = 4, HANG_S = 60 };

static const kvt_group groups[][KVT_MAX_GROUPS] = {
    {{.n_layers = 4, .window = 64}, {.n_layers = 1}},
    {{.n_layers = 1}, {.n_layers = 2, .window = 100}, {.n_layers = 1, .window = 33}},
    {{.n_layers = 2, .window = 48}, {.n_layers = 2, .window = 130}},
    {{.n_layers = 2}},
    {{.n_layers = 1, .window = 80}, {.n_layers = 1}},
};
static const uint32_t n_ranks_of[] = {1, 1, 1, 4, 2};
enum { KINDS = sizeof n_ranks_of / sizeof *n_ranks_of };

static kvt_geometry geometry_of(uint32_t kind, uint32_t rank) {
    kvt_geometry g;
    uint32_t n_layers = 0, n = 0;
    for (; n < KVT_MAX_GROUPS && groups[kind][n].n_layers; n++)
        n_layers += groups[kind][n].n_layers;
    kvt_geometry_init(&g, n_layers, 2, 32, PAGE);
    g.n_groups = n;
    memcpy(g.groups, groups[kind], sizeof g.groups);
    g.n_ranks = n_ranks_of[kind];
    g.rank = rank;
    return g;
}

/* --- an engine: its ranks ask together -----------------------------------------------------------
 */

typedef struct engine {
    model ranks[MAX_RANKS];
    kvt_lease *leases[MAX_RANKS];
    uint32_t kind, n_ranks;
    uint64_t group, request;
} engine;

static void engine_open(engine *e, const e2e_daemon *d, uint32_t kind, uint64_t group) {
    *e = (engine){.kind = kind, .n_ranks = n_ranks_of[kind], .group = group};
    for (uint32_t rank = 0; rank < e->n_ranks; rank++) {
        kvt_geometry g = geometry_of(kind, rank);
        if (rank % 2)
            model_open_on_gpu(&e->ranks[rank], d, &g, TOKENS, 64);
        else
            model_open(&e->ranks[rank], d, &g, TOKENS, 64);
    }
}

static void engine_close(engine *e) {
    for (uint32_t rank = 0; rank < e->n_ranks; rank++)
        model_close(&e->ranks[rank]);
}

static void engine_release(engine *e) {
    for (uint32_t rank = 0; rank < e->n_ranks; rank++)
        kvt_release(e->leases[rank]);
}

/* What it holds, which all ranks read and check; -1: the daemon is gone. */
static int engine_acquire(engine *e, const uint32_t *tokens, size_t n, uint32_t flags) {
    kvt_lease_info info, first = {0};
    e->request++;
    memset(e->leases, 0, sizeof e->leases);
    for (uint32_t rank = 0; rank < e->n_ranks; rank++) {
        model *m = &e->ranks[rank];
        kvt_status status = e->n_ranks > 1
                                ? kvt_acquire_ranks(m->client, e->group, e->request, tokens, n,
                                                    flags, &e->leases[rank])
                                : kvt_acquire(m->client, tokens, n, flags, &e->leases[rank]);
        if (status == KVT_OK)
            status = model_read(m, e->leases[rank], tokens);
        if (status != KVT_OK)
            return -1;
        kvt_lease_get(e->leases[rank], &info);
        first = rank ? first : info;
        CHECK_EQ(info.held_tokens, first.held_tokens);
        CHECK_EQ(info.claimed_tokens, first.claimed_tokens);
    }
    return (int)first.held_tokens;
}

static kvt_status engine_fill(engine *e, const uint32_t *tokens) {
    kvt_status status = KVT_OK;
    for (uint32_t rank = 0; rank < e->n_ranks && status == KVT_OK; rank++)
        status = model_fill(&e->ranks[rank], e->leases[rank], tokens, SIZE_MAX, 0);
    return status;
}

/* --- prompts -------------------------------------------------------------------------------------
 */

static uint32_t tokens[TOKENS];

static void prompt(uint64_t round, uint32_t number) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (uint32_t)(round * 100000 + (i < 64 ? 0 : number * 1000) + i);
}

static void fill(engine *e, uint64_t round, uint32_t number) {
    prompt(round, number);
    CHECK(engine_acquire(e, tokens, TOKENS, KVT_CLAIM) >= 0);
    CHECK_EQ(engine_fill(e, tokens), KVT_OK);
    engine_release(e);
}

static int held(engine *e, uint64_t round, uint32_t number) {
    prompt(round, number);
    int n = engine_acquire(e, tokens, TOKENS, 0);
    CHECK_MSG(n >= 0, "%s", kvt_last_error());
    engine_release(e);
    return n;
}

/* Fills until the daemon dies under it. */
static int filler(const e2e_daemon *d, uint64_t seed) {
    engine e;
    engine_open(&e, d, (uint32_t)(seed >> 32), seed);
    for (uint32_t i = SETTLED; i < UNDER_WAY; i++) {
        prompt((uint32_t)seed, i);
        e2e_say('g');
        int n = engine_acquire(&e, tokens, TOKENS, KVT_CLAIM);
        kvt_status status = n >= 0 ? engine_fill(&e, tokens) : KVT_EIO;
        engine_release(&e);
        if (status != KVT_OK)
            break;
    }
    engine_close(&e);
    return 0;
}

static const e2e_jobs jobs[] = {{"filler", filler}, {NULL, NULL}};

/* --- what must be true ---------------------------------------------------------------------------
 */

/* What was written is found by and by. */
static void await_held(engine *e, uint64_t round, uint32_t number) {
    time_t start = time(NULL);
    while (held(e, round, number) < TOKENS)
        CHECK_MSG(time(NULL) - start < HANG_S, "kind %u: prompt %u of round %llu is lost", e->kind,
                  number, (unsigned long long)round);
}

/* All that had been written is there; what was under way, in part or not at all. */
static void look(const e2e_daemon *d, uint32_t kind, uint64_t round) {
    engine e;
    engine_open(&e, d, kind, 1000 + round);
    for (uint32_t i = 0; i < SETTLED; i++)
        await_held(&e, round, i);
    for (uint32_t i = SETTLED; i < UNDER_WAY; i++)
        held(&e, round, i);
    engine_close(&e);
}

static void killed(e2e_daemon *d, const char *const *settings, uint32_t kind, uint64_t rounds) {
    for (uint64_t round = 1; round <= rounds; round++) {
        engine e;
        engine_open(&e, d, kind, round);
        for (uint32_t i = 0; i < SETTLED; i++)
            fill(&e, round, i);
        e2e_await_disk(d);
        for (uint32_t i = 0; i < SETTLED; i++) /* most of it has left the arena */
            await_held(&e, round, i);
        engine_close(&e);
        e2e_child other = e2e_spawn(d, "filler", (uint64_t)kind << 32 | round);
        for (uint64_t i = 0; i < 1 + round * 7 % 23; i++)
            CHECK_EQ(e2e_child_hear(&other), 'g');
        CHECK(WIFSIGNALED(e2e_stop(d, SIGKILL)));
        while (e2e_child_hear(&other) == 'g')
            continue;
        CHECK_EQ(e2e_child_end(&other), 0);
        e2e_start(d, settings);
        look(d, kind, round);
        look(d, kind, 1 + round / 2);
    }
    CHECK_EQ(e2e_count(d, "pages_lost"), 0);
}

static uint32_t first_page(uint32_t kind, uint32_t group, uint32_t n) {
    uint32_t window = groups[kind][group].window;
    return window && n > window ? (n - window + 1) / PAGE : 0;
}

/* Pages that a path of so many tokens needs, of all groups and ranks. */
static uint64_t pages_needed(uint32_t kind, uint32_t n) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < KVT_MAX_GROUPS && groups[kind][i].n_layers; i++)
        pages += (n + PAGE - 1) / PAGE - first_page(kind, i, n);
    return pages * n_ranks_of[kind];
}

/* All of it comes from the disk, and that alone is read; then it is there. */
static void exact(e2e_daemon *d, const char *const *settings, uint32_t kind) {
    engine e;
    kvt_lease_info info;
    kvt_verify_info verify;
    kvt_prefetch_info ahead;
    engine_open(&e, d, kind, 1);
    fill(&e, 500, 0);
    CHECK_EQ(kvt_spill(e.ranks[0].client, 30000, NULL), KVT_OK);
    uint64_t on_disk = e2e_count(d, "pages_disk");
    CHECK_EQ(kvt_verify(e.ranks[0].client, 60000, &verify), KVT_OK);
    CHECK(verify.checked_pages == on_disk && verify.corrupt_pages == 0);
    CHECK_EQ(e2e_stop(d, SIGTERM), 0);
    e2e_start(d, settings);
    e2e_await(d, "pages_found", on_disk);
    CHECK_EQ(e2e_count(d, "pages_disk"), on_disk);
    prompt(500, 0);
    CHECK_EQ(engine_acquire(&e, tokens, TOKENS, KVT_CLAIM), TOKENS);
    for (uint32_t rank = 0; rank < e.n_ranks; rank++) {
        kvt_lease_get(e.leases[rank], &info);
        /* When the others asked, they were there. */
        CHECK_EQ(info.disk_pages, rank ? 0 : TOKENS / PAGE - first_page(kind, 0, TOKENS));
    }
    CHECK_EQ(e2e_count(d, "pages_read"), pages_needed(kind, TOKENS));
    CHECK_EQ(e2e_count(d, "pages_promoted"), pages_needed(kind, TOKENS));
    engine_release(&e);
    CHECK_EQ(kvt_prefetch(e.ranks[0].client, tokens, TOKENS, &ahead), KVT_OK);
    CHECK(ahead.held_tokens == TOKENS && ahead.ready_tokens == TOKENS);
    CHECK_EQ(e2e_count(d, "pages_read"), pages_needed(kind, TOKENS));
    engine_close(&e);
}

/* What was flushed stays away, and the rest stays. */
static void flushed(e2e_daemon *d, const char *const *settings, uint32_t kind) {
    enum { CUT = 200 };
    engine e;
    kvt_flush_info info;
    engine_open(&e, d, kind, 1);
    fill(&e, 600, 1);
    e2e_await_disk(d);
    prompt(600, 1);
    uint64_t n_pages = e2e_count(d, "pages_disk");
    CHECK_EQ(kvt_flush(e.ranks[0].client, KVT_FLUSH_PREFIX, 0, tokens, CUT, &info), KVT_OK);
    CHECK(info.pages > 0);
    CHECK_EQ(n_pages - e2e_count(d, "pages_disk"), info.pages); /* of all ranks and groups */
    CHECK_EQ(e2e_count(d, "pages_flushed"), info.pages);
    CHECK(held(&e, 600, 1) < CUT);
    CHECK(WIFSIGNALED(e2e_stop(d, SIGKILL)));
    e2e_start(d, settings);
    await_held(&e, 500, 0);
    CHECK(held(&e, 600, 1) < CUT);
    engine_close(&e);
}

static void run_kind(uint32_t kind, uint64_t rounds) {
    e2e_daemon d = {0};
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=1MiB",  "host=1MiB",       disk.setting,
                              "disk=256MiB", "max_pages=20000", NULL};
    e2e_start(&d, settings);
    killed(&d, settings, kind, rounds);
    exact(&d, settings, kind);
    flushed(&d, settings, kind);
    CHECK_EQ(e2e_count(&d, "corrupt"), 0);
    CHECK_EQ(e2e_count(&d, "foreign"), 0);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3;
    for (uint32_t kind = 0; kind < KINDS; kind++)
        run_kind(kind, rounds);
    return 0;
}
