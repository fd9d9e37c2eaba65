/*
 * The arena in shared host memory: what opening it leaves behind in each case, who may do what with
 * the file, and that no staging file can do harm.
 *
 * System calls are wrapped by the linker (--wrap), so that the nth of them can be made to fail.
 */
#include "kernels/device.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "tests/check.h"
#include "tests/check_abort.h"

#define KIB         1024
#define MIB         (1024 * KIB)
#define NOBODY      65534
#define HEAD_BYTES  (64 * KIB)
#define DATA_BYTES  (1 * MIB)
#define WHOLE_BYTES (HEAD_BYTES + DATA_BYTES)

static char dir[200];
static char why[400];

/* --- system calls that fail when they are told to ------------------------------------------------
 */

static int fail_at = -1, n_calls, statvfs_lies, n_interrupts, short_reads;

static int fails(int error) {
    errno = error;
    return n_calls++ == fail_at;
}

int __real_fstatvfs(int fd, struct statvfs *fs);
int __wrap_fstatvfs(int fd, struct statvfs *fs);
int __wrap_fstatvfs(int fd, struct statvfs *fs) {
    if (fails(EIO))
        return -1;
    int result = __real_fstatvfs(fd, fs);
    if (statvfs_lies)
        fs->f_bavail = fs->f_blocks = 1 << 30;
    return result;
}

int __real_fchown(int fd, uid_t uid, gid_t gid);
int __wrap_fchown(int fd, uid_t uid, gid_t gid);
int __wrap_fchown(int fd, uid_t uid, gid_t gid) {
    return fails(EPERM) ? -1 : __real_fchown(fd, uid, gid);
}

int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode) {
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC); /* no program that is started meanwhile gets it */
    return fails(EPERM) ? -1 : __real_fchmod(fd, mode);
}

int __real_posix_fallocate(int fd, off_t at, off_t n);
int __wrap_posix_fallocate(int fd, off_t at, off_t n);
int __wrap_posix_fallocate(int fd, off_t at, off_t n) {
    if (n_interrupts > 0) {
        n_interrupts--;
        return EINTR;
    }
    return fails(0) ? ENOSPC : __real_posix_fallocate(fd, at, n);
}

int __real_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st) {
    return fails(EIO) ? -1 : __real_fstat(fd, st);
}

void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    return fails(ENOMEM) ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, offset);
}

ssize_t __real_pread(int fd, void *to, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t offset) {
    if (n_interrupts > 0) {
        n_interrupts--;
        errno = EINTR;
        return -1;
    }
    if (fails(EIO))
        return -1;
    return __real_pread(fd, to, short_reads && n > 1000 ? 1000 : n, offset);
}

/* --- kit ----------------------------------------------------------------------------------------
 */

