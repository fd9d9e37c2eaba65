/* seal.c - handing encoded pages in. */
#include "client/client.h"

#include <string.h>

enum { SEAL_AGAIN_MS = 2 };

typedef struct seal_args {
    const kvt_lease *lease;
    uint32_t n_pages; /* the first of lease->encoded */
    uint32_t n_items; /* their pages of groups */
} seal_args;

/* A page that has passed out of the window by the end of what is claimed needs no bytes. */
static int has_passed(const kvt_lease *lease, const kvt_encoded *e, uint32_t group) {
    const kvt_geometry *g = &lease->client->geometry;
    uint32_t window = g->groups[group].window;
    return window && (uint64_t)(e->page + 1) * g->page_tokens + window <= lease->claimed_tokens;
}

static int goes_along(const kvt_lease *lease, const kvt_encoded *e, uint32_t group) {
    return e->bytes[group] || has_passed(lease, e, group);
}

static void put_group(kvt_writer *w, const kvt_lease *lease, const kvt_encoded *e, uint32_t group) {
    if (!goes_along(lease, e, group))
        return;
    kvt_seal_page page = {.page = e->page, .group = (uint16_t)group, .bytes = e->bytes[group]};
    if (page.bytes)
        page.offset = kvt_staging_offset(e->staging, e->slot) + lease->client->group_offset[group];
    if (page.bytes && e->work)
        page.offset |= KVT_STAGED_ON_DEVICE;
    kvt_wire_put_seal_page(w, &page);
}

static void put_seal(kvt_writer *w, const kvt_session *s, const void *context) {
    const seal_args *a = context;
    (void)s;
    kvt_seal_req req = {.lease = a->lease->id, .n_pages = a->n_items};
    kvt_wire_put_seal_req(w, &req);
    for (uint32_t i = 0; i < a->n_pages; i++)
        for (uint32_t group = 0; group < a->lease->client->geometry.n_groups; group++)
            put_group(w, a->lease, &a->lease->encoded[i], group);
}

/* Gives back the first n slots. unsafe: the daemon may be reading them still. */
static void give_slots(kvt_lease *lease, uint32_t n, int unsafe) {
    if (n == 0)
        return;
    for (uint32_t i = 0; i < n; i++) {
        kvt_device_forget(lease, &lease->encoded[i]);
        kvt_staging_give(lease->client, lease->encoded[i].staging, lease->encoded[i].slot, unsafe);
    }
    lease->n_encoded -= n;
    memmove(lease->encoded, lease->encoded + n, lease->n_encoded * sizeof *lease->encoded);
}

/* What is held now. The list starts at the first page of the message; if others have sealed the
 * pages in front of it meanwhile, those have to be asked for. */
static kvt_status take_seal(kvt_lease *lease, const kvt_seal_rep *rep, uint32_t first_page,
                            uint64_t deadline_ms) {
    uint32_t held = rep->held_tokens < lease->n_tokens ? rep->held_tokens : lease->n_tokens;
    uint32_t computing_end = lease->held_tokens + lease->computing_tokens;
    if (held < lease->held_tokens)
        return kvt_client_nonsense(lease->client, "its answer to SEAL");
    if (first_page > lease->held_tokens / lease->client->geometry.page_tokens)
        return held == lease->held_tokens ? KVT_OK : kvt_lease_refresh(lease, deadline_ms);
    kvt_status status = kvt_lease_take_pages(lease, held, first_page, rep->n_lists, rep->lists);
    if (status == KVT_OK)
        lease->computing_tokens = computing_end > held ? computing_end - held : 0;
    return status;
}

/* One message. *ret_page_status: of the first page that was not sealed. */
static kvt_status seal_once(kvt_lease *lease, const seal_args *args, uint64_t deadline_ms,
                            kvt_status *ret_page_status, uint32_t *ret_sealed_tokens,
                            int *ret_unanswered) {
    kvt_request request = {.op = KVT_OP_SEAL,
                           .needs = KVT_UP_STAGED,
                           .epoch = lease->epoch,
                           .body_bytes = 12 + (size_t)args->n_items * 20,
                           .put = put_seal,
                           .context = args};
    uint32_t first_page = lease->encoded[0].page;
    kvt_reply reply;
    kvt_seal_rep rep;
    kvt_status status = kvt_client_call(lease->client, &request, deadline_ms, &reply);
    *ret_unanswered = reply.unanswered;
    lease->behind |= reply.unanswered;
    if (status != KVT_OK)
        return kvt_lease_failed(lease, status);
    if (kvt_wire_get_seal_rep(reply.body, reply.n_body, &rep) != KVT_OK) {
        status = kvt_client_nonsense(lease->client, "its answer to SEAL");
    } else {
        *ret_page_status = (kvt_status)rep.page_status;
        *ret_sealed_tokens = rep.held_tokens < lease->n_tokens ? rep.held_tokens : lease->n_tokens;
        status = take_seal(lease, &rep, first_page, deadline_ms);
    }
    kvt_reply_free(&reply);
    return status;
}

/* What is wrong with a page in staging memory, NULL: nothing. */
static const char *fault_of(const kvt_lease *lease, const kvt_encoded *e, uint32_t group) {
    const kvt_client *c = lease->client;
    size_t room;
    uint32_t rows;
    const uint8_t *at = kvt_staging_at(e->staging, e->slot, &room);
    at += c->group_offset[group];
    kvt_status status = kvt_page_check(&c->shapes[group], at, e->bytes[group], 0, &rows);
    if (status == KVT_EVERSION)
        return "the version in its header";
    if (status == KVT_EGEOMETRY)
        return "the geometry in its header";
    if (status != KVT_OK)
        return "the checksum of its header, or a field of it,";
    status = kvt_page_check(&c->shapes[group], at, e->bytes[group], 1, &rows);
    return status == KVT_OK ? NULL : "the checksum of its payload";
}

