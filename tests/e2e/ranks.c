/*
 * ranks.c - a model that 4 processes serve together. A prefix is held to the minimum over the
 * ranks, and all are told the same length, whatever changes between the first that asks and the
 * last; a rank that dies in the middle makes nobody wait for ever.
 */
#include "tests/e2e/model.h"

#include <signal.h>

enum { RANKS = 4, PAGE = 16, TOKENS = 160 };

static kvt_geometry geometry_of(uint32_t rank) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 1, 32, PAGE);
    g.n_ranks = RANKS;
    g.rank = rank;
    return g;
}

/* On a GPU those of odd ranks have their KV there. */
static void open_rank(model *m, const e2e_daemon *d, uint32_t rank, uint32_t staging_pages) {
    kvt_geometry g = geometry_of(rank);
    if (rank % 2)
        model_open_on_gpu(m, d, &g, TOKENS, staging_pages);
    else
        model_open(m, d, &g, TOKENS, staging_pages);
}

static void make_tokens(uint32_t prompt, uint32_t *tokens) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = prompt * 1000 + i;
}

/* --- a rank, in a process of its own -------------------------------------------------------------
 */

static kvt_lease *ask(model *m, uint64_t request, uint32_t prompt, uint32_t flags) {
    kvt_lease *lease = NULL;
    uint32_t tokens[TOKENS];
    make_tokens(prompt, tokens);
    kvt_status status = kvt_acquire_ranks(m->client, 77, request, tokens, TOKENS, flags, &lease);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    CHECK_EQ(model_read(m, lease, tokens), KVT_OK);
    return lease;
}

/* Does what it is told, a letter a step, and answers with the number of held pages plus '0':
 * a ask with the next number and claim; r release; s seal one page more; f seal all that is
 * missing; w wait for more than is held; n the next prompt; q end. */
static int rank_job(const e2e_daemon *d, uint64_t seed) {
    model m;
    kvt_lease *lease = NULL;
    kvt_lease_info info = {0};
    uint32_t tokens[TOKENS], prompt = 1;
    uint64_t request = 0;
    open_rank(&m, d, (uint32_t)seed, 4);
    e2e_say('!');
    for (char what; (what = e2e_hear()) != 0 && what != 'q';) {
        make_tokens(prompt, tokens);
        if (what == 'a')
            lease = ask(&m, ++request, prompt, KVT_CLAIM);
        else if (what == 'r') {
            CHECK_EQ(kvt_release(lease), KVT_OK);
            lease = NULL;
        } else if (what == 's' || what == 'f') {
            CHECK_EQ(kvt_wait(lease, 0, 0), KVT_OK); /* the others have gone on meanwhile */
            CHECK_EQ(model_fill(&m, lease, tokens, what == 's' ? 1 : SIZE_MAX, 0), KVT_OK);
        } else if (what == 'w')
            CHECK_EQ(kvt_wait(lease, info.held_tokens, 20000), KVT_OK);
        else if (what == 'n')
            prompt++;
        memset(&info, 0, sizeof info);
        if (lease) {
            kvt_lease_get(lease, &info);
            CHECK_EQ(model_read(&m, lease, tokens), KVT_OK);
        }
        e2e_say((char)('0' + info.held_tokens / PAGE));
    }
    kvt_release(lease);
    model_close(&m);
    return 0;
}

/* --- the four of them ----------------------------------------------------------------------------
 */

static e2e_child ranks[RANKS];

static char tell(uint32_t rank, char what) {
    return e2e_child_ask(&ranks[rank], what);
}

static void tell_all(char what, char expected) {
    for (uint32_t rank = 0; rank < RANKS; rank++)
        CHECK_EQ(tell(rank, what), expected);
}

static void start_rank(const e2e_daemon *d, uint32_t rank) {
    ranks[rank] = e2e_spawn(d, "rank", rank);
    CHECK_EQ(e2e_child_hear(&ranks[rank]), '!');
}

