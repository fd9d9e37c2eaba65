/*
 * core_cool.c - pages that are put into fewer bits where they would have to go otherwise.
 *
 *    codec set of the realm      next one of the ladder          last one
 *        [i8 page]     -------->       [i4 page]       ...       evicted, as all pages are
 *                    when room is short, the coldest first
 *
 * Where a page is lost is where room is short: in the lowest tier that there is. A job decodes the
 * copy that lies there and encodes it anew into a smaller frame beside it, which was counted
 * before; then the one takes the other's place, if nobody leases the page by then. All copies of a
 * page hold the same bytes: so a copy in the arena goes, and a record on disk is written anew.
 *
 *    nothing below the arena   arena frame -> arena frame
 *    host tier                 host frame  -> host frame
 *    disk tier                 record -> host frame -> host frame -> record
 *
 * A page is a page of its realm under whichever set of the ladder it is: its header says which.
 */
#include "daemon/core_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHORT_PCT = 87,       /* of a tier in use: it is short of room */
    TRIES = 64,           /* pages looked at for one job */
    MAX_SLABS = 4,        /* emptied for one page */
    MAX_BYTES = 4u << 20, /* of a job: whoever seals on the same thread waits for it */
};

typedef enum cool_state {
    COOL_OUT = 0,   /* not in the tree, or of a realm without a ladder */
    COOL_WARM,      /* stands in the order */
    COOL_UNDER_WAY, /* a job is at it */
    COOL_FETCHED,   /* it is being read from disk for this */
    COOL_LAST,      /* in fewest bits, or in fewer it could not be put */
} cool_state;

typedef struct cool_page {
    uint32_t realm; /* slot */
    uint8_t state;  /* cool_state */
    uint8_t slot;
    uint8_t rung; /* of the ladder, as far as is known: a job looks */
    uint8_t is_first;
    uint64_t fetched_key; /* that was now when it was last read from disk */
} cool_page;

struct cooling {
    order *warm;
    void *order_memory;
    cool_page *pages; /* [n_pages] */
    uint32_t n_pages;
    int fetching;
    int under_way;
    uint64_t n_bytes; /* that the job reads */
    core_job job;
    core_copy copies[COOL_BATCH];
};

/* --- open, close -------------------------------------------------------------------------------
 */

kvt_status cooling_open(core *c, char *why, size_t why_bytes) {
    const core_config *g = &c->config;
    if (!g->ladder || !g->ladder[0])
        return KVT_OK;
    cooling *k = c->cooling = calloc(1, sizeof *k);
    if (!k)
        return KVT_ENOMEM;
    kvt_status status = ladder_read(&c->ladder, g->ladder, why, why_bytes);
    if (status != KVT_OK)
        return status;
    k->n_pages = g->max_pages + page_slack(g);
    size_t bytes = order_bytes(k->n_pages, k->n_pages);
    k->pages = calloc(k->n_pages, sizeof *k->pages);
    k->order_memory = calloc(1, bytes);
    k->job = (core_job){.kind = CORE_JOB_COOL, .lane = CORE_TIER_JOBS, .copies = k->copies};
    return k->pages && k->order_memory
               ? order_init(k->order_memory, bytes, k->n_pages, k->n_pages, &k->warm)
               : KVT_ENOMEM;
}

void cooling_close(cooling *k) {
    if (!k)
        return;
    free(k->pages);
    free(k->order_memory);
    free(k);
}

/* --- which pages could be put into fewer bits --------------------------------------------------
 */

/* What the page takes under a set of the ladder. */
static uint32_t rung_bytes(const core *c, const cool_page *p, uint32_t rung, uint32_t rows) {
    const realm *r = &c->realms[p->realm];
    const kvt_page_shape *shape = &r->rungs[p->slot % r->n_groups][rung];
    return (uint32_t)(p->is_first ? kvt_page_first_bytes(shape, rows)
                                  : kvt_page_bytes(shape, rows));
}

/* Not before another page has come. */
static uint64_t key_later(const core *c) {
    return key_now(c) + 1;
}

static uint32_t bytes_of(const core *c, page_handle page) {
    const page_entry *entry = page_get(c->pages, page);
    return entry->frame != PAGE_NO_FRAME ? (uint32_t)frame_asked(c, entry->frame)
                                         : tier_of(c, page)->bytes;
}

