/* disk_holder.h - who has the disk tier's directory, if another process does. */
#ifndef KVT_DAEMON_DISK_HOLDER_H
#define KVT_DAEMON_DISK_HOLDER_H

#include <stddef.h>

/* Puts a sentence into why that names the process to end: the daemon whose helper has the
 * directory's lock, or whoever else has it. Leaves it as it is where nobody can be named. 1: it is
 * a helper that was killed with its daemon, and only waits for the disk to let it go. */
int disk_holder_say(const char *dir, char *why, size_t why_bytes);

#endif
