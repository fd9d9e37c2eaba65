/*
 * tiers_above.c - what the lower tiers cost those who read the arena: promotion from the host tier
 * against memcpy of the same bytes, and acquire of a prefix that is all in the arena while another
 * worker seals at a fixed rate, with tiers that this is copied down to and without.
 */
#include "daemon/job.h"
#include "kernels/device.h"
#include "tests/bench/bench.h"
#include "tests/e2e/e2e.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* --- promotion from the host tier --------------------------------------------------------------
 */

enum { BATCH = 32 };

typedef struct lift {
    kvt_page_shape shape;
    kvt_device *device;
    char *host;
    uint32_t page_bytes, n_pages;
} lift;

/* As the daemon's job: each page is checked, then copied. */
static void lift_all(void *context) {
    lift *l = context;
    core_copy copies[BATCH];
    for (uint32_t first = 0; first < l->n_pages; first += BATCH) {
        core_job job = {.kind = CORE_JOB_UP, .copies = copies};
        for (uint32_t i = first; i < l->n_pages && job.n_copies < BATCH; i++)
            copies[job.n_copies++] = (core_copy){.from_offset = (uint64_t)i * l->page_bytes,
                                                 .to_offset = (uint64_t)i * l->page_bytes,
                                                 .bytes = l->page_bytes,
                                                 .rows = l->shape.page_tokens,
                                                 .shape = &l->shape};
        job_run_tier(&job, l->device, l->host);
        for (uint32_t i = 0; i < job.n_copies; i++)
            CHECK_EQ(copies[i].status, KVT_OK);
    }
}

static void copy_all(void *context) {
    lift *l = context;
    char *data = l->device->ops->data(l->device);
    for (uint32_t i = 0; i < l->n_pages; i++)
        memcpy(data + (size_t)i * l->page_bytes, l->host + (size_t)i * l->page_bytes,
               l->page_bytes);
}

static void from_host(uint32_t n_layers, uint64_t total_bytes) {
    enum { ROUNDS = 15 };
    kvt_geometry g;
    lift l = {0};
    size_t n_bytes;
    char path[64], name[64], why[256];
    kvt_geometry_init(&g, n_layers, 1, 128, 64);
    CHECK_EQ(kvt_page_shape_init(&g, 0, "f16", NULL, 0, &l.shape), KVT_OK);
    l.page_bytes = (uint32_t)kvt_page_bytes(&l.shape, 64);
    l.n_pages = (uint32_t)(total_bytes / l.page_bytes);
    snprintf(path, sizeof path, "/dev/shm/kvtrunk-bench-%d", (int)getpid());
    kvt_device_host_options options = {.path = path,
                                       .mode = 0600,
                                       .gid = UINT32_MAX,
                                       .head_bytes = 4096,
                                       .data_bytes = (uint64_t)l.n_pages * l.page_bytes};
    CHECK_MSG(kvt_device_host_open(&options, why, sizeof why, &l.device) == KVT_OK, "%s", why);
    l.host = aligned_alloc(64, (size_t)l.n_pages * l.page_bytes);
    uint16_t *part = calloc((size_t)n_layers * 64 * 128, sizeof *part);
    CHECK(l.host && part);
    kvt_layout layout;
    kvt_layout_token_major(&g, 64, part, part, &layout);
    for (uint32_t i = 0; i < l.n_pages; i++)
        CHECK_EQ(kvt_page_encode(&l.shape, 64, &layout, l.host + (size_t)i * l.page_bytes,
                                 l.page_bytes, &n_bytes),
                 KVT_OK);
    bench_pair pair = bench_turns(lift_all, copy_all, &l, ROUNDS);
    double gb = 1e-9 * (double)l.n_pages * l.page_bytes;
    snprintf(name, sizeof name, "from the host tier, pages of %u KiB", l.page_bytes >> 10);
    bench_report(&(bench_row){.name = name,
                              .value = gb / pair.b / pair.ratio,
                              .unit = "GB/s",
                              .base = "memcpy",
                              .base_value = gb / pair.b,
                              .target = .8,
                              .at_least = 1,
                              .noise = pair.noise});
    l.device->ops->close(l.device);
    free(l.host);
    free(part);
}

/* --- acquire beside spilling -------------------------------------------------------------------
 */

enum { PAGE = 64, LAYERS = 4, HEADS = 2, DIM = 64, HELD = 4096, PATH = 16 * PAGE };

typedef struct filler {
    pthread_t thread;
    const e2e_daemon *daemon;
    atomic_int stop;
    uint32_t seed;
} filler;

static kvt_client *open_client(const e2e_daemon *d, kvt_realm *realm) {
    kvt_client *client;
    *realm = (kvt_realm){.model = "bench"};
    kvt_geometry_init(&realm->geometry, LAYERS, HEADS, DIM, PAGE);
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000, .staging_pages = 16};
    CHECK_MSG(kvt_open(&options, realm, &client) == KVT_OK, "%s", kvt_last_error());
    return client;
}

