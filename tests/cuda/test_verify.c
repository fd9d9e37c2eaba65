/* The checksums of pages that are read in several pieces (kvt_cuda_verify with firsts), and of more
 * pages than one launch takes. */
#include "tests/cuda/kit.h"

enum { ROWS = 8, PAGES = 5, ONE_LAUNCH = 65535, MANY = ONE_LAUNCH + 3 };

typedef struct bench {
    kvt_page_shape shape;
    uint8_t *pages; /* device memory; each page a multiple of 64 bytes */
    uint32_t page_bytes;
    kvt_cuda_read *reads; /* [MANY] */
    kvt_cuda_page *plans; /* device memory, [MANY] */
    uint32_t *firsts, *status;
    void *workspace;
} bench;

static void bench_open(bench *b) {
    kvt_geometry g;
    uint64_t seed = 8;
    size_t bytes;
    kvt_geometry_init(&g, 1, 1, 32, ROWS);
    CHECK_EQ(kvt_page_shape_init(&g, 0, "f16", NULL, 0, &b->shape), KVT_OK);
    size_t room = kvt_page_max_bytes(&b->shape);
    uint8_t *page = page_new(room);
    kv_kit kit = kv_new(&g, 1, ROWS, KV_TOKEN_MAJOR);
    kit_fill(&kit, KIT_BITS, &seed);
    CHECK_EQ(kvt_page_encode(&b->shape, ROWS, &kit.layout, page, room, &bytes), KVT_OK);
    b->page_bytes = (uint32_t)bytes;
    b->pages = device_new(PAGES * room);
    for (uint32_t i = 0; i < PAGES; i++)
        CUDA(cudaMemcpy(b->pages + i * bytes, page, bytes, cudaMemcpyHostToDevice));
    b->reads = pinned_new(MANY * sizeof *b->reads);
    b->firsts = pinned_new((PAGES + 1) * sizeof *b->firsts);
    b->status = pinned_new(sizeof *b->status);
    b->plans = device_new(MANY * sizeof *b->plans);
    b->workspace = device_new(kvt_cuda_workspace_bytes(&b->shape, MANY));
    kv_free(&kit);
    free(page);
}

static void bench_close(bench *b) {
    CUDA(cudaFree(b->pages));
    CUDA(cudaFree(b->plans));
    CUDA(cudaFree(b->workspace));
    CUDA(cudaFreeHost(b->reads));
    CUDA(cudaFreeHost(b->firsts));
    CUDA(cudaFreeHost(b->status));
}

static void damage(bench *b, uint32_t page) {
    uint8_t byte;
    uint8_t *at = b->pages + page * b->page_bytes + b->page_bytes - 1;
    device_read(&byte, at, 1);
    byte ^= 1;
    CUDA(cudaMemcpy(at, &byte, 1, cudaMemcpyHostToDevice));
}

static kvt_status look(bench *b, uint32_t n_reads, const uint32_t *firsts, uint32_t n_pages) {
    *b->status = KVT_OK;
    CUDA(kvt_cuda_plan(&b->shape, b->reads, n_reads, b->plans, b->status, NULL));
    CUDA(kvt_cuda_verify(&b->shape, b->plans, firsts, n_pages, b->status, b->workspace, NULL));
    CUDA(cudaStreamSynchronize(NULL));
    return (kvt_status)*b->status;
}

/* Page i in i + 1 pieces, of which some are empty. */
static void test_pieces(bench *b) {
    uint32_t n = 0;
    kvt_cuda_page plan;
    for (uint32_t i = 0; i < PAGES; i++) {
        b->firsts[i] = n;
        for (uint32_t piece = 0; piece <= i; piece++, n++)
            b->reads[n] = (kvt_cuda_read){.page = b->pages + i * b->page_bytes,
                                          .page_bytes = b->page_bytes,
                                          .first_row = piece,
                                          .n_rows = piece % 3,
                                          .token = n};
    }
    b->firsts[PAGES] = n;
    CHECK_EQ(look(b, n, b->firsts, PAGES), KVT_OK);
    for (uint32_t bad = 0; bad < PAGES; bad++) {
        damage(b, bad);
        CHECK_EQ(look(b, n, b->firsts, PAGES), KVT_ECORRUPT);
        for (uint32_t i = 0; i < n; i++) {
            int is_bad = i >= b->firsts[bad] && i < b->firsts[bad + 1];
            device_read(&plan, b->plans + i, sizeof plan);
            CHECK_MSG(plan.status == (is_bad ? KVT_ECORRUPT : KVT_OK) &&
                          plan.n_rows == (is_bad ? 0 : b->reads[i].n_rows),
                      "page %u is damaged: read %u has status %u and %u rows", bad, i, plan.status,
                      plan.n_rows);
        }
        damage(b, bad); /* mends it */
    }
}

/* The pages of the second launch are looked at, and are its own. */
static void test_many(bench *b) {
    for (uint32_t i = 0; i < MANY; i++)
        b->reads[i] =
            (kvt_cuda_read){.page = b->pages, .page_bytes = b->page_bytes, .n_rows = 1, .token = i};
    b->reads[ONE_LAUNCH].page = b->pages + b->page_bytes;
    damage(b, 1);
    CHECK_EQ(look(b, MANY, NULL, MANY), KVT_ECORRUPT);
    for (uint32_t i = ONE_LAUNCH - 1; i < MANY; i++) {
        kvt_cuda_page plan;
        device_read(&plan, b->plans + i, sizeof plan);
        CHECK_EQ(plan.status, i == ONE_LAUNCH ? KVT_ECORRUPT : KVT_OK);
    }
}

int main(void) {
    bench b;
    bench_open(&b);
    test_pieces(&b);
    test_many(&b);
    bench_close(&b);
    return 0;
}
