/*
 * bench.h - measuring: one line an observation, each beside what it is compared with, which was
 * measured in the same run, in turns with it.
 *
 *   name, value, unit, base (name and value), ratio = value / base, target, ok
 *
 * A time is the median of many short rounds that alternate between the two; noise is half the
 * distance between the quartiles of the rounds' ratios, in percent of the median ratio.
 */
#ifndef KVT_TESTS_BENCH_H
#define KVT_TESTS_BENCH_H

#include "client/assert.h"

#include <stddef.h>
#include <stdint.h>

typedef struct bench_row {
    const char *name;
    double value;
    const char *unit;
    const char *base;  /* NULL: an absolute figure */
    double base_value; /* in the same unit */
    double target;     /* of the ratio (of the value without a base); 0: none */
    int at_least;      /* 1: the target is a lower bound, 0: an upper one */
    double noise;      /* percent */
} bench_row;
void bench_report(const bench_row *row);

/* Seconds, of a clock that only goes on. */
double bench_now(void);

/* Rounds of a and b in turns; each returns nothing and is timed whole. Medians in seconds. */
typedef struct bench_pair {
    double a, b;  /* medians */
    double ratio; /* median of the rounds' a / b */
    double noise; /* percent */
} bench_pair;
typedef void (*bench_work)(void *context);
bench_pair bench_turns(bench_work a, bench_work b, void *context, int rounds);
/* The same, with `before` done in front of each of the two, untimed. */
bench_pair bench_turns_after(bench_work before, bench_work a, bench_work b, void *context,
                             int rounds);
/* The same for work of this thread alone, which waits for nothing: seconds that it ran, so that
 * those in which the core worked for others do not count. */
bench_pair bench_turns_alone(bench_work a, bench_work b, void *context, int rounds);

/* Percentile (0 .. 100) of values, which are sorted for it. */
double bench_percentile(double *values, size_t n, double percent);

/* Work of bench_codec on `bytes` of 16-bit numbers: rows of llama.cpp's codecs, where they are at
 * hand (codec_ggml.c). */
void bench_codec_ggml(uint8_t *kv, uint8_t *coded, uint8_t *copy, size_t bytes, int repeats,
                      int rounds, const char *size);

/* The parts. Each reports its rows. A part that is not linked in is left out. */
void bench_match(void);
void bench_evict(void);
void bench_memory(void);
void bench_pages(void);
void bench_acquire(void);
void bench_sessions(void);
void bench_flight(void);
__attribute__((weak)) void bench_tiers(void);
void bench_tiers_above(void); /* a part of it */
__attribute__((weak)) void bench_codec(void);
__attribute__((weak)) void bench_fidelity(void);

/* Parts that are processes of their own: returns the exit code, or -1 if argv names none. */
int bench_child(int argc, char **argv);

#endif
