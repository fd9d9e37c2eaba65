/* reuse.c - two sets of 64-bit hashes: open addressing, at most half full. */
#include "client/reuse.h"

#include <stdbool.h>
#include <stdlib.h>

enum { FIRST_ROOM = 1 << 12 };

typedef struct hash_set {
    uint64_t *slots; /* 0 = empty; the hash 0 is kept as 1 */
    size_t room;     /* power of two */
    size_t n;
} hash_set;

struct reuse {
    uint32_t step_tokens;
    uint32_t page_tokens;
    reuse_counts counts;
    hash_set prefixes;
    hash_set pages;
};

/* The slot that holds the hash, or the empty one where it would go. */
static uint64_t *find_slot(const hash_set *set, uint64_t hash) {
    /* The hashes are products, best mixed in their upper half. */
    size_t i = (size_t)(hash ^ (hash >> 32)) & (set->room - 1);
    while (set->slots[i] != 0 && set->slots[i] != hash) {
        i = (i + 1) & (set->room - 1);
    }
    return &set->slots[i];
}

static bool grow(hash_set *set) {
    hash_set bigger = {.room = set->room == 0 ? FIRST_ROOM : set->room * 2, .n = set->n};
    bigger.slots = calloc(bigger.room, sizeof *bigger.slots);
    if (bigger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < set->room; i++) {
        if (set->slots[i] != 0) {
            *find_slot(&bigger, set->slots[i]) = set->slots[i];
        }
    }
    free(set->slots);
    *set = bigger;
    return true;
}

static bool add(hash_set *set, uint64_t hash, bool *ret_is_new) {
    if (set->n >= set->room / 2 && !grow(set)) {
        return false;
    }
    hash = hash == 0 ? 1 : hash;
    uint64_t *slot = find_slot(set, hash);
    *ret_is_new = *slot == 0;
    set->n += *slot == 0;
    *slot = hash;
    return true;
}

kvt_status reuse_open(uint32_t step_tokens, uint32_t page_tokens, reuse **ret_reuse) {
    if (step_tokens == 0 || page_tokens == 0) {
        return KVT_EINVAL;
    }
    reuse *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return KVT_ENOMEM;
    }
    r->step_tokens = step_tokens;
    r->page_tokens = page_tokens;
    *ret_reuse = r;
    return KVT_OK;
}

void reuse_close(reuse *r) {
    if (r != NULL) {
        free(r->prefixes.slots);
        free(r->pages.slots);
        free(r);
    }
}

kvt_status reuse_add(reuse *r, const uint64_t *rows, size_t n_rows) {
    bool is_new = false, known = true;
    size_t best = 0;
    for (size_t end = r->step_tokens; end <= n_rows; end += r->step_tokens) {
        if (!add(&r->prefixes, rows[end - 1], &is_new)) {
            return KVT_ENOMEM;
        }
        known = known && !is_new;
        best = known ? end : best;
    }
    for (size_t start = 0; start < n_rows; start += r->page_tokens) {
        size_t end = n_rows - start < r->page_tokens ? n_rows : start + r->page_tokens;
        if (!add(&r->pages, rows[end - 1], &is_new)) {
            return KVT_ENOMEM;
        }
        r->counts.unique_pages += is_new;
    }
    r->counts.requests++;
    r->counts.tokens += n_rows;
    r->counts.tokens_best += best;
    return KVT_OK;
}

void reuse_get(const reuse *r, reuse_counts *ret_counts) {
    *ret_counts = r->counts;
}
