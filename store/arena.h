/*
 * arena.h - layout of an arena as readers map it.
 *
 *   offset 0                  arena_header (one 4 KiB page)
 *   generations_offset        uint64_t generations[max_frames]
 *   data_offset               frames; every frame offset that goes over the wire counts from HERE
 *
 * Written by the daemon alone; mapped read-only by workers. Little-endian. data_offset is a
 * multiple of FRAMES_GRANULE_BYTES. The same layout serves host shared memory; on a GPU the header
 * and the generations stay in host memory and the data in device memory.
 */
#ifndef KVT_STORE_ARENA_H
#define KVT_STORE_ARENA_H

#include "client/wire.h" /* kvt_arena_header: part of the contract with readers */

/* Bytes of the whole file for data_bytes of frames, and the offsets, filled into ret_header (magic
 * and version too; boot_id is the caller's). KVT_EINVAL: data_bytes is no multiple of the granule.
 */
kvt_status arena_plan(uint64_t data_bytes, uint32_t max_frames, kvt_arena_header *ret_header);

#endif