/* Puts the page in the order, or not, after its rung or its state has changed. */
static void list(core *c, page_handle page, uint64_t key) {
    cool_page *p = &c->cooling->pages[(uint32_t)page];
    const page_entry *entry = page_get(c->pages, page);
    p->state = COOL_OUT;
    if (entry->node == RADIX_NONE)
        return;
    p->state = COOL_LAST;
    if (p->rung + 1u < c->realms[p->realm].n_rungs &&
        rung_bytes(c, p, p->rung + 1u, entry->rows) < bytes_of(c, page)) {
        p->state = COOL_WARM;
        order_put(c->cooling->warm, (uint32_t)page, key);
    }
}

void cool_sealed(core *c, page_handle page, uint32_t realm_slot, uint32_t slot, uint32_t bytes) {
    const realm *r = &c->realms[realm_slot];
    if (!c->cooling || r->n_rungs < 2)
        return;
    const page_entry *entry = page_get(c->pages, page);
    cool_page *p = &c->cooling->pages[(uint32_t)page];
    *p = (cool_page){.realm = realm_slot,
                     .slot = (uint8_t)slot,
                     .is_first = radix_depth(c->tree, entry->node) == 1};
    /* What a disk gives back, and what grew from a page that was cooled. */
    for (uint32_t rung = 1; rung < r->n_rungs; rung++)
        if (rung_bytes(c, p, rung, entry->rows) == bytes)
            p->rung = (uint8_t)rung;
    list(c, page, page_key(c, page));
}

void cool_unlist(core *c, page_handle page) {
    cooling *k = c->cooling;
    cool_page *p = k ? &k->pages[(uint32_t)page] : NULL;
    if (!k || p->state == COOL_UNDER_WAY || p->state == COOL_FETCHED)
        return; /* the job's end will see it */
    order_remove(k->warm, (uint32_t)page);
    p->state = COOL_OUT;
}

int page_is_cooling(const core *c, page_handle page) {
    return c->cooling && c->cooling->pages[(uint32_t)page].state == COOL_UNDER_WAY;
}

void cool_fetched(core *c, page_handle page) {
    if (!c->cooling || c->cooling->pages[(uint32_t)page].state != COOL_FETCHED)
        return;
    list(c, page, page_get(c->pages, page)->node == RADIX_NONE ? 0 : page_key(c, page));
}

void cool_fetch_ended(core *c) {
    if (c->cooling)
        c->cooling->fetching = 0;
}

/* --- when, and from where ----------------------------------------------------------------------
 */

/* Of a tier: it is short of room. */
static uint64_t full_pct(const core *c) {
    return c->config.short_pct ? c->config.short_pct : SHORT_PCT;
}

/* Most of it is cut into frames; the rest is for frames of the sizes that pages cool to. Or what is
 * left is too little for more frames of this size (0: of some size). */
static int is_short(const core *c, const frames *f, uint64_t bytes) {
    frames_counts n;
    frames_count(f, &n);
    return n.slab_bytes > n.arena_bytes / 100 * full_pct(c) || frames_is_cut_up(f, bytes);
}

/* As the realm seals whole pages of this one's kind. */
static uint64_t sealed_bytes(const core *c, const cool_page *p) {
    const realm *r = &c->realms[p->realm];
    return kvt_page_bytes(&r->shapes[p->slot % r->n_groups], r->page_tokens);
}

/* Of the frames that there are, few are left for pages as the realm of this one seals them. */
static int has_few(const core *c, const frames *f, const cool_page *p) {
    frames_counts n;
    uint64_t bytes = sealed_bytes(c, p);
    frames_count(f, &n);
    return frames_free_like(f, bytes) * bytes < n.arena_bytes / 200 * (100 - full_pct(c));
}

typedef struct shortage {
    int arena; /* some arena */
    int below;
} shortage;

static shortage look_for_shortage(const core *c) {
    const tiers *t = c->tiers;
    shortage s = {0};
    for (uint32_t i = 0; i < c->config.n_arenas; i++)
        s.arena |= is_short(c, c->arenas[i].frames, 0);
    if (t && c->config.disk_bytes)
        s.below = t->disk_full || t->disk_used > c->config.disk_bytes / 100 * full_pct(c);
    else if (t)
        s.below = is_short(c, t->host, 0);
    return s;
}

typedef enum source { SOURCE_NONE, SOURCE_ARENA, SOURCE_HOST, SOURCE_DISK } source;

/* Where the page's bytes are, or would go. */
static frames *arena_of(const core *c, page_handle page) {
    return c->arenas[frame_arena(c, page_get(c->pages, page)->frame)].frames;
}

