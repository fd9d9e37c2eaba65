/*
 * test_client_async.c - calls that do not block: begun, polled for, finished, cancelled, timed out,
 * closed under; each gives what the blocking call gives, and leaves as little behind.
 *
 *   test_client_async [rounds]     of the busy scheduler; 40 by default
 */
#include "client/client.h"
#include "tests/client_kit.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

/* nng 1.5.2 loses messages and pipes when a connection breaks while several threads use it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libnng\n";
}

static fake_daemon fake;
static kit_kv ours, out;

static void begin(void) {
    kvt_geometry geometry = kit_geometry();
    fake_init(&fake, &geometry);
    kit_fill(&ours, 1);
    fake_start(&fake);
}

static void end(kvt_client *client) {
    kvt_close(client);
    CHECK_EQ(fake_leases(&fake), 0);
    CHECK_EQ(fake.n_duplicates, 0);
    CHECK_EQ(fake.n_out_of_order, 0);
    fake_close(&fake);
}

static int readable(kvt_client *client) {
    struct pollfd fd = {.fd = -1, .events = POLLIN};
    CHECK_STATUS(kvt_pending_fd(client, &fd.fd), KVT_OK);
    CHECK(poll(&fd, 1, 0) >= 0);
    return fd.revents == POLLIN;
}

/* The next call that ends. */
static kvt_pending *next(kvt_client *client) {
    struct pollfd fd = {.events = POLLIN};
    kvt_pending *pending = NULL;
    CHECK_STATUS(kvt_pending_fd(client, &fd.fd), KVT_OK);
    CHECK(poll(&fd, 1, -1) == 1);
    CHECK_STATUS(kvt_pending_next(client, &pending), KVT_OK);
    return pending;
}

static kvt_pending *begin_acquire(kvt_client *client, uint32_t n, uint32_t flags, void *user) {
    kvt_pending *pending = NULL;
    CHECK_STATUS(kvt_acquire_begin(client, kit_tokens(n), n, flags, user, &pending), KVT_OK);
    return pending;
}

static kvt_lease *finish_lease(kvt_pending *pending) {
    kvt_outcome outcome;
    CHECK_STATUS(kvt_finish(pending, &outcome), KVT_OK);
    CHECK(outcome.lease);
    return outcome.lease;
}

static void expect(kvt_pending *pending, kvt_status status) {
    kvt_outcome outcome = {.lease = (kvt_lease *)(void *)&fake};
    CHECK_STATUS(kvt_finish(pending, &outcome), status);
    CHECK(status == KVT_OK || !outcome.lease);
}

/* --- as the blocking calls ----------------------------------------------------------------------
 */

static void test_each(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_pending *pending = NULL;
    kvt_outcome outcome;
    int user[6];
    CHECK(!readable(client));
    CHECK_EQ(kvt_pending_next(client, &pending), KVT_ENOENT);
    begin_acquire(client, 40, KVT_CLAIM, &user[0]);
    pending = next(client);
    CHECK_STATUS(kvt_finish(pending, &outcome), KVT_OK);
    CHECK(outcome.user == &user[0]);
    CHECK(!readable(client));
    kvt_lease *lease = outcome.lease, *branch;
    CHECK_EQ(kit_info(lease).claimed_tokens, 40);
    CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
    CHECK_STATUS(kit_encode(lease, &ours, 1), KVT_OK);
    CHECK_STATUS(kvt_seal_begin(lease, &user[1], &pending), KVT_OK);
    CHECK_STATUS(kvt_finish(pending, &outcome), KVT_OK); /* waits */
    CHECK(outcome.user == &user[1] && outcome.sealed_tokens == 32 && !outcome.lease);
    CHECK(!readable(client)); /* it was never asked for, and is gone all the same */
    CHECK_EQ(kvt_pending_next(client, &pending), KVT_ENOENT);
    CHECK_STATUS(
        kvt_extend_begin(lease, 32, kit_tokens(60) + 32, 28, KVT_CLAIM, &user[2], &pending),
        KVT_OK);
    CHECK_STATUS(kvt_finish(next(client), &outcome), KVT_OK);
    CHECK(outcome.user == &user[2] && !outcome.lease);
    CHECK_EQ(kit_info(lease).n_tokens, 60);
    CHECK_STATUS(kvt_fork_begin(lease, 20, &user[3], &pending), KVT_OK);
    CHECK_STATUS(kvt_finish(pending, &outcome), KVT_OK);
    branch = outcome.lease;
    CHECK_EQ(kit_info(branch).n_tokens, 20);
    CHECK_STATUS(kit_decode(branch, &out, 0, 20), KVT_OK);
    CHECK(kit_right(&out, 1, 0, 20));
    CHECK_STATUS(kvt_wait_begin(lease, 0, 0, &user[4], &pending), KVT_OK);
    CHECK_STATUS(kvt_finish(pending, NULL), KVT_OK);
    CHECK_STATUS(kvt_release_begin(lease, &user[5], &pending), KVT_OK);
    CHECK_STATUS(kvt_finish(pending, &outcome), KVT_OK);
    CHECK(outcome.user == &user[5]);
    CHECK_STATUS(kvt_release(branch), KVT_OK);
    end(client);
}

