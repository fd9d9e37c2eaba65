/*
 * kernels/device_cuda.c: bytes go where they should and nowhere else, by several threads at once;
 * each failure is an answer and leaves nothing behind; another process opens the data. On a GPU it
 * runs as it is, but for what only the fake can do.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda_handles.h"
#include "kernels/device_cuda.h"
#include "kernels/device_many.h"
#include "tests/cuda/kit.h"
#ifndef KVT_REAL_CUDA
#include "tests/cuda/fake_cuda.h"
#endif

enum {
    HEAD_BYTES = 8192,
    DATA_BYTES = 3 << 20,
    BOUNCE_BYTES = 64 << 10, /* a half holds 32 KiB: most copies take several */
    N_THREADS = 6,           /* more than movers */
    AREA_BYTES = 200000,
    PAGE_AT = 100096, /* where a page is put; a multiple of 64 */
};

static char path[64], staging[64];
static uint64_t seed = 42;

static kvt_device_cuda_options usual(void) {
    kvt_device_cuda_options options = {.path = path,
                                       .mode = 0640,
                                       .gid = UINT32_MAX,
                                       .head_bytes = HEAD_BYTES,
                                       .data_bytes = DATA_BYTES,
                                       .bounce_bytes = BOUNCE_BYTES};
    return options;
}

static kvt_device *open_usual(void) {
    kvt_device_cuda_options options = usual();
    kvt_device *device = NULL;
    char why[200] = "";
    kvt_status status = kvt_device_cuda_open(&options, why, sizeof why, &device);
    CHECK_MSG(status == KVT_OK, "%s", why);
    return device;
}

static uint8_t *random_bytes(size_t n) {
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)check_random(&seed);
    return bytes;
}

/* A worker's staging file with these bytes, opened for reading; its name is gone. */
static int staging_of(const uint8_t *bytes, size_t n) {
    int fd = open(staging, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    unlink(staging);
    CHECK(write(fd, bytes, n) == (ssize_t)n);
    return fd;
}

/* An encoded page of random numbers. */
static size_t page_of(kvt_page_shape *ret_shape, uint8_t **ret_page) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 2, 64, 16);
    CHECK_EQ(kvt_page_shape_init(&g, 0, "i8", NULL, 0, ret_shape), KVT_OK);
    kv_kit kit = kv_new(&g, 2, 16, KV_TOKEN_MAJOR);
    kit_fill(&kit, KIT_CHANNELS, &seed);
    size_t room = kvt_page_max_bytes(ret_shape), bytes = 0;
    *ret_page = page_new(room);
    CHECK_EQ(kvt_page_encode(ret_shape, 13, &kit.layout, *ret_page, room, &bytes), KVT_OK);
    kv_free(&kit);
    return bytes;
}

/* What the GPU says of a page is what the host says. */
static void test_check(void) {
    kvt_device *d = open_usual();
    kvt_page_shape shape, other;
    uint8_t *page;
    size_t bytes = page_of(&shape, &page);
    uint32_t rows = 0;
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 2, 80, 16);
    CHECK_EQ(kvt_page_shape_init(&g, 0, "i8", NULL, 0, &other), KVT_OK);
    for (int i = 0; i < 4; i++) {
        static const int places[] = {-1, 30, 200, 0};
        int at = places[i] == 0 ? (int)bytes - 1 : places[i];
        if (at >= 0)
            page[at] ^= 2;
        int fd = staging_of(page, bytes);
        CHECK_EQ(d->ops->write_file(d, PAGE_AT, fd, 0, bytes), KVT_OK);
        close(fd);
        CHECK_EQ(d->ops->check(d, &shape, PAGE_AT, bytes, &rows), at < 0 ? KVT_OK : KVT_ECORRUPT);
        if (at >= 0)
            page[at] ^= 2;
        else
            CHECK_EQ(d->ops->check(d, &other, PAGE_AT, bytes, &rows),
                     kvt_page_check(&other, page, bytes, 1, &rows));
    }
    CHECK_EQ(rows, 13);
    CHECK_EQ(d->ops->check(d, &shape, 0, bytes, &rows), KVT_ECORRUPT);
    CHECK(d->ops->failure(d) == NULL);
    free(page);
    d->ops->close(d);
}

