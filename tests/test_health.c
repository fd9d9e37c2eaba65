/*
 * test_health.c - when the daemon puts another listener in the place of one: at once where nobody
 * listens, after some probes without an answer, ever less often where that does not help.
 */
#include "daemon/health.h"
#include "tests/check.h"

enum { EVERY_MS = 1000, SILENT_MS = 3000 /* a probe that has no answer takes longer */ };

/* How many probes in a row end so until another listener is put there. */
static uint32_t until_replaced(health *h, probe_state ended, uint64_t every_ms, uint64_t *now_ms) {
    for (uint32_t n = 1; n < 1000; n++) {
        *now_ms += every_ms;
        const char *why = health_judge(h, ended, *now_ms);
        if (why) {
            CHECK_EQ(strstr(why, "nobody listens") != NULL, ended == PROBE_NO_SOCKET);
            return n;
        }
    }
    CHECK_MSG(0, "after 1,000 probes the listener is still the same");
    return 0;
}

static void answered(health *h, uint64_t *now_ms) {
    *now_ms += EVERY_MS;
    CHECK(!health_judge(h, PROBE_ANSWERED, *now_ms));
}

/* A starved machine: nobody gets to answer, whoever listens. */
static void test_silent(void) {
    static const uint32_t expected[] = {2, 4, 8, 16, 32, 64, 64, 64};
    uint64_t now_ms = 5000;
    health h;
    health_init(&h);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        CHECK_EQ(until_replaced(&h, PROBE_SILENT, SILENT_MS, &now_ms), expected[i]);
    /* Anything but an answer leaves it at that: the machine is as starved as before. */
    CHECK(!health_judge(&h, PROBE_SILENT, now_ms += SILENT_MS));
    CHECK(!health_judge(&h, PROBE_BUSY, now_ms += EVERY_MS));
    CHECK_EQ(until_replaced(&h, PROBE_SILENT, SILENT_MS, &now_ms), 64);
    answered(&h, &now_ms);
    CHECK_EQ(until_replaced(&h, PROBE_SILENT, SILENT_MS, &now_ms), 2);
    answered(&h, &now_ms);
    /* One without an answer now and then is none in a row. */
    for (int i = 0; i < 100; i++) {
        CHECK(!health_judge(&h, PROBE_SILENT, now_ms += SILENT_MS));
        answered(&h, &now_ms);
    }
}

static void test_busy(void) {
    uint64_t now_ms = 5000;
    health h;
    health_init(&h);
    for (int i = 0; i < 3; i++) {
        for (int n = 1; n < HEALTH_BUSY; n++)
            CHECK(!health_judge(&h, PROBE_BUSY, now_ms += EVERY_MS));
        answered(&h, &now_ms);
    }
    CHECK_EQ(until_replaced(&h, PROBE_BUSY, EVERY_MS, &now_ms), HEALTH_BUSY);
    CHECK_EQ(until_replaced(&h, PROBE_BUSY, EVERY_MS, &now_ms), HEALTH_BUSY);
}

/* Somebody kills each: at once the first time, then after pauses that grow to 8 s. */
static void test_killed(probe_state ended) {
    static const uint32_t expected[] = {1, 1, 1, 3, 7, 8, 8};
    uint64_t now_ms = 5000;
    health h;
    health_init(&h);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        CHECK_EQ(until_replaced(&h, ended, EVERY_MS, &now_ms), expected[i]);
    answered(&h, &now_ms); /* is no reason to be quicker: each of them answered before it died */
    CHECK_EQ(until_replaced(&h, ended, EVERY_MS, &now_ms), 7);
    for (int i = 0; i < (HEALTH_CALM_MS + HEALTH_PAUSE_MOST_MS) / EVERY_MS; i++)
        answered(&h, &now_ms);
    CHECK_EQ(until_replaced(&h, ended, EVERY_MS, &now_ms), 1);
    CHECK_EQ(until_replaced(&h, ended, EVERY_MS, &now_ms), 1);
}

int main(void) {
    test_silent();
    test_busy();
    test_killed(PROBE_NO_SOCKET);
    test_killed(PROBE_FAILED);
    return 0;
}
