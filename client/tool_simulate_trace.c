/* tool_simulate_trace.c - a trace as the numbers of its pages. */
#include "client/tool_simulate.h"
#include "client/trace.h"

#include <stdlib.h>
#include <string.h>

/* --- numbers ------------------------------------------------------------------------------------
 * A page's name is the number of the page in front of it, and what it has itself: the block's id,
 * which says all, or a 32-bit hash of its tokens, which can be wrong among siblings alone.
 */

typedef struct number_map {
    uint64_t *names; /* + 1; 0: free */
    uint32_t *numbers;
    size_t room; /* a power of two, at most half used */
} number_map;

static size_t place_of(const number_map *m, uint64_t name) {
    size_t i = (size_t)((name * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (m->room - 1);
    while (m->names[i] && m->names[i] != name + 1)
        i = (i + 1) & (m->room - 1);
    return i;
}

static kvt_status map_grow(number_map *m) {
    number_map old = *m;
    m->room = old.room ? 2 * old.room : 1 << 16;
    m->names = calloc(m->room, sizeof *m->names);
    m->numbers = calloc(m->room, sizeof *m->numbers);
    if (!m->names || !m->numbers) {
        free(m->names);
        free(m->numbers);
        *m = old;
        return KVT_ENOMEM;
    }
    for (size_t i = 0; i < old.room; i++)
        if (old.names[i]) {
            size_t at = place_of(m, old.names[i] - 1);
            m->names[at] = old.names[i];
            m->numbers[at] = old.numbers[i];
        }
    free(old.names);
    free(old.numbers);
    return KVT_OK;
}

/* --- reading ------------------------------------------------------------------------------------
 */

typedef struct reader {
    sim_trace *to;
    number_map map;
    uint64_t asked_room;
    uint32_t requests_room, pages_room;
    uint64_t first_ms, last_ms;
} reader;

/* Makes room for n items in the array at *at. */
static kvt_status reserve(void *at, uint64_t *room, uint64_t n, size_t item_bytes) {
    void *old, *bigger;
    if (n <= *room)
        return KVT_OK;
    uint64_t wanted = *room * 2 > n ? *room * 2 : n + 4096;
    memcpy(&old, at, sizeof old);
    bigger = realloc(old, wanted * item_bytes);
    if (!bigger)
        return KVT_ENOMEM;
    memcpy(at, &bigger, sizeof bigger);
    *room = wanted;
    return KVT_OK;
}

static kvt_status reserve32(void *at, uint32_t *room, uint64_t n, size_t item_bytes) {
    uint64_t wide = *room;
    kvt_status status = n >= UINT32_MAX ? KVT_ELIMIT : reserve(at, &wide, n, item_bytes);
    *room = (uint32_t)wide;
    return status;
}

static kvt_status number_of(reader *r, uint32_t parent, uint32_t own, uint32_t n_tokens,
                            uint32_t *ret_number) {
    sim_trace *t = r->to;
    kvt_status status = KVT_OK;
    if (t->n_pages >= r->map.room / 2)
        status = map_grow(&r->map);
    if (status == KVT_OK)
        status =
            reserve32(&t->n_tokens, &r->pages_room, (uint64_t)t->n_pages + 1, sizeof *t->n_tokens);
    if (status != KVT_OK)
        return status;
    uint64_t name = (uint64_t)parent << 32 | own;
    size_t at = place_of(&r->map, name);
    if (!r->map.names[at]) {
        r->map.names[at] = name + 1;
        r->map.numbers[at] = t->n_pages;
        t->n_tokens[t->n_pages++] = n_tokens;
    }
    *ret_number = r->map.numbers[at];
    return KVT_OK;
}

static uint32_t hash_of(const uint32_t *tokens, uint32_t n) {
    uint64_t z = n;
    for (uint32_t i = 0; i < n; i++)
        z = (z ^ tokens[i]) * UINT64_C(0x9fb21c651e98df25) + (z >> 29);
    z = (z ^ (z >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)(z >> 32);
}

static kvt_status take_request(reader *r, const trace_request *request, int blocks) {
    sim_trace *t = r->to;
    uint32_t step = t->full_tokens, number = UINT32_MAX - 1;
    uint64_t n = ((uint64_t)request->n_tokens + step - 1) / step;
    kvt_status status = reserve(&t->pages, &r->asked_room, t->n_asked + n, sizeof *t->pages);
    if (status == KVT_OK)
        status = reserve32(&t->starts, &r->requests_room, (uint64_t)t->n_requests + 2,
                           sizeof *t->starts);
    for (uint32_t from = 0; status == KVT_OK && from < request->n_tokens; from += step) {
        const uint32_t *tokens = request->tokens + from;
        uint32_t rest = request->n_tokens - from, n_tokens = rest < step ? rest : step;
        /* The first token of a block is its id; a later page of it stands behind an earlier one. */
        status =
            number_of(r, number, blocks ? *tokens : hash_of(tokens, n_tokens), n_tokens, &number);
        if (status == KVT_OK)
            t->pages[t->n_asked++] = number;
    }
    if (status != KVT_OK)
        return status;
    if (t->n_requests == 0) {
        r->first_ms = request->t_ms;
        t->starts[0] = 0;
    }
    r->last_ms = request->t_ms;
    t->starts[++t->n_requests] = t->n_asked;
    t->tokens_asked += request->n_tokens;
    return KVT_OK;
}

/* The largest page that is allowed, is no more than the recommended one, and in which the trace's
 * blocks end where pages end; if there is none, the recommended one. */
static uint32_t suggested_page_tokens(const trace_info *info) {
    uint32_t n = 64;
    while (info->kind == TRACE_PCT1 && n > 16 && info->block_tokens % n != 0)
        n /= 2;
    return info->kind == TRACE_PCT1 && info->block_tokens % n != 0 ? 64 : n;
}

static int read_all(reader *r, trace *t, const char *path, uint32_t page_tokens,
                    uint64_t n_requests) {
    trace_info info;
    trace_request request;
    sim_trace *to = r->to;
    trace_info_get(t, &info);
    int blocks = info.kind == TRACE_PCT1;
    to->page_tokens = page_tokens ? page_tokens : suggested_page_tokens(&info);
    to->full_tokens = blocks && !page_tokens ? info.block_tokens : to->page_tokens;
    kvt_status status = KVT_OK;
    while (!n_requests || to->n_requests < n_requests) {
        status = trace_next(t, &request);
        if (status == KVT_OK)
            status = take_request(r, &request, blocks && to->full_tokens == info.block_tokens);
        if (status != KVT_OK)
            break;
    }
    if (status == KVT_ENOMEM)
        return tool_fail(TOOL_SYSTEM, "%s: no memory", path);
    if (status != KVT_OK && status != KVT_ENOENT)
        return tool_fail(TOOL_BAD_INPUT, "%s: %s", path,
                         *trace_why(t) ? trace_why(t) : kvt_status_text(status));
    if (to->n_asked == 0)
        return tool_fail(TOOL_BAD_INPUT, "%s: it asks for nothing", path);
    to->hours = (double)(r->last_ms - r->first_ms) / 3600000;
    return TOOL_OK;
}

int sim_trace_read(const char *path, uint32_t page_tokens, uint64_t n_requests,
                   sim_trace *ret_trace) {
    char why[384] = "";
    trace *t;
    sim_trace made = {0};
    reader r = {.to = &made};
    kvt_status status = trace_open(path, why, sizeof why, &t);
    if (status != KVT_OK)
        return tool_fail(status == KVT_ENOMEM ? TOOL_SYSTEM : TOOL_BAD_INPUT, "%s: %s", path, why);
    int code = read_all(&r, t, path, page_tokens, n_requests);
    trace_close(t);
    free(r.map.names);
    free(r.map.numbers);
    if (code == TOOL_OK)
        *ret_trace = made;
    else
        sim_trace_free(&made);
    return code;
}

void sim_trace_free(sim_trace *t) {
    free(t->pages);
    free(t->starts);
    free(t->n_tokens);
}
