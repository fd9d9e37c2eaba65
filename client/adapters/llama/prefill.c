/* prefill.c - one prompt: loading what is held, waiting for what others compute, computing the
 * rest. */
#include "client/adapters/llama/adapter.h"
#include "client/adapters/llama/chunk.h"

#include <string.h>
#include <time.h>

/* One call. What is done is in the sequence; lease NULL: it goes on without the daemon. */
typedef struct prefill {
    kvt_llama *k;
    llama_seq_id sequence;
    const llama_token *tokens;
    uint32_t n_tokens;
    kvt_lease *lease;
    uint32_t done_tokens;
    uint32_t next_page; /* the first one that is not handed in */
    kvt_llama_result result;
} prefill;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Lets the daemon go. A failure is noted, and leaves the rest of the prompt to llama.cpp. */
static void go_alone(prefill *p, kvt_status status) {
    if (p->result.cache == KVT_OK)
        p->result.cache = status;
    kvt_release(p->lease);
    p->lease = NULL;
}

static int went_well(prefill *p, kvt_status status) {
    if (status != KVT_OK) {
        llama_fail(status, "%s", kvt_last_error());
        go_alone(p, status);
    }
    return status == KVT_OK;
}

/* --- from the daemon ----------------------------------------------------------------------------
 */

static void load(prefill *p, const kvt_lease_info *info) {
    /* One is computed, for its logits. The lease leaves it out; not so once it has sealed
     * something, and then the window may begin too late for a token less. */
    uint32_t end = least(info->held_tokens, p->n_tokens - 1);
    uint32_t window_from = p->k->has_groups ? info->first_token[1] : 0;
    if (end <= p->done_tokens || (window_from && end + 1 < window_from + p->k->window_tokens))
        return;
    double start_ms = now_ms();
    uint32_t before = p->done_tokens;
    kvt_status status = llama_load(p->k, p->lease, p->sequence, end, &p->done_tokens);
    p->result.loading_ms += now_ms() - start_ms;
    if (status != KVT_OK) {
        p->result.loaded_tokens = p->done_tokens ? p->result.loaded_tokens : 0;
        go_alone(p, status);
        return;
    }
    p->result.loaded_tokens += end - before;
    p->next_page = info->held_tokens / p->k->page_tokens;
}

/* Others compute what comes next. Waits until they got on or stopped: 1; not in wait_ms: 0. */
static int wait_for_others(prefill *p, kvt_lease_info *info) {
    uint32_t held_before = info->held_tokens, left_ms = p->k->wait_ms;
    double start_ms = now_ms(), spent_ms = 0;
    while (info->held_tokens <= held_before && info->computing_tokens && left_ms) {
        /* The daemon bounds a wait by a limit of its own. */
        if (!went_well(p, kvt_wait(p->lease, held_before, left_ms)))
            break;
        kvt_lease_get(p->lease, info);
        spent_ms = now_ms() - start_ms;
        left_ms = spent_ms < p->k->wait_ms ? (uint32_t)(p->k->wait_ms - spent_ms) : 0;
    }
    p->result.waited_ms += now_ms() - start_ms;
    return p->lease && (info->held_tokens > held_before || !info->computing_tokens);
}

/*
 * Takes what is held, as far as others get on. Ends with the lease that names what this process may
 * hand in, or without one.
 */
static void load_and_wait(prefill *p) {
    kvt_lease_info info;
    while (p->lease) {
        kvt_lease_get(p->lease, &info);
        load(p, &info);
        /* Fewer tokens than are handed in are nobody's to wait for. */
        if (!p->lease || info.computing_tokens < p->k->seal_min_tokens ||
            p->k->wait_ms == KVT_LLAMA_NO_WAIT)
            return;
        if (!wait_for_others(p, &info))
            return; /* too slow for us: compute as well */
    }
}

/* --- computed here ------------------------------------------------------------------------------
 */

static uint32_t next_end(const prefill *p) {
    const kvt_llama *k = p->k;
    const chunk_sizes sizes = {.chunk_tokens = k->chunk_tokens,
                               .seal_min_tokens = k->seal_min_tokens,
                               .page_tokens = k->page_tokens,
                               .window_tokens = k->window_tokens};
    return chunk_end(&sizes, p->done_tokens, p->n_tokens);
}

static kvt_status compute(prefill *p, uint32_t end) {
    struct llama_batch *b = &p->k->batch;
    double start_ms = now_ms();
    b->n_tokens = (int32_t)(end - p->done_tokens);
    for (int32_t i = 0; i < b->n_tokens; i++) {
        b->token[i] = p->tokens[p->done_tokens + (uint32_t)i];
        b->pos[i] = (llama_pos)p->done_tokens + i;
        b->n_seq_id[i] = 1;
        b->seq_id[i][0] = p->sequence;
        b->logits[i] = p->done_tokens + (uint32_t)i + 1 == p->n_tokens;
    }
    int code = llama_decode(p->k->ctx, *b);
    p->result.computing_ms += now_ms() - start_ms;
    if (code != 0)
        return llama_fail(code == 1 ? KVT_ELIMIT : KVT_EINTERNAL,
                          code == 1 ? "the context has no room for %u tokens (llama_decode gave %d)"
                                    : "llama_decode failed at token %u with %d",
                          code == 1 ? p->n_tokens : p->done_tokens, code);
    p->result.computed_tokens += end - p->done_tokens;
    p->done_tokens = end;
    return KVT_OK;
}

