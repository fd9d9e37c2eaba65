/*
 * bench.c - what the kernels reach on a GPU: bytes moved a second (what is read and what is written
 * together) beside a device-to-device copy that moves as many bytes, measured in turns with it;
 * over 1 .. 256 pages a launch, since a single page is bound by the launch. Decoding reads the
 * encoded page and writes the elements; encoding reads the elements, writes the encoded page, and
 * reads that once more for its checksum.
 *
 *     bench [--json] [--smoke]
 *
 * --smoke: a few tiny pages, once, where no GPU is; only to see that the bench runs.
 */
#include "tests/cuda/kit.h"

enum { MAX_PAGES = 256, MAX_ROUNDS = 31, TARGET_PERCENT = 85, TARGET_PAGES = 64 };

typedef struct subject {
    const char *model;
    kvt_geometry geometry;
    const char *codec;
} subject;

typedef struct bench {
    int json, smoke, n_rounds;
    uint32_t max_pages;
    cudaStream_t stream;
    cudaEvent_t start, end;
    uint8_t *copy_from, *copy_to; /* as many bytes as the largest launch moves */
} bench;

typedef struct subject_state {
    subject s;
    kvt_page_shape shape;
    size_t raw_bytes, page_bytes, room_bytes; /* of one page: elements, encoded, reserved */
    kvt_layout kv;
    uint8_t *pages;
    kvt_cuda_write *writes;
    kvt_cuda_read *reads;
    kvt_cuda_result *results;
    uint32_t *status;
    kvt_cuda_page *plans;
    void *workspace;
    uint32_t n_pages; /* of the launch under way */
    size_t moved;     /* bytes by it */
} subject_state;

typedef void (*work)(bench *b, subject_state *s);

/* ------------------------------------------------------------------------------------------------
 * Timing
 * ---------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, ascending);
    return values[n / 2];
}

static double seconds_of(bench *b, subject_state *s, work w) {
    float ms;
    CUDA(cudaEventRecord(b->start, b->stream));
    w(b, s);
    CUDA(cudaEventRecord(b->end, b->stream));
    CUDA(cudaEventSynchronize(b->end));
    CUDA(cudaEventElapsedTime(&ms, b->start, b->end));
    return (double)ms / 1000;
}

static void do_encode(bench *b, subject_state *s) {
    CUDA(kvt_cuda_encode(&s->shape, s->writes, s->n_pages, &s->kv, s->results, s->workspace,
                         b->stream));
}

static void do_plan(bench *b, subject_state *s) {
    CUDA(kvt_cuda_plan(&s->shape, s->reads, s->n_pages, s->plans, s->status, b->stream));
}

static void do_decode(bench *b, subject_state *s) {
    CUDA(kvt_cuda_decode(&s->shape, s->plans, s->n_pages, 0, s->shape.n_layers, &s->kv, b->stream));
}

/* A copy of n bytes moves 2 n. */
static void do_copy(bench *b, subject_state *s) {
    CUDA(cudaMemcpyAsync(b->copy_to, b->copy_from, s->moved / 2, cudaMemcpyDeviceToDevice,
                         b->stream));
}

static void report(const bench *b, const subject_state *s, const char *what, double gb_s,
                   double copy_gb_s, double us) {
    char name[120];
    double ratio = gb_s / copy_gb_s,
           target = s->n_pages >= TARGET_PAGES ? TARGET_PERCENT / 100. : 0;
    int ok = ratio >= target;
    snprintf(name, sizeof name, "gpu %s %s %s, %u pages a launch", what, s->s.model, s->s.codec,
             s->n_pages);
    if (b->json) {
        printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"GB/s\",\"base\":\"device-to-device "
               "copy\",\"base_value\":%.6g,\"ratio\":%.4g,",
               name, gb_s, copy_gb_s, ratio);
        if (target > 0)
            printf("\"target\":\">= %.4g\",", target);
        else
            printf("\"target\":null,");
        printf("\"microseconds\":%.1f,\"ok\":%s}\n", us, ok ? "true" : "false");
    } else {
        printf("%-58s %8.1f GB/s %6.2f x copy (%.1f GB/s) %9.1f us%s\n", name, gb_s, ratio,
               copy_gb_s, us, target > 0 ? ok ? "  ok" : "  MISSED" : "");
    }
    fflush(stdout);
}

