/*
 * test_trouble.c - how often the log speaks of a full disk: once when it begins to refuse pages,
 * and once when it has refused none for ten seconds, however the two alternate meanwhile.
 */
#include "daemon/trouble.h"
#include "tests/check.h"

enum { REFUSED = 1, WRITTEN = 2 };

static trouble_news note(trouble *f, int what, uint64_t now_ms) {
    return trouble_note(f, what & REFUSED, what & WRITTEN, now_ms);
}

/* An hour in which every fifth second's page is refused, and all others are written. */
static void test_alternating(void) {
    trouble f = {0};
    uint64_t now_ms = 7000, end_ms = now_ms + 3600 * 1000;
    uint32_t n_full = 0, n_room = 0;
    for (; now_ms < end_ms; now_ms += 1000) {
        trouble_news news = note(&f, now_ms % 5000 == 0 ? REFUSED : WRITTEN, now_ms);
        n_full += news == TROUBLE_BEGINS;
        n_room += news == TROUBLE_ENDS;
    }
    CHECK_EQ(n_full, 1);
    CHECK_EQ(n_room, 0);
}

static void test_calm(void) {
    trouble f = {0};
    CHECK_EQ(note(&f, WRITTEN, 0), TROUBLE_NOTHING);
    CHECK_EQ(note(&f, WRITTEN, 1 << 20), TROUBLE_NOTHING); /* it was never full */
    CHECK_EQ(note(&f, REFUSED, 5000), TROUBLE_BEGINS);
    CHECK_EQ(note(&f, WRITTEN, 5001), TROUBLE_NOTHING);
    CHECK_EQ(note(&f, REFUSED | WRITTEN, 9000), TROUBLE_NOTHING); /* some of a request */
    CHECK_EQ(note(&f, WRITTEN, 18999), TROUBLE_NOTHING);
    CHECK_EQ(note(&f, 0, 19500), TROUBLE_NOTHING); /* that nothing was refused says nothing yet */
    CHECK_EQ(note(&f, WRITTEN, 20000), TROUBLE_ENDS);
    CHECK_EQ(note(&f, WRITTEN, 20001), TROUBLE_NOTHING);
    CHECK_EQ(note(&f, REFUSED, 20002), TROUBLE_BEGINS);
    CHECK_EQ(note(&f, WRITTEN, 30001), TROUBLE_NOTHING);
    CHECK_EQ(note(&f, WRITTEN, 30002), TROUBLE_ENDS);
}

int main(void) {
    test_alternating();
    test_calm();
    return 0;
}
