/*
 * layout.c - is a caller's layout one whose rows can be read and written? A GPU does not say: it
 * fails at the first element that is not at a multiple of 2 bytes, for good, and takes all else
 * that the process has there with it.
 */
#include "client/layout.h"

#include "client/error.h"

enum { LAYERS, HEADS, TOKENS, N_WAYS, ELEMENT_BYTES = 2 };

/* A row's neighbours in one direction. A stride may be negative, as a size_t that wraps. */
typedef struct way {
    const char *name;
    size_t n;
    int is_counted;       /* also where n is 1: the blocks of a paged cache are tokens apart */
    int64_t stride, size; /* size: without its sign */
} way;

typedef struct part_ways {
    const char *argument;
    int part;
    uint32_t row_bytes;
    way ways[N_WAYS];
} part_ways;

static kvt_status check_way(const part_ways *p, const way *w) {
    if (w->is_counted && w->stride % ELEMENT_BYTES != 0)
        return kvt_error(
            KVT_EINVAL,
            "%s->%s_stride_bytes[%d] is %lld: it must be a multiple of the %d bytes of "
            "an element",
            p->argument, w->name, p->part, (long long)w->stride, ELEMENT_BYTES);
    if (w->n < 2)
        return KVT_OK; /* no other row is that far away */
    if (w->size < p->row_bytes)
        return kvt_error(KVT_EINVAL,
                         "%s->%s_stride_bytes[%d] is %lld: rows of %u bytes would overlap, and "
                         "there are %zu of them",
                         p->argument, w->name, p->part, (long long)w->stride, p->row_bytes, w->n);
    if (w->size > KVT_LAYOUT_MOST_BYTES / (int64_t)w->n)
        return kvt_error(KVT_EINVAL,
                         "%s->%s_stride_bytes[%d] is %lld: %zu of them go beyond all memory",
                         p->argument, w->name, p->part, (long long)w->stride, w->n);
    return KVT_OK;
}

/* So are all arrays laid out. */
int kvt_layout_nests(kvt_layout_steps *steps, int n_directions, uint32_t row_bytes) {
    int64_t reach = row_bytes;
    for (int i = 0; i < n_directions; i++) {
        for (int j = i + 1; j < n_directions; j++)
            if (steps[j].size < steps[i].size) {
                kvt_layout_steps larger = steps[i];
                steps[i] = steps[j];
                steps[j] = larger;
            }
        if (steps[i].n < 2)
            continue;
        if (steps[i].size < reach)
            return 0;
        reach += steps[i].size * (int64_t)(steps[i].n - 1);
    }
    return 1;
}

/* May one go from the row at `from`, by up to n - 1 steps forth or back, to where it meets the one
 * at 0? Not by none at all if `from` is that row. */
static int meets(int64_t from, const way *w, int is_itself, uint32_t row_bytes) {
    int64_t most = w->n > 1 ? (int64_t)w->n - 1 : 0, about = most ? from / w->size : 0;
    for (int64_t steps = about - 1; steps <= about + 1; steps++) {
        int64_t apart = from - steps * w->size;
        if (steps >= -most && steps <= most && !(is_itself && steps == 0) && apart < row_bytes &&
            -apart < row_bytes)
            return 1;
    }
    return 0;
}

/* Whether any two rows do: all differences in the two directions with the fewest rows, and for each
 * the steps in the third that come nearest. */
static int any_meet(const way w[N_WAYS], uint32_t row_bytes) {
    int64_t n[N_WAYS];
    int third = 0;
    for (int i = 0; i < N_WAYS; i++) {
        n[i] = w[i].n > 1 ? (int64_t)w[i].n - 1 : 0;
        third = n[i] > n[third] ? i : third;
    }
    int first = (third + 1) % N_WAYS, second = (third + 2) % N_WAYS;
    for (int64_t a = 0; a <= n[first]; a++)
        for (int64_t b = -n[second]; b <= n[second]; b++)
            if (meets(a * w[first].size + b * w[second].size, &w[third], a == 0 && b == 0,
                      row_bytes))
                return 1;
    return 0;
}

static kvt_status check_overlap(const part_ways *p) {
    kvt_layout_steps steps[N_WAYS];
    for (int i = 0; i < N_WAYS; i++)
        steps[i] = (kvt_layout_steps){p->ways[i].n, p->ways[i].size};
    if (kvt_layout_nests(steps, N_WAYS, p->row_bytes) || !any_meet(p->ways, p->row_bytes))
        return KVT_OK;
    return kvt_error(KVT_EINVAL,
                     "rows of %s->part[%d] would overlap: %u bytes each, layers %lld bytes apart, "
                     "heads %lld, tokens %lld (layout.*_stride_bytes[%d]; %zu, %zu, %zu of them)",
                     p->argument, p->part, p->row_bytes, (long long)p->ways[LAYERS].stride,
                     (long long)p->ways[HEADS].stride, (long long)p->ways[TOKENS].stride, p->part,
                     p->ways[LAYERS].n, p->ways[HEADS].n, p->ways[TOKENS].n);
}

static way way_of(const char *name, size_t n, size_t stride_bytes) {
    int64_t stride = (int64_t)stride_bytes;
    /* The least of all numbers has no opposite; it is refused as any that is about as far. */
    int64_t size = stride >= 0 ? stride : stride == INT64_MIN ? INT64_MAX : -stride;
    return (way){name, n, n > 1, stride, size};
}

kvt_status kvt_layout_check(const char *argument, const kvt_layout *layout,
                            const kvt_geometry *geometry, size_t n_layers, size_t n_tokens,
                            int is_paged) {
    kvt_status status = KVT_OK;
    if (!layout || !layout->part[0] || !layout->part[1])
        return kvt_error(KVT_EINVAL, "a layout with two parts is needed: %s%s is NULL", argument,
                         !layout            ? ""
                         : !layout->part[0] ? "->part[0]"
                                            : "->part[1]");
    for (int i = 0; i < 2 && status == KVT_OK; i++) {
        part_ways p = {.argument = argument,
                       .part = i,
                       .row_bytes = ELEMENT_BYTES * geometry->head_dim[i],
                       .ways = {way_of("layer", n_layers, layout->layer_stride_bytes[i]),
                                way_of("head", geometry->n_kv_heads, layout->head_stride_bytes[i]),
                                way_of("token", n_tokens, layout->token_stride_bytes[i])}};
        p.ways[TOKENS].is_counted |= is_paged;
        if ((uintptr_t)layout->part[i] % ELEMENT_BYTES != 0)
            return kvt_error(KVT_EINVAL,
                             "%s->part[%d] is %p: it must be a multiple of the %d bytes of an "
                             "element",
                             argument, i, layout->part[i], ELEMENT_BYTES);
        if (n_layers == 0 || n_tokens == 0)
            continue; /* no row is there */
        for (int k = 0; k < N_WAYS && status == KVT_OK; k++)
            status = check_way(&p, &p.ways[k]);
        if (status == KVT_OK)
            status = check_overlap(&p);
    }
    return status;
}

kvt_status kvt_layout_check_parts(const char *argument, const kvt_layout *layout) {
    if (layout->part[0] != layout->part[1])
        return KVT_OK;
    return kvt_error(KVT_EINVAL,
                     "%s->part[0] and %s->part[1] are both %p: what is decoded into one would be "
                     "written over by the other",
                     argument, argument, layout->part[0]);
}
