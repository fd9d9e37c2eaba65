/*
 * test_client.c - the worker library against a daemon that loses, refuses, delays and garbles what
 * a test wants: opening, leases, pages, limits, memory.
 */
#include "tests/client_kit.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <nng/nng.h>
#include <unistd.h>

static fake_daemon fake;
static kit_kv ours, theirs, out;

static void begin(void) {
    kvt_geometry geometry = kit_geometry();
    fake_init(&fake, &geometry);
    kit_fill(&ours, 1);
    kit_fill(&theirs, 2);
    memset(&out, 0, sizeof out);
    fake_start(&fake);
}

static void end(void) {
    CHECK_EQ(fake_leases(&fake), 0);
    CHECK_EQ(fake.n_duplicates, 0);
    fake_close(&fake);
}

/* --- opening ------------------------------------------------------------------------------------
 */

static void test_open(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    CHECK(kvt_boot_id(client) == fake.boot_id);
    CHECK_EQ(fake_seen(&fake, KVT_OP_HELLO), 1);
    CHECK_EQ(fake_seen(&fake, KVT_OP_REALM), 1);
    CHECK_EQ(fake_seen(&fake, KVT_OP_STAGE), 1);
    CHECK_EQ(fake_files(&fake), 0); /* unlinked as soon as the daemon has it */
    kvt_close(client);
    CHECK_EQ(fake_seen(&fake, KVT_OP_GOODBYE), 1);
    kvt_close(NULL);
    end();
}

static kvt_status open_status(uint32_t timeout_ms, uint32_t flags, const kvt_realm *realm) {
    kvt_client *client = NULL;
    kvt_options options = kit_options(&fake);
    options.timeout_ms = timeout_ms;
    options.flags = flags;
    kvt_status status = kvt_open(&options, realm, &client);
    CHECK((status == KVT_OK) == (client != NULL));
    CHECK(status == KVT_OK || kvt_last_error()[0]);
    kvt_close(client);
    return status;
}

static void test_open_refused(void) {
    begin();
    kvt_realm realm = kit_realm();
    fake_refuse(&fake, KVT_OP_HELLO, KVT_EDENIED, 1);
    CHECK_EQ(open_status(20000, KVT_OPEN_LAZY, &realm), KVT_EDENIED);
    fake_refuse(&fake, KVT_OP_REALM, KVT_ELIMIT, 1);
    CHECK_EQ(open_status(20000, 0, &realm), KVT_ELIMIT);
    fake_refuse(&fake, KVT_OP_STAGE, KVT_EDENIED, 1);
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EDENIED);
    CHECK_EQ(fake_files(&fake), 0);
    fake_do(&fake, KVT_OP_HELLO, FAKE_GARBLE, 1);
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EPROTO);
    fake_do(&fake, KVT_OP_HELLO, FAKE_LOSE_REPLY, 1);
    CHECK_EQ(open_status(50, 0, &realm), KVT_ETIMEDOUT);
    fake_do(&fake, KVT_OP_HELLO, FAKE_LOSE_REPLY, 1);
    CHECK_EQ(open_status(50, KVT_OPEN_LAZY, &realm), KVT_OK);
    fake.geometry_hash = 1;
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EGEOMETRY);
    fake.geometry_hash = 0;
    fake.version = 3;
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EVERSION);
    fake.version = 0;
    /* While it opens or closes another file of ours: asked again. */
    fake_refuse(&fake, KVT_OP_STAGE, KVT_EBUSY, 3);
    CHECK_EQ(open_status(20000, 0, &realm), KVT_OK);
    fake_stop(&fake);
    fake.wrong_boot = 5;
    fake_start(&fake);
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EPROTO);
    unlink(fake.arena);
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EIO);
    end();
}

static int descriptors(void) {
    DIR *entries = opendir("/proc/self/fd");
    int n = 0;
    while (entries && readdir(entries))
        n++;
    closedir(entries);
    return n;
}

/* No answer to HELLO: the connection is cut, and the client is closed. Nothing of that connection,
 * or of one made after it, stays. The fake's ends are closed by threads of its own, some time or
 * other. */
static void test_cut_leaves_nothing(void) {
    enum { OPENINGS = 60, LOOKS = 20000 };
    begin();
    kvt_realm realm = kit_realm();
    CHECK_EQ(open_status(20000, 0, &realm), KVT_OK);
    int before = descriptors();
    for (int i = 0; i < OPENINGS; i++) {
        fake_do(&fake, KVT_OP_HELLO, FAKE_LOSE_REQUEST, 1);
        kvt_status status = open_status(20, 0, &realm);
        CHECK(status == KVT_ETIMEDOUT || status == KVT_ECONN);
    }
    int left = descriptors();
    for (int i = 0; i < LOOKS && left > before; i++) {
        sched_yield();
        left = descriptors();
    }
    CHECK_MSG(left <= before, "%d descriptors; %d before", left, before);
    end();
}

