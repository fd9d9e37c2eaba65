/* view_rows.c - see view_rows.h. */
#include "daemon/view_rows.h"

#include <stddef.h>
#include <string.h>

static void add_range(uint64_t *rows, uint32_t first, uint32_t end) {
    for (; first < end && first % 64; first++)
        rows[first / 64] |= UINT64_C(1) << first % 64;
    for (; end - first >= 64 && first < end; first += 64)
        rows[first / 64] = UINT64_MAX;
    for (; first < end; first++)
        rows[first / 64] |= UINT64_C(1) << first % 64;
}

/*
 * The importance that the n-th most important of values[0 .. n_values) has, and how many of those
 * with this very importance are among the n. By its high byte first, then by its low one: 256
 * counts each, whatever n_values is.
 */
static uint16_t threshold(const uint16_t *values, uint32_t n_values, uint32_t n,
                          uint32_t *ret_of_these) {
    uint32_t counts[256] = {0}, high = 255, low = 255;
    for (uint32_t i = 0; i < n_values; i++)
        counts[values[i] >> 8]++;
    while (high > 0 && counts[high] < n)
        n -= counts[high--];
    memset(counts, 0, sizeof counts);
    for (uint32_t i = 0; i < n_values; i++)
        if (values[i] >> 8 == high)
            counts[values[i] & 255]++;
    while (low > 0 && counts[low] < n)
        n -= counts[low--];
    *ret_of_these = n;
    return (uint16_t)(high << 8 | low);
}

uint32_t view_rows_choose(const uint16_t *importance, uint32_t n_rows, uint32_t sinks,
                          uint32_t window, uint32_t budget, uint64_t *rows) {
    uint32_t begin = sinks < n_rows ? sinks : n_rows;
    uint32_t end = window < n_rows ? n_rows - window : 0;
    end = end > begin ? end : begin; /* between lies what may be picked */
    uint32_t n = begin + (n_rows - end), n_left = budget > n ? budget - n : 0;
    memset(rows, 0, view_words(n_rows) * sizeof *rows);
    add_range(rows, 0, begin);
    add_range(rows, end, n_rows);
    if (!importance || n_left == 0 || begin == end)
        return n;
    uint32_t n_equal, most = end - begin;
    n_left = n_left < most ? n_left : most;
    uint16_t least = threshold(importance + begin, most, n_left, &n_equal);
    for (uint32_t row = end; row-- > begin;) {
        if (importance[row] == 0 || importance[row] < least)
            continue;
        if (importance[row] == least) {
            if (n_equal == 0)
                continue;
            n_equal--;
        }
        rows[row / 64] |= UINT64_C(1) << row % 64;
        n++;
    }
    return n;
}

uint32_t view_rows_run(const uint64_t *rows, uint32_t n_rows, uint32_t from, uint32_t *ret_first) {
    uint32_t first = from, end;
    while (first < n_rows && !(rows[first / 64] >> first % 64)) /* nothing more in this word */
        first = (first / 64 + 1) * 64;
    if (first >= n_rows)
        return 0;
    while (!(rows[first / 64] >> first % 64 & 1))
        first++;
    for (end = first; end < n_rows && rows[end / 64] >> end % 64 & 1;)
        end += end % 64 == 0 && rows[end / 64] == UINT64_MAX ? 64 : 1;
    *ret_first = first;
    return (end < n_rows ? end : n_rows) - first;
}
