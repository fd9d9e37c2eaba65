#!/usr/bin/env python3
"""What the log and the tool say of a disk that has not room for all, or does not answer.

    tests/e2e_disk.py [CASE ...]
"""
import json
import os
import re
import resource
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from e2e_daemon import BUILD, HANG_S, Daemon, check, helpers_of, main, until


def case_disk_of_others(folder):
    """What a start deletes since max_pages is less than before, and whose folders nobody counts."""
    disk, trace = os.path.join(folder, "disk"), os.path.join(folder, "few.pct")
    with open(trace, "w", encoding="ascii") as file:
        file.write("# PCT1 block_tokens=512 requests=8 source=made\n")
        file.write("".join(f"{i} 1024 1 - {2 * i}+2\n" for i in range(8))) # 16 pages each
    tool = os.path.join(BUILD, "client", "kvtrunk")
    tier = ["--set", "disk=64MiB", "--set", "disk_dir=" + disk]
    d = Daemon(folder, *tier, "--set", "max_pages=2000")
    ran = subprocess.run([tool, "replay", trace, "--connect", d.path, "--layers", "1", "--head-dim", "64"],
                         capture_output=True, text=True, timeout=HANG_S, check=False)
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    until(lambda: d.status()["counts"]["pages_dirty"] == 0, "all is on disk")
    n_pages = d.status()["counts"]["pages_disk"]
    check(n_pages == 128, n_pages)
    d.finish()
    d = Daemon(folder, *tier, "--set", "max_pages=100")
    until(lambda: "max_pages" in d.log(), "the sentence")
    check(f"disk: 28 pages in {disk} are deleted: with them more than 100 would be known" in d.log(), d.log())
    check("belongs to no tenant" not in d.log(), d.log())
    d.finish()
    # more than are on their way to being deleted at once: what stays meanwhile is no other page of its name
    with open(trace, "w", encoding="ascii") as file:
        file.write("# PCT1 block_tokens=512 requests=128 source=made\n")
        file.write("".join(f"{i} 1024 1 - {2 * i}+2\n" for i in range(128)))

    def replay(d):
        ran = subprocess.run([tool, "replay", trace, "--connect", d.path, "--layers", "1", "--head-dim", "64"],
                             capture_output=True, text=True, timeout=HANG_S, check=False)
        check(ran.returncode == 0, ran.stdout, ran.stderr)
        until(lambda: d.status()["counts"]["pages_dirty"] == 0, "all is on disk")

    d = Daemon(folder, *tier, "--set", "max_pages=4000")
    replay(d)
    d.finish()
    d = Daemon(folder, *tier, "--set", "max_pages=48")
    until(lambda: "with them more than 48" in d.log(), "the sentence")
    replay(d)
    report = d.status()
    check(report["disk"]["collisions"] == 0 and report["counts"]["pages_never"] == 0, report)
    d.finish()
    config = os.path.join(folder, "config")

    def with_tenants(*names):
        with open(config, "w", encoding="ascii") as file:
            json.dump({"tenants": [{"name": name, "uids": [os.geteuid() + i]} for i, name in
                                   enumerate(names)], "max_pages": 1000, "disk": "16MiB", "disk_dir": disk,
                       "arena": "4MiB"}, file)
        Daemon(folder, "--config", config).finish()
        return [line for line in d.log().splitlines() if "belongs to no tenant" in line]

    lines = with_tenants("red", "blue")
    check("tenant red: the disk holds 0 pages" in d.log(), d.log())
    check(len(lines) == 1 and f"{disk} belongs to no tenant" in lines[0], lines)
    size = sum(os.path.getsize(os.path.join(disk, name)) for name in os.listdir(disk)
               if os.path.isfile(os.path.join(disk, name)))
    check(f"its {size >> 10} KiB" in lines[0], size, lines)
    lines = with_tenants("red", "green")[1:]
    check(len(lines) == 2 and any(f"{disk}/blue belongs to no tenant" in line for line in lines), lines)


def many_pages(folder, requests):
    """A trace, of 16 pages a request."""
    trace = os.path.join(folder, "many.pct")
    with open(trace, "w", encoding="ascii") as file:
        file.write(f"# PCT1 block_tokens=512 requests={requests} source=made\n")
        file.write("".join(f"{i} 1024 1 - {2 * i}+2\n" for i in range(requests)))
    return trace


