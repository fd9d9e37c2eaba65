/*
 * flight.c - single flight across processes: eight workers ask for the same prompt at once. One
 * computes, the others wait and go on page by page as it seals; summed over all, each token is
 * computed once. Then the one computing is killed half-way: what it had sealed stays, one of those
 * who wait takes over, and every worker ends with the right bytes.
 *
 * Arguments: rounds of each (50), tokens of the prompt (384).
 */
#include "tests/e2e/e2e.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

enum { WORKERS = 8, MOST_TOKENS = 4096 };

static uint32_t n_tokens = 384, n_pages;

static void make_prompt(uint64_t round, uint32_t *tokens) {
    for (uint32_t i = 0; i < n_tokens; i++)
        tokens[i] = (uint32_t)(round * 100000 + i);
}

/* Computes pages one after another as long as nobody else does; tells the test of each. */
static uint32_t compute_pages(e2e_worker *w, kvt_lease *lease, const uint32_t *tokens) {
    kvt_lease_info info;
    uint32_t n = 0;
    for (kvt_lease_get(lease, &info); info.held_tokens < n_tokens && !info.computing_tokens;
         kvt_lease_get(lease, &info)) {
        e2e_say('p');
        CHECK_EQ(e2e_fill(w, lease, tokens, 1), KVT_OK);
        n++;
    }
    return n;
}

static int flyer(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    static uint32_t tokens[MOST_TOKENS];
    n_tokens = (uint32_t)seed / 2;
    e2e_worker_open_for(&w, d, seed, 20000, n_tokens);
    e2e_say('r');
    for (uint64_t round = (uint64_t)(uint8_t)e2e_hear(); round; round = (uint8_t)e2e_hear()) {
        kvt_lease *lease;
        kvt_lease_info info;
        make_prompt(round, tokens);
        CHECK_EQ(kvt_acquire(w.client, tokens, n_tokens, KVT_CLAIM, &lease), KVT_OK);
        kvt_lease_get(lease, &info);
        while (info.held_tokens < n_tokens) {
            if (info.computing_tokens)
                CHECK_EQ(kvt_wait(lease, info.held_tokens, 20000), KVT_OK);
            else
                compute_pages(&w, lease, tokens);
            kvt_lease_get(lease, &info);
        }
        CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
        CHECK_EQ(kvt_release(lease), KVT_OK);
        e2e_say('d');
    }
    e2e_worker_close(&w);
    return 0;
}

static const e2e_jobs jobs[] = {{"flyer", flyer}, {NULL, NULL}};

static void start_flyer(const e2e_daemon *d, e2e_child *child) {
    *child = e2e_spawn(d, "flyer", 2 * (uint64_t)n_tokens + 1); /* odd: on a GPU, if there is one */
    CHECK_EQ(e2e_child_hear(child), 'r');
}

/* Lets all begin; hears until each has said that it is done, or was killed. Returns the number of
 * pages computed. The first to have computed kill_after pages is killed (SIZE_MAX: nobody). */
static uint32_t fly(const e2e_daemon *d, e2e_child *children, uint8_t round, uint32_t kill_after) {
    uint32_t computed[WORKERS] = {0}, sum = 0, n_done = 0;
    struct pollfd fds[WORKERS];
    int killed = -1;
    for (int i = 0; i < WORKERS; i++) {
        fds[i] = (struct pollfd){.fd = children[i].from, .events = POLLIN};
        e2e_child_say(&children[i], (char)round);
    }
    while (n_done < WORKERS) {
        CHECK(poll(fds, WORKERS, -1) > 0);
        for (int i = 0; i < WORKERS; i++) {
            if (!fds[i].revents)
                continue;
            char said = e2e_child_hear(&children[i]);
            CHECK_MSG(said == 'p' || said == 'd', "worker %d ended", i);
            if (said == 'd')
                n_done++, fds[i].fd = -1;
            else
                computed[i]++, sum++;
            if (said == 'p' && killed < 0 && computed[i] > kill_after) {
                CHECK(kill(children[i].pid, SIGKILL) == 0);
                /* it may have gone on before the signal came */
                while ((said = e2e_child_hear(&children[i])) != 0)
                    sum += said == 'p';
                CHECK_EQ(e2e_child_end(&children[i]), -SIGKILL);
                killed = i;
                n_done++, fds[i].fd = -1;
            }
        }
    }
    if (sum > n_pages + 1)
        for (int i = 0; i < WORKERS; i++)
            fprintf(stderr, "worker %d%s computed %u pages\n", i, i == killed ? " (killed)" : "",
                    computed[i]);
    if (killed >= 0)
        start_flyer(d, &children[killed]);
    return sum;
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    int rounds = argc > 1 ? atoi(argv[1]) : 50;
    n_tokens = argc > 2 ? (uint32_t)atoi(argv[2]) : n_tokens;
    CHECK(n_tokens <= MOST_TOKENS && n_tokens % E2E_PAGE_TOKENS == 0);
    n_pages = n_tokens / E2E_PAGE_TOKENS;
    e2e_daemon d = {0};
    e2e_child children[WORKERS];
    const char *settings[] = {"arena=16MiB", "max_pages=1000", NULL};
    e2e_start(&d, settings);
    for (int i = 0; i < WORKERS; i++)
        start_flyer(&d, &children[i]);
    for (int k = 0; k < rounds; k++) {
        /* Prompts come again after 127 rounds; by then their pages are gone or held: both are fine,
         * so only a prompt that is new is counted. */
        uint8_t round = (uint8_t)(1 + k % 127);
        uint32_t pages = fly(&d, children, round, UINT32_MAX);
        CHECK_MSG(k >= 127 || pages == n_pages, "round %d: %u pages were computed for %d", k, pages,
                  n_pages);
    }
    for (int k = 0; k < rounds; k++) {
        uint8_t round = (uint8_t)(128 + k % 127);
        uint32_t pages = fly(&d, children, round, n_pages / 2);
        /* The page that the killed one was at may be computed twice. */
        CHECK_MSG(k >= 127 || (pages >= n_pages && pages <= n_pages + 1),
                  "round %d: %u pages were computed for %d", k, pages, n_pages);
    }
    for (int i = 0; i < WORKERS; i++) {
        close(children[i].to);
        children[i].to = open("/dev/null", O_WRONLY);
        CHECK_EQ(e2e_child_end(&children[i]), 0);
    }
    /* Each time all that was not sealed, but for the page that may have been on its way. */
    uint64_t left = n_pages > 2 ? n_pages - n_pages / 2 - 2 : 1;
    CHECK(e2e_count(&d, "claims_taken_over") >= (uint64_t)rounds / 2 * left);
    e2e_await(&d, "sessions", 1);
    CHECK_EQ(e2e_count(&d, "pages_pinned"), 0);
    CHECK_EQ(e2e_count(&d, "pages_filling"), 0);
    e2e_finish(&d);
    return 0;
}
