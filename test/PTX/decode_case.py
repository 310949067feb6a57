"""Inputs, launch and float64 reference for Inputs/decode.cu."""

import os
import re
import struct
import subprocess

import numpy as np

import ptx_machine

np.seterr(all="ignore")
KV_HEADS, GROUP, HEAD_DIM, Q_HEADS = 8, 8, 128, 64
E4M3, E5M2 = 0, 1
SOURCE = os.path.join(os.path.dirname(__file__), "Inputs", "decode.cu")


def fp8_table(fmt):
    codes = np.arange(256)
    if fmt == E5M2:
        return (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    sign, e, m = codes >> 7, codes >> 3 & 15, codes & 7
    v = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0))
    v[(e == 15) & (m == 7)] = np.nan
    return np.where(sign == 1, -v, v)


TABLE = {f: fp8_table(f) for f in (E4M3, E5M2)}


def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def compile_cuda(llvm_bin, source, output, arch="sm_90", defines=()):
    """clang to PTX; `source` is a file. llvm_bin: "" takes LLVM 22 from PATH."""
    clang = os.path.join(llvm_bin, "clang++") if llvm_bin else "clang++-22"
    subprocess.check_call(
        [clang, "-x", "cuda", "--cuda-device-only", f"--cuda-gpu-arch={arch}",
         "--cuda-feature=+ptx83", "-nocudainc", "-nocudalib", "-std=c++17", "-O3", "-w", "-S",
         *defines, source, "-o", output])
    with open(output) as f:
        return f.read()


def only_instances(source, names):
    """The source without comments and with no other INST(...) than these."""
    def keep(match):
        return match[0] if match[1] in names else ""
    source = re.sub(r"//.*", "", source)
    return re.sub(r"^INST\((\w+),(?:[^()]|\([^()]*\))*\)", keep, source, flags=re.M)


def edit(source, old, new, times=1):
    """Replaces code whatever its white space is; complains when it is not there."""
    tokens = re.findall(r"\w+|[^\w\s]", old)
    source, count = re.subn(r"\s*".join(map(re.escape, tokens)), lambda _: new, source)
    if count != times:
        raise ValueError(f"expected {times} times, found {count} times: {old}")
    return source


class Shape:
    """What an instance's name says."""

    def __init__(self, name):
        m = re.match(r"(nhd|hnd)(\d+)_t(\d+)_s(\d+)_(\w+)", name)
        self.layout, self.page, self.tile, self.stages = m[1], int(m[2]), int(m[3]), int(m[4])
        self.bulk, swizzled = "bulk" in m[5], "swz" in m[5]
        pitch = 128 if swizzled or self.bulk else 144
        ring = 4 * self.stages * 2 * self.tile * pitch
        bars = 4 * self.stages * 8 if self.bulk else 0
        merge = 4 * 8 * 136 * 4 + 4 * 8 * 8
        self.shared_bytes = max(ring + bars, merge)


