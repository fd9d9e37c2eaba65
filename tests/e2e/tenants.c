/*
 * tenants.c - two tenants with users of their own, made here: neither sees a page, an event, a
 * counter, a pin, a lease, a file or the arena of the other, by no way in; and one that is at its
 * quota is refused with the figures while the other is served as if it were alone.
 *
 * Needs root, for the users; without it nothing is tested, and it says so.
 */
#include "client/client.h"
#include "client/listen.h"
#include "client/transport.h"
#include "client/watch.h"
#include "tests/e2e/e2e.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RED = 21001, /* user, and the group of its arena */
    BLUE = 21002,
    BLUE_GROUP = 21003, /* whose members belong to blue by their group */
    STRANGER = 21009,
    PAGE = E2E_PAGE_TOKENS,
    N = 10 * PAGE + 5,
};

static void become(uint32_t uid, uint32_t gid, uint32_t arena_group) {
    gid_t groups[] = {arena_group};
    CHECK(setgroups(1, groups) == 0 && setgid(gid) == 0 && setuid(uid) == 0);
    CHECK(setuid(0) != 0);
}

static kvt_status fill(e2e_worker *w, const uint32_t *tokens, size_t n, kvt_lease **ret_lease) {
    CHECK_EQ(kvt_acquire(w->client, tokens, n, KVT_CLAIM, ret_lease), KVT_OK);
    return e2e_fill(w, *ret_lease, tokens, SIZE_MAX);
}

/* A counter, or another number of one's own report. */
static uint64_t number_of(kvt_client *client, const char *name) {
    char *json, key[64];
    CHECK_EQ(kvt_status_json(client, &json), KVT_OK);
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(json, key);
    CHECK_MSG(at, "no %s in the report", name);
    uint64_t n = strtoull(at + strlen(key), NULL, 10);
    kvt_free(json);
    return n;
}

static void text_of(kvt_client *client, const char *name, char *to, size_t room) {
    char *json, key[64];
    CHECK_EQ(kvt_status_json(client, &json), KVT_OK);
    snprintf(key, sizeof key, "\"%s\":\"", name);
    const char *at = strstr(json, key);
    CHECK(at);
    at += strlen(key);
    snprintf(to, room, "%.*s", (int)strcspn(at, "\""), at);
    kvt_free(json);
}

/* Where one leaves what the other is to try. */
static void note_path(const e2e_daemon *d, const char *what, char *to, size_t room) {
    snprintf(to, room, "%.*s/%s", (int)(strrchr(d->socket, '/') - d->socket), d->socket, what);
}

static void write_note(const e2e_daemon *d, const char *what, const char *text) {
    char path[256];
    note_path(d, what, path, sizeof path);
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void read_note(const e2e_daemon *d, const char *what, char *to, int room) {
    char path[256];
    note_path(d, what, path, sizeof path);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(to, room, file));
    fclose(file);
}

/* --- red: has something to hide -----------------------------------------------------------------
 */

static int red(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    kvt_pin_info pin;
    char text[256];
    become(RED, RED, RED);
    e2e_worker_open(&w, d, seed, 20000);
    e2e_path(1, tokens);
    CHECK_EQ(fill(&w, tokens, N, &lease), KVT_OK);
    CHECK_EQ(kvt_pin(w.client, 0, tokens, N, 0, 0, &pin), KVT_OK);
    text_of(w.client, "arena_path", text, sizeof text);
    write_note(d, "red/arena", text);
    snprintf(text, sizeof text, "%llu %llu %llu", (unsigned long long)pin.pin,
             (unsigned long long)lease->id, (unsigned long long)w.client->session.number);
    write_note(d, "red/ids", text);
    FILE *secret = fopen("/dev/shm/kvtrunk-test-red", "w");
    CHECK(secret && fputs("red's own", secret) >= 0 && fclose(secret) == 0);
    CHECK(chmod("/dev/shm/kvtrunk-test-red", 0600) == 0);
    e2e_say('r');
    CHECK_EQ(e2e_hear(), 't'); /* blue listens at red's door: tell something */
    e2e_path(2, tokens);
    kvt_lease *more;
    CHECK_EQ(fill(&w, tokens, N, &more), KVT_OK);
    CHECK_EQ(kvt_release(more), KVT_OK);
    e2e_say('t');
    CHECK_EQ(e2e_hear(), 'e'); /* blue has tried everything */
    unlink("/dev/shm/kvtrunk-test-red");
    e2e_path(1, tokens);
    CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
    CHECK_EQ(e2e_held(&w, tokens, N), N); /* else all this passes with the cache off */
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK_EQ(number_of(w.client, "pins"), 1);
    CHECK_EQ(number_of(w.client, "pages_flushed"), 0);
    CHECK_EQ(number_of(w.client, "sessions"), 1);
    CHECK_EQ(number_of(w.client, "uids_refused"), 1); /* the stranger's: of the first tenant */
    e2e_worker_close(&w);
    return 0;
}

