/* The fake runtime itself: late work, poisoned memory, closed memory, refused misuse, events, and
 * failures on order. Deaths are looked at from outside: the program starts itself anew for each. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/kit.h"

enum { BYTES = 5000, LATE_US = 200000, LIVED = 42 };

static void test_memory(void) {
    uint8_t host[BYTES];
    uint8_t *a = device_new(BYTES), *b = device_new(BYTES);
    device_read(host, a, BYTES);
    for (int i = 0; i < BYTES; i++)
        CHECK_EQ(host[i], 0xff); /* poisoned, not zeroed */
    CHECK((uintptr_t)a % 256 == 0 && (uintptr_t)b % 256 == 0);
    CUDA(cudaMemset(a, 7, BYTES));
    CUDA(cudaMemcpy(b + 1, a, BYTES - 1, cudaMemcpyDeviceToDevice));
    device_read(host, b, BYTES);
    CHECK(host[0] == 0xff && host[1] == 7 && host[BYTES - 1] == 7);
    CHECK_EQ(cudaMemcpy(b, host, BYTES + 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpy(b, host, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
    CHECK_EQ(cudaMemcpy(host, b, 10, cudaMemcpyDeviceToDevice), cudaErrorInvalidMemcpyDirection);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidMemcpyDirection);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_EQ(cudaMemset(b + 10, 1, BYTES), cudaErrorInvalidValue);
    struct cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, b + 10));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == b + 10);
    CUDA(cudaPointerGetAttributes(&attributes, host));
    CHECK_EQ(attributes.type, cudaMemoryTypeUnregistered);
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    void *none;
    CHECK_EQ(cudaMalloc(&none, SIZE_MAX), cudaErrorMemoryAllocation);
}

/* Before anything of a machine's own memory is touched for it. */
static void test_limit(void) {
    void *some, *more = NULL;
    size_t free_bytes, total_bytes;
    CUDA(cudaMalloc(&some, 1 << 20));
    CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    CHECK_EQ(total_bytes, UINT64_C(4) << 30);
    CHECK_EQ(free_bytes, total_bytes - (1 << 20));
    CHECK_EQ(cudaMalloc(&more, free_bytes + 1), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaMalloc(&more, (size_t)1 << 40), cudaErrorMemoryAllocation);
    CHECK(!more);
    CUDA(cudaFree(some));
    cudaGetLastError();
}

/* What nobody waited for has not been done. */
static void test_late(void) {
    fake_cuda_set_delay(LATE_US, 3);
    uint8_t *device = device_new(BYTES), *pinned = pinned_new(BYTES);
    cudaStream_t first, second;
    cudaEvent_t event;
    CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    memset(pinned, 1, BYTES);
    int late = 0;
    for (int i = 0; i < 20; i++) { /* a delay is drawn for each: most are long enough to see */
        CUDA(cudaMemsetAsync(device, i + 2, BYTES, first));
        CUDA(cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, first));
        late += pinned[0] != i + 2 && cudaStreamQuery(first) == cudaErrorNotReady;
        CUDA(cudaStreamSynchronize(first));
        CHECK(pinned[0] == i + 2 && pinned[BYTES - 1] == i + 2);
        CUDA(cudaStreamQuery(first));
    }
    CHECK_MSG(late > 10, "only %d of 20 were late", late);
    /* Another stream sees the first one's work only behind an event. */
    CUDA(cudaMemsetAsync(device, 99, BYTES, first));
    CUDA(cudaEventRecord(event, first));
    CUDA(cudaStreamWaitEvent(second, event, 0));
    CUDA(cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, second));
    CUDA(cudaStreamSynchronize(second));
    CHECK_EQ(pinned[17], 99);
    CUDA(cudaEventQuery(event));
    CUDA(cudaMemsetAsync(device, 98, BYTES, first));
    CUDA(cudaEventRecord(event, first));
    CUDA(cudaEventSynchronize(event));
    /* Of two records the later counts, whichever the GPU comes to first. */
    CUDA(cudaMemsetAsync(device, 97, BYTES, first));
    CUDA(cudaEventRecord(event, first));
    CUDA(cudaEventRecord(event, second));
    CUDA(cudaStreamSynchronize(second));
    CUDA(cudaStreamSynchronize(first));
    CUDA(cudaEventQuery(event));
    CUDA(cudaStreamDestroy(first));
    CUDA(cudaStreamDestroy(second));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(pinned));
    fake_cuda_set_delay(1000, 3);
}

