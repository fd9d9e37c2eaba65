/*
 * The kernels against the C reference: every codec, the usual head dims and some odd ones, f16 and
 * bf16, short pages, segments, copy-on-write, fallback, all layouts, transcoding, checksums; bytes
 * when encoding, bits when decoding. Run on a CPU (emulated, under three schedules) and on a GPU.
 *
 *     test_kernels [--schedule 0|1|2] [--small] [--wide] [--seed N] [--cases N]
 *
 * --small: few threads and rows, for ThreadSanitizer. --wide: many slices of a page that falls
 * back.
 */
#include <xxhash.h>

#include "kernels/cpu.h"
#include "tests/cuda/kit.h"
#ifndef KVT_REAL_CUDA
#include "tests/cuda/emu.h"
#include "tests/cuda/fake_cuda.h"
#endif

typedef struct test_case {
    kvt_geometry geometry;
    const char *codec;
    kit_data data;
    kv_style style;
    uint32_t last_rows; /* of the last page */
    uint32_t firsts;    /* bit i: page i is the first of its path */
} test_case;

enum { N_PAGES = 2, POISON = 0x5a };

static uint64_t seed = 1;
static char label[240]; /* of the case under way, for failures */

#define WANT(condition) CHECK_MSG(condition, "%s", label)

/* ------------------------------------------------------------------------------------------------
 * Pages on the host, by the reference
 * ---------------------------------------------------------------------------------------------- */

typedef struct host_page {
    uint8_t *bytes;
    size_t n_bytes;
    uint32_t rows;
} host_page;

static host_page host_page_new(const kvt_page_shape *shape) {
    host_page page = {page_new(kvt_page_max_bytes(shape)), 0, 0};
    return page;
}

static void shift(kvt_layout *layout, uint32_t tokens) {
    for (int p = 0; p < 2; p++)
        layout->part[p] = (uint8_t *)layout->part[p] + tokens * layout->token_stride_bytes[p];
}

static kvt_status reference_encode(const kvt_page_shape *shape, const host_page *keep,
                                   uint32_t keep_rows, uint32_t rows, const kv_kit *kit,
                                   uint32_t token, int is_first, host_page *page) {
    kvt_layout from = kit->layout;
    shift(&from, token);
    page->rows = rows;
    return kvt_page_encode_cow(shape, keep ? keep->bytes : NULL, keep ? keep->n_bytes : 0,
                               keep_rows, rows, &from, is_first, page->bytes,
                               kvt_page_max_bytes(shape), &page->n_bytes);
}

/* ------------------------------------------------------------------------------------------------
 * The same on the device
 * ---------------------------------------------------------------------------------------------- */

typedef struct bench {
    test_case c;
    kvt_page_shape shape;
    kv_kit kit;    /* the worker's KV on the host */
    kvt_layout kv; /* and on the device */
    cudaStream_t stream;
    size_t max_bytes;
    uint8_t *pages; /* device: N_PAGES of max_bytes */
    void *workspace;
    kvt_cuda_write *writes; /* pinned, as are the other arrays */
    kvt_cuda_result *results;
    kvt_cuda_read *reads;
    uint32_t *status;
    kvt_cuda_page *plans; /* device */
} bench;