/* --- blue: looks for it -------------------------------------------------------------------------
 */

static void look_by_library(e2e_worker *w, uint64_t pin) {
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_flush_info flushed;
    kvt_pin_info info;
    char *text;
    e2e_path(1, tokens);
    CHECK_EQ(e2e_held(w, tokens, N), 0);
    CHECK_EQ(e2e_held(w, tokens, 3), 0);
    CHECK_EQ(kvt_pin(w->client, 0, tokens, N, 0, 0, &info), KVT_ENOENT);
    CHECK_EQ(kvt_unpin(w->client, pin), KVT_ENOENT);
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_PREFIX, 0, tokens, 1, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages + flushed.held_pages + flushed.pins, 0);
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_REALM, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages + flushed.held_pages + flushed.pins, 0);
    CHECK_EQ(kvt_flush(w->client, KVT_FLUSH_TENANT, 0, NULL, 0, &flushed), KVT_OK);
    CHECK_EQ(flushed.pages + flushed.held_pages + flushed.pins, 0);
    CHECK_EQ(kvt_tree_json(w->client, 0, &text), KVT_OK);
    CHECK_MSG(!strstr(text, "\"depth\""), "%s", text);
    kvt_free(text);
    CHECK_EQ(kvt_pins_json(w->client, 0, &text), KVT_OK);
    CHECK_MSG(!*text, "%s", text);
    kvt_free(text);
    CHECK_EQ(kvt_leases_json(w->client, 0, &text), KVT_OK);
    CHECK_MSG(!*text, "%s", text);
    kvt_free(text);
    CHECK_EQ(kvt_status_json(w->client, &text), KVT_OK);
    CHECK_MSG(!strstr(text, "21001") && !strstr(text, "\"red\""), "%s", text);
    kvt_free(text);
    static const char *const none[] = {"pages_sealed", "frames_used",   "pins",    "pinned_bytes",
                                       "leases",       "tokens_served", "pin_hits"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK_MSG(number_of(w->client, none[i]) == 0, "%s", none[i]);
    CHECK_EQ(number_of(w->client, "sessions"), 1);
}

/* A message as it stands; *ret_status: the answer's. */
static void raw(const e2e_daemon *d, e2e_worker *w, uint16_t op, const void *body, size_t n,
                uint32_t *ret_status, uint32_t *ret_n_body) {
    kvt_transport *t;
    kvt_message *request, *reply;
    kvt_wire_header header;
    const uint8_t *at;
    uint64_t number;
    static const uint8_t hello[16 + 4 + 2];
    CHECK_EQ(kvt_transport_open(d->socket, &t), KVT_OK);
    for (int i = 0; i < 2; i++) { /* HELLO, and the message */
        kvt_writer out;
        size_t room = KVT_WIRE_HEADER_BYTES + (i ? n : sizeof hello);
        request = kvt_message_new(room);
        CHECK(request);
        kvt_wire_start(&out, kvt_message_bytes(request, &room), room);
        kvt_wire_put_bytes(&out, i ? body : hello, i ? n : sizeof hello);
        kvt_wire_header head = {.kind = KVT_WIRE_REQUEST,
                                .op = i ? op : KVT_OP_HELLO,
                                .boot_id = i ? kvt_boot_id(w->client) : 0};
        CHECK(kvt_wire_finish(&out, head) > 0);
        CHECK_EQ(kvt_transport_call(t, request, kvt_now_ms() + 20000, NULL, &number, &reply),
                 KVT_OK);
        const void *bytes = kvt_message_bytes(reply, &room);
        CHECK_EQ(kvt_wire_open(bytes, room, &header, &at), KVT_OK);
        *ret_status = header.status;
        *ret_n_body = header.body_bytes;
        if (i && op == KVT_OP_SNAPSHOT) {
            kvt_snapshot_rep rep;
            CHECK_EQ(kvt_wire_get_snapshot_rep(at, header.body_bytes, &rep), KVT_OK);
            CHECK_EQ(rep.n_pages, 0);
            CHECK_EQ(rep.sequence, 0);
        }
        kvt_message_free(reply);
    }
    kvt_transport_close(t);
}

