#include "tests/fake_daemon.h"
#include "tests/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void lock(fake_daemon *f) {
    pthread_mutex_lock(&f->lock);
}

static void unlock(fake_daemon *f) {
    pthread_mutex_unlock(&f->lock);
}

/* --- the arena ----------------------------------------------------------------------------------
 */

static uint64_t *generation_of(fake_daemon *f, uint32_t i) {
    return (uint64_t *)(void *)(f->memory + 4096) + i;
}

uint8_t *fake_page_bytes(fake_daemon *f, uint32_t i) {
    return f->memory + FAKE_DATA_OFFSET + (size_t)i * FAKE_FRAME_BYTES;
}

static void arena_make(fake_daemon *f) {
    f->memory_bytes = FAKE_DATA_OFFSET + (size_t)FAKE_MAX_PAGES * FAKE_FRAME_BYTES;
    unlink(f->arena);
    int fd = open(f->arena, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)f->memory_bytes) == 0);
    f->memory = mmap(NULL, f->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(f->memory != MAP_FAILED);
    close(fd);
    kvt_arena_header header = {.magic = KVT_ARENA_MAGIC,
                               .version = 1,
                               .boot_id = f->wrong_boot ? f->wrong_boot : f->boot_id,
                               .generations_offset = 4096,
                               .max_frames = FAKE_MAX_PAGES,
                               .data_offset = FAKE_DATA_OFFSET,
                               .data_bytes = f->memory_bytes - FAKE_DATA_OFFSET,
                               .file_bytes = f->memory_bytes};
    memcpy(f->memory, &header, sizeof header);
    for (uint32_t i = 0; i < FAKE_MAX_PAGES; i++)
        *generation_of(f, i) = 1000 * f->boot_id + 1;
}

static void set_page(fake_daemon *f, uint32_t i, const void *bytes, size_t n_bytes, uint32_t rows,
                     uint32_t sealer) {
    CHECK(i < FAKE_MAX_PAGES && n_bytes <= FAKE_FRAME_BYTES);
    uint64_t generation = *generation_of(f, i) + 1;
    __atomic_store_n(generation_of(f, i), generation, __ATOMIC_SEQ_CST);
    memcpy(fake_page_bytes(f, i), bytes, n_bytes);
    f->pages[i] = (fake_page){.held = 1,
                              .bytes = (uint32_t)n_bytes,
                              .rows = rows,
                              .sealer = sealer,
                              .generation = generation};
}

void fake_hold_page(fake_daemon *f, uint32_t i, const void *bytes, size_t n_bytes, uint32_t rows) {
    lock(f);
    set_page(f, i, bytes, n_bytes, rows, 9999);
    unlock(f);
}

void fake_bump(fake_daemon *f, uint32_t i) {
    __atomic_fetch_add(generation_of(f, i), 1, __ATOMIC_SEQ_CST);
}

/* --- what it knows ------------------------------------------------------------------------------
 */

static uint32_t held_tokens(const fake_daemon *f, uint32_t n_tokens) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < FAKE_MAX_PAGES && f->pages[i].held; i++) {
        n = i * f->shape.page_tokens + f->pages[i].rows;
        if (f->pages[i].rows < f->shape.page_tokens)
            break;
    }
    return n < n_tokens ? n : n_tokens;
}

static int session_of(const fake_daemon *f, uint32_t pipe) {
    for (int i = 0; i < FAKE_MAX_SESSIONS; i++)
        if (f->sessions[i].alive && f->sessions[i].pipe == pipe)
            return i;
    return -1;
}

static fake_lease *lease_of(fake_daemon *f, int session, uint64_t id) {
    for (int i = 0; i < FAKE_MAX_LEASES; i++)
        if (f->leases[i].id == id && id && f->leases[i].session == session)
            return &f->leases[i];
    return NULL;
}

static void session_end(fake_daemon *f, int i) {
    fake_session *s = &f->sessions[i];
    if (s->alive && s->staging >= 0)
        close(s->staging);
    s->alive = 0;
    s->staging = -1;
    for (int k = 0; k < FAKE_MAX_LEASES; k++)
        if (f->leases[k].session == i)
            f->leases[k].id = 0;
}

