/*
 * The disk tier with its real helper process: what was written is read back, the helper is killed
 * in the middle of things, its file is cut, damaged and lost under it. Never wrong bytes, and the
 * process that asks lives.
 *
 *     test_disk [ROUNDS]    of killing (40; the long run makes 200) and of damaging
 */
#include "daemon/disk.h"
#include "daemon/disk_helper.h"
#include "tests/tier_kit.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum {
    N_PAGES = 300,
    MAX_BYTES = 30000,
    FRAME_BYTES = 32768,
    N_FRAMES = N_PAGES + 64, /* one for each page to write from, and some to read to */
    BATCH = 16,
};
#define BUDGET     (UINT64_C(24) << 20)
#define HOST_BYTES ((uint64_t)N_FRAMES * FRAME_BYTES)

static uint64_t seed = 1, rng;
static uint32_t stall_ms = 30000, lock_wait_ms = 100;
static const char realm_name[] = "the realm of this test";

typedef struct bench {
    disk *d;
    int host_fd;
    uint8_t *host;
    kit_page pages[N_PAGES];
    int there[N_PAGES]; /* 1: said to be written; -1: may be either */
    uint32_t n_found, n_scans, n_lost;
    int found[N_PAGES];
    uint32_t last_depth;
} bench;

static bench b;

static void done(void *context, disk_request *r) {
    (void)context;
    *(int *)r->context = 1;
}

static uint32_t found_realm(void *context, const void *bytes, size_t n) {
    (void)context;
    return n == strlen(realm_name) && memcmp(bytes, realm_name, n) == 0 ? 7 : DISK_NO_REALM;
}

static void found(void *context, const disk_found *f) {
    (void)context;
    CHECK_EQ(f->realm, 7);
    CHECK(f->depth >= b.last_depth);
    b.last_depth = f->depth;
    for (int i = 0; i < N_PAGES; i++) {
        kit_page *p = &b.pages[i];
        if (!tier_key_equal(&p->key, &f->key))
            continue;
        CHECK_EQ(f->bytes, p->bytes);
        CHECK_EQ(f->n_tokens, p->n_tokens);
        CHECK(memcmp(f->tokens, p->tokens, 4 * (size_t)p->n_tokens) == 0);
        CHECK_EQ(f->parent_serial, p->parent < 0 ? 0 : b.pages[p->parent].serial);
        p->serial = f->serial;
        if (!b.found[i])
            b.n_found++;
        b.found[i] = 1;
    }
}

static void scan_done(void *context) {
    (void)context;
    b.n_scans++;
}

static void lost_all(void *context) {
    (void)context;
    b.n_lost++;
    memset(b.there, 0, sizeof b.there);
}

static void log_line(void *context, int level, const char *line) {
    (void)context;
    if (getenv("KVT_TEST_LOUD"))
        fprintf(stderr, "[%d] %s\n", level, line);
}

static char why[512]; /* the last disk_open was refused */

static kvt_status try_open_disk(const char *dir, uint64_t budget, disk **ret_disk) {
    why[0] = 0;
    disk_options options = {.dir = dir,
                            .budget_bytes = budget,
                            .host_fd = b.host_fd,
                            .host_bytes = HOST_BYTES,
                            .max_requests = 32,
                            .lock_wait_ms = lock_wait_ms,
                            .stall_ms = stall_ms,
                            .done = done,
                            .found_realm = found_realm,
                            .found = found,
                            .scan_done = scan_done,
                            .lost_all = lost_all,
                            .log = log_line};
    kvt_status status = disk_open(&options, why, sizeof why, ret_disk);
    CHECK_MSG(status == KVT_OK || why[0], "%s without a reason", kvt_status_name(status));
    if (status != KVT_OK && status != KVT_EBUSY)
        fprintf(stderr, "disk_open: %s: %s\n", kvt_status_name(status), why);
    return status;
}

static void forget_found(void) {
    memset(b.found, 0, sizeof b.found);
    b.n_found = b.last_depth = 0;
}

static void open_disk(const char *dir) {
    forget_found();
    CHECK_EQ(try_open_disk(dir, BUDGET, &b.d), KVT_OK);
    CHECK_EQ(disk_realm(b.d, 7, realm_name, strlen(realm_name)), KVT_OK);
}

