/* copy.c - see copy.h. */
#include "kernels/copy.h"
#include "kernels/hash.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LINE_BYTES = 64 };

/* Piece by piece: what is hashed is still near, and the next piece is on its way meanwhile, since
 * processors do not look ahead beyond a page of memory by themselves. */
uint64_t kvt_copy_hashed(void *to, const void *from, size_t n) {
    enum { PIECE_BYTES = 4096 };
    const char *source = from;
    kvt_hash_sum sum;
    kvt_hash_begin(&sum);
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        for (size_t next = at + piece; next < at + 2 * piece && next < n; next += LINE_BYTES)
            __builtin_prefetch(source + next);
        memcpy((char *)to + at, source + at, piece);
        kvt_hash_add(&sum, (char *)to + at, piece);
    }
    return kvt_hash_end(&sum);
}

#ifdef __SSE2__
void kvt_copy_past(void *to, const void *from, size_t n) {
    const char *source = from;
    char *target = to;
    size_t head = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES, at;
    if (head > n)
        head = n;
    memcpy(target, source, head);
    for (at = head; at + LINE_BYTES <= n; at += LINE_BYTES) {
        __m128i line[LINE_BYTES / sizeof(__m128i)];
        for (size_t i = 0; i < LINE_BYTES / sizeof(__m128i); i++)
            line[i] = _mm_loadu_si128((const __m128i *)(const void *)(source + at) + i);
        for (size_t i = 0; i < LINE_BYTES / sizeof(__m128i); i++)
            _mm_stream_si128((__m128i *)(void *)(target + at) + i, line[i]);
    }
    memcpy(target + at, source + at, n - at);
    _mm_sfence();
}
#else
void kvt_copy_past(void *to, const void *from, size_t n) {
    memcpy(to, from, n);
}
#endif