/* Held is what all have sealed. */
static void minimum(void) {
    tell_all('a', '0');
    CHECK_EQ(tell(0, 'f'), '0');
    CHECK_EQ(tell(1, 'f'), '0');
    CHECK_EQ(tell(3, 's'), '0');
    CHECK_EQ(tell(2, 's'), '1'); /* the last of four for the first page */
    CHECK_EQ(tell(2, 's'), '1'); /* its second, which rank 3 lacks */
    CHECK_EQ(tell(3, 'f'), '2'); /* now rank 2 is behind */
    CHECK_EQ(tell(2, 'f'), ':'); /* ten */
    tell_all('r', '0');
    tell_all('a', ':');
    tell_all('r', '0');
}

/* Between the first that asks and the last, pages come; and later others go. All are told the same.
 */
static void same_answer(const e2e_daemon *d, model *probe) {
    uint32_t tokens[TOKENS];
    make_tokens(2, tokens);
    tell_all('n', '0');
    tell_all('a', '0');
    for (int i = 0; i < 4; i++)
        for (uint32_t rank = 0; rank < RANKS; rank++)
            CHECK_EQ(tell(rank, 's'), (char)('0' + i + (rank == RANKS - 1)));
    tell_all('r', '0');
    CHECK_EQ(tell(0, 'a'), '4');
    CHECK_EQ(tell(1, 'a'), '4');
    /* Two ranks seal on before the others have asked: not held, since not all have; and a lease of
     * somebody else sees the four. */
    tell(0, 'f');
    tell(1, 'f');
    CHECK_EQ(kvt_release(model_acquire(probe, tokens, TOKENS, 0, 4 * PAGE)), KVT_OK);
    CHECK_EQ(tell(2, 'a'), '4');
    tell(2, 'f');
    CHECK_EQ(tell(3, 'a'), '4'); /* three of four have sealed all */
    CHECK_EQ(tell(3, 'f'), ':');
    tell_all('r', '0');
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
}

/* Another group's prompt, short, to make room for which something must go. */
static void fill_other(const e2e_daemon *d, uint32_t prompt) {
    enum { SHORT = 3 * PAGE };
    uint32_t tokens[TOKENS];
    kvt_lease *leases[RANKS];
    model workers[RANKS];
    make_tokens(prompt, tokens);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        model *m = &workers[rank];
        open_rank(m, d, rank, 16);
        CHECK_EQ(kvt_acquire_ranks(m->client, prompt, 1, tokens, SHORT, KVT_CLAIM, &leases[rank]),
                 KVT_OK);
        CHECK_EQ(model_fill(m, leases[rank], tokens, SIZE_MAX, 0), KVT_OK);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        CHECK_EQ(kvt_release(leases[rank]), KVT_OK);
        model_close(&workers[rank]);
    }
}

/* --- views ---------------------------------------------------------------------------------------
 */

static const kvt_view view = {.sink_tokens = 3, .window_tokens = 20, .budget_tokens = 33};

/* The rows of the view, each right; returns their sum. */
static uint32_t rows_of(model *m, kvt_lease *lease, const uint32_t *tokens) {
    const kvt_run *runs;
    size_t n_runs;
    uint32_t n = 0, sum = 0, n_layers = m->realm.geometry.n_layers;
    kvt_layout to;
    CHECK_EQ(kvt_lease_runs(lease, &runs, &n_runs), KVT_OK);
    oracle_rows(&m->oracle, tokens, TOKENS, m->rows);
    for (size_t i = 0; i < n_runs; i++) {
        uint32_t first = runs[i].first_token;
        kvt_layout_token_major(&m->realm.geometry, runs[i].n_tokens, m->part[0], m->part[1], &to);
        CHECK_EQ(kvt_decode_rows(lease, n, runs[i].n_tokens, 0, n_layers, &to), KVT_OK);
        CHECK_EQ(oracle_check(&m->oracle, m->rows + first, runs[i].n_tokens, 0, n_layers, &to), 0);
        for (uint32_t t = 0; t < runs[i].n_tokens; t++)
            sum = sum * 31 + first + t;
        n += runs[i].n_tokens;
    }
    CHECK_EQ(n, view.budget_tokens);
    return sum;
}

