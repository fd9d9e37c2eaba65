#!/usr/bin/env python3
"""Plants bugs, one at a time, and sees each of them found: a test that cannot fail proves nothing.

    mutants.py [--build FOLDER] [--cxx CXX] [--cc CC] [--only WORD] [--list]

A mutant is a change of one place in one source. The changed source is compiled and linked with the
libraries of the build folder, and its job (a test program with arguments) must fail; unchanged, every
job must pass. KVT_SANITIZE says which build it is: some bugs are found by AddressSanitizer alone, some
by ThreadSanitizer alone.
"""
import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile

PLAIN, ASAN, TSAN = "", "address,undefined", "thread"
LIMIT_S = 300

# job: test program, its arguments
JOBS = {
    "kernels": ("test_kernels", ["--cases", "26"]),
    "kernels_more": ("test_kernels", ["--cases", "88"]),
    "kernels_backward": ("test_kernels", ["--cases", "26", "--schedule", "1"]),
    "kernels_wide": ("test_kernels", ["--wide"]),
    "small": ("test_kernels", ["--small", "--schedule", "2"]),
    "lanes": ("test_lanes", []),
    "engine": ("test_engine", []),
    "ipc": ("test_ipc", []),
    "device": ("test_device", []),
    "workers": ("e2e_device", ["short"]),
    "gpus": ("e2e_gpus", ["short"]),
    "faults": ("e2e_gpu_faults", ["short"]),
}


class Mutant:
    def __init__(self, name, build, job, path, old, new):
        self.name, self.build, self.job = name, build, job
        self.path, self.old, self.new = path, old, new


SOURCES = {
    "test_kernels": ("tests/cuda/test_kernels.c", "kernels/kernels.cu"),
    "test_ipc": ("tests/cuda/test_ipc.c", "kernels/kernels.cu"),
    "test_device": ("tests/cuda/test_device.c", "kernels/device_cuda.c", "kernels/cuda_mover.c",
                    "kernels/cuda_handles.c", "kernels/kernels.cu"),
    "test_lanes": ("tests/cuda/test_lanes.cu",),
    "test_engine": ("tests/cuda/test_engine.c", "tests/cuda/engine.cu", "kernels/kernels.cu"),
}

# A worker and the daemon, end to end: beside the program there is the module that both load.
SOURCES["e2e_device"] = ("tests/e2e/device.c", "tests/e2e/e2e.c", "client/lease.c", "client/seal.c",
                         "client/pages_device.c")
SOURCES["e2e_gpu_faults"] = ("tests/e2e/gpu_faults.c", "tests/e2e/e2e.c")
SOURCES["e2e_gpus"] = ("tests/e2e/gpus.c", "tests/e2e/e2e.c")
MODULE_SOURCES = ("kernels/device_cuda.c", "kernels/cuda_mover.c", "kernels/cuda_handles.c",
                  "client/map_cuda.c", "client/map_cuda_areas.c", "client/map_cuda_check.c",
                  "tests/cuda/fake_module.cpp")
MAP, WORK, AREAS = "client/map_cuda.c", "client/pages_device.c", "client/map_cuda_areas.c"
MOVER = "kernels/cuda_mover.c"

ENCODE, UNIT, DEVICE = ("kernels/kernels_encode.cuh", "kernels/unit_encode.cuh",
                        "kernels/unit_device.cuh")
