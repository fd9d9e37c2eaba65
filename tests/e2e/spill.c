/*
 * spill.c - the daemon is killed while it writes pages to disk, again and again. After each start
 * all that is served is right, and what had been written is there. What the disk does not give back
 * right is a miss, and counted.
 *
 * Argument: how many times (12).
 */
#include "tests/e2e/e2e.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROMPT_TOKENS = 160, SETTLED = 6, UNDER_WAY = 64, HANG_S = 60 };

static void prompt(uint64_t round, uint32_t number, uint32_t *tokens) {
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++)
        tokens[i] = (uint32_t)(round * 100000 + (i < 32 ? 0 : number * 1000) + i);
}

static void fill(e2e_worker *w, uint64_t round, uint32_t number) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    prompt(round, number, tokens);
    CHECK_EQ(kvt_acquire(w->client, tokens, PROMPT_TOKENS, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* Fills until the daemon dies under it. */
static int filler(const e2e_daemon *d, uint64_t round) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    e2e_worker_open(&w, d, round, 20000);
    for (uint32_t i = SETTLED; i < UNDER_WAY; i++) {
        kvt_lease *lease;
        time_t start = time(NULL);
        prompt(round, i, tokens);
        e2e_say('g');
        kvt_status status = kvt_acquire(w.client, tokens, PROMPT_TOKENS, KVT_CLAIM, &lease);
        if (status == KVT_OK) {
            status = e2e_fill(&w, lease, tokens, SIZE_MAX);
            kvt_release(lease);
        }
        if (status != KVT_OK) {
            fprintf(stderr, "prompt %u of round %llu ends after %lld s with %s: %s\n", i,
                    (unsigned long long)round, (long long)(time(NULL) - start),
                    kvt_status_name(status), kvt_last_error());
            break;
        }
    }
    e2e_worker_close(&w);
    return 0;
}

static const e2e_jobs jobs[] = {{"filler", filler}, {NULL, NULL}};

static uint32_t held(e2e_worker *w, uint64_t round, uint32_t number) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    kvt_lease_info info;
    prompt(round, number, tokens);
    kvt_status status = kvt_acquire(w->client, tokens, PROMPT_TOKENS, 0, &lease);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), kvt_last_error());
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    return info.held_tokens;
}

/* What was written is found by and by; until then it is a miss. */
static void look(const e2e_daemon *d, uint64_t round) {
    e2e_worker w;
    e2e_worker_open(&w, d, round, 20000);
    time_t start = time(NULL);
    for (uint32_t i = 0; i < SETTLED; i++)
        while (held(&w, round, i) < PROMPT_TOKENS)
            CHECK_MSG(time(NULL) - start < HANG_S, "prompt %u of round %llu is lost", i,
                      (unsigned long long)round);
    for (uint32_t i = SETTLED; i < UNDER_WAY; i++)
        held(&w, round, i);
    e2e_worker_close(&w);
}

/* --- damage -------------------------------------------------------------------------------------
 */

/* Changes a byte in each value of the file that has pages of LMDB to itself: the index stays as it
 * is, and promises what cannot be had. */
static uint32_t damage_values(const char *folder) {
    enum { PAGE_BYTES = 4096, IS_VALUE = 4, AT = 3000 };
    char path[128];
    uint8_t page[PAGE_BYTES];
    uint32_t n = 0;
    snprintf(path, sizeof path, "%s/data.mdb", folder);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    for (uint64_t number = 0;; number++) {
        uint64_t own;
        uint16_t flags;
        off_t at = (off_t)(number * PAGE_BYTES);
        if (pread(fd, page, sizeof page, at) != PAGE_BYTES)
            break;
        memcpy(&own, page, sizeof own);
        memcpy(&flags, page + 10, sizeof flags);
        if (own != number || flags != IS_VALUE)
            continue;
        page[AT] ^= 0x20;
        CHECK(pwrite(fd, page, sizeof page, at) == PAGE_BYTES);
        n++;
    }
    close(fd);
    return n;
}

/* No hit, no hanging, and the place is free for whoever computes it again. */
static void damaged(e2e_daemon *d, const char *const *settings, const char *folder) {
    enum { ROUND = 900 };
    e2e_worker w;
    e2e_worker_open(&w, d, ROUND, 20000);
    fill(&w, ROUND, 1);
    CHECK_EQ(held(&w, ROUND, 1), PROMPT_TOKENS);
    e2e_await_disk(d);
    CHECK_EQ(e2e_stop(d, SIGTERM), 0);
    CHECK(damage_values(folder) >= PROMPT_TOKENS / E2E_PAGE_TOKENS);
    e2e_start(d, settings);
    e2e_await(d, "pages_found", PROMPT_TOKENS / E2E_PAGE_TOKENS);
    CHECK_EQ(held(&w, ROUND, 1), 0);
    CHECK_EQ(e2e_count(d, "misses"), 1);
    CHECK_EQ(e2e_count(d, "tokens_served"), 0);
    CHECK(e2e_count(d, "pages_lost") > 0);
    fill(&w, ROUND, 1);
    CHECK_EQ(held(&w, ROUND, 1), PROMPT_TOKENS);
    time_t start = time(NULL);
    while (e2e_count(d, "corrupt") == 0) /* the disk's process says so now and then */
        CHECK_MSG(time(NULL) - start < HANG_S, "nothing was counted");
    e2e_worker_close(&w);
}

static void at_damage(void) {
    e2e_daemon d = {0};
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=1MiB", "host=1MiB",     disk.setting,
                              "disk=64MiB", "max_pages=800", NULL};
    e2e_start(&d, settings);
    damaged(&d, settings, disk.folder);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 12;
    e2e_daemon d = {0};
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=8MiB", "host=8MiB",       disk.setting,
                              "disk=1GiB",  "max_pages=40000", NULL};
    e2e_start(&d, settings);
    for (uint64_t round = 1; round <= rounds; round++) {
        e2e_worker w;
        e2e_worker_open(&w, &d, round, 20000);
        for (uint32_t i = 0; i < SETTLED; i++)
            fill(&w, round, i);
        e2e_worker_close(&w);
        e2e_await_disk(&d);
        e2e_child other = e2e_spawn(&d, "filler", round);
        for (uint64_t i = 0; i < 1 + round % 23; i++)
            CHECK_EQ(e2e_child_hear(&other), 'g');
        CHECK(WIFSIGNALED(e2e_stop(&d, SIGKILL)));
        while (e2e_child_hear(&other) == 'g')
            continue;
        CHECK_EQ(e2e_child_end(&other), 0);
        e2e_start(&d, settings);
        look(&d, round);
        if (round > 1)
            look(&d, 1 + round % (round - 1));
    }
    CHECK_EQ(e2e_count(&d, "pages_lost"), 0);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
    at_damage();
    return 0;
}
