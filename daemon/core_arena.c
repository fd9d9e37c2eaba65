/*
 * core_arena.c - the arenas, and who reads which. A daemon has one arena in host memory, or one on
 * each GPU that it was given; all are equally large, and the tree is one over all of them.
 *
 *     realm   rank 0 --> arena 0 (GPU 0)     frame f of arena a: a * max_frames + f
 *             rank 1 --> arena 1 (GPU 1)     its offset:         a * KVT_DEVICE_STRIDE + offset
 *
 * All pages of a rank stand in one arena: that of the GPU which its first worker has named. A
 * worker maps this one and no other, so it must never be told of a page that stands elsewhere: a
 * session has one arena for as long as it lives, and leases are given only where that is its
 * rank's. A rank moves to another GPU when nobody reads its pages where they are; they are
 * forgotten then, as far as no lower tier has them.
 */
#include "daemon/core_state.h"
#include "kernels/say.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- open, close -------------------------------------------------------------------------------
 */

static kvt_status arena_open_one(const core_config *g, const core_arena *wanted, arena_books *a) {
    size_t bytes = frames_bytes(g->arena_bytes, g->max_frames);
    snprintf(a->path, sizeof a->path, "%s", wanted->path);
    snprintf(a->gpu, sizeof a->gpu, "%s", wanted->gpu ? wanted->gpu : "");
    a->memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!a->memory)
        return KVT_ENOMEM;
    memset(a->memory, 0, bytes);
    return frames_init(a->memory, bytes, g->arena_bytes, g->max_frames, wanted->generations,
                       &a->frames);
}

kvt_status arenas_open(core *c) {
    const core_config *g = &c->config;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < g->n_arenas && status == KVT_OK; i++)
        status = arena_open_one(g, &g->arenas[i], &c->arenas[i]);
    c->config.arenas = NULL; /* the caller's, and all of it is here now */
    return status;
}

void arenas_close(core *c) {
    for (uint32_t i = 0; i < c->config.n_arenas; i++) {
        free(c->arenas[i].memory);
        free(c->arenas[i].order_memory[0]);
        free(c->arenas[i].order_memory[1]);
    }
}

/* --- frames ------------------------------------------------------------------------------------
 */

static frames *frames_with(const core *c, uint32_t frame) {
    return c->arenas[frame_arena(c, frame)].frames;
}

static uint32_t in_arena(const core *c, uint32_t frame) {
    return frame % c->config.max_frames;
}

kvt_status frame_take(core *c, uint32_t arena, uint64_t bytes, uint32_t *ret_frame) {
    uint32_t frame;
    kvt_status status = frames_alloc(c->arenas[arena].frames, bytes, &frame);
    if (status == KVT_OK)
        *ret_frame = arena * c->config.max_frames + frame;
    return status;
}

void frame_free(core *c, uint32_t frame) {
    frames_free(frames_with(c, frame), in_arena(c, frame));
}

uint64_t frame_offset(const core *c, uint32_t frame) {
    return frame_arena(c, frame) * KVT_DEVICE_STRIDE +
           frames_offset(frames_with(c, frame), in_arena(c, frame));
}

uint64_t frame_size(const core *c, uint32_t frame) {
    return frames_size(frames_with(c, frame), in_arena(c, frame));
}

uint64_t frame_asked(const core *c, uint32_t frame) {
    return frames_asked(frames_with(c, frame), in_arena(c, frame));
}

int frame_in_use(const core *c, uint32_t frame) {
    return frames_in_use(frames_with(c, frame), in_arena(c, frame));
}

void frame_to_wire(const core *c, uint32_t frame, kvt_wire_page *page) {
    page->frame = in_arena(c, frame);
    frame_place at = frames_place(frames_with(c, frame), page->frame);
    page->offset = at.offset;
    page->generation = at.generation;
    page->bytes = (uint32_t)at.bytes;
}

/* --- sums --------------------------------------------------------------------------------------
 */

uint32_t arenas_used(const core *c) {
    frames_counts n;
    uint32_t used = 0;
    for (uint32_t i = 0; i < c->config.n_arenas; i++) {
        frames_count(c->arenas[i].frames, &n);
        used += n.used;
    }
    return used;
}

uint32_t arenas_dirty(const core *c) {
    uint32_t dirty = 0;
    for (uint32_t i = 0; i < c->config.n_arenas; i++)
        dirty += order_count(c->arenas[i].dirty);
    return dirty;
}

