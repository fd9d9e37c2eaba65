/*
 * room.c - what is said to be used is what is there, however often pages come and go; what can
 * never fit is refused in words; a tier of no size is none.
 *
 * Argument: how many rounds of coming and going (1,000).
 */
#include "tests/e2e/e2e.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

enum { PAGE = E2E_PAGE_TOKENS, N = 3 * PAGE + 5, N_PAGES = 4 };

static void fill(e2e_worker *w, const uint32_t *tokens, size_t n) {
    kvt_lease *lease;
    CHECK_EQ(kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* --- coming and going ---------------------------------------------------------------------------
 */

static const char *const used[] = {"arena_used_bytes", "frames_used",   "pages_host",
                                   "host_used_bytes",  "pages_disk",    "disk_used_bytes",
                                   "pages_dirty",      "pages_filling", "pages_evictable"};

static void nothing_used(const e2e_daemon *d) {
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        CHECK_MSG(e2e_count(d, used[i]) == 0, "%s is %llu, and nothing is there", used[i],
                  (unsigned long long)e2e_count(d, used[i]));
    CHECK_EQ(e2e_count(d, "pages_free"), e2e_count(d, "pages_max"));
}

static void come_and_go(uint32_t rounds) {
    e2e_daemon d = {0};
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_flush_info flushed;
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=1MiB", "host=1MiB",     disk.setting,
                              "disk=16MiB", "max_pages=400", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    for (uint32_t round = 0; round < rounds; round++) {
        e2e_path(round, tokens);
        fill(&w, tokens, N);
        if (round % 8 == 0) /* else it goes from wherever it has got to */
            e2e_await(&d, "pages_disk", N_PAGES);
        CHECK_EQ(kvt_flush(w.client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
        CHECK_EQ(flushed.pages, N_PAGES);
        if (round % 100 == 0)
            nothing_used(&d);
    }
    e2e_await(&d, "jobs", 0);
    nothing_used(&d);
    CHECK_EQ(e2e_count(&d, "pages_sealed"), (uint64_t)rounds * N_PAGES);
    CHECK_EQ(e2e_count(&d, "pages_flushed"), (uint64_t)rounds * N_PAGES);
    CHECK_EQ(e2e_count(&d, "pages_evicted"), 0);
    CHECK_EQ(e2e_count(&d, "tier_errors"), 0);
    e2e_path(0, tokens);
    fill(&w, tokens, N);
    CHECK_EQ(e2e_held(&w, tokens, N), N);
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

/* --- no room for all of a seal ------------------------------------------------------------------
 */

/* Whether the first page of a call finds no room or a later one: the worker is told how full it is.
 * (What is sealed is leased, so that nothing can go.) */
static void full_in_figures(void) {
    enum { LONG = 32 * PAGE, MANY = 64 };
    e2e_daemon d = {0};
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS], n_in_part = 0;
    kvt_lease *leases[MANY];
    kvt_lease_info info;
    const char *settings[] = {"arena=1MiB", "max_pages=4000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    for (uint32_t i = 0; i < MANY; i++) {
        e2e_path(i, tokens);
        CHECK_EQ(kvt_acquire(w.client, tokens, LONG - i % 7 * PAGE, KVT_CLAIM, &leases[i]), KVT_OK);
        kvt_status status = e2e_fill(&w, leases[i], tokens, SIZE_MAX);
        kvt_lease_get(leases[i], &info);
        CHECK_EQ(status == KVT_OK, info.held_tokens == info.n_tokens);
        if (status == KVT_OK)
            continue;
        n_in_part += info.held_tokens > 0;
        CHECK_EQ(status, KVT_EFULL);
        CHECK_MSG(strstr(kvt_last_error(), "of 1048576 bytes of its arena in use, in "), "%s",
                  kvt_last_error());
    }
    CHECK(n_in_part > 0);
    for (uint32_t i = 0; i < MANY; i++)
        CHECK_EQ(kvt_release(leases[i]), KVT_OK);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

/* --- a page too large ---------------------------------------------------------------------------
 */

/* 1 MiB a page, in halves. */
static kvt_realm large(uint32_t page_tokens) {
    kvt_realm realm = {.model = "large pages"};
    kvt_geometry_init(&realm.geometry, 32, 4, 128, page_tokens);
    return realm;
}

/* Seals pages of 1 MiB of one path until there is no room; the lease is the caller's. */
static uint32_t fill_large(kvt_client *client, const kvt_realm *realm, kvt_lease **ret_lease) {
    enum { PAGES = 3 };
    static uint16_t part[2][32 * 4 * 128 * 16];
    uint32_t tokens[PAGES * 16] = {7}, n = 0;
    kvt_layout layout;
    kvt_layout_token_major(&realm->geometry, 16, part[0], part[1], &layout);
    CHECK_EQ(kvt_acquire(client, tokens, PAGES * 16, KVT_CLAIM, ret_lease), KVT_OK);
    kvt_status status = KVT_OK;
    while (n < PAGES && status == KVT_OK) {
        CHECK_EQ(kvt_encode(*ret_lease, n, &layout), KVT_OK);
        status = kvt_seal(*ret_lease, NULL);
        n += status == KVT_OK;
    }
    CHECK_EQ(status, KVT_EFULL);
    return n;
}

static void says(const char *const *words) {
    for (; *words; words++)
        CHECK_MSG(strstr(kvt_last_error(), *words), "no \"%s\": %s", *words, kvt_last_error());
}

/* A small arena: a path that alone fills it, and one page that others lease in the middle of what
 * is free. Each time it is said what keeps the page out, and what would help. */
static void in_pieces(void) {
    enum { MANY = 300 };
    e2e_daemon d = {0};
    e2e_worker w;
    kvt_client *client;
    kvt_realm realm = large(16);
    kvt_lease *lease, *leases[MANY];
    uint32_t tokens[E2E_MAX_TOKENS], n = 0;
    kvt_flush_info flushed;
    const char *settings[] = {"arena=2MiB", "max_pages=400", NULL};
    e2e_start(&d, settings);
    CHECK_EQ(kvt_open(&(kvt_options){.socket = d.socket, .staging_pages = 2}, &realm, &client),
             KVT_OK);
    CHECK_EQ(fill_large(client, &realm, &lease), 1);
    says((const char *const[]){"in use, in 1 pages", "a page of 1048768 finds no room",
                               "1 pages are leased or pinned, 1 of them by this lease",
                               "Cure: enlarge its arena, which this path alone fills", NULL});
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(kvt_flush(client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
    e2e_worker_open(&w, &d, 1, 20000);
    for (kvt_status status = KVT_OK; status == KVT_OK && n < MANY; n++) {
        e2e_path(n, tokens);
        CHECK_EQ(kvt_acquire(w.client, tokens, PAGE, KVT_CLAIM, &leases[n]), KVT_OK);
        status = e2e_fill(&w, leases[n], tokens, SIZE_MAX);
    }
    CHECK(n > 100 && n < MANY); /* 2 MiB of them, one after another */
    for (uint32_t i = 0; i < n; i++)
        if (i != n / 2)
            CHECK_EQ(kvt_release(leases[i]), KVT_OK);
    CHECK_EQ(fill_large(client, &realm, &lease), 0);
    says((const char *const[]){"in use, in 1 pages", "what is free lies in pieces of at most 10",
                               "1 pages are leased or pinned, 0 of them by this lease",
                               "release leases, unpin, or enlarge its arena", NULL});
    CHECK_EQ(kvt_release(leases[n / 2]), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(fill_large(client, &realm, &lease), 1);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    kvt_close(client);
    e2e_finish(&d);
}

/* --- pages that are small -----------------------------------------------------------------------
 */

/* Of pages smaller than 4 KiB the host tier takes as many as its bytes have room for. */
static void small_in_host(void) {
    enum { PAGES = 20, TOKENS = PAGES * 16, USUAL = 1024, MOST = 300 };
    static uint16_t part[2][4 * TOKENS];
    e2e_daemon d = {0};
    kvt_client *client;
    kvt_realm realm = {.model = "small pages"};
    kvt_layout layout;
    const char *settings[] = {"arena=1MiB", "host=1MiB", "max_pages=4000", NULL};
    kvt_geometry_init(&realm.geometry, 1, 1, 4, 16);
    kvt_layout_token_major(&realm.geometry, TOKENS, part[0], part[1], &layout);
    e2e_start(&d, settings);
    CHECK_EQ(kvt_open(&(kvt_options){.socket = d.socket}, &realm, &client), KVT_OK);
    for (uint32_t path = 0; e2e_count(&d, "pages_host") < USUAL + USUAL / 2; path++) {
        uint32_t tokens[TOKENS] = {path};
        kvt_lease *lease;
        CHECK_MSG(path < MOST, "%llu pages are in the host tier, which has room for more",
                  (unsigned long long)e2e_count(&d, "pages_host"));
        CHECK_EQ(kvt_acquire(client, tokens, TOKENS, KVT_CLAIM, &lease), KVT_OK);
        for (uint32_t page = 0; page < PAGES; page++)
            CHECK_EQ(kvt_encode(lease, page, &layout), KVT_OK);
        CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    kvt_close(client);
    e2e_finish(&d);
}

static void too_large(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_client *client = NULL;
    kvt_realm realm = large(64); /* 4 MiB */
    const char *settings[] = {"arena=2MiB", "max_pages=200", "page_tokens=64", NULL};
    e2e_start(&d, settings);
    kvt_status status = kvt_open(&(kvt_options){.socket = d.socket}, &realm, &client);
    CHECK_MSG(status == KVT_ELIMIT && !client, "%s", kvt_status_name(status));
    const char *why = kvt_last_error();
    CHECK_MSG(strstr(why, "the arena has 2097152") && strstr(why, "enlarge"), "%s", why);
    CHECK_EQ(e2e_count(&d, "realms"), 0);
    e2e_worker_open(&w, &d, 1, 20000); /* who has smaller ones is served */
    for (uint32_t i = 0; i < 30; i++) {
        e2e_path(i, tokens);
        fill(&w, tokens, 12 * PAGE);
    }
    CHECK_EQ(e2e_held(&w, tokens, 12 * PAGE), 12 * PAGE);
    /* No lower tier: what goes is gone, and no tier has any of it. */
    CHECK(e2e_count(&d, "pages_evicted") > 0);
    static const char *const none[] = {"host_bytes",    "host_used_bytes", "pages_host",
                                       "disk_bytes",    "disk_used_bytes", "pages_disk",
                                       "pages_demoted", "pages_written",   "pages_dirty"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK_MSG(e2e_count(&d, none[i]) == 0, "%s", none[i]);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

static int small_disk(e2e_disk *disk) {
    e2e_disk_make(disk);
    if (mount("none", disk->folder, "tmpfs", 0, "size=3m,mode=0700") == 0)
        return 1;
    printf("room: left out the full disk: mounting a small tmpfs: %s\n", strerror(errno));
    CHECK(rmdir(disk->folder) == 0);
    return 0;
}

/* Paths until the disk refuses one; returns how many. */
static uint32_t fill_disk(e2e_daemon *d, e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS], n = 0;
    for (; n < 900 && e2e_count(d, "full") == 0; n++) {
        e2e_path(n, tokens);
        fill(w, tokens, N);
    }
    CHECK_MSG(n < 900, "3 MiB are not full after %u paths", n);
    return n;
}

/* A file system that was full for a while: what could not be written then is written later, without
 * anything else happening. */
static void full_for_a_while(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_disk disk;
    if (!small_disk(&disk))
        return;
    const char *settings[] = {"arena=16MiB", disk.setting, "disk=64MiB", "max_pages=4000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    uint32_t n = fill_disk(&d, &w);
    CHECK(mount("none", disk.folder, "tmpfs", MS_REMOUNT, "size=64m") == 0);
    e2e_await_disk(&d);
    /* While it was full some may have gone to make room. */
    CHECK_EQ(e2e_count(&d, "pages_disk") + e2e_count(&d, "pages_evicted"), (uint64_t)n * N_PAGES);
    e2e_worker_close(&w);
    e2e_finish(&d);
    CHECK(umount2(disk.folder, MNT_DETACH) == 0 && rmdir(disk.folder) == 0);
}

/* Another program's file takes what the file system has left. */
static void take_the_rest(const e2e_disk *disk) {
    static const char zeros[4096];
    char path[160];
    snprintf(path, sizeof path, "%s/of-another", disk->folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    while (write(fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros)
        continue;
    CHECK_EQ(errno, ENOSPC);
    close(fd);
}

/* What a full disk does not take is not waited for: with what is under way ended, the daemon stops,
 * long before the end of drain_ms. */
static void stopped_while_full(void) {
    enum { HANG_S = 300 };
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_disk disk;
    if (!small_disk(&disk))
        return;
    const char *settings[] = {"arena=16MiB",    disk.setting,      "disk=64MiB",
                              "max_pages=4000", "drain_ms=600000", NULL};
    e2e_start(&d, settings);
    take_the_rest(&disk);
    e2e_worker_open(&w, &d, 1, 20000);
    fill_disk(&d, &w);
    e2e_worker_close(&w);
    unsigned before = alarm(HANG_S);
    e2e_finish(&d);
    alarm(before);
    CHECK(umount2(disk.folder, MNT_DETACH) == 0 && rmdir(disk.folder) == 0);
}

/* Many times the disk's budget goes through it: what is new takes the place of what is old, all of
 * it is written, and hardly a write is refused. */
static void many_budgets(void) {
    enum { PATHS = 6000, AT_ONCE = 100 };
    e2e_daemon d = {0};
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=1MiB", "host=1MiB",      disk.setting,
                              "disk=16MiB", "max_pages=4000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    for (uint32_t i = 0; i < PATHS; i++) {
        e2e_path(i, tokens);
        fill(&w, tokens, N);
        if (i % AT_ONCE == AT_ONCE - 1)
            e2e_await_disk(&d);
    }
    uint64_t stored = e2e_count(&d, "disk_used_bytes") / e2e_count(&d, "pages_disk");
    uint64_t written = e2e_count(&d, "pages_written"), refused = e2e_count(&d, "full");
    CHECK_MSG(written * stored > UINT64_C(10) * (16 << 20), "only %llu pages were written",
              (unsigned long long)written);
    CHECK_MSG(refused < written / 10, "%llu of %llu writes were refused",
              (unsigned long long)refused, (unsigned long long)written);
    CHECK_EQ(e2e_held(&w, tokens, N), N);
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

int main(int argc, char **argv) {
    too_large();
    small_in_host();
    full_in_figures();
    in_pieces();
    full_for_a_while();
    stopped_while_full();
    if (!e2e_on_gpu()) /* which has no part in it */
        many_budgets();
    come_and_go(argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000);
    return 0;
}
