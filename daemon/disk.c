/* disk.c - requests to the disk helper, and what it answers. See disk.h. */
#include "daemon/disk_state.h"
#include "client/assert.h"
#include "kernels/say.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    STEP_MESSAGES = 64, /* taken by one disk_step */
    OPEN_ATTEMPTS = 4,  /* as it is, looked through, a new file if it died of it; one for luck */
    DEFAULT_LOCK_WAIT_MS = 5000,
    DEFAULT_STALL_MS = 30000,
    DEFAULT_OPEN_MS = 120000, /* with a walk over a file that is in doubt */
    DEFAULT_SILENT_MS = 5000,
    REAP_LIMIT_MS = 2000, /* for a process that was sent SIGKILL */
    STOP_LOOK_MS = 100,   /* how often it is asked whether disk_open is to go on */
};

/* --- realms ------------------------------------------------------------------------------------
 */

static disk_realm_entry *realm_find(disk *d, uint32_t number) {
    for (uint32_t i = 0; i < d->n_realm_places; i++)
        if (d->realms[i].bytes && d->realms[i].number == number)
            return &d->realms[i];
    return NULL;
}

static disk_realm_entry *realm_place(disk *d) {
    for (uint32_t i = 0; i < d->n_realm_places; i++)
        if (!d->realms[i].bytes)
            return &d->realms[i];
    return d->n_realm_places < DISK_MAX_REALMS ? &d->realms[d->n_realm_places++] : NULL;
}

kvt_status disk_realm(disk *d, uint32_t number, const void *bytes, size_t n_bytes) {
    if (n_bytes == 0 || n_bytes > TIER_MAX_REALM_BYTES || number == DISK_NO_REALM)
        return KVT_ELIMIT;
    disk_realm_entry *r = realm_find(d, number);
    if (r && r->n_bytes == n_bytes && memcmp(r->bytes, bytes, n_bytes) == 0)
        return KVT_OK;
    if (!r)
        r = realm_place(d);
    if (!r)
        return KVT_ELIMIT;
    uint8_t *copy = malloc(n_bytes);
    if (!copy)
        return KVT_ENOMEM;
    memcpy(copy, bytes, n_bytes);
    free(r->bytes);
    *r = (disk_realm_entry){.number = number, .bytes = copy, .n_bytes = n_bytes};
    return KVT_OK;
}

void disk_realm_forget(disk *d, uint32_t number) {
    disk_realm_entry *r = realm_find(d, number);
    if (r) {
        free(r->bytes);
        *r = (disk_realm_entry){.bytes = NULL};
    }
}

/* --- sending -----------------------------------------------------------------------------------
 */

static int needs_realm(const disk_request *r) {
    return r->kind == DISK_WRITE || r->kind == DISK_READ || r->kind == DISK_FLUSH_REALM;
}

static int has_items(const disk_request *r) {
    return r->kind == DISK_WRITE || r->kind == DISK_READ || r->kind == DISK_DELETE;
}

