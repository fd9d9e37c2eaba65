/* inbox.c - see inbox.h. */
#include "daemon/inbox.h"
#include "client/assert.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct inbox {
    pthread_mutex_t lock;
    inbox_limits limits;
    int fd;
    int woken;  /* the eventfd was written since the consumer found nothing */
    int paused; /* the message producer was told to stop */
    uint32_t n_messages;
    uint64_t message_bytes;
    uint32_t n_pipes; /* let in, and their end not yet taken */
    uint32_t n_jobs;
    uint32_t first, n_items, n_places;
    inbox_item items[];
};

kvt_status inbox_open(const inbox_limits *limits, inbox **ret_inbox) {
    uint64_t n_places =
        (uint64_t)limits->max_messages + 2 * (uint64_t)limits->max_pipes + limits->max_jobs;
    if (limits->max_messages == 0 || n_places > 1u << 24)
        return KVT_EINVAL;
    inbox *in = calloc(1, sizeof *in + n_places * sizeof(inbox_item));
    if (!in)
        return KVT_ENOMEM;
    in->limits = *limits;
    in->n_places = (uint32_t)n_places;
    in->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (in->fd < 0) {
        free(in);
        return KVT_EIO;
    }
    pthread_mutex_init(&in->lock, NULL);
    *ret_inbox = in;
    return KVT_OK;
}

void inbox_close(inbox *in) {
    if (!in)
        return;
    pthread_mutex_destroy(&in->lock);
    close(in->fd);
    free(in);
}

int inbox_fd(const inbox *in) {
    return in->fd;
}

/* With the lock held. */
static void put(inbox *in, inbox_item item) {
    KVT_ASSERT(in->n_items < in->n_places);
    in->items[(in->first + in->n_items++) % in->n_places] = item;
}

/* Unlocks, then wakes the consumer if it found nothing and nobody has woken it since: one system
 * call for a burst, and not with the lock that the consumer needs first. */
static void unlock_and_wake(inbox *in) {
    int wake = in->n_items > 0 && !in->woken;
    if (wake)
        in->woken = 1;
    pthread_mutex_unlock(&in->lock);
    if (wake) {
        uint64_t one = 1;
        ssize_t n = write(in->fd, &one, sizeof one);
        KVT_ASSERT(n == sizeof one);
    }
}

int inbox_put_pipe_added(inbox *in, uint32_t pipe, core_peer peer) {
    pthread_mutex_lock(&in->lock);
    int let_in = in->n_pipes < in->limits.max_pipes;
    if (let_in) {
        in->n_pipes++;
        put(in, (inbox_item){.kind = INBOX_PIPE_ADDED, .ticket.pipe = pipe, .peer = peer});
    }
    unlock_and_wake(in);
    return let_in;
}

void inbox_put_pipe_removed(inbox *in, uint32_t pipe) {
    pthread_mutex_lock(&in->lock);
    put(in, (inbox_item){.kind = INBOX_PIPE_REMOVED, .ticket.pipe = pipe});
    unlock_and_wake(in);
}

static int has_room(const inbox *in) {
    return in->n_messages < in->limits.max_messages &&
           in->message_bytes < in->limits.max_message_bytes;
}

int inbox_put_message(inbox *in, core_ticket ticket, const void *bytes, size_t n_bytes,
                      void *owner) {
    pthread_mutex_lock(&in->lock);
    KVT_ASSERT(!in->paused);
    put(in, (inbox_item){.kind = INBOX_MESSAGE,
                         .ticket = ticket,
                         .bytes = bytes,
                         .n_bytes = n_bytes,
                         .owner = owner});
    in->n_messages++;
    in->message_bytes += n_bytes;
    in->paused = !has_room(in);
    int go_on = !in->paused;
    unlock_and_wake(in);
    return go_on;
}

void inbox_put_job_done(inbox *in, core_job *job) {
    pthread_mutex_lock(&in->lock);
    KVT_ASSERT(in->n_jobs < in->limits.max_jobs);
    in->n_jobs++;
    put(in, (inbox_item){.kind = INBOX_JOB_DONE, .job = job});
    unlock_and_wake(in);
}

/* With the lock held. */
static void account_taken(inbox *in, const inbox_item *item) {
    if (item->kind == INBOX_MESSAGE) {
        in->n_messages--;
        in->message_bytes -= item->n_bytes;
    } else if (item->kind == INBOX_PIPE_REMOVED) {
        KVT_ASSERT(in->n_pipes > 0);
        in->n_pipes--;
    } else if (item->kind == INBOX_JOB_DONE) {
        in->n_jobs--;
    }
}

uint32_t inbox_take(inbox *in, inbox_item *ret_items, uint32_t max, int *ret_resume) {
    uint32_t n = 0;
    pthread_mutex_lock(&in->lock);
    while (n < max && in->n_items > 0) {
        ret_items[n] = in->items[in->first];
        in->first = (in->first + 1) % in->n_places;
        in->n_items--;
        account_taken(in, &ret_items[n++]);
    }
    if (n == 0)
        in->woken = 0;
    *ret_resume = in->paused && has_room(in);
    if (*ret_resume)
        in->paused = 0;
    pthread_mutex_unlock(&in->lock);
    return n;
}