class Case:
    """Sequences of the given lengths. Slots of no token hold NaN codes and are
    marked as never written, and so are table entries of no page; each row of the
    table has `spare` of those at least."""

    def __init__(self, lengths, page, layout, fmt=E4M3, seed=0, split=None, kind="normal", nan=None, spare=2):
        rng = np.random.default_rng(seed)
        self.lengths, self.page, self.layout, self.fmt = np.array(lengths, np.int32), page, layout, fmt
        n, per_sequence = len(lengths), [-(-l // page) for l in lengths]
        pages = sum(per_sequence) + 3
        order = rng.permutation(pages)
        self.stride = max(per_sequence) + spare
        self.table = np.full((n, self.stride), 0x7FFFFFF, np.int32)
        self.table_used = np.zeros((n, self.stride), bool)
        first = 0
        for i in range(n):
            self.table[i, : per_sequence[i]] = order[first : first + per_sequence[i]]
            self.table_used[i, : per_sequence[i]] = True
            first += per_sequence[i]
        values = TABLE[fmt]
        finite = np.flatnonzero(np.isfinite(values))
        shape = (pages, page, KV_HEADS, HEAD_DIM)
        if kind == "normal":
            positive = np.sort(values[:128][np.isfinite(values[:128])])
            x = np.abs(rng.standard_normal(4096))
            nearest = np.abs(positive[None] - x[:, None]).argmin(1)
            grid = (nearest | (rng.integers(0, 2, 4096) << 7)).astype(np.uint8)
            draw = lambda: grid[rng.integers(0, 4096, shape)]
        else:  # every finite code
            draw = lambda: rng.choice(finite, shape).astype(np.uint8)
        self.k, self.v = draw(), draw()
        if nan:
            which, token, dim = nan
            cache = self.k if which == "k" else self.v
            cache[self.table[0, token // page], token % page, :, dim] = 0xFF
        self.used = np.zeros((pages, page), bool)
        for i in range(n):
            t = np.arange(lengths[i])
            self.used[self.table[i, t // page], t % page] = True
        for cache in (self.k, self.v):
            cache[~self.used] = 0x7F
        scale = 0.1 if kind == "codes" else 1
        self.q = to_bf16(rng.standard_normal((n, Q_HEADS, HEAD_DIM)) * scale)
        self.score_scale = np.float32(HEAD_DIM**-0.5 * 1.4426950408889634 * 0.9)
        self.v_scale = np.float32(1.25)
        self.split = split or 1024
        self.splits = max(1, -(-max(lengths) // self.split))

    def run(self, machine, module, name, options=None):
        """-> report; the outputs are self.o and self.ml, self.written tells which
        (sequence, split) were written as a whole, self.touched in part."""
        machine.clear()
        n = len(self.lengths)
        lay = np.ascontiguousarray if self.layout == "nhd" else lambda c: np.ascontiguousarray(c.transpose(0, 2, 1, 3))
        valid = lay(np.broadcast_to(self.used[:, :, None, None], self.k.shape).astype(np.uint8))
        self.o = np.full((n, self.splits, Q_HEADS, HEAD_DIM), np.nan, np.float32)
        self.ml = np.full((n, self.splits, Q_HEADS, 2), np.nan, np.float32)
        outputs = [machine.output(self.o, "part_o"), machine.output(self.ml, "part_ml")]
        pointers = [
            machine.buffer(self.q, "q"),
            machine.buffer(lay(self.k), "k", valid),
            machine.buffer(lay(self.v), "v", valid),
            machine.buffer(self.table, "table", np.repeat(self.table_used.reshape(-1), 4)),
            machine.buffer(self.lengths, "lens"),
            *outputs]
        argument = struct.pack("<7Q2f2i", *pointers, self.score_scale, self.v_scale, self.stride, self.split)
        report = machine.launch(module, name, (KV_HEADS, n, self.splits), (128,), Shape(name).shared_bytes,
                                [argument], **(options or ptx_machine.ALL))
        maps = [machine.initialised(h, a.nbytes).reshape(n, self.splits, -1)
                for h, a in zip(outputs, (self.o, self.ml))]
        self.written = maps[0].all(2) & maps[1].all(2)
        self.touched = maps[0].any(2) | maps[1].any(2)
        return report

    def problems(self, tolerance=2e-4):
        """What is wrong with the outputs, against float64 attention on the
        dequantised cache; errors relative to the largest |V| of the head."""
        found = set()
        q = from_bf16(self.q)
        for i, length in enumerate(self.lengths):
            for s in range(self.splits):
                lo, hi = s * self.split, min(int(length), (s + 1) * self.split)
                if self.written[i, s] != (hi > lo) or self.touched[i, s] != (hi > lo):
                    found.add("not written as expected")
                if hi <= lo:
                    continue
                t = np.arange(lo, hi)
                for head in range(KV_HEADS):
                    slots = self.table[i, t // self.page], t % self.page, head
                    k, v = TABLE[self.fmt][self.k[slots]], TABLE[self.fmt][self.v[slots]]
                    g = slice(head * GROUP, head * GROUP + GROUP)
                    x = q[i, g] @ k.T * float(self.score_scale)
                    p = np.exp2(x - x.max(1, keepdims=True))
                    want = np.where(np.isnan(p).any(1)[:, None], np.nan, p @ v / p.sum(1, keepdims=True))
                    want = want * float(self.v_scale)
                    got = self.o[i, s, g]
                    number = ~np.isnan(want)
                    if (np.isnan(got) == number).any():
                        found.add("NaN in other places")
                        continue
                    error = np.abs(got - want)[number]
                    if error.size and error.max() / (np.nanmax(np.abs(v)) * float(self.v_scale)) > tolerance:
                        found.add("wrong value")
        return found
