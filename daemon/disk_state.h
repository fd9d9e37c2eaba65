/* disk_state.h - what disk.c (requests), disk_process.c (the helper's life) and disk_open.c (its
 * beginning and end) share. */
#ifndef KVT_DAEMON_DISK_STATE_H
#define KVT_DAEMON_DISK_STATE_H

#include "daemon/disk_wire.h"

#include <sys/types.h>

/*
 *            spawn             HELLO
 *    DOWN ----------> OPENING -------> UP
 *      ^                 |             |  socket's end, silence, nonsense: SIGKILL
 *      '---- reaped -----+------- <----'
 */
typedef enum disk_phase {
    DISK_DOWN = 0, /* no process; one is to be started at restart_due_ms */
    DISK_OPENING,
    DISK_UP,
} disk_phase;

typedef struct disk_realm_entry {
    uint32_t number; /* the daemon's */
    uint32_t told;   /* to this helper */
    size_t n_bytes;
    uint8_t *bytes; /* NULL: the place is free */
} disk_realm_entry;

struct disk {
    disk_options options; /* dir is a copy */
    int epoll_fd, timer_fd;

    /* the process */
    disk_phase phase;
    pid_t pid; /* 0: none */
    int pidfd;
    int socket;          /* -1: none, or it has ended */
    int waiting_to_send; /* EPOLLOUT is asked for */
    int killed;          /* by us, since it did not answer, or made no sense */
    int stalled;         /* since it did not answer: no sign that the file is damaged */
    int useful;          /* it has done something since it was started */
    int opening_first;   /* within disk_open */
    int was_up;          /* at some time */
    int closing;
    uint32_t flags;      /* of the next start: TIER_CHECK, TIER_DISCARD */
    uint32_t life_flags; /* with which this one was started */
    uint32_t n_starts;
    uint64_t last_heard_ms, restart_due_ms, pause_ms, open_ms;
    uint64_t quiet_from_ms;  /* as last_heard_ms; but a new process has said nothing yet */
    uint64_t silent_from_ms; /* the log has said that the disk is silent, from then; 0: it is not */
    kvt_status refused;      /* by HELLO */
    char why[DISK_MAX_WHY], said[DISK_MAX_WHY]; /* by HELLO; of these, what the log has said */

    /* requests: a slot each; those not sent yet are in the list */
    disk_request **slots; /* [max_requests] NULL: free */
    uint32_t *free_slots;
    uint32_t n_free, n_sent;
    disk_request *first, **last;
    uint64_t last_serial;

    disk_realm_entry realms[DISK_MAX_REALMS];
    uint32_t n_realm_places; /* those behind were never used */
    int scanned;
    uint32_t scan_numbers[TIER_MAX_REALMS]; /* the daemon's, by place in the scan's list */
    uint32_t n_scan_numbers;

    disk_stats stats;
    tier_usage seen, before; /* of this helper; of all earlier ones, counters only */
};

uint64_t disk_now_ms(void);
void disk_log(const disk *d, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* disk_process.c */
kvt_status disk_spawn(disk *d, char *why, size_t why_bytes);
/* Ends a helper that makes no sense or does not answer; disk_reap does the rest. */
void disk_kill(disk *d);
/* Looks whether it has ended. Then 1, and what is to be done next is in flags, pause_ms. */
int disk_reap(disk *d);
/* Asks epoll for what is of interest now, and sets the timer. */
void disk_watch(disk *d);
/* Says that the disk does not answer, and that it does again: once for each silence. */
void disk_note_silence(disk *d);
/* For how long it has not, with something to answer. */
uint64_t disk_silence_ms(const disk *d);
void disk_socket_end(disk *d);

/* disk.c */
/* 1: sent. 0: the socket is full, or at its end (then disk_step sees it). */
int disk_tell(disk *d, const disk_message *head, const void *rest, size_t n_rest);
/* A message of the helper. 0: it is nonsense. */
int disk_take(disk *d, const uint8_t *message, size_t n);
/* Takes some of them; 1: there may be more. */
int disk_receive(disk *d);
/* If the process has ended: takes what it said last, then 1. */
int disk_take_end(disk *d);
void disk_clear_timer(disk *d);
/* Sends what can be sent. */
void disk_pump(disk *d);
/* Ends all requests with KVT_EIO. */
void disk_fail_all(disk *d);

#endif
