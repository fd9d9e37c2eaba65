/*
 * source.c - a lease says of each page where it was: in the arena, in the host's memory, on disk.
 */
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <string.h>

enum { PAGES = 10, TOKENS = PAGES * E2E_PAGE_TOKENS, OTHERS = 30 };

static void prompt(uint32_t number, uint32_t *tokens) {
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = number * 1000 + i;
}

static kvt_lease *ask(e2e_worker *w, uint32_t number, uint32_t n_tokens) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    prompt(number, tokens);
    kvt_status status = kvt_acquire(w->client, tokens, n_tokens, KVT_CLAIM, &lease);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), kvt_last_error());
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    return lease;
}

static void fill(e2e_worker *w, uint32_t number) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease = ask(w, number, TOKENS);
    prompt(number, tokens);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* All that the lease has: a letter a page. */
static void expect(const kvt_lease *lease, const char *want) {
    uint8_t tiers[PAGES];
    char got[PAGES + 1] = "";
    kvt_lease_info info;
    CHECK_EQ(kvt_lease_get(lease, &info), KVT_OK);
    CHECK(info.n_pages <= PAGES);
    CHECK_EQ(kvt_lease_tiers(lease, 0, 0, info.n_pages, tiers), KVT_OK);
    uint32_t n[3] = {0};
    for (uint32_t i = 0; i < info.n_pages; i++) {
        CHECK(tiers[i] <= KVT_TIER_DISK);
        got[i] = "ahd"[tiers[i]];
        n[tiers[i]]++;
    }
    CHECK_MSG(strcmp(got, want) == 0, "pages came from %s, expected %s", got, want);
    CHECK(info.host_pages == n[KVT_TIER_HOST] && info.disk_pages == n[KVT_TIER_DISK]);
}

static void expect_prompt(e2e_worker *w, uint32_t number, uint32_t n_tokens, const char *want) {
    kvt_lease *lease = ask(w, number, n_tokens);
    expect(lease, want);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* What the daemon says of the only lease that there is. */
static void expect_reported(e2e_worker *w, const char *want) {
    char *lines;
    CHECK_EQ(kvt_leases_json(w->client, 0, &lines), KVT_OK);
    CHECK_MSG(strstr(lines, want), "%s is not in %s", want, lines);
    kvt_free(lines);
}

static void refused(e2e_worker *w) {
    uint8_t tiers[PAGES];
    kvt_lease *lease = ask(w, 1, TOKENS);
    CHECK_EQ(kvt_lease_tiers(NULL, 0, 0, 1, tiers), KVT_EINVAL);
    CHECK_EQ(kvt_lease_tiers(lease, 1, 0, 1, tiers), KVT_EINVAL);
    CHECK_EQ(kvt_lease_tiers(lease, 0, 0, PAGES + 1, tiers), KVT_EINVAL);
    CHECK_EQ(kvt_lease_tiers(lease, 0, PAGES + 1, 0, tiers), KVT_EINVAL);
    CHECK_EQ(kvt_lease_tiers(lease, 0, 0, 1, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_lease_tiers(lease, 0, PAGES, 0, tiers), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* A path that is part here, part there; and leases that come of a lease. */
static void mixed(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease, *other;
    expect_prompt(w, 3, 4 * E2E_PAGE_TOKENS, "dddd");
    lease = ask(w, 3, TOKENS);
    expect(lease, "aaaadddddd");
    expect_reported(w, "\"from_host\":0,\"from_disk\":96");
    CHECK_EQ(kvt_fork(lease, TOKENS, &other), KVT_OK);
    expect(other, "aaaaaaaaaa");
    CHECK_EQ(kvt_release(other), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    /* What an extend keeps stays as it was; what it asks for is looked at anew. */
    lease = ask(w, 4, 5 * E2E_PAGE_TOKENS);
    expect(lease, "ddddd");
    prompt(4, tokens);
    CHECK_EQ(kvt_extend(lease, 5 * E2E_PAGE_TOKENS, tokens + 5 * E2E_PAGE_TOKENS,
                        3 * E2E_PAGE_TOKENS, KVT_CLAIM),
             KVT_OK);
    expect(lease, "dddddddd");
    CHECK_EQ(kvt_extend(lease, 2 * E2E_PAGE_TOKENS, tokens + 2 * E2E_PAGE_TOKENS,
                        8 * E2E_PAGE_TOKENS, KVT_CLAIM),
             KVT_OK);
    expect(lease, "ddaaaaaadd");
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

int main(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_disk disk;
    e2e_disk_make(&disk);
    /* Room for some 110 pages, 450 and 4,000. */
    const char *settings[] = {"arena=1MiB",
                              "host=4MiB",
                              disk.setting,
                              "disk=64MiB",
                              "policy=lru",
                              "max_pages=8000",
                              "promote_wait_ms=30000",
                              NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 60000);
    fill(&w, 1);
    expect_prompt(&w, 1, TOKENS, "aaaaaaaaaa");
    refused(&w);
    CHECK_EQ(kvt_spill(w.client, 30000, NULL), KVT_OK);
    expect_prompt(&w, 1, TOKENS, "aaaaaaaaaa");
    for (uint32_t i = 0; i < OTHERS; i++) {
        fill(&w, 2 + i);
        CHECK_EQ(kvt_spill(w.client, 30000, NULL), KVT_OK);
    }
    expect_prompt(&w, 1, TOKENS, "hhhhhhhhhh");
    expect_prompt(&w, 1, TOKENS, "aaaaaaaaaa");
    e2e_worker_close(&w);
    CHECK_EQ(e2e_stop(&d, SIGTERM), 0);
    e2e_start(&d, settings);
    e2e_await(&d, "pages_found", (1 + OTHERS) * PAGES);
    e2e_worker_open(&w, &d, 1, 60000);
    expect_prompt(&w, 1, TOKENS, "dddddddddd");
    expect_prompt(&w, 1, TOKENS, "aaaaaaaaaa");
    mixed(&w);
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
    return 0;
}