static void test_timing(void) {
    cudaEvent_t start, end;
    float ms = -1;
    CUDA(cudaEventCreateWithFlags(&start, cudaEventDefault));
    CUDA(cudaEventCreateWithFlags(&end, cudaEventDefault));
    CUDA(cudaEventRecord(start, NULL));
    CUDA(cudaEventRecord(end, NULL));
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0);
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
}

/* Each call of a small program fails in turn, says so, and leaves nothing behind. */
static int small_program(void) {
    void *device = NULL, *pinned = NULL;
    cudaStream_t stream = NULL;
    int ok = cudaMalloc(&device, BYTES) == 0 && cudaHostAlloc(&pinned, BYTES, 0) == 0 &&
             cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == 0 &&
             cudaMemsetAsync(device, 1, BYTES, stream) == 0 &&
             cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, stream) == 0 &&
             cudaStreamSynchronize(stream) == 0;
    if (stream)
        CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(device)); /* waits for what is under way */
    CUDA(cudaFreeHost(pinned));
    return ok;
}

static void test_failures(void) {
    unsigned live = fake_cuda_live();
    uint64_t n = 1;
    for (;; n++) {
        fake_cuda_fail_call(n);
        int ok = small_program();
        CHECK_EQ(fake_cuda_live(), live);
        if (fake_cuda_calls() < n)
            break;
        CHECK_MSG(!ok, "call %d did not fail", (int)n);
    }
    CHECK_EQ(n, 7);
    fake_cuda_fail_call(0);
    fake_cuda_set_devices(0);
    void *memory;
    CHECK_EQ(cudaMalloc(&memory, 1), cudaErrorNoDevice);
    fake_cuda_set_devices(1);
}

/* Streams, events and memory are of the device that was current when they were made. */
static void test_devices(void) {
    int device;
    size_t before, less, total;
    char place[32];
    cudaStream_t stream;
    cudaEvent_t event;
    uint8_t host[BYTES];
    fake_cuda_set_devices(2);
    CHECK_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
    CUDA(cudaGetDevice(&device));
    CHECK_EQ(device, 0);
    CUDA(cudaMemGetInfo(&before, &total));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaSetDevice(1));
    CUDA(cudaGetDevice(&device));
    CHECK_EQ(device, 1);
    CUDA(cudaDeviceGetPCIBusId(place, sizeof place, 1));
    CUDA(cudaDeviceGetByPCIBusId(&device, place));
    CHECK_EQ(device, 1);
    uint8_t *memory = device_new(BYTES);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMemsetAsync(memory, 3, BYTES, stream));
    CHECK_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
    struct cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, memory));
    CHECK_EQ(attributes.device, 1);
    CUDA(cudaSetDevice(0));
    CUDA(cudaMemGetInfo(&less, &total));
    CHECK_EQ(less, before); /* the other's memory is none of this one's */
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaSetDevice(1));
    device_read(host, memory, BYTES);
    CHECK(host[0] == 3 && host[BYTES - 1] == 3);
    CUDA(cudaFree(memory));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaSetDevice(0));
    CUDA(cudaEventDestroy(event));
    fake_cuda_set_devices(1);
}

