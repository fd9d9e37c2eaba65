/*
 * disk_helper.c - the process that has the disk tier's file. One thread; see disk.h, disk_wire.h.
 *
 *     socket --> take_all --> reads  --> tier_get    one at a time, reads first
 *                        '--> others --> tier_put ...
 *                             nothing to do: a slice of the scan, or of a verification
 *
 * What it answers with is sent at once and waits for the daemon if it must: the daemon never waits
 * for the helper, so the two cannot wait for each other.
 */
#include "daemon/disk_helper.h"
#include "client/assert.h"
#include "daemon/disk_holder.h"
#include "daemon/disk_wire.h"
#include "kernels/say.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SCAN_RECORDS = 4 * DISK_MAX_ITEMS, /* of a slice */
    WRITE_BYTES = 1 << 20,             /* of a transaction, unless one page is larger */
    VERIFY_BYTES = 4 << 20,            /* of a slice */
    FLUSH_RECORDS = 4096,              /* looked at between two signs of life */
    USAGE_PAUSE_MS = 100,              /* counting free pages takes time */
    HEAP_BLOCK_BYTES =
        1 << 30, /* LMDB's copies of pages are not to be given back and faulted anew */
    KEPT_HEAP_BYTES = 256 << 20,
};

/* A realm as the daemon told it. Requests that were taken before its place was given to another one
 * still mean this one, so it lives as long as they do. */
typedef struct realm {
    uint32_t refs;
    uint32_t file_realm;
    uint32_t file; /* to which file that number belongs; 0: none yet */
    uint32_t n_bytes;
    uint8_t bytes[];
} realm;

typedef struct queued {
    struct queued *next;
    realm *realm; /* NULL: none */
    disk_message head;
    uint32_t n_bytes; /* of what follows the head */
    uint8_t rest[];
} queued;

typedef struct queue {
    queued *first, **last;
} queue;

typedef struct helper {
    tier *tier;
    uint8_t *host;
    uint64_t host_bytes;
    queue reads, others;
    int ended; /* the daemon is gone, or wants to close */
    int close_asked;
    realm *realms[DISK_MAX_REALMS]; /* by place; NULL: none */
    uint32_t file;                  /* counts the files that this process has used, from 1 */

    int scanning;
    tier_place scan_place;
    uint32_t scan_realms[TIER_MAX_REALMS]; /* the file's numbers, in the order of finding */
    uint32_t n_scan_realms;
    disk_wire_item found[SCAN_RECORDS];
    uint32_t found_tokens[SCAN_RECORDS][TIER_MAX_TOKENS];
    uint32_t n_found;

    queued *verifying;
    tier_place verify_place;
    uint64_t verified, corrupt_before;

    tier_usage usage;
    uint64_t usage_ms;
    int usage_due;
} helper;

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* --- saying ------------------------------------------------------------------------------------
 */