static const char *path_of(const char *name) {
    static char path[300];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static kvt_device_host_options options_of(const char *path) {
    return (kvt_device_host_options){.path = path,
                                     .mode = 0640,
                                     .gid = UINT32_MAX,
                                     .head_bytes = HEAD_BYTES,
                                     .data_bytes = DATA_BYTES};
}

static kvt_device *open_arena(const char *path) {
    kvt_device_host_options options = options_of(path);
    kvt_device *device = NULL;
    CHECK_MSG(kvt_device_host_open(&options, why, sizeof(why), &device) == KVT_OK, "%s", why);
    return device;
}

/* Expects a refusal that leaves ret_device alone and says something. */
static void refused(const kvt_device_host_options *options, kvt_status expected) {
    kvt_device *device = (kvt_device *)why;
    why[0] = 0;
    kvt_status status = kvt_device_host_open(options, why, sizeof(why), &device);
    CHECK_MSG(status == expected, "status %d, not %d: %s", status, expected, why);
    CHECK(device == (kvt_device *)why && why[0]);
}

static int exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

static uint32_t n_open_files(void) {
    DIR *entries = opendir("/proc/self/fd");
    uint32_t n = 0;
    CHECK(entries);
    while (readdir(entries))
        n++;
    closedir(entries);
    return n;
}

static void make_file(const char *path, size_t bytes) {
    FILE *file = fopen(path, "w");
    CHECK(file);
    for (size_t i = 0; i < bytes; i++)
        fputc((int)(i * 7 % 251), file);
    CHECK(fclose(file) == 0);
}

static uint8_t byte_of(size_t i) {
    return (uint8_t)(i * 7 % 251);
}

/* Waits for a child and passes its verdict on. */
static void join(pid_t child) {
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    CHECK_MSG(WIFEXITED(state) && WEXITSTATUS(state) == 0, "child: %x", (unsigned)state);
}

static void skip(const char *what, const char *reason) {
    printf("SKIPPED: %s: %s\n", what, reason);
}

/* --- opening ------------------------------------------------------------------------------------
 */

static void test_open(void) {
    static const mode_t masks[] = {0, 077, 0777}, modes[] = {0600, 0640, 0644};
    uint32_t n_files = n_open_files();
    for (int i = 0; i < 3; i++) {
        char path[300];
        struct stat st;
        snprintf(path, sizeof(path), "%s", path_of("arena"));
        kvt_device_host_options options = options_of(path);
        kvt_device *device = NULL;
        options.mode = modes[i];
        mode_t before = umask(masks[i]);
        CHECK(kvt_device_host_open(&options, NULL, 0, &device) == KVT_OK);
        umask(before);
        CHECK(lstat(path, &st) == 0 && S_ISREG(st.st_mode));
        CHECK_EQ(st.st_mode & 07777, modes[i]);
        CHECK_EQ(st.st_size, WHOLE_BYTES);
        CHECK((uint64_t)st.st_blocks * 512 >= WHOLE_BYTES); /* reserved, not sparse */
        CHECK(strcmp(device->ops->name, "host") == 0);
        uint8_t *head = device->ops->head(device), *data = device->ops->data(device);
        CHECK(data == head + HEAD_BYTES);
        unsigned char resident[WHOLE_BYTES / 4096];
        CHECK(mincore(head, WHOLE_BYTES, resident) == 0);
        for (size_t k = 0; k < WHOLE_BYTES / 4096; k++)
            CHECK(resident[k] & 1);
        for (size_t k = 0; k < WHOLE_BYTES; k++)
            CHECK(head[k] == 0);
        CHECK_EQ(n_open_files(), n_files);
        device->ops->close(device);
        CHECK(!exists(path));
        CHECK(mincore(head, WHOLE_BYTES, resident) != 0 && errno == ENOMEM); /* unmapped */
    }
}

static void test_options(void) {
    const char *path = path_of("arena");
    kvt_device_host_options o = options_of(NULL);
    refused(&o, KVT_EINVAL);
    o.path = "";
    refused(&o, KVT_EINVAL);
    o = options_of(path);
    o.data_bytes = 0;
    refused(&o, KVT_EINVAL);
    o.data_bytes = UINT64_MAX;
    refused(&o, KVT_EINVAL);
    o.head_bytes = o.data_bytes = UINT64_C(1) << 63;
    refused(&o, KVT_EINVAL);
    static const uint32_t bad_modes[] = {0660, 0642, 01640, 04600, 0777};
    for (int i = 0; i < 5; i++) {
        o = options_of(path);
        o.mode = bad_modes[i];
        refused(&o, KVT_EINVAL);
    }
    CHECK(!exists(path));
    o = options_of("/nonexistent/arena");
    refused(&o, KVT_EIO);
    CHECK(strstr(why, "/nonexistent/arena"));
}

/* What stands at the path stays as it is: file, link, dangling link, folder. */
static void test_exists(void) {
    char path[300], target[300];
    snprintf(path, sizeof(path), "%s", path_of("arena"));
    snprintf(target, sizeof(target), "%s", path_of("target"));
    kvt_device_host_options o = options_of(path);
    struct stat st;
    make_file(path, 1234);
    refused(&o, KVT_EEXIST);
    CHECK(lstat(path, &st) == 0 && st.st_size == 1234);
    CHECK(unlink(path) == 0);
    for (int dangling = 0; dangling <= 1; dangling++) {
        if (!dangling)
            make_file(target, 99);
        CHECK(symlink(target, path) == 0);
        refused(&o, KVT_EEXIST);
        CHECK(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
        CHECK(exists(target) == !dangling);
        CHECK(dangling || (stat(target, &st) == 0 && st.st_size == 99));
        CHECK(unlink(path) == 0);
        unlink(target);
    }
    CHECK(mkdir(path, 0700) == 0);
    refused(&o, KVT_EEXIST);
    CHECK(rmdir(path) == 0);
    kvt_device *device = open_arena(path); /* a second arena at the place of the first */
    refused(&o, KVT_EEXIST);
    CHECK(exists(path));
    device->ops->close(device);
}

/* Whichever system call fails, nothing is left: no file, no descriptor, no mapping, no memory. */
static void test_calls_fail(void) {
    char path[300];
    snprintf(path, sizeof(path), "%s", path_of("arena"));
    uint32_t n_files = n_open_files(), n_failed = 0;
    for (int n = 0;; n++) {
        kvt_device_host_options o = options_of(path);
        o.gid = getgid();
        kvt_device *device = NULL;
        n_calls = 0;
        fail_at = n;
        kvt_status status = kvt_device_host_open(&o, why, sizeof(why), &device);
        fail_at = -1;
        CHECK_EQ(n_open_files(), n_files);
        if (status == KVT_OK) {
            device->ops->close(device);
            break;
        }
        CHECK(device == NULL && !exists(path));
        CHECK(status == KVT_EIO || status == KVT_EFULL || status == KVT_ENOMEM);
        n_failed++;
    }
    CHECK_MSG(n_failed >= 6, "%u calls were made to fail", n_failed);
    n_interrupts = 5; /* a signal is no failure */
    kvt_device *device = open_arena(path);
    CHECK_EQ(n_interrupts, 0);
    device->ops->close(device);
}

/* --- no room ------------------------------------------------------------------------------------
 */

/* In a file system of 1 MiB: refused before anything is taken; and if the room goes between looking
 * and taking, what was taken is given back. */
static void no_room_in_child(void) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", dir, "tmpfs", 0, "size=1m") != 0)
        _exit(77);
    char path[300];
    struct statvfs before, after;
    snprintf(path, sizeof(path), "%s", path_of("arena"));
    kvt_device_host_options o = options_of(path);
    CHECK(statvfs(dir, &before) == 0);
    refused(&o, KVT_EFULL);
    CHECK(strstr(why, "1114112") && strstr(why, "1048576") && strstr(why, path));
    CHECK(!exists(path));
    statvfs_lies = 1;
    refused(&o, KVT_EFULL);
    CHECK(!exists(path));
    statvfs_lies = 0;
    CHECK(statvfs(dir, &after) == 0 && after.f_bfree == before.f_bfree);
    o.data_bytes = MIB - HEAD_BYTES; /* all there is */
    kvt_device *device = NULL;
    CHECK_MSG(kvt_device_host_open(&o, why, sizeof(why), &device) == KVT_OK, "%s", why);
    memset(device->ops->data(device), 1, o.data_bytes);
    device->ops->close(device);
    _exit(0);
}

static void test_no_room(void) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        no_room_in_child();
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    if (WIFEXITED(state) && WEXITSTATUS(state) == 77)
        skip("a full file system", "this process may not mount a small one");
    else
        CHECK_MSG(WIFEXITED(state) && WEXITSTATUS(state) == 0, "child: %x", (unsigned)state);
    /* Far more than any file system has: at once, without a byte taken. */
    kvt_device_host_options o = options_of(path_of("arena"));
    o.data_bytes = UINT64_C(1) << 60;
    refused(&o, KVT_EFULL);
    CHECK(!exists(o.path));
    /* Over the limit of a process's files: a refusal, not SIGXFSZ. */
    pid_t limited = fork();
    CHECK(limited >= 0);
    if (limited == 0) {
        struct rlimit limit = {MIB, MIB};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        o = options_of(path_of("arena"));
        refused(&o, KVT_EFULL);
        CHECK(strstr(why, "1048576") && !exists(o.path));
        _exit(0);
    }
    join(limited);
}

