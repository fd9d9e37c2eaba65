/*
 * test_client_faults.c - the worker library when messages are lost, connections break, sessions end
 * and daemons are replaced: each call ends with a status that says so, what was perhaps done is
 * undone, and the library works again by itself.
 */
#include "client/client.h"
#include "tests/client_kit.h"

#include <nng/nng.h>
#include <pthread.h>
#include <unistd.h>

/* A time-out that passes in any case, since nothing comes of the call. */
enum { SHORT_MS = 60 };

static fake_daemon fake;
static kit_kv ours, theirs, out;

static void begin(void) {
    kvt_geometry geometry = kit_geometry();
    fake_init(&fake, &geometry);
    kit_fill(&ours, 1);
    kit_fill(&theirs, 2);
    fake_start(&fake);
}

static void end(void) {
    CHECK_EQ(fake_leases(&fake), 0);
    CHECK_EQ(fake.n_duplicates, 0);
    fake_close(&fake);
}

/* Time is over for a call when its message has come to the daemon, however long that takes. */
typedef struct expirer {
    kvt_client *client;
    kvt_op op;
    int seen;
    pthread_t thread;
} expirer;

static void *expire(void *argument) {
    expirer *e = argument;
    fake_wait_seen(&fake, e->op, e->seen);
    kvt_transport_expire(e->client->transport);
    return NULL;
}

static expirer expire_at(kvt_client *client, kvt_op op) {
    return (expirer){.client = client, .op = op, .seen = fake_seen(&fake, op) + 1};
}

/* The call sends an `op` that is not answered. */
#define CHECK_EXPIRES(client, op, call)                                                            \
    do {                                                                                           \
        expirer expirer_ = expire_at(client, op);                                                  \
        CHECK(pthread_create(&expirer_.thread, NULL, expire, &expirer_) == 0);                     \
        CHECK_STATUS(call, KVT_ETIMEDOUT);                                                         \
        CHECK(pthread_join(expirer_.thread, NULL) == 0);                                           \
    } while (0)

static uint64_t last_number(kvt_op op) {
    pthread_mutex_lock(&fake.lock);
    uint64_t number = fake.last_number[op];
    pthread_mutex_unlock(&fake.lock);
    return number;
}

/* A client connects again only after it has noticed that its connection broke: so once it is back,
 * the next call does not meet that. */
static void wait_back(int n_connections) {
    pthread_mutex_lock(&fake.lock);
    while (fake.n_connections <= n_connections)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}

static void cut(void) {
    int n = fake.n_connections;
    fake_cut_all(&fake);
    wait_back(n);
}

static void restart(void) {
    int n = fake.n_connections;
    fake_stop(&fake);
    fake_start(&fake);
    wait_back(n);
}

/* The op that came n messages before the last one. */
static int op_before(uint32_t n) {
    pthread_mutex_lock(&fake.lock);
    int op = fake.order[fake.n_order - 1 - n];
    pthread_mutex_unlock(&fake.lock);
    return op;
}

/* --- lost messages ------------------------------------------------------------------------------
 */

/* ACQUIRE and FORK that were not answered are cancelled before anything else is asked. */
static void test_cancel(void) {
    static const fake_trick tricks[] = {FAKE_LOSE_REPLY, FAKE_LOSE_REQUEST};
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    for (size_t i = 0; i < sizeof tricks / sizeof *tricks; i++) {
        kvt_lease *lease = NULL, *branch = NULL;
        fake_do(&fake, KVT_OP_ACQUIRE, tricks[i], 1);
        CHECK_EXPIRES(client, KVT_OP_ACQUIRE,
                      kvt_acquire(client, kit_tokens(32), 32, KVT_CLAIM, &lease));
        CHECK_EQ(fake_leases(&fake), tricks[i] == FAKE_LOSE_REPLY);
        uint64_t lost = last_number(KVT_OP_ACQUIRE);
        lease = kit_acquire(client, 32, KVT_CLAIM);
        CHECK(fake.cancelled == lost);
        CHECK_EQ(op_before(0), KVT_OP_ACQUIRE);
        CHECK_EQ(op_before(1), KVT_OP_CANCEL);
        CHECK_EQ(fake_leases(&fake), 1);
        fake_do(&fake, KVT_OP_FORK, tricks[i], 1);
        CHECK_EXPIRES(client, KVT_OP_FORK, kvt_fork(lease, 20, &branch));
        CHECK_STATUS(kvt_release(lease), KVT_OK);
        CHECK(fake.cancelled == last_number(KVT_OP_FORK));
        CHECK_EQ(fake_leases(&fake), 0);
    }
    kvt_close(client);
    end();
}

