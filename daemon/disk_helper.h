/*
 * disk_helper.h - the helper process of the disk tier (see disk.h).
 *
 * A program that calls disk_open calls disk_helper_main first thing in main: if the process was
 * started as a helper, it serves until its socket ends, and never comes back; otherwise it returns
 * at once.
 */
#ifndef KVT_DAEMON_DISK_HELPER_H
#define KVT_DAEMON_DISK_HELPER_H

void disk_helper_main(int argc, char **argv);

#endif
