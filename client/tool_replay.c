/*
 * tool_replay.c - kvtrunk replay: reads the trace once to know what was possible, starts a daemon
 * if none was named, lets worker processes do the requests at once (tool_worker.c), shows how far
 * they are, and adds up what they say.
 */
#include "client/oracle.h"
#include "client/reuse.h"
#include "client/tool.h"
#include "client/trace.h"
#include "kernels/page.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORKERS = 256 };

typedef struct child {
    pid_t pid;
    int fd;
    int ended; /* said REPLAY_END */
    replay_counts counts;
} child;

typedef struct replay {
    replay_options options;
    reuse_counts possible;
    uint64_t max_pages; /* of the private daemon */
    child children[MAX_WORKERS];
    double *latencies; /* us, of all workers */
    size_t n_latencies;
    double seconds;
    int tty;
    double shown; /* when progress was last shown */
} replay;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

kvt_status replay_realm(const replay_options *o, char *why, size_t why_bytes,
                        kvt_realm *ret_realm) {
    kvt_geometry g;
    kvt_page_shape shape;
    kvt_geometry_init(&g, (uint32_t)o->layers, (uint32_t)o->heads, (uint32_t)o->head_dim,
                      (uint32_t)o->page_tokens);
    g.dtype = strcmp(o->dtype, "bf16") == 0 ? KVT_BF16 : KVT_F16;
    kvt_status status = kvt_geometry_check(&g, why, why_bytes);
    if (status == KVT_OK)
        status = kvt_page_shape_init(&g, 0, o->codec, why, why_bytes, &shape);
    if (status == KVT_OK)
        *ret_realm =
            (kvt_realm){.model = "replay", .engine = "oracle", .codec = o->codec, .geometry = g};
    return status;
}

/* --- what the trace has to offer -----------------------------------------------------------------
 */

static kvt_status count_trace(replay *r, trace *t, const trace_info *info, const oracle *rows_of) {
    reuse *counter;
    trace_request request;
    uint32_t step = info->kind == TRACE_PCT1 ? info->block_tokens : 1;
    uint64_t *rows = malloc(KVT_MAX_REQUEST_TOKENS * sizeof *rows);
    kvt_status status =
        rows ? reuse_open(step, (uint32_t)r->options.page_tokens, &counter) : KVT_ENOMEM;
    if (status != KVT_OK) {
        free(rows);
        return status;
    }
    for (uint64_t i = 0; !r->options.n_requests || i < r->options.n_requests; i++) {
        status = trace_next(t, &request);
        if (status != KVT_OK)
            break;
        oracle_rows(rows_of, request.tokens, request.n_tokens, rows);
        status = reuse_add(counter, rows, request.n_tokens);
        if (status != KVT_OK)
            break;
    }
    reuse_get(counter, &r->possible);
    reuse_close(counter);
    free(rows);
    return status == KVT_ENOENT ? KVT_OK : status;
}

static int look_at_trace(replay *r) {
    char why[256] = "";
    trace *t;
    trace_info info;
    kvt_realm realm;
    oracle o;
    replay_options *options = &r->options;
    kvt_status status = trace_open(options->trace, why, sizeof why, &t);
    if (status != KVT_OK)
        return tool_fail(TOOL_BAD_INPUT, "%s", why);
    trace_info_get(t, &info);
    if (!options->page_tokens) {
        options->page_tokens = 64;
        while (info.kind == TRACE_PCT1 && options->page_tokens > 16 &&
               info.block_tokens % options->page_tokens)
            options->page_tokens /= 2;
    }
    status = replay_realm(options, why, sizeof why, &realm);
    if (status != KVT_OK) {
        trace_close(t);
        return tool_fail(TOOL_USAGE, "%s", why);
    }
    oracle_init(&realm, &o);
    status = count_trace(r, t, &info, &o);
    int code = status == KVT_OK
                   ? TOOL_OK
                   : tool_fail(tool_code(status) == TOOL_USAGE ? TOOL_BAD_INPUT : tool_code(status),
                               "%s: %s", options->trace,
                               trace_why(t)[0] ? trace_why(t) : kvt_status_text(status));
    trace_close(t);
    return code;
}

/* --- the private daemon --------------------------------------------------------------------------
 */

