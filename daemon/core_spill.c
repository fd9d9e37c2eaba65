/*
 * core_spill.c - the jobs of the lower tiers, and what is copied down. One job of a kind at a time,
 * TIER_BATCH pages each, so that copying down never crowds out what workers wait for.
 */
#include "daemon/core_state.h"

#include "store/tier.h"

#include <string.h>

enum {
    STUCK_TRIES = 4,  /* pages looked at, for which the disk has no room */
    STUCK_SEALS = 64, /* pages sealed, until it is looked again */
};

/* --- jobs --------------------------------------------------------------------------------------
 */

core_job *tier_job(core *c, core_job_kind kind, uint32_t realm_slot) {
    tiers *t = c->tiers;
    core_job *job = t->free_jobs;
    if (!job)
        return NULL;
    realm *r = &c->realms[realm_slot];
    t->free_jobs = job->next;
    r->n_jobs++;
    *job = (core_job){.kind = kind,
                      .lane = (uint32_t)(job - t->jobs),
                      .number = ++t->n_started,
                      .copies = job->copies,
                      .records = job->records,
                      .realm = r->number,
                      .raw16 = strcmp(r->names.codec, "f16") == 0 || !r->names.codec[0],
                      .session = realm_slot, /* a tier's job has none */
                      .realm_bytes = r->canonical,
                      .n_realm_bytes = r->n_bytes};
    return job;
}

/* The page is the job's as well from now on; `flag` says so. */
core_copy *tier_job_add(core *c, core_job *job, page_handle page, uint32_t flag) {
    KVT_ASSERT(job->n_copies < TIER_BATCH);
    const page_entry *entry = page_get(c->pages, page);
    const tier_page *at = tier_of(c, page);
    const realm *r = &c->realms[at->realm];
    core_copy *copy = &job->copies[job->n_copies++];
    *copy = (core_copy){.bytes = at->bytes,
                        .rows = entry->rows,
                        .shape = &r->shapes[at->slot % r->n_groups],
                        .status = KVT_EINTERNAL,
                        .frame = PAGE_NO_FRAME,
                        .page = page,
                        .node = entry->node};
    page_ref(c->pages, page);
    tier_set_flags(c, page, flag, 0);
    return copy;
}

void tier_job_drop(core *c, page_handle page) {
    const tier_page *at = tier_of(c, page);
    const realm *r = &c->realms[at->realm];
    uint32_t slot = at->slot; /* the page may be its last, and what is known of it go with it */
    page_drop(c, page);
    window_job_ended(c, r, slot, page);
}

void tier_job_submit(core *c, core_job *job) {
    KVT_ASSERT(job->n_copies > 0 || job->kind == CORE_JOB_VERIFY);
    tiers *t = c->tiers;
    job->next = NULL;
    t->n_jobs++;
    if (job->kind == CORE_JOB_READ && t->n_reads++ == 0 && t->disk_up)
        t->disk_heard_ms = c->env.now_ms(c->env.context);
    c->env.submit(c->env.context, job);
}

void tier_job_free(core *c, core_job *job) {
    c->realms[job->session].n_jobs--;
    job->next = c->tiers->free_jobs;
    c->tiers->free_jobs = job;
}

static uint64_t key_of(const core *c, page_handle page) {
    return radix_key(c->tree, page_get(c->pages, page)->node);
}

/* --- parents first ------------------------------------------------------------------------------
 */

/* The page in front of this one, if that may be written, and is not: it has to go down first. */
static page_handle unwritten_before(const core *c, page_handle page) {
    const tier_page *at = tier_of(c, page);
    if (!c->config.disk_bytes || at->depth == 0)
        return 0;
    radix_node parent = radix_parent(c->tree, page_get(c->pages, page)->node);
    page_handle before = node_page(c, parent, c->realms[at->realm].spine);
    return before && !(tier_of(c, before)->flags & (TIER_ON_DISK | TIER_NO_DISK)) ? before : 0;
}

