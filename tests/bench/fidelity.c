/*
 * fidelity.c - what codecs do to the output of attention: ours, through real pages, beside those of
 * others at about the same bits. See fidelity.h for the figure and the data.
 */
#include "tests/bench/bench.h"
#include "tests/bench/fidelity.h"

#include "kernels/page.h"
#include "kernels/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SETS = 2, PAGE = 64, MAX_CODECS = 16 };

static const char *const our_sets[] = {"f16", "i8", "fp8", "k8v4", "i4", "w4v", "i2"};
enum { N_OURS = sizeof our_sets / sizeof *our_sets };

/* Of one codec, on both data sets. */
typedef struct score {
    const char *name;
    double bits;
    double error[N_SETS];
} score;

typedef double outputs[FID_QUERIES][FID_DIM];

typedef struct bench {
    score scores[MAX_CODECS];
    int n_scores;
    fid_data data, decoded; /* decoded: K and V alone */
    fid_head k, v;
    outputs exact[FID_HEADS]; /* of the data as it is */
} bench;

/* --- attention -----------------------------------------------------------------------------------
 */

/* weights[t][i]: logits of query i. Queries go innermost: so sums of different queries, and not
 * parts of one, are what a compiler computes side by side. */
static void make_logits(fid_head k, const float (*q)[FID_DIM], double (*weights)[FID_QUERIES]) {
    static double columns[FID_DIM][FID_QUERIES];
    for (int i = 0; i < FID_QUERIES; i++)
        for (int d = 0; d < FID_DIM; d++)
            columns[d][i] = (double)q[i][d] / sqrt(FID_DIM);
    for (int t = 0; t < FID_TOKENS; t++) {
        double sum[FID_QUERIES] = {0};
        for (int d = 0; d < FID_DIM; d++) {
            double element = (double)k[t][d];
            for (int i = 0; i < FID_QUERIES; i++)
                sum[i] += element * columns[d][i];
        }
        memcpy(weights[t], sum, sizeof sum);
    }
}

static void softmax(double (*weights)[FID_QUERIES]) {
    for (int i = 0; i < FID_QUERIES; i++) {
        double most = weights[0][i], sum = 0;
        for (int t = 0; t < FID_TOKENS; t++)
            most = fmax(most, weights[t][i]);
        for (int t = 0; t < FID_TOKENS; t++)
            sum += weights[t][i] = exp(weights[t][i] - most);
        for (int t = 0; t < FID_TOKENS; t++)
            weights[t][i] /= sum;
    }
}

static void attend(fid_head k, fid_head v, const float (*q)[FID_DIM], outputs ret_o) {
    static double weights[FID_TOKENS][FID_QUERIES];
    make_logits(k, q, weights);
    softmax(weights);
    memset(ret_o, 0, sizeof(outputs));
    for (int t = 0; t < FID_TOKENS; t++)
        for (int i = 0; i < FID_QUERIES; i++)
            for (int d = 0; d < FID_DIM; d++)
                ret_o[i][d] += weights[t][i] * (double)v[t][d];
}

/* Sum over the queries of one head of ||o' - o|| / ||o||. */
static double sum_errors(outputs o, outputs exact) {
    double sum = 0;
    for (int i = 0; i < FID_QUERIES; i++) {
        double difference = 0, norm = 0;
        for (int d = 0; d < FID_DIM; d++) {
            difference += (o[i][d] - exact[i][d]) * (o[i][d] - exact[i][d]);
            norm += exact[i][d] * exact[i][d];
        }
        sum += sqrt(difference / norm);
    }
    return sum;
}

/* --- codecs --------------------------------------------------------------------------------------
 */

static void widen(uint16_t (*from)[FID_DIM], fid_head ret_x) {
    for (int t = 0; t < FID_TOKENS; t++)
        for (int d = 0; d < FID_DIM; d++)
            ret_x[t][d] = kvt_float_of_half(from[t][d]);
}

/* One layer of a model with a head for each of the data's. */
static kvt_geometry geometry_of_data(void) {
    kvt_geometry geometry;
    kvt_geometry_init(&geometry, 1, FID_HEADS, FID_DIM, PAGE);
    return geometry;
}

/* Encodes and decodes all pages of the layer; returns the bits an element, headers included. */
static double through_pages(const char *set, fid_data *data, fid_data *ret_decoded) {
    kvt_geometry geometry = geometry_of_data();
    kvt_page_shape shape;
    kvt_layout from, to;
    KVT_ASSERT(kvt_page_shape_init(&geometry, 0, set, NULL, 0, &shape) == KVT_OK);
    size_t bytes = kvt_page_bytes(&shape, PAGE), n;
    void *page = aligned_alloc(KVT_PAGE_ALIGN_BYTES, bytes);
    KVT_ASSERT(page);
    for (int first = 0; first < FID_TOKENS; first += PAGE) {
        kvt_layout_head_major(&geometry, FID_TOKENS, data->k[0][first], data->v[0][first], &from);
        kvt_layout_head_major(&geometry, FID_TOKENS, ret_decoded->k[0][first],
                              ret_decoded->v[0][first], &to);
        KVT_ASSERT(kvt_page_encode(&shape, PAGE, &from, page, bytes, &n) == KVT_OK && n == bytes);
        KVT_ASSERT(kvt_page_decode(&shape, page, n, 0, PAGE, 0, 1, &to) == KVT_OK);
    }
    free(page);
    return 8.0 * (double)bytes / (2.0 * FID_HEADS * PAGE * FID_DIM);
}

