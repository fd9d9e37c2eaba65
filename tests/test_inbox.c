/*
 * test_inbox.c - the way into the core thread: nothing lost, nothing out of order, nobody who
 * sleeps though something came, and limits that stop messages and never an end or a completion. A
 * lost wake-up shows as a hang, which the test's time limit ends.
 */
#include "daemon/inbox.h"
#include "tests/check.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static inbox *in;

static void open_inbox(uint32_t messages, uint64_t bytes, uint32_t pipes, uint32_t n_jobs) {
    inbox_limits limits = {messages, bytes, pipes, n_jobs};
    CHECK_EQ(inbox_open(&limits, &in), KVT_OK);
}

static int put_message(uint32_t pipe, uint32_t request, size_t n_bytes) {
    return inbox_put_message(in, (core_ticket){pipe, request}, NULL, n_bytes, NULL);
}

/* --- limits, in one thread ---------------------------------------------------------------------
 */

static void test_messages_pause(void) {
    inbox_item items[8];
    int resume;
    open_inbox(3, 1000, 1, 1);
    CHECK_EQ(inbox_take(in, items, 8, &resume), 0);
    CHECK_EQ(resume, 0);
    CHECK_EQ(put_message(1, 1, 10), 1);
    CHECK_EQ(put_message(1, 2, 10), 1);
    CHECK_EQ(put_message(1, 3, 10), 0); /* taken, and the last for now */
    CHECK_EQ(inbox_take(in, items, 1, &resume), 1);
    CHECK_EQ(items[0].ticket.request, 1);
    CHECK_EQ(resume, 1);
    CHECK_EQ(put_message(1, 4, 10), 0);
    CHECK_EQ(inbox_take(in, items, 8, &resume), 3);
    CHECK_EQ(items[2].ticket.request, 4);
    CHECK_EQ(resume, 1);
    CHECK_EQ(inbox_take(in, items, 8, &resume), 0);
    CHECK_EQ(resume, 0); /* told once */
    CHECK_EQ(put_message(1, 5, 2000),
             0); /* bytes are a limit too, and one message may go over it */
    CHECK_EQ(inbox_take(in, items, 8, &resume), 1);
    CHECK_EQ(items[0].n_bytes, 2000);
    CHECK_EQ(resume, 1);
    inbox_close(in);
}

static void test_pipes_keep_room(void) {
    inbox_item items[8];
    core_job job;
    core_peer peer = {1, 2, 3};
    int resume;
    open_inbox(1, 1000, 2, 1);
    CHECK_EQ(inbox_put_pipe_added(in, 10, peer), 1);
    CHECK_EQ(inbox_put_pipe_added(in, 11, peer), 1);
    CHECK_EQ(inbox_put_pipe_added(in, 12, peer), 0);
    /* everything that must arrive still fits */
    CHECK_EQ(put_message(10, 1, 1), 0);
    inbox_put_job_done(in, &job);
    inbox_put_pipe_removed(in, 10);
    inbox_put_pipe_removed(in, 11);
    /* an end that is not yet taken still has its place */
    CHECK_EQ(inbox_put_pipe_added(in, 13, peer), 0);
    CHECK_EQ(inbox_take(in, items, 5, &resume), 5);
    CHECK_EQ(items[0].kind, INBOX_PIPE_ADDED);
    CHECK_EQ(items[0].peer.pid, 3);
    CHECK_EQ(items[2].kind, INBOX_MESSAGE);
    CHECK(items[3].kind == INBOX_JOB_DONE && items[3].job == &job);
    CHECK(items[4].kind == INBOX_PIPE_REMOVED && items[4].ticket.pipe == 10);
    CHECK_EQ(inbox_put_pipe_added(in, 13, peer), 1);
    CHECK_EQ(inbox_put_pipe_added(in, 14, peer), 0);
    CHECK_EQ(inbox_take(in, items, 8, &resume), 2);
    CHECK_EQ(items[0].ticket.pipe, 11);
    CHECK_EQ(items[1].ticket.pipe, 13);
    inbox_close(in);
}

/* The fd tells of what comes after inbox_take found nothing, and only of that. */
static void test_edges(void) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    inbox_item items[8];
    int resume, epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    open_inbox(100, 1000, 1, 1);
    CHECK_EQ(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, inbox_fd(in), &event), 0);
    CHECK_EQ(epoll_wait(epoll_fd, &event, 1, 0), 0);
    put_message(1, 1, 1);
    CHECK_EQ(epoll_wait(epoll_fd, &event, 1, 0), 1);
    put_message(1, 2, 1);
    CHECK_EQ(epoll_wait(epoll_fd, &event, 1, 0), 0); /* a burst is told of once */
    CHECK_EQ(inbox_take(in, items, 8, &resume), 2);
    put_message(1, 3, 1); /* before it found nothing: it must look again by itself */
    CHECK_EQ(epoll_wait(epoll_fd, &event, 1, 0), 0);
    CHECK_EQ(inbox_take(in, items, 8, &resume), 1);
    CHECK_EQ(inbox_take(in, items, 8, &resume), 0);
    put_message(1, 4, 1);
    CHECK_EQ(epoll_wait(epoll_fd, &event, 1, 0), 1);
    CHECK_EQ(inbox_take(in, items, 8, &resume), 1);
    inbox_close(in);
    close(epoll_fd);
}

