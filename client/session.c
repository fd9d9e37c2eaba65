/*
 * session.c - coming to a session, coming back to it, and setting up what belongs to one.
 *
 *     HELLO -> resumed: as it was
 *           -> new: next epoch -> REALM -> map the rank's arena -> STAGE
 *
 * All of it is done by one thread at a time, the holder of the gate, and step by step: what has
 * been reached stays reached, so the next call goes on from there if one step fails.
 */
#include "client/client.h"
#include "kernels/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_ROUNDS = 4, /* a daemon that denies each session right after giving it is not served */
    STAGE_AGAIN_MS = 2,
    LEAVE_EVERY_MS = 5, /* looks whether the daemon ended with its connection, */
    LEAVE_TRIES = 200,  /* so often */
};

static kvt_session session_now(kvt_client *c) {
    pthread_mutex_lock(&c->lock);
    kvt_session s = c->session;
    pthread_mutex_unlock(&c->lock);
    return s;
}

/* --- hello --------------------------------------------------------------------------------------
 */

static void put_hello(kvt_writer *w, const kvt_session *s, const void *context) {
    const kvt_client *c = context;
    kvt_hello_req req = {.pid = (uint32_t)getpid(),
                         .name = {c->name, (uint16_t)strnlen(c->name, KVT_WIRE_MAX_PATH)}};
    memcpy(req.token, s->token, sizeof req.token);
    kvt_wire_put_hello_req(w, &req);
}

static void copy_path(char *to, const kvt_wire_str *from) {
    memcpy(to, from->at, from->n_bytes);
    to[from->n_bytes] = 0;
}

/* With the lock held. */
static void begin_epoch(kvt_client *c, const kvt_hello_rep *rep, uint64_t boot_id) {
    kvt_session *s = &c->session;
    s->epoch++;
    s->number = rep->session;
    s->realm = 0;
    s->staged = 0;
    memcpy(s->token, rep->token, sizeof s->token);
    copy_path(c->staging_dir, &rep->staging_dir);
    if (c->arena && c->arena->boot_id != boot_id) {
        c->arena->refs--; /* unmapped with the last lease, or by map_arena */
        c->arena = NULL;
    }
    __atomic_store_n(&s->boot_id, boot_id, __ATOMIC_RELAXED);
}

static kvt_status say_hello(kvt_client *c, uint64_t deadline_ms) {
    kvt_session asked = session_now(c);
    kvt_request request = {.op = KVT_OP_HELLO,
                           .body_bytes = KVT_WIRE_TOKEN_BYTES + 4 + 2 + KVT_WIRE_MAX_PATH,
                           .put = put_hello,
                           .context = c};
    kvt_reply reply;
    kvt_hello_rep rep;
    asked.boot_id = 0;
    asked.max_bytes = KVT_WIRE_MAX_BYTES;
    kvt_status status = kvt_client_exchange(c, &asked, &request, deadline_ms, &reply);
    /* Without an answer this connection may have a session that we do not know, and KVT_EEXIST says
     * that it has one: cut it, the next one has none. */
    if (reply.unanswered || status == KVT_EEXIST)
        kvt_transport_reset(c->transport);
    if (status != KVT_OK)
        return status == KVT_EEXIST ? kvt_error_plain(KVT_ESESSION) : status;
    uint64_t boot_id = reply.session.boot_id;
    if (kvt_wire_get_hello_rep(reply.body, reply.n_body, &rep) != KVT_OK || boot_id == 0 ||
        (!c->reports_only && rep.staging_dir.n_bytes == 0)) {
        status = kvt_client_nonsense(c, "its answer to HELLO");
    } else {
        pthread_mutex_lock(&c->lock);
        if (!rep.resumed || c->session.epoch == 0 || boot_id != c->session.boot_id)
            begin_epoch(c, &rep, boot_id);
        c->session.max_bytes = rep.max_bytes;
        c->session.n_gpus = rep.n_gpus;
        c->session.connection++;
        c->session.up = 1;
        pthread_mutex_unlock(&c->lock);
    }
    kvt_reply_free(&reply);
    return status;
}

/* --- what belongs to a session ------------------------------------------------------------------
 */

void kvt_arenas_sweep(kvt_client *c) {
    for (kvt_arena **at = &c->arenas; *at;) {
        kvt_arena *arena = *at;
        if (arena->refs == 0) {
            *at = arena->next;
            kvt_arena_unmap(arena);
        } else {
            at = &arena->next;
        }
    }
}

