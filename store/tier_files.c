/* tier_files.c - see tier_files.h. */
#include "store/tier_files.h"
#include "kernels/say.h"
#include "store/tier_lmdb.h"
#include "store/tier_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define STAMP_WORD "kvtrunk-disk-tier"

enum { KEPT_OF_BROKEN_BYTES = 1 << 20, LOCK_POLL_MS = 10 };

static kvt_status status_of(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return KVT_EFULL;
    case EACCES:
    case EPERM:
    case EROFS:
        return KVT_EDENIED;
    case ENOMEM:
        return KVT_ENOMEM;
    default:
        return KVT_EIO;
    }
}

/* Of the directory itself: what its name cannot be is told from what its disk does. */
static kvt_status dir_status_of(int error) {
    switch (error) {
    case ENOENT:
        return KVT_ENOENT;
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
        return KVT_EINVAL;
    default:
        return status_of(error);
    }
}

/* Whoever may write here could have put a FIFO in a file's place, and opening that waits for ever.
 */
static int open_file(int dir, const char *name, int flags) {
    struct stat st;
    int fd = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return -1;
    int error = fstat(fd, &st) != 0 ? errno : S_ISREG(st.st_mode) ? 0 : EINVAL;
    if (!error)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

static int take_lock(int fd, uint32_t wait_ms) {
    const struct timespec pause = {.tv_nsec = LOCK_POLL_MS * 1000000L};
    for (uint32_t waited_ms = 0;; waited_ms += LOCK_POLL_MS) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -1;
        if (waited_ms >= wait_ms) {
            errno = EWOULDBLOCK;
            return -1;
        }
        nanosleep(&pause, NULL);
    }
}

/* --- whose it is -------------------------------------------------------------------------------
 */

/* Who may write there can put pages into other people's prompts, and a link in the place of a file,
 * for a daemon of root to write to. */
