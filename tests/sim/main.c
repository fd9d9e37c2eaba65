/*
 * main.c - the simulator's command line:
 *
 *   sim [--seed S] [--count N] [--steps N] [--trace]
 *
 * runs the seeds S, S + 1 ... S + N - 1, each of so many steps a tenant, and of those with several
 * tenants one tenant once more, alone. A failing seed says so and how to run it again.
 */
#include "tests/check.h"
#include "tests/sim/world.h"

typedef struct sim_total {
    uint64_t n_steps, n_seeds, n_several;
    sim_counts n;
} sim_total;

static void add(sim_total *total, const sim_daemon *d) {
    total->n_steps += d->n_steps;
    for (uint32_t i = 0; i < d->n_tenants; i++) {
#define X(name) total->n.name += d->worlds[i]->n.name;
        SIM_COUNTS(X)
#undef X
    }
}

static void run_seed(sim_daemon *d, sim_daemon *again, uint64_t seed, uint32_t n_steps,
                     sim_total *total) {
    uint32_t n_tenants = sim_tenants(seed);
    sim_run(d, seed, n_steps, SIM_ALL, NULL);
    add(total, d);
    total->n_seeds++;
    if (n_tenants == 1)
        return;
    total->n_several++;
    sim_run(again, seed, n_steps, (uint32_t)(seed / 10 % n_tenants), d);
    add(total, again);
}

/* So many seeds have always met it. */
static uint64_t seeds_for(const char *name) {
    static const char *const often[] = {
        "reads",    "hits",         "seals",       "kills",   "cuts",     "waits",
        "pins",     "flushes",      "flushed",     "expired", "together", "views",
        "restarts", "flushed_held", "events_told", "alone",   "strangers"};
    for (size_t i = 0; i < sizeof often / sizeof *often; i++)
        if (strcmp(name, often[i]) == 0)
            return 20;
    return strcmp(name, "moved") == 0 ? 1000 : 200;
}

/* A simulation in which something never happens does not find what is wrong with that. */
static int check_total(const sim_total *total) {
    int n_missing = 0;
#define X(name)                                                                                    \
    if (!total->n.name && total->n_seeds >= seeds_for(#name)) {                                    \
        fprintf(stderr, "%llu seeds, and never: %s\n", (unsigned long long)total->n_seeds, #name); \
        n_missing++;                                                                               \
    }
    SIM_COUNTS(X)
#undef X
    return n_missing;
}

int main(int argc, char **argv) {
    uint64_t seed = 1, count = 100;
    uint32_t n_steps = 2000;
    sim_total total = {0};
    sim_daemon *d = calloc(1, sizeof *d), *again = calloc(1, sizeof *again);
    CHECK(d && again);
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--count") == 0)
            count = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--steps") == 0)
            n_steps = (uint32_t)strtoul(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--trace") == 0)
            d->trace = again->trace = 1;
        else {
            fprintf(stderr, "usage: sim [--seed S] [--count N] [--steps N] [--trace]\n");
            return 2;
        }
    }
    for (uint32_t i = 0; i < SIM_MAX_TENANTS; i++)
        CHECK((d->worlds[i] = malloc(sizeof **d->worlds)) != NULL);
    CHECK((again->worlds[0] = malloc(sizeof **d->worlds)) != NULL);
    for (uint64_t i = 0; i < count; i++)
        run_seed(d, again, seed + i, n_steps, &total);
    printf("%llu seeds from %llu, %llu with several tenants: %llu events, nothing wrong\n",
           (unsigned long long)count, (unsigned long long)seed, (unsigned long long)total.n_several,
           (unsigned long long)total.n_steps);
#define X(name) printf(" %s %llu", #name, (unsigned long long)total.n.name);
    SIM_COUNTS(X)
#undef X
    putchar('\n');
    int n_missing = check_total(&total);
    for (uint32_t i = 0; i < SIM_MAX_TENANTS; i++)
        free(d->worlds[i]);
    free(again->worlds[0]);
    free(d);
    free(again);
    return n_missing > 0;
}
