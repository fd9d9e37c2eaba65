/*
 * core_promote.c - bringing the pages of a path up into the arena, front to back, for a lease that
 * waits for them or ahead of one (PREFETCH). Whoever asks for a page that is on its way waits for
 * the same copy: one read serves all.
 */
#include "daemon/core_state.h"

/* The jobs that one call fills. */
typedef struct lift {
    core_job *up, *read;
    int is_short; /* there was no job or no room for a page: that may come when a job is done */
} lift;

static void lift_submit(core *c, core_job **job) {
    if (*job && (*job)->n_copies > 0)
        tier_job_submit(c, *job);
    else if (*job)
        tier_job_free(c, *job);
    *job = NULL;
}

static core_job *lift_job(core *c, core_job **job, core_job_kind kind, uint32_t realm_slot) {
    if (*job && (*job)->n_copies == TIER_BATCH)
        lift_submit(c, job);
    if (!*job)
        *job = tier_job(c, kind, realm_slot);
    return *job;
}

static int lift_from_host(core *c, lift *jobs, page_handle page) {
    const tier_page *at = tier_of(c, page);
    uint32_t frame, arena = slot_arena(c, &c->realms[at->realm], at->slot);
    if (arena == ARENA_NONE) /* nobody has come who could read it */
        return 0;
    core_job *job = lift_job(c, &jobs->up, CORE_JOB_UP, at->realm);
    if (!job || frame_alloc(c, arena, at->bytes, &frame) != KVT_OK) {
        jobs->is_short |= !job || room_is_coming(c, arena);
        return 0;
    }
    /* Making room may have taken its copy in the host tier, if it has one on disk, or the page of a
     * view, which nothing pins, out of the tree. */
    if (!(at->flags & TIER_KNOWN) || at->host_frame == PAGE_NO_FRAME) {
        frame_free(c, frame);
        return 0;
    }
    core_copy *copy = tier_job_add(c, job, page, TIER_GOING_UP);
    copy->frame = frame;
    copy->from_offset = frames_offset(c->tiers->host, at->host_frame);
    copy->to_offset = frame_offset(c, frame);
    tier_placed(c, page);
    return 1;
}

static int read_page(core *c, core_job *job, page_handle page) {
    const tier_page *at = tier_of(c, page);
    uint32_t frame;
    if (room_host(c, at->bytes, UINT64_MAX, &frame) != KVT_OK)
        return 0;
    /* As above: a page that nothing pins may have been what went. */
    const page_entry *entry = page_get(c->pages, page);
    if (!entry || entry->node == RADIX_NONE || !(at->flags & TIER_ON_DISK)) {
        frames_free(c->tiers->host, frame);
        return 0;
    }
    record_of(c, page, &job->records[job->n_copies]);
    core_copy *copy = tier_job_add(c, job, page, TIER_READING);
    copy->frame = frame;
    copy->to_offset = frames_offset(c->tiers->host, frame);
    return 1;
}

static int lift_from_disk(core *c, lift *jobs, page_handle page) {
    if (!disk_may_read(c, page))
        return 0;
    /* However many a disk keeps waiting, what comes up from the host tier has jobs left. */
    core_job *job = jobs->read || c->tiers->n_reads < TIER_JOBS / 2
                        ? lift_job(c, &jobs->read, CORE_JOB_READ, tier_of(c, page)->realm)
                        : NULL;
    int goes = job && read_page(c, job, page);
    jobs->is_short |= !goes;
    return goes;
}

core_job *promote_for_cooling(core *c, core_job *job, page_handle page) {
    uint32_t realm_slot = tier_of(c, page)->realm;
    if (!disk_may_read(c, page))
        return job;
    if (!job) {
        job = tier_job(c, CORE_JOB_READ, realm_slot);
        if (!job)
            return NULL;
        job->quiet = 1;
    }
    if (job->session == realm_slot)
        read_page(c, job, page);
    return job;
}

/* Is it on its way, or was it sent on its way now? */
static int lift_page(core *c, lift *jobs, page_handle page) {
    const tier_page *at = tier_of(c, page);
    if (at->flags & (TIER_GOING_UP | TIER_READING))
        return 1;
    if (at->host_frame != PAGE_NO_FRAME)
        return lift_from_host(c, jobs, page);
    return at->flags & TIER_ON_DISK ? lift_from_disk(c, jobs, page) : 0;
}

