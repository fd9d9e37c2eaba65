/*
 * keep.c - pins and flush, through the library and a real daemon: what is pinned outlives whatever
 * else wants its room, and its maker; what is flushed nobody gets, and what of it is leased stays
 * right for its reader and is gone when he lets go.
 */
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = E2E_PAGE_TOKENS, N = 10 * PAGE + 5 };

static void fill(e2e_worker *w, const uint32_t *tokens, size_t n) {
    kvt_lease *lease;
    CHECK_EQ(kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* Twice as much as there is room for. */
static void flood(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    for (uint32_t i = 0; i < 20; i++) {
        e2e_path(500 + i, tokens);
        fill(w, tokens, 10 * PAGE);
    }
}

static void pins(e2e_daemon *d, e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_pin_info pin, again;
    e2e_path(1, tokens);
    CHECK_EQ(kvt_pin(w->client, 0, tokens, N, 0, 0, &pin), KVT_ENOENT);
    CHECK_EQ(kvt_pin(w->client, 0, tokens, 0, 0, 0, &pin), KVT_EINVAL);
    fill(w, tokens, N);
    flood(w);
    CHECK_EQ(e2e_held(w, tokens, N), 0); /* without a pin it goes */
    fill(w, tokens, N);
    CHECK_EQ(kvt_pin(w->client, 0, tokens, N, 0, 0, &pin), KVT_OK);
    CHECK_EQ(pin.pinned_tokens, N);
    CHECK_EQ(kvt_pin(w->client, 0, tokens, N, 60000, 0, &again), KVT_OK);
    CHECK_EQ(again.pin, pin.pin);
    CHECK_EQ(again.pinned_bytes, pin.pinned_bytes);
    CHECK_EQ(e2e_count(d, "pins"), 1);
    CHECK_EQ(e2e_count(d, "pinned_bytes"), pin.pinned_bytes);
    flood(w);
    CHECK_EQ(e2e_held(w, tokens, N), N);
    CHECK_EQ(e2e_count(d, "pin_hits"), 1);
    CHECK_EQ(e2e_held(w, tokens, N - 1), N - 1); /* not all of it */
    CHECK_EQ(e2e_count(d, "pin_hits"), 1);
    /* A budget keeps the leading pages alone. */
    uint64_t page = pin.pinned_bytes / 11;
    CHECK_EQ(kvt_pin(w->client, 0, tokens, N, 0, 3 * page, &again), KVT_OK);
    CHECK(again.pin != pin.pin);
    CHECK(again.pinned_tokens % PAGE == 0 && again.pinned_bytes <= 3 * page);
    CHECK_EQ(kvt_unpin(w->client, pin.pin), KVT_OK);
    CHECK_EQ(kvt_unpin(w->client, pin.pin), KVT_ENOENT);
    flood(w);
    CHECK_EQ(e2e_held(w, tokens, N), again.pinned_tokens);
    /* The limit of all pins: half of the arena. */
    uint32_t more[E2E_MAX_TOKENS];
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < 20 && status == KVT_OK; i++) {
        e2e_path(50 + i, more);
        fill(w, more, 8 * PAGE);
        status = kvt_pin(w->client, 0, more, 8 * PAGE, 0, 0, &pin);
    }
    CHECK_EQ(status, KVT_ELIMIT);
    CHECK(strstr(kvt_last_error(), "max_pinned") != NULL);
    CHECK(e2e_count(d, "pinned_bytes") <= e2e_count(d, "arena_bytes") / 2);
}

/* Pins outlive their maker, and end with their time. */
static void pins_outlive(e2e_daemon *d) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_pin_info pin;
    kvt_flush_info flushed;
    e2e_worker_open(&w, d, 2, 20000);
    CHECK_EQ(kvt_flush(w.client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
    CHECK(flushed.pins > 1 && flushed.held_pages == 0);
    CHECK_EQ(e2e_count(d, "pins"), 0);
    CHECK_EQ(e2e_count(d, "frames_used"), 0);
    e2e_path(3, tokens);
    fill(&w, tokens, N);
    CHECK_EQ(kvt_pin(w.client, 0, tokens, N, 1, 0, &pin), KVT_OK);
    e2e_worker_close(&w);
    e2e_await(d, "pins_expired", 1);
    CHECK_EQ(e2e_count(d, "pins"), 0);
    CHECK_EQ(e2e_count(d, "pages_pinned"), 0);
}

static void flush_while_read(e2e_daemon *d, e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS], branch[E2E_MAX_TOKENS];
    kvt_lease *reader, *late;
    kvt_lease_info info;
    kvt_flush_info flushed;
    e2e_path(7, tokens);
    memcpy(branch, tokens, sizeof branch);
    branch[4 * PAGE + 3] = 9;
    fill(w, tokens, N);
    fill(w, branch, N);
    CHECK_EQ(kvt_acquire(w->client, tokens, N, 0, &reader), KVT_OK);
    /* From the page that holds token 2 * PAGE on: both branches. */
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_PREFIX, 0, tokens, 2 * PAGE + 1, &flushed), KVT_OK);
    CHECK_EQ(flushed.held_pages, 9);
    CHECK_EQ(flushed.pages, 7);
    CHECK_EQ(e2e_held(w, tokens, N), 2 * PAGE);
    CHECK_EQ(e2e_held(w, branch, N), 2 * PAGE);
    CHECK_EQ(e2e_count(d, "flushed_held"), 1);
    CHECK_EQ(e2e_read(w, reader, tokens), KVT_OK);
    /* The place is free: another computes the same again while the reader reads the old. */
    fill(w, tokens, N);
    CHECK_EQ(e2e_held(w, tokens, N), N);
    CHECK_EQ(e2e_read(w, reader, tokens), KVT_OK);
    /* The reader goes on with what it has, and gets nothing new on it. */
    CHECK_EQ(kvt_extend(reader, N, tokens + N, 20, KVT_CLAIM), KVT_OK);
    kvt_lease_get(reader, &info);
    CHECK_EQ(info.held_tokens, N);
    CHECK_EQ(info.claimed_tokens, 0);
    CHECK_EQ(e2e_read(w, reader, tokens), KVT_OK);
    CHECK_EQ(kvt_fork(reader, N, &late), KVT_OK);
    CHECK_EQ(kvt_release(reader), KVT_OK);
    CHECK_EQ(e2e_read(w, late, tokens), KVT_OK);
    CHECK_EQ(e2e_count(d, "flushed_held"), 1);
    CHECK_EQ(kvt_release(late), KVT_OK);
    CHECK_EQ(e2e_count(d, "flushed_held"), 0);
    CHECK_EQ(e2e_held(w, tokens, N), N);
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_REALM, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.held_pages, 0);
    CHECK_EQ(e2e_held(w, tokens, N), 0);
}

