/* client.c - opening and closing, and who is inside. */
#include "client/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    DEFAULT_TIMEOUT_MS = 5000,
    DEFAULT_STAGING_PAGES = 32,
    MAX_STAGING_PAGES = 65536,
    GOODBYE_MS = 200, /* closing does not wait longer for a daemon that is busy */
};

/* --- forks --------------------------------------------------------------------------------------
 */

/* How many forks lie between this process and the one that first opened a client. nng does not
 * survive one, so this is looked at before anything of it is touched. */
static uint32_t n_forks;

static void in_child(void) {
    n_forks++;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, in_child);
}

int kvt_client_forked(const kvt_client *c) {
    return c->forks != n_forks;
}

/* --- who is inside ------------------------------------------------------------------------------
 */

kvt_status kvt_client_enter(kvt_client *c) {
    if (kvt_client_forked(c))
        return kvt_error_plain(KVT_EFORK);
    pthread_mutex_lock(&c->lock);
    int closing = c->closing;
    c->n_inside += !closing;
    pthread_mutex_unlock(&c->lock);
    return closing ? kvt_error_plain(KVT_ECLOSED) : KVT_OK;
}

void kvt_client_leave(kvt_client *c) {
    pthread_mutex_lock(&c->lock);
    if (--c->n_inside == 0 && c->closing)
        pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

int kvt_client_wait(kvt_client *c, uint64_t deadline_ms) {
    if (kvt_now_ms() >= deadline_ms)
        return 0;
    struct timespec until = {.tv_sec = (time_t)(deadline_ms / 1000),
                             .tv_nsec = (long)(deadline_ms % 1000 * 1000000)};
    pthread_cond_timedwait(&c->changed, &c->lock, &until);
    return 1;
}

kvt_status kvt_client_pause(kvt_client *c, uint32_t pause_ms, uint64_t deadline_ms) {
    uint64_t until_ms = kvt_now_ms() + pause_ms;
    if (until_ms > deadline_ms)
        return KVT_EBUSY; /* with the daemon's own words about it */
    pthread_mutex_lock(&c->lock);
    while (!c->closing && !kvt_canceled() && kvt_client_wait(c, until_ms))
        ;
    int closing = c->closing;
    pthread_mutex_unlock(&c->lock);
    if (closing)
        return kvt_error_plain(KVT_ECLOSED);
    return kvt_canceled() ? kvt_error_plain(KVT_ECANCELED) : KVT_OK;
}

static void client_free(kvt_client *c) {
    kvt_transport_close(c->transport);
    kvt_crew_close(&c->crew);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->staging_lock);
    pthread_mutex_destroy(&c->lock);
    free(c->socket);
    free(c->name);
    free(c->gpu);
    free(c);
}

void kvt_client_ref(kvt_client *c) {
    pthread_mutex_lock(&c->lock);
    c->refs++;
    pthread_mutex_unlock(&c->lock);
}

void kvt_client_unref(kvt_client *c) {
    pthread_mutex_lock(&c->lock);
    uint32_t refs = --c->refs;
    pthread_mutex_unlock(&c->lock);
    if (refs == 0)
        client_free(c);
}

/* --- open ---------------------------------------------------------------------------------------
 */

static kvt_status check_name(const char *field, const char *name) {
    size_t n = name ? strlen(name) : 0;
    if (n > KVT_MAX_NAME_BYTES)
        return kvt_error(KVT_ELIMIT, "realm.%s has %zu bytes; at most %d are possible", field, n,
                         KVT_MAX_NAME_BYTES);
    return KVT_OK;
}

static kvt_status check_names(const kvt_realm *realm) {
    const struct {
        const char *field, *name;
    } names[] = {{"model", realm->model},     {"engine", realm->engine},
                 {"adapter", realm->adapter}, {"adapter_version", realm->adapter_version},
                 {"salt", realm->salt},       {"codec", realm->codec}};
    if (!realm->model || !realm->model[0])
        return kvt_error(KVT_EINVAL, "realm.model is empty; it must name the weights");
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == KVT_OK; i++)
        status = check_name(names[i].field, names[i].name);
    return status;
}

