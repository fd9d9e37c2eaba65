/*
 * codec.c - what the codecs cost on the CPU: encoding and decoding of units (64 rows of 128) by the
 * path in use, against memcpy of the 16-bit side, in memory (256 MiB) and in the caches (128 KiB);
 * whole pages of the named sets, with checksums; several threads.
 */
#include "kernels/codec_set.h"
#include "kernels/cpu.h"
#include "tests/bench/bench.h"
#include "tests/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <pthread.h>
#include <sys/mman.h>

enum {
    ROWS = 64,
    DIM = 128,
    UNIT_BYTES = 2 * ROWS * DIM, /* of the 16-bit side */
    LARGE_BYTES = 256 << 20,
    SMALL_BYTES = 128 << 10,
    SMALL_REPEATS = 20, /* a round is not shorter than the clock's noise */
    LARGE_ROUNDS = 11,
    SMALL_ROUNDS = 401,
    MAX_THREADS = 2,
};

static const struct {
    kvt_codec codec;
    double encode, decode; /* targets: share of memcpy */
} units[] = {
    {KVT_CODEC_I8V, .8, .95}, {KVT_CODEC_I8K, .8, .95},      {KVT_CODEC_I4S, .8, .95},
    {KVT_CODEC_FP8T, .6, .9}, {KVT_CODEC_FP8S_E4M3, .6, .9}, {KVT_CODEC_FP8S_E5M2, .6, .9},
    {KVT_CODEC_I4K, .7, .85}, {KVT_CODEC_I2K, 0, 0},         {KVT_CODEC_W4V, .35, .65},
    {KVT_CODEC_W2V, 0, 0},
};

/* Memory and the part of it that one thread works on. */
typedef struct work {
    uint8_t *kv, *coded, *copy;
    size_t bytes; /* of kv; copy has as many */
    int repeats;
    kvt_unit unit;
    kvt_encode_unit *encode;
    kvt_decode_unit *decode;
} work;

static void encode_units(void *context) {
    const work *w = context;
    size_t unit_bytes = kvt_unit_layout_of(w->unit.codec, DIM, ROWS).bytes;
    uint32_t saturated = 0;
    for (int i = 0; i < w->repeats; i++) {
        uint8_t *to = w->coded;
        for (size_t at = 0; at < w->bytes; at += UNIT_BYTES, to += unit_bytes)
            KVT_ASSERT(w->encode(&w->unit, w->kv + at, 2 * DIM, to, &saturated));
    }
}

static void decode_units(void *context) {
    const work *w = context;
    size_t unit_bytes = kvt_unit_layout_of(w->unit.codec, DIM, ROWS).bytes;
    for (int i = 0; i < w->repeats; i++) {
        const uint8_t *from = w->coded;
        for (size_t at = 0; at < w->bytes; at += UNIT_BYTES, from += unit_bytes)
            w->decode(&w->unit, from, 0, ROWS, w->kv + at, 2 * DIM);
    }
}

static void copy_all(void *context) {
    const work *w = context;
    for (int i = 0; i < w->repeats; i++) {
        memcpy(w->copy, w->kv, w->bytes);
        __asm__ volatile("" ::"r"(w->copy) : "memory"); /* each copy is one that is needed */
    }
}

static void report(const char *what, const char *size, const char *base, bench_pair pair,
                   size_t bytes, double target) {
    char name[64];
    snprintf(name, sizeof name, "%s, %s", what, size);
    bench_report(&(bench_row){.name = name,
                              .value = (double)bytes / pair.a / 1e9,
                              .unit = "GB/s",
                              .base = base,
                              .base_value = (double)bytes / pair.a / 1e9 * pair.ratio,
                              .target = target,
                              .at_least = 1,
                              .noise = pair.noise});
}

static void use_codec(work *w, kvt_codec codec) {
    w->unit = (kvt_unit){.codec = codec, .dtype = KVT_F16, .dim = DIM, .rows = ROWS};
    if (codec == KVT_CODEC_FP8S_E4M3 || codec == KVT_CODEC_FP8S_E5M2)
        w->unit.scale = 0.03125f;
    w->encode = kvt_cpu_encoder(codec);
    w->decode = kvt_cpu_decoder(codec);
}

