/*
 * layout_blocks.c - may rows be written through a block table? layout.c looks at the rows of one
 * block; here those of any two are held against each other.
 *
 * Rows are at layer * L + head * H + token * T. The tokens are RUNS, one for each entry of the
 * table, anywhere. Where they begin has a step in common, so that all of them are among the places
 * of an array of four directions: if that nests, as in all usual caches, and no block is named
 * twice, no two rows meet. Otherwise the sorted runs tell: two rows meet if any two tokens are as
 * far apart as some two layers and heads.
 */
#include "client/layout.h"

#include <stdlib.h>

#include "client/error.h"

typedef struct run {
    uint64_t begin, end; /* tokens of the layout */
    size_t entry;        /* of the table */
} run;

typedef struct rows {
    const char *argument;
    const kvt_block_table *table;
    int part;
    uint32_t row_bytes;
    int64_t n_layers, n_heads, layer, head, token; /* strides; a token's without its sign */
    const run *runs;                               /* rising */
    size_t n_runs;
} rows;

static size_t first_entry(const kvt_layout_blocks *b) {
    return b->first_token / b->table->block_tokens;
}

static size_t end_entry(const kvt_layout_blocks *b) {
    return (b->end_token + b->table->block_tokens - 1) / b->table->block_tokens;
}

/* Of the least of all numbers, which has no opposite: itself. */
static int64_t size_of(size_t stride) {
    return (int64_t)stride < 0 ? (int64_t)(0 - stride) : (int64_t)stride;
}

kvt_status kvt_layout_check_table(const char *argument, const kvt_layout *layout,
                                  const kvt_layout_blocks *b) {
    const kvt_block_table *t = b->table;
    if (b->end_token <= b->first_token)
        return KVT_OK;
    if (end_entry(b) > t->n_blocks)
        return kvt_error(KVT_EINVAL, "token %zu is beyond the block table of %zu blocks of %u",
                         b->end_token - 1, t->n_blocks, t->block_tokens);
    for (size_t i = first_entry(b); i < end_entry(b); i++)
        if (t->blocks[i] == UINT32_MAX)
            return kvt_error(KVT_EINVAL,
                             "blocks->blocks[%zu] is -1, which engines put where a path has no "
                             "block; the call's tokens %zu .. %zu need one",
                             i, b->first_token, b->end_token - 1);
    uint64_t stride = t->block_stride_tokens ? t->block_stride_tokens : t->block_tokens;
    for (int p = 0; p < 2; p++) {
        int64_t token = size_of(layout->token_stride_bytes[p]);
        uint64_t most = (uint64_t)(KVT_LAYOUT_MOST_BYTES / (token ? token : 1)), last;
        for (size_t i = first_entry(b); i < end_entry(b); i++)
            if (token < 0 || __builtin_mul_overflow(t->blocks[i], stride, &last) ||
                __builtin_add_overflow(last, t->block_tokens, &last) || last > most)
                return kvt_error(KVT_EINVAL,
                                 "blocks->blocks[%zu] is %u: so many times %llu tokens "
                                 "(block_stride_tokens) of %lld bytes "
                                 "(%s->token_stride_bytes[%d]) go beyond all memory",
                                 i, t->blocks[i], (unsigned long long)stride,
                                 (long long)layout->token_stride_bytes[p], argument, p);
    }
    return KVT_OK;
}

/* --- the quick look ------------------------------------------------------------------------------
 */

