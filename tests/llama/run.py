#!/usr/bin/env python3
"""The llama.cpp adapter with trained models, end to end. `./run llama` builds what it needs and runs it.

    run.py --build FOLDER --models FOLDER [--long] [CHECK ...]

Checks, in this order; each starts a daemon of its own:

    options    wrong command lines of kvtrunk-llama are refused before anything is loaded; its JSON is
               valid UTF-8 wherever generation ends; small batches hand in what they can
    realm      what cannot be shared is refused, and what changes bytes changes the realm
    bits       logits behind a loaded prefix are bit-equal to those behind one that is computed and
               cut at the same place: both models, f16 and quantised KV types, from another process;
               and they are not, where llama.cpp took another path (so the comparison can fail)
    groups     a model with sliding-window layers, of which the daemon keeps only the windows: the same
               bits again, and the bytes held are what the arithmetic says
    tiers      the same bits from pages that went to disk and came up, and after the daemon was
               started anew, once in order and once after it was killed
    flight     four workers at once on one prefix of 2,000 tokens: it is computed once
    kills      a worker killed in its prefill, the daemon killed in a prefill, no daemon, the daemon
               back: the others go on, and their logits are bit-equal to those of a worker alone
    memory     what four workers take that keep prompts for themselves, and with the daemon
    prompts    four workers, the questions of real few-shot tasks: a table
    first      time to the first token, warm against cold and against llama.cpp's own ways: a table
    server     (--long only) time to the first token of kvtrunk-llama beside that of llama-server with
               --cache-ram, in turns, both from text: a table
    codecs     (--long only) KL divergence and perplexity of each codec set, on real text: a table

It prints what it measured and ends with "llama: N passed, N failed". Waits are for something to become
so, bounded by HANG_S.
"""
import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
HANG_S = 600
NOWHERE = "/nowhere/kvtrunk.sock"
# llama.cpp's kernels for SmolLM2's own Q4_1 are slow on a CPU, so its weights are laid out as Q8_0.
# Where small differences are measured they are F16: with 8-bit weights activations are rounded to 8
# bits too, and that noise hides what a codec does.
SMOLLM2_PACKED = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = "SmolLM2-135M-Instruct.Q8_0.gguf"
SMOLLM2_F16 = "SmolLM2-135M-Instruct.F16.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_F16 = "gemma-3-270m.F16.gguf"
MADE = {SMOLLM2: (SMOLLM2_PACKED, "q8_0"), SMOLLM2_F16: (SMOLLM2_PACKED, "f16"),
        GEMMA_F16: (GEMMA, "f16")}

SMOLLM2_TOKEN_BYTES = 30 * 2 * 3 * 64 * 2  # layers, K and V, heads, head_dim, f16

