/* scores.h - one next-token distribution against another. */
#ifndef KVT_TESTS_LLAMA_SCORES_H
#define KVT_TESTS_LLAMA_SCORES_H

#include <stddef.h>

/* log(sum(exp(logits))) */
double score_log_sum(const float *logits, size_t n);

/* Kullback-Leibler divergence of softmax(b) from softmax(a), in nats; log_sum_a and _b are theirs.
 */
double score_divergence(const float *a, double log_sum_a, const float *b, double log_sum_b,
                        size_t n);

size_t score_best(const float *logits, size_t n);

#endif