/* The undoing itself may get no answer: it is done again. */
static void test_cancel_lost(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL;
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_LOSE_REPLY, 1);
    CHECK_EXPIRES(client, KVT_OP_ACQUIRE, kvt_acquire(client, kit_tokens(32), 32, 0, &lease));
    fake_do(&fake, KVT_OP_CANCEL, FAKE_LOSE_REQUEST, 1);
    CHECK_EXPIRES(client, KVT_OP_CANCEL, kvt_acquire(client, kit_tokens(32), 32, 0, &lease));
    CHECK_EQ(fake_seen(&fake, KVT_OP_ACQUIRE), 1); /* not before that is undone */
    CHECK_EQ(fake_leases(&fake), 1);
    lease = kit_acquire(client, 32, 0);
    CHECK_EQ(fake_seen(&fake, KVT_OP_CANCEL), 2);
    CHECK_EQ(fake_leases(&fake), 1);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* Leases whose RELEASE was not answered are released together, with the next call. */
static void test_release_lost(void) {
    static const fake_trick tricks[] = {FAKE_LOSE_REPLY, FAKE_LOSE_REQUEST};
    begin();
    kvt_client *client = kit_open(&fake);
    for (size_t i = 0; i < sizeof tricks / sizeof *tricks; i++) {
        kvt_lease *one = kit_acquire(client, 32, 0), *two = kit_acquire(client, 16, 0);
        int n = fake_seen(&fake, KVT_OP_RELEASE);
        fake_do(&fake, KVT_OP_RELEASE, tricks[i], 1);
        CHECK_EXPIRES(client, KVT_OP_RELEASE, kvt_release(one));
        fake_do(&fake, KVT_OP_RELEASE, FAKE_LOSE_REQUEST, 1);
        CHECK_EXPIRES(client, KVT_OP_RELEASE, kvt_release(two)); /* in undoing the first */
        CHECK_STATUS(kvt_release(kit_acquire(client, 1, 0)), KVT_OK);
        CHECK_EQ(fake_seen(&fake, KVT_OP_RELEASE), n + 4);
        CHECK_EQ(fake_leases(&fake), 0);
    }
    kvt_close(client);
    end();
}

/* Nobody knows which path an EXTEND without an answer left: the lease is lost, and given back. */
static void test_extend_lost(void) {
    static const fake_trick tricks[] = {FAKE_LOSE_REPLY, FAKE_LOSE_REQUEST, FAKE_CUT_AFTER};
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    for (size_t i = 0; i < sizeof tricks / sizeof *tricks; i++) {
        kvt_lease *lease = kit_acquire(client, 32, KVT_CLAIM), *branch;
        fake_do(&fake, KVT_OP_ACQUIRE, tricks[i], 1);
        if (tricks[i] == FAKE_CUT_AFTER)
            CHECK_EQ(kvt_extend(lease, 32, kit_tokens(40) + 32, 8, KVT_CLAIM), KVT_ECONN);
        else
            CHECK_EXPIRES(client, KVT_OP_ACQUIRE,
                          kvt_extend(lease, 32, kit_tokens(40) + 32, 8, KVT_CLAIM));
        CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ESTALE);
        CHECK_EQ(kit_encode(lease, &ours, 2), KVT_ESTALE);
        CHECK_EQ(kvt_fork(lease, 1, &branch), KVT_ESTALE);
        CHECK_EQ(kvt_release(lease), KVT_ESTALE);
        CHECK_EQ(fake_leases(&fake), 0);
    }
    kvt_close(client);
    end();
}

/* --- a SEAL without an answer -------------------------------------------------------------------
 */

