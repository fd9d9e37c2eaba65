#!/usr/bin/env python3
"""The program kvtrunk as people meet it: exit codes, messages that name what is wrong, reports that
hold what the daemon's own hold, and nothing left behind, however a replay ends.

    tool.py

KVT_BUILD_DIR names the build, KVT_SOURCE_DIR the sources.
"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("KVT_BUILD_DIR", "build"))
KVTRUNK = os.path.join(BUILD, "client", "kvtrunk")
KVTRUNKD = os.path.join(BUILD, "daemon", "kvtrunkd")
MANUAL = os.path.join(os.environ.get("KVT_SOURCE_DIR", "."), "client", "kvtrunk.1")
GIVE_UP_S = 120  # of each wait for something that must happen; a failure, not a measurement

folder = tempfile.mkdtemp(prefix="kvtrunk-tool-")
small_trace = os.path.join(folder, "small.pct")
SMALL_REQUESTS = 100
SMALL_PAGES = (1 + 2 * SMALL_REQUESTS) * 512 // 64


def fail(text):
    sys.exit("FAILED: " + text)


def check(true, text):
    if not true:
        fail(text)


def kvtrunk(*arguments, environment=None):
    return subprocess.run([KVTRUNK, *arguments], capture_output=True, text=True, check=False,
                          timeout=GIVE_UP_S, env={**os.environ, **(environment or {})})


def expect(code, words, *arguments, environment=None):
    """Exit code and words of the message on standard error (of the output, when all went well)."""
    done = kvtrunk(*arguments, environment=environment)
    shown = done.stdout if code == 0 else done.stderr
    what = f"kvtrunk {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    check(done.returncode == code, f"{what}expected exit code {code}")
    check(words in shown, f"{what}expected the words '{words}'")
    return done


def write(name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


def make_trace(path, n_requests):
    """All requests share their first block, and have two of their own."""
    with open(path, "w", encoding="ascii") as file:
        file.write(f"# PCT1 block_tokens=512 requests={n_requests} source=made\n")
        for i in range(n_requests):
            file.write(f"{i} 1536 1 - 0+1,{1 + 2 * i}+2\n")


def nobody_reads(*arguments):
    """As in front of head, which has read enough and gone: no word about it."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([KVTRUNK, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True,
                          check=False, timeout=GIVE_UP_S)
    os.close(writer)
    check(done.returncode != 0 and not done.stderr, f"{arguments}: {done}")


def synopses():
    """Of each command that the manual's synopsis names, its options and what stands for their values."""
    with open(MANUAL, encoding="ascii") as file:
        text = file.read().split(".SH SYNOPSIS\n")[1].split(".SH ")[0]
    found = {}
    for one in text.replace("\\-", "-").split(".br\n"):
        words = re.sub(r"^\.[A-Z]+ ", "", one, flags=re.M).replace("[", " ").replace("]", " ").split()
        if len(words) < 2 or not words[1].isalpha():
            continue
        found[words[1]] = [(word, words[i + 1] if i + 1 < len(words) and words[i + 1].isupper() else "")
                           for i, word in enumerate(words) if word.startswith("--")]
    return found