static void test_open_arguments(void) {
    begin();
    kvt_realm realm = kit_realm();
    kvt_client *client = NULL;
    kvt_options options = kit_options(&fake);
    CHECK_EQ(kvt_open(&options, NULL, &client), KVT_EINVAL);
    CHECK_EQ(kvt_open(&options, &realm, NULL), KVT_EINVAL);
    realm.model = "";
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EINVAL);
    CHECK(strstr(kvt_last_error(), "model"));
    realm = kit_realm();
    realm.geometry.head_dim[1] = 7;
    CHECK_EQ(open_status(20000, 0, &realm), KVT_EGEOMETRY);
    CHECK(strstr(kvt_last_error(), "head_dim"));
    realm = kit_realm();
    realm.codec = "no codec";
    CHECK_EQ(open_status(20000, 0, &realm), KVT_ESYNTAX);
    realm = kit_realm();
    char name[300];
    memset(name, 'x', sizeof name);
    name[299] = 0;
    realm.adapter = name;
    CHECK_EQ(open_status(20000, 0, &realm), KVT_ELIMIT);
    CHECK(strstr(kvt_last_error(), "adapter"));
    realm = kit_realm();
    CHECK_EQ(open_status(20000, 128, &realm), KVT_EINVAL);
    options.socket = name;
    CHECK_EQ(kvt_open(&options, &realm, &client), KVT_EINVAL);
    CHECK_EQ(fake_seen(&fake, KVT_OP_HELLO), 0);
    end();
}

