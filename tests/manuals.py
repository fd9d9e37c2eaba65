#!/usr/bin/env python3
"""The manual pages as they are built: kvtrunk(3) has every declaration of kvtrunk.h, each call with a
text of its own; kvtrunk-llama(1) has every option of that program; and no page makes groff or mandoc
warn (where they are installed). And the tests that FAULTS.md names exist."""
import os
import re
import shutil
import subprocess
import sys

SOURCE = os.environ["KVT_SOURCE_DIR"]
BUILD = os.environ["KVT_BUILD_DIR"]
PAGES = [f"{SOURCE}/client/kvtrunk.1", f"{BUILD}/client/kvtrunk.3",
         f"{BUILD}/daemon/kvtrunkd.conf.5", f"{SOURCE}/daemon/kvtrunkd.8",
         f"{SOURCE}/client/adapters/llama/kvtrunk-llama.1"]
failures = []


def check(good, what):
    if not good:
        failures.append(what)


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def check_page(page, code):
    """page: kvtrunk.3 as roff; code: the header without its comments."""
    calls = re.findall(r"\b(kvt_\w+)\([^;{}]*\);", code)
    types = re.findall(r"typedef (?:struct|enum) \w+ \{.*?\} (kvt_\w+);", code, flags=re.S)
    constants = re.findall(r"^ +(KVT_\w+)(?: = [^,\n]+)?,? *$", code, flags=re.M)
    check(len(calls) > 30 and len(types) > 8 and len(constants) > 30,
          f"{len(calls)} calls, {len(types)} types, {len(constants)} constants: too few were found")
    parts = re.split(r"^\.SS \"(.*)\"$", page, flags=re.M)
    texts = {}
    for names, text in zip(parts[1::2], parts[2::2]):
        text = re.split(r"^\.SH ", text, flags=re.M)[0]
        prose = re.sub(r"^\.nf$.*?^\.fi$", "", text, flags=re.M | re.S)
        for name in names.split(", "):
            texts[name] = (text, re.findall(r"[A-Za-z]{2,}", prose))
    for call in calls:
        text, words = texts.get(call, ("", []))
        check(call in texts, f"kvtrunk(3) has no heading for {call}")
        check(f"{call}(" in text, f"kvtrunk(3) does not show how {call} is declared")
        check(len(words) >= 8, f"kvtrunk(3) says next to nothing about {call}")
    for name in types + constants:
        check(re.search(rf"\b{name}\b", page), f"kvtrunk(3) has no {name}")
    for part in ("EXAMPLE", "SYNOPSIS", "THREADS", "STATUS"):
        check(f'.SH "{part}"' in page, f"kvtrunk(3) has no section {part}")


def check_llama(page):
    with open(f"{SOURCE}/client/adapters/llama/main.c", encoding="utf-8") as file:
        code = file.read()
    table = code[code.index("long_options[] = {"):]
    options = re.findall(r'\{"([\w-]+)", (\d),', table[:table.index("};")])
    check(len(options) > 15, f"{len(options)} options of kvtrunk-llama: too few were found")
    described = re.findall(r"^\.TP\n\.BI? \\-\\-(\S+)( \"|$)", page, flags=re.M)
    described = sorted((name.replace("\\-", "-"), "1" if value.strip() else "0") for name, value in described)
    check(described == sorted(options), f"kvtrunk-llama(1) has {described}, the program {sorted(options)}")
    for name, _ in options:
        check(f'"  --{name} ' in code or name == "help", f"kvtrunk-llama --help has no --{name}")


def check_faults():
    tests = set()
    for folder in ("tests", "tests/cuda"):
        with open(f"{BUILD}/{folder}/CTestTestfile.cmake", encoding="utf-8") as file:
            tests.update(re.findall(r"^add_test\(\[*=*\[?(\w+)", file.read(), flags=re.M))
    heads = ("| Fault | Test |", "| --- |")
    with open(f"{SOURCE}/tests/FAULTS.md", encoding="utf-8") as file:
        rows = [line.split("|") for line in file
                if line.startswith("| ") and not line.startswith(heads)]
    check(len(rows) > 50 and len(tests) > 40, f"{len(rows)} faults, {len(tests)} tests")
    for row in rows:
        named = [name for name in re.findall(r"`(\w+)`", row[2]) if name != "build"]
        check(named, f"FAULTS.md names no test for:{row[1]}")
        for name in named:
            check(name in tests, f"FAULTS.md names {name}, which is no test")


def lint(page):
    """Warnings about the text itself: what a terminal lacks is not its fault."""
    commands = []
    if shutil.which("groff"):
        commands.append(["groff", "-man", "-ww", "-z", "-Tutf8", page])
    if shutil.which("mandoc"):
        commands.append(["mandoc", "-T", "lint", "-W", "warning", page])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip()
        check(not said, f"{' '.join(command)}: {said}")


def main():
    for page in PAGES:
        check(os.path.getsize(page) > 2000, f"{page} is too short")
        lint(page)
    with open(PAGES[1], encoding="utf-8") as file:
        page = file.read()
    code = ""
    for header in ("kvtrunk.h", "kvtrunk_view.h"):
        with open(f"{SOURCE}/client/{header}", encoding="utf-8") as file:
            code += without_comments(file.read())
    check_page(page, code)
    with open(PAGES[4], encoding="utf-8") as file:
        check_llama(file.read())
    check_faults()
    for failure in failures:
        print(failure)
    print(f"manuals: {len(PAGES)} pages, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
