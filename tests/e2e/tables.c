/*
 * tables.c - block tables that a worker decodes through: those whose blocks overlap are refused
 * before anything is written, and slots of a token or a few are read as pages are.
 *
 * Only with KVT_TEST_DEVICE=cuda.
 */
#include "tests/e2e/e2e.h"
#include "tests/e2e/gpu.h"

enum { TOKENS = 40, HEADS = 2, ROW_BYTES = 64 };

/* --- blocks that overlap -------------------------------------------------------------------------
 */

static void refused(kvt_status status, const char *words) {
    CHECK_EQ(status, KVT_EINVAL);
    CHECK_MSG(strstr(kvt_last_error(), words), "%s, and not: %s", kvt_last_error(), words);
}

/* Nothing of what is refused is written. */
static void refuse_overlaps(e2e_worker *w, kvt_lease *lease) {
    static uint8_t bytes[E2E_PART_BYTES];
    uint32_t numbers[] = {2, 0, 5};
    kvt_block_table table = {numbers, 3, 16, 0};
    kvt_layout by_token, by_head;
    kvt_layout_token_major(&w->realm.geometry, 128, w->gpu_part[0], w->gpu_part[1], &by_token);
    by_head = by_token;
    for (int p = 0; p < 2; p++) {
        by_head.head_stride_bytes[p] = 16 * ROW_BYTES;
        by_head.token_stride_bytes[p] = ROW_BYTES;
        gpu_set(w->gpu_part[p], 0x77, w->part_bytes, w->stream);
    }
    numbers[2] = 1;
    refused(kvt_decode_device(lease, 0, TOKENS, 0, 1, &by_head, &table, w->stream),
            "blocks->blocks[1], which is 0, and blocks->blocks[2], which is 1, of different heads");
    numbers[2] = 2;
    refused(kvt_decode_device(lease, 0, TOKENS, 1, 1, &by_token, &table, w->stream),
            "blocks->blocks[0], which is 2, and blocks->blocks[2], which is 2, are the same");
    kvt_layout one_part = by_token;
    one_part.part[1] = one_part.part[0];
    numbers[2] = 5;
    refused(kvt_decode_device(lease, 0, TOKENS, 0, 1, &one_part, &table, w->stream),
            "to->part[0] and to->part[1] are both 0x");
    refused(kvt_decode_device(lease, 0, TOKENS, 0, 1, &one_part, NULL, w->stream),
            "to->part[0] and to->part[1] are both 0x");
    kvt_layout host;
    kvt_layout_token_major(&w->realm.geometry, TOKENS, w->part[0], w->part[0], &host);
    refused(kvt_decode(lease, 0, TOKENS, 0, 1, &host), "to->part[0] and to->part[1] are both 0x");
    table.block_stride_tokens = UINT64_MAX / 2;
    refused(kvt_decode_device(lease, 0, TOKENS, 0, 1, &by_token, &table, w->stream),
            "blocks->blocks[0] is 2: so many times");
    CHECK_EQ(kvt_sync(lease), KVT_OK);
    GPU_CALL("cudaStreamSynchronize", (void *), w->stream);
    for (int p = 0; p < 2; p++) {
        gpu_get(bytes, w->gpu_part[p], w->part_bytes);
        for (size_t i = 0; i < w->part_bytes; i++)
            CHECK_MSG(bytes[i] == 0x77, "part %d, byte %zu", p, i);
    }
}

/* What was found of the blocks stays with the plan that layers share: it says nothing of another
 * layer's strides, nor of other blocks. */
static void refuse_later_layers(e2e_worker *w, kvt_lease *lease) {
    uint32_t numbers[] = {0, 1, 2}, halves[] = {0, 1, 2, 3, 4};
    kvt_block_table table = {numbers, 3, 16, 0}, small = {halves, 5, 8, 0};
    kvt_layout by_token, by_head;
    kvt_layout_token_major(&w->realm.geometry, 128, w->gpu_part[0], w->gpu_part[1], &by_token);
    by_head = by_token;
    for (int p = 0; p < 2; p++) {
        by_head.head_stride_bytes[p] = 16 * ROW_BYTES;
        by_head.token_stride_bytes[p] = ROW_BYTES;
    }
    CHECK_EQ(kvt_decode_device(lease, 0, TOKENS, 0, 1, &by_token, &table, w->stream), KVT_OK);
    refused(kvt_decode_device(lease, 0, TOKENS, 1, 1, &by_head, &table, w->stream), "overlap");
    CHECK_EQ(kvt_decode_device(lease, 0, TOKENS, 1, 1, &by_token, &table, w->stream), KVT_OK);
    CHECK_EQ(kvt_decode_device(lease, 0, TOKENS, 1, 1, &by_token, NULL, w->stream), KVT_OK);
    /* Half of each block is as far from the next as the heads of a block of 8. */
    for (int p = 0; p < 2; p++)
        by_head.head_stride_bytes[p] = 8 * ROW_BYTES;
    refused(kvt_decode_device(lease, 0, TOKENS, 1, 1, &by_head, &small, w->stream), "overlap");
    small.block_stride_tokens = HEADS * 8;
    CHECK_EQ(kvt_decode_device(lease, 0, TOKENS, 1, 1, &by_head, &small, w->stream), KVT_OK);
    CHECK_EQ(kvt_sync(lease), KVT_OK);
}

