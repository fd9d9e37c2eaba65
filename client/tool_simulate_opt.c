/*
 * tool_simulate_opt.c - Belady's choice: of the pages at hand and the new one keep those that are
 * asked for soonest. A page is asked for no later than what stands behind it, so what goes is a
 * tail by itself, and what is found is a prefix. With pages of one size nothing finds more.
 */
#include "client/tool_simulate.h"

#include <stdlib.h>

enum { NEVER = UINT32_MAX };

/* Kept pages, the one asked for last on top. */
typedef struct heap {
    uint32_t *pages;
    uint32_t *places; /* of each page, + 1; 0: not kept */
    uint32_t *next;   /* request that asks for it next */
    uint32_t n;
} heap;

/* Asked for later; of what is asked for together the deeper one, which has the higher number. */
static int is_later(const heap *h, uint32_t a, uint32_t b) {
    return h->next[a] > h->next[b] || (h->next[a] == h->next[b] && a > b);
}

static void put(heap *h, uint32_t place, uint32_t page) {
    h->pages[place] = page;
    h->places[page] = place + 1;
}

static void settle(heap *h, uint32_t place, uint32_t page) {
    while (place > 0 && is_later(h, page, h->pages[(place - 1) / 2])) {
        put(h, place, h->pages[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        uint64_t below = 2 * (uint64_t)place + 1;
        if (below >= h->n)
            break;
        if (below + 1 < h->n && is_later(h, h->pages[below + 1], h->pages[below]))
            below++;
        if (!is_later(h, h->pages[below], page))
            break;
        put(h, place, h->pages[below]);
        place = (uint32_t)below;
    }
    put(h, place, page);
}

static void take_out(heap *h, uint32_t page) {
    uint32_t place = h->places[page] - 1, last = h->pages[--h->n];
    h->places[page] = 0;
    if (last != page)
        settle(h, place, last);
}

static void put_in(heap *h, uint32_t page) {
    settle(h, h->n++, page);
}

/* The page is asked for now, and next by the request `next`. */
static void ask(heap *h, uint32_t room, uint32_t page, uint32_t next, sim_result *result) {
    h->next[page] = next;
    if (h->places[page]) {
        settle(h, h->places[page] - 1, page);
        return;
    }
    if (next == NEVER || room == 0)
        return;
    if (h->n == room) {
        if (!is_later(h, h->pages[0], page))
            return;
        take_out(h, h->pages[0]);
        result->evictions++;
    }
    put_in(h, page);
    result->pages_most = h->n > result->pages_most ? h->n : result->pages_most;
}

/* When each page that is asked for is asked for again. */
static void look_ahead(const sim_trace *t, uint32_t *upcoming, uint32_t *again) {
    for (uint32_t page = 0; page < t->n_pages; page++)
        upcoming[page] = NEVER;
    for (uint32_t request = t->n_requests; request-- > 0;)
        for (uint64_t i = t->starts[request]; i < t->starts[request + 1]; i++) {
            again[i] = upcoming[t->pages[i]];
            upcoming[t->pages[i]] = request;
        }
}

kvt_status sim_run_opt(const sim_trace *t, const sim_setting *setting, sim_result *ret_result) {
    sim_result result = {0};
    kvt_status status = KVT_OK;
    uint64_t fit = setting->capacity_bytes / setting->full_bytes[0];
    uint32_t room = fit < t->n_pages ? (uint32_t)fit : t->n_pages;
    heap h = {.pages = malloc((t->n_pages + (size_t)1) * sizeof *h.pages),
              .places = calloc(t->n_pages, sizeof *h.places),
              .next = malloc(t->n_pages * sizeof *h.next)};
    uint32_t *again = malloc(t->n_asked * sizeof *again);
    if (!h.pages || !h.places || !h.next || !again) {
        status = KVT_ENOMEM;
        goto out;
    }
    look_ahead(t, h.next, again);
    for (uint32_t request = 0; request < t->n_requests; request++) {
        uint64_t at = t->starts[request], end = t->starts[request + 1];
        for (uint64_t i = at; i < end && h.places[t->pages[i]]; i++)
            result.tokens_found += t->n_tokens[t->pages[i]];
        for (uint64_t i = at; i < end; i++)
            ask(&h, room, t->pages[i], again[i], &result);
    }
    *ret_result = result;
out:
    free(h.pages);
    free(h.places);
    free(h.next);
    free(again);
    return status;
}
