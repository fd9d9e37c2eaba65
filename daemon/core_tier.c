/*
 * core_tier.c - where the bytes of sealed pages are, and in what order they leave a tier.
 *
 *              seal                room_device
 *   (worker) -------> arena frame ------------> (no frame)
 *                       |  ^                        |
 *                  DOWN |  | UP                     |  a page that is in no tier does not exist
 *                       v  |       room_host        |
 *                     host frame ---------------> (no frame)
 *                       |  ^
 *                 WRITE |  | READ
 *                       v  |       room_disk
 *                     record ------------------> (erased, with the node)
 *
 * Copying down comes before the room is needed; leaving a tier is then a decision, not a wait. A
 * copy in a lower tier holds the same bytes; so the page is one page, whichever tier it is read
 * from. A page leaves the tree, and all tiers at once, only as the tail of a path (core_evict.c).
 *
 * The orders of a tier are lazy: a page that was used keeps its old key in them until it comes to
 * the front, and is then put back by its new one. So a use costs nothing here.
 */
#include "daemon/core_state.h"
#include "store/tier.h"
#include "kernels/say.h"

#include <stdlib.h>
#include <string.h>

/* --- open, close -------------------------------------------------------------------------------
 */

uint32_t page_slack(const core_config *config) {
    uint32_t of_cooling = config->ladder && config->ladder[0] ? COOL_BATCH : 0;
    return config->max_pages + of_cooling + CORE_CHECK_JOBS +
           (config->host_bytes ? TIER_JOBS * TIER_BATCH : 0);
}

static kvt_status open_order(uint32_t pages, uint32_t room, void **memory, order **ret_order) {
    size_t bytes = order_bytes(pages, room);
    *memory = calloc(1, bytes);
    return *memory ? order_init(*memory, bytes, pages, room, ret_order) : KVT_ENOMEM;
}

static kvt_status open_orders(tiers *t, const core_config *g) {
    uint32_t in_host = g->max_host_frames < t->max_pages ? g->max_host_frames : t->max_pages;
    kvt_status status = open_order(t->max_pages, in_host, &t->order_memory[0], &t->host_clean);
    if (status == KVT_OK)
        status = open_order(t->max_pages, in_host, &t->order_memory[1], &t->host_dirty);
    return status;
}

/* Each arena's own. Without lower tiers one arena needs none: the tree knows its coldest tail. */
static kvt_status open_arena_orders(core *c) {
    const core_config *g = &c->config;
    uint32_t n_pages = g->max_pages + page_slack(g);
    uint32_t room = g->max_frames < n_pages ? g->max_frames : n_pages;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < g->n_arenas && status == KVT_OK; i++) {
        arena_books *a = &c->arenas[i];
        if (g->n_arenas > 1 || g->host_bytes)
            status = open_order(n_pages, room, &a->order_memory[0], &a->dirty);
        if (status == KVT_OK && g->host_bytes)
            status = open_order(n_pages, room, &a->order_memory[1], &a->clean);
    }
    return status;
}

static kvt_status open_jobs(tiers *t) {
    t->jobs = calloc(TIER_JOBS, sizeof *t->jobs);
    t->copies = calloc(TIER_JOBS * TIER_BATCH, sizeof *t->copies);
    t->records = calloc(TIER_JOBS * TIER_BATCH, sizeof *t->records);
    if (!t->jobs || !t->copies || !t->records)
        return KVT_ENOMEM;
    for (uint32_t i = TIER_JOBS; i > 0; i--) {
        t->jobs[i - 1] = (core_job){.copies = t->copies + (size_t)(i - 1) * TIER_BATCH,
                                    .records = t->records + (size_t)(i - 1) * TIER_BATCH,
                                    .next = t->free_jobs};
        t->free_jobs = &t->jobs[i - 1];
    }
    return KVT_OK;
}

