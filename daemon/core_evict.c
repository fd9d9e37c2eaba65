/*
 * core_evict.c - making room. Only idle tails go (radix.h), coldest first.
 */
#include "daemon/core_state.h"

#include <string.h>

void page_drop(core *c, page_handle page) {
    uint32_t frame;
    int is_gone = page_unref(c->pages, page, &frame);
    if (frame != PAGE_NO_FRAME)
        frame_free(c, frame);
    /* What has left the tree goes from the lower tiers, although views read on in the arena. */
    const page_entry *entry = is_gone ? NULL : page_get(c->pages, page);
    if (is_gone || (entry->node == RADIX_NONE && entry->refs == c->viewed[(uint32_t)page]))
        tier_forget(c, (uint32_t)page);
}

void node_discard(core *c, radix_node node) {
    event_removed(c, node);
    node_unmark(c, node);
    importance_gone(c, node);
    c->n_held -= (uint32_t)radix_is_held(c->tree, node);
    c->n_hidden -= (uint32_t)radix_is_hidden(c->tree, node);
    node_drop_pages(c, node);
    policy_tree_remove(c->policy, c->tree, node);
}

static void evict(core *c, radix_node node) {
    uint32_t n_slots = radix_slots(c->tree, node);
    policy_tree_evicts(c->policy, c->tree, node);
    c->counts.pages_evicted += node_pages(c, node);
    c->counts.bytes_evicted += node_bytes(c, node);
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        const page_entry *entry = node_entry(c, node, slot);
        if (entry && entry->frame != PAGE_NO_FRAME && !page_is_viewed(c, node_page(c, node, slot)))
            c->freed_bytes += frame_size(c, entry->frame);
    }
    node_discard(c, node);
}

int evict_coldest(core *c) {
    radix_node node = radix_coldest(c->tree);
    if (node == RADIX_NONE)
        return 0;
    evict(c, node);
    return 1;
}

/* For an arena frame. With lower tiers the coldest tail of all is seldom in the arena; what may be
 * lost then is a page that has no copy yet. */

/* The node of a dirty page whose frame would be free without it, or RADIX_NONE. */
static radix_node dirty_node(const core *c, const order *dirty, uint32_t i) {
    page_handle page = page_at(c->pages, order_at(dirty, i));
    return page_is_in_use(c, page) ? RADIX_NONE : page_get(c->pages, page)->node;
}

/* Without lower tiers: the tail behind the coldest page of the arena; what hangs below a page is of
 * its realm, so it is in the same arenas. */
static int evict_coldest_of(core *c, arena_books *a) {
    uint32_t index = order_coldest(c, a->dirty, page_key, page_is_in_use);
    if (index == ORDER_NONE)
        return 0;
    radix_node node = page_get(c->pages, page_at(c->pages, index))->node;
    while (!radix_is_leaf(c->tree, node))
        node = radix_first_child(c->tree, node);
    evict(c, node);
    return 1;
}

static int evict_tail(core *c, arena_books *a) {
    const order *dirty = a->dirty;
    if (!c->tiers)
        return dirty ? evict_coldest_of(c, a) : evict_coldest(c);
    for (uint32_t i = 0; i < order_count(dirty) && i < 256; i++) {
        radix_node node = dirty_node(c, dirty, i);
        if (node != RADIX_NONE && radix_is_leaf(c->tree, node)) {
            evict(c, node);
            return 1;
        }
    }
    for (uint32_t i = 0; i < order_count(dirty); i++) {
        radix_node node = dirty_node(c, dirty, i);
        if (node != RADIX_NONE) {
            evict_subtree(c, node);
            return 1;
        }
    }
    return 0;
}

/* Tails first. */
void evict_subtree(core *c, radix_node top) {
    radix_node node = top;
    for (;;) {
        while (!radix_is_leaf(c->tree, node))
            node = radix_first_child(c->tree, node);
        radix_node parent = radix_parent(c->tree, node);
        int last = node == top;
        evict(c, node);
        if (last)
            return;
        node = parent;
    }
}