static void sleep_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void fill(kvt_client *client, const kvt_realm *realm, const uint32_t *tokens, size_t n) {
    static uint16_t zeros[LAYERS * HEADS * PAGE * DIM];
    kvt_lease *lease;
    kvt_lease_info info;
    kvt_layout layout;
    kvt_layout_token_major(&realm->geometry, PAGE, zeros, zeros, &layout);
    CHECK_EQ(kvt_acquire(client, tokens, n, KVT_CLAIM, &lease), KVT_OK);
    kvt_lease_get(lease, &info);
    for (size_t page = info.held_tokens / PAGE; page < n / PAGE; page++) {
        kvt_status status = kvt_encode(lease, page, &layout);
        if (status == KVT_EFULL) {
            CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
            status = kvt_encode(lease, page, &layout);
        }
        CHECK_EQ(status, KVT_OK);
    }
    CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

/* 16 pages every 40 ms: 50 MB/s. */
static void *fill_on(void *context) {
    filler *f = context;
    kvt_realm realm;
    kvt_client *client = open_client(f->daemon, &realm);
    uint32_t tokens[PATH];
    for (uint32_t n = 1; !atomic_load(&f->stop); n++) {
        for (uint32_t i = 0; i < PATH; i++)
            tokens[i] = f->seed + n * PATH + i;
        fill(client, &realm, tokens, PATH);
        sleep_for(.04);
    }
    kvt_close(client);
    return NULL;
}

static double p99_beside(const e2e_daemon *d, uint32_t seed) {
    enum { CALLS = 2000 };
    static double us[CALLS];
    static uint32_t tokens[HELD];
    filler f = {.daemon = d, .seed = seed};
    kvt_realm realm;
    kvt_client *client = open_client(d, &realm);
    for (uint32_t i = 0; i < HELD; i++)
        tokens[i] = i;
    fill(client, &realm, tokens, HELD);
    kvt_lease *pin; /* so that it stays in the arena */
    CHECK_EQ(kvt_acquire(client, tokens, HELD, 0, &pin), KVT_OK);
    CHECK(pthread_create(&f.thread, NULL, fill_on, &f) == 0);
    for (int i = -100; i < CALLS; i++) {
        kvt_lease *lease;
        kvt_lease_info info;
        double start = bench_now();
        CHECK_EQ(kvt_acquire(client, tokens, HELD, 0, &lease), KVT_OK);
        if (i >= 0)
            us[i] = 1e6 * (bench_now() - start);
        kvt_lease_get(lease, &info);
        CHECK(info.held_tokens == HELD && info.host_pages + info.disk_pages == 0);
        CHECK_EQ(kvt_release(lease), KVT_OK);
        sleep_for(.001);
    }
    atomic_store(&f.stop, 1);
    pthread_join(f.thread, NULL);
    CHECK_EQ(kvt_release(pin), KVT_OK);
    kvt_close(client);
    return bench_percentile(us, CALLS, 99);
}

static void beside_spilling(void) {
    enum { ROUNDS = 5 };
    double with[ROUNDS], without[ROUNDS], ratios[ROUNDS];
    const char *base = getenv("KVT_BENCH_DIR");
    char folder[256], disk_dir[300], command[300];
    snprintf(folder, sizeof folder, "%s/kvtrunk-bench-XXXXXX", base ? base : "/tmp");
    CHECK(mkdtemp(folder));
    snprintf(disk_dir, sizeof disk_dir, "disk_dir=%s", folder);
    e2e_daemon plain = {0}, tiered = {0};
    const char *settings[] = {"audit=false", "arena=128MiB", "max_pages=20000",
                              "host=128MiB", disk_dir,       "disk=1GiB",
                              NULL};
    const char *bare[] = {"audit=false", "arena=128MiB", "max_pages=20000", NULL};
    e2e_start(&plain, bare);
    e2e_start(&tiered, settings);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        with[i] = p99_beside(&tiered, (i + 1) * 100000000);
        without[i] = p99_beside(&plain, (i + 1) * 100000000);
        ratios[i] = with[i] / without[i];
    }
    CHECK(e2e_count(&tiered, "pages_written") > 0);
    double at = bench_percentile(without, ROUNDS, 50), ratio = bench_percentile(ratios, ROUNDS, 50);
    bench_report(&(bench_row){.name = "acquire beside spilling, 99th percentile",
                              .value = ratio * at,
                              .unit = "us",
                              .base = "beside sealing alone",
                              .base_value = at,
                              .target = 1.3,
                              .noise = 50 * (ratios[ROUNDS * 3 / 4] - ratios[ROUNDS / 4]) / ratio});
    e2e_finish(&plain);
    e2e_finish(&tiered);
    snprintf(command, sizeof command, "rm -rf -- '%s'", folder);
    CHECK(system(command) == 0);
}

void bench_tiers_above(void) {
    from_host(2, 128 << 20);
    from_host(8, 128 << 20);
    beside_spilling();
}
