#include "store/arena.h"

#include <string.h>

#include "store/frames.h"

enum {
    ARENA_VERSION = 1,
    HEADER_BYTES = 4096, /* the header has a memory page to itself */
};
_Static_assert(sizeof(kvt_arena_header) == 128, "readers know the header to the byte");
_Static_assert(sizeof(kvt_wire_memory) == 128, "readers know it to the byte, too");
_Static_assert(KVT_ARENA_MEMORY_OFFSET >= sizeof(kvt_arena_header) &&
                   KVT_ARENA_MEMORY_OFFSET + sizeof(kvt_wire_memory) <= HEADER_BYTES,
               "both fit in front");

kvt_status arena_plan(uint64_t data_bytes, uint32_t max_frames, kvt_arena_header *ret_header) {
    if (data_bytes == 0 || data_bytes % FRAMES_GRANULE_BYTES || data_bytes > INT64_MAX / 2 ||
        max_frames == 0) {
        return KVT_EINVAL;
    }
    uint64_t head_bytes = HEADER_BYTES + (uint64_t)max_frames * sizeof(uint64_t);
    uint64_t data_offset = (head_bytes + FRAMES_GRANULE_BYTES - 1) / FRAMES_GRANULE_BYTES *
                           (uint64_t)FRAMES_GRANULE_BYTES;
    ret_header->magic = KVT_ARENA_MAGIC;
    ret_header->version = ARENA_VERSION;
    ret_header->generations_offset = HEADER_BYTES;
    ret_header->max_frames = max_frames;
    ret_header->data_offset = data_offset;
    ret_header->data_bytes = data_bytes;
    ret_header->file_bytes = data_offset + data_bytes;
    memset(ret_header->reserved, 0, sizeof(ret_header->reserved));
    return KVT_OK;
}