static int number_is_fresh(fake_daemon *f, fake_session *s, uint64_t number) {
    if (number > s->newest) {
        uint64_t ahead = number - s->newest;
        s->seen = (ahead >= 64 ? 0 : s->seen << ahead) | 1;
        s->newest = number;
        return 1;
    }
    f->n_out_of_order++;
    uint64_t behind = s->newest - number;
    if (behind >= 64 || (s->seen >> behind & 1)) {
        f->n_duplicates++;
        return 0;
    }
    s->seen |= UINT64_C(1) << behind;
    return 1;
}

/* --- replies ------------------------------------------------------------------------------------
 */

typedef struct exchange {
    fake_daemon *f;
    kvt_wire_header header;
    const uint8_t *body;
    int session;
    uint32_t pipe;
    kvt_writer *w;
} exchange;

static kvt_status serve_hello(exchange *x) {
    fake_daemon *f = x->f;
    kvt_hello_req req;
    static const uint8_t none[KVT_WIRE_TOKEN_BYTES];
    CHECK_EQ(kvt_wire_get_hello_req(x->body, x->header.body_bytes, &req), KVT_OK);
    int at = -1, resumed = 0;
    if (x->session >= 0)
        return KVT_EEXIST;
    for (int i = 0; i < FAKE_MAX_SESSIONS && memcmp(req.token, none, sizeof none) != 0; i++)
        if (f->sessions[i].alive && !f->deny_resume &&
            memcmp(f->sessions[i].token, req.token, sizeof req.token) == 0) {
            at = i;
            resumed = 1;
        }
    for (int i = 0; i < FAKE_MAX_SESSIONS && at < 0; i++)
        if (!f->sessions[i].alive)
            at = i;
    CHECK(at >= 0);
    fake_session *s = &f->sessions[at];
    if (!resumed) {
        *s = (fake_session){.alive = 1, .staging = -1};
        uint64_t seed = f->boot_id * 1000 + (uint64_t)f->n_seen[KVT_OP_HELLO];
        for (size_t i = 0; i < sizeof s->token; i++)
            s->token[i] = (uint8_t)check_random(&seed);
    }
    f->n_resumed += resumed;
    s->pipe = x->pipe;
    kvt_hello_rep rep = {.session = (uint32_t)at + 1,
                         .resumed = (uint8_t)resumed,
                         .max_bytes = f->max_bytes ? f->max_bytes : KVT_WIRE_MAX_BYTES,
                         .max_tokens = KVT_MAX_REQUEST_TOKENS,
                         .page_tokens = 128,
                         .staging_dir = {f->staging_dir, (uint16_t)strlen(f->staging_dir)},
                         .tenant = {"fake", 4}};
    memcpy(rep.token, s->token, sizeof rep.token);
    kvt_wire_put_hello_rep(x->w, &rep);
    return KVT_OK;
}

static kvt_status serve_stage(exchange *x) {
    kvt_stage_req req;
    char path[512];
    struct stat info;
    fake_session *s = &x->f->sessions[x->session];
    CHECK_EQ(kvt_wire_get_stage_req(x->body, x->header.body_bytes, &req), KVT_OK);
    snprintf(path, sizeof path, "%s/%.*s", x->f->staging_dir, (int)req.name.n_bytes, req.name.at);
    int fd = open(path, O_RDONLY | O_NOFOLLOW);
    if (fd < 0)
        return KVT_ENOENT;
    CHECK(fstat(fd, &info) == 0 && (uint64_t)info.st_size == req.bytes);
    CHECK_EQ(info.st_mode & 0777 & ~(mode_t)0640, 0);
    if (s->staging >= 0 && s->staging != x->f->seal_fd)
        close(s->staging);
    s->staging = fd;
    s->staging_bytes = req.bytes;
    return KVT_OK;
}

static kvt_status serve_realm(exchange *x) {
    kvt_realm_req req;
    kvt_realm_names names;
    kvt_realm realm;
    CHECK_EQ(kvt_wire_get_realm_req(x->body, x->header.body_bytes, &req), KVT_OK);
    CHECK_EQ(kvt_wire_realm_decode(req.canonical, req.n_bytes, &names, &realm), KVT_OK);
    kvt_realm_rep rep = {.realm = ++x->f->realm,
                         .geometry_hash =
                             x->f->geometry_hash ? x->f->geometry_hash : x->f->shape.geometry_hash,
                         .page_bytes = 1,
                         .arena_path = {x->f->arena, (uint16_t)strlen(x->f->arena)}};
    kvt_wire_put_realm_rep(x->w, &rep);
    return KVT_OK;
}