static void test_open(void) {
    kvt_device *d = open_usual();
    CHECK(strcmp(d->ops->name, "cuda") == 0 && d->ops->data(d) == NULL);
    struct stat st;
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0640 && st.st_size == HEAD_BYTES);
    uint8_t *head = d->ops->head(d);
    for (int i = 0; i < HEAD_BYTES; i++)
        CHECK_EQ(head[i], 0);
    head[5000] = 7; /* as a reader sees it */
    int fd = open(path, O_RDONLY);
    uint8_t byte = 0;
    CHECK(pread(fd, &byte, 1, 5000) == 1 && byte == 7);
    close(fd);
    uint8_t *data = malloc(DATA_BYTES);
    memset(data, 0xff, DATA_BYTES);
    CHECK_EQ(d->ops->read(d, 0, data, DATA_BYTES), KVT_OK);
    for (int i = 0; i < DATA_BYTES; i++)
        CHECK_EQ(data[i], 0);
    free(data);
    const kvt_device_ops *ops = d->ops;
    ops->close(d);
    CHECK(stat(path, &st) != 0 && errno == ENOENT);
    ops->close(NULL);
}

/* Random writes, copies and reads against a model in host memory. */
static void test_model(void) {
    enum { FILE_BYTES = 300000, STEPS = 300 };
    kvt_device *d = open_usual();
    uint8_t *model = calloc(1, DATA_BYTES), *file = random_bytes(FILE_BYTES);
    uint8_t *got = malloc(DATA_BYTES);
    int fd = staging_of(file, FILE_BYTES);
    for (int step = 0; step < STEPS; step++) {
        uint32_t n = check_below(&seed, step % 3 ? 200000 : 300);
        uint32_t at = check_below(&seed, DATA_BYTES / 2 - n), from = check_below(&seed, 100000);
        switch (check_below(&seed, 3)) {
        case 0:
            CHECK_EQ(d->ops->write_file(d, at, fd, from, n), KVT_OK);
            memcpy(model + at, file + from, n);
            break;
        case 1:
            CHECK_EQ(d->ops->copy(d, DATA_BYTES / 2 + from, at, n), KVT_OK);
            memcpy(model + DATA_BYTES / 2 + from, model + at, n);
            break;
        default:
            CHECK_EQ(d->ops->read(d, at, got, n), KVT_OK);
            CHECK_MSG(memcmp(got, model + at, n) == 0, "step %d", step);
        }
    }
    CHECK_EQ(d->ops->read(d, 0, got, DATA_BYTES), KVT_OK);
    CHECK(memcmp(got, model, DATA_BYTES) == 0);
    close(fd);
    free(model);
    free(file);
    free(got);
    d->ops->close(d);
}

static void test_bad_files(void) {
    kvt_device *d = open_usual();
    uint8_t *bytes = random_bytes(100000), got[100];
    int fd = staging_of(bytes, 100000);
    CHECK_EQ(d->ops->write_file(d, 0, fd, 1, 100000), KVT_EIO);
    CHECK_EQ(d->ops->write_file(d, 0, fd, 100000, 1), KVT_EIO);
    CHECK_EQ(d->ops->write_file(d, 0, fd, UINT64_MAX - 5, 4), KVT_EIO);
    CHECK_EQ(d->ops->write_file(d, 0, fd, INT64_MAX - 5, 10), KVT_EIO);
    CHECK_EQ(d->ops->write_file(d, 0, -1, 0, 10), KVT_EIO);
    CHECK_EQ(d->ops->write_file(d, 10, fd, 99900, 100), KVT_OK);
    CHECK_EQ(d->ops->read(d, 10, got, 100), KVT_OK);
    CHECK(memcmp(got, bytes + 99900, 100) == 0);
    CHECK_EQ(d->ops->write_file(d, DATA_BYTES, fd, 0, 0), KVT_OK);
    close(fd);
    free(bytes);
    d->ops->close(d);
}

/* ------------------------------------------------------------------------------------------------
 * Threads
 * ---------------------------------------------------------------------------------------------- */

typedef struct job {
    kvt_device *device;
    uint32_t number;
    int fd;
    const uint8_t *file;
} job;

