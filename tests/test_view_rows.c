/*
 * test_view_rows.c - which rows a view has, against trying the next best row as long as there is
 * room; and runs against rows one by one.
 */
#include "daemon/view_rows.h"

#include "tests/check.h"

enum { MAX_ROWS = 700 };

static uint64_t random_state = 77;

static int has(const uint64_t *rows, uint32_t row) {
    return rows[row / 64] >> row % 64 & 1;
}

/* One after the other: of those left the most important one, the last of equals. */
static uint32_t choose_slowly(const uint16_t *importance, uint32_t n_rows, uint32_t sinks,
                              uint32_t window, uint32_t budget, uint8_t *is_in) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        is_in[i] = i < sinks || (uint64_t)i + window >= n_rows;
        n += is_in[i];
    }
    for (; importance && n < budget; n++) {
        uint32_t best = n_rows;
        for (uint32_t i = 0; i < n_rows; i++)
            if (!is_in[i] && importance[i] > 0 &&
                (best == n_rows || importance[i] >= importance[best]))
                best = i;
        if (best == n_rows)
            break;
        is_in[best] = 1;
    }
    return n;
}

static void check_runs(const uint64_t *rows, uint32_t n_rows) {
    uint32_t at = 0, first, n;
    while ((n = view_rows_run(rows, n_rows, at, &first)) > 0) {
        for (; at < first; at++)
            CHECK(!has(rows, at));
        for (; at < first + n; at++)
            CHECK(at < n_rows && has(rows, at));
        CHECK(at == n_rows || !has(rows, at));
    }
    for (; at < n_rows; at++)
        CHECK(!has(rows, at));
}

static void check_choice(const uint16_t *importance, uint32_t n_rows, uint32_t sinks,
                         uint32_t window, uint32_t budget) {
    static uint64_t rows[MAX_ROWS / 64 + 2];
    static uint8_t expected[MAX_ROWS];
    memset(rows, 0xa5, sizeof rows);
    uint32_t n = view_rows_choose(importance, n_rows, sinks, window, budget, rows);
    CHECK_EQ(n, choose_slowly(importance, n_rows, sinks, window, budget, expected));
    for (uint32_t i = 0; i < n_rows; i++)
        CHECK_MSG(has(rows, i) == expected[i],
                  "row %u of %u, with %u sinks, window %u, budget %u: %d, expected %d", i, n_rows,
                  sinks, window, budget, has(rows, i), expected[i]);
    for (uint32_t i = n_rows; i < view_words(n_rows) * 64; i++)
        CHECK(!has(rows, i));
    check_runs(rows, n_rows);
}

/* Numbers of several kinds: all different, a few values, most of them unknown, the extremes. */
static uint16_t some_importance(uint32_t kind) {
    uint32_t x = (uint32_t)check_random(&random_state);
    return (uint16_t)(kind == 0   ? x
                      : kind == 1 ? x % 4 * 0x3f01u
                      : kind == 2 ? (x % 8 ? 0 : x >> 8)
                                  : (x & 1) * 0xffffu);
}

static void test_random(void) {
    static uint16_t importance[MAX_ROWS];
    for (int round = 0; round < 4000; round++) {
        uint32_t n_rows = check_below(&random_state, MAX_ROWS + 1);
        for (uint32_t i = 0; i < n_rows; i++)
            importance[i] = some_importance((uint32_t)round % 4);
        uint32_t sinks = check_below(&random_state, 3) ? check_below(&random_state, 80) : 0;
        uint32_t window = check_below(&random_state, 3) ? check_below(&random_state, 400) : 0;
        uint32_t budget =
            check_below(&random_state, 4) ? sinks + window + check_below(&random_state, 200) : 0;
        check_choice(round % 16 ? importance : NULL, n_rows, sinks, window, budget);
    }
}

static void test_ends(void) {
    static const uint16_t importance[] = {9, 9, 0, 1, 9, 1, 0, 9};
    check_choice(importance, 0, 1, 1, 10);
    check_choice(importance, 8, 100, 0, 200);
    check_choice(importance, 8, 0, UINT32_MAX, UINT32_MAX);
    check_choice(importance, 8, UINT32_MAX, UINT32_MAX, 0);
    check_choice(importance, 8, 1, 1, 8);   /* what is not known is not picked */
    check_choice(importance, 8, 1, 1, 100); /* nor when there is room for all */
    check_choice(importance, 8, 0, 1, 4);   /* of equals the later ones */
}

int main(void) {
    test_ends();
    test_random();
    return 0;
}