/* Puts the page before all that were sealed, behind those with fewer pages in front of them. 0: it
 * is not in this order. */
static int goes_first(core *c, order *in, page_handle page) {
    if (!page || !order_has(in, (uint32_t)page))
        return 0;
    order_put(in, (uint32_t)page, tier_of(c, page)->depth);
    return 1;
}

/* Of the pages in front of it that wait in the host tier, one after another, the first. */
static page_handle first_in_host(const core *c, page_handle page) {
    for (page_handle before; (before = unwritten_before(c, page)) != 0; page = before)
        if (!order_has(c->tiers->host_dirty, (uint32_t)before))
            break;
    return page;
}

int waits_for_arena(const core *c, page_handle page) {
    page_handle before = unwritten_before(c, page);
    return before && tier_of(c, before)->host_frame == PAGE_NO_FRAME;
}

static int goes_first_in_arena(core *c, page_handle page) {
    int found = 0;
    for (uint32_t i = 0; i < c->config.n_arenas && !found; i++)
        found = goes_first(c, c->arenas[i].dirty, page);
    return found;
}

/* --- arena to host -----------------------------------------------------------------------------
 */

int disk_takes_none(const tiers *t) {
    return t->disk_stuck || t->disk_fails;
}

/* Without a disk, or one that takes no more, a copy in the host tier only pays when the arena is
 * about to be short of room: then the colder half of it has one. */
static int should_copy_down(const core *c, const arena_books *a) {
    frames_counts n;
    if (order_count(a->dirty) == 0)
        return 0;
    if (c->config.disk_bytes && !disk_takes_none(c->tiers))
        return 1;
    frames_count(a->frames, &n);
    uint32_t clean = order_count(a->clean);
    return (n.slab_bytes > n.arena_bytes / 2 || n.used > n.max_frames / 2) &&
           clean < 2 + (clean + order_count(a->dirty)) / 2;
}

static void down_add(core *c, core_job *job, const arena_books *a) {
    tiers *t = c->tiers;
    uint64_t key;
    for (uint32_t index;
         job->n_copies < TIER_BATCH && (index = order_first(a->dirty, &key)) != ORDER_NONE;) {
        page_handle page = page_at(c->pages, index);
        uint32_t frame;
        if (t->pages[index].flags & TIER_NO_DISK)
            break;
        if (goes_first(c, a->dirty, unwritten_before(c, page)))
            continue;
        if (t->pages[index].bytes > c->config.host_bytes) { /* realm_fits_host has said so */
            tier_never(c, page);
            continue;
        }
        if (room_host(c, t->pages[index].bytes, key_of(c, page), &frame) != KVT_OK)
            break;
        /* Making room may have taken this very page. */
        if (page_at(c->pages, index) != page || !order_has(a->dirty, index)) {
            frames_free(t->host, frame);
            continue;
        }
        core_copy *copy = tier_job_add(c, job, page, TIER_GOING_DOWN);
        copy->frame = frame;
        copy->from_offset = frame_offset(c, page_get(c->pages, page)->frame);
        copy->to_offset = frames_offset(t->host, frame);
        tier_placed(c, page);
    }
}

/* Each time it begins with another arena, so that one with much to copy does not shut out others.
 */
static void down_start(core *c) {
    tiers *t = c->tiers;
    uint32_t n_arenas = c->config.n_arenas, n = 0;
    core_job *job = NULL;
    if (t->down_busy)
        return;
    for (uint32_t i = 0; i < n_arenas; i++)
        n += (uint32_t)should_copy_down(c, &c->arenas[i]);
    if (n > 0)
        job = tier_job(c, CORE_JOB_DOWN, 0);
    if (!job)
        return;
    for (uint32_t i = 0; i < n_arenas; i++) {
        const arena_books *a = &c->arenas[(t->n_started + i) % n_arenas];
        if (should_copy_down(c, a))
            down_add(c, job, a);
    }
    if (job->n_copies == 0) {
        tier_job_free(c, job);
        return;
    }
    t->down_busy = 1;
    tier_job_submit(c, job);
}

