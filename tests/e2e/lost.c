/*
 * lost.c - the disk's file goes while pages stand in the arena and in the host tier, many of them
 * behind pages that were on disk alone, or are in the arena alone. What is left goes down again,
 * though the host tier is full of pages that cannot be written before those in front of them.
 *
 * Or its device fails, while the process that has the file lives: it is asked again every few
 * seconds, not all the time, and what is on disk is read though memory is full of what is not.
 *
 * Or it hangs: what it alone has is computed again meanwhile.
 *
 * Argument: how many times (40).
 */
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATHS = 8, MORE_PATHS = 4, PATH_TOKENS = 480, SHARED_TOKENS = 64 };

static void path(uint32_t p, uint32_t *tokens) {
    for (uint32_t i = 0; i < PATH_TOKENS; i++)
        tokens[i] = i < SHARED_TOKENS ? i : p * 1000 + i;
}

static void ask(e2e_worker *w, uint32_t p, size_t n_tokens) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    path(p, tokens);
    CHECK_EQ(kvt_acquire(w->client, tokens, n_tokens, KVT_CLAIM, &lease), KVT_OK);
    kvt_status status = e2e_read(w, lease, tokens);
    if (status == KVT_OK)
        status = e2e_fill(w, lease, tokens, SIZE_MAX);
    CHECK_MSG(status == KVT_OK || status == KVT_EFULL, "%s: %s", kvt_status_name(status),
              kvt_last_error());
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* The disk's process is the daemon's only child. */
static pid_t helper_of(const e2e_daemon *d) {
    char name[64], line[64] = "";
    snprintf(name, sizeof name, "/proc/%d/task/%d/children", d->pid, d->pid);
    FILE *file = fopen(name, "re");
    CHECK(file && fgets(line, sizeof line, file));
    fclose(file);
    return atoi(line);
}

static void lose(const e2e_daemon *d, const e2e_disk *disk, uint64_t n_before) {
    char name[128];
    snprintf(name, sizeof name, "%s/data.mdb", disk->folder);
    CHECK_EQ(unlink(name), 0);
    CHECK_EQ(kill(helper_of(d), SIGKILL), 0);
    e2e_await(d, "files_lost", n_before + 1);
}

static void all_down(e2e_worker *w) {
    kvt_spill_info spill;
    CHECK_EQ(kvt_spill(w->client, 10000, &spill), KVT_OK);
    CHECK_MSG(spill.dirty_pages == 0 && spill.disk_pages > 0, "%llu are not on disk, %llu are",
              (unsigned long long)spill.dirty_pages, (unsigned long long)spill.disk_pages);
}

/* --- a disk that fails --------------------------------------------------------------------------
 */

/* The file's next page would be written in part, which LMDB calls an I/O error. */
static void let_writes_fail(const e2e_daemon *d, const e2e_disk *disk, int fail) {
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    struct stat st;
    char name[128];
    snprintf(name, sizeof name, "%s/data.mdb", disk->folder);
    CHECK_EQ(stat(name, &st), 0);
    if (fail)
        limit.rlim_cur = (rlim_t)st.st_size + 1;
    CHECK_EQ(prlimit(helper_of(d), RLIMIT_FSIZE, &limit, NULL), 0);
}

static void all_held(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    for (uint32_t p = 0; p < PATHS; p++) {
        path(p, tokens);
        uint32_t held = e2e_held(w, tokens, PATH_TOKENS);
        CHECK_MSG(held == PATH_TOKENS, "%u tokens of path %u are held, which is on disk", held, p);
    }
}