static void read_sealed(uint8_t *to, size_t *ret_n) {
    *ret_n = fake.seal_page.bytes;
    CHECK(pread(fake.seal_fd, to, *ret_n, (off_t)fake.seal_page.offset) == (ssize_t)*ret_n);
}

/* Its bytes stand still for ever after, since the daemon may read them late; other leases keep what
 * they have encoded, and in the end there is a new file. */
static void test_seal_lost(void) {
    static uint8_t before[FAKE_FRAME_BYTES], after[FAKE_FRAME_BYTES];
    size_t n_before, n_after;
    begin();
    kvt_client *client = kit_open(&fake);
    client->staging_pages = 3;
    kvt_lease *lease = NULL, *other = NULL;
    lease = kit_acquire(client, 64, KVT_CLAIM);
    other = kit_acquire(client, 64, KVT_CLAIM);
    CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
    CHECK_STATUS(kit_encode(other, &ours, 0), KVT_OK);
    fake_do(&fake, KVT_OP_SEAL, FAKE_LOSE_REPLY, 1);
    size_t sealed = 9;
    CHECK_EXPIRES(client, KVT_OP_SEAL, kvt_seal(lease, &sealed));
    CHECK_EQ(sealed, 0);
    read_sealed(before, &n_before);
    /* Other slots of the file may be used; that one not. */
    for (size_t page = 1; page < 3; page++)
        CHECK_STATUS(kit_encode(lease, &theirs, page), KVT_OK);
    for (size_t page = 1; page < 40 && kit_encode(other, &theirs, page) == KVT_OK; page++)
        ;
    read_sealed(after, &n_after);
    CHECK(n_before == n_after && memcmp(before, after, n_before) == 0);
    CHECK_STATUS(kvt_release(other), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    CHECK_EQ(fake_seen(&fake, KVT_OP_STAGE), 1);
    /* Nothing of the old file is used any more. */
    lease = kit_acquire(client, 64, KVT_CLAIM);
    CHECK_EQ(kit_info(lease).held_tokens, 16); /* it had been sealed */
    CHECK_STATUS(kit_encode(lease, &ours, 1), KVT_OK);
    CHECK_STATUS(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(fake_seen(&fake, KVT_OP_STAGE), 2);
    CHECK_EQ(op_before(0), KVT_OP_SEAL);
    CHECK_EQ(op_before(1), KVT_OP_STAGE);
    CHECK_EQ(fake_files(&fake), 0);
    read_sealed(after, &n_after);
    CHECK_STATUS(kit_decode(lease, &out, 0, 32), KVT_OK);
    CHECK(kit_right(&out, 1, 0, 32));
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* STAGE without an answer: the same file is announced again. */
static void test_stage_lost(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    fake_end_sessions(&fake);
    kvt_lease *lease = kit_acquire(client, 16, KVT_CLAIM);
    CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
    fake_do(&fake, KVT_OP_STAGE, FAKE_LOSE_REPLY, 1);
    CHECK_EXPIRES(client, KVT_OP_STAGE, kvt_seal(lease, NULL));
    CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
    CHECK_STATUS(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kit_info(lease).held_tokens, 16);
    CHECK_EQ(fake_files(&fake), 0);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* --- broken connections -------------------------------------------------------------------------
 */

/* The daemon still has the session: everything stays valid, nothing is registered anew. */
static void test_resumed(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    kvt_lease *lease = kit_acquire(client, 48, KVT_CLAIM), *again = NULL;
    CHECK_STATUS(kit_encode(lease, &ours, 2), KVT_OK);
    cut();
    CHECK_STATUS(kit_decode(lease, &out, 0, 32), KVT_OK); /* needs no daemon */
    CHECK(kit_right(&out, 1, 0, 32));
    CHECK_STATUS(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kit_info(lease).held_tokens, 48);
    CHECK_EQ(kit_info(lease).foreign_pages, 2);
    CHECK_EQ(fake.n_resumed, 1);
    cut();
    again = kit_acquire(client, 48, 0);
    CHECK_EQ(fake.n_resumed, 2);
    cut();
    CHECK_STATUS(kvt_release(again), KVT_OK);
    cut();
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    CHECK_EQ(fake.n_resumed, 4);
    CHECK_EQ(fake_seen(&fake, KVT_OP_REALM), 1);
    CHECK_EQ(fake_seen(&fake, KVT_OP_STAGE), 1);
    kvt_close(client);
    end();
}

/* Cut in the middle of a call: it ends with KVT_ECONN, and what it did is undone with the next. */
static void test_cut_in_call(void) {
    static const fake_trick tricks[] = {FAKE_CUT_BEFORE, FAKE_CUT_AFTER};
    begin();
    kvt_client *client = kit_open(&fake);
    for (size_t i = 0; i < 2; i++) {
        kvt_lease *lease = NULL;
        fake_do(&fake, KVT_OP_ACQUIRE, tricks[i], 1);
        CHECK_EQ(kvt_acquire(client, kit_tokens(32), 32, 0, &lease), KVT_ECONN);
        CHECK_EQ(fake_leases(&fake), (int)i);
        lease = kit_acquire(client, 32, KVT_CLAIM);
        CHECK_EQ(fake_leases(&fake), 1);
        CHECK_EQ(fake_seen(&fake, KVT_OP_CANCEL), (int)i + 1);
        fake_do(&fake, KVT_OP_SEAL, tricks[i], 1);
        CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
        CHECK_EQ(kvt_seal(lease, NULL), KVT_ECONN);
        CHECK_STATUS(kit_encode(lease, &ours, 1), KVT_OK);
        CHECK_EQ(kvt_seal(lease, NULL), KVT_OK);
        fake_do(&fake, KVT_OP_RELEASE, tricks[i], 1);
        CHECK_EQ(kvt_release(lease), KVT_ECONN);
        CHECK_STATUS(kvt_release(kit_acquire(client, 1, 0)), KVT_OK);
        CHECK_EQ(fake_leases(&fake), 0);
        /* HELLO itself is cut, or answered in vain. */
        cut();
        fake_do(&fake, KVT_OP_HELLO, tricks[i], 1);
        CHECK_EQ(kvt_acquire(client, kit_tokens(1), 1, 0, &lease), KVT_ECONN);
        CHECK_STATUS(kvt_release(kit_acquire(client, 1, 0)), KVT_OK);
    }
    CHECK_EQ(fake_seen(&fake, KVT_OP_REALM), 1); /* the same session throughout */
    kvt_close(client);
    end();
}

/* HELLO is done and its answer lost: that connection has a session which nobody knows. */
static void test_hello_lost(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 32, 0);
    cut();
    fake_do(&fake, KVT_OP_HELLO, FAKE_LOSE_REPLY, 1);
    kvt_lease *other = NULL;
    CHECK_EXPIRES(client, KVT_OP_HELLO, kvt_acquire(client, kit_tokens(1), 1, 0, &other));
    CHECK_STATUS(kvt_release(lease), KVT_OK); /* taken up a second time */
    CHECK_EQ(fake_seen(&fake, KVT_OP_REALM), 1);
    kvt_close(client);
    end();
}

static void check_stale(kvt_lease *lease) {
    kvt_lease *branch = NULL;
    size_t sealed;
    CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ESTALE);
    CHECK_EQ(kit_encode(lease, &ours, 2), KVT_ESTALE);
    CHECK_EQ(kvt_seal(lease, &sealed), KVT_ESTALE);
    CHECK_EQ(kvt_extend(lease, 0, NULL, 0, 0), KVT_ESTALE);
    CHECK_EQ(kvt_fork(lease, 0, &branch), KVT_ESTALE);
    CHECK_EQ(kvt_wait(lease, 0, 0), KVT_ESTALE);
}

/* The grace time is over: a new session, older leases are stale. */
static void test_not_resumed(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    kvt_lease *old = kit_acquire(client, 48, KVT_CLAIM), *other = kit_acquire(client, 48, 0);
    CHECK_STATUS(kit_encode(old, &ours, 2), KVT_OK);
    fake_end_sessions(&fake);
    CHECK_STATUS(kit_decode(old, &out, 0, 32), KVT_OK); /* not known yet, and still right */
    CHECK_EQ(kvt_wait(old, 0, 0), KVT_ESTALE);
    check_stale(old);
    kvt_lease *fresh = kit_acquire(client, 48, KVT_CLAIM);
    check_stale(other);
    CHECK_EQ(fake_seen(&fake, KVT_OP_REALM), 2);
    CHECK_STATUS(kit_encode(fresh, &ours, 2), KVT_OK);
    CHECK_STATUS(kvt_seal(fresh, NULL), KVT_OK);
    CHECK_EQ(fake_seen(&fake, KVT_OP_STAGE), 2);
    int released = fake_seen(&fake, KVT_OP_RELEASE);
    CHECK_EQ(kvt_release(old), KVT_ESTALE);
    CHECK_EQ(kvt_release(other), KVT_ESTALE);
    CHECK_EQ(fake_seen(&fake, KVT_OP_RELEASE), released); /* nobody there knows them */
    CHECK_STATUS(kit_decode(fresh, &out, 0, 48), KVT_OK);
    CHECK(kit_right(&out, 1, 0, 48));
    CHECK_STATUS(kvt_release(fresh), KVT_OK);
    kvt_close(client);
    end();
}

/* What is to be undone in a session that has ended is of no concern to the next. */
static void test_undo_forgotten(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 32, 0), *other = NULL;
    fake_do(&fake, KVT_OP_RELEASE, FAKE_LOSE_REQUEST, 1);
    CHECK_EXPIRES(client, KVT_OP_RELEASE, kvt_release(lease));
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_LOSE_REPLY, 1);
    CHECK_EXPIRES(client, KVT_OP_ACQUIRE, kvt_acquire(client, kit_tokens(1), 1, 0, &other));
    int released = fake_seen(&fake, KVT_OP_RELEASE);
    fake_end_sessions(&fake);
    other = kit_acquire(client, 32, 0);
    /* The first of them met the end of the session; nothing went to the new one. */
    CHECK(fake_seen(&fake, KVT_OP_RELEASE) + fake_seen(&fake, KVT_OP_CANCEL) <= released + 1);
    CHECK_EQ(fake_leases(&fake), 1);
    CHECK_STATUS(kvt_release(other), KVT_OK);
    kvt_close(client);
    end();
}

