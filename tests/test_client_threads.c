/*
 * test_client_threads.c - one client, many threads: closing under calls, the order of requests,
 * sessions that end under load, pages that are given away while they are read.
 *
 *   test_client_threads [rounds]     of closing; 1,000 by default
 */
#include "client/client.h"
#include "tests/client_kit.h"

#include <unistd.h>

enum { N_THREADS = 4 };

/* nng 1.5.2 loses messages and pipes when a connection breaks while several threads use it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libnng\n";
}

static fake_daemon fake;
static kit_kv ours;

static void begin(void) {
    kvt_geometry geometry = kit_geometry();
    fake_init(&fake, &geometry);
    kit_fill(&ours, 1);
    fake_start(&fake);
}

/* --- closing ------------------------------------------------------------------------------------
 */

typedef struct caller {
    kvt_client *client;
    kvt_lease *lease;
    int kind;
    kvt_status status;
} caller;

static void *call_forever(void *argument) {
    caller *k = argument;
    kvt_lease *lease;
    char *text;
    if (k->kind == 0)
        k->status = kvt_wait(k->lease, 0, 3600 * 1000);
    else if (k->kind == 1)
        k->status = kvt_acquire(k->client, kit_tokens(3), 3, 0, &lease);
    else if (k->kind == 2)
        k->status = kvt_status_json(k->client, &text);
    else
        k->status = kvt_release(k->lease);
    return NULL;
}

/* Everybody is inside a call that nobody answers, on its way there or just answered; then comes the
 * close. */
static void close_round(uint64_t *random, int wait_for_all) {
    static const kvt_op ops[N_THREADS] = {KVT_OP_WAIT, KVT_OP_ACQUIRE, KVT_OP_STATUS,
                                          KVT_OP_RELEASE};
    kvt_client *client = kit_open(&fake);
    kvt_lease *leases[2] = {kit_acquire(client, 40, KVT_CLAIM), kit_acquire(client, 40, 0)};
    caller callers[N_THREADS];
    pthread_t threads[N_THREADS];
    int seen[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        seen[i] = fake_seen(&fake, ops[i]);
        fake_do(&fake, ops[i], FAKE_LOSE_REPLY, 1 << 20);
        callers[i] = (caller){.client = client, .lease = leases[i == 3], .kind = i};
        CHECK(pthread_create(&threads[i], NULL, call_forever, &callers[i]) == 0);
    }
    for (int i = 0; i < N_THREADS; i++)
        if (wait_for_all || check_below(random, 2))
            fake_wait_seen(&fake, ops[i], seen[i] + 1);
    if (!wait_for_all) /* a thread may START only before the close: let all be inside */
        for (;;) {
            pthread_mutex_lock(&client->lock);
            uint32_t n = client->n_inside;
            pthread_mutex_unlock(&client->lock);
            if (n == N_THREADS)
                break;
            usleep(50);
        }
    kvt_close(client);
    for (int i = 0; i < N_THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK_MSG(callers[i].status == KVT_ECLOSED, "thread %d: %s", i,
                  kvt_status_name(callers[i].status));
        fake_do(&fake, ops[i], FAKE_SERVE, 0);
    }
    CHECK_EQ(kvt_release(leases[0]), KVT_ECLOSED);
    CHECK_EQ(fake_leases(&fake), 0); /* GOODBYE came through */
}

static void test_close(int rounds) {
    uint64_t random = 1;
    begin();
    for (int i = 0; i < rounds; i++)
        close_round(&random, i % 2);
    fake_close(&fake);
}

static int n_asked; /* STATUS, before the one that is cut */

static void *cut(void *argument) {
    fake_wait_seen(argument, KVT_OP_STATUS, n_asked + 1);
    fake_cut_all(argument);
    return NULL;
}

/* The connection breaks, and the client is closed at once by whom that told: the library may just
 * be about to be told, too. */
static void test_close_cut(int rounds) {
    begin();
    fake_do(&fake, KVT_OP_STATUS, FAKE_LOSE_REPLY, 1 << 30);
    for (int i = 0; i < rounds; i++) {
        pthread_t thread;
        char *text;
        kvt_client *client = kit_open(&fake);
        n_asked = fake_seen(&fake, KVT_OP_STATUS);
        CHECK(pthread_create(&thread, NULL, cut, &fake) == 0);
        CHECK_STATUS(kvt_status_json(client, &text), KVT_ECONN);
        kvt_close(client);
        CHECK(pthread_join(thread, NULL) == 0);
        fake_end_sessions(&fake); /* whose GOODBYE was lost */
    }
    fake_close(&fake);
}