static kvt_status open_disk(tiers *t) {
    uint32_t places = 64;
    while (places < t->max_pages && places < 1u << 31)
        places *= 2;
    t->erase = calloc(t->max_pages, sizeof *t->erase);
    t->leaving = calloc((size_t)places * 2, sizeof *t->leaving);
    t->leaving_mask = places * 2 - 1;
    t->found = calloc((size_t)places * 2, sizeof *t->found);
    t->found_mask = places * 2 - 1;
    t->open = calloc(t->max_pages, sizeof *t->open);
    t->disk_up = 1;
    return t->erase && t->leaving && t->found && t->open ? KVT_OK : KVT_ENOMEM;
}

kvt_status tiers_open(core *c) {
    const core_config *g = &c->config;
    kvt_status status = open_arena_orders(c);
    if (g->host_bytes == 0 || status != KVT_OK)
        return status;
    tiers *t = c->tiers = calloc(1, sizeof *t);
    if (!t)
        return KVT_ENOMEM;
    t->max_pages = g->max_pages + page_slack(g);
    t->disk_limit = g->disk_bytes;
    t->sequence = UINT64_C(1) << 32;
    t->pages = calloc(t->max_pages, sizeof *t->pages);
    t->host_generations = calloc(g->max_host_frames, sizeof *t->host_generations);
    t->host_page = calloc(g->max_host_frames, sizeof *t->host_page);
    size_t bytes = frames_bytes(g->host_bytes, g->max_host_frames);
    t->host_memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!t->pages || !t->host_generations || !t->host_page || !t->host_memory)
        return KVT_ENOMEM;
    memset(t->host_memory, 0, bytes);
    status = frames_init(t->host_memory, bytes, g->host_bytes, g->max_host_frames,
                         t->host_generations, &t->host);
    if (status == KVT_OK)
        status = open_orders(t, g);
    if (status == KVT_OK)
        status = open_jobs(t);
    if (status == KVT_OK && g->disk_bytes)
        status = open_disk(t);
    return status;
}

void tiers_close(tiers *t) {
    if (!t)
        return;
    for (int i = 0; i < 2; i++)
        free(t->order_memory[i]);
    free(t->pages);
    free(t->host_generations);
    free(t->host_page);
    free(t->host_memory);
    free(t->erase);
    free(t->leaving);
    free(t->found);
    free(t->open);
    free(t->jobs);
    free(t->copies);
    free(t->records);
    free(t);
}

/* --- records that are to go -------------------------------------------------------------------
 */

static uint32_t *leaving_place(const tiers *t, const tier_key *key) {
    uint64_t hash;
    memcpy(&hash, key->at, sizeof hash);
    return &t->leaving[hash & t->leaving_mask];
}

int key_is_leaving(const tiers *t, const tier_key *key) {
    return *leaving_place(t, key) > 0;
}

/* `leaving` counts for a page that has a record, or will have one that nobody wants any more. */
static void set_leaving(tiers *t, tier_page *at, int leaving) {
    if (leaving == ((at->flags & TIER_LEAVING) != 0) || (leaving && !(at->flags & TIER_CHARGED)))
        return;
    at->flags ^= TIER_LEAVING;
    *leaving_place(t, &at->key) += leaving ? 1 : UINT32_MAX;
}

int erase_push(tiers *t, const tier_erase *e) {
    if (t->n_erase == t->max_pages)
        return 0;
    t->erase[(t->first_erase + t->n_erase++) % t->max_pages] = *e;
    ++*leaving_place(t, &e->key);
    return 1;
}

void erase_pop(tiers *t) {
    const tier_erase *e = &t->erase[t->first_erase];
    KVT_ASSERT(t->n_erase > 0 && key_is_leaving(t, &e->key));
    --*leaving_place(t, &e->key);
    t->disk_used -= e->bytes;
    t->first_erase = (t->first_erase + 1) % t->max_pages;
    t->n_erase--;
    t->n_erased++;
}

/* --- where a page is ---------------------------------------------------------------------------
 */

tier_page *tier_of(const core *c, page_handle page) {
    return &c->tiers->pages[(uint32_t)page];
}

/* The order that it belongs in, or NULL: until its node is held, other ranks and groups may never
 * hand in theirs. */
