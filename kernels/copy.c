/* copy.c - see copy.h. */
#include "kernels/copy.h"
#include "kernels/hash.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LINE_BYTES = 64 };

#ifdef __SSE2__
/* memcpy from memory that is in no cache to memory that is. It asks for what lies AHEAD_BYTES
 * further on, since processors do not look beyond a page of memory by themselves; that may be more
 * than there is, which is no access. To memory that is in no cache either the C library's is as
 * fast: it need not read what it overwrites. */
static void copy_ahead(char *to, const char *from, size_t n) {
    enum { AHEAD_BYTES = 1536 };
    size_t at = 0;
    for (; at + LINE_BYTES <= n; at += LINE_BYTES) {
        const __m128i *source = (const __m128i *)(const void *)(from + at);
        __m128i *target = (__m128i *)(void *)(to + at);
        _mm_prefetch((const char *)((uintptr_t)source + AHEAD_BYTES), _MM_HINT_T0);
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_storeu_si128(target, a);
        _mm_storeu_si128(target + 1, b);
        _mm_storeu_si128(target + 2, c);
        _mm_storeu_si128(target + 3, d);
    }
    memcpy(to + at, from + at, n - at);
}
#else
static void copy_ahead(char *to, const char *from, size_t n) {
    memcpy(to, from, n);
}
#endif

/* Piece by piece: what is hashed is still near. */
uint64_t kvt_copy_hashed(void *to, const void *from, size_t n) {
    enum { PIECE_BYTES = 4096 };
    kvt_hash_sum sum;
    kvt_hash_begin(&sum);
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        copy_ahead((char *)to + at, (const char *)from + at, piece);
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
