/*
 * core_seal.c - SEAL: encoded pages become visible.
 *
 *   serve_seal: each page of the message gets a frame of its own, the job copies and checks
 *   seal_job_done: page by page in path order, the first good copy of a page is the page
 *
 * Two workers may copy the same page at once, each into its own frame: the loser's frame goes back,
 * and both are told that the page is sealed. A page is only shown when the one in front of it is,
 * so nothing held ever hangs below something that is not.
 */
#include "daemon/core_state.h"

#include <stdio.h>
#include <string.h>

/* Does the path end in front of it since others needed its place? See core_claim.c. */
static int is_cut_off(const core *c, const lease *l, uint32_t page) {
    int may_be = l->is_cut || (l->group && c->groups[l->group - 1].broken);
    return may_be && page >= radix_depth(c->tree, l->tail);
}

/* May this page of the message be taken? */
static kvt_status seal_check(const core *c, const lease *l, const session *s,
                             const kvt_seal_page *page) {
    const realm *r = &c->realms[l->realm];
    if (is_cut_off(c, l, page->page))
        return KVT_EFULL;
    if (page->page >= radix_depth(c->tree, l->tail) || page->group >= r->n_groups)
        return KVT_EINVAL;
    if (page->bytes == 0) {
        /* It has none, which is right if whoever comes to the end of the path needs none. */
        uint32_t window = r->windows[page->group], end = (page->page + 1) * r->page_tokens;
        return window && end + window <= path_tokens(c, l->tail) ? KVT_OK : KVT_EINVAL;
    }
    if (page->bytes < KVT_PAGE_HEADER_BYTES ||
        page->bytes > kvt_page_max_bytes(&r->shapes[page->group]))
        return KVT_ECORRUPT;
    uint64_t offset = page->offset & ~KVT_STAGED_ON_DEVICE;
    if (offset > s->staging_bytes || page->bytes > s->staging_bytes - offset)
        return KVT_EINVAL;
    return KVT_OK;
}

/* Adds the page to the job, with a frame. */
static kvt_status seal_take(core *c, core_job *job, radix_node node, uint32_t slot,
                            const kvt_seal_page *page) {
    page_handle handle = node_page(c, node, slot);
    uint32_t frame, rows, arena = slot_arena(c, &c->realms[job->realm], slot);
    KVT_ASSERT(arena != ARENA_NONE); /* its worker has come */
    kvt_status status = frame_alloc(c, arena, page->bytes, &frame);
    if (status != KVT_OK) {
        c->wanted_bytes = status == KVT_EFULL ? page->bytes : 0;
        c->wanted_page = handle;
        return status;
    }
    radix_tokens(c->tree, node, &rows);
    page_ref(c->pages, handle);
    if (page_get(c->pages, handle)->state == PAGE_FILLING)
        page_move(c->pages, handle, PAGE_COPYING);
    job->copies[job->n_copies++] = (core_copy){.from_offset = page->offset,
                                               .to_offset = frame_offset(c, frame),
                                               .bytes = page->bytes,
                                               .rows = rows,
                                               .shape = &c->realms[job->realm].shapes[page->group],
                                               .status = KVT_EINTERNAL,
                                               .frame = frame,
                                               .page = handle,
                                               .node = node,
                                               .slot = slot};
    return KVT_OK;
}

/* A slot that passed out of its window is filled again for a path that ends near it; else nobody
 * would come to read it. */
static kvt_status seal_again(core *c, core_job *job, const lease *l, radix_node node, uint32_t slot,
                             const kvt_seal_page *page) {
    const realm *r = &c->realms[l->realm];
    if (page->bytes == 0 || !is_held(c, node) ||
        !slot_is_wanted(c, r, node, page->group, path_tokens(c, l->tail))) {
        c->counts.pages_duplicate++;
        return KVT_OK;
    }
    kvt_status status = slot_refill(c, node, slot);
    if (status == KVT_OK)
        status = seal_take(c, job, node, slot, page);
    if (status != KVT_OK && node_page(c, node, slot))
        slot_empty(c, node, slot);
    return status;
}