static void down_done(core *c, core_copy *copy) {
    tiers *t = c->tiers;
    tier_set_flags(c, copy->page, 0, TIER_GOING_DOWN);
    if (copy->status == KVT_OK && page_get(c->pages, copy->page)->node != RADIX_NONE) {
        tier_set_host(c, copy->page, copy->frame);
        c->counts.pages_demoted++;
    } else {
        frames_free(t->host, copy->frame);
        c->counts.tier_errors += copy->status != KVT_OK;
    }
    tier_placed(c, copy->page);
}

/* --- host to disk ------------------------------------------------------------------------------
 */

void record_of(core *c, page_handle page, core_record *ret_record) {
    const page_entry *entry = page_get(c->pages, page);
    const tier_page *at = tier_of(c, page);
    const realm *r = &c->realms[at->realm];
    radix_node parent = radix_parent(c->tree, entry->node);
    uint32_t n_tokens;
    const uint32_t *tokens = radix_tokens(c->tree, entry->node, &n_tokens);
    *ret_record = (core_record){
        .serial = at->serial, .depth = at->depth, .slot = at->slot, .n_tokens = (uint16_t)n_tokens};
    memcpy(ret_record->tokens, tokens, n_tokens * sizeof *tokens);
    page_handle before = at->depth ? node_page(c, parent, r->spine) : 0;
    if (at->depth == 0)
        ret_record->parent = tier_key_root(r->canonical, r->n_bytes);
    if (before) { /* else a window's page that was lost: the disk will not know this record */
        ret_record->parent = tier_of(c, before)->key;
        ret_record->parent_serial = tier_of(c, before)->serial;
    }
    ret_record->key = tier_key_child(&ret_record->parent, at->slot, tokens, n_tokens);
}

/* Will the node never be found after a restart? Groups with windows can do without a page. */
static int never_found(const core *c, const realm *r, radix_node node) {
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++)
        if ((!r->windows[slot % r->n_groups] || slot == r->spine) &&
            (!node_page(c, node, slot) ||
             tier_of(c, node_page(c, node, slot))->flags & TIER_NO_DISK))
            return 1;
    return 0;
}

/* May it be written now? -1: never, since what stands in front of it never will be, or its tokens
 * do not say what it is. *ret_in_job: the place in the job, plus 1, of the page in front. */
static int may_write(core *c, const core_job *job, page_handle page, uint32_t *ret_in_job) {
    const tier_page *at = tier_of(c, page);
    *ret_in_job = 0;
    if (node_is_marked(c, page_get(c->pages, page)->node))
        return -1;
    if (at->depth == 0)
        return 1;
    radix_node parent = radix_parent(c->tree, page_get(c->pages, page)->node);
    const realm *r = &c->realms[at->realm];
    if (never_found(c, r, parent))
        return -1;
    page_handle before = node_page(c, parent, r->spine);
    for (uint32_t i = 0; job && i < job->n_copies; i++)
        if (job->copies[i].page == before) {
            *ret_in_job = i + 1;
            return 1;
        }
    return (tier_of(c, before)->flags & TIER_ON_DISK) != 0;
}

/* What has to be written before this one can be: the next, or the next to come down. 0: that. */
static int lets_go_first(core *c, const core_job *job, page_handle page) {
    uint32_t in_job;
    page_handle first = first_in_host(c, page);
    if (first != page && may_write(c, job, first, &in_job) != 0)
        return goes_first(c, c->tiers->host_dirty, first);
    return !goes_first_in_arena(c, unwritten_before(c, first));
}

static void set_record_bytes(core *c, page_handle page, uint32_t bytes) {
    tier_page *at = tier_of(c, page);
    c->tiers->disk_used -= tier_charge(at);
    at->record_bytes = bytes;
    c->tiers->disk_used += tier_charge(at);
}