static kvt_status check_dir(const tier_files *f, char *why, size_t why_bytes) {
    struct stat st;
    if (fstat(f->dir, &st) != 0)
        return kvt_say(why, why_bytes, KVT_EIO, "%s: %s", f->name, strerror(errno));
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return kvt_say(
            why, why_bytes, KVT_EDENIED,
            "%s belongs to user %u, and this daemon runs as user %u: chown it, or choose "
            "another directory",
            f->name, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return kvt_say(why, why_bytes, KVT_EDENIED,
                       "%s has mode %04o: who else may write there could put pages into prompts. "
                       "chmod 0700 it, or choose another directory",
                       f->name, (unsigned)st.st_mode & 07777);
    return KVT_OK;
}

static kvt_status check_files(const tier_files *f, char *why, size_t why_bytes) {
    static const char *const names[] = {TIER_DATA_NAME, "lock", "stamp", "stamp.new", "ballast"};
    struct stat st;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (fstatat(f->dir, names[i], &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (!S_ISREG(st.st_mode))
            return kvt_say(why, why_bytes, KVT_EDENIED,
                           "%s/%s is no file: remove it, or choose another directory", f->name,
                           names[i]);
        if (st.st_uid != geteuid())
            return kvt_say(why, why_bytes, KVT_EDENIED,
                           "%s/%s belongs to user %u, and this daemon runs as user %u: chown all "
                           "that is there, or choose another directory",
                           f->name, names[i], (unsigned)st.st_uid, (unsigned)geteuid());
    }
    return KVT_OK;
}

static ssize_t stamp_read(const tier_files *f, char *to, size_t room) {
    int fd = open_file(f->dir, "stamp", O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, to, room - 1);
    if (fd >= 0)
        close(fd);
    to[n > 0 ? n : 0] = 0;
    return n;
}

/* Was it a tier that wrote this database? Its state stands in there since the first transaction. */
static int is_tiers(const tier_files *f) {
    static const uint8_t number[4] = {0};
    char path[sizeof f->name + sizeof TIER_DATA_NAME + 1];
    uint8_t bytes[TIER_STATE_BYTES];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/" TIER_DATA_NAME, f->name);
    return lmdb_peek(path, LMDB_REALMS, (lmdb_bytes){number, sizeof number}, bytes, sizeof bytes,
                     &n) == KVT_OK &&
           n == sizeof bytes && memcmp(bytes, "KVTS", 4) == 0;
}

/* data.mdb is what many call LMDB's file. A tier's has a stamp beside it before it is there (see
 * open_found in tier.c), so without one of ours it is somebody else's, unless it says itself that
 * it is a tier's: then the stamp was lost or damaged. Before anything is made here, the lock too.
 */
static kvt_status check_owner(const tier_files *f, char *why, size_t why_bytes) {
    char text[256];
    if (tier_files_data_bytes(f) == 0)
        return KVT_OK;
    ssize_t n = stamp_read(f, text, sizeof text);
    if (strncmp(text, STAMP_WORD, strlen(STAMP_WORD)) == 0 || is_tiers(f) ||
        tier_files_data_bytes(f) == 0) /* another process has moved it aside meanwhile */
        return KVT_OK;
    return kvt_say(why, why_bytes, KVT_EDENIED,
                   "%s/" TIER_DATA_NAME
                   " is not kvtrunk's (it has %llu KiB, and %s): it was left as "
                   "it is. Choose another directory; or remove it, if nobody needs it",
                   f->name, (unsigned long long)tier_files_data_bytes(f) >> 10,
                   n < 0 ? "no file \"stamp\" beside it" : "the \"stamp\" beside it is another's");
}

/* --- open, close -------------------------------------------------------------------------------
 */

static kvt_status open_dir(tier_files *f, char *why, size_t why_bytes) {
    if (mkdir(f->name, 0700) != 0 && errno != EEXIST)
        return kvt_say(why, why_bytes, dir_status_of(errno), "%s cannot be made: %s", f->name,
                       strerror(errno));
    f->dir = open(f->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->dir < 0)
        return kvt_say(why, why_bytes, dir_status_of(errno), "%s: %s", f->name, strerror(errno));
    kvt_status status = check_dir(f, why, why_bytes);
    if (status == KVT_OK)
        status = check_files(f, why, why_bytes);
    return status == KVT_OK ? check_owner(f, why, why_bytes) : status;
}

static kvt_status busy(const tier_files *f, char *why, size_t why_bytes) {
    return kvt_say(why, why_bytes, KVT_EBUSY, "%s: another process has this disk tier", f->name);
}

/* The file is there to be seen; but whoever removes it removes that lock, too, for all who come
 * later. The directory's stays as long as anything is in it. (Some network file systems have no
 * locks of directories: then the file's is all there is.) */
static kvt_status lock_dir(tier_files *f, uint32_t wait_ms, char *why, size_t why_bytes) {
    f->lock = open_file(f->dir, "lock", O_RDWR | O_CREAT);
    if (f->lock >= 0 && take_lock(f->lock, wait_ms) == 0)
        return take_lock(f->dir, wait_ms) != 0 && errno == EWOULDBLOCK ? busy(f, why, why_bytes)
                                                                       : KVT_OK;
    if (f->lock >= 0 && errno == EWOULDBLOCK)
        return busy(f, why, why_bytes);
    return kvt_say(why, why_bytes, status_of(errno), "%s/lock: %s", f->name, strerror(errno));
}

kvt_status tier_files_open(const tier_options *o, uint64_t ballast_bytes, char *why,
                           size_t why_bytes, tier_files *ret_files) {
    tier_files f = {.dir = -1, .lock = -1, .ballast_bytes = ballast_bytes};
    if ((size_t)snprintf(f.name, sizeof f.name, "%s", o->dir) >= sizeof f.name ||
        (size_t)snprintf(f.boot_id, sizeof f.boot_id, "%s", o->boot_id) >= sizeof f.boot_id)
        return kvt_say(why, why_bytes, KVT_EINVAL, "the directory's name is too long");
    kvt_status status = open_dir(&f, why, why_bytes);
    if (status == KVT_OK)
        status = lock_dir(&f, o->lock_wait_ms, why, why_bytes);
    if (status == KVT_OK)
        *ret_files = f;
    else
        tier_files_close(&f);
    return status;
}

void tier_files_close(tier_files *f) {
    if (f->lock >= 0)
        close(f->lock);
    if (f->dir >= 0)
        close(f->dir);
    f->lock = f->dir = -1;
}

/* --- the stamp ---------------------------------------------------------------------------------
 */

/* Text, so that whoever looks into the directory sees what it is:
 *     kvtrunk-disk-tier 1 open 4f9d...   */
tier_found tier_files_found(const tier_files *f) {
    char text[256] = "", state[8] = "", boot_id[TIER_MAX_BOOT_ID_BYTES + 1] = "";
    unsigned version = 0;
    if (tier_files_data_bytes(f) == 0)
        return TIER_FOUND_NONE;
    if (stamp_read(f, text, sizeof text) <= 0)
        return TIER_FOUND_BROKEN; /* nobody knows how this file was left */
    int fields = sscanf(text, STAMP_WORD " %u %7s %64s", &version, state, boot_id);
    if (fields < 1)
        return TIER_FOUND_BROKEN;
    if (version != TIER_FORMAT_VERSION)
        return TIER_FOUND_VERSION;
    if (fields >= 2 && strcmp(state, "closed") == 0)
        return TIER_FOUND_CLEAN;
    if (fields == 3 && strcmp(state, "open") == 0)
        return f->boot_id[0] && strcmp(boot_id, f->boot_id) == 0 ? TIER_FOUND_KILLED
                                                                 : TIER_FOUND_CRASHED;
    return TIER_FOUND_BROKEN;
}

kvt_status tier_files_stamp(const tier_files *f, int clean) {
    char text[256];
    int n = snprintf(text, sizeof text, STAMP_WORD " %u %s %s\n", TIER_FORMAT_VERSION,
                     clean ? "closed" : "open", f->boot_id[0] ? f->boot_id : "unknown");
    int fd = open_file(f->dir, "stamp.new", O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0)
        return status_of(errno);
    ssize_t written = write(fd, text, (size_t)n);
    int error = written < 0 ? errno : written != n ? ENOSPC : fsync(fd) != 0 ? errno : 0;
    close(fd);
    if (!error && renameat(f->dir, "stamp.new", f->dir, "stamp") != 0)
        error = errno;
    if (error) {
        unlinkat(f->dir, "stamp.new", 0);
        errno = error; /* for whoever says why */
        return status_of(error);
    }
    fsync(f->dir);
    return KVT_OK;
}

/* --- moving aside ------------------------------------------------------------------------------
 */

static void cut(int dir, const char *name) {
    struct stat st;
    int fd = open_file(dir, name, O_WRONLY);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_size > KEPT_OF_BROKEN_BYTES &&
        ftruncate(fd, KEPT_OF_BROKEN_BYTES) != 0)
        unlinkat(dir, name, 0);
    close(fd);
}

const char *tier_aside_name(tier_found found) {
    return found == TIER_FOUND_VERSION  ? "aside/other-version.mdb"
           : found == TIER_FOUND_BROKEN ? "aside/broken.mdb"
                                        : NULL;
}

static const tier_found aside_kinds[] = {TIER_FOUND_VERSION, TIER_FOUND_BROKEN};
enum { N_ASIDE_KINDS = sizeof aside_kinds / sizeof aside_kinds[0] };

static const char *name_in_aside(tier_found kind) {
    return strchr(tier_aside_name(kind), '/') + 1;
}

/* A link there would lead out of the directory: not followed, so that there is no aside. */
static int open_aside(const tier_files *f) {
    return openat(f->dir, "aside", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

uint64_t tier_files_aside_bytes(const tier_files *f) {
    uint64_t bytes = 0;
    struct stat st;
    int aside = open_aside(f);
    for (int i = 0; aside >= 0 && i < N_ASIDE_KINDS; i++)
        if (fstatat(aside, name_in_aside(aside_kinds[i]), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    if (aside >= 0)
        close(aside);
    return bytes;
}

void tier_files_drop_aside(const tier_files *f) {
    int aside = open_aside(f);
    if (aside < 0)
        return;
    for (int i = 0; i < N_ASIDE_KINDS; i++)
        unlinkat(aside, name_in_aside(aside_kinds[i]), 0);
    close(aside);
    unlinkat(f->dir, "aside", AT_REMOVEDIR);
}

/* Whether it is there now. */
static int move_aside(const tier_files *f, tier_found kind) {
    mkdirat(f->dir, "aside", 0700);
    int aside = open_aside(f);
    if (aside < 0)
        return 0;
    int moved = renameat(f->dir, TIER_DATA_NAME, aside, name_in_aside(kind)) == 0;
    if (moved && kind == TIER_FOUND_BROKEN)
        cut(aside, name_in_aside(kind));
    close(aside);
    return moved;
}

kvt_status tier_files_aside(const tier_files *f, tier_found kind, int *ret_moved) {
    int moved = tier_aside_name(kind) && move_aside(f, kind);
    if (!moved && unlinkat(f->dir, TIER_DATA_NAME, 0) != 0 && errno != ENOENT)
        return status_of(errno);
    *ret_moved = moved;
    return KVT_OK;
}

uint64_t tier_files_data_bytes(const tier_files *f) {
    struct stat st;
    if (fstatat(f->dir, TIER_DATA_NAME, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    return (uint64_t)st.st_size;
}

int tier_files_is_data(const tier_files *f, int fd) {
    struct stat named, open;
    if (fstatat(f->dir, TIER_DATA_NAME, &named, AT_SYMLINK_NOFOLLOW) != 0)
        return errno != ENOENT; /* of anything else the file's own calls will tell */
    return fstat(fd, &open) != 0 || (named.st_ino == open.st_ino && named.st_dev == open.st_dev);
}

uint64_t tier_files_disk_free(const tier_files *f) {
    struct statvfs fs;
    if (fstatvfs(f->dir, &fs) != 0 || fs.f_blocks == 0)
        return UINT64_MAX;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* --- the ballast -------------------------------------------------------------------------------
 */

void tier_files_drop_ballast(const tier_files *f) {
    unlinkat(f->dir, "ballast", 0);
}

void tier_files_take_ballast(const tier_files *f) {
    struct stat st;
    int fd = open_file(f->dir, "ballast", O_WRONLY | O_CREAT);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_size != f->ballast_bytes &&
        posix_fallocate(fd, 0, (off_t)f->ballast_bytes) != 0)
        unlinkat(f->dir, "ballast", 0);
    close(fd);
}
