/*
 * The disk tier as a library: a model of what it must hold, random operations, audits; what it does
 * with files that it cannot use; the budget; full maps.
 *
 *     test_tier [SEED [OPERATIONS]]
 */
#include "store/tier.h"
#include "store/tier_record.h"
#include "tests/tier_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t seed;

static tier *open_at(const char *dir, uint64_t budget, uint32_t flags, tier_found expected) {
    tier *t = kit_tier_open(dir, budget, "boot-1", flags);
    tier_usage u;
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK_EQ(u.found, expected);
    return t;
}

static void audit(tier *t) {
    char why[256] = "";
    kvt_status status = tier_audit(t, why, sizeof why);
    CHECK_MSG(status == KVT_OK, "%s: %s (seed %" PRIu64 ")", kvt_status_name(status), why, seed);
}

/* --- the model ---------------------------------------------------------------------------------
 */

enum { MAX_PAGES = 400, MAX_BYTES = 40000 };

static kit_page pages[MAX_PAGES];
static int there[MAX_PAGES]; /* in the file, as far as it said */
static uint32_t n_full;

static int has_child(int at) {
    for (int i = 0; i < MAX_PAGES; i++)
        if (there[i] && pages[i].parent == at)
            return 1;
    return 0;
}

static void put_some(tier *t, uint64_t *random) {
    tier_record records[8];
    int at[8];
    uint32_t n = 1 + check_below(random, 8), picked = 0;
    for (uint32_t i = 0; i < 40 && picked < n; i++) {
        int p = (int)check_below(random, MAX_PAGES), again = 0;
        for (uint32_t k = 0; k < picked; k++)
            again |= at[k] == p;
        if (again)
            continue;
        at[picked] = p;
        if (!there[p])
            pages[p].serial = tier_last_serial(t) + 1 + picked;
        pages[p].version = there[p] ? pages[p].version + 1 : 1;
        kit_record(pages, p, &records[picked++]);
    }
    kvt_status status = tier_put(t, records, picked);
    for (uint32_t i = 0; i < picked; i++) {
        int p = at[i], parent = pages[p].parent;
        if (records[i].status == KVT_OK) {
            CHECK(status == KVT_OK);
            CHECK(parent < 0 || there[parent]);
            there[p] = 1;
        } else if (records[i].status == KVT_EORDER) {
            CHECK_MSG(parent >= 0 && !there[p], "page %d", p);
            for (uint32_t k = 0; k < i; k++) /* it may have come later in the batch */
                CHECK(at[k] != parent || records[k].status != KVT_OK);
        } else {
            CHECK_EQ(records[i].status, KVT_EFULL);
            n_full++;
            pages[p].version -= (uint32_t)there[p]; /* the old one stays */
        }
        free(records[i].at);
    }
}

static void del_some(tier *t, uint64_t *random) {
    int p = (int)check_below(random, MAX_PAGES);
    tier_record r;
    if (has_child(p))
        return;
    kit_record(pages, p, &r);
    free(r.at);
    CHECK_EQ(tier_del(t, &r, 1), KVT_OK);
    CHECK_EQ(r.status, there[p] ? KVT_OK : KVT_ENOENT);
    there[p] = 0;
}

static void get_one(tier *t, int p) {
    tier_record r;
    kit_record(pages, p, &r);
    uint8_t *expected = r.at, *found = malloc(r.bytes);
    r.at = found;
    kvt_status status = tier_get(t, &r);
    CHECK_MSG(status == (there[p] ? KVT_OK : KVT_ENOENT), "page %d: %s (seed %" PRIu64 ")", p,
              kvt_status_name(status), seed);
    if (status == KVT_OK)
        CHECK(memcmp(found, expected, r.bytes) == 0);
    free(found);
    free(expected);
}

typedef struct scan_sums {
    uint32_t n, last_depth;
} scan_sums;

static void scanned(void *context, const tier_record *r) {
    scan_sums *s = context;
    CHECK(r->depth >= s->last_depth);
    s->last_depth = r->depth;
    s->n++;
}

static uint32_t scan_all(tier *t, uint32_t step) {
    tier_place place = {0};
    scan_sums sums = {0};
    while (!place.done)
        CHECK_EQ(tier_scan(t, &place, step, scanned, &sums), KVT_OK);
    return sums.n;
}

