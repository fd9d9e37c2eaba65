/*
 * Device memory of the fake runtime: shared between processes, poisoned when fresh, and closed to
 * the host.
 *
 *      | guard | ...gap... | the allocation, to a multiple of 256 bytes | guard |
 *              ^ map                                                    ^ a page's end
 *
 * The allocation stands against the guard behind it, so that an access past its end faults; under
 * AddressSanitizer the gap in front and the last bytes up to 256 are poisoned too. A host access to
 * a device pointer faults: the memory carries its device's protection key, to which only the thread
 * that does the GPU's work has the right, and only while it does it. On a processor without such
 * keys, or without one left, the memory is PROT_NONE between two pieces of work instead, for all
 * threads: that costs a walk through all page tables for each.
 */
#include "tests/cuda/fake_state.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void *at, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *at, size_t bytes);
}

namespace fake {

enum { PAGE = 4096, ALIGN = 256, GUARD = 16 * PAGE, POISON = 0xff };

/* In front of the data in the shared file: who has it mapped. */
struct memory_cell {
    process importers[PAGE / sizeof(process)];
};
enum { N_IMPORTERS = sizeof(memory_cell) / sizeof(process) };

enum { NO_KEY = -1 };

static int key_of(int device) {
    static int keys[MAX_DEVICES]; /* 0: not asked for */
    if (keys[device] == 0)
        keys[device] = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return keys[device] > 0 ? keys[device] : NO_KEY;
}

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static void poison(const char *at, size_t bytes) {
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(at, bytes);
}

static memory_cell *map_cell(const shared_file &file) {
    return (memory_cell *)map_shared(file, 0, PAGE, nullptr);
}

static void note_importer(memory_cell *cell) {
    for (int i = 0; i < N_IMPORTERS; i++) {
        int nobody = 0;
        if (__atomic_compare_exchange_n(&cell->importers[i].pid, &nobody, st.owner.pid, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            cell->importers[i].start = st.owner.start;
            return;
        }
    }
    misuse("more importers of one allocation than there is room to note");
}

/* Maps the file's data between guards and notes it; the allocation's address is *ret_at. */
bool map_device(int device, const shared_file &file, size_t bytes, bool imported, void **ret_at) {
    size_t map_bytes = round_up(bytes, PAGE), gap = map_bytes - round_up(bytes, ALIGN);
    char *room = (char *)mmap(nullptr, map_bytes + 2 * GUARD, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return false;
    memory_cell *cell = map_cell(file);
    char *map = (char *)map_shared(file, PAGE, map_bytes, room + GUARD);
    if (!cell || !map) {
        munmap(room, map_bytes + 2 * GUARD);
        return false;
    }
    if (imported)
        note_importer(cell);
    else
        memset(map, POISON, map_bytes);
    munmap(cell, PAGE);
    int key = key_of(device);
    if (key == NO_KEY || pkey_mprotect(map, map_bytes, PROT_READ | PROT_WRITE, key) != 0) {
        key = NO_KEY;
        mprotect(map, map_bytes, PROT_NONE);
    }
    poison(map, gap);
    poison(map + gap + bytes, map_bytes - gap - bytes);
    st.device[map + gap] = {device, map, map_bytes, bytes, file, key, imported, false};
    *ret_at = map + gap;
    return true;
}

/* A process that is dying has lost its memory before it loses its descriptors and its locks. */
static bool has_memory(const process &p) {
    char path[64];
    unsigned long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", p.pid);
    FILE *statm = fopen(path, "re");
    if (statm && fscanf(statm, "%lu", &pages) != 1)
        pages = 0;
    if (statm)
        fclose(statm);
    return pages > 0;
}

/* CUDA: "calling cudaFree on an exported memory region before calling cudaIpcCloseMemHandle in the
 * importing context will result in undefined behavior". */
static void check_no_importer(const mapping &m) {
    memory_cell *cell = map_cell(m.file);
    if (!cell)
        return;
    for (int i = 0; i < N_IMPORTERS; i++) {
        if (cell->importers[i].pid != 0 && is_alive(cell->importers[i]) &&
            has_memory(cell->importers[i]))
            misuse("device memory is freed while process %d has it mapped", cell->importers[i].pid);
    }
    munmap(cell, PAGE);
}

static void forget_importer(const mapping &m) {
    memory_cell *cell = map_cell(m.file);
    if (!cell)
        return; /* the owner is dead: nobody asks any more */
    for (int i = 0; i < N_IMPORTERS; i++) {
        if (cell->importers[i].pid == st.owner.pid) {
            __atomic_store_n(&cell->importers[i].pid, 0, __ATOMIC_SEQ_CST);
            break;
        }
    }
    munmap(cell, PAGE);
}

static void unmap_device(char *at) {
    mapping m = st.device[at];
    if (m.imported)
        forget_importer(m);
    else
        close(m.file.fd);
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(m.map, m.map_bytes);
    munmap(m.map - GUARD, m.map_bytes + 2 * GUARD);
    st.device.erase(at);
}

mapping *device_of(const void *at, size_t bytes) {
    auto next = st.device.upper_bound((char *)const_cast<void *>(at));
    if (next == st.device.begin())
        return nullptr;
    --next;
    size_t offset = (size_t)((const char *)at - next->first);
    return offset <= next->second.bytes && bytes <= next->second.bytes - offset ? &next->second
                                                                                : nullptr;
}

/* The guards and gaps count too: an address there was meant for the device. */
bool touches_device(const void *at) {
    for (const auto &entry : st.device) {
        const mapping &m = entry.second;
        if ((const char *)at >= m.map - GUARD && (const char *)at < m.map + m.map_bytes + GUARD)
            return true;
    }
    return false;
}

bool is_pinned(const void *at, size_t bytes) {
    auto next = st.pinned.upper_bound((char *)const_cast<void *>(at));
    if (next == st.pinned.begin())
        return false;
    --next;
    size_t offset = (size_t)((const char *)at - next->first);
    return offset <= next->second && bytes <= next->second - offset;
}

void check_device(const void *at, size_t bytes, const CUstream_st *stream) {
    const mapping *m = device_of(at, bytes);
    if (m && m->device != stream->device)
        misuse("memory of device %d is used in a stream of device %d", m->device, stream->device);
}

/* A kernel that reaches into the memory of another device than the one whose stream works faults.
 */
void open_guards(int device) {
    if (key_of(device) != NO_KEY)
        pkey_set(key_of(device), 0);
    for (const auto &entry : st.device) {
        const mapping &m = entry.second;
        if (m.device == device && m.key == NO_KEY)
            mprotect(m.map, m.map_bytes, PROT_READ | PROT_WRITE);
    }
}

void close_guards(int device) {
    if (key_of(device) != NO_KEY)
        pkey_set(key_of(device), PKEY_DISABLE_ACCESS);
    for (const auto &entry : st.device) {
        const mapping &m = entry.second;
        if (m.key == NO_KEY)
            mprotect(m.map, m.map_bytes, PROT_NONE);
    }
}

} // namespace fake

using namespace fake;

/* Of its own, on all devices: what others share is theirs. */
static size_t bytes_in_use() {
    size_t used = 0;
    for (const auto &entry : st.device)
        used += entry.second.imported ? 0 : entry.second.map_bytes;
    return used;
}

cudaError_t cudaMalloc(void **ret_memory, size_t bytes) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if (check_capture() != cudaSuccess)
        return fail(check_capture());
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return fail(bytes == 0 ? cudaErrorInvalidValue : cudaErrorMemoryAllocation);
    if (bytes_in_use() + round_up(bytes, PAGE) > st.max_bytes)
        return fail(cudaErrorMemoryAllocation);
    shared_file file;
    if (!share(PAGE + round_up(bytes, PAGE), &file))
        return fail(cudaErrorMemoryAllocation);
    if (!map_device(current, file, bytes, false, ret_memory)) {
        close(file.fd);
        return fail(cudaErrorMemoryAllocation);
    }
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_free(l);
    if (error != cudaSuccess || !memory)
        return error;
    auto found = st.device.find((char *)memory);
    if (found == st.device.end() || found->second.imported)
        misuse("cudaFree of what cudaMalloc did not give, or of what was freed before");
    check_no_importer(found->second);
    wait_for_all(l);
    unmap_device((char *)memory);
    return fail(st.sticky[current]);
}

cudaError_t cudaMemGetInfo(size_t *ret_free_bytes, size_t *ret_total_bytes) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorUnknown);
    if (error != cudaSuccess)
        return error;
    size_t used = 0, total = st.max_bytes;
    for (const auto &entry : st.device)
        used += entry.second.device == current ? entry.second.map_bytes : 0;
    *ret_free_bytes = used < total ? total - used : 0;
    *ret_total_bytes = total;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret_memory, size_t bytes, unsigned) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if (check_capture() != cudaSuccess)
        return fail(check_capture());
    void *memory;
    if (bytes == 0 || posix_memalign(&memory, PAGE, bytes) != 0)
        return fail(cudaErrorMemoryAllocation);
    memset(memory, POISON, bytes);
    st.pinned[(char *)memory] = bytes;
    *ret_memory = memory;
    return cudaSuccess;
}

