/*
 * policy_shadow.c - what a rule would keep of the sample: a heap of its prefixes, the first to go
 * on top. Of a tree it knows nothing: a prefix goes though longer ones of it are kept.
 */
#include "daemon/policy_parts.h"

/* Keys are cut to 32 bits and never half of that apart. */
static int goes_before(const policy_shadow *s, uint32_t a, uint32_t b) {
    return (int32_t)(s->key[a] - s->key[b]) < 0;
}

static void stand(policy_shadow *s, uint32_t at, uint16_t slot) {
    s->heap[at] = slot;
    s->place[slot] = (uint16_t)(at + 1);
}

/* Puts slot where it belongs from the hole at place `at`. */
static void settle(policy_shadow *s, uint32_t at, uint16_t slot) {
    while (at > 0 && goes_before(s, slot, s->heap[(at - 1) / 2])) {
        stand(s, at, s->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t below = 2 * at + 1;
        if (below >= s->n)
            break;
        if (below + 1 < s->n && goes_before(s, s->heap[below + 1], s->heap[below]))
            below++;
        if (!goes_before(s, s->heap[below], slot))
            break;
        stand(s, at, s->heap[below]);
        at = below;
    }
    stand(s, at, slot);
}

int policy_shadow_has(const policy_shadow *s, uint32_t slot) {
    return s->place[slot] != 0;
}

void policy_shadow_put(policy_shadow *s, uint32_t slot, uint32_t key) {
    s->key[slot] = key;
    uint32_t at = s->place[slot] ? s->place[slot] - 1u : s->n++;
    settle(s, at, (uint16_t)slot);
}

void policy_shadow_drop(policy_shadow *s, uint32_t slot) {
    if (!s->place[slot])
        return;
    uint32_t at = s->place[slot] - 1u;
    uint16_t last = s->heap[--s->n];
    s->place[slot] = 0;
    if (last != slot)
        settle(s, at, last);
}

uint32_t policy_shadow_evict(policy_shadow *s) {
    uint32_t slot = s->heap[0];
    policy_shadow_drop(s, slot);
    return s->key[slot];
}

int policy_shadow_is_sound(const policy_shadow *s, const policy_prefix *sample) {
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < SAMPLE_SLOTS; slot++) {
        uint32_t place = s->place[slot];
        if (place && (!sample[slot].used || place > s->n || s->heap[place - 1] != slot))
            return 0;
        n += place != 0;
    }
    for (uint32_t at = 1; at < s->n; at++)
        if (goes_before(s, s->heap[at], s->heap[(at - 1) / 2]))
            return 0;
    return n == s->n;
}