/* Says which page, and what of it. The daemon tells neither, but the bytes are here still. */
static kvt_status corrupt(const kvt_lease *lease, uint32_t n_pages, uint32_t sealed_tokens) {
    uint32_t n_groups = lease->client->geometry.n_groups;
    for (uint32_t i = 0; i < n_pages; i++) {
        const kvt_encoded *e = &lease->encoded[i];
        for (uint32_t group = 0; group < n_groups && !e->work; group++) {
            const char *fault = e->bytes[group] ? fault_of(lease, e, group) : NULL;
            if (fault)
                return kvt_error(KVT_ECORRUPT,
                                 "page %u of the path, layer group %u, was not sealed: %s is wrong "
                                 "in staging memory, which was written to after the page was "
                                 "encoded",
                                 e->page, group, fault);
        }
    }
    return kvt_error(KVT_ECORRUPT,
                     "the page at token %u was not sealed: its header or checksum was wrong when "
                     "the daemon read it in staging memory, which was written to after the page "
                     "was encoded",
                     sealed_tokens);
}

/* Why the daemon did not seal a page. */
static const char *page_words(const kvt_lease *lease, kvt_status status) {
    if (status == KVT_EIO && lease->arena->gpu)
        return "the daemon's GPU failed as it took the page, or its staging file or area is gone; "
               "the daemon's log says which. Go on without the cache until it serves anew";
    return kvt_status_text(status);
}

/* Gives back what is held already, of the first n. */
static void give_held(kvt_lease *lease, uint32_t n, uint32_t sealed_tokens) {
    uint32_t n_held = 0, page_tokens = lease->client->geometry.page_tokens;
    while (n_held < n && (sealed_tokens >= lease->n_tokens ||
                          (lease->encoded[n_held].page + 1) * page_tokens <= sealed_tokens))
        n_held++;
    give_slots(lease, n_held, 0);
}

/* The first pages of the list, as many as a message takes. The daemon says KVT_EBUSY when it copies
 * for too many others: it has not begun, so ask again. */
static kvt_status seal_some(kvt_lease *lease, uint64_t deadline_ms, uint32_t *ret_sealed_tokens,
                            int *is_asked_again) {
    seal_args args = {.lease = lease};
    uint32_t n_groups = lease->client->geometry.n_groups, before = *ret_sealed_tokens;
    while (args.n_pages < lease->n_encoded && args.n_items + n_groups <= KVT_MAX_SEAL_PAGES) {
        const kvt_encoded *e = &lease->encoded[args.n_pages++];
        for (uint32_t group = 0; group < n_groups; group++)
            args.n_items += (uint32_t)goes_along(lease, e, group);
    }
    kvt_status status, page_status = KVT_OK;
    int unanswered;
    do
        status = seal_once(lease, &args, deadline_ms, &page_status, ret_sealed_tokens, &unanswered);
    while (status == KVT_EBUSY &&
           (status = kvt_client_pause(lease->client, SEAL_AGAIN_MS, deadline_ms)) == KVT_OK);
    if (status == KVT_OK && page_status == KVT_EFULL && !*is_asked_again) {
        /* Where a message gets nowhere the daemon says in words and figures why. */
        *is_asked_again = *ret_sealed_tokens == before;
        give_held(lease, args.n_pages, *ret_sealed_tokens);
        return KVT_OK;
    }
    if (status == KVT_OK && page_status == KVT_ECORRUPT)
        status = corrupt(lease, args.n_pages, *ret_sealed_tokens);
    else if (status == KVT_OK && page_status != KVT_OK)
        status = kvt_error(page_status, "the page at token %u was not sealed: %s",
                           *ret_sealed_tokens, page_words(lease, page_status));
    give_slots(lease, args.n_pages, unanswered);
    return status;
}

/* Waits for what a GPU encodes. From the first page that it could not, all are dropped. */
static kvt_status finish_all(kvt_lease *lease) {
    kvt_status status = KVT_OK;
    uint32_t n = 0;
    while (n < lease->n_encoded && status == KVT_OK) {
        status = kvt_device_finish(lease, &lease->encoded[n]);
        n += status == KVT_OK;
    }
    for (uint32_t i = n; i < lease->n_encoded; i++) {
        /* Nobody may encode into the slot while the GPU still does. */
        kvt_device_finish(lease, &lease->encoded[i]);
        kvt_device_forget(lease, &lease->encoded[i]);
        kvt_staging_give(lease->client, lease->encoded[i].staging, lease->encoded[i].slot, 0);
    }
    lease->n_encoded = n;
    return status;
}

kvt_status kvt_seal(kvt_lease *lease, size_t *ret_sealed_tokens) {
    uint32_t sealed_tokens = lease ? lease->held_tokens : 0;
    kvt_status status = kvt_lease_enter_to_wait(lease);
    if (status == KVT_OK) {
        kvt_status device_status = finish_all(lease);
        kvt_device_wait(lease); /* a page that grew is another one from now on */
        uint64_t deadline_ms = kvt_client_deadline(lease->client);
        int is_asked_again = 0;
        while (lease->n_encoded > 0 && status == KVT_OK)
            status = seal_some(lease, deadline_ms, &sealed_tokens, &is_asked_again);
        /* Behind one that was not sealed nothing can be; what is left was not named in a message.
         */
        give_slots(lease, lease->n_encoded, 0);
        if (status == KVT_OK)
            status = device_status;
        kvt_client_leave(lease->client);
    }
    if (ret_sealed_tokens)
        *ret_sealed_tokens = sealed_tokens;
    return status;
}