/* What is to be written. Its parent's key is known also while that is in the same job. */
static void written_record(core *c, page_handle page, uint32_t in_job, core_record *ret_record) {
    record_of(c, page, ret_record);
    ret_record->serial = 0;
    ret_record->parent_in_job = in_job;
    if (in_job)
        ret_record->parent_serial = 0;
}

static void write_add(core *c, core_job *job, page_handle page, const core_record *record) {
    tier_page *at = tier_of(c, page);
    job->records[job->n_copies] = *record;
    /* How much smaller it is stored is not known yet; and until a record that is there has been
     * replaced, the larger of the two counts. */
    if (!(at->flags & TIER_CHARGED) || at->record_bytes < at->bytes)
        set_record_bytes(c, page, at->bytes);
    core_copy *copy = tier_job_add(c, job, page, TIER_WRITING);
    copy->from_offset = frames_offset(c->tiers->host, at->host_frame);
    at->key = record->key;
    tier_placed(c, page);
}

static int may_ask_disk(const tiers *t) {
    return t->disk_up && (!t->disk_fails || t->disk_is_tried);
}

static void write_start(core *c) {
    tiers *t = c->tiers;
    t->host_waits = 0;
    if (t->write_busy || !may_ask_disk(t) ||
        (t->disk_stuck && c->counts.pages_sealed - t->stuck_at < STUCK_SEALS))
        return;
    core_job *job = NULL;
    uint64_t key;
    uint32_t n_stuck = 0, n_waiting = 0;
    t->disk_stuck = 0;
    for (uint32_t tries = 0; tries < 2 * TIER_BATCH; tries++) {
        uint32_t index = order_first(t->host_dirty, &key), in_job;
        if (index == ORDER_NONE || (job && job->n_copies == TIER_BATCH))
            break;
        page_handle page = page_at(c->pages, index);
        const tier_page *at = &t->pages[index];
        core_record record;
        int may = may_write(c, job, page, &in_job);
        if (may < 0) {
            tier_set_flags(c, page, TIER_NO_DISK, 0);
            tier_placed(c, page);
            continue;
        }
        if (may > 0)
            written_record(c, page, in_job, &record);
        if (may == 0 || at->flags & TIER_BUSY || key_is_leaving(t, &record.key)) {
            order_put(t->host_dirty, index, ++t->sequence);
            n_waiting += may == 0 && !lets_go_first(c, job, page);
            continue;
        }
        if (job && job->realm != c->realms[at->realm].number)
            break;
        uint64_t bytes = tier_record_bytes(at->bytes, at->n_tokens), has = tier_charge(at);
        if (!room_disk(c, bytes > has ? bytes - has : 0)) {
            if (!t->disk_stuck || ++n_stuck == STUCK_TRIES)
                break;
            order_put(t->host_dirty, index, ++t->sequence);
            continue;
        }
        if (!job)
            job = tier_job(c, CORE_JOB_WRITE, at->realm);
        if (!job)
            break;
        write_add(c, job, page, &record);
    }
    t->disk_stuck &= !job;
    t->disk_fails &= job || t->erase_busy; /* with nothing to try it on */
    t->host_waits = n_waiting > 0 && !job && !t->disk_stuck;
    if (t->disk_stuck) {
        t->stuck_at = c->counts.pages_sealed;
        t->disk_retry_ms = c->env.now_ms(c->env.context) + DISK_RETRY_MS;
    }
    if (job) {
        t->write_busy = 1;
        tier_job_submit(c, job);
    }
}

/* The disk says that the page in front of this one is not there, though it was: it is to be written
 * again, or nobody has it any more. */
static void parent_is_gone(core *c, page_handle page) {
    radix_node parent = radix_parent(c->tree, page_get(c->pages, page)->node);
    page_handle before = node_page(c, parent, c->realms[tier_of(c, page)->realm].spine);
    if (!before || !(tier_of(c, before)->flags & TIER_ON_DISK))
        return;
    tier_set_flags(c, before, 0, TIER_ON_DISK);
    if (page_get(c->pages, before)->frame == PAGE_NO_FRAME &&
        tier_of(c, before)->host_frame == PAGE_NO_FRAME)
        page_lost(c, before);
    else
        tier_placed(c, before);
}

