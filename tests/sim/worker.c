/*
 * worker.c - a simulated worker: a small client of the wire format that does what workers do, and
 * what bad ones do. It checks what it is told and every byte that it reads.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

enum { TIMEOUT_MS = 1500, SLOT_BYTES = 8192 };

/* --- connection ---------------------------------------------------------------------------------
 */

static void push_step(sim_world *w, sim_worker *k, uint32_t max_delay_ms) {
    sim_push(w, (sim_event){.kind = EVENT_WORKER, .worker = k->index, .life = k->life},
             max_delay_ms);
}

/* Of its tenant by its uid or by its gid, or of none. A uid counts more than a gid. */
static void make_user(sim_world *w, sim_worker *k) {
    uint32_t which = sim_below(w, 4);
    k->uid = which < 2 ? w->uids[which] : 100 + 10 * w->tenant + which;
    k->gid = which < 2 ? 30 + (w->tenant + which) % SIM_MAX_TENANTS : w->gids[0];
    k->is_stranger = sim_chance(w, 10);
    if (k->is_stranger)
        k->uid = k->gid = 999;
}

void sim_worker_start(sim_world *w, sim_worker *k) {
    uint32_t index = k->index, life = k->life + 1;
    uint64_t asked = k->asked;
    free(k->op_bytes);
    memset(k, 0, sizeof *k);
    k->index = index;
    k->life = life;
    k->asked = asked;
    k->pid = w->next_pid++;
    k->staging = -1;
    make_user(w, k);
    push_step(w, k, 20);
}

static void pipe_close(sim_world *w, sim_worker *k) {
    if (k->pipe && !w->pipe_dead[k->pipe]) {
        w->pipe_dead[k->pipe] = 1;
        sim_push(w, (sim_event){.kind = EVENT_PIPE_DOWN, .pipe = k->pipe}, 100);
    }
    k->pipe = 0;
}

/* The call under way will not be answered, or too late: see to it that it is undone. */
static void op_lost(sim_worker *k) {
    sim_lease *l = k->op == KVT_OP_STAGE ? NULL : &k->leases[k->op_lease];
    switch (k->op) {
    case KVT_OP_ACQUIRE:
    case KVT_OP_FORK:
        if (k->op == KVT_OP_ACQUIRE && l->used) { /* an EXTEND: the lease may be either */
            if (k->n_release < 16)
                k->release[k->n_release++] = l->id;
            l->used = 0;
        } else if (k->n_cancel < 16) {
            k->cancel[k->n_cancel++] = k->op_number;
        }
        break;
    case KVT_OP_SEAL:
        k->staging = -1; /* it may still be read: never write into it again */
        /* fall through */
    case KVT_OP_WAIT:
        l->n_pages = 0; /* windows may have moved on: it must ask before it reads */
        l->computing_tokens = 1;
        break;
    default:
        break;
    }
    k->op = 0;
}

void sim_worker_cut(sim_world *w, sim_worker *k) {
    if (k->op)
        op_lost(k);
    pipe_close(w, k);
    k->state = WORKER_DOWN;
    for (uint32_t i = 0; i < SIM_MAX_LEASES; i++)
        if (k->leases[i].used && !k->leases[i].stale)
            k->leases[i].stale = 1;
}

static int push_gone(void *context, const core_session_info *info) {
    sim_world *w = ((void **)context)[0];
    const sim_worker *k = ((void **)context)[1];
    if (info->peer.pid == k->pid)
        sim_push(w, (sim_event){.kind = EVENT_PEER_GONE, .session = info->session},
                 sim_below(w, 3) ? 30 : 2000);
    return 0;
}

void sim_worker_kill(sim_world *w, sim_worker *k) {
    void *context[] = {w, k};
    core_each_session(w->core, push_gone, context);
    pipe_close(w, k);
    k->state = WORKER_GONE;
    w->n.kills++;
    push_step(w, k, 300);
}

int sim_worker_home(const sim_worker *k) {
    return k->state == WORKER_GONE || k->state == WORKER_DOWN;
}

/* --- sending ------------------------------------------------------------------------------------
 */

static void send_bytes(sim_world *w, sim_worker *k, const uint8_t *bytes, size_t n) {
    if (w->pipe_dead[k->pipe])
        return;
    uint8_t *copy = malloc(n);
    CHECK(copy);
    memcpy(copy, bytes, n);
    sim_push(w, (sim_event){.kind = EVENT_TO_CORE, .pipe = k->pipe, .bytes = copy, .n_bytes = n},
             sim_chance(w, 10) ? 4000 : 10);
}

