/*
 * Page table and frames against obvious models: random operations from a tiny alphabet, the audit
 * after each, every answer predicted.
 *
 *     test_store_model [SEED [OPERATIONS]]
 *
 * The model of frames knows slabs only as "a run of granules with so many places of one size"; it
 * predicts when an alloc must succeed and when it must not, and by trying every stretch of the
 * arena how many moves the best victim takes.
 */
#include "store/frames.h"
#include "store/frames_parts.h"
#include "store/page_table.h"

#include "tests/check.h"

static uint64_t first_seed, seed;
static uint64_t n_done; /* operations, for the message of a failure */

#define MUST(condition)                                                                            \
    CHECK_MSG(condition, "seed %" PRIu64 ", operation %" PRIu64, first_seed, n_done)

/* --- page table ---------------------------------------------------------------------------------
 */

enum { N_PAGES = 6, N_STALE = 32 };

typedef struct model_page {
    page_handle handle; /* 0: free */
    page_state state;
    uint32_t refs, frame, node, sealer, rows;
} model_page;

typedef struct page_model {
    page_table *table;
    model_page pages[N_PAGES];
    page_handle stale[N_STALE];
    uint32_t n_freed;
} page_model;

static void page_check(const page_model *m, const model_page *p) {
    const page_entry *e = page_get(m->table, p->handle);
    MUST(e != NULL);
    MUST(e->state == p->state && e->refs == p->refs && e->frame == p->frame);
    MUST(e->node == p->node && e->sealer == p->sealer && e->rows == p->rows);
}

static void page_model_claim(page_model *m) {
    page_handle handle = 0;
    uint32_t node = check_below(&seed, 100);
    kvt_status status = page_claim(m->table, node, &handle);
    for (int i = 0; i < N_PAGES; i++) {
        if (m->pages[i].handle)
            continue;
        MUST(status == KVT_OK && handle != 0);
        m->pages[i] = (model_page){.handle = handle,
                                   .state = PAGE_FILLING,
                                   .refs = 1,
                                   .frame = PAGE_NO_FRAME,
                                   .node = node};
        return;
    }
    MUST(status == KVT_EFULL && handle == 0);
}

static void page_model_unref(page_model *m, model_page *p) {
    uint32_t frame = 1, freed = (uint32_t)page_unref(m->table, p->handle, &frame);
    MUST(freed == (p->refs == 1));
    MUST(frame == (freed ? p->frame : PAGE_NO_FRAME));
    if (!freed) {
        p->refs--;
        return;
    }
    m->stale[m->n_freed++ % N_STALE] = p->handle;
    *p = (model_page){0};
}

static void page_model_move(page_model *m, model_page *p) {
    page_state to = (page_state)(1 + check_below(&seed, PAGE_N_STATES - 1));
    if (!page_move_legal(p->state, to))
        return;
    if (to == PAGE_FILLING)
        page_set_frame(m->table, p->handle, p->frame = PAGE_NO_FRAME);
    page_move(m->table, p->handle, to);
    if (p->state == PAGE_COPYING && to == PAGE_SEALED) {
        p->sealer = check_below(&seed, 9);
        p->rows = 1 + check_below(&seed, 64);
        page_set_sealed(m->table, p->handle, p->sealer, (uint16_t)p->rows);
    }
    p->state = to;
    if (to == PAGE_COPYING)
        page_set_frame(m->table, p->handle, p->frame = check_below(&seed, 50));
}

static void page_model_set(page_model *m, model_page *p) {
    uint32_t value = check_below(&seed, 1000);
    if (p->state == PAGE_FILLING || p->state == PAGE_COPYING)
        page_set_filler(m->table, p->handle, p->sealer = value);
    else
        page_set_frame(m->table, p->handle, p->frame = value);
    page_set_node(m->table, p->handle, p->node = value + 1);
}

static void page_model_step(page_model *m) {
    uint32_t kind = check_below(&seed, 8);
    model_page *p = &m->pages[check_below(&seed, N_PAGES)];
    if (kind == 0 || !p->handle) {
        page_model_claim(m);
    } else if (kind <= 2) {
        page_model_unref(m, p);
    } else if (kind == 3) {
        page_ref(m->table, p->handle);
        p->refs++;
    } else if (kind == 4) {
        page_model_set(m, p);
    } else {
        page_model_move(m, p);
    }
    page_counts counts;
    uint32_t in_state[PAGE_N_STATES] = {0}, sum = 0;
    page_table_count(m->table, &counts);
    for (int i = 0; i < N_PAGES; i++) {
        in_state[m->pages[i].state]++;
        if (m->pages[i].handle)
            page_check(m, &m->pages[i]);
    }
    for (int s = 0; s < PAGE_N_STATES; s++) {
        MUST(counts.in_state[s] == in_state[s]);
        sum += counts.in_state[s];
    }
    MUST(sum == N_PAGES);
    for (int i = 0; i < N_STALE; i++)
        MUST(page_get(m->table, m->stale[i]) == NULL);
    char why[200] = "";
    CHECK_MSG(page_table_audit(m->table, why, sizeof(why)) == KVT_OK,
              "%s (seed %" PRIu64 ", operation %" PRIu64 ")", why, first_seed, n_done);
}

