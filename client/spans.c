/*
 * spans.c - runs of tokens that stand for something else: which of them a lease has, and which of
 * them a message needs.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

kvt_status kvt_spans_check(const kvt_span *spans, size_t n_spans, size_t first, size_t end) {
    if (n_spans && !spans)
        return kvt_error(KVT_EINVAL, "spans is NULL, n_spans is %zu", n_spans);
    if (n_spans > KVT_WIRE_MAX_SPANS)
        return kvt_error(KVT_ELIMIT, "%zu spans; at most %d are possible", n_spans,
                         KVT_WIRE_MAX_SPANS);
    for (size_t i = 0; i < n_spans; i++) {
        size_t begin = spans[i].first_token, n = spans[i].n_tokens;
        if (begin < first || n == 0 || begin > end || n > end - begin)
            return kvt_error(KVT_EINVAL,
                             "span %zu has %zu tokens from %zu on; it must lie in tokens %zu to "
                             "%zu, behind the span in front of it",
                             i, n, begin, first, end);
        first = begin + n;
    }
    return KVT_OK;
}

kvt_status kvt_spans_join(const kvt_lease *lease, size_t keep_tokens, const kvt_span *spans,
                          size_t n_spans, kvt_span **ret_spans, uint32_t *ret_n) {
    uint32_t n_kept = 0;
    while (n_kept < lease->n_spans && lease->spans[n_kept].first_token < keep_tokens)
        n_kept++;
    if (n_kept) {
        const kvt_span *last = &lease->spans[n_kept - 1];
        if (last->first_token + last->n_tokens > keep_tokens)
            return kvt_error(
                KVT_EINVAL,
                "token %zu lies inside the span of tokens %u to %u: a lease goes on in "
                "front of a span or behind it",
                keep_tokens, last->first_token, last->first_token + last->n_tokens);
    }
    *ret_n = 0;
    *ret_spans = NULL;
    if (n_kept + n_spans == 0)
        return KVT_OK;
    kvt_span *all = kvt_memory_get((n_kept + n_spans) * sizeof *all);
    if (!all)
        return kvt_error_plain(KVT_ENOMEM);
    if (n_kept)
        memcpy(all, lease->spans, n_kept * sizeof *all);
    if (n_spans)
        memcpy(all + n_kept, spans, n_spans * sizeof *all);
    *ret_n = n_kept + (uint32_t)n_spans;
    *ret_spans = all;
    return KVT_OK;
}

size_t kvt_spans_in_front(const kvt_span *spans, size_t n_spans, size_t token) {
    size_t n = 0;
    while (n < n_spans && spans[n].first_token + spans[n].n_tokens <= token)
        n++;
    return n;
}

void kvt_spans_set(kvt_lease *lease, kvt_span *spans, uint32_t n) {
    free(lease->spans);
    lease->spans = spans;
    lease->n_spans = n;
}

kvt_status kvt_spans_words(const uint32_t *tokens, size_t n_tokens, const kvt_span *spans,
                           size_t n_spans, uint32_t **ret_words) {
    *ret_words = NULL;
    kvt_status status = kvt_spans_check(spans, n_spans, 0, KVT_MAX_REQUEST_TOKENS);
    if (status != KVT_OK)
        return status;
    uint32_t *words = kvt_memory_get(n_tokens * sizeof *words);
    if (!words)
        return kvt_error_plain(KVT_ENOMEM);
    memcpy(words, tokens, n_tokens * sizeof *words);
    for (size_t i = 0; i < n_spans; i++) {
        kvt_wire_span span = {spans[i].first_token, spans[i].n_tokens, {0}};
        memcpy(span.hash, spans[i].hash, sizeof span.hash);
        for (uint32_t at = 0; at < span.n_tokens && span.first_token + at < n_tokens; at++) {
            uint32_t *word = &words[span.first_token + at];
            *word = kvt_wire_span_word(&span, at, *word);
        }
    }
    *ret_words = words;
    return KVT_OK;
}
