/*
 * The scalar conversions of kernels/unit.h against a slow oracle: a table of all values of the
 * narrow format, and the nearest of them, ties to the even code.
 *
 *     test_convert          every narrow value, every border between two, and the floats beside it
 *     test_convert long     all 2^32 floats
 */
#include <math.h>

#include "kernels/unit.h"
#include "tests/check.h"

/* The magnitudes of a format as doubles, in order. The last is the first that is too large. */
typedef struct format {
    const char *name;
    uint32_t mantissa, bias;
    uint32_t largest; /* code of the largest finite magnitude */
    uint32_t over;    /* what larger magnitudes become: an infinity, or the largest */
    uint32_t sign;
    uint32_t (*convert)(float f);
    double *values;
} format;

static uint32_t to_half(float f) {
    return kvt_half_of_float(f);
}
static uint32_t to_bf16(float f) {
    return kvt_bf16_of_float(f);
}
static uint32_t to_e4m3(float f) {
    return kvt_e4m3_of_float(f);
}
static uint32_t to_e5m2(float f) {
    return kvt_e5m2_of_float(f);
}

static format formats[] = {
    {"binary16", 10, 15, 0x7bff, 0x7c00, 0x8000, to_half, NULL},
    {"bfloat16", 7, 127, 0x7f7f, 0x7f80, 0x8000, to_bf16, NULL},
    {"e4m3", 3, 7, 0x7e, 0x7e, 0x80, to_e4m3, NULL},
    {"e5m2", 2, 15, 0x7b, 0x7b, 0x80, to_e5m2, NULL},
};
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

static void make_tables(void) {
    for (int i = 0; i < N_FORMATS; i++) {
        format *f = &formats[i];
        f->values = calloc(f->largest + 2, sizeof *f->values);
        CHECK(f->values);
        for (uint32_t code = 0; code <= f->largest + 1; code++) {
            int exponent = (int)(code >> f->mantissa), first = 1 - (int)f->bias;
            double fraction = (double)(code & ((1u << f->mantissa) - 1)) / (1u << f->mantissa);
            f->values[code] = exponent == 0 ? ldexp(fraction, first)
                                            : ldexp(1 + fraction, exponent - (int)f->bias);
        }
    }
}

/* Where *at is some code below the magnitude: moves on to the last such, and rounds. */
static uint32_t nearest(const format *f, double magnitude, uint32_t *at) {
    while (*at <= f->largest && f->values[*at + 1] <= magnitude)
        ++*at;
    if (*at > f->largest)
        return f->over;
    double below = magnitude - f->values[*at], above = f->values[*at + 1] - magnitude;
    uint32_t code = *at + (above < below || (above == below && *at % 2 == 1));
    return code > f->largest ? f->over : code;
}

static void check_float(const format *f, uint32_t bits, uint32_t *at) {
    uint32_t want = nearest(f, (double)kvt_float_of_bits(bits), at);
    uint32_t got = f->convert(kvt_float_of_bits(bits));
    uint32_t negative = f->convert(kvt_float_of_bits(bits | 0x80000000u));
    CHECK_MSG(got == want, "%s of float %08x is %x, not %x", f->name, bits, got, want);
    CHECK_MSG(negative == (want | f->sign), "%s of float %08x is %x, not %x", f->name,
              bits | 0x80000000u, negative, want | f->sign);
}

static void check_nan(const format *f, uint32_t bits) {
    for (uint32_t sign = 0; sign < 2; sign++) {
        uint32_t got = f->convert(kvt_float_of_bits(bits | sign << 31));
        int is_nan = f->sign == 0x80 ? got == 0x7f : (got & (f->sign - 1)) > f->over;
        CHECK_MSG(is_nan, "%s of NaN %08x is %x", f->name, bits | sign << 31, got);
    }
}

/* Narrowing: around every value and every border between two values. */
static void test_borders(const format *f) {
    for (uint32_t code = 0; code <= f->largest; code++) {
        double points[2] = {f->values[code], (f->values[code] + f->values[code + 1]) / 2};
        for (int i = 0; i < 2; i++) {
            uint32_t bits = kvt_float_bits((float)points[i]), at = code > 1 ? code - 2 : 0;
            for (uint32_t b = bits > 2 ? bits - 2 : 0; b <= bits + 2; b++)
                check_float(f, b, &at);
        }
    }
    uint32_t at = 0;
    const uint32_t extremes[] = {0, 1, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000};
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++)
        check_float(f, extremes[i], &at);
    check_nan(f, 0x7f800001);
    check_nan(f, 0x7fc00000);
    check_nan(f, 0x7fffffff);
}