options = None
folder = None


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def until(condition, what):
    """Returns the first true value of condition()."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"after {HANG_S} s still not so: {what}")


def built(*path):
    return os.path.join(options.build, *path)


def model(name):
    """Its file, which is made from the packed one if need be."""
    path = os.path.join(options.models, name)
    if name in MADE and not os.path.exists(path):
        source, kind = MADE[name]
        subprocess.run([built("tests", "probe"), "convert", "--model", model(source), "--out",
                        path + ".new", "--kv", kind, "--text", "-"], check=True)
        os.rename(path + ".new", path)
    return path


# ------------------------------------------------------------------------------------- processes


class Daemon:
    """A daemon with a socket of its own; as a context it ends with its block."""

    def __init__(self, *settings):
        self.socket = os.path.join(folder, "kvtrunk.sock")
        self.settings = [word for s in settings or ["arena=1GiB"] for word in ("--set", s)]
        self.process = None

    def start(self):
        read, write = os.pipe()
        with open(os.path.join(folder, "daemon.log"), "ab") as log:
            self.process = subprocess.Popen(
                [built("daemon", "kvtrunkd"), "--socket", self.socket, "--ready-fd", str(write),
                 *self.settings], pass_fds=[write], stdin=subprocess.DEVNULL, stderr=log)
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            check(ready.readline() == b"READY\n", "the daemon did not come up")
        return self

    def end(self, how=signal.SIGTERM):
        if self.process:
            self.process.send_signal(how)
            status = self.process.wait(HANG_S)
            self.process = None
            check(how != signal.SIGTERM or status == 0, "the daemon ended with status", status)

    def report(self):
        out = subprocess.run([built("client", "kvtrunk"), "status", "--json", "--socket",
                              self.socket], capture_output=True, check=True, text=True).stdout
        return json.loads(out)

    def counts(self):
        return self.report()["counts"]

    def __enter__(self):
        return self.start()

    def __exit__(self, *error):
        if self.process:
            if error[0]:
                self.process.kill()
                self.process.wait()
            else:
                self.end()


class Worker:
    """kvtrunk-llama, which takes prompts as lines. Ready when it has answered a first one."""

    def __init__(self, which, socket, number=0, more=()):
        self.process = subprocess.Popen(
            [built("client", "adapters", "llama", "kvtrunk-llama"), "--model", model(which),
             "--socket", socket, "--threads", "1", "--ctx", "3072", "--predict", "8", "--wait", str(1000 * HANG_S),
             "--json",
             *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self.begin(f"{number} is where worker number {number} begins.")

    def begin(self, prompt):
        line = prompt.replace("\\", "\\\\").replace("\n", "\\n")
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        check(line, "a worker ended with status", self.process.poll())
        return json.loads(line)

    def ask(self, prompt):
        self.begin(prompt)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        check(self.process.wait(HANG_S) == 0, "a worker ended with", self.process.returncode)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Crew:
    """Some workers, all ready."""

    def __init__(self, which, socket, n, more=()):
        self.workers = [Worker(which, socket, i, more) for i in range(n)]
        for worker in self.workers:
            worker.answer()

    def __enter__(self):
        return self.workers

    def __exit__(self, *error):
        for worker in self.workers:
            if error[0] or worker.process.returncode is not None:
                worker.kill()
            else:
                worker.end()


def probe(command, which, *more, text=None):
    """The lines that the probe prints, as objects."""
    arguments = [built("tests", "probe"), command, "--model", model(which), "--text",
                 text or os.path.join(folder, "text"), *[str(m) for m in more]]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=False)
    check(done.returncode == 0, *arguments, "gave", done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines()]


# ----------------------------------------------------------------------------------------- texts


def tasks():
    """Name and text of each few-shot prompt, without those that say the same."""
    seen, found = set(), []
    for name in sorted(os.listdir(os.path.join(HERE, "prompts"))):
        if not name.endswith(".txt"):
            continue
        with open(os.path.join(HERE, "prompts", name), encoding="utf-8") as file:
            text = file.read()
        if text not in seen:
            seen.add(text)
            found.append((name[:-4], text))
    return found


def questions(text):
    """The questions that a few-shot prompt answers, as they would be asked again."""
    parts = text.split("\nQ: ")[1:]
    return ["\n\nQ: " + part.split("\nA:")[0].strip() + "\nA: Let's think step by step.\n"
            for part in parts]


def whole_text():
    return "\n\n".join(text for _, text in tasks())


def long_prefix():
    """Some 2,000 tokens of SmolLM2's."""
    text = whole_text()[:7000]
    return text[:text.rindex("\n")]


def long_question(number):
    """Over 64 tokens, so that logits do not depend on where the prefix was cut."""
    return (f"\n\nQ: This is question number {number} of many, and nobody has asked it before. "
            + " ".join(f"Take {number * 7 + i} and add {i * i + number}." for i in range(12))
            + " What is the sum?\nA:")


# ---------------------------------------------------------------------------------------- checks


def logits(place, prefix):
    with open(os.path.join(folder, place, f"{prefix}.logits"), "rb") as file:
        return file.read()


def largest_difference(a, b):
    n = len(a) // 4
    return max(abs(x - y) for x, y in zip(struct.unpack(f"{n}f", a), struct.unpack(f"{n}f", b)))