/* Each thread in a share of its own: writes, copies within it, reads. */
static void *work(void *argument) {
    enum { SHARE = DATA_BYTES / N_THREADS, HALF = SHARE / 2 };
    const job *j = argument;
    kvt_device *d = j->device;
    uint64_t start = (uint64_t)j->number * SHARE;
    uint8_t *got = malloc(HALF);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t from = (j->number * 1000 + i * 77) % 1000;
        CHECK_EQ(d->ops->write_file(d, start, j->fd, from, HALF), KVT_OK);
        CHECK_EQ(d->ops->copy(d, start + HALF, start, HALF), KVT_OK);
        CHECK_EQ(d->ops->read(d, start + HALF, got, HALF), KVT_OK);
        CHECK(memcmp(got, j->file + from, HALF) == 0);
    }
    free(got);
    return NULL;
}

static void test_threads(void) {
    kvt_device *d = open_usual();
    uint8_t *file = random_bytes(DATA_BYTES);
    int fd = staging_of(file, DATA_BYTES);
    pthread_t threads[N_THREADS];
    job jobs[N_THREADS];
    for (uint32_t i = 0; i < N_THREADS; i++) {
        job j = {d, i, fd, file};
        jobs[i] = j;
        CHECK(pthread_create(&threads[i], NULL, work, &jobs[i]) == 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    close(fd);
    free(file);
    d->ops->close(d);
}

/* ------------------------------------------------------------------------------------------------
 * Failures
 * ---------------------------------------------------------------------------------------------- */

static void expect_open(kvt_device_cuda_options options, kvt_status status, const char *word) {
    kvt_device *device = NULL;
    char why[200] = "";
    CHECK_MSG(kvt_device_cuda_open(&options, why, sizeof why, &device) == status, "%s", why);
    CHECK_MSG(strstr(why, word), "'%s' does not say '%s'", why, word);
    CHECK_EQ(kvt_device_cuda_open(&options, NULL, 0, &device), status);
    CHECK(device == NULL);
}

static void test_bad_options(void) {
    kvt_device_cuda_options options = usual();
    options.data_bytes = 0;
    expect_open(options, KVT_EINVAL, "make no arena");
    options = usual();
    options.n_movers = 65;
    expect_open(options, KVT_EINVAL, "65 movers");
    options = usual();
    options.gpu = 900;
    expect_open(options, KVT_EINVAL, "900");
    options = usual();
    options.data_bytes = UINT64_C(1) << 60;
    expect_open(options, KVT_EFULL, "free");
    options = usual();
    options.mode = 0666;
    expect_open(options, KVT_EINVAL, "0666");
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    expect_open(usual(), KVT_EEXIST, path);
    close(fd);
    unlink(path);
}

/* A page cools on the GPU to the bytes that the host makes of it, or says why not. */
static void test_transcode(void) {
    enum { TO_AT = 1 << 20 };
    kvt_device *d = open_usual();
    kvt_page_shape shape, cooler;
    kvt_geometry g;
    uint8_t *page;
    size_t bytes = page_of(&shape, &page), n;
    kvt_geometry_init(&g, 2, 2, 64, 16);
    CHECK_EQ(kvt_page_shape_init(&g, 0, "i4", NULL, 0, &cooler), KVT_OK);
    size_t room = kvt_page_max_bytes(&cooler);
    uint8_t *expected = page_new(room), *got = malloc(room);
    void *elements = aligned_alloc(64, (kvt_page_elements_bytes(&shape) + 63) / 64 * 64);
    for (int is_first = 0; is_first < 2; is_first++) {
        CHECK_EQ(kvt_page_transcode(&cooler, page, bytes, is_first, elements, expected, room, &n),
                 KVT_OK);
        kvt_device_cooling c = {&shape, &cooler, PAGE_AT, bytes, TO_AT, n, 13, is_first};
        CHECK_EQ(d->ops->write(d, PAGE_AT, page, bytes), KVT_OK);
        CHECK_EQ(d->ops->transcode(d, &c), KVT_OK);
        CHECK_EQ(d->ops->read(d, TO_AT, got, n), KVT_OK);
        CHECK(memcmp(got, expected, n) == 0);
        c.to_bytes = n + 64;
        CHECK_EQ(d->ops->transcode(d, &c), KVT_ELIMIT);
        c.to_bytes = n - 64;
        CHECK_EQ(d->ops->transcode(d, &c), KVT_ELIMIT);
        c.to_bytes = n;
        c.rows = 12;
        CHECK_EQ(d->ops->transcode(d, &c), KVT_ECORRUPT);
        c.rows = 13;
        page[bytes - 1] ^= 1;
        CHECK_EQ(d->ops->write(d, PAGE_AT, page, bytes), KVT_OK);
        CHECK_EQ(d->ops->transcode(d, &c), KVT_ECORRUPT);
        page[bytes - 1] ^= 1;
        CHECK_EQ(d->ops->write(d, PAGE_AT, expected, n), KVT_OK);
        c.from_shape = &cooler;
        c.from_bytes = n;
        CHECK_EQ(d->ops->transcode(d, &c), KVT_ENOTSUP); /* codes of few bits, coded once more */
    }
    free(page);
    free(expected);
    free(got);
    free(elements);
    d->ops->close(d);
}

#ifndef KVT_REAL_CUDA
/* Opens, writes, copies and reads, with call n of the runtime failing. Returns whether all went
 * well. */
static int one_life(const kvt_page_shape *shape, size_t page_bytes, int fd, uint8_t *got) {
    uint32_t rows = 0;
    kvt_device_cuda_options options = usual();
    kvt_device *d = NULL;
    options.n_movers = 2;
    options.data_bytes = 200000;
    kvt_status status = kvt_device_cuda_open(&options, NULL, 0, &d);
    if (status != KVT_OK) {
        CHECK(d == NULL);
        return 0;
    }
    int ok = d->ops->write_file(d, 0, fd, 0, 100000) == KVT_OK &&
             d->ops->copy(d, 100000, 0, 100000) == KVT_OK &&
             d->ops->read(d, 100000, got, 100000) == KVT_OK &&
             d->ops->check(d, shape, 0, page_bytes, &rows) == KVT_OK && rows == 13;
    CHECK(d->ops->failure(d) == NULL); /* one call failed, and the next did not */
    d->ops->close(d);
    return ok;
}

static void test_failing_calls(void) {
    unsigned live = fake_cuda_live();
    uint8_t *bytes = random_bytes(100000), *got = malloc(100000), *page;
    kvt_page_shape shape;
    size_t page_bytes = page_of(&shape, &page);
    memcpy(bytes, page, page_bytes);
    free(page);
    int fd = staging_of(bytes, 100000), n_failed = 0;
    struct stat st;
    for (uint64_t n = 1;; n++) {
        fake_cuda_fail_call(n);
        memset(got, 0, 100000);
        int ok = one_life(&shape, page_bytes, fd, got), reached = fake_cuda_calls() >= n;
        n_failed += !ok;
        CHECK_MSG(!ok || memcmp(got, bytes, 100000) == 0, "wrong bytes, call %d", (int)n);
        CHECK_MSG(fake_cuda_live() == live, "call %d leaves something", (int)n);
        CHECK_MSG(stat(path, &st) != 0, "call %d leaves the file", (int)n);
        if (!reached) {
            CHECK(ok);
            break;
        }
    }
    fake_cuda_fail_call(0);
    CHECK_MSG(n_failed > 30, "only %d calls failed", n_failed);
    close(fd);
    free(bytes);
    free(got);
    fake_cuda_set_devices(0);
    expect_open(usual(), KVT_ENOTSUP, "no CUDA device");
    fake_cuda_set_devices(1);
}

/* Does one thing that the daemon's jobs do, of which each may be the only thing that is asked. */
static void one_thing(kvt_device *d, int which, const kvt_page_shape *shape, size_t page_bytes,
                      int fd) {
    static uint8_t bytes[40000];
    uint32_t rows;
    kvt_staged *staged;
    kvt_wire_memory memory = {
        .magic = KVT_MEMORY_MAGIC, .kind = KVT_MEMORY_CUDA, .bytes = 64, .bus_id = "0000:01:00.0"};
    switch (which) {
    case 0:
        d->ops->write_file(d, 0, fd, 0, page_bytes);
        break;
    case 1:
        d->ops->copy(d, 100000, 0, 40000);
        break;
    case 2:
        d->ops->write(d, 0, bytes, sizeof bytes);
        break;
    case 3:
        d->ops->read(d, 0, bytes, sizeof bytes);
        break;
    case 4:
        d->ops->check(d, shape, 0, page_bytes, &rows);
        break;
    default: /* such a handle opens nothing, which is no failure of the GPU */
        CHECK(d->ops->stage(d, &memory, &staged) != KVT_OK);
    }
}

typedef struct stuck_call {
    kvt_device *device;
    kvt_status status;
} stuck_call;

static void *write_a_byte(void *argument) {
    stuck_call *c = argument;
    c->status = c->device->ops->write(c->device, 0, "x", 1);
    return NULL;
}

/* A GPU that does not get on with what it was given: its caller is held, so somebody else tells. */
static void test_stuck(void) {
    kvt_device_cuda_options options = usual();
    kvt_device *d;
    pthread_t thread;
    options.limit_ms = 20;
    CHECK_EQ(kvt_device_cuda_open(&options, NULL, 0, &d), KVT_OK);
    stuck_call call = {d, KVT_EINVAL};
    CHECK_EQ(d->ops->write(d, 0, "y", 1), KVT_OK);
    CHECK(!d->ops->failure(d)); /* however long ago that was */
    fake_cuda_hang(1);
    CHECK(pthread_create(&thread, NULL, write_a_byte, &call) == 0);
    while (!d->ops->failure(d))
        sched_yield();
    CHECK_MSG(strstr(d->ops->failure(d), "in 20 ms"), "%s", d->ops->failure(d));
    fake_cuda_hang(0);
    pthread_join(thread, NULL);
    CHECK_EQ(call.status, KVT_OK);
    CHECK(d->ops->failure(d)); /* for good */
    d->ops->close(d);
}

/* Nobody takes a core while he waits for the GPU. */
static void test_no_spin(void) {
    kvt_page_shape shape;
    uint8_t *page;
    size_t page_bytes = page_of(&shape, &page);
    int fd = staging_of(page, page_bytes);
    kvt_device *d = open_usual();
    uint64_t before = fake_cuda_spins();
    for (int which = 0; which < 6; which++)
        one_thing(d, which, &shape, page_bytes, fd);
    CHECK_EQ(fake_cuda_spins(), before);
    d->ops->close(d);
    close(fd);
    free(page);
}

/* A GPU that is lost is noticed by whatever is asked of it next, at whichever of its calls. */
static void test_lost(void) {
    kvt_page_shape shape;
    uint8_t *page;
    size_t page_bytes = page_of(&shape, &page);
    int fd = staging_of(page, page_bytes);
    unsigned live = fake_cuda_live();
    for (int which = 0; which < 6; which++) {
        int reached = 1;
        for (uint64_t n = 1; reached; n++) {
            kvt_device *d = open_usual();
            fake_cuda_lose_at(n);
            one_thing(d, which, &shape, page_bytes, fd);
            reached = fake_cuda_calls() >= n;
            CHECK_MSG(reached == (d->ops->failure(d) != NULL), "thing %d, lost at call %d: %s",
                      which, (int)n, d->ops->failure(d) ? d->ops->failure(d) : "not noticed");
            fake_cuda_lose_at(0);
            d->ops->close(d);
        }
    }
    CHECK_EQ(fake_cuda_live(), live);
    close(fd);
    free(page);
}

/* Runs between the data and pinned memory, in one go: of pages that a kernel copies, of large ones,
 * and of such that no page is. `apart`: of every second one in the data. */
static void test_move(kvt_device *d, uint64_t apart) {
    enum { N = 10, MOST = 200000 };
    static const uint32_t sizes[] = {8192, 96, MOST, 65536, 333};
    kvt_device_run runs[N];
    unsigned live = fake_cuda_live();
    uint8_t *host = aligned_alloc(4096, 1 << 22), *sent = random_bytes(N * MOST);
    for (uint32_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char why[100] = "";
        const char *sanitize = getenv("KVT_SANITIZE");
        if (sanitize && strcmp(sanitize, "thread") == 0 && sizes[s] == 65536)
            continue; /* there a grid has 4,096 threads at most */
        for (uint32_t i = 0; i < N; i++)
            runs[i] = (kvt_device_run){(uint64_t)(i / 2) * MOST + i % 2 * apart + 64,
                                       host + (size_t)i * MOST, sizes[s]};
        CHECK_EQ(d->ops->move(d, runs, N, 0), KVT_ENOTSUP);
        CHECK_MSG(d->ops->pin(d, host, N * MOST, why, sizeof why) == KVT_OK, "%s", why);
        memcpy(host, sent, N * MOST);
        CHECK_EQ(d->ops->move(d, runs, N, 0), KVT_OK);
        memset(host, 0x5a, N * MOST);
        CHECK_EQ(d->ops->move(d, runs, N, 1), KVT_OK);
        for (uint32_t i = 0; i < N; i++) {
            CHECK(memcmp(runs[i].host, sent + (size_t)i * MOST, sizes[s]) == 0);
            CHECK(sizes[s] == MOST || host[(size_t)i * MOST + sizes[s]] == 0x5a);
        }
        CHECK_EQ(d->ops->write(d, 4096, host, 5000), KVT_OK);
        CHECK_EQ(d->ops->read(d, 4096, host + 9000, 5000), KVT_OK);
        CHECK(memcmp(host, host + 9000, 5000) == 0);
        runs[N - 1].host = host + N * MOST - 50; /* beyond its end */
        CHECK_EQ(d->ops->move(d, runs, N, 1), KVT_ENOTSUP);
        d->ops->unpin(d);
        CHECK_EQ(fake_cuda_live(), live);
    }
    setenv("KVT_FAKE_CUDA_PINS", "0", 1);
    CHECK_EQ(d->ops->pin(d, host, N * MOST, NULL, 0), KVT_EIO);
    unsetenv("KVT_FAKE_CUDA_PINS");
    CHECK_EQ(d->ops->move(d, runs, N, 1), KVT_ENOTSUP);
    free(host);
    free(sent);
}

/* One on each of two GPUs, as one: each offset is in its own GPU's memory, and nowhere else. */
static void test_many(void) {
    enum { N = 1000 };
    kvt_device *two[2], *d;
    kvt_page_shape shape;
    uint8_t *page, *bytes = random_bytes(2 * N), got[N];
    size_t page_bytes = page_of(&shape, &page);
    uint32_t rows;
    fake_cuda_set_devices(2);
    kvt_device_cuda_options options = usual();
    two[0] = open_usual();
    options.gpu = 1;
    path[strlen(path) - 1] ^= 1; /* the other's file */
    CHECK_EQ(kvt_device_cuda_open(&options, NULL, 0, &two[1]), KVT_OK);
    CHECK_EQ(kvt_device_many_open(two, 2, &d), KVT_OK);
    CHECK(strcmp(d->ops->name, "cuda") == 0 && !d->ops->data(d));
    int fd = staging_of(page, page_bytes);
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t at = i * KVT_DEVICE_STRIDE;
        CHECK_EQ(d->ops->write(d, at + DATA_BYTES - N, bytes + i * N, N), KVT_OK);
        CHECK_EQ(d->ops->copy(d, at + 64, at + DATA_BYTES - N, N), KVT_OK);
        CHECK_EQ(d->ops->check(d, &shape, at + PAGE_AT, page_bytes, &rows), KVT_ECORRUPT);
        CHECK_EQ(d->ops->write_file(d, at + PAGE_AT, fd, 0, page_bytes), KVT_OK);
        CHECK_EQ(d->ops->check(d, &shape, at + PAGE_AT, page_bytes, &rows), KVT_OK);
    }
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_EQ(two[i]->ops->read(two[i], 64, got, N), KVT_OK);
        CHECK(memcmp(got, bytes + i * N, N) == 0);
        memset(got, 0, N);
        CHECK_EQ(d->ops->read(d, i * KVT_DEVICE_STRIDE + 64, got, N), KVT_OK);
        CHECK(memcmp(got, bytes + i * N, N) == 0);
    }
    kvt_wire_memory elsewhere = {
        .magic = KVT_MEMORY_MAGIC, .kind = KVT_MEMORY_CUDA, .bytes = 64, .bus_id = "0000:77:00.0"};
    kvt_staged *staged;
    CHECK_EQ(d->ops->stage(d, &elsewhere, &staged), KVT_EINVAL);
    CHECK(!d->ops->failure(d));
    CHECK_EQ(d->ops->unstage(d, NULL), KVT_OK);
    test_move(d, KVT_DEVICE_STRIDE);
    d->ops->close(d);
    CUDA(cudaSetDevice(0));
    fake_cuda_set_devices(1);
    path[strlen(path) - 1] ^= 1;
    close(fd);
    free(page);
    free(bytes);
}
#endif

