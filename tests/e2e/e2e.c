#include "tests/e2e/e2e.h"
#include "tests/e2e/gpu.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HANG_S = 60 };

/* --- the daemon ---------------------------------------------------------------------------------
 */

static void build_path(char *to, size_t room, const char *name) {
    const char *build = getenv("KVT_BUILD_DIR");
    snprintf(to, room, "%s/%s", build ? build : "build", name);
}

int e2e_on_gpu(void) {
    const char *device = getenv("KVT_TEST_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

/* The module for daemon and workers: the one that is named, or the one on the stand-in. */
static void choose_module(void) {
    char module[512];
    build_path(module, sizeof module, "tests/cuda/libkvtrunk-cuda-fake.so");
    if (e2e_on_gpu())
        setenv("KVTRUNK_CUDA", module, 0);
}

/* Whoever ends in order has given back what it took of the GPU; with other processes' memory it is
 * another matter, which lasts as long as the process. */
static void check_leaks(const e2e_daemon *d) {
    char command[512];
    if (!e2e_on_gpu() || getenv("KVT_TEST_CUDART"))
        return;
    snprintf(command, sizeof command, "if [ -e '%s/leaks' ]; then cat '%s/leaks' >&2; exit 1; fi",
             d->folder, d->folder);
    CHECK(system(command) == 0);
    unsigned (*live)(void), (*exported)(void);
    *(void **)(void *)&live = gpu_symbol("fake_cuda_live");
    *(void **)(void *)&exported = gpu_symbol("fake_cuda_exported");
    CHECK_EQ(live(), exported());
}

void e2e_start(e2e_daemon *d, const char *const *settings) {
    char program[512], ready[16], *argv[64];
    char args[24][96];
    const char *log = NULL;
    int n = 0, pipe_fd[2];
    if (!d->folder[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(d->folder, sizeof d->folder, "%.60s/kvtrunk-e2e-XXXXXX", tmp ? tmp : "/tmp");
        CHECK(mkdtemp(d->folder));
        snprintf(d->socket, sizeof d->socket, "%s/socket", d->folder);
        snprintf(program, sizeof program, "%s/leaks", d->folder);
        setenv("KVT_FAKE_CUDA_LEAKS", program, 1);
    }
    build_path(program, sizeof program, "daemon/kvtrunkd");
    CHECK(pipe(pipe_fd) == 0);
    snprintf(ready, sizeof ready, "%d", pipe_fd[1]);
    argv[n++] = program;
    argv[n++] = (char *)"--socket";
    argv[n++] = d->socket;
    argv[n++] = (char *)"--ready-fd";
    argv[n++] = ready;
    argv[n++] = (char *)"--set";
    argv[n++] = (char *)"audit=true";
    argv[n++] = (char *)"--set";
    argv[n++] = (char *)(e2e_on_gpu() ? "device=cuda" : "device=host");
    choose_module();
    for (int i = 0; settings && settings[i] && i < 24; i++) {
        snprintf(args[i], sizeof args[i], "%s", settings[i]);
        if (strncmp(args[i], "log=", 4) == 0) {
            log = args[i] + 4;
            continue;
        }
        int is_file = strncmp(args[i], "config=", 7) == 0;
        argv[n++] = (char *)(is_file ? "--config" : "--set");
        argv[n++] = is_file ? args[i] + 7 : args[i];
    }
    argv[n] = NULL;
    d->pid = fork();
    CHECK(d->pid >= 0);
    if (d->pid == 0) {
        /* A test that fails leaves nothing behind that holds its output open. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pipe_fd[0]);
        if (log && !freopen(log, "a", stderr))
            _exit(127);
        execv(program, argv);
        fprintf(stderr, "cannot run %s\n", program);
        _exit(127);
    }
    close(pipe_fd[1]);
    char line[16] = "";
    ssize_t got = read(pipe_fd[0], line, sizeof line - 1);
    CHECK_MSG(got >= 5 && strncmp(line, "READY", 5) == 0, "%s did not get ready", program);
    close(pipe_fd[0]);
}

int e2e_stop(e2e_daemon *d, int signal_number) {
    int status;
    CHECK(kill(d->pid, signal_number) == 0);
    CHECK(waitpid(d->pid, &status, 0) == d->pid);
    d->pid = 0;
    return status;
}

void e2e_finish(e2e_daemon *d) {
    char command[256];
    int status = e2e_stop(d, SIGTERM);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the daemon ended with status %x",
              (unsigned)status);
    check_leaks(d);
    snprintf(command, sizeof command, "rm -rf '%s'", d->folder);
    CHECK(system(command) == 0);
}

uint64_t e2e_count(const e2e_daemon *d, const char *name) {
    kvt_options options = {.socket = d->socket, .name = "e2e counts", .timeout_ms = 30000};
    kvt_client *client;
    char *json, key[64];
    CHECK_MSG(kvt_open_reports(&options, &client) == KVT_OK, "%s", kvt_last_error());
    CHECK_MSG(kvt_status_json(client, &json) == KVT_OK, "%s", kvt_last_error());
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(json, key);
    CHECK_MSG(at, "no counter %s in %s", name, json);
    uint64_t value = strtoull(at + strlen(key), NULL, 10);
    kvt_free(json);
    kvt_close(client);
    return value;
}

void e2e_await(const e2e_daemon *d, const char *name, uint64_t value) {
    time_t start = time(NULL);
    uint64_t now;
    while ((now = e2e_count(d, name)) != value)
        CHECK_MSG(time(NULL) - start < HANG_S, "%s stays %llu, expected %llu", name,
                  (unsigned long long)now, (unsigned long long)value);
}

/* A page that a job is at counts as dirty again if the job could not do it. */
void e2e_await_disk(const e2e_daemon *d) {
    do {
        e2e_await(d, "pages_dirty", 0);
        e2e_await(d, "jobs", 0);
    } while (e2e_count(d, "pages_dirty") > 0);
}

void e2e_disk_make(e2e_disk *ret_disk) {
    snprintf(ret_disk->folder, sizeof ret_disk->folder, "/tmp/kvtrunk-e2e-disk-XXXXXX");
    CHECK(mkdtemp(ret_disk->folder));
    snprintf(ret_disk->setting, sizeof ret_disk->setting, "disk_dir=%s", ret_disk->folder);
}

void e2e_disk_remove(const e2e_disk *disk) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", disk->folder);
    CHECK(system(command) == 0);
}

/* --- a worker -----------------------------------------------------------------------------------
 */

void e2e_realm(kvt_realm *ret_realm) {
    kvt_geometry geometry;
    kvt_geometry_init(&geometry, E2E_LAYERS, 2, 32, E2E_PAGE_TOKENS);
    *ret_realm = (kvt_realm){.model = "end to end", .engine = "test", .geometry = geometry};
}

void e2e_worker_open(e2e_worker *w, const e2e_daemon *d, uint64_t seed, uint32_t timeout_ms) {
    e2e_worker_open_for(w, d, seed, timeout_ms, E2E_MAX_TOKENS);
}

void e2e_worker_prepare(e2e_worker *w, uint64_t seed, uint32_t max_tokens) {
    memset(w, 0, sizeof *w);
    w->part_bytes = (size_t)E2E_PART_BYTES / E2E_MAX_TOKENS * max_tokens;
    w->row_hashes = calloc(max_tokens, sizeof *w->row_hashes);
    CHECK(w->row_hashes);
    w->random = seed * 0x9e3779b97f4a7c15u + 1;
    e2e_realm(&w->realm);
    oracle_init(&w->realm, &w->oracle);
    for (int p = 0; p < 2; p++) {
        w->part[p] = calloc(1, w->part_bytes);
        CHECK(w->part[p]);
        if (e2e_on_gpu() && seed % 2)
            w->gpu_part[p] = gpu_memory(w->part_bytes);
    }
    if (w->gpu_part[0])
        w->stream = gpu_stream();
}

void e2e_worker_open_for(e2e_worker *w, const e2e_daemon *d, uint64_t seed, uint32_t timeout_ms,
                         uint32_t max_tokens) {
    e2e_worker_prepare(w, seed, max_tokens);
    kvt_options options = {.socket = d->socket, .timeout_ms = timeout_ms};
    CHECK_MSG(kvt_open(&options, &w->realm, &w->client) == KVT_OK, "%s", kvt_last_error());
}

void e2e_worker_close(e2e_worker *w) {
    kvt_close(w->client);
    for (int p = 0; p < 2; p++) {
        free(w->part[p]);
        if (w->gpu_part[p])
            gpu_free(w->gpu_part[p]);
    }
    free(w->row_hashes);
    if (w->stream)
        gpu_stream_free(w->stream);
}

void e2e_path(uint32_t which, uint32_t *tokens) {
    for (uint32_t i = 0; i < E2E_MAX_TOKENS; i++)
        tokens[i] = 100000 * which + i;
}

uint32_t e2e_held(e2e_worker *w, const uint32_t *tokens, size_t n_tokens) {
    kvt_lease *lease;
    kvt_lease_info info;
    CHECK_EQ(kvt_acquire(w->client, tokens, n_tokens, 0, &lease), KVT_OK);
    kvt_lease_get(lease, &info);
    CHECK_EQ(e2e_read(w, lease, tokens), KVT_OK);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    return info.held_tokens;
}

size_t e2e_prompt(uint64_t *random, uint32_t *tokens) {
    uint32_t doc = check_below(random, 4), n = 1 + check_below(random, 300);
    uint32_t common = check_below(random, n + 1);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i < common ? i * 7 + doc : check_below(random, 3);
    return n;
}

static kvt_layout on_gpu(const e2e_worker *w, const kvt_layout *layout) {
    kvt_layout moved = *layout;
    moved.part[0] = w->gpu_part[0];
    moved.part[1] = w->gpu_part[1];
    return moved;
}

/* Layer by layer, as a worker that computes behind each would; only then is it waited for. */
static kvt_status read_by_gpu(e2e_worker *w, kvt_lease *lease, uint32_t n,
                              const kvt_layout *layout) {
    kvt_layout to = on_gpu(w, layout);
    for (uint32_t l = 0; l < E2E_LAYERS; l++) {
        kvt_status status = kvt_decode_device(lease, 0, n, l, 1, &to, NULL, w->stream);
        if (status != KVT_OK)
            return status;
        for (int p = 0; p < 2; p++)
            to.part[p] = (char *)to.part[p] + to.layer_stride_bytes[p];
    }
    kvt_status status = kvt_sync(lease);
    for (int p = 0; p < 2 && status == KVT_OK; p++)
        gpu_get(w->part[p], w->gpu_part[p], w->part_bytes);
    return status;
}

/* The page's KV stands on the GPU only in the stream's order. */
static kvt_status encode_by_gpu(e2e_worker *w, kvt_lease *lease, size_t page,
                                const kvt_layout *layout) {
    kvt_layout from = on_gpu(w, layout);
    for (int p = 0; p < 2; p++)
        gpu_put(w->gpu_part[p], w->part[p], w->part_bytes);
    kvt_status status = kvt_encode_device(lease, page, 1, &from, NULL, w->stream);
    for (int p = 0; p < 2 && status == KVT_OK; p++) /* comes behind the encoding */
        gpu_set(w->gpu_part[p], 0x5a, w->part_bytes, w->stream);
    /* The next page is put there by another stream: the worker has to wait for this one itself. */
    if (status == KVT_OK)
        GPU_CALL("cudaStreamSynchronize", (void *), w->stream);
    return status;
}

static kvt_status encode_page(e2e_worker *w, kvt_lease *lease, size_t page,
                              const kvt_layout *layout) {
    return w->stream ? encode_by_gpu(w, lease, page, layout) : kvt_encode(lease, page, layout);
}

kvt_status e2e_read(e2e_worker *w, kvt_lease *lease, const uint32_t *tokens) {
    kvt_lease_info info;
    kvt_layout layout;
    kvt_lease_get(lease, &info);
    kvt_layout_token_major(&w->realm.geometry, info.held_tokens, w->part[0], w->part[1], &layout);
    kvt_status status = w->stream ? read_by_gpu(w, lease, info.held_tokens, &layout)
                                  : kvt_decode(lease, 0, info.held_tokens, 0, E2E_LAYERS, &layout);
    if (status != KVT_OK)
        return status;
    oracle_rows(&w->oracle, tokens, info.held_tokens, w->row_hashes);
    uint64_t wrong =
        oracle_check(&w->oracle, w->row_hashes, info.held_tokens, 0, E2E_LAYERS, &layout);
    w->wrong_bytes += wrong;
    w->served += info.held_tokens;
    CHECK_MSG(wrong == 0, "%llu wrong bytes in %u held tokens", (unsigned long long)wrong,
              info.held_tokens);
    return KVT_OK;
}

kvt_status e2e_fill(e2e_worker *w, kvt_lease *lease, const uint32_t *tokens, size_t max_pages) {
    kvt_lease_info info;
    kvt_layout layout;
    kvt_lease_get(lease, &info);
    size_t first = info.held_tokens / E2E_PAGE_TOKENS;
    size_t last = (info.claimed_tokens + E2E_PAGE_TOKENS - 1) / E2E_PAGE_TOKENS;
    if (info.claimed_tokens <= info.held_tokens)
        return KVT_OK;
    oracle_rows(&w->oracle, tokens, info.claimed_tokens, w->row_hashes);
    for (size_t page = first; page < last && page - first < max_pages; page++) {
        size_t at = page * E2E_PAGE_TOKENS;
        size_t rows = info.claimed_tokens - at;
        rows = rows < E2E_PAGE_TOKENS ? rows : E2E_PAGE_TOKENS;
        kvt_layout_token_major(&w->realm.geometry, E2E_PAGE_TOKENS, w->part[0], w->part[1],
                               &layout);
        oracle_fill(&w->oracle, w->row_hashes + at, rows, 0, E2E_LAYERS, &layout);
        kvt_status status = encode_page(w, lease, page, &layout);
        if (status == KVT_EFULL) { /* staging: seal what is there, then again */
            status = kvt_seal(lease, NULL);
            if (status == KVT_OK)
                status = encode_page(w, lease, page, &layout);
        }
        if (status != KVT_OK)
            return status;
        w->sealed++;
    }
    return kvt_seal(lease, NULL);
}

kvt_lease *e2e_filled(e2e_worker *w, uint32_t *tokens, uint32_t n, uint32_t first) {
    kvt_lease *lease;
    for (uint32_t t = 0; t < n; t++)
        tokens[t] = first + t;
    CHECK_EQ(kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease), KVT_OK);
    CHECK_EQ(e2e_fill(w, lease, tokens, SIZE_MAX), KVT_OK);
    return lease;
}

void e2e_request(e2e_worker *w) {
    uint32_t tokens[E2E_MAX_TOKENS];
    size_t n = e2e_prompt(&w->random, tokens);
    kvt_lease *lease;
    kvt_status status = kvt_acquire(w->client, tokens, n, KVT_CLAIM, &lease);
    if (status != KVT_OK) {
        w->failed[status]++;
        return;
    }
    status = e2e_read(w, lease, tokens);
    if (status == KVT_OK)
        status = e2e_fill(w, lease, tokens, SIZE_MAX);
    if (status == KVT_OK)
        status = e2e_read(w, lease, tokens);
    if (status != KVT_OK)
        w->failed[status]++;
    kvt_status end = kvt_release(lease);
    if (end != KVT_OK && status == KVT_OK)
        w->failed[end]++;
}

/* --- child processes ----------------------------------------------------------------------------
 */

int e2e_child_main(int argc, char **argv, const e2e_jobs *jobs) {
    if (argc < 5 || strcmp(argv[1], "--child") != 0)
        return -1;
    e2e_daemon d = {0};
    choose_module();
    snprintf(d.socket, sizeof d.socket, "%s", argv[3]);
    for (; jobs->name; jobs++)
        if (strcmp(jobs->name, argv[2]) == 0)
            return jobs->job(&d, strtoull(argv[4], NULL, 10));
    return 99;
}

e2e_child e2e_spawn(const e2e_daemon *d, const char *job, uint64_t seed) {
    int up[2], down[2];
    char number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
    CHECK(pipe2(up, O_CLOEXEC) == 0 && pipe2(down, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* Out of the way first: 3 and 4 may be among the four. */
        int out = fcntl(up[1], F_DUPFD, 10), in = fcntl(down[0], F_DUPFD, 10);
        dup2(out, 3);
        dup2(in, 4);
        close(out);
        close(in);
        execl("/proc/self/exe", "e2e", "--child", job, d->socket, number, (char *)NULL);
        _exit(127);
    }
    close(up[1]);
    close(down[0]);
    return (e2e_child){.pid = pid, .from = up[0], .to = down[1]};
}

static char hear(int fd) {
    char byte;
    return read(fd, &byte, 1) == 1 ? byte : 0;
}

void e2e_say(char byte) {
    if (write(3, &byte, 1) != 1)
        _exit(98); /* the test is gone */
}

char e2e_hear(void) {
    return hear(4);
}

char e2e_child_hear(const e2e_child *child) {
    return hear(child->from);
}

void e2e_child_say(const e2e_child *child, char byte) {
    CHECK(write(child->to, &byte, 1) == 1);
}

char e2e_child_ask(const e2e_child *child, char byte) {
    e2e_child_say(child, byte);
    return e2e_child_hear(child);
}

int e2e_child_end(e2e_child *child) {
    int status;
    close(child->to);
    close(child->from);
    CHECK(waitpid(child->pid, &status, 0) == child->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