/* Its worker has no bytes and needs none. Another's, on their way, are welcome. */
static void seal_pass(core *c, const realm *r, radix_node node, uint32_t slot) {
    if (node_entry(c, node, slot)->state != PAGE_FILLING)
        return;
    c->counts.pages_passed++;
    slot_empty(c, node, slot);
    node_settle(c, r, node);
    c->wake = 1;
}

static kvt_status seal_one(core *c, core_job *job, const lease *l, radix_node node,
                           const kvt_seal_page *page, uint32_t before) {
    const realm *r = &c->realms[l->realm];
    uint32_t slot = slot_of(r, l->rank, page->group);
    const page_entry *entry = node_entry(c, node, slot);
    if (!entry)
        return seal_again(c, job, l, node, slot, page);
    if (entry_is_sealed(entry)) {
        c->counts.pages_duplicate++;
        return KVT_OK;
    }
    int follows = before != UINT32_MAX && (before == page->page || before + 1 == page->page);
    if (!follows && !node_rank_is_sealed(c, r, radix_parent(c->tree, node), l->rank))
        return KVT_EORDER;
    if (page->bytes > 0)
        return seal_take(c, job, node, slot, page);
    seal_pass(c, r, node, slot);
    return KVT_OK;
}

/* c->path = the nodes of the lease's path from the message's first page on; returns its number. */
static uint32_t path_load(core *c, const lease *l, const kvt_seal_req *req) {
    kvt_seal_page first;
    kvt_wire_get_seal_page(req->pages, 0, &first);
    radix_node node = l->tail;
    for (uint32_t depth = radix_depth(c->tree, node); depth > first.page; depth--) {
        c->path[depth - 1 - first.page] = node;
        node = radix_parent(c->tree, node);
    }
    return first.page;
}

/* Takes the pages of the message in path order, up to the first that cannot be. */
static kvt_status seal_take_all(core *c, const session *s, const lease *l, const kvt_seal_req *req,
                                core_job *job) {
    uint32_t before = UINT32_MAX; /* the page that was taken last */
    uint32_t first = path_load(c, l, req);
    for (uint32_t i = 0; i < req->n_pages; i++) {
        kvt_seal_page page;
        kvt_wire_get_seal_page(req->pages, i, &page);
        kvt_status status = seal_check(c, l, s, &page);
        if (status != KVT_OK)
            return status;
        status = seal_one(c, job, l, c->path[page.page - first], &page, before);
        if (status != KVT_OK)
            return status;
        before = page.page;
    }
    return KVT_OK;
}

static void reply_seal(core *c, core_ticket ticket, uint64_t number, lease *l,
                       kvt_status page_status, uint32_t first_page) {
    held_prefix h = lease_look(c, l, UINT32_MAX);
    kvt_seal_rep rep = {.page_status = (uint32_t)page_status, .held_tokens = h.tokens};
    /* One was to be left to compute: whoever is told here that all is held has computed it. */
    if (h.tokens >= l->n_tokens)
        l->leave_one = 0;
    rep.n_lists = make_lists(c, l, &h, first_page, rep.lists);
    lease_tell(c, l, &h);
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_seal_rep(&w, &rep);
    put_list_pages(c, &w, l, &h, rep.lists);
    reply_finish(c, ticket, KVT_OP_SEAL, number, &w);
}

/* Pages of the arenas that jobs copy or put into fewer bits: they stay where they are until then.
 */
static uint32_t pages_in_jobs(const core *c) {
    return (c->tiers ? tiers_frames_of(c, CORE_JOB_DOWN, CORE_JOB_DOWN) : 0) +
           cooling_refs_of(c, NULL, 0);
}

static uint32_t pages_of_path(const core *c, const lease *l) {
    uint32_t n = 0;
    for (radix_node node = l->tail; radix_depth(c->tree, node) > 0;
         node = radix_parent(c->tree, node))
        n += is_held(c, node) ? node_pages(c, node) : 0;
    return n;
}

static uint32_t arena_of(const core *c, const session *s) {
    return c->config.n_arenas > 1 ? s->arena - 1 : 0;
}