/* Does not wait for work that still uses it: AddressSanitizer sees it when that comes. */
cudaError_t cudaFreeHost(void *memory) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_free(l);
    if (error != cudaSuccess || !memory)
        return error;
    if (st.pinned.erase((char *)memory) == 0)
        misuse("cudaFreeHost of what cudaHostAlloc did not give, or of what was freed before");
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if (!memory || bytes == 0)
        return fail(cudaErrorInvalidValue);
    const char *pins = getenv("KVT_FAKE_CUDA_PINS");
    if (pins && strcmp(pins, "0") == 0)
        return fail(cudaErrorNotSupported);
    if (is_pinned(memory, 1))
        return fail(cudaErrorHostMemoryAlreadyRegistered);
    st.pinned[(char *)memory] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_free(l);
    if (error != cudaSuccess)
        return error;
    return st.pinned.erase((char *)memory) ? cudaSuccess : fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *ret_attributes, const void *at) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorUnknown);
    if (error != cudaSuccess)
        return error;
    void *pointer = const_cast<void *>(at);
    *ret_attributes = {};
    ret_attributes->device = -1;
    if (device_of(at, 0)) {
        ret_attributes->type = cudaMemoryTypeDevice;
        ret_attributes->device = device_of(at, 0)->device;
        ret_attributes->devicePointer = pointer;
    } else if (is_pinned(at, 0)) {
        ret_attributes->type = cudaMemoryTypeHost;
        ret_attributes->device = 0;
        ret_attributes->devicePointer = ret_attributes->hostPointer = pointer;
    }
    return cudaSuccess;
}

