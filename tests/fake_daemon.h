/*
 * fake_daemon.h - a daemon that does what a test tells it to: it speaks the protocol, knows a
 * single path of pages, and can lose, refuse, delay or garble any message. It is a thread of the
 * test, over a real socket, arena and staging file.
 *
 * It speaks nng's wire format by itself: with nng on both sides of a connection in one process, the
 * two would share threads, and what one does to them would show as a fault of the other.
 */
#ifndef KVT_TESTS_FAKE_DAEMON_H
#define KVT_TESTS_FAKE_DAEMON_H

#include <pthread.h>

#include "client/wire.h"
#include "kernels/page.h"

enum {
    FAKE_MAX_SESSIONS = 64,
    FAKE_MAX_CONNECTIONS = 64,
    FAKE_MAX_HELD = 64,
    FAKE_MAX_LEASES = 1024,
    FAKE_MAX_PAGES = 64, /* of the path, and frames of the arena */
    FAKE_FRAME_BYTES = 65536,
    FAKE_DATA_OFFSET = 65536,
};

/* What happens to the next messages of an op. */
typedef enum fake_trick {
    FAKE_SERVE = 0,
    FAKE_LOSE_REQUEST, /* nothing is done, nothing answered */
    FAKE_LOSE_REPLY,   /* it is done, and nothing answered */
    FAKE_REFUSE,       /* with a status */
    FAKE_GARBLE,       /* it is done, and the reply's body is cut by a byte */
    FAKE_HOLD,         /* answered when fake_let_go is called */
    FAKE_CUT_BEFORE,   /* the connection is closed instead */
    FAKE_CUT_AFTER,    /* it is done, then the connection is closed */
    FAKE_CUT_WITHIN,   /* it is done, half of the reply is sent, then the connection is closed */
    FAKE_HUGE,         /* answered with a length of 2^60 */
} fake_trick;

typedef struct fake_connection {
    int fd; /* -1: free */
    uint32_t pipe;
    int greeted;
    size_t n_bytes; /* that have come and are not yet a message */
    size_t room;
    uint8_t *bytes;
} fake_connection;

/* A reply that waits for fake_let_go. */
typedef struct fake_held {
    uint32_t pipe;
    uint8_t id[4];
    size_t n_bytes;
    uint8_t *bytes;
} fake_held;

typedef struct fake_session {
    uint8_t token[KVT_WIRE_TOKEN_BYTES];
    int alive;
    uint32_t pipe; /* 0: orphaned */
    uint64_t newest;
    uint64_t seen; /* bits of the 64 before and with newest */
    int staging;   /* -1: none */
    uint64_t staging_bytes;
} fake_session;

typedef struct fake_lease {
    uint64_t id; /* 0: free */
    int session;
    uint64_t number; /* of the request that gave it */
    uint32_t n_tokens;
    int claim;
} fake_lease;

typedef struct fake_page {
    int held;
    uint32_t bytes;
    uint32_t rows;
    uint32_t sealer;
    uint64_t generation;
} fake_page;

typedef struct fake_daemon {
    char folder[64]; /* of everything; the test removes it */
    char socket[96];
    char arena[96];
    char staging_dir[96];
    kvt_page_shape shape;
    uint8_t *memory; /* the arena, mapped for writing */
    size_t memory_bytes;
    int listener; /* -1: stopped */
    int wake[2];  /* a pipe that ends the thread's poll */
    pthread_t thread;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    int stopping;
    uint64_t boot_id;
    int boots; /* started how often */
    /* tricks */
    fake_trick trick[KVT_N_OPS];
    int tricks_left[KVT_N_OPS];
    kvt_status refuse_with[KVT_N_OPS];
    int version;            /* of its replies; 0: the right one */
    uint32_t max_bytes;     /* that HELLO tells; 0: the usual */
    uint64_t geometry_hash; /* that REALM tells; 0: the right one */
    uint64_t wrong_boot;    /* in the arena's header */
    int bad_page;           /* 1: outside the arena, 2: frame, 3: rows, 4: odd offset */
    int n_view_runs;        /* leases are views with these runs, and these pages of the path */
    kvt_wire_run view_runs[4];
    int n_view_pages;
    uint32_t view_pages[4];
    int deny_resume;
    int unsealed; /* SEAL copies nothing and says KVT_EORDER */
    int computing;
    /* what it has */
    fake_session sessions[FAKE_MAX_SESSIONS];
    fake_lease leases[FAKE_MAX_LEASES];
    fake_page pages[FAKE_MAX_PAGES];
    uint64_t next_lease;
    uint32_t realm;
    int seal_fd;             /* staging of the last SEAL, kept open */
    kvt_seal_page seal_page; /* its first page */
    /* what it saw */
    int n_seen[KVT_N_OPS];
    int n_connections; /* made, ever */
    int n_resumed;
    int n_duplicates;
    int n_out_of_order; /* numbers that were not above the newest */
    uint64_t last_number[KVT_N_OPS];
    uint64_t cancelled;
    kvt_acquire_req asked;        /* the last ACQUIRE; its pointers are void */
    uint32_t asked_sum;           /* of its tokens, and of its spans' first tokens */
    uint32_t n_suspects, suspect; /* SUSPECTs that came, and the page of the last */
    uint32_t importance[3];       /* of the last IMPORTANCE: first_row, n_rows, sum */
    uint16_t order[65536];        /* ops in the order of their coming */
    uint32_t n_order;
    fake_connection connections[FAKE_MAX_CONNECTIONS];
    uint32_t next_pipe;
    int deaf; /* accepts no connection, as a stopped process */
    fake_held held[FAKE_MAX_HELD];
    int n_held;
} fake_daemon;

/* A folder of its own, not started. */
void fake_init(fake_daemon *f, const kvt_geometry *geometry);
void fake_start(fake_daemon *f); /* another boot each time; the path's pages are forgotten */
void fake_stop(fake_daemon *f);  /* connections break */
void fake_close(fake_daemon *f); /* stops it, removes the folder */

void fake_do(fake_daemon *f, kvt_op op, fake_trick trick, int times);
void fake_refuse(fake_daemon *f, kvt_op op, kvt_status status, int times);
void fake_deafen(fake_daemon *f, int deaf);
void fake_let_go(fake_daemon *f);                      /* answers what was held */
void fake_cut_all(fake_daemon *f);                     /* closes every connection */
void fake_end_sessions(fake_daemon *f);                /* as if the grace time were over */
void fake_wait_seen(fake_daemon *f, kvt_op op, int n); /* until n of them have come */

int fake_seen(fake_daemon *f, kvt_op op);
int fake_leases(fake_daemon *f);
int fake_files(fake_daemon *f); /* files in the staging folder */

/* Puts encoded bytes into the path's page i, with a new generation. */
void fake_hold_page(fake_daemon *f, uint32_t i, const void *bytes, size_t n_bytes, uint32_t rows);
uint8_t *fake_page_bytes(fake_daemon *f, uint32_t i);
void fake_bump(fake_daemon *f, uint32_t i); /* its frame was given to another */

#endif
