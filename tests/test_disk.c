/*
 * The disk tier with its real helper process: what was written is read back, the helper is killed
 * in the middle of things, its file is cut, damaged and lost under it. Never wrong bytes, and the
 * process that asks lives.
 *
 *     test_disk [ROUNDS]    of killing (40; the long run makes 200) and of damaging
 */
#include "daemon/disk_state.h"
#include "tests/disk_kit.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>

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

int main(int argc, char **argv) {
    disk_helper_main(argc, argv);
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 40;
    rng = seed;
    kit_host_open();
    test_basics();
    test_kill(rounds);
    test_refused();
    test_cut();
    test_removed();
    test_doubt();
    test_full_disk();
    test_flips(rounds);
    puts("test_disk: ok");
    return 0;
}
