/*
 * The page table by itself: handles, references, the table of legal moves, and that its audit sees
 * damage. Random operations against a model: test_store_model.c.
 */
#include "store/page_table.h"

#include "tests/check.h"
#include "tests/check_abort.h"

enum { MAX_PAGES = 4 };

static uint64_t memory[64];

static page_table *fresh(void) {
    page_table *table = NULL;
    memset(memory, 0xa5, sizeof(memory));
    CHECK(page_table_bytes(MAX_PAGES) <= sizeof(memory));
    CHECK(page_table_init(memory, sizeof(memory), MAX_PAGES, &table) == KVT_OK);
    return table;
}

static void audit(const page_table *table) {
    char why[200] = "";
    CHECK_MSG(page_table_audit(table, why, sizeof(why)) == KVT_OK, "%s", why);
}

static page_handle claim(page_table *table, uint32_t node) {
    page_handle page = 0;
    CHECK(page_claim(table, node, &page) == KVT_OK);
    CHECK(page != 0);
    return page;
}

static page_handle claim_sealed(page_table *table) {
    page_handle page = claim(table, 1);
    page_move(table, page, PAGE_COPYING);
    page_set_frame(table, page, 9);
    page_move(table, page, PAGE_SEALED);
    page_set_sealed(table, page, 5, 64);
    return page;
}

static void test_init(void) {
    page_table *table = NULL;
    size_t bytes = page_table_bytes(MAX_PAGES);
    CHECK(page_table_init(NULL, bytes, MAX_PAGES, &table) == KVT_EINVAL);
    CHECK(page_table_init(memory, bytes - 1, MAX_PAGES, &table) == KVT_EINVAL);
    CHECK(page_table_init(memory, bytes, 0, &table) == KVT_EINVAL);
    CHECK(page_table_init((char *)memory + 1, bytes, MAX_PAGES, &table) == KVT_EINVAL);
    CHECK(table == NULL);
    CHECK_EQ(sizeof(page_entry), 24);
    CHECK(page_table_bytes(1000000) - page_table_bytes(0) == 24 * (size_t)1000000);
    CHECK(page_table_init(memory, bytes, MAX_PAGES, &table) == KVT_OK);
    audit(table);
}

static void test_claim(void) {
    page_table *table = fresh();
    page_handle pages[MAX_PAGES], other = 77;
    for (uint32_t i = 0; i < MAX_PAGES; i++) {
        pages[i] = claim(table, 100 + i);
        const page_entry *entry = page_get(table, pages[i]);
        CHECK(entry && entry->state == PAGE_FILLING && entry->refs == 1);
        CHECK(entry->node == 100 + i && entry->frame == PAGE_NO_FRAME && entry->sealer == 0);
        audit(table);
    }
    CHECK(page_claim(table, 1, &other) == KVT_EFULL && other == 77);
    page_set_node(table, pages[2], 7);
    CHECK(page_get(table, pages[2])->node == 7);
    page_set_filler(table, pages[2], 8);
    CHECK(page_get(table, pages[2])->sealer == 8);
}

/* A handle lives as long as its page, and no longer, whatever comes to its place. */
static void test_handles(void) {
    page_table *table = fresh();
    page_handle page = claim(table, 1), again = 0;
    uint32_t frame = 0;
    CHECK(page_get(table, 0) == NULL);
    CHECK(page_get(table, UINT64_MAX) == NULL);
    CHECK(page_get(table, page + ((page_handle)1 << 32)) == NULL);
    CHECK(page_get(table, (page & ~(page_handle)UINT32_MAX) | MAX_PAGES) == NULL);
    CHECK(page_get(table, page + 1) == NULL); /* right generation, but a free entry */
    CHECK(page_unref(table, page, &frame) == 1 && frame == PAGE_NO_FRAME);
    CHECK(page_get(table, page) == NULL);
    for (int round = 0; round < 1000; round++) {
        again = claim(table, 2);
        CHECK(again != page && page_get(table, page) == NULL);
        CHECK(page_unref(table, again, &frame) == 1);
    }
    /* An index is taken again only after all the other free ones. */
    uint32_t seen = 0;
    for (int i = 0; i < MAX_PAGES; i++) {
        again = claim(table, 3);
        seen |= 1u << (uint32_t)again;
        CHECK(page_unref(table, again, &frame) == 1);
    }
    CHECK_EQ(seen, (1u << MAX_PAGES) - 1);
    audit(table);
}

static void test_references(void) {
    page_table *table = fresh();
    page_handle page = claim_sealed(table);
    page_ref(table, page);
    uint32_t frame = 1234;
    CHECK(page_unref(table, page, &frame) == 0 && frame == PAGE_NO_FRAME);
    CHECK(page_get(table, page)->frame == 9);
    audit(table);
    CHECK(page_unref(table, page, &frame) == 1 && frame == 9);
    CHECK(page_get(table, page) == NULL);
    audit(table);
}

