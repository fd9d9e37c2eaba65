/*
 * The disk tier's file and whoever else reads it: other processes that open it in LMDB's own way,
 * with its table of readers. They are killed as they read, or they go on reading while everything
 * is written and deleted a thousand times over.
 */
#include "tests/tier_kit.h"

#include <lmdb.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { N = 60, MAX_BYTES = 8000 };

static kit_page pages[N];

static tier *open_new(const char *dir) {
    uint64_t random = 1;
    tier *t = kit_tier_open(dir, 16 << 20, "boot-1", 0);
    kit_tree(pages, N, kit_realm(t, "readers"), "readers", MAX_BYTES, &random);
    return t;
}

static void put_all(tier *t) {
    tier_record records[N];
    for (int i = 0; i < N; i++) {
        pages[i].serial = tier_last_serial(t) + 1 + (uint32_t)i;
        pages[i].version++;
        kit_record(pages, i, &records[i]);
    }
    CHECK_EQ(tier_put(t, records, N), KVT_OK);
    for (int i = 0; i < N; i++) {
        CHECK_EQ(records[i].status, KVT_OK);
        free(records[i].at);
    }
}

static void del_all(tier *t) {
    tier_record records[N];
    for (int i = 0; i < N; i++)
        kit_describe(pages, N - 1 - i, &records[i]); /* children first */
    CHECK_EQ(tier_del(t, records, N), KVT_OK);
    for (int i = 0; i < N; i++)
        CHECK_EQ(records[i].status, KVT_OK);
}

static void get_one(tier *t, int p) {
    uint8_t found[MAX_BYTES];
    tier_record r;
    kit_record(pages, p, &r);
    uint8_t *expected = r.at;
    r.at = found;
    CHECK_EQ(tier_get(t, &r), KVT_OK);
    CHECK(memcmp(found, expected, r.bytes) == 0);
    free(expected);
}

static void audit(tier *t) {
    char why[256] = "";
    CHECK_MSG(tier_audit(t, why, sizeof why) == KVT_OK, "%s", why);
}

/* --- another process ----------------------------------------------------------------------------
 */

/* 'r': it reads; 'f': the table of readers is full, of which only the readers themselves know. */
static char begin_to_read(const char *dir) {
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    kit_file_path(dir, "data.mdb", path);
    int rc = mdb_env_create(&env);
    if (!rc)
        rc = mdb_env_open(env, path, MDB_NOSUBDIR | MDB_RDONLY, 0600);
    if (!rc)
        rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);
    return rc == 0 ? 'r' : rc == MDB_READERS_FULL ? 'f' : 'e';
}

static pid_t start_reader(const char *dir, char *ret_said) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        char said = begin_to_read(dir);
        if (write(ready[1], &said, 1) != 1)
            _exit(1);
        close(ready[1]);
        for (;;)
            pause();
    }
    close(ready[1]);
    CHECK(read(ready[0], ret_said, 1) == 1);
    close(ready[0]);
    return child;
}

static void kill_reader(pid_t reader) {
    int status;
    CHECK(kill(reader, SIGKILL) == 0);
    CHECK(waitpid(reader, &status, 0) == reader && WIFSIGNALED(status));
}

/* --- the tests ----------------------------------------------------------------------------------
 */

/* 200 of them die: more than the table has places. (One lives: else the next begins a new table.)
 * The tier is opened when there is no place left. */
static void test_dead_readers(void) {
    const char *dir = kit_dir("readers");
    tier *t = open_new(dir);
    int n_full = 0;
    char said;
    put_all(t);
    tier_close(t);
    pid_t lives = start_reader(dir, &said);
    CHECK_EQ(said, 'r');
    for (int i = 0; i < 200; i++) {
        kill_reader(start_reader(dir, &said));
        CHECK(said == 'r' || said == 'f');
        n_full += said == 'f';
    }
    CHECK(n_full > 0); /* else nothing was tried here */
    t = kit_tier_open(dir, 16 << 20, "boot-1", 0);
    for (int i = 0; i < N; i++)
        get_one(t, i);
    del_all(t);
    put_all(t);
    for (int i = 0; i < N; i++)
        get_one(t, i);
    audit(t);
    kill_reader(lives);
    tier_close(t);
    kit_remove(dir);
}

/* What is used is what is there, and the file grows no more once it has had all of it. */
static void test_churn(int with_reader) {
    enum { ROUNDS = 1000, SETTLED = 100 };
    const char *dir = kit_dir("churn");
    tier *t = open_new(dir);
    uint64_t settled = 0, used = 0;
    pid_t reader = 0;
    tier_usage u;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        put_all(t);
        CHECK_EQ(tier_use(t, &u), KVT_OK);
        CHECK_EQ(u.records, N);
        if (round == SETTLED && with_reader) {
            char said;
            reader = start_reader(dir, &said);
            CHECK_EQ(said, 'r');
        }
        del_all(t);
        CHECK_EQ(tier_use(t, &u), KVT_OK);
        CHECK_EQ(u.records + u.page_bytes + u.stored_bytes, 0);
        if (round < SETTLED) {
            settled = kit_dir_bytes(dir) > settled ? kit_dir_bytes(dir) : settled;
            used = u.used_bytes > used ? u.used_bytes : used;
        }
        CHECK_MSG(u.used_bytes <= used || round < SETTLED, "round %u: %" PRIu64 " bytes in use",
                  round, u.used_bytes);
        CHECK_MSG(kit_dir_bytes(dir) <= settled + (with_reader ? 65536 : 0) || round < SETTLED,
                  "round %u: the file has %" PRIu64 " bytes", round, kit_dir_bytes(dir));
    }
    put_all(t);
    for (int i = 0; i < N; i++)
        get_one(t, i);
    audit(t);
    if (reader)
        kill_reader(reader);
    tier_close(t);
    kit_remove(dir);
}

int main(void) {
    test_dead_readers();
    test_churn(0);
    test_churn(1);
    puts("test_tier_readers: ok");
    return 0;
}
