/*
 * Every path that this machine can run against the portable one, to the bit: encoded bytes, counts,
 * refusals, decoded rows; over data that strains rounding, at any alignment and stride, with guard
 * bytes around whatever is written.
 *
 *     test_cpu [SEED]
 */
#include "kernels/codec_set.h"
#include "kernels/cpu.h"
#include "tests/check.h"

static uint64_t seed = 1;

enum { MAX_ROWS = 128, GUARD = 96, GUARD_BYTE = 0xc3 };

static float two_to(int exponent) {
    return kvt_float_of_bits((uint32_t)(exponent + 127) << 23);
}

/* ------------------------------------------------------------------------------------------------
 * Data
 * ---------------------------------------------------------------------------------------------- */

typedef enum data_kind {
    DATA_BITS,      /* any bits that are taken */
    DATA_PLAIN,     /* about -4 .. 4 */
    DATA_TIES,      /* half steps of scales that are powers of two */
    DATA_SHORT,     /* few bits of mantissa: half-way between the codes of fp8 */
    DATA_DENORMAL,  /* multiples of the smallest positive element */
    DATA_SMALL,     /* where scales lose bits, so that much is clamped */
    DATA_VANISHING, /* amax / largest is no binary16 any more */
    DATA_ZERO,      /* of both signs */
    DATA_CONSTANT,
    DATA_EXTREME, /* +-8192, and sums that are as large as they get */
    DATA_OFFSET,  /* far from 0 and close together */
    DATA_N_KINDS
} data_kind;

static float any_float(uint32_t dtype) {
    uint32_t bits = check_below(&seed, kvt_max_element(dtype) + 1u) | check_below(&seed, 2) << 15;
    return kvt_float_of_element(dtype, (uint16_t)bits);
}

static float plain(void) {
    return (float)((int32_t)check_below(&seed, 1 << 16) - (1 << 15)) * 0x1p-13f;
}

static float element(uint32_t dtype, data_kind kind, uint32_t d, float level) {
    uint32_t n = check_below(&seed, 509);
    switch (kind) {
    case DATA_BITS:
        return any_float(dtype);
    case DATA_TIES: /* the first of each 32 makes the scale 1 for one of 127, 15, 7, 448 */
        if (d % 32 == 0)
            return level < 0 ? 127.0f : level < 1 ? 7.0f : level < 2 ? 15.0f : 448.0f;
        return ((float)(int32_t)n - 254) * (level < 0 ? 0.5f : level < 1 ? 0.0275f : 0.0625f);
    case DATA_SHORT: {
        uint32_t bits = kvt_float_bits(any_float(dtype)) & 0xfff80000u;
        return kvt_float_of_bits(bits);
    }
    case DATA_DENORMAL:
        return (float)((int32_t)check_below(&seed, 40) - 20) *
               (dtype == KVT_BF16 ? two_to(-126) * two_to(-7) : 0x1p-24f);
    case DATA_SMALL:
        return plain() * 0x1p-13f * level;
    case DATA_VANISHING:
        return plain() * two_to(n % 2 ? -100 : -20);
    case DATA_ZERO:
        return n % 2 ? 0.0f : -0.0f;
    case DATA_CONSTANT:
        return level;
    case DATA_EXTREME:
        return n % 5 == 0 ? -8192.0f : level < 1 || n % 2 ? 8192.0f : plain();
    case DATA_OFFSET:
        return 1000 * level + 0.01f * plain();
    default:
        return plain();
    }
}

static uint16_t rounded(uint32_t dtype, float x) {
    uint16_t bits = kvt_element_of_float(dtype, x), most = kvt_max_element(dtype);
    return kvt_is_refused(dtype, bits) ? (uint16_t)((bits & 0x8000u) | most) : bits;
}

static kvt_unit random_unit(uint32_t codec) {
    static const uint32_t dims[] = {64, 80, 96, 100, 112, 128, 192, 256, 512, 576, 1024, 2};
    static const float scales[] = {1, 0.5f, 3.7f, 1e-3f, 1e3f, 0x1p-24f, 0x1p24f, 0.7f};
    kvt_unit unit = {.codec = codec,
                     .dtype = check_below(&seed, 2) ? KVT_F16 : KVT_BF16,
                     .dim = check_below(&seed, 3) ? dims[check_below(&seed, 12)]
                                                  : 2 + 2 * check_below(&seed, 512),
                     .rows = 1 + check_below(&seed, check_below(&seed, 4) ? 20 : MAX_ROWS)};
    if (codec == KVT_CODEC_FP8S_E4M3 || codec == KVT_CODEC_FP8S_E5M2)
        unit.scale = scales[check_below(&seed, 8)];
    return unit;
}

/* ------------------------------------------------------------------------------------------------
 * Buffers of exactly so many bytes, at an odd address, between guards
 * ---------------------------------------------------------------------------------------------- */

typedef struct buffer {
    uint8_t *room;
    uint8_t *at;
    size_t bytes;
} buffer;

