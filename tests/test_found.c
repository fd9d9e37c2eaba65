/*
 * test_found.c - a start with a smaller max_pages than the one before: what is on disk and finds no
 * place is deleted. There is room for so many deletions at a time; what comes when that is full
 * stays for the next start, and is counted apart.
 */
#include "tests/core_rig.h"

enum { PIPE = 1, PLACES = 8, FOUND = 4000, ERASE = RIG_KIND(CORE_JOB_ERASE) };

int main(void) {
    static core_rig r;
    core_config config = rig_config();
    config.max_pages = PLACES;
    config.max_claimed_pages = PLACES;
    config.host_bytes = 32 * FRAMES_GRANULE_BYTES;
    config.max_host_frames = RIG_MAX_FRAMES;
    config.disk_bytes = 1 << 30;
    rig_open(&r, &config);
    CHECK_EQ(rig_enter(&r, PIPE), KVT_OK);
    core_disk_up(r.core, 1);
    uint32_t path = 0;
    while (path < PLACES + 32)
        rig_find_on_disk(&r, path++, 0);
    CHECK_EQ(core_found_too_many(r.core), 32);
    CHECK_EQ(core_found_left(r.core), 0);
    while (path < FOUND)
        rig_find_on_disk(&r, path++, 0);
    uint64_t left = core_found_left(r.core);
    CHECK_EQ(core_found_too_many(r.core), FOUND - PLACES);
    CHECK(left > 0 && left < FOUND - PLACES - 32);
    rig_run(&r, ERASE, KVT_OK);
    rig_find_on_disk(&r, path, 0); /* those that were deleted have made room for it */
    CHECK_EQ(core_found_left(r.core), left);
    core_found_all(r.core);
    CHECK_EQ(rig_counts(&r).pages_disk, PLACES);
    CHECK_EQ(rig_counts(&r).pages_found, PLACES);
    rig_close(&r);
    return 0;
}