/* ------------------------------------------------------------------------------------------------
 * Memory of another process
 * ---------------------------------------------------------------------------------------------- */

struct memory_handle {
    uint32_t magic;
    shared_file file;
    uint64_t bytes;
    int bus_device;
};
static_assert(sizeof(memory_handle) <= sizeof(cudaIpcMemHandle_t), "it has to fit");
enum { MEMORY_MAGIC = 0x464d454d, SHARED = 2 << 20 };

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *ret_handle, void *memory) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    auto found = st.device.find((char *)memory);
    if (found == st.device.end() || found->second.imported)
        return fail(cudaErrorInvalidValue);
    if (found->second.bytes % SHARED != 0)
        misuse("%zu bytes are shared that CUDA would have put into one block with others",
               found->second.bytes);
    found->second.exported = true;
    memory_handle handle;
    memset(&handle, 0, sizeof handle);
    handle.magic = MEMORY_MAGIC;
    handle.file = found->second.file;
    handle.bytes = found->second.bytes;
    handle.bus_device = st.first_device + found->second.device;
    memset(ret_handle, 0, sizeof *ret_handle);
    memcpy(ret_handle, &handle, sizeof handle);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **ret_memory, cudaIpcMemHandle_t handle, unsigned flags) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter(l, cudaErrorMapBufferObjectFailed);
    if (error != cudaSuccess)
        return error;
    memory_handle from;
    memcpy(&from, &handle, sizeof from);
    if (flags != cudaIpcMemLazyEnablePeerAccess || from.magic != MEMORY_MAGIC)
        return fail(cudaErrorInvalidValue);
    if (from.file.owner.pid == st.owner.pid)
        return fail(cudaErrorDeviceUninitialized);
    for (const auto &entry : st.device) {
        const shared_file &known = entry.second.file;
        if (entry.second.imported && is_alive(known.owner) &&
            known.owner.pid == from.file.owner.pid && known.owner.start == from.file.owner.start &&
            known.fd == from.file.fd)
            misuse("a memory handle is opened that is open in this process already");
    }
    if (from.bus_device != st.first_device + current)
        misuse("memory of device %d of the bus is opened on device %d", from.bus_device,
               st.first_device + current);
    return map_device(current, from.file, from.bytes, true, ret_memory)
               ? cudaSuccess
               : fail(cudaErrorMapBufferObjectFailed);
}

cudaError_t cudaIpcCloseMemHandle(void *memory) {
    lock l(st.mutex, std::defer_lock);
    cudaError_t error = enter_free(l);
    if (error != cudaSuccess)
        return error;
    auto found = st.device.find((char *)memory);
    if (found == st.device.end() || !found->second.imported)
        misuse("cudaIpcCloseMemHandle of what cudaIpcOpenMemHandle did not give");
    wait_for_all(l);
    unmap_device((char *)memory);
    return fail(st.sticky[current]);
}
