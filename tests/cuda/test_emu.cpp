/* The emulation itself: what a warp operation gives, what a barrier holds back, and that each fault
 * of a kernel is named. Kernels here are lambdas, run without the fake runtime. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/cuda/emu_run.h"

#define ALL 0xffffffffu

static emu_schedule schedule;

static void run(unsigned blocks, unsigned threads, size_t shared_bytes,
                std::function<void()> kernel) {
    emu_launch launch = {
        {blocks, 1, 1}, {threads, 1, 1}, shared_bytes, std::move(kernel), schedule};
    emu_run_grid(&launch);
}

static void test_indices() {
    emu_launch launch = {{3, 4, 5}, {2, 3, 4}, 0, nullptr, schedule};
    std::vector<int> seen(3 * 4 * 5 * 2 * 3 * 4);
    launch.thread_main = [&] {
        CHECK(gridDim.x == 3 && gridDim.y == 4 && gridDim.z == 5);
        CHECK(blockDim.x == 2 && blockDim.y == 3 && blockDim.z == 4);
        unsigned b = (blockIdx.z * 4 + blockIdx.y) * 3 + blockIdx.x;
        unsigned t = (threadIdx.z * 3 + threadIdx.y) * 2 + threadIdx.x;
        __syncthreads(); /* others ran meanwhile: the indices are mine again */
        CHECK(b == (blockIdx.z * 4 + blockIdx.y) * 3 + blockIdx.x);
        seen[b * 24 + t]++;
    };
    emu_run_grid(&launch);
    for (int n : seen)
        CHECK_EQ(n, 1);
}

static void test_shuffles() {
    run(1, 64, 0, [] {
        int lane = (int)threadIdx.x % 32, base = (int)threadIdx.x - lane,
            v = 100 + (int)threadIdx.x;
        CHECK_EQ(__shfl_sync(ALL, v, 5), 105 + base);
        CHECK_EQ(__shfl_sync(ALL, v, 5, 4), 100 + base + lane / 4 * 4 + 1);
        CHECK_EQ(__shfl_up_sync(ALL, v, 3), lane < 3 ? v : v - 3);
        CHECK_EQ(__shfl_up_sync(ALL, v, 3, 8), lane % 8 < 3 ? v : v - 3);
        CHECK_EQ(__shfl_down_sync(ALL, v, 3), lane > 28 ? v : v + 3);
        CHECK_EQ(__shfl_down_sync(ALL, v, 3, 8), lane % 8 > 4 ? v : v + 3);
        CHECK_EQ(__shfl_xor_sync(ALL, v, 9), 100 + base + (lane ^ 9));
        /* Over a group's border: readable in the groups below, not in those above. */
        CHECK_EQ(__shfl_xor_sync(ALL, v, 9, 8), lane % 16 < 8 ? v : 100 + base + (lane ^ 9));
        CHECK(__shfl_xor_sync(ALL, (double)v, 1) == 100 + base + (lane ^ 1));
        uint64_t wide = (uint64_t)v << 40;
        CHECK(__shfl_sync(ALL, wide, 31) == (uint64_t)(131 + base) << 40);
    });
}

static void test_votes() {
    run(1, 96, 0, [] {
        unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        CHECK(__ballot_sync(ALL, lane % 3 == warp) == (warp == 0   ? 0x49249249u
                                                       : warp == 1 ? 0x92492492u
                                                                   : 0x24924924u));
        CHECK_EQ(__any_sync(ALL, lane == 7 && warp == 1), warp == 1);
        CHECK_EQ(__all_sync(ALL, lane != 7 || warp == 1), warp == 1);
        CHECK_EQ(__reduce_add_sync(ALL, lane), 496);
        CHECK_EQ(__reduce_max_sync(ALL, lane + warp), 31 + warp);
        CHECK_EQ(__reduce_min_sync(ALL, lane + warp), warp);
        CHECK_EQ(__reduce_or_sync(ALL, 1u << lane % 4), 15);
        if (lane < 8) /* part of a warp, by itself */
            CHECK_EQ(__reduce_add_sync(0xffu, 2u), 16);
        else
            CHECK_EQ(__reduce_add_sync(0xffffff00u, 3u), 72);
    });
}