static void say_important(model *m, const uint32_t *tokens, uint32_t first_row, float how) {
    float importance[10];
    kvt_lease *lease = model_acquire(m, tokens, TOKENS, 0, TOKENS);
    for (int i = 0; i < 10; i++)
        importance[i] = how;
    CHECK_EQ(kvt_importance(lease, first_row, 10, importance), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static uint32_t view_of(model *m, uint64_t request, const uint32_t *tokens, kvt_lease **ret_lease) {
    kvt_status status =
        request
            ? kvt_acquire_view_ranks(m->client, 55, request, tokens, TOKENS, &view, 0, ret_lease)
            : kvt_acquire_view(m->client, tokens, TOKENS, NULL, 0, &view, 0, ret_lease);
    CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
    return rows_of(m, *ret_lease, tokens);
}

/* The first rank that asks fixes the rows for all, whatever becomes important meanwhile, and
 * although all else of the path goes. */
static void same_view(const e2e_daemon *d) {
    uint32_t tokens[TOKENS], rows[RANKS];
    kvt_lease *leases[RANKS], *alone, *none = NULL;
    model workers[RANKS];
    kvt_flush_info flushed;
    make_tokens(60, tokens);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        open_rank(&workers[rank], d, rank, 16);
        CHECK_EQ(kvt_acquire_ranks(workers[rank].client, 55, 1, tokens, TOKENS, KVT_CLAIM,
                                   &leases[rank]),
                 KVT_OK);
        CHECK_EQ(model_fill(&workers[rank], leases[rank], tokens, SIZE_MAX, 0), KVT_OK);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        CHECK_EQ(kvt_release(leases[rank]), KVT_OK);
    say_important(&workers[3], tokens, 40, 1);
    rows[1] = view_of(&workers[1], 2, tokens, &leases[1]);
    say_important(&workers[2], tokens, 80, 5);
    CHECK(view_of(&workers[1], 0, tokens, &alone) != rows[1]); /* else this shows nothing */
    CHECK_EQ(kvt_release(alone), KVT_OK);
    kvt_view other = view;
    other.window_tokens++;
    CHECK_EQ(kvt_acquire_view_ranks(workers[0].client, 55, 2, tokens, TOKENS, &other, 0, &none),
             KVT_EINVAL);
    CHECK_EQ(kvt_acquire_ranks(workers[0].client, 55, 2, tokens, TOKENS, 0, &none), KVT_EINVAL);
    tokens[7]++;
    CHECK_EQ(kvt_acquire_view_ranks(workers[0].client, 55, 2, tokens, TOKENS, &view, 0, &none),
             KVT_EINVAL);
    tokens[7]--;
    CHECK_EQ(kvt_acquire_view_ranks(workers[1].client, 55, 2, tokens, TOKENS, &view, 0, &none),
             KVT_EEXIST);
    CHECK_EQ(
        kvt_acquire_view_ranks(workers[0].client, 55, 2, tokens, TOKENS, &view, KVT_CLAIM, &none),
        KVT_EINVAL);
    CHECK(!none);
    CHECK(e2e_count(d, "pages_pinned") > 0); /* the path, for those that are to come */
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != 1)
            CHECK_EQ(view_of(&workers[rank], 2, tokens, &leases[rank]), rows[1]);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
    CHECK_EQ(e2e_count(d, "views"), RANKS);
    CHECK_EQ(kvt_flush(workers[0].client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
    fill_other(d, 61);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        CHECK_EQ(rows_of(&workers[rank], leases[rank], tokens), rows[1]);
        CHECK_EQ(kvt_release(leases[rank]), KVT_OK);
        CHECK_EQ(e2e_count(d, "pages_viewed") > 0, rank < RANKS - 1);
        model_close(&workers[rank]);
    }
    CHECK_EQ(e2e_count(d, "leases"), 0);
}

/* The tail goes, for all ranks at once, and all are told the same shorter length. */
static void evicted(const e2e_daemon *d) {
    tell_all('n', '0');
    tell_all('a', '0');
    for (uint32_t rank = 0; rank < RANKS; rank++)
        CHECK_EQ(tell(rank, 'f'), rank == RANKS - 1 ? ':' : '0');
    tell_all('r', '0');
    uint64_t before = e2e_count(d, "pages_evicted");
    /* The first two prompts are older: their 20 pages go first. */
    uint32_t prompt = 100;
    while (e2e_count(d, "pages_evicted") < before + RANKS * 22)
        fill_other(d, prompt++);
    CHECK((e2e_count(d, "pages_evicted") - before) % RANKS == 0);
    char held = tell(2, 'a');
    CHECK(held > '0' && held < ':');
    CHECK_EQ(tell(0, 'a'), held);
    fill_other(d, prompt++); /* and others go, but not what the request named */
    fill_other(d, prompt++);
    CHECK_EQ(tell(3, 'a'), held);
    CHECK_EQ(tell(1, 'a'), held);
    tell_all('r', '0');
}

/* A rank dies before its part is sealed. The others are told that nobody computes it; so is another
 * group that waits; and the next request of the rest goes through. */
static void death(const e2e_daemon *d) {
    tell_all('n', '0');
    tell_all('a', '0');
    CHECK_EQ(tell(0, 'f'), '0');
    CHECK_EQ(tell(1, 's'), '0');
    e2e_child_say(&ranks[0], 'w'); /* waits for what the others have claimed with it */
    uint64_t died = e2e_count(d, "sessions_died");
    CHECK_EQ(kill(ranks[2].pid, SIGKILL), 0);
    CHECK_EQ(e2e_child_end(&ranks[2]), -SIGKILL);
    e2e_await(d, "sessions_died", died + 1);
    CHECK_EQ(e2e_child_hear(&ranks[0]), '0'); /* within its 20 s: nobody is at it any more */
    CHECK_EQ(tell(1, 'w'), '0');
    CHECK_EQ(tell(3, 'w'), '0');
    CHECK_EQ(tell(0, 'r'), '0');
    CHECK_EQ(tell(1, 'r'), '0');
    CHECK_EQ(tell(3, 'r'), '0');
    CHECK_EQ(e2e_count(d, "leases"), 0);
    e2e_await(d, "pages_pinned", 0);
    CHECK_EQ(e2e_count(d, "pages_filling"), 0);
}

/* What is refused. */
static void refused(model *probe) {
    uint32_t tokens[TOKENS];
    kvt_lease *lease, *other = NULL;
    make_tokens(9, tokens);
    CHECK_EQ(kvt_acquire(probe->client, tokens, TOKENS, KVT_CLAIM, &other), KVT_EINVAL);
    CHECK(strstr(kvt_last_error(), "4 ranks claim together"));
    CHECK_EQ(kvt_acquire_ranks(probe->client, 5, 0, tokens, TOKENS, 0, &other), KVT_EINVAL);
    CHECK_EQ(kvt_acquire_ranks(probe->client, 5, 1, tokens, TOKENS, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(kvt_acquire_ranks(probe->client, 5, 1, tokens, TOKENS, KVT_CLAIM, &other), KVT_EEXIST);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

int main(int argc, char **argv) {
    static const e2e_jobs jobs[] = {{"rank", rank_job}, {NULL, NULL}};
    int rc = e2e_child_main(argc, argv, jobs);
    if (rc >= 0)
        return rc;
    e2e_daemon d = {0};
    model probe;
    const char *settings[] = {"arena=1MiB", "max_pages=4000", "grace_ms=300", NULL};
    e2e_start(&d, settings);
    open_rank(&probe, &d, 0, 4);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        start_rank(&d, rank);
    minimum();
    same_answer(&d, &probe);
    evicted(&d);
    death(&d);
    refused(&probe);
    same_view(&d);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != 2) {
            e2e_child_say(&ranks[rank], 'q');
            CHECK_EQ(e2e_child_end(&ranks[rank]), 0);
        }
    model_close(&probe);
    e2e_finish(&d);
    return 0;
}