static void step(void) {
    struct pollfd fd = {.fd = disk_fd(b.d), .events = POLLIN};
    CHECK(poll(&fd, 1, 100000) == 1);
    disk_step(b.d);
}

static void wait_scan(void) {
    uint32_t before = b.n_scans;
    while (!disk_scanned(b.d) && b.n_scans == before)
        step();
}

static void wait_up(void) {
    while (!disk_up(b.d))
        step();
}

/* --- requests ----------------------------------------------------------------------------------
 */

typedef struct job {
    disk_request request;
    disk_item items[BATCH];
    int at[BATCH];
    int done;
} job;

static void item_of(int p, disk_item *item) {
    const kit_page *page = &b.pages[p];
    *item = (disk_item){.key = page->key,
                        .parent = page->parent_key,
                        .serial = page->serial,
                        .parent_serial = page->parent < 0 ? 0 : b.pages[page->parent].serial,
                        .depth = page->depth,
                        .slot = page->slot,
                        .rows = page->rows,
                        .n_tokens = page->n_tokens,
                        .bytes = page->bytes,
                        .tokens = page->tokens,
                        .host_offset = (uint64_t)p * FRAME_BYTES};
}

static void job_new(job *j, disk_kind kind, const int *at, uint32_t n) {
    *j = (job){.request = {.kind = kind, .realm = 7, .n_items = n, .items = j->items}};
    j->request.context = &j->done;
    for (uint32_t i = 0; i < n; i++) {
        j->at[i] = at[i];
        item_of(at[i], &j->items[i]);
    }
}

static kvt_status submit(job *j) {
    kvt_status status = disk_submit(b.d, &j->request);
    if (status == KVT_OK && j->request.kind == DISK_WRITE)
        for (uint32_t i = 0; i < j->request.n_items; i++)
            b.pages[j->at[i]].serial = j->items[i].serial;
    return status;
}

static void wait_for(job *j) {
    while (!j->done)
        step();
}

static void took(const job *j) {
    for (uint32_t i = 0; i < j->request.n_items; i++) {
        int p = j->at[i];
        kvt_status status = j->items[i].status;
        if (j->request.kind == DISK_WRITE) {
            CHECK(status == KVT_OK || status == KVT_EORDER || status == KVT_EFULL ||
                  status == KVT_EIO);
            if (status == KVT_OK)
                b.pages[p].serial = j->items[i].serial;
            if (status != KVT_EFULL) /* then what was there still is */
                b.there[p] = status == KVT_OK ? 1 : status == KVT_EIO ? -1 : 0;
        } else if (j->request.kind == DISK_DELETE) {
            b.there[p] = status == KVT_EIO ? -1 : 0;
        }
    }
}

/* Writes pages [from, to) in batches, and waits. */
static void write_range(int from, int to) {
    static job j;
    while (from < to) {
        int at[BATCH];
        uint32_t n = 0;
        for (; n < BATCH && from < to; n++, from++)
            at[n] = from;
        job_new(&j, DISK_WRITE, at, n);
        CHECK_EQ(submit(&j), KVT_OK);
        wait_for(&j);
        took(&j);
    }
}

/* Reads a page; whatever the status, never wrong bytes. */
static kvt_status read_page(int p) {
    static job j;
    static uint8_t expected[MAX_BYTES];
    uint32_t frame = N_PAGES + check_below(&rng, N_FRAMES - N_PAGES);
    uint8_t *at = b.host + (size_t)frame * FRAME_BYTES;
    job_new(&j, DISK_READ, &p, 1);
    if (j.items[0].serial == 0)
        return KVT_ENOENT;
    j.items[0].host_offset = (uint64_t)frame * FRAME_BYTES;
    memset(at, 0xee, FRAME_BYTES);
    kvt_status status = submit(&j);
    if (status != KVT_OK)
        return status;
    wait_for(&j);
    status = j.items[0].status;
    if (status == KVT_OK) {
        kit_bytes(&b.pages[p], p, expected, b.pages[p].bytes);
        CHECK_MSG(memcmp(at, expected, b.pages[p].bytes) == 0, "page %d (seed %" PRIu64 ")", p,
                  seed);
    }
    return status;
}