uint32_t next_absent(const core *c, const realm *r, radix_node node, uint32_t n_tokens,
                     uint32_t slot) {
    uint32_t n_slots = radix_slots(c->tree, node), depth = radix_depth(c->tree, node);
    while (slot < n_slots && !(entry_is_absent(node_entry(c, node, slot)) &&
                               slot_is_needed(r, slot, depth, n_tokens)))
        slot++;
    return slot;
}

/* 1: all that is needed of it, and missing, is on its way; 0: something cannot be. *n_on_way
 * counts. */
static int lift_node(core *c, lift *jobs, const realm *r, radix_node node, uint32_t n_tokens,
                     uint32_t *n_on_way) {
    uint32_t n = radix_slots(c->tree, node);
    for (uint32_t slot = 0; (slot = next_absent(c, r, node, n_tokens, slot)) < n; slot++) {
        if (!lift_page(c, jobs, node_page(c, node, slot)))
            return 0;
        ++*n_on_way;
    }
    return 1;
}

/* All ranks' pages: none is told of what another cannot read. */
static int lift_held(core *c, lift *jobs, const realm *r, const held_prefix *h,
                     uint32_t *n_on_way) {
    uint32_t n = 0;
    int goes_on = 1;
    radix_node at = h->last;
    for (uint32_t page = h->pages; page > 0; page--, at = radix_parent(c->tree, at))
        if (next_absent(c, r, at, h->tokens, 0) < radix_slots(c->tree, at))
            c->path[n++] = at;
    while (n > 0 && goes_on)
        goes_on = lift_node(c, jobs, r, c->path[--n], h->tokens, n_on_way);
    return goes_on;
}

static int promote_path(core *c, const lease *l) {
    const realm *r = &c->realms[l->realm];
    uint32_t n_on_way = 0;
    lift jobs = {0};
    if (!c->tiers || c->tiers->n_absent == 0)
        return 0;
    /* For what it is told, and for what it will be when it has computed the one that was left. */
    held_prefix h = lease_whole(c, l, lease_most(l)), all = lease_whole(c, l, UINT32_MAX);
    if (lift_held(c, &jobs, r, &h, &n_on_way) && all.tokens != h.tokens)
        lift_held(c, &jobs, r, &all, &n_on_way);
    lift_submit(c, &jobs.up);
    lift_submit(c, &jobs.read);
    return n_on_way > 0 || (jobs.is_short && c->tiers->n_jobs > 0);
}

/* Of a view's pages: those of its sinks and its window, or the others. The pages between are not
 * pinned, so they may make room for these. */
static int lift_view(core *c, lift *jobs, const lease *l, int sure, uint32_t *n_on_way) {
    for (uint32_t i = l->first_view_page; i; i = c->view_pages[i - 1].next) {
        const view_page *v = &c->view_pages[i - 1];
        const page_entry *entry = page_get(c->pages, v->page);
        if (view_page_is_sure(c, l, v) != sure || entry->node == RADIX_NONE ||
            !entry_is_absent(entry))
            continue;
        if (!lift_page(c, jobs, v->page))
            return 0;
        ++*n_on_way;
    }
    return 1;
}

static int promote_view(core *c, const lease *l) {
    uint32_t n_on_way = 0;
    lift jobs = {0};
    if (!c->tiers || c->tiers->n_absent == 0)
        return 0;
    const lease *of = view_of(c, l);
    if (lift_view(c, &jobs, of, 1, &n_on_way))
        lift_view(c, &jobs, of, 0, &n_on_way);
    lift_submit(c, &jobs.up);
    lift_submit(c, &jobs.read);
    return n_on_way > 0 || (jobs.is_short && c->tiers->n_jobs > 0);
}

int promote_lease(core *c, const lease *l) {
    return l->is_view ? promote_view(c, l) : promote_path(c, l);
}

/* --- completions -------------------------------------------------------------------------------
 */

