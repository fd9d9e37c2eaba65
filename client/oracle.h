/*
 * oracle.h - what the KV bytes of a prompt must be, without a model: a function of the realm and of
 * all tokens up to the row. Whoever fills pages with it and checks every byte that comes back sees
 * a page that belongs to another prefix, another realm, another rank or another place.
 *
 *     tokens      t0      t1      t2                                 row i's hash is over t0 .. ti
 *     rows    h0 -+-> h1 -+-> h2 -+->                                and the realm
 *                 |       |       |
 *                 `- row seed = mix(h, layer, head, part) -> elements, four at a time
 *
 * Elements are finite, of either sign, with 2^-6 <= |x| < 4, in the geometry's dtype: no codec
 * refuses or clamps them, and a codec without loss gives them back to the bit. Two paths get the
 * same 64-bit hash by chance in one of 2^64 cases.
 *
 * Pure: no allocation, any thread.
 */
#ifndef KVT_CLIENT_ORACLE_H
#define KVT_CLIENT_ORACLE_H

#include "client/kvtrunk.h"

typedef struct oracle {
    uint64_t root; /* the hash of the empty path: the realm */
    uint32_t dtype;
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t head_dim[2];
} oracle;

/* The oracle of a realm whose geometry was checked. All names of the realm, its geometry and the
 * rank change it. */
void oracle_init(const kvt_realm *realm, oracle *ret_oracle);

/* ret_rows[i] = the hash of tokens[0 .. i], for each of n tokens. */
void oracle_rows(const oracle *o, const uint32_t *tokens, size_t n, uint64_t *ret_rows);

/* Writes the elements of n_rows rows of layers first_layer .. first_layer + n_layers - 1; the
 * layout counts from the first of both. */
void oracle_fill(const oracle *o, const uint64_t *rows, size_t n_rows, uint32_t first_layer,
                 uint32_t n_layers, const kvt_layout *to);

/* How many BYTES of these rows are not what oracle_fill would have written. 0: all are right. */
uint64_t oracle_check(const oracle *o, const uint64_t *rows, size_t n_rows, uint32_t first_layer,
                      uint32_t n_layers, const kvt_layout *from);

/*
 * The same for codecs that lose something: a row of one layer, head and part is right if
 *     |x - x'| <= 0.45 |x| + 0.3 sqrt(head_dim)        (Euclidean norms)
 * which 4-bit codecs keep, and which a row of another path (apart by about 1.77 sqrt(head_dim))
 * keeps so rarely that no page of them does. Returns the bytes of the rows that are not right.
 */
uint64_t oracle_check_near(const oracle *o, const uint64_t *rows, size_t n_rows,
                           uint32_t first_layer, uint32_t n_layers, const kvt_layout *from);

/*
 * The same for codecs of two bits, of which single rows may be as far off as those of another path.
 * Many together are not: of ORACLE_ROUGH_ELEMENTS elements or more, in whole rows, the squares of
 * the errors add up to under half of those of the elements (.3 to .45 were seen), and of other
 * paths' rows to over 1. The bound is .7. Fewer elements than that are not looked at.
 */
enum { ORACLE_ROUGH_ELEMENTS = 512 };
uint64_t oracle_check_rough(const oracle *o, const uint64_t *rows, size_t n_rows,
                            uint32_t first_layer, uint32_t n_layers, const kvt_layout *from);

/* The number of a 16-bit element. */
float oracle_float(uint32_t dtype, uint16_t bits);

#endif
