/* trouble.c - see trouble.h. */
#include "daemon/trouble.h"

trouble_news trouble_note(trouble *t, int refused, int written, uint64_t now_ms) {
    if (refused) {
        int had_begun = t->has_begun;
        *t = (trouble){.has_begun = 1, .refused_ms = now_ms};
        return had_begun ? TROUBLE_NOTHING : TROUBLE_BEGINS;
    }
    if (!t->has_begun || !written || now_ms < t->refused_ms + TROUBLE_CALM_MS)
        return TROUBLE_NOTHING;
    t->has_begun = 0;
    return TROUBLE_ENDS;
}