static void read_all(void) {
    for (int i = 0; i < N_PAGES; i++) {
        kvt_status status = read_page(i);
        if (b.there[i] == 1)
            CHECK_MSG(status == KVT_OK, "page %d: %s (seed %" PRIu64 ")", i,
                      kvt_status_name(status), seed);
        if (b.there[i] == 0)
            CHECK_MSG(status == KVT_ENOENT, "page %d: %s", i, kvt_status_name(status));
    }
}

static void new_tree(void) {
    kit_tree(b.pages, N_PAGES, 0, realm_name, MAX_BYTES, &rng);
    memset(b.there, 0, sizeof b.there);
    for (int i = 0; i < N_PAGES; i++)
        kit_bytes(&b.pages[i], i, b.host + (size_t)i * FRAME_BYTES, b.pages[i].bytes);
}

static kvt_status simple(disk_kind kind, disk_request *ret_request) {
    int is_done = 0;
    disk_request r = {.kind = kind, .realm = 7, .context = &is_done};
    CHECK_EQ(disk_submit(b.d, &r), KVT_OK);
    while (!is_done)
        step();
    if (ret_request)
        *ret_request = r;
    return r.status;
}

/* --- the tests ---------------------------------------------------------------------------------
 */

static void test_basics(void) {
    const char *dir = kit_dir("basics");
    disk_stats stats;
    disk_request r;
    disk *other;
    new_tree();
    open_disk(dir);
    wait_scan();
    CHECK_EQ(b.n_found, 0);
    write_range(0, N_PAGES);
    read_all();
    char holder[64], lock[512];
    snprintf(holder, sizeof holder, "process %d has this disk tier; end it", (int)getpid());
    kit_file_path(dir, "lock", lock);
    for (int i = 0; i < 2; i++) { /* the first serves on, though somebody removes the lock's file */
        CHECK_EQ(try_open_disk(dir, BUDGET, &other), KVT_EBUSY);
        CHECK_MSG(strstr(why, holder), "%s", why);
        CHECK_EQ(unlink(lock), 0);
    }
    struct rlimit file_size; /* not even holes make a file larger than the budget */
    CHECK_EQ(prlimit(disk_pid(b.d), RLIMIT_FSIZE, NULL, &file_size), 0);
    CHECK(file_size.rlim_cur <= BUDGET);
    CHECK_EQ(simple(DISK_USAGE, NULL), KVT_OK);
    disk_count(b.d, &stats);
    CHECK_EQ(stats.records, N_PAGES);
    CHECK_EQ(stats.writes, N_PAGES);
    CHECK_EQ(stats.reads, N_PAGES);
    CHECK_EQ(simple(DISK_VERIFY, &r), KVT_OK);
    CHECK_EQ(r.checked, N_PAGES);
    CHECK_EQ(r.deleted, 0);
    disk_close(b.d, 60000);

    open_disk(dir); /* usage is right at once, and all is found */
    disk_count(b.d, &stats);
    CHECK_EQ(stats.records, N_PAGES);
    for (int i = 0; i < N_PAGES; i++) /* serials are the file's */
        b.pages[i].serial = 0;
    wait_scan();
    CHECK_EQ(b.n_found, N_PAGES);
    read_all();
    CHECK_EQ(simple(DISK_FLUSH_REALM, &r), KVT_OK);
    CHECK_EQ(r.deleted, N_PAGES);
    memset(b.there, 0, sizeof b.there);
    read_all();
    write_range(0, N_PAGES);
    CHECK_EQ(simple(DISK_FLUSH_ALL, &r), KVT_OK);
    CHECK_EQ(r.deleted, N_PAGES);
    memset(b.there, 0, sizeof b.there);
    read_all();
    disk_close(b.d, 60000);
    open_disk(dir);
    wait_scan();
    CHECK_EQ(b.n_found, 0);
    disk_close(b.d, 60000);
    kit_remove(dir);
}

/* Killed in the middle of writing, many times: what was said to be written is there, and what is
 * there is right. */
