/*
 * daemon.c - what the simulated world gives the core: a clock, a network, workers for its jobs; and
 * the daemon's death.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

/* --- the device: plain memory; staging files are buffers ----------------------------------------
 */

static void *device_data(kvt_device *device) {
    const struct sim_device *d = (struct sim_device *)device;
    const sim_world *w = d->world;
    return w->arenas[w->d->boot - 1].data + d->gpu * w->config.arena_bytes;
}

static void device_close(kvt_device *device) {
    (void)device;
}

/* As pread of a file: what is not there any more cannot be read. */
static kvt_status device_write_file(kvt_device *device, uint64_t offset, int fd,
                                    uint64_t file_offset, uint64_t bytes) {
    sim_world *w = ((struct sim_device *)device)->world;
    const sim_staging *file = &w->stagings[fd];
    CHECK(file->open);
    CHECK(offset + bytes <= w->config.arena_bytes);
    if (file_offset + bytes > file->n_bytes)
        return KVT_EIO;
    memcpy((uint8_t *)device_data(device) + offset, file->bytes + file_offset, bytes);
    return KVT_OK;
}

static kvt_status device_check(kvt_device *device, const kvt_page_shape *shape, uint64_t offset,
                               uint64_t bytes, uint32_t *ret_rows) {
    return kvt_page_check(shape, (uint8_t *)device_data(device) + offset, bytes, 1, ret_rows);
}

static kvt_status device_write(kvt_device *device, uint64_t offset, const void *from,
                               uint64_t bytes) {
    CHECK(offset + bytes <= ((struct sim_device *)device)->world->config.arena_bytes);
    memcpy((uint8_t *)device_data(device) + offset, from, bytes);
    return KVT_OK;
}

static kvt_status device_read(kvt_device *device, uint64_t offset, void *to, uint64_t bytes) {
    CHECK(offset + bytes <= ((struct sim_device *)device)->world->config.arena_bytes);
    memcpy(to, (const uint8_t *)device_data(device) + offset, bytes);
    return KVT_OK;
}

static const kvt_device_ops device_ops = {.name = "sim",
                                          .close = device_close,
                                          .data = device_data,
                                          .write_file = device_write_file,
                                          .check = device_check,
                                          .write = device_write,
                                          .read = device_read};

/* --- jobs ---------------------------------------------------------------------------------------
 */

/* All tenants' files lie in one directory; whose it is, its owner says. */
static void open_staging(sim_world *w, core_job *job) {
    job->status = KVT_ENOENT;
    for (uint32_t t = 0; t < w->d->n_tenants; t++) {
        sim_world *of = w->d->worlds[t];
        for (uint32_t i = 0; i < of->n_stagings; i++) {
            sim_staging *file = &of->stagings[i];
            if (strcmp(file->name, job->name) != 0 || file->uid != job->uid || file->open ||
                file->n_bytes < job->staging_bytes || sim_chance(w, 10))
                continue;
            if (of != w)
                sim_fail(w, "%s of another tenant was opened", file->name);
            file->open = 1;
            job->staging = (int)i;
            job->status = KVT_OK;
        }
    }
}

void sim_job_run(sim_world *w, core_job *job) {
    job->status = KVT_OK;
    if (job->kind == CORE_JOB_UNSTAGE) {
        CHECK(w->stagings[job->staging].open);
        w->stagings[job->staging].open = 0;
        return;
    }
    if (job->kind == CORE_JOB_UP || job->kind == CORE_JOB_DOWN) {
        if (job->kind == CORE_JOB_UP && sim_chance(w, 10))
            w->host[job->copies[0].from_offset + sim_below(w, job->copies[0].bytes)] ^= 0x10;
        job_run_tier(job, w->device, (char *)w->host);
        *(job->kind == CORE_JOB_UP ? &w->n.up : &w->n.down) += job->n_copies;
        for (uint32_t i = 0; i < job->n_copies; i++)
            if (sim_chance(w, 10))
                job->copies[i].status = KVT_EIO;
        return;
    }
    if (job->kind == CORE_JOB_CHECK) {
        job_run_check(job, w->device);
        if (sim_chance(w, 50))
            job->copies[0].status = KVT_EIO;
        return;
    }
    if (job->kind == CORE_JOB_COOL) {
        job_run_cool(job, w->device, (char *)w->host);
        for (uint32_t i = 0; i < job->n_copies; i++)
            if (sim_chance(w, 20))
                job->copies[i].status = sim_below(w, 2) ? KVT_EIO : KVT_ENOMEM;
        return;
    }
    if (job->kind >= CORE_JOB_WRITE) {
        sim_disk_run(w, job);
        return;
    }
    if (job->kind == CORE_JOB_SEAL) {
        job_staging from = {.fd = job->staging};
        job_run_seal(job, w->device, &from);
        for (uint32_t i = 0; i < job->n_copies; i++)
            if (sim_chance(w, 10))
                job->copies[i].status = KVT_EIO;
        return;
    }
    open_staging(w, job);
}