/* Widening: every code has the value of the table. */
static void test_widening(void) {
    for (uint32_t code = 0; code < 0x10000; code++) {
        uint32_t magnitude = code & 0x7fff;
        double sign = code & 0x8000 ? -1 : 1;
        float half = kvt_float_of_half((uint16_t)code), bf16 = kvt_float_of_bf16((uint16_t)code);
        CHECK_MSG(magnitude > 0x7bff || (double)half == sign * formats[0].values[magnitude],
                  "half %04x is %a", code, (double)half);
        CHECK(magnitude != 0x7c00 || (isinf(half) && (half < 0) == (sign < 0)));
        CHECK(magnitude <= 0x7c00 || isnan(half));
        CHECK_MSG(magnitude > 0x7f7f || (double)bf16 == sign * formats[1].values[magnitude],
                  "bf16 %04x is %a", code, (double)bf16);
        CHECK(!signbit(half) == !(code & 0x8000) || isnan(half));
        /* There and back, and through every other conversion. */
        CHECK(magnitude > 0x7c00 || kvt_half_of_float(half) == code);
        CHECK(magnitude > 0x7f80 || kvt_bf16_of_float(bf16) == code);
        for (int i = 0; i < N_FORMATS && magnitude <= 0x7c00; i++) {
            uint32_t at = 0;
            check_float(&formats[i], kvt_float_bits(half) & 0x7fffffff, &at);
        }
        CHECK_EQ(kvt_is_refused(KVT_F16, (uint16_t)code), !(fabsf(half) <= 8192));
        CHECK_EQ(kvt_is_refused(KVT_BF16, (uint16_t)code), !(fabsf(bf16) <= 8192));
    }
    for (uint32_t code = 0; code < 0x100; code++) {
        uint32_t magnitude = code & 0x7f;
        double sign = code & 0x80 ? -1 : 1;
        float e4m3 = kvt_float_of_e4m3((uint8_t)code), e5m2 = kvt_float_of_e5m2((uint8_t)code);
        CHECK(magnitude == 0x7f ? isnan(e4m3)
                                : (double)e4m3 == sign * formats[2].values[magnitude]);
        CHECK(magnitude > 0x7b || (double)e5m2 == sign * formats[3].values[magnitude]);
        CHECK(magnitude == 0x7f || kvt_e4m3_of_float(e4m3) == code);
        CHECK(magnitude > 0x7b || kvt_e5m2_of_float(e5m2) == code);
    }
    CHECK(!kvt_e4m3_saturates(464) && kvt_e4m3_saturates(nextafterf(464, 500)));
    CHECK(kvt_e5m2_saturates(-61440) && !kvt_e5m2_saturates(nextafterf(61440, 0)));
}

static void test_integers(void) {
    uint64_t seed = 7;
    for (int i = 0; i < 1000000; i++) {
        double big = (double)(int32_t)check_random(&seed) / 1024; /* up to 2^21 */
        float f = i % 2 ? (float)big : (float)(rint(big) / 2);
        CHECK_EQ(kvt_rint(f), lrintf(f));
    }
    CHECK_EQ(kvt_rint(-0.5f), 0);
    CHECK_EQ(kvt_rint(4194304.0f), 4194304);
    CHECK_EQ(kvt_rint(-4194304.0f), -4194304);
    for (uint32_t code = 0; code < 256; code++) {
        CHECK_EQ(kvt_signed_code(code, 8), (int8_t)code);
        CHECK_EQ(kvt_signed_code(code, 4), (int32_t)(code & 15) - (code & 8 ? 16 : 0));
    }
    CHECK(kvt_inverse(0) == 0.0f && kvt_inverse(4) == 0.25f);
}

static void test_transform(void) {
    uint64_t seed = 9;
    for (uint32_t n = 16; n <= 128; n *= 2) {
        int16_t in[128], out[128];
        for (int round = 0; round < 20; round++) {
            for (uint32_t i = 0; i < n; i++)
                in[i] = out[i] = (int16_t)(round == 0 ? 255 : (int)check_below(&seed, 511) - 255);
            kvt_walsh_hadamard(out, n);
            for (uint32_t k = 0; k < n; k++) {
                int sum = 0;
                for (uint32_t i = 0; i < n; i++)
                    sum += __builtin_popcount(i & k) % 2 ? -in[i] : in[i];
                CHECK_EQ(out[k], sum);
            }
        }
    }
    const uint32_t dims[][2] = {{64, 64},   {80, 16},   {96, 32},    {100, 16},
                                {112, 16},  {128, 128}, {192, 64},   {256, 128},
                                {512, 128}, {2, 16},    {1024, 128}, {34, 16}};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        CHECK_EQ(kvt_rotation_block(dims[i][0]), dims[i][1]);
}

static void all_floats(const format *f) {
    uint32_t at = 0;
    for (uint32_t bits = 0; bits <= 0x7f800000u; bits++)
        check_float(f, bits, &at);
    for (uint32_t bits = 0x7f800001u; bits <= 0x7fffffffu; bits++)
        check_nan(f, bits);
    printf("%s: all floats\n", f->name);
}

int main(int argc, char **argv) {
    make_tables();
    test_widening();
    test_integers();
    test_transform();
    for (int i = 0; i < N_FORMATS; i++) {
        test_borders(&formats[i]);
        if (argc == 2 && strcmp(argv[1], "long") == 0)
            all_floats(&formats[i]);
        free(formats[i].values);
    }
    return 0;
}