static void put_pages(exchange *x, uint32_t first, uint32_t n) {
    fake_daemon *f = x->f;
    for (uint32_t i = first; i < first + n; i++) {
        kvt_wire_page page = {.offset = (uint64_t)i * FAKE_FRAME_BYTES,
                              .generation = f->pages[i].generation,
                              .frame = i,
                              .bytes = f->pages[i].bytes,
                              .sealer = f->pages[i].sealer,
                              .rows = (uint16_t)f->pages[i].rows};
        if (f->bad_page == 1)
            page.offset = f->memory_bytes - FAKE_DATA_OFFSET - 64;
        else if (f->bad_page == 2)
            page.frame = FAKE_MAX_PAGES;
        else if (f->bad_page == 3)
            page.rows = 1;
        else if (f->bad_page == 4)
            page.offset += 8;
        kvt_wire_put_page(x->w, &page);
    }
}

static uint32_t pages_from(const fake_daemon *f, uint32_t held, uint32_t first) {
    uint32_t n = (held + f->shape.page_tokens - 1) / f->shape.page_tokens;
    return n > first ? n - first : 0;
}

static void put_lease(exchange *x, const fake_lease *l, uint32_t first_page) {
    uint32_t held = held_tokens(x->f, l->n_tokens);
    kvt_lease_rep rep = {
        .lease = l->id,
        .n_tokens = l->n_tokens,
        .held_tokens = held,
        .computing_tokens = x->f->computing ? l->n_tokens - held : 0,
        .claimed_tokens = l->claim ? l->n_tokens : 0,
        .n_lists = 1,
        .lists[0] = {.first_page = first_page, .n_pages = pages_from(x->f, held, first_page)}};
    if (x->f->n_view_runs) {
        rep.computing_tokens = 0;
        rep.n_runs = (uint32_t)x->f->n_view_runs;
        rep.runs = (const uint8_t *)x->f->view_runs;
        rep.lists[0] = (kvt_page_list){.n_pages = (uint32_t)x->f->n_view_pages};
        kvt_wire_put_lease_rep(x->w, &rep);
        for (int i = 0; i < x->f->n_view_pages; i++)
            put_pages(x, x->f->view_pages[i], 1);
        return;
    }
    kvt_wire_put_lease_rep(x->w, &rep);
    put_pages(x, first_page, rep.lists[0].n_pages);
}

static fake_lease *lease_new(exchange *x, uint32_t n_tokens) {
    fake_lease *l = x->f->leases;
    while (l->id)
        CHECK(++l < x->f->leases + FAKE_MAX_LEASES);
    *l = (fake_lease){.id = ++x->f->next_lease,
                      .session = x->session,
                      .number = x->header.number,
                      .n_tokens = n_tokens};
    return l;
}

static void note_asked(fake_daemon *f, const kvt_acquire_req *req) {
    f->asked = *req;
    f->asked_sum = 0;
    for (uint32_t i = 0; i < req->n_tokens; i++)
        f->asked_sum += kvt_wire_get_u32(req->tokens, i);
    for (uint32_t i = 0; i < req->n_spans; i++) {
        kvt_wire_span span;
        kvt_wire_get_span(req->spans, i, &span);
        f->asked_sum += span.first_token;
    }
}

static kvt_status serve_acquire(exchange *x) {
    kvt_acquire_req req;
    CHECK_EQ(kvt_wire_get_acquire_req(x->body, x->header.body_bytes, &req), KVT_OK);
    note_asked(x->f, &req);
    fake_lease *l = req.base ? lease_of(x->f, x->session, req.base) : NULL;
    if ((req.base && !l) || (!req.base && req.realm != x->f->realm))
        return KVT_ENOENT;
    if (!l)
        l = lease_new(x, 0);
    l->n_tokens = req.keep_tokens + req.n_tokens;
    l->claim = (req.flags & KVT_ACQUIRE_CLAIM) != 0;
    put_lease(x, l, req.first_page);
    return KVT_OK;
}

static kvt_status serve_fork(exchange *x) {
    kvt_fork_req req;
    CHECK_EQ(kvt_wire_get_fork_req(x->body, x->header.body_bytes, &req), KVT_OK);
    if (!lease_of(x->f, x->session, req.lease))
        return KVT_ENOENT;
    put_lease(x, lease_new(x, req.n_tokens), 0);
    return KVT_OK;
}

