/*
 * test_server.c - nng's side of the daemon with the test in the core's place: what a peer sends
 * comes in whole and in order, answers find their way in any order, and a peer who floods, does not
 * read or goes away takes nothing from the others. A hang is ended by the test's time limit.
 */
#include "daemon/server_nng.h"
#include "tests/check.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_MESSAGES = 8, MAX_HELD = 16, MAX_CONTEXTS = MAX_HELD + 1024 };

static char dir[] = "/tmp/test_server.XXXXXX";
static char path[64];
static inbox *in;
static socket_path place;
static server *served;

static void open_server(void) {
    char why[512] = "";
    inbox_limits limits = {MAX_MESSAGES, 1 << 20, 8 + SERVER_OWN_PIPES, 1};
    CHECK_MSG(socket_path_take(path, &place, why, sizeof why) == KVT_OK, "%s", why);
    CHECK_EQ(inbox_open(&limits, &in), KVT_OK);
    server_options options = {
        .inbox = in, .socket = &place, .mode = 0600, .max_pipes = 8, .max_held = MAX_HELD};
    CHECK_MSG(server_open(&options, why, sizeof why, &served) == KVT_OK, "%s", why);
    CHECK_MSG(server_listen(served, why, sizeof why) == KVT_OK, "%s", why);
}

/* --- the core's place --------------------------------------------------------------------------
 */

static inbox_item next_item(void) {
    inbox_item item;
    int resume;
    for (;;) {
        uint32_t n = inbox_take(in, &item, 1, &resume);
        if (resume)
            server_resume(served);
        if (n == 1)
            return item;
        struct pollfd ready = {.fd = inbox_fd(in), .events = POLLIN};
        CHECK(poll(&ready, 1, -1) >= 0 || errno == EINTR);
    }
}

static inbox_item next_of(inbox_kind kind) {
    inbox_item item = next_item();
    CHECK_MSG(item.kind == kind, "item of kind %d instead of %d", item.kind, kind);
    return item;
}

static void answer(const inbox_item *item, const char *text) {
    server_send(served, item->ticket, text, strlen(text));
    server_free_message(item->owner);
}

static int holds(const inbox_item *item, const char *text) {
    return item->n_bytes == strlen(text) && memcmp(item->bytes, text, item->n_bytes) == 0;
}

static void close_server(void) {
    inbox_item item;
    int resume;
    server_close(served);
    while (inbox_take(in, &item, 1, &resume) == 1)
        if (item.kind == INBOX_MESSAGE)
            server_free_message(item.owner);
    inbox_close(in);
    socket_path_release(&place);
}

/* --- a peer ------------------------------------------------------------------------------------
 */

static void write_all(int fd, const void *bytes, size_t n_bytes) {
    CHECK_EQ(send(fd, bytes, n_bytes, MSG_NOSIGNAL), n_bytes);
}

static void read_all(int fd, void *to, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = recv(fd, (char *)to + done, n_bytes - done, 0);
        CHECK_MSG(n > 0, "the connection was closed");
        done += (size_t)n;
    }
}

static int peer_open(uint32_t *ret_pipe) {
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint8_t theirs[8];
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    CHECK_EQ(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    write_all(fd, greeting, sizeof greeting);
    read_all(fd, theirs, sizeof theirs);
    CHECK(theirs[5] == 0x31);
    inbox_item item = next_of(INBOX_PIPE_ADDED);
    CHECK_EQ(item.peer.pid, getpid());
    CHECK_EQ(item.peer.uid, getuid());
    *ret_pipe = item.ticket.pipe;
    return fd;
}

/* A frame: kind 1, length, id of the request, the text. Returns whether it could be sent. */
static int peer_ask(int fd, uint8_t id, const void *text, size_t n_bytes) {
    uint8_t head[13] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, id};
    size_t length = n_bytes + 4;
    for (int i = 8; i > 4; i--, length >>= 8)
        head[i] = (uint8_t)length;
    if (send(fd, head, sizeof head, MSG_NOSIGNAL) != sizeof head)
        return 0;
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = send(fd, (const char *)text + done, n_bytes - done, MSG_NOSIGNAL);
        if (n <= 0)
            return 0;
        done += (size_t)n;
    }
    return 1;
}

static void peer_hear(int fd, uint8_t id, const char *text) {
    uint8_t head[13];
    char answer_text[64];
    read_all(fd, head, sizeof head);
    CHECK_EQ(head[0], 1);
    CHECK_EQ(head[8], strlen(text) + 4);
    CHECK_MSG(head[12] == id, "the answer is for request %d instead of %d", head[12], id);
    read_all(fd, answer_text, strlen(text));
    CHECK_MSG(memcmp(answer_text, text, strlen(text)) == 0, "%.*s", (int)strlen(text), answer_text);
}