MUTANTS = [
    # --- barriers
    Mutant("no barrier behind the tile's loading", PLAIN, "kernels", ENCODE,
           "    __syncthreads();\n    uint8_t *to", "    uint8_t *to"),
    Mutant("no barrier behind the channels' statistics", PLAIN, "kernels_backward", UNIT,
           "    __syncthreads();\n    kvt_quantise_channels", "    kvt_quantise_channels"),
    Mutant("no barrier before the tile is used again", PLAIN, "kernels_wide", ENCODE,
           "__syncthreads(); /* the tile is free again */", ""),
    Mutant("a barrier that only half of the block comes to", PLAIN, "kernels", UNIT,
           "    __syncthreads();\n    kvt_quantise_channels",
           "    if (threadIdx.x < 64)\n        __syncthreads();\n    kvt_quantise_channels"),
    Mutant("a shuffle in place of __syncwarp", TSAN, "small", "kernels/page_device.cuh",
           "    __syncwarp();\n    return lane == 0",
           "    (void)__shfl_sync(KVT_ALL_LANES, 0u, 0);\n    return lane == 0"),
    Mutant("no barrier behind the tile's loading, seen as a race", TSAN, "small", ENCODE,
           "    __syncthreads();\n    uint8_t *to", "    uint8_t *to"),
    # --- between blocks
    Mutant("a status that is not set atomically", TSAN, "small", "kernels/kernels_decode.cuh",
           "atomicMax(ret_status, status);",
           "*ret_status = *ret_status > status ? *ret_status : status;"),
    # --- shuffles
    Mutant("maxima over 8 lanes at most", PLAIN, "kernels", UNIT,
           "__shfl_xor_sync(KVT_ALL_LANES, value, (int)step, 32)",
           "__shfl_xor_sync(KVT_ALL_LANES, value, (int)step, 8)"),
    Mutant("a transform over 4 lanes at most", PLAIN, "kernels", DEVICE,
           "__shfl_xor_sync(KVT_ALL_LANES, pairs[i], (int)step, 32)",
           "__shfl_xor_sync(KVT_ALL_LANES, pairs[i], (int)step, 4)"),
    Mutant("a checksum over half a warp", PLAIN, "kernels", "kernels/xxh3.cuh",
           "ret_sums[1] += __shfl_xor_sync(KVT_ALL_LANES, ret_sums[1], (int)step, 32)",
           "ret_sums[1] += __shfl_xor_sync(KVT_ALL_LANES, ret_sums[1], (int)step, 16)"),
    # --- stores out of bounds
    Mutant("16 bytes of zeros behind a page", PLAIN, "kernels", ENCODE,
           "b < kvt_lane_pad64(bytes)", "b <= kvt_lane_pad64(bytes)"),
    Mutant("a whole group stored where a row ends", ASAN, "kernels", DEVICE,
           "    if (n == KVT_GROUP && ((uintptr_t)at & 15u) == 0) {\n        *(uint4 *)at = elements;",
           "    if (((uintptr_t)at & 15u) == 0) {\n        *(uint4 *)at = elements;"),
    Mutant("one float behind the shared memory", ASAN, "kernels", UNIT,
           "    tile->m[c] = kvt_lane_float_of_half(m);",
           "    tile->m[c] = kvt_lane_float_of_half(m);\n"
           "    ((float *)(tile + 1))[0] = 0;"),
    Mutant("rows beyond the unit are read", ASAN, "kernels", "kernels/kernels_decode.cuh",
           "if (!idle && row < n_rows)\n                codes[i]",
           "if (!idle)\n                codes[i]"),
    # --- waiting
    Mutant("a call returns before the GPU is done", PLAIN, "device", MOVER,
           "cudaError_t error = kvt_cuda_wait(m);", "cudaError_t error = cudaSuccess;"),
    Mutant("pinned memory is filled while the GPU reads it", PLAIN, "device",
           "kernels/device_cuda.c",
           "cudaEventSynchronize(m->half_free[i % 2]) != cudaSuccess ||\n            !read_file",
           "!read_file"),
    Mutant("the importer does not wait for the event", PLAIN, "ipc", "tests/cuda/test_ipc.c",
           "    CUDA(cudaStreamWaitEvent(w.stream, event, 0));\n", ""),
    Mutant("results are read before the stream is done", PLAIN, "kernels",
           "tests/cuda/test_kernels.c",
           "b->results, b->workspace, b->stream));\n    CUDA(cudaStreamSynchronize(b->stream));",
           "b->results, b->workspace, b->stream));"),
    # --- between worker, daemon and GPU
    Mutant("a page is sealed before the copy's event", PLAIN, "workers", MOVER,
           "cudaError_t error = kvt_cuda_wait(m);", "cudaError_t error = cudaSuccess;"),
    Mutant("a seal does not wait for the encoding", PLAIN, "workers", WORK,
           "    wait_for(work);\n    kvt_status status = work->status;", "    kvt_status status = KVT_OK;"),
    Mutant("a frame is given back while the GPU reads it", PLAIN, "workers", "client/lease.c",
           "    kvt_device_wait(lease);\n    int lost", "    int lost"),
    Mutant("nobody waits for decoding", PLAIN, "workers", WORK,
           "        work->status = work->calls->wait(work->batch, work->why, sizeof work->why);",
           "        work->status = KVT_OK;"),
    Mutant("a path changes while the GPU reads it", PLAIN, "workers", "client/lease.c",
           "        kvt_device_wait(lease); /* the new path", "        ; /* the new path"),
    Mutant("a handle is opened twice", PLAIN, "workers", "kernels/cuda_handles.c",
           "while (opened && memcmp", "while (opened || memcmp"),
    Mutant("encoding beside the worker's stream", PLAIN, "workers", MAP,
           "from, b->results, b->workspace, stream);", "from, b->results, b->workspace, NULL);"),
    Mutant("decoding beside the worker's stream", PLAIN, "workers", MAP,
           "first_layer, n_layers, to, b->stream);", "first_layer, n_layers, to, NULL);"),
    Mutant("the plan of another thread's stream", PLAIN, "workers", MAP,
           "b->stream == cudaStreamPerThread && b->thread != this_thread()", "0"),
    Mutant("a capture of others is disturbed", PLAIN, "workers", "kernels/cuda_handles.c",
           "n_entered++ == 0) {\n        cudaThreadExchangeStreamCaptureMode(&other_mode);",
           "n_entered++ == 0) {"),
    Mutant("a capture beside the default stream is spoiled", PLAIN, "workers", MAP,
           "if (b->is_open && is_captured(b)) {", "if (!b && is_captured(b)) {"),
    Mutant("the plan of other tokens", PLAIN, "workers", MAP,
           "if (b->is_encoded || b->n != n_pieces", "return 1;\n    if (b->is_encoded || b->n != n_pieces"),
    Mutant("an area is freed while the daemon has it open", PLAIN, "faults", AREAS,
           "return flock(area->file, LOCK_EX | LOCK_NB) == 0;", "return 1;"),
    # --- what is not given back, by a worker that closes or a daemon that ends
    Mutant("a worker's stream stays", PLAIN, "workers", MAP,
           "    if (map->stream)\n        cudaStreamDestroy(map->stream);\n", ""),
    Mutant("a worker's event stays", PLAIN, "workers", MAP,
           "    if (b->done)\n        cudaEventDestroy(b->done);\n", ""),
    Mutant("the daemon's stream stays", PLAIN, "workers", MOVER,
           "    if (m->stream)\n        cudaStreamDestroy(m->stream);\n", ""),
    Mutant("the daemon's events stay", PLAIN, "workers", MOVER,
           "            cudaEventDestroy(m->half_free[i]);\n", "            ;\n"),
    Mutant("a worker's area stays open in the daemon", PLAIN, "faults", "kernels/device_cuda.c",
           "kvt_status status = kvt_cuda_close_memory((kvt_cuda_opened *)staged);",
           "kvt_status status = staged ? KVT_OK : KVT_EIO;"),
    Mutant("an area is never freed", PLAIN, "faults", AREAS,
           "return flock(area->file, LOCK_EX | LOCK_NB) == 0;", "return 0;"),
    Mutant("an area shares its block", PLAIN, "faults", "kernels/cuda_handles.c",
           "(int)cudaMalloc(ret_at, more - more % KVT_CUDA_SHARED_BYTES)",
           "(int)cudaMalloc(ret_at, (size_t)bytes + more % 1)"),
    # --- what is computed
    Mutant("a path's first rows are coded", PLAIN, "kernels", ENCODE,
           "write->is_first && loses_bits(made)", "write->is_first && made->n_ranges == 0"),
    # --- several GPUs
    Mutant("the daemon speaks to the wrong GPU", PLAIN, "gpus", MOVER,
           "    cudaSetDevice(movers->gpu); /* if it fails, so does what follows */\n", ""),
    Mutant("another process's memory is opened on the wrong GPU", PLAIN, "gpus",
           "kernels/cuda_handles.c", "    int entered = kvt_cuda_enter(gpu);\n    cudaError_t error = (cudaError_t)entered;",
           "    int entered = kvt_cuda_enter(0);\n    cudaError_t error = (cudaError_t)entered;"),
    Mutant("a worker takes its thread's GPU for its own", PLAIN, "gpus", MAP,
           "    int entered = kvt_cuda_enter(b->map->gpu);\n    int error = kvt_cuda_decode(",
           "    int entered = -1;\n    int error = kvt_cuda_decode("),
    Mutant("a worker makes a context on a GPU that it does not use", PLAIN, "gpus",
           "kernels/cuda_handles.c", "    driver.pop(&context);\n",
           "    driver.pop(&context);\n    int gpu = 0;\n    cudaGetDevice(&gpu);\n    cudaSetDevice(gpu);\n"),
    Mutant("an area on another GPU is opened", PLAIN, "gpus", "kernels/device_cuda.c",
           "strncmp(bus_id, memory->bus_id, sizeof bus_id) == 0", "1"),
    Mutant("the GPU is not told which page is the first", PLAIN, "workers", WORK,
           "o->is_first = encoded->page == 0;", "o->is_first = 0;"),
    Mutant("sums in another order", PLAIN, "kernels_more", UNIT, "elements[r * pitch]",
           "elements[(slice->n_rows - 1 - r) * pitch]"),
    Mutant("fp8 widened by the wrong power", PLAIN, "lanes", DEVICE, "256.0f", "128.0f"),
    Mutant("a level beside its code", PLAIN, "lanes", DEVICE, "second ^ 0x8888u", "second ^ 0x8088u"),
    Mutant("an engine that adds up half of a row", PLAIN, "engine", "tests/cuda/engine.cu",
           "step < GROUPS;", "step < GROUPS / 2;"),
    Mutant("the realm's codec instead of the header's", PLAIN, "kernels", "kernels/page_device.cuh",
           "kvt_lane_unit_at(page->page + offset, kvt_lane_codec_of(&page->ranges[range], raw, part)",
           "kvt_lane_unit_at(page->page + offset, kvt_lane_codec_of(&shape->ranges[range], raw, part)"),
    Mutant("a segment's size is believed", PLAIN, "kernels", "kernels/page_device.cuh",
           "if (offset != at || bytes != (uint32_t)should_be)", "if (offset != at)"),
    Mutant("a refused element is kept", PLAIN, "kernels", ENCODE, "        seen->refused = 1;\n", ""),
]


