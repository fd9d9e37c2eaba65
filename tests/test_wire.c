/*
 * test_wire.c - the wire format against bytes written out by hand from client/PROTOCOL.md.
 *
 * Each message is written by the library and compared to its bytes, then read back; then every
 * shorter and one longer message must be refused, and bits are flipped: whatever is then accepted
 * must write the same bytes again (so nothing in a message is ignored).
 */
#include "client/wire.h"
#include "tests/wire_kit.h"

static void rewrite_pages(const uint8_t *pages, uint32_t n, kvt_writer *w) {
    for (uint32_t i = 0; i < n; i++) {
        kvt_wire_page page;
        kvt_wire_get_page(pages, i, &page);
        kvt_wire_put_page(w, &page);
    }
}

static void rewrite_lists(const kvt_page_list *lists, uint32_t n_lists, kvt_writer *w) {
    for (uint32_t i = 0; i < n_lists; i++)
        rewrite_pages(lists[i].pages, lists[i].n_pages, w);
}

static kvt_status rewrite_lease_rep(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_lease_rep message;
    kvt_status status = kvt_wire_get_lease_rep(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_lease_rep(w, &message);
    rewrite_lists(message.lists, message.n_lists, w);
    return status;
}

static kvt_status rewrite_seal_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_seal_req message;
    kvt_status status = kvt_wire_get_seal_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_seal_req(w, &message);
    for (uint32_t i = 0; i < message.n_pages; i++) {
        kvt_seal_page page;
        kvt_wire_get_seal_page(message.pages, i, &page);
        kvt_wire_put_seal_page(w, &page);
    }
    return status;
}

