/*
 * mirror.c - a listener that keeps a mirror of the pages that can be had, by events alone.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

static sim_mirrored *place_of(sim_world *w, const core_event *event) {
    if (event->place == 0 || event->place >= SIM_MAX_PLACES || event->page == 0)
        sim_fail(w, "event %llu: page %llu at place %u", (unsigned long long)event->sequence,
                 (unsigned long long)event->page, event->place);
    return &w->mirror[event->place];
}

static void take_added(sim_world *w, sim_mirrored *m, const core_event *event) {
    int has_parent = event->parent == 0;
    for (uint32_t i = 1; i < SIM_MAX_PLACES; i++) {
        has_parent |= event->parent && w->mirror[i].page == event->parent;
        if (w->mirror[i].page == event->page)
            sim_fail(w, "page %llu was announced twice", (unsigned long long)event->page);
    }
    if (m->page || !has_parent)
        sim_fail(w, "page %llu was announced where %llu is, behind %llu",
                 (unsigned long long)event->page, (unsigned long long)m->page,
                 (unsigned long long)event->parent);
    *m =
        (sim_mirrored){event->page, event->parent, event->realm, event->tier, event->n_tokens, {0}};
    memcpy(m->tokens, event->tokens, event->n_tokens * sizeof *event->tokens);
}

void sim_mirror_event(void *context, const core_event *event) {
    sim_world *w = context;
    sim_mirrored *m = place_of(w, event);
    w->n.events_told++;
    uint64_t said[] = {event->kind, event->page, event->place, event->tier};
    sim_digest(w, said, sizeof said);
    if (event->sequence != ++w->mirror_sequence)
        sim_fail(w, "event %llu was told as number %llu", (unsigned long long)event->sequence,
                 (unsigned long long)w->mirror_sequence);
    if (event->kind == CORE_EVENT_ADDED) {
        take_added(w, m, event);
        return;
    }
    if (m->page != event->page)
        sim_fail(w, "page %llu was %s, but at its place is %llu", (unsigned long long)event->page,
                 event->kind == CORE_EVENT_MOVED ? "moved" : "taken back",
                 (unsigned long long)m->page);
    if (event->kind == CORE_EVENT_MOVED)
        m->tier = event->tier;
    else
        m->page = 0;
}

static int compare(void *context, const core_event *page) {
    sim_world *w = context;
    const sim_mirrored *m = place_of(w, page);
    if (m->page != page->page || m->parent != page->parent || m->realm != page->realm ||
        m->tier != page->tier || m->n_tokens != page->n_tokens ||
        memcmp(m->tokens, page->tokens, page->n_tokens * sizeof *m->tokens) != 0)
        sim_fail(w, "place %u: page %llu can be had, the mirror has page %llu, tier %u for %u",
                 page->place, (unsigned long long)page->page, (unsigned long long)m->page, m->tier,
                 page->tier);
    w->n_compared++;
    return 0;
}

void sim_mirror_check(sim_world *w) {
    uint32_t n = 0;
    w->n_compared = 0;
    uint32_t end = core_each_page(w->core, 1, UINT32_MAX, compare, w);
    for (uint32_t i = 1; i < SIM_MAX_PLACES; i++)
        n += w->mirror[i].page != 0;
    if (n != w->n_compared || end != w->config.max_pages + 1 ||
        core_sequence(w->core) != w->mirror_sequence)
        sim_fail(w, "%u pages can be had, the mirror has %u; event %llu, the mirror has %llu",
                 w->n_compared, n, (unsigned long long)core_sequence(w->core),
                 (unsigned long long)w->mirror_sequence);
}

/* --- where the pages of a lease came from -------------------------------------------------------
 */

/* The full page behind parent with these tokens, or 0. */
static uint32_t place_behind(const sim_world *w, uint32_t realm, uint64_t parent,
                             const uint32_t *tokens) {
    for (uint32_t i = 1; i < SIM_MAX_PLACES; i++) {
        const sim_mirrored *m = &w->mirror[i];
        if (m->page && m->parent == parent && m->realm == realm && m->n_tokens == SIM_PAGE_TOKENS &&
            memcmp(m->tokens, tokens, sizeof m->tokens) == 0)
            return i;
    }
    return 0;
}

void sim_mirror_note(sim_world *w, sim_worker *k) {
    uint64_t parent = 0;
    if (k->op != KVT_OP_ACQUIRE || k->noted_number == k->op_number)
        return; /* the second of two counts for nothing */
    if (k->leases[k->op_lease].used)
        return; /* what it goes on from may have been flushed, and stand there anew for others */
    k->noted_number = k->op_number;
    memset(k->noted, 0, sizeof k->noted);
    for (uint32_t i = 0; (i + 1) * SIM_PAGE_TOKENS <= k->op_path.n_tokens; i++) {
        uint32_t place = place_behind(w, k->realm, parent, k->op_path.tokens + i * SIM_PAGE_TOKENS);
        if (!place)
            return;
        parent = w->mirror[place].page;
        k->noted[i].page = parent;
        k->noted[i].place = place;
        k->noted[i].tier = w->mirror[place].tier;
    }
}

/* The lowest tier that the reply says any group's part of the page was in. *ret_all: whether all
 * pages of the node are there, as they were: what passes out of a window may have been sealed anew
 * since, and other ranks' are told to others. */
static uint32_t tier_told(const sim_world *w, const kvt_lease_rep *rep, uint32_t page,
                          int *ret_all) {
    uint32_t tier = 0;
    *ret_all = w->geometry.n_ranks == 1;
    for (uint32_t g = 0; g < rep->n_lists; g++) {
        const kvt_page_list *list = &rep->lists[g];
        kvt_wire_page told = {0};
        if (w->geometry.groups[g].window)
            *ret_all = 0;
        if (page < list->first_page || page - list->first_page >= list->n_pages)
            *ret_all = 0;
        else
            kvt_wire_get_page(list->pages, page - list->first_page, &told);
        tier = told.tier > tier ? told.tier : tier;
    }
    return tier;
}

/* What was in the arena stays there for the lease. What was not may have sunk further, while room
 * was made for the pages in front of it. */
void sim_mirror_compare(sim_world *w, const sim_worker *k, const kvt_lease_rep *rep) {
    for (uint32_t i = 0; (i + 1) * SIM_PAGE_TOKENS <= rep->held_tokens; i++) {
        int all;
        uint32_t told = tier_told(w, rep, i, &all), was = k->noted[i].tier;
        if (k->noted_number != k->op_number || !k->noted[i].page ||
            w->mirror[k->noted[i].place].page != k->noted[i].page)
            continue;
        w->n.lifted += all && was > 0;
        if ((was == 0 && told > 0) || (all && told < was))
            sim_fail(w, "worker %u: page %u was in tier %u, the lease says %u", k->index, i, was,
                     told);
    }
}
