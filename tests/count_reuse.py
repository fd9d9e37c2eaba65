#!/usr/bin/env python3
"""The reuse that a trace holds, counted from the file alone: what the product's own numbers are
compared with. Shares nothing with the product (no expansion to tokens, no tree of its own making).

    count_reuse.py TRACE [--requests N] [--capacity PERCENT] [--json]
    count_reuse.py --self-test

TRACE is PCT1 (blocks; an id stands for a whole prefix) or a token stream (.tokens.jsonl), gzipped
or not; traces/README.md describes both. Printed are, for the first N requests served one after
another:

    tokens_asked   tokens of the prompts; of PCT1 whole blocks, the last one counted as full
    tokens_best    of these, tokens that stand in front of an earlier request too: what a cache with
                   room for everything serves. For token streams to the token: the longest common
                   prefix with any earlier request
    lru_percent    with --capacity, of PCT1 alone: blocks found by a cache that has room for PERCENT
                   of the trace's different blocks, forgets the one asked for longest ago, and never
                   one that another kept block goes on from, nor one of the request at hand
"""
import argparse
import gzip
import heapq
import json
import os
import random
import sys

TRACES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "traces")


def open_text(path):
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="ascii") if zipped else open(path, encoding="ascii")


def read_pct(path, n_requests=None):
    """Block size, and the list of block ids of each request."""
    requests = []
    with open_text(path) as file:
        fields = file.readline().split()
        if fields[:2] != ["#", "PCT1"]:
            raise ValueError(f"{path}:1: not PCT1")
        block_tokens = int(dict(f.split("=", 1) for f in fields[2:] if "=" in f)["block_tokens"])
        for line in file:
            if len(requests) == n_requests:
                break
            runs = line.split()[4]
            ids = []
            for run in [] if runs == "-" else runs.split(","):
                first, count = run.split("+")
                ids.extend(range(int(first), int(first) + int(count)))
            requests.append(ids)
    return block_tokens, requests


def read_tokens(path, n_requests=None):
    """The tokens of each request."""
    requests = []
    with open_text(path) as file:
        for line in file:
            if len(requests) == n_requests:
                break
            record = json.loads(line)
            front = requests[record["ref"]][: record["common"]] if record["common"] else []
            requests.append(front + record["new"])
    return requests


def count_blocks(block_tokens, requests):
    seen = set()
    asked = best = 0
    for ids in requests:
        asked += len(ids)
        for block in ids:
            if block not in seen:
                break
            best += 1
        seen.update(ids)
    return asked * block_tokens, best * block_tokens


def count_tokens(requests):
    """Walks a tree with one node a token; a step is a look-up of (node, token)."""
    step = {}
    asked = best = 0
    for tokens in requests:
        asked += len(tokens)
        node, depth = 0, 0
        for token in tokens:
            following = step.get(node << 32 | token)
            if following is None:
                break
            node, depth = following, depth + 1
        best += depth
        for token in tokens[depth:]:
            key, node = node << 32 | token, len(step) + 1
            step[key] = node
    return asked, best


