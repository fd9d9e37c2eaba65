/*
 * spans.c - prompts with images: equal tokens with different images never share what has the image
 * in front of it or in it; equal ones do, and text in front of an image is shared as any other.
 *
 * What a page must hold is a function of the path as the model sees it: the image's tokens stand in
 * the oracle's path as numbers of the image's own, in the prompt as placeholders.
 */
#include "tests/e2e/e2e.h"

enum { PAGE = E2E_PAGE_TOKENS, N = 8 * PAGE + 3, PLACEHOLDER = 151655 };

/* Text, an image of n_image tokens at `at`, text. `seen`: as the model sees it. */
static kvt_span make(uint32_t image, uint32_t at, uint32_t n_image, uint32_t *tokens,
                     uint32_t *seen) {
    kvt_span span = {.first_token = at, .n_tokens = n_image};
    memset(span.hash, 0x11, sizeof span.hash);
    span.hash[image % 16] = (uint8_t)image;
    for (uint32_t i = 0; i < E2E_MAX_TOKENS; i++) {
        int in_image = i >= at && i < at + n_image;
        tokens[i] = in_image ? PLACEHOLDER : 500 + i;
        seen[i] = in_image ? 1000000 * (image + 1) + i - at : tokens[i];
    }
    return span;
}

static uint32_t held_of(e2e_worker *w, const uint32_t *tokens, size_t n, const kvt_span *spans,
                        size_t n_spans, const uint32_t *seen) {
    kvt_lease *lease;
    kvt_lease_info info;
    CHECK_EQ(kvt_acquire_spans(w->client, tokens, n, spans, n_spans, 0, &lease), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(e2e_read(w, lease, seen), KVT_OK); /* every byte is of this very image */
    CHECK_EQ(kvt_release(lease), KVT_OK);
    return info.held_tokens;
}

static void fill(e2e_worker *w, const uint32_t *tokens, size_t n, const kvt_span *spans,
                 size_t n_spans, const uint32_t *seen) {
    kvt_lease *lease;
    CHECK_EQ(kvt_acquire_spans(w->client, tokens, n, spans, n_spans, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_read(w, lease, seen), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, seen, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(w, lease, seen), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

static void flush(e2e_worker *w) {
    kvt_flush_info flushed;
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.held_pages, 0);
}

/* Wherever the image begins and however long it is. */
static void images_part_prompts(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS], seen_a[E2E_MAX_TOKENS], seen_b[E2E_MAX_TOKENS],
        seen_none[E2E_MAX_TOKENS];
    static const uint32_t places[] = {0, 1, 5, PAGE - 1, PAGE, 2 * PAGE + 7, 3 * PAGE - 1};
    static const uint32_t lengths[] = {1, 2, PAGE - 1, PAGE, 3 * PAGE + 2};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            uint32_t at = places[i], n = lengths[j];
            flush(w);
            kvt_span a = make(1, at, n, tokens, seen_a), b = make(2, at, n, tokens, seen_b);
            memcpy(seen_none, tokens, sizeof seen_none);
            fill(w, tokens, N, &a, 1, seen_a);
            CHECK_EQ(held_of(w, tokens, N, &a, 1, seen_a), N);
            CHECK_EQ(held_of(w, tokens, N, &b, 1, seen_b), at);
            CHECK_EQ(held_of(w, tokens, N, NULL, 0, seen_none), at); /* placeholders alone */
            fill(w, tokens, N, &b, 1, seen_b);
            CHECK_EQ(held_of(w, tokens, N, &a, 1, seen_a), N);
            CHECK_EQ(held_of(w, tokens, N, &b, 1, seen_b), N);
            /* The same content as two spans, or longer, is another path. */
            if (n > 1) {
                kvt_span halves[2] = {a, a};
                halves[0].n_tokens = 1;
                halves[1].first_token++;
                halves[1].n_tokens--;
                CHECK_EQ(held_of(w, tokens, N, halves, 2, seen_none), at);
                CHECK_EQ(held_of(w, tokens, N, halves, 1, seen_none), at);
            }
        }
}

static void two_images(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS], seen[E2E_MAX_TOKENS], other[E2E_MAX_TOKENS],
        seen_other[E2E_MAX_TOKENS];
    enum { FIRST = 3, SECOND = 10 }; /* both in the first page */
    flush(w);
    kvt_span spans[2] = {make(1, FIRST, 4, tokens, seen), {0}};
    spans[1] = make(2, SECOND, 4, other, seen_other);
    for (uint32_t i = SECOND; i < SECOND + 4; i++) {
        tokens[i] = PLACEHOLDER;
        seen[i] = seen_other[i];
    }
    fill(w, tokens, N, spans, 2, seen);
    CHECK_EQ(held_of(w, tokens, N, spans, 2, seen), N);
    kvt_span swapped[2] = {spans[0], spans[1]};
    memcpy(swapped[0].hash, spans[1].hash, 16);
    memcpy(swapped[1].hash, spans[0].hash, 16);
    CHECK_EQ(held_of(w, tokens, N, swapped, 2, seen), FIRST);
    swapped[0] = spans[0]; /* only the second is another */
    CHECK(held_of(w, tokens, N, swapped, 2, seen) <= SECOND);
}

