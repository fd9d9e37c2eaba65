/*
 * test_jobs.c - the threads that open staging files and copy pages: what a worker may not offer as
 * its staging file, what becomes of a page that is wrong or a file that is cut short, and that the
 * jobs of a lane stay in order.
 */
#include "daemon/jobs.h"
#include "tests/kv_kit.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DATA_BYTES = 1 << 20, MAX_JOBS = 64, MAX_STAGING = 4, N_THREADS = 3 };

static char dir[] = "/tmp/test_jobs.XXXXXX";
static kvt_device *device;
static jobs *pool;

/* What was handed back, in order. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static core_job *done[4096];
static uint32_t n_done;

static void job_done(void *context, core_job *job) {
    CHECK(context == &device);
    pthread_mutex_lock(&lock);
    done[n_done++ % 4096] = job;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

static void wait_for(uint32_t n) {
    pthread_mutex_lock(&lock);
    while (n_done < n)
        pthread_cond_wait(&more, &lock);
    pthread_mutex_unlock(&lock);
}

static void open_pool(void) {
    char why[256] = "";
    jobs_options options = {.staging_dir = dir,
                            .device = device,
                            .n_threads = N_THREADS,
                            .max_jobs = MAX_JOBS,
                            .max_staging = MAX_STAGING,
                            .done = job_done,
                            .context = &device};
    n_done = 0;
    CHECK_MSG(jobs_open(&options, why, sizeof why, &pool) == KVT_OK, "%s", why);
}

static void run(core_job *job) {
    uint32_t n = n_done;
    jobs_submit(pool, job);
    wait_for(n + 1);
    CHECK(done[n % 4096] == job);
}

static uint32_t open_files(void) {
    uint32_t n = 0;
    DIR *entries = opendir("/proc/self/fd");
    CHECK(entries != NULL);
    while (readdir(entries))
        n++;
    closedir(entries);
    return n;
}

/* --- staging files -----------------------------------------------------------------------------
 */

static const char *path_of(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void make_file(const char *name, size_t n_bytes) {
    int fd = open(path_of(name), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)n_bytes) == 0);
    close(fd);
}

static kvt_status stage(const char *name, uint32_t uid, uint64_t bytes, int *ret_staging) {
    core_job job = {
        .kind = CORE_JOB_STAGE, .lane = 1, .uid = uid, .staging_bytes = bytes, .staging = -1};
    snprintf(job.name, sizeof job.name, "%s", name);
    run(&job);
    CHECK((job.status == KVT_OK) == (job.staging >= 0));
    if (ret_staging)
        *ret_staging = job.staging;
    return job.status;
}

static void unstage(int staging) {
    core_job job = {.kind = CORE_JOB_UNSTAGE, .lane = 1, .staging = staging};
    run(&job);
    CHECK_EQ(job.status, KVT_OK);
}

static void test_staging_refused(void) {
    uint32_t uid = (uint32_t)getuid();
    char inside[400];
    open_pool();
    uint32_t n_files = open_files();
    make_file("good", 4096);
    make_file(".hidden", 4096);
    CHECK_EQ(mkdir(path_of("dir"), 0700), 0);
    CHECK_EQ(mkfifo(path_of("fifo"), 0600), 0);
    CHECK_EQ(symlink("good", path_of("link")), 0);
    CHECK_EQ(stage("none", uid, 1, NULL), KVT_ENOENT);
    CHECK_EQ(stage("", uid, 1, NULL), KVT_EINVAL);
    CHECK_EQ(stage(".", uid, 1, NULL), KVT_EINVAL);
    CHECK_EQ(stage("..", uid, 1, NULL), KVT_EINVAL);
    CHECK_EQ(stage(".hidden", uid, 1, NULL), KVT_EINVAL);
    CHECK_EQ(stage("dir/../good", uid, 1, NULL), KVT_EINVAL);
    snprintf(inside, sizeof inside, "%s/good", dir);
    CHECK_EQ(stage(inside, uid, 1, NULL), KVT_EINVAL);
    CHECK_EQ(stage("link", uid, 1, NULL), KVT_EDENIED);
    CHECK_EQ(stage("dir", uid, 1, NULL), KVT_EDENIED);
    CHECK_EQ(stage("fifo", uid, 0, NULL), KVT_EDENIED); /* and does not hang */
    CHECK_EQ(stage("good", uid + 1, 4096, NULL), KVT_EDENIED);
    CHECK_EQ(stage("good", uid, 4097, NULL), KVT_EINVAL);
    CHECK_EQ(open_files(), n_files); /* what was refused is closed */
    jobs_close(pool);
}