static void check_all(tier *t) {
    tier_usage u;
    uint64_t n = 0, bytes = 0;
    for (int i = 0; i < MAX_PAGES; i++) {
        n += (uint64_t)there[i];
        bytes += there[i] ? pages[i].bytes : 0;
    }
    audit(t);
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK_EQ(u.records, n);
    CHECK_EQ(u.page_bytes, bytes);
    CHECK_EQ(scan_all(t, 7), n);
    CHECK_EQ(u.corrupt, 0);
    CHECK_EQ(u.orphans, 0);
}

static void test_model(uint32_t n_operations) {
    uint64_t random = seed;
    const char *dir = kit_dir("model");
    uint64_t budget = 6 << 20; /* of some 8 MB that the pages have: the map fills */
    tier *t = open_at(dir, budget, 0, TIER_FOUND_NONE);
    uint32_t realm = kit_realm(t, "model");
    kit_tree(pages, MAX_PAGES, realm, "model", MAX_BYTES, &random);
    memset(there, 0, sizeof there);
    for (uint32_t i = 0; i < n_operations; i++) {
        switch (check_below(&random, 8)) {
        case 0:
        case 1:
        case 2:
            put_some(t, &random);
            break;
        case 3:
        case 4:
            del_some(t, &random);
            break;
        case 5:
        case 6:
            get_one(t, (int)check_below(&random, MAX_PAGES));
            break;
        default:
            if (check_below(&random, 20) == 0) { /* closed, or killed: the same to what was done */
                int killed = check_below(&random, 2) == 0;
                if (killed)
                    kit_tier_kill(t, dir);
                else
                    tier_close(t);
                t = open_at(dir, budget, check_below(&random, 3) ? 0 : TIER_CHECK,
                            killed ? TIER_FOUND_KILLED : TIER_FOUND_CLEAN);
                CHECK_EQ(kit_realm(t, "model"), realm);
            }
        }
        CHECK(kit_dir_bytes(dir) <= budget);
        if (i % 97 == 0)
            check_all(t);
    }
    check_all(t);
    for (int i = 0; i < MAX_PAGES; i++)
        get_one(t, i);
    CHECK(n_operations < 5000 || n_full > 0); /* else it did not see a full map */
    tier_close(t);
    kit_remove(dir);
}

/* --- files that cannot be used -----------------------------------------------------------------
 */

/* Some pages in a new file; the last ones hang on each other. */
static tier *filled(const char *dir, uint32_t n, uint64_t *random) {
    tier *t = open_at(dir, 16 << 20, 0, TIER_FOUND_NONE);
    kit_tree(pages, (int)n, kit_realm(t, "files"), "files", MAX_BYTES, random);
    memset(there, 0, sizeof there);
    for (int i = 0; i < (int)n; i++) {
        tier_record r;
        pages[i].serial = (uint64_t)i + 1;
        kit_record(pages, i, &r);
        r.flags = i % 2 ? TIER_RAW16 : 0;
        CHECK_EQ(tier_put(t, &r, 1), KVT_OK);
        CHECK_EQ(r.status, KVT_OK);
        there[i] = 1;
        free(r.at);
    }
    return t;
}

static int exists(const char *dir, const char *name) {
    char path[512];
    kit_file_path(dir, name, path);
    return access(path, F_OK) == 0;
}

static void write_stamp(const char *dir, const char *text) {
    kit_file_write(dir, "stamp", text, strlen(text));
}