static kvt_status map_arena(kvt_client *c) {
    kvt_arena *arena;
    kvt_status status = kvt_arena_map(c->arena_path, session_now(c).boot_id, &arena);
    if (status != KVT_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    arena->refs = 1;
    arena->next = c->arenas;
    c->arenas = arena;
    c->arena = arena;
    kvt_arenas_sweep(c);
    pthread_mutex_unlock(&c->lock);
    return KVT_OK;
}

/*
 * Where this process's GPU is, if the daemon has to know: of the one that was named, or of the one
 * that is current. That is a thing of a thread, so it is asked for once, in the first that comes
 * here, which is the one that called kvt_open. A process without CUDA does not say.
 */
static kvt_status find_gpu(kvt_client *c) {
    char why[256] = "", place[KVT_WIRE_MAX_GPU + 1];
    const void *table = NULL;
    if (c->gpu_place[0] || session_now(c).n_gpus == 0 || (!c->gpu && session_now(c).n_gpus == 1))
        return KVT_OK;
    int is_number = c->gpu && strspn(c->gpu, "0123456789") == strlen(c->gpu);
    if (c->gpu && !is_number) {
        snprintf(c->gpu_place, sizeof c->gpu_place, "%s", c->gpu);
        return KVT_OK;
    }
    kvt_status status = kvt_module_table("kvt_cuda_map_calls", why, sizeof why, &table);
    if (status == KVT_OK)
        status = ((const kvt_cuda_map_table *)table)->place(c->gpu, why, sizeof why, place);
    if (status == KVT_OK)
        memcpy(c->gpu_place, place, sizeof place);
    else if (c->gpu)
        return kvt_error(status, "options.gpu is \"%s\": %s", c->gpu, why);
    return KVT_OK;
}

static void put_realm(kvt_writer *w, const kvt_session *s, const void *context) {
    const kvt_client *c = context;
    kvt_realm_req req = {
        .rank = c->geometry.rank, .canonical = c->canonical, .n_bytes = (uint32_t)c->n_canonical};
    if (s->n_gpus > 0 && c->gpu_place[0]) {
        req.gpu_named = c->gpu != NULL;
        req.gpu = (kvt_wire_str){c->gpu_place, (uint16_t)strlen(c->gpu_place)};
    }
    kvt_wire_put_realm_req(w, &req);
}

/* With the lock held. A new session of a daemon with several arenas may have another one. */
static void take_arena_path(kvt_client *c, const kvt_wire_str *path) {
    char before[sizeof c->arena_path];
    memcpy(before, c->arena_path, sizeof before);
    copy_path(c->arena_path, path);
    if (c->arena && c->session.n_gpus > 1 && strcmp(before, c->arena_path) != 0) {
        c->arena->refs--;
        c->arena = NULL;
    }
}

static uint64_t geometry_hash(const kvt_client *c) {
    uint64_t hashes[KVT_MAX_GROUPS];
    for (uint32_t group = 0; group < c->geometry.n_groups; group++)
        hashes[group] = c->shapes[group].geometry_hash;
    return kvt_wire_geometry_hash(c->geometry.n_groups, hashes);
}

static kvt_status register_realm(kvt_client *c, uint64_t deadline_ms) {
    kvt_request request = {.op = KVT_OP_REALM,
                           .body_bytes = 8 + 3 + KVT_WIRE_MAX_GPU + c->n_canonical,
                           .put = put_realm,
                           .context = c};
    kvt_session s = session_now(c);
    kvt_reply reply;
    kvt_realm_rep rep;
    kvt_status status = find_gpu(c);
    if (status == KVT_OK)
        status = kvt_client_exchange(c, &s, &request, deadline_ms, &reply);
    if (status != KVT_OK)
        return status;
    if (kvt_wire_get_realm_rep(reply.body, reply.n_body, &rep) != KVT_OK || rep.realm == 0 ||
        rep.arena_path.n_bytes == 0) {
        status = kvt_client_nonsense(c, "its answer to REALM");
    } else if (rep.geometry_hash != geometry_hash(c)) {
        status =
            kvt_error(KVT_EGEOMETRY,
                      "the daemon makes other pages of this geometry: hash "
                      "%016llx, here %016llx. Update one side",
                      (unsigned long long)rep.geometry_hash, (unsigned long long)geometry_hash(c));
    } else {
        pthread_mutex_lock(&c->lock);
        c->session.realm = rep.realm;
        take_arena_path(c, &rep.arena_path);
        pthread_mutex_unlock(&c->lock);
    }
    kvt_reply_free(&reply);
    return status;
}

static void put_stage(kvt_writer *w, const kvt_session *s, const void *context) {
    (void)s;
    kvt_wire_put_stage_req(w, context);
}

/* Tells the daemon of the current staging file. While it still closes the one before it says
 * KVT_EBUSY, for no longer than a copy takes. */
static kvt_status stage(kvt_client *c, uint64_t deadline_ms) {
    char name[KVT_WIRE_MAX_PATH + 1];
    kvt_stage_req req;
    kvt_session s = session_now(c);
    kvt_status status = kvt_staging_announce(c, s.epoch, name, &req.bytes);
    if (status != KVT_OK)
        return status;
    req.name = (kvt_wire_str){name, (uint16_t)strlen(name)};
    kvt_request request = {
        .op = KVT_OP_STAGE, .body_bytes = 8 + 2 + strlen(name), .put = put_stage, .context = &req};
    do {
        kvt_reply reply;
        status = kvt_client_exchange(c, &s, &request, deadline_ms, &reply);
        if (status == KVT_OK) {
            kvt_staging_known(c, name);
            kvt_reply_free(&reply);
        }
    } while (status == KVT_EBUSY &&
             (status = kvt_client_pause(c, STAGE_AGAIN_MS, deadline_ms)) == KVT_OK);
    if (status == KVT_ENOENT) /* to callers that would be a lease or a realm */
        status = kvt_error(KVT_EIO, "the daemon does not find the staging file %s", name);
    return status;
}

/* --- the gate -----------------------------------------------------------------------------------
 */

/* One try, step by step from where it stands. With the gate held, so nobody else sets anything up;
 * but the connection may break and be made anew at any time. */
static kvt_status try_up(kvt_client *c, int needs, uint64_t deadline_ms) {
    kvt_status status = session_now(c).up ? KVT_OK : say_hello(c, deadline_ms);
    if (status == KVT_OK && !c->reports_only && session_now(c).realm == 0)
        status = register_realm(c, deadline_ms);
    if (status == KVT_OK && !c->reports_only && !c->arena)
        status = map_arena(c);
    if (status == KVT_OK && (needs & KVT_UP_STAGED) && !session_now(c).staged)
        status = stage(c, deadline_ms);
    return status;
}

static kvt_status bring_up(kvt_client *c, int needs, uint64_t deadline_ms) {
    kvt_status status = KVT_ESESSION;
    for (int round = 0; round < MAX_ROUNDS && status == KVT_ESESSION; round++) {
        status = try_up(c, needs, deadline_ms);
        if (status != KVT_ESESSION && status != KVT_ECONN)
            break;
        pthread_mutex_lock(&c->lock);
        c->session.up = 0;
        pthread_mutex_unlock(&c->lock);
    }
    return status;
}

static int is_up(const kvt_client *c, int needs) {
    const kvt_session *s = &c->session;
    return s->up && (c->reports_only || (c->arena && s->realm)) &&
           (s->staged || !(needs & KVT_UP_STAGED));
}

kvt_status kvt_session_up(kvt_client *c, int needs, uint64_t deadline_ms,
                          kvt_session *ret_session) {
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&c->lock);
    while (c->gate && !c->closing && !is_up(c, needs) && status == KVT_OK)
        if (kvt_canceled())
            status = kvt_error_plain(KVT_ECANCELED);
        else if (!kvt_client_wait(c, deadline_ms))
            status = kvt_error(KVT_ETIMEDOUT, "the session did not come up in time");
    if (c->closing)
        status = kvt_error_plain(KVT_ECLOSED);
    if (status == KVT_OK && !is_up(c, needs)) {
        c->gate = 1;
        pthread_mutex_unlock(&c->lock);
        status = bring_up(c, needs, deadline_ms);
        pthread_mutex_lock(&c->lock);
        c->gate = 0;
        pthread_cond_broadcast(&c->changed);
    }
    *ret_session = c->session;
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* With the lock held; the arena stays while the daemon lives, since the session may go on. Whoever
 * is just bringing the session up has it in hand, and finds out. */
static void leave_arena(kvt_client *c) {
    if (!c->arena || c->gate || !kvt_arena_is_over(c->arena))
        return;
    c->session.up = 0; /* the next call says hello, and learns where the next arena is */
    c->arena->refs--;
    c->arena = NULL;
    kvt_arenas_sweep(c);
}

void kvt_session_down(kvt_client *c, const kvt_session *seen) {
    pthread_mutex_lock(&c->lock);
    if (c->session.connection == seen->connection)
        c->session.up = 0;
    leave_arena(c);
    pthread_mutex_unlock(&c->lock);
}

/* 0: there is nothing (more) to do. */
static int try_leave_arena(kvt_client *c) {
    if (kvt_client_enter(c) != KVT_OK)
        return 0;
    pthread_mutex_lock(&c->lock);
    leave_arena(c);
    int again = c->arena != NULL;
    pthread_mutex_unlock(&c->lock);
    again = again && !kvt_transport_connected(c->transport); /* else the daemon lives */
    kvt_client_leave(c);
    return again;
}

static void *leave_main(void *client) {
    static const struct timespec pause = {.tv_nsec = LEAVE_EVERY_MS * 1000000};
    for (int i = 0; i < LEAVE_TRIES && try_leave_arena(client); i++)
        nanosleep(&pause, NULL);
    kvt_client_unref(client);
    return NULL;
}

/* In a thread for a moment: a process that ends closes its connections somewhat before it loses its
 * locks, and nng needs its thread. Its threads block all signals, and so does this one. Without one
 * the next call does it. */
void kvt_session_ended(void *client) {
    kvt_client *c = client;
    pthread_attr_t detached;
    pthread_t thread;
    pthread_mutex_lock(&c->lock);
    int wanted = !c->closing && c->arena; /* in this order: kvt_close takes no lock any more */
    c->refs += (uint32_t)wanted;
    pthread_mutex_unlock(&c->lock);
    if (!wanted)
        return;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &detached, leave_main, c) != 0)
        kvt_client_unref(c);
    pthread_attr_destroy(&detached);
}

void kvt_session_forget_realm(kvt_client *c, const kvt_session *seen) {
    pthread_mutex_lock(&c->lock);
    if (c->session.epoch == seen->epoch && c->session.realm == seen->realm)
        c->session.realm = 0;
    pthread_mutex_unlock(&c->lock);
}
