/*
 * counts.c - counters that are to say what happened: what was sealed and is not there any more was
 * counted when it went, by pages and by their bytes, and what only left the arena was not.
 */
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <unistd.h>

enum { PATHS = 24, N_PAGES = 16, N = N_PAGES * E2E_PAGE_TOKENS };

static void fill_paths(e2e_worker *w, uint32_t first, uint32_t n) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    for (uint32_t i = first; i < first + n; i++) {
        e2e_path(i, tokens);
        CHECK_EQ(kvt_acquire(w->client, tokens, N, KVT_CLAIM, &lease), KVT_OK);
        CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
}

/* Never so many at once that one would have to go before it has been written. */
static void fill_and_write(const e2e_daemon *d, e2e_worker *w, uint32_t first) {
    for (uint32_t i = 0; i < PATHS; i += 4) {
        fill_paths(w, first + i, 4);
        e2e_await_disk(d);
    }
}

static uint64_t pages_there(const e2e_daemon *d) {
    CHECK_EQ(e2e_count(d, "pages_filling"), 0);
    return e2e_count(d, "pages_max") - e2e_count(d, "pages_free");
}

/* All pages of these tests are equally large. */
static void check_evicted(const e2e_daemon *d, uint64_t page_bytes) {
    uint64_t n = e2e_count(d, "pages_evicted");
    CHECK_EQ(n, e2e_count(d, "pages_sealed") - pages_there(d));
    CHECK_EQ(e2e_count(d, "bytes_evicted"), n * page_bytes);
}

static void check_vacated(const e2e_daemon *d, uint64_t page_bytes) {
    uint64_t n = e2e_count(d, "pages_vacated");
    CHECK_EQ(e2e_count(d, "bytes_vacated"), n * page_bytes);
}

static uint64_t page_bytes_of(const e2e_daemon *d) {
    return e2e_count(d, "arena_used_bytes") / e2e_count(d, "frames_used");
}

/* --- room ---------------------------------------------------------------------------------------
 */

static void arena_alone(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    const char *settings[] = {"arena=1MiB", "max_pages=2000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    fill_paths(&w, 0, PATHS);
    CHECK(e2e_count(&d, "pages_evicted") > 0);
    check_evicted(&d, page_bytes_of(&d));
    CHECK_EQ(e2e_count(&d, "pages_vacated"), 0);
    CHECK_EQ(e2e_count(&d, "bytes_vacated"), 0);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

/* The host tier is the lowest: what does not fit there is forgotten, wherever else it is. */
static void with_host(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    const char *settings[] = {"arena=1MiB", "host=1MiB", "max_pages=2000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    fill_paths(&w, 0, PATHS);
    e2e_await(&d, "jobs", 0);
    CHECK(e2e_count(&d, "pages_evicted") > 0);
    CHECK(e2e_count(&d, "pages_vacated") > 0);
    check_evicted(&d, page_bytes_of(&d));
    check_vacated(&d, page_bytes_of(&d));
    e2e_worker_close(&w);
    e2e_finish(&d);
}

/* --- a file that goes ---------------------------------------------------------------------------
 */

/* The disk's process is the daemon's only child. */
static pid_t helper_of(const e2e_daemon *d) {
    char name[64], line[64] = "";
    snprintf(name, sizeof name, "/proc/%d/task/%d/children", d->pid, d->pid);
    FILE *file = fopen(name, "re");
    CHECK(file && fgets(line, sizeof line, file));
    fclose(file);
    return atoi(line);
}

/* What was on disk alone is lost, with all that stood behind it, page by page. What becomes of the
 * file is what is counted of it. */
static void lose_file(const e2e_daemon *d, const e2e_disk *disk, const char *stamp,
                      uint64_t n_files, uint64_t n_aside) {
    char path[128];
    uint64_t there = pages_there(d), lost = e2e_count(d, "pages_lost");
    snprintf(path, sizeof path, "%s/%s", disk->folder, stamp ? "stamp" : "data.mdb");
    if (!stamp)
        CHECK_EQ(unlink(path), 0);
    FILE *file = stamp ? fopen(path, "we") : NULL;
    CHECK(!stamp || (file && fputs(stamp, file) >= 0 && fclose(file) == 0));
    CHECK_EQ(kill(helper_of(d), SIGKILL), 0);
    e2e_await(d, "files_lost", n_files);
    CHECK_EQ(e2e_count(d, "moved_aside"), n_aside);
    lost = e2e_count(d, "pages_lost") - lost;
    CHECK_MSG(lost > PATHS, "%llu pages were lost", (unsigned long long)lost);
    CHECK_EQ(lost, there - pages_there(d));
    CHECK_EQ(e2e_count(d, "pages_evicted"), 0);
    e2e_await_disk(d);
}

static void with_disk(void) {
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_disk disk;
    e2e_disk_make(&disk);
    const char *settings[] = {"arena=1MiB", "host=1MiB",      disk.setting,
                              "disk=64MiB", "max_pages=2000", NULL};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, 1, 20000);
    fill_and_write(&d, &w, 0);
    uint64_t page_bytes = page_bytes_of(&d);
    CHECK_EQ(e2e_count(&d, "pages_disk"), PATHS * N_PAGES);
    CHECK(e2e_count(&d, "pages_vacated") >= PATHS * N_PAGES - e2e_count(&d, "pages_device"));
    check_vacated(&d, page_bytes);
    check_evicted(&d, page_bytes); /* none: all of it is on disk */
    lose_file(&d, &disk, NULL, 1, 0);
    fill_and_write(&d, &w, PATHS);
    lose_file(&d, &disk, "of another program\n", 2, 1);
    CHECK_EQ(w.wrong_bytes, 0);
    e2e_worker_close(&w);
    e2e_finish(&d);
    e2e_disk_remove(&disk);
}

int main(void) {
    arena_alone();
    with_host();
    with_disk();
    return 0;
}