/* --- another daemon -----------------------------------------------------------------------------
 */

static void test_new_daemon(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    uint64_t boot_id = kvt_boot_id(client);
    kvt_lease *old = kit_acquire(client, 32, KVT_CLAIM), *fresh = NULL;
    fake_stop(&fake);
    CHECK_STATUS(kit_decode(old, &out, 0, 32), KVT_OK); /* its arena stays mapped */
    CHECK(kit_right(&out, 1, 0, 32));
    CHECK_EQ(kvt_acquire(client, kit_tokens(1), 1, 0, &fresh), KVT_ECONN);
    CHECK_EQ(kvt_wait(old, 0, 100), KVT_ECONN);
    fake_start(&fake);
    kit_hold(&fake, &theirs, 48);
    fresh = kit_acquire(client, 48, 0);
    CHECK(kvt_boot_id(client) != boot_id);
    check_stale(old);
    CHECK_STATUS(kit_decode(fresh, &out, 0, 48), KVT_OK); /* from the new one's arena */
    CHECK(kit_right(&out, 2, 0, 48));
    CHECK_EQ(client->arenas != NULL && client->arenas->next != NULL, 1); /* two are mapped */
    CHECK_EQ(kvt_release(old), KVT_ESTALE);
    restart();
    old = fresh;
    fresh = kit_acquire(client, 48, 0);
    CHECK_EQ(kvt_release(old), KVT_ESTALE);
    CHECK_STATUS(kvt_release(fresh), KVT_OK);
    restart();
    CHECK_STATUS(kvt_release(kit_acquire(client, 1, 0)), KVT_OK);
    CHECK(client->arenas == client->arena && client->arenas->next == NULL); /* one is left */
    kvt_close(client);
    end();
}

