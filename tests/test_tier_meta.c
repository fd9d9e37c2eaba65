/*
 * test_tier_meta.c - flipped bits in what LMDB believes when it opens a file: the meta pages.
 */
#include "store/tier.h"
#include "store/tier_record.h"
#include "tests/tier_kit.h"

#include <unistd.h>

enum { N_PAGES = 20, BUDGET = 16 << 20, MAX_BYTES = 30000 };

static const char closed[] = "kvtrunk-disk-tier 1 closed boot-1\n";
static kit_page pages[N_PAGES];

static tier *filled(const char *dir) {
    uint64_t random = 1;
    tier *t = kit_tier_open(dir, BUDGET, "boot-1", 0);
    kit_tree(pages, N_PAGES, kit_realm(t, "metas"), "metas", MAX_BYTES, &random);
    for (int i = 0; i < N_PAGES; i++) {
        tier_record r;
        pages[i].serial = (uint64_t)i + 1;
        kit_record(pages, i, &r);
        CHECK_EQ(tier_put(t, &r, 1), KVT_OK);
        CHECK_EQ(r.status, KVT_OK);
        free(r.at);
    }
    return t;
}

static void get_one(tier *t, int p, int is_there) {
    tier_record r;
    kit_record(pages, p, &r);
    uint8_t *expected = r.at, *found = malloc(r.bytes);
    r.at = found;
    CHECK_EQ(tier_get(t, &r), is_there ? KVT_OK : KVT_ENOENT);
    CHECK(!is_there || memcmp(found, expected, r.bytes) == 0);
    free(found);
    free(expected);
}

/* Where LMDB's meta pages have what it believes when it opens the file. */
typedef struct meta_field {
    size_t at, n;
    int is_used; /* by us, of the newest meta page */
} meta_field;

static const meta_field map_bytes_field = {32, 8, 0}, page_bytes_field = {40, 4, 1},
                        last_page_field = {136, 8, 1};

static uint64_t meta_txn(const uint8_t *file, size_t page) {
    uint64_t txn;
    memcpy(&txn, file + page * 4096 + 144, sizeof txn);
    return txn;
}

/* The file with one bit of a meta page flipped: all of it is used, or a new one takes its place. */
static void open_flipped(const char *dir, const uint8_t *file, size_t n_file, int is_harmless,
                         int is_hopeless) {
    char path[512];
    tier_usage u;
    kit_file_write(dir, "data.mdb", file, n_file);
    kit_file_write(dir, "stamp", closed, strlen(closed));
    tier *t = kit_tier_open(dir, BUDGET, "boot-1", 0);
    if (!is_harmless && !is_hopeless && tier_use(t, &u) != KVT_OK) { /* an end within the map */
        CHECK(tier_broken(t));
        tier_close(t);
        t = kit_tier_open(dir, BUDGET, "boot-1", TIER_CHECK); /* as the next helper does */
    }
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    if (u.found != TIER_FOUND_CLEAN)
        CHECK_EQ(u.found, TIER_FOUND_BROKEN);
    if (is_harmless || is_hopeless)
        CHECK_EQ(u.found, is_harmless ? TIER_FOUND_CLEAN : TIER_FOUND_BROKEN);
    kit_file_path(dir, "aside/broken.mdb", path);
    CHECK_EQ(unlink(path) == 0, u.found == TIER_FOUND_BROKEN);
    for (int p = 0; p < N_PAGES && (is_harmless || is_hopeless); p++)
        get_one(t, p, is_harmless);
    tier_close(t);
}

static void flip_metas(const char *dir, uint8_t *file, size_t n_file) {
    const meta_field fields[] = {map_bytes_field, page_bytes_field, last_page_field};
    size_t newest = meta_txn(file, 1) > meta_txn(file, 0);
    for (size_t page = 0; page < 2; page++)
        for (size_t f = 0; f < 3; f++)
            for (size_t bit = 0; bit < fields[f].n * 8; bit += fields[f].is_used ? 1 : 7) {
                int finds_other = page == 0 && fields[f].at == page_bytes_field.at;
                int is_believed = (fields[f].is_used && page == newest) || finds_other;
                /* the file's end at 64 MiB or more, in a map of less than 16 */
                int is_hopeless = is_believed && (fields[f].n == 4 || bit >= 14);
                uint8_t *at = file + page * 4096 + fields[f].at + bit / 8;
                *at ^= (uint8_t)(1 << bit % 8);
                open_flipped(dir, file, n_file, !is_believed, is_hopeless);
                *at ^= (uint8_t)(1 << bit % 8);
            }
}

/* A flipped bit of what says how large LMDB's pages, its map and its file are. */
static void test_flipped_metas(void) {
    static uint8_t file[8 << 20];
    uint64_t newest = 0;
    size_t n = 0;
    tier_usage u;
    const char *dir = kit_dir("metas");
    tier *t = filled(dir);
    for (int round = 0; round < 2; round++) { /* with either meta page the newest */
        tier_close(t);
        n = kit_file_read(dir, "data.mdb", file, sizeof file);
        newest += meta_txn(file, 1) > meta_txn(file, 0);
        flip_metas(dir, file, n);
        kit_file_write(dir, "data.mdb", file, n);
        kit_file_write(dir, "stamp", closed, strlen(closed));
        t = kit_tier_open(dir, BUDGET, "boot-1", 0);
        kit_realm(t, "another"); /* one transaction */
    }
    CHECK_EQ(newest, 1);
    tier_close(t);
    file[32 + 6] ^= 0x40; /* a map that nobody can have, and no stamp: a tier's nevertheless */
    file[4096 + 32 + 6] ^= 0x40;
    kit_file_write(dir, "data.mdb", file, n);
    kit_file_write(dir, "stamp", "", 0);
    t = kit_tier_open(dir, BUDGET, "boot-1", 0);
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK_EQ(u.found, TIER_FOUND_BROKEN);
    tier_close(t);
    kit_remove(dir);
}

int main(void) {
    test_flipped_metas();
    puts("test_tier_meta: ok");
    return 0;
}