class Workshop:
    """Compiles and links in a folder of its own."""

    def __init__(self, options, folder):
        self.root, self.build, self.folder = options.root, options.build, folder
        self.cxx, self.cc = options.cxx, options.cc
        sanitize = os.environ.get("KVT_SANITIZE", "")
        self.sanitize = [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all"] if sanitize else []

    def run(self, command):
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(" ".join(command) + "\n" + done.stdout + done.stderr)

    def compile(self, source, overlay, out, *more):
        """`overlay` holds the changed source; everything else comes from the root."""
        changed = os.path.join(overlay, source)
        path = changed if os.path.exists(changed) else source
        flags = ["-O0", "-g1", "-D_GNU_SOURCE", "-I" + overlay, "-I" + self.root + "/tests/cuda/include",
                 "-I" + self.root, *self.sanitize, "-c"]
        if source.endswith((".cu", ".cpp")):
            command = [self.cxx, "-std=c++17", "-w", "-ffp-contract=off", "-fno-strict-aliasing",
                       "-x", "c++"]
        else:
            command = [self.cc, "-std=c17", "-w"]
        self.run([*command, *flags, *more, path, "-o", out])

    def build_job(self, program, overlay):
        """Links the program from what the overlay changes and what the build folder has."""
        out = overlay + "/"
        objects = []
        for source in SOURCES[program]:
            objects.append(out + os.path.basename(source) + ".o")
            self.compile(source, overlay, objects[-1])
        rooms = [os.path.join(self.build, path) for path in
                 ("tests/cuda/libkvt_emulation.a", "kernels/libkvt_device.a",
                  "kernels/libkvt_module.a", "kernels/libkvt_kernels.a")]
        system = ["-lxxhash", "-lpthread", "-ldl", "-lm"]
        if program.startswith("e2e_"):
            self.build_module(overlay, rooms, system)
            rooms = [os.path.join(self.build, path) for path in
                     ("client/libkvtrunk.a", "client/libkvt_oracle.a", "client/libkvt_wire.a")]
            system.append("-lnng")
        self.run([self.cxx, *self.sanitize, *objects, *rooms, *system, "-o", out + program])
        return out + program

    def build_module(self, overlay, rooms, system):
        objects = []
        for source in MODULE_SOURCES:
            objects.append(os.path.join(overlay, "module_" + os.path.basename(source) + ".o"))
            self.compile(source, overlay, objects[-1], "-fPIC")
        kernels = os.path.join(self.build, "tests/cuda/libkernels_emulated.a")
        self.run([self.cxx, "-shared", *self.sanitize, *objects, kernels, *rooms, *system, "-o",
                  os.path.join(overlay, "module.so")])

    def passes(self, job, overlay, delay_us=None):
        program, arguments = JOBS[job]
        binary = os.path.join(overlay, program)
        if not os.path.exists(binary):
            self.build_job(program, overlay)
        environment = dict(os.environ, KVT_BUILD_DIR=self.build, KVT_TEST_DEVICE="cuda",
                           KVTRUNK_CUDA=os.path.join(overlay, "module.so"), TMPDIR=self.folder)
        if delay_us:
            environment["KVT_FAKE_CUDA_DELAY_US"] = str(delay_us)
        if self.sanitize:  # fibers: see CMakeLists.txt
            environment["ASAN_OPTIONS"] = "detect_stack_use_after_return=0"
            environment["TSAN_OPTIONS"] = "halt_on_error=1"
        try:
            done = subprocess.run([binary, *arguments], cwd=overlay, capture_output=True,
                                  env=environment, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return False, "does not end"
        text = done.stderr.decode(errors="replace").strip().splitlines()
        text = [line for line in text if not line.startswith("kvtrunkd: info")] or text
        return done.returncode == 0, text[0][:150] if text else f"status {done.returncode}"

    def try_mutant(self, number, mutant):
        with open(os.path.join(self.root, mutant.path), encoding="utf-8") as file:
            text = file.read()
        if text.count(mutant.old) != 1:
            return False, f"its place in {mutant.path} is not there (or not once): update mutants.py"
        overlay = os.path.join(self.folder, f"mutant{number}")
        os.makedirs(os.path.join(overlay, os.path.dirname(mutant.path)))
        with open(os.path.join(overlay, mutant.path), "w", encoding="utf-8") as file:
            file.write(text.replace(mutant.old, mutant.new))
        # Between processes a race may go well, on a busy machine above all: then the GPU, which is
        # as late as it may be, is later.
        delays = (None, None, 100000, 100000, 1000000, 1000000)
        for delay_us in delays if mutant.job == "workers" else (None,):
            passes, said = self.passes(mutant.job, overlay, delay_us)
            if not passes:
                break
        return not passes, said


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    parser = argparse.ArgumentParser(description="plants bugs and sees them found")
    parser.add_argument("--root", default=root)
    parser.add_argument("--build", default=os.environ.get("KVT_BUILD_DIR", root + "/build"))
    parser.add_argument("--cxx", default="g++")
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    build = os.environ.get("KVT_SANITIZE", "")
    mutants = [m for m in MUTANTS if options.only in m.name and (options.list or m.build == build)]
    if options.list:
        for m in mutants:
            print(f"{m.build or 'plain':18} {m.job:17} {m.name}")
        return
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kvt-mutants-") as folder:
        shop = Workshop(options, folder)
        plain = os.path.join(folder, "unchanged")
        os.makedirs(plain)
        for program in sorted({JOBS[m.job][0] for m in mutants}):
            shop.build_job(program, plain)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = sorted({m.job for m in mutants})
            for job, (passes, said) in zip(jobs, pool.map(lambda j: shop.passes(j, plain), jobs)):
                failed += not passes
                print(f"{'passes' if passes else 'FAILS'}   unchanged: {job}"
                      f"{'' if passes else ': ' + said}")
            tries = pool.map(lambda pair: shop.try_mutant(*pair), enumerate(mutants))
            for mutant, (found, said) in zip(mutants, tries):
                failed += not found
                print(f"{'found ' if found else 'MISSED'}   {mutant.name} ({mutant.job}): {said}")
    print(f"{len(mutants)} mutants, {failed} faults")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
