/*
 * test_client_view.c - the worker library's views, and importance, against a daemon that tells what
 * a test wants: runs, pages that fit them or not, nothing, garbage.
 */
#include "client/client.h"
#include "tests/client_kit.h"

#include <nng/nng.h>

static fake_daemon fake;
static kit_kv ours, out;

enum { HELD = 60 };
static const kvt_view view = {.sink_tokens = 2, .window_tokens = 20};

/* Tokens 0, 1, 17 and 40 to 59, of pages of 16: page 1 has a row, and pages 0, 2 and 3. */
static void begin(void) {
    kvt_geometry geometry = kit_geometry();
    fake_init(&fake, &geometry);
    kit_fill(&ours, 1);
    memset(&out, 0, sizeof out);
    fake_start(&fake);
    kit_hold(&fake, &ours, HELD);
    fake.n_view_runs = 3;
    fake.view_runs[0] = (kvt_wire_run){0, 2};
    fake.view_runs[1] = (kvt_wire_run){17, 1};
    fake.view_runs[2] = (kvt_wire_run){40, 20};
    fake.n_view_pages = 4;
    for (uint32_t i = 0; i < 4; i++)
        fake.view_pages[i] = i;
}

static void end(void) {
    CHECK_EQ(fake_leases(&fake), 0);
    CHECK_EQ(fake.n_duplicates, 0);
    fake_close(&fake);
}

static kvt_status take(kvt_client *client, kvt_lease **ret_lease) {
    return kvt_acquire_view(client, kit_tokens(HELD), HELD, NULL, 0, &view, 0, ret_lease);
}