/* Hands in the pages that are whole now, or end with the prompt. */
static void hand_in(prefill *p) {
    kvt_llama *k = p->k;
    kvt_lease_info info;
    kvt_lease_get(p->lease, &info);
    uint32_t end_token = least(p->done_tokens, info.claimed_tokens);
    uint32_t end_page = end_token / k->page_tokens;
    if (end_token == p->n_tokens && end_token % k->page_tokens)
        end_page++;
    if (end_page <= p->next_page)
        return;
    size_t sealed = 0;
    double start_ms = now_ms();
    kvt_status status = KVT_OK;
    /* A sliding window shows no more than its own length of the sequence. */
    uint32_t step = k->piece_tokens / k->page_tokens;
    for (uint32_t page = p->next_page; page < end_page && status == KVT_OK; page += step)
        status = llama_encode_pages(k, p->lease, p->sequence, page, least(page + step, end_page),
                                    end_token);
    if (status != KVT_OK) {
        go_alone(p, status);
    } else if (went_well(p, kvt_seal(p->lease, &sealed))) {
        p->next_page = end_page;
        p->result.sealed_tokens = (uint32_t)sealed;
    }
    p->result.sealing_ms += now_ms() - start_ms;
}

/* Long prompts are claimed in stretches, and others may have got ahead meanwhile. */
static void look_ahead(prefill *p) {
    kvt_lease_info info;
    kvt_lease_get(p->lease, &info);
    if (info.claimed_tokens > p->done_tokens || p->done_tokens == p->n_tokens) {
        if (went_well(p, kvt_wait(p->lease, info.held_tokens, 0)))
            load_and_wait(p);
        return;
    }
    uint32_t keep = info.claimed_tokens > info.held_tokens ? info.claimed_tokens : info.held_tokens;
    kvt_status status = kvt_extend(p->lease, keep, (const uint32_t *)p->tokens + keep,
                                   p->n_tokens - keep, KVT_CLAIM | KVT_LEAVE_ONE);
    if (!went_well(p, status))
        return;
    kvt_lease_get(p->lease, &info);
    if (info.claimed_tokens <= keep && info.held_tokens <= keep && !info.computing_tokens)
        go_alone(p, KVT_EFULL); /* no room for more */
    else
        load_and_wait(p);
}

static kvt_status compute_rest(prefill *p) {
    while (p->done_tokens < p->n_tokens) {
        uint32_t first = p->done_tokens;
        /* Too few rows to be handed in: then nobody shall wait for them. */
        if (p->lease && p->n_tokens - first < p->k->seal_min_tokens)
            go_alone(p, KVT_OK);
        kvt_status status = compute(p, next_end(p));
        if (status != KVT_OK)
            return status;
        if (p->lease && p->done_tokens - first < p->k->seal_min_tokens)
            go_alone(p, KVT_OK);
        if (p->lease)
            hand_in(p);
        if (p->lease && p->done_tokens < p->n_tokens)
            look_ahead(p);
    }
    return KVT_OK;
}

/* --- the call -----------------------------------------------------------------------------------
 */

static kvt_status check(const kvt_llama *k, llama_seq_id sequence, const llama_token *tokens,
                        size_t n_tokens) {
    if (!k)
        return llama_fail(KVT_EINVAL, "an open kvt_llama is needed");
    if (!tokens || !n_tokens)
        return llama_fail(KVT_EINVAL, "a prompt of at least one token is needed");
    if (sequence < 0 || (uint32_t)sequence >= k->n_seq_max || sequence == k->scratch)
        return llama_fail(KVT_EINVAL, "sequence %d: 0 to %u are possible, without %d", sequence,
                          k->n_seq_max - 1, k->scratch);
    if (n_tokens > k->n_ctx)
        return llama_fail(KVT_ELIMIT, "%zu tokens: the context has room for %u", n_tokens,
                          k->n_ctx);
    return KVT_OK;
}

kvt_status kvt_llama_prefill(kvt_llama *k, llama_seq_id sequence, const llama_token *tokens,
                             size_t n_tokens, kvt_llama_result *ret_result) {
    kvt_status status = check(k, sequence, tokens, n_tokens);
    if (status != KVT_OK)
        return status;
    prefill p = {.k = k,
                 .sequence = sequence,
                 .tokens = tokens,
                 .n_tokens = (uint32_t)n_tokens,
                 .result = {.n_tokens = (uint32_t)n_tokens}};
    llama_memory_seq_rm(k->memory, sequence, -1, -1);
    if (went_well(&p, kvt_acquire(k->client, (const uint32_t *)tokens, n_tokens,
                                  KVT_CLAIM | KVT_LEAVE_ONE, &p.lease))) {
        kvt_lease_info info;
        load_and_wait(&p);
        if (p.lease) {
            kvt_lease_get(p.lease, &info);
            p.result.sealed_tokens = info.held_tokens;
        }
    }
    status = compute_rest(&p);
    kvt_release(p.lease);
    if (status != KVT_OK)
        llama_memory_seq_rm(k->memory, sequence, -1, -1);
    else if (ret_result)
        *ret_result = p.result;
    return status;
}