static void test_barriers() {
    enum { N = 256 };
    unsigned sums[3] = {0, 0, 0};
    run(3, N, N * sizeof(unsigned), [&] {
        auto *shared = (unsigned *)emu_dynamic_shared();
        CHECK(shared[threadIdx.x] == ALL); /* poisoned, for each block anew */
        __syncthreads();
        unsigned sum = 0;
        for (unsigned round = 0; round < 4; round++) {
            shared[threadIdx.x] = threadIdx.x * round + blockIdx.x;
            __syncthreads();
            for (unsigned i = 0; i < N; i++)
                sum += shared[i];
            __syncthreads();
        }
        atomicAdd(&sums[blockIdx.x], sum);
        CHECK_EQ(__syncthreads_or(threadIdx.x == 77 && blockIdx.x == 1), blockIdx.x == 1);
    });
    for (unsigned b = 0; b < 3; b++)
        CHECK_EQ(sums[b], N * (6 * (N * (N - 1) / 2) + 4 * N * b));
}

static void test_atomics() {
    unsigned sum = 0, max = 0, bits = 0;
    run(5, 64, 0, [&] {
        unsigned i = blockIdx.x * 64 + threadIdx.x;
        atomicAdd(&sum, i);
        atomicMax(&max, i * 7 % 320);
        atomicOr(&bits, 1u << i % 32);
    });
    CHECK(sum == 320 * 319 / 2 && max == 319 && bits == ALL);
}

static void test_arithmetic() {
    CHECK_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x7610), 0x77661100);
    CHECK_EQ(__byte_perm(0x80000000u, 0x0000007fu, 0x4cb0), 0x7f00ff00);
    CHECK_EQ(__popc(0xf0f0u), 8);
    CHECK(__clz(1) == 31 && __clz(0) == 32 && __ffs(8) == 4 && __ffs(0) == 0);
    CHECK(__umul64hi(UINT64_MAX, UINT64_MAX) == UINT64_MAX - 1);
    CHECK(__float_as_uint(1.0f) == 0x3f800000u && __uint_as_float(0x40000000u) == 2.0f);
}

/* ------------------------------------------------------------------------------------------------
 * Faults, each in a process of its own
 * ---------------------------------------------------------------------------------------------- */

/* The kernel must make the emulation abort with a message that holds `word`. */
static void expect_fault(const char *word, unsigned threads, std::function<void()> kernel) {
    int fds[2];
    CHECK(pipe(fds) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(fds[1], 2);
        run(2, threads, 64, std::move(kernel));
        _exit(0);
    }
    close(fds[1]);
    std::string text;
    char part[256];
    for (ssize_t n; (n = read(fds[0], part, sizeof part)) > 0;)
        text.append(part, (size_t)n);
    close(fds[0]);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s: status %d: %s", word, status,
              text.c_str());
    CHECK_MSG(text.find(word) != std::string::npos, "%s, but: %s", word, text.c_str());
}

static void test_faults() {
    expect_fault("some threads have ended", 64, [] {
        if (threadIdx.x == 9)
            return;
        __syncthreads();
    });
    expect_fault("different __syncthreads", 64, [] {
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __syncthreads();
    });
    expect_fault("no thread can go on", 64, [] {
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __shfl_sync(threadIdx.x == 40 ? 0xffffff00u : ALL, 1, 0);
    });
    expect_fault("mask does not name it", 32, [] { __shfl_sync(0xfffffffeu, 1, 5); });
    expect_fault("a lane that has ended", 32, [] {
        if (threadIdx.x != 3)
            __syncwarp();
    });
    expect_fault("that the block does not have", 16, [] { __syncwarp(); });
    expect_fault("not a power of two", 32, [] { __shfl_xor_sync(ALL, 1, 1, 12); });
    expect_fault("its mask does not name", 32, [] {
        if (threadIdx.x < 4)
            __shfl_sync(0xfu, 1, 7);
    });
}

int main() {
    for (unsigned number = 0; number < EMU_N_ORDERS; number++) {
        schedule = emu_schedule_number(number);
        test_indices();
        test_shuffles();
        test_votes();
        test_barriers();
        test_atomics();
        test_faults();
    }
    test_arithmetic();
    return 0;
}
