/* The scheduler: runs a grid's threads as fibers, and has them meet at barriers and in warps.
 * Compiled without any sanitizer, as emu_fiber.cpp. */
#include "tests/cuda/emu_run.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/cuda/emu_fiber.h"

enum {
    WARP = 32,
    MAX_BLOCK_THREADS = 1024,
    SHARED_ALIGN_BYTES = 128,
    POISON = 0xff,
    /* Of a grid under ThreadSanitizer, which knows each of them till the end: some 8,000 are its
     * limit, and a megabyte each. */
    TSAN_MAX_THREADS = 4096,
};

__thread emu_index threadIdx, blockIdx, blockDim, gridDim;

namespace {

enum class state { ready, at_barrier, in_warp, ended };

struct block;

struct thread {
    emu_fiber fiber;
    block *home;
    unsigned number; /* in its block */
    emu_index index;
    state now;
    emu_site site; /* where it waits */
    /* A barrier's, a warp operation's: what this thread brings and what it gets. */
    int predicate, any_predicate;
    emu_warp_op op;
    unsigned mask;
    uint64_t value, result;
    int argument, width;
    /* Meetings so far, to tell ThreadSanitizer one from the next. */
    unsigned n_barriers, n_warp_syncs;
};

/* ThreadSanitizer's sync objects: a meeting orders the threads that come to it. Two of each kind in
 * turn, since a thread may be at the next one before another has left this one. */
struct meetings {
    uint64_t barrier[2];
    uint64_t warp[MAX_BLOCK_THREADS / WARP][2];
};

struct block {
    emu_index index;
    unsigned n_threads, n_ended, n_at_barrier;
    std::unique_ptr<thread[]> threads;
    std::unique_ptr<meetings> sync;
    void *shared = nullptr;

    ~block() {
        free(shared);
    }
};

/* One grid under way. */
struct grid {
    const emu_launch *launch;
    uint64_t n_blocks, n_started;
    std::vector<std::unique_ptr<block>> blocks; /* resident; with TSan also those that have ended */
    unsigned n_resident;
    /* Both with room for all: a fiber that wakes another must not allocate, since ThreadSanitizer
     * would take that for the kernel's doing. */
    std::vector<thread *> ready, batch;
    uint64_t random;
    uint64_t
        all_ended; /* sync object: what the threads did comes before what the launch's end does */
};

thread_local grid *running_grid;
thread_local thread *self;

/* ------------------------------------------------------------------------------------------------
 * Faults of a kernel
 * ---------------------------------------------------------------------------------------------- */

const char *name_of(state s) {
    switch (s) {
    case state::ready:
        return "can go on";
    case state::at_barrier:
        return "waits at __syncthreads";
    case state::in_warp:
        return "waits in a warp operation";
    case state::ended:
        return "has ended";
    }
    return "?";
}

[[noreturn]] void fault(const block *b, const char *what) {
    fprintf(stderr, "emulation: %s: block (%u, %u, %u)\n", what, b->index.x, b->index.y,
            b->index.z);
    state last = state::ready;
    const emu_site *last_site = nullptr;
    for (unsigned i = 0; i < b->n_threads; i++) {
        const thread *t = &b->threads[i];
        bool same_site = last_site && t->site.line == last_site->line;
        if (i > 0 && t->now == last && (same_site || t->now == state::ended))
            continue;
        fprintf(stderr, "  from thread %u on: %s", i, name_of(t->now));
        if (t->now == state::at_barrier || t->now == state::in_warp)
            fprintf(stderr, ", %s:%d", t->site.file, t->site.line);
        fputc('\n', stderr);
        last = t->now;
        last_site = &t->site;
    }
    abort();
}

bool same_site(const emu_site &a, const emu_site &b) {
    return a.line == b.line && strcmp(a.file, b.file) == 0;
}

/* ------------------------------------------------------------------------------------------------
 * Meeting
 * ---------------------------------------------------------------------------------------------- */

void wake(thread *t) {
    t->now = state::ready;
    running_grid->ready.push_back(t);
}

/* Lets the block's threads go on if all have come. */
void try_barrier(block *b) {
    if (b->n_at_barrier == 0 || b->n_at_barrier + b->n_ended < b->n_threads)
        return;
    if (b->n_ended > 0)
        fault(b, "some threads have ended, the others wait at __syncthreads");
    int any = 0;
    for (unsigned i = 0; i < b->n_threads; i++) {
        if (!same_site(b->threads[i].site, b->threads[0].site))
            fault(b, "threads of a block wait at different __syncthreads");
        any |= b->threads[i].predicate;
    }
    b->n_at_barrier = 0;
    for (unsigned i = 0; i < b->n_threads; i++) {
        b->threads[i].any_predicate = any != 0;
        wake(&b->threads[i]);
    }
}

/* The lane that a shuffle reads, by the rules of the CUDA C++ guide. */
unsigned source_lane(const thread *t, unsigned lane) {
    unsigned width = (unsigned)t->width, first = lane & ~(width - 1), by = (unsigned)t->argument;
    switch (t->op) {
    case EMU_SHFL:
        return first + (by & (width - 1));
    case EMU_SHFL_UP:
        return lane >= first + by ? lane - by : lane;
    case EMU_SHFL_DOWN:
        return lane + by < first + width ? lane + by : lane;
    case EMU_SHFL_XOR:
        return (lane ^ by) < first + width ? lane ^ by : lane;
    default:
        return lane;
    }
}

/* What a reduction or a ballot of these lanes gives. */
uint64_t combine(const thread *lanes, unsigned mask, emu_warp_op op) {
    unsigned ballot = 0, max = 0, min = ~0u, sum = 0, any = 0;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1u))
            continue;
        unsigned value = (unsigned)lanes[lane].value;
        ballot |= (value != 0 ? 1u : 0u) << lane;
        max = value > max ? value : max;
        min = value < min ? value : min;
        sum += value;
        any |= value;
    }
    switch (op) {
    case EMU_BALLOT:
        return ballot;
    case EMU_REDUCE_MAX:
        return max;
    case EMU_REDUCE_MIN:
        return min;
    case EMU_REDUCE_ADD:
        return sum;
    default:
        return any;
    }
}

