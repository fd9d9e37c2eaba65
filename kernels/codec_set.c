/* Codec sets: a recursive-descent parser of the grammar in FORMAT.md, CODEC SETS. */
#include "kernels/codec_set.h"

#include <string.h>

#include "kernels/say.h"

static const char *const codec_names[] = {
    [KVT_CODEC_RAW16] = "raw16",
    [KVT_CODEC_FP8T] = "fp8t",
    [KVT_CODEC_FP8S_E4M3] = "fp8s_e4m3",
    [KVT_CODEC_FP8S_E5M2] = "fp8s_e5m2",
    [KVT_CODEC_I8V] = "i8v",
    [KVT_CODEC_I8K] = "i8k",
    [KVT_CODEC_I4K] = "i4k",
    [KVT_CODEC_I2K] = "i2k",
    [KVT_CODEC_I4S] = "i4s",
    [KVT_CODEC_W4V] = "w4v",
    [KVT_CODEC_W2V] = "w2v",
};
enum { N_CODEC_NAMES = sizeof codec_names / sizeof codec_names[0] };

typedef struct named_set {
    const char *name;
    uint8_t kv[2];
    uint8_t mla[2]; /* 0: there is no such set for MLA */
} named_set;

static const named_set named_sets[] = {
    {"f16", {KVT_CODEC_RAW16, KVT_CODEC_RAW16}, {KVT_CODEC_RAW16, KVT_CODEC_RAW16}},
    {"fp8", {KVT_CODEC_FP8T, KVT_CODEC_FP8T}, {KVT_CODEC_FP8T, KVT_CODEC_RAW16}},
    {"i8", {KVT_CODEC_I8K, KVT_CODEC_I8V}, {KVT_CODEC_I8V, KVT_CODEC_I8V}},
    {"k8v4", {KVT_CODEC_I8K, KVT_CODEC_W4V}, {0, 0}},
    {"i4", {KVT_CODEC_I4K, KVT_CODEC_W4V}, {KVT_CODEC_W4V, KVT_CODEC_RAW16}},
    {"i2", {KVT_CODEC_I2K, KVT_CODEC_W2V}, {KVT_CODEC_W2V, KVT_CODEC_RAW16}},
};

static const char *const part_names[2][2] = {{"k", "v"}, {"latent", "rope"}}; /* KV, MLA */

#define SCALE_MIN 0x1p-24f
#define SCALE_MAX 0x1p24f

const char *kvt_codec_name(uint32_t codec) {
    return codec < N_CODEC_NAMES ? codec_names[codec] : NULL;
}

static int is_fp8s(uint32_t codec) {
    return codec == KVT_CODEC_FP8S_E4M3 || codec == KVT_CODEC_FP8S_E5M2;
}

/* The rotary part carries every position in a tenth of the bytes: nothing below 8 bits for it. */
static int is_below_8_bits(uint32_t codec) {
    return codec == KVT_CODEC_I4K || codec == KVT_CODEC_I2K || codec == KVT_CODEC_I4S ||
           codec == KVT_CODEC_W4V || codec == KVT_CODEC_W2V;
}

int kvt_codec_fits(uint32_t codec, float scale, uint32_t kind, uint32_t part) {
    if (!kvt_codec_name(codec))
        return 0;
    if (kind == KVT_MLA && part == 1 && is_below_8_bits(codec))
        return 0;
    if (is_fp8s(codec))
        return scale >= SCALE_MIN && scale <= SCALE_MAX;
    return memcmp(&scale, &(float){0}, sizeof scale) == 0; /* not -0 either: one form only */
}

typedef struct parser {
    const char *text;
    const char *at;
    uint32_t kind;
    uint32_t n_layers;
    char *why;
    size_t why_bytes;
} parser;

static kvt_status fail(const parser *p, kvt_status status, const char *what) {
    return kvt_say(p->why, p->why_bytes, status, "codec set \"%.60s\", character %u: %s", p->text,
                   (unsigned)(p->at - p->text) + 1, what);
}

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

static int is_word(char c) {
    return (c >= 'a' && c <= 'z') || c == '_' || is_digit(c);
}

/* Takes `word` if it stands here and does not go on as a longer word. */
static int take_word(parser *p, const char *word) {
    size_t length = strlen(word);
    if (strncmp(p->at, word, length) != 0 || is_word(p->at[length]))
        return 0;
    p->at += length;
    return 1;
}

