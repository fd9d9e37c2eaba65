/* policy_parts.h - between policy.c and policy_learn.c. */
#ifndef KVT_DAEMON_POLICY_PARTS_H
#define KVT_DAEMON_POLICY_PARTS_H

#include "client/assert.h"
#include "daemon/policy.h"

enum {
    SAMPLE_SLOTS = 1 << 14,
    SAMPLE_WINDOW = 8, /* slots in which a prefix may stand */
    AGES = 128,        /* buckets, four an octave: up to 2^32 */
};

/* Of a page in the tree. */
typedef struct policy_mark {
    uint32_t hash;  /* of the prefix */
    uint8_t count;  /* requests, as far as known */
    uint8_t size;   /* quarters of an octave of bytes */
    uint8_t is_new; /* put in, and not used yet */
    uint8_t unused;
} policy_mark;

/* A prefix of the sample, in the tree or not. */
typedef struct policy_prefix {
    uint32_t hash;
    uint32_t at;  /* when it was asked for last: `now`, cut to 32 bits */
    uint8_t kind; /* at that time */
    uint8_t used; /* the slot is */
    uint8_t unused[2];
} policy_prefix;

struct policy {
    policy_rule rule;
    uint32_t max_pages;
    uint64_t now;      /* pages put in */
    uint64_t requests; /* that began */
    uint32_t live;     /* pages in the tree */
    int has_evicted;
    double life; /* of a page of worth 1, in pages put in */
    double worth[POLICY_KINDS];
    int32_t mean_size; /* 256ths of a mark's size */

    /* Does it pay? Sampled prefixes that were found and would not have been under LRU, and the
     * other way round. Both fade. */
    double gained, given_up;
    double lru_life; /* what LRU would keep was used less than so many pages ago */
    double trust;    /* 0 .. 1: how far worths differ from 1 */

    uint32_t shift; /* the lowest bits of a hash that must be 0 for the sample */
    uint32_t n_samples;
    uint64_t learned_at;
    /* By kind and age: asked for again at that age; lost sight of at that age. Both fade. */
    double again[POLICY_KINDS][AGES];
    double lost[POLICY_KINDS][AGES];
    policy_prefix sample[SAMPLE_SLOTS];

    policy_mark *marks; /* [max_pages + 1] */
    uint8_t *memory;    /* [memory_mask + 1] */
    uint32_t memory_mask;
};

static inline uint32_t policy_kind_of(uint32_t count, int is_last) {
    uint32_t step = count <= 3 ? count - 1 : count < 8 ? 3 : count < 32 ? 4 : 5;
    return 2 * step + (is_last != 0);
}

/* --- policy_learn.c --- */
/* Asks the processor for the slots of this prefix. */
void policy_sample_fetch(const policy *p, uint32_t hash);
/* A prefix whose hash is in the sample was used as one of this kind. again: not asked for anew. */
void policy_sample(policy *p, uint32_t hash, uint32_t kind, int again, int found);
int policy_must_learn(const policy *p);
/* Works out the worths anew. Cost: O(SAMPLE_SLOTS). */
void policy_learn(policy *p);

#endif