static int take_capacity(replay *r) {
    const char *text = r->options.capacity;
    char *end;
    if (!text) {
        r->max_pages = r->possible.unique_pages + 65536;
        return TOOL_OK;
    }
    double n = strtod(text, &end);
    if (*text < '0' || *text > '9' || (*end && strcmp(end, "%") != 0) || n <= 0 || n > 1e9 ||
        (*end == '%' && n > 1000))
        return tool_fail(TOOL_USAGE,
                         "--capacity %s: a number of pages, or a part of the trace's different "
                         "pages such as 10%%, is needed",
                         text);
    r->max_pages =
        *end == '%' ? (uint64_t)(n / 100 * (double)r->possible.unique_pages + .5) : (uint64_t)n;
    if (r->max_pages < 1)
        r->max_pages = 1;
    return TOOL_OK;
}

static int start_daemon(replay *r, tool_daemon *d) {
    kvt_realm realm;
    kvt_page_shape shape;
    char why[256] = "";
    int code = take_capacity(r);
    if (code != TOOL_OK)
        return code;
    kvt_status status = replay_realm(&r->options, why, sizeof why, &realm);
    if (status == KVT_OK)
        status = kvt_page_shape_init(&realm.geometry, 0, realm.codec, why, sizeof why, &shape);
    if (status != KVT_OK)
        return tool_fail(TOOL_USAGE, "%s", why);
    /* Frames never are what is short: pages are what --capacity counts. */
    uint64_t page_bytes = kvt_page_max_bytes(&shape);
    uint64_t unit = UINT64_C(1) << 20;
    uint64_t arena = (r->max_pages * page_bytes / 100 * 106 / unit + 8) * unit;
    code = tool_daemon_start(r->max_pages, arena, (uint32_t)r->options.page_tokens, d);
    r->options.socket = d->socket;
    return code;
}

/* --- workers -------------------------------------------------------------------------------------
 */

static int spawn(const replay *r, uint64_t index, child *ret_child) {
    const replay_options *o = &r->options;
    int fds[2];
    char args[10][48], *argv[32];
    int n = 0;
    const char *fixed[] = {"kvtrunk", "replay-worker", "--trace", o->trace,  "--connect",
                           o->socket, "--codec",       o->codec,  "--dtype", o->dtype};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = (char *)fixed[i];
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"index", index},
                   {"workers", o->n_workers},
                   {"requests", o->n_requests},
                   {"layers", o->layers},
                   {"heads", o->heads},
                   {"head-dim", o->head_dim},
                   {"page-tokens", o->page_tokens},
                   {"wait", o->wait_ms},
                   {"timeout", o->timeout_ms}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(args[i], sizeof args[i], "--%s=%llu", numbers[i].name,
                 (unsigned long long)numbers[i].value);
        argv[n++] = args[i];
    }
    argv[n] = NULL;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return tool_fail(TOOL_SYSTEM, "pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        if (fds[1] == REPLAY_FD)
            fcntl(fds[1], F_SETFD, 0);
        else
            dup2(fds[1], REPLAY_FD);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return tool_fail(TOOL_SYSTEM, "fork: %s", strerror(errno));
    }
    *ret_child = (child){.pid = pid, .fd = fds[0]};
    return TOOL_OK;
}

static int read_all(int fd, void *to, size_t n) {
    for (char *at = to; n;) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        at += got;
        n -= (size_t)got;
    }
    return 1;
}

/* Takes one message of a worker; 0: it has ended. */
static int hear(replay *r, child *c) {
    uint32_t head[2];
    if (!read_all(c->fd, head, sizeof head))
        return 0;
    if (head[0] == REPLAY_LATENCY) {
        size_t n = head[1] / sizeof(double);
        double *more = realloc(r->latencies, (r->n_latencies + n + 1) * sizeof *more);
        if (!more)
            return 0;
        r->latencies = more;
        r->n_latencies += n;
        return read_all(c->fd, r->latencies + r->n_latencies - n, n * sizeof *more);
    }
    if (head[1] != sizeof c->counts || !read_all(c->fd, &c->counts, sizeof c->counts))
        return 0;
    c->ended = head[0] == REPLAY_END;
    return 1;
}

static replay_counts sum_counts(const replay *r) {
    replay_counts sum = {0};
    for (uint64_t i = 0; i < r->options.n_workers; i++) {
        const replay_counts *c = &r->children[i].counts;
        sum.requests += c->requests;
        sum.tokens_asked += c->tokens_asked;
        sum.tokens_served += c->tokens_served;
        sum.wrong_bytes += c->wrong_bytes;
        sum.bytes_read += c->bytes_read;
        sum.pages_sealed += c->pages_sealed;
        sum.pages_shared += c->pages_shared;
        for (int k = 0; k < KVT_N_STATUS; k++)
            sum.errors[k] += c->errors[k];
    }
    return sum;
}

