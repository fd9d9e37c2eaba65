/*
 * disk_kit.h - what test_disk.c works with: a disk with its helper, a tree of pages, what is known
 * of each of them, and requests that are waited for.
 */
#ifndef KVT_TESTS_DISK_KIT_H
#define KVT_TESTS_DISK_KIT_H

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
static uint32_t stall_ms = 30000, open_ms, lock_wait_ms = 100, wait_ms;
static const char realm_name[] = "the realm of this test";

typedef struct bench {
    disk *d;
    int host_fd;
    uint8_t *host;
    kit_page pages[N_PAGES];
    int there[N_PAGES]; /* 1: said to be written; -1: may be either */
    uint32_t n_found, n_scans, n_lost;
    int found[N_PAGES];
    uint64_t restarts; /* when last_depth was noted */
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

/* The next helper looks through the file from the start, however far the last one came. */
static void begin_anew_if_restarted(void) {
    disk_stats stats = {0};
    if (b.d)
        disk_count(b.d, &stats);
    if (stats.restarts != b.restarts)
        b.last_depth = 0;
    b.restarts = stats.restarts;
}

static void found(void *context, const disk_found *f) {
    (void)context;
    CHECK_EQ(f->realm, 7);
    begin_anew_if_restarted();
    CHECK_MSG(f->depth >= b.last_depth, "depth %u after %u", f->depth, b.last_depth);
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

static uint32_t n_refusals; /* lines that say that it cannot be opened */

static void log_line(void *context, int level, const char *line) {
    (void)context;
    n_refusals += strstr(line, "cannot be opened") != NULL;
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
                            .open_ms = open_ms,
                            .wait_ms = wait_ms,
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
    b.d = NULL;
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

static void kit_host_open(void) {
    b.host_fd = memfd_create("host", MFD_CLOEXEC);
    CHECK(b.host_fd >= 0 && ftruncate(b.host_fd, (off_t)HOST_BYTES) == 0);
    b.host = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, b.host_fd, 0);
    CHECK(b.host != MAP_FAILED);
}

#endif