/* It may be the file system, which others fill and empty, or that the file takes more than its
 * records: there is no room for more than there is now. Asked again, not only after erasing. */
static void disk_is_full(core *c) {
    if (c->tiers->disk_limit > c->tiers->disk_used)
        c->tiers->disk_limit = c->tiers->disk_used;
    c->tiers->disk_retry_ms = c->env.now_ms(c->env.context) + DISK_RETRY_MS;
}

/* If its process has died, core_disk_up has said so, and the new one is asked at once. Else it
 * would fail again at once, and again, and what is on disk could not be read meanwhile. */
static void disk_has_failed(core *c) {
    tiers *t = c->tiers;
    t->disk_fails = 1;
    t->disk_is_tried = 0;
    t->disk_retry_ms = c->env.now_ms(c->env.context) + DISK_RETRY_MS;
    c->counts.tier_errors++;
}

static void write_done(core *c, core_copy *copy, const core_record *record) {
    tiers *t = c->tiers;
    tier_page *at = tier_of(c, copy->page);
    if (copy->status == KVT_OK) {
        at->serial = record->serial;
        tier_set_flags(c, copy->page, TIER_ON_DISK, TIER_WRITING | TIER_STALE_RECORD);
        set_record_bytes(c, copy->page, record->stored);
        c->counts.pages_written++;
        t->freed_bytes = 0;
        if (at->flags & TIER_NO_DISK && page_get(c->pages, copy->page)->node != RADIX_NONE)
            tier_withdraw(c, page_get(c->pages, copy->page)->node);
    } else {
        uint32_t set = copy->status == KVT_EEXIST ? TIER_NO_DISK : 0;
        /* Nobody knows whether it was written: it is written anew, or erased with the page. */
        if (copy->status == KVT_EIO && record->serial != 0) {
            at->serial = record->serial;
            set = TIER_STALE_RECORD;
        }
        tier_set_flags(c, copy->page, set, TIER_WRITING);
        t->disk_full |= copy->status == KVT_EFULL;
        if (copy->status == KVT_EIO)
            disk_has_failed(c);
        if (copy->status == KVT_EORDER && !record->parent_in_job && at->depth > 0 &&
            page_get(c->pages, copy->page)->node != RADIX_NONE)
            parent_is_gone(c, copy->page);
    }
    tier_placed(c, copy->page);
}

/* --- erasing -----------------------------------------------------------------------------------
 */

static void erase_start(core *c) {
    tiers *t = c->tiers;
    if (t->erase_busy || !may_ask_disk(t) || t->n_erase == 0)
        return;
    core_job *job = tier_job(c, CORE_JOB_ERASE, 0);
    if (!job)
        return;
    job->n_copies = t->n_erase < TIER_BATCH ? t->n_erase : TIER_BATCH;
    for (uint32_t i = 0; i < job->n_copies; i++) {
        const tier_erase *e = &t->erase[(t->first_erase + i) % t->max_pages];
        job->copies[i] = (core_copy){.status = KVT_EINTERNAL};
        job->records[i] =
            (core_record){.key = e->key, .serial = e->serial, .depth = e->depth, .slot = e->slot};
    }
    t->erase_busy = 1;
    tier_job_submit(c, job);
}

/* What could not be erased stays first in the ring, for when the disk is up again. */
static void erase_done(core *c, const core_job *job) {
    tiers *t = c->tiers;
    t->erase_busy = 0;
    for (uint32_t i = 0; i < job->n_copies && t->n_erase > 0; i++) {
        kvt_status status = job->copies[i].status;
        if (status != KVT_OK && status != KVT_ENOENT) {
            disk_has_failed(c);
            return;
        }
        erase_pop(t);
        t->disk_full = t->disk_stuck = 0;
    }
}

