/*
 * core_audit.c - does everything agree? For tests: called after each step of the simulator. It
 * walks all tables, and counts anew what the core keeps as it goes.
 */
#include "daemon/core_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct audit {
    const core *c;
    char *why;
    size_t why_bytes;
    kvt_status status;
    uint32_t *pins; /* [max_pages + max_roots + 1]: those that the leases hold */
    uint8_t *claimed;
    uint32_t n_hidden;
    uint32_t n_announced, n_marked, n_important;
    uint32_t *refs;     /* [max_pages], of pages: those of leases and jobs */
    radix_node *path;   /* scratch */
    const realm *realm; /* that is being walked */
    uint32_t n_nodes, n_held, n_frames, n_loose;
} audit;

static void fail(audit *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(audit *a, const char *format, ...) {
    if (a->status != KVT_OK)
        return;
    a->status = KVT_EINTERNAL;
    if (!a->why)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(a->why, a->why_bytes, format, args);
    va_end(args);
}

static uint32_t slot_with(const core *c, radix_node node, page_handle page) {
    uint32_t n_slots = radix_slots(c->tree, node), slot = 0;
    while (slot < n_slots && node_page(c, node, slot) != page)
        slot++;
    return slot;
}

static const realm *realm_of(const core *c, radix_node node) {
    while (radix_depth(c->tree, node) > 0)
        node = radix_parent(c->tree, node);
    for (uint32_t i = 0; i < c->config.max_realms; i++)
        if (c->realms[i].number && c->realms[i].root == node)
            return &c->realms[i];
    return NULL;
}

/* A page in the tree that is not sealed is being filled for a lease that claims it; or it belongs
 * to a group with a window, passed out of it, and is filled again. */
static void audit_unsealed(audit *a, const page_entry *entry, uint32_t slot) {
    const core *c = a->c;
    if (radix_is_held(c->tree, entry->node)) {
        const realm *r = realm_of(c, entry->node);
        if (!r->windows[slot % r->n_groups] || entry->state != PAGE_COPYING)
            fail(a, "node %u is held, its page in slot %u is %s", entry->node, slot,
                 page_state_name(entry->state));
        return;
    }
    if (!a->claimed[entry->node])
        fail(a, "node %u is filling without a lease that claims it", entry->node);
    if (entry->sealer) {
        const lease *l = filler_of_name(c, entry->sealer);
        int lives = entry->sealer > c->config.max_leases_total
                        ? c->groups[entry->sealer - c->config.max_leases_total - 1].group != 0
                        : l->session != NONE;
        if (!lives || !l->claim)
            fail(a, "node %u is filled by %u, which claims nothing", entry->node, entry->sealer);
    }
    if (entry->sealer != node_filler(c, entry->node))
        fail(a, "node %u has several fillers", entry->node);
}

/* Each page knows its node and the node knows the page; loose pages belong to jobs. */
static void audit_page(void *context, page_handle page, const page_entry *entry) {
    audit *a = context;
    const core *c = a->c;
    const char *fault = cooling_fault(c, (uint32_t)page);
    if (fault)
        fail(a, "page %llx is %s", (unsigned long long)page, fault);
    if (entry->frame != PAGE_NO_FRAME) {
        a->n_frames++;
        if (!frame_in_use(c, entry->frame))
            fail(a, "page %llx: its frame %u is not in use", (unsigned long long)page,
                 entry->frame);
    }
    if (entry->node == RADIX_NONE) {
        if (entry->refs != a->refs[(uint32_t)page])
            fail(a, "page %llx left the tree with %u references, leases and jobs have %u",
                 (unsigned long long)page, entry->refs, a->refs[(uint32_t)page]);
        a->n_loose++;
        return;
    }
    if (entry->refs != a->refs[(uint32_t)page] + 1u)
        fail(a, "page %llx has %u references, leases and jobs %u", (unsigned long long)page,
             entry->refs, a->refs[(uint32_t)page]);
    int sealed = entry->state == PAGE_SEALED;
    uint32_t slot = slot_with(c, entry->node, page);
    if (slot == radix_slots(c->tree, entry->node)) {
        fail(a, "page %llx and node %u disagree", (unsigned long long)page, entry->node);
        return;
    }
    fault = arena_fault(c, realm_of(c, entry->node), slot, entry);
    if (fault)
        fail(a, "page %llx %s", (unsigned long long)page, fault);
    if (is_flushed(c, entry->node) && !radix_is_busy(c->tree, entry->node))
        fail(a, "node %u was flushed, nobody holds it, and it is there", entry->node);
    if (sealed && entry->frame == PAGE_NO_FRAME && !c->tiers)
        fail(a, "page %llx is sealed without a frame", (unsigned long long)page);
    if (!sealed && entry->frame != PAGE_NO_FRAME)
        fail(a, "page %llx is %s with a frame", (unsigned long long)page,
             page_state_name(entry->state));
    if (!sealed)
        audit_unsealed(a, entry, slot);
}

/* Held from the front on without a gap; what could be held is. */
static void audit_held(audit *a, radix_node node) {
    const core *c = a->c;
    const realm *r = a->realm;
    int held = radix_is_held(c->tree, node);
    a->n_nodes++;
    a->n_held += (uint32_t)held;
    a->n_hidden += (uint32_t)radix_is_hidden(c->tree, node);
    int can_be_had = held && !is_flushed(c, node);
    a->n_announced += (uint32_t)can_be_had;
    a->n_marked += (uint32_t)node_is_marked(c, node);
    a->n_important += importance_of(c, node) != NULL;
    if (can_be_had != (c->announced[node] != 0))
        fail(a, "node %u can be had = %d, announced as %llu", node, can_be_had,
             (unsigned long long)c->announced[node]);
    if (held && !is_held(c, radix_parent(c->tree, node)))
        fail(a, "node %u is held below one that is not", node);
    if (!held && node_is_sealed(c, node) && is_held(c, radix_parent(c->tree, node)))
        fail(a, "node %u has all its pages and is not held", node);
    for (uint32_t slot = 0; slot < radix_slots(c->tree, node); slot++)
        if (!node_page(c, node, slot) && !r->windows[slot % r->n_groups])
            fail(a, "node %u has no page in slot %u", node, slot);
}

static int audit_run(void *context, const radix_run *run) {
    audit *a = context;
    radix_node node = run->last;
    for (uint32_t i = 0; i < run->n_pages; i++) {
        audit_held(a, node);
        node = radix_parent(a->c->tree, node);
    }
    return 0;
}

/* Is there, for every group, what it needs behind n tokens? By the words of kvtrunk.h. */
static int all_is_there(const audit *a, const realm *r, uint32_t n) {
    for (uint32_t group = 0; group < r->n_groups; group++)
        for (uint32_t token = 0; token < n && r->windows[group]; token++)
            for (uint32_t rank = 0; rank < r->n_ranks && token + r->windows[group] > n; rank++) {
                const page_entry *entry =
                    node_entry(a->c, a->path[token / r->page_tokens], slot_of(r, rank, group));
                if (!entry || !entry_is_sealed(entry) || entry->frame == PAGE_NO_FRAME)
                    return 0;
            }
    return 1;
}

static uint32_t longest(audit *a, const realm *r, radix_node node, radix_node partial,
                        uint32_t partial_tokens) {
    uint32_t n = path_tokens(a->c, node) + partial_tokens;
    a->path[radix_depth(a->c->tree, node)] = partial;
    for (uint32_t depth = radix_depth(a->c->tree, node); depth > 0; depth--) {
        a->path[depth - 1] = node;
        node = radix_parent(a->c->tree, node);
    }
    while (!all_is_there(a, r, n))
        n--;
    return n;
}

static void audit_told(audit *a, const realm *r, uint32_t rank, radix_node node, uint32_t group) {
    uint32_t first = rank == ALL_RANKS ? 0 : rank, end = rank == ALL_RANKS ? r->n_ranks : rank + 1;
    for (uint32_t i = first; i < end; i++) {
        page_handle page = node_page(a->c, node, slot_of(r, i, group));
        if (!page_get(a->c->pages, page))
            fail(a, "a lease was told of node %u, whose page in group %u is gone", node, group);
        else
            a->refs[(uint32_t)page]++;
    }
}

/* Trying every length gives the same as lease_look; and the lease has references to what it was
 * told of. */
static void audit_windows(audit *a, const lease *l) {
    const core *c = a->c;
    const realm *r = &c->realms[l->realm];
    if (!r->max_window || l->is_view)
        return;
    uint32_t n = longest(a, r, lease_ready(c, l), RADIX_NONE, 0), by_partial = 0;
    if (l->partial != RADIX_NONE && node_is_ready(c, r, l->partial) &&
        radix_depth(c->tree, l->partial) <= radix_depth(c->tree, lease_ready(c, l)) + 1)
        by_partial =
            longest(a, r, radix_parent(c->tree, l->partial), l->partial, l->partial_tokens);
    n = n > by_partial ? n : by_partial;
    if (lease_held_tokens(c, l) != n)
        fail(a, "a lease holds %u tokens, %u could be read", lease_held_tokens(c, l), n);
    for (uint32_t group = 0; group < r->n_groups && l->told_tokens; group++) {
        uint32_t first = kvt_wire_window_first(l->told_tokens, r->windows[group]) / r->page_tokens;
        radix_node at = l->told_last;
        for (; r->windows[group] && radix_depth(c->tree, at) > first;
             at = radix_parent(c->tree, at)) {
            audit_told(a, r, l->rank, at, group);
        }
    }
}

static uint32_t audit_lease(audit *a, const lease *l) {
    const core *c = a->c;
    uint32_t n = 0;
    audit_windows(a, l);
    a->pins[l->tail]++;
    if (l->partial != RADIX_NONE) {
        a->pins[l->partial]++;
        if (!radix_is_held(c->tree, l->partial))
            fail(a, "a lease reads node %u, which is not held", l->partial);
    }
    for (radix_node node = l->tail; !is_held(c, node); node = radix_parent(c->tree, node)) {
        n++;
        if (l->claim)
            a->claimed[node] = 1;
    }
    if (!l->claim && n)
        fail(a, "a lease without a claim ends at node %u, which is not held", l->tail);
    return n;
}

static void audit_groups(audit *a) {
    const core *c = a->c;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->max_groups && c->n_groups; i++) {
        const group_entry *g = &c->groups[i];
        uint32_t n_leases = 0;
        if (!g->group)
            continue;
        n++;
        audit_lease(a, &g->anchor);
        for (uint32_t k = 0; k < c->config.max_leases_total; k++)
            n_leases += c->leases[k].session && c->leases[k].group == i + 1;
        if (n_leases != g->n_leases)
            fail(a, "request %u of a group has %u leases, counted %u", i, n_leases, g->n_leases);
    }
    if (n != c->n_groups)
        fail(a, "%u requests of groups, counted %u", n, c->n_groups);
}