static void test_stamps(void) {
    static const struct {
        const char *stamp;
        tier_found expected;
        const char *aside;
    } cases[] = {
        {"kvtrunk-disk-tier 1 closed boot-0\n", TIER_FOUND_CLEAN, NULL},
        {"kvtrunk-disk-tier 1 open boot-1\n", TIER_FOUND_KILLED, NULL},
        {"kvtrunk-disk-tier 1 open boot-0\n", TIER_FOUND_CRASHED, NULL},
        {"kvtrunk-disk-tier 2 closed boot-1\n", TIER_FOUND_VERSION, "aside/other-version.mdb"},
        {"kvtrunk-disk-tier 1 op", TIER_FOUND_BROKEN, "aside/broken.mdb"},
        {"something else\n", TIER_FOUND_BROKEN, "aside/broken.mdb"},
        {"", TIER_FOUND_BROKEN, "aside/broken.mdb"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t random = seed + i;
        const char *dir = kit_dir("stamps");
        tier_close(filled(dir, 40, &random));
        write_stamp(dir, cases[i].stamp);
        tier *t = open_at(dir, 16 << 20, 0, cases[i].expected);
        int used = cases[i].expected == TIER_FOUND_CLEAN || cases[i].expected == TIER_FOUND_KILLED;
        for (int p = 0; p < 40; p++) {
            there[p] = used;
            get_one(t, p);
        }
        if (!used) /* another realm, and serials from the start */
            CHECK_EQ(scan_all(t, 100), 0);
        CHECK_EQ(cases[i].aside ? exists(dir, cases[i].aside) : !exists(dir, "aside"), 1);
        audit(t);
        tier_close(t);
        kit_remove(dir);
    }
}

/* Another program's file takes what the file system has left, to the last block. */
static void take_the_rest(const char *dir) {
    static const char zeros[4096];
    char path[512];
    kit_file_path(dir, "of-another", path);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    while (write(fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros)
        continue;
    CHECK_EQ(errno, ENOSPC);
    close(fd);
}

/* Closed in order where the file system is full: the stamp says so, or all would be thrown away
 * after the system has started anew. */
static void test_stamp_when_full(void) {
    uint64_t random = seed;
    const char *dir = kit_dir("full-stamp");
    CHECK_EQ(mkdir(dir, 0700), 0);
    if (mount("none", dir, "tmpfs", 0, "size=24m,mode=0700") != 0) {
        printf("test_tier: left out the stamp on a full disk: mounting a small tmpfs: %s\n",
               strerror(errno));
        kit_remove(dir);
        return;
    }
    tier *t = filled(dir, 40, &random);
    take_the_rest(dir);
    tier_close(t);
    CHECK(!exists(dir, "stamp.new"));
    t = kit_tier_open(dir, 16 << 20, "boot-2", 0);
    tier_usage u;
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK_EQ(u.found, TIER_FOUND_CLEAN);
    CHECK_EQ(u.records, 40);
    tier_close(t);
    CHECK_EQ(umount2(dir, MNT_DETACH), 0);
    kit_remove(dir);
}

/* A budget smaller than the file: never more than the budget. */
static void test_smaller_budget(void) {
    uint64_t random = seed;
    const char *dir = kit_dir("smaller");
    tier_close(filled(dir, 300, &random)); /* about 6 MB */
    tier *t = open_at(dir, 4 << 20, 0, TIER_FOUND_LARGER);
    CHECK(kit_dir_bytes(dir) <= 4 << 20);
    tier_close(t);
    t = open_at(dir, 4 << 20, 0, TIER_FOUND_CLEAN);
    tier_close(t);
    kit_remove(dir);
}

/* What is moved aside counts in the budget; what does not fit goes, at once or at a later start. */
static void test_aside_counts(void) {
    uint64_t random = seed;
    tier_usage u;
    const char *dir = kit_dir("aside");
    const uint64_t budget = 16 << 20;
    tier_close(filled(dir, 150, &random)); /* about 3 MB */
    write_stamp(dir, "kvtrunk-disk-tier 2 closed boot-1\n");
    tier *t = open_at(dir, budget, 0, TIER_FOUND_VERSION);
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK(u.aside_bytes > 2 << 20 && u.aside_bytes <= budget / 4 && u.aside_removed_bytes == 0);
    CHECK(u.map_bytes + u.aside_bytes < budget);
    tier_close(t);
    t = open_at(dir, 8 << 20, 0, TIER_FOUND_CLEAN); /* more than a quarter of this one */
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK(u.aside_bytes == 0 && u.aside_removed_bytes > 2 << 20 && !exists(dir, "aside"));
    tier_close(t);
    kit_remove(dir);
    dir = kit_dir("aside-large");
    tier_close(filled(dir, 300, &random)); /* about 6 MB */
    write_stamp(dir, "kvtrunk-disk-tier 2 closed boot-1\n");
    t = open_at(dir, budget, 0, TIER_FOUND_VERSION);
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK(u.aside_bytes == 0 && u.aside_removed_bytes > 4 << 20 && !exists(dir, "aside"));
    tier_close(t);
    kit_remove(dir);
}

static void test_refusals(void) {
    char why[256] = "";
    tier *t, *other;
    const char *dir = kit_dir("refused");
    tier_options options = {.dir = dir, .budget_bytes = 1 << 20, .boot_id = "b"};
    CHECK_EQ(tier_open(&options, why, sizeof why, &t), KVT_EINVAL);
    CHECK(why[0]);
    options.budget_bytes = 16 << 20;
    CHECK_EQ(tier_open(&options, why, sizeof why, &t), KVT_OK);
    why[0] = 0;
    CHECK_EQ(tier_open(&options, why, sizeof why, &other), KVT_EBUSY);
    CHECK(strstr(why, dir));
    /* Who removes the lock's file, as left behind, removes no lock. */
    char lock[512];
    kit_file_path(dir, "lock", lock);
    CHECK_EQ(unlink(lock), 0);
    for (int i = 0; i < 2; i++) /* the first attempt makes another one */
        CHECK_EQ(tier_open(&options, why, sizeof why, &other), KVT_EBUSY);
    tier_close(t);
    CHECK_EQ(tier_open(&options, why, sizeof why, &t), KVT_OK);
    tier_close(t);
    options.dir = "/proc/kvtrunk-no-such-place";
    CHECK(tier_open(&options, why, sizeof why, &t) != KVT_OK);
    tier_close(NULL);
    kit_remove(dir);
}

/* --- who may share -----------------------------------------------------------------------------
 */

/* Keys are the same in every process, on every machine: as another implementation of the hash makes
 * them of the bytes that TIER_FORMAT.md names. */
static void test_keys(void) {
    static const uint32_t tokens[] = {1, 2, 70000};
    static const uint8_t expected[2][TIER_KEY_BYTES] = {
        {0xc8, 0x71, 0x40, 0xff, 0xad, 0xce, 0xa7, 0x29, 0x88, 0xb5, 0x29, 0xff, 0xc6, 0x57, 0x3c,
         0xf1},
        {0x87, 0xef, 0x6e, 0x30, 0xad, 0xb1, 0x74, 0xaa, 0xbf, 0x5c, 0xcc, 0x03, 0x4b, 0x8b, 0xbe,
         0xd3},
    };
    tier_key root = tier_key_root("realm", 5), child = tier_key_child(&root, 2, tokens, 3);
    CHECK(memcmp(root.at, expected[0], TIER_KEY_BYTES) == 0);
    CHECK(memcmp(child.at, expected[1], TIER_KEY_BYTES) == 0);
}

/* Keys of 8 bits: a thousand prefixes share 256 names. Those that cannot be stored are refused, and
 * their children too; the others are read back right. */
static void test_collisions(void) {
    enum { N = 1000 };
    static kit_page many[N];
    static int stored[N];
    uint64_t random = seed;
    const char *dir = kit_dir("collisions");
    tier *t = open_at(dir, 64 << 20, 0, TIER_FOUND_NONE);
    uint32_t n_refused = 0, n_orphans = 0;
    tier_key_debug_bits(8);
    kit_tree(many, N, kit_realm(t, "r"), "r", 500, &random);
    for (int i = 0; i < N; i++) {
        tier_record r;
        many[i].serial = (uint64_t)i + 1;
        kit_record(many, i, &r);
        CHECK_EQ(tier_put(t, &r, 1), KVT_OK);
        stored[i] = r.status == KVT_OK;
        n_refused += r.status == KVT_EEXIST;
        n_orphans += r.status == KVT_EORDER;
        CHECK(stored[i] || r.status == KVT_EEXIST || r.status == KVT_EORDER);
        CHECK(!stored[i] || many[i].parent < 0 || stored[many[i].parent]);
        CHECK_EQ(r.serial, many[i].serial); /* it never took itself for another */
        free(r.at);
    }
    CHECK(n_refused > 50 && n_orphans > 50);
    for (int i = 0; i < N; i++) {
        tier_record r;
        kit_record(many, i, &r);
        uint8_t *expected = r.at, found[500];
        r.at = found;
        CHECK_EQ(tier_get(t, &r), stored[i] ? KVT_OK : KVT_ENOENT);
        if (stored[i])
            CHECK(memcmp(found, expected, r.bytes) == 0);
        free(expected);
    }
    audit(t);
    tier_key_debug_bits(128);
    tier_close(t);
    kit_remove(dir);
}

/* A page went, and the one behind it was left there: when both are written again, that is no other
 * page of this name. */
static void test_left_behind(void) {
    static kit_page two[2];
    uint64_t random = seed;
    const char *dir = kit_dir("left");
    tier *t = open_at(dir, 64 << 20, 0, TIER_FOUND_NONE);
    tier_record r[2];
    tier_usage u;
    do
        kit_tree(two, 2, kit_realm(t, "r"), "r", 500, &random);
    while (two[1].parent != 0);
    for (uint64_t round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            two[i].serial = 1 + (uint64_t)i + 10 * round;
            kit_record(two, i, &r[i]);
            CHECK_EQ(tier_put(t, &r[i], 1), KVT_OK);
            CHECK_EQ(r[i].status, KVT_OK);
            CHECK_EQ(r[i].serial, two[i].serial);
            free(r[i].at);
        }
        CHECK_EQ(tier_use(t, &u), KVT_OK);
        CHECK_EQ(u.records, 2);
        CHECK_EQ(u.orphans, round);
        audit(t);
        if (round == 0)
            CHECK_EQ(tier_del(t, &r[0], 1), KVT_OK);
    }
    uint8_t found[500];
    kit_describe(two, 1, &r[1]);
    r[1].at = found;
    CHECK_EQ(tier_get(t, &r[1]), KVT_OK);
    tier_close(t);
    kit_remove(dir);
}

/* Each field of what is asked for counts, one by one. */
static void test_foreign(void) {
    uint64_t random = seed;
    const char *dir = kit_dir("foreign");
    tier *t = filled(dir, 10, &random);
    uint32_t tokens[TIER_MAX_TOKENS], other_realm = kit_realm(t, "filesx");
    tier_usage u;
    CHECK(other_realm != pages[0].realm);
    for (int field = 0; field < 9; field++) {
        tier_record r;
        kit_record(pages, 5, &r);
        memcpy(tokens, r.tokens, 4 * (size_t)r.n_tokens);
        r.tokens = tokens;
        switch (field) {
        case 0:
            r.realm = other_realm;
            break;
        case 1:
            r.serial += 100;
            break;
        case 2:
            r.parent_serial += 100;
            break;
        case 3:
            r.parent.at[15] ^= 1;
            break;
        case 4:
            r.slot++;
            break;
        case 5:
            r.rows--;
            break;
        case 6:
            tokens[r.n_tokens - 1] ^= 1;
            break;
        case 7:
            r.bytes--;
            break;
        default:
            r.n_tokens--;
            break;
        }
        CHECK_EQ(tier_get(t, &r), KVT_ENOENT);
        free(r.at);
        CHECK_EQ(tier_use(t, &u), KVT_OK);
        CHECK_EQ(u.foreign, field + 1);
    }
    get_one(t, 5); /* and it is still there */
    tier_close(t);
    kit_remove(dir);
}

/* --- room --------------------------------------------------------------------------------------
 */

/* Ten times the budget goes through the file, oldest out first; the file never exceeds the budget,
 * and at its fullest deleting works. */
static void test_budget(uint32_t page_bytes) {
    enum { RING = 8192 };
    static uint64_t serials[RING];
    static uint32_t firsts[RING];
    const uint64_t budget = 12 << 20;
    const char *dir = kit_dir("budget");
    tier *t = open_at(dir, budget, 0, TIER_FOUND_NONE);
    uint32_t realm = kit_realm(t, "r"), head = 0, tail = 0, refused = 0;
    uint64_t written = 0, least_live = UINT64_MAX, live = 0;
    tier_key root = tier_key_root("r", 1);
    uint8_t *bytes = malloc(page_bytes);
    memset(bytes, 'x', page_bytes);
    for (uint32_t i = 0; written < 10 * budget; i++) {
        tier_record r = {.realm = realm,
                         .parent = root,
                         .serial = i + 1,
                         .rows = 1,
                         .n_tokens = 1,
                         .bytes = page_bytes,
                         .tokens = &i,
                         .at = bytes};
        r.key = tier_key_child(&root, 0, &i, 1);
        while (tier_put(t, &r, 1) == KVT_EFULL) {
            tier_record gone[4];
            uint32_t n = 0;
            refused++;
            if (written > budget && live < least_live)
                least_live = live;
            for (; n < 4 && tail < head; n++, tail++) {
                gone[n] = (tier_record){.serial = serials[tail % RING]};
                gone[n].key = tier_key_child(&root, 0, &firsts[tail % RING], 1);
            }
            CHECK(n > 0);
            CHECK_EQ(tier_del(t, gone, n), KVT_OK);
            for (uint32_t k = 0; k < n; k++)
                CHECK_EQ(gone[k].status, KVT_OK);
            live -= (uint64_t)n * page_bytes;
        }
        CHECK_EQ(r.status, KVT_OK);
        serials[head % RING] = r.serial;
        firsts[head++ % RING] = i;
        CHECK(head - tail <= RING);
        written += page_bytes;
        live += page_bytes;
        CHECK(i % 16 || kit_dir_bytes(dir) <= budget);
    }
    CHECK(refused > 0);
    /* What it holds when it says that it is full: most of the budget. */
    printf("test_tier: pages of %u bytes: full at %.0f %% of the budget or more\n", page_bytes,
           100.0 * (double)least_live / (double)budget);
    CHECK_MSG(least_live > budget * (page_bytes < 4096 ? 3 : 6) / 10, "%" PRIu64 " of %" PRIu64,
              least_live, budget);
    audit(t);
    free(bytes);
    tier_close(t);
    kit_remove(dir);
}

/* Filled to the last page by writers that never delete; then everything goes, 64 at a time. */
static void test_delete_when_full(void) {
    uint64_t random = seed;
    const char *dir = kit_dir("full");
    tier *t = open_at(dir, 4 << 20, 0, TIER_FOUND_NONE);
    uint32_t realm = kit_realm(t, "r"), n = 0;
    tier_key root = tier_key_root("r", 1);
    static uint8_t bytes[3000];
    static uint32_t names[4000];
    for (uint32_t step = 3000; step > 0; step = step == 3000 ? 10 : 0) /* to the brim */
        for (;; n++) {
            names[n] = (uint32_t)check_random(&random);
            tier_record r = {.realm = realm,
                             .parent = root,
                             .serial = n + 1,
                             .rows = 1,
                             .n_tokens = 1,
                             .bytes = step,
                             .tokens = &names[n],
                             .at = bytes};
            r.key = tier_key_child(&root, 0, &names[n], 1);
            if (tier_put(t, &r, 1) != KVT_OK)
                break;
            CHECK(n + 1 < 4000);
        }
    CHECK(n > 500);
    for (uint32_t i = 0; i < n;) {
        tier_record gone[TIER_MAX_BATCH];
        uint32_t some = 0;
        for (; some < TIER_MAX_BATCH && i < n; some++, i++) {
            gone[some] = (tier_record){.serial = i + 1};
            gone[some].key = tier_key_child(&root, 0, &names[i], 1);
        }
        CHECK_EQ(tier_del(t, gone, some), KVT_OK);
        for (uint32_t k = 0; k < some; k++)
            CHECK_EQ(gone[k].status, KVT_OK);
        CHECK(kit_dir_bytes(dir) <= 4 << 20);
    }
    tier_usage u;
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK_EQ(u.records, 0);
    CHECK_EQ(u.page_bytes, 0);
    audit(t);
    tier_close(t);
    kit_remove(dir);
}

/* --- orphans, realms, verify -------------------------------------------------------------------
 */

static void test_orphans(void) {
    uint64_t random = seed;
    const char *dir = kit_dir("orphans");
    tier *t = filled(dir, 200, &random);
    int gone = -1;
    for (int i = 199; i >= 0 && gone < 0; i--)
        if (has_child(i))
            gone = i;
    CHECK(gone >= 0);
    tier_record r;
    kit_describe(pages, gone, &r);
    CHECK_EQ(tier_del(t, &r, 1), KVT_OK);
    there[gone] = 0;
    uint32_t n_gone = 1; /* and all that is behind it */
    for (int i = 0; i < 200; i++)
        if (there[i] && pages[i].parent >= 0 && !there[pages[i].parent]) {
            there[i] = 0;
            n_gone++;
        }
    /* The same page again is not the one that they hang on: its serial is another. */
    uint64_t old = pages[gone].serial;
    pages[gone].serial = tier_last_serial(t) + 1;
    kit_record(pages, gone, &r);
    CHECK_EQ(tier_put(t, &r, 1), KVT_OK);
    CHECK_EQ(r.status, KVT_OK);
    CHECK(r.serial > old);
    free(r.at);
    there[gone] = 1;
    CHECK_EQ(scan_all(t, 10), 200 - n_gone + 1);
    CHECK_EQ(scan_all(t, 1000), 200 - n_gone + 1);
    for (int i = 0; i < 200; i++)
        get_one(t, i);
    audit(t);
    tier_close(t);
    kit_remove(dir);
}

static void test_realms(void) {
    uint64_t random = seed;
    const char *dir = kit_dir("realms");
    tier *t = filled(dir, 100, &random);
    uint8_t bytes[TIER_MAX_REALM_BYTES];
    size_t n_bytes;
    uint32_t first = pages[0].realm, n = 0, total = 0;
    CHECK_EQ(tier_realm_bytes(t, first, bytes, &n_bytes), KVT_OK);
    CHECK(n_bytes == 5 && memcmp(bytes, "files", 5) == 0);
    CHECK_EQ(tier_realm_bytes(t, first + 1, bytes, &n_bytes), KVT_ENOENT);
    CHECK_EQ(tier_realm_bytes(t, 0, bytes, &n_bytes), KVT_ENOENT);
    CHECK_EQ(tier_realm_define(t, bytes, 0, &n), KVT_ELIMIT);
    tier_close(t);
    t = open_at(dir, 16 << 20, 0, TIER_FOUND_CLEAN);
    /* More realms than there may be: those that nobody needs make room, those with pages stay. */
    for (uint32_t i = 0; i < TIER_MAX_REALMS + 50; i++) {
        char name[32];
        snprintf(name, sizeof name, "realm %u", i);
        kvt_status status = tier_realm_define(t, name, strlen(name), &n);
        CHECK(status == (i < TIER_MAX_REALMS - 1 ? KVT_OK : KVT_ELIMIT));
    }
    tier_close(t);
    t = open_at(dir, 16 << 20, 0, TIER_FOUND_CLEAN);
    CHECK_EQ(kit_realm(t, "one more"), TIER_MAX_REALMS + 1);
    CHECK_EQ(kit_realm(t, "files"), first);
    tier_place place = {0};
    while (!place.done) {
        CHECK_EQ(tier_del_realm(t, first, &place, 33, &n), KVT_OK);
        total += n;
    }
    CHECK_EQ(total, 100);
    CHECK_EQ(scan_all(t, 1000), 0);
    audit(t);
    tier_close(t);
    kit_remove(dir);
}

/* The list of free pages in the file: LMDB has it under numbers of transactions. */
static size_t free_list(const char *dir, uint8_t *to, size_t room) {
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    MDB_cursor *cursor;
    MDB_val k, v;
    kit_file_path(dir, "data.mdb", path);
    CHECK_EQ(mdb_env_create(&env), 0);
    CHECK_EQ(mdb_env_open(env, path, MDB_NOSUBDIR | MDB_RDONLY | MDB_NOLOCK, 0600), 0);
    CHECK_EQ(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), 0);
    CHECK_EQ(mdb_cursor_open(txn, 0, &cursor), 0);
    CHECK_EQ(mdb_cursor_get(cursor, &k, &v, MDB_LAST), 0);
    size_t n = v.mv_size < room ? v.mv_size : room;
    memcpy(to, v.mv_data, n);
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    mdb_env_close(env);
    return n;
}

