#!/usr/bin/env python3
"""Replays of real traces through the real daemon, held against counts that share nothing with the
product (count_reuse.py): with room for all and one request after another, to the token; with less
room, the hit rate of LRU to half a point; with several workers, no wrong byte.

    replay.py [--long]

KVT_BUILD_DIR names the build. --long replays whole traces.
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import count_reuse
import e2e_daemon

BUILD = os.environ.get("KVT_BUILD_DIR", "build")
CONVERSATION = "mooncake_conversation.pct.gz"


def replay(trace, *options):
    command = [f"{BUILD}/client/kvtrunk", "replay", os.path.join(count_reuse.TRACES, trace), "--json"]
    done = subprocess.run(command + list(options), stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command + list(options))}: exit code {done.returncode}")
    result = json.loads(done.stdout)
    if result["wrong_bytes"] != 0:
        sys.exit(f"{trace} {options}: {result['wrong_bytes']} wrong bytes")
    return result


def expect(what, actual, expected, tolerance=0):
    line = f"{what}: {actual}, expected {expected}"
    print(line, flush=True)
    if abs(actual - expected) > tolerance:
        sys.exit("FAILED: " + line)


def whole(trace, n_requests, *options):
    """Room for all, one after another: the trace's own reuse, to the token."""
    counted = count_reuse.report(os.path.join(count_reuse.TRACES, trace), n_requests)
    limit = ["--requests", str(n_requests)] if n_requests else []
    result = replay(trace, *limit, *options)
    name = f"{trace} {' '.join(limit + list(options))}".strip()
    expect(f"{name}: tokens asked", result["tokens_asked"], counted["tokens_asked"])
    expect(f"{name}: tokens served", result["tokens_served"], counted["tokens_best"])
    expect(f"{name}: the tool's own count", result["tokens_best"], counted["tokens_best"])
    expect(f"{name}: errors", len(result["errors"]), 0)
    return result


def limited(trace, percent, n_requests):
    """Room for a part of the different pages: LRU on path tails."""
    counted = count_reuse.report(os.path.join(count_reuse.TRACES, trace), n_requests, percent)
    limit = ["--requests", str(n_requests)] if n_requests else []
    result = replay(trace, "--capacity", f"{percent}%", "--policy", "lru", *limit)
    expect(f"{trace} at {percent} %: hit rate in %",
           round(100 * result["tokens_served"] / result["tokens_asked"], 2),
           round(counted["lru_percent"], 2), 0.5)


def together(trace, n_requests):
    """Four workers at once: nothing wrong, nothing failed, and prefixes are really shared."""
    result = replay(trace, "--requests", str(n_requests), "--workers", "4")
    expect(f"{trace}, 4 workers: requests", result["requests"], n_requests)
    expect(f"{trace}, 4 workers: errors", len(result["errors"]), 0)
    if result["pages_shared"] == 0:
        sys.exit("FAILED: four workers shared nothing")


def all_comes_up():
    """Every prompt is on disk, and any of them fits the arena: each comes up whole, in each pass, though
    what stands in the arena is worth more to the policy than a page used now."""
    trace, pages = "taubench_airline.tokens.jsonl.gz", ("--layers", "1", "--heads", "1", "--head-dim", "32")
    with tempfile.TemporaryDirectory(prefix="kvtrunk-replay-") as folder:
        disk = os.path.join(folder, "disk")
        os.mkdir(disk)
        settings = ["host=2MiB", f"disk_dir={disk}", "disk=1GiB", "max_pages=40000", "promote_wait_ms=60000"]
        options = [word for setting in settings for word in ("--set", setting)]
        for is_there in (False, True):
            d = e2e_daemon.Daemon(folder, *options)
            for _ in range(2):
                result = replay(trace, "--requests", "600", "--connect", d.path, *pages)
                if is_there:
                    expect("all on disk: tokens served", result["tokens_served"], result["tokens_asked"])
                else: # what a slow disk refused has room the second time
                    subprocess.run([f"{BUILD}/client/kvtrunk", "spill", "--json"], check=True,
                                   stdout=subprocess.DEVNULL, env={**os.environ, "KVTRUNK_SOCKET": d.path})
            d.finish()


def main():
    long = "--long" in sys.argv
    result = whole(CONVERSATION, 2000)
    expect("conversation, 2000 requests", result["tokens_served"], 8074752)
    whole("claudecode_A_600.pct.gz", None if long else 200)
    whole("taubench_airline.tokens.jsonl.gz", None if long else 600)
    whole("taubench_airline.tokens.jsonl.gz", 300, "--page-tokens", "16")
    together(CONVERSATION, 1000)
    all_comes_up()
    if long:
        result = whole(CONVERSATION, None)
        expect("conversation, all", result["tokens_served"], 54123520)
    for percent in (5, 10, 25):
        limited(CONVERSATION, percent, None if long else 3000)


if __name__ == "__main__":
    main()
