/*
 * tool_replay.h - between the parts of `kvtrunk replay`:
 *
 *   tool_replay.c          reads options and trace, decides what is started
 *   tool_replay_crew.c     starts workers, hears what they say, shows how far they are
 *   tool_worker.c          a worker, in a process of its own
 *   tool_replay_report.c   the result, for people and as JSON
 */
#ifndef KVT_CLIENT_TOOL_REPLAY_H
#define KVT_CLIENT_TOOL_REPLAY_H

#include "client/reuse.h"
#include "client/tool.h"

enum { REPLAY_MAX_WORKERS = 256, REPLAY_MAX_TEXT_BYTES = 512 };

typedef struct replay_options {
    const char *trace;
    const char *socket;   /* --connect, or the private daemon's */
    const char *capacity; /* NULL: room for all */
    const char *codec, *dtype;
    const char *policy;             /* of the private daemon */
    uint64_t n_workers, n_requests; /* requests: 0 = all */
    uint64_t layers, heads, head_dim;
    uint64_t page_tokens; /* 0 until the trace has been looked at */
    uint64_t wait_ms, timeout_ms;
    int json;
} replay_options;

/*
 * The realm of a replay. The strings are the options'. KVT_EGEOMETRY, KVT_ELIMIT, KVT_ESYNTAX,
 * KVT_ENOTSUP with a sentence in why. *ret_page_bytes (may be NULL): the most that a page takes.
 */
kvt_status replay_realm(const replay_options *options, char *why, size_t why_bytes,
                        kvt_realm *ret_realm, uint64_t *ret_page_bytes);

/* Pages that a worker encodes before it seals them: fewer of large ones, to bound its memory. */
uint32_t replay_staging_pages(uint64_t page_bytes);

/* Do decoded bytes equal what was encoded? Otherwise they are only near it. */
int replay_is_exact(const replay_options *options);

/* What a worker counts, and what the workers' counts add up to. */
typedef struct replay_counts {
    uint64_t requests;
    uint64_t tokens_asked;
    uint64_t tokens_served; /* that were held, decoded and checked */
    uint64_t wrong_bytes;
    uint64_t pages_recompressed; /* read, and in fewer bits than they were sealed in: they cooled */
    uint64_t pages_as_laddered;  /* of these, what the daemon's ladder gives, to the byte */
    uint64_t bytes_read;         /* decoded from the arena, as 16-bit elements */
    uint64_t pages_sealed; /* by this worker, or by another one while this one computed them */
    uint64_t pages_shared; /* served, and sealed by another session */
    uint64_t pages_host;   /* served, and brought up from the host's memory for it */
    uint64_t pages_disk;   /* likewise, from the disk */
    uint64_t errors[KVT_N_STATUS]; /* calls that gave this status */
} replay_counts;

/*
 * What a worker says to the tool, at file descriptor REPLAY_FD: messages of a head and n_bytes
 * bytes. Both are the same program, so the structures travel as they are.
 */
enum { REPLAY_FD = 3 };
typedef enum replay_kind {
    REPLAY_PROGRESS = 1, /* replay_counts so far */
    REPLAY_NOTE,         /* text: the first wrong byte, the first error */
    REPLAY_LATENCIES,    /* double[], of each acquire in us */
    REPLAY_END,          /* replay_counts: all requests are done */
    REPLAY_GAVE_UP,      /* text: why it could not go on; its exit code says the rest */
} replay_kind;
typedef struct replay_head {
    uint32_t kind;
    uint32_t n_bytes;
} replay_head;

/* What the workers did. */
typedef struct replay_result {
    replay_counts counts; /* of all */
    double *latencies_us; /* sorted; freed by who has it */
    size_t n_latencies;
    double seconds;
    int on_gpu; /* the arena was: then the workers, whose KV is in host memory, read copies */
} replay_result;

/* Runs the workers to their end. daemon NULL: it is somebody else's. Exit code; messages are
 * printed. possible: for the progress that is shown. */
int replay_crew(const replay_options *options, const reuse_counts *possible, tool_daemon *daemon,
                replay_result *ret_result);

/* Prints the result. max_pages 0: not known, the daemon is somebody else's. */
void replay_report(const replay_options *options, const reuse_counts *possible, uint64_t max_pages,
                   const replay_result *result);

#endif