typedef struct vacating {
    core *c;
    uint32_t arena;
} vacating;

static void note_frame(void *context, page_handle page, const page_entry *entry) {
    const vacating *v = context;
    core *c = v->c;
    if (entry->frame != PAGE_NO_FRAME && entry->state == PAGE_SEALED &&
        frame_arena(c, entry->frame) == v->arena)
        c->frame_page[entry->frame % c->config.max_frames] = (uint32_t)page + 1;
}

/* Frames of the arena are meant, as it counts them. */
static int frame_movable(void *context, uint32_t frame) {
    core *c = ((const vacating *)context)->c;
    page_handle page = c->frame_page[frame] ? page_at(c->pages, c->frame_page[frame] - 1) : 0;
    radix_node node = page ? page_get(c->pages, page)->node : RADIX_NONE;
    /* A frame that a job reads is free only when the job is done. */
    return node != RADIX_NONE && !radix_is_busy(c->tree, node) && !page_is_viewed(c, page) &&
           !(c->tiers && tier_of(c, page)->flags & TIER_GOING_DOWN) && !page_is_cooling(c, page);
}

/* Frees the frame: by leaving the arena if the page has a copy below, else with its node. */
static void vacate(core *c, const vacating *v, uint32_t frame) {
    page_handle page = page_at(c->pages, c->frame_page[frame] - 1);
    const page_entry *entry = page ? page_get(c->pages, page) : NULL;
    /* It may have gone with one that it hung below. */
    if (!entry || entry->node == RADIX_NONE ||
        entry->frame != v->arena * c->config.max_frames + frame)
        return;
    if (!room_device_page(c, page))
        evict_subtree(c, entry->node);
}

/*
 * Room may be spread over slabs of other frame sizes, where evicting the coldest pages one by one
 * would empty a slab only by luck. Then the slab that holds the fewest pages is emptied, with
 * whatever hangs below those pages.
 */
int room_device_slab(core *c, uint32_t arena, uint64_t bytes) {
    uint32_t list[256], n = 0;
    vacating v = {c, arena};
    /* Rare enough that one walk over the page table costs less than an index kept for it would. */
    memset(c->frame_page, 0, c->config.max_frames * sizeof *c->frame_page);
    page_table_each(c->pages, note_frame, &v);
    if (frames_victim(c->arenas[arena].frames, bytes, frame_movable, &v, list, 256, &n) != KVT_OK)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        vacate(c, &v, list[i]);
    return n > 0;
}

kvt_status frame_alloc(core *c, uint32_t arena, uint64_t bytes, uint32_t *ret_frame) {
    /* So much is evicted in order of age before the search turns to whole slabs. */
    uint64_t patience = 4 * (bytes > (4u << 20) ? bytes : (4u << 20));
    uint64_t start = c->freed_bytes;
    for (;;) {
        kvt_status status = frame_take(c, arena, bytes, ret_frame);
        if (status != KVT_EFULL)
            return status;
        if (c->freed_bytes - start < patience) {
            if (room_device(c, arena) || evict_tail(c, &c->arenas[arena]))
                continue;
        }
        if (!room_device_slab(c, arena, bytes) && !evict_tail(c, &c->arenas[arena]))
            return KVT_EFULL;
    }
}

kvt_status node_alloc(core *c, radix_node parent, const uint32_t *tokens, uint32_t n_tokens,
                      uint64_t n_bytes, radix_node *ret_node) {
    for (;;) {
        kvt_status status =
            policy_tree_insert(c->policy, c->tree, parent, tokens, n_tokens, n_bytes, ret_node);
        if (status == KVT_EEXIST)
            return status;
        if (status == KVT_OK) {
            status = node_claim_pages(c, *ret_node);
            if (status == KVT_OK)
                return KVT_OK;
            policy_tree_remove(c->policy, c->tree, *ret_node);
        }
        if (status != KVT_EFULL || (!evict_coldest(c) && !claims_make_room(c)))
            return status;
    }
}