static void audit_sessions(audit *a) {
    const core *c = a->c;
    uint32_t n_leases = 0, n_jobs = 0, n_sessions = 0;
    for (uint32_t i = 0; i < c->config.max_sessions; i++) {
        const session *s = &c->sessions[i];
        uint32_t n = 0, n_claimed = 0;
        if (s->state == SESSION_FREE)
            continue;
        n_sessions++;
        n_jobs += s->n_jobs;
        for (uint32_t at = s->first_lease; at; at = c->leases[at - 1].next_of_session) {
            const lease *l = &c->leases[at - 1];
            if (l->session != i + 1)
                fail(a, "lease slot %u is in the list of another session", at);
            uint32_t unsealed = audit_lease(a, l);
            /* Pages that another worker sealed lower the true number; it is counted anew when
             * the lease is used next. */
            if (unsealed > l->n_claimed)
                fail(a, "lease slot %u claims %u pages and counts %u", at, unsealed, l->n_claimed);
            n_claimed += l->n_claimed;
            n++;
        }
        if (n != s->n_leases || n_claimed != s->n_claimed)
            fail(a, "session %u: %u leases of %u, %u claimed pages of %u", s->number, n,
                 s->n_leases, n_claimed, s->n_claimed);
        n_leases += n;
    }
    if (n_sessions != c->n_sessions)
        fail(a, "%u sessions, counted %u", n_sessions, c->n_sessions);
    if (n_leases + c->n_free_leases != c->config.max_leases_total)
        fail(a, "%u leases and %u free ones of %u", n_leases, c->n_free_leases,
             c->config.max_leases_total);
    if (n_jobs != c->n_jobs)
        fail(a, "%u jobs of sessions, counted %u", n_jobs, c->n_jobs);
}