/* Nobody there: told at once, and without the library's help when somebody comes. */
static void test_no_daemon(void) {
    begin();
    kvt_realm realm = kit_realm();
    fake_stop(&fake);
    CHECK_EQ(open_status(3600 * 1000, 0, &realm), KVT_ECONN); /* a time-out would show */
    kvt_client *client = NULL;
    kvt_lease *lease = NULL;
    kvt_options options = kit_options(&fake);
    options.flags = KVT_OPEN_LAZY;
    CHECK_STATUS(kvt_open(&options, &realm, &client), KVT_OK);
    CHECK(kvt_boot_id(client) == 0);
    CHECK_EQ(kvt_acquire(client, kit_tokens(20), 20, 0, &lease), KVT_ECONN);
    CHECK(!lease);
    fake_start(&fake);
    lease = kit_acquire(client, 20, 0);
    CHECK(kvt_boot_id(client) == fake.boot_id);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

static void test_default_socket(void) {
    begin();
    kvt_realm realm = kit_realm();
    kvt_client *client = NULL;
    CHECK(setenv("KVTRUNK_SOCKET", fake.socket, 1) == 0);
    CHECK_STATUS(kvt_open(NULL, &realm, &client), KVT_OK);
    kvt_close(client);
    unsetenv("KVTRUNK_SOCKET");
    CHECK(setenv("XDG_RUNTIME_DIR", fake.folder, 1) == 0);
    CHECK_EQ(kvt_open(NULL, &realm, &client), KVT_ECONN); /* it is not called kvtrunk.sock */
    CHECK(strstr(kvt_last_error(), KVT_DEFAULT_SOCKET));
    char path[128];
    snprintf(path, sizeof path, "%s/kvtrunk.sock", fake.folder);
    CHECK(symlink(fake.socket, path) == 0);
    CHECK_STATUS(kvt_open(NULL, &realm, &client), KVT_OK);
    kvt_close(client);
    unsetenv("XDG_RUNTIME_DIR");
    unlink(path);
    end();
}

static void test_reports(void) {
    begin();
    kvt_client *client = NULL;
    kvt_options options = kit_options(&fake);
    CHECK_STATUS(kvt_open_reports(&options, &client), KVT_OK);
    char *text = NULL;
    CHECK_STATUS(kvt_status_json(client, &text), KVT_OK);
    CHECK(strcmp(text, "{\"fake\":1}") == 0);
    kvt_free(text);
    CHECK_STATUS(kvt_tree_json(client, 5, &text), KVT_OK);
    kvt_free(text);
    kvt_lease *lease;
    CHECK_EQ(kvt_acquire(client, NULL, 0, 0, &lease), KVT_EINVAL);
    CHECK_EQ(fake_seen(&fake, KVT_OP_REALM), 0);
    kvt_close(client);
    end();
}

/* --- pages --------------------------------------------------------------------------------------
 */

static void check_decode(kvt_lease *lease, kit_kv *kv, uint32_t salt, size_t first, size_t n) {
    memset(kv, 0, sizeof *kv);
    CHECK_STATUS(kit_decode(lease, kv, first, n), KVT_OK);
    CHECK(kit_right(kv, salt, first, n));
}

/* Elements that are not at multiples of 2 bytes, and rows that overlap, are refused in words. */
static void check_odd(kvt_lease *lease, int claims) {
    static kit_kv kv;
    for (int wrong = 0; wrong < 2; wrong++) {
        kvt_layout odd = kit_layout(&kv, 0);
        odd.token_stride_bytes[0] = wrong ? 2 * KIT_DIM : 2 * KIT_ROW + 1;
        const char *words = wrong ? "->part[0] would overlap" : "->token_stride_bytes[0] is";
        if (claims) {
            CHECK_EQ(kvt_encode(lease, 0, &odd), KVT_EINVAL);
            CHECK_MSG(strstr(kvt_last_error(), words), "%s", kvt_last_error());
            CHECK_EQ(kvt_encode_group(lease, 0, 0, &odd), KVT_EINVAL);
        } else {
            CHECK_EQ(kvt_decode(lease, 0, 2, 0, 1, &odd), KVT_EINVAL);
            CHECK_MSG(strstr(kvt_last_error(), words), "%s", kvt_last_error());
            CHECK_EQ(kvt_decode_rows(lease, 0, 2, 0, 1, &odd), KVT_EINVAL);
        }
        CHECK_MSG(strstr(kvt_last_error(), words), "%s", kvt_last_error());
    }
}

/* Sealed by one, decoded by another, in pieces and layer by layer. */
static void test_pages(void) {
    begin();
    kvt_client *one = kit_open(&fake), *two = kit_open(&fake);
    kvt_lease *lease = kit_acquire(one, 56, KVT_CLAIM);
    kvt_lease_info info = kit_info(lease);
    CHECK_EQ(info.n_tokens, 56);
    CHECK_EQ(info.held_tokens, 0);
    CHECK_EQ(info.claimed_tokens, 56);
    CHECK_EQ(info.page_tokens, KIT_PAGE_TOKENS);
    size_t sealed = 1;
    CHECK_STATUS(kvt_seal(lease, &sealed), KVT_OK); /* nothing encoded */
    CHECK_EQ(sealed, 0);
    check_odd(lease, 1);
    for (size_t page = 4; page-- > 0;) /* any order */
        CHECK_STATUS(kit_encode(lease, page == 2 ? &theirs : &ours, page), KVT_OK);
    CHECK_STATUS(kit_encode(lease, &ours, 2), KVT_OK); /* the second counts */
    CHECK_EQ(kit_encode(lease, &ours, 4), KVT_EINVAL);
    CHECK_STATUS(kvt_seal(lease, &sealed), KVT_OK);
    CHECK_EQ(sealed, 56);
    CHECK_EQ(fake_seen(&fake, KVT_OP_SEAL), 1);
    info = kit_info(lease);
    CHECK_EQ(info.held_tokens, 56);
    CHECK_EQ(info.n_pages, 4);
    CHECK_EQ(info.foreign_pages, 0);
    check_decode(lease, &out, 1, 0, 56);
    CHECK_STATUS(kit_encode(lease, &theirs, 1), KVT_OK); /* held: nothing to hand in */
    CHECK_STATUS(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(fake_seen(&fake, KVT_OP_SEAL), 1);

    kvt_lease *other = kit_acquire(two, 50, 0);
    info = kit_info(other);
    CHECK_EQ(info.held_tokens, 50);
    CHECK_EQ(info.foreign_pages, 4);
    CHECK_EQ(info.claimed_tokens, 0);
    check_decode(other, &out, 1, 0, 50);
    check_decode(other, &out, 1, 17, 20);
    check_decode(other, &out, 1, 49, 1);
    check_decode(other, &out, 1, 50, 0);
    memset(&out, 0, sizeof out);
    for (uint32_t layer = 0; layer < KIT_LAYERS; layer++) {
        kvt_layout to = kit_layout(&out, 3);
        for (int p = 0; p < 2; p++)
            to.part[p] = (char *)to.part[p] + layer * to.layer_stride_bytes[p];
        CHECK_STATUS(kvt_decode(other, 3, 40, layer, 1, &to), KVT_OK);
    }
    CHECK(kit_right(&out, 1, 3, 40));
    CHECK_EQ(kit_decode(other, &out, 0, 51), KVT_EINVAL);
    CHECK_EQ(kit_decode(other, &out, 51, 0), KVT_EINVAL);
    kvt_layout to = kit_layout(&out, 0);
    CHECK_EQ(kvt_decode(other, 0, 1, 1, 2, &to), KVT_EINVAL);
    CHECK_EQ(kvt_decode(other, 0, 1, 3, 0, &to), KVT_EINVAL);
    CHECK_EQ(kvt_decode(other, 0, SIZE_MAX, 0, 1, &to), KVT_EINVAL);
    CHECK_EQ(kvt_decode(other, 0, 1, 0, UINT32_MAX, &to), KVT_EINVAL);
    CHECK_EQ(kvt_decode(other, 0, 1, 0, 1, NULL), KVT_EINVAL);
    check_odd(other, 0);
    CHECK_EQ(kit_encode(other, &ours, 0), KVT_EINVAL); /* it claims nothing */
    CHECK_STATUS(kvt_release(other), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    CHECK_STATUS(kvt_release(NULL), KVT_OK);
    kvt_close(one);
    kvt_close(two);
    end();
}

/* A page that is held in part is copied on write: its held rows stay theirs, as encoded bytes. */
static void test_copy_on_write(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &theirs, 25);
    kvt_lease *lease = kit_acquire(client, 40, KVT_CLAIM);
    CHECK_EQ(kit_info(lease).held_tokens, 25);
    CHECK_STATUS(kit_encode(lease, &ours, 1), KVT_OK);
    CHECK_STATUS(kit_encode(lease, &ours, 2), KVT_OK);
    CHECK_STATUS(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kit_info(lease).held_tokens, 40);
    check_decode(lease, &out, 2, 0, 25);
    check_decode(lease, &out, 1, 25, 15);
    kvt_page_info info;
    kvt_page_get(fake_page_bytes(&fake, 1), &info);
    CHECK_EQ(info.n_segments, 2);
    CHECK_EQ(info.segment_rows[0], 9);
    CHECK_STATUS(kvt_release(lease), KVT_OK);

    /* Damage in the rows that are kept must not get a new checksum. */
    kit_hold(&fake, &theirs, 25);
    fake_page_bytes(&fake, 1)[KVT_PAGE_HEADER_BYTES + 3] ^= 1;
    lease = kit_acquire(client, 40, KVT_CLAIM);
    CHECK_EQ(kit_encode(lease, &ours, 1), KVT_ECORRUPT);
    fake_bump(&fake, 1);
    CHECK_EQ(kit_encode(lease, &ours, 1), KVT_ESTALE);
    CHECK_STATUS(kit_encode(lease, &ours, 2), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK); /* and drops what was encoded */
    kvt_close(client);
    end();
}

/* A page in too many pieces is encoded whole. */
static void test_many_segments(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    for (uint32_t n = 2; n <= 2 * (KVT_PAGE_MAX_SEGMENTS + 2); n += 2) {
        kvt_lease *lease = kit_acquire(client, n, KVT_CLAIM);
        CHECK_EQ(kit_info(lease).held_tokens, n - 2);
        CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
        CHECK_STATUS(kvt_seal(lease, NULL), KVT_OK);
        check_decode(lease, &out, 1, 0, n);
        kvt_page_info info;
        kvt_page_get(fake_page_bytes(&fake, 0), &info);
        CHECK_EQ(info.n_segments, (n / 2 - 1) % KVT_PAGE_MAX_SEGMENTS + 1);
        CHECK_STATUS(kvt_release(lease), KVT_OK);
    }
    kvt_close(client);
    end();
}

static void test_damage(void) {
    begin();
    kit_hold(&fake, &ours, 32);
    kvt_client *client = kit_open(&fake), *careful = NULL;
    kvt_options options = kit_options(&fake);
    kvt_realm realm = kit_realm();
    options.flags = KVT_OPEN_VERIFY;
    CHECK_STATUS(kvt_open(&options, &realm, &careful), KVT_OK);
    kvt_lease *lease = kit_acquire(client, 32, 0), *watched = kit_acquire(careful, 32, 0);
    fake_page_bytes(&fake, 1)[KVT_PAGE_HEADER_BYTES + 5] ^= 0x10;
    CHECK_STATUS(kit_decode(lease, &out, 0, 32), KVT_OK); /* not asked to look */
    CHECK_EQ(fake.n_suspects, 0);
    CHECK_EQ(kit_decode(watched, &out, 0, 32), KVT_ECORRUPT);
    CHECK_EQ(fake.n_suspects, 1); /* the daemon has been told, and of which page */
    CHECK_EQ(fake.suspect, 1);
    check_decode(watched, &out, 1, 0, 16);
    fake_page_bytes(&fake, 0)[40] ^= 1; /* in the header: seen by everybody */
    CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ECORRUPT);
    CHECK_EQ(fake.n_suspects, 2);
    CHECK_EQ(fake.suspect, 0);
    fake_refuse(&fake, KVT_OP_SUSPECT, KVT_EPROTO, 1); /* what it says to that changes nothing */
    CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ECORRUPT);
    CHECK(strstr(kvt_last_error(), "checksum"));
    fake_do(&fake, KVT_OP_SUSPECT, FAKE_GARBLE, 1);
    CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ECORRUPT);
    /* One that cuts the connection for it is told no more. */
    fake_do(&fake, KVT_OP_SUSPECT, FAKE_CUT_BEFORE, 2);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ECORRUPT);
        CHECK_EQ(fake.tricks_left[KVT_OP_SUSPECT], 1);
    }
    fake_do(&fake, KVT_OP_SUSPECT, FAKE_SERVE, 0);
    fake_bump(&fake, 0); /* another's page by now: that counts more than what is in it */
    CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ESTALE);
    CHECK_EQ(kit_decode(lease, &out, 15, 2), KVT_ESTALE);
    CHECK_STATUS(kit_decode(lease, &out, 16, 16), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    CHECK_STATUS(kvt_release(watched), KVT_OK);
    kvt_close(client);
    kvt_close(careful);
    end();
}

