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

/* Is the file there that this names? Not any more: whoever made it sees that this place was
 * reached.
 */
static int is_wanted(const char *variable) {
    const char *name = getenv(variable);
    return name && unlink(name) == 0;
}

static void get_stuck(void) {
    if (is_wanted("KVT_TEST_COMPUTES"))
        for (;;)
            ;
    if (is_wanted("KVT_TEST_HANGS"))
        for (;;)
            pause();
}

ssize_t pwrite(int fd, const void *at, size_t n, off_t offset) {
    get_stuck();
    if (failing()) {
        errno = EIO;
        return -1;
    }
    return (ssize_t)syscall(SYS_pwrite64, fd, at, n, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int n_parts) {
    get_stuck();
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

static char state_of(int pid) {
    char path[32], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    CHECK(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
    fclose(file);
    return state;
}

/* The helper comes into this state at its next write, and does not answer until it is ended. */
static void end_stuck(const char *trigger, char state) {
    static job j;
    int last = 99, fd = open(trigger, O_CREAT | O_WRONLY, 0600), pid = disk_pid(b.d);
    CHECK(fd >= 0);
    close(fd);
    job_new(&j, DISK_DELETE, &last, 1);
    CHECK_EQ(submit(&j), KVT_OK);
    while (access(trigger, F_OK) == 0 || state_of(pid) != state)
        disk_step(b.d);
    forget_found();
    b.d->options.stall_ms = 1; /* it is stuck, and for ever: no need to wait for that */
    wait_for(&j);
    b.d->options.stall_ms = stall_ms;
    CHECK_EQ(j.items[0].status, KVT_EIO);
    wait_up();
    CHECK_EQ(disk_realm(b.d, 7, realm_name, strlen(realm_name)), KVT_OK);
    wait_scan();
}

/* One that computes and never answers may do so because of what is in the file: it is looked
 * through, and when the next one comes to such an end, too, a new file is made. One that waits for
 * its disk says nothing about the file, however many do: it is looked through, and kept. */
static void test_stuck(int computes) {
    const char *dir = kit_dir("stuck"), *trigger = kit_dir("trigger");
    const char *variable = computes ? "KVT_TEST_COMPUTES" : "KVT_TEST_HANGS";
    const uint32_t lost = b.n_lost;
    disk_stats stats;
    setenv(variable, trigger, 1);
    new_tree();
    open_disk(dir);
    wait_scan();
    write_range(0, 100);
    for (uint32_t n_ends = 1; n_ends <= (computes ? 2 : 3); n_ends++) {
        uint32_t is_new = computes && n_ends == 2;
        end_stuck(trigger, computes ? 'R' : 'S');
        CHECK_EQ(b.d->life_flags, is_new ? TIER_DISCARD : TIER_CHECK);
        disk_count(b.d, &stats);
        CHECK_EQ(stats.files_lost, is_new);
        CHECK_EQ(stats.moved_aside, is_new);
        CHECK_EQ(b.n_lost - lost, is_new);
        CHECK_EQ(b.n_found, is_new ? 0 : 100);
    }
    read_all();
    disk_close(b.d, 60000);
    unsetenv(variable);
    kit_remove(dir);
}

/* Waits for the next helper, and stops it before it has the file. 0: it was too quick. */
static int stop_opening(int last_pid) {
    while (disk_pid(b.d) == 0 || disk_pid(b.d) == last_pid)
        step();
    CHECK(kill(disk_pid(b.d), SIGSTOP) == 0);
    int pid = disk_pid(b.d);
    while (disk_pid(b.d) == pid && !disk_up(b.d))
        step();
    if (disk_up(b.d))
        CHECK(kill(pid, SIGKILL) == 0);
    return !disk_up(b.d);
}

/* Helper after helper does not answer while it opens the file: nothing is wrong with that. */
static void test_silent_opening(void) {
    enum { TIMES = 4 };
    const char *dir = kit_dir("opening");
    disk_stats stats;
    new_tree();
    open_ms = 150;
    open_disk(dir);
    open_ms = 0;
    wait_scan();
    write_range(0, 100);
    int pid = disk_pid(b.d), n = 0;
    uint32_t lost = b.n_lost;
    CHECK(kill(pid, SIGKILL) == 0);
    for (int tries = 0; n < TIMES; tries++) { /* in turn */
        CHECK(tries < 100);
        int stopped = stop_opening(pid);
        n = stopped ? n + 1 : 0;
        pid = stopped ? pid : disk_pid(b.d);
    }
    wait_up();
    CHECK_EQ(disk_realm(b.d, 7, realm_name, strlen(realm_name)), KVT_OK);
    read_all();
    disk_count(b.d, &stats);
    CHECK(stats.restarts > TIMES);
    CHECK_EQ(stats.files_lost, 0);
    CHECK_EQ(b.n_lost, lost);
    disk_close(b.d, 60000);
    kit_remove(dir);
}

/* It cannot be opened any more, and is tried again and again: that is silence from the first end
 * on, and said once. */
static void test_away(void) {
    const char *dir = kit_dir("away");
    char data[300], saved[300];
    disk_stats stats = {0};
    uint64_t silent_ms = 0;
    snprintf(data, sizeof data, "%s/data.mdb", dir);
    snprintf(saved, sizeof saved, "%s/saved", dir);
    new_tree();
    open_disk(dir);
    wait_scan();
    n_refusals = 0;
    /* A link to itself, which the file can replace at once: no helper is to find nothing. */
    CHECK(rename(data, saved) == 0 && symlink("data.mdb", data) == 0);
    CHECK(kill(disk_pid(b.d), SIGKILL) == 0);
    while (stats.restarts < 6) {
        step();
        disk_count(b.d, &stats);
        CHECK(stats.silent_ms >= silent_ms);
        silent_ms = stats.silent_ms;
    }
    CHECK(silent_ms > 0 && !disk_up(b.d));
    CHECK_EQ(n_refusals, 1);
    CHECK(rename(saved, data) == 0);
    wait_up();
    disk_count(b.d, &stats);
    CHECK(stats.silent_ms < silent_ms);
    CHECK_EQ(stats.files_lost, 0);
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

/* A helper, by its arguments, that has the directory and will not end: as one that was killed with
 * its daemon, and waits within the kernel for a disk. See disk_holder.c. */
static int be_holder(const char *dir) {
    char path[300];
    snprintf(path, sizeof path, "%s/lock", dir);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(lock >= 0 && flock(lock, LOCK_EX) == 0);
    CHECK(write(STDOUT_FILENO, "!", 1) == 1);
    for (;;)
        pause();
}

static pid_t start_holder(const char *dir, pid_t of) {
    int ready[2];
    char daemon[16], said;
    snprintf(daemon, sizeof daemon, "%d", (int)of);
    CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ready[1], STDOUT_FILENO);
        execl("/proc/self/exe", "kvtrunkd-disk", "--disk-helper", dir, "1", "1", "1", "1", daemon,
              "hold", (char *)NULL);
        _exit(99);
    }
    close(ready[1]);
    CHECK(read(ready[0], &said, 1) == 1);
    close(ready[0]);
    return pid;
}

static void end_holder(pid_t pid) {
    CHECK(kill(pid, SIGKILL) == 0);
    CHECK(waitpid(pid, NULL, 0) == pid);
}

/* It is not open in time: disk_open is back all the same, and what is there comes when it is. One
 * whose daemon lives is an error as ever. */
static void test_late(void) {
    const char *dir = kit_dir("late");
    static job j;
    disk_stats before, stats;
    int p = 0;
    uint32_t lost = b.n_lost;
    disk *d;
    new_tree();
    open_disk(dir);
    write_range(0, 100);
    disk_count(b.d, &before);
    disk_close(b.d, 60000);
    wait_ms = 500;
    pid_t holder = start_holder(dir, getpid());
    CHECK_EQ(try_open_disk(dir, BUDGET, &d), KVT_EBUSY);
    end_holder(holder);
    holder = start_holder(dir, 1);
    open_disk(dir);
    wait_ms = 0;
    CHECK(!disk_up(b.d) && b.n_found == 0);
    disk_count(b.d, &stats);
    CHECK_EQ(stats.map_bytes, before.map_bytes);
    CHECK(stats.silent_ms >= 500);
    job_new(&j, DISK_READ, &p, 1);
    CHECK_EQ(submit(&j), KVT_EBUSY);
    end_holder(holder);
    wait_scan();
    CHECK_EQ(b.n_found, 100);
    read_all();
    disk_count(b.d, &stats);
    CHECK_EQ(stats.restarts, 0); /* the very one that waited */
    CHECK_EQ(stats.files_lost, 0);
    CHECK_EQ(b.n_lost, lost);
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
    if (argc == 9 && strcmp(argv[8], "hold") == 0)
        return be_holder(argv[2]);
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 40;
    rng = seed;
    host_open();
    test_basics();
    test_kill(rounds);
    test_refused();
    test_silence();
    test_stuck(0);
    test_stuck(1);
    test_silent_opening();
    test_away();
    test_orphan();
    test_stopped_orphan();
    test_late();
    test_cut();
    test_removed();
    test_doubt();
    test_failing_disk();
    test_full_disk();
    test_flips(rounds);
    puts("test_disk: ok");
    return 0;
}
