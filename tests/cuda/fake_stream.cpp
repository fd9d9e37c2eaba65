/*
 * Streams: host threads put work in, one "GPU" thread takes it out, late and in no order but that
 * of each stream. Work that no host thread waits for begins after a delay: a host that reads a
 * result without waiting reads what was there before.
 */
#include "tests/cuda/fake_state.h"

#include <thread>

#include "tests/cuda/emu_run.h"

namespace fake {

static const auto ask_again_after = std::chrono::microseconds(100);

static thread_local CUstream_st *own_streams[MAX_DEVICES];
static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

/* It stays when its thread ends, as its work does. */
static CUstream_st *own_stream() {
    CUstream_st *&stream = own_streams[current];
    if (!stream) {
        stream = new CUstream_st;
        stream->device = current;
        stream->is_default = true;
        st.streams.push_back(stream);
    }
    return stream;
}

cudaError_t check_capture() {
    return st.n_captures > 0 && capture_mode != cudaStreamCaptureModeRelaxed
               ? cudaErrorStreamCaptureUnsupported
               : cudaSuccess;
}

CUstream_st *stream_of(cudaStream_t stream) {
    if (!stream || stream == cudaStreamLegacy)
        return &st.default_stream[current];
    if (stream == cudaStreamPerThread)
        return own_stream();
    for (CUstream_st *known : st.streams) {
        if (known == stream && !known->destroyed)
            return known;
    }
    return nullptr;
}

/* Is it a default stream, and one captures that blocks with it? */
static bool beside_capture(const CUstream_st *stream) {
    for (const CUstream_st *other : st.streams)
        if (stream == &st.default_stream[other->device] && other->captures && other->is_blocking)
            return true;
    return false;
}

/* A call that captures do not allow: returns whether there are any whose it is. */
static bool spoil(const std::function<bool(const CUstream_st *)> &is_meant) {
    bool any = false;
    for (CUstream_st *stream : st.streams)
        if (stream->captures && is_meant(stream))
            any = stream->is_spoiled = true;
    return any;
}

cudaError_t enter_stream(lock &l, cudaStream_t handle, CUstream_st **ret_stream) {
    cudaError_t error = enter(l, cudaErrorUnknown);
    if (error != cudaSuccess)
        return error;
    *ret_stream = stream_of(handle);
    return *ret_stream ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}

cudaError_t use_stream(lock &l, cudaStream_t handle, CUstream_st **ret_stream) {
    cudaError_t error = enter_stream(l, handle, ret_stream);
    if (error != cudaSuccess || !beside_capture(*ret_stream))
        return error;
    spoil([ret_stream](const CUstream_st *other) {
        return other->device == (*ret_stream)->device && other->is_blocking;
    });
    return fail(cudaErrorStreamCaptureImplicit);
}

bool is_idle(const CUstream_st *stream) {
    return stream->completed == stream->submitted;
}

static uint64_t draw() {
    st.random ^= st.random << 13;
    st.random ^= st.random >> 7;
    st.random ^= st.random << 17;
    return st.random;
}

void submit(CUstream_st *stream, work run) {
    if (stream->captures)
        misuse("work is put into a stream that captures: it would be done at each replay");
    auto delay = std::chrono::microseconds(draw() % (st.max_delay_us + 1));
    stream->operations.push_back({std::move(run), clock::now() + delay});
    stream->submitted++;
    st.changed.notify_all();
}

/* ------------------------------------------------------------------------------------------------
 * The GPU
 * ---------------------------------------------------------------------------------------------- */

/* Somebody waits for a stream that waits for an event: whoever is to record it must get on. */
static bool everybody_hurries() {
    for (const CUstream_st *stream : st.streams) {
        if (stream->n_waiting > 0 && stream->blocked)
            return true;
    }
    return false;
}

static clock::time_point begins(const CUstream_st *stream, bool hurry) {
    if (stream->blocked)
        return stream->ask_again;
    return hurry || stream->n_waiting > 0 ? clock::time_point::min()
                                          : stream->operations.front().due;
}

/* A stream whose next work may begin now, drawn; or NULL, and when to look again. */
static CUstream_st *pick(clock::time_point *ret_look_again) {
    bool hurry = everybody_hurries();
    clock::time_point now = clock::now(), first = clock::time_point::max();
    size_t n = st.streams.size(), start = draw() % n;
    for (size_t i = 0; i < n; i++) {
        CUstream_st *stream = st.streams[(start + i) % n];
        if (stream->operations.empty())
            continue;
        clock::time_point at = begins(stream, hurry);
        if (at <= now)
            return stream;
        first = at < first ? at : first;
    }
    *ret_look_again = first;
    return nullptr;
}

static void run_one(lock &l, CUstream_st *stream) {
    work run = stream->operations.front().run;
    st.busy = true;
    open_guards(stream->device);
    l.unlock();
    bool done = run();
    l.lock();
    close_guards(stream->device);
    st.busy = false;
    stream->blocked = !done;
    if (done) {
        stream->operations.pop_front();
        stream->completed++;
    } else {
        stream->ask_again = clock::now() + ask_again_after;
    }
    st.changed.notify_all();
}

static void remove_destroyed() {
    for (size_t i = st.streams.size(); i-- > 0;) {
        CUstream_st *stream = st.streams[i];
        if (stream->destroyed && stream->operations.empty() && stream->n_waiting == 0) {
            st.streams.erase(st.streams.begin() + (ptrdiff_t)i);
            delete stream;
        }
    }
}

/* One piece of work, or a pause until there may be some. */
static void step(lock &l) {
    clock::time_point look_again = clock::time_point::max();
    CUstream_st *stream = st.busy || st.hangs ? nullptr : pick(&look_again);
    if (stream)
        run_one(l, stream);
    else if (look_again == clock::time_point::max())
        st.changed.wait(l);
    else
        st.changed.wait_until(l, look_again);
}

static void gpu_main() {
    lock l(st.mutex);
    for (;;) {
        step(l);
        remove_destroyed();
    }
}

void wait_for(lock &l, CUstream_st *stream, uint64_t n_completed) {
    stream->n_waiting++;
    while (stream->completed < n_completed)
        step(l);
    stream->n_waiting--;
}

void wait_for_all(lock &l) {
    for (size_t i = 0; i < st.streams.size(); i++)
        wait_for(l, st.streams[i], st.streams[i]->submitted);
}

void start_gpu() {
    std::thread(gpu_main).detach();
}

/* What a copy or a kernel is given must be device memory, or pinned. */
static bool reachable(const void *at, size_t bytes, bool *ret_device) {
    *ret_device = device_of(at, bytes) != nullptr;
    return *ret_device || (is_pinned(at, bytes) && !touches_device(at));
}

static cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                              bool pageable_allowed) {
    bool to_device, from_device;
    bool reaches_to = reachable(to, bytes, &to_device), reaches_from;
    reaches_from = reachable(from, bytes, &from_device);
    if ((!reaches_to && touches_device(to)) || (!reaches_from && touches_device(from)))
        return cudaErrorInvalidValue; /* beyond the end of an allocation */
    if (!pageable_allowed && (!reaches_to || !reaches_from))
        misuse("an asynchronous copy of memory that is not pinned: CUDA would wait in secret");
    if (kind == cudaMemcpyDefault)
        return cudaSuccess;
    bool says_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool says_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return says_to == to_device && says_from == from_device ? cudaSuccess
                                                            : cudaErrorInvalidMemcpyDirection;
}

} // namespace fake

