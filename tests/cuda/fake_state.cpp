/* The fake runtime's entry, errors, and processes. */
#include "tests/cuda/fake_state.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace fake {

state &st = *new state;
static thread_local cudaError_t last_error = cudaSuccess;
thread_local int current = 0;

void misuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fake CUDA: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

cudaError_t fail(cudaError_t error) {
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

static cudaError_t enter_any(lock &l) {
    /* A child of fork() has no GPU thread, and no right to its parent's device. */
    int pid = st.pid;
    if (pid != 0 && pid != getpid())
        return fail(cudaErrorInitializationError);
    l.lock();
    if (st.pid == 0) {
        st.pid = getpid();
        st.owner = this_process();
        const char *delay = getenv("KVT_FAKE_CUDA_DELAY_US");
        if (delay)
            st.max_delay_us = (unsigned)strtoul(delay, nullptr, 10);
        const char *bytes = getenv("KVT_FAKE_CUDA_BYTES");
        if (bytes)
            st.max_bytes = strtoull(bytes, nullptr, 10);
        st.break_file = getenv("KVT_FAKE_CUDA_BREAK");
        const char *break_device = getenv("KVT_FAKE_CUDA_BREAK_DEVICE");
        if (break_device)
            st.break_device = (int)strtoul(break_device, nullptr, 10);
        const char *devices = getenv("KVT_FAKE_CUDA_DEVICES");
        if (devices)
            st.n_devices = (int)strtoul(devices, nullptr, 10);
        const char *first = getenv("KVT_FAKE_CUDA_FIRST");
        if (first)
            st.first_device = (int)strtoul(first, nullptr, 10);
        for (int i = 0; i < MAX_DEVICES; i++) {
            st.default_stream[i].device = i;
            st.default_stream[i].is_default = true;
            st.streams.push_back(&st.default_stream[i]);
        }
        start_gpu();
    }
    if (st.n_devices == 0)
        return fail(cudaErrorNoDevice);
    if (st.break_file && (st.break_device < 0 || st.break_device == st.first_device + current) &&
        access(st.break_file, F_OK) == 0)
        st.sticky[current] = cudaErrorLaunchFailure;
    return fail(st.sticky[current]);
}

static cudaError_t count_call(lock &l, cudaError_t failure) {
    cudaError_t error = enter_any(l);
    if (error != cudaSuccess)
        return error;
    if (++st.n_calls == st.lose_call)
        for (cudaError_t &sticky : st.sticky)
            sticky = cudaErrorLaunchFailure;
    return st.n_calls == st.fail_call ? fail(failure) : fail(st.sticky[current]);
}

cudaError_t enter(lock &l, cudaError_t failure) {
    cudaError_t error = count_call(l, failure);
    if (error == cudaSuccess)
        st.contexts |= 1u << current;
    return error;
}

cudaError_t enter_to_ask(lock &l) {
    return count_call(l, cudaErrorUnknown);
}

cudaError_t enter_free(lock &l) {
    cudaError_t error = enter_any(l);
    if (error == cudaSuccess)
        st.contexts |= 1u << current;
    return error;
}

/* ------------------------------------------------------------------------------------------------
 * Processes and what they share
 * ---------------------------------------------------------------------------------------------- */

process process_of(int pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return {pid, 0};
    text[n] = '\0';
    /* "pid (name) state ..."; the name may hold anything, so from its last parenthesis on. Field 22
     * is the start time. */
    const char *at = strrchr(text, ')');
    if (!at || at[1] == '\0' || at[2] == 'Z' || at[2] == 'X')
        return {pid, 0};
    at += 2;
    for (int field = 3; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    return {pid, at ? strtoull(at, nullptr, 10) : 0};
}

process this_process() {
    return process_of(getpid());
}

bool is_alive(const process &p) {
    return p.start != 0 && process_of(p.pid).start == p.start;
}

bool share(uint64_t bytes, shared_file *ret_file) {
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0)
        return false;
    if (ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return false;
    }
    *ret_file = {st.owner, fd};
    return true;
}

void *map_shared(const shared_file &file, uint64_t offset, uint64_t bytes, void *fixed) {
    int fd = file.fd;
    if (file.owner.pid != st.owner.pid) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", file.owner.pid, file.fd);
        fd = is_alive(file.owner) ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (fd < 0)
            return nullptr;
    }
    void *map = mmap(fixed, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (fixed ? MAP_FIXED : 0), fd,
                     (off_t)offset);
    if (fd != file.fd)
        close(fd);
    return map == MAP_FAILED ? nullptr : map;
}

} // namespace fake

using namespace fake;

/* ------------------------------------------------------------------------------------------------
 * Devices and errors
 * ---------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *ret_count) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_to_ask(l);
    if (error == cudaSuccess)
        *ret_count = st.n_devices;
    return error;
}

cudaError_t cudaSetDevice(int device) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_to_ask(l);
    if (error == cudaSuccess && (device < 0 || device >= st.n_devices))
        error = fail(cudaErrorInvalidDevice);
    if (error == cudaSuccess) {
        current = device;
        st.contexts |= 1u << device; /* since CUDA 12 */
    }
    return error;
}

/* ------------------------------------------------------------------------------------------------
 * The driver: contexts of threads
 * ---------------------------------------------------------------------------------------------- */

static thread_local std::vector<int> pushed; /* what was current before each */

static int device_get(int *ret_device, int ordinal) {
    *ret_device = ordinal;
    return 0;
}