static void failing(void) {
    enum { TIMES = 3, NEW_PATHS = 12, RETRY_S = 5, AT_ONCE = 32 };
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=2MiB", "host=512KiB",    disk.setting,
                              "disk=64MiB", "max_pages=2000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 30000);
    for (uint32_t p = 0; p < PATHS; p++)
        ask(&w, p, PATH_TOKENS);
    all_down(&w);
    let_writes_fail(&d, &disk, 1);
    time_t start = time(NULL);
    uint32_t p = PATHS;
    for (uint32_t i = 0; i < TIMES; i++) {
        for (uint32_t end = p + NEW_PATHS; p < end; p++)
            ask(&w, p, PATH_TOKENS);
        while (e2e_count(&d, "tier_errors") == 0) /* known only when a write has come back */
            continue;
        all_held(&w);
    }
    uint64_t failed = e2e_count(&d, "tier_errors");
    uint64_t most = (2 + (uint64_t)(time(NULL) - start) / RETRY_S) * AT_ONCE;
    CHECK_MSG(failed > 0 && failed <= most, "%llu pages could not be written, of at most %llu",
              (unsigned long long)failed, (unsigned long long)most);
    CHECK_EQ(e2e_count(&d, "restarts"), 0);
    let_writes_fail(&d, &disk, 0);
    ask(&w, p, PATH_TOKENS);
    e2e_await_disk(&d);
    all_held(&w);
    CHECK_EQ(w.wrong_bytes, 0);
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

/* --- a disk that hangs --------------------------------------------------------------------------
 */

/* How many lines of the log have these words. */
static uint32_t lines_with(const char *log, const char *words) {
    char line[1024];
    uint32_t n = 0;
    FILE *file = fopen(log, "re");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        n += strstr(line, words) != NULL;
    fclose(file);
    return n;
}

/* Once each. */
static void said(const char *log, int answers) {
    CHECK_EQ(lines_with(log, "has not answered for 5 s"), 1);
    CHECK_EQ(lines_with(log, "has not answered"), 1);
    CHECK_EQ(lines_with(log, "answers again, after"), answers);
}

static void hanging(void) {
    enum { ALL = PATHS + MORE_PATHS };
    char log[64], log_setting[80];
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_disk disk;
    uint32_t tokens[E2E_MAX_TOKENS];
    e2e_disk_make(&disk);
    snprintf(log, sizeof log, "%s.log", disk.folder);
    snprintf(log_setting, sizeof log_setting, "log=%s", log);
    const char *settings[] = {"arena=2MiB",  disk.setting,         "disk=64MiB", "max_pages=2000",
                              "host=256KiB", "promote_wait_ms=20", log_setting,  NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 30000);
    for (uint32_t p = 0; p < ALL; p++)
        ask(&w, p, PATH_TOKENS);
    all_down(&w);
    CHECK(e2e_count(&d, "pages_disk") > e2e_count(&d, "pages_device"));
    pid_t helper = helper_of(&d);
    CHECK_EQ(kill(helper, SIGSTOP), 0);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t p = 0; p < ALL; p++) {
            path(p, tokens);
            while (e2e_held(&w, tokens, PATH_TOKENS) < PATH_TOKENS)
                ask(&w, p, PATH_TOKENS);
        }
    CHECK_EQ(e2e_count(&d, "restarts"), 0); /* it was not a new process that helped */
    said(log, 0);
    CHECK_EQ(kill(helper, SIGCONT), 0);
    all_down(&w);
    said(log, 1);
    for (uint32_t p = 0; p < ALL; p++)
        ask(&w, p, PATH_TOKENS);
    CHECK_EQ(w.wrong_bytes, 0);
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
    CHECK_EQ(unlink(log), 0);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 40;
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_disk disk;
    failing();
    hanging();
    e2e_disk_make(&disk);
    /* Room for some 226 pages, and 56; there are 212, 238, 264, 290. */
    const char *settings[] = {"arena=2MiB", "host=512KiB",    disk.setting,
                              "disk=64MiB", "max_pages=2000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 30000);
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint32_t p = 0; p < PATHS + round % MORE_PATHS; p++)
            ask(&w, p, PATH_TOKENS);
        all_down(&w);
        lose(&d, &disk, round);
        all_down(&w);
    }
    CHECK_EQ(w.wrong_bytes, 0);
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
    return 0;
}
