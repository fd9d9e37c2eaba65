/* memory_room.c - see memory_room.h. */
#include "daemon/memory_room.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

static uint64_t read_number(const char *path) {
    char text[64];
    uint64_t number = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    if (fgets(text, sizeof text, file) && text[0] >= '0' && text[0] <= '9') /* not "max" */
        number = strtoull(text, NULL, 10);
    fclose(file);
    return number;
}

/* Cached files count as used, and are given up when memory is needed. (Files in memory are not
 * among these.) The first hierarchy has a line for the group and one, "total_", with all below it.
 */
static uint64_t reclaimable(const char *group_dir) {
    char path[640], name[64];
    uint64_t value, own = 0, total = 0;
    snprintf(path, sizeof path, "%s/memory.stat", group_dir);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (fscanf(file, "%63s %" SCNu64, name, &value) == 2) {
        if (strcmp(name, "inactive_file") == 0 || strcmp(name, "active_file") == 0)
            own += value;
        if (strcmp(name, "total_inactive_file") == 0 || strcmp(name, "total_active_file") == 0)
            total += value;
    }
    fclose(file);
    return total > 0 ? total : own;
}

uint64_t memory_room_of_group(const char *group_dir, const char *limit_file, const char *use_file) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", group_dir, limit_file);
    uint64_t limit = read_number(path);
    snprintf(path, sizeof path, "%s/%s", group_dir, use_file);
    uint64_t use = read_number(path), cache = reclaimable(group_dir);
    /* The first hierarchy says "no limit" with a huge number. */
    if (limit >= UINT64_C(1) << 60)
        return UINT64_MAX;
    if (use == UINT64_MAX)
        return limit;
    use = use > cache ? use - cache : 0;
    return limit > use ? limit - use : 0;
}

/* The tightest of a group and all above it. */
static uint64_t room_of_groups(const char *root, const char *group, const char *limit_file,
                               const char *use_file) {
    char dir[512];
    size_t n_root = strlen(root);
    uint64_t least = UINT64_MAX;
    if ((size_t)snprintf(dir, sizeof dir, "%s%s", root, group) >= sizeof dir)
        return UINT64_MAX;
    for (;;) {
        uint64_t room = memory_room_of_group(dir, limit_file, use_file);
        if (room < least)
            least = room;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < n_root)
            return least;
        *slash = 0;
    }
}

static uint64_t group_room(void) {
    char line[512];
    uint64_t least = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return UINT64_MAX;
    /* "0::/path" is the second hierarchy, "8:memory:/path" the memory part of the first. */
    while (fgets(line, sizeof line, file)) {
        uint64_t room = UINT64_MAX;
        line[strcspn(line, "\n")] = 0;
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (!second)
            continue;
        *second = 0;
        if (first[1] == 0)
            room = room_of_groups("/sys/fs/cgroup", second + 1, "memory.max", "memory.current");
        else if (strcmp(first + 1, "memory") == 0)
            room = room_of_groups("/sys/fs/cgroup/memory", second + 1, "memory.limit_in_bytes",
                                  "memory.usage_in_bytes");
        if (room < least)
            least = room;
    }
    fclose(file);
    return least;
}

static uint64_t available_memory(void) {
    char line[128];
    uint64_t kib, bytes = UINT64_MAX;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return UINT64_MAX;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            bytes = kib * 1024;
    fclose(file);
    return bytes;
}

void memory_room_get(const char *dir, memory_room *ret_room) {
    struct statvfs info;
    ret_room->file_system = UINT64_MAX;
    /* A file system that does not count says that it has no blocks at all. */
    if (statvfs(dir, &info) == 0 && info.f_blocks != 0)
        ret_room->file_system = (uint64_t)info.f_bavail * info.f_frsize;
    ret_room->memory = available_memory();
    ret_room->group = group_room();
}