static int take_char(parser *p, char c) {
    if (*p->at != c)
        return 0;
    p->at++;
    return 1;
}

static kvt_status parse_number(parser *p, uint32_t *ret_number) {
    uint32_t number = 0;
    if (!is_digit(*p->at))
        return fail(p, KVT_ESYNTAX, "a layer number is missing");
    for (; is_digit(*p->at); p->at++) {
        if (number > KVT_MAX_LAYERS)
            return fail(p, KVT_ESYNTAX, "the layer number is too large");
        number = number * 10 + (uint32_t)(*p->at - '0');
    }
    *ret_number = number;
    return KVT_OK;
}

/* 10^exponent, 0 .. 22: the powers that binary64 holds exactly. */
static double power_of_ten(int exponent) {
    double power = 1;
    for (int i = 0; i < exponent; i++)
        power *= 10;
    return power;
}

/*
 * Digits as one integer below 10^15, and where the point stands: integer and power of ten are both
 * exact in binary64, so one multiplication or division gives the nearest binary64. strtod would ask
 * the locale what a decimal point is.
 */
static kvt_status parse_scale(parser *p, float *ret_scale) {
    const char *start = p->at;
    uint64_t digits = 0;
    int n_digits = 0, exponent = 0, seen_point = 0;
    for (; is_digit(*p->at) || (*p->at == '.' && !seen_point); p->at++) {
        if (*p->at == '.') {
            seen_point = 1;
            continue;
        }
        if (++n_digits > 15)
            return fail(p, KVT_ESYNTAX, "a scale has at most 15 digits");
        digits = digits * 10 + (uint64_t)(*p->at - '0');
        exponent -= seen_point;
    }
    if (n_digits == 0)
        return fail(p, KVT_ESYNTAX, "a scale is missing");
    if (take_char(p, 'e')) {
        int negative = take_char(p, '-'), value = 0;
        if (!negative)
            take_char(p, '+');
        if (!is_digit(*p->at))
            return fail(p, KVT_ESYNTAX, "an exponent is missing");
        for (; is_digit(*p->at) && value < 100; p->at++)
            value = value * 10 + (*p->at - '0');
        exponent += negative ? -value : value;
    }
    if (exponent < -22 || exponent > 22)
        return fail(p, KVT_ESYNTAX, "the scale's exponent is out of range");
    double value = exponent < 0 ? (double)digits / power_of_ten(-exponent)
                                : (double)digits * power_of_ten(exponent);
    if (!(value >= (double)SCALE_MIN && value <= (double)SCALE_MAX)) {
        p->at = start;
        return fail(p, KVT_ESYNTAX, "a scale lies between 2^-24 and 2^24");
    }
    *ret_scale = (float)value;
    return KVT_OK;
}

static kvt_status parse_unit(parser *p, uint32_t part, kvt_codec_range *range) {
    const char *start = p->at;
    uint32_t codec = 1;
    while (codec < N_CODEC_NAMES && !take_word(p, codec_names[codec]))
        codec++;
    if (codec == N_CODEC_NAMES)
        return fail(p, KVT_ESYNTAX, "not the name of a codec");
    float scale = 0;
    if (is_fp8s(codec)) {
        if (!take_char(p, ':'))
            return fail(p, KVT_ESYNTAX, "fp8s needs a scale, as in fp8s_e4m3:0.5");
        kvt_status status = parse_scale(p, &scale);
        if (status != KVT_OK)
            return status;
    }
    if (!kvt_codec_fits(codec, scale, p->kind, part)) {
        p->at = start;
        return fail(p, KVT_ENOTSUP, "the rotary part is not stored in less than 8 bits");
    }
    range->codec[part] = (uint8_t)codec;
    range->scale[part] = scale;
    return KVT_OK;
}

