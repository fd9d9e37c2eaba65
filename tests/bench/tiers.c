/*
 * tiers.c - the disk tier through its real helper: spilling against plain pwrite of the same bytes
 * to a fresh file of the same file system with the same sync policy (none), reading back against
 * memcpy, an old file against a young one, and a restart with 100,000 pages.
 *
 * Files are made in $KVT_BENCH_DIR, or in /tmp.
 */
#include "daemon/disk.h"
#include "store/tier.h"
#include "tests/bench/bench.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 16, WINDOW = 4, MAX_PAGES = 1 << 17 };

typedef struct tiers {
    disk *d;
    char dir[256], file[272];
    uint64_t budget_bytes, total_bytes;
    uint32_t page_bytes, n_pages;
    int host_fd;
    uint8_t *host, *copy; /* total_bytes each; copy is private memory */
    uint64_t *serials;
    uint32_t n_done, n_good, n_found;
    int scan_done;
} tiers;

typedef struct job {
    disk_request request;
    disk_item items[BATCH];
    uint32_t tokens[BATCH];
    int busy;
} job;

static tiers t;
static job jobs[WINDOW];
static const char realm_name[] = "bench";

static void done(void *context, disk_request *r) {
    (void)context;
    for (uint32_t i = 0; i < r->n_items; i++)
        t.n_good += r->items[i].status == KVT_OK;
    t.n_done += r->n_items;
    ((job *)r->context)->busy = 0;
}

static uint32_t found_realm(void *context, const void *bytes, size_t n) {
    (void)context;
    (void)bytes;
    (void)n;
    return 1;
}

static void found(void *context, const disk_found *record) {
    (void)context;
    (void)record;
    t.n_found++;
}

static void scan_done(void *context) {
    (void)context;
    t.scan_done = 1;
}

static void remove_dir(void) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf -- '%s'", t.dir);
    KVT_ASSERT(system(command) == 0);
}

static void open_disk(void) {
    char why[512];
    disk_options options = {.dir = t.dir,
                            .budget_bytes = t.budget_bytes,
                            .host_fd = t.host_fd,
                            .host_bytes = t.total_bytes,
                            .max_requests = WINDOW,
                            .done = done,
                            .found_realm = found_realm,
                            .found = found,
                            .scan_done = scan_done};
    t.n_found = 0;
    t.scan_done = 0;
    if (disk_open(&options, why, sizeof why, &t.d) != KVT_OK) {
        fprintf(stderr, "bench: %s\n", why);
        exit(1);
    }
    KVT_ASSERT(disk_realm(t.d, 1, realm_name, sizeof realm_name) == KVT_OK);
}

static void wait_step(void) {
    struct pollfd fd = {.fd = disk_fd(t.d), .events = POLLIN};
    poll(&fd, 1, 1000);
    disk_step(t.d);
}

static job *free_job(void) {
    for (;;) {
        for (int i = 0; i < WINDOW; i++)
            if (!jobs[i].busy)
                return &jobs[i];
        wait_step();
    }
}

static void drain(void) {
    for (int i = 0; i < WINDOW; i++)
        while (jobs[i].busy)
            wait_step();
}

/* Pages first .. first + n of any number: page i has its bytes where i modulo n_pages says. */
static void run(disk_kind kind, uint32_t first, uint32_t n) {
    tier_key root = tier_key_root(realm_name, sizeof realm_name);
    uint32_t good = t.n_good;
    for (uint32_t i = 0; i < n;) {
        job *j = free_job();
        *j = (job){.request = {.kind = kind, .realm = 1, .items = j->items, .context = j}};
        for (; j->request.n_items < BATCH && i < n; i++) {
            uint32_t k = j->request.n_items++, at = (first + i) % t.n_pages;
            j->tokens[k] = first + i;
            j->items[k] = (disk_item){.key = tier_key_child(&root, 0, &j->tokens[k], 1),
                                      .parent = root,
                                      .serial = first + i + 1,
                                      .rows = 1,
                                      .n_tokens = 1,
                                      .tokens = &j->tokens[k],
                                      .bytes = t.page_bytes,
                                      .host_offset = (uint64_t)at * t.page_bytes};
        }
        j->busy = 1;
        KVT_ASSERT(disk_submit(t.d, &j->request) == KVT_OK);
    }
    drain();
    if (kind != DISK_DELETE)
        KVT_ASSERT(t.n_good - good == n);
}