def usage():
    expect(2, "kvtrunk status")
    expect(0, "kvtrunk replay", "--help")
    expect(0, "--capacity X", "replay", "--help")
    expect(0, "--lines N", "tree", "--help")
    expect(0, "--json", "status", "--help")
    check(re.fullmatch(r"kvtrunk \d+\.\d+\.\d+\n", kvtrunk("--version").stdout), "--version")
    synopsis = synopses()
    for command in ("status", "tree", "watch", "sessions", "leases", "pin", "unpin", "flush", "spill",
                    "verify", "compact", "replay", "simulate", "sizes"):
        shown = re.findall(r"^  (--[a-z-]+)(?: ([A-Z]+))?(?= |$)", kvtrunk(command, "--help").stdout, re.M)
        shown = sorted(option for option in shown if option[0] != "--help")
        check(shown and shown == sorted(synopsis.get(command, [])),
              f"{MANUAL}: the synopsis of {command} has {synopsis.get(command)}, its help {shown}")
    for words, arguments in (
            ("no such command", ["nothing"]),
            ("the name of a trace", ["replay"]),
            ("one argument too many", ["replay", "a", "b"]),
            ("one argument too many", ["status", "a"]),
            ("no such option", ["status", "--jsn"]),
            ("no such option", ["compact", "--wait", "1"]),
            ("takes no value", ["status", "--json=1"]),
            ("a value is needed", ["tree", "--lines"]),
            ("a number from 1 to", ["tree", "--lines", "0"]),
            ("a number from 1 to 256", ["replay", small_trace, "--workers", "257"]),
            ("a number from 1 to", ["replay", small_trace, "--requests", "1x"]),
            ("a number from 1 to", ["replay", small_trace, "--requests", "-1"]),
            ("two dashes", ["replay", small_trace, "-w"]),
            ("the number of a pin", ["unpin"]),
            ("the number of a pin", ["unpin", "x"]),
            ("the number of a pin", ["unpin", "0"]),
            ("999999999999999999999: the number of a pin", ["unpin", "999999999999999999999"]),
            ('token 1 is ""', ["flush", "--realm", "1", "--tokens", "1,,2"]),
            ('token 0 is ""', ["flush", "--realm", "1", "--tokens", ",1"]),
            ('token 2 is ""', ["pin", "--realm", "1", "--tokens", "1,2,"]),
            ('token 1 is "-2"', ["pin", "--realm", "1", "--tokens", "1 -2"]),
            ('token 1 is "4294967296"', ["pin", "--realm", "1", "--tokens", "1,4294967296"]),
            ("does not end with ]", ["pin", "--realm", "1", "--tokens", "[1,2"]),
            ('stands "]"', ["pin", "--realm", "1", "--tokens", "1,2]"]),
            ('stands "] 3"', ["pin", "--realm", "1", "--tokens", "1,2] 3"]),
            ("no tokens", ["pin", "--realm", "1", "--tokens", "[ ]"]),
            ("say --all", ["flush"]),
            ("say --all", ["flush", "--all", "--realm", "1"]),
            ("say --all", ["flush", "--tokens", "1"]),
            ("a realm and tokens", ["pin", "--realm", "1"]),
            ("exclude each other", ["pin", "--tokens", "1", "--tokens-file", "x"]),
            ("one of s, ms, m, h", ["pin", "--ttl", "3w"]),
            ("one of B, KiB", ["pin", "--budget", "1.5GiB"]),
            ("a number of pages", ["replay", small_trace, "--capacity", "0"]),
            ("a number of pages", ["replay", small_trace, "--capacity", "1.5"]),
            ("a number of pages", ["replay", small_trace, "--capacity", "ten"]),
            ("a number of pages", ["replay", small_trace, "--capacity", "nan%"]),
            ("--connect", ["replay", small_trace, "--capacity", "9", "--connect", "/x"]),
            ("worth or lru", ["replay", small_trace, "--policy", "opt"]),
            ("which trace", ["simulate"]),
            ("worth, lru and opt", ["simulate", small_trace, "--policy", "fifo"]),
            ("each can be named once", ["simulate", small_trace, "--policy", "lru,lru,lru,lru"]),
            ("--capacity", ["simulate", small_trace, "--capacity", "1x"]),
            ("--capacity", ["simulate", small_trace, "--capacity", "-1%"]),
            ("--capacity", ["simulate", small_trace, "--capacity", "nan%"]),
            ("--capacity", ["simulate", small_trace, "--capacity", "0x10%"]),
            ("--capacity", ["simulate", small_trace, "--capacity", "%"]),
            ("--capacity", ["simulate", small_trace, "--capacity", "KiB"]),
            ("less than a page", ["simulate", small_trace, "--capacity", "1B"]),
            ("a number of pages", ["replay", small_trace, "--capacity", "0x10"]),
            ("a number of pages", ["replay", small_trace, "--capacity", "1e2"]),
            ("a number of pages", ["replay", small_trace, "--capacity", "1B"]),
            ("less than a page", ["simulate", small_trace, "--capacity", "5KiB"]),
            ("codec", ["simulate", small_trace, "--codec", "nothing"]),
            ("two sets or more", ["simulate", small_trace, "--ladder", "i8"]),
            ("opt has no ladder", ["simulate", small_trace, "--ladder", "i8,i4", "--policy", "opt"]),
            ("less than a page", ["simulate", small_trace, "--capacity", "0%", "--policy", "opt"]),
            ("takes no less", ["simulate", small_trace, "--ladder", "i4,i8"]),
            ("16, 32, 64 or 128", ["simulate", small_trace, "--page-tokens", "48"]),
            ("f16 or bf16", ["replay", small_trace, "--dtype", "f32"]),
            ("head_dim", ["replay", small_trace, "--head-dim", "3"]),
            ("page_tokens", ["replay", small_trace, "--page-tokens", "48"]),
            ("codec", ["replay", small_trace, "--codec", "nothing"]),
    ):
        expect(2, words, *arguments)


