/*
 * page_table.h - WHAT a page is: its state, who refers to it, where its bytes are. One writer, no
 * lock, no allocation after page_table_init; entries live in a block that the caller hands in.
 *
 *            claim            seal asked           copied and checked
 *    FREE ---------> FILLING ----------> COPYING ------------------> SEALED
 *      ^                |  ^                |                          |
 *      |                |  '----------------|  copy failed             |
 *      '----------------'-------------------'--------------------------'
 *                             last reference dropped
 *
 * Which tiers a sealed page is in is not a state: it may be in several, and on its way between two
 * others (daemon/core_tier.c).
 *
 * A handle is generation << 32 | index: a stale one is detected, never followed. References: one of
 * the tree, one of each job under way. A page is freed when the last one is dropped, whatever state
 * it is in; so a page that its worker gave up while a job still writes its frame lives until the
 * job is done.
 */
#ifndef KVT_STORE_PAGE_TABLE_H
#define KVT_STORE_PAGE_TABLE_H

#include "client/kvtrunk.h"

typedef uint64_t page_handle; /* 0 is never a page */

typedef enum page_state {
    PAGE_FREE = 0,
    PAGE_FILLING, /* claimed, no bytes yet, no frame */
    PAGE_COPYING, /* a job writes its frame */
    PAGE_SEALED,  /* immutable from here on */
    PAGE_N_STATES
} page_state;
const char *page_state_name(page_state state);

/* May a page go from one state to another? The table of legal moves; page_move asserts it. */
int page_move_legal(page_state from, page_state to);

#define PAGE_NO_FRAME UINT32_MAX

typedef struct page_entry {
    uint32_t generation;
    uint32_t refs;
    uint32_t frame;  /* PAGE_NO_FRAME: no bytes in the device tier */
    uint32_t node;   /* the owner's name for it (the tree node); opaque here */
    uint32_t sealer; /* unsealed: the owner's name for who computes it (page_set_filler), 0 =
                        nobody; sealed: the session that sealed it */
    uint8_t state;   /* page_state */
    uint8_t flags;
    uint16_t rows; /* valid rows once sealed */
} page_entry;

typedef struct page_table page_table;
size_t page_table_bytes(uint32_t max_pages);
kvt_status page_table_init(void *memory, size_t bytes, uint32_t max_pages, page_table **ret_table);

/* FREE -> FILLING with one reference (the tree's). KVT_EFULL: no free entry. */
kvt_status page_claim(page_table *table, uint32_t node, page_handle *ret_page);

/* The entry of a live handle, or NULL if it is stale or nonsense. Read-only for everybody but the
 * calls here; valid until the page is freed. */
const page_entry *page_get(const page_table *table, page_handle page);

/* The handle of the live page at an index, or 0. */
page_handle page_at(const page_table *table, uint32_t index);

/* Asserts a live handle and a legal move (PAGE_FREE is reached by page_unref alone). */
void page_move(page_table *table, page_handle page, page_state to);
void page_set_frame(page_table *table, page_handle page, uint32_t frame);
void page_set_node(page_table *table, page_handle page, uint32_t node);
void page_set_filler(page_table *table, page_handle page, uint32_t filler);
void page_set_sealed(page_table *table, page_handle page, uint32_t sealer, uint16_t rows);
void page_ref(page_table *table, page_handle page);

/* Drops a reference. When it was the last, the page becomes FREE, its generation changes, and
 * *ret_frame is the frame that the caller must free now (PAGE_NO_FRAME: none). ret_frame is set in
 * every case. Returns 1 if the page was freed. */
int page_unref(page_table *table, page_handle page, uint32_t *ret_frame);

typedef struct page_counts {
    uint32_t max_pages;
    uint32_t in_state[PAGE_N_STATES]; /* sum == max_pages, always */
} page_counts;
void page_table_count(const page_table *table, page_counts *ret_counts);

/* Calls visit() for every live page, in index order. */
void page_table_each(const page_table *table,
                     void (*visit)(void *context, page_handle page, const page_entry *entry),
                     void *context);

kvt_status page_table_audit(const page_table *table, char *why, size_t why_bytes);

#endif