static kvt_status take_realm(kvt_client *c, const kvt_realm *realm) {
    char why[256] = "";
    kvt_status status = check_names(realm);
    if (status != KVT_OK)
        return status;
    status = kvt_geometry_check(&realm->geometry, why, sizeof why);
    if (status != KVT_OK)
        return kvt_error(status, "realm.geometry: %s", why);
    for (uint32_t group = 0; group < realm->geometry.n_groups; group++) {
        status = kvt_page_shape_init(&realm->geometry, group, realm->codec, why, sizeof why,
                                     &c->shapes[group]);
        if (status != KVT_OK)
            return kvt_error(status, "realm.codec: %s", why);
        c->group_offset[group + 1] =
            c->group_offset[group] + (uint32_t)kvt_page_max_bytes(&c->shapes[group]);
    }
    status = kvt_wire_realm_encode(realm, c->canonical, sizeof c->canonical, &c->n_canonical);
    if (status != KVT_OK)
        return kvt_error_plain(status);
    c->geometry = realm->geometry;
    return KVT_OK;
}

/* Where the daemon is looked for when nobody says: where it is, or would be. */
static kvt_status default_socket(char *path, size_t path_bytes) {
    const char *said = getenv("KVTRUNK_SOCKET"), *user = getenv("XDG_RUNTIME_DIR");
    int n = 0;
    if (said && said[0]) {
        n = snprintf(path, path_bytes, "%s", said);
    } else {
        if (user && user[0])
            n = snprintf(path, path_bytes, "%s/kvtrunk.sock", user);
        if (n == 0 || access(path, F_OK) != 0)
            n = snprintf(path, path_bytes, "%s", KVT_DEFAULT_SOCKET);
    }
    if (n < 0 || (size_t)n >= path_bytes)
        return kvt_error(KVT_EINVAL, "the socket's path has %d bytes, too many", n);
    return KVT_OK;
}

/* A number, or a place as CUDA writes it: domain:bus:device.function. */
static int is_gpu_name(const char *gpu) {
    size_t bytes = strlen(gpu);
    if (bytes == 0 || bytes > KVT_WIRE_MAX_GPU)
        return 0;
    return strspn(gpu, "0123456789") == bytes ||
           (strchr(gpu, ':') && strspn(gpu, "0123456789abcdefABCDEF:.") == bytes);
}

static kvt_status take_options(kvt_client *c, const kvt_options *options) {
    static const kvt_options none;
    char path[256];
    const kvt_options *o = options ? options : &none;
    if (o->flags & ~(uint32_t)(KVT_OPEN_LAZY | KVT_OPEN_VERIFY))
        return kvt_error(KVT_EINVAL, "options.flags 0x%x has unknown bits", o->flags);
    if (o->staging_pages > MAX_STAGING_PAGES)
        return kvt_error(KVT_ELIMIT, "options.staging_pages is %u; at most %d are possible",
                         o->staging_pages, MAX_STAGING_PAGES);
    if (o->name && strlen(o->name) > KVT_WIRE_MAX_PATH)
        return kvt_error(KVT_ELIMIT, "options.name has %zu bytes; at most %d are possible",
                         strlen(o->name), KVT_WIRE_MAX_PATH);
    if (o->gpu && !is_gpu_name(o->gpu))
        return kvt_error(KVT_EINVAL,
                         "options.gpu is \"%.40s\": a number, or a place on the bus such as "
                         "0000:01:00.0, is needed",
                         o->gpu);
    kvt_status status = o->socket ? KVT_OK : default_socket(path, sizeof path);
    if (status != KVT_OK)
        return status;
    c->flags = o->flags;
    c->timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
    c->staging_pages = o->staging_pages ? o->staging_pages : DEFAULT_STAGING_PAGES;
    c->socket = kvt_memory_text(o->socket ? o->socket : path);
    c->name = kvt_memory_text(o->name ? o->name : program_invocation_short_name);
    c->gpu = o->gpu ? kvt_memory_text(o->gpu) : NULL;
    return c->socket && c->name && (c->gpu || !o->gpu) ? KVT_OK : kvt_error_plain(KVT_ENOMEM);
}

static kvt_client *client_new(void) {
    kvt_client *c = kvt_memory_get(sizeof *c);
    if (!c)
        return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->staging_lock, NULL);
    kvt_crew_init(&c->crew);
    c->refs = 1;
    c->forks = n_forks;
    return c;
}