void sim_begin(outgoing *o) {
    kvt_wire_start(&o->w, o->bytes, sizeof o->bytes);
}

void sim_call(sim_world *w, sim_worker *k, outgoing *o, uint16_t op, uint32_t lease,
              uint32_t wait_ms) {
    kvt_wire_header header = {.kind = KVT_WIRE_REQUEST,
                              .op = op,
                              .number = ++k->number,
                              .boot_id = op == KVT_OP_HELLO ? 0 : k->boot_id};
    size_t n = kvt_wire_finish(&o->w, header);
    CHECK(n > 0);
    k->op = op;
    k->op_number = k->number;
    k->op_lease = lease;
    k->op_due_ms = w->d->now_ms + TIMEOUT_MS + wait_ms;
    free(k->op_bytes);
    k->op_bytes = malloc(n);
    CHECK(k->op_bytes);
    memcpy(k->op_bytes, o->bytes, n);
    k->op_n_bytes = n;
    send_bytes(w, k, o->bytes, n);
}

static void call_hello(sim_world *w, sim_worker *k) {
    outgoing o;
    CHECK(w->next_pipe < SIM_MAX_PIPES);
    k->pipe = w->next_pipe;
    w->next_pipe += SIM_MAX_TENANTS;
    w->pipe_worker[k->pipe] = k->index;
    w->pipe_life[k->pipe] = k->life;
    sim_push(
        w, (sim_event){.kind = EVENT_PIPE_UP, .pipe = k->pipe, .worker = k->index, .life = k->life},
        10);
    kvt_hello_req req = {.pid = k->pid, .name = {"sim", 3}};
    memcpy(req.token, k->token, sizeof req.token);
    sim_begin(&o);
    kvt_wire_put_hello_req(&o.w, &req);
    k->state = WORKER_HELLO;
    sim_call(w, k, &o, KVT_OP_HELLO, 0, 0);
}

static void call_stage(sim_world *w, sim_worker *k) {
    outgoing o;
    CHECK(w->n_stagings < SIM_MAX_STAGINGS);
    sim_staging *file = &w->stagings[w->n_stagings];
    file->n_bytes = (uint64_t)SIM_STAGING_SLOTS * SIM_MAX_GROUPS * SLOT_BYTES;
    file->bytes = calloc(1, file->n_bytes);
    CHECK(file->bytes);
    file->uid = k->uid;
    snprintf(file->name, sizeof file->name, "staging-%u-%u", w->tenant, w->n_stagings);
    char theirs[32];
    uint32_t other = (w->tenant + 1) % SIM_MAX_TENANTS;
    snprintf(theirs, sizeof theirs, "staging-%u-%u", other, sim_below(w, w->n_stagings + 1));
    k->is_thief = sim_chance(w, 20);
    const char *name = k->is_thief ? theirs : file->name;
    kvt_stage_req req = {.bytes = file->n_bytes, .name = {name, (uint16_t)strlen(name)}};
    sim_begin(&o);
    kvt_wire_put_stage_req(&o.w, &req);
    k->op_lease = w->n_stagings;
    k->state = WORKER_STAGE;
    sim_call(w, k, &o, KVT_OP_STAGE, w->n_stagings++, 0);
}

/* With several GPUs ranks are on one each, until the engines are started anew on others. */
static void call_realm(sim_world *w, sim_worker *k) {
    outgoing o;
    char gpu[16];
    kvt_realm_req req = {
        .rank = sim_rank(w, k), .canonical = w->canonical, .n_bytes = (uint32_t)w->n_canonical};
    if (w->config.n_arenas > 1 && !k->any_gpu && !w->d->stopping) {
        if (sim_chance(w, 200))
            w->gpu_shift++;
        uint32_t n = (sim_rank(w, k) + w->gpu_shift) % w->config.n_arenas;
        req.gpu = (kvt_wire_str){gpu, (uint16_t)snprintf(gpu, sizeof gpu, "gpu%u", n)};
        req.gpu_named = (uint8_t)sim_below(w, 2);
    }
    sim_begin(&o);
    kvt_wire_put_realm_req(&o.w, &req);
    k->state = WORKER_REALM;
    sim_call(w, k, &o, KVT_OP_REALM, 0, 0);
}

/* --- what it asks for ---------------------------------------------------------------------------
 */

/* Few documents with few continuations, so that workers meet: in the middle of pages, at their
 * edges, in front of each other. */
uint32_t sim_make_tokens(sim_world *w, uint32_t *tokens, uint32_t at, uint32_t n) {
    uint32_t doc = sim_below(w, 3), common = sim_below(w, n + 1);
    if (w->geometry.n_ranks > 1) { /* a page takes all ranks of an engine: less comes about */
        doc = 0;
        common = n;
    }
    for (uint32_t i = 0; i < n; i++)
        tokens[at + i] = i < common ? (at + i) * 3 + doc : sim_below(w, 2);
    return at + n;
}