class Lru:
    """Blocks with the time they were last asked for; the oldest leaf goes first."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.parent, self.n_children, self.asked = {}, {}, {}
        self.leaves = []  # heap of (asked, block); entries that time went past are skipped
        self.now = 0

    def evict(self, path):
        """Makes room for one block. False if every leaf belongs to the request at hand."""
        kept, found = [], False
        while self.leaves and not found:
            asked, block = heapq.heappop(self.leaves)
            if block not in self.asked or self.n_children[block]:
                continue
            if self.asked[block] != asked:
                heapq.heappush(self.leaves, (self.asked[block], block))
            elif block in path:
                kept.append((asked, block))
            else:
                found = True
                above = self.parent.pop(block)
                del self.asked[block], self.n_children[block]
                if above is not None:
                    self.n_children[above] -= 1
                    heapq.heappush(self.leaves, (self.asked[above], above))
        for entry in kept:
            heapq.heappush(self.leaves, entry)
        return found

    def request(self, ids):
        """Blocks found; what is missing is put in as far as there is room."""
        self.now += 1
        n_found = 0
        while n_found < len(ids) and ids[n_found] in self.asked:
            self.asked[ids[n_found]] = self.now
            n_found += 1
        path = set(ids)
        for depth in range(n_found, len(ids)):
            if len(self.asked) >= self.capacity and not self.evict(path):
                break
            block = ids[depth]
            above = ids[depth - 1] if depth else None
            self.asked[block], self.n_children[block] = self.now, 0
            self.parent[block] = above
            if above is not None:
                self.n_children[above] += 1
            heapq.heappush(self.leaves, (self.now, block))
        return n_found


def count_lru(requests, percent):
    unique = len({block for ids in requests for block in ids})
    cache = Lru(int(unique * percent / 100))
    found = sum(cache.request(ids) for ids in requests)
    return 100 * found / max(1, sum(len(ids) for ids in requests))


def report(path, n_requests=None, capacity=None):
    if "tokens.jsonl" in os.path.basename(path):
        requests = read_tokens(path, n_requests)
        asked, best = count_tokens(requests)
    else:
        block_tokens, requests = read_pct(path, n_requests)
        asked, best = count_blocks(block_tokens, requests)
    result = {"requests": len(requests), "tokens_asked": asked, "tokens_best": best}
    if capacity is not None:
        result["lru_percent"] = round(count_lru(requests, capacity), 3)
    return result


def check(what, actual, expected, tolerance=0):
    if abs(actual - expected) > tolerance:
        sys.exit(f"count_reuse: {what} is {actual}, expected {expected}")
    print(f"{what}: {actual}")


def self_test():
    conversation = os.path.join(TRACES, "mooncake_conversation.pct.gz")
    check("conversation, first 2,000: best", report(conversation, 2000)["tokens_best"], 8074752)
    whole = report(conversation)
    check("conversation: requests", whole["requests"], 12031)
    check("conversation: best", whole["tokens_best"], 54123520)
    part = os.path.join(TRACES, "mooncake_conversation_2500.pct.gz")
    if read_pct(part) != read_pct(conversation, 2500):
        sys.exit("count_reuse: the part of conversation is not the first 2,500 of the whole")

    # Published with the trace: blocks found with room for 5, 10, 25 % of the unique ones.
    block_tokens, requests = read_pct(conversation)
    for percent, published in ((1, 5.3), (5, 19.6), (10, 27.9), (25, 35.4), (50, 36.3)):
        found = count_lru(requests, percent)
        check(f"conversation: LRU at {percent} %", found, published, 0.1)
    asked, best = count_blocks(block_tokens, requests)
    check("conversation: LRU with room for all", count_lru(requests, 100), 100 * best / asked, 1e-9)

    # The same requests as streams and as their whole blocks: to the token never less is found, and
    # less than a block more a request.
    streams = read_tokens(os.path.join(TRACES, "taubench_airline.tokens.jsonl.gz"), 300)
    block_tokens, requests = read_pct(os.path.join(TRACES, "taubench_airline.pct.gz"), 300)
    to_the_token = count_tokens(streams)[1]
    in_blocks = count_blocks(block_tokens, requests)[1]
    if not in_blocks <= to_the_token < in_blocks + 300 * block_tokens:
        sys.exit(f"count_reuse: taubench: {to_the_token} tokens, but {in_blocks} in blocks")
    print(f"taubench, first 300: best: {to_the_token}, in whole blocks {in_blocks}")

    # The tree of tokens against every earlier request one by one, with an alphabet that is so
    # small that prefixes meet everywhere.
    for seed in range(200):
        rng = random.Random(seed)
        streams = [[rng.randrange(3) for _ in range(rng.randrange(12))] for _ in range(40)]
        expected = sum(max((len(os.path.commonprefix([streams[i], streams[j]]))
                            for j in range(i)), default=0) for i in range(len(streams)))
        if count_tokens(streams) != (sum(map(len, streams)), expected):
            sys.exit(f"count_reuse: seed {seed}: the tree of tokens counts wrongly")
    print("tree of tokens against all pairs: 200 seeds")


def main():
    parser = argparse.ArgumentParser(description="Counts the reuse that a trace holds.")
    parser.add_argument("trace", nargs="?")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N")
    parser.add_argument("--capacity", type=float, metavar="PERCENT",
                        help="also simulate LRU with this much room, in %% of the unique blocks")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if not options.trace:
        parser.error("which trace?")
    result = report(options.trace, options.requests, options.capacity)
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:13} {value:,}")


if __name__ == "__main__":
    main()