static order *device_order(const core *c, const page_entry *entry, const tier_page *at) {
    if (entry->frame == PAGE_NO_FRAME || !radix_is_held(c->tree, entry->node))
        return NULL;
    const arena_books *a = &c->arenas[frame_arena(c, entry->frame)];
    if (at->host_frame != PAGE_NO_FRAME || at->flags & TIER_ON_DISK)
        return a->clean;
    return at->flags & (TIER_GOING_DOWN | TIER_COOLING) ? NULL : a->dirty;
}

static void leave_arenas(core *c, uint32_t index) {
    for (uint32_t i = 0; i < c->config.n_arenas; i++) {
        if (c->arenas[i].clean)
            order_remove(c->arenas[i].clean, index);
        if (c->arenas[i].dirty)
            order_remove(c->arenas[i].dirty, index);
    }
}

static order *host_order(const core *c, const page_entry *entry, const tier_page *at) {
    const tiers *t = c->tiers;
    if (at->host_frame == PAGE_NO_FRAME || !radix_is_held(c->tree, entry->node))
        return NULL;
    if (at->flags & TIER_ON_DISK)
        return t->host_clean;
    if (c->config.disk_bytes && !(at->flags & TIER_NO_DISK))
        return at->flags & TIER_WRITING ? NULL : t->host_dirty;
    if (entry->frame != PAGE_NO_FRAME)
        return t->host_clean;
    if (c->config.disk_bytes)
        return NULL;                                      /* never written: it goes with its node */
    return c->config.n_arenas > 1 ? t->host_dirty : NULL; /* see room_host_one */
}

/* Dirty pages go in the order in which they were sealed where all are to be written, so parents
 * come first, and those that never will be come last; where there is no disk, only the coldest are
 * to be copied. */
static uint64_t dirty_key(core *c, const page_entry *entry, uint32_t index) {
    uint64_t last = c->tiers->pages[index].flags & TIER_NO_DISK ? KEY_HALF : 0;
    return (c->config.disk_bytes ? ++c->tiers->sequence : key_of_entry(c, entry)) + last;
}

static void list_in_arena(core *c, order *in, const page_entry *entry, uint32_t index) {
    if (in == c->arenas[frame_arena(c, entry->frame)].dirty) {
        order_put(in, index, dirty_key(c, entry, index));
        return;
    }
    order_put(in, index, key_of_entry(c, entry));
}

static void list(core *c, order *in, order *out, const page_entry *entry, uint32_t index) {
    tiers *t = c->tiers;
    order_remove(out, index);
    if (in == t->host_clean)
        order_put(in, index, host_key_of_entry(c, entry));
    else if (in == t->host_dirty && !order_has(in, index))
        order_put(in, index, dirty_key(c, entry, index));
    else if (!order_has(in, index))
        list_in_arena(c, in, entry, index);
}

void tier_placed(core *c, page_handle page) {
    tiers *t = c->tiers;
    const page_entry *entry = page_get(c->pages, page);
    const tier_page *at = tier_of(c, page);
    uint32_t index = (uint32_t)page;
    if (entry->node == RADIX_NONE)
        return;
    event_moved(c, entry->node);
    order *device = device_order(c, entry, at), *host = host_order(c, entry, at);
    if (device) {
        const arena_books *a = &c->arenas[frame_arena(c, entry->frame)];
        list(c, device, device == a->clean ? a->dirty : a->clean, entry, index);
    } else {
        leave_arenas(c, index);
    }
    if (host)
        list(c, host, host == t->host_clean ? t->host_dirty : t->host_clean, entry, index);
    else
        order_remove(t->host_clean, index), order_remove(t->host_dirty, index);
}

void tier_held(core *c, radix_node node) {
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); c->tiers && slot < n; slot++)
        if (node_page(c, node, slot))
            tier_placed(c, node_page(c, node, slot));
}

