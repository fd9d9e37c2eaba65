/*
 * disk_orphan.h - who has the disk tier's directory, if another process does; and the end of a
 * helper whose daemon is gone. One ends by itself, unless it is stopped, or waits for a disk that
 * does not answer.
 */
#ifndef KVT_DAEMON_DISK_ORPHAN_H
#define KVT_DAEMON_DISK_ORPHAN_H

/* The process that has the directory's lock; 0: not known. */
int disk_lock_holder(const char *dir);

/* 1: it was a helper of that directory whose daemon is gone, and was sent SIGKILL. What it had
 * committed is in the file. */
int disk_orphan_end(int pid, const char *dir);

#endif