/* A file that was found broken, whatever is asked of it next: a request may have many records. */
static void refuses_all(tier *t) {
    tier_place place = {0};
    scan_sums sums = {0};
    tier_usage u;
    uint8_t bytes[TIER_MAX_REALM_BYTES];
    size_t n_bytes;
    uint64_t checked;
    uint32_t realm, n;
    tier_record r;
    kit_record(pages, 0, &r);
    CHECK_EQ(tier_get(t, &r), KVT_EIO);
    CHECK_EQ(tier_get(t, &r), KVT_EIO);
    CHECK_EQ(tier_put(t, &r, 1), KVT_EIO);
    CHECK_EQ(r.status, KVT_EIO);
    CHECK_EQ(tier_del(t, &r, 1), KVT_EIO);
    CHECK_EQ(tier_scan(t, &place, 10, scanned, &sums), KVT_EIO);
    CHECK_EQ(tier_verify(t, &place, 50000, &checked), KVT_EIO);
    CHECK_EQ(tier_del_realm(t, pages[0].realm, &place, 10, &n), KVT_EIO);
    CHECK_EQ(tier_realm_define(t, "another", 7, &realm), KVT_EIO);
    CHECK_EQ(tier_realm_bytes(t, pages[0].realm, bytes, &n_bytes), KVT_EIO);
    CHECK_EQ(tier_use(t, &u), KVT_EIO);
    free(r.at);
}

