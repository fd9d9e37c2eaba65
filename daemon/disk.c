/* disk.c - requests to the disk helper, and what it answers. See disk.h. */
#include "daemon/disk_state.h"
#include "client/assert.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STEP_MESSAGES = 64 }; /* taken by one disk_step */

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

int disk_tell(disk *d, const disk_message *head, const void *rest, size_t n_rest) {
    struct iovec parts[2] = {{(void *)(uintptr_t)head, sizeof *head},
                             {(void *)(uintptr_t)rest, n_rest}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return d->socket >= 0 && sendmsg(d->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static int tell_realm(disk *d, disk_realm_entry *r) {
    disk_message head = {
        .kind = DISK_TELL_REALM, .number = (uint32_t)(r - d->realms), .n = (uint32_t)r->n_bytes};
    if (!r->told && !disk_tell(d, &head, r->bytes, r->n_bytes))
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
    return disk_tell(d, &head, rest, has_items(r) ? write_items(r, rest) : 0);
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
    int is_first = !d->was_up; /* only then no file was to be there */
    d->phase = DISK_UP;
    d->was_up = 1;
    d->said[0] = 0;
    if (d->last_serial < hello.last_serial)
        d->last_serial = hello.last_serial;
    take_usage(d, &hello.usage);
    int as_it_was = hello.found == TIER_FOUND_CLEAN || hello.found == TIER_FOUND_KILLED;
    if (!as_it_was && (hello.found != TIER_FOUND_NONE || !is_first)) {
        note_found(d, (tier_found)hello.found, &hello.usage);
    } else if (hello.usage.aside_removed_bytes > 0) {
        disk_log(d, 2, "%s/aside: deleted, %llu KiB, for which \"disk\" has no room",
                 d->options.dir, (unsigned long long)hello.usage.aside_removed_bytes >> 10);
    }
    if (!as_it_was && !is_first)
        lost_all(d);
    return 1;
}

/* It goes on trying: what is in its way is not the file's fault, and has an end. */
static int take_waits(disk *d, const uint8_t *rest, size_t n) {
    if (d->phase != DISK_OPENING || n == 0 || n >= sizeof d->why)
        return 0;
    memcpy(d->why, rest, n);
    d->why[n] = 0;
    if (strcmp(d->said, d->why) != 0)
        disk_log(d, 1, "%s", d->why);
    memcpy(d->said, d->why, sizeof d->said);
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
    if (d->phase != DISK_UP && head.kind != DISK_SAY_HELLO && head.kind != DISK_SAY_WAITS)
        return 0;
    switch (head.kind) {
    case DISK_SAY_HELLO:
        return take_hello(d, rest, n);
    case DISK_SAY_WAITS:
        return take_waits(d, rest, n);
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

int disk_receive(disk *d) {
    static uint8_t message[DISK_MAX_MESSAGE];
    for (uint32_t left = STEP_MESSAGES; d->socket >= 0 && left > 0; left--) {
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

int disk_take_end(disk *d) {
    struct pollfd end = {.fd = d->pidfd, .events = POLLIN};
    if (d->pid == 0 || poll(&end, 1, 0) != 1)
        return 0;
    while (disk_receive(d) && !(d->opening_first && d->phase == DISK_UP))
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

void disk_clear_timer(disk *d) {
    uint64_t ticks;
    if (read(d->timer_fd, &ticks, sizeof ticks) != (ssize_t)sizeof ticks)
        return; /* it was not that */
}

void disk_step(disk *d) {
    disk_clear_timer(d);
    disk_receive(d);
    if (disk_take_end(d))
        disk_fail_all(d);
    restart(d);
    disk_pump(d);
    disk_note_silence(d);
    disk_watch(d);
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