static void test_staging_files(void) {
    uint32_t uid = (uint32_t)getuid();
    int staging[MAX_STAGING], again;
    open_pool();
    uint32_t n_files = open_files();
    for (int i = 0; i < MAX_STAGING; i++) {
        CHECK_EQ(stage("good", uid, 4096, &staging[i]), KVT_OK);
        for (int j = 0; j < i; j++)
            CHECK(staging[i] != staging[j]);
    }
    CHECK_EQ(stage("good", uid, 4096, NULL), KVT_ELIMIT);
    CHECK_EQ(open_files(), n_files + MAX_STAGING);
    unstage(staging[1]);
    CHECK_EQ(open_files(), n_files + MAX_STAGING - 1);
    CHECK_EQ(stage("good", uid, 4096, &again), KVT_OK);
    CHECK_EQ(again, staging[1]);
    jobs_close(pool); /* closes what is open */
    pool = NULL;
    open_pool();
    CHECK_EQ(open_files(), n_files);
    jobs_close(pool);
}

/* --- areas -------------------------------------------------------------------------------------
 */

/* A device that opens areas, and closes them if it is let. */
static kvt_device_ops area_ops;
static int area_opens, area_is_stuck;

static kvt_status open_an_area(kvt_device *d, const kvt_wire_memory *memory, kvt_staged **ret) {
    CHECK(d->ops == &area_ops && memory->bytes == 4096);
    area_opens++;
    *ret = (kvt_staged *)(void *)&area_opens;
    return KVT_OK;
}

static kvt_status close_an_area(kvt_device *d, kvt_staged *staged) {
    CHECK(d->ops == &area_ops && staged == (kvt_staged *)(void *)&area_opens);
    area_opens -= !area_is_stuck;
    return area_is_stuck ? KVT_EIO : KVT_OK;
}