/* Red's lease, realm and pin by their numbers, in messages of blue's own making. */
static void look_by_wire(const e2e_daemon *d, e2e_worker *w, uint64_t lease) {
    uint8_t body[64];
    uint32_t status, n;
    kvt_writer out = {.at = body, .room = sizeof body};
    kvt_acquire_req from_realm = {.realm = 1, .n_tokens = 0};
    kvt_wire_put_acquire_req(&out, &from_realm);
    raw(d, w, KVT_OP_ACQUIRE, body, out.n_bytes, &status, &n);
    CHECK_EQ(status,
             KVT_OK); /* blue's own realm has the number 1, too; red's prompt is not in it */
    out = (kvt_writer){.at = body, .room = sizeof body};
    kvt_wire_put_acquire_req(&out, &(kvt_acquire_req){.base = lease});
    raw(d, w, KVT_OP_ACQUIRE, body, out.n_bytes, &status, &n);
    CHECK_EQ(status, KVT_ENOENT);
    out = (kvt_writer){.at = body, .room = sizeof body};
    kvt_wire_put_fork_req(&out, &(kvt_fork_req){.lease = lease, .n_tokens = 1});
    raw(d, w, KVT_OP_FORK, body, out.n_bytes, &status, &n);
    CHECK_EQ(status, KVT_ENOENT);
    out = (kvt_writer){.at = body, .room = sizeof body};
    kvt_wire_put_wait_req(&out, &(kvt_wait_req){.lease = lease});
    raw(d, w, KVT_OP_WAIT, body, out.n_bytes, &status, &n);
    CHECK_EQ(status, KVT_ENOENT);
    out = (kvt_writer){.at = body, .room = sizeof body};
    kvt_wire_put_seal_req(&out, &(kvt_seal_req){.lease = lease, .n_pages = 1});
    kvt_wire_put_seal_page(&out, &(kvt_seal_page){.bytes = 128});
    raw(d, w, KVT_OP_SEAL, body, out.n_bytes, &status, &n);
    CHECK_EQ(status, KVT_ENOENT);
    out = (kvt_writer){.at = body, .room = sizeof body};
    kvt_wire_put_u32(&out, 1);
    kvt_wire_put_u64(&out, lease);
    raw(d, w, KVT_OP_RELEASE, body, out.n_bytes, &status, &n);
    CHECK_EQ(status, KVT_OK); /* with KVT_ENOENT for the one lease; red reads it later */
    out = (kvt_writer){.at = body, .room = sizeof body};
    kvt_stage_req stage = {.bytes = 1, .name = {"kvtrunk-test-red", 16}};
    kvt_wire_put_stage_req(&out, &stage);
    raw(d, w, KVT_OP_STAGE, body, out.n_bytes, &status, &n);
    CHECK_EQ(status, KVT_EDENIED);
    out = (kvt_writer){.at = body, .room = sizeof body};
    kvt_wire_put_u32(&out, 1);
    raw(d, w, KVT_OP_SNAPSHOT, body, out.n_bytes, &status, &n);
    CHECK_EQ(status, KVT_OK);
}

static void look_at_files(const e2e_daemon *d) {
    char path[256];
    read_note(d, "red/arena", path, sizeof path);
    CHECK(open(path, O_RDONLY) < 0 && errno == EACCES);
}

/* Nothing that red's daemon tells comes through to somebody who is not red's. */
static void listen_at_door(const e2e_daemon *d) {
    char path[200];
    kvt_listener *door;
    const void *bytes;
    size_t n;
    snprintf(path, sizeof path, "%s.events", d->socket);
    kvt_status status = kvt_listener_open(path, &door);
    e2e_say('l');
    CHECK_EQ(e2e_hear(), 'l'); /* red has sealed meanwhile */
    if (status == KVT_OK) {
        status = kvt_listener_next(door, 1500, &bytes, &n);
        kvt_listener_close(door);
    }
    /* The door is shut, or it has not been yet and nothing came through. */
    CHECK_MSG(status == KVT_ECONN || status == KVT_ETIMEDOUT, "%s", kvt_status_name(status));
}