static void show_progress(replay *r) {
    double now = now_s();
    if (r->options.json || now - r->shown < (r->tty ? .2 : 5))
        return;
    r->shown = now;
    replay_counts sum = sum_counts(r);
    fprintf(stderr, "%s%s of %s requests, %s tokens asked, %s served, %s wrong bytes%s",
            r->tty ? "\r\033[K" : "", tool_number(sum.requests), tool_number(r->possible.requests),
            tool_number(sum.tokens_asked), tool_number(sum.tokens_served),
            tool_number(sum.wrong_bytes), r->tty ? "" : "\n");
}

static int wait_for_children(replay *r) {
    struct pollfd fds[MAX_WORKERS];
    uint64_t n = r->options.n_workers, n_open = n;
    int code = TOOL_OK;
    for (uint64_t i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = r->children[i].fd, .events = POLLIN};
    while (n_open > 0) {
        if (poll(fds, (nfds_t)n, 1000) < 0 && errno != EINTR)
            return tool_fail(TOOL_SYSTEM, "poll: %s", strerror(errno));
        for (uint64_t i = 0; i < n; i++)
            if (fds[i].fd >= 0 && fds[i].revents && !hear(r, &r->children[i])) {
                fds[i].fd = -1;
                n_open--;
            }
        show_progress(r);
    }
    if (r->tty)
        fprintf(stderr, "\r\033[K");
    for (uint64_t i = 0; i < n; i++) {
        int status;
        close(r->children[i].fd);
        waitpid(r->children[i].pid, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
            code = WEXITSTATUS(status); /* it has said why */
        else if (!WIFEXITED(status) || !r->children[i].ended)
            code = tool_fail(TOOL_FAILED, "worker %llu died", (unsigned long long)i);
    }
    return code;
}

static int run_workers(replay *r) {
    double start = now_s();
    int code = TOOL_OK;
    for (uint64_t i = 0; i < r->options.n_workers && code == TOOL_OK; i++) {
        code = spawn(r, i, &r->children[i]);
        if (code != TOOL_OK)
            r->options.n_workers = i;
    }
    int end = wait_for_children(r);
    r->seconds = now_s() - start;
    return code == TOOL_OK ? end : code;
}

/* --- the report ----------------------------------------------------------------------------------
 */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const replay *r, double percent) {
    if (!r->n_latencies)
        return 0;
    return r->latencies[(size_t)((double)(r->n_latencies - 1) * percent / 100 + .5)];
}

static void print_json(const replay *r, const replay_counts *c) {
    printf("{\"requests\":%llu,\"tokens_asked\":%llu,\"tokens_served\":%llu,\"tokens_best\":%llu,"
           "\"wrong_bytes\":%llu,\"pages_shared\":%llu,\"pages_sealed\":%llu,\"bytes_read\":%llu,"
           "\"unique_pages\":%llu,\"max_pages\":%llu,\"page_tokens\":%llu,\"workers\":%llu,"
           "\"acquire_us\":{\"p50\":%.1f,\"p99\":%.1f},\"seconds\":%.3f,\"errors\":{",
           (unsigned long long)c->requests, (unsigned long long)c->tokens_asked,
           (unsigned long long)c->tokens_served, (unsigned long long)r->possible.tokens_best,
           (unsigned long long)c->wrong_bytes, (unsigned long long)c->pages_shared,
           (unsigned long long)c->pages_sealed, (unsigned long long)c->bytes_read,
           (unsigned long long)r->possible.unique_pages, (unsigned long long)r->max_pages,
           (unsigned long long)r->options.page_tokens, (unsigned long long)r->options.n_workers,
           percentile(r, 50), percentile(r, 99), r->seconds);
    const char *comma = "";
    for (int i = 0; i < KVT_N_STATUS; i++)
        if (c->errors[i]) {
            printf("%s\"%s\":%llu", comma, kvt_status_name((kvt_status)i),
                   (unsigned long long)c->errors[i]);
            comma = ",";
        }
    printf("}}\n");
}

