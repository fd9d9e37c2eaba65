/*
 * core_damage.c - pages whose bytes are not what was sealed: a bit of memory has flipped.
 *
 * A lower tier's copy is checked when it comes up. In the arena nobody looks but those who read: a
 * reader that finds damage says so (SUSPECT). It is not taken at its word, or any worker could make
 * all others compute what is there: a job looks at the bytes, while the page is pinned where it
 * stands. Only if they are wrong is it forgotten, as FLUSH would: it leaves the tree with all that
 * hangs on it, pins on that end, and whoever leases it keeps the frame, and goes on being told
 * KVT_ECORRUPT, until he lets go. That of a layer group with a window takes its node along as any
 * other does: leases have been told of it by its place in the node, which so must keep it.
 *
 *     reader       SUSPECT lease, page     job: check       wrong: flush_from      answer
 *     ----------->                     -->             -->                     --->
 *
 * Copies in lower tiers go, too, good or not: what was copied down was not looked at, so it may be
 * the same damage; to find out would take a promotion into a frame that the page does not have yet,
 * for a page that is computed again as well.
 *
 * The answer comes after that, so whoever asks for the tokens next does not get the page any more.
 * There are CORE_CHECK_JOBS jobs, a session has one of them at most, and a page is looked at once
 * at a time: whoever asks more is told KVT_EBUSY, and costs nothing.
 */
#include "daemon/core_state.h"

#include <stdio.h>

/* --- counted, and said --------------------------------------------------------------------------
 */

/* Where its bytes are in the arena. */
static void arena_place(const core *c, const page_entry *entry, char *to, size_t room) {
    const arena_books *a = &c->arenas[frame_arena(c, entry->frame)];
    kvt_wire_page at = {0};
    frame_to_wire(c, entry->frame, &at);
    snprintf(to, room, "in the arena %s%s%s, %u bytes at byte %llu of its data", a->path,
             *a->gpu ? " on GPU " : "", a->gpu, at.bytes, (unsigned long long)at.offset);
}

/* Memory that fails damages page after page: the log need not have each. */
static void say(core *c, page_handle page, uint32_t realm_slot, uint32_t slot, const char *where) {
    enum { MAX_LINES = 64 };
    const realm *r = &c->realms[realm_slot];
    char line[1024];
    if (!c->env.warn || c->n_damage_lines == MAX_LINES)
        return;
    c->n_damage_lines++;
    uint32_t end = path_tokens(c, page_get(c->pages, page)->node);
    snprintf(
        line, sizeof line,
        "a page is damaged %s: realm %u (model %s), rank %u, layer group %u, page %u of a path "
        "(up to token %u). The copy is dropped, nobody gets it any more; where this happens "
        "again, test that memory or disk%s",
        where, r->number, r->names.model, slot / r->n_groups, slot % r->n_groups,
        (end - 1) / r->page_tokens, end,
        c->n_damage_lines == MAX_LINES ? " (no more of these lines; see pages_damaged)" : "");
    c->env.warn(c->env.context, line);
}

void damage_note(core *c, page_handle page, const char *where) {
    const tier_page *at = tier_of(c, page);
    c->counts.pages_damaged++;
    say(c, page, at->realm, at->slot, where);
}

/* --- a suspect ----------------------------------------------------------------------------------
 */

/* The page as the lease has it, or 0. */
static page_handle page_of_lease(const core *c, const lease *l, uint32_t number, uint32_t group) {
    if (l->is_view) {
        for (uint32_t i = view_of(c, l)->first_view_page; i; i = c->view_pages[i - 1].next) {
            const view_page *v = &c->view_pages[i - 1];
            if (v->number == number && v->rank == l->rank && v->group == group)
                return v->page;
        }
        return 0;
    }
    held_prefix h = lease_look(c, l, UINT32_MAX);
    if (number >= h.pages)
        return 0;
    radix_node node = h.last;
    while (radix_depth(c->tree, node) > number + 1)
        node = radix_parent(c->tree, node);
    return node_page(c, node, slot_of(&c->realms[l->realm], l->rank, group));
}

/* A place for it; NULL: there is none now. */
static suspect *suspect_place(core *c, const session *s, page_handle page) {
    suspect *place = NULL;
    for (uint32_t i = 0; i < CORE_CHECK_JOBS; i++) {
        suspect *k = &c->suspects[i];
        if (!k->copy.page)
            place = k;
        else if (k->copy.page == page || k->job.session == session_slot(c, s) + 1)
            return NULL;
    }
    return place;
}

static void suspect_start(core *c, suspect *k, const request *rq, const lease *l, page_handle page,
                          uint32_t group) {
    session *s = rq->session;
    realm *r = &c->realms[l->realm];
    const page_entry *entry = page_get(c->pages, page);
    *k = (suspect){.pinned = entry->node};
    k->copy = (core_copy){.from_offset = frame_offset(c, entry->frame),
                          .bytes = (uint32_t)frame_asked(c, entry->frame),
                          .rows = entry->rows,
                          .shape = &r->shapes[group],
                          .status = KVT_EINTERNAL,
                          .frame = PAGE_NO_FRAME,
                          .page = page,
                          .node = entry->node,
                          .slot = slot_of(r, l->rank, group)};
    k->job = (core_job){.kind = CORE_JOB_CHECK,
                        .lane = s->number,
                        .n_copies = 1,
                        .copies = &k->copy,
                        .ticket = rq->ticket,
                        .number = rq->header.number,
                        .session = session_slot(c, s) + 1,
                        .realm = l->realm};
    page_ref(c->pages, page);
    radix_pin(c->tree, entry->node);
    s->n_jobs++;
    c->n_jobs++;
    r->n_jobs++;
    c->n_suspects++;
    c->env.submit(c->env.context, &k->job);
}

