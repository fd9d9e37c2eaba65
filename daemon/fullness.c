/* fullness.c - see fullness.h. */
#include "daemon/fullness.h"

fullness_news fullness_note(fullness *f, int refused, int written, uint64_t now_ms) {
    if (refused) {
        int was_full = f->is_full;
        *f = (fullness){.is_full = 1, .refused_ms = now_ms};
        return was_full ? FULLNESS_NOTHING : FULLNESS_FULL;
    }
    if (!f->is_full || !written || now_ms < f->refused_ms + FULLNESS_CALM_MS)
        return FULLNESS_NOTHING;
    f->is_full = 0;
    return FULLNESS_ROOM;
}
