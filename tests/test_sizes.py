#!/usr/bin/env python3
"""kvtrunk sizes: its figures against sums worked out here from the layout of pages
(kernels/FORMAT.md), and every way in which a config.json can be wrong.

Runs the tool that KVT_BUILD_DIR holds, on tests/models/ and on files of its own.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

BUILD = os.environ.get("KVT_BUILD_DIR", "build")
TOOL = os.path.join(BUILD, "client", "kvtrunk")
TESTS = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(TESTS, "models")
MANUAL = os.path.join(TESTS, os.pardir, "client", "kvtrunk.1")
HEADER = 192  # of a page
OK, USAGE, BAD_INPUT = 0, 2, 4
SETS = ["f16", "fp8", "i8", "k8v4", "i4", "i2"]


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def run(*args):
    done = subprocess.run([TOOL, "sizes", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def sizes(model, *args):
    code, out, err = run(os.path.join(MODELS, model + ".json"), "--json", *args)
    check(code == OK, model, args, code, err)
    report = json.loads(out)
    return report, {row["codec"]: row for row in report["sets"]}


def expect_pages(name, rows, group, expected):
    for codec, page_bytes in expected.items():
        found = rows[codec]["groups"][group]["page_bytes"]
        check(found == page_bytes, name, codec, "page of", found, "bytes, expected", page_bytes)


# One unit of 64 rows of 128 elements: channel statistics m and s of 256 bytes each, row statistics
# of 2 bytes a row, codes. Every part is a multiple of 16 bytes already.
RAW = 64 * 256          # 16,384
FP8T = I8V = 64 * 2 + 64 * 128   # 8,320
I8K = 2 * 256 + 64 * 128         # 8,704
I4K = 2 * 256 + 64 * 64          # 4,608
I2K = 2 * 256 + 64 * 32          # 2,560
W4V = 64 * 2 + 64 * 64           # 4,224
W2V = 64 * 2 + 64 * 32           # 2,176
PAIRS = {"f16": RAW + RAW, "fp8": FP8T + FP8T, "i8": I8K + I8V, "k8v4": I8K + W4V,
         "i4": I4K + W4V, "i2": I2K + W2V}


def test_llama():
    for name, layers, token_bytes in (("llama-3-8b", 32, 131072), ("llama-3-70b", 80, 327680)):
        report, rows = sizes(name, "--tokens", "131072")
        check(report["n_layers"] == layers and report["n_kv_heads"] == 8, name, report)
        check(report["head_dim"] == [128, 128] and report["dtype"] == "bfloat16", name, report)
        check(list(rows) == SETS, name, list(rows))
        expect_pages(name, rows, 0, {c: HEADER + layers * 8 * n for c, n in PAIRS.items()})
        check(rows["f16"]["groups"][0]["page_bytes"] == 64 * token_bytes + HEADER, name)
        check(rows["f16"]["token_bytes"] == token_bytes + 3, name, rows["f16"])  # 192 / 64
        check(all(row["pages"] == 2048 for row in rows.values()), name, "131,072 tokens")
    # 16 bits and a header of 192 bytes for 64 x 65,536 elements; 8.3125 bits and the same.
    _, rows = sizes("llama-3-8b")
    check(rows["f16"]["element_bits"] == 16.0004, rows["f16"])
    check(rows["i8"]["element_bits"] == 8.3129, rows["i8"])


def test_room():
    """2,048 pages of 4,358,336 bytes are 8,925,872,128. An arena has 5 % and 1 MiB more, in whole
    MiB; on disk a page takes 256 bytes of tokens and 512 beside it, in whole 4 KiB."""
    _, rows = sizes("llama-3-8b", "--tokens", "131072", "--codec", "i8")
    check(list(rows) == ["i8"], rows)
    check(rows["i8"]["arena_bytes"] == 8939 * 1048576 == 9373220864, rows["i8"])
    check(rows["i8"]["disk_bytes"] == 2048 * 1065 * 4096 == 8933867520, rows["i8"])
    # 1,265,088 bytes are 308 blocks and 3,520 bytes: only the tokens' 128 make it 310, not 309.
    _, rows = sizes("deepseek-v3", "--tokens", "32", "--codec", "fp8", "--page-tokens", "32")
    check(rows["fp8"]["disk_bytes"] == 310 * 4096, rows["fp8"])
    _, rows = sizes("llama-3-8b", "--tokens", "131073", "--codec", "i8")
    check(rows["i8"]["pages"] == 2049, rows)
    _, rows = sizes("llama-3-8b", "--tokens", "1", "--codec", "i8")
    check(rows["i8"]["pages"] == 1, rows)


def test_mla():
    """A token of a layer: 512 + 64 elements. i8: 4 scales and 512 codes, 1 scale and 64 codes."""
    report, rows = sizes("deepseek-v3")
    check(report["kind"] == "mla" and report["head_dim"] == [512, 64], report)
    check(list(rows) == ["f16", "fp8", "i8", "i4", "i2"], "MLA has no k8v4", list(rows))
    token = {"f16": 1024 + 128, "fp8": 8 + 512 + 128, "i8": 8 + 512 + 2 + 64, "i4": 8 + 256 + 128,
             "i2": 8 + 128 + 128}
    check(token["i8"] == 586 and token["i4"] == 392)
    expect_pages("deepseek-v3", rows, 0, {c: HEADER + 64 * 61 * n for c, n in token.items()})
    code, out, err = run(os.path.join(MODELS, "deepseek-v3.json"), "--codec", "k8v4")
    check(code == USAGE and not out and "MLA" in err, code, err)


def test_windows():
    """Of 62 layers each sixth is full: 10. The others need their last 1,024 tokens: 16 pages."""
    report, rows = sizes("gemma-3-27b", "--tokens", "131072")
    check(report["groups"] == [{"n_layers": 10, "window": 0}, {"n_layers": 52, "window": 1024}],
          report)
    check(len(report["assumed"]) == 1 and "sixth" in report["assumed"][0], report)
    for group, layers in ((0, 10), (1, 52)):
        expect_pages("gemma", rows, group, {c: HEADER + layers * 16 * n for c, n in PAIRS.items()})
    check([g["pages"] for g in rows["i4"]["groups"]] == [2048, 16], rows["i4"])
    check(rows["i4"]["pages"] == 2064, rows["i4"])
    # 62 x 16 heads x 512 bytes, and two headers for 64 tokens
    check(rows["f16"]["token_bytes"] == 62 * 16 * 512 + 6, rows["f16"])


def test_page_tokens():
    """Statistics of channels are shared by fewer tokens: 512 bytes for 16 rows of 128 codes."""
    _, rows = sizes("llama-3-8b", "--page-tokens", "16", "--tokens", "100")
    expect_pages("16 tokens", rows, 0, {"i8": HEADER + 256 * (512 + 2048 + 32 + 2048)})
    check(rows["i8"]["pages"] == 7, rows["i8"])
    _, rows = sizes("llama-3-8b", "--codec", "0-1:f16;rest:i4")
    expect_pages("ranges", rows, 0,
                 {"0-1:f16;rest:i4": HEADER + 8 * (2 * PAIRS["f16"] + 30 * PAIRS["i4"])})


def test_people():
    code, out, err = run(os.path.join(MODELS, "gemma-3-27b.json"), "--tokens", "131072")
    check(code == OK and not err, code, err)
    for words in ("52 layers of a sliding window of 1,024 tokens", "assumed: ", "136,902", "2,064",
                  "7,348,416"):
        check(words in out, words, "is missing in\n" + out)


def test_manual():
    with open(MANUAL, encoding="ascii") as file:
        manual = file.read().replace("\\-", "-")
    _, out, _ = run("--help")
    report, rows = sizes("gemma-3-27b")
    names = re.findall(r"^  (--\S+)", out, re.M) + [*report, *rows["i8"], *rows["i8"]["groups"][0]]
    check("--page-tokens" in names, names)
    section = manual[manual.index(".SH SIZES"):manual.index(".SH EXIT STATUS")]
    for name in names:
        check(name == "--help" or re.search(rf"(?<!\w){name}\b", section),
              "kvtrunk(1) does not say what", name, "is")


# ---------------------------------------------------------------------------- other config.json

BASE = {"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2,
        "hidden_size": 512, "torch_dtype": "float16"}
SLIDING, FULL = "sliding_attention", "full_attention"


def in_file(content, *args):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else json.dumps(content).encode())
        return run(path, *args)


def changed(**members):
    config = dict(BASE, **members)
    return {key: value for key, value in config.items() if value != "gone"}


def groups_of(config):
    code, out, err = in_file(config, "--json")
    check(code == OK, config, err)
    report = json.loads(out)
    return [(g["n_layers"], g["window"]) for g in report["groups"]], report


def test_spellings():
    for config, expected in (
            (changed(), [(12, 0)]),
            (changed(sliding_window=None), [(12, 0)]),
            (changed(sliding_window=4096), [(12, 4096)]),
            (changed(sliding_window=4096, use_sliding_window=False), [(12, 0)]),
            (changed(sliding_window=4096, use_sliding_window=True, max_window_layers=9),
             [(9, 0), (3, 4096)]),
            (changed(sliding_window=512, sliding_window_pattern=6), [(2, 0), (10, 512)]),
            (changed(sliding_window=512, _sliding_window_pattern=5), [(2, 0), (10, 512)]),
            (changed(sliding_window=512, layer_types=[SLIDING, SLIDING, FULL] * 4),
             [(4, 0), (8, 512)]),
            (changed(sliding_window=512, layer_types=[FULL] * 12), [(12, 0)]),
            (changed(model_type="gemma2", head_dim=64, sliding_window=512), [(6, 0), (6, 512)]),
            (changed(num_kv_shared_layers=4), [(8, 0)]),
            (changed(num_kv_shared_layers=0), [(12, 0)]),
            ({"text_config": changed(), "num_hidden_layers": 99}, [(12, 0)])):
        found, _ = groups_of(config)
        check(found == expected, config, found, expected)


def test_assumptions():
    _, report = groups_of(changed(num_key_value_heads="gone"))
    check(report["n_kv_heads"] == 8 and len(report["assumed"]) == 1, report)
    _, report = groups_of(changed(torch_dtype="float32"))
    check(report["dtype"] == "float16" and len(report["assumed"]) == 1, report)
    _, report = groups_of(changed(torch_dtype="gone", dtype="torch.bfloat16"))
    check(report["dtype"] == "bfloat16" and not report["assumed"], report)
    _, report = groups_of({"text_config": changed(torch_dtype="gone"), "dtype": "bfloat16"})
    check(report["dtype"] == "bfloat16", report)
    _, report = groups_of(changed(head_dim=96, v_head_dim=64))
    check(report["head_dim"] == [96, 64], report)


def test_bad_configs():
    for content, words in (
            (b"", "JSON"),
            (b"GGUF\x00\x01", "NUL"),
            (b"[1, 2]", "object"),
            (b'{"num_hidden_layers": 12,\n "a": }', ":2: "),
            (b'{"num_hidden_layers": 12} and more', "JSON"),
            (b" " * (1 << 20) + b"{}", "1 MiB"),
            (b"{}", '"num_hidden_layers": is missing'),
            (changed(num_hidden_layers="12"), '"num_hidden_layers": a whole number'),
            (changed(num_hidden_layers=0), '"num_hidden_layers"'),
            (changed(num_hidden_layers=12.5), '"num_hidden_layers"'),
            (changed(num_hidden_layers=-3), '"num_hidden_layers"'),
            (changed(num_hidden_layers=1e300), '"num_hidden_layers"'),
            (changed(num_hidden_layers=100000), "1 to 1024"),
            (changed(hidden_size="gone"), '"hidden_size": is missing'),
            (changed(num_attention_heads="gone"), '"num_attention_heads": is missing'),
            (changed(num_attention_heads=7), '"hidden_size": is no multiple'),
            (changed(head_dim=4096), '"head_dim"'),
            (changed(head_dim=65), "even"),
            (changed(model_type="gemma3_text"), '"head_dim": is missing'),
            (changed(kv_lora_rank=512), '"qk_rope_head_dim": is missing'),
            (changed(torch_dtype="int8"), '"torch_dtype"'),
            (changed(sliding_window="wide"), '"sliding_window"'),
            (changed(sliding_window=512, sliding_window_pattern=0), '"sliding_window_pattern"'),
            (changed(sliding_window=512, use_sliding_window=True), '"max_window_layers"'),
            (changed(sliding_window=512, layer_types=[FULL] * 11), '"layer_types"'),
            (changed(layer_types=["linear_attention"] * 12), '"layer_types"'),
            (changed(layer_types=[SLIDING] * 12), '"sliding_window": is missing'),
            (changed(hybrid_override_pattern="M-M*-"), '"hybrid_override_pattern"'),
            (changed(num_kv_shared_layers=12), '"num_kv_shared_layers"'),
            (changed(head_dim=64, global_head_dim=512), '"global_head_dim"'),
            (changed(num_hidden_layers=1024, num_key_value_heads=1024, head_dim=1024),
             "no geometry")):
        code, out, err = in_file(content)
        check(code == BAD_INPUT and not out and words in err, content if len(content) < 999 else "",
              "gave", code, out, err, "and not", words)
        check(err.count("\n") == 1, "one line, please:", err)


def test_bad_calls():
    model = os.path.join(MODELS, "llama-3-8b.json")
    for args, expected, words in (
            ([], USAGE, "MODEL.json"),
            ([model, model], USAGE, "too many"),
            ([model, "--codec", "i9"], USAGE, "i9"),
            ([model, "--codec", "0-1:i4"], USAGE, "more layers"),
            ([model, "--page-tokens", "48"], USAGE, "16, 32, 64 or 128"),
            ([model, "--page-tokens", "8"], USAGE, "16 to 128"),
            ([model, "--tokens", "0"], USAGE, "1 to"),
            ([model, "--tokens", "many"], USAGE, "1 to"),
            ([model + "x"], BAD_INPUT, "No such file"),
            ([MODELS], BAD_INPUT, "directory")):
        code, out, err = run(*args)
        check(code == expected and not out and words in err, args, "gave", code, out, err)
    code, out, _ = run("--help")
    check(code == OK and "kv_lora_rank" in out, code, out)


def main():
    tests = [test for name, test in sorted(globals().items()) if name.startswith("test_")]
    for test in tests:
        try:
            test()
        except AssertionError as error:
            print(f"{test.__name__}: {error}", file=sys.stderr)
            return 1
    print(f"{len(tests)} tests passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
