/*
 * main.c - ./run bench [PART] [--json]. Without a part all of them run. Status 1: a target was
 * missed. Timings mean something only on a machine that does nothing else meanwhile.
 */
#include "daemon/disk_helper.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int json, missed;

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_now(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_percentile(double *values, size_t n, double percent) {
    qsort(values, n, sizeof *values, compare);
    size_t at = (size_t)((double)(n - 1) * percent / 100.0 + 0.5);
    return values[at];
}

static double seconds_for(bench_work before, bench_work work, void *context, clockid_t clock) {
    if (before)
        before(context);
    double start = seconds_of(clock);
    work(context);
    return seconds_of(clock) - start;
}

static bench_pair take_turns(bench_work before, bench_work a, bench_work b, void *context,
                             int rounds, clockid_t clock) {
    double *times = calloc((size_t)rounds * 3, sizeof *times);
    KVT_ASSERT(times);
    double *ratios = times + 2 * rounds;
    seconds_for(before, a, context, clock); /* warm */
    seconds_for(before, b, context, clock);
    for (int i = 0; i < rounds; i++) {
        times[i] = seconds_for(before, a, context, clock);
        times[rounds + i] = seconds_for(before, b, context, clock);
        ratios[i] = times[i] / times[rounds + i];
    }
    size_t n = (size_t)rounds;
    bench_pair pair = {.a = bench_percentile(times, n, 50),
                       .b = bench_percentile(times + rounds, n, 50),
                       .ratio = bench_percentile(ratios, n, 50)};
    pair.noise = 50.0 * (ratios[n * 3 / 4] - ratios[n / 4]) / pair.ratio;
    free(times);
    return pair;
}

bench_pair bench_turns(bench_work a, bench_work b, void *context, int rounds) {
    return take_turns(NULL, a, b, context, rounds, CLOCK_MONOTONIC);
}

bench_pair bench_turns_after(bench_work before, bench_work a, bench_work b, void *context,
                             int rounds) {
    return take_turns(before, a, b, context, rounds, CLOCK_MONOTONIC);
}

bench_pair bench_turns_alone(bench_work a, bench_work b, void *context, int rounds) {
    return take_turns(NULL, a, b, context, rounds, CLOCK_THREAD_CPUTIME_ID);
}

void bench_report(const bench_row *row) {
    double ratio = row->base ? row->value / row->base_value : row->value;
    int ok = row->target == 0 || (row->at_least ? ratio >= row->target : ratio <= row->target);
    missed += !ok;
    if (json) {
        printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",", row->name, row->value,
               row->unit);
        if (row->base)
            printf("\"base\":\"%s\",\"base_value\":%.6g,\"ratio\":%.4g,", row->base,
                   row->base_value, ratio);
        else
            printf("\"base\":null,\"base_value\":null,\"ratio\":null,");
        if (row->target != 0)
            printf("\"target\":\"%s %.4g\",", row->at_least ? ">=" : "<=", row->target);
        else
            printf("\"target\":null,");
        printf("\"noise_percent\":%.1f,\"ok\":%s}\n", row->noise, ok ? "true" : "false");
    } else {
        printf("%-46s %10.4g %-8s", row->name, row->value, row->unit);
        if (row->base)
            printf(" %7.3g x %s", ratio, row->base);
        if (row->target != 0)
            printf("  (%s %.3g: %s)", row->at_least ? "at least" : "at most", row->target,
                   ok ? "ok" : "MISSED");
        if (row->noise > 0)
            printf("  +-%.0f %%", row->noise);
        printf("\n");
    }
    fflush(stdout);
}

static const struct {
    const char *name;
    void (*run)(void);
    const char *text;
} parts[] = {
    {"match", bench_match, "finding a held prefix, against memcmp"},
    {"evict", bench_evict, "making room, in trees of different sizes"},
    {"memory", bench_memory, "bytes of index a page, waste of frames"},
    {"pages", bench_pages, "decode and seal of raw pages, against memcpy"},
    {"acquire", bench_acquire, "acquire through the daemon, against an echo"},
    {"sessions", bench_sessions, "64 sessions against one"},
    {"flight", bench_flight, "waiting for what another computes, against an echo"},
    {"tiers", bench_tiers, "the disk tier, against pwrite and memcpy; a restart"},
    {"codec", bench_codec, "encode and decode of each codec, against memcpy"},
    {"fidelity", bench_fidelity, "error of the attention output, ours and others' codecs"},
};

int main(int argc, char **argv) {
    const char *part = NULL;
    disk_helper_main(argc, argv);
    int child = bench_child(argc, argv), found = 0;
    if (child >= 0)
        return child;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = 1;
        else
            part = argv[i];
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if ((part && strcmp(part, parts[i].name) != 0) || !parts[i].run)
            continue;
        found = 1;
        if (!json)
            printf("--- %s: %s\n", parts[i].name, parts[i].text);
        parts[i].run();
    }
    if (!found) {
        fprintf(stderr, "bench: no part \"%s\"; there are:\n", part);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            fprintf(stderr, "  %-10s %s\n", parts[i].name, parts[i].text);
        return 2;
    }
    return missed > 0;
}