/* Carries the operation out if all lanes of the mask have come to it. */
void try_warp(thread *t) {
    block *b = t->home;
    unsigned first = t->number & ~(unsigned)(WARP - 1);
    thread *lanes = &b->threads[first];
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(t->mask >> lane & 1u))
            continue;
        if (first + lane >= b->n_threads)
            fault(b, "a warp operation's mask names a lane that the block does not have");
        const thread *other = &lanes[lane];
        if (other->now == state::ended)
            fault(b, "a warp operation's mask names a lane that has ended");
        if (other->now != state::in_warp || other->op != t->op || other->mask != t->mask ||
            !same_site(other->site, t->site))
            return;
    }
    bool shuffles = t->op >= EMU_SHFL && t->op <= EMU_SHFL_XOR;
    uint64_t combined = combine(lanes, t->mask, t->op);
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(t->mask >> lane & 1u))
            continue;
        unsigned source = source_lane(&lanes[lane], lane);
        if (!(t->mask >> source & 1u))
            fault(b, "a shuffle reads a lane that its mask does not name");
        lanes[lane].result = shuffles ? lanes[source].value : combined;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (t->mask >> lane & 1u)
            wake(&lanes[lane]);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Blocks
 * ---------------------------------------------------------------------------------------------- */

void thread_main(void *argument) {
    thread *t = (thread *)argument;
    running_grid->launch->thread_main();
    emu_order_release(&running_grid->all_ended);
    t->now = state::ended;
}

void start_block(grid *g) {
    const emu_launch *launch = g->launch;
    uint64_t n = g->n_started++;
    auto b = std::make_unique<block>();
    b->index = {(unsigned)(n % launch->grid.x), (unsigned)(n / launch->grid.x % launch->grid.y),
                (unsigned)(n / launch->grid.x / launch->grid.y)};
    b->n_threads = launch->block.x * launch->block.y * launch->block.z;
    b->n_ended = b->n_at_barrier = 0;
    b->threads = std::make_unique<thread[]>(b->n_threads);
    b->sync = std::make_unique<meetings>();
    if (launch->shared_bytes > 0) {
        if (posix_memalign(&b->shared, SHARED_ALIGN_BYTES, launch->shared_bytes) != 0)
            abort();
        memset(b->shared, POISON, launch->shared_bytes);
    }
    for (unsigned i = 0; i < b->n_threads; i++) {
        thread *t = &b->threads[i];
        t->home = b.get();
        t->number = i;
        t->index = {i % launch->block.x, i / launch->block.x % launch->block.y,
                    i / launch->block.x / launch->block.y};
        t->site = {"", 0};
        t->n_barriers = t->n_warp_syncs = 0;
        t->fiber.start(thread_main, t);
        wake(t);
    }
    g->blocks.push_back(std::move(b));
    g->n_resident++;
}

void end_block(grid *g, block *b) {
    g->n_resident--;
    if (emu_has_tsan())
        return; /* its memory must not become another block's while the grid runs */
    for (size_t i = 0; i < g->blocks.size(); i++) {
        if (g->blocks[i].get() == b) {
            g->blocks[i].swap(g->blocks.back());
            g->blocks.pop_back();
            return;
        }
    }
}