static void watch_own(e2e_worker *w) {
    kvt_watch *watch;
    kvt_watched event;
    CHECK_EQ(kvt_watch_open(w->client, &watch), KVT_OK);
    CHECK_EQ(kvt_watch_next(watch, 20000, &event), KVT_OK);
    CHECK_EQ(event.kind, KVT_WATCH_RESTART);
    CHECK_EQ(kvt_watch_next(watch, 20000, &event), KVT_OK);
    CHECK_EQ(event.kind, KVT_WATCH_LIVE);
    kvt_watch_close(watch);
}

static int blue(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    char text[256];
    unsigned long long pin, red_lease, red_session;
    become(BLUE, BLUE, BLUE);
    read_note(d, "red/ids", text, sizeof text);
    CHECK(sscanf(text, "%llu %llu %llu", &pin, &red_lease, &red_session) == 3);
    e2e_worker_open(&w, d, seed, 20000);
    look_by_library(&w, pin);
    watch_own(&w);
    look_by_wire(d, &w, red_lease);
    look_at_files(d);
    listen_at_door(d);
    e2e_path(2, tokens); /* what red sealed while we listened */
    CHECK_EQ(e2e_held(&w, tokens, N), 0);
    e2e_path(1, tokens);
    CHECK_EQ(fill(&w, tokens, N, &lease), KVT_OK);
    CHECK_EQ(e2e_held(&w, tokens, N), N);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_say('b');
    CHECK_EQ(e2e_hear(), 'e');
    e2e_worker_close(&w);
    return 0;
}

/* Belongs to blue by the group it runs with. */
static int blue_by_group(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    become(21005, BLUE_GROUP, BLUE);
    e2e_worker_open(&w, d, seed, 20000);
    e2e_path(1, tokens);
    CHECK_EQ(e2e_held(&w, tokens, N), N);
    e2e_worker_close(&w);
    return 0;
}

static int stranger(const e2e_daemon *d, uint64_t seed) {
    kvt_realm realm;
    kvt_client *client;
    (void)seed;
    become(STRANGER, STRANGER, STRANGER);
    e2e_realm(&realm);
    CHECK_EQ(kvt_open(&(kvt_options){.socket = d->socket}, &realm, &client), KVT_EDENIED);
    return 0;
}

/* --- at its quota -------------------------------------------------------------------------------
 */

/* Leases all that fits, then goes on asking for more. */
static int greedy(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS], refused = 0, n_held = 0;
    kvt_lease *lease, *held[1024];
    become(RED, RED, RED);
    e2e_worker_open(&w, d, seed, 20000);
    for (uint32_t i = 0; refused < 200; i++) {
        e2e_path(i + 1, tokens);
        kvt_status status = fill(&w, tokens, PAGE, &lease);
        if (status == KVT_OK) {
            CHECK_EQ(refused, 0); /* nothing of what it holds goes for more of it */
            CHECK(n_held < 1024);
            held[n_held++] = lease;
            continue;
        }
        CHECK_EQ(status, KVT_EFULL);
        const char *why = kvt_last_error();
        CHECK_MSG(strstr(why, "tenant red has ") && strstr(why, " 0 can go"), "%s", why);
        CHECK_EQ(kvt_release(lease), KVT_OK);
        if (++refused == 10)
            e2e_say('f');
    }
    CHECK_EQ(e2e_hear(), 'e');
    while (n_held > 0)
        CHECK_EQ(kvt_release(held[--n_held]), KVT_OK);
    e2e_worker_close(&w);
    return 0;
}

/* A fixed job; leaves its counters as they are then. */
static int modest(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    char *json;
    kvt_lease *lease;
    become(BLUE, BLUE, BLUE);
    e2e_worker_open(&w, d, 1, 20000);
    for (uint32_t i = 0; i < 60; i++) {
        e2e_path(1 + check_below(&w.random, 30), tokens);
        CHECK_EQ(fill(&w, tokens, 8 * PAGE, &lease), KVT_OK);
        CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
        CHECK_EQ(kvt_release(lease), KVT_OK);
    }
    CHECK_EQ(kvt_status_json(w.client, &json), KVT_OK);
    char *counts = strstr(json, "\"counts\":{");
    CHECK(counts);
    counts[strcspn(counts, "}")] = 0;
    CHECK(strstr(counts, "\"pages_evicted\":0,") == NULL);
    write_note(d, seed == 1 ? "blue/alone" : "blue/beside", counts);
    kvt_free(json);
    e2e_worker_close(&w);
    return 0;
}

