/*
 * damage.c - bits that flip in the arena, as memory that fails does it: who reads the page is told,
 * and tells the daemon, which looks itself and forgets it. So the next one who asks does not get
 * it, computes it again, and all is well; whoever leased it reads that it is damaged until he lets
 * go. A worker that calls a good page damaged changes nothing.
 */
#include "client/client.h"
#include "tests/e2e/e2e.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGES = 6, TOKENS = PAGES * E2E_PAGE_TOKENS, MAX_PAGE_BYTES = 16384, PAYLOAD = 600 };

/* --- bits that flip -----------------------------------------------------------------------------
 */

/* Flips a bit of each copy of these bytes in the file. (A worker's staging area may have one: it is
 * not read any more.) */
static uint32_t flip_in(int fd, const uint8_t *page, size_t n_bytes, size_t at) {
    struct stat st;
    uint32_t n = 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < (off_t)n_bytes)
        return 0;
    size_t size = (size_t)st.st_size;
    uint8_t *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return 0;
    for (size_t i = 0; i + n_bytes <= size; i += 64)
        if (memcmp(map + i, page, n_bytes) == 0) {
            map[i + at] ^= 0x10;
            n++;
        }
    munmap(map, size);
    return n;
}

/* The arena is a file that the daemon has open, or stands for a GPU's memory, which is one, too. */
static void hurt(const e2e_daemon *d, const kvt_lease *lease, uint32_t page, size_t at) {
    static uint8_t bytes[MAX_PAGE_BYTES];
    char folder[64], name[400];
    size_t n_bytes = 0;
    uint32_t n = 0;
    CHECK_EQ(kvt_lease_copy_page(lease, page, 0, bytes, sizeof bytes, &n_bytes), KVT_OK);
    snprintf(folder, sizeof folder, "/proc/%d/fd", d->pid);
    DIR *fds = opendir(folder);
    CHECK(fds);
    for (struct dirent *e; (e = readdir(fds)) != NULL;) {
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0) {
            n += flip_in(fd, bytes, n_bytes, at);
            close(fd);
        }
    }
    closedir(fds);
    CHECK_MSG(n > 0, "page %u is nowhere", page);
}

/* --- workers ------------------------------------------------------------------------------------
 */

static void open_worker(e2e_worker *w, const e2e_daemon *d, uint64_t seed, uint32_t flags) {
    e2e_worker_prepare(w, seed, E2E_MAX_TOKENS);
    kvt_options options = {.socket = d->socket, .timeout_ms = 30000, .flags = flags};
    CHECK_EQ(kvt_open(&options, &w->realm, &w->client), KVT_OK);
}