/* The moves, written down a second time. */
static void test_moves(void) {
    static const char *const legal[PAGE_N_STATES] = {
        [PAGE_FREE] = "filling",
        [PAGE_FILLING] = "free copying",
        [PAGE_COPYING] = "free filling sealed",
        [PAGE_SEALED] = "free",
    };
    for (int from = 0; from < PAGE_N_STATES; from++) {
        for (int to = 0; to < PAGE_N_STATES; to++) {
            const char *name = page_state_name((page_state)to);
            CHECK_MSG(page_move_legal((page_state)from, (page_state)to) ==
                          (strstr(legal[from], name) != NULL),
                      "%s -> %s", page_state_name((page_state)from), name);
        }
    }
    CHECK(!page_move_legal(PAGE_N_STATES, PAGE_FREE));
    CHECK(!page_move_legal(PAGE_FREE, (page_state)-1));
    CHECK(strcmp(page_state_name(PAGE_N_STATES), "?") == 0);
}

/* page_move does what page_move_legal says, and never frees. */
static void test_moves_asserted(void) {
    static const page_state way_to[PAGE_N_STATES][3] = {
        [PAGE_FILLING] = {0},
        [PAGE_COPYING] = {PAGE_COPYING},
        [PAGE_SEALED] = {PAGE_COPYING, PAGE_SEALED},
    };
    for (int from = PAGE_FILLING; from < PAGE_N_STATES; from++) {
        for (int to = 0; to < PAGE_N_STATES; to++) {
            page_table *table = fresh();
            page_handle page = claim(table, 1);
            for (int i = 0; i < 3 && way_to[from][i]; i++)
                page_move(table, page, way_to[from][i]);
            CHECK(page_get(table, page)->state == from);
            if (to != PAGE_FREE && page_move_legal((page_state)from, (page_state)to)) {
                page_move(table, page, (page_state)to);
                page_counts counts;
                page_table_count(table, &counts);
                CHECK(page_get(table, page)->state == to && counts.in_state[to] == 1);
            } else {
                CHECK_ABORTS((page_move(table, page, (page_state)to), 0));
            }
        }
    }
}

static void test_misuse(void) {
    page_table *table = fresh();
    uint32_t frame;
    page_handle page = claim(table, 1), gone = claim(table, 2);
    CHECK(page_unref(table, gone, &frame) == 1);
    CHECK_ABORTS(page_unref(table, gone, &frame));
    CHECK_ABORTS((page_ref(table, gone), 0));
    CHECK_ABORTS((page_ref(table, 0), 0));
    CHECK_ABORTS((page_move(table, gone, PAGE_COPYING), 0));
    CHECK_ABORTS((page_set_frame(table, gone, 1), 0));
    CHECK_ABORTS((page_set_node(table, gone, 1), 0));
    CHECK_ABORTS((page_set_filler(table, gone, 1), 0));
    CHECK_ABORTS((page_set_sealed(table, page, 1, 1), 0)); /* nothing was copied */
    page_handle sealed = claim_sealed(table);
    CHECK_ABORTS((page_set_filler(table, sealed, 1), 0));
    CHECK_ABORTS((page_set_sealed(table, sealed, 1, 0), 0));
    ((page_entry *)(uintptr_t)page_get(table, page))->refs = UINT32_MAX;
    CHECK_ABORTS((page_ref(table, page), 0));
}

static void count_page(void *context, page_handle page, const page_entry *entry) {
    page_handle *last = context;
    CHECK(entry->state != PAGE_FREE);
    CHECK((uint32_t)page > (uint32_t)*last || *last == 0);
    *last = page;
}

static void test_each(void) {
    page_table *table = fresh();
    page_handle first = claim(table, 1), second = claim(table, 2), last = 0;
    uint32_t frame;
    page_unref(table, first, &frame);
    page_handle third = claim(table, 3);
    page_table_each(table, count_page, &last);
    CHECK(last == (third > second ? third : second));
}

/* Damage done behind its back is seen. */
static void test_audit(void) {
    for (int kind = 0; kind < 8; kind++) {
        page_table *table = fresh();
        page_handle page = claim_sealed(table), filling = claim(table, 2), free_one;
        uint32_t frame;
        free_one = claim(table, 3);
        page_entry *e = (page_entry *)(uintptr_t)page_get(table, page);
        page_entry *f = (page_entry *)(uintptr_t)page_get(table, filling);
        page_entry *g = (page_entry *)(uintptr_t)page_get(table, free_one);
        page_unref(table, free_one, &frame);
        audit(table);
        switch (kind) {
        case 0:
            e->rows = 0;
            break;
        case 1:
            e->refs = 0;
            break;
        case 2:
            e->generation = 0;
            break;
        case 3:
            e->state = PAGE_COPYING;
            break;
        case 4:
            e->state = 200;
            break;
        case 5:
            f->frame = 3;
            break;
        case 6:
            g->refs = 1;
            break;
        default:
            g->node = (uint32_t)page; /* the queue of free pages runs into a live one */
            break;
        }
        char why[200] = "";
        CHECK_MSG(page_table_audit(table, why, sizeof(why)) == KVT_EINTERNAL && why[0],
                  "damage %d was not seen", kind);
        CHECK(page_table_audit(table, NULL, 0) == KVT_EINTERNAL);
    }
}

int main(void) {
    test_init();
    test_claim();
    test_handles();
    test_references();
    test_moves();
    test_moves_asserted();
    test_misuse();
    test_each();
    test_audit();
    return 0;
}
