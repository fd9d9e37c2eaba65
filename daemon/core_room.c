/*
 * core_room.c - who has to go in one tier, so that another page has room there. Nothing is lost by
 * this: what goes has a copy below. What has none goes with its node alone (core_evict.c).
 */
#include "daemon/core_state.h"
#include "store/tier.h"

#include <string.h>

enum {
    TRIES = 4096,    /* pages looked at for one that may go */
    TAILS = 16,      /* tails forgotten for one frame */
    FEW_FRAMES = 64, /* freed one by one, before whole slabs are looked for */
    STEPS = 32,      /* tails that are not on disk, in front of one that is */
};

uint64_t key_now(const core *c) {
    uint64_t key = policy_key_now(c->policy);
    return key < KEY_HALF ? key : KEY_HALF - 1;
}

/* --- the arena ---------------------------------------------------------------------------------
 */

int room_device_page(core *c, page_handle page) {
    const page_entry *entry = page_get(c->pages, page);
    if (!c->tiers || entry->node == RADIX_NONE || radix_is_busy(c->tree, entry->node) ||
        page_is_viewed(c, page) || entry->state != PAGE_SEALED || entry->frame == PAGE_NO_FRAME ||
        !order_has(c->arenas[frame_arena(c, entry->frame)].clean, (uint32_t)page))
        return 0;
    c->counts.pages_vacated++;
    c->counts.bytes_vacated += frame_asked(c, entry->frame);
    c->freed_bytes += frame_size(c, entry->frame);
    frame_free(c, entry->frame);
    page_set_frame(c->pages, page, PAGE_NO_FRAME);
    c->tiers->n_absent++;
    tier_placed(c, page);
    return 1;
}

/*
 * Keys in an order are older than the pages': they are mended as pages come to the front. One that
 * is in use goes behind all others, each time it is met, however long its key would let it stay:
 * else those that were in use once, and are not any more, would stand behind it for ever.
 */
uint32_t order_coldest(core *c, order *in, uint64_t (*key_of)(const core *, page_handle),
                       int (*is_in_use)(const core *, page_handle)) {
    uint64_t top = order_top(in);
    for (uint32_t tries = 0; tries < TRIES; tries++) {
        uint64_t key;
        uint32_t index = order_first(in, &key);
        if (index == ORDER_NONE)
            return index;
        page_handle page = page_at(c->pages, index);
        if (is_in_use && is_in_use(c, page)) {
            if (key > top) /* it was met before, and so were all others */
                return ORDER_NONE;
            order_put(in, index, order_top(in) + 1);
            continue;
        }
        uint64_t now = key_of(c, page);
        if (now <= key)
            return index;
        order_put(in, index, now);
    }
    return ORDER_NONE;
}

int page_is_in_use(const core *c, page_handle page) {
    return radix_is_busy(c->tree, page_get(c->pages, page)->node) || page_is_viewed(c, page);
}

uint64_t key_of_entry(const core *c, const page_entry *entry) {
    uint64_t key = radix_key(c->tree, entry->node);
    return key < KEY_HALF ? key : KEY_HALF - 1;
}

static uint64_t idle_key(const core *c, page_handle page) {
    return key_of_entry(c, page_get(c->pages, page));
}

uint64_t page_key(const core *c, page_handle page) {
    uint64_t key = idle_key(c, page);
    return page_is_in_use(c, page) && key_now(c) > key ? key_now(c) : key;
}

int room_device(core *c, uint32_t arena) {
    if (!c->tiers)
        return 0;
    uint32_t index = order_coldest(c, c->arenas[arena].clean, idle_key, page_is_in_use);
    if (index == ORDER_NONE)
        return 0;
    page_handle page = page_at(c->pages, index);
    if (tier_of(c, page)->host_frame != PAGE_NO_FRAME || !disk_is_silent(c))
        return room_device_page(c, page);
    /* Else what hangs on it would stay, and nobody could read it or compute it. */
    evict_subtree(c, page_get(c->pages, page)->node);
    return 1;
}

/* --- the host tier -----------------------------------------------------------------------------
 */

uint64_t host_key_of_entry(const core *c, const page_entry *entry) {
    uint64_t key = key_of_entry(c, entry);
    return entry->frame != PAGE_NO_FRAME ? KEY_HALF - 1 - key : KEY_HALF + key;
}

static uint64_t host_key(const core *c, page_handle page) {
    return host_key_of_entry(c, page_get(c->pages, page));
}

static int host_page_is_in_use(const core *c, page_handle page) {
    return (tier_of(c, page)->flags & TIER_BUSY) != 0;
}

static int host_page_goes(core *c, page_handle page) {
    if (tier_of(c, page)->flags & TIER_BUSY || !order_has(c->tiers->host_clean, (uint32_t)page))
        return 0;
    tier_drop_host(c, page);
    tier_placed(c, page);
    return 1;
}

