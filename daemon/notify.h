/*
 * notify.h - what systemd (Type=notify) wants to be told, over $NOTIFY_SOCKET; nothing happens
 * without it. Watchdog messages are sent by the loop that serves workers and by nothing else, so
 * that they prove that it runs.
 */
#ifndef KVT_DAEMON_NOTIFY_H
#define KVT_DAEMON_NOTIFY_H

#include <stdint.h>

/* Reads the environment. Called once, before there are threads. */
void notify_open(void);
/* "READY=1\nSTATUS=..." */
void notify_send(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Half of the watchdog's time; 0: none is asked for. */
uint64_t notify_watchdog_ms(void);

#endif
