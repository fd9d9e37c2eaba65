/*
 * cut.c - a worker's connection is cut, but the worker lives on and goes on decoding what it
 * mapped. It never gets a wrong byte with KVT_OK: within the grace time it has its lease back;
 * after it, and after others have used its frames, it is told KVT_ESTALE.
 */
#include "tests/e2e/e2e.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Shuts down every connected UNIX socket of this process that leads to the daemon: one whose other
 * end was bound in its folder (a listener may be bound to another name and renamed). */
static int cut_connections(const e2e_daemon *d) {
    int n = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_un peer;
        socklen_t size = sizeof peer;
        memset(&peer, 0, sizeof peer);
        if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sun_family == AF_UNIX &&
            strncmp(peer.sun_path, d->folder, strlen(d->folder)) == 0)
            n += shutdown(fd, SHUT_RDWR) == 0;
    }
    return n;
}

static size_t fixed_prompt(uint32_t *tokens) {
    for (uint32_t i = 0; i < 200; i++)
        tokens[i] = 500000 + i;
    return 200;
}

static kvt_lease *held_lease(e2e_worker *w, const uint32_t *tokens, size_t n) {
    kvt_lease *lease;
    kvt_lease_info info;
    CHECK_EQ(kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(info.held_tokens, n);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    return lease;
}

/* Evicts everything that may go, many times over. Runs as a process of its own. */
static int presser(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    e2e_worker_open(&w, d, seed, 20000);
    for (int i = 0; i < 200; i++)
        e2e_request(&w);
    e2e_worker_close(&w);
    return 0;
}

static const e2e_jobs jobs[] = {{"presser", presser}, {NULL, NULL}};

static void press(const e2e_daemon *d, uint64_t seed) {
    e2e_child child = e2e_spawn(d, "presser", seed);
    CHECK_EQ(e2e_child_end(&child), 0);
}

static void lease_comes_back(void) {
    e2e_daemon d = {0};
    const char *settings[] = {"arena=1MiB", "max_pages=200", "grace_ms=60000", NULL};
    e2e_start(&d, settings);
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    size_t n = fixed_prompt(tokens);
    e2e_worker_open(&w, &d, 1, 20000);
    kvt_lease *lease = held_lease(&w, tokens, n);
    CHECK(cut_connections(&d) > 0);
    press(&d, 7);
    CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK); /* the grace time holds it */
    CHECK_EQ(kvt_wait(lease, 0, 0), KVT_OK);       /* a call: the session is resumed */
    press(&d, 8);
    CHECK_EQ(e2e_read(&w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    CHECK(e2e_count(&d, "sessions_resumed") >= 1);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

static void lease_is_lost(void) {
    e2e_daemon d = {0};
    const char *settings[] = {"arena=1MiB", "max_pages=200", "grace_ms=1", NULL};
    e2e_start(&d, settings);
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    size_t n = fixed_prompt(tokens);
    e2e_worker_open(&w, &d, 1, 20000);
    kvt_lease *lease = held_lease(&w, tokens, n);
    CHECK(cut_connections(&d) > 0);
    /* Until its session is gone and its frames are used anew, every read is right or stale;
     * e2e_read ends the test at the first wrong byte. */
    uint64_t stale = 0;
    for (uint64_t i = 0; i < 8 && !stale; i++) {
        e2e_child child = e2e_spawn(&d, "presser", 20 + i);
        for (int k = 0; k < 2000 && !stale; k++) {
            kvt_status status = e2e_read(&w, lease, tokens);
            CHECK_MSG(status == KVT_OK || status == KVT_ESTALE, "%s", kvt_status_name(status));
            stale += status == KVT_ESTALE;
        }
        CHECK_EQ(e2e_child_end(&child), 0);
    }
    CHECK(stale > 0);
    kvt_status end = kvt_release(lease);
    CHECK_MSG(end == KVT_ESTALE, "%s", kvt_status_name(end));
    /* and the library works again by itself */
    lease = held_lease(&w, tokens, n);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    e2e_finish(&d);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    lease_comes_back();
    lease_is_lost();
    return 0;
}