static buffer buffer_new(size_t bytes, size_t misalignment) {
    buffer b = {.room = aligned_alloc(64, (bytes + misalignment + 2 * GUARD + 63) / 64 * 64),
                .bytes = bytes};
    CHECK(b.room);
    memset(b.room, GUARD_BYTE, bytes + misalignment + 2 * GUARD);
    b.at = b.room + GUARD + misalignment;
    return b;
}

static void buffer_free(buffer *b, const char *what) {
    for (const uint8_t *at = b->room; at < b->at; at++)
        CHECK_MSG(*at == GUARD_BYTE, "%s: written in front of it", what);
    for (size_t i = 0; i < GUARD; i++)
        CHECK_MSG(b->at[b->bytes + i] == GUARD_BYTE, "%s: written behind it", what);
    free(b->room);
}

/* The rows as a worker may have them: nothing can be read beside them (the sanitizer sees). */
static uint8_t *rows_new(const kvt_unit *unit, size_t stride, data_kind kind, uint8_t **ret_at) {
    size_t bytes = (unit->rows - 1) * stride + 2 * (size_t)unit->dim;
    size_t misalignment = check_below(&seed, 8);
    uint8_t *room = malloc(bytes + misalignment), *at = room + misalignment;
    CHECK(room);
    float level = plain();
    for (uint32_t r = 0; r < unit->rows; r++)
        for (uint32_t d = 0; d < unit->dim; d++) {
            uint16_t bits = rounded(unit->dtype, element(unit->dtype, kind, d, level));
            memcpy(at + r * stride + 2 * (size_t)d, &bits, 2);
        }
    *ret_at = at;
    return room;
}

/* ------------------------------------------------------------------------------------------------
 * Comparing
 * ---------------------------------------------------------------------------------------------- */

typedef struct trial {
    const kvt_cpu_path *path;
    kvt_unit unit;
    data_kind kind;
    uint64_t seed;
} trial;

static void same(const trial *t, const char *what, const uint8_t *got, const uint8_t *want,
                 size_t bytes) {
    if (memcmp(got, want, bytes) == 0)
        return;
    size_t i = 0;
    while (got[i] == want[i])
        i++;
    CHECK_MSG(0,
              "%s, codec %s, dtype %u, %u x %u, data %d, seed %" PRIu64 ": %s byte %zu is %02x, "
              "not %02x",
              t->path->name, kvt_codec_name(t->unit.codec), t->unit.dtype, t->unit.rows,
              t->unit.dim, t->kind, t->seed, what, i, got[i], want[i]);
}

/* Some rows, decoded by both with the same stride; between the rows nothing may change. */
static void compare_decoded(const trial *t, const uint8_t *encoded) {
    const kvt_unit *unit = &t->unit;
    uint32_t first = check_below(&seed, unit->rows), n = 1 + check_below(&seed, unit->rows - first);
    size_t stride = 2 * (size_t)unit->dim + check_below(&seed, 2) * check_below(&seed, 70);
    size_t bytes = (n - 1) * stride + 2 * (size_t)unit->dim, misalignment = check_below(&seed, 8);
    buffer want = buffer_new(bytes, misalignment), got = buffer_new(bytes, misalignment);
    kvt_cpu_portable.decode[unit->codec](unit, encoded, first, n, want.at, stride);
    t->path->decode[unit->codec](unit, encoded, first, n, got.at, stride);
    same(t, "decoded", got.at, want.at, bytes);
    buffer_free(&want, "decoded, portable");
    buffer_free(&got, t->path->name);
}

/* Codes that no encoder writes (-128, -8, NaNs of fp8) under statistics that one wrote. */
static void compare_strange_codes(const trial *t, uint8_t *encoded, size_t bytes) {
    kvt_unit_layout at = kvt_unit_layout_of(t->unit.codec, t->unit.dim, t->unit.rows);
    for (size_t i = at.codes_offset; i < bytes; i++) {
        uint32_t random = (uint32_t)check_random(&seed);
        encoded[i] = (uint8_t)(random >> 8 & 1 ? random : random >> 9 & 1 ? 0x7f : 0x88);
    }
    compare_decoded(t, encoded);
}

static void compare(const trial *t, const uint8_t *rows, size_t stride) {
    const kvt_unit *unit = &t->unit;
    size_t bytes = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows).bytes;
    buffer want = buffer_new(bytes, 0), got = buffer_new(bytes, 0);
    uint32_t n[2] = {3, 3};
    bool taken[2] = {kvt_cpu_portable.encode[unit->codec](unit, rows, stride, want.at, &n[0]),
                     t->path->encode[unit->codec](unit, rows, stride, got.at, &n[1])};
    CHECK_MSG(taken[0] == taken[1], "%s, codec %s, seed %" PRIu64 ": refused by one", t->path->name,
              kvt_codec_name(unit->codec), t->seed);
    CHECK_MSG(n[0] == n[1], "%s, codec %s, dtype %u, data %d, seed %" PRIu64 ": %u clamped, not %u",
              t->path->name, kvt_codec_name(unit->codec), unit->dtype, t->kind, t->seed, n[1] - 3,
              n[0] - 3);
    if (taken[0]) {
        same(t, "encoded", got.at, want.at, bytes);
        uint8_t *exact = aligned_alloc(16, bytes); /* for the sanitizer */
        CHECK(exact);
        memcpy(exact, want.at, bytes);
        compare_decoded(t, exact);
        compare_strange_codes(t, exact, bytes);
        free(exact);
    }
    buffer_free(&want, "encoded, portable");
    buffer_free(&got, t->path->name);
}