/* A free page far behind the map's end: seen before anything is written there. */
static void test_free_page_outside(void) {
    static uint8_t file[8 << 20], list[4096];
    uint64_t random = seed;
    char why[512];
    tier_usage u;
    const char *dir = kit_dir("outside");
    tier *t = filled(dir, 60, &random);
    for (int i = 0; i < 60; i++)
        del_some(t, &random);
    tier_close(t);
    size_t n_list = free_list(dir, list, sizeof list);
    size_t n = kit_file_read(dir, "data.mdb", file, sizeof file);
    CHECK(n_list >= 16);
    uint8_t *at = memmem(file, n, list, n_list);
    CHECK(at);
    at[8 + 2] ^= 0x04; /* page 262,144 or more: at 1 GiB */
    kit_file_write(dir, "data.mdb", file, n);
    t = kit_tier_open(dir, 16 << 20, "boot-1", 0);
    CHECK_EQ(tier_use(t, &u), KVT_EIO);
    CHECK(tier_broken(t));
    refuses_all(t);
    tier_close(t);
    t = kit_tier_open(dir, 16 << 20, "boot-1", TIER_CHECK); /* as the next helper does */
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK_EQ(u.found, TIER_FOUND_BROKEN);
    CHECK_EQ(tier_audit(t, why, sizeof why), KVT_OK);
    CHECK(u.file_bytes <= 16 << 20);
    tier_close(t);
    kit_remove(dir);
}