def place(name):
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    return path


def seed(daemon, which, prefixes, *more):
    lines = probe("seed", which, "--socket", daemon.socket, "--list", ",".join(map(str, prefixes)), *more)
    check([line["sealed"] for line in lines] == prefixes, "not all was handed in:", lines)
    return lines


def is_equal(what, which, prefix):
    check(logits("warm", prefix) == logits("cold", prefix), which, what, "logits differ behind", prefix,
          "tokens by", largest_difference(logits("warm", prefix), logits("cold", prefix)))


def warm(daemon, which, prefixes, *more):
    """Writes the logits; every prefix was loaded, to its last token."""
    for line in probe("warm", which, "--socket", daemon.socket, "--list",
                      ",".join(map(str, prefixes)), "--out", place("warm"), *more):
        check(line["loaded"] == line["prefix"] and line["cache"] == "KVT_OK", line)


def cold(which, prefixes, *more):
    probe("cold", which, "--list", ",".join(map(str, prefixes)), "--out", place("cold"), *more)


def refused(status, words, *arguments):
    """kvtrunk-llama ends so, with these words, without having looked at the weights."""
    done = subprocess.run([built("client", "adapters", "llama", "kvtrunk-llama"), *arguments],
                          capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False)
    check(done.returncode == status and words in done.stderr and not done.stdout, arguments, "gave",
          done.returncode, done.stderr, done.stdout)


def options_of_the_tool():
    nothing = ("--model", "/nowhere/model.gguf")
    refused(2, "--model is needed")
    refused(2, "--help lists the options", *nothing, "--nonsense")
    refused(2, "--help lists the options", "--model")
    refused(2, "--kv q9: there are f16", *nothing, "--kv", "q9")
    for name, bad, words in (("ctx", "255", "256 to 1048576"), ("batch", "63", "64 to 65536"),
                             ("batch", "65537", "64 to 65536"), ("threads", "0", "1 to 512"),
                             ("predict", "-1", "0 to 1048576"), ("predict", "8x", "0 to 1048576"),
                             ("wait", "", "0 to 3600000"), ("wait", "9" * 30, "0 to 3600000")):
        refused(2, f"--{name} {bad}: a number from {words} is needed", *nothing, f"--{name}", bad)
    refused(1, "/nowhere/prefix: No such file", *nothing, "--prefix", "/nowhere/prefix")
    refused(1, "/nowhere/model.gguf: llama.cpp cannot load it", *nothing)
    # Characters of two to four bytes, which are several tokens of this model.
    text = "Copy: \U0001f9a9\U0001f9a9 \u0b95\u0b95 \U0001f9a9\u0b95\U0001f9a9\u0b95\U0001f9a9\u0b95. Copy:"
    n_cut = 0
    for predict in range(1, 9):
        with Crew(SMOLLM2, NOWHERE, 1, ("--no-cache", "--predict", str(predict))) as workers:
            answer = workers[0].ask(text)["text"]  # decoded strictly
            n_cut += not answer.strip()
    print(f"    {answer!r}; of 1 to 8 tokens {n_cut} were no whole character")
    with Daemon() as daemon:
        for number, (batch, least) in enumerate(((64, 128), (65, 128), (100, 140), (127, 140))):
            with Crew(SMOLLM2, daemon.socket, 1, ("--batch", str(batch), "--predict", "0")) as workers:
                answer = workers[0].ask(f"{number} " + long_question(number))
                check(128 < answer["tokens"] and answer["sealed"] >= least, batch, answer)
                print(f"    --batch {batch}: {answer['sealed']} of {answer['tokens']} tokens handed in")


def realm():
    print("    " + probe("realm", SMOLLM2)[0]["engine"])


