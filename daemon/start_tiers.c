/*
 * start_tiers.c - a tenant's lower tiers at start. Pages that they hold are known beside those of
 * the arena.
 */
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/shell.h"
#include "store/frames.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HOST_BYTES = 64 << 20, /* of the host tier, if there is a disk below it and nobody said */
};

/* A full disk, one that fails, or one that another process is about to let go of may be otherwise
 * at the next start. A name that is no directory's, or one that others may not use, is not. */
static int code_of(kvt_status status) {
    switch (status) {
    case KVT_EINVAL:
    case KVT_ENOENT:
    case KVT_EDENIED:
        return EXIT_CODE_CONFIG;
    case KVT_ENOMEM:
        return EXIT_CODE_MEMORY;
    default:
        return EXIT_CODE_FAILED;
    }
}

/* Many tenants on one disk are not to wait for it one after another. */
static int one_hangs(const tenant *t) {
    for (uint32_t i = 0; i < t->index; i++)
        if (t->shell->tenants[i].disk && !tier_disk_up(t->shell->tenants[i].disk))
            return 1;
    return 0;
}

/* Before the tenant's threads are started: the helper process then has the least to do with them. A
 * directory that several tenants name has one for each of them in it. */
static int open_disk(tenant *t) {
    const param_values *v = t->values;
    char why[1024] = "", dir[2 * PARAM_MAX_TEXT_BYTES + 2];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = LOOP_TAG_DISK | t->index};
    if (t->shell->n_tenants > 1) {
        /* If it cannot be made, opening what is in it says so. On a disk that hangs, also making
         * what is there waits. */
        if (access(v->disk_dir, F_OK) != 0)
            mkdir(v->disk_dir, 0700);
        snprintf(dir, sizeof dir, "%s/%s", v->disk_dir, v->tenant);
    } else {
        snprintf(dir, sizeof dir, "%s", v->disk_dir);
    }
    tier_disk_options wanted = {.dir = dir,
                                .tenant = t->shell->n_tenants > 1 ? v->tenant : NULL,
                                .budget_bytes = v->disk,
                                .host_fd = t->host.fd,
                                .host_bytes = t->host.bytes,
                                .now_ms = shell_now_ms,
                                .is_hanging = one_hangs(t),
                                .is_stopped = start_is_stopped};
    notify_send("STATUS=opening %s", dir);
    kvt_status status = tier_disk_open(&wanted, why, sizeof why, &t->disk);
    if (status == KVT_OK &&
        epoll_ctl(t->shell->epoll_fd, EPOLL_CTL_ADD, tier_disk_fd(t->disk), &event) == 0)
        return EXIT_CODE_OK;
    if (status == KVT_ECANCELED) {
        log_write(LOG_INFO, "stopping while the disk tier is opened: %s", why);
        t->shell->is_stopped = 1;
        return EXIT_CODE_FAILED;
    }
    log_write(LOG_ERROR, "disk_dir %s: %s", dir, why[0] ? why : kvt_status_text(status));
    return code_of(status);
}

/* What goes between the arena and the host tier passes no buffer then. */
static void pin_host(tenant *t) {
    char why[256] = "";
    const kvt_device_ops *ops = t->device->ops;
    if (!ops->pin)
        return;
    if (ops->pin(t->device, t->host.data, t->host.bytes, why, sizeof why) == KVT_OK)
        t->is_host_pinned = 1;
    else
        log_write(LOG_WARNING,
                  "the host tier of %llu MiB is not within the GPU's reach (%s): what goes between "
                  "it and the arena is copied twice",
                  (unsigned long long)t->host.bytes >> 20, why);
}

/* A budget that somebody has set, and that is one of nothing. (A configuration that names every
 * parameter has the standard one.) */
static void say_unused(const param_values *v) {
    static config standard;
    config_init(&standard);
    if (!v->disk_dir[0] && v->disk != standard.values.disk)
        log_write(LOG_WARNING,
                  "\"disk\" is %llu MiB, and there is no disk tier: set \"disk_dir\", too",
                  (unsigned long long)v->disk >> 20);
}

/* --- folders that are nobody's -----------------------------------------------------------------
 */