/* ------------------------------------------------------------------------------------------------
 * Another process
 * ---------------------------------------------------------------------------------------------- */

/* A staging area, described to the owner of the arena through descriptor 4. */
static uint8_t *give_area(void) {
    uint8_t bytes[256], *area;
    void *memory_at;
    kvt_wire_memory memory;
    CUDA(kvt_cuda_shared_new(AREA_BYTES, &memory_at));
    area = memory_at;
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)(255 - i);
    CUDA(cudaMemcpy(area + AREA_BYTES - 256, bytes, 256, cudaMemcpyHostToDevice));
    CHECK_EQ(kvt_cuda_describe(area, AREA_BYTES, 0, &memory), KVT_OK);
    CHECK(write(4, &memory, sizeof memory) == sizeof memory);
    return area;
}

/* CUDA opens a handle once in a process: who has it open already is counted, and it is closed for
 * good, and can be opened anew, when the last one lets go. */
static void open_again(const kvt_wire_memory *memory, kvt_cuda_opened **opened) {
    kvt_cuda_opened *twice;
    for (int i = 0; i < 10000; i++) {
        CHECK_EQ(kvt_cuda_open_memory(memory, NULL, 0, &twice), KVT_OK);
        CHECK(twice == *opened);
        kvt_cuda_close_memory(twice);
        if (i % 10)
            continue;
        kvt_cuda_close_memory(*opened);
        CHECK_EQ(kvt_cuda_open_memory(memory, NULL, 0, opened), KVT_OK);
    }
}