/* Is that the answer of a daemon that is not there (yet)? */
static int is_absent(kvt_status status) {
    return status == KVT_ECONN || status == KVT_ETIMEDOUT || status == KVT_EBUSY;
}

static kvt_status client_open(const kvt_options *options, const kvt_realm *realm,
                              kvt_client **ret_client) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    kvt_session session;
    if (n_forks)
        return kvt_error_plain(KVT_EFORK);
    pthread_once(&once, watch_forks);
    kvt_client *c = client_new();
    if (!c)
        return kvt_error_plain(KVT_ENOMEM);
    c->reports_only = !realm;
    kvt_status status = take_options(c, options);
    if (status == KVT_OK && realm)
        status = take_realm(c, realm);
    if (status == KVT_OK)
        status = kvt_transport_open(c->socket, &c->transport);
    if (status == KVT_OK) {
        kvt_transport_on_end(c->transport, kvt_session_ended, c);
        status = kvt_session_up(c, realm ? KVT_UP_STAGED : 0, kvt_client_deadline(c), &session);
        if (is_absent(status) && (c->flags & KVT_OPEN_LAZY))
            status = KVT_OK;
    }
    if (status == KVT_OK) {
        *ret_client = c;
        return KVT_OK;
    }
    /* Closing has errors of its own; the caller wants to read the first. */
    char why[512];
    snprintf(why, sizeof why, "%s", kvt_last_error());
    kvt_close(c);
    return kvt_error(status, "%s", why);
}

kvt_status kvt_open(const kvt_options *options, const kvt_realm *realm, kvt_client **ret_client) {
    if (!realm || !ret_client)
        return kvt_error(KVT_EINVAL, "kvt_open needs a realm and ret_client");
    return client_open(options, realm, ret_client);
}

kvt_status kvt_open_reports(const kvt_options *options, kvt_client **ret_client) {
    if (!ret_client)
        return kvt_error(KVT_EINVAL, "kvt_open_reports needs ret_client");
    return client_open(options, NULL, ret_client);
}

uint64_t kvt_boot_id(const kvt_client *client) {
    return client ? __atomic_load_n(&client->session.boot_id, __ATOMIC_RELAXED) : 0;
}

/* --- close --------------------------------------------------------------------------------------
 */

static void say_goodbye(kvt_client *c) {
    kvt_session s = c->session;
    kvt_reply reply;
    if (!s.up || !kvt_transport_connected(c->transport))
        return;
    uint32_t wait_ms = c->timeout_ms < GOODBYE_MS ? c->timeout_ms : GOODBYE_MS;
    kvt_request request = {.op = KVT_OP_GOODBYE};
    kvt_transport_stop(c->transport, 0);
    /* Not answered: the daemon sees the connection break, and then the process end. */
    if (kvt_client_exchange(c, &s, &request, kvt_now_ms() + wait_ms, &reply) == KVT_OK)
        kvt_reply_free(&reply);
}

static void forget_all(kvt_client *c) {
    while (c->undo) {
        kvt_lease *lease = c->undo;
        c->undo = lease->next_undo;
        free(lease);
    }
    while (c->arenas) {
        kvt_arena *arena = c->arenas;
        c->arenas = arena->next;
        kvt_arena_unmap(arena);
    }
    kvt_staging_close(c);
    c->arena = NULL;
}

void kvt_close(kvt_client *client) {
    kvt_client *c = client;
    /* In a child of its owner nothing can be done: the locks may be held by threads that are not
     * there, and nng panics. The memory goes with the process. */
    if (!c || kvt_client_forked(c))
        return;
    pthread_mutex_lock(&c->lock);
    c->closing = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (c->transport)
        kvt_transport_stop(c->transport, 1);
    pthread_mutex_lock(&c->lock);
    while (c->n_inside > 0)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    kvt_crew_stop(c);
    /* Nobody is inside, and nobody will be: what follows needs no lock. */
    if (c->transport)
        say_goodbye(c);
    forget_all(c);
    kvt_transport_close(c->transport);
    c->transport = NULL;
    kvt_client_unref(c);
}