/* May its worker free the area? As client/map_cuda_areas.c asks. */
static int is_let_go(int fd) {
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/* A worker's file with an area, as it has it itself. */
static int area_file(void) {
    kvt_wire_memory memory = {.magic = KVT_MEMORY_MAGIC, .kind = KVT_MEMORY_CUDA, .bytes = 4096};
    int fd = open(path_of("area"), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    CHECK(pwrite(fd, &memory, sizeof memory, 4096) == sizeof memory);
    return fd;
}

/* An area that the device cannot close is its worker's no sooner than this process ends, whichever
 * way its closing is come to; and its place in the table goes to others. */
static void test_stuck_area(void) {
    const kvt_device_ops *usual = device->ops;
    int staging[MAX_STAGING];
    area_ops = *usual;
    area_ops.stage = open_an_area;
    area_ops.unstage = close_an_area;
    device->ops = &area_ops;
    for (int way = 0; way < 6; way++) {
        int fd = area_file(), n = 1;
        uint32_t n_files = open_files();
        area_is_stuck = way >= 3;
        open_pool();
        CHECK_EQ(stage("area", (uint32_t)getuid(), 4096, &staging[0]), KVT_OK);
        CHECK(!is_let_go(fd));
        if (way % 3 == 0)
            unstage(staging[0]);
        for (; way % 3 == 1 && n < MAX_STAGING; n++) /* one more than there is room for */
            CHECK_EQ(stage("area", (uint32_t)getuid(), 4096, &staging[n]), KVT_OK);
        if (way % 3 == 1)
            CHECK_EQ(stage("area", (uint32_t)getuid(), 4096, NULL), KVT_ELIMIT);
        if (way == 3)
            for (int i = 0; i < MAX_STAGING; i++)
                CHECK_EQ(stage("good", (uint32_t)getuid(), 4096, &staging[i]), KVT_OK);
        CHECK(is_let_go(fd) == (way == 0));
        jobs_close(pool);
        CHECK(is_let_go(fd) == !area_is_stuck);
        CHECK_EQ(open_files() - n_files, area_opens);
        if (!area_is_stuck)
            CHECK_EQ(area_opens, 0);
        area_opens = 0;
        close(fd);
        unlink(path_of("area"));
    }
    device->ops = usual;
}

/* --- sealing -----------------------------------------------------------------------------------
 */

typedef struct bench {
    kvt_page_shape shape;
    size_t page_bytes;
    uint8_t *page; /* encoded, of all rows */
    int fd;        /* of the staging file, as its worker has it */
    int staging;
} bench;

static bench open_bench(void) {
    bench b;
    kvt_geometry geometry;
    uint64_t seed = 7;
    kvt_geometry_init(&geometry, 2, 2, 16, 16);
    CHECK_EQ(kvt_page_shape_init(&geometry, 0, NULL, NULL, 0, &b.shape), KVT_OK);
    b.page = aligned_alloc(64, kvt_page_max_bytes(&b.shape));
    CHECK(b.page != NULL);
    kv_kit kit = kv_new(&geometry, 2, 16, KV_TOKEN_MAJOR);
    kv_fill_random_bits(&kit, &seed);
    CHECK_EQ(kvt_page_encode(&b.shape, 16, &kit.layout, b.page, kvt_page_max_bytes(&b.shape),
                             &b.page_bytes),
             KVT_OK);
    kv_free(&kit);
    b.fd = open(path_of("worker"), O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(b.fd >= 0);
    CHECK_EQ(ftruncate(b.fd, 65536), 0);
    for (off_t at = 0; at + (off_t)b.page_bytes <= 65536; at += 8192)
        CHECK_EQ(pwrite(b.fd, b.page, b.page_bytes, at), b.page_bytes);
    CHECK_EQ(stage("worker", (uint32_t)getuid(), 65536, &b.staging), KVT_OK);
    unlink(path_of("worker")); /* as workers do once it is open */
    return b;
}

static void test_seal(void) {
    open_pool();
    bench b = open_bench();
    core_copy copies[7];
    for (uint32_t i = 0; i < 7; i++)
        copies[i] = (core_copy){.from_offset = 8192 * i,
                                .to_offset = 8192 * i,
                                .bytes = (uint32_t)b.page_bytes,
                                .rows = 16,
                                .shape = &b.shape,
                                .status = KVT_EINTERNAL};
    CHECK(b.page_bytes <= 8192);
    uint8_t byte = (uint8_t)(b.page[b.page_bytes - 1] ^ 1);
    CHECK_EQ(pwrite(b.fd, &byte, 1, 8192 * 1 + (off_t)b.page_bytes - 1), 1); /* a bit of payload */
    copies[2].rows = 15;                             /* not what the page says */
    copies[3].from_offset = UINT64_MAX - 100;        /* beyond what a file can have */
    CHECK_EQ(pwrite(b.fd, "x", 1, 8192 * 4), 1);     /* its first byte */
    CHECK_EQ(pwrite(b.fd, "x", 1, 8192 * 6 + 4), 1); /* of the version */
    copies[5].from_offset = 65536 - 64;              /* ends within the page */
    core_job job = {
        .kind = CORE_JOB_SEAL, .lane = 1, .staging = b.staging, .n_copies = 7, .copies = copies};
    run(&job);
    CHECK_EQ(job.status, KVT_OK);
    CHECK_EQ(copies[0].status, KVT_OK);
    CHECK_EQ(copies[1].status, KVT_ECORRUPT);
    CHECK_EQ(copies[2].status, KVT_ECORRUPT);
    CHECK_EQ(copies[3].status, KVT_EIO);
    CHECK_EQ(copies[4].status, KVT_ECORRUPT);
    CHECK_EQ(copies[5].status, KVT_EIO);
    CHECK_EQ(copies[6].status, KVT_ECORRUPT);
    CHECK(memcmp(device->ops->data(device), b.page, b.page_bytes) == 0);
    /* another shape */
    kvt_geometry other;
    kvt_page_shape shape;
    kvt_geometry_init(&other, 2, 1, 32, 16);
    CHECK_EQ(kvt_page_shape_init(&other, 0, NULL, NULL, 0, &shape), KVT_OK);
    copies[0].shape = &shape;
    job.n_copies = 1;
    run(&job);
    CHECK_EQ(copies[0].status, KVT_ECORRUPT);
    /* a worker that cuts its file short gets an error, and nobody a signal */
    copies[0].shape = &b.shape;
    CHECK_EQ(ftruncate(b.fd, (off_t)b.page_bytes - 1), 0);
    run(&job);
    CHECK_EQ(copies[0].status, KVT_EIO);
    CHECK_EQ(ftruncate(b.fd, 0), 0);
    run(&job);
    CHECK_EQ(copies[0].status, KVT_EIO);
    close(b.fd);
    free(b.page);
    jobs_close(pool);
}

/* --- order -------------------------------------------------------------------------------------
 */

/* Lanes on several threads, each with opens, closes and seals that wait for each other's result. */
static void test_order(uint64_t seed) {
    enum { N_LANES = 7, N_ROUNDS = 40 };
    static core_job all[N_ROUNDS][N_LANES];
    uint32_t n_submitted = 0, next[N_LANES] = {0};
    open_pool();
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        for (uint32_t lane = 0; lane < N_LANES; lane++) {
            core_job *job = &all[round][lane];
            *job = (core_job){.kind = CORE_JOB_STAGE, .lane = lane, .number = round, .staging = -1};
            snprintf(job->name, sizeof job->name, "%s", check_below(&seed, 2) ? "none" : "dir");
            /* MAX_JOBS may be under way at the same time */
            if (n_submitted >= MAX_JOBS)
                wait_for(n_submitted - MAX_JOBS + 1);
            jobs_submit(pool, job);
            n_submitted++;
        }
    }
    jobs_close(pool); /* does what was submitted, and hands it back */
    CHECK_EQ(n_done, N_ROUNDS * N_LANES);
    for (uint32_t i = 0; i < n_done; i++) {
        CHECK_EQ(done[i]->number, next[done[i]->lane]++);
        CHECK(done[i]->status == KVT_ENOENT || done[i]->status == KVT_EDENIED);
    }
}

static void test_open_fails(void) {
    char why[256] = "";
    jobs_options options = {.staging_dir = "/no/such/dir",
                            .n_threads = 1,
                            .max_jobs = 1,
                            .max_staging = 1,
                            .done = job_done};
    CHECK_EQ(jobs_open(&options, why, sizeof why, &pool), KVT_EIO);
    CHECK_MSG(strstr(why, "/no/such/dir cannot be opened: No such file"), "%s", why);
    jobs_close(NULL);
}

int main(void) {
    char why[256] = "", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/arena", dir);
    kvt_device_host_options options = {.path = path,
                                       .mode = 0600,
                                       .gid = UINT32_MAX,
                                       .head_bytes = 4096,
                                       .data_bytes = DATA_BYTES};
    CHECK_MSG(kvt_device_host_open(&options, why, sizeof why, &device) == KVT_OK, "%s", why);
    test_open_fails();
    test_staging_refused();
    test_staging_files();
    test_stuck_area();
    test_seal();
    test_order(99);
    device->ops->close(device);
    unlink(path_of("good"));
    unlink(path_of(".hidden"));
    unlink(path_of("link"));
    unlink(path_of("fifo"));
    rmdir(path_of("dir"));
    CHECK_EQ(rmdir(dir), 0);
    return 0;
}