static void setup(uint32_t page_bytes, uint32_t n_pages, uint64_t budget_bytes) {
    const char *dir = getenv("KVT_BENCH_DIR");
    t = (tiers){.page_bytes = page_bytes,
                .n_pages = n_pages,
                .total_bytes = (uint64_t)page_bytes * n_pages,
                .budget_bytes = budget_bytes};
    snprintf(t.dir, sizeof t.dir, "%s/kvtrunk-bench-%d", dir ? dir : "/tmp", (int)getpid());
    snprintf(t.file, sizeof t.file, "%s.plain", t.dir);
    t.host_fd = memfd_create("bench", MFD_CLOEXEC);
    KVT_ASSERT(t.host_fd >= 0 && ftruncate(t.host_fd, (off_t)t.total_bytes) == 0);
    t.host = mmap(NULL, t.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t.host_fd, 0);
    t.copy = malloc(t.total_bytes);
    KVT_ASSERT(t.host != MAP_FAILED && t.copy);
    for (uint64_t i = 0; i < t.total_bytes; i += 8) {
        uint64_t x = i * UINT64_C(0x9e3779b97f4a7c15);
        memcpy(t.host + i, &x, 8);
    }
    memcpy(t.copy, t.host, t.total_bytes);
}

static void teardown(void) {
    munmap(t.host, t.total_bytes);
    close(t.host_fd);
    free(t.copy);
}

/* --- spilling and reading back -----------------------------------------------------------------
 * Both write their memory twice into a fresh file, and the second time counts: a daemon's helper
 * maps the host tier once in its life.
 */

static double spill_once(void) {
    remove_dir();
    open_disk();
    run(DISK_WRITE, 0, t.n_pages);
    double start = bench_now();
    run(DISK_WRITE, t.n_pages, t.n_pages);
    double seconds = bench_now() - start;
    disk_close(t.d, 60000);
    return seconds;
}

