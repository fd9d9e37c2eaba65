/*
 * watch.c - a listener that is kept by events alone has what the daemon has, whenever all is at
 * rest: over many random operations, with flushes, pins, evictions, workers that are killed, and
 * daemons that are.
 *
 *   e2e_watch [OPERATIONS]     100,000 if not given
 */
#include "client/watch.h"
#include "tests/e2e/e2e.h"

#include <signal.h>
#include <sys/wait.h>

enum { MAX_PAGES = 200, PROMPT = 3 * E2E_PAGE_TOKENS + 5, N_CHILDREN = 2, MAX_PINS = 8 };

/* --- a mirror -----------------------------------------------------------------------------------
 */

typedef struct mirrored {
    uint64_t page, parent;
    uint32_t realm, tier, n_tokens, first_token;
} mirrored;

typedef struct mirror {
    kvt_watch *watch;
    mirrored pages[MAX_PAGES + 1]; /* by place */
    uint64_t n_events, n_restarts;
} mirror;

static void take(mirror *m, const kvt_watched *w) {
    const kvt_event *e = &w->event;
    if (w->kind == KVT_WATCH_RESTART) {
        memset(m->pages, 0, sizeof m->pages);
        m->n_restarts++;
        return;
    }
    if (w->kind == KVT_WATCH_LIVE)
        return;
    CHECK(e->place >= 1 && e->place <= MAX_PAGES);
    mirrored *p = &m->pages[e->place];
    m->n_events += w->sequence != 0;
    if (w->kind == KVT_EVENT_ADDED) {
        CHECK_MSG(p->page == 0, "page %llu comes where %llu is", (unsigned long long)e->page,
                  (unsigned long long)p->page);
        CHECK_EQ(e->n_listed, e->n_tokens);
        *p = (mirrored){e->page, e->parent,   e->realm,
                        e->tier, e->n_tokens, kvt_wire_get_u32(e->tokens, 0)};
    } else {
        CHECK_EQ(p->page, e->page);
        if (w->kind == KVT_EVENT_REMOVED)
            *p = (mirrored){0};
        else
            p->tier = e->tier;
    }
}

/* Takes what there is. */
static void follow(mirror *m) {
    kvt_watched event;
    kvt_status status;
    while ((status = kvt_watch_next(m->watch, 0, &event)) == KVT_OK)
        take(m, &event);
    CHECK_MSG(status == KVT_ETIMEDOUT || status == KVT_ECONN, "%s", kvt_last_error());
}

static void dump(kvt_client *client, mirror *ret) {
    kvt_watched event = {0};
    *ret = (mirror){0};
    CHECK_EQ(kvt_watch_open(client, &ret->watch), KVT_OK);
    while (event.kind != KVT_WATCH_LIVE) {
        kvt_status status = kvt_watch_next(ret->watch, 20000, &event);
        CHECK_MSG(status == KVT_OK, "%s", kvt_last_error());
        take(ret, &event);
    }
    kvt_watch_close(ret->watch);
}

/* What was told last may still be on its way: looked at again until it is there. Only a listener
 * that missed something for good fails, by the test's time. */
static uint32_t compare(const e2e_daemon *d, kvt_client *client, mirror *m) {
    uint32_t n = 0;
    mirror now;
    do {
        follow(m);
        dump(client, &now);
    } while (memcmp(now.pages, m->pages, sizeof now.pages) != 0);
    for (uint32_t i = 1; i <= MAX_PAGES; i++)
        n += now.pages[i].page != 0;
    CHECK_EQ(n, e2e_count(d, "frames_used"));
    return n;
}

/* --- operations ---------------------------------------------------------------------------------
 */

static size_t prompt(uint64_t *random, uint32_t *tokens) {
    uint32_t doc = check_below(random, 40), cut = check_below(random, PROMPT);
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = i < cut ? 1000 * doc + i : check_below(random, 2);
    return 1 + check_below(random, PROMPT);
}

static void request(e2e_worker *w, uint32_t *tokens, size_t n) {
    kvt_lease *lease;
    kvt_status status = kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease);
    if (status != KVT_OK) {
        w->failed[status]++;
        return;
    }
    w->failed[e2e_read(w, lease, tokens)]++;
    w->failed[e2e_fill(w, lease, tokens, 2)]++;
    kvt_release(lease);
}