/* --- no room -----------------------------------------------------------------------------------
 */

/* Seals under way: how many frames of the arena they have, and whether one of those is given back
 * for certain, since its page is sealed already, or gone, or in several of these jobs. */
static uint32_t frames_in_seals(const core *c, uint32_t arena, int *ret_one_comes_back) {
    uint32_t n = 0;
    int comes_back = 0;
    for (uint32_t i = 0; i < c->config.max_jobs; i++)
        for (uint32_t k = 0; k < c->jobs[i].n_copies; k++) {
            const core_copy *copy = &c->jobs[i].copies[k];
            const page_entry *entry = page_get(c->pages, copy->page);
            if (frame_arena(c, copy->frame) != arena)
                continue;
            n++;
            /* refs: see copy_finish */
            comes_back |= entry->node == RADIX_NONE || entry_is_sealed(entry) || entry->refs > 2;
        }
    *ret_one_comes_back = comes_back;
    return n;
}

/* Is it a matter of milliseconds, until a job ends? Pages can go as soon as it has copied them, a
 * seal gives back what others sealed first, or seals the very page that found no room. */
static int is_soon(const core *c, uint32_t arena) {
    const page_entry *wanted = page_get(c->pages, c->wanted_page);
    int comes_back;
    frames_in_seals(c, arena, &comes_back);
    return comes_back || (wanted && wanted->state == PAGE_COPYING) || room_is_coming(c, arena);
}

/* What is said wherever not one page of a message was taken. */
typedef struct full_words {
    kvt_status status; /* KVT_EBUSY: its library asks again */
    char in_use[192], kept[160];
    const char *cure, *behind_cure; /* in front of what is to be larger, and behind it */
} full_words;

static full_words words_of_full(const core *c, const lease *l, uint32_t arena) {
    core_counts n;
    core_arena_counts of;
    full_words words;
    int comes_back, soon = is_soon(c, arena);
    const char *gpu = c->config.n_arenas > 1 ? c->arenas[arena].gpu : "";
    core_count(c, &n);
    core_count_arena(c, arena, &of);
    uint32_t own = pages_of_path(c, l);
    int alone = own > 0 && own >= of.frames_used; /* else others are sealing, too */
    words.status = soon ? KVT_EBUSY : KVT_EFULL;
    words.cure = soon                    ? "ask again, or "
                 : own >= n.pages_pinned ? ""
                                         : "release leases, unpin, or ";
    words.behind_cure = *words.cure || !alone ? "" : ", which this path alone fills";
    snprintf(words.in_use, sizeof words.in_use,
             "tenant %s has %llu of %llu bytes of its arena%s%s in use, in %llu pages", c->tenant,
             (unsigned long long)of.used_bytes, (unsigned long long)of.arena_bytes,
             *gpu ? " on GPU " : "", gpu, (unsigned long long)of.frames_used);
    snprintf(words.kept, sizeof words.kept,
             "%llu pages are leased or pinned, %u of them by this lease, %u are being copied, %u "
             "sealed, and %llu can go%s",
             (unsigned long long)n.pages_pinned, own, pages_in_jobs(c),
             frames_in_seals(c, arena, &comes_back), (unsigned long long)n.pages_evictable,
             *gpu       ? " (of all arenas and tiers)"
             : c->tiers ? " (of all tiers)"
                        : "");
    return words;
}

/* All places for pages are taken, or stand in slabs of other sizes. There are as many as max_pages
 * says, and a page that two workers seal has two of them. */
static void refuse_place(core *c, request *rq, const lease *l, uint32_t arena) {
    const full_words words = words_of_full(c, l, arena);
    refuse(c, rq, words.status,
           "%s; another one has no place: the arena has %u (see max_pages). %s. Cure: %sraise "
           "max_pages%s",
           words.in_use, c->config.max_frames, words.kept, words.cure, words.behind_cure);
}

