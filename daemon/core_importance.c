/*
 * core_importance.c - how important a row of a page is: the attention that an engine has seen go to
 * it, as it hands it in (H2O, SnapKV). By node and row, 16 bits each, whatever rank, layer group or
 * tier the bytes are in: what is known of a token is known of all its bytes. 0: nothing is known.
 *
 * Of several values of a row the highest stays. So the order in which workers hand them in does not
 * matter, nor whether one comes twice.
 *
 * It belongs to the page in the tree. A short page that a longer one takes the place of leaves its
 * rows' values to that; a page that is copied on write begins with none. It is not written to disk:
 * a page that is found there at start has none until somebody hands it in again.
 */
#include "daemon/core_state.h"

#include <string.h>

static uint16_t *values_of(const core *c, radix_node node) {
    return c->importance + (size_t)(node - 1) * c->config.page_tokens;
}

const uint16_t *importance_of(const core *c, radix_node node) {
    return c->is_important[node] ? values_of(c, node) : NULL;
}

static void note(core *c, radix_node node, uint32_t row, uint16_t value) {
    uint16_t *values = values_of(c, node);
    if (value > values[row])
        values[row] = value;
    c->n_important += value > 0 && !c->is_important[node];
    c->is_important[node] |= value > 0;
}

void importance_gone(core *c, radix_node node) {
    if (!c->is_important[node])
        return;
    memset(values_of(c, node), 0, c->config.page_tokens * sizeof(uint16_t));
    c->is_important[node] = 0;
    c->n_important--;
}

void importance_leave(core *c, radix_node from, radix_node to) {
    const uint16_t *values = importance_of(c, from);
    uint32_t n_rows;
    radix_tokens(c->tree, from, &n_rows);
    for (uint32_t row = 0; values && row < n_rows; row++)
        note(c, to, row, values[row]);
}

void importance_gather(const core *c, const realm *r, const held_prefix *h, uint16_t *to) {
    radix_node node = h->last;
    uint32_t end = h->tokens;
    for (uint32_t number = h->pages; number-- > 0; node = radix_parent(c->tree, node)) {
        uint32_t first = number * r->page_tokens;
        const uint16_t *values = importance_of(c, node);
        if (values)
            memcpy(to + first, values, (end - first) * sizeof *to);
        else
            memset(to + first, 0, (end - first) * sizeof *to);
        end = first;
    }
}

/* --- the request --------------------------------------------------------------------------------
 */

/* Rows of an ordinary lease are its tokens. h: what it holds. */
static uint32_t note_path(core *c, const lease *l, const held_prefix *h,
                          const kvt_importance_req *req) {
    uint32_t page_tokens = c->realms[l->realm].page_tokens, end = req->first_row + req->n_rows;
    radix_node node = h->last;
    for (uint32_t number = h->pages; number-- > 0; node = radix_parent(c->tree, node)) {
        uint32_t first = number * page_tokens;
        for (uint32_t row = 0; row < page_tokens && first + row < end; row++)
            if (first + row >= req->first_row)
                note(c, node, row, kvt_wire_get_u16(req->importance, first + row - req->first_row));
    }
    return req->n_rows;
}

/* Those of a view are counted through its runs; some of its pages may have left the tree. */
static uint32_t note_view(core *c, const lease *l, const kvt_importance_req *req) {
    uint32_t at = 0, n_noted = 0, last_number = UINT32_MAX;
    for (uint32_t i = view_of(c, l)->first_view_page; i; i = c->view_pages[i - 1].next) {
        const view_page *v = &c->view_pages[i - 1];
        if (v->number == last_number)
            continue;
        last_number = v->number;
        radix_node node = page_get(c->pages, v->page)->node;
        for (uint32_t row = 0; row < c->realms[l->realm].page_tokens; row++) {
            if (!(v->rows[row / 64] >> row % 64 & 1))
                continue;
            if (at >= req->first_row && at - req->first_row < req->n_rows && node != RADIX_NONE) {
                note(c, node, row, kvt_wire_get_u16(req->importance, at - req->first_row));
                n_noted++;
            }
            at++;
        }
    }
    return n_noted;
}

void serve_importance(core *c, request *rq) {
    kvt_importance_req req;
    kvt_status status = kvt_wire_get_importance_req(rq->body, rq->n_bytes, &req);
    if (status != KVT_OK) {
        nonsense(c, rq->ticket.pipe);
        return;
    }
    lease *l = lease_get(c, rq->session, req.lease);
    if (!l) {
        refuse(c, rq, KVT_ENOENT, "no such lease of this session");
        return;
    }
    held_prefix h = lease_whole(c, l, UINT32_MAX);
    uint32_t n_rows = l->is_view ? view_n_rows(c, l) : h.tokens;
    if (req.first_row > n_rows || req.n_rows > n_rows - req.first_row) {
        refuse(c, rq, KVT_EINVAL, "importance of rows %u and %u on; the lease has %u",
               req.first_row, req.n_rows, n_rows);
        return;
    }
    kvt_importance_rep rep = {.n_rows =
                                  l->is_view ? note_view(c, l, &req) : note_path(c, l, &h, &req)};
    c->counts.rows_important += rep.n_rows;
    kvt_writer w;
    reply_start(c, &w);
    kvt_wire_put_importance_rep(&w, &rep);
    reply_finish(c, rq->ticket, rq->header.op, rq->header.number, &w);
}
