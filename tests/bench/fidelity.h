/*
 * fidelity.h - between the files of the fidelity bench: the synthetic layer, the codecs that ours
 * are compared with, and the figure.
 *
 * The figure of merit: the relative error of the attention output, ||o' - o|| / ||o||, averaged
 * over heads and queries, with o = softmax(q K^T / sqrt(head_dim)) V in binary64 over all tokens.
 * It ranks codecs; it is not perplexity.
 */
#ifndef KVT_TESTS_BENCH_FIDELITY_H
#define KVT_TESTS_BENCH_FIDELITY_H

#include <stdint.h>

enum { FID_HEADS = 12, FID_TOKENS = 2048, FID_DIM = 128, FID_QUERIES = 48 };

/* One layer; every element is a binary16. */
typedef struct fid_data {
    uint16_t k[FID_HEADS][FID_TOKENS][FID_DIM];
    uint16_t v[FID_HEADS][FID_TOKENS][FID_DIM];
    float q[FID_HEADS][FID_QUERIES][FID_DIM];
} fid_data;

/* Elements of one head, as numbers. */
typedef float fid_head[FID_TOKENS][FID_DIM];

/*
 * Keys with a few channels of a large constant part before RoPE, as KIVI and others report of real
 * models, and heavy-tailed values. Two data sets: outliers of 5 to 14 in six channels, and, with
 * extreme, of 30 to 90 in four.
 */
typedef struct fid_source {
    uint64_t random;
    int extreme;
} fid_source;
void fid_source_init(fid_source *source, int extreme);
void fid_make(fid_source *source, fid_data *ret_data);

/* A codec of others: decodes what it encoded, in place. Bits count scales. */
typedef struct fid_other {
    const char *name;
    double bits;
    void (*k)(fid_head x);
    void (*v)(fid_head x);
} fid_other;
extern const fid_other fid_others[]; /* ends with a row without a name */

#endif