/* The pins add up, and each keeps what it says. */
static void audit_kept(audit *a) {
    const core *c = a->c;
    uint64_t n_bytes = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->config.max_pins; i++) {
        const pin *p = &c->pins[i];
        if (!p->number)
            continue;
        n++;
        n_bytes += p->n_bytes;
        a->pins[p->tail]++;
        if (!is_held(c, p->tail) || is_flushed(c, p->tail) || !p->n_tokens ||
            p->n_tokens > path_tokens(c, p->tail))
            fail(a, "pin %llu keeps %u tokens at node %u, of %u", (unsigned long long)p->number,
                 p->n_tokens, p->tail, path_tokens(c, p->tail));
    }
    if (n != c->n_pins || n_bytes != c->pinned_bytes || n_bytes > c->config.max_pinned_bytes)
        fail(a, "%u pins of %llu bytes, counted %u of %llu", n, (unsigned long long)n_bytes,
             c->n_pins, (unsigned long long)c->pinned_bytes);
}

static void audit_claim_list(audit *a, const claim_list *list, claim_state state) {
    const core *c = a->c;
    uint32_t n = 0, before = NONE;
    for (uint32_t at = list->first; at; at = c->leases[at - 1].next_claim) {
        const lease *l = &c->leases[at - 1];
        if (!l->session || !l->claim || l->claim_state != state || l->prev_claim != before ||
            (state == CLAIM_PROMISED && before &&
             c->leases[before - 1].claim_end_ms > l->claim_end_ms))
            fail(a, "lease slot %u in the list of claims is out of order", at);
        before = at;
        n++;
    }
    if (before != list->last)
        fail(a, "the list of %u claims ends at slot %u, not at %u", n, before, list->last);
}