/* --- frames -------------------------------------------------------------------------------------
 */

enum {
    MAX_GRANULES = 128,
    MAX_IDS = 60,
    N_SIZES = 5,
};

typedef struct model_slab {
    uint32_t granule, n_granules, n_places; /* n_granules 0: none */
    uint64_t size;
    uint32_t n_used, most_used; /* ids stay with a slab, so it holds as many as ever were in use */
} model_slab;

typedef struct model_frame {
    int slab; /* -1: not in use */
    uint64_t offset, asked;
} model_frame;

typedef struct frame_model {
    frames *f;
    void *memory;
    uint64_t generations[MAX_IDS], last[MAX_IDS];
    uint32_t n_granules, n_ids;
    uint64_t sizes[N_SIZES];
    model_slab slabs[MAX_GRANULES];
    model_frame frames[MAX_IDS];
    uint32_t salt; /* who is movable at the moment */
} frame_model;

static uint64_t rounded(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static void frame_model_start(frame_model *m) {
    free(m->memory);
    memset(m, 0, sizeof(*m));
    m->n_granules = 16 * (1 + check_below(&seed, MAX_GRANULES / 16));
    m->n_ids = 1 + check_below(&seed, MAX_IDS);
    uint64_t arena_bytes = m->n_granules * UINT64_C(4096);
    size_t bytes = frames_bytes(arena_bytes, m->n_ids);
    m->memory = malloc(bytes);
    CHECK(m->memory);
    for (uint32_t i = 0; i < m->n_ids; i++) {
        m->frames[i].slab = -1;
        m->generations[i] = check_below(&seed, 5);
        m->last[i] = m->generations[i] + 1;
    }
    MUST(frames_init(m->memory, bytes, arena_bytes, m->n_ids, m->generations, &m->f) == KVT_OK);
    MUST(m->f->n_granules == m->n_granules);
    for (int i = 0; i < N_SIZES; i++)
        m->sizes[i] = 1 + check_random(&seed) % (UINT64_C(600) << check_below(&seed, 9));
}

static uint32_t model_pool(const frame_model *m) {
    uint32_t n = m->n_ids;
    for (uint32_t s = 0; s < MAX_GRANULES; s++)
        n -= m->slabs[s].n_granules ? m->slabs[s].most_used : 0;
    return n;
}

/* The slab that covers a granule, or -1. */
static int model_slab_at(const frame_model *m, uint32_t granule) {
    for (int s = 0; s < MAX_GRANULES; s++) {
        if (granule - m->slabs[s].granule < m->slabs[s].n_granules)
            return s;
    }
    return -1;
}

static int model_run_free(const frame_model *m, uint32_t granule, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (granule + i >= m->n_granules || model_slab_at(m, granule + i) >= 0)
            return 0;
    }
    return 1;
}

static int model_room(const frame_model *m, uint64_t size, uint32_t pool) {
    for (uint32_t s = 0; s < MAX_GRANULES; s++) {
        const model_slab *k = &m->slabs[s];
        if (k->n_granules && k->size == size && k->n_used < k->n_places &&
            (k->n_used < k->most_used || pool > 0))
            return 1;
    }
    return 0;
}

static int model_can_alloc(const frame_model *m, uint64_t bytes, const slab_plan *plan) {
    uint32_t pool = model_pool(m);
    if (model_room(m, rounded(bytes), pool))
        return 1;
    for (uint32_t g = 0; g < m->n_granules && pool > 0; g++) {
        if (model_run_free(m, g, plan->n_granules))
            return 1;
    }
    return 0;
}

/* A slab with room, of which the next frame should have come instead of a new slab. */
static int model_open_slab(const frame_model *m, uint64_t size, uint32_t pool) {
    for (uint32_t i = 0; i < m->n_ids; i++) {
        const model_slab *k = m->frames[i].slab < 0 ? NULL : &m->slabs[m->frames[i].slab];
        if (k && k->size == size && k->n_used < k->n_places &&
            (k->n_used < k->most_used || pool > 0) && !frames_in_stretch(m->f, i))
            return 1;
    }
    return 0;
}

