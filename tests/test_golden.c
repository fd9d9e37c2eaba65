/*
 * Golden vectors (tests/golden/make_golden.py says what the files hold): every path that this
 * machine can run encodes and decodes them to the same bits.
 *
 *     test_golden DIRECTORY
 */
#include "kernels/codec_set.h"
#include "kernels/cpu.h"
#include "kernels/page.h"
#include "tests/kv_kit.h"

typedef struct file {
    uint8_t *bytes;
    size_t n, at;
} file;

static file file_read(const char *directory, const char *name) {
    char path[4096];
    CHECK((size_t)snprintf(path, sizeof path, "%s/%s", directory, name) < sizeof path);
    FILE *in = fopen(path, "rb");
    CHECK_MSG(in, "%s", path);
    CHECK(fseek(in, 0, SEEK_END) == 0);
    long n = ftell(in);
    CHECK(n > 0);
    rewind(in);
    file f = {malloc((size_t)n), (size_t)n, 0};
    CHECK(f.bytes && fread(f.bytes, 1, f.n, in) == f.n);
    fclose(in);
    return f;
}

static const void *take(file *f, size_t n) {
    CHECK(n <= f->n - f->at);
    const void *at = f->bytes + f->at;
    f->at += n;
    return at;
}

static uint32_t take_u32(file *f) {
    uint32_t value;
    memcpy(&value, take(f, sizeof value), sizeof value);
    return value;
}

/* A copy of exactly these bytes, so that a sanitizer sees what is read beside them. */
static void *copy_of(const void *bytes, size_t n) {
    void *copy = malloc(n ? n : 1);
    CHECK(copy);
    memcpy(copy, bytes, n);
    return copy;
}

static void check_same(const void *got, const void *want, size_t n, const char *what,
                       const kvt_unit *unit, size_t record) {
    const uint8_t *a = got, *b = want;
    for (size_t i = 0; i < n; i++)
        CHECK_MSG(a[i] == b[i],
                  "%s, unit %zu: codec %s, dtype %u, %u x %u: %s byte %zu is %02x, not %02x",
                  kvt_cpu()->name, record, kvt_codec_name(unit->codec), unit->dtype, unit->rows,
                  unit->dim, what, i, a[i], b[i]);
}

/* The encoded unit decodes to the golden bits, whole and row by row, at any stride. */
static void check_decoding(const kvt_unit *unit, const void *encoded, const uint16_t *want,
                           size_t record) {
    size_t row = 2 * (size_t)unit->dim, gap = row + 6;
    kvt_decode_unit *decode = kvt_cpu_decoder(unit->codec);
    uint8_t *out = malloc(gap * unit->rows);
    CHECK(out);
    decode(unit, encoded, 0, unit->rows, out, row);
    check_same(out, want, row * unit->rows, "decoded", unit, record);
    memset(out, 0xa5, gap * unit->rows);
    for (uint32_t r = unit->rows; r-- > 0;)
        decode(unit, encoded, r, 1, out + r * gap, gap);
    for (uint32_t r = 0; r < unit->rows; r++) {
        check_same(out + r * gap, want + r * unit->dim, row, "decoded row", unit, record);
        for (size_t i = row; i < gap; i++)
            CHECK_EQ(out[r * gap + i], 0xa5);
    }
    free(out);
}

/* The elements encode to the golden bytes, with rows side by side and apart. */
static void check_encoding(const kvt_unit *unit, const uint8_t *elements, const uint8_t *want,
                           uint32_t saturated, size_t record) {
    size_t row = 2 * (size_t)unit->dim;
    size_t bytes = kvt_unit_layout_of(unit->codec, unit->dim, unit->rows).bytes;
    uint8_t *to = aligned_alloc(KVT_UNIT_ALIGN_BYTES, bytes);
    CHECK(to);
    for (size_t gap = 0; gap <= 2; gap += 2) {
        uint8_t *from = malloc(row * unit->rows + gap * (unit->rows - 1));
        CHECK(from);
        for (uint32_t r = 0; r < unit->rows; r++)
            memcpy(from + r * (row + gap), elements + r * row, row);
        uint32_t count = 5;
        memset(to, 0xee, bytes);
        bool taken = kvt_cpu_encoder(unit->codec)(unit, from, row + gap, to, &count);
        CHECK_MSG(taken == (want != NULL), "unit %zu", record);
        CHECK_MSG(count == 5 + saturated, "unit %zu: %u saturated, not %u", record, count - 5,
                  saturated);
        if (want)
            check_same(to, want, bytes, "encoded", unit, record);
        free(from);
    }
    free(to);
}

static void check_unit(file *f, size_t record) {
    enum { TAKEN, REFUSED, ONLY_DECODED };
    kvt_unit unit;
    unit.codec = take_u32(f);
    unit.dtype = take_u32(f);
    unit.dim = take_u32(f);
    unit.rows = take_u32(f);
    memcpy(&unit.scale, take(f, 4), 4);
    uint32_t kind = take_u32(f), saturated = take_u32(f), bytes = take_u32(f);
    size_t row = 2 * (size_t)unit.dim;
    const uint8_t *elements = kind == ONLY_DECODED ? NULL : take(f, row * unit.rows);
    if (kind == REFUSED) {
        check_encoding(&unit, elements, NULL, 0, record);
        return;
    }
    CHECK_EQ(bytes, kvt_unit_layout_of(unit.codec, unit.dim, unit.rows).bytes);
    void *encoded = copy_of(take(f, bytes), bytes);
    uint16_t *decoded = copy_of(take(f, row * unit.rows), row * unit.rows);
    if (kind == TAKEN)
        check_encoding(&unit, elements, encoded, saturated, record);
    check_decoding(&unit, encoded, decoded, record);
    free(encoded);
    free(decoded);
}