static void say(const disk_message *head, const void *rest, size_t n_rest, const void *more,
                size_t n_more) {
    struct iovec parts[3] = {
        {(void *)(uintptr_t)head, sizeof *head},
        {(void *)(uintptr_t)rest, n_rest},
        {(void *)(uintptr_t)more, n_more},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    ssize_t n;
    do
        n = sendmsg(DISK_HELPER_SOCKET, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0) /* the daemon is gone; what was written stays written */
        _exit(DISK_EXIT_ORPHAN);
}

/* The file is damaged: what is under way ends with this process. */
static void check_broken(const helper *h) {
    if (tier_broken(h->tier))
        _exit(DISK_EXIT_BROKEN);
}

/* Brings the usage up to date: sums and counters always, free room at times. */
static void usage_get(helper *h, int now) {
    uint64_t at = now_ms();
    if (!now && at < h->usage_ms + USAGE_PAUSE_MS) {
        h->usage_due = 1;
        return;
    }
    tier_use(h->tier, &h->usage);
    check_broken(h);
    h->usage_ms = now_ms();
    h->usage_due = 0;
}

static void say_usage(helper *h) {
    disk_message head = {.kind = DISK_SAY_USAGE, .n = sizeof h->usage};
    say(&head, &h->usage, sizeof h->usage, NULL, 0);
}

static void say_done(helper *h, const queued *q, disk_done *done, const disk_done_item *items) {
    disk_message head = {.kind = DISK_SAY_DONE, .number = q->head.number, .n = q->head.n};
    check_broken(h);
    usage_get(h, q->head.kind == DISK_FLUSH_ALL || q->head.kind == DISK_USAGE);
    done->usage = h->usage;
    say(&head, done, sizeof *done, items, q->head.n * sizeof *items);
}

/* --- realms ------------------------------------------------------------------------------------
 */

static void realm_drop(realm *r) {
    if (r && --r->refs == 0)
        free(r);
}

static void realm_told(helper *h, const queued *q) {
    if (q->head.number >= DISK_MAX_REALMS || q->n_bytes == 0 || q->n_bytes > TIER_MAX_REALM_BYTES)
        return;
    realm *r = malloc(sizeof *r + q->n_bytes);
    if (r) {
        *r = (realm){.refs = 1, .n_bytes = q->n_bytes};
        memcpy(r->bytes, q->rest, q->n_bytes);
    }
    realm_drop(h->realms[q->head.number]);
    h->realms[q->head.number] = r;
}

static kvt_status realm_of(helper *h, const queued *q, uint32_t *ret_file_realm) {
    realm *r = q->realm;
    if (!r)
        return KVT_ENOENT;
    if (r->file != h->file) {
        kvt_status status = tier_realm_define(h->tier, r->bytes, r->n_bytes, &r->file_realm);
        if (status != KVT_OK)
            return status;
        r->file = h->file;
    }
    *ret_file_realm = r->file_realm;
    return KVT_OK;
}

/* The file is a new one: its numbers are void, and a scan under way starts again. */
static void start_anew(helper *h) {
    h->file++;
    h->scan_place = (tier_place){.depth = 0};
    h->n_scan_realms = 0;
}

static void queued_free(queued *q) {
    realm_drop(q->realm);
    free(q);
}

/* --- requests ----------------------------------------------------------------------------------
 */

/* The items of a request as the tier's records. 0: they make no sense. */
static int records_of(helper *h, const queued *q, tier_record *records, uint32_t *tokens) {
    size_t at = q->head.n * sizeof(disk_wire_item), n_tokens = 0;
    if (q->head.n > DISK_MAX_ITEMS || at > q->n_bytes)
        return 0;
    for (uint32_t i = 0; i < q->head.n; i++) {
        disk_wire_item item;
        memcpy(&item, q->rest + i * sizeof item, sizeof item);
        size_t bytes = 4 * (size_t)item.n_tokens;
        int moves = q->head.kind == DISK_WRITE || q->head.kind == DISK_READ;
        if (item.n_tokens > TIER_MAX_TOKENS || bytes > q->n_bytes - at ||
            (moves && (item.n_tokens == 0 || item.serial == 0 || item.bytes == 0 ||
                       item.bytes > TIER_MAX_PAGE_BYTES || item.host_offset > h->host_bytes ||
                       item.bytes > h->host_bytes - item.host_offset)))
            return 0;
        records[i] = (tier_record){.key = item.key,
                                   .parent = item.parent,
                                   .serial = item.serial,
                                   .parent_serial = item.parent_serial,
                                   .depth = item.depth,
                                   .slot = item.slot,
                                   .rows = item.rows,
                                   .n_tokens = item.n_tokens,
                                   .flags = item.flags,
                                   .bytes = item.bytes,
                                   .tokens = tokens + n_tokens,
                                   .at = moves ? h->host + item.host_offset : NULL};
        memcpy(tokens + n_tokens, q->rest + at, bytes);
        at += bytes;
        n_tokens += item.n_tokens;
    }
    return 1;
}

static void delete_all(helper *h, tier_record *records, uint32_t n, disk_done *done) {
    char why[DISK_MAX_WHY];
    tier_usage before;
    done->status = (int32_t)tier_del(h->tier, records, n);
    if (done->status != KVT_EFULL)
        return;
    /* Not even that can be deleted: the room is gone in a way that only a new file mends. */
    if (tier_use(h->tier, &before) == KVT_OK)
        done->deleted = before.records;
    if (tier_reset(h->tier, why, sizeof why) == KVT_OK) {
        start_anew(h);
        done->status = KVT_OK;
        done->lost_all = 1;
        for (uint32_t i = 0; i < n; i++)
            records[i].status = KVT_OK;
    }
}

/*
 * LMDB copies a page into memory of its own and writes it out when the transaction ends: while that
 * fits the processor's cache, the second reading is nearly free. (64 pages of 64 KiB at once took
 * twice the time of 4 times 16.)
 */
static void write_all(helper *h, tier_record *records, uint32_t n, disk_done *done) {
    for (uint32_t from = 0, to = 0; from < n; from = to) {
        uint64_t bytes = records[to++].bytes;
        while (to < n && bytes + records[to].bytes <= WRITE_BYTES)
            bytes += records[to++].bytes;
        kvt_status status = tier_put(h->tier, records + from, to - from);
        if (status != KVT_OK)
            done->status = (int32_t)status;
        check_broken(h);
    }
}

static void serve_items(helper *h, const queued *q) {
    static tier_record records[DISK_MAX_ITEMS];
    static uint32_t tokens[DISK_MAX_ITEMS * TIER_MAX_TOKENS];
    disk_done_item items[DISK_MAX_ITEMS];
    disk_done done = {.status = KVT_OK};
    uint32_t file_realm = 0, n = q->head.n;
    KVT_ASSERT(records_of(h, q, records, tokens)); /* the daemon checked */
    if (q->head.kind != DISK_DELETE)
        done.status = (int32_t)realm_of(h, q, &file_realm);
    for (uint32_t i = 0; i < n; i++) {
        records[i].realm = file_realm;
        records[i].status = (kvt_status)done.status;
    }
    if (done.status == KVT_OK && n > 0) {
        if (q->head.kind == DISK_WRITE)
            write_all(h, records, n, &done);
        else if (q->head.kind == DISK_DELETE)
            delete_all(h, records, n, &done);
        else
            for (uint32_t i = 0; i < n; i++)
                tier_get(h->tier, &records[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (q->head.kind == DISK_WRITE && records[i].status == KVT_ENOENT && q->realm)
            q->realm->file = 0; /* swept away since it had no records: next time it is made anew */
        items[i] = (disk_done_item){.serial = records[i].serial,
                                    .status = (int32_t)records[i].status,
                                    .stored = records[i].stored};
    }
    say_done(h, q, &done, items);
}

static void flush_all(helper *h, const queued *q) {
    char why[DISK_MAX_WHY];
    disk_done done = {.status = KVT_OK};
    tier_usage before;
    if (tier_use(h->tier, &before) == KVT_OK)
        done.deleted = before.records;
    check_broken(h);
    done.status = (int32_t)tier_reset(h->tier, why, sizeof why);
    check_broken(h); /* without a file there is nothing to go on with */
    start_anew(h);
    say_done(h, q, &done, NULL);
}

static void flush_realm(helper *h, const queued *q) {
    disk_done done = {.status = KVT_OK};
    tier_place place = {.depth = 0};
    uint32_t file_realm;
    done.status = (int32_t)realm_of(h, q, &file_realm);
    while (done.status == KVT_OK && !place.done) {
        uint32_t n = 0;
        done.status = (int32_t)tier_del_realm(h->tier, file_realm, &place, FLUSH_RECORDS, &n);
        done.deleted += n;
        check_broken(h);
        say_usage(h);
    }
    say_done(h, q, &done, NULL);
}

static void verify_begin(helper *h, queued *q) {
    disk_done done = {.status = KVT_EBUSY};
    if (h->verifying) {
        say_done(h, q, &done, NULL);
        queued_free(q);
        return;
    }
    usage_get(h, 1);
    h->verifying = q;
    h->verify_place = (tier_place){.depth = 0};
    h->verified = 0;
    h->corrupt_before = h->usage.corrupt;
}

static void serve(helper *h, queued *q) {
    disk_done done = {.status = KVT_OK};
    switch (q->head.kind) {
    case DISK_WRITE:
    case DISK_READ:
    case DISK_DELETE:
        serve_items(h, q);
        break;
    case DISK_FLUSH_ALL:
        flush_all(h, q);
        break;
    case DISK_FLUSH_REALM:
        flush_realm(h, q);
        break;
    case DISK_USAGE:
        say_done(h, q, &done, NULL);
        break;
    case DISK_VERIFY:
        verify_begin(h, q);
        return;
    case DISK_TELL_REALM:
        realm_told(h, q);
        break;
    default:
        break;
    }
    queued_free(q);
}

/* --- beside requests ---------------------------------------------------------------------------
 */

static void scanned(void *context, const tier_record *r) {
    helper *h = context;
    KVT_ASSERT(h->n_found < SCAN_RECORDS);
    memcpy(h->found_tokens[h->n_found], r->tokens, 4 * (size_t)r->n_tokens);
    h->found[h->n_found++] = (disk_wire_item){.key = r->key,
                                              .parent = r->parent,
                                              .serial = r->serial,
                                              .parent_serial = r->parent_serial,
                                              .depth = r->depth,
                                              .bytes = r->bytes,
                                              .stored = r->stored,
                                              .realm = r->realm,
                                              .slot = r->slot,
                                              .rows = r->rows,
                                              .n_tokens = r->n_tokens};
}

/* The place in the scan's list of a realm; a new one is told to the daemon. KVT_ECORRUPT: it cannot
 * be read, so its records belong to nobody. */
static kvt_status scan_realm(helper *h, uint32_t file_realm, uint32_t *ret_place) {
    uint8_t bytes[TIER_MAX_REALM_BYTES];
    size_t n_bytes;
    for (uint32_t i = 0; i < h->n_scan_realms; i++) {
        if (h->scan_realms[i] == file_realm) {
            *ret_place = i;
            return KVT_OK;
        }
    }
    if (h->n_scan_realms == TIER_MAX_REALMS ||
        tier_realm_bytes(h->tier, file_realm, bytes, &n_bytes) != KVT_OK)
        return KVT_ECORRUPT;
    disk_message head = {
        .kind = DISK_SAY_REALM, .number = h->n_scan_realms, .n = (uint32_t)n_bytes};
    say(&head, bytes, n_bytes, NULL, 0);
    h->scan_realms[h->n_scan_realms] = file_realm;
    *ret_place = h->n_scan_realms++;
    return KVT_OK;
}

/* Says found[from ..], as many as fit; returns the next one. */
static uint32_t say_found(helper *h, uint32_t from) {
    disk_wire_item items[DISK_MAX_ITEMS];
    uint32_t tokens[DISK_MAX_ITEMS * TIER_MAX_TOKENS], n_tokens = 0;
    disk_message head = {.kind = DISK_SAY_FOUND};
    for (; from < h->n_found && head.n < DISK_MAX_ITEMS; from++) {
        disk_wire_item item = h->found[from];
        if (scan_realm(h, item.realm, &item.realm) != KVT_OK) {
            tier_record r = {.key = item.key, .depth = item.depth, .serial = item.serial};
            check_broken(h);
            tier_del(h->tier, &r, 1);
            continue;
        }
        items[head.n++] = item;
        memcpy(tokens + n_tokens, h->found_tokens[from], 4 * (size_t)item.n_tokens);
        n_tokens += item.n_tokens;
    }
    if (head.n > 0)
        say(&head, items, head.n * sizeof items[0], tokens, n_tokens * sizeof tokens[0]);
    return from;
}

static void scan_slice(helper *h) {
    h->n_found = 0;
    kvt_status status = tier_scan(h->tier, &h->scan_place, SCAN_RECORDS, scanned, h);
    check_broken(h);
    for (uint32_t i = 0; i < h->n_found;)
        i = say_found(h, i);
    check_broken(h);
    if (status == KVT_OK && !h->scan_place.done)
        return;
    h->scanning = 0;
    usage_get(h, 1);
    say_usage(h);
    disk_message head = {.kind = DISK_SAY_SCANNED};
    say(&head, NULL, 0, NULL, 0);
}

static void verify_slice(helper *h) {
    uint64_t checked = 0;
    kvt_status status = tier_verify(h->tier, &h->verify_place, VERIFY_BYTES, &checked);
    check_broken(h);
    h->verified += checked;
    if (status == KVT_OK && !h->verify_place.done) {
        if (now_ms() > h->usage_ms + USAGE_PAUSE_MS) {
            usage_get(h, 1);
            say_usage(h);
        }
        return;
    }
    usage_get(h, 1);
    disk_done done = {.status = (int32_t)status,
                      .checked = h->verified,
                      .deleted = h->usage.corrupt - h->corrupt_before};
    say_done(h, h->verifying, &done, NULL);
    queued_free(h->verifying);
    h->verifying = NULL;
}

/* --- the loop ----------------------------------------------------------------------------------
 */

static void queue_put(queue *to, queued *q) {
    q->next = NULL;
    *to->last = q;
    to->last = &q->next;
}

static queued *queue_take(queue *from) {
    queued *q = from->first;
    if (q) {
        from->first = q->next;
        if (!from->first)
            from->last = &from->first;
    }
    return q;
}

static void take(helper *h, const uint8_t *message, size_t n) {
    disk_message head;
    if (n < sizeof head)
        return;
    memcpy(&head, message, sizeof head);
    queued *q = malloc(sizeof *q + n - sizeof head);
    if (!q) /* a new process may have more luck */
        _exit(DISK_EXIT_REFUSED);
    q->head = head;
    q->realm =
        head.kind < DISK_TELL_REALM && head.realm < DISK_MAX_REALMS ? h->realms[head.realm] : NULL;
    if (q->realm)
        q->realm->refs++;
    q->n_bytes = (uint32_t)(n - sizeof head);
    memcpy(q->rest, message + sizeof head, n - sizeof head);
    if (head.kind == DISK_TELL_CLOSE)
        h->close_asked = 1;
    /* A read needs its realm: told before, so it is taken before. */
    if (head.kind == DISK_TELL_REALM)
        serve(h, q);
    else
        queue_put(head.kind == DISK_READ ? &h->reads : &h->others, q);
}

/* Takes what is in the socket; waits for something if `wait`. */
static void take_all(helper *h, int wait) {
    static uint8_t message[DISK_MAX_MESSAGE];
    for (;;) {
        ssize_t n = recv(DISK_HELPER_SOCKET, message, sizeof message, wait ? 0 : MSG_DONTWAIT);
        if (n > 0) {
            take(h, message, (size_t)n);
            wait = 0;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            h->ended |= n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
            return;
        }
    }
}

static void wait_a_moment(void) {
    struct pollfd socket = {.fd = DISK_HELPER_SOCKET, .events = POLLIN};
    poll(&socket, 1, USAGE_PAUSE_MS);
}

static void run(helper *h) {
    for (;;) {
        int busy = h->reads.first || h->others.first || h->scanning || h->verifying;
        take_all(h, !busy && !h->usage_due && !h->close_asked);
        if (h->ended)
            _exit(DISK_EXIT_ORPHAN); /* no wait for the disk: the next daemon may want the file */
        queued *q = queue_take(&h->reads);
        if (!q)
            q = queue_take(&h->others);
        if (q) {
            serve(h, q);
        } else if (h->close_asked) {
            return;
        } else if (h->scanning) {
            scan_slice(h);
        } else if (h->verifying) {
            verify_slice(h);
        } else if (h->usage_due) {
            wait_a_moment();
            usage_get(h, 0);
            if (!h->usage_due)
                say_usage(h);
        }
    }
}

/* --- starting ----------------------------------------------------------------------------------
 */

static void be_a_helper(int parent) {
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGXFSZ, SIGQUIT};
    const struct rlimit none = {0, 0};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN); /* it is the daemon that is told to stop */
    /* The socket's end says that the daemon is gone; this is for when nobody looks at the socket:
     * in an endless loop in a damaged file, while the disk does not answer, stopped. The file can
     * be used after a kill at any point. Who was late to ask for it sees that his parent is
     * another. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(DISK_EXIT_ORPHAN);
    prctl(PR_SET_NAME, "kvtrunkd-disk");
    setrlimit(RLIMIT_CORE, &none);
    close_range(DISK_HELPER_HOST + 1, ~0u, 0);
    mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEPT_HEAP_BYTES);
    /* Where memory runs out, better this process than the daemon. */
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, "500", 3) != 3)
            (void)0;
        close(fd);
    }
}