static void model_place(frame_model *m, uint32_t id, uint64_t bytes, const slab_plan *plan,
                        int was_open) {
    uint64_t offset = frames_offset(m->f, id), size = rounded(bytes);
    int s = model_slab_at(m, (uint32_t)(offset / 4096));
    if (s < 0) {
        MUST(!was_open);
        MUST(offset % 4096 == 0);
        MUST(model_run_free(m, (uint32_t)(offset / 4096), plan->n_granules));
        for (s = 0; m->slabs[s].n_granules; s++)
            ;
        m->slabs[s] = (model_slab){.granule = (uint32_t)(offset / 4096),
                                   .n_granules = plan->n_granules,
                                   .n_places = plan->n_frames,
                                   .size = size};
    }
    model_slab *k = &m->slabs[s];
    MUST(k->size == size && k->n_used < k->n_places);
    uint64_t from = offset - k->granule * UINT64_C(4096);
    MUST(from % size == 0 && from / size < k->n_places);
    for (uint32_t i = 0; i < m->n_ids; i++)
        MUST(m->frames[i].slab < 0 || m->frames[i].offset != offset);
    k->n_used++;
    k->most_used = k->n_used > k->most_used ? k->n_used : k->most_used;
    m->frames[id] = (model_frame){.slab = s, .offset = offset, .asked = bytes};
}

static kvt_status frame_model_alloc(frame_model *m, uint64_t bytes) {
    uint32_t id = FRAMES_NONE, units = 0;
    if (bytes > m->n_granules * UINT64_C(4096)) {
        MUST(frames_alloc(m->f, bytes, &id) == KVT_ELIMIT && id == FRAMES_NONE);
        return KVT_ELIMIT;
    }
    slab_plan plan;
    MUST(frames_units(m->f, bytes, &units) == KVT_OK);
    frames_plan(m->f, units, &plan);
    int can = model_can_alloc(m, bytes, &plan);
    int open = model_open_slab(m, rounded(bytes), model_pool(m));
    kvt_status status = frames_alloc(m->f, bytes, &id);
    MUST(status == (can ? KVT_OK : KVT_EFULL));
    if (status == KVT_OK) {
        MUST(id < m->n_ids && m->frames[id].slab < 0);
        MUST(m->generations[id] > m->last[id]);
        m->last[id] = m->generations[id];
        model_place(m, id, bytes, &plan, open);
    }
    return status;
}

static void frame_model_free(frame_model *m, uint32_t id) {
    frames_free(m->f, id);
    MUST(m->generations[id] > m->last[id]);
    m->last[id] = m->generations[id];
    model_slab *k = &m->slabs[m->frames[id].slab];
    m->frames[id].slab = -1;
    if (--k->n_used == 0)
        *k = (model_slab){0};
}

static int movable(void *context, uint32_t id) {
    const frame_model *m = context;
    MUST(frames_in_use(m->f, id));
    return (id * 2654435761u + m->salt * 40503u) >> 16 & 3;
}

/* Moves that free [granule, granule + n), 0 if nothing is there to move or it cannot be. */
static uint32_t model_moves(frame_model *m, uint32_t granule, uint32_t n, uint64_t not_size,
                            uint32_t list_max) {
    uint32_t moves = 0;
    int last = -1;
    for (uint32_t g = granule; g < granule + n; g++) {
        int s = model_slab_at(m, g);
        if (s < 0 || s == last)
            continue;
        last = s;
        if (m->slabs[s].size == not_size || m->slabs[s].n_used > list_max)
            return 0;
        for (uint32_t i = 0; i < m->n_ids; i++) {
            if (m->frames[i].slab == s && !movable(m, i))
                return 0;
        }
        moves += m->slabs[s].n_used;
    }
    return moves;
}

static uint32_t model_best(frame_model *m, uint32_t n, uint64_t not_size, uint32_t list_max) {
    uint32_t best = UINT32_MAX;
    for (uint32_t g = 0; g + n <= m->n_granules; g++) {
        uint32_t moves = model_moves(m, g, n, not_size, list_max);
        best = moves && moves < best ? moves : best;
    }
    return best;
}