/* It is the bytes: those that are free are of use to a page only where they lie together. */
static void refuse_block(core *c, request *rq, const lease *l, uint32_t arena) {
    const full_words words = words_of_full(c, l, arena);
    const frames *f = c->arenas[arena].frames;
    refuse(c, rq, words.status,
           "%s; a page of %llu finds no room: such pages come in blocks of %llu, and what is free "
           "lies in pieces of at most %llu. %s. Cure: %senlarge its arena%s",
           words.in_use, (unsigned long long)c->wanted_bytes,
           (unsigned long long)frames_slab_bytes(f, c->wanted_bytes),
           (unsigned long long)frames_largest_free(f), words.kept, words.cure, words.behind_cure);
}

/* Would there be room for the page that found none, if there were more places? */
static int lacks_place(const core *c, uint32_t arena) {
    const frames *f = c->arenas[arena].frames;
    core_arena_counts of;
    core_count_arena(c, arena, &of);
    uint64_t slab_bytes = frames_slab_bytes(f, c->wanted_bytes);
    return of.frames_used >= c->config.max_frames ||
           (slab_bytes > 0 && slab_bytes <= frames_largest_free(f));
}

static void refuse_cut(core *c, request *rq, const lease *l, uint32_t page) {
    refuse(c, rq, KVT_EFULL,
           "page %u is not claimed any more: no page of the claim was sealed for %u ms (claim_ms), "
           "and others needed the places of its pages from %u on. Seal sooner, or raise max_pages "
           "(%u)",
           page, c->config.claim_ms, radix_depth(c->tree, l->tail), c->config.max_pages);
}