static void test_kill(uint32_t rounds) {
    static job jobs[8];
    const char *dir = kit_dir("kill");
    disk_stats stats;
    new_tree();
    open_disk(dir);
    write_range(0, N_PAGES);
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t n_jobs = 1 + check_below(&rng, 8), patience = check_below(&rng, 12);
        if (check_below(&rng, 4) == 0) { /* fresh ones to write */
            int from = (int)check_below(&rng, N_PAGES - 50);
            int at[BATCH];
            for (int i = N_PAGES - 1; i >= from; i -= BATCH) {
                uint32_t n = 0;
                for (int k = i; k >= from && n < BATCH; k--)
                    at[n++] = k;
                job_new(&jobs[0], DISK_DELETE, at, n);
                CHECK_EQ(submit(&jobs[0]), KVT_OK);
                wait_for(&jobs[0]);
                took(&jobs[0]);
            }
        }
        int next = (int)check_below(&rng, N_PAGES - 8 * BATCH);
        for (uint32_t k = 0; k < n_jobs; k++) {
            int at[BATCH];
            for (int i = 0; i < BATCH; i++)
                at[i] = next++;
            job_new(&jobs[k], DISK_WRITE, at, BATCH);
            CHECK_EQ(submit(&jobs[k]), KVT_OK);
        }
        for (uint32_t k = 0; k < patience && !jobs[n_jobs - 1].done; k++)
            step();
        CHECK(kill(disk_pid(b.d), SIGKILL) == 0);
        for (uint32_t k = 0; k < n_jobs; k++) {
            wait_for(&jobs[k]);
            took(&jobs[k]);
        }
        while (disk_up(b.d)) /* it may have answered all before it died */
            step();
        forget_found();
        wait_up();
        CHECK_EQ(disk_realm(b.d, 7, realm_name, strlen(realm_name)), KVT_OK);
        wait_scan();
        for (int i = 0; i < N_PAGES; i++) {
            if (b.there[i] == 1)
                CHECK_MSG(b.found[i], "page %d was written, round %u (seed %" PRIu64 ")", i, round,
                          seed);
            if (b.there[i] == 0)
                CHECK_MSG(!b.found[i], "page %d was deleted, round %u", i, round);
            if (b.there[i] == -1)
                b.there[i] = b.found[i];
        }
        if (round % 10 == 0)
            read_all();
        CHECK(kit_dir_bytes(dir) <= BUDGET);
    }
    CHECK_EQ(b.n_lost, 0);
    read_all();
    disk_count(b.d, &stats);
    CHECK_EQ(stats.restarts, rounds);
    CHECK_EQ(stats.moved_aside, 0);
    disk_close(b.d, 60000);
    kit_remove(dir);
}

/* --- damage ------------------------------------------------------------------------------------
 */

/* Reads everything, whatever comes of it; the helper may die and come back meanwhile. */
static uint32_t read_whatever(void) {
    uint32_t n_ok = 0;
    for (int i = 0; i < N_PAGES; i++) {
        n_ok += read_page(i) == KVT_OK;
        wait_up();
    }
    return n_ok;
}

/* Everything is as in the beginning: what is written is there. */
static void check_works(void) {
    wait_up();
    CHECK_EQ(simple(DISK_FLUSH_ALL, NULL), KVT_OK);
    memset(b.there, 0, sizeof b.there);
    for (int i = 0; i < N_PAGES; i++)
        b.pages[i].serial = 0;
    write_range(0, 40);
    for (int i = 0; i < 40; i++) {
        CHECK_EQ(b.there[i], 1);
        CHECK_EQ(read_page(i), KVT_OK);
    }
}

/* The file is cut under the running daemon: SIGBUS for the helper. */
static void test_cut(void) {
    const char *dir = kit_dir("cut");
    char path[512];
    disk_stats stats;
    for (int round = 0; round < 6; round++) {
        new_tree();
        open_disk(dir);
        write_range(0, N_PAGES);
        CHECK_EQ(read_whatever(), N_PAGES);
        kit_file_path(dir, "data.mdb", path);
        CHECK(truncate(path, round * 700000) == 0);
        uint32_t n_ok = read_whatever();
        CHECK(n_ok < N_PAGES);
        disk_count(b.d, &stats);
        CHECK(stats.restarts > 0);
        check_works();
        disk_close(b.d, 60000);
        kit_remove(dir);
    }
    CHECK(b.n_lost > 0);
}