/* Descriptors that point anywhere but into the arena are nonsense; the lease is given back. */
static void test_bad_pages(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    for (int bad = 1; bad <= 4; bad++) {
        kvt_lease *lease = NULL;
        fake.bad_page = bad;
        CHECK_EQ(kvt_acquire(client, kit_tokens(32), 32, 0, &lease), KVT_EPROTO);
        CHECK(!lease);
        fake.bad_page = 0;
        CHECK_STATUS(kvt_release(kit_acquire(client, 32, 0)), KVT_OK);
        CHECK_EQ(fake_leases(&fake), 0);
    }
    kvt_close(client);
    end();
}

/* --- leases -------------------------------------------------------------------------------------
 */

static void test_extend_and_fork(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 40);
    kvt_lease *lease = kit_acquire(client, 20, 0), *branch = NULL;
    CHECK_EQ(kit_info(lease).held_tokens, 20);
    CHECK_EQ(kvt_extend(lease, 21, NULL, 0, 0), KVT_EINVAL);
    CHECK_STATUS(kvt_extend(lease, 20, kit_tokens(40) + 20, 30, KVT_CLAIM), KVT_OK);
    kvt_lease_info info = kit_info(lease);
    CHECK_EQ(info.n_tokens, 50);
    CHECK_EQ(info.held_tokens, 40);
    CHECK_EQ(info.claimed_tokens, 50);
    CHECK_EQ(info.n_pages, 3);
    CHECK_EQ(info.foreign_pages, 3);
    check_decode(lease, &out, 1, 0, 40);
    /* What was encoded for pages that the new path does not have is dropped. */
    CHECK_STATUS(kit_encode(lease, &ours, 2), KVT_OK);
    CHECK_STATUS(kit_encode(lease, &ours, 3), KVT_OK);
    CHECK_STATUS(kvt_extend(lease, 49, kit_tokens(60) + 49, 3, KVT_CLAIM), KVT_OK);
    CHECK_STATUS(kvt_seal(lease, NULL), KVT_OK);
    CHECK_EQ(kit_info(lease).held_tokens, 48);
    CHECK_EQ(kit_info(lease).n_tokens, 52);
    CHECK_STATUS(kvt_fork(lease, 33, &branch), KVT_OK);
    CHECK_EQ(kvt_fork(lease, 53, &branch), KVT_EINVAL);
    info = kit_info(branch);
    CHECK_EQ(info.n_tokens, 33);
    CHECK_EQ(info.held_tokens, 33);
    CHECK_EQ(info.claimed_tokens, 0);
    check_decode(branch, &out, 1, 0, 33);
    CHECK_EQ(fake_leases(&fake), 2);
    CHECK_STATUS(kvt_extend(lease, 0, NULL, 0, 0), KVT_OK); /* to nothing */
    CHECK_EQ(kit_info(lease).n_pages, 0);
    CHECK_EQ(kit_info(lease).foreign_pages, 0);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    CHECK_STATUS(kvt_release(branch), KVT_OK);
    /* No tokens at all. */
    lease = kit_acquire(client, 0, KVT_CLAIM);
    CHECK_EQ(kit_info(lease).n_tokens, 0);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

