/*
 * e2e.h - what the end-to-end tests share: a real daemon as a child process in a folder of its own,
 * its counters, and a worker's whole job with the payload oracle.
 *
 * Nothing here sleeps: a test waits for a byte on a pipe, for a child's end, or asks the daemon's
 * counters again until they say what they must (e2e_await), which only a hang ends otherwise.
 */
#ifndef KVT_TESTS_E2E_H
#define KVT_TESTS_E2E_H

#include "client/kvtrunk.h"
#include "client/oracle.h"
#include "tests/check.h"

#include <sys/types.h>

/* With KVT_TEST_DEVICE=cuda in the environment the arena of every daemon is on a GPU: on the
 * stand-in of tests/cuda, or on the one that the module of KVTRUNK_CUDA finds. */
int e2e_on_gpu(void);

typedef struct e2e_daemon {
    pid_t pid;
    char folder[128];
    char socket[160];
} e2e_daemon;

/* Starts build/daemon/kvtrunkd with --set for each of the settings ("grace_ms=200", NULL ends;
 * "config=FILE" is --config FILE, and "log=FILE" is where its log is to go), and
 * returns when it is ready. A first start makes the folder; a second one on the same e2e_daemon
 * uses it again. Every daemon here runs with audit=true: it checks itself after each event. */
void e2e_start(e2e_daemon *d, const char *const *settings);
/* Sends the signal and waits for the end; returns the wait status. */
int e2e_stop(e2e_daemon *d, int signal);
/* SIGTERM, expects exit code 0, removes the folder. */
void e2e_finish(e2e_daemon *d);

/* A counter of the daemon by name. Fails the test if there is no such counter. */
uint64_t e2e_count(const e2e_daemon *d, const char *name);
/* Asks until the counter has this value. */
void e2e_await(const e2e_daemon *d, const char *name, uint64_t value);
/* Until all that is held is on disk. */
void e2e_await_disk(const e2e_daemon *d);

/* A folder for a disk tier, and the setting that names it. */
typedef struct e2e_disk {
    char folder[40];
    char setting[56];
} e2e_disk;
void e2e_disk_make(e2e_disk *ret_disk);
void e2e_disk_remove(const e2e_disk *disk);

/* The realm that the tests use: 2 layers, 2 heads, head_dim 32, pages of 16 tokens (8 KiB), f16. */
void e2e_realm(kvt_realm *ret_realm);
enum { E2E_PAGE_TOKENS = 16, E2E_LAYERS = 2, E2E_MAX_TOKENS = 512 };

typedef struct e2e_worker {
    kvt_client *client;
    kvt_realm realm;
    oracle oracle;
    uint64_t random;
    uint64_t wrong_bytes, served, sealed;
    uint64_t failed[KVT_N_STATUS];
    uint64_t *row_hashes; /* [max_tokens] */
    uint16_t *part[2];    /* [E2E_LAYERS][max_tokens][heads][dim] */
    size_t part_bytes;
    void *gpu_part[2]; /* the same on the GPU; NULL: this worker's KV is in host memory */
    void *stream;
} e2e_worker;

enum { E2E_PART_BYTES = E2E_LAYERS * E2E_MAX_TOKENS * 2 * 32 * 2 };

/* On a GPU workers with an odd seed have their KV there, too. */
void e2e_worker_open(e2e_worker *w, const e2e_daemon *d, uint64_t seed, uint32_t timeout_ms);
/* The same with room for longer paths than E2E_MAX_TOKENS. */
void e2e_worker_open_for(e2e_worker *w, const e2e_daemon *d, uint64_t seed, uint32_t timeout_ms,
                         uint32_t max_tokens);
/* The same, not connected yet: w->client is NULL. */
void e2e_worker_prepare(e2e_worker *w, uint64_t seed, uint32_t max_tokens);
void e2e_worker_close(e2e_worker *w);

/* A prompt that shares its beginning with others': a few documents, cut at any token. */
size_t e2e_prompt(uint64_t *random, uint32_t *tokens);

/* tokens[0 .. E2E_MAX_TOKENS) of a path that shares nothing with those of other numbers. */
void e2e_path(uint32_t which, uint32_t *tokens);

/* How much of it is held; reads that. */
uint32_t e2e_held(e2e_worker *w, const uint32_t *tokens, size_t n_tokens);

/* Decodes all that the lease holds and checks every byte. */
kvt_status e2e_read(e2e_worker *w, kvt_lease *lease, const uint32_t *tokens);
/* Encodes and seals what is claimed, up to max_pages of it. */
kvt_status e2e_fill(e2e_worker *w, kvt_lease *lease, const uint32_t *tokens, size_t max_pages);
/* A lease over n fresh tokens, written to tokens[0 .. n), that are sealed. */
kvt_lease *e2e_filled(e2e_worker *w, uint32_t *tokens, uint32_t n, uint32_t first);
/* acquire, read, fill, release. Statuses of failed calls are counted; wrong bytes end the test. */
void e2e_request(e2e_worker *w);

/* Runs job in a child process made anew by fork and exec of this program (the messaging library
 * does not survive a mere fork): the program's main hands argv over to e2e_child first. The child
 * talks through fd 3 (to the parent) and fd 4 (from the parent). */
typedef struct e2e_child {
    pid_t pid;
    int from, to;
} e2e_child;
typedef int (*e2e_job)(const e2e_daemon *d, uint64_t seed);
typedef struct e2e_jobs {
    const char *name;
    e2e_job job;
} e2e_jobs;
/* In main: returns the job's exit code if this process is such a child, -1 if it is the test. */
int e2e_child_main(int argc, char **argv, const e2e_jobs *jobs);
e2e_child e2e_spawn(const e2e_daemon *d, const char *job, uint64_t seed);
void e2e_say(char byte);                     /* child */
char e2e_hear(void);                         /* child; 0 at the parent's end */
char e2e_child_hear(const e2e_child *child); /* parent; 0 at the child's end */
void e2e_child_say(const e2e_child *child, char byte);
char e2e_child_ask(const e2e_child *child, char byte); /* says it, and hears the answer */
int e2e_child_end(e2e_child *child);                   /* closes, waits; exit code, or -signal */

#endif