static int is_closed(int fd) {
    char byte;
    ssize_t n;
    while ((n = recv(fd, &byte, 1, 0)) > 0)
        ; /* what came before */
    return n == 0 || errno == ECONNRESET || errno == EPIPE;
}

/* --- cases -------------------------------------------------------------------------------------
 */

static void test_answers_in_any_order(void) {
    uint32_t pipe_a, pipe_b;
    open_server();
    struct stat info;
    CHECK(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600);
    int a = peer_open(&pipe_a), b = peer_open(&pipe_b);
    CHECK(pipe_a != pipe_b);
    CHECK(peer_ask(a, 1, "one", 3));
    inbox_item one = next_of(INBOX_MESSAGE);
    CHECK(peer_ask(b, 1, "two", 3));
    inbox_item two = next_of(INBOX_MESSAGE);
    CHECK(peer_ask(a, 2, "three", 5));
    inbox_item three = next_of(INBOX_MESSAGE);
    CHECK(holds(&one, "one") && holds(&two, "two") && holds(&three, "three"));
    CHECK(one.ticket.pipe == pipe_a && two.ticket.pipe == pipe_b && three.ticket.pipe == pipe_a);
    answer(&three, "3");
    peer_hear(a, 2, "3");
    answer(&two, "2");
    peer_hear(b, 1, "2");
    answer(&one, "1");
    peer_hear(a, 1, "1");
    server_send(served, one.ticket, "again", 5); /* a second answer goes nowhere */
    CHECK(peer_ask(a, 3, "four", 4));
    inbox_item four = next_of(INBOX_MESSAGE);
    answer(&four, "4");
    peer_hear(a, 3, "4");
    close(a);
    close(b);
    close_server();
    CHECK(lstat(path, &info) != 0);
}

/* More than the inbox holds: what does not fit waits in the peer's socket, nothing is lost, and all
 * stays in order. */
static void test_order(void) {
    enum { BURST = 5 * MAX_MESSAGES };
    uint32_t pipe;
    char text[16];
    open_server();
    int fd = peer_open(&pipe);
    for (uint32_t i = 0; i < 20 * BURST; i++) {
        if (i % BURST == 0) {
            for (uint32_t j = i; j < i + BURST; j++) {
                snprintf(text, sizeof text, "%u", j);
                CHECK(peer_ask(fd, (uint8_t)j, text, strlen(text)));
            }
        }
        inbox_item item = next_of(INBOX_MESSAGE);
        snprintf(text, sizeof text, "%u", i);
        CHECK_MSG(holds(&item, text), "%.*s instead of %u", (int)item.n_bytes,
                  (const char *)item.bytes, i);
        answer(&item, "x");
        peer_hear(fd, (uint8_t)i, "x");
    }
    close(fd);
    close_server();
}

/* A peer that goes away with requests unanswered: their answers go nowhere, least of all to who
 * took their contexts. */
static void test_pipe_ends(void) {
    uint32_t pipe_a, pipe_b;
    open_server();
    int a = peer_open(&pipe_a), b = peer_open(&pipe_b);
    inbox_item old[4];
    for (uint8_t i = 0; i < 4; i++) {
        CHECK(peer_ask(a, i, "old", 3));
        old[i] = next_of(INBOX_MESSAGE);
    }
    close(a);
    CHECK_EQ(next_of(INBOX_PIPE_REMOVED).ticket.pipe, pipe_a);
    for (uint8_t i = 0; i < 4; i++) {
        CHECK(peer_ask(b, i, "new", 3));
        inbox_item item = next_of(INBOX_MESSAGE);
        CHECK(holds(&item, "new"));
        server_send(served, old[i].ticket, "for the old", 11);
        answer(&item, "for the new");
        peer_hear(b, i, "for the new");
        server_free_message(old[i].owner);
    }
    /* cut from this side */
    server_cut(served, pipe_b);
    CHECK(is_closed(b));
    CHECK_EQ(next_of(INBOX_PIPE_REMOVED).ticket.pipe, pipe_b);
    close(b);
    close_server();
}

static void ask_and_hear(int fd, uint8_t id) {
    CHECK(peer_ask(fd, id, "me", 2));
    inbox_item mine = next_of(INBOX_MESSAGE);
    CHECK(holds(&mine, "me"));
    answer(&mine, "you");
    peer_hear(fd, id, "you");
}

