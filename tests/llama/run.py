#!/usr/bin/env python3
"""The llama.cpp adapter with trained models, end to end. `./run llama` builds what it needs and runs it.

    run.py --build FOLDER --models FOLDER [--long] [CHECK ...]

Checks, in this order; each starts a daemon of its own:

    realm      what cannot be shared is refused, and what changes bytes changes the realm
    bits       logits behind a loaded prefix are bit-equal to those behind one that is computed and
               cut at the same place: both models, f16 and quantised KV types, from another process;
               and they are not, where llama.cpp took another path (so the comparison can fail)
    window     a model with sliding-window layers, of which only the window is kept: equal but for
               the order in which llama.cpp adds up
    tiers      the same bits from pages that went to disk and came up, and after the daemon was
               started anew, once in order and once after it was killed
    flight     four workers at once on one prefix of 2,000 tokens: it is computed once
    kills      a worker killed in its prefill, the daemon killed in a prefill, no daemon, the daemon
               back: the others go on, and their logits are bit-equal to those of a worker alone
    prompts    four workers, the questions of real few-shot tasks: a table
    first      time to the first token, warm against cold and against llama.cpp's own ways: a table
    codecs     (--long only) KL divergence and perplexity of each codec set, on real text: a table

It prints what it measured and ends with "llama: N passed, N failed". Waits are for something to become
so, bounded by HANG_S.
"""
import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

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
             *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            errors="replace")
        self.begin(f"{number} is where worker number {number} begins.")

    def begin(self, prompt):
        line = prompt.replace("\\", "\\\\").replace("\n", "\\n")
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        check(line, "a worker ended with status", self.process.poll())
        return json.loads(line, strict=False)

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


def warm_and_cold(daemon, which, prefixes, *more):
    """Writes the logits of both; every prefix was loaded, to its last token."""
    places = [os.path.join(folder, place) for place in ("warm", "cold")]
    for place in places:
        os.makedirs(place, exist_ok=True)
    listed = ",".join(str(p) for p in prefixes)
    seeded = probe("seed", which, "--socket", daemon.socket, "--prefix", max(prefixes), *more)
    check(seeded[0]["sealed"] == max(prefixes), "not all was handed in:", seeded)
    for line in probe("warm", which, "--socket", daemon.socket, "--list", listed, "--out",
                      places[0], *more):
        check(line["loaded"] == line["prefix"] and line["cache"] == "KVT_OK", line)
    probe("cold", which, "--list", listed, "--out", places[1], *more)


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
            warm_and_cold(daemon, which, prefixes, "--kv", kv_type)
            for prefix in prefixes:
                check(logits("warm", prefix) == logits("cold", prefix), which, kv_type,
                      "logits differ behind", prefix, "tokens by",
                      largest_difference(logits("warm", prefix), logits("cold", prefix)))
            print(f"    {which}, KV {kv_type}: bit-equal behind {', '.join(map(str, prefixes))} tokens")
            if (which, kv_type) == cases[0]:
                # The comparison can fail: small micro-batches are computed by other code.
                probe("cold", which, "--list", 500, "--chunk", 16, "--out",
                      os.path.join(folder, "cold"))
                check(logits("warm", 500) != logits("cold", 500),
                      "micro-batches of 16 gave the same bits")


def window():
    """llama.cpp keeps a window in a ring of cells; where it has gone round, it adds up in another
    order than behind a loaded window. Its own logits with the window alone and with all of it kept
    differ by as much."""
    with Daemon() as daemon:
        warm_and_cold(daemon, GEMMA, [1000, 2000], "--window")
        own = {p: logits("cold", p) for p in (1000, 2000)}
        probe("cold", GEMMA, "--list", 2000, "--out", os.path.join(folder, "cold"))
        check(logits("warm", 1000) == own[1000], "logits differ behind 1000 tokens")
        difference = largest_difference(logits("warm", 2000), own[2000])
        usual = largest_difference(logits("cold", 2000), own[2000])
        check(0 < difference < 3 * usual, "logits differ by", difference, "not by about", usual)
        print(f"    window only: bit-equal behind 1000 tokens; behind 2000 logits differ by at most "
              f"{difference:.2f}; llama.cpp's own, with the window and with all kept, by {usual:.2f}")


def tiers():
    cases = [(SMOLLM2, 500), (GEMMA, 500)] if options.long else [(SMOLLM2, 500)]
    others_texts = [os.path.join(folder, f"other{i}") for i in range(3)]
    for i, path in enumerate(others_texts):
        with open(path, "w", encoding="utf-8") as file:
            file.write(whole_text()[10000 * (i + 1):])
    places = [os.path.join(folder, place) for place in ("warm", "cold")]
    for place in places:
        os.makedirs(place, exist_ok=True)
    for which, prefix in cases:
        probe("cold", which, "--list", prefix, "--out", places[1])
        disk = os.path.join(folder, "disk")
        shutil.rmtree(disk, ignore_errors=True)
        with Daemon("arena=24MiB", "disk_dir=" + disk, "disk=1GiB") as daemon:

            def is_same(when):
                def loaded():
                    line = probe("warm", which, "--socket", daemon.socket, "--list", prefix, "--out",
                                 places[0])[0]
                    return line["loaded"] == prefix
                until(loaded, f"all pages back {when}")
                check(logits("warm", prefix) == logits("cold", prefix), which, "logits differ", when)
                came = daemon.counts()["tokens_from_disk"] + daemon.counts()["tokens_from_host"]
                check(came >= prefix - 64, "only", came, "tokens came from below", when)
                print(f"    {which}: bit-equal behind {prefix} tokens {when}")

            probe("seed", which, "--socket", daemon.socket, "--prefix", prefix)
            pages = -(-prefix // 64)
            until(lambda: daemon.counts()["pages_disk"] >= pages, "all pages on disk")
            # Three times 800 other tokens are twice the arena: the first pages have to leave it.
            for others in others_texts:
                probe("seed", which, "--socket", daemon.socket, "--prefix", 800, text=others)
            is_same("after they went to disk")
            daemon.end()
            daemon.start()
            is_same("after a restart")
            daemon.end(signal.SIGKILL)
            daemon.start()
            is_same("after the daemon was killed")


def flight():
    with Daemon() as daemon, Crew(SMOLLM2, daemon.socket, 4) as workers:
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
        memory(daemon, max(tokens))


def memory(daemon, n_tokens):
    row = daemon.report()["counts"]
    used, pages = row["arena_used_bytes"], row["pages_sealed"]
    token_bytes = 30 * 2 * 3 * 64 * 2  # layers, K and V, heads, head_dim, f16
    private = 4 * n_tokens * token_bytes
    print(f"    memory: four private copies {private:,} bytes; the arena {used:,} ({pages} pages, with "
          f"the four questions): {used / private:.2f}")
    check(used < private / 2, "sharing saves nothing")


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
        probe("seed", SMOLLM2, "--socket", daemon.socket)
        lines = probe("first", SMOLLM2, "--socket", daemon.socket, "--list",
                      "16,48,256" if options.long else "16,48", "--rounds",
                      9 if options.long else 3, "--out", folder)
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

CHECKS = {c.__name__: c for c in (realm, bits, window, tiers, flight, kills, prompts, first, codecs)}


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
    names = options.checks or [n for n in CHECKS if options.long or n != "codecs"]
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