/*
 * A frame of the host tier whose page has another copy, for a page of this key. Without a disk that
 * other copy is the one in the arena, which then has none below any more: so it must be a page that
 * is used more than the one that comes, else the two would take turns for ever. If there is none,
 * the coldest tail of all goes, if it is colder.
 */
static int may_go_for(const core *c, page_handle page, uint64_t for_key) {
    return c->config.disk_bytes || radix_key(c->tree, page_get(c->pages, page)->node) > for_key;
}

/* The coldest tail of all. With several arenas that may be one which takes no room here, in another
 * arena than the page that comes, and where the disk fails one that is on disk alone, and can be
 * read: then the tail behind the coldest page that is here alone. */
static radix_node coldest_below(core *c) {
    if (c->config.n_arenas == 1 && !c->tiers->disk_fails)
        return radix_coldest(c->tree);
    uint32_t index = order_coldest(c, c->tiers->host_dirty, idle_key, page_is_in_use);
    if (index == ORDER_NONE)
        return RADIX_NONE;
    radix_node node = page_get(c->pages, page_at(c->pages, index))->node;
    while (!radix_is_leaf(c->tree, node))
        node = radix_first_child(c->tree, node);
    return node;
}

/* Of what waits for a page that comes down: a copy of what is in the arena, too, or else a tail. */
static int waiting_goes(core *c) {
    const order *dirty = c->tiers->host_dirty;
    radix_node node = RADIX_NONE;
    for (uint32_t i = 0; i < order_count(dirty) && i < TRIES; i++) {
        page_handle page = page_at(c->pages, order_at(dirty, i));
        const page_entry *entry = page_get(c->pages, page);
        if (tier_of(c, page)->flags & TIER_BUSY || !waits_for_arena(c, page))
            continue;
        if (entry->frame != PAGE_NO_FRAME) {
            tier_drop_host(c, page);
            tier_placed(c, page);
            return 1;
        }
        if (node == RADIX_NONE && !radix_is_busy(c->tree, entry->node) && !page_is_viewed(c, page))
            node = entry->node;
    }
    if (node == RADIX_NONE)
        return 0;
    while (!radix_is_leaf(c->tree, node))
        node = radix_first_child(c->tree, node);
    evict_subtree(c, node);
    return 1;
}

/* What stands in the arena is not to go from there for the sake of a copy of what is there, too:
 * else a small host tier would make the cache smaller. For a page on its way up it goes: that one
 * comes into the arena, and somebody waits for it. */
static int is_in_arena(const core *c, radix_node node) {
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++)
        if (node_page(c, node, slot) && !entry_is_absent(node_entry(c, node, slot)))
            return 1;
    return 0;
}

static int room_host_one(core *c, uint64_t for_key) {
    uint32_t index = order_coldest(c, c->tiers->host_clean, host_key, host_page_is_in_use);
    if (index != ORDER_NONE) {
        page_handle page = page_at(c->pages, index);
        if (may_go_for(c, page, for_key) && host_page_goes(c, page))
            return 1;
    }
    if (c->tiers->host_waits)
        return waiting_goes(c);
    radix_node node =
        c->config.disk_bytes && !disk_takes_none(c->tiers) ? RADIX_NONE : coldest_below(c);
    int comes_up = for_key == UINT64_MAX;
    if (node == RADIX_NONE || radix_key(c->tree, node) >= for_key ||
        (!comes_up && is_in_arena(c, node)))
        return 0;
    evict_subtree(c, node);
    return 1;
}

typedef struct host_mover {
    core *c;
    uint64_t for_key;
} host_mover;

static int host_frame_movable(void *context, uint32_t frame) {
    const host_mover *m = context;
    const core *c = m->c;
    uint32_t index = c->tiers->host_page[frame];
    return index && order_has(c->tiers->host_clean, index - 1) &&
           !(c->tiers->pages[index - 1].flags & TIER_BUSY) &&
           may_go_for(c, page_at(c->pages, index - 1), m->for_key);
}

/* As for the arena: a slab of another size is emptied. */
static int room_host_slab(core *c, uint64_t bytes, uint64_t for_key) {
    tiers *t = c->tiers;
    host_mover mover = {c, for_key};
    uint32_t frames_of[256], n = 0, n_gone = 0;
    memset(t->host_page, 0, c->config.max_host_frames * sizeof *t->host_page);
    for (uint32_t i = 0; i < t->max_pages; i++)
        if (t->pages[i].flags & TIER_KNOWN && t->pages[i].host_frame != PAGE_NO_FRAME)
            t->host_page[t->pages[i].host_frame] = i + 1;
    if (frames_victim(t->host, bytes, host_frame_movable, &mover, frames_of, 256, &n) != KVT_OK)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        n_gone += (uint32_t)host_page_goes(c, page_at(c->pages, t->host_page[frames_of[i]] - 1));
    return n_gone > 0;
}

