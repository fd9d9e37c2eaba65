/*
 * core_span.c - spans of tokens that stand for an image, a sound, a video: their tokens say nothing
 * of what they stand for, so two paths with equal tokens are equal only if the contents are, too.
 *
 *     tokens   [ text . . . | <img> <img> <img> ... <img> | text . . ]
 *     in tree  [ text . . . | k0    k1    k2    ... kn    | text . . ]       k: of content and
 * place page     [              mark: where each span stands in it, and its content's 128 bits ]
 *
 * In the tree each token of a span stands as a number mixed from its content's hash, its place in
 * the span, the span's length and itself (kvt_wire_span_word), so paths part where contents do.
 * Those 32 bits only find: what decides is the mark of the page, which is compared for each page of
 * a match. Text in front of a span in a page is shared as any other; the rest of that page is
 * shared whole or not at all.
 *
 * A page with a mark is not written to disk, where a page is known by its tokens alone.
 */
#include "daemon/core_state.h"

#include <string.h>

/* --- of the request -----------------------------------------------------------------------------
 */

int spans_take(core *c, const kvt_acquire_req *req, uint32_t before, uint32_t n_tokens,
               uint32_t n_kept) {
    uint32_t end = before, path_end = before + n_tokens;
    c->n_spans = req->n_spans;
    for (uint32_t i = 0; i < req->n_spans; i++) {
        kvt_wire_span *span = &c->spans[i];
        kvt_wire_get_span(req->spans, i, span);
        /* A span that begins in front of the page where the message begins was sent again, for that
         * page's sake: its part of the kept tokens stands there already. */
        if (span->n_tokens == 0 || span->first_token > path_end ||
            span->n_tokens > path_end - span->first_token || (i && span->first_token < end) ||
            span->first_token + span->n_tokens <= before)
            return 0;
        end = span->first_token + span->n_tokens;
        for (uint32_t at = span->first_token < before + n_kept ? before + n_kept
                                                               : span->first_token;
             at < end; at++)
            c->tokens[at - before] =
                kvt_wire_span_word(span, at - span->first_token, c->tokens[at - before]);
    }
    return 1;
}

void mark_of_page(const core *c, uint32_t page, uint32_t page_tokens, page_mark *ret) {
    uint32_t begin = page * page_tokens, end = begin + page_tokens;
    *ret = (page_mark){.first_row = (uint16_t)page_tokens};
    for (uint32_t i = 0; i < c->n_spans; i++) {
        const kvt_wire_span *span = &c->spans[i];
        if (span->first_token >= end || span->first_token + span->n_tokens <= begin)
            continue;
        uint32_t row = span->first_token > begin ? span->first_token - begin : 0;
        uint32_t words[7] = {row, begin + row - span->first_token, span->n_tokens};
        memcpy(words + 3, span->hash, sizeof span->hash);
        ret->mark = tier_key_child(&ret->mark, 0, words, 7);
        ret->is_marked = 1;
        ret->first_row = row < ret->first_row ? (uint16_t)row : ret->first_row;
    }
}

/* --- of nodes -----------------------------------------------------------------------------------
 */

static page_mark mark_of_node(const core *c, radix_node node) {
    page_mark mark = c->marks[node];
    if (!mark.is_marked)
        mark.first_row = (uint16_t)radix_page_tokens(c->tree, node);
    return mark;
}

int node_is_marked(const core *c, radix_node node) {
    return c->marks[node].is_marked;
}

static int marks_equal(const page_mark *a, const page_mark *b) {
    return a->is_marked == b->is_marked && tier_key_equal(&a->mark, &b->mark);
}

int nodes_marked_alike(const core *c, radix_node a, radix_node b) {
    return marks_equal(&c->marks[a], &c->marks[b]);
}

void node_mark(core *c, radix_node node) {
    page_mark mark;
    if (c->n_spans == 0)
        return;
    mark_of_page(c, radix_depth(c->tree, node) - 1, radix_page_tokens(c->tree, node), &mark);
    if (!mark.is_marked)
        return;
    c->marks[node] = mark;
    c->n_marked++;
}

int node_has_mark(const core *c, radix_node node) {
    page_mark mark, own = mark_of_node(c, node);
    mark_of_page(c, radix_depth(c->tree, node) - 1, radix_page_tokens(c->tree, node), &mark);
    return marks_equal(&mark, &own);
}

void node_unmark(core *c, radix_node node) {
    c->n_marked -= (uint32_t)c->marks[node].is_marked;
    c->marks[node] = (page_mark){0};
}

/* --- of a match ---------------------------------------------------------------------------------
 */

static void match_cut(const core *c, radix_node from, radix_node end, radix_match *m) {
    uint32_t depth = radix_depth(c->tree, from);
    m->node = end;
    m->n_pages = radix_depth(c->tree, end) - depth;
    if (m->held_pages > m->n_pages || (m->held_pages == m->n_pages && m->held != end)) {
        m->held = end;
        m->held_pages = m->n_pages;
    }
    m->partial = RADIX_NONE;
    m->partial_tokens = 0;
}

void spans_check_match(const core *c, radix_node from, radix_match *m) {
    radix_node end = m->node;
    page_mark mark, own;
    if (c->n_spans == 0 && c->n_marked == 0)
        return;
    for (radix_node node = m->node; node != from; node = radix_parent(c->tree, node))
        if (!node_has_mark(c, node))
            end = radix_parent(c->tree, node);
    if (end != m->node) {
        match_cut(c, from, end, m);
        return;
    }
    if (m->partial == RADIX_NONE || node_has_mark(c, m->partial))
        return;
    /* Text in front of both first spans is the same text. */
    own = mark_of_node(c, m->partial);
    mark_of_page(c, radix_depth(c->tree, m->partial) - 1, radix_page_tokens(c->tree, m->partial),
                 &mark);
    uint32_t text = own.first_row < mark.first_row ? own.first_row : mark.first_row;
    m->partial_tokens = m->partial_tokens < text ? m->partial_tokens : text;
    m->partial = m->partial_tokens ? m->partial : RADIX_NONE;
}
