/*
 * socket_path.h - who owns the path of the socket. Knows files, not messages.
 *
 *     SOCKET        where workers connect
 *     SOCKET~       where a listener is made; then it is renamed to SOCKET
 *     SOCKET.lock   locked (flock) while a daemon lives, with its pid in it; stays behind, since a
 *                   lock file that is removed can be locked twice
 *
 * Why a listener is never made at SOCKET itself: nng 1.5.2 deletes an ordinary file that stands
 * where it shall listen, and deletes the path again when the listener is closed, whoever owns it by
 * then. With the detour, what stands at SOCKET is looked at first and replaced in one step, and
 * closing an old listener removes nothing.
 */
#ifndef KVT_DAEMON_SOCKET_PATH_H
#define KVT_DAEMON_SOCKET_PATH_H

#include "client/kvtrunk.h"

#include <sys/types.h>

enum { SOCKET_PATH_BYTES = 108 }; /* sun_path, its NUL included */

typedef struct socket_path {
    char path[SOCKET_PATH_BYTES];
    char spare[SOCKET_PATH_BYTES];
    int lock;
    dev_t device; /* of the socket that socket_path_show put there */
    ino_t inode;
} socket_path;

/*
 * Takes the path: checks its length, locks it, removes what a dead daemon left there.
 * With a sentence in why: KVT_EINVAL (too long, not absolute), KVT_EEXIST (an ordinary file is in
 * the way; it stays untouched), KVT_EBUSY (another daemon, with its pid), KVT_EIO.
 */
kvt_status socket_path_take(const char *path, socket_path *ret_socket, char *why, size_t why_bytes);

/* Before a listener is made at `spare`: removes a socket that is left there. KVT_EEXIST, KVT_EIO.
 */
kvt_status socket_path_clear_spare(const socket_path *s, char *why, size_t why_bytes);

/* After: shows it at `path`, in place of the socket that this process had there. If somebody has
 * put something else there meanwhile, that stays. KVT_EEXIST, KVT_EIO. */
kvt_status socket_path_show(socket_path *s, char *why, size_t why_bytes);

/* Removes the socket, if it is this process's own, and unlocks. */
void socket_path_release(socket_path *s);

#endif