static void up_done(core *c, core_copy *copy) {
    const page_entry *entry = page_get(c->pages, copy->page);
    tier_page *at = tier_of(c, copy->page);
    tier_set_flags(c, copy->page, 0, TIER_GOING_UP);
    if (entry->node == RADIX_NONE) {
        frame_free(c, copy->frame);
        return;
    }
    if (copy->status == KVT_OK) {
        page_set_frame(c->pages, copy->page, copy->frame);
        at->lifted_at = ++c->tiers->moves;
        c->tiers->n_absent--;
        c->counts.pages_promoted++;
        tier_placed(c, copy->page);
        return;
    }
    frame_free(c, copy->frame);
    c->counts.tier_errors++;
    if (copy->status == KVT_ECORRUPT && !(at->flags & TIER_BUSY)) {
        damage_note(c, copy->page, "in the host tier");
        tier_drop_host(c, copy->page);
        if (!(at->flags & TIER_ON_DISK)) {
            page_lost(c, copy->page);
            return;
        }
    }
    tier_placed(c, copy->page);
}

static void read_done(core *c, core_copy *copy) {
    const page_entry *entry = page_get(c->pages, copy->page);
    tier_set_flags(c, copy->page, 0, TIER_READING);
    if (copy->status == KVT_OK && entry->node != RADIX_NONE) {
        tier_set_host(c, copy->page, copy->frame);
        tier_of(c, copy->page)->read_at = ++c->tiers->moves;
        tier_placed(c, copy->page);
        if (tier_of(c, copy->page)->flags & TIER_NO_DISK) /* flushed meanwhile */
            tier_withdraw(c, entry->node);
        c->counts.pages_read++;
        return;
    }
    frames_free(c->tiers->host, copy->frame);
    if (copy->status == KVT_OK || entry->node == RADIX_NONE)
        return;
    c->counts.tier_errors++;
    if (copy->status == KVT_EIO) {
        disk_read_failed(c, tier_of(c, copy->page));
        if (tier_of(c, copy->page)->flags & TIER_NO_DISK) /* flushed meanwhile: see core_flush.c */
            page_let_go(c, copy->page);
        return;
    }
    if (copy->status == KVT_ECORRUPT)
        damage_note(c, copy->page, "on disk");
    tier_set_flags(c, copy->page, 0, TIER_ON_DISK);
    page_lost(c, copy->page);
}

/* What was read goes on up; if it was for nobody, what somebody has come to lease meanwhile. */
static void lift_again(core *c, core_job *done) {
    lift jobs = {0};
    for (uint32_t i = 0; i < done->n_copies; i++) {
        const page_entry *entry = page_get(c->pages, done->copies[i].page);
        if (done->copies[i].status != KVT_OK || entry->node == RADIX_NONE)
            continue;
        radix_node node = entry->node;
        if (done->quiet && !radix_is_busy(c->tree, node))
            continue;
        radix_pin(c->tree, node);
        int goes_on = lift_page(c, &jobs, done->copies[i].page);
        radix_unpin(c->tree, node);
        if (!goes_on)
            break;
    }
    lift_submit(c, &jobs.up);
    KVT_ASSERT(!jobs.read);
}

void promote_done(core *c, core_job *job) {
    for (uint32_t i = 0; i < job->n_copies; i++) {
        if (job->kind == CORE_JOB_UP)
            up_done(c, &job->copies[i]);
        else
            read_done(c, &job->copies[i]);
    }
    if (job->kind == CORE_JOB_READ)
        lift_again(c, job);
    if (job->quiet)
        cool_fetch_ended(c);
    for (uint32_t i = 0; i < job->n_copies; i++) {
        if (job->quiet)
            cool_fetched(c, job->copies[i].page);
        tier_job_drop(c, job->copies[i].page);
    }
}

/* --- what a lease is told ----------------------------------------------------------------------
 */

/*
 * A page that a lease pins leaves the arena no more. So where it was when the lease asked for it
 * follows from when it came up last: since then from the disk, since then from the host, or before.
 */
uint32_t lease_page_tier(const core *c, const lease *l, page_handle page) {
    if (!c->tiers)
        return KVT_TIER_DEVICE;
    const tier_page *at = tier_of(c, page);
    if (at->read_at > l->asked_at)
        return KVT_TIER_DISK;
    return at->lifted_at > l->asked_at ? KVT_TIER_HOST : KVT_TIER_DEVICE;
}

/* Is some of what it holds not in the arena? */
static int lacks_some(const core *c, const lease *l, uint32_t most) {
    return c->tiers && c->tiers->n_absent &&
           lease_look(c, l, most).tokens < lease_whole(c, l, most).tokens;
}