static void test_wait(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 40, KVT_CLAIM);
    kit_hold(&fake, &ours, 32);
    CHECK_STATUS(kvt_wait(lease, 0, 0), KVT_OK);
    CHECK_EQ(kit_info(lease).held_tokens, 32);
    check_decode(lease, &out, 1, 0, 32);
    fake.computing = 1; /* and answers at once, as one that is stopping */
    CHECK_STATUS(kvt_wait(lease, 32, 3600 * 1000), KVT_OK);
    CHECK_EQ(kit_info(lease).computing_tokens, 8);
    fake.computing = 0;
    CHECK_STATUS(kvt_wait(lease, SIZE_MAX, 3600 * 1000), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* Others have sealed pages in front of ours: the answer to SEAL does not describe those. */
static void test_seal_behind_others(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 64, KVT_CLAIM);
    size_t sealed = 0;
    CHECK_STATUS(kit_encode(lease, &ours, 3), KVT_OK);
    kit_hold(&fake, &ours, 48);
    CHECK_STATUS(kvt_seal(lease, &sealed), KVT_OK);
    CHECK_EQ(sealed, 64);
    CHECK_EQ(kit_info(lease).held_tokens, 64);
    CHECK_EQ(kit_info(lease).foreign_pages, 3);
    check_decode(lease, &out, 1, 0, 64);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

static void test_seal_refused(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = kit_acquire(client, 64, KVT_CLAIM);
    size_t sealed = 9;
    fake.unsealed = 1;
    CHECK_STATUS(kit_encode(lease, &ours, 1), KVT_OK);
    CHECK_EQ(kvt_seal(lease, &sealed), KVT_EORDER);
    CHECK_EQ(sealed, 0);
    fake.unsealed = 0;
    CHECK_STATUS(kvt_seal(lease, &sealed), KVT_OK); /* it was dropped */
    CHECK_EQ(fake_seen(&fake, KVT_OP_SEAL), 1);
    fake_refuse(&fake, KVT_OP_SEAL, KVT_EBUSY, 3); /* it has not begun: asked again */
    CHECK_STATUS(kit_encode(lease, &ours, 0), KVT_OK);
    CHECK_STATUS(kvt_seal(lease, &sealed), KVT_OK);
    CHECK_EQ(sealed, 16);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* All slots are taken, by two leases; a seal or a release frees them. */
static void test_staging_full(void) {
    begin();
    kvt_client *client = NULL;
    kvt_options options = kit_options(&fake);
    kvt_realm realm = kit_realm();
    options.staging_pages = 3;
    CHECK_STATUS(kvt_open(&options, &realm, &client), KVT_OK);
    kvt_lease *one = kit_acquire(client, 64, KVT_CLAIM), *two = kit_acquire(client, 64, KVT_CLAIM);
    CHECK_STATUS(kit_encode(one, &ours, 0), KVT_OK);
    CHECK_STATUS(kit_encode(one, &ours, 1), KVT_OK);
    CHECK_STATUS(kit_encode(two, &ours, 0), KVT_OK);
    CHECK_EQ(kit_encode(two, &ours, 1), KVT_EFULL);
    CHECK_STATUS(kvt_seal(one, NULL), KVT_OK);
    CHECK_STATUS(kit_encode(two, &ours, 2), KVT_OK);
    CHECK_STATUS(kit_encode(two, &ours, 3), KVT_OK);
    CHECK_EQ(kit_encode(one, &ours, 2), KVT_EFULL);
    CHECK_STATUS(kvt_release(two), KVT_OK);
    CHECK_STATUS(kit_encode(one, &ours, 2), KVT_OK);
    CHECK_STATUS(kvt_seal(one, NULL), KVT_OK);
    check_decode(one, &out, 1, 0, 48);
    CHECK_EQ(fake_seen(&fake, KVT_OP_STAGE), 1);
    CHECK_STATUS(kvt_release(one), KVT_OK);
    kvt_close(client);
    end();
}

/* --- limits, nonsense, duplicates ---------------------------------------------------------------
 */

static void test_limits(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL;
    size_t n = KVT_MAX_REQUEST_TOKENS;
    uint32_t *tokens = calloc(n + 1, sizeof *tokens);
    CHECK(tokens);
    CHECK_EQ(kvt_acquire(client, tokens, n + 1, 0, &lease), KVT_ELIMIT);
    CHECK_EQ(kvt_acquire(client, tokens, SIZE_MAX, 0, &lease), KVT_ELIMIT);
    CHECK_EQ(kvt_acquire(client, NULL, 1, 0, &lease), KVT_EINVAL);
    CHECK_EQ(kvt_acquire(client, tokens, 1, 4, &lease), KVT_EINVAL);
    CHECK_EQ(kvt_acquire(client, tokens, 1, 0, NULL), KVT_EINVAL);
    CHECK_EQ(kvt_acquire(NULL, tokens, 1, 0, &lease), KVT_EINVAL);
    CHECK_EQ(fake_seen(&fake, KVT_OP_ACQUIRE), 0);
    CHECK_STATUS(kvt_acquire(client, tokens, n, KVT_CLAIM, &lease), KVT_OK); /* 4 MiB go through */
    CHECK_EQ(kvt_extend(lease, n, tokens, 1, 0), KVT_ELIMIT);
    CHECK_EQ(kvt_extend(lease, n - 1, tokens, SIZE_MAX, 0), KVT_ELIMIT);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    /* A daemon that takes less: refused before sending, to the byte. */
    fake.max_bytes = 4096;
    client = kit_open(&fake);
    int seen = fake_seen(&fake, KVT_OP_ACQUIRE);
    n = (4096 - KVT_WIRE_HEADER_BYTES - 60) / 4;
    CHECK_EQ(kvt_acquire(client, tokens, n + 1, 0, &lease), KVT_ELIMIT);
    CHECK_EQ(fake_seen(&fake, KVT_OP_ACQUIRE), seen);
    CHECK_STATUS(kvt_acquire(client, tokens, n, 0, &lease), KVT_OK);
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    free(tokens);
    end();
}

/* A reply that is not the protocol fails the call; what it gave is given back, and the library
 * works on. */
static void test_nonsense(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    kvt_lease *lease = NULL, *branch = NULL;
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_acquire(client, kit_tokens(32), 32, 0, &lease), KVT_EPROTO);
    lease = kit_acquire(client, 32, KVT_CLAIM);
    CHECK_EQ(fake_leases(&fake), 1);
    fake_do(&fake, KVT_OP_FORK, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_fork(lease, 10, &branch), KVT_EPROTO);
    fake_do(&fake, KVT_OP_WAIT, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_wait(lease, 0, 0), KVT_EPROTO);
    CHECK_EQ(fake_leases(&fake), 1);
    check_decode(lease, &out, 1, 0, 32);
    fake_do(&fake, KVT_OP_ACQUIRE, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_extend(lease, 32, kit_tokens(40) + 32, 8, KVT_CLAIM), KVT_EPROTO);
    CHECK_EQ(kit_decode(lease, &out, 0, 1), KVT_ESTALE); /* old path or new: nobody knows */
    CHECK_EQ(kvt_release(lease), KVT_ESTALE);
    CHECK_EQ(fake_leases(&fake), 0);
    lease = kit_acquire(client, 48, KVT_CLAIM);
    CHECK_STATUS(kit_encode(lease, &ours, 2), KVT_OK);
    fake_do(&fake, KVT_OP_SEAL, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_seal(lease, NULL), KVT_EPROTO);
    fake_do(&fake, KVT_OP_RELEASE, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_release(lease), KVT_EPROTO);
    char *text;
    fake_do(&fake, KVT_OP_STATUS, FAKE_GARBLE, 1);
    CHECK_EQ(kvt_status_json(client, &text), KVT_EPROTO);
    CHECK_STATUS(kvt_release(kit_acquire(client, 3, 0)), KVT_OK);
    kvt_close(client);
    end();
}

static void test_refusals(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kvt_lease *lease = NULL, *branch = NULL;
    fake_refuse(&fake, KVT_OP_ACQUIRE, KVT_ELIMIT, 1);
    CHECK_EQ(kvt_acquire(client, kit_tokens(32), 32, 0, &lease), KVT_ELIMIT);
    CHECK(strcmp(kvt_last_error(), "the fake says no") == 0);
    /* The realm's place went to another: registered again. */
    fake.realm++;
    lease = kit_acquire(client, 32, KVT_CLAIM);
    CHECK_EQ(fake_seen(&fake, KVT_OP_REALM), 2);
    fake_refuse(&fake, KVT_OP_ACQUIRE, KVT_ELIMIT, 1);
    CHECK_EQ(kvt_extend(lease, 32, kit_tokens(40) + 32, 8, KVT_CLAIM), KVT_ELIMIT);
    CHECK_EQ(kit_info(lease).n_tokens, 32); /* as it was, and still good */
    fake_refuse(&fake, KVT_OP_FORK, KVT_ELIMIT, 1);
    CHECK_EQ(kvt_fork(lease, 3, &branch), KVT_ELIMIT);
    CHECK_STATUS(kvt_wait(lease, 0, 0), KVT_OK);
    /* The daemon does not know it: lost. */
    fake_refuse(&fake, KVT_OP_WAIT, KVT_ENOENT, 1);
    CHECK_EQ(kvt_wait(lease, 0, 0), KVT_ESTALE);
    CHECK_EQ(kvt_extend(lease, 0, NULL, 0, 0), KVT_ESTALE);
    CHECK_EQ(kvt_seal(lease, NULL), KVT_ESTALE);
    CHECK_EQ(kvt_release(lease), KVT_ESTALE);
    kvt_close(client);
    end();
}

/* --- fork ---------------------------------------------------------------------------------------
 */

static int in_child(kvt_client *client, kvt_lease *lease) {
    kvt_lease *other = NULL;
    kvt_client *mine = NULL;
    kvt_options options = kit_options(&fake);
    kvt_realm realm = kit_realm();
    char *text;
    return kvt_acquire(client, kit_tokens(3), 3, 0, &other) == KVT_EFORK &&
           kvt_extend(lease, 0, NULL, 0, 0) == KVT_EFORK &&
           kvt_fork(lease, 0, &other) == KVT_EFORK && kvt_wait(lease, 0, 0) == KVT_EFORK &&
           kit_decode(lease, &out, 0, 1) == KVT_EFORK && kit_encode(lease, &ours, 0) == KVT_EFORK &&
           kvt_seal(lease, NULL) == KVT_EFORK && kvt_status_json(client, &text) == KVT_EFORK &&
           kvt_open(&options, &realm, &mine) == KVT_EFORK && kvt_release(lease) == KVT_EFORK;
}

static void test_fork(void) {
    begin();
    kvt_client *client = kit_open(&fake);
    kit_hold(&fake, &ours, 32);
    kvt_lease *lease = kit_acquire(client, 32, KVT_CLAIM);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int good = in_child(client, lease);
        kvt_close(client);
        _exit(good ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %x", status);
    check_decode(lease, &out, 1, 0, 32); /* the parent goes on */
    CHECK_STATUS(kvt_release(lease), KVT_OK);
    kvt_close(client);
    end();
}

/* --- memory -------------------------------------------------------------------------------------
 */

/* A worker's life; returns the first failure. */
static kvt_status live(void) {
    kvt_client *client = NULL;
    kvt_lease *lease = NULL, *branch = NULL;
    kvt_options options = kit_options(&fake);
    kvt_realm realm = kit_realm();
    char *text = NULL;
    kvt_status status = kvt_open(&options, &realm, &client);
    if (status == KVT_OK)
        status = kvt_acquire(client, kit_tokens(40), 40, KVT_CLAIM, &lease);
    for (size_t page = 0; page < 3 && status == KVT_OK; page++)
        status = kit_encode(lease, &ours, page);
    if (status == KVT_OK)
        status = kvt_seal(lease, NULL);
    if (status == KVT_OK)
        status = kvt_extend(lease, 40, kit_tokens(240) + 40, 200, KVT_CLAIM);
    for (size_t page = 2; page < 15 && status == KVT_OK; page++)
        status = kit_encode(lease, &ours, page);
    if (status == KVT_OK)
        status = kvt_seal(lease, NULL);
    if (status == KVT_OK)
        status = kvt_fork(lease, 24, &branch);
    if (status == KVT_OK)
        status = kit_decode(branch, &out, 0, 24);
    if (status == KVT_OK)
        status = kvt_status_json(client, &text);
    kvt_free(text);
    kvt_status released = kvt_release(branch);
    CHECK(released == KVT_OK);
    released = kvt_release(lease);
    CHECK(released == KVT_OK);
    kvt_close(client);
    return status;
}

/* Every allocation of that life fails once: KVT_ENOMEM, nothing left behind. */
static void test_memory(void) {
    begin();
    long n = 1;
    for (;; n++) {
        memset(fake.pages, 0, sizeof fake.pages);
        kvt_memory_fail_after(n);
        kvt_status status = live();
        kvt_memory_fail_after(0);
        if (status == KVT_OK)
            break;
        CHECK_MSG(status == KVT_ENOMEM, "allocation %ld: %s", n, kvt_status_name(status));
        CHECK_EQ(fake_leases(&fake), 0);
        CHECK_EQ(fake_files(&fake), 0);
    }
    CHECK_MSG(n > 10, "only %ld allocations were met", n);
    end();
}

int main(void) {
    test_open();
    test_open_refused();
    test_cut_leaves_nothing();
    test_open_arguments();
    test_no_daemon();
    test_default_socket();
    test_reports();
    test_pages();
    test_copy_on_write();
    test_many_segments();
    test_damage();
    test_bad_pages();
    test_extend_and_fork();
    test_wait();
    test_seal_behind_others();
    test_seal_refused();
    test_staging_full();
    test_limits();
    test_nonsense();
    test_refusals();
    test_memory();
    test_fork();
    nng_fini(); /* frees what nng was about to free, before somebody looks for leaks */
    printf("client: all as the manual says\n");
    return 0;
}