/* --- who may do what ----------------------------------------------------------------------------
 */

static void as_nobody(const char *path, gid_t gid, int may_read) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(setgroups(0, NULL) == 0 && setresgid(gid, gid, gid) == 0);
        CHECK(setresuid(NOBODY, NOBODY, NOBODY) == 0);
        CHECK(open(path, O_RDWR) < 0 && errno == EACCES);
        CHECK(open(path, O_WRONLY) < 0 && errno == EACCES);
        int fd = open(path, O_RDONLY);
        CHECK((fd >= 0) == may_read && (may_read || errno == EACCES));
        if (may_read) {
            CHECK(__real_mmap(NULL, WHOLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) ==
                      MAP_FAILED &&
                  errno == EACCES);
            uint8_t *at = __real_mmap(NULL, WHOLE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
            CHECK(at != MAP_FAILED && at[HEAD_BYTES] == 42);
            CHECK(mprotect(at, WHOLE_BYTES, PROT_READ | PROT_WRITE) != 0 && errno == EACCES);
            CHECK(ftruncate(fd, 0) != 0);
        }
        _exit(0);
    }
    join(child);
}

static void test_other_uid(void) {
    if (geteuid() != 0) {
        skip("files of another uid", "needs root");
        return;
    }
    char path[300];
    snprintf(path, sizeof(path), "%s", path_of("arena"));
    CHECK(chmod(dir, 0755) == 0);
    for (int own_group = 0; own_group <= 1; own_group++) {
        kvt_device_host_options o = options_of(path);
        o.gid = own_group ? 54321 : UINT32_MAX;
        kvt_device *device = NULL;
        struct stat st;
        CHECK_MSG(kvt_device_host_open(&o, why, sizeof(why), &device) == KVT_OK, "%s", why);
        CHECK(stat(path, &st) == 0 && st.st_gid == (own_group ? 54321 : getegid()));
        CHECK_EQ(st.st_mode & 07777, 0640);
        *(uint8_t *)device->ops->data(device) = 42;
        as_nobody(path, 54321, own_group);
        as_nobody(path, NOBODY, 0);
        device->ops->close(device);
    }
}