/* A request reaches another daemon on a connection of which the library believes that it has a
 * session: the boot id gives it away. */
static void test_boot_id(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 32, 0);
    pthread_mutex_lock(&fake.lock);
    fake.boot_id += 100;
    ((kvt_arena_header *)(void *)fake.memory)->boot_id = fake.boot_id;
    fake.deny_resume = 1;
    pthread_mutex_unlock(&fake.lock);
    kvt_lease *fresh = kit_acquire(client, 32, 0);
    CHECK(kvt_boot_id(client) == fake.boot_id);
    CHECK_EQ(kvt_release(lease), KVT_ESTALE);
    CHECK_STATUS(kvt_release(fresh), KVT_OK);
    fake_end_sessions(&fake);
    kvt_close(client);
    end();
}

/* Stopped between request and reply, and going on later: the late answers disturb nobody. */
static void test_late_reply(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL;
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_HOLD, 3);
    for (int i = 0; i < 3; i++) {
        fake_do(&fake, KVT_OP_CANCEL, FAKE_HOLD, 0);
        CHECK_EXPIRES(client, KVT_OP_ACQUIRE, kvt_acquire(client, kit_tokens(32), 32, 0, &lease));
    }
    fake_let_go(&fake);
    lease = kit_acquire(client, 32, 0);
    CHECK_EQ(kit_info(lease).n_tokens, 32);
    CHECK_EQ(fake_leases(&fake), 1);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* Half a reply, and one that claims 2^60 bytes: the connection is given up, nothing is allocated.
 */
