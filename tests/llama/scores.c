/* scores.c - compiled for vectors and without a care for NaN: there are 260,000 exponentials a
 * token. Terms are summed in binary32 over runs of 1,024, the runs in binary64. */
#include "tests/llama/scores.h"

#include <math.h>

enum { RUN = 1024 };

double score_log_sum(const float *logits, size_t n) {
    float high = logits[0];
    double sum = 0;
    for (size_t i = 1; i < n; i++)
        high = logits[i] > high ? logits[i] : high;
    for (size_t at = 0; at < n; at += RUN) {
        size_t end = at + RUN < n ? at + RUN : n;
        float run = 0;
        for (size_t i = at; i < end; i++)
            run += expf(logits[i] - high);
        sum += (double)run;
    }
    return (double)high + log(sum);
}

double score_divergence(const float *a, double log_sum_a, const float *b, double log_sum_b,
                        size_t n) {
    float shift_a = (float)log_sum_a, shift_b = (float)log_sum_b;
    /* What rounding the two to binary32 leaves over: the same for every term. */
    double left = (log_sum_b - (double)shift_b) - (log_sum_a - (double)shift_a), sum = 0;
    for (size_t at = 0; at < n; at += RUN) {
        size_t end = at + RUN < n ? at + RUN : n;
        float run = 0;
        for (size_t i = at; i < end; i++) {
            float log_a = a[i] - shift_a;
            run += expf(log_a) * (log_a - (b[i] - shift_b));
        }
        sum += (double)run;
    }
    return sum + left;
}

size_t score_best(const float *logits, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}