static kvt_status parse_parts(parser *p, const char *const names[2], kvt_codec_range *range) {
    for (uint32_t part = 0; part < 2; part++) {
        if (part == 1 && !take_char(p, ','))
            return fail(p, KVT_ESYNTAX, "',' and the other part's codec are missing");
        if (!take_word(p, names[part]) || !take_char(p, ':'))
            return fail(p, KVT_ESYNTAX,
                        p->kind == KVT_MLA ? "MLA has latent:...,rope:..."
                                           : "K and V are named k:...,v:...");
        kvt_status status = parse_unit(p, part, range);
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

static int stands_part_name(parser *p) {
    const char *start = p->at;
    int found = 0;
    for (int i = 0; i < 4 && !found; i++) {
        found = take_word(p, part_names[i / 2][i % 2]) && take_char(p, ':');
        p->at = start;
    }
    return found;
}

static kvt_status parse_pair(parser *p, kvt_codec_range *range) {
    const char *start = p->at;
    for (size_t i = 0; i < sizeof named_sets / sizeof named_sets[0]; i++) {
        if (!take_word(p, named_sets[i].name))
            continue;
        const uint8_t *codec = p->kind == KVT_MLA ? named_sets[i].mla : named_sets[i].kv;
        if (codec[0] == 0) {
            p->at = start;
            return fail(p, KVT_ENOTSUP, "this set needs K and V, MLA has neither");
        }
        memcpy(range->codec, codec, sizeof range->codec);
        return KVT_OK;
    }
    if (stands_part_name(p))
        return parse_parts(p, part_names[p->kind == KVT_MLA], range);
    kvt_status status = parse_unit(p, 0, range);
    if (status == KVT_OK) {
        p->at = start;
        status = parse_unit(p, 1, range);
    }
    return status;
}

static kvt_status parse_layers(parser *p, uint32_t next_layer, kvt_codec_range *range) {
    const char *start = p->at;
    uint32_t first = next_layer, last = p->n_layers - 1;
    if (!take_word(p, "rest")) {
        kvt_status status = parse_number(p, &first);
        last = first;
        if (status == KVT_OK && take_char(p, '-'))
            status = parse_number(p, &last);
        if (status != KVT_OK)
            return status;
    } else if (next_layer == p->n_layers) {
        p->at = start;
        return fail(p, KVT_ENOTSUP, "no layer is left for the rest");
    }
    if (first != next_layer || last < first) {
        p->at = start;
        return fail(p, KVT_ESYNTAX, "layers must go on where the range before ended, from 0");
    }
    if (last >= p->n_layers) {
        p->at = start;
        return fail(p, KVT_ENOTSUP, "the geometry has fewer layers");
    }
    range->first_layer = (uint16_t)first;
    range->n_layers = (uint16_t)(last - first + 1);
    return KVT_OK;
}

static kvt_status parse_ranges(parser *p, kvt_codec_set *set) {
    uint32_t next_layer = 0;
    do {
        if (set->n_ranges == KVT_PAGE_MAX_RANGES)
            return fail(p, KVT_ESYNTAX, "at most 4 ranges of layers");
        kvt_codec_range *range = &set->ranges[set->n_ranges++];
        kvt_status status = parse_layers(p, next_layer, range);
        if (status == KVT_OK && !take_char(p, ':'))
            status = fail(p, KVT_ESYNTAX, "':' is missing");
        if (status == KVT_OK)
            status = parse_pair(p, range);
        if (status != KVT_OK)
            return status;
        next_layer = (uint32_t)range->first_layer + range->n_layers;
    } while (take_char(p, ';'));
    if (*p->at == '\0' && next_layer < p->n_layers)
        return fail(p, KVT_ENOTSUP, "the geometry has more layers");
    return KVT_OK;
}

static int stands_range(parser *p) {
    const char *start = p->at;
    int found = is_digit(*start) || take_word(p, "rest");
    p->at = start;
    return found;
}

kvt_status kvt_codec_set_parse(const char *text, uint32_t kind, uint32_t n_layers, char *why,
                               size_t why_bytes, kvt_codec_set *ret_set) {
    if (!text || !text[0])
        text = "f16";
    parser p = {text, text, kind, n_layers, why, why_bytes};
    kvt_codec_set set;
    memset(&set, 0, sizeof set);
    kvt_status status;
    if (stands_range(&p)) {
        status = parse_ranges(&p, &set);
    } else {
        set.n_ranges = 1;
        set.ranges[0].n_layers = (uint16_t)n_layers;
        status = parse_pair(&p, &set.ranges[0]);
    }
    if (status == KVT_OK && *p.at != '\0')
        status = fail(&p, KVT_ESYNTAX, "the text should have ended here");
    if (status == KVT_OK)
        *ret_set = set;
    return status;
}
