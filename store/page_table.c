#include "store/page_table.h"

#include <inttypes.h>
#include <string.h>

#include "client/assert.h"
#include "kernels/say.h"

_Static_assert(sizeof(page_entry) == 24, "index memory is promised per page");

#define NO_INDEX UINT32_MAX

/*
 * The block: this head, then max_pages entries. Those from first_unused on have never been taken
 * and are not touched before, so that a large table costs no memory at start. Once all have been,
 * free entries form a queue through `node`, taken at its head and given back at its tail: so one
 * index is used again only after all other free ones were, and the 32 bits of its generation last
 * as long as they can.
 */
struct page_table {
    uint32_t max_pages;
    uint32_t first_free; /* NO_INDEX: none */
    uint32_t last_free;
    uint32_t in_state[PAGE_N_STATES];
    uint32_t first_unused;
    uint32_t reserved[6];
};
_Static_assert(sizeof(page_table) % 8 == 0, "the entries follow, aligned");

static page_entry *entries_of(page_table *table) {
    return (page_entry *)(table + 1);
}

static const page_entry *entries_in(const page_table *table) {
    return (const page_entry *)(table + 1);
}

const char *page_state_name(page_state state) {
    static const char *const names[PAGE_N_STATES] = {
        [PAGE_FREE] = "free",
        [PAGE_FILLING] = "filling",
        [PAGE_COPYING] = "copying",
        [PAGE_SEALED] = "sealed",
    };
    return (unsigned)state < PAGE_N_STATES ? names[state] : "?";
}

int page_move_legal(page_state from, page_state to) {
    static const uint8_t legal[PAGE_N_STATES][PAGE_N_STATES] = {
        [PAGE_FREE] = {[PAGE_FILLING] = 1},
        [PAGE_FILLING] = {[PAGE_FREE] = 1, [PAGE_COPYING] = 1},
        [PAGE_COPYING] = {[PAGE_FREE] = 1, [PAGE_FILLING] = 1, [PAGE_SEALED] = 1},
        [PAGE_SEALED] = {[PAGE_FREE] = 1},
    };
    return (unsigned)from < PAGE_N_STATES && (unsigned)to < PAGE_N_STATES && legal[from][to];
}

size_t page_table_bytes(uint32_t max_pages) {
    return sizeof(page_table) + (size_t)max_pages * sizeof(page_entry);
}

kvt_status page_table_init(void *memory, size_t bytes, uint32_t max_pages, page_table **ret_table) {
    if (!memory || (uintptr_t)memory % _Alignof(uint64_t) || max_pages == 0 ||
        max_pages == NO_INDEX || bytes < page_table_bytes(max_pages)) {
        return KVT_EINVAL;
    }
    page_table *table = memory;
    memset(table, 0, sizeof(*table));
    table->max_pages = max_pages;
    table->first_free = table->last_free = NO_INDEX;
    table->in_state[PAGE_FREE] = max_pages;
    *ret_table = table;
    return KVT_OK;
}

static page_handle handle_of(const page_table *table, uint32_t index) {
    return (page_handle)entries_in(table)[index].generation << 32 | index;
}

const page_entry *page_get(const page_table *table, page_handle page) {
    uint32_t index = (uint32_t)page, generation = (uint32_t)(page >> 32);
    if (index >= table->first_unused) {
        return NULL;
    }
    const page_entry *entry = &entries_in(table)[index];
    return entry->generation == generation && entry->state != PAGE_FREE ? entry : NULL;
}

page_handle page_at(const page_table *table, uint32_t index) {
    KVT_ASSERT(index < table->max_pages);
    return index >= table->first_unused || entries_in(table)[index].state == PAGE_FREE
               ? 0
               : handle_of(table, index);
}

static page_entry *live(page_table *table, page_handle page) {
    KVT_ASSERT(page_get(table, page));
    return &entries_of(table)[(uint32_t)page];
}

/* The only place where a state changes. */
static void move(page_table *table, page_entry *entry, page_state to) {
    KVT_ASSERT(page_move_legal((page_state)entry->state, to));
    KVT_ASSERT(table->in_state[entry->state] > 0);
    table->in_state[entry->state]--;
    table->in_state[to]++;
    entry->state = (uint8_t)to;
}

/* The index that has been free for the longest time; NO_INDEX: none is free. */
static uint32_t take_free(page_table *table) {
    page_entry *entries = entries_of(table);
    if (table->first_unused < table->max_pages) {
        entries[table->first_unused] = (page_entry){
            .generation = 1, /* so that no handle is 0 */
            .frame = PAGE_NO_FRAME,
            .node = NO_INDEX,
        };
        return table->first_unused++;
    }
    uint32_t index = table->first_free;
    if (index != NO_INDEX) {
        table->first_free = entries[index].node;
        if (table->first_free == NO_INDEX) {
            table->last_free = NO_INDEX;
        }
    }
    return index;
}

kvt_status page_claim(page_table *table, uint32_t node, page_handle *ret_page) {
    uint32_t index = take_free(table);
    if (index == NO_INDEX) {
        return KVT_EFULL;
    }
    page_entry *entry = &entries_of(table)[index];
    move(table, entry, PAGE_FILLING);
    entry->refs = 1;
    entry->node = node;
    *ret_page = handle_of(table, index);
    return KVT_OK;
}