void tier_sealed(core *c, page_handle page, uint32_t realm_slot, uint32_t slot, uint32_t bytes) {
    const page_entry *entry = page_get(c->pages, page);
    uint32_t n_tokens;
    if (!c->tiers) {
        order *all = c->arenas[frame_arena(c, entry->frame)].dirty;
        if (all)
            order_put(all, (uint32_t)page, key_of_entry(c, entry));
        return;
    }
    radix_tokens(c->tree, entry->node, &n_tokens);
    /* What was flushed must not be found after a restart, whoever leases it still, or seals it. */
    *tier_of(c, page) =
        (tier_page){.host_frame = PAGE_NO_FRAME,
                    .bytes = bytes,
                    .flags = TIER_KNOWN | (is_flushed(c, entry->node) ? TIER_NO_DISK : 0u),
                    .realm = realm_slot,
                    .depth = radix_depth(c->tree, entry->node) - 1,
                    .n_tokens = (uint16_t)n_tokens,
                    .slot = (uint16_t)slot};
    c->tiers->n_absent += entry->frame == PAGE_NO_FRAME;
    tier_placed(c, page);
}

void tier_unlist(core *c, page_handle page) {
    tiers *t = c->tiers;
    const page_entry *entry = page_get(c->pages, page);
    uint32_t index = (uint32_t)page;
    leave_arenas(c, index);
    if (!t)
        return;
    t->n_absent -= entry->state == PAGE_SEALED && entry->frame == PAGE_NO_FRAME;
    set_leaving(t, tier_of(c, page), 1); /* jobs may hold it for some time yet */
    order_remove(t->host_clean, index);
    order_remove(t->host_dirty, index);
}

/* --- copies that come and go -------------------------------------------------------------------
 */

void tier_set_host(core *c, page_handle page, uint32_t frame) {
    tier_of(c, page)->host_frame = frame;
    c->tiers->n_host++;
}

void tier_drop_host(core *c, page_handle page) {
    tier_page *at = tier_of(c, page);
    frames_free(c->tiers->host, at->host_frame);
    at->host_frame = PAGE_NO_FRAME;
    c->tiers->n_host--;
}

uint64_t tier_charge(const tier_page *at) {
    return at->flags & TIER_CHARGED ? tier_record_bytes(at->record_bytes, at->n_tokens) : 0;
}

void tier_set_flags(core *c, page_handle page, uint32_t set, uint32_t clear) {
    tiers *t = c->tiers;
    tier_page *at = tier_of(c, page);
    t->disk_used -= tier_charge(at);
    t->n_disk -= (at->flags & TIER_ON_DISK) != 0;
    at->flags = (at->flags & ~clear) | set;
    t->disk_used += tier_charge(at);
    t->n_disk += (at->flags & TIER_ON_DISK) != 0;
}

/* The page's record is to go; what it takes is free when it has gone. */
static void push_erase(tiers *t, const tier_page *at, uint64_t bytes) {
    int has_place = erase_push(t, &(tier_erase){.key = at->key,
                                                .serial = at->serial,
                                                .depth = at->depth,
                                                .slot = at->slot,
                                                .bytes = (uint32_t)bytes});
    KVT_ASSERT(has_place);
}

/* It goes no further down, and behind all that does. */
void tier_never(core *c, page_handle page) {
    tier_set_flags(c, page, TIER_NO_DISK, 0);
    leave_arenas(c, (uint32_t)page);
    tier_placed(c, page);
}

static void withdraw_page(core *c, page_handle page) {
    tiers *t = c->tiers;
    tier_page *at = tier_of(c, page);
    if (!(at->flags & TIER_KNOWN))
        return;
    tier_never(c, page);
    int other = page_get(c->pages, page)->frame != PAGE_NO_FRAME || at->host_frame != PAGE_NO_FRAME;
    if (other && at->flags & (TIER_ON_DISK | TIER_STALE_RECORD)) {
        /* One that is being written anew takes no more than that, which stays counted. */
        uint64_t bytes = at->flags & TIER_WRITING ? 0 : tier_charge(at);
        push_erase(t, at, bytes);
        tier_set_flags(c, page, 0, TIER_ON_DISK | TIER_STALE_RECORD);
        t->disk_used += bytes;
        set_leaving(t, at, 0);
    }
    set_leaving(t, at, 1); /* of what is being written, or is nowhere else */
    tier_placed(c, page);
}

/* What was flushed and is still leased must not be found after a restart. */
void tier_withdraw(core *c, radix_node node) {
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); c->tiers && slot < n; slot++)
        if (node_page(c, node, slot)) /* it may have passed out of its group's window */
            withdraw_page(c, node_page(c, node, slot));
}

