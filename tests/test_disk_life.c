/*
 * The disk tier's helper process and time: a disk whose writes fail, a helper that is silent, hangs
 * or computes for ever, and one that outlives its daemon. Never wrong bytes, and the process that
 * asks lives.
 */
#include "daemon/disk_state.h"
#include "tests/disk_kit.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>

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

int main(int argc, char **argv) {
    disk_helper_main(argc, argv);
    if (argc == 9 && strcmp(argv[8], "hold") == 0)
        return be_holder(argv[2]);
    rng = seed;
    kit_host_open();
    test_silence();
    test_stuck(0);
    test_stuck(1);
    test_silent_opening();
    test_away();
    test_orphan();
    test_stopped_orphan();
    test_late();
    test_failing_disk();
    puts("test_disk_life: ok");
    return 0;
}
