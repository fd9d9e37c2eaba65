/*
 * fake_state.h - what the parts of the fake runtime share. One mutex guards all of it; it is never
 * held while work of a stream runs.
 */
#ifndef KVT_TESTS_CUDA_FAKE_STATE_H
#define KVT_TESTS_CUDA_FAKE_STATE_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/cuda/emu_device.h"
#include "tests/cuda/fake_cuda.h"

namespace fake {

using clock = std::chrono::steady_clock;

/* A process, told from a later one of the same number. */
struct process {
    int pid;
    uint64_t start; /* in ticks since boot; 0: no such process */
};
process process_of(int pid);
process this_process();
bool is_alive(const process &p); /* a zombie is not */

/* Memory that processes share: opened by others through /proc/PID/fd, so that nothing is left
 * behind whoever is killed. */
struct shared_file {
    process owner;
    int fd; /* in the owner */
};
bool share(uint64_t bytes, shared_file *ret_file);
/* Maps a part of it read-write, at `fixed` if that is not NULL. NULL on failure, and where the
 * owner is dead. */
void *map_shared(const shared_file &file, uint64_t offset, uint64_t bytes, void *fixed);

/* A piece of work: true when it is done, false to be asked again soon. */
using work = std::function<bool()>;
struct operation {
    work run;
    clock::time_point due; /* not before, unless somebody waits */
};

struct event_cell; /* in shared memory: fake_event.cpp */

} // namespace fake

struct CUstream_st {
    int device = 0;
    std::deque<fake::operation> operations;
    uint64_t submitted = 0, completed = 0;
    unsigned n_waiting = 0;                 /* host threads */
    bool blocked = false;                   /* the first operation was asked and is not done */
    fake::clock::time_point ask_again = {}; /* then */
    bool destroyed = false;                 /* goes when it is empty */
    bool is_default = false;                /* of a device, or of a thread: the runtime's own */
    bool is_blocking = true;                /* with its device's default stream */
    bool captures = false;
    bool is_spoiled = false; /* the capture, by a call that it does not allow */
};

namespace fake {

/* A run of device memory in this process's address space, between two guards. */
struct mapping {
    int device;
    char *map; /* [map, map + map_bytes) is accessible to whoever does the GPU's work */
    size_t map_bytes;
    size_t bytes; /* of the allocation, at the address it is known by */
    shared_file file;
    int key; /* its device's protection key, or -1 */
    bool imported;
    bool exported; /* its handle was asked for */
};

enum { MAX_DEVICES = 16 };
extern thread_local int current; /* the thread's device: what it pushed last, or has set, or 0 */

struct state {
    std::mutex mutex;
    std::condition_variable changed; /* work came, or was done */
    bool busy = false;               /* the GPU does one piece at a time */
    std::atomic<int> pid{0};         /* of the process that may use the runtime */
    process owner = {};
    int n_devices = 1;
    int first_device = 0; /* number on the bus of what this process calls device 0 */
    uint64_t random = 1;
    unsigned max_delay_us = 20000;
    bool hangs = false;
    unsigned contexts = 0;   /* bit: device */
    unsigned n_captures = 0; /* in global mode */
    uint64_t n_spins = 0;
    size_t max_bytes = (size_t)4 << 30;
    uint64_t n_calls = 0, fail_call = 0, lose_call = 0;
    const char *break_file = nullptr; /* once there is such a file, all work fails */
    int break_device = -1;            /* on this device of the bus alone; -1: on all */
    /* Once a device's work has failed, every call for it says so. */
    cudaError_t sticky[MAX_DEVICES] = {};
    CUstream_st default_stream[MAX_DEVICES];
    std::vector<cudaStream_t> streams;
    std::map<char *, mapping> device; /* by the address that cudaMalloc or the import gave */
    std::map<char *, size_t> pinned;
    std::map<cudaEvent_t, bool> events;
};
extern state &st; /* never destroyed: the GPU thread outlives main */

using lock = std::unique_lock<std::mutex>;

/* Each call begins with one of these and goes on only with cudaSuccess. `failure` is what an
 * injected failure gives. enter_free: calls that give back, or only ask. */
cudaError_t enter(lock &l, cudaError_t failure);
cudaError_t enter_free(lock &l);
/* Calls that make no context. */
cudaError_t enter_to_ask(lock &l);
/* Notes the error for cudaGetLastError. */
cudaError_t fail(cudaError_t error);

/* For what CUDA leaves undefined and a GPU would perhaps let pass. */
[[noreturn]] void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* memory */
mapping *device_of(const void *at, size_t bytes); /* the mapping that holds the whole range */
/* Memory of a device is for that device's streams: CUDA would let a copy pass, with no order to the
 * other device's own work. */
void check_device(const void *at, size_t bytes, const CUstream_st *stream);
bool touches_device(const void *at);
bool is_pinned(const void *at, size_t bytes);
bool map_device(int device, const shared_file &file, size_t bytes, bool imported, void **ret_at);
/* A device's memory becomes accessible for the calling thread, while that does the GPU's work. */
void open_guards(int device);
void close_guards(int device); /* and a fault again */

/* streams */
CUstream_st *stream_of(cudaStream_t stream); /* NULL: no such stream */
/* As enter, of a call that names a stream; and of one that puts something into it or asks for all
 * that is in it. In the default stream that would be about those, too, that block with it: while
 * one of them captures the call is refused, and the capture spoiled. */
cudaError_t enter_stream(lock &l, cudaStream_t handle, CUstream_st **ret_stream);
cudaError_t use_stream(lock &l, cudaStream_t handle, CUstream_st **ret_stream);
/* Of calls that CUDA forbids every thread, while any captures, unless that has said that it knows
 * what it does. */
cudaError_t check_capture();
void submit(CUstream_st *stream, work run);
void wait_for(lock &l, CUstream_st *stream, uint64_t n_completed);
void wait_for_all(lock &l);
void start_gpu();
bool is_idle(const CUstream_st *stream);

} // namespace fake

#endif