/* --- many threads ------------------------------------------------------------------------------
 */

enum { N_MESSAGES = 100000, N_PIPES = 20000, N_JOBS = 20000, N_JOB_THREADS = 3, MAX_JOBS = 8 };

static int go_on_fd; /* a semaphore: the message producer may go on */
static atomic_uint jobs_under_way;

static void wait_for(int fd) {
    uint64_t count;
    ssize_t n;
    while ((n = read(fd, &count, sizeof count)) < 0 && errno == EINTR)
        ;
    CHECK_EQ(n, sizeof count);
}

static void *produce_messages(void *argument) {
    (void)argument;
    for (uint32_t i = 1; i <= N_MESSAGES; i++)
        if (!put_message(7, i, i % 100))
            wait_for(go_on_fd);
    return NULL;
}

/* One thread adds and another removes, as nng's do: an end may even come while others begin. */
static void *produce_pipes(void *argument) {
    (void)argument;
    for (uint32_t i = 1; i <= N_PIPES;) {
        if (!inbox_put_pipe_added(in, i, (core_peer){0, 0, i})) {
            sched_yield();
            continue;
        }
        inbox_put_pipe_removed(in, i++);
    }
    return NULL;
}

static void *produce_jobs(void *argument) {
    core_job *jobs_of_mine = argument;
    for (uint32_t i = 0; i < N_JOBS; i++) {
        unsigned n = atomic_load(&jobs_under_way);
        while (n >= MAX_JOBS || !atomic_compare_exchange_weak(&jobs_under_way, &n, n + 1)) {
            sched_yield();
            n = atomic_load(&jobs_under_way);
        }
        jobs_of_mine[i].number = i + 1;
        inbox_put_job_done(in, &jobs_of_mine[i]);
    }
    return NULL;
}

typedef struct seen {
    uint32_t messages, added, removed;
    uint64_t jobs[N_JOB_THREADS];
    uint32_t n_jobs;
} seen;

static void consume(seen *s, const inbox_item *item) {
    switch (item->kind) {
    case INBOX_MESSAGE:
        CHECK_EQ(item->ticket.request, ++s->messages);
        CHECK_EQ(item->n_bytes, s->messages % 100);
        break;
    case INBOX_PIPE_ADDED:
        CHECK_EQ(item->ticket.pipe, ++s->added);
        CHECK_EQ(item->peer.pid, s->added);
        break;
    case INBOX_PIPE_REMOVED:
        CHECK_EQ(item->ticket.pipe, ++s->removed);
        CHECK(s->removed <= s->added);
        break;
    case INBOX_JOB_DONE:
        CHECK_EQ(item->job->number, ++s->jobs[item->job->lane]);
        s->n_jobs++;
        atomic_fetch_sub(&jobs_under_way, 1);
        break;
    }
}

static void consume_all(void) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    inbox_item items[16];
    seen s = {0};
    CHECK_EQ(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, inbox_fd(in), &event), 0);
    while (s.messages < N_MESSAGES || s.removed < N_PIPES || s.n_jobs < N_JOB_THREADS * N_JOBS) {
        int resume;
        uint32_t n = inbox_take(in, items, 16, &resume);
        for (uint32_t i = 0; i < n; i++)
            consume(&s, &items[i]);
        if (resume) {
            uint64_t one = 1;
            CHECK_EQ(write(go_on_fd, &one, sizeof one), sizeof one);
        }
        if (n == 0)
            CHECK(epoll_wait(epoll_fd, &event, 1, -1) == 1 || errno == EINTR);
    }
    close(epoll_fd);
}

static void test_threads(void) {
    pthread_t messages, pipes, job_threads[N_JOB_THREADS];
    core_job *all = calloc(N_JOB_THREADS * N_JOBS, sizeof *all);
    CHECK(all != NULL);
    go_on_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    open_inbox(5, 300, 4, MAX_JOBS);
    CHECK_EQ(pthread_create(&messages, NULL, produce_messages, NULL), 0);
    CHECK_EQ(pthread_create(&pipes, NULL, produce_pipes, NULL), 0);
    for (uint32_t i = 0; i < N_JOB_THREADS; i++) {
        for (uint32_t j = 0; j < N_JOBS; j++)
            all[i * N_JOBS + j].lane = i;
        CHECK_EQ(pthread_create(&job_threads[i], NULL, produce_jobs, all + i * N_JOBS), 0);
    }
    consume_all();
    pthread_join(messages, NULL);
    pthread_join(pipes, NULL);
    for (uint32_t i = 0; i < N_JOB_THREADS; i++)
        pthread_join(job_threads[i], NULL);
    inbox_item item;
    int resume;
    CHECK_EQ(inbox_take(in, &item, 1, &resume), 0);
    inbox_close(in);
    close(go_on_fd);
    free(all);
}

int main(void) {
    inbox_limits none = {0, 1, 1, 1};
    CHECK_EQ(inbox_open(&none, &in), KVT_EINVAL);
    inbox_close(NULL);
    test_messages_pause();
    test_pipes_keep_room();
    test_edges();
    test_threads();
    return 0;
}