/* Who has promised pages computes some, and whoever was first ends first. */
static void audit_claims(audit *a) {
    audit_claim_list(a, &a->c->promised, CLAIM_PROMISED);
    audit_claim_list(a, &a->c->expired, CLAIM_EXPIRED);
}

static void audit_pages(audit *a) {
    const core *c = a->c;
    uint32_t n_job_frames = 0;
    for (uint32_t i = 0; i < c->config.max_jobs; i++) {
        const core_job *job = &c->jobs[i];
        int free_job = 0;
        for (const core_job *f = c->free_jobs; f && !free_job; f = f->next)
            free_job = f == job;
        for (uint32_t k = 0; k < job->n_copies && !free_job; k++) {
            n_job_frames += job->copies[k].frame != PAGE_NO_FRAME;
            a->refs[(uint32_t)job->copies[k].page]++;
        }
    }
    suspects_refs_of(c, a->refs, a->pins);
    tiers_refs_of(c, a->refs);
    cooling_refs_of(c, a->refs, 0);
    page_table_each(c->pages, audit_page, a);
    for (uint32_t i = 0; i < c->config.max_realms; i++)
        if (c->realms[i].number) {
            a->realm = &c->realms[i];
            radix_walk(c->tree, c->realms[i].root, audit_run, a);
        }
    radix_counts tree;
    radix_count(c->tree, &tree);
    if (a->n_nodes != tree.busy + tree.idle)
        fail(a, "%u nodes are in a realm's tree, there are %u", a->n_nodes, tree.busy + tree.idle);
    for (uint32_t i = 1; i <= c->config.max_pages; i++)
        a->n_announced -= c->announced[i] != 0;
    if (a->n_announced)
        fail(a, "pages that can be had and those announced differ by %u", a->n_announced);
    if (a->n_marked != c->n_marked)
        fail(a, "%u nodes are marked, counted %u", a->n_marked, c->n_marked);
    if (a->n_important != c->n_important)
        fail(a, "%u nodes have an importance, counted %u", a->n_important, c->n_important);
    if (a->n_hidden != c->n_hidden)
        fail(a, "%u nodes are hidden, counted %u", a->n_hidden, c->n_hidden);
    if (a->n_held != c->n_held)
        fail(a, "%u nodes are held, counted %u", a->n_held, c->n_held);
    n_job_frames += tiers_frames_of(c, CORE_JOB_UP, CORE_JOB_UP) + cooling_refs_of(c, NULL, 0);
    if (arenas_used(c) != a->n_frames + n_job_frames)
        fail(a, "%u frames in use, %u of pages and %u of jobs", arenas_used(c), a->n_frames,
             n_job_frames);
    core_counts n;
    core_count(c, &n);
    if (n.pages_free + n.pages_filling + n.pages_evictable + n.pages_pinned != n.pages_max)
        fail(a, "free + filling + evictable + pinned is not all");
}