/* Rows from_token .. of the buffers, [part][layer][head][row][dim]. */
static void fill(file *f, kv_kit *kit, uint32_t from_token, uint32_t to_token) {
    for (int p = 0; p < 2; p++)
        for (uint32_t l = 0; l < kit->n_layers; l++)
            for (uint32_t h = 0; h < kit->geometry.n_kv_heads; h++)
                for (uint32_t t = from_token; t < to_token; t++) {
                    size_t row = 2 * (size_t)kit->geometry.head_dim[p];
                    memcpy(kv_row(kit, p, l, h, t), take(f, row), row);
                }
}

/* Takes the steps of a page record, encoding as it goes. */
static void *make_page(file *f, const kvt_page_shape *shape, const kvt_geometry *g,
                       uint32_t n_steps, kv_style style, size_t *ret_bytes) {
    size_t room = kvt_page_max_bytes(shape), bytes = 0;
    void *page = page_new(room), *next = page_new(room);
    for (uint32_t i = 0; i < n_steps; i++) {
        uint32_t keep = take_u32(f), rows = take_u32(f), is_first = take_u32(f);
        kv_kit from = kv_new(g, g->n_layers, g->page_tokens, style);
        fill(f, &from, keep, rows);
        CHECK_EQ(kvt_page_encode_cow(shape, page, bytes, keep, rows, &from.layout, (int)is_first,
                                     next, room, &bytes),
                 KVT_OK);
        kv_free(&from);
        void *swap = page;
        page = next;
        next = swap;
    }
    free(next);
    *ret_bytes = bytes;
    return page;
}

static void check_page(file *f, size_t record) {
    kvt_geometry g;
    kvt_geometry_init(&g, 1, 1, 2, 16);
    g.kind = take_u32(f);
    g.dtype = take_u32(f);
    g.n_layers = g.groups[0].n_layers = take_u32(f);
    g.n_kv_heads = take_u32(f);
    g.head_dim[0] = take_u32(f);
    g.head_dim[1] = take_u32(f);
    g.page_tokens = take_u32(f);
    uint32_t text_bytes = take_u32(f), n_steps = take_u32(f), want_bytes = take_u32(f);
    uint32_t want_rows = take_u32(f), saturated = take_u32(f), rows = 0;
    char text[200] = "", why[200] = "";
    CHECK(text_bytes < sizeof text);
    memcpy(text, take(f, text_bytes), text_bytes);
    kvt_page_shape shape;
    CHECK_EQ(kvt_geometry_check(&g, why, sizeof why), KVT_OK);
    CHECK_MSG(kvt_page_shape_init(&g, 0, text, why, sizeof why, &shape) == KVT_OK, "%s", why);
    size_t bytes;
    uint8_t *page = make_page(f, &shape, &g, n_steps, (kv_style)(record % KV_N_STYLES), &bytes);
    const uint8_t *want = take(f, want_bytes);
    CHECK_MSG(bytes == want_bytes, "page %zu (%s): %zu bytes, not %u", record, text, bytes,
              want_bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK_MSG(page[i] == want[i], "%s, page %zu (%s): byte %zu is %02x, not %02x",
                  kvt_cpu()->name, record, text, i, page[i], want[i]);
    CHECK_EQ(kvt_page_check(&shape, page, bytes, 1, &rows), KVT_OK);
    CHECK_EQ(rows, want_rows);
    kvt_page_info info;
    kvt_page_get(page, &info);
    CHECK_EQ(info.saturated, saturated);
    kv_kit got = kv_new(&g, g.n_layers, rows, KV_GAPS),
           decoded = kv_new(&g, g.n_layers, rows, KV_GAPS);
    CHECK_EQ(kvt_page_decode(&shape, page, bytes, 0, rows, 0, g.n_layers, &got.layout), KVT_OK);
    fill(f, &decoded, 0, rows);
    CHECK_MSG(kv_equal(&got, 0, 0, &decoded, 0, 0, g.n_layers, rows), "%s, page %zu (%s)",
              kvt_cpu()->name, record, text);
    kv_free(&got);
    kv_free(&decoded);
    free(page);
}

int main(int argc, char **argv) {
    CHECK_MSG(argc == 2, "usage: test_golden DIRECTORY");
    file units = file_read(argv[1], "units.bin"), pages = file_read(argv[1], "pages.bin");
    const char *const paths[] = {"portable", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        const kvt_cpu_path *path = kvt_cpu_find(paths[i]);
        if (!path)
            continue;
        kvt_cpu_use(path);
        size_t n_units = 0, n_pages = 0;
        for (units.at = 0; units.at < units.n; n_units++)
            check_unit(&units, n_units);
        for (pages.at = 0; pages.at < pages.n; n_pages++)
            check_page(&pages, n_pages);
        printf("%s: %zu units, %zu pages\n", path->name, n_units, n_pages);
    }
    free(units.bytes);
    free(pages.bytes);
    return 0;
}
