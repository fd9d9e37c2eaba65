/*
 * Two processes and one device: pages that one encodes are decoded by the other, ordered by an
 * event that both know; and what happens when the first one dies. The program starts itself anew
 * for each process, since nothing of CUDA survives a fork. On a GPU it runs as it is.
 *
 * Children: "import" reads handles from descriptor 3; "export" writes them to descriptor 4, then
 * waits until descriptor 3 is closed; "free_early" frees what its reader has open.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/kit.h"
#ifndef KVT_REAL_CUDA
#include "tests/cuda/fake_cuda.h"
#endif

enum { N_PAGES = 2, TOKENS = 16, SEED = 7, DEATH_S = 20, SHARED_BYTES = 2 << 20 };

typedef struct message {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
} message;

/* The same numbers in both processes. */
typedef struct world {
    kvt_page_shape shape;
    kv_kit kit;
    size_t page_bytes;
    cudaStream_t stream;
} world;

static void world_open(world *w) {
    kvt_geometry g;
    kvt_geometry_init(&g, 2, 1, 64, TOKENS);
    CHECK(kvt_page_shape_init(&g, 0, "k8v4", NULL, 0, &w->shape) == KVT_OK);
    w->kit = kv_new(&g, g.n_layers, N_PAGES * TOKENS, KV_TOKEN_MAJOR);
    uint64_t seed = SEED;
    kit_fill(&w->kit, KIT_CHANNELS, &seed);
    w->page_bytes = kvt_page_max_bytes(&w->shape);
    CUDA(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
}

static void write_all(int fd, const void *bytes, size_t n) {
    CHECK(write(fd, bytes, n) == (ssize_t)n);
}

static void read_all(int fd, void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)bytes + done, n - done);
        CHECK(got > 0);
        done += (size_t)got;
    }
}

/* ------------------------------------------------------------------------------------------------
 * The exporter
 * ---------------------------------------------------------------------------------------------- */

typedef struct export {
    uint8_t *pages;
    cudaEvent_t event;
    kvt_cuda_result *results;
    void *workspace;
    kvt_layout kv;
    kvt_cuda_write *writes;
}
export;

/* Puts all the work into the stream and waits for none of it. */
static void export_pages(world *w, export *e, message *ret_message) {
    e->pages = device_new(SHARED_BYTES); /* what is shared is a whole block */
    CHECK(N_PAGES * w->page_bytes <= SHARED_BYTES);
    e->workspace = device_new(kvt_cuda_workspace_bytes(&w->shape, N_PAGES));
    e->kv = device_kv_of(&w->kit);
    e->writes = pinned_new(N_PAGES * sizeof *e->writes);
    e->results = pinned_new(N_PAGES * sizeof *e->results);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        kvt_cuda_write write = {.page = e->pages + i * w->page_bytes,
                                .room_bytes = w->page_bytes,
                                .token = i * TOKENS,
                                .rows = TOKENS};
        e->writes[i] = write;
    }
    CUDA(cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming | cudaEventInterprocess));
    CUDA(kvt_cuda_encode(&w->shape, e->writes, N_PAGES, &e->kv, e->results, e->workspace,
                         w->stream));
    CUDA(cudaEventRecord(e->event, w->stream));
    CUDA(cudaIpcGetMemHandle(&ret_message->memory, e->pages));
    CUDA(cudaIpcGetEventHandle(&ret_message->event, e->event));
}

static void export_close(world *w, export *e) {
    CUDA(cudaStreamSynchronize(w->stream));
    for (uint32_t i = 0; i < N_PAGES; i++)
        CHECK_EQ(e->results[i].status, KVT_OK);
    CUDA(cudaEventDestroy(e->event));
    CUDA(cudaFree(e->pages));
    CUDA(cudaFree(e->workspace));
    CUDA(cudaFreeHost(e->writes));
    CUDA(cudaFreeHost(e->results));
    device_kv_free(&e->kv);
    CUDA(cudaStreamDestroy(w->stream));
    kv_free(&w->kit);
}