static void audit_pins(audit *a) {
    const core *c = a->c;
    for (uint32_t i = 0; i < c->config.max_realms; i++) {
        const realm *r = &c->realms[i];
        if (r->number && radix_pins(c->tree, r->root) != a->pins[r->root])
            fail(a, "root %u has %u pins, leases hold %u", r->root, radix_pins(c->tree, r->root),
                 a->pins[r->root]);
    }
}

static void audit_node_pins(void *context, page_handle page, const page_entry *entry) {
    audit *a = context;
    (void)page;
    if (entry->node == RADIX_NONE)
        return;
    uint32_t pins = radix_pins(a->c->tree, entry->node);
    if (pins != a->pins[entry->node])
        fail(a, "node %u has %u pins, leases hold %u", entry->node, pins, a->pins[entry->node]);
}

kvt_status core_audit(const core *c, char *why, size_t why_bytes) {
    audit a = {.c = c, .why = why, .why_bytes = why_bytes, .status = KVT_OK};
    kvt_status status = radix_audit(c->tree, why, why_bytes);
    if (status == KVT_OK)
        status = page_table_audit(c->pages, why, why_bytes);
    if (status == KVT_OK)
        status = arenas_audit(c, why, why_bytes);
    if (status == KVT_OK && c->tiers)
        status = tiers_audit(c, why, why_bytes);
    if (status != KVT_OK)
        return status;
    size_t n = (size_t)c->config.max_pages + page_slack(&c->config) + c->config.max_realms + 2;
    a.pins = calloc(n, sizeof *a.pins);
    a.claimed = calloc(n, 1);
    a.refs = calloc(n, sizeof *a.refs);
    a.path = calloc(n, sizeof *a.path);
    if (a.pins && a.claimed && a.refs && a.path) {
        audit_sessions(&a);
        audit_groups(&a);
        audit_kept(&a);
        found_pins_of(c, a.pins, a.claimed);
        audit_claims(&a);
        if (a.status == KVT_OK)
            a.status = views_audit(c, a.refs, why, why_bytes);
        audit_pages(&a);
        audit_pins(&a);
        page_table_each(c->pages, audit_node_pins, &a);
    } else {
        a.status = KVT_ENOMEM;
    }
    free(a.pins);
    free(a.claimed);
    free(a.refs);
    free(a.path);
    return a.status;
}
