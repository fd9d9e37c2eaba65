/*
 * pages.c - what moving a raw page costs: decoding from the arena into the worker's own cache, and
 * sealing (the daemon's copy out of the staging file, and its check), against memcpy of as many
 * bytes. Everything is mapped and touched before.
 */
#include "kernels/device.h"
#include "kernels/page.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Llama-3-8B: 32 layers, 8 KV heads of 128, 64 tokens: 8 MiB a page. */
enum { LAYERS = 32, HEADS = 8, DIM = 128, TOKENS = 64, PAGES = 24 };

typedef struct rig {
    kvt_geometry geometry;
    kvt_page_shape shape;
    kvt_device *device;
    int staging;
    size_t page_bytes;
    uint8_t *kv[2]; /* one page's worth each */
    uint8_t *flat;  /* for memcpy */
    uint32_t next;
    int verify;
    kvt_layout layout;
} rig;

static uint8_t *page_at(rig *r) {
    r->next = (r->next + 1) % PAGES;
    return (uint8_t *)r->device->ops->data(r->device) + r->next * r->page_bytes;
}

static void decode_one(void *context) {
    rig *r = context;
    const uint8_t *page = page_at(r);
    uint32_t rows;
    KVT_ASSERT(kvt_page_check(&r->shape, page, r->page_bytes, 0, &rows) == KVT_OK);
    kvt_status status = r->verify ? kvt_page_decode_verified(&r->shape, page, r->page_bytes, 0,
                                                             TOKENS, 0, LAYERS, &r->layout)
                                  : kvt_page_decode(&r->shape, page, r->page_bytes, 0, TOKENS, 0,
                                                    LAYERS, &r->layout);
    KVT_ASSERT(status == KVT_OK);
}

static void copy_one(void *context) {
    rig *r = context;
    memcpy(r->flat, page_at(r), r->page_bytes);
}

static void seal_one(void *context) {
    rig *r = context;
    uint32_t rows;
    r->next = (r->next + 1) % PAGES;
    uint64_t at = r->next * r->page_bytes;
    KVT_ASSERT(r->device->ops->write_file_page(r->device, &r->shape, at, r->staging, at,
                                               r->page_bytes, &rows) == KVT_OK);
}

static void encode_one(void *context) {
    rig *r = context;
    size_t n;
    KVT_ASSERT(kvt_page_encode(&r->shape, TOKENS, &r->layout, page_at(r), r->page_bytes, &n) ==
               KVT_OK);
}

static void rig_open(rig *r) {
    char path[64], why[256] = "";
    kvt_geometry_init(&r->geometry, LAYERS, HEADS, DIM, TOKENS);
    KVT_ASSERT(kvt_page_shape_init(&r->geometry, 0, "f16", NULL, 0, &r->shape) == KVT_OK);
    r->page_bytes = kvt_page_bytes(&r->shape, TOKENS);
    snprintf(path, sizeof path, "/dev/shm/kvtrunk-bench-%d", (int)getpid());
    kvt_device_host_options options = {.path = path,
                                       .mode = 0600,
                                       .gid = UINT32_MAX,
                                       .head_bytes = 65536,
                                       .data_bytes = PAGES * r->page_bytes};
    kvt_status status = kvt_device_host_open(&options, why, sizeof why, &r->device);
    if (status != KVT_OK) {
        fprintf(stderr, "bench pages: %s\n", why);
        exit(2);
    }
    size_t part_bytes = (size_t)LAYERS * HEADS * TOKENS * DIM * 2;
    for (int p = 0; p < 2; p++) {
        r->kv[p] = malloc(part_bytes);
        KVT_ASSERT(r->kv[p]);
        for (size_t i = 0; i < part_bytes; i += 2) {
            uint16_t x = (uint16_t)(0x3000 + i % 3001);
            memcpy(r->kv[p] + i, &x, 2);
        }
    }
    r->flat = malloc(r->page_bytes);
    KVT_ASSERT(r->flat);
    kvt_layout_head_major(&r->geometry, TOKENS, r->kv[0], r->kv[1], &r->layout);
    for (int i = 0; i < PAGES; i++)
        encode_one(r);
    r->staging = memfd_create("bench", 0);
    const uint8_t *data = r->device->ops->data(r->device);
    for (size_t at = 0; at < PAGES * r->page_bytes; at += r->page_bytes)
        KVT_ASSERT(write(r->staging, data + at, r->page_bytes) == (ssize_t)r->page_bytes);
}

static void report(const char *name, bench_pair pair, size_t bytes, double target) {
    bench_report(&(bench_row){.name = name,
                              .value = (double)bytes / pair.a / 1e9,
                              .unit = "GB/s",
                              .base = "memcpy",
                              .base_value = (double)bytes / pair.b / 1e9,
                              .target = target,
                              .at_least = 1,
                              .noise = pair.noise});
}

void bench_pages(void) {
    rig r = {0};
    rig_open(&r);
    report("decode f16, head-major", bench_turns(decode_one, copy_one, &r, 100), r.page_bytes, .9);
    r.verify = 1;
    report("decode f16, head-major, checksum verified", bench_turns(decode_one, copy_one, &r, 100),
           r.page_bytes, .7);
    r.verify = 0;
    kvt_layout_token_major(&r.geometry, TOKENS, r.kv[0], r.kv[1], &r.layout);
    report("decode f16, token-major", bench_turns(decode_one, copy_one, &r, 100), r.page_bytes, 0);
    kvt_layout_head_major(&r.geometry, TOKENS, r.kv[0], r.kv[1], &r.layout);
    report("seal f16: copy from staging and check", bench_turns(seal_one, copy_one, &r, 100),
           r.page_bytes, .5);
    report("encode f16 with its checksum", bench_turns(encode_one, copy_one, &r, 100), r.page_bytes,
           0);
    r.device->ops->close(r.device);
    close(r.staging);
    free(r.kv[0]);
    free(r.kv[1]);
    free(r.flat);
}