static int is_short_for(const core *c, const frames *f, page_handle page) {
    return is_short(c, f, sealed_bytes(c, &c->cooling->pages[(uint32_t)page]));
}

static source source_of(const core *c, page_handle page, const shortage *s) {
    const page_entry *entry = page_get(c->pages, page);
    if (radix_is_busy(c->tree, entry->node) || page_is_viewed(c, page))
        return SOURCE_NONE;
    if (!c->tiers)
        return s->arena && is_short_for(c, arena_of(c, page), page) ? SOURCE_ARENA : SOURCE_NONE;
    const tier_page *at = tier_of(c, page);
    if (at->flags & TIER_BUSY)
        return SOURCE_NONE;
    if (at->host_frame != PAGE_NO_FRAME)
        return s->below && (c->config.disk_bytes || is_short_for(c, c->tiers->host, page))
                   ? SOURCE_HOST
                   : SOURCE_NONE;
    if (entry->frame != PAGE_NO_FRAME) /* if it goes down, it can be cooled there */
        return s->arena && at->flags & TIER_NO_DISK && is_short_for(c, arena_of(c, page), page)
                   ? SOURCE_ARENA
                   : SOURCE_NONE;
    return s->below && at->flags & TIER_ON_DISK ? SOURCE_DISK : SOURCE_NONE;
}

/* --- the job -----------------------------------------------------------------------------------
 */

static void set_cooling(core *c, page_handle page, int set) {
    if (!c->tiers)
        return;
    tier_set_flags(c, page, set ? TIER_COOLING : 0, set ? 0 : TIER_COOLING);
    tier_placed(c, page);
}

static kvt_status place_alloc(core *c, source from, page_handle page, uint32_t bytes,
                              uint32_t *ret_frame) {
    if (from == SOURCE_HOST)
        return room_host(c, bytes, page_key(c, page), ret_frame);
    /* A slab that others move out of serves many pages that cool. */
    uint32_t arena = frame_arena(c, page_get(c->pages, page)->frame);
    kvt_status status = frame_take(c, arena, bytes, ret_frame);
    for (uint32_t i = 0; i < MAX_SLABS && status == KVT_EFULL && room_device_slab(c, arena, bytes);
         i++)
        status = frame_take(c, arena, bytes, ret_frame);
    return status;
}

/* By where the job's copy is. */
static void place_free(core *c, int in_host, uint32_t frame) {
    if (in_host)
        frames_free(c->tiers->host, frame);
    else
        frame_free(c, frame);
}

static uint64_t place_offset(const core *c, int in_host, uint32_t frame) {
    return in_host ? frames_offset(c->tiers->host, frame) : frame_offset(c, frame);
}

/* A frame for what the page becomes; not the one that it lies in. 0: there is none, or the page was
 * what had to go for it. */
static int find_place(core *c, source from, page_handle page, uint32_t bytes, uint32_t *ret_frame) {
    const page_entry *entry = page_get(c->pages, page);
    set_cooling(c, page, 1); /* so its copy stays, and no other is made */
    kvt_status status = place_alloc(c, from, page, bytes, ret_frame);
    int is_there = page_get(c->pages, page) == entry && entry->node != RADIX_NONE;
    if (status == KVT_OK && is_there)
        return 1;
    if (status == KVT_OK)
        place_free(c, from == SOURCE_HOST, *ret_frame);
    if (is_there)
        set_cooling(c, page, 0);
    if (is_there)
        order_put(c->cooling->warm, (uint32_t)page, key_later(c));
    return 0;
}

/* Adds the page to the job. 0: there is no room. */
static int take(core *c, source from, page_handle page) {
    cooling *k = c->cooling;
    cool_page *p = &k->pages[(uint32_t)page];
    const page_entry *entry = page_get(c->pages, page);
    realm *r = &c->realms[p->realm];
    uint32_t frame, to_bytes = rung_bytes(c, p, p->rung + 1u, entry->rows);
    int in_host = from == SOURCE_HOST;
    if (!find_place(c, from, page, to_bytes, &frame))
        return 0;
    uint32_t old = in_host ? tier_of(c, page)->host_frame : entry->frame;
    k->copies[k->job.n_copies++] = (core_copy){.from_offset = place_offset(c, in_host, old),
                                               .to_offset = place_offset(c, in_host, frame),
                                               .bytes = bytes_of(c, page),
                                               .rows = entry->rows,
                                               .shape = r->rungs[p->slot % r->n_groups],
                                               .to_bytes = to_bytes,
                                               .rung = p->rung,
                                               .n_rungs = (uint8_t)r->n_rungs,
                                               .is_first = p->is_first,
                                               .in_host = (uint8_t)in_host,
                                               .status = KVT_EINTERNAL,
                                               .frame = frame,
                                               .page = page,
                                               .node = entry->node};
    k->n_bytes += bytes_of(c, page);
    page_ref(c->pages, page);
    r->n_jobs++;
    order_remove(k->warm, (uint32_t)page);
    p->state = COOL_UNDER_WAY;
    return 1;
}