def run_tool(*args):
    return subprocess.run([os.path.join(BUILD, "client", "kvtrunk"), *args], capture_output=True, text=True,
                          timeout=HANG_S, check=False)


def case_stopped_while_it_hangs(folder):
    """The daemon is ended while its disk does not answer: that is what it says, and of how many pages."""
    d = Daemon(folder, "--set", "disk=64MiB", "--set", "disk_dir=" + os.path.join(folder, "disk"), "--set",
               "max_pages=2000", "--set", "drain_ms=1500")
    helper, = helpers_of(d.process.pid)
    os.kill(helper, signal.SIGSTOP)
    ran = run_tool("replay", many_pages(folder, 8), "--connect", d.path, "--layers", "1", "--head-dim", "64")
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    check(d.status()["counts"]["pages_dirty"] == 128, d.status())
    d.finish()
    said = re.search(r"tenant default: 128 pages were not written to disk, and are lost: it has not answered "
                     r"for (\d+) ms", d.log())
    check(said and int(said[1]) >= 1000 and "full" not in d.log(), d.log())


def start_holder(disk):
    """What has the directory is, by its arguments, a disk helper whose daemon is gone, and does not end."""
    holder = subprocess.Popen(["kvtrunkd-disk", "--disk-helper", disk, "1", "1", "1", "1", "1", "hold"],
                              executable=os.path.join(BUILD, "tests", "test_disk_life"), stdout=subprocess.PIPE)
    check(holder.stdout.read(1) == b"!", "nobody holds it")
    return holder


def case_start_on_a_disk_that_hangs(folder):
    """What has the disk was killed with its daemon, and waits for it: the next daemon serves without, and has all
    that is there when it is open."""
    disk = os.path.join(folder, "disk")
    tier = ["--set", "disk=64MiB", "--set", "disk_dir=" + disk, "--set", "max_pages=2000"]
    replay = ["replay", many_pages(folder, 8), "--layers", "1", "--head-dim", "64", "--connect"]

    def starts(d):
        ran = run_tool(*replay, d.path)
        check(ran.returncode == 0, ran.stdout, ran.stderr)

    d = Daemon(folder, *tier)
    starts(d)
    until(lambda: d.status()["counts"]["pages_dirty"] == 0, "all is on disk")
    d.finish()
    holder = start_holder(disk)
    try:
        Daemon(folder, *tier).finish()  # it is ended before the disk is there
        d = Daemon(folder, *tier)
        check(f"process {holder.pid} has this disk tier, though its daemon, process 1, is gone" in d.log(), d.log())
        check("is not open yet after 7 s" in d.log(), d.log())
        starts(d)
        counts = d.status()["counts"]
        check(counts["pages_disk"] == 0 and counts["pages_dirty"] == 128, counts)
    finally:
        holder.kill()
        holder.wait()
    until(lambda: "answers again" in d.log() and "the disk holds" in d.log(), "it is open")
    until(lambda: d.status()["counts"]["pages_dirty"] == 0, "all is on disk")
    check(d.status()["counts"]["pages_disk"] == 128, d.status()["counts"])
    check(d.status()["disk"]["collisions"] == 0, d.status()["disk"])
    d.finish()


def case_tenants_start_on_a_disk_that_hangs(folder):
    """They do not wait for it one after another, and each has its own when it is open."""
    disk, config = os.path.join(folder, "disk"), os.path.join(folder, "config")
    with open(config, "w", encoding="ascii") as file:
        json.dump({"tenants": [{"name": name, "uids": [os.geteuid() + i]} for i, name in
                               enumerate(("red", "green", "blue"))], "max_pages": 1000, "disk": "16MiB",
                   "disk_dir": disk, "arena": "4MiB"}, file)
    def times(name):
        return d.log().count(f"tenant {name}: the disk holds")

    Daemon(folder, "--config", config).finish()
    holders = [start_holder(os.path.join(disk, name)) for name in ("red", "blue")]
    try:
        d = Daemon(folder, "--config", config)
        check(f"{disk}/red is not open yet after 7 s" in d.log(), d.log())
        check(f"{disk}/blue is not open yet after 1 s" in d.log(), d.log())
        until(lambda: times("green") == 2, "one is open")
        check(times("red") == 1 and times("blue") == 1, d.log())
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
    until(lambda: times("red") == 2 and times("blue") == 2, "all are open")
    d.finish()