using namespace fake;

static cudaError_t copy(lock &l, void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t handle, bool wait) {
    CUstream_st *stream;
    cudaError_t error = use_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (bytes == 0)
        return cudaSuccess;
    error = check_copy(to, from, bytes, kind, wait);
    if (error != cudaSuccess)
        return fail(error);
    check_device(to, bytes, stream);
    check_device(from, bytes, stream);
    submit(stream, [=] {
        memcpy(to, from, bytes);
        return true;
    });
    if (wait)
        wait_for(l, stream, stream->submitted);
    return fail(st.sticky[current]);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    lock l(st.mutex, std::defer_lock);
    return copy(l, to, from, bytes, kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    lock l(st.mutex, std::defer_lock);
    return copy(l, to, from, bytes, kind, stream, false);
}

static cudaError_t set(lock &l, void *to, int value, size_t bytes, cudaStream_t handle, bool wait) {
    CUstream_st *stream;
    cudaError_t error = use_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (!device_of(to, bytes))
        return fail(cudaErrorInvalidValue);
    check_device(to, bytes, stream);
    submit(stream, [=] {
        memset(to, value, bytes);
        return true;
    });
    if (wait)
        wait_for(l, stream, stream->submitted);
    return fail(st.sticky[current]);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    lock l(st.mutex, std::defer_lock);
    return set(l, to, value, bytes, nullptr, true);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    lock l(st.mutex, std::defer_lock);
    return set(l, to, value, bytes, stream, false);
}

/* ------------------------------------------------------------------------------------------------
 * Streams and launches
 * ---------------------------------------------------------------------------------------------- */

cudaError_t cudaDeviceSynchronize(void) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorUnknown);
    if (error != cudaSuccess)
        return error;
    if (spoil([](const CUstream_st *stream) { return stream->device == current; }))
        return fail(cudaErrorStreamCaptureUnsupported);
    st.n_spins++;
    for (size_t i = 0; i < st.streams.size(); i++)
        if (st.streams[i]->device == current)
            wait_for(l, st.streams[i], st.streams[i]->submitted);
    return fail(st.sticky[current]);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret_stream, unsigned flags) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    st.streams.push_back(new CUstream_st);
    st.streams.back()->device = current;
    st.streams.back()->is_blocking = (flags & cudaStreamNonBlocking) == 0;
    *ret_stream = st.streams.back();
    return cudaSuccess;
}

