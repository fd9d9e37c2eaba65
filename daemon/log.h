/*
 * log.h - the daemon's log: standard error, one line a message. Any thread. When standard error is
 * systemd's journal, lines carry its level prefix ("<4>") instead of the level's name.
 */
#ifndef KVT_DAEMON_LOG_H
#define KVT_DAEMON_LOG_H

typedef enum log_level { LOG_ERROR = 0, LOG_WARNING, LOG_INFO, LOG_DEBUG } log_level;

/* Looks where standard error goes. Before it is called, lines have no prefix. */
void log_open(void);
void log_set_level(log_level level);

/* Control characters in the message are replaced: what a peer sends cannot forge a line. At most
 * 2,000 bytes. */
void log_write(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