static void push_job(sim_world *w, core_job *job, sim_event_kind kind) {
    uint32_t slow = job->kind == CORE_JOB_COOL ? 700 : job->kind == CORE_JOB_ERASE ? 900 : 50;
    uint32_t most_ms = sim_chance(w, slow) ? 3000 : 20;
    if (job->kind == CORE_JOB_READ && sim_chance(w, 20)) /* so long that claims do without it */
        most_ms = SIM_SILENT_MS;
    sim_push(w, (sim_event){.kind = kind, .job = job}, most_ms);
}

static void env_submit(void *context, core_job *job) {
    sim_world *w = context;
    sim_digest(w, &job->kind, sizeof job->kind);
    sim_digest(w, &job->n_copies, sizeof job->n_copies);
    /* Reads overtake writes; writes and erasures keep their order. */
    if (job->kind == CORE_JOB_WRITE || job->kind == CORE_JOB_ERASE)
        job->lane = 0xfff0;
    push_job(w, job, EVENT_JOB_RUN);
}

/* --- env ----------------------------------------------------------------------------------------
 */

static uint64_t env_now(void *context) {
    return ((sim_world *)context)->d->now_ms;
}

static void env_random(void *context, void *to, size_t n) {
    sim_world *w = context;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)to)[i] = (uint8_t)sim_below(w, 256);
}

/* Full is who has nothing left that could go. (Of what is in lower tiers nothing helps, and of
 * several arenas what stands in another. And who let his claim expire is told so.) */
static void check_full(sim_world *w, const void *message, size_t n_bytes) {
    kvt_wire_header header;
    const uint8_t *body;
    core_counts n;
    CHECK_EQ(kvt_wire_open(message, n_bytes, &header, &body), KVT_OK);
    if (header.status != KVT_EFULL)
        return;
    if (memmem(body, header.body_bytes, "(claim_ms)", 10)) {
        w->n.late_seals++;
        return;
    }
    core_count(w->core, &n);
    w->n.full++;
    if (n.pages_evictable && !w->config.host_bytes && w->config.n_arenas == 1)
        sim_fail(w, "a tenant is refused as full, and %llu of its pages could go",
                 (unsigned long long)n.pages_evictable);
}

static void env_send(void *context, core_ticket ticket, const void *message, size_t n) {
    sim_world *w = sim_of_pipe(((sim_world *)context)->d, ticket.pipe);
    sim_digest(w, &ticket.pipe, sizeof ticket.pipe);
    sim_digest(w, message, n);
    check_full(context, message, n);
    if (w->pipe_dead[ticket.pipe])
        return;
    uint8_t *copy = malloc(n);
    CHECK(copy);
    memcpy(copy, message, n);
    sim_push(w,
             (sim_event){.kind = EVENT_TO_WORKER,
                         .pipe = ticket.pipe,
                         .worker = w->pipe_worker[ticket.pipe],
                         .life = w->pipe_life[ticket.pipe],
                         .bytes = copy,
                         .n_bytes = n},
             sim_chance(w, 20) ? 5000 : 10);
}

static void env_cut(void *context, uint32_t pipe) {
    sim_world *w = sim_of_pipe(((sim_world *)context)->d, pipe);
    if (w->pipe_dead[pipe])
        return;
    w->pipe_dead[pipe] = 1;
    sim_push(w, (sim_event){.kind = EVENT_PIPE_DOWN, .pipe = pipe}, 10);
    sim_push(w,
             (sim_event){.kind = EVENT_WORKER_CUT,
                         .pipe = pipe,
                         .worker = w->pipe_worker[pipe],
                         .life = w->pipe_life[pipe]},
             10);
}

static void env_watch(void *context, uint32_t session, core_peer peer) {
    sim_world *w = context;
    for (uint32_t i = 0; i < w->n_workers; i++)
        if (w->workers[i].pid == peer.pid && w->workers[i].state != WORKER_GONE)
            return;
    /* gone before it could be watched */
    sim_push(w, (sim_event){.kind = EVENT_PEER_GONE, .session = session}, 50);
}

static void env_unwatch(void *context, uint32_t session) {
    (void)context, (void)session;
}