/* --- both ways ---------------------------------------------------------------------------------
 */

void tiers_pump(core *c) {
    if (!c->tiers)
        return;
    if (c->config.disk_bytes) {
        erase_start(c);
        write_start(c);
    }
    down_start(c);
    c->tiers->host_waits = 0; /* it is for what goes down that others make room */
}

uint64_t disk_tick(core *c, uint64_t now_ms) {
    tiers *t = c->tiers;
    int waits = t && (t->disk_full || t->disk_stuck || (t->disk_fails && !t->disk_is_tried));
    if (!t || !(waits || t->disk_limit < c->config.disk_bytes))
        return UINT64_MAX;
    if (now_ms < t->disk_retry_ms)
        return t->disk_retry_ms;
    t->disk_full = t->disk_stuck = 0;
    t->disk_is_tried = 1;
    t->disk_limit = c->config.disk_bytes;
    return UINT64_MAX;
}

void tier_job_done(core *c, core_job *job) {
    tiers *t = c->tiers;
    KVT_ASSERT(t && t->n_jobs > 0);
    t->n_jobs--;
    t->n_reads -= job->kind == CORE_JOB_READ;
    if (t->disk_up && job->kind != CORE_JOB_DOWN && job->kind != CORE_JOB_UP)
        t->disk_heard_ms = c->env.now_ms(c->env.context);
    if (job->kind == CORE_JOB_ERASE) {
        erase_done(c, job);
    } else if (job->kind == CORE_JOB_VERIFY) {
        verify_done(c, job);
    } else if (job->kind == CORE_JOB_UP || job->kind == CORE_JOB_READ) {
        promote_done(c, job);
    } else {
        if (job->kind == CORE_JOB_DOWN)
            t->down_busy = 0;
        else
            t->write_busy = 0;
        for (uint32_t i = 0; i < job->n_copies; i++) {
            if (job->kind == CORE_JOB_DOWN)
                down_done(c, &job->copies[i]);
            else
                write_done(c, &job->copies[i], &job->records[i]);
            tier_job_drop(c, job->copies[i].page);
        }
        if (job->kind == CORE_JOB_WRITE && t->disk_is_tried)
            t->disk_fails = 0; /* else it would not be any more */
        if (job->kind == CORE_JOB_WRITE && t->disk_full)
            disk_is_full(c);
    }
    tier_job_free(c, job);
    c->wake = 1;
}

void core_tiers_end(core *c) {
    if (c->tiers)
        c->tiers->is_closed = 1;
}

/* --- SPILL: everything down, now ---------------------------------------------------------------
 */

static int nothing_moves_down(const tiers *t) {
    return !t->down_busy && !t->write_busy && !t->erase_busy && t->n_erase == 0;
}

/* Those that never go down are last, and nobody waits for them. */
static int arenas_wait(const core *c) {
    uint64_t key;
    for (uint32_t i = 0; i < c->config.n_arenas; i++) {
        uint32_t index = order_first(c->arenas[i].dirty, &key);
        if (index != ORDER_NONE && !(c->tiers->pages[index].flags & TIER_NO_DISK))
            return 1;
    }
    return 0;
}

uint32_t dirty_never(const core *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->config.n_arenas; i++)
        for (uint32_t k = 0; k < order_count(c->arenas[i].dirty); k++)
            n += (c->tiers->pages[order_at(c->arenas[i].dirty, k)].flags & TIER_NO_DISK) != 0;
    return n;
}

int spill_is_over(const core *c) {
    const tiers *t = c->tiers;
    if (!t || !c->config.disk_bytes || !t->disk_up)
        return 1;
    return nothing_moves_down(t) && !arenas_wait(c) && order_count(t->host_dirty) == 0;
}

int spill_is_stuck(const core *c) {
    const tiers *t = c->tiers;
    if (!t || !c->config.disk_bytes)
        return 0;
    return t->disk_fails || ((t->disk_full || t->disk_stuck) && nothing_moves_down(t));
}