void tier_forget(core *c, uint32_t index) {
    tiers *t = c->tiers;
    if (!t)
        return;
    tier_page *at = &t->pages[index];
    if (!(at->flags & TIER_KNOWN))
        return;
    if (at->host_frame != PAGE_NO_FRAME)
        tier_drop_host(c, index);
    if (at->flags & (TIER_ON_DISK | TIER_STALE_RECORD)) {
        push_erase(t, at, tier_charge(at));
        t->n_disk -= (at->flags & TIER_ON_DISK) != 0; /* disk_used: when it is erased */
    }
    set_leaving(t, at, 0);
    *at = (tier_page){0};
}

/* --- what jobs hold ----------------------------------------------------------------------------
 */

static int job_is_free(const tiers *t, const core_job *job) {
    for (const core_job *f = t->free_jobs; f; f = f->next)
        if (f == job)
            return 1;
    return 0;
}

void tiers_refs_of(const core *c, uint32_t *refs) {
    for (uint32_t i = 0; c->tiers && i < TIER_JOBS; i++) {
        const core_job *job = &c->tiers->jobs[i];
        for (uint32_t k = 0; k < job->n_copies && !job_is_free(c->tiers, job); k++)
            if (job->copies[k].page) /* records to be erased have none */
                refs[(uint32_t)job->copies[k].page]++;
    }
}

uint32_t tiers_frames_of(const core *c, core_job_kind kind, core_job_kind other) {
    uint32_t n = 0;
    for (uint32_t i = 0; c->tiers && i < TIER_JOBS; i++) {
        const core_job *job = &c->tiers->jobs[i];
        if ((job->kind == kind || job->kind == other) && !job_is_free(c->tiers, job))
            n += job->n_copies;
    }
    return n;
}

/* Will the page's frame be free, or can be, as soon as the job is done that reads it? */
static int leaves_arena(const core *c, page_handle page, uint32_t arena) {
    const page_entry *entry = page_get(c->pages, page);
    if (entry->frame == PAGE_NO_FRAME || frame_arena(c, entry->frame) != arena ||
        page_is_viewed(c, page))
        return 0;
    return entry->node == RADIX_NONE || !radix_is_busy(c->tree, entry->node);
}

int room_is_coming(const core *c, uint32_t arena) {
    page_handle page;
    for (uint32_t i = 0; (page = cooling_page(c, i)) != 0; i++)
        if (leaves_arena(c, page, arena))
            return 1;
    for (uint32_t i = 0; c->tiers && i < TIER_JOBS; i++) {
        const core_job *job = &c->tiers->jobs[i];
        if (job->kind != CORE_JOB_DOWN || job_is_free(c->tiers, job))
            continue;
        for (uint32_t k = 0; k < job->n_copies; k++)
            if (leaves_arena(c, job->copies[k].page, arena))
                return 1;
    }
    return 0;
}

/* --- audit -------------------------------------------------------------------------------------
 */

/* Is it where it should be, and nowhere else? */
static int listed_right(const core *c, uint32_t index, const page_entry *entry) {
    const tiers *t = c->tiers;
    const tier_page *at = &t->pages[index];
    const order *device = NULL, *host = NULL;
    if (entry && entry->node != RADIX_NONE && entry->state == PAGE_SEALED) {
        device = device_order(c, entry, at);
        host = host_order(c, entry, at);
    }
    for (uint32_t i = 0; i < c->config.n_arenas; i++) {
        const arena_books *a = &c->arenas[i];
        if (order_has(a->clean, index) != (device == a->clean) ||
            order_has(a->dirty, index) != (device == a->dirty))
            return 0;
    }
    return order_has(t->host_clean, index) == (host == t->host_clean) &&
           order_has(t->host_dirty, index) == (host == t->host_dirty);
}