static int compare_numbers(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Does one of them begin where another does? They do not rise. */
static kvt_status find_twins(const kvt_layout_blocks *b, int *ret_are_any) {
    size_t first = first_entry(b), n = end_entry(b) - first;
    uint64_t *begins = kvt_memory_get(n * sizeof *begins);
    if (!begins)
        return kvt_error_plain(KVT_ENOMEM);
    for (size_t i = 0; i < n; i++)
        begins[i] = kvt_layout_block(b->table, first + i);
    qsort(begins, n, sizeof *begins, compare_numbers);
    *ret_are_any = 0;
    for (size_t i = 1; i < n; i++)
        *ret_are_any |= begins[i] == begins[i - 1];
    free(begins);
    return KVT_OK;
}

kvt_status kvt_layout_spread_of(const kvt_layout_blocks *b, kvt_layout_spread *ret_spread) {
    size_t first = first_entry(b), end = end_entry(b);
    uint64_t least = kvt_layout_block(b->table, first), most = least, step = 0;
    int rises = 1, are_twins = 0;
    for (size_t i = first + 1; i < end; i++) {
        uint64_t at = kvt_layout_block(b->table, i), before = kvt_layout_block(b->table, i - 1);
        rises &= at > before;
        least = at < least ? at : least;
        most = at > most ? at : most;
        for (uint64_t rest = at > before ? at - before : before - at; rest;) {
            uint64_t less = step % rest; /* what divides both */
            step = rest;
            rest = less;
        }
    }
    kvt_status status = rises ? KVT_OK : find_twins(b, &are_twins);
    if (status == KVT_OK)
        *ret_spread = (kvt_layout_spread){.block_tokens = b->table->block_tokens,
                                          .names_once = !are_twins,
                                          .step_tokens = step,
                                          .n_steps = step ? (most - least) / step : 0};
    return status;
}

/* --- the close one -------------------------------------------------------------------------------
 */

static int compare_runs(const void *a, const void *b) {
    return compare_numbers(&((const run *)a)->begin, &((const run *)b)->begin);
}

static kvt_status make_runs(const kvt_layout_blocks *b, run **ret_runs) {
    size_t first = first_entry(b), end = end_entry(b), each = b->table->block_tokens;
    run *runs = kvt_memory_get((end - first) * sizeof *runs);
    if (!runs)
        return kvt_error_plain(KVT_ENOMEM);
    for (size_t i = first; i < end; i++) {
        uint64_t begin = kvt_layout_block(b->table, i);
        size_t skipped = i == first ? b->first_token % each : 0;
        size_t left = b->end_token - i * each;
        runs[i - first] = (run){begin + skipped, begin + (left < each ? left : each), i};
    }
    qsort(runs, end - first, sizeof *runs, compare_runs);
    *ret_runs = runs;
    return KVT_OK;
}

static kvt_status say(const rows *r, const run *one, const run *other, const char *how) {
    const kvt_block_table *t = r->table;
    const run *a = one->entry < other->entry ? one : other, *b = a == one ? other : one;
    uint64_t stride = t->block_stride_tokens ? t->block_stride_tokens : t->block_tokens;
    return kvt_error(KVT_EINVAL,
                     "rows of %s->part[%d] would overlap: those of blocks->blocks[%zu], which is "
                     "%u, and blocks->blocks[%zu], which is %u, %s (block_tokens %u, "
                     "block_stride_tokens %llu; layer, head and token strides are %lld, %lld and "
                     "%lld bytes)",
                     r->argument, r->part, a->entry, t->blocks[a->entry], b->entry,
                     t->blocks[b->entry], how, t->block_tokens, (unsigned long long)stride,
                     (long long)r->layer, (long long)r->head, (long long)r->token);
}

/* Rows of the same layer and head. */
static kvt_status check_tokens(const rows *r) {
    for (size_t i = 1; i < r->n_runs; i++) {
        const run *a = &r->runs[i - 1], *b = &r->runs[i];
        if (b->begin < a->end)
            return say(r, a, b, "are the same tokens of the layout");
        if ((int64_t)(b->begin - a->end + 1) * r->token < r->row_bytes)
            return say(r, a, b, "are less than a row apart");
    }
    return KVT_OK;
}

static int64_t floor_of(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

/* Rows that lie `bytes` behind those of another layer and head, but for their tokens: is one token
 * as many back as that makes up for? */
static kvt_status check_distance(const rows *r, int64_t bytes) {
    int64_t least = -floor_of(bytes + r->row_bytes - 1, r->token),
            most = floor_of(r->row_bytes - 1 - bytes, r->token);
    int64_t span = (int64_t)(r->runs[r->n_runs - 1].end - 1 - r->runs[0].begin);
    if (least > most || least > span || most < -span)
        return KVT_OK;
    size_t i = 0;
    for (size_t j = 0; j < r->n_runs; j++) {
        int64_t from = (int64_t)r->runs[j].begin + least, to = (int64_t)r->runs[j].end - 1 + most;
        while (i < r->n_runs && (int64_t)r->runs[i].end - 1 < from)
            i++;
        if (i < r->n_runs && (int64_t)r->runs[i].begin <= to)
            return say(r, &r->runs[j], &r->runs[i],
                       "of different heads or layers. A block of [head][block_tokens][dim] is "
                       "n_kv_heads * block_tokens tokens further on than the one before");
    }
    return KVT_OK;
}

static kvt_status check_rows(const rows *r) {
    kvt_status status = check_tokens(r);
    if (r->token == 0)
        return status; /* there is one token */
    for (int64_t layer = 0; layer < r->n_layers; layer++)
        for (int64_t head = layer ? 1 - r->n_heads : 1; head < r->n_heads && status == KVT_OK;
             head++)
            status = check_distance(r, layer * r->layer + head * r->head);
    return status;
}

/* --- both ----------------------------------------------------------------------------------------
 */

static rows rows_of(const char *argument, const kvt_layout *layout, const kvt_geometry *geometry,
                    size_t n_layers, const kvt_block_table *table, int p) {
    return (rows){.argument = argument,
                  .table = table,
                  .part = p,
                  .row_bytes = 2 * geometry->head_dim[p],
                  .n_layers = (int64_t)n_layers,
                  .n_heads = geometry->n_kv_heads,
                  .layer = n_layers > 1 ? (int64_t)layout->layer_stride_bytes[p] : 0,
                  .head = geometry->n_kv_heads > 1 ? (int64_t)layout->head_stride_bytes[p] : 0,
                  .token = size_of(layout->token_stride_bytes[p])};
}

static int64_t without_sign(int64_t n) {
    return n < 0 ? -n : n;
}

static int is_array(const rows *r, const kvt_layout_spread *spread) {
    kvt_layout_steps steps[] = {{(uint64_t)r->n_layers, without_sign(r->layer)},
                                {(uint64_t)r->n_heads, without_sign(r->head)},
                                {spread->block_tokens, r->token},
                                {spread->n_steps + 1, (int64_t)spread->step_tokens * r->token}};
    return spread->names_once &&
           kvt_layout_nests(steps, sizeof steps / sizeof *steps, r->row_bytes);
}

kvt_status kvt_layout_check_blocks(const char *argument, const kvt_layout *layout,
                                   const kvt_geometry *geometry, size_t n_layers,
                                   const kvt_layout_blocks *blocks,
                                   const kvt_layout_spread *spread) {
    kvt_status status = KVT_OK;
    run *runs = NULL;
    for (int p = 0; p < 2 && status == KVT_OK; p++) {
        rows r = rows_of(argument, layout, geometry, n_layers, blocks->table, p);
        if (is_array(&r, spread))
            continue;
        if (!runs)
            status = make_runs(blocks, &runs);
        if (status != KVT_OK)
            break;
        r.runs = runs;
        r.n_runs = end_entry(blocks) - first_entry(blocks);
        status = check_rows(&r);
    }
    free(runs);
    return status;
}