def bits():
    few = [64, 500, 2000]
    many = [64, 65, 100, 128, 200, 333, 500, 512, 777, 1000, 1472, 1535, 1999, 2000]
    cases = [(SMOLLM2, "f16"), (GEMMA, "f16"), (SMOLLM2, "q8_0")]
    if options.long:
        cases += [(SMOLLM2, "q4_0"), (SMOLLM2, "bf16"), (GEMMA, "q8_0")]
    with Daemon() as daemon:
        for which, kv_type in cases:
            prefixes = many if options.long else few if kv_type == "f16" else [500]
            more = ["--kv", kv_type] + (["--whole"] if which == GEMMA else [])
            seed(daemon, which, [max(prefixes)], *more)
            warm(daemon, which, prefixes, *more)
            cold(which, prefixes, *more)
            for prefix in prefixes:
                is_equal(kv_type, which, prefix)
            print(f"    {which}, KV {kv_type}: bit-equal behind {', '.join(map(str, prefixes))} tokens")
            if (which, kv_type) == cases[0]:
                # The comparison can fail: small micro-batches are computed by other code.
                cold(which, [500], "--chunk", 16)
                check(logits("warm", 500) != logits("cold", 500),
                      "micro-batches of 16 gave the same bits")


def groups():
    """Of the layers with a window the daemon keeps the windows where prompts end, and no more; behind
    them the logits are bit-equal to those of a cold run that kept everything. A prompt that ends in
    the middle of another finds nothing there, and is found once it has been computed.
    With --window llama.cpp keeps the window in a ring of cells; where that has gone round, it adds up
    in another order than behind a loaded window, as its own logits with swa_full do."""
    with Daemon() as daemon:
        kept, whole = seed_bytes(daemon, 2000), seed_bytes(daemon, 2000, "--whole")
        print(f"    2,000 tokens take {kept:,} bytes; with all rows of all layers {whole:,}: "
              f"{kept / whole:.2f}")
        check(seed(daemon, GEMMA, [1024])[0]["loaded"] == 0, "there was a window in the middle")
        warm(daemon, GEMMA, [1024])
    many = [64, 65, 333, 500, 512, 777, 1000, 1472, 2000]
    prefixes, tail, whole_logits = many if options.long else [64, 500, 2000], 100, {}
    for more in [(), ("--window",)] + [("--kv", "q8_0"), ("--kv", "bf16")] * options.long:
        # Each is a path of its own, that ends there. llama.cpp adds up over tiles of cells in batches
        # of 64 and more: rows that lie in other tiles would not show behind a shorter tail.
        more += ("--apart", 100, "--tail", tail)
        with Daemon() as daemon:
            seed(daemon, GEMMA, prefixes, *more)
            warm(daemon, GEMMA, prefixes, *more)
        cold(GEMMA, prefixes, *more)
        for prefix in prefixes:
            if "--window" in more and prefix + tail > (2 + 1) * 512:
                nearly_equal(prefix, whole_logits[prefix])
            else:
                is_equal(more, GEMMA, prefix)
                whole_logits.setdefault(prefix, logits("cold", prefix))
        print(f"    {' '.join(more[:-4])} as behind {', '.join(map(str, prefixes))} computed tokens")


def nearly_equal(prefix, other):
    """Their difference is of the size of llama.cpp's own."""
    own = logits("cold", prefix)
    difference = largest_difference(logits("warm", prefix), own)
    usual = largest_difference(other, own)
    check(0 < difference < 3 * usual, "logits differ by", difference, "not by about", usual)
    print(f"    behind {prefix}, where the ring has gone round, by at most {difference:.2f}; "
          f"llama.cpp's own with and without swa_full by {usual:.2f}")


def used_bytes(daemon):
    return daemon.counts()["arena_used_bytes"]