/* What the blocking call refuses is refused, at the beginning or at the end. */
static void test_refused(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_pending *pending = NULL;
    kvt_outcome outcome;
    int fd = -1;
    kvt_lease *lease = kit_acquire(client, 40, KVT_CLAIM);
    CHECK_EQ(kvt_acquire_begin(NULL, kit_tokens(1), 1, 0, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_acquire_begin(client, kit_tokens(1), 1, 0, NULL, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_acquire_begin(client, NULL, 1, 0, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_acquire_begin(client, kit_tokens(1), 1, 1u << 9, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(
        kvt_acquire_begin(client, kit_tokens(1), KVT_MAX_REQUEST_TOKENS + 1, 0, NULL, &pending),
        KVT_ELIMIT);
    CHECK_EQ(kvt_extend_begin(lease, SIZE_MAX, kit_tokens(1), 1, 0, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_extend_begin(lease, 32, kit_tokens(1), KVT_MAX_REQUEST_TOKENS, 0, NULL, &pending),
             KVT_ELIMIT);
    CHECK_EQ(kvt_fork_begin(NULL, 1, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_fork_begin(lease, 1, NULL, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_wait_begin(NULL, 1, 1, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_seal_begin(NULL, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_release_begin(NULL, NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_release_begin(lease, NULL, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_pending_next(NULL, &pending), KVT_EINVAL);
    CHECK_EQ(kvt_pending_next(client, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_pending_fd(NULL, &fd), KVT_EINVAL);
    CHECK_EQ(kvt_pending_fd(client, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_finish(NULL, &outcome), KVT_EINVAL);
    kvt_cancel(NULL);
    CHECK(!pending && fd == -1);
    /* A call that may give a lease needs a place for it; without one it is as it was. */
    CHECK_STATUS(kvt_fork_begin(lease, 41, NULL, &pending), KVT_OK);
    CHECK_EQ(kvt_finish(pending, NULL), KVT_EINVAL);
    expect(pending, KVT_EINVAL);
    CHECK_STATUS(kvt_extend_begin(lease, 41, kit_tokens(1), 1, 0, NULL, &pending), KVT_OK);
    expect(pending, KVT_EINVAL);
    CHECK(strstr(kvt_last_error(), "keep_tokens is 41"));
    CHECK_EQ(kvt_lease_get(NULL, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_lease_get(lease, NULL), KVT_EINVAL);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    end(client);
}

/* A lease belongs to the call that was begun on it; others go on. */
static void test_busy(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 40, KVT_CLAIM), *other = kit_acquire(client, 8, 0);
    kvt_lease *branch = NULL;
    kvt_pending *pending = NULL, *second = NULL;
    kvt_lease_info info = {.n_tokens = 77};
    int seen = fake_seen(&fake, KVT_OP_WAIT);
    fake_do(&fake, KVT_OP_WAIT, FAKE_HOLD, 1);
    CHECK_STATUS(kvt_wait_begin(lease, 8, 20000, NULL, &pending), KVT_OK);
    fake_wait_seen(&fake, KVT_OP_WAIT, seen + 1);
    CHECK_EQ(kvt_lease_get(lease, &info), KVT_EBUSY);
    CHECK_EQ(info.n_tokens, 77);
    CHECK_EQ(kvt_extend(lease, 1, kit_tokens(1), 1, 0), KVT_EBUSY);
    CHECK_EQ(kvt_fork(lease, 1, &branch), KVT_EBUSY);
    CHECK_EQ(kvt_wait(lease, 1, 1), KVT_EBUSY);
    CHECK_EQ(kit_decode(lease, &out, 0, 0), KVT_EBUSY);
    CHECK_EQ(kit_encode(lease, &ours, 0), KVT_EBUSY);
    CHECK_EQ(kvt_seal(lease, NULL), KVT_EBUSY);
    CHECK_EQ(kvt_release(lease), KVT_EBUSY);
    CHECK_EQ(kvt_release_begin(lease, NULL, &second), KVT_EBUSY);
    CHECK_EQ(kvt_seal_begin(lease, NULL, &second), KVT_EBUSY);
    CHECK(!second && !branch && !readable(client));
    /* Another lease, and another acquire that ends first. */
    CHECK_STATUS(kvt_wait(other, 0, 0), KVT_OK);
    second = begin_acquire(client, 16, 0, NULL);
    CHECK(next(client) == second);
    CHECK_STATUS(kvt_release(finish_lease(second)), KVT_OK);
    fake_let_go(&fake);
    expect(pending, KVT_OK);
    CHECK_EQ(kit_info(lease).n_tokens, 40);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    CHECK_STATUS(kvt_release(other), KVT_OK);
    end(client);
}

/* As many as are possible, at once; none waits behind another. */
static void test_limit(void) {
    static kvt_pending *all[KVT_MAX_PENDING];
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_pending *pending = NULL;
    int seen = fake_seen(&fake, KVT_OP_ACQUIRE);
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_LOSE_REQUEST, KVT_MAX_PENDING - 1);
    for (int i = 0; i < KVT_MAX_PENDING - 1; i++)
        all[i] = begin_acquire(client, 16, 0, NULL);
    fake_wait_seen(&fake, KVT_OP_ACQUIRE, seen + KVT_MAX_PENDING - 1);
    all[KVT_MAX_PENDING - 1] = begin_acquire(client, 16, 0, NULL);
    CHECK(next(client) == all[KVT_MAX_PENDING - 1]);
    CHECK_EQ(kvt_acquire_begin(client, NULL, 0, 0, NULL, &pending), KVT_ELIMIT);
    CHECK(!pending);
    CHECK_STATUS(kvt_release(finish_lease(all[KVT_MAX_PENDING - 1])), KVT_OK);
    for (int i = 0; i < KVT_MAX_PENDING - 1; i++)
        kvt_cancel(all[i]);
    for (int i = 0; i < KVT_MAX_PENDING - 1; i++)
        expect(all[i], KVT_ECANCELED);
    CHECK_STATUS(kvt_release(finish_lease(begin_acquire(client, 3, 0, NULL))), KVT_OK);
    end(client);
}

/* No memory: nothing was begun, or the call says so. */
static void test_memory(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    CHECK_STATUS(kvt_release(finish_lease(begin_acquire(client, 40, 0, NULL))), KVT_OK);
    int refused = 0, failed = 0;
    for (long n = 1;; n++) {
        kvt_pending *pending = NULL;
        kvt_outcome outcome;
        kvt_memory_fail_after(n);
        kvt_status status = kvt_acquire_begin(client, kit_tokens(40), 40, 0, NULL, &pending);
        CHECK((status == KVT_OK) == (pending != NULL));
        if (status == KVT_OK) {
            status = kvt_finish(pending, &outcome);
            failed += status != KVT_OK;
        } else {
            refused++;
        }
        kvt_memory_fail_after(0);
        CHECK(status == KVT_OK || status == KVT_ENOMEM);
        if (status == KVT_OK) {
            CHECK_STATUS(kvt_release(outcome.lease), KVT_OK);
            break;
        }
    }
    CHECK_EQ(refused, 2); /* the call itself, its tokens */
    CHECK(failed >= 2);   /* the lease, its pages */
    end(client);
}

/* --- cancelling ---------------------------------------------------------------------------------
 */

/* The daemon did it, or never heard of it: undone either way, without another call being made. */
static void test_cancel_new(void) {
    static const fake_trick tricks[] = {FAKE_LOSE_REPLY, FAKE_LOSE_REQUEST};
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 32, KVT_CLAIM);
    for (int i = 0; i < 4; i++) {
        kvt_op op = i < 2 ? KVT_OP_ACQUIRE : KVT_OP_FORK;
        kvt_pending *pending = NULL;
        int seen = fake_seen(&fake, op), canceled = fake_seen(&fake, KVT_OP_CANCEL);
        fake_do(&fake, op, tricks[i % 2], 1);
        if (op == KVT_OP_ACQUIRE)
            pending = begin_acquire(client, 32, KVT_CLAIM, NULL);
        else
            CHECK_STATUS(kvt_fork_begin(lease, 3, NULL, &pending), KVT_OK);
        fake_wait_seen(&fake, op, seen + 1);
        CHECK_EQ(fake_leases(&fake), 1 + (i % 2 == 0));
        kvt_cancel(pending);
        expect(pending, KVT_ECANCELED);
        fake_wait_seen(&fake, KVT_OP_CANCEL, canceled + 1);
        CHECK_EQ(fake_leases(&fake), 1);
    }
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    end(client);
}

static void test_cancel_old(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 40, KVT_CLAIM);
    kvt_pending *pending;
    kvt_lease_info info;
    /* wait: the lease is as it was, and the daemon forgets the call */
    int canceled = fake_seen(&fake, KVT_OP_CANCEL);
    fake_do(&fake, KVT_OP_WAIT, FAKE_LOSE_REPLY, 1);
    CHECK_STATUS(kvt_wait_begin(lease, 8, 3600000, NULL, &pending), KVT_OK);
    fake_wait_seen(&fake, KVT_OP_WAIT, 1);
    kvt_cancel(pending);
    expect(pending, KVT_ECANCELED);
    fake_wait_seen(&fake, KVT_OP_CANCEL, canceled + 1);
    CHECK_STATUS(kvt_wait(lease, 0, 0), KVT_OK);
    /* seal: the daemon may have it, and the lease can go on */
    CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
    fake_do(&fake, KVT_OP_SEAL, FAKE_LOSE_REPLY, 1);
    CHECK_STATUS(kvt_seal_begin(lease, NULL, &pending), KVT_OK);
    fake_wait_seen(&fake, KVT_OP_SEAL, 1);
    kvt_cancel(pending);
    expect(pending, KVT_ECANCELED);
    CHECK_STATUS(kvt_wait(lease, 0, 0), KVT_OK);
    CHECK_STATUS(kvt_lease_get(lease, &info), KVT_OK);
    CHECK_EQ(info.held_tokens, 16);
    CHECK_STATUS(kit_decode(lease, &out, 0, 16), KVT_OK);
    CHECK(kit_right(&out, 1, 0, 16));
    /* extend: nobody knows which path it names */
    int seen = fake_seen(&fake, KVT_OP_ACQUIRE);
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_LOSE_REPLY, 1);
    CHECK_STATUS(kvt_extend_begin(lease, 40, kit_tokens(48) + 40, 8, 0, NULL, &pending), KVT_OK);
    fake_wait_seen(&fake, KVT_OP_ACQUIRE, seen + 1);
    kvt_cancel(pending);
    expect(pending, KVT_ECANCELED);
    CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ESTALE);
    /* release: done later, without another call */
    fake_do(&fake, KVT_OP_RELEASE, FAKE_LOSE_REQUEST, 1);
    CHECK_STATUS(kvt_release_begin(lease, NULL, &pending), KVT_OK);
    fake_wait_seen(&fake, KVT_OP_RELEASE, 1);
    kvt_cancel(pending);
    expect(pending, KVT_ECANCELED);
    fake_wait_seen(&fake, KVT_OP_RELEASE, 2);
    CHECK_EQ(fake_leases(&fake), 0);
    end(client);
}

/* Before it is sent: while the session comes up, and while there is no connection. */
static void test_cancel_early(void) {
    begin();
    kvt_options options = kit_options(&fake);
    options.flags = KVT_OPEN_LAZY;
    options.timeout_ms = 3600 * 1000;
    kvt_realm realm = kit_realm();
    kvt_client *client = NULL;
    fake_refuse(&fake, KVT_OP_HELLO, KVT_EBUSY, 1);
    CHECK_STATUS(kvt_open(&options, &realm, &client), KVT_OK);
    /* Each of the three asks when the one before has given up. */
    fake_do(&fake, KVT_OP_HELLO, FAKE_LOSE_REQUEST, 1 << 20);
    for (int round = 0; round < 20; round++) {
        kvt_pending *pending[3];
        int seen = fake_seen(&fake, KVT_OP_HELLO);
        for (int i = 0; i < 3; i++)
            pending[i] = begin_acquire(client, 3, 0, NULL);
        fake_wait_seen(&fake, KVT_OP_HELLO, seen + 1);
        for (int i = 0; i < 3; i++)
            kvt_cancel(pending[i]);
        for (int i = 0; i < 3; i++)
            expect(pending[i], KVT_ECANCELED);
    }
    CHECK_EQ(fake_seen(&fake, KVT_OP_ACQUIRE), 0);
    fake_do(&fake, KVT_OP_HELLO, FAKE_SERVE, 0);
    CHECK_STATUS(kvt_release(finish_lease(begin_acquire(client, 3, 0, NULL))), KVT_OK);
    /* It takes no connection: the kernel does, so there is somebody to wait for. */
    fake_deafen(&fake, 1);
    fake_cut_all(&fake);
    kvt_pending *pending = begin_acquire(client, 3, 0, NULL);
    kvt_cancel(pending);
    kvt_outcome outcome;
    kvt_status status = kvt_finish(pending, &outcome);
    /* The cut may have been what ended it. */
    CHECK(status == KVT_ECANCELED || status == KVT_ECONN);
    fake_deafen(&fake, 0);
    end(client);
}

/* --- time-outs ----------------------------------------------------------------------------------
 */

static void test_timeout(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 40, KVT_CLAIM);
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_LOSE_REQUEST, 1 << 20);
    fake_do(&fake, KVT_OP_WAIT, FAKE_LOSE_REQUEST, 1 << 20);
    kvt_pending *one = begin_acquire(client, 3, 0, NULL), *two = NULL;
    CHECK_STATUS(kvt_wait_begin(lease, 0, 30, NULL, &two), KVT_OK);
    fake_wait_seen(&fake, KVT_OP_ACQUIRE, 2);
    fake_wait_seen(&fake, KVT_OP_WAIT, 1);
    kvt_transport_expire(client->transport);
    expect(two, KVT_ETIMEDOUT);
    expect(one, KVT_ETIMEDOUT);
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_SERVE, 0);
    fake_do(&fake, KVT_OP_WAIT, FAKE_SERVE, 0);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    end(client);
}

/* --- closing ------------------------------------------------------------------------------------
 */

enum { N_CLOSED = 5 };

static void begin_all(kvt_client *client, kvt_lease **leases, kvt_pending **pending) {
    static const kvt_op ops[N_CLOSED] = {KVT_OP_ACQUIRE, KVT_OP_WAIT, KVT_OP_FORK, KVT_OP_SEAL,
                                         KVT_OP_RELEASE};
    for (int i = 0; i < N_CLOSED; i++)
        fake_do(&fake, ops[i], ops[i] == KVT_OP_SEAL ? FAKE_LOSE_REQUEST : FAKE_LOSE_REPLY,
                1 << 20);
    pending[0] = begin_acquire(client, 16, 0, NULL);
    CHECK_STATUS(kvt_wait_begin(leases[1], 0, 3600000, NULL, &pending[1]), KVT_OK);
    CHECK_STATUS(kvt_fork_begin(leases[2], 3, NULL, &pending[2]), KVT_OK);
    CHECK_STATUS(kvt_seal_begin(leases[3], NULL, &pending[3]), KVT_OK);
    CHECK_STATUS(kvt_release_begin(leases[4], NULL, &pending[4]), KVT_OK);
}

static void serve_all(void) {
    for (int op = 1; op < KVT_N_OPS; op++)
        fake_do(&fake, (kvt_op)op, FAKE_SERVE, 0);
}

static int is_open(int fd) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    CHECK(poll(&poll_fd, 1, 0) >= 0);
    return !(poll_fd.revents & POLLNVAL);
}

/* Calls in all stages: begun, waiting for an answer, ended. The descriptor stays as long as
 * somebody may poll it. */
static void close_round(int wait_first) {
    kvt_client *client = kit_open(&fake);
    kvt_lease *leases[N_CLOSED];
    kvt_pending *pending[N_CLOSED], *ended;
    int fd, seen = fake_seen(&fake, KVT_OP_WAIT);
    CHECK_STATUS(kvt_pending_fd(client, &fd), KVT_OK);
    for (int i = 1; i < N_CLOSED; i++)
        leases[i] = kit_acquire(client, 40, KVT_CLAIM);
    CHECK_STATUS(kit_encode(leases[3], &ours, 0), KVT_OK);
    ended = begin_acquire(client, 3, 0, NULL);
    CHECK(next(client) == ended);
    begin_all(client, leases, pending);
    if (wait_first)
        fake_wait_seen(&fake, KVT_OP_WAIT, seen + 1);
    kvt_close(client);
    CHECK(is_open(fd));
    for (int i = 0; i < N_CLOSED; i++)
        expect(pending[i], KVT_ECLOSED);
    serve_all();
    for (int i = 1; i < N_CLOSED - 1; i++)
        CHECK_EQ(kvt_release(leases[i]), KVT_ECLOSED);
    CHECK(is_open(fd));
    CHECK_EQ(kvt_release(finish_lease(ended)), KVT_ECLOSED);
    CHECK(!is_open(fd));
    CHECK_EQ(fake_leases(&fake), 0);
}

static void *finish_it(void *argument) {
    kvt_outcome outcome;
    CHECK_EQ(kvt_finish(argument, &outcome), KVT_ECLOSED);
    return NULL;
}

/* Threads that wait in kvt_finish while another closes. */
static void close_under_finish(void) {
    enum { N = 4 };
    pthread_t threads[N];
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 16, 0);
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_LOSE_REPLY, 1 << 20);
    for (int i = 0; i < N; i++)
        CHECK(pthread_create(&threads[i], NULL, finish_it, begin_acquire(client, 3, 0, NULL)) == 0);
    kvt_close(client);
    for (int i = 0; i < N; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ(kvt_release(lease), KVT_ECLOSED);
    serve_all();
}

static void test_close(void) {
    begin();
    for (int i = 0; i < 40; i++)
        close_round(i % 2);
    for (int i = 0; i < 40; i++)
        close_under_finish();
    fake_close(&fake);
}

/* --- forks --------------------------------------------------------------------------------------
 */

static int in_child(kvt_client *client, kvt_lease *lease, kvt_pending *pending) {
    kvt_pending *other = NULL;
    kvt_outcome outcome;
    int fd;
    kvt_cancel(pending);
    return kvt_acquire_begin(client, kit_tokens(1), 1, 0, NULL, &other) == KVT_EFORK &&
           kvt_seal_begin(lease, NULL, &other) == KVT_EFORK &&
           kvt_release_begin(lease, NULL, &other) == KVT_EFORK && !other &&
           kvt_pending_next(client, &other) == KVT_EFORK &&
           kvt_pending_fd(client, &fd) == KVT_EFORK && kvt_finish(pending, &outcome) == KVT_EFORK;
}

static void test_fork(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 16, 0);
    kvt_pending *pending = begin_acquire(client, 3, 0, NULL);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        _exit(in_child(client, lease, pending) ? 0 : 1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    CHECK_STATUS(kvt_release(finish_lease(pending)), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    end(client);
}

/* --- a scheduler --------------------------------------------------------------------------------
 */

/* Many sequences in one thread: acquire -> read -> encode, seal -> read -> release, again; some are
 * cancelled, and the connection is cut now and then. */
typedef enum step { STEP_ACQUIRE, STEP_SEAL, STEP_RELEASE } step;

typedef struct sequence {
    step at;
    int left; /* rounds */
    kvt_lease *lease;
    kvt_pending *pending;
} sequence;

enum { N_SEQUENCES = 24 };

static uint64_t n_read, n_failed;

static int is_fault(kvt_status status) {
    return status == KVT_ECONN || status == KVT_ESTALE || status == KVT_ECANCELED ||
           status == KVT_ETIMEDOUT;
}

static void read_all(kvt_lease *lease) {
    kvt_lease_info info;
    CHECK_STATUS(kvt_lease_get(lease, &info), KVT_OK);
    kvt_status status = kit_decode(lease, &out, 0, info.held_tokens);
    CHECK(status == KVT_OK || status == KVT_ESTALE);
    if (status == KVT_OK)
        CHECK(kit_right(&out, 1, 0, info.held_tokens));
    n_read += status == KVT_OK && info.held_tokens > 0;
}

/* Encodes what is missing; 1: there is something to seal. */
static int encode_some(kvt_lease *lease) {
    kvt_lease_info info = kit_info(lease);
    int n = 0;
    for (uint32_t page = info.held_tokens / KIT_PAGE_TOKENS;
         page * KIT_PAGE_TOKENS < info.claimed_tokens && n < 2; page++) {
        kvt_status status = kit_encode(lease, &ours, page);
        CHECK(status == KVT_OK || status == KVT_ESTALE || status == KVT_EFULL);
        if (status != KVT_OK)
            break;
        n++;
    }
    return n > 0;
}

static void go_on(kvt_client *client, sequence *q, uint64_t *random) {
    if (q->at == STEP_ACQUIRE) {
        uint32_t n = (1 + check_below(random, KIT_MAX_TOKENS / KIT_PAGE_TOKENS)) * KIT_PAGE_TOKENS;
        q->pending = begin_acquire(client, n, KVT_CLAIM, q);
    } else if (q->at == STEP_SEAL) {
        kvt_status status = kvt_seal_begin(q->lease, q, &q->pending);
        CHECK(status == KVT_OK || status == KVT_ESTALE);
        if (status == KVT_ESTALE)
            q->at = STEP_RELEASE;
    }
    if (q->at == STEP_RELEASE)
        CHECK_STATUS(kvt_release_begin(q->lease, q, &q->pending), KVT_OK);
    if (check_below(random, 10) == 0)
        kvt_cancel(q->pending);
}

static void step_done(sequence *q, kvt_status status, kvt_lease *lease) {
    CHECK_MSG(status == KVT_OK || is_fault(status), "%s: %s", kvt_status_name(status),
              kvt_last_error());
    n_failed += status != KVT_OK;
    q->pending = NULL;
    if (q->at == STEP_RELEASE) {
        q->lease = NULL;
        q->left--;
    }
    if (q->at == STEP_ACQUIRE)
        q->lease = lease;
    if (q->lease && q->at != STEP_RELEASE) {
        read_all(q->lease);
        q->at = q->at == STEP_ACQUIRE && encode_some(q->lease) ? STEP_SEAL : STEP_RELEASE;
    } else {
        q->at = STEP_ACQUIRE;
    }
}

static void test_scheduler(int rounds) {
    sequence all[N_SEQUENCES] = {0};
    uint64_t random = 3;
    uint32_t n_busy = N_SEQUENCES, n_done = 0;
    begin();
    kvt_client *client = kit_open(&fake);
    for (int i = 0; i < N_SEQUENCES; i++) {
        all[i].left = rounds;
        go_on(client, &all[i], &random);
    }
    while (n_busy > 0) {
        kvt_outcome outcome;
        kvt_status status = kvt_finish(next(client), &outcome);
        sequence *q = outcome.user;
        CHECK(q >= all && q < all + N_SEQUENCES && q->pending);
        step_done(q, status, outcome.lease);
        if (q->left == 0 && q->at == STEP_ACQUIRE)
            n_busy--;
        else
            go_on(client, q, &random);
        if (++n_done % 400 == 0)
            fake_cut_all(&fake);
        if (n_done % 1000 == 0)
            fake_end_sessions(&fake);
    }
    CHECK(!readable(client));
    CHECK(n_read > 0 && n_failed > 0);
    kvt_close(client);
    CHECK_EQ(fake_leases(&fake), 0);
    CHECK_EQ(fake.n_duplicates, 0);
    fake_close(&fake);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 40;
    test_each();
    test_refused();
    test_busy();
    test_limit();
    test_memory();
    test_cancel_new();
    test_cancel_old();
    test_cancel_early();
    test_timeout();
    test_close();
    test_fork();
    test_scheduler(rounds);
    printf("client async: %llu reads right, %llu calls that failed as they should\n",
           (unsigned long long)n_read, (unsigned long long)n_failed);
    return 0;
}