/* About normally distributed, from random numbers that repeat after 1 MiB. */
static void fill(uint8_t *kv, size_t bytes) {
    uint64_t seed = 5;
    for (size_t at = 0; at < bytes && at < 1 << 20; at += 2) {
        uint64_t r = check_random(&seed);
        int32_t sum = 0;
        for (int i = 0; i < 4; i++)
            sum += (int32_t)(r >> 16 * i & 0xffff) - 0x8000;
        uint16_t half = kvt_half_of_float((float)sum * 0x1p-15f);
        memcpy(kv + at, &half, 2);
    }
    for (size_t at = 1 << 20; at < bytes; at += 1 << 20)
        memcpy(kv + at, kv, 1 << 20);
}

static void measure_units(const work *memory, size_t bytes, const char *size) {
    work w = *memory;
    w.bytes = bytes;
    w.repeats = bytes == SMALL_BYTES ? SMALL_REPEATS : 1;
    int rounds = bytes == SMALL_BYTES ? SMALL_ROUNDS : LARGE_ROUNDS;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        char name[32];
        use_codec(&w, units[i].codec);
        fill(w.kv, bytes);
        bench_pair pair = bench_turns_alone(encode_units, copy_all, &w, rounds);
        snprintf(name, sizeof name, "%s encode", kvt_codec_name(units[i].codec));
        report(name, size, "memcpy", pair, bytes * (size_t)w.repeats, units[i].encode);
        pair = bench_turns_alone(decode_units, copy_all, &w, rounds);
        snprintf(name, sizeof name, "%s decode", kvt_codec_name(units[i].codec));
        report(name, size, "memcpy", pair, bytes * (size_t)w.repeats, units[i].decode);
    }
    fill(w.kv, bytes);
    bench_codec_ggml(w.kv, w.coded, w.copy, bytes, w.repeats, rounds, size);
}

/* ------------------------------------------------------------------------------------------------
 * Threads: each has a part of the memory
 * ---------------------------------------------------------------------------------------------- */

typedef struct crew {
    work part[MAX_THREADS];
    int threads;
    void (*does)(void *);
} crew;

typedef struct member {
    void (*does)(void *);
    work *part;
} member;

static void *member_main(void *context) {
    member *m = context;
    m->does(m->part);
    return NULL;
}

static void crew_work(crew *c, void (*does)(void *)) {
    pthread_t thread[MAX_THREADS];
    member m[MAX_THREADS];
    for (int i = 0; i < c->threads; i++) {
        m[i] = (member){does, &c->part[i]};
        KVT_ASSERT(pthread_create(&thread[i], NULL, member_main, &m[i]) == 0);
    }
    for (int i = 0; i < c->threads; i++)
        KVT_ASSERT(pthread_join(thread[i], NULL) == 0);
}

static void crew_codes(void *context) {
    crew *c = context;
    crew_work(c, c->does);
}

static void crew_copies(void *context) {
    crew_work(context, copy_all);
}