def seed_bytes(daemon, n_tokens, *more):
    """What a path takes in the arena, which must be what the arithmetic says."""
    before, pages, total = used_bytes(daemon), -(-n_tokens // 64), 0
    for group in seed(daemon, GEMMA, [n_tokens], *more)[0]["groups"]:
        passed = (n_tokens - group["window"]) // 64 if group["window"] else 0
        total += (pages - passed - 1) * group["page_bytes"] + group["last_bytes"]
    used = used_bytes(daemon) - before
    check(used == total, "the arena holds", used, "bytes; the arithmetic says", total)
    return used


def tiers():
    # Behind 1,000 tokens Gemma's windows have moved on from where they began.
    cases = [(SMOLLM2, 500), (GEMMA, 1000)] + [(GEMMA, 500)] * options.long
    others_texts = [os.path.join(folder, f"other{i}") for i in range(3)]
    for i, path in enumerate(others_texts):
        with open(path, "w", encoding="utf-8") as file:
            file.write(whole_text()[10000 * (i + 1):])
    for which, prefix in cases:
        cold(which, [prefix])
        disk = os.path.join(folder, "disk")
        shutil.rmtree(disk, ignore_errors=True)
        with Daemon("arena=24MiB", "disk_dir=" + disk, "disk=1GiB") as daemon:

            def is_same(when):
                def loaded():
                    line = probe("warm", which, "--socket", daemon.socket, "--list", prefix, "--out",
                                 place("warm"))[0]
                    return line["loaded"] == prefix
                until(loaded, f"all pages back {when}")
                check(logits("warm", prefix) == logits("cold", prefix), which, "logits differ", when)
                came = daemon.counts()["tokens_from_disk"] + daemon.counts()["tokens_from_host"]
                check(came >= prefix - 64, "only", came, "tokens came from below", when)
                print(f"    {which}: bit-equal behind {prefix} tokens {when}")

            seed(daemon, which, [prefix])
            pages = -(-prefix // 64)
            until(lambda: daemon.counts()["pages_disk"] >= pages and
                  daemon.counts()["pages_dirty"] == 0, "all pages on disk")
            # Three times 800 other tokens are more than the arena: the first pages have to leave it.
            for others in others_texts:
                probe("seed", which, "--socket", daemon.socket, "--list", 800, text=others)
            is_same("after they went to disk")
            daemon.end()
            daemon.start()
            is_same("after a restart")
            daemon.end(signal.SIGKILL)
            daemon.start()
            is_same("after the daemon was killed")


def flight():
    for which in (SMOLLM2, GEMMA) if options.long else (SMOLLM2,):
        fly(which)


def fly(which):
    with Daemon() as daemon, Crew(which, daemon.socket, 4) as workers:
        prefix = long_prefix()
        for i, worker in enumerate(workers):
            worker.begin(prefix + long_question(i))
        answers = [worker.answer() for worker in workers]
        computed = sum(a["computed"] for a in answers)
        tokens = [a["tokens"] for a in answers]
        for a in answers:
            print(f"    {a['tokens']} tokens: {a['loaded']} loaded, {a['computed']} computed, "
                  f"{a['waited_ms']:.0f} ms waited, first token after {a['first_token_ms']:.0f} ms")
        print(f"    computed by all four: {computed} of {sum(tokens)}")
        # Each computes its own question, and what of a page lies in front of it.
        own = 64 + len(long_question(0)) // 2
        check(computed <= max(tokens) + 3 * own, "the prefix was computed more than once:", answers)
        check(all(a["cache"] == "KVT_OK" for a in answers), answers)
        if which == GEMMA:
            return
        used, private = used_bytes(daemon), 4 * max(tokens) * SMOLLM2_TOKEN_BYTES
        print(f"    four private copies {private:,} bytes; the arena {used:,}, with the four questions: "
              f"{used / private:.2f}")
        check(used < private / 2, "sharing saves nothing")


def taken_bytes(processes):
    """Memory of processes: what each has mapped, added up (RSS), and with what they share counted
    once (PSS)."""
    total = {"Rss": 0, "Pss": 0}
    for process in processes:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="utf-8") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in total:
                    total[name] += 1024 * int(rest.split()[0])
    return total


def memory():
    n_workers, n_prompts, prefix = 4, 6 if options.long else 3, 1000

    def take(n, *more):
        """Four workers that have read n prompts each."""
        arguments = [built("tests", "probe"), "hold", "--model", model(SMOLLM2), "--text",
                     os.path.join(folder, "text"), "--prefix", str(prefix), "--rounds", str(n),
                     "--ctx", "1536", *more]
        workers = [subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                   for _ in range(n_workers)]
        try:
            lines = [json.loads(worker.stdout.readline()) for worker in workers]
            taken = taken_bytes(workers + ([daemon.process] if more else []))
            computed = sum(line["computed"] for line in lines)
        finally:
            for worker in workers:
                worker.stdin.close()
                worker.wait(HANG_S)
        check(all(worker.returncode == 0 for worker in workers), "a worker failed")
        return taken, computed

    # The daemon takes its arena when it starts: as much as it needs here.
    with Daemon(f"arena={26 * n_prompts}MiB") as daemon:
        empty = taken_bytes([daemon.process])
        nothing, _ = take(0)
        private, computed_private = take(n_prompts)
        shared, computed_shared = take(n_prompts, "--socket", daemon.socket)
        used = used_bytes(daemon)
    copies = n_workers * n_prompts * prefix * SMOLLM2_TOKEN_BYTES
    print(f"    four workers, {n_prompts} prompts of {prefix:,} tokens; arithmetic: {copies:,} bytes in "
          f"private copies, {copies // n_workers:,} in one (the arena held {used:,})")
    print(f"    {'':32}{'PSS':>15}{'RSS':>15}{'PSS over nothing':>18}{'computed':>10}")
    rows = (("nothing kept", nothing, 0), ("states of their own", private, computed_private),
            ("with kvtrunkd (and its own)", shared, computed_shared))
    for name, taken, computed in rows:
        print(f"    {name:32}{taken['Pss']:15,}{taken['Rss']:15,}{taken['Pss'] - nothing['Pss']:18,}"
              f"{computed:10,}")
    print(f"    the daemon, before: {empty['Pss']:,}")
    check(shared["Pss"] < private["Pss"], "sharing saves nothing")


def kills():
    prefix = long_prefix()
    prompts = [prefix + long_question(i) for i in range(3)]
    with Crew(SMOLLM2, NOWHERE, 1) as alone:
        right = [alone[0].ask(prompt) for prompt in prompts]
    check(all(r["loaded"] == 0 and r["cache"] == "KVT_ECONN" for r in right), right)

    def is_right(i, answer):
        check(answer["logits"] == right[i]["logits"] and answer["text"] == right[i]["text"],
              "a wrong answer:", answer, "not", right[i])

    with Daemon() as daemon, Crew(SMOLLM2, daemon.socket, 3) as workers:
        workers[0].begin(prompts[0])
        until(lambda: daemon.counts()["pages_sealed"] >= 8, "a worker in its prefill")
        for i in (1, 2):
            workers[i].begin(prompts[i])
        until(lambda: daemon.counts()["waiting"] >= 2, "two workers waiting")
        workers[0].kill()
        answers = [workers[i].answer() for i in (1, 2)]
        for i, answer in zip((1, 2), answers):
            is_right(i, answer)
        check(daemon.counts()["claims_taken_over"] > 0, "nobody took over")
        print(f"    a worker killed in its prefill: the others loaded "
              f"{[a['loaded'] for a in answers]}, computed {[a['computed'] for a in answers]}")

    with Daemon() as daemon, Crew(SMOLLM2, daemon.socket, 2) as workers:
        workers[0].begin(prompts[0])
        until(lambda: daemon.counts()["pages_sealed"] >= 8, "a worker in its prefill")
        workers[1].begin(prompts[1])
        until(lambda: daemon.counts()["waiting"] >= 1, "a worker waiting")
        daemon.end(signal.SIGKILL)
        answers = [worker.answer() for worker in workers]
        for i, answer in enumerate(answers):
            is_right(i, answer)
        check(all(a["cache"] != "KVT_OK" for a in answers), answers)
        print(f"    the daemon killed in a prefill: {[a['cache'] for a in answers]}, computed "
              f"{[a['computed'] for a in answers]}")
        daemon.start()
        again = until(lambda: next(a for a in [workers[0].ask(prompts[0])]) if
                      daemon.counts()["pages_sealed"] == 0 else workers[0].ask(prompts[0]),
                      "an answer")
        is_right(0, again)
        until(lambda: workers[0].ask(prompts[0])["loaded"] > 0, "a worker that is connected again")
        answer = workers[1].ask(prompts[1])
        is_right(1, answer)
        check(answer["loaded"] > 1500, "the other worker loaded", answer["loaded"])
        print(f"    the daemon back: loaded {answer['loaded']}, computed {answer['computed']}")


def prompts():
    chosen = tasks() if options.long else tasks()[:6]
    with Daemon() as daemon:
        both = []
        for socket in (NOWHERE, daemon.socket):
            with Crew(SMOLLM2, socket, 4) as workers:
                answers, start = [], time.monotonic()
                for _, text in chosen:
                    asked = questions(text)
                    for i, worker in enumerate(workers):
                        worker.begin(text + asked[i % len(asked)])
                    answers += [worker.answer() for worker in workers]
                both.append((time.monotonic() - start, answers))
        print(f"    {len(chosen)} tasks, 4 workers, each asks its own question behind the task's "
              "examples")
        print(f"    {'':24}{'tokens':>9}{'loaded':>9}{'computed':>9}{'waited':>9}{'first token':>13}"
              f"{'all':>8}")
        for name, (seconds, answers) in zip(("each for itself", "with kvtrunkd"), both):
            total = {key: sum(a[key] for a in answers)
                     for key in ("tokens", "loaded", "computed", "waited_ms", "first_token_ms")}
            print(f"    {name:24}{total['tokens']:9,}{total['loaded']:9,}{total['computed']:9,}"
                  f"{total['waited_ms'] / 1e3:7.1f} s"
                  f"{total['first_token_ms'] / len(answers):10.0f} ms{seconds:6.1f} s")
        alone, shared = ([a["computed"] for a in answers] for _, answers in both)
        check(sum(shared) < 0.6 * sum(alone), "sharing saved too little")
        check(all(a["cache"] == "KVT_OK" for a in both[1][1]), "calls to the daemon failed")


def first():
    with Daemon() as daemon:
        seed(daemon, SMOLLM2, [2000])
        lines = probe("first", SMOLLM2, "--socket", daemon.socket, "--list", "16,48,256",
                      "--rounds", 9 if options.long else 3, "--out", folder)
        print(f"    {'tail':>6}{'cold':>11}{'kvtrunk':>11}{'slot file':>11}{'own memory':>12}"
              f"{'cold/kvtrunk':>14}{'cold/memory':>13}{'share':>7}")
        for line in lines:
            cold, warm, memory_ms = line["cold_ms"], line["warm_ms"], line["memory_ms"]
            print(f"    {line['tail']:6}{cold:8.0f} ms{warm:8.1f} ms{line['slot_ms']:8.1f} ms"
                  f"{memory_ms:9.1f} ms{cold / warm:14.1f}{cold / memory_ms:13.1f}"
                  f"{memory_ms / warm:7.2f}")
        print(f"    medians of {lines[0]['rounds']} in turns, 2,000 tokens in front; a state of "
              f"{lines[0]['state_bytes']:,} bytes")
        check(lines[0]["cold_ms"] > 5 * lines[0]["warm_ms"], "loading is hardly faster than computing")


class Server:
    """llama-server with one slot: what leaves the slot it keeps in memory of its own (--cache-ram)."""

    def __init__(self, which):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        program = os.path.join(os.path.dirname(options.models), "llama-build", "bin", "llama-server")
        self.log = open(os.path.join(folder, "server.log"), "wb")
        self.process = subprocess.Popen(
            [program, "--model", model(which), "--host", "127.0.0.1", "--port", str(self.port),
             "--parallel", "1", "--ctx-size", "3072", "--threads", "1", "--threads-batch", "1",
             "--flash-attn", "on", "--cache-ram", "2048"], stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log)

    def is_up(self):
        check(self.process.poll() is None, "llama-server ended with", self.process.returncode)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health") as reply:
                return reply.status == 200
        except OSError:
            return False

    def ask(self, prompt):
        """Tokens that were computed and found, and milliseconds until its first token was there."""
        body = json.dumps({"prompt": prompt, "n_predict": 1, "temperature": 0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", body,
                                         {"Content-Type": "application/json"})
        start = time.monotonic()
        with urllib.request.urlopen(request, timeout=HANG_S) as reply:
            answer = json.load(reply)
        return answer["timings"]["prompt_n"], answer["timings"]["cache_n"], \
            1000 * (time.monotonic() - start)

    def __enter__(self):
        until(self.is_up, "llama-server serves")
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.log.close()


def tail(number, n_sums):
    return f"\n\nQ: {number}? " + " ".join(f"Add {number + i} to {i * number}." for i in range(n_sums)) + "\nA:"


def server():
    prefix, other = long_prefix(), whole_text()[9000:16000]
    rounds, sums = 9 if options.long else 3, (0, 3, 24)
    with Daemon() as daemon, Crew(SMOLLM2, daemon.socket, 1) as (worker,), Server(SMOLLM2) as theirs:
        cold = (worker.ask(prefix + long_question(0))["first_token_ms"],
                theirs.ask(prefix + long_question(0))[2])
        rows = {n: [] for n in sums}
        for number in range(1, rounds + 1):
            for n in sums:
                # Its slot is taken by another text, as it is where several are served in turns.
                theirs.ask(other + tail(number, 0))
                ours = worker.ask(prefix + tail(number, n))
                computed, found, ms = theirs.ask(prefix + tail(number, n))
                check(found > 1500 and ours["loaded"] > 1500, "computed again:", found, ours)
                rows[n].append((ours["first_token_ms"], ms, ours["computed"], computed))
        print(f"    {'':14}{'computed':>18}{'kvtrunk':>12}{'--cache-ram':>13}{'ratio':>8}")
        for n in sums:
            ours, theirs_ms = (statistics.median(row[i] for row in rows[n]) for i in (0, 1))
            print(f"    {'tail':14}{rows[n][0][2]:9} {rows[n][0][3]:8}{ours:9.1f} ms{theirs_ms:10.1f} ms"
                  f"{statistics.median(row[1] / row[0] for row in rows[n]):8.2f}")
        print(f"    all of it computed: {cold[0]:.0f} ms and {cold[1]:.0f} ms; medians of {rounds} in turns")


def codecs():
    for which in (SMOLLM2_F16, GEMMA_F16):
        line = probe("codecs", which, "--windows", 20)[-1]
        print(f"    {which}: {line['tokens']:,} tokens, perplexity {line['perplexity']:.3f}")
        kl = {}
        for v in line["variants"]:
            kl[v["name"]] = v["kl"]
            print(f"    {v['name']:12}{v['bits']:7.2f} bits  KL {v['kl']:.2e} +- {v['kl_error']:.0e}  "
                  f"perplexity {v['perplexity']:.4f}  same best token {100 * v['same_best']:.2f} %")
        check(kl["i8"] < kl["i4"] < kl["i2"], "codecs out of order:", kl)


# ------------------------------------------------------------------------------------------ main

CHECKS = {"options": options_of_the_tool}
CHECKS |= {c.__name__: c for c in (realm, bits, groups, tiers, flight, memory, kills, prompts, first,
                                server, codecs)}
LONG_ONLY = ("server", "codecs")


def main():
    global options, folder
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="kvtrunk-llama-")
    with open(os.path.join(folder, "text"), "w", encoding="utf-8") as file:
        file.write(whole_text())
    passed, failed = 0, 0
    names = options.checks or [n for n in CHECKS if options.long or n not in LONG_ONLY]
    try:
        for name in names:
            start = time.monotonic()
            print(f"{name}", flush=True)
            try:
                CHECKS[name]()
                passed += 1
                print(f"{name:34} ok {time.monotonic() - start:8.1f} s", flush=True)
            except Exception as error:  # one that fails does not hide the others
                failed += 1
                print(f"{name:34} FAILED: {error!r}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"llama: {passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
