#!/usr/bin/env python3
"""The rules of the house, checked: who may include whom, where each library may be used, and what
may not stand anywhere.

    check_house.py [--root FOLDER] [--build FOLDER] [--no-format]
    check_house.py --self-test

Each violation is printed as FILE:LINE: [rule] what is wrong; status 1 if there is one. With a build
folder (ROOT/build if it is there) the archives are looked at too: what they really call. The layout
is compared with the root's .clang-format where clang-format 14 is installed.

Rules:
  include   a room includes only the rooms that it stands on (ROOMS below)
  meet      radix and store meet in daemon/core* alone
  root      includes are written from the root, and the file exists
  fence     nng, LMDB, zstd, CUDA, cJSON, zlib and llama.cpp are used where FENCES says, and nowhere
            else
  pure      the core, radix and store neither start threads nor, but for store, read a clock or
            do input and output
  contract  kvtrunk.h and its parts need nothing but <stddef.h>, <stdint.h> and each other, whom
            they name as they lie where they are installed: beside each other
  exports   kvtrunk.map shows the functions of kvtrunk.h and its parts, all and no others
  symbols   the same of the archives: what kvt_core, kvt_radix, kvt_store, ... leave undefined
  length    no file is over 900 lines
  words     no unfinished business, no path of somebody's machine
  top       at the root stand only the entries that are known
  format    clang-format 14 changes nothing
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

INSTALLED = ("client/kvtrunk.h", "client/kvtrunk_view.h")  # what users include, and its parts
CONTRACT = {"client/kvtrunk.h", "client/wire.h", "client/assert.h"}

# What files of a room may include beside the contract and the room itself. The first pattern that
# matches a file's path decides.
ROOMS = [
    (r"radix/", "radix", ()),
    (r"kernels/", "kernels", ()),
    (r"store/", "store", ("kernels/",)),
    (r"client/adapters/llama/", "the llama.cpp adapter", ()),
    (r"client/tool_[^/]*$", "the tool", ("client/", "radix/", "kernels/", "store/", "daemon/")),
    (r"client/", "the worker library", ("kernels/",)),
    (r"daemon/", "daemon", ("radix/", "store/", "kernels/")),
    (r"tests/", None, ()),
]

# System headers of a library: where they may be included. Tests may use everything.
FENCES = [
    ("nng", r"nng/", r"daemon/(server|publish)_nng\.c|client/(transport|listen)_nng\.c"),
    ("LMDB", r"lmdb\.h$", r"store/tier_lmdb\.c"),
    ("zstd", r"(zstd|zdict)", r"store/tier_pack\.c"),
    ("CUDA", r"(cuda|cublas|nvml|nvrtc|nvtx|cooperative_groups)", r"kernels/.*|client/map_cuda(_\w+)?\.[ch]"),
    ("cJSON", r"(cjson/)?cJSON", r"daemon/(config|report)\.c|client/tool_[^/]*\.c"),
    ("zlib", r"(zlib|zconf)\.h$", r"client/trace\.c"),
    ("llama.cpp", r"(llama|ggml|gguf)[-\w]*\.h$", r"client/adapters/llama/.*"),
]
CUDA_SOURCES = r"kernels/.*|tests/.*"

THREAD_HEADERS = {"pthread.h", "threads.h", "semaphore.h"}
IO_HEADERS = {"time.h", "unistd.h", "fcntl.h", "poll.h", "signal.h", "dirent.h", "sys/time.h",
              "sys/mman.h", "sys/socket.h", "sys/stat.h", "sys/epoll.h", "sys/wait.h",
              "sys/random.h", "sys/un.h"}
NO_THREADS = r"radix/.*|store/(?!tier_lmdb\.c).*|daemon/core[^/]*"
NO_IO = r"radix/.*|daemon/core[^/]*"

# Archives: what they may call of our own, and what they may not call of others.
ARCHIVES = {
    "kvt_radix": (),
    "kvt_wire": (),
    "kvt_kernels": (),
    "kvt_device": ("kvt_kernels",),
    "kvt_store": ("kvt_kernels", "kvt_device"),
    "kvt_policy": ("kvt_radix",),
    "kvt_core": ("kvt_radix", "kvt_policy", "kvt_store", "kvt_kernels", "kvt_device", "kvt_wire"),
}
LIBRARY_SYMBOLS = r"(nng|nni|mdb|ZSTD|cJSON|cuda|cu[A-Z])\w*|(in|de)flate\w*|gz(open|read|write)\w*"
THREAD_SYMBOLS = r"(pthread|thrd|mtx|cnd|sem)_\w+"
IO_SYMBOLS = (r"(open|openat|creat|read|write|pread|pwrite|close|socket|connect|bind|listen|accept4?|"
              r"send\w*|recv\w*|mmap|munmap|fopen|fread|fwrite|poll|epoll_\w+|clock_gettime|time|"
              r"gettimeofday|nanosleep|usleep|sleep|getrandom|rand|random|fork|getenv)(64)?")
SYMBOL_BANS = {
    "kvt_policy": (LIBRARY_SYMBOLS, THREAD_SYMBOLS, IO_SYMBOLS),
    "kvt_radix": (LIBRARY_SYMBOLS, THREAD_SYMBOLS, IO_SYMBOLS),
    "kvt_core": (LIBRARY_SYMBOLS, THREAD_SYMBOLS, IO_SYMBOLS),
    "kvt_store": (LIBRARY_SYMBOLS, THREAD_SYMBOLS),
}

TOP = {"client", "radix", "kernels", "store", "daemon", "conf", "tests", "CMakeLists.txt",
       "README.md", "LICENSE", "run", ".ci", ".gitignore", ".clang-format"}
NOT_OURS = r"build.*|\.git|\.venv|__pycache__"

MAX_LINES = 900
SOURCE = (".c", ".h", ".cu", ".cuh", ".cpp", ".inc")
TEXT = SOURCE + (".py", ".sh", ".cmake", ".txt", ".in", ".md", ".map", ".json")
# Spelled in parts, so that this file does not violate its own rule.
WORDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b|(?<![\w.])/wo" r"rk/")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


class House:
    def __init__(self, root, clang_format=True):
        self.root = root
        self.clang_format = clang_format
        self.violations = []

    def violate(self, path, line, rule, text):
        self.violations.append((path, line, rule, text))

    def files(self):
        """Every file of the tree, relative to the root, that is not built or kept by git."""
        for folder, folders, names in os.walk(self.root):
            at_root = os.path.samefile(folder, self.root)
            folders[:] = sorted(f for f in folders
                                if not re.fullmatch(NOT_OURS if at_root else "__pycache__", f))
            for name in sorted(names):
                yield os.path.relpath(os.path.join(folder, name), self.root)

    def check_top(self):
        for name in sorted(os.listdir(self.root)):
            if name not in TOP and not re.fullmatch(NOT_OURS, name):
                self.violate(name, 0, "top", "is not one of the known entries of the root")

    def check_room(self, path, line, included):
        if included in CONTRACT:
            return
        for pattern, name, allowed in ROOMS:
            if not re.match(pattern, path):
                continue
            own = "client/" if name in ("the tool", "the worker library") else pattern
            if name is None:
                return
            if not included.startswith((own,) + allowed):
                self.violate(path, line, "include", f"{name} may not include {included}")
            elif name == "the worker library" and \
                    included.startswith(("client/tool_", "client/adapters/")):
                self.violate(path, line, "include", f"{name} may not include {included}")
            return

    def check_quoted(self, path, line, included):
        if path in INSTALLED and "client/" + included in INSTALLED:
            return
        if "/" not in included or ".." in included.split("/") or \
                not os.path.isfile(os.path.join(self.root, included)):
            self.violate(path, line, "root", f'"{included}" is not a file, seen from the root')
            return
        self.check_room(path, line, included)
        if path in INSTALLED:
            self.violate(path, line, "contract", f"the contract may not include {included}")

    def check_system(self, path, line, included):
        if path in INSTALLED and included not in ("stddef.h", "stdint.h"):
            self.violate(path, line, "contract", f"the contract may not include <{included}>")
        if path.startswith("tests/"):
            return
        for library, header, place in FENCES:
            if re.match(header, included) and not re.fullmatch(place, path):
                self.violate(path, line, "fence", f"{library} may not be used here: <{included}>")
        if included in THREAD_HEADERS and re.fullmatch(NO_THREADS, path):
            self.violate(path, line, "pure", f"no threads here: <{included}>")
        if included in IO_HEADERS and re.fullmatch(NO_IO, path):
            self.violate(path, line, "pure", f"no clock, no input, no output here: <{included}>")

    def check_source(self, path, lines):
        met = {}
        for number, text in enumerate(lines, 1):
            match = INCLUDE.match(text)
            if not match:
                continue
            if match[1] == '"':
                self.check_quoted(path, number, match[2])
                met.setdefault(match[2].split("/")[0], number)
            else:
                self.check_system(path, number, match[2])
        if path.startswith("daemon/") and not re.match(r"daemon/core", path) and \
                "radix" in met and "store" in met:
            self.violate(path, max(met["radix"], met["store"]), "meet",
                         "radix and store meet in daemon/core* alone")
        if path.endswith((".cu", ".cuh")) and not re.fullmatch(CUDA_SOURCES, path):
            self.violate(path, 1, "fence", "CUDA sources stand in kernels/")

    def check_file(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        if path.endswith(SOURCE):
            self.check_source(path, lines)
        if len(lines) > MAX_LINES and path.endswith(SOURCE + (".py", ".sh", ".cmake")):
            self.violate(path, len(lines), "length", f"{len(lines)} lines, {MAX_LINES} at most")
        for number, text in enumerate(lines, 1):
            match = WORDS.search(text)
            if match:
                self.violate(path, number, "words", f"may not stand here: {match[0]}")

    def check_format(self, paths):
        tool = find_clang_format()
        if not tool:
            print("check_house: clang-format 14 is not installed: layout not looked at")
            return
        if not paths:
            return
        done = subprocess.run([tool, "--dry-run", "-Werror", "--style=file", *paths],
                              cwd=self.root, capture_output=True, text=True, check=False)
        seen = set()
        for text in done.stderr.splitlines():
            match = re.match(r"(\S+?):(\d+):\d+: error: ", text)
            if match and match[1] not in seen:
                seen.add(match[1])
                self.violate(os.path.normpath(match[1]), int(match[2]), "format",
                             "and perhaps further down: ./run format mends it")
        if done.returncode and not seen:
            self.violate(".clang-format", 0, "format", done.stderr.strip()[:300])

    def check_archives(self, build):
        defined, undefined = {}, {}
        for folder, _, names in os.walk(build):
            for name in names:
                match = re.fullmatch(r"lib(kvt_\w+)\.a", name)
                if match and shutil.which("nm"):
                    defined[match[1]], undefined[match[1]] = symbols(os.path.join(folder, name))
        for archive, names in sorted(undefined.items()):
            for name in sorted(names - defined[archive]):
                if any(re.fullmatch(ban, name) for ban in SYMBOL_BANS.get(archive, ())):
                    self.violate(f"lib{archive}.a", 0, "symbols", f"may not call {name}")
                if archive not in ARCHIVES:
                    continue
                homes = {a for a in defined if name in defined[a]}
                if homes and not homes & set(ARCHIVES[archive]):
                    self.violate(f"lib{archive}.a", 0, "symbols",
                                 f"may not call {name} of {', '.join(sorted(homes))}")
        return sorted(defined)

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    def check_exports(self):
        shown = "client/kvtrunk.map"
        headers = [h for h in INSTALLED if os.path.isfile(os.path.join(self.root, h))]
        if not headers or not os.path.isfile(os.path.join(self.root, shown)):
            return
        promised = set(re.findall(r"\b(kvt_[a-z_]+)\(", "".join(map(self.read, headers))))
        exported = set(re.findall(r"\b(kvt_[a-z_]+);", self.read(shown)))
        for name in sorted(promised ^ exported):
            self.violate(shown, 0, "exports", f"{name} stands in " +
                         ("the header alone" if name in promised else "the map alone"))

    def check(self, build=None):
        self.check_top()
        self.check_exports()
        sources = []
        for path in self.files():
            name = os.path.basename(path)
            if name.endswith(SOURCE):
                sources.append(path)
            if name.endswith(TEXT) or path in ("run", ".ci/run"):
                self.check_file(path)
        if self.clang_format:
            self.check_format(sources)
        archives = self.check_archives(build) if build else []
        return len(sources), archives


def symbols(archive):
    """Names that an archive defines for others, and names that it leaves undefined."""
    defined, undefined = set(), set()
    listing = subprocess.run(["nm", "-g", "-P", archive], capture_output=True, text=True,
                             check=True).stdout
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) < 2 or line.endswith(":"):
            continue
        name = fields[0].split("@")[0]
        (undefined if fields[1] in "Uwv" else defined).add(name)
    return defined, undefined


def find_clang_format():
    for tool in ("clang-format-14", "clang-format"):
        if shutil.which(tool):
            version = subprocess.run([tool, "--version"], capture_output=True, text=True,
                                     check=False).stdout
            if re.search(r"version 14\.", version):
                return tool
    return None


# ------------------------------------------------------------------------------------ self-test

# path, text, the violations that must be found in it as (line, rule)
PLANTED = [
    ("client/kvtrunk.h", "#include <stddef.h>\nint kvt_a(void);\nint kvt_b(void); // kvt_a()\n"
     '#include "kvtrunk_view.h"\n#include "wire.h"\n', [(5, "root")]),
    ("client/kvtrunk_view.h", '#include "kvtrunk.h"\n#include <stdio.h>\nint kvt_c(void);\n'
     '#include "client/wire.h"\n', [(2, "contract"), (4, "contract")]),
    ("client/kvtrunk.map", "V { global: kvt_a; kvt_d; local: *; };\n",
     [(0, "exports"), (0, "exports"), (0, "exports")]),
    ("client/wire.h", '#include "client/kvtrunk.h"\n', []),
    ("client/assert.h", "\n", []),
    ("client/client.h", '#include "kernels/page.h"\n#include "radix/radix.h"\n', [(2, "include")]),
    ("client/transport_nng.c", "#include <nng/nng.h>\n#include <pthread.h>\n", []),
    ("client/seal.c", '#include <nng/nng.h>\n#include "client/tool_x.h"\n',
     [(1, "fence"), (2, "include")]),
    ("client/tool_x.h", '#include "daemon/core.h"\n#include "store/frames.h"\n', []),
    ("client/tool_json.c", "#include <cjson/cJSON.h>\n#include <zlib.h>\n", [(2, "fence")]),
    ("client/trace.c", "  # include <zlib.h>\n", []),
    ("client/map_cuda.c", "#include <cuda.h>\n", []),
    ("client/adapters/llama/a.h", "#include <ggml-backend.h>\n#include <llama.h>\n", []),
    ("client/adapters/llama/b.c", '#include "client/kvtrunk.h"\n#include "client/client.h"\n'
     '#include "client/adapters/llama/a.h"\n', [(2, "include")]),
    ("client/reads.c", '#include <llama.h>\n#include "client/adapters/llama/a.h"\n',
     [(1, "fence"), (2, "include")]),
    ("client/map.c", "#include <cuda_runtime.h>\n", [(1, "fence")]),
    ("radix/radix.h", '#include "client/assert.h"\n#include "store/frames.h"\n', [(2, "include")]),
    ("radix/tree.c", "#include <time.h>\n#include <pthread.h>\n", [(1, "pure"), (2, "pure")]),
    ("radix/near.c", '#include "radix.h"\n#include "radix/../radix/radix.h"\n'
     '#include "radix/none.h"\n', [(1, "root"), (2, "root"), (3, "root")]),
    ("kernels/page.h", '#include "daemon/core.h"\n', [(1, "include")]),
    ("kernels/device_cuda.cu", "#include <cuda_runtime.h>\n", []),
    ("store/frames.h", '#include "kernels/page.h"\n#include "radix/radix.h"\n', [(2, "include")]),
    ("store/arena.c", "#include <sys/mman.h>\n#include <threads.h>\n", [(2, "pure")]),
    ("store/tier_lmdb.c", "#include <lmdb.h>\n", []),
    ("store/tier_pack.c", "#include <zstd.h>\n", []),
    ("store/other.c", "#include <lmdb.h>\n#include <zstd.h>\n", [(1, "fence"), (2, "fence")]),
    ("daemon/core.h", '#include "radix/radix.h"\n#include "store/frames.h"\n', []),
    ("daemon/core_evict.c", "#include <unistd.h>\n#include <string.h>\n", [(1, "pure")]),
    ("daemon/loop.c", '#include "radix/radix.h"\n#include "store/frames.h"\n', [(2, "meet")]),
    ("daemon/config.c", '#include <cjson/cJSON.h>\n#include "client/client.h"\n', [(2, "include")]),
    ("daemon/log.c", "#include <cJSON.h>\n", [(1, "fence")]),
    ("daemon/kernel.cu", "int x;\n", [(1, "fence")]),
    ("daemon/long.c", "int x;\n" * (MAX_LINES + 1), [(MAX_LINES + 1, "length")]),
    ("daemon/words.c", "/* TO" "DO */\n/* X" "XX */\n/* \"/wo" "rk/\" */\n/* XXH3, homework/x */\n",
     [(1, "words"), (2, "words"), (3, "words")]),
    ("tests/any.c", '#include <nng/nng.h>\n#include "radix/radix.h"\n#include "daemon/core.h"\n', []),
    ("notes.txt", "\n", [(0, "top")]),
    ("build-x/bad.c", "#include <lmdb.h>\n", []),
    ("CMakeLists.txt", "# FIX" "ME\n", [(1, "words")]),
]
MISSHAPEN = ("daemon/shape.c", "int  f( void ) {\nreturn 1 ;}\n")


def expect(what, actual, expected):
    missing, surplus = expected - actual, actual - expected
    for sign, entries in (("not found", missing), ("wrongly found", surplus)):
        for entry in sorted(entries):
            print(f"self-test, {what}: {sign}: {entry}")
    if missing or surplus:
        sys.exit(1)
    print(f"self-test, {what}: {len(expected)} planted, {len(expected)} found")


def plant(root, path, text):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as file:
        file.write(text)


def test_sources(root):
    for path, text, _ in PLANTED:
        plant(root, path, text)
    house = House(root, clang_format=False)
    house.check()
    expect("sources", {(p, line, rule) for p, line, rule, _ in house.violations},
           {(p, line, rule) for p, _, found in PLANTED for line, rule in found})


def test_format(root):
    if not find_clang_format():
        print("self-test, format: skipped, no clang-format 14")
        return
    plant(root, ".clang-format", "BasedOnStyle: LLVM\nIndentWidth: 4\n")
    plant(root, "daemon/fine.c", "int x;\n")
    plant(root, *MISSHAPEN)
    house = House(root)
    house.check()
    expect("format", {(p, rule) for p, _, rule, _ in house.violations},
           {(MISSHAPEN[0], "format")})


def test_archives(root):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler or not shutil.which("ar") or not shutil.which("nm"):
        print("self-test, symbols: skipped, no C compiler")
        return
    sources = {
        "kvt_radix": "int store_x(void); int radix_x(void); int radix_x(void) { return store_x(); }",
        "kvt_store": "int pthread_create(void); int store_x(void); int core_x(void);"
                     "int store_x(void) { return pthread_create(); }",
        "kvt_core": "int nng_init(void); int clock_gettime(void); int radix_x(void);"
                    "int core_x(void); int core_x(void)"
                    "{ return nng_init() + clock_gettime() + radix_x(); }",
        "kvt_other": "int mdb_put(void); int other(void); int other(void) { return mdb_put(); }",
    }
    for name, text in sources.items():
        plant(root, f"build/{name}.c", text)
        base = os.path.join(root, "build", name)
        subprocess.run([compiler, "-w", "-fno-builtin", "-c", base + ".c", "-o", base + ".o"],
                       check=True)
        library = os.path.join(root, "build", f"lib{name}.a")
        subprocess.run(["ar", "rc", library, base + ".o"], check=True)
    house = House(root, clang_format=False)
    house.check(os.path.join(root, "build"))
    expect("symbols", {(p, rule, text) for p, _, rule, text in house.violations},
           {("libkvt_radix.a", "symbols", "may not call store_x of kvt_store"),
            ("libkvt_store.a", "symbols", "may not call pthread_create"),
            ("libkvt_core.a", "symbols", "may not call nng_init"),
            ("libkvt_core.a", "symbols", "may not call clock_gettime")})


def self_test():
    for test in (test_sources, test_format, test_archives):
        with tempfile.TemporaryDirectory(prefix="kvt house ") as root:
            test(root)


def main():
    parser = argparse.ArgumentParser(description="Checks the rules of the house.")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--root", default=os.path.dirname(here))
    parser.add_argument("--build", help="build folder whose archives are looked at")
    parser.add_argument("--no-format", action="store_true", help="without clang-format")
    parser.add_argument("--self-test", action="store_true",
                        help="plants violations in a temporary tree and sees each one found")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    build = options.build or os.path.join(options.root, "build")
    house = House(options.root, not options.no_format)
    n_sources, archives = house.check(build if os.path.isdir(build) else None)
    for path, line, rule, text in sorted(house.violations):
        print(f"{path}:{line}: [{rule}] {text}")
    print(f"check_house: {n_sources} sources, {len(archives)} archives, "
          f"{len(house.violations)} violations")
    sys.exit(1 if house.violations else 0)


if __name__ == "__main__":
    main()