/* A reader that has it mapped keeps its bytes when the arena is closed, and the name is gone. */
static void test_reader_outlives(void) {
    char path[300], byte = 0;
    snprintf(path, sizeof(path), "%s", path_of("arena"));
    kvt_device *device = open_arena(path);
    uint8_t *data = device->ops->data(device);
    for (size_t i = 0; i < DATA_BYTES; i++)
        data[i] = byte_of(i);
    int to_child[2], to_parent[2];
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        const uint8_t *at = __real_mmap(NULL, WHOLE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(fd >= 0 && at != MAP_FAILED);
        CHECK(write(to_parent[1], "r", 1) == 1 && read(to_child[0], &byte, 1) == 1);
        CHECK(!exists(path));
        for (size_t i = 0; i < DATA_BYTES; i++)
            CHECK(at[HEAD_BYTES + i] == byte_of(i));
        _exit(0);
    }
    CHECK(read(to_parent[0], &byte, 1) == 1);
    device->ops->close(device);
    CHECK(write(to_child[1], "c", 1) == 1);
    join(child);
    for (int i = 0; i < 2; i++) {
        close(to_child[i]);
        close(to_parent[i]);
    }
}

/* Closing removes its own file, not what somebody else has put at that name since. */
static void test_close(void) {
    char path[300];
    struct stat st;
    snprintf(path, sizeof(path), "%s", path_of("arena"));
    kvt_device *device = open_arena(path);
    const kvt_device_ops *ops = device->ops;
    ops->close(NULL);
    CHECK(unlink(path) == 0);
    make_file(path, 17);
    ops->close(device);
    CHECK(stat(path, &st) == 0 && st.st_size == 17);
    CHECK(unlink(path) == 0);
    device = open_arena(path);
    CHECK(unlink(path) == 0);
    ops->close(device);
}

/* --- moving bytes -------------------------------------------------------------------------------
 */