void page_move(page_table *table, page_handle page, page_state to) {
    page_entry *entry = live(table, page);
    KVT_ASSERT(to != PAGE_FREE);
    move(table, entry, to);
}

void page_set_frame(page_table *table, page_handle page, uint32_t frame) {
    live(table, page)->frame = frame;
}

void page_set_node(page_table *table, page_handle page, uint32_t node) {
    live(table, page)->node = node;
}

void page_set_filler(page_table *table, page_handle page, uint32_t filler) {
    page_entry *entry = live(table, page);
    KVT_ASSERT(entry->state == PAGE_FILLING || entry->state == PAGE_COPYING);
    entry->sealer = filler;
}

void page_set_sealed(page_table *table, page_handle page, uint32_t sealer, uint16_t rows) {
    page_entry *entry = live(table, page);
    KVT_ASSERT(entry->state != PAGE_FILLING && rows > 0);
    entry->sealer = sealer;
    entry->rows = rows;
}

void page_ref(page_table *table, page_handle page) {
    page_entry *entry = live(table, page);
    KVT_ASSERT(entry->refs < UINT32_MAX);
    entry->refs++;
}

static void release(page_table *table, uint32_t index) {
    page_entry *entry = &entries_of(table)[index];
    uint32_t generation = entry->generation + 1;
    move(table, entry, PAGE_FREE);
    *entry = (page_entry){
        .generation = generation ? generation : 1,
        .frame = PAGE_NO_FRAME,
        .node = NO_INDEX,
        .state = PAGE_FREE,
    };
    if (table->last_free == NO_INDEX) {
        table->first_free = index;
    } else {
        entries_of(table)[table->last_free].node = index;
    }
    table->last_free = index;
}

int page_unref(page_table *table, page_handle page, uint32_t *ret_frame) {
    page_entry *entry = live(table, page);
    KVT_ASSERT(entry->refs > 0);
    *ret_frame = PAGE_NO_FRAME;
    if (--entry->refs > 0) {
        return 0;
    }
    *ret_frame = entry->frame;
    release(table, (uint32_t)page);
    return 1;
}

void page_table_count(const page_table *table, page_counts *ret_counts) {
    ret_counts->max_pages = table->max_pages;
    memcpy(ret_counts->in_state, table->in_state, sizeof(table->in_state));
}

void page_table_each(const page_table *table,
                     void (*visit)(void *context, page_handle page, const page_entry *entry),
                     void *context) {
    const page_entry *entries = entries_in(table);
    for (uint32_t i = 0; i < table->first_unused; i++) {
        if (entries[i].state != PAGE_FREE) {
            visit(context, handle_of(table, i), &entries[i]);
        }
    }
}

/* What must hold for an entry by itself. Returns NULL or what is wrong. */
static const char *entry_fault(const page_entry *entry) {
    if (entry->generation == 0) {
        return "generation 0";
    }
    switch ((page_state)entry->state) {
    case PAGE_FREE:
        return entry->refs || entry->frame != PAGE_NO_FRAME || entry->rows ? "free, yet in use"
                                                                           : NULL;
    case PAGE_FILLING:
        if (entry->frame != PAGE_NO_FRAME) {
            return "filling, yet has a frame";
        }
        break;
    case PAGE_SEALED:
        if (entry->rows == 0) {
            return "sealed without rows";
        }
        break;
    case PAGE_COPYING:
        break;
    case PAGE_N_STATES:
    default:
        return "no such state";
    }
    return entry->refs == 0 ? "live without a reference" : NULL;
}

kvt_status page_table_audit(const page_table *table, char *why, size_t why_bytes) {
    const page_entry *entries = entries_in(table);
    uint32_t n_unused = table->max_pages - table->first_unused;
    uint32_t in_state[PAGE_N_STATES] = {[PAGE_FREE] = n_unused};
    uint32_t n_queued = n_unused, last = NO_INDEX;
    for (uint32_t i = 0; i < table->first_unused; i++) {
        const char *fault = entry_fault(&entries[i]);
        if (fault) {
            return kvt_say(why, why_bytes, KVT_EINTERNAL, "page %" PRIu32 ": %s", i, fault);
        }
        in_state[entries[i].state]++;
    }
    for (int s = 0; s < PAGE_N_STATES; s++) {
        if (in_state[s] != table->in_state[s]) {
            return kvt_say(why, why_bytes, KVT_EINTERNAL,
                           "%" PRIu32 " pages are %s, counted are %" PRIu32, in_state[s],
                           page_state_name((page_state)s), table->in_state[s]);
        }
    }
    for (uint32_t i = table->first_free; i != NO_INDEX; i = entries[i].node) {
        if (i >= table->first_unused || entries[i].state != PAGE_FREE ||
            ++n_queued > in_state[PAGE_FREE]) {
            return kvt_say(why, why_bytes, KVT_EINTERNAL,
                           "the queue of free pages is broken at %" PRIu32, i);
        }
        last = i;
    }
    if (n_queued != in_state[PAGE_FREE] || last != table->last_free) {
        return kvt_say(why, why_bytes, KVT_EINTERNAL,
                       "%" PRIu32 " pages are free, %" PRIu32 " are queued", in_state[PAGE_FREE],
                       n_queued);
    }
    return KVT_OK;
}