/* Reads the handle from descriptor 3, the data's first and last bytes from the GPU; waits until the
 * owner has closed its device; reads again. */
static int child(void) {
    kvt_wire_memory memory;
    kvt_cuda_opened *opened, *twice;
    uint8_t first[100], last[100], again[100], byte;
    CHECK(read(3, &memory, sizeof memory) == sizeof memory);
    CHECK_EQ(kvt_cuda_open_memory(&memory, NULL, 0, &opened), KVT_OK);
    CHECK_EQ(kvt_cuda_open_memory(&memory, NULL, 0, &twice), KVT_OK);
    CHECK(twice == opened && kvt_cuda_opened_bytes(opened) == DATA_BYTES);
    kvt_cuda_close_memory(twice);
    open_again(&memory, &opened);
    memory.bytes++; /* of the same memory another size: a lie */
    CHECK_EQ(kvt_cuda_open_memory(&memory, NULL, 0, &twice), KVT_EINVAL);
    memory.bytes--;
    memory.nonce++; /* of a process that has the number of a dead one */
    CHECK_EQ(kvt_cuda_open_memory(&memory, NULL, 0, &twice), KVT_EBUSY);
    memory.magic++;
    memory.handle[3]++;
    CHECK_EQ(kvt_cuda_open_memory(&memory, NULL, 0, &twice), KVT_EINVAL);
    uint8_t *data = kvt_cuda_opened_at(opened), *area = give_area();
    device_read(first, data, 100);
    device_read(last, (uint8_t *)data + DATA_BYTES - 100, 100);
    for (int i = 0; i < 100; i++)
        CHECK(first[i] == i && last[i] == 2 * i);
    CHECK(write(4, "x", 1) == 1);
    CHECK(read(3, &byte, 1) == 1);
    device_read(again, data, 100);
    CHECK(memcmp(again, first, 100) == 0);
    kvt_cuda_close_memory(opened);
    CUDA(cudaFree(area)); /* the owner of the arena has closed it: it said "x" */
    return 0;
}