static uint64_t bytes_in(const char *path) {
    uint64_t bytes = 0;
    struct stat st;
    DIR *entries = opendir(path);
    for (struct dirent *e; entries && (e = readdir(entries)) != NULL;)
        if (fstatat(dirfd(entries), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    if (entries)
        closedir(entries);
    return bytes;
}

static int has_tier(const char *path) {
    char name[3 * PARAM_MAX_TEXT_BYTES];
    struct stat st;
    return (size_t)snprintf(name, sizeof name, "%s/data.mdb", path) < sizeof name &&
           lstat(name, &st) == 0 && S_ISREG(st.st_mode);
}

static int is_tenants(const shell *sh, const char *disk_dir, const char *name) {
    for (uint32_t i = 0; sh->n_tenants > 1 && i < sh->n_tenants; i++)
        if (strcmp(sh->tenants[i].values->disk_dir, disk_dir) == 0 &&
            strcmp(sh->tenants[i].values->tenant, name) == 0)
            return 1;
    return 0;
}

static void say_stray(const char *path) {
    log_write(LOG_WARNING,
              "%s belongs to no tenant of this configuration, and its %llu KiB count in no budget: "
              "delete it, if no configuration names it any more",
              path, (unsigned long long)bytes_in(path) >> 10);
}

/* Of tenants that there are no more, or of the only one of a time when there were not several, or
 * of several when there is only one. */
static void say_strays(const tenant *t) {
    const char *dir = t->values->disk_dir;
    char path[2 * PARAM_MAX_TEXT_BYTES + 2];
    for (uint32_t i = 0; i < t->index; i++)
        if (strcmp(t->shell->tenants[i].values->disk_dir, dir) == 0)
            return; /* was said */
    if (t->shell->n_tenants > 1 && has_tier(dir))
        say_stray(dir);
    DIR *entries = opendir(dir);
    for (struct dirent *e; entries && (e = readdir(entries)) != NULL;)
        if (e->d_name[0] != '.' &&
            (size_t)snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < sizeof path &&
            has_tier(path) && !is_tenants(t->shell, dir, e->d_name))
            say_stray(path);
    if (entries)
        closedir(entries);
}

/* Legal, and seldom meant: most so where the arena was made for a large GPU, and "disk" left at its
 * default. */
static void say_smaller(const tenant *t) {
    uint64_t above = t->n_arenas * t->arenas[0].header.data_bytes, below = t->values->disk;
    int several = t->shell->n_tenants > 1;
    if (t->disk && below < above)
        log_write(
            LOG_WARNING,
            "%s%s%s\"disk\" is %llu MiB, less than the arena's %llu MiB: what has no room there is "
            "kept "
            "in memory alone, and a restart does not find it; set \"disk\" to more than %llu MiB",
            several ? "tenant " : "", several ? t->values->tenant : "", several ? ": " : "",
            (unsigned long long)below >> 20, (unsigned long long)above >> 20,
            (unsigned long long)above >> 20);
}

int tenant_open_tiers(tenant *t) {
    const param_values *v = t->values;
    char why[1024];
    uint64_t bytes = v->host;
    say_unused(v);
    if (v->disk_dir[0] && bytes == 0)
        bytes = HOST_BYTES;
    if (bytes == 0)
        return EXIT_CODE_OK;
    bytes -= bytes % FRAMES_GRANULE_BYTES; /* less is no tier: a budget is not exceeded */
    bytes = bytes ? bytes : FRAMES_GRANULE_BYTES;
    notify_send("STATUS=touching %llu MiB of host tier", (unsigned long long)bytes >> 20);
    start_touch touch;
    kvt_touching touching = start_touching(&touch, "host tier");
    kvt_status status = tier_host_open(bytes, &touching, why, sizeof why, &t->host);
    if (status == KVT_ECANCELED) {
        log_write(LOG_INFO, "stopping while the host tier is touched");
        t->shell->is_stopped = 1;
        return EXIT_CODE_FAILED;
    }
    if (status != KVT_OK) {
        log_write(LOG_ERROR, "%s", why);
        return EXIT_CODE_MEMORY;
    }
    if (v->max_pages == 0)
        t->max_pages = arena_auto_pages(t->n_arenas * t->arenas[0].header.data_bytes + bytes +
                                        (v->disk_dir[0] ? v->disk : 0));
    int code = v->disk_dir[0] ? open_disk(t) : EXIT_CODE_OK;
    if (code == EXIT_CODE_OK)
        say_smaller(t);
    if (code == EXIT_CODE_OK && t->disk && tier_disk_up(t->disk)) /* or looking may wait */
        say_strays(t);
    if (code == EXIT_CODE_OK) /* after the helper process was started, which has its own mapping */
        pin_host(t);
    return code;
}

/* The budget less what the file needs for itself. */
uint64_t tenant_disk_room(const tenant *t) {
    disk_stats stats;
    if (!t->disk)
        return 0;
    tier_disk_count(t->disk, &stats);
    return stats.map_bytes;
}

/* As for the arena: of pages of 4 KiB and more all that fit. Who has smaller ones says so by
 * `max_pages`, else the budget would stay empty for want of places; one takes some 30 bytes. */
uint32_t tenant_host_frames(const tenant *t) {
    enum { SMALLEST_PAGE = 256 };
    uint64_t known = t->values->max_pages, fit = t->host.bytes / SMALLEST_PAGE;
    uint64_t small = known < fit ? known : fit;
    uint32_t usual = arena_auto_pages(t->host.bytes);
    return small > usual ? (uint32_t)small : usual;
}
