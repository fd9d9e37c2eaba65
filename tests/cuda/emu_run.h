/* emu_run.h - executing a grid; between the emulation and the fake runtime. */
#ifndef KVT_TESTS_CUDA_EMU_RUN_H
#define KVT_TESTS_CUDA_EMU_RUN_H

#include "tests/cuda/emu.h"
#include "tests/cuda/emu_device.h"

struct emu_launch {
    emu_index grid;
    emu_index block;
    size_t shared_bytes;
    std::function<void()> thread_main;
    emu_schedule schedule;
};

/* Runs every thread of every block on the calling OS thread. A fault of the kernel (a barrier that
 * not all come to, a lane missing from a warp operation) is printed, and the process aborted. */
void emu_run_grid(const emu_launch *launch);

/* The schedule that emu_set_schedule named last. */
emu_schedule emu_schedule_now();

#endif
