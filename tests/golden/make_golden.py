#!/usr/bin/env python3
"""Golden vectors of the page format, written from kernels/FORMAT.md alone.

    make_golden.py DIR            writes DIR/units.bin and DIR/pages.bin
    make_golden.py --check DIR    makes them anew and compares; status 77 without numpy or xxhash

Needs numpy and xxhash (Debian: python3-numpy, python3-xxhash). It shares no line with the C code: it
rounds with numpy's types or by looking for the nearest value in a table, and transforms with a matrix.

Both files are a sequence of records of little-endian 32-bit numbers and bytes:
  unit: codec dtype dim rows scale(binary32 bits) refused saturated encoded_bytes,
        elements[rows * dim] u16, encoded[encoded_bytes], decoded[rows * dim] u16
        (refused 1: it ends with its elements; 2: it has no elements, it is only to be decoded)
  page: kind dtype n_layers n_heads dim0 dim1 page_tokens set_bytes n_steps page_bytes rows saturated,
        set, steps, page[page_bytes], decoded; a step is keep_rows, rows, 1 if the page is the first of
        its path, and the elements of the rows from keep_rows on; elements and decoded stand as [part][layer][head][row][dim] u16
"""
import os
import struct
import sys

try:
    import numpy as np
    from xxhash import xxh3_64_intdigest
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

F16, BF16 = 1, 2
KV, MLA = 1, 2
CODECS = {"raw16": 1, "fp8t": 2, "fp8s_e4m3": 3, "fp8s_e5m2": 4, "i8v": 5, "i8k": 6, "i4k": 7,
          "i2k": 8, "i4s": 9, "w4v": 10, "w2v": 11}
NAMES = {number: name for name, number in CODECS.items()}
f32 = np.float32

# ------------------------------------------------------------------------------------ conversions


def widen(bits, dtype):
    bits = np.asarray(bits, np.uint16)
    if dtype == F16:
        return bits.view(np.float16).astype(f32)
    return (bits.astype(np.uint32) << 16).view(f32)


def out(x, dtype):
    """Rounds binary32 to the dtype, nearest even. There are no NaNs here."""
    x = np.ascontiguousarray(x, f32)
    if dtype == F16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    bits = x.view(np.uint32).astype(np.uint64)
    low, upper = bits & 0xffff, bits >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (upper & 1 == 1))
    return (upper + up).astype(np.uint16)


def f16(x):
    """As stored, and as used."""
    half = np.asarray(x, f32).astype(np.float16)
    return half.view(np.uint16), half.astype(f32)


def scale_of(x):
    stored, value = f16(x)
    zero = (np.asarray(x, f32) > 0) & (value == 0)
    return np.where(zero, np.uint16(1), stored), np.where(zero, f32(2.0 ** -24), value)


def inv(s):
    s = np.asarray(s, f32)
    with np.errstate(divide="ignore"):
        return np.where(s == 0, f32(0), f32(1) / s).astype(f32)


def fp8_values(mantissa, bias, last):
    """The values of the codes 0 .. last."""
    values = []
    for code in range(last + 1):
        exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
        if exponent == 0:
            values.append(fraction * 2.0 ** (1 - bias - mantissa))
        else:
            values.append((1 + fraction / 2 ** mantissa) * 2.0 ** (exponent - bias))
    return np.array(values, np.float64)


E4M3 = fp8_values(3, 7, 0x7e)
E5M2 = fp8_values(2, 15, 0x7b)


def fp8(x, values):
    """Code of the nearest value, ties to the even code; and what lies past the largest value."""
    magnitude = np.abs(x).astype(np.float64)
    step = values[-1] - values[-2]
    more = np.append(values, values[-1] + step)  # the value that there would be
    above = np.searchsorted(more, magnitude, side="left").clip(1, len(more) - 1)
    below = above - 1
    to_above, to_below = more[above] - magnitude, magnitude - more[below]
    code = np.where(to_above < to_below, above, below)
    code = np.where(to_above == to_below, np.where(above % 2 == 0, above, below), code)
    code = np.where(magnitude >= more[-1], len(more) - 1, code)
    saturated = code == len(more) - 1
    code = np.minimum(code, len(values) - 1)
    return (code + 128 * np.signbit(x)).astype(np.uint8), int(saturated.sum())


def fp8_decode(codes, values):
    magnitude = values[np.minimum(codes & 0x7f, len(values) - 1)].astype(f32)
    return np.where(codes & 0x80, -magnitude, magnitude).astype(f32)


