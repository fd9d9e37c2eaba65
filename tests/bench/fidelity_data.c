/*
 * fidelity_data.c - the synthetic layer. Deterministic: the same random numbers in the same order,
 * and the same roundings to binary32 and binary16, give the same layer on every machine whose libm
 * agrees.
 */
#include "tests/bench/fidelity.h"

#include "kernels/unit.h"

#include <math.h>

enum { RANK = 24 }; /* of the slow part that neighbouring tokens share */

typedef struct channels {
    double mean[FID_DIM], spread[FID_DIM]; /* of K */
    double v_scale[FID_DIM];
    double mix_k[FID_DIM][RANK], mix_v[FID_DIM][RANK];
} channels;

/* --- random numbers ------------------------------------------------------------------------------
 */

/* xorshift64 in (0, 1). */
static double uniform(fid_source *s) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return ((double)(s->random >> 11) + 0.5) * 0x1p-53;
}

static double normal(fid_source *s) {
    double radius = sqrt(-2 * log(uniform(s)));
    return radius * cos(6.283185307179586 * uniform(s));
}

/* Student's t with 5 degrees of freedom, scaled to variance 1. */
static double student_t5(fid_source *s) {
    double z = normal(s), chi2 = 0;
    for (int i = 0; i < 5; i++) {
        double g = normal(s);
        chi2 += g * g;
    }
    return z / sqrt(chi2 / 5) / sqrt(5.0 / 3.0);
}

static uint16_t half_of(double x) {
    return kvt_half_of_float((float)x);
}

/* --- keys, values, queries -----------------------------------------------------------------------
 */

/* RoPE with base 500,000, halves of the row as pairs. */
static void rotate(float *x, int position) {
    for (int i = 0; i < FID_DIM / 2; i++) {
        double angle = position * pow(500000.0, -i / 64.0);
        double a = (double)x[i], b = (double)x[i + FID_DIM / 2];
        x[i] = (float)(a * cos(angle) - b * sin(angle));
        x[i + FID_DIM / 2] = (float)(a * sin(angle) + b * cos(angle));
    }
}

static void make_channels(fid_source *s, channels *ch) {
    for (int c = 0; c < FID_DIM; c++) {
        ch->mean[c] = .6 * normal(s);
        ch->spread[c] = exp(.35 * normal(s));
        ch->v_scale[c] = .25 * exp(.4 * normal(s));
    }
    for (int i = 0; i < (s->extreme ? 4 : 6); i++) {
        /* mostly in the slow pairs of RoPE, where they are seen in real keys */
        int pair = uniform(s) < .8 ? 40 + (int)(uniform(s) * 24) : (int)(uniform(s) * 64);
        int c = pair + (uniform(s) < .5 ? FID_DIM / 2 : 0);
        double size = s->extreme ? 30 + 60 * uniform(s) : 5 + 9 * uniform(s);
        ch->mean[c] = (uniform(s) < .5 ? -1 : 1) * size;
        ch->spread[c] *= s->extreme ? 3 : 2;
    }
    for (int c = 0; c < FID_DIM; c++) {
        for (int j = 0; j < RANK; j++) {
            ch->mix_k[c][j] = normal(s) / sqrt(RANK);
            ch->mix_v[c][j] = normal(s) / sqrt(RANK);
        }
    }
}

/* Keys and values of one head; also each key less its channel's mean and before RoPE. */
static void make_tokens(fid_source *s, const channels *ch, uint16_t (*k)[FID_DIM],
                        uint16_t (*v)[FID_DIM], float (*centred)[FID_DIM]) {
    double state_k[RANK], state_v[RANK];
    for (int j = 0; j < RANK; j++) {
        state_k[j] = normal(s);
        state_v[j] = normal(s);
    }
    for (int t = 0; t < FID_TOKENS; t++) {
        float key[FID_DIM];
        for (int j = 0; j < RANK; j++) {
            state_k[j] = .8 * state_k[j] + .6 * normal(s);
            state_v[j] = .8 * state_v[j] + .6 * normal(s);
        }
        double token_scale = exp(.2 * normal(s));
        for (int c = 0; c < FID_DIM; c++) {
            double slow_k = 0, slow_v = 0;
            for (int j = 0; j < RANK; j++) {
                slow_k += ch->mix_k[c][j] * state_k[j];
                slow_v += ch->mix_v[c][j] * state_v[j];
            }
            centred[t][c] = (float)(ch->spread[c] * (.8 * slow_k + .6 * normal(s)));
            key[c] = (float)(ch->mean[c] + (double)centred[t][c]);
            v[t][c] = half_of(ch->v_scale[c] * token_scale * (.6 * slow_v + .8 * student_t5(s)) *
                              (t == 0 ? .05 : 1));
        }
        /* Token 0 is a sink: a key of its own, hardly a value. */
        for (int c = 0; c < FID_DIM && t == 0; c++)
            key[c] = (float)(ch->mean[c] * .3);
        rotate(key, t);
        for (int c = 0; c < FID_DIM; c++)
            k[t][c] = half_of((double)key[c]);
    }
}

/* Scales a query so that its logits over sqrt(FID_DIM) have a standard deviation of 1.5 to 3. */
static void scale_query(fid_source *s, const float *query, uint16_t (*k)[FID_DIM], float *ret_q) {
    static double logits[FID_TOKENS];
    double average = 0, variance = 0;
    for (int t = 0; t < FID_TOKENS; t++) {
        logits[t] = 0;
        for (int c = 0; c < FID_DIM; c++)
            logits[t] += (double)(query[c] * kvt_float_of_half(k[t][c]));
        average += logits[t];
    }
    average /= FID_TOKENS;
    for (int t = 0; t < FID_TOKENS; t++)
        variance += (logits[t] - average) * (logits[t] - average);
    double deviation = sqrt(variance / FID_TOKENS);
    double wanted = (1.5 + 1.5 * uniform(s)) * sqrt(FID_DIM);
    for (int c = 0; c < FID_DIM; c++)
        ret_q[c] = kvt_float_of_half(half_of((double)query[c] * wanted / deviation));
}

/* Each looks for one token, and pulls somewhat at the outliers' channels. */
static void make_queries(fid_source *s, const channels *ch, float (*centred)[FID_DIM],
                         uint16_t (*k)[FID_DIM], float (*ret_q)[FID_DIM]) {
    for (int i = 0; i < FID_QUERIES; i++) {
        float query[FID_DIM];
        int target = (int)(uniform(s) * FID_TOKENS);
        for (int c = 0; c < FID_DIM; c++) {
            double mean = ch->mean[c], spread = ch->spread[c];
            query[c] =
                (float)(.5 * normal(s) + .8 * (double)centred[target][c] / (spread * spread) +
                        (fabs(mean) > 4 ? .15 * mean / fabs(mean) : 0));
        }
        rotate(query, FID_TOKENS);
        scale_query(s, query, k, ret_q[i]);
    }
}

void fid_source_init(fid_source *source, int extreme) {
    *source = (fid_source){.random = UINT64_C(88172645463325252), .extreme = extreme};
}

void fid_make(fid_source *source, fid_data *ret_data) {
    static channels ch;
    static float centred[FID_TOKENS][FID_DIM];
    for (int h = 0; h < FID_HEADS; h++) {
        make_channels(source, &ch);
        make_tokens(source, &ch, ret_data->k[h], ret_data->v[h], centred);
        make_queries(source, &ch, centred, ret_data->k[h], ret_data->q[h]);
    }
}