/* One peer asks more than there are contexts and is never answered: its oldest requests are given
 * up for its newer ones, and somebody else is answered at once all the while. Answers to what was
 * given up go nowhere, least of all to the request that took its context. */
static void test_held_for_ever(void) {
    enum { FLOOD = MAX_CONTEXTS + 200 };
    static inbox_item held[FLOOD];
    uint32_t pipe_a, pipe_b;
    open_server();
    int a = peer_open(&pipe_a), b = peer_open(&pipe_b);
    for (uint32_t n = 0; n < FLOOD; n++) {
        CHECK(peer_ask(a, (uint8_t)n, "hold", 4));
        held[n] = next_of(INBOX_MESSAGE);
        if (n % 100 == 0)
            ask_and_hear(b, (uint8_t)n);
    }
    ask_and_hear(b, 1);
    /* Given up: the first 200, and one for each context that b's requests and receiving take. */
    for (uint32_t n = 0; n < 200; n++)
        answer(&held[n], "too late");
    answer(&held[FLOOD - 1], "just now");
    peer_hear(a, (uint8_t)(FLOOD - 1), "just now");
    for (uint32_t n = 200; n < FLOOD - 1; n++)
        server_free_message(held[n].owner);
    close(a);
    CHECK_EQ(next_of(INBOX_PIPE_REMOVED).ticket.pipe, pipe_a);
    ask_and_hear(b, 2);
    close(b);
    CHECK_EQ(next_of(INBOX_PIPE_REMOVED).ticket.pipe, pipe_b);
    close_server();
}

/* A peer that does not read its replies is cut; the replies do not pile up. */
static void test_replies_not_read(void) {
    static char large[65536];
    uint32_t pipe_a, pipe_b, n = 0;
    open_server();
    int a = peer_open(&pipe_a), b = peer_open(&pipe_b);
    for (;; n++) {
        CHECK_MSG(n < 1000, "it is never cut");
        if (!peer_ask(a, 1, "x", 1))
            break;
        inbox_item item = next_item();
        if (item.kind == INBOX_PIPE_REMOVED)
            break;
        server_send(served, item.ticket, large, sizeof large);
        server_free_message(item.owner);
    }
    CHECK_MSG(n >= 64, "cut after %u replies", n);
    CHECK(is_closed(a));
    close(a);
    CHECK(peer_ask(b, 1, "me", 2));
    inbox_item mine = next_item();
    while (mine.kind != INBOX_MESSAGE)
        mine = next_item();
    answer(&mine, "you");
    peer_hear(b, 1, "you");
    close(b);
    close_server();
}

static uint32_t open_files(void) {
    uint32_t n = 0;
    DIR *entries = opendir("/proc/self/fd");
    CHECK(entries != NULL);
    while (readdir(entries))
        n++;
    closedir(entries);
    return n;
}

/* Another listener takes the path; who is connected stays so, and the old one goes with its last.
 */
static void test_listeners(void) {
    char why[512] = "";
    uint32_t pipe_a, pipe_b;
    open_server();
    server_close_idle_listeners(served); /* the one at the path is never idle */
    int a = peer_open(&pipe_a);
    uint32_t n_files = open_files();
    CHECK_MSG(server_listen(served, why, sizeof why) == KVT_OK, "%s", why);
    CHECK_EQ(server_listeners(served), 2);
    server_close_idle_listeners(served);
    CHECK_EQ(open_files(), n_files + 1);
    CHECK(peer_ask(a, 1, "a", 1));
    inbox_item item = next_of(INBOX_MESSAGE);
    answer(&item, "A");
    peer_hear(a, 1, "A");
    close(a);
    next_of(INBOX_PIPE_REMOVED);
    server_close_idle_listeners(served);
    while (open_files() != n_files - 2) /* listener, both ends of a: nng closes its two later */
        ;
    int b = peer_open(&pipe_b); /* closing the old listener did not take the path with it */
    CHECK(peer_ask(b, 1, "b", 1));
    item = next_of(INBOX_MESSAGE);
    answer(&item, "B");
    peer_hear(b, 1, "B");
    close(b);
    close_server();
}

int main(void) {
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/socket", dir);
    test_answers_in_any_order();
    test_order();
    test_pipe_ends();
    test_held_for_ever();
    test_replies_not_read();
    test_listeners();
    char lock[80];
    snprintf(lock, sizeof lock, "%s.lock", path);
    unlink(lock);
    CHECK_EQ(rmdir(dir), 0);
    return 0;
}
