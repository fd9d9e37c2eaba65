/* test_copy.c - copies of every small length at every alignment, and some long ones: what was to be
 * copied is there, its hash is kvt_hash of it, and nothing beside it is touched. */
#include "kernels/copy.h"
#include "kernels/hash.h"
#include "tests/check.h"

enum { ROOM = 300000, GUARD = 0x5a };

static uint8_t from[ROOM + 256] __attribute__((aligned(64)));
static uint8_t to[ROOM + 256] __attribute__((aligned(64)));

static void check(size_t from_at, size_t to_at, size_t n) {
    for (int way = 0; way < 2; way++) {
        size_t around = to_at + n + 128;
        memset(to, GUARD, around);
        if (way == 0)
            kvt_copy_past(to + to_at, from + from_at, n);
        else
            CHECK_EQ(kvt_copy_hashed(to + to_at, from + from_at, n), kvt_hash(from + from_at, n));
        CHECK_MSG(memcmp(to + to_at, from + from_at, n) == 0, "way %d: %zu bytes from %zu to %zu",
                  way, n, from_at, to_at);
        for (size_t i = 0; i < around; i++)
            CHECK(to[i] == GUARD || (i >= to_at && i < to_at + n));
    }
}

int main(void) {
    uint64_t rng = 1;
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (uint8_t)check_random(&rng);
        from[i] ^= from[i] == GUARD;
    }
    for (size_t n = 0; n < 200; n++)
        for (size_t to_at = 0; to_at < 64; to_at++)
            check((n + 3 * to_at) % 64, to_at, n);
    for (int i = 0; i < 300; i++)
        check(check_below(&rng, 128), check_below(&rng, 128), check_below(&rng, ROOM));
    check(0, 0, ROOM);
    puts("test_copy: ok");
    return 0;
}