void core_count_arena(const core *c, uint32_t arena, core_arena_counts *ret_counts) {
    frames_counts n;
    core_arena_counts counts = {0};
    frames_count(c->arenas[arena].frames, &n);
    counts.arena_bytes = n.arena_bytes;
    counts.used_bytes = n.used_bytes;
    counts.waste_bytes = n.waste_bytes;
    counts.frames_used = n.used;
    for (uint32_t i = 0; i < c->config.max_realms; i++)
        for (uint32_t rank = 0; c->realms[i].number && rank < c->realms[i].n_ranks; rank++)
            counts.ranks += c->realms[i].arenas[rank] == arena + 1;
    *ret_counts = counts;
}

/* --- who reads which ---------------------------------------------------------------------------
 */

static uint32_t rank_arena(const core *c, const realm *r, uint32_t rank) {
    return c->config.n_arenas == 1 ? 0 : r->arenas[rank] ? r->arenas[rank] - 1u : ARENA_NONE;
}

uint32_t slot_arena(const core *c, const realm *r, uint32_t slot) {
    return rank_arena(c, r, slot / r->n_groups);
}

int rank_is_near(const core *c, const session *s, const realm *r, uint32_t rank) {
    return c->config.n_arenas == 1 || (s->arena && r->arenas[rank] == s->arena);
}

static uint32_t arena_of_gpu(const core *c, const kvt_wire_str *gpu) {
    for (uint32_t i = 0; i < c->config.n_arenas; i++) {
        const char *known = c->arenas[i].gpu;
        if (gpu->n_bytes > 0 && strlen(known) == gpu->n_bytes &&
            strncasecmp(known, gpu->at, gpu->n_bytes) == 0)
            return i;
    }
    return ARENA_NONE;
}

static kvt_status no_such_gpu(const core *c, const kvt_wire_str *gpu, char *why, size_t why_bytes) {
    char list[256] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < c->config.n_arenas && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", c->arenas[i].gpu);
    return kvt_say(why, why_bytes, KVT_ENOTSUP,
                   "the daemon has no arena on the GPU %.*s, but on %s: name one of these, or add "
                   "it to the daemon's \"gpu\"",
                   (int)gpu->n_bytes, gpu->at, list);
}

/* The one that the worker has named, or whose GPU it is on; else the one that it reads already,
 * that of its rank, or the first. */
static kvt_status choose(const core *c, const session *s, const realm *r, const kvt_realm_req *req,
                         char *why, size_t why_bytes, uint32_t *ret_arena) {
    uint32_t arena = arena_of_gpu(c, &req->gpu);
    int on_host = !c->arenas[0].gpu[0]; /* every worker can read there */
    if (arena == ARENA_NONE && req->gpu_named && !on_host)
        return no_such_gpu(c, &req->gpu, why, why_bytes);
    if (arena == ARENA_NONE)
        arena = s->arena ? s->arena - 1 : rank_arena(c, r, req->rank);
    *ret_arena = arena == ARENA_NONE ? 0 : arena;
    return KVT_OK;
}

/* Another worker that reads the rank's pages where they are. */
static const session *reader_of(const core *c, const session *but, const realm *r, uint32_t rank) {
    for (uint32_t i = 0; i < c->config.max_sessions; i++) {
        const session *s = &c->sessions[i];
        if (s != but && (s->state == SESSION_LIVE || s->state == SESSION_ORPHAN) &&
            s->realm == r->number && s->rank == rank && s->arena == r->arenas[rank])
            return s;
    }
    return NULL;
}

static radix_node deepest(const core *c, radix_node node) {
    for (radix_node child; (child = radix_first_child(c->tree, node)) != RADIX_NONE;)
        node = child;
    return node;
}

static int has_frames(const core *c, const realm *r, radix_node node, uint32_t rank) {
    for (uint32_t group = 0; group < r->n_groups; group++) {
        const page_entry *entry = node_entry(c, node, slot_of(r, rank, group));
        if (entry && entry->frame != PAGE_NO_FRAME)
            return 1;
    }
    return 0;
}

/* The rank's pages leave their arena, those without a copy below with their nodes. 0: somebody
 * holds one. */