/* Copies out of another process's area; not beyond it, whatever is asked. */
static void use_area(kvt_device *d, const kvt_wire_memory *memory) {
    kvt_staged *staged, *twice;
    uint8_t got[256];
    CHECK_EQ(d->ops->stage(d, memory, &staged), KVT_OK);
    CHECK_EQ(d->ops->stage(d, memory, &twice), KVT_OK);
    CHECK_EQ(d->ops->write_staged(d, 512, staged, AREA_BYTES - 256, 256), KVT_OK);
    CHECK_EQ(d->ops->write_staged(d, 512, staged, AREA_BYTES - 256, 257), KVT_EIO);
    CHECK_EQ(d->ops->write_staged(d, 512, staged, UINT64_MAX - 1, 16), KVT_EIO);
    CHECK_EQ(d->ops->unstage(d, twice), KVT_OK);
    CHECK_EQ(d->ops->read(d, 512, got, 256), KVT_OK);
    for (int i = 0; i < 256; i++)
        CHECK_EQ(got[i], 255 - i);
#ifndef KVT_REAL_CUDA
    unsigned live = fake_cuda_live();
    fake_cuda_lose_at(1);
    CHECK_EQ(d->ops->copy(d, 1024, 512, 256), KVT_EIO);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(d->ops->unstage(d, staged), KVT_EIO);
    fake_cuda_lose_at(0);
    CHECK_EQ(fake_cuda_live(), live);
    CHECK_EQ(d->ops->stage(d, memory, &twice), KVT_OK); /* it is open: CUDA is not asked again */
    CHECK(twice == staged && fake_cuda_live() == live);
    CHECK_EQ(d->ops->unstage(d, twice), KVT_OK);
#endif
    CHECK_EQ(d->ops->unstage(d, staged), KVT_OK);
    CHECK_EQ(d->ops->unstage(d, NULL), KVT_OK);
}