static void operate(e2e_worker *w, uint64_t *pins) {
    uint32_t tokens[PROMPT], what = check_below(&w->random, 100);
    size_t n = prompt(&w->random, tokens);
    uint64_t *pin = &pins[check_below(&w->random, MAX_PINS)];
    kvt_pin_info info;
    kvt_flush_info flushed;
    if (what < 90) {
        request(w, tokens, n);
    } else if (what < 95) {
        if (kvt_pin(w->client, 0, tokens, n, check_below(&w->random, 50), 0, &info) == KVT_OK)
            *pin = info.pin;
    } else if (what < 98) {
        kvt_unpin(w->client, *pin);
    } else {
        kvt_flush_scope scope =
            (kvt_flush_scope)(2 - (check_below(&w->random, 8) ? 0u : check_below(&w->random, 3)));
        w->failed[kvt_flush(w->client, scope, 0, tokens, scope == KVT_FLUSH_PREFIX ? n : 0,
                            &flushed)]++;
    }
}

static int child(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint64_t pins[MAX_PINS] = {0};
    e2e_worker_open(&w, d, seed, 20000);
    e2e_say('r');
    while (w.client) /* until it is killed */
        operate(&w, pins);
    return 0;
}

static void kill_child(e2e_child *c) {
    kill(c->pid, SIGKILL);
    CHECK_EQ(e2e_child_end(c), -SIGKILL);
}

static void start_children(const e2e_daemon *d, e2e_child *children, uint64_t *seed) {
    for (int i = 0; i < N_CHILDREN; i++) {
        children[i] = e2e_spawn(d, "child", ++*seed);
        CHECK_EQ(e2e_child_hear(&children[i]), 'r');
    }
}

int main(int argc, char **argv) {
    static const e2e_jobs jobs[] = {{"child", child}, {0}};
    static const char *const settings[] = {"arena=1MiB", "max_pages=200",     "audit=false",
                                           "grace_ms=0", "max_pinned=256KiB", NULL};
    int code = e2e_child_main(argc, argv, jobs);
    if (code >= 0)
        return code;
    uint64_t n_operations = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000, seed = 1, n_pages = 0;
    e2e_daemon d = {0};
    e2e_worker w;
    e2e_child children[N_CHILDREN];
    static mirror m;
    uint64_t pins[MAX_PINS] = {0};
    e2e_start(&d, settings);
    e2e_worker_open(&w, &d, seed, 20000);
    CHECK_EQ(kvt_watch_open(w.client, &m.watch), KVT_OK);
    for (uint64_t done = 0, round = 0; done < n_operations; round++) {
        start_children(&d, children, &seed);
        for (uint64_t i = 0; i < n_operations / 20 && done < n_operations; i++, done++) {
            operate(&w, pins);
            if (i % 8 == 0)
                follow(&m);
        }
        for (int i = 0; i < N_CHILDREN; i++)
            kill_child(&children[i]);
        if (round % 5 == 4) {
            CHECK(WIFSIGNALED(e2e_stop(&d, SIGKILL)));
            e2e_start(&d, settings);
        }
        e2e_await(&d, "leases", 0); /* those who were killed have let go, */
        e2e_await(&d, "jobs", 0);   /* and what they were sealing has its frame back */
        n_pages += compare(&d, w.client, &m);
    }
    printf(
        "%llu operations here, others in workers that were killed: %llu events, the mirror began "
        "%llu times, %llu pages compared; %llu calls without room, %llu not in time\n",
        (unsigned long long)n_operations, (unsigned long long)m.n_events,
        (unsigned long long)m.n_restarts, (unsigned long long)n_pages,
        (unsigned long long)w.failed[KVT_EFULL], (unsigned long long)w.failed[KVT_ETIMEDOUT]);
    CHECK(n_pages > 0 && m.n_events > n_operations / 4 && m.n_restarts >= 4);
    kvt_watch_close(m.watch);
    e2e_worker_close(&w);
    e2e_finish(&d);
    return 0;
}
