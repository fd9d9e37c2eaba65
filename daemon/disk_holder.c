/* disk_holder.c - see disk_holder.h. Whatever /proc does not say is not known: 0. */
#include "daemon/disk_holder.h"
#include "daemon/disk_wire.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/*     3: FLOCK  ADVISORY  WRITE 2413 00:2f:91537 0 EOF
 * Another file system's file may have the same number. The device is not always the one that stat
 * says, so one that differs counts only where none is the same. */
static int holder_of(const char *path) {
    char line[256];
    struct stat lock;
    int holder = 0;
    FILE *locks = stat(path, &lock) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (locks && fgets(line, sizeof line, locks)) {
        int pid, is_same;
        unsigned device[2];
        unsigned long long inode;
        if (sscanf(line, "%*d: FLOCK %*s WRITE %d %x:%x:%llu", &pid, &device[0], &device[1],
                   &inode) != 4 ||
            inode != lock.st_ino || pid <= 0)
            continue;
        is_same = makedev(device[0], device[1]) == lock.st_dev;
        if (is_same || !holder)
            holder = pid;
        if (is_same)
            break;
    }
    if (locks)
        fclose(locks);
    return holder;
}

/* Somebody may have removed the file since it was locked. */
static int lock_holder(const char *dir) {
    char path[1100];
    snprintf(path, sizeof path, "%s/lock", dir);
    int holder = holder_of(path);
    return holder ? holder : holder_of(dir);
}

static ssize_t read_proc(int pid, const char *name, char *to, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, to, room - 1);
    if (fd >= 0)
        close(fd);
    if (n >= 0)
        to[n] = 0;
    return n;
}

static int parent_of(int pid) {
    char text[512];
    int parent = 0;
    if (read_proc(pid, "stat", text, sizeof text) <= 0)
        return 0;
    const char *end = strrchr(text, ')'); /* of its name, which may be anything */
    return end && sscanf(end, ") %*c %d", &parent) == 1 ? parent : 0;
}

/* The daemon that started it, if its arguments say that it is a helper of this directory; 0: it is
 * something else. */
static int daemon_of(int pid, const char *dir) {
    char text[4096];
    const char *arguments[8] = {NULL};
    struct stat its, ours;
    ssize_t n = read_proc(pid, "cmdline", text, sizeof text);
    const char *at = text;
    for (int i = 0; i < 8 && n > 0 && at < text + n; i++, at += strlen(at) + 1)
        arguments[i] = at;
    if (!arguments[7] || strcmp(arguments[1], DISK_HELPER_ARGUMENT) != 0 ||
        stat(arguments[2], &its) != 0 || stat(dir, &ours) != 0 || its.st_ino != ours.st_ino ||
        its.st_dev != ours.st_dev)
        return 0;
    return (int)strtol(arguments[7], NULL, 10);
}

int disk_holder_say(const char *dir, char *why, size_t why_bytes) {
    int holder = lock_holder(dir);
    int daemon = holder ? daemon_of(holder, dir) : 0;
    int is_orphan = daemon > 0 && parent_of(holder) != daemon;
    if (is_orphan)
        snprintf(
            why, why_bytes,
            "%s: process %d has this disk tier, though its daemon, process %d, is gone: it was "
            "killed, and ends when the disk answers that it waits for. Mend that, or choose "
            "another directory",
            dir, holder, daemon);
    else if (holder)
        snprintf(why, why_bytes,
                 "%s: process %d has this disk tier; end it, or choose another directory", dir,
                 daemon > 0 ? daemon : holder);
    return is_orphan;
}