static kvt_status serve_importance(exchange *x) {
    kvt_importance_req req;
    CHECK_EQ(kvt_wire_get_importance_req(x->body, x->header.body_bytes, &req), KVT_OK);
    if (!lease_of(x->f, x->session, req.lease))
        return KVT_ENOENT;
    x->f->importance[0] = req.first_row;
    x->f->importance[1] = req.n_rows;
    x->f->importance[2] = 0;
    for (uint32_t i = 0; i < req.n_rows; i++)
        x->f->importance[2] += kvt_wire_get_u16(req.importance, i);
    kvt_importance_rep rep = {.n_rows = req.n_rows};
    kvt_wire_put_importance_rep(x->w, &rep);
    return KVT_OK;
}

static kvt_status serve_suspect(exchange *x) {
    kvt_suspect_req req;
    CHECK_EQ(kvt_wire_get_suspect_req(x->body, x->header.body_bytes, &req), KVT_OK);
    CHECK_EQ(req.group, 0);
    x->f->n_suspects++;
    x->f->suspect = req.page;
    if (!lease_of(x->f, x->session, req.lease))
        return KVT_ENOENT;
    kvt_suspect_rep rep = {.forgotten = 1};
    kvt_wire_put_suspect_rep(x->w, &rep);
    return KVT_OK;
}

static kvt_status serve_wait(exchange *x) {
    kvt_wait_req req;
    CHECK_EQ(kvt_wire_get_wait_req(x->body, x->header.body_bytes, &req), KVT_OK);
    fake_lease *l = lease_of(x->f, x->session, req.lease);
    if (!l)
        return KVT_ENOENT;
    put_lease(x, l, req.first_page);
    return KVT_OK;
}

static kvt_status seal_page(exchange *x, const fake_lease *l, const kvt_seal_page *page) {
    fake_daemon *f = x->f;
    const fake_session *s = &f->sessions[x->session];
    uint8_t bytes[FAKE_FRAME_BYTES];
    uint32_t rows, left = l->n_tokens - page->page * f->shape.page_tokens;
    if (f->unsealed)
        return KVT_EORDER;
    if (f->pages[page->page].held && f->pages[page->page].rows == f->shape.page_tokens)
        return KVT_OK;
    CHECK(page->bytes <= sizeof bytes && page->offset + page->bytes <= s->staging_bytes);
    if (pread(s->staging, bytes, page->bytes, (off_t)page->offset) != (ssize_t)page->bytes)
        return KVT_EIO;
    kvt_status status = kvt_page_check(&f->shape, bytes, page->bytes, 1, &rows);
    if (status != KVT_OK)
        return status;
    CHECK_EQ(rows, left < f->shape.page_tokens ? left : f->shape.page_tokens);
    set_page(f, page->page, bytes, page->bytes, rows, (uint32_t)x->session + 1);
    return KVT_OK;
}

static kvt_status serve_seal(exchange *x) {
    kvt_seal_req req;
    kvt_seal_page page;
    CHECK_EQ(kvt_wire_get_seal_req(x->body, x->header.body_bytes, &req), KVT_OK);
    fake_lease *l = lease_of(x->f, x->session, req.lease);
    if (!l)
        return KVT_ENOENT;
    if (!l->claim || x->f->sessions[x->session].staging < 0)
        return KVT_EINVAL;
    kvt_wire_get_seal_page(req.pages, 0, &x->f->seal_page);
    x->f->seal_fd = x->f->sessions[x->session].staging;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < req.n_pages && status == KVT_OK; i++) {
        kvt_wire_get_seal_page(req.pages, i, &page);
        status = seal_page(x, l, &page);
    }
    uint32_t held = held_tokens(x->f, l->n_tokens), first = x->f->seal_page.page;
    kvt_seal_rep rep = {
        .page_status = (uint32_t)status,
        .held_tokens = held,
        .n_lists = 1,
        .lists[0] = {.first_page = first, .n_pages = pages_from(x->f, held, first)}};
    kvt_wire_put_seal_rep(x->w, &rep);
    put_pages(x, first, rep.lists[0].n_pages);
    return KVT_OK;
}

