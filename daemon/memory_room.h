/*
 * memory_room.h - how much memory an arena could take here: what the file system, the machine and
 * the control group leave. Asked before the arena is reserved, since on a file system in memory the
 * answer to too much is not an error but the kernel killing somebody.
 */
#ifndef KVT_DAEMON_MEMORY_ROOM_H
#define KVT_DAEMON_MEMORY_ROOM_H

#include <stdint.h>

typedef struct memory_room {
    uint64_t file_system; /* free in the directory's file system */
    uint64_t memory;      /* MemAvailable */
    uint64_t group;       /* limit minus use of the tightest control group; UINT64_MAX: none */
} memory_room;

/* What cannot be found out is UINT64_MAX. */
void memory_room_get(const char *dir, memory_room *ret_room);

/* The free room of one control group under the root given, by the names of its two files;
 * UINT64_MAX if there is no limit. For the walk upwards, and for tests. */
uint64_t memory_room_of_group(const char *group_dir, const char *limit_file, const char *use_file);

#endif
