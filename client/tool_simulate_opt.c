/*
 * tool_simulate_opt.c - Belady's choice: of the pages at hand and the new one keep those that are
 * asked for soonest. A page is asked for no later than what stands behind it, so what goes is a
 * tail by itself, and what is found is a prefix. With pages of one size nothing finds more.
 */
#include "client/tool_simulate.h"

#include <stdlib.h>

enum { NEVER = UINT32_MAX };

/* Kept pages, the one asked for last in front: heap.h. */
typedef struct heap {
    uint32_t *members, *places;
    uint32_t *next; /* request that asks for each page next */
    uint32_t n;
} heap;
typedef uint32_t heap_index;

/* Asked for later; of what is asked for together the deeper one, which has the higher number. */
static int goes_before(const heap *h, uint32_t a, uint32_t b) {
    return h->next[a] > h->next[b] || (h->next[a] == h->next[b] && a > b);
}

#include "daemon/heap.h"

/* The page is asked for now, and next by the request `next`. */
static void ask(heap *h, uint32_t room, uint32_t page, uint32_t next, sim_result *result) {
    h->next[page] = next;
    if (h->places[page]) {
        heap_put(h, page);
        return;
    }
    if (next == NEVER || room == 0)
        return;
    if (h->n == room) {
        if (!goes_before(h, h->members[0], page))
            return;
        heap_drop(h, h->members[0]);
        result->evictions++;
    }
    heap_put(h, page);
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
    heap h = {.members = malloc((t->n_pages + (size_t)1) * sizeof *h.members),
              .places = calloc(t->n_pages, sizeof *h.places),
              .next = malloc(t->n_pages * sizeof *h.next)};
    uint32_t *again = malloc(t->n_asked * sizeof *again);
    if (!h.members || !h.places || !h.next || !again) {
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
    free(h.members);
    free(h.places);
    free(h.next);
    free(again);
    return status;
}