/* The file is removed under the running daemon. */
static void test_removed(void) {
    const char *dir = kit_dir("removed");
    char path[512];
    disk_stats stats;
    uint32_t lost = b.n_lost;
    new_tree();
    open_disk(dir);
    write_range(0, N_PAGES);
    kit_file_path(dir, "data.mdb", path);
    CHECK(unlink(path) == 0);
    CHECK_EQ(simple(DISK_USAGE, NULL), KVT_EIO);
    CHECK_EQ(read_whatever(), 0);
    disk_count(b.d, &stats);
    CHECK(stats.restarts > 0);
    CHECK_EQ(stats.files_lost, 1);
    CHECK_EQ(stats.moved_aside, 0);
    CHECK_EQ(b.n_lost - lost, 1);
    check_works();
    disk_close(b.d, 60000);
    kit_remove(dir);
}

static int is_lmdb_page(const uint8_t *page, uint64_t number) {
    uint64_t own;
    uint16_t flags;
    memcpy(&own, page, sizeof own);
    memcpy(&flags, page + 10, sizeof flags);
    return own == number && (flags == 1 || flags == 2 || flags == 8); /* branch, leaf, meta */
}

/* A header in the file is damaged, and the helper dies: of something that it did, so the file is
 * looked through, and moved aside; or because somebody killed it, so the scan drops that record. */
static void test_doubt(void) {
    static uint8_t file[24 << 20];
    static const int signals[] = {SIGSEGV, SIGKILL};
    for (int round = 0; round < 2; round++) {
        const char *dir = kit_dir("doubt");
        char path[512];
        disk_stats stats;
        uint32_t lost = b.n_lost;
        new_tree();
        open_disk(dir);
        wait_scan();
        write_range(0, 100);
        size_t n = kit_file_read(dir, "data.mdb", file, sizeof file);
        const kit_page *page = &b.pages[99]; /* the last: a leaf, so nothing hangs on it */
        uint8_t *at = memmem(file, n, page->tokens, 4 * (size_t)page->n_tokens);
        kit_file_path(dir, "data.mdb", path);
        int fd = open(path, O_WRONLY);
        CHECK(fd >= 0 && at);
        for (; at; at = memmem(at + 1, n - (size_t)(at + 1 - file), page->tokens,
                               4 * (size_t)page->n_tokens)) {
            uint8_t wrong = *at ^ 4; /* in older copies of LMDB's page too */
            CHECK(syscall(SYS_pwrite64, fd, &wrong, 1, (off_t)(at - file)) == 1);
        }
        close(fd);
        forget_found();
        CHECK(kill(disk_pid(b.d), signals[round]) == 0);
        while (disk_up(b.d))
            step();
        wait_up();
        CHECK_EQ(disk_realm(b.d, 7, realm_name, strlen(realm_name)), KVT_OK);
        wait_scan();
        disk_count(b.d, &stats);
        CHECK_EQ(stats.files_lost, round == 0);
        CHECK_EQ(stats.moved_aside, round == 0);
        CHECK_EQ(b.n_lost - lost, round == 0);
        CHECK_EQ(b.n_found, round == 0 ? 0 : 99);
        CHECK_EQ(stats.corrupt, round == 0 ? 0 : 1);
        if (round == 1)
            b.there[99] = 0;
        read_all();
        disk_close(b.d, 60000);
        kit_remove(dir);
    }
}

