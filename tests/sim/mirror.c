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
    w->n_events_told++;
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