void lease_note_tiers(core *c, lease *l) {
    l->asked_at = c->tiers ? c->tiers->moves : 0;
    if (l->is_view)
        l->was_absent = (uint8_t)view_is_absent(c, l);
    else
        l->was_absent = lacks_some(c, l, lease_most(l)) || lacks_some(c, l, UINT32_MAX);
}

/* The lowest tier that any of the node's pages was in. */
static uint32_t node_came_from(const core *c, const lease *l, radix_node node) {
    uint32_t tier = KVT_TIER_DEVICE;
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++) {
        page_handle page = node_page(c, node, slot);
        uint32_t at = page ? lease_page_tier(c, l, page) : KVT_TIER_DEVICE;
        tier = at > tier ? at : tier;
    }
    return tier;
}

void lease_count_tiers(core *c, lease *l) {
    uint32_t n[KVT_TIER_DISK + 1] = {0}, page_tokens = c->realms[l->realm].page_tokens;
    held_prefix h = {0};
    if (l->was_absent && l->is_view)
        view_count_tiers(c, l, n);
    else if (l->was_absent)
        h = lease_look(c, l, UINT32_MAX);
    radix_node node = h.last;
    for (uint32_t page = h.pages; page > 0; page--, node = radix_parent(c->tree, node)) {
        uint32_t left = h.tokens - (page - 1) * page_tokens;
        n[node_came_from(c, l, node)] += left < page_tokens ? left : page_tokens;
    }
    l->from_host = n[KVT_TIER_HOST];
    l->from_disk = n[KVT_TIER_DISK];
    c->counts.tokens_from_host += l->from_host;
    c->counts.tokens_from_disk += l->from_disk;
}

uint32_t lease_lifting_end(const core *c, const lease *l) {
    const realm *r = &c->realms[l->realm];
    if (!lacks_some(c, l, UINT32_MAX))
        return 0;
    held_prefix h = lease_whole(c, l, UINT32_MAX);
    radix_node first = RADIX_NONE, at = h.last;
    for (uint32_t page = h.pages; page > 0; page--, at = radix_parent(c->tree, at))
        if (next_absent(c, r, at, h.tokens, 0) < radix_slots(c->tree, at))
            first = at;
    if (first == RADIX_NONE)
        return 0;
    uint32_t n = radix_slots(c->tree, first), end = path_tokens(c, lease_held(c, l));
    for (uint32_t slot = 0; (slot = next_absent(c, r, first, h.tokens, slot)) < n; slot++)
        if (!(tier_of(c, node_page(c, first, slot))->flags & (TIER_GOING_UP | TIER_READING)))
            return 0;
    return h.tokens < end ? h.tokens : end;
}

/* --- PREFETCH ----------------------------------------------------------------------------------
 */

void serve_prefetch(core *c, request *rq) {
    kvt_prefetch_req req;
    kvt_status status = kvt_wire_get_prefetch_req(rq->body, rq->n_bytes, &req);
    if (status == KVT_ELIMIT) {
        refuse(c, rq, KVT_ELIMIT, "a path has at most %d tokens", KVT_MAX_REQUEST_TOKENS);
        return;
    }
    if (status != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    realm *r = realm_get(c, req.realm);
    if (!r) {
        refuse(c, rq, KVT_ENOENT, "realm %u is not known (any more); register it", req.realm);
        return;
    }
    radix_match m;
    kvt_wire_get_tokens(req.tokens, req.n_tokens, c->tokens);
    radix_find(c->tree, r->root, c->tokens, req.n_tokens, &m);
    c->counts.find_visits += m.visits;
    radix_touch(c->tree, m.held,
                policy_key_now(c->policy)); /* it will be used: it stays till then */
    /* As a lease on it would be told, if it were one. */
    lease l = {.tail = m.held,
               .partial = m.partial,
               .partial_tokens = m.partial_tokens,
               .n_tokens = req.n_tokens,
               .realm = (uint32_t)(r - c->realms)};
    radix_pin(c->tree, m.held); /* making room must not take it */
    if (m.partial != RADIX_NONE)
        radix_pin(c->tree, m.partial);
    promote_path(c, &l);
    radix_unpin(c->tree, m.held);
    if (m.partial != RADIX_NONE)
        radix_unpin(c->tree, m.partial);
    kvt_prefetch_rep rep = {.held_tokens = path_tokens(c, m.held) + m.partial_tokens,
                            .ready_tokens = lease_held_tokens(c, &l)};
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_prefetch_rep(&w, &rep);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}