/* The flushed page is kept in part: the rest of it is what goes on from there, so that counts, too.
 */
static void extend_within_flushed(e2e_daemon *d, e2e_worker *w) {
    enum { KEPT = 2 * PAGE + 3, MORE = 20 };
    uint32_t tokens[E2E_MAX_TOKENS], sibling[E2E_MAX_TOKENS], other[E2E_MAX_TOKENS];
    kvt_lease *lease;
    kvt_lease_info info;
    kvt_flush_info flushed;
    e2e_path(21, tokens);
    memcpy(sibling, tokens, sizeof tokens); /* shares what is kept, but for a token */
    sibling[KEPT - 1]++;
    memcpy(other, tokens, sizeof tokens);
    for (uint32_t i = 0; i < MORE; i++)
        other[KEPT + i]++;
    fill(w, tokens, N);
    CHECK_EQ(kvt_acquire(w->client, tokens, N, 0, &lease), KVT_OK);
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_PREFIX, 0, tokens, 2 * PAGE + 1, &flushed), KVT_OK);
    fill(w, sibling, N);
    CHECK_EQ(kvt_extend(lease, KEPT, other + KEPT, MORE, KVT_CLAIM), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.held_tokens, KEPT);
    CHECK_EQ(info.claimed_tokens, 0);
    CHECK_EQ(e2e_read(w, lease, other), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(e2e_held(w, other, KEPT + MORE), KEPT - 1); /* of the sibling's */
    CHECK_EQ(e2e_count(d, "flushed_held"), 0);
}