static int free_lease(const sim_worker *k) {
    for (int i = 0; i < SIM_MAX_LEASES; i++)
        if (!k->leases[i].used)
            return i;
    return -1;
}

static int some_lease(sim_world *w, const sim_worker *k) {
    uint32_t first = sim_below(w, SIM_MAX_LEASES);
    for (uint32_t i = 0; i < SIM_MAX_LEASES; i++)
        if (k->leases[(first + i) % SIM_MAX_LEASES].used)
            return (int)((first + i) % SIM_MAX_LEASES);
    return -1;
}

static uint32_t random_flags(sim_world *w) {
    return (sim_below(w, 8) ? KVT_ACQUIRE_CLAIM : 0u) |
           (sim_below(w, 8) ? 0u : KVT_ACQUIRE_LEAVE_ONE);
}

static void call_acquire(sim_world *w, sim_worker *k, int slot, int base) {
    outgoing o;
    sim_lease *l = &k->op_path;
    kvt_acquire_req req = {.flags = random_flags(w), .rank = base ? 0 : sim_rank(w, k)};
    if (w->geometry.n_ranks > 1) {
        if (sim_below(w, 4) && sim_ranks_acquire(w, k, slot, base))
            return;
        req.flags &= ~(uint32_t)KVT_ACQUIRE_CLAIM; /* alone, a rank may look */
    }
    if (base) {
        *l = k->leases[slot];
        l->request = 0;
        uint32_t stored = l->held_tokens > l->claimed_tokens ? l->held_tokens : l->claimed_tokens;
        req.base = l->id;
        req.keep_tokens = sim_below(w, 3) ? stored : sim_below(w, stored + 1);
        uint32_t keep_page = req.keep_tokens / SIM_PAGE_TOKENS,
                 held_page = l->held_tokens / SIM_PAGE_TOKENS;
        req.first_page = keep_page < held_page ? keep_page : held_page;
    } else {
        memset(l, 0, sizeof *l);
        req.realm = k->realm;
        l->arena = k->arena;
        l->gpu = k->gpu;
        sim_view_ask(w, l, &req);
    }
    uint32_t room = SIM_MAX_TOKENS - req.keep_tokens;
    uint32_t n = sim_below(w, (base ? 40 : SIM_MAX_TOKENS) + 1);
    n = n < room ? n : room;
    l->n_tokens = sim_make_tokens(w, l->tokens, req.keep_tokens, n);
    req.n_tokens = n;
    sim_begin(&o);
    kvt_wire_put_acquire_req(&o.w, &req);
    kvt_wire_put_tokens(&o.w, l->tokens + req.keep_tokens, n);
    sim_call(w, k, &o, KVT_OP_ACQUIRE, (uint32_t)slot, 0);
}

static void call_fork(sim_world *w, sim_worker *k, int from, int slot) {
    outgoing o;
    sim_lease *l = &k->op_path;
    *l = k->leases[from];
    l->request = 0;
    kvt_fork_req req = {.lease = l->id, .n_tokens = sim_below(w, l->n_tokens + 1)};
    l->n_tokens = req.n_tokens;
    sim_begin(&o);
    kvt_wire_put_fork_req(&o.w, &req);
    sim_call(w, k, &o, KVT_OP_FORK, (uint32_t)slot, 0);
}

static void call_wait(sim_world *w, sim_worker *k, int slot) {
    outgoing o;
    sim_lease *l = &k->leases[slot];
    uint32_t wait_ms = sim_below(w, 600);
    kvt_wait_req req = {.lease = l->id, .held_tokens = l->held_tokens, .wait_ms = wait_ms};
    k->op_path = *l;
    sim_begin(&o);
    kvt_wire_put_wait_req(&o.w, &req);
    w->n.waits++;
    sim_call(w, k, &o, KVT_OP_WAIT, (uint32_t)slot, wait_ms);
}

/* Spoils an encoded page, or what is said of it, in one of the ways that the fault model lists. */
static void spoil(sim_world *w, sim_staging *file, kvt_seal_page *page) {
    switch (sim_below(w, 4)) {
    case 0:
        file->bytes[page->offset + sim_below(w, page->bytes)] ^= (uint8_t)(1 + sim_below(w, 255));
        break;
    case 1:
        page->bytes -= 64;
        break;
    case 2:
        page->offset = file->n_bytes - sim_below(w, 64);
        break;
    default:
        file->n_bytes = page->offset + page->bytes / 2;
    }
}

