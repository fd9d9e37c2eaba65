#!/usr/bin/env python3
"""What nvcc says of the device code, and what stands in the PTX. Needs nvcc, but no GPU.

    nvcc.py [--root FOLDER]

 1. kernels/kernels.cu is compiled for sm_80, sm_90, sm_100 and sm_120, every warning an error; so are
    the host sources and tests against NVIDIA's headers (the emulation has its own).
 2. In the PTX: each kernel that moves pages loads and stores 16 bytes at a time; nothing is fused,
    flushed, approximated or done in binary64; no array went to local memory.
 3. The check of (2) finds what is planted.

Without nvcc: one loud line, and status 77 (skipped).
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

ARCHITECTURES = ("80", "90", "100", "120")
NVCC_FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-ftz=false", "-prec-div=true",
              "-prec-sqrt=true", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
HOST_FLAGS = ["-std=c17", "-fsyntax-only", "-D_GNU_SOURCE", "-DKVT_REAL_CUDA", "-Wall", "-Wextra",
              "-Werror"]
HOST_SOURCES = ("kernels/device_cuda.c", "kernels/cuda_mover.c", "kernels/cuda_handles.c", "client/map_cuda.c",
                "client/map_cuda_areas.c", "client/map_cuda_check.c", "tests/cuda/api_numbers.c", "tests/cuda/test_kernels.c",
                "tests/cuda/test_ipc.c", "tests/cuda/test_device.c", "tests/cuda/test_engine.c", "tests/gpu/bench.c")

VECTOR = {  # kernel: 16-byte accesses that must be there
    "decode_kernel": ("ld.global", "st.global"),
    "encode_kernel": ("ld.global", "st.shared", "ld.shared", "st.global"),
    "fallback_kernel": ("ld.global", "st.global"),
    "copy_kernel": ("ld.global", "st.global"),
    "copy_runs_kernel": ("ld.global", "st.global"),
    "sum_kernel": ("ld.global", "st.global"),
}
FORBIDDEN = (
    (r"\bfma\.\S*f32|\bmad\.\S*f32", "a multiplication and an addition are fused"),
    (r"\.ftz\b", "subnormals are flushed"),
    (r"\bdiv\.(approx|full)|\brcp\.approx|\bsqrt\.approx|\bex2\.|\blg2\.", "approximated"),
    (r"\.f64\b", "binary64"),
    (r"\b(ld|st)\.local\b|\.local \.", "an array in local memory"),
)


def find_nvcc():
    for name in (os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if name and os.path.isfile(name):
            return name
    return None


def run(command, root):
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(" ".join(command))
        print(done.stdout + done.stderr)
        sys.exit(1)
    return done.stdout


def kernels_of(ptx):
    """Name and text of each kernel."""
    found = {}
    for match in re.finditer(r"\.entry\s+(\w+)\(", ptx):
        end = ptx.find("\n}", match.end())
        name = re.search(r"\d+([a-z_]+_kernel)", match[1])
        found[name[1] if name else match[1]] = ptx[match.end():end]
    return found


def is_vector(line, access):
    """A 16-byte access: four words, or two of 8 bytes."""
    return access in line and re.search(r"\.v4\.[ubsf]32|\.v2\.[ubsf]64", line)


def check_ptx(ptx):
    wrong = []
    kernels = kernels_of(ptx)
    for name, accesses in VECTOR.items():
        if name not in kernels:
            wrong.append(f"{name} is not in the PTX")
            continue
        for access in accesses:
            if not any(is_vector(line, access) for line in kernels[name].splitlines()):
                wrong.append(f"{name} has no 16-byte {access}")
    for name, text in kernels.items():
        for pattern, what in FORBIDDEN:
            match = re.search(pattern, text)
            if match:
                wrong.append(f"{name}: {what}: {match[0]}")
    return wrong


def check_planted(ptx):
    """Each planted change must be found."""
    plants = (
        (".v4.", ".v2."), ("mul.rn.f32", "fma.rn.f32"), ("add.rn.f32", "add.rn.ftz.f32"),
        ("div.rn.f32", "div.approx.f32"), ("st.shared", "st.local"),
        ("add.rn.f32", "add.rn.f64"),
    )
    for old, new in plants:
        if old not in ptx:
            sys.exit(f"the PTX has no {old} to plant {new} at")
        changed = ptx.replace(".v2.b64", ".v2.b32") if old == ".v4." else ptx
        if not check_ptx(changed.replace(old, new)):
            sys.exit(f"{new} instead of {old} was not found")
    return len(plants)


def main():
    parser = argparse.ArgumentParser(description="nvcc's view of the device code")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(here)))
    root = parser.parse_args().root
    nvcc = find_nvcc()
    if not nvcc:
        print("SKIP: NVCC IS NOT INSTALLED: the device code was not compiled for any GPU here")
        sys.exit(77)
    print(run([nvcc, "--version"], root).strip().splitlines()[-1])
    with tempfile.TemporaryDirectory(prefix="kvt-nvcc-") as folder:
        out = os.path.join(folder, "kernels.o")
        targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
        run([nvcc, *NVCC_FLAGS, *targets, "--threads", "2", "-I.", "-c", "kernels/kernels.cu",
             "-o", out], root)
        print("compiled for sm_" + ", sm_".join(ARCHITECTURES))
        for source in ("tests/cuda/test_lanes.cu", "tests/cuda/engine.cu"):
            run([nvcc, *NVCC_FLAGS, "-arch=sm_90", "-I.", "-c", source, "-o", out], root)
        ptx_file = os.path.join(folder, "kernels.ptx")
        run([nvcc, *NVCC_FLAGS, "-arch=compute_80", "-ptx", "-I.", "kernels/kernels.cu", "-o",
             ptx_file], root)
        with open(ptx_file, encoding="utf-8") as file:
            ptx = file.read()
    include = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")
    compiler = os.environ.get("CC", "cc")
    for source in HOST_SOURCES:
        run([compiler, *HOST_FLAGS, "-I.", "-isystem", include, source], root)
    print(f"{len(HOST_SOURCES)} host sources against NVIDIA's headers")
    wrong = check_ptx(ptx)
    for line in wrong:
        print("PTX:", line)
    if wrong:
        sys.exit(1)
    print(f"PTX: {len(kernels_of(ptx))} kernels as they should be; "
          f"{check_planted(ptx)} planted changes found")


if __name__ == "__main__":
    main()