/* --- the daemon ---------------------------------------------------------------------------------
 */

static void make_folder(const char *folder, const char *name, uint32_t uid) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
    CHECK(chown(path, uid, uid) == 0);
}

static void start(e2e_daemon *d) {
    char config[160], setting[176];
    snprintf(d->folder, sizeof d->folder, "/tmp/kvtrunk-e2e-XXXXXX");
    CHECK(mkdtemp(d->folder) && chmod(d->folder, 0755) == 0);
    snprintf(d->socket, sizeof d->socket, "%s/socket", d->folder);
    make_folder(d->folder, "red", RED);
    make_folder(d->folder, "blue", BLUE);
    snprintf(config, sizeof config, "%s/conf", d->folder);
    FILE *file = fopen(config, "w");
    CHECK(file);
    fprintf(file,
            "{\"arena\": \"1MiB\", \"max_pages\": 400, \"tenants\": [\n"
            "  {\"name\": \"red\", \"uids\": [%d], \"arena_group\": \"%d\"},\n"
            "  {\"name\": \"blue\", \"uids\": [%d], \"gids\": [%d], \"arena_group\": \"%d\"}]}\n",
            RED, RED, BLUE, BLUE_GROUP, BLUE);
    CHECK(fclose(file) == 0);
    snprintf(setting, sizeof setting, "config=%s", config);
    const char *settings[] = {setting, NULL};
    e2e_start(d, settings);
}

static void nobody_sees_another(void) {
    e2e_daemon d = {0};
    start(&d);
    e2e_child r = e2e_spawn(&d, "red", 1);
    CHECK_EQ(e2e_child_hear(&r), 'r');
    e2e_child s = e2e_spawn(&d, "stranger", 1);
    CHECK_EQ(e2e_child_end(&s), 0);
    e2e_child b = e2e_spawn(&d, "blue", 2);
    CHECK_EQ(e2e_child_hear(&b), 'l');
    e2e_child_say(&r, 't');
    CHECK_EQ(e2e_child_hear(&r), 't');
    e2e_child_say(&b, 'l');
    CHECK_EQ(e2e_child_hear(&b), 'b');
    e2e_child g = e2e_spawn(&d, "group", 3);
    CHECK_EQ(e2e_child_end(&g), 0);
    e2e_child_say(&r, 'e');
    CHECK_EQ(e2e_child_end(&r), 0);
    e2e_child_say(&b, 'e');
    CHECK_EQ(e2e_child_end(&b), 0);
    e2e_finish(&d);
}

static void read_counts(const e2e_daemon *d, const char *what, char *to, int room) {
    read_note(d, what, to, room);
    CHECK(strlen(to) > 500);
}

static void quota(void) {
    static char alone[8192], beside[8192];
    e2e_daemon d = {0};
    start(&d);
    e2e_child m = e2e_spawn(&d, "modest", 1);
    CHECK_EQ(e2e_child_end(&m), 0);
    read_counts(&d, "blue/alone", alone, sizeof alone);
    e2e_finish(&d);
    d = (e2e_daemon){0};
    start(&d);
    e2e_child g = e2e_spawn(&d, "greedy", 1);
    CHECK_EQ(e2e_child_hear(&g), 'f'); /* it is at its quota, and goes on */
    m = e2e_spawn(&d, "modest", 2);    /* the seed says where to leave the counters */
    CHECK_EQ(e2e_child_end(&m), 0);
    read_counts(&d, "blue/beside", beside, sizeof beside);
    CHECK_MSG(strcmp(alone, beside) == 0, "alone:\n%s\nbeside a greedy tenant:\n%s", alone, beside);
    e2e_child_say(&g, 'e');
    CHECK_EQ(e2e_child_end(&g), 0);
    e2e_finish(&d);
}

int main(int argc, char **argv) {
    static const e2e_jobs jobs[] = {{"red", red},
                                    {"blue", blue},
                                    {"group", blue_by_group},
                                    {"stranger", stranger},
                                    {"greedy", greedy},
                                    {"modest", modest},
                                    {0}};
    int code = e2e_child_main(argc, argv, jobs);
    if (code >= 0)
        return code;
    if (geteuid() != 0 || e2e_on_gpu()) {
        printf("SKIPPED: NOTHING OF TENANTS WAS TESTED: this needs root, who can be other users, "
               "and host memory\n");
        return 0;
    }
    nobody_sees_another();
    quota();
    printf("two tenants see nothing of each other\n");
    return 0;
}