static int context_retain(void **ret_context, int device) {
    lock l(st.mutex, std::defer_lock);
    if (enter_to_ask(l) != cudaSuccess || device < 0 || device >= st.n_devices)
        return 1;
    st.contexts |= 1u << device;
    *ret_context = &st.default_stream[device]; /* any address that tells which it is */
    return 0;
}

static int context_push(void *context) {
    pushed.push_back(current);
    current = (int)((CUstream_st *)context - st.default_stream);
    return 0;
}

static int context_pop(void **ret_context) {
    if (pushed.empty())
        misuse("a context is popped that was not pushed");
    *ret_context = &st.default_stream[current];
    current = pushed.back();
    pushed.pop_back();
    return 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **ret_function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *ret_found) {
    static const std::map<std::string, void *> calls = {
        {"cuDeviceGet", (void *)device_get},
        {"cuDevicePrimaryCtxRetain", (void *)context_retain},
        {"cuCtxPushCurrent", (void *)context_push},
        {"cuCtxPopCurrent", (void *)context_pop}};
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_to_ask(l);
    if (error != cudaSuccess)
        return error;
    auto found = calls.find(symbol);
    *ret_found =
        found == calls.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    *ret_function = found == calls.end() ? nullptr : found->second;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *ret_device) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_to_ask(l);
    if (error == cudaSuccess)
        *ret_device = current;
    return error;
}

cudaError_t cudaDeviceGetPCIBusId(char *ret_id, int room, int device) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_to_ask(l);
    if (error == cudaSuccess && (device < 0 || device >= st.n_devices))
        error = fail(cudaErrorInvalidDevice);
    if (error == cudaSuccess)
        snprintf(ret_id, (size_t)room, "0000:%02X:00.0", st.first_device + device + 1);
    return error;
}

cudaError_t cudaDeviceGetByPCIBusId(int *ret_device, const char *id) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_to_ask(l);
    if (error != cudaSuccess)
        return error;
    for (int i = 0; i < st.n_devices; i++) {
        char known[32];
        snprintf(known, sizeof known, "0000:%02X:00.0", st.first_device + i + 1);
        if (strcmp(known, id) == 0) {
            *ret_device = i;
            return cudaSuccess;
        }
    }
    return fail(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *ret_value, cudaDeviceAttr attribute, int device) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_to_ask(l);
    if (error != cudaSuccess)
        return error;
    if (device < 0 || device >= st.n_devices)
        return fail(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *ret_value = 2;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *ret_value = 8;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *ret_value = 0;
        return cudaSuccess;
    case cudaDevAttrIpcEventSupport:
        *ret_value = 1;
        return cudaSuccess;
    }
    return fail(cudaErrorInvalidValue);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define NAME(name)                                                                                 \
    case name:                                                                                     \
        return #name
        NAME(cudaSuccess);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInitializationError);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorInvalidDevicePointer);
        NAME(cudaErrorInvalidMemcpyDirection);
        NAME(cudaErrorInsufficientDriver);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorDeviceUninitialized);
        NAME(cudaErrorMapBufferObjectFailed);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorNotReady);
        NAME(cudaErrorHostMemoryAlreadyRegistered);
        NAME(cudaErrorHostMemoryNotRegistered);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorNotSupported);
        NAME(cudaErrorStreamCaptureUnsupported);
        NAME(cudaErrorStreamCaptureInvalidated);
        NAME(cudaErrorStreamCaptureImplicit);
        NAME(cudaErrorUnknown);
#undef NAME
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    return cudaGetErrorName(error);
}

/* ------------------------------------------------------------------------------------------------
 * What tests say and ask
 * ---------------------------------------------------------------------------------------------- */

void fake_cuda_set_delay(unsigned max_delay_us, uint64_t seed) {
    lock l(st.mutex);
    st.max_delay_us = max_delay_us;
    st.random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

void fake_cuda_fail_call(uint64_t n) {
    lock l(st.mutex);
    st.n_calls = 0;
    st.fail_call = n;
}

void fake_cuda_lose_at(uint64_t n) {
    lock l(st.mutex);
    st.n_calls = 0;
    st.lose_call = n;
    for (cudaError_t &sticky : st.sticky)
        sticky = cudaSuccess;
}

uint64_t fake_cuda_calls(void) {
    lock l(st.mutex);
    return st.n_calls;
}

unsigned fake_cuda_live(void) {
    lock l(st.mutex);
    size_t n = st.device.size() + st.pinned.size() + st.events.size();
    for (const CUstream_st *stream : st.streams)
        n += !stream->is_default && !stream->destroyed;
    return (unsigned)n;
}

unsigned fake_cuda_exported(void) {
    lock l(st.mutex);
    unsigned n = 0;
    for (const auto &entry : st.device)
        n += entry.second.exported;
    return n;
}

void fake_cuda_hang(int hangs) {
    lock l(st.mutex);
    st.hangs = hangs != 0;
    st.changed.notify_all();
}

uint64_t fake_cuda_spins(void) {
    lock l(st.mutex);
    return st.n_spins;
}

unsigned fake_cuda_contexts(void) {
    lock l(st.mutex);
    return st.contexts;
}

void fake_cuda_set_bytes(uint64_t bytes) {
    lock l(st.mutex);
    st.max_bytes = bytes;
}

void fake_cuda_set_devices(int n_devices) {
    lock l(st.mutex);
    st.n_devices = n_devices;
}