/* w and the copy in turns, medians. */
static void measure(bench *b, subject_state *s, const char *what, work w, size_t bytes_of_page) {
    double times[MAX_ROUNDS], copies[MAX_ROUNDS];
    s->moved = s->n_pages * bytes_of_page;
    w(b, s); /* warm */
    do_copy(b, s);
    for (int i = 0; i < b->n_rounds; i++) {
        times[i] = seconds_of(b, s, w);
        copies[i] = seconds_of(b, s, do_copy);
    }
    double moved = (double)s->moved / 1e9;
    double seconds = median(times, b->n_rounds), copy = median(copies, b->n_rounds);
    report(b, s, what, moved / seconds, moved / copy, seconds * 1e6);
}

/* ------------------------------------------------------------------------------------------------
 * Subjects
 * ---------------------------------------------------------------------------------------------- */

/* The worker's KV: [layer][token][head][dim], the pages' tokens side by side; numbers as keys have
 * them, made once for the first page and repeated. */
static void open_kv(subject_state *s, uint32_t max_pages) {
    kvt_geometry *g = &s->s.geometry;
    kv_kit kit = kv_new(g, g->n_layers, g->page_tokens, KV_TOKEN_MAJOR);
    uint64_t seed = 1;
    kit_fill(&kit, KIT_CHANNELS, &seed);
    size_t n_tokens = (size_t)max_pages * g->page_tokens;
    void *part[2];
    for (int p = 0; p < 2; p++)
        part[p] = device_new(kit.bytes[p] * max_pages);
    kvt_layout_token_major(g, n_tokens, part[0], part[1], &s->kv);
    for (int p = 0; p < 2; p++) {
        size_t layer_bytes = kit.bytes[p] / g->n_layers;
        for (uint32_t l = 0; l < g->n_layers; l++)
            for (uint32_t i = 0; i < max_pages; i++)
                CUDA(cudaMemcpy((uint8_t *)part[p] + (l * max_pages + i) * layer_bytes,
                                (uint8_t *)kit.layout.part[p] + l * layer_bytes, layer_bytes,
                                cudaMemcpyHostToDevice));
        s->raw_bytes += kit.bytes[p];
    }
    kv_free(&kit);
}

static void subject_open(subject_state *s, const subject *which, uint32_t max_pages) {
    memset(s, 0, sizeof *s);
    s->s = *which;
    char why[200];
    kvt_status status =
        kvt_page_shape_init(&s->s.geometry, 0, s->s.codec, why, sizeof why, &s->shape);
    CHECK_MSG(status == KVT_OK, "%s", why);
    open_kv(s, max_pages);
    uint32_t tokens = s->s.geometry.page_tokens;
    s->page_bytes = kvt_page_bytes(&s->shape, tokens);
    s->room_bytes = s->page_bytes; /* nothing here is refused */
    s->pages = device_new(max_pages * s->room_bytes);
    s->writes = pinned_new(max_pages * sizeof *s->writes);
    s->reads = pinned_new(max_pages * sizeof *s->reads);
    s->results = pinned_new(max_pages * sizeof *s->results);
    s->status = pinned_new(sizeof *s->status);
    s->plans = device_new(max_pages * sizeof *s->plans);
    s->workspace = device_new(kvt_cuda_workspace_bytes(&s->shape, max_pages));
    *s->status = KVT_OK;
    for (uint32_t i = 0; i < max_pages; i++) {
        kvt_cuda_write write = {.page = s->pages + i * s->room_bytes,
                                .room_bytes = s->room_bytes,
                                .token = (uint64_t)i * tokens,
                                .rows = tokens};
        kvt_cuda_read read = {write.page, s->page_bytes, 0, tokens, write.token};
        s->writes[i] = write;
        s->reads[i] = read;
    }
}

