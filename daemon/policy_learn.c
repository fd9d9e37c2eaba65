/*
 * policy_learn.c - how much longer than others pages of a kind are worth keeping.
 *
 * A sample of all prefixes that were asked for, whether they are still kept or not (else what goes
 * early could never be seen to come back):
 *
 *   asked for, as kind c                 asked for again at age a: again[c][a]++
 *        |---------------------- age ---------------------->|
 *        '---- too long ago, or its slot is needed at age a: lost[c][a]++
 *
 * From these and from the prefixes that are still waiting: of those that reached age a, the part
 * that was asked for at that age (the hazard), for each kind and for all together. A kind's worth
 * is the number that did come back over the number that would have at the hazards of all, both
 * summed over the ages that matter. Both are started with `prior`, as if so many had been seen
 * already: a whole conversation comes back or not, so a thousand pages may be one event.
 */
#include "daemon/policy_parts.h"

#include <stdio.h>
#include <string.h>

enum {
    LIVES_AROUND = 8, /* ages of life / 8 .. life * 8 matter */
    LIVES_SEEN = 8,   /* a prefix is waited for as long as it takes to fill the room so often */
    PRIOR_SHARE = 16, /* the prior is a 16th of the pages */
    LEARN_SHARE = 4,  /* learn whenever a quarter of the pages is new */
    LEARN_LEAST = 64,
};
static const double max_worth = 4;
static const double full_trust = 3; /* times (gained - given up) / (both + prior), see weigh */
static const double fade = 0.97;    /* at each learning: what is 8 rooms old counts a third */

/* What is known before anything was seen: what eight have asked for others will ask for, and a
 * prompt seldom goes on behind its last page just there. */
static double prior_of(uint32_t kind) {
    static const double by_count[] = {1, 1, 1, 1.5, 2, 2};
    return kind % 2 ? 0.25 : by_count[kind / 2];
}

static uint32_t bucket(uint64_t age) {
    if (age < 4)
        return (uint32_t)age;
    unsigned top = 63u - (unsigned)__builtin_clzll(age);
    uint32_t at = 4 * top + (uint32_t)(age >> (top - 2) & 3);
    return at < AGES ? at : AGES - 1;
}

/* The ages of a bucket: from .. from of the next. */
static double bucket_from(uint32_t at) {
    return at < 4 ? at : (double)((uint64_t)(4 + at % 4) << (at / 4)) / 4;
}

/* --- the sample ---------------------------------------------------------------------------------
 */

static uint32_t age_of(const policy *p, const policy_prefix *prefix) {
    return (uint32_t)p->now - prefix->at;
}

static void forget(policy *p, policy_prefix *prefix) {
    uint32_t slot = (uint32_t)(prefix - p->sample);
    policy_shadow_drop(&p->lru, slot);
    policy_shadow_drop(&p->worths, slot);
    prefix->used = 0;
    p->n_samples--;
}

static void lose(policy *p, policy_prefix *prefix) {
    p->lost[prefix->kind][bucket(age_of(p, prefix))]++;
    forget(p, prefix);
}

static uint32_t first_slot(uint32_t hash) {
    return hash * 2654435769u >> 18; /* 14 bits */
}

void policy_sample_fetch(const policy *p, uint32_t hash) {
    uint32_t first = first_slot(hash);
    __builtin_prefetch(&p->sample[first]);
    __builtin_prefetch(&p->sample[(first + SAMPLE_WINDOW - 1) % SAMPLE_SLOTS]);
}

/* The slot that holds the prefix; else one for it: a free one, or that of the oldest. */
static policy_prefix *slot_for(policy *p, uint32_t hash) {
    uint32_t first = first_slot(hash);
    policy_prefix *best = NULL;
    for (uint32_t i = 0; i < SAMPLE_WINDOW; i++) {
        policy_prefix *at = &p->sample[(first + i) % SAMPLE_SLOTS];
        if (at->used && at->hash == hash)
            return at;
        if (!best || (best->used && (!at->used || age_of(p, at) > age_of(p, best))))
            best = at;
    }
    if (best->used)
        lose(p, best);
    return best;
}

/* --- does it pay? -------------------------------------------------------------------------------
 * Both shadows hear of every use and keep as many prefixes as the tree has of the sample. Neither
 * depends on what is kept in fact: it can be seen that worths would pay while they are not
 * followed. While LRU is followed its shadow is what is kept in fact, but for pages' sizes.
 */

static uint32_t due_in_worths(const policy *p, const policy_prefix *prefix, uint32_t from) {
    double more = p->worths_life * (p->worth[prefix->kind] - 1);
    more = more > 1 << 30 ? 1 << 30 : more;
    return from + (uint32_t)(int32_t)more;
}

