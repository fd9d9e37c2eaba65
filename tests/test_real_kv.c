/*
 * test_real_kv.c - codec sets on K and V of real models: relative errors, against what they were
 * when the files were made. Synthetic data alone once ranked codecs otherwise than a model does.
 *
 *     test_real_kv [FOLDER]     (default: $KVT_SOURCE_DIR/tests/kv)
 *
 * A file of tests/kv: a line "KV layers heads tokens k_dim v_dim", then for each layer K and V as
 * [head][token][dim], binary16. `probe pages` of tests/llama makes them: tokens 448 .. 511 of the
 * few-shot prompts, of some layers, from weights as F16.
 */
#include "kernels/page.h"
#include "kernels/unit.h"
#include "tests/check.h"

#include <math.h>

typedef struct pages {
    kvt_geometry geometry;
    uint16_t *part[2]; /* [layer][head][token][dim] */
    size_t n[2];       /* elements */
} pages;

/* error: sqrt(sum (x' - x)^2 / sum x^2), over all of a part. */
typedef struct expected {
    const char *file, *set;
    double error[2];
} expected;

static const expected table[] = {
    {"smollm2.kv", "f16", {0, 0}},
    {"smollm2.kv", "i8", {0.002845, 0.006392}},
    {"smollm2.kv", "fp8", {0.02184, 0.0248}},
    {"smollm2.kv", "k8v4", {0.002845, 0.08809}},
    {"smollm2.kv", "i4", {0.04292, 0.08809}},
    {"smollm2.kv", "i2", {0.1665, 0.3464}},
    {"smollm2.kv", "k:w4v,v:w4v", {0.08694, 0.08809}},
    {"smollm2.kv", "k:i4s,v:i4s", {0.1382, 0.1025}},
    {"gemma3.kv", "f16", {0, 0}},
    {"gemma3.kv", "i8", {0.003073, 0.01258}},
    {"gemma3.kv", "fp8", {0.02122, 0.02527}},
    {"gemma3.kv", "k8v4", {0.003073, 0.09059}},
    {"gemma3.kv", "i4", {0.04608, 0.09059}},
    {"gemma3.kv", "i2", {0.1807, 0.3443}},
    {"gemma3.kv", "k:w4v,v:w4v", {0.0835, 0.09059}},
    {"gemma3.kv", "k:i4s,v:i4s", {0.1594, 0.1333}},
};

static void read_pages(const char *folder, const char *name, pages *ret_pages) {
    char path[8192];
    unsigned layers, heads, tokens, dims[2];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    CHECK_MSG(file, "%s cannot be opened", path);
    CHECK(fscanf(file, "KV %u %u %u %u %u", &layers, &heads, &tokens, &dims[0], &dims[1]) == 5);
    CHECK_EQ(fgetc(file), '\n');
    kvt_geometry_init(&ret_pages->geometry, layers, heads, dims[0], tokens);
    ret_pages->geometry.head_dim[1] = dims[1];
    CHECK(kvt_geometry_check(&ret_pages->geometry, NULL, 0) == KVT_OK);
    for (int p = 0; p < 2; p++) {
        ret_pages->n[p] = (size_t)layers * heads * tokens * dims[p];
        ret_pages->part[p] = malloc(2 * ret_pages->n[p]);
        CHECK(ret_pages->part[p]);
    }
    for (unsigned layer = 0; layer < layers; layer++)
        for (int p = 0; p < 2; p++) {
            size_t n = ret_pages->n[p] / layers;
            CHECK(fread(ret_pages->part[p] + layer * n, 2, n, file) == n);
        }
    CHECK_EQ(fgetc(file), EOF);
    fclose(file);
}

static double relative_error(const uint16_t *x, const uint16_t *y, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double a = (double)kvt_float_of_half(x[i]), b = (double)kvt_float_of_half(y[i]);
        difference += (a - b) * (a - b);
        norm += a * a;
    }
    return sqrt(difference / norm);
}

static void pass(const pages *p, const char *set, double ret_error[2]) {
    const kvt_geometry *g = &p->geometry;
    kvt_page_shape shape;
    kvt_layout from, to;
    uint16_t *back[2] = {malloc(2 * p->n[0]), malloc(2 * p->n[1])};
    CHECK(back[0] && back[1]);
    CHECK(kvt_page_shape_init(g, 0, set, NULL, 0, &shape) == KVT_OK);
    size_t room = kvt_page_max_bytes(&shape), n_bytes;
    void *page = aligned_alloc(KVT_PAGE_ALIGN_BYTES, room);
    CHECK(page);
    kvt_layout_head_major(g, g->page_tokens, p->part[0], p->part[1], &from);
    kvt_layout_head_major(g, g->page_tokens, back[0], back[1], &to);
    CHECK(kvt_page_encode(&shape, g->page_tokens, &from, page, room, &n_bytes) == KVT_OK);
    CHECK(kvt_page_decode(&shape, page, n_bytes, 0, g->page_tokens, 0, g->n_layers, &to) == KVT_OK);
    for (int part = 0; part < 2; part++) {
        ret_error[part] = relative_error(p->part[part], back[part], p->n[part]);
        free(back[part]);
    }
    free(page);
}

int main(int argc, char **argv) {
    char folder[4096];
    const char *sources = getenv("KVT_SOURCE_DIR");
    snprintf(folder, sizeof folder, "%s/tests/kv", sources ? sources : ".");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const expected *e = &table[i];
        pages p;
        double error[2];
        read_pages(argc > 1 ? argv[1] : folder, e->file, &p);
        pass(&p, e->set, error);
        printf("    {\"%s\", \"%s\", {%.4g, %.4g}},\n", e->file, e->set, error[0], error[1]);
        for (int part = 0; part < 2; part++)
            CHECK_MSG(fabs(error[part] - e->error[part]) <= 1e-3 * e->error[part],
                      "%s, %s, part %d: error %g, was %g", e->file, e->set, part, error[part],
                      e->error[part]);
        free(p.part[0]);
        free(p.part[1]);
    }
    return 0;
}