/* Encodes a page of a group, or says that it has passed. */
static void make_item(sim_world *w, uint32_t rank, const sim_lease *l, sim_staging *file,
                      kvt_seal_page *item, int late) {
    uint32_t at = item->page * SIM_PAGE_TOKENS, window = w->geometry.groups[item->group].window;
    if (window &&
        ((late && at + SIM_PAGE_TOKENS + window <= l->claimed_tokens) || sim_chance(w, 10))) {
        item->offset = 0;
        return;
    }
    uint32_t rows = at < l->claimed_tokens ? l->claimed_tokens - at : 1;
    rows = rows < SIM_PAGE_TOKENS ? rows : SIM_PAGE_TOKENS;
    if (sim_chance(w, 20))
        rows = 1 + sim_below(w, SIM_PAGE_TOKENS);
    size_t n_bytes;
    uint32_t path_page = at < SIM_MAX_TOKENS ? item->page : 0;
    sim_payload_encode(w, rank * w->geometry.n_groups + item->group, l->tokens, path_page, rows,
                       file->bytes + item->offset, SLOT_BYTES, &n_bytes);
    item->bytes = (uint32_t)n_bytes;
    if (sim_chance(w, 30))
        spoil(w, file, item);
}

static void call_seal(sim_world *w, sim_worker *k, int slot) {
    outgoing o;
    sim_lease *l = &k->leases[slot];
    sim_staging *file = &w->stagings[k->staging];
    uint32_t first = l->held_tokens / SIM_PAGE_TOKENS;
    uint32_t last = (l->claimed_tokens + SIM_PAGE_TOKENS - 1) / SIM_PAGE_TOKENS;
    uint32_t n = 1 + sim_below(w, SIM_STAGING_SLOTS);
    n = n < last - first ? n : last - first;
    first += sim_chance(w, 30) ? 1 : 0; /* out of order */
    kvt_seal_page items[SIM_STAGING_SLOTS * SIM_MAX_GROUPS];
    kvt_seal_req req = {.lease = l->id};
    int late = sim_below(w, 4) == 0; /* it has no old rows of window groups any more */
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t group = 0; group < w->geometry.n_groups; group++)
            if (!sim_chance(w, 20)) {
                kvt_seal_page *item = &items[req.n_pages];
                *item = (kvt_seal_page){.page = first + i,
                                        .group = (uint16_t)group,
                                        .offset = (uint64_t)req.n_pages * SLOT_BYTES};
                make_item(w, sim_rank(w, k), l, file, item, late);
                req.n_pages++;
            }
    if (req.n_pages == 0)
        return;
    sim_begin(&o);
    kvt_wire_put_seal_req(&o.w, &req);
    for (uint32_t i = 0; i < req.n_pages; i++)
        kvt_wire_put_seal_page(&o.w, &items[i]);
    k->op_path = *l;
    k->op_first_page = items[0].page;
    w->n.seals++;
    sim_call(w, k, &o, KVT_OP_SEAL, (uint32_t)slot, 0);
}

static void call_release(sim_world *w, sim_worker *k, const uint64_t *ids, uint32_t n) {
    outgoing o;
    (void)w;
    sim_begin(&o);
    kvt_wire_put_u32(&o.w, n);
    for (uint32_t i = 0; i < n; i++)
        kvt_wire_put_u64(&o.w, ids[i]);
    sim_call(w, k, &o, KVT_OP_RELEASE, 0, 0);
}

static void release_some(sim_world *w, sim_worker *k) {
    uint64_t ids[SIM_MAX_LEASES + 2];
    uint32_t n = 0;
    k->op_path.used = 0; /* whether the first id must be answered with KVT_OK */
    for (uint32_t i = 0; i < SIM_MAX_LEASES; i++) {
        sim_lease *l = &k->leases[i];
        if (!l->used || (!w->d->stopping && sim_below(w, 2)))
            continue;
        l->used = 0;
        if (l->stale < 2) {
            if (n == 0)
                k->op_path.used = l->stale == 0;
            ids[n++] = l->id;
        }
    }
    if (n && sim_chance(w, 100)) {
        ids[n] = ids[n - 1];
        n++;
    }
    if (sim_chance(w, 50)) {
        /* one never given out, or one of somebody else */
        const sim_worker *other = &w->workers[sim_below(w, w->n_workers)];
        int theirs = other != k && other->boot_id == k->boot_id && other->leases[0].used &&
                     other->leases[0].stale == 0 && other->leases[0].arena == k->arena;
        ids[n++] = theirs ? other->leases[0].id : UINT64_C(0xffff) << 32 | sim_below(w, 50);
    }
    if (n)
        call_release(w, k, ids, n);
}