static kvt_status serve_release(exchange *x) {
    kvt_release_req req;
    CHECK_EQ(kvt_wire_get_release_req(x->body, x->header.body_bytes, &req), KVT_OK);
    kvt_wire_put_u32(x->w, req.n_leases);
    for (uint32_t i = 0; i < req.n_leases; i++) {
        fake_lease *l = lease_of(x->f, x->session, kvt_wire_get_u64(req.leases, i));
        if (l)
            l->id = 0;
        kvt_wire_put_u32(x->w, l ? KVT_OK : KVT_ENOENT);
    }
    return KVT_OK;
}

static kvt_status serve_cancel(exchange *x) {
    kvt_cancel_req req;
    CHECK_EQ(kvt_wire_get_cancel_req(x->body, x->header.body_bytes, &req), KVT_OK);
    x->f->cancelled = req.number;
    for (int i = 0; i < FAKE_MAX_LEASES; i++)
        if (x->f->leases[i].session == x->session && x->f->leases[i].number == req.number)
            x->f->leases[i].id = 0;
    return KVT_OK;
}

static kvt_status serve(exchange *x) {
    switch (x->header.op) {
    case KVT_OP_HELLO:
        return serve_hello(x);
    case KVT_OP_STAGE:
        return serve_stage(x);
    case KVT_OP_REALM:
        return serve_realm(x);
    case KVT_OP_ACQUIRE:
        return serve_acquire(x);
    case KVT_OP_FORK:
        return serve_fork(x);
    case KVT_OP_WAIT:
        return serve_wait(x);
    case KVT_OP_SEAL:
        return serve_seal(x);
    case KVT_OP_IMPORTANCE:
        return serve_importance(x);
    case KVT_OP_SUSPECT:
        return serve_suspect(x);
    case KVT_OP_RELEASE:
        return serve_release(x);
    case KVT_OP_CANCEL:
        return serve_cancel(x);
    case KVT_OP_STATUS:
    case KVT_OP_TREE:
        kvt_wire_put_text_rep(x->w, "{\"fake\":1}", 10);
        return KVT_OK;
    case KVT_OP_GOODBYE:
        session_end(x->f, x->session);
        return KVT_OK;
    default:
        CHECK(0);
    }
}

/* --- the way of a message -----------------------------------------------------------------------
 */

static fake_trick take_trick(fake_daemon *f, uint16_t op) {
    if (f->tricks_left[op] == 0)
        return FAKE_SERVE;
    f->tricks_left[op]--;
    return f->trick[op];
}

static kvt_status check_session(exchange *x) {
    if (x->header.op == KVT_OP_HELLO)
        return KVT_OK;
    if (x->session < 0)
        return KVT_ESESSION;
    if (x->header.boot_id != x->f->boot_id)
        return KVT_ESTALE;
    return number_is_fresh(x->f, &x->f->sessions[x->session], x->header.number) ? KVT_OK
                                                                                : KVT_EDUPLICATE;
}

/* Writes the reply at out; its size. */
static size_t make_reply(exchange *x, fake_trick trick, uint8_t *out) {
    kvt_writer w;
    kvt_wire_start(&w, out, KVT_WIRE_MAX_BYTES);
    x->w = &w;
    kvt_status status = check_session(x);
    if (status == KVT_OK && trick == FAKE_REFUSE)
        status = x->f->refuse_with[x->header.op];
    else if (status == KVT_OK && trick != FAKE_LOSE_REQUEST && trick != FAKE_CUT_BEFORE)
        status = serve(x);
    if (status != KVT_OK) {
        kvt_wire_start(&w, out, KVT_WIRE_MAX_BYTES);
        kvt_wire_put_str(&w, "the fake says no");
    } else if (trick == FAKE_GARBLE) {
        if (w.n_bytes > KVT_WIRE_HEADER_BYTES)
            w.n_bytes--;
        else
            kvt_wire_put_u8(&w, 0);
    }
    kvt_wire_header header = {.kind = KVT_WIRE_REPLY,
                              .op = x->header.op,
                              .status = (uint32_t)status,
                              .number = x->header.number,
                              .boot_id = x->f->boot_id};
    size_t n = kvt_wire_finish(&w, header);
    CHECK(n > 0);
    if (x->f->version)
        out[4] = (uint8_t)x->f->version;
    return n;
}

