/* socket_path.c - see socket_path.h. */
#include "daemon/socket_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    return S_ISREG(mode)   ? "an ordinary file"
           : S_ISDIR(mode) ? "a directory"
           : S_ISLNK(mode) ? "a symbolic link"
                           : "something else than a socket";
}

/* Removes a socket at the path; nothing there is as good. Only with the lock held. */
static kvt_status remove_socket(const char *path, char *why, size_t why_bytes) {
    struct stat info;
    if (lstat(path, &info) != 0) {
        if (errno == ENOENT)
            return KVT_OK;
        snprintf(why, why_bytes, "%s cannot be looked at: %s", path, strerror(errno));
        return KVT_EIO;
    }
    if (!S_ISSOCK(info.st_mode)) {
        snprintf(why, why_bytes,
                 "%s is %s; it was left as it is. Remove it, or choose another \"socket\"", path,
                 kind_of(info.st_mode));
        return KVT_EEXIST;
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        snprintf(why, why_bytes, "%s is left from an earlier daemon and cannot be removed: %s",
                 path, strerror(errno));
        return KVT_EIO;
    }
    return KVT_OK;
}

/* The pid in a lock file, or 0. -1: something stands in it that no daemon has written. */
static long pid_in(int fd) {
    char text[24], *end;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return 0;
    text[n] = 0;
    long pid = strtol(text, &end, 10);
    return pid > 0 && end != text && *end == '\n' && end[1] == 0 ? pid : -1;
}

static kvt_status lock_path(socket_path *s, char *why, size_t why_bytes) {
    char path[SOCKET_PATH_BYTES + 8], text[24];
    snprintf(path, sizeof path, "%s.lock", s->path);
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (s->lock < 0) {
        snprintf(why, why_bytes, "%s cannot be opened: %s", path, strerror(errno));
        return KVT_EIO;
    }
    long pid = pid_in(s->lock);
    if (flock(s->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            snprintf(why, why_bytes, "%s cannot be locked: %s", path, strerror(errno));
            return KVT_EIO;
        }
        snprintf(why, why_bytes,
                 "%s is served by another daemon, pid %ld; stop it, or choose another \"socket\"",
                 s->path, pid > 0 ? pid : 0);
        return KVT_EBUSY;
    }
    if (pid < 0) {
        snprintf(why, why_bytes,
                 "%s holds something that no daemon has written; it was left as it is. Remove it",
                 path);
        return KVT_EEXIST;
    }
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(s->lock, 0) != 0 || pwrite(s->lock, text, (size_t)n, 0) != n) {
        snprintf(why, why_bytes, "%s cannot be written: %s", path, strerror(errno));
        return KVT_EIO;
    }
    return KVT_OK;
}

/* Who holds the lock asks, so it is no daemon of ours. A datagram socket cannot be connected to a
 * listening one, and is told so; to one that nobody holds any more it is refused. */
static int somebody_listens(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    int fd = n < sizeof address.sun_path ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0)
        return 0;
    memcpy(address.sun_path, path, n);
    int error = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    close(fd);
    return error == 0 || error == EPROTOTYPE;
}

kvt_status socket_path_take(const char *path, socket_path *ret_socket, char *why,
                            size_t why_bytes) {
    socket_path s = {.lock = -1};
    if (path[0] != '/') {
        snprintf(why, why_bytes, "\"socket\" = \"%s\" is no absolute path", path);
        return KVT_EINVAL;
    }
    if (strlen(path) > SOCKET_PATH_BYTES - 2) {
        snprintf(why, why_bytes,
                 "the path of the socket has %zu bytes, and at most %d are possible: %s",
                 strlen(path), SOCKET_PATH_BYTES - 2, path);
        return KVT_EINVAL;
    }
    snprintf(s.path, sizeof s.path, "%s", path);
    snprintf(s.spare, sizeof s.spare, "%.*s~", SOCKET_PATH_BYTES - 2, path);
    kvt_status status = lock_path(&s, why, why_bytes);
    if (status == KVT_OK && somebody_listens(s.path)) {
        snprintf(why, why_bytes,
                 "%s is the socket of another program that is running; it was left as it is. Stop "
                 "that, or choose another \"socket\"",
                 s.path);
        status = KVT_EEXIST;
    }
    if (status == KVT_OK)
        status = remove_socket(s.path, why, why_bytes);
    if (status != KVT_OK) {
        if (s.lock >= 0)
            close(s.lock);
        return status;
    }
    *ret_socket = s;
    return KVT_OK;
}

kvt_status socket_path_clear_spare(const socket_path *s, char *why, size_t why_bytes) {
    return remove_socket(s->spare, why, why_bytes);
}

static int is_own(const socket_path *s) {
    struct stat info;
    return s->inode != 0 && lstat(s->path, &info) == 0 && info.st_dev == s->device &&
           info.st_ino == s->inode;
}

kvt_status socket_path_show(socket_path *s, char *why, size_t why_bytes) {
    struct stat info;
    if (lstat(s->spare, &info) != 0) {
        snprintf(why, why_bytes, "%s has gone: %s", s->spare, strerror(errno));
        return KVT_EIO;
    }
    /* Our own is replaced; where nothing stands, nothing is overwritten that comes in between. */
    int result = is_own(s) ? rename(s->spare, s->path)
                           : renameat2(AT_FDCWD, s->spare, AT_FDCWD, s->path, RENAME_NOREPLACE);
    if (result != 0 && errno == EINVAL) /* a file system that knows no RENAME_NOREPLACE */
        result = lstat(s->path, &(struct stat){0}) == 0 ? (errno = EEXIST, -1)
                                                        : rename(s->spare, s->path);
    if (result != 0) {
        int error = errno;
        unlink(s->spare);
        snprintf(why, why_bytes, "the socket cannot be put at %s: %s", s->path, strerror(error));
        return error == EEXIST ? KVT_EEXIST : KVT_EIO;
    }
    s->device = info.st_dev;
    s->inode = info.st_ino;
    return KVT_OK;
}

void socket_path_release(socket_path *s) {
    if (is_own(s))
        unlink(s->path);
    if (s->lock >= 0)
        close(s->lock);
    s->lock = -1;
}