static void undo(sim_world *w, sim_worker *k) {
    outgoing o;
    if (k->n_release) {
        k->op_path.used = 0;
        uint32_t n = k->n_release;
        k->n_release = 0;
        call_release(w, k, k->release, n);
        return;
    }
    sim_begin(&o);
    kvt_wire_put_u64(&o.w, k->cancel[--k->n_cancel]);
    sim_call(w, k, &o, KVT_OP_CANCEL, 0, 0);
}

/* --- reading ------------------------------------------------------------------------------------
 */

static uint64_t generation(const sim_worker *k, const sim_lease *l, const kvt_wire_page *page) {
    const sim_world *of = k->arena_of;
    return of->arenas[l->arena].generations[l->gpu * of->config.max_frames + page->frame];
}

static const uint8_t *bytes_of(const sim_worker *k, const sim_lease *l, const kvt_wire_page *page) {
    const sim_world *of = k->arena_of;
    return of->arenas[l->arena].data + l->gpu * of->config.arena_bytes + page->offset;
}

static void read_begin(sim_world *w, sim_worker *k, uint32_t slot, uint32_t group, uint32_t i) {
    const sim_lease *l = &k->leases[slot];
    const kvt_wire_page *page = &l->pages[group][i];
    k->reading = 1;
    k->read_lease = slot;
    k->read_group = group;
    k->read_page = i;
    k->read_half = 0;
    if (generation(k, l, page) == page->generation) {
        k->read_half = sim_below(w, page->bytes + 1);
        memcpy(k->read_bytes, bytes_of(k, l, page), k->read_half);
    }
}

/* A lease that was never cut must hold: what it names may not change under it. */
static void read_end(sim_world *w, sim_worker *k) {
    const sim_lease *l = &k->leases[k->read_lease];
    const kvt_wire_page *page = &l->pages[k->read_group][k->read_page];
    k->reading = 0;
    if (!l->used)
        return;
    w->n.reads++;
    memcpy(k->read_bytes + k->read_half, bytes_of(k, l, page) + k->read_half,
           page->bytes - k->read_half);
    if (generation(k, l, page) != page->generation) {
        w->n.stale_reads++;
        if (!l->stale && k->pipe && !w->pipe_dead[k->pipe])
            sim_fail(w, "worker %u: page %u of lease %llx was taken from under it", k->index,
                     k->read_page, (unsigned long long)l->id);
        return;
    }
    uint32_t at = k->read_page * SIM_PAGE_TOKENS;
    uint32_t rows = l->held_tokens - at < SIM_PAGE_TOKENS ? l->held_tokens - at : SIM_PAGE_TOKENS;
    if (l->is_view) {
        sim_view_has(l, k->read_page, &rows);
        w->n.view_alone +=
            l->arena == w->d->boot - 1 &&
            core_would_hold(w->core, k->realm, l->tokens, l->held_tokens) < l->held_tokens;
    }
    uint32_t payload_slot = sim_rank(w, k) * w->geometry.n_groups + k->read_group;
    uint64_t wrong = sim_payload_wrong(w, payload_slot, l->tokens, k->read_page, rows,
                                       k->read_bytes, page->bytes);
    if (wrong == UINT64_MAX && k->arena_of == w && sim_is_damaged(w, l, page)) {
        w->n.damaged++;
        if (!k->op && k->state == WORKER_READY && l->stale == 0)
            sim_suspect(w, k, k->read_lease, k->read_group, k->read_page);
        return;
    }
    if (wrong)
        sim_fail(w, "worker %u: page %u of lease %llx has %llu wrong elements", k->index,
                 k->read_page, (unsigned long long)l->id, (unsigned long long)wrong);
}

static void read_lease(sim_world *w, sim_worker *k, uint32_t slot) {
    const sim_lease *l = &k->leases[slot];
    for (uint32_t group = 0; group < w->geometry.n_groups; group++)
        for (uint32_t page = l->first_page[group]; page < l->n_pages; page++) {
            if (!l->pages[group][page].bytes)
                continue; /* a view has no row in it */
            read_begin(w, k, slot, group, page);
            if (sim_chance(w, 60))
                return; /* the other half later */
            read_end(w, k);
        }
}

/* --- replies ------------------------------------------------------------------------------------
 */