static void test_broken_frames(void) {
    static const fake_trick tricks[] = {FAKE_CUT_WITHIN, FAKE_HUGE};
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 64);
    for (size_t i = 0; i < 2; i++) {
        kvt_lease *lease = NULL;
        int n = fake.n_connections;
        fake_do(&fake, KVT_OP_ACQUIRE, tricks[i], 1);
        CHECK_EQ(kvt_acquire(client, kit_tokens(64), 64, 0, &lease), KVT_ECONN);
        CHECK_EQ(fake_leases(&fake), 1);
        wait_back(n);
        lease = kit_acquire(client, 64, 0);
        CHECK_EQ(fake_leases(&fake), 1);
        CHECK_STATUS(kvt_release(lease), KVT_OK);
    }
    kvt_close(client);
    end();
}

/* A daemon that is stopped: the kernel takes the connection, nobody says a word. */
static void test_deaf(void) {
    begin();
    kvt_client *client = kit_open(&fake), *other = NULL;
    kvt_realm realm = kit_realm();
    kvt_options options = kit_options(&fake);
    fake_deafen(&fake, 1);
    options.timeout_ms = SHORT_MS;
    CHECK_EQ(kvt_open(&options, &realm, &other), KVT_ECONN);
    int n = fake.n_connections;
    fake_cut_all(&fake);
    kvt_lease *lease = NULL;
    client->timeout_ms = SHORT_MS;
    CHECK_EQ(kvt_acquire(client, kit_tokens(3), 3, 0, &lease), KVT_ECONN);
    CHECK_EQ(kvt_acquire(client, kit_tokens(3), 3, 0, &lease), KVT_ECONN);
    fake_deafen(&fake, 0);
    wait_back(n);
    client->timeout_ms = 20000;
    CHECK_STATUS(kvt_release(kit_acquire(client, 3, 0)), KVT_OK);
    kvt_close(client);
    end();
}

/* Leases that outlive their client: only to be let go. */
static void test_lease_after_close(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    kvt_lease *one = kit_acquire(client, 40, KVT_CLAIM), *two = kit_acquire(client, 40, 0);
    CHECK_STATUS(kit_encode(one, &ours, 2), KVT_OK);
    kvt_close(client);
    CHECK_EQ(kit_decode(two, &out, 0, 1), KVT_ECLOSED);
    CHECK_EQ(kvt_release(one), KVT_ECLOSED);
    CHECK_EQ(kvt_release(two), KVT_ECLOSED);
    end();
}

int main(void) {
    test_cancel();
    test_cancel_lost();
    test_release_lost();
    test_extend_lost();
    test_seal_lost();
    test_stage_lost();
    test_resumed();
    test_cut_in_call();
    test_hello_lost();
    test_not_resumed();
    test_undo_forgotten();
    test_new_daemon();
    test_boot_id();
    test_late_reply();
    test_broken_frames();
    test_deaf();
    test_lease_after_close();
    nng_fini(); /* frees what nng was about to free, before somebody looks for leaks */
    printf("client faults: every call ended, nothing was left behind\n");
    return 0;
}
