/*
 * test_tier_files.c - the directory of a disk tier: whose it has to be.
 */
#include "store/tier_lmdb.h"
#include "tests/tier_kit.h"

#include <stdio.h>

static void is_denied(const char *dir, const char *words, const char *cure) {
    char why[512] = "";
    tier *t = NULL;
    tier_options options = {.dir = dir, .budget_bytes = 16 << 20, .boot_id = "b"};
    CHECK_EQ(tier_open(&options, why, sizeof why, &t), KVT_EDENIED);
    CHECK_MSG(!t && strstr(why, dir) && strstr(why, words) && strstr(why, cure), "%s", why);
}

static void is_open(const char *dir) {
    char why[512] = "";
    tier *t;
    tier_options options = {.dir = dir, .budget_bytes = 16 << 20, .boot_id = "b"};
    CHECK_MSG(tier_open(&options, why, sizeof why, &t) == KVT_OK, "%s", why);
    tier_close(t);
}

/* Where others may write, or own what is there, nothing is read or written. */
static void test_others(void) {
    static const char *const files[] = {"data.mdb", "lock", "stamp", "ballast"};
    const char *dir = kit_dir("others");
    char path[512], away[512];
    is_open(dir);
    for (int bit = 0; bit < 2; bit++) {
        CHECK_EQ(chmod(dir, bit ? 0702 : 01720), 0);
        is_denied(dir, bit ? "mode 0702" : "mode 1720", "chmod 0700");
    }
    CHECK_EQ(chmod(dir, 0755), 0); /* others may see that it is there */
    is_open(dir);
    kit_file_path(dir, "away", away);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        kit_file_path(dir, files[i], path);
        CHECK_EQ(rename(path, away), 0);
        CHECK_EQ(symlink(away, path), 0);
        is_denied(dir, "is no file", "remove it");
        CHECK_EQ(rename(away, path), 0);
        is_open(dir);
        if (geteuid() != 0)
            continue;
        CHECK_EQ(chown(path, 65534, (gid_t)-1), 0);
        is_denied(dir, "belongs to user 65534, and this daemon runs as user 0", "chown");
        CHECK_EQ(chown(path, 0, (gid_t)-1), 0);
    }
    if (geteuid() == 0) {
        CHECK_EQ(chown(dir, 65534, (gid_t)-1), 0);
        is_denied(dir, "belongs to user 65534, and this daemon runs as user 0", "chown");
        CHECK_EQ(chown(dir, 0, (gid_t)-1), 0);
    }
    is_open(dir);
    kit_remove(dir);
}

/* Whose end nobody would ever open: what waits for that waits for ever. */
static void test_fifos(void) {
    static const char *const files[] = {"data.mdb", "lock", "stamp", "stamp.new", "ballast"};
    const char *dir = kit_dir("fifos");
    char path[512];
    CHECK_EQ(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        kit_file_path(dir, files[i], path);
        CHECK_EQ(mkfifo(path, 0600), 0);
        is_denied(dir, "is no file", "remove it");
        CHECK_EQ(unlink(path), 0);
    }
    is_open(dir);
    kit_remove(dir);
}

static uint32_t entries_of(const char *dir) {
    uint32_t n = 0;
    DIR *entries = opendir(dir);
    CHECK(entries);
    while (readdir(entries))
        n++;
    closedir(entries);
    return n;
}

/* Somebody else's file of that name, with its stamp: refused, and nothing made or changed. */
static void is_left(const char *dir, const char *what) {
    static uint8_t before[1 << 20], after[sizeof before];
    size_t n = kit_file_read(dir, "data.mdb", before, sizeof before);
    uint32_t n_entries = entries_of(dir);
    CHECK(n > 0);
    is_denied(dir, what, "another directory; or remove it");
    CHECK_EQ(kit_file_read(dir, "data.mdb", after, sizeof after), n);
    CHECK(memcmp(before, after, n) == 0);
    CHECK_EQ(entries_of(dir), n_entries);
}