/* Threads that wait for a daemon to come, or for another to bring the session up. */
static void test_close_unconnected(void) {
    begin();
    kvt_options options = kit_options(&fake);
    options.flags = KVT_OPEN_LAZY;
    kvt_realm realm = kit_realm();
    for (int round = 0; round < 20; round++) {
        kvt_client *client = NULL;
        fake_refuse(&fake, KVT_OP_HELLO, KVT_EBUSY, 1);
        CHECK_STATUS(kvt_open(&options, &realm, &client), KVT_OK);
        int seen = fake_seen(&fake, KVT_OP_HELLO);
        fake_do(&fake, KVT_OP_HELLO, FAKE_LOSE_REQUEST, 1 << 20);
        caller callers[N_THREADS];
        pthread_t threads[N_THREADS];
        for (int i = 0; i < N_THREADS; i++) {
            callers[i] = (caller){.client = client, .kind = 1 + i % 2};
            CHECK(pthread_create(&threads[i], NULL, call_forever, &callers[i]) == 0);
        }
        fake_wait_seen(&fake, KVT_OP_HELLO, seen + 1);
        for (uint32_t n = 0; n < N_THREADS;) {
            pthread_mutex_lock(&client->lock);
            n = client->n_inside;
            pthread_mutex_unlock(&client->lock);
            usleep(50);
        }
        kvt_close(client);
        for (int i = 0; i < N_THREADS; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
            CHECK_EQ(callers[i].status, KVT_ECLOSED);
        }
    }
    fake_do(&fake, KVT_OP_HELLO, FAKE_SERVE, 0);
    fake_close(&fake);
}

/* --- many at once -------------------------------------------------------------------------------
 */

typedef struct worker {
    kvt_client *client;
    uint64_t random;
    int rounds;
    int faults; /* statuses of broken connections and lost leases are no failure */
    uint64_t n_right;
    uint64_t n_failed;
} worker;

static int is_fault(kvt_status status) {
    return status == KVT_ECONN || status == KVT_ESTALE || status == KVT_ETIMEDOUT ||
           status == KVT_EINVAL;
}

static int good(worker *w, kvt_status status) {
    if (status != KVT_OK) {
        CHECK_MSG(w->faults && is_fault(status), "%s: %s", kvt_status_name(status),
                  kvt_last_error());
        w->n_failed++;
    }
    return status == KVT_OK;
}

static void work_once(worker *w, kit_kv *kv) {
    kvt_lease *lease = NULL, *branch = NULL;
    /* Whole pages: the fake daemon has one frame for each page of the path, and would take it from
     * under the others when it replaces a short page by a longer one. */
    uint32_t n = (1 + check_below(&w->random, KIT_MAX_TOKENS / KIT_PAGE_TOKENS)) * KIT_PAGE_TOKENS;
    if (!good(w, kvt_acquire(w->client, kit_tokens(n), n, KVT_CLAIM, &lease)))
        return;
    kvt_lease_info info = kit_info(lease);
    kvt_status status = kit_decode(lease, kv, 0, info.held_tokens);
    if (status == KVT_OK)
        CHECK(kit_right(kv, 1, 0, info.held_tokens));
    w->n_right += (uint64_t)good(w, status);
    for (uint32_t page = info.held_tokens / KIT_PAGE_TOKENS; page * KIT_PAGE_TOKENS < n; page++) {
        status = kit_encode(lease, &ours, page);
        if (status == KVT_EFULL)
            break;
        good(w, status);
    }
    good(w, kvt_seal(lease, NULL));
    if (check_below(&w->random, 3) == 0 && good(w, kvt_fork(lease, n / 2, &branch)))
        good(w, kvt_release(branch));
    good(w, kvt_release(lease));
}

static void *work(void *argument) {
    worker *w = argument;
    kit_kv *kv = malloc(sizeof *kv);
    CHECK(kv);
    for (int i = 0; i < w->rounds; i++)
        work_once(w, kv);
    free(kv);
    return NULL;
}