# ------------------------------------------------------------------------------------ units


def pad16(data):
    return data + bytes(-len(data) % 16)


def pack(codes, bits):
    """codes[rows][n] -> bytes of each row."""
    rows = []
    for row in codes:
        value = 0
        for i, code in enumerate(row):
            value |= (int(code) & ((1 << bits) - 1)) << (i * bits)
        rows.append(value.to_bytes((len(row) * bits + 7) // 8, "little"))
    return rows


def unpack(row, bits, n):
    value = int.from_bytes(row, "little")
    return [value >> (i * bits) & ((1 << bits) - 1) for i in range(n)]


def halves(data):
    return np.frombuffer(data, np.float16).astype(f32)


class Unit:
    """channel: bytes; row_stats, codes: lists of the bytes of each row."""

    def __init__(self, channel, row_stats, codes, saturated=0):
        self.channel, self.row_stats, self.codes = channel, row_stats, codes
        self.saturated = saturated

    def encoded(self, rows):
        return (self.channel + pad16(b"".join(self.row_stats[:rows])) +
                pad16(b"".join(self.codes[:rows])))


def refused(bits, dtype):
    return bool(((bits & 0x7fff) > (0x7000 if dtype == F16 else 0x4600)).any())


def blocks(dim, block):
    return [slice(i, min(i + block, dim)) for i in range(0, dim, block)]


def clamped(x, low, high):
    q = np.rint(x)
    return np.clip(q, low, high).astype(np.int64), int(((q < low) | (q > high)).sum())


class Raw16:
    def encode(self, bits, dtype, scale):
        return Unit(b"", [b""] * len(bits), [row.tobytes() for row in bits])

    def decode(self, unit, dim, scale):
        raise AssertionError("raw16 is not a number")


class Scaled:
    """A scale for each block of a row; block 0: a row of up to 256 elements, else 128."""

    def __init__(self, block, divisor, bits, quantise, value):
        self.block, self.divisor, self.bits = block, f32(divisor), bits
        self.quantise, self.value = quantise, value

    def blocks(self, dim):
        return blocks(dim, self.block or (dim if dim <= 256 else 128))

    def encode(self, bits, dtype, scale):
        x = widen(bits, dtype)
        stats, codes, saturated = [b""] * len(x), np.zeros(x.shape, np.int64), 0
        for b in self.blocks(x.shape[1]):
            amax = np.abs(x[:, b]).max(axis=1, keepdims=True)
            stored, s = scale_of(amax / self.divisor)
            codes[:, b], n = self.quantise(x[:, b] * inv(s))
            saturated += n
            stats = [old + stored[r].tobytes() for r, old in enumerate(stats)]
        return Unit(b"", stats, pack(codes, self.bits), saturated)

    def decode(self, unit, dim, scale):
        rows = []
        for stats, codes in zip(unit.row_stats, unit.codes):
            value = self.value(np.array(unpack(codes, self.bits, dim)))
            for b, s in zip(self.blocks(dim), halves(stats)):
                value[b] *= s
            rows.append(value)
        return np.array(rows, f32)


class Fp8s:
    def __init__(self, values):
        self.values = values

    def encode(self, bits, dtype, scale):
        codes, saturated = fp8(widen(bits, dtype) / f32(scale), self.values)
        return Unit(b"", [b""] * len(bits), [row.tobytes() for row in codes], saturated)

    def decode(self, unit, dim, scale):
        codes = np.array([list(row) for row in unit.codes])
        return fp8_decode(codes, self.values) * f32(scale)


def signed(codes, bits):
    return np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes).astype(f32)


class Channel:
    def __init__(self, bits, low, high, counts, stats):
        self.bits, self.low, self.high, self.counts, self.stats = bits, low, high, counts, stats

    def encode(self, bits, dtype, scale):
        x = widen(bits, dtype)
        m, s = self.stats(x)
        (m_bits, m), (s_bits, s) = f16(m), scale_of(s)
        q, saturated = clamped((x - m) * inv(s), self.low, self.high)
        return Unit(pad16(m_bits.tobytes()) + pad16(s_bits.tobytes()), [b""] * len(x),
                    pack(q, self.bits), saturated if self.counts else 0)

    def decode(self, unit, dim, scale):
        m, s = halves(unit.channel).reshape(2, -1)[:, :dim]
        q = np.array([unpack(row, self.bits, dim) for row in unit.codes])
        q = signed(q, self.bits) if self.low < 0 else q.astype(f32)
        return q * s + m


def i8k_stats(x):
    total = np.zeros(x.shape[1], f32)
    for row in x:
        total = total + row
    m = total / f32(len(x))
    a = np.abs(x - f16(m)[1]).max(axis=0)
    return m, a / f32(127)


def i4k_stats(x):
    m = x.min(axis=0) + f32(0)
    r = x.max(axis=0) - f16(m)[1]
    return m, np.where(r > 0, r / f32(15), f32(0))


def i2k_stats(x):
    r = x.max(axis=0) - x.min(axis=0)
    return x.min(axis=0) + r * f32(0.125), r * f32(0.25)


PI = (0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344)
SIGNS = np.array([-1 if PI[i // 32] >> i % 32 & 1 else 1 for i in range(128)])


def walsh(n):
    return np.array([[(-1) ** bin(i & k).count("1") for i in range(n)] for k in range(n)])


WALSH = {n: walsh(n) for n in (16, 32, 64, 128)}


def rotation_block(padded):
    return min(128, padded & -padded)


class Rotated:
    def __init__(self, levels, b, f, constant, bits):
        self.levels, self.b, self.f, self.constant = np.array(levels), b, f, f32(constant)
        self.bits, self.upper = bits, 1 << (bits - 1)

    def rotate(self, x, n):
        """y and amax of scale blocks x[...][elements]."""
        amax = np.abs(x).max(axis=-1, keepdims=True)
        r = np.rint(x * (f32(255) / amax)).astype(np.int64) * SIGNS[:x.shape[-1]]
        return (r.reshape(-1, n) @ WALSH[n].T).reshape(x.shape), amax

    def encode_block(self, x, n):
        """A scale block: the stored scale and the codes."""
        if np.abs(x).max() < f32(2.0 ** -40):
            return np.zeros((), np.uint16), np.zeros(len(x), np.int64)
        y, amax = self.rotate(x, n)
        largest = int(np.abs(y).max())
        codes = self.upper * (y < 0)
        for border in self.b:
            codes = codes + (np.abs(y) > border * self.f * largest // 4064)
        return f16((f32(largest) * amax[0]) * (self.constant / f32(n)))[0], codes

    def encode(self, bits, dtype, scale):
        x = widen(bits, dtype)
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % 16)))
        stats, codes = [], np.zeros(x.shape, np.int64)
        for r, row in enumerate(x):
            scales = b""
            for block in blocks(len(row), 128):
                stored, codes[r, block] = self.encode_block(row[block], rotation_block(len(row)))
                scales += stored.tobytes()
            stats.append(scales)
        return Unit(b"", stats, pack(codes, self.bits))

    def decode(self, unit, dim, scale):
        padded, rows = dim + -dim % 16, []
        n = rotation_block(padded)
        for stats, packed in zip(unit.row_stats, unit.codes):
            codes = np.array(unpack(packed, self.bits, padded))
            level = self.levels[codes % self.upper] * np.where(codes >= self.upper, -1, 1)
            w = (level.reshape(-1, n) @ WALSH[n].T).reshape(-1)
            t = np.zeros(padded, f32)
            for block, s in zip(blocks(padded, 128), halves(stats)):
                signs = SIGNS[:block.stop - block.start]
                t[block] = (w[block] * signs).astype(f32) * (s * f32(2.0 ** -10))
            rows.append(np.clip(t, f32(-65504), f32(65504))[:dim])
        return np.array(rows, f32)


CODEC = {
    "raw16": Raw16(),
    "fp8t": Scaled(0, 448, 8, lambda x: fp8(x, E4M3), lambda code: fp8_decode(code, E4M3)),
    "fp8s_e4m3": Fp8s(E4M3),
    "fp8s_e5m2": Fp8s(E5M2),
    "i8v": Scaled(0, 127, 8, lambda x: clamped(x, -127, 127), lambda code: signed(code, 8)),
    "i8k": Channel(8, -127, 127, True, i8k_stats),
    "i4k": Channel(4, 0, 15, True, i4k_stats),
    "i2k": Channel(2, 0, 3, False, i2k_stats),
    "i4s": Scaled(32, 7, 4, lambda x: clamped(x, -7, 7), lambda code: signed(code, 4)),
    "w4v": Rotated([6, 18, 31, 44, 58, 75, 96, 127], [24, 49, 75, 102, 133, 171, 223], 15,
                   0.0296433531, 4),
    "w2v": Rotated([38, 127], [165], 9, 0.017786013, 2),
}


def decode(name, unit, dim, dtype, scale):
    if name == "raw16":
        return np.array([np.frombuffer(row, np.uint16) for row in unit.codes])
    return out(CODEC[name].decode(unit, dim, scale), dtype)


# ------------------------------------------------------------------------------------ pages

NAMED = {"f16": ("raw16", "raw16"), "fp8": ("fp8t", "fp8t"), "i8": ("i8k", "i8v"),
         "k8v4": ("i8k", "w4v"), "i4": ("i4k", "w4v"), "i2": ("i2k", "w2v")}
NAMED_MLA = {"f16": ("raw16", "raw16"), "fp8": ("fp8t", "raw16"), "i8": ("i8v", "i8v"),
             "i4": ("w4v", "raw16"), "i2": ("w2v", "raw16")}


def parse_unit(text):
    name, _, scale = text.partition(":")
    return name, float(f32(float(scale))) if scale else 0.0


def parse_pair(text, kind):
    named = NAMED if kind == KV else NAMED_MLA
    if text in named:
        return [(name, 0.0) for name in named[text]]
    if "," in text:
        return [parse_unit(half.partition(":")[2]) for half in text.split(",")]
    return [parse_unit(text)] * 2


def parse_set(text, kind, n_layers):
    """[(first layer, layers, [(codec, scale), (codec, scale)])]"""
    if not text[0].isdigit() and not text.startswith("rest"):
        return [(0, n_layers, parse_pair(text, kind))]
    ranges = []
    for part in text.split(";"):
        layers, _, pair = part.partition(":")
        first = ranges[-1][0] + ranges[-1][1] if ranges else 0
        last = n_layers - 1 if layers == "rest" else int(layers.split("-")[-1])
        ranges.append((first, last + 1 - first, parse_pair(pair, kind)))
    return ranges


class Coded:
    """A unit of a page, with what it decodes to."""

    def __init__(self, name, bits, dtype, scale):
        unit = CODEC[name].encode(bits, dtype, scale)
        self.encoded, self.saturated = unit.encoded, unit.saturated
        self.decoded = decode(name, unit, bits.shape[1], dtype, scale)


def encode_segment(kv, dtype, ranges, is_raw=False):
    """kv[part][layer][head] = bits[rows][dim]. Units in the order of the page, and the raw flag."""
    for raw in (is_raw, True):
        units, fits = [], True
        for first, n, codecs in ranges:
            for layer in range(first, first + n):
                for part in range(2):
                    name, scale = ("raw16", 0.0) if raw else codecs[part]
                    for bits in kv[part][layer]:
                        fits &= name == "raw16" or not refused(bits, dtype)
                        units.append((bits, name, scale))
        if fits:
            return [Coded(name, bits, dtype, scale) for bits, name, scale in units], raw
    raise AssertionError("raw16 refuses nothing")


def page_bytes(kind, dtype, n_layers, n_heads, dims, page_tokens, ranges, segments):
    """segments: [(units, raw, rows kept)]"""
    payload, table, first_row = b"", b"", 0
    for units, raw, rows in segments:
        data = b"".join(unit.encoded(rows) for unit in units)
        saturated = sum(unit.saturated for unit in units)
        table += struct.pack("<IIIBBBB", 192 + len(payload), len(data), saturated, first_row, rows,
                             raw, 0)
        payload += data + bytes(-len(data) % 64)
        first_row += rows
    range_table = b""
    for first, n, codecs in ranges:
        range_table += struct.pack("<HHBBHff", first, n, *[CODECS[name] for name, _ in codecs], 0,
                                   *[scale for _, scale in codecs])
    geometry = struct.pack("<7I", kind, dtype, n_layers, n_heads, *dims, page_tokens)

    def header(header_hash):
        return (b"KVTP" + struct.pack("<HHQQQ", 1, 192, xxh3_64_intdigest(geometry),
                                      xxh3_64_intdigest(payload), header_hash) +
                struct.pack("<IHHBBBBHHHH", len(payload), page_tokens, first_row, kind, dtype,
                            len(ranges), len(segments), n_layers, n_heads, *dims) + bytes(12) +
                range_table.ljust(64, b"\0") + table.ljust(64, b"\0"))
    return header(xxh3_64_intdigest(header(0))) + payload


# ------------------------------------------------------------------------------------ data


def row_of(kind, dim, dtype, rng):
    """One row as bits; each kind strains something else."""
    limit = 0x7000 if dtype == F16 else 0x4600
    if kind == "bits":  # every magnitude that is taken
        bits = rng.randint(0, limit + 1, dim) | rng.randint(0, 2, dim) << 15
        return bits.astype(np.uint16)
    x = rng.standard_normal(dim)
    if kind == "outlier":
        x[rng.randint(dim)] *= 300
    elif kind == "heavy":
        x = x / np.abs(rng.standard_normal(dim)).clip(0.01)
    elif kind == "tiny":
        x *= 3e-6
    elif kind == "vanishing":
        x *= 2.0 ** rng.choice([-130, -41, -39])
    elif kind == "denormal":
        x = rng.randint(-9, 10, dim) * 2.0 ** -24
    elif kind == "zero":
        x = x * 0
    elif kind == "constant":
        x = np.full(dim, 0.7123)
    elif kind == "large":
        x = np.sign(x) * 8192
    elif kind == "half":  # ties everywhere
        x = np.rint(x * 4) / 2
    return out(x.astype(f32), dtype)


KINDS = ("normal", "outlier", "heavy", "bits", "half", "tiny", "vanishing", "denormal", "zero",
         "constant", "large")


def rows_of(rows, dim, dtype, kinds, rng):
    made = [row_of(kinds[r % len(kinds)], dim, dtype, rng) for r in range(rows)]
    return np.array(made, np.uint16).reshape(rows, dim)


def unit_record(name, dtype, bits, scale=0.0):
    no = refused(bits, dtype) and name != "raw16"
    unit = Unit(b"", [], []) if no else CODEC[name].encode(bits, dtype, scale)
    rows, dim = bits.shape
    encoded = b"" if no else unit.encoded(rows)
    head = struct.pack("<4If3I", CODECS[name], dtype, dim, rows, scale, no, unit.saturated,
                       len(encoded))
    decoded = b"" if no else decode(name, unit, dim, dtype, scale).tobytes()
    return head + bits.tobytes() + encoded + decoded


def decode_record(name, dtype, dim, rows, rng):
    """Codes of every kind, also those that no encoder writes."""
    code_bytes = {"i4k": dim // 2, "i4s": dim // 2, "i2k": (dim + 3) // 4,
                  "w4v": (dim + -dim % 16) // 2, "w2v": (dim + -dim % 16) // 4}.get(name, dim)
    codes = rng.randint(0, 256, (rows, code_bytes)).astype(np.uint8)
    if name in ("fp8t", "fp8s_e4m3"):
        codes[codes & 0x7f == 0x7f] = 0
    elif name == "fp8s_e5m2":
        codes[codes & 0x7f > 0x7b] = 0
    if name in ("w4v", "w2v"):
        codes[0] = 0x77 if name == "w4v" else 0x55  # every level the largest: the clamp
    stats = {"fp8t": 1, "i8v": 1, "i4s": -(-dim // 32), "w4v": 1, "w2v": 1}.get(name, 0)
    row_stats = [rng.randint(1, 0x7700, stats).astype(np.uint16).tobytes() for _ in range(rows)]
    if name in ("w4v", "w2v"):
        row_stats[0] = np.array([0x7bff], np.uint16).tobytes()
    channel = b""
    if name in ("i8k", "i4k", "i2k"):
        m = rng.randint(0, 0x6000, dim) | rng.randint(0, 2, dim) << 15
        channel = pad16(m.astype(np.uint16).tobytes())
        channel += pad16(rng.randint(0, 0x5000, dim).astype(np.uint16).tobytes())
    unit = Unit(channel, row_stats, [row.tobytes() for row in codes])
    scale = 0.75 if name.startswith("fp8s") else 0.0
    encoded = unit.encoded(rows)
    head = struct.pack("<4If3I", CODECS[name], dtype, dim, rows, scale, 2, 0, len(encoded))
    return head + encoded + decode(name, unit, dim, dtype, scale).tobytes()


def near_scales(name, rng):
    """Rows of 128 whose scale is another one if its products are taken in another order, or if the
    constant is off by its last bit."""
    codec, n = CODEC[name], f32(128)
    bits = rows_of(40000, 128, F16, ("normal",), rng)
    y, amax = codec.rotate(widen(bits, F16), 128)
    m, c = np.abs(y).max(axis=1).astype(f32), codec.constant
    scale = f16((m * amax[:, 0]) * (c / n))[0]
    others = [f16(m * (amax[:, 0] * (c / n)))[0], f16((m * (c / n)) * amax[:, 0])[0],
              f16((m * amax[:, 0]) * (np.nextafter(c, f32(1)) / n))[0],
              f16((m * amax[:, 0]) * (np.nextafter(c, f32(0)) / n))[0]]
    return np.concatenate([bits[np.flatnonzero(scale != other)[:1]] for other in others])


def make_units():
    rng = np.random.RandomState(1)
    records = []
    dims = (64, 80, 96, 100, 112, 128, 192, 256, 512, 2, 30, 320)
    for name in CODECS:
        per_channel = name in ("i8k", "i4k", "i2k")
        fp8s = name.startswith("fp8s")
        for i, dim in enumerate(dims):
            dtype = (F16, BF16)[i % 2]
            scale = (0.5, 1.0, 0.0123, 64.0)[i % 4] if fp8s else 0.0
            rows = (1 if dim > 128 else (2, 3, 1, 2)[i % 4]) + per_channel
            start = i * 3 % len(KINDS)
            kinds = KINDS[start:] + KINDS[:start]
            if per_channel:  # statistics of like rows, else one large row hides the others
                kinds = ((KINDS[i % len(KINDS)],) if i % 3 else ("normal", "normal", "heavy"))
            records.append(unit_record(name, dtype, rows_of(rows, dim, dtype, kinds, rng), scale))
        for dtype in (F16, BF16):
            for kind in KINDS:  # every kind by itself, 16 wide
                bits = rows_of(3, 16, dtype, (kind,), rng)
                records.append(unit_record(name, dtype, bits, 0.25 if fp8s else 0.0))
            for refused_bits in ((0x7001, 0x7c00, 0xfc00, 0xfe01) if dtype == F16 else
                                 (0x4601, 0x7f80, 0xff80, 0xffc1)):
                bits = rows_of(2, 16, dtype, ("normal",), rng)
                bits[1, 6:8] = 0x7000 if dtype == F16 else 0x4600, refused_bits
                records.append(unit_record(name, dtype, bits, 1.0 if fp8s else 0.0))
            if name != "raw16":
                for dim in (30, 48, 128):
                    records.append(decode_record(name, dtype, dim, 2, rng))
        if fp8s:  # on the borders between two codes, where a product with 1 / scale goes wrong
            values = CODEC[name].values
            ties = np.append(values[:-1] + values[1:], 2 * values[-1] + values[-1] - values[-2]) / 2
            for scale in (0.125, 3.0, 7.0, 11.0, 13.0, 25.0, 49.0):
                x = np.append(ties, -ties) * scale
                with np.errstate(over="ignore"):
                    exact = x[x.astype(np.float16) == x]
                bits = exact[np.abs(exact) <= 8192].astype(np.float16).view(np.uint16)
                bits = bits[:len(bits) // 2 * 2]
                records.append(unit_record(name, F16, bits.reshape(1, -1), scale))
    for name in ("w4v", "w2v"):
        records.append(unit_record(name, F16, near_scales(name, rng)))
    return b"".join(records)


LOSSLESS = ("raw16", "fp8s_e4m3", "fp8s_e5m2")


def page_record(kind, dtype, n_layers, n_heads, dims, page_tokens, text, steps, rng, poison=(),
                is_first=False):
    """steps: [(keep_rows, rows)]; poison: steps whose last element of part 0 is an infinity."""
    ranges = parse_set(text, kind, n_layers)
    segments, decoded, stored_steps = [], [], b""
    for number, (keep, rows) in enumerate(steps):
        kept, left = [], keep
        for units, raw, n in segments:
            if left > 0:
                kept.append((units, raw, min(n, left)))
                left -= n
        segments = kept
        kv = [[[rows_of(rows - keep, dims[part], dtype, ("normal", "heavy", "normal"), rng)
                for _ in range(n_heads)] for _ in range(n_layers)] for part in range(2)]
        if number in poison:
            kv[0][-1][-1][-1, -1] = 0x7c00 if dtype == F16 else 0x7f80
        stored_steps += struct.pack("<3I", keep, rows, is_first)
        for part in range(2):
            for layer in kv[part]:
                for bits in layer:
                    stored_steps += bits.tobytes()
        lossy = any(name not in LOSSLESS for _, _, pair in ranges for name, _ in pair)
        raw_rows = max(min(4, rows) - keep, 0) if is_first and lossy else 0
        for first, end, is_raw in ((0, raw_rows, True), (raw_rows, rows - keep, False)):
            if end > first:
                part_kv = [[[bits[first:end] for bits in layer] for layer in part] for part in kv]
                segments.append((*encode_segment(part_kv, dtype, ranges, is_raw), end - first))
    page = page_bytes(kind, dtype, n_layers, n_heads, dims, page_tokens, ranges, segments)
    for part in range(2):
        for layer in range(n_layers):
            for head in range(n_heads):
                index = layer * 2 * n_heads + part * n_heads + head
                decoded += [units[index].decoded[:rows].tobytes() for units, _, rows in segments]
    saturated = sum(unit.saturated for units, _, _ in segments for unit in units)
    return (struct.pack("<12I", kind, dtype, n_layers, n_heads, *dims, page_tokens, len(text),
                        len(steps), len(page), sum(rows for _, _, rows in segments), saturated) +
            text.encode() + stored_steps + page + b"".join(decoded))


def make_pages():
    rng = np.random.RandomState(2)
    one, grown = [(0, 5)], [(0, 5), (5, 9), (9, 10)]
    cut = [(0, 7), (4, 6), (5, 8)]
    records = [page_record(KV, (F16, BF16)[i % 2], 1, 2, (32, 48), 16, text, steps, rng)
               for i, text in enumerate(NAMED) for steps in (one, cut)]
    records += [page_record(MLA, (BF16, F16)[i % 2], 1, 1, (512, 64), 16, text, [(0, 3), (1, 2)], rng)
                for i, text in enumerate(NAMED_MLA)]
    records += [
        page_record(MLA, BF16, 1, 1, (512, 64), 64, "latent:w4v,rope:i8v", [(0, 2)], rng),
        page_record(KV, F16, 3, 1, (80, 20), 32, "0:f16;rest:i4", grown, rng),
        page_record(KV, F16, 4, 1, (32, 16), 16, "0:f16;1-2:k:i8k,v:i4s;3:fp8", cut, rng),
        page_record(KV, BF16, 2, 2, (16, 32), 16, "k:fp8s_e4m3:0.5,v:fp8s_e5m2:3.25e-2", cut, rng),
        page_record(KV, F16, 1, 1, (128, 128), 64, "i4s", [(0, 3)], rng),
        page_record(KV, F16, 1, 2, (100, 96), 16, "k8v4", [(0, 5)], rng, poison=(0,)),
        page_record(KV, BF16, 2, 1, (16, 64), 16, "i8", grown, rng, poison=(1,)),
        page_record(KV, F16, 2, 1, (64, 16), 16, "i4", [(0, 3), (1, 6), (4, 9)], rng, poison=(1,)),
        page_record(KV, F16, 1, 1, (64, 64), 16, "i8", [(0, 5), (3, 3)], rng),
    ]
    cuts = ([(0, 2)], [(0, 4)], [(0, 9)], [(0, 2), (1, 3), (2, 7)], [(0, 9), (3, 6)])
    records += [page_record(KV, (F16, BF16)[i % 2], 2, 1, (32, 100), 16, text, steps, rng,
                            is_first=True)
                for i, text in enumerate(("f16", "i8", "0:f16;1:k8v4", "fp8", "k:fp8s_e4m3:0.5,v:i2k",
                                          "fp8s_e5m2:0.5"))
                for steps in (cuts[i % 5], cuts[3])]
    records += [page_record(MLA, F16, 1, 1, (512, 64), 16, text, [(0, 6)], rng, is_first=True)
                for text in ("f16", "i4")]
    records.append(page_record(KV, F16, 2, 1, (64, 16), 16, "i4", [(0, 7)], rng, poison=(0,),
                               is_first=True))
    return b"".join(records)


def main(arguments):
    check = arguments[:1] == ["--check"]
    if len(arguments) != 1 + check:
        print(__doc__)
        return 2
    for name, data in (("units.bin", make_units()), ("pages.bin", make_pages())):
        path = os.path.join(arguments[-1], name)
        if check:
            with open(path, "rb") as file:
                if file.read() != data:
                    print(f"{path} is not what FORMAT.md gives")
                    return 1
        else:
            with open(path, "wb") as file:
                file.write(data)
            print(f"{path}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
