/*
 * Events of the fake runtime, within a process and between processes. An event's cell lies in
 * shared memory: how often it was recorded, and which of these records the GPU has come to.
 */
#include "tests/cuda/fake_state.h"

#include <sys/mman.h>
#include <unistd.h>

namespace fake {

enum { CELL_BYTES = 4096 };

struct event_cell {
    uint64_t recorded;  /* cudaEventRecord calls */
    uint64_t completed; /* the latest record that the GPU has come to */
    process recorder;   /* of the latest record */
};

static uint64_t load(const uint64_t *at) {
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

} // namespace fake

using namespace fake;

struct CUevent_st {
    int device; /* whose streams may record it */
    event_cell *cell;
    shared_file file;
    unsigned flags;
    bool imported;
    CUstream_st *stream = nullptr; /* of the latest record by this process */
    uint64_t stream_position = 0;
    clock::time_point completed_at = {};
};

static cudaError_t check_event(cudaEvent_t event) {
    return st.events.count(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret_event, unsigned flags) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if ((flags & cudaEventInterprocess) && !(flags & cudaEventDisableTiming))
        return fail(cudaErrorInvalidValue);
    shared_file file;
    if (!share(CELL_BYTES, &file))
        return fail(cudaErrorMemoryAllocation);
    auto *cell = (event_cell *)map_shared(file, 0, CELL_BYTES, nullptr);
    if (!cell) {
        close(file.fd);
        return fail(cudaErrorMemoryAllocation);
    }
    *ret_event = new CUevent_st{current, cell, file, flags, false};
    st.events[*ret_event] = true;
    return cudaSuccess;
}

/* The memory of an event that work still refers to must stay: only its entry goes at once. */
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_free(l);
    if (error != cudaSuccess)
        return error;
    if (check_event(event) != cudaSuccess)
        misuse("cudaEventDestroy of what is no event");
    wait_for_all(l);
    st.events.erase(event);
    munmap(event->cell, CELL_BYTES);
    if (!event->imported)
        close(event->file.fd);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = use_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (check_event(event) != cudaSuccess || event->device != stream->device)
        return fail(cudaErrorInvalidResourceHandle);
    event_cell *cell = event->cell;
    cell->recorder = st.owner;
    uint64_t number = __atomic_add_fetch(&cell->recorded, 1, __ATOMIC_SEQ_CST);
    submit(stream, [event, cell, number] {
        uint64_t seen = load(&cell->completed); /* a later record's, of another stream, stays */
        while (seen < number && !__atomic_compare_exchange_n(&cell->completed, &seen, number, false,
                                                             __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        }
        event->completed_at = clock::now();
        return true;
    });
    event->stream = stream;
    event->stream_position = stream->submitted;
    return cudaSuccess;
}

/* Waits for the record that is the latest now; for none if there was none, as CUDA does. If whoever
 * was to come to it is dead, the wait ends with an error that every later call reports. */
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    lock l(st.mutex, std::defer_lock);
    CUstream_st *stream;
    cudaError_t error = use_stream(l, handle, &stream);
    if (error != cudaSuccess)
        return error;
    if (check_event(event) != cudaSuccess)
        return fail(cudaErrorInvalidResourceHandle);
    event_cell *cell = event->cell;
    uint64_t number = load(&cell->recorded);
    process recorder = cell->recorder;
    submit(stream, [cell, number, recorder, device = stream->device] {
        if (load(&cell->completed) >= number)
            return true;
        if (recorder.pid == st.pid || is_alive(recorder))
            return false;
        if (load(&cell->completed) >= number) /* it came to it, then died */
            return true;
        lock failed(st.mutex);
        st.sticky[device] = cudaErrorLaunchFailure;
        return true;
    });
    return cudaSuccess;
}

static cudaError_t query(cudaEvent_t event) {
    const event_cell *cell = event->cell;
    if (load(&cell->completed) >= load(&cell->recorded))
        return cudaSuccess;
    return is_alive(cell->recorder) ? cudaErrorNotReady : cudaErrorLaunchFailure;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorUnknown);
    if (error != cudaSuccess)
        return error;
    if (check_event(event) != cudaSuccess)
        return fail(cudaErrorInvalidResourceHandle);
    if (check_capture() != cudaSuccess)
        return fail(check_capture());
    error = query(event);
    return error == cudaErrorNotReady ? error : fail(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorUnknown);
    if (error != cudaSuccess)
        return error;
    if (check_event(event) != cudaSuccess)
        return fail(cudaErrorInvalidResourceHandle);
    if (check_capture() != cudaSuccess)
        return fail(check_capture());
    st.n_spins += !(event->flags & cudaEventBlockingSync);
    /* The stream of one that has passed may be gone. */
    if (event->stream && event->cell->recorder.pid == st.pid && query(event) == cudaErrorNotReady)
        wait_for(l, event->stream, event->stream_position);
    while ((error = query(event)) == cudaErrorNotReady) { /* another process's GPU */
        l.unlock();
        usleep(100);
        l.lock();
    }
    return fail(error != cudaSuccess ? error : st.sticky[current]);
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t start, cudaEvent_t end) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorUnknown);
    if (error != cudaSuccess)
        return error;
    if (check_event(start) != cudaSuccess || check_event(end) != cudaSuccess ||
        ((start->flags | end->flags) & cudaEventDisableTiming) != 0)
        return fail(cudaErrorInvalidResourceHandle);
    if (query(start) != cudaSuccess || query(end) != cudaSuccess)
        return cudaErrorNotReady;
    *ret_ms =
        std::chrono::duration<float, std::milli>(end->completed_at - start->completed_at).count();
    return cudaSuccess;
}

/* ------------------------------------------------------------------------------------------------
 * Between processes
 * ---------------------------------------------------------------------------------------------- */

struct event_handle {
    uint32_t magic;
    shared_file file;
};
static_assert(sizeof(event_handle) <= sizeof(cudaIpcEventHandle_t), "it has to fit");
enum { EVENT_MAGIC = 0x46455654 };

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *ret_handle, cudaEvent_t event) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if (check_event(event) != cudaSuccess || event->imported ||
        !(event->flags & cudaEventInterprocess))
        return fail(cudaErrorInvalidResourceHandle);
    event_handle handle;
    memset(&handle, 0, sizeof handle);
    handle.magic = EVENT_MAGIC;
    handle.file = event->file;
    memset(ret_handle, 0, sizeof *ret_handle);
    memcpy(ret_handle, &handle, sizeof handle);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *ret_event, cudaIpcEventHandle_t handle) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMapBufferObjectFailed);
    if (error != cudaSuccess)
        return error;
    event_handle from;
    memcpy(&from, &handle, sizeof from);
    if (from.magic != EVENT_MAGIC)
        return fail(cudaErrorInvalidResourceHandle);
    if (from.file.owner.pid == st.owner.pid)
        return fail(cudaErrorDeviceUninitialized);
    auto *cell = (event_cell *)map_shared(from.file, 0, CELL_BYTES, nullptr);
    if (!cell)
        return fail(cudaErrorMapBufferObjectFailed);
    *ret_event = new CUevent_st{current, cell, from.file,
                                cudaEventDisableTiming | cudaEventInterprocess, true};
    st.events[*ret_event] = true;
    return cudaSuccess;
}