static kvt_lease *acquire(e2e_worker *w, const uint32_t *tokens, size_t n, uint32_t expected) {
    kvt_lease *lease;
    kvt_lease_info info;
    CHECK_EQ(kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_MSG(info.held_tokens == expected, "%u tokens are held, expected %u", info.held_tokens,
              expected);
    return lease;
}

/* Computed anew, all of it is right again, for everybody. */
static void compute(e2e_worker *w, e2e_worker *other, const uint32_t *tokens, size_t n,
                    uint32_t held) {
    kvt_lease *lease = acquire(w, tokens, n, held);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(e2e_held(other, tokens, n), n);
}

/* A pinned, hot prefix. */
static void test_payload(const e2e_daemon *d, e2e_worker *w, e2e_worker *other, uint32_t first) {
    uint32_t tokens[E2E_MAX_TOKENS];
    uint64_t before = e2e_count(d, "pages_damaged");
    kvt_pin_info pin;
    kvt_lease *lease = e2e_filled(other, tokens, TOKENS, first);
    CHECK_EQ(kvt_pin(other->client, 0, tokens, TOKENS, 0, 0, &pin), KVT_OK);
    kvt_lease *reader = acquire(w, tokens, TOKENS, TOKENS);
    hurt(d, reader, 3, PAYLOAD);
    CHECK_EQ(e2e_read(w, reader, tokens), KVT_ECORRUPT);
    CHECK(strstr(kvt_last_error(), "checksum"));
    CHECK_EQ(e2e_count(d, "pages_damaged"), before + 1);
    CHECK_EQ(e2e_count(d, "pins"), 0);
    compute(w, other, tokens, TOKENS, 3 * E2E_PAGE_TOKENS);
    CHECK_EQ(e2e_read(w, reader, tokens), KVT_ECORRUPT); /* it is what the lease names */
    CHECK_MSG(strstr(kvt_last_error(), "what was read of it is void"), "%s", kvt_last_error());
    CHECK_EQ(e2e_count(d, "pages_damaged"), before + 1);
    kvt_status end = kvt_release(reader);
    CHECK_MSG(end == KVT_OK || (w->stream && end == KVT_ECORRUPT), "%s", kvt_status_name(end));
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(e2e_held(w, tokens, TOKENS), TOKENS);
    CHECK_EQ(e2e_count(d, "pages_corrupt"), 0);
}

/* In the header everybody sees it, also who does not ask for checksums. */
static void test_header(const e2e_daemon *d, e2e_worker *plain, e2e_worker *other, uint32_t first) {
    uint32_t tokens[E2E_MAX_TOKENS];
    uint64_t before = e2e_count(d, "pages_damaged");
    kvt_release(e2e_filled(other, tokens, TOKENS, first));
    kvt_lease *reader = acquire(plain, tokens, TOKENS, TOKENS);
    hurt(d, reader, 0, 40);
    CHECK_EQ(e2e_read(plain, reader, tokens), KVT_ECORRUPT);
    kvt_release(reader);
    CHECK_EQ(e2e_count(d, "pages_damaged"), before + 1);
    compute(plain, other, tokens, TOKENS, 0);
}

/* The leading rows of a page that goes on differently. */
static void test_copy_on_write(const e2e_daemon *d, e2e_worker *plain, e2e_worker *other,
                               uint32_t first) {
    uint32_t tokens[E2E_MAX_TOKENS];
    uint64_t before = e2e_count(d, "pages_damaged");
    kvt_lease *lease = e2e_filled(other, tokens, TOKENS, first);
    tokens[TOKENS - 4]++;
    kvt_lease *writer = acquire(plain, tokens, TOKENS, TOKENS - 4);
    hurt(d, lease, PAGES - 1, PAYLOAD);
    CHECK_EQ(e2e_fill(plain, writer, tokens, SIZE_MAX), KVT_ECORRUPT);
    CHECK_EQ(e2e_count(d, "pages_damaged"), before + 1);
    kvt_release(writer);
    kvt_release(lease);
    compute(plain, other, tokens, TOKENS, TOKENS - E2E_PAGE_TOKENS);
}

static void test_lie(const e2e_daemon *d, e2e_worker *liar, e2e_worker *other, uint32_t first) {
    uint32_t tokens[E2E_MAX_TOKENS];
    uint64_t before = e2e_count(d, "pages_damaged");
    kvt_release(e2e_filled(other, tokens, TOKENS, first));
    kvt_lease *lease = acquire(liar, tokens, TOKENS, TOKENS);
    for (uint32_t i = 0; i < 3 * PAGES; i++)
        kvt_suspect(lease, i % PAGES, 0);
    CHECK_EQ(e2e_count(d, "pages_damaged"), before);
    CHECK_EQ(e2e_held(other, tokens, TOKENS), TOKENS);
    CHECK_EQ(e2e_read(liar, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
}

int main(void) {
    e2e_daemon d = {0};
    const char *settings[] = {"arena=4MiB", "max_pages=400", NULL};
    e2e_start(&d, settings);
    /* On a GPU those with odd numbers have their KV there. */
    for (uint64_t seed = 2; seed < 4; seed++) {
        e2e_worker careful, plain, other;
        uint32_t first = (uint32_t)seed * 100000;
        open_worker(&careful, &d, seed, KVT_OPEN_VERIFY);
        open_worker(&plain, &d, seed, 0);
        open_worker(&other, &d, 4, KVT_OPEN_VERIFY);
        test_payload(&d, &careful, &other, first);
        test_header(&d, &plain, &other, first + 10000);
        test_copy_on_write(&d, &plain, &other, first + 20000);
        test_lie(&d, &plain, &other, first + 30000);
        e2e_worker_close(&careful);
        e2e_worker_close(&plain);
        e2e_worker_close(&other);
    }
    e2e_finish(&d);
    return 0;
}