static void measure_threads(const work *memory) {
    static const kvt_codec codecs[] = {KVT_CODEC_I8K, KVT_CODEC_W4V};
    for (int n = 1; n <= MAX_THREADS; n++) {
        for (size_t i = 0; i < 4; i++) {
            crew c = {.threads = n, .does = i % 2 ? decode_units : encode_units};
            char name[48], base[32];
            for (int t = 0; t < n; t++) {
                size_t at = LARGE_BYTES / (size_t)n * (size_t)t;
                c.part[t] = (work){memory->kv + at,
                                   memory->coded + at,
                                   memory->copy + at,
                                   LARGE_BYTES / (size_t)n,
                                   1,
                                   {0},
                                   NULL,
                                   NULL};
                use_codec(&c.part[t], codecs[i / 2]);
            }
            fill(memory->kv, LARGE_BYTES);
            crew_work(&c, encode_units);
            bench_pair pair = bench_turns(crew_codes, crew_copies, &c, LARGE_ROUNDS);
            snprintf(name, sizeof name, "%s %s, %d thread%s", kvt_codec_name(codecs[i / 2]),
                     i % 2 ? "decode" : "encode", n, n > 1 ? "s" : "");
            snprintf(base, sizeof base, "memcpy, %d thread%s", n, n > 1 ? "s" : "");
            report(name, "256 MiB", base, pair, LARGE_BYTES, 0);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * Pages of Llama-3-8B: 32 layers, 8 heads of 128, 64 tokens
 * ---------------------------------------------------------------------------------------------- */

enum { LAYERS = 32, HEADS = 8, PAGE_RAW_BYTES = 2 * LAYERS * HEADS * UNIT_BYTES };

typedef struct page_work {
    const work *memory;
    kvt_geometry geometry;
    kvt_page_shape shape;
    size_t room; /* of a page */
    int verify;
} page_work;

static kvt_layout page_layout(const page_work *p, size_t at) {
    kvt_layout layout;
    kvt_layout_head_major(&p->geometry, ROWS, p->memory->kv + at,
                          p->memory->kv + at + PAGE_RAW_BYTES / 2, &layout);
    return layout;
}

static void encode_pages(void *context) {
    const page_work *p = context;
    uint8_t *to = p->memory->coded;
    for (size_t at = 0; at < LARGE_BYTES; at += PAGE_RAW_BYTES, to += p->room) {
        kvt_layout from = page_layout(p, at);
        size_t n;
        KVT_ASSERT(kvt_page_encode(&p->shape, ROWS, &from, to, p->room, &n) == KVT_OK);
    }
}

static void decode_pages(void *context) {
    const page_work *p = context;
    const uint8_t *from = p->memory->coded;
    for (size_t at = 0; at < LARGE_BYTES; at += PAGE_RAW_BYTES, from += p->room) {
        kvt_layout to = page_layout(p, at);
        uint32_t rows;
        KVT_ASSERT(kvt_page_check(&p->shape, from, p->room, 0, &rows) == KVT_OK);
        kvt_status status =
            p->verify ? kvt_page_decode_verified(&p->shape, from, p->room, 0, ROWS, 0, LAYERS, &to)
                      : kvt_page_decode(&p->shape, from, p->room, 0, ROWS, 0, LAYERS, &to);
        KVT_ASSERT(status == KVT_OK);
    }
}

static void copy_pages(void *context) {
    const page_work *p = context;
    copy_all((void *)(uintptr_t)p->memory);
}

static void measure_pages(const work *memory) {
    static const char *const sets[] = {"f16", "fp8", "i8", "k8v4", "i4"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        page_work p = {.memory = memory};
        char name[48];
        kvt_geometry_init(&p.geometry, LAYERS, HEADS, DIM, ROWS);
        KVT_ASSERT(kvt_page_shape_init(&p.geometry, 0, sets[i], NULL, 0, &p.shape) == KVT_OK);
        p.room = kvt_page_bytes(&p.shape, ROWS);
        fill(memory->kv, LARGE_BYTES);
        bench_pair pair = bench_turns_alone(encode_pages, copy_pages, &p, LARGE_ROUNDS);
        snprintf(name, sizeof name, "pages %s encode with checksum", sets[i]);
        report(name, "256 MiB", "memcpy", pair, LARGE_BYTES, 0);
        for (p.verify = 0; p.verify < 2; p.verify++) {
            pair = bench_turns_alone(decode_pages, copy_pages, &p, LARGE_ROUNDS);
            snprintf(name, sizeof name, "pages %s decode%s", sets[i],
                     p.verify ? ", checksum verified" : "");
            report(name, "256 MiB", "memcpy", pair, LARGE_BYTES, 0);
        }
    }
}

/* Large pages, so that what is measured is not the walk through page tables. Raw pages take a
 * little more than what they hold. */
static uint8_t *memory_new(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVT_ASSERT(memory != MAP_FAILED);
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    return memory;
}

/* Its name, for whoever reads the figures. */
static const char *processor(void) {
    static char name[49];
#if defined(__x86_64__)
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t r[4] = {0};
        if (__get_cpuid(0x80000002u + i, &r[0], &r[1], &r[2], &r[3]))
            memcpy(name + 16 * i, r, sizeof r);
    }
#endif
    return name[0] ? name : "a processor without a name";
}

void bench_codec(void) {
    const size_t coded_bytes = LARGE_BYTES + (1 << 20);
    work memory = {.kv = memory_new(LARGE_BYTES),
                   .coded = memory_new(coded_bytes),
                   .copy = memory_new(LARGE_BYTES),
                   .bytes = LARGE_BYTES,
                   .repeats = 1};
    char name[64];
    snprintf(name, sizeof name, "%s on %s", kvt_cpu()->name, processor());
    bench_report(&(bench_row){.name = name, .value = 1, .unit = "path"});
    measure_units(&memory, LARGE_BYTES, "256 MiB");
    measure_units(&memory, SMALL_BYTES, "128 KiB");
    measure_pages(&memory);
    measure_threads(&memory);
    munmap(memory.kv, LARGE_BYTES);
    munmap(memory.coded, coded_bytes);
    munmap(memory.copy, LARGE_BYTES);
}
