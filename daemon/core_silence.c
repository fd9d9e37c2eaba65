/*
 * core_silence.c - what is on a disk and cannot be had from there now: the disk does not answer, no
 * process has it, or it cannot read a page.
 *
 *     disk       reads are      a page that the disk alone has
 *     ------------------------------------------------------------------------------------------
 *     answers    started        comes up
 *     fails      not for this page, till the next try; meanwhile it is told as shorter
 *     silent     not started    whoever claims its path has it forgotten, and computes it
 *
 * Silence has to be measured by the core: a disk that hangs says nothing, also not that it hangs.
 * Each read that waits for it would take one of the tiers' jobs, and each acquire its whole bounded
 * wait, as long as the disk hangs. And what it alone has could not even be computed again: its node
 * is in the tree, and held, so nobody may claim it. A cache may forget; so such pages leave the
 * tree when somebody claims their path (and in core_room.c, instead of leaving the arena alone),
 * and what is computed takes their place. Where the disk comes back before that, all is as it was.
 */
#include "daemon/core_state.h"

/* --- a disk that does not answer ----------------------------------------------------------------
 */

int disk_is_silent(const core *c) {
    const tiers *t = c->tiers;
    return t && c->config.disk_bytes && (!t->disk_up || t->n_reads > 0) &&
           c->env.now_ms(c->env.context) - t->disk_heard_ms >= DISK_SILENT_MS;
}

/* Told again and again. Who comes has answered by that, and who goes as long as it was not silent;
 * the tries to have another one say nothing. */
void core_disk_up(core *c, int up) {
    tiers *t = c->tiers;
    if (!t || !c->config.disk_bytes)
        return;
    if (!up || !t->disk_up) /* a new process */
        t->disk_fails = t->reads_fail = 0;
    if (up != t->disk_up && (up || !disk_is_silent(c)))
        t->disk_heard_ms = c->env.now_ms(c->env.context);
    t->disk_up = up;
    core_go_on(c);
}

/* What of the node is needed in front of so many tokens, and the disk alone has; 0: nothing. */
static page_handle page_out_of_reach(const core *c, const realm *r, radix_node node,
                                     uint32_t n_tokens) {
    uint32_t n = radix_slots(c->tree, node);
    for (uint32_t slot = 0; (slot = next_absent(c, r, node, n_tokens, slot)) < n; slot++)
        if (tier_of(c, node_page(c, node, slot))->host_frame == PAGE_NO_FRAME)
            return node_page(c, node, slot);
    return 0;
}

/* The first such page of the path from behind `from` to `last`. */
static page_handle first_out_of_reach(const core *c, const realm *r, radix_node from,
                                      radix_node last) {
    page_handle first = 0;
    uint32_t n_tokens = path_tokens(c, last);
    for (radix_node node = last; node != from; node = radix_parent(c->tree, node)) {
        page_handle page = page_out_of_reach(c, r, node, n_tokens);
        first = page ? page : first;
    }
    return first;
}

/*
 * The records go, too, when the disk is back: what is computed meanwhile takes their place.
 *
 * Leases that pin the path were told that it ends in front of such a page: they are cut there, or
 * would keep all others from computing it, as long as they live. Not where they claim something
 * behind a base: the lease that is being changed may be the very one.
 */
void forget_out_of_reach(core *c, const realm *r, radix_node from, uint32_t n_tokens) {
    radix_match m;
    if (!c->tiers || c->tiers->n_absent == 0 || !disk_is_silent(c))
        return;
    for (;;) { /* of windows there may be several */
        radix_find(c->tree, from, c->asked, n_tokens, &m);
        page_handle page = first_out_of_reach(c, r, from, m.node);
        radix_node node = page ? page_get(c->pages, page)->node : RADIX_NONE;
        if (node == RADIX_NONE || (radix_is_busy(c->tree, node) && from != r->root) ||
            pins_are_below(c, node))
            return;
        page_lost(c, page);
    }
}

/* --- pages that cannot be read ------------------------------------------------------------------
 */

/* It is asked for again, but not at once, and again, as long as somebody waits for it: each time
 * may take a failing disk seconds. The others are not asked less for it. */
static int read_has_failed(core *c, const tier_page *at) {
    tiers *t = c->tiers;
    if (!t->reads_fail || at->failed_in != t->n_reads_fail)
        return 0;
    t->reads_fail = c->env.now_ms(c->env.context) < t->read_retry_ms;
    return t->reads_fail;
}

void disk_read_failed(core *c, tier_page *at) {
    tiers *t = c->tiers;
    c->counts.reads_failed++;
    if (!t->reads_fail) {
        t->reads_fail = 1;
        t->n_reads_fail++;
        t->read_retry_ms = c->env.now_ms(c->env.context) + DISK_RETRY_MS;
    }
    at->failed_in = t->n_reads_fail;
}

int disk_may_read(core *c, page_handle page) {
    return c->tiers->disk_up && !disk_is_silent(c) && !read_has_failed(c, tier_of(c, page));
}