static void test_fork(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *memory;
        _exit(cudaMalloc(&memory, 1) == cudaErrorInitializationError ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* ------------------------------------------------------------------------------------------------
 * Deaths
 * ---------------------------------------------------------------------------------------------- */

static void die_host_read(void) {
    volatile uint8_t *device = device_new(BYTES);
    printf("%d\n", device[100]);
}

static void die_host_write(void) {
    volatile uint8_t *device = device_new(BYTES);
    device[0] = 1;
}

static void die_double_free(void) {
    void *device = device_new(BYTES);
    CUDA(cudaFree(device));
    CUDA(cudaFree(device));
}

static void die_pageable(void) {
    uint8_t host[10] = {0};
    CUDA(cudaMemcpyAsync(device_new(BYTES), host, 10, cudaMemcpyHostToDevice, NULL));
}

static void die_wrong_free(void) {
    void *pinned = pinned_new(BYTES);
    CUDA(cudaFree(pinned));
}

static void die_not_stream(void) {
    CUDA(cudaStreamDestroy(NULL));
}

static void die_other_device(void) {
    fake_cuda_set_devices(2);
    void *first = device_new(BYTES);
    CUDA(cudaSetDevice(1));
    CUDA(cudaMemcpy(device_new(BYTES), first, BYTES, cudaMemcpyDeviceToDevice));
}

static void die_other_stream(void) {
    fake_cuda_set_devices(2);
    void *first = device_new(BYTES);
    cudaStream_t stream;
    CUDA(cudaSetDevice(1));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMemsetAsync(first, 1, BYTES, stream));
}

/* What a capture in one stream does to calls of others, and they to it. */
static void test_captures(void) {
    cudaStream_t blocking, apart;
    cudaGraph_t graph;
    enum cudaStreamCaptureStatus status;
    void *memory = device_new(BYTES);
    CUDA(cudaStreamCreateWithFlags(&blocking, 0));
    CUDA(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
    for (int way = 0; way < 10; way++) {
        cudaStream_t of = way == 0 ? apart : blocking;
        const int is_spoiled = way > 2;
        cudaEvent_t event;
        CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        CUDA(cudaStreamBeginCapture(of, cudaStreamCaptureModeGlobal));
        CUDA(cudaStreamIsCapturing(of, &status));
        CHECK_EQ(status, cudaStreamCaptureStatusActive);
        if (way <= 1) /* what has nothing to do with it */
            CUDA(cudaMemsetAsync(memory, 1, BYTES, way == 0 ? NULL : apart));
        if (way == 2) /* only asking */
            CHECK_EQ(cudaStreamIsCapturing(NULL, &status), cudaErrorStreamCaptureImplicit);
        if (way == 3)
            CHECK_EQ(cudaMemsetAsync(memory, 1, BYTES, NULL), cudaErrorStreamCaptureImplicit);
        if (way == 4)
            CHECK_EQ(cudaMemset(memory, 1, BYTES), cudaErrorStreamCaptureImplicit);
        if (way == 5)
            CHECK_EQ(cudaEventRecord(event, cudaStreamLegacy), cudaErrorStreamCaptureImplicit);
        if (way == 6)
            CHECK_EQ(cudaStreamSynchronize(NULL), cudaErrorStreamCaptureImplicit);
        if (way == 7)
            CHECK_EQ(cudaStreamQuery(NULL), cudaErrorStreamCaptureImplicit);
        if (way == 8)
            CHECK_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
        if (way == 9)
            CHECK_EQ(cudaStreamQuery(of), cudaErrorStreamCaptureUnsupported);
        CUDA(cudaStreamIsCapturing(of, &status));
        CHECK_EQ(status,
                 is_spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive);
        CHECK_EQ(cudaStreamEndCapture(of, &graph),
                 is_spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
        CUDA(cudaStreamIsCapturing(of, &status));
        CHECK_EQ(status, cudaStreamCaptureStatusNone);
        CUDA(cudaMemset(memory, 1, BYTES));
        CUDA(cudaEventDestroy(event));
    }
    CUDA(cudaStreamDestroy(blocking));
    CUDA(cudaStreamDestroy(apart));
    CUDA(cudaFree(memory));
}

/* It would open what lies beside it to the other process as well. */
static void die_small_share(void) {
    cudaIpcMemHandle_t handle;
    CUDA(cudaIpcGetMemHandle(&handle, device_new(BYTES)));
}

static const struct {
    const char *name;
    void (*die)(void);
} deaths[] = {
    {"host_read", die_host_read},       {"host_write", die_host_write},
    {"double_free", die_double_free},   {"pageable", die_pageable},
    {"wrong_free", die_wrong_free},     {"not_stream", die_not_stream},
    {"other_device", die_other_device}, {"other_stream", die_other_stream},
    {"small_share", die_small_share},
};
enum { N_DEATHS = sizeof deaths / sizeof deaths[0] };

static void test_deaths(void) {
    for (int i = 0; i < N_DEATHS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (!freopen("/dev/null", "w", stderr))
                _exit(LIVED);
            execl("/proc/self/exe", "test_fake", deaths[i].name, (char *)0);
            _exit(LIVED);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        /* A sanitizer may turn the fault into an exit status of its own. */
        CHECK_MSG(WIFSIGNALED(status) || WEXITSTATUS(status) != LIVED, "%s lived on",
                  deaths[i].name);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) {
        for (int i = 0; i < N_DEATHS; i++) {
            if (strcmp(argv[1], deaths[i].name) == 0)
                deaths[i].die();
        }
        return LIVED;
    }
    test_deaths();
    test_memory();
    test_limit();
    test_late();
    test_timing();
    test_failures();
    test_devices();
    test_captures();
    test_fork();
    CHECK_EQ(fake_cuda_live(), 0);
    return 0;
}