/* LMDB takes a page for free wherever a damaged file says it is: no file grows beyond the budget,
 * not by holes either. The write fails (SIGXFSZ is ignored), and the file is looked at. */
static void bound_files(uint64_t budget_bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur > budget_bytes) {
        limit.rlim_cur = budget_bytes;
        setrlimit(RLIMIT_FSIZE, &limit);
    }
}

static void boot_id_get(char *to, size_t room) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, to, room - 1);
    if (fd >= 0)
        close(fd);
    to[n > 0 ? n : 0] = 0;
    to[strcspn(to, "\n ")] = 0;
}

/* As long as only a helper has it whose daemon is gone, and once more, since that may just have
 * ended. */
static kvt_status open_in_turn(helper *h, const tier_options *options, char *why,
                               size_t why_bytes) {
    int waited = 0, waits;
    for (;; waited = waits) {
        kvt_status status = tier_open(options, why, why_bytes, &h->tier);
        waits = status == KVT_EBUSY && disk_holder_say(options->dir, why, why_bytes);
        if (status != KVT_EBUSY || (!waits && !waited))
            return status;
        disk_message head = {.kind = DISK_SAY_WAITS, .n = (uint32_t)strlen(why)};
        if (waits)
            say(&head, why, strlen(why), NULL, 0);
    }
}