static int is_in_tree(const core *c, page_handle page) {
    const page_entry *entry = page_get(c->pages, page);
    return entry && entry->node != RADIX_NONE;
}

/* Reads it from the disk first; *job is the job that does. Once only, until other pages come: where
 * the host tier is too small, what is read for this goes for what comes down, again and again. */
static int fetch(core *c, page_handle page, core_job **job) {
    cooling *k = c->cooling;
    if (k->pages[(uint32_t)page].fetched_key == key_now(c))
        return 0;
    *job = promote_for_cooling(c, *job, page);
    if (!*job || !is_in_tree(c, page) || !(tier_of(c, page)->flags & TIER_READING))
        return 0;
    order_remove(k->warm, (uint32_t)page);
    k->pages[(uint32_t)page].state = COOL_FETCHED;
    k->pages[(uint32_t)page].fetched_key = key_now(c);
    return 1;
}

static int is_full(const cooling *k) {
    return k->under_way || k->job.n_copies == COOL_BATCH || k->n_bytes >= MAX_BYTES;
}

/* One page more for the job, or for the one that reads. 0: that was all for now. */
static int next_page(core *c, const shortage *s, core_job **read) {
    cooling *k = c->cooling;
    uint64_t key;
    uint32_t index = order_coldest(c, k->warm, page_key, NULL);
    if (index == ORDER_NONE || order_first(k->warm, &key) != index || key > key_now(c))
        return 0;
    page_handle page = page_at(c->pages, index);
    source from = source_of(c, page, s);
    if (from == SOURCE_ARENA || from == SOURCE_HOST) {
        const frames *place = from == SOURCE_ARENA ? arena_of(c, page) : c->tiers->host;
        if (is_full(k))
            return 0;
        if ((c->config.disk_bytes && from == SOURCE_HOST) || has_few(c, place, &k->pages[index]))
            return take(c, from, page);
        order_put(k->warm, index, key_later(c)); /* others of its kind need no room, either */
        return 0;
    }
    if (from == SOURCE_DISK && (k->fetching || (*read && (*read)->n_copies == COOL_BATCH)))
        return 0;
    if ((from == SOURCE_NONE || !fetch(c, page, read)) && is_in_tree(c, page))
        order_put(k->warm, index, key_later(c));
    return 1;
}

void cool_pump(core *c) {
    cooling *k = c->cooling;
    if (!k || c->draining || (k->under_way && k->fetching) || order_count(k->warm) == 0)
        return;
    const shortage s = look_for_shortage(c);
    core_job *read = NULL;
    if (!s.arena && !s.below)
        return;
    k->n_bytes = k->under_way ? k->n_bytes : 0;
    for (uint32_t tries = 0; tries < TRIES && next_page(c, &s, &read); tries++)
        continue;
    if (read && read->n_copies > 0) {
        k->fetching = 1;
        tier_job_submit(c, read);
    } else if (read) {
        tier_job_free(c, read);
    }
    if (!k->under_way && k->job.n_copies > 0) {
        k->under_way = 1;
        k->job.number = c->tiers ? ++c->tiers->n_started : 0;
        c->env.submit(c->env.context, &k->job);
    }
}

/* --- its end -----------------------------------------------------------------------------------
 */

/* Nobody was told of the old bytes, and no other copy has them. */
static int may_replace(core *c, const core_copy *copy) {
    const page_entry *entry = page_get(c->pages, copy->page);
    if (entry->node == RADIX_NONE || radix_is_busy(c->tree, entry->node) ||
        page_is_viewed(c, copy->page))
        return 0;
    if (!copy->in_host || entry->frame == PAGE_NO_FRAME)
        return !c->tiers || !(tier_of(c, copy->page)->flags & TIER_GOING_UP);
    return room_device_page(c, copy->page);
}