static kvt_status rewrite_seal_rep(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_seal_rep message;
    kvt_status status = kvt_wire_get_seal_rep(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_seal_rep(w, &message);
    rewrite_lists(message.lists, message.n_lists, w);
    return status;
}

static kvt_status rewrite_release_req(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_release_req message;
    kvt_status status = kvt_wire_get_release_req(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_u32(w, message.n_leases);
    for (uint32_t i = 0; i < message.n_leases; i++)
        kvt_wire_put_u64(w, kvt_wire_get_u64(message.leases, i));
    return status;
}

static kvt_status rewrite_release_rep(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_release_rep message;
    kvt_status status = kvt_wire_get_release_rep(body, n, &message);
    if (status != KVT_OK)
        return status;
    kvt_wire_put_u32(w, message.n_leases);
    for (uint32_t i = 0; i < message.n_leases; i++)
        kvt_wire_put_u32(w, kvt_wire_get_u32(message.statuses, i));
    return status;
}

static kvt_status rewrite_text_rep(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_text_rep message;
    kvt_status status = kvt_wire_get_text_rep(body, n, &message);
    if (status == KVT_OK)
        kvt_wire_put_text_rep(w, message.text, message.n_bytes);
    return status;
}

static kvt_status rewrite_error(const uint8_t *body, size_t n, kvt_writer *w) {
    kvt_wire_str text;
    kvt_status status = kvt_wire_get_error(body, n, &text);
    if (status != KVT_OK)
        return status;
    char copy[256] = "";
    CHECK(text.n_bytes < sizeof copy);
    memcpy(copy, text.at, text.n_bytes);
    kvt_wire_put_str(w, copy);
    return status;
}

#define TOKEN 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16

/* --- the messages -------------------------------------------------------------------------------
 */

static void test_hello(void) {
    static const uint8_t req[] = {TOKEN, 0x78, 0x56, 0x34, 0x12, 3, 0, 'b', 'o', 'b'};
    kvt_hello_req q = {.token = {TOKEN}, .pid = 0x12345678, .name = {"bob", 3}};
    START(w);
    kvt_wire_put_hello_req(&w, &q);
    check_written("HELLO request", &w, req, sizeof req);
    check_body("HELLO request", rewrite_hello_req, req, sizeof req);
    refuse_body("a name with a zero", rewrite_hello_req,
                B(TOKEN, 0x78, 0x56, 0x34, 0x12, 3, 0, 'b', 0, 'b'));

    static const uint8_t rep[] = {TOKEN, 7,  0,   0,   0, /* session */
                                  1,                      /* resumed */
                                  0,     0,  128, 0,      /* max_bytes 8 MiB */
                                  0,     0,  16,  0,      /* max_tokens 1 << 20 */
                                  44,    1,  0,   0,      /* max_leases 300 */
                                  0,     4,  0,   0,      /* max_claimed_pages */
                                  64,    0,  0,   0,      /* page_tokens */
                                  16,    39, 0,   0,      /* grace_ms 10,000 */
                                  3,     0,  0,   0,      /* n_gpus */
                                  2,     0,  '/', 's',    /* staging_dir */
                                  1,     0,  't'};
    kvt_hello_rep p = {.token = {TOKEN},
                       .session = 7,
                       .resumed = 1,
                       .max_bytes = 8388608,
                       .max_tokens = 1048576,
                       .max_leases = 300,
                       .max_claimed_pages = 1024,
                       .page_tokens = 64,
                       .grace_ms = 10000,
                       .n_gpus = 3,
                       .staging_dir = {"/s", 2},
                       .tenant = {"t", 1}};
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_hello_rep(&w, &p);
    check_written("HELLO reply", &w, rep, sizeof rep);
    check_body("HELLO reply", rewrite_hello_rep, rep, sizeof rep);
    uint8_t other[sizeof rep];
    memcpy(other, rep, sizeof rep);
    other[20] = 2; /* resumed is 0 or 1 */
    refuse_body("resumed = 2", rewrite_hello_rep, other, sizeof other);
}

static void test_stage(void) {
    static const uint8_t req[] = {0, 0, 0, 0, 16, 0, 0, 0, 3, 0, 'k', '-', '9'};
    kvt_stage_req q = {.bytes = UINT64_C(0x1000000000), .name = {"k-9", 3}};
    START(w);
    kvt_wire_put_stage_req(&w, &q);
    check_written("STAGE", &w, req, sizeof req);
    check_body("STAGE", rewrite_stage_req, req, sizeof req);
    refuse_body("no name", rewrite_stage_req, B(1, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    refuse_body("..", rewrite_stage_req, B(1, 0, 0, 0, 0, 0, 0, 0, 2, 0, '.', '.'));
    refuse_body("a slash", rewrite_stage_req, B(1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 'a', '/', 'b'));
}

static void test_realm_message(void) {
    static const uint8_t req[] = {2, 0, 0, 0, 1, 3, 0, '0', ':', 7, 3, 0, 0, 0, 0xaa, 0xbb, 0xcc};
    kvt_realm_req q = {
        .rank = 2, .gpu_named = 1, .gpu = {"0:\7", 3}, .canonical = req + 14, .n_bytes = 3};
    START(w);
    kvt_wire_put_realm_req(&w, &q);
    check_written("REALM request", &w, req, sizeof req);
    check_body("REALM request", rewrite_realm_req, req, sizeof req);
    static const uint8_t without[] = {2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0xaa};
    check_body("REALM request without a GPU", rewrite_realm_req, without, sizeof without);
    refuse_body("rank 64", rewrite_realm_req, B(64, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1));
    refuse_body("named = 2", rewrite_realm_req, B(2, 0, 0, 0, 2, 1, 0, '0', 1, 0, 0, 0, 1));
    refuse_body("no GPU is named", rewrite_realm_req, B(2, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1));
    uint8_t long_gpu[4 + 1 + 2 + KVT_WIRE_MAX_GPU + 1 + 4 + 1] = {0, 0, 0,
                                                                  0, 1, KVT_WIRE_MAX_GPU + 1};
    memset(long_gpu + 7, '0', KVT_WIRE_MAX_GPU + 1);
    long_gpu[7 + KVT_WIRE_MAX_GPU + 1] = 1;
    refuse_body("a GPU's place of 32 bytes", rewrite_realm_req, long_gpu, sizeof long_gpu);

    static const uint8_t rep[] = {5, 0, 0, 0, 8, 7, 6, 5, 4, 3,   2,   1,   0xc0,
                                  0, 0, 1, 0, 0, 0, 0, 4, 0, '/', 'd', '/', 'a'};
    kvt_realm_rep p = {.realm = 5,
                       .geometry_hash = UINT64_C(0x0102030405060708),
                       .page_bytes = 0x10000c0,
                       .arena_path = {"/d/a", 4}};
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_realm_rep(&w, &p);
    check_written("REALM reply", &w, rep, sizeof rep);
    check_body("REALM reply", rewrite_realm_rep, rep, sizeof rep);

    uint8_t big[11 + KVT_WIRE_MAX_REALM_BYTES + 1] = {[7] = 1, 8};
    kvt_realm_req got;
    CHECK_EQ(kvt_wire_get_realm_req(big, sizeof big, &got), KVT_ELIMIT);
    big[7] = 0;
    CHECK_EQ(kvt_wire_get_realm_req(big, sizeof big - 1, &got), KVT_OK);
    CHECK_EQ(got.n_bytes, KVT_WIRE_MAX_REALM_BYTES);
}

static void test_acquire(void) {
    static const uint8_t root[] = {3, 0, 0, 0,                         /* realm */
                                   5, 0, 0, 0,                         /* rank */
                                   7, 0, 0, 0,                         /* claim, leave one, view */
                                   0, 0, 0, 0, 0,    0,    0,    0,    /* base */
                                   0, 0, 0, 0,                         /* keep */
                                   0, 0, 0, 0,                         /* first_page */
                                   9, 0, 0, 0, 0,    0,    0,    0x80, /* group */
                                   2, 0, 0, 0, 0,    0,    0,    0x40, /* request */
                                   4, 0, 0, 0, 0,    1,    0,    0,    /* sinks, window */
                                   8, 2, 0, 0,                         /* budget */
                                   2, 0, 0, 0, 0x04, 0x03, 0x02, 0x01, 0xff, 0xff, 0xff, 0xff};
    static const uint32_t tokens[] = {0x01020304, 0xffffffff};
    kvt_acquire_req q = {.realm = 3,
                         .rank = 5,
                         .flags = 7,
                         .group = UINT64_C(0x8000000000000009),
                         .request = UINT64_C(0x4000000000000002),
                         .sinks = 4,
                         .window = 256,
                         .budget = 520,
                         .n_tokens = 2};
    START(w);
    kvt_wire_put_acquire_req(&w, &q);
    kvt_wire_put_tokens(&w, tokens, 2);
    check_written("ACQUIRE", &w, root, sizeof root);
    check_body("ACQUIRE", rewrite_acquire_req, root, sizeof root);

    static const uint8_t base[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9, 1,
                                   0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0};
    kvt_acquire_req e = {.flags = 1,
                         .base = UINT64_C(0x0102030405060708),
                         .keep_tokens = 265,
                         .first_page = 4,
                         .n_tokens = 1};
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_acquire_req(&w, &e);
    kvt_wire_put_tokens(&w, (const uint32_t[]){6}, 1);
    check_written("ACQUIRE with base", &w, base, sizeof base);
    check_body("ACQUIRE with base", rewrite_acquire_req, base, sizeof base);

    const struct {
        const char *what;
        size_t at;
        uint8_t value;
    } faults[] = {
        {"an unknown flag", 8, 8},
        {"realm and base", 0, 1},
        {"rank and base", 4, 1},
        {"a group without request", 28, 1},
        {"a request without group", 36, 1},
        {"sinks without a view", 44, 1},
        {"a window without a view", 48, 1},
        {"a budget without a view", 52, 1},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        uint8_t wrong[sizeof base];
        memcpy(wrong, base, sizeof base);
        wrong[faults[i].at] = faults[i].value;
        refuse_body(faults[i].what, rewrite_acquire_req, wrong, sizeof wrong);
    }
    uint8_t wrong[sizeof root];
    memcpy(wrong, root, sizeof root);
    wrong[20] = 1;
    refuse_body("keep_tokens without a base", rewrite_acquire_req, wrong, sizeof wrong);
    memcpy(wrong, root, sizeof root);
    wrong[4] = KVT_MAX_RANKS;
    refuse_body("a rank that cannot be", rewrite_acquire_req, wrong, sizeof wrong);
}

static void test_acquire_limit(void) {
    enum { AT = 56, FIXED = 60 }; /* n_tokens, and what is in front of the tokens */
    size_t most = FIXED + (size_t)4 * KVT_MAX_REQUEST_TOKENS;
    uint8_t *body = calloc(1, most + 4);
    CHECK(body);
    kvt_acquire_req got;
    uint32_t n = KVT_MAX_REQUEST_TOKENS;
    memcpy(body + AT, &n, 4);
    CHECK_EQ(kvt_wire_get_acquire_req(body, most, &got), KVT_OK);
    CHECK_EQ(got.n_tokens, KVT_MAX_REQUEST_TOKENS);
    n++;
    memcpy(body + AT, &n, 4);
    CHECK_EQ(kvt_wire_get_acquire_req(body, most + 4, &got), KVT_ELIMIT);
    /* Counts whose size in bytes overflows 32 bits. */
    for (uint32_t high = 1; high < 4; high++) {
        n = high << 30 | 1;
        memcpy(body + AT, &n, 4);
        CHECK_EQ(kvt_wire_get_acquire_req(body, FIXED + 4, &got), KVT_EPROTO);
    }
    free(body);
}

static void test_small_requests(void) {
    static const uint8_t fork[] = {8, 7, 6, 5, 4, 3, 2, 1, 0, 2, 0, 0};
    kvt_fork_req f = {.lease = UINT64_C(0x0102030405060708), .n_tokens = 512};
    START(w);
    kvt_wire_put_fork_req(&w, &f);
    check_written("FORK", &w, fork, sizeof fork);
    check_body("FORK", rewrite_fork_req, fork, sizeof fork);

    static const uint8_t wait[] = {9, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0xe8, 3, 0, 0, 1, 0, 0, 0};
    kvt_wait_req wt = {.lease = 9, .held_tokens = 64, .wait_ms = 1000, .first_page = 1};
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_wait_req(&w, &wt);
    check_written("WAIT", &w, wait, sizeof wait);
    check_body("WAIT", rewrite_wait_req, wait, sizeof wait);

    check_body("CANCEL", rewrite_cancel_req, B(1, 0, 0, 0, 0, 0, 0, 0x80));
    check_body("TREE", rewrite_tree_req, B(0xe8, 3, 0, 0));
    kvt_cancel_req cancel;
    CHECK_EQ(kvt_wire_get_cancel_req(B(1, 0, 0, 0, 0, 0, 0, 0x80), &cancel), KVT_OK);
    CHECK(cancel.number == UINT64_C(0x8000000000000001));
    kvt_tree_req tree;
    CHECK_EQ(kvt_wire_get_tree_req(B(0xe8, 3, 0, 0), &tree), KVT_OK);
    CHECK_EQ(tree.max_lines, 1000);
}

#define PAGE                                                                                       \
    0x40, 0, 0, 0, 1, 0, 0, 0,     /* offset */                                                    \
        3, 0, 0, 0, 0, 0, 0, 2,    /* generation */                                                \
        0x11, 0, 0, 0,             /* frame */                                                     \
        0, 0x20, 0, 0,             /* bytes */                                                     \
        0x0d, 0, 0, 0, 64, 0, 2, 0 /* sealer, rows, tier, reserved */
static const kvt_wire_page golden_page = {.offset = UINT64_C(0x100000040),
                                          .generation = UINT64_C(0x0200000000000003),
                                          .frame = 17,
                                          .bytes = 8192,
                                          .sealer = 13,
                                          .rows = 64,
                                          .tier = KVT_TIER_DISK};

static void test_lease(void) {
    static const uint8_t rep[] = {1,    0,    0,   0, 2, 0, 0, 0, /* lease */
                                  200,  0,    0,   0,             /* n_tokens */
                                  128,  0,    0,   0,             /* held */
                                  64,   0,    0,   0,             /* computing */
                                  192,  0,    0,   0,             /* claimed */
                                  0,    0,    0,   0,             /* n_runs */
                                  3,    0,    0,   0,             /* n_lists */
                                  1,    0,    0,   0, 1, 0, 0, 0, /* first_page, n_pages */
                                  7,    0,    0,   0, 0, 0, 0, 0, /* of the second */
                                  0,    0,    0,   0, 2, 0, 0, 0, /* and the third */
                                  PAGE, PAGE, PAGE};
    kvt_lease_rep p = {.lease = UINT64_C(0x0000000200000001),
                       .n_tokens = 200,
                       .held_tokens = 128,
                       .computing_tokens = 64,
                       .claimed_tokens = 192,
                       .n_lists = 3,
                       .lists = {{1, 1, NULL}, {7, 0, NULL}, {0, 2, NULL}}};
    START(w);
    kvt_wire_put_lease_rep(&w, &p);
    for (int i = 0; i < 3; i++)
        kvt_wire_put_page(&w, &golden_page);
    check_written("lease", &w, rep, sizeof rep);
    check_body("lease", rewrite_lease_rep, rep, sizeof rep);
    uint8_t wrong[sizeof rep];
    memcpy(wrong, rep, sizeof rep);
    wrong[sizeof rep - 1] = 1;
    refuse_body("a reserved field", rewrite_lease_rep, wrong, sizeof wrong);
    memcpy(wrong, rep, sizeof rep);
    wrong[sizeof rep - 2] = 3;
    refuse_body("a tier that there is not", rewrite_lease_rep, wrong, sizeof wrong);
    memcpy(wrong, rep, sizeof rep);
    wrong[39] = 8; /* 2^27 + 1 pages: 32 times that is 32 in 32 bits */
    refuse_body("a count that overflows", rewrite_lease_rep, wrong, sizeof wrong);
    memcpy(wrong, rep, sizeof rep);
    wrong[36] = 2;
    refuse_body("a page too many in a list", rewrite_lease_rep, wrong, sizeof wrong);
    memcpy(wrong, rep, sizeof rep);
    wrong[28] = KVT_MAX_GROUPS + 1;
    refuse_body("more lists than groups", rewrite_lease_rep, wrong, sizeof wrong);
    wrong[28] = 0;
    refuse_body("no list", rewrite_lease_rep, wrong, 32);
}

/* A view: runs of tokens, and the pages that hold them. */
static void test_view(void) {
    static const uint8_t rep[] = {1,   0, 0, 0, 2,    0,    0,   0, /* lease */
                                  200, 0, 0, 0, 192,  0,    0,   0, /* n_tokens, held */
                                  0,   0, 0, 0, 0,    0,    0,   0, /* computing, claimed */
                                  3,   0, 0, 0,                     /* n_runs */
                                  0,   0, 0, 0, 4,    0,    0,   0, /* sinks */
                                  70,  0, 0, 0, 1,    0,    0,   0, /* a pick */
                                  160, 0, 0, 0, 32,   0,    0,   0, /* window */
                                  1,   0, 0, 0, 0,    0,    0,   0, /* n_lists, first_page */
                                  3,   0, 0, 0, PAGE, PAGE, PAGE};
    static const kvt_wire_run runs[] = {{0, 4}, {70, 1}, {160, 32}};
    kvt_lease_rep p = {.lease = UINT64_C(0x0000000200000001),
                       .n_tokens = 200,
                       .held_tokens = 192,
                       .n_runs = 3,
                       .runs = (const uint8_t *)runs,
                       .n_lists = 1,
                       .lists = {{0, 3, NULL}}};
    START(w);
    kvt_wire_put_lease_rep(&w, &p);
    for (int i = 0; i < 3; i++)
        kvt_wire_put_page(&w, &golden_page);
    check_written("view", &w, rep, sizeof rep);
    check_body("view", rewrite_lease_rep, rep, sizeof rep);
    const struct {
        const char *what;
        size_t at;
        uint8_t value;
    } faults[] = {{"a run behind what is held", 48, 33},   {"a run of no token", 48, 0},
                  {"a run that touches the next", 40, 90}, {"a run in front of the last", 44, 3},
                  {"more runs than there are", 27, 1},     {"a run that overflows", 51, 255}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        uint8_t wrong[sizeof rep];
        memcpy(wrong, rep, sizeof rep);
        wrong[faults[i].at] = faults[i].value;
        refuse_body(faults[i].what, rewrite_lease_rep, wrong, sizeof wrong);
    }
    /* One run too many. */
    size_t n_runs = KVT_WIRE_MAX_RUNS + 1, most = 28 + 8 * n_runs + 12;
    uint8_t *body = calloc(1, most);
    CHECK(body);
    kvt_lease_rep got;
    memcpy(body + 12, &(uint32_t){UINT32_MAX}, 4);
    memcpy(body + 24, &(uint32_t){(uint32_t)n_runs}, 4);
    for (uint32_t i = 0; i < n_runs; i++)
        memcpy(body + 28 + 8 * i, &(kvt_wire_run){2 * i, 1}, 8);
    body[28 + 8 * n_runs] = 1;
    CHECK_EQ(kvt_wire_get_lease_rep(body, most, &got), KVT_ELIMIT);
    free(body);
}

static void test_seal(void) {
    static const uint8_t req[] = {4, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, /* lease, n_pages */
                                  5, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                  7, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0,
                                  7, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    kvt_seal_req q = {.lease = 4, .n_pages = 3};
    kvt_seal_page pages[] = {{.page = 5, .group = 1, .bytes = 256},
                             {.page = 7, .bytes = 512, .offset = UINT64_C(0x100000100)},
                             {.page = 7, .group = 7}};
    START(w);
    kvt_wire_put_seal_req(&w, &q);
    for (int i = 0; i < 3; i++)
        kvt_wire_put_seal_page(&w, &pages[i]);
    check_written("SEAL request", &w, req, sizeof req);
    check_body("SEAL request", rewrite_seal_req, req, sizeof req);
    const struct {
        const char *what;
        size_t at;
        uint8_t value;
    } faults[] = {{"a page after a later one", 32, 4},
                  {"the same page and group twice", 56, 0},
                  {"a group that cannot be", 56, 8},
                  {"a reserved field", 18, 1},
                  {"a reserved field at the end", 59, 1}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        uint8_t wrong[sizeof req];
        memcpy(wrong, req, sizeof req);
        wrong[faults[i].at] = faults[i].value;
        refuse_body(faults[i].what, rewrite_seal_req, wrong, sizeof wrong);
    }
    refuse_body("no pages", rewrite_seal_req, B(4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));

    static const uint8_t rep[] = {15, 0, 0, 0, 0x40, 1, 0, 0, 1, 0,   0,
                                  0,  4, 0, 0, 0,    1, 0, 0, 0, PAGE};
    kvt_seal_rep p = {.page_status = KVT_EORDER,
                      .held_tokens = 320,
                      .n_lists = 1,
                      .lists[0] = {.first_page = 4, .n_pages = 1}};
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_seal_rep(&w, &p);
    kvt_wire_put_page(&w, &golden_page);
    check_written("SEAL reply", &w, rep, sizeof rep);
    check_body("SEAL reply", rewrite_seal_rep, rep, sizeof rep);
    uint8_t wrong[sizeof rep];
    memcpy(wrong, rep, sizeof rep);
    wrong[0] = KVT_N_STATUS;
    refuse_body("a status that is none", rewrite_seal_rep, wrong, sizeof wrong);

    uint8_t *many = calloc(1, 12 + 20 * (KVT_MAX_SEAL_PAGES + 1));
    CHECK(many);
    for (uint32_t i = 0; i <= KVT_MAX_SEAL_PAGES; i++)
        memcpy(many + 12 + 20 * i, &i, 4);
    kvt_seal_req got;
    uint32_t n = KVT_MAX_SEAL_PAGES + 1;
    memcpy(many + 8, &n, 4);
    CHECK_EQ(kvt_wire_get_seal_req(many, 12 + 20 * n, &got), KVT_ELIMIT);
    n--;
    memcpy(many + 8, &n, 4);
    CHECK_EQ(kvt_wire_get_seal_req(many, 12 + 20 * n, &got), KVT_OK);
    free(many);
}

static void test_release(void) {
    check_body("RELEASE request", rewrite_release_req,
               B(2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0));
    check_body("RELEASE reply", rewrite_release_rep, B(2, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0));
    refuse_body("no leases", rewrite_release_req, B(0, 0, 0, 0));
    kvt_release_req got;
    static const uint8_t one[] = {1, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0};
    CHECK_EQ(kvt_wire_get_release_req(one, sizeof one, &got), KVT_OK);
    CHECK(kvt_wire_get_u64(got.leases, 0) == UINT64_C(0x100000005));
    size_t n_bytes = 4 + 8 * (KVT_WIRE_MAX_RELEASE + 1);
    uint8_t *many = calloc(1, n_bytes);
    CHECK(many);
    uint32_t n = KVT_WIRE_MAX_RELEASE + 1;
    memcpy(many, &n, 4);
    CHECK_EQ(kvt_wire_get_release_req(many, n_bytes, &got), KVT_ELIMIT);
    n--;
    memcpy(many, &n, 4);
    CHECK_EQ(kvt_wire_get_release_req(many, n_bytes - 8, &got), KVT_OK);
    free(many);
}

static void test_text(void) {
    static const uint8_t rep[] = {2, 0, 0, 0, '{', '}'};
    START(w);
    kvt_wire_put_text_rep(&w, "{}", 2);
    check_written("text", &w, rep, sizeof rep);
    check_body("text", rewrite_text_rep, rep, sizeof rep);
    static const uint8_t error[] = {4, 0, 'o', 'o', 'p', 's'};
    kvt_wire_start(&w, scratch, sizeof scratch);
    kvt_wire_put_str(&w, "oops");
    check_written("error", &w, error, sizeof error);
    check_body("error", rewrite_error, error, sizeof error);
    check_body("an empty error", rewrite_error, B(0, 0));
}

/* --- header -------------------------------------------------------------------------------------
 */

static const uint8_t golden_header[] = {
    'K',  'V',  'T',  'W',  2,    2,    8,    0, /* RELEASE reply */
    8,    0,    0,    0,    0,    0,    0,    0, /* body, status */
    0x15, 0x14, 0x13, 0x12, 0x11, 0x10, 0,    0, /* number */
    0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0x20, 1, 0, 0, 0, 0, 0, 0, 0};

static kvt_status open_copy(const uint8_t *message, size_t n, kvt_wire_header *ret) {
    uint8_t *copy = copy_of(message, n);
    const uint8_t *body = NULL;
    kvt_status status = kvt_wire_open(copy, n, ret, &body);
    if (status == KVT_OK)
        CHECK(body == copy + KVT_WIRE_HEADER_BYTES);
    free(copy);
    return status;
}

static void header_status(size_t at, uint8_t value, kvt_status expected) {
    uint8_t wrong[sizeof golden_header];
    kvt_wire_header header;
    memcpy(wrong, golden_header, sizeof wrong);
    wrong[at] = value;
    kvt_status status = open_copy(wrong, sizeof wrong, &header);
    CHECK_MSG(status == expected, "byte %zu = %u: %s", at, value, kvt_status_name(status));
}

static void test_header(void) {
    kvt_wire_header header = {.kind = KVT_WIRE_REPLY,
                              .op = KVT_OP_RELEASE,
                              .number = UINT64_C(0x101112131415),
                              .boot_id = UINT64_C(0x2021222324252627)};
    START(w);
    kvt_wire_put_u32(&w, 1);
    kvt_wire_put_u32(&w, 0);
    CHECK_EQ(kvt_wire_finish(&w, header), sizeof golden_header);
    check_bytes("header", scratch, sizeof golden_header, golden_header, sizeof golden_header);
    kvt_wire_header got;
    CHECK_EQ(open_copy(golden_header, sizeof golden_header, &got), KVT_OK);
    CHECK_EQ(got.kind, KVT_WIRE_REPLY);
    CHECK_EQ(got.op, KVT_OP_RELEASE);
    CHECK_EQ(got.body_bytes, 8);
    CHECK_EQ(got.status, 0);
    CHECK(got.number == header.number && got.boot_id == header.boot_id);
    for (size_t n = 0; n < sizeof golden_header; n++)
        CHECK_EQ(open_copy(golden_header, n, &got), KVT_EPROTO);
    header_status(0, 'k', KVT_EPROTO);
    header_status(4, 0, KVT_EVERSION);
    header_status(4, 1, KVT_EVERSION);
    header_status(5, 0, KVT_EPROTO);
    header_status(5, 4, KVT_EPROTO);
    header_status(5, KVT_WIRE_REQUEST, KVT_OK);
    header_status(6, 0, KVT_EPROTO);
    header_status(6, KVT_N_OPS, KVT_EPROTO);
    header_status(7, 1, KVT_EPROTO);
    header_status(8, 7, KVT_EPROTO);
    header_status(11, 0xff, KVT_EPROTO);
    header_status(12, KVT_N_STATUS - 1, KVT_OK);
    header_status(12, KVT_N_STATUS, KVT_EPROTO);
    header_status(15, 1, KVT_EPROTO);
    header_status(24, 0, KVT_OK);
    uint8_t request[sizeof golden_header];
    memcpy(request, golden_header, sizeof request);
    request[5] = KVT_WIRE_REQUEST;
    request[12] = 1; /* a request has no status */
    CHECK_EQ(open_copy(request, sizeof request, &got), KVT_EPROTO);
    /* Of another version nothing is read: all else may be anything. */
    memset(request + 5, 0xff, sizeof request - 5);
    request[4] = 9;
    CHECK_EQ(open_copy(request, sizeof request, &got), KVT_EVERSION);
}

static void test_room(void) {
    kvt_writer w;
    static const kvt_wire_header header = {.kind = KVT_WIRE_REQUEST, .op = KVT_OP_PING};
    for (size_t room = 0; room < 40; room++) {
        uint8_t *block = copy_of(scratch, room);
        kvt_wire_start(&w, block, room);
        kvt_wire_put_u64(&w, 1);
        CHECK_EQ(kvt_wire_finish(&w, header), 0);
        /* Once it failed, nothing more is written, even if it would fit. */
        size_t n = w.n_bytes;
        kvt_wire_put_u8(&w, 1);
        CHECK(w.failed && w.n_bytes == n);
        free(block);
    }
    uint8_t *block = calloc(1, KVT_WIRE_MAX_BYTES + 16), *zeros = calloc(1, KVT_WIRE_MAX_BYTES);
    CHECK(block && zeros);
    kvt_wire_start(&w, block, KVT_WIRE_MAX_BYTES + 16);
    kvt_wire_put_bytes(&w, zeros, KVT_WIRE_MAX_BYTES - KVT_WIRE_HEADER_BYTES);
    free(zeros);
    CHECK_EQ(kvt_wire_finish(&w, header), KVT_WIRE_MAX_BYTES);
    kvt_wire_header got;
    CHECK_EQ(open_copy(block, KVT_WIRE_MAX_BYTES, &got), KVT_OK);
    kvt_wire_put_u8(&w, 0);
    CHECK_EQ(kvt_wire_finish(&w, header), 0);
    got.body_bytes = KVT_WIRE_MAX_BYTES - KVT_WIRE_HEADER_BYTES + 1;
    memcpy(block + 8, &got.body_bytes, 4);
    CHECK_EQ(open_copy(block, KVT_WIRE_MAX_BYTES + 1, &got), KVT_EPROTO);
    free(block);

    char *text = malloc(70001);
    CHECK(text);
    memset(text, 'a', 70000);
    text[70000] = 0;
    uint8_t *room = malloc(80000);
    CHECK(room);
    kvt_wire_start(&w, room, 80000);
    kvt_wire_put_str(&w, text);
    CHECK_EQ(w.n_bytes, KVT_WIRE_HEADER_BYTES + 2 + 65535);
    kvt_wire_start(&w, room, 80000);
    kvt_wire_put_str(&w, NULL);
    CHECK_EQ(w.n_bytes, KVT_WIRE_HEADER_BYTES + 2);
    free(room);
    free(text);
}

/* --- realms -------------------------------------------------------------------------------------
 */

static const uint8_t golden_realm[] = {
    1,  2,  0, 'm', '1',                                                /* model */
    2,  0,  0,                                                          /* engine */
    3,  1,  0, 'a',                                                     /* adapter */
    4,  1,  0, '2',                                                     /* adapter_version */
    5,  0,  0,                                                          /* salt */
    6,  3,  0, 'f', '1', '6',                                           /* codec */
    7,  4,  0, 1,   0,   0,   0,                                        /* kind */
    8,  4,  0, 2,   0,   0,   0,                                        /* dtype */
    9,  4,  0, 5,   0,   0,   0,                                        /* n_layers */
    10, 4,  0, 8,   0,   0,   0,                                        /* n_kv_heads */
    11, 8,  0, 128, 0,   0,   0, 64, 0, 0, 0, 12, 4, 0, 64, 0, 0, 0,    /* page_tokens */
    13, 4,  0, 4,   0,   0,   0,                                        /* n_ranks */
    14, 16, 0, 3,   0,   0,   0, 0,  0, 0, 0, 2,  0, 0, 0,  0, 4, 0, 0, /* groups */
};

static kvt_realm make_realm(void) {
    kvt_realm realm = {.model = "m1", .adapter = "a", .adapter_version = "2"};
    kvt_geometry_init(&realm.geometry, 5, 8, 128, 64);
    realm.geometry.dtype = KVT_BF16;
    realm.geometry.head_dim[1] = 64;
    realm.geometry.n_ranks = 4;
    realm.geometry.rank = 3; /* does not show */
    realm.geometry.n_groups = 2;
    realm.geometry.groups[0] = (kvt_group){.n_layers = 3};
    realm.geometry.groups[1] = (kvt_group){.n_layers = 2, .window = 1024};
    return realm;
}

static kvt_status realm_status(const uint8_t *bytes, size_t n) {
    kvt_realm_names names;
    kvt_realm realm;
    uint8_t again[KVT_WIRE_MAX_REALM_BYTES];
    size_t n_again;
    uint8_t *copy = copy_of(bytes, n);
    kvt_status status = kvt_wire_realm_decode(copy, n, &names, &realm);
    if (status == KVT_OK) {
        /* Refuses whatever the encoder would not have written. */
        CHECK_EQ(kvt_wire_realm_encode(&realm, again, sizeof again, &n_again), KVT_OK);
        check_bytes("realm", again, n_again, bytes, n);
    }
    free(copy);
    return status;
}

static void test_realm(void) {
    kvt_realm realm = make_realm();
    uint8_t bytes[KVT_WIRE_MAX_REALM_BYTES];
    size_t n = 0;
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_OK);
    check_bytes("realm", bytes, n, golden_realm, sizeof golden_realm);
    realm.codec = "f16";
    realm.salt = realm.engine = "";
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_OK);
    check_bytes("realm with empty names", bytes, n, golden_realm, sizeof golden_realm);
    CHECK_EQ(realm_status(golden_realm, sizeof golden_realm), KVT_OK);
    for (size_t cut = 0; cut < sizeof golden_realm; cut++) {
        CHECK_EQ(realm_status(golden_realm, cut), KVT_EPROTO);
        CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, cut, &n), KVT_ELIMIT);
    }
    memcpy(bytes, golden_realm, sizeof golden_realm);
    bytes[sizeof golden_realm] = 0;
    CHECK_EQ(realm_status(bytes, sizeof golden_realm + 1), KVT_EPROTO);
    for (size_t bit = 0; bit < 8 * sizeof golden_realm; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        realm_status(bytes, sizeof golden_realm);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (int i = 0; i < 100000; i++) {
        memcpy(bytes, golden_realm, sizeof golden_realm);
        for (int k = 0; k < 3; k++)
            bytes[check_below(&random_state, sizeof golden_realm)] =
                (uint8_t)check_below(&random_state, 20);
        realm_status(bytes, sizeof golden_realm);
    }
}

/* The golden realm with `n_old` bytes at `at` replaced must be refused. */
static void refuse_realm(const char *what, size_t at, size_t n_old, const uint8_t *new_bytes,
                         size_t n_new) {
    uint8_t bytes[sizeof golden_realm + 16];
    size_t n_tail = sizeof golden_realm - at - n_old;
    memcpy(bytes, golden_realm, at);
    memcpy(bytes + at, new_bytes, n_new);
    memcpy(bytes + at + n_new, golden_realm + at + n_old, n_tail);
    CHECK_MSG(realm_status(bytes, at + n_new + n_tail) == KVT_EPROTO, "a realm with %s is accepted",
              what);
}

static void test_realm_refused(void) {
    enum { CODEC_AT = 19, GROUPS_AT = sizeof golden_realm - 19 };
    refuse_realm("no model", 0, 5, B(1, 0, 0));
    refuse_realm("no codec", CODEC_AT, 6, B(6, 0, 0));
    refuse_realm("two fields in the wrong order", 0, 8, B(2, 0, 0, 1, 2, 0, 'm', '1'));
    refuse_realm("a zero in a name", 0, 5, B(1, 2, 0, 'm', 0));
    refuse_realm("no groups", GROUPS_AT, 19, B(14, 0, 0));
    refuse_realm("half a group", GROUPS_AT, 19, B(14, 12, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0));
    refuse_realm("half a number", GROUPS_AT, 19, B(14, 9, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2));
}

static void test_realm_limits(void) {
    char longest[KVT_MAX_NAME_BYTES + 2];
    memset(longest, 'x', sizeof longest);
    longest[KVT_MAX_NAME_BYTES] = 0;
    kvt_realm realm = {longest, longest, longest, longest, longest, longest, {0}};
    kvt_geometry_init(&realm.geometry, 8, 1, 64, 16);
    realm.geometry.n_groups = KVT_MAX_GROUPS;
    uint8_t bytes[KVT_WIRE_MAX_REALM_BYTES];
    size_t n = 0;
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_OK);
    CHECK_EQ(realm_status(bytes, n), KVT_OK);
    realm.geometry.n_groups = KVT_MAX_GROUPS + 1;
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_ELIMIT);
    realm.geometry.n_groups = 0;
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_EGEOMETRY);
    realm.geometry.n_groups = 1;
    realm.model = "";
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_EINVAL);
    realm.model = NULL;
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_EINVAL);
    realm.model = "m";
    longest[KVT_MAX_NAME_BYTES] = 'x';
    longest[KVT_MAX_NAME_BYTES + 1] = 0;
    CHECK_EQ(kvt_wire_realm_encode(&realm, bytes, sizeof bytes, &n), KVT_ELIMIT);
}

