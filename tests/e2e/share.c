/*
 * share.c - n parallel samples of one prompt: forks that grow differently share all of the prompt
 * but the page in which they part, which each copies on write; frames in use are what the
 * arithmetic says. Then the answers that a worker may get from acquire, each once: empty, shorter
 * than a page, a full hit, all but one token, a hit inside a page.
 */
#include "tests/e2e/e2e.h"

enum { SAMPLES = 8, PROMPT = 232, GROWN = 332, PAGE = E2E_PAGE_TOKENS };
enum { WHOLE = PROMPT / PAGE, OWN = (GROWN + PAGE - 1) / PAGE - WHOLE }; /* pages: 14, 7 */

static void make_path(uint32_t sample, uint32_t *tokens) {
    for (uint32_t i = 0; i < GROWN; i++)
        tokens[i] = i < PROMPT ? 3000 + i : 100000 * (sample + 1) + i;
}

static void samples_share(const e2e_daemon *d, e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *prompt, *samples[SAMPLES];
    kvt_lease_info info;
    make_path(0, tokens);
    CHECK_EQ(kvt_acquire(w->client, tokens, PROMPT, KVT_CLAIM, &prompt), KVT_OK);
    CHECK_EQ(e2e_fill(w, prompt, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_count(d, "frames_used"), WHOLE + 1);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        make_path(i, tokens);
        CHECK_EQ(kvt_fork(prompt, PROMPT, &samples[i]), KVT_OK);
        CHECK_EQ(e2e_read(w, samples[i], tokens), KVT_OK);
        CHECK_EQ(kvt_extend(samples[i], PROMPT, tokens + PROMPT, GROWN - PROMPT, KVT_CLAIM),
                 KVT_OK);
        kvt_lease_get(samples[i], &info);
        CHECK_EQ(info.n_tokens, GROWN);
        CHECK_EQ(info.held_tokens, PROMPT);
        CHECK_EQ(info.claimed_tokens, GROWN);
        CHECK_EQ(e2e_fill(w, samples[i], tokens, SIZE_MAX), KVT_OK);
        CHECK_EQ(e2e_count(d, "frames_used"), WHOLE + 1 + (i + 1) * OWN);
    }
    for (uint32_t i = 0; i < SAMPLES; i++) {
        make_path(i, tokens);
        CHECK_EQ(e2e_read(w, samples[i], tokens), KVT_OK);
        CHECK_EQ(kvt_release(samples[i]), KVT_OK);
    }
    CHECK_EQ(kvt_release(prompt), KVT_OK);
    /* The prompt's short last page is covered by each sample's own: nobody needs it any more. */
    CHECK_EQ(e2e_count(d, "frames_used"), WHOLE + SAMPLES * OWN);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
}

static void expect(e2e_worker *w, const uint32_t *tokens, size_t n, uint32_t flags, uint32_t held) {
    kvt_lease *lease;
    kvt_lease_info info;
    CHECK_EQ(kvt_acquire(w->client, tokens, n, flags, &lease), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.held_tokens, held);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static void answers(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    make_path(3, tokens);
    expect(w, tokens, 0, 0, 0);
    expect(w, tokens, 0, KVT_CLAIM, 0);
    expect(w, tokens, 5, 0, 5);                         /* shorter than a page */
    expect(w, tokens, PAGE, 0, PAGE);                   /* exactly one */
    expect(w, tokens, GROWN, 0, GROWN);                 /* a full hit */
    expect(w, tokens, GROWN, KVT_LEAVE_ONE, GROWN - 1); /* one token left to compute */
    expect(w, tokens, GROWN, KVT_LEAVE_ONE | KVT_CLAIM, GROWN - 1);
    tokens[PROMPT + 1] = 7;
    expect(w, tokens, GROWN, 0, PROMPT + 1); /* inside the page where the samples part */
    tokens[0] = 7;
    expect(w, tokens, GROWN, 0, 0); /* a miss */
}

int main(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    const char *settings[] = {"arena=4MiB", "max_pages=400", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    samples_share(&d, &w);
    answers(&w);
    e2e_worker_close(&w);
    e2e_finish(&d);
    return 0;
}
