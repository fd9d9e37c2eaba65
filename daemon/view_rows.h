/*
 * view_rows.h - which rows a view has. Pure: numbers in, a set of rows out.
 */
#ifndef KVT_DAEMON_VIEW_ROWS_H
#define KVT_DAEMON_VIEW_ROWS_H

#include <stdint.h>

/* A set of rows: row i is bit i % 64 of word i / 64. */
static inline uint32_t view_words(uint32_t n_rows) {
    return n_rows / 64 + 1;
}

/*
 * Of rows 0 .. n_rows - 1: the first `sinks`, the last `window`, and of the others those with the
 * highest importance over 0, of equals the later ones, until there are `budget` rows in all (0:
 * none of the others). importance may be NULL: none is known. rows has view_words(n_rows) words,
 * which are overwritten. Cost: two looks at each row. Returns the number of rows.
 */
uint32_t view_rows_choose(const uint16_t *importance, uint32_t n_rows, uint32_t sinks,
                          uint32_t window, uint32_t budget, uint64_t *rows);

/* The run of rows that begins at row `from` or behind it; its length, 0: there is none. */
uint32_t view_rows_run(const uint64_t *rows, uint32_t n_rows, uint32_t from, uint32_t *ret_first);

#endif