/* Does not wait: what was submitted is still done, as in CUDA. */
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_free(l);
    if (error != cudaSuccess)
        return error;
    CUstream_st *stream = handle ? stream_of(handle) : nullptr;
    if (!stream)
        misuse("cudaStreamDestroy of what is no stream");
    stream->destroyed = true;
    st.changed.notify_all();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = use_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (check_capture() != cudaSuccess ||
        spoil([stream](const CUstream_st *other) { return other == stream; }))
        return fail(cudaErrorStreamCaptureUnsupported);
    st.n_spins++;
    wait_for(l, stream, stream->submitted);
    return fail(st.sticky[current]);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = enter_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (stream->captures || stream == &st.default_stream[current])
        return fail(cudaErrorStreamCaptureUnsupported);
    if (mode != cudaStreamCaptureModeGlobal)
        misuse("captures of other modes than the global one are not there");
    stream->captures = true;
    stream->is_spoiled = false;
    st.n_captures++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *ret_graph) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = enter_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (!stream->captures)
        return fail(cudaErrorInvalidValue);
    stream->captures = false;
    st.n_captures--;
    *ret_graph = nullptr;
    return stream->is_spoiled ? fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *ret_status) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = enter_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (beside_capture(stream)) /* which only asking does not spoil */
        return fail(cudaErrorStreamCaptureImplicit);
    *ret_status = !stream->captures    ? cudaStreamCaptureStatusNone
                  : stream->is_spoiled ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = use_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (spoil([stream](const CUstream_st *other) { return other == stream; }))
        return fail(cudaErrorStreamCaptureUnsupported);
    return is_idle(stream) ? cudaSuccess : cudaErrorNotReady;
}

/* A launch in CUDA says at once what is wrong with its sizes. */
static cudaError_t check_launch(const cudaLaunchConfig_t *c) {
    enum { MAX_THREADS = 1024, MAX_YZ = 65535, MAX_SHARED_BYTES = 48 << 10 };
    uint64_t threads = (uint64_t)c->blockDim.x * c->blockDim.y * c->blockDim.z;
    if (threads == 0 || threads > MAX_THREADS || c->gridDim.x == 0 || c->gridDim.y == 0 ||
        c->gridDim.z == 0 || c->gridDim.x > INT32_MAX || c->gridDim.y > MAX_YZ ||
        c->gridDim.z > MAX_YZ)
        return cudaErrorInvalidConfiguration;
    return c->dynamicSmemBytes > MAX_SHARED_BYTES || c->numAttrs != 0 ? cudaErrorInvalidValue
                                                                      : cudaSuccess;
}

cudaError_t emu_enqueue(const cudaLaunchConfig_t *config, std::function<void()> thread_main) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = use_stream(l, config->stream, &stream);
    if (error != cudaSuccess)
        return error;
    if (stream->device != current) /* a launch must be on the thread's device */
        return fail(cudaErrorInvalidResourceHandle);
    error = check_launch(config);
    if (error != cudaSuccess)
        return fail(error);
    emu_launch launch = {{config->gridDim.x, config->gridDim.y, config->gridDim.z},
                         {config->blockDim.x, config->blockDim.y, config->blockDim.z},
                         config->dynamicSmemBytes,
                         std::move(thread_main),
                         emu_schedule_now()};
    submit(stream, [launch] {
        emu_run_grid(&launch);
        return true;
    });
    return cudaSuccess;
}