/* An adapter that is loaded anew under its old name is another: no page of the old one is served,
 * and flushing the old realm leaves the new one alone. */
static kvt_client *open_adapter(const e2e_daemon *d, e2e_worker *w, const char *version) {
    e2e_worker_open(w, d, 5, 20000);
    kvt_close(w->client);
    w->realm.adapter = "X";
    w->realm.adapter_version = version;
    oracle_init(&w->realm, &w->oracle);
    CHECK_EQ(kvt_open(&(kvt_options){.socket = d->socket}, &w->realm, &w->client), KVT_OK);
    return w->client;
}

static void adapters(e2e_daemon *d) {
    e2e_worker old, fresh;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_flush_info flushed;
    open_adapter(d, &old, "1");
    open_adapter(d, &fresh, "2");
    e2e_path(8, tokens);
    fill(&old, tokens, N);
    CHECK_EQ(e2e_held(&fresh, tokens, N), 0);
    fill(&fresh, tokens, N);
    CHECK_EQ(e2e_held(&fresh, tokens, N), N);
    CHECK_EQ(kvt_flush(old.client, KVT_FLUSH_REALM, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages, 11);
    CHECK_EQ(e2e_held(&old, tokens, N), 0);
    CHECK_EQ(e2e_held(&fresh, tokens, N), N);
    e2e_worker_close(&old);
    e2e_worker_close(&fresh);
}

/* Who has claimed pages and seals none is passed by; what he seals later is welcome if it is first,
 * and no harm if it is not. */
static void claims_expire(e2e_daemon *d) {
    e2e_worker slow, quick;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *first, *second;
    kvt_lease_info info;
    e2e_path(11, tokens);
    e2e_worker_open(&slow, d, 8, 20000);
    e2e_worker_open(&quick, d, 9, 20000);
    CHECK_EQ(kvt_acquire(slow.client, tokens, 4 * PAGE, KVT_CLAIM, &first), KVT_OK);
    CHECK_EQ(kvt_acquire(quick.client, tokens, 4 * PAGE, KVT_CLAIM, &second), KVT_OK);
    kvt_lease_get(second, &info);
    CHECK_EQ(info.computing_tokens, 4 * PAGE);
    CHECK_EQ(kvt_wait(second, 0, 19000), KVT_OK); /* until claim_ms is over, and no longer */
    kvt_lease_get(second, &info);
    CHECK_EQ(info.held_tokens, 0);
    CHECK_EQ(info.computing_tokens, 0);
    CHECK_EQ(info.claimed_tokens, 4 * PAGE);
    CHECK(e2e_count(d, "claims_expired") >= 1);
    CHECK_EQ(e2e_fill(&slow, first, tokens, 2), KVT_OK);
    CHECK_EQ(e2e_fill(&quick, second, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_fill(&slow, first, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(&slow, first, tokens), KVT_OK);
    CHECK_EQ(e2e_read(&quick, second, tokens), KVT_OK);
    CHECK_EQ(kvt_release(first), KVT_OK); /* the lease itself has not expired */
    CHECK_EQ(kvt_release(second), KVT_OK);
    e2e_worker_close(&slow);
    e2e_worker_close(&quick);
}

static uint32_t claimed(e2e_worker *w, const uint32_t *tokens, size_t n_pages, kvt_lease **ret) {
    kvt_lease_info info;
    CHECK_EQ(kvt_acquire(w->client, tokens, n_pages * PAGE, KVT_CLAIM, ret), KVT_OK);
    kvt_lease_get(*ret, &info);
    CHECK_EQ(info.held_tokens, 0);
    return info.claimed_tokens / PAGE;
}

/* Who claims every place that there is and seals nothing is in nobody's way any more once his time
 * is over: his pages go from the end of the path on, and he is told so when he seals them. */
static void claims_make_room(void) {
    enum { ALL = 20, OTHER = 8 };
    e2e_daemon d = {0};
    e2e_worker hog, other;
    uint32_t tokens[E2E_MAX_TOKENS], others[E2E_MAX_TOKENS];
    kvt_lease *all, *same, *lease;
    size_t sealed;
    const char *settings[] = {"arena=1MiB", "max_pages=20", "max_claimed_pages=20", "claim_ms=300",
                              NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&hog, &d, 1, 20000);
    e2e_worker_open(&other, &d, 2, 20000);
    e2e_path(31, tokens);
    e2e_path(32, others);
    CHECK_EQ(claimed(&hog, tokens, ALL, &all), ALL);
    CHECK_EQ(claimed(&hog, tokens, ALL, &same), ALL); /* once more, behind itself */
    e2e_await(&d, "claims_expired", 1);
    while (claimed(&other, others, OTHER, &lease) < OTHER) /* the second's time ends a bit later */
        CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(e2e_count(&d, "claims_cut"), OTHER);
    CHECK_EQ(e2e_fill(&other, lease, others, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(&other, lease, others), KVT_OK);
    /* The first pages are still the hog's to seal, the others are not. */
    CHECK_EQ(e2e_fill(&hog, all, tokens, 4), KVT_OK);
    CHECK_EQ(e2e_fill(&hog, all, tokens, SIZE_MAX), KVT_EFULL);
    CHECK_MSG(strstr(kvt_last_error(), "claim_ms") && strstr(kvt_last_error(), "max_pages (20)"),
              "%s", kvt_last_error());
    CHECK_EQ(kvt_seal(all, &sealed), KVT_OK);
    CHECK_EQ(sealed, (ALL - OTHER) * PAGE);
    CHECK_EQ(e2e_read(&hog, all, tokens), KVT_OK);
    CHECK_EQ(kvt_release(all), KVT_OK);
    CHECK_EQ(kvt_release(same), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(e2e_count(&d, "pages_filling"), 0);
    e2e_worker_close(&hog);
    e2e_worker_close(&other);
    e2e_finish(&d);
}

/* One worker alone leaves half of the places to others, unless it is told that it may have more. */
static void claims_leave_room(void) {
    e2e_daemon d = {0};
    e2e_worker hog, other;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *half, *lease;
    const char *settings[] = {"arena=1MiB", "max_pages=20", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&hog, &d, 1, 20000);
    e2e_worker_open(&other, &d, 2, 20000);
    e2e_path(33, tokens);
    CHECK_EQ(claimed(&hog, tokens, 20, &half), 10);
    e2e_path(34, tokens);
    CHECK_EQ(claimed(&other, tokens, 20, &lease), 10);
    CHECK_EQ(kvt_release(half), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&hog);
    e2e_worker_close(&other);
    e2e_finish(&d);
}

/* What was flushed is not on disk any more when the call returns: a daemon that is killed right
 * then does not find it at its next start; what was not flushed it does. */
static void flush_reaches_the_disk(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    uint32_t gone[E2E_MAX_TOKENS], kept[E2E_MAX_TOKENS];
    e2e_disk disk;
    kvt_flush_info flushed;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=1MiB", "max_pages=400", "host=4MiB",
                              "disk=64MiB", disk.setting,    NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    e2e_path(21, gone);
    e2e_path(22, kept);
    for (int round = 0; round < 4; round++) {
        gone[0] = 100 + (uint32_t)round;
        kept[0] = 200 + (uint32_t)round;
        fill(&w, gone, N);
        fill(&w, kept, N);
        e2e_await(&d, "pages_disk", 22 + 11 * (uint64_t)round);
        CHECK_EQ(kvt_flush(w.client, KVT_FLUSH_PREFIX, 0, gone, 1, &flushed), KVT_OK);
        CHECK_EQ(flushed.pages, 11);
        CHECK(WIFSIGNALED(e2e_stop(&d, SIGKILL)));
        e2e_start(&d, settings);
        while (e2e_held(&w, kept, N) < N) /* found by and by */
            ;
        CHECK_EQ(e2e_held(&w, gone, N), 0);
        e2e_await(&d, "pages_disk", 11 + 11 * (uint64_t)round);
    }
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

int main(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    const char *settings[] = {"arena=1MiB", "max_pages=400", "claim_ms=300", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    pins(&d, &w);
    pins_outlive(&d);
    flush_while_read(&d, &w);
    extend_within_flushed(&d, &w);
    adapters(&d);
    claims_expire(&d);
    e2e_worker_close(&w);
    e2e_finish(&d);
    claims_make_room();
    claims_leave_room();
    flush_reaches_the_disk();
    return 0;
}