/* A conversation goes on behind an image, in the page where it ends; another image comes. */
static void conversation(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS], seen[E2E_MAX_TOKENS];
    enum { AT = 5, LONG = 2 * PAGE, TURN = 3 * PAGE + 2, NEXT = TURN + 20 };
    kvt_lease *lease, *fork;
    kvt_lease_info info;
    flush(w);
    kvt_span image = make(3, AT, LONG, tokens, seen);
    CHECK_EQ(kvt_acquire_spans(w->client, tokens, TURN, &image, 1, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, seen, SIZE_MAX), KVT_OK);
    CHECK_EQ(kvt_fork(lease, AT + 1, &fork), KVT_EINVAL);
    CHECK_EQ(kvt_fork(lease, TURN, &fork), KVT_OK);
    CHECK_EQ(kvt_extend(lease, TURN, tokens + TURN, 20, KVT_CLAIM), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, seen, SIZE_MAX), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.held_tokens, NEXT);
    CHECK_EQ(held_of(w, tokens, NEXT, &image, 1, seen), NEXT);
    CHECK_EQ(kvt_extend(lease, AT + 2, tokens + AT + 2, 1, 0), KVT_EINVAL);
    /* The fork goes on with a second image, where the first goes on with text. */
    kvt_span second = {.first_token = TURN + 1, .n_tokens = 9, .hash = {9}};
    uint32_t branch[E2E_MAX_TOKENS], seen_branch[E2E_MAX_TOKENS];
    memcpy(branch, tokens, sizeof branch);
    memcpy(seen_branch, seen, sizeof seen_branch);
    for (uint32_t i = second.first_token; i < second.first_token + 9; i++) {
        branch[i] = PLACEHOLDER;
        seen_branch[i] = 77000000 + i;
    }
    CHECK_EQ(kvt_extend_spans(fork, TURN, branch + TURN, 20, &image, 1, KVT_CLAIM), KVT_EINVAL);
    CHECK_EQ(kvt_extend_spans(fork, TURN, branch + TURN, 20, &second, 1, KVT_CLAIM), KVT_OK);
    CHECK_EQ(e2e_read(w, fork, seen_branch), KVT_OK);
    CHECK_EQ(e2e_fill(w, fork, seen_branch, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(w, fork, seen_branch), KVT_OK);
    CHECK_EQ(e2e_read(w, lease, seen), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(kvt_release(fork), KVT_OK);
    kvt_span both[2] = {image, second};
    CHECK_EQ(held_of(w, branch, NEXT, both, 2, seen_branch), NEXT);
    CHECK_EQ(held_of(w, tokens, NEXT, &image, 1, seen), NEXT);
}

/* A prompt is forgotten, and kept, by its own tokens and spans, wherever the prefix ends; another
 * image's is not touched, nor is anything by the tokens alone. */
static void flush_and_pin(e2e_worker *w) {
    static const uint32_t lengths[] = {5, 12, 16, 17, 40, N};
    uint32_t tokens[E2E_MAX_TOKENS], seen[E2E_MAX_TOKENS], seen_other[E2E_MAX_TOKENS];
    kvt_flush_info flushed;
    kvt_pin_info pinned;
    kvt_span other = make(2, 4, 8, tokens, seen_other), span = make(1, 4, 8, tokens, seen);
    flush(w);
    fill(w, tokens, N, &other, 1, seen_other);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint32_t n = lengths[i], left = n <= PAGE ? 4 : (n - 1) / PAGE * PAGE;
        fill(w, tokens, N, &span, 1, seen);
        CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_PREFIX, 0, tokens, n, &flushed), KVT_OK);
        CHECK_EQ(flushed.pages, 0);
        CHECK_EQ(kvt_pin(w->client, 0, tokens, n, 0, 0, &pinned), KVT_OK);
        CHECK(pinned.pinned_tokens <= 4);
        CHECK_EQ(kvt_unpin(w->client, pinned.pin), KVT_OK);
        CHECK_EQ(kvt_pin_spans(w->client, 0, tokens, n, &span, 1, 0, 0, &pinned), KVT_OK);
        CHECK_EQ(pinned.pinned_tokens, n);
        CHECK_EQ(held_of(w, tokens, N, &span, 1, seen), N);
        CHECK_EQ(kvt_flush_spans(w->client, 0, tokens, n, &span, 1, &flushed), KVT_OK);
        CHECK_EQ(flushed.pages, 9 - (n - 1) / PAGE);
        CHECK_EQ(flushed.pins, 1);
        CHECK_EQ(held_of(w, tokens, N, &span, 1, seen), left);
        CHECK_EQ(held_of(w, tokens, N, &other, 1, seen_other), N);
    }
    other.first_token = 3; /* overlaps */
    kvt_span both[2] = {span, other};
    CHECK_EQ(kvt_flush_spans(w->client, 0, tokens, N, both, 2, &flushed), KVT_EINVAL);
}

int main(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    const char *settings[] = {"arena=4MiB", "max_pages=400", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    images_part_prompts(&w);
    two_images(&w);
    conversation(&w);
    flush_and_pin(&w);
    CHECK_EQ(e2e_count(&d, "pages_pinned"), 0);
    e2e_worker_close(&w);
    e2e_finish(&d);
    return 0;
}