static void frame_model_victim(frame_model *m) {
    uint64_t bytes = m->sizes[check_below(&seed, N_SIZES)];
    uint32_t list_max = check_below(&seed, 2) ? MAX_IDS : check_below(&seed, 12), units, n = 99;
    uint32_t list[MAX_IDS], pool = model_pool(m), n_of_slab[MAX_GRANULES] = {0};
    m->salt = check_below(&seed, 3) ? check_below(&seed, 1000) : m->salt;
    if (frames_units(m->f, bytes, &units) != KVT_OK)
        return;
    slab_plan plan;
    frames_plan(m->f, units, &plan);
    uint32_t best = model_best(m, pool ? plan.n_granules : 1, rounded(bytes), list_max);
    kvt_status status = frames_victim(m->f, bytes, movable, m, list, list_max, &n);
    if (best == UINT32_MAX) {
        MUST(status == KVT_ENOENT && n == 99);
        return;
    }
    MUST(status == KVT_OK && n > 0 && n <= list_max && n <= best);
    MUST(n == best || list_max < best);
    for (uint32_t i = 0; i < n; i++) {
        MUST(m->frames[list[i]].slab >= 0 && movable(m, list[i]));
        MUST(m->slabs[m->frames[list[i]].slab].size != rounded(bytes));
        MUST(frames_in_stretch(m->f, list[i]));
        n_of_slab[m->frames[list[i]].slab]++;
    }
    for (uint32_t s = 0; s < MAX_GRANULES; s++) /* whole slabs, each frame once */
        MUST(n_of_slab[s] == 0 || n_of_slab[s] == m->slabs[s].n_used);
    if (check_below(&seed, 3) == 0)
        return;
    while (n > 0)
        frame_model_free(m, list[--n]);
    if (list_max >= best && pool > 0)
        MUST(frame_model_alloc(m, bytes) == KVT_OK);
}

static void frame_model_check(const frame_model *m) {
    uint64_t asked = 0, sizes = 0, granules = 0;
    uint32_t used = 0, idle = 0, unused = 0, classes = 0, pool = model_pool(m);
    for (uint32_t i = 0; i < m->n_ids; i++) {
        MUST(frames_in_use(m->f, i) == (m->frames[i].slab >= 0));
        MUST(m->generations[i] == m->last[i]);
        if (m->frames[i].slab < 0)
            continue;
        MUST(frames_offset(m->f, i) == m->frames[i].offset);
        MUST(frames_asked(m->f, i) == m->frames[i].asked);
        MUST(frames_size(m->f, i) == rounded(m->frames[i].asked));
        used++;
        asked += m->frames[i].asked;
    }
    for (uint32_t s = 0; s < MAX_GRANULES; s++) {
        const model_slab *k = &m->slabs[s];
        if (!k->n_granules)
            continue;
        granules += k->n_granules;
        sizes += k->n_places * k->size;
        idle += k->most_used - k->n_used;
        unused += k->n_places - k->most_used;
        uint32_t first = 0;
        while (!m->slabs[first].n_granules || m->slabs[first].size != k->size)
            first++;
        classes += first == s;
    }
    frames_counts c;
    frames_count(m->f, &c);
    MUST(c.used == used && c.used_bytes == asked && c.slab_bytes == granules * 4096);
    MUST(c.free_in_slabs == idle + (unused < pool ? unused : pool) && c.classes == classes);
    uint64_t in_use_sizes = 0;
    for (uint32_t i = 0; i < m->n_ids; i++)
        in_use_sizes += m->frames[i].slab >= 0 ? rounded(m->frames[i].asked) : 0;
    MUST(c.waste_bytes == in_use_sizes - asked + granules * 4096 - sizes);
    char why[300] = "";
    CHECK_MSG(frames_audit(m->f, why, sizeof(why)) == KVT_OK,
              "%s (seed %" PRIu64 ", operation %" PRIu64 ")", why, first_seed, n_done);
}

/* Phases of growing and of shrinking, so that both full and empty arenas are met. */
static void frame_model_step(frame_model *m) {
    uint32_t growing = n_done / 64 % 3 != 0, kind = check_below(&seed, 16);
    if (kind == 0) {
        frame_model_victim(m);
    } else if (kind < (growing ? 11u : 5u)) {
        uint64_t bytes = m->sizes[check_below(&seed, N_SIZES)];
        if (check_below(&seed, 4) == 0)
            bytes = bytes > 40 ? bytes - check_below(&seed, 40) : bytes;
        frame_model_alloc(m, bytes);
    } else {
        uint32_t id = check_below(&seed, m->n_ids);
        if (m->frames[id].slab >= 0)
            frame_model_free(m, id);
    }
    frame_model_check(m);
}

int main(int argc, char **argv) {
    first_seed = seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t n_operations = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;
    static frame_model frame_m;
    static page_model page_m;
    uint64_t memory[64];
    CHECK(page_table_init(memory, sizeof(memory), N_PAGES, &page_m.table) == KVT_OK);
    for (n_done = 0; n_done < n_operations; n_done++) {
        if (n_done % 5000 == 0)
            frame_model_start(&frame_m);
        page_model_step(&page_m);
        frame_model_step(&frame_m);
    }
    free(frame_m.memory);
    printf("%" PRIu64 " operations on each, seed %" PRIu64 "\n", n_operations, first_seed);
    return 0;
}
