/* test_touch.c - memory that is reserved and touched a piece at a time: all of it is there, how far
 * it is is told truly, and it ends when that is wished, with nothing left behind. */
#include "kernels/device.h"
#include "tests/check.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

typedef struct watcher {
    const char *doing;
    int n, stop_at; /* steps; the one that says no, 0: none */
    uint64_t done_bytes, all_bytes;
} watcher;

static int step(void *context, const char *doing, uint64_t done_bytes, uint64_t all_bytes) {
    watcher *w = context;
    int is_first = !w->doing || strcmp(doing, w->doing) != 0;
    CHECK(done_bytes > (is_first ? 0 : w->done_bytes) && done_bytes <= all_bytes);
    CHECK(w->n == 0 || all_bytes == w->all_bytes);
    CHECK(strcmp(doing, "reserving") == 0 || strcmp(doing, "touching") == 0);
    w->doing = doing;
    w->done_bytes = done_bytes;
    w->all_bytes = all_bytes;
    return ++w->n == w->stop_at;
}

static int new_file(void) {
    int fd = memfd_create("touch", MFD_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static uint64_t reserved_bytes(int fd) {
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    return 512 * (uint64_t)st.st_blocks;
}

static void check_touched(char *at, uint64_t bytes) {
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE),
             n = (bytes + page_bytes - 1) / page_bytes;
    unsigned char *there = malloc(n);
    CHECK(there && mincore(at, bytes, there) == 0);
    for (uint64_t i = 0; i < n; i++)
        CHECK_MSG((there[i] & 1) && at[i * page_bytes] == 0, "page %" PRIu64, i);
    free(there);
}

static void test_all(uint64_t bytes, int reserves, int touches) {
    int fd = new_file();
    void *at = NULL;
    watcher w = {.n = 0};
    kvt_touching touching = {step, &w};
    CHECK_EQ(kvt_touch_reserve(fd, bytes, &touching), 0);
    CHECK(w.n == reserves && strcmp(w.doing, "reserving") == 0);
    CHECK(w.done_bytes == bytes && w.all_bytes == bytes);
    CHECK(reserved_bytes(fd) >= bytes);
    CHECK_EQ(kvt_touch_map(fd, bytes, &touching, &at), 0);
    CHECK(w.n == reserves + touches && strcmp(w.doing, "touching") == 0);
    CHECK(w.done_bytes == bytes && w.all_bytes == bytes);
    check_touched(at, bytes);
    munmap(at, bytes);
    close(fd);
}

static void test_nobody_asks(void) {
    kvt_touching nobody = {NULL, NULL};
    void *at = NULL;
    int fd = new_file();
    CHECK_EQ(kvt_touch_reserve(fd, MIB, NULL), 0);
    CHECK_EQ(kvt_touch_reserve(fd, MIB, &nobody), 0);
    CHECK_EQ(kvt_touch_map(fd, MIB, NULL, &at), 0);
    munmap(at, MIB);
    CHECK_EQ(kvt_touch_map(fd, MIB, &nobody, &at), 0);
    munmap(at, MIB);
    close(fd);
}

static void test_stop(void) {
    int fd = new_file(), untouched;
    void *at = &untouched;
    watcher w = {.stop_at = 2};
    kvt_touching touching = {step, &w};
    CHECK_EQ(kvt_touch_reserve(fd, 200 * MIB, &touching), ECANCELED);
    CHECK(w.done_bytes == 128 * MIB && reserved_bytes(fd) == 128 * MIB);
    w = (watcher){.stop_at = 1};
    CHECK_EQ(kvt_touch_map(fd, 128 * MIB, &touching, &at), ECANCELED);
    CHECK(at == &untouched);
    close(fd);
}

static void test_failing(void) {
    void *at = NULL;
    int fd = new_file();
    CHECK_EQ(kvt_touch_reserve(-1, MIB, NULL), EBADF);
    CHECK_EQ(kvt_touch_map(-1, MIB, NULL, &at), EBADF);
    CHECK_EQ(kvt_touch_map(fd, UINT64_C(1) << 60, NULL, &at), ENOMEM);
    CHECK(at == NULL);
    close(fd);
}

/* An arena of which somebody says, at each of its steps, that it is not wanted any more. */
static void test_arena(void) {
    char path[64], why[256];
    kvt_device *device = NULL;
    snprintf(path, sizeof path, "/dev/shm/kvtrunk-test-touch-%d", (int)getpid());
    for (int stop_at = 1; stop_at <= 2; stop_at++) {
        watcher w = {.stop_at = stop_at};
        kvt_device_host_options options = {.path = path,
                                           .mode = 0600,
                                           .gid = UINT32_MAX,
                                           .head_bytes = 4096,
                                           .data_bytes = 20 * MIB,
                                           .touching = {step, &w}};
        CHECK_EQ(kvt_device_host_open(&options, why, sizeof why, &device), KVT_ECANCELED);
        CHECK_MSG(strstr(why, path) && strstr(why, "stopped"), "%s", why);
        CHECK(device == NULL && access(path, F_OK) != 0);
        CHECK_EQ(w.n, stop_at);
    }
}

int main(void) {
    test_all(4096, 1, 1);
    test_all(128 * MIB, 2, 1);
    test_all(130 * MIB + 4096, 3, 2);
    test_nobody_asks();
    test_stop();
    test_failing();
    test_arena();
    puts("test_touch: ok");
    return 0;
}