/* A byte of a value changed behind the tier's back: found by a read, or by verify, and dropped. */
static void test_damage(void) {
    enum { N = 30 };
    static uint8_t file[8 << 20];
    uint64_t random = seed, checked, total = 0;
    const char *dir = kit_dir("damage");
    tier_usage u;
    tier_close(filled(dir, N, &random));
    size_t n = kit_file_read(dir, "data.mdb", file, sizeof file);
    int damaged[2] = {-1, -1};
    for (int i = N - 1, k = 0; i >= 0 && k < 2; i--) { /* leaves, stored as they are */
        uint8_t bytes[64];
        if (has_child(i) || pages[i].bytes < 9000 || i % 2)
            continue;
        kit_bytes(&pages[i], i, bytes, sizeof bytes);
        uint8_t *at = memmem(file, n, bytes, sizeof bytes);
        CHECK(at);
        at[8000] ^= 0x10;
        damaged[k++] = i;
    }
    CHECK(damaged[1] >= 0);
    kit_file_write(dir, "data.mdb", file, n);
    tier *t = open_at(dir, 16 << 20, 0, TIER_FOUND_CLEAN);
    for (int i = 0; i < N; i++) {
        tier_record r;
        if (i == damaged[1])
            continue;
        kit_record(pages, i, &r);
        CHECK_EQ(tier_get(t, &r), i == damaged[0] ? KVT_ECORRUPT : KVT_OK);
        free(r.at);
    }
    there[damaged[0]] = 0;
    get_one(t, damaged[0]); /* a miss from now on */
    tier_place place = {0};
    while (!place.done) {
        CHECK_EQ(tier_verify(t, &place, 50000, &checked), KVT_OK);
        total += checked;
    }
    CHECK_EQ(total, N - 1);
    there[damaged[1]] = 0;
    for (int i = 0; i < N; i++)
        get_one(t, i);
    CHECK_EQ(tier_use(t, &u), KVT_OK);
    CHECK_EQ(u.corrupt, 2);
    CHECK_EQ(u.records, N - 2);
    audit(t);
    tier_close(t);
    kit_remove(dir);
}