static const char *page_fault(const core *c, uint32_t index, const page_entry *entry) {
    const tier_page *at = &c->tiers->pages[index];
    if (!entry || entry->state != PAGE_SEALED)
        return at->flags ? "not sealed, yet in a tier" : NULL;
    if (!listed_right(c, index, entry))
        return "in the wrong order";
    if (!(at->flags & TIER_KNOWN)) /* it has left the tree, and views have it */
        return entry->node == RADIX_NONE ? NULL : "sealed, and in no tier's books";
    if (at->host_frame != PAGE_NO_FRAME && !frames_in_use(c->tiers->host, at->host_frame))
        return "its host frame is not in use";
    if (entry->node != RADIX_NONE && entry->frame == PAGE_NO_FRAME &&
        at->host_frame == PAGE_NO_FRAME && !(at->flags & TIER_ON_DISK))
        return "sealed, and in no tier";
    if (entry->node != RADIX_NONE && is_flushed(c, entry->node) && !(at->flags & TIER_NO_DISK))
        return "may be written to disk, and never should";
    if (entry->node != RADIX_NONE && is_flushed(c, entry->node) &&
        is_on_disk_alone(c, page_at(c->pages, index)))
        return "was flushed, and is on disk alone: its record cannot go";
    if (at->flags & TIER_GOING_UP && entry->node != RADIX_NONE && entry->frame != PAGE_NO_FRAME)
        return "goes up, and is there";
    return NULL;
}

/* Every record that is to go is counted, and nothing else is. */
static int leaving_right(const tiers *t, uint32_t n_pages) {
    uint64_t n = (uint64_t)n_pages + t->n_erase;
    for (uint32_t i = 0; t->leaving && i <= t->leaving_mask; i++)
        n -= t->leaving[i];
    for (uint32_t i = 0; i < t->max_pages; i++)
        if (t->pages[i].flags & TIER_LEAVING && !key_is_leaving(t, &t->pages[i].key))
            return 0;
    return n == 0;
}

kvt_status tiers_audit(const core *c, char *why, size_t why_bytes) {
    const tiers *t = c->tiers;
    const order *const orders[] = {t->host_clean, t->host_dirty};
    uint32_t n_absent = 0, n_host = 0, n_disk = 0, n_leaving = 0;
    uint64_t disk_used = 0;
    kvt_status status = frames_audit(t->host, why, why_bytes);
    for (int i = 0; i < 2 && status == KVT_OK; i++)
        status = order_audit(orders[i], why, why_bytes);
    for (uint32_t i = 0; i < t->max_pages && status == KVT_OK; i++) {
        page_handle page = page_at(c->pages, i);
        const page_entry *entry = page ? page_get(c->pages, page) : NULL;
        const char *fault = page_fault(c, i, entry);
        if (fault)
            status = kvt_say(why, why_bytes, KVT_EINTERNAL, "page %u: %s", i, fault);
        n_host += t->pages[i].flags & TIER_KNOWN && t->pages[i].host_frame != PAGE_NO_FRAME;
        n_disk += (t->pages[i].flags & TIER_ON_DISK) != 0;
        n_leaving += (t->pages[i].flags & TIER_LEAVING) != 0;
        disk_used += tier_charge(&t->pages[i]);
        n_absent += entry && entry->node != RADIX_NONE && entry->state == PAGE_SEALED &&
                    entry->frame == PAGE_NO_FRAME;
    }
    for (uint32_t i = 0; i < t->n_erase; i++)
        disk_used += t->erase[(t->first_erase + i) % t->max_pages].bytes;
    if (status == KVT_OK && !leaving_right(t, n_leaving))
        status = kvt_say(why, why_bytes, KVT_EINTERNAL,
                         "records that are to go are not those that are waited for");
    frames_counts places;
    frames_count(t->host, &places);
    if (status == KVT_OK &&
        (n_absent != t->n_absent || n_host != t->n_host || n_disk != t->n_disk ||
         disk_used != t->disk_used ||
         places.used != n_host + tiers_frames_of(c, CORE_JOB_DOWN, CORE_JOB_READ) +
                            cooling_refs_of(c, NULL, 1)))
        status = kvt_say(why, why_bytes, KVT_EINTERNAL,
                         "tiers: %u absent of %u, %u in host frames of %u (%u in use), %u on disk "
                         "of %u, %llu disk bytes of %llu",
                         n_absent, t->n_absent, n_host, t->n_host, places.used, n_disk, t->n_disk,
                         (unsigned long long)disk_used, (unsigned long long)t->disk_used);
    return status;
}