def bad_files():
    expect(4, "cannot be opened", "replay", os.path.join(folder, "nothing"))
    expect(4, "no trace", "replay", write("text", "hello\n"))
    head = "# PCT1 block_tokens=4 requests=2 source=s\n"
    expect(4, "line 3", "replay", write("broken", head + "0 4 1 - 0+1\n0 4 1 - 1+\n"))
    expect(4, "cannot be opened", "simulate", os.path.join(folder, "nothing"))
    expect(4, "line 3", "simulate", os.path.join(folder, "broken"))
    expect(4, "asks for nothing", "simulate",
           write("empty", "# PCT1 block_tokens=4 requests=1 source=s\n0 0 1 - -\n"))
    expect(4, "No such file", "simulate", small_trace, "--model", os.path.join(folder, "nothing"))
    expect(4, "header says 2", "replay", write("short", head + "0 4 1 - 0+1\n"))


def no_daemon():
    path = os.path.join(folder, "no.sock")
    for arguments in (["status"], ["tree"], ["sessions"], ["leases"], ["pin"], ["unpin", "1"],
                      ["flush", "--all"]):
        expect(3, path, *arguments, "--socket", path)
        expect(3, path, *arguments, environment={"KVTRUNK_SOCKET": path})
    done = expect(3, path, "replay", small_trace, "--connect", path, "--workers", "3")
    check(done.stderr.count(path) == 1, "three workers said the same three times:\n" + done.stderr)
    expect(5, "did not start", "replay", small_trace, environment={"KVTRUNKD": "/nonexistent"})
    expect(5, "did not start", "replay", small_trace, environment={"KVTRUNKD": "/bin/true"})


def reports():
    """What status and tree show of a daemon after a replay against it."""
    path = os.path.join(folder, "k.sock")
    ready, write_end = os.pipe()
    daemon = subprocess.Popen([KVTRUNKD, "--socket", path, "--set", "arena=16MiB", "--ready-fd",
                               str(write_end)], pass_fds=[write_end], stderr=subprocess.DEVNULL)
    os.close(write_end)
    try:
        check(os.read(ready, 16) == b"READY\n", "the daemon did not come up")
        expect(0, "nobody has registered", "tree", "--socket", path)
        done = expect(0, "wrong bytes", "replay", small_trace, "--connect", path, "--workers", "2")
        check(re.search(r"^requests +100 ", done.stdout, re.M), done.stdout)
        look_at_status(path)
        look_at_tree(path)
        for command in ("spill", "verify", "compact"):
            for option in ([], ["--json"]):
                expect(4, f'{command}: the daemon has no disk tier: set "disk_dir"', command, *option,
                       "--socket", path)
        keep_and_flush(path)
        daemon.send_signal(signal.SIGTERM)
        check(daemon.wait(GIVE_UP_S) == 0, "the daemon did not end well")
    finally:
        daemon.kill()
        os.close(ready)


def children_of(pid):
    """Of a process: pid and command line of each child."""
    found = {}
    for name in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(name, encoding="ascii") as file:
                for child in file.read().split():
                    with open(f"/proc/{child}/cmdline", encoding="utf-8") as command:
                        found[int(child)] = command.read().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def await_count(path, name, value):
    end = time.monotonic() + GIVE_UP_S
    while time.monotonic() < end:
        counts = json.loads(kvtrunk("status", "--json", "--socket", path).stdout)["counts"]
        if counts[name] == value:
            return
    fail(f"{name} does not become {value}")