static size_t env_report(void *context, const core *c, kvt_op op, uint32_t lines, char *to,
                         size_t room) {
    (void)context, (void)c, (void)op, (void)lines, (void)room;
    memcpy(to, "{}", 2);
    return 2;
}

/* --- start, end ---------------------------------------------------------------------------------
 */

/* The arena of each GPU is behind that of the one before. */
static void start_arenas(sim_world *w, core_arena *parts, char (*paths)[32]) {
    static const char *const gpus[] = {"gpu0", "gpu1", "gpu2"};
    sim_arena *arena = &w->arenas[w->d->boot - 1];
    core_config *g = &w->config;
    kvt_device *all[SIM_MAX_GPUS] = {NULL};
    arena->data = malloc(g->n_arenas * g->arena_bytes);
    arena->generations = calloc((size_t)g->n_arenas * g->max_frames, sizeof *arena->generations);
    CHECK(arena->data && arena->generations);
    memset(arena->data, 0xa5, g->n_arenas * g->arena_bytes);
    for (uint32_t i = 0; i < g->n_arenas; i++) {
        w->devices[i] = (struct sim_device){.base.ops = &device_ops, .world = w, .gpu = i};
        all[i] = &w->devices[i].base;
        snprintf(paths[i], sizeof paths[i], "%s%u", w->arena_path, i);
        parts[i] = (core_arena){paths[i], g->n_arenas > 1 ? gpus[i] : "",
                                arena->generations + (size_t)i * g->max_frames};
    }
    sim_device_close(w);
    w->device = all[0];
    if (g->n_arenas > 1)
        CHECK_EQ(kvt_device_many_open(all, g->n_arenas, &w->device), KVT_OK);
}

void sim_device_close(sim_world *w) {
    if (w->config.n_arenas > 1 && w->device)
        w->device->ops->close(w->device);
    w->device = NULL;
}

void sim_core_start(sim_world *w) {
    core_config *g = &w->config;
    core_arena parts[SIM_MAX_GPUS];
    char paths[SIM_MAX_GPUS][32];
    start_arenas(w, parts, paths);
    g->boot_id = 1000 + w->d->boot;
    g->arenas = parts;
    w->env = (core_env){.context = w,
                        .now_ms = env_now,
                        .random = env_random,
                        .send = env_send,
                        .submit = env_submit,
                        .cut = env_cut,
                        .watch = env_watch,
                        .unwatch = env_unwatch,
                        .event = sim_mirror_event,
                        .report = env_report};
    char why[256] = "";
    CHECK_MSG(core_open(g, &w->env, why, sizeof why, &w->core) == KVT_OK, "%s", why);
    if (g->host_bytes) {
        free(w->host);
        w->host = malloc(g->host_bytes);
        CHECK(w->host);
        memset(w->host, 0x5a, g->host_bytes);
    }
    if (g->disk_bytes)
        sim_disk_start(w);
}

/* The job event of this daemon that comes first, so that lanes keep their order. */
static sim_event *next_job(sim_world *w) {
    sim_event *first = NULL;
    for (size_t i = 0; i < w->d->n_events; i++) {
        sim_event *e = &w->d->events[i];
        int is_job = e->kind == EVENT_JOB_RUN || e->kind == EVENT_JOB_DONE;
        if (is_job && e->world == w && e->boot == w->d->boot &&
            (!first || e->at_ms < first->at_ms ||
             (e->at_ms == first->at_ms && e->order < first->order)))
            first = e;
    }
    return first;
}

void sim_jobs_end(sim_world *w) {
    for (sim_event *e; (e = next_job(w)) != NULL;) {
        core_job *job = e->job;
        e->boot = 0;
        if (e->kind == EVENT_JOB_RUN)
            sim_job_run(w, job);
        core_job_done(w->core, job);
    }
}

/* It is gone in the middle of whatever it did. Its core is only taken down in good order because
 * core_close insists; nothing of that reaches the workers, whose pipes are dead already. */
void sim_core_kill(sim_world *w) {
    for (uint32_t p = w->tenant; p < w->next_pipe; p += SIM_MAX_TENANTS)
        if (!w->pipe_dead[p])
            env_cut(w, p);
    sim_jobs_end(w);
    core_counts n;
    core_count(w->core, &n);
    w->n.expired += n.claims_expired;
    w->n.cut_claims += n.claims_cut;
    w->n.cooled += n.pages_cooled;
    core_close(w->core);
    for (uint32_t i = 0; i < w->n_stagings; i++)
        w->stagings[i].open = 0;
    w->core = NULL;
    memset(w->pins, 0, sizeof w->pins);
    memset(w->mirror, 0, sizeof w->mirror);
    w->mirror_sequence = 0;
    w->n.restarts++;
}