static int child_export(int then_free) {
    world w;
    export e;
    message m;
#ifndef KVT_REAL_CUDA
    if (!then_free)
        fake_cuda_set_delay(3600u * 1000000u,
                            1); /* the event is not come to in this process's life */
#endif
    world_open(&w);
    export_pages(&w, &e, &m);
    write_all(4, &m, sizeof m);
    char byte;
    CHECK(read(3, &byte, 1) >= 0); /* until the parent has mapped it */
    if (then_free)
        CUDA(cudaFree(e.pages));
    return 0;
}

/* ------------------------------------------------------------------------------------------------
 * The importer
 * ---------------------------------------------------------------------------------------------- */

static int child_import(void) {
    world w;
    world_open(&w);
    message m;
    read_all(3, &m, sizeof m);
    void *pages;
    cudaEvent_t event;
    CUDA(cudaIpcOpenMemHandle(&pages, m.memory, cudaIpcMemLazyEnablePeerAccess));
    CUDA(cudaIpcOpenEventHandle(&event, m.event));
    kv_kit got = kv_new(&w.kit.geometry, w.shape.n_layers, N_PAGES * TOKENS, KV_HEAD_MAJOR);
    kv_kit expected = kv_new(&w.kit.geometry, w.shape.n_layers, N_PAGES * TOKENS, KV_HEAD_MAJOR);
    kvt_layout to = device_kv_of(&got);
    kvt_cuda_read *reads = pinned_new(N_PAGES * sizeof *reads);
    kvt_cuda_page *plans = device_new(N_PAGES * sizeof *plans);
    uint32_t *status = pinned_new(sizeof *status);
    *status = KVT_OK;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        kvt_cuda_read read = {(uint8_t *)pages + i * w.page_bytes, w.page_bytes, 0, TOKENS,
                              i * TOKENS};
        reads[i] = read;
    }
    CUDA(cudaStreamWaitEvent(w.stream, event, 0));
    CUDA(kvt_cuda_plan(&w.shape, reads, N_PAGES, plans, status, w.stream));
    CUDA(kvt_cuda_decode(&w.shape, plans, N_PAGES, 0, w.shape.n_layers, &to, w.stream));
    CUDA(cudaStreamSynchronize(w.stream));
    CHECK_EQ(*status, KVT_OK);
    device_kv_read(&to, &got);
    uint8_t *page = page_new(w.page_bytes);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        size_t n_bytes;
        kvt_layout from = w.kit.layout, into = expected.layout;
        for (int p = 0; p < 2; p++) {
            from.part[p] = kv_row(&w.kit, p, 0, 0, i * TOKENS);
            into.part[p] = kv_row(&expected, p, 0, 0, i * TOKENS);
        }
        CHECK(kvt_page_encode(&w.shape, TOKENS, &from, page, w.page_bytes, &n_bytes) == KVT_OK);
        CHECK(kvt_page_decode(&w.shape, page, n_bytes, 0, TOKENS, 0, w.shape.n_layers, &into) ==
              KVT_OK);
    }
    CHECK(kv_equal(&got, 0, 0, &expected, 0, 0, w.shape.n_layers, N_PAGES * TOKENS));
    CUDA(cudaIpcCloseMemHandle(pages));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaFree(plans));
    CUDA(cudaFreeHost(reads));
    CUDA(cudaFreeHost(status));
    CUDA(cudaStreamDestroy(w.stream));
    kv_free(&got);
    kv_free(&expected);
    kv_free(&w.kit);
    free(page);
    return 0;
}

/* ------------------------------------------------------------------------------------------------
 * The parent
 * ---------------------------------------------------------------------------------------------- */

