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

/* What a rule would keep of the sample if it alone had been followed since the first eviction. */
typedef struct policy_shadow {
    uint32_t n;
    uint32_t keys[SAMPLE_SLOTS]; /* of each slot's prefix: the least goes first, cut to 32 bits */
    uint16_t members[SAMPLE_SLOTS]; /* slots, a heap: heap.h */
    uint16_t places[SAMPLE_SLOTS];
} policy_shadow;

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

    /* Does it pay? What LRU and what the worths would keep, whatever is kept. */
    policy_shadow lru, worths;
    int has_shadows;            /* nothing differs before the first eviction: they begin then */
    uint32_t n_uses;            /* of the sample: LRU's keys, cut to 32 bits */
    double worths_life;         /* `life` in the shadow of the worths */
    uint64_t shadowed;          /* request of the last use that they heard of */
    uint32_t shadow_room;       /* pages of the sample in the tree then */
    uint32_t live_by_zeros[33]; /* pages in the tree by the zeros at the end of their hash */
    /* Sampled prefixes that came again, not kept by LRU and kept otherwise, or the other way round:
     * by the worths; in fact. All fade. */
    double gained, given_up;
    double did_gain, did_give_up;
    double trust; /* 0 .. 1: how far worths differ from 1 */

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

/* --- policy.c --- */
/* The life of a page of worth 1 after one of n went at this age; room: the pages that there are. */
double policy_life(double life, double age, double room, double n);

/* --- policy_shadow.c: O(log n), and _has O(1) --- */
int policy_shadow_has(const policy_shadow *s, uint32_t slot);
void policy_shadow_put(policy_shadow *s, uint32_t slot, uint32_t key);
void policy_shadow_drop(policy_shadow *s, uint32_t slot);
uint32_t policy_shadow_evict(policy_shadow *s); /* n > 0; returns the key */
/* For tests: O(SAMPLE_SLOTS). */
int policy_shadow_is_sound(const policy_shadow *s, const policy_prefix *sample);

/* --- policy_learn.c --- */
/* Asks the processor for the slots of this prefix. */
void policy_sample_fetch(const policy *p, uint32_t hash);
/* A prefix whose hash is in the sample was used as one of this kind. again: not asked for anew. */
void policy_sample(policy *p, uint32_t hash, uint32_t kind, int again, int found);
int policy_must_learn(const policy *p);
/* Works out the worths anew. Cost: O(SAMPLE_SLOTS). */
void policy_learn(policy *p);

#endif