static void bench_open(bench *b, const test_case *c) {
    memset(b, 0, sizeof *b);
    b->c = *c;
    char why[200];
    kvt_status status = kvt_page_shape_init(&c->geometry, 0, c->codec, why, sizeof why, &b->shape);
    CHECK_MSG(status == KVT_OK, "%s: %s", label, why);
    uint32_t n_tokens = (N_PAGES - 1) * c->geometry.page_tokens + c->last_rows;
    b->kit = kv_new(&c->geometry, c->geometry.n_layers, n_tokens, c->style);
    kit_fill(&b->kit, c->data, &seed);
    b->kv = device_kv_of(&b->kit);
    CUDA(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    b->max_bytes = kvt_page_max_bytes(&b->shape);
    b->pages = device_new(N_PAGES * b->max_bytes);
    CUDA(cudaMemset(b->pages, POISON, N_PAGES * b->max_bytes));
    b->workspace = device_new(kvt_cuda_workspace_bytes(&b->shape, N_PAGES));
    b->writes = pinned_new(N_PAGES * sizeof *b->writes);
    b->results = pinned_new(N_PAGES * sizeof *b->results);
    b->reads = pinned_new(N_PAGES * sizeof *b->reads);
    b->status = pinned_new(sizeof *b->status);
    b->plans = device_new(N_PAGES * sizeof *b->plans);
    *b->status = KVT_OK;
}

static void bench_close(bench *b) {
    CUDA(cudaStreamSynchronize(b->stream));
    CUDA(cudaStreamDestroy(b->stream));
    CUDA(cudaFree(b->pages));
    CUDA(cudaFree(b->workspace));
    CUDA(cudaFree(b->plans));
    CUDA(cudaFreeHost(b->writes));
    CUDA(cudaFreeHost(b->results));
    CUDA(cudaFreeHost(b->reads));
    CUDA(cudaFreeHost(b->status));
    device_kv_free(&b->kv);
    kv_free(&b->kit);
}

static uint32_t rows_of(const bench *b, uint32_t page) {
    return page + 1 < N_PAGES ? b->c.geometry.page_tokens : b->c.last_rows;
}

static int is_first(const bench *b, uint32_t page) {
    return (int)(b->c.firsts >> page & 1);
}

static uint8_t *device_page(const bench *b, uint32_t page) {
    return b->pages + page * b->max_bytes;
}

static void set_write(bench *b, uint32_t page, uint32_t rows) {
    kvt_cuda_write write = {0};
    write.page = device_page(b, page);
    write.room_bytes = b->max_bytes;
    write.token = (uint64_t)page * b->c.geometry.page_tokens;
    write.rows = rows;
    write.is_first = (uint32_t)is_first(b, page);
    b->writes[page] = write;
}

static void run_encode(bench *b, uint32_t n) {
    CUDA(kvt_cuda_encode(&b->shape, b->writes, n, &b->kv, b->results, b->workspace, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
}

/* The device's page is, byte for byte, the reference's, and nothing was written behind it (a
 * segment that is refused may have been longer before it became raw). */
static void expect_page(const bench *b, uint32_t page, const host_page *expected) {
    WANT(b->results[page].status == KVT_OK);
    WANT(b->results[page].bytes == expected->n_bytes);
    uint8_t *got = page_new(b->max_bytes);
    device_read(got, device_page(b, page), b->max_bytes);
    for (size_t j = 0; j < expected->n_bytes;
         j++) { /* the payload first: the header holds its hash */
        size_t i = (j + KVT_PAGE_HEADER_BYTES) % expected->n_bytes;
        CHECK_MSG(got[i] == expected->bytes[i], "%s: page %u, byte %zu of %zu: %02x, not %02x",
                  label, page, i, expected->n_bytes, got[i], expected->bytes[i]);
    }
    for (size_t i = expected->n_bytes; i < b->max_bytes && b->c.data != KIT_REFUSED; i++)
        CHECK_MSG(got[i] == POISON, "%s: page %u, byte %zu was written", label, page, i);
    free(got);
}

/* ------------------------------------------------------------------------------------------------
 * What is tested, case by case
 * ---------------------------------------------------------------------------------------------- */

static void test_encode(bench *b, host_page *ret_pages) {
    for (uint32_t i = 0; i < N_PAGES; i++) {
        ret_pages[i] = host_page_new(&b->shape);
        WANT(reference_encode(&b->shape, NULL, 0, rows_of(b, i), &b->kit,
                              i * b->c.geometry.page_tokens, is_first(b, i),
                              &ret_pages[i]) == KVT_OK);
        set_write(b, i, rows_of(b, i));
    }
    run_encode(b, N_PAGES);
    for (uint32_t i = 0; i < N_PAGES; i++)
        expect_page(b, i, &ret_pages[i]);
}

static void plan(bench *b, uint32_t n) {
    CUDA(kvt_cuda_plan(&b->shape, b->reads, n, b->plans, b->status, b->stream));
    CUDA(kvt_cuda_verify(&b->shape, b->plans, NULL, n, b->status, b->workspace, b->stream));
}

/* Decodes the planned rows on the device; on the host what b->reads say, of the same bytes. */
static void expect_decoded(bench *b, uint8_t *const *host_pages, uint32_t n_tokens,
                           uint32_t first_layer, kv_style style) {
    uint32_t n_layers = b->shape.n_layers - first_layer;
    kv_kit expected = kv_new(&b->c.geometry, n_layers, n_tokens, style);
    kv_kit got = kv_new(&b->c.geometry, n_layers, n_tokens, style);
    kvt_layout to = device_kv_of(&got);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        const kvt_cuda_read *read = &b->reads[i];
        kvt_layout host_to = expected.layout;
        shift(&host_to, (uint32_t)read->token);
        WANT(kvt_page_decode(&b->shape, host_pages[i], read->page_bytes, read->first_row,
                             read->n_rows, first_layer, n_layers, &host_to) == KVT_OK);
    }
    plan(b, N_PAGES);
    CUDA(kvt_cuda_decode(&b->shape, b->plans, N_PAGES, first_layer, n_layers, &to, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    WANT(*b->status == KVT_OK);
    device_kv_read(&to, &got);
    for (int p = 0; p < 2; p++)
        CHECK_MSG(memcmp(got.layout.part[p], expected.layout.part[p], got.bytes[p]) == 0,
                  "%s: decoded from layer %u, part %d", label, first_layer, p);
    kv_free(&expected);
    kv_free(&got);
}

/* Rows [first, first + n) of every page, page i's rows to tokens i * n .. of a layout of another
 * style. */
static void test_decode(bench *b, const host_page *pages, uint32_t first, uint32_t n,
                        uint32_t first_layer, kv_style style) {
    uint8_t *bytes[N_PAGES];
    for (uint32_t i = 0; i < N_PAGES; i++) {
        uint32_t rows = pages[i].rows > first ? pages[i].rows - first : 0;
        rows = rows < n ? rows : n;
        kvt_cuda_read read = {device_page(b, i), pages[i].n_bytes, rows ? first : 0, rows, i * n};
        b->reads[i] = read;
        bytes[i] = pages[i].bytes;
    }
    expect_decoded(b, bytes, N_PAGES * n, first_layer, style);
}

/* Pages that grow and diverge: two more segments, each time from another page. Of a path's first
 * page two rows are kept: two more are raw, and that makes the segments one more. */
static void test_cow(bench *b, host_page *pages) {
    uint32_t tokens = b->c.geometry.page_tokens, cuts[3] = {1 + tokens / 3, tokens / 2 + 3, tokens};
    host_page grown = host_page_new(&b->shape), before = host_page_new(&b->shape);
    uint8_t *device_before = device_new(b->max_bytes);
    memcpy(before.bytes, pages[0].bytes, pages[0].n_bytes);
    before.n_bytes = pages[0].n_bytes;
    int first = is_first(b, 0);
    for (int i = 0; i < (first ? 2 : 3); i++) {
        uint32_t keep = i > 0 ? cuts[i - 1] : first ? 2 : cuts[0] - 1, rows = cuts[i];
        memset(grown.bytes, POISON, b->max_bytes);
        WANT(reference_encode(&b->shape, &before, keep, rows, &b->kit, 0, first, &grown) == KVT_OK);
        CUDA(cudaMemcpy(device_before, before.bytes, before.n_bytes, cudaMemcpyHostToDevice));
        CUDA(cudaMemset(device_page(b, 0), POISON, b->max_bytes));
        set_write(b, 0, rows);
        b->writes[0].keep_rows = keep;
        b->writes[0].keep = device_before;
        b->writes[0].keep_bytes = before.n_bytes;
        run_encode(b, 1);
        expect_page(b, 0, &grown);
        host_page swap = before;
        before = grown;
        grown = swap;
    }
    /* The page of several segments is decoded, and cut to rows that end within a segment. */
    memcpy(pages[0].bytes, before.bytes, before.n_bytes);
    pages[0].n_bytes = before.n_bytes;
    pages[0].rows = before.rows;
    CUDA(cudaMemcpy(device_before, before.bytes, before.n_bytes, cudaMemcpyHostToDevice));
    uint32_t keep = cuts[0] + 1;
    WANT(reference_encode(&b->shape, &before, keep, keep, &b->kit, 0, 0, &grown) == KVT_OK);
    CUDA(cudaMemset(device_page(b, 1), POISON, b->max_bytes));
    set_write(b, 1, keep);
    b->writes[0] = b->writes[1];
    b->writes[0].keep_rows = keep;
    b->writes[0].keep = device_before;
    b->writes[0].keep_bytes = before.n_bytes;
    run_encode(b, 1);
    b->results[1] = b->results[0];
    expect_page(b, 1, &grown);
    memcpy(pages[1].bytes, grown.bytes, grown.n_bytes);
    pages[1].n_bytes = grown.n_bytes;
    pages[1].rows = grown.rows;
    CUDA(cudaFree(device_before));
    free(grown.bytes);
    free(before.bytes);
}

/* Does one of the case's codecs lose bits, so that first rows are kept? */
static int loses_bits(const bench *b) {
    return strcmp(b->c.codec, "f16") != 0 && !strstr(b->c.codec, "fp8s");
}

/* Five segments: all anew, raw, from the layout; and a layout that is cut into blocks. */
static void test_raw_and_blocks(bench *b) {
    uint32_t tokens = b->c.geometry.page_tokens, block_rows = 1 + check_below(&seed, tokens);
    uint32_t n_blocks = (tokens + block_rows - 1) / block_rows;
    host_page page = host_page_new(&b->shape), next = host_page_new(&b->shape);
    host_page kept = host_page_new(&b->shape);
    uint8_t *device_keep = device_new(b->max_bytes);
    /* Of a path's first page the rows that are new are two segments. */
    uint32_t rows = 1, full = KVT_PAGE_MAX_SEGMENTS;
    full -= is_first(b, 1) && loses_bits(b);
    WANT(reference_encode(&b->shape, NULL, 0, rows, &b->kit, 0, 0, &page) == KVT_OK);
    for (; rows < full; rows++) {
        WANT(reference_encode(&b->shape, &page, rows, rows + 1, &b->kit, 0, 0, &next) == KVT_OK);
        host_page swap = page;
        page = next;
        next = swap;
    }
    memcpy(kept.bytes, page.bytes, page.n_bytes);
    kept.n_bytes = page.n_bytes;
    CUDA(cudaMemcpy(device_keep, page.bytes, page.n_bytes, cudaMemcpyHostToDevice));
    /* Block i stands where token (n_blocks - 1 - i) * block_rows was: all of the second page. */
    kv_kit shuffled =
        kv_new(&b->c.geometry, b->c.geometry.n_layers, n_blocks * block_rows, b->c.style);
    uint64_t *table = device_new(n_blocks * sizeof *table), host_table[128];
    for (uint32_t i = 0; i < n_blocks; i++)
        host_table[i] = (uint64_t)(n_blocks - 1 - i) * block_rows;
    for (int p = 0; p < 2; p++)
        for (uint32_t l = 0; l < b->kit.n_layers; l++)
            for (uint32_t h = 0; h < b->c.geometry.n_kv_heads; h++)
                for (uint32_t t = 0; t < tokens; t++)
                    memcpy(kv_row(&shuffled, p, l, h,
                                  (uint32_t)host_table[t / block_rows] + t % block_rows),
                           kv_row(&b->kit, p, l, h, t), 2 * (size_t)b->c.geometry.head_dim[p]);
    CUDA(cudaMemcpy(table, host_table, n_blocks * sizeof *table, cudaMemcpyHostToDevice));
    kvt_layout kv = device_kv_of(&shuffled);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        set_write(b, i, tokens);
        b->writes[i].token = 0;
        b->writes[i].blocks = table;
        b->writes[i].block_rows = block_rows;
    }
    b->writes[1].keep_rows = rows;
    b->writes[1].keep = device_keep;
    b->writes[1].keep_bytes = page.n_bytes;
    for (uint32_t or_raw = 0; or_raw < 2; or_raw++) {
        b->writes[1].or_raw = or_raw;
        CUDA(kvt_cuda_encode(&b->shape, b->writes, N_PAGES, &kv, b->results, b->workspace,
                             b->stream));
        CUDA(cudaStreamSynchronize(b->stream));
        WANT(b->results[1].status == (or_raw ? KVT_OK : KVT_ELIMIT));
    }
    WANT(reference_encode(&b->shape, NULL, 0, tokens, &b->kit, 0, is_first(b, 0), &page) == KVT_OK);
    CUDA(cudaMemset(device_page(b, 0) + b->results[0].bytes, POISON,
                    b->max_bytes - b->results[0].bytes));
    expect_page(b, 0, &page);
    WANT(kvt_page_encode_raw(&b->shape, kept.bytes, kept.n_bytes, tokens, &b->kit.layout,
                             next.bytes, kvt_page_max_bytes(&b->shape), &next.n_bytes) == KVT_OK);
    CUDA(cudaMemset(device_page(b, 1) + b->results[1].bytes, POISON,
                    b->max_bytes - b->results[1].bytes));
    expect_page(b, 1, &next);
    kv_free(&shuffled);
    device_kv_free(&kv);
    CUDA(cudaFree(table));
    CUDA(cudaFree(device_keep));
    free(kept.bytes);
    free(page.bytes);
    free(next.bytes);
}

/* What kvt_cuda_transcode does not take: decoded into work space and encoded from it. */
static void transcode_in_steps(bench *b, const kvt_page_shape *target, const host_page *pages,
                               void *workspace) {
    kv_kit kit = kv_new(&b->c.geometry, b->shape.n_layers, N_PAGES * b->c.geometry.page_tokens,
                        KV_HEAD_MAJOR);
    kvt_layout kv = device_kv_of(&kit);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        WANT(b->results[i].status == KVT_ENOTSUP);
        b->reads[i].token = b->writes[i].token = (uint64_t)i * pages[0].rows;
    }
    plan(b, N_PAGES);
    CUDA(kvt_cuda_decode(&b->shape, b->plans, N_PAGES, 0, b->shape.n_layers, &kv, b->stream));
    CUDA(kvt_cuda_encode(target, b->writes, N_PAGES, &kv, b->results, workspace, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    device_kv_free(&kv);
    kv_free(&kit);
}

/* To i4: at once where the page holds nothing that was coded in few bits, else in steps. */
static void test_transcode(bench *b, const host_page *pages) {
    kvt_page_shape target;
    const char *codec = b->c.geometry.kind == KVT_MLA ? "latent:w4v,rope:i8v" : "i4";
    CHECK(kvt_page_shape_init(&b->c.geometry, 0, codec, NULL, 0, &target) == KVT_OK);
    int few = 0;
    for (uint32_t i = 0; i < b->shape.n_ranges; i++)
        for (int p = 0; p < 2; p++) {
            uint8_t c = b->shape.ranges[i].codec[p];
            few |= c != KVT_CODEC_RAW16 && c != KVT_CODEC_I8K && c != KVT_CODEC_I8V;
        }
    size_t room = kvt_page_max_bytes(&target);
    uint8_t *device = device_new(N_PAGES * room);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        kvt_cuda_read read = {device_page(b, i), pages[i].n_bytes, 0, pages[i].rows, 0};
        kvt_cuda_write write = {.page = device + i * room,
                                .room_bytes = room,
                                .rows = pages[i].rows,
                                .is_first = (uint32_t)is_first(b, i)};
        b->reads[i] = read;
        b->writes[i] = write;
    }
    plan(b, N_PAGES);
    void *workspace = device_new(kvt_cuda_workspace_bytes(&target, N_PAGES));
    CUDA(kvt_cuda_transcode(&target, b->plans, b->writes, N_PAGES, b->results, workspace,
                            b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    void *elements = page_new(kvt_page_elements_bytes(&b->shape));
    uint8_t *expected[N_PAGES], *got = page_new(room);
    if (few)
        transcode_in_steps(b, &target, pages, workspace);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        size_t n_bytes = 0;
        expected[i] = page_new(room);
        WANT(b->results[i].status == KVT_OK);
        WANT(kvt_page_transcode(&target, pages[i].bytes, pages[i].n_bytes, is_first(b, i), elements,
                                expected[i], room, &n_bytes) == KVT_OK);
        WANT(b->results[i].bytes == n_bytes);
        device_read(got, device + i * room, room);
        WANT(memcmp(got, expected[i], n_bytes) == 0);
        /* It is a page of the same realm as before: its header decides how it is decoded. */
        kvt_cuda_read read = {device + i * room, n_bytes, 0, pages[i].rows, i * pages[0].rows};
        b->reads[i] = read;
    }
    expect_decoded(b, expected, 2 * b->c.geometry.page_tokens, 0, KV_TOKEN_MAJOR);
    for (uint32_t i = 0; i < N_PAGES; i++)
        free(expected[i]);
    free(got);
    free(elements);
    CUDA(cudaFree(workspace));
    CUDA(cudaFree(device));
}

/* Whole pages, side by side, in one launch. */
static void test_copy(bench *b, const host_page *pages) {
    kvt_cuda_copy_run *runs = pinned_new(N_PAGES * sizeof *runs);
    uint8_t *copies = device_new(N_PAGES * b->max_bytes), *got = page_new(b->max_bytes);
    CUDA(cudaMemset(copies, POISON, N_PAGES * b->max_bytes));
    for (uint32_t i = 0; i < N_PAGES; i++) {
        kvt_cuda_copy_run run = {copies + i * b->max_bytes, device_page(b, i), pages[i].n_bytes};
        runs[i] = run;
    }
    CUDA(kvt_cuda_copy(runs, N_PAGES, b->max_bytes, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    for (uint32_t i = 0; i < N_PAGES; i++) {
        device_read(got, copies + i * b->max_bytes, b->max_bytes);
        WANT(memcmp(got, pages[i].bytes, pages[i].n_bytes) == 0);
        for (size_t at = pages[i].n_bytes; at < b->max_bytes; at++)
            WANT(got[at] == POISON);
    }
    free(got);
    CUDA(cudaFree(copies));
    CUDA(cudaFreeHost(runs));
}

/* Several pages of a plan are wrong at once: one status for all, none of their rows. */
static void test_all_wrong(bench *b, const host_page *pages) {
    for (uint32_t i = 0; i < N_PAGES; i++) {
        kvt_cuda_read read = {device_page(b, i), pages[i].n_bytes, pages[i].rows, 1, 0};
        b->reads[i] = read;
    }
    plan(b, N_PAGES);
    CUDA(cudaStreamSynchronize(b->stream));
    WANT(*b->status == KVT_EINVAL);
    *b->status = KVT_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Refusals: what the device's header reader says is what the host's says
 * ---------------------------------------------------------------------------------------------- */

/* A header with another byte and a hash that fits, or one that does not. */
static void forge(uint8_t *page, uint32_t at, uint8_t value, int rehash) {
    page[at] = value;
    if (rehash) {
        memset(page + 24, 0, 8);
        uint64_t hash = XXH3_64bits(page, KVT_PAGE_HEADER_BYTES);
        memcpy(page + 24, &hash, sizeof hash);
    }
}

static void test_headers(bench *b, const host_page *pages) {
    enum { VALUES = 6 };
    uint32_t n = KVT_PAGE_HEADER_BYTES * VALUES;
    size_t bytes = pages[0].n_bytes;
    uint8_t *forged = page_new(bytes);
    uint8_t *device = device_new(bytes), *headers = device_new((size_t)n * KVT_PAGE_HEADER_BYTES);
    uint8_t *host_headers = malloc((size_t)n * KVT_PAGE_HEADER_BYTES);
    uint32_t *expected = malloc(n * sizeof *expected);
    kvt_cuda_read *reads = pinned_new(n * sizeof *reads);
    kvt_cuda_page *plans = device_new(n * sizeof *plans), *got = malloc(n * sizeof *got);
    for (uint32_t i = 0; i < n; i++) {
        static const uint8_t flips[3] = {0x01, 0x80, 0xff};
        uint32_t at = i / VALUES, v = i % VALUES, ignored;
        memcpy(forged, pages[0].bytes, bytes);
        forge(forged, at, (uint8_t)(v == 4 ? 0 : v == 5 ? 11 : forged[at] ^ flips[v % 3]), v > 0);
        expected[i] = kvt_page_check(&b->shape, forged, bytes, 0, &ignored);
        memcpy(host_headers + (size_t)i * KVT_PAGE_HEADER_BYTES, forged, KVT_PAGE_HEADER_BYTES);
        kvt_cuda_read read = {headers + (size_t)i * KVT_PAGE_HEADER_BYTES, bytes, 0, 1, 0};
        reads[i] = read;
    }
    CUDA(cudaMemcpy(headers, host_headers, (size_t)n * KVT_PAGE_HEADER_BYTES,
                    cudaMemcpyHostToDevice));
    CUDA(kvt_cuda_plan(&b->shape, reads, n, plans, NULL, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    device_read(got, plans, n * sizeof *got);
    for (uint32_t i = 0; i < n; i++)
        CHECK_MSG(got[i].status == expected[i], "%s: header byte %u, case %u: %u, not %u", label,
                  i / VALUES, i % VALUES, got[i].status, expected[i]);
    CUDA(cudaFree(device));
    CUDA(cudaFree(headers));
    CUDA(cudaFree(plans));
    CUDA(cudaFreeHost(reads));
    free(forged);
    free(host_headers);
    free(expected);
    free(got);
}

static void expect_status(bench *b, kvt_cuda_read read, kvt_status status) {
    b->reads[0] = read;
    *b->status = KVT_OK;
    plan(b, 1);
    CUDA(cudaStreamSynchronize(b->stream));
    kvt_cuda_page got;
    device_read(&got, b->plans, sizeof got);
    WANT(got.status == status && *b->status == status);
    WANT(status == KVT_OK || got.n_rows == 0);
    *b->status = KVT_OK;
}

static void test_refusals(bench *b, const host_page *pages) {
    uint32_t rows = pages[0].rows, tokens = b->c.geometry.page_tokens;
    uint64_t bytes = pages[0].n_bytes;
    uint8_t *page = device_page(b, 0);
    CUDA(cudaMemcpy(page, pages[0].bytes, bytes, cudaMemcpyHostToDevice));
    expect_status(b, (kvt_cuda_read){page, bytes, 0, rows, 0}, KVT_OK);
    expect_status(b, (kvt_cuda_read){page, bytes, 0, rows + 1, 0}, KVT_EINVAL);
    expect_status(b, (kvt_cuda_read){page, bytes, rows + 1, 0, 0}, KVT_EINVAL);
    expect_status(b, (kvt_cuda_read){page, bytes, 1, UINT32_MAX, 0}, KVT_EINVAL);
    expect_status(b, (kvt_cuda_read){page, bytes - 1, 0, rows, 0}, KVT_ECORRUPT);
    expect_status(b, (kvt_cuda_read){page, 100, 0, rows, 0}, KVT_ECORRUPT);
    for (int i = 0; i < 3; i++) { /* first, middle and last byte of the payload */
        uint64_t at = i == 0 ? 192 : i == 1 ? (192 + bytes) / 2 : bytes - 1;
        uint8_t byte = pages[0].bytes[at] ^ 1;
        CUDA(cudaMemcpy(page + at, &byte, 1, cudaMemcpyHostToDevice));
        expect_status(b, (kvt_cuda_read){page, bytes, 0, rows, 0}, KVT_ECORRUPT);
        CUDA(cudaMemcpy(page + at, pages[0].bytes + at, 1, cudaMemcpyHostToDevice));
    }
    /* A page that cannot be made says why, in the words of kvt_page_encode_cow. */
    struct {
        uint64_t room;
        uint32_t rows, keep_rows;
        kvt_status status;
    } wrong[] = {
        {kvt_page_bytes(&b->shape, tokens) - 1, tokens, 0, KVT_ELIMIT},
        {b->max_bytes, 0, 0, KVT_EINVAL},
        {b->max_bytes, tokens + 1, 0, KVT_EINVAL},
        {b->max_bytes, 1, 2, KVT_EINVAL},
        {200, 1, 1, KVT_ELIMIT},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        set_write(b, 1, wrong[i].rows);
        b->writes[0] = b->writes[1];
        b->writes[0].token = 0;
        b->writes[0].room_bytes = wrong[i].room;
        b->writes[0].keep_rows = wrong[i].keep_rows;
        b->writes[0].keep = page;
        b->writes[0].keep_bytes = bytes;
        run_encode(b, 1);
        CHECK_MSG(b->results[0].status == wrong[i].status && b->results[0].bytes == 0,
                  "%s: wrong write %zu gives %u", label, i, b->results[0].status);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Cases
 * ---------------------------------------------------------------------------------------------- */

static void run_case(const test_case *c, int with_headers) {
    snprintf(label, sizeof label,
             "%s, dims %u %u, %u layers, %u heads, page %u, last %u, firsts %u, dtype %u, data %d, "
             "style %d",
             c->codec, c->geometry.head_dim[0], c->geometry.head_dim[1], c->geometry.n_layers,
             c->geometry.n_kv_heads, c->geometry.page_tokens, c->last_rows, c->firsts,
             c->geometry.dtype, (int)c->data, (int)c->style);
    bench b;
    host_page pages[N_PAGES];
    bench_open(&b, c);
    test_encode(&b, pages);
    test_decode(&b, pages, 0, c->geometry.page_tokens, 0, (kv_style)((c->style + 1) % KV_N_STYLES));
    test_copy(&b, pages);
    test_all_wrong(&b, pages);
    test_transcode(&b, pages);
    test_raw_and_blocks(&b);
    test_cow(&b, pages);
    test_decode(&b, pages, 2, c->geometry.page_tokens - 3, b.shape.n_layers - 1,
                (kv_style)((c->style + 2) % KV_N_STYLES));
    if (with_headers) {
        test_headers(&b, pages);
        test_refusals(&b, pages);
    }
    bench_close(&b);
    for (uint32_t i = 0; i < N_PAGES; i++)
        free(pages[i].bytes);
}

static kvt_geometry geometry(uint32_t n_layers, uint32_t heads, uint32_t dim0, uint32_t dim1,
                             uint32_t page_tokens, uint32_t dtype) {
    kvt_geometry g;
    kvt_geometry_init(&g, n_layers, heads, dim0, page_tokens);
    g.head_dim[1] = dim1;
    g.dtype = dtype;
    return g;
}

static kvt_geometry mla(uint32_t page_tokens, uint32_t dtype) {
    kvt_geometry g = geometry(2, 1, 512, 64, page_tokens, dtype);
    g.kind = KVT_MLA;
    return g;
}

/* Every codec for K and for V at least once; two ranges of layers; the named sets. */
static const char *const sets[] = {
    "i8",
    "k8v4",
    "i4",
    "0:f16;1:i2",
    "k:w2v,v:i4s",
    "k:fp8t,v:i8k",
    "k:fp8s_e4m3:0.5,v:fp8s_e5m2:0.25",
    "k:i4s,v:fp8t",
    "k:i8v,v:i2k",
    "k:w4v,v:i4k",
};
static const char *const mla_sets[] = {
    "f16", "fp8", "i8", "i4", "latent:i8k,rope:fp8t", "latent:w2v,rope:i8k", "latent:i4s,rope:i8v",
};
enum { N_SETS = sizeof sets / sizeof sets[0], N_MLA_SETS = sizeof mla_sets / sizeof mla_sets[0] };

/* The dims that models have, and odd ones: no multiple of 8, one group, more than 256. */
static const uint32_t dims[] = {64, 80, 96, 100, 112, 128, 192, 256, 2, 14, 38, 264};
enum { N_DIMS = sizeof dims / sizeof dims[0] };

/* Case number i: a set and a dim for each, the rest drawn. */
static test_case draw_case(uint32_t i, uint64_t *random) {
    static const uint32_t page_tokens[] = {16, 16, 32, 64};
    uint32_t tokens = page_tokens[check_below(random, 4)];
    uint32_t dtype = check_below(random, 2) ? KVT_BF16 : KVT_F16;
    test_case c;
    memset(&c, 0, sizeof c);
    if (i % (N_DIMS + 1) == N_DIMS) {
        c.geometry = mla(tokens > 32 ? 32 : tokens, dtype);
        c.codec = mla_sets[i / (N_DIMS + 1) % N_MLA_SETS];
    } else {
        uint32_t other = check_below(random, 3) ? i : check_below(random, N_DIMS);
        c.geometry = geometry(2, 1 + check_below(random, 2), dims[i % N_DIMS], dims[other % N_DIMS],
                              tokens, dtype);
        c.codec = sets[i / (N_DIMS + 1) % N_SETS];
    }
    c.data = (kit_data)check_below(random, KIT_N_DATA);
    c.style = (kv_style)check_below(random, KV_N_STYLES);
    c.last_rows = 1 + check_below(random, c.geometry.page_tokens);
    c.firsts = i % (1 << N_PAGES); /* with each set, since there are as many dims as there are */
    return c;
}

/* Few threads, every kernel: for ThreadSanitizer. */
static void run_small(void) {
    const char *const small_sets[] = {"i8", "i4", "k:fp8t,v:i4s"};
    for (int i = 0; i < 3; i++) {
        test_case c = {geometry(1, 1, 64, 32, 16, KVT_F16),
                       small_sets[i],
                       i == 1 ? KIT_REFUSED : KIT_CHANNELS,
                       KV_TOKEN_MAJOR,
                       5,
                       1};
        run_case(&c, 0);
    }
}

/* So many slices that one block of the fallback takes several, of rows that no warp divides. */
static void run_wide(void) {
    test_case c = {geometry(2, 2, 264, 264, 16, KVT_F16), "i4", KIT_REFUSED, KV_TOKEN_MAJOR, 16, 0};
    run_case(&c, 0);
}

int main(int argc, char **argv) {
    uint32_t schedule = 0, n_cases = (N_DIMS + 1) * N_SETS, small = 0, wide = 0;
    for (int i = 1; i < argc; i++) {
        uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--small") == 0)
            small = 1;
        else if (strcmp(argv[i], "--wide") == 0)
            wide = 1;
        else if (strcmp(argv[i], "--schedule") == 0)
            schedule = (uint32_t)value, i++;
        else if (strcmp(argv[i], "--seed") == 0)
            seed = value, i++;
        else if (strcmp(argv[i], "--cases") == 0)
            n_cases = (uint32_t)value, i++;
        else
            CHECK_MSG(0, "what is %s?", argv[i]);
    }
#ifndef KVT_REAL_CUDA
    emu_set_schedule(emu_schedule_number(schedule));
    fake_cuda_set_delay(50000, schedule + 1);
#endif
    kvt_cpu_use(&kvt_cpu_portable);
    if (small || wide) {
        if (small)
            run_small();
        if (wide)
            run_wide();
        return 0;
    }
    uint64_t random = seed, first_seed = seed;
    for (uint32_t i = 0; i < n_cases; i++) {
        test_case c = draw_case(i + schedule * 44, &random);
        run_case(&c, i % 40 == 0);
    }
    printf("%u cases, schedule %u, seed %llu\n", n_cases, schedule, (unsigned long long)first_seed);
    return 0;
}