/* 1: sent. 0: the socket is full, or at its end (then disk_step sees it). */
static int tell(disk *d, const disk_message *head, const void *rest, size_t n_rest) {
    struct iovec parts[2] = {{(void *)(uintptr_t)head, sizeof *head},
                             {(void *)(uintptr_t)rest, n_rest}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return d->socket >= 0 && sendmsg(d->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static int tell_realm(disk *d, disk_realm_entry *r) {
    disk_message head = {
        .kind = DISK_TELL_REALM, .number = (uint32_t)(r - d->realms), .n = (uint32_t)r->n_bytes};
    if (!r->told && !tell(d, &head, r->bytes, r->n_bytes))
        return 0;
    r->told = 1;
    return 1;
}

static size_t write_items(const disk_request *r, uint8_t *to) {
    size_t at = r->n_items * sizeof(disk_wire_item);
    for (uint32_t i = 0; i < r->n_items; i++) {
        const disk_item *item = &r->items[i];
        uint16_t n_tokens = r->kind == DISK_DELETE ? 0 : item->n_tokens;
        disk_wire_item wire = {.key = item->key,
                               .parent = item->parent,
                               .serial = item->serial,
                               .parent_serial = item->parent_serial,
                               .host_offset = item->host_offset,
                               .depth = item->depth,
                               .bytes = item->bytes,
                               .slot = item->slot,
                               .rows = item->rows,
                               .n_tokens = n_tokens,
                               .flags = item->raw16 ? TIER_RAW16 : 0};
        memcpy(to + i * sizeof wire, &wire, sizeof wire);
        if (n_tokens)
            memcpy(to + at, item->tokens, 4 * (size_t)n_tokens);
        at += 4 * (size_t)n_tokens;
    }
    return at;
}

/* The place of a request whose realm was forgotten meanwhile: the helper answers KVT_ENOENT. */
static int send_request(disk *d, const disk_request *r, uint32_t slot) {
    static uint8_t rest[DISK_MAX_MESSAGE];
    disk_message head = {
        .kind = r->kind, .number = slot, .realm = DISK_MAX_REALMS, .n = r->n_items};
    if (needs_realm(r)) {
        disk_realm_entry *realm = realm_find(d, r->realm);
        if (realm && !tell_realm(d, realm))
            return 0;
        if (realm)
            head.realm = (uint32_t)(realm - d->realms);
    }
    return tell(d, &head, rest, has_items(r) ? write_items(r, rest) : 0);
}

void disk_pump(disk *d) {
    while (d->phase == DISK_UP && d->first) {
        disk_request *r = d->first;
        uint32_t slot = d->free_slots[d->n_free - 1];
        if (!send_request(d, r, slot))
            return;
        d->n_free--;
        d->n_sent++;
        d->slots[slot] = r;
        if (d->n_sent == 1)
            d->last_heard_ms = d->quiet_from_ms = disk_now_ms(); /* its silence counts from here */
        d->first = r->next;
        if (!d->first)
            d->last = &d->first;
    }
}

/* --- submitting --------------------------------------------------------------------------------
 */

/* The serial of an item's parent, if that is earlier in the request. */
static uint64_t parent_in(const disk_request *r, uint32_t i) {
    for (uint32_t k = i; k-- > 0;)
        if (r->items[k].depth + 1 == r->items[i].depth &&
            tier_key_equal(&r->items[k].key, &r->items[i].parent))
            return r->items[k].serial;
    return 0;
}

static int item_good(const disk *d, const disk_request *r, const disk_item *item) {
    if (r->kind == DISK_DELETE)
        return 1;
    return item->n_tokens >= 1 && item->n_tokens <= TIER_MAX_TOKENS && item->tokens &&
           item->bytes >= 1 && item->bytes <= TIER_MAX_PAGE_BYTES &&
           item->host_offset <= d->options.host_bytes &&
           item->bytes <= d->options.host_bytes - item->host_offset &&
           (r->kind == DISK_WRITE || item->serial != 0);
}

static kvt_status request_check(disk *d, disk_request *r) {
    if (r->kind < DISK_WRITE || r->kind > DISK_USAGE || r->n_items > DISK_MAX_ITEMS ||
        has_items(r) != (r->n_items > 0))
        return KVT_EINVAL;
    if (needs_realm(r) && !realm_find(d, r->realm))
        return KVT_EINVAL;
    for (uint32_t i = 0; i < r->n_items; i++)
        if (!item_good(d, r, &r->items[i]))
            return KVT_EINVAL;
    if (d->phase != DISK_UP || d->closing || disk_under_way(d) >= d->options.max_requests)
        return KVT_EBUSY;
    for (uint32_t i = 0; r->kind == DISK_WRITE && i < r->n_items; i++) {
        disk_item *item = &r->items[i];
        if (item->serial == 0)
            item->serial = ++d->last_serial;
        if (item->depth > 0 && item->parent_serial == 0)
            item->parent_serial = parent_in(r, i);
        if ((item->depth == 0) != (item->parent_serial == 0))
            return KVT_EINVAL;
    }
    return KVT_OK;
}

kvt_status disk_submit(disk *d, disk_request *r) {
    kvt_status status = request_check(d, r);
    if (status != KVT_OK)
        return status;
    r->next = NULL;
    r->deleted = r->checked = 0;
    *d->last = r;
    d->last = &r->next;
    disk_pump(d);
    disk_watch(d);
    return KVT_OK;
}

uint32_t disk_under_way(const disk *d) {
    uint32_t n = d->n_sent;
    for (const disk_request *r = d->first; r; r = r->next)
        n++;
    return n;
}

/* --- what the helper says ----------------------------------------------------------------------
 */

/* Sums and room are as now; counters go on from those of earlier helpers. */
static void take_usage(disk *d, const tier_usage *u) {
    d->seen = *u;
    d->stats.records = u->records;
    d->stats.bytes = u->used_bytes;
    d->stats.file_bytes = u->file_bytes;
    d->stats.map_bytes = u->map_bytes;
    d->stats.aside_bytes = u->aside_bytes;
    d->stats.page_bytes = u->page_bytes;
    d->stats.stored_bytes = u->stored_bytes;
    d->stats.corrupt = d->before.corrupt + u->corrupt;
    d->stats.foreign = d->before.foreign + u->foreign;
    d->stats.orphans = d->before.orphans + u->orphans;
}

static void lost_all(disk *d) {
    d->stats.records = d->stats.page_bytes = d->stats.stored_bytes = 0;
    if (d->options.lost_all)
        d->options.lost_all(d->options.context);
}

/* Why the file that was there is not used. */
static void reason_of(const disk *d, tier_found found, const tier_usage *u, char *to, size_t room) {
    static const char *const words[] = {
        [TIER_FOUND_NONE] = "somebody has removed it",
        [TIER_FOUND_CRASHED] = "the system crashed, or lost power, while it was in use",
        [TIER_FOUND_VERSION] = "it is of another version",
        [TIER_FOUND_BROKEN] = "it is damaged",
    };
    if (found == TIER_FOUND_LARGER)
        snprintf(to, room, "it has %llu MiB, and \"disk\" is %llu MiB now: raise that to keep one",
                 (unsigned long long)u->found_bytes >> 20,
                 (unsigned long long)d->options.budget_bytes >> 20);
    else
        snprintf(to, room, "%s",
                 (unsigned)found < sizeof words / sizeof words[0] && words[found]
                     ? words[found]
                     : tier_found_name(found));
}

/* What became of a file that cannot be used, and of what lay aside. */
static void note_found(disk *d, tier_found found, const tier_usage *u) {
    const char *to = tier_aside_name(found);
    char fate[320] = "", reason[128];
    d->stats.files_lost++;
    d->stats.moved_aside += to && u->moved_aside;
    if (to && u->moved_aside)
        snprintf(fate, sizeof fate,
                 "; %s is %s/%s, and all that lies in aside, %llu KiB, counts in \"disk\" until it "
                 "is deleted",
                 found == TIER_FOUND_BROKEN ? "the first MiB of it" : "it", d->options.dir, to,
                 (unsigned long long)u->aside_bytes >> 10);
    else if (to && u->aside_removed_bytes == 0)
        snprintf(fate, sizeof fate,
                 "; it was deleted, since it could not be moved to %s/%s (has a directory that "
                 "name, or is aside a link?)",
                 d->options.dir, to);
    else if (found != TIER_FOUND_NONE)
        snprintf(fate, sizeof fate, "; it was deleted%s",
                 to ? ", since kept aside it would take more than a quarter of \"disk\"" : "");
    reason_of(d, found, u, reason, sizeof reason);
    disk_log(d, 1, "%s: the disk tier's file could not be used (%s); starting with an empty one%s",
             d->options.dir, reason, fate);
}

static int take_hello(disk *d, const uint8_t *rest, size_t n) {
    disk_hello hello;
    if (d->phase != DISK_OPENING || n < sizeof hello)
        return 0;
    memcpy(&hello, rest, sizeof hello);
    size_t n_why = n - sizeof hello < sizeof d->why - 1 ? n - sizeof hello : sizeof d->why - 1;
    memcpy(d->why, rest + sizeof hello, n_why);
    d->why[n_why] = 0;
    d->refused = hello.status > 0 && hello.status < KVT_N_STATUS ? (kvt_status)hello.status
                 : hello.status == 0                             ? KVT_OK
                                                                 : KVT_EIO;
    if (d->refused != KVT_OK) {
        if (!d->opening_first && strcmp(d->said, d->why) != 0) /* else disk_open says it */
            disk_log(d, 0, "the disk tier cannot be opened, and is tried again: %s", d->why);
        memcpy(d->said, d->why, sizeof d->said);
        return 1;
    }
    d->phase = DISK_UP;
    d->said[0] = 0;
    if (d->last_serial < hello.last_serial)
        d->last_serial = hello.last_serial;
    take_usage(d, &hello.usage);
    int as_it_was = hello.found == TIER_FOUND_CLEAN || hello.found == TIER_FOUND_KILLED;
    /* Only at the first start no file was to be there. */
    if (!as_it_was && (hello.found != TIER_FOUND_NONE || !d->opening_first)) {
        note_found(d, (tier_found)hello.found, &hello.usage);
    } else if (hello.usage.aside_removed_bytes > 0) {
        disk_log(d, 2, "%s/aside: deleted, %llu KiB, for which \"disk\" has no room",
                 d->options.dir, (unsigned long long)hello.usage.aside_removed_bytes >> 10);
    }
    if (!as_it_was && !d->opening_first)
        lost_all(d);
    return 1;
}

static void count_items(disk *d, const disk_request *r) {
    for (uint32_t i = 0; i < r->n_items; i++) {
        const disk_item *item = &r->items[i];
        int ok = item->status == KVT_OK;
        if (r->kind == DISK_WRITE) {
            d->stats.writes += (uint64_t)ok;
            d->stats.write_bytes += ok ? item->bytes : 0;
            d->stats.full += item->status == KVT_EFULL;
            d->stats.collisions += item->status == KVT_EEXIST;
        } else if (r->kind == DISK_READ) {
            d->stats.reads += (uint64_t)ok;
            d->stats.read_bytes += ok ? item->bytes : 0;
        } else {
            d->stats.deletes += (uint64_t)ok;
        }
    }
}

static kvt_status status_in_range(int32_t status) {
    return status >= 0 && status < KVT_N_STATUS ? (kvt_status)status : KVT_EIO;
}

static int take_done(disk *d, const disk_message *head, const uint8_t *rest, size_t n) {
    disk_done done;
    if (head->number >= d->options.max_requests || !d->slots[head->number])
        return 0;
    disk_request *r = d->slots[head->number];
    if (head->n != r->n_items || n != sizeof done + r->n_items * sizeof(disk_done_item))
        return 0;
    memcpy(&done, rest, sizeof done);
    r->status = status_in_range(done.status);
    r->deleted = done.deleted;
    r->checked = done.checked;
    for (uint32_t i = 0; i < r->n_items; i++) {
        disk_done_item item;
        memcpy(&item, rest + sizeof done + i * sizeof item, sizeof item);
        r->items[i].status = status_in_range(item.status);
        if (r->kind != DISK_WRITE || r->items[i].status != KVT_OK)
            continue;
        r->items[i].serial = item.serial;
        r->items[i].stored =
            item.stored > 0 && item.stored < r->items[i].bytes ? item.stored : r->items[i].bytes;
    }
    d->slots[head->number] = NULL;
    d->free_slots[d->n_free++] = head->number;
    d->n_sent--;
    d->useful = 1;
    take_usage(d, &done.usage);
    count_items(d, r);
    if (done.lost_all) {
        d->stats.files_lost++;
        disk_log(d, 1,
                 "%s: the disk tier's file has no room left to delete from it (a damaged list of "
                 "free pages takes it up); starting with an empty one",
                 d->options.dir);
        lost_all(d);
    }
    d->options.done(d->options.context, r);
    return 1;
}

static int take_realm(disk *d, const disk_message *head, const uint8_t *rest, size_t n) {
    if (head->number > d->n_scan_numbers || head->number >= TIER_MAX_REALMS || n == 0 ||
        n > TIER_MAX_REALM_BYTES)
        return 0;
    uint32_t number = d->options.found_realm ? d->options.found_realm(d->options.context, rest, n)
                                             : DISK_NO_REALM;
    if (number != DISK_NO_REALM && disk_realm(d, number, rest, n) != KVT_OK)
        number = DISK_NO_REALM;
    d->scan_numbers[head->number] = number;
    if (head->number == d->n_scan_numbers)
        d->n_scan_numbers++;
    return 1;
}

static int take_found(disk *d, const disk_message *head, const uint8_t *rest, size_t n) {
    size_t at = head->n * sizeof(disk_wire_item);
    if (head->n > DISK_MAX_ITEMS || at > n)
        return 0;
    for (uint32_t i = 0; i < head->n; i++) {
        disk_wire_item item;
        uint32_t tokens[TIER_MAX_TOKENS];
        memcpy(&item, rest + i * sizeof item, sizeof item);
        size_t bytes = 4 * (size_t)item.n_tokens;
        if (item.n_tokens == 0 || item.n_tokens > TIER_MAX_TOKENS || bytes > n - at ||
            item.serial == 0 || item.stored == 0 || item.stored > item.bytes ||
            item.realm >= d->n_scan_numbers)
            return 0;
        memcpy(tokens, rest + at, bytes);
        at += bytes;
        disk_found found = {.realm = d->scan_numbers[item.realm],
                            .key = item.key,
                            .parent = item.parent,
                            .serial = item.serial,
                            .parent_serial = item.parent_serial,
                            .depth = item.depth,
                            .slot = item.slot,
                            .rows = item.rows,
                            .n_tokens = item.n_tokens,
                            .bytes = item.bytes,
                            .stored = item.stored,
                            .disk_bytes = tier_record_bytes(item.stored, item.n_tokens),
                            .tokens = tokens};
        if (found.realm != DISK_NO_REALM && d->options.found)
            d->options.found(d->options.context, &found);
    }
    return 1;
}

static int take(disk *d, const uint8_t *message, size_t n) {
    disk_message head;
    tier_usage usage;
    if (n < sizeof head)
        return 0;
    memcpy(&head, message, sizeof head);
    const uint8_t *rest = message + sizeof head;
    n -= sizeof head;
    if (d->phase != DISK_UP && head.kind != DISK_SAY_HELLO)
        return 0;
    switch (head.kind) {
    case DISK_SAY_HELLO:
        return take_hello(d, rest, n);
    case DISK_SAY_DONE:
        return take_done(d, &head, rest, n);
    case DISK_SAY_REALM:
        return take_realm(d, &head, rest, n);
    case DISK_SAY_FOUND:
        return take_found(d, &head, rest, n);
    case DISK_SAY_SCANNED:
        d->scanned = 1;
        if (d->options.scan_done)
            d->options.scan_done(d->options.context);
        return 1;
    case DISK_SAY_USAGE:
        if (n != sizeof usage)
            return 0;
        memcpy(&usage, rest, sizeof usage);
        take_usage(d, &usage);
        return 1;
    default:
        return 0;
    }
}

int disk_take(disk *d, const uint8_t *message, size_t n) {
    d->last_heard_ms = disk_now_ms();
    int is_right = take(d, message, n);
    if (d->phase == DISK_UP) /* what a process says that cannot open it is no answer of the disk */
        d->quiet_from_ms = d->last_heard_ms;
    return is_right;
}

/* --- steps -------------------------------------------------------------------------------------
 */

void disk_fail_all(disk *d) {
    disk_request *list = d->first, **last = d->first ? d->last : &list;
    d->first = NULL;
    d->last = &d->first;
    for (uint32_t i = 0; i < d->options.max_requests; i++) {
        disk_request *r = d->slots[i];
        if (!r)
            continue;
        d->slots[i] = NULL;
        d->free_slots[d->n_free++] = i;
        d->n_sent--;
        *last = r;
        last = &r->next;
    }
    *last = NULL;
    while (list) {
        disk_request *r = list;
        list = r->next;
        r->status = KVT_EIO;
        for (uint32_t i = 0; i < r->n_items; i++)
            r->items[i].status = KVT_EIO;
        d->stats.dropped++;
        d->options.done(d->options.context, r);
    }
}

/* Takes at most max messages; 1: there may be more. */
static int receive(disk *d, uint32_t max) {
    static uint8_t message[DISK_MAX_MESSAGE];
    while (d->socket >= 0 && max-- > 0) {
        ssize_t n = recv(d->socket, message, sizeof message, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0) {
            disk_socket_end(d); /* it has ended, or is about to */
            if (d->pid)
                kill(d->pid, SIGKILL);
            return 0;
        }
        if (!disk_take(d, message, (size_t)n)) {
            disk_log(d, 0, "the disk helper says what makes no sense");
            disk_socket_end(d);
            disk_kill(d);
            return 0;
        }
        if (d->opening_first && d->phase == DISK_UP)
            return 1; /* nothing is called before disk_open is back */
    }
    return d->socket >= 0;
}

/* If the process has ended: takes what it said last, then 1. */
static int take_end(disk *d) {
    struct pollfd end = {.fd = d->pidfd, .events = POLLIN};
    if (d->pid == 0 || poll(&end, 1, 0) != 1)
        return 0;
    while (receive(d, STEP_MESSAGES) && !(d->opening_first && d->phase == DISK_UP))
        ;
    return disk_reap(d);
}

static void restart(disk *d) {
    char why[DISK_MAX_WHY];
    if (d->phase != DISK_DOWN || d->closing || disk_now_ms() < d->restart_due_ms)
        return;
    d->stats.restarts++;
    if (disk_spawn(d, why, sizeof why) != KVT_OK) {
        disk_log(d, 0, "%s", why);
        d->pause_ms = d->pause_ms ? 2 * d->pause_ms : 100;
        d->restart_due_ms = disk_now_ms() + d->pause_ms;
    }
}

static void clear_timer(disk *d) {
    uint64_t ticks;
    if (read(d->timer_fd, &ticks, sizeof ticks) != (ssize_t)sizeof ticks)
        return; /* it was not that */
}

void disk_step(disk *d) {
    clear_timer(d);
    receive(d, STEP_MESSAGES);
    if (take_end(d))
        disk_fail_all(d);
    restart(d);
    disk_pump(d);
    disk_note_silence(d);
    disk_watch(d);
}

/* --- open and close ----------------------------------------------------------------------------
 */

static void disk_free(disk *d) {
    disk_socket_end(d);
    if (d->pidfd >= 0)
        close(d->pidfd);
    if (d->timer_fd >= 0)
        close(d->timer_fd);
    if (d->epoll_fd >= 0)
        close(d->epoll_fd);
    for (uint32_t i = 0; i < DISK_MAX_REALMS; i++)
        free(d->realms[i].bytes);
    free(d->slots);
    free(d->free_slots);
    free((void *)(uintptr_t)d->options.dir);
    free(d);
}

static disk *disk_new(const disk_options *options) {
    disk *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->options = *options;
    d->options.dir = strdup(options->dir);
    if (!d->options.lock_wait_ms)
        d->options.lock_wait_ms = DEFAULT_LOCK_WAIT_MS;
    if (!d->options.stall_ms)
        d->options.stall_ms = DEFAULT_STALL_MS;
    if (!d->options.silent_ms)
        d->options.silent_ms = DEFAULT_SILENT_MS;
    d->open_ms = options->open_ms ? options->open_ms : DEFAULT_OPEN_MS;
    d->quiet_from_ms = disk_now_ms();
    d->stats.budget_bytes = options->budget_bytes;
    d->socket = d->pidfd = -1;
    d->last = &d->first;
    d->n_free = options->max_requests;
    d->slots = calloc(options->max_requests, sizeof *d->slots);
    d->free_slots = calloc(options->max_requests, sizeof *d->free_slots);
    d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (!d->options.dir || !d->slots || !d->free_slots || d->timer_fd < 0 || d->epoll_fd < 0 ||
        epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, d->timer_fd, &event) != 0) {
        disk_free(d);
        return NULL;
    }
    for (uint32_t i = 0; i < options->max_requests; i++)
        d->free_slots[i] = options->max_requests - 1 - i;
    return d;
}

/* Until there is something for disk_step, or the time has come. */
static void wait_until(disk *d, uint64_t end_ms) {
    struct pollfd any = {.fd = d->epoll_fd, .events = POLLIN};
    uint64_t now = disk_now_ms();
    poll(&any, 1, end_ms > now ? (int)(end_ms - now < 1000 ? end_ms - now : 1000) : 0);
}

/* A process that waits within the kernel for a disk that does not answer ends when that does: it is
 * not waited for longer than this. */
static void end_helper(disk *d) {
    uint64_t end_ms = disk_now_ms() + REAP_LIMIT_MS;
    d->closing = 1;
    disk_kill(d);
    while (d->pid && disk_now_ms() < end_ms) {
        wait_until(d, end_ms);
        disk_step(d);
    }
}

/* Once, where it hangs, or looks through a large file: nothing is served before. */
static void say_slow_start(disk *d) {
    if (d->silent_from_ms || d->phase == DISK_UP || disk_silence_ms(d) < d->options.silent_ms)
        return;
    d->silent_from_ms = d->quiet_from_ms;
    disk_log(d, 1,
             "%s is not open yet after %llu s: its disk does not answer, or a large file is looked "
             "through; the daemon serves when it is open (SIGTERM ends it, without a \"disk_dir\" "
             "it starts at once)",
             d->options.dir, (unsigned long long)disk_silence_ms(d) / 1000);
}

/* A file that its helper dies of is looked through by the next one, and moved aside by the third;
 * not so one whose disk does not answer. */
static kvt_status open_first(disk *d, char *why, size_t why_bytes) {
    kvt_status status = disk_spawn(d, why, why_bytes);
    while (status == KVT_OK && d->phase != DISK_UP) {
        wait_until(d, disk_now_ms() + STOP_LOOK_MS);
        if (d->options.is_stopped && d->options.is_stopped(d->options.context)) {
            end_helper(d);
            return kvt_say(why, why_bytes, KVT_ECANCELED, "%s: stopped before it was open",
                           d->options.dir);
        }
        clear_timer(d);
        receive(d, STEP_MESSAGES);
        say_slow_start(d);
        disk_watch(d);
        if (!take_end(d))
            continue;
        if (d->refused != KVT_OK)
            return kvt_say(why, why_bytes, d->refused, "%s", d->why);
        if (d->n_starts == OPEN_ATTEMPTS)
            return kvt_say(why, why_bytes, KVT_EIO,
                           d->stalled ? "%s: the disk did not answer, %d times, while the file was "
                                        "opened, which is left as it is"
                                      : "%s: the disk helper died %d times of opening it",
                           d->options.dir, OPEN_ATTEMPTS);
        status = disk_spawn(d, why, why_bytes);
    }
    return status;
}

kvt_status disk_open(const disk_options *options, char *why, size_t why_bytes, disk **ret_disk) {
    if (!options->dir || !options->dir[0] || !options->done || options->max_requests == 0 ||
        options->host_bytes == 0)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "a disk tier needs a directory, a host arena and room for requests");
    disk *d = disk_new(options);
    if (!d)
        return kvt_say(why, why_bytes, KVT_ENOMEM, "out of memory or descriptors");
    d->opening_first = 1;
    kvt_status status = open_first(d, why, why_bytes);
    d->opening_first = 0;
    if (status != KVT_OK) {
        disk_free(d);
        return status;
    }
    *ret_disk = d;
    return KVT_OK;
}

void disk_close(disk *d, uint32_t limit_ms) {
    const disk_message goodbye = {.kind = DISK_TELL_CLOSE};
    if (!d)
        return;
    uint64_t end_ms = disk_now_ms() + limit_ms;
    d->closing = 1;
    disk_step(d);
    while (d->phase == DISK_UP && disk_under_way(d) > 0 && disk_now_ms() < end_ms) {
        wait_until(d, end_ms);
        disk_step(d);
    }
    int told = d->phase == DISK_UP && disk_under_way(d) == 0 && tell(d, &goodbye, NULL, 0);
    while (told && d->pid && disk_now_ms() < end_ms) {
        wait_until(d, end_ms);
        disk_step(d);
    }
    end_helper(d);
    disk_fail_all(d);
    disk_free(d);
}

/* --- looking -----------------------------------------------------------------------------------
 */

int disk_fd(const disk *d) {
    return d->epoll_fd;
}

int disk_up(const disk *d) {
    return d->phase == DISK_UP;
}

int disk_scanned(const disk *d) {
    return d->scanned;
}

int disk_pid(const disk *d) {
    return (int)d->pid;
}

void disk_count(const disk *d, disk_stats *ret_stats) {
    *ret_stats = d->stats;
    ret_stats->silent_ms = disk_silence_ms(d);
}