/* The arena itself, handed in as if it were a worker's area: nobody's staging is there. */
static void refuse_own(kvt_device *d, const kvt_wire_memory *handle) {
    kvt_staged *staged = NULL;
    kvt_cuda_opened *opened = NULL;
    char why[200] = "";
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(kvt_cuda_open_memory(handle, why, sizeof why, &opened), KVT_EIO);
        CHECK_MSG(!opened && strstr(why, "cannot be opened"), "%s", why);
        CHECK_EQ(d->ops->stage(d, handle, &staged), KVT_EIO);
        CHECK(!staged);
    }
}

static void test_handle(void) {
    kvt_device *d = open_usual();
    kvt_wire_memory handle, area;
    uint8_t bytes[200], byte;
    for (int i = 0; i < 100; i++) {
        bytes[i] = (uint8_t)i;
        bytes[100 + i] = (uint8_t)(2 * i);
    }
    int fd = staging_of(bytes, 200);
    CHECK_EQ(d->ops->write_file(d, 0, fd, 0, 100), KVT_OK);
    CHECK_EQ(d->ops->write_file(d, DATA_BYTES - 100, fd, 100, 100), KVT_OK);
    close(fd);
    CHECK_EQ(kvt_device_cuda_describe(d, &handle), KVT_OK);
    kvt_device_cuda_given(d);
    refuse_own(d, &handle);
    int to[2], from[2];
    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int in = fcntl(to[0], F_DUPFD, 10), out = fcntl(from[1], F_DUPFD, 10);
        dup2(in, 3);
        dup2(out, 4);
        execl("/proc/self/exe", "test_device", "child", (char *)0);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    CHECK(write(to[1], &handle, sizeof handle) == sizeof handle);
    CHECK(read(from[0], &area, sizeof area) == sizeof area);
    use_area(d, &area);
    CHECK(read(from[0], &byte, 1) == 1);
    d->ops->close(d); /* what the child has open stays */
    CHECK(write(to[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    close(to[1]);
    close(from[0]);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "child") == 0)
        return child();
    /* In the working folder, which goes with whoever made it. */
    snprintf(path, sizeof path, "kvt-test-device.%d", (int)getpid());
    snprintf(staging, sizeof staging, "kvt-test-staging.%d", (int)getpid());
    test_open();
    test_model();
    test_check();
    test_transcode();
    test_bad_files();
    test_threads();
    test_bad_options();
#ifndef KVT_REAL_CUDA
    test_failing_calls();
    test_lost();
    test_stuck();
    test_no_spin();
    test_many();
    kvt_device *d = open_usual();
    test_move(d, 5 * 200000);
    d->ops->close(d);
    CHECK_EQ(fake_cuda_live(), 0);
#endif
    test_handle();
    return 0;
}
