/*
 * core_event.c - events: what a listener needs to keep a mirror of the pages that can be had, and
 * SNAPSHOT, from which it starts.
 *
 * A page (a node of the tree, all its slots) is announced when it can be had from now on, and taken
 * back when it cannot any more: evicted, replaced, or flushed, though a lease may hold it still. In
 * between it has a number of its own, which is never used again within a boot. So every number is
 * announced once and taken back once at most, and nothing is taken back because one copy of several
 * goes.
 *
 * Events are numbered without a gap. A snapshot comes in parts, each of a range of places (tree
 * nodes) as of one event: a listener that began to listen before it asked applies to each place the
 * events after its part's.
 */
#include "daemon/core_state.h"

#include <string.h>

static void emit(core *c, core_event *event) {
    event->sequence = ++c->event_sequence;
    if (c->env.event)
        c->env.event(c->env.context, event);
}

static void describe(const core *c, radix_node node, core_event *ret) {
    radix_node parent = radix_parent(c->tree, node), root = node;
    while (radix_depth(c->tree, root) > 0)
        root = radix_parent(c->tree, root);
    *ret = (core_event){.kind = CORE_EVENT_ADDED, /* of a page that is there, too */
                        .place = node,
                        .page = c->announced[node],
                        .parent = radix_depth(c->tree, parent) ? c->announced[parent] : 0,
                        .realm = c->realm_of_root[root - c->config.max_pages],
                        .n_bytes = node_bytes(c, node),
                        .tier = node_tier(c, node)};
    ret->tokens = radix_tokens(c->tree, node, &ret->n_tokens);
}

void event_added(core *c, radix_node node) {
    core_event event;
    if (is_flushed(c, node))
        return;
    c->announced[node] = ++c->last_announced;
    describe(c, node, &event);
    c->announced_tier[node] = (uint8_t)event.tier;
    emit(c, &event);
}

void event_removed(core *c, radix_node node) {
    if (!c->announced[node])
        return;
    core_event event = {.kind = CORE_EVENT_REMOVED, .place = node, .page = c->announced[node]};
    c->announced[node] = 0;
    emit(c, &event);
}

void event_moved(core *c, radix_node node) {
    uint32_t tier = c->announced[node] ? node_tier(c, node) : 0;
    if (!c->announced[node] || tier == c->announced_tier[node])
        return;
    c->announced_tier[node] = (uint8_t)tier;
    core_event event = {
        .kind = CORE_EVENT_MOVED, .place = node, .page = c->announced[node], .tier = tier};
    emit(c, &event);
}

uint32_t core_each_page(const core *c, uint32_t first_place, uint32_t max,
                        int (*visit)(void *context, const core_event *page), void *context) {
    uint32_t end = first_place ? first_place : 1;
    for (uint32_t n = 0; end <= c->config.max_pages && n < max; end++) {
        core_event page;
        if (!c->announced[end])
            continue;
        describe(c, end, &page);
        page.sequence = c->event_sequence;
        if (visit(context, &page))
            break;
        n++;
    }
    return end;
}

uint64_t core_sequence(const core *c) {
    return c->event_sequence;
}

/* --- SNAPSHOT -----------------------------------------------------------------------------------
 */

enum { PART_PAGES = 4096 /* so that no answer keeps others waiting for long */ };

typedef struct part {
    core *core;
    kvt_writer w;
    uint32_t n;
} part;

void core_event_to_wire(const core *c, const core_event *event, kvt_event *ret) {
    *ret = (kvt_event){.kind = (uint8_t)event->kind,
                       .tier = (uint8_t)event->tier,
                       .page = event->page,
                       .place = event->place,
                       .parent = event->parent,
                       .realm = event->realm,
                       .n_bytes = event->n_bytes,
                       .n_tokens = (uint16_t)event->n_tokens,
                       .n_listed = c->config.event_tokens ? (uint16_t)event->n_tokens : 0};
}

static int put_page(void *context, const core_event *page) {
    part *p = context;
    kvt_event event;
    core_event_to_wire(p->core, page, &event);
    kvt_wire_put_event(&p->w, &event, page->tokens);
    p->n++;
    return 0;
}

void serve_snapshot(core *c, request *rq) {
    kvt_snapshot_req req;
    if (kvt_wire_get_snapshot_req(rq->body, rq->n_bytes, &req) != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    /* The head is written last, when the pages behind it have been counted. */
    kvt_snapshot_rep rep = {.sequence = c->event_sequence,
                            .first_place = req.first_place,
                            .max_place = c->config.max_pages,
                            .events_path = {c->events_path, (uint16_t)strlen(c->events_path)}};
    part p = {.core = c};
    reply_start(c, &p.w);
    kvt_wire_put_snapshot_rep(&p.w, &rep);
    rep.end_place = core_each_page(c, req.first_place, PART_PAGES, put_page, &p);
    rep.n_pages = p.n;
    kvt_writer head;
    reply_start(c, &head);
    kvt_wire_put_snapshot_rep(&head, &rep);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &p.w);
}