static double plain_once(void) {
    unlink(t.file);
    int fd = open(t.file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    KVT_ASSERT(fd >= 0);
    double start = 0;
    for (uint32_t i = 0; i < 2 * t.n_pages; i++) {
        if (i == t.n_pages)
            start = bench_now();
        KVT_ASSERT(pwrite(fd, t.host + (uint64_t)(i % t.n_pages) * t.page_bytes, t.page_bytes,
                          (off_t)i * t.page_bytes) == (ssize_t)t.page_bytes);
    }
    double seconds = bench_now() - start;
    fsync(fd); /* as closing the tier does: the next round starts with a clean page cache */
    close(fd);
    unlink(t.file);
    return seconds;
}

static void read_all(void *context) {
    (void)context;
    run(DISK_READ, 0, t.n_pages);
}

static void copy_all(void *context) {
    (void)context;
    for (uint32_t i = 0; i < t.n_pages; i++)
        memcpy(t.host + (uint64_t)i * t.page_bytes, t.copy + (uint64_t)i * t.page_bytes,
               t.page_bytes);
}

static void speed(uint32_t page_bytes, uint64_t total_bytes) {
    enum { ROUNDS = 7 };
    double ours[ROUNDS], plain[ROUNDS], ratios[ROUNDS];
    char name[64];
    setup(page_bytes, (uint32_t)(total_bytes / page_bytes), 3 * total_bytes + (16 << 20));
    for (int i = -1; i < ROUNDS; i++) { /* the first warms up */
        double a = spill_once(), b = plain_once();
        if (i >= 0) {
            ours[i] = 1e-9 * (double)t.total_bytes / a;
            plain[i] = 1e-9 * (double)t.total_bytes / b;
            ratios[i] = ours[i] / plain[i];
        }
    }
    snprintf(name, sizeof name, "spill, pages of %u KiB", page_bytes >> 10);
    double base = bench_percentile(plain, ROUNDS, 50), ratio = bench_percentile(ratios, ROUNDS, 50);
    bench_report(&(bench_row){.name = name,
                              .value = ratio * base,
                              .unit = "GB/s",
                              .base = "pwrite",
                              .base_value = base,
                              .target = .6,
                              .at_least = 1,
                              .noise = 50 * (ratios[ROUNDS * 3 / 4] - ratios[ROUNDS / 4]) / ratio});
    open_disk();
    while (!t.scan_done)
        wait_step();
    bench_pair pair = bench_turns(read_all, copy_all, NULL, ROUNDS);
    snprintf(name, sizeof name, "from disk (cached), pages of %u KiB", page_bytes >> 10);
    bench_report(&(bench_row){.name = name,
                              .value = 1e-9 * (double)t.total_bytes / pair.b / pair.ratio,
                              .unit = "GB/s",
                              .base = "memcpy",
                              .base_value = 1e-9 * (double)t.total_bytes / pair.b,
                              .target = .6,
                              .at_least = 1,
                              .noise = pair.noise});
    disk_close(t.d, 60000);
    remove_dir();
    teardown();
}

/* --- growing old -------------------------------------------------------------------------------
 */

/* Ten times the budget goes through: the oldest out, the newest in. */
static void old_age(void) {
    enum { PAGE = 96 << 10, PAGES = 512 };
    double tenth[10];
    uint32_t next = 0, oldest = 0;
    setup(PAGE, PAGES, UINT64_C(64) << 20);
    remove_dir();
    open_disk();
    uint32_t room = (uint32_t)(t.budget_bytes * 8 / 10 / tier_record_bytes(PAGE, 1));
    for (int part = 0; part < 10; part++) {
        double start = bench_now();
        for (uint32_t end = next + (uint32_t)(t.budget_bytes / PAGE); next < end; next += BATCH) {
            if (next + BATCH - oldest > room) {
                run(DISK_DELETE, oldest, BATCH);
                oldest += BATCH;
            }
            run(DISK_WRITE, next, BATCH);
        }
        tenth[part] = 1e-9 * (double)t.budget_bytes / (bench_now() - start);
    }
    bench_report(&(bench_row){.name = "ten budgets written: the last",
                              .value = tenth[9],
                              .unit = "GB/s",
                              .base = "the second",
                              .base_value = tenth[1],
                              .target = .8,
                              .at_least = 1});
    disk_close(t.d, 60000);
    remove_dir();
    teardown();
}

/* --- restart -----------------------------------------------------------------------------------
 */

static void restart(void) {
    enum { PAGE = 1024, PAGES = 100000 };
    disk_stats stats;
    setup(PAGE, PAGES, UINT64_C(1) << 30);
    remove_dir();
    open_disk();
    run(DISK_WRITE, 0, PAGES);
    disk_close(t.d, 60000);
    double start = bench_now();
    open_disk();
    double opened = bench_now() - start;
    disk_count(t.d, &stats);
    KVT_ASSERT(stats.records == PAGES); /* the usage is right at once */
    run(DISK_READ, PAGES / 2, 1);
    double hit = bench_now() - start;
    KVT_ASSERT(!t.scan_done);
    while (!t.scan_done)
        wait_step();
    double scanned = bench_now() - start;
    KVT_ASSERT(t.n_found == PAGES);
    bench_report(
        &(bench_row){.name = "restart, 100,000 pages: open", .value = opened, .unit = "s"});
    bench_report(&(bench_row){
        .name = "restart, 100,000 pages: first hit", .value = hit, .unit = "s", .target = .5});
    bench_report(&(bench_row){
        .name = "restart, 100,000 pages: all found", .value = scanned, .unit = "s", .target = 1.5});
    disk_close(t.d, 60000);
    remove_dir();
    teardown();
}

void bench_tiers(void) {
    speed(64 << 10, 128 << 20);
    speed(256 << 10, 128 << 20);
    bench_tiers_above();
    old_age();
    restart();
}