static double share(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void print_table(const replay *r, const replay_counts *c) {
    printf("requests                 %16s   by %llu worker%s in %.1f s\n", tool_number(c->requests),
           (unsigned long long)r->options.n_workers, r->options.n_workers == 1 ? "" : "s",
           r->seconds);
    printf("tokens asked for         %16s\n", tool_number(c->tokens_asked));
    printf("tokens served            %16s   %.1f %% of them\n", tool_number(c->tokens_served),
           share(c->tokens_served, c->tokens_asked));
    printf("  the best possible      %16s   %.1f %% (one after another, room for all)\n",
           tool_number(r->possible.tokens_best),
           share(r->possible.tokens_best, r->possible.tokens));
    printf("pages sealed             %16s   of %llu tokens each\n", tool_number(c->pages_sealed),
           (unsigned long long)r->options.page_tokens);
    printf("pages shared             %16s   served to a process that did not seal them\n",
           tool_number(c->pages_shared));
    printf("bytes read without copy  %16s   decoded from the mapped arena\n",
           tool_number(c->bytes_read));
    printf("acquire                  %13.0f us   median; 99 %% within %.0f us\n", percentile(r, 50),
           percentile(r, 99));
    for (int i = 0; i < KVT_N_STATUS; i++)
        if (c->errors[i])
            printf("%-24s %16s   %s\n", kvt_status_name((kvt_status)i), tool_number(c->errors[i]),
                   kvt_status_text((kvt_status)i));
    printf("wrong bytes              %16s   every byte read was checked\n",
           tool_number(c->wrong_bytes));
}

static int report(replay *r) {
    replay_counts sum = sum_counts(r);
    if (r->n_latencies)
        qsort(r->latencies, r->n_latencies, sizeof *r->latencies, compare);
    if (r->options.json)
        print_json(r, &sum);
    else
        print_table(r, &sum);
    return sum.wrong_bytes ? TOOL_FAILED : TOOL_OK;
}

/* --- the command ---------------------------------------------------------------------------------
 */

static int read_options(int argc, char **argv, replay_options *o) {
    const tool_option options[] = {
        {.name = "workers", .number = &o->n_workers, .low = 1, .high = MAX_WORKERS},
        {.name = "requests", .number = &o->n_requests, .low = 1, .high = 1000000000},
        {.name = "capacity", .text = &o->capacity},
        {.name = "connect", .text = &o->socket},
        {.name = "wait", .number = &o->wait_ms, .high = 3600000},
        {.name = "timeout", .number = &o->timeout_ms, .low = 1, .high = 3600000},
        {.name = "layers", .number = &o->layers, .low = 1, .high = KVT_MAX_LAYERS},
        {.name = "heads", .number = &o->heads, .low = 1, .high = KVT_MAX_HEADS},
        {.name = "head-dim", .number = &o->head_dim, .low = 2, .high = KVT_MAX_HEAD_DIM},
        {.name = "page-tokens", .number = &o->page_tokens, .low = 16, .high = 128},
        {.name = "dtype", .text = &o->dtype},
        {.name = "codec", .text = &o->codec},
        {.name = "json", .flag = &o->json},
        {0}};
    int n = 0, code = tool_options(argc, argv, options, &o->trace, 1, &n);
    if (code != TOOL_OK)
        return code;
    if (n == 0)
        return tool_fail(TOOL_USAGE, "replay needs a trace; see kvtrunk --help");
    if (o->capacity && o->socket)
        return tool_fail(TOOL_USAGE, "--capacity is of a daemon that replay starts itself; with "
                                     "--connect the daemon has its own");
    if (strcmp(o->dtype, "f16") != 0 && strcmp(o->dtype, "bf16") != 0)
        return tool_fail(TOOL_USAGE, "--dtype %s: f16 or bf16 is needed", o->dtype);
    return TOOL_OK;
}

int tool_replay(int argc, char **argv) {
    static replay r;
    tool_daemon d = {0};
    r.options = (replay_options){.n_workers = 1,
                                 .layers = 1,
                                 .heads = 1,
                                 .head_dim = 4,
                                 .codec = "f16",
                                 .dtype = "f16",
                                 .timeout_ms = 20000};
    r.tty = isatty(STDERR_FILENO);
    int code = read_options(argc, argv, &r.options);
    int private_daemon = r.options.socket == NULL;
    if (code == TOOL_OK)
        code = look_at_trace(&r);
    if (code == TOOL_OK && private_daemon)
        code = start_daemon(&r, &d);
    if (code != TOOL_OK)
        return code;
    code = run_workers(&r);
    if (private_daemon) {
        int end = tool_daemon_stop(&d);
        code = code == TOOL_OK ? end : code;
    }
    if (code == TOOL_OK)
        code = report(&r);
    free(r.latencies);
    return code;
}