def case_spill_ends_on_a_full_disk(folder):
    """It does not wait for its ten minutes, and says how many pages could not be written, and why."""
    d = Daemon(folder, "--set", "arena=48MiB", "--set", "disk=16MiB", "--set", "max_pages=6000", "--set",
               "disk_dir=" + os.path.join(folder, "disk"), "--set", "host=16MiB")
    ran = run_tool("replay", many_pages(folder, 75), "--connect", d.path, "--layers", "4", "--head-dim", "64")
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    ran = run_tool("spill", "--socket", d.path)
    counts = d.status()["counts"]
    check(ran.returncode == 7, ran.returncode, ran.stdout, ran.stderr, counts)
    check(f", {counts['pages_dirty']:,} are not\nno more can be written: \"disk\" is used up" in ran.stdout,
          ran.stdout, counts)
    ran = run_tool("spill", "--json", "--socket", d.path)
    check(ran.returncode == 7 and json.loads(ran.stdout)["state"] == "full", ran.stdout)
    d.finish()
    check("are lost: it is full, and has" in d.log(), d.log())


def case_spill_ends_on_a_failing_disk(folder):
    """Nor there, where the process lives and its writes fail; and all goes down when they do not any more."""
    disk = os.path.join(folder, "disk")
    d = Daemon(folder, "--set", "disk=256MiB", "--set", "disk_dir=" + disk, "--set", "max_pages=2000")
    helper, = helpers_of(d.process.pid)
    limit = resource.prlimit(helper, resource.RLIMIT_FSIZE)
    # the file's next page would be written in part, which LMDB calls an I/O error
    size = os.path.getsize(os.path.join(disk, "data.mdb"))
    resource.prlimit(helper, resource.RLIMIT_FSIZE, (size + 1, limit[1]))
    ran = run_tool("replay", many_pages(folder, 8), "--connect", d.path, "--layers", "1", "--head-dim", "64")
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    ran = run_tool("spill", "--socket", d.path)
    report = d.status()
    check(ran.returncode == 7, ran.returncode, ran.stdout, ran.stderr, report)
    check(report["counts"]["pages_dirty"] == 128 and report["disk"]["restarts"] == 0, report)
    check(ran.stdout == "0 pages are on disk, 128 are not\nwriting fails with an I/O error: see the daemon's log\n",
          ran.stdout)
    check(f"pages cannot be written to {disk}: an I/O error" in d.log(), d.log())
    ran = run_tool("spill", "--json", "--socket", d.path)
    check(ran.returncode == 7 and json.loads(ran.stdout)["state"] == "fails", ran.stdout)
    resource.prlimit(helper, resource.RLIMIT_FSIZE, limit)
    until(lambda: d.status()["counts"]["pages_dirty"] == 0, "all is on disk")
    ran = run_tool("spill", "--socket", d.path)
    check(ran.returncode == 0 and ran.stdout == "128 pages are on disk\n", ran.returncode, ran.stdout)
    d.finish()


def case_put_aside(folder):
    """Two files that cannot be used, each in its place: the sentence about the second counts both."""
    disk, aside = os.path.join(folder, "disk"), os.path.join(folder, "disk", "aside")
    tier = ["--set", "disk=64MiB", "--set", "disk_dir=" + disk]
    Daemon(folder, *tier).finish()
    with open(os.path.join(disk, "stamp"), "w", encoding="ascii") as file:
        file.write("kvtrunk-disk-tier 99 closed some-boot\n")
    Daemon(folder, *tier).finish()
    with open(os.path.join(disk, "data.mdb"), "r+b") as file:
        file.write(bytes(8192))
    d = Daemon(folder, *tier)
    lines = [line for line in d.log().splitlines() if "starting with an empty one" in line]
    names = os.listdir(aside)
    check(len(lines) == 2 and len(names) == 2, lines, names)
    for line, reason in zip(lines, ("it is of another version", "it is damaged")):
        check(reason in line, line)
    kib = sum(os.path.getsize(os.path.join(aside, name)) for name in names) >> 10
    check(f"all that lies in aside, {kib} KiB, counts in \"disk\"" in lines[1], kib, lines)
    d.finish()


if __name__ == "__main__":
    main(globals())