static void take_list(sim_world *w, sim_worker *k, sim_lease *l, uint32_t group,
                      const kvt_page_list *list) {
    uint32_t covered = (l->held_tokens + SIM_PAGE_TOKENS - 1) / SIM_PAGE_TOKENS;
    uint32_t first = list->first_page, n = list->n_pages;
    uint32_t window = w->geometry.groups[group].window;
    if ((first < covered && first + n < covered) || first + n > SIM_MAX_PAGES + 1)
        sim_fail(w, "worker %u: %u held tokens come with pages up to %u", k->index, l->held_tokens,
                 first + n);
    if (window && first * SIM_PAGE_TOKENS > kvt_wire_window_first(l->held_tokens, window))
        sim_fail(w, "worker %u: %u held tokens come with group %u from page %u on", k->index,
                 l->held_tokens, group, first);
    l->n_pages = covered;
    l->first_page[group] = window ? first : 0;
    for (uint32_t i = 0; i < n; i++)
        kvt_wire_get_page(list->pages, i, &l->pages[group][first + i]);
    for (uint32_t i = first; i < covered; i++) {
        uint32_t rows = l->held_tokens - i * SIM_PAGE_TOKENS;
        rows = rows < SIM_PAGE_TOKENS ? rows : SIM_PAGE_TOKENS;
        const kvt_wire_page *p = &l->pages[group][i];
        if (p->rows < rows || p->frame >= w->config.max_frames ||
            p->offset + p->bytes > w->config.arena_bytes)
            sim_fail(w, "worker %u: page %u has %u rows, %u are held", k->index, i, p->rows, rows);
    }
}

static void take_lists(sim_world *w, sim_worker *k, sim_lease *l, uint32_t n_lists,
                       const kvt_page_list *lists) {
    CHECK_EQ(n_lists, w->geometry.n_groups);
    for (uint32_t group = 0; group < n_lists; group++)
        take_list(w, k, l, group, &lists[group]);
}

static void take_lease(sim_world *w, sim_worker *k, const uint8_t *body, size_t n) {
    kvt_lease_rep rep;
    CHECK_EQ(kvt_wire_get_lease_rep(body, n, &rep), KVT_OK);
    sim_lease *l = &k->leases[k->op_lease];
    int is_new = k->op == KVT_OP_ACQUIRE && !l->used;
    if (rep.held_tokens > rep.n_tokens || rep.n_tokens != k->op_path.n_tokens)
        sim_fail(w, "worker %u: %u of %u tokens held, %u asked for", k->index, rep.held_tokens,
                 rep.n_tokens, k->op_path.n_tokens);
    if (k->op == KVT_OP_WAIT && rep.held_tokens < l->held_tokens)
        sim_fail(w, "worker %u: held tokens fell from %u to %u", k->index, l->held_tokens,
                 rep.held_tokens);
    *l = k->op_path;
    l->used = 1;
    l->stale = 0;
    l->id = rep.lease;
    l->held_tokens = rep.held_tokens;
    l->computing_tokens = rep.computing_tokens;
    l->claimed_tokens = rep.claimed_tokens;
    w->n.hits += rep.held_tokens > 0;
    if (k->op == KVT_OP_ACQUIRE && !l->is_view)
        sim_mirror_compare(w, k, &rep);
    sim_view_take(w, k, l, &rep);
    if (!l->is_view)
        take_lists(w, k, l, rep.n_lists, rep.lists);
    if (is_new && !l->request) /* what ranks get together was found when the first one asked */
        sim_forgotten_check(w, k, l);
    if (k->op == KVT_OP_ACQUIRE && l->request)
        sim_ranks_check(w, k, l);
}

static void take_seal(sim_world *w, sim_worker *k, const uint8_t *body, size_t n) {
    kvt_seal_rep rep;
    CHECK_EQ(kvt_wire_get_seal_rep(body, n, &rep), KVT_OK);
    sim_lease *l = &k->leases[k->op_lease];
    uint32_t first = l->held_tokens / SIM_PAGE_TOKENS;
    if (rep.held_tokens < l->held_tokens)
        sim_fail(w, "worker %u: held tokens fell from %u to %u", k->index, l->held_tokens,
                 rep.held_tokens);
    if (rep.page_status != KVT_OK)
        l->computing_tokens = 1; /* look again before the next try */
    /* The pages come from the first of the message on. Others may have sealed the one that this
     * message left out; then what is known of the path does not reach so far, and of windows it is
     * out of date. */
    if (k->op_first_page != first) {
        l->computing_tokens = 1;
        l->n_pages = 0;
        return;
    }
    l->held_tokens = rep.held_tokens;
    take_lists(w, k, l, rep.n_lists, rep.lists);
}

