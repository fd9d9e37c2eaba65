/*
 * The disk tier as a library: a model of what it must hold, random operations, audits; what it does
 * with files that it cannot use; the budget; full maps.
 *
 *     test_tier [SEED [OPERATIONS]]
 */
#include "store/tier.h"
#include "store/tier_record.h"
#include "tests/tier_kit.h"

#include <fcntl.h>
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

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint32_t n_operations = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 20000;
    test_model(n_operations);
    puts("test_tier: ok");
    return 0;
}
