/*
 * cooled.h - what the pages of a replay must hold when the daemon puts them into fewer bits as they
 * cool (kvtrunkd.conf's ladder): not what was sealed, but what the ladder makes of it.
 *
 *     rows of the oracle -- encode --> [f16 page] -- transcode --> [i8 page] -- transcode --> [i4]
 *                                        rung 0                      rung 1                   rung
 * 2
 *
 * A page's header says which rung it is on. A page of rung 0 is what was sealed, and nothing here
 * is for it. Of another one whose rows are all known, these steps, done again, give the page to the
 * byte, header and checksum included. That cannot be done where the rows of another path stand
 * behind, or where a page grew from one that had cooled already: then each row must be near
 * (oracle_check_near), or, of two bits, many rows together (oracle_check_rough).
 */
#ifndef KVT_CLIENT_COOLED_H
#define KVT_CLIENT_COOLED_H

#include "client/oracle.h"

typedef struct cooled cooled;

/* For the pages of a checked realm of one layer group. ladder: "i8 > i4", as the daemon reports it,
 * or "". A ladder that the realm's codec set does not stand on is none. KVT_ENOMEM. */
kvt_status cooled_open(const kvt_realm *realm, const char *ladder, cooled **ret_cooled);
void cooled_close(cooled *c); /* NULL is accepted */

/* Sets that its pages can be under; 1: they do not cool. */
uint32_t cooled_rungs(const cooled *c);

/* The rung that a page is on, by its header; -1: a set that is not on the ladder, or no page. */
int cooled_rung(const cooled *c, const void *page, size_t page_bytes);

/*
 * A page that is not on rung 0: page number `number` of its path, of whose rows the first n_rows
 * are those of the hashes rows[] (oracle_rows), and were decoded to `decoded`. Returns how many
 * BYTES of these are wrong; *ret_exact: the page is what the ladder gives, to the byte.
 */
uint64_t cooled_check(cooled *c, const oracle *o, const uint64_t *rows, uint32_t n_rows,
                      uint32_t number, const void *page, size_t page_bytes,
                      const kvt_layout *decoded, int *ret_exact);

#endif
