/*
 * test_tier_files.c - the directory of a disk tier: whose it has to be.
 */
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

int main(void) {
    test_others();
    return 0;
}