static void replace(core *c, const core_copy *copy) {
    const page_entry *entry = page_get(c->pages, copy->page);
    tier_page *at = c->tiers ? tier_of(c, copy->page) : NULL;
    uint32_t old = copy->in_host ? at->host_frame : entry->frame;
    KVT_ASSERT(place_offset(c, copy->in_host, old) == copy->from_offset);
    place_free(c, copy->in_host, old);
    if (copy->in_host)
        at->host_frame = copy->frame;
    else
        page_set_frame(c->pages, copy->page, copy->frame);
    if (at) {
        at->bytes = copy->to_bytes;
        if (at->flags & TIER_ON_DISK) /* of the bytes that were */
            tier_set_flags(c, copy->page, TIER_STALE_RECORD, TIER_ON_DISK);
    }
    c->cooling->pages[(uint32_t)copy->page].rung++;
    c->counts.pages_cooled++;
    c->counts.bytes_cooled += copy->bytes - copy->to_bytes;
}

static void cool_done(core *c, core_copy *copy) {
    cool_page *p = &c->cooling->pages[(uint32_t)copy->page];
    c->realms[p->realm].n_jobs--;
    set_cooling(c, copy->page, 0);
    int done = copy->status == KVT_OK && may_replace(c, copy);
    if (done)
        replace(c, copy);
    else
        place_free(c, copy->in_host, copy->frame);
    if (copy->status == KVT_EGEOMETRY) /* under another set than was thought */
        p->rung = copy->rung;
    if (c->tiers)
        tier_placed(c, copy->page);
    list(c, copy->page, done ? page_key(c, copy->page) : key_later(c));
    c->counts.tier_errors += copy->status == KVT_EIO || copy->status == KVT_ECORRUPT;
    /* It stays as it is: an element that the codecs refuse, or bytes that a reader will find to be
     * damaged. */
    if (p->state == COOL_WARM && (copy->status == KVT_ELIMIT || copy->status == KVT_ECORRUPT)) {
        order_remove(c->cooling->warm, (uint32_t)copy->page);
        p->state = COOL_LAST;
    }
}

void cool_job_done(core *c, core_job *job) {
    c->cooling->under_way = 0;
    for (uint32_t i = 0; i < job->n_copies; i++) {
        cool_done(c, &job->copies[i]);
        const cool_page *p = &c->cooling->pages[(uint32_t)job->copies[i].page];
        const realm *r = &c->realms[p->realm];
        uint32_t slot = p->slot; /* the page may be gone, and its place another's */
        page_drop(c, job->copies[i].page);
        window_job_ended(c, r, slot, job->copies[i].page);
    }
    job->n_copies = 0;
}

int cooling_is_idle(const core *c) {
    return !c->cooling || !c->cooling->under_way;
}

/* May the job that is under way hold something that was flushed before job number last_job? */
int cooling_has_ended(const core *c, uint64_t last_job) {
    return cooling_is_idle(c) || c->cooling->job.number > last_job;
}

/* --- audit -------------------------------------------------------------------------------------
 */

uint32_t cooling_refs_of(const core *c, uint32_t *refs, int in_host) {
    uint32_t n = 0;
    for (uint32_t i = 0; c->cooling && i < c->cooling->job.n_copies; i++) {
        n += c->cooling->copies[i].in_host == in_host;
        if (refs)
            refs[(uint32_t)c->cooling->copies[i].page]++;
    }
    return n;
}

page_handle cooling_page(const core *c, uint32_t i) {
    return c->cooling && i < c->cooling->job.n_copies ? c->cooling->copies[i].page : 0;
}

const char *cooling_fault(const core *c, uint32_t index) {
    const cooling *k = c->cooling;
    if (!k)
        return NULL;
    page_handle page = page_at(c->pages, index);
    const page_entry *entry = page ? page_get(c->pages, page) : NULL;
    const cool_page *p = &k->pages[index];
    int in_tree = entry && entry->node != RADIX_NONE && entry->state == PAGE_SEALED;
    if (order_has(k->warm, index) != (p->state == COOL_WARM))
        return "in the order of what can be cooled, or not, without reason";
    if (p->state == COOL_WARM && !in_tree)
        return "could be cooled, and is no sealed page";
    if (p->state == COOL_LAST && !in_tree)
        return "was cooled, and is no sealed page";
    if (in_tree && p->state != COOL_OUT &&
        (p->rung >= c->realms[p->realm].n_rungs || p->realm >= c->config.max_realms))
        return "on a rung that its ladder has not";
    return NULL;
}
