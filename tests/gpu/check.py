#!/usr/bin/env python3
"""What can be said of tests/gpu/run where there is no GPU: that the shell reads it, that it runs each
end-to-end test that is there for a GPU, and that it compiles what the CUDA module is made of. It is
run on a machine that is lent for minutes, where what was forgotten here is not found any more.
"""
import argparse
import os
import re
import subprocess
import sys

STAND_IN_ONLY = {"damage", "gpus", "gpu_faults"}


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def words_of(text, name):
    """The words of a bash array."""
    found = re.search(rf"^{name}=\(([^)]*)\)", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def tests_on_gpu(cmake):
    """Names of e2e tests that tests.cmake also runs on the stand-in, or there alone."""
    names = set(re.findall(r"^kvt_on_gpu\((\w+)", cmake, re.MULTILINE))
    for loop in re.findall(r"^foreach\(name ([\w ]+)\)\n(.*?)^endforeach", cmake, re.MULTILINE | re.DOTALL):
        if "kvt_on_gpu" in loop[1] or "KVT_TEST_DEVICE=cuda" in loop[1]:
            names |= set(loop[0].split())
    return names


def faults(root):
    run = read(root, "tests/gpu/run")
    shell = subprocess.run(["bash", "-n", os.path.join(root, "tests/gpu/run")], capture_output=True,
                           text=True, check=False)
    if shell.returncode != 0:
        yield "bash does not read it: " + shell.stderr.strip()
    wanted = tests_on_gpu(read(root, "tests/tests.cmake")) - STAND_IN_ONLY
    have = words_of(run, "e2e") | words_of(run, "e2e_long")
    if len(wanted) < 20:
        yield f"only {len(wanted)} tests for a GPU were found in tests.cmake"
    for name in sorted(wanted - have):
        yield f"e2e_{name} is run on the stand-in, and not by tests/gpu/run"
    for name in sorted(have - wanted):
        yield f"tests/gpu/run runs e2e_{name}, which is no test for a GPU"
    compiled = set(re.search(r"for c in (codec_ref .*?); do", run, re.DOTALL)[1].split())
    for name in re.findall(r"\b(\w+)\.c\b", re.search(r"SHARED ([^$]*)", read(root, "kernels/cuda.cmake"))[1]):
        if name not in compiled:
            yield f"kernels/{name}.c is in the module, and not compiled by tests/gpu/run"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    found = list(faults(parser.parse_args().root))
    print("\n".join(found) or "tests/gpu/run names all that there is")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