def disk():
    """A disk tier: all is written and right; only one checks it at a time."""
    path = os.path.join(folder, "d.sock")
    ready, write_end = os.pipe()
    daemon = subprocess.Popen([KVTRUNKD, "--socket", path, "--set", "arena=16MiB", "--set", "disk=64MiB",
                               "--set", "disk_dir=" + os.path.join(folder, "disk"), "--ready-fd",
                               str(write_end)], pass_fds=[write_end], stderr=subprocess.DEVNULL)
    os.close(write_end)
    try:
        check(os.read(ready, 16) == b"READY\n", "the daemon did not come up")
        to = ["--socket", path]
        expect(0, "wrong bytes", "replay", small_trace, "--connect", path)
        expect(0, f"{SMALL_PAGES:,} pages are on disk", "spill", *to)
        expect(0, f"{SMALL_PAGES:,} pages were read from disk and checked: all are right", "verify", *to)
        expect(0, f"records   {SMALL_PAGES:,}", "compact", *to)
        (helper,) = [pid for pid, command in children_of(daemon.pid).items()
                     if command[0] == "kvtrunkd-disk"]
        os.kill(helper, signal.SIGSTOP)
        first = subprocess.Popen([KVTRUNK, "verify", *to], stdout=subprocess.PIPE, text=True)
        await_count(path, "waiting", 1)
        expect(6, "being checked for another call", "verify", *to)
        os.kill(helper, signal.SIGCONT)
        shown = first.communicate(timeout=GIVE_UP_S)[0]
        check(first.returncode == 0 and "all are right" in shown, f"{first.returncode} {shown}")
        daemon.send_signal(signal.SIGTERM)
        check(daemon.wait(GIVE_UP_S) == 0, "the daemon did not end well")
    finally:
        daemon.kill()
        os.close(ready)


def ladder():
    """Pages that the daemon puts into fewer bits are not what was sealed, and right all the same."""
    trace = os.path.join(folder, "again.pct")
    with open(trace, "w", encoding="ascii") as file:
        file.write("# PCT1 block_tokens=512 requests=90 source=made\n")
        for i in range(90):
            file.write(f"{i} 1536 1 - 0+1,{1 + 2 * (i % 12)}+2\n")
    path = os.path.join(folder, "l.sock")
    shape = ["--layers", "4", "--heads", "2", "--head-dim", "32"]
    for steps, arena, words in (("f16 > i8 > i4", "12MiB", "every byte of all other pages"),
                                ("i8 > i4", "6MiB", "every row that was read"),
                                ("i4 > i2", "3MiB", "every row that was read")):
        codec = steps.split(" ", maxsplit=1)[0]
        ready, write_end = os.pipe()
        daemon = subprocess.Popen([KVTRUNKD, "--socket", path, "--set", "arena=" + arena,
                                   "--set", "ladder=" + steps, "--ready-fd", str(write_end)],
                                  pass_fds=[write_end], stderr=subprocess.DEVNULL)
        os.close(write_end)
        try:
            check(os.read(ready, 16) == b"READY\n", "the daemon did not come up")
            run = ["replay", trace, "--connect", path, "--codec", codec, *shape]
            end, shown = time.monotonic() + GIVE_UP_S, ""
            while "pages recompressed" not in shown and time.monotonic() < end:
                shown = expect(0, "", *run).stdout
            check("of them exactly so" in shown and words in shown, shown)
            done = {"pages_as_laddered": 0}
            while not done["pages_as_laddered"] and time.monotonic() < end:
                done = json.loads(expect(0, "", *run, "--json").stdout)
            check(0 < done["pages_as_laddered"] <= done["pages_recompressed"] and
                  done["wrong_bytes"] == 0, f"{steps}: {done}")
            daemon.send_signal(signal.SIGTERM)
            check(daemon.wait(GIVE_UP_S) == 0, "the daemon did not end well")
        finally:
            daemon.kill()
            os.close(ready)