/* --- nng's wire format: a greeting of 8 bytes, then 0x01, u64 length (big-endian), 4 bytes of
 * request id, message ----------------------------------------------------------------------------
 */

enum { GREETING_BYTES = 8, FRAME_BYTES = 9, ID_BYTES = 4 };
static const uint8_t greeting_req[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t greeting_rep[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

static void connection_close(fake_daemon *f, fake_connection *k) {
    if (k->fd < 0)
        return;
    close(k->fd);
    free(k->bytes);
    for (int i = 0; i < FAKE_MAX_SESSIONS; i++)
        if (f->sessions[i].pipe == k->pipe)
            f->sessions[i].pipe = 0;
    *k = (fake_connection){.fd = -1};
    pthread_cond_broadcast(&f->changed);
}

static fake_connection *connection_of(fake_daemon *f, uint32_t pipe) {
    for (int i = 0; i < FAKE_MAX_CONNECTIONS; i++)
        if (f->connections[i].fd >= 0 && f->connections[i].pipe == pipe)
            return &f->connections[i];
    return NULL;
}

/* All of it, or not: the other side may have gone. */
static void write_all(int fd, const void *bytes, size_t n) {
    const char *at = bytes;
    for (ssize_t done; n > 0; at += done, n -= (size_t)done)
        if ((done = send(fd, at, n, MSG_NOSIGNAL)) <= 0)
            return;
}

static void send_frame(fake_daemon *f, uint32_t pipe, const uint8_t *id, const uint8_t *bytes,
                       size_t n_bytes, fake_trick trick) {
    fake_connection *k = connection_of(f, pipe);
    uint8_t head[FRAME_BYTES + ID_BYTES] = {1};
    uint64_t n = trick == FAKE_HUGE ? UINT64_C(1) << 60 : n_bytes + ID_BYTES;
    if (!k)
        return;
    for (int i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)(n >> (56 - 8 * i));
    memcpy(head + FRAME_BYTES, id, ID_BYTES);
    write_all(k->fd, head, sizeof head);
    write_all(k->fd, bytes, trick == FAKE_CUT_WITHIN ? n_bytes / 2 : n_bytes);
    if (trick == FAKE_CUT_WITHIN)
        connection_close(f, k);
}

static void hold(fake_daemon *f, uint32_t pipe, const uint8_t *id, const uint8_t *bytes,
                 size_t n_bytes) {
    CHECK(f->n_held < FAKE_MAX_HELD);
    fake_held *h = &f->held[f->n_held++];
    *h = (fake_held){.pipe = pipe, .n_bytes = n_bytes, .bytes = malloc(n_bytes)};
    CHECK(h->bytes);
    memcpy(h->id, id, sizeof h->id);
    memcpy(h->bytes, bytes, n_bytes);
}

static void happen(fake_daemon *f, fake_connection *k, const uint8_t *id, const uint8_t *bytes,
                   size_t n_bytes) {
    static uint8_t out[KVT_WIRE_MAX_BYTES];
    exchange x = {.f = f, .pipe = k->pipe};
    CHECK_EQ(kvt_wire_open(bytes, n_bytes, &x.header, &x.body), KVT_OK);
    CHECK_EQ(x.header.kind, KVT_WIRE_REQUEST);
    uint16_t op = x.header.op;
    x.session = session_of(f, x.pipe);
    f->n_seen[op]++;
    f->last_number[op] = x.header.number;
    if (f->n_order < sizeof f->order / sizeof *f->order)
        f->order[f->n_order++] = op;
    fake_trick trick = x.session < 0 && op != KVT_OP_HELLO ? FAKE_SERVE : take_trick(f, op);
    size_t n = make_reply(&x, trick, out);
    if (trick == FAKE_HOLD)
        hold(f, x.pipe, id, out, n);
    else if (trick == FAKE_CUT_BEFORE || trick == FAKE_CUT_AFTER)
        connection_close(f, k);
    else if (trick != FAKE_LOSE_REQUEST && trick != FAKE_LOSE_REPLY)
        send_frame(f, x.pipe, id, out, n, trick);
    pthread_cond_broadcast(&f->changed);
}

/* What has come so far, message by message. The connection may be gone afterwards. */
static void digest(fake_daemon *f, fake_connection *k) {
    size_t at = 0;
    if (!k->greeted && k->n_bytes >= GREETING_BYTES) {
        CHECK(memcmp(k->bytes, greeting_req, GREETING_BYTES) == 0);
        k->greeted = 1;
        at = GREETING_BYTES;
        f->n_connections++;
        pthread_cond_broadcast(&f->changed);
    }
    while (k->greeted && k->n_bytes - at >= FRAME_BYTES) {
        uint64_t n = 0;
        for (size_t i = 0; i < 8; i++)
            n = n << 8 | k->bytes[at + 1 + i];
        CHECK(k->bytes[at] == 1 && n >= ID_BYTES && n <= KVT_WIRE_MAX_BYTES + ID_BYTES);
        if (k->n_bytes - at - FRAME_BYTES < n)
            break;
        uint8_t *copy = malloc(n);
        CHECK(copy);
        memcpy(copy, k->bytes + at + FRAME_BYTES, n);
        at += FRAME_BYTES + n;
        happen(f, k, copy, copy + ID_BYTES, n - ID_BYTES);
        free(copy);
        if (k->fd < 0)
            return;
    }
    k->n_bytes -= at;
    memmove(k->bytes, k->bytes + at, k->n_bytes);
}

static void read_some(fake_daemon *f, fake_connection *k) {
    if (k->room - k->n_bytes < 65536) {
        k->room = 2 * k->room + 65536;
        k->bytes = realloc(k->bytes, k->room);
        CHECK(k->bytes);
    }
    ssize_t n = recv(k->fd, k->bytes + k->n_bytes, k->room - k->n_bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        connection_close(f, k);
        return;
    }
    k->n_bytes += (size_t)n;
    digest(f, k);
}

static void take_connection(fake_daemon *f) {
    int fd = accept(f->listener, NULL, NULL), i = 0;
    if (fd < 0)
        return;
    while (f->connections[i].fd >= 0)
        CHECK(++i < FAKE_MAX_CONNECTIONS);
    f->connections[i] = (fake_connection){.fd = fd, .pipe = ++f->next_pipe};
    write_all(fd, greeting_rep, GREETING_BYTES);
}

/* Does what has come in; 0: it is to stop. */
static int serve_ready(fake_daemon *f, const struct pollfd *polls, const int *places, nfds_t n) {
    char byte;
    if (polls[0].revents && read(f->wake[0], &byte, 1) == 1 && f->stopping)
        return 0;
    if (polls[1].revents)
        take_connection(f);
    for (nfds_t i = 2; i < n; i++) {
        fake_connection *k = &f->connections[places[i]];
        if (polls[i].revents && k->fd == polls[i].fd)
            read_some(f, k);
    }
    return 1;
}

static void *serve_all(void *argument) {
    fake_daemon *f = argument;
    for (int go = 1; go;) {
        struct pollfd polls[FAKE_MAX_CONNECTIONS + 2];
        int places[FAKE_MAX_CONNECTIONS + 2];
        nfds_t n = 2;
        lock(f);
        polls[0] = (struct pollfd){.fd = f->wake[0], .events = POLLIN};
        polls[1] = (struct pollfd){.fd = f->deaf ? -1 : f->listener, .events = POLLIN};
        for (int i = 0; i < FAKE_MAX_CONNECTIONS; i++)
            if (f->connections[i].fd >= 0) {
                places[n] = i;
                polls[n++] = (struct pollfd){.fd = f->connections[i].fd, .events = POLLIN};
            }
        unlock(f);
        CHECK(poll(polls, n, -1) >= 0);
        lock(f);
        if (f->deaf) /* since poll began */
            polls[1].revents = 0;
        go = serve_ready(f, polls, places, n);
        unlock(f);
    }
    return NULL;
}

static void wake(fake_daemon *f) {
    CHECK(write(f->wake[1], "w", 1) == 1);
}

/* --- starting, stopping -------------------------------------------------------------------------
 */

void fake_init(fake_daemon *f, const kvt_geometry *geometry) {
    memset(f, 0, sizeof *f);
    snprintf(f->folder, sizeof f->folder, "/tmp/kvtrunk-fake-XXXXXX");
    CHECK(mkdtemp(f->folder));
    snprintf(f->socket, sizeof f->socket, "%s/socket", f->folder);
    snprintf(f->arena, sizeof f->arena, "%s/arena", f->folder);
    snprintf(f->staging_dir, sizeof f->staging_dir, "%s/staging", f->folder);
    CHECK(mkdir(f->staging_dir, 0700) == 0);
    CHECK_EQ(kvt_page_shape_init(geometry, 0, NULL, NULL, 0, &f->shape), KVT_OK);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->seal_fd = f->listener = -1;
    for (int i = 0; i < FAKE_MAX_CONNECTIONS; i++)
        f->connections[i].fd = -1;
    for (int i = 0; i < FAKE_MAX_SESSIONS; i++)
        f->sessions[i].staging = -1;
}

void fake_start(fake_daemon *f) {
    f->boot_id = 7000 + (uint64_t)++f->boots;
    f->realm = (uint32_t)f->boots * 10;
    memset(f->pages, 0, sizeof f->pages);
    arena_make(f);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", f->socket);
    unlink(f->socket);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(f->listener >= 0 && pipe(f->wake) == 0);
    CHECK(bind(f->listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(f->listener, 64) == 0);
    f->stopping = 0;
    CHECK(pthread_create(&f->thread, NULL, serve_all, f) == 0);
}

void fake_stop(fake_daemon *f) {
    if (f->listener < 0)
        return;
    lock(f);
    f->stopping = 1;
    wake(f);
    unlock(f);
    pthread_join(f->thread, NULL);
    close(f->listener);
    close(f->wake[0]);
    close(f->wake[1]);
    f->listener = -1;
    for (int i = 0; i < FAKE_MAX_CONNECTIONS; i++)
        connection_close(f, &f->connections[i]);
    for (int i = 0; i < FAKE_MAX_SESSIONS; i++)
        session_end(f, i);
    while (f->n_held)
        free(f->held[--f->n_held].bytes);
    munmap(f->memory, f->memory_bytes);
    f->memory = NULL;
    unlink(f->socket);
}

void fake_close(fake_daemon *f) {
    fake_stop(f);
    unlink(f->arena);
    CHECK_EQ(fake_files(f), 0);
    CHECK(rmdir(f->staging_dir) == 0 && rmdir(f->folder) == 0);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
}

/* --- tricks -------------------------------------------------------------------------------------
 */

void fake_do(fake_daemon *f, kvt_op op, fake_trick trick, int times) {
    lock(f);
    f->trick[op] = trick;
    f->tricks_left[op] = times;
    unlock(f);
}

void fake_refuse(fake_daemon *f, kvt_op op, kvt_status status, int times) {
    lock(f);
    f->trick[op] = FAKE_REFUSE;
    f->refuse_with[op] = status;
    f->tricks_left[op] = times;
    unlock(f);
}

void fake_deafen(fake_daemon *f, int deaf) {
    lock(f);
    f->deaf = deaf;
    wake(f);
    unlock(f);
}

void fake_let_go(fake_daemon *f) {
    lock(f);
    while (f->n_held) {
        fake_held *h = &f->held[--f->n_held];
        send_frame(f, h->pipe, h->id, h->bytes, h->n_bytes, FAKE_SERVE);
        free(h->bytes);
    }
    unlock(f);
}

void fake_cut_all(fake_daemon *f) {
    lock(f);
    for (int i = 0; i < FAKE_MAX_CONNECTIONS; i++)
        connection_close(f, &f->connections[i]);
    wake(f);
    unlock(f);
}

void fake_end_sessions(fake_daemon *f) {
    lock(f);
    for (int i = 0; i < FAKE_MAX_SESSIONS; i++)
        session_end(f, i);
    unlock(f);
}

void fake_wait_seen(fake_daemon *f, kvt_op op, int n) {
    lock(f);
    while (f->n_seen[op] < n)
        pthread_cond_wait(&f->changed, &f->lock);
    unlock(f);
}

int fake_seen(fake_daemon *f, kvt_op op) {
    lock(f);
    int n = f->n_seen[op];
    unlock(f);
    return n;
}

int fake_leases(fake_daemon *f) {
    int n = 0;
    lock(f);
    for (int i = 0; i < FAKE_MAX_LEASES; i++)
        n += f->leases[i].id != 0;
    unlock(f);
    return n;
}

int fake_files(fake_daemon *f) {
    DIR *folder = opendir(f->staging_dir);
    CHECK(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(folder));)
        n += e->d_name[0] != '.';
    closedir(folder);
    return n;
}