static void reply_suspect(core *c, core_ticket ticket, uint64_t number, int forgotten) {
    kvt_suspect_rep rep = {.forgotten = (uint32_t)forgotten};
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_suspect_rep(&w, &rep);
    reply_finish(c, ticket, KVT_OP_SUSPECT, number, &w);
}

/* Does no ACQUIRE get it? Then it may be as it is. */
static int is_forgotten(const core *c, const page_entry *entry) {
    return entry->node == RADIX_NONE || is_flushed(c, entry->node);
}

void serve_suspect(core *c, request *rq) {
    kvt_suspect_req req;
    if (kvt_wire_get_suspect_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    const lease *l = lease_get(c, rq->session, req.lease);
    if (!l) {
        refuse(c, rq, KVT_ENOENT, "no such lease of this session");
        return;
    }
    page_handle page =
        req.group < c->realms[l->realm].n_groups ? page_of_lease(c, l, req.page, req.group) : 0;
    const page_entry *entry = page_get(c->pages, page);
    if (!entry || !entry_is_sealed(entry) || entry->frame == PAGE_NO_FRAME) {
        refuse(c, rq, KVT_EINVAL, "the lease reads no page %u of layer group %u", req.page,
               req.group);
        return;
    }
    if (is_forgotten(c, entry)) {
        reply_suspect(c, rq->ticket, rq->header.number, 1);
        return;
    }
    suspect *k = suspect_place(c, rq->session, page);
    if (!k)
        refuse(c, rq, KVT_EBUSY,
               "that page, another of this session, or %d of others are being "
               "looked at",
               CORE_CHECK_JOBS);
    else if (!session_is_busy(c, rq))
        suspect_start(c, k, rq, l, page, req.group);
}

/* --- the verdict --------------------------------------------------------------------------------
 */

static void forget(core *c, realm *r, page_handle page, uint32_t slot) {
    char where[KVT_WIRE_MAX_PATH + 128];
    const page_entry *entry = page_get(c->pages, page);
    arena_place(c, entry, where, sizeof where);
    c->counts.pages_damaged++;
    say(c, page, (uint32_t)(r - c->realms), slot, where);
    flush_from(c, r, entry->node);
}

static void answer(core *c, const core_job *job, int forgotten) {
    kvt_status status = job->copies[0].status;
    if (forgotten || status == KVT_OK)
        reply_suspect(c, job->ticket, job->number, forgotten);
    else
        reply_error(c, job->ticket, KVT_OP_SUSPECT, job->number, status,
                    "the page could not be looked at: %s", kvt_status_text(status));
}

void suspect_job_done(core *c, core_job *job) {
    suspect *k = &c->suspects[0];
    while (&k->job != job)
        k++;
    session *s = &c->sessions[job->session - 1];
    realm *r = &c->realms[job->realm];
    page_handle page = k->copy.page;
    uint32_t slot = k->copy.slot;
    r->n_jobs--;
    if (k->pinned != RADIX_NONE)
        node_unpin(c, k->pinned);
    k->pinned = RADIX_NONE;
    /* Pinned, it stood where it was looked at, unless it has left the tree meanwhile. */
    const page_entry *entry = page_get(c->pages, page);
    if (k->copy.status == KVT_ECORRUPT && !is_forgotten(c, entry))
        forget(c, r, page, slot);
    int forgotten = is_forgotten(c, page_get(c->pages, page));
    k->copy.page = 0;
    c->n_suspects--;
    page_drop(c, page);
    window_job_ended(c, r, slot, page);
    if (s->state != SESSION_ENDING)
        answer(c, job, forgotten);
    session_job_done(c, s);
}

void suspects_let_go(core *c, radix_node top) {
    for (uint32_t i = 0; i < CORE_CHECK_JOBS && c->n_suspects; i++) {
        suspect *k = &c->suspects[i];
        radix_node node = k->copy.page ? k->pinned : RADIX_NONE;
        while (node != RADIX_NONE && radix_depth(c->tree, node) > radix_depth(c->tree, top))
            node = radix_parent(c->tree, node);
        if (node != top)
            continue;
        radix_unpin(c->tree, k->pinned);
        k->pinned = RADIX_NONE;
    }
}

void suspects_refs_of(const core *c, uint32_t *refs, uint32_t *pins) {
    for (uint32_t i = 0; i < CORE_CHECK_JOBS; i++) {
        const suspect *k = &c->suspects[i];
        if (!k->copy.page)
            continue;
        refs[(uint32_t)k->copy.page]++;
        if (k->pinned != RADIX_NONE)
            pins[k->pinned]++;
    }
}