/* Four bits of the file, anywhere or in LMDB's own pages, are not what they were. */
static void test_flips(uint32_t rounds) {
    static uint8_t file[24 << 20], copy[24 << 20];
    const char *dir = kit_dir("flips");
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t n_died = 0, n_missed = 0, n_aside = 0;
    disk_stats stats;
    new_tree();
    open_disk(dir);
    write_range(0, 100);
    disk_close(b.d, 60000);
    size_t n = kit_file_read(dir, "data.mdb", file, sizeof file);
    static const char stamp[] = "kvtrunk-disk-tier 1 closed unknown\n";
    static uint64_t serials[N_PAGES];
    for (int i = 0; i < N_PAGES; i++)
        serials[i] = b.pages[i].serial;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t n_ok = 0;
        memcpy(copy, file, n);
        for (int flip = 0; flip < 4;) {
            size_t at = check_below(&rng, (uint32_t)n);
            if (round % 2 && !is_lmdb_page(file + at / page * page, at / page))
                continue;
            if (round % 4 == 1) /* where a page says what is where in it */
                at = at / page * page + at % 64;
            copy[at] ^= (uint8_t)(1u << check_below(&rng, 8));
            flip++;
        }
        kit_file_write(dir, "data.mdb", copy, n);
        kit_file_write(dir, "stamp", stamp, strlen(stamp));
        for (int i = 0; i < N_PAGES; i++)
            b.pages[i].serial = serials[i];
        open_disk(dir);
        for (int i = 0; i < 100; i++) {
            n_ok += read_page(i) == KVT_OK;
            wait_up();
        }
        if (round % 8 == 0)
            check_works();
        disk_count(b.d, &stats);
        n_died += stats.restarts > 0;
        n_aside += stats.moved_aside > 0;
        n_missed += n_ok < 100;
        disk_close(b.d, 60000);
    }
    printf("test_disk: of %u damaged files %u gave misses, %u ended the helper, %u were moved "
           "aside\n",
           rounds, n_missed, n_died, n_aside);
    CHECK(n_missed > rounds / 10);
    kit_remove(dir);
}

/* A disk smaller than the budget: what fits is kept, deleting makes room, serving goes on. */
static void test_full_disk(void) {
    static job j;
    const char *dir = kit_dir("small-disk");
    char command[600];
    int pid;
    uint64_t first_writes = 0;
    uint32_t lost = b.n_lost;
    disk_stats last;
    CHECK(mkdir(dir, 0700) == 0);
    if (mount("none", dir, "tmpfs", 0, "size=4m") != 0) {
        printf("test_disk: SKIPPED the full disk: mounting a small tmpfs: %s\n", strerror(errno));
        CHECK(rmdir(dir) == 0);
        return;
    }
    new_tree();
    snprintf(command, sizeof command, "%s/tier", dir);
    open_disk(command);
    pid = disk_pid(b.d);
    for (int i = 0; i < N_PAGES; i++) /* no tree: each for itself, so that any may go */
        b.pages[i].parent = -1, b.pages[i].depth = 0;
    for (int round = 0; round < 60; round++) { /* each could eat a little of what deleting needs */
        write_range(0, N_PAGES);
        uint32_t n_there = 0;
        disk_stats stats;
        disk_count(b.d, &stats);
        CHECK(stats.full > 0);
        if (round == 0)
            first_writes = stats.writes;
        int gone[BATCH];
        uint32_t n_gone = 0;
        for (int i = 0; i < N_PAGES; i++) {
            n_there += b.there[i] == 1;
            if (b.there[i] == 1 && n_gone < 4 && check_below(&rng, 9) == 0)
                gone[n_gone++] = i;
        }
        CHECK_MSG(n_there > 50 && n_there < N_PAGES, "%u pages", n_there);
        CHECK(n_gone > 0);
        job_new(&j, DISK_DELETE, gone, n_gone);
        CHECK_EQ(submit(&j), KVT_OK);
        wait_for(&j);
        took(&j);
        for (uint32_t i = 0; i < n_gone; i++)
            CHECK_EQ(j.items[i].status, KVT_OK);
        read_all();
    }
    disk_count(b.d, &last);
    CHECK(last.writes > first_writes); /* deleting made room */
    CHECK_EQ(disk_pid(b.d), pid);      /* nobody died of it */
    CHECK_EQ(b.n_lost, lost);          /* and nothing had to be thrown away */
    disk_close(b.d, 60000);
    CHECK(umount(dir) == 0);
    CHECK(rmdir(dir) == 0);
}

/* --- failing writes ----------------------------------------------------------------------------
 */

/* LMDB's writes go through these, in the helper too, since it is this program; while the file that
 * KVT_TEST_EIO names is there, they fail. */
static int failing(void) {
    const char *name = getenv("KVT_TEST_EIO");
    return name && access(name, F_OK) == 0;
}