static void test_overlaps(const e2e_daemon *d) {
    e2e_worker w;
    uint32_t tokens[TOKENS], numbers[] = {1, 1, 1};
    kvt_block_table table = {numbers, 3, 16, 0};
    kvt_layout one_part;
    e2e_worker_open(&w, d, 11, 20000);
    kvt_lease *lease = e2e_filled(&w, tokens, TOKENS, 9000000);
    refuse_overlaps(&w, lease);
    refuse_later_layers(&w, lease);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] += 1000;
    CHECK_EQ(kvt_acquire(w.client, tokens, TOKENS, KVT_CLAIM, &lease), KVT_OK);
    kvt_layout_token_major(&w.realm.geometry, 128, w.gpu_part[0], w.gpu_part[0], &one_part);
    table.block_stride_tokens = UINT64_MAX / 2;
    refused(kvt_encode_device(lease, 0, 3, &one_part, &table, w.stream),
            "blocks->blocks[0] is 1: so many times");
    table.block_stride_tokens = 0; /* reading twice does no harm */
    CHECK_MSG(kvt_encode_device(lease, 0, 3, &one_part, &table, w.stream) == KVT_OK, "%s",
              kvt_last_error());
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
}

/* --- many small blocks ---------------------------------------------------------------------------
 */

static size_t gpu_left(void) {
    size_t left, all;
    GPU_CALL("cudaMemGetInfo", (size_t *, size_t *), &left, &all);
    return left;
}

/* A slot for each token, in another order, by a client of its own. Returns what the first such call
 * took of the GPU's memory. */
static size_t read_slots(const e2e_daemon *d, e2e_worker *w, const uint32_t *tokens, uint32_t n,
                         uint32_t flags) {
    static uint16_t shuffled[2][E2E_PART_BYTES / 2];
    const kvt_options options = {.socket = d->socket, .flags = flags};
    uint32_t slots[E2E_MAX_TOKENS];
    size_t row = HEADS * ROW_BYTES;
    kvt_block_table table = {slots, n, 1, 1};
    kvt_layout to, plain;
    kvt_client *client;
    kvt_lease *lease;
    for (uint32_t t = 0; t < n; t++)
        slots[t] = t * 7 % n;
    CHECK_EQ(kvt_open(&options, &w->realm, &client), KVT_OK);
    CHECK_EQ(kvt_acquire(client, tokens, n, 0, &lease), KVT_OK);
    for (int p = 0; p < 2; p++)
        gpu_set(w->gpu_part[p], 0x77, w->part_bytes, w->stream);
    kvt_layout_token_major(&w->realm.geometry, n, w->gpu_part[0], w->gpu_part[1], &to);
    size_t before = gpu_left();
    CHECK_MSG(kvt_decode_device(lease, 0, n, 0, E2E_LAYERS, &to, &table, w->stream) == KVT_OK, "%s",
              kvt_last_error());
    size_t after = gpu_left();
    CHECK_MSG(kvt_sync(lease) == KVT_OK, "%s", kvt_last_error());
    for (int p = 0; p < 2; p++) {
        gpu_get(shuffled[p], w->gpu_part[p], w->part_bytes);
        for (uint32_t i = 0; i < E2E_LAYERS * n; i++)
            memcpy((uint8_t *)w->part[p] + i * row,
                   (uint8_t *)shuffled[p] + (i / n * n + slots[i % n]) * row, row);
    }
    kvt_layout_token_major(&w->realm.geometry, n, w->part[0], w->part[1], &plain);
    oracle_rows(&w->oracle, tokens, n, w->row_hashes);
    CHECK_EQ(oracle_check(&w->oracle, w->row_hashes, n, 0, E2E_LAYERS, &plain), 0);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    kvt_close(client);
    return before - after;
}

/* A page's checksum is looked at once, however many slots its tokens go to: the memory for that is
 * in proportion to pages. */
static void test_verified_slots(const e2e_daemon *d) {
    enum { N = 500, PAGE_BYTES = 8192 };
    e2e_worker w;
    uint32_t tokens[N];
    e2e_worker_open(&w, d, 13, 20000);
    CHECK_EQ(kvt_release(e2e_filled(&w, tokens, N, 8000000)), KVT_OK);
    size_t plain = read_slots(d, &w, tokens, N, 0);
    size_t verified = read_slots(d, &w, tokens, N, KVT_OPEN_VERIFY);
    if (!getenv("KVT_TEST_CUDART")) /* a real GPU gives memory in pieces of 2 MiB */
        CHECK_MSG(verified < plain + N / E2E_PAGE_TOKENS * PAGE_BYTES, "%zu bytes, and %zu", plain,
                  verified);
    e2e_worker_close(&w);
}

int main(void) {
    const char *const settings[] = {"arena=4MiB", NULL};
    e2e_daemon d = {0};
    if (!e2e_on_gpu()) {
        printf("skipped: only with KVT_TEST_DEVICE=cuda\n");
        return 77;
    }
    e2e_start(&d, settings);
    test_overlaps(&d);
    test_verified_slots(&d);
    e2e_finish(&d);
    return 0;
}