void run_thread(grid *g, thread *t) {
    block *b = t->home;
    self = t;
    threadIdx = t->index;
    blockIdx = b->index;
    t->fiber.resume();
    if (t->now != state::ended)
        return;
    t->fiber.end();
    b->n_ended++;
    try_barrier(b);
    if (b->n_ended == b->n_threads)
        end_block(g, b);
}

uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Every ready thread once, in order; or one of them, drawn. */
void run_ready(grid *g) {
    emu_order order = g->launch->schedule.order;
    if (order == EMU_SHUFFLED) {
        size_t drawn = next_random(&g->random) % g->ready.size();
        thread *t = g->ready[drawn];
        g->ready[drawn] = g->ready.back();
        g->ready.pop_back();
        run_thread(g, t);
        return;
    }
    g->batch.clear();
    g->batch.swap(g->ready);
    for (size_t i = 0, n = g->batch.size(); i < n; i++)
        run_thread(g, g->batch[order == EMU_FORWARD ? i : n - 1 - i]);
}

} // namespace

/* ------------------------------------------------------------------------------------------------
 * What kernels call
 * ---------------------------------------------------------------------------------------------- */

int emu_barrier(int predicate, emu_site site) {
    thread *t = self;
    t->site = site;
    t->predicate = predicate != 0;
    t->now = state::at_barrier;
    uint64_t *order = &t->home->sync->barrier[t->n_barriers++ & 1];
    emu_order_release(order);
    t->home->n_at_barrier++;
    try_barrier(t->home);
    emu_fiber::yield();
    emu_order_acquire(order);
    return t->any_predicate;
}

uint64_t emu_warp(emu_warp_op op, unsigned mask, uint64_t value, int argument, int width,
                  emu_site site) {
    thread *t = self;
    t->site = site;
    t->op = op;
    t->mask = mask;
    t->value = value;
    t->argument = argument;
    t->width = width;
    if (!(mask >> (t->number % WARP) & 1u))
        fault(t->home, "a lane calls a warp operation whose mask does not name it");
    if (width < 1 || width > WARP || (width & (width - 1)) != 0)
        fault(t->home, "a shuffle's width is not a power of two up to 32");
    t->now = state::in_warp;
    /* Of the warp operations only __syncwarp promises an order of memory. */
    uint64_t *order = nullptr;
    if (op == EMU_SYNCWARP) {
        order = &t->home->sync->warp[t->number / WARP][t->n_warp_syncs++ & 1];
        emu_order_release(order);
    }
    try_warp(t);
    emu_fiber::yield();
    if (order)
        emu_order_acquire(order);
    return t->result;
}

void *emu_dynamic_shared(void) {
    return self->home->shared;
}

void emu_run_grid(const emu_launch *launch) {
    grid g = {};
    g.launch = launch;
    g.n_blocks = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    g.random = launch->schedule.seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    if (emu_has_tsan() &&
        g.n_blocks * launch->block.x * launch->block.y * launch->block.z > TSAN_MAX_THREADS) {
        fprintf(stderr, "emulation: a grid of more than %d threads under ThreadSanitizer\n",
                TSAN_MAX_THREADS);
        abort();
    }
    size_t most = (size_t)launch->schedule.resident_blocks * launch->block.x * launch->block.y *
                  launch->block.z;
    g.ready.reserve(most);
    g.batch.reserve(most);
    running_grid = &g;
    gridDim = launch->grid;
    blockDim = launch->block;
    while (g.n_started < g.n_blocks || g.n_resident > 0) {
        while (g.n_started < g.n_blocks && g.n_resident < launch->schedule.resident_blocks)
            start_block(&g);
        if (g.ready.empty()) {
            for (const auto &b : g.blocks) {
                if (b->n_ended < b->n_threads)
                    fault(b.get(), "no thread can go on");
            }
        }
        run_ready(&g);
    }
    emu_order_acquire(&g.all_ended);
    running_grid = nullptr;
}

/* ------------------------------------------------------------------------------------------------
 * Schedules
 * ---------------------------------------------------------------------------------------------- */

static std::mutex schedule_mutex;
static emu_schedule schedule_set = {EMU_FORWARD, 1, 1};

emu_schedule emu_schedule_number(unsigned number) {
    emu_schedule schedule = {};
    schedule.order = (emu_order)(number % EMU_N_ORDERS);
    schedule.seed = number + 1;
    schedule.resident_blocks = number % EMU_N_ORDERS == EMU_SHUFFLED ? 3 : 1;
    return schedule;
}

void emu_set_schedule(emu_schedule schedule) {
    std::lock_guard<std::mutex> lock(schedule_mutex);
    schedule_set = schedule;
}

emu_schedule emu_schedule_now() {
    std::lock_guard<std::mutex> lock(schedule_mutex);
    return schedule_set;
}