static void test_write_file(void) {
    char staging[300];
    enum { STAGING_BYTES = 300000 };
    kvt_device *d = open_arena(path_of("arena"));
    const kvt_device_ops *ops = d->ops;
    uint8_t *data = ops->data(d);
    snprintf(staging, sizeof(staging), "%s", path_of("staging"));
    make_file(staging, STAGING_BYTES);
    int fd = open(staging, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    for (int kind = 0; kind < 3; kind++) { /* plainly, interrupted, and in small pieces */
        n_interrupts = kind == 1 ? 3 : 0;
        short_reads = kind == 2;
        memset(data, 0xee, DATA_BYTES);
        CHECK(ops->write_file(d, 640, fd, 1001, 200001) == KVT_OK);
        CHECK(n_interrupts == 0);
        CHECK(data[639] == 0xee && data[640 + 200001] == 0xee);
        for (size_t i = 0; i < 200001; i++)
            CHECK(data[640 + i] == byte_of(1001 + i));
    }
    short_reads = 0;
    /* To the last byte of the file and of the data; one more is not there. */
    CHECK(ops->write_file(d, DATA_BYTES - 64, fd, STAGING_BYTES - 64, 64) == KVT_OK);
    CHECK(ops->write_file(d, DATA_BYTES, fd, 0, 0) == KVT_OK);
    CHECK(ops->write_file(d, 0, fd, STAGING_BYTES - 64, 65) == KVT_EIO);
    CHECK(ops->write_file(d, 0, fd, UINT64_MAX, 64) == KVT_EIO);
    CHECK(ops->write_file(d, 0, fd, INT64_MAX - 10, 64) == KVT_EIO);
    CHECK(ops->write_file(d, 0, -1, 0, 64) == KVT_EIO);
    int ends[2]; /* no file at all */
    CHECK(pipe(ends) == 0);
    CHECK(ops->write_file(d, 0, ends[0], 0, 64) == KVT_EIO);
    close(ends[0]);
    close(ends[1]);
    n_calls = 0;
    fail_at = 1;
    short_reads = 1;
    CHECK(ops->write_file(d, 0, fd, 0, 5000) == KVT_EIO);
    fail_at = -1;
    short_reads = 0;
    /* Cut short by its owner. */
    CHECK(ftruncate(fd, 1000) == 0);
    CHECK(ops->write_file(d, 0, fd, 0, 4096) == KVT_EIO);
    CHECK(ftruncate(fd, 0) == 0);
    CHECK(ops->write_file(d, 0, fd, 0, 1) == KVT_EIO);
    close(fd);
    unlink(staging);
    ops->close(d);
}

/* A page of several pieces: taken whole if it is right, refused wherever one bit is not. */
static void test_write_file_page(void) {
    enum { AT = 640, FROM = 1001, N_FLIPS = 200 };
    static uint16_t kv[6 * 64 * 8 * 64];
    char staging[300];
    kvt_geometry g;
    kvt_page_shape shape;
    kvt_layout layout;
    uint64_t random = 7;
    uint32_t rows = 0;
    size_t bytes;
    kvt_device *d = open_arena(path_of("arena"));
    uint8_t *data = d->ops->data(d);
    kvt_geometry_init(&g, 6, 8, 64, 64);
    CHECK_EQ(kvt_page_shape_init(&g, 0, "f16", NULL, 0, &shape), KVT_OK);
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++)
        kv[i] = (uint16_t)check_random(&random);
    kvt_layout_head_major(&g, 64, kv, kv, &layout);
    size_t room = kvt_page_bytes(&shape, 50);
    uint8_t *page = aligned_alloc(64, room);
    CHECK(page && kvt_page_encode(&shape, 50, &layout, page, room, &bytes) == KVT_OK);
    CHECK(bytes > 2 * 256 * 1024 && bytes < DATA_BYTES - AT);
    snprintf(staging, sizeof(staging), "%s", path_of("staging"));
    make_file(staging, FROM);
    int fd = open(staging, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, page, bytes, FROM) == (ssize_t)bytes);
    CHECK_EQ(d->ops->write_file_page(d, &shape, AT, fd, FROM, bytes, &rows), KVT_OK);
    CHECK(rows == 50 && memcmp(data + AT, page, bytes) == 0);
    for (int i = 0; i < N_FLIPS; i++) {
        size_t at = check_below(&random, (uint32_t)(i % 2 ? bytes : 192));
        uint8_t right = page[at], wrong = (uint8_t)(right ^ 1u << check_below(&random, 8));
        CHECK(pwrite(fd, &wrong, 1, (off_t)(FROM + at)) == 1);
        kvt_status status = d->ops->write_file_page(d, &shape, AT, fd, FROM, bytes, &rows);
        CHECK_MSG(status != KVT_OK && status != KVT_EIO, "byte %zu: %d", at, (int)status);
        CHECK(pwrite(fd, &right, 1, (off_t)(FROM + at)) == 1);
    }
    CHECK_EQ(d->ops->write_file_page(d, &shape, AT, fd, FROM, 0, &rows), KVT_ECORRUPT);
    CHECK_EQ(d->ops->write_file_page(d, &shape, AT, fd, FROM, 64, &rows), KVT_ECORRUPT);
    CHECK_EQ(d->ops->write_file_page(d, &shape, AT, fd, UINT64_MAX, bytes, &rows), KVT_EIO);
    CHECK(ftruncate(fd, (off_t)(FROM + bytes - 1)) == 0);
    CHECK_EQ(d->ops->write_file_page(d, &shape, AT, fd, FROM, bytes, &rows), KVT_EIO);
    close(fd);
    unlink(staging);
    free(page);
    d->ops->close(d);
}