static sim_world *arena_of(sim_world *w, const kvt_wire_str *path) {
    for (uint32_t i = 0; i < w->d->n_tenants; i++) {
        sim_world *of = w->d->worlds[i];
        /* Behind it stands the number of the GPU, a digit. */
        if (path->n_bytes == strlen(of->arena_path) + 1 &&
            memcmp(path->at, of->arena_path, path->n_bytes - 1u) == 0)
            return of;
    }
    sim_fail(w, "an arena at %.*s", path->n_bytes, path->at);
}

static void take_hello(sim_world *w, sim_worker *k, const kvt_wire_header *header,
                       const uint8_t *body) {
    kvt_hello_rep rep;
    CHECK_EQ(kvt_wire_get_hello_rep(body, header->body_bytes, &rep), KVT_OK);
    memcpy(k->token, rep.token, sizeof k->token);
    k->boot_id = header->boot_id;
    k->arena = w->d->boot - 1;
    if (k->is_stranger)
        sim_fail(w, "worker %u: uid %u belongs to no tenant, and is served", k->index, k->uid);
    k->session = rep.session;
    if (rep.resumed) {
        for (uint32_t i = 0; i < SIM_MAX_LEASES; i++)
            if (k->leases[i].stale == 1)
                k->leases[i].stale = 0;
    } else {
        k->staging = -1;
        k->realm = 0;
        k->any_gpu = 0;
        k->n_cancel = k->n_release = 0;
        for (uint32_t i = 0; i < SIM_MAX_LEASES; i++)
            if (k->leases[i].used)
                k->leases[i].stale = 2;
    }
    k->state = WORKER_READY;
}

static void take_realm(sim_world *w, sim_worker *k, const uint8_t *body, size_t n) {
    kvt_realm_rep rep;
    CHECK_EQ(kvt_wire_get_realm_rep(body, n, &rep), KVT_OK);
    uint32_t gpu = (uint32_t)(rep.arena_path.at[rep.arena_path.n_bytes - 1] - '0');
    CHECK(gpu < w->config.n_arenas);
    k->realm = rep.realm;
    k->arena_of = arena_of(w, &rep.arena_path);
    w->n.moved += k->gpu_boot == w->d->boot && k->gpu != gpu;
    k->gpu = gpu;
    k->gpu_boot = w->d->boot;
}

static void take_release(sim_world *w, sim_worker *k, const uint8_t *body, size_t n) {
    kvt_release_rep rep;
    CHECK_EQ(kvt_wire_get_release_rep(body, n, &rep), KVT_OK);
    if (k->op_path.used && kvt_wire_get_u32(rep.statuses, 0) != KVT_OK)
        sim_fail(w, "worker %u: a lease was lost without a cut", k->index);
}

static void take_staging(sim_world *w, sim_worker *k) {
    if (k->is_thief)
        sim_fail(w, "worker %u: the staging file of another tenant was taken for its own",
                 k->index);
    k->staging = (int)k->op_lease;
}

static void take_error(sim_world *w, sim_worker *k, const kvt_wire_header *header) {
    if (header->status == KVT_EDUPLICATE)
        sim_fail(w, "worker %u: request %llu refused as seen before", k->index,
                 (unsigned long long)header->number);
    if (k->op == KVT_OP_REALM) {
        w->n.gpu_refused++;
        k->any_gpu = sim_chance(w, 200);
    } else if (k->op == KVT_OP_HELLO || k->op == KVT_OP_STAGE) {
        if (k->is_stranger && header->status != KVT_EDENIED)
            sim_fail(w, "worker %u: uid %u, of no tenant, is told %s", k->index, k->uid,
                     kvt_status_name((kvt_status)header->status));
        w->n.strangers += (k->op == KVT_OP_HELLO ? k->is_stranger : k->is_thief) != 0;
        sim_worker_cut(w, k);
    } else if ((k->op == KVT_OP_ACQUIRE || k->op == KVT_OP_FLUSH) && header->status == KVT_ENOENT) {
        k->realm = 0;
    }
}