kvt_status room_host(core *c, uint64_t bytes, uint64_t for_key, uint32_t *ret_frame) {
    for (uint32_t tries = 0;; tries++) {
        kvt_status status = frames_alloc(c->tiers->host, bytes, ret_frame);
        if (status != KVT_EFULL)
            return status;
        if (tries < (c->config.disk_bytes ? FEW_FRAMES : TAILS) && room_host_one(c, for_key))
            continue;
        if (tries > FEW_FRAMES + 8 || !room_host_slab(c, bytes, for_key))
            return KVT_EFULL;
    }
}

/* --- the disk ----------------------------------------------------------------------------------
 */

typedef struct disk_room {
    uint64_t record_bytes, page_bytes;
} disk_room;

/* What the node's pages take on disk, and take in memory. */
static disk_room room_on_disk(const core *c, radix_node node) {
    disk_room room = {0};
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++) {
        const tier_page *at = tier_of(c, node_page(c, node, slot));
        if (node_entry(c, node, slot) && at->flags & TIER_ON_DISK) {
            room.record_bytes += tier_charge(at);
            room.page_bytes += at->bytes;
        }
    }
    return room;
}

/* A disk that cannot have all that memory has, if it is of such pages (small ones take more room
 * there): what has a copy in memory stays. Else all would go from there, too, that the disk has no
 * room for, and a disk would make the cache smaller. */
static int stays_above(const core *c, radix_node node, disk_room room) {
    uint64_t above_bytes = c->config.n_arenas * c->config.arena_bytes + c->config.host_bytes;
    if (c->config.disk_bytes / room.record_bytes * room.page_bytes >= above_bytes)
        return 0;
    for (uint32_t slot = 0, n = radix_slots(c->tree, node); slot < n; slot++) {
        page_handle page = node_page(c, node, slot);
        if (page && (page_get(c->pages, page)->frame != PAGE_NO_FRAME ||
                     tier_of(c, page)->host_frame != PAGE_NO_FRAME))
            return 1;
    }
    return 0;
}

/* The coldest tail that takes room on disk. Tails that only memory has stay there: a few are
 * stepped over, held out of the tree's order for so long. */
static radix_node coldest_on_disk(core *c, uint64_t *ret_bytes) {
    radix_node over[STEPS], node, found = RADIX_NONE;
    uint32_t n = 0;
    while (n < STEPS && (node = radix_coldest(c->tree)) != RADIX_NONE) {
        disk_room room = room_on_disk(c, node);
        if (room.record_bytes > 0 && !stays_above(c, node, room)) {
            *ret_bytes = room.record_bytes;
            found = node;
            break;
        }
        radix_pin(c->tree, node);
        over[n++] = node;
    }
    while (n > 0)
        radix_unpin(c->tree, over[--n]);
    return found;
}

/* Has so much gone since the last write that there is something else that is wrong? A file system
 * that others fill as fast, say: it is not to cost all that is on it. */
static int freed_in_vain(const tiers *t) {
    return t->disk_full && t->freed_bytes > (t->disk_used + t->freed_bytes) / 4;
}

/* For a page that may be worth less than all that is there, too: it then goes first when the next
 * one comes, so little is lost; and what was found by a start may be more than there is room for.
 */
int room_disk(core *c, uint64_t bytes) {
    tiers *t = c->tiers;
    uint64_t freed_bytes = 0, gone_bytes = 0, goal_bytes = TIER_BATCH * bytes;
    uint64_t most_bytes = c->config.disk_bytes / 64;
    t->disk_stuck = 0;
    if (t->disk_used + bytes <= t->disk_limit && !t->disk_full)
        return 1;
    /* Room for a whole job at once, as long as that is little against all there is. */
    goal_bytes = goal_bytes < most_bytes ? goal_bytes : most_bytes;
    goal_bytes = goal_bytes > bytes ? goal_bytes : bytes;
    /* What is to be erased already may be enough. */
    for (uint32_t i = 0; i < t->n_erase && freed_bytes < goal_bytes; i++)
        freed_bytes += t->erase[(t->first_erase + i) % t->max_pages].bytes;
    while (freed_bytes < goal_bytes && !freed_in_vain(t)) {
        radix_node node = coldest_on_disk(c, &gone_bytes);
        if (node == RADIX_NONE)
            break;
        evict_subtree(c, node);
        freed_bytes += gone_bytes;
        t->freed_bytes += gone_bytes;
    }
    t->disk_stuck = freed_bytes == 0;
    return 0;
}