ssize_t pwrite(int fd, const void *at, size_t n, off_t offset) {
    if (failing()) {
        errno = EIO;
        return -1;
    }
    return (ssize_t)syscall(SYS_pwrite64, fd, at, n, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int n_parts) {
    if (failing()) {
        errno = EIO;
        return -1;
    }
    return (ssize_t)syscall(SYS_writev, fd, parts, n_parts);
}

static void test_failing_disk(void) {
    static job j;
    const char *dir = kit_dir("failing"), *trigger = kit_dir("trigger");
    int at[BATCH];
    setenv("KVT_TEST_EIO", trigger, 1);
    new_tree();
    open_disk(dir);
    write_range(0, 100);
    for (int round = 0; round < 5; round++) {
        int fd = open(trigger, O_CREAT | O_WRONLY, 0600);
        CHECK(fd >= 0);
        close(fd);
        for (int i = 0; i < BATCH; i++)
            at[i] = 100 + i;
        job_new(&j, DISK_WRITE, at, BATCH);
        for (int i = 0; i < BATCH; i++) {
            int parent = b.pages[at[i]].parent;
            if (parent >= 100) /* not written yet: let it be an orphan */
                j.items[i].parent_serial = 1000000;
        }
        CHECK_EQ(submit(&j), KVT_OK);
        wait_for(&j);
        for (int i = 0; i < BATCH; i++)
            CHECK_EQ(j.items[i].status, KVT_EIO);
        CHECK(unlink(trigger) == 0);
        wait_up();
        CHECK_EQ(disk_realm(b.d, 7, realm_name, strlen(realm_name)), KVT_OK);
        for (int i = 0; i < 100; i++)
            CHECK_EQ(read_page(i), KVT_OK);
    }
    write_range(100, 120);
    CHECK_EQ(b.there[100], 1);
    read_all();
    disk_close(b.d, 60000);
    unsetenv("KVT_TEST_EIO");
    kit_remove(dir);
}

/* --- life and death ----------------------------------------------------------------------------
 */

/* A helper that does not answer is ended, and its requests with it. */
static void test_silence(void) {
    static job j;
    const char *dir = kit_dir("silence");
    int at[BATCH];
    disk_stats stats;
    new_tree();
    stall_ms = 5000;
    open_disk(dir);
    stall_ms = 30000;
    wait_scan();
    write_range(0, 100);
    for (int i = 0; i < BATCH; i++)
        at[i] = i;
    CHECK(kill(disk_pid(b.d), SIGSTOP) == 0);
    job_new(&j, DISK_READ, at, BATCH);
    for (int i = 0; i < BATCH; i++)
        j.items[i].host_offset = (uint64_t)(N_PAGES + i) * FRAME_BYTES;
    CHECK_EQ(submit(&j), KVT_OK);
    wait_for(&j);
    for (int i = 0; i < BATCH; i++)
        CHECK_EQ(j.items[i].status, KVT_EIO);
    wait_up();
    read_all(); /* it was looked through, and is used */
    disk_count(b.d, &stats);
    CHECK_EQ(stats.restarts, 1);
    CHECK_EQ(stats.moved_aside, 0);
    CHECK_EQ(stats.dropped, 1);
    disk_close(b.d, 60000);
    kit_remove(dir);
}

/* A process that has the disk tier, has 100 pages written and then does what is left for it, until
 * it is killed. */
typedef struct owner {
    pid_t pid;
    int helper;
} owner;

static owner start_owner(const char *dir, void (*then)(void)) {
    int ready[2];
    owner o = {0};
    CHECK(pipe(ready) == 0);
    new_tree();
    fflush(stdout);
    o.pid = fork();
    CHECK(o.pid >= 0);
    if (o.pid == 0) {
        open_disk(dir);
        write_range(0, 100);
        if (then)
            then();
        o.helper = disk_pid(b.d);
        CHECK(write(ready[1], &o.helper, sizeof o.helper) == sizeof o.helper);
        for (;;)
            pause();
    }
    close(ready[1]);
    CHECK(read(ready[0], &o.helper, sizeof o.helper) == sizeof o.helper);
    close(ready[0]);
    return o;
}

static void kill_owner(owner o) {
    int status;
    CHECK(kill(o.pid, SIGKILL) == 0);
    CHECK(waitpid(o.pid, &status, 0) == o.pid);
}

static void go_on_writing(void) {
    static job j;
    int at[BATCH];
    for (int i = 0; i < BATCH; i++)
        at[i] = 100 + i;
    job_new(&j, DISK_WRITE, at, BATCH);
    submit(&j);
}

/* The daemon is killed: its helper ends by itself, and lets go of the directory. */
static void test_orphan(void) {
    const char *dir = kit_dir("orphan");
    for (int round = 0; round < 5; round++) {
        kill_owner(start_owner(dir, round % 2 ? go_on_writing : NULL));
        lock_wait_ms = 20000;
        open_disk(dir);
        lock_wait_ms = 100;
        wait_scan();
        CHECK(b.n_found >= 100);
        for (int i = 0; i < 100; i++)
            CHECK_EQ(read_page(i), KVT_OK);
        CHECK_EQ(simple(DISK_FLUSH_ALL, NULL), KVT_OK);
        disk_close(b.d, 60000);
    }
    kit_remove(dir);
}

/* The daemon is killed while its helper is stopped, or waits for a disk: it ends all the same. */
static void test_stopped_orphan(void) {
    const char *dir = kit_dir("stopped");
    owner o = start_owner(dir, NULL);
    CHECK(kill(o.helper, SIGSTOP) == 0);
    kill_owner(o);
    lock_wait_ms = 20000;
    open_disk(dir);
    lock_wait_ms = 100;
    wait_scan();
    CHECK_EQ(b.n_found, 100);
    disk_close(b.d, 60000);
    kit_remove(dir);
}

/* What may not be asked for. */
static void test_refused(void) {
    static job j, many[40];
    const char *dir = kit_dir("refused");
    int p = 0;
    disk *d;
    disk_options options = {.dir = "", .done = done, .max_requests = 1, .host_bytes = 1};
    CHECK_EQ(disk_open(&options, why, sizeof why, &d), KVT_EINVAL);
    new_tree();
    open_disk(dir);
    job_new(&j, DISK_WRITE, &p, 1);
    j.items[0].bytes = 0;
    CHECK_EQ(submit(&j), KVT_EINVAL);
    job_new(&j, DISK_WRITE, &p, 1);
    j.items[0].host_offset = HOST_BYTES - 1 - j.items[0].bytes + 2;
    CHECK_EQ(submit(&j), KVT_EINVAL);
    job_new(&j, DISK_READ, &p, 1); /* never written: no serial */
    CHECK_EQ(submit(&j), KVT_EINVAL);
    job_new(&j, DISK_WRITE, &p, 1);
    j.request.realm = 8; /* not defined */
    CHECK_EQ(submit(&j), KVT_EINVAL);
    job_new(&j, DISK_WRITE, &p, 0);
    CHECK_EQ(submit(&j), KVT_EINVAL);
    CHECK_EQ(disk_under_way(b.d), 0);
    for (uint32_t i = 0; i < 40; i++) {
        job_new(&many[i], DISK_USAGE, &p, 0);
        CHECK_EQ(submit(&many[i]), i < 32 ? KVT_OK : KVT_EBUSY);
    }
    disk_close(b.d, 60000); /* all of them are done */
    for (uint32_t i = 0; i < 32; i++)
        CHECK(many[i].done && many[i].request.status == KVT_OK);
    disk_close(NULL, 0);
    kit_remove(dir);
}

static void host_open(void) {
    b.host_fd = memfd_create("host", MFD_CLOEXEC);
    CHECK(b.host_fd >= 0 && ftruncate(b.host_fd, (off_t)HOST_BYTES) == 0);
    b.host = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, b.host_fd, 0);
    CHECK(b.host != MAP_FAILED);
}

int main(int argc, char **argv) {
    disk_helper_main(argc, argv);
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 40;
    rng = seed;
    host_open();
    test_basics();
    test_kill(rounds);
    test_refused();
    test_silence();
    test_orphan();
    test_stopped_orphan();
    test_cut();
    test_removed();
    test_doubt();
    test_failing_disk();
    test_full_disk();
    test_flips(rounds);
    puts("test_disk: ok");
    return 0;
}