/* The last pages of the file lost, as in a copy that was cut: it is looked through when it is
 * opened, and used or moved aside; what is read is right or missing. */
static void test_torn(void) {
    static uint8_t file[8 << 20];
    uint64_t random = seed;
    uint32_t opened = 0, aside = 0;
    for (uint32_t round = 0; round < 30; round++) {
        const char *dir = kit_dir("torn");
        tier_usage u;
        tier_close(filled(dir, 60, &random));
        size_t n = kit_file_read(dir, "data.mdb", file, sizeof file), lost;
        lost = (1 + check_below(&random, round < 10 ? 3 : (uint32_t)(n / 4096) - 1)) * 4096;
        lost -= check_below(&random, 2) ? check_below(&random, 4096) : 0;
        kit_file_write(dir, "data.mdb", file, n - lost);
        tier *t = kit_tier_open(dir, 16 << 20, "boot-1", 0);
        CHECK_EQ(tier_use(t, &u), KVT_OK);
        opened += u.found == TIER_FOUND_CLEAN;
        aside += u.found == TIER_FOUND_BROKEN;
        audit(t);
        for (int i = 0; i < 60; i++) {
            tier_record r;
            kit_record(pages, i, &r);
            uint8_t *expected = r.at, *found = malloc(r.bytes);
            r.at = found;
            if (tier_get(t, &r) == KVT_OK)
                CHECK(memcmp(found, expected, r.bytes) == 0);
            free(found);
            free(expected);
        }
        tier_close(t);
        kit_remove(dir);
    }
    CHECK(opened + aside == 30 && aside > 0);
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint32_t n_operations = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 20000;
    test_keys();
    test_refusals();
    test_stamps();
    test_stamp_when_full();
    test_smaller_budget();
    test_aside_counts();
    test_collisions();
    test_left_behind();
    test_foreign();
    test_orphans();
    test_realms();
    test_damage();
    test_free_page_outside();
    test_torn();
    test_delete_when_full();
    test_budget(70000);
    test_budget(8704);
    test_budget(1000);
    test_model(n_operations);
    puts("test_tier: ok");
    return 0;
}