/* Realms that would be equal if fields were put side by side, or a field named only by its place.
 */
static void test_realms_differ(void) {
    const kvt_realm realms[] = {
        {.model = "ab", .salt = "c"},
        {.model = "a", .salt = "bc"},
        {.model = "ab", .adapter = "c"},
        {.model = "ab", .engine = "c"},
        {.model = "abc"},
        {.model = "ab", .adapter_version = "c"},
        {.model = "ab", .codec = "c"},
        {.model = "ab"},
        {.model = "a", .engine = "b"},
        {.model = "a", .adapter = "b"},
        {.model = "a", .salt = "b"},
    };
    enum { N = sizeof realms / sizeof *realms };
    uint8_t bytes[2 * N][KVT_WIRE_MAX_REALM_BYTES];
    size_t n[2 * N];
    for (size_t i = 0; i < 2 * N; i++) {
        kvt_realm realm = realms[i % N];
        kvt_geometry_init(&realm.geometry, 4, 2, i < N ? 64 : 128, 32);
        CHECK_EQ(kvt_wire_realm_encode(&realm, bytes[i], sizeof bytes[i], &n[i]), KVT_OK);
        for (size_t k = 0; k < i; k++)
            CHECK_MSG(n[i] != n[k] || memcmp(bytes[i], bytes[k], n[i]) != 0,
                      "realms %zu and %zu have the same bytes", k, i);
    }
}

static void test_status(void) {
    for (int i = 0; i < KVT_N_STATUS; i++) {
        CHECK_MSG(strncmp(kvt_status_name((kvt_status)i), "KVT_", 4) == 0, "status %d", i);
        CHECK_MSG(strcmp(kvt_status_name((kvt_status)i), "KVT_?") != 0, "status %d has no name", i);
        CHECK(strlen(kvt_status_text((kvt_status)i)) > 3);
    }
    CHECK(strcmp(kvt_status_name(KVT_EINTERNAL), "KVT_EINTERNAL") == 0);
    CHECK(strcmp(kvt_status_name((kvt_status)KVT_N_STATUS), "KVT_?") == 0);
    CHECK(strcmp(kvt_status_text((kvt_status)-1), "unknown status") == 0);
}

int main(void) {
    test_header();
    test_room();
    test_hello();
    test_stage();
    test_realm_message();
    test_acquire();
    test_acquire_limit();
    test_small_requests();
    test_lease();
    test_view();
    test_seal();
    test_release();
    test_text();
    test_realm();
    test_realm_refused();
    test_realm_limits();
    test_realms_differ();
    test_status();
    printf("wire: all messages as written\n");
    return 0;
}