static void test_foreign(void) {
    static const uint8_t key[4] = {0};
    char path[512];
    lmdb *l;
    const char *dir = kit_dir("foreign");
    CHECK_EQ(mkdir(dir, 0700), 0);
    kit_file_path(dir, "data.mdb", path);
    kit_file_write(dir, "data.mdb", "no database", 11);
    is_left(dir, "no file \"stamp\" beside it");
    CHECK_EQ(unlink(path), 0);
    /* Even one whose databases have the same names. */
    CHECK_EQ(lmdb_open(path, 1 << 20, &l), KVT_OK);
    CHECK_EQ(lmdb_bases(l), KVT_OK);
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(lmdb_begin(l, 1), KVT_OK);
        CHECK_EQ(lmdb_put(l, round ? LMDB_REALMS : LMDB_INDEX, (lmdb_bytes){key, sizeof key},
                          (lmdb_bytes){"theirs", 6}, 1),
                 KVT_OK);
        CHECK_EQ(lmdb_commit(l), KVT_OK);
        CHECK_EQ(lmdb_sync(l), KVT_OK);
        is_left(dir, "no file \"stamp\" beside it");
    }
    lmdb_close(l);
    kit_file_write(dir, "stamp", "0.49 EUR\n", 9);
    is_left(dir, "the \"stamp\" beside it is another's");
    CHECK_EQ(unlink(path), 0); /* as the message says */
    is_open(dir);
    kit_remove(dir);
}

/* A tier's own whose stamp was lost, or torn, is not somebody else's: a new one takes its place. */
static void test_lost_stamp(void) {
    const char *dir = kit_dir("lost-stamp");
    char path[512];
    tier_usage u;
    for (int round = 0; round < 3; round++) {
        is_open(dir);
        kit_file_path(dir, "stamp", path);
        CHECK_EQ(round == 0 ? unlink(path) : truncate(path, round == 1 ? 0 : 5), 0);
        tier *t = kit_tier_open(dir, 16 << 20, "b", 0);
        CHECK_EQ(tier_use(t, &u), KVT_OK);
        CHECK_EQ(u.found, TIER_FOUND_BROKEN);
        CHECK_EQ(u.moved_aside, 1);
        tier_close(t);
        kit_file_path(dir, "aside/broken.mdb", path);
        CHECK_EQ(access(path, F_OK), 0);
    }
    kit_remove(dir);
}

/* A link in aside's place is not followed, and a directory in its file's takes none: then a broken
 * file is deleted, which is said. */
static void test_no_aside(void) {
    enum { LARGE = 6 << 20 }; /* more than may lie aside */
    const char *dir = kit_dir("no-aside");
    char path[512], away[512];
    tier_usage u;
    for (int linked = 0; linked < 2; linked++) {
        is_open(dir);
        kit_file_path(dir, "away", away);
        kit_file_path(dir, "aside", path);
        CHECK_EQ(mkdir(away, 0700), 0);
        CHECK_EQ(linked ? symlink(away, path) : mkdir(path, 0700), 0);
        kit_file_path(dir, linked ? "away/broken.mdb" : "aside/broken.mdb", path);
        CHECK_EQ(linked ? mknod(path, S_IFREG | 0600, 0) : mkdir(path, 0700), 0);
        CHECK(!linked || truncate(path, LARGE) == 0);
        if (!linked) /* of an earlier start, which says nothing of this one */
            kit_file_write(dir, "aside/other-version.mdb", "older", 5);
        kit_file_write(dir, "stamp", "", 0);
        tier *t = kit_tier_open(dir, 16 << 20, "b", 0);
        CHECK_EQ(tier_use(t, &u), KVT_OK);
        CHECK_EQ(u.found, TIER_FOUND_BROKEN);
        CHECK_EQ(u.moved_aside, 0);
        CHECK_EQ(u.aside_bytes, linked ? 0 : 5);
        CHECK_EQ(u.aside_removed_bytes, 0);
        tier_close(t);
        struct stat st;
        CHECK_EQ(stat(path, &st), 0);
        CHECK(linked ? st.st_size == LARGE : S_ISDIR(st.st_mode));
        kit_remove(dir);
    }
}

int main(void) {
    test_foreign();
    test_lost_stamp();
    test_no_aside();
    test_others();
    test_fifos();
    return 0;
}