static int rank_leaves(core *c, const realm *r, uint32_t rank) {
    if (r->n_jobs > 0)
        return 0;
    for (radix_node node = deepest(c, r->root); node != r->root;) {
        radix_node next = radix_next_sibling(c->tree, node), parent = radix_parent(c->tree, node);
        if (radix_is_busy(c->tree, node))
            return 0;
        for (uint32_t group = 0; group < r->n_groups; group++)
            if (node_page(c, node, slot_of(r, rank, group)))
                room_device_page(c, node_page(c, node, slot_of(r, rank, group)));
        if (has_frames(c, r, node, rank))
            evict_subtree(c, node);
        node = next == RADIX_NONE ? parent : deepest(c, next);
    }
    return 1;
}

/* A page of all ranks that stand there must fit, or none could ever be sealed. */
static kvt_status check_room(const core *c, const realm *r, uint32_t rank, uint32_t arena,
                             char *why, size_t why_bytes) {
    uint64_t of_rank = 0, n_ranks = 0;
    for (uint32_t group = 0; group < r->n_groups; group++)
        of_rank += kvt_page_max_bytes(&r->shapes[group]);
    for (uint32_t i = 0; i < r->n_ranks; i++)
        n_ranks += i == rank || r->arenas[i] == arena + 1;
    if (n_ranks * of_rank <= c->config.arena_bytes)
        return KVT_OK;
    return kvt_say(why, why_bytes, KVT_ELIMIT,
                   "%llu ranks are on the GPU %s, a page of theirs takes %llu bytes, the arena has "
                   "%llu; enlarge the arena, or spread the ranks over GPUs",
                   (unsigned long long)n_ranks, c->arenas[arena].gpu,
                   (unsigned long long)(n_ranks * of_rank),
                   (unsigned long long)c->config.arena_bytes);
}

static kvt_status move_rank(core *c, const session *s, const realm *r, uint32_t rank,
                            uint32_t arena, char *why, size_t why_bytes) {
    const char *from = c->arenas[r->arenas[rank] - 1].gpu, *to = c->arenas[arena].gpu;
    const session *reader = reader_of(c, s, r, rank);
    if (reader)
        return kvt_say(why, why_bytes, KVT_EBUSY,
                       "rank %u of this realm is on the GPU %s, where session %u (%s) reads its "
                       "pages; a worker on the GPU %s can share none of them. Give its realm "
                       "another salt, or start a daemon for each GPU",
                       rank, from, reader->number, reader->name, to);
    if (!rank_leaves(c, r, rank))
        return kvt_say(why, why_bytes, KVT_EBUSY,
                       "rank %u of this realm moves from the GPU %s to %s when nobody holds its "
                       "pages any more: some are leased, pinned or being copied. Unpin, or try "
                       "again later",
                       rank, from, to);
    return KVT_OK;
}

kvt_status rank_bind(core *c, session *s, realm *r, const kvt_realm_req *req, char *why,
                     size_t why_bytes) {
    uint32_t arena = ARENA_NONE;
    kvt_status status = choose(c, s, r, req, why, why_bytes, &arena);
    if (status != KVT_OK)
        return status;
    if (s->arena && s->arena != arena + 1)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "this session reads the arena on the GPU %s, and cannot read that on %s: "
                       "open another one",
                       c->arenas[s->arena - 1].gpu, c->arenas[arena].gpu);
    if (c->config.n_arenas > 1)
        status = check_room(c, r, req->rank, arena, why, why_bytes);
    if (status == KVT_OK && r->arenas[req->rank] && r->arenas[req->rank] != arena + 1)
        status = move_rank(c, s, r, req->rank, arena, why, why_bytes);
    if (status != KVT_OK)
        return status;
    r->arenas[req->rank] = (uint8_t)(arena + 1);
    s->arena = arena + 1;
    s->realm = r->number;
    s->rank = req->rank;
    return KVT_OK;
}

/* --- audit -------------------------------------------------------------------------------------
 */

kvt_status arenas_audit(const core *c, char *why, size_t why_bytes) {
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < c->config.n_arenas && status == KVT_OK; i++) {
        const arena_books *a = &c->arenas[i];
        status = frames_audit(a->frames, why, why_bytes);
        if (status == KVT_OK && a->dirty)
            status = order_audit(a->dirty, why, why_bytes);
        if (status == KVT_OK && a->clean)
            status = order_audit(a->clean, why, why_bytes);
    }
    return status;
}

const char *arena_fault(const core *c, const realm *r, uint32_t slot, const page_entry *entry) {
    if (c->config.n_arenas == 1)
        return NULL;
    if (entry->frame != PAGE_NO_FRAME && frame_arena(c, entry->frame) != slot_arena(c, r, slot))
        return "stands in another arena than its rank's";
    return NULL;
}
