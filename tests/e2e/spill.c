/*
 * spill.c - the daemon is killed while it writes pages to disk, again and again. After each start
 * all that is served is right, and what had been written is there.
 *
 * Argument: how many times (12).
 */
#include "tests/e2e/e2e.h"

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
    e2e_worker_open(&w, d, round, 3000);
    for (uint32_t i = SETTLED; i < UNDER_WAY; i++) {
        kvt_lease *lease;
        prompt(round, i, tokens);
        e2e_say('g');
        if (kvt_acquire(w.client, tokens, PROMPT_TOKENS, KVT_CLAIM, &lease) != KVT_OK)
            break;
        kvt_status status = e2e_fill(&w, lease, tokens, SIZE_MAX);
        kvt_release(lease);
        if (status != KVT_OK)
            break;
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

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 12;
    e2e_daemon d = {0};
    char folder[] = "/tmp/kvtrunk-e2e-disk-XXXXXX", disk_dir[96], command[128];
    CHECK(mkdtemp(folder));
    snprintf(disk_dir, sizeof disk_dir, "disk_dir=%s", folder);
    const char *settings[] = {"arena=8MiB",  "host=8MiB",       disk_dir,
                              "disk=256MiB", "max_pages=20000", NULL};
    e2e_start(&d, settings);
    for (uint64_t round = 1; round <= rounds; round++) {
        e2e_worker w;
        e2e_worker_open(&w, &d, round, 20000);
        for (uint32_t i = 0; i < SETTLED; i++)
            fill(&w, round, i);
        e2e_worker_close(&w);
        e2e_await(&d, "pages_dirty", 0); /* and so written, or being written */
        e2e_await(&d, "jobs", 0);
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
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(system(command) == 0);
    return 0;
}