static void test_rows(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL;
    const kvt_run *runs;
    size_t n;
    CHECK_STATUS(take(client, &lease), KVT_OK);
    CHECK_EQ(kit_info(lease).n_rows, 23);
    CHECK_EQ(kit_info(lease).held_tokens, HELD);
    CHECK_EQ(kit_info(lease).foreign_pages, 4);
    CHECK_STATUS(kvt_lease_runs(lease, &runs, &n), KVT_OK);
    CHECK(n == 3 && runs[1].first_token == 17 && runs[2].n_tokens == 20);
    CHECK_EQ(kvt_lease_runs(lease, NULL, &n), KVT_EINVAL);
    CHECK_STATUS(kit_decode(lease, &out, 40, 20), KVT_OK);
    CHECK(kit_right(&out, 1, 40, 20));
    CHECK_STATUS(kit_decode(lease, &out, 17, 1), KVT_OK);
    CHECK(kit_right(&out, 1, 17, 1));
    CHECK_STATUS(kit_decode(lease, &out, 30, 0), KVT_OK);
    for (size_t first = 0; first < HELD; first++)
        for (size_t n_tokens = 1; n_tokens <= HELD - first; n_tokens++) {
            size_t last = first + n_tokens - 1;
            int has = last < 2 || (first == 17 && last == 17) || first >= 40;
            CHECK_EQ(kit_decode(lease, &out, first, n_tokens), has ? KVT_OK : KVT_EINVAL);
        }
    /* Rows 1 to 3 are tokens 1, 17 and 40. */
    kvt_layout to = kit_layout(&out, 0);
    CHECK_STATUS(kvt_decode_rows(lease, 1, 3, 0, KIT_LAYERS, &to), KVT_OK);
    static const uint32_t tokens[] = {1, 17, 40};
    for (int i = 0; i < 3; i++)
        CHECK(memcmp(&out.part[0][kit_at(1, (size_t)i, 0)], &ours.part[0][kit_at(1, tokens[i], 0)],
                     KIT_ROW * 2) == 0);
    CHECK_EQ(kvt_decode_rows(lease, 22, 2, 0, KIT_LAYERS, &to), KVT_EINVAL);
    CHECK_EQ(kvt_decode_rows(lease, 24, 0, 0, KIT_LAYERS, &to), KVT_EINVAL);
    CHECK_STATUS(kvt_decode_rows(lease, 23, 0, 0, KIT_LAYERS, &to), KVT_OK);
    /* What is between was given to another; what it has was not, and then it was. */
    fake_bump(&fake, 1);
    CHECK_EQ(kit_decode(lease, &out, 17, 1), KVT_ESTALE);
    CHECK_STATUS(kit_decode(lease, &out, 40, 20), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    /* Of an ordinary lease rows are tokens. */
    kit_hold(&fake, &ours, HELD);
    fake.n_view_runs = 0;
    lease = kit_acquire(client, HELD, 0);
    CHECK_STATUS(kvt_lease_runs(lease, &runs, &n), KVT_OK);
    CHECK(n == 1 && runs[0].first_token == 0 && runs[0].n_tokens == HELD);
    CHECK_STATUS(kvt_decode_rows(lease, 5, 50, 0, KIT_LAYERS, &to), KVT_OK);
    CHECK(memcmp(&out.part[1][kit_at(0, 49, 0)], &ours.part[1][kit_at(0, 54, 0)], KIT_ROW * 2) ==
          0);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

static void expect_nonsense(kvt_client *client) {
    kvt_lease *lease = NULL;
    CHECK_EQ(take(client, &lease), KVT_EPROTO);
    CHECK(!lease);
    CHECK_STATUS(kvt_release(NULL), KVT_OK);
}

/* Pages that do not fit the runs; runs for whoever has not asked for a view. */
static void test_nonsense(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL;
    CHECK_EQ(kvt_acquire(client, kit_tokens(HELD), HELD, 0, &lease), KVT_EPROTO);
    CHECK(strstr(kvt_last_error(), "nobody asked for"));
    fake.n_view_pages = 3;
    expect_nonsense(client);
    fake.n_view_pages = 4;
    fake.n_view_runs = 2; /* a page too many */
    expect_nonsense(client);
    fake.n_view_runs = 3;
    for (int bad = 1; bad <= 4; bad++) {
        fake.bad_page = bad;
        expect_nonsense(client);
    }
    fake.bad_page = 0;
    CHECK_STATUS(take(client, &lease), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* The call that does not block: the same, of copies of what it was given. */
static void test_begun(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_view mine = view;
    kvt_span span = {.first_token = 7, .n_tokens = 2};
    kvt_pending *pending = NULL;
    kvt_outcome outcome = {0};
    uint32_t tokens[HELD], sum = 7;
    memcpy(tokens, kit_tokens(HELD), sizeof tokens);
    for (uint32_t i = 0; i < HELD; i++)
        sum += tokens[i];
    mine.budget_tokens = 25;
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_HOLD, 1);
    CHECK_STATUS(kvt_acquire_view_begin(client, tokens, HELD, &span, 1, &mine, KVT_LEAVE_ONE, &mine,
                                        &pending),
                 KVT_OK);
    memset(tokens, 0, sizeof tokens);
    mine = (kvt_view){0};
    span = (kvt_span){0};
    fake_wait_seen(&fake, KVT_OP_ACQUIRE, 1);
    CHECK_EQ(kvt_finish(pending, NULL), KVT_EINVAL); /* it may give a lease */
    fake_let_go(&fake);
    CHECK_STATUS(kvt_finish(pending, &outcome), KVT_OK);
    CHECK(outcome.user == &mine);
    CHECK_EQ(fake.asked_sum, sum);
    CHECK_EQ(fake.asked.sinks, view.sink_tokens);
    CHECK_EQ(fake.asked.window, view.window_tokens);
    CHECK_EQ(fake.asked.budget, 25);
    CHECK_EQ(fake.asked.flags, KVT_ACQUIRE_VIEW | KVT_ACQUIRE_LEAVE_ONE | KVT_ACQUIRE_SPANS);
    CHECK_EQ(kit_info(outcome.lease).n_rows, 23);
    CHECK_STATUS(kvt_release(outcome.lease), KVT_OK);
    /* cancelled: no lease is left */
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_LOSE_REPLY, 1);
    CHECK_STATUS(
        kvt_acquire_view_begin(client, kit_tokens(HELD), HELD, NULL, 0, &view, 0, NULL, &pending),
        KVT_OK);
    fake_wait_seen(&fake, KVT_OP_ACQUIRE, 2);
    kvt_cancel(pending);
    CHECK_EQ(kvt_finish(pending, &outcome), KVT_ECANCELED);
    fake_wait_seen(&fake, KVT_OP_CANCEL, 1);
    kvt_close(client);
    end();
}

/* What cannot be is refused at once. */
static void test_begin_refused(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    static const kvt_view none;
    const kvt_span behind = {.first_token = HELD, .n_tokens = 1};
    const uint32_t *tokens = kit_tokens(HELD);
    kvt_pending *pending = NULL;
    CHECK_EQ(kvt_acquire_view_begin(NULL, tokens, HELD, NULL, 0, &view, 0, NULL, &pending),
             KVT_EINVAL);
    CHECK_EQ(kvt_acquire_view_begin(client, tokens, HELD, NULL, 0, &view, 0, NULL, NULL),
             KVT_EINVAL);
    CHECK_EQ(kvt_acquire_view_begin(client, tokens, HELD, NULL, 0, NULL, 0, NULL, &pending),
             KVT_EINVAL);
    CHECK_EQ(kvt_acquire_view_begin(client, tokens, HELD, NULL, 0, &none, 0, NULL, &pending),
             KVT_EINVAL);
    CHECK_EQ(kvt_acquire_view_begin(client, NULL, HELD, NULL, 0, &view, 0, NULL, &pending),
             KVT_EINVAL);
    CHECK_EQ(kvt_acquire_view_begin(client, tokens, HELD, &behind, 1, &view, 0, NULL, &pending),
             KVT_EINVAL);
    CHECK_EQ(
        kvt_acquire_view_begin(client, tokens, HELD, NULL, 0, &view, KVT_CLAIM, NULL, &pending),
        KVT_EINVAL);
    for (long n = 1; n <= 3; n++) { /* the call itself, its tokens, its spans */
        const kvt_span span = {.first_token = 7, .n_tokens = 2};
        kvt_memory_fail_after(n);
        CHECK_EQ(kvt_acquire_view_begin(client, tokens, HELD, &span, 1, &view, 0, NULL, &pending),
                 KVT_ENOMEM);
        kvt_memory_fail_after(0);
    }
    CHECK(!pending);
    CHECK_EQ(fake_seen(&fake, KVT_OP_ACQUIRE), 0);
    kvt_close(client);
    end();
}

/* Ranks that ask together say so. */
static void test_ranks(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL;
    const uint32_t *tokens = kit_tokens(HELD);
    CHECK_EQ(kvt_acquire_view_ranks(client, 0, 8, tokens, HELD, &view, 0, &lease), KVT_EINVAL);
    CHECK_EQ(kvt_acquire_view_ranks(client, 7, 0, tokens, HELD, &view, 0, &lease), KVT_EINVAL);
    CHECK_EQ(kvt_acquire_view_ranks(client, 7, 8, tokens, HELD, NULL, 0, &lease), KVT_EINVAL);
    CHECK(!lease);
    CHECK_STATUS(kvt_acquire_view_ranks(client, 7, 8, tokens, HELD, &view, KVT_LEAVE_ONE, &lease),
                 KVT_OK);
    CHECK_EQ(fake.asked.group, 7);
    CHECK_EQ(fake.asked.request, 8);
    CHECK_EQ(fake.asked.window, view.window_tokens);
    CHECK_EQ(fake.asked.flags, KVT_ACQUIRE_VIEW | KVT_ACQUIRE_LEAVE_ONE);
    CHECK_EQ(kit_info(lease).n_rows, 23);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

static void test_importance(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL;
    const float importance[] = {1, 0, 1};
    CHECK_STATUS(take(client, &lease), KVT_OK);
    CHECK_STATUS(kvt_importance(lease, 20, 3, importance), KVT_OK);
    CHECK_EQ(fake.importance[0], 20);
    CHECK_EQ(fake.importance[1], 3);
    CHECK_EQ(fake.importance[2], 2 * 0x7f00);
    CHECK_EQ(kvt_importance(lease, 21, 3, importance), KVT_EINVAL);
    CHECK_EQ(kvt_importance(lease, 20, 3, NULL), KVT_EINVAL);
    fake_do(&fake, KVT_OP_IMPORTANCE, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_importance(lease, 20, 3, importance), KVT_EPROTO);
    CHECK_STATUS(kvt_importance(lease, 20, 3, importance), KVT_OK);
    fake_refuse(&fake, KVT_OP_IMPORTANCE, KVT_ENOENT, 1);
    CHECK_EQ(kvt_importance(lease, 20, 3, importance), KVT_ESTALE);
    CHECK_EQ(kvt_importance(NULL, 0, 0, NULL), KVT_EINVAL);
    kvt_release(lease);
    kvt_close(client);
    end();
}

/* Each allocation fails once: no lease is left, here or there. */
static void test_memory(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    long n = 1;
    for (;; n++) {
        kvt_lease *lease = NULL;
        kvt_memory_fail_after(n);
        kvt_status status = take(client, &lease);
        kvt_memory_fail_after(0);
        if (status == KVT_OK) {
            CHECK_STATUS(kvt_release(lease), KVT_OK);
            break;
        }
        CHECK_MSG(status == KVT_ENOMEM, "allocation %ld: %s", n, kvt_status_name(status));
    }
    CHECK_MSG(n > 3, "only %ld allocations were met", n);
    kvt_close(client);
    end();
}

int main(void) {
    test_rows();
    test_nonsense();
    test_begun();
    test_begin_refused();
    test_ranks();
    test_importance();
    test_memory();
    nng_fini();
    return 0;
}