def look_at_status(path):
    nobody_reads("status", "--socket", path)
    report = json.loads(kvtrunk("status", "--json", "--socket", path).stdout)
    counts = report["counts"]
    with open(MANUAL, encoding="ascii") as file:
        manual = file.read()
    for name in [*report, *counts]:
        check(re.search(rf"\b{name}\b", manual), f"{MANUAL} does not say what {name} is")
    check(counts["pages_evictable"] == SMALL_PAGES, f"{counts}")
    shown = expect(0, "pages_sealed", "status", "--socket", path).stdout
    for name, value in counts.items():
        if name.startswith("pages_") or name.startswith("tokens_"):
            check(re.search(rf"^ +{name} +{value:,}$", shown, re.M), f"{name} {value}:\n{shown}")
    check(counts["frames_used"] == SMALL_PAGES and counts["frames_max"] == 16 * 2**20 // 4096, f"{counts}")
    bar = rf"^arena .* of 16\.0 MiB, {SMALL_PAGES:,} of {counts['frames_max']:,} pages$"
    check(re.search(bar, shown, re.M), shown)
    check(re.search(r"^sessions_open \(1\)\n.*\n.*kvtrunk status", shown, re.M), shown)


def look_at_tree(path):
    lines = kvtrunk("tree", "--json", "--socket", path).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    check(sum(row.get("pages", 0) for row in rows) == SMALL_PAGES, f"{len(rows)} rows")
    tree = expect(0, f"{SMALL_PAGES:,} pages in 101 runs", "tree", "--socket", path).stdout
    check(tree.startswith('realm 1: model "replay", engine "oracle", codec set f16, 64 tokens'), tree)
    check(re.search(r"^  - 8 pages, 512 tokens  \[0 .* goes on in 100 ways$", tree, re.M), tree)
    check(re.search(r"^    - 16 pages, 1,024 tokens  \[1 ", tree, re.M), tree)
    cut = expect(0, "there is more", "tree", "--lines", "3", "--socket", path).stdout
    check(len(re.findall(r"^ *- ", cut, re.M)) == 2, cut)


def keep_and_flush(path):
    """The first block of the trace, which all requests share, is 8 pages of 64 tokens."""
    to = ["--socket", path]
    tree = [json.loads(line) for line in
            kvtrunk("tree", "--json", *to).stdout.splitlines()]
    run = next(row for row in tree if row.get("depth") == 1)
    first = ",".join(map(str, run["first_tokens"]))
    expect(0, "nothing is pinned", "pin", *to)
    expect(4, "realm 7 is not known", "pin", "--realm", "7", "--tokens", "1", *to)
    made = json.loads(expect(0, "", "pin", "--realm", "1", "--tokens", first, "--ttl", "1h",
                             "--json", *to).stdout)
    check(made["tokens"] == len(run["first_tokens"]), f"{made}")
    listed = json.loads(kvtrunk("pin", "--json", *to).stdout)
    check(listed["pin"] == made["pin"] and listed["owner"] == "kvtrunk pin" and
          listed["uid"] == os.getuid() and 0 < listed["left_ms"] <= 3600000, f"{listed}")
    expect(0, "kvtrunk pin", "pin", *to)
    expect(0, "", "unpin", str(made["pin"]), *to)
    expect(4, "there is no pin", "unpin", str(made["pin"]), *to)
    expect(0, "kvtrunk sessions", "sessions", *to)
    check(json.loads(kvtrunk("sessions", "--json", *to).stdout)["name"] == "kvtrunk sessions", "")
    expect(0, "nobody holds a lease", "leases", *to)
    rows = [json.loads(line) for line in
            kvtrunk("watch", "--json", "--dump", *to).stdout.splitlines()]
    check(rows[0]["event"] == "restart" and rows[-1]["event"] == "live", f"{rows[0]} {rows[-1]}")
    pages = {row["page"]: row for row in rows[1:-1]}
    check(len(pages) == SMALL_PAGES and all(
        row["event"] == "added" and len(row["tokens"]) == 64 and
        (row["parent"] == 0 or row["parent"] in pages) for row in pages.values()), "watch")
    expect(0, "what there is", "watch", "--events", "3", *to)
    tokens = write("tokens", first.replace(",", " \n"))
    gone = json.loads(expect(0, "", "flush", "--realm", "1", "--tokens-file", tokens, "--json",
                             *to).stdout)
    check(gone["pages"] == SMALL_PAGES and gone["held_pages"] == 0 and gone["pins"] == 0, f"{gone}")
    expect(0, "0 pages", "flush", "--all", *to)
    check(json.loads(kvtrunk("status", "--json", *to).stdout)["counts"]["frames_used"] == 0, "")


def not_ours():
    """A daemon of root, and somebody whom it does not serve."""
    if os.geteuid() != 0:
        return
    place = tempfile.mkdtemp(prefix="kvtrunk-tool-root-")
    os.chmod(place, 0o755)
    path = os.path.join(place, "k.sock")
    program = shutil.copy(KVTRUNK, place)
    ready, write_end = os.pipe()
    daemon = subprocess.Popen([KVTRUNKD, "--socket", path, "--set", "arena=1MiB", "--ready-fd",
                               str(write_end)], pass_fds=[write_end], stderr=subprocess.DEVNULL)
    os.close(write_end)
    try:
        check(os.read(ready, 16) == b"READY\n", "the daemon did not come up")
        done = subprocess.run([program, "status", "--socket", path], capture_output=True, text=True,
                              check=False, timeout=GIVE_UP_S, user=65534, group=65534,
                              extra_groups=[], cwd="/")
        check(done.returncode == 5 and "permission denied" in done.stderr,
              f"{done.returncode} {done.stderr}")
        daemon.send_signal(signal.SIGTERM)
        check(daemon.wait(GIVE_UP_S) == 0, "the daemon did not end well")
    finally:
        daemon.kill()
        os.close(ready)
        shutil.rmtree(place)


def running(trace, *options):
    """A replay under way: tool, daemon, workers, and the daemon's folder."""
    tool = subprocess.Popen([KVTRUNK, "replay", trace, *options], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + GIVE_UP_S
    while time.monotonic() < end and tool.poll() is None:
        children = children_of(tool.pid)
        daemons = [pid for pid, command in children.items() if command[0] == "kvtrunkd"]
        workers = [pid for pid, command in children.items() if command[1:2] == ["replay-worker"]]
        if daemons and len(workers) == 2:
            return tool, daemons[0], workers, os.path.dirname(children[daemons[0]][2])
        time.sleep(0.01)
    tool.kill()
    fail("the replay did not get under way: " + "".join(tool.communicate()))
    return None


def ends():
    """However a replay ends, its daemon and workers end, and its folder is gone."""
    long_trace = os.path.join(folder, "long.pct")
    make_trace(long_trace, 30000)
    for what, words in (("interrupt", "stopped by signal 2"), ("daemon", "ended by signal 9"),
                        ("worker", "was ended by signal 9"), ("kill", "")):
        tool, daemon, workers, its_folder = running(long_trace, "--workers", "2", "--capacity", "4000")
        if what == "interrupt":
            tool.send_signal(signal.SIGINT)
        elif what == "kill":
            tool.kill()
        else:
            os.kill(daemon if what == "daemon" else workers[0], signal.SIGKILL)
        _, shown = tool.communicate(timeout=GIVE_UP_S)
        check(tool.returncode == (-9 if what == "kill" else 1), f"{what}: {tool.returncode} {shown}")
        check(words in shown, f"{what}: expected the words '{words}':\n{shown}")
        end = time.monotonic() + GIVE_UP_S
        alive = [daemon, *workers]
        while alive and time.monotonic() < end:
            alive = [pid for pid in alive if os.path.exists(f"/proc/{pid}")]
            time.sleep(0.01)
        check(not alive, f"{what}: processes {alive} are still there")
        if what == "kill":  # nobody was left who could: but what takes memory is gone
            check(not glob.glob(its_folder + "/*.arena"), f"{its_folder} still holds an arena")
            expect(0, "wrong bytes", "replay", small_trace)
            check(not os.path.exists(its_folder), f"{its_folder} was not removed by the next run")
        else:
            check(not os.path.exists(its_folder), f"{what}: {its_folder} is left behind")


def main():
    make_trace(small_trace, SMALL_REQUESTS)
    try:
        usage()
        bad_files()
        no_daemon()
        reports()
        disk()
        ladder()
        not_ours()
        ends()
    finally:
        shutil.rmtree(folder)
    print("the tool says what it should")


if __name__ == "__main__":
    main()
