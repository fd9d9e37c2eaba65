/* tier_kit.h - trees of pages for the tests of the disk tier: each page's bytes are a function of
 * its number and version, so a wrong byte is seen by whoever reads it. */
#ifndef KVT_TESTS_TIER_KIT_H
#define KVT_TESTS_TIER_KIT_H

#include "store/tier.h"
#include "tests/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct kit_page {
    tier_key key, parent_key;
    uint64_t serial;
    int parent; /* -1: none; else less than its own number */
    uint32_t depth, bytes, version, realm;
    uint16_t slot, rows, n_tokens;
    uint32_t tokens[TIER_MAX_TOKENS];
} kit_page;

/* A new directory under $TMPDIR or /tmp; made by whoever opens it. Static: the last four stay. */
static inline const char *kit_dir(const char *name) {
    static char names[4][256];
    static unsigned next;
    const char *tmp = getenv("TMPDIR");
    char *to = names[next++ % 4];
    snprintf(to, sizeof names[0], "%s/kvtrunk-test-%s-%d-%u", tmp ? tmp : "/tmp", name,
             (int)getpid(), next);
    return to;
}

static inline void kit_remove(const char *dir) {
    char command[512];
    snprintf(command, sizeof command, "rm -rf -- '%s'", dir);
    CHECK_EQ(system(command), 0);
}

static inline uint64_t kit_dir_bytes(const char *dir) {
    uint64_t bytes = 0;
    DIR *entries = opendir(dir);
    CHECK(entries);
    for (struct dirent *e; (e = readdir(entries));) {
        struct stat st;
        if (fstatat(dirfd(entries), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    }
    closedir(entries);
    return bytes;
}

static inline void kit_file_path(const char *dir, const char *name, char to[512]) {
    CHECK(snprintf(to, 512, "%s/%s", dir, name) < 512);
}

static inline size_t kit_file_read(const char *dir, const char *name, void *to, size_t room) {
    char path[512];
    kit_file_path(dir, name, path);
    int fd = open(path, O_RDONLY);
    CHECK_MSG(fd >= 0, "%s", path);
    ssize_t n = read(fd, to, room);
    CHECK(n >= 0);
    close(fd);
    return (size_t)n;
}

static inline void kit_file_write(const char *dir, const char *name, const void *at, size_t n) {
    char path[512];
    kit_file_path(dir, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK_MSG(fd >= 0, "%s", path);
    CHECK(write(fd, at, n) == (ssize_t)n);
    close(fd);
}

static inline tier *kit_tier_open(const char *dir, uint64_t budget, const char *boot_id,
                                  uint32_t flags) {
    char why[512] = "";
    tier *t;
    tier_options options = {.dir = dir, .budget_bytes = budget, .boot_id = boot_id, .flags = flags};
    kvt_status status = tier_open(&options, why, sizeof why, &t);
    CHECK_MSG(status == KVT_OK, "%s: %s", kvt_status_name(status), why);
    return t;
}

/* To the files, the same as if the process had been killed between two calls: what was written is
 * in the kernel's hands, the stamp says that the tier is in use. */
static inline void kit_tier_kill(tier *t, const char *dir) {
    char stamp[256];
    size_t n = kit_file_read(dir, "stamp", stamp, sizeof stamp);
    tier_close(t);
    kit_file_write(dir, "stamp", stamp, n);
}

static inline uint32_t kit_realm(tier *t, const char *name) {
    uint32_t realm;
    CHECK_EQ(tier_realm_define(t, name, strlen(name), &realm), KVT_OK);
    return realm;
}

/* A random tree: n pages of up to max_bytes, parents in front of their children. */
static inline void kit_tree(kit_page *pages, int n, uint32_t realm, const char *realm_name,
                            uint32_t max_bytes, uint64_t *random) {
    for (int i = 0; i < n; i++) {
        kit_page *p = &pages[i];
        *p = (kit_page){.parent = i ? (int)check_below(random, (uint32_t)i + 1) - 1 : -1,
                        .realm = realm,
                        .bytes = 1 + check_below(random, max_bytes),
                        .n_tokens = (uint16_t)(1 + check_below(random, TIER_MAX_TOKENS))};
        p->rows = p->n_tokens;
        for (uint32_t k = 0; k < p->n_tokens; k++)
            p->tokens[k] = (uint32_t)check_random(random);
        p->parent_key = tier_key_root(realm_name, strlen(realm_name));
        if (p->parent >= 0) {
            p->parent_key = pages[p->parent].key;
            p->depth = pages[p->parent].depth + 1;
        }
        p->key = tier_key_child(&p->parent_key, p->slot, p->tokens, p->n_tokens);
    }
}

/* Bytes [0 .. n) of a page's version; every second one is of few values, as those of floats are. */
static inline void kit_bytes(const kit_page *page, int number, uint8_t *to, size_t n) {
    uint64_t random = (uint64_t)number << 32 | page->version;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = check_random(&random);
        for (size_t k = 0; k < 8 && i + k < n; k++)
            to[i + k] = (uint8_t)((r >> 8 * k) & (k & 1 ? 7 : 255));
    }
}

static inline void kit_describe(const kit_page *pages, int number, tier_record *ret_record) {
    const kit_page *p = &pages[number];
    *ret_record = (tier_record){.key = p->key,
                                .parent = p->parent_key,
                                .serial = p->serial,
                                .parent_serial = p->parent < 0 ? 0 : pages[p->parent].serial,
                                .realm = p->realm,
                                .depth = p->depth,
                                .slot = p->slot,
                                .rows = p->rows,
                                .n_tokens = p->n_tokens,
                                .bytes = p->bytes,
                                .tokens = p->tokens};
}

/* With its bytes, which the caller frees. */
static inline void kit_record(const kit_page *pages, int number, tier_record *ret_record) {
    kit_describe(pages, number, ret_record);
    ret_record->at = malloc(pages[number].bytes);
    CHECK(ret_record->at);
    kit_bytes(&pages[number], number, ret_record->at, pages[number].bytes);
}

#endif