/* Starts the program as a child of that role; *ret_to is its descriptor 3, *ret_from its 4. */
static pid_t start(const char *role, int *ret_to, int *ret_from) {
    int to[2], from[2];
    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int in = fcntl(to[0], F_DUPFD, 10), out = fcntl(from[1], F_DUPFD, 10);
        dup2(in, 3);
        dup2(out, 4);
        close(in);
        close(out);
        execl("/proc/self/exe", "test_ipc", role, (char *)0);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    *ret_to = to[1];
    *ret_from = from[0];
    return child;
}

static int end_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* Exporter here, importer there. The exporter waits only after the importer is done. */
static void test_decode_elsewhere(void) {
    world w;
    export e;
    message m;
    int to, from;
    pid_t child = start("import", &to, &from);
    world_open(&w);
#ifndef KVT_REAL_CUDA
    fake_cuda_set_delay(3000000, 1); /* an importer that does not wait for it is there before */
#endif
    export_pages(&w, &e, &m);
    write_all(to, &m, sizeof m);
    CHECK_EQ(end_of(child), 0);
    close(to);
    close(from);
    export_close(&w, &e);
}

/* The exporter is killed. Nobody waits for ever; what was not opened before cannot be opened. In a
 * process of its own, since the error stays. */
static int child_outlive(void) {
    message m;
    int to, from;
    pid_t child = start("export", &to, &from);
    read_all(from, &m, sizeof m);
    void *pages;
    cudaEvent_t event;
    cudaStream_t stream;
    uint8_t *bytes = pinned_new(64);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaIpcOpenMemHandle(&pages, m.memory, cudaIpcMemLazyEnablePeerAccess));
    CUDA(cudaIpcOpenEventHandle(&event, m.event));
    kill(child, SIGKILL);
    CHECK(WIFSIGNALED(end_of(child)));
    void *again = NULL;
    cudaError_t opened = cudaIpcOpenMemHandle(&again, m.memory, cudaIpcMemLazyEnablePeerAccess);
    alarm(DEATH_S); /* a limit against hanging */
    CUDA(cudaStreamWaitEvent(stream, event, 0));
    cudaMemcpyAsync(bytes, pages, 64, cudaMemcpyDeviceToHost, stream);
    cudaError_t waited = cudaStreamSynchronize(stream);
    printf("exporter killed: opening its memory gives %s, waiting for its event %s\n",
           cudaGetErrorName(opened), cudaGetErrorName(waited));
#ifndef KVT_REAL_CUDA
    CHECK_EQ(opened, cudaErrorMapBufferObjectFailed);
    CHECK_EQ(waited, cudaErrorLaunchFailure);
    CHECK_EQ(cudaEventQuery(event), cudaErrorLaunchFailure);
#endif
    return 0;
}

/* Memory is freed while another process has it open: the fake calls that a fault. */
static void test_free_early(void) {
    int to, from;
    message m;
    pid_t child = start("free_early", &to, &from);
    read_all(from, &m, sizeof m);
    void *pages;
    CUDA(cudaIpcOpenMemHandle(&pages, m.memory, cudaIpcMemLazyEnablePeerAccess));
    close(to);
    int status = end_of(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CUDA(cudaIpcCloseMemHandle(pages));
    close(from);
}

int main(int argc, char **argv) {
    const char *role = argc > 1 ? argv[1] : "";
    if (strcmp(role, "import") == 0)
        return child_import();
    if (strcmp(role, "export") == 0)
        return child_export(0);
    if (strcmp(role, "free_early") == 0) {
        int silent = open("/dev/null", O_WRONLY);
        dup2(silent, 2); /* it says why it aborts */
        return child_export(1);
    }
    if (strcmp(role, "outlive") == 0)
        return child_outlive();
    int to, from;
    CHECK_EQ(end_of(start("outlive", &to, &from)), 0);
    test_decode_elsewhere();
#ifndef KVT_REAL_CUDA
    test_free_early();
    CHECK_EQ(fake_cuda_live(), 0);
#endif
    return 0;
}