static kvt_status open_tier(helper *h, char **argv, char *why, size_t why_bytes) {
    char boot_id[TIER_MAX_BOOT_ID_BYTES + 1];
    boot_id_get(boot_id, sizeof boot_id);
    tier_options options = {.dir = argv[2],
                            .budget_bytes = strtoull(argv[3], NULL, 10),
                            .boot_id = boot_id,
                            .lock_wait_ms = (uint32_t)strtoul(argv[5], NULL, 10),
                            .flags = (uint32_t)strtoul(argv[6], NULL, 10)};
    bound_files(options.budget_bytes);
    h->host_bytes = strtoull(argv[4], NULL, 10);
    h->host = h->host_bytes == 0 ? NULL
                                 : mmap(NULL, h->host_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                                        DISK_HELPER_HOST, 0);
    if (h->host == MAP_FAILED) {
        snprintf(why, why_bytes, "the host arena cannot be mapped: %s", strerror(errno));
        return KVT_ENOMEM;
    }
    return open_in_turn(h, &options, why, why_bytes);
}

static int say_hello(helper *h, kvt_status status, const char *why) {
    disk_hello hello = {.status = (int32_t)status};
    disk_message head = {.kind = DISK_SAY_HELLO, .n = (uint32_t)strlen(why)};
    if (status == KVT_OK && tier_use(h->tier, &h->usage) == KVT_OK) {
        h->usage_ms = now_ms();
        hello.last_serial = tier_last_serial(h->tier);
        hello.found = (uint32_t)h->usage.found;
        hello.usage = h->usage;
    } else if (status == KVT_OK) {
        check_broken(h);
    }
    say(&head, &hello, sizeof hello, why, strlen(why));
    return status == KVT_OK;
}

void disk_helper_main(int argc, char **argv) {
    static helper h; /* large */
    char why[DISK_MAX_WHY] = "";
    struct stat st;
    if (argc != 8 || strcmp(argv[1], DISK_HELPER_ARGUMENT) != 0)
        return;
    if (fstat(DISK_HELPER_SOCKET, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        fputs("this is not how a disk helper is started\n", stderr);
        _exit(DISK_EXIT_USAGE);
    }
    be_a_helper((int)strtol(argv[7], NULL, 10));
    h.reads.last = &h.reads.first;
    h.others.last = &h.others.first;
    kvt_status status = open_tier(&h, argv, why, sizeof why);
    if (!say_hello(&h, status, why))
        _exit(DISK_EXIT_REFUSED);
    h.scanning = 1;
    h.file = 1;
    run(&h);
    tier_close(h.tier);
    _exit(DISK_EXIT_CLOSED);
}