static double error_of_ours(bench *b, const char *set, double *ret_bits) {
    static outputs o;
    double sum = 0;
    *ret_bits = through_pages(set, &b->data, &b->decoded);
    for (int h = 0; h < FID_HEADS; h++) {
        widen(b->decoded.k[h], b->k);
        widen(b->decoded.v[h], b->v);
        attend(b->k, b->v, b->data.q[h], o);
        sum += sum_errors(o, b->exact[h]);
    }
    return sum / (FID_HEADS * FID_QUERIES);
}

static double error_of_other(bench *b, const fid_other *other) {
    static outputs o;
    double sum = 0;
    for (int h = 0; h < FID_HEADS; h++) {
        widen(b->data.k[h], b->k);
        widen(b->data.v[h], b->v);
        other->k(b->k);
        other->v(b->v);
        attend(b->k, b->v, b->data.q[h], o);
        sum += sum_errors(o, b->exact[h]);
    }
    return sum / (FID_HEADS * FID_QUERIES);
}

/* --- the table -----------------------------------------------------------------------------------
 */

static void measure(bench *b, int set) {
    fid_source source;
    fid_source_init(&source, set);
    fid_make(&source, &b->data);
    for (int h = 0; h < FID_HEADS; h++) {
        widen(b->data.k[h], b->k);
        widen(b->data.v[h], b->v);
        attend(b->k, b->v, b->data.q[h], b->exact[h]);
    }
    b->n_scores = 0;
    for (int i = 0; i < N_OURS; i++) {
        score *s = &b->scores[b->n_scores++];
        s->name = our_sets[i];
        s->error[set] = error_of_ours(b, our_sets[i], &s->bits);
    }
    for (const fid_other *other = fid_others; other->name; other++) {
        KVT_ASSERT(b->n_scores < MAX_CODECS);
        score *s = &b->scores[b->n_scores++];
        s->name = other->name;
        s->bits = other->bits;
        s->error[set] = error_of_other(b, other);
    }
}

static const score *find(const bench *b, const char *name) {
    for (int i = 0; i < b->n_scores; i++)
        if (strcmp(b->scores[i].name, name) == 0)
            return &b->scores[i];
    fprintf(stderr, "fidelity: no codec is named %s\n", name);
    abort();
}

static void report(const char *what, double value, const char *unit) {
    bench_report(&(bench_row){.name = what, .value = value, .unit = unit});
}

/* Ours has at most `target` times the error of the other, on both data sets. */
static void compare(const bench *b, const char *ours, const char *other, double target) {
    const score *x = find(b, ours), *y = find(b, other);
    for (int set = 0; set < N_SETS; set++) {
        char name[64];
        snprintf(name, sizeof name, "%s, data set %c", x->name, 'A' + set);
        bench_report(&(bench_row){.name = name,
                                  .value = x->error[set],
                                  .unit = "error",
                                  .base = y->name,
                                  .base_value = y->error[set],
                                  .target = target});
    }
}

static void compare_bits(const bench *b, const char *ours, const char *other) {
    const score *x = find(b, ours), *y = find(b, other);
    char name[64];
    snprintf(name, sizeof name, "%s, size", x->name);
    bench_report(&(bench_row){.name = name,
                              .value = x->bits,
                              .unit = "bits",
                              .base = y->name,
                              .base_value = y->bits,
                              .target = 1});
}

void bench_fidelity(void) {
    bench *b = calloc(1, sizeof *b);
    KVT_ASSERT(b);
    for (int set = 0; set < N_SETS; set++)
        measure(b, set);
    for (int i = 0; i < b->n_scores; i++) {
        const score *s = &b->scores[i];
        char name[64];
        snprintf(name, sizeof name, "%s, bits an element", s->name);
        report(name, s->bits, "bits");
        for (int set = 0; set < N_SETS; set++) {
            snprintf(name, sizeof name, "%s, data set %c", s->name, 'A' + set);
            report(name, s->error[set], "error");
        }
    }
    compare(b, "i8", "q8_0", .5);
    compare_bits(b, "i8", "q8_0");
    compare(b, "k8v4", "fp8, scale 1/int4 per token", .6);
    compare(b, "k8v4", "fp8 per token/int4 per token", .6);
    compare(b, "i4", "NVFP4", .55);
    compare(b, "i4", "KIVI-4, groups of 64", 1);
    compare_bits(b, "i4", "KIVI-4, groups of 64");
    free(b);
}
