/*
 * policy.c - keys, and what is remembered of pages. How worths are learned: policy_learn.c.
 */
#include "daemon/policy_parts.h"

#include <string.h>

/* --- the block ----------------------------------------------------------------------------------
 */

static uint32_t power_at_least(uint32_t n) {
    uint32_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

static uint32_t memory_slots(policy_rule rule, uint32_t max_pages) {
    return rule == POLICY_LRU ? 0 : 8 * power_at_least(max_pages);
}

size_t policy_bytes(policy_rule rule, uint32_t max_pages) {
    if (max_pages < 1 || max_pages > 1u << 30)
        return 0;
    if (rule == POLICY_LRU)
        return sizeof(policy);
    return sizeof(policy) + ((size_t)max_pages + 1) * sizeof(policy_mark) +
           memory_slots(rule, max_pages);
}

kvt_status policy_init(void *memory, size_t bytes, policy_rule rule, uint32_t max_pages,
                       policy **ret_policy) {
    size_t needed = policy_bytes(rule, max_pages);
    if (needed == 0)
        return KVT_EINVAL;
    if (bytes < needed)
        return KVT_ELIMIT;
    policy *p = memory;
    memset(p, 0, sizeof *p);
    p->rule = rule;
    p->max_pages = max_pages;
    if (rule == POLICY_WORTH) {
        p->marks = (policy_mark *)(void *)(p + 1);
        p->memory = (uint8_t *)(p->marks + max_pages + 1);
        p->memory_mask = memory_slots(rule, max_pages) - 1;
        p->life = 1;
        policy_learn(p);
    }
    *ret_policy = p;
    return KVT_OK;
}

const char *policy_name(policy_rule rule) {
    return rule == POLICY_LRU ? "lru" : "worth";
}

int policy_of_name(const char *name, policy_rule *ret_rule) {
    for (int rule = POLICY_WORTH; rule <= POLICY_LRU; rule++)
        if (strcmp(name, policy_name((policy_rule)rule)) == 0) {
            *ret_rule = (policy_rule)rule;
            return 1;
        }
    return 0;
}

/* --- prefixes -----------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    z = (z ^ (z >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return z ^ (z >> 32);
}

static uint32_t prefix_hash(const policy *p, uint32_t parent, const uint32_t *tokens,
                            uint32_t n_tokens) {
    uint64_t z = parent > p->max_pages ? parent : (uint64_t)p->marks[parent].hash << 32;
    z = mix(z + n_tokens);
    for (uint32_t i = 0; i < n_tokens; i++)
        z = (z ^ tokens[i]) * UINT64_C(0x9fb21c651e98df25) + (z >> 29);
    return (uint32_t)mix(z);
}

static uint32_t zeros_at_end(uint32_t hash) {
    return hash ? (uint32_t)__builtin_ctz(hash) : 32;
}

/*
 * What was evicted, by hash: five bits of the hash and the kind of its count. What comes later
 * takes the place of what was there, so it forgets by itself, and how much it remembers follows
 * from its size.
 */
static uint32_t memory_slot(const policy *p, uint32_t hash) {
    return (uint32_t)(mix(hash) >> 16) & p->memory_mask;
}

static uint8_t memory_tag(uint32_t hash) {
    return (uint8_t)((hash >> 27) << 3);
}

/* At least how often the prefix was asked for; 0: it is new, or forgotten. */
static uint8_t recall(const policy *p, uint32_t hash) {
    static const uint8_t at_least[8] = {0, 1, 2, 3, 4, 8, 32, 32};
    uint8_t slot = p->memory[memory_slot(p, hash)];
    return (slot & 0xf8) == memory_tag(hash) ? at_least[slot & 7] : 0;
}

static void remember(policy *p, const policy_mark *mark) {
    uint8_t kind_and_one = (uint8_t)(mark->count ? policy_kind_of(mark->count, 0) / 2 + 1 : 0);
    if (kind_and_one)
        p->memory[memory_slot(p, mark->hash)] = (uint8_t)(memory_tag(mark->hash) | kind_and_one);
}

/* --- size ---------------------------------------------------------------------------------------
 */

/* Quarters of an octave; the steps between powers of two are linear. */
static uint8_t size_of_bytes(uint64_t n_bytes) {
    uint64_t n = n_bytes | 4;
    unsigned top = 63u - (unsigned)__builtin_clzll(n);
    return (uint8_t)(4 * top + (n >> (top - 2) & 3));
}

/* By how much a page stays longer because it is smaller than the usual one: 1/4 .. 4. */
static double size_factor(const policy *p, uint8_t size) {
    static const double quarter[4] = {1, 1.189207115002721, 1.4142135623730951, 1.681792830507429};
    int steps = (int)((p->mean_size + 128) / 256) - size;
    if (steps == 0)
        return 1;
    steps = steps < -8 ? -8 : steps > 8 ? 8 : steps;
    double factor = quarter[(steps + 8) % 4];
    return steps >= 0 ? factor * (1 << (steps / 4)) : factor / (1 << ((3 - steps) / 4));
}

static void note_size(policy *p, uint8_t size) {
    int32_t wanted = 256 * size;
    p->mean_size = p->now == 1 ? wanted : p->mean_size + (wanted - p->mean_size) / 64;
}

/* --- keys ---------------------------------------------------------------------------------------
 */

/*
 *   63 .. 24  time at which the page is due, in pages put in, TIME_ZERO = the start
 *   23 ..  0  number of the request: of two that are due together the one used longer ago goes
 */
enum { REQUEST_BITS = 24 };
#define TIME_ZERO (UINT64_C(1) << 34)

static uint64_t key_of(const policy *p, double due) {
    uint64_t time =
        due < -(double)(TIME_ZERO / 2) ? TIME_ZERO / 2 : TIME_ZERO + (uint64_t)(int64_t)due;
    return time << REQUEST_BITS | (p->requests & ((1u << REQUEST_BITS) - 1));
}

static double due_of(uint64_t key) {
    return (double)(int64_t)((key >> REQUEST_BITS) - TIME_ZERO);
}

static uint64_t key_for(const policy *p, const policy_mark *mark, uint32_t kind) {
    double worth = 1 + p->trust * (p->worth[kind] - 1);
    worth *= size_factor(p, mark->size);
    return key_of(p, (double)p->now + p->life * (worth - 1));
}

/* --- what is told -------------------------------------------------------------------------------
 */

uint64_t policy_new(policy *p, uint32_t page, uint32_t parent, const uint32_t *tokens,
                    uint32_t n_tokens, uint64_t n_bytes) {
    KVT_ASSERT(page >= 1 && page <= p->max_pages);
    p->now++;
    p->live++;
    if (p->rule == POLICY_LRU)
        return p->requests;
    if (!p->has_evicted)
        p->life = p->live;
    policy_mark *mark = &p->marks[page];
    mark->hash = prefix_hash(p, parent, tokens, n_tokens);
    mark->count = recall(p, mark->hash);
    mark->size = size_of_bytes(n_bytes);
    mark->is_new = 1;
    p->live_by_zeros[zeros_at_end(mark->hash)]++;
    note_size(p, mark->size);
    if (policy_must_learn(p))
        policy_learn(p);
    return key_for(p, mark, policy_kind_of(mark->count ? mark->count : 1, 0));
}

void policy_request(policy *p) {
    p->requests++;
}

uint64_t policy_use(policy *p, uint32_t page, unsigned flags) {
    if (p->rule == POLICY_LRU)
        return p->requests;
    policy_mark *mark = &p->marks[page];
    mark->count = (uint8_t)(mark->count + (!(flags & POLICY_AGAIN) && mark->count < UINT8_MAX));
    uint32_t kind = policy_kind_of(mark->count ? mark->count : 1, (flags & POLICY_LAST) != 0);
    if ((mark->hash & ((1u << p->shift) - 1)) == 0)
        policy_sample(p, mark->hash, kind, (flags & POLICY_AGAIN) != 0, !mark->is_new);
    mark->is_new = 0;
    return key_for(p, mark, kind);
}

void policy_fetch(const policy *p, uint32_t page) {
    if (p->rule == POLICY_WORTH && (p->marks[page].hash & ((1u << p->shift) - 1)) == 0)
        policy_sample_fetch(p, p->marks[page].hash);
}

uint64_t policy_key_now(const policy *p) {
    return p->rule == POLICY_LRU ? p->requests : key_of(p, (double)p->now);
}

double policy_life(double life, double age, double room, double n) {
    /* Smoothed over as many evictions as there are pages. */
    age = age < 0 ? 0 : age > 8 * room ? 8 * room : age;
    life += (age - life) / n;
    /* Under LRU no page stays longer than it takes to fill the room with others. */
    return life < 1 ? 1 : life > room ? room : life;
}

void policy_evicts(policy *p, uint64_t key) {
    if (p->rule == POLICY_LRU)
        return;
    p->life = policy_life(p->life, (double)p->now - due_of(key), p->live, p->live);
    p->has_evicted = 1;
}

void policy_gone(policy *p, uint32_t page) {
    KVT_ASSERT(page >= 1 && page <= p->max_pages && p->live > 0);
    p->live--;
    if (p->rule == POLICY_LRU)
        return;
    p->live_by_zeros[zeros_at_end(p->marks[page].hash)]--;
    remember(p, &p->marks[page]);
}

void policy_see(const policy *p, policy_look *ret_look) {
    *ret_look = (policy_look){.now = p->now,
                              .live = p->live,
                              .life = p->life,
                              .trust = p->trust,
                              .sampled = p->n_samples,
                              .shift = p->shift};
    memcpy(ret_look->worth, p->worth, sizeof ret_look->worth);
}
