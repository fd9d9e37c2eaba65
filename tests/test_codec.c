/*
 * Unit codecs: how far a decoded element may be from what it was, over data that strains them, and
 * that every path of this machine gives the same bits as the reference.
 */
#include <math.h>

#include "kernels/codec_set.h"
#include "kernels/cpu.h"
#include "tests/check.h"

static uint64_t seed = 42;

enum { MAX_ROWS = 128 };

/* ------------------------------------------------------------------------------------------------
 * Data
 * ---------------------------------------------------------------------------------------------- */

typedef enum data_kind {
    DATA_NORMAL,
    DATA_HEAVY,
    DATA_OUTLIER_CHANNEL,
    DATA_OUTLIER_TOKEN,
    DATA_BITS,
    DATA_TINY,
    DATA_VANISHING,
    DATA_DENORMAL,
    DATA_ZERO,
    DATA_CONSTANT,
    DATA_LARGE,
    DATA_ONE_HOT,
    DATA_OFFSET,
    DATA_N_KINDS
} data_kind;

static double uniform(void) {
    return ((double)(check_random(&seed) >> 11) + 0.5) * 0x1p-53;
}

static double normal(void) {
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static double element(data_kind kind, uint32_t r, uint32_t d, double level) {
    switch (kind) {
    case DATA_HEAVY: /* Student t with 2 degrees of freedom */
        return normal() / sqrt(-log(uniform()));
    case DATA_OUTLIER_CHANNEL:
        return normal() + (d % 13 == 3 ? 60 * level : 0);
    case DATA_OUTLIER_TOKEN:
        return normal() * (r % 7 == 2 ? 200 : 1);
    case DATA_TINY:
        return normal() * 1e-6;
    case DATA_VANISHING: /* bfloat16 far below what binary16 holds, down to subnormals */
        return normal() * (r % 2 ? 0x1p-130 : 0x1p-41);
    case DATA_DENORMAL:
        return (double)((int)check_below(&seed, 15) - 7) * 0x1p-24;
    case DATA_ZERO:
        return check_below(&seed, 2) ? 0.0 : -0.0;
    case DATA_CONSTANT:
        return 3 * level;
    case DATA_LARGE:
        return check_below(&seed, 2) ? 8192 : -8192;
    case DATA_ONE_HOT:
        return d == 5 % (r + 1) ? 100 * level : 0;
    case DATA_OFFSET:
        return 1000 * level + 0.01 * normal();
    default:
        return normal();
    }
}

static void fill(const kvt_unit *unit, data_kind kind, uint16_t *x) {
    double level = normal();
    for (uint32_t i = 0; i < unit->rows * unit->dim; i++) {
        if (kind == DATA_BITS) /* all magnitudes that are taken */
            x[i] = (uint16_t)(check_below(&seed, kvt_max_element(unit->dtype) + 1u) |
                              check_below(&seed, 2) << 15);
        else
            x[i] = kvt_element_of_float(unit->dtype,
                                        (float)element(kind, i / unit->dim, i % unit->dim, level));
    }
}

/* ------------------------------------------------------------------------------------------------
 * Bounds
 * ---------------------------------------------------------------------------------------------- */

typedef struct trial {
    const kvt_unit *unit;
    data_kind kind;
    const uint16_t *x, *y; /* before, after */
    const uint8_t *encoded;
} trial;

static double value_at(const trial *t, const uint16_t *from, uint32_t r, uint32_t d) {
    return (double)kvt_float_of_element(t->unit->dtype, from[r * t->unit->dim + d]);
}

static double half_at(const uint8_t *at, uint32_t i) {
    uint16_t half;
    memcpy(&half, at + 2 * (size_t)i, 2);
    return (double)kvt_float_of_half(half);
}

/* Half of the distance between neighbours at this magnitude: what the last rounding can cost. */
static double half_ulp(uint32_t dtype, double magnitude) {
    int exponent;
    frexp(magnitude, &exponent); /* magnitude < 2^exponent */
    if (dtype == KVT_BF16)
        return ldexp(1, (exponent < -125 ? -125 : exponent) - 9);
    return ldexp(1, (exponent < -13 ? -13 : exponent) - 12);
}

static void within(const trial *t, uint32_t r, uint32_t d, double bound) {
    double x = value_at(t, t->x, r, d), y = value_at(t, t->y, r, d);
    bound += half_ulp(t->unit->dtype, fmax(fabs(x), fabs(y)));
    CHECK_MSG(fabs(y - x) <= bound,
              "codec %s, dtype %u, %u x %u, data %d, row %u, dim %u: %a became %a, bound %a",
              kvt_codec_name(t->unit->codec), t->unit->dtype, t->unit->rows, t->unit->dim, t->kind,
              r, d, x, y, bound);
}

/* One scale a block: half a step, or what lies past the last one. */
static void check_scaled(const trial *t, double largest) {
    const kvt_unit *u = t->unit;
    kvt_unit_layout at = kvt_unit_layout_of(u->codec, u->dim, u->rows);
    uint32_t block = kvt_row_block(u->codec, u->dim);
    for (uint32_t r = 0; r < u->rows; r++) {
        for (uint32_t first = 0; first < u->dim; first += block) {
            uint32_t end = first + block < u->dim ? first + block : u->dim;
            double s = half_at(t->encoded + r * at.row_stats_bytes, first / block), amax = 0;
            for (uint32_t d = first; d < end; d++)
                amax = fmax(amax, fabs(value_at(t, t->x, r, d)));
            for (uint32_t d = first; d < end; d++) {
                double x = fabs(value_at(t, t->x, r, d));
                double past = fmax(0, amax - largest * s);
                if (u->codec == KVT_CODEC_FP8T)
                    within(t, r, d, fmax(x * 0x1p-4, s * 0x1p-10) * 1.002 + past);
                else
                    within(t, r, d, fmax(.5 * s * (1 + 0x1p-12), past));
            }
        }
    }
}

static void check_fp8s(const trial *t) {
    double s = (double)t->unit->scale,
           largest = t->unit->codec == KVT_CODEC_FP8S_E4M3 ? 448 : 57344;
    double step = largest == 448 ? 0x1p-4 : 0x1p-3, least = largest == 448 ? 0x1p-10 : 0x1p-17;
    for (uint32_t r = 0; r < t->unit->rows; r++)
        for (uint32_t d = 0; d < t->unit->dim; d++) {
            double x = fabs(value_at(t, t->x, r, d));
            within(t, r, d, fmax(x * step, s * least) * 1.002 + fmax(0, x - largest * s));
        }
}

/* Half a step, or what lies outside of the codes' values: low, high are those of the codes at the
 * ends. m is rounded to binary16: it may lie beside the smallest value. */
static void check_channel(const trial *t, double low_code, double high_code) {
    const kvt_unit *u = t->unit;
    kvt_unit_layout at = kvt_unit_layout_of(u->codec, u->dim, u->rows);
    for (uint32_t d = 0; d < u->dim; d++) {
        double m = half_at(t->encoded, d), s = half_at(t->encoded + at.row_stats_offset / 2, d);
        double low = m + low_code * s, high = m + high_code * s, tiny = fabs(m) * 0x1p-22;
        for (uint32_t r = 0; r < u->rows; r++) {
            double x = value_at(t, t->x, r, d);
            within(t, r, d, fmax(.5 * s * (1 + 0x1p-11), fmax(low - x, x - high)) + tiny);
        }
    }
}

/* In the norm over a scale block: the coarsest step of the levels, half of the integers' step, and
 * the rounding of the scale (to 11 bits, or a subnormal) and of the result. */
static void check_rotated(const trial *t, double step) {
    const kvt_unit *u = t->unit;
    kvt_unit_layout at = kvt_unit_layout_of(u->codec, u->dim, u->rows);
    double n_rotation = kvt_rotation_block(u->dim);
    for (uint32_t r = 0; r < u->rows; r++) {
        for (uint32_t first = 0; first < u->dim; first += KVT_ROW_BLOCK) {
            uint32_t end = first + KVT_ROW_BLOCK < u->dim ? first + KVT_ROW_BLOCK : u->dim;
            double n = kvt_pad16(end - first), blocks = n / n_rotation;
            double s = half_at(t->encoded + r * at.row_stats_bytes, first / KVT_ROW_BLOCK) / 1024;
            double amax = 0, error = 0, norm = 0, rounding = 0;
            for (uint32_t d = first; d < end; d++) {
                double x = value_at(t, t->x, r, d), y = value_at(t, t->y, r, d);
                amax = fmax(amax, fabs(x));
                error += (y - x) * (y - x);
                norm += fmax(x * x, y * y);
                rounding += pow(half_ulp(u->dtype, fmax(fabs(x), fabs(y))), 2);
            }
            double range = 127 * n_rotation * s;
            double bound = sqrt(blocks) * (step * range * (1 + 0x1p-9) + amax / 255) +
                           sqrt(n) * amax / 510 + sqrt(norm) * 0x1p-10 + sqrt(rounding) +
                           sqrt(blocks) * 127 * n_rotation * 0x1p-34;
            CHECK_MSG(sqrt(error) <= bound,
                      "codec %s, dtype %u, dim %u, data %d, row %u: error %g, bound %g",
                      kvt_codec_name(u->codec), u->dtype, u->dim, t->kind, r, sqrt(error), bound);
        }
    }
}

static void check_bounds(const trial *t) {
    switch (t->unit->codec) {
    case KVT_CODEC_FP8T:
        check_scaled(t, 448);
        break;
    case KVT_CODEC_I8V:
        check_scaled(t, 127);
        break;
    case KVT_CODEC_I4S:
        check_scaled(t, 7);
        break;
    case KVT_CODEC_I8K:
        check_channel(t, -127, 127);
        break;
    case KVT_CODEC_I4K:
        check_channel(t, 0, 15);
        break;
    case KVT_CODEC_I2K:
        check_channel(t, 0, 3);
        break;
    case KVT_CODEC_W4V:
        check_rotated(t, 15.5 / 127);
        break;
    case KVT_CODEC_W2V:
        check_rotated(t, 7. / 9); /* past the upper level */
        break;
    case KVT_CODEC_RAW16:
        CHECK(memcmp(t->x, t->y, 2 * (size_t)t->unit->rows * t->unit->dim) == 0);
        break;
    default:
        check_fp8s(t);
    }
}

/* What must come back as it was, whatever the bound allows: zeros; a channel's constant; small
 * multiples of the smallest binary16, which have codes of their own where there are enough. */
static void check_exact(const trial *t) {
    uint32_t codec = t->unit->codec;
    int per_channel = kvt_has_channel_stats(codec);
    int scaled = kvt_row_block(codec, t->unit->dim) != 0 || per_channel;
    int few = codec == KVT_CODEC_W4V || codec == KVT_CODEC_W2V || codec == KVT_CODEC_I2K;
    int exact = t->kind == DATA_ZERO || (t->kind == DATA_CONSTANT && per_channel) ||
                (t->kind == DATA_DENORMAL && scaled && !few);
    for (uint32_t r = 0; r < t->unit->rows; r++)
        for (uint32_t d = 0; d < t->unit->dim; d++) {
            double x = value_at(t, t->x, r, d), y = value_at(t, t->y, r, d);
            CHECK(!isnan(y) && !isinf(y));
            CHECK_MSG(!exact || x == y, "codec %s, data %d: %a became %a", kvt_codec_name(codec),
                      t->kind, x, y);
        }
}

static const uint32_t dims[] = {64, 80, 96, 100, 112, 128, 192, 256, 512, 576, 2, 30, 130, 1024};
enum { N_DIMS = sizeof dims / sizeof dims[0] };

static kvt_unit random_unit(uint32_t codec) {
    static const float scales[] = {1, 0.5f, 0.03125f, 3.7f, 1e-3f, 1e3f};
    kvt_unit unit = {.codec = codec,
                     .dtype = check_below(&seed, 2) ? KVT_F16 : KVT_BF16,
                     .dim = dims[check_below(&seed, N_DIMS)],
                     .rows = 1 + check_below(&seed, check_below(&seed, 4) ? 20 : MAX_ROWS)};
    if (codec == KVT_CODEC_FP8S_E4M3 || codec == KVT_CODEC_FP8S_E5M2)
        unit.scale = scales[check_below(&seed, 6)];
    return unit;
}

static void test_bounds(uint32_t codec) {
    static uint16_t x[MAX_ROWS * KVT_MAX_HEAD_DIM], y[MAX_ROWS * KVT_MAX_HEAD_DIM];
    for (int round = 0; round < 300; round++) {
        kvt_unit unit = random_unit(codec);
        data_kind kind = (data_kind)(round % DATA_N_KINDS);
        fill(&unit, kind, x);
        uint32_t saturated = 0, bytes = kvt_unit_layout_of(codec, unit.dim, unit.rows).bytes;
        uint8_t *encoded = aligned_alloc(KVT_UNIT_ALIGN_BYTES, bytes);
        CHECK(encoded);
        CHECK(kvt_cpu_encoder(codec)(&unit, x, 2 * (size_t)unit.dim, encoded, &saturated));
        kvt_cpu_decoder(codec)(&unit, encoded, 0, unit.rows, y, 2 * (size_t)unit.dim);
        trial t = {&unit, kind, x, y, encoded};
        check_bounds(&t);
        check_exact(&t);
        free(encoded);
    }
}

/* Bounds allow what is useless. Normal data, 64 rows of 128: the error that each codec is known
 * for. */
static void test_quality(uint32_t codec, double most) {
    static uint16_t x[64 * 128], y[64 * 128];
    kvt_unit unit = {.codec = codec, .dtype = KVT_F16, .dim = 128, .rows = 64, .scale = 0.03125f};
    uint8_t encoded[64 * 128 * 2];
    double error = 0, norm = 0;
    for (int round = 0; round < 20; round++) {
        uint32_t saturated = 0;
        fill(&unit, DATA_NORMAL, x);
        CHECK(kvt_cpu_encoder(codec)(&unit, x, 256, encoded, &saturated));
        kvt_cpu_decoder(codec)(&unit, encoded, 0, 64, y, 256);
        trial t = {&unit, DATA_NORMAL, x, y, encoded};
        for (uint32_t i = 0; i < 64 * 128; i++) {
            error += pow(value_at(&t, y, 0, i) - value_at(&t, x, 0, i), 2);
            norm += pow(value_at(&t, x, 0, i), 2);
        }
    }
    double relative = sqrt(error / norm);
    CHECK_MSG(relative <= most && relative >= most * .9, "codec %s: relative error %.4f",
              kvt_codec_name(codec), relative);
}

/* ------------------------------------------------------------------------------------------------
 * Refusals, saturation, paths
 * ---------------------------------------------------------------------------------------------- */

static void test_refusals(uint32_t codec) {
    static const uint16_t bad[2][4] = {{0x7001, 0x7c00, 0xfc00, 0x7e00},
                                       {0x4601, 0x7f80, 0xff80, 0x7fc0}};
    static uint16_t x[MAX_ROWS * KVT_MAX_HEAD_DIM];
    static uint8_t to[MAX_ROWS * KVT_MAX_HEAD_DIM * 2 + 8192];
    for (int round = 0; round < 100; round++) {
        kvt_unit unit = random_unit(codec);
        unit.scale = unit.scale > 0 ? 1e-3f : 0; /* much saturates */
        fill(&unit, DATA_NORMAL, x);
        uint32_t at = check_below(&seed, unit.rows * unit.dim), saturated = 77;
        x[at] = kvt_max_element(unit.dtype);
        CHECK(kvt_cpu_encoder(codec)(&unit, x, 2 * (size_t)unit.dim, to, &saturated));
        saturated = 77;
        x[at] = bad[unit.dtype == KVT_BF16][round % 4];
        bool taken = kvt_cpu_encoder(codec)(&unit, x, 2 * (size_t)unit.dim, to, &saturated);
        CHECK_EQ(taken, codec == KVT_CODEC_RAW16);
        CHECK_EQ(saturated, 77);
    }
}

static void test_saturation(void) {
    kvt_unit unit = {
        .codec = KVT_CODEC_FP8S_E4M3, .dtype = KVT_F16, .dim = 4, .rows = 2, .scale = 1};
    const float x[8] = {448, -449, 464, 465, -466, 8192, 0, 1};
    uint16_t in[8], out[8];
    for (int i = 0; i < 8; i++)
        in[i] = kvt_half_of_float(x[i]);
    uint8_t to[16];
    uint32_t saturated = 0;
    CHECK(kvt_cpu_encoder(unit.codec)(&unit, in, 8, to, &saturated));
    CHECK_EQ(saturated, 3);
    kvt_cpu_decoder(unit.codec)(&unit, to, 0, 2, out, 8);
    CHECK(kvt_float_of_half(out[5]) == 448.0f && kvt_float_of_half(out[1]) == -448.0f);
}

/* Any bytes decode to something, and the same on every path where they are what an encoder could
 * have written. Nothing outside the unit is read (the sanitizer sees). */
static void test_garbage(uint32_t codec) {
    static uint16_t out[MAX_ROWS * KVT_MAX_HEAD_DIM];
    for (int round = 0; round < 50; round++) {
        kvt_unit unit = random_unit(codec);
        uint32_t bytes = kvt_unit_layout_of(codec, unit.dim, unit.rows).bytes;
        uint8_t *encoded = aligned_alloc(KVT_UNIT_ALIGN_BYTES, bytes);
        CHECK(encoded);
        for (uint32_t i = 0; i < bytes; i++)
            encoded[i] = (uint8_t)check_random(&seed);
        uint32_t first = check_below(&seed, unit.rows);
        kvt_cpu_decoder(codec)(&unit, encoded, first, unit.rows - first, out, 2 * (size_t)unit.dim);
        free(encoded);
    }
}

/* The path in use against the reference: encoded bytes, counts, refusals, decoded rows. */
static void test_path(uint32_t codec) {
    static uint16_t room[MAX_ROWS * (KVT_MAX_HEAD_DIM + 8)], a[MAX_ROWS * KVT_MAX_HEAD_DIM];
    static uint16_t b[MAX_ROWS * KVT_MAX_HEAD_DIM];
    for (int round = 0; round < 400; round++) {
        kvt_unit unit = random_unit(codec);
        size_t stride = unit.dim + (round % 3 ? check_below(&seed, 8) : 0);
        fill(&unit, (data_kind)check_below(&seed, DATA_N_KINDS), a);
        for (uint32_t r = 0; r < unit.rows; r++)
            memcpy(room + r * stride, a + r * unit.dim, 2 * (size_t)unit.dim);
        if (round % 10 == 0)
            room[check_below(&seed, unit.dim)] = 0x7e00;
        uint32_t bytes = kvt_unit_layout_of(codec, unit.dim, unit.rows).bytes, n[2] = {3, 3};
        uint8_t *want = aligned_alloc(16, bytes), *got = aligned_alloc(16, bytes);
        CHECK(want && got);
        memset(got, 0xee, bytes);
        bool taken = kvt_cpu_portable.encode[codec](&unit, room, 2 * stride, want, &n[0]);
        CHECK_EQ(kvt_cpu_encoder(codec)(&unit, room, 2 * stride, got, &n[1]), taken);
        CHECK_EQ(n[0], n[1]);
        CHECK_MSG(!taken || memcmp(want, got, bytes) == 0, "%s, codec %s, dtype %u, %u x %u",
                  kvt_cpu()->name, kvt_codec_name(codec), unit.dtype, unit.rows, unit.dim);
        if (taken) {
            uint32_t first = check_below(&seed, unit.rows);
            uint32_t rows = 1 + check_below(&seed, unit.rows - first);
            kvt_cpu_portable.decode[codec](&unit, want, first, rows, a, 2 * (size_t)unit.dim);
            kvt_cpu_decoder(codec)(&unit, want, first, rows, b, 2 * (size_t)unit.dim);
            CHECK_MSG(memcmp(a, b, 2 * (size_t)unit.dim * rows) == 0,
                      "%s decodes codec %s, dtype %u, dim %u", kvt_cpu()->name,
                      kvt_codec_name(codec), unit.dtype, unit.dim);
        }
        free(want);
        free(got);
    }
}

static void test_choice(void) {
    setenv("KVT_CPU", "portable", 1);
    kvt_cpu_use(NULL);
    CHECK(kvt_cpu() == &kvt_cpu_portable);
    setenv("KVT_CPU", "no such path", 1);
    kvt_cpu_use(NULL);
    CHECK(kvt_cpu() == &kvt_cpu_portable);
    CHECK(!kvt_cpu_find("no such path") && kvt_cpu_find("portable") == &kvt_cpu_portable);
    CHECK(!kvt_cpu_encoder(0) && !kvt_cpu_decoder(0));
    CHECK(!kvt_cpu_encoder(KVT_N_CODECS) && !kvt_cpu_decoder(UINT32_MAX));
    unsetenv("KVT_CPU");
    kvt_cpu_use(NULL);
    CHECK(kvt_cpu() != NULL);
}

int main(void) {
    static const double quality[KVT_N_CODECS] = {
        [KVT_CODEC_FP8T] = .0266, [KVT_CODEC_FP8S_E4M3] = .0273, [KVT_CODEC_FP8S_E5M2] = .0545,
        [KVT_CODEC_I8V] = .0067,  [KVT_CODEC_I8K] = .0061,       [KVT_CODEC_I4K] = .0927,
        [KVT_CODEC_I2K] = .363,   [KVT_CODEC_I4S] = .100,        [KVT_CODEC_W4V] = .095,
        [KVT_CODEC_W2V] = .359,
    };
    test_choice();
    const char *const paths[] = {"portable", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        const kvt_cpu_path *path = kvt_cpu_find(paths[i]);
        if (!path)
            continue;
        kvt_cpu_use(path);
        for (uint32_t codec = 1; codec < KVT_N_CODECS; codec++) {
            test_bounds(codec);
            if (quality[codec] > 0)
                test_quality(codec, quality[codec]);
            test_refusals(codec);
            test_garbage(codec);
            test_path(codec);
        }
        test_saturation();
        printf("%s\n", path->name);
    }
    return 0;
}