void sim_worker_message(sim_world *w, sim_worker *k, const uint8_t *bytes, size_t n) {
    kvt_wire_header header;
    const uint8_t *body;
    CHECK_EQ(kvt_wire_open(bytes, n, &header, &body), KVT_OK);
    if (!k->op || header.number != k->op_number || header.status == KVT_EDUPLICATE)
        return; /* too late, or the answer to the second of two */
    uint16_t op = k->op;
    if (header.status != KVT_OK)
        take_error(w, k, &header);
    else if (op == KVT_OP_HELLO)
        take_hello(w, k, &header, body);
    else if (op == KVT_OP_STAGE)
        take_staging(w, k);
    else if (op == KVT_OP_REALM) {
        take_realm(w, k, body, header.body_bytes);
    } else if (op == KVT_OP_ACQUIRE || op == KVT_OP_FORK || op == KVT_OP_WAIT)
        take_lease(w, k, body, header.body_bytes);
    else if (op == KVT_OP_SEAL)
        take_seal(w, k, body, header.body_bytes);
    else if (op == KVT_OP_PIN || op == KVT_OP_FLUSH)
        sim_keep_reply(w, k, op, body, header.body_bytes);
    else if (op == KVT_OP_SUSPECT)
        sim_suspect_reply(w, k, body, header.body_bytes);
    else if (op == KVT_OP_RELEASE)
        take_release(w, k, body, header.body_bytes);
    k->op = 0;
    if (op == KVT_OP_GOODBYE)
        sim_worker_cut(w, k);
    else if (k->state != WORKER_DOWN)
        k->state = WORKER_READY;
}

/* --- its life -----------------------------------------------------------------------------------
 */

static void do_next(sim_world *w, sim_worker *k) {
    outgoing o;
    int slot = some_lease(w, k), room = free_lease(k);
    if (k->n_release || k->n_cancel) {
        undo(w, k);
    } else if (k->staging < 0) {
        call_stage(w, k);
    } else if (!k->realm) {
        call_realm(w, k);
    } else if (w->d->stopping) {
        if (slot >= 0) {
            release_some(w, k);
            return;
        }
        if (sim_keep_home(w, k))
            return;
        sim_begin(&o);
        sim_call(w, k, &o, KVT_OP_GOODBYE, 0, 0);
    } else if (sim_chance(w, sim_tenants(w->d->seed) > 1 ? 90 : 30) && sim_keep(w, k)) {
        return;
    } else if (sim_chance(w, 2)) {
        send_bytes(w, k, (const uint8_t *)"nonsense", 8);
    } else {
        const sim_lease *l = slot >= 0 ? &k->leases[slot] : NULL;
        uint32_t what = sim_below(w, 10), to_seal = w->geometry.n_ranks > 1 ? 9 : 5;
        if (l && l->stale == 0 && sim_below(w, 12) == 0) {
            sim_importance(w, k, (uint32_t)slot);
            return;
        }
        if (l && l->stale == 0 && sim_chance(w, 15)) {
            sim_hurt(w, k, (uint32_t)slot);
            return;
        }
        if (room >= 0 && sim_ranks_due(w, k) && sim_below(w, 2))
            call_acquire(w, k, room, 0);
        else if (l && l->stale == 2)
            k->leases[slot].used = 0; /* it knows: of another daemon or another session */
        else if (l && what < 2)
            read_lease(w, k, (uint32_t)slot);
        else if (l && what < to_seal && l->claimed_tokens > l->held_tokens && !l->computing_tokens)
            call_seal(w, k, slot);
        else if (l && what < 5 && l->computing_tokens)
            call_wait(w, k, slot);
        else if (l && l->is_view && what < 5 && sim_below(w, 8) == 0)
            call_wait(w, k, slot); /* told the same once more */
        else if (l && what < 6 && (!l->is_view || sim_below(w, 8) == 0))
            call_acquire(w, k, slot, 1);
        else if (l && what < 7 && room >= 0)
            call_fork(w, k, slot, room);
        else if (room >= 0 && what < 9)
            call_acquire(w, k, room, 0);
        else
            release_some(w, k);
    }
}

void sim_worker_step(sim_world *w, sim_worker *k) {
    if (sim_chance(w, 4)) {
        sim_worker_kill(w, k);
        return;
    }
    push_step(w, k, sim_chance(w, 10) ? 4000 : 25);
    if (k->reading) {
        read_end(w, k);
    } else if (k->pipe && sim_chance(w, 5)) {
        w->n.cuts++;
        sim_worker_cut(w, k);
    } else if (k->state == WORKER_DOWN) {
        /* Cut off, and in no hurry: it reads on in what it has mapped. */
        int slot = some_lease(w, k);
        if (slot >= 0 && w->d->faults && sim_below(w, 8))
            read_lease(w, k, (uint32_t)slot);
        else if (!w->d->stopping)
            call_hello(w, k);
    } else if (k->op) {
        if (w->d->now_ms < k->op_due_ms) {
            if (k->op != KVT_OP_HELLO && sim_chance(w, 20))
                send_bytes(w, k, k->op_bytes, k->op_n_bytes);
        } else if (k->op == KVT_OP_HELLO || k->op == KVT_OP_STAGE || k->op == KVT_OP_REALM) {
            sim_worker_cut(w, k);
        } else {
            op_lost(k);
        }
    } else if (k->state == WORKER_READY) {
        do_next(w, k);
    }
}