/* A worker that cuts its file short and lengthens it all the time: the bytes, or KVT_EIO. */
static void test_truncating_worker(void) {
    char staging[300];
    kvt_device *d = open_arena(path_of("arena"));
    snprintf(staging, sizeof(staging), "%s", path_of("staging"));
    make_file(staging, DATA_BYTES);
    int fd = open(staging, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (;;) {
            if (ftruncate(fd, 4096) != 0 || ftruncate(fd, DATA_BYTES) != 0)
                _exit(1);
        }
    }
    for (int i = 0; i < 300; i++) {
        kvt_status status = d->ops->write_file(d, 0, fd, 0, DATA_BYTES);
        CHECK(status == KVT_OK || status == KVT_EIO);
    }
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    close(fd);
    unlink(staging);
    d->ops->close(d);
}

static void test_copy_and_read(void) {
    kvt_device *d = open_arena(path_of("arena"));
    const kvt_device_ops *ops = d->ops;
    uint8_t *data = ops->data(d), out[100];
    for (size_t i = 0; i < 1000; i++)
        data[i] = byte_of(i);
    CHECK(ops->copy(d, 1000, 0, 1000) == KVT_OK); /* side by side, both ways */
    CHECK(ops->copy(d, 2000, 1000, 1000) == KVT_OK);
    CHECK(ops->copy(d, 1000, 2000, 1000) == KVT_OK);
    for (size_t i = 0; i < 3000; i++)
        CHECK(data[i] == byte_of(i % 1000));
    CHECK(data[3000] == 0);
    CHECK(ops->read(d, 1007, out, sizeof(out)) == KVT_OK);
    CHECK(memcmp(out, data + 7, sizeof(out)) == 0);
    CHECK_ABORTS(ops->copy(d, 999, 0, 1000));
    CHECK_ABORTS(ops->copy(d, 0, 999, 1000));
    CHECK_ABORTS(ops->copy(d, 0, DATA_BYTES - 10, 11));
    CHECK_ABORTS(ops->copy(d, DATA_BYTES - 10, 0, 11));
    CHECK_ABORTS(ops->read(d, DATA_BYTES - 99, out, sizeof(out)));
    CHECK_ABORTS(ops->read(d, UINT64_MAX - 9, out, 10));
    CHECK_ABORTS(ops->write_file(d, DATA_BYTES, 0, 0, 1));
    CHECK_ABORTS(ops->write_file(d, 1, 0, 0, UINT64_MAX));
    ops->close(d);
}

int main(void) {
    snprintf(dir, sizeof(dir), "/dev/shm/kvtrunk-test-XXXXXX");
    if (!mkdtemp(dir)) {
        snprintf(dir, sizeof(dir), "/tmp/kvtrunk-test-XXXXXX");
        CHECK(mkdtemp(dir));
    }
    test_open();
    test_options();
    test_exists();
    test_calls_fail();
    test_no_room();
    test_other_uid();
    test_reader_outlives();
    test_close();
    test_write_file();
    test_write_file_page();
    test_truncating_worker();
    test_copy_and_read();
    CHECK(rmdir(dir) == 0); /* nothing was left in it */
    return 0;
}