void serve_seal(core *c, request *rq) {
    kvt_seal_req req;
    if (kvt_wire_get_seal_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    session *s = rq->session;
    lease *l = lease_get(c, s, req.lease);
    if (!l) {
        refuse(c, rq, KVT_ENOENT, "no such lease of this session");
        return;
    }
    if (!l->claim || s->staging < 0) {
        refuse(c, rq, KVT_EINVAL, "%s",
               l->claim ? "no staging file was announced" : "the lease claims nothing");
        return;
    }
    kvt_seal_page first;
    kvt_wire_get_seal_page(req.pages, 0, &first);
    if (is_cut_off(c, l, first.page)) {
        refuse_cut(c, rq, l, first.page);
        return;
    }
    core_job *job = c->free_jobs;
    if (session_is_busy(c, rq))
        return;
    if (!job) {
        refuse(c, rq, KVT_EBUSY, "%u jobs are under way, the most allowed; raise max_jobs",
               c->n_jobs);
        return;
    }
    core_copy *copies = job->copies;
    core_job *next = job->next;
    *job = (core_job){.kind = CORE_JOB_SEAL,
                      .lane = s->number,
                      .staging = s->staging,
                      .copies = copies,
                      .ticket = rq->ticket,
                      .number = rq->header.number,
                      .lease = req.lease,
                      .session = session_slot(c, s) + 1,
                      .realm = l->realm,
                      .rank = l->rank,
                      .first_page = first.page,
                      .next = next};
    c->wanted_bytes = c->wanted_page = 0;
    job->refused = seal_take_all(c, s, l, &req, job);
    uint32_t arena = arena_of(c, s);
    c->counts.seals_refused_full += c->wanted_bytes > 0 && !is_soon(c, arena);
    if (c->wanted_bytes > 0 && job->n_copies == 0 && !is_held(c, c->path[0])) {
        (lacks_place(c, arena) ? refuse_place : refuse_block)(c, rq, l, arena);
        return;
    }
    if (job->n_copies == 0) {
        reply_seal(c, rq->ticket, rq->header.number, l, job->refused, first.page);
        return;
    }
    c->free_jobs = next;
    job->next = NULL;
    s->n_jobs++;
    c->n_jobs++;
    c->realms[l->realm].n_jobs++;
    c->env.submit(c->env.context, job);
}

void replace_short(core *c, radix_node node) {
    uint32_t n_tokens, n_short;
    if (radix_is_hidden(c->tree, node))
        return; /* its siblings have taken its place */
    const uint32_t *tokens = radix_tokens(c->tree, node, &n_tokens);
    for (radix_node prev = radix_prev_sibling(c->tree, node); prev != RADIX_NONE;) {
        const uint32_t *begin = radix_tokens(c->tree, prev, &n_short);
        if (n_short >= n_tokens || memcmp(begin, tokens, n_short * sizeof *tokens) != 0)
            return;
        radix_node at = prev;
        prev = radix_prev_sibling(c->tree, at);
        if (radix_is_held(c->tree, at) && !radix_is_busy(c->tree, at) &&
            nodes_marked_alike(c, at, node)) {
            c->counts.pages_replaced += node_pages(c, at);
            importance_leave(c, at, node);
            node_discard(c, at);
        }
    }
}

/* The page is in the tree still (its worker may have died and nobody else claimed it), and the one
 * in front of it is held. */
static kvt_status copy_settle(core *c, const session *s, const core_job *job, core_copy *copy) {
    if (copy->status != KVT_OK) {
        c->counts.pages_corrupt++;
        return copy->status;
    }
    const page_entry *entry = page_get(c->pages, copy->page);
    KVT_ASSERT(entry); /* the job's reference keeps it */
    if (entry->node == RADIX_NONE)
        return KVT_ESTALE;
    if (entry_is_sealed(entry)) {
        c->counts.pages_duplicate++;
        return KVT_OK;
    }
    const realm *r = &c->realms[job->realm];
    if (!node_rank_is_sealed(c, r, radix_parent(c->tree, copy->node), job->rank))
        return KVT_EORDER;
    page_set_frame(c->pages, copy->page, copy->frame);
    page_move(c->pages, copy->page, PAGE_SEALED);
    page_set_sealed(c->pages, copy->page, s->number, (uint16_t)copy->rows);
    copy->frame = PAGE_NO_FRAME;
    tier_sealed(c, copy->page, job->realm, copy->slot, copy->bytes);
    cool_sealed(c, copy->page, job->realm, copy->slot, copy->bytes);
    c->counts.pages_sealed++;
    c->counts.values_saturated += copy->saturated;
    node_settle(c, r, copy->node);
    return KVT_OK;
}

/* Gives back what the copy did not use, and drops the job's reference. */
static void copy_finish(core *c, core_copy *copy) {
    const page_entry *entry = page_get(c->pages, copy->page);
    if (copy->frame != PAGE_NO_FRAME)
        frame_free(c, copy->frame);
    /* refs: one of the tree, one of this job; more are other jobs that copy the same page. */
    if (entry->state == PAGE_COPYING && entry->node != RADIX_NONE && entry->refs == 2) {
        if (radix_is_held(c->tree, copy->node))
            slot_empty(c, copy->node, copy->slot); /* it was to be filled again */
        else
            page_move(c->pages, copy->page, PAGE_FILLING);
    }
    page_drop(c, copy->page);
}

void seal_job_done(core *c, core_job *job) {
    session *s = &c->sessions[job->session - 1];
    kvt_status status = KVT_OK;
    c->realms[job->realm].n_jobs--;
    for (uint32_t i = 0; i < job->n_copies; i++) {
        core_copy *copy = &job->copies[i];
        kvt_status one = copy_settle(c, s, job, copy);
        copy_finish(c, copy);
        if (status == KVT_OK)
            status = one;
    }
    c->wake = 1;
    if (status == KVT_OK)
        status = job->refused;
    lease *l = s->state == SESSION_ENDING ? NULL : lease_get(c, s, job->lease);
    if (l) {
        if (job->n_copies > 0 && job->copies[0].status == KVT_OK)
            claim_kept(c, l);
        lease_recount(c, l);
        reply_seal(c, job->ticket, job->number, l, status, job->first_page);
    } else if (s->state != SESSION_ENDING) {
        reply_error(c, job->ticket, KVT_OP_SEAL, job->number, KVT_ESTALE,
                    "the lease was released while its pages were being sealed");
    }
    job->n_copies = 0; /* else is_soon would count them */
    job->next = c->free_jobs;
    c->free_jobs = job;
    session_job_done(c, s);
}