static void subject_close(subject_state *s) {
    device_kv_free(&s->kv);
    CUDA(cudaFree(s->pages));
    CUDA(cudaFree(s->plans));
    CUDA(cudaFree(s->workspace));
    CUDA(cudaFreeHost(s->writes));
    CUDA(cudaFreeHost(s->reads));
    CUDA(cudaFreeHost(s->results));
    CUDA(cudaFreeHost(s->status));
}

static void run_subject(bench *b, const subject *which) {
    subject_state s;
    subject_open(&s, which, b->max_pages);
    for (s.n_pages = 1; s.n_pages <= b->max_pages; s.n_pages *= 4) {
        measure(b, &s, "encode", do_encode, s.raw_bytes + 2 * s.page_bytes);
        do_plan(b, &s);
        measure(b, &s, "decode", do_decode, s.raw_bytes + s.page_bytes);
    }
    CUDA(cudaStreamSynchronize(b->stream));
    CHECK_EQ(*s.status, KVT_OK);
    for (uint32_t i = 0; i < b->max_pages; i++)
        CHECK_EQ(s.results[i].status, KVT_OK);
    subject_close(&s);
}

static subject llama(const bench *b, const char *codec) {
    subject s = {"Llama-3-8B", {0}, codec};
    kvt_geometry_init(&s.geometry, b->smoke ? 2 : 32, b->smoke ? 1 : 8, 128, b->smoke ? 16 : 64);
    return s;
}

static subject deepseek(const bench *b, const char *codec) {
    subject s = {"DeepSeek-V3", {0}, codec};
    kvt_geometry_init(&s.geometry, b->smoke ? 1 : 61, 1, 512, b->smoke ? 16 : 64);
    s.geometry.kind = KVT_MLA;
    s.geometry.head_dim[1] = 64;
    s.geometry.dtype = KVT_BF16;
    return s;
}

int main(int argc, char **argv) {
    static const char *const sets[] = {"f16", "fp8", "i8", "k8v4", "i4", "i2", "i4s"};
    static const char *const mla_sets[] = {"i8", "i4"};
    bench b = {0};
    for (int i = 1; i < argc; i++) {
        b.json |= strcmp(argv[i], "--json") == 0;
        b.smoke |= strcmp(argv[i], "--smoke") == 0;
    }
    b.n_rounds = b.smoke ? 1 : MAX_ROUNDS;
    b.max_pages = b.smoke ? 4 : MAX_PAGES;
    CUDA(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&b.start, cudaEventDefault));
    CUDA(cudaEventCreateWithFlags(&b.end, cudaEventDefault));
    subject largest = llama(&b, "f16"); /* raw: the most bytes that a launch moves */
    kvt_page_shape shape;
    CHECK(kvt_page_shape_init(&largest.geometry, 0, "f16", NULL, 0, &shape) == KVT_OK);
    size_t bytes = 2 * b.max_pages * kvt_page_bytes(&shape, shape.page_tokens);
    b.copy_from = device_new(bytes);
    b.copy_to = device_new(bytes);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        subject s = llama(&b, sets[i]);
        run_subject(&b, &s);
    }
    for (size_t i = 0; i < sizeof mla_sets / sizeof mla_sets[0]; i++) {
        subject s = deepseek(&b, mla_sets[i]);
        run_subject(&b, &s);
    }
    CUDA(cudaFree(b.copy_from));
    CUDA(cudaFree(b.copy_to));
    CUDA(cudaEventDestroy(b.start));
    CUDA(cudaEventDestroy(b.end));
    CUDA(cudaStreamDestroy(b.stream));
    return 0;
}