static void test_random(const kvt_cpu_path *path, uint32_t codec, int rounds) {
    for (int round = 0; round < rounds; round++) {
        trial t = {path, .kind = (data_kind)(round % DATA_N_KINDS), .seed = seed};
        t.unit = random_unit(codec);
        size_t stride = 2 * (size_t)t.unit.dim + check_below(&seed, 2) * check_below(&seed, 70);
        uint8_t *at, *room = rows_new(&t.unit, stride, t.kind, &at);
        compare(&t, at, stride);
        free(room);
    }
}

/* One element that is refused among ones that are not, wherever it stands; and the largest that is
 * taken. */
static void test_refused(const kvt_cpu_path *path, uint32_t codec, int rounds) {
    static const uint16_t bad[2][5] = {{0x7001, 0x7c00, 0xfc00, 0x7c01, 0xfe00},
                                       {0x4601, 0x7f80, 0xff80, 0x7f81, 0xffc0}};
    for (int round = 0; round < rounds; round++) {
        trial t = {path, .kind = DATA_PLAIN, .seed = seed};
        t.unit = random_unit(codec);
        size_t stride = 2 * (size_t)t.unit.dim;
        uint8_t *at, *room = rows_new(&t.unit, stride, t.kind, &at);
        uint8_t *to = at + 2 * (size_t)check_below(&seed, t.unit.rows * t.unit.dim);
        uint16_t bits = kvt_max_element(t.unit.dtype), sign = (uint16_t)(round % 2 << 15);
        bits |= sign;
        memcpy(to, &bits, 2);
        compare(&t, at, stride);
        bits = (uint16_t)(bad[t.unit.dtype == KVT_BF16][round % 5] ^ sign);
        memcpy(to, &bits, 2);
        compare(&t, at, stride);
        uint8_t encoded[2 * MAX_ROWS * KVT_MAX_HEAD_DIM + 8192];
        uint32_t n = 0;
        CHECK(!path->encode[codec](&t.unit, at, stride, encoded, &n) && n == 0);
        free(room);
    }
}

/* All elements that there are, and all codes. */
static void test_all_elements(const kvt_cpu_path *path, uint32_t codec) {
    static const float scales[] = {1, 0.03f, 0x1p-24f, 300};
    static uint16_t x[64 * 1024];
    for (int i = 0; i < 8; i++) {
        trial t = {
            path, {codec, i % 2 ? KVT_F16 : KVT_BF16, 1024, 64, scales[i / 2]}, DATA_N_KINDS, seed};
        uint32_t most = kvt_max_element(t.unit.dtype);
        for (uint32_t bits = 0; bits < 1 << 16; bits++)
            x[bits] = (uint16_t)((bits & 0x7fff) > most ? most : bits);
        compare(&t, (const uint8_t *)x, 2048);
        uint8_t encoded[64 * 1024];
        uint16_t want[64 * 1024], got[64 * 1024];
        for (uint32_t j = 0; j < sizeof encoded; j++)
            encoded[j] = (uint8_t)j;
        kvt_cpu_portable.decode[codec](&t.unit, encoded, 0, 64, want, 2048);
        path->decode[codec](&t.unit, encoded, 0, 64, got, 2048);
        same(&t, "all codes", (uint8_t *)got, (uint8_t *)want, sizeof want);
    }
}

int main(int argc, char **argv) {
    static const char *const names[] = {"avx2", "avx512", "neon"};
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 10);
    int rounds = argc > 2 ? atoi(argv[2]) : 330, tested = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const kvt_cpu_path *path = kvt_cpu_find(names[i]);
        if (!path) {
            printf("%s: not on this machine\n", names[i]);
            continue;
        }
        int n_codecs = 0;
        for (uint32_t codec = 1; codec < KVT_N_CODECS; codec++) {
            CHECK(!path->encode[codec] == !path->decode[codec]);
            if (!path->encode[codec])
                continue;
            test_random(path, codec, rounds);
            test_refused(path, codec, rounds / 6);
            if (codec == KVT_CODEC_FP8S_E4M3 || codec == KVT_CODEC_FP8S_E5M2)
                test_all_elements(path, codec);
            n_codecs++;
        }
        CHECK(n_codecs >= 10);
        printf("%s: %d codecs\n", names[i], n_codecs);
        tested++;
    }
    if (!tested) {
        printf("test_cpu: skipped, no vector path runs on this machine\n");
        return 77;
    }
    return 0;
}