/* Until now all was kept, by whatever rule. */
static void begin_shadows(policy *p) {
    p->has_shadows = 1;
    p->worths_life = p->life;
    p->n_uses = (uint32_t)p->now;
    for (uint32_t slot = 0; slot < SAMPLE_SLOTS; slot++)
        if (p->sample[slot].used) {
            policy_shadow_put(&p->lru, slot, p->sample[slot].at);
            policy_shadow_put(&p->worths, slot,
                              due_in_worths(p, &p->sample[slot], p->sample[slot].at));
        }
}

static uint32_t sampled_pages(const policy *p) {
    uint32_t n = 0;
    for (uint32_t zeros = p->shift; zeros <= 32; zeros++)
        n += p->live_by_zeros[zeros];
    return n;
}

/* A request evicts nothing that it found: what it is compared with is what was kept before it. */
static void trim(policy *p) {
    if (p->shadowed == p->requests)
        return;
    while (p->lru.n > p->shadow_room)
        policy_shadow_evict(&p->lru);
    while (p->worths.n > p->shadow_room) {
        int32_t age = (int32_t)((uint32_t)p->now - policy_shadow_evict(&p->worths));
        double n = p->shadow_room ? p->shadow_room : 1;
        p->worths_life = policy_life(p->worths_life, age, p->live, n);
    }
    p->shadowed = p->requests;
}

static void put(policy *p, const policy_prefix *prefix) {
    if (!p->has_evicted)
        return;
    if (!p->has_shadows)
        begin_shadows(p);
    uint32_t slot = (uint32_t)(prefix - p->sample);
    policy_shadow_put(&p->lru, slot, ++p->n_uses);
    policy_shadow_put(&p->worths, slot, due_in_worths(p, prefix, (uint32_t)p->now));
    p->shadow_room = sampled_pages(p);
}

/* The prior: as much as a 16th of the pages would count, see the top. */
static double prior_now(const policy *p) {
    return (double)p->live / PRIOR_SHARE / (double)(1u << p->shift);
}

/* By what they would do, worths are followed in full when they gain more than twice what they lose,
 * and half the prior. A shadow knows no tree, so it may promise too much: if in fact they lose more
 * than they gain, they are followed less, by the square of the ratio. */
static void weigh(policy *p) {
    double prior = prior_now(p), all = p->gained + p->given_up + prior;
    double trust = all > 0 ? full_trust * (p->gained - p->given_up) / all : 0;
    double ratio = (p->did_gain + prior / 4) / (p->did_give_up + prior / 4);
    trust = trust < 0 ? 0 : trust > 1 ? 1 : trust;
    p->trust = ratio < 1 ? trust * ratio * ratio : trust;
}

/* Weighed at once: time stands still while what is asked for is found. */
static void compare(policy *p, const policy_prefix *prefix, int found) {
    if (!p->has_shadows)
        return;
    uint32_t slot = (uint32_t)(prefix - p->sample);
    int lru = policy_shadow_has(&p->lru, slot), worths = policy_shadow_has(&p->worths, slot);
    p->gained += worths && !lru;
    p->given_up += lru && !worths;
    p->did_gain += found && !lru;
    p->did_give_up += lru && !found;
    if (lru != worths || lru != found)
        weigh(p);
}

/* --- uses ---------------------------------------------------------------------------------------
 */

void policy_sample(policy *p, uint32_t hash, uint32_t kind, int again, int found) {
    policy_prefix *prefix = slot_for(p, hash);
    trim(p);
    if (prefix->used && again) {
        prefix->kind = (uint8_t)kind;
        put(p, prefix);
        return;
    }
    if (prefix->used) {
        compare(p, prefix, found);
        p->again[prefix->kind][bucket(age_of(p, prefix))]++;
    }
    p->n_samples += !prefix->used;
    *prefix =
        (policy_prefix){.hash = hash, .at = (uint32_t)p->now, .kind = (uint8_t)kind, .used = 1};
    put(p, prefix);
}

/* Takes every second of what the sample has taken, now and from now on. */
static void halve_sample(policy *p) {
    uint32_t mask = (2u << p->shift) - 1;
    for (uint32_t i = 0; i < SAMPLE_SLOTS; i++)
        if (p->sample[i].used && p->sample[i].hash & mask)
            forget(p, &p->sample[i]);
    for (uint32_t kind = 0; kind < POLICY_KINDS; kind++)
        for (uint32_t age = 0; age < AGES; age++) {
            p->again[kind][age] /= 2;
            p->lost[kind][age] /= 2;
        }
    p->gained /= 2;
    p->given_up /= 2;
    p->did_gain /= 2;
    p->did_give_up /= 2;
    p->shift++;
}

/* --- the worths ---------------------------------------------------------------------------------
 */

/* Prefixes that are waiting now, by kind and age; those waited for too long are lost. */
static void count_waiting(policy *p, double waiting[POLICY_KINDS][AGES]) {
    double longest = LIVES_SEEN * (double)p->live;
    for (uint32_t i = 0; i < SAMPLE_SLOTS; i++) {
        policy_prefix *at = &p->sample[i];
        if (!at->used)
            continue;
        if (age_of(p, at) > longest)
            lose(p, at);
        else
            waiting[at->kind][bucket(age_of(p, at))]++;
    }
}

