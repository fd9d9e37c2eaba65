/*
 * policy_shadow.c - what a rule would keep of the sample: a heap of its prefixes, the first to go
 * on top. Of a tree it knows nothing: a prefix goes though longer ones of it are kept.
 */
#include "daemon/policy_parts.h"

typedef policy_shadow heap;
typedef uint16_t heap_index;

/* Keys are cut to 32 bits and never half of that apart. */
static int goes_before(const policy_shadow *s, uint32_t a, uint32_t b) {
    return (int32_t)(s->keys[a] - s->keys[b]) < 0;
}

#include "daemon/heap.h"

int policy_shadow_has(const policy_shadow *s, uint32_t slot) {
    return s->places[slot] != 0;
}

void policy_shadow_put(policy_shadow *s, uint32_t slot, uint32_t key) {
    s->keys[slot] = key;
    heap_put(s, (uint16_t)slot);
}

void policy_shadow_drop(policy_shadow *s, uint32_t slot) {
    if (s->places[slot])
        heap_drop(s, (uint16_t)slot);
}

uint32_t policy_shadow_evict(policy_shadow *s) {
    uint32_t slot = s->members[0];
    policy_shadow_drop(s, slot);
    return s->keys[slot];
}

int policy_shadow_is_sound(const policy_shadow *s, const policy_prefix *sample) {
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < SAMPLE_SLOTS; slot++) {
        uint32_t place = s->places[slot];
        if (place && (!sample[slot].used || place > s->n || s->members[place - 1] != slot))
            return 0;
        n += place != 0;
    }
    for (uint32_t at = 1; at < s->n; at++)
        if (goes_before(s, s->members[at], s->members[(at - 1) / 2]))
            return 0;
    return n == s->n;
}