static void run_workers(kvt_client *client, int rounds, int faults, void (*meanwhile)(void)) {
    worker workers[N_THREADS];
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        workers[i] = (worker){
            .client = client, .random = 77 + (uint64_t)i, .rounds = rounds, .faults = faults};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    if (meanwhile)
        meanwhile();
    uint64_t n_right = 0;
    for (int i = 0; i < N_THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        n_right += workers[i].n_right;
    }
    CHECK(n_right > 0);
}

/* Requests of all threads go out in the order of their numbers. */
static void test_order(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    run_workers(client, 150, 0, NULL);
    CHECK_EQ(fake.n_out_of_order, 0);
    CHECK_EQ(fake.n_duplicates, 0);
    CHECK_EQ(fake_leases(&fake), 0);
    CHECK_EQ(fake_seen(&fake, KVT_OP_HELLO), 1);
    CHECK_EQ(fake_seen(&fake, KVT_OP_STAGE), 1);
    kvt_close(client);
    fake_close(&fake);
}

static void break_things(void) {
    for (int i = 0; i < 12; i++) {
        int seen = fake_seen(&fake, KVT_OP_ACQUIRE);
        if (i % 3 == 0)
            fake_do(&fake, KVT_OP_ACQUIRE, FAKE_CUT_AFTER, 1);
        else if (i % 3 == 1)
            fake_do(&fake, KVT_OP_SEAL, FAKE_CUT_AFTER, 1);
        else
            fake_end_sessions(&fake);
        fake_wait_seen(&fake, KVT_OP_ACQUIRE, seen + 8);
    }
}

/* Connections break and sessions end under load: each call says so or is right, and in the end
 * nothing is left behind. */
static void test_faults(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    run_workers(client, 150, 1, break_things);
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_SERVE, 0);
    fake_do(&fake, KVT_OP_SEAL, FAKE_SERVE, 0);
    CHECK_STATUS(kvt_release(kit_acquire(client, 1, 0)), KVT_OK);
    CHECK_EQ(fake_leases(&fake), 0);
    CHECK_EQ(fake.n_duplicates, 0);
    kvt_close(client);
    fake_close(&fake);
}

/* --- pages that are given away ------------------------------------------------------------------
 */

typedef struct thief {
    uint64_t random;
    int go;
} thief;

/* After a while that is different each time, the frame goes to another page. */
static void *steal(void *argument) {
    thief *t = argument;
    while (!__atomic_load_n(&t->go, __ATOMIC_ACQUIRE))
        ;
    for (uint32_t spin = check_below(&t->random, 20000); spin; spin--)
        __asm__ volatile("");
    fake_bump(&fake, 0);
    uint8_t *bytes = fake_page_bytes(&fake, 0);
    for (size_t i = KVT_PAGE_HEADER_BYTES; i < 4096; i++)
        __atomic_store_n(&bytes[i], (uint8_t)0x5a, __ATOMIC_RELAXED);
    return NULL;
}

/* Whatever is decoded with KVT_OK is right, up to the moment when it says KVT_ESTALE. The first
 * decode is over before the thief may go, so it is right in each round however slow the machine. */
static void test_stolen(int rounds) {
    static kit_kv out;
    uint64_t random = 5;
    begin();
    kvt_client *client = kit_open(&fake);
    for (int i = 0; i < rounds; i++) {
        pthread_t thread;
        thief t = {.random = check_random(&random)};
        kit_hold(&fake, &ours, KIT_PAGE_TOKENS);
        kvt_lease *lease = kit_acquire(client, KIT_PAGE_TOKENS, 0);
        CHECK(pthread_create(&thread, NULL, steal, &t) == 0);
        kvt_status status = kit_decode(lease, &out, 0, KIT_PAGE_TOKENS);
        CHECK_MSG(status == KVT_OK, "round %d: %s", i, kvt_status_name(status));
        __atomic_store_n(&t.go, 1, __ATOMIC_RELEASE);
        for (; status == KVT_OK; status = kit_decode(lease, &out, 0, KIT_PAGE_TOKENS))
            CHECK_MSG(kit_right(&out, 1, 0, KIT_PAGE_TOKENS), "round %d", i);
        CHECK_MSG(status == KVT_ESTALE, "round %d: %s", i, kvt_status_name(status));
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK_STATUS(kvt_release(lease), KVT_OK);
    }
    kvt_close(client);
    fake_close(&fake);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    test_close(rounds);
    test_close_cut(rounds);
    test_close_unconnected();
    test_order();
    test_faults();
    test_stolen(300);
    printf("client threads: %d closes, all well\n", rounds);
    return 0;
}