/* reached[a]: how many of the kind reached age a; half of those that are still waiting or were
 * lost within a bucket count for it. */
static void count_reached(const policy *p, uint32_t kind, const double waiting[AGES],
                          double reached[AGES]) {
    double beyond = 0;
    for (uint32_t age = AGES; age-- > 0;) {
        double unseen = p->lost[kind][age] + waiting[age];
        reached[age] = beyond + p->again[kind][age] + unseen / 2;
        beyond += p->again[kind][age] + unseen;
    }
}

static int age_matters(const policy *p, uint32_t age) {
    return bucket_from(age + 1) * LIVES_AROUND > p->life &&
           bucket_from(age) < p->life * LIVES_AROUND;
}

int policy_must_learn(const policy *p) {
    uint64_t wait = p->live / LEARN_SHARE;
    return p->now - p->learned_at >= (wait > LEARN_LEAST ? wait : LEARN_LEAST) ||
           p->n_samples > SAMPLE_SLOTS / 8 * 5;
}

void policy_learn(policy *p) {
    double waiting[POLICY_KINDS][AGES], reached[POLICY_KINDS][AGES];
    double hazard[AGES], prior = prior_now(p);
    memset(waiting, 0, sizeof waiting);
    if (p->n_samples > SAMPLE_SLOTS / 8 * 5)
        halve_sample(p);
    count_waiting(p, waiting);
    p->gained *= fade;
    p->given_up *= fade;
    p->did_gain *= fade;
    p->did_give_up *= fade;
    if (p->has_shadows)
        weigh(p);
    for (uint32_t kind = 0; kind < POLICY_KINDS; kind++)
        count_reached(p, kind, waiting[kind], reached[kind]);
    for (uint32_t age = 0; age < AGES; age++) {
        double again = 0, all = 0;
        for (uint32_t kind = 0; kind < POLICY_KINDS; kind++) {
            again += p->again[kind][age];
            all += reached[kind][age];
        }
        hazard[age] = all > 0 && age_matters(p, age) ? again / all : 0;
    }
    for (uint32_t kind = 0; kind < POLICY_KINDS; kind++) {
        double came = 0, expected = 0;
        for (uint32_t age = 0; age < AGES; age++) {
            if (age_matters(p, age)) {
                came += p->again[kind][age];
                expected += hazard[age] * reached[kind][age];
            }
            p->again[kind][age] *= fade;
            p->lost[kind][age] *= fade;
        }
        double worth = prior + expected > 0 ? (came + prior * prior_of(kind)) / (expected + prior)
                                            : prior_of(kind);
        p->worth[kind] = worth < max_worth ? worth : max_worth;
    }
    p->learned_at = p->now;
}

/* --- audit --------------------------------------------------------------------------------------
 */

static kvt_status lie(char *why, size_t why_bytes, const char *text) {
    if (why)
        snprintf(why, why_bytes, "%s", text);
    return KVT_EINTERNAL;
}

kvt_status policy_audit(const policy *p, char *why, size_t why_bytes) {
    uint32_t n = 0;
    if (p->live > p->max_pages || p->live > p->now)
        return lie(why, why_bytes, "more pages are live than can be");
    if (p->rule == POLICY_LRU)
        return KVT_OK;
    for (uint32_t i = 0; i < SAMPLE_SLOTS; i++) {
        const policy_prefix *at = &p->sample[i];
        if (!at->used)
            continue;
        n++;
        if (at->hash & ((1u << p->shift) - 1) || at->kind >= POLICY_KINDS)
            return lie(why, why_bytes, "a prefix stands in the sample that was not taken");
        uint32_t first = first_slot(at->hash), found = 0;
        for (uint32_t j = 0; j < SAMPLE_WINDOW; j++) {
            const policy_prefix *other = &p->sample[(first + j) % SAMPLE_SLOTS];
            found += other->used && other->hash == at->hash;
        }
        if (found != 1)
            return lie(why, why_bytes, "a prefix of the sample is not in its window, or twice");
    }
    if (n != p->n_samples)
        return lie(why, why_bytes, "the sample's count is wrong");
    for (uint32_t kind = 0; kind < POLICY_KINDS; kind++)
        if (!(p->worth[kind] >= 0 && p->worth[kind] <= max_worth))
            return lie(why, why_bytes, "a worth is out of range");
    if (!(p->trust >= 0 && p->trust <= 1))
        return lie(why, why_bytes, "the trust is out of range");
    if (!policy_shadow_is_sound(&p->lru, p->sample) ||
        !policy_shadow_is_sound(&p->worths, p->sample))
        return lie(why, why_bytes, "a shadow keeps what is not in the sample, or not in its order");
    if (!(p->life >= 1))
        return lie(why, why_bytes, "the life is less than a page");
    return KVT_OK;
}
